// SPDX-License-Identifier: Apache-2.0
#include "userspace/model/view.h"

namespace mycroft {

const char* ToString(mc_func func) {
  switch (func) {
    case MC_FUNC_UNKNOWN: return "unknown";
    case MC_FUNC_ALLREDUCE: return "AllReduce";
    case MC_FUNC_ALLGATHER: return "AllGather";
    case MC_FUNC_REDUCESCATTER: return "ReduceScatter";
    case MC_FUNC_BROADCAST: return "Broadcast";
    case MC_FUNC_REDUCE: return "Reduce";
    case MC_FUNC_SEND: return "Send";
    case MC_FUNC_RECV: return "Recv";
    case MC_FUNC_ALLTOALL: return "AllToAll";
    case MC_FUNC_GATHER: return "Gather";
    case MC_FUNC_SCATTER: return "Scatter";
    case MC_FUNC_SENDRECV: return "SendRecv";
  }
  return "unknown";
}

const char* ToString(mc_flow_state state) {
  switch (state) {
    case MC_FLOW_IDLE: return "idle";
    case MC_FLOW_QUEUED: return "queued";
    case MC_FLOW_PROGRESS: return "starting";
    case MC_FLOW_SEND_GPU: return "send: waits for the GPU";
    case MC_FLOW_SEND_PEER: return "send: waits for the receiver";
    case MC_FLOW_SEND_NET: return "send: in the network";
    case MC_FLOW_RECV_REMOTE: return "recv: waits for the sender";
    case MC_FLOW_RECV_FLUSH: return "recv: waits for the flush";
    case MC_FLOW_RECV_GPU: return "recv: waits for the GPU";
  }
  return "unknown";
}

const char* ToString(mc_datatype type) {
  switch (type) {
    case MC_TYPE_UNKNOWN: return "unknown";
    case MC_TYPE_INT8: return "int8";
    case MC_TYPE_UINT8: return "uint8";
    case MC_TYPE_INT32: return "int32";
    case MC_TYPE_UINT32: return "uint32";
    case MC_TYPE_INT64: return "int64";
    case MC_TYPE_UINT64: return "uint64";
    case MC_TYPE_FLOAT16: return "float16";
    case MC_TYPE_BFLOAT16: return "bfloat16";
    case MC_TYPE_FLOAT32: return "float32";
    case MC_TYPE_FLOAT64: return "float64";
    case MC_TYPE_FLOAT8E4M3: return "float8e4m3";
    case MC_TYPE_FLOAT8E5M2: return "float8e5m2";
  }
  return "unknown";
}

uint32_t DatatypeBytes(mc_datatype type) {
  switch (type) {
    case MC_TYPE_UNKNOWN: return 0;
    case MC_TYPE_INT8:
    case MC_TYPE_UINT8:
    case MC_TYPE_FLOAT8E4M3:
    case MC_TYPE_FLOAT8E5M2: return 1;
    case MC_TYPE_FLOAT16:
    case MC_TYPE_BFLOAT16: return 2;
    case MC_TYPE_INT32:
    case MC_TYPE_UINT32:
    case MC_TYPE_FLOAT32: return 4;
    case MC_TYPE_INT64:
    case MC_TYPE_UINT64:
    case MC_TYPE_FLOAT64: return 8;
  }
  return 0;
}

}  // namespace mycroft
