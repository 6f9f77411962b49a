// SPDX-License-Identifier: Apache-2.0
//
// A host made of files, healthy at first; each test breaks one thing.
#include "tools/mycroft/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/mycroft/system.h"
#include "tools/mycroft/testing_process.h"
#include "userspace/source/testing/fixture_host.h"
#include "userspace/source/testing/nvml_script.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    host_.Write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
    host_.Write("proc/sys/kernel/perf_event_paranoid", "2\n");
    host_.Write("proc/sys/kernel/unprivileged_bpf_disabled", "2\n");
    host_.Write("proc/mounts", "proc /proc proc rw,nosuid 0 0\n");
    host_.Write("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
    host_.Write("sys/kernel/btf/vmlinux", "x");
    host_.Write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
    host_.Write("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    host_.Write("dev/shm/.keep", "");
    host_.Write("prefix/lib/libnccl-profiler-mycroft.so", "x");
    std::filesystem::create_directories(host_.path() + "/prefix/bin");
  }

  void AddProcess(uint32_t pid, const std::string& maps, bool board,
                  const std::string& environ = "") {
    const std::string folder = "proc/" + std::to_string(pid) + "/";
    host_.Write(
        folder + "stat",
        std::to_string(pid) + " (python3) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0\n");
    host_.Write(folder + "maps", maps);
    host_.Write(folder + "environ", environ);
    host_.Write(folder + "limits",
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max locked memory         8388608              8388608              bytes     \n");
    if (board) {
      host_.Link(folder + "fd/5", "/memfd:mycroft-board (deleted)");
    } else {
      host_.Link(folder + "fd/0", "/dev/null");
    }
  }

  void AddPci(const std::string& address, const std::string& vendor, const std::string& pci_class,
              const std::string& speed, const std::string& width) {
    const std::string folder = "sys/bus/pci/devices/" + address + "/";
    host_.Write(folder + "vendor", vendor + "\n");
    host_.Write(folder + "class", pci_class + "\n");
    host_.Write(folder + "current_link_speed", speed + "\n");
    host_.Write(folder + "max_link_speed", "32.0 GT/s PCIe\n");
    host_.Write(folder + "current_link_width", width + "\n");
    host_.Write(folder + "max_link_width", "16\n");
  }

  std::vector<Check> Run() {
    DoctorInput input;
    input.root = host_.path();
    input.bin_directory = host_.path() + "/prefix/bin";
    input.getenv = [this](const std::string& name) -> std::optional<std::string> {
      const auto it = environment_.find(name);
      return it == environment_.end() ? std::nullopt : std::optional<std::string>(it->second);
    };
    return RunChecks(input);
  }

  Check Of(const std::string& id) {
    for (const Check& check : Run()) {
      if (check.id == id) return check;
    }
    ADD_FAILURE() << id;
    return {};
  }

  // Everything but this check is fine.
  Check Only(const std::string& id) {
    Check found;
    for (const Check& check : Run()) {
      if (check.id == id) {
        found = check;
      } else {
        EXPECT_EQ(check.status, CheckStatus::kOk) << check.id << ": " << check.found;
      }
    }
    EXPECT_FALSE(found.lost.empty()) << id;
    return found;
  }

  TemporaryFolder host_;
  std::map<std::string, std::string> environment_;
};

constexpr char kNcclMaps[] =
    "7f0000000000-7f0000100000 r-xp 00000000 08:01 123 /usr/lib/libc.so.6\n"
    "7f1000000000-7f1000100000 r-xp 00000000 08:01 124 /opt/nccl/libnccl.so.2.28.9\n";

TEST_F(DoctorTest, AHealthyHost) {
  for (const Check& check : Run()) {
    EXPECT_EQ(check.status, CheckStatus::kOk) << check.id << ": " << check.found;
    EXPECT_EQ(check.lost, "") << check.id;
  }
  EXPECT_EQ(ChecksExitCode(Run(), true), 0);
  EXPECT_THAT(ChecksText(Run(), false), Not(HasSubstr("warn")));
}

TEST_F(DoctorTest, ExitCodes) {
  std::filesystem::remove(host_.path() + "/sys/kernel/btf/vmlinux");
  EXPECT_EQ(ChecksExitCode(Run(), false), 4);
  EXPECT_EQ(ChecksExitCode(Run(), true), 1);
}

TEST_F(DoctorTest, OneProblemAtATime) {
  std::filesystem::remove(host_.path() + "/sys/kernel/btf/vmlinux");
  EXPECT_THAT(Only("btf").fix, HasSubstr("CONFIG_DEBUG_INFO_BTF"));
  host_.Write("sys/kernel/btf/vmlinux", "x");

  host_.Write("proc/sys/kernel/osrelease", "4.18.0-553.el8\n");
  Only("kernel");
  host_.Write("proc/sys/kernel/osrelease", "6.8.0\n");

  host_.Write("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
  Only("lockdown");
  host_.Write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");

  std::filesystem::remove(host_.path() + "/prefix/lib/libnccl-profiler-mycroft.so");
  EXPECT_EQ(Only("plugin").status, CheckStatus::kFail);
  host_.Write("prefix/lib/libnccl-profiler-mycroft.so", "x");

  host_.Write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  EXPECT_THAT(Only("clock_source").found, HasSubstr("hpet"));
}

TEST_F(DoctorTest, WithoutCapabilities) {
  host_.Write("proc/self/status", "CapEff:\t0000000000000000\n");
  host_.Write("proc/sys/kernel/perf_event_paranoid", "3\n");
  host_.Write("proc/mounts", "proc /proc proc rw,hidepid=invisible 0 0\n");
  const Check capabilities = Of("capabilities");
  EXPECT_THAT(capabilities.found, HasSubstr("CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_BPF"));
  EXPECT_THAT(capabilities.lost, HasSubstr("jobs of other users"));
  EXPECT_EQ(Of("perf_event_paranoid").status, CheckStatus::kWarn);
  EXPECT_EQ(Of("unprivileged_bpf").status, CheckStatus::kWarn);
  EXPECT_THAT(Of("proc_access").found, HasSubstr("hidepid=invisible"));
}

TEST_F(DoctorTest, NcclWithoutABoardGetsTheTwoLines) {
  AddProcess(4711, kNcclMaps, false);
  const Check boards = Only("boards");
  EXPECT_EQ(boards.status, CheckStatus::kFail);
  EXPECT_THAT(boards.found, HasSubstr("4711 (python3)"));
  const std::string text = ChecksText(Run(), false);
  EXPECT_THAT(text, HasSubstr("\nexport NCCL_PROFILER_PLUGIN=" + host_.path() +
                              "/prefix/lib/libnccl-profiler-mycroft.so\n"));
  EXPECT_THAT(text, HasSubstr("\nexport CUDA_INJECTION64_PATH=" + host_.path() +
                              "/prefix/lib/libmycroft-cupti.so\n"));
  EXPECT_THAT(Of("nccl").found, HasSubstr("2.28.9 (/opt/nccl/libnccl.so.2.28.9)"));
}

TEST_F(DoctorTest, NcclWithABoardIsFine) {
  AddProcess(4711, kNcclMaps, true);
  for (const Check& check : Run()) EXPECT_EQ(check.status, CheckStatus::kOk) << check.id;
  EXPECT_EQ(Of("boards").found, "1 process has a board");
}

TEST_F(DoctorTest, OldNccl) {
  AddProcess(4711, "7f10-7f20 r-xp 0 08:01 124 /opt/libnccl.so.2.21.5\n", true);
  EXPECT_THAT(Only("nccl").fix, HasSubstr("2.27"));
}

TEST_F(DoctorTest, TheVersionIsReadFromTheLibrary) {
  AddProcess(4711, "7f10-7f20 r-xp 0 08:01 124 /opt/libnccl.so.2\n", true);
  std::string library(3 << 20, 'x');
  library.replace((1 << 20) - 5, 27, "NCCL version 2.29.7+cuda12.");  // across a chunk
  host_.Write("opt/libnccl.so.2", library);
  EXPECT_THAT(Of("nccl").found, HasSubstr("2.29.7 (/opt/libnccl.so.2)"));
}

TEST_F(DoctorTest, AnotherPluginInTheWay) {
  AddProcess(4711, kNcclMaps, false,
             std::string("A=b\0NCCL_PROFILER_PLUGIN=/opt/inspector.so\0C=d\0", 47));
  const Check taken = Of("plugin_taken");
  EXPECT_EQ(taken.status, CheckStatus::kWarn);
  EXPECT_THAT(taken.found, HasSubstr("pid 4711: NCCL_PROFILER_PLUGIN is /opt/inspector.so"));
  EXPECT_THAT(taken.fix, HasSubstr("MYCROFT_CHAIN_PLUGIN"));
  environment_["NCCL_PROFILER_PLUGIN"] = "inspector";
  EXPECT_THAT(Of("plugin_taken").found, HasSubstr("'inspector' here"));
}

TEST_F(DoctorTest, GpuWithoutLibraries) {
  AddPci("0000:17:00.0", "0x10de", "0x030200", "32.0 GT/s PCIe", "16");
  const Check nvml = Of("nvml");
  EXPECT_EQ(nvml.status, CheckStatus::kWarn);
  EXPECT_EQ(Of("cupti").status, CheckStatus::kWarn);
  EXPECT_EQ(Of("pcie").status, CheckStatus::kOk);
  host_.Write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.183", "x");
  host_.Link("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.535.183");
  host_.Write("prefix/lib/libmycroft-cupti.so", "x");
  EXPECT_EQ(Of("nvml").status, CheckStatus::kOk);
  EXPECT_EQ(Of("cupti").status, CheckStatus::kOk);
}

TEST_F(DoctorTest, NarrowLinksAreNamed) {
  AddPci("0000:18:00.0", "0x15b3", "0x020700", "32.0 GT/s PCIe", "8");
  host_.Write("sys/bus/pci/devices/0000:18:00.0/infiniband/mlx5_0/x", "");
  host_.Write("sys/class/infiniband/mlx5_0/x", "");
  host_.Write("dev/infiniband/uverbs0", "");
  const Check pcie = Of("pcie");
  EXPECT_EQ(pcie.status, CheckStatus::kWarn);
  EXPECT_THAT(pcie.found, HasSubstr("NIC 0000:18:00.0 32.0 GT/s x8 of 32.0 GT/s x16"));
  EXPECT_EQ(Of("infiniband").status, CheckStatus::kOk);
  std::filesystem::remove(host_.path() + "/dev/infiniband/uverbs0");
  EXPECT_EQ(Of("infiniband").status, CheckStatus::kWarn);
}

TEST_F(DoctorTest, LittleLockedMemoryMattersToRdma) {
  AddProcess(4711, kNcclMaps, true);
  EXPECT_EQ(Of("memlock").status, CheckStatus::kOk);
  host_.Write("sys/class/infiniband/mlx5_0/x", "");
  host_.Write("dev/infiniband/uverbs0", "");
  EXPECT_THAT(Only("memlock").found, HasSubstr("pid 4711"));
}

TEST_F(DoctorTest, IommuWithTranslation) {
  AddPci("0000:17:00.0", "0x10de", "0x030200", "32.0 GT/s PCIe", "16");
  host_.Write("usr/lib/libnvidia-ml.so.1", "x");
  host_.Write("prefix/lib/libmycroft-cupti.so", "x");
  host_.Write("sys/class/iommu/dmar0/x", "");
  host_.Write("sys/kernel/iommu_groups/7/type", "identity\n");
  EXPECT_EQ(Of("iommu").status, CheckStatus::kOk);
  host_.Write("sys/kernel/iommu_groups/8/type", "DMA-FQ\n");
  EXPECT_THAT(Only("iommu").fix, HasSubstr("iommu=pt"));
}

TEST_F(DoctorTest, AnEmptyHostDoesNotCrash) {
  DoctorInput input;
  input.root = "/nonexistent";
  input.getenv = [](const std::string&) { return std::nullopt; };
  EXPECT_EQ(ChecksExitCode(RunChecks(input), false), 4);
}

TEST_F(DoctorTest, HostileNamesDoNotReachTheTerminal) {
  AddProcess(4711, "7f10-7f20 r-xp 0 08:01 124 /opt/\x1b[2J/libnccl.so.2.28.9\n", false,
             std::string("NCCL_PROFILER_PLUGIN=\x1b]0;x\x07"));
  for (char c : ChecksText(Run(), false)) {
    ASSERT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << int{c};
  }
  EXPECT_FALSE(nlohmann::json::parse(ChecksJson(Run()), nullptr, false).is_discarded());
}

TEST_F(DoctorTest, Json) {
  AddProcess(4711, kNcclMaps, false);
  const nlohmann::json json = nlohmann::json::parse(ChecksJson(Run()));
  EXPECT_EQ(json.at("schema_version"), 1);
  EXPECT_EQ(json.at("degraded"), true);
  bool boards = false;
  for (const auto& check : json.at("checks")) {
    if (check.at("id") != "boards") continue;
    boards = true;
    EXPECT_EQ(check.at("status"), "fail");
    EXPECT_FALSE(check.at("fix").get<std::string>().empty());
  }
  EXPECT_TRUE(boards);
}

TEST(FindLibraries, FollowsLinksAndReadsVersions) {
  TemporaryFolder root;
  root.Write("usr/local/cuda-12.8/extras/CUPTI/lib64/libcupti.so.2025.1.1", "x");
  root.Link("usr/local/cuda-12.8/extras/CUPTI/lib64/libcupti.so.12", "libcupti.so.2025.1.1");
  root.Link("usr/local/cuda", "cuda-12.8");
  const auto found = FindLibraries(root.path(), LibraryDirectories(root.path(), ""), "libcupti.so");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].version, "2025.1.1");
  EXPECT_EQ(VersionOfName("libnccl.so"), "");
  EXPECT_EQ(VersionOfName("libnccl.so.2"), "");
  EXPECT_EQ(VersionOfName("libnccl.so.2.28.9"), "2.28.9");
  EXPECT_EQ(VersionOfName("libnccl.so.2.x"), "");
}

