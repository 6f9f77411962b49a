// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/rank.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/lab/job/comm.h"
#include "tools/lab/job/config.h"
#include "tools/lab/job/control.h"
#include "tools/lab/job/memory.h"
#include "tools/lab/job/train.h"

namespace mycroft::lab {
namespace {

constexpr uint64_t kConnectTimeoutNs = 30 * kNsPerSec;
constexpr int64_t kNoLimit = INT64_MAX;
constexpr size_t kNewBuffer = size_t{4} << 20;  // bytes

// May the training loop start the next iteration? Ranks must agree on the last one,
// so the launcher first holds everyone at the iterations already started (limit),
// and then names an iteration that nobody has started (resume).
class Gate {
 public:
  explicit Gate(int64_t iters) : stop_at_(iters > 0 ? iters : kNoLimit) {}

  // Blocks while held. False: the job ends before `iter`.
  bool Start(int64_t iter, uint64_t* pause_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    cv_.wait(lock, [&] { return aborted_ || iter < limit_; });
    if (aborted_ || iter >= stop_at_) return false;
    started_ = iter + 1;
    *pause_ns = iter == pause_at_ ? pause_ns_ : 0;
    return true;
  }
  int64_t Limit() {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = started_;
    return started_;
  }
  void Resume(int64_t at, bool stop, uint64_t pause_ns) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      limit_ = kNoLimit;
      if (stop) {
        stop_at_ = std::min(stop_at_, at);
      } else {
        pause_at_ = at;
        pause_ns_ = pause_ns;
      }
    }
    cv_.notify_all();
  }
  // All ranks are ready: before, no iteration starts.
  void Open() { Resume(-1, false, 0); }
  void Abort() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      aborted_ = true;
    }
    cv_.notify_all();
  }
  // Sleeps on the host; false when aborted meanwhile.
  bool Sleep(uint64_t until_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!aborted_) {
      const uint64_t now = NowNs();
      if (now >= until_ns) return true;
      cv_.wait_for(lock, std::chrono::nanoseconds(std::min(until_ns - now, kNsPerSec)));
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  bool aborted_ = false;
  int64_t started_ = 0;
  int64_t limit_ = 0;
  int64_t stop_at_;
  int64_t pause_at_ = -1;
  uint64_t pause_ns_ = 0;
};

// Waits for a message of one kind before the control thread exists.
bool Await(int fd, const char* type, nlohmann::json* message) {
  while (true) {
    pollfd poll_fd = {fd, POLLIN, 0};
    if (poll(&poll_fd, 1, -1) < 0) continue;
    switch (ReceiveControl(fd, message)) {
      case ControlResult::kNothing:
        continue;
      case ControlResult::kClosed:
        return false;
      case ControlResult::kMessage:
        break;
    }
    if ((*message)["t"] == type) return true;
    if ((*message)["t"] == "abort") return false;
  }
}

class Rank {
 public:
  Rank(int rank, int fd, JobConfig config)
      : rank_(rank),
        fd_(fd),
        config_(std::move(config)),
        gate_(config_.iters),
        faults_(config_.faults, rank,
                [this](int index, bool begin, uint64_t ns) {
                  SendControl(fd_, {{"t", "fault"}, {"i", index}, {"b", begin}, {"ns", ns}});
                }),
        egress_(&faults_),
        driver_(GpuDriver::Load(rank)),
        device_(&faults_, MakeGpuClock(config_.seed, rank), driver_.get()) {}

  int Run();

  static GpuClock MakeGpuClock(uint64_t seed, int rank) {
    std::mt19937_64 random(seed * 31 + static_cast<uint64_t>(rank));
    GpuClock clock;
    clock.offset_ns = static_cast<int64_t>(1'700'000'000'000'000'000ull + random() % (1ull << 50));
    clock.drift_ppm = static_cast<double>(random() % 6001) / 100 - 30;  // -30 to 30
    return clock;
  }

 private:
  int Fail(const std::string& what) {
    SendControl(fd_, {{"t", "error"}, {"what", what}, {"fatal", true}});
    return kRankError;
  }
  void Control();
  void Abort() {
    aborted_.store(true);
    gate_.Abort();
    device_.Abort();
    for (auto& comm : comms_) comm->Abort();
  }
  bool Iterate(Trainer* trainer, int64_t iter);
  bool CannotLock(double kib, uint64_t until_ns);
  void UseMemory();

