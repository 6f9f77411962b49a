// SPDX-License-Identifier: Apache-2.0
//
// Small text helpers of the reports: wrapping, cleaning, units. Names come from
// other people's processes, so nothing reaches a terminal before PrintableText.
// Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_TEXT_H_
#define MYCROFT_USERSPACE_REPORT_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mycroft {

// Replaces control characters (C0, C1, DEL) by '?' and bytes that are not UTF-8
// by U+FFFD: no escape sequence gets through.
std::string PrintableText(const std::string& text);

// Columns that `text` takes on a terminal: code points, without ANSI sequences.
size_t DisplayWidth(const std::string& text);

// Appends `text` to `out`, broken at spaces so that no line is wider than
// `columns` (longer words are left whole). The first line starts with `first`,
// the following ones with as many spaces as `first` is wide.
void AppendWrapped(std::string& out, const std::string& first, const std::string& text,
                   size_t columns = 80);

// "850 us", "12.3 ms", "3.21 s", "4 min 05 s", "2 h 03 min".
std::string DurationText(uint64_t ns);
// "512 B", "4.0 KiB", "1.5 GiB".
std::string BytesText(uint64_t bytes);
// NCCL's communicator id as in its log, without prefix: "9a40ddbf57b04e".
std::string HexText(uint64_t value);
// Sorted, each once: "3", "0-2, 5".
std::string RankList(std::vector<int32_t> ranks);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TEXT_H_
