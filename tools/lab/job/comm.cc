// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/comm.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "tools/lab/job/verbs_link.h"

namespace mycroft::lab {
namespace {

constexpr int kWarps = 9;
constexpr char kFloat32[] = "ncclFloat32";
constexpr char kInt8[] = "ncclInt8";

// Which channel carries part `part` of a message between two ranks: the same on
// both sides.
int P2pChannel(int from, int to, int nranks, int channels, int parts, int part) {
  const int base = parts == channels ? 0 : (to - from + nranks) % nranks;
  return (base + part) % channels;
}

VerbsLink::Setup VerbsSetup(const Process& process, int self, int peer, Connection* conn) {
  VerbsLink::Setup setup;
  setup.device = process.verbs;
  setup.options = process.verbs_options;
  setup.is_send = conn->is_send;
  setup.flush = process.verbs_flush;
  setup.tag = static_cast<uint32_t>(conn->is_send ? peer : self);  // NCCL's: the receiver's rank
  setup.buffer = conn->fifo.buffer.data();
  setup.buffer_bytes = conn->fifo.buffer.size();
  setup.faults = process.faults;
  for (const FaultSpec& fault : process.all_faults) {
    if (fault.kind != FaultKind::kWrongGid && fault.kind != FaultKind::kMtuMismatch) continue;
    if (fault.rank != self && fault.rank != peer) continue;
    setup.spare = true;
    if (fault.rank != self) continue;
    if (fault.kind == FaultKind::kWrongGid) setup.spare_gid_index = static_cast<int>(fault.amount);
    if (fault.kind == FaultKind::kMtuMismatch) {
      setup.spare_mtu_bytes = static_cast<uint32_t>(fault.amount);
    }
  }
  return setup;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(const CommPlan& plan,
                                                                   int job_rank, Process* process) {
  auto comm = std::unique_ptr<Communicator>(new Communicator);
  comm->plan_ = plan;
  comm->process_ = process;
  const auto self = std::find(plan.members.begin(), plan.members.end(), job_rank);
  comm->rank_ = static_cast<int>(self - plan.members.begin());
  const int n = comm->size();
  const int rank = comm->rank_;
  const int channels = process->channels;
  const int next = (rank + 1) % n;
  const int prev = (rank + n - 1) % n;

  if (process->profiler->active()) {
    // Every rank is a node of its own: there are only network hops.
    comm->context_ = process->profiler->Init(plan.id, plan.name, n, n, rank);
    comm->has_context_ = true;
  }
  const uint64_t pause_ns = std::exchange(process->connect_after_ns, 0);
  std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));

  std::vector<int> send_to;
  std::vector<int> recv_from;
  if (plan.p2p_all) {
    for (int offset = 1; offset < n; ++offset) send_to.push_back((rank + offset) % n);
    recv_from = send_to;
  } else if (plan.p2p && plan.p2p_wraps) {
    send_to = {next};
    recv_from = {prev};
  } else if (plan.p2p) {
    if (rank > 0) send_to.push_back(rank - 1);
    if (rank + 1 < n) send_to.push_back(rank + 1);
    recv_from = send_to;
  }

