// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/timeline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "userspace/align/gpu_aligner.h"
#include "userspace/model/view.h"
#include "userspace/report/clocks.h"
#include "userspace/report/text.h"
#include "userspace/report/verdict.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kFlowRepeat = kSecond;        // see FlowSample
constexpr uint64_t kKernelStopNs = 2 * kSecond;  // no stop of a kernel later than that
constexpr size_t kMaxLanes = 8;
constexpr size_t kClockSegments = 2048;  // of a GPU's clock: more than a day
// A kernel is placed by its GPU's clock when that is known better than this, or than a
// tenth of its length. What the host saw is late by an unknown time.
constexpr uint64_t kUsefulErrorNs = 100'000;

const char* WaitName(int wait) {
  return ToString(static_cast<mc_flow_state>(MC_FLOW_SEND_GPU + wait));
}

struct CommKey {
  uint32_t index = 0, generation = 0;
  friend auto operator<=>(const CommKey&, const CommKey&) = default;
};

// A flow at one instant, reduced to what is drawn.
struct FlowPoint {
  uint64_t t_ns = 0;
  uint64_t state_ns = 0;
  uint64_t op_id = 0;
  mc_flow_state state = MC_FLOW_IDLE;
  uint16_t open_ops = 0;
  uint32_t done = 0, total = 0;
};

struct Flow {
  CommKey comm;
  uint8_t channel = 0;
  mc_direction direction = MC_SEND;
  int32_t peer = 0;
  std::vector<FlowPoint> points;
  std::array<uint64_t, 3> wait_before{}, wait_after{};  // lifetime, at both ends of the window
  bool known = false;
};

struct Process {
  std::string host;
  ProcessKey key;
  std::string name;
  uint32_t level = 0;
  uint64_t interval_ns = 0;
  uint64_t last_ns = 0;
  int64_t shift = 0;  // of the host's clock to the common one
  bool exited = false;
  std::map<CommKey, CommSample> comms;
  std::unordered_map<uint64_t, OpSample> ops;
  std::map<std::pair<uint32_t, CommKey>, Flow> flows;  // a line may serve several
};

// When an operation was over on this rank, as far as it was seen.
struct End {
  uint64_t ns = 0;
  bool seen = false;
};

End EndOf(const OpSample& op) {
  End end;
  if (op.proxy_started == 0 && op.kernel_started == 0) return end;
  end.seen = op.proxy_done == op.proxy_started && op.kernel_stopped == op.kernel_started;
  end.ns = std::max(op.proxy_last_ns, op.kernel_stop_seen_ns);
  return end;
}

// A kernel event may never stop: some time after the transfers are done, they alone
// say when the operation was over, as in the model.
End EndAsOf(const OpSample& op, uint64_t now_ns) {
  End end = EndOf(op);
  const bool transfers_done =
      op.stop_ns != 0 && op.proxy_started != 0 && op.proxy_done == op.proxy_started;
  if (!end.seen && transfers_done && now_ns > end.ns && now_ns - end.ns > kKernelStopNs) {
    end.seen = true;
  }
  return end;
}

// part (0..1) of a length, never more than all of it.
uint64_t PartOf(uint64_t length, double part) {
  const double value = static_cast<double>(length) * part;
  return value >= static_cast<double>(length) ? length : static_cast<uint64_t>(value);
}

std::string CommName(const CommSample& comm) {
  return comm.name.empty() ? HexText(comm.comm_id) : PrintableText(comm.name);
}

// Operation with its place on the time axis.
struct PlacedOp {
  const OpSample* op = nullptr;
  uint64_t begin_ns = 0, end_ns = 0;
  bool open = false;
  bool end_seen = false;
};

// How the time of an operation is shared: by wait and, where known, by channel.
struct Share {
  int wait = 0;
  int channel = -1;
  double weight = 0;
};

class Builder {
 public:
  Builder(const std::vector<Incident>& incidents, const ExportOptions& options)
      : incidents_(incidents), options_(options) {}

  void Add(const Snapshot& snapshot);
  Timeline Finish();

