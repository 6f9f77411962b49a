// SPDX-License-Identifier: Apache-2.0
//
// Reads a file of recorded profiler callbacks: JSON Lines, plain or gzip, one
// callback per line in the order in which NCCL made them. Kinds of line:
//
//   hdr   first line: format version, pid, plugin API version, clock pair
//   thr   a thread is seen for the first time, or has a new name
//   init, fini        a communicator comes and goes      (c = context)
//   b, s, e           startEvent, recordEventState, stopEvent  (h = handle)
//   clk   last line: the end of the process; absent when it was killed
//
// Streaming: holds one line. Not thread-safe. Times are nanoseconds of the
// CLOCK_MONOTONIC of the machine on which the file was recorded.
#ifndef MYCROFT_TOOLS_LAB_REPLAY_TRACE_READER_H_
#define MYCROFT_TOOLS_LAB_REPLAY_TRACE_READER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace mycroft {

struct TraceHeader {
  int64_t format = 0;  // 1
  uint32_t pid = 0;    // of the recorded process
  int api = 0;         // 4, 5 or 6: the ncclProfiler_vN that was in use
  std::string nccl;    // "2.28.9"
  uint64_t mono_ns = 0;
  uint64_t wall_ns = 0;  // read together with mono_ns
};

enum class TraceKind : uint8_t { kThread, kInit, kStart, kState, kStop, kFinalize, kEnd };

// One line. Fields that the line does not have are 0; text fields that it does
// not have are null. Text lives as long as the reader.
struct TraceLine {
  TraceKind kind = TraceKind::kThread;
  uint64_t t_ns = 0;
  uint32_t thread = 0;
  uint64_t context = 0;       // c
  uint64_t handle = 0;        // h
  uint64_t parent = 0;        // p: handle of this file
  uint64_t raw_parent = 0;    // praw: a value that is not a handle of this file
  uint64_t parent_group = 0;  // pg: handle of this file
  uint64_t type = 0;          // ty
  int64_t state = 0;          // st
  bool has_args = false;      // s: NCCL passed arguments
  int64_t rank = 0;           // rk; init: r
  // init
  uint64_t comm_id = 0;
  int64_t nodes = 0;
  int64_t ranks = 0;
  int64_t mask = 0;            // what the recording plugin asked for
  const char* name = nullptr;  // init: communicator, thr: thread
  // startEvent
  const char* func = nullptr;
  const char* datatype = nullptr;
  const char* algo = nullptr;
  const char* proto = nullptr;
  const char* sync = nullptr;  // CeColl
  uint64_t seq = 0;
  uint64_t count = 0;
  int64_t root = 0;
  int64_t peer = 0;
  int64_t channels = 0;
  int64_t warps = 0;
  uint64_t send_buffer = 0;
  uint64_t recv_buffer = 0;
  uint64_t buffer = 0;
  uint64_t stream = 0;
  int64_t pid = 0;
  int64_t channel = 0;
  int64_t steps = 0;
  int64_t chunk_bytes = 0;
  int64_t is_send = 0;
  int64_t step = 0;
  int64_t graph_captured = 0;
  int64_t group_depth = 0;
  int64_t net_id = 0;
  uint64_t net_data = 0;
  int64_t intra = 0, batch_size = 0, batches = 0, ce_seq = 0;  // CeColl
  int64_t done = 0, nranks = 0;                                // CeSync
  int64_t ops = 0;                                             // CeBatch
  uint64_t bytes = 0;                                          // CeBatch
  // startEvent KernelCh and recordEventState
  uint64_t device_ns = 0;  // pt
  uint64_t size = 0;       // sz
  int64_t appended = 0;    // app
  // end
  int64_t signal = 0;  // a signal ended the process
};

class TraceReader {
 public:
  // Reads the header. Errors: NotFound, PermissionDenied, InvalidArgument (not
  // such a file, an unknown format or API version); the text names the file.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TraceReader>> Open(const std::string& path);
  ~TraceReader();
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  const TraceHeader& header() const { return header_; }
  // The next line; nullopt at the end of the file. Errors: InvalidArgument "FILE:LINE: why".
  // A last line without its newline that does not parse is what a killed process
  // leaves: it counts as the end.
  [[nodiscard]] absl::StatusOr<std::optional<TraceLine>> Next();

 private:
  TraceReader(std::string path, void* gz);
  [[nodiscard]] absl::Status ReadHeader();
  // False at the end of the file.
  [[nodiscard]] absl::StatusOr<bool> ReadText();
  absl::Status Bad(const std::string& why) const;

  std::string path_;
  void* gz_;  // gzFile
  TraceHeader header_;
  std::string text_;
  bool complete_ = false;  // text_ ended with a newline
  uint64_t line_ = 0;
  uint64_t last_t_ns_ = 0;
  std::unordered_set<std::string> strings_;  // node-based: what it holds does not move
};

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_LAB_REPLAY_TRACE_READER_H_
