// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver of a rank, as far as CUPTI's clients see it: when CUDA_INJECTION64_PATH
// names a library and MYCROFT_CUPTI_LIBRARY a stand-in libcupti, that library is loaded as
// the driver would load it, and told of the launches, copies and waits of the rank's GPU
// (device.h) and, when it asks for records, of what ran when. A real libcupti cannot be told
// anything: then there is no driver.
//
// One context, one stream. Launched/Waits by the training thread, Ran/Copied by the GPU's.
#ifndef MYCROFT_TOOLS_LAB_JOB_GPU_DRIVER_H_
#define MYCROFT_TOOLS_LAB_JOB_GPU_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mycroft::lab {

class GpuDriver {
 public:
  // nullptr: the environment does not ask for it, or it is not built in.
  static std::unique_ptr<GpuDriver> Load(int rank);
  virtual ~GpuDriver() = default;

  // A kernel was launched, a copy to the GPU enqueued; gives its correlation id. `kernel` is
  // a literal: records point to it.
  virtual uint32_t Launched(const char* kernel) = 0;
  virtual uint32_t CopyEnqueued(size_t bytes) = 0;
  virtual void WaitBegins() = 0;  // cudaStreamSynchronize
  virtual void WaitEnds() = 0;
  // Times on NowNs().
  virtual void Ran(uint32_t correlation, const char* kernel, uint64_t start_ns,
                   uint64_t end_ns) = 0;
  virtual void Copied(uint32_t correlation, size_t bytes, uint64_t start_ns, uint64_t end_ns) = 0;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_GPU_DRIVER_H_
