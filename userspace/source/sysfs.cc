// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/sysfs.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "userspace/source/proc.h"

namespace mycroft {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

}  // namespace

std::optional<uint64_t> ParseNumber(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    text.remove_prefix(2);
    base = 16;
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> ParseQuantity(std::string_view text, std::string_view unit) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.substr(0, unit.size()) != unit) return std::nullopt;
  return value;
}

std::optional<std::string_view> AfterKey(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (text.substr(0, key.size()) == key) return text.substr(key.size(), end - key.size());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

std::optional<std::string> ReadFirstLine(const std::string& path) {
  std::optional<std::string> text = ReadSmallFile(path, 4096);
  if (!text) return std::nullopt;
  text->resize(std::min(text->find('\n'), text->size()));
  text->resize(text->find_last_not_of(kBlanks) + 1);  // npos + 1 == 0
  return text;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadSmallFile(path, 64);
  return text ? ParseNumber(*text) : std::nullopt;
}

std::string LinkName(const std::string& path) {
  char target[4096];
  const ssize_t n = readlink(path.c_str(), target, sizeof target);
  if (n <= 0 || n == static_cast<ssize_t>(sizeof target)) return "";
  const std::string text(target, static_cast<size_t>(n));
  return text.substr(text.rfind('/') + 1);  // npos + 1 == 0
}

std::optional<std::vector<std::string>> ListFolder(const std::string& path, size_t max_entries) {
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return std::nullopt;
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    if (names.size() >= max_entries) break;
    names.emplace_back(entry->d_name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

Presence PresenceOf(const std::string& folder, const std::string& name) {
  struct stat info {};
  if (lstat((folder + "/" + name).c_str(), &info) == 0) return Presence::kPresent;
  if (errno != ENOENT) return Presence::kUnknown;
  const auto entries = ListFolder(folder, 1 << 16);
  if (!entries) return Presence::kUnknown;
  return std::binary_search(entries->begin(), entries->end(), name) ? Presence::kPresent
                                                                    : Presence::kAbsent;
}

std::optional<uint64_t> CounterTracker::Update(std::optional<uint64_t> read) {
  if (!read) return std::nullopt;
  if (*read < last_) {
    before_ += last_;
    ++resets_;
  }
  last_ = *read;
  return before_ + last_;
}

}  // namespace mycroft
