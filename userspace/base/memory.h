// SPDX-License-Identifier: Apache-2.0
#ifndef MYCROFT_USERSPACE_BASE_MEMORY_H_
#define MYCROFT_USERSPACE_BASE_MEMORY_H_

namespace mycroft {

// For a program that wakes up ten times a second for days. Its heap is of huge pages where
// the kernel has them (transparent_hugepage madvise or always): after a tenth of a second
// of others' work nothing is cached, and hundreds of small pages cost more to find again
// than what is done with them. And what was freed stays in the process, up to 64 MiB: by
// default glibc gives the memory of each second's samples back and takes it again, page
// fault by page fault.
//
// Call once, at the start, before other threads. Failure costs only the speed.
void KeepHeapHot();

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_MEMORY_H_
