// SPDX-License-Identifier: Apache-2.0
//
// What /proc says of processes and threads. Everything here may vanish between
// two reads: a missing file is nullopt, never an error. `root` is "/proc" or a
// fixture tree. Free functions, thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_PROC_H_
#define MYCROFT_USERSPACE_SOURCE_PROC_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mycroft {

// A name from outside, safe to print: at most 63 bytes, each that is not printable ASCII
// becomes '?'. The second form takes `size` bytes at most, up to a zero.
std::string PrintableName(const std::string& text);
std::string PrintableName(const char* bytes, size_t size);

// At most `max_bytes` of a file; nullopt when it cannot be read.
std::optional<std::string> ReadSmallFile(const std::string& path, size_t max_bytes = 65536);

// A file of /proc that is read again and again. Held open after the first reading, up to
// half of the descriptors that this program may have, which saves the way to it; after
// that opened for each reading. A file of a thread means this thread, and never a later
// one with the same number, as long as it is held. One thread at a time.
class KeptFile {
 public:
  explicit KeptFile(std::string path) : path_(std::move(path)) {}
  ~KeptFile();
  KeptFile(const KeptFile&) = delete;
  KeptFile& operator=(const KeptFile&) = delete;
  // From its start, at most `max_bytes`; nullopt when it cannot be read.
  std::optional<std::string> Read(size_t max_bytes);

 private:
  std::string path_;
  int fd_ = -1;
};

// All numeric entries of the folder, sorted.
std::vector<uint32_t> ListNumericEntries(const std::string& folder);

struct ProcStat {
  std::string name;  // between the parentheses; may hold any byte
  char state = '?';
  uint32_t parent = 0;
  uint64_t major_faults = 0;
  uint64_t start_time = 0;  // clock ticks since boot
};
// Parses /proc/PID/stat (or a task's); nullopt when malformed.
std::optional<ProcStat> ParseProcStat(std::string_view text);
std::optional<ProcStat> ReadProcStat(const std::string& root, uint32_t pid);
// Whether a process or thread is known not to exist, by its folder in /proc. Not everything
// that cannot be read has ended: descriptors or memory may be lacking, and this needs neither.
bool IsGone(const std::string& folder);

// /proc/PID/stat held open, to be read again and again: the descriptor means this process
// and never a later one with the same number.
class ProcStatFile {
 public:
  ProcStatFile(const std::string& root, uint32_t pid);
  ~ProcStatFile();
  ProcStatFile(const ProcStatFile&) = delete;
  ProcStatFile& operator=(const ProcStatFile&) = delete;
  // nullopt: the process is gone, or its line cannot be read.
  std::optional<ProcStat> Read() const;

 private:
  friend class EndedProcesses;
  int fd_;
  int pidfd_ = -1;  // readable once the process has ended; -1: another root than /proc
};

// Which of many processes have ended, by one system call that costs the same for each number
// of them. One thread at a time.
class EndedProcesses {
 public:
  EndedProcesses();
  ~EndedProcesses();
  EndedProcesses(const EndedProcesses&) = delete;
  EndedProcesses& operator=(const EndedProcesses&) = delete;
  // Until `file` is destroyed. False: the kernel does not tell its end, only Read() can.
  bool Watch(const ProcStatFile& file);
  // Those watched that have ended, each time until they are destroyed.
  std::set<const ProcStatFile*> Ended();

 private:
  int epoll_;
};

// The pid in the innermost namespace of that process or task (NSpid of status).
std::optional<uint32_t> ReadInnerPid(const std::string& status_path);

struct Schedstat {
  uint64_t run_ns = 0;
  uint64_t runq_wait_ns = 0;
  uint64_t slices = 0;  // times it was given a CPU; 0: the kernel does not say
};
std::optional<Schedstat> ParseSchedstat(const std::string& text);

// Folders where a controller's files ("cpu", "memory") may be for this cgroup file's
// text: cgroup v2 ("0::/a/b") under `cgroup_root`, or the v1 controller. Empty: none.
std::vector<std::string> CgroupFolders(const std::string& cgroup_text,
                                       const std::string& controller,
                                       const std::string& cgroup_root = "/sys/fs/cgroup");
std::vector<std::string> CpuCgroupFolders(const std::string& cgroup_text,
                                          const std::string& cgroup_root = "/sys/fs/cgroup");
struct CpuStat {
  uint64_t throttled_periods = 0;
  uint64_t throttled_ns = 0;
};
std::optional<CpuStat> ParseCpuStat(const std::string& text);

// 64 hex digits of a container id in a cgroup path, or empty.
std::string ContainerId(const std::string& cgroup_text);

// Paths /proc/PID/fd/N of descriptors that are memfds of this name.
std::vector<std::string> FindMemfds(const std::string& root, uint32_t pid,
                                    const std::string& memfd_name, bool* denied);

// True when a mapped file's name contains `needle` (for example "libnccl.so").
bool MapsContain(const std::string& root, uint32_t pid, const std::string& needle);

// One established TCP socket of a process, queues in bytes.
struct TcpSocket {
  std::string local;  // address:port as the kernel prints it (hex)
  std::string remote;
  uint64_t tx_queue = 0;  // written by the process, not yet acknowledged
  uint64_t rx_queue = 0;  // received, not yet read by the process
  uint32_t retransmits = 0;
};
std::vector<TcpSocket> ReadTcpSockets(const std::string& root, uint32_t pid);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROC_H_
