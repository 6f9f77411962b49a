// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/doctor.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/system.h"
#include "tools/mycroft/verbs.h"
#include "userspace/base/install.h"
#include "userspace/base/log.h"
#include "userspace/base/text.h"
#include "userspace/decode/bpf_kernel_probes.h"
#include "userspace/decode/hardware_source.h"
#include "userspace/decode/live_source.h"
#include "userspace/model/hardware.h"
#include "userspace/report/clocks.h"
#include "userspace/report/text.h"
#include "userspace/source/nvml.h"
#include "userspace/source/proc.h"

namespace mycroft {
namespace {

namespace fs = std::filesystem;
using std::to_string;

constexpr int kDoctorSchemaVersion = 1;
constexpr std::chrono::milliseconds kMeasureCost(500);  // of probes that are hit all the time
constexpr char kProbesLost[] =
    "kernel probes (RDMA, PCIe, scheduling) may not attach: see the probes below";

// Capability numbers of the kernel's uapi, stable for ever.
constexpr int kCapDacReadSearch = 2, kCapSysPtrace = 19, kCapSysAdmin = 21, kCapPerfmon = 38,
              kCapBpf = 39;

Check Ok(const char* id, const std::string& found) { return {id, CheckStatus::kOk, found, "", ""}; }

Check Warn(const char* id, const std::string& found, const std::string& lost,
           const std::string& fix) {
  return {id, CheckStatus::kWarn, found, lost, fix};
}

Check Failed(const char* id, const std::string& found, const std::string& lost,
             const std::string& fix) {
  return {id, CheckStatus::kFail, found, lost, fix};
}

class Doctor {
 public:
  explicit Doctor(const DoctorInput& input)
      : input_(input),
        root_(input.root),
        survey_(SurveyProcesses(root_)),
        libraries_(LibraryDirectories(root_, input.getenv("LD_LIBRARY_PATH").value_or(""))),
        links_(SurveyPci(root_)) {
    const std::string status = ReadSmallFile(root_ + "/proc/self/status").value_or("");
    const size_t at = status.find("CapEff:");
    if (at != std::string::npos) {
      capabilities_ = std::strtoull(status.c_str() + at + 7, nullptr, 16);
    }
    for (const PciLink& link : links_) {
      gpus_ += link.kind == "GPU" ? 1 : 0;
      nics_ += link.kind == "NIC" ? 1 : 0;
    }
    std::error_code error;
    has_nvidia_ = gpus_ > 0 || fs::exists(root_ + "/proc/driver/nvidia/version", error) ||
                  fs::exists(root_ + "/dev/nvidia0", error);
    has_rdma_ = nics_ > 0 || !fs::is_empty(root_ + "/sys/class/infiniband", error);
    if (error) has_rdma_ = nics_ > 0;
  }

  std::vector<Check> Run() {
    checks_ = {Kernel(),          Btf(),        Capabilities(), Lockdown(),    PerfEventParanoid(),
               UnprivilegedBpf(), ProcAccess(), Plugin(),       PluginTaken(), Nccl(),
               Boards(),          Cupti(),      Nvml(),         Infiniband(),  Memlock(),
               SharedMemory(),    Pcie(),       Iommu(),        ClockSource()};
    return checks_;
  }

 private:
  bool Has(int capability) const { return (capabilities_ >> capability & 1) != 0; }

  Check Kernel() const {
    const std::string release =
        ReadLine(root_ + "/proc/sys/kernel/osrelease").value_or("unknown release");
    int major = 0, minor = 0;
    if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) != 2) {
      return Warn("kernel", release, "not known whether the kernel is new enough", "");
    }
    if (major < 5 || (major == 5 && minor < 8)) {
      return Warn("kernel", release + " is older than 5.8", kProbesLost, "use a newer kernel");
    }
    return Ok("kernel", release);
  }

  Check Btf() const {
    std::error_code error;
    if (fs::exists(root_ + "/sys/kernel/btf/vmlinux", error)) {
      return Ok("btf", "/sys/kernel/btf/vmlinux is there");
    }
    return Warn("btf", "no /sys/kernel/btf/vmlinux", kProbesLost,
                "use a kernel with CONFIG_DEBUG_INFO_BTF; in a container, mount /sys/kernel/btf");
  }

