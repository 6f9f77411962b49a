// SPDX-License-Identifier: Apache-2.0
//
// What arrives in a plugin when a trace is replayed: every call, in order, on the
// right thread, at the right time, with every field; and what happens at the end
// of a process and on bad input.
#include "tools/lab/replay/replay_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char kPlugin[] = MYCROFT_TEST_PLUGIN;

std::string Header(int api, int pid) {
  return R"({"k":"hdr","v":1,"pid":)" + std::to_string(pid) + R"(,"av":)" + std::to_string(api) +
         R"(,"nccl":"2.28.9","mono":50,"wall":1050,"ty":{},"st":{}})" + "\n";
}

class ReplayJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "replay_job_test." + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    setenv("MYCROFT_TEST_PLUGIN_OUT", (folder_ + "/calls").c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }
  void WriteGz(const std::string& name, const std::string& text) {
    gzFile gz = gzopen((folder_ + "/" + name).c_str(), "wb");
    ASSERT_NE(gz, nullptr);
    ASSERT_EQ(gzwrite(gz, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    gzclose(gz);
  }
  std::vector<std::string> Calls(uint32_t pid) {
    std::ifstream in(folder_ + "/calls." + std::to_string(pid));
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  absl::StatusOr<std::unique_ptr<ReplayJob>> Start(bool one_process = false) {
    absl::StatusOr<std::vector<std::string>> files = FindRankFiles(folder_);
    if (!files.ok()) return files.status();
    return ReplayJob::Start(*files, {kPlugin, one_process, false});
  }
  // Starts, plays to the end, and gives the calls of the only process.
  std::vector<std::string> PlayAll() {
    auto job = Start();
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return {};
    const absl::Status s = (*job)->AdvanceTo(UINT64_MAX);
    EXPECT_TRUE(s.ok()) << s;
    EXPECT_FALSE((*job)->running());
    return Calls(*(*job)->pids().begin());
  }
  std::string Error() {
    auto job = Start();
    const absl::Status s = job.ok() ? (*job)->AdvanceTo(UINT64_MAX) : job.status();
    EXPECT_FALSE(s.ok());
    return std::string(s.message());
  }

  std::string folder_;
};

bool Alive(uint32_t pid) { return kill(static_cast<pid_t>(pid), 0) == 0; }

TEST_F(ReplayJobTest, EveryFieldOfApi5ReachesThePlugin) {
  Write("rank0.jsonl", Header(5, 4242) +
                           R"({"k":"thr","t":100,"th":1,"name":"train"}
{"k":"init","t":100,"th":1,"av":5,"c":1,"comm":"3eaf7ffda7731f10","name":"world","nn":3,"n":4,"r":2,"mask":4063}
{"k":"b","t":101,"th":1,"c":1,"ty":256,"h":1,"rk":0,"cap":0,"dep":1}
{"k":"s","t":102,"th":1,"h":1,"st":23}
{"k":"b","t":103,"th":1,"c":1,"ty":512,"h":2,"p":1,"rk":0,"fn":"AllReduce","cnt":16384,"dt":"ncclFloat32","root":3,"str":"55f6d8689d00","cap":1}
{"k":"e","t":104,"th":1,"h":2}
{"k":"b","t":105,"th":1,"c":1,"ty":1024,"h":3,"p":1,"rk":0,"fn":"Send","cnt":7,"dt":"ncclInt8","str":"ab","cap":0}
{"k":"b","t":106,"th":1,"c":1,"ty":2048,"h":4,"p":1,"rk":0,"str":"cd"}
{"k":"b","t":107,"th":1,"c":1,"ty":1,"h":5,"rk":0}
{"k":"b","t":108,"th":1,"c":1,"ty":2,"h":6,"p":2,"rk":2,"seq":9,"fn":"AllReduce","cnt":16384,"dt":"ncclFloat32","root":3,"nch":2,"nw":16,"al":"RING","pr":"SIMPLE","sb":"7f1705e00000","rb":"7f1705600000","pg":5}
{"k":"b","t":109,"th":1,"c":1,"ty":4,"h":7,"p":3,"rk":2,"fn":"Send","cnt":7,"dt":"ncclInt8","peer":1,"nch":4,"buf":"77","pg":5}
{"k":"e","t":110,"th":1,"h":6}
{"k":"thr","t":111,"th":2,"name":"NCCL Progress 1"}
{"k":"b","t":111,"th":2,"c":1,"ty":8,"h":8,"p":6,"rk":2,"pid":4242,"ch":1,"peer":3,"ns":8,"cs":1048576,"snd":1}
{"k":"s","t":112,"th":2,"h":8,"st":19}
{"k":"b","t":113,"th":2,"c":1,"ty":16,"h":9,"p":8,"rk":2,"step":5}
{"k":"s","t":114,"th":2,"h":9,"st":8,"sz":0}
{"k":"s","t":115,"th":2,"h":9,"st":9,"sz":262144}
{"k":"e","t":116,"th":2,"h":9}
{"k":"b","t":117,"th":2,"c":1,"ty":64,"h":10,"p":6,"rk":0,"ch":1,"pt":1796008397714920323}
{"k":"s","t":118,"th":2,"h":10,"st":22,"pt":1796008397714920999}
{"k":"b","t":119,"th":2,"c":1,"ty":32,"h":11,"rk":0}
{"k":"s","t":120,"th":2,"h":11,"st":14,"app":2}
{"k":"e","t":121,"th":2,"h":11}
{"k":"b","t":122,"th":2,"c":1,"ty":128,"h":12,"p":9,"rk":2,"id":-5,"data":"beef"}
{"k":"b","t":123,"th":2,"c":1,"ty":8,"h":13,"praw":"deadbeef","rk":2,"pid":999999999,"ch":0,"peer":1,"ns":2,"cs":512,"snd":0}
{"k":"e","t":124,"th":2,"h":9}
{"k":"fini","t":125,"th":1,"c":1}
{"k":"clk","t":126,"th":1,"wall":1,"end":1,"n":27,"dropped":0}
)");
  EXPECT_THAT(
      PlayAll(),
      ElementsAre(
          "@100 [train] v5 init 0x3e9 name=world id=3eaf7ffda7731f10 nodes=3 ranks=4 rank=2",
          "@101 [train] start 0x3ea ctx=0x3e9 parent=(nil) rank=0 GroupApi graph=0 depth=1",
          "@102 [train] state 0x3ea 23",
          "@103 [train] start 0x3eb ctx=0x3e9 parent=0x3ea rank=0 CollApi AllReduce count=16384 "
          "ncclFloat32 root=3 stream=0x55f6d8689d00 graph=1",
          "@104 [train] stop 0x3eb",
          "@105 [train] start 0x3ec ctx=0x3e9 parent=0x3ea rank=0 P2pApi Send count=7 ncclInt8 "
          "stream=0xab graph=0",
          "@106 [train] start 0x3ed ctx=0x3e9 parent=0x3ea rank=0 KernelLaunch stream=0xcd",
          "@107 [train] start 0x3ee ctx=0x3e9 parent=(nil) rank=0 Group",
          "@108 [train] start 0x3ef ctx=0x3e9 parent=0x3eb rank=2 Coll seq=9 AllReduce "
          "sb=0x7f1705e00000 rb=0x7f1705600000 count=16384 root=3 ncclFloat32 ch=2 warps=16 RING "
          "SIMPLE group=0x3ee",
          "@109 [train] start 0x3f0 ctx=0x3e9 parent=0x3ec rank=2 P2p Send buf=0x77 ncclInt8 "
          "count=7 peer=1 ch=4 group=0x3ee",
          "@110 [train] stop 0x3ef",
          "@111 [NCCL Progress 1] start 0x3f1 ctx=0x3e9 parent=0x3ef rank=2 ProxyOp pid=own ch=1 "
          "peer=3 steps=8 chunk=1048576 send=1",
          "@112 [NCCL Progress 1] state 0x3f1 19",
          "@113 [NCCL Progress 1] start 0x3f2 ctx=0x3e9 parent=0x3f1 rank=2 ProxyStep step=5",
          "@114 [NCCL Progress 1] state 0x3f2 8 size=0",
          "@115 [NCCL Progress 1] state 0x3f2 9 size=262144", "@116 [NCCL Progress 1] stop 0x3f2",
          "@117 [NCCL Progress 1] start 0x3f3 ctx=0x3e9 parent=0x3ef rank=0 KernelCh ch=1 "
          "gpu=1796008397714920323",
          "@118 [NCCL Progress 1] state 0x3f3 22 gpu=1796008397714920999",
          // An event that the plugin does not track gets no further call.
          "@119 [NCCL Progress 1] start (nil) ctx=0x3e9 parent=(nil) rank=0 ProxyCtrl",
          "@122 [NCCL Progress 1] start 0x3f4 ctx=0x3e9 parent=0x3f2 rank=2 NetPlugin id=-5 "
          "data=0xbeef",
          // Another process's operation: pid and parent as they were.
          "@123 [NCCL Progress 1] start 0x3f5 ctx=0x3e9 parent=0xdeadbeef rank=2 ProxyOp "
          "pid=999999999 ch=0 peer=1 steps=2 chunk=512 send=0",
          "@124 [NCCL Progress 1] stop 0x3f2",  // a second stop is passed on
          "@125 [train] finalize 0x3e9"));
}

TEST_F(ReplayJobTest, Api4HasItsOwnInitAndDescriptor) {
  Write("rank0.jsonl",
        Header(4, 1) +
            R"({"k":"init","t":100,"th":1,"av":4,"c":1,"comm":"ff","nn":1,"n":2,"r":1,"mask":1}
{"k":"b","t":101,"th":1,"c":1,"ty":2,"h":1,"rk":1,"seq":3,"fn":"AllGather","cnt":10,"dt":"ncclInt8","root":0,"nch":2,"nw":9,"al":"RING","pr":"SIMPLE","sb":"1","rb":"2"}
{"k":"b","t":102,"th":1,"c":1,"ty":4,"h":2,"rk":1,"fn":"Recv","cnt":4,"dt":"ncclInt8","peer":0,"nch":1,"buf":"3"}
{"k":"clk","t":103,"th":1,"wall":1,"end":1,"n":3,"dropped":0}
)");
  const std::string thread = "[" + std::string("replay_job_test").substr(0, 15) + "] ";
  EXPECT_THAT(PlayAll(),
              ElementsAre("@100 " + thread + "v4 init 0x3e9 name=- id=ff nodes=1 ranks=2 rank=1",
                          "@101 " + thread +
                              "start 0x3ea ctx=0x3e9 parent=(nil) rank=1 Coll seq=3 AllGather "
                              "sb=0x1 rb=0x2 count=10 root=0 ncclInt8 ch=2 warps=9 RING SIMPLE",
                          "@102 " + thread +
                              "start 0x3eb ctx=0x3e9 parent=(nil) rank=1 P2p Recv buf=0x3 "
                              "ncclInt8 count=4 peer=0 ch=1"));
}

TEST_F(ReplayJobTest, Api6HasCopyEngineEvents) {
  WriteGz("rank0.jsonl.gz", Header(6, 1) +
                                R"({"k":"thr","t":100,"th":1,"name":"a"}
{"k":"init","t":100,"th":1,"av":6,"c":1,"comm":"1","nn":1,"n":2,"r":1,"mask":1}
{"k":"b","t":101,"th":1,"c":1,"ty":4096,"h":1,"rk":1,"seq":3,"fn":"AllGather","cnt":10,"dt":"ncclInt8","root":0,"sync":"MC","intra":1,"bs":2,"nb":3,"ceseq":4,"str":"5"}
{"k":"b","t":102,"th":1,"c":1,"ty":8192,"h":2,"p":1,"rk":1,"done":1,"n":2}
{"k":"b","t":103,"th":1,"c":1,"ty":16384,"h":3,"p":1,"rk":1,"nops":6,"bytes":7,"intra":0}
{"k":"clk","t":104,"th":1,"wall":1,"end":1,"n":4,"dropped":0}
)");
  EXPECT_THAT(
      PlayAll(),
      ElementsAre("@100 [a] v6 init 0x3e9 name=- id=1 nodes=1 ranks=2 rank=1",
                  "@101 [a] start 0x3ea ctx=0x3e9 parent=(nil) rank=1 CeColl seq=3 AllGather "
                  "sb=(nil) rb=(nil) count=10 root=0 ncclInt8 MC intra=1 bs=2 nb=3 ceseq=4 "
                  "stream=0x5",
                  "@102 [a] start 0x3eb ctx=0x3e9 parent=0x3ea rank=1 CeSync complete=1 ranks=2",
                  "@103 [a] start 0x3ec ctx=0x3e9 parent=0x3ea rank=1 CeBatch ops=6 bytes=7 "
                  "intra=0"));
}

constexpr char kInit[] =
    R"({"k":"init","t":100,"th":1,"av":5,"c":1,"comm":"1","nn":1,"n":2,"r":0,"mask":1})"
    "\n";

std::string Group(int t, int h) {
  return R"({"k":"b","t":)" + std::to_string(t) + R"(,"th":1,"c":1,"ty":1,"h":)" +
         std::to_string(h) + R"(,"rk":0})" + "\n";
}
std::string End(int t) {
  return R"({"k":"clk","t":)" + std::to_string(t) +
         R"(,"th":1,"wall":1,"end":1,"n":1,"dropped":0})" + "\n";
}

TEST_F(ReplayJobTest, ProcessesMoveTogetherAndEndInTheirOwnTime) {
  Write("rank0.jsonl", Header(5, 1) + kInit + Group(200, 1) + Group(300, 2) + End(400));
  Write("rank1.jsonl", Header(5, 2) + kInit + Group(250, 1));  // killed after 250
  auto job = Start();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)->first_t_ns(), 100u);
  EXPECT_EQ((*job)->wall_minus_mono_ns(), 1000);
  const std::vector<uint32_t> pids = [&] {
    const std::set<uint32_t> set = (*job)->pids();
    return std::vector<uint32_t>(set.begin(), set.end());
  }();
  ASSERT_EQ(pids.size(), 2u);

  ASSERT_TRUE((*job)->AdvanceTo(249).ok());
  EXPECT_EQ(Calls(pids[0]).size(), 2u);
  EXPECT_EQ(Calls(pids[1]).size(), 1u);
  EXPECT_TRUE(Alive(pids[0]));
  EXPECT_TRUE(Alive(pids[1]));

  ASSERT_TRUE((*job)->AdvanceTo(250).ok());
  EXPECT_EQ(Calls(pids[1]).size(), 2u);
  EXPECT_TRUE(Alive(pids[0]));
  EXPECT_FALSE(Alive(pids[1])) << "killed after its last line";

  ASSERT_TRUE((*job)->AdvanceTo(399).ok());
  EXPECT_EQ(Calls(pids[0]).size(), 3u);
  EXPECT_TRUE(Alive(pids[0])) << "its board stays readable until its end line";
  EXPECT_TRUE((*job)->running());
  ASSERT_TRUE((*job)->AdvanceTo(400).ok());
  EXPECT_FALSE(Alive(pids[0]));
  EXPECT_FALSE((*job)->running());
}

