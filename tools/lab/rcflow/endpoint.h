// SPDX-License-Identifier: Apache-2.0
//
// One end of a reliable connection (RC) over libibverbs: device, protection domain,
// completion queue, one registered buffer and one queue pair.
//
// Not thread-safe. An Endpoint owns everything it opened; members are destroyed in the
// reverse order of their declaration, which is the order that verbs demand (the queue
// pair before its completion queue, the region before its domain).
#ifndef MYCROFT_TOOLS_LAB_RCFLOW_ENDPOINT_H_
#define MYCROFT_TOOLS_LAB_RCFLOW_ENDPOINT_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace mycroft::lab {

template <auto kClose>
struct VerbsCloser {
  template <typename T>
  void operator()(T* object) const {
    kClose(object);
  }
};

// How the two ends are connected. Encodings are those of ibv_qp_attr.
struct ConnectionSettings {
  uint32_t path_mtu = 4096;    // bytes: 256, 512, 1024, 2048 or 4096
  uint8_t timeout = 14;        // the sender waits 4.096 us * 2^timeout for an answer; 0 for ever
  uint8_t retry_count = 7;     // then this many times again (rxe: 7 is for ever)
  uint8_t rnr_retry = 7;       // how often for a receiver that is not ready; 7 for ever
  uint8_t min_rnr_timer = 12;  // what this end asks a sender to wait; 12 is 0.64 ms
};

class Endpoint {
 public:
  // Opens `device`, port 1, with `bytes` of registered memory and queues for `depth`
  // requests each way. Without `gid_index`, the RoCE v2 entry of an IPv4 address.
  static absl::StatusOr<Endpoint> Open(const std::string& device, size_t bytes, uint32_t depth,
                                       std::optional<uint32_t> gid_index);
  Endpoint(Endpoint&&) = default;
  Endpoint& operator=(Endpoint&&) = default;

  // Takes the queue pair from RESET to RTS, connected to `remote`.
  absl::Status Connect(const Endpoint& remote, const ConnectionSettings& settings);

  // errno of the post as a status.
  absl::Status PostSend(uint64_t id, ibv_wr_opcode opcode, size_t offset, uint32_t bytes,
                        uint64_t remote_address, uint32_t remote_key);
  absl::Status PostReceive(uint64_t id, size_t offset, uint32_t bytes);
  // Completions that have arrived, at most 16; empty when there are none.
  absl::StatusOr<std::vector<ibv_wc>> Poll();
  // Next asynchronous event of the device in words; empty when there is none.
  std::string NextEvent();

  // What the kernel says of the queue pair now.
  absl::StatusOr<ibv_qp_state> State() const;
  uint32_t number() const { return qp_->qp_num; }
  uint32_t gid_index() const { return gid_index_; }
  uint8_t* data() { return buffer_.get(); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(buffer_.get()); }
  uint32_t remote_key() const { return region_->rkey; }

 private:
  Endpoint() = default;

  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<ibv_context, VerbsCloser<ibv_close_device>> context_;
  std::unique_ptr<ibv_pd, VerbsCloser<ibv_dealloc_pd>> domain_;
  std::unique_ptr<ibv_cq, VerbsCloser<ibv_destroy_cq>> completions_;
  std::unique_ptr<uint8_t[], Free> buffer_;
  std::unique_ptr<ibv_mr, VerbsCloser<ibv_dereg_mr>> region_;
  std::unique_ptr<ibv_qp, VerbsCloser<ibv_destroy_qp>> qp_;
  uint32_t gid_index_ = 0;
  ibv_gid gid_{};
  uint16_t lid_ = 0;
};

// "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR".
const char* ToString(ibv_qp_state state);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_RCFLOW_ENDPOINT_H_
