// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/device.h"

#include <pthread.h>
#include <string.h>

#include <algorithm>
#include <utility>

namespace mycroft::lab {

struct Device::RunningTask {
  const BlockTask* task = nullptr;
  size_t at = 0;          // next slice
  bool executed = false;  // the current slice is computed, not yet published
  bool paused = false;    // gpu-slow: the pause before the current slice was taken
  uint64_t not_before_ns = 0;
  uint64_t recv_step = 0;
  uint64_t send_step = 0;
  bool done() const { return at == task->program.slices.size(); }
};

// Bytes per ns of a copy from the host; PCIe 4.0 x16.
constexpr double kCopyRate = 25;

Device::Device(FaultBoard* faults, GpuClock clock, GpuDriver* driver)
    : faults_(faults), clock_(clock), driver_(driver), thread_([this] { Run(); }) {}

Device::~Device() { Join(); }

void Device::Join() {
  Abort();
  if (thread_.joinable()) thread_.join();
}

void Device::Enqueue(Kernel kernel) {
  if (driver_ != nullptr) {
    kernel.correlation = kernel.copy_bytes > 0 ? driver_->CopyEnqueued(kernel.copy_bytes)
                                               : driver_->Launched(kernel.name);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(kernel));
  }
  work_cv_.notify_one();
}

bool Device::Synchronize() {
  if (driver_ != nullptr) driver_->WaitBegins();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    done_cv_.wait(lock, [this] { return abort_.load() || (queue_.empty() && !busy_); });
  }
  if (driver_ != nullptr) driver_->WaitEnds();
  return !abort_.load();
}

void Device::Abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    abort_.store(true);
  }
  work_cv_.notify_all();
  done_cv_.notify_all();
  bell_.Ring();
}

void Device::Run() {
  pthread_setname_np(pthread_self(), "gpu");
  while (true) {
    Kernel kernel;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      work_cv_.wait(lock, [this] { return abort_.load() || !queue_.empty(); });
      if (abort_.load()) return;
      kernel = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    const uint64_t start = NowNs();
    if (kernel.copy_bytes > 0) {
      RunCopy(kernel);
    } else if (kernel.blocks.empty()) {
      RunCompute(kernel);
    } else {
      RunBlocks(kernel);
    }
    if (driver_ != nullptr && kernel.copy_bytes > 0) {
      driver_->Copied(kernel.correlation, kernel.copy_bytes, start, NowNs());
    } else if (driver_ != nullptr) {
      driver_->Ran(kernel.correlation, kernel.name, start, NowNs());
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      busy_ = false;
    }
    done_cv_.notify_all();
  }
}

bool Device::SleepUntil(uint64_t until_ns) {
  while (!abort_.load(std::memory_order_relaxed)) {
    const uint32_t seen = bell_.Look();
    if (NowNs() >= until_ns) return true;
    if (abort_.load(std::memory_order_relaxed)) break;
    bell_.Wait(seen, until_ns);
  }
  return false;
}

void Device::RunCopy(const Kernel& kernel) {
  const uint64_t start = NowNs();
  auto length = static_cast<uint64_t>(static_cast<double>(kernel.copy_bytes) / kCopyRate);
  if (faults_ != nullptr) {
    if (const auto us = faults_->Hold(FaultKind::kBusSlow, start)) {
      length += static_cast<uint64_t>(*us * 1e3);
    }
  }
  SleepUntil(start + length);
}

void Device::RunCompute(const Kernel& kernel) {
  const uint64_t start = NowNs();
  uint64_t length = kernel.compute_ns;
  // A slow GPU is slow in everything. Where nobody can see that, only the operations are.
  if (driver_ != nullptr && faults_ != nullptr && faults_->Peek(FaultKind::kGpuSlow, start)) {
    length *= 2;
  }
  if (kernel.opens_iteration && faults_ != nullptr) {
    if (const auto us = faults_->Hold(FaultKind::kGpuLate, start)) {
      length += static_cast<uint64_t>(*us * 1e3);
    }
    if (faults_->Hold(FaultKind::kStreamBlocked, start)) {
      SleepUntil(faults_->EndOf(FaultKind::kStreamBlocked, start));
    }
  }
  SleepUntil(start + length);
}

