// SPDX-License-Identifier: Apache-2.0
//
// The GPU clocks of recorded NCCL jobs. Their device threads stamp kernels with the wall
// clock, so the true offset to CLOCK_MONOTONIC is in the header of the recording.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/lab/replay/replay_job.h"
#include "userspace/align/gpu_aligner.h"
#include "userspace/decode/live_source.h"

namespace mycroft {
namespace {

constexpr uint64_t kTickNs = 100'000'000;
constexpr uint64_t kGraceNs = 500'000'000;
// The wall clock and CLOCK_MONOTONIC of a header were read one after the other.
constexpr uint64_t kHeaderNs = 5'000;

void Check(const std::filesystem::path& folder) {
  const auto files = FindRankFiles(folder);
  ASSERT_TRUE(files.ok()) << files.status();
  auto job = ReplayJob::Start(*files, {MYCROFT_PLUGIN, false, false});
  ASSERT_TRUE(job.ok()) << job.status();
  uint64_t now_ns = (*job)->first_t_ns();
  LiveOptions live;
  live.pids = (*job)->pids();
  live.host_samples = live.hardware = false;
  live.now_ns = [&] { return now_ns; };
  live.wall_ns = live.now_ns;
  auto source = LiveSource::Create(live);
  ASSERT_TRUE(source.ok()) << source.status();

  struct Kernel {
    ProcessKey process;
    uint32_t comm = 0;
    uint64_t gpu_ns = 0;
  };
  std::vector<Kernel> kernels;
  std::string host;
  GpuAligner aligner;
  for (uint64_t end_ns = UINT64_MAX; now_ns <= end_ns; now_ns += kTickNs) {
    ASSERT_TRUE((*job)->AdvanceTo(now_ns).ok());
    const auto next = (*source)->Next();
    ASSERT_TRUE(next.ok() && next->has_value());
    const Snapshot& snapshot = **next;
    host = snapshot.host;
    aligner.Observe(snapshot);
    for (const ProcessSample& process : snapshot.processes) {
      for (const OpSample& op : process.ops) {
        for (const uint64_t t : {op.kernel_gpu_start, op.kernel_gpu_stop}) {
          if (t != 0) kernels.push_back({process.key, op.comm, t});
        }
      }
    }
    if (!(*job)->running() && end_ns == UINT64_MAX) end_ns = now_ns + kGraceNs;
  }
  const std::vector<GpuClockState> clocks = aligner.Clocks();
  EXPECT_EQ(clocks.size(), files->size());
  uint64_t worst = 0;
  for (const GpuClockState& clock : clocks) {
    EXPECT_EQ(clock.steps, 0u) << "rank " << clock.rank;
    ASSERT_TRUE(clock.error_ns.has_value()) << "rank " << clock.rank << ": " << clock.problem;
    worst = std::max(worst, *clock.error_ns);
  }
  EXPECT_FALSE(kernels.empty());
  std::vector<uint64_t> bounds;
  for (const Kernel& kernel : kernels) {
    const auto converted = aligner.ToHost(host, kernel.process, kernel.comm, kernel.gpu_ns);
    ASSERT_TRUE(converted.ok()) << converted.status();
    const uint64_t truth = kernel.gpu_ns - static_cast<uint64_t>((*job)->wall_minus_mono_ns());
    const auto error = static_cast<int64_t>(converted->ns - truth);
    EXPECT_LE(static_cast<uint64_t>(error < 0 ? -error : error), converted->error_ns + kHeaderNs);
    bounds.push_back(converted->error_ns);
  }
  std::sort(bounds.begin(), bounds.end());
  std::printf(
      "%-24s %zu clocks, error bound of %zu kernel times: median %.1f us, worst %.1f us; "
      "at the end %.1f us\n",
      folder.filename().c_str(), clocks.size(), bounds.size(),
      static_cast<double>(bounds[bounds.size() / 2]) / 1e3,
      static_cast<double>(bounds.back()) / 1e3, static_cast<double>(worst) / 1e3);
}

TEST(GpuClock, OfRecordedJobsIsKnownWithinItsBound) {
  const char* folder = getenv("MYCROFT_TRACES");
  if (folder == nullptr || *folder == '\0') {
    GTEST_SKIP() << "MYCROFT_TRACES is not set: the clocks of real NCCL jobs were NOT checked";
  }
  std::vector<std::filesystem::path> cases;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / "truth.json")) cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  ASSERT_FALSE(cases.empty());
  for (const auto& one : cases) {
    SCOPED_TRACE(one.filename().string());
    Check(one);
  }
}

}  // namespace
}  // namespace mycroft
