// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/pci.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "userspace/source/proc.h"
#include "userspace/source/sysfs.h"

namespace mycroft {
namespace {

constexpr size_t kMaxDepth = 32;

bool Hex(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
}

uint32_t Word(const std::string& bytes, size_t at) {  // two bytes, little-endian
  return static_cast<uint8_t>(bytes[at]) | static_cast<uint8_t>(bytes[at + 1]) << 8;
}

std::string Folder(const std::string& sys_root, const std::string& address) {
  return sys_root + "/bus/pci/devices/" + address;
}

std::optional<uint64_t> ReadAer(const std::string& folder, const char* kind, bool root_port) {
  if (root_port) {
    const std::string name = kind[0] == 'c' ? "cor" : kind;  // "correctable" is "cor" there
    if (const auto total = ReadNumber(folder + "/aer_rootport_total_err_" + name)) return total;
  }
  const auto text = ReadSmallFile(folder + "/aer_dev_" + kind, 4096);
  return text ? ParseAerTotal(*text) : std::nullopt;
}

std::optional<double> ReadSpeed(const std::string& path) {
  const auto text = ReadFirstLine(path);
  return text ? ParseLinkSpeed(*text) : std::nullopt;
}

std::optional<uint32_t> ReadWidth(const std::string& path) {
  const auto text = ReadFirstLine(path);
  return text ? ParseLinkWidth(*text) : std::nullopt;
}

void ReadMoving(const std::string& folder, PciFunction& function) {
  function.speed_gts.reset();
  function.width.reset();
  if (!function.config.unreachable) {  // else the link files make numbers of all ones
    function.speed_gts = ReadSpeed(folder + "/current_link_speed");
    function.width = ReadWidth(folder + "/current_link_width");
  }
  const bool bridge = IsBridgeClass(function.class_code);
  function.aer_correctable = ReadAer(folder, "correctable", bridge);
  function.aer_nonfatal = ReadAer(folder, "nonfatal", bridge);
  function.aer_fatal = ReadAer(folder, "fatal", bridge);
}

}  // namespace

bool IsPciAddress(std::string_view text) {
  // DDDD:BB:DD.F
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon < 4 || colon > 8 || text.size() != colon + 8) {
    return false;
  }
  return text[colon + 3] == ':' && text[colon + 6] == '.' && Hex(text.substr(0, colon)) &&
         Hex(text.substr(colon + 1, 2)) && Hex(text.substr(colon + 4, 2)) &&
         text[colon + 7] >= '0' && text[colon + 7] <= '7';
}

std::vector<std::string> PciPathToRoot(const std::string& sys_root, const std::string& address) {
  std::vector<std::string> path;
  if (!IsPciAddress(address)) return path;
  path.push_back(address);
  char target[4096];
  const ssize_t n = readlink(Folder(sys_root, address).c_str(), target, sizeof target);
  if (n <= 0) return path;
  std::string text(target, static_cast<size_t>(n));
  size_t end = text.rfind('/');
  // From the right, as long as the components are functions.
  if (end == std::string::npos || text.substr(end + 1) != address) return path;
  while (end != std::string::npos && end > 0 && path.size() < kMaxDepth) {
    const size_t slash = text.rfind('/', end - 1);
    const size_t begin = slash == std::string::npos ? 0 : slash + 1;
    std::string component = text.substr(begin, end - begin);
    if (!IsPciAddress(component)) break;
    path.push_back(std::move(component));
    end = slash;
  }
  return path;
}

std::optional<double> ParseLinkSpeed(const std::string& text) {
  const auto value = ParseQuantity(text, " GT/s");
  if (!value || *value <= 0 || *value > 1024) return std::nullopt;
  return value;
}

std::optional<uint32_t> ParseLinkWidth(const std::string& text) {
  const auto value = ParseNumber(text);
  if (!value || *value < 1 || *value > 32) return std::nullopt;
  return static_cast<uint32_t>(*value);
}

