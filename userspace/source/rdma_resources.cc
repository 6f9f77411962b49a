// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/rdma_resources.h"

#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace mycroft {
namespace {

constexpr size_t kMostQueuePairs = 16'384;
constexpr size_t kAttributeHeader = 4;

using Bytes = std::span<const std::byte>;

template <typename T>
bool Load(Bytes bytes, T* out) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(out, bytes.data(), sizeof(T));
  return true;
}

// Calls `f(type, payload)` for each attribute.
template <typename F>
void ForEachAttribute(Bytes bytes, const F& f) {
  while (bytes.size() >= kAttributeHeader) {
    std::array<uint16_t, 2> head{};  // length with the header, type
    if (!Load(bytes, &head) || head[0] < kAttributeHeader || head[0] > bytes.size()) return;
    f(static_cast<uint16_t>(head[1] & NLA_TYPE_MASK),
      bytes.subspan(kAttributeHeader, head[0] - kAttributeHeader));
    const size_t next = (static_cast<size_t>(head[0]) + 3) & ~size_t{3};
    if (next >= bytes.size()) return;
    bytes = bytes.subspan(next);
  }
}

uint32_t Number(Bytes bytes) {
  uint32_t number = 0;
  if (Load(bytes, &number)) return number;
  uint8_t small = 0;
  return Load(bytes, &small) ? small : 0;
}

class Socket {
 public:
  Socket() : fd_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA)) {
    const timeval wait = {.tv_sec = 1, .tv_usec = 0};
    if (fd_ >= 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Asks for a dump, and calls `f(message)` for each message of the answer.
  template <typename F>
  bool Dump(int command, std::optional<uint32_t> device, const F& f) {
    if (fd_ < 0) return false;
    struct {
      nlmsghdr header;
      std::array<uint16_t, 2> attribute;
      uint32_t device;
    } request = {};
    static_assert(sizeof(request) == sizeof(nlmsghdr) + 8);
    request.header.nlmsg_len =
        static_cast<uint32_t>(device ? sizeof(request) : sizeof(request.header));
    request.header.nlmsg_type = static_cast<uint16_t>(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command));
    request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.header.nlmsg_seq = ++sequence_;
    request.attribute = {8, RDMA_NLDEV_ATTR_DEV_INDEX};
    request.device = device.value_or(0);
    if (::send(fd_, &request, request.header.nlmsg_len, 0) < 0) return false;
    std::vector<std::byte> buffer(64 << 10);
    while (true) {
      const ssize_t n = ::recv(fd_, buffer.data(), buffer.size(), 0);
      if (n <= 0) return false;
      Bytes rest(buffer.data(), static_cast<size_t>(n));
      nlmsghdr header{};
      while (Load(rest, &header) && header.nlmsg_len >= sizeof(header) &&
             header.nlmsg_len <= rest.size()) {
        if (header.nlmsg_seq == sequence_) {
          if (header.nlmsg_type == NLMSG_DONE) return true;
          if (header.nlmsg_type == NLMSG_ERROR) return false;
          f(rest.first(header.nlmsg_len));
        }
        const size_t next = NLMSG_ALIGN(header.nlmsg_len);
        if (next >= rest.size()) break;
        rest = rest.subspan(next);
      }
    }
  }

 private:
  int fd_;
  uint32_t sequence_ = 0;
};

}  // namespace

void ParseRdmaQueuePairs(Bytes message, std::vector<RdmaQueuePair>* out) {
  if (message.size() < sizeof(nlmsghdr)) return;
  std::string device;
  ForEachAttribute(message.subspan(sizeof(nlmsghdr)), [&](uint16_t type, Bytes value) {
    if (type == RDMA_NLDEV_ATTR_DEV_NAME) {
      const auto* text = reinterpret_cast<const char*>(value.data());
      device.assign(text, ::strnlen(text, std::min<size_t>(value.size(), 64)));
    }
    if (type != RDMA_NLDEV_ATTR_RES_QP) return;
    ForEachAttribute(value, [&](uint16_t entry_type, Bytes entry) {
      if (entry_type != RDMA_NLDEV_ATTR_RES_QP_ENTRY || out->size() >= kMostQueuePairs) return;
      RdmaQueuePair qp;
      qp.device = device;
      ForEachAttribute(entry, [&](uint16_t name, Bytes v) {
        switch (name) {
          case RDMA_NLDEV_ATTR_PORT_INDEX:
            qp.port = Number(v);
            break;
          case RDMA_NLDEV_ATTR_RES_LQPN:
            qp.number = Number(v);
            break;
          case RDMA_NLDEV_ATTR_RES_RQPN:
            qp.remote_number = Number(v);
            break;
          case RDMA_NLDEV_ATTR_RES_STATE:
            qp.state = Number(v);
            break;
          case RDMA_NLDEV_ATTR_RES_PID:
            qp.pid = Number(v);
            break;
          default:
            break;
        }
      });
      if (qp.number != 0) out->push_back(std::move(qp));
    });
  });
}

std::optional<std::vector<RdmaQueuePair>> ReadRdmaQueuePairs() {
  Socket socket;
  std::vector<uint32_t> devices;
  const bool known = socket.Dump(RDMA_NLDEV_CMD_GET, std::nullopt, [&](Bytes message) {
    ForEachAttribute(message.subspan(sizeof(nlmsghdr)), [&](uint16_t type, Bytes value) {
      if (type == RDMA_NLDEV_ATTR_DEV_INDEX) devices.push_back(Number(value));
    });
  });
  if (!known) return std::nullopt;
  std::vector<RdmaQueuePair> qps;
  for (uint32_t device : devices) {
    socket.Dump(RDMA_NLDEV_CMD_RES_QP_GET, device,
                [&](Bytes message) { ParseRdmaQueuePairs(message, &qps); });
  }
  return qps;
}

}  // namespace mycroft
