// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/map_access.h"

#if MYCROFT_HAVE_BPF
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <unistd.h>

#include <algorithm>
#endif

namespace mycroft {

#if MYCROFT_HAVE_BPF

namespace map_access {

bool Lookup(int fd, const void* key, void* value) {
  return bpf_map_lookup_elem(fd, key, value) == 0;
}
bool Update(int fd, const void* key, const void* value) {
  return bpf_map_update_elem(fd, key, value, BPF_ANY) == 0;
}
bool Delete(int fd, const void* key) { return bpf_map_delete_elem(fd, key) == 0; }
bool NextKey(int fd, const void* key, void* next) {
  return bpf_map_get_next_key(fd, key, next) == 0;
}
size_t PossibleCpus() {
  static const int cpus = libbpf_num_possible_cpus();
  return static_cast<size_t>(std::max(cpus, 1));
}

}  // namespace map_access

std::vector<std::byte> RunTaskIterator(int program_fd, uint32_t tid, size_t max_bytes) {
  std::vector<std::byte> out;
  if (program_fd < 0 || tid == 0) return out;
  // Since 6.1; older kernels refuse the parameter, and a walk over all tasks is too much.
  bpf_iter_link_info info = {};
  info.task.tid = tid;
  LIBBPF_OPTS(bpf_link_create_opts, options);
  options.iter_info = &info;
  options.iter_info_len = sizeof(info);
  const int link = bpf_link_create(program_fd, 0, BPF_TRACE_ITER, &options);
  if (link < 0) return out;
  const int iterator = bpf_iter_create(link);
  if (iterator >= 0) {
    out.resize(max_bytes);
    size_t used = 0;
    while (used < max_bytes) {
      const ssize_t n = read(iterator, out.data() + used, max_bytes - used);
      if (n <= 0) break;
      used += static_cast<size_t>(n);
    }
    out.resize(used);
    close(iterator);
  }
  close(link);
  return out;
}

#else

namespace map_access {
bool Lookup(int, const void*, void*) { return false; }
bool Update(int, const void*, const void*) { return false; }
bool Delete(int, const void*) { return false; }
bool NextKey(int, const void*, void*) { return false; }
size_t PossibleCpus() { return 1; }
}  // namespace map_access

std::vector<std::byte> RunTaskIterator(int, uint32_t, size_t) { return {}; }

#endif

}  // namespace mycroft
