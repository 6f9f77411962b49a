// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/verbs_link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <type_traits>

namespace mycroft::lab {
namespace {

// What a work request is, in the top byte of its id; the rest is a number.
enum Kind : uint64_t { kData = 1, kReceive = 2, kCts = 3, kFlush = 4 };
constexpr int kKindShift = 56;

uint64_t WrId(Kind kind, uint64_t number) {
  return static_cast<uint64_t>(kind) << kKindShift | (number & ((1ull << kKindShift) - 1));
}

const char* KindText(uint64_t wr_id) {
  switch (wr_id >> kKindShift) {
    case kData:
      return "RDMA_WRITE of data";
    case kReceive:
      return "receive";
    case kCts:
      return "RDMA_WRITE of clear-to-send";
    case kFlush:
      return "RDMA_READ of the flush";
    default:
      return "unknown request";
  }
}

uint64_t CheckOf(const CtsSlot& slot) {
  uint64_t h = slot.idx * 0x9e3779b97f4a7c15ull;
  for (uint64_t word :
       {slot.address, slot.size, static_cast<uint64_t>(slot.rkey) << 32 | slot.tag}) {
    h = (h ^ word) * 0xbf58476d1ce4e5b9ull;
    h ^= h >> 29;
  }
  return h;
}

// The NIC writes the slot while we look at it: words, each at once.
CtsSlot Load(const CtsSlot& slot) {
  constexpr size_t kWords = sizeof(CtsSlot) / sizeof(uint64_t);
  uint64_t words[kWords];
  const auto* from = reinterpret_cast<const uint64_t*>(&slot);
  for (size_t i = kWords; i-- > 0;) words[i] = __atomic_load_n(from + i, __ATOMIC_ACQUIRE);
  CtsSlot copy;
  memcpy(&copy, words, sizeof(copy));
  return copy;
}

bool WaitFor(int fd, short events, uint64_t deadline_ns) {
  while (true) {
    const uint64_t now = NowNs();
    if (now >= deadline_ns) return false;
    pollfd poll_fd = {fd, events, 0};
    const int ms =
        static_cast<int>(std::min<uint64_t>((deadline_ns - now) / kNsPerMs + 1, 60 * 1000));
    if (poll(&poll_fd, 1, ms) > 0) return true;
  }
}

absl::Status SendAll(int fd, const void* data, size_t size, uint64_t deadline_ns) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(std::string("handshake: send: ") + strerror(errno));
    } else if (!WaitFor(fd, POLLOUT, deadline_ns)) {
      return absl::DeadlineExceededError("handshake: the peer does not read");
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int fd, void* data, size_t size, uint64_t deadline_ns) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = recv(fd, at, size, MSG_DONTWAIT);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0) {
      return absl::UnavailableError("handshake: connection closed by the peer");
    } else if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(std::string("handshake: recv: ") + strerror(errno));
    } else if (!WaitFor(fd, POLLIN, deadline_ns)) {
      return absl::DeadlineExceededError("handshake: no answer of the peer in time");
    }
  }
  return absl::OkStatus();
}

constexpr uint64_t kHelloMagic = 0x3162725662614c4d;  // "MLabVrb1"
constexpr char kReady = 'R';
constexpr char kClosed = 'C';

}  // namespace

// What both sides tell each other.
struct VerbsLink::Hello {
  uint64_t magic;
  uint32_t tag;
  uint32_t is_send;
  uint32_t has_spare;
  uint32_t fifo_rkey;
  uint64_t fifo;
  QpAddress address;
  QpAddress spare;
};

absl::StatusOr<std::unique_ptr<VerbsLink>> VerbsLink::Create(int fd, const Setup& setup,
                                                             uint64_t deadline_ns) {
  static_assert(std::is_trivially_copyable_v<Hello>);
  auto link = std::unique_ptr<VerbsLink>(new VerbsLink(fd, setup));
  if (absl::Status s = link->CreateObjects(); !s.ok()) return s;
  if (setup.is_send) {
    if (absl::Status s = link->SendHello(deadline_ns); !s.ok()) return s;
    return link;
  }
  if (absl::Status s = link->ReceiveHello(deadline_ns); !s.ok()) return s;
  if (absl::Status s = link->Connect(); !s.ok()) return s;
  if (absl::Status s = link->SendHello(deadline_ns); !s.ok()) return s;
  return link;
}