 private:
  uint64_t ToCommonClock(const Snapshot& snapshot, int64_t* shift);
  void AddProcess(const Snapshot& snapshot, const ProcessSample& sample, uint64_t t_ns,
                  int64_t shift);
  void AddFlow(Process& process, const FlowSample& sample, uint64_t t_ns, int64_t shift);
  TimelineRank BuildRank(const Process& process);
  void BuildComm(const Process& process, const CommSample& comm,
                 const std::vector<PlacedOp>& placed, TimelineRank* rank);
  void BuildFlows(const Process& process, TimelineRank* rank);
  void BuildGaps(std::vector<PlacedOp> all, TimelineRank* rank);
  std::vector<Share> SharesOf(const Process& process, const CommSample& comm, const PlacedOp& op);
  std::vector<std::pair<std::string, std::string>> ArgsOf(const OpSample& op,
                                                          const PlacedOp& placed);
  TimelineSlice SliceOf(const Incident& incident);
  void PlaceKernel(const Process& process, const OpSample& op, TimelineSlice* kernel);
  bool InWindow(uint64_t begin_ns, uint64_t end_ns) const {
    return begin_ns < window_end_ && end_ns >= window_begin_;
  }
  void Flame(std::vector<std::string> stack, uint64_t ns) {
    if (ns > 0) flame_[std::move(stack)] += ns;
  }

  const std::vector<Incident>& incidents_;
  const ExportOptions& options_;
  GpuAligner gpus_{kClockSegments};
  uint64_t first_ns_ = UINT64_MAX, last_ns_ = 0;
  uint64_t window_begin_ = 0, window_end_ = 0;
  std::optional<int64_t> first_offset_;  // wall - monotonic of the first host
  std::map<std::string, int64_t> shifts_;
  std::vector<std::string> by_wall_clock_;
  std::map<std::pair<std::string, ProcessKey>, Process> processes_;
  std::map<std::vector<std::string>, uint64_t> flame_;
  uint64_t operations_ = 0;
  uint64_t end_not_seen_ = 0;
};

// Snapshots of several hosts are expected on one clock. Where they obviously are
// not, the wall clocks are what is left; the note of the timeline says so.
uint64_t Builder::ToCommonClock(const Snapshot& snapshot, int64_t* shift) {
  const auto offset = static_cast<int64_t>(snapshot.wall_ns - snapshot.t_ns);
  if (!first_offset_) first_offset_ = offset;
  const auto [it, added] = shifts_.try_emplace(snapshot.host + '\0' + snapshot.host_id, 0);
  if (added) {
    const auto apart =
        static_cast<int64_t>(static_cast<uint64_t>(offset) - static_cast<uint64_t>(*first_offset_));
    if (apart > static_cast<int64_t>(kSecond) || apart < -static_cast<int64_t>(kSecond)) {
      it->second = apart;
      by_wall_clock_.push_back(PrintableText(snapshot.host));
    }
  }
  *shift = it->second;
  return snapshot.t_ns + static_cast<uint64_t>(it->second);
}

void Builder::Add(const Snapshot& snapshot) {
  int64_t shift = 0;
  const uint64_t t_ns = ToCommonClock(snapshot, &shift);
  first_ns_ = std::min(first_ns_, t_ns);
  last_ns_ = std::max(last_ns_, t_ns);
  gpus_.Observe(snapshot);
  for (const ProcessSample& sample : snapshot.processes) {
    AddProcess(snapshot, sample, t_ns, shift);
  }
}

void Builder::AddProcess(const Snapshot& snapshot, const ProcessSample& sample, uint64_t t_ns,
                         int64_t shift) {
  Process& process = processes_[{snapshot.host, sample.key}];
  process.host = snapshot.host;
  process.key = sample.key;
  if (!sample.name.empty()) process.name = sample.name;
  process.level = sample.level;
  process.interval_ns = snapshot.interval_ns;
  process.shift = shift;
  // What happens after the window is not looked at.
  if (t_ns <= options_.until_ns) {
    process.last_ns = std::max(process.last_ns, t_ns);
    process.exited = sample.status == ProcessStatus::kExited;
  }
  for (const CommSample& comm : sample.comms) process.comms[{comm.index, comm.generation}] = comm;
  for (const OpSample& original : sample.ops) {
    OpSample op = original;
    for (uint64_t* time :
         {&op.api_ns, &op.start_ns, &op.stop_ns, &op.proxy_first_ns, &op.proxy_progress_ns,
          &op.proxy_last_ns, &op.kernel_start_seen_ns, &op.kernel_stop_seen_ns}) {
      if (*time != 0) *time += static_cast<uint64_t>(shift);
    }
    const End end = EndOf(op);
    if (op.start_ns > options_.until_ns || (end.seen && end.ns < options_.since_ns)) {
      process.ops.erase(op.id);
      continue;
    }
    process.ops[op.id] = op;
  }
  for (const FlowSample& flow : sample.flows) AddFlow(process, flow, t_ns, shift);
}

