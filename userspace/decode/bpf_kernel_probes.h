// SPDX-License-Identifier: Apache-2.0
//
// KernelProbes by eBPF: loads all probes, has them watch the processes of the live source,
// and puts what they count into samples.
//
//   auto probes = BpfKernelProbes::Create({});
//   LiveOptions options;
//   options.probes = probes->get();      // the probes must outlive the source
//
// Not thread-safe, as KernelProbes says. Owns the ProbeSet: destroying it detaches all.
#ifndef MYCROFT_USERSPACE_DECODE_BPF_KERNEL_PROBES_H_
#define MYCROFT_USERSPACE_DECODE_BPF_KERNEL_PROBES_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "userspace/decode/kernel_probes.h"
#include "userspace/source/probes/host.h"
#include "userspace/source/probes/pcie.h"
#include "userspace/source/probes/probe_set.h"
#include "userspace/source/probes/verbs_probes.h"

namespace mycroft {

class BpfKernelProbes final : public KernelProbes {
 public:
  // As ProbeSet::Create: without rights it is there, and its probes say what is missing.
  static absl::StatusOr<std::unique_ptr<BpfKernelProbes>> Create(const ProbeSet::Options& options);
  ~BpfKernelProbes() override;

  void Watch(const std::vector<WatchedProcess>& processes,
             const std::vector<std::string>& pci_addresses) override;
  // Reads the ring buffer, too. Failed registrations of memory are no events: MrSample.
  KernelReadings Collect(uint64_t now_ns) override;
  // verbs.completions and verbs.post_failures of the processes, host.sleep_stack of their
  // watched threads. What cannot be armed says so in its row.
  void ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) override;

  // For the cost of probes, --strict and giving up rights.
  ProbeSet& set() { return *set_; }

 private:
  explicit BpfKernelProbes(std::unique_ptr<ProbeSet> set);
  void ReadRecords();
  void TakeEvents(KernelReadings* out);
  // What the probes cannot know: the other ends of connections made before they were
  // attached, and errors that come without an event while completions are not watched.
  void AskKernel(uint64_t now_ns, KernelReadings* out);

  std::unique_ptr<ProbeSet> set_;  // outlives those that use it
  VerbsProbes verbs_;
  HostProbes host_;
  PcieProbes pcie_;
  std::map<uint32_t, ProcessKey> watched_;                    // by pid
  std::map<uint32_t, std::vector<uint32_t>> threads_;         // by pid
  std::map<uint32_t, ProcessKey> gone_;                       // of the last Watch, for last rows
  std::set<uint32_t> armed_;                                  // pids
  using QpKey = std::tuple<std::string, uint32_t, uint64_t>;  // device, number, created
  struct KernelQp {
    uint32_t port = 0, remote_number = 0;
    uint64_t error_ns = 0;  // 0: not in error
  };
  std::map<QpKey, KernelQp> kernel_qps_;
  uint64_t asked_ns_ = 0;
};

// One row of a probe as a sample.
ProbeSample ProbeSampleOf(const ProbeRow& row);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_BPF_KERNEL_PROBES_H_
