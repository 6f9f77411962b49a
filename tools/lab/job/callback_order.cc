// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/callback_order.h"

#include <zlib.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "cupti/nccl/profiler_abi.h"

namespace mycroft::lab {
namespace {

using nlohmann::json;

struct Event {
  uint64_t type = 0;
  int64_t context = 0;
  int64_t parent = 0;
  int64_t thread = 0;
  bool open = true;
  std::vector<int> states;
  // Coll, P2p
  std::string func;
  std::vector<std::pair<int, int>> posted;  // channel, is_send, in order of the proxy operations
  // ProxyOp
  int64_t channel = 0;
  int64_t peer = 0;
  int64_t transfers = 0;
  int64_t chunk_bytes = 0;
  bool send = false;
  bool p2p = false;
  int64_t started = 0;
  int64_t stopped = 0;
  int64_t offered = 0;  // steps that reached the state after the start (8 or 10)
  int64_t moved = 0;    // sent (9) or arrived (11)
  int64_t flushed = 0;  // 12
  // ProxyStep
  int64_t step = 0;
  // KernelCh
  uint64_t gpu_start = 0;
  uint64_t gpu_stop = 0;
};

// Connection of a proxy operation: communicator, channel, peer, direction, and whether it
// belongs to point-to-point messages, which have connections of their own.
using Flow = std::tuple<int64_t, int64_t, int64_t, bool, bool>;

Flow FlowOf(const Event& op) { return {op.context, op.channel, op.peer, op.send, op.p2p}; }

class Checker {
 public:
  explicit Checker(Sends sends) : sends_(sends) {}
  OrderReport Run(const std::vector<json>& lines);

 private:
  void Bad(const std::string& what) {
    if (report_.violations.size() < 20) {
      report_.violations.push_back("line " + std::to_string(line_) + ": " + what);
    }
  }
  void Expect(bool ok, const std::string& what) {
    if (!ok) Bad(what);
  }
  void OnStart(const json& line);
  void OnState(const json& line);
  void OnStop(const json& line);
  void OnStepState(Event* step, int state, const json& line);
  void LaunchToken(const std::string& token, int64_t handle);
  Event* Find(int64_t handle) {
    auto it = events_.find(handle);
    return it == events_.end() ? nullptr : &it->second;
  }
  bool UserThreadEvent(uint64_t type) const {
    return type == nccl::kGroup || type == nccl::kColl || type == nccl::kP2p ||
           (type >= nccl::kGroupApi && type <= nccl::kKernelLaunch);
  }