  Check Capabilities() const {
    std::vector<std::string> missing;
    const bool admin = Has(kCapSysAdmin);
    if (!Has(kCapSysPtrace)) missing.push_back("CAP_SYS_PTRACE");
    if (!Has(kCapDacReadSearch)) missing.push_back("CAP_DAC_READ_SEARCH");
    const bool others = !missing.empty();
    if (!Has(kCapBpf) && !admin) missing.push_back("CAP_BPF");
    if (!Has(kCapPerfmon) && !admin) missing.push_back("CAP_PERFMON");
    if (missing.empty()) return Ok("capabilities", "all that are needed");
    return Warn("capabilities", "missing: " + JoinNames(missing),
                others ? "jobs of other users are not seen" : kProbesLost,
                "run as root, or give the agent these capabilities");
  }

  Check Lockdown() const {
    const auto text = ReadLine(root_ + "/sys/kernel/security/lockdown");
    if (!text) return Ok("lockdown", "not in use, or not readable");
    if (text->find("[confidentiality]") != std::string::npos) {
      return Warn("lockdown", *text, kProbesLost, "boot with lockdown=integrity or without");
    }
    return Ok("lockdown", *text);
  }

  Check PerfEventParanoid() const {
    const auto text = ReadLine(root_ + "/proc/sys/kernel/perf_event_paranoid");
    if (!text) return Ok("perf_event_paranoid", "not readable");
    const int value = std::atoi(text->c_str());
    if (value > 2 && !Has(kCapPerfmon) && !Has(kCapSysAdmin)) {
      return Warn("perf_event_paranoid", *text + ", without CAP_PERFMON", kProbesLost,
                  "sysctl kernel.perf_event_paranoid=2, or CAP_PERFMON");
    }
    return Ok("perf_event_paranoid", *text);
  }

  Check UnprivilegedBpf() const {
    const auto text = ReadLine(root_ + "/proc/sys/kernel/unprivileged_bpf_disabled");
    if (!text) return Ok("unprivileged_bpf", "not readable");
    if (*text != "0" && !Has(kCapBpf) && !Has(kCapSysAdmin)) {
      return Warn("unprivileged_bpf", "BPF is for privileged processes only", kProbesLost,
                  "run as root, or with CAP_BPF and CAP_PERFMON");
    }
    return Ok("unprivileged_bpf",
              *text == "0" ? "allowed" : "disabled; this process is privileged");
  }

  Check ProcAccess() const {
    const std::string mounts = ReadSmallFile(root_ + "/proc/mounts", 1 << 20).value_or("");
    std::string hidepid;
    size_t begin = 0;
    while (begin < mounts.size()) {
      const size_t end = std::min(mounts.find('\n', begin), mounts.size());
      const std::string line = mounts.substr(begin, end - begin);
      if (line.find(" /proc proc ") != std::string::npos) {
        const size_t at = line.find("hidepid=");
        if (at != std::string::npos) hidepid = line.substr(at, line.find_first_of(", ", at) - at);
      }
      begin = end + 1;
    }
    const std::string seen = to_string(survey_.processes) + " processes";
    if (survey_.unreadable > 0) {
      return Warn("proc_access",
                  seen + ", " + to_string(survey_.unreadable) + " of them not readable" +
                      (hidepid.empty() ? "" : "; /proc is mounted with " + hidepid),
                  "boards in these processes are not found",
                  "run as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH");
    }
    if (!hidepid.empty() && hidepid != "hidepid=0" && hidepid != "hidepid=off" &&
        !Has(kCapSysPtrace)) {
      return Warn("proc_access", seen + "; /proc is mounted with " + hidepid,
                  "processes of other users are hidden", "run as root, or with CAP_SYS_PTRACE");
    }
    return Ok("proc_access", seen + ", all readable");
  }

