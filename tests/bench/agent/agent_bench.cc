// SPDX-License-Identifier: Apache-2.0
//
// What the agent takes: 8 processes with 64 flows each, sampled at 10 Hz, through the
// pipeline and into a recording, for ten seconds of real time. The processes are
// children that write their boards as the plugin would: so many operations a second as
// the argument says, in turn on four communicators of 16 flows. Their own time is not
// counted. A training step of seconds with some tens of collectives makes about 20 a
// second in each process; 200 is a hard case. With `probes` the eBPF probes are attached,
// as far as the machine lets them.
//
// Counters: share of one core (user and system time of this process), peak resident
// memory, and what was sampled for each second.
#include <benchmark/benchmark.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "userspace/attribute/pipeline.h"
#include "userspace/base/clock.h"
#include "userspace/base/memory.h"
#include "userspace/decode/bpf_kernel_probes.h"
#include "userspace/decode/live_source.h"
#include "userspace/model/devices.h"
#include "userspace/source/testing/test_board.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMs;
constexpr int kProcesses = 8;
constexpr int kComms = 4;
constexpr int kChannels = 8;  // 16 flows on each communicator
constexpr uint64_t kSeconds = 10;

// The training process of `rank`, an operation every `every_ns`; does not return.
[[noreturn]] void Train(int rank, uint64_t start, uint64_t every_ns) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  TestBoardOptions full;
  full.comms = MC_BOARD_MAX_COMMS;
  full.threads = MC_BOARD_MAX_THREADS;
  full.ops = MC_BOARD_MAX_OPS;
  full.flows = MC_BOARD_MAX_FLOWS;
  TestBoard board(full);
  for (int c = 0; c < kComms; ++c) {
    mc_board_comm comm{};
    comm.generation = 1;
    comm.comm_id = 100 + static_cast<uint64_t>(c);
    comm.rank = rank;
    comm.nranks = kProcesses;
    comm.state = MC_COMM_ACTIVE;
    comm.init_ns = start;
    std::strcpy(comm.name, "world");
    board.WriteComm(static_cast<uint32_t>(c), comm);
  }
  mc_board_thread thread{};
  thread.tid = static_cast<uint32_t>(getpid());
  thread.roles = MC_THREAD_LAUNCH;
  board.WriteThread(0, thread);
  std::thread progress([&board] {
    mc_board_thread line{};
    line.tid = static_cast<uint32_t>(syscall(SYS_gettid));
    line.roles = MC_THREAD_PROGRESS;
    board.WriteThread(1, line);
    for (;;) pause();
  });
  mc_board_flow flows[kComms][2 * kChannels] = {};
  for (uint64_t n = 0;; ++n) {
    const uint64_t at = start + n * every_ns;
    const timespec until{static_cast<time_t>(at / kSecond), static_cast<long>(at % kSecond)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    const int c = static_cast<int>(n % kComms);
    mc_board_op op{};
    op.comm = static_cast<uint32_t>(c);
    op.comm_generation = 1;
    op.id = n + 1;
    op.kind = MC_OP_COLL;
    op.func = MC_FUNC_ALLREDUCE;
    op.datatype = MC_TYPE_FLOAT32;
    op.count = 1 << 20;
    op.ordinal = n / kComms;
    op.start_ns = at;
    op.stop_ns = at + 20'000;
    op.proxy_started = op.proxy_progress = 2 * kChannels;
    op.proxy_first_ns = op.proxy_progress_ns = op.stop_ns;
    op.steps_total = 16 * 2 * kChannels;
    // Two writes: in progress, and done 3 ms later.
    for (int done = 0; done < 2; ++done) {
      const uint64_t now = done != 0 ? at + 3 * kMs : at + kMs;
      op.proxy_done = done != 0 ? op.proxy_started : 0;
      op.steps_done = done != 0 ? op.steps_total : op.steps_total / 2;
      op.proxy_last_ns = done != 0 ? now : 0;
      op.wait_ns[MC_WAIT_RECV_REMOTE] = kChannels * 2 * kMs;
      op.max_wait_ns[MC_MAX_RECV_GPU] = kMs / 2;
      op.send_steps = op.recv_steps = 16 * kChannels;
      op.send_posted_sum_ns = (at + kMs) * op.send_steps;
      op.send_done_sum_ns = op.recv_data_sum_ns = (at + kMs + 50'000) * op.send_steps;
      op.recv_posted_sum_ns = at * op.recv_steps;
      op.bytes_sent = op.bytes_received = 16ull * kChannels << 19;
      board.WriteOp(op);
      for (int f = 0; f < 2 * kChannels; ++f) {
        mc_board_flow& flow = flows[c][f];
        flow.comm = static_cast<uint16_t>(c);
        flow.comm_generation = 1;
        flow.channel = static_cast<uint8_t>(f / 2);
        flow.direction = f % 2 == 0 ? MC_SEND : MC_RECV;
        flow.peer = (rank + (f % 2 == 0 ? 1 : kProcesses - 1)) % kProcesses;
        flow.state = done != 0 ? MC_FLOW_IDLE : f % 2 == 0 ? MC_FLOW_SEND_GPU : MC_FLOW_RECV_REMOTE;
        flow.open_ops = done != 0 ? 0 : 1;
        flow.op_id = op.id;
        flow.total = 16;
        flow.posted = flow.ready = flow.transmitted = flow.done = done != 0 ? 16 : 8;
        flow.chunk_bytes = 1 << 19;
        flow.state_ns = flow.moved_ns = flow.done_ns = now;
        flow.steps_done += 8;
        flow.ops_done += static_cast<uint64_t>(done);
        flow.bytes += 8 << 19;
        board.WriteFlow(static_cast<uint32_t>(c * 2 * kChannels + f), flow);
      }
    }
    __atomic_store_n(&board.header().last_callback_ns, at + 3 * kMs, __ATOMIC_RELAXED);
  }
}

class Job {
 public:
  explicit Job(uint64_t every_ns) {
    const uint64_t start = MonotonicNs() + 50 * kMs;
    for (int rank = 0; rank < kProcesses; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) Train(rank, start, every_ns);
      children_.push_back(pid);
    }
  }
  ~Job() {
    for (const pid_t pid : children_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  std::set<uint32_t> pids() const { return {children_.begin(), children_.end()}; }

 private:
  std::vector<pid_t> children_;
};

double CpuSeconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

// VmHWM, the highest resident size since it was last reset.
double PeakMiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atof(line.c_str() + 6) / 1024;
  }
  return 0;
}

