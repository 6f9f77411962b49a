// SPDX-License-Identifier: Apache-2.0
//
// A profiler plugin for tests: writes every call to $LAB_RECORDER_DIR/PID.jsonl, one
// JSON object per line, in the format of recorded NCCL traces (README.md): hdr, thr,
// init, b, s, e, fini, clk. Handles are integers. $LAB_RECORDER_MASK is the event mask
// (default: all events but ProxyCtrl). Not for measuring: it takes a lock per call.
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <string>

#include "cupti/nccl/profiler_abi.h"

namespace {

namespace nccl = mycroft::nccl;

uint64_t Clock(clockid_t id) {
  timespec ts;
  clock_gettime(id, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000ull + static_cast<uint64_t>(ts.tv_nsec);
}

class Recorder {
 public:
  ~Recorder() {
    if (file_ == nullptr) return;
    fprintf(file_,
            "{\"k\":\"clk\",\"t\":%" PRIu64 ",\"th\":%d,\"wall\":%" PRIu64
            ",\"end\":1,\"n\":%" PRIu64 ",\"dropped\":0}\n",
            Clock(CLOCK_MONOTONIC), Tid(), Clock(CLOCK_REALTIME), calls_);
    fclose(file_);
  }

  // Starts a line; the lock is held until End().
  FILE* Begin(const char* kind, int api) {
    mutex_.lock();
    if (file_ == nullptr) Open(api);
    const uint64_t now = Clock(CLOCK_MONOTONIC);
    const int tid = Tid();
    if (threads_.insert(tid).second) {
      char name[32] = "";
      pthread_getname_np(pthread_self(), name, sizeof(name));
      fprintf(file_, "{\"k\":\"thr\",\"t\":%" PRIu64 ",\"th\":%d,\"name\":\"%s\"}\n", now, tid,
              name);
    }
    ++calls_;
    fprintf(file_, "{\"k\":\"%s\",\"t\":%" PRIu64 ",\"th\":%d", kind, now, tid);
    return file_;
  }
  void End() {
    fputs("}\n", file_);
    fflush(file_);
    mutex_.unlock();
  }

  void* NextHandle() { return reinterpret_cast<void*>(++handles_); }  // under the lock
  void* NextContext() { return reinterpret_cast<void*>(++contexts_); }

  static int Mask(int api) {
    const char* text = getenv("LAB_RECORDER_MASK");
    if (text != nullptr) return static_cast<int>(strtol(text, nullptr, 0));
    const int all = api == 4 ? 0xff : api == 5 ? 0xfff : 0x7fff;
    return all & ~static_cast<int>(nccl::kProxyCtrl);
  }

 private:
  static int Tid() { return static_cast<int>(syscall(SYS_gettid)); }
  void Open(int api) {
    const char* folder = getenv("LAB_RECORDER_DIR");
    const std::string path =
        std::string(folder == nullptr ? "." : folder) + "/" + std::to_string(getpid()) + ".jsonl";
    file_ = fopen(path.c_str(), "we");
    if (file_ == nullptr) {
      perror(path.c_str());
      abort();
    }
    fprintf(file_,
            "{\"k\":\"hdr\",\"v\":1,\"pid\":%d,\"av\":%d,\"nccl\":\"lab\",\"mono\":%" PRIu64
            ",\"wall\":%" PRIu64 "}\n",
            getpid(), api, Clock(CLOCK_MONOTONIC), Clock(CLOCK_REALTIME));
  }

  std::mutex mutex_;
  FILE* file_ = nullptr;
  std::set<int> threads_;
  uint64_t handles_ = 0;
  uint64_t contexts_ = 0;
  uint64_t calls_ = 0;
};

Recorder g_recorder;

nccl::Result Init(void** context, uint64_t comm_id, int* mask, const char* name, int nnodes,
                  int nranks, int rank, int api) {
  FILE* out = g_recorder.Begin("init", api);
  *context = g_recorder.NextContext();
  const int wanted = Recorder::Mask(api);
  fprintf(out, ",\"av\":%d,\"c\":%" PRIuPTR ",\"comm\":\"%" PRIx64 "\"", api,
          reinterpret_cast<uintptr_t>(*context), comm_id);
  if (name != nullptr && name[0] != '\0') fprintf(out, ",\"name\":\"%s\"", name);
  fprintf(out, ",\"nn\":%d,\"n\":%d,\"r\":%d,\"mask\":%d", nnodes, nranks, rank, wanted);
  g_recorder.End();
  // Other threads of the host read it at any time.
  __atomic_store_n(mask, wanted, __ATOMIC_RELAXED);
  return nccl::kSuccess;
}

nccl::Result Init4(void** context, int* mask, const char* name, uint64_t comm_id, int nnodes,
                   int nranks, int rank, nccl::DebugLogger) {
  return Init(context, comm_id, mask, name, nnodes, nranks, rank, 4);
}
nccl::Result Init5(void** context, uint64_t comm_id, int* mask, const char* name, int nnodes,
                   int nranks, int rank, nccl::DebugLogger) {
  return Init(context, comm_id, mask, name, nnodes, nranks, rank, 5);
}
nccl::Result Init6(void** context, uint64_t comm_id, int* mask, const char* name, int nnodes,
                   int nranks, int rank, nccl::DebugLogger) {
  return Init(context, comm_id, mask, name, nnodes, nranks, rank, 6);
}

void Pointer(FILE* out, const char* key, const void* value) {
  if (value != nullptr)
    fprintf(out, ",\"%s\":\"%" PRIxPTR "\"", key, reinterpret_cast<uintptr_t>(value));
}
void Handle(FILE* out, const char* key, const void* value) {
  if (value != nullptr) fprintf(out, ",\"%s\":%" PRIuPTR, key, reinterpret_cast<uintptr_t>(value));
}

template <typename Coll>
void WriteColl(FILE* out, const Coll& d) {
  fprintf(out,
          ",\"seq\":%" PRIu64
          ",\"fn\":\"%s\",\"cnt\":%zu,\"dt\":\"%s\",\"root\":%d,\"nch\":%d,"
          "\"nw\":%d,\"al\":\"%s\",\"pr\":\"%s\"",
          d.seq_number, d.func, d.count, d.datatype, d.root, d.channels, d.warps, d.algo, d.proto);
  Pointer(out, "sb", d.send_buff);
  Pointer(out, "rb", d.recv_buff);
}
template <typename P2p>
void WriteP2p(FILE* out, const P2p& d) {
  fprintf(out, ",\"fn\":\"%s\",\"cnt\":%zu,\"dt\":\"%s\",\"peer\":%d,\"nch\":%d", d.func, d.count,
          d.datatype, d.peer, d.channels);
  Pointer(out, "buf", d.buff);
}

// v5 and v6 have the same fields at the same places.
template <typename Descr>
nccl::Result Start(void* context, void** handle, Descr* d, int api) {
  FILE* out = g_recorder.Begin("b", api);
  *handle = g_recorder.NextHandle();
  fprintf(out, ",\"c\":%" PRIuPTR ",\"ty\":%" PRIu64 ",\"h\":%" PRIuPTR,
          reinterpret_cast<uintptr_t>(context), static_cast<uint64_t>(d->type),
          reinterpret_cast<uintptr_t>(*handle));
  Handle(out, "p", d->parent);
  fprintf(out, ",\"rk\":%d", d->rank);
  switch (static_cast<uint64_t>(d->type)) {
    case nccl::kColl:
      WriteColl(out, d->coll);
      if constexpr (!std::is_same_v<Descr, nccl::EventDescrV4>)
        Handle(out, "pg", d->coll.parent_group);
      break;
    case nccl::kP2p:
      WriteP2p(out, d->p2p);
      if constexpr (!std::is_same_v<Descr, nccl::EventDescrV4>)
        Handle(out, "pg", d->p2p.parent_group);
      break;
    case nccl::kProxyOp:
      fprintf(out, ",\"pid\":%d,\"ch\":%d,\"peer\":%d,\"ns\":%d,\"cs\":%d,\"snd\":%d",
              d->proxy_op.pid, d->proxy_op.channel, d->proxy_op.peer, d->proxy_op.steps,
              d->proxy_op.chunk_size, d->proxy_op.is_send);
      break;
    case nccl::kProxyStep:
      fprintf(out, ",\"step\":%d", d->proxy_step.step);
      break;
    case nccl::kKernelCh:
      fprintf(out, ",\"ch\":%d,\"pt\":%" PRIu64, d->kernel_ch.channel, d->kernel_ch.gpu_timer);
      break;
    default:
      break;
  }
  if constexpr (!std::is_same_v<Descr, nccl::EventDescrV4>) {
    switch (static_cast<uint64_t>(d->type)) {
      case nccl::kGroupApi:
        fprintf(out, ",\"cap\":%d,\"dep\":%d", d->group_api.graph_captured,
                d->group_api.group_depth);
        break;
      case nccl::kCollApi:
        fprintf(out, ",\"fn\":\"%s\",\"cnt\":%zu,\"dt\":\"%s\",\"root\":%d", d->coll_api.func,
                d->coll_api.count, d->coll_api.datatype, d->coll_api.root);
        Pointer(out, "str", d->coll_api.stream);
        fprintf(out, ",\"cap\":%d", d->coll_api.graph_captured);
        break;
      case nccl::kP2pApi:
        fprintf(out, ",\"fn\":\"%s\",\"cnt\":%zu,\"dt\":\"%s\"", d->p2p_api.func, d->p2p_api.count,
                d->p2p_api.datatype);
        Pointer(out, "str", d->p2p_api.stream);
        fprintf(out, ",\"cap\":%d", d->p2p_api.graph_captured);
        break;
      case nccl::kKernelLaunch:
        Pointer(out, "str", d->kernel_launch.stream);
        break;
      default:
        break;
    }
  }
  g_recorder.End();
  return nccl::kSuccess;
}

nccl::Result Start4(void* c, void** h, nccl::EventDescrV4* d) { return Start(c, h, d, 4); }
nccl::Result Start5(void* c, void** h, nccl::EventDescrV5* d) { return Start(c, h, d, 5); }
nccl::Result Start6(void* c, void** h, nccl::EventDescrV6* d) { return Start(c, h, d, 6); }

nccl::Result Stop(void* handle) {
  FILE* out = g_recorder.Begin("e", 0);
  fprintf(out, ",\"h\":%" PRIuPTR, reinterpret_cast<uintptr_t>(handle));
  g_recorder.End();
  return nccl::kSuccess;
}

nccl::Result State(void* handle, nccl::EventState state, nccl::StateArgs* args) {
  FILE* out = g_recorder.Begin("s", 0);
  fprintf(out, ",\"h\":%" PRIuPTR ",\"st\":%d", reinterpret_cast<uintptr_t>(handle), state);
  if (args != nullptr) {
    switch (state) {
      case nccl::kSendGpuWait:
      case nccl::kSendPeerWait:
      case nccl::kSendWait:
      case nccl::kRecvWait:
      case nccl::kRecvFlushWait:
      case nccl::kRecvGpuWait:
        fprintf(out, ",\"sz\":%zu", args->proxy_step.trans_size);
        break;
      case nccl::kKernelChStop:
        fprintf(out, ",\"pt\":%" PRIu64, args->kernel_ch.gpu_timer);
        break;
      case nccl::kProxyCtrlIdle:
      case nccl::kProxyCtrlActive:
      case nccl::kProxyCtrlSleep:
      case nccl::kProxyCtrlWakeup:
      case nccl::kProxyCtrlAppend:
      case nccl::kProxyCtrlAppendEnd:
        fprintf(out, ",\"app\":%d", args->proxy_ctrl.appended_proxy_ops);
        break;
      default:
        break;
    }
  }
  g_recorder.End();
  return nccl::kSuccess;
}

nccl::Result Finalize(void* context) {
  FILE* out = g_recorder.Begin("fini", 0);
  fprintf(out, ",\"c\":%" PRIuPTR, reinterpret_cast<uintptr_t>(context));
  g_recorder.End();
  return nccl::kSuccess;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const nccl::ProfilerV4 ncclProfiler_v4;
__attribute__((visibility("default"))) extern const nccl::ProfilerV5 ncclProfiler_v5;
__attribute__((visibility("default"))) extern const nccl::ProfilerV6 ncclProfiler_v6;
const nccl::ProfilerV4 ncclProfiler_v4 = {"recorder", Init4, Start4, Stop, State, Finalize};
const nccl::ProfilerV5 ncclProfiler_v5 = {"recorder", Init5, Start5, Stop, State, Finalize};
const nccl::ProfilerV6 ncclProfiler_v6 = {"recorder", Init6, Start6, Stop, State, Finalize};
}
