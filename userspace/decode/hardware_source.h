// SPDX-License-Identifier: Apache-2.0
//
// The hardware part of the live source: what is polled from /sys and /proc at most
// once a second, joined with the rows of the kernel probes, reduced to what has
// changed.
//
//   HardwarePoller (own thread: may block)  -->  +------------------+
//                                                | HardwareSource   |--> Snapshot
//   KernelProbes (map reads, never block)   -->  | join, difference |
//                                                +------------------+
//
// Not thread-safe: one thread calls it. The poller has a thread of its own, so that a
// device whose firmware does not answer does not stop the sampling of boards; with
// `inline_poll` (replays, tests) it runs within Sample.
#ifndef MYCROFT_USERSPACE_DECODE_HARDWARE_SOURCE_H_
#define MYCROFT_USERSPACE_DECODE_HARDWARE_SOURCE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "userspace/decode/asking_thread.h"
#include "userspace/decode/hardware.h"
#include "userspace/decode/hardware_poller.h"
#include "userspace/decode/kernel_probes.h"

namespace mycroft {

struct HardwareOptions {
  std::string proc_root = "/proc";
  std::string sys_root = "/sys";
  uint64_t interval_ns = 1'000'000'000;
  bool inline_poll = false;
  GpuHealthOptions gpu_health;     // own_thread follows inline_poll
  KernelProbes* probes = nullptr;  // not owned, must outlive the source; may be null
  // In place of a HardwarePoller of these roots (tests).
  std::function<PolledHardware(uint64_t now_ns, const std::vector<ProcessKey>&)> poll;
};

// What goes into a snapshot: only what has changed since the last one.
struct HardwareReading {
  std::optional<HardwareSample> host;
  std::map<ProcessKey, ProcessHardware> processes;
};

class HardwareSource {
 public:
  explicit HardwareSource(const HardwareOptions& options);
  // Waits for the poller two seconds at most; one that hangs in the kernel is left.
  ~HardwareSource();
  HardwareSource(const HardwareSource&) = delete;
  HardwareSource& operator=(const HardwareSource&) = delete;

  // Reads what needs rights that will be given up afterwards (see HardwarePoller). Before the
  // first Sample, which starts the poller's thread.
  void ReadAhead();
  // Whether Sample() has something to do at this tick, once or twice a second.
  // `now_ns` is CLOCK_MONOTONIC.
  bool Due(uint64_t now_ns);
  // With the processes watched now, at each tick or where Due() says so.
  HardwareReading Sample(uint64_t now_ns, std::vector<WatchedProcess> processes);
  // Those in force; among them a poll that has not come back for five seconds.
  const std::vector<BlindSpot>& blind_spots() const { return blind_spots_; }
  void ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns);

 private:
  struct Asked {
    uint64_t now_ns = 0;
    std::vector<ProcessKey> processes;
  };
  using QpKey = std::pair<std::pair<std::string, uint32_t>, uint64_t>;
  struct Process {
    std::optional<ProcessHardware> last;  // as emitted, without rows
    struct Qp {
      QpSample emitted, latest;
      uint64_t emitted_ns = 0;
      bool moved = false;  // since the last Collect
    };
    std::map<QpKey, Qp> qps;
    std::map<std::string, MrSample> mrs;
    std::map<uint32_t, ThreadDelaySample> delays;
    // The last known ones of the kernel probes.
    std::optional<uint64_t> direct_reclaim_ns, direct_reclaims, tcp_retransmits;
  };

  void TakeDevices(const KernelReadings& kernel, HardwareSample* out);
  void TakePorts(HardwareSample* out);
  void TakeGpus(HardwareSample* out);
  void TakeProbes(uint64_t now_ns, const KernelReadings& kernel, HardwareSample* out);
  void TakeEvents(uint64_t now_ns, KernelReadings& kernel, HardwareSample* out);
  void TakeQps(uint64_t now_ns, Process& process, std::vector<QpSample>& rows,
               std::vector<QpSample>* out);
  void TakeProcesses(uint64_t now_ns, const std::vector<WatchedProcess>& watched,
                     KernelReadings& kernel, HardwareReading* out);

  HardwareOptions options_;
  std::shared_ptr<HardwarePoller> poller_;  // null with options.poll
  std::optional<AskingThread<Asked, PolledHardware>> asker_;  // not with inline_poll
  uint64_t next_ns_ = 0;
  uint64_t poll_since_ns_ = 0;  // 0: none under way
  PolledHardware polled_;       // the last one
  std::vector<HardwareEvent> polled_events_;  // not yet given
  std::vector<BlindSpot> blind_spots_;

  std::map<std::string, PciSample> pci_;  // as emitted
  std::map<std::pair<std::string, uint32_t>, NicPortSample> nics_;
  std::map<std::string, GpuSample> gpus_;
  std::map<std::string, std::pair<ProbeSample, uint64_t>> probes_;  // and when
  std::map<ProcessKey, Process> processes_;
  std::map<std::pair<HardwareEventKind, std::string>, uint64_t> kernel_events_;  // last time
  std::optional<std::string> iommu_;
  std::optional<bool> peer_memory_module_;
  uint64_t dropped_events_ = 0, lost_events_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_HARDWARE_SOURCE_H_