  int rank_;
  int fd_;
  JobConfig config_;
  Gate gate_;
  FaultBoard faults_;
  Egress egress_;
  std::unique_ptr<GpuDriver> driver_;  // outlives device_
  Device device_;
  std::unique_ptr<VerbsDevice> verbs_;                // outlives comms_
  std::vector<std::unique_ptr<Communicator>> comms_;  // fixed while Control() runs
  std::atomic<bool> aborted_{false};
  std::atomic<bool> finished_{false};
  std::atomic<size_t> memory_bytes_{0};  // that an iteration uses beside
  WorkingSet working_set_;
  int64_t done_ = 0;
  int64_t bad_ = 0;
};

// Runs beside the training loop: orders of the launcher, ends of faults.
void Rank::Control() {
  pthread_setname_np(pthread_self(), "control");
  while (!finished_.load()) {
    pollfd poll_fd = {fd_, POLLIN, 0};
    poll(&poll_fd, 1, 100);
    faults_.Sweep(NowNs());
    nlohmann::json message;
    const ControlResult result = ReceiveControl(fd_, &message);
    if (result == ControlResult::kNothing) continue;
    if (result == ControlResult::kClosed) return Abort();
    const std::string type = message["t"];
    if (type == "go") {
      faults_.Start(message.value("t0", kNever));
      gate_.Open();
    } else if (type == "limit") {
      SendControl(fd_, {{"t", "limit"}, {"n", gate_.Limit()}});
    } else if (type == "resume") {
      gate_.Resume(message.value("at", kNoLimit), message.value("do", "") == "stop",
                   message.value("ns", uint64_t{0}));
    } else if (type == "memory") {
      memory_bytes_.store(message.value("bytes", size_t{0}));
    } else if (type == "abort") {
      Abort();
    }
  }
}

// As a framework that wants another buffer for its collectives, gets none, and issues nothing
// more. False: the job was aborted meanwhile.
bool Rank::CannotLock(double kib, uint64_t until_ns) {
  auto low = LowMemlock::Begin(static_cast<uint64_t>(kib * 1024));
  std::string what;
  if (!low.ok()) {
    what = std::string(low.status().message());
  } else {
    std::vector<char> buffer(kNewBuffer);
    auto region = verbs_->Register(buffer.data(), buffer.size());
    what = region.ok() ? "a buffer was registered in spite of the limit"
                       : std::string(region.status().message());
  }
  SendControl(fd_, {{"t", "note"}, {"what", "memlock: " + what}});
  return gate_.Sleep(until_ns);
}

void Rank::UseMemory() {
  working_set_.Resize(memory_bytes_.load());
  working_set_.Use();
}

bool Rank::Iterate(Trainer* trainer, int64_t iter) {
  uint64_t pause_ns = 0;
  if (!gate_.Start(iter, &pause_ns)) return false;
  if (pause_ns > 0 && !gate_.Sleep(NowNs() + pause_ns)) return false;
  const uint64_t start = NowNs();
  if (faults_.Hold(FaultKind::kAbsent, start)) {
    if (!gate_.Sleep(faults_.EndOf(FaultKind::kAbsent, start))) return false;
  }
  if (const auto us = faults_.Hold(FaultKind::kHostLate, NowNs())) {
    if (!gate_.Sleep(NowNs() + static_cast<uint64_t>(*us * 1e3))) return false;
  }
  if (const auto kib = faults_.Hold(FaultKind::kMemlock, start)) {
    if (!CannotLock(*kib, faults_.EndOf(FaultKind::kMemlock, start))) return false;
  }
  UseMemory();
  trainer->Enqueue(iter);
  const uint64_t enqueued = NowNs();
  if (!device_.Synchronize()) return false;
  const uint64_t drained = NowNs();
  if (!trainer->Verify(iter, iter % 32 == 0)) {
    if (bad_++ == 0) {
      SendControl(fd_, {{"t", "error"},
                        {"what", "wrong data in iteration " + std::to_string(iter)},
                        {"fatal", false}});
    }
  }
  ++done_;
  SendControl(fd_, {{"t", "iter"}, {"i", iter}, {"s", start}, {"q", enqueued}, {"d", drained}});
  return true;
}

