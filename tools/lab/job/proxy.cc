// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/proxy.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace mycroft::lab {

ProxyThread::ProxyThread(Hooks hooks) : hooks_(std::move(hooks)), thread_([this] { Run(); }) {}

ProxyThread::~ProxyThread() { Stop(true); }

void ProxyThread::Post(std::vector<ProxyWork> works) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (ProxyWork& work : works) posted_.push_back(work);
  }
  bell_.Ring();
}

void ProxyThread::Stop(bool abort) {
  if (!thread_.joinable()) return;
  if (abort) abort_.store(true);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  bell_.Ring();
  thread_.join();
}

void ProxyThread::Run() {
  pthread_setname_np(pthread_self(), "NCCL Progress 0");
  tid_.store(static_cast<pid_t>(syscall(SYS_gettid)));
  bool last_idle = false;
  int appended_ago = 0;
  while (!abort_.load(std::memory_order_relaxed) && !failed_) {
    bool idle = true;
    moved_ = false;
    for (size_t i = 0; i < active_.size() && !failed_;) {
      ProxyArgs* args = active_[i].get();
      Progress(args);
      idle = idle && args->idle;
      if (!args->finished) {
        ++i;
        continue;
      }
      // The next operation of the connection takes this one's place in the list.
      ProxyQueue* queue =
          args->work.queue != nullptr ? args->work.queue : &args->work.connection->queue;
      if (!queue->waiting.empty()) {
        active_[i] = std::move(queue->waiting.front());
        queue->waiting.pop_front();
        ++i;
      } else {
        queue->active = false;
        active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    if (idle != last_idle) {
      void* handle = nullptr;
      StartCtrl(&handle);
      CtrlState(handle, 0, idle ? nccl::kProxyCtrlIdle : nccl::kProxyCtrlActive);
      if (handle != nullptr) hooks_.profiler->Stop(handle);
    }
    last_idle = idle;
    bool added = false;
    // NCCL looks for new operations when idle, and else every 8 passes.
    if (idle || active_.empty() || !moved_ || ++appended_ago == 8) {
      appended_ago = 0;
      added = Append();
      if (active_.empty()) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (stop_ && posted_.empty()) break;
      }
    }
    if (!moved_ && !added && !active_.empty()) Sleep();
  }
}

bool ProxyThread::Append() {
  std::vector<ProxyWork> works;
  while (!abort_.load(std::memory_order_relaxed)) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      works.assign(posted_.begin(), posted_.end());
      posted_.clear();
      if (!works.empty() || stop_) break;
    }
    if (!active_.empty()) return false;
    void* handle = nullptr;
    StartCtrl(&handle);
    CtrlState(handle, 0, nccl::kProxyCtrlSleep);
    Sleep();
    CtrlState(handle, 0, nccl::kProxyCtrlWakeup);
    if (handle != nullptr) hooks_.profiler->Stop(handle);
  }
  if (works.empty() && !active_.empty()) return false;
  void* handle = nullptr;
  StartCtrl(&handle);
  CtrlState(handle, 0, nccl::kProxyCtrlAppend);
  for (ProxyWork& work : works) {
    auto args = std::make_unique<ProxyArgs>();
    args->work = work;
    if (work.kind != ProxyKind::kKernel) StartOp(args.get());
    ProxyQueue* queue = work.queue != nullptr ? work.queue : &work.connection->queue;
    if (queue->active) {
      queue->waiting.push_back(std::move(args));
    } else {
      queue->active = true;
      active_.push_back(std::move(args));
    }
  }
  CtrlState(handle, static_cast<int>(works.size()), nccl::kProxyCtrlAppendEnd);
  if (handle != nullptr) hooks_.profiler->Stop(handle);
  return !works.empty();
}