void BM_Agent(benchmark::State& state) {
  const bool store = state.range(0) != 0;
  // A little slower, or the samples would come at the same moment of each operation.
  const uint64_t every_ns = kSecond / static_cast<uint64_t>(state.range(1)) * 51 / 50;
  char folder[] = "/tmp/mycroft-agent-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return state.SkipWithError("no folder for the recording");
  for (auto _ : state) {
    Job job(every_ns);
    std::ofstream("/proc/self/clear_refs") << "5";
    LiveOptions options;
    options.pids = job.pids();
    std::unique_ptr<BpfKernelProbes> probes;
    if (state.range(2) != 0) {
      auto created = BpfKernelProbes::Create({});
      if (!created.ok()) return state.SkipWithError("no probes");
      probes = *std::move(created);
      options.probes = probes.get();
    }
    auto source = LiveSource::Create(options);
    std::unique_ptr<RecordingWriter> writer;
    if (store) {
      auto created = RecordingWriter::Create(std::string(folder) + "/recording");
      if (!created.ok())
        return state.SkipWithError(std::string(created.status().message()).c_str());
      writer = *std::move(created);
    }
    if (!source.ok()) return state.SkipWithError("no live source");
    Pipeline pipeline;
    // The first two seconds find the processes and are not counted.
    const uint64_t begin = MonotonicNs() + 2 * kSecond, end = begin + kSeconds * kSecond;
    double cpu = 0;
    uint64_t first = 0, last = 0, ops = 0, flows = 0, hosts = 0;
    for (;;) {
      auto next = (*source)->Next();
      if (!next.ok() || !*next) return state.SkipWithError("the source has ended");
      const Snapshot& snapshot = **next;
      pipeline.Feed(snapshot);
      if (first == 0 && snapshot.t_ns >= begin) {
        first = snapshot.t_ns;
        cpu = CpuSeconds();
        ops = flows = hosts = 0;
      }
      last = snapshot.t_ns;
      if (last >= end) break;
      for (const ProcessSample& process : snapshot.processes) {
        ops += process.ops.size();
        flows += process.flows.size();
        hosts += process.host ? 1 : 0;
      }
      if (writer && !writer->Append(*std::move(*next)).ok()) {
        return state.SkipWithError("not stored");
      }
    }
    const double seconds = 1e-9 * static_cast<double>(last - first);
    if ((*source)->process_count() != kProcesses) return state.SkipWithError("not all were found");
    state.counters["core_percent"] = 100 * (CpuSeconds() - cpu) / seconds;
    state.counters["peak_MiB"] = PeakMiB();
    state.counters["ops/s"] = static_cast<double>(ops) / seconds;
    state.counters["flows/s"] = static_cast<double>(flows) / seconds;
    state.counters["host/s"] = static_cast<double>(hosts) / seconds;
    if (probes) {
      double attached = 0;
      for (const ProbeRow& row : probes->set().Rows()) attached += !Degraded(ProbeSampleOf(row));
      state.counters["probes"] = attached;
    }
    state.counters["incidents"] = static_cast<double>(pipeline.incidents().size());
  }
  std::filesystem::remove_all(folder);
}

// The yardstick, in the same run: what it costs on this machine to wake up as often and to
// read a quarter MiB, about what a sample touches, after whatever else runs here had the
// caches for 100 ms.
void BM_WakeUps(benchmark::State& state) {
  std::vector<uint64_t> touched(256 * 1024 / sizeof(uint64_t));
  for (auto _ : state) {
    const double cpu = CpuSeconds();
    uint64_t sum = 0;
    for (uint64_t tick = 0; tick < 10 * kSeconds; ++tick) {
      const timespec pause{0, static_cast<long>(100 * kMs)};
      nanosleep(&pause, nullptr);
      for (size_t i = 0; i < touched.size(); i += 8) sum += ++touched[i];  // each cache line
    }
    benchmark::DoNotOptimize(sum);
    state.counters["core_percent"] = 100 * (CpuSeconds() - cpu) / kSeconds;
  }
}
BENCHMARK(BM_WakeUps)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

BENCHMARK(BM_Agent)
    ->ArgNames({"store", "ops_per_s", "probes"})
    ->Args({1, 20, 0})
    ->Args({1, 20, 1})
    ->Args({0, 200, 0})
    ->Args({1, 200, 0})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace mycroft

int main(int argc, char** argv) {
  mycroft::KeepHeapHot();  // as the command does
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
