// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "tools/lab/job/clock.h"

namespace mycroft::lab {
namespace {

constexpr uint64_t kHelloMagic = 0x62614c4d;  // "MLab"

struct Hello {
  uint64_t magic;
  uint64_t token;
  LinkKey key;
};

absl::Status Error(const std::string& what) {
  return absl::UnavailableError(what + ": " + strerror(errno));
}

// Before connect and listen: the receive window is fixed at the handshake.
void SetBuffers(int fd, int size) {
  if (size == 0) return;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

void SetNonBlocking(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

size_t Egress::Allow(size_t want, uint64_t now_ns, uint64_t* retry_ns) {
  *retry_ns = 0;
  if (faults_ == nullptr) return want;
  if (faults_->Hold(FaultKind::kNetDown, now_ns)) {
    *retry_ns = faults_->EndOf(FaultKind::kNetDown, now_ns);
    return 0;
  }
  const auto mbps = faults_->Hold(FaultKind::kNetSlow, now_ns);
  if (!mbps) return want;
  std::lock_guard<std::mutex> lock(mutex_);
  const double bytes_per_ns = *mbps * 1e6 / 8 / 1e9;
  // 2 ms of burst, at least one packet.
  const double burst = std::max(bytes_per_ns * 2 * kNsPerMs, 4096.0);
  if (last_ns_ != 0 && now_ns > last_ns_) {
    tokens_ = std::min(burst, tokens_ + static_cast<double>(now_ns - last_ns_) * bytes_per_ns);
  }
  last_ns_ = now_ns;
  // Not single bytes: wait for a packet's worth.
  const double enough = std::min(static_cast<double>(want), 4096.0);
  if (tokens_ < enough) {
    const double wait = std::max((burst / 2 - tokens_) / bytes_per_ns, 100.0 * kNsPerUs);
    *retry_ns = now_ns + static_cast<uint64_t>(wait);
    return 0;
  }
  const size_t grant = std::min(want, static_cast<size_t>(tokens_));
  tokens_ -= static_cast<double>(grant);
  return grant;
}

void Egress::Refund(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  tokens_ += static_cast<double>(bytes);
}

TcpLink::~TcpLink() { close(fd_); }

bool TcpLink::Isend(const char* data, size_t size) {
  if (failed()) return false;
  sending_ = true;
  transfers_.push_back({const_cast<char*>(data), size});
  return true;
}

void TcpLink::Irecv(char* buffer, size_t capacity) { transfers_.push_back({buffer, capacity}); }

bool TcpLink::Test(size_t* size) {
  if (transfers_.empty()) return false;
  if (!transfers_.front().done && !failed()) {
    if (sending_) {
      Send();
    } else {
      Receive();
    }
  }
  if (!transfers_.front().done) return false;
  *size = transfers_.front().size;
  transfers_.pop_front();
  return true;
}

void TcpLink::Send() {
  Transfer& t = transfers_.front();
  retry_ns_ = 0;
  header_ = {static_cast<uint32_t>(t.size), number_};
  while (true) {
    const size_t left = sizeof(header_) - header_done_ + t.size - data_done_;
    if (left == 0) break;
    const size_t allowed = egress_->Allow(left, NowNs(), &retry_ns_);
    if (allowed == 0) return;
    const size_t head = std::min(sizeof(header_) - header_done_, allowed);
    iovec parts[2] = {{reinterpret_cast<char*>(&header_) + header_done_, head},
                      {t.data + data_done_, std::min(t.size - data_done_, allowed - head)}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    const size_t sent = n > 0 ? static_cast<size_t>(n) : 0;
    if (sent < allowed) egress_->Refund(allowed - sent);
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      return Fail(std::string("send: ") + strerror(errno));
    }
    const size_t of_header = std::min(sent, sizeof(header_) - header_done_);
    header_done_ += of_header;
    data_done_ += sent - of_header;
    // Short: the socket is full. One more call would only say so.
    if (sent < allowed) return;
  }
  t.done = true;
  header_done_ = data_done_ = 0;
  ++number_;
}

void TcpLink::Receive() {
  Transfer& t = transfers_.front();
  while (true) {
    if (header_done_ == sizeof(header_) && data_done_ == header_.length) break;
    ssize_t n = 0;
    if (header_done_ < sizeof(header_)) {
      n = recv(fd_, reinterpret_cast<char*>(&header_) + header_done_,
               sizeof(header_) - header_done_, MSG_DONTWAIT);
    } else {
      n = recv(fd_, t.data + data_done_, header_.length - data_done_, MSG_DONTWAIT);
    }
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      return Fail(std::string("recv: ") + strerror(errno));
    }
    if (n == 0) return Fail("connection closed by the peer");
    if (header_done_ < sizeof(header_)) {
      header_done_ += static_cast<size_t>(n);
      if (header_done_ < sizeof(header_)) continue;
      if (header_.length > t.size) {
        return Fail("message truncated: " + std::to_string(header_.length) +
                    " bytes into a buffer of " + std::to_string(t.size));
      }
      if (header_.number != number_) {
        return Fail("transfer " + std::to_string(header_.number) + " where " +
                    std::to_string(number_) + " was due");
      }
    } else {
      data_done_ += static_cast<size_t>(n);
    }
  }
  t.size = header_.length;
  t.done = true;
  header_done_ = data_done_ = 0;
  ++number_;
}

short TcpLink::Events(uint64_t* retry_ns) const {
  *retry_ns = kNever;
  if (transfers_.empty() || failed()) return 0;
  if (!sending_) return POLLIN;
  if (retry_ns_ != 0) {
    *retry_ns = retry_ns_;
    return 0;
  }
  return POLLOUT;
}

absl::StatusOr<Listener> Listener::Create(int socket_buffer) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Error("socket");
  SetBuffers(fd, socket_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd, 1024) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    absl::Status status = Error("listen on 127.0.0.1");
    close(fd);
    return status;
  }
  return Listener(fd, ntohs(address.sin_port));
}

Listener::Listener(Listener&& other) noexcept
    : fd_(other.fd_), port_(other.port_), waiting_(std::move(other.waiting_)) {
  other.fd_ = -1;
  other.waiting_.clear();
}

Listener::~Listener() {
  for (auto& [key, fd] : waiting_) close(fd);
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<int> Listener::Accept(const LinkKey& key, uint64_t job_token, uint64_t deadline_ns) {
  while (true) {
    if (auto it = waiting_.find(key); it != waiting_.end()) {
      const int fd = it->second;
      waiting_.erase(it);
      return fd;
    }
    const uint64_t now = NowNs();
    if (now >= deadline_ns) return absl::DeadlineExceededError("no peer connected in time");
    pollfd poll_fd = {fd_, POLLIN, 0};
    if (poll(&poll_fd, 1,
             static_cast<int>(std::min<uint64_t>((deadline_ns - now) / kNsPerMs + 1, 1000))) <= 0) {
      continue;
    }
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    // The caller sends its hello at once; a stranger gets a second.
    timeval limit = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    Hello hello{};
    if (recv(fd, &hello, sizeof(hello), MSG_WAITALL) != static_cast<ssize_t>(sizeof(hello)) ||
        hello.magic != kHelloMagic || hello.token != job_token ||
        !waiting_.emplace(hello.key, fd).second) {
      close(fd);
      continue;
    }
    SetNonBlocking(fd);
  }
}

absl::StatusOr<int> Dial(uint16_t port, const LinkKey& key, uint64_t job_token, int socket_buffer) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Error("socket");
  SetBuffers(fd, socket_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  Hello hello = {kHelloMagic, job_token, key};
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) {
    absl::Status status = Error("connect to 127.0.0.1:" + std::to_string(port));
    close(fd);
    return status;
  }
  SetNonBlocking(fd);
  return fd;
}

}  // namespace mycroft::lab
