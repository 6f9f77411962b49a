// SPDX-License-Identifier: Apache-2.0
//
// lab_fault_run LAB PLUGIN ARGUMENTS...: runs `LAB job ARGUMENTS` under the plugin,
// watches it as the agent does, records it, and holds against the truth that the
// job wrote:
//   - the culprits by rank and component, the kind, and how fast the verdict came;
//   - nothing before the fault and nothing in a healthy job;
//   - the replay of the recording gives the very same incidents.
// A case that fails is run once more, loudly: the machine may have stalled for
// reasons of its own. Exit 0 right, 1 wrong, 2 usage.
//
// MYCROFT_EXPECT_EVIDENCE=TEXT: the evidence or the summary must say this, too.
// MYCROFT_NVML=LIBRARY: the GPUs of the ranks as this stand-in libnvidia-ml tells them;
// MYCROFT_NVML_FAULT="RANK KEY VALUE[,KEY VALUE...]" changes what it says of one of them when
// the fault begins.
// MYCROFT_MACHINE=1: the ranks run on a machine of files, where each has a GPU and a NIC of
// its own below a root port of its own (class Machine); needs root. MYCROFT_MACHINE_FAULT is
// what becomes of it when the fault begins: "link RANK SPEED", the link of the GPU; "pauses
// RANK", whose NIC asks the network to pause while its PCIe path carries all it can.
// MYCROFT_EXPECT_CULPRIT="RANK COMPONENT" is right in place of what the job says, where the
// lab can make only the symptom.
// MYCROFT_KEEP_RECORDING=FILE keeps the recording and writes FILE.json, the verdict.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "userspace/attribute/pipeline.h"
#include "userspace/base/clock.h"
#include "userspace/decode/live_source.h"
#include "userspace/report/verdict.h"
#include "userspace/source/testing/fixture_host.h"
#include "userspace/source/testing/nvml_script.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr double kStuckVerdictSeconds = 3.0;
constexpr size_t kSlowVerdictIterations = 5;
constexpr int kRanks = 4;  // where GPUs or a machine are made for them
constexpr const char* kDevices = "/dev/infiniband";

// Of the environment; nullptr: not set, or empty.
const char* Setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != 0 ? value : nullptr;
}

std::string Describe(const Incident& incident, uint64_t zero) {
  auto seconds = [&](uint64_t t) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.2f",
                  static_cast<double>(static_cast<int64_t>(t - zero)) / 1e9);
    return std::string(text);
  };
  std::string text = std::string(ToString(incident.kind)) + " [";
  for (const Culprit& c : incident.culprits) {
    text += " rank " + std::to_string(c.rank) + " " + ToString(c.component);
  }
  text += " ] onset " + seconds(incident.onset_ns) + " detected " + seconds(incident.detected_ns) +
          " verdict " + seconds(incident.verdict_ns) + " cleared " +
          (incident.cleared_ns ? seconds(*incident.cleared_ns) : "-") + ": " + incident.summary;
  return text;
}

// Kinds that are right; what stood still and went on is reported as slow.
bool KindFits(const std::string& truth, const Incident& incident) {
  bool over = incident.cleared_ns.has_value();
  switch (incident.kind) {
    case IncidentKind::kStuck:
      return truth == "hang" || (truth == "slow" && !over);
    case IncidentKind::kAbsent:
      return truth == "absent" || (truth == "slow" && !over);
    case IncidentKind::kSlow:
      return truth == "slow" || ((truth == "hang" || truth == "absent") && over);
    case IncidentKind::kMismatch:
      return truth == "mismatch";
    case IncidentKind::kDead:
      return truth == "dead";
  }
  return false;
}

// What is wrong is not the verdict but when it comes.
constexpr char kNothing[] = "nothing was found";
constexpr char kTooLate[] = "the verdict came too late";
constexpr char kTooManyIterations[] = "the verdict came too many iterations later";

// Under the thread sanitizer a cycle takes ten times as long, and what a fault adds to it is
// little: there a case is not judged by time.
#ifdef __SANITIZE_THREAD__
constexpr bool kTimeIsJudged = false;
#else
constexpr bool kTimeIsJudged = true;
#endif
constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of these tests

