// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "bpf/abi/board.h"
#include "userspace/source/proc.h"

namespace mycroft {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxMaps = 16 << 20;
constexpr size_t kMaxEnvironment = 1 << 20;
constexpr size_t kMaxNcclProcesses = 256;

// The path at the end of the first line of `maps` that names libnccl.so.
std::string NcclInMaps(const std::string& maps) {
  size_t at = maps.find("libnccl.so");
  while (at != std::string::npos) {
    const size_t begin = maps.rfind('\n', at) + 1;  // npos + 1 == 0
    const size_t end = std::min(maps.find('\n', at), maps.size());
    const std::string line = maps.substr(begin, end - begin);
    const size_t slash = line.find('/');
    if (slash != std::string::npos) {
      std::string path = line.substr(slash);
      const std::string deleted = " (deleted)";
      if (path.size() > deleted.size() &&
          path.compare(path.size() - deleted.size(), deleted.size(), deleted) == 0) {
        path.resize(path.size() - deleted.size());
      }
      return path;
    }
    at = maps.find("libnccl.so", at + 1);
  }
  return "";
}

std::optional<std::string> EnvironmentOf(const std::string& environ, const std::string& name) {
  const std::string key = name + "=";
  size_t begin = 0;
  while (begin < environ.size()) {
    const size_t end = std::min(environ.find('\0', begin), environ.size());
    if (environ.compare(begin, key.size(), key) == 0) {
      return environ.substr(begin + key.size(), end - begin - key.size());
    }
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<uint64_t> MemlockLimit(const std::string& limits) {
  const std::string key = "Max locked memory";
  const size_t at = limits.find(key);
  if (at == std::string::npos) return std::nullopt;
  const size_t value = limits.find_first_not_of(' ', at + key.size());
  if (value == std::string::npos) return std::nullopt;
  if (limits.compare(value, 9, "unlimited") == 0) return UINT64_MAX;
  return std::strtoull(limits.c_str() + value, nullptr, 10);
}

// Versions of files that several processes map are looked up once.
class VersionCache {
 public:
  std::string Of(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
    const auto key = std::make_pair(info.st_dev, info.st_ino);
    const auto [it, fresh] = known_.try_emplace(key);
    if (fresh && known_.size() <= 16) it->second = NcclVersionInFile(path);
    return it->second;
  }

 private:
  std::map<std::pair<dev_t, ino_t>, std::string> known_;
};

double ParseSpeed(const std::optional<std::string>& text) {
  return text ? std::strtod(text->c_str(), nullptr) : 0;
}

}  // namespace

std::optional<std::string> ReadLine(const std::string& path) {
  std::optional<std::string> text = ReadSmallFile(path, 4096);
  if (!text) return std::nullopt;
  const size_t end = text->find('\n');
  if (end != std::string::npos) text->resize(end);
  return text;
}

std::string VersionOfName(const std::string& file_name) {
  const size_t at = file_name.find(".so.");
  if (at == std::string::npos) return "";
  const std::string version = file_name.substr(at + 4);
  if (version.find_first_not_of("0123456789.") != std::string::npos ||
      version.find('.') == std::string::npos || version.size() > 32) {
    return "";
  }
  return version;
}

std::string NcclVersionInFile(const std::string& path) {
  // O_NONBLOCK and fstat: the path comes from another process and may be anything.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return "";
  struct stat info {};
  std::string version;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    static const std::string kMark = "NCCL version ";
    constexpr size_t kChunk = 1 << 20, kKeep = 64;
    constexpr uint64_t kMost = 512ull << 20;
    std::string window;
    uint64_t total = 0;
    while (version.empty() && total < kMost) {
      const size_t old = window.size();
      window.resize(old + kChunk);
      const ssize_t n = ::read(fd, window.data() + old, kChunk);
      if (n < 0 && errno == EINTR) {
        window.resize(old);
        continue;
      }
      if (n <= 0) break;
      window.resize(old + static_cast<size_t>(n));
      total += static_cast<uint64_t>(n);
      size_t at = window.find(kMark);
      while (at != std::string::npos && version.empty() && at + kKeep <= window.size()) {
        const size_t begin = at + kMark.size();
        const size_t end = window.find_first_not_of("0123456789.", begin);
        const std::string found = window.substr(begin, std::min(end, begin + 32) - begin);
        if (std::count(found.begin(), found.end(), '.') >= 1 && found[0] != '.') version = found;
        at = window.find(kMark, begin);
      }
      if (window.size() > kKeep) window.erase(0, window.size() - kKeep);
    }
  }
  ::close(fd);
  return version;
}

ProcessSurvey SurveyProcesses(const std::string& root) {
  const std::string proc = root + "/proc";
  ProcessSurvey survey;
  VersionCache versions;
  for (uint32_t pid : ListNumericEntries(proc)) {
    const std::string folder = proc + "/" + std::to_string(pid);
    const std::optional<ProcStat> stat = ReadProcStat(proc, pid);
    if (!stat || stat->state == 'Z' || pid == 2 || stat->parent == 2) continue;  // kernel threads
    ++survey.processes;
    bool denied = false;
    const bool board = !FindMemfds(proc, pid, MC_BOARD_MEMFD_NAME, &denied).empty();
    if (board) ++survey.boards;
    if (denied) ++survey.unreadable;
    const std::optional<std::string> maps = ReadSmallFile(folder + "/maps", kMaxMaps);
    const std::string library = maps ? NcclInMaps(*maps) : "";
    if ((board || !library.empty()) && survey.jobs.size() < kMaxNcclProcesses) {
      survey.jobs.push_back({pid, stat->start_time});
    }
    if (library.empty() || survey.nccl.size() >= kMaxNcclProcesses) continue;
    NcclProcess process;
    process.pid = pid;
    process.name = stat->name;
    process.library = library;
    process.has_board = board;
    process.board_unreadable = denied && !board;
    process.version = VersionOfName(fs::path(library).filename().string());
    if (process.version.empty()) process.version = versions.Of(folder + "/root" + library);
    if (process.version.empty() && !fs::exists(folder + "/root")) {
      process.version = versions.Of(root + library);
    }
    if (const auto environ = ReadSmallFile(folder + "/environ", kMaxEnvironment)) {
      process.profiler_plugin = EnvironmentOf(*environ, "NCCL_PROFILER_PLUGIN").value_or("");
    }
    if (const auto limits = ReadSmallFile(folder + "/limits", 8192)) {
      process.memlock_bytes = MemlockLimit(*limits);
    }
    survey.nccl.push_back(std::move(process));
  }
  return survey;
}

std::vector<std::string> LibraryDirectories(const std::string& root, const std::string& ld_path) {
  std::vector<std::string> directories;
  size_t begin = 0;
  while (begin < ld_path.size()) {
    const size_t end = std::min(ld_path.find(':', begin), ld_path.size());
    if (end > begin && ld_path[begin] == '/')
      directories.push_back(ld_path.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const char* directory :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
        "/usr/local/lib", "/usr/local/nvidia/lib64",
        "/run/nvidia/driver/usr/lib/x86_64-linux-gnu"}) {
    directories.push_back(directory);
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root + "/usr/local", error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("cuda", 0) != 0) continue;
    for (const char* below : {"/lib64", "/extras/CUPTI/lib64", "/targets/x86_64-linux/lib"}) {
      directories.push_back("/usr/local/" + name + below);
    }
  }
  return directories;
}

