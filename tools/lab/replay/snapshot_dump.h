// SPDX-License-Identifier: Apache-2.0
//
// Snapshots as text, for those who work on detection and attribution: one line
// per operation when it has finished, times in ms since the start of the replay.
// Operations that never finished come at the end. Not thread-safe.
#ifndef MYCROFT_TOOLS_LAB_REPLAY_SNAPSHOT_DUMP_H_
#define MYCROFT_TOOLS_LAB_REPLAY_SNAPSHOT_DUMP_H_

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "userspace/decode/snapshot.h"

namespace mycroft {

class SnapshotDump {
 public:
  // `out` is not owned.
  SnapshotDump(std::FILE* out, uint64_t start_ns) : out_(out), start_ns_(start_ns) {}
  void Add(const Snapshot& snapshot);
  void Finish();

 private:
  struct Process {
    std::map<std::pair<uint32_t, uint32_t>, CommSample> comms;  // by index, generation
    std::map<uint64_t, OpSample> open;
    std::map<uint32_t, FlowSample> flows;
  };
  void Print(const ProcessKey& key, const Process& process, const OpSample& op,
             const char* remark) const;
  double Ms(uint64_t t_ns) const;

  std::FILE* out_;
  uint64_t start_ns_;
  std::map<ProcessKey, Process> processes_;
};

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_LAB_REPLAY_SNAPSHOT_DUMP_H_
