// SPDX-License-Identifier: Apache-2.0
//
// A profiler plugin for the tests of the replay: exports API versions 4, 5 and 6
// and writes each call with all its fields as one line of text to the file
// $MYCROFT_TEST_PLUGIN_OUT.PID. Handles are numbers: 1000 + n. ProxyCtrl events
// are not tracked (NULL). A ProxyStep of step 77 crashes the process.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "cupti/nccl/profiler_abi.h"

namespace {

using namespace mycroft::nccl;

std::atomic<uint64_t (*)()> g_clock{nullptr};
std::atomic<uintptr_t> g_next{1001};

std::FILE* Out() {
  static std::FILE* out = nullptr;
  static pid_t owner = 0;
  if (owner == getpid()) return out;  // else a fork with the library already loaded
  const char* base = std::getenv("MYCROFT_TEST_PLUGIN_OUT");
  if (base == nullptr) std::abort();
  out = std::fopen((std::string(base) + "." + std::to_string(getpid())).c_str(), "w");
  if (out == nullptr) std::abort();
  setvbuf(out, nullptr, _IOLBF, 1 << 16);  // a killed process keeps its lines
  owner = getpid();
  return out;
}

void Line(const char* format, ...) {
  char thread[16] = "";
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  uint64_t (*clock)() = g_clock.load();
  std::string head =
      "@" + (clock != nullptr ? std::to_string(clock()) : "real") + " [" + thread + "] ";
  char body[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(body, sizeof body, format, args);
  va_end(args);
  std::fprintf(Out(), "%s%s\n", head.c_str(), body);
}

const char* S(const char* text) { return text != nullptr ? text : "-"; }

Result Init(void** context, int* mask, const char* name, uint64_t id, int nodes, int ranks,
            int rank, int api) {
  *context = reinterpret_cast<void*>(g_next++);
  *mask = 0xfff;
  Line("v%d init %p name=%s id=%" PRIx64 " nodes=%d ranks=%d rank=%d", api, *context, S(name), id,
       nodes, ranks, rank);
  return kSuccess;
}

template <typename Descr>
std::string Fields(const Descr& d) {
  char out[512] = "";
  auto print = [&out](const char* format, auto... args) {
    std::snprintf(out, sizeof out, format, args...);
  };
  switch (d.type) {
    case kColl: {
      print("Coll seq=%" PRIu64 " %s sb=%p rb=%p count=%zu root=%d %s ch=%d warps=%d %s %s",
            d.coll.seq_number, S(d.coll.func), d.coll.send_buff, d.coll.recv_buff, d.coll.count,
            d.coll.root, S(d.coll.datatype), d.coll.channels, d.coll.warps, S(d.coll.algo),
            S(d.coll.proto));
      if constexpr (!std::is_same_v<Descr, EventDescrV4>) {
        char more[64];
        std::snprintf(more, sizeof more, " group=%p", d.coll.parent_group);
        return std::string(out) + more;
      }
      break;
    }
    case kP2p: {
      print("P2p %s buf=%p %s count=%zu peer=%d ch=%d", S(d.p2p.func), d.p2p.buff,
            S(d.p2p.datatype), d.p2p.count, d.p2p.peer, d.p2p.channels);
      if constexpr (!std::is_same_v<Descr, EventDescrV4>) {
        char more[64];
        std::snprintf(more, sizeof more, " group=%p", d.p2p.parent_group);
        return std::string(out) + more;
      }
      break;
    }
    case kProxyOp:
      print("ProxyOp pid=%s ch=%d peer=%d steps=%d chunk=%d send=%d",
            d.proxy_op.pid == getpid() ? "own" : std::to_string(d.proxy_op.pid).c_str(),
            d.proxy_op.channel, d.proxy_op.peer, d.proxy_op.steps, d.proxy_op.chunk_size,
            d.proxy_op.is_send);
      break;
    case kProxyStep:
      if (d.proxy_step.step == 77) std::abort();
      print("ProxyStep step=%d", d.proxy_step.step);
      break;
    case kKernelCh:
      print("KernelCh ch=%d gpu=%" PRIu64, d.kernel_ch.channel, d.kernel_ch.gpu_timer);
      break;
    case kNetPlugin:
      print("NetPlugin id=%" PRId64 " data=%p", d.net_plugin.id, d.net_plugin.data);
      break;
    case kGroup:
      return "Group";
    case kProxyCtrl:
      return "ProxyCtrl";
    default:
      if constexpr (!std::is_same_v<Descr, EventDescrV4>) {
        switch (d.type) {
          case kGroupApi:
            print("GroupApi graph=%d depth=%d", d.group_api.graph_captured,
                  d.group_api.group_depth);
            return out;
          case kCollApi:
            print("CollApi %s count=%zu %s root=%d stream=%p graph=%d", S(d.coll_api.func),
                  d.coll_api.count, S(d.coll_api.datatype), d.coll_api.root, d.coll_api.stream,
                  d.coll_api.graph_captured);
            return out;
          case kP2pApi:
            print("P2pApi %s count=%zu %s stream=%p graph=%d", S(d.p2p_api.func), d.p2p_api.count,
                  S(d.p2p_api.datatype), d.p2p_api.stream, d.p2p_api.graph_captured);
            return out;
          case kKernelLaunch:
            print("KernelLaunch stream=%p", d.kernel_launch.stream);
            return out;
        }
      }
      if constexpr (std::is_same_v<Descr, EventDescrV6>) {
        switch (d.type) {
          case kCeColl:
            print("CeColl seq=%" PRIu64
                  " %s sb=%p rb=%p count=%zu root=%d %s %s intra=%d bs=%u "
                  "nb=%u ceseq=%u stream=%p",
                  d.ce_coll.seq_number, S(d.ce_coll.func), d.ce_coll.send_buff, d.ce_coll.recv_buff,
                  d.ce_coll.count, d.ce_coll.root, S(d.ce_coll.datatype),
                  S(d.ce_coll.sync_strategy), d.ce_coll.intra_batch_sync, d.ce_coll.batch_size,
                  d.ce_coll.num_batches, d.ce_coll.ce_seq_num, d.ce_coll.stream);
            return out;
          case kCeSync:
            print("CeSync complete=%d ranks=%d", d.ce_coll_sync.is_complete, d.ce_coll_sync.ranks);
            return out;
          case kCeBatch:
            print("CeBatch ops=%d bytes=%zu intra=%d", d.ce_coll_batch.num_ops,
                  d.ce_coll_batch.total_bytes, d.ce_coll_batch.use_intra_sync);
            return out;
        }
      }
      return "type " + std::to_string(static_cast<uint64_t>(d.type));
  }
  return out;
}

template <typename Descr>
Result Start(void* context, void** handle, Descr* d) {
  *handle = d->type == kProxyCtrl ? nullptr : reinterpret_cast<void*>(g_next++);
  Line("start %p ctx=%p parent=%p rank=%d %s", *handle, context, d->parent, d->rank,
       Fields(*d).c_str());
  return kSuccess;
}

Result Stop(void* handle) {
  Line("stop %p", handle);
  return kSuccess;
}

Result Record(void* handle, EventState state, StateArgs* args) {
  if (args == nullptr) {
    Line("state %p %d", handle, state);
  } else if (state == kKernelChStop) {
    Line("state %p %d gpu=%" PRIu64, handle, state, args->kernel_ch.gpu_timer);
  } else if (state >= kProxyCtrlIdle && state <= kProxyCtrlAppendEnd) {
    Line("state %p %d app=%d", handle, state, args->proxy_ctrl.appended_proxy_ops);
  } else {
    Line("state %p %d size=%zu", handle, state, args->proxy_step.trans_size);
  }
  return kSuccess;
}

Result Finalize(void* context) {
  Line("finalize %p", context);
  return kSuccess;
}

Result InitV4(void** context, int* mask, const char* name, uint64_t id, int nodes, int ranks,
              int rank, DebugLogger) {
  return Init(context, mask, name, id, nodes, ranks, rank, 4);
}
template <int kApi>
Result InitV5(void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks,
              int rank, DebugLogger) {
  return Init(context, mask, name, id, nodes, ranks, rank, kApi);
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) void mycroftSetClock(uint64_t (*clock)()) {
  g_clock = clock;
  g_next = 1001;  // a replay starts
}
__attribute__((visibility("default"))) extern const ProfilerV4 ncclProfiler_v4 = {
    "test", InitV4, Start<EventDescrV4>, Stop, Record, Finalize};
__attribute__((visibility("default"))) extern const ProfilerV5 ncclProfiler_v5 = {
    "test", InitV5<5>, Start<EventDescrV5>, Stop, Record, Finalize};
__attribute__((visibility("default"))) extern const ProfilerV6 ncclProfiler_v6 = {
    "test", InitV5<6>, Start<EventDescrV6>, Stop, Record, Finalize};
}
