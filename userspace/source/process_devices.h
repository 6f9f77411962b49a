// SPDX-License-Identifier: Apache-2.0
//
// Which devices a process has open, and which limits it is under. The process is
// hostile: paths in its namespace are resolved within its root without following
// links, and every list is bounded. `proc_root` is "/proc" or a fixture tree. Free
// functions, thread-safe; what cannot be read is empty.
#ifndef MYCROFT_USERSPACE_SOURCE_PROCESS_DEVICES_H_
#define MYCROFT_USERSPACE_SOURCE_PROCESS_DEVICES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mycroft {

struct OpenDevices {
  std::vector<uint32_t> gpu_minors;   // N of /dev/nvidiaN, ascending
  std::vector<std::string> uverbs;    // "uverbs0", sorted
};
// From the links in /proc/PID/fd, at most 65,536 of them. nullopt: they cannot be read.
//
// CUDA may open the nodes of GPUs that the process does not compute on. When several
// are open, only those that it has mapped, too (/proc/PID/maps), are returned, if there
// are any.
std::optional<OpenDevices> ReadOpenDevices(const std::string& proc_root, uint32_t pid);

// Device minor to PCI address, from /proc/driver/nvidia/gpus/*/information of NVIDIA's
// kernel driver ("Bus Location", "Device Minor").
std::map<uint32_t, std::string> ReadNvidiaMinors(const std::string& proc_root);
struct NvidiaInformation {
  std::string address;
  uint32_t minor = 0;
};
std::optional<NvidiaInformation> ParseNvidiaInformation(const std::string& text);

// Soft limit of locked memory, bytes, from /proc/PID/limits; UINT64_MAX: unlimited.
std::optional<uint64_t> ParseMemlockLimit(const std::string& limits);
// VmLck + VmPin of /proc/PID/status, bytes. RDMA pins memory, mlock locks it; older
// kernels charge both to RLIMIT_MEMLOCK.
std::optional<uint64_t> ParseLockedBytes(const std::string& status);

struct ShmSpace {
  uint64_t bytes = 0, free_bytes = 0;
};
// /dev/shm as the process sees it. nullopt also when it is not a tmpfs there: asking a
// file system that somebody serves could wait for ever.
std::optional<ShmSpace> ReadShmSpace(const std::string& proc_root, uint32_t pid);
// Type of the file system that is mounted at /dev/shm, or at what is above it.
std::string ShmFileSystem(const std::string& mountinfo);

// What the memory cgroup of a process has counted, cumulative. v2: memory.events and
// memory.pressure; v1: memory.failcnt and memory.oom_control.
struct MemoryPressure {
  std::optional<uint64_t> limit_hits;  // allocations that had to reclaim first (high, max)
  std::optional<uint64_t> stall_ns;    // "some" of pressure stall information
  std::optional<uint64_t> oom_kills;
};
MemoryPressure ReadMemoryPressure(const std::string& cgroup_text, const std::string& cgroup_root);
// Value of a key in lines "KEY NUMBER".
std::optional<uint64_t> KeyedNumber(const std::string& text, const std::string& key);
// total= of the line "some ..." of a pressure file, nanoseconds.
std::optional<uint64_t> ParsePressureTotal(const std::string& text);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROCESS_DEVICES_H_
