// SPDX-License-Identifier: Apache-2.0
//
// A second profiler plugin behind ours, because NCCL loads only one:
// MYCROFT_CHAIN_PLUGIN names its library. It is loaded in the first init and
// called through the table of the version that NCCL chose of us.
//
//          NCCL
//            | handle = number of a ChainedEvent {ours, theirs}
//     +------+------+
//    core        chained plugin
//
// Each side sees its own contexts, handles and parents, and only the events that
// itself has asked for (with their ancestors, as NCCL would send them); NCCL's mask
// is the union. The chained plugin gets copies of descriptors and arguments, each
// stop once, nothing for handles that are unknown, and nothing of operations that
// run here for another process (their handles are values of that process).
//
// Fixed tables, no allocation, no lock while the other plugin is called.
#ifndef MYCROFT_CUPTI_NCCL_CHAIN_H_
#define MYCROFT_CUPTI_NCCL_CHAIN_H_

#include <atomic>
#include <cstdint>

#include "cupti/nccl/core.h"
#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {

// Set by the first init, then constant.
extern std::atomic<bool> g_chain_active;
inline bool ChainActive() { return g_chain_active.load(std::memory_order_acquire); }

// Loads the plugin named by MYCROFT_CHAIN_PLUGIN on the first call; `ours` is the
// table that NCCL uses of us. A library that cannot be used is one warning.
void LoadChain(int api_version, const void* ours, DebugLogger log);

// All as in the tables, REQUIRES ChainActive(). `ours` is the core's context.
void* InitChained(uint64_t ours, const CommFacts& facts, DebugLogger log);
void FinalizeChained(void* context);
void* StartChained(void* context, const EventDescrV4& descr);
void* StartChained(void* context, const EventDescrV5& descr);
void* StartChained(void* context, const EventDescrV6& descr);
void StopChained(void* handle);
void RecordChained(void* handle, EventState state, const StateArgs* args);

// The event types that NCCL sends when asked for `mask`: a low event turns on its
// ancestors.
uint64_t EventsOfMask(int mask);

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_CHAIN_H_