void ProxyThread::Progress(ProxyArgs* args) {
  switch (args->work.kind) {
    case ProxyKind::kSend:
      ProgressSend(args);
      break;
    case ProxyKind::kRecv:
      ProgressRecv(args);
      break;
    case ProxyKind::kKernel:
      ProgressKernel(args);
      return;
  }
  if (!args->idle) moved_ = true;
}

// Takes the FIFO positions of this operation when its turn has come.
void ProxyThread::Begin(ProxyArgs* args) {
  args->idle = true;
  if (args->in_progress) return;
  const ProxyWork& work = args->work;
  const auto chunk = static_cast<uint64_t>(work.chunk_steps);
  args->base = (work.connection->proxy_step + chunk - 1) / chunk * chunk;
  work.connection->proxy_step = args->base + static_cast<uint64_t>(work.steps);
  args->in_progress = true;
  if (hooks_.profiler->active() && args->op_handle != nullptr) {
    nccl::StateArgs state{};
    hooks_.profiler->State(args->op_handle, nccl::kProxyOpInProgress, &state);
  }
}

void ProxyThread::ProgressSend(ProxyArgs* args) {
  const ProxyWork& work = args->work;
  Connection& conn = *work.connection;
  Fifo& fifo = conn.fifo;
  Begin(args);
  if (args->posted < work.steps && args->posted < args->done + kSteps) {
    const int step = args->posted;
    StartStep(args, step);
    args->posted += work.slice_steps;
    StepState(args, step, nccl::kSendGpuWait);
    args->idle = false;
    return;
  }
  if (args->transmitted < args->posted &&
      fifo.tail.load(std::memory_order_acquire) >
          args->base + static_cast<uint64_t>(args->transmitted)) {
    const int step = args->transmitted;
    const uint64_t at = args->base + static_cast<uint64_t>(step);
    const size_t size = fifo.size[Fifo::Slot(at)];
    StepState(args, step, nccl::kSendPeerWait);
    if (conn.link->Isend(fifo.At(at), size)) {
      conn.trans_size = size;
      args->transmitted += work.slice_steps;
      StepState(args, step, nccl::kSendWait);
      args->idle = false;
      return;
    }
    CheckLink(args);
  }
  if (args->done < args->transmitted) {
    size_t size = 0;
    if (conn.link->Test(&size)) {
      StopStep(args, args->done);
      args->done += work.slice_steps;
      fifo.head.store(args->base + static_cast<uint64_t>(args->done), std::memory_order_release);
      hooks_.device->Ring();
      args->idle = false;
      if (args->done >= work.steps) {
        StopOp(args);
        args->finished = true;
      }
    } else {
      CheckLink(args);
    }
  }
}