TEST_F(ReplayJobTest, ASignalInTheEndLineKills) {
  Write("rank0.jsonl",
        Header(5, 1) + kInit + Group(200, 1) +
            R"({"k":"clk","t":300,"th":1,"wall":1,"end":1,"n":1,"dropped":0,"sig":9})"
            "\n");
  auto player = Player::Create({folder_ + "/rank0.jsonl"});
  ASSERT_TRUE(player.ok());
  ASSERT_TRUE((*player)->Load(kPlugin, {}, false).ok());
  auto state = (*player)->AdvanceTo(299);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(*state, PlayState::kPlaying);
  state = (*player)->AdvanceTo(300);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(*state, PlayState::kKilled);
}

TEST_F(ReplayJobTest, OneProcessMergesTheFilesByTime) {
  Write("rank0.jsonl", Header(5, 1) + kInit + Group(200, 1) + Group(300, 2) + End(400));
  Write(
      "rank1.jsonl",
      Header(5, 2) +
          R"({"k":"init","t":150,"th":1,"av":5,"c":1,"comm":"1","nn":1,"n":2,"r":1,"mask":1})"
          "\n" +
          Group(250, 1) +
          R"({"k":"b","t":260,"th":1,"c":1,"ty":8,"h":2,"p":1,"rk":1,"pid":1,"ch":0,"peer":0,"ns":1,"cs":1,"snd":1})"
          "\n" +
          End(500));
  auto job = Start(true);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_EQ((*job)->pids().size(), 1u);
  ASSERT_TRUE((*job)->AdvanceTo(450).ok());
  EXPECT_TRUE((*job)->running());
  ASSERT_TRUE((*job)->AdvanceTo(500).ok());
  EXPECT_FALSE((*job)->running());
  EXPECT_EQ((*job)->calls(), 6u);
  std::vector<std::string> calls = Calls(*(*job)->pids().begin());
  for (std::string& call : calls) {  // without the thread's name
    call.erase(call.find(" ["), call.find("] ") + 1 - call.find(" ["));
  }
  EXPECT_THAT(calls,
              ElementsAre("@100 v5 init 0x3e9 name=- id=1 nodes=1 ranks=2 rank=0",
                          "@150 v5 init 0x3ea name=- id=1 nodes=1 ranks=2 rank=1",
                          "@200 start 0x3eb ctx=0x3e9 parent=(nil) rank=0 Group",
                          "@250 start 0x3ec ctx=0x3ea parent=(nil) rank=0 Group",
                          "@260 start 0x3ed ctx=0x3ea parent=0x3ec rank=1 ProxyOp pid=own ch=0 "
                          "peer=0 steps=1 chunk=1 send=1",
                          "@300 start 0x3ee ctx=0x3e9 parent=(nil) rank=0 Group"));
}

