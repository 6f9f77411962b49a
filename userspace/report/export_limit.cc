// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/export_limit.h"

#include <algorithm>
#include <streambuf>
#include <string>

#include "userspace/report/text.h"

namespace mycroft {
namespace {

// Counts what would be written.
class CountingBuffer : public std::streambuf {
 public:
  uint64_t count() const { return count_; }

 protected:
  int overflow(int c) override {
    if (c != traits_type::eof()) ++count_;
    return traits_type::not_eof(c);
  }
  std::streamsize xsputn(const char*, std::streamsize size) override {
    count_ += static_cast<uint64_t>(size);
    return size;
  }

 private:
  uint64_t count_ = 0;
};

uint64_t SizeOf(const Timeline& timeline, const TimelineWriter& writer) {
  CountingBuffer buffer;
  std::ostream out(&buffer);
  writer(timeline, {}, out);
  return buffer.count();
}

void CutTrack(TimelineTrack& track, uint64_t end_ns) {
  while (!track.slices.empty() && track.slices.back().begin_ns >= end_ns) track.slices.pop_back();
  for (TimelineSlice& slice : track.slices) {
    if (slice.end_ns <= end_ns) continue;
    slice.end_ns = end_ns;
    slice.open = true;
  }
}

absl::Status WriteAll(const Timeline& timeline, const ExportOptions& options,
                      const TimelineWriter& writer, std::ostream& out) {
  const auto progress = [&](double part) {
    if (options.progress) options.progress(0.6 + 0.4 * part);
  };
  writer(timeline, progress, out);
  out.flush();
  if (!out) return absl::DataLossError("the export could not be written in full: disk full?");
  progress(1);
  return absl::OkStatus();
}

}  // namespace

void CutTime(Timeline& timeline, double part) {
  const auto length = static_cast<double>(timeline.end_ns - timeline.begin_ns);
  timeline.end_ns = timeline.begin_ns + static_cast<uint64_t>(length * std::min(part, 0.99));
  for (TimelineRank& rank : timeline.ranks) {
    for (TimelineTrack& track : rank.tracks) CutTrack(track, timeline.end_ns);
    rank.tracks.erase(std::remove_if(rank.tracks.begin(), rank.tracks.end(),
                                     [](const TimelineTrack& t) { return t.slices.empty(); }),
                      rank.tracks.end());
  }
  CutTrack(timeline.incidents, timeline.end_ns);
}

absl::Status WriteWithin(const Timeline& timeline, const ExportOptions& options,
                         const TimelineWriter& writer, const TimelineCutter& cutter,
                         std::ostream& out) {
  if (options.max_bytes == 0) return WriteAll(timeline, options, writer, out);
  uint64_t size = SizeOf(timeline, writer);
  if (size <= options.max_bytes) return WriteAll(timeline, options, writer, out);
  Timeline part = timeline;
  part.note = "cut at max_bytes (" + BytesText(options.max_bytes) + "): the rest was left out" +
              (timeline.note.empty() ? "" : "; " + timeline.note);
  // Sizes do not grow evenly with time: come closer from above.
  for (int attempt = 0; size > options.max_bytes && attempt < 60; ++attempt) {
    const double ratio = static_cast<double>(options.max_bytes) / static_cast<double>(size);
    cutter(part, std::min(0.95, ratio));
    size = SizeOf(part, writer);
  }
  if (size > options.max_bytes) {
    return absl::ResourceExhaustedError(
        "an export of this recording in this format needs at least " + BytesText(size) +
        ", the limit is " + BytesText(options.max_bytes) + "; raise the limit");
  }
  return WriteAll(part, options, writer, out);
}

}  // namespace mycroft
