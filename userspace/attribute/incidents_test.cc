// SPDX-License-Identifier: Apache-2.0
//
// Public incidents that verbs, PCIe or host evidence decides, as made snapshots, each
// with twins that look alike and must not give the same verdict.
#include "userspace/attribute/testing/hardware_world.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Component kGpuOf = Component::kGpu;

// ---- pcie-gen2: the link of one GPU is stuck at a low speed -----------------------------

class PcieGen2 : public HardwareWorld {
 protected:
  void SetLink(int rank, double gts) {
    hw().Pci(rank, Place::kGpu).speed_gts = gts;
    hw().Pci(rank, Place::kAboveGpu).speed_gts = gts;
  }
  Costs Slow(int rank) {
    Costs costs(4);
    costs[rank].gpu_ms = 81;  // its copies take long
    return costs;
  }
};

TEST_F(PcieGen2, IsPcie) {
  Warm();
  SetLink(2, 5);
  Steps(80, Slow(2));
  ExpectCulprit(2, Component::kPcie);
  ExpectEvidence("runs at 5 GT/s x16 under load");
  ExpectEvidence("siblings are faster");
  ExpectRejected("gpu of rank 2", "only shows");
  EXPECT_THAT(Last().summary, HasSubstr("the PCIe path of rank 2"));
}

TEST_F(PcieGen2, FlappingLinkIsPcie) {
  Warm();
  for (int i = 0; i < 14; ++i) {  // seven slow readings, seven at full speed
    SetLink(2, i % 2 == 0 ? 2.5 : 16);
    Steps(12, Slow(2));
  }
  ExpectCulprit(2, Component::kPcie);
}

TEST_F(PcieGen2, SlowGpuWithAGoodLinkIsGpu) {
  Warm();
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
  ExpectNoEvidence("under load");
}

