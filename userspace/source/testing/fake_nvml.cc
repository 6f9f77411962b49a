// SPDX-License-Identifier: Apache-2.0
//
// For tests only: a libnvidia-ml.so.1 that says what a script says. The file named by
// MYCROFT_FAKE_NVML is read again whenever it has changed. Lines of words:
//
//   driver 550.54.15             version
//   init 9                       nvmlInit fails with that code
//   gpu 0 bus 00000000:3B:00.0   GPU 0 exists
//   gpu 0 KEY NUMBER             a value: clock_sm, clock_mem, max_clock_sm, max_clock_mem,
//                                power, power_limit, reasons, temperature, slowdown, util,
//                                mem_used, mem_total, ecc_corrected, ecc_uncorrected,
//                                remap_rows, remap_pending, remap_failed, pcie_gen,
//                                pcie_max_gen, pcie_width, pcie_max_width, pcie_replays,
//                                pcie_tx, pcie_rx, mem_temperature, minor. A value that
//                                is not given is not supported.
//   gpu 0 uuid GPU-...           also: name
//   gpu 0 lost 1                 every call fails with GPU_IS_LOST
//   gpu 0 block_ms 8000          a call takes that long, or until the line is gone
//   gpu 0 link 3 ACTIVE REPLAYS RECOVERIES CRC
//   gpu 0 mig 0 MIG-... INSTANCE
//   gpu 0 process PID [INSTANCE]
//   gpu 0 xid 79                 an event; a line is told once, by its place among these
//
// Compiled with MYCROFT_FAKE_NVML_OLD it is the library of an old driver: no event
// reasons by their new name, no remapped rows, no fields, no MIG, no events, processes by
// the oldest function only.
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "userspace/source/nvml_abi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace mycroft::nvml_abi {

struct DeviceHandle {
  uint32_t gpu = 0;
  int mig = -1;  // index, or the GPU itself
};
struct EventSetHandle {
  int unused = 0;
};

namespace {

struct FakeLink {
  uint32_t active = 0;
  uint64_t replays = 0, recoveries = 0, crc = 0;
};
struct FakeMig {
  std::string uuid;
  uint32_t instance = 0;
};
struct FakeGpu {
  std::map<std::string, uint64_t> values;
  std::string bus, uuid, name;
  std::map<uint32_t, FakeLink> links;
  std::map<uint32_t, FakeMig> mig;
  std::vector<std::pair<uint32_t, uint32_t>> processes;  // pid, instance
};
struct FakeScript {
  std::string driver = "550.54.15";
  int init = kSuccess;
  std::map<uint32_t, FakeGpu> gpus;
  std::vector<std::pair<uint32_t, uint32_t>> xids;  // gpu, number
};

FakeScript Parse(const std::string& path) {
  FakeScript script;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, key;
    words >> kind;
    if (kind == "driver") words >> script.driver;
    if (kind == "init") words >> script.init;
    uint32_t index = 0;
    if (kind != "gpu" || !(words >> index >> key)) continue;
    FakeGpu& gpu = script.gpus[index];
    if (key == "bus") {
      words >> gpu.bus;
    } else if (key == "uuid") {
      words >> gpu.uuid;
    } else if (key == "name") {
      std::getline(words >> std::ws, gpu.name);
    } else if (key == "link") {
      uint32_t number = 0;
      FakeLink link;
      words >> number >> link.active >> link.replays >> link.recoveries >> link.crc;
      gpu.links[number] = link;
    } else if (key == "mig") {
      uint32_t number = 0;
      FakeMig mig;
      words >> number >> mig.uuid >> mig.instance;
      gpu.mig[number] = mig;
    } else if (key == "process") {
      uint32_t pid = 0, instance = UINT32_MAX;
      words >> pid;
      if (!(words >> instance)) instance = UINT32_MAX;
      gpu.processes.emplace_back(pid, instance);
    } else if (key == "xid") {
      uint32_t number = 0;
      words >> number;
      script.xids.emplace_back(index, number);
    } else {
      words >> gpu.values[key];
    }
  }
  return script;
}

