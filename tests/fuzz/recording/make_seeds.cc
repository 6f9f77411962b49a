// SPDX-License-Identifier: Apache-2.0
//
// Writes the seeds of both fuzzers: make_seeds DIRECTORY. To be run again when
// the format changes.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "userspace/report/testing/synthetic_job.h"
#include "userspace/report/testing/random_snapshot.h"
#include "userspace/store/recording.h"
#include "userspace/store/snapshot_codec.h"

namespace {

using mycroft::Snapshot;

void WritePayloads(const std::filesystem::path& path, const std::vector<Snapshot>& snapshots,
                   size_t per_batch) {
  std::ofstream out(path, std::ios::binary);
  mycroft::SnapshotEncoder encoder;
  for (size_t i = 0; i < snapshots.size(); i += per_batch) {
    const size_t end = std::min(snapshots.size(), i + per_batch);
    const auto payload = encoder.Encode({snapshots.begin() + i, snapshots.begin() + end}, false);
    if (!payload.ok() || payload->size() > 0xffff) std::abort();
    out.put(static_cast<char>(payload->size() & 0xff));
    out.put(static_cast<char>(payload->size() >> 8));
    out << *payload;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path dir = argv[1];
  std::filesystem::create_directories(dir / "payload");
  std::filesystem::create_directories(dir / "recording");
  mycroft::SyntheticOptions options;
  options.ranks = 2;
  options.duration_s = 2;
  options.stuck_rank = 1;
  options.stuck_at_s = 1;
  mycroft::SyntheticJob job(options);
  std::vector<Snapshot> snapshots;
  for (auto next = job.Next(); next.ok() && *next; next = job.Next()) {
    snapshots.push_back(**std::move(next));
  }
  WritePayloads(dir / "payload" / "job", snapshots, 5);
  for (uint64_t seed : {1, 2, 3}) {
    mycroft::RandomSnapshot random(seed);
    std::vector<Snapshot> any;
    for (int i = 0; i < 6; ++i) any.push_back(random.Next());
    WritePayloads(dir / "payload" / ("any" + std::to_string(seed)), any, 2);
  }
  const std::filesystem::path file = dir / "recording" / "job";
  std::filesystem::remove(file);
  auto writer = mycroft::RecordingWriter::Create(file);
  if (!writer.ok()) return 1;
  for (const Snapshot& snapshot : snapshots) {
    if (!(*writer)->Append(snapshot).ok()) return 1;
  }
  for (const mycroft::Incident& incident : job.Incidents()) {
    if (!(*writer)->PutIncident(incident).ok()) return 1;
  }
  return 0;
}
