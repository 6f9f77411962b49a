// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/install.h"

#include <unistd.h>

#include <climits>
#include <filesystem>
#include <system_error>

namespace mycroft {
namespace {

namespace fs = std::filesystem;

InstalledFile Look(const fs::path& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error).lexically_normal();
  InstalledFile file;
  file.path = absolute.string();
  file.exists = fs::is_regular_file(absolute, error) && ::access(file.path.c_str(), R_OK) == 0;
  return file;
}

InstalledFile LookInLib(const std::string& bin_directory, const char* name) {
  const fs::path prefix = fs::path(bin_directory.empty() ? "/usr/bin" : bin_directory) / "..";
  const InstalledFile first = Look(prefix / "lib" / name);
  if (first.exists) return first;
  const InstalledFile second = Look(prefix / "lib" / "mycroft" / name);
  return second.exists ? second : first;
}

}  // namespace

std::string ExecutableDirectory() {
  char buffer[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (n <= 0 || static_cast<size_t>(n) >= sizeof buffer) return "";
  return fs::path(std::string(buffer, static_cast<size_t>(n))).parent_path().string();
}

InstalledFile FindPlugin(const std::string& configured, const std::string& bin_directory) {
  return configured.empty() ? LookInLib(bin_directory, kPluginFile) : Look(configured);
}

InstalledFile FindCuptiLibrary(const std::string& bin_directory) {
  return LookInLib(bin_directory, kCuptiFile);
}

std::array<std::string, 2> EnvironmentLines(const InstalledFile& plugin,
                                            const InstalledFile& cupti) {
  return {"NCCL_PROFILER_PLUGIN=" + plugin.path, "CUDA_INJECTION64_PATH=" + cupti.path};
}

}  // namespace mycroft