  Check Plugin() const {
    const InstalledFile plugin = FindPlugin(input_.plugin, input_.bin_directory);
    if (plugin.exists) return Ok("plugin", plugin.path);
    return Failed("plugin", plugin.path + " is not there", "new jobs cannot be started with it",
                  "install it, or name it with --plugin or MYCROFT_PLUGIN");
  }

  Check PluginTaken() const {
    const std::string ours = FindPlugin(input_.plugin, input_.bin_directory).path;
    const auto own = input_.getenv("NCCL_PROFILER_PLUGIN");
    if (own && !own->empty() && own->find("mycroft") == std::string::npos) {
      return Warn("plugin_taken",
                  "NCCL_PROFILER_PLUGIN is set to '" + PrintableText(*own) + "' here",
                  "jobs from this environment load that plugin and not Mycroft's",
                  "mycroft run --chain -- COMMAND loads both");
    }
    std::set<std::string> taken;
    std::string pids;
    for (const NcclProcess& process : survey_.nccl) {
      const std::string value = process.profiler_plugin.value_or("");
      if (value.empty() || process.has_board || value.find("mycroft") != std::string::npos)
        continue;
      taken.insert(PrintableText(value));
      pids += (pids.empty() ? "" : ", ") + to_string(process.pid);
    }
    if (!taken.empty()) {
      return Warn(
          "plugin_taken",
          "pid " + pids + ": NCCL_PROFILER_PLUGIN is " + JoinNames({taken.begin(), taken.end()}),
          "NCCL loads one plugin only; these jobs are not seen",
          "set MYCROFT_CHAIN_PLUGIN to it and NCCL_PROFILER_PLUGIN to " + ours);
    }
    return Ok("plugin_taken", "no other NCCL profiler plugin is in the way");
  }

  Check Nccl() const {
    std::set<std::string> found;
    bool old = false;
    for (const NcclProcess& process : survey_.nccl) {
      found.insert((process.version.empty() ? "version not known" : process.version) + " (" +
                   PrintableText(process.library) + ")");
      int major = 0, minor = 0;
      if (std::sscanf(process.version.c_str(), "%d.%d", &major, &minor) == 2) {
        old = old || major < 2 || (major == 2 && minor < 27);
      }
    }
    if (!found.empty()) {
      const std::string text = "in running processes: " + JoinNames({found.begin(), found.end()});
      if (!old) return Ok("nccl", text);
      return Warn("nccl", text, "NCCL before 2.27 does not offer what the plugin needs",
                  "use NCCL 2.27 or later");
    }
    for (const FoundLibrary& library : FindLibraries(root_, libraries_, "libnccl.so")) {
      found.insert((library.version.empty() ? "version not known" : library.version) + " (" +
                   library.path + ")");
    }
    return Ok("nccl", found.empty() ? "no process uses NCCL now"
                                    : "no process uses NCCL now; installed: " +
                                          JoinNames({found.begin(), found.end()}));
  }

  Check Boards() const {
    std::string without, unknown;
    for (const NcclProcess& process : survey_.nccl) {
      if (process.has_board) continue;
      std::string& list = process.board_unreadable ? unknown : without;
      list += (list.empty() ? "" : ", ") + to_string(process.pid) + " (" +
              PrintableText(process.name) + ")";
    }
    const auto lines = EnvironmentLines(FindPlugin(input_.plugin, input_.bin_directory),
                                        FindCuptiLibrary(input_.bin_directory));
    if (!without.empty()) {
      return Failed("boards", "NCCL without Mycroft's plugin: pid " + without,
                    "these jobs are not seen",
                    "start them with 'mycroft run -- COMMAND', or set these two lines:\nexport " +
                        lines[0] + "\nexport " + lines[1]);
    }
    if (!unknown.empty()) {
      return Warn("boards", "not known whether there is a board: pid " + unknown,
                  "these jobs may not be seen", "run as root");
    }
    return Ok("boards",
              to_string(survey_.boards) +
                  (survey_.boards == 1 ? " process has a board" : " processes have a board"));
  }