TEST_F(ReplayJobTest, ALineCutOffByAKillIsTheEnd) {
  Write("rank0.jsonl", Header(5, 1) + kInit + Group(200, 1) + R"({"k":"b","t":201,"th")");
  EXPECT_EQ(PlayAll().size(), 2u);
}

TEST_F(ReplayJobTest, AGzipStreamCutOffByAKillIsTheEnd) {
  std::string text = Header(5, 1) + kInit;
  for (int i = 0; i < 5000; ++i) text += Group(200 + i, 1 + i * 7919 % 5000);
  WriteGz("rank0.jsonl.gz", text);
  const std::string path = folder_ + "/rank0.jsonl.gz";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const size_t calls = PlayAll().size();
  EXPECT_GT(calls, 100u);
  EXPECT_LT(calls, 5001u);
}

TEST_F(ReplayJobTest, BadInputIsNamedByFileAndLine) {
  EXPECT_THAT(Error(), HasSubstr("no rank<N>.jsonl"));
  EXPECT_FALSE(FindRankFiles(folder_ + "/nowhere").ok());

  Write("rank0.jsonl", "");
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:1: empty file"));
  Write("rank0.jsonl", "hello\n");
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:1: not a JSON object"));
  Write("rank0.jsonl", "{\"k\":\"init\"}\n");
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:1: the first line is not a header"));
  Write("rank0.jsonl", Header(3, 1) + kInit);
  EXPECT_THAT(Error(), HasSubstr("API version 3 is not supported"));
  Write("rank0.jsonl", R"({"k":"hdr","v":2,"pid":1,"av":5,"mono":1,"wall":1})"
                       "\n");
  EXPECT_THAT(Error(), HasSubstr("trace format version 2 is not known"));
  Write("rank0.jsonl", Header(5, 1));
  EXPECT_THAT(Error(), HasSubstr("no callback after the header"));
  Write("rank0.jsonl", Header(5, 1) + kInit + "{oops}\n" + End(400));
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:3: malformed JSON: {oops}"));
  Write("rank0.jsonl", Header(5, 1) + kInit + Group(200, 1) + Group(150, 2));
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:4: time goes backwards"));
  Write("rank0.jsonl", Header(5, 1) + kInit +
                           R"({"k":"b","t":101,"th":1,"c":1,"h":1})"
                           "\n");
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:3: \"ty\" is missing"));
  Write("rank0.jsonl", Header(5, 1) + kInit +
                           R"({"k":"e","t":101,"th":1,"h":"x"})"
                           "\n");
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:3: \"h\" is not a whole number"));
  Write("rank0.jsonl", Header(5, 1) + kInit +
                           R"({"k":"what","t":101})"
                           "\n");
  EXPECT_THAT(Error(), HasSubstr("rank0.jsonl:3: unknown kind of line \"what\""));

  Write("rank0.jsonl", Header(5, 1) + kInit + End(400));
  Write("rank0.jsonl.gz", Header(5, 1) + kInit + End(400));
  EXPECT_THAT(Error(), HasSubstr("two files of rank 0"));
}

