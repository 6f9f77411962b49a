// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/frame.h"

namespace mycroft {
namespace {

const char* Ansi(TextStyle style) {
  switch (style) {
    case TextStyle::kNormal:
      return "";
    case TextStyle::kDim:
      return "\x1b[2m";
    case TextStyle::kBold:
    case TextStyle::kHeader:
    case TextStyle::kKey:
      return "\x1b[1m";
    case TextStyle::kGood:
      return "\x1b[32m";
    case TextStyle::kWarning:
      return "\x1b[1;33m";
    case TextStyle::kCritical:
      return "\x1b[1;31m";
  }
  return "";
}

}  // namespace

std::string FrameText(const Frame& frame, bool colour) {
  std::string out;
  for (const FrameLine& line : frame.lines) {
    std::string text;
    size_t keep = 0;  // up to the last character that is not a space
    for (const Span& span : line.spans) {
      const std::string ansi = colour ? Ansi(span.style) : "";
      text += ansi;
      const size_t begin = text.size();
      text += span.text;
      const size_t last = span.text.find_last_not_of(' ');
      if (last != std::string::npos) keep = begin + last + 1;
      if (ansi.empty()) continue;
      if (keep > begin) text.resize(keep);
      text += "\x1b[0m";
      if (keep > begin) {
        keep = text.size();
        text += span.text.substr(last + 1);
      }
    }
    text.resize(keep);
    out += text + "\n";
  }
  return out;
}

}  // namespace mycroft
