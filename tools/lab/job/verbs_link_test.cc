// SPDX-License-Identifier: Apache-2.0
//
// Links over RC verbs on the fabric in memory (verbs_fake.h).
#include "tools/lab/job/verbs_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <vector>

#include "tools/lab/job/verbs_fake.h"

namespace mycroft::lab {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSlotBytes = 10000;

// Sender on rank 0, receiver on rank 1, one thread.
class Links {
 public:
  explicit Links(uint64_t seed = 1, const std::string& fault = "", VerbsOptions options = {},
                 bool flush = false)
      : fabric(seed), random(seed) {
    if (!fault.empty()) {
      const auto spec = ParseFault(fault, 2);
      EXPECT_TRUE(spec.ok()) << spec.status();
      faults.push_back(*spec);
    }
    for (int r = 0; r < 2; ++r) {
      devices[r] = fabric.Open(r == 0 ? "fakeA" : "fakeB");
      boards[r] = std::make_unique<FaultBoard>(faults, r, nullptr);
    }
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    send_buffer.resize(NetLink::kMaxInFlight * kSlotBytes);
    recv_buffer.resize(send_buffer.size());
    for (int r = 0; r < 2; ++r) {
      VerbsLink::Setup setup;
      setup.device = devices[r].get();
      setup.options = options;
      setup.is_send = r == 0;
      setup.flush = flush;
      setup.tag = 1;
      setup.buffer = r == 0 ? send_buffer.data() : recv_buffer.data();
      setup.buffer_bytes = send_buffer.size();
      setup.faults = boards[r].get();
      for (const FaultSpec& spec : faults) {
        if (spec.kind == FaultKind::kWrongGid) {
          setup.spare = true;
          if (spec.rank == r) setup.spare_gid_index = static_cast<int>(spec.amount);
        }
        if (spec.kind == FaultKind::kMtuMismatch) {
          setup.spare = true;
          if (spec.rank == r) setup.spare_mtu_bytes = static_cast<uint32_t>(spec.amount);
        }
      }
      auto link = VerbsLink::Create(fds[r], setup, Soon());
      EXPECT_TRUE(link.ok()) << link.status();
      links[r] = *std::move(link);
    }
    for (auto& link : links) {
      const absl::Status status = link->Finish(Soon());
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  static uint64_t Soon() { return NowNs() + 5 * kNsPerSec; }
  void StartFaults() {
    for (auto& board : boards) board->Start(NowNs());
  }
  NetLink& sender() { return *links[0]; }
  NetLink& receiver() { return *links[1]; }
  char* SendSlot(size_t i) { return send_buffer.data() + i % NetLink::kMaxInFlight * kSlotBytes; }
  char* RecvSlot(size_t i) { return recv_buffer.data() + i % NetLink::kMaxInFlight * kSlotBytes; }
  static char Byte(size_t transfer, size_t at) {
    return static_cast<char>(transfer * 131 + at * 7);
  }
  static size_t SizeOf(size_t transfer) {
    std::mt19937_64 r(transfer + 99);
    switch (r() % 5) {
      case 0:
        return 0;
      case 1:
        return r() % 100;
      case 2:
        return kSlotBytes;
      default:
        return r() % kSlotBytes;
    }
  }
  bool Send() {
    const size_t size = SizeOf(sent);
    for (size_t i = 0; i < size; ++i) SendSlot(sent)[i] = Byte(sent, i);
    if (!sender().Isend(SendSlot(sent), size)) return false;
    ++sent;
    return true;
  }
  void Receive() {
    memset(RecvSlot(offered), 0x55, kSlotBytes);
    receiver().Irecv(RecvSlot(offered), kSlotBytes);
    ++offered;
  }
  void TestSender() {
    size_t size = 0;
    if (!sender().Test(&size)) return;
    EXPECT_EQ(size, SizeOf(finished));
    // The buffer is ours again.
    memset(SendSlot(finished), 0x66, kSlotBytes);
    ++finished;
  }
  void TestReceiver() {
    size_t size = 0;
    if (!receiver().Test(&size)) return;
    ASSERT_EQ(size, SizeOf(arrived));
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(RecvSlot(arrived)[i], Byte(arrived, i));
    for (size_t i = size; i < kSlotBytes; ++i) ASSERT_EQ(RecvSlot(arrived)[i], 0x55);
    ++arrived;
  }
  // Everything in turn, until `done`, an error on both sides, or 100,000 rounds.
  template <typename Done>
  void Run(size_t total, size_t depth, Done done) {
    for (int round = 0; round < 100000 && !done(); ++round) {
      switch (random() % 8) {
        case 0:
          if (offered < total && offered - arrived < depth) Receive();
          break;
        case 1:
          if (sent < total && sent - finished < depth) Send();
          break;
        case 2:
          TestSender();
          break;
        case 3:
          TestReceiver();
          break;
        default:
          fabric.Step();
      }
      if (::testing::Test::HasFatalFailure()) return;
      if (sender().failed() && receiver().failed()) return;
    }
  }

  FakeFabric fabric;
  std::mt19937_64 random;
  std::vector<FaultSpec> faults;
  std::unique_ptr<VerbsDevice> devices[2];
  std::unique_ptr<FaultBoard> boards[2];
  std::vector<char> send_buffer, recv_buffer;
  std::unique_ptr<VerbsLink> links[2];
  size_t sent = 0, finished = 0, offered = 0, arrived = 0;
};

TEST(VerbsLinkTest, RandomSizesInAnyOrderOfEvents) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Links links(seed);
    const size_t depth = seed % 2 == 0 ? 8 : NetLink::kMaxInFlight;
    links.Run(500, depth, [&] { return links.arrived == 500 && links.finished == 500; });
    EXPECT_EQ(links.arrived, 500u) << "seed " << seed;
    EXPECT_EQ(links.finished, 500u) << "seed " << seed;
    EXPECT_EQ(links.sender().error(), "");
    EXPECT_EQ(links.receiver().error(), "");
    // NCCL posts the receive before it grants the buffer: never "receiver not ready".
    EXPECT_EQ(links.fabric.rnr_naks(), 0u);
    if (HasFatalFailure()) return;
  }
}

TEST(VerbsLinkTest, SenderIsRefusedUntilTheReceiverGrants) {
  Links links;
  EXPECT_FALSE(links.Send());
  EXPECT_FALSE(links.fabric.Step());  // and nothing was posted
  links.Receive();
  bool granted = false;
  for (int i = 0; i < 100 && !granted; ++i) {
    links.fabric.Step();
    granted = links.Send();
  }
  EXPECT_TRUE(granted);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(links.Send());  // one grant, one message
  links.Run(1, 1, [&] { return links.arrived == 1 && links.finished == 1; });
  EXPECT_EQ(links.arrived, 1u);
  EXPECT_FALSE(links.sender().failed());
}

TEST(VerbsLinkTest, MoreInFlightThanTheLinkTakes) {
  Links links;
  for (size_t i = 0; i < NetLink::kMaxInFlight; ++i) links.Receive();
  while (links.fabric.Step()) {
  }
  for (size_t i = 0; i < NetLink::kMaxInFlight; ++i) EXPECT_TRUE(links.Send());
  EXPECT_FALSE(links.sender().failed());
  links.Receive();
  EXPECT_THAT(links.receiver().error(), HasSubstr("more receives than the link takes"));
}

TEST(VerbsLinkTest, FlushReadsTheBuffer) {
  Links links(3, "", {}, true);
  EXPECT_FALSE(links.receiver().TestFlush());
  links.Run(1, 1, [&] { return links.arrived == 1; });
  ASSERT_EQ(links.arrived, 1u);
  while (links.fabric.Step()) {
  }
  links.receiver().Iflush(links.RecvSlot(0));
  links.receiver().Iflush(links.RecvSlot(1));
  EXPECT_FALSE(links.receiver().TestFlush());
  uint64_t retry = 0;
  EXPECT_EQ(links.receiver().Events(&retry), POLLIN);
  int flushed = 0;
  for (int i = 0; i < 100; ++i) {
    links.fabric.Step();
    flushed += links.receiver().TestFlush();
  }
  EXPECT_EQ(flushed, 2);
  EXPECT_FALSE(links.receiver().failed());
  // Outside of the registered buffer it is an error of the link.
  links.receiver().Iflush(links.recv_buffer.data() + links.recv_buffer.size());
  for (int i = 0; i < 100; ++i) {
    links.fabric.Step();
    links.receiver().TestFlush();
  }
  EXPECT_THAT(links.receiver().error(), HasSubstr("status 10 (remote access error)"));
  EXPECT_THAT(links.receiver().error(), HasSubstr("flush"));
}

TEST(VerbsLinkTest, WithoutFlushNothingIsRead) {
  Links links;
  links.receiver().Iflush(links.RecvSlot(0));
  EXPECT_TRUE(links.receiver().TestFlush());
  EXPECT_FALSE(links.fabric.Step());
}

TEST(VerbsLinkTest, LongMessageIntoAShortBuffer) {
  Links links;
  links.receiver().Irecv(links.RecvSlot(0), 100);
  while (links.fabric.Step()) {
  }
  EXPECT_FALSE(links.sender().Isend(links.SendSlot(0), 101));
  EXPECT_THAT(links.sender().error(), HasSubstr("truncated: 101 bytes into a buffer of 100"));
  EXPECT_FALSE(links.sender().Isend(links.SendSlot(0), 1));  // failed for good
}

TEST(VerbsLinkTest, ShortBlackoutRecovers) {
  Links links(5);
  links.Run(40, 8, [&] { return links.arrived == 20; });
  links.fabric.SetBlackout(true);
  const size_t before = links.arrived;
  for (int i = 0; i < 5000; ++i) {
    links.fabric.Step();
    links.TestSender();
    links.TestReceiver();
  }
  EXPECT_LE(links.arrived, before + 8);
  EXPECT_FALSE(links.sender().failed());  // 7: for ever
  links.fabric.SetBlackout(false);
  links.Run(40, 8, [&] { return links.arrived == 40 && links.finished == 40; });
  EXPECT_EQ(links.arrived, 40u);
  EXPECT_EQ(links.finished, 40u);
}

TEST(VerbsLinkTest, EndlessBlackoutExceedsTheRetries) {
  VerbsOptions options;
  options.retry = 3;
  Links links(6, "", options);
  for (int i = 0; i < 8; ++i) links.Receive();
  while (links.fabric.Step()) {
  }
  EXPECT_TRUE(links.Send());
  links.fabric.SetBlackout(true);
  links.Run(8, 8, [&] { return links.sender().failed(); });
  EXPECT_THAT(links.sender().error(),
              HasSubstr("status 12 (transport retry counter exceeded) of RDMA_WRITE of data, QP"));
  EXPECT_THAT(links.sender().error(), HasSubstr("of fakeA (::ffff:10.0.0.65) to QP"));
  EXPECT_EQ(links.finished, 0u);
  size_t size = 0;
  EXPECT_FALSE(links.sender().Test(&size));
  uint64_t retry = 0;
  EXPECT_EQ(links.sender().Events(&retry), 0);
  EXPECT_EQ(retry, kNever);
  EXPECT_TRUE(links.receiver().failed() || links.arrived == 0);
}

TEST(VerbsLinkTest, PeerThatIsGone) {
  VerbsOptions options;
  options.retry = 2;
  Links links(7, "", options);
  links.Receive();
  while (links.fabric.Step()) {
  }
  links.links[1].reset();
  EXPECT_EQ(links.fabric.pairs(), 1u);
  EXPECT_TRUE(links.Send());
  for (int i = 0; i < 1000 && !links.sender().failed(); ++i) {
    links.fabric.Step();
    links.TestSender();
  }
  EXPECT_THAT(links.sender().error(), HasSubstr("status 12"));
}

TEST(VerbsLinkTest, ReceiverNotReadyWhileTheFaultHolds) {
  Links links(8, "rnr:rank=1,at=0,for=0.1");
  links.StartFaults();
  const uint64_t start = NowNs();
  links.Receive();
  uint64_t retry = 0;
  links.receiver().Events(&retry);
  EXPECT_GT(retry, start);  // a deadline, or nobody would post it later
  EXPECT_LE(retry, start + 200 * kNsPerMs);
  bool granted = false;
  while (NowNs() < start + 5 * kNsPerSec && links.arrived < 1) {
    links.fabric.Step();
    granted = granted || links.Send();
    links.TestSender();
    links.TestReceiver();
  }
  EXPECT_TRUE(granted);
  EXPECT_GE(NowNs() - start, 100 * kNsPerMs);
  EXPECT_EQ(links.arrived, 1u);
  EXPECT_GT(links.fabric.rnr_naks(), 0u);
  EXPECT_FALSE(links.sender().failed());
}

TEST(VerbsLinkTest, ReceiverNotReadyForEver) {
  VerbsOptions options;
  options.rnr_retry = 3;
  Links links(9, "rnr:rank=1,at=0", options);
  links.Run(4, 4, [&] { return links.arrived == 4 && links.finished == 4; });
  ASSERT_EQ(links.arrived, 4u);
  links.StartFaults();
  links.Run(8, 4, [&] { return links.sender().failed(); });
  EXPECT_THAT(links.sender().error(), HasSubstr("status 13 (RNR retry counter exceeded)"));
  EXPECT_EQ(links.arrived, 4u);
}

TEST(VerbsLinkTest, LateReceivesArriveLateAndExact) {
  Links links(10, "rnr-late:rank=1,at=0,amount=2000");
  links.StartFaults();
  const uint64_t start = NowNs();
  while (NowNs() < start + 5 * kNsPerSec && links.arrived < 10) {
    if (links.offered < 10) links.Receive();
    if (links.sent < 10) links.Send();
    links.fabric.Step();
    links.TestSender();
    links.TestReceiver();
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(links.arrived, 10u);
  EXPECT_GE(NowNs() - start, 2 * kNsPerMs);
  EXPECT_GT(links.fabric.rnr_naks(), 0u);
}

TEST(VerbsLinkTest, WrongRemoteKey) {
  Links links(11, "bad-rkey:rank=1,at=0");
  links.Run(4, 4, [&] { return links.arrived == 4 && links.finished == 4; });
  ASSERT_EQ(links.arrived, 4u);
  links.StartFaults();
  links.Run(40, 4, [&] { return false; });
  EXPECT_THAT(links.sender().error(), HasSubstr("status 10 (remote access error)"));
  // The other side sees only what followed.
  EXPECT_THAT(links.receiver().error(), HasSubstr("status 5 (Work Request Flushed Error)"));
  EXPECT_LT(links.arrived, 40u);
}

TEST(VerbsLinkTest, WrongGidOfTheSender) {
  VerbsOptions options;
  options.retry = 2;
  Links links(12, "wrong-gid:rank=0,at=0,amount=0", options);
  EXPECT_EQ(links.fabric.pairs(), 4u);
  links.Run(4, 4, [&] { return links.arrived == 4 && links.finished == 4; });
  ASSERT_EQ(links.arrived, 4u);
  links.StartFaults();
  links.Run(40, 4, [&] { return links.sender().failed(); });
  EXPECT_THAT(links.sender().error(), HasSubstr("status 12"));
  EXPECT_EQ(links.arrived, 4u);
}

TEST(VerbsLinkTest, WrongGidOfTheReceiverGrantsNothing) {
  VerbsOptions options;
  options.retry = 2;
  Links links(13, "wrong-gid:rank=1,at=0,amount=0", options);
  links.StartFaults();
  links.Run(40, 4, [&] { return links.receiver().failed(); });
  EXPECT_THAT(links.receiver().error(), HasSubstr("status 12"));
  EXPECT_THAT(links.receiver().error(), HasSubstr("clear-to-send"));
  EXPECT_EQ(links.sent, 0u);
}

TEST(VerbsLinkTest, PathMtuMismatch) {
  Links links(14, "mtu-mismatch:rank=0,at=0,amount=1024");
  links.Run(10, 4, [&] { return links.arrived == 10 && links.finished == 10; });
  ASSERT_EQ(links.arrived, 10u);
  links.StartFaults();
  links.Run(60, 4, [&] { return false; });
  EXPECT_THAT(links.sender().error(), HasSubstr("status 9 (remote invalid request error)"));
  EXPECT_LT(links.arrived, 60u);
}

TEST(VerbsLinkTest, FatalEventOfTheDeviceFailsItsLinks) {
  Links links(15);
  links.Run(4, 4, [&] { return links.arrived == 4 && links.finished == 4; });
  links.fabric.RaiseFatal(links.devices[0].get());
  EXPECT_FALSE(links.Send());
  EXPECT_THAT(links.sender().error(), HasSubstr("fatal asynchronous event of fakeA"));
  links.Receive();
  links.TestReceiver();
  EXPECT_FALSE(links.receiver().failed());
}

TEST(VerbsLinkTest, FatalEventOfAQueuePair) {
  Links links(16);
  links.Receive();
  links.fabric.RaiseFatal(uint32_t{18});  // the receiver's
  links.TestReceiver();
  EXPECT_THAT(links.receiver().error(), HasSubstr("fatal asynchronous event of QP 18 of fakeB"));
  EXPECT_FALSE(links.sender().failed());
}

TEST(VerbsLinkTest, CompletionsWakeASleeper) {
  Links links(17);
  uint64_t retry = 0;
  EXPECT_EQ(links.receiver().Events(&retry), 0);  // nothing is waited for
  links.Receive();
  while (links.fabric.Step()) {
  }
  // The grant of the first slot is signaled: it is there already.
  EXPECT_FALSE(links.receiver().Arm());
  links.receiver().Disarm();
  EXPECT_EQ(links.receiver().Events(&retry), POLLIN);
  EXPECT_TRUE(links.receiver().Arm());
  pollfd fd = {links.receiver().fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  ASSERT_TRUE(links.Send());
  while (links.fabric.Step()) {
  }
  EXPECT_EQ(poll(&fd, 1, 0), 1);
  links.receiver().Disarm();
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  links.TestReceiver();
  EXPECT_EQ(links.arrived, 1u);
  // A sender without a grant must look again by itself.
  EXPECT_FALSE(links.Send());
  links.sender().Events(&retry);
  EXPECT_LE(retry, NowNs() + 2 * kNsPerMs);
}

TEST(VerbsLinkTest, RegistrationThatFails) {
  FakeFabric fabric(1);
  auto device = fabric.Open("fakeA");
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  std::vector<char> buffer(100);
  VerbsLink::Setup setup;
  setup.device = device.get();
  setup.is_send = true;
  setup.buffer = buffer.data();
  setup.buffer_bytes = buffer.size();
  fabric.FailNextRegistration();
  const auto link = VerbsLink::Create(fds[0], setup, Links::Soon());
  EXPECT_THAT(std::string(link.status().message()), HasSubstr("Cannot allocate memory"));
  EXPECT_EQ(fabric.pairs(), 0u);
  close(fds[1]);
}

TEST(VerbsLinkTest, HandshakeWithAnotherLinkOrNobody) {
  FakeFabric fabric(1);
  auto device = fabric.Open("fakeA");
  std::vector<char> buffer(100);
  VerbsLink::Setup setup;
  setup.device = device.get();
  setup.buffer = buffer.data();
  setup.buffer_bytes = buffer.size();
  auto receiver = [&](const std::string& bytes, bool close_it) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    EXPECT_EQ(write(fds[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    if (close_it) close(fds[1]);
    auto link = VerbsLink::Create(fds[0], setup, NowNs() + 50 * kNsPerMs);
    if (!close_it) close(fds[1]);
    return std::string(link.status().message());
  };
  EXPECT_THAT(receiver(std::string(4096, 'x'), false), HasSubstr("another link"));
  EXPECT_THAT(receiver("", true), HasSubstr("closed by the peer"));
  EXPECT_THAT(receiver("x", false), HasSubstr("no answer of the peer in time"));
  EXPECT_EQ(fabric.pairs(), 0u);
}

TEST(VerbsLinkTest, GidIndexThatDoesNotExist) {
  FakeFabric fabric(1);
  auto device = fabric.Open("fakeA");
  VerbsLink::Setup setup;
  setup.device = device.get();
  setup.options.gid_index = 9;
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  EXPECT_THAT(std::string(VerbsLink::Create(fds[0], setup, Links::Soon()).status().message()),
              HasSubstr("GID index 9"));
  close(fds[1]);
}

TEST(VerbsLinkTest, OrderlyEndWaitsForThePeerButNotForEver) {
  Links links(18);
  links.links[0]->BeginClose();
  const uint64_t start = NowNs();
  links.links[0]->EndClose(start + 30 * kNsPerMs);
  EXPECT_GE(NowNs() - start, 29 * kNsPerMs);
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    links.links[1]->BeginClose();
  });
  links.links[0]->EndClose(NowNs() + 5 * kNsPerSec);
  EXPECT_LT(NowNs() - start, 3 * kNsPerSec);
  peer.join();
}

TEST(VerbsTest, Texts) {
  EXPECT_STREQ(WcStatusText(12), "transport retry counter exceeded");
  EXPECT_STREQ(WcStatusText(13), "RNR retry counter exceeded");
  EXPECT_STREQ(WcStatusText(5), "Work Request Flushed Error");
  EXPECT_STREQ(WcStatusText(99), "other error");
  EXPECT_STREQ(WcStatusText(-1), "other error");
}

}  // namespace
}  // namespace mycroft::lab
