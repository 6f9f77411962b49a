// SPDX-License-Identifier: Apache-2.0
//
// Plays NCCL towards a profiler plugin: loads it with dlopen as NCCL does and
// turns recorded lines into calls through the function table of API version 4,
// 5 or 6. Handles and contexts of the recording become those that the plugin
// returned; a call on a handle that the plugin did not give (NULL) is left out,
// as NCCL leaves it out.
//
// A Session is one recorded process. Calls may come from any thread, one at a
// time per Session; sessions of one caller share the plugin and the event mask,
// as communicators of one process do.
#ifndef MYCROFT_TOOLS_LAB_REPLAY_PLUGIN_CALLER_H_
#define MYCROFT_TOOLS_LAB_REPLAY_PLUGIN_CALLER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cupti/nccl/profiler_abi.h"
#include "tools/lab/replay/trace_reader.h"

namespace mycroft {

// What went other than NCCL's contract with its plugins wants it.
struct PluginFaults {
  uint64_t failed_calls = 0;       // returned something else than ncclSuccess
  uint64_t unwritten_handles = 0;  // startEvent did not write the handle
  uint64_t null_handles = 0;       // startEvent wrote NULL: the event is not tracked
};

class PluginCaller {
 public:
  // `clock` (may be null) becomes the plugin's clock: CLOCK_MONOTONIC in ns. It
  // is called from every thread that calls the plugin. Errors: NotFound (the
  // file), FailedPrecondition (not a plugin; its clock cannot be replaced).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PluginCaller>> Load(const std::string& path,
                                                                          uint64_t (*clock)());
  PluginCaller(const PluginCaller&) = delete;
  PluginCaller& operator=(const PluginCaller&) = delete;

  class Session;
  // `pids`: process ids of the recording -> of this replay; others are passed on as
  // they are. FailedPrecondition when the plugin lacks that API version. The
  // caller must outlive the session.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Session>> NewSession(
      int api, std::map<uint32_t, uint32_t> pids);

  int event_mask() const { return mask_; }
  const std::string& path() const { return path_; }

 private:
  PluginCaller(std::string path, void* library);

  std::string path_;
  void* library_;  // never closed: plugins are linked with -z nodelete anyway
  int mask_ = 0;   // NCCL has one for the whole process
};

class PluginCaller::Session {
 public:
  virtual ~Session() = default;
  // Makes the call of one line; lines of kind thr and clk are no calls.
  virtual void Call(const TraceLine& line) = 0;
  const PluginFaults& faults() const { return faults_; }

 protected:
  PluginFaults faults_;
};

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_LAB_REPLAY_PLUGIN_CALLER_H_
