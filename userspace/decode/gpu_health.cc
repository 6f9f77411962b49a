// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/gpu_health.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "userspace/base/clock.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kSilentNs = 5 * kSecond;
constexpr uint64_t kSlowNs = 5 * kSecond;      // limits, remapped rows, links, processes
constexpr uint64_t kListNs = 600 * kSecond;    // GPUs and their MIG devices
constexpr uint64_t kMissingNs = 30 * kSecond;  // ... when one that is wanted is not there
constexpr uint64_t kReopenNs = 30 * kSecond;
constexpr uint64_t kRepeatNs = 5 * kSecond;
constexpr uint64_t kBacklogNs = 3600 * kSecond;  // older reports are history
constexpr size_t kMaxGpus = 64, kMaxTold = 1024, kMaxLinks = 64;

// Keeps the old value while the new one is within `slack` of it.
template <class T>
void Waver(std::optional<T>& given, const std::optional<T>& now, T slack) {
  if (!now || !given) {
    given = now;
    return;
  }
  const T moved = *now > *given ? *now - *given : *given - *now;
  if (moved > slack) given = now;
}

// The number in the initial namespace's link: PROC_PID_INIT_INO of Linux' proc_ns.h.
constexpr char kInitialPids[] = "pid:[4026531836]";

}  // namespace

// What its thread holds and does; it may outlive GpuHealth.
struct GpuHealth::Driver {
  explicit Driver(const GpuHealthOptions& options) : library(options.nvml_library) {}

  // The only place that enters the driver.
  Answer Ask(const Question& question) {
    const uint64_t now = question.now_ns;
    const std::set<std::string>& of = question.wanted;
    Answer out;
    const uint64_t begin = ReadClockNs(CLOCK_THREAD_CPUTIME_ID);
    if (!nvml) {
      if (now < next_open_ns) {
        out.problem = open_problem;
        return out;
      }
      auto opened = Nvml::Open(library);
      if (!opened.ok()) {
        next_open_ns = now + kReopenNs;
        out.problem = open_problem = std::string(opened.status().message());
        return out;
      }
      nvml = *std::move(opened);
    }
    out.library =
        nvml->path() +
        (nvml->driver_version().empty() ? std::string() : ", driver " + nvml->driver_version());
    const bool missing = std::any_of(of.begin(), of.end(), [this](const std::string& address) {
      return std::none_of(devices.begin(), devices.end(),
                          [&](const NvmlDevice& device) { return device.address == address; });
    });
    if (now >= next_list_ns || (missing && now >= next_missing_ns)) {
      next_list_ns = now + kListNs;
      next_missing_ns = now + kMissingNs;
      const std::vector<NvmlDevice> fresh = nvml->List(&failed);
      // One that is lost cannot be listed: what was known of it stays.
      for (const NvmlDevice& device : fresh) {
        const auto known =
            std::find_if(devices.begin(), devices.end(),
                         [&](const NvmlDevice& other) { return other.address == device.address; });
        if (known != devices.end()) {
          *known = device;
        } else if (devices.size() < kMaxGpus) {
          devices.push_back(device);
        }
      }
    }
    out.library += ", " + std::to_string(devices.size()) + " GPUs";
    out.failed = failed;
    out.devices = devices;
    const bool slowly = now >= next_slow_ns;
    if (slowly) next_slow_ns = now + kSlowNs;
    for (size_t i = 0; i < devices.size(); ++i) {
      const std::string& address = devices[i].address;
      if (!question.all && of.count(address) == 0) continue;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        calling = address;
      }
      const bool first = read.insert(address).second;
      out.readings.emplace_back(i, nvml->Read(devices[i], slowly || first));
    }
    {
      const std::lock_guard<std::mutex> lock(mutex);
      calling.clear();
    }
    out.xids = nvml->TakeXids();
    out.cost_ns = ReadClockNs(CLOCK_THREAD_CPUTIME_ID) - begin;
    return out;
  }

  // Of the thread that asks.
  const std::string library;
  std::unique_ptr<Nvml> nvml;
  std::string open_problem;
  std::vector<NvmlDevice> devices;
  std::set<std::string> read;
  size_t failed = 0;
  uint64_t next_open_ns = 0, next_list_ns = 0, next_missing_ns = 0, next_slow_ns = 0;

  std::mutex mutex;
  std::string calling;  // address of the GPU that is asked about; empty: none. By mutex.
};

