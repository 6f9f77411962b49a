// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <set>
#include <sstream>

namespace mycroft {
namespace {

std::optional<uint64_t> ParseU64(std::string_view text, int base = 10) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// Views into `text`, the first `limit` words. By hand: this runs for every process on the
// host, and a stream is slow to make.
std::vector<std::string_view> Words(std::string_view text, size_t limit = SIZE_MAX) {
  std::vector<std::string_view> words;
  words.reserve(std::min<size_t>(limit, 64));  // more than /proc/PID/stat has
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  for (size_t at = text.find_first_not_of(kSpace);
       at != std::string_view::npos && words.size() < limit;) {
    const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpace, end);
  }
  return words;
}

}  // namespace

std::string PrintableName(const std::string& text) {
  std::string out = text.substr(0, std::min<size_t>(text.size(), 63));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

std::string PrintableName(const char* bytes, size_t size) {
  return PrintableName(std::string(bytes, strnlen(bytes, size)));
}

std::optional<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::string text;
  char buffer[4096];
  while (text.size() < max_bytes) {
    ssize_t n = read(fd, buffer, std::min(sizeof(buffer), max_bytes - text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      close(fd);
      return std::nullopt;
    }
    if (n == 0) break;
    text.append(buffer, n);
  }
  close(fd);
  return text;
}

namespace {

// Descriptors held by KeptFile, of the program.
std::atomic<size_t> g_kept{0};

bool MayKeepOneMore() {
  static const size_t most = [] {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur / 2, 16384));
  }();
  if (g_kept.fetch_add(1) < most) return true;
  g_kept.fetch_sub(1);
  return false;
}

}  // namespace

KeptFile::~KeptFile() {
  if (fd_ < 0) return;
  close(fd_);
  g_kept.fetch_sub(1);
}

std::optional<std::string> KeptFile::Read(size_t max_bytes) {
  if (fd_ < 0) {
    if (!MayKeepOneMore()) return ReadSmallFile(path_, max_bytes);
    fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) {
      g_kept.fetch_sub(1);
      return std::nullopt;
    }
  }
  std::string text;
  char buffer[4096];
  while (text.size() < max_bytes) {
    const size_t wanted = std::min(sizeof(buffer), max_bytes - text.size());
    const ssize_t n = pread(fd_, buffer, wanted, static_cast<off_t>(text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    text.append(buffer, static_cast<size_t>(n));
    // The kernel writes such a file whole, as far as there is room.
    if (static_cast<size_t>(n) < wanted) break;
  }
  return text;
}

std::vector<uint32_t> ListNumericEntries(const std::string& folder) {
  std::vector<uint32_t> numbers;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return numbers;
  while (dirent* entry = readdir(dir)) {
    if (auto value = ParseU64(entry->d_name); value && *value <= UINT32_MAX) {
      numbers.push_back(static_cast<uint32_t>(*value));
    }
  }
  closedir(dir);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::optional<ProcStat> ParseProcStat(std::string_view text) {
  // "pid (name) S ppid ...": the name may contain spaces and parentheses.
  size_t open_paren = text.find('(');
  size_t close_paren = text.rfind(')');
  if (open_paren == std::string_view::npos || close_paren == std::string_view::npos ||
      close_paren < open_paren) {
    return std::nullopt;
  }
  // fields[0] is field 3 of proc(5); start time is field 22.
  const std::vector<std::string_view> fields = Words(text.substr(close_paren + 1), 20);
  if (fields.size() < 20 || fields[0].size() != 1) return std::nullopt;
  auto parent = ParseU64(fields[1]);
  auto major = ParseU64(fields[9]);
  auto start = ParseU64(fields[19]);
  if (!parent || !major || !start) return std::nullopt;
  ProcStat stat;
  stat.name = std::string(text.substr(open_paren + 1, close_paren - open_paren - 1));
  stat.state = fields[0][0];
  stat.parent = static_cast<uint32_t>(*parent);
  stat.major_faults = *major;
  stat.start_time = *start;
  return stat;
}

static int OpenProcStat(const std::string& root, uint32_t pid) {
  return open((root + "/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
}

static std::optional<ProcStat> ReadProcStat(int fd) {
  char buffer[4096];
  ssize_t n = 0;
  do {
    n = pread(fd, buffer, sizeof(buffer), 0);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return std::nullopt;
  return ParseProcStat({buffer, static_cast<size_t>(n)});
}

// Once for each process of the host, again and again: without the pidfd of ProcStatFile.
std::optional<ProcStat> ReadProcStat(const std::string& root, uint32_t pid) {
  const int fd = OpenProcStat(root, pid);
  if (fd < 0) return std::nullopt;
  std::optional<ProcStat> stat = ReadProcStat(fd);
  close(fd);
  return stat;
}

bool IsGone(const std::string& folder) {
  return access(folder.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ESRCH);
}

// Whether the numbers in /proc are those of system calls: it may be the mount of another
// namespace.
static bool OwnPidNamespace() {
  char self[16] = {};
  const ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);
  return n > 0 && std::string_view(self, static_cast<size_t>(n)) == std::to_string(getpid());
}

ProcStatFile::ProcStatFile(const std::string& root, uint32_t pid) : fd_(OpenProcStat(root, pid)) {
  if (fd_ < 0 || root != "/proc" || !OwnPidNamespace()) return;
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));  // close-on-exec by itself
  // It must be the process of fd_, not one that took the number meanwhile.
  if (pidfd_ >= 0 && !Read()) {
    close(pidfd_);
    pidfd_ = -1;
  }
}

ProcStatFile::~ProcStatFile() {
  if (fd_ >= 0) close(fd_);
  if (pidfd_ >= 0) close(pidfd_);
}

EndedProcesses::EndedProcesses() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}
EndedProcesses::~EndedProcesses() {
  if (epoll_ >= 0) close(epoll_);
}

bool EndedProcesses::Watch(const ProcStatFile& file) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = const_cast<ProcStatFile*>(&file);
  return file.pidfd_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, file.pidfd_, &event) == 0;
}

