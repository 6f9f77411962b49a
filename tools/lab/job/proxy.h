// SPDX-License-Identifier: Apache-2.0
//
// The proxy progress thread of one communicator: moves slices between the FIFOs and
// the network, and tells the profiler plugin what it does, in NCCL's order.
//
// One step of an operation visits, per pass over the active operations:
//   send  slot free -> ProxyStep start, SendGPUWait | device filled the slot ->
//         SendPeerWait, isend, SendWait | isend finished -> ProxyStep stop
//         (one of the three per visit; an isend that the receiver has not granted is
//         tried again at every visit, each time with a SendPeerWait)
//   recv  slot free -> ProxyStep start, irecv, RecvWait | arrived -> RecvFlushWait |
//         flushed -> RecvGPUWait | device took it -> ProxyStep stop
//         (a later stage is looked at only when the earlier ones did nothing)
//   prof  device wrote a kernel's start or end -> KernelCh start or stop
// Operations of one connection run one after the other. An operation that is
// appended while an earlier one runs is started for the plugin and then waits.
//
// Where NCCL spins, this thread sleeps until a link, the device, a new operation or a
// deadline wakes it (or spins, too: Hooks::spin).
//
// A link that fails is reported, and ends the thread, as in NCCL: all operations of the
// communicator then stand still until somebody looks at the error and aborts.
#ifndef MYCROFT_TOOLS_LAB_JOB_PROXY_H_
#define MYCROFT_TOOLS_LAB_JOB_PROXY_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/lab/job/fault.h"
#include "tools/lab/job/fifo.h"
#include "tools/lab/job/link.h"
#include "tools/lab/job/profiler.h"

namespace mycroft::lab {

// Start and end of the kernels on one channel, written by the device into memory
// that the host can read: 64 entries, by the number of the work.
struct KernelTimes {
  struct Entry {
    std::atomic<uint64_t> counter{0};
    std::atomic<uint64_t> timestamp{0};
  };
  static constexpr int kEntries = 64;
  std::array<Entry, kEntries> started;
  std::array<Entry, kEntries> completed;
};

struct Connection;
struct ProxyQueue;

enum class ProxyKind { kSend, kRecv, kKernel };

// An operation for the progress thread. `kernel` and `queue` of kKernel only.
struct ProxyWork {
  ProxyKind kind = ProxyKind::kSend;
  Connection* connection = nullptr;
  KernelTimes* kernel = nullptr;
  ProxyQueue* queue = nullptr;
  uint64_t work_number = 0;
  int channel = 0;
  int steps = 0;
  int slice_steps = 1;
  int chunk_steps = 1;
  int chunk_bytes = 0;
  // What the plugin is told.
  uint64_t mask = 0;
  void* task_handle = nullptr;
};

// One operation in the hands of the progress thread, its own business.
struct ProxyArgs {
  ProxyWork work;
  bool in_progress = false;
  bool idle = true;
  bool finished = false;
  uint64_t base = 0;
  // Counted in steps, a multiple of slice_steps. recv: received and transmitted are
  // NCCL's words for arrived and flushed.
  int posted = 0;
  int received = 0;
  int transmitted = 0;
  int done = 0;
  std::array<uint64_t, kSteps> flush_until{};  // by slot
  uint64_t last_flush_ns = 0;
  // Handles of the plugin.
  void* op_handle = nullptr;
  std::array<void*, kSteps> step_handles{};

  void*& StepHandle(int step) { return step_handles[(step / work.slice_steps) % kSteps]; }
};

// What operations of one connection line up on.
struct ProxyQueue {
  bool active = false;
  std::deque<std::unique_ptr<ProxyArgs>> waiting;
};

// One direction of one channel to one peer.
struct Connection {
  bool is_send = false;
  int channel = 0;
  int peer = 0;
  Fifo fifo;
  std::unique_ptr<NetLink> link;
  // Proxy side.
  ProxyQueue queue;
  uint64_t proxy_step = 0;
  size_t trans_size = 0;  // of the last transfer, as NCCL keeps it
  // Device side.
  uint64_t device_step = 0;
};

class ProxyThread {
 public:
  struct Hooks {
    Bell* device = nullptr;  // rung when a FIFO moved
    FaultBoard* faults = nullptr;
    Profiler* profiler = nullptr;
    void* context = nullptr;                           // of this communicator, given by the plugin
    int rank = 0;                                      // in this communicator
    bool spin = false;                                 // never sleep while there is work
    std::function<void(const std::string&)> on_error;  // first error; from this thread
  };

  explicit ProxyThread(Hooks hooks);
  ~ProxyThread();  // Stop()
  ProxyThread(const ProxyThread&) = delete;
  ProxyThread& operator=(const ProxyThread&) = delete;

  // Hands over operations, in order. Any thread.
  void Post(std::vector<ProxyWork> works);
  // The device moved a FIFO or wrote a time. Any thread.
  void Ring() { bell_.Ring(); }
  // Ends the thread when all operations are done, or at once with `abort`. Open events
  // never get a stop then.
  void Stop(bool abort);
  // Only asks the thread to leave. Any thread.
  void Abort() {
    abort_.store(true);
    bell_.Ring();
  }
  pid_t tid() const { return tid_.load(); }

 private:
  void Run();
  bool Append();
  void Progress(ProxyArgs* args);
  void Begin(ProxyArgs* args);
  void ProgressSend(ProxyArgs* args);
  void ProgressRecv(ProxyArgs* args);
  void ProgressKernel(ProxyArgs* args);
  void Sleep();
  void CheckLink(ProxyArgs* args);

  void StartOp(ProxyArgs* args);
  void StartStep(ProxyArgs* args, int step);
  void StepState(ProxyArgs* args, int step, nccl::EventState state);
  void StopStep(ProxyArgs* args, int step);
  void StopOp(ProxyArgs* args);
  void StartCtrl(void** handle);
  void CtrlState(void* handle, int appended, nccl::EventState state);

  Hooks hooks_;
  PollBell bell_;
  std::mutex mutex_;
  std::deque<ProxyWork> posted_;
  bool stop_ = false;
  std::atomic<bool> abort_{false};
  std::vector<std::unique_ptr<ProxyArgs>> active_;
  bool moved_ = false;  // any operation made progress in this pass
  bool failed_ = false;
  std::atomic<pid_t> tid_{0};
  std::thread thread_;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_PROXY_H_
