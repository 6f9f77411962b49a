// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/train.h"

#include <algorithm>
#include <cmath>

namespace mycroft::lab {
namespace {

constexpr size_t kWarmUpCount = 16384;
constexpr size_t kWarmUpP2pCount = 1024;

int Next(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }
int Prev(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }

Func FuncOf(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return Func::kAllReduce;
    case OpKind::kReduceScatter:
      return Func::kReduceScatter;
    case OpKind::kAllGather:
      return Func::kAllGather;
    case OpKind::kBroadcast:
      return Func::kBroadcast;
    case OpKind::kSendRecv:
    case OpKind::kAllToAll:
      return Func::kSend;
  }
  return Func::kAllReduce;
}

// Every element, or every 61st from a place that moves with the iteration, and all
// that change with the iteration.
template <typename Expected>
bool CheckRange(const float* data, size_t count, size_t stride, int64_t iter, bool full,
                const Expected& expected) {
  const size_t step = full ? 1 : 61;
  for (size_t i = full ? 0 : static_cast<size_t>(iter % 61); i < count; i += step) {
    if (data[i] != expected(i)) return false;
  }
  for (size_t i = 0; i < count; i += stride) {
    if (data[i] != expected(i)) return false;
  }
  return true;
}

bool IsCollective(OpKind kind) { return kind != OpKind::kSendRecv && kind != OpKind::kAllToAll; }

// Elements of the message between two ranks of an all-to-all: 1/16 to all of a part.
size_t TokenCount(size_t part, int from, int to, int64_t iter) {
  uint64_t mix = static_cast<uint64_t>(iter) * 1000003 + static_cast<uint64_t>(from * 1009 + to);
  mix = (mix ^ (mix >> 31)) * 0x9e3779b97f4a7c15ull;
  return std::max<size_t>(1, part * (1 + (mix >> 60)) / 16);
}

}  // namespace

Trainer::Trainer(const JobConfig& config, int job_rank, std::vector<Communicator*> comms,
                 Process* process)
    : config_(config),
      process_(process),
      api_(process),
      random_(config.seed * 7919 + static_cast<uint64_t>(job_rank)) {
  for (Communicator* comm : comms) {
    const std::string& name = comm->plan().name;
    if (name == "world") world_ = comm;
    if (name.rfind("dp", 0) == 0) data_ = comm;
    if (name.rfind("pp", 0) == 0) stages_ = comm;
    if (name.rfind("tp", 0) == 0) tensor_ = comm;
  }
  if (config.layout == Layout::kFlat) data_ = world_;
  if (data_ != nullptr) {
    for (OpKind kind : config.ops) ops_.push_back(MakeMessage(kind, data_, config.bytes));
  }
  if (config.layout != Layout::kFlat && config.world_bytes > 0) {
    world_message_ = MakeMessage(OpKind::kAllReduce, world_, config.world_bytes);
  }
  for (int m = 0; m < config.microbatches; ++m) {
    if (tensor_ != nullptr) {
      tensor_messages_.push_back(MakeMessage(OpKind::kAllReduce, tensor_, config.tp_bytes));
    }
    if (stages_ != nullptr) {
      forward_.push_back(MakeMessage(OpKind::kSendRecv, stages_, config.p2p_bytes));
      backward_.push_back(MakeMessage(OpKind::kSendRecv, stages_, config.p2p_bytes));
      forward_.back().peer_from = stages_->rank() - 1;
      backward_.back().peer_from = stages_->rank() + 1;
    }
  }
}

