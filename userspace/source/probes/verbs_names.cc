// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/verbs_names.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace mycroft {

namespace {

template <size_t kCount>
std::string Named(const char* const (&names)[kCount], uint32_t number, const char* kind) {
  return number < kCount ? names[number] : absl::StrCat(kind, " ", number);
}

}  // namespace

std::string VerbsStatusName(uint32_t status) {
  static constexpr const char* kNames[] = {
      "success",
      "local length error",
      "local QP operation error",
      "local EE context operation error",
      "local protection error",
      "work request flushed",
      "memory window bind error",
      "bad response",
      "local access error",
      "remote invalid request",
      "remote access error",
      "remote operation error",
      "transport retry exceeded",
      "receiver-not-ready retry exceeded",
      "local RDD violation",
      "remote invalid RD request",
      "remote aborted",
      "invalid EE context number",
      "invalid EE context state",
      "fatal error",
      "response timeout",
      "general error",
      "tag matching error",
      "tag matching rendezvous incomplete",
  };
  if (status == 249) return "work request flushed (249)";
  return Named(kNames, status, "status");
}

std::string VerbsEventName(uint32_t type) {
  static constexpr const char* kNames[] = {
      "completion queue error",
      "queue pair fatal error",
      "queue pair request error",
      "queue pair access error",
      "communication established",
      "send queue drained",
      "path migrated",
      "path migration error",
      "device fatal error",
      "port active",
      "port error",
      "LID change",
      "P_Key change",
      "subnet manager change",
      "shared receive queue error",
      "shared receive queue limit reached",
      "last work request reached",
      "client reregister",
      "GID change",
      "work queue fatal error",
  };
  return Named(kNames, type, "event");
}

std::string VerbsStateName(uint32_t state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return Named(kNames, state, "state");
}

uint32_t VerbsMtuBytes(uint32_t mtu) { return mtu >= 1 && mtu <= 5 ? 128u << mtu : 0; }

}  // namespace mycroft
