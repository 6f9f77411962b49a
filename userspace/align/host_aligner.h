// SPDX-License-Identifier: Apache-2.0
//
// The clocks of several hosts from the steps that they exchange: data is received
// after it was handed to the NIC, so the mean "received" of an operation at one
// end of an edge is not before the mean "handed over" at the other (both means
// run over the same steps). Edges in both directions, also through third hosts,
// give a band per pair of hosts; the first host's clock is the common one.
//
// A host is its name and its boot (Snapshot::host_id): after a restart its clock is
// another one.
//
// First pass: Observe() every snapshot of every host, in any order of hosts.
// Second pass: Align() each snapshot. Not thread-safe.
#ifndef MYCROFT_USERSPACE_ALIGN_HOST_ALIGNER_H_
#define MYCROFT_USERSPACE_ALIGN_HOST_ALIGNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "userspace/align/causal_clock.h"
#include "userspace/decode/snapshot.h"

namespace mycroft {

// Adds `shift_ns` to every host time in the snapshot (zero stays zero, GPU times
// stay as they are). Sums of times over steps are shifted by steps x shift.
void ShiftSnapshot(int64_t shift_ns, Snapshot* snapshot);

// What is known of one host's clock, at its last snapshot.
struct HostClockState {
  std::string host, reference;  // the first host, whose clock is the common one
  int64_t offset_ns = 0;        // to the reference's
  std::optional<uint64_t> error_ns;  // empty: it cannot be aligned, `problem` says why
  std::string problem;
  friend bool operator==(const HostClockState&, const HostClockState&) = default;
};

class HostAligner {
 public:
  void Observe(const Snapshot& snapshot);

  // Offset of that host's clock (in its last boot) to the first host's, at a time of its
  // own clock.
  // FailedPrecondition with the reason when no chain of pairs relates them.
  absl::StatusOr<CausalClock::Offset> OffsetOf(const std::string& host, uint64_t t_ns) const;

  // Puts the snapshot on the first host's clock.
  absl::Status Align(Snapshot* snapshot) const;

  // Of all hosts but the first.
  std::vector<HostClockState> Clocks() const;

  const std::vector<std::string>& hosts() const { return hosts_; }
  uint64_t pairs() const { return pairs_; }

 private:
  // One side of an edge in one operation.
  struct Side {
    size_t host = 0;
    uint64_t mean_ns = 0;
    uint32_t steps = 0;
  };
  struct CommKey {
    ProcessKey process;
    size_t host = 0;
    uint32_t line = 0;
    friend auto operator<=>(const CommKey&, const CommKey&) = default;
  };
  struct CommInfo {
    uint64_t comm_id = 0;
    int32_t rank = 0;
    int32_t nranks = 0;
    std::map<int32_t, int> send_peers, recv_peers;
  };
  // (comm, kind, ordinal, sending rank, receiving rank)
  using EdgeKey = std::tuple<uint64_t, int, uint64_t, int32_t, int32_t>;
  void Match(const EdgeKey& key, bool send, const Side& side);
  void Relate(const Side& send, const Side& recv);

  size_t IndexOf(const Snapshot& snapshot) const;  // ids_.size(): never seen
  absl::StatusOr<CausalClock::Offset> OffsetOf(size_t host, uint64_t t_ns) const;

  // By host; one that started anew is another: its clock has nothing to do with the old.
  std::vector<std::pair<std::string, std::string>> ids_;  // name, host_id
  std::vector<std::string> hosts_;
  std::vector<uint64_t> last_ns_;  // of its snapshots
  std::map<CommKey, CommInfo> comms_;
  std::map<EdgeKey, std::pair<Side, Side>> open_;  // waiting for the other side
  // By (a, b) with a before b in hosts_: remote is b, local is a.
  std::map<std::pair<size_t, size_t>, CausalClock> clocks_;
  uint64_t pairs_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ALIGN_HOST_ALIGNER_H_
