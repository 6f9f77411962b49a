// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/starve.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace mycroft::lab {
namespace {

bool WriteFile(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return ok;
}

// Mount point of a cgroup hierarchy: v1 with controller "cpu", or v2.
std::string MountPoint(bool v2) {
  std::ifstream mounts("/proc/self/mounts");
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream in(line);
    std::string device, path, type, options;
    in >> device >> path >> type >> options;
    if (v2 && type == "cgroup2") return path;
    if (!v2 && type == "cgroup" && ("," + options + ",").find(",cpu,") != std::string::npos) {
      return path;
    }
  }
  return "";
}

// Folder of a thread in the hierarchy: third field of its line in /proc/TID/cgroup.
std::string GroupOf(pid_t tid, bool v2) {
  std::ifstream in("/proc/" + std::to_string(tid) + "/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (v2 ? controllers == ",," : controllers.find(",cpu,") != std::string::npos) {
      return line.substr(second + 1);
    }
  }
  return "";
}

constexpr long kPeriodUs = 100000;

long QuotaUs(double percent) {
  // The kernel takes no quota below 1 ms.
  return std::max(1000L, static_cast<long>(static_cast<double>(kPeriodUs) * percent / 100));
}

}  // namespace

bool Starver::MakeGroup() {
  // One that a killed launcher left behind is as good.
  if (mkdir(group_.c_str(), 0755) == 0 || errno == EEXIST) return true;
  group_.clear();
  return false;
}

bool Starver::TryCgroupV1(double percent) {
  const std::string mount = MountPoint(false);
  if (mount.empty()) return false;
  home_ = mount + GroupOf(tids_.front(), false);
  group_ =
      home_ + (home_.back() == '/' ? "" : "/") + "mycroft-lab-" + std::to_string(tids_.front());
  tasks_file_ = "tasks";
  if (!MakeGroup()) return false;
  bool ok = WriteFile(group_ + "/cpu.cfs_period_us", std::to_string(kPeriodUs)) &&
            WriteFile(group_ + "/cpu.cfs_quota_us", std::to_string(QuotaUs(percent)));
  for (pid_t tid : tids_) ok = ok && WriteFile(group_ + "/tasks", std::to_string(tid));
  if (!ok) {
    End();
    return false;
  }
  method_ = "CPU quota by cgroup v1";
  return true;
}

bool Starver::TryCgroupV2(double percent) {
  const std::string mount = MountPoint(true);
  if (mount.empty()) return false;
  home_ = mount + GroupOf(tids_.front(), true);
  group_ =
      home_ + (home_.back() == '/' ? "" : "/") + "mycroft-lab-" + std::to_string(tids_.front());
  tasks_file_ = "cgroup.threads";
  if (!MakeGroup()) return false;
  // Single threads move only between threaded groups of one domain, and the cpu
  // controller must be on in the parent.
  std::ifstream on(home_ + "/cgroup.subtree_control");
  std::string word;
  bool has_cpu = false;
  while (on >> word) has_cpu = has_cpu || word == "cpu";
  if (!has_cpu) controller_added_ = WriteFile(home_ + "/cgroup.subtree_control", "+cpu");
  bool ok = WriteFile(group_ + "/cgroup.type", "threaded") &&
            WriteFile(group_ + "/cpu.max",
                      std::to_string(QuotaUs(percent)) + " " + std::to_string(kPeriodUs));
  for (pid_t tid : tids_) ok = ok && WriteFile(group_ + "/cgroup.threads", std::to_string(tid));
  if (!ok) {
    End();
    return false;
  }
  method_ = "CPU quota by cgroup v2";
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
  if (quota && (starver->TryCgroupV1(percent) || starver->TryCgroupV2(percent))) return starver;
  if (hog && starver->Hog()) return starver;
  return absl::PermissionDeniedError(
      "cannot take CPU from the progress threads: no writable cgroup with a cpu controller, and "
      "their priority cannot be changed (run as root)");
}

void Starver::End() {
  if (!group_.empty()) {
    for (pid_t tid : tids_) WriteFile(home_ + "/" + tasks_file_, std::to_string(tid));
    // A thread that has just died may still be counted for a moment.
    for (int i = 0; i < 50 && rmdir(group_.c_str()) != 0 && errno == EBUSY; ++i) usleep(10000);
    if (controller_added_) WriteFile(home_ + "/cgroup.subtree_control", "-cpu");
    controller_added_ = false;
    group_.clear();
  }
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
