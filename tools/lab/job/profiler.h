// SPDX-License-Identifier: Apache-2.0
//
// The host side of NCCL's profiler interface: finds and loads the plugin as NCCL
// does, and calls it in the version that the plugin exports.
//
//   NCCL_PROFILER_PLUGIN unset   dlopen libnccl-profiler.so
//   "none"                       no plugin
//   "STATIC_PLUGIN"              dlopen(NULL): the program or a preloaded library
//   X                            dlopen X, then libnccl-profiler-X.so if X is a bare name
//
// The newest of ncclProfiler_v6, _v5, _v4 is used. One Profiler per process; its
// event mask is one int for all communicators, written by the plugin at any time.
// Start/State/Stop may be called from any thread. Handles are the plugin's business.
#ifndef MYCROFT_TOOLS_LAB_JOB_PROFILER_H_
#define MYCROFT_TOOLS_LAB_JOB_PROFILER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cupti/nccl/profiler_abi.h"

namespace mycroft::lab {

// Event types that turn on a type: its own bit and those of its descendants.
inline constexpr uint64_t kWantsStep = nccl::kProxyStep | nccl::kNetPlugin;
inline constexpr uint64_t kWantsOp = nccl::kProxyOp | kWantsStep;
inline constexpr uint64_t kWantsColl = nccl::kColl | kWantsOp | nccl::kKernelCh;
inline constexpr uint64_t kWantsP2p = nccl::kP2p | kWantsOp | nccl::kKernelCh;
inline constexpr uint64_t kWantsGroup = nccl::kGroup | kWantsColl | kWantsP2p;
inline constexpr uint64_t kWantsCollApi =
    nccl::kCollApi | kWantsColl | nccl::kCeColl | nccl::kCeSync | nccl::kCeBatch;
inline constexpr uint64_t kWantsP2pApi = nccl::kP2pApi | kWantsP2p;
inline constexpr uint64_t kWantsGroupApi =
    nccl::kGroupApi | kWantsGroup | kWantsCollApi | kWantsP2pApi | nccl::kKernelLaunch;

class Profiler {
 public:
  // `value` as in NCCL_PROFILER_PLUGIN; nullptr: the variable itself. `api` 0: newest.
  // Never null: without a plugin the Profiler is not active and `note` says why. An
  // error only where `required` and nothing could be loaded.
  static absl::StatusOr<std::unique_ptr<Profiler>> Load(const char* value, int api, bool required,
                                                        std::string* note);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  bool active() const { return api_ != 0; }
  int api() const { return api_; }  // 4, 5, 6; 0 none
  const char* name() const;
  uint64_t mask() const { return static_cast<uint32_t>(__atomic_load_n(&mask_, __ATOMIC_RELAXED)); }

  // The context; nullptr when the plugin refused (the job goes on without, as NCCL does).
  void* Init(uint64_t comm_id, const std::string& comm_name, int nnodes, int nranks, int rank);
  void Finalize(void* context);

  void Start(void* context, void** handle, nccl::EventDescrV6* descr);
  void Stop(void* handle);
  void State(void* handle, nccl::EventState state, nccl::StateArgs* args);

 private:
  Profiler() = default;
  void* library_ = nullptr;
  int api_ = 0;
  int mask_ = 0;
  const nccl::ProfilerV4* v4_ = nullptr;
  const nccl::ProfilerV5* v5_ = nullptr;
  const nccl::ProfilerV6* v6_ = nullptr;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_PROFILER_H_