GpuHealth::GpuHealth(const GpuHealthOptions& options, const std::string& proc_root)
    : options_(options), initial_pids_(LinkName(proc_root + "/self/ns/pid") == kInitialPids) {}

GpuHealth::~GpuHealth() = default;

GpuHealthReading GpuHealth::Poll(uint64_t now_ns, const std::set<std::string>& wanted,
                                 bool unnamed) {
  GpuHealthReading out;
  wanted_any_ = wanted_any_ || !wanted.empty() || unnamed || options_.all_gpus;
  if (!wanted_any_) return out;
  if (!options_.nvml_library.empty()) {
    TakeDriver(now_ns, wanted, &out);
  }
  if (!options_.kernel_log.empty()) TakeLog(now_ns, &out);
  for (const auto& [address, gpu] : gpus_) {
    if (!options_.all_gpus && wanted.count(address) == 0) continue;
    out.gpus.push_back(gpu.given);
    out.links[address] = gpu.link;
    if (!initial_pids_ || !gpu.processes) continue;
    for (const NvmlProcess& process : *gpu.processes) out.computing[process.pid].insert(address);
  }
  out.minors = minors_;
  return out;
}

void GpuHealth::TakeDriver(uint64_t now_ns, const std::set<std::string>& wanted,
                           GpuHealthReading* out) {
  const Question question{now_ns, wanted, options_.all_gpus};
  if (!driver_) driver_ = std::make_shared<Driver>(options_);
  std::optional<Answer> answer;
  uint64_t silent_since = 0;
  std::string hangs;
  if (!options_.own_thread) {
    answer = driver_->Ask(question);
  } else {
    if (!asker_) asker_.emplace([driver = driver_](const Question& q) { return driver->Ask(q); });
    const bool asked = asker_->Ask(question);
    if (asked) asked_ns_ = now_ns;
    // Mostly it is there in a few milliseconds, and then the values are of this poll. One
    // that has been silent before is not waited for.
    answer = asker_->Take(std::chrono::nanoseconds(asked ? options_.wait_ns : 0));
    if (!answer && asker_->open() && now_ns >= asked_ns_ + kSilentNs) {
      silent_since = asked_ns_;
      const std::lock_guard<std::mutex> lock(driver_->mutex);
      hangs = driver_->calling;
    }
  }
  if (answer) {
    answered_ = true;
    ++polls_;
    poll_ns_ += answer->cost_ns;
    library_ = answer->library;
    problem_ = answer->problem;
    if (problem_.empty() && answer->failed > 0) {
      problem_ = std::to_string(answer->failed) + " GPUs cannot be asked: lost, or not for us";
    }
    for (const NvmlDevice& device : answer->devices) {
      if (device.minor) minors_[*device.minor] = device.address;
    }
    for (const auto& [index, reading] : answer->readings) {
      TakeReading(answer->devices[index], reading);
    }
    for (const NvmlXid& xid : answer->xids) {
      HardwareEvent event;
      event.t_ns = now_ns;
      event.kind = HardwareEventKind::kXid;
      event.device = xid.address;
      event.number = xid.xid;
      const XidMeaning* meaning = FindXid(xid.xid);
      event.severity = meaning != nullptr && meaning->hardware ? Severity::kFatal : Severity::kInfo;
      event.text = "Xid " + std::to_string(xid.xid) + " of GPU " + xid.address +
                   (meaning != nullptr ? std::string(": ") + meaning->name : std::string());
      AddXid(event, out);
    }
  }
  for (auto& [address, gpu] : gpus_) {
    gpu.given.silent_since_ns = silent_since;
    gpu.given.hangs = silent_since != 0 && address == hangs;
  }
  ProbeSample probe;
  probe.name = "poll.nvml";
  probe.question = "clocks, heat, power, ECC, NVLinks of each GPU; does the driver answer?";
  probe.armed = true;
  probe.attached = library_;
  probe.problem = problem_;
  if (!problem_.empty()) {
    probe.lost = "clocks, throttling, ECC and NVLink state of the GPUs";
  } else if (!answered_) {
    probe.attached = options_.nvml_library;
    probe.problem = "the driver has not answered yet";
    probe.lost = "the health of the GPUs, so far";
  }
  if (silent_since != 0) {
    probe.problem = "the driver does not come back" +
                    (hangs.empty() ? std::string() : " from a question about GPU " + hangs);
    probe.lost = "what has become of the GPUs since";
  }
  probe.hits = polls_;
  if (polls_ > 0 && !probe.attached.empty())
    probe.cost_ns = static_cast<double>(poll_ns_) / static_cast<double>(polls_);
  if (silent_since != 0) {
    out->blind_spots.push_back(
        {"NVIDIA's " +
             (hangs.empty() ? std::string("driver") : "driver, asked about GPU " + hangs + ",") +
             " has not come back for 5 s",
         "clocks, throttling, ECC and NVLink state are old", "look for Xids: dmesg"});
  } else if (!problem_.empty()) {
    out->blind_spots.push_back({problem_, probe.lost,
                                "install the driver's library; in a container, "
                                "NVIDIA_DRIVER_CAPABILITIES=utility"});
  }
  out->probes.push_back(std::move(probe));
}

