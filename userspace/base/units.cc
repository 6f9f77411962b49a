// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/units.h"

#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace mycroft {
namespace {

// long double: holds every uint64_t exactly.
using Unit = std::pair<std::string, long double>;

const std::vector<Unit>& DurationUnits() {
  static const std::vector<Unit> units = {
      {"ns", 1},   {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
      {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9},
  };
  return units;
}

const std::vector<Unit>& ByteUnits() {
  static const std::vector<Unit> units = {
      {"", 1},
      {"B", 1},
      {"K", 1024.0},
      {"KiB", 1024.0},
      {"kB", 1e3},
      {"KB", 1e3},
      {"M", 1048576.0},
      {"MiB", 1048576.0},
      {"MB", 1e6},
      {"G", 1073741824.0},
      {"GiB", 1073741824.0},
      {"GB", 1e9},
      {"T", 1099511627776.0},
      {"TiB", 1099511627776.0},
      {"TB", 1e12},
  };
  return units;
}

// Reads "<digits>[.<digits>]" at `pos`; not strtod, which knows hex, inf and locales.
bool ReadNumber(const std::string& text, size_t& pos, long double& value) {
  const size_t begin = pos;
  value = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    value = value * 10 + (text[pos++] - '0');
  }
  if (pos == begin) return false;
  if (pos < text.size() && text[pos] == '.') {
    ++pos;
    long double scale = 0.1L;
    const size_t fraction = pos;
    while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
      value += (text[pos++] - '0') * scale;
      scale /= 10;
    }
    if (pos == fraction) return false;
  }
  return true;
}

std::string ReadUnit(const std::string& text, size_t& pos) {
  const size_t begin = pos;
  while (pos < text.size() &&
         ((text[pos] >= 'a' && text[pos] <= 'z') || (text[pos] >= 'A' && text[pos] <= 'Z'))) {
    ++pos;
  }
  return text.substr(begin, pos - begin);
}

const Unit* Find(const std::vector<Unit>& units, const std::string& name) {
  for (const Unit& unit : units) {
    if (unit.first == name) return &unit;
  }
  return nullptr;
}

absl::StatusOr<uint64_t> ToInteger(long double value, const std::string& text) {
  const long double rounded = std::round(value);
  // 2^64 is the first number that does not fit.
  if (!(rounded < 18446744073709551616.0L)) {
    return absl::InvalidArgumentError("'" + text + "' is too large");
  }
  return static_cast<uint64_t>(rounded);
}

std::string Print(const char* format, double value, const char* unit) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, format, value, unit);
  return buffer;
}

}  // namespace

absl::StatusOr<uint64_t> ParseDuration(const std::string& text) {
  if (text == "0") return uint64_t{0};
  const absl::Status bad = absl::InvalidArgumentError(
      "'" + text + "' is not a duration: write a number and a unit, for example 100ms, 2s, 5m, 1h");
  long double total = 0;
  size_t pos = 0;
  do {
    long double number = 0;
    if (!ReadNumber(text, pos, number)) return bad;
    const Unit* unit = Find(DurationUnits(), ReadUnit(text, pos));
    if (unit == nullptr) return bad;
    total += number * unit->second;
  } while (pos < text.size());
  return ToInteger(total, text);
}

absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  size_t pos = 0;
  long double number = 0;
  const bool have_number = ReadNumber(text, pos, number);
  const Unit* unit = have_number ? Find(ByteUnits(), ReadUnit(text, pos)) : nullptr;
  if (unit == nullptr || pos != text.size()) {
    return absl::InvalidArgumentError("'" + text +
                                      "' is not a size: write for example 512MiB, 10GB or 4096");
  }
  return ToInteger(number * unit->second, text);
}

std::string ShortDuration(uint64_t ns) {
  const double value = static_cast<double>(ns);
  char buffer[48];
  if (ns < 1'000) return std::to_string(ns) + "ns";
  if (ns < 1'000'000) return Print("%.0f%s", std::floor(value / 1e3), "us");
  if (ns < 1'000'000'000) return Print("%.0f%s", std::floor(value / 1e6), "ms");
  const uint64_t s = ns / 1'000'000'000;
  if (s < 60) return Print("%.1f%s", std::floor(value / 1e8) / 10, "s");
  const unsigned long long m = s / 60, h = m / 60, d = h / 24;
  if (h == 0) {
    std::snprintf(buffer, sizeof buffer, "%llum%02llus", m,
                  static_cast<unsigned long long>(s % 60));
  } else if (d < 4) {
    std::snprintf(buffer, sizeof buffer, "%lluh%02llum", h, m % 60);
  } else if (d < 100) {
    std::snprintf(buffer, sizeof buffer, "%llud%02lluh", d, h % 24);
  } else {
    std::snprintf(buffer, sizeof buffer, "%llud", d);
  }
  return buffer;
}

std::string ShortRate(double bytes_per_s) {
  if (!std::isfinite(bytes_per_s) || bytes_per_s < 0) return "?";
  static const char* const kUnits[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"};
  size_t unit = 0;
  double value = bytes_per_s;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  if (value >= 999.5) return ">1EB/s";
  return Print(unit > 0 && value < 9.95 ? "%.1f%s" : "%.0f%s", value, kUnits[unit]);
}

std::string ExactDuration(uint64_t ns) {
  static const std::pair<const char*, uint64_t> kUnits[] = {
      {"d", 86400'000'000'000}, {"h", 3600'000'000'000}, {"m", 60'000'000'000},
      {"s", 1'000'000'000},     {"ms", 1'000'000},       {"us", 1'000}};
  if (ns == 0) return "0";
  for (const auto& [name, scale] : kUnits) {
    if (ns % scale == 0) return std::to_string(ns / scale) + name;
  }
  return std::to_string(ns) + "ns";
}

std::string ExactBytes(uint64_t bytes) {
  static const std::pair<const char*, uint64_t> kUnits[] = {
      {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}};
  if (bytes == 0) return "0";
  for (const auto& [name, scale] : kUnits) {
    if (bytes % scale == 0) return std::to_string(bytes / scale) + name;
  }
  return std::to_string(bytes);
}

}  // namespace mycroft
