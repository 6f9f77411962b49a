// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "userspace/source/nvml_abi.h"
#include "userspace/source/pci.h"

namespace mycroft {
namespace {

namespace abi = nvml_abi;

constexpr uint32_t kMaxDevices = 64, kMaxMig = 16, kMaxProcesses = 512, kMaxXids = 64;
constexpr size_t kTextBytes = 128;  // more than any of NVML's buffers asks for

std::string ReturnText(int code) {
  switch (code) {
    case abi::kDriverNotLoaded:
      return "NVIDIA's kernel driver is not loaded";
    case abi::kNoPermission:
      return "no permission to talk to the driver: are /dev/nvidiactl and /dev/nvidia* there?";
    case abi::kVersionMismatch:
      return "library and kernel driver have different versions";
    case abi::kGpuIsLost:
      return "a GPU is lost";
    default:
      return "error " + std::to_string(code);
  }
}

std::string Printable(const char* text, size_t size) {
  std::string out(text, strnlen(text, size));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (out.size() > 64) out.resize(64);
  return out;
}

class LoadedNvml final : public Nvml {
 public:
  LoadedNvml(const abi::Functions& functions, std::vector<std::string> missing, std::string path)
      : f_(functions), missing_(std::move(missing)), path_(std::move(path)) {
    if (f_.driver_version != nullptr) {
      std::array<char, kTextBytes> text{};
      if (f_.driver_version(text.data(), text.size()) == abi::kSuccess) {
        driver_version_ = Printable(text.data(), text.size());
      }
    }
    if (f_.event_set != nullptr && f_.event_set(&events_) != abi::kSuccess) events_ = nullptr;
  }

  ~LoadedNvml() override {
    if (events_ != nullptr && f_.event_free != nullptr) f_.event_free(events_);
  }

  const std::string& path() const override { return path_; }
  const std::string& driver_version() const override { return driver_version_; }
  std::vector<std::string> missing() const override { return missing_; }

  std::vector<NvmlDevice> List(size_t* failed) override {
    *failed = 0;
    std::vector<NvmlDevice> out;
    uint32_t count = 0;
    if (f_.count(&count) != abi::kSuccess) {
      *failed = 1;
      return out;
    }
    for (uint32_t i = 0; i < std::min(count, kMaxDevices); ++i) {
      abi::Device handle = nullptr;
      abi::PciInfo pci{};
      if (f_.handle(i, &handle) != abi::kSuccess || f_.pci(handle, &pci) != abi::kSuccess) {
        ++*failed;
        continue;
      }
      pci.bus_id[sizeof pci.bus_id - 1] = '\0';
      NvmlDevice device;
      device.index = i;
      device.address = PciAddressOfNvml(pci.bus_id);
      if (device.address.empty()) {
        ++*failed;
        continue;
      }
      device.uuid = Text(f_.uuid, handle);
      device.name = Text(f_.name, handle);
      device.minor = Number(f_.minor, handle);
      ListMig(handle, &device);
      const auto [known, added] = handles_.try_emplace(device.address, handle);
      if (added || known->second != handle) {
        known->second = handle;
        if (events_ != nullptr && f_.register_events != nullptr && f_.wait_event != nullptr) {
          f_.register_events(handle, abi::kEventXid, events_);
        }
      }
      out.push_back(std::move(device));
    }
    return out;
  }

