// SPDX-License-Identifier: Apache-2.0
#include "userspace/store/snapshot_codec.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "userspace/store/range_coder.h"
#include "userspace/store/snapshot_fields.h"

namespace mycroft {
namespace store_internal {
namespace {

constexpr size_t kHeaderBytes = 4;
constexpr uint32_t kMaxPosition = 0xffff;
constexpr size_t kMaxCodedString = 64 << 10;

// What decoding may allocate: real payloads stay far below, hostile ones are cut
// off. The encoder pads the rare payload that compresses better than that.
constexpr uint64_t kMaxMemory = 1ull << 30;
uint64_t MemoryLimit(uint64_t payload_bytes) {
  const uint64_t limit = (32ull << 20) + 256 * payload_bytes;
  return limit < kMaxMemory ? limit : kMaxMemory;
}

// One number against its prediction: equal? else sign, bit length and the first
// bits below the leading one; the rest is noise and coded raw.
struct NumberModel {
  AdaptiveBit equal[4];  // by whether the last two were
  AdaptiveBit nonzero[2];
  AdaptiveBit negative;
  AdaptiveBit length[64];
  AdaptiveBit top[64][3];
  uint8_t history = 0;
};

struct Models {
  std::vector<NumberModel> numbers = std::vector<NumberModel>(kContexts * kVariants);
  std::vector<AdaptiveBit> byte = std::vector<AdaptiveBit>(256);

  NumberModel& Of(int context, int variant) { return numbers[context * kVariants + variant]; }
};

// Signed difference in the width of T, as a magnitude and a sign.
template <class T>
uint64_t Difference(T value, T predicted, bool* negative) {
  using U = std::make_unsigned_t<T>;
  using S = std::make_signed_t<T>;
  const auto difference = static_cast<U>(static_cast<U>(value) - static_cast<U>(predicted));
  *negative = static_cast<S>(difference) < 0;
  return *negative ? static_cast<U>(0 - difference) : difference;
}

class FieldEncoder {
 public:
  static constexpr bool kDecodes = false;
  static constexpr int kHardwareContext = kHardwareFirst;
  FieldEncoder(Models& models, std::string* out) : models_(models), range_(out) {}

  template <class T, class P>
  void Number(int context, const T& value, P predicted, int variant = 0) {
    NumberModel& model = models_.Of(context, variant);
    bool negative = false;
    const uint64_t size = Difference<T>(value, static_cast<T>(predicted), &negative);
    range_.Bit(model.equal[model.history & 3], size == 0);
    model.history = static_cast<uint8_t>(model.history << 1 | (size == 0));
    if (size == 0) return;
    range_.Bit(model.negative, negative);
    const int length = std::bit_width(size) - 1;  // 0..63
    for (int bit = 5, node = 1; bit >= 0; --bit) {
      const bool one = length >> bit & 1;
      range_.Bit(model.length[node], one);
      node = node * 2 + one;
    }
    int left = length;
    for (int node = 0; left > 0 && node < 3;) {
      --left;
      const bool one = size >> left & 1;
      range_.Bit(model.top[length][node], one);
      node = node * 2 + 1 + one;
    }
    while (left > 0) {
      const int count = left < 16 ? left : 16;
      left -= count;
      range_.Raw(static_cast<uint32_t>(size >> left & ((1u << count) - 1)), count);
    }
  }

  // For what is 0 until it happens.
  template <class T, class P>
  void NumberOrZero(int context, const T& value, P predicted, int variant = 0) {
    range_.Bit(models_.Of(context, variant).nonzero[predicted != 0], value != 0);
    if (value != 0) Number(context, value, predicted, variant);
  }

  template <class E>
  void Enum(int context, const E& value, E predicted, E last, int variant = 0) {
    if (static_cast<uint8_t>(value) > static_cast<uint8_t>(last)) ok_ = false;
    Number(context, static_cast<uint8_t>(value), static_cast<uint8_t>(predicted), variant);
  }

  void Flag(int context, const bool& value, int variant = 0) {
    NumberModel& model = models_.Of(context, variant);
    range_.Bit(model.equal[model.history & 3], value);
    model.history = static_cast<uint8_t>(model.history << 1 | value);
  }

  template <class T>
  void Resize(int context, const std::vector<T>& list, size_t predicted) {
    Number(context, static_cast<uint64_t>(list.size()), predicted);
    Charge(list.size() * sizeof(T));
  }

