// SPDX-License-Identifier: Apache-2.0
//
// One HTML file: the template with the timeline as JSON inside. The JSON is
// compact, for 64 ranks with 10,000 operations each are a few million slices:
//   strings  every text once; all other places hold its index
//   schemas  lists of argument names; slices of one sort share one
//   d        of a track: per slice [begin - begin of the one before, length,
//            name, 2 * category + open, schema, one value per name of the schema]
//   flame    [ns, text, text, ...] per leaf
// Times are nanoseconds after begin_ns, which is a text: it may exceed 2^53.
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "userspace/report/export_formats.h"
#include "userspace/report/html/page.h"
#include "userspace/report/json_text.h"
#include "userspace/report/text.h"

namespace mycroft {
namespace {

// What of the timeline goes into the page.
struct Extent {
  uint64_t until_ns = UINT64_MAX;  // slices that begin later are left out
  bool args = true;                // of operations, waits and kernels
  bool flame = true;
  std::string note;
};

class Encoder {
 public:
  Encoder(const Timeline& timeline, const Extent& extent) : timeline_(timeline), extent_(extent) {}

  std::string Encode(const std::function<void(double)>& progress);

 private:
  size_t Text(const std::string& text);
  size_t Schema(const std::vector<std::pair<std::string, std::string>>& args);
  void Track(const TimelineTrack& track, std::string* out);