  NvmlReading Read(const NvmlDevice& device, bool slowly_moving) override {
    const auto known = handles_.find(device.address);
    if (known == handles_.end()) return {};
    abi::Device handle = known->second;
    lost_ = false;
    NvmlReading out;
    out.sm_mhz = Number(f_.clock, handle, abi::kClockSm);
    if (lost_) return Lost();
    out.memory_mhz = Number(f_.clock, handle, abi::kClockMemory);
    out.power_mw = Number(f_.power, handle);
    if (f_.reasons != nullptr) {
      uint64_t value = 0;
      if (Good(f_.reasons(handle, &value))) out.clock_reasons = value;
    }
    out.temperature_c = Number(f_.temperature, handle, abi::kSensorGpu);
    if (f_.utilization != nullptr) {
      abi::Utilization value{};
      if (Good(f_.utilization(handle, &value))) out.utilization_percent = value.gpu;
    }
    if (f_.memory != nullptr) {
      abi::Memory value{};
      if (Good(f_.memory(handle, &value))) {
        out.memory_used_bytes = value.used;
        out.memory_bytes = value.total;
      }
    }
    out.ecc_corrected = Ecc(handle, abi::kCorrected);
    out.ecc_uncorrected = Ecc(handle, abi::kUncorrected);
    out.pcie_generation = Number(f_.pcie_generation, handle);
    out.pcie_width = Number(f_.pcie_width, handle);
    out.pcie_replays = Number(f_.pcie_replays, handle);
    const uint64_t errors = ReadFields(handle, &out);
    if (lost_) return Lost();
    uint64_t& errors_before = link_errors_[device.address];
    if (slowly_moving || errors != errors_before) ReadLinks(handle, &out);
    errors_before = errors;
    if (!slowly_moving) return lost_ ? Lost() : out;

    out.sm_max_mhz = Number(f_.max_clock, handle, abi::kClockSm);
    out.memory_max_mhz = Number(f_.max_clock, handle, abi::kClockMemory);
    out.power_limit_mw = Number(f_.power_limit, handle);
    out.slowdown_c = Number(f_.threshold, handle, abi::kThresholdSlowdown);
    out.pcie_max_generation = Number(f_.pcie_max_generation, handle);
    out.pcie_max_width = Number(f_.pcie_max_width, handle);
    if (f_.remapped != nullptr) {
      uint32_t corrected = 0, uncorrected = 0, pending = 0, failure = 0;
      if (Good(f_.remapped(handle, &corrected, &uncorrected, &pending, &failure))) {
        out.remapped_rows = corrected + uncorrected;
        out.remap_pending = pending != 0;
        out.remap_failed = failure != 0;
      }
    }
    out.processes = Processes(handle);
    return lost_ ? Lost() : out;
  }

  std::vector<NvmlXid> TakeXids() override {
    std::vector<NvmlXid> out;
    if (events_ == nullptr || f_.wait_event == nullptr) return out;
    for (uint32_t i = 0; i < kMaxXids; ++i) {
      abi::EventData event{};
      if (f_.wait_event(events_, &event, 0) != abi::kSuccess) break;
      if (event.type != abi::kEventXid) continue;
      for (const auto& [address, handle] : handles_) {
        if (handle == event.device) out.push_back({address, static_cast<uint32_t>(event.data)});
      }
    }
    return out;
  }

 private:
  static NvmlReading Lost() {
    NvmlReading lost;
    lost.lost = true;
    return lost;
  }
  bool Good(int code) {
    lost_ = lost_ || code == abi::kGpuIsLost || code == abi::kResetRequired;
    return code == abi::kSuccess;
  }
  template <class F, class... Args>
  std::optional<uint32_t> Number(F* function, abi::Device handle, Args... args) {
    uint32_t value = 0;
    // A lost GPU answers nothing more: each further call may cost its time-out again.
    if (function == nullptr || lost_ || !Good(function(handle, args..., &value))) {
      return std::nullopt;
    }
    return value;
  }
  template <class F>
  static std::string Text(F* function, abi::Device handle) {
    std::array<char, kTextBytes> text{};
    if (function == nullptr || function(handle, text.data(), text.size()) != abi::kSuccess) {
      return "";
    }
    return Printable(text.data(), text.size());
  }
  std::optional<uint64_t> Ecc(abi::Device handle, int32_t kind) {
    uint64_t value = 0;
    if (f_.ecc == nullptr || lost_ || !Good(f_.ecc(handle, kind, abi::kVolatile, &value))) {
      return std::nullopt;
    }
    return value;
  }

