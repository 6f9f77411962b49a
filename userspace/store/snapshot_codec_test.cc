// SPDX-License-Identifier: Apache-2.0
#include "userspace/store/snapshot_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/report/testing/synthetic_job.h"
#include "userspace/report/testing/random_snapshot.h"

namespace mycroft {
namespace {

std::vector<Snapshot> Job(double seconds, int stuck_rank = -1) {
  SyntheticOptions options;
  options.duration_s = seconds;
  options.stuck_rank = stuck_rank;
  options.stuck_at_s = 1;
  options.stuck_for_s = 1;
  SyntheticJob job(options);
  std::vector<Snapshot> snapshots;
  for (auto next = job.Next(); next.ok() && *next; next = job.Next()) {
    snapshots.push_back(**std::move(next));
  }
  return snapshots;
}

TEST(SnapshotCodec, JobComesBackEqual) {
  const std::vector<Snapshot> snapshots = Job(5, 2);
  ASSERT_EQ(snapshots.size(), 51u);
  SnapshotEncoder encoder;
  SnapshotDecoder decoder;
  size_t at = 0;
  for (int batch = 0; at < snapshots.size(); ++batch) {
    const size_t end = std::min(snapshots.size(), at + 10);
    const std::vector<Snapshot> part(snapshots.begin() + at, snapshots.begin() + end);
    const auto payload = encoder.Encode(part, batch == 3);
    ASSERT_TRUE(payload.ok()) << payload.status();
    EXPECT_EQ(encoder.last_was_keyframe(), batch == 0 || batch == 3);
    const auto decoded = decoder.Decode(payload->data(), payload->size());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == part) << "batch " << batch;
    at = end;
  }
}

TEST(SnapshotCodec, AnythingComesBackEqual) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    RandomSnapshot random(seed);
    SnapshotEncoder encoder;
    SnapshotDecoder decoder;
    for (int batch = 0; batch < 20; ++batch) {
      std::vector<Snapshot> snapshots(random.Below(6));
      for (Snapshot& snapshot : snapshots) snapshot = random.Next();
      const auto payload = encoder.Encode(snapshots, random.Below(8) == 0);
      ASSERT_TRUE(payload.ok()) << payload.status();
      const auto decoded = decoder.Decode(payload->data(), payload->size());
      ASSERT_TRUE(decoded.ok()) << decoded.status() << " seed " << seed << " batch " << batch;
      ASSERT_TRUE(*decoded == snapshots) << "seed " << seed << " batch " << batch;
    }
  }
}

// More operations and patterns than the state remembers.
TEST(SnapshotCodec, StateIsBounded) {
  SnapshotEncoder encoder;
  SnapshotDecoder decoder;
  for (int batch = 0; batch < 3; ++batch) {
    Snapshot snapshot;
    snapshot.processes.resize(1);
    for (uint64_t i = 0; i < 2000; ++i) {
      OpSample op;
      op.id = batch * 1000 + i;
      op.comm = static_cast<uint32_t>(i % 700);
      op.count = i * 7919;
      snapshot.processes[0].ops.push_back(op);
    }
    const auto payload = encoder.Encode({snapshot}, false);
    ASSERT_TRUE(payload.ok());
    const auto decoded = decoder.Decode(payload->data(), payload->size());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(decoded->at(0) == snapshot);
  }
}

TEST(SnapshotCodec, NothingMuchTakesNothingMuch) {
  // A stalled job: every tick says the same.
  Snapshot snapshot;
  snapshot.interval_ns = 100'000'000;
  snapshot.processes.resize(8);
  for (uint32_t i = 0; i < 8; ++i) snapshot.processes[i].key = {100 + i, 1};
  SnapshotEncoder encoder;
  ASSERT_TRUE(encoder.Encode({snapshot}, true).ok());
  std::vector<Snapshot> batch(10, snapshot);
  size_t bytes = 0;
  for (int i = 0; i < 20; ++i) bytes = encoder.Encode(batch, false)->size();
  EXPECT_LT(bytes, 64u);
}

