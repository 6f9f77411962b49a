// SPDX-License-Identifier: Apache-2.0
//
// Different calls at the same place of a communicator's sequence of collectives:
// another function, size, type or root than on the other ranks. Such a job hangs
// or, worse, computes on mixed data. Not thread-safe.
#ifndef MYCROFT_USERSPACE_DETECT_MISMATCH_H_
#define MYCROFT_USERSPACE_DETECT_MISMATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "userspace/model/job.h"

namespace mycroft {

struct Mismatch {
  const Comm* comm = nullptr;
  uint64_t ordinal = 0;
  uint64_t onset_ns = 0;                      // enqueue of the first deviating call
  std::vector<const Worker*> deviating;       // empty: it differs, but who is wrong is not known
  std::vector<std::string> calls;             // "rank 1: Broadcast of 4194304 int8, root 0"
};

class MismatchDetector {
 public:
  // Call after every JobModel::Apply(). At most one result per communicator, ever.
  std::vector<Mismatch> Update(const JobModel& model);

 private:
  struct Call {
    const Worker* worker = nullptr;
    int32_t rank = 0;
    mc_func func = MC_FUNC_UNKNOWN;
    mc_datatype datatype = MC_TYPE_UNKNOWN;
    uint64_t count = 0;
    int32_t root = 0;
    uint64_t start_ns = 0;
    bool Same(const Call& other) const {
      return func == other.func && datatype == other.datatype && count == other.count &&
             root == other.root;
    }
  };
  struct CommCalls {
    std::map<uint64_t, std::vector<Call>> by_ordinal;
    uint64_t agreed = 0;  // ordinals on which all seen ranks agreed
    uint64_t clean_below = 0;  // all ranks called the same at every ordinal before
    bool reported = false;
  };
  std::map<uint64_t, CommCalls> comms_;
  WorkerMap<uint64_t> seen_;  // operation ids taken so far
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DETECT_MISMATCH_H_
