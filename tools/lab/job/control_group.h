// SPDX-License-Identifier: Apache-2.0
//
// A control group below that of a process or thread, with limits of one controller, where
// cgroup v1 or v2 can be written: v1 first, as a controller that v1 has is not v2's. Needs
// root or a delegated group. Single-threaded.
#ifndef MYCROFT_TOOLS_LAB_JOB_CONTROL_GROUP_H_
#define MYCROFT_TOOLS_LAB_JOB_CONTROL_GROUP_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mycroft::lab {

class ControlGroup {
 public:
  using Settings = std::vector<std::pair<std::string, std::string>>;  // file, text
  struct Plan {
    std::string controller;       // "cpu", "memory"
    std::vector<pid_t> members;   // of one group
    bool single_threads = false;  // members are threads; their processes stay where they are
    Settings v1, v2;
  };

  // Null: neither version can be written here; then nothing is changed.
  static std::unique_ptr<ControlGroup> Make(const Plan& plan);
  // Members go back to where they were and the group is removed.
  ~ControlGroup();
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  int version() const { return version_; }  // 1 or 2

 private:
  ControlGroup() = default;
  bool Fill(const Plan& plan);

  int version_ = 0;
  std::vector<pid_t> members_;
  std::string controller_;
  std::string folder_;             // empty: not made
  std::string home_;               // folder of the group the members came from
  std::string members_file_;       // by which a member comes in
  bool controller_added_ = false;  // v2: the controller was off in home_
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_CONTROL_GROUP_H_