  Check Cupti() const {
    const InstalledFile file = FindCuptiLibrary(input_.bin_directory);
    if (file.exists) return Ok("cupti", file.path);
    if (!has_nvidia_) return Ok("cupti", "no NVIDIA GPU on this host");
    return Warn("cupti", std::string(kCuptiFile) + " is not installed",
                "kernels and copies of the GPU are not seen; NCCL's own kernels are, at level "
                "'kernels'",
                "build with CUDA's headers when a version has it");
  }

  Check Nvml() const {
    const std::vector<FoundLibrary> found = FindLibraries(root_, libraries_, "libnvidia-ml.so");
    if (!found.empty()) return Ok("nvml", found[0].path);
    if (!has_nvidia_) return Ok("nvml", "no NVIDIA GPU on this host");
    return Warn("nvml", "libnvidia-ml.so is not found",
                "clocks, throttling, ECC and NVLink state of the GPUs are not seen",
                "install the driver's library; in a container, NVIDIA_DRIVER_CAPABILITIES=utility");
  }

  Check Infiniband() const {
    if (!has_rdma_) return Ok("infiniband", "no RDMA device on this host");
    std::error_code error;
    size_t verbs = 0;
    for (const auto& entry : fs::directory_iterator(root_ + "/dev/infiniband", error)) {
      verbs += entry.path().filename().string().rfind("uverbs", 0) == 0 ? 1 : 0;
    }
    if (verbs > 0) return Ok("infiniband", to_string(verbs) + " verbs devices");
    return Warn("infiniband", "RDMA devices, but no /dev/infiniband/uverbs*",
                "jobs here cannot use them and fall back to sockets",
                "load ib_uverbs; in a container, pass /dev/infiniband");
  }

  Check Memlock() const {
    std::string small;
    for (const NcclProcess& process : survey_.nccl) {
      if (process.memlock_bytes.value_or(UINT64_MAX) < 64ull << 20) {
        small += (small.empty() ? "pid " : ", ") + to_string(process.pid);
      }
    }
    struct rlimit limit {};
    const bool known = root_.empty() && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
    const std::string own = !known                            ? "not known"
                            : limit.rlim_cur == RLIM_INFINITY ? "unlimited here"
                                                              : BytesText(limit.rlim_cur) + " here";
    if (!has_rdma_) return Ok("memlock", own + "; it matters to RDMA only");
    if (!small.empty()) {
      return Warn("memlock", "less than 64 MiB: " + small,
                  "NCCL cannot register memory for RDMA; jobs fail or fall back",
                  "ulimit -l unlimited (limits.conf, LimitMEMLOCK=, --ulimit memlock=-1)");
    }
    if (known && limit.rlim_cur < 64ull << 20) {
      return Warn("memlock", own, "a job from this shell cannot register memory for RDMA",
                  "ulimit -l unlimited (limits.conf, LimitMEMLOCK=, --ulimit memlock=-1)");
    }
    return Ok("memlock", own);
  }

  Check SharedMemory() const {
    struct statvfs info {};
    if (::statvfs((root_ + "/dev/shm").c_str(), &info) != 0) {
      return Warn("shm", "no /dev/shm", "NCCL cannot use shared memory", "mount a tmpfs there");
    }
    const uint64_t total = static_cast<uint64_t>(info.f_blocks) * info.f_frsize;
    // NCCL needs about 100 MiB for eight GPUs; its kernel events need more.
    if (total < 256ull << 20) {
      return Warn("shm", "/dev/shm has " + BytesText(total),
                  "NCCL may fail in it, above all at level 'kernels'",
                  "a larger one: docker run --shm-size=1g, or an emptyDir of medium Memory");
    }
    return Ok("shm", "/dev/shm has " + BytesText(total));
  }

  Check Pcie() const {
    if (links_.empty()) return Ok("pcie", "no NVIDIA GPU or RDMA device on PCIe");
    std::string below;
    for (const PciLink& link : links_) {
      const bool slow = link.max_speed_gts > 0 && link.speed_gts < link.max_speed_gts;
      const bool narrow = link.max_width > 0 && link.width < link.max_width;
      if (!slow && !narrow) continue;
      char text[128];
      std::snprintf(text, sizeof text, "%s %s %.1f GT/s x%u of %.1f GT/s x%u", link.kind.c_str(),
                    link.address.c_str(), link.speed_gts, link.width, link.max_speed_gts,
                    link.max_width);
      below += (below.empty() ? "" : "; ") + std::string(text);
    }
    if (below.empty()) {
      return Ok("pcie", to_string(gpus_) + " GPUs and " + to_string(nics_) +
                            " RDMA devices at full speed and width");
    }
    return Warn("pcie", below, "copies may be slow",
                "an idle link saves power: look again under load; else reseat, or check the slot");
  }