void ProxyThread::ProgressRecv(ProxyArgs* args) {
  const ProxyWork& work = args->work;
  Connection& conn = *work.connection;
  Fifo& fifo = conn.fifo;
  Begin(args);
  if (args->posted < work.steps && args->posted < args->done + kSteps) {
    const int step = args->posted;
    StartStep(args, step);
    conn.link->Irecv(fifo.At(args->base + static_cast<uint64_t>(step)),
                     static_cast<size_t>(work.slice_steps) * kStepBytes);
    args->posted += work.slice_steps;
    StepState(args, step, nccl::kRecvWait);
    args->idle = false;
    return;
  }
  if (args->received < args->posted) {
    size_t size = 0;
    if (conn.link->Test(&size)) {
      const int step = args->received;
      const size_t slot = Fifo::Slot(args->base + static_cast<uint64_t>(step));
      fifo.size[slot] = size;
      conn.trans_size = size;
      args->received += work.slice_steps;
      StepState(args, step, nccl::kRecvFlushWait);
      // The copy from the staging buffer to the GPU. Copies of one connection queue up.
      const uint64_t now = NowNs();
      args->flush_until[slot] = 0;
      if (const auto us = hooks_.faults == nullptr
                              ? std::nullopt
                              : hooks_.faults->Hold(FaultKind::kBusSlow, now)) {
        args->last_flush_ns = std::max(now, args->last_flush_ns) + static_cast<uint64_t>(*us * 1e3);
        args->flush_until[slot] = args->last_flush_ns;
      }
      if (size > 0) conn.link->Iflush(fifo.At(args->base + static_cast<uint64_t>(step)));
      args->idle = false;
      return;
    }
    CheckLink(args);
  }
  if (args->transmitted < args->received) {
    const int step = args->transmitted;
    const size_t slot = Fifo::Slot(args->base + static_cast<uint64_t>(step));
    const bool held = args->flush_until[slot] != 0 && NowNs() < args->flush_until[slot];
    if (!held && (fifo.size[slot] == 0 || conn.link->TestFlush())) {
      args->transmitted += work.slice_steps;
      fifo.tail.store(args->base + static_cast<uint64_t>(args->transmitted),
                      std::memory_order_release);
      hooks_.device->Ring();
      StepState(args, step, nccl::kRecvGpuWait);
      args->idle = false;
      return;
    }
    CheckLink(args);
  }
  const uint64_t head = fifo.head.load(std::memory_order_acquire);
  while (args->done < args->transmitted && head > args->base + static_cast<uint64_t>(args->done)) {
    StopStep(args, args->done);
    args->done += work.slice_steps;
    args->idle = false;
    if (args->done >= work.steps) {
      StopOp(args);
      args->finished = true;
      break;
    }
  }
}

void ProxyThread::ProgressKernel(ProxyArgs* args) {
  const ProxyWork& work = args->work;
  args->idle = false;  // as in NCCL: while a kernel is watched the thread is never idle
  const size_t i = work.work_number % KernelTimes::kEntries;
  if (args->posted == 0) {
    const auto& entry = work.kernel->started[i];
    if (entry.counter.load(std::memory_order_acquire) < work.work_number) return;
    nccl::EventDescrV6 descr{};
    descr.type = nccl::kKernelCh;
    descr.parent = work.task_handle;
    descr.kernel_ch.channel = static_cast<uint8_t>(work.channel);
    descr.kernel_ch.gpu_timer = entry.timestamp.load(std::memory_order_relaxed);
    hooks_.profiler->Start(hooks_.context, &args->op_handle, &descr);
    args->posted = 1;
    moved_ = true;
    return;
  }
  const auto& entry = work.kernel->completed[i];
  if (entry.counter.load(std::memory_order_acquire) < work.work_number) return;
  if (args->op_handle != nullptr) {
    nccl::StateArgs state{};
    state.kernel_ch.gpu_timer = entry.timestamp.load(std::memory_order_relaxed);
    hooks_.profiler->State(args->op_handle, nccl::kKernelChStop, &state);
    hooks_.profiler->Stop(args->op_handle);
  }
  args->finished = true;
  moved_ = true;
}

void ProxyThread::CheckLink(ProxyArgs* args) {
  const NetLink& link = *args->work.connection->link;
  if (!link.failed() || failed_) return;
  failed_ = true;
  if (hooks_.on_error) {
    hooks_.on_error("channel " + std::to_string(args->work.channel) +
                    (args->work.kind == ProxyKind::kSend ? " to" : " from") + " peer " +
                    std::to_string(args->work.connection->peer) + ": " + link.error());
  }
}

