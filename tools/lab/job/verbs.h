// SPDX-License-Identifier: Apache-2.0
//
// What the lab job needs of RDMA, as a small interface: one opened device with its
// protection domain, memory regions, completion queues and reliable-connected (RC)
// queue pairs. Two implementations: verbs_ibv.cc over libibverbs, and FakeFabric
// (verbs_fake.h) in memory, for tests on machines without an RDMA device.
//
// Numbers are those of libibverbs: statuses of enum ibv_wc_status, timers as encoded
// in ibv_qp_attr (timeout: 4.096 us x 2^n; min_rnr_timer: table of the InfiniBand
// specification, 12 = 0.64 ms, 0 = 655 ms; retry 7 and rnr_retry 7: on Soft-RoCE and
// for RNR for ever).
//
// Threads: one queue pair, queue or channel by one thread at a time; a device's
// factories from any thread. Ownership: everything made by a device dies before it;
// a queue pair before its completion queue, a queue before its channel.
#ifndef MYCROFT_TOOLS_LAB_JOB_VERBS_H_
#define MYCROFT_TOOLS_LAB_JOB_VERBS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace mycroft::lab {

inline constexpr int kWcSuccess = 0;
inline constexpr int kWcLocalProtection = 4;
inline constexpr int kWcFlushed = 5;  // the queue pair failed before; never the cause
inline constexpr int kWcRemoteInvalid = 9;
inline constexpr int kWcRemoteAccess = 10;
inline constexpr int kWcRetryExceeded = 12;
inline constexpr int kWcRnrRetryExceeded = 13;
const char* WcStatusText(int status);

// How queue pairs are connected. Defaults are NCCL's, but for the timeout: 17 (0.54 s) in
// place of 20 (4.3 s), so that one lost packet is no stall of its own. Less than 16 is too
// little for Soft-RoCE in an emulated machine: it retransmits what was only late.
struct VerbsOptions {
  int gid_index = -1;  // -1: the RoCE v2 entry whose value is an IPv4 address, else the first
  int timeout = 17;
  int retry = 7;
  int rnr_retry = 7;
  int min_rnr_timer = 12;
  int mtu_bytes = 0;  // path MTU: 256 to 4096; 0: what both ports can do
};

using Gid = std::array<uint8_t, 16>;
std::string GidText(const Gid& gid);  // "::ffff:10.9.0.1", "fe80::..."

// Where a queue pair is reached; goes through the handshake.
struct QpAddress {
  uint32_t number = 0;
  uint32_t lid = 0;  // InfiniBand; 0: RoCE, by GID
  uint32_t mtu_bytes = 0;
  Gid gid{};
};

struct SendRequest {
  enum class Op : uint8_t { kWrite, kWriteWithImm, kRead };
  Op op = Op::kWrite;
  uint64_t wr_id = 0;
  const void* local = nullptr;  // kRead: written to
  uint32_t lkey = 0;
  uint32_t bytes = 0;  // 0: no local buffer
  uint64_t remote = 0;
  uint32_t rkey = 0;
  uint32_t imm = 0;  // host byte order
  bool signaled = false;
  bool inlined = false;  // the bytes are taken at the call
};

struct Completion {
  enum class Op : uint8_t { kWrite, kRead, kReceiveWithImm, kOther };
  uint64_t wr_id = 0;
  int status = kWcSuccess;  // when bad, only wr_id, vendor_error and qp_number are valid
  Op op = Op::kOther;
  uint32_t imm = 0;
  uint32_t vendor_error = 0;
  uint32_t qp_number = 0;
};

class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual uint32_t lkey() const = 0;
  virtual uint32_t rkey() const = 0;
};

// Becomes readable when an armed queue gets a completion.
class CompletionChannel {
 public:
  virtual ~CompletionChannel() = default;
  virtual int fd() const = 0;
  virtual void Drain() = 0;  // takes all events; does not block
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Number taken, at most `n`; -1: the queue is broken.
  virtual int Poll(Completion* completions, int n) = 0;
  // The next completion wakes the channel. What came before does not: poll once more.
  virtual void Arm() = 0;
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  // RESET -> INIT -> RTR -> RTS. Of `options`, gid_index is that of the source address,
  // not -1, and mtu_bytes is not 0.
  virtual absl::Status Connect(const QpAddress& peer, const VerbsOptions& options) = 0;
  // 0 or an errno; ENOMEM: the send queue is full. All or, after an error, the first ones.
  virtual int PostSend(const SendRequest* requests, size_t n) = 0;
  // A receive without a buffer, for the immediate value of a write.
  virtual int PostReceive(uint64_t wr_id) = 0;
  // Asynchronous events that NCCL takes for fatal to the connection. Any thread.
  uint64_t fatal_events() const { return fatal_events_.load(std::memory_order_acquire); }

 protected:
  std::atomic<uint64_t> fatal_events_{0};
};

class VerbsDevice {
 public:
  virtual ~VerbsDevice() = default;

  virtual const std::string& name() const = 0;
  virtual uint32_t port_mtu_bytes() const = 0;  // active MTU
  virtual uint32_t lid() const = 0;             // 0: RoCE
  // `index` -1 chooses; *chosen is the index.
  virtual absl::StatusOr<Gid> FindGid(int index, int* chosen) const = 0;

  // Readable and writable from remote.
  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* data, size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<CompletionChannel>> CreateChannel() = 0;
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateQueue(
      int entries, CompletionChannel* channel) = 0;
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> CreatePair(CompletionQueue* queue,
                                                                uint32_t max_sends,
                                                                uint32_t max_receives) = 0;
  // Asynchronous events that NCCL takes for fatal to all connections of the device; counted
  // by the thread that waits for events. Any thread.
  uint64_t fatal_events() const { return fatal_events_.load(std::memory_order_acquire); }

 protected:
  std::atomic<uint64_t> fatal_events_{0};
};

// Called for every asynchronous event with a text for people, from the event thread.
using AsyncNote = std::function<void(const std::string&)>;

// Names of the devices to use: those of `wanted`, or all with an active port when it is
// empty. An error says what is missing: libibverbs at build time, a device, or that one.
absl::StatusOr<std::vector<std::string>> FindVerbsDevices(const std::vector<std::string>& wanted);
// Opens port 1 of a device, and starts its event thread ("NCCL IbAsync").
absl::StatusOr<std::unique_ptr<VerbsDevice>> OpenVerbsDevice(const std::string& name,
                                                             AsyncNote note);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_VERBS_H_
