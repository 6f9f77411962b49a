// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/plugin_caller.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

namespace mycroft {
namespace {

// NCCL does not clear the handle before the call, so neither do we: a plugin
// that does not write it leaves this behind.
void* const kStale = reinterpret_cast<void*>(0x57a1e57a1e000001);

void* Pointer(uint64_t value) { return reinterpret_cast<void*>(static_cast<uintptr_t>(value)); }

// NCCL prints WARN lines whatever NCCL_DEBUG says.
void Log(nccl::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (level != nccl::kLogWarn) return;
  va_list args;
  va_start(args, format);
  std::fputs("NCCL WARN ", stderr);
  std::vfprintf(stderr, format, args);
  std::fputc('\n', stderr);
  va_end(args);
}

// The fields that all versions have.
template <typename Descr>
void FillCommon(const TraceLine& line, void* parent_group, int pid, Descr& d) {
  switch (line.type) {
    case nccl::kColl:
      d.coll.seq_number = line.seq;
      d.coll.func = line.func;
      d.coll.send_buff = Pointer(line.send_buffer);
      d.coll.recv_buff = Pointer(line.recv_buffer);
      d.coll.count = line.count;
      d.coll.root = static_cast<int>(line.root);
      d.coll.datatype = line.datatype;
      d.coll.channels = static_cast<uint8_t>(line.channels);
      d.coll.warps = static_cast<uint8_t>(line.warps);
      d.coll.algo = line.algo;
      d.coll.proto = line.proto;
      if constexpr (!std::is_same_v<Descr, nccl::EventDescrV4>) d.coll.parent_group = parent_group;
      break;
    case nccl::kP2p:
      d.p2p.func = line.func;
      d.p2p.buff = Pointer(line.buffer);
      d.p2p.datatype = line.datatype;
      d.p2p.count = line.count;
      d.p2p.peer = static_cast<int>(line.peer);
      d.p2p.channels = static_cast<uint8_t>(line.channels);
      if constexpr (!std::is_same_v<Descr, nccl::EventDescrV4>) d.p2p.parent_group = parent_group;
      break;
    case nccl::kProxyOp:
      d.proxy_op.pid = pid;
      d.proxy_op.channel = static_cast<uint8_t>(line.channel);
      d.proxy_op.peer = static_cast<int>(line.peer);
      d.proxy_op.steps = static_cast<int>(line.steps);
      d.proxy_op.chunk_size = static_cast<int>(line.chunk_bytes);
      d.proxy_op.is_send = static_cast<int>(line.is_send);
      break;
    case nccl::kProxyStep:
      d.proxy_step.step = static_cast<int>(line.step);
      break;
    case nccl::kKernelCh:
      d.kernel_ch.channel = static_cast<uint8_t>(line.channel);
      d.kernel_ch.gpu_timer = line.device_ns;
      break;
    case nccl::kNetPlugin:
      d.net_plugin.id = line.net_id;
      d.net_plugin.data = Pointer(line.net_data);
      break;
    default:
      break;  // Group, ProxyCtrl: no fields; the rest is of later versions
  }
}

template <typename Descr>
void FillApi(const TraceLine& line, Descr& d) {
  switch (line.type) {
    case nccl::kGroupApi:
      d.group_api.graph_captured = line.graph_captured != 0;
      d.group_api.group_depth = static_cast<int>(line.group_depth);
      break;
    case nccl::kCollApi:
      d.coll_api.func = line.func;
      d.coll_api.count = line.count;
      d.coll_api.datatype = line.datatype;
      d.coll_api.root = static_cast<int>(line.root);
      d.coll_api.stream = Pointer(line.stream);
      d.coll_api.graph_captured = line.graph_captured != 0;
      break;
    case nccl::kP2pApi:
      d.p2p_api.func = line.func;
      d.p2p_api.count = line.count;
      d.p2p_api.datatype = line.datatype;
      d.p2p_api.stream = Pointer(line.stream);
      d.p2p_api.graph_captured = line.graph_captured != 0;
      break;
    case nccl::kKernelLaunch:
      d.kernel_launch.stream = Pointer(line.stream);
      break;
    default:
      break;
  }
}

void FillCe(const TraceLine& line, nccl::EventDescrV6& d) {
  switch (line.type) {
    case nccl::kCeColl:
      d.ce_coll.seq_number = line.seq;
      d.ce_coll.func = line.func;
      d.ce_coll.send_buff = Pointer(line.send_buffer);
      d.ce_coll.recv_buff = Pointer(line.recv_buffer);
      d.ce_coll.count = line.count;
      d.ce_coll.root = static_cast<int>(line.root);
      d.ce_coll.datatype = line.datatype;
      d.ce_coll.sync_strategy = line.sync;
      d.ce_coll.intra_batch_sync = line.intra != 0;
      d.ce_coll.batch_size = static_cast<uint32_t>(line.batch_size);
      d.ce_coll.num_batches = static_cast<uint32_t>(line.batches);
      d.ce_coll.ce_seq_num = static_cast<uint32_t>(line.ce_seq);
      d.ce_coll.stream = Pointer(line.stream);
      break;
    case nccl::kCeSync:
      d.ce_coll_sync.is_complete = line.done != 0;
      d.ce_coll_sync.ranks = static_cast<int>(line.nranks);
      break;
    case nccl::kCeBatch:
      d.ce_coll_batch.num_ops = static_cast<int>(line.ops);
      d.ce_coll_batch.total_bytes = line.bytes;
      d.ce_coll_batch.use_intra_sync = line.intra != 0;
      break;
    default:
      break;
  }
}

template <typename Profiler, typename Descr>
class SessionOf : public PluginCaller::Session {
 public:
  SessionOf(const Profiler* profiler, int* mask, std::map<uint32_t, uint32_t> pids)
      : profiler_(profiler), mask_(mask), pids_(std::move(pids)) {}

