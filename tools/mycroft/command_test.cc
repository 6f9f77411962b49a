// SPDX-License-Identifier: Apache-2.0
//
// Runs the built command: exit codes, output, messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tools/mycroft/testing_process.h"
#include "tools/mycroft/testing_recording.h"

namespace mycroft {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using nlohmann::json;

ProcessResult Mycroft(std::vector<std::string> arguments,
                      const std::map<std::string, std::string>& environment = {},
                      const std::string& directory = "") {
  arguments.insert(arguments.begin(), MYCROFT_COMMAND);
  return RunProcess(arguments, environment, directory);
}

// Restricts live verbs to this test: the machine may run jobs.
std::string Self() { return std::to_string(::getpid()); }

class CommandTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return folder_.path() + "/" + name; }
  std::string StuckRecording() {
    WriteRecording(Path("stuck.mycroft"), StuckJobOptions());
    return Path("stuck.mycroft");
  }
  std::string HealthyRecording() {
    SyntheticOptions options;
    options.duration_s = 5;
    WriteRecording(Path("healthy.mycroft"), options);
    return Path("healthy.mycroft");
  }
  TemporaryFolder folder_;
};

TEST_F(CommandTest, HelpVersionAndCompletionWorkWithABrokenConfiguration) {
  const std::string config = folder_.Write("mycroft/config.yaml", "nosuch: 1\n");
  const std::map<std::string, std::string> broken = {{"XDG_CONFIG_HOME", folder_.path()}};
  EXPECT_EQ(Mycroft({"--help"}, broken).exit_code, 0);
  EXPECT_THAT(Mycroft({"top", "--help"}).out, HasSubstr("mycroft top job.mycroft"));
  const ProcessResult version = Mycroft({"version"}, broken);
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, StartsWith("mycroft " MYCROFT_VERSION " ("));
  EXPECT_EQ(Mycroft({"--version"}).out, version.out);
  const json found = json::parse(Mycroft({"version", "--json"}).out);
  EXPECT_EQ(found.at("version"), MYCROFT_VERSION);
  EXPECT_TRUE(found.at("btf").is_boolean());
  EXPECT_EQ(Mycroft({"completion", "bash"}, broken).exit_code, 0);
  EXPECT_EQ(Mycroft({"doctor"}, broken).exit_code, 2);
}

TEST_F(CommandTest, ConfigurationErrorsAreTwoWithFileAndLine) {
  const std::string file = folder_.Write("c.yaml", "interval: 100ms\nintervall: 1s\n");
  const ProcessResult result = Mycroft({"--config", file, "doctor"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr(file + ":2: unknown key 'intervall', did you mean 'interval'?"));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(Mycroft({"--config", "/nonexistent", "doctor"}).exit_code, 2);
  EXPECT_EQ(Mycroft({"doctor"}, {{"MYCROFT_INTERVAL", "fast"}}).exit_code, 2);
}

TEST_F(CommandTest, PrintConfig) {
  const std::string file = folder_.Write("c.yaml", "record: {max_age: 2h}\n");
  const ProcessResult result =
      Mycroft({"record", "--config", file, "--interval", "20ms", "--print-config"},
              {{"MYCROFT_RECORD_MAX_SIZE", "7MiB"}});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("interval: 20ms  # --interval\n"));
  EXPECT_THAT(result.out, HasSubstr("max_age: 2h  # " + file + ":1\n"));
  EXPECT_THAT(result.out, HasSubstr("max_size: 7MiB  # environment variable MYCROFT_RECORD_MAX"));
  EXPECT_EQ(
      Mycroft({"--print-config", "--config", folder_.Write("again.yaml", result.out)}).exit_code,
      0);
}

TEST_F(CommandTest, RunSetsTheEnvironmentAndBecomesTheCommand) {
  const std::string plugin = folder_.Write("plugin.so", "x");
  const std::string script =
      "echo \"$NCCL_PROFILER_PLUGIN|$MYCROFT_CHAIN_PLUGIN|$MYCROFT_LEVEL|$1\"; exit 7";
  ProcessResult result =
      Mycroft({"run", "--", "sh", "-c", script, "x", "--help"}, {{"MYCROFT_PLUGIN", plugin}});
  EXPECT_EQ(result.out, plugin + "|||--help\n");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.exit_code, 7);
  result = Mycroft({"run", "--plugin", plugin, "--level", "ops", "sh", "-c", script});
  EXPECT_EQ(result.out, plugin + "||ops|\n");
  EXPECT_EQ(Mycroft({"run", "--plugin", plugin, "--", "/nonexistent/x"}).exit_code, 1);
  result = Mycroft({"run", "--plugin", "/nonexistent.so", "--", "true"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("/nonexistent.so is not there"));
  // Built where CUPTI's headers are.
  EXPECT_THAT(Mycroft({"-v", "run", "--plugin", plugin, "--", "true"}).err,
              AnyOf(HasSubstr("libmycroft-cupti.so is not installed"),
                    HasSubstr("CUDA_INJECTION64_PATH=")));
}

