// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/testing/test_gpu_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace mycroft {

TestGpuBoard::TestGpuBoard(const TestGpuBoardOptions& o) {
  uint64_t at = 4096;
  const auto place = [&](size_t line, uint32_t capacity) {
    const mc_board_table table{at, static_cast<uint32_t>(line) + o.extra_stride, capacity};
    at += uint64_t{table.stride} * capacity;
    return table;
  };
  devices_ = place(sizeof(mc_gpu_device), o.devices);
  contexts_ = place(sizeof(mc_gpu_context), o.contexts);
  streams_ = place(sizeof(mc_gpu_stream), o.streams);
  names_ = place(sizeof(mc_gpu_name), o.names);
  threads_ = place(sizeof(mc_gpu_thread), o.threads);
  events_ = place(sizeof(mc_gpu_event), o.events);
  size_ = at + o.extra_bytes;

  fd_ = memfd_create(MC_GPU_BOARD_MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(size_)) != 0) abort();
  void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) abort();
  base_ = static_cast<std::byte*>(base);
  mc_gpu_header& h = header();
  h.magic = MC_GPU_BOARD_MAGIC;
  h.version = MC_GPU_BOARD_VERSION;
  h.header_bytes = sizeof(h);
  h.total_bytes = size_;
  h.pid = static_cast<uint32_t>(getpid());
  h.devices = devices_;
  h.contexts = contexts_;
  h.streams = streams_;
  h.names = names_;
  h.threads = threads_;
  h.events = events_;
  h.state = MC_GPU_WATCHING;
  h.level = MC_GPU_LEVEL_CALLBACKS;
  h.layout_known = 1;
  h.names_used = 1;
  h.next_event_id = 1;
  if (o.edit) o.edit(h);
  const int seals = o.seals == -1 ? F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL : o.seals;
  if (fcntl(fd_, F_ADD_SEALS, seals) != 0) abort();
}

TestGpuBoard::~TestGpuBoard() {
  munmap(base_, size_);
  close(fd_);
}

mc_gpu_device& TestGpuBoard::device(uint32_t i) {
  header().devices_used = std::max(header().devices_used, i + 1);
  return *reinterpret_cast<mc_gpu_device*>(Line(devices_, i));
}
mc_gpu_context& TestGpuBoard::context(uint32_t i) {
  header().contexts_used = std::max(header().contexts_used, i + 1);
  return *reinterpret_cast<mc_gpu_context*>(Line(contexts_, i));
}
mc_gpu_stream& TestGpuBoard::stream(uint32_t i) {
  header().streams_used = std::max(header().streams_used, i + 1);
  return *reinterpret_cast<mc_gpu_stream*>(Line(streams_, i));
}
mc_gpu_name& TestGpuBoard::name(uint32_t i) {
  header().names_used = std::max(header().names_used, i + 1);
  return *reinterpret_cast<mc_gpu_name*>(Line(names_, i));
}
mc_gpu_thread& TestGpuBoard::thread(uint32_t i) {
  header().threads_used = std::max(header().threads_used, i + 1);
  return *reinterpret_cast<mc_gpu_thread*>(Line(threads_, i));
}
mc_gpu_event& TestGpuBoard::event(uint64_t id) {
  header().next_event_id = std::max(header().next_event_id, id + 1);
  return *reinterpret_cast<mc_gpu_event*>(Line(events_, id & (events_.capacity - 1)));
}

}  // namespace mycroft
