// SPDX-License-Identifier: Apache-2.0
//
// Draws one frame from what is known and what the user has chosen:
//
//   line 0     is anything stuck, what, since when, whose fault
//   line 1     the same in a sentence, or the last incident that has cleared
//   line 2     the source: live, or the recording with its time cursor
//   line 3     column titles
//   line 4..   incidents, communicators, ranks
//   last line  keys, a message, or the filter being typed
//
// Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_RENDER_H_
#define MYCROFT_USERSPACE_REPORT_TOP_RENDER_H_

#include <cstddef>

#include "userspace/report/top/frame.h"
#include "userspace/report/top/state.h"

namespace mycroft {

struct FrameSize {
  size_t width = 80;
  size_t height = 24;  // 0: as many lines as there are rows, no footer
};

inline constexpr size_t kMinWidth = 40;
inline constexpr size_t kMinHeight = 8;

// Moves `state.scroll` and `state.detail_scroll` so that the selection is visible.
Frame RenderTop(const TopData& data, const TopSource& source, TopState& state,
                const FrameSize& size);

// Rows of the main screen that fit below the titles.
size_t PageRows(const TopState& state, const FrameSize& size);

// The first line alone, not cut: also what `record` prints for an incident.
FrameLine Headline(const TopData& data, const TopSource& source);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_RENDER_H_
