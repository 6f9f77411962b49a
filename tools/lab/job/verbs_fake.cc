// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/verbs_fake.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

namespace mycroft::lab {
namespace {

constexpr uint32_t kMtu = 4096;
constexpr size_t kInlineBytes = 64;
constexpr int kForEver = 7;

}  // namespace

class FakeChannel final : public CompletionChannel {
 public:
  FakeChannel() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~FakeChannel() override { close(fd_); }
  int fd() const override { return fd_; }
  void Drain() override {
    uint64_t count = 0;
    [[maybe_unused]] ssize_t n = read(fd_, &count, sizeof(count));
  }
  void Notify() {
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t n = write(fd_, &one, sizeof(one));
  }

 private:
  int fd_;
};

class FakeQueue final : public CompletionQueue {
 public:
  FakeQueue(FakeFabric* fabric, size_t entries, FakeChannel* channel)
      : fabric_(fabric), entries_(entries), channel_(channel) {}
  int Poll(Completion* completions, int n) override;
  void Arm() override {
    std::lock_guard<std::mutex> lock(fabric_->mutex_);
    armed_ = true;
  }

  // With the fabric's lock. `sends`, `receives`: requests that are off the pair's queues once
  // this completion has been polled.
  void Push(const Completion& completion, uint32_t sends, uint32_t receives) {
    if (items_.size() >= entries_) overrun_ = true;
    items_.push_back({completion, sends, receives});
    if (!armed_) return;
    armed_ = false;
    channel_->Notify();
  }

 private:
  struct Item {
    Completion completion;
    uint32_t sends;
    uint32_t receives;
  };
  FakeFabric* fabric_;
  size_t entries_;
  FakeChannel* channel_;
  std::deque<Item> items_;
  bool armed_ = false;
  bool overrun_ = false;
};

class FakeRegion final : public MemoryRegion {
 public:
  FakeRegion(FakeFabric* fabric, uint32_t key) : fabric_(fabric), key_(key) {}
  ~FakeRegion() override {
    std::lock_guard<std::mutex> lock(fabric_->mutex_);
    fabric_->regions_.erase(key_);
    fabric_->regions_.erase(key_ + 1);
  }
  uint32_t lkey() const override { return key_; }
  uint32_t rkey() const override { return key_ + 1; }

