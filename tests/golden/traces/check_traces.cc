// SPDX-License-Identifier: Apache-2.0
//
// Replays recorded cases with `mycroft-lab replay --json` and compares each
// verdict with the truth. Prints a table; exit code 1 when a case fails, 77 when
// there is nothing to test (a skip for ctest).
//
//   check_traces --lab bin/mycroft-lab [--mycroft bin/mycroft] [--case NAME]
//                [--drop-rank | --kill] [--one-process]
//
// The cases are the folders with a truth.json in $MYCROFT_TRACES, or --traces.
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/golden/traces/judge.h"

namespace mycroft {
namespace {

namespace fs = std::filesystem;

constexpr int kSkip = 77;

struct Run {
  std::string output;
  int exit_code = -1;  // 128 + signal when it was ended by one
};

std::string Quote(const std::string& text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

Run Execute(const std::string& command) {
  Run run;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return run;
  char buffer[65536];
  size_t got;
  while ((got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0) run.output.append(buffer, got);
  const int status = pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return run;
}

std::vector<fs::path> RankFiles(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind("rank", 0) == 0) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string Figure(const std::optional<double>& seconds) {
  if (!seconds) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", *seconds);
  return text;
}

struct Programs {
  std::string lab;
  std::string mycroft;  // may be empty: then the recordings are not looked at
  bool one_process = false;
};

// A folder that goes with the object. Empty path: it could not be made.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "check-traces.XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class Checker {
 public:
  explicit Checker(Programs programs) : programs_(std::move(programs)) {
    std::printf("%-28s %-9s %-7s %7s %7s %7s %7s %6s  %s\n", "case", "expected", "result", "onset",
                "detect", "verdict", "clear", "took", "verdict given; why not right");
  }

  // Replays `folder` and judges it. `label` is what the table shows.
  void Check(const fs::path& folder, const Truth& truth, const std::string& label,
             int32_t missing_rank) {
    const auto start = std::chrono::steady_clock::now();
    const TempFolder scratch;
    const std::string recording = (scratch.path() / "replay.mycroft").string();
    const Run run = Execute(Quote(programs_.lab) + " replay " + Quote(folder.string()) + " --json" +
                            (programs_.one_process ? " --one-process" : "") +
                            (programs_.mycroft.empty() ? "" : " -o " + Quote(recording)));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    Judgement judgement;
    if (run.exit_code != 0 && run.exit_code != 3) {
      judgement.why = "exit code " + std::to_string(run.exit_code);
    } else {
      absl::StatusOr<Judgement> judged = Judge(truth, run.output, {missing_rank, 100'000'000});
      if (judged.ok()) {
        judgement = *judged;
        if ((run.exit_code == 3) != !judgement.verdict.empty()) {
          judgement.outcome = Outcome::kWrong;
          judgement.why = "exit code " + std::to_string(run.exit_code) + " does not fit";
        }
      } else {
        judgement.why = std::string(judged.status().message());
      }
    }
    if (!programs_.mycroft.empty()) {
      const Run again = Execute(Quote(programs_.mycroft) + " diagnose --json " + Quote(recording));
      if (again.exit_code != run.exit_code ||
          nlohmann::json::parse(again.output, nullptr, false) !=
              nlohmann::json::parse(run.output, nullptr, false)) {
        judgement.outcome = Outcome::kWrong;
        judgement.why =
            "the recording gives another verdict, exit code " + std::to_string(again.exit_code);
      }
    }
    ++counts_[judgement.outcome];
    std::string remark = judgement.verdict;
    if (!judgement.why.empty()) remark += (remark.empty() ? "" : " -- ") + judgement.why;
    std::printf("%-28s %-9s %-7s %7s %7s %7s %7s %5.1fs  %s\n", label.c_str(),
                truth.verdict.c_str(), ToString(judgement.outcome),
                Figure(judgement.onset_s).c_str(), Figure(judgement.detected_s).c_str(),
                Figure(judgement.verdict_s).c_str(), Figure(judgement.cleared_s).c_str(),
                took.count(), remark.c_str());
    std::fflush(stdout);
  }

  // True when something was checked and nothing failed.
  bool Summary() {
    std::printf(
        "%d right, %d not enough evidence, %d late, %d missed, %d wrong"
        " (times in seconds after the fault)\n",
        counts_[Outcome::kRight], counts_[Outcome::kUnsure], counts_[Outcome::kLate],
        counts_[Outcome::kMissed], counts_[Outcome::kWrong]);
    const int good = counts_[Outcome::kRight] + counts_[Outcome::kUnsure];
    return good > 0 &&
           counts_[Outcome::kLate] + counts_[Outcome::kMissed] + counts_[Outcome::kWrong] == 0;
  }

 private:
  Programs programs_;
  std::map<Outcome, int> counts_;
};

// A folder with links to all rank files but one.
class FolderWithout {
 public:
  FolderWithout(const std::vector<fs::path>& files, const fs::path& left_out) {
    for (const fs::path& file : files) {
      if (file != left_out) fs::create_symlink(fs::absolute(file), path() / file.filename());
    }
  }
  // The file that was left out comes back, but ends at `t_ns`, as when the process
  // was killed then.
  bool AddCutOff(const fs::path& file, uint64_t t_ns) {
    const gzFile in = gzopen(file.c_str(), "rb");
    if (in == nullptr) return false;
    fs::path name = file.filename();
    if (name.extension() == ".gz") name.replace_extension();
    std::ofstream out(path() / name);
    std::vector<char> line(1 << 20);
    while (gzgets(in, line.data(), static_cast<int>(line.size())) != nullptr) {
      const char* t = std::strstr(line.data(), "\"t\":");
      if (t != nullptr && std::strtoull(t + 4, nullptr, 10) > t_ns) break;
      out << line.data();
    }
    gzclose_r(in);
    return static_cast<bool>(out);
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

int Main(int argc, char** argv) {
  CLI::App app("Replays recorded cases and compares the verdicts with the truth");
  Programs programs;
  std::string traces;
  std::vector<std::string> names;
  bool drop_rank = false;
  bool kill = false;
  app.add_option("--lab", programs.lab, "The mycroft-lab program")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--mycroft", programs.mycroft,
                 "The mycroft program: it must say the same of the recording of each replay")
      ->check(CLI::ExistingFile);
  app.add_option("--traces", traces, "Folder of cases [environment: MYCROFT_TRACES]");
  app.add_option("--case", names, "Only this case (may be repeated)");
  app.add_flag("--drop-rank", drop_rank, "Each case once per rank, with that rank's file missing");
  app.add_flag(
      "--kill", kill,
      "Cases in which everything stops, with the culprit's file cut off at the fault: as if "
      "its process had been killed then");
  app.add_flag("--one-process", programs.one_process, "All ranks in one process");
  CLI11_PARSE(app, argc, argv);

  if (traces.empty()) {
    const char* env = std::getenv("MYCROFT_TRACES");
    if (env == nullptr || env[0] == 0) {
      std::printf(
          "SKIPPED: MYCROFT_TRACES is not set: no recorded NCCL callbacks to replay.\n"
          "Set it to a folder of cases (rank<N>.jsonl.gz and truth.json in each).\n");
      return kSkip;
    }
    traces = env;
  }
  std::vector<fs::path> cases;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(traces, error)) {
    const std::string name = entry.path().filename().string();
    if (!fs::exists(entry.path() / "truth.json")) continue;
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) continue;
    cases.push_back(entry.path());
  }
  if (error) {
    std::fprintf(stderr, "check_traces: %s: %s\n", traces.c_str(), error.message().c_str());
    return 1;
  }
  if (cases.empty()) {
    std::fprintf(stderr, "check_traces: no such case in %s\n", traces.c_str());
    return 1;
  }
  std::sort(cases.begin(), cases.end());

  Checker checker(programs);
  for (const fs::path& folder : cases) {
    std::ifstream in(folder / "truth.json");
    std::stringstream text;
    text << in.rdbuf();
    const absl::StatusOr<Truth> truth = ParseTruth(text.str());
    if (!truth.ok()) {
      std::fprintf(stderr, "check_traces: %s/truth.json: %s\n", folder.c_str(),
                   std::string(truth.status().message()).c_str());
      return 1;
    }
    const std::string name = folder.filename().string();
    const std::vector<fs::path> files = RankFiles(folder);
    if (kill) {
      if ((truth->verdict != "hang" && truth->verdict != "absent") || truth->culprits.size() != 1) {
        continue;
      }
      for (const fs::path& file : files) {
        if (std::atoi(file.filename().string().c_str() + 4) != truth->culprits[0].rank) continue;
        FolderWithout cut(files, file);
        if (!cut.AddCutOff(file, truth->onset_ns)) {
          std::fprintf(stderr, "check_traces: %s cannot be copied\n", file.c_str());
          return 1;
        }
        Truth dead = *truth;
        dead.verdict = "dead";
        dead.culprits[0].component = "process";
        checker.Check(cut.path(), dead, name + " killed", -1);
      }
      continue;
    }
    if (!drop_rank) {
      checker.Check(folder, *truth, name, -1);
      continue;
    }
    for (const fs::path& file : files) {
      const FolderWithout without(files, file);
      const int rank = std::atoi(file.filename().string().c_str() + 4);
      checker.Check(without.path(), *truth, name + " -" + std::to_string(rank), rank);
    }
  }
  return checker.Summary() ? 0 : 1;
}

}  // namespace
}  // namespace mycroft

int main(int argc, char** argv) { return mycroft::Main(argc, argv); }
