// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/rcflow/flow.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/lab/job/clock.h"

namespace mycroft::lab {
namespace {

class Flow {
 public:
  Flow(const FlowOptions& options, FILE* out, Endpoint sender, Endpoint receiver)
      : options_(options),
        out_(out),
        sender_(std::move(sender)),
        receiver_(std::move(receiver)),
        posted_ns_(options.depth) {}

  absl::StatusOr<FlowResult> Run();

 private:
  size_t Slot(uint64_t number) const { return number % options_.depth * options_.bytes; }
  bool Broken() const { return result_.bad_completions > 0; }
  void Print(nlohmann::json line) {
    line["t_ns"] = NowNs();
    fprintf(out_, "%s\n", line.dump().c_str());
    fflush(out_);
  }
  void BeginFault(uint64_t now_ns);
  absl::Status Fill();
  absl::Status Drain();
  absl::Status PostReceive();
  void Complete(const ibv_wc& completion, bool sender);
  void Check(uint64_t number);
  void Interval(uint64_t now_ns);
  absl::Status WriteTruth() const;

  const FlowOptions& options_;
  FILE* out_;
  Endpoint sender_, receiver_;
  std::vector<uint64_t> posted_ns_;  // by slot
  uint64_t next_ = 0;                // number of the next message
  uint64_t next_receive_ = 0;        // number of the next receive request
  uint64_t under_way_ = 0;
  uint64_t fault_ns_ = 0;  // since when the fault holds; 0: not yet
  uint64_t interval_ns_ = 0, interval_messages_ = 0, interval_latency_ns_ = 0;
  FlowResult result_;
};

void Flow::BeginFault(uint64_t now_ns) {
  fault_ns_ = now_ns;
  if (absl::Status s = WriteTruth(); !s.ok()) {
    fprintf(stderr, "mycroft-lab rcflow: %s\n", std::string(s.message()).c_str());
  }
}

absl::Status Flow::WriteTruth() const {
  if (options_.truth.empty()) return absl::OkStatus();
  const bool key = options_.fault == FlowFault::kBadRemoteKey;
  nlohmann::json fault = {{"kind", key ? "bad-rkey" : "receiver-not-ready"},
                          {"component", key ? "app" : "nic"},
                          {"devices", {key ? options_.from : options_.to}},
                          {"amount", 1},
                          {"unit", ""},
                          {"onset", fault_ns_},
                          {"clear", 0},
                          {"windows", {{fault_ns_, 0}}}};
  const std::string temporary = options_.truth + ".new";
  std::ofstream file(temporary);
  file << nlohmann::json{{"faults", {fault}}}.dump(1) << "\n";
  file.close();
  if (!file || rename(temporary.c_str(), options_.truth.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, "cannot write " + options_.truth);
  }
  return absl::OkStatus();
}

absl::Status Flow::PostReceive() {
  const uint64_t number = next_receive_++;
  return receiver_.PostReceive(number, Slot(number), options_.bytes);
}

// The number of a message stands at both its ends: a part that did not arrive shows.
absl::Status Flow::Fill() {
  while (under_way_ < options_.depth) {
    const uint64_t number = next_++;
    uint8_t* slot = sender_.data() + Slot(number);
    memcpy(slot, &number, sizeof(number));
    memcpy(slot + options_.bytes - sizeof(number), &number, sizeof(number));
    const bool bad_key = options_.fault == FlowFault::kBadRemoteKey && fault_ns_ != 0;
    posted_ns_[number % options_.depth] = NowNs();
    absl::Status s = sender_.PostSend(
        number, options_.send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, Slot(number), options_.bytes,
        receiver_.address() + Slot(number), receiver_.remote_key() ^ (bad_key ? 0x5a : 0));
    if (!s.ok()) return s;
    ++under_way_;
  }
  return absl::OkStatus();
}

void Flow::Check(uint64_t number) {
  const uint8_t* slot = receiver_.data() + Slot(number);
  if (memcmp(slot, &number, sizeof(number)) != 0 ||
      memcmp(slot + options_.bytes - sizeof(number), &number, sizeof(number)) != 0) {
    ++result_.wrong_data;
  }
}

void Flow::Complete(const ibv_wc& completion, bool sender) {
  if (sender) --under_way_;
  if (completion.status != IBV_WC_SUCCESS) {
    ++result_.bad_completions;
    Print({{"bad_completion",
            {{"end", sender ? "sender" : "receiver"},
             {"status", completion.status},
             {"name", ibv_wc_status_str(completion.status)},
             {"vendor", completion.vendor_err},
             {"qp", completion.qp_num}}}});
    return;
  }
  // The receive requests complete in order, and so is the data there in order. What a
  // WRITE wrote is there when the sender has its completion.
  if (sender != options_.send) Check(completion.wr_id);
  if (!sender) return;
  ++result_.messages;
  ++interval_messages_;
  interval_latency_ns_ =
      std::max(interval_latency_ns_, NowNs() - posted_ns_[completion.wr_id % options_.depth]);
}

absl::Status Flow::Drain() {
  auto at_receiver = receiver_.Poll();
  if (!at_receiver.ok()) return at_receiver.status();
  for (const ibv_wc& completion : *at_receiver) {
    Complete(completion, false);
    const bool stop = options_.fault == FlowFault::kNoReceive && fault_ns_ != 0;
    if (completion.status != IBV_WC_SUCCESS || stop) continue;
    if (absl::Status s = PostReceive(); !s.ok()) return s;
  }
  auto at_sender = sender_.Poll();
  if (!at_sender.ok()) return at_sender.status();
  for (const ibv_wc& completion : *at_sender) Complete(completion, true);
  // On two processors the kernel's side needs this one.
  if (at_sender->empty() && at_receiver->empty()) sched_yield();
  return absl::OkStatus();
}

void Flow::Interval(uint64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - interval_ns_) / 1e9;
  auto state = sender_.State();
  Print({{"mbytes_per_s", static_cast<double>(interval_messages_ * options_.bytes) / 1e6 / seconds},
         {"messages", interval_messages_},
         {"max_latency_us", interval_latency_ns_ / kNsPerUs},
         {"state", state.ok() ? ToString(*state) : "unreadable"}});
  interval_ns_ = now_ns;
  interval_messages_ = interval_latency_ns_ = 0;
  for (Endpoint* end : {&sender_, &receiver_}) {
    for (std::string event = end->NextEvent(); !event.empty(); event = end->NextEvent()) {
      Print({{"event", event}, {"end", end == &sender_ ? "sender" : "receiver"}});
    }
  }
}

absl::StatusOr<FlowResult> Flow::Run() {
  ConnectionSettings peer = options_.connection;
  if (options_.peer_mtu) peer.path_mtu = *options_.peer_mtu;
  if (absl::Status s = receiver_.Connect(sender_, peer); !s.ok()) return s;
  if (absl::Status s = sender_.Connect(receiver_, options_.connection); !s.ok()) return s;
  Print({{"connected",
          {{"sender_qp", sender_.number()},
           {"receiver_qp", receiver_.number()},
           {"sender_gid_index", sender_.gid_index()},
           {"receiver_gid_index", receiver_.gid_index()}}}});
  const uint64_t start_ns = NowNs();
  uint64_t end_ns = start_ns + static_cast<uint64_t>(options_.seconds * 1e9);
  const uint64_t fault_ns = start_ns + static_cast<uint64_t>(options_.fault_after_s * 1e9);
  interval_ns_ = start_ns;
  if (options_.send) {
    // Before the fault there is always one receive request for each message under way.
    for (uint32_t i = 0; i < options_.depth; ++i) {
      if (absl::Status s = PostReceive(); !s.ok()) return s;
    }
  }
  bool stopped = false;  // no more is posted
  for (;;) {
    const uint64_t now_ns = NowNs();
    if (options_.fault != FlowFault::kNone && fault_ns_ == 0 && now_ns >= fault_ns) {
      BeginFault(now_ns);
    }
    if (now_ns - interval_ns_ >= options_.interval_ms * kNsPerMs) Interval(now_ns);
    if (options_.stop != nullptr && *options_.stop != 0) end_ns = std::min(end_ns, now_ns);
    if (now_ns >= end_ns) stopped = true;
    if (Broken()) stopped = true;
    if (!stopped) {
      if (absl::Status s = Fill(); !s.ok()) return s;
    }
    if (absl::Status s = Drain(); !s.ok()) return s;
    const bool over = now_ns >= end_ns || (Broken() && !options_.stay);
    // What is under way may still complete, but does not when the link is dead.
    if (over && (under_way_ == 0 || now_ns >= end_ns + kNsPerSec)) break;
  }
  Interval(NowNs());
  auto state = sender_.State();
  Print({{"summary",
          {{"messages", result_.messages},
           {"bytes", result_.messages * options_.bytes},
           {"bad_completions", result_.bad_completions},
           {"wrong_data", result_.wrong_data},
           {"unfinished", under_way_},
           {"seconds", static_cast<double>(NowNs() - start_ns) / 1e9},
           {"state", state.ok() ? ToString(*state) : "unreadable"}}}});
  return result_;
}

}  // namespace

absl::StatusOr<FlowResult> RunFlow(const FlowOptions& options, FILE* out) {
  const size_t bytes = static_cast<size_t>(options.bytes) * options.depth;
  auto sender = Endpoint::Open(options.from, bytes, options.depth, options.gid_index);
  if (!sender.ok()) return sender.status();
  auto receiver = Endpoint::Open(options.to, bytes, options.depth, options.peer_gid_index);
  if (!receiver.ok()) return receiver.status();
  return Flow(options, out, *std::move(sender), *std::move(receiver)).Run();
}

}  // namespace mycroft::lab
