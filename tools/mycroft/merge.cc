// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/merge.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <tuple>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "tools/mycroft/watch.h"
#include "userspace/align/host_aligner.h"
#include "userspace/base/log.h"
#include "userspace/base/text.h"
#include "userspace/report/clocks.h"
#include "userspace/report/text.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

std::string HostKey(const Snapshot& snapshot) {
  return snapshot.host_id.empty() ? snapshot.host : snapshot.host_id;
}

}  // namespace

bool MergeOrder(const Snapshot& a, const Snapshot& b) {
  return std::tie(a.t_ns, a.host_id, a.host) < std::tie(b.t_ns, b.host_id, b.host);
}

absl::Status Merge(const std::vector<MergeInput>& inputs,
                   const std::function<absl::Status(const Snapshot&)>& sink) {
  struct Head {
    std::optional<Snapshot> snapshot;
    std::map<std::string, bool> hosts;  // of this input
  };
  struct Seen {
    size_t input = 0;
    uint64_t t_ns = 0;
  };
  std::vector<Head> heads(inputs.size());
  std::map<std::string, Seen> last;  // by host
  const auto advance = [&](size_t i) {
    absl::StatusOr<std::optional<Snapshot>> next = inputs[i].source->Next();
    if (!next.ok()) {
      return absl::Status(next.status().code(), inputs[i].name + ": " + StatusText(next.status()));
    }
    heads[i].snapshot = *std::move(next);
    return absl::OkStatus();
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const absl::Status status = advance(i);
    if (!status.ok()) return status;
  }
  for (;;) {
    size_t best = inputs.size();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!heads[i].snapshot) continue;
      if (best == inputs.size()) {
        best = i;
        continue;
      }
      const Snapshot &a = *heads[i].snapshot, &b = *heads[best].snapshot;
      // One host has one clock, and it does not jump.
      const bool before = HostKey(a) == HostKey(b) ? a.t_ns < b.t_ns : MergeOrder(a, b);
      if (before) best = i;
    }
    if (best == inputs.size()) return absl::OkStatus();
    const Snapshot& snapshot = *heads[best].snapshot;
    const std::string host = HostKey(snapshot);
    const auto [it, fresh] = last.try_emplace(host, Seen{best, snapshot.t_ns});
    if (!fresh) {
      Seen& seen = it->second;
      if (seen.input != best) {
        // The other file must be done with this host: a switch there and back is an overlap.
        const bool again = heads[best].hosts.count(host) != 0;
        if (again || snapshot.t_ns <= seen.t_ns) {
          return absl::FailedPreconditionError(
              inputs[best].name + " and " + inputs[seen.input].name + " overlap in time on host " +
              QuotedText(snapshot.host) + "; merge one recording per host and time");
        }
      }
      seen = {best, snapshot.t_ns};
    }
    heads[best].hosts[host] = true;
    absl::Status status = sink(snapshot);
    if (!status.ok()) return status;
    status = advance(best);
    if (!status.ok()) return status;
  }
}

// A recording on the clock of the merge. Hosts whose clock cannot be aligned are left out.
class AlignedSource final : public SnapshotSource {
 public:
  AlignedSource(RecordingReader* reader, const HostAligner* aligner,
                std::map<std::string, std::string>* left_out)
      : reader_(reader), aligner_(aligner), left_out_(left_out) {}

  absl::StatusOr<std::optional<Snapshot>> Next() override {
    for (;;) {
      absl::StatusOr<std::optional<Snapshot>> next = reader_->Next();
      if (!next.ok() || !*next) return next;
      const absl::Status status = aligner_->Align(&**next);
      if (status.ok()) return next;
      left_out_->emplace((*next)->host, StatusText(status));
    }
  }

 private:
  RecordingReader* reader_;
  const HostAligner* aligner_;
  std::map<std::string, std::string>* left_out_;
};

int RunMerge(const Config& config, const Options& options) {
  std::vector<std::unique_ptr<RecordingReader>> readers;
  std::vector<MergeInput> inputs;
  for (const std::string& path : options.inputs) {
    absl::StatusOr<std::unique_ptr<RecordingReader>> reader = RecordingReader::Open(path);
    if (!reader.ok()) return Fail(reader.status());
    std::error_code error;
    for (const std::string& other : options.inputs) {
      if (&other != &path && std::filesystem::equivalent(path, other, error)) {
        LogError(path + " is named twice");
        return kExitUsage;
      }
    }
    if (std::filesystem::equivalent(path, options.output, error)) {
      LogError("-o names an input; choose another file");
      return kExitUsage;
    }
    if ((*reader)->info().truncated) {
      LogWarning(path + " is damaged: " + (*reader)->info().problem);
    }
    readers.push_back(*std::move(reader));
  }
  // First pass: the steps that the hosts exchanged give the offsets of their clocks.
  HostAligner aligner;
  for (size_t i = 0; i < readers.size(); ++i) {
    for (;;) {
      absl::StatusOr<std::optional<Snapshot>> next = readers[i]->Next();
      if (!next.ok()) return Fail(next.status());
      if (!*next) break;
      aligner.Observe(**next);
    }
    readers[i]->Rewind();
  }
  std::map<std::string, std::string> left_out;
  std::vector<std::unique_ptr<AlignedSource>> aligned;
  for (size_t i = 0; i < readers.size(); ++i) {
    aligned.push_back(std::make_unique<AlignedSource>(readers[i].get(), &aligner, &left_out));
    inputs.push_back({options.inputs[i], aligned[i].get()});
  }
  RecordingOptions keep_all;
  keep_all.max_age_ns = 0;
  keep_all.max_bytes = 0;
  absl::StatusOr<std::unique_ptr<RecordingWriter>> writer =
      RecordingWriter::Create(options.output, keep_all);
  if (!writer.ok()) return Fail(writer.status());
  Pipeline pipeline(MakePipelineOptions(config));
  std::map<std::string, bool> hosts;
  uint64_t count = 0;
  absl::Status status = Merge(inputs, [&](const Snapshot& snapshot) {
    hosts[snapshot.host] = true;
    ++count;
    pipeline.Feed(snapshot);
    return (*writer)->Append(snapshot);
  });
  pipeline.Finish();
  for (const Incident& incident : pipeline.incidents()) {
    if (status.ok()) status = (*writer)->PutIncident(incident);
  }
  const std::vector<HostClockState> clocks = aligner.Clocks();
  for (const HostClockState& clock : clocks) {
    if (status.ok() && clock.error_ns) status = (*writer)->PutClock(clock.host, ClockText(clock));
  }
  if (status.ok()) status = (*writer)->Flush();
  writer->reset();
  if (!status.ok()) {
    // Half a merge looks like a whole one.
    std::error_code error;
    for (const char* suffix : {"", "-wal", "-shm"}) {
      std::filesystem::remove(options.output + suffix, error);
    }
    return Fail(status);
  }
  for (const auto& [host, reason] : left_out) {
    LogWarning("host " + QuotedText(host) + " is left out: " + reason);
  }
  for (const HostClockState& clock : clocks) {
    if (clock.error_ns) {
      LogInfo(ClockText(clock) + ", " + std::to_string(clock.offset_ns) + " ns apart");
    }
  }
  LogInfo("merged " + std::to_string(count) + " snapshots of " + std::to_string(hosts.size()) +
          (hosts.size() == 1 ? " host" : " hosts") + " into " + options.output);
  return left_out.empty() ? kExitOk : kExitDegraded;
}

}  // namespace mycroft
