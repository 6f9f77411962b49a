// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/loss.h"

namespace mycroft {

const char* LossName(mc_loss cause) {
  switch (cause) {
    case MC_LOSS_COMM_TABLE_FULL:
      return "comm_table_full";
    case MC_LOSS_THREAD_TABLE_FULL:
      return "thread_table_full";
    case MC_LOSS_OP_EVICTED:
      return "op_evicted";
    case MC_LOSS_FLOW_TABLE_FULL:
      return "flow_table_full";
    case MC_LOSS_PROXY_OP_POOL_FULL:
      return "proxy_op_pool_full";
    case MC_LOSS_STALE_HANDLE:
      return "stale_handle";
    case MC_LOSS_DUPLICATE_STEP:
      return "duplicate_step";
    case MC_LOSS_FOREIGN_PARENT:
      return "foreign_parent";
    case MC_LOSS_UNKNOWN_EVENT:
      return "unknown_event";
    case MC_LOSS_NO_PARENT:
      return "no_parent";
    case MC_LOSS_COUNT:
      break;
  }
  return "other";
}

bool IsLoss(mc_loss cause) { return cause != MC_LOSS_DUPLICATE_STEP; }

}  // namespace mycroft
