// SPDX-License-Identifier: Apache-2.0
//
// Names of the numbers of infiniband/verbs.h, as people know them. A number that has none
// is "status 77". Free functions, thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_VERBS_NAMES_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_VERBS_NAMES_H_

#include <cstdint>
#include <string>

namespace mycroft {

std::string VerbsStatusName(uint32_t status);  // enum ibv_wc_status: "transport retry exceeded"
std::string VerbsEventName(uint32_t type);     // enum ibv_event_type: "port error"
std::string VerbsStateName(uint32_t state);    // enum ibv_qp_state: "RTS"
uint32_t VerbsMtuBytes(uint32_t mtu);          // enum ibv_mtu: 4096; 0: no such

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_VERBS_NAMES_H_
