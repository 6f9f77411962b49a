// SPDX-License-Identifier: Apache-2.0
//
// The whole command: real processes, with the recorder plugin, checked for exact
// sums, NCCL's callback order and a true truth file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tools/lab/job/callback_order.h"
#include "tools/lab/job/clock.h"

namespace mycroft::lab {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Result {
  int status = -1;
  std::string out;
  std::string err;
};

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class JobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mycroft-lab-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    setenv("LAB_RECORDER_DIR", folder_.c_str(), 1);
    unsetenv("LAB_RECORDER_MASK");
    unsetenv("NCCL_PROFILER_PLUGIN");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Command(const std::string& arguments) const {
    return std::string("exec ") + MYCROFT_LAB + " " + arguments + " >" + folder_ + "/out 2>" +
           folder_ + "/err";
  }
  Result Run(const std::string& arguments) const {
    Result result;
    const int status = system(Command(arguments).c_str());
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    result.out = ReadAll(folder_ + "/out");
    result.err = ReadAll(folder_ + "/err");
    return result;
  }
  std::string Truth() const { return folder_ + "/truth.json"; }
  json ReadTruth() const { return json::parse(ReadAll(Truth()), nullptr, false); }
  std::vector<OrderReport> Reports(Sends sends = Sends::kNeverRefused) const {
    std::vector<OrderReport> reports;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() != ".jsonl") continue;
      std::vector<json> lines;
      std::string error;
      EXPECT_TRUE(ReadRecording(entry.path(), &lines, &error)) << error;
      reports.push_back(CheckOrder(lines, sends));
      EXPECT_TRUE(reports.back().violations.empty())
          << ::testing::PrintToString(reports.back().violations);
    }
    return reports;
  }

  std::string folder_;
};

constexpr char kSmall[] = " --compute-us 1000 --bytes 300000 ";

TEST_F(JobTest, FlatWithEveryOperation) {
  const Result result =
      Run(std::string("job --ranks 2 --iters 6 --ops ar,rs,ag,bc,sr,aa --json --plugin ") +
          MYCROFT_RECORDER + kSmall + "--truth " + Truth());
  EXPECT_EQ(result.status, 0) << result.err;
  const json summary = json::parse(result.out, nullptr, false);
  ASSERT_TRUE(summary.is_object()) << result.out;
  EXPECT_EQ(summary["schema_version"], 1);
  EXPECT_EQ(summary["iterations"], 6);
  EXPECT_EQ(summary["exact"], true);
  EXPECT_EQ(summary["ok"], true);
  EXPECT_EQ(summary["profiler_api"], 6);
  const auto reports = Reports();
  ASSERT_EQ(reports.size(), 2u);
  for (const OrderReport& report : reports) {
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(report.api, 6);
    EXPECT_EQ(report.collectives, 6 * 4 + 1);  // and the warm-up
    EXPECT_EQ(report.messages, 2 * 2 * (6 + 1));
    EXPECT_EQ(report.launches, 6 * 6 + 3);
    EXPECT_GT(report.kernels, 0);
    EXPECT_EQ(report.comms, (std::map<std::string, int>{{"world", 2}}));
  }
  const json truth = ReadTruth();
  EXPECT_EQ(truth["expected"]["verdict"], "healthy");
  EXPECT_EQ(truth["nranks"], 2);
  EXPECT_EQ(truth["layout"], "flat");
  EXPECT_EQ(truth["comms"].size(), 1u);
  EXPECT_EQ(truth["ranks"].size(), 2u);
  for (const json& rank : truth["ranks"]) {
    EXPECT_EQ(rank["result"], "ok");
    ASSERT_EQ(rank["iters"].size(), 6u);
    for (const json& iter : rank["iters"]) {
      EXPECT_LE(iter[0], iter[1]);
      EXPECT_LT(iter[1], iter[2]);
    }
    EXPECT_TRUE(
        std::filesystem::exists(folder_ + "/" + std::to_string(rank["pid"].get<int>()) + ".jsonl"));
  }
}

