// SPDX-License-Identifier: Apache-2.0
//
// The calls of the CUDA driver that are followed, as one table by CUPTI's callback id.
//
// Why the driver's calls and not the runtime's: every piece of work reaches the GPU
// through one driver call, whoever asks (the runtime, linked statically or not, NCCL,
// Triton, cuBLAS). Following both would count a runtime launch twice.
//
// A call is followed at entry (it may block) and at exit (it may have failed, or have
// been captured into a graph).
#ifndef MYCROFT_CUPTI_AGENT_CALLS_H_
#define MYCROFT_CUPTI_AGENT_CALLS_H_

#include <cstdint>

#include "bpf/abi/gpu_board.h"

namespace mycroft::agent {

enum class CallKind : uint8_t {
  kNone = 0,
  kKernel,    // stream at `stream`
  kKernelEx,  // stream in the CUlaunchConfig that the parameters begin with
  kGraph,
  kCopy,
  kCopy2D,  // bytes and direction in the CUDA_MEMCPY2D that the parameters begin with
  kCopy3D,
  kMemset,
  kStreamSync,
  kContextSync,
  kEventSync,
  kStreamQuery,
  kEventQuery,
  kEventRecord,
  kEventDestroy,
  kStreamWait,  // for the event that follows the stream in the parameters
  kBeginCapture,
  kEndCapture,
};

constexpr uint8_t kAbsent = 0xFF;

struct Call {
  uint32_t cbid;
  CallKind kind;
  uint8_t stream = kAbsent;  // offset of the stream in the parameters; absent: default stream
  uint8_t bytes = kAbsent;   // offset of a size_t
  uint8_t copy = MC_GPU_COPY_OTHER;
  bool per_thread = false;  // a null stream means the thread's own (the _ptsz, _ptds variants)
  bool waits = false;       // returns when the copy is done: it proves all before it finished
  uint8_t scale = 1;        // bytes per unit of `bytes`
};

// All of them; ends with kind kNone.
extern const Call kCalls[];

constexpr uint32_t kCallIds = 1024;  // callback ids below this are looked at

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_CALLS_H_
