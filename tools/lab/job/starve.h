// SPDX-License-Identifier: Apache-2.0
//
// Takes the CPU away from a few threads of another process, for real: by a quota in
// a cgroup of their own where a cpu controller can be written (v1 by thread, v2 with
// threaded groups), else by pinning them to one CPU at the lowest priority beside
// threads that burn it. End() undoes everything. Launcher's thread only; needs root or
// the owner of the threads.
#ifndef MYCROFT_TOOLS_LAB_JOB_STARVE_H_
#define MYCROFT_TOOLS_LAB_JOB_STARVE_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/lab/job/control_group.h"

namespace mycroft::lab {

// kAuto: the first that works, in this order.
enum class StarveMethod { kAuto, kQuota, kHog };

class Starver {
 public:
  // `percent` of one CPU is left to all threads together.
  static absl::StatusOr<std::unique_ptr<Starver>> Begin(const std::vector<pid_t>& tids,
                                                        double percent,
                                                        StarveMethod how = StarveMethod::kAuto);
  ~Starver();  // End()
  Starver(const Starver&) = delete;
  Starver& operator=(const Starver&) = delete;

  void End();
  const std::string& method() const { return method_; }  // for people

 private:
  Starver() = default;
  bool Quota(double percent);
  bool Hog();

  std::vector<pid_t> tids_;
  std::string method_;
  std::unique_ptr<ControlGroup> group_;
  bool pinned_ = false;
  std::vector<std::thread> hogs_;
  std::atomic<bool> stop_{false};
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_STARVE_H_
