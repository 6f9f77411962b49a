// SPDX-License-Identifier: Apache-2.0
//
// A library of another process's file system, as bytes: no input may crash the agent, or
// give a place outside of the file.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "userspace/source/probes/elf_image.h"
#include "userspace/source/probes/mapped_file.h"
#include "userspace/source/probes/ops_finder.h"
#include "userspace/source/probes/probe_point.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mycroft;
  const std::vector<char> bytes(data, data + size);
  // The same bytes as code, and as text of /proc/PID/maps.
  FindProbePoint({data, size}, 0x1000, size % 2 == 0);
  ParseMappedCode(std::string(bytes.begin(), bytes.end()));
  const auto image = ElfImage::FromBytes(bytes);
  if (!image.ok()) return 0;
  const auto check = [&](uint64_t address) {
    const ProbePoint point = FindProbePoint(*image, address, false);
    const auto offset = image->OffsetOf(point.address);
    if (point.cheap && (!offset || *offset >= size)) std::abort();
  };
  for (const ElfFunction& f : image->Exports("ibv_open_device")) check(f.address);
  if (const auto ops = FindProviderOps(*image); ops.ok()) check(ops->post_send);
  return 0;
}