absl::Status VerbsLink::CreateObjects() {
  VerbsDevice* device = setup_.device;
  auto gid = device->FindGid(setup_.options.gid_index, &gid_index_);
  if (!gid.ok()) return gid.status();
  gid_ = *gid;
  fatal_events_ = device->fatal_events();

  auto keep = [](auto* member, auto made) -> absl::Status {
    if (!made.ok()) return made.status();
    *member = *std::move(made);
    return absl::OkStatus();
  };
  // Sends: two per transfer, or a clear-to-send of which one in kSlots is signaled.
  constexpr uint32_t kSends = 3 * kSlots;
  constexpr uint32_t kReceives = 2 * kSlots;
  absl::Status s;
  s.Update(keep(&channel_, device->CreateChannel()));
  if (!s.ok()) return s;
  s.Update(keep(&queue_, device->CreateQueue(1024, channel_.get())));
  if (!s.ok()) return s;
  s.Update(keep(&buffer_region_, device->Register(setup_.buffer, setup_.buffer_bytes)));
  if (!s.ok()) return s;
  s.Update(keep(&slots_region_, device->Register(slots_.data(), sizeof(slots_))));
  if (!s.ok()) return s;
  s.Update(keep(&pair_, device->CreatePair(queue_.get(), kSends, kReceives)));
  if (!s.ok()) return s;
  own_.number = pair_->number();
  own_.lid = device->lid();
  own_.gid = gid_;
  own_.mtu_bytes = device->port_mtu_bytes();
  if (setup_.options.mtu_bytes != 0) {
    own_.mtu_bytes = std::min(own_.mtu_bytes, static_cast<uint32_t>(setup_.options.mtu_bytes));
  }
  if (setup_.spare) {
    s.Update(keep(&spare_, device->CreatePair(queue_.get(), kSends, kReceives)));
    if (!s.ok()) return s;
    own_spare_ = own_;
    own_spare_.number = spare_->number();
  }
  if (setup_.flush && !setup_.is_send) {
    s.Update(keep(&flush_region_, device->Register(&flush_byte_, 1)));
    if (!s.ok()) return s;
    s.Update(keep(&flush_pair_, device->CreatePair(queue_.get(), kSlots, 1)));
    if (!s.ok()) return s;
    QpAddress self = own_;
    self.number = flush_pair_->number();
    VerbsOptions options = setup_.options;
    options.gid_index = gid_index_;
    options.mtu_bytes = static_cast<int>(own_.mtu_bytes);
    s.Update(flush_pair_->Connect(self, options));
  }
  return s;
}

absl::Status VerbsLink::SendHello(uint64_t deadline_ns) {
  Hello hello{};
  hello.magic = kHelloMagic;
  hello.tag = setup_.tag;
  hello.is_send = setup_.is_send ? 1 : 0;
  hello.has_spare = setup_.spare ? 1 : 0;
  hello.fifo = reinterpret_cast<uint64_t>(slots_.data());
  hello.fifo_rkey = slots_region_->rkey();
  hello.address = own_;
  hello.spare = own_spare_;
  return SendAll(fd_, &hello, sizeof(hello), deadline_ns);
}

absl::Status VerbsLink::ReceiveHello(uint64_t deadline_ns) {
  Hello hello{};
  if (absl::Status s = ReceiveAll(fd_, &hello, sizeof(hello), deadline_ns); !s.ok()) return s;
  if (hello.magic != kHelloMagic || hello.tag != setup_.tag ||
      hello.is_send != (setup_.is_send ? 0u : 1u) || hello.has_spare != (setup_.spare ? 1u : 0u)) {
    return absl::InternalError("handshake: the peer speaks of another link");
  }
  peer_ = hello.address;
  peer_spare_ = hello.spare;
  peer_fifo_ = hello.fifo;
  peer_fifo_rkey_ = hello.fifo_rkey;
  return absl::OkStatus();
}

