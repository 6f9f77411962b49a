// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/feed.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "userspace/base/log.h"

namespace mycroft {
namespace {

std::shared_ptr<const TopData> Capture(const Pipeline& pipeline) {
  auto data = std::make_shared<TopData>();
  data->job = pipeline.View();
  data->incidents = pipeline.incidents();
  data->blind_spots = pipeline.BlindSpots();
  return data;
}

// Roughly; strings of incidents are counted by a flat rate.
size_t Bytes(const TopData& data) {
  size_t bytes = sizeof data + data.incidents.size() * 2048 + data.blind_spots.size() * 256;
  for (const DeviceView& device : data.job.devices) {
    bytes += sizeof device + device.path.size() * (sizeof(HopView) + 64) +
             device.ports.size() * (sizeof(PortView) + 64) + device.problems.size() * 128 +
             device.processes.size() * sizeof(ProcessKey);
  }
  bytes += data.job.probes.size() * (sizeof(ProbeSample) + 256);
  for (const CommView& comm : data.job.comms) {
    bytes += sizeof comm + comm.ranks.size() * (sizeof(RankView) + 64);
    for (const RankView& rank : comm.ranks) bytes += rank.flows.size() * sizeof(FlowView);
  }
  return bytes;
}

}  // namespace

LiveFeed::LiveFeed(SnapshotSource& source, std::function<void()> interrupt,
                   const PipelineOptions& options, uint64_t interval_ns, AfterFeed after_feed)
    : source_(source),
      interrupt_(std::move(interrupt)),
      after_feed_(std::move(after_feed)),
      interval_ns_(interval_ns),
      pipeline_(options),
      thread_([this] { Run(); }) {}

LiveFeed::~LiveFeed() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  interrupt_();
  thread_.join();
}

void LiveFeed::Run() {
  for (;;) {
    absl::StatusOr<std::optional<Snapshot>> next = source_.Next();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_) return;
    if (!next.ok() || !*next) {
      problem_ = next.ok() ? "the source has ended" : StatusText(next.status());
      ++ticks_;
      return;
    }
    pipeline_.Feed(**next);
    if (after_feed_) after_feed_(pipeline_, (*next)->host);
    ++ticks_;
  }
}

bool LiveFeed::Poll(uint64_t) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(seen_ticks_, ticks_) != ticks_;
}

std::shared_ptr<const TopData> LiveFeed::Data() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Capture(pipeline_);
}

TopSource LiveFeed::Source() const {
  TopSource source;
  source.live = true;
  source.name = "live";
  source.interval_ns = interval_ns_;
  const std::lock_guard<std::mutex> lock(mutex_);
  source.problem = problem_;
  return source;
}

RecordingFeed::RecordingFeed(SnapshotSource& source, const std::string& name, uint64_t first_ns,
                             uint64_t last_ns, const PipelineOptions& options, size_t max_bytes)
    : source_(source),
      name_(name),
      first_ns_(first_ns),
      last_ns_(std::max(first_ns, last_ns)),
      max_bytes_(max_bytes),
      pipeline_(options),
      target_ns_(last_ns_),
      shown_(std::make_shared<TopData>()) {}

void RecordingFeed::Keep() {
  if (!kept_.empty() && fed_ns_ < kept_.back()->job.t_ns + spacing_ns_) return;
  kept_.push_back(Capture(pipeline_));
  kept_bytes_ += Bytes(*kept_.back());
  while (kept_bytes_ > max_bytes_ && kept_.size() > 2) {
    const uint64_t length = kept_.back()->job.t_ns - kept_.front()->job.t_ns;
    spacing_ns_ = std::max({spacing_ns_ * 2, 2 * length / kept_.size(), uint64_t{1}});
    std::deque<std::shared_ptr<const TopData>> thinned;
    kept_bytes_ = 0;
    for (auto& frame : kept_) {
      const bool last = frame == kept_.back();
      if (!thinned.empty() && !last && frame->job.t_ns < thinned.back()->job.t_ns + spacing_ns_) {
        continue;
      }
      kept_bytes_ += Bytes(*frame);
      thinned.push_back(std::move(frame));
    }
    kept_ = std::move(thinned);
  }
}

bool RecordingFeed::Poll(uint64_t budget_ns) {
  if (settled_) return false;
  const auto start = std::chrono::steady_clock::now();
  const auto budget = std::chrono::nanoseconds(budget_ns);
  while (!ended_ && (!started_ || fed_ns_ < target_ns_)) {
    absl::StatusOr<std::optional<Snapshot>> next = source_.Next();
    if (!next.ok() || !*next) {
      ended_ = true;
      if (!next.ok()) problem_ = StatusText(next.status());
      pipeline_.Finish();
      break;
    }
    pipeline_.Feed(**next);
    interval_ns_ = (*next)->interval_ns;
    fed_ns_ = std::max(fed_ns_, (*next)->t_ns);
    if (!started_) {
      started_ = true;
      first_ns_ = fed_ns_;
    }
    last_ns_ = std::max(last_ns_, fed_ns_);
    Keep();
    if (std::chrono::steady_clock::now() - start > budget) break;
  }
  if (ended_) {
    last_ns_ = fed_ns_;
    target_ns_ = std::min(target_ns_, last_ns_);
  }
  settled_ = ended_ || (started_ && fed_ns_ >= target_ns_);
  shown_ = Capture(pipeline_);
  return true;
}

void RecordingFeed::Seek(uint64_t t_ns) {
  target_ns_ = std::clamp(t_ns, first_ns_, last_ns_);
  if (!started_ || target_ns_ >= fed_ns_) {
    settled_ = ended_ || (started_ && target_ns_ == fed_ns_);
    if (settled_) shown_ = Capture(pipeline_);
    return;
  }
  settled_ = true;
  const auto after = std::upper_bound(
      kept_.begin(), kept_.end(), target_ns_,
      [](uint64_t t, const std::shared_ptr<const TopData>& frame) { return t < frame->job.t_ns; });
  if (!kept_.empty()) shown_ = after == kept_.begin() ? kept_.front() : *(after - 1);
}

TopSource RecordingFeed::Source() const {
  TopSource source;
  source.live = false;
  source.name = name_;
  source.interval_ns = interval_ns_;
  source.first_ns = first_ns_;
  source.last_ns = last_ns_;
  source.problem = problem_;
  if (!settled_ && target_ns_ > first_ns_) {
    source.reading = started_ ? static_cast<double>(fed_ns_ - first_ns_) /
                                    static_cast<double>(target_ns_ - first_ns_)
                              : 0;
  }
  return source;
}

}  // namespace mycroft
