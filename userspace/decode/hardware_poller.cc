// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/hardware_poller.h"

#include <algorithm>

#include "userspace/base/clock.h"
#include "userspace/source/pci.h"
#include "userspace/source/proc.h"
#include "userspace/source/process_devices.h"
#include "userspace/source/rdma.h"

namespace mycroft {
namespace {

constexpr size_t kConfigForAll = 64;  // bytes of the configuration space that anybody may read

constexpr uint64_t kSecond = 1'000'000'000;
// Devices are opened at the start of a job: in its first minute its descriptors are
// looked through each second, later seldom, as there may be thousands.
constexpr uint64_t kYoungNs = 60 * kSecond;
constexpr uint64_t kRescanNs = 10 * kSecond;
constexpr uint64_t kGidsNs = 10 * kSecond;
constexpr uint64_t kShmNs = 5 * kSecond;
constexpr uint64_t kLimitsNs = 5 * kSecond;
constexpr size_t kMaxFunctions = 256;
constexpr size_t kMaxPorts = 64;
constexpr size_t kMaxRemembered = 1024;  // names of devices

HardwareEvent Event(uint64_t t_ns, HardwareEventKind kind, Severity severity,
                    const std::string& device, const std::string& text) {
  HardwareEvent event;
  event.t_ns = t_ns;
  event.kind = kind;
  event.severity = severity;
  event.device = device;
  event.text = text;
  return event;
}

PciKind KindOf(const PciFunction& function, bool gpu, bool nic, bool below_host) {
  if (function.config.port == PciPort::kRootPort) return PciKind::kRootPort;
  if (IsBridgeClass(function.class_code)) {
    // Without its configuration space: a bridge below the host bridge is a root port.
    return below_host && !function.config.port ? PciKind::kRootPort : PciKind::kBridge;
  }
  if (gpu || IsGpuClass(function.class_code)) return PciKind::kGpu;
  if (nic || IsNicClass(function.class_code)) return PciKind::kNic;
  return PciKind::kOther;
}

struct RowText {
  const char *name, *question, *attached;
};
constexpr RowText kRows[] = {
    {"poll.devices", "which GPUs and RDMA devices does each process have open?",
     "poll /proc/PID/fd, /proc/driver/nvidia/gpus"},
    {"poll.pcie_link", "how fast and wide is each hop from the device to the root?",
     "poll /sys/bus/pci/devices/*/current_link_*"},
    {"poll.pcie_config", "does the device answer; MaxReadReq, relaxed ordering, ACS?",
     "poll /sys/bus/pci/devices/*/config"},
    {"poll.pcie_aer", "which PCIe errors has each device counted?",
     "poll /sys/bus/pci/devices/*/aer_dev_*"},
    {"poll.rdma_port", "state, rate, GIDs and counters of the ports in use?",
     "poll /sys/class/infiniband/*/ports/*"},
    {"poll.limits", "how much memory may and does each process lock?",
     "poll /proc/PID/limits, /proc/PID/status"},
    {"poll.shm", "how much room has /dev/shm of each process?", "poll /proc/PID/root/dev/shm"},
    {"poll.memory", "does the memory cgroup reclaim or kill?",
     "poll memory.events, memory.pressure"},
};

}  // namespace

// Times one kind of poll.
class HardwarePoller::Row {
 public:
  explicit Row(Status& status) : status_(status), start_(MonotonicNs()) { ++status.polls; }
  ~Row() { status_.ns += MonotonicNs() - start_; }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