void Builder::AddFlow(Process& process, const FlowSample& sample, uint64_t t_ns, int64_t shift) {
  const CommKey comm = {sample.comm, sample.comm_generation};
  Flow& flow = process.flows[{sample.index, comm}];
  flow.comm = comm;
  flow.channel = sample.channel;
  flow.direction = sample.direction;
  flow.peer = sample.peer;
  if (t_ns < options_.since_ns || !flow.known) flow.wait_before = sample.wait_ns;
  if (t_ns <= options_.until_ns || !flow.known) flow.wait_after = sample.wait_ns;
  flow.known = true;
  FlowPoint point;
  point.t_ns = t_ns;
  point.state_ns = sample.state_ns == 0 ? t_ns : sample.state_ns + static_cast<uint64_t>(shift);
  point.state_ns = std::min(point.state_ns, t_ns);
  point.op_id = sample.op_id;
  point.state = sample.state;
  point.open_ops = sample.open_ops;
  point.done = sample.done;
  point.total = sample.total;
  // Before the window only the last point matters, after it only the first.
  if (!flow.points.empty() && flow.points.back().t_ns > options_.until_ns) return;
  if (t_ns < options_.since_ns) flow.points.clear();
  flow.points.push_back(point);
}

std::vector<std::pair<std::string, std::string>> Builder::ArgsOf(const OpSample& op,
                                                                 const PlacedOp& placed) {
  std::vector<std::pair<std::string, std::string>> args;
  const auto add = [&](const char* key, std::string value) {
    args.emplace_back(key, std::move(value));
  };
  add("number", std::to_string(op.ordinal));
  if (const uint32_t bytes = DatatypeBytes(op.datatype); bytes != 0) {
    add("size", BytesText(op.count * bytes) + ", " + std::to_string(op.count) + " x " +
                    ToString(op.datatype));
  } else {
    add("elements", std::to_string(op.count));
  }
  if (op.kind == MC_OP_SEND || op.kind == MC_OP_RECV) {
    add("peer", std::to_string(op.root_or_peer));
  } else if (op.func == MC_FUNC_BROADCAST || op.func == MC_FUNC_REDUCE) {
    add("root", std::to_string(op.root_or_peer));
  }
  static constexpr const char* kAlgos[] = {
      "", "ring", "tree", "collnet direct", "collnet chain", "nvls", "nvls tree", "pat"};
  static constexpr const char* kProtos[] = {"", "LL", "LL128", "simple"};
  if (op.algo != MC_ALGO_UNKNOWN && op.algo <= MC_ALGO_PAT) add("algorithm", kAlgos[op.algo]);
  if (op.proto != MC_PROTO_UNKNOWN && op.proto <= MC_PROTO_SIMPLE) {
    add("protocol", kProtos[op.proto]);
  }
  add("channels", std::to_string(op.channels));
  if ((op.flags & MC_OP_GRAPH) != 0) add("launched by", "CUDA graph");
  if (op.stream != 0) add("stream", "0x" + HexText(op.stream));
  if (op.api_ns != 0 && op.start_ns >= op.api_ns) {
    add("API call to enqueue", DurationText(op.start_ns - op.api_ns));
  }
  if (placed.begin_ns > op.start_ns) {
    add("enqueued before its turn", DurationText(placed.begin_ns - op.start_ns));
  }
  if (op.proxy_started != 0) {
    add("sent", BytesText(op.bytes_sent));
    add("received", BytesText(op.bytes_received));
    add("steps", std::to_string(op.steps_done) + " of " + std::to_string(op.steps_total));
    add("network transfers",
        std::to_string(op.proxy_done) + " of " + std::to_string(op.proxy_started) + " done");
    for (int wait = 0; wait < MC_WAIT_COUNT; ++wait) {
      if (op.wait_ns[wait] == 0) continue;
      add(WaitName(wait), DurationText(op.wait_ns[wait]) + " over all flows");
    }
  }
  if (op.kernel_started != 0) {
    add("kernel channels", std::to_string(op.kernel_stopped) + " of " +
                               std::to_string(op.kernel_started) + " stopped");
    if (op.kernel_gpu_stop > op.kernel_gpu_start) {
      add("kernel on the GPU", DurationText(op.kernel_gpu_stop - op.kernel_gpu_start));
    }
  }
  if (placed.open) {
    add("state", "still in flight");
  } else if (!placed.end_seen) {
    add("state", "only its enqueueing was seen, not its end");
  }
  return args;
}