TEST(DoctorHardwareTest, ProbesAndDevicesOfAJob) {
  FixtureHost host;
  const std::string fast = "32.0 GT/s PCIe", root = "0000:3a:00.0", gpu = "0000:3b:00.0";
  const std::string config = FixtureHost::Config(0x10de, 0x2330, 0, 5, true, false);
  host.AddPci({root}, "0x060400", fast, "16", fast, "16",
              FixtureHost::Config(0x8086, 0x352a, 4, 1, false, false), "pcieport");
  host.AddPci({root, gpu}, "0x030200", fast, "16", fast, "16", config, "nvidia");
  host.AddNvidia(0, gpu);
  host.AddRdma("rxeA", "uverbs0", "", "va");
  host.AddProcess(7, {"/memfd:mycroft-board (deleted)", "/dev/nvidia0", "/dev/infiniband/uverbs0"});
  host.AddProcess(8, {"/dev/nvidia0"});  // no job
  DoctorInput input;
  input.root = host.root();
  DoctorHardware found = LookAtHardware(input);
  ASSERT_EQ(found.devices.size(), 2u);
  EXPECT_EQ(found.probes.size(), 8u);
  EXPECT_EQ(ChecksExitCode({}, false, found), 0);
  std::string text = HardwareText(found, false);
  EXPECT_THAT(text, Not(HasSubstr("warn")));
  EXPECT_THAT(text, HasSubstr("[ok]   poll.pcie_link"));
  EXPECT_THAT(text, HasSubstr("[ok]   GPU 0000:3b:00.0; 63.0 GB/s at its narrowest, 0000:3b:00.0; "
                              "pid 7\n         0000:3b:00.0 32 GT/s x16 > 0000:3a:00.0 32 GT/s "
                              "x16\n"));
  EXPECT_THAT(text, HasSubstr("[ok]   rxeA; port 1 ACTIVE LinkUp 400 Gb/s va; pid 7\n"));

  // A narrow link, a port that is down, limits that cannot be read, a kernel probe that
  // could not attach.
  host.Write(host.PciFolder(gpu) + "current_link_width", "8\n");
  host.Write(host.PciFolder(root) + "current_link_width", "8\n");
  host.Write("sys/class/infiniband/rxeA/ports/1/state", "1: DOWN\n");
  host.Remove("proc/7/limits");
  class OneProbe : public KernelProbes {
   public:
    void Watch(const std::vector<WatchedProcess>& processes,
               const std::vector<std::string>&) override {
      EXPECT_EQ(processes.size(), 1u);
    }
    KernelReadings Collect(uint64_t) override {
      ProbeSample probe;
      probe.name = "verbs.post_send";
      probe.level = ProbeLevel::kDeep;
      probe.problem = "no\x1b[31m BTF";
      probe.lost = "what each queue pair sends";
      probe.cost_ns = 553;
      KernelReadings readings;
      readings.probes = {probe};
      return readings;
    }
    void ArmDeep(const std::vector<ProcessKey>&, uint64_t) override {}
  } probes;
  input.probes = &probes;
  found = LookAtHardware(input);
  EXPECT_EQ(ChecksExitCode({}, false, found), 4);
  EXPECT_EQ(ChecksExitCode({}, true, found), 1);
  text = HardwareText(found, false);
  EXPECT_THAT(text, HasSubstr("[warn] verbs.post_send     not attached; deep; 553 ns a hit; "
                              "no?[31m BTF; lost: what each queue pair sends\n"));
  EXPECT_THAT(text, HasSubstr("[warn] poll.limits"));
  EXPECT_THAT(text, HasSubstr("[warn] GPU 0000:3b:00.0; 31.5 GB/s"));
  EXPECT_THAT(text, HasSubstr("problem: the link of GPU 0000:3b:00.0 runs at 32 GT/s x8, both ends "
                              "could do 32 GT/s x16"));
  EXPECT_THAT(text, HasSubstr("problem: port 1 of rxeA is DOWN"));

  const auto json = nlohmann::json::parse(ChecksJson({}, found));
  EXPECT_EQ(json["degraded"], true);
  ASSERT_EQ(json["probes"].size(), 9u);
  const auto probe = json["probes"].front();
  EXPECT_EQ(probe["name"], "verbs.post_send");
  EXPECT_EQ(probe["level"], "deep");
  EXPECT_EQ(probe["armed"], false);
  EXPECT_EQ(probe["cost_ns"], 553.0);
  EXPECT_EQ(probe["lost"], "what each queue pair sends");
  ASSERT_EQ(json["hardware"].size(), 2u);
  const auto device = json["hardware"][0];
  EXPECT_EQ(device["address"], gpu);
  EXPECT_EQ(device["path"].size(), 2u);
  EXPECT_EQ(device["path"][0]["degraded"], true);
  EXPECT_EQ(device["pids"], nlohmann::json::array({7}));
  EXPECT_EQ(json["hardware"][1]["ports"][0]["state"], "DOWN");
}

