// SPDX-License-Identifier: Apache-2.0
//
// Text of fixed width for terminals, and spelling help. Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_BASE_TEXT_H_
#define MYCROFT_USERSPACE_BASE_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

namespace mycroft {

// Terminal cells that UTF-8 text takes: two for wide characters, none for combining
// ones, one for every other code point and for every byte that is not UTF-8.
size_t CellWidth(const std::string& text);

enum class Align { kLeft, kRight };

// Exactly `cells` wide: padded with spaces, or cut with `ellipsis` as the last cell.
std::string FitCells(const std::string& text, size_t cells, Align align = Align::kLeft,
                     const std::string& ellipsis = "~");

// The name that `wanted` was probably meant to be; empty when none is near.
std::string ClosestName(const std::string& wanted, const std::vector<std::string>& names);

// "a, b, c".
std::string JoinNames(const std::vector<std::string>& names, const std::string& separator = ", ");

// In single quotes, control characters as \xNN, at most 80 bytes: safe in a message.
std::string QuotedText(const std::string& text);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_TEXT_H_
