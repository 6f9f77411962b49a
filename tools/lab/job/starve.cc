// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/starve.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace mycroft::lab {
namespace {

constexpr long kPeriodUs = 100000;

long QuotaUs(double percent) {
  // The kernel takes no quota below 1 ms.
  return std::max(1000L, static_cast<long>(static_cast<double>(kPeriodUs) * percent / 100));
}

}  // namespace

bool Starver::Quota(double percent) {
  const std::string quota = std::to_string(QuotaUs(percent));
  const std::string period = std::to_string(kPeriodUs);
  group_ = ControlGroup::Make({.controller = "cpu",
                               .members = tids_,
                               .single_threads = true,
                               .v1 = {{"cpu.cfs_period_us", period}, {"cpu.cfs_quota_us", quota}},
                               .v2 = {{"cpu.max", quota + " " + period}}});
  if (group_ == nullptr) return false;
  method_ = "CPU quota by cgroup v" + std::to_string(group_->version());
  return true;
}

bool Starver::Hog() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int cpu = CPU_SETSIZE - 1;
  while (cpu >= 0 && !CPU_ISSET(cpu, &allowed)) --cpu;
  if (cpu < 0) return false;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  pinned_ = true;
  for (pid_t tid : tids_) {
    sched_param param{};
    if (sched_setaffinity(tid, sizeof(one), &one) != 0 ||
        sched_setscheduler(tid, SCHED_IDLE, &param) != 0) {
      return false;
    }
  }
  for (int i = 0; i < 3; ++i) {
    hogs_.emplace_back([this, one] {
      pthread_setname_np(pthread_self(), "lab-hog");
      sched_setaffinity(0, sizeof(one), &one);
      setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), -10);
      volatile uint64_t spin = 0;
      while (!stop_.load(std::memory_order_relaxed)) spin = spin + 1;
    });
  }
  method_ = "three busy threads on CPU " + std::to_string(cpu);
  return true;
}

absl::StatusOr<std::unique_ptr<Starver>> Starver::Begin(const std::vector<pid_t>& tids,
                                                        double percent, StarveMethod how) {
  if (tids.empty()) return absl::FailedPreconditionError("the rank has no progress thread");
  auto starver = std::unique_ptr<Starver>(new Starver);
  starver->tids_ = tids;
  const bool quota = how != StarveMethod::kHog;
  const bool hog = how != StarveMethod::kQuota;
  if (quota && starver->Quota(percent)) return starver;
  if (hog && starver->Hog()) return starver;
  return absl::PermissionDeniedError(
      "cannot take CPU from the progress threads: no writable cgroup with a cpu controller, and "
      "their priority cannot be changed (run as root)");
}

void Starver::End() {
  group_.reset();
  if (!hogs_.empty()) {
    stop_.store(true);
    for (std::thread& hog : hogs_) hog.join();
    hogs_.clear();
  }
  if (pinned_) {
    pinned_ = false;
    cpu_set_t all;
    CPU_ZERO(&all);
    sched_getaffinity(0, sizeof(all), &all);
    for (pid_t tid : tids_) {
      sched_param param{};
      sched_setscheduler(tid, SCHED_OTHER, &param);
      sched_setaffinity(tid, sizeof(all), &all);
    }
  }
}

Starver::~Starver() { End(); }

}  // namespace mycroft::lab
