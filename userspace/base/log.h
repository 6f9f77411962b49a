// SPDX-License-Identifier: Apache-2.0
//
// Messages for people, on standard error, one line each: "mycroft: warning: ...".
// What, where, what to do. Standard output belongs to results alone. Thread-safe.
#ifndef MYCROFT_USERSPACE_BASE_LOG_H_
#define MYCROFT_USERSPACE_BASE_LOG_H_

#include <string>

#include "absl/status/status.h"

namespace mycroft {

enum class Verbosity { kQuiet, kNormal, kVerbose };

void SetVerbosity(Verbosity verbosity);
Verbosity GetVerbosity();

void LogError(const std::string& text);    // always
void LogWarning(const std::string& text);  // always
void LogInfo(const std::string& text);     // not with -q
void LogDetail(const std::string& text);   // with -v

// The message of a status without its code's name, which says nothing to a user;
// several lines become one.
std::string StatusText(const absl::Status& status);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_LOG_H_