std::vector<Share> Builder::SharesOf(const Process& process, const CommSample& comm,
                                     const PlacedOp& placed) {
  const OpSample& op = *placed.op;
  const CommKey key = {comm.index, comm.generation};
  std::vector<Share> shares;
  // Waits are counted per operation and, over the window, per flow: the channels
  // get their part of an operation in proportion to the latter.
  for (int wait = 0; wait < MC_WAIT_COUNT; ++wait) {
    if (op.wait_ns[wait] == 0) continue;
    const mc_direction direction = wait < MC_WAIT_RECV_REMOTE ? MC_SEND : MC_RECV;
    double sum = 0;
    std::map<int, double> by_channel;
    for (const auto& [index, flow] : process.flows) {
      if (flow.comm != key || flow.direction != direction) continue;
      const uint64_t grown = flow.wait_after[wait % 3] - flow.wait_before[wait % 3];
      if (static_cast<int64_t>(grown) <= 0) continue;
      by_channel[flow.channel] += static_cast<double>(grown);
      sum += static_cast<double>(grown);
    }
    const auto total = static_cast<double>(op.wait_ns[wait]);
    if (sum <= 0) shares.push_back({wait, -1, total});
    for (const auto& [channel, grown] : by_channel) {
      shares.push_back({wait, channel, total * grown / sum});
    }
  }
  if (!placed.open) return shares;
  // A wait that has not ended is in no counter yet.
  for (const auto& [index, flow] : process.flows) {
    if (flow.comm != key || flow.points.empty()) continue;
    const FlowPoint& point = flow.points.back();
    if (point.op_id != op.id || point.open_ops == 0 || point.state < MC_FLOW_SEND_GPU) continue;
    const uint64_t since = std::max(point.state_ns, placed.begin_ns);
    if (placed.end_ns <= since) continue;
    shares.push_back(
        {point.state - MC_FLOW_SEND_GPU, flow.channel, static_cast<double>(placed.end_ns - since)});
  }
  return shares;
}

void Builder::BuildComm(const Process& process, const CommSample& comm,
                        const std::vector<PlacedOp>& placed, TimelineRank* rank) {
  const std::string name = CommName(comm);
  std::vector<TimelineTrack> lanes;
  std::vector<uint64_t> lane_end;
  // Sends and receives wait at the same time: a track for each.
  TimelineTrack waits[2] = {{TrackKind::kWaits, name + ": sends", {}},
                            {TrackKind::kWaits, name + ": receives", {}}};
  TimelineTrack kernels{TrackKind::kKernels, name + ": kernels", {}};
  const auto append = [](TimelineTrack& track, TimelineSlice slice) {
    if (!track.slices.empty()) {
      slice.begin_ns = std::max(slice.begin_ns, track.slices.back().end_ns);
    }
    if (slice.end_ns > slice.begin_ns) track.slices.push_back(std::move(slice));
  };
  for (PlacedOp item : placed) {
    const OpSample& op = *item.op;
    // Collectives of a communicator take their turn, whenever they were enqueued;
    // sends and receives run side by side.
    const bool side_by_side = op.kind != MC_OP_COLL;
    size_t lane = 0;
    if (side_by_side) {
      while (lane < lanes.size() && lane_end[lane] > item.begin_ns && lane + 1 < kMaxLanes) ++lane;
    }
    if (lane == lanes.size()) {
      lanes.push_back({TrackKind::kOperations,
                       name + (lane == 0 ? "" : " (" + std::to_string(lane + 1) + ")"),
                       {}});
      lane_end.push_back(0);
    }
    item.begin_ns = std::max(item.begin_ns, lane_end[lane]);
    item.end_ns = std::max(item.end_ns, item.begin_ns);
    TimelineSlice slice;
    slice.begin_ns = std::max(item.begin_ns, window_begin_);
    slice.end_ns = std::min(item.end_ns, window_end_);
    if (slice.end_ns < slice.begin_ns) continue;
    lane_end[lane] = item.end_ns;
    slice.name = ToString(op.func);
    if (op.kind == MC_OP_SEND) slice.name += " to " + std::to_string(op.root_or_peer);
    if (op.kind == MC_OP_RECV) slice.name += " from " + std::to_string(op.root_or_peer);
    slice.category = "op";
    slice.open = item.open;
    slice.args = ArgsOf(op, item);
    ++operations_;
    if (!item.open && !item.end_seen) ++end_not_seen_;

    const uint64_t length = slice.end_ns - slice.begin_ns;
    const std::vector<Share> shares = SharesOf(process, comm, item);
    double sum = 0;
    std::array<double, MC_WAIT_COUNT> by_wait{};
    for (const Share& share : shares) {
      sum += share.weight;
      by_wait[share.wait] += share.weight;
    }
    const std::string collective = std::string(ToString(op.func)) + " (" + name + ")";
    if (sum <= 0) {
      Flame({rank->name, "communication", collective, "all channels", "no detail seen"}, length);
    }
    for (const Share& share : shares) {
      Flame({rank->name, "communication", collective,
             share.channel < 0 ? "all channels" : "channel " + std::to_string(share.channel),
             WaitName(share.wait)},
            PartOf(length, share.weight / sum));
    }
    for (int side = 0; side < 2; ++side) {
      const int first = side == 0 ? MC_WAIT_SEND_GPU : MC_WAIT_RECV_REMOTE;
      const double side_sum = by_wait[first] + by_wait[first + 1] + by_wait[first + 2];
      double from = 0;
      for (int wait = first; wait < first + 3; ++wait) {
        if (by_wait[wait] <= 0) continue;
        const double to = from + by_wait[wait] / side_sum;
        TimelineSlice part;
        part.begin_ns = slice.begin_ns + PartOf(length, from);
        part.end_ns = slice.begin_ns + PartOf(length, to);
        part.name = WaitName(wait);
        part.category = "wait";
        part.open = item.open && to > 0.999;
        char percent[32];
        std::snprintf(percent, sizeof percent, "%.1f %%", by_wait[wait] / side_sum * 100);
        part.args = {
            {side == 0 ? "part of what its sends waited" : "part of what its receives waited",
             percent},
            {"sum over flows", DurationText(PartOf(UINT64_MAX, by_wait[wait] / 0x1p64))},
            {"operation", slice.name + " " + std::to_string(op.ordinal)},
            {"note", "the order within the operation is not known"}};
        from = to;
        append(waits[side], std::move(part));
      }
    }
    if (op.kernel_start_seen_ns != 0) {
      TimelineSlice kernel;
      const bool running = op.kernel_stopped < op.kernel_started;
      kernel.begin_ns = op.kernel_start_seen_ns;
      kernel.end_ns = running ? item.end_ns : op.kernel_stop_seen_ns;
      kernel.name = std::string(ToString(op.func)) + " kernel";
      kernel.category = "kernel";
      kernel.open = running && item.open;
      kernel.args = {{"operation", std::to_string(op.ordinal)},
                     {"channels", std::to_string(op.kernel_started)}};
      if (op.kernel_gpu_stop > op.kernel_gpu_start) {
        kernel.args.emplace_back("on the GPU",
                                 DurationText(op.kernel_gpu_stop - op.kernel_gpu_start));
      }
      PlaceKernel(process, op, &kernel);
      kernel.begin_ns = std::max(kernel.begin_ns, window_begin_);
      kernel.end_ns = std::min(kernel.end_ns, window_end_);
      if (kernel.end_ns > kernel.begin_ns) append(kernels, std::move(kernel));
    }
    lanes[lane].slices.push_back(std::move(slice));
  }
  for (TimelineTrack& lane : lanes) {
    if (!lane.slices.empty()) rank->tracks.push_back(std::move(lane));
  }
  for (TimelineTrack& side : waits) {
    if (!side.slices.empty()) rank->tracks.push_back(std::move(side));
  }
  if (!kernels.slices.empty()) rank->tracks.push_back(std::move(kernels));
}

