// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tools/lab/job/clock.h"
#include "tools/lab/job/control.h"
#include "tools/lab/job/memory.h"
#include "tools/lab/job/rank.h"
#include "tools/lab/job/starve.h"
#include "tools/lab/job/truth.h"

namespace mycroft::lab {
namespace {

constexpr uint64_t kSetupTimeoutNs = 60 * kNsPerSec;
constexpr uint64_t kStopGraceNs = kNsPerSec;       // to end the iteration, then abort
constexpr uint64_t kAbortGraceNs = 3 * kNsPerSec;  // to leave, then SIGKILL

struct Child {
  pid_t pid = -1;
  int fd = -1;
  bool alive = false;
  bool exited = false;
  int wait_status = 0;
  uint16_t port = 0;
  bool hello = false;
  bool ready = false;
  bool done = false;
  int64_t done_iters = 0;
  int64_t bad = 0;
  int64_t limit = -1;  // answer to `limit`
  std::vector<pid_t> progress_tids;
};

// Something to do at a time.
struct Action {
  uint64_t at_ns;
  std::function<void()> run;
};

class Launcher {
 public:
  Launcher(const JobConfig& config, const LaunchOptions& options)
      : config_(config), options_(options) {
    truth_.faults.resize(config.faults.size());
    truth_.events.resize(config.events.size());
    truth_.ranks.resize(config.ranks);
    children_.resize(config.ranks);
  }
  int Run();

 private:
  enum class Stop { kNo, kDuration, kSignal, kFailure };

  bool Spawn();
  void Loop();
  void OnSignal();
  void OnMessage(int rank, const nlohmann::json& message);
  void OnExit(int rank, int status);
  void Go();
  void AfterHello();
  void Plan(uint64_t at_ns, std::function<void()> run);
  void PlanFault(size_t index);
  // Holds all ranks at the iterations they have started, then resumes them with `what`
  // at the first that nobody has started.
  void Agree(const char* what, uint64_t pause_ns, size_t event_index);
  void FinishAgreement();
  void RequestStop(Stop reason);
  void Abort(const std::string& why);
  void Broadcast(const nlohmann::json& message);
  void MarkFault(size_t index, bool begin, uint64_t ns);
  void SaveTruth();
  void Say(const std::string& line);
  int Summary();
  bool AllExited() const;

  const JobConfig& config_;
  const LaunchOptions& options_;
  std::vector<Child> children_;
  JobTruth truth_;
  std::vector<Action> actions_;
  std::map<size_t, std::unique_ptr<Starver>> starvers_;  // by fault index
  std::map<size_t, std::unique_ptr<ControlGroup>> memory_limits_;  // by fault index
  int signal_fd_ = -1;
  sigset_t old_mask_{};
  uint64_t start_ns_ = 0;
  uint64_t end_ns_ = 0;
  Stop stop_ = Stop::kNo;
  bool aborted_ = false;
  bool failed_ = false;
  int stop_signal_ = 0;
  uint64_t last_progress_ns_ = 0;
  bool agreeing_ = false;
  std::string agree_do_;
  uint64_t agree_pause_ns_ = 0;
  size_t agree_event_ = 0;
  std::vector<std::function<void()>> agree_later_;
  int64_t reported_ = 0;
  bool truth_failed_ = false;
};

void Launcher::Say(const std::string& line) {
  if (options_.quiet || options_.json) return;
  printf("%s\n", line.c_str());
  fflush(stdout);
}

void Launcher::SaveTruth() {
  if (options_.truth_path.empty()) return;
  if (absl::Status s = WriteTruth(options_.truth_path, config_, truth_);
      !s.ok() && !truth_failed_) {
    truth_failed_ = true;
    fprintf(stderr, "mycroft-lab: truth file: %s\n", std::string(s.message()).c_str());
  }
}

bool Launcher::Spawn() {
  const std::string exe = options_.exe.empty() ? "/proc/self/exe" : options_.exe;
  const pid_t parent = getpid();
  for (int r = 0; r < config_.ranks; ++r) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
      fprintf(stderr, "mycroft-lab: socketpair: %s\n", strerror(errno));
      return false;
    }
    const pid_t pid = fork();
    if (pid < 0) {
      fprintf(stderr, "mycroft-lab: fork: %s\n", strerror(errno));
      close(fds[0]);
      close(fds[1]);
      return false;
    }
    if (pid == 0) {
      // Only async-signal-safe calls until exec. No rank outlives the launcher.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(kRankError);
      sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
      fcntl(fds[1], F_SETFD, 0);
      char rank_text[16], ranks_text[16], fd_text[16];
      snprintf(rank_text, sizeof(rank_text), "%d", r);
      snprintf(ranks_text, sizeof(ranks_text), "%d", config_.ranks);
      snprintf(fd_text, sizeof(fd_text), "%d", fds[1]);
      execl(exe.c_str(), "mycroft-lab", "rank", "--rank", rank_text, "--ranks", ranks_text,
            "--control-fd", fd_text, static_cast<char*>(nullptr));
      _exit(127);
    }
    close(fds[1]);
    Child& child = children_[r];
    child.pid = pid;
    child.fd = fds[0];
    child.alive = true;
    truth_.ranks[r].pid = pid;
    SendControl(child.fd, {{"t", "config"}, {"job", ToJson(config_)}});
  }
  return true;
}