bool IsOfTime(const std::string& wrong) {
  return wrong == kNothing || wrong == kTooLate || wrong == kTooManyIterations;
}

// The reason why the verdict is not right; empty when it is.
std::string Judge(const nlohmann::json& truth, const std::vector<Incident>& incidents) {
  std::string expected = truth["expected"]["verdict"];
  if (expected == "healthy") {
    return incidents.empty() ? "" : "false alarm: " + Describe(incidents[0], incidents[0].onset_ns);
  }
  uint64_t onset = UINT64_MAX;
  for (const auto& fault : truth["faults"]) onset = std::min(onset, fault["onset"].get<uint64_t>());
  std::set<std::pair<int, std::string>> wanted, named;
  for (const auto& c : truth["expected"]["culprits"])
    wanted.emplace(c["rank"].get<int>(), c["component"].get<std::string>());
  if (const char* instead = Setting("MYCROFT_EXPECT_CULPRIT")) {
    std::istringstream words(instead);
    std::pair<int, std::string> culprit;
    words >> culprit.first >> culprit.second;
    wanted = {culprit};
  }
  if (incidents.empty()) return kNothing;
  const Incident* main = nullptr;
  for (const Incident& incident : incidents) {
    std::printf("  %s\n", Describe(incident, onset).c_str());
    if (incident.detected_ns < onset) return "false alarm before the fault";
    if (main == nullptr) main = &incident;
    for (const Culprit& c : incident.culprits) named.emplace(c.rank, ToString(c.component));
  }
  if (named != wanted) return "wrong culprits";
  if (!KindFits(expected, *main)) return "wrong kind";
  double verdict_s = static_cast<double>(main->verdict_ns - onset) / 1e9;
  bool stood_still = expected == "hang" || expected == "absent" || expected == "dead";
  if (stood_still && verdict_s > kStuckVerdictSeconds) return kTooLate;
  if (expected == "slow") {
    // Iterations that the culprit finished from the onset to the verdict.
    int rank = truth["expected"]["culprits"][0]["rank"];
    size_t iterations = 0;
    for (const auto& r : truth["ranks"]) {
      if (r["rank"] != rank) continue;
      for (const auto& it : r["iters"]) {
        uint64_t done = it[2].get<uint64_t>();
        if (done > onset && done <= main->verdict_ns) ++iterations;
      }
    }
    std::printf("  verdict after %.2f s, %zu iterations\n", verdict_s, iterations);
    // One sampling interval and the iteration in which the fault began are not the detector's.
    if (iterations > kSlowVerdictIterations + 3) return kTooManyIterations;
  } else {
    std::printf("  verdict after %.2f s\n", verdict_s);
  }
  return "";
}

std::string JudgeEvidence(const std::vector<Incident>& incidents) {
  const char* expected = Setting("MYCROFT_EXPECT_EVIDENCE");
  if (expected == nullptr) return "";
  bool said = false;
  for (const Incident& incident : incidents) {
    said |= incident.summary.find(expected) != std::string::npos;
    for (const std::string& line : incident.evidence) {
      std::printf("  evidence: %s\n", line.c_str());
      said |= line.find(expected) != std::string::npos;
    }
  }
  return said ? "" : std::string("the evidence does not say \"") + expected + "\"";
}

std::string BusAddress(int bus) {
  char address[32];
  std::snprintf(address, sizeof(address), "0000:%02x:00.0", static_cast<unsigned>(bus));
  return address;
}
// Of rank 0; the next is rank 1's. That of the GPU is as the lab's driver says.
constexpr int kGpuBus = 0x40, kNicBus = 0x50, kGpuPortBus = 0x10, kNicPortBus = 0x20;

// Whether the job has said in its log that the fault begins.
bool FaultBegins(const std::string& log) {
  std::ifstream said(log);
  for (std::string line; std::getline(said, line);) {
    if (line.find(" begins") != std::string::npos) return true;
  }
  return false;
}