Trainer::Message Trainer::MakeMessage(OpKind kind, Communicator* comm, int64_t bytes) {
  Message message;
  message.kind = kind;
  message.comm = comm;
  message.count = std::max<size_t>(1, static_cast<size_t>(bytes) / sizeof(float));
  const auto n = static_cast<size_t>(comm->size());
  size_t sent = message.count;
  size_t received = message.count;
  switch (kind) {
    case OpKind::kReduceScatter:
      message.count = std::max<size_t>(1, message.count / n);  // of one rank's part
      sent = message.count * n;
      received = message.count;
      break;
    case OpKind::kAllGather:
      message.count = std::max<size_t>(1, message.count / n);
      sent = message.count;
      received = message.count * n;
      break;
    case OpKind::kAllToAll:
      sent = received = std::max<size_t>(1, message.count / n) * n;
      break;
    case OpKind::kAllReduce:
    case OpKind::kBroadcast:
    case OpKind::kSendRecv:
      break;
  }
  message.send.resize(sent);
  message.recv.resize(received);
  message.peer_from = Prev(*comm);
  const Pattern pattern(sent);
  for (size_t i = 0; i < sent; ++i) message.send[i] = pattern.Base(i, comm->rank());
  return message;
}

void Trainer::Stamp(Message* message, int64_t iter, size_t count) const {
  const Pattern pattern(message->send.size());
  for (size_t i = 0; i < count; i += pattern.stride()) {
    message->send[i] = pattern.At(i, message->comm->rank(), iter);
  }
}

void Trainer::Compute(bool opens_iteration, int64_t iter) {
  if (opens_iteration && process_->input_bytes > 0) {
    Kernel copy;
    copy.copy_bytes = process_->input_bytes;
    process_->device->Enqueue(std::move(copy));
  }
  Kernel kernel;
  double us = static_cast<double>(config_.compute_us);
  if (config_.noise_percent > 0) {
    std::uniform_real_distribution<double> noise(-1.0, 1.0);
    us *= 1 + config_.noise_percent / 100 * noise(random_);
  }
  if (opens_iteration && iter == 0) us += static_cast<double>(config_.first_us);
  kernel.compute_ns = static_cast<uint64_t>(us * 1e3);
  kernel.opens_iteration = opens_iteration;
  process_->device->Enqueue(std::move(kernel));
}

void Trainer::Issue(Message* message, int64_t iter) {
  Stamp(message, iter, message->send.size());
  if (message->kind == OpKind::kSendRecv) {
    api_.GroupStart();
    api_.Send(message->comm, message->send.data(), message->count, Next(*message->comm));
    api_.Recv(message->comm, message->recv.data(), message->count, Prev(*message->comm));
    api_.GroupEnd();
    return;
  }
  if (message->kind == OpKind::kAllToAll) return IssueAllToAll(message, iter);
  api_.Collective(message->comm, FuncOf(message->kind), message->send.data(), message->recv.data(),
                  message->count);
}

void Trainer::IssueAllToAll(Message* message, int64_t iter) {
  Communicator* comm = message->comm;
  const int n = comm->size();
  const int rank = comm->rank();
  const size_t part = message->part();
  api_.GroupStart();
  for (int offset = 1; offset < n; ++offset) {
    const int to = (rank + offset) % n;
    const int from = (rank + n - offset) % n;
    api_.Send(comm, message->send.data() + part * static_cast<size_t>(to),
              TokenCount(part, rank, to, iter), to);
    api_.Recv(comm, message->recv.data() + part * static_cast<size_t>(from),
              TokenCount(part, from, rank, iter), from);
  }
  api_.GroupEnd();
}

void Trainer::IssueOps(int64_t iter) {
  FaultBoard* faults = process_->faults;
  std::vector<size_t> order(ops_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<size_t> collectives;
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (IsCollective(ops_[i].kind)) collectives.push_back(i);
  }
  const uint64_t now = NowNs();
  const auto size =
      collectives.empty() ? std::nullopt : faults->Take(FaultKind::kMismatchSize, now);
  const bool swap =
      !collectives.empty() && faults->Take(FaultKind::kMismatchOrder, now).has_value();
  if (swap && collectives.size() > 1) std::swap(order[collectives[0]], order[collectives[1]]);
  for (size_t at = 0; at < order.size(); ++at) {
    Message& message = ops_[order[at]];
    const bool wrong = !collectives.empty() && at == collectives[0] && (size || swap);
    if (!wrong || (swap && collectives.size() > 1)) {
      Issue(&message, iter);
      continue;
    }
    Stamp(&message, iter, message.send.size());
    Func func = FuncOf(message.kind);
    size_t count = message.count;
    if (size)
      count = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(count) * *size / 100));
    // With one collective there is no order to change: another function then.
    if (swap) {
      func = Func::kBroadcast;
      count = std::min(message.send.size(), message.recv.size());
    }
    api_.Collective(message.comm, func, message.send.data(), message.recv.data(), count);
  }
}

