// SPDX-License-Identifier: Apache-2.0
//
// For tests: plays NCCL against an instance of the built plugin, one communicator,
// in any version of the interface, under a clock that the test moves by hand.
#ifndef MYCROFT_CUPTI_NCCL_PLUGIN_DRIVER_H_
#define MYCROFT_CUPTI_NCCL_PLUGIN_DRIVER_H_

#include <memory>
#include <string>

#include "cupti/nccl/plugin_harness.h"

namespace mycroft::nccl {

inline std::atomic<uint64_t> g_now{1'000'000};
inline uint64_t FakeClock() { return g_now.load(std::memory_order_relaxed); }
inline void At(uint64_t ns) { g_now.store(1'000'000 + ns, std::memory_order_relaxed); }
constexpr uint64_t T(uint64_t ns) { return 1'000'000 + ns; }

// Of the process that made the last Driver. getpid() is a system call.
inline int g_own_pid = 0;

template <int kVersion>
struct Abi;
template <>
struct Abi<4> {
  using Table = ProfilerV4;
  using Descr = EventDescrV4;
  static constexpr const char* kSymbol = kSymbolV4;
};
template <>
struct Abi<5> {
  using Table = ProfilerV5;
  using Descr = EventDescrV5;
  static constexpr const char* kSymbol = kSymbolV5;
};
template <>
struct Abi<6> {
  using Table = ProfilerV6;
  using Descr = EventDescrV6;
  static constexpr const char* kSymbol = kSymbolV6;
};

template <int kVersion>
class Driver {
 public:
  using Table = typename Abi<kVersion>::Table;
  using Descr = typename Abi<kVersion>::Descr;

  // `init` false: loaded only.
  explicit Driver(bool init = true, const char* path = MYCROFT_PLUGIN_PATH) : library_(path) {
    At(0);
    g_own_pid = getpid();
    table_ = library_.Symbol<Table>(Abi<kVersion>::kSymbol);
    set_clock_ = library_.Symbol<void(uint64_t(*)())>("mycroftSetClock");
    if (table_ == nullptr || set_clock_ == nullptr) {
      ADD_FAILURE() << "no " << Abi<kVersion>::kSymbol;
      abort();
    }
    set_clock_(FakeClock);
    if (init) context = Init(0x77, "world", 0, 2);
  }

  void* Init(uint64_t comm_id, const char* name, int rank, int nranks, DebugLogger log = nullptr) {
    const std::set<std::string> before = BoardFds();
    void* made = nullptr;
    Result r;
    if constexpr (kVersion == 4) {
      r = table_->init(&made, &mask, name, comm_id, 1, nranks, rank, log);
    } else {
      r = table_->init(&made, comm_id, &mask, name, 1, nranks, rank, log);
    }
    EXPECT_EQ(r, kSuccess);
    for (const std::string& fd : BoardFds()) {
      if (!before.contains(fd)) board_ = std::make_unique<BoardView>(fd);
    }
    return made;
  }
  void Finalize(void* c) { EXPECT_EQ(table_->finalize(c), kSuccess); }

  void* Start(Descr d) { return StartIn(context, d); }
  void* StartIn(void* c, Descr d) {
    void* handle = reinterpret_cast<void*>(0xDEAD);  // NCCL does not clear it
    EXPECT_EQ(table_->start_event(c, &handle, &d), kSuccess);
    EXPECT_NE(handle, reinterpret_cast<void*>(0xDEAD)) << "handle not written";
    return handle;
  }
  void Stop(void* handle) { EXPECT_EQ(table_->stop_event(handle), kSuccess); }
  void State(void* handle, EventState state, uint64_t bytes = 0) {
    StateArgs args = {};
    args.proxy_step.trans_size = bytes;
    EXPECT_EQ(table_->record_event_state(handle, state, &args), kSuccess);
  }
  void StateWithoutArgs(void* handle, EventState state) {
    EXPECT_EQ(table_->record_event_state(handle, state, nullptr), kSuccess);
  }

