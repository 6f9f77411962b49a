// SPDX-License-Identifier: Apache-2.0
//
// Joining and tomography, several culprits, and hostile samples. The incidents
// themselves: incidents_test.cc, traps_test.cc.
#include "userspace/attribute/evidence.h"

#include <limits>
#include <random>

#include "userspace/attribute/testing/hardware_world.h"

namespace mycroft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class Evidence : public HardwareWorld {};

// ---- join ---------------------------------------------------------------------------------

TEST_F(Evidence, FlowIsJoinedWithItsQueuePair) {
  Warm();
  Enter();
  FlowSample& flow = job().Flow(1, 0, 0, MC_SEND, 2);
  job().Ring(1, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  flow.transmitted_ns = job().now_ns();
  QpSample& qp = hw().Qp(1, 1, 2);
  qp.last_post_ns = job().now_ns() - 12'500;
  ++qp.posts[kQpWrite];
  Wait(3'000);
  ExpectEvidence("rank 1 to rank 2 is queue pair " + std::to_string(qp.number) +
                 " of mlx5_0, connected to " + std::to_string(qp.remote_number) +
                 " of mlx5_0 on node2; its last post is 12.5 us from the step's hand-over");
}

TEST_F(Evidence, OtherEndWithoutProbesIsFoundByAddressAndThread) {
  Warm();
  // Host 2 has pollers but no verbs probes: known ports, unknown queue pairs.
  HardwareModel model;
  JobModel job_model;
  for (Snapshot snapshot : seen_) {
    if (snapshot.host == "node2") {
      for (ProcessSample& process : snapshot.processes) {
        if (process.hardware) process.hardware->qps.clear();
      }
    }
    model.Apply(snapshot);
    job_model.Apply(snapshot);
  }
  const auto& workers = job_model.workers();
  auto qps = QpsOfEdge(model, *workers[1], *workers[2]);
  ASSERT_THAT(qps, SizeIs(1));
  EXPECT_EQ(qps[0]->now.number, hw().Qp(1, 1, 2).number);
  EXPECT_TRUE(QpsOfEdge(model, *workers[2], *workers[3]).empty());  // nothing is known of it
  EXPECT_THAT(QpsOfEdge(model, *workers[0], *workers[1]), SizeIs(1));
  EXPECT_TRUE(QpsOfEdge(model, *workers[0], *workers[3]).empty());  // the other direction
}

TEST_F(Evidence, UnacknowledgedOverVerbsMayBeAnywhere) {
  // Without verbs the callbacks' rule holds: see pipeline_test.
  Warm();
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(Evidence, SoItIsWhereTheQueuePairsAreNotSeen) {
  for (int rank = 0; rank < 4; ++rank) {
    const int next = (rank + 1) % 4;
    for (int end : {rank, next}) {  // connected before the probes were there
      hw().Qp(end, rank, next).remote_number = 0;
      hw().Qp(end, rank, next).remote_gid.clear();
    }
  }
  Warm();
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

// Soft-RoCE: nothing goes over PCIe.
TEST_F(Evidence, FlushOverASoftwareDeviceIsTheHost) {
  hw().Port(1).pci.clear();
  hw().Process(1).gpus.clear();
  Warm();
  StickFlush(1);
  Wait(3'000);
  ExpectCulprit(1, Component::kHost);
}

TEST_F(Evidence, FlushOverARealDeviceIsPcie) {
  Warm();
  StickFlush(1);
  Wait(3'000);
  ExpectCulprit(1, Component::kPcie);
}

// The last samples of /proc are of the time before it stood still.
TEST_F(Evidence, StarvedBeforeItStoodStillIsNotTheHost) {
  Warm();
  Enter();
  job().Ring(1, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  for (int i = 0; i < 30; ++i) {
    for (ThreadSample& thread : job().Host(1).threads) thread.runq_wait_ns += 70'000'000;
    hw().Delay(1, true).off_cpu_ns += 90'000'000;
    Wait(100);
  }
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("waited for a CPU");
}

// ---- tomography over ports ------------------------------------------------------------------

TEST_F(Evidence, SeveralSlowPathsOverWorkingPortsAreFabric) {
  Make(8, 2);
  Warm();
  Costs costs(8);
  costs[1].net_ms = costs[5].net_ms = 90;
  Steps(20, costs);
  ASSERT_THAT(Last().culprits, SizeIs(1)) << Dump(Last());
  EXPECT_EQ(Last().culprits[0].component, Component::kFabric) << Dump(Last());
  ExpectEvidence("every port of them also serves paths that are not");
}

TEST_F(Evidence, PortThatAllSlowPathsShareIsNic) {
  Make(8, 2);
  // Rank 1 uses the port of rank 0; inside the host nothing goes over it.
  for (auto [from, to] : {std::pair{1, 2}, std::pair{0, 1}}) {
    hw().Qp(1, from, to).device = "mlx5_0";
  }
  hw().Qp(2, 1, 2).remote_gid = hw().Port(0).gids[3].gid;
  hw().Qp(0, 0, 1).destroyed = hw().Qp(1, 0, 1).destroyed = true;
  Warm();
  Costs costs(8);
  costs[7].net_ms = costs[1].net_ms = 90;  // into and out of that host
  Steps(20, costs);
  ASSERT_THAT(Last().culprits, SizeIs(1)) << Dump(Last());
  EXPECT_EQ(Last().culprits[0].component, Component::kNic) << Dump(Last());
  EXPECT_EQ(Last().culprits[0].host, "node0");
  EXPECT_EQ(Last().culprits[0].where, "mlx5_0/1");
}

// ---- several, unseen ---------------------------------------------------------------------------

TEST_F(Evidence, TwoCausesAreTwoCulprits) {
  Make(6);
  Warm();
  hw().Pci(1, Place::kGpu).unreachable = true;
  hw().Port(5).state = "DOWN";
  Enter();
  job().Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  job().Ring(4, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Wait(3'000);
  ASSERT_THAT(Last().culprits, SizeIs(2)) << Dump(Last());
  EXPECT_EQ(Last().culprits[0].component, Component::kGpu);
  EXPECT_EQ(Last().culprits[1].component, Component::kNic);
  EXPECT_EQ(Last().culprits[1].rank, 5);
}

TEST_F(Evidence, BrokenPortIsNamedThoughThePeerIsNotSeen) {
  job().Hide(2);
  Warm();
  hw().Port(1).state = "DOWN";
  ++hw().Port(1).counters["link_downed"];
  LoseOnPath(1);
  Wait(3'000);
  ExpectCulprit(1, Component::kNic);
}

TEST_F(Evidence, WithoutAnythingBrokenAnUnseenPeerStaysUnnamed) {
  job().Hide(2);
  Warm();
  LoseOnPath(1);
  Wait(3'000);
  EXPECT_TRUE(Last().culprits.empty()) << Dump(Last());
}

TEST_F(Evidence, ClearedCauseClears) {
  Warm();
  hw().Port(2).state = "DOWN";
  LoseOnPath(1);
  Wait(3'000);
  ExpectCulprit(2, Component::kNic);
  hw().Port(2).state = "ACTIVE";
  job().FinishAll();
  Feed();
  EXPECT_TRUE(Last().cleared_ns);
  EXPECT_EQ(Last().kind, IncidentKind::kSlow);
  ExpectCulprit(2, Component::kNic);
}

// ---- hostile
// -------------------------------------------------------------------------------------

TEST_F(Evidence, RandomSamplesNeverHurt) {
  std::mt19937_64 random(7);
  auto below = [&](uint64_t n) { return random() % n; };
  auto any = [&]() -> uint64_t {
    switch (below(6)) {
      case 0:
        return 0;
      case 1:
        return UINT64_MAX;
      case 2:
        return job().now_ns();
      case 3:
        return job().now_ns() - below(20 * kSecond);
      default:
        return below(1'000);
    }
  };
  for (int round = 0; round < 60; ++round) {
    Make(4, 2);
    Pipeline pipeline;
    job().EnterAll();
    for (int tick = 0; tick < 120; ++tick) {
      job().Sleep(static_cast<double>(below(1500)));
      if (below(3) == 0) job().FinishAll();
      if (below(3) == 0) job().EnterAll();
      for (int rank = 0; rank < 4; ++rank) {
        if (below(2) == 0) {
          job().Ring(rank, static_cast<mc_flow_state>(below(MC_FLOW_RECV_GPU + 1)),
                     static_cast<mc_flow_state>(below(MC_FLOW_RECV_GPU + 1)));
        }
        const auto place = static_cast<Place>(below(6));
        PciSample& pci = hw().Pci(rank, place);
        pci.parent =
            below(8) == 0 ? hw().Address(below(4), static_cast<Place>(below(6))) : pci.parent;
        pci.unreachable = below(4) == 0;
        pci.present = below(8) != 0;
        pci.speed_gts = below(4) == 0 ? std::numeric_limits<double>::quiet_NaN()
                                      : static_cast<double>(below(70)) - 3;
        pci.width = static_cast<uint32_t>(any());
        pci.aer_fatal = any();
        pci.rx_bytes = any();
        NicPortSample& port = hw().Port(rank);
        port.state = below(2) == 0 ? "DOWN" : below(2) == 0 ? "" : "ACTIVE";
        for (auto& [name, value] : port.counters) value = any();
        port.rate_gbps = static_cast<double>(any());
        for (int other : {rank, (rank + 3) % 4}) {
          QpSample& qp = hw().Qp(rank, other, (other + 1) % 4);
          qp.state = static_cast<QpState>(below(8));
          qp.state_ns = any();
          qp.first_bad_status = static_cast<uint32_t>(below(24));
          qp.first_bad_ns = any();
          qp.remote_number = below(4) == 0 ? static_cast<uint32_t>(any()) : qp.remote_number;
          qp.gid_index = static_cast<uint32_t>(below(6));
          qp.path_mtu = static_cast<uint32_t>(any());
          qp.timeout = static_cast<uint32_t>(any());
          qp.retry_count = static_cast<uint32_t>(any());
          qp.min_rnr_timer = static_cast<uint32_t>(any());
          qp.completions = any();
          qp.failed_completions = any();
          qp.last_completion_ns = any();
          qp.last_post_ns = any();
          qp.receives = any();
          qp.destroyed = below(16) == 0;
          qp.created_ns = below(16) == 0 ? any() : qp.created_ns;
        }
        hw().Mr(rank).failures = any();
        hw().Mr(rank).last_errno = 12;
        hw().Mr(rank).last_failure_bytes = any();
        hw().Process(rank).memlock_limit = any();
        hw().Process(rank).direct_reclaim_ns = any();
        hw().Delay(rank, below(2) == 0).runq_ns = any();
        hw().Delay(rank, false).stack = {std::string(300, '%'), "vfs_read"};
        hw().Event(rank, {.t_ns = any(),
                          .kind = static_cast<HardwareEventKind>(below(14)),
                          .severity = static_cast<Severity>(below(6)),
                          .device = below(2) == 0 ? hw().Address(rank, place) : port.device,
                          .pid = static_cast<uint32_t>(1000 + below(5)),
                          .number = static_cast<uint32_t>(any()),
                          .text = "%s%n DOWN"});
      }
      for (const Snapshot& snapshot : hw().Take()) pipeline.Feed(snapshot);
      pipeline.Suspicions();
      for (const Incident& incident : pipeline.incidents()) {
        ASSERT_FALSE(incident.summary.empty());
        ASSERT_LE(incident.evidence.size(), 64u);
        for (const Culprit& culprit : incident.culprits) {
          ASSERT_GE(culprit.confidence, 0);
          ASSERT_LE(culprit.confidence, 1);
          ASSERT_GE(culprit.gpu_seconds_lost, 0);
        }
      }
    }
    pipeline.BlindSpots();
  }
}

}  // namespace
}  // namespace mycroft