absl::Status VerbsLink::Connect() {
  VerbsOptions options = setup_.options;
  options.gid_index = gid_index_;
  options.mtu_bytes = static_cast<int>(std::min(own_.mtu_bytes, peer_.mtu_bytes));
  if (absl::Status s = pair_->Connect(peer_, options); !s.ok()) return s;
  if (spare_ == nullptr) return absl::OkStatus();
  if (setup_.spare_gid_index >= 0) options.gid_index = setup_.spare_gid_index;
  if (setup_.spare_mtu_bytes != 0) options.mtu_bytes = static_cast<int>(setup_.spare_mtu_bytes);
  return spare_->Connect(peer_spare_, options);
}

absl::Status VerbsLink::Finish(uint64_t deadline_ns) {
  if (setup_.is_send) {
    if (absl::Status s = ReceiveHello(deadline_ns); !s.ok()) return s;
    if (absl::Status s = Connect(); !s.ok()) return s;
    return SendAll(fd_, &kReady, 1, deadline_ns);
  }
  char ready = 0;
  if (absl::Status s = ReceiveAll(fd_, &ready, 1, deadline_ns); !s.ok()) return s;
  return ready == kReady ? absl::OkStatus() : absl::InternalError("handshake: no \"ready\"");
}

VerbsLink::~VerbsLink() { close(fd_); }

QueuePair* VerbsLink::Outbound() {
  if (spare_ == nullptr || setup_.faults == nullptr) return pair_.get();
  const uint64_t now = NowNs();
  const bool wrong =
      (setup_.spare_gid_index >= 0 && setup_.faults->Hold(FaultKind::kWrongGid, now).has_value()) ||
      (setup_.spare_mtu_bytes != 0 &&
       setup_.faults->Hold(FaultKind::kMtuMismatch, now).has_value());
  return wrong ? spare_.get() : pair_.get();
}

void VerbsLink::FailPost(const char* what, int error) {
  Fail(std::string("ibv_post_") + what + " on QP " + std::to_string(pair_->number()) + " of " +
       setup_.device->name() + ": " + strerror(error));
}

bool VerbsLink::Isend(const char* data, size_t size) {
  if (failed() || transfers_.size() >= kSlots) return false;
  const CtsSlot slot = Load(slots_[next_ % kSlots]);
  if (slot.idx != next_ + 1 || slot.check != CheckOf(slot)) {
    ++refused_;
    CheckEvents();
    return false;
  }
  refused_ = 0;
  if (slot.address == 0 || slot.rkey == 0 || slot.tag != setup_.tag) {
    Fail("the peer granted a buffer that makes no sense (tag " + std::to_string(slot.tag) + ")");
    return false;
  }
  if (size > slot.size) {
    Fail("message truncated: " + std::to_string(size) + " bytes into a buffer of " +
         std::to_string(slot.size));
    return false;
  }
  SendRequest requests[2];
  size_t n = 0;
  if (size > 0) {
    SendRequest& write = requests[n++];
    write.op = SendRequest::Op::kWrite;
    write.wr_id = WrId(kData, next_);
    write.local = data;
    write.lkey = buffer_region_->lkey();
    write.bytes = static_cast<uint32_t>(size);
    write.remote = slot.address;
    write.rkey = slot.rkey;
  }
  SendRequest& last = requests[n++];
  last.op = SendRequest::Op::kWriteWithImm;
  last.wr_id = WrId(kData, next_);
  last.remote = slot.address;
  last.rkey = slot.rkey;
  last.imm = static_cast<uint32_t>(size);
  last.signaled = true;
  if (const int error = Outbound()->PostSend(requests, n); error != 0) {
    FailPost("send", error);
    return false;
  }
  transfers_.push_back({size});
  ++next_;
  return true;
}

