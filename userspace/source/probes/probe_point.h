// SPDX-License-Identifier: Apache-2.0
//
// Where in a function a uprobe is cheap.
//
// The kernel runs some instructions itself when it has to step over them: push of a
// register, nop, jmp, call and jcc to a fixed place (arch/x86/kernel/uprobes.c, *_xol_ops). For any
// other it steps the processor through a copy, with a second trap: 10 us against 0.5 us
// where measured. A function that begins with such another instruction is probed a few
// instructions later, as long as
//   - none of the arguments that the program reads was changed, nor (for a return probe)
//     the stack pointer: its return address must be on top,
//   - no jump in the function leads to a place after the entry up to and including the
//     probed instruction: it must be passed exactly once per call.
// Decoded with Zydis. Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_POINT_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_POINT_H_

#include <cstdint>
#include <span>
#include <string>

#include "userspace/source/probes/elf_image.h"

namespace mycroft {

struct ProbePoint {
  uint64_t address = 0;     // in the file: the function's own when not moved
  bool cheap = false;       // emulated by the kernel; else `why` says what stands there
  std::string why;          // "begins with mov; no push or nop before an argument is lost"
  std::string instruction;  // mnemonic at `address`: "push"
};

// `code` begins at the function's entry and ends at its end, or earlier (then fewer
// places are tried). `address` is the entry's. `arguments`: how many of the first six the
// program reads. `on_return`: for a return probe, which reads none.
ProbePoint FindProbePoint(std::span<const uint8_t> code, uint64_t address, bool on_return,
                          int arguments = 6);

// The same for a function of an image; its end from the image's table of functions.
ProbePoint FindProbePoint(const ElfImage& image, uint64_t address, bool on_return,
                          int arguments = 6);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_POINT_H_
