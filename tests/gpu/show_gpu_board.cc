// SPDX-License-Identifier: Apache-2.0
//
// show_gpu_board PID: what a process's GPU board says now, as JSON: the streams with their
// oldest unfinished work, kernels by name with their times, losses. Exit 0, 1 there is no
// board or it cannot be read, 2 usage.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "userspace/base/clock.h"
#include "userspace/decode/gpu_board_decode.h"
#include "userspace/source/gpu_board_map.h"
#include "userspace/source/proc.h"

namespace mycroft {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCopies[] = {"htod", "dtoh", "dtod", "peer", "other"};
constexpr const char* kLosses[] = {
    "context_table_full", "stream_table_full", "name_table_full", "thread_table_full",
    "event_table_full",   "pool_empty",        "dropped",         "unknown_stream",
    "unmatched",          "no_time",           "unknown_kind",    "foreign_buffer",
    "late_buffer",        "backwards"};
static_assert(std::size(kCopies) == MC_GPU_COPY_COUNT);
static_assert(std::size(kLosses) == MC_GPU_LOSS_COUNT);

const char* Name(GpuPending pending) {
  switch (pending) {
    case GpuPending::kNone:
      return "none";
    case GpuPending::kUnknown:
      return "unknown";
    case GpuPending::kWaitedFor:
      return "waited for";
    case GpuPending::kUnfinished:
      return "unfinished";
  }
  return "?";
}

const char* Name(mc_gpu_clock clock) {
  switch (clock) {
    case MC_GPU_CLOCK_NONE:
      return "none";
    case MC_GPU_CLOCK_MONOTONIC:
      return "monotonic";
    case MC_GPU_CLOCK_PAIRED:
      return "paired";
  }
  return "?";
}

Json Optional(const std::optional<uint32_t>& value) { return value ? Json(*value) : Json(); }

Json ToJson(const GpuStreamSample& s, uint64_t now_ns) {
  Json copies = Json::object();
  for (size_t i = 0; i < MC_GPU_COPY_COUNT; ++i) copies[kCopies[i]] = s.copies[i];
  Json out = {{"index", s.index},
              {"alive", s.alive},
              {"stream_id", Optional(s.stream_id)},
              {"device", Optional(s.device)},
              {"launched", s.launched},
              {"finished", s.finished},
              {"kernels", s.kernels},
              {"nccl_kernels", s.nccl_kernels},
              {"memsets", s.memsets},
              {"voids", s.voids},
              {"copies", std::move(copies)},
              {"records", s.records},
              {"pending", Name(s.pending)},
              {"waited_since_ns", s.waited_since_ns},
              {"oldest", nullptr}};
  if (s.oldest) {
    const uint64_t launch_ns = s.oldest->launch_ns;
    out["oldest"] = {{"kernel", s.oldest->kernel},
                     {"work", s.oldest->work},
                     {"ticket", s.oldest->ticket},
                     {"launch_ns", launch_ns},
                     {"age_ns", now_ns > launch_ns ? now_ns - launch_ns : 0}};
  }
  return out;
}

Json ToJson(const GpuSnapshot& s, uint64_t now_ns) {
  Json lost = Json::object(), devices = Json::array(), streams = Json::array(),
       names = Json::array(), waiting = Json::array();
  for (size_t i = 0; i < MC_GPU_LOSS_COUNT; ++i) lost[kLosses[i]] = s.lost[i];
  for (const GpuDeviceSample& device : s.devices) {
    devices.push_back({{"ordinal", device.ordinal},
                       {"name", device.name},
                       {"uuid", device.uuid},
                       {"pci", device.pci}});
  }
  for (const GpuStreamSample& stream : s.streams) streams.push_back(ToJson(stream, now_ns));
  for (const GpuNameSample& name : s.names) {
    if (name.count == 0) continue;
    names.push_back({{"name", name.name},
                     {"nccl", name.nccl},
                     {"count", name.count},
                     {"min_ns", name.min_ns},
                     {"mean_ns", name.sum_ns / name.count},
                     {"max_ns", name.max_ns}});
  }
  for (const GpuThreadSample& thread : s.threads) {
    if (thread.call == MC_GPU_HOST_NONE) continue;
    waiting.push_back({{"tid", thread.tid},
                       {"call", thread.call},
                       {"since_ns", thread.enter_ns},
                       {"stream", Optional(thread.stream)}});
  }
  return {{"now_ns", now_ns},
          {"clock", "CLOCK_MONOTONIC"},
          {"state", s.state},
          {"problem", DescribeGpuState(s)},
          {"level", s.level},
          {"library_version", s.library_version},
          {"cupti_version", s.cupti_version},
          {"cupti_path", s.cupti_path},
          {"error", s.error},
          {"error_call", s.error_call},
          {"layout_known", s.layout_known},
          {"gpu_clock", Name(s.clock)},
          {"gpu_clock_error_ns", s.clock_error_ns},
          {"launches", s.launches},
          {"nccl_launches", s.nccl_launches},
          {"records", s.records},
          {"matched_exact", s.matched_exact},
          {"matched_near", s.matched_near},
          {"overhead_ns", s.overhead_ns},
          {"lost", std::move(lost)},
          {"torn_reads", s.torn_reads},
          {"devices", std::move(devices)},
          {"streams", std::move(streams)},
          {"names", std::move(names)},
          {"waiting", std::move(waiting)}};
}

int Main(int argc, char** argv) {
  const long pid = argc == 2 ? std::strtol(argv[1], nullptr, 10) : 0;
  if (pid <= 0 || pid > 4194304) {
    std::fprintf(stderr, "usage: show_gpu_board PID\n");
    return 2;
  }
  bool denied = false;
  const std::vector<std::string> paths =
      FindMemfds("/proc", static_cast<uint32_t>(pid), MC_GPU_BOARD_MEMFD_NAME, &denied);
  if (paths.empty()) {
    std::fprintf(stderr, "show_gpu_board: process %ld %s\n", pid,
                 denied ? "may not be looked into: run as root"
                        : "has no GPU board: it is gone, or was not started with "
                          "CUDA_INJECTION64_PATH, or has not called CUDA yet");
    return 1;
  }
  const absl::StatusOr<GpuBoardMap> board = GpuBoardMap::Open(paths[0]);
  if (!board.ok()) {
    std::fprintf(stderr, "show_gpu_board: %s\n", std::string(board.status().message()).c_str());
    return 1;
  }
  const uint64_t now_ns = MonotonicNs();
  const Json json = ToJson(ReadGpuBoard(*board, 1, now_ns), now_ns);
  std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  return 0;
}

}  // namespace
}  // namespace mycroft

int main(int argc, char** argv) { return mycroft::Main(argc, argv); }
