// SPDX-License-Identifier: Apache-2.0
//
// Any text as a configuration file: an error or a config that prints and reads
// back to itself, never a crash. The first byte chooses the scope.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "userspace/base/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const mycroft::ConfigScope scope =
      data[0] & 1 ? mycroft::ConfigScope::kSystem : mycroft::ConfigScope::kUser;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  mycroft::Config config;
  const absl::Status status = mycroft::LoadConfigText(config, text, "fuzz.yaml", scope);
  if (!status.ok()) {
    if (!absl::IsInvalidArgument(status) || status.message().empty()) std::abort();
    return 0;
  }
  const std::string printed = mycroft::PrintConfig(config);
  mycroft::Config again;
  if (!mycroft::LoadConfigText(again, printed, "again.yaml", mycroft::ConfigScope::kSystem).ok()) {
    std::abort();
  }
  again.origin = config.origin;
  if (mycroft::PrintConfig(again) != printed) std::abort();
  return 0;
}
