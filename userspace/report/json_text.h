// SPDX-License-Identifier: Apache-2.0
//
// A text as a JSON string, for what is written by hand. Pure, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_JSON_TEXT_H_
#define MYCROFT_USERSPACE_REPORT_JSON_TEXT_H_

#include <string>

namespace mycroft {

// With its quotes. Control characters become "?" and bytes that are
// not UTF-8 U+FFFD, as in PrintableText: names come from other people's processes.
// "<" is escaped, so that no "</script>" gets into a page.
std::string JsonText(const std::string& text);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_JSON_TEXT_H_