TEST(DoctorHardwareTest, GpuAsItsDriverSeesIt) {
  FixtureHost host;
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  script.Set(0, "link 0", "1 0 0 0");
  script.Write();
  const std::string fast = "32.0 GT/s PCIe", gpu = "0000:3b:00.0";
  host.AddPci({gpu}, "0x030200", fast, "16", fast, "16",
              FixtureHost::Config(0x10de, 0x2330, 0, 5, true, false), "nvidia");
  host.AddNvidia(0, gpu);
  host.AddProcess(7, {"/memfd:mycroft-board (deleted)", "/dev/nvidia0"});
  host.Write("kmsg", "6,1,1,-;hello\n");
  DoctorInput input;
  input.root = host.root();
  input.gpu_health.nvml_library = MYCROFT_FAKE_NVML_LIBRARY;
  input.gpu_health.kernel_log = host.root() + "/kmsg";
  DoctorHardware found = LookAtHardware(input);
  EXPECT_EQ(ChecksExitCode({}, false, found), 0) << HardwareText(found, false);
  std::string text = HardwareText(found, false);
  EXPECT_THAT(text, HasSubstr("[ok]   poll.nvml           " MYCROFT_FAKE_NVML_LIBRARY
                              ", driver 550.54.15, 1 GPUs"));
  EXPECT_THAT(text, HasSubstr("[ok]   poll.xid            read " + host.root() + "/kmsg"));
  EXPECT_THAT(text, HasSubstr("         NVIDIA H100 80GB HBM3: 1980 of 1980 MHz, 620 of 700 W, "
                              "61 C, 1 of 1 NVLinks\n"));
  const auto json = nlohmann::json::parse(ChecksJson({}, found));
  EXPECT_EQ(json["hardware"][0]["gpu"]["uuid"], "GPU-0");
  EXPECT_EQ(json["hardware"][0]["gpu"]["sm_mhz"], 1980);

  script.Set(0, "reasons", 0x40);
  script.Set(0, "temperature", 90);
  script.Set(0, "ecc_uncorrected", 2);
  script.Write();
  input.gpu_health.kernel_log = host.root() + "/nothing";
  found = LookAtHardware(input);
  EXPECT_EQ(ChecksExitCode({}, false, found), 4);
  text = HardwareText(found, false);
  EXPECT_THAT(text, HasSubstr("problem: thermal slowdown at 90 C"));
  EXPECT_THAT(text, HasSubstr("problem: 2 uncorrected ECC errors"));
  EXPECT_THAT(text, HasSubstr("[warn] poll.xid            not attached"));

  input.gpu_health.nvml_library = "/nowhere/libnvidia-ml.so.1";
  text = HardwareText(LookAtHardware(input), false);
  EXPECT_THAT(text, HasSubstr("[warn] poll.nvml           not attached; NVML cannot be loaded"));
}

