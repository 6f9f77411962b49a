// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/process_devices.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "userspace/source/pci.h"
#include "userspace/source/proc.h"
#include "userspace/source/sysfs.h"

namespace mycroft {
namespace {

constexpr size_t kMaxFds = 65536;
constexpr size_t kMaxDevices = 64;

// N of "/dev/nvidiaN"; not of nvidiactl, nvidia-uvm, nvidia-caps/...
std::optional<uint32_t> NvidiaMinor(std::string_view path) {
  constexpr std::string_view kPrefix = "/dev/nvidia";
  if (path.rfind(kPrefix, 0) != 0) return std::nullopt;
  const std::string_view digits = path.substr(kPrefix.size());
  if (digits.empty() || digits.size() > 3 ||
      digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(*ParseNumber(digits));
}

std::optional<std::string> Uverbs(std::string_view path) {
  constexpr std::string_view kPrefix = "/dev/infiniband/";
  if (path.rfind(kPrefix, 0) != 0) return std::nullopt;
  const std::string_view name = path.substr(kPrefix.size());
  if (name.rfind("uverbs", 0) != 0 || name.size() == 6 || name.size() > 12 ||
      name.find_first_not_of("0123456789", 6) != std::string_view::npos) {
    return std::nullopt;
  }
  return std::string(name);
}

std::set<uint32_t> MappedGpus(const std::string& maps) {
  std::set<uint32_t> minors;
  for (size_t at = maps.find("/dev/nvidia"); at != std::string::npos;
       at = maps.find("/dev/nvidia", at + 1)) {
    const size_t end = std::min(maps.find('\n', at), maps.size());
    if (const auto minor = NvidiaMinor(std::string_view(maps).substr(at, end - at))) {
      minors.insert(*minor);
    }
  }
  return minors;
}

// What follows "KEY:" at the beginning of a line, without blanks around it; nullopt for
// nothing but blanks.
std::optional<std::string> Field(const std::string& text, const std::string& key) {
  const auto rest = AfterKey(text, key + ":");
  if (!rest) return std::nullopt;
  const size_t begin = rest->find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = rest->find_last_not_of(" \t\r") + 1;  // npos + 1 == 0
  return std::string(rest->substr(begin, end > begin ? end - begin : 0));
}

}  // namespace

std::optional<OpenDevices> ReadOpenDevices(const std::string& proc_root, uint32_t pid) {
  const std::string base = proc_root + "/" + std::to_string(pid);
  const std::string folder = base + "/fd";
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return std::nullopt;
  std::set<uint32_t> gpus;
  std::set<std::string> uverbs;
  size_t seen = 0;
  while (const dirent* entry = readdir(dir)) {
    if (++seen > kMaxFds) break;
    char target[64];
    const ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target);
    if (n <= 0 || n == static_cast<ssize_t>(sizeof target)) continue;
    const std::string_view path(target, static_cast<size_t>(n));
    if (const auto minor = NvidiaMinor(path); minor && gpus.size() < kMaxDevices) {
      gpus.insert(*minor);
    } else if (auto name = Uverbs(path); name && uverbs.size() < kMaxDevices) {
      uverbs.insert(*std::move(name));
    }
  }
  closedir(dir);
  if (gpus.size() > 1) {
    if (const auto maps = ReadSmallFile(base + "/maps", 8u << 20)) {
      std::set<uint32_t> mapped = MappedGpus(*maps);
      for (auto it = mapped.begin(); it != mapped.end();) {
        it = gpus.count(*it) != 0 ? std::next(it) : mapped.erase(it);
      }
      if (!mapped.empty()) gpus = std::move(mapped);
    }
  }
  OpenDevices devices;
  devices.gpu_minors.assign(gpus.begin(), gpus.end());
  devices.uverbs.assign(uverbs.begin(), uverbs.end());
  return devices;
}

std::optional<NvidiaInformation> ParseNvidiaInformation(const std::string& text) {
  const auto minor_text = Field(text, "Device Minor");
  auto address = Field(text, "Bus Location");
  const auto minor = minor_text ? ParseNumber(*minor_text) : std::nullopt;
  if (!minor || *minor > 255 || !address || !IsPciAddress(*address)) return std::nullopt;
  return NvidiaInformation{*std::move(address), static_cast<uint32_t>(*minor)};
}

std::map<uint32_t, std::string> ReadNvidiaMinors(const std::string& proc_root) {
  std::map<uint32_t, std::string> minors;
  const std::string folder = proc_root + "/driver/nvidia/gpus";
  const auto names = ListFolder(folder, 256);
  if (!names) return minors;
  for (const std::string& name : *names) {
    const auto text = ReadSmallFile(folder + "/" + name + "/information", 4096);
    const auto information = text ? ParseNvidiaInformation(*text) : std::nullopt;
    if (information) minors.emplace(information->minor, information->address);
  }
  return minors;
}

std::optional<uint64_t> ParseMemlockLimit(const std::string& limits) {
  const auto rest = AfterKey(limits, "Max locked memory");
  const size_t begin = rest ? rest->find_first_not_of(' ') : std::string_view::npos;
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view value = rest->substr(begin, rest->find(' ', begin) - begin);
  if (value == "unlimited") return UINT64_MAX;
  return ParseNumber(value);
}

std::optional<uint64_t> ParseLockedBytes(const std::string& status) {
  uint64_t sum = 0;
  for (const char* key : {"VmLck", "VmPin"}) {
    const auto text = Field(status, key);
    if (!text || text->size() < 4 || text->compare(text->size() - 3, 3, " kB") != 0) {
      return std::nullopt;
    }
    const auto value = ParseNumber(text->substr(0, text->size() - 3));
    if (!value || *value > UINT64_MAX / 4096) return std::nullopt;
    sum += *value * 1024;
  }
  return sum;
}

std::string ShmFileSystem(const std::string& mountinfo) {
  // 36 35 98:0 /root /dev/shm rw,noatime master:1 - tmpfs tmpfs rw: mount point is
  // field 5, the type follows the dash. Later lines cover earlier ones.
  std::string type;
  size_t longest = 0, begin = 0;
  while (begin < mountinfo.size()) {
    const size_t end = std::min(mountinfo.find('\n', begin), mountinfo.size());
    const std::string line = mountinfo.substr(begin, end - begin);
    begin = end + 1;
    size_t at = 0;
    for (int field = 0; field < 4 && at != std::string::npos; ++field) {
      at = line.find(' ', at);
      if (at != std::string::npos) ++at;
    }
    const size_t dash = line.find(" - ");
    if (at == std::string::npos || dash == std::string::npos || dash < at) continue;
    const std::string point = line.substr(at, line.find(' ', at) - at);
    if (point != "/dev/shm" && point != "/dev" && point != "/") continue;
    if (point.size() < longest) continue;
    longest = point.size();
    type = line.substr(dash + 3, line.find(' ', dash + 3) - dash - 3);
  }
  return type;
}

std::optional<ShmSpace> ReadShmSpace(const std::string& proc_root, uint32_t pid) {
  const std::string base = proc_root + "/" + std::to_string(pid);
  const auto mountinfo = ReadSmallFile(base + "/mountinfo", 1u << 20);
  if (!mountinfo || ShmFileSystem(*mountinfo) != "tmpfs") return std::nullopt;
  const int root = open((base + "/root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return std::nullopt;
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const int fd = static_cast<int>(syscall(SYS_openat2, root, "dev/shm", &how, sizeof how));
  close(root);
  if (fd < 0) return std::nullopt;
  struct statfs info {};
  const bool read = fstatfs(fd, &info) == 0;
  close(fd);
  if (!read) return std::nullopt;
  ShmSpace space;
  space.bytes = static_cast<uint64_t>(info.f_blocks) * static_cast<uint64_t>(info.f_bsize);
  space.free_bytes = static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_bsize);
  return space;
}

std::optional<uint64_t> KeyedNumber(const std::string& text, const std::string& key) {
  const auto rest = AfterKey(text, key + " ");
  return rest ? ParseNumber(*rest) : std::nullopt;
}

std::optional<uint64_t> ParsePressureTotal(const std::string& text) {
  const auto some = AfterKey(text, "some ");
  const size_t at = some ? some->find("total=") : std::string_view::npos;
  if (at == std::string_view::npos) return std::nullopt;
  const auto microseconds = ParseNumber(some->substr(at + 6));
  if (!microseconds || *microseconds > UINT64_MAX / 1000) return std::nullopt;
  return *microseconds * 1000;
}

MemoryPressure ReadMemoryPressure(const std::string& cgroup_text,
                                  const std::string& cgroup_root) {
  MemoryPressure out;
  const auto set = [](std::optional<uint64_t>& value, std::optional<uint64_t> read) {
    if (!value) value = read;
  };
  for (const std::string& folder : CgroupFolders(cgroup_text, "memory", cgroup_root)) {
    if (const auto events = ReadSmallFile(folder + "/memory.events", 4096)) {
      const auto high = KeyedNumber(*events, "high"), max = KeyedNumber(*events, "max");
      if (high && max && *high <= UINT64_MAX - *max) set(out.limit_hits, *high + *max);
      set(out.oom_kills, KeyedNumber(*events, "oom_kill"));
    }
    if (const auto pressure = ReadSmallFile(folder + "/memory.pressure", 4096)) {
      set(out.stall_ns, ParsePressureTotal(*pressure));
    }
    set(out.limit_hits, ReadNumber(folder + "/memory.failcnt"));
    if (const auto oom = ReadSmallFile(folder + "/memory.oom_control", 4096)) {
      set(out.oom_kills, KeyedNumber(*oom, "oom_kill"));
    }
  }
  return out;
}

}  // namespace mycroft
