// SPDX-License-Identifier: Apache-2.0
//
// The plugin proper, independent of the version of the profiler interface: turns
// NCCL's callbacks into the lines of the progress board.
//
// Every function may be called by any thread with any value, never blocks, never
// throws and, after init, neither allocates nor makes a system call (a thread's
// first call asks for its id once). Unknown, stale and foreign handles are counted
// in the board and otherwise ignored. Only InitComm and FinalizeComm take a lock,
// against each other; it is never held while foreign code is called.
//
// Without a board (level off, no memfd, or a child after fork that has not called
// init) every start returns 0, which goes to NCCL as NULL.
#ifndef MYCROFT_CUPTI_NCCL_CORE_H_
#define MYCROFT_CUPTI_NCCL_CORE_H_

#include <cstdint>

#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {

struct CommFacts {
  uint64_t comm_id = 0;
  const char* name = nullptr;  // may be NULL; copied
  int nnodes = 0;
  int nranks = 0;
  int rank = 0;
};

// Coll and P2p. `func` and the like are NCCL's strings, may be NULL.
struct OpFacts {
  bool p2p = false;
  uint64_t nccl_seq = 0;
  const char* func = nullptr;
  const char* datatype = nullptr;
  const char* algo = nullptr;
  const char* proto = nullptr;
  uint64_t count = 0;
  int root_or_peer = 0;
  uint8_t channels = 0;
  uint64_t parent_group = 0;  // v5+: handle of the legacy Group
};

struct ApiFacts {
  EventType type = kGroupApi;  // GroupApi, CollApi, P2pApi or Group
  bool graph_captured = false;
  const void* stream = nullptr;
};

// Returns the context and sets our part of the event mask; the caller publishes it.
uint64_t InitComm(int api_version, const CommFacts& facts, DebugLogger log);
void FinalizeComm(uint64_t context);

uint64_t StartApi(uint64_t context, uint64_t parent, const ApiFacts& facts);
uint64_t StartOp(uint64_t context, uint64_t parent, const OpFacts& facts);
uint64_t StartProxyOp(uint64_t context, uint64_t parent, const ProxyOp& facts);
uint64_t StartProxyStep(uint64_t parent, int step);
uint64_t StartKernelCh(uint64_t parent, const KernelCh& facts);
// For events that are let pass without a handle; counts types unknown to us.
void StartOther(uint64_t type);

void StopEvent(uint64_t handle);
void RecordState(uint64_t handle, EventState state, const StateArgs* args);

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_CORE_H_