std::set<const ProcStatFile*> EndedProcesses::Ended() {
  std::set<const ProcStatFile*> ended;
  // More than so many at once are told the next time.
  epoll_event events[64];
  const int n = epoll_wait(epoll_, events, 64, 0);
  for (int i = 0; i < n; ++i) ended.insert(static_cast<const ProcStatFile*>(events[i].data.ptr));
  return ended;
}

std::optional<ProcStat> ProcStatFile::Read() const { return ReadProcStat(fd_); }

std::optional<uint32_t> ReadInnerPid(const std::string& status_path) {
  auto text = ReadSmallFile(status_path, 8192);
  if (!text) return std::nullopt;
  size_t at = text->find("\nNSpid:");
  if (at == std::string::npos) return std::nullopt;
  size_t end = text->find('\n', at + 1);
  const std::vector<std::string_view> words =
      Words(std::string_view(*text).substr(at + 7, end - at - 7));
  if (words.empty()) return std::nullopt;
  auto value = ParseU64(words.back());
  if (!value) return std::nullopt;
  return static_cast<uint32_t>(*value);
}

std::optional<Schedstat> ParseSchedstat(const std::string& text) {
  const std::vector<std::string_view> words = Words(text);
  if (words.size() < 2) return std::nullopt;
  auto run = ParseU64(words[0]);
  auto wait = ParseU64(words[1]);
  if (!run || !wait) return std::nullopt;
  auto slices = words.size() > 2 ? ParseU64(words[2]) : std::nullopt;
  return Schedstat{*run, *wait, slices.value_or(0)};
}

std::vector<std::string> CpuCgroupFolders(const std::string& cgroup_text,
                                          const std::string& cgroup_root) {
  return CgroupFolders(cgroup_text, "cpu", cgroup_root);
}

std::vector<std::string> CgroupFolders(const std::string& cgroup_text,
                                       const std::string& controller,
                                       const std::string& cgroup_root) {
  std::vector<std::string> folders;
  const std::string wanted = "," + controller + ",";
  for (size_t at = 0; at < cgroup_text.size();) {
    const size_t end = std::min(cgroup_text.find('\n', at), cgroup_text.size());
    const std::string line = cgroup_text.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.find("..") != std::string::npos) continue;
    if (controllers.empty()) {
      folders.push_back(cgroup_root + path);
      folders.push_back(cgroup_root + "/unified" + path);
    } else if (("," + controllers + ",").find(wanted) != std::string::npos) {
      folders.push_back(cgroup_root + "/" + controller + path);
      folders.push_back(cgroup_root + "/" + controllers + path);
    }
  }
  return folders;
}