TEST_F(PcieGen2, Gen1WhileIdleIsPowerSaving) {
  Warm();
  for (int rank = 0; rank < 4; ++rank) SetLink(rank, 2.5);
  Wait(8'000);  // nothing moves
  for (int rank = 0; rank < 4; ++rank) SetLink(rank, 16);
  Steps(100, Costs(4));
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
  ExpectNoEvidence("GT/s");
}

TEST_F(PcieGen2, LinkThatWasAlwaysSlowIsNotWhatChanged) {
  SetLink(2, 5);
  Warm();
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
  ExpectRejected("pcie of rank 2", "as slow before the onset");
}

TEST_F(PcieGen2, AllLinksAlikeAreNoFaultOfOne) {
  Warm();
  for (int rank = 0; rank < 4; ++rank) SetLink(rank, 8);
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
  ExpectRejected("pcie of rank 2", "all its siblings");
}

TEST_F(PcieGen2, LinkOfAnotherRankIsRejected) {
  Warm();
  SetLink(1, 5);
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
  ExpectRejected("pcie of rank 1", "no mechanism");
}

TEST_F(PcieGen2, LinkThatCannotBeReadSaysNothing) {
  Warm();
  hw().Pci(2, Place::kGpu).speed_gts.reset();
  hw().Pci(2, Place::kAboveGpu).width.reset();
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
}

// ---- pcie-upstream: a slower switch above the devices -----------------------------------

class PcieUpstream : public HardwareWorld {
 protected:
  // Gen5 devices below a Gen4 switch; the NIC has a 400 Gbit/s port.
  void SetUp() override {
    Make(4);
    for (Place place : {Place::kGpu, Place::kNic, Place::kAboveGpu, Place::kAboveNic}) {
      PciSample& pci = hw().Pci(1, place);
      pci.speed_gts = pci.max_speed_gts = 32;
    }
    hw().Port(1).rate_gbps = 400;
  }
  Costs Slow() {
    Costs costs(4);
    costs[0].net_ms = costs[1].net_ms = 90;  // into and out of rank 1
    return costs;
  }
};

TEST_F(PcieUpstream, IsPcie) {
  Warm();
  Steps(80, Slow(), 29);  // as much as 16 GT/s x16 carries
  ExpectCulprit(1, Component::kPcie);
  ExpectEvidence("as much as its slowest link");
  ExpectEvidence(hw().Address(1, Place::kSwitch));
}

TEST_F(PcieUpstream, FarFromTheLimitItIsNot) {
  Warm();
  Steps(80, Slow(), 5);
  ExpectCulprit(1, Component::kNic);
  ExpectNoEvidence("slowest link");
}

TEST_F(PcieUpstream, AsBeforeIsNotWhatChanged) {
  Steps(580, Costs(4), 29);
  Steps(80, Slow(), 29);
  ExpectCulprit(1, Component::kNic);
  ExpectRejected("pcie of rank 1", "before the onset, too");
}

// ---- pcie-acs ---------------------------------------------------------------------------

class PcieAcs : public HardwareWorld {
 protected:
  void Redirect(int rank) {
    hw().Pci(rank, Place::kAboveGpu).acs_redirect = true;
    hw().Pci(rank, Place::kAboveNic).acs_redirect = true;
  }
};

TEST_F(PcieAcs, DeadlockInTheFirstOperationIsPcie) {
  Redirect(1);
  LoseOnPath(1);
  Wait(14'000);
  ExpectCulprit(1, Component::kPcie);
  ExpectEvidence("ACS at bridge");
  ExpectEvidence(hw().Address(1, Place::kSwitch));
}

TEST_F(PcieAcs, WithoutGpuDirectItIsNot) {
  Redirect(1);
  hw().Host(1).peer_memory_module = false;
  LoseOnPath(1);
  Wait(14'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(PcieAcs, ThatWasOnWhileTheJobRanIsNot) {
  Redirect(1);
  Warm();
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectRejected("pcie of rank 1", "when operations completed");
}

// ---- nic-flap ---------------------------------------------------------------------------

class NicFlap : public HardwareWorld {};

TEST_F(NicFlap, BeforeTheFirstFailedRequestIsNic) {
  Warm();
  LoseOnPath(1);
  ++hw().Port(2).counters["link_downed"];  // down and up again between two polls
  Wait(1'000);
  FailQp(1, 2, 12);
  Wait(2'000);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("went down");
  ExpectEvidence("completion status 12");
  ExpectRejected("pcie of rank 2", "no errors");
}

TEST_F(NicFlap, SeenByItsEventsIsNic) {
  Warm();
  hw().Event(2, {.kind = HardwareEventKind::kPortState,
                 .device = "mlx5_0",
                 .number = 1,
                 .text = "port 1 DOWN"});
  LoseOnPath(1);
  Wait(1'000);
  FailQp(1, 2, 12);
  Wait(2'000);
  ExpectCulprit(2, Component::kNic);
}

TEST_F(NicFlap, PortThatStaysDownIsNic) {
  Warm();
  hw().Port(2).state = "DOWN";
  hw().Port(2).phys_state = "Polling";
  ++hw().Port(2).counters["link_downed"];
  LoseOnPath(1);
  Wait(3'000);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("is DOWN");
}

TEST_F(NicFlap, AfterTheFirstFailedRequestIsNot) {
  Warm();
  LoseOnPath(1);
  FailQp(1, 2, 12);
  Wait(4'000);
  ++hw().Port(2).counters["link_downed"];  // somebody resets the port
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectRejected("nic of rank 2", "before it went down");
}

TEST_F(NicFlap, OfAPortThatTheJobDoesNotUseIsNot) {
  Warm();
  NicPortSample management = hw().Port(2);
  management.device = "mlx5_9";
  management.pci.clear();
  management.netdev = "eth9";
  management.state = "DOWN";
  management.counters["link_downed"] = 7;
  LoseOnPath(1);
  Snapshot extra;
  extra.host = "node2";
  extra.t_ns = job().now_ns();
  extra.hardware.emplace().nics = {management};
  pipeline_.Feed(extra);
  seen_.push_back(extra);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("mlx5_9");
}

TEST_F(NicFlap, CounterThatWasResetIsNot) {
  hw().Port(2).counters["link_downed"] = 9;
  Warm();
  hw().Port(2).counters["link_downed"] = 0;  // the driver was loaded again
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("went down");
}

TEST_F(NicFlap, LongAgoAndHealedIsNot) {
  Warm();
  ++hw().Port(2).counters["link_downed"];
  Warm();
  Warm();
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(NicFlap, OfBothEndsDoesNotSayWhich) {
  Warm();
  for (int rank : {1, 2}) {
    hw().Port(rank).state = "DOWN";
    ++hw().Port(rank).counters["link_downed"];
  }
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

// The other end polls for a partner.
TEST_F(NicFlap, OfBothEndsTheOneThatIsSwitchedOff) {
  Warm();
  for (int rank : {1, 2}) {
    hw().Port(rank).state = "DOWN";
    hw().Port(rank).phys_state = rank == 2 ? "Disabled" : "Polling";
    ++hw().Port(rank).counters["link_downed"];
  }
  LoseOnPath(1);
  Wait(3'000);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("is DOWN (Disabled)");
}

// ---- nic-gid ----------------------------------------------------------------------------

class NicGid : public HardwareWorld {
 protected:
  // The connection from 1 to 2 is new and never passes a byte.
  void NeverWorks() {
    for (int rank : {1, 2}) {
      QpSample& qp = hw().Qp(rank, 1, 2);
      qp.posts[kQpWrite] = 3;
      qp.last_post_ns = job().now_ns();
    }
    LoseOnPath(1);
    FailQp(1, 2, 12);
    Wait(14'000);
  }
};

TEST_F(NicGid, WrongTypeIsNic) {
  hw().Qp(1, 1, 2).gid_index = 2;  // v1 of the same address
  NeverWorks();
  ExpectCulprit(1, Component::kNic);
  ExpectEvidence("never completed one request");
  ExpectEvidence("IB/RoCE v1");
  ExpectEvidence("completion status 12 (retries exceeded, vendor 129)");
}

TEST_F(NicGid, WrongTypeAtTheReceiverIsNicOfTheReceiver) {
  hw().Qp(2, 1, 2).gid_index = 2;
  NeverWorks();
  ExpectCulprit(2, Component::kNic);
}

TEST_F(NicGid, LinkLocalAddressIsNic) {
  hw().Qp(1, 1, 2).gid_index = 1;  // RoCE v2, but fe80::
  NeverWorks();
  ExpectCulprit(1, Component::kNic);
  ExpectEvidence("fe80");
}

TEST_F(NicGid, RightGidsAreNot) {
  NeverWorks();
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("GID");
}

TEST_F(NicGid, ConnectionThatWorkedIsNot) {
  hw().Qp(1, 1, 2).gid_index = 2;
  Warm();  // completes its requests
  LoseOnPath(1);
  FailQp(1, 2, 12);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("GID");
}

// ---- nic-rnr ----------------------------------------------------------------------------

class NicRnr : public HardwareWorld {
 protected:
  Costs Slow() {
    Costs costs(4);
    costs[1].net_ms = 655;
    costs[1].leaves_slowly = true;
    return costs;
  }
  void Rnr(int count) {
    for (int i = 0; i < count; ++i) {
      hw().Port(1).counters["rnr_nak_retry_err"] += 40;
      job().Cycle(Slow());
      hw().Move(0.001);
      QpSample& receiver = hw().Qp(2, 1, 2);
      receiver.receive_completions = receiver.receives;  // empty
      Feed();
    }
  }
};

TEST_F(NicRnr, EmptyReceiveQueueIsTheReceiver) {
  Warm();
  hw().Qp(2, 1, 2).min_rnr_timer = 0;  // 655 ms
  Rnr(12);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("receiver not ready: rank 2 does not post receives for rank 1");
  ExpectEvidence("the receive queue of its peer is empty");
  ExpectEvidence("each retry waits at least 655.36 ms");
  EXPECT_THAT(Last().culprits[0].where, HasSubstr("mlx5_0/1"));
}

TEST_F(NicRnr, StarvedReceiverIsItsHost) {
  Warm();
  for (int i = 0; i < 12; ++i) {
    hw().Delay(2, true).runq_ns += 600'000'000;
    Rnr(1);
  }
  ExpectCulprit(2, Component::kHost);
  ExpectEvidence("waited for a CPU");
}

TEST_F(NicRnr, CountersOfAnotherConnectionAreNot) {
  // The sender's port counts, but this receiver has its receives posted.
  Warm();
  for (int i = 0; i < 12; ++i) {
    hw().Port(1).counters["rnr_nak_retry_err"] += 40;
    Steps(1, Slow(), 0.001);
  }
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectRejected("nic of rank 2", "is not empty");
}

TEST_F(NicRnr, StuckWithStatus13) {
  Warm();
  LoseOnPath(1);
  FailQp(1, 2, 13);
  hw().Port(1).counters["rnr_nak_retry_err"] += 8;
  Wait(3'000);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("completion status 13");
}

// ---- pause-pcie -------------------------------------------------------------------------

class PausePcie : public HardwareWorld {
 protected:
  void SetUp() override {
    Make(4);
    hw().Port(2).rate_gbps = 800;  // 100 GB/s
    for (Place place : {Place::kNic, Place::kAboveNic, Place::kSwitch, Place::kRoot}) {
      PciSample& pci = hw().Pci(2, place);
      pci.speed_gts = pci.max_speed_gts = 32;  // 63 GB/s
    }
  }
  void Paused(double gbytes_per_s) {
    Costs costs(4);
    costs[1].net_ms = 90;
    for (int i = 0; i < 80; ++i) {
      hw().Port(2).counters["tx_prio3_pause"] += 500;
      hw().Port(1).counters["rx_prio3_pause"] += 500;
      Steps(1, costs, gbytes_per_s);
    }
  }
};

TEST_F(PausePcie, ReceiverAtItsLimitIsPcie) {
  Warm();
  Paused(55);
  ExpectCulprit(2, Component::kPcie);
  ExpectEvidence("sends pause frames");
  ExpectEvidence("its port feeds 800 Gbit/s");
}

TEST_F(PausePcie, ReceiverFarFromItsLimitIsNot) {
  Warm();
  Paused(5);
  ExpectUnknown({Component::kNic, Component::kPcie, Component::kHost});
  ExpectEvidence("what slows it is not known");
}

TEST_F(PausePcie, PausesOfAnUnusedPriorityBeforeAndAfterAreNot) {
  Costs costs(4);
  costs[1].net_ms = 90;
  for (int i = 0; i < 580; ++i) {
    hw().Port(2).counters["tx_prio3_pause"] += 60;  // as many per second as ever
    Steps(1, Costs(4));
  }
  for (int i = 0; i < 80; ++i) {
    hw().Port(2).counters["tx_prio3_pause"] += 500;
    Steps(1, costs);
  }
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("pause");
}

// ---- host-memlock -----------------------------------------------------------------------

class HostMemlock : public HardwareWorld {
 protected:
  void FailRegistration() {
    MrSample& mr = hw().Mr(1);
    mr.failures = 1;
    mr.last_errno = 12;
    mr.last_failure_bytes = 32 << 20;
    mr.last_failure_ns = job().now_ns();
  }
};

TEST_F(HostMemlock, LowLimitIsHost) {
  hw().Process(1).memlock_limit = 65536;
  FailRegistration();
  LeaveOut(1);  // its initialization failed
  Wait(13'000);
  ExpectCulprit(1, Component::kHost);
  ExpectEvidence("failed for rank 1 with ENOMEM; RLIMIT_MEMLOCK is 65536 bytes");
  EXPECT_THAT(Last().summary, HasSubstr("memory cannot be locked"));
}

TEST_F(HostMemlock, UnlimitedIsNotWhatStoppedIt) {
  FailRegistration();
  LeaveOut(1);
  Wait(13'000);
  ExpectNoEvidence("RLIMIT_MEMLOCK");
  ExpectRejected("host of rank 1", "is not what stopped it");
}

TEST_F(HostMemlock, UnreadableLimitIsNoLimit) {
  hw().Process(1).memlock_limit.reset();
  FailRegistration();
  LeaveOut(1);
  Wait(13'000);
  ExpectRejected("host of rank 1", "could not be read");
}

TEST_F(HostMemlock, FailureOfAnotherRankIsRejected) {
  hw().Process(1).memlock_limit = 65536;
  Warm();
  FailRegistration();
  StickGpu(3);
  Wait(3'000);
  ExpectCulprit(3, kGpuOf);
  ExpectRejected("host of rank 1", "no mechanism");
}

// ---- gpu-offbus -------------------------------------------------------------------------

class GpuOffBus : public HardwareWorld {};

TEST_F(GpuOffBus, HealthyGpuIsAmongTheRejected) {
  hw().Gpu(2);
  Warm();
  hw().Pci(2, Place::kAboveGpu).speed_gts = hw().Pci(2, Place::kGpu).speed_gts = 5;
  Costs costs(4);
  costs[2].gpu_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kPcie);
  ExpectRejected("gpu of rank 2", "1980 of 1980 MHz, its driver answers");
}

TEST_F(GpuOffBus, AllOnesIsGpuWithAWarningOfPcie) {
  Warm();
  hw().Pci(2, Place::kAboveGpu).aer_nonfatal = 3;
  hw().Pci(2, Place::kGpu).unreachable = true;
  StickGpu(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  EXPECT_GT(Last().culprits[0].confidence, 0.9);
  ExpectEvidence("reads all ones");
  ExpectEvidence("warning: the PCIe path");
  ExpectEvidence("uncorrectable PCIe errors");
}

TEST_F(GpuOffBus, RankThatIsAbsentByItIsGpu) {
  Warm();
  hw().Pci(2, Place::kGpu).unreachable = true;
  hw().Event(2, {.kind = HardwareEventKind::kXid,
                 .device = hw().Address(2, Place::kGpu),
                 .number = 79,
                 .text = "fell off"});
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
}

TEST_F(GpuOffBus, RemovedIsGpu) {
  Warm();
  hw().Pci(2, Place::kGpu).present = false;
  StickGpu(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("is not on the bus any more");
}

TEST_F(GpuOffBus, NicThatIsGoneIsNic) {
  Warm();
  hw().Pci(2, Place::kNic).unreachable = true;
  LoseOnPath(1);
  Wait(3'000);
  ExpectCulprit(2, Component::kNic);
}

TEST_F(GpuOffBus, GpuOfNobodyIsNot) {
  Warm();
  PciSample spare = hw().Pci(2, Place::kGpu);
  spare.address = "0000:77:00.0";
  spare.unreachable = true;
  Snapshot extra;
  extra.host = "node1";
  extra.t_ns = job().now_ns();
  extra.hardware.emplace().pci = {spare};
  pipeline_.Feed(extra);
  seen_.push_back(extra);
  LoseOnPath(1);
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(GpuOffBus, LongAfterTheOnsetIsAnAfterEffect) {
  Warm();
  LeaveOut(2);
  Wait(20'000);
  hw().Pci(2, Place::kGpu).unreachable = true;  // somebody resets it
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "too late");
}

TEST_F(GpuOffBus, LostForTheDriverAloneIsGpu) {
  // A virtual machine: configuration space says nothing.
  for (int rank = 0; rank < 4; ++rank) hw().Gpu(rank);
  Warm();
  hw().Gpu(2).lost = true;
  StickGpu(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  EXPECT_GT(Last().culprits[0].confidence, 0.9);
  ExpectEvidence("has given up GPU");
  ExpectEvidence("warning: the PCIe path");
}

TEST_F(GpuOffBus, Xid79AloneIsGpuWithAWarningOfPcie) {
  Warm();
  hw().Event(2, Xid(2, 79));
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("Xid 79, fell off the bus");
  ExpectEvidence("warning: the PCIe path");
}

TEST_F(GpuOffBus, DriverThatDoesNotComeBackIsGpu) {
  for (int rank = 0; rank < 4; ++rank) hw().Gpu(rank);
  Warm();
  LeaveOut(2);
  hw().Gpu(2).silent_since_ns = job().now_ns();
  hw().Gpu(2).hangs = true;
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("has not come back");
}

TEST_F(GpuOffBus, ValuesThatAreOldSayNothing) {
  // Another GPU of the host hangs the driver: what was last known of this one is no news.
  Make(4, 2);
  for (int rank = 0; rank < 4; ++rank) hw().Gpu(rank);
  Warm();
  LeaveOut(2);
  for (int rank : {2, 3}) hw().Gpu(rank).silent_since_ns = job().now_ns();
  hw().Gpu(3).hangs = true;
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 3", "no mechanism");
}

TEST_F(GpuOffBus, WhatFollowsAnXidIsNotTheOrigin) {
  Warm();
  hw().Event(2, Xid(2, 45));  // the order of the log at one instant is not the order of causes
  hw().Event(2, Xid(2, 79));
  hw().Event(2, Xid(2, 43));
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("Xid 79");
  ExpectRejected("gpu of rank 2", "it follows Xid 79, fell off the bus of the same GPU");
  ExpectNoEvidence("Xid 43");
}

TEST_F(GpuOffBus, NeighboursNvlinksAreAnAfterEffect) {
  Make(4, 4);
  for (int rank = 0; rank < 4; ++rank) hw().Gpu(rank);
  Warm();
  hw().Gpu(2).lost = true;
  hw().Event(2, Xid(2, 79));
  for (int rank : {0, 1, 3}) {
    hw().Event(rank, Xid(rank, 74));
    hw().Gpu(rank).nvlinks[1].active = false;
  }
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectRejected("nvlink of rank 0", "it follows Xid 79");
}

TEST_F(GpuOffBus, XidOfAProgramIsNot) {
  Warm();
  hw().Event(2, Xid(2, 31));
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "what a program did");
}

// ---- gpu-thermal ------------------------------------------------------------------------

class GpuThermal : public HardwareWorld {
 protected:
  void SetUp() override {
    Make(4);
    for (int rank = 0; rank < 4; ++rank) hw().Gpu(rank);
  }
  void Heat(int rank, uint32_t mhz = 345) {
    GpuSample& gpu = hw().Gpu(rank);
    gpu.sm_mhz = mhz;
    gpu.clock_reasons = clock_reason::kHardwareSlowdown | clock_reason::kHardwareThermal;
    gpu.temperature_c = 89;
    gpu.power_w = 210;
  }
  Costs Slow(int rank) {
    Costs costs(4);
    costs[rank].gpu_ms = 81;
    return costs;
  }
};

TEST_F(GpuThermal, IsGpu) {
  Warm();
  Heat(2);
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("runs at 345 MHz instead of 1980 of at most 1980: thermal slowdown by the hardware "
                 "at 89 C (slows down at 87 C)");
  ExpectEvidence("the GPUs of 3 other ranks run at 1980 MHz");
  EXPECT_THAT(Last().summary, HasSubstr("thermal slowdown, 345 MHz"));
}

TEST_F(GpuThermal, RankThatIsLateByItIsGpu) {
  Warm();
  Heat(2);
  Costs costs(4);
  costs[2].host_ms = 81;  // it waits for its GPU before it launches
  Steps(80, costs);
  ExpectCulprit(2, kGpuOf);
  ExpectRejected("host of rank 2", "it only shows");
}

TEST_F(GpuThermal, LateRankWithACoolGpuIsHost) {
  Warm();
  Costs costs(4);
  costs[2].host_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kHost);
  ExpectNoEvidence("MHz");
}

TEST_F(GpuThermal, OfAnotherRankIsRejected) {
  Warm();
  Heat(1);
  Costs costs(4);
  costs[2].host_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 1", "no mechanism");
}

TEST_F(GpuThermal, AsHotAsBeforeIsNotWhatChanged) {
  Heat(2);
  Warm();
  Costs costs(4);
  costs[2].host_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "as low before the onset");
}

TEST_F(GpuThermal, AllGpusAlikeAreNoFaultOfOne) {
  Warm();
  for (int rank = 0; rank < 4; ++rank) Heat(rank, 1200);
  Costs costs(4);
  costs[2].host_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "run as slowly");
}

TEST_F(GpuThermal, ThatCostsNoClocksIsNot) {
  Warm();
  Heat(2, 1935);
  Costs costs(4);
  costs[2].host_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "instead of 1980");
}

TEST_F(GpuThermal, IdleGpuMayRest) {
  Warm();
  hw().Gpu(2).sm_mhz = 210;
  hw().Gpu(2).clock_reasons = clock_reason::kIdle | clock_reason::kPowerCap;
  Costs costs(4);
  costs[2].host_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kHost);
  ExpectNoEvidence("MHz");
}

TEST_F(GpuThermal, PowerCapOfOneIsGpu) {
  Warm();
  hw().Gpu(2).sm_mhz = 990;
  hw().Gpu(2).clock_reasons = clock_reason::kPowerCap;
  hw().Gpu(2).power_w = hw().Gpu(2).power_limit_w = 300;
  Steps(80, Slow(2));
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("power cap; it takes 300 of 300 W");
}

TEST_F(GpuThermal, PowerCapOfAllIsTheJobsSpeed) {
  for (int rank = 0; rank < 4; ++rank) {
    hw().Gpu(rank).sm_mhz = 1400;
    hw().Gpu(rank).clock_reasons = clock_reason::kPowerCap;
  }
  Warm();
  Costs costs(4);
  costs[2].host_ms = 81;
  Steps(80, costs);
  ExpectCulprit(2, Component::kHost);
  ExpectNoEvidence("power cap");
}

TEST_F(GpuThermal, DuringAHangItDecidesNothing) {
  Warm();
  Heat(2);
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
}

// ---- memory of the GPU, NVLink ----------------------------------------------------------

class GpuMemory : public GpuThermal {};

TEST_F(GpuMemory, UncorrectedErrorsAreGpu) {
  Warm();
  LeaveOut(2);
  Wait(500);
  hw().Gpu(2).ecc_uncorrected = 3;
  hw().Event(2, Xid(2, 95));
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("uncorrected ECC errors +3");
  ExpectEvidence("uncontained ECC error");
}

TEST_F(GpuMemory, CorrectedErrorsDecideNothing) {
  Warm();
  LeaveOut(2);
  hw().Gpu(2).ecc_corrected = 500;
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
}

TEST_F(GpuMemory, ErrorsFromBeforeAreNoNews) {
  hw().Gpu(2).ecc_uncorrected = 3;
  hw().Gpu(2).remap_failed = true;
  Warm();
  LeaveOut(2);
  Wait(3'000);
  ExpectCulprit(2, Component::kHost);
}

TEST_F(GpuMemory, NvlinkThatGoesDownIsNvlink) {
  Warm();
  hw().Gpu(2).nvlinks[3].active = false;
  hw().Event(2, Xid(2, 74));
  StickGpu(2);
  Wait(3'000);
  ExpectCulprit(2, Component::kNvlink);
  ExpectEvidence("NVLink error");
}

TEST_F(GpuMemory, NvlinkThatIsTrainedAgainIsNvlink) {
  Warm();
  for (int i = 0; i < 80; ++i) {
    *hw().Gpu(2).nvlinks[3].recoveries += 2;
    *hw().Gpu(2).nvlinks[3].replays += 100;
    Steps(1, Slow(2));
  }
  ExpectCulprit(2, Component::kNvlink);
  ExpectEvidence("NVLink 3 of GPU");
  ExpectEvidence("trained again");
}

TEST_F(GpuMemory, NvlinkThatIsNotWiredIsNot) {
  hw().Gpu(2).nvlinks[3].active = false;
  Warm();
  StickGpu(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectNoEvidence("NVLink");
}

TEST_F(GpuMemory, BusyAtAFractionOfItsPowerSpins) {
  Warm();
  hw().Gpu(2).power_w = 140;
  StickGpu(2);
  Wait(3'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("is 100 % busy at 140 of 700 W: it spins");
}

// ---- the work of GPUs, by CUPTI ---------------------------------------------------------

class GpuWork : public HardwareWorld {
 protected:
  // Steps in which every rank computes and copies. One rank's kernels or copies take longer.
  void Train(int count, const Costs& costs, int rank = -1, double kernels = 1, double copies = 1) {
    for (int i = 0; i < count; ++i) {
      for (int r = 0; r < 4; ++r) {
        GpuWorkSample& work = hw().GpuWork(r);
        GpuDeviceWork& gpu = work.devices[0];
        work.launches += 10;
        work.last_launch_ns = job().now_ns();
        gpu.kernels += 10;
        gpu.expected_ns += 5'000'000;
        gpu.kernel_ns += static_cast<uint64_t>(5e6 * (r == rank ? kernels : 1));
        gpu.copies[MC_GPU_COPY_HTOD] += 1;
        gpu.copy_bytes[MC_GPU_COPY_HTOD] += 4 << 20;
        gpu.copy_ns[MC_GPU_COPY_HTOD] += static_cast<uint64_t>(4e5 * (r == rank ? copies : 1));
      }
      Steps(1, costs);
    }
  }
  void Warm() { Train(580, Costs(4)); }
  static Costs Late(int rank, double host_ms, double gpu_ms) {
    Costs costs(4);
    costs[rank].host_ms = host_ms;
    costs[rank].gpu_ms = gpu_ms;
    return costs;
  }
  // All ranks have launched the kernel of the collective; none is finished.
  void LaunchNccl() {
    for (int r = 0; r < 4; ++r) {
      GpuStreamWork& stream = hw().GpuWork(r).streams.emplace_back();
      stream.stream = 1;
      stream.stream_id = 7;
      stream.device = 0;
      stream.launched = 900;
      stream.finished = 899;
      stream.oldest_work = MC_GPU_WORK_NCCL;
      stream.oldest = stream.nccl = "ncclDevKernel_AllReduce";
      stream.oldest_ns = stream.nccl_ns = job().now_ns();
    }
  }
  GpuStreamWork& Stream(int rank) { return hw().GpuWork(rank).streams[0]; }
  // A kernel of the application that is proved not to end.
  GpuStreamWork& Endless(int rank, uint32_t stream_id) {
    GpuStreamWork& stream = hw().GpuWork(rank).streams.emplace_back();
    stream.stream = stream_id;
    stream.stream_id = stream_id;
    stream.device = 0;
    stream.launched = 10;
    stream.finished = 9;
    stream.pending = GpuPending::kUnfinished;
    stream.oldest_work = MC_GPU_WORK_KERNEL;
    stream.oldest = "gemm";
    stream.oldest_ns = job().now_ns();
    stream.oldest_proved = stream.no_nccl = true;
    return stream;
  }
};

TEST_F(GpuWork, SlowKernelsAreGpu) {
  Warm();
  Train(80, Late(2, 8, 81), 2, 3);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence(
      "the compute kernels of rank 2 take 3.0 times as long as before; those of 3 other ranks 1.0 "
      "times");
  EXPECT_THAT(Last().summary, HasSubstr("its compute kernels take 3.0 times as long"));
  EXPECT_EQ(View().gpu_watched, 4u);
  EXPECT_EQ(View().gpu_recorded, 4u);
  hw().GpuWork(0).state = MC_GPU_WATCHING;  // its time is over
  hw().GpuWork(1).state = MC_GPU_TAKEN;
  Train(150, Costs(4));  // GPU boards are sampled once a second
  EXPECT_EQ(View().gpu_watched, 3u);
  EXPECT_EQ(View().gpu_recorded, 2u);
}

TEST_F(GpuWork, LateRankWithSlowKernelsIsGpu) {
  Warm();
  Train(80, Late(2, 81, 1), 2, 3);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("the compute kernels of rank 2 take 3.0 times as long");
  ExpectRejected("host of rank 2", "it only shows");
}

TEST_F(GpuWork, LateRankWithUsualKernelsIsHost) {
  Warm();
  Train(80, Late(2, 81, 1));
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2",
                 "its compute kernels take 1.00 times as long as before; but that is as usual");
}

TEST_F(GpuWork, SlowCopiesBesideUsualKernelsArePcie) {
  Warm();
  Train(80, Late(2, 8, 81), 2, 1, 4);
  ExpectCulprit(2, Component::kPcie);
  ExpectEvidence("of rank 2 move 2.6 GB/s instead of 10.5, while its compute kernels take as long as "
                 "ever");
  ExpectRejected("gpu of rank 2", "only shows");
}

TEST_F(GpuWork, SlowCopiesBesideSlowKernelsAreGpu) {
  Warm();
  Train(80, Late(2, 8, 81), 2, 3, 4);
  ExpectCulprit(2, kGpuOf);
}

TEST_F(GpuWork, KernelsThatAreSlowEverywhereAreNoFaultOfOne) {
  Warm();
  for (int i = 0; i < 80; ++i) {
    for (int r = 0; r < 4; ++r) hw().GpuWork(r).devices[0].kernel_ns += 10'000'000;
    Train(1, Late(2, 81, 1));
  }
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 2", "those of the other ranks take as much longer");
}

TEST_F(GpuWork, SlowKernelsOfAnotherRankAreRejected) {
  Warm();
  Train(80, Late(2, 81, 1), 1, 3);
  ExpectCulprit(2, Component::kHost);
  ExpectRejected("gpu of rank 1", "no mechanism");
}

TEST_F(GpuWork, StuckKernelOfNcclIsGpuWithNothingInFront) {
  Warm();
  StickGpu(2);
  LaunchNccl();
  Wait(4'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("kernel ncclDevKernel_AllReduce of rank 2, launched");
  ExpectEvidence("is the oldest of stream 7: nothing of the application is in front of it");
  ExpectNoEvidence("ncclDevKernel_AllReduce of rank 1");  // it waits like everybody else's
}

TEST_F(GpuWork, BlockedStreamIsNamedWithItsKernel) {
  Warm();
  StickGpu(2);
  LaunchNccl();
  GpuStreamWork& stream = Stream(2);
  stream.finished = 898;
  stream.pending = GpuPending::kUnfinished;
  stream.oldest_proved = true;
  stream.oldest_work = MC_GPU_WORK_KERNEL;
  stream.oldest = "gemm";
  Wait(4'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("kernel ncclDevKernel_AllReduce of rank 2 waits in stream 7 behind kernel gemm, "
                 "launched");
  ExpectEvidence("which does not end");
  EXPECT_THAT(Last().summary, HasSubstr("kernel gemm is in front of NCCL's in its stream"));
}

TEST_F(GpuWork, BlockedByAnotherStreamIsNamedWithItsKernel) {
  Warm();
  StickGpu(2);
  LaunchNccl();
  Endless(2, 13);
  Stream(2).nccl_waits_for = 13;
  Wait(4'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("waits in stream 7 behind kernel gemm of stream 13, launched");
}

TEST_F(GpuWork, WhatIsNotProvedIsSaidAndDecidesNothing) {
  Warm();
  StickGpu(2);
  LaunchNccl();
  Stream(2).finished = 898;
  Stream(2).oldest_work = MC_GPU_WORK_KERNEL;
  Stream(2).oldest = "gemm";
  Wait(4'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("which is not known to have ended");
  EXPECT_THAT(Last().summary, ::testing::Not(HasSubstr("gemm")));
}

TEST_F(GpuWork, KernelOfAnotherStreamThatLeavesNoRoomIsNamed) {
  Warm();
  StickGpu(2);
  LaunchNccl();
  Endless(2, 13);
  Wait(4'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("kernel gemm of stream 13 runs for");
}

TEST_F(GpuWork, AbsentRankWhoseHostWaitsForAKernelIsGpu) {
  Warm();
  LeaveOut(2);
  Endless(2, 13).waited_since_ns = job().now_ns();
  Wait(4'000);
  ExpectCulprit(2, kGpuOf);
  ExpectEvidence("for its GPU: kernel gemm in stream 13, launched");
  ExpectRejected("host of rank 2", "it only shows");
}

TEST_F(GpuWork, AbsentRankWithEmptyStreamsIsHost) {
  Warm();
  LeaveOut(2);
  Wait(4'000);
  ExpectCulprit(2, Component::kHost);
  ExpectEvidence("rank 2 has launched nothing for");
  ExpectEvidence("its GPU waits for its host");
  ExpectRejected("gpu of rank 2", "its streams are empty");
}

TEST_F(GpuWork, AbsentRankOfWhichNothingIsProvedIsAsWithout) {
  Warm();
  LeaveOut(2);
  GpuStreamWork& stream = Endless(2, 13);
  stream.pending = GpuPending::kUnknown;
  Wait(4'000);
  ExpectCulprit(2, Component::kHost);
  ExpectNoEvidence("gemm");
  ExpectNoEvidence("launched nothing");
}

TEST_F(GpuWork, CuptiInOtherHandsSaysNothing) {
  Warm();
  for (int r = 0; r < 4; ++r) hw().GpuWork(r).state = MC_GPU_TAKEN;
  LeaveOut(2);
  Endless(2, 13).waited_since_ns = job().now_ns();
  Wait(4'000);
  ExpectCulprit(2, Component::kHost);
  ExpectNoEvidence("gemm");
}

// ---- host-starved -----------------------------------------------------------------------

class HostStarved : public HardwareWorld {
 protected:
  void Starve(int rank, double share) {
    Costs costs(4);
    costs[1].net_ms = 90;
    for (int i = 0; i < 40; ++i) {
      hw().Delay(rank, true).runq_ns += static_cast<uint64_t>(share * 100e6);
      Steps(1, costs);
    }
  }
};

TEST_F(HostStarved, ProxyThreadWithoutCpuIsHost) {
  Warm();
  Starve(1, 0.6);
  ExpectCulprit(1, Component::kHost);
  ExpectEvidence("the proxy thread (tid 5001) of rank 1 was runnable and waited for a CPU");
}

// Threads wait a little on every busy host: it must explain what was lost.
TEST_F(HostStarved, TooLittleForWhatIsLostIsNot) {
  Warm();
  Starve(1, 0.3);
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("waited for a CPU");
}

// Woken a hundred times a step, each time a little late: a step needs only a few turns.
TEST_F(HostStarved, ManyShortWaitsAreNot) {
  hw().Delay(1, true).runq_count = 1000;
  Warm();
  Costs costs(4);
  costs[1].net_ms = 90;
  for (int i = 0; i < 40; ++i) {
    hw().Delay(1, true).runq_ns += 60'000'000;
    hw().Delay(1, true).runq_count += 100;
    Steps(1, costs);
  }
  ExpectUnknown({Component::kNic, Component::kFabric});
  ExpectNoEvidence("waited for a CPU");
}

TEST_F(HostStarved, ThreadThatIsNotOfTheJobIsNot) {
  Warm();
  ThreadDelaySample other;
  other.tid = 77;
  other.runq_ns = 1;
  hw().Process(1).delays.push_back(other);
  Costs costs(4);
  costs[1].net_ms = 90;
  for (int i = 0; i < 40; ++i) {
    hw().Process(1).delays.back().runq_ns += 90'000'000;
    Steps(1, costs);
  }
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(HostStarved, AsBusyAsEverIsNot) {
  for (int i = 0; i < 580; ++i) {
    hw().Delay(1, true).runq_ns += 5'000'000;  // half of the time
    Steps(1, Costs(4));
  }
  Starve(1, 0.5);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(HostStarved, MemoryPressureIsHost) {
  Warm();
  LeaveOut(3);
  for (int i = 0; i < 40; ++i) {
    hw().Process(3).direct_reclaim_ns += 80'000'000;
    Wait(100);
  }
  ExpectCulprit(3, Component::kHost);
  ExpectEvidence("direct reclaim");
}

// A host that is short of CPUs as a whole is one origin, not one for each of its ranks.
TEST_F(HostStarved, AllRanksOfAHostAreTheirHost) {
  Make(4, 2);
  Warm();
  Costs costs(4);
  costs[0].net_ms = 60;
  costs[1].net_ms = 90;
  for (int i = 0; i < 40; ++i) {
    for (int rank : {0, 1}) hw().Delay(rank, true).runq_ns += 100'000'000;
    Steps(1, costs);
  }
  ASSERT_EQ(Last().culprits.size(), 1u);
  EXPECT_EQ(Last().culprits[0].component, Component::kHost);
  EXPECT_THAT(Last().culprits[0].where, HasSubstr("all of its 2 ranks"));
  EXPECT_THAT(Last().summary, HasSubstr("(all of its 2 ranks get no CPU)"));
  ExpectEvidence("it is the host, not one of them");
}

TEST_F(HostMemlock, ABusyHostDoesNotHideIt) {
  Make(4, 4);
  Warm();
  hw().Process(1).memlock_limit = 65536;
  FailRegistration();
  LeaveOut(1);
  for (int i = 0; i < 30; ++i) {
    for (int rank = 0; rank < 4; ++rank) hw().Delay(rank, true).runq_ns += 80'000'000;
    Wait(100);
  }
  ExpectCulprit(1, Component::kHost);
  EXPECT_THAT(Last().summary, HasSubstr("memory cannot be locked"));
  ExpectNoEvidence("all of its");
}

TEST_F(HostStarved, OneRankOfAHostIsNotTheWholeHost) {
  Make(4, 2);
  Warm();
  Starve(1, 0.9);
  ExpectCulprit(1, Component::kHost);
  ExpectNoEvidence("all of its");
}

TEST_F(HostStarved, KilledForLackOfMemoryIsHost) {
  Warm();
  Enter();
  hw().Event(1, {.kind = HardwareEventKind::kOomKill, .pid = 1001, .text = "oom"});
  job().Exit(1);
  Wait(2'000);
  ExpectCulprit(1, Component::kHost);
  ExpectEvidence("for lack of memory");
  EXPECT_EQ(Last().kind, IncidentKind::kDead);
}

// ---- app-dataloader ---------------------------------------------------------------------

class AppDataLoader : public HardwareWorld {
 protected:
  void Sleep(int rank, const std::vector<std::string>& stack) {
    for (int i = 0; i < 30; ++i) {
      hw().Delay(rank, false).off_cpu_ns += 100'000'000;
      hw().Delay(rank, false).stack = stack;
      Wait(100);
    }
  }
};

TEST_F(AppDataLoader, MainThreadThatReadsIsApp) {
  Warm();
  LeaveOut(0);
  Sleep(0, {"folio_wait_bit_common", "filemap_read", "vfs_read", "ksys_read"});
  ExpectCulprit(0, Component::kApp);
  ExpectEvidence("it reads (data loader, checkpoint)");
  EXPECT_EQ(Last().kind, IncidentKind::kAbsent);
}

TEST_F(AppDataLoader, MainThreadThatWaitsForAMutexIsNot) {
  Warm();
  LeaveOut(0);
  Sleep(0, {"futex_wait_queue", "do_futex"});
  ExpectCulprit(0, Component::kHost);
}

TEST_F(AppDataLoader, ReaderThatIsAVictimIsNot) {
  // Rank 0 has entered; what its main thread does meanwhile does not matter.
  Warm();
  StickGpu(2);
  Sleep(0, {"vfs_read"});
  ExpectCulprit(2, kGpuOf);
  ExpectRejected("app of rank 0", "no mechanism");
}

// ---- fabric and requests ----------------------------------------------------------------

class Fabric : public HardwareWorld {};

TEST_F(Fabric, LossBetweenHealthyPortsIsFabric) {
  Warm();
  Costs costs(4);
  costs[1].net_ms = 90;
  for (int i = 0; i < 40; ++i) {
    hw().Port(1).counters["packet_seq_err"] += 50;
    hw().Port(2).counters["out_of_sequence"] += 60;
    Steps(1, costs);
  }
  ExpectCulprit(1, Component::kFabric);
  ExpectEvidence("packets are lost between port mlx5_0/1 of rank 1 and port mlx5_0/1 of rank 2");
  ExpectRejected("nic of rank 1", "are ACTIVE");
}

TEST_F(Fabric, LossWithErrorsOfTheLinkIsNic) {
  Warm();
  Costs costs(4);
  costs[1].net_ms = 90;
  for (int i = 0; i < 40; ++i) {
    hw().Port(1).counters["packet_seq_err"] += 50;
    hw().Port(2).counters["out_of_sequence"] += 60;
    hw().Port(2).counters["symbol_error"] += 60;
    Steps(1, costs);
  }
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("symbol_error");
}

TEST_F(Fabric, RetriesAsOftenAsEverAreNot) {
  Costs costs(4);
  costs[1].net_ms = 90;
  for (int i = 0; i < 580; ++i) {
    hw().Port(1).counters["packet_seq_err"] += 1;
    Steps(1, Costs(4));
  }
  for (int i = 0; i < 40; ++i) {
    hw().Port(1).counters["packet_seq_err"] += 10;  // cycles are ten times longer
    Steps(1, costs);
  }
  ExpectUnknown({Component::kNic, Component::kFabric});
}

TEST_F(Fabric, BadRemoteKeyIsApplication) {
  Warm();
  LoseOnPath(1);
  FailQp(1, 2, 10, 0);
  Wait(3'000);
  ExpectCulprit(2, Component::kApp);  // it grants the keys of its buffers
  ExpectEvidence("remote access error");
}

// The progress threads of both ends end with the error and leave their flows as they were.
class BrokenConnection : public HardwareWorld {
 protected:
  // Flows that would name the PCIe path of rank 3, were they alive.
  void Freeze(uint32_t status) {
    Enter();
    job().Ring(3, MC_FLOW_SEND_NET, MC_FLOW_RECV_FLUSH);
    Feed();
    FailQp(1, 2, status, 0);
    hw().Qp(2, 1, 2).state = QpState::kError;
    hw().Qp(2, 1, 2).state_ns = job().now_ns();
    Wait(3'000);
  }
};

TEST_F(BrokenConnection, ComesBeforeWhatFlowsShow) {
  Warm();
  Freeze(10);
  ExpectCulprit(2, Component::kApp);
  ExpectEvidence("completion status 10 (remote access error)");
  ExpectNoEvidence("flush");
}

TEST_F(BrokenConnection, DifferentPathMtusAreNic) {
  Warm();
  hw().Qp(2, 1, 2).path_mtu = 1024;
  Freeze(9);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("path MTU of 1024 bytes");
}

TEST_F(BrokenConnection, WrongRequestWithMtusThatAreNotSeenIsNotNamed) {
  Warm();
  hw().Qp(2, 1, 2).path_mtu = 0;
  Freeze(9);
  ExpectUnknown({Component::kNic, Component::kApp});
}

TEST_F(BrokenConnection, WrongRequestWithEqualMtusIsApplication) {
  Warm();
  Freeze(9);
  ExpectCulprit(1, Component::kApp);
}

TEST_F(BrokenConnection, ErrorStateWithoutAStatusNamesTheConnection) {
  Warm();
  Enter();
  job().Ring(3, MC_FLOW_SEND_NET, MC_FLOW_RECV_FLUSH);
  Feed();
  for (int rank : {1, 2}) {
    hw().Qp(rank, 1, 2).state = QpState::kError;
    hw().Qp(rank, 1, 2).state_ns = job().now_ns();
  }
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric, Component::kApp});
  ExpectEvidence("is in the error state");
  EXPECT_THAT(Last().summary, HasSubstr("the broken connection from rank 1 to rank 2"));
}

TEST_F(BrokenConnection, ErrorStateWithoutTimeoutsIsARefusedRequest) {
  for (int rank : {1, 2}) hw().Port(rank).counters["req_transport_retries_exceeded"] = 7;
  Warm();
  Enter();
  job().Ring(3, MC_FLOW_SEND_NET, MC_FLOW_RECV_FLUSH);
  Feed();
  for (int rank : {1, 2}) {
    hw().Qp(rank, 1, 2).state = QpState::kError;
    hw().Qp(rank, 1, 2).state_ns = job().now_ns();
  }
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kApp});
  ExpectEvidence("no retries were exceeded");
}

TEST_F(BrokenConnection, ErrorStateAfterTimeoutsIsNoRefusedRequest) {
  for (int rank : {1, 2}) hw().Port(rank).counters["req_transport_retries_exceeded"] = 7;
  Warm();
  LoseOnPath(1);
  hw().Port(1).counters["req_transport_retries_exceeded"] = 8;
  for (int rank : {1, 2}) {
    hw().Qp(rank, 1, 2).state = QpState::kError;
    hw().Qp(rank, 1, 2).state_ns = job().now_ns();
  }
  Wait(3'000);
  ExpectUnknown({Component::kNic, Component::kFabric, Component::kApp});
  ExpectEvidence("req_transport_retries_exceeded +1");
}

// A cable of two hosts: every request at both ends fails before anybody has looked at the queue
// pairs. The port that was switched off is the origin, its partner without a link is not.
TEST_F(BrokenConnection, ProgressThreadsThatEndedWithTheirPort) {
  Make(2);
  for (int rank : {0, 1}) {
    job().Host(rank).threads.push_back({.tid = 90, .roles = MC_THREAD_PROGRESS, .state = 'S'});
  }
  Warm();
  Enter();
  for (int rank : {0, 1}) {
    job().Ring(rank, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
    job().Host(rank).threads.back().state = 'X';
    hw().Port(rank).state = "DOWN";
    hw().Port(rank).phys_state = rank == 1 ? "Disabled" : "Polling";
  }
  Feed();
  Wait(4'000);
  ExpectCulprit(1, Component::kNic);
  ExpectEvidence("is DOWN (Disabled)");
  ExpectRejected("nic of rank 0", "it follows from rank 1");
}

TEST_F(BrokenConnection, OperationsThatWentOnClearIt) {
  Warm();
  FailQp(1, 2, 12);
  hw().Connect(1, 2);
  Steps(580, Costs(4));
  StickGpu(3);
  Wait(3'000);
  ExpectCulprit(3, Component::kGpu);
}

TEST_F(Fabric, MtuOfOneHostThatDiffersIsNicThere) {
  hw().Port(2).netdev_mtu = 1500;
  for (int rank : {1, 2}) {
    QpSample& qp = hw().Qp(rank, 1, 2);
    qp.posts[kQpWrite] = 3;
    qp.last_post_ns = job().now_ns();
  }
  LoseOnPath(1);
  Wait(14'000);
  ExpectCulprit(2, Component::kNic);
  ExpectEvidence("(MTU 4200) to rank 2 (MTU 1500)");
}

TEST_F(Fabric, SmallPacketsDoNotMindTheMtu) {
  hw().Port(2).netdev_mtu = 1500;
  hw().Qp(1, 1, 2).path_mtu = hw().Qp(2, 1, 2).path_mtu = 1024;
  LoseOnPath(1);
  Wait(14'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
}

// ---- tomography ---------------------------------------------------------------------------

class Tomography : public HardwareWorld {};

TEST_F(Tomography, TwoBelowOneBridgeAreTheBridge) {
  Make(4, 4);  // ranks 0 and 1 share a switch, 2 and 3 another
  Warm();
  Costs costs(4);
  costs[0].flush_ms = costs[1].flush_ms = 80;
  Steps(20, costs);
  ExpectCulprit(0, Component::kPcie);
  EXPECT_THAT(Last().culprits[0].where, HasSubstr(hw().Address(0, Place::kSwitch)));
  EXPECT_THAT(Last().culprits[0].where, HasSubstr("rank 0, rank 1"));
}

// Both paths between two hosts are broken, nothing is seen at either port: one link, once.
TEST_F(Tomography, AllPathsOfOneLinkAreTheLink) {
  Make(2);
  Warm();
  Enter();
  for (int rank : {0, 1}) job().Ring(rank, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Feed();
  Wait(4'000);
  ExpectUnknown({Component::kNic, Component::kFabric});
  EXPECT_THAT(Last().summary, HasSubstr("the link between port mlx5_0/1 of "));
  ExpectEvidence("all paths that are waited for go between port mlx5_0/1 of ");
}

// Packets are lost one way; what goes the other way over the same link is no second origin.
TEST_F(Tomography, TheOtherWayOfALinkThatLosesPacketsIsTheSame) {
  Make(2);
  Warm();
  Enter();
  for (int rank : {0, 1}) job().Ring(rank, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Feed();
  for (int i = 0; i < 40; ++i) {
    hw().Port(0).counters["local_ack_timeout_err"] += 10;
    hw().Port(1).counters["out_of_sequence"] += 10;
    Wait(100);
  }
  ExpectCulprit(0, Component::kFabric);
  ExpectEvidence("packets are lost between port mlx5_0/1 of rank 0 and port mlx5_0/1 of rank 1");
}

TEST_F(Tomography, OneOfTwoBelowABridgeIsNotTheBridge) {
  Make(4, 4);
  Warm();
  Costs costs(4);
  costs[0].flush_ms = costs[2].flush_ms = 80;
  Steps(20, costs);
  ASSERT_EQ(Last().culprits.size(), 2u) << Dump(Last());
  ExpectNoEvidence("bridge");
}

TEST_F(Tomography, TwoGpusBelowOneBridgeMayBeTwoGpus) {
  Make(4, 4);
  Warm();
  Costs costs(4);
  costs[0].gpu_ms = costs[1].gpu_ms = 80;
  Steps(20, costs);
  ASSERT_EQ(Last().culprits.size(), 2u) << Dump(Last());
  EXPECT_EQ(Last().culprits[0].component, kGpuOf);
}

}  // namespace
}  // namespace mycroft
