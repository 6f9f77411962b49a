// SPDX-License-Identifier: Apache-2.0
//
// For tests only: the hardware of a HandMadeJob, as probes and pollers would have
// sampled it. Each rank has a GPU and a NIC, two ranks share a switch:
//
//   root port -- switch (up) --+-- down --- GPU of rank 0
//                              +-- down --- NIC of rank 0, port mlx5_0/1
//                              +-- down --- GPU of rank 1 ...
//
// and a queue pair to the next rank of the ring, one from the previous, and the
// flush loop. Nothing happens by itself but Move(); the test changes the samples.
// Once a second what has changed goes into the snapshots, as in a live agent.
// Not thread-safe.
#ifndef MYCROFT_USERSPACE_DECODE_TESTING_HAND_MADE_HARDWARE_H_
#define MYCROFT_USERSPACE_DECODE_TESTING_HAND_MADE_HARDWARE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "userspace/decode/testing/hand_made_job.h"

namespace mycroft {

class HandMadeHardware {
 public:
  HandMadeHardware(HandMadeJob* job, int ranks_per_host, bool deep = true);

  enum Place { kGpu, kNic, kAboveGpu, kAboveNic, kSwitch, kRoot };
  PciSample& Pci(int rank, Place place);
  std::string Address(int rank, Place place) const;
  NicPortSample& Port(int rank);
  ProcessHardware& Process(int rank);  // without queue pairs
  MrSample& Mr(int rank);
  // What the driver says of its GPU; a healthy one at work when it is asked for first.
  // Hosts of which no test asks have no NVML.
  GpuSample& Gpu(int rank);
  // What its GPU board says; a rank of which no test asks has none.
  GpuWorkSample& GpuWork(int rank);
  ThreadDelaySample& Delay(int rank, bool proxy);
  // The end at `rank` of the connection that carries data from `from` to `to`.
  QpSample& Qp(int rank, int from, int to);
  QpSample& Connect(int from, int to);  // makes one; gives the sending end
  HardwareSample& Host(int rank);       // iommu, peer_memory_module, probes
  void Event(int rank, HardwareEvent event);
  uint32_t ProxyTid(int rank) const { return 5000 + static_cast<uint32_t>(rank); }
  uint32_t MainTid(int rank) const { return 1000 + static_cast<uint32_t>(rank); }
  // Where no probe is attached: neither queue pairs nor anything else of that host.
  void Hide(int rank);

  // Every connection and port moves that much per rank since the last call.
  void Move(double gbytes);

  // Job and hardware as the agents saw them.
  std::vector<Snapshot> Take();

 private:
  struct HostState {
    std::map<std::string, PciSample> pci, sent_pci;
    std::map<std::string, NicPortSample> ports, sent_ports;
    std::map<std::string, GpuSample> gpus, sent_gpus;
    std::vector<HardwareEvent> events;
    HardwareSample sample, sent_sample;
    uint64_t last_ns = 0;
    bool hidden = false;
  };
  struct RankState {
    ProcessHardware process, sent;
    std::map<uint32_t, QpSample> qps, sent_qps;
    std::map<std::pair<int, int>, uint32_t> ends;  // (from, to) to the number here
    uint32_t next_number = 0;
    std::optional<GpuWorkSample> gpu_work, sent_gpu_work;
  };
  int HostOf(int rank) const { return rank / per_host_; }
  std::string Device(int rank) const;
  QpSample& AddQp(int rank, int from, int to);

  HandMadeJob* job_;
  int per_host_;
  bool deep_;
  std::vector<HostState> hosts_;
  std::vector<RankState> ranks_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_TESTING_HAND_MADE_HARDWARE_H_
