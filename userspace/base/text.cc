// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/text.h"

#include <wchar.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>

namespace mycroft {
namespace {

struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 1;
  bool valid = false;
};

CodePoint Decode(const std::string& text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(pos);
  if (first < 0x80) return {first, 1, true};
  size_t more = 0;
  uint32_t value = 0, least = 0;
  if ((first & 0xe0) == 0xc0) {
    more = 1, value = first & 0x1f, least = 0x80;
  } else if ((first & 0xf0) == 0xe0) {
    more = 2, value = first & 0x0f, least = 0x800;
  } else if ((first & 0xf8) == 0xf0) {
    more = 3, value = first & 0x07, least = 0x10000;
  } else {
    return {first, 1, false};
  }
  if (pos + more >= text.size()) return {first, 1, false};
  for (size_t i = 1; i <= more; ++i) {
    if ((byte(pos + i) & 0xc0) != 0x80) return {first, 1, false};
    value = value << 6 | (byte(pos + i) & 0x3f);
  }
  if (value < least || value > 0x10ffff) return {first, 1, false};
  return {value, more + 1, true};
}

size_t Cells(const CodePoint& point) {
  if (!point.valid || point.value < 0x80) return 1;
  const int width = wcwidth(static_cast<wchar_t>(point.value));
  // -1: not printable in this locale; the terminal will still move on by one.
  return width < 0 ? 1 : static_cast<size_t>(width);
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

size_t CellWidth(const std::string& text) {
  size_t cells = 0;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint point = Decode(text, pos);
    cells += Cells(point);
    pos += point.bytes;
  }
  return cells;
}

std::string FitCells(const std::string& text, size_t cells, Align align,
                     const std::string& ellipsis) {
  const size_t width = CellWidth(text);
  if (width <= cells) {
    const std::string pad(cells - width, ' ');
    return align == Align::kLeft ? text + pad : pad + text;
  }
  if (cells == 0) return "";
  std::string out;
  size_t used = 0;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint point = Decode(text, pos);
    if (used + Cells(point) > cells - 1) break;
    out += text.substr(pos, point.bytes);
    used += Cells(point);
    pos += point.bytes;
  }
  out += ellipsis;
  out += std::string(cells - used - 1, ' ');
  return out;
}

std::string ClosestName(const std::string& wanted, const std::vector<std::string>& names) {
  if (wanted.size() > 100) return "";
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& name : names) {
    size_t distance = EditDistance(wanted, name);
    // A last part alone is near: "max_size" for "record.max_size".
    const size_t dot = name.rfind('.');
    if (dot != std::string::npos) {
      distance = std::min(distance, EditDistance(wanted, name.substr(dot + 1)) + 1);
    }
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best_distance <= std::max<size_t>(2, wanted.size() / 3) && best_distance < wanted.size()
             ? best
             : "";
}

std::string JoinNames(const std::vector<std::string>& names, const std::string& separator) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += separator;
    out += names[i];
  }
  return out;
}

std::string QuotedText(const std::string& text) {
  std::string out = "'";
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == 80) return out + "...'";
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c >= 0x7f) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", c);
      out += hex;
    } else {
      out += text[i];
    }
  }
  return out + "'";
}

}  // namespace mycroft
