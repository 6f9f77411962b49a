// SPDX-License-Identifier: Apache-2.0
//
// Kernel probes in a thread of their own: attaching to a process takes milliseconds for
// each function, in the kernel, and must not stop the sampling of boards.
//
// Thread-safe as KernelProbes is: one thread calls it. The probes it is given are used by
// its own thread only, which starts with the first call and has the caller's rights of then.
#ifndef MYCROFT_USERSPACE_DECODE_ASYNC_KERNEL_PROBES_H_
#define MYCROFT_USERSPACE_DECODE_ASYNC_KERNEL_PROBES_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "userspace/decode/kernel_probes.h"

namespace mycroft {

class AsyncKernelProbes final : public KernelProbes {
 public:
  // Not null.
  explicit AsyncKernelProbes(std::unique_ptr<KernelProbes> probes);
  // Waits for the call in progress.
  ~AsyncKernelProbes() override;
  AsyncKernelProbes(const AsyncKernelProbes&) = delete;
  AsyncKernelProbes& operator=(const AsyncKernelProbes&) = delete;

  void Watch(const std::vector<WatchedProcess>& processes,
             const std::vector<std::string>& pci_addresses) override;
  // Waits a little for the readings of now. While the thread is busy: the last ones again,
  // without the events and the destroyed queue pairs that were given.
  KernelReadings Collect(uint64_t now_ns) override;
  void ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) override;

 private:
  using Watched = std::pair<std::vector<WatchedProcess>, std::vector<std::string>>;
  using Armed = std::pair<std::vector<ProcessKey>, uint64_t>;
  void Start();  // the thread; with mutex_ held
  void Run();

  const std::unique_ptr<KernelProbes> probes_;  // of thread_
  KernelReadings last_;                         // of the caller
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. Asked for, and not yet done.
  std::optional<Watched> watch_;
  std::optional<Armed> arm_;
  std::optional<uint64_t> collect_;
  std::optional<KernelReadings> result_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_ASYNC_KERNEL_PROBES_H_
