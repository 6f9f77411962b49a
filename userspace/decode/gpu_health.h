// SPDX-License-Identifier: Apache-2.0
//
// How the GPUs of the watched processes feel: NVML and the Xids of the kernel log, as
// samples. Part of a HardwarePoller.
//
//   Poll() --asks, waits a moment--> own thread --> Nvml (may block for ever)
//     |                                 |
//     |<------ the last that came ------+
//     +--> KernelLog (never blocks)
//
// While the driver does not come back the last values are given again, marked with the
// time since when, and the GPU that it was asked about is marked as the one that hangs.
// Values that waver (clocks, power, temperature, memory) stay as given until they have
// moved by more than a few percent, so that a recording does not fill with noise.
// Counters go on over resets.
//
// Not thread-safe. The library is not loaded before a GPU is asked for.
#ifndef MYCROFT_USERSPACE_DECODE_GPU_HEALTH_H_
#define MYCROFT_USERSPACE_DECODE_GPU_HEALTH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "userspace/decode/asking_thread.h"
#include "userspace/decode/hardware.h"
#include "userspace/decode/snapshot.h"
#include "userspace/source/nvml.h"
#include "userspace/source/sysfs.h"
#include "userspace/source/xid.h"

namespace mycroft {

struct GpuHealthOptions {
  std::string nvml_library;  // see DefaultNvmlLibrary(); empty: do not look
  std::string kernel_log;    // "/dev/kmsg"; empty: do not look
  bool all_gpus = false;     // also those that no watched process has open
  bool own_thread = true;    // false: Poll blocks as long as the driver does (tests)
  uint64_t wait_ns = 200'000'000;  // for the thread, in a poll
};

// A PCIe link as the driver sees it: for machines whose sysfs does not show it.
struct GpuLinkSample {
  std::optional<double> speed_gts, max_speed_gts;
  std::optional<uint32_t> width, max_width;
  std::optional<uint64_t> rx_bytes, tx_bytes;  // cumulative
};

struct GpuHealthReading {
  std::vector<GpuSample> gpus;  // by address
  std::map<std::string, GpuLinkSample> links;
  std::map<uint32_t, std::string> minors;  // N of /dev/nvidiaN to address
  // Which GPUs a process computes on; only where process numbers are those of the
  // initial pid namespace, as the driver's are.
  std::map<uint32_t, std::set<std::string>> computing;
  std::vector<HardwareEvent> events;  // since the last poll
  std::vector<ProbeSample> probes;
  std::vector<BlindSpot> blind_spots;  // in force
  uint64_t lost_events = 0;            // cumulative: of the kernel log
};

class GpuHealth {
 public:
  // `proc_root`: to know in which pid namespace this process is.
  GpuHealth(const GpuHealthOptions& options, const std::string& proc_root);
  // Waits two seconds at most for a driver that hangs.
  ~GpuHealth();
  GpuHealth(const GpuHealth&) = delete;
  GpuHealth& operator=(const GpuHealth&) = delete;

  // Opens the kernel log, if it is to be read: that takes CAP_SYSLOG, reading does not.
  // Without this call it is opened when the first GPU is asked for.
  void OpenLog();
  // `wanted`: addresses of GPUs; `unnamed`: some more are open whose address is not
  // known. `now_ns` is CLOCK_MONOTONIC.
  GpuHealthReading Poll(uint64_t now_ns, const std::set<std::string>& wanted, bool unnamed);

 private:
  struct Driver;
  struct Question {
    uint64_t now_ns = 0;
    std::set<std::string> wanted;
    bool all = false;
  };
  struct Answer {
    std::string library, problem;
    size_t failed = 0;
    std::vector<NvmlDevice> devices;
    std::vector<std::pair<size_t, NvmlReading>> readings;  // index of the device
    std::vector<NvmlXid> xids;
    uint64_t cost_ns = 0;
  };

  struct Gpu {
    GpuSample given;
    GpuLinkSample link;
    std::optional<std::vector<NvmlProcess>> processes;
    CounterTracker ecc_corrected, ecc_uncorrected, replays, rx_bytes, tx_bytes;
    struct Link {
      CounterTracker crc, replays, recoveries;
    };
    std::map<uint32_t, Link> links;
  };

  void TakeDriver(uint64_t now_ns, const std::set<std::string>& wanted, GpuHealthReading* out);
  void TakeReading(const NvmlDevice& device, const NvmlReading& reading);
  void TakeLog(uint64_t now_ns, GpuHealthReading* out);
  void AddXid(const HardwareEvent& event, GpuHealthReading* out);

  const GpuHealthOptions options_;
  const bool initial_pids_;
  std::shared_ptr<Driver> driver_;
  std::optional<AskingThread<Question, Answer>> asker_;
  uint64_t asked_ns_ = 0;  // when the driver was asked last
  std::map<std::string, Gpu> gpus_;          // by address
  std::map<uint32_t, std::string> minors_;
  bool wanted_any_ = false;
  // What the last answer of the driver was, and when it was asked.
  bool answered_ = false;
  std::string library_, problem_;
  uint64_t polls_ = 0, poll_ns_ = 0;

  std::unique_ptr<KernelLog> log_;
  std::string log_problem_;
  uint64_t next_open_ns_ = 0;
  // When each Xid was last told, by device and number: neither the flood of one nor what
  // both the log and NVML say is told again at once.
  std::map<std::pair<std::string, uint32_t>, uint64_t> told_;
  uint64_t repeated_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_GPU_HEALTH_H_