// Moves a kernel from where the host saw it to where it ran, and says which it is.
void Builder::PlaceKernel(const Process& process, const OpSample& op, TimelineSlice* kernel) {
  if (op.kernel_gpu_start == 0) return;
  const auto start = gpus_.ToHost(process.host, process.key, op.comm, op.kernel_gpu_start);
  if (!start.ok()) {
    kernel->args.emplace_back("placed by", "when the host saw it; the GPU's clock is not aligned: " +
                                               PrintableText(std::string(start.status().message())));
    return;
  }
  uint64_t error_ns = start->error_ns;
  const auto shift = static_cast<uint64_t>(process.shift);
  // Never later than it was seen.
  const uint64_t begin_ns = std::min(start->ns + shift, op.kernel_start_seen_ns);
  uint64_t end_ns = kernel->end_ns;
  if (op.kernel_stopped == op.kernel_started && op.kernel_gpu_stop > op.kernel_gpu_start) {
    const auto stop = gpus_.ToHost(process.host, process.key, op.comm, op.kernel_gpu_stop);
    if (stop.ok()) {
      end_ns = std::min(stop->ns + shift, op.kernel_stop_seen_ns);
      error_ns = std::max(error_ns, stop->error_ns);
    }
  }
  if (end_ns < begin_ns || error_ns > std::max(kUsefulErrorNs, (end_ns - begin_ns) / 10)) {
    kernel->args.emplace_back(
        "placed by", "when the host saw it; the GPU's clock is known to " + ErrorBoundText(error_ns));
    return;
  }
  kernel->begin_ns = begin_ns;
  kernel->end_ns = end_ns;
  kernel->args.emplace_back("placed by", "the GPU's clock, " + ErrorBoundText(error_ns));
  kernel->args.emplace_back("the host saw its start after",
                            DurationText(op.kernel_start_seen_ns - begin_ns));
}

