// SPDX-License-Identifier: Apache-2.0
//
// Facts from the GPU board of a process. What is not known to be finished may be finished:
// only what is proved to be unfinished, or a kernel of NCCL's that the plugin knows not to
// have started, decides.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "userspace/attribute/facts.h"
#include "userspace/attribute/wait_graph.h"

namespace mycroft {
namespace {

using S = SuspectShape;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kBaselineNs = 120 * kSecond;
constexpr uint64_t kPollNs = 2 * kSecond;  // how late a sampled value may be
// Younger work may have ended since the board was read.
constexpr uint64_t kOldNs = 3 * kSecond / 2;
constexpr double kSlowKernels = 1.3, kUsualKernels = 1.15, kSlowCopies = 1.5;
constexpr uint64_t kLeastKernels = 8, kLeastCopyBytes = 1 << 20;
constexpr size_t kSiblings = 64;

const char* WorkName(mc_gpu_work work) {
  switch (work) {
    case MC_GPU_WORK_KERNEL:
    case MC_GPU_WORK_NCCL:
      return "kernel";
    case MC_GPU_WORK_GRAPH:
      return "a graph";
    case MC_GPU_WORK_COPY:
      return "a copy";
    case MC_GPU_WORK_MEMSET:
      return "a memset";
    case MC_GPU_WORK_NONE:
    case MC_GPU_WORK_VOID:
    case MC_GPU_WORK_COUNT:
      break;
  }
  return "work";
}

std::string Work(mc_gpu_work work, const std::string& kernel) {
  return WorkName(work) + (kernel.empty() ? "" : " " + kernel);
}

std::string OldestOf(const GpuStreamWork& stream) {
  return Work(stream.oldest_work, stream.oldest);
}

// What NCCL's kernel may wait for: the oldest, or where that is not proved, what follows.
std::string InFrontOf(const GpuStreamWork& stream) {
  const bool other = stream.front_work != MC_GPU_WORK_NONE &&
                     (stream.front_work != stream.oldest_work || stream.front != stream.oldest);
  if (stream.oldest_proved || !other) return OldestOf(stream);
  return OldestOf(stream) + " or " + Work(stream.front_work, stream.front);
}

std::string StreamName(const GpuStreamWork& stream) {
  return stream.stream_id ? FactText("stream %u", *stream.stream_id) : "a stream";
}

bool OldestIsForeign(const GpuStreamWork& stream) {
  return stream.oldest_work != MC_GPU_WORK_NONE && stream.oldest_work != MC_GPU_WORK_NCCL;
}

// It is certain that work which is not NCCL's does not end in this stream.
bool ForeignIsProved(const GpuStreamWork& stream) {
  return OldestIsForeign(stream) && stream.pending == GpuPending::kUnfinished &&
         (stream.oldest_proved || stream.no_nccl);
}

// How long kernels took against their usual time, in (from, to]; empty: too few were seen.
std::optional<double> KernelFactor(const ProcessState& process, uint64_t from, uint64_t to) {
  uint64_t kernels = 0, took = 0, expected = 0;
  for (const auto& [ordinal, sums] : process.gpu_sums) {
    kernels += sums.kernels.Increase(from, to).value_or(0);
    took += sums.kernel_ns.Increase(from, to).value_or(0);
    expected += sums.expected_ns.Increase(from, to).value_or(0);
  }
  if (kernels < kLeastKernels || expected == 0) return std::nullopt;
  return static_cast<double>(took) / static_cast<double>(expected);
}

// The first reading from then on: what was counted before it is a mixture.
uint64_t FirstReading(const CounterHistory& counter, uint64_t from) {
  for (const CounterHistory::Point& point : counter.points()) {
    if (point.t_ns >= from) return point.t_ns;
  }
  return UINT64_MAX;
}

struct CopyRate {
  double bytes_per_ns = 0, mean_bytes = 0;
};
std::optional<CopyRate> RateOf(const GpuSums& sums, size_t direction, uint64_t from, uint64_t to) {
  const uint64_t bytes = sums.copy_bytes[direction].Increase(from, to).value_or(0);
  const uint64_t ns = sums.copy_ns[direction].Increase(from, to).value_or(0);
  const uint64_t copies = sums.copies[direction].Increase(from, to).value_or(0);
  if (bytes < kLeastCopyBytes || ns == 0 || copies == 0) return std::nullopt;
  return CopyRate{static_cast<double>(bytes) / static_cast<double>(ns),
                  static_cast<double>(bytes) / static_cast<double>(copies)};
}

class GpuFinder {
 public:
  GpuFinder(const EvidenceInput& input, const Worker& worker, const ProcessState& process,
            std::vector<Fact>* facts)
      : in_(input), worker_(worker), process_(process), work_(*process.gpu_work), facts_(facts) {}

