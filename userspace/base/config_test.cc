// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Error(const std::string& yaml, ConfigScope scope = ConfigScope::kSystem) {
  Config config;
  const absl::Status status = LoadConfigText(config, yaml, "c.yaml", scope);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << yaml;
  return std::string(status.message());
}

GetEnv Env(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto it = values.find(name);
    return it == values.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
}

TEST(Config, ReadsEveryKey) {
  Config config;
  const absl::Status status = LoadConfigText(config, R"(
interval: 50ms
level: kernels
probes: false
gpu_sampling: 1m
plugin: /opt/p.so
chain_plugin: /opt/q.so
detect:
  stuck_after: 3s
  slow_factor: 1.5
record: {max_size: 2GiB, max_age: 0}
metrics:
  listen: "127.0.0.1:19470"
  listen_public: yes
top:
  refresh: 2s
  color: never
  ascii: on
  sort: age
  tree: false
)",
                                             "c.yaml", ConfigScope::kSystem);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.interval_ns, 50'000'000u);
  EXPECT_EQ(config.level, MC_LEVEL_KERNELS);
  EXPECT_FALSE(config.probes);
  EXPECT_EQ(config.gpu_sampling_ns, 60'000'000'000u);
  EXPECT_EQ(config.plugin, "/opt/p.so");
  EXPECT_EQ(config.chain_plugin, "/opt/q.so");
  EXPECT_EQ(config.stuck_after_ns, 3'000'000'000u);
  EXPECT_EQ(config.slow_factor, 1.5);
  EXPECT_EQ(config.record_max_bytes, 2ull << 30);
  EXPECT_EQ(config.record_max_age_ns, 0u);
  EXPECT_EQ(config.metrics_listen, "127.0.0.1:19470");
  EXPECT_TRUE(config.metrics_listen_public);
  EXPECT_EQ(config.top_refresh_ns, 2'000'000'000u);
  EXPECT_EQ(config.top_colour, ColourMode::kNever);
  EXPECT_TRUE(config.top_ascii);
  EXPECT_EQ(config.top_sort, "age");
  EXPECT_FALSE(config.top_tree);
  EXPECT_EQ(config.origin.at("interval"), "c.yaml:2");
  EXPECT_EQ(config.origin.size(), ConfigKeys().size()) << "a key is missing in this test";
}

TEST(Config, EmptyTextIsFine) {
  for (const char* text : {"", "\n\n", "# nothing\n", "---\n", "top:\n"}) {
    Config config;
    EXPECT_TRUE(LoadConfigText(config, text, "c.yaml", ConfigScope::kSystem).ok()) << text;
    EXPECT_TRUE(config.origin.empty());
  }
}

TEST(Config, UnknownKeyNamesLineSuggestionAndKnownKeys) {
  const std::string error = Error("interval: 1s\nrecord:\n  max_sizes: 1G\n");
  EXPECT_THAT(error, HasSubstr("c.yaml:3: unknown key 'record.max_sizes'"));
  EXPECT_THAT(error, HasSubstr("did you mean 'record.max_size'?"));
  EXPECT_THAT(error, HasSubstr("Known keys: interval, level,"));
  EXPECT_THAT(Error("a\x01z: 1\n"), Not(HasSubstr("\x01")));
}

TEST(Config, BadValuesAreErrorsWithTheLine) {
  EXPECT_THAT(Error("\n\ninterval: 5s\n"), HasSubstr("c.yaml:3: interval: '5s' is out of range"));
  EXPECT_THAT(Error("interval: fast\n"), HasSubstr("not a duration"));
  EXPECT_THAT(Error("interval:\n"), HasSubstr("takes one value: DURATION"));
  EXPECT_THAT(Error("interval: [1s]\n"), HasSubstr("takes one value"));
  EXPECT_THAT(Error("level: everything\n"), HasSubstr("is not one of ops, steps, kernels"));
  EXPECT_THAT(Error("record: 5\n"), HasSubstr("holds keys"));
  EXPECT_THAT(Error("record:\n  max_size: 5\n"), HasSubstr("at least 1MiB"));
  EXPECT_THAT(Error("detect: {slow_factor: nan}\n"), HasSubstr("not a number"));
  EXPECT_THAT(Error("top: {ascii: maybe}\n"), HasSubstr("neither true nor false"));
  EXPECT_THAT(Error("interval: 1s\ninterval: 1s\n"),
              HasSubstr("c.yaml:2: key 'interval' is there twice"));
  EXPECT_THAT(Error("- a\n- b\n"), HasSubstr("key: value"));
  EXPECT_THAT(Error("a: 1\n---\nb: 2\n"),
              HasSubstr("c.yaml:2: not valid YAML: more than one document"));
  EXPECT_THAT(Error("interval: 1s\nlevel: a: b\n"), HasSubstr("c.yaml:2: not valid YAML"));
  EXPECT_THAT(Error("top: {a: b\n"), HasSubstr("c.yaml:"));
  EXPECT_THAT(Error(std::string(kMaxConfigBytes + 1, ' ')), HasSubstr("larger than 64KiB"));
}

TEST(Config, HostileYamlIsAnError) {
  Config config;
  std::string deep(20000, '[');
  EXPECT_FALSE(LoadConfigText(config, deep, "c", ConfigScope::kSystem).ok());
  EXPECT_THAT(Error("interval: 1s\ntop: &a [*a, *a]\n"),
              HasSubstr("c.yaml:2: not valid YAML: anch"));
  EXPECT_THAT(Error("top: {ascii: {a: {b: {c: d}}}}\n"), HasSubstr("nested too deep"));
  EXPECT_FALSE(LoadConfigText(config, "? {a: b}\n: c\n", "c", ConfigScope::kSystem).ok());
  std::string bomb = "a0: &a0 [x]\n";
  for (int i = 1; i < 40; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last + "," + last + "]\n";
  }
  EXPECT_FALSE(LoadConfigText(config, bomb, "c", ConfigScope::kSystem).ok());
}

TEST(Config, TheUserFileHoldsPreferencesOfTopOnly) {
  Config config;
  EXPECT_TRUE(LoadConfigText(config, "top: {ascii: true}\n", "u", ConfigScope::kUser).ok());
  EXPECT_TRUE(config.top_ascii);
  EXPECT_THAT(Error("interval: 1s\n", ConfigScope::kUser), HasSubstr("put it into /etc/mycroft"));
  EXPECT_THAT(Error("record:\n  max_size: 1G\n", ConfigScope::kUser), HasSubstr("'record' is not"));
  EXPECT_THAT(Error("tpo: {}\n", ConfigScope::kUser), HasSubstr("unknown key 'tpo'"));
}

TEST(Config, TheEnvironmentIsReadByTheNamesOfTheKeys) {
  Config config;
  ASSERT_TRUE(LoadConfigEnvironment(config, Env({{"MYCROFT_RECORD_MAX_SIZE", "5MiB"},
                                                 {"MYCROFT_LEVEL", "ops"},
                                                 {"MYCROFT_INTERVAL", ""},
                                                 {"MYCROFT_TRACES", "/x"}}))
                  .ok());
  EXPECT_EQ(config.record_max_bytes, 5u << 20);
  EXPECT_EQ(config.level, MC_LEVEL_OPS);
  EXPECT_EQ(config.interval_ns, 100'000'000u);
  const absl::Status bad = LoadConfigEnvironment(config, Env({{"MYCROFT_INTERVAL", "5"}}));
  EXPECT_THAT(std::string(bad.message()), HasSubstr("environment variable MYCROFT_INTERVAL"));
}

TEST(Config, PrintedConfigIsReadBackToTheSame) {
  Config config;
  ASSERT_TRUE(SetConfig(config, "plugin", "/it's a \"path\": #1", "--plugin").ok());
  ASSERT_TRUE(SetConfig(config, "detect.slow_factor", "1.7", "x").ok());
  ASSERT_TRUE(SetConfig(config, "metrics.listen", "[::1]:19470", "x").ok());
  const std::string text = PrintConfig(config);
  EXPECT_THAT(text, HasSubstr("# --plugin\n"));
  EXPECT_THAT(text, HasSubstr("interval: 100ms  # default\n"));
  Config again;
  ASSERT_TRUE(LoadConfigText(again, text, "c", ConfigScope::kSystem).ok()) << text;
  again.origin = config.origin;
  EXPECT_EQ(PrintConfig(again), text);
  EXPECT_EQ(again.plugin, config.plugin);
}

class ConfigFiles : public ::testing::Test {
 protected:
  ConfigFiles() {
    char name[] = "/tmp/mycroft-config-XXXXXX";
    root_ = ::mkdtemp(name);
    std::filesystem::create_directories(root_ + "/mycroft");
  }
  ~ConfigFiles() override { std::filesystem::remove_all(root_); }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/" + name) << text;
    return root_ + "/" + name;
  }
  std::string root_;
};

TEST_F(ConfigFiles, LaterOnesWin) {
  const std::string file = Write("sys.yaml", "interval: 20ms\ntop: {refresh: 3s, sort: age}\n");
  Write("mycroft/config.yaml", "top: {refresh: 4s, tree: false}\n");
  Config config;
  const absl::Status status =
      LoadConfig(config, file, Env({{"XDG_CONFIG_HOME", root_}, {"MYCROFT_TOP_TREE", "true"}}));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.interval_ns, 20'000'000u);
  EXPECT_EQ(config.top_sort, "age");
  EXPECT_EQ(config.top_refresh_ns, 4'000'000'000u);
  EXPECT_TRUE(config.top_tree);
  EXPECT_EQ(config.origin.at("top.refresh"), root_ + "/mycroft/config.yaml:1");
}

TEST_F(ConfigFiles, AFileThatWasNamedMustBeThere) {
  Config config;
  EXPECT_TRUE(absl::IsNotFound(LoadConfig(config, root_ + "/none.yaml", Env({}))));
  EXPECT_TRUE(absl::IsInvalidArgument(LoadConfig(config, root_, Env({}))));
  ASSERT_EQ(::mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(LoadConfig(config, root_ + "/fifo", Env({}))));
}

TEST(UserConfigPath, FollowsTheBaseDirectories) {
  EXPECT_EQ(UserConfigPath(Env({{"XDG_CONFIG_HOME", "/x"}})), "/x/mycroft/config.yaml");
  EXPECT_EQ(UserConfigPath(Env({{"XDG_CONFIG_HOME", "x"}, {"HOME", "/h"}})),
            "/h/.config/mycroft/config.yaml");
  EXPECT_EQ(UserConfigPath(Env({})), "");
}

}  // namespace
}  // namespace mycroft
