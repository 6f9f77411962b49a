// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzzer's function over its seeds in every build.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

TEST(XidFuzz, SeedsDoNotCrash) {
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MYCROFT_SEEDS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    for (size_t cut = 0; cut < text.size(); ++cut) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), cut);
    }
    ++seeds;
  }
  EXPECT_GE(seeds, 5);
}

}  // namespace