std::optional<CpuStat> ParseCpuStat(const std::string& text) {
  CpuStat stat;
  bool found = false;
  const std::vector<std::string_view> words = Words(text);
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    const std::string_view key = words[i];
    auto number = ParseU64(words[i + 1]);
    if (!number) return std::nullopt;
    if (key == "nr_throttled") {
      stat.throttled_periods = *number;
      found = true;
    } else if (key == "throttled_usec") {  // v2
      stat.throttled_ns = *number * 1000;
    } else if (key == "throttled_time") {  // v1
      stat.throttled_ns = *number;
    }
  }
  if (!found) return std::nullopt;
  return stat;
}

std::string ContainerId(const std::string& cgroup_text) {
  size_t run = 0;
  for (size_t i = 0; i <= cgroup_text.size(); ++i) {
    bool hex = i < cgroup_text.size() && std::isxdigit(static_cast<unsigned char>(cgroup_text[i]));
    if (hex) {
      ++run;
      continue;
    }
    if (run == 64) return cgroup_text.substr(i - 64, 64);
    run = 0;
  }
  return "";
}

std::vector<std::string> FindMemfds(const std::string& root, uint32_t pid,
                                    const std::string& memfd_name, bool* denied) {
  std::vector<std::string> found;
  std::string folder = root + "/" + std::to_string(pid) + "/fd";
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) {
    if (denied != nullptr && (errno == EACCES || errno == EPERM)) *denied = true;
    return found;
  }
  std::string wanted = "/memfd:" + memfd_name;
  while (dirent* entry = readdir(dir)) {
    char target[256];
    std::string path = folder + "/" + entry->d_name;
    ssize_t n = readlink(path.c_str(), target, sizeof(target));
    if (n <= 0) continue;
    std::string text(target, n);
    if (text == wanted || text == wanted + " (deleted)") found.push_back(path);
  }
  closedir(dir);
  std::sort(found.begin(), found.end());
  return found;
}

bool MapsContain(const std::string& root, uint32_t pid, const std::string& needle) {
  auto text = ReadSmallFile(root + "/" + std::to_string(pid) + "/maps", 8u << 20);
  return text && text->find(needle) != std::string::npos;
}

std::vector<TcpSocket> ReadTcpSockets(const std::string& root, uint32_t pid) {
  std::vector<TcpSocket> sockets;
  std::string base = root + "/" + std::to_string(pid);
  std::set<uint64_t> inodes;
  std::string folder = base + "/fd";
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return sockets;
  while (dirent* entry = readdir(dir)) {
    char target[64];
    ssize_t n = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof(target));
    if (n <= 9) continue;
    std::string text(target, n);
    if (text.rfind("socket:[", 0) == 0 && text.back() == ']') {
      if (auto inode = ParseU64(text.substr(8, text.size() - 9))) inodes.insert(*inode);
    }
  }
  closedir(dir);
  if (inodes.empty()) return sockets;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    auto text = ReadSmallFile(base + table, 4u << 20);
    if (!text) continue;
    std::istringstream in(*text);
    std::string line;
    std::getline(in, line);  // heading
    while (std::getline(in, line)) {
      // sl local remote st tx:rx tr:when retrnsmt uid timeout inode
      const std::vector<std::string_view> words = Words(line);
      if (words.size() < 10 || words[3] != "01") continue;
      auto inode = ParseU64(words[9]);
      if (!inode || inodes.count(*inode) == 0) continue;
      size_t colon = words[4].find(':');
      if (colon == std::string::npos) continue;
      auto tx = ParseU64(words[4].substr(0, colon), 16);
      auto rx = ParseU64(words[4].substr(colon + 1), 16);
      auto retransmits = ParseU64(words[6], 16);
      if (!tx || !rx || !retransmits) continue;
      sockets.push_back({std::string(words[1]), std::string(words[2]), *tx, *rx,
                         static_cast<uint32_t>(*retransmits)});
    }
  }
  return sockets;
}

}  // namespace mycroft
