// SPDX-License-Identifier: Apache-2.0
//
// Exit codes of the command: part of its interface, documented in the manual.
#ifndef MYCROFT_TOOLS_MYCROFT_EXIT_CODES_H_
#define MYCROFT_TOOLS_MYCROFT_EXIT_CODES_H_

namespace mycroft {

enum ExitCode {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,
  kExitStall = 3,     // an incident was found
  kExitDegraded = 4,  // nothing found, but not everything could be seen
  kExitNothing = 5,   // nothing to observe
};

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_EXIT_CODES_H_
