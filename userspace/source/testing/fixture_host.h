// SPDX-License-Identifier: Apache-2.0
//
// For tests: a host made of files, in a folder that goes with the object. sys() and
// proc() are roots for the readers. Only what a test writes is there. Helpers write
// the files as the kernel does (6.1 and later; NVIDIA driver 550).
#ifndef MYCROFT_USERSPACE_SOURCE_TESTING_FIXTURE_HOST_H_
#define MYCROFT_USERSPACE_SOURCE_TESTING_FIXTURE_HOST_H_

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace mycroft {

class FixtureHost {
 public:
  FixtureHost() {
    char name[] = "/tmp/mycroft-host-XXXXXX";
    if (::mkdtemp(name) == nullptr) ::abort();
    root_ = name;
    std::filesystem::create_directories(root_ + "/sys/bus/pci/devices");
    std::filesystem::create_directories(root_ + "/sys/class/iommu");
    std::filesystem::create_directories(root_ + "/sys/module");
    std::filesystem::create_directories(root_ + "/proc");
  }
  ~FixtureHost() {
    std::error_code error;
    std::filesystem::remove_all(root_, error);
  }
  FixtureHost(const FixtureHost&) = delete;
  FixtureHost& operator=(const FixtureHost&) = delete;

  const std::string& root() const { return root_; }
  std::string sys() const { return root_ + "/sys"; }
  std::string proc() const { return root_ + "/proc"; }

  // `name` below the root: "sys/bus/...".
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    // No reader sees half of it.
    const std::string fresh = path.string() + ".new";
    std::ofstream(fresh, std::ios::binary | std::ios::trunc) << text;
    std::filesystem::rename(fresh, path);
  }
  void Link(const std::string& name, const std::string& target) const {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::remove(path);
    std::filesystem::create_symlink(target, path);
  }
  void Remove(const std::string& name) const {
    std::filesystem::remove_all(root_ + "/" + name);
  }

  // Configuration space of a PCI Express function: 4096 bytes with the PCI Express
  // capability at 0x60 behind another one, and ACS at 0x148 behind AER.
  static std::string Config(uint16_t vendor, uint16_t device, int port_type, int max_read_code,
                            bool relaxed, bool acs_redirect) {
    std::string c(4096, '\0');
    const auto word = [&c](size_t at, uint32_t value) {
      c[at] = static_cast<char>(value & 0xff);
      c[at + 1] = static_cast<char>(value >> 8 & 0xff);
    };
    word(0, vendor), word(2, device);
    word(6, 0x10);  // there are capabilities
    c[0x34] = 0x40;
    word(0x40, 0x6001);  // power management, next at 0x60
    word(0x60, 0x0010);  // PCI Express, the last
    word(0x62, static_cast<uint32_t>(port_type << 4 | 2));
    word(0x68, static_cast<uint32_t>(max_read_code << 12 | (relaxed ? 1 << 4 : 0)));
    word(0x100, 0x0001), word(0x102, 0x148 << 4 | 1);  // AER, next at 0x148
    word(0x148, 0x000d), word(0x14a, 1);               // ACS, the last
    word(0x14e, acs_redirect ? 0x1d : 0x01);
    return c;
  }

  // A function at the end of `chain` (addresses from the root port down, itself last),
  // with its link in both directions of time: current and maximum.
  void AddPci(const std::vector<std::string>& chain, const std::string& pci_class,
              const std::string& speed, const std::string& width, const std::string& max_speed,
              const std::string& max_width, const std::string& config = "",
              const std::string& driver = "") const {
    const std::string& address = chain.back();
    std::string folder = "devices/pci" + chain.front().substr(0, 7);
    for (const std::string& hop : chain) folder += "/" + hop;
    Link("sys/bus/pci/devices/" + address, "../../../" + folder);
    const std::string at = "sys/" + folder + "/";
    Write(at + "class", pci_class + "\n");
    Write(at + "vendor", "0x10de\n");
    Write(at + "device", "0x2330\n");
    Write(at + "numa_node", "1\n");
    Write(at + "current_link_speed", speed + "\n");
    Write(at + "current_link_width", width + "\n");
    Write(at + "max_link_speed", max_speed + "\n");
    Write(at + "max_link_width", max_width + "\n");
    Write(at + "config", config.empty() ? std::string("\xde\x10\x30\x23", 4) + std::string(60, '\0')
                                        : config);
    SetAer(address, 0, 0, 0);
    if (!driver.empty()) Link(at + "driver", "../../../../bus/pci/drivers/" + driver);
  }
  // Where a function's files are, below the root.
  std::string PciFolder(const std::string& address) const {
    return "sys/bus/pci/devices/" + address + "/";
  }
  void SetAer(const std::string& address, uint64_t correctable, uint64_t nonfatal,
              uint64_t fatal) const {
    const std::string at = PciFolder(address) + "aer_dev_";
    const auto n = [](uint64_t value) { return std::to_string(value) + "\n"; };
    Write(at + "correctable", "RxErr " + n(correctable) + "BadTLP 0\nTOTAL_ERR_COR " +
                                  n(correctable));
    Write(at + "nonfatal", "Undefined 0\nUnsupReq " + n(nonfatal) + "TOTAL_ERR_NONFATAL " +
                               n(nonfatal));
    Write(at + "fatal", "Undefined 0\nDLP " + n(fatal) + "TOTAL_ERR_FATAL " + n(fatal));
  }
  // Takes a function away as a removal does.
  void RemovePci(const std::string& address) const {
    const std::filesystem::path link = root_ + "/sys/bus/pci/devices/" + address;
    std::error_code error;
    const auto target = std::filesystem::canonical(link, error);
    if (!error) std::filesystem::remove_all(target);
    std::filesystem::remove(link);
  }

  // An NVIDIA GPU in /proc/driver/nvidia.
  void AddNvidia(uint32_t minor, const std::string& address) const {
    Write("proc/driver/nvidia/gpus/" + address + "/information",
          "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 321\nGPU UUID: \t GPU-x\n"
          "Bus Type: \t PCIe\nBus Location: \t " + address + "\nDevice Minor: \t " +
              std::to_string(minor) + "\nGPU Excluded:\t No\n");
  }

  // An RDMA device with one port. `pci`: its function; empty: a software device.
  void AddRdma(const std::string& device, const std::string& uverbs, const std::string& pci,
               const std::string& netdev) const {
    Write("sys/class/infiniband_verbs/" + uverbs + "/ibdev", device + "\n");
    const std::string at = "sys/class/infiniband/" + device + "/";
    if (!pci.empty()) Link(at + "device", "../../../" + pci);
    const std::string port = at + "ports/1/";
    Write(port + "state", "4: ACTIVE\n");
    Write(port + "phys_state", "5: LinkUp\n");
    Write(port + "rate", "400 Gb/sec (4X NDR)\n");
    Write(port + "gids/0", "fe80:0000:0000:0000:0a09:00ff:fe00:0001\n");
    Write(port + "gids/1", "0000:0000:0000:0000:0000:ffff:0a09:0001\n");
    Write(port + "gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    Write(port + "gid_attrs/types/0", "IB/RoCE v1\n");
    Write(port + "gid_attrs/types/1", "RoCE v2\n");
    Write(port + "gid_attrs/ndevs/0", netdev + "\n");
    Write(port + "counters/link_downed", "0\n");
    Write(port + "counters/port_xmit_data", "1000\n");
    Write(port + "hw_counters/rnr_nak_retry_err", "0\n");
    Write(port + "hw_counters/lifespan", "10\n");
    Write("sys/class/net/" + netdev + "/mtu", "9000\n");
  }

  // A process without devices; fd N is what the N-th of `fds` points to.
  void AddProcess(uint32_t pid, const std::vector<std::string>& fds) const {
    const std::string at = "proc/" + std::to_string(pid) + "/";
    Write(at + "stat", std::to_string(pid) +
                           " (python3) S 1 1 1 0 -1 0 0 0 3 0 0 0 0 0 20 0 1 0 777 0 0\n");
    Write(at + "status", "Name:\tpython3\nVmLck:\t    1024 kB\nVmPin:\t    2048 kB\nNSpid:\t" +
                             std::to_string(pid) + "\n");
    Write(at + "limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max processes             95991                95991                processes \n"
          "Max locked memory         8388608              8388608              bytes     \n"
          "Max address space         unlimited            unlimited            bytes     \n");
    Write(at + "mountinfo",
          "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n"
          "24 22 0:5 / /dev rw - devtmpfs devtmpfs rw\n"
          "26 24 0:25 / /dev/shm rw - tmpfs tmpfs rw\n");
    std::filesystem::create_directories(root_ + "/" + at + "root/dev/shm");
    Write(at + "cgroup", "0::/job/" + std::to_string(pid) + "\n");
    const std::string cgroup = "sys/fs/cgroup/job/" + std::to_string(pid) + "/";
    Write(cgroup + "memory.events", "low 0\nhigh 3\nmax 4\noom 0\noom_kill 0\n");
    Write(cgroup + "memory.pressure",
          "some avg10=0.00 avg60=0.00 avg300=0.00 total=5000\n"
          "full avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n");
    std::filesystem::create_directories(root_ + "/" + at + "fd");
    for (size_t i = 0; i < fds.size(); ++i) Link(at + "fd/" + std::to_string(i), fds[i]);
  }

 private:
  std::string root_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_TESTING_FIXTURE_HOST_H_
