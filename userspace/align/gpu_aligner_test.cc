// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/gpu_aligner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMs;
constexpr ProcessKey kProcess{100, 7};

// One process, its GPUs with clocks of their own. Operations one after the other.
struct World {
  double offset = 1.796e18 - 3e15, drift = 60e-6;
  std::mt19937_64 random{1};
  bool api = true;  // profiler v5 and later
  mc_proto proto = MC_PROTO_SIMPLE;
  uint32_t level = MC_LEVEL_KERNELS;
  uint64_t step_ns = 1;  // of the GPU's timer

  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random); }
  uint64_t Gpu(uint64_t t) const {
    const auto reading =
        static_cast<uint64_t>(static_cast<long double>(t) + static_cast<long double>(offset) +
                              static_cast<long double>(drift) * t);
    return reading / step_ns * step_ns;
  }
  // Delay with a long tail.
  uint64_t Delay(double least_ns) {
    return static_cast<uint64_t>(least_ns +
                                 std::min(3000 * (std::pow(1 - Uniform(), -0.8) - 1), 50e6));
  }
  static CommSample Comm(uint32_t line, uint64_t id, int32_t rank, int32_t nranks) {
    CommSample comm;
    comm.index = line;
    comm.generation = 1;
    comm.comm_id = id;
    comm.rank = rank;
    comm.nranks = nranks;
    comm.state = MC_COMM_ACTIVE;
    return comm;
  }
  // An operation that is enqueued at `t` and takes 10 ms.
  OpSample Op(uint64_t id, uint32_t comm, uint64_t t) {
    OpSample op;
    op.id = id;
    op.comm = comm;
    op.comm_generation = 1;
    op.kind = MC_OP_COLL;
    op.proto = proto;
    op.channels = 2;
    const uint64_t start = t + Delay(8000);
    // The launch comes first, the event of the enqueueing later: it is no cause.
    op.api_ns = api ? t : 0;
    op.start_ns = start + 2000;
    op.stop_ns = op.start_ns + 1000;
    const uint64_t received = start + 10 * kMs;
    op.proxy_started = op.proxy_done = 4;
    op.proxy_last_ns = received + 20'000;
    op.recv_steps = 4;
    for (uint64_t k = 0; k < 4; ++k) op.recv_data_sum_ns += received - k * 10'000;
    const uint64_t stop = received + Delay(5000);
    op.kernel_started = op.kernel_stopped = 2;
    op.kernel_gpu_start = Gpu(start);
    op.kernel_start_seen_ns = start + Delay(1500);
    op.kernel_gpu_stop = Gpu(stop);
    op.kernel_stop_seen_ns = stop + Delay(1500);
    return op;
  }
  Snapshot Tick(uint64_t t) const {
    Snapshot s;
    s.host = "node1";
    s.t_ns = t;
    ProcessSample p;
    p.key = kProcess;
    p.level = level;
    p.profiler_api = 5;
    s.processes.push_back(p);
    return s;
  }
  // 50 operations a second on one communicator, sampled ten times a second.
  void Run(GpuAligner* aligner, uint64_t from, uint64_t seconds) {
    uint64_t id = 1;
    for (uint64_t tick = 0; tick < seconds * 10; ++tick) {
      const uint64_t t = from + tick * 100 * kMs;
      Snapshot s = Tick(t + 300 * kMs);
      if (tick == 0) s.processes[0].comms.push_back(Comm(0, 9, 3, 8));
      for (uint64_t k = 0; k < 5; ++k) {
        s.processes[0].ops.push_back(Op(id++, 0, t + k * 20 * kMs));
      }
      aligner->Observe(s);
    }
  }
  void Check(const GpuAligner& aligner, uint64_t from, uint64_t seconds, uint64_t most_error) {
    for (int i = 0; i < 200; ++i) {
      const uint64_t t = from + random() % (seconds * kSecond);
      const auto converted = aligner.ToHost("node1", kProcess, 0, Gpu(t));
      ASSERT_TRUE(converted.ok()) << converted.status();
      const double error = std::abs(static_cast<double>(static_cast<int64_t>(converted->ns - t)));
      EXPECT_LE(error, static_cast<double>(converted->error_ns) + 1);
      EXPECT_LE(converted->error_ns, most_error);
    }
  }
};

class Seeds : public testing::TestWithParam<int> {};

