// SPDX-License-Identifier: Apache-2.0
//
// What has misled people in public incidents: each trap is an assertion.
#include "userspace/attribute/testing/hardware_world.h"

namespace mycroft {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// 1. Completion status 12 has at least five causes; 5 and 249 are after-effects.
class Status12 : public HardwareWorld {};

TEST_F(Status12, ByAFlappingLink) {
  Warm();
  LoseOnPath(1);
  ++hw().Port(2).counters["link_downed"];
  Wait(1'000);
  FailQp(1, 2, 12);
  Wait(2'000);
  ExpectCulprit(2, Component::kNic);
  EXPECT_THAT(Last().culprits[0].where, HasSubstr("mlx5_0/1"));
}

TEST_F(Status12, ByAWrongGid) {
  hw().Qp(1, 1, 2).gid_index = 2;
  hw().Qp(1, 1, 2).posts[kQpWrite] = 1;
  LoseOnPath(1);
  FailQp(1, 2, 12);
  Wait(14'000);
  ExpectCulprit(1, Component::kNic);
}

TEST_F(Status12, ByAPeerWhoseResourcesWereTakenAway) {
  Warm();
  LoseOnPath(1);
  hw().Qp(2, 1, 2).destroyed = true;  // the process itself lives
  Wait(1'000);
  FailQp(1, 2, 12);
  Wait(2'000);
  ExpectCulprit(2, Component::kHost);
  ExpectEvidence("was destroyed while its process lives");
}

TEST_F(Status12, ByALossyFabric) {
  Warm();
  LoseOnPath(1);
  for (int i = 0; i < 10; ++i) {
    hw().Port(1).counters["local_ack_timeout_err"] += 5;
    hw().Port(2).counters["out_of_sequence"] += 5;
    Wait(100);
  }
  FailQp(1, 2, 12);
  Wait(2'000);
  ExpectCulprit(1, Component::kFabric);
}

TEST_F(Status12, ByAPeerThatExited) {
  Warm();
  LoseOnPath(1);
  hw().Event(2, {.kind = HardwareEventKind::kProcessExit, .pid = 1002, .number = 1});
  job().Exit(2);
  Wait(500);
  FailQp(1, 2, 12);
  Wait(2'000);
  ExpectCulprit(2, Component::kHost);
  EXPECT_EQ(Last().kind, IncidentKind::kDead);
  EXPECT_THAT(Last().summary, Not(HasSubstr("NIC")));
}

TEST_F(Status12, AloneNamesNobody) {
  Warm();
  LoseOnPath(1);
  FailQp(1, 2, 12);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(Status12, FlushedRequestsAreNeverTheRoot) {
  for (uint32_t status : {5u, 249u}) {
    Make(4);
    pipeline_ = Pipeline();
    seen_.clear();
    Warm();
    LoseOnPath(1);
    for (int rank : {0, 3}) FailQp(rank, (rank + 1) % 4, status);  // torn down by others
    FailQp(1, 2, 10);
    Wait(3'000);
    ExpectCulprit(2, Component::kApp);
    ExpectNoEvidence("status 5");
    ExpectNoEvidence("status 249");
    Make(4);
    pipeline_ = Pipeline();
    seen_.clear();
    Warm();
    LoseOnPath(1);
    FailQp(1, 2, status);
    Wait(3'000);
    ExpectUnknown({Component::kNic, Component::kFabric, Component::kApp});
  }
}

// 2. The same pauses, with and without a PCIe path at its limit.
class Pauses : public HardwareWorld {
 protected:
  void Run(double gbytes_per_s) {
    hw().Port(2).rate_gbps = 800;
    Warm();
    Costs costs(4);
    costs[1].net_ms = 90;
    for (int i = 0; i < 80; ++i) {
      hw().Port(2).counters["tx_prio3_pause"] += 500;
      Steps(1, costs, gbytes_per_s);
    }
    ExpectEvidence("sends pause frames: tx_prio3_pause");
  }
};

TEST_F(Pauses, OfAFullPathArePcie) {
  Run(28);
  ExpectCulprit(2, Component::kPcie);
}

TEST_F(Pauses, OfAPathWithRoomAreNot) {
  Run(2);
  EXPECT_EQ(Last().culprits.at(0).component, Component::kUnknown) << Dump(Last());
}

// 3. An Xid near the hang is not yet the cause.
class Xid : public HardwareWorld {
 protected:
  void Report(int rank, uint32_t xid) {
    hw().Event(rank, {.kind = HardwareEventKind::kXid,
                      .device = hw().Address(rank, Place::kGpu),
                      .number = xid,
                      .text = "Xid"});
  }
};

TEST_F(Xid, WithoutAMechanismIsRejected) {
  Warm();
  Report(3, 48);
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectRejected("gpu of rank 3", "no mechanism");
}

TEST_F(Xid, OfAProgramIsRejected) {
  Warm();
  Report(2, 31);
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "what a program did");
}

TEST_F(Xid, AfterTheHangIsRejected) {
  Warm();
  LeaveOut(2);
  Wait(6'000);
  Report(2, 48);
  Wait(2'000);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "too late");
}

TEST_F(Xid, OfHardwareJustBeforeIsTheCause) {
  Warm();
  Report(2, 48);
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, Component::kGpu);
  ExpectEvidence("double bit ECC error");
}

TEST_F(Xid, LongBeforeAndTheJobRanOnIsRejected) {
  Warm();
  Report(2, 94);
  Warm();
  Warm();
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "operations went on after that");
}

// 4. What looks like software can be hardware, and the other way round.
TEST_F(Xid, AbsentRankWithFailingMemoryIsNotSoftware) {
  Warm();
  Report(1, 95);
  LeaveOut(1);
  Wait(3'000);
  ExpectCulprit(1, Component::kGpu);
}

TEST_F(Xid, BrokenConnectionByAWrongRequestIsNotHardware) {
  Warm();
  LoseOnPath(1);
  FailQp(1, 2, 10, 0);
  Wait(3'000);
  ExpectCulprit(2, Component::kApp);
  ExpectRejected("nic of rank 1", "count no errors of their own");
}

// 5. All kernels run, all GPUs are at 100 %: they spin.
class BusyGpus : public HardwareWorld {};

TEST_F(BusyGpus, RunningKernelsDoNotMakeACulprit) {
  Warm();
  LeaveOut(3);
  for (int rank : {0, 1, 2}) {
    OpSample& op = job().Newest(rank);
    op.kernel_started = 2;
    op.kernel_start_seen_ns = job().now_ns();
    job().Host(rank).state = 'R';
  }
  Wait(3'000);
  ExpectCulprit(3, Component::kHost);
  EXPECT_EQ(Last().kind, IncidentKind::kAbsent);
}

// 6. Links: by load, over time, against siblings, and over the whole path.
class Links : public HardwareWorld {
 protected:
  Costs Slow() {
    Costs costs(4);
    costs[2].flush_ms = 80;
    return costs;
  }
};

TEST_F(Links, TheNarrowestHopOfThePathCounts) {
  Warm();
  hw().Pci(2, Place::kSwitch).width = 4;  // GPU and NIC themselves run at their best
  Steps(80, Slow());
  ExpectCulprit(2, Component::kPcie);
  ExpectEvidence("PCIe link " + hw().Address(2, Place::kSwitch) + " of rank 2");
  ExpectEvidence("16 GT/s x4");
}

TEST_F(Links, IdleSpeedIsNoEvidence) {
  Warm();
  hw().Pci(2, Place::kGpu).speed_gts = 2.5;
  Wait(5'000);
  hw().Pci(2, Place::kGpu).speed_gts = 16;
  Steps(100, Costs(4));
  Steps(80, Slow());
  ExpectCulprit(2, Component::kPcie);  // by the flush, not by the link
  ExpectNoEvidence("2.5 GT/s");
}

// 7. The rank that waits is not the one that is late.
TEST_F(BusyGpus, TheLateRankHasTheFewestEvents) {
  Warm();
  LeaveOut(1);
  for (int rank : {0, 2, 3}) {  // their connections are silent because they wait
    hw().Qp(rank, rank, (rank + 1) % 4).last_post_ns = job().now_ns();
  }
  Wait(3'000);
  ExpectCulprit(1, Component::kHost);
  EXPECT_THAT(Last().victims, testing::UnorderedElementsAre(0, 2, 3));
}

// 8. Only ports that the job's queue pairs use.
TEST_F(BusyGpus, AnOpenDeviceWithoutQueuePairsDoesNotCount) {
  hw().Process(2).rdma_devices.push_back("mlx5_9");
  Warm();
  NicPortSample unused = hw().Port(2);
  unused.device = "mlx5_9";
  unused.state = "DOWN";
  unused.counters["symbol_error"] = 100'000;
  Snapshot extra;
  extra.host = "node2";
  extra.t_ns = job().now_ns();
  extra.hardware.emplace().nics = {unused};
  pipeline_.Feed(extra);
  seen_.push_back(extra);
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("mlx5_9");
}

// 9. A failed read is no missing device, a reset no negative delta.
TEST_F(BusyGpus, UnreadableIsNotAbsent) {
  for (auto& [name, value] : hw().Port(2).counters) value = 50;
  Warm();
  NicPortSample& port = hw().Port(2);
  port.state.clear();
  port.phys_state.clear();
  port.rate_gbps.reset();
  port.counters.clear();
  PciSample& gpu = hw().Pci(2, Place::kGpu);
  gpu.speed_gts.reset();
  gpu.width.reset();
  gpu.aer_fatal.reset();
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(BusyGpus, ResetCountersAreNoErrors) {
  for (int rank = 0; rank < 4; ++rank) {
    for (auto& [name, value] : hw().Port(rank).counters) value = 1'000'000;
  }
  Warm();
  for (int rank = 0; rank < 4; ++rank) {
    for (auto& [name, value] : hw().Port(rank).counters) value = 0;
  }
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  for (const char* what : {"went down", "lost", "not ready", "pause", "errors of its link"}) {
    ExpectNoEvidence(what);
  }
}

// 10. One root, many victims.
TEST_F(BusyGpus, OneGpuAgainst63) {
  Make(64, 8);
  Steps(40, Costs(64));
  hw().Pci(37, Place::kGpu).unreachable = true;
  StickGpu(37);
  Wait(2'500);
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  ExpectCulprit(37, Component::kGpu);
  EXPECT_THAT(Last().victims, SizeIs(63));
}

TEST_F(BusyGpus, BothDirectionsOfOnePortAreOneRoot) {
  Make(2);
  Warm();
  hw().Port(1).state = "DOWN";
  Enter();
  for (int rank : {0, 1}) job().Ring(rank, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Wait(3'000);
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  ExpectCulprit(1, Component::kNic);
}

// 11. GPU-initiated networking: silence on the host is not idleness.
TEST_F(BusyGpus, SilentQueuePairsAreSaidToBeInvisible) {
  for (int i = 0; i < 20; ++i) {
    for (int rank = 0; rank < 4; ++rank) {
      hw().Port(rank).counters["port_xmit_data"] += 1'000'000'000;  // nobody posts
    }
    job().Cycle(Costs(4));
    Feed();
    Wait(1'000);
  }
  const auto spots = pipeline_.BlindSpots();
  EXPECT_THAT(spots, Contains(AllOf(Field(&BlindSpot::what, HasSubstr("show no post")),
                                    Field(&BlindSpot::lost, HasSubstr("not idleness")))));
  LoseOnPath(1);
  Wait(14'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectEvidence("its silence says nothing");
  ExpectNoEvidence("without completions");
}

TEST_F(BusyGpus, QueuePairsThatPostAreVisible) {
  Warm();
  EXPECT_THAT(pipeline_.BlindSpots(), IsEmpty());
}

// 12. A few healthy transfers after a flap hide queue pairs that stay in the error state.
class AfterAFlap : public HardwareWorld {
 protected:
  void Flap() {
    Warm();
    hw().Port(2).state = "DOWN";
    ++hw().Port(2).counters["link_downed"];
    Wait(1'100);
    hw().Port(2).state = "ACTIVE";
  }
};

TEST_F(AfterAFlap, QueuePairInErrorIsFound) {
  Flap();
  FailQp(1, 2, 12);
  for (int i = 0; i < 5; ++i) Warm();  // over other connections of the port, for 30 s
  LoseOnPath(1);
  Wait(3'000);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("is still in the error state, though the port is up again");
}

TEST_F(AfterAFlap, QueuePairInErrorOfAnotherConnectionIsNot) {
  Flap();
  FailQp(2, 3, 12);
  for (int i = 0; i < 5; ++i) Warm();
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(AfterAFlap, WithAllQueuePairsWellIsNot) {
  Flap();
  for (int i = 0; i < 5; ++i) Warm();
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

// And with all of it: without samples of the workers concerned nothing changes.
TEST_F(BusyGpus, WithoutSamplesTheCallbacksDecide) {
  for (int rank = 0; rank < 4; ++rank) hw().Hide(rank);
  Warm();
  LoseOnPath(1);
  Wait(3'000);
  ExpectCulprit(1, Component::kNic);  // as without hardware: what is missing has not left
  EXPECT_THAT(Last().evidence, SizeIs(1));
}

}  // namespace
}  // namespace mycroft
