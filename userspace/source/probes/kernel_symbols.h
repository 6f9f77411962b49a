// SPDX-License-Identifier: Apache-2.0
//
// Names of kernel functions by address, from /proc/kallsyms. Some 200,000 of them take
// 100 ms to read and 10 MB to keep: read them when the first stack has to be shown, on
// another thread. Constant after it was made; thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_KERNEL_SYMBOLS_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_KERNEL_SYMBOLS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace mycroft {

class KernelSymbols {
 public:
  // Reads from a descriptor of /proc/kallsyms, from its start. The kernel shows addresses to
  // whoever had the right (CAP_SYSLOG, or kernel.kptr_restrict = 0) when the file was
  // opened, so open it before rights are dropped. Permission denied: all are hidden.
  static absl::StatusOr<KernelSymbols> Read(int fd);
  // Of the file's text; malformed lines are skipped.
  static absl::StatusOr<KernelSymbols> Parse(std::string_view text);

  // "futex_wait_queue", or "rxe_completer [rdma_rxe]" of a module; empty: no function is
  // known at or below the address.
  std::string Name(uint64_t address) const;
  size_t size() const { return symbols_.size(); }

 private:
  struct Symbol {
    uint64_t address = 0;
    uint32_t name = 0, length = 0;  // in names_
  };
  std::vector<Symbol> symbols_;  // by address
  std::string names_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_KERNEL_SYMBOLS_H_
