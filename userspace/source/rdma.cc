// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/rdma.h"

#include <algorithm>

#include "userspace/source/pci.h"
#include "userspace/source/proc.h"
#include "userspace/source/sysfs.h"

namespace mycroft {
namespace {

constexpr size_t kMaxPorts = 16;
constexpr size_t kMaxCounters = 256;
constexpr size_t kMaxGids = 256;
constexpr size_t kMaxGidSlots = 4096;
constexpr size_t kMaxName = 64;

// A name that comes from outside and becomes part of a path.
bool SafeName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

std::string Folder(const std::string& sys_root, const std::string& device) {
  return sys_root + "/class/infiniband/" + device;
}

std::string PortFolder(const std::string& sys_root, const std::string& device, uint32_t port) {
  return Folder(sys_root, device) + "/ports/" + std::to_string(port);
}

void AddCounters(const std::string& folder, std::map<std::string, uint64_t>& counters) {
  const auto names = ListFolder(folder, 1024);
  if (!names) return;
  for (const std::string& name : *names) {
    // lifespan is a setting: how long the driver keeps what it asked the firmware.
    if (name == "lifespan" || !SafeName(name)) continue;
    if (counters.size() >= kMaxCounters) return;
    if (const auto value = ReadNumber(folder + "/" + name)) counters.try_emplace(name, *value);
  }
}

}  // namespace

std::string ParsePortState(const std::string& text) {
  const size_t colon = text.find(": ");
  if (colon == std::string::npos || !ParseNumber(text.substr(0, colon))) return "";
  std::string name = text.substr(colon + 2, 32);
  for (const char c : name) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       (c >= '0' && c <= '9') || c == '_' || c == ' ' || c == '<' || c == '>';
    if (!plain) return "";
  }
  return name;
}

std::optional<double> ParsePortRate(const std::string& text) {
  const auto value = ParseQuantity(text, " Gb/sec");
  if (!value || *value < 0 || *value > 1e6) return std::nullopt;
  return value;
}

std::string VerbsDevice(const std::string& sys_root, const std::string& uverbs) {
  if (!SafeName(uverbs)) return "";
  const std::string name =
      ReadFirstLine(sys_root + "/class/infiniband_verbs/" + uverbs + "/ibdev").value_or("");
  return SafeName(name) ? name : "";
}

std::string RdmaPciAddress(const std::string& sys_root, const std::string& device) {
  if (!SafeName(device)) return "";
  const std::string name = LinkName(Folder(sys_root, device) + "/device");
  return IsPciAddress(name) ? name : "";
}

std::optional<std::vector<uint32_t>> RdmaPorts(const std::string& sys_root,
                                               const std::string& device) {
  if (!SafeName(device)) return std::nullopt;
  const auto names = ListFolder(Folder(sys_root, device) + "/ports", 1024);
  if (!names) return std::nullopt;
  std::vector<uint32_t> ports;
  for (const std::string& name : *names) {
    const auto number = ParseNumber(name);
    if (number && *number >= 1 && *number <= 255) ports.push_back(static_cast<uint32_t>(*number));
  }
  std::sort(ports.begin(), ports.end());
  if (ports.size() > kMaxPorts) ports.resize(kMaxPorts);
  return ports;
}

RdmaPort ReadRdmaPort(const std::string& sys_root, const std::string& device, uint32_t port) {
  RdmaPort out;
  if (!SafeName(device)) return out;
  const std::string folder = PortFolder(sys_root, device, port);
  out.state = ParsePortState(ReadFirstLine(folder + "/state").value_or(""));
  out.phys_state = ParsePortState(ReadFirstLine(folder + "/phys_state").value_or(""));
  if (const auto rate = ReadFirstLine(folder + "/rate")) out.rate_gbps = ParsePortRate(*rate);
  // The first GID names the network device; rxe and siw name it as their parent, too.
  std::string netdev = ReadFirstLine(folder + "/gid_attrs/ndevs/0").value_or("");
  if (!SafeName(netdev)) {
    netdev = ReadFirstLine(Folder(sys_root, device) + "/parent").value_or("");
  }
  if (SafeName(netdev)) {
    out.netdev = netdev;
    const auto mtu = ReadNumber(sys_root + "/class/net/" + netdev + "/mtu");
    if (mtu && *mtu <= 1 << 24) out.netdev_mtu = static_cast<uint32_t>(*mtu);
  }
  AddCounters(folder + "/hw_counters", out.counters);
  AddCounters(folder + "/counters", out.counters);
  return out;
}

std::optional<std::vector<RdmaGid>> ReadRdmaGids(const std::string& sys_root,
                                                 const std::string& device, uint32_t port) {
  if (!SafeName(device)) return std::nullopt;
  const std::string folder = PortFolder(sys_root, device, port);
  const auto names = ListFolder(folder + "/gids", kMaxGidSlots);
  if (!names) return std::nullopt;
  std::vector<uint32_t> slots;
  for (const std::string& name : *names) {
    const auto number = ParseNumber(name);
    if (number && *number < kMaxGidSlots) slots.push_back(static_cast<uint32_t>(*number));
  }
  std::sort(slots.begin(), slots.end());
  std::vector<RdmaGid> gids;
  for (const uint32_t slot : slots) {
    if (gids.size() >= kMaxGids) break;
    RdmaGid entry;
    entry.index = slot;
    // A slot that is not in use fails to read, or holds zeros.
    entry.gid = ReadFirstLine(folder + "/gids/" + std::to_string(slot)).value_or("");
    if (entry.gid.size() != 39 ||
        entry.gid.find_first_not_of("0123456789abcdef:") != std::string::npos ||
        entry.gid.find_first_not_of("0:") == std::string::npos) {
      continue;
    }
    entry.type =
        ReadFirstLine(folder + "/gid_attrs/types/" + std::to_string(slot)).value_or("");
    entry.type.resize(std::min(entry.type.size(), kMaxName));
    gids.push_back(std::move(entry));
  }
  return gids;
}

}  // namespace mycroft
