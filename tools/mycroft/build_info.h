// SPDX-License-Identifier: Apache-2.0
#ifndef MYCROFT_TOOLS_MYCROFT_BUILD_INFO_H_
#define MYCROFT_TOOLS_MYCROFT_BUILD_INFO_H_

namespace mycroft {

// The git revision when the build was configured, with "-dirty" after local changes; "unknown"
// outside a checkout.
const char* BuildRevision();

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_BUILD_INFO_H_