  static Descr Event(EventType type, void* parent = nullptr) {
    Descr d = {};
    d.type = static_cast<decltype(d.type)>(type);
    d.parent = parent;
    return d;
  }
  static Descr CollEvent(void* parent, const char* func = "AllReduce", uint64_t seq = 0) {
    Descr d = Event(kColl, parent);
    d.coll.seq_number = seq;
    d.coll.func = func;
    d.coll.count = 1024;
    d.coll.root = 0;
    d.coll.datatype = "ncclFloat32";
    d.coll.channels = 2;
    d.coll.warps = 9;
    d.coll.algo = "RING";
    d.coll.proto = "SIMPLE";
    return d;
  }
  static Descr P2pEvent(void* parent, const char* func, int peer) {
    Descr d = Event(kP2p, parent);
    d.p2p.func = func;
    d.p2p.datatype = "ncclInt8";
    d.p2p.count = 4096;
    d.p2p.peer = peer;
    d.p2p.channels = 1;
    return d;
  }
  static Descr ProxyEvent(void* parent, int channel, int peer, bool send, int steps = 4,
                          int pid = g_own_pid) {
    Descr d = Event(kProxyOp, parent);
    d.proxy_op.pid = pid;
    d.proxy_op.channel = static_cast<uint8_t>(channel);
    d.proxy_op.peer = peer;
    d.proxy_op.steps = steps;
    d.proxy_op.chunk_size = 1 << 20;
    d.proxy_op.is_send = send ? 1 : 0;
    return d;
  }

  // A collective as NCCL announces it in this version: enqueued, stopped.
  void* Coll(const char* func = "AllReduce") {
    void* coll;
    if constexpr (kVersion >= 5) {
      void* group = Start(Event(kGroupApi));
      StateWithoutArgs(group, kGroupStartApiStop);
      Descr d = Event(kCollApi, group);
      d.coll_api.func = func;
      d.coll_api.stream = reinterpret_cast<void*>(0x5000);
      void* api = Start(d);
      Stop(api);
      StateWithoutArgs(group, kGroupEndApiStart);
      void* legacy = Start(Event(kGroup));
      d = CollEvent(api, func);
      d.coll.parent_group = legacy;
      coll = Start(d);
      Stop(coll);
      Stop(legacy);
      Stop(group);
    } else {
      void* legacy = Start(Event(kGroup));
      coll = Start(CollEvent(legacy, func));
      Stop(coll);
      Stop(legacy);
    }
    return coll;
  }
  void* ProxyOp(void* parent, int channel, int peer, bool send, int steps = 4) {
    return Start(ProxyEvent(parent, channel, peer, send, steps));
  }
  void InProgress(void* op) { StateWithoutArgs(op, kProxyOpInProgress); }
  void* Step(void* op, int number) {
    Descr d = Event(kProxyStep, op);
    d.proxy_step.step = number;
    return Start(d);
  }
  void* Kernel(void* parent, int channel, uint64_t gpu) {
    Descr d = Event(kKernelCh, parent);
    d.kernel_ch.channel = static_cast<uint8_t>(channel);
    d.kernel_ch.gpu_timer = gpu;
    return Start(d);
  }
  void KernelStop(void* kernel, uint64_t gpu) {
    StateArgs args = {};
    args.kernel_ch.gpu_timer = gpu;
    EXPECT_EQ(table_->record_event_state(kernel, mycroft::nccl::kKernelChStop, &args), kSuccess);
  }
  // One whole send or receive step, `ns` per stage, moving the clock from `begin`.
  void WholeStep(void* op, int number, bool send, uint64_t begin, uint64_t ns, uint64_t bytes) {
    At(begin);
    void* s = Step(op, number);
    State(s, send ? kSendGpuWait : kRecvWait);
    At(begin + ns);
    State(s, send ? kSendPeerWait : kRecvFlushWait, bytes);
    At(begin + 2 * ns);
    State(s, send ? kSendWait : kRecvGpuWait, bytes);
    At(begin + 3 * ns);
    Stop(s);
  }

  BoardView& board() {
    EXPECT_NE(board_, nullptr);
    return *board_;
  }
  bool has_board() const { return board_ != nullptr; }
  // The newest operation on the board.
  mc_board_op& last_op() { return board().op(board().header().next_op_id - 1); }
  mc_board_flow& flow(int channel, int peer, bool send, uint16_t comm = 0) {
    mc_board_flow* f =
        board().flow(comm, static_cast<uint8_t>(channel), peer, send ? MC_SEND : MC_RECV);
    if (f == nullptr) {
      ADD_FAILURE() << "no such flow";
      static mc_board_flow none;
      return none;
    }
    return *f;
  }
  uint64_t TotalLost() {
    uint64_t n = 0;
    for (uint64_t l : board().header().lost) n += l;
    return n;
  }
  Table* table() { return table_; }
  Library& library() { return library_; }
  void RealClock() { set_clock_(nullptr); }

  int mask = -1;
  void* context = nullptr;

 private:
  Library library_;
  Table* table_ = nullptr;
  void (*set_clock_)(uint64_t (*)()) = nullptr;
  std::unique_ptr<BoardView> board_;
};

// Sets a variable for the life of the object.
class Env {
 public:
  Env(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Env() { unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_PLUGIN_DRIVER_H_
