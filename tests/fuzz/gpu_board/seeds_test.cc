// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzzer's function over its seeds, cut and damaged, in every build.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

extern "C" int MycroftGpuBoardFuzz(const uint8_t* data, size_t size);

namespace {

void Feed(const std::string& bytes) {
  MycroftGpuBoardFuzz(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

TEST(GpuBoardFuzz, SeedsDoNotCrash) {
  std::mt19937_64 random(1);
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MYCROFT_SEEDS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(file)), {});
    Feed(whole);
    for (int round = 0; round < 100; ++round) {
      std::string bytes = whole;
      if (round % 3 == 0) bytes.resize(random() % (whole.size() + 1));
      for (int flips = round % 7; flips > 0 && !bytes.empty(); --flips) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      Feed(bytes);
    }
    ++seeds;
  }
  EXPECT_GE(seeds, 4);
}

TEST(GpuBoardFuzz, AnyBytes) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes(random() % 2000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    Feed(bytes);
  }
}

}  // namespace