 private:
  Status& status_;
  uint64_t start_;
};

PolledHardware HardwarePoller::Poll(uint64_t now_ns, const std::vector<ProcessKey>& processes) {
  static_assert(sizeof kRows / sizeof kRows[0] == kKinds);
  PolledHardware out;
  for (Status& status : status_) status.problem.clear(), status.lost.clear();
  std::set<ProcessKey> wanted(processes.begin(), processes.end());
  // One that has just ended is no gap in what is seen.
  for (auto it = wanted.begin(); it != wanted.end();) {
    const auto stat = ReadProcStat(proc_, it->pid);
    const bool alive =
        stat ? stat->start_time == it->start_time && stat->state != 'Z' && stat->state != 'X'
             : !IsGone(proc_ + "/" + std::to_string(it->pid));
    it = alive ? std::next(it) : wanted.erase(it);
  }
  for (auto it = processes_.begin(); it != processes_.end();) {
    it = wanted.count(it->first) != 0 ? std::next(it) : processes_.erase(it);
  }
  std::set<std::string> gpus, nics, rdma_devices;
  {
    const Row row(status_[kDevices]);
    bool scanned = false;
    for (const ProcessKey& key : wanted) {
      Process& process = processes_[key];
      if (process.first_seen_ns == 0) process.first_seen_ns = now_ns;
      if (now_ns < process.next_scan_ns) continue;
      const bool young = now_ns < process.first_seen_ns + kYoungNs;
      process.next_scan_ns = now_ns + (young ? 0 : kRescanNs);
      scanned = true;
      if (const auto open = ReadOpenDevices(proc_, key.pid)) {
        process.gpu_minors = {open->gpu_minors.begin(), open->gpu_minors.end()};
        process.uverbs = {open->uverbs.begin(), open->uverbs.end()};
        process.readable = true;
      } else {
        process.readable = false;
      }
    }
    if (scanned) {
      for (auto& [minor, address] : ReadNvidiaMinors(proc_)) {
        if (minors_.size() < kMaxRemembered) minors_[minor] = address;
      }
    }
    std::set<std::string> asked;
    bool unnamed = false;
    for (const auto& [key, process] : processes_) {
      for (const uint32_t minor : process.gpu_minors) {
        const auto known = minors_.find(minor);
        known != minors_.end() ? void(asked.insert(known->second)) : void(unnamed = true);
      }
    }
    GpuHealthReading health = gpu_health_.Poll(now_ns, asked, unnamed);
    // In a container /proc/driver/nvidia may be hidden.
    for (auto& [minor, address] : health.minors) {
      if (minors_.size() < kMaxRemembered) minors_.emplace(minor, address);
    }
    gpu_links_ = std::move(health.links);
    out.gpus = std::move(health.gpus);
    out.events = std::move(health.events);
    out.probes = std::move(health.probes);
    out.blind_spots = std::move(health.blind_spots);
    out.lost_events = health.lost_events;
    for (auto& [key, process] : processes_) {
      ProcessHardware& hardware = out.processes[key];
      if (!process.readable) {
        status_[kDevices].problem = "descriptors of pid " + std::to_string(key.pid) +
                                    " cannot be read: run as root, or with CAP_SYS_PTRACE";
        status_[kDevices].lost = "its devices, their paths and ports";
      }
      for (const uint32_t minor : process.gpu_minors) {
        const auto known = minors_.find(minor);
        if (known == minors_.end()) {
          status_[kDevices].problem = "/dev/nvidia" + std::to_string(minor) + " is not found in " +
                                      proc_ + "/driver/nvidia/gpus";
          status_[kDevices].lost = "the PCIe path of that GPU";
          continue;
        }
        hardware.gpus.push_back(known->second);
      }
      // Of several that are open, those that it computes on; none is where the descriptors
      // do not show them.
      if (const auto on = health.computing.find(key.pid); on != health.computing.end()) {
        process.computing = on->second;  // a GPU that is lost no longer says who is on it
      }
      if (hardware.gpus.size() != 1 && !process.computing.empty()) {
        std::vector<std::string> computing;
        if (hardware.gpus.empty()) {
          computing.assign(process.computing.begin(), process.computing.end());
        }
        for (const std::string& address : hardware.gpus) {
          if (process.computing.count(address) != 0) computing.push_back(address);
        }
        if (!computing.empty()) hardware.gpus = std::move(computing);
      }
      gpus.insert(hardware.gpus.begin(), hardware.gpus.end());
      for (const std::string& uverbs : process.uverbs) {
        const std::string now = VerbsDevice(sys_, uverbs);
        if (!now.empty() && verbs_.size() < kMaxRemembered) verbs_[uverbs] = now;
        const auto known = verbs_.find(uverbs);
        if (known == verbs_.end()) {
          status_[kDevices].problem =
              "/dev/infiniband/" + uverbs + " is not found in /sys/class/infiniband_verbs";
          status_[kDevices].lost = "the port and the PCIe path of that device";
          continue;
        }
        hardware.rdma_devices.push_back(known->second);
        rdma_devices.insert(known->second);
      }
      std::sort(hardware.gpus.begin(), hardware.gpus.end());
      std::sort(hardware.rdma_devices.begin(), hardware.rdma_devices.end());
    }
    for (const std::string& device : rdma_devices) {
      const std::string address = RdmaPciAddress(sys_, device);
      if (!address.empty() && rdma_pci_.size() < kMaxRemembered) rdma_pci_[device] = address;
      if (const auto known = rdma_pci_.find(device); known != rdma_pci_.end()) {
        nics.insert(known->second);
      }
    }
  }
  const std::vector<std::string> addresses = PollDevices(now_ns, gpus, nics, out);
  PollPorts(now_ns, rdma_devices, out);
  memory_.clear();
  for (auto& [key, process] : processes_) PollProcess(now_ns, key, process, out);
  out.iommu = ReadIommuMode(sys_, addresses);
  out.peer_memory_module = ReadPeerMemoryModule(sys_);
  for (int kind = 0; kind < kKinds; ++kind) {
    const Status& status = status_[kind];
    ProbeSample probe;
    probe.name = kRows[kind].name;
    probe.question = kRows[kind].question;
    probe.armed = true;
    probe.attached = kRows[kind].attached;
    probe.problem = status.problem;
    probe.lost = status.lost;
    probe.hits = status.polls;
    if (status.ns > 0) {
      probe.cost_ns = static_cast<double>(status.ns) / static_cast<double>(status.polls);
    }
    out.probes.push_back(std::move(probe));
  }
  return out;
}

void HardwarePoller::ReadAhead() {
  gpu_health_.OpenLog();
  const auto addresses = ListFolder(sys_ + "/bus/pci/devices");
  for (const std::string& address : addresses.value_or(std::vector<std::string>())) {
    if (read_ahead_.size() >= kMaxFunctions) return;
    auto function = ReadPciFunction(sys_, address);
    if (!function || function->config_bytes <= kConfigForAll) continue;
    if (IsGpuClass(function->class_code) || IsNicClass(function->class_code) ||
        IsBridgeClass(function->class_code)) {
      read_ahead_.emplace(address, *std::move(function));
    }
  }
}

std::optional<PciFunction> HardwarePoller::ReadFunction(const std::string& address) const {
  auto function = ReadPciFunction(sys_, address);
  if (!function || function->config_bytes > kConfigForAll || function->config.unreachable) {
    return function;
  }
  const auto before = read_ahead_.find(address);
  // Another device may have been plugged in there.
  if (before == read_ahead_.end() || before->second.vendor != function->vendor ||
      before->second.device != function->device) {
    return function;
  }
  function->config = before->second.config;
  function->config_bytes = before->second.config_bytes;
  function->config.unreachable = false;
  return function;
}

std::vector<std::string> HardwarePoller::PollDevices(uint64_t now_ns,
                                                     const std::set<std::string>& gpus,
                                                     const std::set<std::string>& nics,
                                                     PolledHardware& out) {
  // Links, configuration space and error counters are read together; the time is
  // booked on the first.
  const Row row(status_[kLinks]);
  ++status_[kConfig].polls, ++status_[kAer].polls;
  const std::string folder = sys_ + "/bus/pci/devices";
  std::set<std::string> wanted;
  for (const std::set<std::string>* devices : {&gpus, &nics}) {
    for (const std::string& address : *devices) {
      std::vector<std::string> path = PciPathToRoot(sys_, address);
      if (functions_.count(address) == 0 && functions_.size() >= kMaxFunctions) continue;
      Function& function = functions_[address];
      // Of a device that is gone the way is known from before.
      if (path.size() > 1 || function.path.empty()) function.path = std::move(path);
      wanted.insert(function.path.begin(), function.path.end());
    }
  }
  for (auto it = functions_.begin(); it != functions_.end();) {
    it = wanted.count(it->first) != 0 ? std::next(it) : functions_.erase(it);
  }
  std::map<std::string, std::string> parents;
  for (const auto& [address, function] : functions_) {
    for (size_t i = 0; i < function.path.size(); ++i) {
      parents[function.path[i]] = i + 1 < function.path.size() ? function.path[i + 1] : "";
    }
  }
  size_t express = 0, short_config = 0, no_config = 0, no_extended = 0, counted = 0;
  for (const std::string& address : wanted) {
    if (functions_.count(address) == 0 && functions_.size() >= kMaxFunctions) continue;
    Function& known = functions_[address];
    // Most of it does not move: all is read now and then, and when it comes back.
    std::optional<PciFunction>& now = known.read;
    if (!now || now->config.unreachable || now_ns >= known.next_full_ns) {
      now = ReadFunction(address);
      known.next_full_ns = now_ns + kRescanNs;
    } else if (!RefreshPciFunction(sys_, *now)) {
      now.reset();
    }
    if (!now) {
      if (PresenceOf(folder, address) != Presence::kAbsent) continue;  // a failed read
      if (!known.last) continue;                                       // never seen: no statement
      if (known.last->present) {
        out.events.push_back(Event(now_ns, HardwareEventKind::kPciRemoved, Severity::kFatal,
                                   address, "PCI function " + address + " is gone"));
      }
      known.last->present = false;
      known.last->speed_gts.reset();
      known.last->width.reset();
      out.pci.push_back(*known.last);
      continue;
    }
    PciSample sample;
    sample.address = address;
    sample.parent = parents[address];
    sample.kind =
        KindOf(*now, gpus.count(address) != 0, nics.count(address) != 0, sample.parent.empty());
    sample.driver = PrintableName(now->driver);
    sample.vendor = now->vendor;
    sample.device = now->device;
    sample.numa_node = now->numa_node;
    sample.unreachable = now->config.unreachable;
    sample.speed_gts = now->speed_gts;
    sample.max_speed_gts = now->max_speed_gts;
    sample.width = now->width;
    sample.max_width = now->max_width;
    // A virtual machine or a container may hide the link; the driver sees it.
    if (const auto link = gpu_links_.find(address); link != gpu_links_.end()) {
      const GpuLinkSample& seen = link->second;
      if (!sample.speed_gts || !sample.width) {
        sample.speed_gts = seen.speed_gts;
        sample.width = seen.width;
      }
      if (!sample.max_speed_gts || !sample.max_width) {
        sample.max_speed_gts = seen.max_speed_gts;
        sample.max_width = seen.max_width;
      }
      sample.rx_bytes = seen.rx_bytes;
      sample.tx_bytes = seen.tx_bytes;
    }
    sample.max_read_request = now->config.max_read_request;
    sample.relaxed_ordering = now->config.relaxed_ordering;
    sample.acs_redirect = now->config.acs_redirect;
    const std::optional<uint64_t> read[3] = {now->aer_correctable, now->aer_nonfatal,
                                             now->aer_fatal};
    std::optional<uint64_t>* const value[3] = {&sample.aer_correctable, &sample.aer_nonfatal,
                                               &sample.aer_fatal};
    static constexpr Severity kSeverity[3] = {Severity::kCorrected, Severity::kNonFatal,
                                              Severity::kFatal};
    static constexpr const char* kName[3] = {"correctable", "non-fatal", "fatal"};
    for (int i = 0; i < 3; ++i) {
      *value[i] = known.aer[i].Update(read[i]);
      std::optional<uint64_t>& seen = known.seen_aer[i];
      if (*value[i] && seen && **value[i] > *seen) {
        out.events.push_back(Event(now_ns, HardwareEventKind::kAer, kSeverity[i], address,
                                   std::to_string(**value[i] - *seen) + " " + kName[i] +
                                       " PCIe errors counted by " + address));
      }
      if (*value[i]) seen = *value[i];
    }
    // What is missing, and whether it could have been there.
    const bool link = now->speed_gts || now->max_speed_gts || now->config.port;
    express += link ? 1 : 0;
    counted += now->aer_correctable || now->aer_fatal ? 1 : 0;
    no_config += now->config_bytes == 0 ? 1 : 0;
    short_config += now->config_bytes > 0 && now->config_bytes < 256 ? 1 : 0;
    no_extended += link && now->config_bytes >= 256 && now->config_bytes < 4096 ? 1 : 0;
    known.last = sample;
    out.pci.push_back(std::move(sample));
  }
  if (!wanted.empty() && !ListFolder(folder, 1)) {
    status_[kLinks].problem = folder + " cannot be read: is sysfs mounted?";
    status_[kLinks].lost = "PCIe links, errors and removal";
  }
  if (no_config > 0) {
    status_[kConfig].problem = "configuration space cannot be read";
    status_[kConfig].lost =
        "whether a device has fallen off the bus; MaxReadReq, relaxed "
        "ordering, ACS";
  } else if (short_config > 0) {
    status_[kConfig].problem = "only 64 bytes can be read: run as root, or with CAP_SYS_ADMIN";
    status_[kConfig].lost = "MaxReadReq, relaxed ordering, ACS redirect";
  } else if (no_extended > 0) {
    status_[kConfig].problem = "only 256 bytes can be read: no extended configuration space";
    status_[kConfig].lost = "ACS redirect";
  }
  if (express > 0 && counted == 0) {
    status_[kAer].problem =
        "no error counters: kernel without CONFIG_PCIEAER, or the firmware keeps AER";
    status_[kAer].lost = "PCIe errors";
  }
  return {wanted.begin(), wanted.end()};
}

void HardwarePoller::PollPorts(uint64_t now_ns, const std::set<std::string>& devices,
                               PolledHardware& out) {
  const Row row(status_[kPorts]);
  for (auto it = ports_.begin(); it != ports_.end();) {
    it = devices.count(it->first.first) != 0 ? std::next(it) : ports_.erase(it);
  }
  for (const std::string& device : devices) {
    std::vector<uint32_t> numbers;
    const auto listed = RdmaPorts(sys_, device);
    bool absent = false;
    if (listed) {
      numbers = *listed;
    } else {
      absent = PresenceOf(sys_ + "/class/infiniband", device) == Presence::kAbsent;
      if (!absent) {
        status_[kPorts].problem = "ports of " + PrintableName(device) + " cannot be read";
        status_[kPorts].lost = "their state and counters";
      }
      for (const auto& [key, port] : ports_) {
        if (key.first == device) numbers.push_back(key.second);
      }
    }
    for (const uint32_t number : numbers) {
      const auto key = std::make_pair(device, number);
      if (ports_.count(key) == 0 && ports_.size() >= kMaxPorts) continue;
      Port& port = ports_[key];
      NicPortSample sample;
      sample.device = PrintableName(device);
      sample.port = number;
      if (const auto known = rdma_pci_.find(device); known != rdma_pci_.end()) {
        port.pci = known->second;
      }
      sample.pci = port.pci;
      if (absent) {
        sample.state = "ABSENT";
        sample.netdev = port.netdev;
      } else {
        const RdmaPort now = ReadRdmaPort(sys_, device, number);
        sample.state = now.state;
        sample.phys_state = now.phys_state;
        sample.rate_gbps = now.rate_gbps;
        if (!now.netdev.empty()) port.netdev = PrintableName(now.netdev);
        sample.netdev = port.netdev;
        sample.netdev_mtu = now.netdev_mtu;
        for (const auto& [name, value] : now.counters) {
          if (port.counters.size() >= kMaxRemembered && port.counters.count(name) == 0) continue;
          if (const auto total = port.counters[name].Update(value)) {
            sample.counters.emplace(PrintableName(name), *total);
          }
        }
        if (now_ns >= port.next_gids_ns) {
          port.next_gids_ns = now_ns + kGidsNs;
          if (const auto gids = ReadRdmaGids(sys_, device, number)) {
            port.gids.clear();
            for (const RdmaGid& gid : *gids) {
              port.gids.push_back({gid.index, gid.gid, PrintableName(gid.type)});
            }
          }
        }
        sample.gids = port.gids;
      }
      if (!sample.state.empty()) {
        if (!port.seen_state.empty() && port.seen_state != sample.state) {
          const bool up = sample.state == "ACTIVE";
          HardwareEvent event = Event(now_ns, HardwareEventKind::kPortState,
                                      up ? Severity::kInfo : Severity::kNonFatal, sample.device,
                                      "port " + std::to_string(number) + " of " + sample.device +
                                          ": " + port.seen_state + " to " + sample.state);
          event.number = number;
          out.events.push_back(std::move(event));
        }
        port.seen_state = sample.state;
      }
      out.nics.push_back(std::move(sample));
    }
  }
}

void HardwarePoller::PollProcess(uint64_t now_ns, const ProcessKey& key, Process& process,
                                 PolledHardware& out) {
  ProcessHardware& hardware = out.processes[key];
  const std::string base = proc_ + "/" + std::to_string(key.pid);
  const std::string pid = "pid " + std::to_string(key.pid);
  {
    const Row row(status_[kLimits]);
    if (now_ns >= process.next_limits_ns) {
      const auto text = ReadSmallFile(base + "/limits", 8192);
      process.memlock_limit = text ? ParseMemlockLimit(*text) : std::nullopt;
      if (process.memlock_limit) process.next_limits_ns = now_ns + kLimitsNs;
    }
    hardware.memlock_limit = process.memlock_limit;
    if (const auto text = ReadSmallFile(base + "/status", 8192)) {
      hardware.locked_bytes = ParseLockedBytes(*text);
    }
    if (!hardware.memlock_limit || !hardware.locked_bytes) {
      status_[kLimits].problem = "limits of " + pid + " cannot be read";
      status_[kLimits].lost = "whether its memlock limit is in the way";
    }
  }
  {
    const Row row(status_[kShm]);
    if (now_ns >= process.next_shm_ns) {
      process.next_shm_ns = now_ns + kShmNs;
      const auto space = ReadShmSpace(proc_, key.pid);
      process.shm_bytes.reset();
      if (space) {
        // Moves all the time: only what is more than a hundredth is a change.
        const uint64_t old = process.shm_free_bytes.value_or(UINT64_MAX);
        const uint64_t moved =
            old > space->free_bytes ? old - space->free_bytes : space->free_bytes - old;
        if (moved > space->bytes / 100) process.shm_free_bytes = space->free_bytes;
        process.shm_bytes = space->bytes;
      }
    }
    if (process.shm_bytes) {
      hardware.shm_bytes = process.shm_bytes;
      hardware.shm_free_bytes = process.shm_free_bytes;
    } else {
      status_[kShm].problem = "/dev/shm of " + pid + " cannot be looked at, or is no tmpfs";
      status_[kShm].lost = "whether it is full";
    }
  }
  const Row row(status_[kMemory]);
  const auto cgroup = ReadSmallFile(base + "/cgroup", 8192);
  if (!cgroup) return;  // it has just ended
  const auto [known, added] = memory_.try_emplace(*cgroup);
  if (added) known->second = ReadMemoryPressure(*cgroup, sys_ + "/fs/cgroup");
  const MemoryPressure& memory = known->second;
  const auto hits = process.limit_hits.Update(memory.limit_hits);
  const auto stall = process.stall_ns.Update(memory.stall_ns);
  const auto kills = process.oom_kills.Update(memory.oom_kills);
  hardware.direct_reclaims = hits.value_or(process.limit_hits.total());
  hardware.direct_reclaim_ns = stall.value_or(process.stall_ns.total());
  if (kills && process.seen_oom_kills && *kills > *process.seen_oom_kills) {
    HardwareEvent event =
        Event(now_ns, HardwareEventKind::kOomKill, Severity::kFatal, "",
              std::to_string(*kills - *process.seen_oom_kills) +
                  " processes of the memory cgroup of " + pid + " killed for lack of memory");
    event.pid = key.pid;
    out.events.push_back(std::move(event));
  }
  if (kills) process.seen_oom_kills = kills;
  if (!hits && !kills) {
    // The root of a hierarchy has no such files, and no limit.
    bool limited = false;
    for (const std::string& folder : CgroupFolders(*cgroup, "memory", "")) {
      limited |= folder.back() != '/';
    }
    if (limited) {
      status_[kMemory].problem = "the memory cgroup of " + pid + " cannot be read";
      status_[kMemory].lost = "reclaim and OOM kills in it";
    }
  }
}

}  // namespace mycroft