size_t Trainer::StageCount(int64_t iter, int microbatch) const {
  const size_t count = static_cast<size_t>(config_.p2p_bytes) / sizeof(float);
  if (!config_.uneven_p2p) return count;
  // 1, 1/2, 1/4, 1/8 of the size, in turn: the same on both sides.
  return std::max<size_t>(1, count >> ((iter + microbatch) % 4));
}

void Trainer::Pipeline(int64_t iter) {
  const int stages = stages_->size();
  const int stage = stages_->rank();
  const int total = config_.microbatches;
  auto send = [&](std::vector<Message>& messages, int m, int peer) {
    if (peer < 0 || peer >= stages) return;
    const size_t count = StageCount(iter, m);
    Stamp(&messages[m], iter, count);
    api_.Send(stages_, messages[m].send.data(), count, peer);
  };
  auto recv = [&](std::vector<Message>& messages, int m, int peer) {
    if (peer < 0 || peer >= stages) return;
    api_.Recv(stages_, messages[m].recv.data(), StageCount(iter, m), peer);
  };
  auto send_forward = [&](int m) { send(forward_, m, stage + 1); };
  auto recv_forward = [&](int m) { recv(forward_, m, stage - 1); };
  auto send_backward = [&](int m) { send(backward_, m, stage - 1); };
  auto recv_backward = [&](int m) { recv(backward_, m, stage + 1); };
  auto compute = [&] {
    Compute(!opened_, iter);
    opened_ = true;
  };

  // One forward, one backward, as in Megatron-LM's schedule without interleaving.
  const int warm = std::min(stages - stage - 1, total);
  const int steady = total - warm;
  for (int m = 0; m < warm; ++m) {
    recv_forward(m);
    compute();
    send_forward(m);
  }
  if (steady > 0) recv_forward(warm);
  for (int k = 0; k < steady; ++k) {
    compute();
    api_.GroupStart();
    send_forward(warm + k);
    recv_backward(k);
    api_.GroupEnd();
    compute();
    api_.GroupStart();
    send_backward(k);
    if (k + 1 < steady) recv_forward(warm + k + 1);
    api_.GroupEnd();
  }
  for (int k = steady; k < total; ++k) {
    recv_backward(k);
    compute();
    send_backward(k);
  }
}

void Trainer::Enqueue(int64_t iter) {
  opened_ = false;
  if (stages_ != nullptr) {
    Pipeline(iter);
  } else if (tensor_ != nullptr) {
    for (Message& message : tensor_messages_) {
      Compute(!opened_, iter);
      opened_ = true;
      Issue(&message, iter);
    }
  } else {
    Compute(true, iter);
  }
  IssueOps(iter);
  if (world_message_.comm != nullptr) Issue(&world_message_, iter);
}

