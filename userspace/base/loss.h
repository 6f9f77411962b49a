// SPDX-License-Identifier: Apache-2.0
//
// Stable names of the causes of loss, as in JSON and in metrics. Thread-safe.
#ifndef MYCROFT_USERSPACE_BASE_LOSS_H_
#define MYCROFT_USERSPACE_BASE_LOSS_H_

#include "bpf/abi/board.h"

namespace mycroft {

// "comm_table_full", ...; "other" for a cause that this version does not know.
const char* LossName(mc_loss cause);

// NCCL starts steps again as a matter of course; all other causes lose something.
bool IsLoss(mc_loss cause);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_LOSS_H_