void Launcher::Broadcast(const nlohmann::json& message) {
  for (Child& child : children_) {
    if (child.alive) SendControl(child.fd, message);
  }
}

void Launcher::Plan(uint64_t at_ns, std::function<void()> run) {
  actions_.push_back({at_ns, std::move(run)});
}

void Launcher::AfterHello() {
  std::vector<uint16_t> ports;
  for (const Child& child : children_) {
    if (!child.hello) return;
    ports.push_back(child.port);
  }
  std::random_device random;
  const uint64_t token = (static_cast<uint64_t>(random()) << 32) | random();
  Broadcast({{"t", "ports"}, {"ports", ports}, {"token", token}});
}

void Launcher::Go() {
  for (const Child& child : children_) {
    if (!child.ready) return;
  }
  truth_.t0_ns = NowNs();
  start_ns_ = truth_.t0_ns;
  last_progress_ns_ = truth_.t0_ns;
  Broadcast({{"t", "go"}, {"t0", truth_.t0_ns}});
  for (size_t i = 0; i < config_.faults.size(); ++i) PlanFault(i);
  for (size_t i = 0; i < config_.events.size(); ++i) {
    const EventSpec& event = config_.events[i];
    Plan(truth_.t0_ns + static_cast<uint64_t>(event.at_s * 1e9),
         [this, i] { Agree("pause", static_cast<uint64_t>(config_.events[i].for_s * 1e9), i); });
  }
  if (config_.duration_s > 0) {
    Plan(truth_.t0_ns + static_cast<uint64_t>(config_.duration_s * 1e9),
         [this] { RequestStop(Stop::kDuration); });
  }
  if (!truth_.note.empty()) Say(truth_.note);
  Say("all ranks are ready");
  SaveTruth();
}

