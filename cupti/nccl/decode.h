// SPDX-License-Identifier: Apache-2.0
//
// From the descriptor of any version to the core's calls: what a version lacks is
// left out at compile time. The descriptor is NCCL's and is only read.
#ifndef MYCROFT_CUPTI_NCCL_DECODE_H_
#define MYCROFT_CUPTI_NCCL_DECODE_H_

#include "cupti/nccl/core.h"
#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {

inline uint64_t ToValue(const void* handle) { return reinterpret_cast<uint64_t>(handle); }
inline void* ToPointer(uint64_t value) { return reinterpret_cast<void*>(value); }

// The core's handle for the event, 0 for none. `context`, `parent` and `group` are
// the core's handles.
template <class Descr>
uint64_t StartDecoded(uint64_t context, uint64_t parent, uint64_t group, const Descr& d) {
  const uint64_t type = d.type;
  switch (type) {
    case kProxyStep:
      return StartProxyStep(parent, d.proxy_step.step);
    case kProxyOp:
      return StartProxyOp(context, parent, d.proxy_op);
    case kKernelCh:
      return StartKernelCh(parent, d.kernel_ch);
    case kGroup: {
      ApiFacts facts;
      facts.type = kGroup;
      return StartApi(context, parent, facts);
    }
    case kColl: {
      OpFacts facts;
      facts.nccl_seq = d.coll.seq_number;
      facts.func = d.coll.func;
      facts.datatype = d.coll.datatype;
      facts.algo = d.coll.algo;
      facts.proto = d.coll.proto;
      facts.count = d.coll.count;
      facts.root_or_peer = d.coll.root;
      facts.channels = d.coll.channels;
      facts.parent_group = group;
      return StartOp(context, parent, facts);
    }
    case kP2p: {
      OpFacts facts;
      facts.p2p = true;
      facts.func = d.p2p.func;
      facts.datatype = d.p2p.datatype;
      facts.count = d.p2p.count;
      facts.root_or_peer = d.p2p.peer;
      facts.channels = d.p2p.channels;
      facts.parent_group = group;
      return StartOp(context, parent, facts);
    }
  }
  if constexpr (requires { d.coll_api; }) {
    ApiFacts facts;
    switch (type) {
      case kGroupApi:
        facts.type = kGroupApi;
        facts.graph_captured = d.group_api.graph_captured;
        return StartApi(context, parent, facts);
      case kCollApi:
        facts.type = kCollApi;
        facts.graph_captured = d.coll_api.graph_captured;
        facts.stream = d.coll_api.stream;
        return StartApi(context, parent, facts);
      case kP2pApi:
        facts.type = kP2pApi;
        facts.graph_captured = d.p2p_api.graph_captured;
        facts.stream = d.p2p_api.stream;
        return StartApi(context, parent, facts);
    }
  }
  StartOther(type);
  return 0;
}

// The legacy group of an operation, as NCCL has it; NULL where there is none.
template <class Descr>
void* ParentGroup(const Descr& d) {
  if constexpr (requires { d.coll.parent_group; }) {
    if (d.type == kColl) return d.coll.parent_group;
    if (d.type == kP2p) return d.p2p.parent_group;
  }
  return nullptr;
}

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_DECODE_H_
