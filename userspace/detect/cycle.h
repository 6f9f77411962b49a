// SPDX-License-Identifier: Apache-2.0
//
// The rhythm of one worker. A training job repeats the same sequence of
// operations; the detector finds the length of that sequence (in operations),
// measures every cycle, keeps a robust baseline and says when cycles have become
// longer.
//
//   cycle i: from the end of operation i-p to the end of operation i
//   a long p shows late, and shorter ones hold for a while within it: the search is
//   repeated while the history grows
//   without any p (a mixture of experts sends to other peers every time): from one
//   occurrence of the rarest recurring collective to the next
//   trigger, at once:   the last three cycles (two, when twice as bad) take >=
//                       `factor` x baseline, and >= 150 ms were lost (the paper's
//                       rule; the rest keeps the noise of a busy host out)
//   trigger, by change: one-sided CUSUM over non-overlapping cycles for shifts
//                       that are small but stay (>= 10 % and >= the job's own noise);
//                       not before 24 normal cycles: a young job still finds its pace,
//                       which is then the baseline
//   trigger, by recurrence: three stalls (cycles of `factor` x baseline and longer) among
//                       64 cycles, by which a quarter of the time since the first was
//                       lost: packets that are lost now and then
//   much worse:         the rule "at once" against the slow cycles so far begins the slow
//                       time anew: a fault on top of a mild one is not diluted by it
//
// The baseline is a median over the last 64 normal cycles, its noise the median
// absolute deviation; it stands still while a change is on. Not thread-safe.
#ifndef MYCROFT_USERSPACE_DETECT_CYCLE_H_
#define MYCROFT_USERSPACE_DETECT_CYCLE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "userspace/model/job.h"

namespace mycroft {

// One cycle of a worker: times in ns.
struct Cycle {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  std::array<double, kShareCount> share{};  // summed over its operations
  double duration() const { return static_cast<double>(end_ns - begin_ns); }
};

class CycleDetector {
 public:
  explicit CycleDetector(double factor) : factor_(factor) {}

  // Takes the operations that the worker has settled since the last call.
  void Update(const Worker& worker);

  size_t period() const { return period_; }  // operations; 0: none
  uint64_t anchor() const { return anchor_; }  // shape key that ends a cycle; 0: none
  // Cycles among the operations of a worker's history that end in (since, until].
  double CountCycles(const Worker& worker, uint64_t since_ns, uint64_t until_ns) const;
  bool ready() const { return baseline_ns_ > 0; }
  bool slow() const { return slow_; }
  // Begin of the first long cycle, or of the first of those that are much worse.
  uint64_t slow_since_ns() const { return slow_since_ns_; }
  uint64_t slow_detected_ns() const { return slow_detected_ns_; }
  uint64_t recovered_ns() const { return recovered_ns_; }        // begin of the first normal cycle after
  bool by_change() const { return by_change_; }                  // or by recurrence
  // It was slow before slow_since_ns, too, by less than half as much.
  bool became_worse() const { return became_worse_; }
  double baseline_ns() const { return baseline_ns_; }
  double noise_ns() const { return noise_ns_; }                  // robust standard deviation
  // Median share of the baseline cycles.
  const std::array<double, kShareCount>& baseline_share() const { return baseline_share_; }
  // Robust standard deviation of each share over the baseline cycles.
  const std::array<double, kShareCount>& share_noise() const { return share_noise_; }
  // Cycles since slow_since_ns, non-overlapping, newest last (at most 256).
  const std::deque<Cycle>& slow_cycles() const { return slow_cycles_; }
  // Mean time lost per cycle since slow_since_ns; 0 when not slow.
  double lost_per_cycle_ns() const;
  double lost_total_ns() const { return lost_total_ns_; }

 private:
  void FindPeriod(const Worker& worker);
  // The smallest p with which two thirds of the history repeat without exception.
  size_t WholePeriod(const Worker& worker, bool with_size) const;
  bool LookAgain(const Worker& worker);  // true: another period than before
  bool EndsCycle(const Settled& op) const;
  void Forget(uint64_t now_ns);
  void LookForWorse();
  bool IsStall(const Cycle& cycle) const;
  void LookForRecurrence();
  void OnCycle(const Cycle& cycle);
  void Rebase();

  double factor_;
  uint64_t seen_ = 0;          // Worker::settled_count taken so far
  size_t period_ = 0;
  bool with_size_ = true;      // the period holds for keys with sizes
  uint64_t anchor_ = 0;
  size_t since_cycle_ = 0;     // operations since the last full cycle
  bool aligned_ = false;
  uint64_t cycle_begin_ns_ = 0;
  std::array<double, kShareCount> running_{};
  size_t mismatches_ = 0;
  uint64_t next_look_ = 48;    // settled_count of the next LookAgain
  std::deque<Cycle> normal_;   // for the baseline
  size_t since_rebase_ = 0;    // normal cycles since the baseline was computed
  std::deque<Cycle> recent_;   // the last 64, slow or not
  std::deque<Cycle> slow_cycles_;
  double baseline_ns_ = 0, noise_ns_ = 0;
  std::array<double, kShareCount> baseline_share_{}, share_noise_{};
  double cusum_ = 0;
  uint64_t cusum_start_ns_ = 0;
  std::deque<Cycle> cusum_cycles_;
  bool slow_ = false, by_change_ = false, by_recurrence_ = false, became_worse_ = false;
  uint64_t slow_since_ns_ = 0, slow_detected_ns_ = 0, recovered_ns_ = 0;
  size_t normal_in_a_row_ = 0;
  uint64_t first_normal_ns_ = 0;
  double lost_total_ns_ = 0;
  size_t warmup_left_ = 2;     // first cycles never count
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DETECT_CYCLE_H_