  void Call(const TraceLine& line) override {
    switch (line.kind) {
      case TraceKind::kInit:
        Init(line);
        break;
      case TraceKind::kStart:
        Start(line);
        break;
      case TraceKind::kState:
        State(line);
        break;
      case TraceKind::kStop:
        if (void* h = Find(handles_, line.handle)) Check(profiler_->stop_event(h));
        break;
      case TraceKind::kFinalize:
        if (void* c = Find(contexts_, line.context)) Check(profiler_->finalize(c));
        contexts_.erase(line.context);
        break;
      case TraceKind::kThread:
      case TraceKind::kEnd:
        break;
    }
  }

 private:
  using Pointers = std::unordered_map<uint64_t, void*>;

  static void* Find(const Pointers& pointers, uint64_t key) {
    const auto it = pointers.find(key);
    return it == pointers.end() ? nullptr : it->second;
  }

  void Check(nccl::Result result) {
    if (result != nccl::kSuccess) ++faults_.failed_calls;
  }

  void Init(const TraceLine& line) {
    // The name belongs to NCCL and may be gone after the call.
    std::string name = line.name != nullptr ? line.name : "";
    const char* comm_name = line.name != nullptr ? name.c_str() : nullptr;
    void* context = nullptr;
    nccl::Result result;
    const int nodes = static_cast<int>(line.nodes);
    const int ranks = static_cast<int>(line.ranks);
    const int rank = static_cast<int>(line.rank);
    if constexpr (std::is_same_v<Descr, nccl::EventDescrV4>) {
      result = profiler_->init(&context, mask_, comm_name, line.comm_id, nodes, ranks, rank, &Log);
    } else {
      result = profiler_->init(&context, line.comm_id, mask_, comm_name, nodes, ranks, rank, &Log);
    }
    std::memset(name.data(), '#', name.size());
    Check(result);
    // After a failed init NCCL goes on with a NULL context.
    contexts_[line.context] = result == nccl::kSuccess ? context : nullptr;
  }

