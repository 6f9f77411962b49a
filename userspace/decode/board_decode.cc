// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/board_decode.h"

#include <algorithm>

#include "userspace/source/proc.h"

namespace mycroft {
namespace {

template <typename E>
E Bounded(uint32_t value, E last) {
  return value <= static_cast<uint32_t>(last) ? static_cast<E>(value) : static_cast<E>(0);
}

}  // namespace

CommSample DecodeComm(uint32_t index, const mc_board_comm& line) {
  CommSample out;
  out.index = index;
  out.generation = line.generation;
  out.comm_id = line.comm_id;
  out.nranks = std::clamp(line.nranks, 0, 1 << 24);
  out.rank = line.rank >= 0 && line.rank < out.nranks ? line.rank : -1;
  out.nnodes = std::clamp(line.nnodes, 0, 1 << 24);
  out.state = Bounded(line.state, MC_COMM_FINALIZED);
  // A communicator without a valid rank says nothing that can be used.
  if (out.rank < 0) out.state = MC_COMM_FREE;
  out.init_ns = line.init_ns;
  out.finalize_ns = out.state == MC_COMM_FINALIZED ? line.finalize_ns : 0;
  out.name = PrintableName(line.name, sizeof(line.name));
  out.coll_count = line.coll_count;
  out.p2p_count = line.p2p_count;
  out.in_api = line.in_api != 0;
  out.api_enter_ns = line.api_enter_ns;
  out.api_leave_ns = line.api_leave_ns;
  return out;
}

OpSample DecodeOp(const mc_board_op& line) {
  OpSample out;
  out.id = line.id;
  out.comm = line.comm;
  out.comm_generation = line.comm_generation;
  out.kind = Bounded(line.kind, MC_OP_RECV);
  out.func = Bounded(line.func, MC_FUNC_SENDRECV);
  out.datatype = Bounded(line.datatype, MC_TYPE_FLOAT8E5M2);
  out.algo = Bounded(line.algo, MC_ALGO_PAT);
  out.proto = Bounded(line.proto, MC_PROTO_SIMPLE);
  out.channels = line.channels;
  out.flags = line.flags;
  out.root_or_peer = line.root_or_peer;
  out.ordinal = line.ordinal;
  out.nccl_seq = line.nccl_seq;
  out.count = line.count;
  out.stream = line.stream;
  out.group_id = line.group_id;
  out.api_ns = line.api_ns;
  out.start_ns = line.start_ns;
  out.stop_ns = line.stop_ns;
  out.proxy_started = line.proxy_started;
  out.proxy_progress = std::min(line.proxy_progress, line.proxy_started);
  out.proxy_done = std::min(line.proxy_done, line.proxy_started);
  out.proxy_first_ns = line.proxy_first_ns;
  out.proxy_progress_ns = line.proxy_progress_ns;
  out.proxy_last_ns = line.proxy_last_ns;
  for (int i = 0; i < MC_WAIT_COUNT; ++i) out.wait_ns[i] = line.wait_ns[i];
  out.bytes_sent = line.bytes_sent;
  out.bytes_received = line.bytes_received;
  out.steps_total = line.steps_total;
  out.steps_done = std::min(line.steps_done, line.steps_total);
  out.send_steps = line.send_steps;
  out.recv_steps = line.recv_steps;
  out.send_posted_sum_ns = line.send_posted_sum_ns;
  out.send_done_sum_ns = line.send_done_sum_ns;
  out.recv_posted_sum_ns = line.recv_posted_sum_ns;
  out.recv_data_sum_ns = line.recv_data_sum_ns;
  for (int i = 0; i < MC_MAX_WAIT_COUNT; ++i) out.max_wait_ns[i] = line.max_wait_ns[i];
  out.kernel_started = line.kernel_started;
  out.kernel_stopped = std::min(line.kernel_stopped, line.kernel_started);
  out.kernel_gpu_start = line.kernel_gpu_start;
  out.kernel_gpu_stop = line.kernel_gpu_stop;
  out.kernel_start_seen_ns = line.kernel_start_seen_ns;
  out.kernel_stop_seen_ns = line.kernel_stop_seen_ns;
  return out;
}

FlowSample DecodeFlow(uint32_t index, const mc_board_flow& line) {
  FlowSample out;
  out.index = index;
  out.comm = line.comm;
  out.comm_generation = line.comm_generation;
  out.channel = line.channel;
  out.direction = Bounded(line.direction, MC_RECV);
  out.peer = line.peer;
  out.owner_pid = line.owner_pid;
  out.state = Bounded(line.state, MC_FLOW_RECV_GPU);
  out.open_ops = line.open_ops;
  out.op_id = line.op_id;
  out.total = line.total;
  out.posted = std::min(line.posted, out.total);
  out.ready = std::min(line.ready, out.posted);
  out.transmitted = std::min(line.transmitted, out.ready);
  out.done = std::min(line.done, out.transmitted);
  out.chunk_bytes = line.chunk_bytes;
  out.state_ns = line.state_ns;
  out.moved_ns = line.moved_ns;
  out.posted_ns = line.posted_ns;
  out.ready_ns = line.ready_ns;
  out.transmitted_ns = line.transmitted_ns;
  out.done_ns = line.done_ns;
  out.ops_done = line.ops_done;
  out.steps_done = line.steps_done;
  out.bytes = line.bytes;
  for (int i = 0; i < 3; ++i) out.wait_ns[i] = line.wait_ns[i];
  out.last_op_id = line.last_op_id;
  out.last_first_ns = line.last_first_ns;
  out.last_final_ns = line.last_final_ns;
  out.peer_wait_polls = line.peer_wait_polls;
  return out;
}

}  // namespace mycroft