  void String(int context, const std::string& text, const std::string& predicted) {
    Charge(text.size());
    if (text == predicted) return Number(context, uint32_t{0}, 0);
    if (text.size() > kMaxCodedString) ok_ = false;
    const auto known = strings_->string_index.find(text);
    if (known != strings_->string_index.end()) return Number(context, known->second + 2, 0);
    Number(context, uint32_t{1}, 0);
    Number(kStringLength, static_cast<uint32_t>(text.size()), 0);
    for (const char c : text) {
      for (int bit = 7, node = 1; bit >= 0; --bit) {
        const bool one = static_cast<uint8_t>(c) >> bit & 1;
        range_.Bit(models_.byte[node], one);
        node = node * 2 + one;
      }
    }
    if (strings_->strings.size() >= CodecState::kMaxStrings) return;
    Charge(text.size() * 2 + 128);
    strings_->string_index.emplace(text, static_cast<uint32_t>(strings_->strings.size()));
    strings_->strings.push_back(text);
  }

  uint32_t HostIndex(CodecState& state, const Snapshot& snapshot) {
    strings_ = &state;
    const auto count = static_cast<uint32_t>(state.hosts.size());
    uint32_t index = 0;
    while (index < count && (state.hosts[index].host_id != snapshot.host_id ||
                             state.hosts[index].host != snapshot.host)) {
      ++index;
    }
    Number(kHost, index, count > 1 ? (state.last_host + 1) % count : state.last_host);
    if (index == count) {
      static const std::string kEmpty;
      Charge(sizeof(HostState) + snapshot.host.size() + snapshot.host_id.size());
      String(kHost, snapshot.host, kEmpty);
      String(kHostId, snapshot.host_id, kEmpty);
      state.hosts.emplace_back();
      state.hosts.back().host = snapshot.host;
      state.hosts.back().host_id = snapshot.host_id;
    }
    host_ = index;
    return index;
  }

  uint32_t ProcessIndex(CodecState& state, const ProcessKey& key, uint32_t predicted) {
    const auto count = static_cast<uint32_t>(state.processes.size());
    const auto [it, added] = state.hosts[host_].process_index.try_emplace(key, count);
    Number(kProcessIndex, it->second, predicted);
    if (added) {
      Charge(sizeof(ProcessState) + 256);
      Number(kPid, key.pid, 0);
      Number(kStartTime, key.start_time, 0);
      state.processes.emplace_back().key = key;
    }
    return it->second;
  }

  bool coding3() const { return true; }
  bool coding4() const { return true; }
  void Require(bool fine) { ok_ = ok_ && fine; }
  void More(bool more) { Flag(kMore, more); }
  void Charge(uint64_t bytes) { charged_ += bytes; }
  uint64_t charged() const { return charged_; }
  bool ok() const { return ok_; }
  void Finish() { range_.Finish(); }

 private:
  Models& models_;
  RangeEncoder range_;
  CodecState* strings_ = nullptr;
  uint32_t host_ = 0;
  uint64_t charged_ = 0;
  bool ok_ = true;
};

class FieldDecoder {
 public:
  static constexpr bool kDecodes = true;
  static constexpr int kHardwareContext = kHardwareFirst;
  FieldDecoder(Models& models, const uint8_t* data, size_t size, uint64_t memory, uint8_t version)
      : models_(models), range_(data, size), memory_(memory), version_(version) {}

  template <class T, class P>
  void Number(int context, T& value, P predicted, int variant = 0) {
    using U = std::make_unsigned_t<T>;
    value = static_cast<T>(predicted);
    NumberModel& model = models_.Of(context, variant);
    const bool equal = range_.Bit(model.equal[model.history & 3]);
    model.history = static_cast<uint8_t>(model.history << 1 | equal);
    if (equal) return;
    const bool negative = range_.Bit(model.negative);
    int length = 0;
    for (int bit = 5, node = 1; bit >= 0; --bit) {
      const bool one = range_.Bit(model.length[node]);
      node = node * 2 + one;
      length = length * 2 + one;
    }
    uint64_t size = 1;
    int left = length;
    for (int node = 0; left > 0 && node < 3;) {
      --left;
      const bool one = range_.Bit(model.top[length][node]);
      node = node * 2 + 1 + one;
      size = size << 1 | one;
    }
    while (left > 0) {
      const int count = left < 16 ? left : 16;
      left -= count;
      size = size << count | range_.Raw(count);
    }
    const auto difference = static_cast<U>(negative ? 0 - size : size);
    value = static_cast<T>(static_cast<U>(static_cast<U>(value) + difference));
  }

