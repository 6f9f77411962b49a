// SPDX-License-Identifier: Apache-2.0
//
// RDMA devices and their ports as sysfs shows them. `sys_root` is "/sys" or a fixture
// tree. Free functions, thread-safe; a value that cannot be read is empty.
//
// Reading counters may ask the device's firmware (mlx5: about 10 to 100 us for each
// file below counters/) and can hang as long as the firmware does: not on a thread
// that must not wait.
//
// Source: Linux Documentation/ABI/stable/sysfs-class-infiniband.
#ifndef MYCROFT_USERSPACE_SOURCE_RDMA_H_
#define MYCROFT_USERSPACE_SOURCE_RDMA_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mycroft {

// "ACTIVE" of "4: ACTIVE"; empty when the text has another form.
std::string ParsePortState(const std::string& text);
// 100 of "100 Gb/sec (4X EDR)"; nullopt when the text has another form.
std::optional<double> ParsePortRate(const std::string& text);

// "mlx5_0" of "uverbs3": the device behind a node in /dev/infiniband. Empty: not known.
std::string VerbsDevice(const std::string& sys_root, const std::string& uverbs);

// PCI address of a device ("mlx5_0"); empty: a software device (rxe, siw), or not known.
std::string RdmaPciAddress(const std::string& sys_root, const std::string& device);

// Numbers of its ports, ascending, at most 16; nullopt: the folder cannot be read.
std::optional<std::vector<uint32_t>> RdmaPorts(const std::string& sys_root,
                                               const std::string& device);

struct RdmaPort {
  std::string state;       // "ACTIVE"; empty: unreadable
  std::string phys_state;  // "LinkUp"
  std::optional<double> rate_gbps;
  std::string netdev;      // empty: InfiniBand, or not known
  std::optional<uint32_t> netdev_mtu;
  // counters/ and hw_counters/ by file name, at most 256. Those that cannot be read
  // are not in it.
  std::map<std::string, uint64_t> counters;
};
RdmaPort ReadRdmaPort(const std::string& sys_root, const std::string& device, uint32_t port);

struct RdmaGid {
  uint32_t index = 0;
  std::string gid;   // eight groups of four hexadecimal digits
  std::string type;  // "IB/RoCE v1", "RoCE v2"; empty: unreadable
};
// Entries that are not all zero, by index, at most 256. nullopt: the table cannot be
// read. Costs a few us for each slot of the table (mlx5 256, rxe 1024): not each second.
std::optional<std::vector<RdmaGid>> ReadRdmaGids(const std::string& sys_root,
                                                 const std::string& device, uint32_t port);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_RDMA_H_
