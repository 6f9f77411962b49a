// SPDX-License-Identifier: Apache-2.0
//
// The live source: finds boards of the processes on this host in /proc, samples
// them at a fixed interval, and adds what /proc says of their threads, and once a
// second what /sys and the kernel probes say of the hardware that they use.
//
// Everything read from another process is hostile: seals and size are checked
// before a board is mapped, lines are copied before they are looked at, every
// index is bounded. Not thread-safe, except Interrupt().
#ifndef MYCROFT_USERSPACE_DECODE_LIVE_SOURCE_H_
#define MYCROFT_USERSPACE_DECODE_LIVE_SOURCE_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "userspace/decode/gpu_health.h"
#include "userspace/decode/kernel_probes.h"
#include "userspace/decode/snapshot_source.h"

namespace mycroft {

struct LiveOptions {
  uint64_t interval_ns = 100'000'000;  // 10 ms .. 1 s
  std::set<uint32_t> pids;             // only these (and their descendants); empty: all
  std::string proc_root = "/proc";
  uint64_t scan_interval_ns = 1'000'000'000;  // at most so often new processes are looked for
  bool host_samples = true;            // read /proc/PID/stat, schedstat, cgroup
  bool hardware = true;                // see hardware_source.h
  std::string sys_root = "/sys";
  GpuHealthOptions gpu_health;         // nothing is asked unless named here
  bool gpu_work = true;                // read the GPU boards of libmycroft-cupti.so
  // Within this time each process is asked for 2 s of activity records, one after the other,
  // so that the usual times of its kernels and copies are known before a stall; 0: never.
  // Records cost the process more than callbacks do.
  uint64_t gpu_sampling_ns = 0;
  // Not owned, must outlive the source; null: without. Called by the thread of Next().
  KernelProbes* probes = nullptr;
  // A clock for replays: CLOCK_MONOTONIC in ns. Empty: the real one, and Next()
  // sleeps until the tick; else Next() never sleeps and the caller moves the clock.
  std::function<uint64_t()> now_ns;
  std::function<uint64_t()> wall_ns;
};

class LiveSource : public SnapshotSource {
 public:
  // InvalidArgument for an interval out of range; PermissionDenied when /proc
  // cannot be read.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LiveSource>> Create(
      const LiveOptions& options);

  absl::StatusOr<std::optional<Snapshot>> Next() override = 0;
  // Makes a sleeping Next() return nullopt. Safe from a signal handler.
  virtual void Interrupt() = 0;
  // Number of processes whose boards are being read now.
  virtual size_t process_count() const = 0;
  // Asks the plugins of all processes (or of one) for a level of detail.
  virtual void RequestLevel(mc_level level) = 0;
  // Reads what needs rights that will be given up afterwards. Before the first Next, which
  // starts threads: they inherit the rights of that moment.
  virtual void ReadAhead() = 0;
  // Arms the deep kernel probes and the activity records of GPUs for these processes until
  // then, in place of what was armed before. By the thread of Next().
  virtual void ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) = 0;
  // True when a process was found that uses NCCL (has libnccl mapped) but has no board.
  virtual bool saw_process_without_plugin() const = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_LIVE_SOURCE_H_