  auto make = [&](bool is_send, int peer, int channel) {
    auto conn = std::make_unique<Connection>();
    conn->is_send = is_send;
    conn->peer = peer;
    conn->channel = channel;
    return conn;
  };
  // Those whose handshake goes on: as sender, as receiver.
  std::vector<VerbsLink*> dialed;
  std::vector<VerbsLink*> accepted;
  auto open = [&](int fd, Connection* conn) -> absl::Status {
    if (process->verbs == nullptr) {
      conn->link = std::make_unique<TcpLink>(fd, process->egress);
      return absl::OkStatus();
    }
    auto link =
        VerbsLink::Create(fd, VerbsSetup(*process, job_rank, plan.members[conn->peer], conn),
                          process->connect_deadline_ns);
    if (!link.ok()) return link.status();
    (conn->is_send ? dialed : accepted).push_back(link->get());
    conn->link = *std::move(link);
    return absl::OkStatus();
  };
  auto dial = [&](int peer, int channel, bool p2p) -> absl::StatusOr<std::unique_ptr<Connection>> {
    absl::StatusOr<int> fd =
        Dial(process->ports[plan.members[peer]], {plan.id, rank, peer, channel, p2p ? 1 : 0},
             process->job_token, process->socket_buffer);
    if (!fd.ok()) return fd.status();
    auto conn = make(true, peer, channel);
    if (absl::Status s = open(*fd, conn.get()); !s.ok()) return s;
    return conn;
  };
  auto accept = [&](int peer, int channel,
                    bool p2p) -> absl::StatusOr<std::unique_ptr<Connection>> {
    absl::StatusOr<int> fd =
        process->listener->Accept({plan.id, peer, rank, channel, p2p ? 1 : 0}, process->job_token,
                                  process->connect_deadline_ns);
    if (!fd.ok()) return fd.status();
    auto conn = make(false, peer, channel);
    if (absl::Status s = open(*fd, conn.get()); !s.ok()) return s;
    return conn;
  };

