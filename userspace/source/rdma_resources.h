// SPDX-License-Identifier: Apache-2.0
//
// Queue pairs as the kernel knows them, whoever made them and when: state, and the number
// of the other end. By netlink (RDMA_NLDEV, Linux 5.x and later), as `rdma resource show qp`.
//
// The kernel asks the device for each queue pair (a command of the firmware, some 10 us):
// not each second for thousands of them. Needs no probe. Thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_RDMA_RESOURCES_H_
#define MYCROFT_USERSPACE_SOURCE_RDMA_RESOURCES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mycroft {

struct RdmaQueuePair {
  std::string device;
  uint32_t port = 0;  // 0: not told
  uint32_t number = 0;
  uint32_t remote_number = 0;  // 0: not connected, or not told
  uint32_t state = 7;          // enum ibv_qp_state; 7: not told
  uint32_t pid = 0;            // 0: the kernel's own
  friend bool operator==(const RdmaQueuePair&, const RdmaQueuePair&) = default;
};

// All queue pairs of this host that the agent may see, at most 16,384. nullopt: the kernel
// has no such netlink family, or does not answer within a second.
std::optional<std::vector<RdmaQueuePair>> ReadRdmaQueuePairs();

// The queue pairs of one netlink message of the answer (its header included); what is
// malformed is left out.
void ParseRdmaQueuePairs(std::span<const std::byte> message, std::vector<RdmaQueuePair>* out);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_RDMA_RESOURCES_H_