void Launcher::PlanFault(size_t index) {
  const FaultSpec& spec = config_.faults[index];
  const uint64_t from = truth_.t0_ns + static_cast<uint64_t>(spec.at_s * 1e9);
  const uint64_t to = spec.for_s ? from + static_cast<uint64_t>(*spec.for_s * 1e9) : kNever;
  Child* child = &children_[spec.rank];
  switch (spec.kind) {
    case FaultKind::kProcStopped:
      Plan(from, [=, this] {
        if (!child->alive) return;
        kill(child->pid, SIGSTOP);
        MarkFault(index, true, NowNs());
      });
      if (to != kNever) {
        Plan(to, [=, this] {
          if (!child->alive) return;
          const uint64_t now = NowNs();
          kill(child->pid, SIGCONT);
          MarkFault(index, false, now);
        });
      }
      break;
    case FaultKind::kKill:
      Plan(from, [=, this] {
        if (!child->alive) return;
        kill(child->pid, SIGKILL);
        MarkFault(index, true, NowNs());
      });
      break;
    case FaultKind::kProxyStarved:
      Plan(from, [=, this] {
        if (!child->alive) return;
        auto starver = Starver::Begin(child->progress_tids, config_.faults[index].amount);
        if (!starver.ok()) {
          fprintf(stderr, "mycroft-lab: proxy-starved: %s\n",
                  std::string(starver.status().message()).c_str());
          failed_ = true;
          return;
        }
        Say("proxy-starved: " + (*starver)->method());
        starvers_[index] = *std::move(starver);
        MarkFault(index, true, NowNs());
      });
      if (to != kNever) {
        Plan(to, [=, this] {
          if (starvers_.erase(index) > 0) MarkFault(index, false, NowNs());
        });
      }
      break;
    case FaultKind::kMemory: {
      // What the rank has already stays: it uses new memory, of which half fits.
      const auto bytes = static_cast<uint64_t>(spec.amount * (1 << 20));
      Plan(from, [=, this] {
        if (!child->alive) return;
        auto limit = LimitMemory(child->pid, bytes / 2);
        if (!limit.ok()) {
          fprintf(stderr, "mycroft-lab: memory-pressure: %s\n",
                  std::string(limit.status().message()).c_str());
          failed_ = true;
          return;
        }
        memory_limits_[index] = *std::move(limit);
        SendControl(child->fd, {{"t", "memory"}, {"bytes", bytes}});
        MarkFault(index, true, NowNs());
      });
      if (to != kNever) {
        Plan(to, [=, this] {
          if (memory_limits_.erase(index) == 0) return;
          SendControl(child->fd, {{"t", "memory"}, {"bytes", 0}});
          MarkFault(index, false, NowNs());
        });
      }
      break;
    }
    case FaultKind::kGpuSlow:
    case FaultKind::kGpuLate:
    case FaultKind::kGpuStuck:
    case FaultKind::kStreamBlocked:
    case FaultKind::kBusSlow:
    case FaultKind::kNetSlow:
    case FaultKind::kNetDown:
    case FaultKind::kHostLate:
    case FaultKind::kAbsent:
    case FaultKind::kMismatchSize:
    case FaultKind::kMismatchOrder:
    case FaultKind::kRnr:
    case FaultKind::kRnrLate:
    case FaultKind::kBadRkey:
    case FaultKind::kWrongGid:
    case FaultKind::kMtuMismatch:
    case FaultKind::kMemlock:
    case FaultKind::kCount:
      break;  // the rank does it
  }
}

void Launcher::MarkFault(size_t index, bool begin, uint64_t ns) {
  if (index >= truth_.faults.size()) return;
  FaultTruth& fault = truth_.faults[index];
  (begin ? fault.onset_ns : fault.clear_ns) = ns;
  const FaultSpec& spec = config_.faults[index];
  char line[128];
  snprintf(line, sizeof(line), "%.3f s: %s on rank %d %s",
           static_cast<double>(ns - std::min(ns, truth_.t0_ns)) / 1e9, Info(spec.kind).name,
           spec.rank, begin ? "begins" : "ends");
  Say(line);
  SaveTruth();
}

void Launcher::Agree(const char* what, uint64_t pause_ns, size_t event_index) {
  if (agreeing_) {
    agree_later_.push_back([=, this] { Agree(what, pause_ns, event_index); });
    return;
  }
  agreeing_ = true;
  agree_do_ = what;
  agree_pause_ns_ = pause_ns;
  agree_event_ = event_index;
  for (Child& child : children_) child.limit = -1;
  Broadcast({{"t", "limit"}});
  FinishAgreement();
}

void Launcher::FinishAgreement() {
  if (!agreeing_) return;
  int64_t at = 0;
  for (const Child& child : children_) {
    if (!child.alive || child.done) continue;
    if (child.limit < 0) return;
    at = std::max(at, child.limit);
  }
  agreeing_ = false;
  if (agree_do_ == "pause") {
    FaultTruth& event = truth_.events[agree_event_];
    event.onset_ns = NowNs();
    event.clear_ns = event.onset_ns + agree_pause_ns_;
    Say("checkpoint before iteration " + std::to_string(at));
    SaveTruth();
  }
  Broadcast({{"t", "resume"}, {"at", at}, {"do", agree_do_}, {"ns", agree_pause_ns_}});
  if (!agree_later_.empty()) {
    auto next = std::move(agree_later_.front());
    agree_later_.erase(agree_later_.begin());
    next();
  }
}