TEST_F(CommandTest, RunDoesNotPushAnotherPluginAside) {
  const std::string plugin = folder_.Write("plugin.so", "x");
  const std::map<std::string, std::string> taken = {{"NCCL_PROFILER_PLUGIN", "inspector"}};
  ProcessResult result = Mycroft({"run", "--plugin", plugin, "--", "echo", "started"}, taken);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("'inspector'"));
  EXPECT_THAT(result.err, HasSubstr("MYCROFT_CHAIN_PLUGIN"));
  result = Mycroft({"run", "--chain", "--plugin", plugin, "--", "sh", "-c",
                    "echo $NCCL_PROFILER_PLUGIN $MYCROFT_CHAIN_PLUGIN"},
                   taken);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, plugin + " inspector\n");
  EXPECT_EQ(Mycroft({"run", "--plugin", plugin, "--", "true"}, {{"NCCL_PROFILER_PLUGIN", plugin}})
                .exit_code,
            0)
      << "ours already";
}

TEST_F(CommandTest, RunFindsThePluginOfThisBuild) {
  const ProcessResult result = Mycroft({"run", "--", "sh", "-c", "echo $NCCL_PROFILER_PLUGIN"});
  if (result.exit_code != 0) GTEST_SKIP() << "the plugin is not built: " << result.err;
  EXPECT_THAT(result.out, HasSubstr("/lib/libnccl-profiler-mycroft.so"));
  EXPECT_EQ(result.out[0], '/');
}

TEST_F(CommandTest, DiagnoseARecording) {
  const std::string file = StuckRecording();
  const ProcessResult text = Mycroft({"diagnose", file});
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_THAT(text.out, HasSubstr("STUCK"));
  EXPECT_THAT(text.out, Not(HasSubstr("\x1b")));
  const ProcessResult first = Mycroft({"diagnose", file, "--json"});
  EXPECT_EQ(first.exit_code, 3);
  const json verdict = json::parse(first.out);
  EXPECT_EQ(verdict.at("schema_version"), 1);
  ASSERT_EQ(verdict.at("incidents").size(), 1u);
  EXPECT_EQ(verdict["incidents"][0]["kind"], "stuck");
  EXPECT_EQ(verdict["incidents"][0]["culprits"][0]["rank"], 2);
  EXPECT_EQ(Mycroft({"diagnose", file, "--json"}).out, first.out) << "the same every time";
}

