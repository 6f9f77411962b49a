// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "userspace/base/units.h"
#include "userspace/report/top/rows.h"
#include "userspace/report/top/setup.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr size_t kMaxFilter = 60;

constexpr std::array<std::pair<TopSort, const char*>, 6> kSorts = {
    {{TopSort::kRank, "rank"},
     {TopSort::kAge, "age"},
     {TopSort::kWait, "wait"},
     {TopSort::kProgress, "progress"},
     {TopSort::kRate, "rate"},
     {TopSort::kHost, "host"}}};

size_t SelectedIndex(const std::vector<TopRow>& rows, const RowId& id) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].id == id) return i;
  }
  return 0;
}

void MoveSelection(TopState& state, const TopData& data, long by) {
  const std::vector<TopRow> rows = BuildRows(data, state);
  if (rows.empty()) return;
  const long at = static_cast<long>(SelectedIndex(rows, state.selected));
  const long last = static_cast<long>(rows.size()) - 1;
  state.selected = rows[static_cast<size_t>(std::clamp(at + by, 0L, last))].id;
}

void SelectEdge(TopState& state, const TopData& data, bool last) {
  const std::vector<TopRow> rows = BuildRows(data, state);
  if (!rows.empty()) state.selected = last ? rows.back().id : rows.front().id;
}

void Open(TopState& state, const TopData& data) {
  const std::vector<TopRow> rows = BuildRows(data, state);
  if (rows.empty()) return;
  const TopRow& row = rows[SelectedIndex(rows, state.selected)];
  state.selected = state.opened = row.id;
  state.detail_scroll = 0;
  if (row.incident != nullptr) {
    state.screen = TopScreen::kIncident;
  } else if (row.rank != nullptr) {
    state.screen = TopScreen::kRank;
  } else if (state.collapsed.erase(row.comm->comm_id) == 0) {
    state.collapsed.insert(row.comm->comm_id);
  }
}

TopAction Seek(TopState& state, const TopData& data, const TopSource& source, int64_t delta_ns) {
  TopAction action;
  action.kind = TopAction::Kind::kSeek;
  state.playing = false;
  const uint64_t now = data.job.t_ns;
  if (delta_ns < 0) {
    const uint64_t back = static_cast<uint64_t>(-delta_ns);
    action.seek_ns = now > source.first_ns + back ? now - back : source.first_ns;
  } else {
    action.seek_ns = std::min(source.last_ns, now + static_cast<uint64_t>(delta_ns));
  }
  return action;
}

void NextSort(TopState& state, int by) {
  int at = 0;
  for (size_t i = 0; i < kSorts.size(); ++i) {
    if (kSorts[i].first == state.sort) at = static_cast<int>(i);
  }
  const int n = static_cast<int>(kSorts.size());
  state.sort = kSorts[static_cast<size_t>((at + by + n) % n)].first;
  state.message = std::string("sorted by ") + ToString(state.sort);
}

void ChangeRefresh(TopState& state, bool slower) {
  static constexpr std::array<uint64_t, 8> kSteps = {kSecond / 10, kSecond / 4, kSecond / 2,
                                                     kSecond,      2 * kSecond, 5 * kSecond,
                                                     15 * kSecond, 60 * kSecond};
  if (slower) {
    const auto next = std::upper_bound(kSteps.begin(), kSteps.end(), state.refresh_ns);
    if (next != kSteps.end()) state.refresh_ns = *next;
  } else {
    const auto next = std::lower_bound(kSteps.begin(), kSteps.end(), state.refresh_ns);
    if (next != kSteps.begin()) state.refresh_ns = *(next - 1);
  }
  state.message = "refresh every " + ExactDuration(state.refresh_ns);
}

void NextPreset(TopState& state) {
  state.preset = (state.preset + 1) % 3;
  state.filter.clear();
  state.reverse = false;
  switch (state.preset) {
    case 0:
      state.tree = true, state.only_troubled = false, state.sort = TopSort::kRank;
      state.message = "preset 1: all ranks, by communicator";
      break;
    case 1:
      state.tree = true, state.only_troubled = true, state.sort = TopSort::kWait;
      state.message = "preset 2: culprits, victims and operations in flight, longest wait first";
      break;
    default:
      state.tree = false, state.only_troubled = false, state.sort = TopSort::kRate;
      state.message = "preset 3: one list, the slowest against its baseline first";
      break;
  }
}

