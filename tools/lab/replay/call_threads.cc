// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/call_threads.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace mycroft {
namespace {
constexpr size_t kMaxThreads = 128;
}

class CallThreads::Worker {
 public:
  Worker() : thread_([this] { Loop(); }) {}
  ~Worker() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Run(const std::function<void()>& work) {
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = &work;
    wake_.notify_one();
    done_.wait(lock, [this] { return work_ == nullptr; });
  }

 private:
  void Loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || work_ != nullptr; });
      if (work_ != nullptr) {
        (*work_)();
        work_ = nullptr;
        done_.notify_one();
      }
      if (stop_) return;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* work_ = nullptr;
  bool stop_ = false;
  std::thread thread_;  // last: starts when the rest is there
};

CallThreads::CallThreads() = default;
CallThreads::~CallThreads() = default;

CallThreads::Worker& CallThreads::Get(uint64_t key) {
  auto it = workers_.find(key);
  if (it == workers_.end()) {
    if (workers_.size() >= kMaxThreads) return *workers_.rbegin()->second;
    it = workers_.emplace(key, std::make_unique<Worker>()).first;
  }
  return *it->second;
}

void CallThreads::Run(uint64_t key, const std::function<void()>& work) { Get(key).Run(work); }

void CallThreads::SetName(uint64_t key, const std::string& name) {
  Run(key, [&name] { pthread_setname_np(pthread_self(), name.substr(0, 15).c_str()); });
}

}  // namespace mycroft
