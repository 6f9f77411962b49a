// SPDX-License-Identifier: Apache-2.0
//
// Files that a process has mapped as code, and how to open the very one: through
// /proc/PID/root (its container's file system), checked by device and inode, because the
// file of that name may have been replaced since. Text from /proc is bounded; a process may
// vanish at any time, which is empty, never an error. Free functions, thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_MAPPED_FILE_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_MAPPED_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace mycroft {

// One line of /proc/PID/maps that is executable and backed by a file.
struct MappedCode {
  uint64_t begin = 0, end = 0;  // addresses in the process
  uint64_t offset = 0;          // in the file, of `begin`
  uint64_t device = 0;          // makedev(major, minor)
  uint64_t inode = 0;
  std::string path;  // as the process sees it, without " (deleted)"
  bool deleted = false;
  friend bool operator==(const MappedCode&, const MappedCode&) = default;
};

// At most 4 MiB of text and 16,384 lines are looked at; malformed lines are left out.
std::vector<MappedCode> ParseMappedCode(const std::string& maps_text);
// nullopt: the process is gone, or may not be looked at.
std::optional<std::vector<MappedCode>> ReadMappedCode(const std::string& proc, uint32_t pid);

struct OpenedPath {
  std::string path;       // through which this process can open the file
  bool replaced = false;  // another file has the name now; `path` leads to the old one
};
// Not found: the process is gone, or the file was replaced and the old one cannot be
// reached (needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN); the message says which.
absl::StatusOr<OpenedPath> PathOfMapped(const std::string& proc, uint32_t pid,
                                        const MappedCode& mapped);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_MAPPED_FILE_H_
