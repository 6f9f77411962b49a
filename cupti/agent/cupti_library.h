// SPDX-License-Identifier: Apache-2.0
//
// libcupti, found at run time: we are built against its headers and linked to no
// version of it. Looked for in this order: MYCROFT_CUPTI_LIBRARY (a path; nothing else
// is tried then), one that the process has loaded already, libcupti.so.13, .12 by the
// loader's search path, then below CUDA_HOME, CUDA_PATH and /usr/local/cuda: lib64,
// lib, extras/CUPTI/lib64.
//
// Thread safety: loaded once, in init; read-only afterwards. The library stays loaded.
#ifndef MYCROFT_CUPTI_AGENT_CUPTI_LIBRARY_H_
#define MYCROFT_CUPTI_AGENT_CUPTI_LIBRARY_H_

#include <cupti.h>

namespace mycroft::agent {

#if CUPTI_API_VERSION >= 130000
#define MYCROFT_CUPTI_13(Y) Y(cuptiSubscribe_v2)
#else
#define MYCROFT_CUPTI_13(Y)
#endif

// Every function of CUPTI that we call: X(name) for those we cannot do without,
// Y(name) for those that some versions do not have.
#define MYCROFT_CUPTI_FUNCTIONS(X, Y)       \
  X(cuptiGetVersion)                        \
  X(cuptiSubscribe)                         \
  X(cuptiUnsubscribe)                       \
  X(cuptiEnableCallback)                    \
  X(cuptiGetContextId)                      \
  X(cuptiGetDeviceId)                       \
  X(cuptiGetTimestamp)                      \
  X(cuptiActivityRegisterCallbacks)         \
  X(cuptiActivityEnable)                    \
  X(cuptiActivityDisable)                   \
  X(cuptiActivityFlushAll)                  \
  X(cuptiActivityGetNextRecord)             \
  X(cuptiActivityGetNumDroppedRecords)      \
  X(cuptiFinalize)                          \
  Y(cuptiGetStreamIdEx)                     \
  Y(cuptiActivityRegisterTimestampCallback) \
  MYCROFT_CUPTI_13(Y)

struct CuptiFunctions {
#define MYCROFT_DECLARE(name) decltype(&::name) name = nullptr;
  MYCROFT_CUPTI_FUNCTIONS(MYCROFT_DECLARE, MYCROFT_DECLARE)
#undef MYCROFT_DECLARE
};

enum class LoadResult { kLoaded, kNotFound, kMissingFunction };

// Fills `functions`; `detail` (of `detail_bytes`, always terminated) gets the path of
// the library, or the name of the function that it lacks.
[[nodiscard]] LoadResult LoadCupti(CuptiFunctions* functions, char* detail, unsigned detail_bytes);

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_CUPTI_LIBRARY_H_
