// SPDX-License-Identifier: Apache-2.0
//
// What the user of `mycroft top` has chosen, and how keys change it. No terminal
// in here: the state machine is tested with keys in, state out. Not thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_STATE_H_
#define MYCROFT_USERSPACE_REPORT_TOP_STATE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/model/view.h"

namespace mycroft {

// What is shown: one instant of a job, live or recorded.
struct TopData {
  JobView job;
  std::vector<Incident> incidents;  // found up to job.t_ns
  std::vector<BlindSpot> blind_spots;
};

// Where the data comes from, for the status line.
struct TopSource {
  bool live = true;
  std::string name;          // "live", or the file
  uint64_t interval_ns = 0;  // sampling
  uint64_t first_ns = 0;     // of a recording
  uint64_t last_ns = 0;
  double reading = 1;   // 0..1 of the way to where the cursor was sent
  std::string problem;  // why no more data comes; empty: fine
};

enum class TopScreen : uint8_t { kMain, kRank, kIncident, kHelp, kSetup };
enum class TopSort : uint8_t { kRank, kAge, kWait, kProgress, kRate, kHost };

const char* ToString(TopSort sort);
bool ParseTopSort(const std::string& text, TopSort& sort);

// Names a row across refreshes.
struct RowId {
  enum class Kind : uint8_t { kNone, kIncident, kComm, kRank };
  Kind kind = Kind::kNone;
  uint64_t id = 0;   // of the incident, or of the communicator
  int32_t rank = 0;  // in the communicator
  friend auto operator<=>(const RowId&, const RowId&) = default;
};

struct TopState {
  TopScreen screen = TopScreen::kMain;
  RowId selected;     // kNone: the first row
  RowId opened;       // what the detail screen shows
  size_t scroll = 0;  // first visible row
  size_t detail_scroll = 0;
  TopSort sort = TopSort::kRank;
  bool reverse = false;
  bool tree = true;
  std::string filter;
  bool editing = false;  // the filter is being typed
  std::string edit;
  std::set<uint64_t> collapsed;  // communicators
  bool show_incidents = true;    // box 1
  bool show_status = true;       // box 2
  bool show_finalized = false;   // box 3
  bool only_troubled = false;    // box 4: culprits, victims and what is in flight
  int preset = 0;
  bool paused = false;
  bool playing = false;
  bool ascii = false;
  bool colour = true;
  uint64_t refresh_ns = 1'000'000'000;
  int setup_row = 0;
  std::string message;  // shown in the footer until the next key
};

enum class TopKey : uint8_t {
  kChar,
  kUp,
  kDown,
  kLeft,
  kRight,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kEnter,
  kEscape,
  kBackspace,
  kF1,
  kF2,
  kF6,
  kF10,
  kResize,
};

struct KeyEvent {
  TopKey key = TopKey::kChar;
  char ch = 0;  // for kChar, ASCII
};

// What a key asks of the program around the state.
struct TopAction {
  enum class Kind : uint8_t { kNone, kQuit, kSnapshot, kSeek, kSaveSetup };
  Kind kind = Kind::kNone;
  uint64_t seek_ns = 0;
};

// Changes `state`. `page` is the number of rows on the screen.
TopAction HandleKey(TopState& state, const TopData& data, const TopSource& source, size_t page,
                    KeyEvent key);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_STATE_H_