  // Dial everything first: a connection is complete before the peer accepts it.
  for (int c = 0; c < channels; ++c) {
    if (plan.ring) {
      auto conn = dial(next, c, false);
      if (!conn.ok()) return conn.status();
      comm->ring_send_.push_back(*std::move(conn));
    }
    for (int peer : send_to) {
      auto conn = dial(peer, c, true);
      if (!conn.ok()) return conn.status();
      comm->p2p_send_[{peer, c}] = *std::move(conn);
    }
  }
  for (int c = 0; c < channels; ++c) {
    if (plan.ring) {
      auto conn = accept(prev, c, false);
      if (!conn.ok()) return conn.status();
      comm->ring_recv_.push_back(*std::move(conn));
    }
    for (int peer : recv_from) {
      auto conn = accept(peer, c, true);
      if (!conn.ok()) return conn.status();
      comm->p2p_recv_[{peer, c}] = *std::move(conn);
    }
    comm->times_.push_back(std::make_unique<KernelTimes>());
  }
  for (const auto& links : {dialed, accepted}) {
    for (VerbsLink* link : links) {
      if (absl::Status s = link->Finish(process->connect_deadline_ns); !s.ok()) return s;
    }
  }
  comm->works_.assign(channels, 0);
  comm->times_queue_ = std::vector<std::array<ProxyQueue, 2>>(channels);
  ProxyThread::Hooks hooks;
  hooks.device = process->device->bell();
  hooks.faults = process->faults;
  hooks.profiler = process->profiler;
  hooks.context = comm->context_;
  hooks.rank = rank;
  hooks.spin = process->verbs_spin;
  hooks.on_error = [process, name = plan.name](const std::string& what) {
    if (process->on_error) process->on_error(name + " " + what);
  };
  comm->proxy_ = std::make_unique<ProxyThread>(std::move(hooks));
  return comm;
}

void Communicator::Destroy(bool abort) {
  if (proxy_ != nullptr) proxy_->Stop(abort);
  if (has_context_) {
    process_->profiler->Finalize(context_);
    has_context_ = false;
  }
  if (!abort) CloseLinks();
}

void Communicator::CloseLinks() {
  constexpr uint64_t kPatienceNs = 2 * kNsPerSec;
  std::vector<NetLink*> links;
  for (auto* side : {&ring_send_, &ring_recv_}) {
    for (auto& conn : *side) links.push_back(conn->link.get());
  }
  for (auto* side : {&p2p_send_, &p2p_recv_}) {
    for (auto& [key, conn] : *side) links.push_back(conn->link.get());
  }
  for (NetLink* link : links) link->BeginClose();
  const uint64_t deadline = NowNs() + kPatienceNs;
  for (NetLink* link : links) link->EndClose(deadline);
}

Communicator::~Communicator() { Destroy(true); }

void Api::Collective(Communicator* comm, Func func, const float* send, float* recv, size_t count,
                     int root) {
  Task task;
  task.func = func;
  task.send = send;
  task.recv = recv;
  task.count = count;
  task.root_or_peer = root;
  task.channels = process_->channels;
  Enqueue(comm, task);
}

void Api::Send(Communicator* comm, const float* data, size_t count, int peer) {
  Task task;
  task.func = Func::kSend;
  task.send = data;
  task.count = count;
  task.root_or_peer = peer;
  task.channels = P2pChannels(count, process_->channels);
  Enqueue(comm, task);
}

void Api::Recv(Communicator* comm, float* data, size_t count, int peer) {
  Task task;
  task.func = Func::kRecv;
  task.recv = data;
  task.count = count;
  task.root_or_peer = peer;
  task.channels = P2pChannels(count, process_->channels);
  Enqueue(comm, task);
}

void Api::Enqueue(Communicator* comm, Task task) {
  ++depth_;
  group_comm_ = comm;
  mask_ = profiler_->mask();
  task.mask = mask_;
  if (ApiEvents() && (mask_ & kWantsGroupApi) != 0 && !group_open_) {
    nccl::EventDescrV6 descr{};
    descr.type = nccl::kGroupApi;
    descr.group_api.graph_captured = false;
    descr.group_api.group_depth = depth_;
    group_api_ = nullptr;
    profiler_->Start(comm->context_, &group_api_, &descr);
    group_open_ = true;
    if (group_api_ != nullptr) profiler_->State(group_api_, nccl::kGroupStartApiStop, nullptr);
  }
  if (ApiEvents() && (mask_ & (task.p2p() ? kWantsP2pApi : kWantsCollApi)) != 0) {
    nccl::EventDescrV6 descr{};
    descr.parent = group_api_;
    if (task.p2p()) {
      descr.type = nccl::kP2pApi;
      descr.p2p_api = {FuncName(task.func), task.count, kFloat32, process_->device, false};
    } else {
      descr.type = nccl::kCollApi;
      descr.coll_api = {FuncName(task.func), task.count,       kFloat32,
                        task.root_or_peer,   process_->device, false};
    }
    profiler_->Start(comm->context_, &task.api_handle, &descr);
  }
  tasks_.push_back(task);
  if (task.api_handle != nullptr) profiler_->Stop(task.api_handle);
  GroupEnd();
}

void Api::GroupEnd() {
  if (--depth_ > 0) return;
  if (tasks_.empty()) return;
  if (group_open_ && group_api_ != nullptr) {
    profiler_->State(group_api_, nccl::kGroupEndApiStart, nullptr);
  }
  Launch(group_comm_);
  tasks_.clear();
  if (group_open_ && group_api_ != nullptr) profiler_->Stop(group_api_);
  group_open_ = false;
  group_api_ = nullptr;
}

void Api::BuildRing(Communicator* comm, Task* task, Kernel* kernel) {
  for (int c = 0; c < task->channels; ++c) {
    Block block;
    block.channel = c;
    BlockTask ring;
    ring.program = MakeRing(task->func, task->count, comm->size(), comm->rank_, task->root_or_peer,
                            task->channels, c);
    if (ring.program.recv_transfers > 0) ring.recv = comm->ring_recv_[c].get();
    if (ring.program.send_transfers > 0) ring.send = comm->ring_send_[c].get();
    ring.source = task->send;
    ring.destination = task->recv;
    block.tasks.push_back(std::move(ring));
    kernel->blocks.push_back(std::move(block));
  }
}

void Api::BuildP2p(Communicator* comm, Kernel* kernel) {
  // Receives first: the order of NCCL's proxy operations on a channel.
  for (int c = 0; c < process_->channels; ++c) {
    Block block;
    block.channel = c;
    for (Func func : {Func::kRecv, Func::kSend}) {
      for (const Task& task : tasks_) {
        if (task.func != func) continue;
        const bool is_send = func == Func::kSend;
        const int from = is_send ? comm->rank_ : task.root_or_peer;
        const int to = is_send ? task.root_or_peer : comm->rank_;
        for (int part = 0; part < task.channels; ++part) {
          if (P2pChannel(from, to, comm->size(), process_->channels, task.channels, part) != c) {
            continue;
          }
          BlockTask p2p;
          p2p.program = MakeP2p(func, task.count, task.channels, part);
          auto& connections = is_send ? comm->p2p_send_ : comm->p2p_recv_;
          (is_send ? p2p.send : p2p.recv) = connections.at({task.root_or_peer, c}).get();
          p2p.source = task.send;
          p2p.destination = task.recv;
          block.tasks.push_back(std::move(p2p));
        }
      }
    }
    if (!block.tasks.empty()) kernel->blocks.push_back(std::move(block));
  }
}

namespace {

ProxyWork MakeWork(ProxyKind kind, Connection* connection, const ChannelProgram& program,
                   uint64_t mask, void* handle) {
  ProxyWork work;
  work.kind = kind;
  work.connection = connection;
  work.channel = connection->channel;
  const int transfers = kind == ProxyKind::kSend ? program.send_transfers : program.recv_transfers;
  work.steps = transfers * program.slice_steps;
  work.slice_steps = program.slice_steps;
  work.chunk_steps = program.chunk_steps;
  work.chunk_bytes = program.chunk_bytes;
  work.mask = mask;
  work.task_handle = handle;
  return work;
}

ProxyWork MakeKernelWork(const Block& block, ProxyQueue* queue, uint64_t mask, void* handle) {
  ProxyWork work;
  work.kind = ProxyKind::kKernel;
  work.kernel = block.times;
  work.queue = queue;
  work.work_number = block.work_number;
  work.channel = block.channel;
  work.mask = mask;
  work.task_handle = handle;
  return work;
}

}  // namespace

std::vector<ProxyWork> Api::RingWorks(Communicator* comm, const Task& task, const Kernel& kernel) {
  std::vector<ProxyWork> works;
  for (const Block& block : kernel.blocks) {
    const BlockTask& ring = block.tasks.front();
    if (ring.recv != nullptr) {
      works.push_back(MakeWork(ProxyKind::kRecv, ring.recv, ring.program, task.mask, task.handle));
    }
    if (ring.send != nullptr) {
      works.push_back(MakeWork(ProxyKind::kSend, ring.send, ring.program, task.mask, task.handle));
    }
    if (profiler_->active() && (task.mask & nccl::kKernelCh) != 0) {
      works.push_back(
          MakeKernelWork(block, &comm->times_queue_[block.channel][1], task.mask, task.handle));
    }
  }
  return works;
}

std::vector<ProxyWork> Api::P2pWorks(Communicator* comm, const Kernel& kernel) {
  std::vector<ProxyWork> works;
  for (const Block& block : kernel.blocks) {
    for (const BlockTask& p2p : block.tasks) {
      const bool is_send = p2p.send != nullptr;
      Connection* conn = is_send ? p2p.send : p2p.recv;
      const Task* task = nullptr;
      for (const Task& candidate : tasks_) {
        if (candidate.root_or_peer == conn->peer && (candidate.func == Func::kSend) == is_send &&
            (is_send ? candidate.send == p2p.source : candidate.recv == p2p.destination)) {
          task = &candidate;
        }
      }
      if (task == nullptr) continue;
      works.push_back(MakeWork(is_send ? ProxyKind::kSend : ProxyKind::kRecv, conn, p2p.program,
                               task->mask, task->handle));
      if (profiler_->active() && (task->mask & nccl::kKernelCh) != 0) {
        works.push_back(MakeKernelWork(block, &comm->times_queue_[block.channel][is_send ? 1 : 0],
                                       task->mask, task->handle));
      }
    }
  }
  return works;
}

void Api::StartTask(Communicator* comm, Task* task, void* group) {
  if (!task->p2p()) {
    const uint64_t sequence = comm->sequence_[static_cast<size_t>(task->func)]++;
    if (!profiler_->active() || (task->mask & kWantsColl) == 0) return;
    // NCCL moves these two as bytes.
    const bool as_bytes = task->func == Func::kAllGather || task->func == Func::kBroadcast;
    nccl::EventDescrV6 descr{};
    descr.type = nccl::kColl;
    descr.parent = profiler_->api() >= 5 ? task->api_handle : group;
    descr.rank = comm->rank_;
    descr.coll = {sequence,
                  FuncName(task->func),
                  task->send,
                  task->recv,
                  as_bytes ? task->count * sizeof(float) : task->count,
                  task->root_or_peer,
                  as_bytes ? kInt8 : kFloat32,
                  static_cast<uint8_t>(task->channels),
                  kWarps,
                  "RING",
                  "SIMPLE",
                  group};
    profiler_->Start(comm->context_, &task->handle, &descr);
    return;
  }
  if (!profiler_->active() || (task->mask & kWantsP2p) == 0) return;
  nccl::EventDescrV6 descr{};
  descr.type = nccl::kP2p;
  descr.parent = profiler_->api() >= 5 ? task->api_handle : group;
  descr.rank = comm->rank_;
  void* buffer = task->func == Func::kSend ? const_cast<float*>(task->send) : task->recv;
  descr.p2p = {FuncName(task->func),
               buffer,
               kFloat32,
               task->count,
               task->root_or_peer,
               static_cast<uint8_t>(task->channels),
               group};
  profiler_->Start(comm->context_, &task->handle, &descr);
}

void Api::Launch(Communicator* comm) {
  Kernel kernel;
  const bool p2p = tasks_.front().p2p();
  if (p2p) {
    BuildP2p(comm, &kernel);
  } else {
    BuildRing(comm, &tasks_.front(), &kernel);
  }
  kernel.name = p2p ? "ncclDevKernel_SendRecv" : "ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE";
  kernel.ring_proxy = [proxy = comm->proxy_.get()] { proxy->Ring(); };
  for (Block& block : kernel.blocks) {
    block.times = comm->times_[block.channel].get();
    block.work_number = ++comm->works_[block.channel];
  }
  Kernel description = kernel;  // the device gets its own copy

  void* launch = nullptr;
  if (ApiEvents() && (tasks_.front().mask & nccl::kKernelLaunch) != 0) {
    nccl::EventDescrV6 descr{};
    descr.type = nccl::kKernelLaunch;
    descr.parent = group_api_;
    descr.kernel_launch.stream = process_->device;
    profiler_->Start(comm->context_, &launch, &descr);
  }
  process_->device->Enqueue(std::move(kernel));
  if (launch != nullptr) profiler_->Stop(launch);

  uint64_t mask = 0;
  for (const Task& task : tasks_) mask |= task.mask;
  void* group = nullptr;
  if (profiler_->active() && (mask & kWantsGroup) != 0) {
    nccl::EventDescrV6 descr{};
    descr.type = nccl::kGroup;
    profiler_->Start(comm->context_, &group, &descr);
  }
  for (Task& task : tasks_) StartTask(comm, &task, group);
  comm->proxy_->Post(p2p ? P2pWorks(comm, description)
                         : RingWorks(comm, tasks_.front(), description));
  for (Task& task : tasks_) {
    if (task.handle != nullptr) profiler_->Stop(task.handle);
  }
  if (group != nullptr) profiler_->Stop(group);
}

}  // namespace mycroft::lab
