// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/control.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace mycroft::lab {

bool SendControl(int fd, const nlohmann::json& message) {
  const std::string text = message.dump();
  ssize_t n;
  do {
    n = send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(text.size());
}

ControlResult ReceiveControl(int fd, nlohmann::json* message) {
  ssize_t n;
  std::vector<char> buffer;
  do {
    // MSG_TRUNC with a peek: the true length of the packet.
    n = recv(fd, nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
    if (n > 0) {
      buffer.resize(static_cast<size_t>(n));
      n = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    }
  } while (n < 0 && errno == EINTR);
  if (n < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK ? ControlResult::kNothing
                                                   : ControlResult::kClosed;
  if (n == 0) return ControlResult::kClosed;
  *message = nlohmann::json::parse(buffer.data(), buffer.data() + n, nullptr, false);
  if (!message->is_object() || !message->contains("t") || !(*message)["t"].is_string()) {
    return ControlResult::kClosed;
  }
  return ControlResult::kMessage;
}

}  // namespace mycroft::lab
