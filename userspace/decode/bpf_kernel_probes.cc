// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/bpf_kernel_probes.h"

#include <algorithm>
#include <utility>

#include "userspace/source/rdma_resources.h"

namespace mycroft {
namespace {

constexpr uint64_t kAskAgainNs = 10'000'000'000;

QpSample QpSampleOf(const VerbsQp& qp) {
  static_assert(int{kQpOperationCount} == int{MC_QP_OPERATIONS});
  QpSample out;
  out.device = qp.device;
  out.port = qp.port;
  out.number = qp.number;
  out.created_ns = qp.created_ns;
  out.destroyed = qp.destroyed;
  out.state =
      static_cast<QpState>(std::min<uint32_t>(qp.state, static_cast<uint32_t>(QpState::kUnknown)));
  out.state_ns = qp.state_ns;
  out.remote_number = qp.remote_number;
  out.remote_gid = qp.remote_gid;
  out.gid_index = qp.gid_index;
  out.path_mtu = qp.path_mtu;
  out.timeout = qp.timeout;
  out.retry_count = qp.retry_count;
  out.rnr_retry = qp.rnr_retry;
  out.min_rnr_timer = qp.min_rnr_timer;
  std::copy(qp.posts.begin(), qp.posts.end(), out.posts.begin());
  out.bytes = qp.bytes;
  out.receives = qp.receives;
  out.post_failures = qp.post_failures;
  out.last_post_ns = qp.last_post_ns;
  out.last_receive_ns = qp.last_receive_ns;
  out.post_tid = qp.post_tid;
  out.completions_seen = qp.completions_seen;
  out.completions = qp.completions;
  out.failed_completions = qp.failed_completions;
  out.receive_completions = qp.receive_completions;
  out.last_completion_ns = qp.last_completion_ns;
  out.latency_sum_ns = qp.latency_sum_ns;
  out.latency_max_ns = qp.latency_max_ns;
  out.first_bad_status = qp.first_bad_status;
  out.first_bad_vendor = qp.first_bad_vendor;
  out.first_bad_ns = qp.first_bad_ns;
  return out;
}

MrSample MrSampleOf(const VerbsMr& mr) {
  MrSample out;
  out.device = mr.device;
  out.registrations = mr.registrations;
  out.dmabuf = mr.dmabuf;
  out.relaxed_ordering = mr.relaxed_ordering;
  out.bytes = mr.bytes;
  out.ns = mr.ns;
  out.failures = mr.failures;
  out.last_errno = mr.last_errno;
  out.last_failure_bytes = mr.last_failure_bytes;
  out.last_failure_ns = mr.last_failure_ns;
  return out;
}

ThreadDelaySample DelaySampleOf(const ThreadDelayRow& row) {
  ThreadDelaySample out;
  out.tid = row.tid;
  out.runq_ns = row.runq_ns;
  out.runq_max_ns = row.runq_max_ns;
  out.runq_count = row.runq_count;
  out.off_cpu_ns = row.off_cpu_ns;
  out.blocked_ns = row.blocked_ns;
  out.stack = row.stack;
  return out;
}

HardwareEvent EventOf(const HostEvent& event) {
  HardwareEvent out;
  out.t_ns = event.t_ns;
  out.pid = event.pid;
  out.number = event.number;
  out.text = event.text;
  switch (event.kind) {
    case HostEventKind::kExit:
      out.kind = HardwareEventKind::kProcessExit;
      out.severity = event.number == 0 ? Severity::kInfo : Severity::kFatal;
      break;
    case HostEventKind::kOomKill:
      out.kind = HardwareEventKind::kOomKill;
      out.severity = Severity::kFatal;
      break;
    case HostEventKind::kRetransmit:
      out.kind = HardwareEventKind::kTcpRetransmit;
      out.severity = Severity::kCorrected;
      break;
  }
  return out;
}

// Numbers of enum ibv_event_type.
constexpr uint32_t kQpFatal = 1, kQpAccessError = 3, kPortActive = 9, kPortError = 10;

HardwareEvent EventOf(const PcieEvent& event) {
  HardwareEvent out;
  out.t_ns = event.t_ns;
  out.device = event.device;
  out.number = event.number;
  out.text = event.text;
  switch (event.severity) {
    case PcieSeverity::kInfo:
      out.severity = Severity::kInfo;
      break;
    case PcieSeverity::kCorrected:
      out.severity = Severity::kCorrected;
      break;
    case PcieSeverity::kNonFatal:
      out.severity = Severity::kNonFatal;
      break;
    case PcieSeverity::kFatal:
      out.severity = Severity::kFatal;
      break;
  }
  switch (event.kind) {
    case PcieEventKind::kAer:
    case PcieEventKind::kRecovery:
      out.kind = HardwareEventKind::kAer;
      break;
    case PcieEventKind::kRemoved:
      out.kind = HardwareEventKind::kPciRemoved;
      break;
    case PcieEventKind::kIommuFault:
      out.kind = HardwareEventKind::kIommuFault;
      break;
    case PcieEventKind::kDmaFailure:
      out.kind = HardwareEventKind::kDmaFailure;
      break;
    case PcieEventKind::kRdmaPort:
      out.kind = event.code == kPortActive || event.code == kPortError
                     ? HardwareEventKind::kPortState
                     : HardwareEventKind::kAsyncEvent;
      break;
    case PcieEventKind::kRdmaQp:
      out.kind = event.code >= kQpFatal && event.code <= kQpAccessError
                     ? HardwareEventKind::kQpError
                     : HardwareEventKind::kAsyncEvent;
      break;
  }
  return out;
}

}  // namespace

ProbeSample ProbeSampleOf(const ProbeRow& row) {
  ProbeSample out;
  out.name = row.name;
  out.question = row.question;
  out.level = row.level == ProbeRunLevel::kDeep ? ProbeLevel::kDeep : ProbeLevel::kAlways;
  out.armed = row.armed;
  out.attached = row.attached;
  out.problem = row.problem;
  // Nothing to attach to yet is no lack.
  if (row.method == ProbeMethod::kUprobe && out.attached.empty() && out.problem.empty()) {
    out.attached = "uprobe, once a watched process opens an RDMA device";
  }
  out.lost = row.lost;
  out.cost_ns = row.cost_ns;
  out.hits = row.hits;
  out.dropped = row.dropped;
  return out;
}

BpfKernelProbes::BpfKernelProbes(std::unique_ptr<ProbeSet> set)
    : set_(std::move(set)), verbs_(set_.get()), host_(set_.get()), pcie_(set_.get()) {}

BpfKernelProbes::~BpfKernelProbes() = default;

absl::StatusOr<std::unique_ptr<BpfKernelProbes>> BpfKernelProbes::Create(
    const ProbeSet::Options& options) {
  absl::StatusOr<std::unique_ptr<ProbeSet>> set = ProbeSet::Create(options);
  if (!set.ok()) return set.status();
  return std::unique_ptr<BpfKernelProbes>(new BpfKernelProbes(*std::move(set)));
}

void BpfKernelProbes::Watch(const std::vector<WatchedProcess>& processes,
                            const std::vector<std::string>& pci_addresses) {
  std::map<uint32_t, ProcessKey> now;
  std::vector<HostWatch> host;
  threads_.clear();
  for (const WatchedProcess& process : processes) {
    const uint32_t pid = process.key.pid;
    if (pid == 0) continue;
    now[pid] = process.key;
    host.push_back({.pid = pid, .start_time = process.key.start_time, .tids = process.tids});
    std::vector<uint32_t>& tids = threads_[pid];
    tids = process.tids;
    tids.push_back(pid);
  }
  gone_.clear();
  for (const auto& [pid, key] : watched_) {
    const auto still = now.find(pid);
    if (still != now.end() && still->second == key) continue;
    gone_.emplace(pid, key);
    verbs_.RemoveProcess(pid);
    armed_.erase(pid);
  }
  for (const auto& [pid, key] : now) {
    if (watched_.count(pid) == 0 || gone_.count(pid) != 0) verbs_.AddProcess(pid);
  }
  watched_ = std::move(now);
  host_.Watch(host);
  pcie_.Watch(pci_addresses);
}

void BpfKernelProbes::ReadRecords() {
  set_->ReadEvents([this](const mc_event& header, std::span<const std::byte> record) {
    if (!host_.TakeRecord(header, record) && !pcie_.TakeRecord(header, record))
      verbs_.OnEvent(header, record);
  });
}

void BpfKernelProbes::TakeEvents(KernelReadings* out) {
  for (const HostEvent& event : host_.TakeEvents()) out->events.push_back(EventOf(event));
  for (const PcieEvent& event : pcie_.TakeEvents()) out->events.push_back(EventOf(event));
  for (VerbsEvent& event : verbs_.TakeEvents()) {
    if (event.kind == VerbsEvent::Kind::kMrFailure) continue;
    HardwareEvent e;
    e.t_ns = event.t_ns;
    const bool qp = event.kind == VerbsEvent::Kind::kQpError;
    e.kind = qp ? HardwareEventKind::kQpError : HardwareEventKind::kAsyncEvent;
    if (!qp && (event.value == kPortActive || event.value == kPortError))
      e.kind = HardwareEventKind::kPortState;
    e.severity = qp || event.value == kPortError ? Severity::kFatal : Severity::kInfo;
    e.device = std::move(event.device);
    e.pid = event.pid;
    e.number = event.number != 0 ? event.number : event.port;
    e.text = std::move(event.text);
    out->events.push_back(std::move(e));
  }
  std::stable_sort(out->events.begin(), out->events.end(),
                   [](const HardwareEvent& a, const HardwareEvent& b) { return a.t_ns < b.t_ns; });
}

void BpfKernelProbes::AskKernel(uint64_t now_ns, KernelReadings* out) {
  bool unknown = false, fresh = false;
  for (const auto& [key, rows] : out->processes) {
    for (const QpSample& qp : rows.qps) {
      if (qp.remote_number != 0 || qp.destroyed) continue;
      unknown = true;
      fresh |= kernel_qps_.count({qp.device, qp.number, qp.created_ns}) == 0;
    }
  }
  const bool suspicion = !armed_.empty();
  if (suspicion || fresh || (unknown && now_ns >= asked_ns_ + kAskAgainNs)) {
    asked_ns_ = now_ns;
    std::map<std::tuple<uint32_t, std::string, uint32_t>, RdmaQueuePair> told;
    for (RdmaQueuePair& qp : ReadRdmaQueuePairs().value_or(std::vector<RdmaQueuePair>())) {
      told[{qp.pid, qp.device, qp.number}] = std::move(qp);
    }
    std::map<QpKey, KernelQp> now;
    for (const auto& [key, rows] : out->processes) {
      for (const QpSample& qp : rows.qps) {
        const auto found = told.find({key.pid, qp.device, qp.number});
        if (qp.destroyed) continue;
        const QpKey place{qp.device, qp.number, qp.created_ns};
        const auto before = kernel_qps_.find(place);
        KernelQp& known = now[place];
        if (before != kernel_qps_.end()) known = before->second;
        if (found == told.end()) continue;
        known.port = found->second.port;
        known.remote_number = found->second.remote_number;
        const bool error = found->second.state == static_cast<uint32_t>(QpState::kError) ||
                           found->second.state == static_cast<uint32_t>(QpState::kSqError);
        if (!error) known.error_ns = 0;
        if (error && known.error_ns == 0) known.error_ns = now_ns;
      }
    }
    kernel_qps_ = std::move(now);
  }
  for (auto& [key, rows] : out->processes) {
    for (QpSample& qp : rows.qps) {
      const auto known = kernel_qps_.find({qp.device, qp.number, qp.created_ns});
      if (known == kernel_qps_.end()) continue;
      if (qp.port == 0) qp.port = known->second.port;
      if (qp.remote_number == 0) qp.remote_number = known->second.remote_number;
      // Set up again since: what the process says is newer.
      if (known->second.error_ns > qp.state_ns && qp.state != QpState::kError &&
          qp.state != QpState::kSqError) {
        qp.state = QpState::kError;
        qp.state_ns = known->second.error_ns;
      }
    }
  }
}

KernelReadings BpfKernelProbes::Collect(uint64_t now_ns) {
  KernelReadings out;
  ReadRecords();
  verbs_.Tick(now_ns);
  set_->Tick(now_ns);
  for (const auto& [pid, key] : watched_) out.processes[key];
  const auto rows_of = [&](uint32_t pid) -> KernelProcessRows* {
    auto known = watched_.find(pid);
    if (known == watched_.end()) {
      known = gone_.find(pid);
      if (known == gone_.end()) return nullptr;
    }
    return &out.processes[known->second];
  };
  for (const VerbsProcess& process : verbs_.Read()) {
    KernelProcessRows* rows = rows_of(process.pid);
    if (rows == nullptr) continue;
    for (const VerbsQp& qp : process.qps) rows->qps.push_back(QpSampleOf(qp));
    for (const VerbsMr& mr : process.mrs) rows->mrs.push_back(MrSampleOf(mr));
  }
  AskKernel(now_ns, &out);
  for (const ThreadDelayRow& row : host_.Threads(now_ns))
    if (KernelProcessRows* rows = rows_of(row.pid)) rows->delays.push_back(DelaySampleOf(row));
  for (const ProcessHostRow& row : host_.Processes()) {
    KernelProcessRows* rows = rows_of(row.pid);
    if (rows == nullptr) continue;
    rows->direct_reclaims = row.reclaims;
    rows->direct_reclaim_ns = row.reclaim_ns;
    rows->tcp_retransmits = row.retransmits;
  }
  for (const PcieDeviceRow& row : pcie_.Devices()) {
    KernelDeviceRows& device = out.devices[row.address];
    device.dma_maps = row.dma_maps;
    device.dma_bytes = row.dma_bytes;
    device.dma_ns = row.dma_ns;
    device.dma_failures = row.dma_failures;
    device.interrupts = row.interrupts;
    device.interrupt_ns = row.interrupt_ns;
  }
  TakeEvents(&out);
  for (const ProbeRow& row : set_->Rows()) {
    out.lost_events += row.dropped;
    out.probes.push_back(ProbeSampleOf(row));
  }
  out.lost_events += set_->malformed_events() + host_.malformed_records() +
                     pcie_.malformed_records() + verbs_.lost_events();
  return out;
}

void BpfKernelProbes::ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) {
  std::set<uint32_t> pids;
  std::vector<uint64_t> targets;
  std::vector<uint32_t> tids;
  for (const ProcessKey& key : processes) {
    const auto known = watched_.find(key.pid);
    if (known == watched_.end() || known->second != key || !pids.insert(key.pid).second) continue;
    targets.push_back(key.pid);
    const std::vector<uint32_t>& threads = threads_[key.pid];
    tids.insert(tids.end(), threads.begin(), threads.end());
  }
  const bool dropped = !std::includes(pids.begin(), pids.end(), armed_.begin(), armed_.end());
  armed_ = pids;
  for (const char* probe : {"verbs.completions", "verbs.post_failures"}) {
    if (dropped || targets.empty()) set_->Disarm(probe);
    // Each for itself: a process without RDMA does not keep the others from it.
    for (const uint64_t& pid : targets) set_->Arm(probe, {&pid, 1}, until_ns).IgnoreError();
  }
  host_.ArmStacks(tids, until_ns).IgnoreError();
}

}  // namespace mycroft