 private:
  FakeFabric* fabric_;
  uint32_t key_;
};

class FakeDevice final : public VerbsDevice {
 public:
  FakeDevice(FakeFabric* fabric, std::string name, uint8_t number)
      : fabric_(fabric), name_(std::move(name)), number_(number) {}
  const std::string& name() const override { return name_; }
  uint32_t port_mtu_bytes() const override { return kMtu; }
  uint32_t lid() const override { return 0; }
  absl::StatusOr<Gid> FindGid(int index, int* chosen) const override {
    if (index > 1) return absl::NotFoundError("GID index " + std::to_string(index) + " is empty");
    *chosen = index < 0 ? 1 : index;
    Gid gid{};
    if (*chosen == 0) {
      gid[0] = 0xfe;
      gid[1] = 0x80;
    } else {
      gid[10] = gid[11] = 0xff;
      gid[12] = 10;
    }
    gid[15] = number_;
    return gid;
  }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* data, size_t bytes) override {
    std::lock_guard<std::mutex> lock(fabric_->mutex_);
    if (std::exchange(fabric_->fail_registration_, false)) {
      return absl::UnavailableError("registration: Cannot allocate memory");
    }
    const uint32_t key = fabric_->next_key_;
    fabric_->next_key_ += 0x200;
    const FakeFabric::Region region = {this, reinterpret_cast<uint64_t>(data), bytes};
    fabric_->regions_[key] = region;
    fabric_->regions_[key + 1] = region;
    return std::make_unique<FakeRegion>(fabric_, key);
  }
  absl::StatusOr<std::unique_ptr<CompletionChannel>> CreateChannel() override {
    return std::make_unique<FakeChannel>();
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateQueue(
      int entries, CompletionChannel* channel) override {
    return std::make_unique<FakeQueue>(fabric_, static_cast<size_t>(entries),
                                       static_cast<FakeChannel*>(channel));
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreatePair(CompletionQueue* queue, uint32_t max_sends,
                                                        uint32_t max_receives) override;
  void CountFatal() { fatal_events_.fetch_add(1); }

 private:
  FakeFabric* fabric_;
  std::string name_;
  uint8_t number_;
};

class FakePair final : public QueuePair {
 public:
  struct Request {
    SendRequest request;
    std::vector<char> inlined;
    bool half_done = false;
  };
  enum class State { kReset, kReady, kError };

  FakePair(FakeFabric* fabric, FakeDevice* device, FakeQueue* queue, uint32_t number,
           uint32_t max_sends, uint32_t max_receives)
      : fabric_(fabric),
        device_(device),
        queue_(queue),
        number_(number),
        max_sends_(max_sends),
        max_receives_(max_receives) {}
  ~FakePair() override {
    std::lock_guard<std::mutex> lock(fabric_->mutex_);
    fabric_->pairs_.erase(number_);
  }
  uint32_t number() const override { return number_; }
  absl::Status Connect(const QpAddress& peer, const VerbsOptions& options) override {
    std::lock_guard<std::mutex> lock(fabric_->mutex_);
    if (state_ != State::kReset || options.gid_index < 0 || options.mtu_bytes == 0) {
      return absl::InvalidArgumentError("QP to INIT: Invalid argument");
    }
    peer_ = peer.number;
    options_ = options;
    state_ = State::kReady;
    return absl::OkStatus();
  }
  int PostSend(const SendRequest* requests, size_t n) override {
    std::lock_guard<std::mutex> lock(fabric_->mutex_);
    if (state_ == State::kReset) return EINVAL;
    for (size_t i = 0; i < n; ++i) {
      if (occupied_sends_ >= max_sends_) return ENOMEM;
      Request item{requests[i], {}};
      if (item.request.inlined) {
        if (item.request.bytes > kInlineBytes) return EINVAL;
        const char* bytes = static_cast<const char*>(item.request.local);
        item.inlined.assign(bytes, bytes + item.request.bytes);
      }
      sends_.push_back(std::move(item));
      ++occupied_sends_;
    }
    if (state_ == State::kError) fabric_->Flush(this);
    return 0;
  }
  int PostReceive(uint64_t wr_id) override {
    std::lock_guard<std::mutex> lock(fabric_->mutex_);
    if (state_ == State::kReset) return EINVAL;
    if (occupied_receives_ >= max_receives_) return ENOMEM;
    receives_.push_back(wr_id);
    ++occupied_receives_;
    if (state_ == State::kError) fabric_->Flush(this);
    return 0;
  }
  void CountFatal() { fatal_events_.fetch_add(1); }

  // The rest with the fabric's lock.
  bool Busy() const { return !sends_.empty() || !unacknowledged_.empty(); }
  void Complete(const Request& item, int status) {
    ++unreported_sends_;
    if (status == kWcSuccess && !item.request.signaled) return;
    Completion c;
    c.wr_id = item.request.wr_id;
    c.status = status;
    c.op =
        item.request.op == SendRequest::Op::kRead ? Completion::Op::kRead : Completion::Op::kWrite;
    c.qp_number = number_;
    queue_->Push(c, std::exchange(unreported_sends_, 0), 0);
  }
  void Arrive(int status, uint32_t imm) {
    Completion c;
    c.wr_id = receives_.front();
    c.status = status;
    c.op = Completion::Op::kReceiveWithImm;
    c.imm = imm;
    c.qp_number = number_;
    receives_.pop_front();
    queue_->Push(c, 0, 1);
  }

  FakeFabric* fabric_;
  FakeDevice* device_;
  FakeQueue* queue_;
  uint32_t number_;
  uint32_t max_sends_;
  uint32_t max_receives_;
  State state_ = State::kReset;
  uint32_t peer_ = 0;
  VerbsOptions options_;
  std::deque<Request> sends_;
  std::deque<Request> unacknowledged_;
  std::deque<uint64_t> receives_;
  uint32_t occupied_sends_ = 0;
  uint32_t occupied_receives_ = 0;
  uint32_t unreported_sends_ = 0;
  int timeouts_ = 0;
  int rnrs_ = 0;
};

int FakeQueue::Poll(Completion* completions, int n) {
  std::lock_guard<std::mutex> lock(fabric_->mutex_);
  if (overrun_) return -1;
  int got = 0;
  for (; got < n && !items_.empty(); ++got) {
    const Item item = items_.front();
    items_.pop_front();
    completions[got] = item.completion;
    const auto pair = fabric_->pairs_.find(item.completion.qp_number);
    if (pair == fabric_->pairs_.end()) continue;
    pair->second->occupied_sends_ -= item.sends;
    pair->second->occupied_receives_ -= item.receives;
  }
  return got;
}

absl::StatusOr<std::unique_ptr<QueuePair>> FakeDevice::CreatePair(CompletionQueue* queue,
                                                                  uint32_t max_sends,
                                                                  uint32_t max_receives) {
  std::lock_guard<std::mutex> lock(fabric_->mutex_);
  const uint32_t number = fabric_->next_number_++;
  auto pair = std::make_unique<FakePair>(fabric_, this, static_cast<FakeQueue*>(queue), number,
                                         max_sends, max_receives);
  fabric_->pairs_[number] = pair.get();
  return pair;
}

std::unique_ptr<VerbsDevice> FakeFabric::Open(const std::string& name) {
  return std::make_unique<FakeDevice>(this, name, static_cast<uint8_t>(name.back()));
}

void FakeFabric::SetBlackout(bool on) {
  std::lock_guard<std::mutex> lock(mutex_);
  blackout_ = on;
}

void FakeFabric::FailNextRegistration() {
  std::lock_guard<std::mutex> lock(mutex_);
  fail_registration_ = true;
}

void FakeFabric::RaiseFatal(VerbsDevice* device) { static_cast<FakeDevice*>(device)->CountFatal(); }

void FakeFabric::RaiseFatal(uint32_t pair_number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto it = pairs_.find(pair_number); it != pairs_.end()) it->second->CountFatal();
}

size_t FakeFabric::pairs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return pairs_.size();
}

