// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzzers' functions over their seeds, cut and damaged, in every build.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

extern "C" int MycroftBoardFuzz(const uint8_t* data, size_t size);
extern "C" int MycroftSnapshotPipelineFuzz(const uint8_t* data, size_t size);

namespace {

int RunSeeds(const char* folder, int (*function)(const uint8_t*, size_t), int rounds) {
  std::mt19937_64 random(1);
  int seeds = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(MYCROFT_SEEDS) / folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(file)), {});
    const auto run = [&](const std::string& bytes) {
      function(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    };
    run(whole);
    for (int round = 0; round < rounds; ++round) {
      std::string bytes = whole;
      if (round % 3 == 0) bytes.resize(random() % (whole.size() + 1));
      for (int flips = round % 7; flips > 0 && !bytes.empty(); --flips) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      run(bytes);
    }
    ++seeds;
  }
  return seeds;
}

TEST(BoardFuzz, BoardSeedsDoNotCrash) { EXPECT_GE(RunSeeds("board", MycroftBoardFuzz, 100), 4); }

TEST(BoardFuzz, SnapshotSeedsDoNotCrash) {
  EXPECT_GE(RunSeeds("snapshot_pipeline", MycroftSnapshotPipelineFuzz, 300), 4);
}

TEST(BoardFuzz, AnyBytes) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 2000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    MycroftBoardFuzz(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    MycroftSnapshotPipelineFuzz(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace
