// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/mapped_file.h"

#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "userspace/source/proc.h"

namespace mycroft {

namespace {

constexpr size_t kMaxText = 4 << 20;
constexpr size_t kMaxLines = 16384;

// File systems on which /proc/PID/maps names another device than stat() does.
bool DevicesDiffer(const std::string& path) {
  constexpr long kOverlay = 0x794c7630, kBtrfs = 0x9123683e;  // linux/magic.h
  struct statfs s;
  return statfs(path.c_str(), &s) == 0 && (s.f_type == kOverlay || s.f_type == kBtrfs);
}

}  // namespace

std::vector<MappedCode> ParseMappedCode(const std::string& text) {
  std::vector<MappedCode> all;
  size_t at = 0;
  while (at < text.size() && at < kMaxText && all.size() < kMaxLines) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    // begin-end perms offset major:minor inode   path
    MappedCode m;
    char perms[5] = "";
    unsigned major = 0, minor = 0;
    int name = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n",
                    &m.begin, &m.end, perms, &m.offset, &major, &minor, &m.inode, &name) != 7 ||
        perms[2] != 'x' || m.inode == 0 || m.end <= m.begin || name <= 0 ||
        static_cast<size_t>(name) >= line.size() || line[name] != '/') {
      continue;
    }
    m.device = makedev(major, minor);
    m.path = line.substr(static_cast<size_t>(name));
    constexpr char kDeleted[] = " (deleted)";
    constexpr size_t kLength = sizeof(kDeleted) - 1;
    if (m.path.size() > kLength &&
        m.path.compare(m.path.size() - kLength, kLength, kDeleted) == 0) {
      m.path.resize(m.path.size() - kLength);
      m.deleted = true;
    }
    all.push_back(std::move(m));
  }
  return all;
}

std::optional<std::vector<MappedCode>> ReadMappedCode(const std::string& proc, uint32_t pid) {
  const std::optional<std::string> text =
      ReadSmallFile(absl::StrCat(proc, "/", pid, "/maps"), kMaxText);
  // A process that is exiting has an empty file.
  if (!text || text->empty()) return std::nullopt;
  return ParseMappedCode(*text);
}

absl::StatusOr<OpenedPath> PathOfMapped(const std::string& proc, uint32_t pid,
                                        const MappedCode& mapped) {
  const std::string in_root = absl::StrCat(proc, "/", pid, "/root", mapped.path);
  char range[64];
  std::snprintf(range, sizeof(range), "%" PRIx64 "-%" PRIx64, mapped.begin, mapped.end);
  // Leads to the mapped file itself, whatever its name is now.
  const std::string by_range = absl::StrCat(proc, "/", pid, "/map_files/", range);
  // In a container the path is that of its own file system; in a process that only called
  // chroot(), or of ours, it is that of our own.
  bool other_has_name = mapped.deleted;
  for (const std::string& path : {in_root, mapped.path}) {
    struct stat named;
    if (mapped.deleted || stat(path.c_str(), &named) != 0) continue;
    if (named.st_ino == mapped.inode && (named.st_dev == mapped.device || DevicesDiffer(path)))
      return OpenedPath{path, false};
    struct stat real;
    if (stat(by_range.c_str(), &real) == 0 && named.st_ino == real.st_ino &&
        named.st_dev == real.st_dev) {
      return OpenedPath{path, false};
    }
    if (path == in_root) other_has_name = true;
  }
  struct stat real;
  if (stat(by_range.c_str(), &real) == 0) return OpenedPath{by_range, other_has_name};
  if (access(absl::StrCat(proc, "/", pid, "/maps").c_str(), F_OK) != 0)
    return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
  return absl::NotFoundError(absl::StrCat(
      mapped.path, " was replaced on disk after process ", pid,
      " loaded it, and the old file cannot be reached: restart the job to see its functions"));
}

}  // namespace mycroft
