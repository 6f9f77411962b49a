// SPDX-License-Identifier: Apache-2.0
//
// Tests only: can this machine load BPF programs, and what is loaded on it now.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_TESTING_BPF_MACHINE_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_TESTING_BPF_MACHINE_H_

#include <cstddef>
#include <string>

namespace mycroft {

// Empty when a test may load BPF programs here, else why not.
std::string WhyNoBpf();

// Skips the test, loudly, where BPF programs cannot be loaded.
#define MYCROFT_REQUIRE_BPF()                                                     \
  do {                                                                            \
    if (const std::string why = ::mycroft::WhyNoBpf(); !why.empty())              \
      GTEST_SKIP() << "SKIPPED, NOTHING WAS TESTED: needs root and BPF: " << why; \
  } while (false)

// Counts those of this process that live in the kernel: programs, maps and links that
// its descriptors hold, and its descriptors in all.
struct BpfCensus {
  size_t programs = 0, maps = 0, links = 0, descriptors = 0;
  friend bool operator==(const BpfCensus&, const BpfCensus&) = default;
};
BpfCensus TakeBpfCensus();
// All programs of the host with a name of ours, whoever holds them (0 when none).
size_t ProgramsOfHost(const std::string& name_prefix);
// Takes it again until it equals `wanted`, at most 5 s: the kernel frees with a delay.
BpfCensus WaitForBpfCensus(const BpfCensus& wanted);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_TESTING_BPF_MACHINE_H_