class World {
 public:
  // The script as it is now.
  FakeScript Script() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Refresh();
    return script_;
  }
  // Waits as the script says; a code that each call on the device fails with, or success.
  Return Enter(const DeviceHandle* device) {
    if (device == nullptr) return kInvalidArgument;
    uint64_t waited_ms = 0;
    for (;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!fresh_ || waited_ms > 0) Refresh();
        const auto it = script_.gpus.find(device->gpu);
        if (it == script_.gpus.end()) return kGpuIsLost;
        if (waited_ms >= Value(it->second, "block_ms")) {
          return Value(it->second, "lost") != 0 ? kGpuIsLost : kSuccess;
        }
      }
      const timespec slice{0, 10'000'000};
      ::nanosleep(&slice, nullptr);
      waited_ms += 10;
    }
  }
  // Looks at the file at the next call: the first function of a reading asks for it.
  void Stale() { fresh_ = false; }
  template <class F>
  Return With(Device device, F function) {
    if (const Return code = Enter(device); code != kSuccess) return code;
    const std::lock_guard<std::mutex> lock(mutex_);
    return function(script_.gpus[device->gpu]);
  }
  Return Number(Device device, const char* key, uint32_t* value) {
    return With(device, [&](FakeGpu& gpu) {
      const auto it = gpu.values.find(key);
      if (it == gpu.values.end()) return kNotSupported;
      *value = static_cast<uint32_t>(it->second);
      return kSuccess;
    });
  }
  static uint64_t Value(const FakeGpu& gpu, const char* key) {
    const auto it = gpu.values.find(key);
    return it == gpu.values.end() ? 0 : it->second;
  }
  Device Handle(uint32_t gpu, int mig) {
    const std::lock_guard<std::mutex> lock(mutex_);
    DeviceHandle& handle = handles_[{gpu, mig}];
    handle = {gpu, mig};
    return &handle;
  }
  bool TakeXid(uint32_t* gpu, uint32_t* number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Refresh();
    if (xids_told_ >= script_.xids.size()) return false;
    std::tie(*gpu, *number) = script_.xids[xids_told_++];
    return true;
  }

 private:
  void Refresh() {
    fresh_ = true;
    const char* path = std::getenv("MYCROFT_FAKE_NVML");
    if (path == nullptr) path = "";
    struct stat info {};
    if (::stat(path, &info) != 0) info = {};
    const bool same = path == path_ && info.st_mtim.tv_sec == modified_.tv_sec &&
                      info.st_mtim.tv_nsec == modified_.tv_nsec && info.st_size == size_ &&
                      info.st_ino == inode_;
    if (same) return;
    if (path != path_) xids_told_ = 0;
    path_ = path, modified_ = info.st_mtim, size_ = info.st_size, inode_ = info.st_ino;
    script_ = Parse(path_);
  }

  std::mutex mutex_;
  FakeScript script_;
  std::string path_;
  timespec modified_{};
  off_t size_ = -1;
  ino_t inode_ = 0;
  std::atomic<bool> fresh_{false};
  size_t xids_told_ = 0;
  std::map<std::pair<uint32_t, int>, DeviceHandle> handles_;
};

World& TheWorld() {
  static World* world = new World;
  return *world;
}

Return CopyText(const std::string& text, char* out, uint32_t size) {
  if (text.empty()) return kNotSupported;
  if (text.size() + 1 > size) return kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

}  // namespace

EXPORT Return nvmlInit_v2() { return static_cast<Return>(TheWorld().Script().init); }

EXPORT Return nvmlSystemGetDriverVersion(char* out, uint32_t size) {
  return CopyText(TheWorld().Script().driver, out, size);
}

EXPORT Return nvmlDeviceGetCount_v2(uint32_t* count) {
  *count = static_cast<uint32_t>(TheWorld().Script().gpus.size());
  return kSuccess;
}

EXPORT Return nvmlDeviceGetHandleByIndex_v2(uint32_t index, Device* device) {
  const FakeScript script = TheWorld().Script();
  if (index >= script.gpus.size()) return kInvalidArgument;
  const auto gpu = std::next(script.gpus.begin(), index);
  *device = TheWorld().Handle(gpu->first, -1);
  return TheWorld().Enter(*device);
}

EXPORT Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    *info = {};
    std::memcpy(info->bus_id, gpu.bus.c_str(), std::min(gpu.bus.size() + 1, sizeof info->bus_id));
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetUUID(Device device, char* out, uint32_t size) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    if (device->mig >= 0) return CopyText(gpu.mig[static_cast<uint32_t>(device->mig)].uuid, out, size);
    return CopyText(gpu.uuid, out, size);
  });
}