TopAction HandleEditing(TopState& state, KeyEvent key) {
  switch (key.key) {
    case TopKey::kEnter:
      state.filter = state.edit;
      state.editing = false;
      state.selected = {};
      break;
    case TopKey::kEscape:
      state.editing = false;
      break;
    case TopKey::kBackspace:
      if (state.edit.empty()) {
        state.editing = false;
      } else {
        state.edit.pop_back();
      }
      break;
    case TopKey::kChar:
      if (key.ch >= 0x20 && key.ch < 0x7f && state.edit.size() < kMaxFilter) state.edit += key.ch;
      break;
    case TopKey::kUp:
    case TopKey::kDown:
    case TopKey::kLeft:
    case TopKey::kRight:
    case TopKey::kPageUp:
    case TopKey::kPageDown:
    case TopKey::kHome:
    case TopKey::kEnd:
    case TopKey::kF1:
    case TopKey::kF2:
    case TopKey::kF6:
    case TopKey::kResize:
      break;
    case TopKey::kF10:
      return {TopAction::Kind::kQuit};
  }
  return {};
}

void Scroll(TopState& state, long by) {
  const long at = static_cast<long>(state.detail_scroll) + by;
  state.detail_scroll = at < 0 ? 0 : static_cast<size_t>(at);  // the renderer bounds it above
}

TopAction HandleSetup(TopState& state, KeyEvent key) {
  if (key.key == TopKey::kUp || key.ch == 'k') {
    state.setup_row = std::max(0, state.setup_row - 1);
  } else if (key.key == TopKey::kDown || key.ch == 'j') {
    state.setup_row = std::min(kSetupRows - 1, state.setup_row + 1);
  } else if (key.key == TopKey::kEnter || key.key == TopKey::kRight || key.ch == ' ') {
    ChangeSetup(state, 1);
  } else if (key.key == TopKey::kLeft) {
    ChangeSetup(state, -1);
  } else if (key.ch == 'w') {
    return {TopAction::Kind::kSaveSetup};
  }
  return {};
}

TopAction HandleChar(TopState& state, const TopData& data, const TopSource& source, size_t page,
                     char ch) {
  switch (ch) {
    case 'j':
      MoveSelection(state, data, 1);
      break;
    case 'k':
      MoveSelection(state, data, -1);
      break;
    case 'g':
      SelectEdge(state, data, false);
      break;
    case 'G':
      SelectEdge(state, data, true);
      break;
    case '/':
    case 'f':
      state.editing = true;
      state.edit = state.filter;
      break;
    case '<':
      NextSort(state, -1);
      break;
    case '>':
      NextSort(state, 1);
      break;
    case 'r':
      state.reverse = !state.reverse;
      state.message = state.reverse ? "order reversed" : "order normal";
      break;
    case 'e':
    case 't':
      state.tree = !state.tree;
      break;
    case 'p':
      NextPreset(state);
      break;
    case '1':
      state.show_incidents = !state.show_incidents;
      break;
    case '2':
      state.show_status = !state.show_status;
      break;
    case '3':
      state.show_finalized = !state.show_finalized;
      state.message = state.show_finalized ? "finalized communicators are shown"
                                           : "finalized communicators are hidden";
      break;
    case '4':
      state.only_troubled = !state.only_troubled;
      break;
    case '[':
    case ']':
      if (!source.live) {
        return Seek(state, data, source, ch == ']' ? int64_t{kSecond} : -int64_t{kSecond});
      }
      break;
    case '{':
    case '}':
      if (!source.live) {
        return Seek(state, data, source, (ch == '}' ? 10 : -10) * int64_t{kSecond});
      }
      break;
    default:
      break;
  }
  (void)page;
  return {};
}

}  // namespace

