// SPDX-License-Identifier: Apache-2.0
//
// The verbs probes on a mock libibverbs and provider, which another process uses as it is
// told: every field of what comes out is compared with what was done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "userspace/source/probes/mapped_file.h"
#include "userspace/source/probes/testing/bpf_machine.h"
#include "userspace/source/probes/verbs_probes.h"

namespace mycroft {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
namespace fs = std::filesystem;

uint64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

// A mock_app; killed at the end.
class App {
 public:
  App() {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (int fd = 3; fd < 256; ++fd) close(fd);
      execl(MYCROFT_MOCK "/mock_app", "mock_app", nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = fdopen(in[1], "w");
    out_ = fdopen(out[0], "r");
    char line[64];
    if (fgets(line, sizeof(line), out_) == nullptr) abort();
  }
  ~App() {
    fclose(in_);
    fclose(out_);
    Kill();
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // The answer, without "ok ".
  std::string Do(const std::string& command) {
    fprintf(in_, "%s\n", command.c_str());
    fflush(in_);
    char line[1024];
    if (fgets(line, sizeof(line), out_) == nullptr) return "gone";
    std::string answer = line;
    while (!answer.empty() && answer.back() == '\n') answer.pop_back();
    return answer.rfind("ok ", 0) == 0 ? answer.substr(3) : answer;
  }
  void Must(const std::string& command) { EXPECT_EQ(Do(command), "0") << command; }
  void Load(const std::string& provider = "libmock-rdmav34.so",
            const std::string& folder = MYCROFT_MOCK) {
    Must("load " + folder + " " + provider);
  }
  uint32_t pid() const { return static_cast<uint32_t>(pid_); }

 private:
  pid_t pid_ = -1;
  FILE* in_ = nullptr;
  FILE* out_ = nullptr;
};

class VerbsBpfTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MYCROFT_REQUIRE_BPF();
    ProbeSet::Options options;
    options.objects = {"verbs"};
    auto created = ProbeSet::Create(options);
    ASSERT_TRUE(created.ok()) << created.status();
    set_ = *std::move(created);
    ASSERT_TRUE(set_->Complete().ok()) << set_->Complete();
    verbs_ = std::make_unique<VerbsProbes>(set_.get());
  }
  void Drain() {
    set_->ReadEvents(
        [&](const mc_event& h, std::span<const std::byte> r) { verbs_->OnEvent(h, r); });
  }
  VerbsProcess ReadOne(uint32_t pid) {
    Drain();
    for (VerbsProcess& p : verbs_->Read())
      if (p.pid == pid) return std::move(p);
    return {};
  }
  // Its only queue pair; an empty one, and a failure, when it has another number of them.
  VerbsQp OneQp(uint32_t pid) {
    VerbsProcess p = ReadOne(pid);
    EXPECT_EQ(p.qps.size(), 1u) << Described(pid);
    return p.qps.size() == 1 ? p.qps[0] : VerbsQp{};
  }
  ProbeRow Row(const std::string& name) {
    for (ProbeRow& row : set_->Rows())
      if (row.name == name) return std::move(row);
    return {};
  }
  std::string Described(uint32_t pid) {
    std::string all;
    for (const std::string& line : verbs_->Describe(pid)) all += line + "\n";
    return all;
  }

