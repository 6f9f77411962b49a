// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/capabilities.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace mycroft {

namespace {

// In the order of their numbers; newer ones are called "cap_N".
constexpr const char* kNames[] = {"chown",
                                  "dac_override",
                                  "dac_read_search",
                                  "fowner",
                                  "fsetid",
                                  "kill",
                                  "setgid",
                                  "setuid",
                                  "setpcap",
                                  "linux_immutable",
                                  "net_bind_service",
                                  "net_broadcast",
                                  "net_admin",
                                  "net_raw",
                                  "ipc_lock",
                                  "ipc_owner",
                                  "sys_module",
                                  "sys_rawio",
                                  "sys_chroot",
                                  "sys_ptrace",
                                  "sys_pacct",
                                  "sys_admin",
                                  "sys_boot",
                                  "sys_nice",
                                  "sys_resource",
                                  "sys_time",
                                  "sys_tty_config",
                                  "mknod",
                                  "lease",
                                  "audit_write",
                                  "audit_control",
                                  "setfcap",
                                  "mac_override",
                                  "mac_admin",
                                  "syslog",
                                  "wake_alarm",
                                  "block_suspend",
                                  "audit_read",
                                  "perfmon",
                                  "bpf",
                                  "checkpoint_restore"};

using Data = std::array<__user_cap_data_struct, 2>;

// The system calls themselves: a 64-bit set in two halves (linux/capability.h, version 3).
bool Get(Data* data) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  return syscall(SYS_capget, &header, data->data()) == 0;
}

bool Set(const Data& data) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  return syscall(SYS_capset, &header, data.data()) == 0;
}

absl::Status Failed(const char* what) {
  return absl::InternalError(
      absl::StrCat("dropping capabilities: ", what, ": ", std::strerror(errno)));
}

}  // namespace

std::vector<int> CapabilitiesWhileRunning(bool attaches_by_perf_event) {
  std::vector<int> keep = {CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH};
  if (attaches_by_perf_event) keep.push_back(CAP_SYS_ADMIN);
  return keep;
}

absl::Status DropCapabilities(const std::vector<int>& keep) {
  uint64_t mask = 0;
  for (int capability : keep)
    if (capability >= 0 && capability < 64) mask |= uint64_t{1} << capability;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Failed("no_new_privs");
  // EINVAL ends the list: the kernel knows no more.
  for (int capability = 0; capability < 64; ++capability) {
    if ((mask >> capability) & 1) continue;
    const int held = prctl(PR_CAPBSET_READ, capability, 0, 0, 0);
    if (held < 0) break;
    // Without CAP_SETPCAP the bounding set stays; with no_new_privs it gives nothing.
    if (held == 1 && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EPERM)
      return Failed("bounding set");
  }
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);  // not there before 4.3
  Data data;
  if (!Get(&data)) return Failed("capget");
  for (size_t i = 0; i < data.size(); ++i) {
    const auto half = static_cast<uint32_t>(mask >> (32 * i));
    data[i].permitted &= half;
    data[i].effective &= half;
    data[i].inheritable = 0;
  }
  if (!Set(data)) return Failed("capset");
  return absl::OkStatus();
}

std::vector<std::string> EffectiveCapabilities() {
  std::vector<std::string> names;
  Data data;
  if (!Get(&data)) return names;
  for (size_t i = 0; i < 64; ++i) {
    if (((data[i / 32].effective >> (i % 32)) & 1) == 0) continue;
    names.push_back(i < std::size(kNames) ? absl::StrCat("cap_", kNames[i])
                                          : absl::StrCat("cap_", i));
  }
  return names;
}

}  // namespace mycroft
