// SPDX-License-Identifier: Apache-2.0
//
// Puts snapshots of several recordings into one order. One thread.
#ifndef MYCROFT_TOOLS_MYCROFT_MERGE_H_
#define MYCROFT_TOOLS_MYCROFT_MERGE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "userspace/decode/snapshot_source.h"

namespace mycroft {

// Which of two snapshots of different hosts comes first. REQUIRES: both on one clock
// (see HostAligner).
bool MergeOrder(const Snapshot& a, const Snapshot& b);

struct MergeInput {
  std::string name;
  SnapshotSource* source = nullptr;
};

// Calls `sink` with every snapshot of the inputs: in MergeOrder among hosts, in the
// order of its own clock for each host. FailedPrecondition when two inputs have
// snapshots of one host at overlapping times. Memory: one snapshot per input.
[[nodiscard]] absl::Status Merge(const std::vector<MergeInput>& inputs,
                                 const std::function<absl::Status(const Snapshot&)>& sink);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_MERGE_H_
