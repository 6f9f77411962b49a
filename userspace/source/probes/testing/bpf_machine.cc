// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/testing/bpf_machine.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "userspace/source/probes/bpf_objects.h"

#if MYCROFT_HAVE_BPF
#include <bpf/bpf.h>
#endif

namespace mycroft {

std::string WhyNoBpf() {
  if (!BuiltWithProbes()) return std::string("built without probes: ") + MissingForProbes();
#if MYCROFT_HAVE_BPF
  const int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "try", 4, 4, 1, nullptr);
  if (fd < 0) return std::string("bpf(): ") + std::strerror(errno);
  close(fd);
#endif
  return "";
}

BpfCensus TakeBpfCensus() {
  BpfCensus census;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    ++census.descriptors;
    if (target == "anon_inode:bpf-prog") ++census.programs;
    if (target == "anon_inode:bpf-map") ++census.maps;
    if (target == "anon_inode:bpf_link") ++census.links;
  }
  return census;
}

size_t ProgramsOfHost([[maybe_unused]] const std::string& name_prefix) {
  size_t count = 0;
#if MYCROFT_HAVE_BPF
  uint32_t id = 0;
  while (bpf_prog_get_next_id(id, &id) == 0) {
    const int fd = bpf_prog_get_fd_by_id(id);
    if (fd < 0) continue;
    bpf_prog_info info = {};
    uint32_t bytes = sizeof(info);
    if (bpf_obj_get_info_by_fd(fd, &info, &bytes) == 0 &&
        std::strncmp(info.name, name_prefix.c_str(), name_prefix.size()) == 0) {
      ++count;
    }
    close(fd);
  }
#endif
  return count;
}

BpfCensus WaitForBpfCensus(const BpfCensus& wanted) {
  BpfCensus census = TakeBpfCensus();
  for (int i = 0; i < 100 && !(census == wanted); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    census = TakeBpfCensus();
  }
  return census;
}

}  // namespace mycroft
