// SPDX-License-Identifier: Apache-2.0
//
// One screenful as styled text: what the renderer makes, and what the terminal, a
// text file and the tests show. Values only.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_FRAME_H_
#define MYCROFT_USERSPACE_REPORT_TOP_FRAME_H_

#include <cstdint>
#include <string>
#include <vector>

namespace mycroft {

enum class TextStyle : uint8_t {
  kNormal,
  kDim,
  kBold,
  kGood,      // nothing is wrong
  kWarning,   // slow; a victim
  kCritical,  // stuck; a culprit
  kHeader,    // column titles, footer
  kKey,       // a key in the footer
};

struct Span {
  std::string text;  // printable, no line breaks
  TextStyle style = TextStyle::kNormal;
};

struct FrameLine {
  std::vector<Span> spans;
  bool selected = false;
};

struct Frame {
  std::vector<FrameLine> lines;
};

// Lines of text without trailing spaces; the style as ANSI colours when `colour`.
std::string FrameText(const Frame& frame, bool colour = false);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_FRAME_H_
