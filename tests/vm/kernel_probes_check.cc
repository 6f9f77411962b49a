// SPDX-License-Identifier: Apache-2.0
//
// Checks the host, PCI Express and RDMA core probes inside a virtual machine, where the
// kernel allows what the development machine may not have (kprobes, AER, devices to take
// out, memory to run out of). Prints PASS or FAIL per assertion; exit status 1 if any
// failed. Changes the machine it runs on: in a guest only.
//
//   tools/vm/run 6.1 --topology aer --memory 768M -- build/dev/bin/kernel_probes_check
//
// Needs root, an e1000e behind a root port with AER, modules aer_inject, rdma_rxe, veth.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "userspace/base/clock.h"
#include "userspace/source/probes/host.h"
#include "userspace/source/probes/pcie.h"
#include "userspace/source/probes/probe_set.h"

namespace mycroft {
namespace {

int failures = 0;

bool Check(bool ok, const std::string& what, const std::string& detail = "") {
  std::printf("%s %s%s%s\n", ok ? "PASS" : "FAIL", what.c_str(), detail.empty() ? "" : ": ",
              detail.c_str());
  std::fflush(stdout);
  if (!ok) ++failures;
  return ok;
}

bool Shell(const std::string& command) { return std::system(command.c_str()) == 0; }

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path) << text << std::flush;
}

// Addresses of the functions that a driver has.
std::vector<std::string> DevicesOf(const std::string& driver) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
    const std::string name =
        std::filesystem::read_symlink(entry.path() / "driver", error).filename().string();
    if (name == driver) found.push_back(entry.path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string NetdevOf(const std::string& address) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/sys/bus/pci/devices/" + address + "/net", error))
    return entry.path().filename().string();
  return "";
}