  std::unique_ptr<ProbeSet> set_;
  std::unique_ptr<VerbsProbes> verbs_;
};

TEST_F(VerbsBpfTest, PostsAreCountedExactly) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  Drain();
  const uint64_t before = NowNs();
  app.Must("qp 0 77");
  app.Must("post 0 2 1 1 100 1000");  // SEND, 1 request, 1 entry of 100 bytes, 1,000 times
  app.Must("post 0 3 1 1 1 5");       // SEND_WITH_IMM
  app.Must("post 0 0 3 2 4096 10");   // WRITE, chains of 3, entries of 4096 and 4097
  app.Must("post 0 1 1 0 0 7");       // WRITE_WITH_IMM without data
  app.Must("post 0 4 1 3 10 2");      // READ, 10 + 11 + 12
  app.Must("post 0 5 1 1 8 4");       // atomics
  app.Must("post 0 6 1 1 8 4");
  app.Must("post 0 7 1 1 8 3");  // LOCAL_INV
  app.Must("post 0 0 1 9 1 1");  // 9 entries: 1 + ... + 9
  app.Must("recv 0 5 20");
  const uint64_t after = NowNs();
  const VerbsProcess p = ReadOne(app.pid());
  EXPECT_THAT(p.devices, ElementsAre("mock0"));
  ASSERT_EQ(p.qps.size(), 1u) << Described(app.pid());
  const VerbsQp& qp = p.qps[0];
  EXPECT_EQ(qp.device, "mock0");
  EXPECT_EQ(qp.number, 77u);
  EXPECT_TRUE(qp.creation_seen);
  EXPECT_FALSE(qp.destroyed);
  EXPECT_EQ(qp.posts[MC_QP_SEND], 1005u);
  EXPECT_EQ(qp.posts[MC_QP_WRITE], 30u + 7u + 1u);
  EXPECT_EQ(qp.posts[MC_QP_READ], 2u);
  EXPECT_EQ(qp.posts[MC_QP_ATOMIC], 8u);
  EXPECT_EQ(qp.posts[MC_QP_OTHER], 3u);
  EXPECT_EQ(qp.bytes, 100000u + 5u + 30u * (4096 + 4097) + 2u * 33 + 64u + 24u + 45u);
  EXPECT_EQ(qp.receives, 100u);
  EXPECT_EQ(qp.post_tid, app.pid());
  EXPECT_GE(qp.created_ns, before);
  EXPECT_GE(qp.last_post_ns, qp.created_ns);
  EXPECT_GE(qp.last_receive_ns, qp.last_post_ns);
  EXPECT_LE(qp.last_receive_ns, after);
  EXPECT_EQ(qp.truncated_posts, 0u);
  EXPECT_FALSE(qp.completions_seen);
  EXPECT_EQ(qp.port, 0u);
  EXPECT_FALSE(qp.gid_index.has_value());
  const ProbeRow row = Row("verbs.post_send");
  EXPECT_EQ(row.hits, 1000u + 5 + 10 + 7 + 2 + 8 + 3 + 1);
  EXPECT_EQ(row.dropped, 0u);
  EXPECT_EQ(row.failed_reads, 0u);
  EXPECT_THAT(row.attached, HasSubstr("libmock-rdmav34.so:0x"));
  EXPECT_EQ(row.problem, "");
  EXPECT_THAT(row.lost, HasSubstr("ibv_wr_"));
}

TEST_F(VerbsBpfTest, ChainsLongerThanIsLookedAtAreSaid) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 1");
  app.Must("post 0 2 4096 1 1 1");
  EXPECT_EQ(OneQp(app.pid()).posts[MC_QP_SEND], 4096u);
  EXPECT_EQ(OneQp(app.pid()).truncated_posts, 0u);
  app.Must("post 0 2 1200 16 1 1");  // 1,200 x 4 groups of entries
  EXPECT_EQ(OneQp(app.pid()).truncated_posts, 1u);
}

TEST_F(VerbsBpfTest, ProcessThatRunsAlready) {
  App app;
  app.Load();
  app.Must("open mock0");
  app.Must("qp 0 5");
  app.Must("post 0 2 1 1 100 10");  // before: not seen
  verbs_->AddProcess(app.pid());
  EXPECT_THAT(Described(app.pid()), HasSubstr("table at 0x"));
  app.Must("post 0 2 1 1 100 10");
  VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 1u);
  EXPECT_EQ(p.qps[0].posts[MC_QP_SEND], 10u);
  EXPECT_EQ(p.qps[0].device, "mock0");
  EXPECT_FALSE(p.qps[0].creation_seen);
  EXPECT_EQ(p.qps[0].state, 0u);  // as libibverbs keeps it in the struct
  // The first post showed the context, and its pointers agree with the table.
  EXPECT_THAT(Described(app.pid()), HasSubstr("pointers of an open device"));
  app.Must("post 0 2 1 1 100 10");
  EXPECT_EQ(OneQp(app.pid()).posts[MC_QP_SEND], 20u);
}

TEST_F(VerbsBpfTest, LibraryLoadedLater) {
  App app;
  verbs_->AddProcess(app.pid());
  EXPECT_THAT(verbs_->Describe(app.pid()), IsEmpty());
  app.Load();
  const uint64_t now = NowNs();
  verbs_->Tick(now);
  verbs_->Tick(now + 2'000'000'000);
  EXPECT_THAT(Described(app.pid()), HasSubstr("verbs_open_return"));
  app.Must("open mock0");
  app.Must("qp 0 5");
  app.Must("post 0 2 1 1 100 10");
  EXPECT_EQ(OneQp(app.pid()).posts[MC_QP_SEND], 10u);
}

TEST_F(VerbsBpfTest, OldVersionOfOpenIsSeenOnce) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0 1.0");
  app.Must("open mock1");
  Drain();
  EXPECT_EQ(Row("verbs.open").hits, 2u);
  EXPECT_THAT(ReadOne(app.pid()).devices, ElementsAre("mock0", "mock1"));
}

