// SPDX-License-Identifier: Apache-2.0
//
// Communicators and the calls that a training loop makes: AllReduce, ReduceScatter,
// AllGather, Broadcast, Send, Recv, GroupStart, GroupEnd. As with NCCL a call only
// enqueues; the data has moved when the stream has been synchronized.
//
// What the plugin sees of one call, in this order, on the calling thread (v4 has
// only the events without *):
//   GroupApi start*, GroupStartApiStop*, CollApi start and stop*, GroupEndApiStart*,
//   KernelLaunch start and stop*, Group start, Coll start, (proxy operations posted),
//   Coll stop, Group stop, GroupApi stop*
//
// Threads: all calls from one thread (the "user thread"). Buffers must stay as they
// are until the stream is synchronized.
#ifndef MYCROFT_TOOLS_LAB_JOB_COMM_H_
#define MYCROFT_TOOLS_LAB_JOB_COMM_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/lab/job/config.h"
#include "tools/lab/job/device.h"
#include "tools/lab/job/net.h"
#include "tools/lab/job/profiler.h"
#include "tools/lab/job/proxy.h"
#include "tools/lab/job/verbs.h"

namespace mycroft::lab {

// What all communicators of a process share. Outlives them.
struct Process {
  Device* device = nullptr;
  size_t input_bytes = 0;  // copied to the GPU before each iteration; 0: no copy is played
  Profiler* profiler = nullptr;
  FaultBoard* faults = nullptr;
  Egress* egress = nullptr;
  VerbsDevice* verbs = nullptr;  // null: TCP
  VerbsOptions verbs_options;
  bool verbs_flush = false;
  bool verbs_spin = false;
  std::vector<FaultSpec> all_faults;  // of all ranks
  Listener* listener = nullptr;
  std::vector<uint16_t> ports;  // by job rank
  uint64_t job_token = 0;
  int channels = 2;
  int socket_buffer = 128 << 10;
  uint64_t connect_after_ns = 0;  // the first communicator waits so long
  uint64_t connect_deadline_ns = kNever;
  std::function<void(const std::string&)> on_error;  // from a progress thread
};

class Communicator {
 public:
  // Collective: every member must call it, communicators in the same order.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const CommPlan& plan, int job_rank,
                                                              Process* process);
  // `abort`: leave at once, open events stay open. The device must be idle or joined.
  void Destroy(bool abort);
  // Makes a Destroy() that waits for peers return. Any thread.
  void Abort() { proxy_->Abort(); }
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const CommPlan& plan() const { return plan_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(plan_.members.size()); }
  pid_t progress_tid() const { return proxy_ == nullptr ? 0 : proxy_->tid(); }
  bool HasPeer(int peer) const {
    return p2p_send_.count({peer, 0}) + p2p_recv_.count({peer, 0}) > 0;
  }

 private:
  friend class Api;
  Communicator() = default;
  void CloseLinks();

  CommPlan plan_;
  int rank_ = 0;
  Process* process_ = nullptr;
  void* context_ = nullptr;
  bool has_context_ = false;
  std::vector<std::unique_ptr<Connection>> ring_send_;  // by channel
  std::vector<std::unique_ptr<Connection>> ring_recv_;
  std::map<std::pair<int, int>, std::unique_ptr<Connection>> p2p_send_;  // peer, channel
  std::map<std::pair<int, int>, std::unique_ptr<Connection>> p2p_recv_;
  std::vector<std::unique_ptr<KernelTimes>> times_;     // by channel
  std::vector<uint64_t> works_;                         // kernels so far, by channel
  std::vector<std::array<ProxyQueue, 2>> times_queue_;  // by channel; receive, send
  std::array<uint64_t, 5> sequence_{};                  // by function, p2p has none
  std::unique_ptr<ProxyThread> proxy_;
};

class Api {
 public:
  explicit Api(Process* process) : process_(process), profiler_(process->profiler) {}

  void GroupStart() { ++depth_; }
  void GroupEnd();
  // `count` as in NCCL: elements of the message, or of one rank's part (AllGather: sent,
  // ReduceScatter: received).
  void Collective(Communicator* comm, Func func, const float* send, float* recv, size_t count,
                  int root = 0);
  void Send(Communicator* comm, const float* data, size_t count, int peer);
  void Recv(Communicator* comm, float* data, size_t count, int peer);

 private:
  struct Task {
    Func func = Func::kAllReduce;
    const float* send = nullptr;
    float* recv = nullptr;
    size_t count = 0;
    int root_or_peer = 0;
    uint64_t mask = 0;
    void* api_handle = nullptr;
    void* handle = nullptr;
    int channels = 0;
    bool p2p() const { return func == Func::kSend || func == Func::kRecv; }
  };
  void Enqueue(Communicator* comm, Task task);
  void Launch(Communicator* comm);
  void BuildRing(Communicator* comm, Task* task, Kernel* kernel);
  void BuildP2p(Communicator* comm, Kernel* kernel);
  void StartTask(Communicator* comm, Task* task, void* group);
  std::vector<ProxyWork> RingWorks(Communicator* comm, const Task& task, const Kernel& kernel);
  std::vector<ProxyWork> P2pWorks(Communicator* comm, const Kernel& kernel);
  bool ApiEvents() const { return profiler_->active() && profiler_->api() >= 5; }

  Process* process_;
  Profiler* profiler_;
  int depth_ = 0;
  Communicator* group_comm_ = nullptr;
  std::vector<Task> tasks_;
  // NCCL keeps this per thread.
  uint64_t mask_ = 0;
  bool group_open_ = false;
  void* group_api_ = nullptr;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_COMM_H_