  Check Iommu() const {
    std::error_code error;
    bool any = false;
    for (const auto& entry : fs::directory_iterator(root_ + "/sys/class/iommu", error)) {
      (void)entry;
      any = true;
    }
    if (!any) return Ok("iommu", "off, or not readable");
    std::set<std::string> types;
    for (const auto& entry : fs::directory_iterator(root_ + "/sys/kernel/iommu_groups", error)) {
      if (const auto type = ReadLine(entry.path().string() + "/type")) types.insert(*type);
    }
    const std::string text =
        types.empty() ? "on" : "on: " + JoinNames({types.begin(), types.end()});
    if (!links_.empty() && (types.count("DMA") != 0 || types.count("DMA-FQ") != 0)) {
      return Warn("iommu", text, "peer-to-peer traffic between GPU and NIC may take a detour",
                  "iommu=pt on the kernel's command line");
    }
    return Ok("iommu", text);
  }

  Check ClockSource() const {
    const auto text =
        ReadLine(root_ + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
    if (!text) return Ok("clock_source", "not readable");
    for (const char* slow : {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen"}) {
      if (*text == slow) {
        return Warn("clock_source", *text,
                    "each reading of the clock costs microseconds in the job",
                    "use tsc: clocksource=tsc, after a look at why the kernel gave it up (dmesg)");
      }
    }
    return Ok("clock_source", *text);
  }

  const DoctorInput& input_;
  const std::string root_;
  const ProcessSurvey survey_;
  const std::vector<std::string> libraries_;
  const std::vector<PciLink> links_;
  uint64_t capabilities_ = 0;
  size_t gpus_ = 0, nics_ = 0;
  bool has_nvidia_ = false, has_rdma_ = false;
  std::vector<Check> checks_;
};

const char* StatusName(CheckStatus status) {
  switch (status) {
    case CheckStatus::kOk:
      return "ok";
    case CheckStatus::kWarn:
      return "warn";
    case CheckStatus::kFail:
      return "fail";
  }
  return "fail";
}

}  // namespace

std::vector<Check> RunChecks(const DoctorInput& input) { return Doctor(input).Run(); }

namespace {

std::string Mark(CheckStatus status, bool colour) {
  const char *mark = "[ok]  ", *code = "32";
  if (status == CheckStatus::kWarn) mark = "[warn]", code = "1;33";
  if (status == CheckStatus::kFail) mark = "[FAIL]", code = "1;31";
  return colour ? "\x1b[" + std::string(code) + "m" + mark + "\x1b[0m" : std::string(mark);
}

std::string CostText(double ns) {
  char text[32];
  std::snprintf(text, sizeof text, ns < 10'000 ? "%.0f ns" : "%.0f us",
                ns < 10'000 ? ns : ns / 1e3);
  return text;
}

std::string RateText(double bytes_per_s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GB/s", bytes_per_s / 1e9);
  return text;
}

}  // namespace

DoctorHardware LookAtHardware(const DoctorInput& input) {
  HardwareOptions options;
  options.proc_root = input.root + "/proc";
  options.sys_root = input.root + "/sys";
  options.probes = input.probes;
  options.gpu_health = input.gpu_health;
  // All GPUs, with a job or without; the driver is given more time than in an agent, as
  // it may have to wake them.
  options.gpu_health.all_gpus = true;
  options.gpu_health.wait_ns = 4'000'000'000;
  HardwareSource source(options);
  std::vector<WatchedProcess> watched;
  for (const ProcessKey& key : SurveyProcesses(input.root).jobs) {
    watched.push_back({key, {}, {}, {}});
  }
  DoctorHardware out;
  HardwareModel model;
  // The poll runs in a thread of its own: a device that hangs must not hang the doctor.
  bool polled = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (uint64_t tick = 1; !polled && std::chrono::steady_clock::now() < deadline; ++tick) {
    if (tick > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    HardwareReading reading = source.Sample(tick, watched);
    Snapshot snapshot;
    snapshot.t_ns = tick;
    snapshot.hardware = std::move(reading.host);
    for (auto& [key, hardware] : reading.processes) {
      ProcessSample process;
      process.key = key;
      process.hardware = std::move(hardware);
      snapshot.processes.push_back(std::move(process));
    }
    if (!snapshot.hardware) continue;
    for (const ProbeSample& probe : snapshot.hardware->probes) {
      polled = polled || probe.name.rfind("poll.", 0) == 0;
      out.probes.push_back(probe);
    }
    model.Apply(snapshot);
  }
  if (!polled) {
    ProbeSample probe;
    probe.name = "poll";
    probe.problem = "a read in /sys or /proc has not come back for 5 s: see dmesg";
    probe.lost = "links, ports, error counters and limits";
    out.probes.push_back(std::move(probe));
  }
  out.devices = DevicesOf(model);
  return out;
}

std::vector<GpuClockState> LookAtClocks() {
  LiveOptions options;
  options.host_samples = false;
  options.hardware = false;
  const absl::StatusOr<std::unique_ptr<LiveSource>> source = LiveSource::Create(options);
  GpuAligner aligner;
  // The first tick reads the operations that the boards still hold, the others those that
  // complete meanwhile.
  for (int tick = 0; source.ok() && tick < 4; ++tick) {
    const absl::StatusOr<std::optional<Snapshot>> next = (*source)->Next();
    if (!next.ok() || !*next || (*source)->process_count() == 0) break;
    aligner.Observe(**next);
  }
  return aligner.Clocks();
}

std::string ClocksText(const std::vector<GpuClockState>& clocks) {
  std::string out = "\nclocks\n";
  if (clocks.empty()) out += "no running job has a GPU whose clock is to be known\n";
  for (const std::string& clock : ClockTexts(clocks)) out += "       " + clock + "\n";
  return out;
}

std::string ChecksText(const std::vector<Check>& checks, bool colour) {
  std::string out;
  for (const Check& check : checks) {
    out += Mark(check.status, colour);
    out += " " + FitCells(check.id, 19) + " " + check.found;
    if (!check.lost.empty()) out += "; lost: " + check.lost;
    // The first line of the fix stays on the line of the check; lines to copy stand alone.
    const size_t end = check.fix.find('\n');
    if (!check.fix.empty()) out += "; do: " + check.fix.substr(0, end);
    out += "\n";
    if (end != std::string::npos) out += check.fix.substr(end + 1) + "\n";
  }
  return out;
}

std::string HardwareText(const DoctorHardware& hardware, bool colour) {
  std::string out = "\nprobes\n";
  for (const ProbeSample& probe : hardware.probes) {
    out += Mark(Degraded(probe) ? CheckStatus::kWarn : CheckStatus::kOk, colour) + " " +
           FitCells(PrintableText(probe.name), 19) + " " +
           (probe.attached.empty() ? "not attached" : PrintableText(probe.attached));
    if (probe.level == ProbeLevel::kDeep) out += probe.armed ? "; deep, armed" : "; deep";
    if (probe.cost_ns) out += "; " + CostText(*probe.cost_ns) + " a hit";
    if (probe.dropped > 0) out += "; " + to_string(probe.dropped) + " dropped";
    if (!probe.problem.empty()) out += "; " + PrintableText(probe.problem);
    if (!probe.lost.empty()) out += "; lost: " + PrintableText(probe.lost);
    out += "\n";
  }
  out += "\nhardware\n";
  if (hardware.devices.empty()) out += "no running job has a GPU or an RDMA device open\n";
  for (const DeviceView& device : hardware.devices) {
    out += Mark(device.problems.empty() ? CheckStatus::kOk : CheckStatus::kWarn, colour) + " " +
           PrintableText(DeviceName(device));
    if (device.bytes_per_s > 0) {
      out += "; " + RateText(device.bytes_per_s) + " at its narrowest, " + device.narrowest;
    }
    for (const PortView& port : device.ports) out += "; " + PrintableText(PortText(port));
    std::string pids;
    for (const ProcessKey& key : device.processes) {
      pids += (pids.empty() ? "; pid " : ", ") + to_string(key.pid);
    }
    out += pids + "\n";
    if (!device.path.empty()) out += "         " + PrintableText(PathText(device)) + "\n";
    if (const std::string health = HealthText(device); !health.empty()) {
      out += "         " + PrintableText(device.gpu->name + ": " + health) + "\n";
    }
    for (const std::string& problem : device.problems) {
      out += "         problem: " + PrintableText(problem) + "\n";
    }
  }
  return out;
}

namespace {

nlohmann::ordered_json GpuJson(const DeviceView& device) {
  using Json = nlohmann::ordered_json;
  if (!device.gpu) return Json();
  const GpuSample& gpu = *device.gpu;
  const auto number = [](const auto& value) { return value ? Json(*value) : Json(); };
  Json links = Json::array();
  for (const NvlinkSample& link : gpu.nvlinks) {
    links.push_back({{"link", link.link},
                     {"active", link.active},
                     {"crc", number(link.crc)},
                     {"replays", number(link.replays)},
                     {"recoveries", number(link.recoveries)}});
  }
  return {{"uuid", gpu.uuid},
          {"name", gpu.name},
          {"index", gpu.index},
          {"mig", gpu.mig},
          {"lost", gpu.lost},
          {"hangs", gpu.hangs},
          {"sm_mhz", number(gpu.sm_mhz)},
          {"sm_max_mhz", number(gpu.sm_max_mhz)},
          {"power_w", number(gpu.power_w)},
          {"power_limit_w", number(gpu.power_limit_w)},
          {"clock_reasons", number(gpu.clock_reasons)},
          {"temperature_c", number(gpu.temperature_c)},
          {"memory_temperature_c", number(gpu.memory_temperature_c)},
          {"ecc_corrected", number(gpu.ecc_corrected)},
          {"ecc_uncorrected", number(gpu.ecc_uncorrected)},
          {"remapped_rows", number(gpu.remapped_rows)},
          {"remap_pending", number(gpu.remap_pending)},
          {"remap_failed", number(gpu.remap_failed)},
          {"pcie_replays", number(gpu.pcie_replays)},
          {"nvlinks", std::move(links)}};
}

}  // namespace

std::string ChecksJson(const std::vector<Check>& checks, const DoctorHardware& hardware,
                       const std::vector<GpuClockState>& clocks) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back({{"id", check.id},
                    {"status", StatusName(check.status)},
                    {"found", check.found},
                    {"lost", check.lost},
                    {"fix", check.fix}});
  }
  Json probes = Json::array();
  for (const ProbeSample& probe : hardware.probes) {
    probes.push_back({{"name", probe.name},
                      {"question", probe.question},
                      {"level", probe.level == ProbeLevel::kDeep ? "deep" : "always"},
                      {"armed", probe.armed},
                      {"attached", probe.attached},
                      {"problem", probe.problem},
                      {"lost", probe.lost},
                      {"cost_ns", probe.cost_ns ? Json(*probe.cost_ns) : Json()},
                      {"hits", probe.hits},
                      {"dropped", probe.dropped}});
  }
  Json devices = Json::array();
  for (const DeviceView& device : hardware.devices) {
    Json path = Json::array(), ports = Json::array(), pids = Json::array();
    for (const HopView& hop : device.path) {
      path.push_back({{"address", hop.address},
                      {"kind", ToString(hop.kind)},
                      {"link", hop.link},
                      {"best", hop.best},
                      {"degraded", hop.degraded},
                      {"acs_redirect", hop.acs_redirect}});
    }
    for (const PortView& port : device.ports) {
      ports.push_back({{"device", port.device},
                       {"port", port.port},
                       {"state", port.state},
                       {"phys_state", port.phys_state},
                       {"rate_gbps", port.rate_gbps},
                       {"netdev", port.netdev}});
    }
    for (const ProcessKey& key : device.processes) pids.push_back(key.pid);
    devices.push_back({{"name", DeviceName(device)},
                       {"address", device.address},
                       {"kind", ToString(device.kind)},
                       {"driver", device.driver},
                       {"numa_node", device.numa_node},
                       {"present", device.present},
                       {"unreachable", device.unreachable},
                       {"bytes_per_s", device.bytes_per_s},
                       {"narrowest", device.narrowest},
                       {"aer_correctable", device.aer_correctable},
                       {"aer_nonfatal", device.aer_nonfatal},
                       {"aer_fatal", device.aer_fatal},
                       {"path", std::move(path)},
                       {"ports", std::move(ports)},
                       {"gpu", GpuJson(device)},
                       {"pids", std::move(pids)},
                       {"problems", device.problems}});
  }
  Json known = Json::array();
  for (const GpuClockState& clock : clocks) {
    known.push_back({{"clock", "gpu"},
                     {"host", clock.host},
                     {"pid", clock.process.pid},
                     {"gpu", clock.gpu},
                     {"rank", clock.rank},
                     {"error_ns", clock.error_ns ? Json(*clock.error_ns) : Json()},
                     {"drift_ppm", clock.drift_ppm},
                     {"drift_error_ppm", clock.drift_error_ppm},
                     {"steps", clock.steps},
                     {"problem", clock.problem}});
  }
  const Json out = {{"schema_version", kDoctorSchemaVersion},
                    {"degraded", ChecksExitCode(checks, false, hardware) != kExitOk},
                    {"checks", std::move(list)},
                    {"probes", std::move(probes)},
                    {"hardware", std::move(devices)},
                    {"clocks", std::move(known)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

int ChecksExitCode(const std::vector<Check>& checks, bool strict, const DoctorHardware& hardware) {
  bool fine = true;
  for (const Check& check : checks) fine = fine && check.status == CheckStatus::kOk;
  for (const ProbeSample& probe : hardware.probes) fine = fine && !Degraded(probe);
  for (const DeviceView& device : hardware.devices) fine = fine && device.problems.empty();
  if (fine) return kExitOk;
  return strict ? kExitFailure : kExitDegraded;
}

int RunDoctor(const Config& config, const Options& options) {
  DoctorInput input;
  input.bin_directory = ExecutableDirectory();
  input.plugin = config.plugin;
  input.getenv = ProcessEnvironment();
  const std::vector<Check> checks = RunChecks(input);
  const absl::StatusOr<std::unique_ptr<BpfKernelProbes>> probes = BpfKernelProbes::Create({});
  if (!probes.ok()) return Fail(probes.status());
  input.probes = probes->get();
  input.gpu_health.nvml_library = DefaultNvmlLibrary();
  // A host without NVIDIA's driver has no Xids to miss.
  if (!input.gpu_health.nvml_library.empty()) input.gpu_health.kernel_log = "/dev/kmsg";
  ProbeSet& set = (*probes)->set();
  const absl::Status measured = set.StartCostMeasurement();
  const auto enough = std::chrono::steady_clock::now() + kMeasureCost;
  DoctorHardware hardware = LookAtHardware(input);
  const std::vector<GpuClockState> clocks = LookAtClocks();
  if (measured.ok()) {
    std::this_thread::sleep_until(enough);
    set.StopCostMeasurement();
    for (const ProbeRow& row : set.Rows()) {
      for (ProbeSample& probe : hardware.probes) {
        if (probe.name == row.name) probe.cost_ns = row.cost_ns;
      }
    }
  } else {
    LogDetail("the cost of probes is not measured: " + StatusText(measured));
  }
  const bool colour = UseColour(config, STDOUT_FILENO);
  const std::string text = options.json ? ChecksJson(checks, hardware, clocks) + "\n"
                                        : ChecksText(checks, colour) +
                                              HardwareText(hardware, colour) + ClocksText(clocks);
  if (!PrintOut(text)) return kExitFailure;
  return ChecksExitCode(checks, options.strict, hardware);
}

}  // namespace mycroft