  void Find() {
    if (work_.state != MC_GPU_WATCHING && work_.state != MC_GPU_ARMED) return;
    in_.stuck ? Stuck() : Slow();
  }

 private:
  Fact& Add(FactKind kind, Weight weight, Component component, uint32_t shapes,
            uint64_t since_ns = 0) {
    return AddFact(facts_, kind, weight, component, worker_, shapes, since_ns);
  }

  bool SuspectedAs(std::initializer_list<S> shapes) const {
    return std::any_of(in_.suspects.begin(), in_.suspects.end(), [&](const Suspect& s) {
      return s.worker == &worker_ &&
             std::find(shapes.begin(), shapes.end(), s.shape) != shapes.end();
    });
  }

  std::string Device(const GpuStreamWork& stream) const {
    const auto sums =
        stream.device ? process_.gpu_sums.find(*stream.device) : process_.gpu_sums.end();
    return sums == process_.gpu_sums.end() ? std::string() : sums->second.pci;
  }
  double Age(uint64_t t_ns) const {
    return in_.now_ns > t_ns ? static_cast<double>(in_.now_ns - t_ns) / 1e9 : 0;
  }
  bool Old(uint64_t t_ns) const { return t_ns != 0 && t_ns + kOldNs <= in_.now_ns; }

  // ---- stuck ---------------------------------------------------------------------------

  void Stuck() {
    const GpuStreamWork* nccl = nullptr;  // with the kernel of NCCL that waits for longest
    for (const GpuStreamWork& stream : work_.streams) {
      if (stream.nccl_ns == 0) continue;
      if (nccl == nullptr || stream.nccl_ns < nccl->nccl_ns) nccl = &stream;
    }
    if (nccl != nullptr) {
      if (Old(nccl->nccl_ns)) NcclPending(*nccl);
      return;
    }
    if (!SuspectedAs({S::kAbsent, S::kHost})) return;
    for (const GpuStreamWork& stream : work_.streams) {
      if (!ForeignIsProved(stream) || stream.waited_since_ns == 0 || !Old(stream.oldest_ns)) {
        continue;
      }
      DoesNotEnd(stream);
      return;
    }
    NothingLaunched();
  }

