// SPDX-License-Identifier: Apache-2.0
//
// lab_kill_agent MYCROFT LAB PLUGIN: a job runs; `mycroft record --append` is started
// and killed with SIGKILL 100 times. The job must end with exact sums, and the
// recording must open and hold everything but at most a second before each kill.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "userspace/base/clock.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr int kKills = 100;

pid_t Start(const std::vector<std::string>& command, const std::string& log) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  dup2(fd, 1);
  dup2(fd, 2);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

int Main(char** argv) {
  char name[] = "/tmp/mycroft-kill-XXXXXX";
  if (mkdtemp(name) == nullptr) return 1;
  const std::string folder = name, recording = folder + "/kill.mycroft";
  setenv("NCCL_PROFILER_PLUGIN", argv[3], 1);
  pid_t job = Start({argv[2], "job", "--ranks", "2", "--duration", "3600", "--quiet"},
                    folder + "/job.log");
  struct Run {
    uint64_t begin_ns, end_ns;
  };
  std::vector<Run> runs;
  std::mt19937 random(7);
  for (int i = 0; i < kKills; ++i) {
    uint64_t begin = MonotonicNs();
    std::vector<std::string> command = {argv[1], "record", "--append", "-q", "-o", recording, "-p",
                                        std::to_string(job)};
    // Attaching takes as long as many of these agents live: every tenth does it.
    if (i % 10 != 0) command.push_back("--no-probes");
    pid_t agent = Start(command, folder + "/agent.log");
    usleep(300'000 + random() % 900'000);
    if (kill(agent, SIGKILL) != 0) return 1;
    uint64_t end = MonotonicNs();
    int status = 0;
    waitpid(agent, &status, 0);
    if (!WIFSIGNALED(status)) {
      std::printf("FAILED: the agent ended by itself, status %d\n", status);
      std::system(("cat " + folder + "/agent.log").c_str());
      kill(job, SIGKILL);
      return 1;
    }
    runs.push_back({begin, end});
  }
  int status = 0;
  bool running = waitpid(job, &status, WNOHANG) == 0;
  kill(job, SIGINT);  // an orderly end: the sums of every iteration were checked
  waitpid(job, &status, 0);
  int failures = 0;
  auto expect = [&](bool ok, const std::string& what) {
    if (ok) return;
    ++failures;
    std::printf("FAILED: %s\n", what.c_str());
  };
  expect(running, "the job ended while the agent was killed");
  std::system(("cat " + folder + "/job.log").c_str());
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the job did not end with success");
  expect(std::system(("grep -q 'exact=yes result=ok' " + folder + "/job.log").c_str()) == 0,
         "sums that are not exact");
  int verdict = std::system((std::string(argv[1]) + " diagnose " + recording + " >" + folder +
                             "/diagnose.log 2>&1")
                                .c_str());
  // 4, a degraded view: those that attached the probes say which this kernel does not take.
  const int code = WIFEXITED(verdict) ? WEXITSTATUS(verdict) : -1;
  expect(code == 0 || code == 4,
         "diagnose cannot read it, or finds a fault in a healthy job");
  if (failures > 0) std::system(("cat " + folder + "/diagnose.log").c_str());

  auto reader = RecordingReader::Open(recording);
  if (!reader.ok()) {
    std::printf("FAILED: %s\n", std::string(reader.status().message()).c_str());
    return 1;
  }
  expect(!(*reader)->info().truncated, "truncated: " + (*reader)->info().problem);
  std::vector<uint64_t> times;
  for (;;) {
    auto snapshot = (*reader)->Next();
    if (!snapshot.ok()) {
      std::printf("FAILED: %s\n", std::string(snapshot.status().message()).c_str());
      return 1;
    }
    if (!*snapshot) break;
    times.push_back((*snapshot)->t_ns);
  }
  // What a run sampled and did not keep: from its last snapshot to the kill.
  double worst = 0;
  for (const Run& run : runs) {
    uint64_t last = run.begin_ns;
    for (uint64_t t : times) {
      if (t > run.begin_ns && t <= run.end_ns) last = t;
    }
    worst = std::max(worst, static_cast<double>(run.end_ns - last) / 1e9);
  }
  std::printf("%d kills, %zu snapshots kept, at most %.2f s before a kill lost (start included)\n",
              kKills, times.size(), worst);
  expect(worst <= 1.5, "more than a second was lost");  // a start takes its part
  std::error_code ignored;
  if (failures == 0) std::filesystem::remove_all(folder, ignored);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mycroft

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: lab_kill_agent MYCROFT LAB PLUGIN\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return mycroft::Main(argv);
}
