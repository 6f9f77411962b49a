// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/testing/test_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mycroft {
namespace {

void Require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

// The part [offset, offset + bytes) begins with its sequence word.
void WritePart(std::byte* line, const void* from, size_t offset, size_t bytes) {
  auto* seq = reinterpret_cast<uint32_t*>(line + offset);
  const uint32_t odd = __atomic_load_n(seq, __ATOMIC_RELAXED) | 1u;
  __atomic_store_n(seq, odd, __ATOMIC_RELAXED);
  const auto* source = static_cast<const std::byte*>(from) + offset;
  for (size_t at = 4; at < bytes; at += 4) {
    uint32_t word = 0;
    std::memcpy(&word, source + at, 4);
    __atomic_store_n(reinterpret_cast<uint32_t*>(line + offset + at), word, __ATOMIC_RELEASE);
  }
  __atomic_store_n(seq, odd + 1, __ATOMIC_RELEASE);
}

void RaiseTo(uint32_t* mark, uint32_t value) {
  if (__atomic_load_n(mark, __ATOMIC_RELAXED) < value) {
    __atomic_store_n(mark, value, __ATOMIC_RELEASE);
  }
}

}  // namespace

TestBoard::TestBoard(const TestBoardOptions& options) {
  uint64_t end = sizeof(mc_board_header);
  auto table = [&](uint32_t bytes, uint32_t capacity) {
    mc_board_table t{end, bytes + options.extra_stride, capacity};
    end += uint64_t{t.stride} * capacity;
    return t;
  };
  comms_ = table(sizeof(mc_board_comm), options.comms);
  threads_ = table(sizeof(mc_board_thread), options.threads);
  ops_ = table(sizeof(mc_board_op), options.ops);
  flows_ = table(sizeof(mc_board_flow), options.flows);
  size_ = end + options.extra_bytes;

  fd_ = memfd_create(options.name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  Require(fd_ >= 0, "memfd_create");
  Require(ftruncate(fd_, static_cast<off_t>(size_)) == 0, "ftruncate");
  void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  Require(base != MAP_FAILED, "mmap");
  base_ = static_cast<std::byte*>(base);

  mc_board_header& h = header();
  h.magic = MC_BOARD_MAGIC;
  h.version = MC_BOARD_VERSION;
  h.header_bytes = sizeof(h);
  h.total_bytes = size_;
  h.pid = static_cast<uint32_t>(getpid());
  h.profiler_api = 5;
  h.comms = comms_;
  h.threads = threads_;
  h.ops = ops_;
  h.flows = flows_;
  h.level = MC_LEVEL_STEPS;
  h.next_op_id = 1;
  if (options.edit) options.edit(h);
  const int seals = options.seals >= 0 ? options.seals : F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  Require(seals == 0 || fcntl(fd_, F_ADD_SEALS, seals) == 0, "F_ADD_SEALS");
}

TestBoard::~TestBoard() {
  munmap(base_, size_);
  close(fd_);
}

void TestBoard::WriteComm(uint32_t index, const mc_board_comm& line) {
  WritePart(Line(comms_, index), &line, 0, sizeof(line));
  RaiseTo(&header().comms_used, index + 1);
}

void TestBoard::WriteThread(uint32_t index, const mc_board_thread& line) {
  WritePart(Line(threads_, index), &line, 0, sizeof(line));
  RaiseTo(&header().threads_used, index + 1);
}

void TestBoard::WriteFlow(uint32_t index, const mc_board_flow& line) {
  WritePart(Line(flows_, index), &line, 0, sizeof(line));
  RaiseTo(&header().flows_used, index + 1);
}

void TestBoard::WriteOp(const mc_board_op& line) {
  constexpr size_t kProxy = offsetof(mc_board_op, proxy_seq);
  constexpr size_t kKernel = offsetof(mc_board_op, kernel_seq);
  std::byte* at = OpLine(line.id);
  WritePart(at, &line, 0, kProxy);
  WritePart(at, &line, kProxy, kKernel - kProxy);
  WritePart(at, &line, kKernel, sizeof(line) - kKernel);
  uint64_t* next = &header().next_op_id;
  if (__atomic_load_n(next, __ATOMIC_RELAXED) <= line.id) {
    __atomic_store_n(next, line.id + 1, __ATOMIC_RELEASE);
  }
}

}  // namespace mycroft
