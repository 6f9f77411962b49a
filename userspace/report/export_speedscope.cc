// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "userspace/report/export_formats.h"
#include "userspace/report/export_limit.h"
#include "userspace/report/json_text.h"

namespace mycroft {
namespace {

// Everything that a rank does, as a stack that changes over time. Operations that
// overlap lie on each other in the order in which they began.
struct StackEvent {
  uint64_t at = 0;
  bool begins = false;
  size_t item = 0;
};

struct StackItem {
  uint64_t begin = 0, end = 0;
  int depth_class = 0;  // incidents below operations below waits
  const std::string* name = nullptr;
};

class Frames {
 public:
  size_t Of(const std::string& name) {
    const auto [it, added] = index_.try_emplace(name, names_.size());
    if (added) names_.push_back(name);
    return it->second;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::map<std::string, size_t> index_;
  std::vector<std::string> names_;
};

std::vector<StackItem> ItemsOf(const TimelineRank& rank) {
  std::vector<StackItem> items;
  for (const TimelineTrack& track : rank.tracks) {
    int depth_class = 0;
    switch (track.kind) {
      case TrackKind::kOperations:
        depth_class = 1;
        break;
      case TrackKind::kWaits:
        depth_class = 2;
        break;
      case TrackKind::kIncidents:
        depth_class = 0;
        break;
      case TrackKind::kChannel:
      case TrackKind::kKernels:
        continue;  // they run beside the operation, not in it
    }
    for (const TimelineSlice& slice : track.slices) {
      if (slice.end_ns <= slice.begin_ns) continue;
      items.push_back(
          {slice.begin_ns, slice.end_ns, slice.category == "gap" ? 1 : depth_class, &slice.name});
    }
  }
  return items;
}

// Opens and closes so that frames are properly nested: what ends below others
// closes them too, and they open again.
std::string ProfileOf(const TimelineRank& rank, uint64_t begin_ns, Frames& frames) {
  const std::vector<StackItem> items = ItemsOf(rank);
  std::vector<StackEvent> events;
  for (size_t i = 0; i < items.size(); ++i) {
    events.push_back({items[i].begin, true, i});
    events.push_back({items[i].end, false, i});
  }
  std::sort(events.begin(), events.end(), [&](const StackEvent& a, const StackEvent& b) {
    return std::make_tuple(a.at, a.begins) < std::make_tuple(b.at, b.begins);
  });
  const auto below = [&](size_t a, size_t b) {
    return std::make_tuple(items[a].depth_class, items[a].begin, a) <
           std::make_tuple(items[b].depth_class, items[b].begin, b);
  };
  std::string json;
  const auto write = [&](char type, size_t item, uint64_t at) {
    if (!json.empty()) json += ",";
    json += std::string("\n{\"type\":\"") + type +
            "\",\"frame\":" + std::to_string(frames.Of(*items[item].name)) +
            ",\"at\":" + std::to_string(at - begin_ns) + "}";
  };
  std::vector<size_t> stack;  // open frames, from the bottom
  for (size_t i = 0; i < events.size();) {
    const uint64_t at = events[i].at;
    std::vector<size_t> next = stack;
    for (; i < events.size() && events[i].at == at; ++i) {
      if (events[i].begins) {
        next.insert(std::upper_bound(next.begin(), next.end(), events[i].item, below),
                    events[i].item);
      } else {
        next.erase(std::remove(next.begin(), next.end(), events[i].item), next.end());
      }
    }
    size_t same = 0;
    while (same < stack.size() && same < next.size() && stack[same] == next[same]) ++same;
    for (size_t j = stack.size(); j > same; --j) write('C', stack[j - 1], at);
    for (size_t j = same; j < next.size(); ++j) write('O', next[j], at);
    stack = std::move(next);
  }
  return json;
}

void Write(const Timeline& timeline, const WriteProgress& progress, std::ostream& out) {
  Frames frames;
  out << "{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\","
         "\"exporter\":\"mycroft " MYCROFT_VERSION "\",\"name\":"
      << JsonText(timeline.note.empty() ? "mycroft" : "mycroft: " + timeline.note)
      << ",\"activeProfileIndex\":0,\"profiles\":[";
  const uint64_t length = timeline.end_ns - timeline.begin_ns;
  for (size_t i = 0; i < timeline.ranks.size(); ++i) {
    const TimelineRank& rank = timeline.ranks[i];
    if (i > 0) out << ",";
    out << "\n{\"type\":\"evented\",\"name\":" << JsonText(rank.name)
        << ",\"unit\":\"nanoseconds\",\"startValue\":0,\"endValue\":" << length << ",\"events\":["
        << ProfileOf(rank, timeline.begin_ns, frames) << "]}";
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(timeline.ranks.size()));
  }
  if (timeline.ranks.empty()) {
    // Importers want at least one.
    out << "\n{\"type\":\"evented\",\"name\":\"no rank\",\"unit\":\"nanoseconds\","
           "\"startValue\":0,\"endValue\":0,\"events\":[]}";
  }
  out << "],\"shared\":{\"frames\":[";
  for (size_t i = 0; i < frames.names().size(); ++i) {
    out << (i > 0 ? "," : "") << "\n{\"name\":" << JsonText(frames.names()[i]) << "}";
  }
  out << "]}}\n";
}

}  // namespace

absl::Status WriteSpeedscope(const Timeline& timeline, const ExportOptions& options,
                             std::ostream& out) {
  return WriteWithin(timeline, options, Write, CutTime, out);
}

}  // namespace mycroft
