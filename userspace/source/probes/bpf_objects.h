// SPDX-License-Identifier: Apache-2.0
//
// The compiled BPF objects, by the name of their file in bpf/probes. Constant data.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_BPF_OBJECTS_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_BPF_OBJECTS_H_

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace mycroft {

// True where the build had the tools to make them, else what was missing.
bool BuiltWithProbes();
const char* MissingForProbes();

// Names of all objects; empty when built without.
const std::vector<const char*>& BpfObjectNames();
// The ELF file; empty when there is none of that name. Lives for ever.
std::span<const std::byte> BpfObjectBytes(std::string_view name);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_BPF_OBJECTS_H_