TEST_F(JobTest, Grids) {
  struct Case {
    const char* arguments;
    std::map<std::string, int> comms_of_rank0;
  };
  const Case cases[] = {
      {"--layout dpxpp --ranks 4 --pp 2 --p2p-bytes 300000",
       {{"world", 4}, {"dp0", 2}, {"pp0", 2}}},
      {"--layout dpxpp --ranks 2 --pp 2 --uneven-p2p", {{"world", 2}, {"pp0", 2}}},
      {"--layout dpxtp --ranks 4 --tp 2 --tp-bytes 100000", {{"world", 4}, {"tp0", 2}, {"dp0", 2}}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.arguments);
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    const Result result = Run(std::string("job --iters 4 --quiet --plugin ") + MYCROFT_RECORDER +
                              kSmall + c.arguments + " --truth " + Truth());
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("iterations=4 median_us="));
    EXPECT_THAT(result.out, HasSubstr("exact=yes result=ok"));
    const auto reports = Reports();
    EXPECT_EQ(reports.size(), ReadTruth()["ranks"].size());
    bool seen = false;
    for (const OrderReport& report : reports) {
      EXPECT_TRUE(report.complete);
      seen = seen || report.comms == c.comms_of_rank0;
    }
    EXPECT_TRUE(seen);
  }
}

TEST_F(JobTest, OlderProfilerApis) {
  for (int api : {4, 5}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    // Found by the environment, as NCCL does.
    setenv("NCCL_PROFILER_PLUGIN", MYCROFT_RECORDER, 1);
    const Result result =
        Run(std::string("job --ranks 2 --iters 3 -q --layout dpxpp --profiler-api ") +
            std::to_string(api) + kSmall);
    unsetenv("NCCL_PROFILER_PLUGIN");
    EXPECT_EQ(result.status, 0) << result.err;
    const auto reports = Reports();
    ASSERT_EQ(reports.size(), 2u);
    for (const OrderReport& report : reports) {
      EXPECT_EQ(report.api, api);
      EXPECT_TRUE(report.complete);
      EXPECT_GT(report.steps, 0);
      EXPECT_GT(report.messages, 0);
    }
  }
}

TEST_F(JobTest, MaskIsHonoured) {
  struct Case {
    const char* mask;
    std::set<int> types;  // a type turns on its ancestors
  };
  const Case cases[] = {
      {"0x0", {}},
      {"0x2", {1, 2, 256, 512}},          // Coll
      {"0x8", {1, 2, 8, 256, 512}},       // ProxyOp
      {"0x10", {1, 2, 8, 16, 256, 512}},  // ProxyStep
      {"0x40", {1, 2, 64, 256, 512}},     // KernelCh
      {"0x20", {32}},                     // ProxyCtrl
      {"0x100", {256}},                   // GroupApi
      {"0x800", {256, 2048}},             // KernelLaunch
  };
  for (const Case& c : cases) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    setenv("LAB_RECORDER_MASK", c.mask, 1);
    const Result result = Run(std::string("job --ranks 2 --iters 2 -q --profiler-api 5 --plugin ") +
                              MYCROFT_RECORDER + kSmall);
    unsetenv("LAB_RECORDER_MASK");
    EXPECT_EQ(result.status, 0) << result.err;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() != ".jsonl") continue;
      std::vector<json> lines;
      std::string error;
      ASSERT_TRUE(ReadRecording(entry.path(), &lines, &error)) << error;
      std::set<int> types;
      for (const json& line : lines) {
        if (line["k"] == "b") types.insert(line["ty"].get<int>());
      }
      EXPECT_EQ(types, c.types) << c.mask;
    }
  }
}

TEST_F(JobTest, WithoutPluginAndWithABadOne) {
  Result result = Run(std::string("job --ranks 2 --iters 2") + kSmall);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("NCCL_PROFILER_PLUGIN is not set"));
  EXPECT_THAT(result.out, HasSubstr("rank 1 pid "));
  result = Run(std::string("job --ranks 2 --iters 2 --plugin none") + kSmall);
  EXPECT_EQ(result.status, 0) << result.err;
  // Asked for on the command line: an error. In the environment: NCCL goes on without.
  result = Run(std::string("job --ranks 2 --iters 2 --plugin /nowhere/x.so") + kSmall);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("/nowhere/x.so"));
  setenv("NCCL_PROFILER_PLUGIN", "/nowhere/x.so", 1);
  result = Run(std::string("job --ranks 2 --iters 2") + kSmall);
  unsetenv("NCCL_PROFILER_PLUGIN");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("cannot be loaded"));
}

