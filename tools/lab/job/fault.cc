// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/fault.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

namespace mycroft::lab {
namespace {

constexpr FaultInfo kFaults[] = {
    {FaultKind::kGpuSlow, "gpu-slow", "gpu", "slow", "us per slice", 10000},
    {FaultKind::kGpuLate, "gpu-late", "gpu", "slow", "us", 150000},
    {FaultKind::kGpuStuck, "gpu-stuck", "gpu", "hang", "slices before the stop", 3},
    {FaultKind::kStreamBlocked, "stream-blocked", "gpu", "hang", "", 0},
    {FaultKind::kBusSlow, "bus-slow", "pcie", "slow", "us per copy", 10000},
    {FaultKind::kNetSlow, "net-slow", "nic", "slow", "Mb/s", 200, FaultNeeds::kTcp},
    {FaultKind::kNetDown, "net-down", "nic", "hang", "", 0, FaultNeeds::kTcp},
    {FaultKind::kProcStopped, "proc-stopped", "host", "hang", "", 0},
    {FaultKind::kProxyStarved, "proxy-starved", "host", "slow", "percent of a CPU", 1},
    {FaultKind::kHostLate, "host-late", "host", "slow", "us", 150000},
    {FaultKind::kAbsent, "absent", "host", "absent", "", 0},
    {FaultKind::kMismatchSize, "mismatch-size", "app", "mismatch", "percent of the size", 50},
    {FaultKind::kMismatchOrder, "mismatch-order", "app", "mismatch", "", 0},
    {FaultKind::kKill, "kill", "host", "dead", "", 0, FaultNeeds::kAny, true},
    {FaultKind::kRnr, "rnr", "nic", "hang", "", 0, FaultNeeds::kVerbs},
    {FaultKind::kRnrLate, "rnr-late", "nic", "slow", "us per receive", 20000, FaultNeeds::kVerbs},
    // A failed queue pair does not come back.
    {FaultKind::kBadRkey, "bad-rkey", "app", "hang", "", 0, FaultNeeds::kVerbs, true},
    {FaultKind::kWrongGid, "wrong-gid", "nic", "hang", "GID index", 2, FaultNeeds::kVerbs, true},
    {FaultKind::kMtuMismatch, "mtu-mismatch", "nic", "hang", "bytes", 1024, FaultNeeds::kVerbs,
     true},
    {FaultKind::kMemory, "memory-pressure", "host", "slow", "MiB per iteration", 16},
    {FaultKind::kMemlock, "memlock", "host", "absent", "KiB", 64, FaultNeeds::kVerbs},
};
static_assert(std::size(kFaults) == static_cast<size_t>(FaultKind::kCount));

absl::Status Bad(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError("\"" + text + "\": " + why);
}

// A finite number that fills the whole text.
bool ParseNumber(const std::string& text, double* value) {
  if (text.empty()) return false;
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return *end == '\0' && std::isfinite(*value);
}

// "kind:key=value,key=value" into its parts; duplicate and empty keys are errors.
absl::Status Split(const std::string& text, std::string* kind,
                   std::map<std::string, std::string>* values) {
  const size_t colon = text.find(':');
  *kind = text.substr(0, colon);
  if (colon == std::string::npos) return absl::OkStatus();
  size_t pos = colon + 1;
  while (pos <= text.size()) {
    size_t comma = text.find(',', pos);
    if (comma == std::string::npos) comma = text.size();
    const std::string part = text.substr(pos, comma - pos);
    const size_t equal = part.find('=');
    if (equal == std::string::npos || equal == 0) {
      return Bad(text, "\"" + part + "\" is not of the form key=value");
    }
    if (!values->emplace(part.substr(0, equal), part.substr(equal + 1)).second) {
      return Bad(text, "\"" + part.substr(0, equal) + "\" is given twice");
    }
    pos = comma + 1;
  }
  return absl::OkStatus();
}

bool IsMtu(double bytes) {
  for (double mtu : {256.0, 512.0, 1024.0, 2048.0, 4096.0}) {
    if (bytes == mtu) return true;
  }
  return false;
}

std::string KindNames() {
  std::string names;
  for (const FaultInfo& info : kFaults) {
    if (!names.empty()) names += ", ";
    names += info.name;
  }
  return names;
}

}  // namespace

const FaultInfo& Info(FaultKind kind) { return kFaults[static_cast<size_t>(kind)]; }

std::string FaultHelp() {
  std::string help;
  for (const FaultInfo& info : kFaults) {
    help += "  ";
    help += info.name;
    help.append(16 - std::string(info.name).size(), ' ');
    help += std::string("culprit: ") + info.component;
    if (info.needs == FaultNeeds::kTcp) help += "; --transport tcp";
    if (info.needs == FaultNeeds::kVerbs) help += "; --transport verbs";
    if (info.unit[0] != '\0') {
      char number[32];
      snprintf(number, sizeof(number), "%g", info.default_amount);
      help += std::string("; amount = ") + info.unit + " (default " + number + ")";
    }
    help += "\n";
  }
  return help;
}

absl::StatusOr<FaultSpec> ParseFault(const std::string& text, int nranks) {
  std::string kind;
  std::map<std::string, std::string> values;
  if (absl::Status s = Split(text, &kind, &values); !s.ok()) return s;
  const FaultInfo* info = nullptr;
  for (const FaultInfo& candidate : kFaults) {
    if (kind == candidate.name) info = &candidate;
  }
  if (info == nullptr) {
    return Bad(text, "no fault is called \"" + kind + "\"; known: " + KindNames());
  }
  FaultSpec spec;
  spec.kind = info->kind;
  spec.amount = info->default_amount;
  bool has_rank = false;
  bool has_at = false;
  for (const auto& [key, value] : values) {
    double number = 0;
    if (!ParseNumber(value, &number)) {
      return Bad(text, key + "=\"" + value + "\" is not a number");
    }
    if (key == "rank") {
      if (number != std::floor(number) || number < 0 || number >= nranks) {
        return Bad(text, "rank=" + value + " is not a rank of this job (0 to " +
                             std::to_string(nranks - 1) + ")");
      }
      spec.rank = static_cast<int>(number);
      has_rank = true;
    } else if (key == "at") {
      if (number < 0 || number > 1e6) return Bad(text, "at must be 0 to 1e6 seconds");
      spec.at_s = number;
      has_at = true;
    } else if (key == "for") {
      if (number <= 0 || number > 1e6) {
        return Bad(text, "for must be more than 0 and at most 1e6 seconds; leave it out for ever");
      }
      if (info->for_ever) {
        return Bad(text, std::string("after ") + info->name + " nothing comes back: no for");
      }
      spec.for_s = number;
    } else if (key == "amount") {
      if (info->unit[0] == '\0') return Bad(text, std::string(info->name) + " takes no amount");
      if (number < 0 || number > 1e9 || (number == 0 && info->kind != FaultKind::kWrongGid)) {
        return Bad(text, std::string("amount (") + info->unit + ") must be more than 0");
      }
      if ((info->kind == FaultKind::kProxyStarved || info->kind == FaultKind::kMismatchSize) &&
          number >= 100) {
        return Bad(text, std::string("amount (") + info->unit + ") must be less than 100");
      }
      if (info->kind == FaultKind::kWrongGid && (number > 255 || number != std::floor(number))) {
        return Bad(text, "amount (GID index) must be 0 to 255");
      }
      if (info->kind == FaultKind::kMtuMismatch && !IsMtu(number)) {
        return Bad(text, "amount (bytes) must be 256, 512, 1024, 2048 or 4096");
      }
      if (info->kind == FaultKind::kMemory && (number < 2 || number > 65536)) {
        return Bad(text, "amount (MiB per iteration) must be 2 to 65536");
      }
      spec.amount = number;
    } else {
      return Bad(text, "\"" + key + "\" is not known; use rank, at, for, amount");
    }
  }
  if (!has_rank) return Bad(text, "rank=R is missing");
  if (!has_at) return Bad(text, "at=SECONDS is missing");
  return spec;
}

absl::StatusOr<EventSpec> ParseEvent(const std::string& text) {
  std::map<std::string, std::string> values;
  EventSpec event;
  if (absl::Status s = Split(text, &event.kind, &values); !s.ok()) return s;
  if (event.kind != "checkpoint") {
    return Bad(text, "no event is called \"" + event.kind + "\"; known: checkpoint");
  }
  for (const auto& [key, value] : values) {
    double number = 0;
    if (!ParseNumber(value, &number) || number < 0 || number > 1e6) {
      return Bad(text, key + "=\"" + value + "\" is not a number of seconds");
    }
    if (key == "at") {
      event.at_s = number;
    } else if (key == "for") {
      event.for_s = number;
    } else {
      return Bad(text, "\"" + key + "\" is not known; use at, for");
    }
  }
  if (values.count("at") == 0 || event.for_s <= 0) {
    return Bad(text, "needs at=SECONDS,for=SECONDS");
  }
  return event;
}

FaultBoard::FaultBoard(std::vector<FaultSpec> faults, int rank, Note note)
    : note_(std::move(note)) {
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].rank != rank) continue;
    auto entry = std::make_unique<Entry>();
    entry->spec = faults[i];
    entry->index = static_cast<int>(i);
    has_[static_cast<size_t>(faults[i].kind)] = true;
    entries_.push_back(std::move(entry));
  }
}