PciConfig ParsePciConfig(const std::string& bytes) {
  PciConfig config;
  if (bytes.size() < 4) return config;
  if (Word(bytes, 0) == 0xffff) {
    config.unreachable = true;
    return config;
  }
  // Status bit 4: there is a list of capabilities, which begins at byte 0x34.
  if (bytes.size() < 256 || (Word(bytes, 6) & 0x10) == 0) return config;
  size_t at = static_cast<uint8_t>(bytes[0x34]) & ~3u;
  bool express = false;
  for (int hops = 0; hops < 48 && at >= 0x40 && at + 10 <= 256; ++hops) {
    const uint8_t id = static_cast<uint8_t>(bytes[at]);
    if (id == 0xff) break;
    if (id == 0x10) {  // PCI Express
      express = true;
      switch (Word(bytes, at + 2) >> 4 & 0xf) {
        case 0: config.port = PciPort::kEndpoint; break;
        case 1: config.port = PciPort::kLegacyEndpoint; break;
        case 4: config.port = PciPort::kRootPort; break;
        case 5: config.port = PciPort::kUpstream; break;
        case 6: config.port = PciPort::kDownstream; break;
        default: config.port = PciPort::kOther; break;
      }
      const uint32_t control = Word(bytes, at + 8);  // Device Control
      config.relaxed_ordering = (control >> 4 & 1) != 0;
      const uint32_t size = control >> 12 & 7;
      if (size <= 5) config.max_read_request = 128u << size;
      break;
    }
    at = static_cast<uint8_t>(bytes[at + 1]) & ~3u;
  }
  if (!express || bytes.size() < 4096) return config;
  // Extended capabilities: 16 bits id, 4 bits version, 12 bits next.
  config.acs_redirect = false;
  at = 0x100;
  for (int hops = 0; hops < 1024 && at >= 0x100 && at + 8 <= 4096; ++hops) {
    const uint32_t low = Word(bytes, at), high = Word(bytes, at + 2);
    if (low == 0xffff) break;
    if (low == 0x000d) {  // Access Control Services
      // Control bit 2: P2P Request Redirect, bit 3: P2P Completion Redirect.
      config.acs_redirect = (Word(bytes, at + 6) & 0x0c) != 0;
      break;
    }
    const size_t next = high >> 4 & ~3u;
    if (next == 0) break;
    at = next;
  }
  return config;
}

std::optional<uint64_t> ParseAerTotal(const std::string& text) {
  uint64_t sum = 0;
  bool any = false;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const size_t space = line.rfind(' ');
    if (space == std::string::npos || space == 0) return std::nullopt;
    const auto value = ParseNumber(line.substr(space + 1));
    if (!value) return std::nullopt;
    if (line.rfind("TOTAL_", 0) == 0) return value;
    sum += *value;
    any = true;
  }
  if (!any) return std::nullopt;
  return sum;
}

std::optional<PciFunction> ReadPciFunction(const std::string& sys_root,
                                           const std::string& address) {
  if (!IsPciAddress(address)) return std::nullopt;
  const std::string folder = Folder(sys_root, address);
  if (access(folder.c_str(), F_OK) != 0) return std::nullopt;
  PciFunction function;
  function.address = address;
  const auto small = [&](const char* name) {
    return static_cast<uint32_t>(ReadNumber(folder + "/" + name).value_or(0));
  };
  function.class_code = small("class");
  function.vendor = small("vendor");
  function.device = small("device");
  function.driver = LinkName(folder + "/driver");
  if (const auto node = ReadNumber(folder + "/numa_node"); node && *node < 1 << 16) {
    function.numa_node = static_cast<int32_t>(*node);
  }
  if (const auto config = ReadSmallFile(folder + "/config", 4096)) {
    function.config = ParsePciConfig(*config);
    function.config_bytes = config->size();
  }
  if (!function.config.unreachable) {
    function.max_speed_gts = ReadSpeed(folder + "/max_link_speed");
    function.max_width = ReadWidth(folder + "/max_link_width");
  }
  ReadMoving(folder, function);
  return function;
}

bool RefreshPciFunction(const std::string& sys_root, PciFunction& function) {
  if (!IsPciAddress(function.address)) return false;
  const std::string folder = Folder(sys_root, function.address);
  if (access(folder.c_str(), F_OK) != 0) return false;
  if (const auto config = ReadSmallFile(folder + "/config", 4)) {
    function.config.unreachable = ParsePciConfig(*config).unreachable;
  }
  ReadMoving(folder, function);
  return true;
}

bool IsGpuClass(uint32_t class_code) { return class_code >> 16 == 0x03; }
bool IsNicClass(uint32_t class_code) { return class_code >> 16 == 0x02; }
bool IsBridgeClass(uint32_t class_code) { return class_code >> 8 == 0x0604; }

std::optional<std::string> ReadIommuMode(const std::string& sys_root,
                                         const std::vector<std::string>& addresses) {
  const auto units = ListFolder(sys_root + "/class/iommu");
  if (!units) return std::nullopt;
  if (units->empty()) return "off";
  bool known = false;
  for (const std::string& address : addresses) {
    if (!IsPciAddress(address)) continue;
    const auto type = ReadFirstLine(Folder(sys_root, address) + "/iommu_group/type");
    if (!type) continue;
    if (type->rfind("DMA", 0) == 0) return "translated";  // "DMA", "DMA-FQ"
    if (*type == "identity") known = true;
  }
  if (known) return "passthrough";
  return std::nullopt;
}

std::optional<bool> ReadPeerMemoryModule(const std::string& sys_root) {
  const Presence old = PresenceOf(sys_root + "/module", "nv_peer_mem");
  const Presence now = PresenceOf(sys_root + "/module", "nvidia_peermem");
  if (old == Presence::kPresent || now == Presence::kPresent) return true;
  if (old == Presence::kUnknown || now == Presence::kUnknown) return std::nullopt;
  return false;
}

}  // namespace mycroft
