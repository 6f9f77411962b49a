// SPDX-License-Identifier: Apache-2.0
//
// RDMA verbs of chosen processes: what each queue pair does, how it is connected, what
// memory is registered, which errors come back. Attaches the programs of
// bpf/probes/verbs.bpf.c to the libraries that each process has mapped, and reads what they
// count.
//
//   auto set = ProbeSet::Create({});
//   VerbsProbes verbs(set->get());
//   verbs.AddProcess(pid);                       // again does nothing
//   every tick:
//     set->ReadEvents([&](const mc_event& h, auto record) { verbs.OnEvent(h, record); });
//     verbs.Tick(now_ns);                        // libraries loaded later, processes gone
//   every second:
//     for (const VerbsProcess& p : verbs.Read()) ...
//     for (const VerbsEvent& e : verbs.TakeEvents()) ...
//   on suspicion: set->Arm("verbs.completions", pids, until_ns)
//
// How a provider's functions are found: from its static table (ops_finder.h) at once, and
// from the pointers in ibv_context.ops as soon as the process makes a call that shows its
// context (open, create, modify, register); where they differ the pointers win.
// libibverbs' functions by their names in .dynsym, in all versions but IBVERBS_1.0 (which
// converts its structs and calls the newer one). A probe that would be single-stepped
// (10 us) is not attached; the row of the probe says so.
//
// All attachments are to single processes: others pay nothing. One thread; the ProbeSet
// must outlive it. No errors: what does not work is said in the rows of the ProbeSet.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_VERBS_PROBES_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_VERBS_PROBES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bpf/abi/probes.h"
#include "userspace/source/probes/probe_set.h"

namespace mycroft {

// One queue pair. Fields as in QpSample of decode/hardware.h; counters are cumulative,
// times CLOCK_MONOTONIC in ns.
struct VerbsQp {
  std::string device;
  uint32_t port = 0;    // 0: not seen
  uint32_t number = 0;  // used again after it is destroyed: created_ns tells apart
  uint64_t created_ns = 0;
  bool creation_seen = false;  // else created_ns is the first sight of it
  bool destroyed = false;      // given once, then forgotten
  uint32_t state = 7;          // enum ibv_qp_state; 7: unknown
  uint64_t state_ns = 0;
  uint32_t remote_number = 0;
  std::string remote_gid;  // "0000:...:0a09:0001"; empty: not seen, or none (is_global == 0)
  std::optional<uint32_t> gid_index;
  uint32_t path_mtu = 0;  // bytes
  std::optional<uint32_t> timeout, retry_count, rnr_retry, min_rnr_timer;
  std::array<uint64_t, MC_QP_OPERATIONS> posts{};
  uint64_t bytes = 0;
  uint64_t receives = 0;
  uint64_t post_failures = 0;  // while verbs.post_failures is armed
  int32_t last_post_errno = 0;
  uint64_t last_post_ns = 0, last_receive_ns = 0;
  uint32_t post_tid = 0;
  bool completions_seen = false;
  uint64_t completions = 0, failed_completions = 0;
  // At least receives - this are in the receive queue; while not armed: receives.
  uint64_t receive_completions = 0;
  uint64_t last_completion_ns = 0;
  uint64_t latency_count = 0, latency_sum_ns = 0, latency_max_ns = 0;
  uint32_t first_bad_status = 0;
  uint32_t first_bad_vendor = 0;
  uint64_t first_bad_ns = 0;
  uint64_t truncated_posts = 0;  // calls with more requests than are looked at
};

// Registrations on one device. Fields as in MrSample.
struct VerbsMr {
  std::string device;
  uint64_t registrations = 0, dmabuf = 0, relaxed_ordering = 0, bytes = 0, ns = 0;
  uint64_t failures = 0;
  int32_t last_errno = 0;
  uint64_t last_failure_bytes = 0;
  uint64_t last_failure_ns = 0;
};

struct VerbsProcess {
  uint32_t pid = 0;
  std::vector<std::string> devices;  // that it opened, as far as seen; sorted
  std::vector<VerbsQp> qps;          // by device, number, created_ns
  std::vector<VerbsMr> mrs;          // by device
};

struct VerbsEvent {
  enum class Kind : uint8_t { kQpError, kMrFailure, kAsync };
  Kind kind = Kind::kAsync;
  uint64_t t_ns = 0;
  uint32_t pid = 0, tid = 0;
  std::string device;   // empty: not known
  uint32_t number = 0;  // queue pair, 0: none
  uint32_t port = 0;    // 0: none
  uint32_t value = 0;   // by kind: see mc_qp_error_reason; errno; enum ibv_event_type
  uint32_t reason = 0;  // enum mc_qp_error_reason of kQpError
  std::string text;     // one line for people
};

class VerbsProbes {
 public:
  // `proc` is "/proc"; tests may give another.
  explicit VerbsProbes(ProbeSet* set, std::string proc = "/proc");
  ~VerbsProbes();
  VerbsProbes(const VerbsProbes&) = delete;
  VerbsProbes& operator=(const VerbsProbes&) = delete;

  // Attaches to what the process has mapped. A process that is gone is forgotten.
  void AddProcess(uint32_t pid);
  // Detaches, and forgets its rows. Nothing when it was not added.
  void RemoveProcess(uint32_t pid);
  // Looks again for libraries loaded since: after 1 s, then ever less often up to 30 s,
  // once the process has both kinds of library. Removes processes that are gone (their
  // rows are given by the next Read()).
  void Tick(uint64_t now_ns);

  // Gives it the records of the ring buffer; those of others are ignored.
  void OnEvent(const mc_event& header, std::span<const std::byte> record);

  std::vector<VerbsProcess> Read();      // by pid
  std::vector<VerbsEvent> TakeEvents();  // since the last call, oldest first; at most 4,096
  uint64_t lost_events() const;          // for lack of room in that list

  // Libraries of a process and what was attached, one line each, for `doctor`.
  std::vector<std::string> Describe(uint32_t pid) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_VERBS_PROBES_H_