void VerbsLink::PostReceive() {
  if (const int error = pair_->PostReceive(WrId(kReceive, receives_)); error != 0) {
    return FailPost("recv", error);
  }
  ++receives_;
  // What is small enough to get through a wrong connection arrives there.
  if (spare_ == nullptr || spare_receives_ >= kSlots) return;
  if (const int error = spare_->PostReceive(WrId(kReceive, 0)); error != 0) {
    return FailPost("recv", error);
  }
  ++spare_receives_;
}

void VerbsLink::PostDue(uint64_t now_ns) {
  while (!late_.empty() && late_.front() <= now_ns && !failed()) {
    late_.pop_front();
    PostReceive();
  }
}

void VerbsLink::Irecv(char* buffer, size_t capacity) {
  if (failed()) return;
  if (transfers_.size() >= kSlots) return Fail("more receives than the link takes");
  uint32_t rkey = buffer_region_->rkey();
  uint64_t due = 0;
  if (setup_.faults != nullptr) {
    const uint64_t now = NowNs();
    if (setup_.faults->Hold(FaultKind::kRnr, now)) {
      due = setup_.faults->EndOf(FaultKind::kRnr, now);
    } else if (const auto us = setup_.faults->Hold(FaultKind::kRnrLate, now)) {
      due = now + static_cast<uint64_t>(*us * 1e3);
    }
    if (setup_.faults->Hold(FaultKind::kBadRkey, now)) rkey ^= 0x80;
  }
  if (due != 0) {
    late_.push_back(late_.empty() ? due : std::max(due, late_.back()));
  } else if (!late_.empty()) {
    late_.push_back(late_.back());
  } else {
    PostReceive();
  }
  CtsSlot& slot = slots_[next_ % kSlots];
  slot = {};
  slot.address = reinterpret_cast<uint64_t>(buffer);
  slot.size = capacity;
  slot.rkey = rkey;
  slot.tag = setup_.tag;
  slot.idx = next_ + 1;
  slot.check = CheckOf(slot);
  SendRequest cts;
  cts.op = SendRequest::Op::kWrite;
  cts.wr_id = WrId(kCts, next_);
  cts.local = &slot;
  cts.lkey = slots_region_->lkey();
  cts.bytes = sizeof(slot);
  cts.remote = peer_fifo_ + (next_ % kSlots) * sizeof(CtsSlot);
  cts.rkey = peer_fifo_rkey_;
  cts.inlined = true;
  // One in a round, or the send queue would never be emptied.
  cts.signaled = next_ % kSlots == 0;
  if (const int error = Outbound()->PostSend(&cts, 1); error != 0) return FailPost("send", error);
  transfers_.push_back({capacity});
  ++next_;
}

void VerbsLink::OnCompletion(const Completion& completion) {
  if (completion.status != kWcSuccess) {
    const bool spare = spare_ != nullptr && completion.qp_number == spare_->number();
    const bool flush = flush_pair_ != nullptr && completion.qp_number == flush_pair_->number();
    const uint32_t remote = flush   ? completion.qp_number
                            : spare ? peer_spare_.number
                                    : peer_.number;
    Fail("bad completion: status " + std::to_string(completion.status) + " (" +
         WcStatusText(completion.status) + ") of " + KindText(completion.wr_id) + ", QP " +
         std::to_string(completion.qp_number) + " of " + setup_.device->name() + " (" +
         GidText(gid_) + ") to QP " + std::to_string(remote) + " (" + GidText(peer_.gid) +
         "), vendor error " + std::to_string(completion.vendor_error));
    return;
  }
  const uint64_t number = completion.wr_id & ((1ull << kKindShift) - 1);
  switch (completion.wr_id >> kKindShift) {
    case kData:
      if (number - first_ >= transfers_.size()) return Fail("completion of an unknown transfer");
      // Those before it are finished, too: the queue pair keeps the order.
      for (uint64_t i = first_; i <= number; ++i) transfers_[i - first_].done = true;
      return;
    case kReceive: {
      if (arrived_ - first_ >= transfers_.size()) return Fail("arrival of an unknown transfer");
      Transfer& transfer = transfers_[arrived_ - first_];
      if (completion.imm > transfer.size) {
        return Fail("message truncated: " + std::to_string(completion.imm) +
                    " bytes into a buffer of " + std::to_string(transfer.size));
      }
      transfer.size = completion.imm;
      transfer.done = true;
      ++arrived_;
      if (spare_ != nullptr && completion.qp_number == spare_->number()) --spare_receives_;
      return;
    }
    case kCts:
      return;
    case kFlush:
      if (number - first_flush_ >= flushes_.size()) return Fail("completion of an unknown flush");
      flushes_[number - first_flush_] = true;
      return;
    default:
      return Fail("completion of an unknown request");
  }
}