// The GPUs of the ranks for NVML: healthy, until the fault begins.
class Gpus {
 public:
  // `log`: what the job prints.
  Gpus(int ranks, std::string log) : log_(std::move(log)), pids_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      script_.AddGpu(static_cast<uint32_t>(rank), "0000" + BusAddress(kGpuBus + rank));
    }
    script_.Write();
  }
  void See(const Snapshot& snapshot) {
    // Data over PCIe, or nobody could say of a link that it is slow under load.
    if (snapshot.t_ns >= next_ns_) {
      next_ns_ = snapshot.t_ns + 200'000'000;
      for (size_t rank = 0; rank < pids_.size(); ++rank) {
        script_.Set(static_cast<uint32_t>(rank), "pcie_rx", snapshot.t_ns * 5);  // 5 GB/s
        script_.Set(static_cast<uint32_t>(rank), "pcie_tx", snapshot.t_ns * 5);
      }
      script_.Write();
    }
    if (!seen_) {
      for (const ProcessSample& process : snapshot.processes) {
        for (const CommSample& comm : process.comms) {
          if (comm.rank < 0 || static_cast<size_t>(comm.nranks) != pids_.size()) continue;
          pids_.at(static_cast<size_t>(comm.rank)) = process.key.pid;
        }
      }
      for (const uint32_t pid : pids_) {
        if (pid == 0) return;
      }
      seen_ = true;
      for (size_t rank = 0; rank < pids_.size(); ++rank) {
        script_.Set(static_cast<uint32_t>(rank), "process", pids_[rank]);
      }
      script_.Write();
    }
    const char* fault = Setting("MYCROFT_NVML_FAULT");
    if (fault == nullptr || broken_ || !(broken_ = FaultBegins(log_))) return;
    std::istringstream words(fault);
    uint32_t rank = 0;
    words >> rank;
    for (std::string change; std::getline(words, change, ',');) {
      std::istringstream pair(change);
      std::string key, value;
      pair >> key >> value;
      script_.Set(rank, key, value);
    }
    script_.Write();
  }

 private:
  NvmlScript script_;
  std::string log_;
  std::vector<uint32_t> pids_;  // by rank
  uint64_t next_ns_ = 0;
  bool seen_ = false;
  bool broken_ = false;
};

// PCIe and NICs of the ranks, as sysfs shows them: links at full speed, and data that moves
// at 5 GB/s, until the fault begins.
class Machine {
 public:
  Machine(int ranks, std::string log) : log_(std::move(log)), moved_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const auto& [port, end, kind] : {std::tuple{kGpuPortBus, kGpuBus, "0x030200"},
                                            std::tuple{kNicPortBus, kNicBus, "0x020000"}}) {
        const std::string root = BusAddress(port + rank);
        host_.AddPci({root}, "0x060400", kGen5, "16", kGen5, "16",
                     FixtureHost::Config(0x8086, 0x352a, 4, 2, true, false));
        host_.AddPci({root, BusAddress(end + rank)}, kind, kGen5, "16", kGen5, "16",
                     FixtureHost::Config(0x10de, 0x2330, 0, 5, true, false));
      }
      const std::string number = std::to_string(rank);
      host_.AddRdma("mlx5_" + number, "uverbs" + number,
                    "bus/pci/devices/" + BusAddress(kNicBus + rank), "eth" + number);
      host_.Write(Port(rank) + "rate", "800 Gb/sec (8X XDR)\n");
    }
  }
  std::string sys() const { return host_.sys(); }

  void See(const Snapshot& snapshot) {
    const char* fault = Setting("MYCROFT_MACHINE_FAULT");
    if (fault != nullptr && !broken_ && (broken_ = FaultBegins(log_))) {
      std::istringstream words(fault);
      std::string kind, speed;
      int rank = 0;
      words >> kind >> rank;
      if (kind == "link") {
        std::getline(words >> std::ws, speed);
        SetGpuLink(rank, speed);
      } else {
        pauses_ = rank;
      }
    }
    const double seconds = last_ns_ == 0 ? 0 : static_cast<double>(snapshot.t_ns - last_ns_) / 1e9;
    last_ns_ = snapshot.t_ns;
    for (size_t i = 0; i < moved_.size(); ++i) {
      const int rank = static_cast<int>(i);
      Moved& moved = moved_[i];
      moved.bytes += 1e9 * (rank == pauses_ ? 58 : 5) * seconds;
      if (rank == pauses_) moved.pauses += 5000 * seconds;
      const auto number = [](double value) {
        return std::to_string(static_cast<uint64_t>(value)) + "\n";
      };
      host_.Write(Port(rank) + "counters/port_xmit_data", number(moved.bytes / 4));
      host_.Write(Port(rank) + "counters/port_rcv_data", number(moved.bytes / 4));
      host_.Write(Port(rank) + "hw_counters/tx_prio3_pause", number(moved.pauses));
    }
  }

 private:
  static constexpr const char* kGen5 = "32.0 GT/s PCIe";
  static std::string Port(int rank) {
    return "sys/class/infiniband/mlx5_" + std::to_string(rank) + "/ports/1/";
  }
  // As both of its ends tell it.
  void SetGpuLink(int rank, const std::string& speed) {
    for (const int bus : {kGpuPortBus, kGpuBus}) {
      host_.Write(host_.PciFolder(BusAddress(bus + rank)) + "current_link_speed", speed + "\n");
    }
  }

  struct Moved {
    double bytes = 0, pauses = 0;
  };
  FixtureHost host_;
  std::string log_;
  std::vector<Moved> moved_;  // by rank
  uint64_t last_ns_ = 0;
  int pauses_ = -1;
  bool broken_ = false;
};