EXPORT Return nvmlDeviceGetName(Device device, char* out, uint32_t size) {
  return TheWorld().With(device, [&](FakeGpu& gpu) { return CopyText(gpu.name, out, size); });
}

EXPORT Return nvmlDeviceGetMinorNumber(Device device, uint32_t* value) {
  return TheWorld().Number(device, "minor", value);
}

EXPORT Return nvmlDeviceGetClockInfo(Device device, int32_t clock, uint32_t* value) {
  if (clock == kClockSm) TheWorld().Stale();
  return TheWorld().Number(device, clock == kClockSm ? "clock_sm" : "clock_mem", value);
}

EXPORT Return nvmlDeviceGetMaxClockInfo(Device device, int32_t clock, uint32_t* value) {
  return TheWorld().Number(device, clock == kClockSm ? "max_clock_sm" : "max_clock_mem", value);
}

EXPORT Return nvmlDeviceGetPowerUsage(Device device, uint32_t* value) {
  return TheWorld().Number(device, "power", value);
}

EXPORT Return nvmlDeviceGetEnforcedPowerLimit(Device device, uint32_t* value) {
  return TheWorld().Number(device, "power_limit", value);
}

#ifdef MYCROFT_FAKE_NVML_OLD
EXPORT Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, uint64_t* value) {
#else
EXPORT Return nvmlDeviceGetCurrentClocksEventReasons(Device device, uint64_t* value) {
#endif
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    if (gpu.values.count("reasons") == 0) return kNotSupported;
    *value = gpu.values["reasons"];
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetTemperature(Device device, int32_t, uint32_t* value) {
  return TheWorld().Number(device, "temperature", value);
}

EXPORT Return nvmlDeviceGetTemperatureThreshold(Device device, int32_t, uint32_t* value) {
  return TheWorld().Number(device, "slowdown", value);
}

EXPORT Return nvmlDeviceGetUtilizationRates(Device device, Utilization* value) {
  value->memory = 0;
  return TheWorld().Number(device, "util", &value->gpu);
}

EXPORT Return nvmlDeviceGetMemoryInfo(Device device, Memory* value) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    if (gpu.values.count("mem_total") == 0) return kNotSupported;
    value->total = gpu.values["mem_total"];
    value->used = gpu.values["mem_used"];
    value->free = value->total - value->used;
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetTotalEccErrors(Device device, int32_t kind, int32_t, uint64_t* value) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    const char* key = kind == kCorrected ? "ecc_corrected" : "ecc_uncorrected";
    if (gpu.values.count(key) == 0) return kNotSupported;
    *value = gpu.values[key];
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetCurrPcieLinkGeneration(Device device, uint32_t* value) {
  return TheWorld().Number(device, "pcie_gen", value);
}

EXPORT Return nvmlDeviceGetCurrPcieLinkWidth(Device device, uint32_t* value) {
  return TheWorld().Number(device, "pcie_width", value);
}

EXPORT Return nvmlDeviceGetMaxPcieLinkGeneration(Device device, uint32_t* value) {
  return TheWorld().Number(device, "pcie_max_gen", value);
}

EXPORT Return nvmlDeviceGetMaxPcieLinkWidth(Device device, uint32_t* value) {
  return TheWorld().Number(device, "pcie_max_width", value);
}

EXPORT Return nvmlDeviceGetPcieReplayCounter(Device device, uint32_t* value) {
  return TheWorld().Number(device, "pcie_replays", value);
}

EXPORT Return nvmlDeviceGetNvLinkState(Device device, uint32_t link, int32_t* active) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    const auto it = gpu.links.find(link);
    if (it == gpu.links.end()) return kInvalidArgument;
    *active = static_cast<int32_t>(it->second.active);
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetNvLinkErrorCounter(Device device, uint32_t link, int32_t kind,
                                              uint64_t* value) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    const auto it = gpu.links.find(link);
    if (it == gpu.links.end()) return kInvalidArgument;
    const FakeLink& of = it->second;
    *value = kind == kLinkReplay     ? of.replays
             : kind == kLinkRecovery ? of.recoveries
             : kind == kLinkCrcFlit  ? of.crc
                                     : 0;
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetComputeRunningProcesses(Device device, uint32_t* count,
                                                   ProcessInfo1* out) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    const auto found = static_cast<uint32_t>(gpu.processes.size());
    if (found > *count) return kInsufficientSize;
    for (uint32_t i = 0; i < found; ++i) out[i] = {gpu.processes[i].first, 1 << 20};
    *count = found;
    return kSuccess;
  });
}

