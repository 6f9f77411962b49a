// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/clocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mycroft {
namespace {

TEST(Clocks, TheBoundIsRoundedUp) {
  EXPECT_EQ(ErrorBoundText(0), "\u00b11 us");
  EXPECT_EQ(ErrorBoundText(1000), "\u00b11 us");
  EXPECT_EQ(ErrorBoundText(11'001), "\u00b112 us");
  EXPECT_EQ(ErrorBoundText(999'999), "\u00b11 ms");
  EXPECT_EQ(ErrorBoundText(1'230'001), "\u00b11.24 ms");
}

TEST(Clocks, OneLineForEach) {
  GpuClockState gpu;
  gpu.host = "node1";
  gpu.process = {1234, 5};
  gpu.rank = 3;
  gpu.error_ns = 11'500;
  gpu.drift_ppm = -37.14;
  gpu.drift_error_ppm = 0.11;
  EXPECT_EQ(ClockText(gpu),
            "GPU clock of rank 3 (node1, pid 1234): \u00b112 us, 37.1 \u00b1 0.2 ppm slow");
  gpu.steps = 2;
  EXPECT_EQ(ClockText(gpu),
            "GPU clock of rank 3 (node1, pid 1234): \u00b112 us, 37.1 \u00b1 0.2 ppm slow, "
            "set 2 times");
  gpu.error_ns.reset();
  gpu.problem = "no kernel of NCCL was seen yet";
  EXPECT_EQ(ClockText(gpu),
            "GPU clock of rank 3 (node1, pid 1234): not aligned: no kernel of NCCL was seen yet");
  HostClockState host;
  host.host = "node2";
  host.reference = "node1";
  host.error_ns = 40'000;
  EXPECT_EQ(ClockText(host), "clock of node2: \u00b140 us against node1's");
  host.error_ns.reset();
  host.problem = "no\x1bway";
  EXPECT_EQ(ClockText(host), "clock of node2: not aligned: no?way");
}

TEST(Clocks, OneReasonIsSaidOnce) {
  std::vector<GpuClockState> clocks(4);
  for (int rank = 0; rank < 4; ++rank) {
    clocks[rank].host = "node1";
    clocks[rank].process = {100u + rank, 1};
    clocks[rank].rank = rank;
    clocks[rank].problem = "no timer";
  }
  clocks[1].error_ns = 1000;
  EXPECT_THAT(ClockTexts(clocks),
              ::testing::ElementsAre(ClockText(clocks[1]),
                                     "GPU clocks of ranks 0, 2, 3 (node1): not aligned: no timer"));
  clocks[3].problem = "another";
  EXPECT_EQ(ClockTexts(clocks).size(), 3u);
  clocks[2].rank = -1;
  EXPECT_EQ(ClockTexts(clocks).size(), 4u);
}

}  // namespace
}  // namespace mycroft