void GpuHealth::TakeReading(const NvmlDevice& device, const NvmlReading& reading) {
  Gpu& gpu = gpus_[device.address];
  GpuSample& given = gpu.given;
  given.address = device.address;
  given.uuid = device.uuid;
  given.name = device.name;
  given.index = device.index;
  given.mig.clear();
  for (const NvmlMigDevice& mig : device.mig) given.mig.push_back(mig.uuid);
  given.lost = reading.lost;
  if (reading.lost) return;  // what it last said stays
  const auto keep = [](auto& value, const auto& read) {
    if (read) value = read;
  };
  // A fiftieth of the maximum; without a maximum, of the value.
  const auto slack = [](const auto& most, const auto& now) {
    return (most ? *most : now.value_or(0)) / 50;
  };
  keep(given.sm_max_mhz, reading.sm_max_mhz);
  keep(given.memory_max_mhz, reading.memory_max_mhz);
  if (reading.power_limit_mw) given.power_limit_w = *reading.power_limit_mw / 1000;
  keep(given.slowdown_c, reading.slowdown_c);
  keep(given.remapped_rows, reading.remapped_rows);
  keep(given.remap_pending, reading.remap_pending);
  keep(given.remap_failed, reading.remap_failed);
  Waver(given.sm_mhz, reading.sm_mhz, slack(given.sm_max_mhz, reading.sm_mhz));
  Waver(given.memory_mhz, reading.memory_mhz, slack(given.memory_max_mhz, reading.memory_mhz));
  std::optional<uint32_t> watts;
  if (reading.power_mw) watts = *reading.power_mw / 1000;
  Waver(given.power_w, watts, slack(given.power_limit_w, watts));
  given.clock_reasons = reading.clock_reasons;
  Waver(given.temperature_c, reading.temperature_c, 2u);
  Waver(given.memory_temperature_c, reading.memory_temperature_c, 2u);
  Waver(given.utilization_percent, reading.utilization_percent, 10u);
  given.memory_bytes = reading.memory_bytes;
  Waver(given.memory_used_bytes, reading.memory_used_bytes,
        slack(given.memory_bytes, reading.memory_used_bytes));
  given.ecc_corrected = gpu.ecc_corrected.Update(reading.ecc_corrected);
  given.ecc_uncorrected = gpu.ecc_uncorrected.Update(reading.ecc_uncorrected);
  given.pcie_replays = gpu.replays.Update(reading.pcie_replays);
  if (!reading.links.empty()) {
    std::vector<NvlinkSample> links;
    for (const NvmlLink& link : reading.links) {
      if (links.size() >= kMaxLinks) break;
      Gpu::Link& counters = gpu.links[link.link];
      NvlinkSample sample;
      sample.link = link.link;
      sample.active = link.active;
      sample.crc = counters.crc.Update(link.crc);
      sample.replays = counters.replays.Update(link.replays);
      sample.recoveries = counters.recoveries.Update(link.recoveries);
      links.push_back(sample);
    }
    given.nvlinks = std::move(links);
  }
  GpuLinkSample& pcie = gpu.link;
  const auto speed = [](std::optional<double>& value, const std::optional<uint32_t>& generation) {
    if (generation && PcieSpeedGts(*generation) > 0) value = PcieSpeedGts(*generation);
  };
  pcie.speed_gts.reset();
  speed(pcie.speed_gts, reading.pcie_generation);
  speed(pcie.max_speed_gts, reading.pcie_max_generation);
  pcie.width = reading.pcie_width;
  keep(pcie.max_width, reading.pcie_max_width);
  pcie.rx_bytes = gpu.rx_bytes.Update(reading.pcie_rx_bytes);
  pcie.tx_bytes = gpu.tx_bytes.Update(reading.pcie_tx_bytes);
  keep(gpu.processes, reading.processes);
}

void GpuHealth::OpenLog() {
  if (options_.kernel_log.empty() || log_) return;
  auto opened = KernelLog::Open(options_.kernel_log);
  log_problem_ = opened.ok() ? std::string() : std::string(opened.status().message());
  if (opened.ok()) log_ = *std::move(opened);
}

void GpuHealth::TakeLog(uint64_t now_ns, GpuHealthReading* out) {
  if (!log_ && now_ns >= next_open_ns_) {
    next_open_ns_ = now_ns + kReopenNs;
    OpenLog();
  }
  ProbeSample probe;
  probe.name = "poll.xid";
  probe.question = "which errors does NVIDIA's driver report?";
  probe.armed = true;
  if (log_) {
    const uint64_t begin = ReadClockNs(CLOCK_THREAD_CPUTIME_ID);
    for (TimedXid& xid : log_->Read(now_ns).xids) {
      if (xid.backlog && xid.t_ns + kBacklogNs < now_ns) continue;
      HardwareEvent event;
      event.t_ns = xid.t_ns;
      event.kind = xid.report.nvswitch ? HardwareEventKind::kSxid : HardwareEventKind::kXid;
      event.device = xid.report.address;
      event.number = xid.report.number;
      if (initial_pids_) event.pid = xid.report.pid;
      const XidMeaning* meaning = xid.report.nvswitch ? nullptr : FindXid(xid.report.number);
      const bool fatal = xid.report.fatal || (meaning != nullptr && meaning->hardware);
      event.severity = fatal ? Severity::kFatal : Severity::kInfo;
      event.text = std::string(xid.report.nvswitch ? "SXid " : "Xid ") +
                   std::to_string(event.number) +
                   (xid.report.nvswitch ? " of NVSwitch " : " of GPU ") + event.device +
                   (meaning != nullptr ? std::string(", ") + meaning->name : std::string());
      if (!xid.report.text.empty()) event.text += ": " + xid.report.text;
      AddXid(event, out);
    }
    probe.attached = "read " + options_.kernel_log;
    probe.hits = log_->records();
    probe.dropped = log_->lost();
    probe.cost_ns = static_cast<double>(ReadClockNs(CLOCK_THREAD_CPUTIME_ID) - begin);
    out->lost_events = log_->lost();
    if (log_->malformed() > 0) {
      probe.lost = std::to_string(log_->malformed()) + " lines that are not understood";
    }
  } else {
    probe.problem = log_problem_;
    probe.lost = "Xids, but for those that NVML tells";
    if (library_.empty()) probe.lost = "Xids: why a GPU stopped";
    out->blind_spots.push_back({"the kernel log cannot be read: " + log_problem_, probe.lost, ""});
  }
  out->probes.push_back(std::move(probe));
}

void GpuHealth::AddXid(const HardwareEvent& event, GpuHealthReading* out) {
  if (told_.size() >= kMaxTold) {
    std::erase_if(told_, [&](const auto& known) { return known.second + kRepeatNs < event.t_ns; });
    if (told_.size() >= kMaxTold) told_.clear();
  }
  const auto [known, added] = told_.try_emplace({event.device, event.number}, event.t_ns);
  if (!added) {
    const uint64_t last = std::exchange(known->second, std::max(known->second, event.t_ns));
    if (event.t_ns < last + kRepeatNs) {
      ++repeated_;
      return;
    }
  }
  out->events.push_back(event);
}

}  // namespace mycroft