void Launcher::RequestStop(Stop reason) {
  if (stop_ != Stop::kNo) return;
  stop_ = reason;
  const uint64_t now = NowNs();
  if (truth_.t0_ns == 0) {
    Abort("");
    return;
  }
  // Whoever cannot reach the end of an iteration now is made to leave.
  Agree("stop", 0, 0);
  Plan(now + kStopGraceNs, [this] { Abort(""); });
}

void Launcher::Abort(const std::string& why) {
  if (aborted_) return;
  aborted_ = true;
  if (!why.empty()) fprintf(stderr, "mycroft-lab: %s\n", why.c_str());
  const uint64_t now = NowNs();
  for (int r = 0; r < config_.ranks; ++r) {
    if (children_[r].alive && !children_[r].done) truth_.ranks[r].abort_ns = now;
  }
  Broadcast({{"t", "abort"}});
  for (Child& child : children_) {
    if (child.alive) kill(child.pid, SIGCONT);
  }
  starvers_.clear();
  memory_limits_.clear();
  Plan(now + kAbortGraceNs, [this] {
    for (Child& child : children_) {
      if (child.alive) kill(child.pid, SIGKILL);
    }
  });
}

void Launcher::OnMessage(int rank, const nlohmann::json& message) {
  Child& child = children_[rank];
  RankTruth& truth = truth_.ranks[rank];
  const std::string type = message["t"];
  if (type == "hello") {
    child.port = message.value("port", uint16_t{0});
    child.hello = true;
    AfterHello();
  } else if (type == "ready") {
    child.ready = true;
    child.progress_tids = message.value("tids", std::vector<pid_t>{});
    truth.ready_ns = NowNs();
    truth.gpu_offset_ns = message.value("gpu_offset_ns", int64_t{0});
    truth.gpu_drift_ppm = message.value("gpu_drift_ppm", 0.0);
    truth_.api = message.value("api", 0);
    truth_.note = message.value("note", "");
    Go();
  } else if (type == "iter") {
    const uint64_t start = message.value("s", uint64_t{0});
    const uint64_t drained = message.value("d", uint64_t{0});
    truth.iters.push_back({start, message.value("q", uint64_t{0}), drained});
    last_progress_ns_ = NowNs();
    if (rank == 0 &&
        static_cast<int64_t>(truth.iters.size()) - reported_ >= options_.report_every) {
      std::vector<uint64_t> times;
      for (size_t i = static_cast<size_t>(reported_); i < truth.iters.size(); ++i) {
        times.push_back(truth.iters[i][2] - truth.iters[i][0]);
      }
      reported_ = static_cast<int64_t>(truth.iters.size());
      std::sort(times.begin(), times.end());
      char line[128];
      snprintf(line, sizeof(line), "iteration %lld: median %.1f ms, last %.1f ms",
               static_cast<long long>(reported_),
               static_cast<double>(times[times.size() / 2]) / 1e6,
               static_cast<double>(drained - start) / 1e6);
      Say(line);
    }
  } else if (type == "limit") {
    child.limit = message.value("n", int64_t{0});
    FinishAgreement();
  } else if (type == "fault") {
    MarkFault(message.value("i", size_t{0}), message.value("b", false),
              message.value("ns", uint64_t{0}));
  } else if (type == "note") {
    if (!aborted_ && stop_ == Stop::kNo) {
      fprintf(stderr, "mycroft-lab: rank %d: %s\n", rank, message.value("what", "?").c_str());
    }
  } else if (type == "error") {
    const std::string what = message.value("what", "?");
    if (!aborted_ && stop_ == Stop::kNo) {
      fprintf(stderr, "mycroft-lab: rank %d: %s\n", rank, what.c_str());
    }
    if (!message.value("fatal", false)) {
      failed_ = true;
    } else if (stop_ == Stop::kNo && !aborted_) {
      failed_ = true;
      truth.result = "error";
      Plan(NowNs() + (truth_.t0_ns == 0 ? 0 : static_cast<uint64_t>(config_.abort_after_s * 1e9)),
           [this, rank] { Abort("rank " + std::to_string(rank) + " failed, all ranks leave"); });
    }
  } else if (type == "done") {
    child.done = true;
    child.done_iters = message.value("iters", int64_t{0});
    child.bad = message.value("bad", int64_t{0});
    truth.result = message.value("result", "?");
    last_progress_ns_ = NowNs();
    FinishAgreement();
  }
}