TEST_F(ReplayJobTest, OnlyRankFilesAreTaken) {
  for (const char* name :
       {"rank10.jsonl", "rank2.jsonl.gz", "rank.jsonl", "rank1.json", "rankx.jsonl", "rank1x.jsonl",
        "rank-1.jsonl", "truth.json", "rank99999999999.jsonl"}) {
    Write(name, "");
  }
  const absl::StatusOr<std::vector<std::string>> files = FindRankFiles(folder_);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(*files, ElementsAre(folder_ + "/rank2.jsonl.gz", folder_ + "/rank10.jsonl"));
}

TEST_F(ReplayJobTest, HandlesThatWereNeverGivenAreNotCalled) {
  Write("rank0.jsonl", Header(5, 1) + kInit +
                           R"({"k":"s","t":101,"th":1,"h":7,"st":8})"
                           "\n" +
                           R"({"k":"e","t":102,"th":1,"h":7})"
                           "\n" +
                           R"({"k":"fini","t":103,"th":1,"c":9})"
                           "\n" +
                           End(400));
  EXPECT_EQ(PlayAll().size(), 1u);
}

TEST_F(ReplayJobTest, APluginThatCrashesIsReported) {
  Write("rank0.jsonl", Header(5, 1) + kInit +
                           R"({"k":"b","t":101,"th":1,"c":1,"ty":16,"h":1,"rk":0,"step":77})"
                           "\n" +
                           End(400));
  EXPECT_THAT(Error(), HasSubstr("was ended by signal 6"));
}

TEST_F(ReplayJobTest, APluginThatIsNoneIsReported) {
  Write("rank0.jsonl", Header(5, 1) + kInit + End(400));
  const auto start = [&](const std::string& plugin) {
    auto job = ReplayJob::Start({folder_ + "/rank0.jsonl"}, {plugin, false, false});
    EXPECT_FALSE(job.ok());
    return std::string(job.status().message());
  };
  EXPECT_THAT(start(folder_ + "/none.so"), HasSubstr("No such file"));
  EXPECT_THAT(start(folder_ + "/rank0.jsonl"), HasSubstr("cannot be loaded"));
  EXPECT_THAT(start("/lib/x86_64-linux-gnu/libz.so.1"), HasSubstr("mycroftSetClock"));
}

TEST_F(ReplayJobTest, ChildrenEndWithTheJob) {
  Write("rank0.jsonl", Header(5, 1) + kInit + End(400));
  auto job = Start();
  ASSERT_TRUE(job.ok());
  const uint32_t pid = *(*job)->pids().begin();
  EXPECT_TRUE(Alive(pid));
  job->reset();
  EXPECT_FALSE(Alive(pid));
}

}  // namespace
}  // namespace mycroft
