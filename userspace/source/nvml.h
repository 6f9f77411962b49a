// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's management library as a witness: what the driver says of each GPU. Loaded at
// run time; a host without it, or with an old one, is no error: what a function that is
// missing, not supported or refused would have said is empty, never zero.
//
// Every call enters the driver and may block for seconds, or for ever, when a GPU has
// fallen off the bus: call it from a thread that nobody waits for. NVML cannot be asked
// for a deadline. Not thread-safe here.
//
// Not read: nvmlDeviceGetPcieThroughput, which measures for 20 ms per call and
// direction (320 ms of each second for eight GPUs). The byte counters that newer
// drivers have are taken where they are 64 bits wide; 32 bits wrap within a second.
//
// The library stays loaded and is not shut down: a driver that hangs would hang that
// call, too, and the process is about to end.
#ifndef MYCROFT_USERSPACE_SOURCE_NVML_H_
#define MYCROFT_USERSPACE_SOURCE_NVML_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace mycroft {

// MYCROFT_NVML, a path to load in place of the driver's library, or "off"; without it
// "libnvidia-ml.so.1", as the loader finds it, or nothing when no NVIDIA driver is loaded.
std::string DefaultNvmlLibrary();
inline constexpr char kNvmlOff[] = "off";

struct NvmlMigDevice {
  std::string uuid;  // "MIG-..."
  uint32_t gpu_instance = 0;
};

struct NvmlDevice {
  uint32_t index = 0;   // NVML's, not CUDA's; changes when GPUs go
  std::string address;  // "0000:3b:00.0"
  std::string uuid;     // "GPU-..."
  std::string name;
  std::optional<uint32_t> minor;    // N of /dev/nvidiaN
  std::vector<NvmlMigDevice> mig;   // empty: MIG is off
};

struct NvmlLink {
  uint32_t link = 0;
  bool active = false;
  // Since the driver was loaded, or the counters were reset.
  std::optional<uint64_t> crc, replays, recoveries;
};

struct NvmlProcess {
  uint32_t pid = 0;  // in the initial pid namespace
  std::optional<uint32_t> gpu_instance;
};

struct NvmlReading {
  bool lost = false;  // NVML_ERROR_GPU_IS_LOST or RESET_REQUIRED: the rest is empty
  std::optional<uint32_t> sm_mhz, sm_max_mhz, memory_mhz, memory_max_mhz;
  std::optional<uint32_t> power_mw, power_limit_mw;
  std::optional<uint64_t> clock_reasons;  // bits of nvml_abi.h
  std::optional<uint32_t> temperature_c, memory_temperature_c, slowdown_c;
  std::optional<uint32_t> utilization_percent;
  std::optional<uint64_t> memory_used_bytes, memory_bytes;
  std::optional<uint64_t> ecc_corrected, ecc_uncorrected;  // since the driver was loaded
  std::optional<uint32_t> remapped_rows;                   // corrected and uncorrected
  std::optional<bool> remap_pending, remap_failed;
  std::optional<uint32_t> pcie_generation, pcie_max_generation, pcie_width, pcie_max_width;
  std::optional<uint64_t> pcie_replays, pcie_tx_bytes, pcie_rx_bytes;
  std::vector<NvmlLink> links;  // those that the GPU has
  std::optional<std::vector<NvmlProcess>> processes;  // that compute
};

struct NvmlXid {
  std::string address;
  uint32_t xid = 0;
};

class Nvml {
 public:
  // Loads and initializes. NotFound: no such library; Unavailable: it is there and does
  // not work (driver not loaded, versions differ); the message says which.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library);
  virtual ~Nvml() = default;

  virtual const std::string& path() const = 0;            // of the loaded file
  virtual const std::string& driver_version() const = 0;  // empty: not known
  virtual std::vector<std::string> missing() const = 0;   // functions, by name

  // Looks for the GPUs again; those that cannot be had are counted in `failed`. Empty
  // and failed = 0: there are none.
  virtual std::vector<NvmlDevice> List(size_t* failed) = 0;
  // What has become of a device of the last List. `slowly_moving`: also limits, remapped
  // rows, the state of each NVLink and processes; else those are empty, which then says
  // nothing.
  virtual NvmlReading Read(const NvmlDevice& device, bool slowly_moving) = 0;
  // Xids since the last call, of the devices of the last List; does not wait. At most 64.
  virtual std::vector<NvmlXid> TakeXids() = 0;
};

// "00000000:3B:00.0", as NVML prints it, is "0000:3b:00.0"; empty for anything else.
std::string PciAddressOfNvml(const std::string& bus_id);

// Payload speed class of a PCIe generation, GT/s; 0: not known.
double PcieSpeedGts(uint32_t generation);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_NVML_H_