  template <class T, class P>
  void NumberOrZero(int context, T& value, P predicted, int variant = 0) {
    value = 0;
    if (range_.Bit(models_.Of(context, variant).nonzero[predicted != 0])) {
      Number(context, value, predicted, variant);
    }
  }

  template <class E>
  void Enum(int context, E& value, E predicted, E last, int variant = 0) {
    uint8_t number = 0;
    Number(context, number, static_cast<uint8_t>(predicted), variant);
    if (number > static_cast<uint8_t>(last)) {
      ok_ = false;
      number = 0;
    }
    value = static_cast<E>(number);
  }

  void Flag(int context, bool& value, int variant = 0) {
    NumberModel& model = models_.Of(context, variant);
    value = range_.Bit(model.equal[model.history & 3]);
    model.history = static_cast<uint8_t>(model.history << 1 | value);
  }

  template <class T>
  void Resize(int context, std::vector<T>& list, size_t predicted) {
    uint64_t count = 0;
    Number(context, count, predicted);
    if (count > memory_ / sizeof(T)) ok_ = false;
    if (!ok()) return;
    Charge(count * sizeof(T));
    list.resize(count);
  }

  void String(int context, std::string& text, const std::string& predicted) {
    uint32_t code = 0;
    Number(context, code, 0);
    if (code == 0) {
      Charge(predicted.size());
      if (ok()) text = predicted;
      return;
    }
    if (code > 1) {
      if (code - 2 >= strings_->strings.size()) ok_ = false;
      if (!ok()) return;
      const std::string& known = strings_->strings[code - 2];
      Charge(known.size());
      if (ok()) text = known;
      return;
    }
    uint32_t length = 0;
    Number(kStringLength, length, 0);
    if (length > kMaxCodedString) ok_ = false;
    Charge(length);
    if (!ok()) return;
    text.resize(length);
    for (char& c : text) {
      int node = 1;
      while (node < 256) node = node * 2 + range_.Bit(models_.byte[node]);
      c = static_cast<char>(node - 256);
    }
    if (strings_->strings.size() >= CodecState::kMaxStrings) return;
    Charge(text.size() * 2 + 128);
    if (ok()) strings_->strings.push_back(text);
  }

  uint32_t HostIndex(CodecState& state, Snapshot& snapshot) {
    strings_ = &state;
    const auto count = static_cast<uint32_t>(state.hosts.size());
    uint32_t index = 0;
    Number(kHost, index, count > 1 ? (state.last_host + 1) % count : state.last_host);
    if (index > count) ok_ = false;
    if (!ok()) return 0;
    if (index == count) {
      static const std::string kEmpty;
      Charge(sizeof(HostState));
      String(kHost, snapshot.host, kEmpty);
      String(kHostId, snapshot.host_id, kEmpty);
      Charge(snapshot.host.size() + snapshot.host_id.size());
      if (!ok()) return 0;
      state.hosts.emplace_back();
      state.hosts.back().host = snapshot.host;
      state.hosts.back().host_id = snapshot.host_id;
    } else {
      Charge(state.hosts[index].host.size() + state.hosts[index].host_id.size());
      snapshot.host = state.hosts[index].host;
      snapshot.host_id = state.hosts[index].host_id;
    }
    return index;
  }

  uint32_t ProcessIndex(CodecState& state, ProcessKey& key, uint32_t predicted) {
    const auto count = static_cast<uint32_t>(state.processes.size());
    uint32_t index = 0;
    Number(kProcessIndex, index, predicted);
    if (index > count) ok_ = false;
    if (!ok()) return 0;
    if (index == count) {
      Charge(sizeof(ProcessState) + 256);
      Number(kPid, key.pid, 0);
      Number(kStartTime, key.start_time, 0);
      if (!ok()) return 0;
      state.processes.emplace_back().key = key;
    } else {
      key = state.processes[index].key;
    }
    return index;
  }

  bool coding3() const { return version_ >= 3; }
  bool coding4() const { return version_ >= 4; }
  void Require(bool fine) { ok_ = ok_ && fine; }
  bool More() {
    bool more = false;
    Flag(kMore, more);
    return more && ok();
  }
  void Charge(uint64_t bytes) {
    if (bytes > memory_) ok_ = false;
    memory_ -= bytes < memory_ ? bytes : memory_;
  }
  bool ok() const { return ok_ && range_.ok(); }