TEST_F(JobTest, UsageErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"job --fault gpu-slow:rank=9,at=1",
       "--fault \"gpu-slow:rank=9,at=1\": rank=9 is not a rank"},
      {"job --fault melted:rank=0,at=1", "no fault is called \"melted\""},
      {"job --event checkpoint:at=1", "needs at=SECONDS,for=SECONDS"},
      {"job --ranks 1", "--ranks 1 is out of range"},
      {"job --layout cube", "--layout \"cube\" is not known"},
      {"job --layout dpxpp --ranks 4 --pp 3", "is not --ranks 4"},
      {"job --ops ar,zz", "\"zz\" is not known"},
      {"job --no-such-option", "no-such-option"},
      {"job --transport rdma", "--transport \"rdma\" is not known"},
      {"job --transport verbs --fault net-down:rank=0,at=1", "tc qdisc"},
      {"job --fault rnr:rank=0,at=1", "needs --transport verbs"},
      {"job --ib-mtu 1500", "--ib-mtu must be"},
      {"job --ib-flush perhaps", "--ib-flush"},
      {"", "subcommand"},
  };
  for (const auto& [arguments, text] : cases) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_THAT(result.out + result.err, HasSubstr(text)) << arguments;
  }
  EXPECT_EQ(Run("job --help").status, 0);
}

bool HasRdmaDevice() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

TEST_F(JobTest, VerbsWithoutADeviceIsAClearError) {
  if (HasRdmaDevice()) GTEST_SKIP() << "this machine has an RDMA device";
  const Result result = Run("job --transport verbs --iters 1");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, ::testing::AnyOf(HasSubstr("there is no RDMA device"),
                                           HasSubstr("built without libibverbs")));
}

// Over real RDMA devices: two of Soft-RoCE in the VM (tools/vm).
class JobVerbsTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (!HasRdmaDevice()) GTEST_SKIP() << "NO RDMA DEVICE: run it in a VM with Soft-RoCE";
  }
};

TEST_F(JobVerbsTest, EveryOperationInNcclsOrder) {
  const Result result = Run(
      std::string("job --transport verbs --ib-flush on --ranks 4 --iters 6 --ops ar,rs,ag,bc,sr,aa "
                  "--json --plugin ") +
      MYCROFT_RECORDER + kSmall + "--truth " + Truth());
  EXPECT_EQ(result.status, 0) << result.err;
  const json summary = json::parse(result.out, nullptr, false);
  ASSERT_TRUE(summary.is_object()) << result.out;
  EXPECT_EQ(summary["iterations"], 6);
  EXPECT_EQ(summary["exact"], true);
  const auto reports = Reports(Sends::kMayBeRefused);
  ASSERT_EQ(reports.size(), 4u);
  for (const OrderReport& report : reports) {
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(report.collectives, 6 * 4 + 1);
    EXPECT_EQ(report.messages, 2 * (6 + 1));
  }
  const json truth = ReadTruth();
  EXPECT_EQ(truth["transport"], "verbs");
  EXPECT_NE(truth["ranks"][0]["device"], "");
}

TEST_F(JobVerbsTest, SpinningProxies) {
  const Result result = Run(
      std::string("job --transport verbs --ib-spin --ranks 2 --iters 5 --plugin none") + kSmall);
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(JobVerbsTest, BadRemoteKeyIsReportedAndTheJobStandsStill) {
  const Result result =
      Run(std::string("job --transport verbs --ranks 2 --duration 20 --abort-after 2 -q "
                      "--plugin none --fault bad-rkey:rank=1,at=1 --truth ") +
          Truth() + kSmall);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("status 10 (remote access error)"));
  EXPECT_THAT(result.err, HasSubstr("failed, all ranks leave"));
  const json truth = ReadTruth();
  EXPECT_EQ(truth["expected"]["verdict"], "hang");
  EXPECT_EQ(truth["expected"]["culprits"], json::parse(R"([{"rank":1,"component":"app"}])"));
  EXPECT_GE(truth["faults"][0]["onset"].get<uint64_t>(), truth["t0"].get<uint64_t>() + kNsPerSec);
  // Nothing moved between the error and the abort.
  const uint64_t abort = truth["ranks"][0]["abort"];
  for (const json& rank : truth["ranks"]) {
    EXPECT_LT(rank["iters"].back()[2].get<uint64_t>() + 1900 * kNsPerMs, abort);
  }
}

TEST_F(JobVerbsTest, ReceiverNotReadyAndBack) {
  const Result result =
      Run(std::string("job --transport verbs --ranks 2 --duration 4 -q --plugin none "
                      "--fault rnr:rank=1,at=1,for=1 --truth ") +
          Truth() + kSmall);
  EXPECT_EQ(result.status, 0) << result.err;
  const json truth = ReadTruth();
  EXPECT_EQ(truth["expected"]["culprits"], json::parse(R"([{"rank":1,"component":"nic"}])"));
  uint64_t longest = 0;
  for (const json& iter : truth["ranks"][0]["iters"]) {
    longest = std::max(longest, iter[2].get<uint64_t>() - iter[0].get<uint64_t>());
  }
  EXPECT_GE(longest, 900 * kNsPerMs);
}

