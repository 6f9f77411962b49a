// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/layout.h"

#include <cupti.h>

#include <cstddef>

namespace mycroft::agent {
namespace {

// One row serves all versions so far: what was appended lies behind what we read.
constexpr WorkLayout kKernel = {16, 24, 40, 44, 48, 92, 156};
constexpr WorkLayout kCopy = {16, 24, 32, 36, 40, 44, 72};
constexpr WorkLayout kPeer = {16, 24, 32, 36, 40, 60, 80};
constexpr WorkLayout kSet = {16, 24, 32, 36, 40, 44, 72};
constexpr RecordLayout kLayouts[] = {
    // CUDA 12.0 to 12.9
    {19, 28, kKernel, 104, kCopy, 4, 8, kPeer, kSet, 8, 24, 32},
    // CUDA 13.0
    {130000, 130099, kKernel, 104, kCopy, 4, 8, kPeer, kSet, 8, 24, 32},
};

template <class Struct>
constexpr bool SameWork(const WorkLayout& l) {
  return offsetof(Struct, kind) == 0 && offsetof(Struct, start) == l.start &&
         offsetof(Struct, end) == l.end && offsetof(Struct, deviceId) == l.device &&
         offsetof(Struct, contextId) == l.context && offsetof(Struct, streamId) == l.stream &&
         offsetof(Struct, correlationId) == l.correlation && offsetof(Struct, graphId) == l.graph &&
         sizeof(Struct::start) == 8 && sizeof(Struct::end) == 8 && sizeof(Struct::deviceId) == 4 &&
         sizeof(Struct::contextId) == 4 && sizeof(Struct::streamId) == 4 &&
         sizeof(Struct::correlationId) == 4 && sizeof(Struct::graphId) == 4;
}
template <class Struct>
constexpr bool SameKernel(const RecordLayout& l) {
  return SameWork<Struct>(l.kernel) && offsetof(Struct, name) == l.kernel_name;
}
template <class Struct>
constexpr bool SameCopy(const RecordLayout& l) {
  return SameWork<Struct>(l.copy) && offsetof(Struct, copyKind) == l.copy_kind &&
         sizeof(Struct::copyKind) == 1 && offsetof(Struct, bytes) == l.copy_bytes;
}
template <class Struct>
constexpr bool SamePeer(const RecordLayout& l) {
  return SameWork<Struct>(l.peer) && offsetof(Struct, copyKind) == l.copy_kind &&
         offsetof(Struct, bytes) == l.copy_bytes;
}
template <class Struct>
constexpr bool SameSet(const RecordLayout& l) {
  return SameWork<Struct>(l.set) && offsetof(Struct, bytes) == l.set_bytes;
}
template <class Struct>
constexpr bool SameOverhead(const RecordLayout& l) {
  return offsetof(Struct, start) == l.overhead_start && offsetof(Struct, end) == l.overhead_end;
}

static_assert(sizeof(CUpti_ActivityKind) == 4);
#if CUPTI_API_VERSION >= 130000
constexpr const RecordLayout& k12 = kLayouts[0];
constexpr const RecordLayout& k13 = kLayouts[1];
static_assert(SameKernel<CUpti_ActivityKernel8>(k12) && SameKernel<CUpti_ActivityKernel9>(k12));
static_assert(SameCopy<CUpti_ActivityMemcpy5>(k12) && SameOverhead<CUpti_ActivityOverhead>(k12));
static_assert(SameOverhead<CUpti_ActivityOverhead2>(k12));
static_assert(SameSet<CUpti_ActivityMemset4>(k12) && SameSet<CUpti_ActivityMemset4>(k13));
static_assert(SamePeer<CUpti_ActivityMemcpyPtoP4>(k12) && SamePeer<CUpti_ActivityMemcpyPtoP4>(k13));
static_assert(SameKernel<CUpti_ActivityKernel10>(k13) && SameCopy<CUpti_ActivityMemcpy6>(k13));
static_assert(SameOverhead<CUpti_ActivityOverhead3>(k13));
#else
constexpr const RecordLayout& k12 = kLayouts[0];
static_assert(SameKernel<CUpti_ActivityKernel8>(k12) && SameCopy<CUpti_ActivityMemcpy5>(k12));
static_assert(SamePeer<CUpti_ActivityMemcpyPtoP4>(k12) && SameSet<CUpti_ActivityMemset4>(k12));
#endif

}  // namespace

const RecordLayout* FindLayout(uint32_t cupti_version) {
  for (const RecordLayout& row : kLayouts) {
    if (cupti_version >= row.first_version && cupti_version <= row.last_version) return &row;
  }
  return nullptr;
}

}  // namespace mycroft::agent
