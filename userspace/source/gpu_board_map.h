// SPDX-License-Identifier: Apache-2.0
//
// A GPU board of another process, mapped read-only (sealed_map.h): written by
// libmycroft-cupti.so, laid out by bpf/abi/gpu_board.h. Found as the progress board is:
// FindMemfds(proc_root, pid, MC_GPU_BOARD_MEMFD_NAME). The table directory is checked
// once, on a copy. Lines are handed out as copies only.
//
// Owns the mapping; movable, not copyable. One thread at a time.
#ifndef MYCROFT_USERSPACE_SOURCE_GPU_BOARD_MAP_H_
#define MYCROFT_USERSPACE_SOURCE_GPU_BOARD_MAP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "bpf/abi/gpu_board.h"
#include "userspace/source/sealed_map.h"

namespace mycroft {

class GpuBoardMap {
 public:
  // Errors as BoardMap::Open's.
  [[nodiscard]] static absl::StatusOr<GpuBoardMap> Open(const std::string& path);

  GpuBoardMap(GpuBoardMap&&) = default;
  GpuBoardMap& operator=(GpuBoardMap&&) = default;

  // A copy of the header as it is now. The tables in it are those checked at Open.
  mc_gpu_header Header() const;

  // Copies one line, each of its parts whole. False: the index is out of range, or a
  // part was being written at every try.
  [[nodiscard]] bool ReadDevice(uint32_t index, mc_gpu_device* out) const;
  [[nodiscard]] bool ReadContext(uint32_t index, mc_gpu_context* out) const;
  [[nodiscard]] bool ReadName(uint32_t index, mc_gpu_name* out) const;
  [[nodiscard]] bool ReadThread(uint32_t index, mc_gpu_thread* out) const;
  // A launch of the queue, or the oldest, that was being written at every try is left
  // empty (ticket 0): a busy stream is written all the time.
  [[nodiscard]] bool ReadStream(uint32_t index, mc_gpu_stream* out) const;
  // The event in this slot; the id in it may be another than the one asked for.
  [[nodiscard]] bool ReadEvent(uint64_t id, mc_gpu_event* out) const;

  uint32_t device_capacity() const { return devices_.capacity; }
  uint32_t context_capacity() const { return contexts_.capacity; }
  uint32_t stream_capacity() const { return streams_.capacity; }
  uint32_t name_capacity() const { return names_.capacity; }
  uint32_t thread_capacity() const { return threads_.capacity; }
  uint32_t event_capacity() const { return events_.capacity; }

  // Asks the library for a level until `until_ns` (CLOCK_MONOTONIC; 0: until further
  // notice, not for MC_GPU_LEVEL_ACTIVITY). False: it could not be opened for writing.
  [[nodiscard]] bool RequestLevel(mc_gpu_level level, uint64_t until_ns);

 private:
  GpuBoardMap() = default;

  SealedMap map_;
  mc_board_table devices_{}, contexts_{}, streams_{}, names_{}, threads_{}, events_{};
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_GPU_BOARD_MAP_H_
