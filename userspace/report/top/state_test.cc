// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/state.h"

#include <gtest/gtest.h>

#include "userspace/base/config.h"
#include "userspace/report/top/rows.h"
#include "userspace/report/top/setup.h"
#include "userspace/report/top/testing.h"

namespace mycroft {
namespace {

class TopStateTest : public ::testing::Test {
 protected:
  TopAction Press(TopKey key) { return HandleKey(state_, data_, source_, 19, {key, 0}); }
  TopAction Type(char c) { return HandleKey(state_, data_, source_, 19, {TopKey::kChar, c}); }
  void Type(const std::string& text) {
    for (char c : text) Type(c);
  }
  TopData data_ = StuckSample();
  TopSource source_ = LiveSample();
  TopState state_;
};

TEST_F(TopStateTest, QuitKeys) {
  EXPECT_EQ(Type('q').kind, TopAction::Kind::kQuit);
  EXPECT_EQ(Press(TopKey::kF10).kind, TopAction::Kind::kQuit);
  EXPECT_EQ(Press(TopKey::kEscape).kind, TopAction::Kind::kQuit);
  state_.screen = TopScreen::kHelp;
  EXPECT_EQ(Type('q').kind, TopAction::Kind::kNone) << "first back to the list";
  EXPECT_EQ(state_.screen, TopScreen::kMain);
  EXPECT_EQ(Type('q').kind, TopAction::Kind::kQuit);
}

TEST_F(TopStateTest, MovesAndOpens) {
  const std::vector<TopRow> rows = BuildRows(data_, state_);
  ASSERT_EQ(rows.size(), 2u + 3u + 8u);
  Press(TopKey::kEnter);
  EXPECT_EQ(state_.screen, TopScreen::kIncident);
  EXPECT_EQ(state_.opened.id, 2u) << "the open incident comes first";
  Press(TopKey::kEscape);
  Type('j');
  Press(TopKey::kDown);
  EXPECT_EQ(state_.selected, rows[2].id);
  EXPECT_EQ(state_.selected.kind, RowId::Kind::kComm);
  Press(TopKey::kEnter);
  EXPECT_EQ(BuildRows(data_, state_).size(), rows.size() - 4) << "folded";
  Press(TopKey::kEnter);
  Type('j');
  Press(TopKey::kEnter);
  EXPECT_EQ(state_.screen, TopScreen::kRank);
  EXPECT_EQ(state_.opened, (RowId{RowId::Kind::kRank, 0x9a40ddbf57b04e, 0}));
  Press(TopKey::kBackspace);
  Press(TopKey::kEnd);
  EXPECT_EQ(state_.selected, rows.back().id);
  Press(TopKey::kPageUp);
  EXPECT_EQ(state_.selected, rows.front().id);
  Type('k');
  EXPECT_EQ(state_.selected, rows.front().id);
}

TEST_F(TopStateTest, BlamesTheProcessInAllItsCommunicators) {
  int culprits = 0, victims = 0;
  for (const TopRow& row : BuildRows(data_, state_)) {
    if (row.blame == RowBlame::kCulprit) {
      EXPECT_EQ(row.rank->job_rank, 2);
      ++culprits;
    }
    victims += row.blame == RowBlame::kVictim ? 1 : 0;
  }
  EXPECT_EQ(culprits, 2);
  EXPECT_EQ(victims, 6);
}

TEST_F(TopStateTest, DoesNotBlameTheSameRankOfAnotherJob) {
  CommView other;
  other.comm_id = 0x777;
  other.nranks = 3;
  for (int32_t i = 0; i < 3; ++i) other.ranks.push_back(SampleRank(i, i, "node-a", 100));
  data_.job.comms.push_back(other);
  for (const TopRow& row : BuildRows(data_, state_)) {
    if (row.comm != nullptr && row.comm->comm_id == 0x777) {
      EXPECT_EQ(row.blame, RowBlame::kNone);
    }
  }
}

TEST_F(TopStateTest, FilterIsWordsThatMustAllMatch) {
  Type('/');
  Type("node-b send gpu");
  EXPECT_TRUE(state_.filter.empty()) << "not before Enter";
  Press(TopKey::kEnter);
  state_.show_incidents = false;
  const std::vector<TopRow> rows = BuildRows(data_, state_);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].rank->job_rank, 2);
  EXPECT_EQ(Press(TopKey::kEscape).kind, TopAction::Kind::kNone) << "first it clears the filter";
  EXPECT_TRUE(state_.filter.empty());
  Type('f');
  Type("qx");
  Press(TopKey::kBackspace);
  Press(TopKey::kEscape);
  EXPECT_TRUE(state_.filter.empty());
  EXPECT_FALSE(state_.editing);
  Type('/');
  Type("culprit");
  Press(TopKey::kEnter);
  for (const TopRow& row : BuildRows(data_, state_)) {
    if (row.rank != nullptr) {
      EXPECT_EQ(row.rank->job_rank, 2);
    }
  }
}

TEST_F(TopStateTest, SortsAndReverses) {
  state_.show_incidents = false;
  Type('t');
  Press(TopKey::kF6);
  EXPECT_EQ(state_.sort, TopSort::kAge);
  EXPECT_TRUE(BuildRows(data_, state_).front().rank->in_flight);
  Type('r');
  EXPECT_FALSE(BuildRows(data_, state_).front().rank->in_flight);
  Type('<');
  EXPECT_EQ(state_.sort, TopSort::kRank);
  EXPECT_EQ(BuildRows(data_, state_).front().rank->job_rank, 3);
  Type('r');
  for (int i = 0; i < 4; ++i) Type('>');
  EXPECT_EQ(state_.sort, TopSort::kRate);
  EXPECT_EQ(BuildRows(data_, state_).front().rank->bytes_per_s, 180e6);
  state_.sort = TopSort::kProgress;
  EXPECT_EQ(BuildRows(data_, state_).front().rank->progress, 0.31);
  for (TopSort sort : {TopSort::kRank, TopSort::kAge, TopSort::kWait, TopSort::kProgress,
                       TopSort::kRate, TopSort::kHost}) {
    TopSort parsed = TopSort::kRank;
    EXPECT_TRUE(ParseTopSort(ToString(sort), parsed));
    EXPECT_EQ(parsed, sort);
  }
}

