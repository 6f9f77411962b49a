// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/gpu_board_map.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"

namespace mycroft {

absl::StatusOr<GpuBoardMap> GpuBoardMap::Open(const std::string& path) {
  auto sealed = SealedMap::Open(path, sizeof(mc_gpu_header), MC_GPU_BOARD_MAX_BYTES);
  if (!sealed.ok()) return sealed.status();
  GpuBoardMap map;
  map.map_ = *std::move(sealed);
  static_assert(offsetof(mc_gpu_header, magic) == 0);

  mc_gpu_header header{};
  map.map_.CopyHead(&header, sizeof(header));
  if (header.magic != MC_GPU_BOARD_MAGIC) return map.map_.Bad("wrong magic number");
  if (header.version != MC_GPU_BOARD_VERSION) {
    return absl::FailedPreconditionError(
        "GPU board " + path + " has version " + std::to_string(header.version) +
        ", this program reads version " + std::to_string(MC_GPU_BOARD_VERSION) +
        ": use the library and the agent of one release");
  }
  if (header.total_bytes != map.map_.bytes()) {
    return map.map_.Bad("the size in its header is wrong");
  }
  if (!map.map_.TableFits(header.devices, sizeof(mc_gpu_device), 4096) ||
      !map.map_.TableFits(header.contexts, sizeof(mc_gpu_context), 4096) ||
      !map.map_.TableFits(header.streams, sizeof(mc_gpu_stream), 65535) ||
      !map.map_.TableFits(header.names, sizeof(mc_gpu_name), 65535) ||
      !map.map_.TableFits(header.threads, sizeof(mc_gpu_thread), 65535) ||
      !map.map_.TableFits(header.events, sizeof(mc_gpu_event), 1u << 20) ||
      !std::has_single_bit(header.events.capacity)) {
    return map.map_.Bad("its table directory is out of bounds");
  }
  map.devices_ = header.devices;
  map.contexts_ = header.contexts;
  map.streams_ = header.streams;
  map.names_ = header.names;
  map.threads_ = header.threads;
  map.events_ = header.events;
  return map;
}

mc_gpu_header GpuBoardMap::Header() const {
  mc_gpu_header header{};
  map_.CopyHead(&header, sizeof(header));
  header.devices = devices_;
  header.contexts = contexts_;
  header.streams = streams_;
  header.names = names_;
  header.threads = threads_;
  header.events = events_;
  return header;
}

bool GpuBoardMap::ReadDevice(uint32_t index, mc_gpu_device* out) const {
  const std::byte* line = map_.Line(devices_, index);
  return line != nullptr && SealedMap::ReadPart(line, 0, sizeof(*out), out);
}

bool GpuBoardMap::ReadContext(uint32_t index, mc_gpu_context* out) const {
  const std::byte* line = map_.Line(contexts_, index);
  return line != nullptr && SealedMap::ReadPart(line, 0, sizeof(*out), out);
}

bool GpuBoardMap::ReadName(uint32_t index, mc_gpu_name* out) const {
  constexpr size_t kTime = offsetof(mc_gpu_name, time_seq);
  const std::byte* line = map_.Line(names_, index);
  return line != nullptr && SealedMap::ReadPart(line, 0, kTime, out) &&
         SealedMap::ReadPart(line, kTime, sizeof(*out) - kTime, out);
}

bool GpuBoardMap::ReadThread(uint32_t index, mc_gpu_thread* out) const {
  const std::byte* line = map_.Line(threads_, index);
  return line != nullptr && SealedMap::ReadPart(line, 0, sizeof(*out), out);
}

bool GpuBoardMap::ReadStream(uint32_t index, mc_gpu_stream* out) const {
  const std::byte* line = map_.Line(streams_, index);
  if (line == nullptr) return false;
  constexpr size_t kLaunch = offsetof(mc_gpu_stream, launch_seq);
  constexpr size_t kFinish = offsetof(mc_gpu_stream, finish_seq);
  constexpr size_t kRecord = offsetof(mc_gpu_stream, record_seq);
  constexpr size_t kOldest = offsetof(mc_gpu_stream, oldest);
  constexpr size_t kQueue = offsetof(mc_gpu_stream, queue);
  // What is known to be finished first, then what was launched, then the queue: the
  // oldest unfinished is looked for in what is newer than the statement about it.
  if (!SealedMap::ReadPart(line, 0, kLaunch, out)) return false;
  if (!SealedMap::ReadPart(line, kFinish, kRecord - kFinish, out)) return false;
  if (!SealedMap::ReadPart(line, kLaunch, kFinish - kLaunch, out)) return false;
  if (!SealedMap::ReadPart(line, kRecord, kOldest - kRecord, out)) return false;
  const auto launch = [&](size_t at, mc_gpu_launch* to) {
    if (!SealedMap::ReadPart(line, at, sizeof(mc_gpu_launch), out)) {
      std::memset(to, 0, sizeof(*to));
    }
  };
  launch(kOldest, &out->oldest);
  for (uint32_t i = 0; i < MC_GPU_QUEUE; ++i) {
    launch(kQueue + i * sizeof(mc_gpu_launch), &out->queue[i]);
  }
  return true;
}

bool GpuBoardMap::ReadEvent(uint64_t id, mc_gpu_event* out) const {
  const std::byte* line = map_.Line(events_, id & (events_.capacity - 1));
  return line != nullptr && SealedMap::ReadPart(line, 0, sizeof(*out), out);
}

bool GpuBoardMap::RequestLevel(mc_gpu_level level, uint64_t until_ns) {
  void* head = map_.MapHeadForWriting(sizeof(mc_gpu_header), MC_GPU_BOARD_MAGIC);
  if (head == nullptr) return false;
  auto* header = static_cast<mc_gpu_header*>(head);
  __atomic_store_n(&header->requested_until_ns, until_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&header->requested_level, uint32_t{level}, __ATOMIC_RELEASE);
  SealedMap::UnmapHead(head, sizeof(mc_gpu_header));
  return true;
}

}  // namespace mycroft