void FaultBoard::Start(uint64_t t0_ns) {
  for (auto& entry : entries_) {
    entry->from_ns = t0_ns + static_cast<uint64_t>(entry->spec.at_s * 1e9);
    entry->to_ns = entry->spec.for_s
                       ? entry->from_ns + static_cast<uint64_t>(*entry->spec.for_s * 1e9)
                       : kNever;
  }
  started_.store(true, std::memory_order_release);
}

FaultBoard::Entry* FaultBoard::Find(FaultKind kind, uint64_t now_ns) const {
  if (!has_[static_cast<size_t>(kind)] || !started_.load(std::memory_order_acquire)) return nullptr;
  for (const auto& entry : entries_) {
    if (entry->spec.kind == kind && now_ns >= entry->from_ns && now_ns < entry->to_ns) {
      return entry.get();
    }
  }
  return nullptr;
}

std::optional<double> FaultBoard::Peek(FaultKind kind, uint64_t now_ns) const {
  const Entry* entry = Find(kind, now_ns);
  if (entry == nullptr) return std::nullopt;
  return entry->spec.amount;
}

std::optional<double> FaultBoard::Hold(FaultKind kind, uint64_t now_ns) {
  Entry* entry = Find(kind, now_ns);
  if (entry == nullptr) return std::nullopt;
  int expected = 0;
  if (entry->phase.compare_exchange_strong(expected, 1) && note_) {
    note_(entry->index, true, now_ns);
  }
  return entry->spec.amount;
}

std::optional<double> FaultBoard::Take(FaultKind kind, uint64_t now_ns) {
  Entry* entry = Find(kind, now_ns);
  if (entry == nullptr) return std::nullopt;
  int expected = 0;
  const bool first = entry->phase.compare_exchange_strong(expected, 1);
  if (!first && !entry->spec.for_s) return std::nullopt;
  if (first && note_) note_(entry->index, true, now_ns);
  return entry->spec.amount;
}

uint64_t FaultBoard::EndOf(FaultKind kind, uint64_t now_ns) const {
  const Entry* entry = Find(kind, now_ns);
  return entry == nullptr ? kNever : entry->to_ns;
}

void FaultBoard::Sweep(uint64_t now_ns) {
  if (entries_.empty() || !started_.load(std::memory_order_acquire)) return;
  for (auto& entry : entries_) {
    int expected = 1;
    if (now_ns >= entry->to_ns && entry->phase.compare_exchange_strong(expected, 2) && note_) {
      note_(entry->index, false, entry->to_ns);
    }
  }
}

}  // namespace mycroft::lab
