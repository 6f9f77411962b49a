// SPDX-License-Identifier: Apache-2.0
//
// Handles and contexts given to NCCL: opaque 64-bit values, never pointers.
// NCCL (and under PXN another process) may hand back any value at any time; a
// value is looked at with Unpack and then checked against a table by index and
// generation, so a stale or foreign one cannot reach memory.
//
//   63    60 59     52 51                                   0
//   [ kind ][  salt   ][ payload, by kind                    ]
//
// The kind is never 0, so a handle is never NULL; with its top bits set it is not
// a valid user address either. The salt differs between a process and its child
// after fork.
#ifndef MYCROFT_CUPTI_NCCL_HANDLE_H_
#define MYCROFT_CUPTI_NCCL_HANDLE_H_

#include <cstdint>

namespace mycroft::nccl {

enum class HandleKind : uint8_t {
  kNone = 0,
  kContext,           // generation 24 | line 16
  kUntrackedContext,  // the table of communicators was full
  kApi,               // id 48 | graph 1 | type 3: GroupApi, CollApi, P2pApi, legacy Group
  kOp,                // id of the operation, 52
  kUntrackedOp,       // an operation without a line in the ring
  kProxyOp,           // generation 20 | record 15
  kStep,              // generation 20 | record 15 | step 17
  kKernel,            // id of the operation 44 | channel 8
  kLooseProxyOp,      // no record: id of the operation 51 | direction 1
  kLooseStep,         // the same
  kChained,           // see chain.h
  kChainedContext,
};

constexpr uint64_t kPayloadMask = (uint64_t{1} << 52) - 1;

struct Handle {
  HandleKind kind = HandleKind::kNone;
  uint8_t salt = 0;
  uint64_t payload = 0;
};

constexpr uint64_t Pack(HandleKind kind, uint8_t salt, uint64_t payload) {
  return uint64_t{static_cast<uint8_t>(kind)} << 60 | uint64_t{salt} << 52 |
         (payload & kPayloadMask);
}

constexpr Handle Unpack(uint64_t value) {
  return {static_cast<HandleKind>(value >> 60), static_cast<uint8_t>(value >> 52),
          value & kPayloadMask};
}

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_HANDLE_H_