 private:
  Models& models_;
  RangeDecoder range_;
  uint64_t memory_;
  const uint8_t version_;
  CodecState* strings_ = nullptr;
  bool ok_ = true;
};

}  // namespace
}  // namespace store_internal

using store_internal::CodecState;
using store_internal::FieldDecoder;
using store_internal::FieldEncoder;
using store_internal::kHeaderBytes;
using store_internal::Models;

struct SnapshotEncoder::State {
  Models models;
  CodecState codec;
};
struct SnapshotDecoder::State {
  Models models;
  CodecState codec;
};

namespace {

uint64_t TextBytes(const std::vector<std::string>& texts) {
  uint64_t bytes = texts.size() * sizeof(std::string);
  for (const std::string& text : texts) bytes += text.size();
  return bytes;
}

uint64_t HardwareBytes(const ProcessHardware& hardware) {
  uint64_t bytes = sizeof hardware + TextBytes(hardware.gpus) + TextBytes(hardware.rdma_devices);
  for (const QpSample& qp : hardware.qps) {
    bytes += sizeof qp + qp.device.size() + qp.remote_gid.size();
  }
  for (const MrSample& mr : hardware.mrs) bytes += sizeof mr + mr.device.size();
  for (const ThreadDelaySample& delay : hardware.delays) {
    bytes += sizeof delay + TextBytes(delay.stack);
  }
  return bytes;
}

uint64_t HardwareBytes(const HardwareSample& hardware) {
  uint64_t bytes = sizeof hardware;
  for (const PciSample& pci : hardware.pci) {
    bytes += sizeof pci + pci.address.size() + pci.parent.size() + pci.driver.size();
  }
  for (const NicPortSample& nic : hardware.nics) {
    bytes += sizeof nic + nic.device.size() + nic.pci.size() + nic.netdev.size() +
             nic.state.size() + nic.phys_state.size();
    for (const GidEntry& gid : nic.gids) bytes += sizeof gid + gid.gid.size() + gid.type.size();
    for (const auto& [name, value] : nic.counters) bytes += 96 + name.size();
  }
  for (const HardwareEvent& event : hardware.events) {
    bytes += sizeof event + event.device.size() + event.text.size();
  }
  for (const ProbeSample& probe : hardware.probes) {
    bytes += sizeof probe + probe.name.size() + probe.question.size() + probe.attached.size() +
             probe.problem.size() + probe.lost.size();
  }
  for (const GpuSample& gpu : hardware.gpus) {
    bytes += sizeof gpu + gpu.address.size() + gpu.uuid.size() + gpu.name.size() +
             TextBytes(gpu.mig) + gpu.nvlinks.size() * sizeof(NvlinkSample);
  }
  return bytes;
}

// Bounds of hardware_fields.h.
class HardwareCheck {
 public:
  bool Fits(const ProcessHardware& hardware) {
    Names(hardware.gpus), Names(hardware.rdma_devices);
    for (const QpSample& qp : hardware.qps) {
      Name(qp.device), Name(qp.remote_gid);
      Need(qp.state <= QpState::kUnknown);
    }
    for (const MrSample& mr : hardware.mrs) Name(mr.device);
    for (const ThreadDelaySample& delay : hardware.delays) {
      Need(delay.stack.size() <= store_internal::kMaxStack);
      for (const std::string& line : delay.stack) {
        Need(line.size() <= store_internal::kMaxHardwareName * 4);
      }
    }
    return ok_;
  }
  bool Fits(const GpuWorkSample& work) {
    Text(work.problem);
    Need(work.state <= MC_GPU_FATAL && work.level <= MC_GPU_LEVEL_ACTIVITY);
    Need(work.streams.size() <= kMaxGpuWorkStreams && work.devices.size() <= kMaxGpuWorkDevices);
    for (const GpuStreamWork& stream : work.streams) {
      Text(stream.oldest), Text(stream.front), Text(stream.nccl);
      Need(stream.pending <= GpuPending::kUnfinished && stream.oldest_work <= MC_GPU_WORK_VOID &&
           stream.front_work <= MC_GPU_WORK_VOID);
    }
    for (const GpuDeviceWork& device : work.devices) Name(device.pci);
    return ok_;
  }
  bool Fits(const HardwareSample& hardware) {
    for (const PciSample& pci : hardware.pci) {
      Name(pci.address), Name(pci.parent), Name(pci.driver);
      Need(pci.kind <= PciKind::kRootPort);
      Real(pci.speed_gts), Real(pci.max_speed_gts);
    }
    for (const NicPortSample& nic : hardware.nics) {
      Name(nic.device), Name(nic.pci), Name(nic.netdev), Name(nic.state), Name(nic.phys_state);
      Real(nic.rate_gbps);
      for (const GidEntry& gid : nic.gids) Name(gid.gid), Name(gid.type);
      Need(nic.counters.size() <= store_internal::kMaxPortCounters);
      for (const auto& [name, value] : nic.counters) Name(name);
    }
    for (const HardwareEvent& event : hardware.events) {
      Name(event.device), Text(event.text);
      Need(event.kind <= HardwareEventKind::kCount && event.severity <= Severity::kFatal);
    }
    for (const ProbeSample& probe : hardware.probes) {
      Name(probe.name), Text(probe.question), Text(probe.attached), Text(probe.problem);
      Text(probe.lost), Real(probe.cost_ns);
      Need(probe.level <= ProbeLevel::kDeep);
    }
    if (hardware.iommu) Name(*hardware.iommu);
    for (const GpuSample& gpu : hardware.gpus) {
      Name(gpu.address), Name(gpu.uuid), Name(gpu.name);
      Need(gpu.mig.size() <= store_internal::kMaxMigDevices);
      for (const std::string& uuid : gpu.mig) Name(uuid);
      Need(gpu.nvlinks.size() <= store_internal::kMaxNvlinks);
    }
    return ok_;
  }