TEST_F(VerbsBpfTest, SameNumberOnTwoDevices) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("open mock1");
  app.Must("qp 0 9");
  app.Must("qp 1 9");
  app.Must("post 0 2 1 1 1 3");
  app.Must("post 1 2 1 1 1 4");
  const VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 2u);
  EXPECT_EQ(p.qps[0].device, "mock0");
  EXPECT_EQ(p.qps[0].posts[MC_QP_SEND], 3u);
  EXPECT_EQ(p.qps[1].device, "mock1");
  EXPECT_EQ(p.qps[1].posts[MC_QP_SEND], 4u);
}

TEST_F(VerbsBpfTest, StatesAndAttributes) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 3");
  EXPECT_EQ(OneQp(app.pid()).state, 0u);
  app.Must("modify 0 1 39 0 0 0 2 0 0 0 0");  // INIT: STATE, ACCESS, PKEY, PORT
  VerbsQp qp = OneQp(app.pid());
  EXPECT_EQ(qp.state, 1u);
  EXPECT_EQ(qp.port, 2u);
  EXPECT_EQ(qp.remote_gid, "");
  EXPECT_FALSE(qp.timeout.has_value());
  // RTR: STATE AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD MIN_RNR
  app.Must("modify 0 2 139181 4711 5 3 2 0 0 0 12");
  qp = OneQp(app.pid());
  EXPECT_EQ(qp.state, 2u);
  EXPECT_EQ(qp.remote_number, 4711u);
  EXPECT_EQ(qp.path_mtu, 4096u);
  EXPECT_EQ(qp.gid_index, 3u);
  EXPECT_EQ(qp.remote_gid, "0000:0000:0000:0000:0000:ffff:0a00:0001");
  EXPECT_EQ(qp.min_rnr_timer, 12u);
  EXPECT_FALSE(qp.timeout.has_value());
  // RTS: STATE TIMEOUT RETRY RNR SQ_PSN MAX_QP_RD
  app.Must("modify 0 3 12e01 0 0 0 0 18 7 6 0");
  qp = OneQp(app.pid());
  EXPECT_EQ(qp.state, 3u);
  EXPECT_EQ(qp.timeout, 18u);
  EXPECT_EQ(qp.retry_count, 7u);
  EXPECT_EQ(qp.rnr_retry, 6u);
  EXPECT_EQ(qp.remote_number, 4711u);  // kept
  EXPECT_THAT(verbs_->TakeEvents(), IsEmpty());
  // A refused one changes nothing and is told.
  EXPECT_EQ(app.Do("modify 0 4 1 0 0 0 0 0 0 0 0"), "22");
  EXPECT_EQ(OneQp(app.pid()).state, 3u);
  std::vector<VerbsEvent> events = verbs_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, VerbsEvent::Kind::kQpError);
  EXPECT_EQ(events[0].reason, static_cast<uint32_t>(MC_QP_ERROR_MODIFY_FAILED));
  EXPECT_EQ(events[0].value, 22u);
  EXPECT_EQ(events[0].text, "modify to SQD failed: Invalid argument");
  // To ERR by the process itself.
  app.Must("modify 0 6 1 0 0 0 0 0 0 0 0");
  qp = OneQp(app.pid());
  EXPECT_EQ(qp.state, 6u);
  EXPECT_GT(qp.state_ns, qp.created_ns);
  events = verbs_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].number, 3u);
  EXPECT_EQ(events[0].device, "mock0");
  EXPECT_EQ(events[0].pid, app.pid());
  EXPECT_EQ(events[0].text, "the process set the queue pair to ERR");
}

TEST_F(VerbsBpfTest, NumberUsedAgain) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 4242");  // the mock gives it the same address again
  app.Must("post 0 2 1 1 1 11");
  app.Must("destroy 0");
  app.Must("qp 0 4242");
  app.Must("post 1 2 1 1 1 5");
  VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 2u);
  EXPECT_EQ(p.qps[0].posts[MC_QP_SEND], 11u);
  EXPECT_TRUE(p.qps[0].destroyed);
  EXPECT_EQ(p.qps[1].posts[MC_QP_SEND], 5u);
  EXPECT_FALSE(p.qps[1].destroyed);
  EXPECT_LT(p.qps[0].created_ns, p.qps[1].created_ns);
  // The destroyed one is given once.
  p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 1u);
  EXPECT_EQ(p.qps[0].posts[MC_QP_SEND], 5u);
  app.Must("destroy 1");
  p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 1u);
  EXPECT_TRUE(p.qps[0].destroyed);
  EXPECT_THAT(ReadOne(app.pid()).qps, IsEmpty());
}

