// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "userspace/report/perfetto.pb.h"
#include "userspace/report/testing/random_snapshot.h"
#include "userspace/report/testing/synthetic_job.h"
#include "userspace/report/timeline.h"

namespace mycroft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ExportFormat kAll[] = {ExportFormat::kPerfetto, ExportFormat::kChrome,
                                 ExportFormat::kFolded, ExportFormat::kSpeedscope,
                                 ExportFormat::kHtml};

SyntheticOptions StuckJob() {
  SyntheticOptions options;
  options.duration_s = 6;
  options.stuck_rank = 1;
  options.stuck_at_s = 3;
  return options;
}

std::string Exported(ExportFormat format, const ExportOptions& options = {},
                     const SyntheticOptions& job_options = StuckJob()) {
  SyntheticJob job(job_options);
  std::ostringstream out;
  const absl::Status status = Export(job, job.Incidents(), format, options, out);
  EXPECT_TRUE(status.ok()) << status;
  return out.str();
}

Timeline Built(const ExportOptions& options = {},
               const SyntheticOptions& job_options = StuckJob()) {
  SyntheticJob job(job_options);
  const auto timeline = BuildTimeline(job, job.Incidents(), options);
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return *timeline;
}

class Snapshots : public SnapshotSource {
 public:
  explicit Snapshots(std::vector<Snapshot> list) : list_(std::move(list)) {}
  absl::StatusOr<std::optional<Snapshot>> Next() override {
    if (at_ == list_.size()) return std::optional<Snapshot>();
    return std::optional<Snapshot>(list_[at_++]);
  }

 private:
  std::vector<Snapshot> list_;
  size_t at_ = 0;
};

class FailingSource : public SnapshotSource {
 public:
  absl::StatusOr<std::optional<Snapshot>> Next() override {
    return absl::DataLossError("the disk is gone");
  }
};

void CheckTrack(const TimelineTrack& track, const Timeline& timeline) {
  uint64_t before = 0;
  for (const TimelineSlice& slice : track.slices) {
    EXPECT_LE(slice.begin_ns, slice.end_ns);
    EXPECT_GE(slice.begin_ns, timeline.begin_ns);
    EXPECT_LE(slice.end_ns, timeline.end_ns);
    EXPECT_GE(slice.begin_ns, before) << track.name << ": " << slice.name;
    before = track.kind == TrackKind::kIncidents ? slice.begin_ns : slice.end_ns;
    EXPECT_FALSE(slice.name.empty());
    std::set<std::string> keys;
    for (const auto& [key, value] : slice.args) EXPECT_TRUE(keys.insert(key).second) << key;
  }
}

void CheckAll(const Timeline& timeline) {
  CheckTrack(timeline.incidents, timeline);
  for (const TimelineRank& rank : timeline.ranks) {
    for (const TimelineTrack& track : rank.tracks) CheckTrack(track, timeline);
  }
}

