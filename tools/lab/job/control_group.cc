// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/control_group.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace mycroft::lab {
namespace {

bool WriteControlFile(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return ok;
}

bool Lists(const std::string& comma_list, const std::string& word) {
  return ("," + comma_list + ",").find("," + word + ",") != std::string::npos;
}

bool HasWord(const std::string& path, const std::string& word) {
  std::ifstream in(path);
  std::string next;
  while (in >> next) {
    if (next == word) return true;
  }
  return false;
}

// Mount point of the hierarchy: v1 with that controller, or v2.
std::string MountPoint(int version, const std::string& controller) {
  std::ifstream mounts("/proc/self/mounts");
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream in(line);
    std::string device, path, type, options;
    in >> device >> path >> type >> options;
    if (version == 2 ? type == "cgroup2" : type == "cgroup" && Lists(options, controller)) {
      return path;
    }
  }
  return "";
}

// Group of a process or thread in the hierarchy: third field of its line in
// /proc/ID/cgroup.
std::string GroupOf(pid_t id, int version, const std::string& controller) {
  std::ifstream in("/proc/" + std::to_string(id) + "/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version == 2 ? controllers.empty() : Lists(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return "";
}

}  // namespace

std::unique_ptr<ControlGroup> ControlGroup::Make(const Plan& plan) {
  if (plan.members.empty()) return nullptr;
  for (int version : {1, 2}) {
    const std::string mount = MountPoint(version, plan.controller);
    if (mount.empty()) continue;
    auto group = std::unique_ptr<ControlGroup>(new ControlGroup);
    group->version_ = version;
    group->controller_ = plan.controller;
    group->home_ = mount + GroupOf(plan.members.front(), version, plan.controller);
    if (group->home_.back() == '/') group->home_.pop_back();
    if (group->Fill(plan)) return group;
  }
  return nullptr;
}

bool ControlGroup::Fill(const Plan& plan) {
  members_file_ = !plan.single_threads ? "cgroup.procs"
                  : version_ == 1      ? "tasks"
                                       : "cgroup.threads";
  folder_ = home_ + "/mycroft-lab-" + controller_ + "-" + std::to_string(plan.members.front());
  // One that a killed launcher left behind is as good.
  if (mkdir(folder_.c_str(), 0755) != 0 && errno != EEXIST) {
    folder_.clear();
    return false;
  }
  if (version_ == 2) {
    if (!HasWord(home_ + "/cgroup.controllers", controller_)) return false;
    if (!HasWord(home_ + "/cgroup.subtree_control", controller_)) {
      controller_added_ = WriteControlFile(home_ + "/cgroup.subtree_control", "+" + controller_);
    }
    // Single threads move only between threaded groups of one domain.
    if (plan.single_threads && !WriteControlFile(folder_ + "/cgroup.type", "threaded")) {
      return false;
    }
  }
  for (const auto& [file, text] : version_ == 1 ? plan.v1 : plan.v2) {
    if (!WriteControlFile(folder_ + "/" + file, text)) return false;
  }
  for (pid_t member : plan.members) {
    members_.push_back(member);
    if (!WriteControlFile(folder_ + "/" + members_file_, std::to_string(member))) return false;
  }
  return true;
}

ControlGroup::~ControlGroup() {
  if (folder_.empty()) return;
  for (pid_t member : members_) {
    WriteControlFile(home_ + "/" + members_file_, std::to_string(member));
  }
  // A thread that has just died may still be counted for a moment.
  for (int i = 0; i < 50 && rmdir(folder_.c_str()) != 0 && errno == EBUSY; ++i) usleep(10000);
  if (controller_added_) WriteControlFile(home_ + "/cgroup.subtree_control", "-" + controller_);
}

}  // namespace mycroft::lab
