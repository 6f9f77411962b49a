// SPDX-License-Identifier: Apache-2.0
//
// The wire between launcher and rank: one JSON object per packet of a Unix socket
// (SOCK_SEQPACKET). Every message has "t".
//
//   launcher -> rank
//     config  the job          ports  listening ports by rank     go  t0: zero of `at`
//     limit   do not start another iteration, say how many were started
//     resume  at: go on; do "stop": end before iteration `at`; "pause": sleep `ns` before it
//     abort   leave now
//   rank -> launcher
//     hello   port             ready  tids of the progress threads, note on the plugin
//     iter    i, s start, q all calls enqueued, d stream drained (ns)
//     limit   n iterations started
//     fault   i index, b begun, ns
//     note    what: said by a device, no failure
//     error   what             done   iters, bad (iterations with wrong data), result
#ifndef MYCROFT_TOOLS_LAB_JOB_CONTROL_H_
#define MYCROFT_TOOLS_LAB_JOB_CONTROL_H_

#include "nlohmann/json.hpp"

namespace mycroft::lab {

// False when the peer is gone, or its queue is full: a rank never waits for the launcher.
bool SendControl(int fd, const nlohmann::json& message);

enum class ControlResult { kMessage, kNothing, kClosed };
// Does not block. A packet that is not an object with "t" counts as kClosed.
ControlResult ReceiveControl(int fd, nlohmann::json* message);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_CONTROL_H_
