// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/calls.h"

#include <cupti.h>  // and with it generated_cuda_meta.h: the parameters of each call

#include <cstddef>

namespace mycroft::agent {

// Parameter structs of generated_cuda_meta.h: their names carry the version of the
// call, and so their layout never changes.
#define ID(name) CUPTI_DRIVER_TRACE_CBID_##name
#define AT(name, field) static_cast<uint8_t>(offsetof(name##_params, field))

// Both forms of a call: by the legacy default stream and by the thread's own.
#define STREAM2(name, kind, field)                                                            \
  {ID(name), CallKind::kind, AT(name, field)}, {                                              \
    ID(name##_ptsz), CallKind::kind, AT(name##_ptsz, field), kAbsent, MC_GPU_COPY_OTHER, true \
  }
#define COPY_ASYNC2(name, field, direction)                                                        \
  {ID(name), CallKind::kCopy, AT(name, hStream), AT(name, field), direction}, {                    \
    ID(name##_ptsz), CallKind::kCopy, AT(name##_ptsz, hStream), AT(name##_ptsz, field), direction, \
        true                                                                                       \
  }
#define COPY2(name, field, direction, waits)                                                  \
  {ID(name), CallKind::kCopy, kAbsent, AT(name, field), direction, false, waits}, {           \
    ID(name##_ptds), CallKind::kCopy, kAbsent, AT(name##_ptds, field), direction, true, waits \
  }
#define SHAPED2(name, kind, suffix, at)                                    \
  {ID(name), CallKind::kind, at}, {                                        \
    ID(name##suffix), CallKind::kind, at, kAbsent, MC_GPU_COPY_OTHER, true \
  }
#define SET_ASYNC2(name, scale)                                                                  \
  {ID(name), CallKind::kMemset, AT(name, hStream), AT(name, N), MC_GPU_COPY_OTHER, false, false, \
   scale},                                                                                       \
  {                                                                                              \
    ID(name##_ptsz), CallKind::kMemset, AT(name##_ptsz, hStream), AT(name##_ptsz, N),            \
        MC_GPU_COPY_OTHER, true, false, scale                                                    \
  }
#define SET2(name, scale)                                                                        \
  {ID(name), CallKind::kMemset, kAbsent, AT(name, N), MC_GPU_COPY_OTHER, false, false, scale}, { \
    ID(name##_ptds), CallKind::kMemset, kAbsent, AT(name##_ptds, N), MC_GPU_COPY_OTHER, true,    \
        false, scale                                                                             \
  }

// A copy to the device returns when the source may be used again, which may be before it
// has arrived; a copy to the host returns when the data is there.
const Call kCalls[] = {
    STREAM2(cuLaunchKernel, kKernel, hStream),
    STREAM2(cuLaunchCooperativeKernel, kKernel, hStream),
    {ID(cuLaunchKernelEx), CallKind::kKernelEx},
    {ID(cuLaunchKernelEx_ptsz), CallKind::kKernelEx, kAbsent, kAbsent, MC_GPU_COPY_OTHER, true},
    {ID(cuLaunch), CallKind::kKernel},
    {ID(cuLaunchGrid), CallKind::kKernel},
    {ID(cuLaunchGridAsync), CallKind::kKernel, AT(cuLaunchGridAsync, hStream)},
    STREAM2(cuGraphLaunch, kGraph, hStream),

    COPY_ASYNC2(cuMemcpyHtoDAsync_v2, ByteCount, MC_GPU_COPY_HTOD),
    COPY_ASYNC2(cuMemcpyDtoHAsync_v2, ByteCount, MC_GPU_COPY_DTOH),
    COPY_ASYNC2(cuMemcpyDtoDAsync_v2, ByteCount, MC_GPU_COPY_DTOD),
    COPY_ASYNC2(cuMemcpyAsync, ByteCount, MC_GPU_COPY_OTHER),
    COPY_ASYNC2(cuMemcpyPeerAsync, ByteCount, MC_GPU_COPY_PEER),
    COPY2(cuMemcpyHtoD_v2, ByteCount, MC_GPU_COPY_HTOD, false),
    COPY2(cuMemcpyDtoH_v2, ByteCount, MC_GPU_COPY_DTOH, true),
    COPY2(cuMemcpyDtoD_v2, ByteCount, MC_GPU_COPY_DTOD, false),
    COPY2(cuMemcpy, ByteCount, MC_GPU_COPY_OTHER, false),
    COPY2(cuMemcpyPeer, ByteCount, MC_GPU_COPY_PEER, false),
    SHAPED2(cuMemcpy2D_v2, kCopy2D, _ptds, kAbsent),
    SHAPED2(cuMemcpy2DUnaligned_v2, kCopy2D, _ptds, kAbsent),
    SHAPED2(cuMemcpy2DAsync_v2, kCopy2D, _ptsz, AT(cuMemcpy2DAsync_v2, hStream)),
    SHAPED2(cuMemcpy3D_v2, kCopy3D, _ptds, kAbsent),
    SHAPED2(cuMemcpy3DAsync_v2, kCopy3D, _ptsz, AT(cuMemcpy3DAsync_v2, hStream)),
#if CUDA_VERSION >= 13000
    {ID(cuMemcpyBatchAsync_v2), CallKind::kCopy, AT(cuMemcpyBatchAsync_v2, hStream)},
    {ID(cuMemcpyBatchAsync_v2_ptsz), CallKind::kCopy, AT(cuMemcpyBatchAsync_v2_ptsz, hStream),
     kAbsent, MC_GPU_COPY_OTHER, true},
#endif

    SET_ASYNC2(cuMemsetD8Async, 1),
    SET_ASYNC2(cuMemsetD16Async, 2),
    SET_ASYNC2(cuMemsetD32Async, 4),
    SET2(cuMemsetD8_v2, 1),
    SET2(cuMemsetD16_v2, 2),
    SET2(cuMemsetD32_v2, 4),
    STREAM2(cuMemsetD2D8Async, kMemset, hStream),
    STREAM2(cuMemsetD2D16Async, kMemset, hStream),
    STREAM2(cuMemsetD2D32Async, kMemset, hStream),

    STREAM2(cuStreamSynchronize, kStreamSync, hStream),
    STREAM2(cuStreamQuery, kStreamQuery, hStream),
    {ID(cuCtxSynchronize), CallKind::kContextSync},
#if CUDA_VERSION >= 13000
    {ID(cuCtxSynchronize_v2), CallKind::kContextSync},
#endif
    {ID(cuEventSynchronize), CallKind::kEventSync},
    {ID(cuEventQuery), CallKind::kEventQuery},
    {ID(cuEventDestroy), CallKind::kEventDestroy},
    {ID(cuEventDestroy_v2), CallKind::kEventDestroy},
    STREAM2(cuEventRecord, kEventRecord, hStream),
    STREAM2(cuEventRecordWithFlags, kEventRecord, hStream),
    STREAM2(cuStreamWaitEvent, kStreamWait, hStream),

    STREAM2(cuStreamBeginCapture_v2, kBeginCapture, hStream),
#if CUDA_VERSION >= 12030
    STREAM2(cuStreamBeginCaptureToGraph, kBeginCapture, hStream),
#endif
    STREAM2(cuStreamEndCapture, kEndCapture, hStream),
    {0, CallKind::kNone},
};

// What the callbacks read without a struct.
static_assert(offsetof(cuLaunchKernelEx_params, config) == 0);
static_assert(offsetof(cuMemcpy2DAsync_v2_params, pCopy) == 0);
static_assert(offsetof(cuMemcpy3DAsync_v2_params, pCopy) == 0);
static_assert(offsetof(cuEventRecord_params, hEvent) == 0);
static_assert(offsetof(cuEventRecordWithFlags_params, hEvent) == 0);
static_assert(offsetof(cuStreamWaitEvent_params, hEvent) == 8);
static_assert(offsetof(cuStreamWaitEvent_ptsz_params, hEvent) == 8);
static_assert(offsetof(cuEventSynchronize_params, hEvent) == 0);
static_assert(offsetof(cuEventQuery_params, hEvent) == 0);
static_assert(offsetof(cuEventDestroy_v2_params, hEvent) == 0);
static_assert(sizeof(CUstream) == 8 && sizeof(CUevent) == 8 && sizeof(size_t) == 8);
static_assert(static_cast<uint32_t>(CUPTI_DRIVER_TRACE_CBID_SIZE) < kCallIds);

}  // namespace mycroft::agent