  void NcclPending(const GpuStreamWork& nccl) {
    const Op* head = worker_.HeadOp();
    const bool starts_seen = worker_.level >= MC_LEVEL_KERNELS && head != nullptr;
    const bool started = head != nullptr && head->s.kernel_started > 0;
    const bool not_started = starts_seen && !started;
    const GpuStreamWork* blocker = OldestIsForeign(nccl) ? &nccl : nullptr;
    for (const GpuStreamWork& stream : work_.streams) {
      if (blocker != nullptr || !nccl.nccl_waits_for) break;
      if (stream.stream == *nccl.nccl_waits_for && OldestIsForeign(stream)) blocker = &stream;
    }
    const std::string kernel = "kernel " + nccl.nccl + " of " + NameOf(worker_);
    if (blocker != nullptr) {
      const bool proved = ForeignIsProved(*blocker);
      uint32_t shapes = ShapeBit(S::kGpu) | ShapeBit(S::kFlush);
      if (proved) shapes |= ShapeBit(S::kHost) | ShapeBit(S::kAbsent);
      Fact& fact =
          Add(FactKind::kStreamBlocked, proved || not_started ? Weight::kStrong : Weight::kSupport,
              Component::kGpu, shapes, blocker->oldest_ns);
      fact.device = Device(*blocker);
      fact.what = InFrontOf(*blocker) + " is in front of NCCL's in its stream";
      fact.text = kernel + " waits in " + StreamName(nccl) + " behind " + InFrontOf(*blocker) +
                  (blocker == &nccl ? "" : " of " + StreamName(*blocker)) +
                  FactText(", launched %.1f s ago, which ", Age(blocker->oldest_ns)) +
                  (proved        ? "does not end"
                   : not_started ? "is not known to have ended; it has not started"
                                 : "is not known to have ended");
      if (started) fact.refused = "NCCL's kernel has started: nothing is in front of it";
      return;
    }
    if (nccl.oldest_work != MC_GPU_WORK_NCCL || nccl.nccl_waits_for || started) return;
    if (!SuspectedAs({S::kGpu})) return;  // it waits like everybody else's
    const GpuStreamWork* runs = nullptr;
    for (const GpuStreamWork& stream : work_.streams) {
      if (&stream != &nccl && stream.device == nccl.device && ForeignIsProved(stream) &&
          stream.oldest_work != MC_GPU_WORK_COPY && Old(stream.oldest_ns)) {
        runs = &stream;
      }
    }
    const std::string launched = kernel + FactText(", launched %.1f s ago, ", Age(nccl.nccl_ns)) +
                                 "is the oldest of " + StreamName(nccl);
    if (runs == nullptr && !not_started) {
      Fact& fact = Add(FactKind::kNothingInFront, Weight::kSupport, Component::kGpu,
                       ShapeBit(S::kGpu), nccl.nccl_ns);
      fact.device = Device(nccl);
      fact.what = "NCCL's kernel does not go on";
      fact.text = launched + ": nothing of the application is in front of it";
      return;
    }
    Fact& fact = Add(FactKind::kNotScheduled, not_started ? Weight::kStrong : Weight::kSupport,
                     Component::kGpu, ShapeBit(S::kGpu) | ShapeBit(S::kFlush),
                     runs != nullptr ? runs->oldest_ns : nccl.nccl_ns);
    fact.device = Device(nccl);
    fact.what = runs != nullptr ? OldestOf(*runs) + " leaves NCCL's no room"
                                : "NCCL's kernel is not scheduled";
    fact.text = launched + (not_started ? " and has not started" : "");
    if (runs != nullptr) {
      fact.text +=
          "; " + OldestOf(*runs) + " of " + StreamName(*runs) +
          FactText(" runs for %.1f s and may leave it no room on the GPU", Age(runs->oldest_ns));
    } else {
      fact.text += ": it finds no room on the GPU";
    }
  }

  // The host is late because it waits for its GPU.
  void DoesNotEnd(const GpuStreamWork& stream) {
    Fact& fact = Add(FactKind::kKernelDoesNotEnd, Weight::kStrong, Component::kGpu,
                     ShapeBit(S::kAbsent) | ShapeBit(S::kHost), stream.oldest_ns);
    fact.device = Device(stream);
    fact.what = OldestOf(stream) + " does not end";
    fact.text = "the host of " + NameOf(worker_) +
                FactText(" waits for %.1f s for its GPU: ", Age(stream.waited_since_ns)) +
                OldestOf(stream) + " in " + StreamName(stream) +
                FactText(", launched %.1f s ago, does not end", Age(stream.oldest_ns));
  }

  void NothingLaunched() {
    if (!work_.streams.empty() || work_.streams_left_out != 0 || work_.launches == 0) return;
    if (!SuspectedAs({S::kAbsent}) || !Old(work_.last_launch_ns)) return;
    Fact& fact = Add(FactKind::kNothingLaunched, Weight::kStrong, Component::kHost,
                     ShapeBit(S::kAbsent), work_.last_launch_ns);
    fact.what = "it launches nothing";
    fact.text =
        NameOf(worker_) + FactText(" has launched nothing for %.1f s", Age(work_.last_launch_ns)) +
        FactText(", and all of its %" PRIu64 " kernels are finished: its GPU waits for its host",
                 work_.launches);
    Fact& gpu = Add(FactKind::kKernelDoesNotEnd, Weight::kStrong, Component::kGpu,
                    ShapeBit(S::kAbsent), work_.last_launch_ns);
    gpu.text = "its streams are empty";
    gpu.refused = "a GPU without work is not what the host waits for";
  }

  // ---- slow ----------------------------------------------------------------------------

  // Now against before the onset; empty: one of the two is not known.
  std::optional<double> Slowdown(const ProcessState& process) const {
    uint64_t from = UINT64_MAX;
    for (const auto& [ordinal, sums] : process.gpu_sums) {
      from = std::min(from, FirstReading(sums.kernels, in_.onset_ns));
    }
    if (from >= in_.now_ns) return std::nullopt;
    const auto before = KernelFactor(process, From(), Until());
    const auto now = KernelFactor(process, from, in_.now_ns);
    if (!before || !now || *before <= 0) return std::nullopt;
    return *now / *before;
  }
  uint64_t Until() const { return in_.onset_ns > kPollNs ? in_.onset_ns - kPollNs : 0; }
  uint64_t From() const { return Until() > kBaselineNs ? Until() - kBaselineNs : 0; }