TEST_F(CommandTest, DiagnoseAHealthyRecording) {
  const ProcessResult result = Mycroft({"diagnose", HealthyRecording(), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_TRUE(json::parse(result.out).at("incidents").empty());
}

TEST_F(CommandTest, BadRecordingsAreOneWithAClearLine) {
  const std::string text = folder_.Write("text", "this is no recording\n");
  const std::string empty = folder_.Write("empty", "");
  for (const std::string& file : {text, empty, folder_.path(), Path("none")}) {
    for (const std::vector<std::string>& verb :
         {std::vector<std::string>{"diagnose", file},
          {"top", file, "--once"},
          {"export", file, "--format", "html", "-o", Path("out")},
          {"merge", file, file, "-o", Path("out")}}) {
      const ProcessResult result = Mycroft(verb);
      EXPECT_EQ(result.exit_code, 1) << verb[0] << " " << file;
      EXPECT_THAT(result.err, HasSubstr(file)) << verb[0];
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
      EXPECT_FALSE(std::filesystem::exists(Path("out")));
    }
  }
}

TEST_F(CommandTest, TopOncePrintsOneFrame) {
  const std::string file = StuckRecording();
  const ProcessResult result = Mycroft({"top", file, "--once"}, {{"COLUMNS", "80"}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, StartsWith("C STUCK for "));
  EXPECT_THAT(result.out, HasSubstr("stuck.mycroft | +"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(Mycroft({"top", file}).exit_code, 3) << "standard output is no terminal";
  const ProcessResult ascii = Mycroft({"top", file, "--once", "--ascii"});
  for (char c : ascii.out) ASSERT_GT(c, 0);
  const json top = json::parse(Mycroft({"top", file, "--once", "--json"}).out);
  const json diagnose = json::parse(Mycroft({"diagnose", file, "--json"}).out);
  for (const char* key : {"schema_version", "incidents", "blind_spots"}) {
    EXPECT_EQ(top.at(key), diagnose.at(key)) << key;
  }
  EXPECT_EQ(top.at("job").at("processes"), 4);
  EXPECT_EQ(
      Mycroft({"top", file, "--once"}, {{"MYCROFT_TOP_COLOR", "always"}}).out.find("\x1b[1;31m"),
      0u);
  EXPECT_THAT(Mycroft({"top", file, "--once", "--no-color"}, {{"MYCROFT_TOP_COLOR", "always"}}).out,
              Not(HasSubstr("\x1b")));
  EXPECT_EQ(Mycroft({"top", file, "-p", "1"}).exit_code, 2);
}

TEST_F(CommandTest, NothingToObserveIsFive) {
  ProcessResult result = Mycroft({"top", "--once", "-p", Self(), "--wait", "50ms"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.out, HasSubstr("NOTHING TO OBSERVE"));
  result = Mycroft({"diagnose", "-p", Self(), "-d", "100ms", "--interval", "20ms", "--json"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_TRUE(json::parse(result.out).at("incidents").empty());
  result = Mycroft({"record", "-p", Self(), "-d", "200ms", "-o", Path("r.mycroft")});
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_EQ(Mycroft({"diagnose", Path("r.mycroft")}).exit_code, 5);
}

TEST_F(CommandTest, RecordEndsCleanlyOnASignal) {
  for (int number : {SIGTERM, SIGINT}) {
    const std::string file = Path("r" + std::to_string(number) + ".mycroft");
    ChildProcess record({MYCROFT_COMMAND, "record", "-p", Self(), "-o", file});
    ASSERT_TRUE(record.ReadUntil("recording to"));
    ::kill(record.pid(), number);
    const ProcessResult result = record.Wait();
    EXPECT_EQ(result.exit_code, 5);
    EXPECT_THAT(result.err, HasSubstr("recorded "));
    EXPECT_EQ(Mycroft({"diagnose", file}).exit_code, 5);
  }
}

TEST_F(CommandTest, TwoRecordersDoNotShareAFile) {
  const std::string file = Path("r.mycroft");
  ChildProcess first({MYCROFT_COMMAND, "record", "-p", Self(), "-o", file});
  ASSERT_TRUE(first.ReadUntil("recording to"));
  const ProcessResult second =
      Mycroft({"record", "--append", "-p", Self(), "-o", file, "-d", "100ms"});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(file));
  EXPECT_THAT(second.err, HasSubstr("error: "));
  EXPECT_EQ(Mycroft({"top", file, "--once"}).exit_code, 5) << "reading meanwhile is fine";
  ::kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.Wait().exit_code, 5);
  EXPECT_EQ(Mycroft({"record", "-p", Self(), "-o", file, "-d", "100ms"}).exit_code, 1)
      << "it is there already";
  EXPECT_EQ(Mycroft({"record", "--append", "-p", Self(), "-o", file, "-d", "100ms"}).exit_code, 5);
  EXPECT_EQ(Mycroft({"record", "--append", "-p", Self(), "-d", "100ms"}).exit_code, 2);
}

TEST_F(CommandTest, RecordNamesItsFileAndServesMetrics) {
  ChildProcess record(
      {MYCROFT_COMMAND, "record", "-p", Self(), "-d", "1s", "--listen", "127.0.0.1:0"}, {},
      folder_.path());
  ASSERT_TRUE(record.ReadUntil("metrics on http://127.0.0.1:"));
  EXPECT_EQ(record.Wait().exit_code, 5);
  size_t recordings = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    recordings += entry.path().extension() == ".mycroft" ? 1 : 0;
  }
  EXPECT_EQ(recordings, 1u);
  const ProcessResult refused =
      Mycroft({"record", "-p", Self(), "-o", Path("x.mycroft"), "--listen", "0.0.0.0:0"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--listen-public"));
  EXPECT_FALSE(std::filesystem::exists(Path("x.mycroft")));
  EXPECT_EQ(Mycroft({"record", "--listen", "nonsense"}).exit_code, 2);
}

TEST_F(CommandTest, ExportWritesEveryFormat) {
  const std::string file = StuckRecording();
  for (const std::string format : {"perfetto", "chrome", "folded", "speedscope", "html"}) {
    const std::string out = Path("out." + format);
    const ProcessResult result = Mycroft({"export", file, "--format", format, "-o", out});
    EXPECT_EQ(result.exit_code, 0) << format << result.err;
    EXPECT_THAT(result.err, HasSubstr("wrote " + out));
    EXPECT_GT(std::filesystem::file_size(out), 1000u) << format;
    EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
    const ProcessResult piped = Mycroft({"export", file, "-f", format, "-o", "-"});
    EXPECT_EQ(piped.exit_code, 0);
    EXPECT_EQ(piped.out, ReadWholeFile(out)) << format;
  }
  EXPECT_FALSE(json::parse(ReadWholeFile(Path("out.chrome"))).empty());
  EXPECT_FALSE(json::parse(ReadWholeFile(Path("out.speedscope"))).empty());
}

TEST_F(CommandTest, ExportOfAWindow) {
  const std::string file = StuckRecording();
  const auto size = [&](const std::vector<std::string>& window) {
    std::vector<std::string> arguments = {"export", file, "-f", "chrome", "-o", "-"};
    arguments.insert(arguments.end(), window.begin(), window.end());
    const ProcessResult result = Mycroft(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(json::parse(result.out, nullptr, false).is_discarded());
    return result.out.size();
  };
  const size_t whole = size({});
  const size_t window = size({"--since", "2s", "--until", "3s"});
  EXPECT_LT(window, whole / 2);
  EXPECT_GT(window, 100u);
  EXPECT_LT(size({"--since", "-1s"}), whole / 2);
  EXPECT_LE(size({"--max-bytes", "20kB"}), 20000u);
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--since", "1h"},
                                                {"--since", "3s", "--until", "2s"},
                                                {"--since", "yesterday"}}) {
    std::vector<std::string> arguments = {"export", file, "-f", "chrome", "-o", Path("x")};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(Mycroft(arguments).exit_code, 2) << wrong[1];
    EXPECT_FALSE(std::filesystem::exists(Path("x")));
  }
}

TEST_F(CommandTest, ExportDoesNotHurtTheRecordingAndSaysWhenTheDiskIsFull) {
  const std::string file = StuckRecording();
  const std::string before = ReadWholeFile(file);
  EXPECT_EQ(Mycroft({"export", file, "-f", "html", "-o", file}).exit_code, 2);
  EXPECT_EQ(ReadWholeFile(file), before);
  const ProcessResult full = RunProcess(
      {"sh", "-c",
       std::string(MYCROFT_COMMAND) + " export " + file + " -f chrome -o - > /dev/full"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("error: "));
  EXPECT_EQ(Mycroft({"export", file, "-f", "html", "-o", "/nonexistent/x"}).exit_code, 1);
}

TEST_F(CommandTest, OutputIntoAFullDiskIsOne) {
  const std::string command = MYCROFT_COMMAND;
  for (const std::string& verb :
       {std::string("version"), std::string("completion zsh"), "diagnose " + StuckRecording(),
        "top --once " + Path("stuck.mycroft")}) {
    const ProcessResult result = RunProcess({"sh", "-c", command + " " + verb + " > /dev/full"});
    EXPECT_EQ(result.exit_code, 1) << verb;
    EXPECT_THAT(result.err, HasSubstr("No space left")) << verb;
  }
}

TEST_F(CommandTest, MergeMakesOneJobOfTwoHosts) {
  SyntheticOptions options = StuckJobOptions();
  options.ranks_per_host = 2;
  std::set<std::string> hosts;
  SyntheticJob job(options);
  for (int i = 0; i < 8; ++i) hosts.insert((*job.Next())->host);
  ASSERT_EQ(hosts.size(), 2u);
  std::vector<std::string> files;
  for (const std::string& host : hosts) {
    files.push_back(Path(host + ".mycroft"));
    WriteRecording(files.back(), options, host);
  }
  const std::string merged = Path("merged.mycroft");
  ProcessResult result = Mycroft({"merge", files[0], files[1], "-o", merged});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("of 2 hosts into " + merged));
  const json verdict = json::parse(Mycroft({"diagnose", merged, "--json"}).out);
  ASSERT_EQ(verdict["incidents"].size(), 1u);
  EXPECT_EQ(verdict["incidents"][0]["culprits"][0]["rank"], 2);
  EXPECT_TRUE(verdict["blind_spots"].empty()) << "all ranks are seen";
  result = Mycroft({"merge", files[0], files[1], "-o", merged});
  EXPECT_EQ(result.exit_code, 1) << "never over a file that is there";
  EXPECT_THAT(result.err, HasSubstr(merged));
  std::filesystem::copy_file(files[0], Path("copy.mycroft"));
  result = Mycroft({"merge", files[0], Path("copy.mycroft"), "-o", Path("twice.mycroft")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("overlap in time"));
  EXPECT_FALSE(std::filesystem::exists(Path("twice.mycroft")));
  EXPECT_EQ(Mycroft({"merge", files[0], files[0], "-o", Path("x")}).exit_code, 2);
  EXPECT_EQ(Mycroft({"merge", files[0], files[1], "-o", files[1]}).exit_code, 2);
}

TEST_F(CommandTest, DoctorOfThisHost) {
  const ProcessResult text = Mycroft({"doctor"});
  EXPECT_TRUE(text.exit_code == 0 || text.exit_code == 4) << text.err;
  EXPECT_THAT(text.out, HasSubstr("kernel"));
  const ProcessResult strict = Mycroft({"doctor", "--strict", "--json"});
  const json found = json::parse(strict.out);
  EXPECT_EQ(strict.exit_code, found.at("degraded") ? 1 : 0);
  EXPECT_EQ(found.at("checks").size(), 19u);
}

TEST_F(CommandTest, StrictFailsWhenAProbeCannotBeAttached) {
  std::string missing;
  const json doctor = json::parse(Mycroft({"doctor", "--json"}).out);
  for (const json& probe : doctor.at("probes")) {
    if (probe.at("attached") == "" || probe.at("problem") != "") missing = probe.at("name");
  }
  for (const char* verb : {"diagnose", "record", "top"}) {
    std::vector<std::string> arguments = {verb, "--strict", "-p", Self()};
    if (std::string(verb) == "top") {
      arguments.insert(arguments.end(), {"--once", "--wait", "50ms"});
    } else {
      arguments.insert(arguments.end(), {"-d", "100ms"});
    }
    if (std::string(verb) == "record") arguments.insert(arguments.end(), {"-o", Path("s.mycroft")});
    const ProcessResult result = Mycroft(arguments);
    EXPECT_EQ(result.exit_code, missing.empty() ? 5 : 1) << verb << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(missing)) << verb;
    arguments.push_back("--no-probes");
    EXPECT_EQ(Mycroft(arguments).exit_code, 5) << verb;
  }
}

TEST_F(CommandTest, TheAgentKeepsOnlyTheRightsThatItNeeds) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root: there are no rights to give up";
  ChildProcess record({MYCROFT_COMMAND, "record", "-p", Self(), "-o", Path("r.mycroft")});
  ASSERT_TRUE(record.ReadUntil("no process with the plugin yet")) << "its threads run by then";
  const std::string tasks = "/proc/" + std::to_string(record.pid()) + "/task";
  size_t threads = 0;
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    ++threads;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("CapPrm:", 0) != 0 && line.rfind("CapEff:", 0) != 0) continue;
      const uint64_t held = std::stoull(line.substr(7), nullptr, 16);
      constexpr uint64_t kDacOverride = 1, kDacReadSearch = 2, kSysPtrace = 19, kPerfmon = 38,
                         kBpf = 39;
      EXPECT_EQ(held & ~(1ull << kDacOverride | 1ull << kDacReadSearch | 1ull << kSysPtrace |
                         1ull << kPerfmon | 1ull << kBpf),
                0u)
          << line << " of thread " << task.path().filename();
      EXPECT_NE(held & 1ull << kSysPtrace, 0u) << line;
    }
  }
  EXPECT_GT(threads, 1u);
  ::kill(record.pid(), SIGTERM);
  EXPECT_EQ(record.Wait().exit_code, 5);
}

TEST_F(CommandTest, ManualPages) {
  EXPECT_EQ(Mycroft({"__man", Path("man")}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(Path("man/mycroft.1")));
  EXPECT_TRUE(std::filesystem::exists(Path("man/mycroft-top.1")));
  EXPECT_EQ(Mycroft({"__man", "/proc/x"}).exit_code, 1);
}

}  // namespace
}  // namespace mycroft