  void ListMig(abi::Device handle, NvmlDevice* device) {
    uint32_t current = 0, pending = 0, most = 0;
    if (f_.mig_mode == nullptr || f_.mig_count == nullptr || f_.mig_handle == nullptr ||
        f_.mig_mode(handle, &current, &pending) != abi::kSuccess || current == 0 ||
        f_.mig_count(handle, &most) != abi::kSuccess) {
      return;
    }
    for (uint32_t i = 0; i < std::min(most, kMaxMig); ++i) {
      abi::Device mig = nullptr;
      if (f_.mig_handle(handle, i, &mig) != abi::kSuccess) continue;  // a slot without one
      NvmlMigDevice found;
      found.uuid = Text(f_.uuid, mig);
      found.gpu_instance = Number(f_.gpu_instance, mig).value_or(0);
      device->mig.push_back(std::move(found));
    }
  }

  // One call for all. Returns the sum of the NVLink error counters.
  uint64_t ReadFields(abi::Device handle, NvmlReading* out) {
    constexpr std::array<uint32_t, 7> kFields = {
        abi::kFieldMemoryTemperature, abi::kFieldPcieTxBytes,     abi::kFieldPcieRxBytes,
        abi::kFieldLinkCrcFlitTotal,  abi::kFieldLinkCrcDataTotal, abi::kFieldLinkReplayTotal,
        abi::kFieldLinkRecoveryTotal};
    if (f_.fields == nullptr || lost_) return 0;
    std::array<abi::FieldValue, kFields.size()> values{};
    for (size_t i = 0; i < kFields.size(); ++i) {
      values[i].field = kFields[i];
      values[i].result = abi::kNotSupported;
    }
    if (!Good(f_.fields(handle, static_cast<int32_t>(values.size()), values.data()))) return 0;
    const auto value = [&values](size_t i) -> std::optional<uint64_t> {
      if (values[i].result != abi::kSuccess) return std::nullopt;
      switch (values[i].value_type) {
        case abi::kUnsignedInt:
          return values[i].value.u32;
        case abi::kUnsignedLong:
        case abi::kUnsignedLongLong:
          return values[i].value.u64;
        case abi::kSignedInt:
          if (values[i].value.s32 < 0) return std::nullopt;
          return static_cast<uint64_t>(values[i].value.s32);
        default:
          return std::nullopt;
      }
    };
    if (const auto t = value(0); t && *t < 1000) out->memory_temperature_c = static_cast<uint32_t>(*t);
    const auto wide = [&values](size_t i) {
      return values[i].value_type == abi::kUnsignedLongLong ||
             values[i].value_type == abi::kUnsignedLong;
    };
    if (wide(1)) out->pcie_tx_bytes = value(1);
    if (wide(2)) out->pcie_rx_bytes = value(2);
    uint64_t errors = 0;
    for (size_t i = 3; i < kFields.size(); ++i) errors += value(i).value_or(0);
    return errors;
  }

  void ReadLinks(abi::Device handle, NvmlReading* out) {
    if (f_.link_state == nullptr) return;
    for (uint32_t i = 0; i < abi::kMaxLinks && !lost_; ++i) {
      int32_t active = 0;
      if (!Good(f_.link_state(handle, i, &active))) break;  // has no more of them
      NvmlLink link;
      link.link = i;
      link.active = active != 0;
      const auto count = [&](int32_t kind) -> std::optional<uint64_t> {
        uint64_t value = 0;
        if (f_.link_errors == nullptr || !Good(f_.link_errors(handle, i, kind, &value))) {
          return std::nullopt;
        }
        return value;
      };
      link.replays = count(abi::kLinkReplay);
      link.recoveries = count(abi::kLinkRecovery);
      const auto flit = count(abi::kLinkCrcFlit), data = count(abi::kLinkCrcData);
      if (flit || data) link.crc = flit.value_or(0) + data.value_or(0);
      out->links.push_back(link);
    }
  }

