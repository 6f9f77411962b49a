// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/host_aligner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMs;

// Two ranks on two hosts, a ring of two: each sends to the other in every operation.
// True time is host 0's clock; host 1's is shifted and drifts.
struct TwoHosts {
  double offset = 0, drift = 0;
  uint64_t Clock(int host, uint64_t t) const {
    return host == 0 ? t : static_cast<uint64_t>(static_cast<double>(t) * (1 + drift) + offset);
  }
  Snapshot Make(int host, uint64_t ordinal, uint64_t t, uint64_t transit) const {
    Snapshot s;
    s.host = host == 0 ? "a" : "b";
    s.t_ns = Clock(host, t + 50 * kMs);
    ProcessSample p;
    p.key = {static_cast<uint32_t>(100 + host), 1};
    if (ordinal == 0) {
      CommSample c;
      c.comm_id = 7;
      c.rank = host;
      c.nranks = 2;
      c.state = MC_COMM_ACTIVE;
      c.init_ns = Clock(host, kSecond);
      p.comms.push_back(c);
      for (mc_direction d : {MC_SEND, MC_RECV}) {
        FlowSample f;
        f.index = d;
        f.direction = d;
        f.peer = 1 - host;
        p.flows.push_back(f);
      }
    }
    OpSample op;
    op.id = ordinal + 1;
    op.kind = MC_OP_COLL;
    op.ordinal = ordinal;
    op.start_ns = Clock(host, t);
    op.proxy_started = op.proxy_done = 2;
    op.proxy_last_ns = Clock(host, t + 20 * kMs);
    op.send_steps = op.recv_steps = 4;
    for (uint64_t k = 0; k < 4; ++k) {
      op.send_posted_sum_ns += Clock(host, t + k * kMs);
      op.recv_data_sum_ns += Clock(host, t + k * kMs + transit);
    }
    p.ops.push_back(op);
    s.processes.push_back(p);
    return s;
  }
};

TEST(HostAligner, FindsOffsetAndDriftWithinItsBound) {
  TwoHosts world{-3.5e15, 40e-6};
  HostAligner aligner;
  std::mt19937_64 random(5);
  uint64_t t = 4'000'000 * kSecond;
  for (uint64_t i = 0; i < 200; ++i, t += 100 * kMs) {
    aligner.Observe(world.Make(0, i, t, 100'000 + random() % 2'000'000));
    aligner.Observe(world.Make(1, i, t, 30'000 + random() % 200'000));
  }
  EXPECT_EQ(aligner.pairs(), 400u);
  for (uint64_t at : {t - 15 * kSecond, t - kSecond}) {
    Snapshot s = world.Make(1, 5, at, 0);
    uint64_t truth = at + 50 * kMs;
    auto offset = aligner.OffsetOf("b", s.t_ns);
    ASSERT_TRUE(offset.ok()) << offset.status();
    ASSERT_TRUE(aligner.Align(&s).ok());
    double error = std::abs(static_cast<double>(static_cast<int64_t>(s.t_ns - truth)));
    EXPECT_LE(error, static_cast<double>(offset->error_ns) + 600);
    EXPECT_LE(offset->error_ns, 200'000u);
    // All times of the snapshot move together, sums included.
    // (40 ppm of drift within the snapshot stay.)
    auto near = [](uint64_t a, uint64_t b) {
      return std::abs(static_cast<double>(static_cast<int64_t>(a - b))) < 4000;
    };
    EXPECT_TRUE(near(s.processes[0].ops[0].start_ns + 50 * kMs, s.t_ns));
    EXPECT_TRUE(near(s.processes[0].ops[0].send_posted_sum_ns / 4 + 48 * kMs + kMs / 2, s.t_ns));
  }
}

TEST(HostAligner, OneDirectionIsNotEnoughAndSaysSo) {
  TwoHosts world{1e9, 0};
  HostAligner aligner;
  for (uint64_t i = 0; i < 10; ++i) {
    Snapshot a = world.Make(0, i, (10 + i) * kSecond, kMs);
    Snapshot b = world.Make(1, i, (10 + i) * kSecond, kMs);
    a.processes[0].ops[0].recv_steps = 0;  // b never sends to a
    b.processes[0].ops[0].send_steps = 0;
    aligner.Observe(a);
    aligner.Observe(b);
  }
  auto offset = aligner.OffsetOf("b", 20 * kSecond);
  ASSERT_FALSE(offset.ok());
  EXPECT_NE(std::string(offset.status().message()).find("one side"), std::string::npos)
      << offset.status();
}

TEST(HostAligner, UnrelatedHostsAreRefused) {
  HostAligner aligner;
  Snapshot a, b;
  a.host = "a";
  b.host = "b";
  aligner.Observe(a);
  aligner.Observe(b);
  EXPECT_FALSE(aligner.OffsetOf("b", 1).ok());
  EXPECT_TRUE(aligner.OffsetOf("a", 1).ok());
  EXPECT_EQ(aligner.OffsetOf("c", 1).status().code(), absl::StatusCode::kNotFound);
}

TEST(ShiftSnapshot, ShiftsSumsByStepsAndLeavesZeroAlone) {
  TwoHosts world;
  Snapshot s = world.Make(0, 0, 10 * kSecond, kMs);
  Snapshot moved = s;
  ShiftSnapshot(-7, &moved);
  EXPECT_EQ(moved.processes[0].ops[0].send_posted_sum_ns + 28,
            s.processes[0].ops[0].send_posted_sum_ns);
  EXPECT_EQ(moved.processes[0].ops[0].kernel_start_seen_ns, 0u);
  EXPECT_EQ(moved.processes[0].comms[0].init_ns + 7, s.processes[0].comms[0].init_ns);
  ShiftSnapshot(7, &moved);
  EXPECT_EQ(moved, s);
}

TEST(ShiftSnapshot, ShiftsTheTimesOfHardware) {
  Snapshot s;
  s.t_ns = 100;
  s.hardware.emplace().events.emplace_back().t_ns = 50;
  ProcessHardware& hardware = s.processes.emplace_back().hardware.emplace();
  QpSample& qp = hardware.qps.emplace_back();
  qp.created_ns = qp.state_ns = qp.last_post_ns = qp.last_receive_ns = qp.last_completion_ns = 60;
  hardware.mrs.emplace_back().last_failure_ns = 70;
  ShiftSnapshot(1000, &s);
  EXPECT_EQ(s.hardware->events[0].t_ns, 1050u);
  for (uint64_t t : {qp.created_ns, qp.state_ns, qp.last_post_ns, qp.last_receive_ns,
                     qp.last_completion_ns}) {
    EXPECT_EQ(t, 1060u);
  }
  EXPECT_EQ(qp.first_bad_ns, 0u);  // never: stays never
  EXPECT_EQ(hardware.mrs[0].last_failure_ns, 1070u);
}

}  // namespace
}  // namespace mycroft
