// SPDX-License-Identifier: Apache-2.0
//
// The GPUs and NICs of a job's processes as a person wants to see them: each with its
// way to the root, the narrowest place of it, its ports, and what is wrong with it in
// words. For `mycroft doctor`, `top` and the metrics; the verdicts have their own,
// stricter rules (a link is judged under load and over time there).
//
// Values only, computed on request. Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_MODEL_DEVICES_H_
#define MYCROFT_USERSPACE_MODEL_DEVICES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "userspace/decode/snapshot.h"

namespace mycroft {

class HardwareModel;
struct HostHardware;

struct HopView {
  std::string address;
  PciKind kind = PciKind::kOther;
  // "16 GT/s x8": its link now, and what both ends of that link could do; empty: no link,
  // or unreadable.
  std::string link, best;
  double speed_gts = 0;  // 0: not known
  uint32_t width = 0;    // 0: not known
  bool degraded = false;  // slower or narrower than both ends could
  bool acs_redirect = false;
};

struct PortView {
  std::string device;  // "mlx5_0"
  uint32_t port = 1;
  std::string state, phys_state, netdev;  // empty: unreadable, or none
  double rate_gbps = 0;                   // 0: not known
  bool active = false;
};

struct DeviceView {
  std::string host;
  std::string address;  // empty: a software device
  PciKind kind = PciKind::kOther;
  std::string driver;
  int32_t numa_node = -1;
  bool present = true, unreachable = false;
  std::vector<HopView> path;    // itself first, the root port last
  double bytes_per_s = 0;       // the least over the path, one direction; 0: not known
  std::string narrowest;        // address of that hop
  uint64_t aer_correctable = 0, aer_nonfatal = 0, aer_fatal = 0;
  std::vector<PortView> ports;  // of an RDMA device
  std::optional<GpuSample> gpu;  // what the driver says of a GPU; empty: nothing
  std::vector<ProcessKey> processes;
  std::vector<std::string> problems;  // empty: none
  bool degraded() const;              // any hop
};

// Those that processes of the host have open, by address; software devices last.
std::vector<DeviceView> DevicesOf(const HostHardware& host);
std::vector<DeviceView> DevicesOf(const HardwareModel& hardware);

// "GPU 0000:3d:00.0", "NIC 0000:18:00.0 (mlx5_0)", "rxeA".
std::string DeviceName(const DeviceView& device);
// "0000:3d:00.0 32 GT/s x16 > 0000:3c:04.0 32 GT/s x16 > ...".
std::string PathText(const DeviceView& device);
// "1980 of 1980 MHz, 620 of 700 W, 61 C, 18 of 18 NVLinks"; empty: the driver says nothing.
std::string HealthText(const DeviceView& device);
// "port 1 ACTIVE LinkUp 400 Gb/s eth0".
std::string PortText(const PortView& port);
const char* ToString(PciKind kind);  // "GPU", "NIC", "bridge", "root port", "device"

// A probe that does not answer its question, or only in part.
inline bool Degraded(const ProbeSample& probe) {
  return probe.attached.empty() || !probe.problem.empty();
}

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_MODEL_DEVICES_H_
