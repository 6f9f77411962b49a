// SPDX-License-Identifier: Apache-2.0
//
// The part of NVML's binary interface that is used here, declared anew: the library is
// found at run time, and nothing of NVIDIA's is needed to build. Numbers and layouts are
// those of the public "NVML API Reference Guide" (docs.nvidia.com/deploy/nvml-api), which
// keeps them for good: a changed structure gets a new function with a new suffix.
//
// x86-64 and aarch64: `unsigned int` has 4 bytes, `unsigned long long` 8.
#ifndef MYCROFT_USERSPACE_SOURCE_NVML_ABI_H_
#define MYCROFT_USERSPACE_SOURCE_NVML_ABI_H_

#include <cstddef>
#include <cstdint>

namespace mycroft::nvml_abi {

using Device = struct DeviceHandle*;      // nvmlDevice_t
using EventSet = struct EventSetHandle*;  // nvmlEventSet_t

// nvmlReturn_t
enum Return : int32_t {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kFunctionNotFound = 13,
  kGpuIsLost = 15,
  kResetRequired = 16,
  kVersionMismatch = 18,  // of library and kernel driver
  kUnknown = 999,
};

// nvmlClockType_t
enum Clock : int32_t { kClockSm = 1, kClockMemory = 2 };
// nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t
enum Sensor : int32_t { kSensorGpu = 0 };
enum Threshold : int32_t { kThresholdSlowdown = 1 };
// nvmlMemoryErrorType_t, nvmlEccCounterType_t
enum MemoryError : int32_t { kCorrected = 0, kUncorrected = 1 };
enum EccCounter : int32_t { kVolatile = 0 };
// nvmlNvLinkErrorCounter_t
enum LinkError : int32_t { kLinkReplay = 0, kLinkRecovery = 1, kLinkCrcFlit = 2, kLinkCrcData = 3 };
inline constexpr uint32_t kMaxLinks = 18;  // NVML_NVLINK_MAX_LINKS

// nvmlClocksEventReasons (before driver 535: ThrottleReasons), bits
inline constexpr uint64_t kReasonIdle = 0x1, kReasonApplicationClocks = 0x2,
                          kReasonPowerCap = 0x4, kReasonHardwareSlowdown = 0x8,
                          kReasonSyncBoost = 0x10, kReasonSoftwareThermal = 0x20,
                          kReasonHardwareThermal = 0x40, kReasonPowerBrake = 0x80,
                          kReasonDisplayClock = 0x100;

// nvmlEventType*, bits
inline constexpr uint64_t kEventDoubleBitEcc = 0x2, kEventXid = 0x8;

// Field identifiers (NVML_FI_DEV_*).
inline constexpr uint32_t kFieldLinkCrcFlitTotal = 38, kFieldLinkCrcDataTotal = 45,
                          kFieldLinkReplayTotal = 52, kFieldLinkRecoveryTotal = 59,
                          kFieldMemoryTemperature = 82, kFieldPcieTxBytes = 197,
                          kFieldPcieRxBytes = 198;

// nvmlValueType_t
enum ValueType : int32_t {
  kDouble = 0,
  kUnsignedInt = 1,
  kUnsignedLong = 2,
  kUnsignedLongLong = 3,
  kSignedLongLong = 4,
  kSignedInt = 5,
  kUnsignedShort = 6,
};

struct PciInfo {  // nvmlPciInfo_t
  char legacy_bus_id[16];
  uint32_t domain, bus, device;
  uint32_t pci_device_id, pci_subsystem_id;
  char bus_id[32];  // "00000000:3B:00.0"
};
static_assert(sizeof(PciInfo) == 68);

struct Utilization {  // nvmlUtilization_t, percent
  uint32_t gpu, memory;
};
static_assert(sizeof(Utilization) == 8);

struct Memory {  // nvmlMemory_t, bytes
  uint64_t total, free, used;
};
static_assert(sizeof(Memory) == 24);

// nvmlProcessInfo_t as nvmlDeviceGetComputeRunningProcesses_v2 and _v3 fill it, and as
// the function without suffix does.
struct ProcessInfo {
  uint32_t pid;
  uint64_t used_bytes;
  uint32_t gpu_instance, compute_instance;  // 0xffffffff: no MIG
};
static_assert(sizeof(ProcessInfo) == 24 && offsetof(ProcessInfo, used_bytes) == 8 &&
              offsetof(ProcessInfo, gpu_instance) == 16);
struct ProcessInfo1 {
  uint32_t pid;
  uint64_t used_bytes;
};
static_assert(sizeof(ProcessInfo1) == 16);

struct FieldValue {  // nvmlFieldValue_t
  uint32_t field, scope;
  int64_t timestamp_us, latency_us;
  int32_t value_type;  // enum ValueType
  int32_t result;      // enum Return
  union {
    double real;
    uint32_t u32;
    int32_t s32;
    uint64_t u64;
    int64_t s64;
    uint16_t u16;
  } value;
};
static_assert(sizeof(FieldValue) == 40 && offsetof(FieldValue, value_type) == 24 &&
              offsetof(FieldValue, value) == 32);

struct EventData {  // nvmlEventData_t of nvmlEventSetWait_v2
  Device device;
  uint64_t type, data;
  uint32_t gpu_instance, compute_instance;
};
static_assert(sizeof(EventData) == 32 && offsetof(EventData, data) == 16);

// X(member, result and parameters, exported name, older name with the same signature or
// nullptr). All but the first four may be missing.
#define MYCROFT_NVML_FUNCTIONS(X)                                                               \
  X(init, Return(), "nvmlInit_v2", nullptr)                                                     \
  X(count, Return(uint32_t*), "nvmlDeviceGetCount_v2", nullptr)                                 \
  X(handle, Return(uint32_t, Device*), "nvmlDeviceGetHandleByIndex_v2", nullptr)                \
  X(pci, Return(Device, PciInfo*), "nvmlDeviceGetPciInfo_v3", nullptr)                          \
  X(driver_version, Return(char*, uint32_t), "nvmlSystemGetDriverVersion", nullptr)             \
  X(uuid, Return(Device, char*, uint32_t), "nvmlDeviceGetUUID", nullptr)                        \
  X(name, Return(Device, char*, uint32_t), "nvmlDeviceGetName", nullptr)                        \
  X(minor, Return(Device, uint32_t*), "nvmlDeviceGetMinorNumber", nullptr)                      \
  X(clock, Return(Device, int32_t, uint32_t*), "nvmlDeviceGetClockInfo", nullptr)               \
  X(max_clock, Return(Device, int32_t, uint32_t*), "nvmlDeviceGetMaxClockInfo", nullptr)        \
  X(power, Return(Device, uint32_t*), "nvmlDeviceGetPowerUsage", nullptr)                       \
  X(power_limit, Return(Device, uint32_t*), "nvmlDeviceGetEnforcedPowerLimit", nullptr)         \
  X(reasons, Return(Device, uint64_t*), "nvmlDeviceGetCurrentClocksEventReasons",               \
    "nvmlDeviceGetCurrentClocksThrottleReasons")                                                \
  X(temperature, Return(Device, int32_t, uint32_t*), "nvmlDeviceGetTemperature", nullptr)       \
  X(threshold, Return(Device, int32_t, uint32_t*), "nvmlDeviceGetTemperatureThreshold", nullptr) \
  X(utilization, Return(Device, Utilization*), "nvmlDeviceGetUtilizationRates", nullptr)        \
  X(memory, Return(Device, Memory*), "nvmlDeviceGetMemoryInfo", nullptr)                        \
  X(ecc, Return(Device, int32_t, int32_t, uint64_t*), "nvmlDeviceGetTotalEccErrors", nullptr)   \
  X(remapped, Return(Device, uint32_t*, uint32_t*, uint32_t*, uint32_t*),                       \
    "nvmlDeviceGetRemappedRows", nullptr)                                                       \
  X(pcie_generation, Return(Device, uint32_t*), "nvmlDeviceGetCurrPcieLinkGeneration", nullptr) \
  X(pcie_width, Return(Device, uint32_t*), "nvmlDeviceGetCurrPcieLinkWidth", nullptr)           \
  X(pcie_max_generation, Return(Device, uint32_t*), "nvmlDeviceGetMaxPcieLinkGeneration",       \
    nullptr)                                                                                    \
  X(pcie_max_width, Return(Device, uint32_t*), "nvmlDeviceGetMaxPcieLinkWidth", nullptr)        \
  X(pcie_replays, Return(Device, uint32_t*), "nvmlDeviceGetPcieReplayCounter", nullptr)         \
  X(fields, Return(Device, int32_t, FieldValue*), "nvmlDeviceGetFieldValues", nullptr)          \
  X(link_state, Return(Device, uint32_t, int32_t*), "nvmlDeviceGetNvLinkState", nullptr)        \
  X(link_errors, Return(Device, uint32_t, int32_t, uint64_t*),                                  \
    "nvmlDeviceGetNvLinkErrorCounter", nullptr)                                                 \
  X(processes, Return(Device, uint32_t*, ProcessInfo*),                                         \
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")       \
  X(processes1, Return(Device, uint32_t*, ProcessInfo1*),                                       \
    "nvmlDeviceGetComputeRunningProcesses", nullptr)                                            \
  X(mig_mode, Return(Device, uint32_t*, uint32_t*), "nvmlDeviceGetMigMode", nullptr)            \
  X(mig_count, Return(Device, uint32_t*), "nvmlDeviceGetMaxMigDeviceCount", nullptr)            \
  X(mig_handle, Return(Device, uint32_t, Device*), "nvmlDeviceGetMigDeviceHandleByIndex",       \
    nullptr)                                                                                    \
  X(gpu_instance, Return(Device, uint32_t*), "nvmlDeviceGetGpuInstanceId", nullptr)             \
  X(event_set, Return(EventSet*), "nvmlEventSetCreate", nullptr)                                \
  X(event_free, Return(EventSet), "nvmlEventSetFree", nullptr)                                  \
  X(register_events, Return(Device, uint64_t, EventSet), "nvmlDeviceRegisterEvents", nullptr)   \
  X(wait_event, Return(EventSet, EventData*, uint32_t), "nvmlEventSetWait_v2", nullptr)

// Null: the library lacks it.
struct Functions {
#define MYCROFT_NVML_MEMBER(member, signature, name, older) \
  using member##_function = signature;                      \
  member##_function* member = nullptr;
  MYCROFT_NVML_FUNCTIONS(MYCROFT_NVML_MEMBER)
#undef MYCROFT_NVML_MEMBER
};

}  // namespace mycroft::nvml_abi

#endif  // MYCROFT_USERSPACE_SOURCE_NVML_ABI_H_