void Device::RunBlocks(const Kernel& kernel) {
  std::vector<std::vector<RunningTask>> blocks(kernel.blocks.size());
  kernel_slices_ = kernel_total_ = 0;
  const uint64_t start = clock_.At(NowNs());
  for (size_t b = 0; b < kernel.blocks.size(); ++b) {
    const Block& block = kernel.blocks[b];
    for (const BlockTask& task : block.tasks) {
      RunningTask running;
      running.task = &task;
      const auto chunk = static_cast<uint64_t>(task.program.chunk_steps);
      // The FIFO position starts at a whole chunk, here as in the proxy.
      auto round = [chunk](Connection* conn) {
        conn->device_step = (conn->device_step + chunk - 1) / chunk * chunk;
        return conn->device_step;
      };
      if (task.recv != nullptr) running.recv_step = round(task.recv);
      if (task.send != nullptr) running.send_step = round(task.send);
      kernel_total_ += task.program.slices.size();
      blocks[b].push_back(running);
    }
    if (block.times != nullptr) {
      auto& entry = block.times->started[block.work_number % KernelTimes::kEntries];
      entry.timestamp.store(start, std::memory_order_relaxed);
      entry.counter.store(block.work_number, std::memory_order_release);
    }
  }
  if (kernel.ring_proxy) kernel.ring_proxy();

  std::vector<bool> block_done(blocks.size(), false);
  size_t open_blocks = blocks.size();
  while (open_blocks > 0) {
    if (abort_.load(std::memory_order_relaxed)) return;
    const uint32_t seen = bell_.Look();
    const uint64_t now = NowNs();
    bool moved = false;
    uint64_t deadline = kNever;
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (block_done[b]) continue;
      bool all_done = true;
      for (RunningTask& task : blocks[b]) {
        if (!task.done() && Step(&task, now)) {
          moved = true;
          if (kernel.ring_proxy) kernel.ring_proxy();
        }
        if (!task.done()) {
          all_done = false;
          if (task.not_before_ns > now) deadline = std::min(deadline, task.not_before_ns);
        }
      }
      if (!all_done) continue;
      block_done[b] = true;
      --open_blocks;
      for (RunningTask& task : blocks[b]) {
        if (task.task->recv != nullptr) task.task->recv->device_step = task.recv_step;
        if (task.task->send != nullptr) task.task->send->device_step = task.send_step;
      }
      const Block& block = kernel.blocks[b];
      if (block.times != nullptr) {
        auto& entry = block.times->completed[block.work_number % KernelTimes::kEntries];
        entry.timestamp.store(clock_.At(NowNs()), std::memory_order_relaxed);
        entry.counter.store(block.work_number, std::memory_order_release);
      }
      if (kernel.ring_proxy) kernel.ring_proxy();
    }
    if (moved || open_blocks == 0) continue;
    if (faults_ != nullptr && faults_->Peek(FaultKind::kGpuStuck, now)) {
      deadline = std::min(deadline, faults_->EndOf(FaultKind::kGpuStuck, now));
    }
    bell_.Wait(seen, deadline);
  }
}

// One slice of one task, as far as it can go now. True when a counter moved.
bool Device::Step(RunningTask* task, uint64_t now) {
  if (now < task->not_before_ns) return false;
  const ChannelProgram& program = task->task->program;
  const SliceOp& op = program.slices[task->at];
  const auto slice_steps = static_cast<uint64_t>(program.slice_steps);
  Connection* recv = op.recv ? task->task->recv : nullptr;
  Connection* send = op.send ? task->task->send : nullptr;
  if (!task->executed) {
    if (recv != nullptr &&
        recv->fifo.tail.load(std::memory_order_acquire) < task->recv_step + slice_steps) {
      return false;
    }
    if (send != nullptr &&
        send->fifo.head.load(std::memory_order_acquire) + kSteps < task->send_step + slice_steps) {
      return false;
    }
    if (faults_ != nullptr) {
      // At least one slice must stay undone, or the kernel would not be stuck.
      if (const auto slices = faults_->Peek(FaultKind::kGpuStuck, now);
          slices && static_cast<double>(kernel_slices_) >=
                        std::min(*slices, static_cast<double>(kernel_total_ - 1))) {
        faults_->Hold(FaultKind::kGpuStuck, now);
        return false;
      }
      if (!task->paused) {
        task->paused = true;
        if (const auto us = faults_->Hold(FaultKind::kGpuSlow, now)) {
          task->not_before_ns = now + static_cast<uint64_t>(*us * 1e3);
          return false;
        }
      }
    }
    Execute(task);
    task->executed = true;
    if (send != nullptr && faults_ != nullptr) {
      // The copy to the staging buffer, before the proxy may see the slot.
      if (const auto us = faults_->Hold(FaultKind::kBusSlow, now)) {
        task->not_before_ns = now + static_cast<uint64_t>(*us * 1e3);
        return false;
      }
    }
  }
  if (send != nullptr) {
    task->send_step += slice_steps;
    send->fifo.tail.store(task->send_step, std::memory_order_release);
  }
  if (recv != nullptr) {
    task->recv_step += slice_steps;
    recv->fifo.head.store(task->recv_step, std::memory_order_release);
  }
  task->executed = false;
  task->paused = false;
  ++task->at;
  ++kernel_slices_;
  return true;
}

void Device::Execute(RunningTask* task) {
  const BlockTask& block = *task->task;
  const SliceOp& op = block.program.slices[task->at];
  const size_t bytes = op.count * sizeof(float);
  const float* in = nullptr;
  size_t count = op.count;
  if (op.recv) {
    Fifo& fifo = block.recv->fifo;
    in = reinterpret_cast<const float*>(fifo.At(task->recv_step));
    const size_t got = fifo.size[Fifo::Slot(task->recv_step)];
    if (got != bytes) {
      // The peer called something else. Real hardware would compute with whatever is
      // in the slot; so do we, within bounds.
      odd_slices_.fetch_add(1, std::memory_order_relaxed);
      count = std::min(count, got / sizeof(float));
    }
  }
  float* slot = nullptr;
  if (op.send) {
    Fifo& fifo = block.send->fifo;
    slot = reinterpret_cast<float*>(fifo.At(task->send_step));
    fifo.size[Fifo::Slot(task->send_step)] = bytes;
  }
  float* store = op.store && block.destination != nullptr ? block.destination + op.dst : nullptr;
  const float* source = block.source == nullptr ? nullptr : block.source + op.src;
  if (op.recv && op.reduce) {
    float* out = slot != nullptr ? slot : store;
    if (out == nullptr) return;
    for (size_t i = 0; i < count; ++i) out[i] = in[i] + source[i];
    if (slot != nullptr && store != nullptr) memcpy(store, slot, count * sizeof(float));
    return;
  }
  const float* from = op.recv ? in : source;
  if (from == nullptr) return;
  if (slot != nullptr) memcpy(slot, from, count * sizeof(float));
  if (store != nullptr && store != from) memcpy(store, from, count * sizeof(float));
}

}  // namespace mycroft::lab