void ProxyThread::Sleep() {
  if (failed_) return;
  if (hooks_.spin && !active_.empty()) {
    sched_yield();  // as NCCL, when no operation made progress
    return;
  }
  if (!bell_.Arm()) {
    bell_.Disarm();
    return;
  }
  std::vector<pollfd> fds = {{bell_.fd(), POLLIN, 0}};
  const uint64_t now = NowNs();
  uint64_t until = kNever;
  for (const auto& args : active_) {
    if (args->work.kind == ProxyKind::kKernel) continue;
    NetLink& link = *args->work.connection->link;
    uint64_t retry = kNever;
    const short events = link.Events(&retry);
    if (events != 0) {
      fds.push_back({link.fd(), events, 0});
      if (!link.Arm()) until = 0;  // something came just now
    }
    until = std::min(until, retry);
    if (args->transmitted < args->received) {
      const uint64_t flush =
          args->flush_until[Fifo::Slot(args->base + static_cast<uint64_t>(args->transmitted))];
      if (flush != 0) until = std::min(until, flush);
    }
  }
  timespec timeout = ToTimespec(until > now ? until - now : 0);
  ppoll(fds.data(), fds.size(), until == kNever ? nullptr : &timeout, nullptr);
  for (const auto& args : active_) {
    if (args->work.kind != ProxyKind::kKernel) args->work.connection->link->Disarm();
  }
  bell_.Disarm();
}

void ProxyThread::StartOp(ProxyArgs* args) {
  const ProxyWork& work = args->work;
  if (!hooks_.profiler->active() || (work.mask & kWantsOp) == 0) return;
  nccl::EventDescrV6 descr{};
  descr.type = nccl::kProxyOp;
  descr.parent = work.task_handle;
  descr.rank = hooks_.rank;
  descr.proxy_op.pid = getpid();
  descr.proxy_op.channel = static_cast<uint8_t>(work.channel);
  descr.proxy_op.peer = work.connection->peer;
  descr.proxy_op.steps = work.steps / work.slice_steps;
  descr.proxy_op.chunk_size = work.chunk_bytes * work.slice_steps;
  descr.proxy_op.is_send = work.kind == ProxyKind::kSend ? 1 : 0;
  hooks_.profiler->Start(hooks_.context, &args->op_handle, &descr);
}

void ProxyThread::StopOp(ProxyArgs* args) {
  if (args->op_handle == nullptr || (args->work.mask & kWantsOp) == 0) return;
  hooks_.profiler->Stop(args->op_handle);
}

void ProxyThread::StartStep(ProxyArgs* args, int step) {
  if (!hooks_.profiler->active() || (args->work.mask & kWantsStep) == 0) return;
  nccl::EventDescrV6 descr{};
  descr.type = nccl::kProxyStep;
  descr.parent = args->op_handle;
  descr.rank = hooks_.rank;
  descr.proxy_step.step = step / args->work.slice_steps;
  void*& handle = args->StepHandle(step);
  handle = nullptr;
  hooks_.profiler->Start(hooks_.context, &handle, &descr);
}

void ProxyThread::StepState(ProxyArgs* args, int step, nccl::EventState state) {
  if (!hooks_.profiler->active() || (args->work.mask & kWantsStep) == 0) return;
  if (args->op_handle == nullptr) return;
  nccl::StateArgs values{};
  values.proxy_step.trans_size = args->work.connection->trans_size;
  hooks_.profiler->State(args->StepHandle(step), state, &values);
}

void ProxyThread::StopStep(ProxyArgs* args, int step) {
  if (!hooks_.profiler->active() || (args->work.mask & kWantsStep) == 0) return;
  void*& handle = args->StepHandle(step);
  if (handle == nullptr) return;
  hooks_.profiler->Stop(handle);
  handle = nullptr;
}

void ProxyThread::StartCtrl(void** handle) {
  if (!hooks_.profiler->active() || (hooks_.profiler->mask() & nccl::kProxyCtrl) == 0) return;
  nccl::EventDescrV6 descr{};
  descr.type = nccl::kProxyCtrl;
  hooks_.profiler->Start(hooks_.context, handle, &descr);
}

void ProxyThread::CtrlState(void* handle, int appended, nccl::EventState state) {
  if (handle == nullptr) return;
  nccl::StateArgs values{};
  values.proxy_ctrl.appended_proxy_ops = appended;
  hooks_.profiler->State(handle, state, &values);
}

}  // namespace mycroft::lab
