// SPDX-License-Identifier: Apache-2.0
#include "userspace/store/snapshot_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

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

// What the hardware part holds beside what RandomSnapshot makes.
HardwareSample Devices(int n) {
  HardwareSample hardware;
  for (int i = 0; i < n; ++i) {
    PciSample pci;
    pci.address = "0000:" + std::to_string(10 + i) + ":00.0";
    pci.parent = i > 0 ? hardware.pci[static_cast<size_t>(i) - 1].address : "";
    pci.kind = PciKind::kGpu;
    pci.speed_gts = pci.max_speed_gts = 32;
    pci.width = pci.max_width = 16;
    pci.aer_correctable = 0;
    hardware.pci.push_back(pci);
    NicPortSample nic;
    nic.device = "mlx5_" + std::to_string(i);
    nic.state = "ACTIVE";
    for (int k = 0; k < 40; ++k) nic.counters["counter_" + std::to_string(k)] = 1000;
    hardware.nics.push_back(nic);
  }
  return hardware;
}

TEST(SnapshotCodec, AbsentHardwareTakesNothing) {
  Snapshot snapshot;
  snapshot.interval_ns = 100'000'000;
  snapshot.processes.resize(8);
  for (uint32_t i = 0; i < 8; ++i) snapshot.processes[i].key = {100 + i, 1};
  const auto bytes = [&](const Snapshot& first) {
    SnapshotEncoder encoder;
    EXPECT_TRUE(encoder.Encode({first}, true).ok());
    size_t size = 0;
    for (int i = 0; i < 20; ++i) {
      size = encoder.Encode(std::vector<Snapshot>(10, snapshot), false)->size();
    }
    return size;
  };
  Snapshot with = snapshot;
  with.hardware = Devices(8);
  // 90 places where it could be, and is not.
  EXPECT_LE(bytes(with), 24u);
  EXPECT_LE(bytes(snapshot), 24u);
}

TEST(SnapshotCodec, UnchangedDevicesThatCountTakeLittle) {
  SnapshotEncoder encoder;
  SnapshotDecoder decoder;
  Snapshot snapshot;
  snapshot.hardware = Devices(8);
  size_t bytes = 0;
  for (uint64_t second = 0; second < 30; ++second) {
    snapshot.t_ns += 1'000'000'000;
    for (NicPortSample& nic : snapshot.hardware->nics) {
      nic.counters["counter_3"] += 1'000'000 + second * 977;
    }
    const auto payload = encoder.Encode({snapshot}, false);
    ASSERT_TRUE(payload.ok());
    bytes = payload->size();
    const auto decoded = decoder.Decode(payload->data(), payload->size());
    ASSERT_TRUE(decoded.ok());
    ASSERT_TRUE(decoded->at(0) == snapshot);
  }
  EXPECT_LT(bytes, 120u);  // 8 devices and 8 ports, one counter of each port moves
}

TEST(SnapshotCodec, HardwareStateIsBounded) {
  SnapshotEncoder encoder;
  SnapshotDecoder decoder;
  for (int batch = 0; batch < 3; ++batch) {
    Snapshot snapshot;
    snapshot.hardware.emplace();
    for (int i = 0; i < 3000; ++i) {
      PciSample pci;
      pci.address = std::to_string(batch) + "." + std::to_string(i);
      pci.vendor = static_cast<uint32_t>(i);
      snapshot.hardware->pci.push_back(pci);
      NicPortSample nic;
      nic.device = pci.address;
      snapshot.hardware->nics.push_back(nic);
      ProbeSample probe;
      probe.name = pci.address;
      probe.cost_ns = -0.0;
      snapshot.hardware->probes.push_back(probe);
    }
    snapshot.processes.resize(1);
    snapshot.processes[0].hardware.emplace();
    for (uint32_t i = 0; i < 30'000; ++i) {
      QpSample qp;
      qp.number = static_cast<uint32_t>(batch) * 1'000'000 + i;
      qp.bytes = i;
      snapshot.processes[0].hardware->qps.push_back(qp);
    }
    const auto payload = encoder.Encode({snapshot}, false);
    ASSERT_TRUE(payload.ok()) << payload.status();
    const auto decoded = decoder.Decode(payload->data(), payload->size());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(decoded->at(0) == snapshot);
  }
}

TEST(SnapshotCodec, RefusesHardwareOutOfBounds) {
  const auto refused = [](const std::function<void(Snapshot&)>& change) {
    Snapshot snapshot;
    snapshot.hardware = Devices(1);
    snapshot.hardware->events.resize(1);
    snapshot.hardware->probes.resize(1);
    snapshot.processes.resize(1);
    snapshot.processes[0].hardware.emplace().qps.resize(1);
    snapshot.processes[0].hardware->delays.resize(1);
    EXPECT_TRUE(CheckStorable(snapshot).ok());
    change(snapshot);
    SnapshotEncoder encoder;
    return absl::IsInvalidArgument(CheckStorable(snapshot)) &&
           absl::IsInvalidArgument(encoder.Encode({snapshot}, true).status());
  };
  const std::string name(65, 'x'), text(4097, 'x');
  EXPECT_TRUE(refused([&](Snapshot& s) { s.hardware->pci[0].driver = name; }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.hardware->pci[0].speed_gts = std::nan(""); }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.hardware->pci[0].kind = static_cast<PciKind>(9); }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.hardware->nics[0].counters[name] = 1; }));
  EXPECT_TRUE(refused([&](Snapshot& s) {
    for (int i = 0; i < 300; ++i) s.hardware->nics[0].counters[std::to_string(i)] = 1;
  }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.hardware->events[0].text = text; }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.hardware->probes[0].lost = text; }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.hardware->iommu = name; }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.processes[0].hardware->gpus.assign(65, "x"); }));
  EXPECT_TRUE(refused([&](Snapshot& s) { s.processes[0].hardware->qps[0].remote_gid = name; }));
  EXPECT_TRUE(refused([&](Snapshot& s) {
    s.processes[0].hardware->delays[0].stack.assign(129, "f");
  }));
}

TEST(SnapshotCodec, OtherVersionsAreNamed) {
  SnapshotEncoder encoder;
  std::string payload = *encoder.Encode({Snapshot()}, true);
  for (const int version : {0, 1, kCodecVersion + 1, 255}) {
    payload[0] = static_cast<char>(version);
    SnapshotDecoder decoder;
    const auto decoded = decoder.Decode(payload.data(), payload.size());
    EXPECT_TRUE(absl::IsDataLoss(decoded.status()));
    EXPECT_THAT(std::string(decoded.status().message()),
                testing::HasSubstr("version " + std::to_string(version)));
  }
}

}  // namespace
}  // namespace mycroft
