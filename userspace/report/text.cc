// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/text.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

namespace mycroft {
namespace {

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char buffer[128];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  return buffer;
}

// Length of the valid UTF-8 sequence at `p`, 0 if there is none; its code point.
size_t DecodeUtf8(const unsigned char* p, size_t left, uint32_t* code) {
  if (p[0] < 0x80) {
    *code = p[0];
    return 1;
  }
  size_t length = 0;
  uint32_t value = 0, least = 0;
  if ((p[0] & 0xe0) == 0xc0) {
    length = 2, value = p[0] & 0x1f, least = 0x80;
  } else if ((p[0] & 0xf0) == 0xe0) {
    length = 3, value = p[0] & 0x0f, least = 0x800;
  } else if ((p[0] & 0xf8) == 0xf0) {
    length = 4, value = p[0] & 0x07, least = 0x10000;
  } else {
    return 0;
  }
  if (left < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((p[i] & 0xc0) != 0x80) return 0;
    value = value << 6 | (p[i] & 0x3f);
  }
  if (value < least || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
  *code = value;
  return length;
}

}  // namespace

std::string PrintableText(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (size_t i = 0; i < text.size();) {
    uint32_t code = 0;
    const size_t length = DecodeUtf8(p + i, text.size() - i, &code);
    if (length == 0) {
      out += "\xef\xbf\xbd";
      ++i;
      continue;
    }
    if (code < 0x20 || (code >= 0x7f && code < 0xa0)) {
      out += '?';
    } else {
      out.append(text, i, length);
    }
    i += length;
  }
  return out;
}

size_t DisplayWidth(const std::string& text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0x1b && i + 1 < text.size() && text[i + 1] == '[') {
      for (i += 2; i < text.size() && (text[i] < '@' || text[i] > '~'); ++i) {
      }
    } else if ((c & 0xc0) != 0x80) {
      ++width;
    }
  }
  return width;
}

void AppendWrapped(std::string& out, const std::string& first, const std::string& text,
                   size_t columns) {
  const size_t indent = DisplayWidth(first);
  out += first;
  size_t column = indent;
  bool start_of_line = true;
  for (size_t i = 0; i < text.size();) {
    size_t end = text.find(' ', i);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(i, end - i);
    const size_t width = DisplayWidth(word);
    if (!start_of_line && column + 1 + width > columns) {
      out += '\n';
      out.append(indent, ' ');
      column = indent;
      start_of_line = true;
    }
    if (!start_of_line) {
      out += ' ';
      ++column;
    }
    out += word;
    column += width;
    start_of_line = false;
    i = end + 1;
  }
  out += '\n';
}

std::string DurationText(uint64_t ns) {
  const double s = static_cast<double>(ns) / 1e9;
  if (ns < 1'000) return Format("%" PRIu64 " ns", ns);
  if (ns < 999'500) return Format("%.3g us", s * 1e6);
  if (ns < 999'500'000) return Format("%.3g ms", s * 1e3);
  if (s < 9.995) return Format("%.2f s", s);
  if (s < 120) return Format("%.1f s", s);
  const uint64_t seconds = ns / 1'000'000'000;
  if (seconds < 7200) return Format("%" PRIu64 " min %02" PRIu64 " s", seconds / 60, seconds % 60);
  return Format("%" PRIu64 " h %02" PRIu64 " min", seconds / 3600, seconds / 60 % 60);
}

std::string BytesText(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return Format("%" PRIu64 " B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < sizeof kUnits / sizeof kUnits[0]) {
    value /= 1024;
    ++unit;
  }
  return Format("%.1f %s", value, kUnits[unit]);
}

std::string HexText(uint64_t value) { return Format("%" PRIx64, value); }

std::string RankList(std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && int64_t{ranks[last + 1]} == int64_t{ranks[last]} + 1) ++last;
    if (!out.empty()) out += ", ";
    out += std::to_string(ranks[i]);
    if (last > i) out += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace mycroft
