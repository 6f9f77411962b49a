// SPDX-License-Identifier: Apache-2.0
//
// The attach engine: loads the BPF objects, tries each probe's alternatives in order,
// reports what became of each, and takes all of it back when destroyed. Nothing is
// pinned: programs, maps and links live as long as this process, so a killed agent
// leaves nothing either.
//
//   ProbeSet::Options options;
//   auto set = ProbeSet::Create(options);          // never fails for lack of rights:
//   for (const ProbeRow& row : (*set)->Rows())     // the rows say what is missing
//     ...
//   (*set)->ReadEvents([](const mc_event& header, std::span<const std::byte> record) {...});
//
// What needs a kernel function that does not exist, a capability, or a kernel that
// forbids it, is left out with the reason, and the next alternative is tried. Programs
// are tried one by one where loading all at once fails, so one that the kernel refuses
// takes no other with it.
//
// Deep probes are loaded but not attached until Arm(), for some targets and until a
// time; the kernel side looks at the time itself (mc_armed), and Tick() detaches.
//
// One thread uses a ProbeSet; several sets may exist. Owns all that it loaded.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_SET_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_SET_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "userspace/source/probes/probe_table.h"

namespace mycroft {

// One probe as it stands. Same meaning as ProbeSample in decode/hardware.h.
struct ProbeRow {
  std::string name;
  std::string question;
  ProbeRunLevel level = ProbeRunLevel::kAlways;
  bool armed = false;
  ProbeMethod method = ProbeMethod::kNone;  // kPoll: its owner reads files
  std::string attached;                     // "uprobe libmlx5.so.1.24:0x552e0"; empty: it is not
  std::string problem;                      // why not, or why by a poorer alternative
  std::string lost;               // what is not seen by that; of an attached probe: its blind spots
  std::optional<double> cost_ns;  // per hit, see StartCostMeasurement
  uint64_t hits = 0;              // cumulative
  uint64_t dropped = 0;           // events or map rows for which there was no room, cumulative
  uint64_t failed_reads = 0;      // memory of a process that could not be read, cumulative
};

// Copies a record, or what else the kernel wrote, into its struct of bpf/abi. False: it is
// shorter. What a newer kernel side appended is left out.
template <typename Record>
bool ReadRecord(std::span<const std::byte> bytes, Record* out) {
  static_assert(std::is_trivially_copyable_v<Record>);
  if (bytes.size() < sizeof(Record)) return false;
  std::memcpy(out, bytes.data(), sizeof(Record));
  return true;
}

class ProbeSet {
 public:
  struct Options {
    std::vector<std::string> objects;  // only these ("verbs"); empty: all
    std::vector<ProbeMethod> avoid;    // ways not to be used, where others can answer
    uint32_t ring_bytes = 1 << 20;     // power of two, at least a page
    bool load = true;                  // false: report the table, load nothing
  };

  // Fails only for a wrong option. Without the rights to load anything the set is
  // there, every row has its problem, and nothing is attached.
  static absl::StatusOr<std::unique_ptr<ProbeSet>> Create(const Options& options);
  ~ProbeSet();
  ProbeSet(const ProbeSet&) = delete;
  ProbeSet& operator=(const ProbeSet&) = delete;

  std::vector<ProbeRow> Rows() const;
  // OK when every always-on probe answers (by any alternative but none, and uprobes
  // are at least ready); else names those that do not. For --strict.
  absl::Status Complete() const;

  // Calls `on_record` for each record in the ring buffer, oldest first, at most
  // `max_records`. The span holds header.bytes bytes, header included, and is valid
  // during the call. Returns the number of records.
  size_t ReadEvents(const std::function<void(const mc_event& header,
                                             std::span<const std::byte> record)>& on_record,
                    size_t max_records = SIZE_MAX);
  // Readable (epoll) when there are records; -1 without a ring buffer.
  int event_fd() const;
  uint64_t malformed_events() const;

  // Arms a deep probe (REQUIRES: its level is kDeep) for more targets until `until_ns`
  // (CLOCK_MONOTONIC); a target that is armed already gets the new time. What a target
  // is, the probe says: a pid or a tid. Not found: no such probe; failed precondition:
  // it cannot be attached here, with the reason.
  absl::Status Arm(const std::string& name, std::span<const uint64_t> targets, uint64_t until_ns);
  void Disarm(const std::string& name);  // of all targets; nothing when it is not armed
  // Disarms what is over. Call it at every tick.
  void Tick(uint64_t now_ns);

  // Cost per hit: the kernel's own time in the programs (BPF_ENABLE_STATS, in force while
  // measuring, for all programs of the host), and for uprobes the trap, calibrated once on
  // a function of this process. Costs some 20 ns per run while on. Rows() has the result
  // of probes that were hit while it was on. Stopping does nothing when it is not on.
  absl::Status StartCostMeasurement();
  void StopCostMeasurement();
  // What an empty uprobe on a cheap instruction adds, in ns; empty: cannot be measured.
  std::optional<double> CalibrateUprobe();
  // Whether uprobes are attached through perf_event_open, as the kernel (before 6.10) has no
  // link for them that could be used. It takes CAP_SYS_ADMIN, CAP_PERFMON is not enough,
  // whatever perf_event_paranoid says (seen on 6.1 and 6.18).
  bool AttachesByPerfEvent() const;

  // For owners of probes (verbs_probes.h and the like) ---------------------------------

  // File descriptor of a map of a loaded object, -1 when there is none. Owned by the set.
  int MapFd(const std::string& object, const std::string& map) const;
  // True when the program was loaded; `why` (may be null) gets the reason if not.
  bool ProgramLoaded(const std::string& object, const std::string& program,
                     std::string* why = nullptr) const;

  // Descriptor of a loaded program, -1 when there is none. Owned by the set.
  int ProgramFd(const std::string& object, const std::string& program) const;

  struct UprobeTarget {
    uint32_t pid = 0;     // only this process; 0: all that map the file
    std::string path;     // as this process can open it
    uint64_t offset = 0;  // in the file
    bool on_return = false;
    uint64_t cookie = 0;  // bpf_get_attach_cookie() of the program
  };
  // Attaches a uprobe; the number is for DetachUprobe. Errors: not found (file or process
  // is gone), permission denied, failed precondition (program not loaded), internal.
  absl::StatusOr<uint64_t> AttachUprobe(const std::string& object, const std::string& program,
                                        const UprobeTarget& target);
  // It is off soon after: detaching takes 0.1 s in the kernel, and is done in the background
  // at the next Tick(), FlushDetached() or AttachUprobe() (which waits for it).
  void DetachUprobe(uint64_t number);
  void FlushDetached(bool wait);
  size_t uprobe_count() const;

  // What the row of a uprobe or poll probe says; kept until the next call.
  void SetRow(const std::string& name, std::string attached, std::string problem);
  // The owner of a deep uprobe probe attaches and detaches it itself.
  struct DeepHooks {
    std::function<absl::Status(std::span<const uint64_t> targets)> arm;
    std::function<void(std::span<const uint64_t> targets)> disarm;  // those that are over
  };
  void SetDeepHooks(const std::string& name, DeepHooks hooks);

 private:
  ProbeSet();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_SET_H_
