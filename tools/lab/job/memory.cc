// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/memory.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace mycroft::lab {
namespace {

constexpr size_t kPage = 4096;

bool HasSwap() {
  std::ifstream in("/proc/swaps");
  std::string line;
  std::getline(in, line);  // names of the columns
  return static_cast<bool>(std::getline(in, line));
}

// The calling thread's effective CAP_IPC_LOCK; *had is what it was.
bool SetIpcLock(bool on, bool* had) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2]{};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  __user_cap_data_struct& word = data[CAP_TO_INDEX(CAP_IPC_LOCK)];
  *had = (word.effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
  if (on) {
    word.effective |= CAP_TO_MASK(CAP_IPC_LOCK);
  } else {
    word.effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  }
  return syscall(SYS_capset, &header, data) == 0;
}

absl::Status Errno(const char* what) { return absl::ErrnoToStatus(errno, what); }

}  // namespace

absl::StatusOr<std::unique_ptr<ControlGroup>> LimitMemory(pid_t pid, uint64_t bytes) {
  if (!HasSwap()) {
    return absl::FailedPreconditionError(
        "there is no swap: what the rank uses beyond the limit would have nowhere to go, and the "
        "kernel would kill it");
  }
  auto group = ControlGroup::Make({.controller = "memory",
                                   .members = {pid},
                                   .v1 = {{"memory.limit_in_bytes", std::to_string(bytes)}},
                                   .v2 = {{"memory.max", std::to_string(bytes)}}});
  if (group == nullptr) {
    return absl::PermissionDeniedError("no writable cgroup with a memory controller (run as root)");
  }
  return group;
}

void WorkingSet::Resize(size_t bytes) {
  if (bytes == bytes_) return;
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  if (bytes == 0) return;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return;
  data_ = static_cast<char*>(at);
  bytes_ = bytes;
  madvise(data_, bytes_, MADV_NOHUGEPAGE);  // page by page, on every machine
}

void WorkingSet::Use() {
  for (size_t at = 0; at + kPage <= bytes_; at += kPage) {
    // Of no two pages alike, and none of one value: a compressed swap keeps such for nothing.
    auto* words = reinterpret_cast<uint64_t*>(data_ + at);
    for (size_t i = 0; i < kPage / sizeof(uint64_t); i += 8) {
      seed_ = seed_ * 6364136223846793005ull + 1442695040888963407ull;
      words[i] = seed_;
    }
  }
}

absl::StatusOr<std::unique_ptr<LowMemlock>> LowMemlock::Begin(uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return Errno("getrlimit(RLIMIT_MEMLOCK)");
  auto low = std::unique_ptr<LowMemlock>(new LowMemlock);
  low->limit_before_ = limit.rlim_cur;
  if (!SetIpcLock(false, &low->had_capability_)) return Errno("giving up CAP_IPC_LOCK");
  limit.rlim_cur = std::min<rlim_t>(bytes, limit.rlim_max);
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return Errno("setrlimit(RLIMIT_MEMLOCK)");
  return low;
}

LowMemlock::~LowMemlock() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    limit.rlim_cur = limit_before_;
    setrlimit(RLIMIT_MEMLOCK, &limit);
  }
  bool had = false;
  if (had_capability_) SetIpcLock(true, &had);
}

}  // namespace mycroft::lab
