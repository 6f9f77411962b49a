// SPDX-License-Identifier: Apache-2.0
//
// How each field of a Snapshot is predicted. Written once for both directions:
// `Coder` is FieldEncoder or FieldDecoder of snapshot_codec.cc (or a measuring
// one of the benchmark), so that the two cannot disagree.
//
// Rules: a prediction uses nothing but the state and fields that were coded
// before; it is free to be wrong (it only costs bytes), so it may wrap around;
// whatever is stored in the state is bounded. A new field of snapshot.h must be
// added here (the static_asserts below remind of it) and changes kCodecVersion.
#ifndef MYCROFT_USERSPACE_STORE_SNAPSHOT_FIELDS_H_
#define MYCROFT_USERSPACE_STORE_SNAPSHOT_FIELDS_H_

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "userspace/decode/snapshot.h"

namespace mycroft::store_internal {

// value * part / whole without overflow, 0 when there is nothing to scale by.
inline uint64_t Scale(uint64_t value, uint64_t part, uint64_t whole) {
  if (whole == 0) return 0;
  if (part == whole) return value;
  return static_cast<uint64_t>(static_cast<unsigned __int128>(value) * part / whole);
}

}  // namespace mycroft::store_internal

#include "userspace/store/hardware_fields.h"

namespace mycroft::store_internal {

static_assert(sizeof(OpSample) == 328 && sizeof(FlowSample) == 200 && sizeof(CommSample) == 120,
              "a field was added: code it below, then adjust the size");
static_assert(sizeof(ProcessSample) == 720 && sizeof(HostSample) == 56 &&
                  sizeof(ThreadSample) == 72 && sizeof(Snapshot) == 328 && sizeof(BlindSpot) == 96,
              "a field was added: code it below, then adjust the size");

// A context is one statistical model. Fields that behave differently in some
// situation get several: its variants.
enum Context : int {
  kMore,
  kHost,
  kHostId,
  kTick,
  kWall,
  kInterval,
  kProcessCount,
  kSpotsChanged,
  kSpotCount,
  kSpotText,
  kProcessIndex,
  kPid,
  kStartTime,
  kStatus,
  kProblem,
  kProcessName,
  kContainer,
  kApi,
  kLevel,
  kLastCallback,
  kLostSame,
  kLost,
  kTorn,
  kHasHost,
  kHostState,
  kThrottledNs,
  kThrottledPeriods,
  kMajorFaults,
  kThreadCount,
  kTid,
  kRoles,
  kThreadState,
  kRun,
  kRunQueue,
  kSlices,
  kWchan,
  kOpCount,
  kOpId,
  kOpComm,
  kOpGeneration,
  kOpKind,
  kOpFunc,
  kOpDatatype,
  kOpAlgo,
  kOpProto,
  kOpChannels,
  kOpFlags,
  kOpPeer,
  kOpOrdinal,
  kOpSeq,
  kOpElements,
  kOpStream,
  kOpGroup,
  kOpApi,
  kOpStart,
  kOpStop,
  kOpProxyStarted,
  kOpProxyProgress,
  kOpProxyDone,
  kOpProxyFirst,
  kOpInProgress,
  kOpProxyLast,
  kOpWait0,
  kOpWait1,
  kOpWait2,
  kOpWait3,
  kOpWait4,
  kOpWait5,
  kOpMax0,
  kOpMax1,
  kOpMax2,
  kOpSent,
  kOpReceived,
  kOpStepsTotal,
  kOpStepsDone,
  kOpSendSteps,
  kOpRecvSteps,
  kOpSendPosted,
  kOpSendDone,
  kOpRecvPosted,
  kOpRecvData,
  kOpKernelStarted,
  kOpKernelStopped,
  kOpGpuStart,
  kOpGpuStop,
  kOpKernelStart,
  kOpKernelStop,
  kFlowCount,
  kFlowIndex,
  kFlowComm,
  kFlowGeneration,
  kFlowChannel,
  kFlowDirection,
  kFlowPeer,
  kFlowOwner,
  kFlowState,
  kFlowOpen,
  kFlowOp,
  kFlowTotal,
  kFlowPosted,
  kFlowReady,
  kFlowTransmitted,
  kFlowDone,
  kFlowChunk,
  kFlowStateNs,
  kFlowMoved,
  kFlowPostedNs,
  kFlowReadyNs,
  kFlowTransmittedNs,
  kFlowDoneNs,
  kFlowOps,
  kFlowSteps,
  kFlowBytes,
  kFlowWait0,
  kFlowWait1,
  kFlowWait2,
  kFlowLastOp,
  kFlowLastFirst,
  kFlowLastFinal,
  kFlowPolls,
  kCommCount,
  kCommIndex,
  kCommGeneration,
  kCommId,
  kCommRank,
  kCommRanks,
  kCommNodes,
  kCommState,
  kCommInit,
  kCommFinalize,
  kCommName,
  kCommColl,
  kCommP2p,
  kCommInApi,
  kCommEnter,
  kCommLeave,
  kStringIs,
  kStringLength,
  kStringByte,
  kHasHardware,
  kHardwareFirst,
  kContexts = kHardwareFirst + kHardwareContexts,
};
constexpr int kVariants = 4;

// What both sides remember of a process since the keyframe.
struct OpSlot {
  OpSample op;
  uint64_t like = 0;      // id of the operation that it was predicted from
  uint64_t previous = 0;  // on the same communicator
  uint64_t next = 0;      // on the same communicator; 0: not yet
};

// Operations of one communicator: which came last, and which that one may be like.
struct CommOps {
  uint64_t newest = 0;
  uint64_t like_next = 0;
};

struct ProcessState {
  static constexpr size_t kOps = 64;
  static constexpr size_t kMaxPatterns = 256;