// A flow is sampled when it has changed, but not twice within a second: what is drawn
// is what is known, the time from the beginning of a state to the sample that saw it.
// When no sample followed for longer than that second, or it already stood still, the
// state held until something else was seen.
void Builder::BuildFlows(const Process& process, TimelineRank* rank) {
  for (const auto& [line, flow] : process.flows) {
    const auto comm = process.comms.find(flow.comm);
    TimelineTrack track;
    track.kind = TrackKind::kChannel;
    track.name = (comm == process.comms.end() ? "?" : CommName(comm->second)) + ": channel " +
                 std::to_string(flow.channel) +
                 (flow.direction == MC_SEND ? " send to " : " recv from ") +
                 std::to_string(flow.peer);
    uint64_t drawn = window_begin_;
    for (size_t i = 0; i < flow.points.size(); ++i) {
      const FlowPoint& point = flow.points[i];
      if (point.open_ops == 0 || point.state == MC_FLOW_IDLE) continue;
      const bool last = i + 1 == flow.points.size();
      const uint64_t next_ns = last ? process.last_ns : flow.points[i + 1].t_ns;
      const bool unchanged = next_ns > point.t_ns + kFlowRepeat + 2 * process.interval_ns ||
                             point.t_ns - point.state_ns >= 2 * process.interval_ns;
      uint64_t end = point.t_ns;
      if (unchanged) {
        end = std::max(end, last ? next_ns : std::min(flow.points[i + 1].state_ns, next_ns));
      }
      TimelineSlice slice;
      slice.begin_ns = std::max(point.state_ns, drawn);
      slice.end_ns = std::min(end, window_end_);
      if (slice.end_ns <= slice.begin_ns) continue;
      slice.open = unchanged && last && !process.exited;
      slice.name = ToString(point.state);
      slice.category = "wait";
      slice.args = {{"steps", std::to_string(point.done) + " of " + std::to_string(point.total)},
                    {"seen at", DurationText(point.t_ns - first_ns_) + " of the recording"}};
      drawn = slice.end_ns;
      if (!track.slices.empty() && track.slices.back().name == slice.name &&
          track.slices.back().end_ns == slice.begin_ns) {
        track.slices.back().end_ns = slice.end_ns;
        track.slices.back().open = slice.open;
        track.slices.back().args = std::move(slice.args);
      } else {
        track.slices.push_back(std::move(slice));
      }
    }
    if (!track.slices.empty()) rank->tracks.push_back(std::move(track));
  }
}

// Where no operation is in flight: the phase that is not communication.
void Builder::BuildGaps(std::vector<PlacedOp> all, TimelineRank* rank) {
  std::sort(all.begin(), all.end(),
            [](const PlacedOp& a, const PlacedOp& b) { return a.begin_ns < b.begin_ns; });
  TimelineTrack track{TrackKind::kWaits, "between operations", {}};
  uint64_t busy_until = 0;
  for (const PlacedOp& op : all) {
    if (busy_until != 0 && op.begin_ns > busy_until) {
      TimelineSlice gap;
      gap.begin_ns = std::max(busy_until, window_begin_);
      gap.end_ns = std::min(op.begin_ns, window_end_);
      gap.name = "compute";
      gap.category = "gap";
      gap.args = {{"meaning", "no operation in flight: compute, data loading or idle"}};
      if (gap.end_ns > gap.begin_ns) {
        Flame({rank->name, "compute", "outside of operations"}, gap.end_ns - gap.begin_ns);
        track.slices.push_back(std::move(gap));
      }
    }
    busy_until = std::max(busy_until, op.end_ns);
  }
  if (!track.slices.empty()) rank->tracks.insert(rank->tracks.begin(), std::move(track));
}

