// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/verbs.h"

#include <arpa/inet.h>
#include <string.h>

namespace mycroft::lab {

const char* WcStatusText(int status) {
  // In the order of enum ibv_wc_status, in the words of ibv_wc_status_str().
  static const char* const kTexts[] = {
      "success",
      "local length error",
      "local QP operation error",
      "local EE context operation error",
      "local protection error",
      "Work Request Flushed Error",
      "memory management operation error",
      "bad response error",
      "local access error",
      "remote invalid request error",
      "remote access error",
      "remote operation error",
      "transport retry counter exceeded",
      "RNR retry counter exceeded",
  };
  if (status < 0 || status >= static_cast<int>(std::size(kTexts))) return "other error";
  return kTexts[status];
}

std::string GidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  return text;
}

}  // namespace mycroft::lab
