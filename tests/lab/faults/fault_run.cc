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
// MYCROFT_KEEP_RECORDING=FILE keeps the recording and writes FILE.json, the verdict.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "userspace/attribute/pipeline.h"
#include "userspace/base/clock.h"
#include "userspace/decode/live_source.h"
#include "userspace/report/verdict.h"
#include "userspace/source/testing/nvml_script.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr double kStuckVerdictSeconds = 3.0;
constexpr size_t kSlowVerdictIterations = 5;

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
  if (incidents.empty()) return "nothing was found";
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
  if (stood_still && verdict_s > kStuckVerdictSeconds) return "the verdict came too late";
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
    if (iterations > kSlowVerdictIterations + 3)
      return "the verdict came too many iterations later";
  } else {
    std::printf("  verdict after %.2f s\n", verdict_s);
  }
  return "";
}

std::string JudgeEvidence(const std::vector<Incident>& incidents) {
  const char* expected = std::getenv("MYCROFT_EXPECT_EVIDENCE");
  if (expected == nullptr || expected[0] == 0) return "";
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

// The GPUs of the ranks for NVML: healthy, until the fault begins.
class Gpus {
 public:
  // `log`: what the job prints.
  Gpus(int ranks, std::string log) : log_(std::move(log)), pids_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      char bus[32];  // as the lab's driver says
      std::snprintf(bus, sizeof(bus), "00000000:%02X:00.0", 0x40 + rank);
      script_.AddGpu(static_cast<uint32_t>(rank), bus);
    }
    script_.Write();
  }
  void See(const Snapshot& snapshot) {
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
    const char* fault = std::getenv("MYCROFT_NVML_FAULT");
    if (fault == nullptr || fault[0] == 0 || broken_) return;
    std::ifstream said(log_);
    for (std::string line; !broken_ && std::getline(said, line);) {
      broken_ = line.find(" begins") != std::string::npos;
    }
    if (!broken_) return;
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
  bool seen_ = false;
  bool broken_ = false;
};

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
  Job job;
  job.pid = Start(command, argv[2], folder / "job.log");
  if (job.pid < 0) return "cannot start the job";

  LiveOptions options;
  options.pids = {static_cast<uint32_t>(job.pid)};
  std::optional<Gpus> gpus;
  if (const char* nvml = std::getenv("MYCROFT_NVML")) {
    gpus.emplace(4, folder / "job.log");
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
  if (const char* keep = std::getenv("MYCROFT_KEEP_RECORDING")) {
    std::filesystem::copy_file(recording, keep, std::filesystem::copy_options::overwrite_existing);
    std::ofstream(std::string(keep) + ".json")
        << VerdictJson(live.incidents(), live.BlindSpots()) << "\n";
  }
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
    if (wrong.empty()) break;
    std::printf("ATTEMPT %d FAILED: %s\n", attempt, wrong.c_str());
    std::fflush(stdout);
  }
  std::error_code ignored;
  std::filesystem::remove_all(name, ignored);
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace mycroft

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return mycroft::Main(argc, argv);
}