#ifndef MYCROFT_FAKE_NVML_OLD

EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, uint32_t* count,
                                                      ProcessInfo* out) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    const auto found = static_cast<uint32_t>(gpu.processes.size());
    if (found > *count) return kInsufficientSize;
    for (uint32_t i = 0; i < found; ++i) {
      out[i] = {gpu.processes[i].first, 1 << 20, gpu.processes[i].second, 0};
    }
    *count = found;
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetRemappedRows(Device device, uint32_t* corrected, uint32_t* uncorrected,
                                        uint32_t* pending, uint32_t* failed) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    if (gpu.values.count("remap_rows") == 0) return kNotSupported;
    *corrected = static_cast<uint32_t>(gpu.values["remap_rows"]);
    *uncorrected = 0;
    *pending = static_cast<uint32_t>(gpu.values["remap_pending"]);
    *failed = static_cast<uint32_t>(gpu.values["remap_failed"]);
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetFieldValues(Device device, int32_t count, FieldValue* values) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    for (int32_t i = 0; i < count; ++i) {
      FieldValue& value = values[i];
      value.value_type = kUnsignedLongLong;
      value.result = kSuccess;
      value.value.u64 = 0;
      const auto from = [&](const char* key) {
        if (gpu.values.count(key) == 0) value.result = kNotSupported;
        value.value.u64 = World::Value(gpu, key);
      };
      switch (value.field) {
        case kFieldMemoryTemperature:
          from("mem_temperature");
          value.value_type = kUnsignedInt;
          break;
        case kFieldPcieTxBytes:
          from("pcie_tx");
          break;
        case kFieldPcieRxBytes:
          from("pcie_rx");
          break;
        case kFieldLinkCrcFlitTotal:
          for (const auto& [number, link] : gpu.links) value.value.u64 += link.crc;
          break;
        case kFieldLinkReplayTotal:
          for (const auto& [number, link] : gpu.links) value.value.u64 += link.replays;
          break;
        case kFieldLinkRecoveryTotal:
          for (const auto& [number, link] : gpu.links) value.value.u64 += link.recoveries;
          break;
        default:
          value.result = kNotSupported;
      }
    }
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetMigMode(Device device, uint32_t* current, uint32_t* pending) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    *current = *pending = gpu.mig.empty() ? 0 : 1;
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetMaxMigDeviceCount(Device device, uint32_t* count) {
  return TheWorld().With(device, [&](FakeGpu&) {
    *count = 7;
    return kSuccess;
  });
}

EXPORT Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, uint32_t index, Device* mig) {
  bool there = false;
  const Return code = TheWorld().With(device, [&](FakeGpu& gpu) {
    there = gpu.mig.count(index) != 0;
    return kSuccess;
  });
  if (code != kSuccess) return code;
  if (!there) return kNotFound;
  *mig = TheWorld().Handle(device->gpu, static_cast<int>(index));
  return kSuccess;
}

EXPORT Return nvmlDeviceGetGpuInstanceId(Device device, uint32_t* value) {
  return TheWorld().With(device, [&](FakeGpu& gpu) {
    if (device->mig < 0) return kNotSupported;
    *value = gpu.mig[static_cast<uint32_t>(device->mig)].instance;
    return kSuccess;
  });
}

EXPORT Return nvmlEventSetCreate(EventSet* set) {
  *set = new EventSetHandle;
  return kSuccess;
}

EXPORT Return nvmlEventSetFree(EventSet set) {
  delete set;
  return kSuccess;
}

EXPORT Return nvmlDeviceRegisterEvents(Device device, uint64_t, EventSet) {
  return TheWorld().Enter(device);
}

EXPORT Return nvmlEventSetWait_v2(EventSet, EventData* data, uint32_t) {
  uint32_t gpu = 0, number = 0;
  if (!TheWorld().TakeXid(&gpu, &number)) return kTimeout;
  *data = {TheWorld().Handle(gpu, -1), kEventXid, number, UINT32_MAX, UINT32_MAX};
  return kSuccess;
}

#endif  // MYCROFT_FAKE_NVML_OLD

}  // namespace mycroft::nvml_abi
