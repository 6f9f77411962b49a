// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/gpu_aligner.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "userspace/align/step_mean.h"

namespace mycroft {
namespace {

constexpr uint64_t kWindowNs = 60'000'000'000;
// Quartz against quartz within two windows, at a steady temperature.
constexpr uint64_t kWanderNs = 1000;
// How old a reading of %globaltimer may be; PTX leaves it to the device.
constexpr uint64_t kTimerStepNs = 1024;
constexpr size_t kMaxProcesses = 4096;
constexpr size_t kMaxComms = 1024;    // of a process; a board has fewer
constexpr size_t kMaxGpus = 64;       // of a process
constexpr size_t kMaxReceived = 256;  // of a process

ClockOptions OptionsOf(size_t most_segments) {
  ClockOptions options;
  options.window_ns = kWindowNs;
  options.wander_ns = kWanderNs;
  options.most_segments = most_segments;
  options.remote = "the GPU's clock";
  options.local = "the host's clock";
  return options;
}

const char* LevelName(uint32_t level) {
  return level == MC_LEVEL_OPS ? "ops" : level == MC_LEVEL_STEPS ? "steps" : "unset";
}

}  // namespace

void GpuAligner::AddComm(Process* process, const CommSample& sample) const {
  if (sample.state == MC_COMM_FREE || sample.nranks <= 0 || sample.rank < 0) return;
  const auto known = process->comms.find(sample.index);
  if (known != process->comms.end()) {
    Member& member = known->second;
    member.active = sample.state == MC_COMM_ACTIVE;
    if (member.generation == sample.generation && member.comm_id == sample.comm_id &&
        member.rank == sample.rank) {
      return;
    }
  } else if (process->comms.size() >= kMaxComms) {
    return;
  }
  // The first GPU of the process that is not in this communicator yet.
  size_t gpu = 0;
  for (; gpu < process->gpus.size(); ++gpu) {
    const bool taken =
        std::any_of(process->comms.begin(), process->comms.end(), [&](const auto& item) {
          return item.first != sample.index && item.second.gpu == gpu &&
                 item.second.comm_id == sample.comm_id && item.second.active;
        });
    if (!taken) break;
  }
  if (gpu >= kMaxGpus) return;
  if (gpu == process->gpus.size()) {
    process->gpus.push_back({CausalClock(OptionsOf(most_segments_)), -1, 0});
  }
  process->comms[sample.index] = {sample.generation, sample.comm_id, sample.rank,
                                  sample.state == MC_COMM_ACTIVE, gpu};
  if (sample.nranks > process->gpus[gpu].nranks) {
    process->gpus[gpu].nranks = sample.nranks;
    process->gpus[gpu].rank = sample.rank;
  }
}

void GpuAligner::AddOp(Process* process, const OpSample& op, uint64_t now_ns,
                       std::vector<Bound>* bounds) {
  if (op.kernel_started == 0 || op.kernel_gpu_start == 0) return;
  const auto member = process->comms.find(op.comm);
  if (member == process->comms.end() || member->second.generation != op.comm_generation) return;
  const size_t gpu = member->second.gpu;
  const auto add = [&](bool gpu_after_host, uint64_t gpu_ns, uint64_t host_ns) {
    // Boards are other people's memory: a time ahead of now is none.
    if (gpu_ns == 0 || host_ns == 0 || host_ns > now_ns) return;
    bounds->push_back(
        {gpu, gpu_after_host, gpu_after_host ? gpu_ns + kTimerStepNs : gpu_ns, host_ns});
  };
  // The call of a graph's replay is the one at capture, long ago; the plugin leaves it out.
  if ((op.flags & MC_OP_GRAPH) == 0) add(true, op.kernel_gpu_start, op.api_ns);
  add(false, op.kernel_gpu_start, op.kernel_start_seen_ns);
  if (op.kernel_stopped == 0) return;
  add(false, op.kernel_gpu_stop, op.kernel_stop_seen_ns);
  // Data that came last was taken by a kernel before that ended: where the kernel waits
  // for the host's word that it is there, and all its channels have stopped.
  if (op.kind != MC_OP_COLL || op.proto != MC_PROTO_SIMPLE || op.channels == 0 ||
      op.kernel_started < op.channels || op.kernel_stopped != op.kernel_started ||
      op.proxy_started == 0 || op.proxy_done != op.proxy_started || op.recv_steps == 0 ||
      op.kernel_gpu_stop <= op.kernel_gpu_start) {
    return;
  }
  add(true, op.kernel_gpu_stop, MeanOf(op.recv_data_sum_ns, op.recv_steps, op.proxy_last_ns));
  Received& received = process->received[op.id];
  received.comm = op.comm;
  received.comm_generation = op.comm_generation;
  received.gpu_stop = op.kernel_gpu_stop;
}

void GpuAligner::Observe(const Snapshot& snapshot) {
  std::vector<Bound> bounds;
  for (const ProcessSample& sample : snapshot.processes) {
    auto found = processes_.find({snapshot.host, sample.key});
    if (found == processes_.end()) {
      if (sample.comms.empty()) continue;  // nothing to convert
      if (processes_.size() >= kMaxProcesses) {
        std::erase_if(processes_, [](const auto& item) { return item.second.exited; });
        if (processes_.size() >= kMaxProcesses) continue;
      }
      found = processes_.try_emplace({snapshot.host, sample.key}).first;
    }
    Process& process = found->second;
    process.level = sample.level;
    process.exited = sample.status == ProcessStatus::kExited;
    process.last_ns = snapshot.t_ns;
    for (const CommSample& comm : sample.comms) AddComm(&process, comm);
    bounds.clear();
    for (const OpSample& op : sample.ops) AddOp(&process, op, snapshot.t_ns, &bounds);
    // The last data of an operation, flow by flow.
    for (const FlowSample& flow : sample.flows) {
      if (flow.direction != MC_RECV || flow.owner_pid != 0 || flow.last_op_id == 0) continue;
      Received& received = process.received[flow.last_op_id];
      if (received.gpu_stop == 0 && received.data_ns == 0) {
        received.comm = flow.comm;
        received.comm_generation = flow.comm_generation;
      }
      if (received.comm != flow.comm || received.comm_generation != flow.comm_generation) continue;
      received.data_ns = std::max(received.data_ns, flow.last_final_ns);
    }
    for (auto it = process.received.begin(); it != process.received.end();) {
      const Received& received = it->second;
      const auto member = process.comms.find(received.comm);
      if (received.gpu_stop != 0 && received.data_ns != 0 && received.data_ns <= snapshot.t_ns &&
          member != process.comms.end() && member->second.generation == received.comm_generation) {
        bounds.push_back(
            {member->second.gpu, true, received.gpu_stop + kTimerStepNs, received.data_ns});
        it = process.received.erase(it);
      } else {
        ++it;
      }
    }
    while (process.received.size() > kMaxReceived) {
      process.received.erase(process.received.begin());
    }
    std::sort(bounds.begin(), bounds.end(), [](const Bound& a, const Bound& b) {
      return std::tie(a.host_ns, a.gpu_ns, a.gpu_after_host) <
             std::tie(b.host_ns, b.gpu_ns, b.gpu_after_host);
    });
    for (const Bound& bound : bounds) {
      CausalClock& clock = process.gpus[bound.gpu].clock;
      if (bound.gpu_after_host) {
        clock.RemoteAfterLocal(bound.gpu_ns, bound.host_ns);
      } else {
        clock.RemoteBeforeLocal(bound.gpu_ns, bound.host_ns);
      }
    }
  }
}

absl::StatusOr<ClockMap::Converted> GpuAligner::ToHost(const std::string& host,
                                                       const ProcessKey& process, uint32_t comm,
                                                       uint64_t gpu_ns) const {
  const auto found = processes_.find({host, process});
  if (found == processes_.end()) return absl::NotFoundError("no such process");
  const auto member = found->second.comms.find(comm);
  if (member == found->second.comms.end()) return absl::NotFoundError("no such communicator");
  // The event was up to a step after what the timer showed: the middle, and half a step.
  auto converted = found->second.gpus[member->second.gpu].clock.ToLocal(gpu_ns + kTimerStepNs / 2);
  if (converted.ok()) converted->error_ns += kTimerStepNs / 2;
  return converted;
}

std::vector<GpuClockState> GpuAligner::Clocks() const {
  std::vector<GpuClockState> out;
  for (const auto& [key, process] : processes_) {
    for (size_t i = 0; i < process.gpus.size(); ++i) {
      const CausalClock& clock = process.gpus[i].clock;
      GpuClockState state;
      state.host = key.first;
      state.process = key.second;
      state.gpu = static_cast<uint32_t>(i);
      state.rank = process.gpus[i].rank;
      state.bounds = clock.bounds();
      state.steps = clock.epochs() - 1;
      const auto offset = clock.At(process.last_ns);
      if (offset.ok()) {
        state.error_ns = offset->error_ns + kTimerStepNs / 2;
        if (const auto drift = clock.drift(); drift.ok()) {
          state.drift_ppm = drift->ppm;
          state.drift_error_ppm = drift->error_ppm;
        }
      } else if (clock.bounds() == 0 && process.level < MC_LEVEL_KERNELS) {
        state.problem = std::string("level '") + LevelName(process.level) +
                        "' records no kernels; MYCROFT_LEVEL=kernels does";
      } else if (clock.bounds() == 0) {
        state.problem = "no kernel of NCCL was seen yet";
      } else {
        state.problem = std::string(offset.status().message());
      }
      out.push_back(std::move(state));
    }
  }
  return out;
}

}  // namespace mycroft