void Launcher::OnExit(int rank, int status) {
  Child& child = children_[rank];
  // What it said last is still in the socket.
  nlohmann::json message;
  while (ReceiveControl(child.fd, &message) == ControlResult::kMessage) OnMessage(rank, message);
  close(child.fd);
  child.fd = -1;
  child.alive = false;
  child.exited = true;
  child.wait_status = status;
  RankTruth& truth = truth_.ranks[rank];
  FinishAgreement();
  if (child.done) return;
  if (WIFSIGNALED(status)) {
    truth.result = "killed";
    if (!aborted_) {
      fprintf(stderr, "mycroft-lab: rank %d (pid %d) was killed by signal %d (%s)\n", rank,
              child.pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
  } else {
    if (truth.result == "running")
      truth.result = WEXITSTATUS(status) == kRankAborted ? "aborted" : "error";
    if (WEXITSTATUS(status) == 127) {
      fprintf(stderr, "mycroft-lab: rank %d: cannot start %s\n", rank,
              options_.exe.empty() ? "/proc/self/exe" : options_.exe.c_str());
    } else if (!aborted_ && WEXITSTATUS(status) != kRankError) {
      fprintf(stderr, "mycroft-lab: rank %d (pid %d) exited with status %d\n", rank, child.pid,
              WEXITSTATUS(status));
    }
  }
  if (stop_ != Stop::kNo || aborted_) return;
  failed_ = true;
  SaveTruth();
  if (truth_.t0_ns == 0) {
    Abort("rank " + std::to_string(rank) + " is gone before the job began");
  } else {
    Plan(NowNs() + static_cast<uint64_t>(config_.abort_after_s * 1e9),
         [this, rank] { Abort("rank " + std::to_string(rank) + " is dead, all ranks leave"); });
  }
}

void Launcher::OnSignal() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo == SIGCHLD) continue;
    stop_signal_ = static_cast<int>(info.ssi_signo);
    if (stop_ == Stop::kNo) {
      RequestStop(Stop::kSignal);
    } else {
      Abort("");  // the second time
    }
  }
  for (int r = 0; r < config_.ranks; ++r) {
    Child& child = children_[r];
    if (!child.alive) continue;
    int status = 0;
    if (waitpid(child.pid, &status, WNOHANG) == child.pid) OnExit(r, status);
  }
}

bool Launcher::AllExited() const {
  return std::none_of(children_.begin(), children_.end(), [](const Child& c) { return c.alive; });
}

void Launcher::Loop() {
  while (!AllExited()) {
    const uint64_t now = NowNs();
    // A rank that finished waits for nobody; when the others then make no progress
    // they wait for calls that will never come.
    const bool some_done =
        std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.done; });
    uint64_t stale = kNever;
    if (some_done && !aborted_) {
      stale = last_progress_ns_ + static_cast<uint64_t>(config_.abort_after_s * 1e9) + kNsPerSec;
      if (now >= stale) {
        failed_ = true;
        Abort("some ranks have finished, the others make no progress: all ranks leave");
        continue;
      }
    }
    uint64_t until = std::min(now + kNsPerSec, stale);
    bool ran = false;
    for (size_t i = 0; i < actions_.size(); ++i) {
      if (actions_[i].at_ns <= now) {
        auto run = std::move(actions_[i].run);
        actions_.erase(actions_.begin() + static_cast<ptrdiff_t>(i));
        run();
        ran = true;
        break;
      }
      until = std::min(until, actions_[i].at_ns);
    }
    if (ran) continue;
    std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0}};
    std::vector<int> ranks = {-1};
    for (int r = 0; r < config_.ranks; ++r) {
      if (!children_[r].alive) continue;
      fds.push_back({children_[r].fd, POLLIN, 0});
      ranks.push_back(r);
    }
    const timespec timeout = ToTimespec(until > now ? until - now : 0);
    ppoll(fds.data(), fds.size(), &timeout, nullptr);
    for (size_t i = 1; i < fds.size(); ++i) {
      if ((fds[i].revents & POLLIN) == 0) continue;
      nlohmann::json message;
      while (children_[ranks[i]].fd >= 0 &&
             ReceiveControl(children_[ranks[i]].fd, &message) == ControlResult::kMessage) {
        OnMessage(ranks[i], message);
      }
    }
    OnSignal();
  }
}

