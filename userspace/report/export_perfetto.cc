// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "userspace/report/export_formats.h"
#include "userspace/report/export_limit.h"
#include "userspace/report/perfetto.pb.h"

namespace mycroft {
namespace {

constexpr uint32_t kMonotonic = 3, kBoottime = 6;
constexpr uint32_t kExplicitOrder = 3;
constexpr uint32_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3;
constexpr uint32_t kStateCleared = 1, kNeedsState = 2;
constexpr uint32_t kSequence = 1;

class PerfettoWriter {
 public:
  explicit PerfettoWriter(std::ostream& out) : out_(out) {}

  void Start(uint64_t begin_ns) {
    // One clock for everything. Readers count in CLOCK_BOOTTIME unless told so.
    perfetto::TracePacket packet;
    perfetto::ClockSnapshot* clocks = packet.mutable_clock_snapshot();
    for (const uint32_t id : {kMonotonic, kBoottime}) {
      perfetto::ClockSnapshot::Clock* clock = clocks->add_clocks();
      clock->set_clock_id(id);
      clock->set_timestamp(begin_ns);
    }
    clocks->set_primary_trace_clock(kMonotonic);
    packet.set_trusted_packet_sequence_id(kSequence);
    packet.set_sequence_flags(kStateCleared);
    packet.mutable_trace_packet_defaults()->set_timestamp_clock_id(kMonotonic);
    Write(packet);
  }

  uint64_t Track(const std::string& name, uint64_t parent, int order) {
    perfetto::TracePacket packet;
    packet.set_trusted_packet_sequence_id(kSequence);
    perfetto::TrackDescriptor* track = packet.mutable_track_descriptor();
    track->set_uuid(++last_uuid_);
    if (parent != 0) track->set_parent_uuid(parent);
    track->set_name(name);
    track->set_child_ordering(kExplicitOrder);
    track->set_sibling_order_rank(order);
    Write(packet);
    return last_uuid_;
  }

  void Slices(const TimelineTrack& track, uint64_t uuid, uint64_t end_ns) {
    for (const TimelineSlice& slice : track.slices) {
      if (!out_) return;
      perfetto::TracePacket packet;
      perfetto::TrackEvent* event = Event(packet, slice.begin_ns, uuid, kSliceBegin);
      event->set_name_iid(
          Intern(names_, slice.name, packet.mutable_interned_data()->mutable_event_names()));
      event->add_category_iids(Intern(categories_, slice.category,
                                      packet.mutable_interned_data()->mutable_event_categories()));
      for (const auto& [key, value] : slice.args) {
        perfetto::DebugAnnotation* annotation = event->add_debug_annotations();
        annotation->set_name_iid(
            Intern(keys_, key, packet.mutable_interned_data()->mutable_debug_annotation_names()));
        annotation->set_string_value(value);
      }
      Write(packet);
      // Without an end it is shown as unfinished.
      if (slice.open && slice.end_ns >= end_ns && &slice == &track.slices.back()) continue;
      perfetto::TracePacket end;
      Event(end, slice.end_ns, uuid, kSliceEnd);
      Write(end);
    }
  }

  void Note(const std::string& text, uint64_t t_ns, uint64_t uuid) {
    perfetto::TracePacket packet;
    perfetto::TrackEvent* event = Event(packet, t_ns, uuid, kInstant);
    event->set_name_iid(
        Intern(names_, text, packet.mutable_interned_data()->mutable_event_names()));
    Write(packet);
  }

 private:
  using Strings = google::protobuf::RepeatedPtrField<perfetto::InternedString>;

  static perfetto::TrackEvent* Event(perfetto::TracePacket& packet, uint64_t t_ns, uint64_t uuid,
                                     uint32_t type) {
    packet.set_timestamp(t_ns);
    packet.set_trusted_packet_sequence_id(kSequence);
    packet.set_sequence_flags(kNeedsState);
    perfetto::TrackEvent* event = packet.mutable_track_event();
    event->set_type(type);
    event->set_track_uuid(uuid);
    return event;
  }

  static uint64_t Intern(std::map<std::string, uint64_t>& known, const std::string& text,
                         Strings* added) {
    const auto [it, fresh] = known.try_emplace(text, known.size() + 1);
    if (fresh) {
      perfetto::InternedString* entry = added->Add();
      entry->set_iid(it->second);
      entry->set_name(text);
    }
    return it->second;
  }

  void Write(perfetto::TracePacket& packet) {
    if (packet.has_interned_data() && packet.interned_data().ByteSizeLong() == 0) {
      packet.clear_interned_data();
    }
    packet.SerializeToString(&buffer_);
    // Trace { repeated TracePacket packet = 1; }: tag, length, bytes.
    char head[11] = {0x0a};
    size_t size = 1;
    uint64_t left = buffer_.size();
    while (left >= 0x80) {
      head[size++] = static_cast<char>(left | 0x80);
      left >>= 7;
    }
    head[size++] = static_cast<char>(left);
    out_.write(head, static_cast<std::streamsize>(size));
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  }

  std::ostream& out_;
  std::string buffer_;
  uint64_t last_uuid_ = 0;
  std::map<std::string, uint64_t> names_, categories_, keys_;
};

void Write(const Timeline& timeline, const WriteProgress& progress, std::ostream& out) {
  PerfettoWriter writer(out);
  writer.Start(timeline.begin_ns);
  int order = 0;
  const auto incidents = SplitLanes(timeline.incidents);
  const uint64_t top = writer.Track("incidents", 0, order++);
  for (size_t i = 0; i < incidents.size(); ++i) {
    writer.Slices(incidents[i], i == 0 ? top : writer.Track("incidents", 0, order++),
                  timeline.end_ns);
  }
  size_t done = 0;
  for (const TimelineRank& rank : timeline.ranks) {
    const uint64_t group = writer.Track(rank.name, 0, order++);
    int place = 0;
    for (const TimelineTrack& track : rank.tracks) {
      for (const TimelineTrack& lane : SplitLanes(track)) {
        writer.Slices(lane, writer.Track(lane.name, group, place++), timeline.end_ns);
      }
    }
    if (progress)
      progress(static_cast<double>(++done) / static_cast<double>(timeline.ranks.size()));
  }
  if (!timeline.clocks.empty()) {
    const uint64_t clocks = writer.Track("clocks", 0, order++);
    for (const std::string& clock : timeline.clocks) {
      writer.Note(clock, timeline.begin_ns, clocks);
    }
  }
  if (!timeline.note.empty()) writer.Note(timeline.note, timeline.end_ns, top);
}

}  // namespace

absl::Status WritePerfetto(const Timeline& timeline, const ExportOptions& options,
                           std::ostream& out) {
  return WriteWithin(timeline, options, Write, CutTime, out);
}

}  // namespace mycroft