  void Slow() {
    const std::optional<double> slowdown = Slowdown(process_);
    if (slowdown && *slowdown >= kSlowKernels) {
      Kernels(*slowdown);
    } else if (slowdown && *slowdown <= kUsualKernels &&
               SuspectedAs({S::kGpu, S::kHost, S::kFlush})) {
      Fact& fact = Add(FactKind::kKernelsSlow, Weight::kSupport, Component::kGpu,
                       ShapeBit(S::kGpu) | ShapeBit(S::kHost));
      fact.text = FactText("its compute kernels take %.2f times as long as before", *slowdown);
      fact.refused = "that is as usual";
    }
    for (const auto& [ordinal, sums] : process_.gpu_sums) Copies(sums, slowdown);
  }

  void Kernels(double slowdown) {
    Fact& fact = Add(FactKind::kKernelsSlow, Weight::kStrong, Component::kGpu,
                     ShapeBit(S::kGpu) | ShapeBit(S::kHost));
    if (process_.gpu_sums.size() == 1) fact.device = process_.gpu_sums.begin()->second.pci;
    fact.what = FactText("its compute kernels take %.1f times as long", slowdown);
    fact.text = "the compute kernels of " + NameOf(worker_) +
                FactText(" take %.1f times as long as before", slowdown);
    std::vector<double> others;
    for (const Worker* other : *in_.job) {
      if (other == &worker_ || others.size() >= kSiblings) continue;
      const ProcessState* process = in_.hardware->FindProcess(other->host, other->key);
      if (process == nullptr) continue;
      if (const auto theirs = Slowdown(*process)) others.push_back(*theirs);
    }
    if (others.empty()) return;
    std::sort(others.begin(), others.end());
    const double usual = others[others.size() / 2];
    fact.text += FactText("; those of %zu other ranks %.1f times", others.size(), usual);
    if (slowdown < kUsualKernels * usual) {
      fact.refused = "those of the other ranks take as much longer: it is not this GPU's";
    }
  }

  void Copies(const GpuSums& sums, const std::optional<double>& slowdown) {
    for (const auto& [direction, name] :
         {std::pair{MC_GPU_COPY_HTOD, "to"}, std::pair{MC_GPU_COPY_DTOH, "from"}}) {
      const auto before = RateOf(sums, direction, From(), Until());
      const uint64_t from = FirstReading(sums.copy_bytes[direction], in_.onset_ns);
      if (from >= in_.now_ns) continue;
      const auto now = RateOf(sums, direction, from, in_.now_ns);
      if (!before || !now || before->bytes_per_ns < kSlowCopies * now->bytes_per_ns) continue;
      // Small copies cost their start, not their bytes.
      if (now->mean_bytes < before->mean_bytes / 2) continue;
      const bool usual = slowdown && *slowdown <= kUsualKernels;
      Fact& fact =
          Add(FactKind::kCopiesSlow, usual ? Weight::kStrong : Weight::kSupport, Component::kPcie,
              ShapeBit(S::kGpu) | ShapeBit(S::kFlush) | ShapeBit(S::kNode) | ShapeBit(S::kEdge) |
                  ShapeBit(S::kHost));
      fact.device = sums.pci;
      fact.what = std::string("copies ") + name + " its GPU are slow";
      fact.text =
          std::string("copies ") + name + " GPU " + sums.pci + " of " + NameOf(worker_) +
          FactText(" move %.1f GB/s instead of %.1f", now->bytes_per_ns, before->bytes_per_ns);
      if (usual) fact.text += ", while its compute kernels take as long as ever";
      return;
    }
  }

  const EvidenceInput& in_;
  const Worker& worker_;
  const ProcessState& process_;
  const GpuWorkSample& work_;
  std::vector<Fact>* facts_;
};

}  // namespace

void FindGpuFacts(const EvidenceInput& input, const Worker& worker, std::vector<Fact>* facts) {
  const ProcessState* process = input.hardware->FindProcess(worker.host, worker.key);
  if (process == nullptr || !process->gpu_work.has_value()) return;
  GpuFinder(input, worker, *process, facts).Find();
}

}  // namespace mycroft