uint64_t FakeFabric::rnr_naks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return rnr_naks_;
}

bool FakeFabric::Covers(uint32_t key, const FakeDevice* device, uint64_t address,
                        size_t bytes) const {
  const auto it = regions_.find(key);
  if (it == regions_.end() || it->second.device != device) return false;
  const Region& region = it->second;
  return address >= region.address && bytes <= region.bytes &&
         address - region.address <= region.bytes - bytes;
}

// A slot that somebody looks at meanwhile is written by words, in any order and in two goes.
bool FakeFabric::Write(void* to, const void* from, size_t bytes, bool again) {
  if (bytes != 64 || reinterpret_cast<uint64_t>(to) % 8 != 0) {
    memcpy(to, from, bytes);
    return true;
  }
  uint64_t words[8];
  memcpy(words, from, sizeof(words));
  std::array<size_t, 8> order = {0, 1, 2, 3, 4, 5, 6, 7};
  std::shuffle(order.begin(), order.end(), random_);
  const size_t count = again ? 8 : random_() % 9;
  for (size_t i = 0; i < count; ++i) {
    __atomic_store_n(static_cast<uint64_t*>(to) + order[i], words[order[i]], __ATOMIC_RELEASE);
  }
  return count == 8;
}

void FakeFabric::Flush(FakePair* pair) {
  pair->state_ = FakePair::State::kError;
  for (auto* queue : {&pair->unacknowledged_, &pair->sends_}) {
    for (const auto& item : *queue) pair->Complete(item, kWcFlushed);
    queue->clear();
  }
  while (!pair->receives_.empty()) pair->Arrive(kWcFlushed, 0);
}

