// SPDX-License-Identifier: Apache-2.0
//
// Small files of sysfs and procfs. They may vanish between two reads, return an
// error instead of text (a device that no longer answers), or hold what the parser
// did not expect: all of that is nullopt, which is neither zero nor an absence.
// Free functions, thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_SYSFS_H_
#define MYCROFT_USERSPACE_SOURCE_SYSFS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mycroft {

// A number that fills the text but for blanks around it: decimal, or hexadecimal after
// "0x". nullopt for anything else, numbers beyond 64 bits included.
std::optional<uint64_t> ParseNumber(std::string_view text);

// A finite number and the unit right behind it: 16 of "16.0 GT/s PCIe" with " GT/s".
// What follows the unit does not matter. nullopt for anything else.
std::optional<double> ParseQuantity(std::string_view text, std::string_view unit);

// The rest of the first line that begins with `key`, blanks included; nullopt: none does.
std::optional<std::string_view> AfterKey(std::string_view text, std::string_view key);

// The first line of a file, without blanks at its end; of long files, of the first 4 KiB.
std::optional<std::string> ReadFirstLine(const std::string& path);
std::optional<uint64_t> ReadNumber(const std::string& path);

// The last component of a symbolic link's target; empty: not a link, or unreadable.
std::string LinkName(const std::string& path);

// Names in a folder, sorted, without those that begin with a dot; at most
// `max_entries`. nullopt: the folder cannot be read, which says nothing of its content.
std::optional<std::vector<std::string>> ListFolder(const std::string& path,
                                                   size_t max_entries = 4096);

enum class Presence { kPresent, kAbsent, kUnknown };
// Absent only when the folder above is there and readable, and has no such entry.
Presence PresenceOf(const std::string& folder, const std::string& name);

// Cumulative counter over resets and failed reads. The kernel's counter starts again
// from zero when a driver is loaded again or a device is reset; what it had counted
// before stays in the total. What it counted between the last read and the reset is
// not known and is missing. Not thread-safe.
class CounterTracker {
 public:
  // `read` is what the kernel says now. The total; nullopt when the read failed: the
  // next one that works goes on from the total that is known.
  std::optional<uint64_t> Update(std::optional<uint64_t> read);
  uint64_t total() const { return before_ + last_; }  // as far as it is known
  uint64_t resets() const { return resets_; }

 private:
  uint64_t before_ = 0;  // counted before the last reset
  uint64_t last_ = 0;
  uint64_t resets_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_SYSFS_H_