TEST_P(Seeds, TheBoundHoldsAndIsTight) {
  World world;
  world.random.seed(GetParam());
  world.drift = (world.Uniform() * 2 - 1) * 100e-6;
  world.offset = world.Uniform() * 1.7e18;
  world.step_ns = GetParam() % 2 == 0 ? 1 : 1000;
  GpuAligner aligner;
  world.Run(&aligner, 5000 * kSecond, 20);
  // The shortest ways are 8 us from the API call and 1.5 us back; the timer's step and
  // what the clocks may wander come on top.
  world.Check(aligner, 5000 * kSecond, 20, 10'000);
  const auto clocks = aligner.Clocks();
  ASSERT_EQ(clocks.size(), 1u);
  EXPECT_EQ(clocks[0].rank, 3);
  EXPECT_EQ(clocks[0].host, "node1");
  EXPECT_EQ(clocks[0].steps, 0u);
  ASSERT_TRUE(clocks[0].error_ns.has_value());
  EXPECT_LE(*clocks[0].error_ns, 10'000u);
  EXPECT_LE(std::abs(clocks[0].drift_ppm - world.drift * 1e6), clocks[0].drift_error_ppm + 0.01);
}

// Profiler v4 tells no API call: the last data is what the GPU's stop must follow.
TEST_P(Seeds, WithoutApiCallsTheDataReceivedIsTheCause) {
  World world;
  world.random.seed(GetParam());
  world.api = false;
  GpuAligner aligner;
  world.Run(&aligner, 5000 * kSecond, 20);
  world.Check(aligner, 5000 * kSecond, 20, 25'000);
}

INSTANTIATE_TEST_SUITE_P(Many, Seeds, testing::Range(1, 31));

TEST(GpuAligner, TheLastDataOfAFlowIsTighterThanTheMean) {
  World world;
  world.api = false;
  GpuAligner mean, flows;
  for (uint64_t i = 0; i < 100; ++i) {
    const uint64_t t = 50 * kSecond + i * 100 * kMs;
    Snapshot s = world.Tick(t + 50 * kMs);
    if (i == 0) s.processes[0].comms.push_back(World::Comm(0, 9, 0, 2));
    s.processes[0].ops.push_back(world.Op(i + 1, 0, t));
    mean.Observe(s);
    FlowSample flow;
    flow.direction = MC_RECV;
    flow.comm_generation = 1;
    flow.last_op_id = i + 1;
    // The last of its four steps, 10 us apart.
    flow.last_final_ns = s.processes[0].ops[0].recv_data_sum_ns / 4 + 15'000;
    FlowSample send = flow, foreign = flow, other = flow;
    send.direction = MC_SEND;
    foreign.owner_pid = 5;
    other.comm = 3;
    for (FlowSample* false_one : {&send, &foreign, &other}) false_one->last_final_ns += 80'000;
    if (i % 2 == 0) {
      s.processes[0].flows = {flow, send, foreign, other};
      flows.Observe(s);
    } else {
      // The flow may be told of before the operation is.
      Snapshot before = world.Tick(t + 49 * kMs);
      before.processes[0].flows = {flow};
      flows.Observe(before);
      flows.Observe(s);
    }
  }
  ASSERT_TRUE(mean.Clocks()[0].error_ns && flows.Clocks()[0].error_ns);
  EXPECT_LT(*flows.Clocks()[0].error_ns + 5000, *mean.Clocks()[0].error_ns);
  EXPECT_EQ(flows.Clocks()[0].steps, 0u);
  world.Check(flows, 50 * kSecond, 10, 12'000);
}

TEST(GpuAligner, SaysWhatIsMissing) {
  World world;
  world.level = MC_LEVEL_STEPS;
  GpuAligner aligner;
  Snapshot s = world.Tick(kSecond);
  aligner.Observe(s);
  EXPECT_TRUE(aligner.Clocks().empty());  // a process without a communicator
  s.processes[0].comms.push_back(World::Comm(0, 9, 0, 2));
  aligner.Observe(s);
  ASSERT_EQ(aligner.Clocks().size(), 1u);
  EXPECT_FALSE(aligner.Clocks()[0].error_ns.has_value());
  EXPECT_EQ(aligner.Clocks()[0].problem,
            "level 'steps' records no kernels; MYCROFT_LEVEL=kernels does");
  s.processes[0].level = MC_LEVEL_KERNELS;
  aligner.Observe(s);
  EXPECT_EQ(aligner.Clocks()[0].problem, "no kernel of NCCL was seen yet");
  EXPECT_EQ(aligner.ToHost("node1", kProcess, 0, 5).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(aligner.ToHost("node1", kProcess, 1, 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(aligner.ToHost("node2", kProcess, 0, 5).status().code(), absl::StatusCode::kNotFound);
}

// Of these no cause of the GPU's events is known: one side stays without bounds.
TEST(GpuAligner, ProtocolsOfTheGpuAndGraphsGiveNoCause) {
  for (const bool graph : {false, true}) {
    World world;
    world.api = graph;  // and even if there was a time of a call, it would not count
    world.proto = MC_PROTO_LL128;
    GpuAligner aligner;
    for (uint64_t i = 0; i < 20; ++i) {
      Snapshot s = world.Tick((10 + i) * kSecond);
      if (i == 0) s.processes[0].comms.push_back(World::Comm(0, 9, 0, 2));
      s.processes[0].ops.push_back(world.Op(i + 1, 0, (9 + i) * kSecond));
      if (graph) s.processes[0].ops[0].flags = MC_OP_GRAPH;
      aligner.Observe(s);
    }
    const auto clocks = aligner.Clocks();
    ASSERT_EQ(clocks.size(), 1u);
    EXPECT_FALSE(clocks[0].error_ns.has_value());
    EXPECT_NE(clocks[0].problem.find(
                  "no event of the GPU's clock is known to follow one of the host's clock"),
              std::string::npos)
        << clocks[0].problem;
  }
}

// A kernel that never stops, one of whose channels has not, or whose stop told no time.
TEST(GpuAligner, AKernelThatDoesNotStopIsBorneOut) {
  World world;
  GpuAligner aligner;
  world.Run(&aligner, 100 * kSecond, 5);
  const auto before = aligner.Clocks();
  for (int k = 0; k < 3; ++k) {
    Snapshot s = world.Tick(110 * kSecond);
    OpSample op = world.Op(1000 + k, 0, 105 * kSecond);
    if (k == 0) op.kernel_stopped = 0, op.kernel_gpu_stop = op.kernel_stop_seen_ns = 0;
    if (k == 1) op.kernel_stopped = 1, op.kernel_gpu_stop = op.kernel_gpu_start + 1000;
    if (k == 2) op.kernel_gpu_stop = 0;
    s.processes[0].ops.push_back(op);
    aligner.Observe(s);
  }
  const auto after = aligner.Clocks();
  EXPECT_EQ(after[0].steps, 0u);
  EXPECT_TRUE(after[0].error_ns.has_value());
  world.Check(aligner, 100 * kSecond, 5, 10'000);
}

TEST(GpuAligner, GpusOfOneProcessHaveClocksOfTheirOwn) {
  World first, second;
  second.offset = 4e17;
  second.drift = -50e-6;
  GpuAligner aligner;
  for (uint64_t i = 0; i < 100; ++i) {
    const uint64_t t = 50 * kSecond + i * 100 * kMs;
    Snapshot s = first.Tick(t + 50 * kMs);
    ProcessSample& p = s.processes[0];
    if (i == 0) {
      p.comms = {World::Comm(0, 9, 0, 4), World::Comm(1, 9, 1, 4), World::Comm(2, 8, 0, 2)};
    }
    // The third communicator is on the first GPU: nothing says otherwise.
    p.ops = {first.Op(3 * i + 1, 0, t), second.Op(3 * i + 2, 1, t), first.Op(3 * i + 3, 2, t)};
    aligner.Observe(s);
  }
  const auto clocks = aligner.Clocks();
  ASSERT_EQ(clocks.size(), 2u);
  EXPECT_EQ(clocks[0].rank, 0);
  EXPECT_EQ(clocks[1].rank, 1);
  EXPECT_EQ(clocks[0].steps + clocks[1].steps, 0u);
  const uint64_t t = 55 * kSecond;
  for (const auto& [comm, world] : {std::pair{0u, &first}, {1u, &second}, {2u, &first}}) {
    const auto converted = aligner.ToHost("node1", kProcess, comm, world->Gpu(t));
    ASSERT_TRUE(converted.ok());
    EXPECT_NEAR(static_cast<double>(converted->ns), static_cast<double>(t), 12'000);
  }
}

TEST(GpuAligner, AnyNumbersAreBorne) {
  std::mt19937_64 random(4);
  const auto any = [&] { return random() >> (random() % 64); };
  GpuAligner aligner;
  for (int i = 0; i < 3000; ++i) {
    Snapshot s;
    s.host = "h";
    s.t_ns = any();
    ProcessSample& p = s.processes.emplace_back();
    p.key.pid = static_cast<uint32_t>(random() % 3);
    p.level = static_cast<uint32_t>(any());
    CommSample comm = World::Comm(random() % 4, random() % 3, static_cast<int32_t>(any()), 4);
    comm.generation = random() % 2;
    p.comms.push_back(comm);
    OpSample op;
    op.id = any();
    op.comm = random() % 5;
    op.comm_generation = random() % 2;
    op.kind = MC_OP_COLL;
    op.proto = MC_PROTO_SIMPLE;
    op.channels = random() % 3;
    op.kernel_started = random() % 3;
    op.kernel_stopped = random() % 3;
    op.proxy_started = op.proxy_done = random() % 3;
    op.recv_steps = random() % 3;
    for (uint64_t* t :
         {&op.api_ns, &op.kernel_gpu_start, &op.kernel_gpu_stop, &op.kernel_start_seen_ns,
          &op.kernel_stop_seen_ns, &op.proxy_last_ns, &op.recv_data_sum_ns}) {
      *t = any();
    }
    p.ops.push_back(op);
    FlowSample flow;
    flow.direction = MC_RECV;
    flow.last_op_id = random() % 2 == 0 ? op.id : any();
    flow.last_final_ns = any();
    p.flows.push_back(flow);
    aligner.Observe(s);
    (void)aligner.ToHost("h", p.key, comm.index, any());
    (void)aligner.Clocks();
  }
}

}  // namespace
}  // namespace mycroft
