// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/snapshot_dump.h"

#include <cinttypes>

#include "userspace/model/view.h"

namespace mycroft {
namespace {

bool Finished(const OpSample& op) {
  return op.stop_ns != 0 && op.proxy_started > 0 && op.proxy_done >= op.proxy_started &&
         op.kernel_stopped >= op.kernel_started;
}

}  // namespace

double SnapshotDump::Ms(uint64_t t_ns) const {
  return t_ns == 0 ? -1 : static_cast<double>(static_cast<int64_t>(t_ns - start_ns_)) / 1e6;
}

void SnapshotDump::Print(const ProcessKey& key, const Process& process, const OpSample& op,
                         const char* remark) const {
  const auto comm = process.comms.find({op.comm, op.comm_generation});
  const std::string name = comm != process.comms.end() ? comm->second.name : "?";
  const int rank = comm != process.comms.end() ? comm->second.rank : -1;
  std::fprintf(out_,
               "%s t=%.3f pid=%u comm=%s rank=%d op=%" PRIu64 " %s%s%d ord=%" PRIu64 " seq=%" PRIu64
               " count=%" PRIu64
               " api=%.3f start=%.3f enq=%.3f proxy_first=%.3f proxy_progress=%.3f "
               "proxy_last=%.3f proxy=%u/%u/%u steps=%" PRIu64 "/%" PRIu64
               " sgpu=%.3f speer=%.3f snet=%.3f rremote=%.3f rflush=%.3f rgpu=%.3f"
               " kernels=%u/%u kern_seen=%.3f..%.3f kern_gpu_ms=%.3f\n",
               remark, Ms(op.start_ns), key.pid, name.c_str(), rank, op.id, ToString(op.func),
               op.kind == MC_OP_COLL ? " root=" : " peer=", op.root_or_peer, op.ordinal,
               op.nccl_seq, op.count, Ms(op.api_ns), Ms(op.start_ns), Ms(op.stop_ns),
               Ms(op.proxy_first_ns), Ms(op.proxy_progress_ns), Ms(op.proxy_last_ns),
               op.proxy_started, op.proxy_progress, op.proxy_done, op.steps_done, op.steps_total,
               static_cast<double>(op.wait_ns[MC_WAIT_SEND_GPU]) / 1e6,
               static_cast<double>(op.wait_ns[MC_WAIT_SEND_PEER]) / 1e6,
               static_cast<double>(op.wait_ns[MC_WAIT_SEND_NET]) / 1e6,
               static_cast<double>(op.wait_ns[MC_WAIT_RECV_REMOTE]) / 1e6,
               static_cast<double>(op.wait_ns[MC_WAIT_RECV_FLUSH]) / 1e6,
               static_cast<double>(op.wait_ns[MC_WAIT_RECV_GPU]) / 1e6, op.kernel_started,
               op.kernel_stopped, Ms(op.kernel_start_seen_ns), Ms(op.kernel_stop_seen_ns),
               op.kernel_gpu_stop > op.kernel_gpu_start
                   ? static_cast<double>(op.kernel_gpu_stop - op.kernel_gpu_start) / 1e6
                   : -1.0);
}

void SnapshotDump::Add(const Snapshot& snapshot) {
  for (const ProcessSample& sample : snapshot.processes) {
    Process& process = processes_[sample.key];
    for (const CommSample& comm : sample.comms) {
      process.comms[{comm.index, comm.generation}] = comm;
    }
    for (const FlowSample& flow : sample.flows) process.flows[flow.index] = flow;
    for (const OpSample& op : sample.ops) {
      if (!Finished(op)) {
        process.open[op.id] = op;
        continue;
      }
      process.open.erase(op.id);
      Print(sample.key, process, op, "op");
    }
    if (sample.status != ProcessStatus::kRunning) {
      std::fprintf(out_, "process t=%.3f pid=%u %s %s\n", Ms(snapshot.t_ns), sample.key.pid,
                   sample.status == ProcessStatus::kExited ? "exited" : "unreadable",
                   sample.problem.c_str());
    }
  }
}

void SnapshotDump::Finish() {
  for (const auto& [key, process] : processes_) {
    for (const auto& [id, op] : process.open) Print(key, process, op, "unfinished");
    for (const auto& [index, flow] : process.flows) {
      if (flow.open_ops == 0) continue;
      const auto comm = process.comms.find({flow.comm, flow.comm_generation});
      std::fprintf(out_,
                   "flow pid=%u comm=%s channel=%u %s peer=%d op=%" PRIu64
                   " \"%s\" since=%.3f moved=%.3f total=%u posted=%u ready=%u transmitted=%u "
                   "done=%u\n",
                   key.pid, comm != process.comms.end() ? comm->second.name.c_str() : "?",
                   flow.channel, flow.direction == MC_SEND ? "send" : "recv", flow.peer, flow.op_id,
                   ToString(flow.state), Ms(flow.state_ns), Ms(flow.moved_ns), flow.total,
                   flow.posted, flow.ready, flow.transmitted, flow.done);
    }
  }
}

}  // namespace mycroft