  void Start(const TraceLine& line) {
    Descr d;
    std::memset(&d, 0, sizeof d);
    d.type = static_cast<decltype(d.type)>(line.type);
    d.parent = line.parent != 0 ? Find(handles_, line.parent) : Pointer(line.raw_parent);
    d.rank = static_cast<int>(line.rank);
    const auto pid = pids_.find(static_cast<uint32_t>(line.pid));
    FillCommon(line, Find(handles_, line.parent_group),
               pid != pids_.end() ? static_cast<int>(pid->second) : static_cast<int>(line.pid), d);
    if constexpr (!std::is_same_v<Descr, nccl::EventDescrV4>) FillApi(line, d);
    if constexpr (std::is_same_v<Descr, nccl::EventDescrV6>) FillCe(line, d);
    void* handle = kStale;
    Check(profiler_->start_event(Find(contexts_, line.context), &handle, &d));
    if (handle == kStale) {
      ++faults_.unwritten_handles;
      handle = nullptr;
    }
    if (handle == nullptr) ++faults_.null_handles;
    handles_[line.handle] = handle;
  }

  void State(const TraceLine& line) {
    void* handle = Find(handles_, line.handle);
    if (handle == nullptr) return;
    nccl::StateArgs args;
    std::memset(&args, 0, sizeof args);
    switch (line.state) {
      case nccl::kNetPluginUpdate:
        args.net_plugin.data = Pointer(line.net_data);
        break;
      case nccl::kKernelChStop:
        args.kernel_ch.gpu_timer = line.device_ns;
        break;
      case nccl::kProxyCtrlIdle:
      case nccl::kProxyCtrlActive:
      case nccl::kProxyCtrlSleep:
      case nccl::kProxyCtrlWakeup:
      case nccl::kProxyCtrlAppend:
      case nccl::kProxyCtrlAppendEnd:
        args.proxy_ctrl.appended_proxy_ops = static_cast<int>(line.appended);
        break;
      default:
        args.proxy_step.trans_size = line.size;
        break;
    }
    Check(profiler_->record_event_state(handle, static_cast<nccl::EventState>(line.state),
                                        line.has_args ? &args : nullptr));
  }

  const Profiler* profiler_;
  int* mask_;
  std::map<uint32_t, uint32_t> pids_;
  Pointers contexts_;
  Pointers handles_;  // kept after stop: a parent may be stopped before its child starts
};

}  // namespace

PluginCaller::PluginCaller(std::string path, void* library)
    : path_(std::move(path)), library_(library) {}

absl::StatusOr<std::unique_ptr<PluginCaller>> PluginCaller::Load(const std::string& path,
                                                                 uint64_t (*clock)()) {
  if (access(path.c_str(), R_OK) != 0) {
    return absl::NotFoundError("profiler plugin " + path + ": " + strerror(errno) +
                               "; name the built one with --plugin or MYCROFT_PLUGIN");
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::FailedPreconditionError("profiler plugin " + path + " cannot be loaded: " +
                                         (why != nullptr ? why : "unknown reason"));
  }
  if (clock != nullptr) {
    using SetClock = void (*)(uint64_t(*)());
    const auto set_clock = reinterpret_cast<SetClock>(dlsym(library, "mycroftSetClock"));
    if (set_clock == nullptr) {
      return absl::FailedPreconditionError(
          path + " does not export mycroftSetClock: its clock cannot be replaced; use --realtime");
    }
    set_clock(clock);
  }
  return std::unique_ptr<PluginCaller>(new PluginCaller(path, library));
}

absl::StatusOr<std::unique_ptr<PluginCaller::Session>> PluginCaller::NewSession(
    int api, std::map<uint32_t, uint32_t> pids) {
  const char* name = api == 4 ? nccl::kSymbolV4 : api == 5 ? nccl::kSymbolV5 : nccl::kSymbolV6;
  void* table = dlsym(library_, name);
  if (table == nullptr) {
    return absl::FailedPreconditionError(path_ + " does not export " + name);
  }
  switch (api) {
    case 4:
      return std::unique_ptr<Session>(new SessionOf<nccl::ProfilerV4, nccl::EventDescrV4>(
          static_cast<const nccl::ProfilerV4*>(table), &mask_, std::move(pids)));
    case 5:
      return std::unique_ptr<Session>(new SessionOf<nccl::ProfilerV5, nccl::EventDescrV5>(
          static_cast<const nccl::ProfilerV5*>(table), &mask_, std::move(pids)));
    default:
      return std::unique_ptr<Session>(new SessionOf<nccl::ProfilerV6, nccl::EventDescrV6>(
          static_cast<const nccl::ProfilerV6*>(table), &mask_, std::move(pids)));
  }
}

}  // namespace mycroft
