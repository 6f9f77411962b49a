// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/gpu_work.h"

#include <algorithm>

#include "userspace/decode/gpu_board_decode.h"

namespace mycroft {
namespace {

constexpr uint64_t kUsualCount = 8;  // kernels of a name, before its usual time is known

// Growth of a counter of the board; one that fell begins anew.
uint64_t Grown(uint64_t now, uint64_t before) { return now >= before ? now - before : 0; }

bool HoldsThread(mc_gpu_host_call call) {
  return call == MC_GPU_HOST_STREAM_SYNC || call == MC_GPU_HOST_EVENT_SYNC ||
         call == MC_GPU_HOST_COPY;
}

bool IsNccl(const GpuLaunch& launch) { return launch.work == MC_GPU_WORK_NCCL; }

std::string Cut(std::string text, size_t most) {
  if (text.size() > most) text.resize(most);
  return text;
}

GpuStreamWork WorkOf(const GpuSnapshot& snapshot, const GpuStreamSample& s) {
  GpuStreamWork out;
  out.stream = s.index;
  out.stream_id = s.stream_id;
  out.context = s.context;
  out.device = s.device;
  out.launched = s.launched;
  out.finished = s.finished;
  out.pending = s.pending;
  out.waited_since_ns = s.waited_since_ns;
  const GpuLaunch* nccl = nullptr;
  uint64_t seen = s.oldest.has_value() ? 1 : 0;
  if (s.oldest.has_value()) {
    out.oldest_work = s.oldest->work;
    out.oldest = ShortKernelName(s.oldest->kernel);
    out.oldest_ns = s.oldest->launch_ns;
    if (IsNccl(*s.oldest)) nccl = &*s.oldest;
    if (s.pending == GpuPending::kUnfinished) {
      out.oldest_proved = s.launched - s.finished == 1;
      for (const GpuThreadSample& thread : snapshot.threads) {
        out.oldest_proved |= HoldsThread(thread.call) && thread.stream == s.index &&
                             thread.ticket > s.finished && thread.ticket <= s.oldest->ticket;
      }
    }
  }
  const GpuLaunch* front = nullptr;
  for (const GpuLaunch& launch : s.behind) {
    ++seen;
    if (nccl == nullptr && IsNccl(launch)) nccl = &launch;
    if (nccl == nullptr) front = &launch;
  }
  out.no_nccl = nccl == nullptr && s.oldest.has_value() && seen == s.launched - s.finished;
  if (nccl != nullptr) {
    out.nccl = ShortKernelName(nccl->kernel);
    out.nccl_ns = nccl->launch_ns;
    if (front != nullptr) {
      out.front_work = front->work;
      out.front = ShortKernelName(front->kernel);
    }
    if (s.waits_for_stream.has_value() && nccl->ticket > s.wait_at) {
      out.nccl_waits_for = s.waits_for_stream;
    }
  }
  return out;
}

// Which streams to keep when there are too many.
int Importance(const GpuStreamWork& stream) {
  return (stream.pending == GpuPending::kUnfinished ? 4 : 0) + (stream.nccl_ns != 0 ? 2 : 0) +
         (stream.waited_since_ns != 0 ? 1 : 0);
}

}  // namespace

std::string ShortKernelName(const std::string& mangled) {
  if (mangled.compare(0, 2, "_Z") != 0) return Cut(mangled, kMaxGpuWorkName);
  size_t at = 2;
  const bool nested = at < mangled.size() && mangled[at] == 'N';
  if (nested) ++at;
  while (nested && at < mangled.size() && (mangled[at] == 'K' || mangled[at] == 'V')) ++at;
  std::string name;
  while (at < mangled.size() && mangled[at] >= '0' && mangled[at] <= '9') {
    size_t length = 0;
    while (at < mangled.size() && mangled[at] >= '0' && mangled[at] <= '9' && length < 1000) {
      length = length * 10 + static_cast<size_t>(mangled[at++] - '0');
    }
    const std::string part = mangled.substr(std::min(at, mangled.size()), length);
    if (!part.empty()) name += (name.empty() ? "" : "::") + part;
    at += length;
    if (!nested) break;
  }
  return Cut(name.empty() ? mangled : name, kMaxGpuWorkName);
}

GpuDeviceWork* GpuWorkSampler::Device(uint32_t ordinal) {
  const auto it = devices_.find(ordinal);
  if (it != devices_.end()) return &it->second;
  if (devices_.size() >= kMaxGpuWorkDevices) return nullptr;
  GpuDeviceWork& device = devices_[ordinal];
  device.device = ordinal;
  return &device;
}

GpuWorkSample GpuWorkSampler::Sample(const GpuSnapshot& snapshot) {
  GpuWorkSample out;
  out.state = snapshot.state;
  out.level = snapshot.level;
  out.problem = Cut(DescribeGpuState(snapshot), kMaxGpuWorkText);
  out.armed_until_ns = snapshot.armed_until_ns;
  out.launches = snapshot.launches;
  out.nccl_launches = snapshot.nccl_launches;

  for (const GpuDeviceSample& device : snapshot.devices) {
    if (GpuDeviceWork* work = Device(device.ordinal)) work->pci = Cut(device.pci, 32);
  }
  for (const GpuNameSample& name : snapshot.names) {
    if (name.nccl || name.index == 0 || !name.device.has_value() || name.count == 0) continue;
    Known& known = names_[name.index];
    if (known.usual && name.count >= known.count && name.sum_ns >= known.sum_ns) {
      const uint64_t count = name.count - known.count;
      GpuDeviceWork* device = count > 0 ? Device(*name.device) : nullptr;
      if (device != nullptr) {
        device->kernels += count;
        device->kernel_ns += name.sum_ns - known.sum_ns;
        device->expected_ns += count * known.usual_ns;
      }
    } else if (!known.usual && name.count >= kUsualCount) {
      known.usual_ns = name.sum_ns / name.count;
      known.usual = known.usual_ns > 0;
    }
    known.count = name.count;
    known.sum_ns = name.sum_ns;
  }
  for (const GpuStreamSample& s : snapshot.streams) {
    out.last_launch_ns = std::max(out.last_launch_ns, s.last_launch_ns);
    out.finished_ns = std::max(out.finished_ns, s.finished_ns);
    StreamSums& before = streams_[{s.index, s.generation}];
    StreamSums now{s.nccl_count,  s.nccl_ns,         s.delay_count, s.delay_ns,
                   s.done_copies, s.done_copy_bytes, s.done_copy_ns};
    GpuDeviceWork* device = s.device.has_value() ? Device(*s.device) : nullptr;
    if (device != nullptr) {
      device->nccl_kernels += Grown(now.nccl_count, before.nccl_count);
      device->nccl_ns += Grown(now.nccl_ns, before.nccl_ns);
      device->delays += Grown(now.delay_count, before.delay_count);
      device->delay_ns += Grown(now.delay_ns, before.delay_ns);
      for (size_t i = 0; i < MC_GPU_COPY_COUNT; ++i) {
        device->copies[i] += Grown(now.copies[i], before.copies[i]);
        device->copy_bytes[i] += Grown(now.bytes[i], before.bytes[i]);
        device->copy_ns[i] += Grown(now.ns[i], before.ns[i]);
      }
      before = now;
    }
    if (s.alive && s.pending != GpuPending::kNone) out.streams.push_back(WorkOf(snapshot, s));
  }
  // Lines that were given to other streams.
  std::erase_if(streams_, [&](const auto& known) {
    return std::none_of(snapshot.streams.begin(), snapshot.streams.end(), [&](const auto& s) {
      return s.index == known.first.first && s.generation == known.first.second;
    });
  });
  if (out.streams.size() > kMaxGpuWorkStreams) {
    out.streams_left_out = static_cast<uint32_t>(out.streams.size() - kMaxGpuWorkStreams);
    std::stable_sort(out.streams.begin(), out.streams.end(),
                     [](const auto& a, const auto& b) { return Importance(a) > Importance(b); });
    out.streams.resize(kMaxGpuWorkStreams);
    std::sort(out.streams.begin(), out.streams.end(),
              [](const auto& a, const auto& b) { return a.stream < b.stream; });
  }
  for (const auto& [ordinal, device] : devices_) out.devices.push_back(device);
  return out;
}

}  // namespace mycroft
