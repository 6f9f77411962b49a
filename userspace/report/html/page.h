// SPDX-License-Identifier: Apache-2.0
//
// The template of the HTML export, html/timeline.html, as it was at build time.
// kPageDataMark stands once in it, where the data goes. Pure, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_HTML_PAGE_H_
#define MYCROFT_USERSPACE_REPORT_HTML_PAGE_H_

#include <string>

namespace mycroft {

inline constexpr char kPageDataMark[] = "%%MYCROFT_DATA%%";

std::string TimelinePage();

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_HTML_PAGE_H_
