// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/async_kernel_probes.h"

#include <chrono>

namespace mycroft {
namespace {

// Readings take a millisecond or two: then they belong to this snapshot.
constexpr std::chrono::milliseconds kPatience(50);

// What is told once only, of readings that nobody took.
void KeepOnce(KernelReadings&& old, KernelReadings* fresh) {
  fresh->events.insert(fresh->events.begin(), old.events.begin(), old.events.end());
  for (auto& [key, rows] : old.processes) {
    for (QpSample& qp : rows.qps) {
      if (qp.destroyed) fresh->processes[key].qps.push_back(std::move(qp));
    }
  }
}

}  // namespace

AsyncKernelProbes::AsyncKernelProbes(std::unique_ptr<KernelProbes> probes)
    : probes_(std::move(probes)) {}

AsyncKernelProbes::~AsyncKernelProbes() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void AsyncKernelProbes::Start() {
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void AsyncKernelProbes::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || watch_ || arm_ || collect_; });
    if (stop_) return;
    const std::optional<Watched> watch = std::exchange(watch_, std::nullopt);
    const std::optional<Armed> arm = std::exchange(arm_, std::nullopt);
    const std::optional<uint64_t> collect = std::exchange(collect_, std::nullopt);
    lock.unlock();
    if (watch) probes_->Watch(watch->first, watch->second);
    if (arm) probes_->ArmDeep(arm->first, arm->second);
    std::optional<KernelReadings> fresh;
    if (collect) fresh = probes_->Collect(*collect);
    lock.lock();
    if (!fresh) continue;
    if (result_) KeepOnce(*std::move(result_), &*fresh);
    result_ = std::move(fresh);
    changed_.notify_all();
  }
}

void AsyncKernelProbes::Watch(const std::vector<WatchedProcess>& processes,
                              const std::vector<std::string>& pci_addresses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Start();
  watch_.emplace(processes, pci_addresses);
  changed_.notify_all();
}

void AsyncKernelProbes::ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Start();
  arm_.emplace(processes, until_ns);
  changed_.notify_all();
}

KernelReadings AsyncKernelProbes::Collect(uint64_t now_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  Start();
  std::optional<KernelReadings> late = std::exchange(result_, std::nullopt);
  collect_ = now_ns;
  changed_.notify_all();
  changed_.wait_for(lock, kPatience, [this] { return result_.has_value(); });
  if (result_) {
    if (late) KeepOnce(*std::move(late), &*result_);
    late = std::exchange(result_, std::nullopt);
  }
  lock.unlock();
  if (late) last_ = *std::move(late);
  KernelReadings out = last_;
  last_.events.clear();
  for (auto& [key, rows] : last_.processes) {
    std::erase_if(rows.qps, [](const QpSample& qp) { return qp.destroyed; });
  }
  return out;
}

}  // namespace mycroft
