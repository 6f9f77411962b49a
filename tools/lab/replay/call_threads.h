// SPDX-License-Identifier: Apache-2.0
//
// Runs work on named threads, one at a time: the caller waits until the thread
// is done. So a plugin sees each recorded thread as a thread of its own, while
// the order of all calls stays that of the recording.
//
// Not thread-safe: one caller. Threads end with the object.
#ifndef MYCROFT_TOOLS_LAB_REPLAY_CALL_THREADS_H_
#define MYCROFT_TOOLS_LAB_REPLAY_CALL_THREADS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace mycroft {

class CallThreads {
 public:
  CallThreads();
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // Runs `work` on the thread of this key, started at its first use. Above a limit
  // of threads, further keys share the last one.
  void Run(uint64_t key, const std::function<void()>& work);
  // The name as in /proc/PID/task/TID/comm, cut to 15 bytes.
  void SetName(uint64_t key, const std::string& name);

 private:
  class Worker;
  Worker& Get(uint64_t key);
  std::map<uint64_t, std::unique_ptr<Worker>> workers_;
};

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_LAB_REPLAY_CALL_THREADS_H_