  ProcessKey key;
  uint32_t profiler_api = 0, level = 0;
  uint64_t last_callback_ns = 0, torn_reads = 0;
  std::array<uint64_t, MC_LOSS_COUNT> lost{};
  HostSample host;
  std::vector<uint64_t> run_step;  // usual change of ThreadSample::run_ns
  std::unordered_map<uint32_t, CommSample> comms;
  uint32_t next_comm = 0;
  std::unordered_map<uint32_t, FlowSample> flows;
  std::unordered_map<uint32_t, OpSlot> ops;  // by id % kOps
  uint64_t newest_op = 0, first_listed_op = 0;
  std::unordered_map<uint64_t, uint64_t> pattern;  // operation -> id of the last such one
  std::unordered_map<uint32_t, CommOps> comm_ops;
  size_t flow_count = 0;

  OpSlot* FindOp(uint64_t id) {
    const auto it = ops.find(static_cast<uint32_t>(id % kOps));
    return it != ops.end() && it->second.op.id == id ? &it->second : nullptr;
  }
};

struct HostState {
  std::string host, host_id;
  std::map<ProcessKey, uint32_t> process_index;  // used by the encoder only
  uint64_t t_ns = 0, wall_ns = 0, interval_ns = 0;
  std::vector<uint32_t> order;  // process indices of the last snapshot
};

struct CodecState {
  static constexpr size_t kMaxStrings = 1 << 16;