int Rank::Run() {
  absl::StatusOr<Listener> listener = Listener::Create(static_cast<int>(config_.socket_buffer));
  if (!listener.ok()) return Fail(std::string(listener.status().message()));
  SendControl(fd_, {{"t", "hello"}, {"port", listener->port()}});
  nlohmann::json message;
  if (!Await(fd_, "ports", &message)) return kRankAborted;

  std::string note;
  auto profiler = Profiler::Load(config_.plugin_given ? config_.plugin.c_str() : nullptr,
                                 config_.profiler_api, config_.plugin_given, &note);
  if (!profiler.ok()) return Fail(std::string(profiler.status().message()));
  Process process;
  process.device = &device_;
  process.input_bytes = driver_ != nullptr ? size_t{64} << 20 : 0;
  process.profiler = profiler->get();
  process.faults = &faults_;
  process.egress = &egress_;
  process.listener = &*listener;
  process.ports = message["ports"].get<std::vector<uint16_t>>();
  process.job_token = message["token"];
  if (config_.transport == Transport::kVerbs) {
    auto device = OpenVerbsDevice(DeviceOf(config_, rank_), [this](const std::string& what) {
      SendControl(fd_, {{"t", "note"}, {"what", what}});
    });
    if (!device.ok()) return Fail(std::string(device.status().message()));
    verbs_ = *std::move(device);
    process.verbs = verbs_.get();
    process.verbs_options = config_.ib;
    process.verbs_flush = config_.ib_flush;
    process.verbs_spin = config_.ib_spin;
    process.all_faults = config_.faults;
  }
  process.channels = config_.channels;
  process.socket_buffer = static_cast<int>(config_.socket_buffer);
  process.connect_after_ns = static_cast<uint64_t>(config_.connect_after_s * 1e9);
  process.connect_deadline_ns = NowNs() + process.connect_after_ns + kConnectTimeoutNs;
  process.on_error = [this](const std::string& what) {
    SendControl(fd_, {{"t", "error"}, {"what", what}, {"fatal", true}});
  };

  auto leave = [&](int status) {
    device_.Join();
    for (auto& comm : comms_) comm->Destroy(true);
    return status;
  };
  std::vector<Communicator*> mine;
  for (const CommPlan& plan : PlanComms(config_)) {
    if (std::find(plan.members.begin(), plan.members.end(), rank_) == plan.members.end()) continue;
    auto comm = Communicator::Create(plan, rank_, &process);
    if (!comm.ok()) {
      return leave(Fail(plan.name + ": " + std::string(comm.status().message())));
    }
    comms_.push_back(*std::move(comm));
    mine.push_back(comms_.back().get());
  }

  std::thread control([this] { Control(); });
  auto finish = [&](const char* result, int status) {
    SendControl(fd_, {{"t", "done"}, {"iters", done_}, {"bad", bad_}, {"result", result}});
    finished_.store(true);
    control.join();
    return status;
  };

  int status = kRankOk;
  {
    Trainer trainer(config_, rank_, mine, &process);
    if (!trainer.WarmUp()) {
      if (!aborted_.load()) Fail("warm-up: wrong data");
      status = leave(kRankAborted);
      return finish("aborted", status);
    }
    nlohmann::json tids = nlohmann::json::array();
    for (const auto& comm : comms_) tids.push_back(comm->progress_tid());
    SendControl(fd_, {{"t", "ready"},
                      {"tids", tids},
                      {"note", note},
                      {"api", (*profiler)->api()},
                      {"gpu_offset_ns", MakeGpuClock(config_.seed, rank_).offset_ns},
                      {"gpu_drift_ppm", MakeGpuClock(config_.seed, rank_).drift_ppm}});
    for (int64_t iter = 0; Iterate(&trainer, iter); ++iter) {
    }
    if (aborted_.load()) {
      status = leave(kRankAborted);
      return finish("aborted", status);
    }
  }
  for (auto& comm : comms_) comm->Destroy(false);
  if (aborted_.load()) return finish("aborted", kRankAborted);
  return finish(bad_ == 0 ? "ok" : "wrong", bad_ == 0 ? kRankOk : kRankWrongSums);
}

}  // namespace

int RunRank(int rank, int control_fd) {
  signal(SIGINT, SIG_IGN);  // the launcher decides
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pthread_setname_np(pthread_self(), "train");
  nlohmann::json message;
  if (!Await(control_fd, "config", &message)) return kRankAborted;
  absl::StatusOr<JobConfig> config = ConfigFromJson(message["job"]);
  if (!config.ok()) {
    SendControl(
        control_fd,
        {{"t", "error"}, {"what", std::string(config.status().message())}, {"fatal", true}});
    return kRankError;
  }
  if (!config->keep_open.empty()) {
    std::string name = config->keep_open;
    if (const size_t at = name.find("{rank}"); at != std::string::npos) {
      name.replace(at, 6, std::to_string(rank));
    }
    if (open(name.c_str(), O_RDONLY | O_CLOEXEC) < 0) {
      SendControl(control_fd, {{"t", "error"},
                               {"what", "--keep-open: " + name + ": " + strerror(errno)},
                               {"fatal", true}});
      return kRankError;
    }
  }
  return Rank(rank, control_fd, *std::move(config)).Run();
}

}  // namespace mycroft::lab