TEST_F(JobVerbsTest, ReceiverNotReadyForEver) {
  const Result result =
      Run(std::string("job --transport verbs --ib-rnr-retry 3 --ranks 2 --duration 20 -q "
                      "--abort-after 1 --plugin none --fault rnr:rank=1,at=1") +
          kSmall);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("status 13 (RNR retry counter exceeded)"));
}

class JobFaultTest : public JobTest {};

TEST_F(JobFaultTest, TruthOfAFaultAndACheckpoint) {
  const Result result =
      Run(std::string(
              "job --ranks 2 --duration 2 -q --fault gpu-slow:rank=1,at=0.4,for=0.5,amount=2000 "
              "--fault host-late:rank=0,at=0.5,for=0.3,amount=30000 "
              "--event checkpoint:at=1.2,for=0.3 --first-us 20000 --noise 30 --truth ") +
          Truth() + kSmall);
  EXPECT_EQ(result.status, 0) << result.err;
  const json truth = ReadTruth();
  EXPECT_EQ(truth["expected"]["verdict"], "slow");
  EXPECT_EQ(truth["expected"]["culprits"],
            json::parse(R"([{"rank":1,"component":"gpu"},{"rank":0,"component":"host"}])"));
  ASSERT_EQ(truth["faults"].size(), 3u);
  const uint64_t t0 = truth["t0"];
  const json& slow = truth["faults"][0];
  EXPECT_EQ(slow["kind"], "gpu-slow");
  EXPECT_EQ(slow["rank"], 1);
  EXPECT_EQ(slow["component"], "gpu");
  EXPECT_EQ(slow["amount"], 2000.0);
  EXPECT_EQ(slow["planned_onset"], t0 + 400 * kNsPerMs);
  EXPECT_GE(slow["onset"].get<uint64_t>(), t0 + 400 * kNsPerMs);
  EXPECT_LT(slow["onset"].get<uint64_t>(), t0 + 900 * kNsPerMs);
  EXPECT_EQ(slow["clear"], t0 + 900 * kNsPerMs);
  const json& pause = truth["faults"][2];
  EXPECT_EQ(pause["kind"], "checkpoint");
  EXPECT_EQ(pause["rank"], -1);
  EXPECT_EQ(pause["component"], "none");
  EXPECT_GE(pause["onset"].get<uint64_t>(), t0 + 1200 * kNsPerMs);
  // Both ranks paused before the same iteration, for at least as long.
  for (const json& rank : truth["ranks"]) {
    uint64_t longest = 0;
    for (size_t i = 1; i < rank["iters"].size(); ++i) {
      longest = std::max(
          longest, rank["iters"][i][0].get<uint64_t>() - rank["iters"][i - 1][2].get<uint64_t>());
    }
    EXPECT_GE(longest, 300 * kNsPerMs);
  }
  EXPECT_EQ(truth["ranks"][0]["iters"].size(), truth["ranks"][1]["iters"].size());
}

TEST_F(JobFaultTest, HungJobEndsAtItsDurationWithOpenEvents) {
  const Result result =
      Run(std::string("job --ranks 2 --duration 1 -q --fault gpu-stuck:rank=1,at=0.3 --truth ") +
          Truth() + " --plugin " + MYCROFT_RECORDER + kSmall);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("exact=yes result=stopped"));
  const json truth = ReadTruth();
  EXPECT_EQ(truth["expected"]["verdict"], "hang");
  EXPECT_NE(truth["faults"][0]["onset"], 0);
  EXPECT_EQ(truth["faults"][0]["clear"], 0);
  for (const json& rank : truth["ranks"]) EXPECT_EQ(rank["result"], "aborted");
  // What is open at an abort never stops, as with NCCL.
  for (const OrderReport& report : Reports()) {
    EXPECT_FALSE(report.complete);
    EXPECT_GT(report.open_events, 0);
  }
}

TEST_F(JobFaultTest, KilledRankEndsTheJob) {
  const Result result = Run(std::string("job --ranks 3 --iters 100000 -q --abort-after 0.5 "
                                        "--fault kill:rank=1,at=0.3 --truth ") +
                            Truth() + kSmall);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 9"));
  const json truth = ReadTruth();
  EXPECT_EQ(truth["expected"]["verdict"], "dead");
  EXPECT_EQ(truth["ranks"][1]["result"], "killed");
  EXPECT_NE(truth["ranks"][0]["result"], "ok");
}