  std::vector<HostState> hosts;
  uint32_t last_host = 0;
  std::vector<ProcessState> processes;
  std::vector<std::string> strings;
  std::unordered_map<std::string, uint32_t> string_index;
  HardwareState hardware;
};

inline uint64_t Hash(uint64_t a, uint64_t b) {
  a = (a ^ b) * 0x9e3779b97f4a7c15;
  return a ^ a >> 29;
}

// Two operations of which one may stand for the other.
inline uint64_t PatternOf(const OpSample& op) {
  uint64_t hash = Hash(op.comm, op.comm_generation);
  hash = Hash(hash, op.kind * 256u + op.func);
  hash = Hash(hash, static_cast<uint32_t>(op.root_or_peer));
  return Hash(hash, op.count);
}

template <class C, class Op>
void CodeOp(C& c, ProcessState& state, uint64_t t_ns, uint64_t predicted_id, Op& op) {
  static const OpSample kNone;
  c.Number(kOpId, op.id, predicted_id);
  OpSlot* const slot = state.FindOp(op.id);
  const OpSample* const before = slot ? &slot->op : nullptr;
  const int v = before ? 1 : 0;
  const OpSlot* const newest = state.FindOp(state.newest_op);
  const OpSlot* const after_newest = newest ? state.FindOp(newest->like + 1) : nullptr;
  c.Number(kOpComm, op.comm,
           before         ? before->comm
           : after_newest ? after_newest->op.comm
           : newest       ? newest->op.comm
                          : 0,
           v);
  // Training repeats itself: after an operation comes what came after the last
  // one that was like it, on the same communicator.
  if (!before && state.comm_ops.size() >= ProcessState::kMaxPatterns) state.comm_ops.clear();
  const auto [ops, first_seen] = state.comm_ops.try_emplace(op.comm);
  if (first_seen) c.Charge(64);
  const OpSlot* const last_slot = state.FindOp(ops->second.newest);
  const OpSample& last = last_slot ? last_slot->op : newest ? newest->op : kNone;
  const OpSlot* const next_slot = state.FindOp(ops->second.like_next);
  const OpSlot* const next_last_slot = next_slot ? state.FindOp(next_slot->previous) : nullptr;
  const OpSample& next = next_slot ? next_slot->op : last;
  const OpSample& same = before ? *before : next;  // for what seldom changes
  c.Number(kOpGeneration, op.comm_generation, same.comm_generation, v);
  c.Enum(kOpKind, op.kind, same.kind, MC_OP_RECV, v);
  c.Enum(kOpFunc, op.func, same.func, MC_FUNC_SENDRECV, v);
  c.Enum(kOpDatatype, op.datatype, same.datatype, MC_TYPE_FLOAT8E5M2, v);
  c.Enum(kOpAlgo, op.algo, same.algo, MC_ALGO_PAT, v);
  c.Enum(kOpProto, op.proto, same.proto, MC_PROTO_SIMPLE, v);
  c.Number(kOpChannels, op.channels, same.channels, v);
  c.Number(kOpFlags, op.flags, same.flags, v);
  c.Number(kOpPeer, op.root_or_peer, same.root_or_peer, v);
  const uint64_t gap = op.id - next.id;  // operations since the one like it
  const auto comm = state.comms.find(op.comm);
  const uint64_t next_ordinal = op.kind == MC_OP_COLL && comm != state.comms.end()
                                    ? comm->second.coll_count
                                    : next.ordinal + 1;
  c.Number(kOpOrdinal, op.ordinal, before ? before->ordinal : next_ordinal, v);
  c.Number(kOpSeq, op.nccl_seq,
           before ? before->nccl_seq : next.nccl_seq + (op.ordinal - next.ordinal), v);
  c.Number(kOpElements, op.count, same.count, v);
  c.Number(kOpStream, op.stream, same.stream, v);
  c.Number(kOpGroup, op.group_id, before ? before->group_id : next.group_id + gap, v);
  const uint64_t usual_gap = next_last_slot ? next.start_ns - next_last_slot->op.start_ns : 0;
  c.NumberOrZero(kOpStart, op.start_ns, before ? before->start_ns : last.start_ns + usual_gap);

  // Now that it is known what it is: it will go as the last finished one of its kind.
  const uint64_t pattern = PatternOf(op);
  const auto known = state.pattern.find(pattern);
  const uint64_t like_id = slot                           ? slot->like
                           : known != state.pattern.end() ? known->second
                                                          : ops->second.like_next;
  const OpSlot* like_slot = state.FindOp(like_id);
  if (like_slot && like_slot->op.proxy_done != like_slot->op.proxy_started) {
    if (const OpSlot* const earlier = state.FindOp(like_slot->like)) like_slot = earlier;
  }
  const OpSample& like = like_slot ? like_slot->op : last;
  // Times of an operation that has been predicted from a finished one keep its shape.
  const auto shaped = [&](uint64_t OpSample::*field, uint64_t OpSample::*base) -> uint64_t {
    if (before && before->*field != 0) return before->*field;
    return op.*base + (like.*field != 0 && like.*base != 0 ? like.*field - like.*base : 0);
  };
  c.NumberOrZero(kOpApi, op.api_ns, shaped(&OpSample::api_ns, &OpSample::start_ns), v);
  c.NumberOrZero(kOpStop, op.stop_ns, shaped(&OpSample::stop_ns, &OpSample::start_ns), v);
  c.Number(kOpProxyStarted, op.proxy_started, before ? before->proxy_started : like.proxy_started,
           v);
  c.Number(kOpProxyProgress, op.proxy_progress, op.proxy_started, v);
  c.Number(kOpProxyDone, op.proxy_done, op.proxy_started, v);
  c.NumberOrZero(kOpProxyFirst, op.proxy_first_ns,
                 shaped(&OpSample::proxy_first_ns, &OpSample::start_ns), v);
  c.NumberOrZero(kOpInProgress, op.proxy_progress_ns,
                 shaped(&OpSample::proxy_progress_ns, &OpSample::proxy_first_ns), v);
  const bool complete = op.proxy_started != 0 && op.proxy_done == op.proxy_started;
  const uint64_t like_length = like.proxy_last_ns - like.proxy_progress_ns;
  c.NumberOrZero(kOpProxyLast, op.proxy_last_ns,
                 before && before->proxy_last_ns != 0 && !complete
                     ? before->proxy_last_ns
                     : op.proxy_progress_ns + like_length,
                 (complete ? 2 : 0) + v);
  // Sums grow with the time that the operation has been in progress.
  const uint64_t end = complete ? op.proxy_last_ns : t_ns;
  const uint64_t length = op.proxy_progress_ns != 0 ? end - op.proxy_progress_ns : 0;
  const int w = (complete ? 2 : 0) + v;
  c.Number(kOpStepsTotal, op.steps_total, before ? before->steps_total : like.steps_total, v);
  const uint64_t steps = complete ? op.steps_total : Scale(op.steps_total, length, like_length);
  c.Number(kOpStepsDone, op.steps_done, steps < op.steps_total ? steps : op.steps_total, w);
  const auto by_steps = [&](uint64_t value) {
    return Scale(value, op.steps_done, like.steps_done);
  };
  c.Number(kOpSent, op.bytes_sent, by_steps(like.bytes_sent), w);
  c.Number(kOpReceived, op.bytes_received, by_steps(like.bytes_received), w);
  c.Number(kOpSendSteps, op.send_steps, by_steps(like.send_steps), w);
  c.Number(kOpRecvSteps, op.recv_steps, by_steps(like.recv_steps), w);
  // A sum of times is so many times their mean. The mean lies as far from the end
  // as it did in the operation that this one is like, or in proportion when this
  // one is not over.
  const auto mean = [](uint64_t sum, uint32_t count) { return count == 0 ? 0 : sum / count; };
  const auto from_end = [&](uint64_t like_sum, uint32_t like_count) {
    const uint64_t back =
        like_count == 0 ? length / 2 : like.proxy_last_ns - mean(like_sum, like_count);
    return end - (complete ? back : Scale(back, length, like_length));
  };
  const auto follow = [&](uint64_t known, uint64_t like_known, uint64_t like_sum,
                          uint32_t like_count) -> uint64_t {
    return like_count == 0 ? known : known + mean(like_sum, like_count) - like_known;
  };
  c.Number(kOpSendPosted, op.send_posted_sum_ns,
           op.send_steps * from_end(like.send_posted_sum_ns, like.send_steps), w);
  const uint64_t posted = mean(op.send_posted_sum_ns, op.send_steps);
  const uint64_t like_posted = mean(like.send_posted_sum_ns, like.send_steps);
  c.Number(kOpSendDone, op.send_done_sum_ns,
           op.send_steps * follow(posted, like_posted, like.send_done_sum_ns, like.send_steps), w);
  const uint64_t sent = mean(op.send_done_sum_ns, op.send_steps);
  const uint64_t like_sent = mean(like.send_done_sum_ns, like.send_steps);
  c.Number(kOpRecvData, op.recv_data_sum_ns,
           op.recv_steps * (sent != 0 && like_sent != 0
                                ? follow(sent, like_sent, like.recv_data_sum_ns, like.recv_steps)
                                : from_end(like.recv_data_sum_ns, like.recv_steps)),
           w);
  const uint64_t got = mean(op.recv_data_sum_ns, op.recv_steps);
  const uint64_t like_got = mean(like.recv_data_sum_ns, like.recv_steps);
  c.Number(kOpRecvPosted, op.recv_posted_sum_ns,
           op.recv_steps * follow(got, like_got, like.recv_posted_sum_ns, like.recv_steps), w);
  // A wait is either a small constant or goes on for most of the time: then it
  // grows with the length, once for each flow that waits.
  for (int i = 0; i < MC_WAIT_COUNT; ++i) {
    const uint64_t wait = like.wait_ns[i];
    const uint64_t flows = like_length == 0 ? 0 : (wait + like_length / 2) / like_length;
    const uint64_t longer = wait + flows * (length - like_length);
    const uint64_t predicted = complete ? longer : Scale(wait, length, like_length);
    const uint64_t at_least = before ? before->wait_ns[i] : 0;
    c.Number(kOpWait0 + i, op.wait_ns[i],
             static_cast<int64_t>(predicted - at_least) > 0 ? predicted : at_least, w);
  }
  // The slowest flow's part of a sum.
  constexpr int kSumOf[MC_MAX_WAIT_COUNT] = {MC_WAIT_SEND_NET, MC_WAIT_RECV_FLUSH,
                                             MC_WAIT_RECV_GPU};
  for (int i = 0; i < MC_MAX_WAIT_COUNT; ++i) {
    const uint64_t sum = op.wait_ns[kSumOf[i]];
    const uint64_t like_sum = like.wait_ns[kSumOf[i]];
    c.Number(kOpMax0 + i, op.max_wait_ns[i],
             before && before->wait_ns[kSumOf[i]] == sum ? before->max_wait_ns[i]
             : like_sum != 0                             ? Scale(like.max_wait_ns[i], sum, like_sum)
                                                         : sum / 2,
             w);
  }

  c.Number(kOpKernelStarted, op.kernel_started,
           before ? before->kernel_started : like.kernel_started, v);
  c.Number(kOpKernelStopped, op.kernel_stopped, op.kernel_started, v);
  c.NumberOrZero(kOpKernelStart, op.kernel_start_seen_ns,
                 shaped(&OpSample::kernel_start_seen_ns, &OpSample::start_ns), v);
  const bool kernel_stop_moves = before && before->kernel_stopped != op.kernel_stopped;
  c.NumberOrZero(kOpKernelStop, op.kernel_stop_seen_ns,
                 before && before->kernel_stop_seen_ns != 0 && !kernel_stop_moves
                     ? before->kernel_stop_seen_ns
                     : op.proxy_last_ns + (like.kernel_stop_seen_ns - like.proxy_last_ns),
                 v);
  // The GPU's clock runs beside the host's.
  c.NumberOrZero(
      kOpGpuStart, op.kernel_gpu_start,
      before && before->kernel_gpu_start != 0
          ? before->kernel_gpu_start
          : like.kernel_gpu_start + (op.kernel_start_seen_ns - like.kernel_start_seen_ns),
      v);
  c.NumberOrZero(kOpGpuStop, op.kernel_gpu_stop,
                 before && before->kernel_gpu_stop != 0 && !kernel_stop_moves
                     ? before->kernel_gpu_stop
                     : op.kernel_gpu_start + (op.kernel_stop_seen_ns - op.kernel_start_seen_ns),
                 v);

  if (before) {
    slot->op = op;
    return;
  }
  const uint64_t id = op.id;
  OpSlot fresh;
  fresh.op = op;
  fresh.like = like_id;
  fresh.previous = ops->second.newest;
  if (OpSlot* const previous = state.FindOp(ops->second.newest)) previous->next = id;
  ops->second.newest = id;
  if (id > state.newest_op) state.newest_op = id;
  ops->second.like_next = id;
  if (known != state.pattern.end()) {
    const OpSlot* const earlier = state.FindOp(known->second);
    if (earlier && earlier->next != 0) ops->second.like_next = earlier->next;
    known->second = id;
  } else {
    if (state.pattern.size() >= ProcessState::kMaxPatterns) state.pattern.clear();
    c.Charge(64);
    state.pattern.emplace(pattern, id);
  }
  const auto [place, added] = state.ops.try_emplace(static_cast<uint32_t>(id % ProcessState::kOps));
  if (added) c.Charge(sizeof(OpSlot) + 64);
  place->second = fresh;
}

// The flow of that direction which was coded just before, now and in its previous sample.
struct Neighbour {
  const FlowSample* now = nullptr;
  FlowSample before;
};

template <class C, class Flow>
void CodeFlow(C& c, ProcessState& state, uint64_t t_ns, uint32_t predicted_index,
              Neighbour (&neighbours)[2], Flow& flow) {
  c.Number(kFlowIndex, flow.index, predicted_index);
  const auto [it, added] = state.flows.try_emplace(flow.index);
  if (added) c.Charge(sizeof(FlowSample) + 64);
  const FlowSample before = it->second;
  const int fresh = added ? 1 : 0;
  const FlowSample* const any = neighbours[0].now ? neighbours[0].now : neighbours[1].now;
  const auto toggled = static_cast<mc_direction>(any && any->direction == MC_SEND ? 1 : 0);
  c.Enum(kFlowDirection, flow.direction, added ? toggled : before.direction, MC_RECV, fresh);
  if (!c.ok()) return;
  Neighbour& neighbour = neighbours[flow.direction == MC_SEND ? 0 : 1];
  const FlowSample* const beside = neighbour.now;
  const FlowSample& like = beside ? *beside : any ? *any : before;
  const FlowSample& same = added ? like : before;
  c.Number(kFlowComm, flow.comm, same.comm, fresh);
  c.Number(kFlowGeneration, flow.comm_generation, same.comm_generation, fresh);
  c.Number(kFlowChannel, flow.channel,
           static_cast<uint8_t>(added && beside ? beside->channel + 1 : same.channel), fresh);
  c.Number(kFlowPeer, flow.peer, same.peer, fresh);
  c.Number(kFlowOwner, flow.owner_pid, same.owner_pid, fresh);
  c.Enum(kFlowState, flow.state, like.state, MC_FLOW_RECV_GPU, flow.direction);
  c.Number(kFlowOpen, flow.open_ops, like.open_ops);
  const int open = flow.open_ops != 0 ? 1 : 0;
  // Neighbours that serve the same communicator run the same operation.
  const bool together = beside && beside->comm == flow.comm;
  const FlowSample& peer = together ? *beside : before;
  c.Number(kFlowOp, flow.op_id, together ? peer.op_id : state.newest_op, open);
  c.Number(kFlowLastOp, flow.last_op_id, together ? peer.last_op_id : state.newest_op, open);
  const int v = flow.direction * 2 + open;
  c.Number(kFlowTotal, flow.total, peer.total, v);
  c.Number(kFlowDone, flow.done, peer.done, v);
  c.Number(kFlowTransmitted, flow.transmitted, flow.done + (peer.transmitted - peer.done), v);
  c.Number(kFlowReady, flow.ready, flow.transmitted + (peer.ready - peer.transmitted), v);
  c.Number(kFlowPosted, flow.posted, flow.ready + (peer.posted - peer.ready), v);
  c.Number(kFlowChunk, flow.chunk_bytes, together ? peer.chunk_bytes : before.chunk_bytes, v);

  const OpSlot* const op = state.FindOp(flow.last_op_id);
  const uint64_t end = op && op->op.proxy_last_ns != 0 ? op->op.proxy_last_ns : t_ns;
  // From the last stage of a step to its first: each was a little before.
  const auto gap = [&](uint64_t FlowSample::*a, uint64_t FlowSample::*b) {
    return peer.*a != 0 && peer.*b != 0 ? peer.*a - peer.*b : 0;
  };
  c.NumberOrZero(kFlowDoneNs, flow.done_ns, together ? peer.done_ns : end, v);
  c.NumberOrZero(kFlowTransmittedNs, flow.transmitted_ns,
                 flow.done_ns + gap(&FlowSample::transmitted_ns, &FlowSample::done_ns), v);
  c.NumberOrZero(kFlowReadyNs, flow.ready_ns,
                 flow.transmitted_ns + gap(&FlowSample::ready_ns, &FlowSample::transmitted_ns), v);
  c.NumberOrZero(kFlowPostedNs, flow.posted_ns,
                 flow.ready_ns + gap(&FlowSample::posted_ns, &FlowSample::ready_ns), v);
  uint64_t moved = flow.done_ns;
  for (uint64_t stage : {flow.transmitted_ns, flow.ready_ns, flow.posted_ns}) {
    if (stage > moved) moved = stage;
  }
  c.NumberOrZero(kFlowMoved, flow.moved_ns, moved, v);
  c.NumberOrZero(kFlowStateNs, flow.state_ns, flow.moved_ns, v);
  const bool same_last = flow.last_op_id == before.last_op_id;
  const uint64_t final_stage = flow.direction == MC_SEND ? flow.transmitted_ns : flow.ready_ns;
  c.NumberOrZero(kFlowLastFinal, flow.last_final_ns,
                 same_last   ? before.last_final_ns
                 : open == 0 ? final_stage
                 : together  ? peer.last_final_ns
                             : end,
                 v);
  c.NumberOrZero(kFlowLastFirst, flow.last_first_ns,
                 same_last || !together ? before.last_first_ns : peer.last_first_ns, v);

  // Lifetime counters grow as those of the neighbour did.
  const FlowSample none;
  const FlowSample& then = together ? neighbour.before : none;
  const FlowSample& now = together ? *beside : none;
  c.Number(kFlowOps, flow.ops_done, before.ops_done + (now.ops_done - then.ops_done), v);
  c.Number(kFlowSteps, flow.steps_done, before.steps_done + (now.steps_done - then.steps_done), v);
  const uint64_t more_steps =
      (flow.steps_done - before.steps_done) - (now.steps_done - then.steps_done);
  c.Number(kFlowBytes, flow.bytes,
           before.bytes + (now.bytes - then.bytes) + more_steps * flow.chunk_bytes, v);
  for (int i = 0; i < 3; ++i) {
    c.Number(kFlowWait0 + i, flow.wait_ns[i],
             before.wait_ns[i] + (now.wait_ns[i] - then.wait_ns[i]), v);
  }
  c.Number(kFlowPolls, flow.peer_wait_polls,
           before.peer_wait_polls + (now.peer_wait_polls - then.peer_wait_polls), v);
  neighbour.now = &flow;
  neighbour.before = before;
  it->second = flow;
}

template <class C, class Comm>
void CodeComm(C& c, ProcessState& state, uint64_t t_ns, Comm& comm) {
  c.Number(kCommIndex, comm.index, state.next_comm);
  const auto [it, added] = state.comms.try_emplace(comm.index);
  if (added) c.Charge(sizeof(CommSample) + 64);
  const CommSample before = it->second;
  const int v = added ? 1 : 0;
  c.Number(kCommGeneration, comm.generation, before.generation, v);
  c.Number(kCommId, comm.comm_id, before.comm_id, v);
  c.Number(kCommRank, comm.rank, before.rank, v);
  c.Number(kCommRanks, comm.nranks, before.nranks, v);
  c.Number(kCommNodes, comm.nnodes, before.nnodes, v);
  c.Enum(kCommState, comm.state, before.state, MC_COMM_FINALIZED, v);
  c.NumberOrZero(kCommInit, comm.init_ns, added ? t_ns : before.init_ns, v);
  c.NumberOrZero(kCommFinalize, comm.finalize_ns, before.finalize_ns ? before.finalize_ns : t_ns,
                 v);
  c.String(kCommName, comm.name, before.name);
  // The newest operation of this communicator has just been coded.
  const auto ops = state.comm_ops.find(comm.index);
  const OpSlot* const slot =
      ops == state.comm_ops.end() ? nullptr : state.FindOp(ops->second.newest);
  const OpSample* const newest = slot ? &slot->op : nullptr;
  const bool coll = newest && newest->kind == MC_OP_COLL;
  c.Number(kCommColl, comm.coll_count, coll ? newest->ordinal + 1 : before.coll_count, v);
  c.Number(kCommP2p, comm.p2p_count, before.p2p_count, v);
  c.Flag(kCommInApi, comm.in_api, v);
  c.NumberOrZero(kCommEnter, comm.api_enter_ns,
                 newest && newest->api_ns != 0 ? newest->api_ns : before.api_enter_ns, v);
  c.NumberOrZero(kCommLeave, comm.api_leave_ns,
                 newest && newest->stop_ns != 0 ? newest->stop_ns : before.api_leave_ns, v);
  state.next_comm = comm.index + 1;
  it->second = comm;
}

template <class C, class Host>
void CodeHost(C& c, ProcessState& state, Host& host) {
  const HostSample& before = state.host;
  c.Number(kHostState, host.state, before.state);
  c.Number(kThrottledNs, host.throttled_ns, before.throttled_ns);
  c.Number(kThrottledPeriods, host.throttled_periods, before.throttled_periods);
  c.Number(kMajorFaults, host.major_faults, before.major_faults);
  c.Resize(kThreadCount, host.threads, before.threads.size());
  static const ThreadSample kNone;
  state.run_step.resize(host.threads.size());
  for (size_t i = 0; i < host.threads.size() && c.ok(); ++i) {
    auto& thread = host.threads[i];
    const ThreadSample& last = i < before.threads.size() ? before.threads[i] : kNone;
    const int v = i < 3 ? static_cast<int>(i) : 3;  // the first few are the busy ones
    c.Number(kTid, thread.tid, last.tid);
    c.Number(kRoles, thread.roles, last.roles);
    c.Number(kThreadState, thread.state, last.state, v);
    c.Number(kRun, thread.run_ns, last.run_ns + state.run_step[i], v);
    const uint64_t step = thread.run_ns - last.run_ns;
    state.run_step[i] =
        last.tid == thread.tid && step < 1ull << 40 ? (state.run_step[i] * 3 + step) / 4 : 0;
    c.Number(kRunQueue, thread.runq_wait_ns, last.runq_wait_ns, v);
    if (c.coding3()) c.Number(kSlices, thread.slices, last.slices, v);  // since coding 3
    c.String(kWchan, thread.wchan, last.wchan);
  }
  state.host = host;
}

template <class C, class Process>
void CodeProcess(C& c, CodecState& codec, uint64_t t_ns, uint32_t index, Process& process) {
  ProcessState& state = codec.processes[index];
  static const std::string kEmpty;
  c.Enum(kStatus, process.status, ProcessStatus::kRunning, ProcessStatus::kUnreadable);
  c.String(kProblem, process.problem, kEmpty);
  c.String(kProcessName, process.name, kEmpty);
  c.String(kContainer, process.container, kEmpty);
  c.Number(kApi, process.profiler_api, state.profiler_api);
  c.Number(kLevel, process.level, state.level);
  c.Number(kTorn, process.torn_reads, state.torn_reads);
  bool lost_same = process.lost == state.lost;
  c.Flag(kLostSame, lost_same);
  if constexpr (C::kDecodes) process.lost = state.lost;
  if (!lost_same) {
    for (int i = 0; i < MC_LOSS_COUNT; ++i) c.Number(kLost, process.lost[i], state.lost[i]);
  }
  bool has_host = process.host.has_value();
  c.Flag(kHasHost, has_host);
  if (has_host) {
    if constexpr (C::kDecodes) process.host.emplace();
    CodeHost(c, state, *process.host);
  }

  c.Resize(kOpCount, process.ops, 0);
  const uint64_t before_newest = state.newest_op;
  for (size_t i = 0; i < process.ops.size() && c.ok(); ++i) {
    const uint64_t predicted = i > 0 ? process.ops[i - 1].id + 1 : state.first_listed_op;
    CodeOp(c, state, t_ns, predicted, process.ops[i]);
    // An operation that was not finished comes again; else the next begins.
    const OpSample& op = process.ops[i];
    const bool running = op.proxy_done != op.proxy_started || op.stop_ns == 0 ||
                         op.kernel_stopped != op.kernel_started;
    if (i == 0 || op.id == state.first_listed_op) {
      state.first_listed_op = running ? op.id : op.id + 1;
    }
  }
  const OpSlot* const newest = state.FindOp(state.newest_op);
  c.NumberOrZero(
      kLastCallback, process.last_callback_ns,
      newest && state.newest_op != before_newest ? newest->op.stop_ns : state.last_callback_ns,
      newest && state.newest_op != before_newest ? 1 : 0);

  c.Resize(kFlowCount, process.flows, state.flow_count);
  Neighbour neighbours[2];
  for (size_t i = 0; i < process.flows.size() && c.ok(); ++i) {
    const uint32_t predicted = i > 0 ? process.flows[i - 1].index + 1 : 0;
    CodeFlow(c, state, t_ns, predicted, neighbours, process.flows[i]);
  }
  state.flow_count = process.flows.size();

  c.Resize(kCommCount, process.comms, 0);
  state.next_comm = 0;
  for (size_t i = 0; i < process.comms.size() && c.ok(); ++i) {
    CodeComm(c, state, t_ns, process.comms[i]);
  }
  if (c.coding3()) {
    bool has_hardware = process.hardware.has_value();
    c.Flag(kHasHardware, has_hardware);
    if (has_hardware) {
      if constexpr (C::kDecodes) process.hardware.emplace();
      CodeProcessHardware(c, codec.hardware, index, t_ns, *process.hardware);
    }
  }
  if (c.coding4()) {
    bool has_work = process.gpu_work.has_value();
    c.Flag(kHasHardware, has_work, 2);
    if (has_work) {
      if constexpr (C::kDecodes) process.gpu_work.emplace();
      CodeGpuWork(c, codec.hardware, index, t_ns, *process.gpu_work);
    }
  }
  state.profiler_api = process.profiler_api;
  state.level = process.level;
  state.last_callback_ns = process.last_callback_ns;
  state.torn_reads = process.torn_reads;
  state.lost = process.lost;
}

template <class C, class S>
void CodeSnapshot(C& c, CodecState& codec, S& snapshot) {
  // Which host: one of those known, or the next new one.
  const uint32_t host_index = c.HostIndex(codec, snapshot);
  if (!c.ok()) return;
  HostState& host = codec.hosts[host_index];
  codec.last_host = host_index;
  c.NumberOrZero(kInterval, snapshot.interval_ns, host.interval_ns);
  c.NumberOrZero(kTick, snapshot.t_ns, host.t_ns + snapshot.interval_ns);
  c.NumberOrZero(kWall, snapshot.wall_ns, host.wall_ns + (snapshot.t_ns - host.t_ns));
  host.interval_ns = snapshot.interval_ns;
  host.t_ns = snapshot.t_ns;
  host.wall_ns = snapshot.wall_ns;
  c.Flag(kSpotsChanged, snapshot.blind_spots_changed);
  c.Resize(kSpotCount, snapshot.blind_spots, 0);
  static const std::string kEmpty;
  for (size_t i = 0; i < snapshot.blind_spots.size() && c.ok(); ++i) {
    c.String(kSpotText, snapshot.blind_spots[i].what, kEmpty);
    c.String(kSpotText, snapshot.blind_spots[i].lost, kEmpty);
    c.String(kSpotText, snapshot.blind_spots[i].fix, kEmpty);
  }
  c.Resize(kProcessCount, snapshot.processes, host.order.size());
  std::vector<uint32_t> order;
  for (size_t i = 0; i < snapshot.processes.size() && c.ok(); ++i) {
    // Processes come in the order of last time; a new one is the next number.
    auto& process = snapshot.processes[i];
    const uint32_t predicted =
        i < host.order.size() ? host.order[i] : static_cast<uint32_t>(codec.processes.size());
    const uint32_t index = c.ProcessIndex(codec, process.key, predicted);
    if (!c.ok()) return;
    order.push_back(index);
    CodeProcess(c, codec, snapshot.t_ns, index, process);
  }
  codec.hosts[host_index].order = std::move(order);
  if (c.coding3()) {
    bool has_hardware = snapshot.hardware.has_value();
    c.Flag(kHasHardware, has_hardware, 1);
    if (has_hardware) {
      if constexpr (C::kDecodes) snapshot.hardware.emplace();
      CodeHardware(c, codec.hardware, host_index, snapshot.t_ns, *snapshot.hardware);
    }
  }
}

}  // namespace mycroft::store_internal

#endif  // MYCROFT_USERSPACE_STORE_SNAPSHOT_FIELDS_H_
