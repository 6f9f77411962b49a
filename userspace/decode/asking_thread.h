// SPDX-License-Identifier: Apache-2.0
#ifndef MYCROFT_USERSPACE_DECODE_ASKING_THREAD_H_
#define MYCROFT_USERSPACE_DECODE_ASKING_THREAD_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace mycroft {

// Asks on a thread of its own what may never come back: a read in /sys or a call of a driver
// that hangs in the kernel. One question at a time. Of one thread at a time, like its owner.
template <class Question, class Answer>
class AskingThread {
 public:
  // `ask` runs on that thread, which may outlive this object: it owns what it uses.
  explicit AskingThread(std::function<Answer(const Question&)> ask)
      : state_(std::make_shared<State>()) {
    state_->ask = std::move(ask);
  }
  // Waits for the thread two seconds at most; one that hangs is left.
  ~AskingThread() {
    if (!thread_.joinable()) return;
    bool ended = false;
    {
      std::unique_lock<std::mutex> lock(state_->mutex);
      state_->stop = true;
      state_->changed.notify_all();
      ended = state_->changed.wait_for(lock, std::chrono::seconds(2),
                                       [this] { return state_->ended; });
    }
    ended ? thread_.join() : thread_.detach();
  }
  AskingThread(const AskingThread&) = delete;
  AskingThread& operator=(const AskingThread&) = delete;

  // False: the last question is not answered yet, and this one is dropped.
  bool Ask(Question question) {
    if (!thread_.joinable()) thread_ = std::thread([state = state_] { state->Run(); });
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->open) return false;
    state_->open = true;
    state_->question = std::move(question);
    state_->changed.notify_all();
    return true;
  }
  // Whether a question has no answer yet.
  bool open() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->open;
  }
  // Whether Take() has something to give.
  bool answered() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->answer.has_value();
  }
  // The newest answer, once; waits for it so long.
  std::optional<Answer> Take(std::chrono::nanoseconds patience = {}) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait_for(lock, patience, [this] { return state_->answer.has_value(); });
    return std::exchange(state_->answer, std::nullopt);
  }

 private:
  struct State {
    void Run() {
      std::unique_lock<std::mutex> lock(mutex);
      for (;;) {
        changed.wait(lock, [this] { return stop || question; });
        if (stop) break;
        const Question now = *std::exchange(question, std::nullopt);
        lock.unlock();
        Answer fresh = ask(now);
        lock.lock();
        open = false;
        answer = std::move(fresh);
        changed.notify_all();
      }
      ended = true;
      changed.notify_all();
    }

    std::function<Answer(const Question&)> ask;
    std::mutex mutex;
    std::condition_variable changed;
    // All below: guarded by mutex.
    bool stop = false, ended = false, open = false;
    std::optional<Question> question;
    std::optional<Answer> answer;
  };

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_ASKING_THREAD_H_
