// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/bpf_objects.h"

#if MYCROFT_HAVE_BPF
#include "skeleton/all.h"
#endif

namespace mycroft {

bool BuiltWithProbes() { return MYCROFT_HAVE_BPF != 0; }

const char* MissingForProbes() { return MYCROFT_BPF_MISSING; }

const std::vector<const char*>& BpfObjectNames() {
  static const auto* names = new std::vector<const char*> {
#if MYCROFT_HAVE_BPF
#define MYCROFT_NAME(name) #name,
    MYCROFT_BPF_OBJECTS(MYCROFT_NAME)
#undef MYCROFT_NAME
#endif
  };
  return *names;
}

std::span<const std::byte> BpfObjectBytes([[maybe_unused]] std::string_view name) {
#if MYCROFT_HAVE_BPF
#define MYCROFT_BYTES(object)                           \
  if (name == #object) {                                \
    size_t bytes = 0;                                   \
    const void* elf = object##_bpf__elf_bytes(&bytes);  \
    return {static_cast<const std::byte*>(elf), bytes}; \
  }
  MYCROFT_BPF_OBJECTS(MYCROFT_BYTES)
#undef MYCROFT_BYTES
#endif
  return {};
}

}  // namespace mycroft
