// SPDX-License-Identifier: Apache-2.0
//
// Finds the static functions of an RDMA provider library (post_send, poll_cq, ...) in a
// stripped file, with no process and no device.
//
// A provider has a constant `struct verbs_context_ops` in .data.rel.ro:
//
//   slot      0           1        ...  poll_cq  post_recv  post_send  post_srq_ops ...
//   file      reloc       (none)        reloc    reloc      reloc
//   means     own code    NULL          own code ...        or an imported ibv_cmd_X
//
// Its order of members is alphabetical and changes between releases of rdma-core
// (libibverbs/driver.h, v22 to v65). Every known order is laid over every place where a
// table can begin (gcc aligns large constants to 32 bytes). A place counts when all
// members that a provider must have are there, all pointers are to the start of a
// function of this file (.eh_frame_hdr) or imported, and every imported ibv_cmd_X stands
// in slot X. Of these the one with the most such imports, with nothing in the padding behind
// it, and with the most slots filled wins; if two that differ in the
// functions are as good, none does: fails closed.
//
// Not found this way: providers that fill their table at run time (hns, cxgb4).
// Pure function, thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_OPS_FINDER_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_OPS_FINDER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "userspace/source/probes/elf_image.h"

namespace mycroft {

// Addresses in the file; 0: the provider has none (only post_srq_recv may be 0).
struct ProviderOps {
  uint64_t table = 0;
  int since_version = 0;  // first release of rdma-core with this order of members
  int filled = 0;         // slots that are not NULL
  int anchors = 0;        // imported ibv_cmd_X that stand in slot X
  int trailing = 0;       // pointers between its end and the next multiple of 32 bytes
  uint64_t post_send = 0;
  uint64_t post_recv = 0;
  uint64_t post_srq_recv = 0;
  uint64_t poll_cq = 0;
  uint64_t req_notify_cq = 0;
};

// Not found: no table, or more than one that differ; the message says which.
absl::StatusOr<ProviderOps> FindProviderOps(const ElfImage& image);

// Number of members, and index of poll_cq, in the order of that release; for tests.
struct OpsLayoutShape {
  int members = 0;
  int poll_cq = 0;
};
OpsLayoutShape OpsLayoutOf(int rdma_core_version);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_OPS_FINDER_H_