// Of the head request. What was executed before is acknowledged first.
void FakeFabric::Fail(FakePair* pair, int status) {
  for (const auto& item : pair->unacknowledged_) pair->Complete(item, kWcSuccess);
  pair->unacknowledged_.clear();
  pair->Complete(pair->sends_.front(), status);
  pair->sends_.pop_front();
  Flush(pair);
}

void FakeFabric::Unanswered(FakePair* pair, int* attempts, int limit, int status) {
  if (++*attempts <= limit || limit == kForEver) return;
  if (pair->sends_.empty()) {
    // Executed, but the acknowledgement never came.
    pair->Complete(pair->unacknowledged_.front(), status);
    pair->unacknowledged_.pop_front();
    return Flush(pair);
  }
  Fail(pair, status);
}

void FakeFabric::Execute(FakePair* pair) {
  FakePair::Request& item = pair->sends_.front();
  const SendRequest& request = item.request;
  if (!request.inlined && request.bytes > 0 &&
      !Covers(request.lkey, pair->device_, reinterpret_cast<uint64_t>(request.local),
              request.bytes)) {
    return Fail(pair, kWcLocalProtection);
  }
  const auto peer_it = pairs_.find(pair->peer_);
  FakePair* peer = peer_it == pairs_.end() ? nullptr : peer_it->second;
  // A wrong source address, a peer that is gone or failed: no answer.
  if (blackout_ || pair->options_.gid_index != 1 || peer == nullptr ||
      peer->state_ != FakePair::State::kReady) {
    return Unanswered(pair, &pair->timeouts_, pair->options_.retry, kWcRetryExceeded);
  }
  pair->timeouts_ = 0;
  if (request.bytes > static_cast<uint32_t>(pair->options_.mtu_bytes) &&
      pair->options_.mtu_bytes != peer->options_.mtu_bytes) {
    Fail(pair, kWcRemoteInvalid);
    return Flush(peer);
  }
  if (request.bytes > 0 && !Covers(request.rkey, peer->device_, request.remote, request.bytes)) {
    Fail(pair, kWcRemoteAccess);
    return Flush(peer);
  }
  void* remote = reinterpret_cast<void*>(request.remote);
  switch (request.op) {
    case SendRequest::Op::kWrite:
    case SendRequest::Op::kWriteWithImm: {
      const bool imm = request.op == SendRequest::Op::kWriteWithImm;
      if (imm && peer->receives_.empty()) {
        ++rnr_naks_;
        return Unanswered(pair, &pair->rnrs_, pair->options_.rnr_retry, kWcRnrRetryExceeded);
      }
      pair->rnrs_ = 0;
      const void* from = request.inlined ? item.inlined.data() : request.local;
      if (request.bytes > 0 && !Write(remote, from, request.bytes, item.half_done)) {
        item.half_done = true;
        return;
      }
      if (imm) peer->Arrive(kWcSuccess, request.imm);
      break;
    }
    case SendRequest::Op::kRead:
      memcpy(const_cast<void*>(request.local), remote, request.bytes);
      break;
  }
  pair->unacknowledged_.push_back(std::move(item));
  pair->sends_.pop_front();
}

bool FakeFabric::Step() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FakePair*> busy;
  for (const auto& [number, pair] : pairs_) {
    if (pair->Busy()) busy.push_back(pair);
  }
  if (busy.empty()) return false;
  FakePair* pair = busy[random_() % busy.size()];
  const bool acknowledge = pair->sends_.empty() || random_() % 2 == 0;
  if (!acknowledge || pair->unacknowledged_.empty()) {
    Execute(pair);
  } else if (blackout_) {
    Unanswered(pair, &pair->timeouts_, pair->options_.retry, kWcRetryExceeded);
  } else {
    // One acknowledgement stands for all before it.
    pair->timeouts_ = 0;
    size_t n = 1 + random_() % pair->unacknowledged_.size();
    for (; n > 0; --n) {
      pair->Complete(pair->unacknowledged_.front(), kWcSuccess);
      pair->unacknowledged_.pop_front();
    }
  }
  return true;
}

}  // namespace mycroft::lab