const char* ToString(TopSort sort) {
  for (const auto& [value, name] : kSorts) {
    if (value == sort) return name;
  }
  return "rank";
}

bool ParseTopSort(const std::string& text, TopSort& sort) {
  for (const auto& [value, name] : kSorts) {
    if (text == name) {
      sort = value;
      return true;
    }
  }
  return false;
}

TopAction HandleKey(TopState& state, const TopData& data, const TopSource& source, size_t page,
                    KeyEvent key) {
  if (key.key == TopKey::kResize) return {};
  state.message.clear();
  if (state.editing) return HandleEditing(state, key);
  const char ch = key.key == TopKey::kChar ? key.ch : '\0';
  if (key.key == TopKey::kF10) return {TopAction::Kind::kQuit};
  if (key.key == TopKey::kEscape || ch == 'q') {
    if (state.screen == TopScreen::kMain && key.key == TopKey::kEscape && !state.filter.empty()) {
      state.filter.clear();
      return {};
    }
    if (state.screen == TopScreen::kMain) return {TopAction::Kind::kQuit};
    state.screen = TopScreen::kMain;
    return {};
  }
  // Keys that mean the same on every screen.
  if (key.key == TopKey::kF1 || ch == 'h' || ch == '?') {
    state.screen = state.screen == TopScreen::kHelp ? TopScreen::kMain : TopScreen::kHelp;
    state.detail_scroll = 0;
    return {};
  }
  if (key.key == TopKey::kF2 || ch == 'o') {
    state.screen = state.screen == TopScreen::kSetup ? TopScreen::kMain : TopScreen::kSetup;
    return {};
  }
  if (ch == 's') return {TopAction::Kind::kSnapshot};
  if (ch == '+' || ch == '-') {
    ChangeRefresh(state, ch == '+');
    return {};
  }
  if (state.screen == TopScreen::kSetup) return HandleSetup(state, key);
  if (ch == 'u' || ch == ' ') {
    if (source.live) {
      state.paused = !state.paused;
    } else {
      state.playing = !state.playing;
    }
    return {};
  }
  const long rows = static_cast<long>(std::max<size_t>(page, 2)) - 1;
  const bool main = state.screen == TopScreen::kMain;
  switch (key.key) {
    case TopKey::kUp:
      main ? MoveSelection(state, data, -1) : Scroll(state, -1);
      return {};
    case TopKey::kDown:
      main ? MoveSelection(state, data, 1) : Scroll(state, 1);
      return {};
    case TopKey::kPageUp:
      main ? MoveSelection(state, data, -rows) : Scroll(state, -rows);
      return {};
    case TopKey::kPageDown:
      main ? MoveSelection(state, data, rows) : Scroll(state, rows);
      return {};
    case TopKey::kLeft:
    case TopKey::kRight:
      if (source.live) return {};
      return Seek(state, data, source,
                  key.key == TopKey::kRight ? int64_t{kSecond} : -int64_t{kSecond});
    case TopKey::kHome:
    case TopKey::kEnd:
      if (!source.live) {
        TopAction action;
        action.kind = TopAction::Kind::kSeek;
        action.seek_ns = key.key == TopKey::kHome ? source.first_ns : source.last_ns;
        state.playing = false;
        return action;
      }
      if (main) SelectEdge(state, data, key.key == TopKey::kEnd);
      return {};
    case TopKey::kEnter:
      main ? Open(state, data) : void(state.screen = TopScreen::kMain);
      return {};
    case TopKey::kBackspace:
      if (!main) state.screen = TopScreen::kMain;
      return {};
    case TopKey::kF6:
      NextSort(state, 1);
      return {};
    case TopKey::kChar:
      if (!main && (ch == 'j' || ch == 'k')) {
        Scroll(state, ch == 'j' ? 1 : -1);
        return {};
      }
      return HandleChar(state, data, source, page, ch);
    case TopKey::kEscape:
    case TopKey::kF1:
    case TopKey::kF2:
    case TopKey::kF10:
    case TopKey::kResize:
      return {};
  }
  return {};
}

}  // namespace mycroft
