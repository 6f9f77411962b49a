// SPDX-License-Identifier: Apache-2.0
//
// PCI functions as sysfs shows them: identity, link registers, what configuration
// space says, error counters, and the bridges above. `sys_root` is "/sys" or a
// fixture tree. Free functions, thread-safe; a value that cannot be read is empty.
//
// Reading `config` or the link files of a function in runtime suspend wakes it up:
// ask only for functions that a job uses. A function that has fallen off the bus
// costs a completion timeout (tens of milliseconds) per read on some machines.
//
// Sources: PCI Express Base Specification, chapter 7 (offsets below); Linux
// Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats.
#ifndef MYCROFT_USERSPACE_SOURCE_PCI_H_
#define MYCROFT_USERSPACE_SOURCE_PCI_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mycroft {

// "0000:3b:00.0"; the domain has four digits or more (VMD: "10000:01:00.0").
bool IsPciAddress(std::string_view text);

// The function itself, then each bridge above it up to the root port. Taken from the
// symbolic link /sys/bus/pci/devices/ADDRESS, whose target names all bridges:
//   ../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0
// Only the function itself when there is no link; empty for what is not an address.
// At most 32 long.
std::vector<std::string> PciPathToRoot(const std::string& sys_root, const std::string& address);

// Speed of a link file: "16.0 GT/s PCIe" is 16. nullopt: "Unknown", no number.
std::optional<double> ParseLinkSpeed(const std::string& text);
// Lanes: 1 to 32. nullopt: 0 (no link), 63 (reads as all ones), 255 (unknown).
std::optional<uint32_t> ParseLinkWidth(const std::string& text);

// Type of a port, from its PCI Express capability.
enum class PciPort : uint8_t {
  kEndpoint = 0,
  kLegacyEndpoint = 1,
  kRootPort = 4,
  kUpstream = 5,
  kDownstream = 6,
  kOther = 15,
};

// What a copy of configuration space says. An unprivileged reader gets its first 64
// bytes, in which only `unreachable` can be seen; ACS lies beyond byte 256.
struct PciConfig {
  bool unreachable = false;  // reads as all ones
  std::optional<PciPort> port;
  std::optional<uint32_t> max_read_request;  // bytes
  std::optional<bool> relaxed_ordering;
  std::optional<bool> acs_redirect;  // requests or completions between peers go to the root
};
// Any bytes: lists of capabilities that loop or leave the space end there.
PciConfig ParsePciConfig(const std::string& bytes);

// The number after TOTAL_... in an aer_dev_* file, or the sum of its lines when there
// is no such line; nullopt when a line is not "NAME NUMBER".
std::optional<uint64_t> ParseAerTotal(const std::string& text);

struct PciFunction {
  std::string address;
  uint32_t class_code = 0;  // 24 bits: class, subclass, interface; 0: unreadable
  uint32_t vendor = 0, device = 0;
  std::string driver;      // empty: none
  int32_t numa_node = -1;
  // Of an endpoint or upstream port the link above it, of a root or downstream port
  // the link below it.
  std::optional<double> speed_gts, max_speed_gts;
  std::optional<uint32_t> width, max_width;
  PciConfig config;
  size_t config_bytes = 0;  // readable: 0, 64, 256 or 4096
  // Of a root port: what arrived there from below, too (aer_rootport_total_err_*). An
  // endpoint's fatal error shows only there: the kernel does not read an endpoint
  // whose link is down.
  std::optional<uint64_t> aer_correctable, aer_nonfatal, aer_fatal;
};
// nullopt: no such function now.
std::optional<PciFunction> ReadPciFunction(const std::string& sys_root,
                                           const std::string& address);

// Reads again what changes while a device works: the link, whether it answers, the error
// counters; about a third of the cost. The rest of `function` stays as it was. False: no
// such function now.
bool RefreshPciFunction(const std::string& sys_root, PciFunction& function);

bool IsGpuClass(uint32_t class_code);     // display controllers: 03xxxx
bool IsNicClass(uint32_t class_code);     // network controllers: 02xxxx
bool IsBridgeClass(uint32_t class_code);  // PCI to PCI: 0604xx

// How the IOMMU treats these functions: "off", "passthrough" (all of them),
// "translated" (at least one); nullopt: not known.
std::optional<std::string> ReadIommuMode(const std::string& sys_root,
                                         const std::vector<std::string>& addresses);

// Whether a module is loaded through which an RDMA device reaches GPU memory without
// dmabuf (nvidia_peermem, nv_peer_mem); nullopt: not known.
std::optional<bool> ReadPeerMemoryModule(const std::string& sys_root);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PCI_H_