TEST_F(JobFaultTest, MismatchIsSeenInTheCallsAndTheSums) {
  const Result result =
      Run(std::string("job --ranks 2 --iters 300 -q --fault mismatch-size:rank=1,at=0.1,amount=25 "
                      "--truth ") +
          Truth() + " --plugin " + MYCROFT_RECORDER + kSmall);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("exact=no"));
  EXPECT_EQ(ReadTruth()["expected"]["verdict"], "mismatch");
  int odd = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() != ".jsonl") continue;
    std::vector<json> lines;
    std::string error;
    ASSERT_TRUE(ReadRecording(entry.path(), &lines, &error)) << error;
    for (const json& line : lines) {
      odd += line["k"] == "b" && line["ty"] == 2 && line["cnt"] == 300000 / 4 / 4;
    }
  }
  EXPECT_EQ(odd, 1);  // one call of one rank
}

TEST_F(JobFaultTest, SwappedAndReplacedCollectives) {
  // With two collectives the order changes, with one its kind.
  for (const char* ops : {"ar,ag", "ar"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    Run(std::string("job --ranks 2 --duration 1 --abort-after 0.3 -q --fault "
                    "mismatch-order:rank=0,at=0.2 --ops ") +
        ops + " --truth " + Truth() + " --plugin " + MYCROFT_RECORDER + kSmall);
    const json truth = ReadTruth();
    const std::string pid = std::to_string(truth["ranks"][0]["pid"].get<int>());
    std::vector<json> lines;
    std::string error;
    ASSERT_TRUE(ReadRecording(folder_ + "/" + pid + ".jsonl", &lines, &error)) << error;
    std::vector<std::string> calls;
    for (const json& line : lines) {
      if (line["k"] == "b" && line["ty"] == 2) calls.push_back(line["fn"]);
    }
    int broadcasts = 0;
    int swapped = 0;
    for (size_t i = 1; i + 1 < calls.size(); i += 2) swapped += calls[i] == "AllGather";
    for (const std::string& call : calls) broadcasts += call == "Broadcast";
    EXPECT_EQ(broadcasts, std::string(ops) == "ar" ? 1 : 0);
    EXPECT_EQ(swapped, std::string(ops) == "ar" ? 0 : 1);
  }
}

TEST_F(JobTest, SignalEndsTheJobInOrder) {
  const std::string command =
      Command(std::string("job --ranks 2 --duration 60 --truth ") + Truth() + kSmall);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  const uint64_t deadline = NowNs() + 8 * kNsPerSec;
  while (NowNs() < deadline &&
         ReadAll(folder_ + "/out").find("all ranks are ready") == std::string::npos) {
    usleep(20000);
  }
  usleep(200000);
  kill(pid, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << ReadAll(folder_ + "/err");
  EXPECT_LT(NowNs(), deadline + 2 * kNsPerSec);
  const json truth = ReadTruth();
  for (const json& rank : truth["ranks"]) {
    EXPECT_EQ(rank["result"], "ok");
    EXPECT_NE(kill(rank["pid"].get<int>(), 0), 0);  // no rank is left behind
  }
}

TEST_F(JobTest, RanksDieWithTheirLauncher) {
  const std::string command =
      Command(std::string("job --ranks 2 --duration 60 --truth ") + Truth() + kSmall);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  const uint64_t deadline = NowNs() + 8 * kNsPerSec;
  while (NowNs() < deadline &&
         ReadAll(folder_ + "/out").find("all ranks are ready") == std::string::npos) {
    usleep(20000);
  }
  const json truth = ReadTruth();
  kill(pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  for (const json& rank : truth["ranks"]) {
    const int rank_pid = rank["pid"];
    // Dead, or a zombie that its new parent has not collected yet.
    bool gone = false;
    for (int i = 0; i < 100 && !gone; ++i) {
      const std::string stat = ReadAll("/proc/" + std::to_string(rank_pid) + "/stat");
      gone = stat.empty() || stat.find(") Z ") != std::string::npos;
      if (!gone) usleep(20000);
    }
    EXPECT_TRUE(gone) << rank_pid;
  }
}

TEST_F(JobTest, UnwritableTruthIsSaidAtOnce) {
  const Result result =
      Run(std::string("job --ranks 2 --iters 2 --truth /nowhere/truth.json") + kSmall);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("/nowhere/truth.json"));
}

}  // namespace
}  // namespace mycroft::lab