TimelineRank Builder::BuildRank(const Process& process) {
  TimelineRank rank;
  rank.host = PrintableText(process.host);
  rank.pid = process.key.pid;
  int32_t largest = 0;
  for (const auto& [key, comm] : process.comms) {
    if (comm.nranks > largest) {
      largest = comm.nranks;
      rank.job_rank = comm.rank;
    }
  }
  const std::string where = " (" + rank.host + ", pid " + std::to_string(rank.pid) + ")";
  rank.name =
      rank.job_rank >= 0 ? "rank " + std::to_string(rank.job_rank) + where : "process" + where;

  std::map<CommKey, std::vector<const OpSample*>> by_comm;
  for (const auto& [id, op] : process.ops) by_comm[{op.comm, op.comm_generation}].push_back(&op);
  std::vector<PlacedOp> all;
  for (auto& [key, ops] : by_comm) {
    std::sort(ops.begin(), ops.end(), [](const OpSample* a, const OpSample* b) {
      return a->start_ns != b->start_ns ? a->start_ns < b->start_ns : a->id < b->id;
    });
    const bool detailed =
        std::any_of(ops.begin(), ops.end(), [](const OpSample* op) { return EndOf(*op).ns != 0; });
    std::vector<PlacedOp> placed;
    for (const OpSample* op : ops) {
      const End end = EndAsOf(*op, window_end_);
      PlacedOp item;
      item.op = op;
      item.begin_ns = op->start_ns;
      item.end_seen = end.seen && end.ns <= options_.until_ns;
      if (end.seen) {
        item.end_ns = end.ns;
      } else if (op->proxy_started != 0 || op->kernel_started != 0 ||
                 (detailed && op == ops.back())) {
        item.end_ns = std::max(process.last_ns, end.ns);
        item.open = true;
      } else {
        item.end_ns = std::max(op->stop_ns, op->start_ns);
      }
      if (item.end_ns > options_.until_ns) item.open = true;
      item.end_ns = std::max(item.end_ns, item.begin_ns);
      if (!InWindow(item.begin_ns, item.end_ns)) continue;
      placed.push_back(item);
      all.push_back(item);
    }
    const auto found = process.comms.find(key);
    CommSample unknown;
    unknown.index = key.index;
    unknown.generation = key.generation;
    unknown.name = "communicator " + std::to_string(key.index);
    BuildComm(process, found == process.comms.end() ? unknown : found->second, placed, &rank);
  }
  BuildFlows(process, &rank);
  BuildGaps(std::move(all), &rank);
  return rank;
}

TimelineSlice Builder::SliceOf(const Incident& incident) {
  TimelineSlice slice;
  slice.open = !incident.cleared_ns || *incident.cleared_ns > window_end_;
  slice.begin_ns = std::max(incident.onset_ns, window_begin_);
  slice.end_ns =
      std::max(slice.begin_ns, std::min(incident.cleared_ns.value_or(window_end_), window_end_));
  slice.category = "incident";
  std::string culprits;
  for (const Culprit& culprit : incident.culprits) {
    if (!culprits.empty()) culprits += "; ";
    culprits += CulpritText(culprit);
  }
  if (culprits.empty()) culprits = "cause not known";
  slice.name = std::string(ToString(incident.kind)) + ": " + culprits;
  std::map<std::string, int> seen;  // a key comes once: "evidence", "evidence 2"
  const auto add = [&](const std::string& key, std::string value) {
    const int count = ++seen[key];
    slice.args.emplace_back(count == 1 ? key : key + " " + std::to_string(count), std::move(value));
  };
  add("incident", std::to_string(incident.id));
  if (!incident.summary.empty()) add("summary", PrintableText(incident.summary));
  for (const Culprit& culprit : incident.culprits) {
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, ", confidence %.0f %%, %.3g GPU-seconds lost",
                  culprit.confidence * 100, culprit.gpu_seconds_lost);
    std::string text = CulpritText(culprit);
    if (!culprit.host.empty()) text += ", host " + PrintableText(culprit.host);
    if (culprit.pid != 0) text += ", pid " + std::to_string(culprit.pid);
    if (!culprit.where.empty()) text += ", " + PrintableText(culprit.where);
    add("culprit", text + numbers);
  }
  std::string victims;
  for (const int32_t victim : incident.victims) {
    victims += (victims.empty() ? "" : ", ") + std::to_string(victim);
  }
  if (!victims.empty()) add("victims", "ranks " + victims);
  const auto after = [&](uint64_t t_ns) {
    return t_ns >= incident.onset_ns ? DurationText(t_ns - incident.onset_ns) + " after onset"
                                     : "before onset";
  };
  add("onset_ns", std::to_string(incident.onset_ns));
  add("detected", after(incident.detected_ns));
  add("verdict", after(incident.verdict_ns));
  add("cleared", incident.cleared_ns ? after(*incident.cleared_ns) : "not yet");
  for (const WaitEdge& edge : incident.chain) {
    add("waiting", edge.why.empty() ? "rank " + std::to_string(edge.waiter) + " waits for rank " +
                                          std::to_string(edge.waited_for)
                                    : PrintableText(edge.why));
  }
  for (const std::string& item : incident.evidence) add("evidence", PrintableText(item));
  for (const Rejected& suspect : incident.rejected) {
    add("rejected", PrintableText(suspect.suspect) + ": " + PrintableText(suspect.reason));
  }
  return slice;
}

