// SPDX-License-Identifier: Apache-2.0
//
// Runs the function of a fuzzer of text over its seeds, whole and cut anywhere, in every build.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

TEST(Seeds, DoNotCrash) {
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
