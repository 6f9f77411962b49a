// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/App.hpp>

#include "tools/mycroft/testing_process.h"
#include "tools/mycroft/verbs.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Parsed {
  Options options;
  std::optional<int> exit_code;
  std::string err;
};

Parsed Parse(std::vector<const char*> arguments) {
  Parsed parsed;
  arguments.insert(arguments.begin(), "mycroft");
  const std::unique_ptr<CLI::App> app = MakeApp(parsed.options);
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  ParseCommandLine(*app, parsed.options, static_cast<int>(arguments.size()), arguments.data(),
                   parsed.exit_code);
  ::testing::internal::GetCapturedStdout();
  parsed.err = ::testing::internal::GetCapturedStderr();
  return parsed;
}

GetEnv NoEnvironment() {
  return [](const std::string&) { return std::nullopt; };
}

TEST(CommandLine, RunTakesTheRestAsTheCommand) {
  const std::vector<std::string> command = {"python", "train.py", "--lr", "3", "--help", "-v"};
  Parsed parsed = Parse({"run", "python", "train.py", "--lr", "3", "--help", "-v"});
  EXPECT_EQ(parsed.options.command, command);
  EXPECT_FALSE(parsed.exit_code);
  EXPECT_FALSE(parsed.options.verbose);
  parsed = Parse({"run", "--", "python", "train.py", "--lr", "3", "--help", "-v"});
  EXPECT_EQ(parsed.options.command, command);
  parsed = Parse({"-v", "run", "--chain", "--level", "ops", "--", "a", "--", "b"});
  EXPECT_THAT(parsed.options.command, ElementsAre("a", "--", "b"));
  EXPECT_TRUE(parsed.options.chain);
  EXPECT_TRUE(parsed.options.verbose);
  EXPECT_EQ(parsed.options.overrides.at("level").second, "ops");
  parsed = Parse({"--config", "x", "run", "--level=steps", "job"});
  EXPECT_THAT(parsed.options.command, ElementsAre("job"));
  EXPECT_EQ(parsed.options.config_file, "x");
  EXPECT_EQ(Parse({"run"}).exit_code, 2);
  EXPECT_EQ(Parse({"run", "--"}).exit_code, 2);
  EXPECT_EQ(Parse({"run", "--nosuch", "x"}).exit_code, 2);
}

TEST(CommandLine, OptionsOfTheVerbs) {
  Parsed parsed = Parse({"record", "-o", "f", "-d", "10s", "-p", "12", "--pid", "13", "--append",
                         "--max-size", "5MiB", "--listen", "127.0.0.1:1"});
  EXPECT_FALSE(parsed.exit_code) << parsed.err;
  EXPECT_EQ(parsed.options.verb, "record");
  EXPECT_EQ(parsed.options.output, "f");
  EXPECT_EQ(parsed.options.duration, "10s");
  EXPECT_THAT(parsed.options.pids, ElementsAre(12, 13));
  EXPECT_TRUE(parsed.options.append);
  parsed = Parse({"top", "-p", "12", "file", "--once", "--ascii", "--no-color", "-1"});
  EXPECT_FALSE(parsed.exit_code) << parsed.err;
  EXPECT_EQ(parsed.options.file, "file");
  EXPECT_TRUE(parsed.options.once);
  parsed = Parse({"export", "r", "--format", "html", "--since", "-10s", "--until=-1s", "-o", "-"});
  EXPECT_FALSE(parsed.exit_code) << parsed.err;
  EXPECT_EQ(parsed.options.since, "-10s");
  EXPECT_EQ(parsed.options.until, "-1s");
  parsed = Parse({"merge", "a", "b", "c", "-o", "d"});
  EXPECT_THAT(parsed.options.inputs, ElementsAre("a", "b", "c"));
  EXPECT_EQ(Parse({"--version"}).options.verb, "version");
}

TEST(CommandLine, WrongUsageIsTwoAndSaysWhereToLook) {
  const std::vector<std::vector<const char*>> wrong = {
      {},
      {"recrod"},
      {"record", "--nosuch"},
      {"record", "-d", "5"},
      {"record", "-p", "x"},
      {"record", "-p", "0"},
      {"record", "-d"},
      {"export", "f", "--format", "pdf", "-o", "x"},
      {"export", "f"},
      {"merge", "a", "-o", "b"},
      {"completion", "tcsh"},
      {"top", "a", "b"},
      {"-q", "-v", "doctor"},
      {"version", "doctor"},
  };
  for (const auto& arguments : wrong) {
    const Parsed parsed = Parse(arguments);
    EXPECT_EQ(parsed.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(parsed.err, ::testing::StartsWith("mycroft: error: "));
    EXPECT_EQ(std::count(parsed.err.begin(), parsed.err.end(), '\n'), 1) << parsed.err;
  }
  EXPECT_THAT(Parse({"recrod"}).err, HasSubstr("did you mean 'record'?"));
  EXPECT_THAT(Parse({"record", "-d", "5"}).err, HasSubstr("see 'mycroft record --help'"));
}

TEST(CommandLine, HelpIsFine) {
  EXPECT_EQ(Parse({"--help"}).exit_code, 0);
  for (const VerbDoc& doc : VerbDocs()) EXPECT_EQ(Parse({doc.name.c_str(), "-h"}).exit_code, 0);
}

TEST(MakeConfig, FlagsWin) {
  TemporaryFolder folder;
  const std::string file = folder.Write("c.yaml", "interval: 20ms\nlevel: ops\n");
  Parsed parsed = Parse({"record", "--config", file.c_str(), "--interval", "30ms"});
  const auto config = MakeConfig(parsed.options, NoEnvironment());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->interval_ns, 30'000'000u);
  EXPECT_EQ(config->level, MC_LEVEL_OPS);
  EXPECT_EQ(config->origin.at("interval"), "--interval");
  EXPECT_EQ(config->origin.at("level"), file + ":2");
}

TEST(MakeConfig, ABadFlagNamesTheFlag) {
  const Parsed parsed = Parse({"record", "--interval", "3h"});
  const auto config = MakeConfig(parsed.options, NoEnvironment());
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("--interval: interval: '3h' is out of range: 10ms to 1s"));
}

TEST(ParseTimePoint, AbsoluteFromTheStartAndFromTheEnd) {
  const uint64_t first = 5'000'000'000'000, last = 5'060'000'000'000;
  EXPECT_EQ(ParseTimePoint("5010000000000", first, last).value(), 5'010'000'000'000u);
  EXPECT_EQ(ParseTimePoint("10s", first, last).value(), first + 10'000'000'000);
  EXPECT_EQ(ParseTimePoint("-10s", first, last).value(), last - 10'000'000'000);
  EXPECT_EQ(ParseTimePoint("0", first, last).value(), first);
  EXPECT_EQ(ParseTimePoint("-9999h", first, last).value(), 0u);
  for (const char* bad : {"", "-", "x", "10", "--1s", "1e9", "-5"}) {
    if (std::string(bad) == "10") continue;  // nanoseconds
    EXPECT_FALSE(ParseTimePoint(bad, first, last).ok()) << bad;
  }
}

}  // namespace
}  // namespace mycroft
