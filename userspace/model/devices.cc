// SPDX-License-Identifier: Apache-2.0
#include "userspace/model/devices.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "userspace/model/hardware.h"

namespace mycroft {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

HopView ViewHop(const PciDevice& device) {
  HopView hop;
  hop.address = device.now.address;
  hop.kind = device.now.kind;
  hop.acs_redirect = device.now.acs_redirect.value_or(false);
  const Link now{device.now.speed_gts, device.now.width};
  if (now.known()) hop.link = ToString(now);
  if (device.best.known()) hop.best = ToString(device.best);
  hop.speed_gts = now.speed_gts.value_or(0);
  hop.width = now.width.value_or(0);
  hop.degraded = (now.speed_gts && device.best.speed_gts &&
                  *now.speed_gts < *device.best.speed_gts) ||
                 (now.width && device.best.width && *now.width < *device.best.width);
  return hop;
}

PortView ViewPort(const Port& port) {
  PortView view;
  view.device = port.now.device;
  view.port = port.now.port;
  view.state = port.now.state;
  view.phys_state = port.now.phys_state;
  view.netdev = port.now.netdev;
  view.rate_gbps = port.now.rate_gbps.value_or(0);
  view.active = port.now.state == "ACTIVE";
  return view;
}

// What the driver says is wrong now, or was since it was loaded.
void FindGpuProblems(const GpuSample& gpu, std::vector<std::string>* problems) {
  if (gpu.lost) problems->push_back("the driver has given it up as lost");
  if (gpu.silent_since_ns != 0) {
    problems->push_back(gpu.hangs ? "the driver was asked about it and does not come back"
                                  : "the driver does not come back: its values are old");
  }
  if (gpu.lost || gpu.silent_since_ns != 0) return;
  const uint64_t reasons = gpu.clock_reasons.value_or(0);
  if ((reasons & (clock_reason::kSoftwareThermal | clock_reason::kHardwareThermal)) != 0) {
    problems->push_back("thermal slowdown" +
                        (gpu.temperature_c ? " at " + std::to_string(*gpu.temperature_c) + " C"
                                           : std::string()));
  }
  if ((reasons & clock_reason::kPowerBrake) != 0) problems->push_back("power brake");
  if (gpu.ecc_uncorrected.value_or(0) > 0) {
    problems->push_back(std::to_string(*gpu.ecc_uncorrected) + " uncorrected ECC errors");
  }
  if (gpu.remap_failed.value_or(false)) {
    problems->push_back("a row of its memory could not be remapped");
  }
  if (gpu.remap_pending.value_or(false)) {
    problems->push_back("a row of its memory waits for a reset to be remapped");
  }
  // Where none is up, none is wired.
  std::string down;
  size_t up = 0;
  for (const NvlinkSample& link : gpu.nvlinks) {
    up += link.active ? 1 : 0;
    if (!link.active) down += (down.empty() ? "" : ", ") + std::to_string(link.link);
  }
  if (up > 0 && !down.empty()) problems->push_back("NVLink " + down + " is down");
}

void FindProblems(DeviceView& device) {
  const auto add = [&device](const std::string& problem) { device.problems.push_back(problem); };
  if (!device.present) add("it was there and is gone");
  if (device.present && device.unreachable) {
    add("it does not answer: its configuration space reads as all ones");
  }
  for (const HopView& hop : device.path) {
    if (hop.degraded) {
      add("the link of " + std::string(ToString(hop.kind)) + " " + hop.address + " runs at " +
          hop.link + ", both ends could do " + hop.best);
    }
  }
  // At a port of a switch; above, in the root, all traffic meets anyway.
  std::string redirect;
  for (const HopView& hop : device.path) {
    if (hop.acs_redirect && hop.kind == PciKind::kBridge) redirect += (redirect.empty() ? "" : ", ") + hop.address;
  }
  if (!redirect.empty()) {
    add("ACS redirects peer-to-peer traffic at " + redirect + " to the root");
  }
  if (device.gpu) FindGpuProblems(*device.gpu, &device.problems);
  if (device.aer_fatal > 0) add(std::to_string(device.aer_fatal) + " fatal PCIe errors");
  for (const PortView& port : device.ports) {
    if (!port.active && !port.state.empty()) {
      add("port " + std::to_string(port.port) + " of " + port.device + " is " + port.state);
    }
  }
}

DeviceView ViewDevice(const HostHardware& host, const std::string& address) {
  DeviceView view;
  view.host = host.name;
  view.address = address;
  for (const PciDevice* hop : HardwareModel::PathToRoot(host, address)) {
    if (view.path.empty()) {
      view.kind = hop->now.kind;
      view.driver = hop->now.driver;
      view.numa_node = hop->now.numa_node;
      view.present = hop->now.present;
      view.unreachable = hop->now.unreachable;
      view.aer_correctable = hop->now.aer_correctable.value_or(0);
      view.aer_nonfatal = hop->now.aer_nonfatal.value_or(0);
      view.aer_fatal = hop->now.aer_fatal.value_or(0);
    }
    view.path.push_back(ViewHop(*hop));
    const double rate = LinkBytesPerSecond(Link{hop->now.speed_gts, hop->now.width});
    if (rate > 0 && (view.bytes_per_s == 0 || rate < view.bytes_per_s)) {
      view.bytes_per_s = rate;
      view.narrowest = hop->now.address;
    }
  }
  if (const auto gpu = host.gpus.find(address); gpu != host.gpus.end()) view.gpu = gpu->second.now;
  return view;
}

}  // namespace