TEST(DoctorHardwareTest, NoJobNoDevice) {
  const FixtureHost host;
  DoctorInput input;
  input.root = host.root();
  const DoctorHardware found = LookAtHardware(input);
  EXPECT_TRUE(found.devices.empty());
  EXPECT_EQ(ChecksExitCode({}, true, found), 0);
  EXPECT_THAT(HardwareText(found, false), HasSubstr("no running job has a GPU"));
}

TEST(DoctorClocks, TellTheBoundOrWhyThereIsNone) {
  EXPECT_THAT(ClocksText({}), HasSubstr("no running job has a GPU whose clock is to be known"));
  GpuClockState known, unknown;
  known.host = unknown.host = "node1";
  known.process.pid = unknown.process.pid = 77;
  known.rank = 3;
  known.error_ns = 12'000;
  unknown.rank = 4;
  unknown.problem = "no kernel of NCCL was seen yet";
  const std::string text = ClocksText({known, unknown});
  EXPECT_THAT(text, HasSubstr("GPU clock of rank 3 (node1, pid 77): \u00b112 us"));
  EXPECT_THAT(text, HasSubstr("GPU clock of rank 4 (node1, pid 77): not aligned: no kernel"));
  const auto json = nlohmann::json::parse(ChecksJson({}, {}, {known, unknown}))["clocks"];
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["error_ns"], 12'000);
  EXPECT_EQ(json[1]["error_ns"], nullptr);
  EXPECT_EQ(json[1]["problem"], unknown.problem);
}

}  // namespace
}  // namespace mycroft
