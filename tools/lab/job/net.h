// SPDX-License-Identifier: Apache-2.0
//
// The network of the lab job over sockets: one TCP connection per channel, direction
// and peer; and the handshake that both kinds of links begin with.
//
// On the wire a transfer is {uint32 length, uint32 number} and the bytes. As with
// NCCL's sockets a send is finished when the kernel took its last byte, so a
// receiver that does not read shows as a send that does not finish. A transfer
// longer than the buffer that was offered is an error of the connection.
//
// Threads: Egress is shared by all progress threads of a rank; a link see link.h.
#ifndef MYCROFT_TOOLS_LAB_JOB_NET_H_
#define MYCROFT_TOOLS_LAB_JOB_NET_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/lab/job/fault.h"
#include "tools/lab/job/link.h"

namespace mycroft::lab {

// What the rank's NIC lets out: a token bucket while net-slow holds, nothing while
// net-down holds.
class Egress {
 public:
  explicit Egress(FaultBoard* faults) : faults_(faults) {}
  // Bytes of `want` that may be sent now; 0: not before *retry_ns.
  size_t Allow(size_t want, uint64_t now_ns, uint64_t* retry_ns);
  // Gives back what Allow() granted and the kernel did not take.
  void Refund(size_t bytes);

 private:
  FaultBoard* faults_;
  std::mutex mutex_;
  double tokens_ = 0;
  uint64_t last_ns_ = 0;
};

class TcpLink final : public NetLink {
 public:
  // Takes over `fd`, a connected non-blocking socket.
  TcpLink(int fd, Egress* egress) : fd_(fd), egress_(egress) {}
  ~TcpLink() override;

  bool Isend(const char* data, size_t size) override;
  void Irecv(char* buffer, size_t capacity) override;
  bool Test(size_t* size) override;
  // *retry_ns is set when the NIC's limit, not the socket, holds the data back.
  short Events(uint64_t* retry_ns) const override;
  int fd() const override { return fd_; }

 private:
  struct Transfer {
    char* data;
    size_t size;  // recv: capacity until the header came
    bool done = false;
  };
  struct Header {
    uint32_t length;
    uint32_t number;
  };
  void Send();
  void Receive();

  int fd_;
  Egress* egress_;
  std::deque<Transfer> transfers_;
  bool sending_ = false;
  Header header_{};
  size_t header_done_ = 0;
  size_t data_done_ = 0;
  uint32_t number_ = 0;
  uint64_t retry_ns_ = 0;  // 0: the socket is what we wait for
};

// Identifies one connection for the handshake: the sending rank dials.
struct LinkKey {
  uint64_t comm_id = 0;
  int32_t from = 0;  // rank in the communicator
  int32_t to = 0;
  int32_t channel = 0;
  int32_t p2p = 0;  // 0 ring, 1 point to point
  friend bool operator<(const LinkKey& a, const LinkKey& b) {
    return std::tie(a.comm_id, a.from, a.to, a.channel, a.p2p) <
           std::tie(b.comm_id, b.from, b.to, b.channel, b.p2p);
  }
};

// The listening socket of a rank. Not thread-safe.
class Listener {
 public:
  // `socket_buffer`: SO_SNDBUF and SO_RCVBUF of every connection, 0: the system's choice.
  // Small buffers let back pressure reach the sender.
  static absl::StatusOr<Listener> Create(int socket_buffer);
  Listener(Listener&& other) noexcept;
  ~Listener();

  uint16_t port() const { return port_; }
  // Waits until the connection `key` has come in; others are kept for later calls.
  absl::StatusOr<int> Accept(const LinkKey& key, uint64_t job_token, uint64_t deadline_ns);

 private:
  Listener(int fd, uint16_t port) : fd_(fd), port_(port) {}
  int fd_;
  uint16_t port_;
  std::map<LinkKey, int> waiting_;
};

// Connects to 127.0.0.1:`port` and says who calls. Returns a non-blocking socket.
absl::StatusOr<int> Dial(uint16_t port, const LinkKey& key, uint64_t job_token, int socket_buffer);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_NET_H_