std::vector<FoundLibrary> FindLibraries(const std::string& root,
                                        const std::vector<std::string>& directories,
                                        const std::string& stem) {
  std::vector<FoundLibrary> found;
  std::set<std::string> seen;
  for (const std::string& directory : directories) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root + directory, error)) {
      const std::string name = entry.path().filename().string();
      if (name != stem && name.rfind(stem + ".", 0) != 0) continue;
      const fs::path real = fs::canonical(entry.path(), error);
      if (error || !fs::is_regular_file(real, error) || !seen.insert(real.string()).second)
        continue;
      FoundLibrary library;
      library.path = real.string();
      library.version = VersionOfName(real.filename().string());
      if (library.version.empty() && stem == "libnccl.so") {
        library.version = NcclVersionInFile(library.path);
      }
      found.push_back(std::move(library));
    }
  }
  std::sort(found.begin(), found.end(),
            [](const FoundLibrary& a, const FoundLibrary& b) { return a.path < b.path; });
  return found;
}

std::vector<PciLink> SurveyPci(const std::string& root) {
  std::vector<PciLink> links;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root + "/sys/bus/pci/devices", error)) {
    const std::string folder = entry.path().string();
    const std::string vendor = ReadLine(folder + "/vendor").value_or("");
    const std::string device_class = ReadLine(folder + "/class").value_or("");
    const bool gpu = vendor == "0x10de" && device_class.rfind("0x03", 0) == 0;
    const bool nic = fs::exists(folder + "/infiniband", error);
    if (!gpu && !nic) continue;
    PciLink link;
    link.address = entry.path().filename().string();
    link.kind = gpu ? "GPU" : "NIC";
    link.speed_gts = ParseSpeed(ReadLine(folder + "/current_link_speed"));
    link.max_speed_gts = ParseSpeed(ReadLine(folder + "/max_link_speed"));
    link.width = static_cast<uint32_t>(ParseSpeed(ReadLine(folder + "/current_link_width")));
    link.max_width = static_cast<uint32_t>(ParseSpeed(ReadLine(folder + "/max_link_width")));
    const auto numa = ReadLine(folder + "/numa_node");
    link.numa_node = numa ? std::atoi(numa->c_str()) : -1;
    links.push_back(std::move(link));
  }
  std::sort(links.begin(), links.end(),
            [](const PciLink& a, const PciLink& b) { return a.address < b.address; });
  return links;
}

}  // namespace mycroft