TEST(Timeline, RanksTracksAndSlices) {
  const Timeline timeline = Built();
  CheckAll(timeline);
  ASSERT_EQ(timeline.ranks.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const TimelineRank& rank = timeline.ranks[i];
    EXPECT_EQ(rank.job_rank, i);
    EXPECT_EQ(rank.pid, 4000u + i);
    EXPECT_EQ(rank.name,
              "rank " + std::to_string(i) + " (node-0, pid " + std::to_string(4000 + i) + ")");
    std::vector<std::string> names;
    for (const TimelineTrack& track : rank.tracks) names.push_back(track.name);
    const std::string pair = "tp" + std::to_string(i / 2);
    for (const std::string& name :
         {std::string("world"), pair, std::string("world: sends"), std::string("world: receives"),
          std::string("world: kernels"), pair + ": kernels", std::string("between operations")}) {
      EXPECT_THAT(names, Contains(name));
    }
    EXPECT_THAT(names, Contains(::testing::StartsWith("world: channel 0 send to ")));
    EXPECT_THAT(names, Contains(::testing::StartsWith("world: channel 1 recv from ")));
    EXPECT_EQ(rank.tracks[0].name == "incidents", i == 1);
    // The operation that everyone hangs in.
    for (const TimelineTrack& track : rank.tracks) {
      if (track.name != "world") continue;
      const TimelineSlice& last = track.slices.back();
      EXPECT_EQ(last.name, "AllReduce");
      EXPECT_TRUE(last.open);
      EXPECT_EQ(last.end_ns, timeline.end_ns);
      EXPECT_GT(last.end_ns - last.begin_ns, 2'000'000'000u);
      const std::map<std::string, std::string> args(last.args.begin(), last.args.end());
      EXPECT_EQ(args.at("algorithm"), "ring");
      EXPECT_EQ(args.at("protocol"), "simple");
      EXPECT_EQ(args.at("channels"), "2");
      EXPECT_EQ(args.at("state"), "still in flight");
      EXPECT_THAT(args.at("size"), HasSubstr("MiB"));
      EXPECT_THAT(args.at("steps"), HasSubstr("of 256"));
    }
    for (const TimelineTrack& track : rank.tracks) {
      if (track.name != "world: receives") continue;
      const TimelineSlice& last = track.slices.back();
      const TimelineSlice& longest =
          *std::max_element(track.slices.begin(), track.slices.end(),
                            [](const TimelineSlice& a, const TimelineSlice& b) {
                              return a.end_ns - a.begin_ns < b.end_ns - b.begin_ns;
                            });
      EXPECT_GT(longest.end_ns, timeline.end_ns - 1'000'000'000);
      EXPECT_EQ(longest.name, i == 1 ? "recv: waits for the GPU" : "recv: waits for the sender");
      EXPECT_EQ(last.end_ns, timeline.end_ns);
    }
  }
  ASSERT_EQ(timeline.incidents.slices.size(), 1u);
  const TimelineSlice& incident = timeline.incidents.slices[0];
  EXPECT_EQ(incident.name, "stuck: GPU of rank 1");
  EXPECT_TRUE(incident.open);
  const std::map<std::string, std::string> args(incident.args.begin(), incident.args.end());
  EXPECT_THAT(args.at("culprit"), HasSubstr("confidence 93 %"));
  EXPECT_EQ(args.at("victims"), "ranks 0, 2, 3");
  EXPECT_THAT(args.at("evidence"), HasSubstr("send on channel 0"));
  EXPECT_THAT(args.at("rejected"), HasSubstr("NIC of rank 1"));
  EXPECT_EQ(timeline.note, "");
}

TEST(Timeline, KernelsAreDrawnWhereTheGpuRanThem) {
  SyntheticJob job(SyntheticOptions{});
  ExportOptions options;
  options.clocks = {"clock of node2: \u00b140 us against node1's"};
  const absl::StatusOr<Timeline> timeline = BuildTimeline(job, {}, options);
  ASSERT_TRUE(timeline.ok());
  CheckAll(*timeline);
  ASSERT_EQ(timeline->clocks.size(), 5u);
  EXPECT_EQ(timeline->clocks[0], options.clocks[0]);
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(timeline->clocks[i + 1],
                ::testing::StartsWith("GPU clock of rank " + std::to_string(i) + " (node-0, pid " +
                                      std::to_string(4000 + i) + "): \u00b1"));
  }
  int by_gpu = 0, kernels = 0;
  for (const TimelineRank& rank : timeline->ranks) {
    for (const TimelineTrack& track : rank.tracks) {
      if (track.kind != TrackKind::kKernels) continue;
      for (const TimelineSlice& slice : track.slices) {
        const std::map<std::string, std::string> args(slice.args.begin(), slice.args.end());
        ++kernels;
        by_gpu += args.at("placed by").rfind("the GPU's clock, \u00b1", 0) == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(kernels, 100);
  EXPECT_GT(by_gpu, kernels * 9 / 10);
  // Every format that has room for it says so.
  for (const ExportFormat format :
       {ExportFormat::kPerfetto, ExportFormat::kChrome, ExportFormat::kHtml}) {
    SyntheticJob again(SyntheticOptions{});
    std::ostringstream out;
    ASSERT_TRUE(Export(again, {}, format, options, out).ok());
    EXPECT_THAT(out.str(), HasSubstr("GPU clock of rank 3 (node-0, pid 4003)"));
    EXPECT_THAT(out.str(), HasSubstr("clock of node2"));
  }
}

TEST(Timeline, FlameAddsUpToTheTimeInOperations) {
  const Timeline timeline = Built();
  std::map<std::string, uint64_t> flame, slices;
  for (const FlameSample& sample : timeline.flame) {
    ASSERT_GE(sample.stack.size(), 3u);
    flame[sample.stack[0] + sample.stack[1]] += sample.ns;
  }
  for (const TimelineRank& rank : timeline.ranks) {
    for (const TimelineTrack& track : rank.tracks) {
      for (const TimelineSlice& slice : track.slices) {
        if (slice.category == "op") {
          slices[rank.name + "communication"] += slice.end_ns - slice.begin_ns;
        } else if (slice.category == "gap") {
          slices[rank.name + "compute"] += slice.end_ns - slice.begin_ns;
        }
      }
    }
  }
  ASSERT_EQ(flame.size(), slices.size());
  for (const auto& [name, ns] : slices) {
    EXPECT_NEAR(static_cast<double>(flame[name]), static_cast<double>(ns), ns * 0.001) << name;
  }
}

TEST(Timeline, WindowCutsSlices) {
  ExportOptions options;
  options.since_ns = 5'001'000'000'000;
  options.until_ns = 5'002'500'000'000;
  const Timeline timeline = Built(options);
  CheckAll(timeline);
  EXPECT_EQ(timeline.begin_ns, options.since_ns);
  EXPECT_EQ(timeline.end_ns, options.until_ns);
  EXPECT_EQ(timeline.ranks.size(), 4u);
  EXPECT_TRUE(timeline.incidents.slices.empty());  // it comes later
  EXPECT_GT(timeline.operations, 0u);
  EXPECT_LT(timeline.operations, Built().operations);
  // The stall alone.
  options.since_ns = 5'004'500'000'000;
  options.until_ns = UINT64_MAX;
  const Timeline stall = Built(options);
  CheckAll(stall);
  EXPECT_EQ(stall.operations, 4u);
  ASSERT_EQ(stall.incidents.slices.size(), 1u);
  EXPECT_EQ(stall.incidents.slices[0].begin_ns, options.since_ns);
}

TEST(Timeline, EnqueueOnly) {
  // The lowest level of detail: operations have no end that could be drawn.
  Snapshot snapshot;
  snapshot.host = "h";
  snapshot.t_ns = 2'000'000;
  snapshot.processes.resize(1);
  ProcessSample& process = snapshot.processes[0];
  process.level = MC_LEVEL_OPS;
  OpSample op;
  op.id = 1;
  op.func = MC_FUNC_BROADCAST;
  op.kind = MC_OP_COLL;
  op.start_ns = 1'000'000;
  op.stop_ns = 1'010'000;
  process.ops = {op};
  Snapshots source({snapshot});
  const auto timeline = BuildTimeline(source, {}, {});
  ASSERT_TRUE(timeline.ok());
  ASSERT_EQ(timeline->ranks.size(), 1u);
  EXPECT_EQ(timeline->ranks[0].name, "process (h, pid 0)");
  ASSERT_EQ(timeline->ranks[0].tracks.size(), 1u);
  const TimelineSlice& slice = timeline->ranks[0].tracks[0].slices.at(0);
  EXPECT_EQ(slice.name, "Broadcast");
  EXPECT_EQ(slice.end_ns - slice.begin_ns, 10'000u);
  EXPECT_FALSE(slice.open);
  EXPECT_THAT(timeline->note, HasSubstr("their end was not seen"));
}

TEST(Timeline, KernelWithoutStopHidesNothing) {
  constexpr uint64_t kSecond = 1'000'000'000, kHalf = kSecond / 2;
  Snapshot snapshot;
  snapshot.host = "h";
  snapshot.t_ns = 20 * kSecond;
  snapshot.processes.resize(1);
  for (uint64_t id = 1; id <= 4; ++id) {
    OpSample op;
    op.id = id;
    op.func = MC_FUNC_ALLREDUCE;
    op.kind = MC_OP_COLL;
    op.ordinal = id - 1;
    op.start_ns = id * kSecond;
    op.stop_ns = op.start_ns + 1'000;
    op.proxy_started = op.proxy_done = 2;
    op.proxy_last_ns = op.start_ns + kHalf;
    op.kernel_started = 2;
    op.kernel_stopped = id == 1 ? 1 : 2;
    op.kernel_start_seen_ns = op.start_ns + 1'000;
    op.kernel_stop_seen_ns = op.start_ns + kHalf - 1'000;
    snapshot.processes[0].ops.push_back(op);
  }
  const auto build = [&](uint64_t until_ns) {
    ExportOptions options;
    options.until_ns = until_ns;
    Snapshots source({snapshot});
    return *BuildTimeline(source, {}, options);
  };
  const Timeline timeline = build(UINT64_MAX);
  CheckAll(timeline);
  ASSERT_EQ(timeline.ranks.size(), 1u);
  for (const TrackKind kind : {TrackKind::kOperations, TrackKind::kKernels}) {
    const auto& tracks = timeline.ranks[0].tracks;
    const auto track = std::find_if(tracks.begin(), tracks.end(),
                                    [&](const TimelineTrack& t) { return t.kind == kind; });
    ASSERT_NE(track, tracks.end());
    ASSERT_EQ(track->slices.size(), 4u);
    for (uint64_t id = 1; id <= 4; ++id) {
      const TimelineSlice& slice = track->slices[id - 1];
      EXPECT_GE(slice.begin_ns, id * kSecond);
      EXPECT_LE(slice.end_ns, id * kSecond + kHalf);
      EXPECT_GT(slice.end_ns - slice.begin_ns, kHalf - 3'000);
      EXPECT_FALSE(slice.open);
    }
  }
  // Soon after the transfers the stop may still come.
  snapshot.t_ns = 2 * kSecond;
  snapshot.processes[0].ops.resize(1);
  const Timeline early = build(UINT64_MAX);
  bool open = false;
  for (const TimelineTrack& track : early.ranks.at(0).tracks) {
    if (track.kind == TrackKind::kOperations) open = track.slices.at(0).open;
  }
  EXPECT_TRUE(open);
}

TEST(Timeline, OverlappingIncidentsGetLanes) {
  TimelineTrack track{TrackKind::kIncidents, "incidents", {}};
  for (const auto& [begin, end] :
       {std::pair<uint64_t, uint64_t>{0, 10}, {2, 5}, {5, 9}, {11, 12}}) {
    track.slices.push_back({begin, end, "x", "incident", {}, false});
  }
  const auto lanes = SplitLanes(track);
  ASSERT_EQ(lanes.size(), 2u);
  EXPECT_EQ(lanes[0].slices.size(), 2u);
  EXPECT_EQ(lanes[1].slices.size(), 2u);
}

TEST(Timeline, UnalignedHostsAreSaid) {
  SyntheticOptions options;
  options.ranks = 2;
  options.ranks_per_host = 1;
  options.duration_s = 2;
  SyntheticJob job(options);
  std::vector<Snapshot> snapshots;
  for (auto next = job.Next(); next.ok() && *next; next = job.Next()) {
    Snapshot snapshot = **next;
    if (snapshot.host == "node-1") {  // booted an hour later
      const uint64_t hour = 3'600'000'000'000;
      snapshot.t_ns -= hour;
      for (ProcessSample& process : snapshot.processes) {
        for (OpSample& op : process.ops) {
          for (uint64_t* t :
               {&op.api_ns, &op.start_ns, &op.stop_ns, &op.proxy_first_ns, &op.proxy_progress_ns,
                &op.proxy_last_ns, &op.kernel_start_seen_ns, &op.kernel_stop_seen_ns}) {
            if (*t != 0) *t -= hour;
          }
        }
      }
    }
    snapshots.push_back(snapshot);
  }
  Snapshots source(snapshots);
  const auto timeline = BuildTimeline(source, {}, {});
  ASSERT_TRUE(timeline.ok());
  EXPECT_LT(timeline->end_ns - timeline->begin_ns, 4'000'000'000u);
  EXPECT_THAT(timeline->note, HasSubstr("wall clocks: node-1"));
  EXPECT_EQ(timeline->ranks.size(), 2u);
}

TEST(Export, Formats) {
  EXPECT_EQ(ParseExportFormat("perfetto"), ExportFormat::kPerfetto);
  EXPECT_EQ(ParseExportFormat("chrome"), ExportFormat::kChrome);
  EXPECT_EQ(ParseExportFormat("folded"), ExportFormat::kFolded);
  EXPECT_EQ(ParseExportFormat("speedscope"), ExportFormat::kSpeedscope);
  EXPECT_EQ(ParseExportFormat("html"), ExportFormat::kHtml);
  EXPECT_EQ(ParseExportFormat("Perfetto"), std::nullopt);
}

TEST(Export, PerfettoIsWellFormed) {
  const std::string bytes = Exported(ExportFormat::kPerfetto);
  perfetto::Trace trace;
  ASSERT_TRUE(trace.ParseFromString(bytes));
  EXPECT_EQ(trace.SerializeAsString(), bytes);
  ASSERT_GT(trace.packet_size(), 100);
  EXPECT_EQ(trace.packet(0).clock_snapshot().primary_trace_clock(), 3u);
  EXPECT_EQ(trace.packet(0).trace_packet_defaults().timestamp_clock_id(), 3u);
  EXPECT_EQ(trace.packet(0).sequence_flags(), 1u);
  std::map<uint64_t, perfetto::TrackDescriptor> tracks;
  std::map<uint64_t, std::string> names, categories, keys;
  std::map<uint64_t, int> open;
  std::map<uint64_t, uint64_t> last;
  std::map<std::string, int> slices;
  int instants = 0;
  for (const perfetto::TracePacket& packet : trace.packet()) {
    for (const auto& text : packet.interned_data().event_names()) names[text.iid()] = text.name();
    for (const auto& text : packet.interned_data().event_categories()) {
      categories[text.iid()] = text.name();
    }
    for (const auto& text : packet.interned_data().debug_annotation_names()) {
      keys[text.iid()] = text.name();
    }
    if (packet.has_track_descriptor()) {
      const perfetto::TrackDescriptor& track = packet.track_descriptor();
      EXPECT_TRUE(tracks.emplace(track.uuid(), track).second);
      if (track.has_parent_uuid()) {
        EXPECT_EQ(tracks.count(track.parent_uuid()), 1u);
      }
    }
    if (!packet.has_track_event()) continue;
    const perfetto::TrackEvent& event = packet.track_event();
    EXPECT_EQ(packet.sequence_flags(), 2u);
    ASSERT_EQ(tracks.count(event.track_uuid()), 1u);
    EXPECT_GE(packet.timestamp(), last[event.track_uuid()]);
    last[event.track_uuid()] = packet.timestamp();
    if (event.type() == 1) {
      EXPECT_EQ(open[event.track_uuid()]++, 0);
      ASSERT_EQ(names.count(event.name_iid()), 1u);
      ASSERT_EQ(event.category_iids_size(), 1);
      ++slices[categories.at(event.category_iids(0))];
      for (const auto& annotation : event.debug_annotations()) {
        EXPECT_EQ(keys.count(annotation.name_iid()), 1u);
        EXPECT_FALSE(annotation.string_value().empty());
      }
    } else if (event.type() == 3) {
      EXPECT_EQ(tracks.at(event.track_uuid()).name(), "clocks");
      EXPECT_THAT(names.at(event.name_iid()), ::testing::StartsWith("GPU clock of rank "));
      ++instants;
    } else {
      EXPECT_EQ(event.type(), 2u);
      EXPECT_EQ(--open[event.track_uuid()], 0);
    }
  }
  std::vector<std::string> groups;
  for (const auto& [uuid, track] : tracks) {
    if (!track.has_parent_uuid()) groups.push_back(track.name());
  }
  EXPECT_THAT(groups, ::testing::UnorderedElementsAre(
                          "clocks", "incidents", "rank 0 (node-0, pid 4000)", "rank 1 (node-0, pid 4001)",
                          "rank 2 (node-0, pid 4002)", "rank 3 (node-0, pid 4003)"));
  for (const char* category : {"op", "wait", "kernel", "gap", "incident"}) {
    EXPECT_GT(slices[category], 0) << category;
  }
  EXPECT_EQ(instants, 4);
  EXPECT_EQ(slices["incident"], 2);  // at the top and at the culprit
}

// The compiler of the format as another reader than the one that wrote it.
TEST(Export, PerfettoThroughProtoc) {
  std::string dir = (std::filesystem::temp_directory_path() / "mycroft-export-XXXXXX").string();
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  std::ofstream(dir + "/a.pb", std::ios::binary) << Exported(ExportFormat::kPerfetto);
  const std::string protoc =
      std::string(MYCROFT_PROTOC) + " -I" + MYCROFT_PROTO_DIR + " perfetto.proto ";
  const std::string command = protoc + "--decode=mycroft.perfetto.Trace <" + dir + "/a.pb >" + dir +
                              "/a.txt && " + protoc + "--encode=mycroft.perfetto.Trace <" + dir +
                              "/a.txt >" + dir + "/b.pb && cmp " + dir + "/a.pb " + dir + "/b.pb";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::filesystem::remove_all(dir);
}

TEST(Export, ChromeIsJson) {
  const auto json = nlohmann::json::parse(Exported(ExportFormat::kChrome));
  std::map<std::pair<int, int>, double> end;
  std::map<int, std::string> processes;
  int slices = 0;
  for (const auto& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "M" && event.at("name") == "process_name") {
      processes[event.at("pid")] = event.at("args").at("name");
    }
    if (phase != "X") continue;
    ++slices;
    const std::pair<int, int> thread = {event.at("pid"), event.at("tid")};
    EXPECT_GE(event.at("ts").get<double>(), end[thread] - 0.001);
    end[thread] = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  EXPECT_GT(slices, 500);
  EXPECT_EQ(processes.size(), 5u);
  EXPECT_EQ(processes[2], "rank 1 (node-0, pid 4001)");
}

TEST(Export, SpeedscopeNests) {
  for (const bool overlap : {false, true}) {
    SyntheticOptions job = StuckJob();
    job.overlap = overlap;
    const auto json = nlohmann::json::parse(Exported(ExportFormat::kSpeedscope, {}, job));
    EXPECT_EQ(json.at("$schema"), "https://www.speedscope.app/file-format-schema.json");
    const size_t frames = json.at("shared").at("frames").size();
    ASSERT_EQ(json.at("profiles").size(), 4u);
    for (const auto& profile : json.at("profiles")) {
      EXPECT_EQ(profile.at("type"), "evented");
      EXPECT_EQ(profile.at("unit"), "nanoseconds");
      std::vector<size_t> stack;
      uint64_t at = 0;
      for (const auto& event : profile.at("events")) {
        EXPECT_GE(event.at("at").get<uint64_t>(), at);
        at = event.at("at");
        EXPECT_LT(event.at("frame").get<size_t>(), frames);
        if (event.at("type") == "O") {
          stack.push_back(event.at("frame"));
        } else {
          ASSERT_FALSE(stack.empty());
          EXPECT_EQ(stack.back(), event.at("frame"));
          stack.pop_back();
        }
      }
      EXPECT_TRUE(stack.empty());
      EXPECT_LE(at, profile.at("endValue").get<uint64_t>());
      EXPECT_GT(profile.at("events").size(), 100u);
    }
  }
}

TEST(Export, FoldedLines) {
  std::istringstream lines(Exported(ExportFormat::kFolded));
  double total = 0;
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    total += std::stod(line.substr(space + 1));
    const auto depth = std::count(line.begin(), line.end(), ';');
    EXPECT_TRUE(depth == 2 || depth == 4) << line;
    EXPECT_EQ(line.substr(0, 5), "rank ");
  }
  EXPECT_GT(count, 50);
  EXPECT_GT(total, 4 * 5e6);  // four ranks, microseconds
  EXPECT_LT(total, 4 * 7e6);
}

TEST(Export, HtmlIsOnePage) {
  const std::string page = Exported(ExportFormat::kHtml);
  EXPECT_THAT(page, ::testing::StartsWith("<!"));
  for (const char* outside : {"src=\"http", "href=\"http", "url(http", "@import", "fetch("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page, HasSubstr("stuck: GPU of rank 1"));
}

TEST(Export, MaxBytes) {
  for (const ExportFormat format : kAll) {
    const uint64_t whole = Exported(format).size();
    ExportOptions options;
    options.max_bytes = whole - whole / 3;
    const std::string part = Exported(format, options);
    EXPECT_LE(part.size(), options.max_bytes) << static_cast<int>(format);
    EXPECT_GT(part.size(), whole / 10) << static_cast<int>(format);
    if (format == ExportFormat::kHtml) {
      EXPECT_THAT(part, HasSubstr("because of the limit"));
    } else {
      EXPECT_THAT(part, HasSubstr("cut at max_bytes"));
    }
    // Still a file of its format.
    if (format == ExportFormat::kPerfetto) {
      perfetto::Trace trace;
      EXPECT_TRUE(trace.ParseFromString(part));
    }
    if (format == ExportFormat::kChrome || format == ExportFormat::kSpeedscope) {
      EXPECT_TRUE(nlohmann::json::accept(part));
    }
    options.max_bytes = whole;
    EXPECT_EQ(Exported(format, options).size(), whole);
    options.max_bytes = 10;
    SyntheticJob job(StuckJob());
    std::ostringstream out;
    EXPECT_TRUE(absl::IsResourceExhausted(Export(job, job.Incidents(), format, options, out)))
        << static_cast<int>(format);
  }
}

TEST(Export, Progress) {
  ExportOptions options;
  options.first_ns = 5'000'000'000'000;
  options.last_ns = 5'006'000'000'000;
  for (const ExportFormat format : kAll) {
    std::vector<double> seen;
    options.progress = [&](double part) { seen.push_back(part); };
    (void)Exported(format, options);
    ASSERT_GT(seen.size(), 10u);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end())) << static_cast<int>(format);
    EXPECT_GE(seen.front(), 0);
    EXPECT_EQ(seen.back(), 1);
  }
}

TEST(Export, NothingToDraw) {
  for (const ExportFormat format : kAll) {
    Snapshots source({});
    std::ostringstream out;
    EXPECT_TRUE(Export(source, {}, format, {}, out).ok()) << static_cast<int>(format);
    if (format == ExportFormat::kChrome || format == ExportFormat::kSpeedscope) {
      EXPECT_TRUE(nlohmann::json::accept(out.str())) << out.str();
    }
  }
}

TEST(Export, Errors) {
  for (const ExportFormat format : kAll) {
    FailingSource failing;
    std::ostringstream out;
    EXPECT_EQ(Export(failing, {}, format, {}, out).message(), "the disk is gone");
    SyntheticJob job(StuckJob());
    std::ofstream full("/dev/full");
    EXPECT_TRUE(absl::IsDataLoss(Export(job, {}, format, {}, full))) << static_cast<int>(format);
  }
}

TEST(Export, HostileNames) {
  const std::string evil = "</script><script>alert(1)</script>\x1b[31m\xff\n\"\\;x";
  SyntheticJob job(StuckJob());
  std::vector<Snapshot> snapshots;
  for (auto next = job.Next(); next.ok() && *next; next = job.Next()) {
    Snapshot snapshot = **next;
    snapshot.host = evil;
    for (ProcessSample& process : snapshot.processes) {
      for (CommSample& comm : process.comms) comm.name += evil;
    }
    snapshots.push_back(snapshot);
  }
  std::vector<Incident> incidents = job.Incidents();
  incidents[0].summary = incidents[0].culprits[0].host = incidents[0].evidence[0] = evil;
  for (const ExportFormat format : kAll) {
    Snapshots source(snapshots);
    std::ostringstream out;
    ASSERT_TRUE(Export(source, incidents, format, {}, out).ok());
    EXPECT_THAT(out.str(), Not(HasSubstr("\x1b[31m")));
    if (format == ExportFormat::kChrome || format == ExportFormat::kSpeedscope) {
      EXPECT_TRUE(nlohmann::json::accept(out.str()));
    }
    if (format == ExportFormat::kHtml) {
      EXPECT_THAT(out.str(), Not(HasSubstr("alert(1)</script>")));
    }
    if (format == ExportFormat::kFolded) {
      std::istringstream lines(out.str());
      for (std::string line; std::getline(lines, line);) {
        EXPECT_THAT(line, ::testing::MatchesRegex(".* [0-9]+")) << line;
      }
    }
  }
}

TEST(Export, AnyValues) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    RandomSnapshot random(seed);
    std::vector<Snapshot> snapshots;
    for (int i = 0; i < 40; ++i) snapshots.push_back(random.Next());
    std::vector<Incident> incidents(2);
    incidents[1].onset_ns = UINT64_MAX;
    incidents[1].cleared_ns = 0;
    incidents[1].culprits.resize(1);
    Snapshots source(snapshots);
    const auto timeline = BuildTimeline(source, incidents, {});
    ASSERT_TRUE(timeline.ok());
    CheckAll(*timeline);
    for (const ExportFormat format : kAll) {
      Snapshots again(snapshots);
      std::ostringstream out;
      ExportOptions options;
      if (seed % 2 == 0) options.since_ns = seed * 1'000'000'000'000'000;
      if (seed % 3 == 0) options.until_ns = seed * 100'000'000'000'000'000;
      ASSERT_TRUE(Export(again, incidents, format, options, out).ok());
      if (format == ExportFormat::kPerfetto) {
        perfetto::Trace trace;
        EXPECT_TRUE(trace.ParseFromString(out.str()));
      }
      if (format == ExportFormat::kChrome || format == ExportFormat::kSpeedscope) {
        EXPECT_TRUE(nlohmann::json::accept(out.str()));
      }
    }
  }
}

}  // namespace
}  // namespace mycroft
