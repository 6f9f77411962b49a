// SPDX-License-Identifier: Apache-2.0
//
// Communicators in one process, one set of threads per rank, over real sockets and over
// the RDMA fabric in memory.
#include "tools/lab/job/comm.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "tools/lab/job/train.h"
#include "tools/lab/job/verbs_fake.h"

namespace mycroft::lab {
namespace {

struct TestRank {
  std::unique_ptr<VerbsDevice> verbs;
  std::unique_ptr<FaultBoard> faults;
  std::unique_ptr<Egress> egress;
  std::unique_ptr<Device> device;
  std::unique_ptr<Profiler> profiler;
  std::unique_ptr<Listener> listener;
  Process process;
  std::string error;
};

// Runs `body` once per rank in a thread of its own.
class Ranks {
 public:
  explicit Ranks(int n, std::vector<FaultSpec> faults = {}, Transport transport = Transport::kTcp)
      : ranks_(n) {
    if (transport == Transport::kVerbs) {
      fabric_ = std::make_unique<FakeFabric>(7);
      pump_ = std::thread([this] {
        while (!stop_) {
          if (!fabric_->Step()) std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
      });
    }
    std::vector<uint16_t> ports;
    for (int r = 0; r < n; ++r) {
      TestRank& rank = ranks_[r];
      if (fabric_ != nullptr) rank.verbs = fabric_->Open("fake" + std::to_string(r % 2));
      rank.faults = std::make_unique<FaultBoard>(faults, r, nullptr);
      rank.egress = std::make_unique<Egress>(rank.faults.get());
      rank.device = std::make_unique<Device>(rank.faults.get(), GpuClock{});
      std::string note;
      rank.profiler = *Profiler::Load("none", 0, false, &note);
      auto listener = Listener::Create(128 << 10);
      EXPECT_TRUE(listener.ok()) << listener.status();
      rank.listener = std::make_unique<Listener>(*std::move(listener));
      ports.push_back(rank.listener->port());
    }
    for (TestRank& rank : ranks_) {
      rank.process.device = rank.device.get();
      rank.process.profiler = rank.profiler.get();
      rank.process.faults = rank.faults.get();
      rank.process.egress = rank.egress.get();
      rank.process.verbs = rank.verbs.get();
      rank.process.verbs_flush = true;
      rank.process.all_faults = faults;
      rank.process.listener = rank.listener.get();
      rank.process.ports = ports;
      rank.process.job_token = 42;
      rank.process.channels = 2;
      rank.process.connect_deadline_ns = NowNs() + 10 * kNsPerSec;
      rank.process.on_error = [&rank](const std::string& what) { rank.error = what; };
    }
  }
  ~Ranks() {
    stop_ = true;
    if (pump_.joinable()) pump_.join();
  }
  TestRank& operator[](int r) { return ranks_[r]; }
  FakeFabric& fabric() { return *fabric_; }
  void Run(const std::function<void(int, TestRank&)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      threads.emplace_back([&, r] { body(r, ranks_[r]); });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  std::unique_ptr<FakeFabric> fabric_;
  std::atomic<bool> stop_{false};
  std::vector<TestRank> ranks_;
  std::thread pump_;
};

class CommTransportTest : public ::testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(, CommTransportTest, ::testing::Values(Transport::kTcp, Transport::kVerbs),
                         [](const auto& info) { return std::string(ToString(info.param)); });

TEST_P(CommTransportTest, EveryOperationMovesTheRightData) {
  JobConfig config;
  config.ranks = 3;
  config.compute_us = 0;
  config.bytes = 600000;
  config.ops = *ParseOps("ar,rs,ag,bc,sr,aa");
  ASSERT_TRUE(Complete(&config).ok());
  const auto plans = PlanComms(config);
  Ranks ranks(3, {}, GetParam());
  ranks.Run([&](int r, TestRank& rank) {
    auto comm = Communicator::Create(plans[0], r, &rank.process);
    ASSERT_TRUE(comm.ok()) << comm.status();
    Trainer trainer(config, r, {comm->get()}, &rank.process);
    EXPECT_TRUE(trainer.WarmUp());
    for (int iter = 0; iter < 5; ++iter) {
      trainer.Enqueue(iter);
      ASSERT_TRUE(rank.device->Synchronize());
      EXPECT_TRUE(trainer.Verify(iter, true)) << "rank " << r << " iteration " << iter;
      // The check is no rubber stamp: the data of another iteration fail.
      EXPECT_FALSE(trainer.Verify(iter + 1, false));
    }
    EXPECT_EQ(rank.device->odd_slices(), 0u);
    (*comm)->Destroy(false);
  });
  for (int r = 0; r < 3; ++r) EXPECT_EQ(ranks[r].error, "");
}

TEST_P(CommTransportTest, PipelineAndTensorGrids) {
  for (Layout layout : {Layout::kDpPp, Layout::kDpTp}) {
    JobConfig config;
    config.layout = layout;
    config.ranks = 4;
    config.compute_us = 100;
    config.bytes = 100000;
    config.p2p_bytes = 2500000;  // more than a FIFO holds: a schedule that blocks would hang
    config.tp_bytes = 50000;
    config.microbatches = 3;
    config.uneven_p2p = true;
    ASSERT_TRUE(Complete(&config).ok());
    const auto plans = PlanComms(config);
    Ranks ranks(4, {}, GetParam());
    ranks.Run([&](int r, TestRank& rank) {
      std::vector<std::unique_ptr<Communicator>> comms;
      std::vector<Communicator*> mine;
      for (const CommPlan& plan : plans) {
        if (std::find(plan.members.begin(), plan.members.end(), r) == plan.members.end()) continue;
        auto comm = Communicator::Create(plan, r, &rank.process);
        ASSERT_TRUE(comm.ok()) << comm.status();
        comms.push_back(*std::move(comm));
        mine.push_back(comms.back().get());
      }
      Trainer trainer(config, r, mine, &rank.process);
      EXPECT_TRUE(trainer.WarmUp());
      for (int iter = 0; iter < 3; ++iter) {
        trainer.Enqueue(iter);
        ASSERT_TRUE(rank.device->Synchronize());
        EXPECT_TRUE(trainer.Verify(iter, true)) << ToString(layout) << " rank " << r;
      }
      for (auto& comm : comms) comm->Destroy(false);
    });
  }
}

TEST(CommTest, EgressLimitIsKept) {
  // 2 ranks, 2 MB AllReduce: each sends 2 MB. At 160 Mb/s = 20 MB/s that is 100 ms.
  JobConfig config;
  config.ranks = 2;
  config.compute_us = 0;
  config.bytes = 2000000;
  ASSERT_TRUE(Complete(&config).ok());
  const auto plans = PlanComms(config);
  Ranks ranks(2, {*ParseFault("net-slow:rank=1,at=0,amount=160", 2)});
  const uint64_t before = NowNs();
  uint64_t start = 0;
  uint64_t received = 0;
  ranks.Run([&](int r, TestRank& rank) {
    auto comm = Communicator::Create(plans[0], r, &rank.process);
    ASSERT_TRUE(comm.ok()) << comm.status();
    Trainer trainer(config, r, {comm->get()}, &rank.process);
    ASSERT_TRUE(trainer.WarmUp());
    rank.faults->Start(before);
    if (r == 1) start = NowNs();
    trainer.Enqueue(0);
    ASSERT_TRUE(rank.device->Synchronize());
    if (r == 0) received = NowNs();
    EXPECT_TRUE(trainer.Verify(0, true));
    (*comm)->Destroy(false);
  });
  // Rank 0 has it all no earlier than the limit lets rank 1 send it (less 2 ms of burst).
  EXPECT_GE(received - start, 95 * kNsPerMs);
}

TEST(CommTest, StuckGpuIsReleasedByAbort) {
  JobConfig config;
  config.ranks = 2;
  config.compute_us = 0;
  config.bytes = 1000000;
  ASSERT_TRUE(Complete(&config).ok());
  const auto plans = PlanComms(config);
  Ranks ranks(2, {*ParseFault("gpu-stuck:rank=0,at=0", 2)});
  ranks.Run([&](int r, TestRank& rank) {
    auto comm = Communicator::Create(plans[0], r, &rank.process);
    ASSERT_TRUE(comm.ok()) << comm.status();
    Trainer trainer(config, r, {comm->get()}, &rank.process);
    ASSERT_TRUE(trainer.WarmUp());
    rank.faults->Start(NowNs());
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      rank.device->Abort();
    });
    trainer.Enqueue(0);
    EXPECT_FALSE(rank.device->Synchronize());  // only the abort ends it
    aborter.join();
    rank.device->Join();
    (*comm)->Destroy(true);
  });
}

TEST(CommTest, DeadPeerIsAnErrorNotAHang) {
  JobConfig config;
  config.ranks = 2;
  config.compute_us = 0;
  config.bytes = 1000000;
  ASSERT_TRUE(Complete(&config).ok());
  const auto plans = PlanComms(config);
  Ranks ranks(2);
  ranks.Run([&](int r, TestRank& rank) {
    std::atomic<bool> failed{false};
    rank.process.on_error = [&](const std::string& what) {
      rank.error = what;
      failed = true;
    };
    auto comm = Communicator::Create(plans[0], r, &rank.process);
    ASSERT_TRUE(comm.ok()) << comm.status();
    Trainer trainer(config, r, {comm->get()}, &rank.process);
    ASSERT_TRUE(trainer.WarmUp());
    if (r == 1) {
      rank.device->Join();
      (*comm)->Destroy(true);
      return;  // closes its sockets
    }
    trainer.Enqueue(0);
    const uint64_t deadline = NowNs() + 5 * kNsPerSec;
    while (!failed && NowNs() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(failed);
    rank.device->Abort();
    EXPECT_FALSE(rank.device->Synchronize());
    rank.device->Join();
    (*comm)->Destroy(true);
  });
  EXPECT_NE(ranks[0].error.find("world channel"), std::string::npos) << ranks[0].error;
}

// As with NCCL: the error is reported, and the operation stands still until somebody aborts.
TEST(CommTest, BadCompletionIsReportedAndTheOperationStandsStill) {
  JobConfig config;
  config.ranks = 3;
  config.compute_us = 0;
  config.bytes = 1000000;
  ASSERT_TRUE(Complete(&config).ok());
  const auto plans = PlanComms(config);
  Ranks ranks(3, {*ParseFault("bad-rkey:rank=1,at=0", 3)}, Transport::kVerbs);
  std::atomic<int> failed{0};
  ranks.Run([&](int r, TestRank& rank) {
    rank.process.on_error = [&](const std::string& what) {
      rank.error = what;
      ++failed;
    };
    auto comm = Communicator::Create(plans[0], r, &rank.process);
    ASSERT_TRUE(comm.ok()) << comm.status();
    Trainer trainer(config, r, {comm->get()}, &rank.process);
    ASSERT_TRUE(trainer.WarmUp());
    rank.faults->Start(NowNs());
    trainer.Enqueue(0);
    std::atomic<bool> done{false};
    std::thread watchdog([&] {
      const uint64_t deadline = NowNs() + 5 * kNsPerSec;
      while (failed < 2 && NowNs() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_FALSE(done) << "rank " << r;
      rank.device->Abort();
    });
    EXPECT_FALSE(rank.device->Synchronize());
    done = true;
    watchdog.join();
    rank.device->Join();
    (*comm)->Destroy(true);
  });
  EXPECT_EQ(failed, 2);
  EXPECT_NE(ranks[0].error.find("to peer 1: bad completion: status 10"), std::string::npos)
      << ranks[0].error;
  EXPECT_NE(ranks[1].error.find("from peer 0: bad completion: status 5"), std::string::npos)
      << ranks[1].error;
  EXPECT_EQ(ranks[2].error, "");
}

TEST(NetTest, LongTransferIntoAShortBufferIsRefused) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Egress egress(nullptr);
  TcpLink sender(fds[0], &egress);
  TcpLink receiver(fds[1], &egress);
  std::vector<char> data(1000, 'x');
  std::vector<char> room(100);
  sender.Isend(data.data(), data.size());
  size_t size = 0;
  ASSERT_TRUE(sender.Test(&size));
  EXPECT_EQ(size, 1000u);
  receiver.Irecv(room.data(), room.size());
  EXPECT_FALSE(receiver.Test(&size));
  EXPECT_NE(receiver.error().find("truncated"), std::string::npos) << receiver.error();
}

TEST(NetTest, TransfersAreFinishedInOrder) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Egress egress(nullptr);
  TcpLink sender(fds[0], &egress);
  TcpLink receiver(fds[1], &egress);
  std::vector<char> big(1 << 20, 'a');
  std::vector<char> in1(1 << 20);
  std::vector<char> in2(8);
  sender.Isend(big.data(), big.size());
  sender.Isend("bb", 2);
  receiver.Irecv(in1.data(), in1.size());
  receiver.Irecv(in2.data(), in2.size());
  int sent = 0;
  int received = 0;
  std::vector<size_t> sizes;
  for (int i = 0; i < 100000 && (sent < 2 || received < 2); ++i) {
    size_t size = 0;
    sent += sender.Test(&size);
    if (receiver.Test(&size)) {
      ++received;
      sizes.push_back(size);
    }
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{1 << 20, 2}));
  EXPECT_EQ(in1, big);
  EXPECT_EQ(in2[1], 'b');
  size_t size = 0;
  EXPECT_FALSE(receiver.Test(&size));  // nothing posted
}

}  // namespace
}  // namespace mycroft::lab
