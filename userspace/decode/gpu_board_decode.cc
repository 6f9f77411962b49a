// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/gpu_board_decode.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace mycroft {
namespace {

template <typename E>
E Bounded(uint32_t value, E count, E otherwise = static_cast<E>(0)) {
  return value < static_cast<uint32_t>(count) ? static_cast<E>(value) : otherwise;
}

template <size_t N>
std::string Text(const char (&text)[N]) {
  std::string out(text, strnlen(text, N));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

std::optional<uint32_t> Index(uint32_t value, uint32_t limit) {
  if (value >= limit) return std::nullopt;
  return value;
}

std::string Uuid(const uint8_t (&u)[16]) {
  char out[48];
  std::snprintf(out, sizeof(out),
                "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
                u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
                u[14], u[15]);
  return out;
}

mc_gpu_host_call HostCall(uint32_t value) {
  return Bounded(value, MC_GPU_HOST_CALL_COUNT, MC_GPU_HOST_NONE);
}

GpuLaunch DecodeLaunch(const mc_gpu_launch& line) {
  GpuLaunch out;
  out.ticket = line.ticket;
  out.launch_ns = line.launch_ns;
  out.correlation = line.correlation;
  out.work = Bounded(line.work, MC_GPU_WORK_COUNT, MC_GPU_WORK_NONE);
  out.copy = Bounded(line.copy, MC_GPU_COPY_COUNT, MC_GPU_COPY_OTHER);
  out.bytes = uint64_t{line.kib} << 10;
  out.name = line.name;
  return out;
}

bool Waits(const GpuThreadSample& thread) {
  switch (thread.call) {
    case MC_GPU_HOST_STREAM_SYNC:
    case MC_GPU_HOST_EVENT_SYNC:
    case MC_GPU_HOST_CONTEXT_SYNC:
    case MC_GPU_HOST_COPY:
      return true;
    case MC_GPU_HOST_NONE:
    case MC_GPU_HOST_STREAM_QUERY:
    case MC_GPU_HOST_EVENT_QUERY:
    case MC_GPU_HOST_LAUNCH:
    case MC_GPU_HOST_RECORD:
    case MC_GPU_HOST_CALL_COUNT:
      break;
  }
  return false;
}

// What waiting threads prove of the streams.
void AddWaits(GpuSnapshot* snapshot, uint64_t now_ns) {
  for (const GpuThreadSample& thread : snapshot->threads) {
    if (!Waits(thread) || thread.enter_ns > now_ns) continue;
    const auto waited = [&](GpuStreamSample& stream, GpuPending proof) {
      if (stream.waited_since_ns == 0 || thread.enter_ns < stream.waited_since_ns) {
        stream.waited_since_ns = thread.enter_ns;
      }
      if (proof < stream.pending) return;
      stream.pending = proof;
      if (proof == GpuPending::kUnfinished) stream.proved_ns = now_ns;
    };
    if (thread.call == MC_GPU_HOST_CONTEXT_SYNC) {
      // Of these at least one is unfinished; with one, it is that.
      std::vector<GpuStreamSample*> candidates;
      for (GpuStreamSample& stream : snapshot->streams) {
        if (thread.context.has_value() && stream.alive && stream.context == thread.context &&
            stream.pending != GpuPending::kNone) {
          candidates.push_back(&stream);
        }
      }
      for (GpuStreamSample* stream : candidates) {
        waited(*stream, candidates.size() == 1 ? GpuPending::kUnfinished : GpuPending::kWaitedFor);
      }
      continue;
    }
    for (GpuStreamSample& stream : snapshot->streams) {
      if (!thread.stream.has_value() || stream.index != *thread.stream) continue;
      // Work launched after the wait began is not what it waits for.
      if (thread.ticket > stream.finished) waited(stream, GpuPending::kUnfinished);
    }
  }
}

}  // namespace

GpuDeviceSample DecodeGpuDevice(const mc_gpu_device& line) {
  GpuDeviceSample out;
  out.ordinal = line.ordinal;
  if (line.pci_known == 1) {
    out.uuid = Uuid(line.uuid);
    out.pci = Text(line.pci);
    out.name = Text(line.name);
  }
  return out;
}

GpuContextSample DecodeGpuContext(uint32_t index, const mc_gpu_context& line) {
  GpuContextSample out;
  out.index = index;
  out.uid = line.uid;
  out.device = Index(line.device, MC_GPU_MAX_DEVICES);
  out.alive = line.life == MC_GPU_ALIVE;
  out.created_ns = line.created_ns;
  out.destroyed_ns = out.alive ? 0 : line.destroyed_ns;
  return out;
}

GpuNameSample DecodeGpuName(uint32_t index, const mc_gpu_name& line) {
  GpuNameSample out;
  out.index = index;
  out.name = Text(line.name);
  out.cut = line.length > out.name.size();
  out.nccl = line.nccl == 1;
  out.device = Index(line.device, MC_GPU_MAX_DEVICES);
  out.count = line.count;
  if (out.count == 0) return out;
  out.sum_ns = line.sum_ns;
  out.max_ns = line.max_ns;
  out.min_ns = std::min(line.min_ns, line.max_ns);
  out.ewma_ns = std::clamp(line.ewma_ns, out.min_ns, out.max_ns);
  out.last_ns = std::clamp(line.last_ns, out.min_ns, out.max_ns);
  out.last_end_ns = line.last_end_ns;
  std::copy(std::begin(line.log2), std::end(line.log2), out.log2.begin());
  return out;
}

GpuThreadSample DecodeGpuThread(const mc_gpu_thread& line) {
  GpuThreadSample out;
  out.tid = line.tid;
  out.call = HostCall(line.call);
  out.last_call = HostCall(line.last_call);
  out.last_leave_ns = line.last_leave_ns;
  out.calls = line.calls;
  if (out.call == MC_GPU_HOST_NONE) return out;
  out.enter_ns = line.enter_ns;
  out.stream = Index(line.stream, 65535);
  out.context = Index(line.context, 4096);
  out.ticket = line.ticket;
  return out;
}

GpuEventSample DecodeGpuEvent(const mc_gpu_event& line) {
  GpuEventSample out;
  out.id = line.id;
  out.launch_ns = line.launch_ns;
  out.start_ns = line.start_ns;
  out.end_ns = std::max(line.end_ns, line.start_ns);
  out.bytes = line.bytes;
  out.stream = line.stream;
  out.name = line.name;
  out.correlation = line.correlation;
  out.work = Bounded(line.work, MC_GPU_WORK_COUNT, MC_GPU_WORK_NONE);
  out.copy = Bounded(line.copy, MC_GPU_COPY_COUNT, MC_GPU_COPY_OTHER);
  out.graph = line.graph == 1;
  return out;
}

GpuStreamSample DecodeGpuStream(uint32_t index, const mc_gpu_stream& line) {
  GpuStreamSample out;
  out.index = index;
  out.generation = line.generation;
  out.alive = line.life == MC_GPU_ALIVE;
  out.context = Index(line.context, 4096);
  out.stream_id = Index(line.stream_id, MC_GPU_NONE);
  out.kind = line.kind <= MC_GPU_STREAM_PER_THREAD ? static_cast<mc_gpu_stream_kind>(line.kind)
                                                   : MC_GPU_STREAM_CREATED;
  out.handle = line.handle;
  out.created_ns = line.created_ns;
  out.destroyed_ns = out.alive ? 0 : line.destroyed_ns;
  out.capturing = line.capturing == 1;
  out.launched = line.last_ticket;
  out.finished = std::min(line.finished_ticket, line.last_ticket);
  out.finished_by = HostCall(line.finished_by);
  out.finished_ns = line.finished_ns;
  out.last_launch_ns = line.last_launch_ns;
  out.kernels = line.kernels;
  out.nccl_kernels = std::min(line.nccl_kernels, line.kernels);
  out.graphs = line.graphs;
  out.memsets = line.memsets;
  out.voids = line.voids;
  out.last_wait = HostCall(line.last_wait);
  out.last_wait_ns = line.last_wait_ns;
  out.last_wait_took_ns = line.last_wait_took_ns;
  out.records = line.records;
  out.last_end_ns = line.last_end_ns;
  out.kernel_count = line.kernel_count;
  out.kernel_ns = line.kernel_ns;
  out.nccl_count = line.nccl_count;
  out.nccl_ns = line.nccl_ns;
  out.delay_count = line.delay_count;
  out.delay_ns = line.delay_ns;
  out.delay_max_ns = line.delay_max_ns;
  for (int i = 0; i < MC_GPU_COPY_COUNT; ++i) {
    out.copies[i] = line.copies[i];
    out.copy_bytes[i] = line.copy_bytes[i];
    out.done_copies[i] = line.done_copies[i];
    out.done_copy_bytes[i] = line.done_copy_bytes[i];
    out.done_copy_ns[i] = line.done_copy_ns[i];
  }
  if (line.wait_ticket != 0 && line.wait_at <= out.launched && line.wait_stream != index) {
    out.waits_for_stream = Index(line.wait_stream, 65535);
    if (out.waits_for_stream.has_value()) {
      out.wait_ticket = line.wait_ticket;
      out.wait_at = line.wait_at;
    }
  }
  // The queue: tickets that are where they belong and not newer than the last.
  std::vector<GpuLaunch> queue;
  for (uint32_t i = 0; i < MC_GPU_QUEUE; ++i) {
    const mc_gpu_launch& slot = line.queue[i];
    if (slot.ticket == 0 || slot.ticket % MC_GPU_QUEUE != i || slot.ticket > out.launched) continue;
    queue.push_back(DecodeLaunch(slot));
  }
  std::sort(queue.begin(), queue.end(),
            [](const GpuLaunch& a, const GpuLaunch& b) { return a.ticket < b.ticket; });
  if (!queue.empty()) out.last = queue.back();
  if (out.finished == out.launched) return out;

  if (line.oldest.ticket == out.finished + 1 && line.oldest.work != MC_GPU_WORK_VOID) {
    out.oldest = DecodeLaunch(line.oldest);
  }
  bool all_void = true;  // of what is pending, as far as seen
  uint64_t seen = 0;
  for (const GpuLaunch& launch : queue) {
    if (launch.ticket <= out.finished) continue;
    ++seen;
    if (launch.work == MC_GPU_WORK_VOID) continue;
    all_void = false;
    // The oldest is known only if nothing before it may be unfinished.
    if (!out.oldest.has_value() && launch.ticket == out.finished + seen) {
      out.oldest = launch;
    } else if (!out.oldest.has_value() || launch.ticket > out.oldest->ticket) {
      out.behind.push_back(launch);
    }
  }
  if (all_void && seen == out.launched - out.finished) return out;
  out.pending = GpuPending::kUnknown;
  if (line.busy_ticket > out.finished && line.busy_ticket <= out.launched) {
    out.pending = GpuPending::kUnfinished;
    out.proved_ns = line.busy_ns;
  }
  return out;
}

GpuSnapshot ReadGpuBoard(const GpuBoardMap& board, uint64_t next_event_id, uint64_t now_ns) {
  const mc_gpu_header h = board.Header();
  GpuSnapshot out;
  out.pid = h.pid;
  out.process = Text(h.process_name);
  out.library_version = Text(h.library_version);
  out.cupti_path = Text(h.cupti_path);
  out.cupti_version = h.cupti_version;
  out.state = Bounded(h.state, MC_GPU_STATE_COUNT, MC_GPU_FAILED);
  out.level =
      h.level <= MC_GPU_LEVEL_ACTIVITY ? static_cast<mc_gpu_level>(h.level) : MC_GPU_LEVEL_UNSET;
  out.clock =
      h.clock <= MC_GPU_CLOCK_PAIRED ? static_cast<mc_gpu_clock>(h.clock) : MC_GPU_CLOCK_NONE;
  if (out.clock == MC_GPU_CLOCK_PAIRED && h.pair_after_ns > h.pair_before_ns) {
    out.clock_error_ns = (h.pair_after_ns - h.pair_before_ns + 1) / 2;
  }
  if (out.state == MC_GPU_TAKEN) out.other_subscriber = Text(h.other_subscriber);
  out.layout_known = h.layout_known == 1;
  out.error = h.error;
  out.error_call = Bounded(h.error_call, MC_GPU_CALL_COUNT, MC_GPU_CALL_NONE);
  out.chained = h.chained <= 2 ? h.chained : 0;
  out.created_ns = h.created_ns;
  out.last_callback_ns = h.last_callback_ns;
  out.launches = h.launches;
  out.nccl_launches = std::min(h.nccl_launches, h.launches);
  out.armed_ns = h.armed_ns;
  out.armed_until_ns = h.armed_ns != 0 ? h.armed_until_ns : 0;
  out.armed_total_ns = h.armed_total_ns;
  out.flushed_ns = h.flushed_ns;
  out.records = h.records;
  out.overhead_ns = h.overhead_ns;
  out.matched_exact = h.matched_exact;
  out.matched_near = h.matched_near;
  out.helper_call_ns = h.helper_call_ns;
  if (h.helper_call_ns != 0) {
    out.helper_call = Bounded(h.helper_call, MC_GPU_CALL_COUNT, MC_GPU_CALL_NONE);
  }
  std::copy_n(h.lost, out.lost.size(), out.lost.begin());

  for (uint32_t i = 0; i < std::min(h.devices_used, board.device_capacity()); ++i) {
    mc_gpu_device line{};
    if (!board.ReadDevice(i, &line)) {
      ++out.torn_reads;
    } else if (line.known == 1) {
      out.devices.push_back(DecodeGpuDevice(line));
    }
  }
  for (uint32_t i = 0; i < std::min(h.contexts_used, board.context_capacity()); ++i) {
    mc_gpu_context line{};
    if (!board.ReadContext(i, &line)) {
      ++out.torn_reads;
    } else if (line.life != MC_GPU_FREE) {
      out.contexts.push_back(DecodeGpuContext(i, line));
    }
  }
  // Line 0 is there always: "unknown".
  for (uint32_t i = 0; i < std::clamp(h.names_used, 1u, board.name_capacity()); ++i) {
    mc_gpu_name line{};
    if (!board.ReadName(i, &line)) ++out.torn_reads;
    out.names.push_back(DecodeGpuName(i, line));  // torn: an empty name in its place
  }
  // Threads before streams: a wait seen here may have returned by the time its stream is
  // read, which then shows it as finished. The other way round a finished stream could
  // look waited for.
  for (uint32_t i = 0; i < std::min(h.threads_used, board.thread_capacity()); ++i) {
    mc_gpu_thread line{};
    if (!board.ReadThread(i, &line)) {
      ++out.torn_reads;
    } else if (line.tid != 0) {
      out.threads.push_back(DecodeGpuThread(line));
    }
  }
  const auto named = [&](GpuLaunch* launch) {
    if (launch->name >= out.names.size()) launch->name = 0;
    if (launch->name != 0) launch->kernel = out.names[launch->name].name;
  };
  const auto device_of = [&](uint32_t context) -> std::optional<uint32_t> {
    for (const GpuContextSample& c : out.contexts) {
      if (c.index == context) return c.device;
    }
    return std::nullopt;
  };
  for (uint32_t i = 0; i < std::min(h.streams_used, board.stream_capacity()); ++i) {
    mc_gpu_stream line{};
    if (!board.ReadStream(i, &line)) {
      ++out.torn_reads;
      continue;
    }
    if (line.life == MC_GPU_FREE) continue;
    GpuStreamSample stream = DecodeGpuStream(i, line);
    if (stream.context.has_value()) {
      stream.device = device_of(*stream.context);
      if (!stream.device.has_value() &&
          std::none_of(out.contexts.begin(), out.contexts.end(),
                       [&](const GpuContextSample& c) { return c.index == *stream.context; })) {
        stream.context.reset();
      }
    }
    if (stream.oldest.has_value()) named(&*stream.oldest);
    if (stream.last.has_value()) named(&*stream.last);
    for (GpuLaunch& launch : stream.behind) named(&launch);
    out.streams.push_back(std::move(stream));
  }
  if (out.state == MC_GPU_WATCHING || out.state == MC_GPU_ARMED) AddWaits(&out, now_ns);

  // A wait that is over holds no longer.
  for (GpuStreamSample& stream : out.streams) {
    if (!stream.waits_for_stream.has_value()) continue;
    const auto other =
        std::find_if(out.streams.begin(), out.streams.end(),
                     [&](const GpuStreamSample& s) { return s.index == *stream.waits_for_stream; });
    if (other == out.streams.end() || other->finished >= stream.wait_ticket ||
        stream.finished > stream.wait_at) {
      stream.waits_for_stream.reset();
      stream.wait_ticket = stream.wait_at = 0;
    }
  }

  const uint64_t end = h.next_event_id == 0 ? 1 : h.next_event_id;
  uint64_t begin = std::max<uint64_t>(next_event_id, 1);
  if (begin > end) begin = end;  // another board, or a lie
  if (end - begin > board.event_capacity()) {
    out.events_missed = end - begin - board.event_capacity();
    begin = end - board.event_capacity();
  }
  for (uint64_t id = begin; id < end; ++id) {
    mc_gpu_event line{};
    if (!board.ReadEvent(id, &line) || line.id != id) {
      ++out.events_missed;
      continue;
    }
    out.events.push_back(DecodeGpuEvent(line));
    if (out.events.back().name >= out.names.size()) out.events.back().name = 0;
  }
  out.next_event_id = end;
  return out;
}

std::string DescribeGpuState(const GpuSnapshot& s) {
  switch (s.state) {
    case MC_GPU_STARTING:
      return "CUPTI is being loaded";
    case MC_GPU_WATCHING:
    case MC_GPU_ARMED:
      if (!s.layout_known) {
        return "activity records of CUPTI version " + std::to_string(s.cupti_version) +
               " are not known to this release: GPU times are not visible";
      }
      if (s.launches > 0 && s.nccl_launches == 0) {
        return "0 of " + std::to_string(s.launches) +
               " kernels have a name of NCCL's; MYCROFT_NCCL_KERNELS adds patterns";
      }
      return "";
    case MC_GPU_OFF_BY_USER:
      return "off by MYCROFT_CUPTI=off";
    case MC_GPU_RELEASED:
      return "CUPTI was released on request";
    case MC_GPU_NO_LIBRARY:
      return "no libcupti found: set CUDA_HOME, or MYCROFT_CUPTI_LIBRARY to its path";
    case MC_GPU_NO_SYMBOL:
      return "libcupti lacks " + s.cupti_path;
    case MC_GPU_TAKEN:
      return "CUPTI is in use by " +
             (s.other_subscriber.empty() ? std::string("another tool") : s.other_subscriber);
    case MC_GPU_FAILED:
      return "CUPTI call " + std::to_string(s.error_call) + " failed with error " +
             std::to_string(s.error);
    case MC_GPU_FATAL:
      return "CUPTI reported fatal error " + std::to_string(s.error) + " and detached itself";
    case MC_GPU_STATE_COUNT:
      break;
  }
  return "unknown state";
}

}  // namespace mycroft
