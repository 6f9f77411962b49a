// SPDX-License-Identifier: Apache-2.0
//
// Faults of the lab job: the text form `kind:rank=R,at=SECONDS[,for=SECONDS][,amount=X]`,
// what each kind means, and the switchboard by which the threads of a rank ask
// whether a fault holds now.
//
// `at` counts from the moment when all ranks are ready. Without `for` a fault
// lasts for ever; a mismatch without `for` is a single wrong call.
#ifndef MYCROFT_TOOLS_LAB_JOB_FAULT_H_
#define MYCROFT_TOOLS_LAB_JOB_FAULT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/lab/job/clock.h"

namespace mycroft::lab {

enum class FaultKind : int {
  kGpuSlow,        // amount: us that the kernel pauses before every slice
  kGpuLate,        // amount: us that the stream is busy longer before the first operation
  kGpuStuck,       // amount: slices of a kernel after which it stops
  kStreamBlocked,  // the kernel before the first operation does not end
  kBusSlow,        // amount: us more for every copy between device and staging buffer
  kNetSlow,        // amount: Mb/s of egress, all connections of the rank together
  kNetDown,        // egress stops: nothing is delivered any more; both over TCP only
  kProcStopped,    // SIGSTOP, later SIGCONT
  kProxyStarved,   // amount: percent of a CPU left to the rank's progress threads
  kHostLate,       // amount: us that the host sleeps before it issues an iteration
  kAbsent,         // the host issues nothing
  kMismatchSize,   // amount: percent of the size that the others use
  kMismatchOrder,  // two collectives swapped; with only one, Broadcast for AllReduce
  kKill,           // SIGKILL
  kRnr,            // receiver not ready: buffers are granted, but no receive is posted
  kRnrLate,        // amount: us by which every receive is posted too late
  kBadRkey,        // buffers are granted with a wrong remote key
  kWrongGid,       // amount: GID index; the rank's queue pairs use a wrong source address
  kMtuMismatch,    // amount: bytes; the rank's path MTU is not that of its peers
  kMemory,         // amount: MiB that the host uses per iteration; half of them may be in memory
  kMemlock,        // amount: KiB that may be locked; the host cannot register a new buffer
  kCount,
};

// A kind as a row of a table: name, component of the culprit ("gpu", "pcie", "nic",
// "host", "app"), what `amount` counts (empty: takes none), its default, and on which
// transport it acts.
enum class FaultNeeds { kAny, kTcp, kVerbs };
struct FaultInfo {
  FaultKind kind;
  const char* name;
  const char* component;
  const char* verdict;  // of FORMAT: "slow", "hang", "absent", "mismatch", "dead"
  const char* unit;
  double default_amount;
  FaultNeeds needs = FaultNeeds::kAny;
  bool for_ever = false;  // takes no `for`
};
const FaultInfo& Info(FaultKind kind);
std::string FaultHelp();  // one line per kind, for --help

struct FaultSpec {
  FaultKind kind = FaultKind::kGpuSlow;
  int rank = 0;
  double at_s = 0;
  std::optional<double> for_s;
  double amount = 0;
};

// A planned pause of all ranks: healthy. Only "checkpoint" is known.
struct EventSpec {
  std::string kind;
  double at_s = 0;
  double for_s = 0;
};

// InvalidArgument with a text that names the wrong part and what would be right.
absl::StatusOr<FaultSpec> ParseFault(const std::string& text, int nranks);
absl::StatusOr<EventSpec> ParseEvent(const std::string& text);

// The faults of one rank as its threads see them. Thread-safe. `note` is called
// once when a fault takes effect and once when its time has passed, by the thread
// that saw it; it must not block.
class FaultBoard {
 public:
  using Note = std::function<void(int fault_index, bool begin, uint64_t now_ns)>;

  FaultBoard(std::vector<FaultSpec> faults, int rank, Note note);
  FaultBoard(const FaultBoard&) = delete;
  FaultBoard& operator=(const FaultBoard&) = delete;

  // Zero of `at`. Before this call no fault holds.
  void Start(uint64_t t0_ns);

  // The amount when a fault of this kind holds at `now_ns`, and it counts as begun.
  std::optional<double> Hold(FaultKind kind, uint64_t now_ns);
  // The same without saying that it had an effect.
  std::optional<double> Peek(FaultKind kind, uint64_t now_ns) const;
  // A mismatch: true while it holds; without `for` for the first caller only.
  std::optional<double> Take(FaultKind kind, uint64_t now_ns);
  // Next time at which a fault of this kind ends (kNever: none).
  uint64_t EndOf(FaultKind kind, uint64_t now_ns) const;
  // Reports the end of faults whose time has passed.
  void Sweep(uint64_t now_ns);

 private:
  struct Entry {
    FaultSpec spec;
    int index;
    uint64_t from_ns = kNever;
    uint64_t to_ns = kNever;
    std::atomic<int> phase{0};  // 0 not begun, 1 begun, 2 ended
  };
  Entry* Find(FaultKind kind, uint64_t now_ns) const;

  Note note_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::array<bool, static_cast<size_t>(FaultKind::kCount)> has_{};
  std::atomic<bool> started_{false};
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_FAULT_H_