TEST_F(VerbsBpfTest, NumberUsedAgainWithoutBeingSeenDestroyed) {
  App app;
  app.Load();
  app.Must("open mock0");
  app.Must("qp 0 4242");
  verbs_->AddProcess(app.pid());
  app.Must("post 0 2 1 1 1 3");
  verbs_->RemoveProcess(app.pid());
  app.Must("destroy 0");
  app.Must("qp 0 4242");
  verbs_->AddProcess(app.pid());
  app.Must("post 1 2 1 1 1 2");
  const VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 1u);
  EXPECT_EQ(p.qps[0].posts[MC_QP_SEND], 2u);
}

TEST_F(VerbsBpfTest, Registrations) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("mr 0 4096 1");
  app.Must("mr 0 1048576 100001");        // relaxed ordering
  app.Must("dmabuf 0 2097152 100007 3");  // relaxed, descriptor 3
  VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.mrs.size(), 1u);
  EXPECT_EQ(p.mrs[0].device, "mock0");
  EXPECT_EQ(p.mrs[0].registrations, 3u);
  EXPECT_EQ(p.mrs[0].bytes, 4096u + 1048576 + 2097152);
  EXPECT_EQ(p.mrs[0].dmabuf, 1u);
  EXPECT_EQ(p.mrs[0].relaxed_ordering, 2u);
  EXPECT_EQ(p.mrs[0].failures, 0u);
  EXPECT_EQ(p.mrs[0].last_errno, 0);
  EXPECT_GT(p.mrs[0].ns, 0u);
  EXPECT_THAT(verbs_->TakeEvents(), IsEmpty());
  EXPECT_EQ(app.Do("mr 0 2199023255552 1"), "12");  // 2 TiB: ENOMEM
  EXPECT_EQ(app.Do("dmabuf 0 8192 1 -1"), "9");     // EBADF
  p = ReadOne(app.pid());
  EXPECT_EQ(p.mrs[0].registrations, 3u);
  EXPECT_EQ(p.mrs[0].failures, 2u);
  EXPECT_EQ(p.mrs[0].last_errno, 9);
  EXPECT_EQ(p.mrs[0].last_failure_bytes, 8192u);
  EXPECT_GT(p.mrs[0].last_failure_ns, 0u);
  const std::vector<VerbsEvent> events = verbs_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, VerbsEvent::Kind::kMrFailure);
  EXPECT_EQ(events[0].value, 12u);
  EXPECT_EQ(events[0].device, "mock0");
  EXPECT_EQ(events[0].text, "registration of 2199023255552 bytes failed: Cannot allocate memory");
  EXPECT_EQ(events[1].text,
            "registration of 8192 bytes of device memory (dmabuf) failed: Bad file descriptor");
}

TEST_F(VerbsBpfTest, AsynchronousEvents) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 8");
  Drain();
  app.Must("async 10 2");  // port error on port 2
  app.Must("async 1 0");   // queue pair fatal
  Drain();
  const std::vector<VerbsEvent> events = verbs_->TakeEvents();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, VerbsEvent::Kind::kAsync);
  EXPECT_EQ(events[0].text, "port error");
  EXPECT_EQ(events[0].port, 2u);
  EXPECT_EQ(events[0].device, "mock0");
  EXPECT_EQ(events[0].number, 0u);
  EXPECT_EQ(events[1].kind, VerbsEvent::Kind::kQpError);
  EXPECT_EQ(events[1].reason, static_cast<uint32_t>(MC_QP_ERROR_ASYNC));
  EXPECT_EQ(events[1].number, 8u);
  EXPECT_EQ(events[2].kind, VerbsEvent::Kind::kAsync);
  EXPECT_EQ(events[2].text, "queue pair fatal error");
  EXPECT_EQ(events[2].number, 8u);
  EXPECT_EQ(OneQp(app.pid()).state, 6u);
}

TEST_F(VerbsBpfTest, EventForAThreadThatWaitedBeforeWeCame) {
  App app;
  app.Load();
  app.Must("open mock0");
  app.Must("qp 0 8");
  app.Must("wait");
  verbs_->AddProcess(app.pid());
  app.Must("event 10 1");
  Drain();
  const std::vector<VerbsEvent> events = verbs_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);  // seen when it is acknowledged, and once
  EXPECT_EQ(events[0].text, "port error");
  EXPECT_EQ(events[0].port, 1u);
}