bool VerbsLink::PollQueue() {
  if (failed()) return false;
  PostDue(NowNs());
  bool any = false;
  Completion completions[8];
  while (!failed()) {
    const int n = queue_->Poll(completions, 8);
    if (n < 0) Fail("ibv_poll_cq on " + setup_.device->name() + " failed");
    for (int i = 0; i < n && !failed(); ++i) OnCompletion(completions[i]);
    any = any || n > 0;
    if (n < 8) break;
  }
  CheckEvents();
  return any;
}

void VerbsLink::CheckEvents() {
  if (failed()) return;
  if (setup_.device->fatal_events() != fatal_events_) {
    return Fail("fatal asynchronous event of " + setup_.device->name());
  }
  for (const QueuePair* pair : {pair_.get(), spare_.get(), flush_pair_.get()}) {
    if (pair == nullptr || pair->fatal_events() == 0) continue;
    return Fail("fatal asynchronous event of QP " + std::to_string(pair->number()) + " of " +
                setup_.device->name());
  }
}

bool VerbsLink::Test(size_t* size) {
  if (transfers_.empty()) return false;
  if (!transfers_.front().done) PollQueue();
  if (!transfers_.front().done) return false;
  *size = transfers_.front().size;
  transfers_.pop_front();
  ++first_;
  return true;
}

void VerbsLink::Iflush(const char* data) {
  if (flush_pair_ == nullptr || failed()) return;
  SendRequest read;
  read.op = SendRequest::Op::kRead;
  read.wr_id = WrId(kFlush, first_flush_ + flushes_.size());
  read.local = &flush_byte_;
  read.lkey = flush_region_->lkey();
  read.bytes = 1;
  read.remote = reinterpret_cast<uint64_t>(data);
  read.rkey = buffer_region_->rkey();
  read.signaled = true;
  if (const int error = flush_pair_->PostSend(&read, 1); error != 0) return FailPost("send", error);
  flushes_.push_back(false);
}

bool VerbsLink::TestFlush() {
  if (flush_pair_ == nullptr) return true;
  if (flushes_.empty()) return false;
  if (!flushes_.front()) PollQueue();
  if (!flushes_.front()) return false;
  flushes_.pop_front();
  ++first_flush_;
  return true;
}

short VerbsLink::Events(uint64_t* retry_ns) const {
  *retry_ns = kNever;
  if (failed()) return 0;
  // The slot comes without a completion: look again, less and less often.
  if (refused_ > 0) {
    *retry_ns = NowNs() + std::min<uint64_t>(20 * kNsPerUs << std::min(refused_, 6u), kNsPerMs);
  }
  if (!late_.empty()) *retry_ns = std::min(*retry_ns, late_.front());
  return transfers_.empty() && flushes_.empty() ? 0 : POLLIN;
}

bool VerbsLink::Arm() {
  queue_->Arm();
  armed_ = true;
  return !PollQueue() && !failed();
}

void VerbsLink::Disarm() {
  if (!armed_) return;
  armed_ = false;
  channel_->Drain();
}

void VerbsLink::BeginClose() {
  static_cast<void>(SendAll(fd_, &kClosed, 1, NowNs()));  // a byte always fits
}

void VerbsLink::EndClose(uint64_t deadline_ns) {
  char closed = 0;
  static_cast<void>(ReceiveAll(fd_, &closed, 1, deadline_ns));
}

}  // namespace mycroft::lab
