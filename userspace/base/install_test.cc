// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/install.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace mycroft {
namespace {

class InstallTest : public ::testing::Test {
 protected:
  InstallTest() {
    char name[] = "/tmp/mycroft-install-XXXXXX";
    root_ = ::mkdtemp(name);
    std::filesystem::create_directories(root_ + "/bin");
    std::filesystem::create_directories(root_ + "/lib/mycroft");
  }
  ~InstallTest() override { std::filesystem::remove_all(root_); }
  void Touch(const std::string& path) { std::ofstream(root_ + path) << "x"; }
  std::string root_;
};

TEST_F(InstallTest, LooksNextToTheCommand) {
  InstalledFile file = FindPlugin("", root_ + "/bin");
  EXPECT_FALSE(file.exists);
  EXPECT_EQ(file.path, root_ + "/lib/" + kPluginFile);
  Touch(std::string("/lib/mycroft/") + kPluginFile);
  file = FindPlugin("", root_ + "/bin");
  EXPECT_TRUE(file.exists);
  EXPECT_EQ(file.path, root_ + "/lib/mycroft/" + kPluginFile);
  Touch(std::string("/lib/") + kPluginFile);
  EXPECT_EQ(FindPlugin("", root_ + "/bin").path, root_ + "/lib/" + kPluginFile);
}

TEST_F(InstallTest, AConfiguredPathWins) {
  Touch("/mine.so");
  const InstalledFile file = FindPlugin(root_ + "/bin/../mine.so", root_ + "/bin");
  EXPECT_TRUE(file.exists);
  EXPECT_EQ(file.path, root_ + "/mine.so");
  EXPECT_FALSE(FindPlugin(root_ + "/bin", "").exists) << "a directory is no plugin";
}

TEST_F(InstallTest, NamesTheTwoLines) {
  const auto lines = EnvironmentLines({"/a/p.so", true}, {"/a/c.so", false});
  EXPECT_EQ(lines[0], "NCCL_PROFILER_PLUGIN=/a/p.so");
  EXPECT_EQ(lines[1], "CUDA_INJECTION64_PATH=/a/c.so");
}

TEST_F(InstallTest, KnowsItsOwnDirectory) {
  EXPECT_TRUE(std::filesystem::exists(ExecutableDirectory() + "/base_test"));
}

}  // namespace
}  // namespace mycroft