int Launcher::Run() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&mask, signal);
  sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  signal_fd_ = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signal_fd_ < 0) {
    fprintf(stderr, "mycroft-lab: signalfd: %s\n", strerror(errno));
    return 1;
  }
  SaveTruth();
  if (truth_failed_) return 1;  // said; better now than after an hour
  if (!Spawn()) {
    failed_ = true;
    Abort("");
  }
  for (int r = 0; r < config_.ranks; ++r) {
    const Role role = RoleOf(config_, r);
    std::string line = "rank " + std::to_string(r) + " pid " + std::to_string(children_[r].pid);
    if (role.dp >= 0) line += " dp " + std::to_string(role.dp);
    if (role.pp >= 0) line += " pp " + std::to_string(role.pp);
    if (role.tp >= 0) line += " tp " + std::to_string(role.tp);
    if (const std::string device = DeviceOf(config_, r); !device.empty()) line += " on " + device;
    Say(line);
  }
  SaveTruth();
  Plan(NowNs() + kSetupTimeoutNs, [this] {
    if (truth_.t0_ns == 0) {
      failed_ = true;
      Abort("not all ranks became ready in time");
    }
  });
  Loop();
  end_ns_ = NowNs();
  starvers_.clear();
  memory_limits_.clear();
  SaveTruth();
  close(signal_fd_);
  const int status = Summary();
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  return status;
}

int Launcher::Summary() {
  // From start to start on rank 0: all that an iteration costs, checks included.
  std::vector<uint64_t> times;
  const auto& iters = truth_.ranks[0].iters;
  for (size_t i = 0; i < iters.size(); ++i) {
    times.push_back((i + 1 < iters.size() ? iters[i + 1][0] : iters[i][2]) - iters[i][0]);
  }
  std::sort(times.begin(), times.end());
  auto at = [&](double q) {
    return times.empty()
               ? 0.0
               : static_cast<double>(
                     times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))]) /
                     1e3;
  };
  bool exact = true;
  bool finished = true;
  for (int r = 0; r < config_.ranks; ++r) {
    const Child& child = children_[r];
    exact = exact && child.bad == 0;
    finished = finished && child.done && truth_.ranks[r].result == "ok" &&
               WIFEXITED(child.wait_status) && WEXITSTATUS(child.wait_status) == kRankOk;
  }
  const bool told = stop_ == Stop::kDuration || stop_ == Stop::kSignal;
  const bool good = exact && !failed_ && (finished || told);
  const double total_s = start_ns_ == 0 ? 0 : static_cast<double>(end_ns_ - start_ns_) / 1e9;
  if (options_.json) {
    nlohmann::json ranks = nlohmann::json::array();
    for (int r = 0; r < config_.ranks; ++r) {
      ranks.push_back({{"rank", r},
                       {"pid", children_[r].pid},
                       {"result", truth_.ranks[r].result},
                       {"iterations", truth_.ranks[r].iters.size()},
                       {"wrong", children_[r].bad}});
    }
    nlohmann::json summary = {{"schema_version", 1},   {"iterations", times.size()},
                              {"median_us", at(0.5)},  {"p95_us", at(0.95)},
                              {"min_us", at(0)},       {"max_us", at(1)},
                              {"total_s", total_s},    {"exact", exact},
                              {"finished", finished},  {"ok", good},
                              {"plugin", truth_.note}, {"profiler_api", truth_.api},
                              {"ranks", ranks}};
    printf("%s\n", summary.dump().c_str());
  } else {
    printf("iterations=%zu median_us=%.0f p95_us=%.0f total_s=%.3f exact=%s result=%s\n",
           times.size(), at(0.5), at(0.95), total_s, exact ? "yes" : "no",
           good ? (finished ? "ok" : "stopped") : "failed");
  }
  fflush(stdout);
  return good ? 0 : 1;
}

}  // namespace

int RunJob(const JobConfig& config, const LaunchOptions& options) {
  return Launcher(config, options).Run();
}

}  // namespace mycroft::lab
