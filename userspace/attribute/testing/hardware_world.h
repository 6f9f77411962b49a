// SPDX-License-Identifier: Apache-2.0
//
// For tests only: a ring job with hardware, fed through the Pipeline as it happens;
// at the end the same snapshots go through a second Pipeline, which must say the same.
#ifndef MYCROFT_USERSPACE_ATTRIBUTE_TESTING_HARDWARE_WORLD_H_
#define MYCROFT_USERSPACE_ATTRIBUTE_TESTING_HARDWARE_WORLD_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "userspace/attribute/pipeline.h"
#include "userspace/decode/testing/hand_made_hardware.h"
#include "userspace/decode/testing/hand_made_job.h"

namespace mycroft {

class HardwareWorld : public ::testing::Test {
 protected:
  using Place = HandMadeHardware::Place;
  using Costs = std::vector<HandMadeJob::Cost>;
  static constexpr uint64_t kSecond = 1'000'000'000;

  // One rank on each host unless the test says otherwise.
  void Make(int ranks, int ranks_per_host = 1, bool deep = true) {
    job_ = std::make_unique<HandMadeJob>(
        HandMadeJob::Options{.ranks = ranks, .ranks_per_host = ranks_per_host});
    hw_ = std::make_unique<HandMadeHardware>(job_.get(), ranks_per_host, deep);
  }
  void SetUp() override { Make(4); }
  void TearDown() override {
    Pipeline again;
    for (const Snapshot& snapshot : seen_) again.Feed(snapshot);
    again.Finish();
    pipeline_.Finish();
    EXPECT_EQ(again.incidents(), pipeline_.incidents());
  }

  HandMadeJob& job() { return *job_; }
  HandMadeHardware& hw() { return *hw_; }

  void Feed() {
    for (Snapshot& snapshot : hw().Take()) {
      pipeline_.Feed(snapshot);
      seen_.push_back(std::move(snapshot));
    }
  }
  // Steps of training; data moves at that rate while they last.
  void Steps(int count, const Costs& costs, double gbytes_per_s = 5) {
    for (int i = 0; i < count; ++i) {
      const uint64_t before = job().now_ns();
      job().Cycle(costs);
      hw().Move(gbytes_per_s * static_cast<double>(job().now_ns() - before) / 1e9);
      Feed();
    }
  }
  // 6 s of healthy steps: rhythm and counters are known.
  void Warm() { Steps(580, Costs(job().ranks())); }
  void Wait(double ms) {
    for (double done = 0; done < ms; done += 100) {
      job().Sleep(100);
      Feed();
    }
  }
  // Everybody enters; what `from` sends does not arrive.
  void LoseOnPath(int from) {
    Enter();
    job().Ring(from, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
    Feed();
  }
  void Enter() {
    job().Sleep(8);
    job().EnterAll();
    job().Sleep(1);
  }
  void StickGpu(int rank) {
    Enter();
    job().Ring(rank, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
    Feed();
  }
  void StickFlush(int rank) {
    Enter();
    job().Ring(rank, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  }
  // Everybody but `rank` enters.
  void LeaveOut(int rank) {
    job().Sleep(8);
    for (int r = 0; r < job().ranks(); ++r) {
      if (r != rank) job().Enter(r);
    }
    Feed();
  }
  // The queue pair from -> to fails at the sender.
  void FailQp(int from, int to, uint32_t status, uint32_t vendor = 129) {
    QpSample& qp = hw().Qp(from, from, to);
    qp.state = QpState::kError;
    qp.state_ns = job().now_ns();
    qp.first_bad_status = status;
    qp.first_bad_vendor = vendor;
    qp.first_bad_ns = job().now_ns();
    ++qp.completions;
    ++qp.failed_completions;
    qp.last_completion_ns = job().now_ns();
  }

  // The driver's report on the GPU of a rank.
  HardwareEvent Xid(int rank, uint32_t number) {
    HardwareEvent event;
    event.kind = HardwareEventKind::kXid;
    event.device = hw().Address(rank, Place::kGpu);
    event.number = number;
    event.text = "Xid " + std::to_string(number);
    return event;
  }

  const Incident& Last() { return pipeline_.incidents().back(); }
  JobView View() const { return pipeline_.View(); }
  static std::string Dump(const Incident& incident) {
    std::string text = std::string(ToString(incident.kind)) + ": " + incident.summary + "\n";
    for (const Culprit& c : incident.culprits) {
      text += "  culprit rank " + std::to_string(c.rank) + " " + ToString(c.component) + " @ " +
              c.where + "\n";
      for (Component candidate : c.candidates)
        text += std::string("    or ") + ToString(candidate) + "\n";
    }
    for (const std::string& e : incident.evidence) text += "  + " + e + "\n";
    for (const Rejected& r : incident.rejected) text += "  - " + r.suspect + ": " + r.reason + "\n";
    return text;
  }
  void ExpectCulprit(int rank, Component component) {
    ASSERT_FALSE(pipeline_.incidents().empty());
    const Incident& last = Last();
    ASSERT_EQ(last.culprits.size(), 1u) << Dump(last);
    EXPECT_EQ(last.culprits[0].rank, rank) << Dump(last);
    EXPECT_EQ(last.culprits[0].component, component) << Dump(last);
    if (component == Component::kUnknown) return;
    EXPECT_GT(last.culprits[0].confidence, 0.5) << Dump(last);
    EXPECT_THAT(last.culprits[0].candidates, ::testing::IsEmpty()) << Dump(last);
  }
  // No component is named; these are all that it may be.
  void ExpectUnknown(const std::vector<Component>& candidates) {
    ASSERT_FALSE(pipeline_.incidents().empty());
    const Incident& last = Last();
    ASSERT_EQ(last.culprits.size(), 1u) << Dump(last);
    EXPECT_EQ(last.culprits[0].component, Component::kUnknown) << Dump(last);
    EXPECT_THAT(last.culprits[0].candidates, ::testing::UnorderedElementsAreArray(candidates))
        << Dump(last);
    EXPECT_LE(last.culprits[0].confidence, 0.5);
  }
  void ExpectEvidence(const std::string& part) {
    ASSERT_FALSE(pipeline_.incidents().empty());
    EXPECT_THAT(Last().evidence, ::testing::Contains(::testing::HasSubstr(part))) << Dump(Last());
  }
  void ExpectNoEvidence(const std::string& part) {
    ASSERT_FALSE(pipeline_.incidents().empty());
    EXPECT_THAT(Last().evidence, ::testing::Not(::testing::Contains(::testing::HasSubstr(part))))
        << Dump(Last());
  }
  void ExpectRejected(const std::string& suspect, const std::string& reason) {
    ASSERT_FALSE(pipeline_.incidents().empty());
    EXPECT_THAT(Last().rejected,
                ::testing::Contains(::testing::AllOf(
                    ::testing::Field(&Rejected::suspect, ::testing::HasSubstr(suspect)),
                    ::testing::Field(&Rejected::reason, ::testing::HasSubstr(reason)))))
        << Dump(Last());
  }

  std::unique_ptr<HandMadeJob> job_;
  std::unique_ptr<HandMadeHardware> hw_;
  Pipeline pipeline_;
  std::vector<Snapshot> seen_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ATTRIBUTE_TESTING_HARDWARE_WORLD_H_
