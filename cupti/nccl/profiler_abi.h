// SPDX-License-Identifier: Apache-2.0
//
// The binary interface between NCCL and a profiler plugin, versions 4 (NCCL
// 2.27), 5 (2.28) and 6 (2.29, 2.30), in our own words: sizes, offsets and
// values are facts of the ABI, asserted below. No NVIDIA header is needed.
//
// NCCL dlopens the plugin, looks up the data symbols ncclProfiler_v6, _v5, _v4
// (newest first, the first hit is the only one used) and calls through the
// table. Pointers in a descriptor belong to NCCL and are valid during the call
// only; func, algo, proto and datatype are static strings. Any thread of NCCL
// may call; none may be blocked, and only init may report an error.
//
// Pure data types: no function is defined here, nothing is linked.
#ifndef MYCROFT_CUPTI_NCCL_PROFILER_ABI_H_
#define MYCROFT_CUPTI_NCCL_PROFILER_ABI_H_

#include <cstddef>
#include <cstdint>

namespace mycroft::nccl {

// ncclResult_t. A plugin returns kSuccess.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDebugLogLevel and the only subsystem flag used here. A WARN line is printed
// whatever the flags.
enum LogLevel : int {
  kLogNone = 0,
  kLogVersion = 1,
  kLogWarn = 2,
  kLogInfo = 3,
  kLogAbort = 4,
  kLogTrace = 5,
};
inline constexpr unsigned long kLogInit = 1;
using DebugLogger = void (*)(LogLevel level, unsigned long flags, const char* file, int line,
                             const char* format, ...);

// Event types, bits of the activation mask. A low event turns on its ancestors.
enum EventType : uint64_t {
  kGroup = 1u << 0,  // legacy group: one per launch
  kColl = 1u << 1,
  kP2p = 1u << 2,
  kProxyOp = 1u << 3,
  kProxyStep = 1u << 4,
  kProxyCtrl = 1u << 5,
  kKernelCh = 1u << 6,
  kNetPlugin = 1u << 7,
  kGroupApi = 1u << 8,  // v5+
  kCollApi = 1u << 9,
  kP2pApi = 1u << 10,
  kKernelLaunch = 1u << 11,
  kCeColl = 1u << 12,  // v6+
  kCeSync = 1u << 13,
  kCeBatch = 1u << 14,
  kKernelPhase = 1u << 15,  // v7
};

// States given to recordEventState. The values below 8 are of v1-v3 only.
enum EventState : int {
  kSendGpuWait = 8,     // ProxyStep: slot free, the local GPU is to fill it
  kSendWait = 9,        // ProxyStep: handed to the network; trans_size = bytes posted
  kRecvWait = 10,       // ProxyStep: buffer offered
  kRecvFlushWait = 11,  // ProxyStep: data arrived; trans_size = bytes received
  kRecvGpuWait = 12,    // ProxyStep: flushed, the local GPU is to consume it
  kProxyCtrlIdle = 13,
  kProxyCtrlActive = 14,
  kProxyCtrlSleep = 15,
  kProxyCtrlWakeup = 16,
  kProxyCtrlAppend = 17,
  kProxyCtrlAppendEnd = 18,
  kProxyOpInProgress = 19,
  kSendPeerWait = 20,  // ProxyStep: filled, the receiver is to grant the slot; repeats
  kNetPluginUpdate = 21,
  kKernelChStop = 22,
  kGroupStartApiStop = 23,  // GroupApi, no arguments
  kGroupEndApiStart = 24,   // GroupApi, no arguments
  kCeCollStart = 25,        // 25-30: defined by NCCL, never sent
  kCeCollComplete = 26,
  kCeSyncStart = 27,
  kCeSyncComplete = 28,
  kCeBatchStart = 29,
  kCeBatchComplete = 30,
  kKernelPhaseStop = 31,  // v7
};

// Arguments of recordEventState, v4 and later; the pointer may be NULL.
union StateArgs {
  struct {
    size_t trans_size;
  } proxy_step;
  struct {
    int appended_proxy_ops;
  } proxy_ctrl;
  struct {
    void* data;
  } net_plugin;
  struct {
    uint64_t gpu_timer;
  } kernel_ch;
};
static_assert(sizeof(StateArgs) == 8);

// ---- per-event fields -------------------------------------------------------

struct CollV4 {
  uint64_t seq_number;  // per communicator and function
  const char* func;
  const void* send_buff;
  void* recv_buff;
  size_t count;  // AllGather and Broadcast: bytes, with datatype ncclInt8
  int root;
  const char* datatype;
  uint8_t channels;
  uint8_t warps;
  const char* algo;
  const char* proto;
};
static_assert(offsetof(CollV4, seq_number) == 0 && offsetof(CollV4, func) == 8);
static_assert(offsetof(CollV4, send_buff) == 16 && offsetof(CollV4, recv_buff) == 24);
static_assert(offsetof(CollV4, count) == 32 && offsetof(CollV4, root) == 40);
static_assert(offsetof(CollV4, datatype) == 48 && offsetof(CollV4, channels) == 56);
static_assert(offsetof(CollV4, warps) == 57 && offsetof(CollV4, algo) == 64);
static_assert(offsetof(CollV4, proto) == 72 && sizeof(CollV4) == 80);

struct CollV5 {
  uint64_t seq_number;
  const char* func;
  const void* send_buff;
  void* recv_buff;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
  uint8_t warps;
  const char* algo;
  const char* proto;
  void* parent_group;
};
static_assert(offsetof(CollV5, seq_number) == 0 && offsetof(CollV5, func) == 8);
static_assert(offsetof(CollV5, send_buff) == 16 && offsetof(CollV5, recv_buff) == 24);
static_assert(offsetof(CollV5, count) == 32 && offsetof(CollV5, root) == 40);
static_assert(offsetof(CollV5, datatype) == 48 && offsetof(CollV5, channels) == 56);
static_assert(offsetof(CollV5, warps) == 57 && offsetof(CollV5, algo) == 64);
static_assert(offsetof(CollV5, proto) == 72 && offsetof(CollV5, parent_group) == 80);
static_assert(sizeof(CollV5) == 88);

struct P2pV4 {  // no sequence number in any version
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;  // some may get no work
};
static_assert(offsetof(P2pV4, func) == 0 && offsetof(P2pV4, buff) == 8);
static_assert(offsetof(P2pV4, datatype) == 16 && offsetof(P2pV4, count) == 24);
static_assert(offsetof(P2pV4, peer) == 32 && offsetof(P2pV4, channels) == 36);
static_assert(sizeof(P2pV4) == 40);

struct P2pV5 {
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
  void* parent_group;
};
static_assert(offsetof(P2pV5, func) == 0 && offsetof(P2pV5, buff) == 8);
static_assert(offsetof(P2pV5, datatype) == 16 && offsetof(P2pV5, count) == 24);
static_assert(offsetof(P2pV5, peer) == 32 && offsetof(P2pV5, channels) == 36);
static_assert(offsetof(P2pV5, parent_group) == 40 && sizeof(P2pV5) == 48);

struct ProxyOp {
  int32_t pid;  // originating process: another one under PXN
  uint8_t channel;
  int peer;
  int steps;       // network transfers
  int chunk_size;  // bytes of one transfer
  int is_send;     // 1 only for sends over NET
};
static_assert(offsetof(ProxyOp, pid) == 0 && offsetof(ProxyOp, channel) == 4);
static_assert(offsetof(ProxyOp, peer) == 8 && offsetof(ProxyOp, steps) == 12);
static_assert(offsetof(ProxyOp, chunk_size) == 16 && offsetof(ProxyOp, is_send) == 20);
static_assert(sizeof(ProxyOp) == 24);

struct ProxyStep {
  int step;
};
static_assert(sizeof(ProxyStep) == 4);

struct KernelCh {
  uint8_t channel;
  uint64_t gpu_timer;  // ns of the GPU's global timer at the start
};
static_assert(offsetof(KernelCh, gpu_timer) == 8 && sizeof(KernelCh) == 16);

struct NetPlugin {
  int64_t id;
  void* data;  // valid during the call only
};
static_assert(offsetof(NetPlugin, data) == 8 && sizeof(NetPlugin) == 16);

struct GroupApi {  // v5+
  bool graph_captured;
  int group_depth;  // 1: implicit group of a single call
};
static_assert(offsetof(GroupApi, group_depth) == 4 && sizeof(GroupApi) == 8);

struct CollApi {  // v5+
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graph_captured;
};
static_assert(offsetof(CollApi, func) == 0 && offsetof(CollApi, count) == 8);
static_assert(offsetof(CollApi, datatype) == 16 && offsetof(CollApi, root) == 24);
static_assert(offsetof(CollApi, stream) == 32 && offsetof(CollApi, graph_captured) == 40);
static_assert(sizeof(CollApi) == 48);

struct P2pApi {  // v5+
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool graph_captured;
};
static_assert(offsetof(P2pApi, func) == 0 && offsetof(P2pApi, count) == 8);
static_assert(offsetof(P2pApi, datatype) == 16 && offsetof(P2pApi, stream) == 24);
static_assert(offsetof(P2pApi, graph_captured) == 32 && sizeof(P2pApi) == 40);

struct KernelLaunch {  // v5+
  void* stream;
};
static_assert(sizeof(KernelLaunch) == 8);

struct CeColl {  // v6+
  uint64_t seq_number;
  const char* func;
  const void* send_buff;
  void* recv_buff;
  size_t count;
  int root;
  const char* datatype;
  const char* sync_strategy;  // "MC" or "UC"
  bool intra_batch_sync;
  uint32_t batch_size;
  uint32_t num_batches;
  uint32_t ce_seq_num;
  void* stream;
};
static_assert(offsetof(CeColl, seq_number) == 0 && offsetof(CeColl, func) == 8);
static_assert(offsetof(CeColl, send_buff) == 16 && offsetof(CeColl, recv_buff) == 24);
static_assert(offsetof(CeColl, count) == 32 && offsetof(CeColl, root) == 40);
static_assert(offsetof(CeColl, datatype) == 48 && offsetof(CeColl, sync_strategy) == 56);
static_assert(offsetof(CeColl, intra_batch_sync) == 64 && offsetof(CeColl, batch_size) == 68);
static_assert(offsetof(CeColl, num_batches) == 72 && offsetof(CeColl, ce_seq_num) == 76);
static_assert(offsetof(CeColl, stream) == 80 && sizeof(CeColl) == 88);

struct CeCollSync {  // v6+
  bool is_complete;
  int ranks;
};
static_assert(offsetof(CeCollSync, ranks) == 4 && sizeof(CeCollSync) == 8);

struct CeCollBatch {  // v6+
  int num_ops;
  size_t total_bytes;
  bool use_intra_sync;
};
static_assert(offsetof(CeCollBatch, total_bytes) == 8);
static_assert(offsetof(CeCollBatch, use_intra_sync) == 16 && sizeof(CeCollBatch) == 24);

// ---- event descriptors ------------------------------------------------------
// `rank` is filled for Coll, P2p, ProxyOp, ProxyStep, NetPlugin and Ce* only.
// `parent` is a handle the plugin returned earlier: it may be NULL, stale, or
// (under PXN) a value of another process.

struct EventDescrV4 {
  uint8_t type;  // 8 bits in v4, 64 from v5 on
  void* parent;
  int rank;
  union {
    CollV4 coll;
    P2pV4 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
  };
};
static_assert(offsetof(EventDescrV4, type) == 0 && offsetof(EventDescrV4, parent) == 8);
static_assert(offsetof(EventDescrV4, rank) == 16 && offsetof(EventDescrV4, coll) == 24);
static_assert(sizeof(EventDescrV4) == 104);

struct EventDescrV5 {
  uint64_t type;
  void* parent;
  int rank;
  union {
    GroupApi group_api;
    CollApi coll_api;
    P2pApi p2p_api;
    KernelLaunch kernel_launch;
    CollV5 coll;
    P2pV5 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
  };
};
static_assert(offsetof(EventDescrV5, type) == 0 && offsetof(EventDescrV5, parent) == 8);
static_assert(offsetof(EventDescrV5, rank) == 16 && offsetof(EventDescrV5, coll) == 24);
static_assert(sizeof(EventDescrV5) == 112);

struct EventDescrV6 {
  uint64_t type;
  void* parent;
  int rank;
  union {
    GroupApi group_api;
    CollApi coll_api;
    P2pApi p2p_api;
    KernelLaunch kernel_launch;
    CollV5 coll;
    P2pV5 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
    CeColl ce_coll;
    CeCollSync ce_coll_sync;
    CeCollBatch ce_coll_batch;
  };
};
static_assert(offsetof(EventDescrV6, type) == 0 && offsetof(EventDescrV6, parent) == 8);
static_assert(offsetof(EventDescrV6, rank) == 16 && offsetof(EventDescrV6, coll) == 24);
static_assert(sizeof(EventDescrV6) == 112);

// ---- function tables: the exported data symbols ------------------------------

// `mask` is the address of one process-wide int of NCCL: every init may write it
// (the last writer wins), and it stays valid, so tracing can be switched later.
struct ProfilerV4 {
  const char* name;
  Result (*init)(void** context, int* mask, const char* comm_name, uint64_t comm_id, int nnodes,
                 int nranks, int rank, DebugLogger log);
  Result (*start_event)(void* context, void** handle, EventDescrV4* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgs* args);
  Result (*finalize)(void* context);
};

struct ProfilerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, int* mask, const char* comm_name, int nnodes,
                 int nranks, int rank, DebugLogger log);
  Result (*start_event)(void* context, void** handle, EventDescrV5* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgs* args);
  Result (*finalize)(void* context);
};

struct ProfilerV6 {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, int* mask, const char* comm_name, int nnodes,
                 int nranks, int rank, DebugLogger log);
  Result (*start_event)(void* context, void** handle, EventDescrV6* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgs* args);
  Result (*finalize)(void* context);
};

#define MYCROFT_ASSERT_TABLE(table)                                                             \
  static_assert(offsetof(table, name) == 0 && offsetof(table, init) == 8 &&                     \
                offsetof(table, start_event) == 16 && offsetof(table, stop_event) == 24 &&      \
                offsetof(table, record_event_state) == 32 && offsetof(table, finalize) == 40 && \
                sizeof(table) == 48)
MYCROFT_ASSERT_TABLE(ProfilerV4);
MYCROFT_ASSERT_TABLE(ProfilerV5);
MYCROFT_ASSERT_TABLE(ProfilerV6);
#undef MYCROFT_ASSERT_TABLE

// Names of the data symbols that NCCL looks up.
inline constexpr char kSymbolV4[] = "ncclProfiler_v4";
inline constexpr char kSymbolV5[] = "ncclProfiler_v5";
inline constexpr char kSymbolV6[] = "ncclProfiler_v6";

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_PROFILER_ABI_H_
