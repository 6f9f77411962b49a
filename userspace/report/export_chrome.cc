// SPDX-License-Identifier: Apache-2.0
#include <cinttypes>
#include <cstdio>

#include "userspace/report/export_formats.h"
#include "userspace/report/export_limit.h"
#include "userspace/report/json_text.h"

namespace mycroft {
namespace {

// Microseconds with the nanoseconds behind the point.
std::string Microseconds(uint64_t ns) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%" PRIu64 ".%03u", ns / 1000,
                static_cast<unsigned>(ns % 1000));
  return buffer;
}

class ChromeWriter {
 public:
  explicit ChromeWriter(std::ostream& out) : out_(out) {
    out_ << "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"producer\":\"mycroft " MYCROFT_VERSION
            "\",\"clock\":\"CLOCK_MONOTONIC\"},\"traceEvents\":[";
  }

  void Meta(const char* name, int process, int thread, const std::string& args) {
    Next() << "{\"ph\":\"M\",\"name\":\"" << name << "\",\"pid\":" << process
           << ",\"tid\":" << thread << ",\"args\":{" << args << "}}";
  }

  void Slices(const TimelineTrack& track, int process, int thread) {
    for (const TimelineSlice& slice : track.slices) {
      if (!out_) return;
      Next() << "{\"ph\":\"X\",\"pid\":" << process << ",\"tid\":" << thread
             << ",\"ts\":" << Microseconds(slice.begin_ns)
             << ",\"dur\":" << Microseconds(slice.end_ns - slice.begin_ns)
             << ",\"cat\":" << JsonText(slice.category) << ",\"name\":" << JsonText(slice.name)
             << ",\"args\":{";
      bool first = true;
      for (const auto& [key, value] : slice.args) {
        out_ << (first ? "" : ",") << JsonText(key) << ":" << JsonText(value);
        first = false;
      }
      if (slice.open) out_ << (first ? "" : ",") << "\"open\":true";
      out_ << "}}";
    }
  }

  void Note(const std::string& text, uint64_t t_ns) {
    Next() << "{\"ph\":\"i\",\"s\":\"g\",\"pid\":0,\"tid\":0,\"ts\":" << Microseconds(t_ns)
           << ",\"name\":" << JsonText(text) << "}";
  }

  void Finish() { out_ << "\n]}\n"; }

 private:
  std::ostream& Next() {
    out_ << (first_ ? "\n" : ",\n");
    first_ = false;
    return out_;
  }
  std::ostream& out_;
  bool first_ = true;
};

void Write(const Timeline& timeline, const WriteProgress& progress, std::ostream& out) {
  ChromeWriter writer(out);
  const auto group = [&](const std::string& name, int process) {
    writer.Meta("process_name", process, 0, "\"name\":" + JsonText(name));
    writer.Meta("process_sort_index", process, 0, "\"sort_index\":" + std::to_string(process));
  };
  const auto tracks = [&](const TimelineTrack& track, int process, int* thread) {
    for (const TimelineTrack& lane : SplitLanes(track)) {
      writer.Meta("thread_name", process, *thread, "\"name\":" + JsonText(lane.name));
      writer.Meta("thread_sort_index", process, *thread,
                  "\"sort_index\":" + std::to_string(*thread));
      writer.Slices(lane, process, (*thread)++);
    }
  };
  group("incidents", 0);
  int thread = 0;
  tracks(timeline.incidents, 0, &thread);
  for (size_t i = 0; i < timeline.ranks.size(); ++i) {
    const int process = static_cast<int>(i) + 1;
    group(timeline.ranks[i].name, process);
    thread = 0;
    for (const TimelineTrack& track : timeline.ranks[i].tracks) tracks(track, process, &thread);
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(timeline.ranks.size()));
  }
  for (const std::string& clock : timeline.clocks) writer.Note(clock, timeline.begin_ns);
  if (!timeline.note.empty()) writer.Note(timeline.note, timeline.end_ns);
  writer.Finish();
}

}  // namespace

absl::Status WriteChrome(const Timeline& timeline, const ExportOptions& options,
                         std::ostream& out) {
  return WriteWithin(timeline, options, Write, CutTime, out);
}

}  // namespace mycroft
