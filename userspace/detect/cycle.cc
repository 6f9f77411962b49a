// SPDX-License-Identifier: Apache-2.0
#include "userspace/detect/cycle.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace mycroft {
namespace {

constexpr size_t kMaxPeriod = 256;
constexpr size_t kBaselineCycles = 64;
constexpr size_t kMinBaseline = 6;
constexpr size_t kRebaseCycles = 8;
constexpr size_t kAnchorHistory = 64;  // operations without a period before an anchor is chosen
constexpr double kMinLostNs = 150e6;
constexpr double kMinNoise = 0.02;  // of the baseline: no job is quieter than that
constexpr size_t kRecoverCycles = 3;
constexpr size_t kChangeCycles = 12;
constexpr size_t kChangeBaseline = 24;  // cycles before the change: else the job finds its pace
constexpr size_t kRecurCycles = 64;
constexpr size_t kRecurStalls = 3;
constexpr double kRecurLost = 0.25;  // of the time since the first of them
constexpr uint64_t kChangeNs = 2'000'000'000;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// The smallest p such that the last operations repeat with period p; sizes may vary
// (uneven exchanges), so the sequence without sizes is tried next.
void CycleDetector::FindPeriod(const Worker& worker) {
  const auto& h = worker.history;
  size_t n = h.size();
  for (bool with_size : {true, false}) {
    if (!with_size && n < 24) return;
    for (size_t p = 1; p <= kMaxPeriod && 3 * p + 1 <= n; ++p) {
      size_t check = std::max<size_t>(2 * p, 4);
      if (check + p > n) break;
      bool same = true;
      for (size_t i = n - check; i < n && same; ++i) {
        same = with_size ? h[i].key == h[i - p].key : h[i].shape_key == h[i - p].shape_key;
      }
      if (same) {
        period_ = p;
        with_size_ = with_size;
        return;
      }
    }
  }
  if (n < kAnchorHistory) return;
  std::map<uint64_t, std::pair<size_t, bool>> counts;
  for (const Settled& op : h) {
    auto& [count, collective] = counts[op.shape_key];
    ++count;
    collective = op.kind == MC_OP_COLL;
  }
  size_t best = SIZE_MAX;
  for (bool collective : {true, false}) {
    for (const auto& [key, entry] : counts) {
      if (entry.second != collective || entry.first < kMinBaseline + 2 || entry.first >= best) {
        continue;
      }
      best = entry.first;
      anchor_ = key;
    }
    if (anchor_ != 0) return;
  }
}

size_t CycleDetector::WholePeriod(const Worker& worker, bool with_size) const {
  const auto& h = worker.history;
  const size_t n = h.size();
  for (size_t p = 1; p <= kMaxPeriod && 3 * p + 1 <= n; ++p) {
    size_t i = n - 2 * n / 3;
    const auto same = [&] {
      return with_size ? h[i].key == h[i - p].key : h[i].shape_key == h[i - p].shape_key;
    };
    while (i < n && same()) ++i;
    if (i == n) return p;
  }
  return 0;
}

bool CycleDetector::LookAgain(const Worker& worker) {
  if (worker.settled_count < next_look_ || slow_) return false;
  next_look_ = 2 * worker.settled_count;
  for (bool with_size : {true, false}) {
    const size_t p = WholePeriod(worker, with_size);
    if (p == 0) continue;
    if (p == period_) return false;
    Forget(worker.history.back().end_ns);
    period_ = p;
    with_size_ = with_size;
    return true;
  }
  return false;
}

bool CycleDetector::EndsCycle(const Settled& op) const {
  return anchor_ != 0 ? op.shape_key == anchor_ : since_cycle_ >= period_;
}

double CycleDetector::CountCycles(const Worker& worker, uint64_t since_ns,
                                  uint64_t until_ns) const {
  size_t ops = 0;
  for (const Settled& op : worker.history) {
    if (op.end_ns <= since_ns || op.end_ns > until_ns) continue;
    if (anchor_ == 0 || op.shape_key == anchor_) ++ops;
  }
  if (anchor_ != 0) return static_cast<double>(ops);
  return period_ == 0 ? 0 : static_cast<double>(ops) / static_cast<double>(period_);
}

// The sequence has changed: learn it anew.
void CycleDetector::Forget(uint64_t now_ns) {
  period_ = 0;
  anchor_ = 0;
  mismatches_ = 0;
  aligned_ = false;
  normal_.clear();
  baseline_ns_ = 0;
  recent_.clear();
  warmup_left_ = 1;
  cusum_ = 0;
  if (slow_) {
    slow_ = false;
    recovered_ns_ = now_ns;
  }
}

void CycleDetector::Update(const Worker& worker) {
  uint64_t fresh = worker.settled_count - seen_;
  if (fresh == 0) return;
  size_t n = worker.history.size();
  size_t start = fresh >= n ? 0 : n - static_cast<size_t>(fresh);
  const bool searching = period_ == 0 && anchor_ == 0;
  if (searching) {
    FindPeriod(worker);
    if (period_ == 0 && anchor_ == 0) {
      seen_ = worker.settled_count;
      return;
    }
  }
  if (searching || LookAgain(worker)) {
    // Begin with the operations already seen, so that early cycles count.
    if (anchor_ != 0) {
      start = 0;
    } else {
      auto same = [&](size_t i) {
        const Settled& a = worker.history[i];
        const Settled& b = worker.history[i + period_];
        return with_size_ ? a.key == b.key : a.shape_key == b.shape_key;
      };
      start = std::min(start, n - std::min(n, 3 * period_));
      while (start > 0 && start - 1 + period_ < n && same(start - 1)) --start;
    }
    aligned_ = false;
  }
  seen_ = worker.settled_count;
  for (size_t i = start; i < n; ++i) {
    const Settled& op = worker.history[i];
    if (anchor_ == 0 && i >= period_) {
      const Settled& before = worker.history[i - period_];
      bool same = with_size_ ? before.key == op.key : before.shape_key == op.shape_key;
      if (!same && ++mismatches_ >= 2 * period_ + 2) return Forget(op.end_ns);
      if (same && mismatches_ > 0) --mismatches_;
    }
    if (!aligned_) {
      // Every worker cuts its cycles at the same place as far as it can be told: at
      // the first operation of the stretch, or at the anchor.
      if (anchor_ != 0 && op.shape_key != anchor_) continue;
      aligned_ = true;
      cycle_begin_ns_ = op.end_ns;
      since_cycle_ = 0;
      running_.fill(0);
      continue;
    }
    for (int k = 0; k < kShareCount; ++k) running_[k] += op.share[k];
    ++since_cycle_;
    if (anchor_ != 0 && since_cycle_ > 4 * kMaxPeriod) return Forget(op.end_ns);
    if (!EndsCycle(op)) continue;
    Cycle cycle{cycle_begin_ns_, op.end_ns, running_};
    cycle_begin_ns_ = op.end_ns;
    since_cycle_ = 0;
    running_.fill(0);
    OnCycle(cycle);
  }
}

void CycleDetector::Rebase() {
  since_rebase_ = 0;
  if (normal_.size() < kMinBaseline) return;
  std::vector<double> durations, deviations;
  for (const Cycle& c : normal_) durations.push_back(c.duration());
  baseline_ns_ = Median(durations);
  for (double d : durations) deviations.push_back(std::abs(d - baseline_ns_));
  noise_ns_ = std::max(1.4826 * Median(deviations), kMinNoise * baseline_ns_);
  for (int k = 0; k < kShareCount; ++k) {
    std::vector<double> shares;
    for (const Cycle& c : normal_) shares.push_back(c.share[k]);
    baseline_share_[k] = Median(shares);
    for (double& share : shares) share = std::abs(share - baseline_share_[k]);
    share_noise_[k] = 1.4826 * Median(shares);
  }
}

void CycleDetector::OnCycle(const Cycle& cycle) {
  if (warmup_left_ > 0) {
    --warmup_left_;
    return;
  }
  if (baseline_ns_ <= 0) {
    normal_.push_back(cycle);
    // A slow start must not become the baseline: forget the first long ones.
    if (normal_.size() > kMinBaseline) {
      std::vector<double> durations;
      for (const Cycle& c : normal_) durations.push_back(c.duration());
      double median = Median(durations);
      while (normal_.size() > kMinBaseline && normal_.front().duration() > 2 * median) {
        normal_.pop_front();
      }
    }
    Rebase();
    return;
  }
  recent_.push_back(cycle);
  if (recent_.size() > kRecurCycles) recent_.pop_front();
  double excess = cycle.duration() - baseline_ns_;
  const bool stall = IsStall(cycle);
  double limit = baseline_ns_ + std::max({4 * noise_ns_, 0.3 * baseline_ns_, 5e6});

  if (!slow_) {
    // Rule 1: twice as long.
    size_t run = 0;
    double total = 0;
    for (auto it = recent_.rbegin(); it != recent_.rend(); ++it) {
      if (it->duration() < 0.9 * factor_ * baseline_ns_) break;
      ++run;
      total += it->duration();
    }
    double mean = run > 0 ? total / static_cast<double>(run) : 0;
    double lost = total - static_cast<double>(run) * baseline_ns_;
    bool long_enough = run >= 3 || (run == 2 && mean >= 2 * factor_ * baseline_ns_);
    if (long_enough && mean >= factor_ * baseline_ns_ && lost >= kMinLostNs &&
        lost >= 6 * noise_ns_) {
      slow_ = true;
      became_worse_ = false;
      by_change_ = by_recurrence_ = false;
      slow_cycles_.clear();
      size_t first = recent_.size();
      while (first > 0 && recent_[first - 1].duration() > limit) --first;
      for (size_t i = first; i < recent_.size(); ++i) slow_cycles_.push_back(recent_[i]);
    }
    // Rule 2: a shift that stays. A stall is none, nor part of one.
    double x = stall ? 0 : std::min(excess / noise_ns_, 6.0);
    double slack = std::max(1.0, 0.05 * baseline_ns_ / noise_ns_);
    if (stall) cusum_ = 0;
    if (cusum_ == 0) {
      cusum_start_ns_ = cycle.begin_ns;
      cusum_cycles_.clear();
    }
    cusum_ = std::max(0.0, cusum_ + x - slack);
    if (cusum_ > 0) {
      cusum_cycles_.push_back(cycle);
      if (cusum_cycles_.size() > 256) cusum_cycles_.pop_front();
    }
    // Small shifts come and go with the load of the machine: only one that has stayed
    // for a while is a change.
    bool stayed =
        cusum_cycles_.size() >= kChangeCycles && cycle.end_ns - cusum_start_ns_ >= kChangeNs;
    if (!slow_ && cusum_ > 16 && stayed) {
      double total = 0;
      for (const Cycle& c : cusum_cycles_) total += c.duration() - baseline_ns_;
      std::vector<double> durations;
      for (const Cycle& c : cusum_cycles_) durations.push_back(c.duration());
      bool shifted = Median(durations) >= 1.1 * baseline_ns_ &&
                     Median(durations) >= baseline_ns_ + 2 * noise_ns_;
      size_t before = 0;
      for (const Cycle& c : normal_) before += c.end_ns <= cusum_start_ns_ ? 1 : 0;
      if (shifted && before < kChangeBaseline) {
        normal_ = cusum_cycles_;
        while (normal_.size() > kBaselineCycles) normal_.pop_front();
        cusum_ = 0;
        Rebase();
      } else if (total >= kMinLostNs && shifted) {
        slow_ = true;
        became_worse_ = by_recurrence_ = false;
        by_change_ = true;
        slow_cycles_ = cusum_cycles_;
      }
    }
    // Rule 3: stalls that come back.
    if (!slow_ && stall && normal_.size() >= kChangeBaseline) LookForRecurrence();
    if (slow_) {
      slow_since_ns_ = slow_cycles_.front().begin_ns;
      slow_detected_ns_ = cycle.end_ns;
      lost_total_ns_ = 0;
      for (const Cycle& c : slow_cycles_)
        lost_total_ns_ += std::max(0.0, c.duration() - baseline_ns_);
      normal_in_a_row_ = 0;
      cusum_ = 0;
      // What led up to it is not normal: take it out of the baseline again.
      while (!normal_.empty() && normal_.back().end_ns > slow_since_ns_) normal_.pop_back();
      Rebase();
      return;
    }
    if (cycle.duration() <= limit) {
      normal_.push_back(cycle);
      if (normal_.size() > kBaselineCycles) normal_.pop_front();
      // While a shift is building up, the baseline must not follow it.
      // A full baseline hardly changes with one cycle more.
      bool full = normal_.size() >= kBaselineCycles;
      if (cusum_ < 4 && (!full || ++since_rebase_ >= kRebaseCycles)) Rebase();
    }
    return;
  }

  double back = by_change_ ? baseline_ns_ + std::max(0.5 * (lost_per_cycle_ns()), noise_ns_)
                           : baseline_ns_ + std::max({4 * noise_ns_, 0.4 * baseline_ns_});
  const bool normal = by_recurrence_ ? !stall : cycle.duration() <= back;
  if (!normal || by_recurrence_) {
    lost_total_ns_ += std::max(0.0, excess);
    slow_cycles_.push_back(cycle);
    if (slow_cycles_.size() > 256) slow_cycles_.pop_front();
  }
  if (!normal) {
    normal_in_a_row_ = 0;
    LookForWorse();
    return;
  }
  if (normal_in_a_row_++ == 0) first_normal_ns_ = cycle.begin_ns;
  // Cycles between two stalls are as ever, and no recovery.
  if (normal_in_a_row_ >= (by_recurrence_ ? kRecurCycles / 2 : kRecoverCycles)) {
    slow_ = false;
    recovered_ns_ = first_normal_ns_;
    recent_.clear();
    cusum_ = 0;
  }
}

void CycleDetector::LookForWorse() {
  constexpr size_t kRun = 3, kLeastBefore = 4;
  const size_t n = slow_cycles_.size();
  if (n < kRun + kLeastBefore) return;
  std::vector<double> before;
  for (size_t i = 0; i + kRun < n; ++i) before.push_back(slow_cycles_[i].duration());
  const double usual = Median(before);
  double total = 0;
  for (size_t i = n - kRun; i < n; ++i) {
    if (slow_cycles_[i].duration() < 0.9 * factor_ * usual) return;
    total += slow_cycles_[i].duration();
  }
  if (total < kRun * factor_ * usual || total - kRun * usual < kMinLostNs) return;
  size_t first = n - kRun;
  while (first > 0 && slow_cycles_[first - 1].duration() >= 0.9 * factor_ * usual) --first;
  slow_cycles_.erase(slow_cycles_.begin(), slow_cycles_.begin() + static_cast<ptrdiff_t>(first));
  slow_since_ns_ = slow_cycles_.front().begin_ns;
  by_change_ = by_recurrence_ = false;
  became_worse_ = true;
}

bool CycleDetector::IsStall(const Cycle& cycle) const {
  return cycle.duration() >= factor_ * baseline_ns_ &&
         cycle.duration() >= baseline_ns_ + 6 * noise_ns_;
}

void CycleDetector::LookForRecurrence() {
  size_t stalls = 0, first = recent_.size();
  double lost = 0;
  bool in_stall = false;
  for (size_t i = 0; i < recent_.size(); ++i) {
    const bool stall = IsStall(recent_[i]);
    if (stall && !in_stall) {
      if (stalls++ == 0) first = i;
    }
    if (stall) lost += recent_[i].duration() - baseline_ns_;
    in_stall = stall;
  }
  if (stalls < kRecurStalls || lost < kMinLostNs) return;
  const uint64_t since = recent_[first].begin_ns, now = recent_.back().end_ns;
  if (now - since < kChangeNs || lost < kRecurLost * static_cast<double>(now - since)) return;
  slow_ = by_change_ = by_recurrence_ = true;
  became_worse_ = false;
  slow_cycles_.assign(recent_.begin() + static_cast<ptrdiff_t>(first), recent_.end());
}

double CycleDetector::lost_per_cycle_ns() const {
  if (slow_cycles_.empty()) return 0;
  double total = 0;
  for (const Cycle& c : slow_cycles_) total += c.duration() - baseline_ns_;
  return total / static_cast<double>(slow_cycles_.size());
}

}  // namespace mycroft