bool WaitFor(const std::function<bool()>& condition, int seconds = 20) {
  for (int i = 0; i < seconds * 20; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return condition();
}

struct Probes {
  std::unique_ptr<ProbeSet> set;
  std::unique_ptr<HostProbes> host;
  std::unique_ptr<PcieProbes> pcie;
  std::vector<PcieEvent> pcie_events;
  std::vector<HostEvent> host_events;

  explicit Probes(std::vector<std::string> objects, std::vector<ProbeMethod> avoid = {}) {
    ProbeSet::Options options;
    options.objects = std::move(objects);
    options.avoid = std::move(avoid);
    const uint64_t begin = MonotonicNs();
    auto created = ProbeSet::Create(options);
    if (!created.ok()) {
      Check(false, "create", created.status().ToString());
      std::exit(1);
    }
    std::printf("# loaded and attached in %.1f s\n", static_cast<double>(MonotonicNs() - begin) / 1e9);
    set = *std::move(created);
    host = std::make_unique<HostProbes>(set.get());
    pcie = std::make_unique<PcieProbes>(set.get());
  }
  ProbeRow Row(const std::string& name) const {
    for (ProbeRow& row : set->Rows())
      if (row.name == name) return row;
    return {};
  }
  void Read() {
    set->ReadEvents([this](const mc_event& header, std::span<const std::byte> record) {
      if (!host->TakeRecord(header, record)) pcie->TakeRecord(header, record);
    });
    for (PcieEvent& event : pcie->TakeEvents()) pcie_events.push_back(std::move(event));
    for (HostEvent& event : host->TakeEvents()) host_events.push_back(std::move(event));
  }
  const PcieEvent* Find(PcieEventKind kind, const std::string& device) {
    Read();
    for (const PcieEvent& event : pcie_events)
      if (event.kind == kind && event.device == device) return &event;
    return nullptr;
  }
  PcieDeviceRow Device(const std::string& address) {
    for (PcieDeviceRow& row : pcie->Devices())
      if (row.address == address) return row;
    return {};
  }
};

void CheckAttached(const Probes& probes, const std::map<std::string, ProbeMethod>& wanted) {
  for (const auto& [name, method] : wanted) {
    const ProbeRow row = probes.Row(name);
    Check(row.method == method, name + " is attached by " + ProbeMethodName(method),
          row.attached + (row.problem.empty() ? "" : " | " + row.problem));
  }
}

// The error is injected as if the root port had received it.
bool Inject(const std::string& address, uint32_t uncorrectable, uint32_t correctable) {
  unsigned domain, bus, device, function;
  if (std::sscanf(address.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
    return false;
  struct {  // struct aer_error_inj, drivers/pci/pcie/aer_inject.c
    uint8_t bus, dev, fn, pad;
    uint32_t uncor_status, cor_status, header_log[4], domain;
  } record = {static_cast<uint8_t>(bus),
              static_cast<uint8_t>(device),
              static_cast<uint8_t>(function),
              0,
              uncorrectable,
              correctable,
              {0x60000040, 0x0000000f, 0xfee00000, 0},
              domain};
  const int fd = open("/dev/aer_inject", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = write(fd, &record, sizeof(record)) == sizeof(record);
  close(fd);
  return ok;
}

void CheckErrors(Probes* probes, const std::string& nic) {
  Check(
      Shell("modprobe aer_inject") && WaitFor([] { return access("/dev/aer_inject", W_OK) == 0; }),
      "aer_inject is loaded");
  for (int i = 0; i < 3; ++i) {
    Check(Inject(nic, 0, 0x40), "a correctable error is injected");
    WaitFor([&] { return probes->Row("pcie.aer").hits == static_cast<uint64_t>(i) + 1; });
  }
  Check(probes->Row("pcie.aer").hits == 3, "each of three correctable errors is counted",
        std::to_string(probes->Row("pcie.aer").hits));
  const PcieEvent* event = probes->Find(PcieEventKind::kAer, nic);
  Check(event != nullptr, "an AER event of the device is told");
  if (event != nullptr) {
    Check(event->severity == PcieSeverity::kCorrected && event->number == 0x40 &&
              event->text.rfind("Bad TLP (corrected", 0) == 0,
          "its severity and kind are right", event->text);
  }
  probes->pcie_events.clear();
  Check(Inject(nic, 0x4000, 0), "an uncorrectable error is injected");
  Check(WaitFor([&] { return probes->Find(PcieEventKind::kAer, nic) != nullptr; }),
        "an uncorrectable error is told");
  event = probes->Find(PcieEventKind::kAer, nic);
  if (event != nullptr) {
    Check(event->severity == PcieSeverity::kNonFatal && (event->number & 0x4000) != 0,
          "its severity and kind are right", event->text);
  }
  Check(WaitFor([&] { return probes->Find(PcieEventKind::kRecovery, nic) != nullptr; }),
        "error recovery is seen");
}

void CheckRemoval(Probes* probes, const std::string& nic) {
  probes->pcie_events.clear();
  WriteFile("/sys/bus/pci/devices/" + nic + "/remove", "1");
  Check(WaitFor([&] { return probes->Find(PcieEventKind::kRemoved, nic) != nullptr; }),
        "removal of " + nic + " is seen");
  if (const PcieEvent* event = probes->Find(PcieEventKind::kRemoved, nic))
    Check(event->text == "removed from the bus (8086:10d3)", "with its identity", event->text);
  WriteFile("/sys/bus/pci/rescan", "1");
  WaitFor([&] { return !NetdevOf(nic).empty(); });
}

// Bringing up an interface maps its receive buffers; sending maps packets.
void CheckDma(Probes* probes, const std::string& nic) {
  probes->pcie->Watch({nic});
  const std::string netdev = NetdevOf(nic);
  Shell("ip link set " + netdev + " down");
  const PcieDeviceRow before = probes->Device(nic);
  Check(Shell("ip link set " + netdev + " up"), "interface " + netdev + " is up");
  WaitFor(
      [&] { return probes->Device(nic).dma_maps.value_or(0) > before.dma_maps.value_or(0) + 100; });
  const PcieDeviceRow after = probes->Device(nic);
  const uint64_t maps = after.dma_maps.value_or(0) - before.dma_maps.value_or(0);
  const uint64_t bytes = after.dma_bytes.value_or(0) - before.dma_bytes.value_or(0);
  // 255 receive buffers of 1,522 bytes or more.
  Check(maps > 100 && bytes > maps * 1000, "DMA mappings of " + nic + " are counted",
        std::to_string(maps) + " maps, " + std::to_string(bytes) + " bytes");
  Check(after.dma_failures == 0u, "none failed");
  const ProbeMethod method = probes->Row("pcie.dma").method;
  if (method == ProbeMethod::kTracepoint) {
    Check(!after.dma_ns.has_value(), "their time is empty by tracepoint");
  } else {
    const uint64_t ns = after.dma_ns.value_or(0) - before.dma_ns.value_or(0);
    Check(ns > maps * 20 && ns < maps * 100'000'000, "their time is counted",
          std::to_string(maps == 0 ? 0 : ns / maps) + " ns each");
  }
}

void CheckInterrupts(Probes* probes) {
  // The root file system comes through this one.
  const std::vector<std::string> devices = DevicesOf("virtio-pci");
  probes->pcie->Watch(devices);
  Shell("cat /usr/share/common-licenses/* /etc/* >/dev/null 2>&1");
  uint64_t count = 0, ns = 0;
  for (const PcieDeviceRow& row : probes->pcie->Devices()) {
    count += row.interrupts.value_or(0);
    ns += row.interrupt_ns.value_or(0);
  }
  Check(count > 10 && ns > count * 20, "interrupts of devices are counted with their time",
        std::to_string(count) + " interrupts, " + std::to_string(ns) + " ns");
}

void CheckRdma(Probes* probes) {
  Check(Shell("ip link add mcva type veth peer name mcvb && ip link set mcva up && "
              "ip link set mcvb up && rdma link add mcrxe type rxe netdev mcva"),
        "an RDMA device over a veth pair");
  // Not before the port is active: then going down is a change.
  WaitFor([] {
    std::string state;
    std::getline(std::ifstream("/sys/class/infiniband/mcrxe/ports/1/state"), state);
    return state.find("ACTIVE") != std::string::npos;
  });
  probes->Read();
  probes->pcie_events.clear();
  Shell("ip link set mcva down");
  Check(WaitFor([&] {
          probes->Read();
          for (const PcieEvent& event : probes->pcie_events) {
            if (event.kind == PcieEventKind::kRdmaPort && event.device == "mcrxe" &&
                event.code == 10 && event.number == 1) {
              return true;
            }
          }
          return false;
        }),
        "an RDMA port that goes down is told");
  Shell("rdma link delete mcrxe; ip link del mcva");
}

void CheckSleep(Probes* probes) {
  int fds[2];
  if (pipe(fds) != 0) return;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char c;
    _exit(read(fds[0], &c, 1) == 1 ? 7 : 1);
  }
  const auto pid = static_cast<uint32_t>(child);
  probes->host->Watch(std::vector<HostWatch>{{.pid = pid, .start_time = 1, .tids = {}}});
  const absl::Status armed =
      probes->host->ArmStacks(std::vector<uint32_t>{pid}, MonotonicNs() + 120'000'000'000);
  Check(armed.ok(), "stacks of sleep are armed", armed.ToString());
  std::vector<ThreadDelayRow> rows;
  WaitFor(
      [&] {
        rows = probes->host->Threads(MonotonicNs());
        return rows.size() == 1 && !rows[0].stack.empty();
      },
      60);
  std::string stack;
  if (!rows.empty())
    for (const std::string& name : rows[0].stack) stack += " " + name;
  Check(stack.find("pipe_read") != std::string::npos, "the stack of a sleep has its function",
        stack);
  Check(!rows.empty() && rows[0].off_cpu_ns > 1'000'000, "the sleep is counted");
  if (write(fds[1], "x", 1) != 1) return;
  waitpid(child, nullptr, 0);
  probes->Read();
  Check(probes->host_events.size() == 1 && probes->host_events[0].pid == pid &&
            probes->host_events[0].text == "exited with status 7",
        "the exit is told", probes->host_events.empty() ? "none" : probes->host_events[0].text);
  probes->host_events.clear();
  (void)probes->host->ArmStacks({}, 0);
}

// A process that takes memory until it is killed for it.
void CheckMemory(Probes* probes) {
  int fds[2];
  if (pipe(fds) != 0) return;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    WriteFile("/proc/self/oom_score_adj", "1000");
    char c;
    if (read(fds[0], &c, 1) != 1) _exit(1);
    for (;;) {
      constexpr size_t kBytes = 16 << 20;
      void* p = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED) pause();
      std::memset(p, 1, kBytes);
    }
  }
  const auto pid = static_cast<uint32_t>(child);
  probes->host->Watch(std::vector<HostWatch>{{.pid = pid, .start_time = 1, .tids = {}}});
  if (write(fds[1], "x", 1) != 1) return;
  int status = 0;
  waitpid(child, &status, 0);
  probes->Read();
  const auto rows = probes->host->Processes();
  Check(rows.size() == 1 && rows[0].reclaims.value_or(0) > 0 && rows[0].reclaim_ns.value_or(0) > 0,
        "direct reclaim is counted",
        rows.empty() ? ""
                     : std::to_string(rows[0].reclaims.value_or(0)) + " times, " +
                           std::to_string(rows[0].reclaim_ns.value_or(0)) + " ns");
  bool oom = false, exit = false;
  for (const HostEvent& event : probes->host_events) {
    std::printf("# %u %s\n", event.pid, event.text.c_str());
    oom = oom || (event.kind == HostEventKind::kOomKill && event.pid == pid && event.number == pid);
    exit = exit || (event.kind == HostEventKind::kExit && event.pid == pid &&
                    event.text == "killed by signal 9 (Killed), chosen by the OOM killer");
  }
  Check(oom, "the choice of the OOM killer is told");
  Check(exit, "the end by the OOM killer is told");
}

int Main() {
  Shell("modprobe -a e1000e rdma_rxe ib_uverbs veth");
  const std::vector<std::string> nics = DevicesOf("e1000e");
  if (!Check(!nics.empty(), "there is an e1000e")) return 1;
  const std::string nic = nics.back();
  {
    Probes probes({"host", "pcie", "rdma"});
    CheckAttached(probes, {{"pcie.aer", ProbeMethod::kTracepoint},
                           {"pcie.removal", ProbeMethod::kFentry},
                           {"pcie.recovery", ProbeMethod::kFentry},
                           {"pcie.dma", ProbeMethod::kFentry},
                           {"pcie.irq", ProbeMethod::kTracepoint},
                           {"pcie.iommu", ProbeMethod::kTracepoint},
                           {"rdma.port_events", ProbeMethod::kFentry},
                           {"rdma.qp_events", ProbeMethod::kFentry},
                           {"host.delay", ProbeMethod::kTracepoint},
                           {"host.sleep_stack", ProbeMethod::kTracepoint},
                           {"host.reclaim", ProbeMethod::kTracepoint},
                           {"host.oom", ProbeMethod::kTracepoint},
                           {"host.exit", ProbeMethod::kTracepoint},
                           {"host.retransmit", ProbeMethod::kTracepoint}});
    CheckInterrupts(&probes);
    CheckDma(&probes, nic);
    CheckErrors(&probes, nic);
    CheckRemoval(&probes, nic);
    CheckRdma(&probes);
    CheckSleep(&probes);
    CheckMemory(&probes);
    for (const ProbeRow& row : probes.set->Rows())
      if (row.dropped != 0) Check(false, row.name + " lost nothing", std::to_string(row.dropped));
  }
  // The poorer ways, each for itself.
  {
    Probes probes({"pcie", "rdma"}, {ProbeMethod::kFentry});
    const bool dma_tracepoints = access("/sys/kernel/tracing/events/dma", F_OK) == 0;
    CheckAttached(probes,
                  {{"pcie.removal", ProbeMethod::kKprobe},
                   {"pcie.recovery", ProbeMethod::kKprobe},
                   {"pcie.dma", dma_tracepoints ? ProbeMethod::kTracepoint : ProbeMethod::kKprobe},
                   {"rdma.port_events", ProbeMethod::kKprobe},
                   {"rdma.qp_events", ProbeMethod::kKprobe}});
    CheckDma(&probes, nic);
    CheckRemoval(&probes, nic);
    CheckRdma(&probes);
    if (dma_tracepoints) {
      Probes kprobes({"pcie"}, {ProbeMethod::kFentry, ProbeMethod::kTracepoint});
      CheckAttached(kprobes, {{"pcie.dma", ProbeMethod::kKprobe}});
      CheckDma(&kprobes, nic);
    }
  }
  std::printf("%s\n", failures == 0 ? "all passed" : "FAILED");
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mycroft

int main() { return mycroft::Main(); }
