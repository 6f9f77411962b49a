// SPDX-License-Identifier: Apache-2.0
//
// Proxy operations, their steps and the flows they run on. All of one
// communicator is called by its one progress thread.
#include <string.h>

#include "cupti/nccl/core.h"
#include "cupti/nccl/state.h"

namespace mycroft::nccl {

using board::Bump;
using board::BumpSaturated;
using board::Get;
using board::LineWrite;
using board::Set;

namespace {

constexpr uint32_t kGenerationMask = (1u << 20) - 1;
constexpr uint32_t kRecordBits = 15;
constexpr uint32_t kStepBits = 17;
constexpr uint32_t kStepMask = (1u << kStepBits) - 1;
static_assert(kMaxProxyOps == 1u << kRecordBits);

// NCCL's times never run backwards within a thread; made ones may.
uint64_t Since(uint64_t now, uint64_t then) { return now > then ? now - then : 0; }
uint64_t Later(uint64_t a, uint64_t b) { return a > b ? a : b; }

mc_board_op* OpLine(State& s, uint64_t id) { return &s.board.ops[id & (MC_BOARD_MAX_OPS - 1)]; }

// ---- flows --------------------------------------------------------------------

constexpr uint64_t kKeyUsed = uint64_t{1} << 63;
constexpr uint32_t kDeleted = UINT32_MAX;

uint64_t FlowKey(uint16_t comm, uint8_t channel, uint8_t direction, int32_t peer) {
  return kKeyUsed | uint64_t{comm} << 42 | uint64_t{channel} << 34 | uint64_t{direction} << 33 |
         static_cast<uint32_t>(peer);
}
static_assert(MC_BOARD_MAX_COMMS <= 1u << 16);

uint32_t FlowHome(uint64_t key, uint32_t owner_pid) {
  return static_cast<uint32_t>((key ^ uint64_t{owner_pid} << 20) * 0x9E3779B97F4A7C15ULL >> 40) &
         (kFlowHash - 1);
}

// Line of the flow, or kNoIndex.
uint32_t FindFlow(State& s, uint64_t key, uint32_t owner_pid) {
  const uint32_t home = FlowHome(key, owner_pid);
  for (uint32_t i = 0; i < kMaxProbe; ++i) {
    const uint32_t entry =
        s.flow_hash[(home + i) & (kFlowHash - 1)].load(std::memory_order_acquire);
    if (entry == 0) return kNoIndex;
    if (entry == kDeleted) continue;
    FlowState& f = s.flows[entry - 1];
    if (f.key.load(std::memory_order_relaxed) == key &&
        f.owner_pid.load(std::memory_order_relaxed) == owner_pid) {
      return entry - 1;
    }
  }
  return kNoIndex;
}

uint32_t CreateFlow(State& s, const ProxyOpRecord& rec, uint64_t now) {
  const uint32_t index = s.flow_pool.Take();
  if (index == kNoIndex) {
    Count(s, MC_LOSS_FLOW_TABLE_FULL);
    return kNoIndex;
  }
  FlowState& f = s.flows[index];
  const uint64_t key = FlowKey(rec.comm, rec.channel, rec.direction, rec.peer);
  f.head = f.first = f.last = f.open = 0;
  f.head_since_ns = now;
  f.last_chained_ns = f.last_stop_ns = 0;
  f.owner_pid.store(rec.owner_pid, std::memory_order_relaxed);
  f.key.store(key, std::memory_order_relaxed);

  mc_board_flow* line = &s.board.flows[index];
  {
    LineWrite write(&line->seq);
    mc_board_flow fresh = {};
    fresh.seq = Get(&line->seq);
    fresh.comm = rec.comm;
    fresh.channel = rec.channel;
    fresh.direction = rec.direction;
    fresh.peer = rec.peer;
    fresh.owner_pid = rec.owner_pid;
    if (rec.comm != kNoComm) {
      fresh.comm_generation = s.comms[rec.comm].generation.load(std::memory_order_relaxed);
    }
    fresh.state_ns = now;
    uint64_t words[sizeof(fresh) / 8];
    memcpy(words, &fresh, sizeof(fresh));
    auto* out = reinterpret_cast<uint64_t*>(line);
    for (size_t i = 0; i < sizeof(fresh) / 8; ++i) Set(&out[i], words[i]);
  }
  board::Raise(&s.board.header->flows_used, index + 1);
  const uint32_t home = FlowHome(key, rec.owner_pid);
  for (uint32_t i = 0; i < kMaxProbe; ++i) {
    const uint32_t slot = (home + i) & (kFlowHash - 1);
    uint32_t entry = s.flow_hash[slot].load(std::memory_order_relaxed);
    if ((entry == 0 || entry == kDeleted) &&
        s.flow_hash[slot].compare_exchange_strong(entry, index + 1, std::memory_order_acq_rel)) {
      f.hash_slot = slot;
      return index;
    }
  }
  f.key.store(0, std::memory_order_relaxed);
  s.flow_pool.Return(index);
  Count(s, MC_LOSS_FLOW_TABLE_FULL);
  return kNoIndex;
}

ProxyOpRecord* At(State& s, uint32_t link) { return link != 0 ? &s.proxy_ops[link - 1] : nullptr; }
uint32_t LinkOf(State& s, const ProxyOpRecord& rec) {
  return static_cast<uint32_t>(&rec - s.proxy_ops) + 1;
}
Tracker* TrackerOf(State& s, const ProxyOpRecord& rec) {
  return rec.tracker != kNoIndex ? &s.trackers[rec.tracker] : nullptr;
}

void Append(State& s, uint32_t* first, uint32_t* last, ProxyOpRecord& rec) {
  rec.next = 0;
  rec.prev = *last;
  const uint32_t link = LinkOf(s, rec);
  if (ProxyOpRecord* before = At(s, *last)) before->next = link;
  if (*first == 0) *first = link;
  *last = link;
}

void Remove(State& s, uint32_t* first, uint32_t* last, ProxyOpRecord& rec) {
  if (ProxyOpRecord* before = At(s, rec.prev)) {
    before->next = rec.next;
  } else {
    *first = rec.next;
  }
  if (ProxyOpRecord* after = At(s, rec.next)) {
    after->prev = rec.prev;
  } else {
    *last = rec.prev;
  }
  rec.next = rec.prev = 0;
}

// The oldest operation that has moved, else the oldest: one that never moves must
// not hide a younger one that does.
uint32_t ChooseHead(State& s, const FlowState& f) {
  uint32_t link = f.first;
  for (uint32_t i = 0; i < kMaxProbe && link != 0; ++i) {
    ProxyOpRecord* rec = At(s, link);
    if (rec->progressed) return link;
    link = rec->next;
  }
  return f.first;
}

// What a flow waits for whose lowest step is at this stage. A receive that was only
// started is not yet offered to the network.
constexpr mc_flow_state FlowStateOf(uint8_t direction, Stage stage) {
  const bool send = direction == MC_SEND;
  switch (stage) {
    case Stage::kStarted:
      return send ? MC_FLOW_SEND_GPU : MC_FLOW_PROGRESS;
    case Stage::kPosted:
      return send ? MC_FLOW_SEND_GPU : MC_FLOW_RECV_REMOTE;
    case Stage::kReady:
      return send ? MC_FLOW_SEND_PEER : MC_FLOW_RECV_FLUSH;
    case Stage::kTransmitted:
      return send ? MC_FLOW_SEND_NET : MC_FLOW_RECV_GPU;
    case Stage::kNone:
    case Stage::kStopped:
      break;
  }
  return MC_FLOW_PROGRESS;
}

uint64_t EnteredStage(const Step& step) {
  if (step.stage == Stage::kTransmitted) return step.transmitted_ns;
  if (step.stage == Stage::kReady) return step.ready_ns;
  return step.posted_ns;  // or started
}

// State of the lowest step that has not stopped. REQUIRES: inside a LineWrite.
void WriteHeadState(const ProxyOpRecord& rec, const Tracker* tracker, uint64_t flow_head_since,
                    mc_board_flow* line) {
  mc_flow_state state = rec.progressed ? MC_FLOW_PROGRESS : MC_FLOW_QUEUED;
  uint64_t since = rec.append_ns;
  if (tracker != nullptr) {
    since = tracker->head_since_ns;
    const Step& head = tracker->steps[tracker->head % kTrackedSteps];
    if (head.number == tracker->head && head.stage != Stage::kNone) {
      state = FlowStateOf(rec.direction, head.stage);
      since = Later(since, EnteredStage(head));
    }
  }
  Set(&line->state, state);
  Set(&line->state_ns, Later(since, flow_head_since));
}

// REQUIRES: inside a LineWrite.
void WriteCounters(const ProxyOpRecord& rec, const Tracker* tracker, mc_board_flow* line) {
  if (tracker == nullptr) return;
  Set(&line->total, tracker->posted > rec.total ? tracker->posted : rec.total);
  Set(&line->posted, tracker->posted);
  Set(&line->ready, tracker->ready);
  Set(&line->transmitted, tracker->transmitted);
  Set(&line->done, tracker->done);
}

// Everything that a change of the head operation changes. REQUIRES: inside a LineWrite.
void WriteHead(State& s, FlowState& f, mc_board_flow* line, uint64_t now) {
  const uint32_t head = ChooseHead(s, f);
  if (head != f.head) {
    f.head = head;
    f.head_since_ns = now;
  }
  Set(&line->open_ops, f.open < UINT16_MAX ? f.open : UINT16_MAX);
  ProxyOpRecord* rec = At(s, head);
  if (rec == nullptr) {
    Set(&line->state, MC_FLOW_IDLE);
    Set(&line->state_ns, now);
    Set(&line->op_id, 0);
    Set(&line->total, 0);
    Set(&line->posted, 0);
    Set(&line->ready, 0);
    Set(&line->transmitted, 0);
    Set(&line->done, 0);
    return;
  }
  Set(&line->op_id, rec->op_id);
  Set(&line->chunk_bytes, rec->chunk_bytes);
  Tracker* tracker = TrackerOf(s, *rec);
  if (tracker != nullptr) {
    WriteCounters(*rec, tracker, line);
  } else {
    Set(&line->total, rec->total);
    Set(&line->posted, 0);
    Set(&line->ready, 0);
    Set(&line->transmitted, 0);
    Set(&line->done, 0);
  }
  WriteHeadState(*rec, tracker, f.head_since_ns, line);
}

// ---- records ---------------------------------------------------------------------

void FreeRecord(State& s, ProxyOpRecord& rec) {
  if (rec.counted && rec.op_id != 0) UnpinOp(s, rec.op_id);
  if (rec.tracker != kNoIndex) s.tracker_pool.Return(rec.tracker);
  rec.tracker = kNoIndex;
  rec.generation.fetch_add(1, std::memory_order_release);
  s.proxy_op_pool.Return(LinkOf(s, rec) - 1);
}

void DropOldestPending(State& s, CommState& comm) {
  ProxyOpRecord* rec = At(s, comm.pending_first);
  if (rec == nullptr) return;
  Remove(s, &comm.pending_first, &comm.pending_last, *rec);
  --comm.pending_count;
  FreeRecord(s, *rec);
}

ProxyOpRecord* FindRecord(State& s, uint64_t generation, uint64_t index) {
  ProxyOpRecord& rec = s.proxy_ops[index & (kMaxProxyOps - 1)];
  if ((rec.generation.load(std::memory_order_acquire) & kGenerationMask) != generation) {
    Count(s, MC_LOSS_STALE_HANDLE);
    return nullptr;
  }
  return &rec;
}

ProxyOpRecord* RecordOfOp(State& s, uint64_t payload) {
  return FindRecord(s, payload >> kRecordBits, payload);
}

// From here on the operation is known to be of the NET transport: it is counted,
// and it is sure to be stopped.
void CountOp(State& s, ProxyOpRecord& rec, uint64_t now) {
  rec.counted = true;
  if (rec.op_id != 0) {
    mc_board_op* line = PinOp(s, rec.op_id);
    if (line == nullptr) {
      rec.op_id = 0;
      Count(s, MC_LOSS_NO_PARENT);
    } else {
      LineWrite write(&line->proxy_seq);
      BumpSaturated(&line->proxy_started);
      if (Get(&line->proxy_first_ns) == 0) Set(&line->proxy_first_ns, rec.append_ns);
      Bump(&line->steps_total, rec.total);
    }
  }
  if (rec.flow == kNoIndex) {
    const uint64_t key = FlowKey(rec.comm, rec.channel, rec.direction, rec.peer);
    rec.flow = FindFlow(s, key, rec.owner_pid);
    if (rec.flow == kNoIndex) rec.flow = CreateFlow(s, rec, now);
  }
  if (rec.flow == kNoIndex) return;
  FlowState& f = s.flows[rec.flow];
  Append(s, &f.first, &f.last, rec);
  ++f.open;
}

void WriteFlowHead(State& s, const ProxyOpRecord& rec, uint64_t now) {
  if (rec.flow == kNoIndex) return;
  mc_board_flow* line = &s.board.flows[rec.flow];
  LineWrite write(&line->seq);
  WriteHead(s, s.flows[rec.flow], line, now);
}

// InProgress, or a first step.
void MarkProgress(State& s, ProxyOpRecord& rec, uint64_t now) {
  rec.progressed = true;
  if (!rec.counted) {
    CommState& comm = s.comms[rec.comm & (MC_BOARD_MAX_COMMS - 1)];
    Remove(s, &comm.pending_first, &comm.pending_last, rec);
    --comm.pending_count;
    CountOp(s, rec, now);
  }
  rec.tracker = s.tracker_pool.Take();
  if (rec.tracker == kNoIndex) {
    Count(s, MC_LOSS_PROXY_OP_POOL_FULL);
  } else {
    Tracker& tracker = s.trackers[rec.tracker];
    memset(static_cast<void*>(&tracker), 0, sizeof(tracker));
    tracker.head_since_ns = now;
  }
  if (rec.op_id != 0) {
    mc_board_op* line = OpLine(s, rec.op_id);
    LineWrite write(&line->proxy_seq);
    BumpSaturated(&line->proxy_progress);
    if (Get(&line->proxy_progress_ns) == 0) Set(&line->proxy_progress_ns, now);
  }
  if (rec.flow == kNoIndex) return;
  mc_board_flow* line = &s.board.flows[rec.flow];
  LineWrite write(&line->seq);
  Set(&line->moved_ns, now);
  WriteHead(s, s.flows[rec.flow], line, now);
}

// ---- proxy operations without a record -------------------------------------------------
// The pool was full, or the communicator is not tracked: the operation's counters go on.

constexpr uint64_t kLooseSend = 1;
constexpr uint64_t kLooseCounted = 2;
uint64_t LooseOpId(uint64_t payload) { return payload >> 2; }

uint64_t StartLoose(State& s, uint64_t op_id, bool counted, const ProxyOp& facts, uint64_t now) {
  if (counted) {
    if (mc_board_op* line = PinOp(s, op_id)) {
      {
        LineWrite write(&line->proxy_seq);
        BumpSaturated(&line->proxy_started);
        if (Get(&line->proxy_first_ns) == 0) Set(&line->proxy_first_ns, now);
        Bump(&line->steps_total, facts.steps > 0 ? facts.steps : 0);
      }
      UnpinOp(s, op_id);
    }
  }
  return Pack(HandleKind::kLooseProxyOp, s.salt,
              op_id << 2 | (counted ? kLooseCounted : 0) | (facts.is_send != 0 ? kLooseSend : 0));
}

enum class LooseEvent { kProgress, kOpStop, kStepStop };

void CountLoose(State& s, uint64_t payload, LooseEvent event, uint64_t now) {
  mc_board_op* line = PinOp(s, LooseOpId(payload));
  if (line == nullptr) return;
  {
    LineWrite write(&line->proxy_seq);
    switch (event) {
      case LooseEvent::kProgress:
        if ((payload & kLooseCounted) == 0) BumpSaturated(&line->proxy_started);
        if (Get(&line->proxy_progress) < Get(&line->proxy_started)) {
          BumpSaturated(&line->proxy_progress);
        }
        if (Get(&line->proxy_progress_ns) == 0) Set(&line->proxy_progress_ns, now);
        break;
      case LooseEvent::kOpStop:
        if (Get(&line->proxy_done) < Get(&line->proxy_progress)) BumpSaturated(&line->proxy_done);
        Set(&line->proxy_last_ns, now);
        break;
      case LooseEvent::kStepStop:
        if (Get(&line->steps_done) < Get(&line->steps_total)) Bump(&line->steps_done, 1);
        break;
    }
  }
  UnpinOp(s, LooseOpId(payload));
}

void CountLooseBytes(State& s, uint64_t payload, EventState state, uint64_t bytes) {
  if (state != kSendWait && state != kRecvFlushWait) return;
  mc_board_op* line = PinOp(s, LooseOpId(payload));
  if (line == nullptr) return;
  {
    LineWrite write(&line->proxy_seq);
    Bump(state == kSendWait ? &line->bytes_sent : &line->bytes_received, bytes);
  }
  UnpinOp(s, LooseOpId(payload));
}

// ---- steps -------------------------------------------------------------------------------

// Moves the head of the line past steps that have stopped, and past numbers that
// were never started or whose stop was lost (they are no longer in the ring).
void AdvanceHead(Tracker& tracker, uint64_t now) {
  const uint32_t before = tracker.head;
  if (tracker.started_end > kTrackedSteps && tracker.head < tracker.started_end - kTrackedSteps) {
    tracker.head = tracker.started_end - kTrackedSteps;
  }
  while (tracker.head < tracker.started_end) {
    const Step& step = tracker.steps[tracker.head % kTrackedSteps];
    if (step.number == tracker.head && step.stage != Stage::kNone &&
        step.stage != Stage::kStopped) {
      break;
    }
    ++tracker.head;
  }
  if (tracker.head != before) tracker.head_since_ns = now;
}

Step* FindStep(State& s, Tracker& tracker, uint64_t payload) {
  const auto number = static_cast<uint32_t>(payload) & kStepMask;
  Step& step = tracker.steps[number % kTrackedSteps];
  if (step.stage == Stage::kNone || (step.number & kStepMask) != number) {
    Count(s, MC_LOSS_STALE_HANDLE);
    return nullptr;
  }
  return &step;
}

struct Reached {
  uint64_t wait_ns[3] = {0, 0, 0};
  uint64_t bytes = 0;
  bool posted = false, ready = false, transmitted = false, done = false;
};

// The one place where waits are computed; formulas in bpf/abi/board.h. A stage that
// was left out counts as passed at once, so that done <= transmitted <= ready <= posted.
// Inlined into each caller, where the direction and the stage are constants: this
// is the hot path.
template <mc_direction direction, Stage to>
[[gnu::always_inline]] inline Reached Advance(State& s, ProxyOpRecord& rec, Tracker& tracker,
                                              Step& step, uint64_t now, uint64_t bytes) {
  constexpr bool send = direction == MC_SEND;
  Reached r;
  uint64_t* last_chained = &tracker.last_chained_ns;
  uint64_t* last_stop = &tracker.last_stop_ns;
  if (rec.flow != kNoIndex) {
    last_chained = &s.flows[rec.flow].last_chained_ns;
    last_stop = &s.flows[rec.flow].last_stop_ns;
  }
  const Stage from = step.stage;
  step.stage = to;
  if (from < Stage::kPosted) {
    if (to == Stage::kPosted) step.posted_ns = now;
    if (!send) {  // a send was counted when it started
      r.posted = true;
      ++tracker.posted;
    }
  }
  if (to >= Stage::kReady && from < Stage::kReady) {
    step.ready_ns = now;
    r.ready = true;
    ++tracker.ready;
    if (to != Stage::kStopped) r.wait_ns[0] = Since(now, Later(step.posted_ns, *last_chained));
    if (!send) *last_chained = now;
  }
  if (to >= Stage::kTransmitted && from < Stage::kTransmitted) {
    step.transmitted_ns = now;
    r.transmitted = true;
    ++tracker.transmitted;
    if (to != Stage::kStopped) r.wait_ns[1] = Since(now, step.ready_ns);
    if (send) *last_chained = now;
  }
  if (to == Stage::kStopped) {
    r.done = true;
    ++tracker.done;
    if (from == Stage::kTransmitted) {
      r.wait_ns[2] = Since(now, Later(step.transmitted_ns, *last_stop));
    }
    *last_stop = now;
  }
  if (send ? r.transmitted : r.ready) {
    r.bytes = bytes;
    if (tracker.first_ns == 0) tracker.first_ns = now;
    tracker.final_ns = now;
  }
  if (r.done) AdvanceHead(tracker, now);
  return r;
}

template <mc_direction direction, Stage to>
[[gnu::always_inline]] inline void WriteReached(State& s, ProxyOpRecord& rec, Tracker& tracker,
                                                const Step& step, const Reached& r, uint64_t now) {
  constexpr bool send = direction == MC_SEND;
  if (rec.flow != kNoIndex) {
    FlowState& f = s.flows[rec.flow];
    mc_board_flow* line = &s.board.flows[rec.flow];
    LineWrite write(&line->seq);
    if (f.head == LinkOf(s, rec)) {
      if (r.posted) {
        Set(&line->posted, tracker.posted);
        if (tracker.posted > rec.total) Set(&line->total, tracker.posted);
      }
      if (r.ready) Set(&line->ready, tracker.ready);
      if (r.transmitted) Set(&line->transmitted, tracker.transmitted);
      if (r.done) Set(&line->done, tracker.done);
      if (to == Stage::kStopped) {
        WriteHeadState(rec, &tracker, f.head_since_ns, line);
      } else if (step.number == tracker.head) {
        Set(&line->state, FlowStateOf(direction, to));
        Set(&line->state_ns, now);
      }
    }
    Set(&line->moved_ns, now);
    if (r.posted) Set(&line->posted_ns, now);
    if (r.ready) {
      Set(&line->ready_ns, now);
      Bump(&line->wait_ns[0], r.wait_ns[0]);
    }
    if (r.transmitted) {
      Set(&line->transmitted_ns, now);
      Bump(&line->wait_ns[1], r.wait_ns[1]);
    }
    if (r.bytes != 0) Bump(&line->bytes, r.bytes);
    if (r.done) {
      Set(&line->done_ns, now);
      Bump(&line->steps_done, 1);
      Bump(&line->wait_ns[2], r.wait_ns[2]);
    }
  }
  if (rec.op_id == 0 || !(r.ready || r.transmitted || r.done)) return;
  mc_board_op* line = OpLine(s, rec.op_id);  // pinned by the record
  LineWrite write(&line->proxy_seq);
  uint64_t* wait = &line->wait_ns[send ? MC_WAIT_SEND_GPU : MC_WAIT_RECV_REMOTE];
  if (r.ready) Bump(&wait[0], r.wait_ns[0]);
  if (r.transmitted) Bump(&wait[1], r.wait_ns[1]);
  if (r.bytes != 0) Bump(send ? &line->bytes_sent : &line->bytes_received, r.bytes);
  const auto slowest = [&](int wait_index, mc_max_wait which) {
    tracker.wait_ns[wait_index] += r.wait_ns[wait_index];
    if (tracker.wait_ns[wait_index] > Get(&line->max_wait_ns[which])) {
      Set(&line->max_wait_ns[which], tracker.wait_ns[wait_index]);
    }
  };
  if (!send && r.transmitted) slowest(1, MC_MAX_RECV_FLUSH);
  if (r.done) slowest(2, send ? MC_MAX_SEND_NET : MC_MAX_RECV_GPU);
  // The sums take only steps that were seen at both of their ends.
  if (!send && r.ready && to != Stage::kStopped) {
    Bump(&line->recv_steps, 1);
    Bump(&line->recv_posted_sum_ns, step.posted_ns);
    Bump(&line->recv_data_sum_ns, now);
  }
  if (r.done) {
    Bump(&wait[2], r.wait_ns[2]);
    Bump(&line->steps_done, 1);
    if (send && !r.transmitted) {
      Bump(&line->send_steps, 1);
      Bump(&line->send_posted_sum_ns, step.transmitted_ns);
      Bump(&line->send_done_sum_ns, now);
    }
  }
}

// In progress, but no tracker was left: bytes and completed steps only.
void WriteUntracked(State& s, const ProxyOpRecord& rec, uint64_t bytes, bool done, uint64_t now) {
  if (rec.flow != kNoIndex) {
    mc_board_flow* line = &s.board.flows[rec.flow];
    LineWrite write(&line->seq);
    Set(&line->moved_ns, now);
    Bump(&line->bytes, bytes);
    Bump(&line->steps_done, done ? 1 : 0);
  }
  if (rec.op_id == 0) return;
  mc_board_op* line = OpLine(s, rec.op_id);
  LineWrite write(&line->proxy_seq);
  Bump(rec.direction == MC_SEND ? &line->bytes_sent : &line->bytes_received, bytes);
  if (done && Get(&line->steps_done) < Get(&line->steps_total)) Bump(&line->steps_done, 1);
}

template <mc_direction direction, Stage to>
void RecordStage(State& s, const Handle& h, uint64_t bytes) {
  ProxyOpRecord* rec = RecordOfOp(s, h.payload >> kStepBits);
  if (rec == nullptr) return;
  if (rec->direction != direction) return Count(s, MC_LOSS_UNKNOWN_EVENT);
  Tracker* tracker = TrackerOf(s, *rec);
  if (tracker == nullptr) {
    constexpr bool moved = to == (direction == MC_SEND ? Stage::kTransmitted : Stage::kReady);
    if (moved) WriteUntracked(s, *rec, bytes, false, Now(Self(s)));
    return;
  }
  Step* step = FindStep(s, *tracker, h.payload);
  if (step == nullptr) return;
  if (to <= step->stage) {
    // NCCL says so on every poll until the receiver is ready; the first time counts.
    if (direction == MC_SEND && to == Stage::kReady && step->stage == to && rec->flow != kNoIndex) {
      mc_board_flow* line = &s.board.flows[rec->flow];
      LineWrite write(&line->seq);
      Bump(&line->peer_wait_polls, 1);
    }
    return;
  }
  const uint64_t now = Now(Self(s));
  const Reached r = Advance<direction, to>(s, *rec, *tracker, *step, now, bytes);
  // A send was counted and shown when it started, just before its SendGPUWait.
  if (direction == MC_SEND && to == Stage::kPosted) return;
  WriteReached<direction, to>(s, *rec, *tracker, *step, r, now);
}

template <mc_direction direction>
void StopStage(State& s, ProxyOpRecord& rec, Tracker& tracker, Step& step, uint64_t now) {
  const Reached r = Advance<direction, Stage::kStopped>(s, rec, tracker, step, now, 0);
  WriteReached<direction, Stage::kStopped>(s, rec, tracker, step, r, now);
}

}  // namespace

// ---- events -----------------------------------------------------------------------------

uint64_t StartProxyOp(uint64_t context, uint64_t parent, const ProxyOp& facts) {
  State* s = Active();
  if (s == nullptr) return 0;
  ThreadState* t = Self(*s);
  const uint64_t now = Now(t);
  Tick(*s, now);
  AddRole(*s, t, MC_THREAD_PROGRESS);

  const bool foreign = static_cast<uint32_t>(facts.pid) != s->pid;
  uint16_t comm = kNoComm;
  uint64_t op_id = 0;
  if (foreign) {
    // PXN: context and parent are values of the originator's process.
    Count(*s, MC_LOSS_FOREIGN_PARENT);
  } else {
    const Handle p = Unpack(parent);
    if (p.kind == HandleKind::kOp && p.salt == s->salt && OpIsLive(*s, p.payload)) {
      op_id = p.payload;
    } else if (p.kind != HandleKind::kUntrackedOp) {
      Count(*s, MC_LOSS_NO_PARENT);
    }
    comm = FindComm(*s, context);
    if (comm == kNoComm && op_id != 0) comm = s->ops[op_id & (MC_BOARD_MAX_OPS - 1)].comm;
    if (comm == kNoComm) {  // of a communicator that the table had no room for
      Count(*s, MC_LOSS_FLOW_TABLE_FULL);
      return StartLoose(*s, op_id, facts.is_send != 0, facts, now);
    }
  }
  const uint8_t direction = facts.is_send != 0 ? MC_SEND : MC_RECV;
  const uint32_t owner_pid = foreign ? static_cast<uint32_t>(facts.pid) : 0;
  const uint32_t flow =
      FindFlow(*s, FlowKey(comm, facts.channel, direction, facts.peer), owner_pid);
  // Only NET sends say so; a receive is NET when its flow has moved before.
  const bool net = direction == MC_SEND || flow != kNoIndex || foreign;

  CommState& c = s->comms[comm & (MC_BOARD_MAX_COMMS - 1)];
  uint32_t index = s->proxy_op_pool.Take();
  if (index == kNoIndex && !foreign) {
    DropOldestPending(*s, c);
    index = s->proxy_op_pool.Take();
  }
  if (index == kNoIndex) {
    Count(*s, MC_LOSS_PROXY_OP_POOL_FULL);
    return StartLoose(*s, op_id, net, facts, now);
  }
  ProxyOpRecord& rec = s->proxy_ops[index];
  rec.flow = flow;
  rec.tracker = kNoIndex;
  rec.next = rec.prev = 0;
  rec.total = facts.steps > 0 ? static_cast<uint32_t>(facts.steps) : 0;
  rec.chunk_bytes = facts.chunk_size > 0 ? static_cast<uint32_t>(facts.chunk_size) : 0;
  rec.peer = facts.peer;
  rec.op_id = op_id;
  rec.append_ns = now;
  rec.owner_pid = owner_pid;
  rec.comm = comm;
  rec.channel = facts.channel;
  rec.direction = direction;
  rec.progressed = false;
  rec.counted = false;
  const uint32_t generation = rec.generation.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (net) {
    CountOp(*s, rec, now);
    WriteFlowHead(*s, rec, now);
  } else {
    Append(*s, &c.pending_first, &c.pending_last, rec);
    if (++c.pending_count > kMaxPending) DropOldestPending(*s, c);
  }
  return Pack(HandleKind::kProxyOp, s->salt,
              uint64_t{generation & kGenerationMask} << kRecordBits | index);
}

void RecordProxyOp(State& s, const Handle& h) {
  ThreadState* t = Self(s);
  const uint64_t now = Now(t);
  if (h.kind == HandleKind::kLooseProxyOp) {
    return CountLoose(s, h.payload, LooseEvent::kProgress, now);
  }
  ProxyOpRecord* rec = RecordOfOp(s, h.payload);
  if (rec != nullptr && !rec->progressed) MarkProgress(s, *rec, now);
}

void StopProxyOp(State& s, const Handle& h) {
  ThreadState* t = Self(s);
  const uint64_t now = Now(t);
  if (h.kind == HandleKind::kLooseProxyOp) {
    return CountLoose(s, h.payload, LooseEvent::kOpStop, now);
  }
  ProxyOpRecord* rec = RecordOfOp(s, h.payload);
  if (rec == nullptr) return;
  if (!rec->progressed) MarkProgress(s, *rec, now);  // only NET stops
  if (rec->op_id != 0) {
    mc_board_op* line = OpLine(s, rec->op_id);
    LineWrite write(&line->proxy_seq);
    BumpSaturated(&line->proxy_done);
    Set(&line->proxy_last_ns, now);
  }
  if (rec->flow != kNoIndex) {
    FlowState& f = s.flows[rec->flow];
    mc_board_flow* line = &s.board.flows[rec->flow];
    Remove(s, &f.first, &f.last, *rec);
    if (f.open != 0) --f.open;
    if (f.head == LinkOf(s, *rec)) f.head = 0;
    LineWrite write(&line->seq);
    Set(&line->moved_ns, now);
    Bump(&line->ops_done, 1);
    if (const Tracker* tracker = TrackerOf(s, *rec)) {
      Set(&line->last_op_id, rec->op_id);
      Set(&line->last_first_ns, tracker->first_ns);
      Set(&line->last_final_ns, tracker->final_ns);
    }
    WriteHead(s, f, line, now);
  }
  FreeRecord(s, *rec);
}

uint64_t StartProxyStep(uint64_t parent, int number) {
  State* s = Active();
  if (s == nullptr) return 0;
  const Handle p = Unpack(parent);
  if (p.salt == s->salt && p.kind == HandleKind::kLooseProxyOp) {
    return Pack(HandleKind::kLooseStep, s->salt, p.payload);
  }
  if (p.salt != s->salt || p.kind != HandleKind::kProxyOp || number < 0) {
    Count(*s, MC_LOSS_NO_PARENT);
    return Pack(HandleKind::kLooseStep, s->salt, 0);
  }
  ProxyOpRecord* rec = RecordOfOp(*s, p.payload);
  if (rec == nullptr) return Pack(HandleKind::kLooseStep, s->salt, 0);
  ThreadState* t = Self(*s);
  const uint64_t now = Now(t);
  if (!rec->progressed) MarkProgress(*s, *rec, now);
  const auto n = static_cast<uint32_t>(number);
  const uint64_t handle =
      Pack(HandleKind::kStep, s->salt, p.payload << kStepBits | (n & kStepMask));
  Tracker* tracker = TrackerOf(*s, *rec);
  if (tracker == nullptr) return handle;

  Step& step = tracker->steps[n % kTrackedSteps];
  if (step.stage != Stage::kNone && (step.number == n || n < tracker->head)) {
    Count(*s, MC_LOSS_DUPLICATE_STEP);
    return handle;
  }
  step = {now, 0, 0, n, Stage::kStarted};
  const bool send = rec->direction == MC_SEND;
  if (send) ++tracker->posted;
  if (n >= tracker->started_end) tracker->started_end = n + 1;
  AdvanceHead(*tracker, now);
  if (!send || rec->flow == kNoIndex) return handle;
  FlowState& f = s->flows[rec->flow];
  mc_board_flow* line = &s->board.flows[rec->flow];
  LineWrite write(&line->seq);
  Set(&line->posted_ns, now);
  Set(&line->moved_ns, now);
  if (f.head == LinkOf(*s, *rec)) {
    WriteCounters(*rec, tracker, line);
    WriteHeadState(*rec, tracker, f.head_since_ns, line);
  }
  return handle;
}

void RecordProxyStep(State& s, const Handle& h, EventState state, const StateArgs* args) {
  const uint64_t bytes = args != nullptr ? args->proxy_step.trans_size : 0;
  if (h.kind == HandleKind::kLooseStep) return CountLooseBytes(s, h.payload, state, bytes);
  switch (static_cast<int>(state)) {
    case kSendGpuWait:
      return RecordStage<MC_SEND, Stage::kPosted>(s, h, bytes);
    case kSendPeerWait:
      return RecordStage<MC_SEND, Stage::kReady>(s, h, bytes);
    case kSendWait:
      return RecordStage<MC_SEND, Stage::kTransmitted>(s, h, bytes);
    case kRecvWait:
      return RecordStage<MC_RECV, Stage::kPosted>(s, h, bytes);
    case kRecvFlushWait:
      return RecordStage<MC_RECV, Stage::kReady>(s, h, bytes);
    case kRecvGpuWait:
      return RecordStage<MC_RECV, Stage::kTransmitted>(s, h, bytes);
  }
  Count(s, MC_LOSS_UNKNOWN_EVENT);
}

void StopProxyStep(State& s, const Handle& h) {
  if (h.kind == HandleKind::kLooseStep) {
    return CountLoose(s, h.payload, LooseEvent::kStepStop, 0);
  }
  ProxyOpRecord* rec = RecordOfOp(s, h.payload >> kStepBits);
  if (rec == nullptr) return;
  const uint64_t now = Now(Self(s));
  Tracker* tracker = TrackerOf(s, *rec);
  if (tracker == nullptr) return WriteUntracked(s, *rec, 0, true, now);
  Step* step = FindStep(s, *tracker, h.payload);
  if (step == nullptr || step->stage == Stage::kStopped) return;
  if (rec->direction == MC_SEND) {
    StopStage<MC_SEND>(s, *rec, *tracker, *step, now);
  } else {
    StopStage<MC_RECV>(s, *rec, *tracker, *step, now);
  }
}

// ---- end of a communicator ----------------------------------------------------------------

void ReleaseFlows(State& s, uint16_t comm, uint64_t now) {
  const uint32_t used = Get(&s.board.header->flows_used);
  for (uint32_t i = 0; i < used && i < MC_BOARD_MAX_FLOWS; ++i) {
    FlowState& f = s.flows[i];
    const uint64_t key = f.key.load(std::memory_order_acquire);
    if (key == 0 || static_cast<uint16_t>(key >> 42) != comm) continue;
    // On an abort operations are left open.
    while (ProxyOpRecord* rec = At(s, f.first)) {
      Remove(s, &f.first, &f.last, *rec);
      FreeRecord(s, *rec);
    }
    f.open = 0;
    mc_board_flow* line = &s.board.flows[i];
    {
      LineWrite write(&line->seq);
      WriteHead(s, f, line, now);
    }
    s.flow_hash[f.hash_slot].store(kDeleted, std::memory_order_release);
    f.key.store(0, std::memory_order_release);
    s.flow_pool.Return(i);
  }
  CommState& c = s.comms[comm];
  while (c.pending_first != 0) DropOldestPending(s, c);
}

}  // namespace mycroft::nccl