// In the job's process: a folder of devices that only the job sees, with one for each rank.
// False: not allowed.
bool EnterMachine() {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return false;
  }
  if (mkdir(kDevices, 0755) != 0 && errno != EEXIST) return false;
  if (mount("devices", kDevices, "tmpfs", 0, nullptr) != 0) return false;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ofstream(std::string(kDevices) + "/uverbs" + std::to_string(rank)) << "";
  }
  return true;
}

struct Job {
  pid_t pid = -1;
  int status = 0;
  bool Done() { return waitpid(pid, &status, WNOHANG) == pid; }
};

pid_t Start(const std::vector<std::string>& command, const std::string& plugin,
            const std::string& output) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  setenv("NCCL_PROFILER_PLUGIN", plugin.c_str(), 1);
  int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(fd, 1);
  dup2(fd, 2);
  if (Setting("MYCROFT_MACHINE") != nullptr && !EnterMachine()) {
    std::fprintf(stderr, "lab_fault_run: no devices of its own: %s\n", std::strerror(errno));
    _exit(126);
  }
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

std::string RunOnce(int argc, char** argv, const std::filesystem::path& folder) {
  std::string truth_file = folder / "truth.json", recording = folder / "case.mycroft";
  std::error_code ignored;
  for (const char* suffix : {"", "-wal", "-shm"})
    std::filesystem::remove(recording + suffix, ignored);
  std::vector<std::string> command = {argv[1], "job", "--truth", truth_file};
  for (int i = 3; i < argc; ++i) command.push_back(argv[i]);
  if (Setting("MYCROFT_MACHINE") != nullptr) {
    command.insert(command.end(), {"--keep-open", std::string(kDevices) + "/uverbs{rank}"});
  }
  Job job;
  job.pid = Start(command, argv[2], folder / "job.log");
  if (job.pid < 0) return "cannot start the job";

  LiveOptions options;
  options.pids = {static_cast<uint32_t>(job.pid)};
  std::optional<Gpus> gpus;
  std::optional<Machine> machine;
  if (Setting("MYCROFT_MACHINE") != nullptr) {
    machine.emplace(kRanks, folder / "job.log");
    options.sys_root = machine->sys();
  }
  if (const char* nvml = std::getenv("MYCROFT_NVML")) {
    gpus.emplace(kRanks, folder / "job.log");
    options.gpu_health.nvml_library = nvml;
    options.gpu_health.all_gpus = true;
  }
  auto source = LiveSource::Create(options);
  auto writer = RecordingWriter::Create(recording);
  if (!source.ok()) return std::string(source.status().message());
  if (!writer.ok()) return std::string(writer.status().message());
  Pipeline live;
  uint64_t give_up = MonotonicNs() + 60'000'000'000ull;
  while (!job.Done()) {
    if (MonotonicNs() > give_up) {
      kill(job.pid, SIGKILL);
      waitpid(job.pid, &job.status, 0);
      return "the job did not end";
    }
    auto snapshot = (*source)->Next();
    if (!snapshot.ok() || !*snapshot) return "the live source ended";
    if (gpus) gpus->See(**snapshot);
    if (machine) machine->See(**snapshot);
    live.Feed(**snapshot);
    if (auto status = (*writer)->Append(**snapshot); !status.ok())
      return std::string(status.message());
  }
  live.Finish();
  for (const Incident& incident : live.incidents()) {
    if (auto s = (*writer)->PutIncident(incident); !s.ok()) return std::string(s.message());
  }
  uint64_t bytes = (*writer)->bytes_written();
  writer->reset();
  if (const char* keep = Setting("MYCROFT_KEEP_RECORDING")) {
    std::filesystem::copy_file(recording, keep, std::filesystem::copy_options::overwrite_existing);
    std::ofstream(std::string(keep) + ".json")
        << VerdictJson(live.incidents(), live.BlindSpots()) << "\n";
  }

  nlohmann::json truth;
  try {
    std::ifstream(truth_file) >> truth;
    std::string wrong = Judge(truth, live.incidents());
    if (wrong.empty()) wrong = JudgeEvidence(live.incidents());
    if (!wrong.empty()) return wrong;
  } catch (const nlohmann::json::exception& e) {
    return std::string("truth: ") + e.what();
  }

  auto reader = RecordingReader::Open(recording);
  if (!reader.ok()) return "replay: " + std::string(reader.status().message());
  Pipeline replay;
  uint64_t first = 0, last = 0;
  for (;;) {
    auto snapshot = (*reader)->Next();
    if (!snapshot.ok()) return "replay: " + std::string(snapshot.status().message());
    if (!*snapshot) break;
    if (first == 0) first = (*snapshot)->t_ns;
    last = (*snapshot)->t_ns;
    replay.Feed(**snapshot);
  }
  replay.Finish();
  if (replay.incidents() != live.incidents()) return "the replay gives another verdict";
  if (replay.BlindSpots() != live.BlindSpots()) return "the replay gives other blind spots";
  auto stored = (*reader)->ReadIncidents();
  if (!stored.ok() || *stored != live.incidents()) return "the stored incidents differ";
  double seconds = static_cast<double>(last - first) / 1e9;
  size_t ranks = truth["ranks"].size();
  std::printf("  recording: %.2f KB/s per rank\n",
              static_cast<double>(bytes) / 1000 / seconds / static_cast<double>(ranks));
  return "";
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: lab_fault_run LAB PLUGIN ARGUMENTS-OF-THE-JOB...\n");
    return 2;
  }
  char name[] = "/tmp/mycroft-lab-XXXXXX";
  if (mkdtemp(name) == nullptr) return 1;
  std::string wrong;
  for (int attempt = 1; attempt <= 2; ++attempt) {
    wrong = RunOnce(argc, argv, name);
    if (wrong.empty() || (!kTimeIsJudged && IsOfTime(wrong))) break;
    std::printf("ATTEMPT %d FAILED: %s\n", attempt, wrong.c_str());
    std::fflush(stdout);
  }
  std::error_code ignored;
  std::filesystem::remove_all(name, ignored);
  if (!kTimeIsJudged && IsOfTime(wrong)) {
    std::printf("NOT JUDGED under the thread sanitizer: %s\n", wrong.c_str());
    return kSkipped;
  }
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace mycroft

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return mycroft::Main(argc, argv);
}
