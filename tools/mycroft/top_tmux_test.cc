// SPDX-License-Identifier: Apache-2.0
//
// The interactive top in a terminal of tmux: keys in, screen out. Needs tmux.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <thread>

#include "tools/mycroft/testing_process.h"
#include "tools/mycroft/testing_recording.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TopTmuxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RunProcess({"sh", "-c", "command -v tmux"}).exit_code != 0) GTEST_SKIP() << "no tmux";
    socket_ = folder_.path() + "/tmux";
    WriteRecording(folder_.path() + "/r.mycroft", StuckJobOptions());
    // A plain shell with a prompt that is easy to wait for.
    Tmux({"-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env", "PS1=ready% ",
          "LC_ALL=C.UTF-8", "XDG_CONFIG_HOME=" + folder_.path() + "/config", "sh"});
    EXPECT_TRUE(WaitFor("ready%")) << Screen();
    Type("cd " + folder_.path());
  }
  void TearDown() override {
    if (!socket_.empty()) Tmux({"kill-server"});
  }

  ProcessResult Tmux(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"tmux", "-S", socket_});
    return RunProcess(arguments, {{"TMUX", ""}, {"LC_ALL", "C.UTF-8"}});
  }
  std::string Screen() { return Tmux({"capture-pane", "-p"}).out; }
  void Keys(const std::vector<std::string>& keys) {
    std::vector<std::string> arguments = {"send-keys"};
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    Tmux(arguments);
  }
  void Type(const std::string& line) {
    Tmux({"send-keys", "-l", line});
    Keys({"Enter"});
  }
  bool WaitUntil(const std::function<bool(const std::string&)>& good) {
    for (int i = 0; i < 100; ++i) {
      if (good(Screen())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  bool WaitFor(const std::string& text) {
    return WaitUntil([&](const std::string& s) { return s.find(text) != std::string::npos; });
  }
  bool WaitGone(const std::string& text) {
    return WaitUntil([&](const std::string& s) { return s.find(text) == std::string::npos; });
  }
  void StartTop(const std::string& arguments = "") {
    Type(std::string(MYCROFT_COMMAND) + " top r.mycroft " + arguments);
    EXPECT_TRUE(WaitFor("C STUCK for")) << Screen();
    EXPECT_TRUE(WaitFor("q quit"));
    EXPECT_TRUE(WaitGone("reading"));
  }
  std::string Stty(const std::string& file) {
    Type("stty -a > " + file + "; echo stty-done > " + file + ".done");
    for (int i = 0; i < 100 && !std::filesystem::exists(folder_.path() + "/" + file + ".done");
         ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return ReadWholeFile(folder_.path() + "/" + file);
  }

  TemporaryFolder folder_;
  std::string socket_;
};

TEST_F(TopTmuxTest, WalksThroughARecording) {
  StartTop();
  std::string screen = Screen();
  EXPECT_THAT(screen, ::testing::StartsWith("C STUCK for"));
  EXPECT_THAT(screen, HasSubstr("rank 2"));
  EXPECT_THAT(screen, HasSubstr("\xe2\x96\xbe \"world\""));
  Keys({"Home"});
  EXPECT_TRUE(WaitFor("OK: nothing is stuck")) << Screen();
  Keys({"}", "]"});
  EXPECT_TRUE(WaitFor("C STUCK for")) << Screen();
  Keys({"{"});
  EXPECT_TRUE(WaitFor("OK: nothing is stuck")) << Screen();
  Keys({"End"});
  EXPECT_TRUE(WaitFor("C STUCK for")) << Screen();
  Keys({"Enter"});
  EXPECT_TRUE(WaitFor("INCIDENT #1")) << Screen();
  Keys({"Escape"});
  EXPECT_TRUE(WaitFor("WAITS FOR"));
  Keys({"Down", "j", "Enter"});
  EXPECT_TRUE(WaitFor("FLOWS OF RANK")) << Screen();
  EXPECT_THAT(Screen(), HasSubstr("DONE/TOTAL"));
  Keys({"q", "h"});
  EXPECT_TRUE(WaitFor("HELP")) << Screen();
  Keys({"h", "q"});
  EXPECT_TRUE(WaitGone("WAITS FOR")) << Screen();
  EXPECT_TRUE(WaitFor("ready%"));
}

TEST_F(TopTmuxTest, FilterSortSaveAndSetup) {
  StartTop("--ascii");
  Keys({"/"});
  Tmux({"send-keys", "-l", "culprit"});
  EXPECT_TRUE(WaitFor("filter: culprit_")) << Screen();
  Keys({"Enter"});
  EXPECT_TRUE(WaitUntil([](const std::string& s) {
    return s.find("\nv ") == std::string::npos && s.find("\nC |-") == std::string::npos &&
           s.find("C `-") != std::string::npos;
  })) << Screen();
  Keys({"Escape", ">"});
  EXPECT_TRUE(WaitFor("sorted by age")) << Screen();
  Keys({"s"});
  EXPECT_TRUE(WaitFor("saved to ./mycroft-top-")) << Screen();
  size_t saved = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().extension() != ".txt") continue;
    ++saved;
    EXPECT_THAT(ReadWholeFile(entry.path()), HasSubstr("C STUCK for"));
  }
  EXPECT_EQ(saved, 1u);
  Keys({"o", "w"});
  EXPECT_TRUE(WaitFor("written to")) << Screen();
  EXPECT_THAT(ReadWholeFile(folder_.path() + "/config/mycroft/config.yaml"),
              HasSubstr("sort: age"));
  Keys({"q", "q"});
  EXPECT_TRUE(WaitFor("ready%"));
}

TEST_F(TopTmuxTest, FollowsTheSizeOfTheWindow) {
  StartTop();
  Tmux({"resize-window", "-x", "120", "-y", "30"});
  EXPECT_TRUE(WaitFor("send: waits for the GPU")) << Screen();
  Tmux({"resize-window", "-x", "30", "-y", "6"});
  EXPECT_TRUE(WaitFor("terminal too small")) << Screen();
  Tmux({"resize-window", "-x", "80", "-y", "24"});
  EXPECT_TRUE(WaitFor("C STUCK for")) << Screen();
  Keys({"q"});
  EXPECT_TRUE(WaitFor("ready%"));
}

TEST_F(TopTmuxTest, HoweverItEndsTheTerminalIsSane) {
  const std::string before = Stty("before");
  ASSERT_THAT(before, HasSubstr(" echo "));
  int round = 0;
  for (int number : {SIGKILL, SIGTERM, SIGSEGV, SIGINT}) {
    StartTop("& echo $! > pid; fg");
    const pid_t pid = std::stoi(ReadWholeFile(folder_.path() + "/pid"));
    ::kill(pid, number);
    EXPECT_TRUE(WaitGone("q quit")) << "signal " << number << "\n" << Screen();
    EXPECT_EQ(Stty("after" + std::to_string(round++)), before) << "signal " << number;
    EXPECT_EQ(Tmux({"display-message", "-p", "#{alternate_on} #{cursor_flag}"}).out, "0 1\n")
        << "the alternate screen is left and the cursor shown, signal " << number;
    std::filesystem::remove(folder_.path() + "/pid");
  }
  StartTop();
  Keys({"q"});
  EXPECT_TRUE(WaitGone("q quit"));
  EXPECT_EQ(Stty("last"), before);
}

TEST_F(TopTmuxTest, ADumbTerminalGetsOneFrame) {
  // What is waited for must not be in the line that is typed.
  Type(std::string("TERM=dumb ") + MYCROFT_COMMAND + " top r.mycroft | head -3; echo ended=$?");
  EXPECT_TRUE(WaitFor("ended=0")) << Screen();
  EXPECT_THAT(Screen(), HasSubstr("C STUCK for"));
  Type(std::string("clear; TERM=dumb ") + MYCROFT_COMMAND + " top r.mycroft; echo code=$?");
  EXPECT_TRUE(WaitFor("code=3")) << Screen();
  Type(std::string("clear; TERM=nosuchterm ") + MYCROFT_COMMAND + " top r.mycroft; echo code=$?");
  EXPECT_TRUE(WaitFor("code=3")) << Screen();
}

}  // namespace
}  // namespace mycroft
