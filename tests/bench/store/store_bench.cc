// SPDX-License-Identifier: Apache-2.0
//
// What a recording takes: bytes for each rank and second, and the time to write and
// to read it. The job is made up: 8 ranks on one host, 64 flows each, about 20
// operations a second, sampled at 10 Hz for two minutes. Real times have about as
// many random bits as these (the figures of recorded traces are in the README).
//
// Counters: B/s/rank, samples of operations and flows for each rank and second, and
// the share of one core that it takes to keep up.
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "userspace/report/testing/synthetic_job.h"
#include "userspace/store/recording.h"
#include "userspace/store/snapshot_codec.h"
#include "userspace/store/snapshot_fields.h"

namespace mycroft {
namespace {

constexpr double kSeconds = 120;
constexpr int kRanks = 8;
constexpr int kBatch = 10;          // snapshots, one second
constexpr int kKeyframeEvery = 30;  // batches

struct Job {
  std::vector<Snapshot> snapshots;
  double op_samples = 0, flow_samples = 0, operations = 0;
};

const Job& TheJob() {
  static const Job job = [] {
    SyntheticOptions options;
    options.ranks = options.ranks_per_host = kRanks;
    options.channels = 16;  // two communicators, two directions: 64 flows
    options.ops_per_s = 7.9;
    options.overlap = true;
    options.duration_s = kSeconds;
    SyntheticJob source(options);
    Job made;
    std::vector<uint64_t> newest(kRanks);
    for (auto next = source.Next(); next.ok() && *next; next = source.Next()) {
      const Snapshot& snapshot = **next;
      for (size_t i = 0; i < snapshot.processes.size(); ++i) {
        made.op_samples += static_cast<double>(snapshot.processes[i].ops.size());
        made.flow_samples += static_cast<double>(snapshot.processes[i].flows.size());
        for (const OpSample& op : snapshot.processes[i].ops) {
          newest[i] = std::max(newest[i], op.id);
        }
      }
      made.snapshots.push_back(**std::move(next));
    }
    for (uint64_t id : newest) made.operations += static_cast<double>(id);
    return made;
  }();
  return job;
}

std::vector<std::vector<Snapshot>> Batches() {
  std::vector<std::vector<Snapshot>> batches;
  const std::vector<Snapshot>& all = TheJob().snapshots;
  for (size_t i = 0; i < all.size(); i += kBatch) {
    batches.emplace_back(all.begin() + static_cast<long>(i),
                         all.begin() + static_cast<long>(std::min(all.size(), i + kBatch)));
  }
  return batches;
}

void Report(benchmark::State& state, uint64_t bytes) {
  const double rank_seconds = kSeconds * kRanks;
  state.counters["B/s/rank"] = static_cast<double>(bytes) / rank_seconds;
  state.counters["ops/s"] = TheJob().operations / rank_seconds;
  state.counters["op_samples/s"] = TheJob().op_samples / rank_seconds;
  state.counters["flow_samples/s"] = TheJob().flow_samples / rank_seconds;
  // Time of one iteration over the time that it covers.
  state.counters["core_%"] = benchmark::Counter(
      kSeconds / 100, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void Encode(benchmark::State& state) {
  const auto batches = Batches();
  uint64_t bytes = 0;
  for (auto _ : state) {
    SnapshotEncoder encoder;
    bytes = 0;
    for (size_t i = 0; i < batches.size(); ++i) {
      bytes += encoder.Encode(batches[i], i % kKeyframeEvery == 0)->size();
    }
  }
  Report(state, bytes);
}
BENCHMARK(Encode)->Unit(benchmark::kMillisecond);

// The same job with all kernel probes and polls: 8 GPUs and 8 NICs behind switches, 64
// counters of each port of which half move, once a second; 64 busy queue pairs for each
// rank, every third second. "hardware B/s/rank" is what that adds.
void EncodeHardware(benchmark::State& state) {
  auto batches = Batches();
  uint64_t random = 1;
  const auto noise = [&random](uint64_t about) {
    random = random * 6364136223846793005 + 1442695040888963407;
    return about + (random >> 33) % (about / 10 + 1);
  };
  HardwareSample host;
  for (int i = 0; i < 16; ++i) {
    for (int hop = 0; hop < 4; ++hop) {
      PciSample pci;
      pci.address = "0000:" + std::to_string(10 + i) + ":0" + std::to_string(hop) + ".0";
      pci.width = pci.max_width = 16;
      pci.interrupts = pci.dma_maps = 0;
      host.pci.push_back(pci);
    }
    if (i % 2 != 0) continue;
    NicPortSample nic;
    nic.device = "mlx5_" + std::to_string(i / 2);
    for (int k = 0; k < 64; ++k) nic.counters["counter_" + std::to_string(k)] = 0;
    host.nics.push_back(nic);
  }
  ProcessHardware process;
  for (uint32_t i = 0; i < 64; ++i) {
    QpSample qp;
    qp.device = "mlx5_0";
    qp.number = 300 + i;
    process.qps.push_back(qp);
  }
  std::vector<ProcessHardware> processes(kRanks, process);
  size_t second = 0;
  for (auto& batch : batches) {
    ++second;
    Snapshot& first = batch.front();
    for (size_t i = 0; i < host.pci.size(); i += 4) {
      *host.pci[i].interrupts += noise(10'000);
      *host.pci[i].dma_maps += noise(100);
    }
    for (NicPortSample& nic : host.nics) {
      int k = 0;
      for (auto& [name, value] : nic.counters) value += ++k % 2 == 0 ? noise(5'000'000) : 0;
    }
    first.hardware = host;
    for (size_t i = 0; i < first.processes.size() && i < processes.size(); ++i) {
      for (QpSample& qp : processes[i].qps) {
        const uint64_t posts = noise(400);
        qp.posts[kQpWrite] += posts;
        qp.bytes += posts * 524'288;
        qp.receives += posts;
        qp.last_post_ns = first.t_ns - noise(1'000'000);
        qp.last_receive_ns = first.t_ns - noise(1'000'000);
      }
      if (second % 3 == 0) first.processes[i].hardware = processes[i];
    }
  }
  uint64_t bytes = 0, without = 0;
  for (auto _ : state) {
    SnapshotEncoder encoder;
    bytes = 0;
    for (size_t i = 0; i < batches.size(); ++i) {
      bytes += encoder.Encode(batches[i], i % kKeyframeEvery == 0)->size();
    }
  }
  const auto plain = Batches();
  SnapshotEncoder encoder;
  for (size_t i = 0; i < plain.size(); ++i) {
    without += encoder.Encode(plain[i], i % kKeyframeEvery == 0)->size();
  }
  Report(state, bytes);
  state.counters["hardware B/s/rank"] =
      static_cast<double>(bytes - without) / (kSeconds * kRanks);
}
BENCHMARK(EncodeHardware)->Unit(benchmark::kMillisecond);

void Decode(benchmark::State& state) {
  const auto batches = Batches();
  SnapshotEncoder encoder;
  std::vector<std::string> payloads;
  uint64_t bytes = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    payloads.push_back(*encoder.Encode(batches[i], i % kKeyframeEvery == 0));
    bytes += payloads.back().size();
  }
  for (auto _ : state) {
    SnapshotDecoder decoder;
    for (const std::string& payload : payloads) {
      benchmark::DoNotOptimize(decoder.Decode(payload.data(), payload.size()));
    }
  }
  Report(state, bytes);
}
BENCHMARK(Decode)->Unit(benchmark::kMillisecond);

// The whole file, SQLite's part included.
void WriteRecording(benchmark::State& state) {
  std::string dir = (std::filesystem::temp_directory_path() / "mycroft-bench-XXXXXX").string();
  if (mkdtemp(dir.data()) == nullptr) return state.SkipWithError("no temporary folder");
  const std::string path = dir + "/job.mycroft";
  uint64_t bytes = 0;
  for (auto _ : state) {
    std::filesystem::remove(path);
    auto writer = RecordingWriter::Create(path);
    if (!writer.ok()) return state.SkipWithError(writer.status().ToString().c_str());
    for (const Snapshot& snapshot : TheJob().snapshots) {
      if (!(*writer)->Append(snapshot).ok()) return state.SkipWithError("append failed");
    }
    writer->reset();
    bytes = std::filesystem::file_size(path);
  }
  std::filesystem::remove_all(dir);
  Report(state, bytes);
}
BENCHMARK(WriteRecording)->Unit(benchmark::kMillisecond);

// The same differences as bytes: a column of varints for each field, compressed by
// zstd. What the range coder is measured against.
class VarintCoder {
 public:
  static constexpr bool kDecodes = false;
  static constexpr int kHardwareContext = store_internal::kHardwareFirst;

  template <class T, class P>
  void Number(int context, const T& value, P predicted, int variant = 0) {
    using U = std::make_unsigned_t<T>;
    const auto difference = static_cast<std::make_signed_t<T>>(
        static_cast<U>(static_cast<U>(value) - static_cast<U>(static_cast<T>(predicted))));
    auto zigzag = static_cast<uint64_t>(int64_t{difference}) << 1 ^
                  static_cast<uint64_t>(int64_t{difference} >> 63);
    std::string& column = columns_[context * store_internal::kVariants + variant];
    for (; zigzag >= 0x80; zigzag >>= 7) column.push_back(static_cast<char>(zigzag | 0x80));
    column.push_back(static_cast<char>(zigzag));
  }
  template <class T, class P>
  void NumberOrZero(int context, const T& value, P predicted, int variant = 0) {
    Number(context, value, value == 0 ? 0 : predicted, variant);
  }
  template <class E>
  void Enum(int context, const E& value, E predicted, E, int variant = 0) {
    Number(context, static_cast<uint8_t>(value), static_cast<uint8_t>(predicted), variant);
  }
  void Flag(int context, const bool& value, int variant = 0) {
    Number(context, static_cast<uint8_t>(value), 0, variant);
  }
  template <class T>
  void Resize(int context, const std::vector<T>& list, size_t predicted) {
    Number(context, static_cast<uint64_t>(list.size()), predicted);
  }
  void String(int context, const std::string& text, const std::string& predicted) {
    Flag(context, text == predicted);
    if (text != predicted) columns_[store_internal::kStringByte] += text;
  }
  uint32_t HostIndex(store_internal::CodecState& state, const Snapshot&) {
    if (state.hosts.empty()) state.hosts.emplace_back();
    return 0;
  }
  uint32_t ProcessIndex(store_internal::CodecState& state, const ProcessKey& key, uint32_t) {
    const auto [it, added] = state.hosts[0].process_index.try_emplace(
        key, static_cast<uint32_t>(state.processes.size()));
    if (added) state.processes.emplace_back().key = key;
    return it->second;
  }
  void Charge(uint64_t) {}
  bool coding3() const { return true; }
  bool coding4() const { return true; }
  void Require(bool) {}
  bool ok() const { return true; }

  size_t CompressedBytes(int level) {
    std::string all;
    for (std::string& column : columns_) {
      all += column;
      column.clear();
    }
    std::string out(ZSTD_compressBound(all.size()), 0);
    return ZSTD_compress(out.data(), out.size(), all.data(), all.size(), level);
  }

 private:
  std::vector<std::string> columns_ =
      std::vector<std::string>(store_internal::kContexts * store_internal::kVariants);
};

void VarintsAndZstd(benchmark::State& state) {
  const auto batches = Batches();
  uint64_t bytes = 0;
  for (auto _ : state) {
    bytes = 0;
    VarintCoder coder;
    auto codec = std::make_unique<store_internal::CodecState>();
    for (size_t i = 0; i < batches.size(); ++i) {
      if (i % kKeyframeEvery == 0) codec = std::make_unique<store_internal::CodecState>();
      for (const Snapshot& snapshot : batches[i]) {
        store_internal::CodeSnapshot(coder, *codec, snapshot);
      }
      bytes += coder.CompressedBytes(static_cast<int>(state.range(0)));
    }
  }
  Report(state, bytes);
}
BENCHMARK(VarintsAndZstd)->ArgName("level")->Arg(3)->Arg(12)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mycroft

BENCHMARK_MAIN();