 private:
  void Need(bool fine) { ok_ = ok_ && fine; }
  void Name(const std::string& text) { Need(text.size() <= store_internal::kMaxHardwareName); }
  void Text(const std::string& text) { Need(text.size() <= store_internal::kMaxHardwareText); }
  void Real(const std::optional<double>& value) { Need(!value || !std::isnan(*value)); }
  void Names(const std::vector<std::string>& names) {
    Need(names.size() <= store_internal::kMaxProcessDevices);
    for (const std::string& name : names) Name(name);
  }
  bool ok_ = true;
};

}  // namespace

uint64_t MemoryBytes(const Snapshot& snapshot) {
  uint64_t bytes = sizeof snapshot + snapshot.host.size() + snapshot.host_id.size();
  if (snapshot.hardware) bytes += HardwareBytes(*snapshot.hardware);
  for (const BlindSpot& spot : snapshot.blind_spots) {
    bytes += sizeof spot + spot.what.size() + spot.lost.size() + spot.fix.size();
  }
  for (const ProcessSample& process : snapshot.processes) {
    bytes += sizeof process + process.problem.size() + process.name.size() +
             process.container.size() + process.ops.size() * sizeof(OpSample) +
             process.flows.size() * sizeof(FlowSample);
    for (const CommSample& comm : process.comms) bytes += sizeof comm + comm.name.size();
    if (process.hardware) bytes += HardwareBytes(*process.hardware);
    if (process.gpu_work) {
      bytes += process.gpu_work->problem.size() +
               process.gpu_work->streams.size() * (sizeof(GpuStreamWork) + 3 * kMaxGpuWorkName) +
               process.gpu_work->devices.size() * sizeof(GpuDeviceWork);
    }
    if (!process.host) continue;
    for (const ThreadSample& thread : process.host->threads) {
      bytes += sizeof thread + thread.wchan.size();
    }
  }
  return bytes;
}

absl::Status CheckStorable(const Snapshot& snapshot) {
  if (MemoryBytes(snapshot) > 256 << 20) {
    return absl::InvalidArgumentError("snapshot takes more than 256 MiB");
  }
  bool text = true, value = true;
  const auto short_enough = [&](std::initializer_list<const std::string*> texts) {
    for (const std::string* t : texts) text = text && t->size() <= store_internal::kMaxCodedString;
  };
  const auto at_most = [&](auto number, auto last) {
    value = value && static_cast<uint8_t>(number) <= static_cast<uint8_t>(last);
  };
  bool hardware = !snapshot.hardware || HardwareCheck().Fits(*snapshot.hardware);
  short_enough({&snapshot.host, &snapshot.host_id});
  for (const BlindSpot& spot : snapshot.blind_spots) {
    short_enough({&spot.what, &spot.lost, &spot.fix});
  }
  for (const ProcessSample& process : snapshot.processes) {
    short_enough({&process.problem, &process.name, &process.container});
    at_most(process.status, ProcessStatus::kUnreadable);
    if (process.hardware) hardware = hardware && HardwareCheck().Fits(*process.hardware);
    if (process.gpu_work) hardware = hardware && HardwareCheck().Fits(*process.gpu_work);
    for (const CommSample& comm : process.comms) {
      short_enough({&comm.name});
      at_most(comm.state, MC_COMM_FINALIZED);
    }
    for (const OpSample& op : process.ops) {
      at_most(op.kind, MC_OP_RECV);
      at_most(op.func, MC_FUNC_SENDRECV);
      at_most(op.datatype, MC_TYPE_FLOAT8E5M2);
      at_most(op.algo, MC_ALGO_PAT);
      at_most(op.proto, MC_PROTO_SIMPLE);
    }
    for (const FlowSample& flow : process.flows) {
      at_most(flow.direction, MC_RECV);
      at_most(flow.state, MC_FLOW_RECV_GPU);
    }
    if (!process.host) continue;
    for (const ThreadSample& thread : process.host->threads) short_enough({&thread.wchan});
  }
  if (!text) return absl::InvalidArgumentError("snapshot holds a text of more than 64 KiB");
  if (!hardware) {
    return absl::InvalidArgumentError(
        "hardware of the snapshot is out of bounds: a name of more than 64 bytes, a text of more "
        "than 4 KiB, a list that is too long, a value that is not a number");
  }
  if (!value) return absl::InvalidArgumentError("snapshot holds a value outside its enum");
  return absl::OkStatus();
}

SnapshotEncoder::SnapshotEncoder() = default;
SnapshotEncoder::~SnapshotEncoder() = default;

absl::StatusOr<std::string> SnapshotEncoder::Encode(const std::vector<Snapshot>& batch,
                                                    bool keyframe) {
  if (position_ > store_internal::kMaxPosition) keyframe = true;
  if (need_keyframe_) keyframe = true;
  if (keyframe) {
    state_ = std::make_unique<State>();
    position_ = 0;
  }
  std::string payload = {static_cast<char>(kCodecVersion), static_cast<char>(keyframe),
                         static_cast<char>(position_ & 0xff), static_cast<char>(position_ >> 8)};
  FieldEncoder coder(state_->models, &payload);
  for (const Snapshot& snapshot : batch) {
    coder.More(true);
    coder.Charge(sizeof(Snapshot));
    CodeSnapshot(coder, state_->codec, snapshot);
  }
  coder.More(false);
  coder.Finish();
  if (!coder.ok() || coder.charged() > store_internal::kMaxMemory) {
    need_keyframe_ = true;
    return absl::InvalidArgumentError(
        "snapshot cannot be stored: a text of more than 64 KiB, or a value out of range");
  }
  while (store_internal::MemoryLimit(payload.size()) < coder.charged()) payload.push_back(0);
  need_keyframe_ = false;
  last_was_keyframe_ = keyframe;
  ++position_;
  return payload;
}

SnapshotDecoder::SnapshotDecoder() = default;
SnapshotDecoder::~SnapshotDecoder() = default;

void SnapshotDecoder::Reset() {
  ready_ = false;
  state_.reset();
}

absl::StatusOr<std::vector<Snapshot>> SnapshotDecoder::Decode(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (size < kHeaderBytes) return absl::DataLossError("batch is shorter than its header");
  if (bytes[0] < kOldestCodecVersion || bytes[0] > kCodecVersion) {
    return absl::DataLossError("batch has coding version " + std::to_string(bytes[0]) +
                               ", this program reads " + std::to_string(kOldestCodecVersion) +
                               " to " + std::to_string(kCodecVersion));
  }
  const bool keyframe = bytes[1] != 0;
  const uint32_t position = bytes[2] | bytes[3] << 8;
  if (keyframe) {
    state_ = std::make_unique<State>();
    next_position_ = 0;
  } else if (!ready_) {
    return absl::DataLossError("batch rests on an earlier one that could not be read");
  }
  ready_ = false;
  if (position != next_position_) {
    return absl::DataLossError("batches before this one are missing");
  }
  FieldDecoder coder(state_->models, bytes + kHeaderBytes, size - kHeaderBytes,
                     store_internal::MemoryLimit(size), bytes[0]);
  std::vector<Snapshot> batch;
  while (coder.More()) {
    coder.Charge(sizeof(Snapshot));
    if (!coder.ok()) break;
    batch.emplace_back();
    CodeSnapshot(coder, state_->codec, batch.back());
  }
  if (!coder.ok()) {
    Reset();
    return absl::DataLossError("batch is damaged");
  }
  ready_ = true;
  ++next_position_;
  return batch;
}

}  // namespace mycroft
