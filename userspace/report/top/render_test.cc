// SPDX-License-Identifier: Apache-2.0
//
// Frames as text, compared with testdata/*.txt. To accept a changed screen, look at
// the difference, then run with MYCROFT_UPDATE_GOLDEN=1.
#include "userspace/report/top/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "userspace/base/text.h"
#include "userspace/report/top/testing.h"

namespace mycroft {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string Draw(const TopData& data, TopState state, FrameSize size = {80, 24}) {
  return FrameText(RenderTop(data, LiveSample(), state, size));
}

void CompareGolden(const std::string& name, const std::string& text) {
  const std::string path = std::string(MYCROFT_TESTDATA) + "/" + name + ".txt";
  if (std::getenv("MYCROFT_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path;
  const std::string want((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, want) << "in " << path;
}

TEST(RenderTop, Stuck80x24) { CompareGolden("stuck_80x24", Draw(StuckSample(), {})); }

TEST(RenderTop, Stuck120x40) { CompareGolden("stuck_120x40", Draw(StuckSample(), {}, {120, 40})); }

TEST(RenderTop, Stuck80x24Ascii) {
  TopState state;
  state.ascii = true;
  const std::string text = Draw(StuckSample(), state);
  CompareGolden("stuck_80x24_ascii", text);
  for (char c : text) ASSERT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << int{c};
}

TEST(RenderTop, FlatListBySlowest) {
  TopState state;
  state.tree = false;
  state.sort = TopSort::kRate;
  CompareGolden("flat_120x40", Draw(StuckSample(), state, {120, 40}));
}

TEST(RenderTop, Evidence) {
  TopState state;
  state.screen = TopScreen::kIncident;
  state.opened = {RowId::Kind::kIncident, 2, 0};
  const std::string text = Draw(StuckSample(), state, {80, 40});
  for (const char* part : {"GPU of rank 2", "4 sends wait for the GPU", "nothing is posted and",
                           "channel 0, send to rank 3", "92"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(RenderTop, FlowsOfARank) {
  TopState state;
  state.screen = TopScreen::kRank;
  state.opened = {RowId::Kind::kRank, 0x9a40ddbf57b04e, 2};
  CompareGolden("flows_120x40", Draw(StuckSample(), state, {120, 40}));
}

TEST(RenderTop, DevicesOfARankAndTheLevelOfTheProbes) {
  TopState state;
  state.screen = TopScreen::kRank;
  state.opened = {RowId::Kind::kRank, 0x9a40ddbf57b04e, 0};
  const std::string text = Draw(HardwareSample4(), state, {140, 40});
  for (const char* part :
       {"GPU 0000:3b:00.0, path ", "link 32 GT/s x8", "! the link of GPU 0000:3b:00.0 runs at",
        "NIC 0000:3c:00.0 (mlx5_0, mlx5_1)", "port 1 DOWN Polling 400 Gb/s eth0",
        "state unreadable", "! port 1 of mlx5_0 is DOWN", "  deep probes 1/1", " CH DIR "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  state.opened.rank = 1;  // has none of them
  EXPECT_THAT(Draw(HardwareSample4(), state, {140, 40}), Not(HasSubstr("0000:3b:00.0")));
  EXPECT_THAT(Draw(StuckSample(), {}, {140, 40}), Not(HasSubstr("deep probes")));
  EXPECT_THAT(text, Not(HasSubstr("GPU records")));
  TopData recorded = HardwareSample4();
  recorded.job.gpu_watched = 4;
  EXPECT_THAT(Draw(recorded, {}, {140, 40}), Not(HasSubstr("GPU records")));
  recorded.job.gpu_recorded = 2;
  EXPECT_THAT(Draw(recorded, {}, {140, 40}), HasSubstr("  GPU records 2/4"));
}

TEST(RenderTop, HelpFits80x24) {
  TopState state;
  state.screen = TopScreen::kHelp;
  const std::string text = Draw(StuckSample(), state, {80, 30});
  EXPECT_THAT(text, Not(HasSubstr("~"))) << "a line was cut";
  EXPECT_THAT(text, HasSubstr("AGE       in flight"));
}

TEST(RenderTop, EveryScreenAtEverySizeHasTheSizeAskedFor) {
  for (size_t width : {1u, 39u, 40u, 57u, 80u, 100u, 133u, 300u}) {
    for (size_t height : {1u, 8u, 9u, 24u, 80u}) {
      for (TopScreen screen : {TopScreen::kMain, TopScreen::kRank, TopScreen::kIncident,
                               TopScreen::kHelp, TopScreen::kSetup}) {
        TopState state;
        state.screen = screen;
        state.opened = screen == TopScreen::kRank ? RowId{RowId::Kind::kRank, 0x9a40ddbf57b04e, 2}
                                                  : RowId{RowId::Kind::kIncident, 2, 0};
        const Frame frame = RenderTop(StuckSample(), LiveSample(), state, {width, height});
        EXPECT_LE(frame.lines.size(), height);
        for (const FrameLine& line : frame.lines) {
          size_t cells = 0;
          for (const Span& span : line.spans) cells += CellWidth(span.text);
          EXPECT_LE(cells, width) << FrameText({{line}});
        }
      }
    }
  }
}

TEST(Headline, SaysWhatSinceWhenAndWhoseFault) {
  const std::string line = FirstLine(Draw(StuckSample(), {}));
  EXPECT_THAT(line,
              StartsWith("C STUCK for 12.3s: rank 2 GPU on node-b (92%); 3 ranks wait in AllR"));
}

TEST(Headline, WithoutACulpritItSaysSo) {
  TopData data = StuckSample();
  data.incidents[1].culprits.clear();
  EXPECT_THAT(FirstLine(Draw(data, {})), HasSubstr("culprit not known: not enough evidence"));
}

TEST(Headline, StuckComesBeforeSlow) {
  TopData data = StuckSample();
  data.incidents[0].cleared_ns.reset();
  const std::string line = FirstLine(Draw(data, {}));
  EXPECT_THAT(line, StartsWith("C (1 of 2) STUCK"));
  data.incidents.pop_back();
  EXPECT_THAT(FirstLine(Draw(data, {})), StartsWith("W SLOW for 1m10s: rank 1 GPU or PCIe on"));
}

TEST(Headline, QuietJobAndNoJob) {
  TopData data = StuckSample();
  data.incidents.clear();
  EXPECT_THAT(FirstLine(Draw(data, {})), StartsWith("  OK: nothing is stuck"));
  EXPECT_THAT(FirstLine(Draw({}, {})), HasSubstr("NOTHING TO OBSERVE"));
}

TEST(Headline, AnIncidentIsOpenUntilItsClearTime) {
  TopData data = StuckSample();
  data.incidents[1].cleared_ns = data.job.t_ns + 1;
  EXPECT_THAT(FirstLine(Draw(data, {})), HasSubstr("STUCK"));
  data.incidents[1].cleared_ns = data.job.t_ns;
  EXPECT_THAT(FirstLine(Draw(data, {})), HasSubstr("OK"));
}

TEST(RenderTop, NamesFromOtherProcessesCannotMoveTheCursor) {
  TopData data = StuckSample();
  data.job.comms[0].name = "\x1b[2J\x1b]0;evil\x07";
  data.job.comms[0].ranks[0].host = "a\nb\tc\x9b";
  data.job.comms[0].ranks[1].process_name = "\x1b[31m";
  data.incidents[1].summary = "x\x1b[0mx";
  for (TopScreen screen : {TopScreen::kMain, TopScreen::kRank, TopScreen::kIncident}) {
    TopState state;
    state.screen = screen;
    state.opened = screen == TopScreen::kRank ? RowId{RowId::Kind::kRank, 0x9a40ddbf57b04e, 0}
                                              : RowId{RowId::Kind::kIncident, 2, 0};
    const std::string text = Draw(data, state, {200, 60});
    for (char c : text) {
      ASSERT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << int{c} << "\n" << text;
    }
  }
}

TEST(RenderTop, TheSelectionStaysVisible) {
  TopData data = StuckSample();
  for (int32_t i = 4; i < 500; ++i) {
    data.job.comms[0].ranks.push_back(SampleRank(i, i, "node-z", 9000));
  }
  TopState state;
  state.selected = {RowId::Kind::kRank, 0x9a40ddbf57b04e, 450};
  const std::string text = Draw(data, state);
  EXPECT_THAT(text, HasSubstr("450 "));
  state.selected = {RowId::Kind::kIncident, 2, 0};
  EXPECT_THAT(Draw(data, state), HasSubstr("#2 STUCK"));
}

TEST(RenderTop, WholeFrameHasAllRowsAndNoFooter) {
  TopData data = StuckSample();
  for (int32_t i = 4; i < 100; ++i) {
    data.job.comms[0].ranks.push_back(SampleRank(i, i, "node-z", 9000));
  }
  const std::string text = Draw(data, {}, {80, 0});
  EXPECT_THAT(text, HasSubstr(" 99 node-z"));
  EXPECT_THAT(text, Not(HasSubstr("quit")));
}

TEST(RenderTop, FilterThatMatchesNothing) {
  TopState state;
  state.filter = "nosuchhost";
  state.show_incidents = false;
  EXPECT_THAT(Draw(StuckSample(), state), HasSubstr("no row matches"));
}

TEST(FrameText, ColourDoesNotChangeTheText) {
  TopState state;
  const Frame frame = RenderTop(StuckSample(), LiveSample(), state, {80, 24});
  std::string coloured = FrameText(frame, true), plain;
  EXPECT_THAT(coloured, HasSubstr("\x1b[1;31m"));
  for (size_t i = 0; i < coloured.size(); ++i) {
    if (coloured[i] == '\x1b') {
      i = coloured.find('m', i);
    } else {
      plain += coloured[i];
    }
  }
  EXPECT_EQ(plain, FrameText(frame));
  EXPECT_THAT(coloured, EndsWith("\n"));
}

}  // namespace
}  // namespace mycroft