  Sends sends_;
  OrderReport report_;
  size_t line_ = 0;
  std::map<int64_t, Event> events_;
  std::map<int64_t, int> context_rank_;
  std::map<int64_t, std::string> thread_name_;
  std::map<int64_t, int64_t> progress_thread_;  // by context
  std::set<int64_t> user_threads_;
  std::set<int64_t> progress_threads_;
  std::map<std::pair<int64_t, std::string>, int64_t> sequence_;
  std::map<Flow, std::vector<int64_t>> flows_;  // open operations, oldest first
  // The launch that is being made on the user thread.
  std::string launch_;  // tokens so far
  std::vector<int64_t> started_tasks_;
  std::vector<int64_t> stopped_tasks_;
  int64_t group_api_ = 0;
  int64_t last_send_ready_ = 0;        // handle whose SendPeerWait was the last call on its thread
  std::map<int64_t, int64_t> awaits_;  // thread -> step handle that must be called next
};

// The user thread's calls as letters: A GroupApi, 1 and 2 its states 23 and 24, C CollApi
// or P2pApi, L KernelLaunch, G Group, T Coll or P2p; lower case = stop.
void Checker::LaunchToken(const std::string& token, int64_t handle) {
  launch_ += token;
  if (token == "T") started_tasks_.push_back(handle);
  if (token == "t") stopped_tasks_.push_back(handle);
  const bool last = report_.api >= 5 ? token == "a" : token == "g";
  if (!last) return;
  ++report_.launches;
  // Squeeze repeated calls: (Cc)+ and T+ t+.
  std::string shape;
  for (size_t i = 0; i < launch_.size(); ++i) {
    const char c = launch_[i];
    if ((c == 'T' || c == 't') && !shape.empty() && shape.back() == c) continue;
    if (c == 'C' && i >= 2 && launch_[i - 1] == 'c') {
      ++i;
      continue;
    }
    shape += c;
  }
  const char* expected = report_.api >= 5 ? "A1Cc2LlGTtga" : "GTtg";
  Expect(shape == expected, "a launch is " + launch_ + ", not of the form " + expected);
  Expect(started_tasks_ == stopped_tasks_, "operations stop in another order than they started");
  launch_.clear();
  started_tasks_.clear();
  stopped_tasks_.clear();
}

void Checker::OnStart(const json& line) {
  Event event;
  event.type = line.at("ty");
  event.context = line.at("c");
  event.parent = line.value("p", int64_t{0});
  event.thread = line.at("th");
  const int64_t handle = line.at("h");
  Expect(context_rank_.count(event.context) > 0, "start on a context that is not initialized");
  Expect(!line.contains("praw"), "foreign parent");
  Event* parent = event.parent == 0 ? nullptr : Find(event.parent);
  Expect(event.parent == 0 || parent != nullptr, "the parent was never started");
  const int rank = context_rank_[event.context];
  const bool has_rank = event.type == nccl::kColl || event.type == nccl::kP2p ||
                        event.type == nccl::kProxyOp || event.type == nccl::kProxyStep;
  Expect(line.at("rk") == (has_rank ? rank : 0), "rank of the descriptor");
  if (UserThreadEvent(event.type)) {
    user_threads_.insert(event.thread);
  } else {
    progress_threads_.insert(event.thread);
    auto [it, first] = progress_thread_.emplace(event.context, event.thread);
    Expect(it->second == event.thread, "two progress threads for one communicator");
  }
  auto parent_is = [&](uint64_t type) { return parent != nullptr && parent->type == type; };
  const bool api5 = report_.api >= 5;
  switch (event.type) {
    case nccl::kGroupApi:
      Expect(launch_.empty(), "GroupApi inside a launch");
      Expect(line.at("dep") >= 1, "group depth");
      group_api_ = handle;
      LaunchToken("A", handle);
      break;
    case nccl::kCollApi:
    case nccl::kP2pApi:
      Expect(event.parent == group_api_, "the parent of an API call is its GroupApi");
      Expect(line.contains("str"), "stream");
      LaunchToken("C", handle);
      break;
    case nccl::kKernelLaunch:
      Expect(event.parent == group_api_, "the parent of a KernelLaunch is the GroupApi");
      LaunchToken("L", handle);
      break;
    case nccl::kGroup:
      Expect(event.parent == 0, "Group has no parent");
      LaunchToken("G", handle);
      break;
    case nccl::kColl: {
      ++report_.collectives;
      event.func = line.at("fn");
      Expect(api5 ? parent_is(nccl::kCollApi) : parent_is(nccl::kGroup), "parent of a Coll");
      if (api5) {
        Event* group = Find(line.value("pg", int64_t{0}));
        Expect(group != nullptr && group->type == nccl::kGroup && group->open,
               "parentGroup of a Coll");
      }
      int64_t& next = sequence_[{event.context, event.func}];
      Expect(line.at("seq") == next, "sequence number of " + event.func);
      ++next;
      const bool bytes = event.func == "AllGather" || event.func == "Broadcast";
      Expect(line.at("dt") == (bytes ? "ncclInt8" : "ncclFloat32"), "datatype of " + event.func);
      LaunchToken("T", handle);
      break;
    }
    case nccl::kP2p:
      ++report_.messages;
      event.func = line.at("fn");
      Expect(api5 ? parent_is(nccl::kP2pApi) : parent_is(nccl::kGroup), "parent of a P2p");
      Expect(!line.contains("seq"), "a P2p has no sequence number");
      LaunchToken("T", handle);
      break;
    case nccl::kProxyOp: {
      ++report_.proxy_ops;
      Expect(parent_is(nccl::kColl) || parent_is(nccl::kP2p), "parent of a ProxyOp");
      event.channel = line.at("ch");
      event.peer = line.at("peer");
      event.transfers = line.at("ns");
      event.chunk_bytes = line.at("cs");
      event.send = line.at("snd") == 1;
      event.p2p = parent_is(nccl::kP2p);
      Expect(event.transfers > 0, "ProxyOp without steps");
      if (parent != nullptr) {
        if (parent->type == nccl::kP2p) {
          Expect(event.send == (parent->func == "Send"), "direction of a point-to-point operation");
        }
        // Channel by channel, on each the receive before the send.
        parent->posted.emplace_back(event.channel, event.send);
        Expect(std::is_sorted(parent->posted.begin(), parent->posted.end()),
               "order of the proxy operations of one call");
      }
      flows_[FlowOf(event)].push_back(handle);
      break;
    }
    case nccl::kProxyStep: {
      ++report_.steps;
      Expect(parent_is(nccl::kProxyOp), "parent of a ProxyStep");
      if (parent == nullptr) break;
      event.step = line.at("step");
      event.send = parent->send;
      Expect(!parent->states.empty() && parent->states.front() == nccl::kProxyOpInProgress,
             "step before InProgress");
      Expect(event.step == parent->started, "steps start in order");
      ++parent->started;
      Expect(parent->started - parent->stopped <= 8, "more than 8 steps in flight");
      awaits_[event.thread] = handle;  // its first state follows at once
      break;
    }
    case nccl::kKernelCh:
      ++report_.kernels;
      Expect(parent_is(nccl::kColl) || parent_is(nccl::kP2p), "parent of a KernelCh");
      event.channel = line.at("ch");
      event.gpu_start = line.at("pt");
      break;
    case nccl::kProxyCtrl:
      Expect(event.parent == 0, "ProxyCtrl has no parent");
      break;
    default:
      Bad("event type " + std::to_string(event.type));
  }
  Expect(events_.emplace(handle, std::move(event)).second, "handle given twice");
}

void Checker::OnStepState(Event* step, int state, const json& line) {
  Event* op = Find(step->parent);
  if (op == nullptr) return;
  static const std::vector<int> kSend = {nccl::kSendGpuWait, nccl::kSendPeerWait, nccl::kSendWait};
  static const std::vector<int> kRecv = {nccl::kRecvWait, nccl::kRecvFlushWait, nccl::kRecvGpuWait};
  const std::vector<int>& order = step->send ? kSend : kRecv;
  if (sends_ == Sends::kMayBeRefused && state == nccl::kSendPeerWait && step->states.size() == 3 &&
      step->states[1] == nccl::kSendPeerWait) {
    step->states.pop_back();
    ++report_.refused_sends;
  }
  const size_t at = step->states.size();
  // The last state was appended by the caller.
  Expect(at <= order.size() && order[at - 1] == state,
         "state " + std::to_string(state) + " as the " + std::to_string(at) + ". of a " +
             (step->send ? "send" : "receive") + " step");
  const int64_t size = line.value("sz", int64_t{-1});
  // Elsewhere it is the size of an earlier transfer on the connection.
  const bool own = state == nccl::kSendWait || state == nccl::kRecvFlushWait;
  Expect(size >= 0 && (!own || size <= op->chunk_bytes), "size of a transfer");
  switch (state) {
    case nccl::kSendGpuWait:
    case nccl::kRecvWait:
      Expect(step->step == op->offered, "slots are offered in order");
      ++op->offered;
      break;
    case nccl::kSendPeerWait:
      Expect(step->step == op->moved, "only the oldest step is offered to the network");
      // Not refused: SendWait follows at once, on the same thread.
      if (sends_ == Sends::kNeverRefused) awaits_[step->thread] = line.at("h");
      break;
    case nccl::kSendWait:
    case nccl::kRecvFlushWait:
      Expect(step->step == op->moved, "transfers happen in order");
      ++op->moved;
      break;
    case nccl::kRecvGpuWait:
      Expect(step->step == op->flushed, "flushes happen in order");
      ++op->flushed;
      break;
    default:
      break;
  }
}

void Checker::OnState(const json& line) {
  const int64_t handle = line.at("h");
  const int state = line.at("st");
  Event* event = Find(handle);
  if (event == nullptr) return Bad("state of an unknown event");
  Expect(event->open, "state of a stopped event");
  Expect(line.at("th") == event->thread, "state on another thread than the start");
  event->states.push_back(state);
  switch (event->type) {
    case nccl::kGroupApi:
      Expect(!line.contains("sz"), "GroupApi states have no arguments");
      LaunchToken(state == nccl::kGroupStartApiStop  ? "1"
                  : state == nccl::kGroupEndApiStart ? "2"
                                                     : "?",
                  handle);
      break;
    case nccl::kProxyOp: {
      Expect(state == nccl::kProxyOpInProgress && event->states.size() == 1, "state of a ProxyOp");
      const auto& flow = flows_[FlowOf(*event)];
      Expect(!flow.empty() && flow.front() == handle,
             "an operation begins before the earlier one on its connection has ended");
      break;
    }
    case nccl::kProxyStep:
      OnStepState(event, state, line);
      break;
    case nccl::kKernelCh:
      Expect(state == nccl::kKernelChStop && event->states.size() == 1, "state of a KernelCh");
      event->gpu_stop = line.at("pt");
      break;
    case nccl::kProxyCtrl:
      Expect(state >= nccl::kProxyCtrlIdle && state <= nccl::kProxyCtrlAppendEnd,
             "state of a ProxyCtrl");
      break;
    default:
      Bad("state " + std::to_string(state) + " of an event of type " + std::to_string(event->type));
  }
}

void Checker::OnStop(const json& line) {
  const int64_t handle = line.at("h");
  Event* event = Find(handle);
  if (event == nullptr) return Bad("stop of an unknown event");
  Expect(event->open, "stopped twice");
  Expect(line.at("th") == event->thread, "stop on another thread than the start");
  event->open = false;
  switch (event->type) {
    case nccl::kGroupApi:
      LaunchToken("a", handle);
      break;
    case nccl::kCollApi:
    case nccl::kP2pApi:
      LaunchToken("c", handle);
      break;
    case nccl::kKernelLaunch:
      LaunchToken("l", handle);
      break;
    case nccl::kGroup:
      LaunchToken("g", handle);
      break;
    case nccl::kColl:
    case nccl::kP2p:
      LaunchToken("t", handle);
      break;
    case nccl::kProxyOp: {
      Expect(event->stopped == event->transfers, "ProxyOp stops before its last step");
      auto& flow = flows_[FlowOf(*event)];
      Expect(!flow.empty() && flow.front() == handle, "ProxyOps of a flow stop in order");
      flow.erase(std::remove(flow.begin(), flow.end(), handle), flow.end());
      break;
    }
    case nccl::kProxyStep: {
      Expect(event->states.size() == 3,
             "a step stops with " + std::to_string(event->states.size()) + " states");
      Event* op = Find(event->parent);
      if (op == nullptr) break;
      Expect(op->stopped == event->step, "steps stop in order");
      ++op->stopped;
      Expect(op->open, "step stops after its ProxyOp");
      break;
    }
    case nccl::kKernelCh:
      Expect(event->states.size() == 1, "KernelCh stops without KernelChStop");
      Expect(event->gpu_stop >= event->gpu_start, "GPU time runs backwards");
      break;
    case nccl::kProxyCtrl:
      Expect(!event->states.empty(), "ProxyCtrl without a state");
      break;
    default:
      break;
  }
}

OrderReport Checker::Run(const std::vector<json>& lines) {
  uint64_t last_time = 0;
  bool ended = false;
  std::set<int64_t> finalized;
  for (const json& line : lines) {
    ++line_;
    const std::string kind = line.value("k", "");
    if (line_ == 1) {
      Expect(kind == "hdr", "the first line is no header");
      report_.api = line.value("av", 0);
      continue;
    }
    const uint64_t time = line.value("t", uint64_t{0});
    Expect(time >= last_time, "time runs backwards");
    last_time = time;
    const int64_t thread = line.value("th", int64_t{0});
    if (kind == "b" || kind == "s" || kind == "e") {
      if (auto it = awaits_.find(thread); it != awaits_.end()) {
        Expect(kind == "s" && line.at("h") == it->second,
               "the next state of a step does not follow at once");
        awaits_.erase(it);
      }
    }
    if (kind == "thr") {
      thread_name_[thread] = line.value("name", "");
    } else if (kind == "init") {
      context_rank_[line.at("c")] = line.at("r");
      report_.comms[line.value("name", "")] = line.at("n");
    } else if (kind == "b") {
      Expect(finalized.count(line.at("c")) == 0, "start after finalize");
      OnStart(line);
    } else if (kind == "s") {
      OnState(line);
    } else if (kind == "e") {
      OnStop(line);
    } else if (kind == "fini") {
      Expect(finalized.insert(line.at("c").get<int64_t>()).second, "finalized twice");
    } else if (kind == "clk") {
      ended = line.value("end", 0) == 1 && !line.contains("sig");
    } else {
      Bad("line of kind " + kind);
    }
  }
  for (int64_t thread : progress_threads_) {
    Expect(user_threads_.count(thread) == 0, "a progress thread calls the API");
    Expect(thread_name_[thread].rfind("NCCL Progress", 0) == 0,
           "a progress thread is called \"" + thread_name_[thread] + "\"");
  }
  for (const auto& [handle, event] : events_) report_.open_events += event.open;
  report_.complete = ended && report_.open_events == 0 &&
                     finalized.size() == context_rank_.size() && launch_.empty();
  return std::move(report_);
}

}  // namespace

bool ReadRecording(const std::string& path, std::vector<json>* lines, std::string* error) {
  gzFile file = gzopen(path.c_str(), "rb");  // reads plain files too
  if (file == nullptr) {
    *error = path + ": cannot be opened";
    return false;
  }
  std::string line;
  char buffer[4096];
  bool ok = true;
  while (ok && gzgets(file, buffer, sizeof(buffer)) != nullptr) {
    line += buffer;
    if (line.back() != '\n') continue;
    json value = json::parse(line, nullptr, false);
    if (!value.is_object()) {
      *error = path + ": line " + std::to_string(lines->size() + 1) + " is not a JSON object";
      ok = false;
    }
    lines->push_back(std::move(value));
    line.clear();
  }
  gzclose(file);
  return ok;
}

OrderReport CheckOrder(const std::vector<json>& lines, Sends sends) {
  return Checker(sends).Run(lines);
}

}  // namespace mycroft::lab
