// SPDX-License-Identifier: Apache-2.0
//
// For tests: the built plugin as NCCL sees it (dlopen, data symbol, table), and its
// board as the agent sees it (a memfd in /proc/self/fd).
//
// Every Plugin is a copy of the library under another name, so that each test has
// an instance with a board of its own. An instance stays loaded (-z nodelete).
#ifndef MYCROFT_CUPTI_NCCL_PLUGIN_HARNESS_H_
#define MYCROFT_CUPTI_NCCL_PLUGIN_HARNESS_H_

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "bpf/abi/board.h"
#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {

inline std::set<std::string> BoardFds() {
  std::set<std::string> found;
  DIR* dir = opendir("/proc/self/fd");
  while (dirent* e = readdir(dir)) {
    char target[256];
    const std::string path = std::string("/proc/self/fd/") + e->d_name;
    ssize_t n = readlink(path.c_str(), target, sizeof(target));
    if (n > 0 && std::string(target, static_cast<size_t>(n)) == "/memfd:mycroft-board (deleted)") {
      found.insert(path);
    }
  }
  closedir(dir);
  return found;
}

// A read-write mapping, as the agent has it to write requested_level.
class BoardView {
 public:
  explicit BoardView(const std::string& path) {
    fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat st = {};
    if (fd_ < 0 || fstat(fd_, &st) != 0) return;
    bytes_ = static_cast<size_t>(st.st_size);
    seals_ = fcntl(fd_, F_GET_SEALS);
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (at != MAP_FAILED) base_ = static_cast<uint8_t*>(at);
  }
  ~BoardView() {
    if (base_ != nullptr) munmap(base_, bytes_);
    if (fd_ >= 0) close(fd_);
  }
  BoardView(const BoardView&) = delete;
  BoardView& operator=(const BoardView&) = delete;

  bool ok() const { return base_ != nullptr; }
  int seals() const { return seals_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  mc_board_header& header() const { return *reinterpret_cast<mc_board_header*>(base_); }
  mc_board_comm& comm(uint32_t i) const { return Line<mc_board_comm>(header().comms, i); }
  mc_board_thread& thread(uint32_t i) const { return Line<mc_board_thread>(header().threads, i); }
  mc_board_op& op(uint64_t id) const {
    return Line<mc_board_op>(header().ops, static_cast<uint32_t>(id % MC_BOARD_MAX_OPS));
  }
  mc_board_flow& flow_line(uint32_t i) const { return Line<mc_board_flow>(header().flows, i); }
  uint64_t lost(mc_loss cause) const { return header().lost[cause]; }

  // The last flow written with this identity; null when there is none.
  mc_board_flow* flow(uint16_t comm, uint8_t channel, int peer, mc_direction direction) const {
    for (uint32_t i = 0; i < header().flows_used; ++i) {
      mc_board_flow& f = flow_line(i);
      if (f.comm == comm && f.channel == channel && f.peer == peer && f.direction == direction) {
        return &f;
      }
    }
    return nullptr;
  }

  // Every index and counter within bounds, every line at rest.
  void ExpectSane() const {
    const mc_board_header& h = header();
    EXPECT_EQ(h.magic, MC_BOARD_MAGIC);
    EXPECT_LE(h.comms_used, h.comms.capacity);
    EXPECT_LE(h.threads_used, h.threads.capacity);
    EXPECT_LE(h.flows_used, h.flows.capacity);
    for (uint32_t i = 0; i < h.comms_used; ++i) EXPECT_EQ(comm(i).seq % 2, 0u);
    for (uint32_t i = 0; i < h.ops.capacity; ++i) {
      const mc_board_op& o = op(i);
      ASSERT_EQ(o.seq % 2 + o.proxy_seq % 2 + o.kernel_seq % 2, 0u);
      if (o.id == 0) continue;
      ASSERT_EQ(o.id % MC_BOARD_MAX_OPS, i);
      ASSERT_LT(o.id, h.next_op_id);
      ASSERT_LT(o.comm, h.comms_used);
      ASSERT_LE(o.proxy_done, o.proxy_progress) << "op " << o.id;
      ASSERT_LE(o.proxy_progress, o.proxy_started) << "op " << o.id;
      ASSERT_LE(o.kernel_stopped, o.kernel_started);
    }
    for (uint32_t i = 0; i < h.flows_used; ++i) {
      const mc_board_flow& f = flow_line(i);
      ASSERT_EQ(f.seq % 2, 0u);
      ASSERT_LE(f.done, f.transmitted) << "flow " << i;
      ASSERT_LE(f.transmitted, f.ready) << "flow " << i;
      ASSERT_LE(f.ready, f.posted) << "flow " << i;
      ASSERT_LE(f.posted, f.total) << "flow " << i;
      ASSERT_LE(f.state, MC_FLOW_RECV_GPU);
      ASSERT_EQ(f.open_ops == 0, f.state == MC_FLOW_IDLE) << "flow " << i;
    }
  }

 private:
  template <class T>
  T& Line(const mc_board_table& table, uint32_t i) const {
    EXPECT_LT(i, table.capacity);
    return *reinterpret_cast<T*>(base_ + table.offset + uint64_t{i} * table.stride);
  }
  int fd_ = -1;
  int seals_ = 0;
  size_t bytes_ = 0;
  uint8_t* base_ = nullptr;
};

inline std::string CopyToTemporaryFile(const std::string& path) {
  char name[] = "/tmp/mycroft-plugin-XXXXXX";
  close(mkstemp(name));
  std::ifstream in(path, std::ios::binary);
  std::ofstream out(name, std::ios::binary | std::ios::trunc);
  out << in.rdbuf();
  return name;
}

// A copy of the library, loaded the way NCCL loads it.
class Library {
 public:
  explicit Library(const std::string& path) {
    const std::string name = CopyToTemporaryFile(path);
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) ADD_FAILURE() << dlerror();
    unlink(name.c_str());
  }
  template <class T>
  T* Symbol(const char* name) const {
    return handle_ != nullptr ? reinterpret_cast<T*>(dlsym(handle_, name)) : nullptr;
  }
  void Close() { dlclose(handle_); }

 private:
  void* handle_ = nullptr;
};

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_PLUGIN_HARNESS_H_
