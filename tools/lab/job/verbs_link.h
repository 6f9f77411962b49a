// SPDX-License-Identifier: Apache-2.0
//
// A link over RC verbs, in the shape of NCCL's built-in InfiniBand transport:
//
//   receiver  irecv: posts a receive without a buffer, and writes {address, rkey, size,
//             tag, idx} of its buffer into a slot of the sender's CTS FIFO (clear to send)
//   sender    isend: refused until the next slot is filled; then RDMA_WRITE of the data
//             and RDMA_WRITE_WITH_IMM of nothing, the length as the immediate value (what
//             NCCL posts with adaptive routing; without, it puts data and immediate in one)
//   receiver  the completion of the immediate is the arrival; its order is that of the
//             posted receives
//   flush     an RDMA_READ of one byte of the buffer by a queue pair connected to itself:
//             what was written before has then passed the PCIe path to the GPU
//
// One queue pair and one completion queue per link. The slot is one 64-byte write; its
// check word covers the case that the memory shows parts of it.
//
// Errors: the first bad completion, a full queue, a slot that makes no sense, or a fatal
// asynchronous event of the device fails the link for good, as ncclRemoteError does.
// Its text has status, queue pairs and GIDs.
//
// Handshake over the TCP connection `fd` (net.h): the sender's address and FIFO, the
// receiver's address in return, and "ready", before which the receiver must not write.
//
// Faults acted on here: rnr and rnr-late (receives are posted late or not at all),
// bad-rkey (of the CTS), wrong-gid and mtu-mismatch (posts go to a second pair of queue
// pairs that was connected wrongly; only jobs with such a fault have it).
#ifndef MYCROFT_TOOLS_LAB_JOB_VERBS_LINK_H_
#define MYCROFT_TOOLS_LAB_JOB_VERBS_LINK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "tools/lab/job/fault.h"
#include "tools/lab/job/link.h"
#include "tools/lab/job/verbs.h"

namespace mycroft::lab {

// One slot of the CTS FIFO, as the receiver writes it.
struct alignas(64) CtsSlot {
  uint64_t address;
  uint64_t size;
  uint32_t rkey;
  uint32_t tag;
  uint64_t padding[3];
  uint64_t check;  // of all the rest
  uint64_t idx;    // number of the transfer, from 1
};
static_assert(sizeof(CtsSlot) == 64);

class VerbsLink final : public NetLink {
 public:
  struct Setup {
    VerbsDevice* device = nullptr;  // outlives the link
    VerbsOptions options;
    bool is_send = false;
    bool flush = false;      // receiver: flushes are made
    uint32_t tag = 0;        // the same on both sides
    char* buffer = nullptr;  // all transfers are in here; outlives the link
    size_t buffer_bytes = 0;
    FaultBoard* faults = nullptr;  // of this rank; may be null
    // A second pair of queue pairs, connected wrongly, for a fault of one of the two ranks;
    // that rank posts there while the fault holds. `spare` on both sides, the rest on its.
    bool spare = false;
    int spare_gid_index = -1;      // of our address; -1: the right one
    uint32_t spare_mtu_bytes = 0;  // our path MTU; 0: the right one
  };
  // Takes over `fd`. The sender says its address at once; the receiver waits for it and
  // answers (until `deadline_ns`).
  static absl::StatusOr<std::unique_ptr<VerbsLink>> Create(int fd, const Setup& setup,
                                                           uint64_t deadline_ns);
  // The rest of the handshake. First for all links on which this rank sends, then for all
  // others, or ranks wait for each other.
  absl::Status Finish(uint64_t deadline_ns);
  ~VerbsLink() override;

  bool Isend(const char* data, size_t size) override;
  void Irecv(char* buffer, size_t capacity) override;
  bool Test(size_t* size) override;
  void Iflush(const char* data) override;
  bool TestFlush() override;
  short Events(uint64_t* retry_ns) const override;
  int fd() const override { return channel_->fd(); }
  bool Arm() override;
  void Disarm() override;
  void BeginClose() override;
  void EndClose(uint64_t deadline_ns) override;

 private:
  static constexpr size_t kSlots = kMaxInFlight;
  struct Hello;
  struct Transfer {
    size_t size = 0;  // receiver: capacity until it arrived
    bool done = false;
  };

  VerbsLink(int fd, const Setup& setup) : fd_(fd), setup_(setup) {}
  absl::Status CreateObjects();
  absl::Status SendHello(uint64_t deadline_ns);
  absl::Status ReceiveHello(uint64_t deadline_ns);
  absl::Status Connect();
  // The queue pair to post sends on now.
  QueuePair* Outbound();
  void PostReceive();
  void PostDue(uint64_t now_ns);
  bool PollQueue();  // true: there was a completion
  void CheckEvents();
  void OnCompletion(const Completion& completion);
  void FailPost(const char* what, int error);

  int fd_;  // the handshake's connection; stays open
  Setup setup_;
  int gid_index_ = 0;
  Gid gid_{};
  QpAddress own_, own_spare_, peer_, peer_spare_;
  uint64_t peer_fifo_ = 0;
  uint32_t peer_fifo_rkey_ = 0;
  uint64_t fatal_events_ = 0;  // of the device when the link was made

  std::array<CtsSlot, kSlots> slots_{};  // sender: the FIFO; receiver: what is written to it
  char flush_byte_ = 0;

  // In order of construction; destroyed from the last to the first.
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<CompletionQueue> queue_;
  std::unique_ptr<MemoryRegion> buffer_region_, slots_region_, flush_region_;
  std::unique_ptr<QueuePair> pair_, spare_, flush_pair_;

  std::deque<Transfer> transfers_;
  uint64_t first_ = 0;  // number of transfers_.front()
  uint64_t next_ = 0;   // number of the next transfer
  uint64_t arrived_ = 0;
  std::deque<bool> flushes_;  // done
  uint64_t first_flush_ = 0;
  std::deque<uint64_t> late_;  // when receives that a fault holds back are due
  uint64_t receives_ = 0;      // posted on pair_
  uint64_t spare_receives_ = 0;
  bool armed_ = false;
  // Refusals in a row: how long the sender sleeps before it looks for a slot again.
  uint32_t refused_ = 0;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_VERBS_LINK_H_