TEST_F(VerbsBpfTest, CompletionsOnlyWhileArmed) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 8");
  app.Must("post 0 2 1 1 1 3 1");
  EXPECT_EQ(app.Do("poll 0 4"), "3");
  EXPECT_FALSE(OneQp(app.pid()).completions_seen);
  EXPECT_FALSE(Row("verbs.completions").armed);

  const uint64_t pid = app.pid();
  ASSERT_TRUE(set_->Arm("verbs.completions", {&pid, 1}, NowNs() + 60'000'000'000).ok());
  EXPECT_TRUE(Row("verbs.completions").armed);
  EXPECT_THAT(Row("verbs.completions").attached, HasSubstr("libmock-rdmav34.so"));
  app.Must("post 0 2 1 1 1 1 100");
  app.Must("post 0 2 1 1 1 1 101");
  app.Must("post 0 2 1 1 1 1 102 786561");  // status 12, vendor error 129
  app.Must("post 0 2 1 1 1 1 103 327929");  // status 5, flushed
  EXPECT_EQ(app.Do("poll 0 5"), "4");
  VerbsQp qp = OneQp(app.pid());
  EXPECT_TRUE(qp.completions_seen);
  EXPECT_EQ(qp.completions, 4u);
  EXPECT_EQ(qp.failed_completions, 2u);
  EXPECT_EQ(qp.first_bad_status, 12u);
  EXPECT_EQ(qp.first_bad_vendor, 129u);
  EXPECT_EQ(qp.first_bad_ns, qp.last_completion_ns);
  EXPECT_EQ(qp.state, 6u);
  EXPECT_EQ(qp.latency_count, 2u);
  EXPECT_GT(qp.latency_max_ns, 0u);
  EXPECT_LT(qp.latency_max_ns, 10'000'000'000u);
  EXPECT_GE(qp.latency_sum_ns, qp.latency_max_ns);
  const std::vector<VerbsEvent> events = verbs_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text,
            "completion with status 12 (transport retry exceeded), vendor error 129");

  const size_t attached = set_->uprobe_count();
  set_->Disarm("verbs.completions");
  EXPECT_EQ(set_->uprobe_count(), attached - 2);
  EXPECT_FALSE(Row("verbs.completions").armed);
  app.Must("post 0 2 1 1 1 3 1");
  EXPECT_EQ(app.Do("poll 0 4"), "3");
  EXPECT_EQ(OneQp(app.pid()).completions, 4u);
}

TEST_F(VerbsBpfTest, ReceiveQueueWhileArmed) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 8");
  app.Must("recv 0 5 1");
  EXPECT_EQ(OneQp(app.pid()).receive_completions, 5u);  // of them nothing is known
  const uint64_t pid = app.pid();
  ASSERT_TRUE(set_->Arm("verbs.completions", {&pid, 1}, NowNs() + 60'000'000'000).ok());
  app.Must("recv 0 3 1");
  app.Must("post 0 2 1 1 1 2 777");  // two arrive
  EXPECT_EQ(app.Do("poll 0 4"), "2");
  VerbsQp qp = OneQp(app.pid());
  EXPECT_EQ(qp.receives, 8u);
  EXPECT_EQ(qp.receive_completions, 7u);
  EXPECT_EQ(qp.completions, 0u);     // of the send queue
  app.Must("post 0 2 1 1 1 4 777");  // more than were posted since
  EXPECT_EQ(app.Do("poll 0 8"), "4");
  EXPECT_EQ(OneQp(app.pid()).receive_completions, 8u);
  set_->Disarm("verbs.completions");
  app.Must("recv 0 1 1");
  EXPECT_EQ(OneQp(app.pid()).receive_completions, 9u);
}

TEST_F(VerbsBpfTest, ArmedForAtMostTheTimeGiven) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 8");
  const uint64_t pid = app.pid();
  // The time is over at once: the program looks at it itself, before any Tick.
  ASSERT_TRUE(set_->Arm("verbs.completions", {&pid, 1}, NowNs()).ok());
  app.Must("post 0 2 1 1 1 3 1");
  EXPECT_EQ(app.Do("poll 0 4"), "3");
  EXPECT_FALSE(OneQp(app.pid()).completions_seen);
  EXPECT_TRUE(Row("verbs.completions").armed);
  set_->Tick(NowNs());
  EXPECT_FALSE(Row("verbs.completions").armed);
  const uint64_t nobody = 999999;
  EXPECT_THAT(set_->Arm("verbs.completions", {&nobody, 1}, NowNs() + 1'000'000'000).message(),
              HasSubstr("not watched"));
  EXPECT_FALSE(Row("verbs.completions").armed);
}

TEST_F(VerbsBpfTest, RefusedPosts) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 8");
  EXPECT_EQ(app.Do("post 0 2 1 1 1 2 666"), "12");
  EXPECT_EQ(OneQp(app.pid()).post_failures, 0u);  // not armed
  const uint64_t pid = app.pid();
  ASSERT_TRUE(set_->Arm("verbs.post_failures", {&pid, 1}, NowNs() + 60'000'000'000).ok());
  EXPECT_EQ(app.Do("post 0 2 1 1 1 5 666"), "12");
  app.Must("post 0 2 1 1 1 5 1");
  app.Must("recv 0 1 5");
  const VerbsQp qp = OneQp(app.pid());
  EXPECT_EQ(qp.post_failures, 5u);
  EXPECT_EQ(qp.last_post_errno, 12);
  EXPECT_EQ(Row("verbs.post_failures").hits, 15u);
}

TEST_F(VerbsBpfTest, OtherProcessesAreNotSeen) {
  App watched, other;
  for (App* app : {&watched, &other}) {
    app->Load();
    app->Must("open mock0");
    app->Must("qp 0 1");
  }
  verbs_->AddProcess(watched.pid());
  other.Must("post 0 2 1 1 1 100");
  watched.Must("post 0 2 1 1 1 1");
  Drain();
  const std::vector<VerbsProcess> all = verbs_->Read();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].pid, watched.pid());
  EXPECT_EQ(Row("verbs.post_send").hits, 1u);
}

TEST_F(VerbsBpfTest, EightProcesses) {
  std::vector<std::unique_ptr<App>> apps;
  for (int i = 0; i < 8; ++i) {
    apps.push_back(std::make_unique<App>());
    apps.back()->Load();
    verbs_->AddProcess(apps.back()->pid());
    apps.back()->Must("open mock0");
    apps.back()->Must("qp 0 1");
  }
  for (int i = 0; i < 8; ++i) apps[i]->Must("post 0 2 1 1 1 " + std::to_string(10 + i));
  Drain();
  std::map<uint32_t, uint64_t> posts;
  for (const VerbsProcess& p : verbs_->Read())
    for (const VerbsQp& qp : p.qps) posts[p.pid] += qp.posts[MC_QP_SEND];
  ASSERT_EQ(posts.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(posts[apps[i]->pid()], 10u + i);
  EXPECT_THAT(Row("verbs.post_send").attached, HasSubstr("in 8 processes"));
}

TEST_F(VerbsBpfTest, EntryIsNotEmulatedSoALaterPlaceIsTaken) {
  App app;
  app.Load("libendbr-rdmav34.so");
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 1");
  app.Must("post 0 0 2 2 100 50");
  app.Must("recv 0 3 50");
  const VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 1u) << Described(app.pid());
  EXPECT_EQ(p.qps[0].posts[MC_QP_WRITE], 100u);
  EXPECT_EQ(p.qps[0].bytes, 100u * 201);
  EXPECT_EQ(p.qps[0].receives, 150u);
}

TEST_F(VerbsBpfTest, NoCheapPlaceIsSaid) {
  App app;
  app.Load("libstub-rdmav34.so");
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 1");
  app.Do("post 0 0 1 1 100 5");
  app.Must("recv 0 3 50");
  const VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 1u);
  EXPECT_EQ(p.qps[0].posts[MC_QP_WRITE], 0u);
  EXPECT_EQ(p.qps[0].receives, 150u);
  const ProbeRow row = Row("verbs.post_send");
  EXPECT_EQ(row.attached, "");
  EXPECT_THAT(row.problem, HasSubstr("single-stepped"));
  EXPECT_THAT(row.lost, HasSubstr("whether the NIC was given work"));
}

