// SPDX-License-Identifier: Apache-2.0
//
// The GPU of a rank: one thread that runs the kernels of one stream in order.
//
// A compute kernel takes time. A communication kernel has one block per channel; a
// block runs a program of slices (ring.h): it waits for a filled slot to read and a
// free slot to write, adds and copies real data, and moves the FIFO counters. The
// blocks take turns, so one that pauses does not hold the others.
//
// Enqueue() returns at once, as a kernel launch does. Thread-safe.
#ifndef MYCROFT_TOOLS_LAB_JOB_DEVICE_H_
#define MYCROFT_TOOLS_LAB_JOB_DEVICE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tools/lab/job/clock.h"
#include "tools/lab/job/fault.h"
#include "tools/lab/job/fifo.h"
#include "tools/lab/job/gpu_driver.h"
#include "tools/lab/job/proxy.h"
#include "tools/lab/job/ring.h"

namespace mycroft::lab {

// One program of a block: a ring, or one direction of a point-to-point message.
struct BlockTask {
  ChannelProgram program;
  Connection* recv = nullptr;
  Connection* send = nullptr;
  const float* source = nullptr;
  float* destination = nullptr;
};

struct Block {
  int channel = 0;
  uint64_t work_number = 0;
  KernelTimes* times = nullptr;
  std::vector<BlockTask> tasks;
};

struct Kernel {
  const char* name = "lab_compute";  // as CUPTI's clients see it; a literal
  size_t copy_bytes = 0;             // a copy from the host instead
  uint64_t compute_ns = 0;           // a compute kernel when there are no blocks
  bool opens_iteration = false;  // the compute phase before the first operation
  std::vector<Block> blocks;
  std::function<void()> ring_proxy;  // wakes the progress thread of the communicator
  uint32_t correlation = 0;          // set by Enqueue()
};

class Device {
 public:
  // `driver`: told of what is launched and runs; may be null.
  Device(FaultBoard* faults, GpuClock clock, GpuDriver* driver = nullptr);
  ~Device();  // Join()
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void Enqueue(Kernel kernel);
  // Until everything enqueued has run; false when aborted.
  bool Synchronize();
  void Abort();
  // Ends the thread; afterwards it touches nobody's memory. Implies Abort().
  void Join();
  Bell* bell() { return &bell_; }
  // Slices whose length was not what the program expected: mismatched calls.
  uint64_t odd_slices() const { return odd_slices_.load(std::memory_order_relaxed); }

 private:
  struct RunningTask;
  void Run();
  void RunCopy(const Kernel& kernel);
  void RunCompute(const Kernel& kernel);
  void RunBlocks(const Kernel& kernel);
  bool Step(RunningTask* task, uint64_t now);
  void Execute(RunningTask* task);
  // False when aborted.
  bool SleepUntil(uint64_t until_ns);

  FaultBoard* faults_;
  GpuClock clock_;
  GpuDriver* driver_;
  Bell bell_;
  std::mutex mutex_;
  std::condition_variable work_cv_;
  std::condition_variable done_cv_;
  std::deque<Kernel> queue_;
  bool busy_ = false;
  std::atomic<bool> abort_{false};
  std::atomic<uint64_t> odd_slices_{0};
  uint64_t kernel_slices_ = 0;  // of the running kernel
  uint64_t kernel_total_ = 0;
  std::thread thread_;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_DEVICE_H_