TEST(SnapshotCodec, HighlyCompressibleStaysDecodable) {
  // 400,000 equal flows compress far below what the decoder would believe.
  Snapshot snapshot;
  snapshot.processes.resize(1);
  snapshot.processes[0].flows.resize(400'000);
  SnapshotEncoder encoder;
  SnapshotDecoder decoder;
  const auto payload = encoder.Encode({snapshot}, false);
  ASSERT_TRUE(payload.ok());
  const auto decoded = decoder.Decode(payload->data(), payload->size());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->at(0) == snapshot);
}

TEST(SnapshotCodec, MissingBatchIsNoticed) {
  const std::vector<Snapshot> snapshots = Job(2);
  SnapshotEncoder encoder;
  std::vector<std::string> payloads;
  for (size_t i = 0; i + 5 <= snapshots.size(); i += 5) {
    payloads.push_back(
        *encoder.Encode({snapshots.begin() + i, snapshots.begin() + i + 5}, i == 10));
  }
  const auto decode = [](SnapshotDecoder& decoder, const std::string& payload) {
    return decoder.Decode(payload.data(), payload.size()).status();
  };
  SnapshotDecoder decoder;
  EXPECT_TRUE(absl::IsDataLoss(decode(decoder, payloads[1])));  // no keyframe yet
  EXPECT_TRUE(decode(decoder, payloads[0]).ok());
  EXPECT_TRUE(decode(decoder, payloads[2]).ok());  // a keyframe may follow anything
  EXPECT_TRUE(absl::IsDataLoss(decode(decoder, payloads[1])));
  EXPECT_TRUE(absl::IsDataLoss(decode(decoder, payloads[3])));  // after an error only a keyframe
  EXPECT_TRUE(decode(decoder, payloads[2]).ok());
  EXPECT_TRUE(decode(decoder, payloads[3]).ok());
}

TEST(SnapshotCodec, DamageNeverCrashes) {
  const std::vector<Snapshot> snapshots = Job(1);
  SnapshotEncoder encoder;
  const std::string payload = *encoder.Encode(snapshots, true);
  RandomSnapshot random(7);
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = payload;
    for (uint64_t flips = random.Below(4); flips > 0; --flips) {
      damaged[random.Below(damaged.size())] ^= static_cast<char>(1 << random.Below(8));
    }
    if (random.Below(3) == 0) damaged.resize(random.Below(damaged.size()));
    SnapshotDecoder decoder;
    accepted += decoder.Decode(damaged.data(), damaged.size()).ok();
  }
  EXPECT_LT(accepted, 3000);
  for (size_t size = 0; size < 64; ++size) {
    for (int fill : {0, 1, 0xff}) {
      const std::string bytes(size, static_cast<char>(fill));
      SnapshotDecoder decoder;
      (void)decoder.Decode(bytes.data(), bytes.size());
    }
  }
}

TEST(SnapshotCodec, RefusesWhatItCannotStore) {
  EXPECT_TRUE(CheckStorable(Snapshot()).ok());
  Snapshot snapshot;
  snapshot.processes.resize(1);
  snapshot.processes[0].name.assign(70'000, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStorable(snapshot)));
  SnapshotEncoder encoder;
  EXPECT_TRUE(encoder.Encode({Snapshot()}, false).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(encoder.Encode({snapshot}, false).status()));
  EXPECT_TRUE(encoder.Encode({Snapshot()}, false).ok());
  EXPECT_TRUE(encoder.last_was_keyframe());

  snapshot.processes[0].name.clear();
  snapshot.processes[0].ops.resize(1);
  snapshot.processes[0].ops[0].func = static_cast<mc_func>(15);  // not one of ours
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStorable(snapshot)));
  EXPECT_TRUE(absl::IsInvalidArgument(encoder.Encode({snapshot}, false).status()));
}

}  // namespace
}  // namespace mycroft