Timeline Builder::Finish() {
  Timeline timeline;
  if (first_ns_ > last_ns_) return timeline;
  window_begin_ = std::max(first_ns_, options_.since_ns);
  window_end_ = std::min(last_ns_, options_.until_ns);
  // What began before the first snapshot is drawn from its beginning.
  if (options_.since_ns < first_ns_) {
    for (const auto& [key, process] : processes_) {
      for (const auto& [id, op] : process.ops) {
        if (op.start_ns != 0 && first_ns_ - op.start_ns < 600 * kSecond) {
          window_begin_ = std::min(window_begin_, std::max(op.start_ns, options_.since_ns));
        }
      }
    }
  }
  window_end_ = std::max(window_end_, window_begin_);
  timeline.begin_ns = window_begin_;
  timeline.end_ns = window_end_;
  for (const auto& [key, process] : processes_) {
    TimelineRank rank = BuildRank(process);
    if (!rank.tracks.empty()) timeline.ranks.push_back(std::move(rank));
  }
  std::stable_sort(timeline.ranks.begin(), timeline.ranks.end(),
                   [](const TimelineRank& a, const TimelineRank& b) {
                     return std::tie(a.job_rank, a.host, a.pid) <
                            std::tie(b.job_rank, b.host, b.pid);
                   });
  timeline.incidents = {TrackKind::kIncidents, "incidents", {}};
  for (const Incident& incident : incidents_) {
    if (!InWindow(incident.onset_ns, incident.cleared_ns.value_or(UINT64_MAX))) continue;
    const TimelineSlice slice = SliceOf(incident);
    timeline.incidents.slices.push_back(slice);
    for (TimelineRank& rank : timeline.ranks) {
      const bool blamed = std::any_of(
          incident.culprits.begin(), incident.culprits.end(), [&](const Culprit& culprit) {
            return culprit.pid != 0
                       ? culprit.pid == rank.pid && PrintableText(culprit.host) == rank.host
                       : culprit.rank == rank.job_rank;
          });
      if (!blamed) continue;
      if (rank.tracks.empty() || rank.tracks.front().kind != TrackKind::kIncidents) {
        rank.tracks.insert(rank.tracks.begin(), {TrackKind::kIncidents, "incidents", {}});
      }
      rank.tracks.front().slices.push_back(slice);
    }
  }
  const auto by_begin = [](const TimelineSlice& a, const TimelineSlice& b) {
    return a.begin_ns < b.begin_ns;
  };
  std::stable_sort(timeline.incidents.slices.begin(), timeline.incidents.slices.end(), by_begin);
  for (TimelineRank& rank : timeline.ranks) {
    std::stable_sort(rank.tracks.front().slices.begin(), rank.tracks.front().slices.end(),
                     by_begin);
  }
  for (auto& [stack, ns] : flame_) timeline.flame.push_back({stack, ns});
  timeline.operations = operations_;
  if (end_not_seen_ > 0) {
    timeline.note = std::to_string(end_not_seen_) +
                    " operations are drawn as long as their enqueueing took: their end was not "
                    "seen (no network steps and no kernel events)";
  }
  for (const std::string& clock : options_.clocks) timeline.clocks.push_back(PrintableText(clock));
  for (std::string& clock : ClockTexts(gpus_.Clocks())) timeline.clocks.push_back(std::move(clock));
  if (!by_wall_clock_.empty()) {
    if (!timeline.note.empty()) timeline.note += "; ";
    timeline.note += "clocks were not aligned, hosts put in place by their wall clocks:";
    for (const std::string& host : by_wall_clock_) timeline.note += " " + host;
  }
  return timeline;
}

}  // namespace

absl::StatusOr<Timeline> BuildTimeline(SnapshotSource& source,
                                       const std::vector<Incident>& incidents,
                                       const ExportOptions& options) {
  Builder builder(incidents, options);
  while (true) {
    absl::StatusOr<std::optional<Snapshot>> next = source.Next();
    if (!next.ok()) return next.status();
    if (!*next) break;
    builder.Add(**next);
    if (options.progress && options.last_ns > options.first_ns &&
        (*next)->t_ns > options.first_ns) {
      options.progress(0.6 * static_cast<double>((*next)->t_ns - options.first_ns) /
                       static_cast<double>(options.last_ns - options.first_ns));
    }
  }
  return builder.Finish();
}

std::vector<TimelineTrack> SplitLanes(const TimelineTrack& track) {
  std::vector<TimelineTrack> lanes;
  for (const TimelineSlice& slice : track.slices) {
    auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const TimelineTrack& candidate) {
      return candidate.slices.back().end_ns <= slice.begin_ns;
    });
    if (lane == lanes.end()) {
      lanes.push_back({track.kind, track.name, {}});
      lane = lanes.end() - 1;
    }
    lane->slices.push_back(slice);
  }
  return lanes;
}

}  // namespace mycroft
