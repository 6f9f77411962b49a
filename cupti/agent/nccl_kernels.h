// SPDX-License-Identifier: Apache-2.0
//
// Is a kernel one of NCCL's? By its name, as CUPTI gives it: mangled
// (_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE), or
// plain. A pattern matches where an identifier begins; a '*' at its end stands for
// anything, without it the identifier must end there.
//
// The built-in patterns, with the NCCL versions whose sources have kernels so named:
//   ncclDevKernel*     2.19 and later (src/device/common.h, generate.py)
//   ncclKernel*        up to 2.18
//   ncclSymDevKernel*  2.27 (symmetric memory)
//   ncclSymk*          2.28 and later (ncclSymkDevKernel_*)
// MYCROFT_NCCL_KERNELS adds more, separated by commas.
//
// Thread safety: set up once, in init; read-only afterwards. No allocation.
#ifndef MYCROFT_CUPTI_AGENT_NCCL_KERNELS_H_
#define MYCROFT_CUPTI_AGENT_NCCL_KERNELS_H_

#include <cstdint>

namespace mycroft::agent {

class NcclKernels {
 public:
  // `more`: the value of MYCROFT_NCCL_KERNELS, or null. What does not fit (16 patterns,
  // 512 characters in all) is left out.
  void Init(const char* more);
  bool Match(const char* name) const;

 private:
  static constexpr uint32_t kMax = 20;
  void Add(const char* text, uint32_t length);

  char text_[768] = {};
  uint32_t used_ = 0;
  struct Pattern {
    uint16_t at, length;
    bool open;  // ended with '*'
  } patterns_[kMax] = {};
  uint32_t count_ = 0;
};

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_NCCL_KERNELS_H_