TEST_F(TopStateTest, PauseRefreshAndPresets) {
  Type(' ');
  EXPECT_TRUE(state_.paused);
  Type('u');
  EXPECT_FALSE(state_.paused);
  Type('-');
  EXPECT_EQ(state_.refresh_ns, 500'000'000u);
  for (int i = 0; i < 20; ++i) Type('-');
  EXPECT_EQ(state_.refresh_ns, 100'000'000u);
  for (int i = 0; i < 20; ++i) Type('+');
  EXPECT_EQ(state_.refresh_ns, 60'000'000'000u);
  Type('p');
  EXPECT_TRUE(state_.only_troubled);
  Type('p');
  EXPECT_FALSE(state_.tree);
  Type('p');
  EXPECT_TRUE(state_.tree);
  EXPECT_EQ(Type('s').kind, TopAction::Kind::kSnapshot);
}

TEST_F(TopStateTest, BoxesHideAndShow) {
  Type('1');
  for (const TopRow& row : BuildRows(data_, state_)) EXPECT_EQ(row.incident, nullptr);
  data_.job.comms[1].finalized = true;
  const size_t without = BuildRows(data_, state_).size();
  Type('3');
  EXPECT_EQ(BuildRows(data_, state_).size(), without + 3);
  Type('4');
  for (const TopRow& row : BuildRows(data_, state_)) {
    if (row.rank != nullptr) {
      EXPECT_TRUE(row.rank->in_flight || row.blame != RowBlame::kNone);
    }
  }
}

TEST_F(TopStateTest, TheTimeCursorStaysInTheRecording) {
  source_.live = false;
  source_.first_ns = data_.job.t_ns - 5'000'000'000;
  source_.last_ns = data_.job.t_ns + 500'000'000;
  EXPECT_EQ(Type('[').seek_ns, data_.job.t_ns - 1'000'000'000);
  EXPECT_EQ(Type('{').seek_ns, source_.first_ns);
  EXPECT_EQ(Type(']').seek_ns, source_.last_ns);
  EXPECT_EQ(Type('}').seek_ns, source_.last_ns);
  EXPECT_EQ(Press(TopKey::kLeft).seek_ns, data_.job.t_ns - 1'000'000'000);
  EXPECT_EQ(Press(TopKey::kHome).seek_ns, source_.first_ns);
  EXPECT_EQ(Press(TopKey::kEnd).seek_ns, source_.last_ns);
  Type(' ');
  EXPECT_TRUE(state_.playing);
  EXPECT_FALSE(state_.paused);
  EXPECT_EQ(Type('[').kind, TopAction::Kind::kSeek);
  EXPECT_FALSE(state_.playing) << "moving stops the play";
  source_.live = true;
  EXPECT_EQ(Type('[').kind, TopAction::Kind::kNone);
}

TEST_F(TopStateTest, AnyKeyOnAnyScreenIsHarmless) {
  for (const TopData& data : {TopData{}, StuckSample()}) {
    for (bool live : {true, false}) {
      source_.live = live;
      for (TopScreen screen : {TopScreen::kMain, TopScreen::kRank, TopScreen::kIncident,
                               TopScreen::kHelp, TopScreen::kSetup}) {
        for (bool editing : {false, true}) {
          for (int key = 0; key <= static_cast<int>(TopKey::kResize); ++key) {
            for (int c = key == 0 ? 1 : 127; c < 128; ++c) {
              TopState state;
              state.screen = screen;
              state.editing = editing;
              HandleKey(state, data, source_, 0, {static_cast<TopKey>(key), static_cast<char>(c)});
              BuildRows(data, state);
            }
          }
        }
      }
    }
  }
}

TEST_F(TopStateTest, SetupIsWrittenAsAUsersConfiguration) {
  Press(TopKey::kF2);
  EXPECT_EQ(state_.screen, TopScreen::kSetup);
  Type(' ');
  EXPECT_FALSE(state_.colour);
  Press(TopKey::kDown);
  Press(TopKey::kEnter);
  EXPECT_TRUE(state_.ascii);
  Press(TopKey::kDown);
  Press(TopKey::kRight);
  EXPECT_EQ(state_.refresh_ns, 2'000'000'000u);
  Press(TopKey::kDown);
  Press(TopKey::kLeft);
  EXPECT_EQ(state_.sort, TopSort::kHost);
  for (int i = 0; i < 9; ++i) Press(TopKey::kDown);
  Press(TopKey::kEnter);
  EXPECT_FALSE(state_.tree);
  EXPECT_EQ(Type('w').kind, TopAction::Kind::kSaveSetup);
  Config config;
  const absl::Status status = LoadConfigText(config, SetupYaml(state_), "c", ConfigScope::kUser);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.top_colour, ColourMode::kNever);
  EXPECT_TRUE(config.top_ascii);
  EXPECT_EQ(config.top_refresh_ns, 2'000'000'000u);
  EXPECT_EQ(config.top_sort, "host");
  EXPECT_FALSE(config.top_tree);
}

}  // namespace
}  // namespace mycroft
