// SPDX-License-Identifier: Apache-2.0
#include "userspace/detect/mismatch.h"

#include <algorithm>

namespace mycroft {
namespace {

constexpr size_t kKeepOrdinals = 256;
constexpr uint64_t kWaitForOthersNs = 1'000'000'000;

}  // namespace

std::vector<Mismatch> MismatchDetector::Update(const JobModel& model) {
  std::vector<Mismatch> found;
  std::map<uint64_t, const Comm*> touched;
  for (const auto& worker : model.workers()) {
    uint64_t& seen = seen_[worker.get()];
    for (auto it = worker->ops.upper_bound(seen); it != worker->ops.end(); ++it) {
      const Op& op = it->second;
      seen = it->first;
      if (op.s.kind != MC_OP_COLL || op.member == nullptr) continue;
      const Comm& comm = *op.member->comm;
      Call call{worker.get(),      op.member->info.rank, op.s.func,
                op.s.datatype,     op.s.count,           op.s.root_or_peer,
                op.s.start_ns};
      CommCalls& calls = comms_[comm.id];
      calls.by_ordinal[op.s.ordinal].push_back(call);
      touched[comm.id] = &comm;
    }
  }
  for (auto& [id, calls] : comms_) {
    auto comm_it = model.comms().find(id);
    if (comm_it == model.comms().end()) continue;
    const Comm& comm = *comm_it->second;
    for (auto it = calls.by_ordinal.lower_bound(calls.clean_below); it != calls.by_ordinal.end();
         ++it) {
      auto& [ordinal, list] = *it;
      if (calls.reported) break;
      bool differ = false;
      for (const Call& call : list) differ |= !call.Same(list[0]);
      if (!differ) {
        // All ranks have called it: never to be looked at again.
        bool next = it == calls.by_ordinal.begin() || ordinal == calls.clean_below;
        if (next && list.size() >= static_cast<size_t>(comm.nranks)) calls.clean_below = ordinal + 1;
        continue;
      }
      uint64_t newest = 0;
      for (const Call& call : list) newest = std::max(newest, call.start_ns);
      bool all = list.size() >= comm.members.size();
      // Groups of equal calls; the largest is right when it has the majority.
      std::vector<std::vector<const Call*>> groups;
      for (const Call& call : list) {
        auto group = std::find_if(groups.begin(), groups.end(),
                                  [&](const auto& g) { return g[0]->Same(call); });
        if (group == groups.end()) {
          groups.push_back({&call});
        } else {
          group->push_back(&call);
        }
      }
      auto largest = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
        return a.size() < b.size();
      });
      bool majority = 2 * largest->size() > static_cast<size_t>(comm.nranks);
      if (!all && !majority && model.now_ns() < newest + kWaitForOthersNs) continue;
      // A sequence that never agreed is a view that began too late, not a mismatch.
      if (calls.agreed == 0 && ordinal > 0) {
        calls.reported = true;
        continue;
      }
      Mismatch mismatch;
      mismatch.comm = &comm;
      mismatch.ordinal = ordinal;
      bool clear = 2 * largest->size() > list.size();
      if (clear) {
        for (const auto& group : groups) {
          if (&group == &*largest) continue;
          for (const Call* call : group) mismatch.deviating.push_back(call->worker);
        }
      } else {
        // A tie: who does what was never done on this communicator before?
        std::vector<const Worker*> novel;
        size_t known_groups = 0;
        for (const auto& group : groups) {
          bool known = false;
          for (const auto& [before, old] : calls.by_ordinal) {
            if (before >= ordinal) break;
            for (const Call& call : old) known |= call.Same(*group[0]);
          }
          known_groups += known ? 1 : 0;
          if (known) continue;
          for (const Call* call : group) novel.push_back(call->worker);
        }
        if (known_groups == 1) mismatch.deviating = novel;
      }
      mismatch.onset_ns = newest;
      for (const Call& call : list) {
        bool deviates = std::find(mismatch.deviating.begin(), mismatch.deviating.end(),
                                  call.worker) != mismatch.deviating.end();
        if (deviates) mismatch.onset_ns = std::min(mismatch.onset_ns, call.start_ns);
        if (mismatch.calls.size() < 8 || deviates) {
          mismatch.calls.push_back("rank " + std::to_string(call.rank) + ": " +
                                   ToString(call.func) + " of " + std::to_string(call.count) +
                                   " " + ToString(call.datatype) + ", root " +
                                   std::to_string(call.root));
        }
      }
      calls.reported = true;
      found.push_back(std::move(mismatch));
    }
    while (calls.by_ordinal.size() > kKeepOrdinals ||
           (!calls.by_ordinal.empty() && calls.by_ordinal.size() > 64 &&
            calls.by_ordinal.begin()->second.size() >= comm.members.size())) {
      ++calls.agreed;
      calls.by_ordinal.erase(calls.by_ordinal.begin());
    }
    if (calls.agreed == 0) {
      for (const auto& [ordinal, list] : calls.by_ordinal) {
        bool same = list.size() >= 2;
        for (const Call& call : list) same &= call.Same(list[0]);
        if (same) {
          calls.agreed = 1;
          break;
        }
      }
    }
  }
  return found;
}

}  // namespace mycroft