// A folder of its own with the libraries, removed at the end.
class Folder {
 public:
  Folder() {
    path_ = fs::temp_directory_path() / ("mycroft-verbs-" + std::to_string(getpid()));
    fs::remove_all(path_);
    fs::create_directories(path_ / "lib");
    fs::create_directories(path_ / "proc");
    for (const char* name : {"libibverbs.so.1", "libmock-rdmav34.so"})
      fs::copy_file(fs::path(MYCROFT_MOCK) / name, path_ / "lib" / name);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string lib() const { return (path_ / "lib").string(); }
  std::string root() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST_F(VerbsBpfTest, LibraryReplacedOnDisk) {
  Folder folder;
  App app;
  app.Load("libmock-rdmav34.so", folder.lib());
  app.Must("open mock0");
  app.Must("qp 0 1");
  // As a package manager does: a new file under the old name.
  fs::copy_file(folder.lib() + "/libmock-rdmav34.so", folder.lib() + "/new");
  fs::rename(folder.lib() + "/new", folder.lib() + "/libmock-rdmav34.so");
  verbs_->AddProcess(app.pid());
  app.Must("post 0 0 1 1 100 5");
  const VerbsProcess p = ReadOne(app.pid());
  const ProbeRow row = Row("verbs.post_send");
  EXPECT_THAT(row.problem, HasSubstr("replaced on disk"));
  ASSERT_EQ(p.qps.size(), 1u) << row.problem;
  EXPECT_EQ(p.qps[0].posts[MC_QP_WRITE], 5u);
  EXPECT_THAT(Row("verbs.qp").problem, Not(HasSubstr("replaced")));
}

TEST_F(VerbsBpfTest, ContainerWithARootOfItsOwn) {
  Folder folder;
  App app;
  // libc is mapped already; the loader needs no other file.
  app.Must("container " + folder.root());
  app.Load("libmock-rdmav34.so", "/lib");
  EXPECT_FALSE(fs::exists("/lib/libmock-rdmav34.so"));
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 1");
  app.Must("post 0 0 1 1 100 5");
  app.Must("mr 0 4096 1");
  const VerbsProcess p = ReadOne(app.pid());
  ASSERT_EQ(p.qps.size(), 1u) << Described(app.pid());
  EXPECT_EQ(p.qps[0].posts[MC_QP_WRITE], 5u);
  ASSERT_EQ(p.mrs.size(), 1u);
  EXPECT_EQ(p.mrs[0].registrations, 1u);
  EXPECT_EQ(Row("verbs.post_send").problem, "");
}

TEST_F(VerbsBpfTest, MalformedLibraryIsSaid) {
  Folder folder;
  App app;
  app.Load("libmock-rdmav34.so", folder.lib());
  app.Must("open mock0");
  // The same inode, other bytes after the headers were loaded: read as hostile.
  std::fstream file(folder.lib() + "/libmock-rdmav34.so",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(24);
  const std::string junk(40, '\xff');
  file.write(junk.data(), static_cast<long>(junk.size()));
  file.close();
  verbs_->AddProcess(app.pid());
  EXPECT_THAT(Row("verbs.post_send").problem, HasSubstr("libmock-rdmav34.so: ELF file"));
  EXPECT_EQ(Row("verbs.post_send").attached, "");
}

TEST_F(VerbsBpfTest, ProcessGone) {
  auto app = std::make_unique<App>();
  app->Load();
  const uint32_t pid = app->pid();
  verbs_->AddProcess(pid);
  app->Must("open mock0");
  app->Must("qp 0 1");
  app->Must("post 0 0 1 1 100 5");
  app->Kill();
  verbs_->Tick(NowNs());
  EXPECT_EQ(set_->uprobe_count(), 0u);
  // What it did last is given once more.
  VerbsProcess p = ReadOne(pid);
  ASSERT_EQ(p.qps.size(), 1u);
  EXPECT_EQ(p.qps[0].posts[MC_QP_WRITE], 5u);
  EXPECT_THAT(verbs_->Read(), IsEmpty());
  verbs_->AddProcess(pid);  // no such process
  EXPECT_THAT(verbs_->Read(), IsEmpty());
}

TEST_F(VerbsBpfTest, ProcessesThatDieWhileAttaching) {
  for (int i = 0; i < 30; ++i) {
    App app;
    app.Load();
    const pid_t killer = fork();
    if (killer == 0) {
      usleep(static_cast<useconds_t>(i) * 300);
      kill(static_cast<pid_t>(app.pid()), SIGKILL);
      _exit(0);
    }
    verbs_->AddProcess(app.pid());
    waitpid(killer, nullptr, 0);
    app.Kill();
    verbs_->Tick(NowNs());
  }
  verbs_->Read();
  EXPECT_EQ(set_->uprobe_count(), 0u);
}

TEST_F(VerbsBpfTest, TenThousandQueuePairs) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("many 0 10000");
  const uint64_t before = NowNs();
  const VerbsProcess p = ReadOne(app.pid());
  const uint64_t took = NowNs() - before;
  ASSERT_EQ(p.qps.size(), 10000u);
  for (size_t i = 0; i < p.qps.size(); ++i) {
    ASSERT_EQ(p.qps[i].number, i + 1);
    ASSERT_EQ(p.qps[i].posts[MC_QP_SEND], 1u);
  }
  EXPECT_EQ(Row("verbs.post_send").dropped, 0u);
  printf("10,000 queue pairs read in %.1f ms\n", static_cast<double>(took) / 1e6);
}

TEST_F(VerbsBpfTest, MoreQueuePairsThanThereIsRoomForAreCounted) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("many 0 17000");
  EXPECT_EQ(ReadOne(app.pid()).qps.size(), 16384u);
  // Once when it was made, once when it was used.
  EXPECT_EQ(Row("verbs.qp").dropped, 17000u - 16384);
  EXPECT_EQ(Row("verbs.post_send").dropped, 17000u - 16384);
}

// The host's number of our programs, after a while: a program is freed late, and another
// agent may look at this host for a moment.
bool ProgramsBecome(size_t count) {
  for (int i = 0; i < 600; ++i) {
    if (ProgramsOfHost("verbs_") == count) return true;
    usleep(50000);
  }
  return false;
}

TEST_F(VerbsBpfTest, AThousandTimesOnAndOff) {
  App app;
  app.Load();
  app.Must("open mock0");
  app.Must("qp 0 1");
  verbs_->AddProcess(app.pid());
  app.Must("post 0 0 1 1 100 1");
  verbs_->RemoveProcess(app.pid());
  set_->FlushDetached(true);
  const BpfCensus before = TakeBpfCensus();
  const size_t programs = ProgramsOfHost("verbs_");
  const char* fewer = std::getenv("MYCROFT_ROUNDS");  // an emulated machine is slow
  const int rounds = fewer != nullptr ? std::atoi(fewer) : 1000;
  for (int i = 0; i < rounds; ++i) {
    verbs_->AddProcess(app.pid());
    if (i % 100 == 0) {
      app.Must("post 0 0 1 1 100 1");
      ASSERT_EQ(ReadOne(app.pid()).qps.size(), 1u) << i;
    }
    verbs_->RemoveProcess(app.pid());
    ASSERT_EQ(set_->uprobe_count(), 0u);
  }
  set_->FlushDetached(true);
  const BpfCensus after = TakeBpfCensus();
  EXPECT_EQ(after.programs, before.programs);
  EXPECT_EQ(after.maps, before.maps);
  EXPECT_EQ(after.links, before.links);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_TRUE(ProgramsBecome(programs));
  verbs_.reset();
  set_.reset();
  EXPECT_TRUE(ProgramsBecome(0));
  app.Must("post 0 0 1 1 100 1");  // its code is as it was
}

TEST_F(VerbsBpfTest, AKilledAgentLeavesNothing) {
  App app;
  app.Load();
  verbs_.reset();
  set_.reset();
  ASSERT_TRUE(ProgramsBecome(0));
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t agent = fork();
  if (agent == 0) {
    ProbeSet::Options options;
    options.objects = {"verbs"};
    auto set = ProbeSet::Create(options);
    VerbsProbes verbs(set->get());
    verbs.AddProcess(app.pid());
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char c;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  EXPECT_GT(ProgramsOfHost("verbs_"), 0u);
  kill(agent, SIGKILL);
  waitpid(agent, nullptr, 0);
  EXPECT_TRUE(ProgramsBecome(0));
  app.Must("open mock0");
  close(ready[0]);
  close(ready[1]);
}

TEST_F(VerbsBpfTest, CostIsMeasured) {
  App app;
  app.Load();
  verbs_->AddProcess(app.pid());
  app.Must("open mock0");
  app.Must("qp 0 1");
  EXPECT_FALSE(Row("verbs.post_send").cost_ns.has_value());
  ASSERT_TRUE(set_->StartCostMeasurement().ok());
  app.Must("post 0 0 1 1 100 20000");
  set_->StopCostMeasurement();
  const ProbeRow row = Row("verbs.post_send");
  ASSERT_TRUE(row.cost_ns.has_value());
  EXPECT_GT(*row.cost_ns, 1.0);
  printf("verbs.post_send: %.0f ns per post, of which the trap %.0f ns\n", *row.cost_ns,
         set_->CalibrateUprobe().value_or(0));
  EXPECT_FALSE(Row("verbs.async").cost_ns.has_value());  // was not hit
}

TEST(MappedFileTest, MapsTextIsBounded) {
  const std::string text =
      "7f0000000000-7f0000001000 r-xp 00002000 fd:01 1234                       /usr/lib/a b.so\n"
      "7f0000001000-7f0000002000 r--p 00003000 fd:01 1234                       /usr/lib/a b.so\n"
      "7f0000003000-7f0000004000 r-xp 00000000 00:00 0                          [vdso]\n"
      "7f0000005000-7f0000006000 r-xp 00000000 fd:01 99   /x/libibverbs.so.1 (deleted)\n"
      "junk\n7f-\n";
  const std::vector<MappedCode> code = ParseMappedCode(text);
  ASSERT_EQ(code.size(), 2u);
  EXPECT_EQ(code[0].path, "/usr/lib/a b.so");
  EXPECT_EQ(code[0].begin, 0x7f0000000000u);
  EXPECT_EQ(code[0].offset, 0x2000u);
  EXPECT_EQ(code[0].inode, 1234u);
  EXPECT_FALSE(code[0].deleted);
  EXPECT_EQ(code[1].path, "/x/libibverbs.so.1");
  EXPECT_TRUE(code[1].deleted);
  EXPECT_FALSE(ReadMappedCode("/proc", 0x7fffffff).has_value());
}

}  // namespace
}  // namespace mycroft
