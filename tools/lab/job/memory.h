// SPDX-License-Identifier: Apache-2.0
//
// What takes memory from a rank: a limit on all that it uses, against which it reclaims,
// and a limit on what it may lock, for which a registration with an RDMA device fails.
#ifndef MYCROFT_TOOLS_LAB_JOB_MEMORY_H_
#define MYCROFT_TOOLS_LAB_JOB_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tools/lab/job/control_group.h"

namespace mycroft::lab {

// A memory cgroup of its own for a process: what it allocates from now on is limited to
// `bytes`. Anonymous memory beyond that goes to swap, and without swap the kernel would kill
// the process: FailedPrecondition. PermissionDenied: no memory cgroup can be written.
absl::StatusOr<std::unique_ptr<ControlGroup>> LimitMemory(pid_t pid, uint64_t bytes);

// Anonymous memory that is used from end to end again and again. One thread.
class WorkingSet {
 public:
  WorkingSet() = default;
  ~WorkingSet() { Resize(0); }
  WorkingSet(const WorkingSet&) = delete;
  WorkingSet& operator=(const WorkingSet&) = delete;

  void Resize(size_t bytes);  // to another size: other contents; what cannot be mapped is 0 bytes
  void Use();                 // writes to every page

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t seed_ = 1;
};

// While it lives, the calling thread may lock only so many bytes: the process's soft
// RLIMIT_MEMLOCK is lowered, and the thread does without CAP_IPC_LOCK. One thread.
class LowMemlock {
 public:
  static absl::StatusOr<std::unique_ptr<LowMemlock>> Begin(uint64_t bytes);
  ~LowMemlock();
  LowMemlock(const LowMemlock&) = delete;
  LowMemlock& operator=(const LowMemlock&) = delete;

 private:
  LowMemlock() = default;
  uint64_t limit_before_ = 0;
  bool had_capability_ = false;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_MEMORY_H_