bool Trainer::WarmUp() {
  std::vector<Message> messages;
  messages.reserve(8);
  for (Communicator* comm : {world_, data_, tensor_, stages_}) {
    if (comm == nullptr || (comm == data_ && data_ == world_ && !messages.empty())) continue;
    if (comm->plan().ring) {
      messages.push_back(MakeMessage(OpKind::kAllReduce, comm, kWarmUpCount * sizeof(float)));
      Issue(&messages.back(), 0);
    }
    if (!comm->plan().p2p) continue;
    if (comm->plan().p2p_all) {
      messages.push_back(MakeMessage(OpKind::kAllToAll, comm, kWarmUpP2pCount * sizeof(float)));
      Issue(&messages.back(), 0);
      if (!comm->plan().p2p_wraps) continue;
    }
    if (comm->plan().p2p_wraps) {
      messages.push_back(MakeMessage(OpKind::kSendRecv, comm, kWarmUpP2pCount * sizeof(float)));
      Issue(&messages.back(), 0);
      continue;
    }
    // Both ways between neighbours; a group, so that no order can block.
    for (int up = 0; up < 2; ++up) {
      messages.push_back(MakeMessage(OpKind::kSendRecv, comm, kWarmUpP2pCount * sizeof(float)));
      Message& message = messages.back();
      const int to = comm->rank() + (up == 1 ? 1 : -1);
      const int from = comm->rank() - (up == 1 ? 1 : -1);
      message.peer_from = from;
      api_.GroupStart();
      if (to >= 0 && to < comm->size()) {
        api_.Send(comm, message.send.data(), message.count, to);
      }
      if (from >= 0 && from < comm->size()) {
        api_.Recv(comm, message.recv.data(), message.count, from);
      } else {
        message.comm = nullptr;  // nothing to check
      }
      api_.GroupEnd();
    }
  }
  if (!process_->device->Synchronize()) return false;
  for (const Message& message : messages) {
    if (message.comm != nullptr && !Check(message, 0, true)) return false;
  }
  return true;
}

bool Trainer::Check(const Message& message, int64_t iter, bool full) const {
  const int n = message.comm->size();
  const int rank = message.comm->rank();
  const Pattern pattern(message.send.size());
  const size_t stride = pattern.stride();
  const float* data = message.recv.data();
  const float ranks = static_cast<float>(n * (n - 1) / 2);
  auto sum = [&](size_t i) { return static_cast<float>(n) * (pattern.At(i, 0, iter)) + ranks; };
  switch (message.kind) {
    case OpKind::kAllReduce:
      return CheckRange(data, message.count, stride, iter, full, sum);
    case OpKind::kReduceScatter: {
      const size_t begin = message.count * static_cast<size_t>(rank);
      return CheckRange(data, message.count, stride, iter, full,
                        [&](size_t i) { return sum(begin + i); });
    }
    case OpKind::kAllGather:
      for (int from = 0; from < n; ++from) {
        if (!CheckRange(data + message.count * static_cast<size_t>(from), message.count, stride,
                        iter, full, [&](size_t i) { return pattern.At(i, from, iter); })) {
          return false;
        }
      }
      return true;
    case OpKind::kBroadcast:
      return CheckRange(data, message.count, stride, iter, full,
                        [&](size_t i) { return pattern.At(i, 0, iter); });
    case OpKind::kSendRecv:
      return CheckRange(data, message.count, stride, iter, full,
                        [&](size_t i) { return pattern.At(i, message.peer_from, iter); });
    case OpKind::kAllToAll: {
      const size_t part = message.part();
      const size_t mine = part * static_cast<size_t>(rank);  // in the sender's buffer
      for (int from = 0; from < n; ++from) {
        if (from == rank) continue;
        if (!CheckRange(data + part * static_cast<size_t>(from), TokenCount(part, from, rank, iter),
                        stride, iter, full,
                        [&](size_t i) { return pattern.At(mine + i, from, iter); })) {
          return false;
        }
      }
      return true;
    }
  }
  return false;
}

bool Trainer::CheckStage(const Message& message, int64_t iter, int microbatch, bool full) const {
  if (message.peer_from < 0 || message.peer_from >= stages_->size()) return true;
  const Pattern pattern(message.send.size());
  return CheckRange(message.recv.data(), StageCount(iter, microbatch), pattern.stride(), iter, full,
                    [&](size_t i) { return pattern.At(i, message.peer_from, iter); });
}

bool Trainer::Verify(int64_t iter, bool full) {
  bool exact = true;
  for (const Message& message : ops_) exact = Check(message, iter, full) && exact;
  for (const Message& message : tensor_messages_) exact = Check(message, iter, full) && exact;
  if (world_message_.comm != nullptr) exact = Check(world_message_, iter, full) && exact;
  for (int m = 0; m < static_cast<int>(forward_.size()); ++m) {
    exact = CheckStage(forward_[m], iter, m, full) && exact;
    exact = CheckStage(backward_[m], iter, m, full) && exact;
  }
  return exact;
}

}  // namespace mycroft::lab