  std::optional<std::vector<NvmlProcess>> Processes(abi::Device handle) {
    std::vector<NvmlProcess> out;
    uint32_t count = kMaxProcesses;
    if (f_.processes != nullptr) {
      processes_.resize(kMaxProcesses);
      if (!Good(f_.processes(handle, &count, processes_.data()))) return std::nullopt;
      for (uint32_t i = 0; i < std::min(count, kMaxProcesses); ++i) {
        NvmlProcess process;
        process.pid = processes_[i].pid;
        if (processes_[i].gpu_instance != UINT32_MAX) {
          process.gpu_instance = processes_[i].gpu_instance;
        }
        out.push_back(process);
      }
      return out;
    }
    if (f_.processes1 == nullptr) return std::nullopt;
    processes1_.resize(kMaxProcesses);
    if (!Good(f_.processes1(handle, &count, processes1_.data()))) return std::nullopt;
    for (uint32_t i = 0; i < std::min(count, kMaxProcesses); ++i) {
      out.push_back({processes1_[i].pid, std::nullopt});
    }
    return out;
  }

  const abi::Functions f_;
  const std::vector<std::string> missing_;
  const std::string path_;
  std::string driver_version_;
  abi::EventSet events_ = nullptr;
  std::map<std::string, abi::Device> handles_;     // by address
  std::map<std::string, uint64_t> link_errors_;    // sums
  std::vector<abi::ProcessInfo> processes_;
  std::vector<abi::ProcessInfo1> processes1_;
  bool lost_ = false;  // of the device that is read
};

}  // namespace

std::string DefaultNvmlLibrary() {
  const char* named = std::getenv("MYCROFT_NVML");
  if (named != nullptr && *named != '\0') return named;
  const bool driver = ::access("/proc/driver/nvidia/version", F_OK) == 0 ||
                      ::access("/dev/nvidiactl", F_OK) == 0;
  return driver ? "libnvidia-ml.so.1" : "";
}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& library) {
  if (library.empty() || library == kNvmlOff) {
    return absl::NotFoundError("NVML is switched off: unset MYCROFT_NVML");
  }
  void* loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    const char* why = ::dlerror();
    return absl::NotFoundError("NVML cannot be loaded: " +
                               std::string(why != nullptr ? why : library.c_str()));
  }
  abi::Functions functions;
  std::vector<std::string> missing;
  const auto find = [loaded, &missing](auto*& member, const char* name, const char* older) {
    void* symbol = ::dlsym(loaded, name);
    if (symbol == nullptr && older != nullptr) symbol = ::dlsym(loaded, older);
    if (symbol == nullptr) missing.push_back(name);
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(symbol);
  };
#define MYCROFT_FIND(member, signature, name, older) find(functions.member, name, older);
  MYCROFT_NVML_FUNCTIONS(MYCROFT_FIND)
#undef MYCROFT_FIND
  Dl_info info{};
  std::string path = library;
  if (functions.init != nullptr &&
      ::dladdr(reinterpret_cast<void*>(functions.init), &info) != 0 && info.dli_fname != nullptr) {
    path = info.dli_fname;
  }
  if (functions.init == nullptr || functions.count == nullptr || functions.handle == nullptr ||
      functions.pci == nullptr) {
    return absl::UnavailableError(path + " lacks " + missing.front() +
                                  ": a driver of 2013 or later is needed");
  }
  if (const int code = functions.init(); code != abi::kSuccess) {
    return absl::UnavailableError(path + ": " + ReturnText(code));
  }
  return std::make_unique<LoadedNvml>(functions, std::move(missing), std::move(path));
}

std::string PciAddressOfNvml(const std::string& bus_id) {
  std::string address = bus_id;
  for (char& c : address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // Eight digits of domain, of which sysfs prints at least four.
  const size_t colon = address.find(':');
  if (colon == std::string::npos) return "";
  size_t zeros = 0;
  while (zeros + 4 < colon && address[zeros] == '0') ++zeros;
  address.erase(0, zeros);
  if (address.find('.') == std::string::npos) address += ".0";
  return IsPciAddress(address) ? address : "";
}

double PcieSpeedGts(uint32_t generation) {
  // PCI Express Base Specification, Link Capabilities.
  constexpr std::array<double, 7> kSpeed = {0, 2.5, 5, 8, 16, 32, 64};
  return generation < kSpeed.size() ? kSpeed[generation] : 0;
}

}  // namespace mycroft
