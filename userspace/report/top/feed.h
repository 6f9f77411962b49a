// SPDX-License-Identifier: Apache-2.0
//
// Where `top` gets its data: a thread that samples a live source, or a recording
// with a time cursor. Both run the same pipeline.
//
// The objects are used by one thread; LiveFeed has a thread of its own inside.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_FEED_H_
#define MYCROFT_USERSPACE_REPORT_TOP_FEED_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "userspace/attribute/pipeline.h"
#include "userspace/decode/snapshot_source.h"
#include "userspace/report/top/state.h"

namespace mycroft {

class TopFeed {
 public:
  virtual ~TopFeed() = default;
  // Works for about `budget_ns` at most (a recording), or not at all (live).
  // True when Data() has changed.
  virtual bool Poll(uint64_t budget_ns) = 0;
  // Never null. What it points to never changes.
  virtual std::shared_ptr<const TopData> Data() = 0;
  virtual TopSource Source() const = 0;
  // Moves the cursor of a recording; Poll gets there. Nothing when live.
  virtual void Seek(uint64_t t_ns) = 0;
};

// Reads the source in a thread until `interrupt` (which must make a blocking Next
// return) or its end. The source and what `interrupt` uses must outlive the feed.
class LiveFeed : public TopFeed {
 public:
  // Called by the feed's thread after each snapshot of `host`; may be empty.
  using AfterFeed = std::function<void(Pipeline&, const std::string& host)>;
  LiveFeed(SnapshotSource& source, std::function<void()> interrupt, const PipelineOptions& options,
           uint64_t interval_ns, AfterFeed after_feed = {});
  ~LiveFeed() override;
  bool Poll(uint64_t budget_ns) override;
  std::shared_ptr<const TopData> Data() override;
  TopSource Source() const override;
  void Seek(uint64_t) override {}

 private:
  void Run();

  SnapshotSource& source_;
  std::function<void()> interrupt_;
  AfterFeed after_feed_;
  uint64_t interval_ns_;
  mutable std::mutex mutex_;
  Pipeline pipeline_;        // guarded by mutex_
  std::string problem_;      // guarded by mutex_
  uint64_t ticks_ = 0;       // guarded by mutex_
  bool stop_ = false;        // guarded by mutex_
  uint64_t seen_ticks_ = 0;  // of the last Poll
  std::thread thread_;
};

// Forwards it reads on; backwards it goes to the nearest frame it has kept. Kept
// frames take at most `max_bytes`: in a long recording they lie further apart.
class RecordingFeed : public TopFeed {
 public:
  RecordingFeed(SnapshotSource& source, const std::string& name, uint64_t first_ns,
                uint64_t last_ns, const PipelineOptions& options, size_t max_bytes = 64 << 20);
  bool Poll(uint64_t budget_ns) override;
  std::shared_ptr<const TopData> Data() override { return shown_; }
  TopSource Source() const override;
  void Seek(uint64_t t_ns) override;
  // True when the cursor has reached where it was sent.
  bool settled() const { return settled_; }

 private:
  void Keep();

  SnapshotSource& source_;
  std::string name_;
  uint64_t first_ns_, last_ns_;
  size_t max_bytes_;
  Pipeline pipeline_;
  std::string problem_;
  bool ended_ = false;
  bool settled_ = false;
  bool started_ = false;
  uint64_t interval_ns_ = 0;
  uint64_t fed_ns_ = 0;  // t_ns of the pipeline
  uint64_t target_ns_ = 0;
  uint64_t spacing_ns_ = 0;                          // least distance of kept frames
  std::deque<std::shared_ptr<const TopData>> kept_;  // in order of time
  size_t kept_bytes_ = 0;
  std::shared_ptr<const TopData> shown_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_FEED_H_