bool DeviceView::degraded() const {
  return std::any_of(path.begin(), path.end(), [](const HopView& hop) { return hop.degraded; });
}

std::vector<DeviceView> DevicesOf(const HostHardware& host) {
  std::map<std::string, DeviceView> devices;   // by PCI address
  std::map<std::string, DeviceView> software;  // by RDMA device
  for (const auto& [key, process] : host.processes) {
    if (process.exited_ns != 0) continue;
    const auto use = [&, &key = key](const std::string& address) -> DeviceView* {
      if (host.pci.count(address) == 0) return nullptr;
      const auto [it, added] = devices.try_emplace(address);
      if (added) it->second = ViewDevice(host, address);
      if (it->second.processes.empty() || it->second.processes.back() != key) {
        it->second.processes.push_back(key);
      }
      return &it->second;
    };
    for (const std::string& gpu : process.now.gpus) use(gpu);
    for (const std::string& name : process.now.rdma_devices) {
      for (auto it = host.ports.lower_bound({name, 0});
           it != host.ports.end() && it->first.first == name; ++it) {
        DeviceView* device = it->second.now.pci.empty() ? nullptr : use(it->second.now.pci);
        if (device == nullptr) {
          device = &software[name];
          device->host = host.name;
          device->kind = PciKind::kNic;
          if (device->processes.empty() || device->processes.back() != key) {
            device->processes.push_back(key);
          }
        }
        const PortView port = ViewPort(it->second);
        const bool known = std::any_of(
            device->ports.begin(), device->ports.end(), [&port](const PortView& other) {
              return other.device == port.device && other.port == port.port;
            });
        if (!known) device->ports.push_back(port);
      }
    }
  }
  std::vector<DeviceView> out;
  for (auto* group : {&devices, &software}) {
    for (auto& [name, device] : *group) {
      FindProblems(device);
      out.push_back(std::move(device));
    }
  }
  return out;
}

std::vector<DeviceView> DevicesOf(const HardwareModel& hardware) {
  std::vector<DeviceView> out;
  for (const auto& [name, host] : hardware.hosts()) {
    for (DeviceView& device : DevicesOf(host)) out.push_back(std::move(device));
  }
  return out;
}

const char* ToString(PciKind kind) {
  switch (kind) {
    case PciKind::kOther:
      return "device";
    case PciKind::kGpu:
      return "GPU";
    case PciKind::kNic:
      return "NIC";
    case PciKind::kBridge:
      return "bridge";
    case PciKind::kRootPort:
      return "root port";
  }
  return "device";
}

std::string DeviceName(const DeviceView& device) {
  std::string ports;
  for (const PortView& port : device.ports) {
    if (ports.find(port.device) == std::string::npos) {
      ports += (ports.empty() ? "" : ", ") + port.device;
    }
  }
  if (device.address.empty()) return ports;
  return std::string(ToString(device.kind)) + " " + device.address +
         (ports.empty() ? "" : " (" + ports + ")");
}

std::string PathText(const DeviceView& device) {
  std::string text;
  for (const HopView& hop : device.path) {
    text += (text.empty() ? "" : " > ") + hop.address;
    if (!hop.link.empty()) text += " " + hop.link;
    if (hop.degraded) text += " of " + hop.best;
  }
  return text;
}

std::string HealthText(const DeviceView& device) {
  if (!device.gpu) return "";
  const GpuSample& gpu = *device.gpu;
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  const auto of = [](uint32_t now, const std::optional<uint32_t>& most, const char* unit) {
    return std::to_string(now) + (most ? " of " + std::to_string(*most) : "") + unit;
  };
  if (gpu.sm_mhz) add(of(*gpu.sm_mhz, gpu.sm_max_mhz, " MHz"));
  if (gpu.power_w) add(of(*gpu.power_w, gpu.power_limit_w, " W"));
  if (gpu.temperature_c) add(std::to_string(*gpu.temperature_c) + " C");
  size_t up = 0;
  for (const NvlinkSample& link : gpu.nvlinks) up += link.active ? 1 : 0;
  if (!gpu.nvlinks.empty()) {
    add(of(static_cast<uint32_t>(up), static_cast<uint32_t>(gpu.nvlinks.size()), " NVLinks"));
  }
  if (!gpu.mig.empty()) add(std::to_string(gpu.mig.size()) + " MIG devices");
  return text;
}

std::string PortText(const PortView& port) {
  std::string text = "port " + std::to_string(port.port) + " " +
                     (port.state.empty() ? "state unreadable" : port.state);
  if (!port.phys_state.empty()) text += " " + port.phys_state;
  if (port.rate_gbps > 0) text += " " + Number(port.rate_gbps) + " Gb/s";
  if (!port.netdev.empty()) text += " " + port.netdev;
  return text;
}

}  // namespace mycroft
