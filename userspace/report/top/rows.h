// SPDX-License-Identifier: Apache-2.0
//
// The rows of the main screen: incidents, then communicators with their ranks,
// filtered and sorted as the state says. Pointers point into the data given.
// Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_ROWS_H_
#define MYCROFT_USERSPACE_REPORT_TOP_ROWS_H_

#include <string>
#include <vector>

#include "userspace/report/top/state.h"

namespace mycroft {

enum class RowBlame : uint8_t { kNone, kVictim, kCulprit };

struct TopRow {
  RowId id;
  const Incident* incident = nullptr;
  const CommView* comm = nullptr;  // of the communicator or of the rank
  const RankView* rank = nullptr;
  RowBlame blame = RowBlame::kNone;
  bool last_of_comm = false;  // for the branch of the tree
};

bool IsOpen(const Incident& incident, uint64_t now_ns);

// Open incidents, worst first: stuck before slow, then by onset.
std::vector<const Incident*> OpenIncidents(const TopData& data);

std::vector<TopRow> BuildRows(const TopData& data, const TopState& state);

// "GPU", "host", ... for people.
std::string ComponentName(Component component);
// "rank 2 GPU", "rank 2 GPU or PCIe", "pid 17 host".
std::string CulpritName(const Culprit& culprit);
// Its name, or its id in hex; safe to print.
std::string CommunicatorName(uint64_t id, const std::string& name);
// "send peer", at most 9 characters.
const char* ShortState(mc_flow_state state);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_ROWS_H_