  const Timeline& timeline_;
  const Extent& extent_;
  std::unordered_map<std::string, size_t> index_;
  std::string strings_;
  std::map<std::vector<size_t>, size_t> schema_index_;
  std::string schemas_;
};

size_t Encoder::Text(const std::string& text) {
  const auto [it, added] = index_.try_emplace(text, index_.size());
  if (added) absl::StrAppend(&strings_, it->second == 0 ? "" : ",", JsonText(text));
  return it->second;
}

size_t Encoder::Schema(const std::vector<std::pair<std::string, std::string>>& args) {
  std::vector<size_t> keys;
  keys.reserve(args.size());
  for (const auto& [key, value] : args) keys.push_back(Text(key));
  const auto [it, added] = schema_index_.try_emplace(std::move(keys), schema_index_.size());
  if (added) {
    absl::StrAppend(&schemas_, it->second == 0 ? "[" : ",[");
    for (size_t i = 0; i < it->first.size(); ++i) {
      absl::StrAppend(&schemas_, i == 0 ? "" : ",", it->first[i]);
    }
    schemas_ += "]";
  }
  return it->second;
}

void Encoder::Track(const TimelineTrack& track, std::string* out) {
  static const std::vector<std::pair<std::string, std::string>> kNone;
  const bool incidents = track.kind == TrackKind::kIncidents;
  std::string data;
  uint64_t count = 0;
  uint64_t before = timeline_.begin_ns;
  for (const TimelineSlice& slice : track.slices) {
    if (!incidents && slice.begin_ns > extent_.until_ns) break;
    const auto& args = extent_.args || incidents ? slice.args : kNone;
    absl::StrAppend(&data, count == 0 ? "" : ",", static_cast<int64_t>(slice.begin_ns - before),
                    ",", slice.end_ns - std::min(slice.begin_ns, slice.end_ns), ",",
                    Text(slice.name), ",", 2 * Text(slice.category) + (slice.open ? 1 : 0), ",",
                    Schema(args));
    for (const auto& [key, value] : args) absl::StrAppend(&data, ",", Text(value));
    before = slice.begin_ns;
    ++count;
  }
  absl::StrAppend(out, "{\"k\":", static_cast<int>(track.kind), ",\"n\":", Text(track.name),
                  ",\"c\":", count, ",\"d\":[", data, "]}");
}

std::string Encoder::Encode(const std::function<void(double)>& progress) {
  std::string incidents;
  Track(timeline_.incidents, &incidents);
  std::string ranks;
  size_t done = 0;
  for (const TimelineRank& rank : timeline_.ranks) {
    absl::StrAppend(&ranks, done == 0 ? "" : ",", "{\"rank\":", rank.job_rank,
                    ",\"host\":", Text(rank.host), ",\"pid\":", rank.pid,
                    ",\"name\":", Text(rank.name), ",\"tracks\":[");
    bool first = true;
    for (const TimelineTrack& track : rank.tracks) {
      if (!first) ranks += ",";
      first = false;
      Track(track, &ranks);
    }
    ranks += "]}";
    ++done;
    if (progress) {
      progress(0.6 +
               0.35 * static_cast<double>(done) / static_cast<double>(timeline_.ranks.size()));
    }
  }
  std::string flame;
  if (extent_.flame) {
    for (const FlameSample& sample : timeline_.flame) {
      absl::StrAppend(&flame, flame.empty() ? "[" : ",[", sample.ns);
      for (const std::string& frame : sample.stack) absl::StrAppend(&flame, ",", Text(frame));
      flame += "]";
    }
  }
  std::string note = timeline_.note;
  if (!extent_.note.empty()) absl::StrAppend(&note, note.empty() ? "" : "; ", extent_.note);
  for (const std::string& clock : timeline_.clocks) {
    absl::StrAppend(&note, note.empty() ? "" : "; ", clock);
  }
  return absl::StrCat(
      "{\"version\":1,\"producer\":", JsonText(absl::StrCat("mycroft ", MYCROFT_VERSION)),
      ",\"begin_ns\":\"", timeline_.begin_ns,
      "\",\"length_ns\":", timeline_.end_ns - std::min(timeline_.begin_ns, timeline_.end_ns),
      ",\"operations\":", timeline_.operations, ",\"note\":", JsonText(note), ",\"strings\":[",
      strings_, "],\"schemas\":[", schemas_, "],\"incidents\":", incidents, ",\"ranks\":[", ranks,
      "],\"flame\":[", flame, "]}");
}

// The most that fits: first without what a click on a slice shows, then cut in
// time, at last the incidents alone.
absl::StatusOr<std::string> Fit(const Timeline& timeline, const ExportOptions& options,
                                uint64_t page_bytes) {
  Extent extent;
  std::string json = Encoder(timeline, extent).Encode(options.progress);
  const auto fits = [&] { return page_bytes + json.size() <= options.max_bytes; };
  if (options.max_bytes == 0 || fits()) return json;
  const std::string limit = absl::StrCat("of the limit of ", BytesText(options.max_bytes));
  extent.args = false;
  extent.note = absl::StrCat("the details of operations are left out because ", limit);
  json = Encoder(timeline, extent).Encode(nullptr);
  const uint64_t length = timeline.end_ns - std::min(timeline.begin_ns, timeline.end_ns);
  double part = 1;
  for (int attempt = 0; attempt < 6 && !fits(); ++attempt) {
    const double room = static_cast<double>(options.max_bytes) - static_cast<double>(page_bytes);
    if (room <= 0) break;
    part *= std::min(0.8, 0.9 * room / static_cast<double>(json.size()));
    const auto kept = static_cast<uint64_t>(part * static_cast<double>(length));
    extent.until_ns = timeline.begin_ns + kept;
    extent.note = absl::StrCat("only the first ", DurationText(kept), " of ", DurationText(length),
                               " are drawn, without details, because ", limit);
    json = Encoder(timeline, extent).Encode(nullptr);
  }
  if (fits()) return json;
  Timeline verdicts;
  verdicts.begin_ns = timeline.begin_ns;
  verdicts.end_ns = timeline.end_ns;
  verdicts.incidents = timeline.incidents;
  verdicts.operations = timeline.operations;
  verdicts.note = timeline.note;
  verdicts.clocks = timeline.clocks;
  extent.note = absl::StrCat("only the incidents are in this page because ", limit);
  json = Encoder(verdicts, extent).Encode(nullptr);
  if (fits()) return json;
  return absl::ResourceExhaustedError(absl::StrCat("an HTML page of this recording needs at least ",
                                                   BytesText(page_bytes + json.size()),
                                                   ", the limit is ", BytesText(options.max_bytes),
                                                   "; raise the limit or take a smaller window"));
}

}  // namespace

absl::Status WriteHtml(const Timeline& timeline, const ExportOptions& options, std::ostream& out) {
  const std::string page = TimelinePage();
  const size_t mark = page.find(kPageDataMark);
  const size_t mark_bytes = sizeof kPageDataMark - 1;
  const absl::StatusOr<std::string> json = Fit(timeline, options, page.size() - mark_bytes);
  if (!json.ok()) return json.status();
  out.write(page.data(), static_cast<std::streamsize>(mark));
  out.write(json->data(), static_cast<std::streamsize>(json->size()));
  out.write(page.data() + mark + mark_bytes,
            static_cast<std::streamsize>(page.size() - mark - mark_bytes));
  out.flush();
  if (!out) return absl::DataLossError("the HTML page could not be written in full: disk full?");
  if (options.progress) options.progress(1);
  return absl::OkStatus();
}

}  // namespace mycroft
