// SPDX-License-Identifier: Apache-2.0
//
// For tests: the script of the stand-in libnvidia-ml (fake_nvml.cc has its words), in a
// file that goes with the object. One at a time: the file is named in the environment.
#ifndef MYCROFT_USERSPACE_SOURCE_TESTING_NVML_SCRIPT_H_
#define MYCROFT_USERSPACE_SOURCE_TESTING_NVML_SCRIPT_H_

#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mycroft {

class NvmlScript {
 public:
  NvmlScript() {
    char name[] = "/tmp/mycroft-nvml-XXXXXX";
    const int fd = ::mkstemp(name);
    if (fd < 0) ::abort();
    ::close(fd);
    path_ = name;
    ::setenv("MYCROFT_FAKE_NVML", path_.c_str(), 1);
  }
  ~NvmlScript() {
    ::unsetenv("MYCROFT_FAKE_NVML");
    std::remove(path_.c_str());
  }
  NvmlScript(const NvmlScript&) = delete;
  NvmlScript& operator=(const NvmlScript&) = delete;

  // A healthy H100 at work.
  void AddGpu(uint32_t gpu, const std::string& bus_id) {
    Set(gpu, "bus", bus_id);
    Set(gpu, "uuid", "GPU-" + std::to_string(gpu));
    Set(gpu, "name", "NVIDIA H100 80GB HBM3");
    const std::pair<const char*, uint64_t> values[] = {
        {"minor", gpu},         {"clock_sm", 1980},        {"clock_mem", 2619},
        {"max_clock_sm", 1980}, {"max_clock_mem", 2619},   {"power", 620'000},
        {"power_limit", 700'000}, {"reasons", 0},          {"temperature", 61},
        {"slowdown", 87},       {"mem_temperature", 70},   {"util", 100},
        {"mem_used", 60ull << 30}, {"mem_total", 80ull << 30}, {"ecc_corrected", 0},
        {"ecc_uncorrected", 0}, {"remap_rows", 0},         {"remap_pending", 0},
        {"remap_failed", 0},    {"pcie_gen", 5},           {"pcie_max_gen", 5},
        {"pcie_width", 16},     {"pcie_max_width", 16},    {"pcie_replays", 0}};
    for (const auto& [key, value] : values) Set(gpu, key, std::to_string(value));
  }
  void Set(uint32_t gpu, const std::string& key, const std::string& value) {
    lines_["gpu " + std::to_string(gpu) + " " + key] = value;
  }
  void Set(uint32_t gpu, const std::string& key, uint64_t value) {
    Set(gpu, key, std::to_string(value));
  }
  void Clear(uint32_t gpu, const std::string& key) {
    lines_.erase("gpu " + std::to_string(gpu) + " " + key);
  }
  void Line(const std::string& line) { more_.push_back(line); }
  // The stand-in sees what was set only after this.
  void Write() {
    const std::string fresh = path_ + ".new";
    {
      std::ofstream file(fresh, std::ios::trunc);
      for (const auto& [key, value] : lines_) file << key << " " << value << "\n";
      for (const std::string& line : more_) file << line << "\n";
    }
    std::rename(fresh.c_str(), path_.c_str());
  }

 private:
  std::string path_;
  std::map<std::string, std::string> lines_;
  std::vector<std::string> more_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_TESTING_NVML_SCRIPT_H_
