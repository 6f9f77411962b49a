// SPDX-License-Identifier: Apache-2.0
#include "userspace/attribute/facts.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "userspace/attribute/wait_graph.h"
#include "userspace/source/xid.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kBeforeNs = 5 * kSecond;                // a cause may precede what stands still
constexpr uint64_t kBaselineNs = 120 * kSecond;            // of the counters
constexpr uint64_t kPollNs = 2 * kSecond;                  // how late a polled value may be
constexpr double kStarvedStuck = 0.5, kStarvedSlow = 0.2;  // of the time
constexpr double kStarvedExplains = 0.5;                   // of what is lost
constexpr size_t kAllWorkers = 1024;           // in larger jobs only those concerned are looked at
constexpr size_t kSiblings = 64;               // to compare a link with
constexpr double kNearCeiling = 0.7;           // of the payload rate: headers take their part
constexpr uint64_t kLowMemlock = 64ull << 20;  // less than one buffer of a communicator
constexpr uint32_t kErrNoMemory = 12;          // ENOMEM

// enum ibv_wc_status
constexpr uint32_t kLocLenErr = 1, kLocQpOpErr = 2, kLocProtErr = 4, kFlushErr = 5,
                   kRemInvReqErr = 9, kRemAccessErr = 10, kRetryExcErr = 12, kRnrRetryExcErr = 13;
constexpr uint32_t kVendorFlush = 249;  // mlx5: flushed with a vendor syndrome, an after-effect

constexpr uint32_t Bits(std::initializer_list<SuspectShape> shapes) {
  uint32_t bits = 0;
  for (SuspectShape shape : shapes) bits |= ShapeBit(shape);
  return bits;
}
using S = SuspectShape;
constexpr uint32_t kNetwork = Bits({S::kNode, S::kEdge});
constexpr uint32_t kAnyButDead =
    Bits({S::kGpu, S::kFlush, S::kNode, S::kEdge, S::kHost, S::kAbsent});

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}
bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// ---- what the counters of a port mean, by the kernel's names ------------------
// Documentation/ABI/stable/sysfs-class-infiniband; "Understanding mlx5 Linux
// Counters"; drivers/infiniband/sw/rxe/rxe_hw_counters.c.
enum class CounterMeaning {
  kNone,
  kDown,
  kPhysical,
  kLossSender,
  kLossReceiver,
  kRnrSender,
  kRnrReceiver,
  kCongestion,
  kPauseSent,
  kLocalFailure
};

CounterMeaning MeaningOf(std::string_view name) {
  if (name == "link_downed") return CounterMeaning::kDown;
  if (IsOneOf(name, {"symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors",
                     "local_link_integrity_errors", "link_error_recovery", "rx_symbol_err_phy",
                     "rx_crc_errors_phy", "rx_pcs_symbol_err_phy"})) {
    return CounterMeaning::kPhysical;
  }
  if (IsOneOf(name, {"packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err",
                     "req_transport_retries_exceeded", "rcvd_seq_err", "completer_retry_err",
                     "retry_exceeded_err", "roce_adp_retrans"})) {
    return CounterMeaning::kLossSender;
  }
  if (IsOneOf(name, {"out_of_sequence", "out_of_seq_request", "duplicate_request"})) {
    return CounterMeaning::kLossReceiver;
  }
  if (IsOneOf(name, {"rnr_nak_retry_err", "rcvd_rnr_err", "retry_rnr_exceeded_err",
                     "req_rnr_retries_exceeded"})) {
    return CounterMeaning::kRnrSender;
  }
  if (IsOneOf(name, {"send_rnr_err", "out_of_buffer"})) return CounterMeaning::kRnrReceiver;
  if (name == "send_err") return CounterMeaning::kLocalFailure;
  if (IsOneOf(name,
              {"np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "port_xmit_wait"})) {
    return CounterMeaning::kCongestion;
  }
  const bool pause = EndsWith(name, "_pause") || EndsWith(name, "_pause_ctrl_phy");
  if (pause && name.substr(0, 3) == "tx_") return CounterMeaning::kPauseSent;
  if (pause && name.substr(0, 3) == "rx_") return CounterMeaning::kCongestion;
  return CounterMeaning::kNone;
}

struct Rise {
  bool excess = false;  // faster than before the onset
  uint64_t by = 0;
  uint64_t since_ns = 0;
  std::string names;  // "rcvd_seq_err +475, ..."
};

// Of Xids: one within that time of another is its after-effect.
constexpr uint64_t kFollowNs = 10 * kSecond;

std::string XidName(uint32_t number) {
  const XidMeaning* meaning = FindXid(number);
  return FactText("Xid %u", number) +
         (meaning != nullptr ? std::string(", ") + meaning->name : std::string());
}

// Clocks of a GPU at work are low enough to be seen in the job, and to differ.
constexpr double kLowClocks = 0.9;
constexpr uint64_t kThermalReasons =
    clock_reason::kSoftwareThermal | clock_reason::kHardwareThermal;
constexpr uint64_t kPowerReasons = clock_reason::kPowerCap | clock_reason::kPowerBrake;
constexpr uint64_t kLimits = kThermalReasons | kPowerReasons | clock_reason::kHardwareSlowdown |
                             clock_reason::kApplicationClocks | clock_reason::kSyncBoost;

std::string ReasonText(uint64_t reasons) {
  std::string text;
  const auto add = [&](uint64_t bits, const char* name) {
    if ((reasons & bits) != 0) text += (text.empty() ? "" : ", ") + std::string(name);
  };
  add(clock_reason::kHardwareThermal, "thermal slowdown by the hardware");
  add(clock_reason::kSoftwareThermal, "thermal slowdown by the driver");
  add(clock_reason::kPowerBrake, "power brake");
  add(clock_reason::kPowerCap, "power cap");
  if ((reasons & (kThermalReasons | kPowerReasons)) == 0) {
    add(clock_reason::kHardwareSlowdown, "slowdown by the hardware");
  }
  add(clock_reason::kApplicationClocks, "application clocks");
  add(clock_reason::kSyncBoost, "sync boost");
  return text;
}

std::string Ago(uint64_t t_ns, uint64_t onset_ns) {
  const double s = (static_cast<double>(t_ns) - static_cast<double>(onset_ns)) / 1e9;
  if (s < -0.05) return FactText("%.1f s before the onset", -s);
  if (s > 0.05) return FactText("%.1f s after the onset", s);
  return "at the onset";
}

bool IsActive(const std::string& state) { return Contains(state, "ACTIVE"); }

// What a thread that reads from a file, pipe or socket has on its kernel stack.
const std::string* ReadFrame(const std::vector<std::string>& stack) {
  for (const std::string& frame : stack) {
    for (const char* name : {"vfs_read", "ksys_read", "filemap_", "generic_file_read", "pipe_read",
                             "nfs_", "fuse_", "ceph_", "lustre", "sock_read_iter", "sock_recvmsg",
                             "unix_stream_read", "vfs_iter_read"}) {
      if (frame.rfind(name, 0) == 0) return &frame;
    }
  }
  return nullptr;
}

// Flushed work requests follow an error; they are never the first.
bool AfterEffect(const Qp& qp) {
  return qp.now.first_bad_status == kFlushErr || qp.now.first_bad_status == kVendorFlush;
}
bool Failed(const Qp& qp) {
  return qp.in_error() || (qp.now.first_bad_status != 0 && !AfterEffect(qp));
}
uint64_t FailedAt(const Qp& qp) {
  if (qp.now.first_bad_ns != 0 && !AfterEffect(qp)) return qp.now.first_bad_ns;
  return qp.error_ns;
}

class Finder {
 public:
  explicit Finder(const EvidenceInput& input) : in_(input), hw_(*input.hardware) {}

  std::vector<Fact> Find() {
    const bool all = in_.job->size() <= kAllWorkers || in_.suspects.empty();
    WorkerSet concerned;
    for (const Suspect& suspect : in_.suspects) {
      concerned.insert(suspect.worker);
      if (suspect.other != nullptr) concerned.insert(suspect.other);
      for (const auto& [from, to] : suspect.edges) concerned.insert({from, to});
    }
    for (const Worker* worker : *in_.job) {
      const HostHardware* host = hw_.FindHost(worker->host);
      if (host == nullptr || (!all && concerned.count(worker) == 0)) continue;
      Devices(*host, *worker);
      Health(*host, *worker);
      Events(*host, *worker);
      Ports(*host, *worker);
      Threads(*worker);
      Memory(*worker);
      FindGpuFacts(in_, *worker, &facts_);
    }
    for (const auto& [from, to] : EdgesOfFlows(*in_.job)) {
      if (all || concerned.count(from) != 0 || concerned.count(to) != 0) Edge(*from, *to);
    }
    return std::move(facts_);
  }

 private:
  Fact& Add(FactKind kind, Weight weight, Component component, const Worker& worker,
            uint32_t shapes, uint64_t since_ns) {
    return AddFact(&facts_, kind, weight, component, worker, shapes, since_ns);
  }

  uint64_t onset() const { return in_.onset_ns; }
  uint64_t late() const { return std::max(in_.late_ns, 3 * kSecond); }
  uint64_t Before(uint64_t ns) const { return onset() > ns ? onset() - ns : 0; }

  // A cause must be seen before its effect, but for the time that polls are late.
  void InTime(Fact* fact) const {
    if (fact->since_ns != 0 && fact->since_ns > onset() + late()) {
      fact->refused = "it came " + Ago(fact->since_ns, onset()) + ": too late to be the cause";
    }
  }
  // A state that was there while the worker still completed operations is no cause.
  void DidNotWorkSince(const Worker& worker, Fact* fact) const {
    if (!in_.stuck || fact->since_ns == 0 || fact->since_ns >= Before(kBeforeNs)) return;
    if (worker.last_end_ns > fact->since_ns + kPollNs) {
      fact->refused =
          "it was so " + Ago(fact->since_ns, onset()) + " and operations went on after that";
    }
  }

  Rise RiseOf(const CounterHistory& counter, const std::string& name, uint64_t least) const {
    Rise rise;
    const uint64_t from = Before(kPollNs);
    auto now = counter.Increase(from, in_.now_ns);
    if (!now || *now < least || in_.now_ns <= from) return rise;
    rise.by = *now;
    rise.since_ns = counter.FirstRise(from, in_.now_ns);
    const uint64_t begin =
        std::max(counter.points().front().t_ns, from > kBaselineNs ? from - kBaselineNs : 0);
    double before_per_s = 0;
    if (begin < from) {
      before_per_s = static_cast<double>(counter.Increase(begin, from).value_or(0)) * 1e9 /
                     static_cast<double>(from - begin);
    }
    const double now_per_s =
        static_cast<double>(*now) * 1e9 / static_cast<double>(in_.now_ns - from);
    rise.excess = now_per_s >= 4 * before_per_s;
    rise.names = FactText("%.60s +%" PRIu64, name.c_str(), *now);
    return rise;
  }

  Rise RiseOf(const Port& port, CounterMeaning meaning, uint64_t least) const {
    Rise sum;
    for (const auto& [name, counter] : port.counters) {
      if (MeaningOf(name) != meaning) continue;
      Rise one = RiseOf(counter, name, least);
      if (!one.excess) continue;
      sum.excess = true;
      sum.by += one.by;
      if (sum.since_ns == 0 || (one.since_ns != 0 && one.since_ns < sum.since_ns)) {
        sum.since_ns = one.since_ns;
      }
      if (sum.names.size() < 120) sum.names += (sum.names.empty() ? "" : ", ") + one.names;
    }
    return sum;
  }

  // Requests that were given up after the last retry.
  static bool IsExceeded(std::string_view name) {
    return IsOneOf(name, {"req_transport_retries_exceeded", "retry_exceeded_err",
                          "req_rnr_retries_exceeded", "retry_rnr_exceeded_err"});
  }
  static bool CountsExceeded(const Port& port) {
    return std::any_of(port.counters.begin(), port.counters.end(),
                       [](const auto& c) { return IsExceeded(c.first); });
  }
  Rise ExceededRise(const Port& port) const {
    Rise sum;
    for (const auto& [name, counter] : port.counters) {
      if (!IsExceeded(name)) continue;
      const Rise one = RiseOf(counter, name, 1);
      if (one.by == 0) continue;
      sum.by += one.by;
      sum.names += (sum.names.empty() ? "" : ", ") + one.names;
    }
    return sum;
  }

  static bool Counts(const Port& port, CounterMeaning meaning) {
    return std::any_of(port.counters.begin(), port.counters.end(),
                       [&](const auto& c) { return MeaningOf(c.first) == meaning; });
  }

  // ---- GPU, NIC and the bridges above them --------------------------------------

  void Devices(const HostHardware& host, const Worker& worker) {
    const ProcessState* process = hw_.FindProcess(worker.host, worker.key);
    if (process == nullptr) return;
    const std::string own_gpu = GpuOf(hw_, worker);
    for (const std::string& address : process->now.gpus) {
      auto it = host.pci.find(address);
      if (it == host.pci.end()) continue;
      Gone(worker, it->second, FactKind::kGpuGone, Component::kGpu,
           address == own_gpu ? Weight::kDecisive : Weight::kStrong,
           Bits({S::kGpu, S::kFlush, S::kNode, S::kEdge, S::kHost, S::kAbsent, S::kDead}));
    }
    std::set<std::string> nics;
    for (const Port* port : PortsOf(hw_, worker)) {
      if (!port->now.pci.empty()) nics.insert(port->now.pci);
    }
    for (const std::string& address : nics) {
      auto it = host.pci.find(address);
      if (it == host.pci.end()) continue;
      Gone(worker, it->second, FactKind::kNicGone, Component::kNic, Weight::kDecisive,
           Bits({S::kFlush, S::kNode, S::kEdge}));
    }
    std::set<std::string> seen;
    if (!own_gpu.empty()) {
      Path(host, worker, own_gpu, Bits({S::kGpu, S::kFlush, S::kNode, S::kEdge}), &seen);
    }
    for (const std::string& address : nics) {
      Path(host, worker, address, Bits({S::kFlush, S::kNode, S::kEdge}), &seen);
    }
    if (!own_gpu.empty()) Acs(host, worker, *process, own_gpu, nics);
  }

  void Gone(const Worker& worker, const PciDevice& device, FactKind kind, Component component,
            Weight weight, uint32_t shapes) {
    const uint64_t since = device.gone_ns != 0 ? device.gone_ns : device.unreachable_ns;
    if (since == 0) return;
    Fact& fact = Add(kind, weight, component, worker, shapes, since);
    fact.device = device.now.address;
    const char* name = kind == FactKind::kGpuGone ? "GPU" : "NIC";
    fact.what = device.gone_ns != 0 ? "removed from the bus" : "fell off the bus";
    fact.text =
        std::string(name) + " " + device.now.address + " of " + NameOf(worker) +
        (device.gone_ns != 0 ? " is not on the bus any more, "
                             : " does not answer: its configuration space reads all ones, ") +
        Ago(since, onset());
    InTime(&fact);
    DidNotWorkSince(worker, &fact);
  }

  // The links, errors and limits of all hops from a device to the root.
  void Path(const HostHardware& host, const Worker& worker, const std::string& address,
            uint32_t shapes, std::set<std::string>* seen) {
    const auto path = HardwareModel::PathToRoot(host, address);
    if (path.empty()) return;
    const bool gone = path[0]->gone_ns != 0 || path[0]->unreachable_ns != 0;
    const CounterHistory traffic = gone ? CounterHistory() : TrafficOf(hw_, worker, *path[0]);
    for (const PciDevice* hop : path) {
      if (!seen->insert(address + " " + hop->now.address).second) continue;
      if (!gone) JudgeHop(worker, *path[0], *hop, traffic, shapes);
      if (!seen->insert(hop->now.address).second) continue;  // errors once for each hop
      Aer(worker, *hop, shapes);
    }
    if (gone) return;
    Ceiling(host, worker, path, traffic, shapes);
  }

  void JudgeHop(const Worker& worker, const PciDevice& end, const PciDevice& hop,
                const CounterHistory& traffic, uint32_t shapes) {
    const LinkUnderLoad now = JudgeLink(hop, traffic, onset(), in_.now_ns);
    if (now.readings < 3 ||
        static_cast<double>(now.below) < 0.2 * static_cast<double>(now.readings)) {
      return;
    }
    const LinkUnderLoad before = JudgeLink(hop, traffic, 0, onset());
    Fact& fact = Add(FactKind::kLinkDegraded, Weight::kStrong, Component::kPcie, worker, shapes, 0);
    for (const auto& [t, link] : hop.link.changes()) {
      if (LinkBytesPerSecond(link) < 0.99 * LinkBytesPerSecond(hop.best) &&
          t + kBeforeNs >= onset()) {
        fact.since_ns = t;
        break;
      }
    }
    fact.device = hop.now.address;
    fact.what = "link " + hop.now.address + " runs at " + ToString(now.worst) + " under load";
    fact.text = FactText(
        "PCIe link %s of %s, on the way from %s to the root, runs at %s under load in "
        "%zu of %zu readings; both ends allow %s",
        hop.now.address.c_str(), NameOf(worker).c_str(), end.now.address.c_str(),
        ToString(now.worst).c_str(), now.below, now.readings, ToString(hop.best).c_str());
    if (!in_.stuck && before.readings >= 3 &&
        static_cast<double>(before.below) * static_cast<double>(now.readings) >=
            0.8 * static_cast<double>(now.below) * static_cast<double>(before.readings)) {
      fact.refused = "it was as slow before the onset, when the job ran as usual";
    } else if (in_.stuck) {
      fact.weight = Weight::kSupport;  // a slow link still moves data
    } else if (fact.since_ns != 0) {
      InTime(&fact);
    }
    // Its siblings under load: what all of them do is not the fault of one.
    size_t siblings = 0, better = 0;
    const double own = LinkBytesPerSecond(now.worst);
    for (const Worker* other : *in_.job) {
      if (siblings >= kSiblings) break;
      const HostHardware* there = hw_.FindHost(other->host);
      if (other == &worker || there == nullptr) continue;
      for (const std::string& address : EndsOf(*other, end.now.kind)) {
        const auto path = HardwareModel::PathToRoot(*there, address);
        if (path.empty() || path[0] == &end) continue;
        const LinkUnderLoad use =
            JudgeLink(*path[0], TrafficOf(hw_, *other, *path[0]), onset(), in_.now_ns);
        if (use.readings < 3) continue;
        ++siblings;
        better += LinkBytesPerSecond(use.worst) > 1.2 * own ? 1 : 0;
      }
    }
    if (siblings == 0) return;
    fact.text += FactText("; %zu of %zu siblings are faster", better, siblings);
    if (better == 0 && fact.refused.empty()) {
      fact.refused = "all its siblings run at the same speed";
    }
  }

  // Devices of a kind that a worker uses.
  std::vector<std::string> EndsOf(const Worker& worker, PciKind kind) const {
    std::vector<std::string> ends;
    if (kind == PciKind::kGpu) {
      ends.push_back(GpuOf(hw_, worker));
    } else {
      for (const Port* port : PortsOf(hw_, worker)) ends.push_back(port->now.pci);
    }
    std::erase(ends, std::string());
    return ends;
  }

  // The throughput is what the slowest link of the path carries, and the device could
  // do more: a bottleneck above it, though every link may run at its best.
  void Ceiling(const HostHardware& host, const Worker& worker,
               const std::vector<const PciDevice*>& path, const CounterHistory& traffic,
               uint32_t shapes) {
    const PciDevice* narrow = nullptr;
    double least = 0;
    for (const PciDevice* hop : path) {
      const Link* link = hop->link.At(in_.now_ns);
      if (link == nullptr) continue;
      const double carries = LinkBytesPerSecond(*link);
      if (carries > 0 && (narrow == nullptr || carries < least)) {
        narrow = hop;
        least = carries;
      }
    }
    if (narrow == nullptr) return;
    const Link own{path[0]->now.max_speed_gts, path[0]->now.max_width};
    double fed = LinkBytesPerSecond(own);
    std::string feed = "the device could do " + ToString(own);
    for (const auto& [key, port] : host.ports) {
      if (port.now.pci != path[0]->now.address || !port.now.rate_gbps) continue;
      if (*port.now.rate_gbps / 8 * 1e9 > fed) {
        fed = *port.now.rate_gbps / 8 * 1e9;
        feed = FactText("its port feeds %.0f Gbit/s", *port.now.rate_gbps);
      }
    }
    const bool smaller = least < 0.75 * fed;
    const LinkUnderLoad use = JudgeLink(*narrow, traffic, onset(), in_.now_ns);
    if (!smaller || use.readings < 3 || use.bytes_per_s < kNearCeiling * least) return;
    Fact& fact = Add(FactKind::kPcieCeiling, Weight::kStrong, Component::kPcie, worker, shapes, 0);
    fact.device = narrow->now.address;
    fact.what = "PCIe path at its limit at " + narrow->now.address;
    fact.text = FactText(
        "the path of %s to the root moves %.1f GB/s, as much as its slowest link %s (%s, "
        "%.1f GB/s) carries; %s",
        path[0]->now.address.c_str(), use.bytes_per_s / 1e9, narrow->now.address.c_str(),
        ToString(*narrow->link.At(in_.now_ns)).c_str(), least / 1e9, feed.c_str());
    const LinkUnderLoad before = JudgeLink(*narrow, traffic, 0, onset());
    // Before: no more than now would have been near the limit, too.
    if (!in_.stuck && before.readings >= 3 && before.bytes_per_s >= kNearCeiling * least &&
        LinkBytesPerSecond(before.worst) <= 1.01 * least) {
      fact.refused = "it was at that limit before the onset, too";
    }
    if (in_.stuck) fact.weight = Weight::kSupport;
  }

  void Aer(const Worker& worker, const PciDevice& hop, uint32_t shapes) {
    Rise fatal = RiseOf(hop.aer_fatal, "fatal", 1);
    Rise nonfatal = RiseOf(hop.aer_nonfatal, "non-fatal", 1);
    if (fatal.excess || nonfatal.excess) {
      Fact& fact = Add(FactKind::kAerUncorrectable, Weight::kStrong, Component::kPcie, worker,
                       shapes, fatal.excess ? fatal.since_ns : nonfatal.since_ns);
      fact.device = hop.now.address;
      fact.what = "uncorrectable PCIe errors at " + hop.now.address;
      fact.text = "uncorrectable PCIe errors (AER) at " + hop.now.address + " of " +
                  NameOf(worker) + ": " + fatal.names +
                  (fatal.excess && nonfatal.excess ? ", " : "") + nonfatal.names;
      InTime(&fact);
    }
    Rise correctable = RiseOf(hop.aer_correctable, "correctable", 10);
    if (!correctable.excess) return;
    Fact& fact = Add(FactKind::kAerCorrectable, Weight::kSupport, Component::kPcie, worker, shapes,
                     correctable.since_ns);
    fact.device = hop.now.address;
    fact.what = "PCIe replays at " + hop.now.address;
    fact.text = "correctable PCIe errors (AER) at " + hop.now.address + " of " + NameOf(worker) +
                ": " + correctable.names;
    InTime(&fact);
  }

  void Acs(const HostHardware& host, const Worker& worker, const ProcessState& process,
           const std::string& gpu, const std::set<std::string>& nics) {
    uint64_t direct = 0;
    for (const auto& [device, mr] : process.mrs) direct += mr.dmabuf;
    const bool peer_to_peer = direct > 0 || host.peer_memory_module.value_or(false);
    if (!peer_to_peer) return;
    for (const std::string& nic : nics) {
      const PciDevice* common = HardwareModel::CommonBridge(host, gpu, nic);
      if (common == nullptr) continue;
      for (const std::string& end : {gpu, nic}) {
        for (const PciDevice* hop : HardwareModel::PathToRoot(host, end)) {
          if (hop == common) break;
          const bool* redirect = hop->acs_redirect.At(in_.now_ns);
          if (redirect == nullptr || !*redirect) continue;
          uint64_t since = 0;
          for (const auto& [t, on] : hop->acs_redirect.changes()) since = on ? t : 0;
          const bool from_start = hop->acs_redirect.changes().size() == 1;
          Fact& fact = Add(FactKind::kAcsRedirect, Weight::kStrong, Component::kPcie, worker,
                           Bits({S::kFlush, S::kNode, S::kEdge}), from_start ? 0 : since);
          fact.device = hop->now.address;
          fact.what = "ACS redirects peer-to-peer at " + hop->now.address;
          fact.text = "ACS at bridge " + hop->now.address + " sends the traffic between GPU " +
                      gpu + " and NIC " + nic + " of " + NameOf(worker) +
                      " up to the root instead of through their common bridge " +
                      common->now.address;
          // It ran well with it: the cause is another.
          if (from_start && worker.settled_count > 0) {
            fact.refused = "it was so before, when operations completed";
          } else {
            InTime(&fact);
          }
          return;
        }
      }
    }
  }

  // ---- events ---------------------------------------------------------------------

  void Events(const HostHardware& host, const Worker& worker) {
    const ProcessState* process = hw_.FindProcess(worker.host, worker.key);
    const std::string gpu = GpuOf(hw_, worker);
    std::set<std::string> nics, on_path;
    for (const Port* port : PortsOf(hw_, worker)) {
      nics.insert(port->now.pci);
      for (const PciDevice* hop : HardwareModel::PathToRoot(host, port->now.pci)) {
        on_path.insert(hop->now.address);
      }
    }
    for (const PciDevice* hop : HardwareModel::PathToRoot(host, gpu))
      on_path.insert(hop->now.address);
    std::set<uint32_t> xids;
    for (const HardwareEvent& event : host.events) {
      if (event.t_ns < Before(60 * kSecond) || event.t_ns > in_.now_ns) continue;
      switch (event.kind) {
        case HardwareEventKind::kXid: {
          bool own = event.device == gpu && !gpu.empty();
          if (!own && process != nullptr && event.pid == worker.key.pid && event.pid != 0)
            own = true;
          if (!own || !xids.insert(event.number).second) break;
          Xid(host, worker, event);
          break;
        }
        case HardwareEventKind::kOomKill: {
          if (event.pid != worker.key.pid) break;
          Fact& fact = Add(FactKind::kOomKill, Weight::kDecisive, Component::kHost, worker,
                           Bits({S::kDead, S::kAbsent, S::kHost}), event.t_ns);
          fact.what = "killed for lack of memory";
          fact.text = "the kernel killed the process of " + NameOf(worker) +
                      " for lack of memory, " + Ago(event.t_ns, onset());
          InTime(&fact);
          break;
        }
        case HardwareEventKind::kAer: {
          if (on_path.count(event.device) == 0 || event.severity < Severity::kNonFatal) break;
          bool known = std::any_of(facts_.begin(), facts_.end(), [&](const Fact& f) {
            return f.kind == FactKind::kAerUncorrectable && f.worker == &worker &&
                   f.device == event.device;
          });
          if (known || event.t_ns < Before(2 * kBeforeNs)) break;
          const bool of_gpu = event.device == gpu;
          Fact& fact = Add(FactKind::kAerUncorrectable, Weight::kStrong, Component::kPcie, worker,
                           Bits({S::kFlush, S::kNode, S::kEdge}) | (of_gpu ? Bits({S::kGpu}) : 0u),
                           event.t_ns);
          fact.device = event.device;
          fact.what = "uncorrectable PCIe error at " + event.device;
          fact.text = "uncorrectable PCIe error (AER) at " + event.device + " of " +
                      NameOf(worker) + ", " + Ago(event.t_ns, onset()) + ": " +
                      event.text.substr(0, 120);
          InTime(&fact);
          break;
        }
        case HardwareEventKind::kIommuFault:
        case HardwareEventKind::kDmaFailure: {
          if (event.device != gpu && nics.count(event.device) == 0) break;
          if (event.device.empty() || event.t_ns < Before(2 * kBeforeNs)) break;
          const bool fault = event.kind == HardwareEventKind::kIommuFault;
          Fact& fact =
              Add(FactKind::kDmaFault, Weight::kStrong, fault ? Component::kPcie : Component::kHost,
                  worker, Bits({S::kFlush, S::kNode, S::kEdge}), event.t_ns);
          fact.device = event.device;
          fact.what =
              fault ? "IOMMU fault of " + event.device : "no DMA mapping for " + event.device;
          fact.text = fact.what + " (" + NameOf(worker) + "), " + Ago(event.t_ns, onset());
          InTime(&fact);
          break;
        }
        case HardwareEventKind::kSxid:
        case HardwareEventKind::kProcessExit:
        case HardwareEventKind::kPciRemoved:
        case HardwareEventKind::kPortState:
        case HardwareEventKind::kQpError:
        case HardwareEventKind::kAsyncEvent:
        case HardwareEventKind::kTcpRetransmit:
        case HardwareEventKind::kCount:
          break;  // used where their device is looked at
      }
    }
  }

  // ---- the GPU as its driver sees it --------------------------------------------------

  void Health(const HostHardware& host, const Worker& worker) {
    const ProcessState* process = hw_.FindProcess(worker.host, worker.key);
    if (process == nullptr) return;
    const std::string own = GpuOf(hw_, worker);
    for (const std::string& address : process->now.gpus) {
      const auto it = host.gpus.find(address);
      if (it == host.gpus.end()) continue;
      Lost(worker, it->second, address == own ? Weight::kDecisive : Weight::kStrong);
      if (address != own || it->second.lost_ns != 0) continue;
      Hangs(worker, it->second);
      Clocks(worker, it->second);
      GpuMemory(worker, it->second);
      Nvlinks(worker, it->second);
      Spins(worker, it->second);
    }
  }

  void Lost(const Worker& worker, const GpuDevice& gpu, Weight weight) {
    if (gpu.lost_ns == 0) return;
    const bool known = std::any_of(facts_.begin(), facts_.end(), [&](const Fact& fact) {
      return fact.kind == FactKind::kGpuGone && fact.worker == &worker &&
             fact.device == gpu.now.address;
    });
    if (known) return;
    Fact& fact = Add(FactKind::kGpuGone, weight, Component::kGpu, worker,
                     Bits({S::kGpu, S::kFlush, S::kNode, S::kEdge, S::kHost, S::kAbsent, S::kDead}),
                     gpu.lost_ns);
    fact.device = gpu.now.address;
    fact.what = "lost";
    fact.text = "the driver has given up GPU " + gpu.now.address + " of " + NameOf(worker) +
                " as lost, " + Ago(gpu.lost_ns, onset());
    fact.suspect_path = true;
    InTime(&fact);
    DidNotWorkSince(worker, &fact);
  }

  void Hangs(const Worker& worker, const GpuDevice& gpu) {
    if (!gpu.now.hangs || !in_.stuck) return;
    Fact& fact = Add(FactKind::kGpuHangs, Weight::kStrong, Component::kGpu, worker,
                     Bits({S::kGpu, S::kFlush, S::kHost, S::kAbsent}), gpu.now.silent_since_ns);
    fact.device = gpu.now.address;
    fact.what = "its driver does not come back";
    fact.text = "the driver was asked about GPU " + gpu.now.address + " of " + NameOf(worker) +
                " and has not come back, " + Ago(gpu.now.silent_since_ns, onset());
    InTime(&fact);
    DidNotWorkSince(worker, &fact);
  }

  // Low clocks are a cause where they have a reason, are lower than before, and lower
  // than those of the other GPUs of the job: a limit that holds for all is the job's own
  // speed, and an idle GPU may rest.
  void Clocks(const Worker& worker, const GpuDevice& gpu) {
    ClocksUnderLoad now = JudgeClocks(gpu, kLimits, onset(), in_.now_ns);
    // Polled once a second: it may be seen after the onset.
    if (now.since_ns > onset()) now = JudgeClocks(gpu, kLimits, now.since_ns, in_.now_ns);
    const uint64_t reasons = now.reasons & kLimits;
    if (now.ns < kSecond || reasons == 0) return;
    const ClocksUnderLoad before = JudgeClocks(gpu, kLimits, Before(kBaselineNs), Before(kPollNs));
    const bool known_before = before.ns >= 2 * kSecond;
    double usual = known_before ? before.sm_mhz : gpu.now.sm_max_mhz.value_or(0);
    std::vector<double> others;
    for (const Worker* other : *in_.job) {
      if (other == &worker || others.size() >= kSiblings) continue;
      const HostHardware* there = hw_.FindHost(other->host);
      if (there == nullptr) continue;
      const auto it = there->gpus.find(GpuOf(hw_, *other));
      if (it == there->gpus.end() || it->second.now.name != gpu.now.name) continue;
      const ClocksUnderLoad theirs = JudgeClocks(it->second, kLimits, onset(), in_.now_ns);
      if (theirs.ns >= kSecond) others.push_back(theirs.sm_mhz);
    }
    std::sort(others.begin(), others.end());
    const double sibling = others.empty() ? 0 : others[others.size() / 2];
    const bool thermal = (reasons & kThermalReasons) != 0;
    // A cap is met all the time: nothing to tell while the clocks are as usual.
    if (!thermal && usual > 0 && now.sm_mhz >= kLowClocks * usual) return;
    Fact& fact = Add(thermal ? FactKind::kThermal : FactKind::kPowerLimit, Weight::kStrong,
                     Component::kGpu, worker, Bits({S::kGpu, S::kFlush, S::kHost}), now.since_ns);
    fact.device = gpu.now.address;
    const bool set =
        (reasons & ~(clock_reason::kApplicationClocks | clock_reason::kSyncBoost)) == 0;
    fact.what = FactText("%s, %.0f MHz",
                         thermal ? "thermal slowdown"
                         : set   ? "clocks set low"
                                 : "power limit",
                         now.sm_mhz);
    fact.text = FactText("GPU %s of %s runs at %.0f MHz", gpu.now.address.c_str(),
                         NameOf(worker).c_str(), now.sm_mhz);
    if (known_before) fact.text += FactText(" instead of %.0f", before.sm_mhz);
    if (gpu.now.sm_max_mhz) fact.text += FactText(" of at most %u", *gpu.now.sm_max_mhz);
    fact.text += ": " + ReasonText(reasons);
    if (thermal && gpu.now.temperature_c) {
      fact.text += FactText(" at %u C", *gpu.now.temperature_c);
      if (gpu.now.slowdown_c) fact.text += FactText(" (slows down at %u C)", *gpu.now.slowdown_c);
    }
    if ((reasons & kPowerReasons) != 0 && gpu.now.power_w && gpu.now.power_limit_w) {
      fact.text += FactText("; it takes %u of %u W", *gpu.now.power_w, *gpu.now.power_limit_w);
    }
    if (sibling > 0) {
      fact.text +=
          FactText("; the GPUs of %zu other ranks run at %.0f MHz", others.size(), sibling);
    }
    if (in_.stuck) {
      fact.weight = Weight::kSupport;  // a slow GPU still computes
    } else if (known_before && now.sm_mhz >= kLowClocks * before.sm_mhz) {
      fact.refused = "its clocks were as low before the onset, when the job ran as usual";
    } else if (sibling > 0 && now.sm_mhz >= kLowClocks * sibling) {
      fact.refused = "the GPUs of the other ranks run as slowly: it is not this one's";
    } else if (usual > 0 && now.sm_mhz >= kLowClocks * usual) {
      fact.refused = "its clocks are hardly lower for it";
    } else if (!known_before && sibling <= 0) {
      fact.weight = Weight::kSupport;  // nothing to compare with
    } else {
      InTime(&fact);
    }
  }

  void GpuMemory(const Worker& worker, const GpuDevice& gpu) {
    const Rise uncorrected = RiseOf(gpu.ecc_uncorrected, "uncorrected ECC errors", 1);
    const uint32_t shapes = Bits({S::kGpu, S::kFlush, S::kAbsent, S::kDead});
    if (uncorrected.excess) {
      Fact& fact = Add(FactKind::kEccErrors, Weight::kStrong, Component::kGpu, worker, shapes,
                       uncorrected.since_ns);
      fact.device = gpu.now.address;
      fact.what = "uncorrected ECC errors";
      fact.text = "the memory of GPU " + gpu.now.address + " of " + NameOf(worker) +
                  " has errors that were not corrected: " + uncorrected.names;
      InTime(&fact);
      DidNotWorkSince(worker, &fact);
    }
    for (const auto& [history, what, weight] :
         {std::tuple{&gpu.remap_failed, "a row of its memory could not be remapped",
                     Weight::kStrong},
          std::tuple{&gpu.remap_pending, "a row of its memory waits for a reset to be remapped",
                     Weight::kSupport}}) {
      const bool* now = history->At(in_.now_ns);
      if (now == nullptr || !*now) continue;
      const auto& changes = history->changes();
      const bool from_start = changes.size() == 1;
      Fact& fact = Add(FactKind::kEccErrors, from_start ? Weight::kSupport : weight,
                       Component::kGpu, worker, shapes, from_start ? 0 : changes.back().first);
      fact.device = gpu.now.address;
      fact.what = what;
      fact.text = "GPU " + gpu.now.address + " of " + NameOf(worker) + ": " + what;
      InTime(&fact);
      DidNotWorkSince(worker, &fact);
    }
    const Rise corrected = RiseOf(gpu.ecc_corrected, "corrected ECC errors", 10);
    if (!corrected.excess) return;
    Fact& fact = Add(FactKind::kEccCorrected, Weight::kSupport, Component::kGpu, worker, shapes,
                     corrected.since_ns);
    fact.device = gpu.now.address;
    fact.what = "corrected ECC errors";
    fact.text = "the memory of GPU " + gpu.now.address + " of " + NameOf(worker) +
                " has more errors than before: " + corrected.names;
    InTime(&fact);
  }

  void Nvlinks(const Worker& worker, const GpuDevice& gpu) {
    const uint32_t shapes = Bits({S::kGpu, S::kHost, S::kAbsent, S::kDead});
    for (const auto& [number, link] : gpu.nvlinks) {
      const std::string name = FactText("NVLink %u of GPU %s", number, gpu.now.address.c_str());
      const bool* now = link.active.At(in_.now_ns);
      const auto& changes = link.active.changes();
      // One that was never up is not wired.
      const bool down = now != nullptr && !*now && changes.size() > 1;
      const Rise recoveries = RiseOf(link.recoveries, "recoveries", 1);
      if (down || recoveries.excess) {
        Fact& fact = Add(FactKind::kNvlinkErrors, Weight::kStrong, Component::kNvlink, worker,
                         shapes, down ? changes.back().first : recoveries.since_ns);
        fact.device = gpu.now.address;
        fact.what = FactText("NVLink %u ", number) + (down ? "is down" : "had to be trained again");
        fact.text = name + " of " + NameOf(worker) +
                    (down ? " is down, " + Ago(changes.back().first, onset())
                          : " had to be trained again: " + recoveries.names);
        InTime(&fact);
        DidNotWorkSince(worker, &fact);
        continue;
      }
      const Rise replays = RiseOf(link.replays, "replays", 10);
      const Rise crc = RiseOf(link.crc, "CRC errors", 10);
      if (!replays.excess && !crc.excess) continue;
      Fact& fact = Add(FactKind::kNvlinkReplays, Weight::kSupport, Component::kNvlink, worker,
                       shapes, replays.excess ? replays.since_ns : crc.since_ns);
      fact.device = gpu.now.address;
      fact.what = FactText("errors on NVLink %u", number);
      fact.text = name + " of " + NameOf(worker) + ": " + replays.names +
                  (replays.excess && crc.excess ? ", " : "") + crc.names;
      InTime(&fact);
    }
    const Rise replays = RiseOf(gpu.pcie_replays, "replays", 10);
    if (!replays.excess) return;
    Fact& fact = Add(FactKind::kAerCorrectable, Weight::kSupport, Component::kPcie, worker,
                     Bits({S::kGpu, S::kFlush, S::kNode, S::kEdge}), replays.since_ns);
    fact.device = gpu.now.address;
    fact.what = "PCIe replays at " + gpu.now.address;
    fact.text = "PCIe replays counted by GPU " + gpu.now.address + " of " + NameOf(worker) + ": " +
                replays.names;
    InTime(&fact);
  }

  // Utilization counts a kernel that spins; power tells it from one that computes.
  void Spins(const Worker& worker, const GpuDevice& gpu) {
    if (!in_.stuck || gpu.now.utilization_percent.value_or(0) < 90 || !gpu.now.power_w ||
        !gpu.now.power_limit_w || *gpu.now.power_w * 2 > *gpu.now.power_limit_w) {
      return;
    }
    Fact& fact =
        Add(FactKind::kSpins, Weight::kSupport, Component::kGpu, worker, Bits({S::kGpu}), 0);
    fact.device = gpu.now.address;
    fact.what = "it spins";
    fact.text = FactText(
        "GPU %s of %s is %u %% busy at %u of %u W: it spins or waits, it does not "
        "compute",
        gpu.now.address.c_str(), NameOf(worker).c_str(), *gpu.now.utilization_percent,
        *gpu.now.power_w, *gpu.now.power_limit_w);
  }

  void Xid(const HostHardware& host, const Worker& worker, const HardwareEvent& event) {
    const XidMeaning* meaning = FindXid(event.number);
    const bool hardware = meaning != nullptr && meaning->hardware;
    const bool nvlink = meaning != nullptr && meaning->origin == XidOrigin::kNvlink;
    Fact& fact = Add(FactKind::kXid, hardware ? Weight::kStrong : Weight::kSupport,
                     nvlink ? Component::kNvlink : Component::kGpu, worker,
                     Bits({S::kGpu, S::kFlush, S::kAbsent, S::kDead}), event.t_ns);
    fact.device = event.device;
    fact.what = hardware ? XidName(event.number) : FactText("Xid %u", event.number);
    fact.text = "the driver reported " + XidName(event.number) + " for the GPU of " +
                NameOf(worker) + ", " + Ago(event.t_ns, onset());
    fact.suspect_path = meaning != nullptr && meaning->origin == XidOrigin::kPcie && hardware;
    InTime(&fact);
    DidNotWorkSince(worker, &fact);
    // The first one is the origin; what follows shortly is its echo: on the same GPU, and
    // over NVLink on its neighbours.
    const HardwareEvent* origin = nullptr;
    bool seen = false;  // this one, in the order of the log
    for (const HardwareEvent& other : host.events) {
      seen = seen || &other == &event;
      if (&other == &event || other.t_ns > event.t_ns || other.t_ns + kFollowNs < event.t_ns) {
        continue;
      }
      if (other.kind == HardwareEventKind::kSxid && nvlink &&
          other.severity >= Severity::kNonFatal) {
        fact.text += FactText("; NVSwitch %s reported SXid %u", other.device.c_str(), other.number);
        continue;
      }
      if (other.kind != HardwareEventKind::kXid || other.number == event.number) continue;
      const XidMeaning* theirs = FindXid(other.number);
      if (theirs == nullptr || !theirs->hardware) continue;
      const bool same_gpu = other.device == event.device;
      const bool neighbour = !same_gpu && nvlink && theirs->origin != XidOrigin::kNvlink;
      if (!same_gpu && !neighbour) continue;
      // A follower is never first; at one instant the order of the log decides the rest.
      const bool follows = !hardware || meaning->follower;
      if (theirs->follower && !follows) continue;
      if (other.t_ns == event.t_ns && seen && (!follows || theirs->follower)) continue;
      if (origin == nullptr || other.t_ns < origin->t_ns) origin = &other;
    }
    if (origin != nullptr && fact.refused.empty()) {
      fact.refused =
          "it follows " + XidName(origin->number) +
          (origin->device == event.device ? " of the same GPU" : " of GPU " + origin->device) +
          FactText(", %.1f s earlier", static_cast<double>(event.t_ns - origin->t_ns) / 1e9);
    } else if (!hardware && fact.refused.empty()) {
      fact.refused = "such an Xid tells what a program did or an after-effect, not a fault";
    }
  }

  // ---- ports -------------------------------------------------------------------------

  // How long a queue pair may retry before it gives up: (retries + 1) timeouts of
  // 4.096 us x 2^timeout, which devices stretch up to four times (InfiniBand
  // Architecture Specification 9.7.6.1.3).
  static uint64_t RetryBudget(const Qp& qp) {
    if (!qp.now.timeout || *qp.now.timeout == 0 || *qp.now.timeout > 31) return 60 * kSecond;
    const double once = 4096.0 * static_cast<double>(uint64_t{1} << *qp.now.timeout);
    const double tries = std::min<uint32_t>(qp.now.retry_count.value_or(7), 7) + 1;
    return static_cast<uint64_t>(std::min(4 * once * tries, 600e9)) + 5 * kSecond;
  }

  struct Downs {
    uint64_t first = 0;  // in the window
    size_t count = 0;
    bool down_now = false;
    uint64_t down_since = 0;
  };

  Downs DownsOf(const HostHardware& host, const Port& port, uint64_t from_ns) const {
    Downs downs;
    auto note = [&](uint64_t t) {
      if (t <= from_ns || t > in_.now_ns) return;
      if (downs.first == 0 || t < downs.first) downs.first = t;
    };
    const auto& changes = port.state.changes();
    for (size_t i = 0; i < changes.size(); ++i) {
      if (changes[i].first > in_.now_ns) break;
      const bool down = !IsActive(changes[i].second);
      downs.down_now = down;
      if (!down) continue;
      if (i == 0 || IsActive(changes[i - 1].second)) downs.down_since = changes[i].first;
      if (i > 0 && IsActive(changes[i - 1].second)) {  // one that was never up did not go down
        note(changes[i].first);
        downs.count += changes[i].first > from_ns ? 1 : 0;
      }
    }
    auto counter = port.counters.find("link_downed");
    if (counter != port.counters.end()) {
      const auto increase = counter->second.Increase(from_ns, in_.now_ns);
      if (increase && *increase > 0) {
        downs.count = std::max<size_t>(downs.count, *increase);
        note(counter->second.FirstRise(from_ns, in_.now_ns));
      }
    }
    for (const HardwareEvent& event : host.events) {
      if (event.kind != HardwareEventKind::kPortState) continue;
      if (event.device != port.now.device && event.device != port.now.netdev) continue;
      if (event.device.empty() || !(Contains(event.text, "DOWN") || Contains(event.text, "down"))) {
        continue;
      }
      if (event.number != 0 && event.number != port.now.port && event.device == port.now.device) {
        continue;
      }
      const bool in_window = event.t_ns > from_ns && event.t_ns <= in_.now_ns;
      note(event.t_ns);
      if (in_window && downs.count == 0) downs.count = 1;
    }
    return downs;
  }

  // Some devices give a queue pair up at once when its port goes down, with another status
  // than that of exceeded retries or with none.
  bool DownBefore(const Worker& worker, const Qp& qp, uint64_t failed_ns) const {
    const HostHardware* host = hw_.FindHost(worker.host);
    const Port* port = hw_.FindPort(worker.host, qp.now.device, qp.now.port);
    const uint64_t from_ns = failed_ns > kBeforeNs ? failed_ns - kBeforeNs : 0;
    return host != nullptr && port != nullptr && DownsOf(*host, *port, from_ns).count > 0;
  }

  void Ports(const HostHardware& host, const Worker& worker) {
    const ProcessState* process = hw_.FindProcess(worker.host, worker.key);
    if (process == nullptr) return;
    for (const Port* port : PortsOf(hw_, worker)) {
      // A connection of this port that broke, whichever end saw it: that counts longer.
      const Qp* broken = nullptr;
      for (const auto& [place, qp] : process->qps) {
        if (hw_.FindPort(worker.host, qp.now.device, qp.now.port) != port) continue;
        for (const Qp* end : {&qp, hw_.Remote(host, qp).qp}) {
          if (end == nullptr || !Failed(*end)) continue;
          if (broken == nullptr || FailedAt(*end) < FailedAt(*broken)) broken = end;
        }
      }
      PortLink(host, worker, *port, broken);
      Rise physical = RiseOf(*port, CounterMeaning::kPhysical, 10);
      if (physical.excess) {
        Fact& fact = Add(FactKind::kPhysicalErrors, Weight::kStrong, Component::kNic, worker,
                         kNetwork, physical.since_ns);
        fact.device = PortName(*port);
        fact.what = "link errors at port " + PortName(*port);
        fact.text = "port " + PortName(*port) + " of " + NameOf(worker) +
                    " counts errors of its link: " + physical.names;
        InTime(&fact);
      }
      Rise failures = RiseOf(*port, CounterMeaning::kLocalFailure, 3);
      if (failures.excess) {
        Fact& fact = Add(FactKind::kPhysicalErrors, Weight::kSupport, Component::kNic, worker,
                         kNetwork, failures.since_ns);
        fact.device = PortName(*port);
        fact.what = "sends fail at port " + PortName(*port);
        fact.text =
            "port " + PortName(*port) + " of " + NameOf(worker) + " cannot send: " + failures.names;
      }
      Pauses(host, worker, *port);
    }
  }

  // The worker at the other end of a connection of `worker`; nullptr: not seen.
  const Worker* PeerOf(const HostHardware& host, const Worker& worker, const Qp& qp) const {
    for (const Worker* other : *in_.job) {
      if (other == &worker) continue;
      const HostHardware* there = hw_.FindHost(other->host);
      if (there == nullptr) continue;
      const HardwareModel::QpEnd end = hw_.Remote(qp.process == worker.key ? host : *there, qp);
      if (end.qp == nullptr) continue;
      // `qp` may be either end.
      const bool mine =
          qp.process == worker.key && end.host == there && end.qp->process == other->key;
      const bool theirs =
          qp.process == other->key && end.host == &host && end.qp->process == worker.key;
      if (mine || theirs) return other;
    }
    return nullptr;
  }

  void PortLink(const HostHardware& host, const Worker& worker, const Port& port,
                const Qp* broken) {
    uint64_t from = Before(kBeforeNs);
    uint64_t failed_at = 0;
    if (broken != nullptr && FailedAt(*broken) != 0) {
      failed_at = FailedAt(*broken);
      const uint64_t budget = RetryBudget(*broken);
      from = std::min(from, failed_at > budget ? failed_at - budget : 0);
    }
    const Downs downs = DownsOf(host, port, from);
    if (downs.down_now) {
      Fact& fact = Add(FactKind::kPortDown, Weight::kDecisive, Component::kNic, worker, kNetwork,
                       downs.first != 0 ? downs.first : downs.down_since);
      fact.device = PortName(port);
      fact.what = "port " + PortName(port) + " is " + port.now.state;
      fact.disabled = port.now.phys_state == "Disabled";
      fact.text = "port " + PortName(port) + " of " + NameOf(worker) + " is " + port.now.state +
                  (port.now.phys_state.empty() ? "" : " (" + port.now.phys_state + ")") +
                  ", since " + Ago(fact.since_ns, onset());
      InTime(&fact);
      DidNotWorkSince(worker, &fact);
      return;
    }
    if (downs.first == 0) return;
    Fact& fact =
        Add(FactKind::kPortFlap, Weight::kStrong, Component::kNic, worker, kNetwork, downs.first);
    fact.device = PortName(port);
    fact.what = "port " + PortName(port) + " went down and came back";
    fact.text = FactText("port %s of %s went down%s, first %s", PortName(port).c_str(),
                         NameOf(worker).c_str(),
                         downs.count > 1 ? FactText(" %zu times", downs.count).c_str() : "",
                         Ago(downs.first, onset()).c_str());
    if (failed_at != 0) {
      if (downs.first <= failed_at + kPollNs) {
        fact.weight = Weight::kDecisive;
        fact.text += FactText(
            "; queue pair %u failed %.1f s later", broken->now.number,
            downs.first < failed_at ? static_cast<double>(failed_at - downs.first) / 1e9 : 0.0);
        if (broken->in_error()) {
          fact.text += " and is still in the error state, though the port is up again";
        }
        // The queue pair keeps the error until it is made anew, however long the port is
        // fine again; but then it explains this connection only.
        if (downs.first <= Before(kBeforeNs)) fact.other = PeerOf(host, worker, *broken);
        if (fact.since_ns > onset() + late() && failed_at > onset() + late()) InTime(&fact);
      } else {
        fact.refused = "the first request failed " +
                       FactText("%.1f s", static_cast<double>(downs.first - failed_at) / 1e9) +
                       " before it went down";
      }
      return;
    }
    InTime(&fact);
  }

  // Pause frames say that this host does not take the data as fast as it comes. Only
  // its PCIe path tells a slow drain from a NIC that floods.
  void Pauses(const HostHardware& host, const Worker& worker, const Port& port) {
    Rise sent = RiseOf(port, CounterMeaning::kPauseSent, 10);
    if (!sent.excess) return;
    const std::string text =
        "port " + PortName(port) + " of " + NameOf(worker) + " sends pause frames: " + sent.names;
    for (const Fact& known : facts_) {
      if (known.worker != &worker || !known.refused.empty()) continue;
      if (known.kind != FactKind::kPcieCeiling && known.kind != FactKind::kLinkDegraded) continue;
      // Of the path of this very port.
      bool on_path = false;
      for (const PciDevice* hop : HardwareModel::PathToRoot(host, port.now.pci)) {
        on_path |= hop->now.address == known.device;
      }
      if (!on_path) continue;
      Fact fact = known;  // with a reason to stand still, too
      fact.weight = Weight::kDecisive;
      fact.shapes |= kNetwork;
      fact.text += "; " + text + ": it cannot drain what the network brings";
      facts_.push_back(std::move(fact));
      return;
    }
    Fact& fact = Add(FactKind::kPauses, Weight::kStrong, Component::kUnknown, worker, kNetwork,
                     sent.since_ns);
    fact.device = PortName(port);
    fact.what = "port " + PortName(port) + " sends pause frames";
    fact.text =
        text + "; its PCIe path is not seen at its limit, so that what slows it is not known";
  }

  // ---- threads and memory --------------------------------------------------------------

  bool TurnsLongEnough(const Worker& worker, const ThreadDelay& thread, uint64_t from) const {
    const auto excess = in_.transit_excess_ns.find(&worker);
    const uint64_t turns = thread.runq_count.Increase(from, in_.now_ns).value_or(0);
    if (excess == in_.transit_excess_ns.end() || turns == 0) return true;
    const auto waited = static_cast<double>(thread.runq_ns.Increase(from, in_.now_ns).value_or(0));
    return TurnsExplain(waited / static_cast<double>(turns), excess->second);
  }

  void Threads(const Worker& worker) {
    const ProcessState* process = hw_.FindProcess(worker.host, worker.key);
    if (process == nullptr) return;
    const uint64_t from =
        in_.stuck ? std::max(onset(), in_.now_ns > 2 * kSecond ? in_.now_ns - 2 * kSecond : 0)
                  : onset();
    if (in_.now_ns <= from) return;
    const double elapsed = static_cast<double>(in_.now_ns - from);
    const double limit =
        in_.stuck ? kStarvedStuck : std::max(kStarvedSlow, kStarvedExplains * in_.lost_share);
    for (const auto& [tid, thread] : process->delays) {
      const uint32_t roles = RolesOf(worker, tid);
      const char* name = (roles & MC_THREAD_PROGRESS) != 0 ? "proxy"
                         : (roles & MC_THREAD_LAUNCH) != 0 ? "main"
                                                           : nullptr;
      if (name == nullptr) continue;
      auto share = [&](const CounterHistory& counter) {
        return static_cast<double>(counter.Increase(from, in_.now_ns).value_or(0)) / elapsed;
      };
      auto before = [&](const CounterHistory& counter) {
        if (!counter.known()) return 0.0;
        const uint64_t begin = std::max(counter.points().front().t_ns,
                                        onset() > kBaselineNs ? onset() - kBaselineNs : 0);
        if (begin >= onset()) return 0.0;
        return static_cast<double>(counter.Increase(begin, onset()).value_or(0)) /
               static_cast<double>(onset() - begin);
      };
      const double starved = share(thread.runq_ns);
      if (starved >= limit && starved >= 2 * before(thread.runq_ns) &&
          TurnsLongEnough(worker, thread, from)) {
        Fact& fact = Add(FactKind::kStarved, Weight::kStrong, Component::kHost, worker, kAnyButDead,
                         thread.runq_ns.FirstRise(from, in_.now_ns));
        fact.what = std::string("its ") + name + " thread gets no CPU";
        fact.text = FactText(
            "the %s thread (tid %u) of %s was runnable and waited for a CPU %.0f %% of the "
            "time since (%.0f %% before)",
            name, tid, NameOf(worker).c_str(), 100 * std::min(1.0, starved),
            100 * before(thread.runq_ns));
      }
      const double blocked = share(thread.blocked_ns);
      const std::string* reads = ReadFrame(thread.now.stack);
      if ((roles & MC_THREAD_LAUNCH) != 0 && (roles & MC_THREAD_PROGRESS) == 0 &&
          reads != nullptr && share(thread.off_cpu_ns) >= 0.5) {
        Fact& fact = Add(FactKind::kReads, Weight::kStrong, Component::kApp, worker,
                         Bits({S::kAbsent, S::kHost}), 0);
        fact.what = "its main thread reads";
        fact.text = FactText(
            "the main thread (tid %u) of %s sleeps in %.60s %.0f %% of the time: it reads "
            "(data loader, checkpoint)",
            tid, NameOf(worker).c_str(), reads->c_str(),
            100 * std::min(1.0, share(thread.off_cpu_ns)));
      } else if (blocked >= limit && blocked >= 2 * before(thread.blocked_ns)) {
        Fact& fact = Add(FactKind::kBlocked, Weight::kStrong, Component::kHost, worker,
                         Bits({S::kHost, S::kAbsent, S::kNode, S::kEdge}), 0);
        fact.what = std::string("its ") + name + " thread is blocked in the kernel";
        fact.text = FactText(
            "the %s thread (tid %u) of %s is in uninterruptible sleep %.0f %% of the time%s%.60s",
            name, tid, NameOf(worker).c_str(), 100 * std::min(1.0, blocked),
            thread.now.stack.empty() ? "" : ", in ",
            thread.now.stack.empty() ? "" : thread.now.stack[0].c_str());
      }
    }
    const double reclaim =
        static_cast<double>(process->direct_reclaim_ns.Increase(from, in_.now_ns).value_or(0)) /
        elapsed;
    if (reclaim >= limit) {
      Fact& fact = Add(FactKind::kReclaim, Weight::kStrong, Component::kHost, worker,
                       Bits({S::kHost, S::kAbsent, S::kNode, S::kEdge, S::kGpu}),
                       process->direct_reclaim_ns.FirstRise(from, in_.now_ns));
      fact.what = "it reclaims memory";
      fact.text = FactText(
          "the process of %s spends %.0f %% of the time in direct reclaim: memory pressure",
          NameOf(worker).c_str(), 100 * std::min(1.0, reclaim));
    }
  }

  static uint32_t RolesOf(const Worker& worker, uint32_t tid) {
    uint32_t roles = 0;
    if (const HostSample* host = worker.host_now()) {
      for (const ThreadSample& thread : host->threads) {
        // One that has ended waits for no CPU, whatever the last wait of it looks like.
        if (thread.tid == tid && thread.state != 'X') roles |= thread.roles;
      }
    }
    return roles;
  }

  void Memory(const Worker& worker) {
    const ProcessState* process = hw_.FindProcess(worker.host, worker.key);
    if (process == nullptr) return;
    for (const auto& [device, mr] : process->mrs) {
      if (mr.failures == 0 || mr.last_errno != static_cast<int32_t>(kErrNoMemory)) continue;
      const auto& limit = process->now.memlock_limit;
      uint64_t wanted = mr.last_failure_bytes;
      wanted += std::min(process->now.locked_bytes.value_or(0), UINT64_MAX - wanted);
      const bool low = limit && *limit != UINT64_MAX && (wanted > *limit || *limit < kLowMemlock);
      Fact& fact =
          Add(FactKind::kMemlock, low ? Weight::kDecisive : Weight::kSupport, Component::kHost,
              worker, Bits({S::kHost, S::kAbsent, S::kDead}), mr.last_failure_ns);
      fact.device = device;
      fact.what = "memory cannot be locked";
      fact.text = FactText("registration of %" PRIu64 " bytes on %.40s failed for %s with ENOMEM",
                           mr.last_failure_bytes, device.c_str(), NameOf(worker).c_str());
      if (low) {
        fact.text += FactText("; RLIMIT_MEMLOCK is %" PRIu64 " bytes", *limit);
      } else {
        fact.refused =
            limit ? "RLIMIT_MEMLOCK is not what stopped it" : "RLIMIT_MEMLOCK could not be read";
      }
      DidNotWorkSince(worker, &fact);
      InTime(&fact);
    }
  }

  // ---- edges: queue pairs and what lies between two ports ---------------------------------

  void Edge(const Worker& from, const Worker& to) {
    const HostHardware* here = hw_.FindHost(from.host);
    if (here == nullptr) return;
    const std::vector<const Qp*> qps = QpsOfEdge(hw_, from, to);
    if (qps.empty()) return;
    const bool edge_used =
        std::any_of(qps.begin(), qps.end(), [this](const Qp* qp) { return UsedBefore(*qp); });
    for (const Qp* qp : qps) {
      const HardwareModel::QpEnd end = hw_.Remote(*here, *qp);
      Connection(*here, from, to, *qp, end, edge_used);
      Completion(from, to, *qp, end);
      // The other end posts, too (credits): its failures are of the same connection.
      if (end.qp != nullptr) Completion(to, from, *end.qp, {here, qp});
    }
    std::set<std::pair<const Port*, const Port*>> pairs;
    for (const Qp* qp : qps) {
      const Port* mine = hw_.FindPort(from.host, qp->now.device, qp->now.port);
      const HardwareModel::QpEnd end = hw_.Remote(*here, *qp);
      const Port* theirs =
          end.qp == nullptr ? nullptr : hw_.FindPort(to.host, end.qp->now.device, end.qp->now.port);
      if (mine != nullptr && pairs.insert({mine, theirs}).second) {
        Rnr(from, to, *qp, end, *mine, theirs);
        Loss(from, to, *mine, theirs);
      }
    }
    Stall(*here, from, to, qps);
  }

  bool UsedBefore(const Qp& qp) const {
    const CounterHistory::Point* at_onset = qp.posts.At(onset());
    return at_onset != nullptr && at_onset->value > 0;
  }

  // Nothing was ever completed by this connection. `edge_used`: UsedBefore() of a queue pair of
  // its two ends.
  bool NeverWorked(const Worker& from, const Worker& to, const Qp& qp, bool edge_used) const {
    // Completions are counted while deep probes are armed only: one that was used before
    // may have worked then.
    if (qp.now.completions_seen && qp.now.completions > qp.now.failed_completions) return false;
    if (qp.posts.Increase(0, Before(kBeforeNs)).value_or(0) > 0) return false;
    if (qp.now.completions_seen) return true;
    // What their flows had moved was by another queue pair.
    if (edge_used && !UsedBefore(qp)) return true;
    for (const auto& [line, member] : from.members) {
      for (const auto& [index, flow] : member->flows) {
        auto peer = member->comm->members.find(flow.peer);
        if (peer == member->comm->members.end() || peer->second->worker != &to) continue;
        if (flow.direction == MC_SEND &&
            (flow.done > 0 || flow.steps_done > 0 || flow.ops_done > 0)) {
          return false;
        }
      }
    }
    return true;
  }

  enum class Family { kUnknown, kLinkLocal, kIpv4, kOther };
  static Family FamilyOf(const std::string& gid) {
    if (gid.size() < 4) return Family::kUnknown;
    if (gid.compare(0, 4, "fe80") == 0) return Family::kLinkLocal;
    if (Contains(gid, "0000:0000:0000:0000:0000:ffff:")) return Family::kIpv4;
    return Family::kOther;
  }

  void Connection(const HostHardware& here, const Worker& from, const Worker& to, const Qp& qp,
                  const HardwareModel::QpEnd& end, bool edge_used) {
    const std::string name =
        FactText("queue pair %u of %.40s", qp.now.number, qp.now.device.c_str());
    const GidEntry* mine = hw_.GidOf(here, qp);
    const GidEntry* theirs = end.qp == nullptr ? nullptr : hw_.GidOf(*end.host, *end.qp);
    if (NeverWorked(from, to, qp, edge_used) && (qp.total_posts() > 0 || Failed(qp))) {
      auto wrong = [&](const Worker& worker, const Worker& other, const Qp& which,
                       const std::string& why) {
        // Both directions of one connection tell the same.
        for (const Fact& known : facts_) {
          if (known.kind == FactKind::kWrongGid && known.worker == &worker &&
              (known.other == &other || known.worker == &other)) {
            return;
          }
        }
        Fact& fact =
            Add(FactKind::kWrongGid, Weight::kDecisive, Component::kNic, worker, kNetwork, 0);
        fact.other = &other;
        fact.device = which.now.device;
        fact.what =
            FactText("GID index %u of ", *which.now.gid_index) + which.now.device + " does not fit";
        fact.text =
            FactText(
                "queue pair %u of %.40s (%s) never completed one request; its GID index %u is ",
                which.now.number, which.now.device.c_str(), NameOf(worker).c_str(),
                *which.now.gid_index) +
            why;
      };
      // Each end's own address, and what the other end takes for it.
      auto not_expected = [](const GidEntry* own, const Qp* other) {
        return own != nullptr && other != nullptr && !other->now.remote_gid.empty() &&
               own->gid != other->now.remote_gid;
      };
      const Family far = FamilyOf(qp.now.remote_gid);
      const bool v1_here = mine != nullptr && Contains(mine->type, "v1");
      const bool v1_there = theirs != nullptr && Contains(theirs->type, "v1");
      if (mine != nullptr && theirs != nullptr && v1_here != v1_there) {
        if (v1_here) {
          wrong(from, to, qp, "of type " + mine->type + ", its peer's of type " + theirs->type);
        } else {
          wrong(to, from, *end.qp,
                "of type " + theirs->type + ", its peer's of type " + mine->type);
        }
      } else if (mine != nullptr && far != Family::kUnknown && FamilyOf(mine->gid) != far) {
        // A link-local address reaches nobody behind a router, and no IPv4 peer at all.
        const bool mine_local = FamilyOf(mine->gid) == Family::kLinkLocal;
        if (mine_local || far != Family::kLinkLocal) {
          wrong(from, to, qp,
                mine->gid + ", its peer's address is " + qp.now.remote_gid.substr(0, 64));
        } else if (theirs != nullptr) {
          wrong(to, from, *end.qp, theirs->gid + ", its peer's address is " + mine->gid);
        }
      } else if (not_expected(mine, end.qp)) {
        wrong(from, to, qp, mine->gid + ", its peer expects " + end.qp->now.remote_gid);
      } else if (not_expected(theirs, &qp)) {
        wrong(to, from, *end.qp, theirs->gid + ", its peer expects " + qp.now.remote_gid);
      } else if (mine == nullptr && qp.now.gid_index) {
        const Port* port = hw_.FindPort(from.host, qp.now.device, qp.now.port);
        if (port != nullptr && !port->now.gids.empty()) {
          wrong(from, to, qp, "empty in the table of the port");
        }
      }
    }
    PathMtu(from, to, qp, end, edge_used);
    // Packets larger than the network of the other end.
    const Port* here_port = hw_.FindPort(from.host, qp.now.device, qp.now.port);
    const Port* there_port =
        end.qp == nullptr ? nullptr : hw_.FindPort(to.host, end.qp->now.device, end.qp->now.port);
    if (here_port == nullptr || there_port == nullptr) return;
    const auto& mtu_here = here_port->now.netdev_mtu;
    const auto& mtu_there = there_port->now.netdev_mtu;
    if (!mtu_here || !mtu_there || *mtu_here == *mtu_there || qp.now.path_mtu == 0) return;
    const Worker& small = *mtu_here < *mtu_there ? from : to;
    const Worker& large = *mtu_here < *mtu_there ? to : from;
    const uint32_t least = std::min(*mtu_here, *mtu_there);
    if (qp.now.path_mtu < least) return;  // it fits: no harm
    // Who differs from the rest of the job?
    size_t as_small = 0, as_large = 0;
    std::set<const Port*> seen;
    for (const Worker* worker : *in_.job) {
      for (const Port* port : PortsOf(hw_, *worker)) {
        if (!seen.insert(port).second || !port->now.netdev_mtu) continue;
        as_small += *port->now.netdev_mtu == least ? 1 : 0;
        as_large += *port->now.netdev_mtu == std::max(*mtu_here, *mtu_there) ? 1 : 0;
      }
    }
    const Worker& odd = as_small > as_large ? large : small;
    Fact& fact = Add(FactKind::kMtuMismatch, Weight::kStrong, Component::kNic, odd, kNetwork, 0);
    fact.other = &odd == &from ? &to : &from;
    fact.device = PortName(&odd == &from ? *here_port : *there_port);
    fact.what = FactText("MTU mismatch, %u and %u bytes", *mtu_here, *mtu_there);
    fact.text = name + FactText(" sends packets of %u bytes from %s (MTU %u) to %s (MTU %u)",
                                qp.now.path_mtu, NameOf(from).c_str(), *mtu_here,
                                NameOf(to).c_str(), *mtu_there);
    if (qp.now.completions_seen && qp.now.completions > qp.now.failed_completions &&
        from.settled_count > 0) {
      fact.weight = Weight::kSupport;
      fact.refused = "requests completed on this connection with the same MTUs";
    }
  }

  // The two ends of a connection were given different path MTUs, and it broke or never
  // worked. The culprit is the end that differs from the job.
  void PathMtu(const Worker& from, const Worker& to, const Qp& qp, const HardwareModel::QpEnd& end,
               bool edge_used) {
    if (end.qp == nullptr || qp.now.path_mtu == 0 || end.qp->now.path_mtu == 0) return;
    if (qp.now.path_mtu == end.qp->now.path_mtu) return;
    if (!Failed(qp) && !Failed(*end.qp) && !NeverWorked(from, to, qp, edge_used)) return;
    size_t as_mine = 0, as_theirs = 0;
    for (const Worker* worker : *in_.job) {
      const ProcessState* process = hw_.FindProcess(worker->host, worker->key);
      if (process == nullptr) continue;
      for (const auto& [place, other] : process->qps) {
        if (&other == &qp || &other == end.qp) continue;
        as_mine += other.now.path_mtu == qp.now.path_mtu ? 1 : 0;
        as_theirs += other.now.path_mtu == end.qp->now.path_mtu ? 1 : 0;
      }
    }
    const bool here = as_theirs > as_mine;
    if (as_mine == as_theirs) return;
    const Worker& odd = here ? from : to;
    for (const Fact& known : facts_) {
      if (known.kind == FactKind::kMtuMismatch && known.worker == &odd) return;
    }
    const Qp& wrong = here ? qp : *end.qp;
    Fact& fact = Add(FactKind::kMtuMismatch, Weight::kDecisive, Component::kNic, odd, kNetwork, 0);
    fact.other = here ? &to : &from;
    fact.device = wrong.now.device;
    fact.what = FactText("path MTU of %u bytes, its peer's is %u", wrong.now.path_mtu,
                         (here ? *end.qp : qp).now.path_mtu);
    fact.text = FactText(
        "queue pair %u of %.40s (%s) has a path MTU of %u bytes, its peer %u of %.40s "
        "(%s) one of %u, as most of the job",
        wrong.now.number, wrong.now.device.c_str(), NameOf(odd).c_str(), wrong.now.path_mtu,
        (here ? *end.qp : qp).now.number, (here ? *end.qp : qp).now.device.c_str(),
        NameOf(*fact.other).c_str(), (here ? *end.qp : qp).now.path_mtu);
  }

  void Completion(const Worker& from, const Worker& to, const Qp& qp,
                  const HardwareModel::QpEnd& end) {
    const uint32_t status = qp.now.first_bad_status;
    if ((status == 0 || AfterEffect(qp)) && !qp.in_error()) return;
    const std::string name =
        FactText("queue pair %u of %.40s (%s to %s)", qp.now.number, qp.now.device.c_str(),
                 NameOf(from).c_str(), NameOf(to).c_str());
    const uint64_t at = FailedAt(qp);
    if (status == 0 || AfterEffect(qp)) {
      if (end.qp != nullptr && end.qp->now.first_bad_status != 0 && !AfterEffect(*end.qp)) return;
      Fact& fact =
          Add(FactKind::kQpBroken, Weight::kSupport, Component::kUnknown, from, kNetwork, at);
      fact.other = &to;
      fact.device = qp.now.device;
      fact.what = FactText("queue pair %u is in the error state", qp.now.number);
      fact.text =
          name + " is in the error state, " + Ago(at, onset()) + "; with which status was not seen";
      // Timeouts are counted; what the other end refuses is not.
      for (const auto& [worker, which] : {std::pair{&from, &qp}, std::pair{&to, end.qp}}) {
        const Port* port = which == nullptr
                               ? nullptr
                               : hw_.FindPort(worker->host, which->now.device, which->now.port);
        if (port == nullptr || !CountsExceeded(*port) || !IsActive(port->now.state)) return;
        const Rise exceeded = ExceededRise(*port);
        if (exceeded.by != 0) {
          fact.text += "; port " + PortName(*port) + " counts " + exceeded.names;
          return;
        }
        if (DownBefore(*worker, *which, at)) return;
      }
      fact.text += "; no retries were exceeded at the ports of its ends: a request was refused";
      fact.weight = Weight::kStrong;
      fact.refused_request = true;
      return;
    }
    if (status == kRetryExcErr) {
      Fact& fact =
          Add(FactKind::kRetryExceeded, Weight::kSupport, Component::kUnknown, from, kNetwork, at);
      fact.other = &to;
      fact.device = qp.now.device;
      fact.what = "completion status 12";
      fact.text = name +
                  FactText(": completion status 12 (retries exceeded, vendor %u), ",
                           qp.now.first_bad_vendor) +
                  Ago(at, onset()) + ": the other end did not answer, whatever the reason";
      const bool process_lives = to.alive() && to.exited_ns == 0;
      if (end.qp != nullptr && process_lives && end.qp->destroyed() &&
          end.qp->destroyed_ns <= at + kPollNs) {
        Fact& gone = Add(FactKind::kPeerQpGone, Weight::kStrong, Component::kHost, to, kNetwork,
                         end.qp->destroyed_ns);
        gone.other = &from;
        gone.device = end.qp->now.device;
        gone.what = "the other end of the connection was destroyed";
        gone.text =
            FactText("queue pair %u of %.40s, the other end, was destroyed while its process lives",
                     end.qp->now.number, end.qp->now.device.c_str());
      }
      return;
    }
    if (status == kLocQpOpErr && DownBefore(from, qp, at)) {
      Fact& fact =
          Add(FactKind::kQpBroken, Weight::kSupport, Component::kUnknown, from, kNetwork, at);
      fact.other = &to;
      fact.device = qp.now.device;
      fact.what = "completion status 2";
      fact.text = name + ": completion status 2 (it cannot be sent), " + Ago(at, onset()) +
                  "; its port had gone down";
      return;
    }
    if (status == kRemAccessErr || status == kRemInvReqErr || status == kLocProtErr ||
        status == kLocQpOpErr || status == kLocLenErr) {
      // Address and key of the other end's memory were granted by the other end.
      const bool granted = status == kRemAccessErr;
      Fact& fact = Add(FactKind::kBadRequest, Weight::kDecisive, Component::kApp,
                       granted ? to : from, kNetwork, at);
      fact.other = granted ? &from : &to;
      fact.device = qp.now.device;
      // The responder takes packets of another MTU for a wrong request, too.
      const bool sizes_known =
          end.qp != nullptr && qp.now.path_mtu != 0 && end.qp->now.path_mtu != 0;
      if (status == kRemInvReqErr && !sizes_known) {
        fact.weight = Weight::kStrong;
        fact.component = Component::kUnknown;
      }
      fact.what = FactText("a wrong request, completion status %u", status);
      fact.text = name +
                  FactText(": completion status %u (%s), ", status,
                           status == kRemAccessErr   ? "remote access error"
                           : status == kRemInvReqErr ? "invalid request"
                                                     : "local error of the request") +
                  Ago(at, onset()) +
                  (granted ? ": " + NameOf(to) +
                                 " refuses access to memory that it has granted; "
                                 "application or library"
                           : ": the request is not one that may be made; application or library");
      InTime(&fact);
    }
  }

  void Rnr(const Worker& from, const Worker& to, const Qp& qp, const HardwareModel::QpEnd& end,
           const Port& mine, const Port* theirs) {
    const Rise at_sender = RiseOf(mine, CounterMeaning::kRnrSender, 3);
    const bool gave_up = qp.now.first_bad_status == kRnrRetryExcErr;
    if (!at_sender.excess && !gave_up) return;
    const Rise at_receiver =
        theirs == nullptr ? Rise{} : RiseOf(*theirs, CounterMeaning::kRnrReceiver, 1);
    bool empty_queue = false;
    std::string queue;
    if (end.qp != nullptr) {
      const QpSample& r = end.qp->now;
      const uint64_t in_queue =
          r.receives > r.receive_completions ? r.receives - r.receive_completions : 0;
      if (r.receives == 0) {
        empty_queue = true;
        queue = "; its peer never posted a receive";
      } else if (r.completions_seen && in_queue == 0) {
        empty_queue = true;
        queue = "; the receive queue of its peer is empty";
      } else if (!r.completions_seen && r.last_receive_ns + kSecond < qp.now.last_post_ns) {
        empty_queue = true;
        queue = FactText("; its peer posted its last receive %.1f s before the last send",
                         static_cast<double>(qp.now.last_post_ns - r.last_receive_ns) / 1e9);
      } else if (r.completions_seen) {
        queue = FactText("; its peer has %" PRIu64 " receives posted", in_queue);
      }
    }
    // Counters are of the port: another connection of it may be the one.
    if (!gave_up && in_.stuck && !Outstanding(from, to, qp)) return;
    const bool specific = gave_up || empty_queue || at_receiver.excess || OnlyPeer(from, qp, end);
    Fact& fact =
        Add(FactKind::kReceiverNotReady, specific ? Weight::kDecisive : Weight::kStrong,
            Component::kNic, to, kNetwork, gave_up ? qp.now.first_bad_ns : at_sender.since_ns);
    fact.other = &from;
    fact.device = theirs != nullptr ? PortName(*theirs) : "";
    fact.what = "receiver not ready";
    fact.text = "receiver not ready: " + NameOf(to) + " does not post receives for " + NameOf(from);
    if (at_sender.excess) fact.text += " (" + at_sender.names + " at the sender)";
    if (gave_up) fact.text += FactText(" (completion status 13 on queue pair %u)", qp.now.number);
    if (at_receiver.excess) fact.text += " (" + at_receiver.names + " at the receiver)";
    fact.text += queue;
    const auto& timer = end.qp != nullptr ? end.qp->now.min_rnr_timer : qp.now.min_rnr_timer;
    if (timer) fact.text += FactText("; each retry waits at least %.2f ms", RnrTimerMs(*timer));
    if (end.qp != nullptr && end.qp->now.completions_seen && !specific) {
      fact.refused = "the receive queue of the peer is not empty";
    }
  }

  // Something that was handed over is not acknowledged. By the flows, where the completions
  // were not seen.
  static bool Outstanding(const Worker& from, const Worker& to, const Qp& qp) {
    if (qp.now.completions_seen && qp.now.last_completion_ns < qp.now.last_post_ns) return true;
    for (const auto& [line, member] : from.members) {
      for (const auto& [index, flow] : member->flows) {
        auto peer = member->comm->members.find(flow.peer);
        if (flow.direction != MC_SEND || flow.owner_pid != 0 || flow.open_ops == 0 ||
            peer == member->comm->members.end() || peer->second->worker != &to) {
          continue;
        }
        if (flow.state == MC_FLOW_SEND_NET || flow.transmitted > flow.done) return true;
      }
    }
    return false;
  }

  // All connections of the sender's port lead to the process at this other end.
  bool OnlyPeer(const Worker& from, const Qp& qp, const HardwareModel::QpEnd& end) const {
    const HostHardware* host = hw_.FindHost(from.host);
    if (host == nullptr || end.qp == nullptr) return false;
    for (const auto& [key, process] : host->processes) {
      for (const auto& [place, other] : process.qps) {
        if (other.destroyed() || other.now.device != qp.now.device ||
            other.now.port != qp.now.port || other.now.remote_number == 0) {
          continue;
        }
        const HardwareModel::QpEnd there = hw_.Remote(*host, other);
        if (there.qp == &other) continue;  // the flush loop
        if (there.qp == nullptr || there.host != end.host || there.qp->process != end.qp->process) {
          return false;
        }
      }
    }
    return true;
  }

  // InfiniBand Architecture Specification, table 45: 0 is 655.36 ms.
  static double RnrTimerMs(uint32_t code) {
    static constexpr std::array<double, 32> kMs = {
        655.36, 0.01,  0.02,  0.03,  0.04,  0.06,   0.08,   0.12,   0.16,   0.24,  0.32,
        0.48,   0.64,  0.96,  1.28,  1.92,  2.56,   3.84,   5.12,   7.68,   10.24, 15.36,
        20.48,  30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52};
    return kMs[code & 31];
  }

  void Loss(const Worker& from, const Worker& to, const Port& mine, const Port* theirs) {
    const Rise sender = RiseOf(mine, CounterMeaning::kLossSender, 3);
    const Rise receiver =
        theirs == nullptr ? Rise{} : RiseOf(*theirs, CounterMeaning::kLossReceiver, 3);
    if (sender.excess) {
      // Both ends must be known to be well, else the loss may be theirs.
      const bool countable = theirs != nullptr && Counts(*theirs, CounterMeaning::kLossReceiver);
      const bool both = theirs != nullptr && (receiver.excess || !countable);
      Fact& fact = Add(FactKind::kPacketLoss, both ? Weight::kStrong : Weight::kSupport,
                       Component::kFabric, from, kNetwork & ~ShapeBit(S::kNode), sender.since_ns);
      fact.other = &to;
      fact.device = PortName(mine) + (theirs != nullptr ? " to " + PortName(*theirs) : "");
      fact.what =
          (theirs != nullptr ? "packets are lost from " : "packets are lost at ") + fact.device;
      fact.text = "packets are lost between port " + PortName(mine) + " of " + NameOf(from) +
                  " and " + (theirs != nullptr ? "port " + PortName(*theirs) + " of " : "") +
                  NameOf(to) + ": " + sender.names +
                  (receiver.excess ? " at the sender, " + receiver.names + " at the receiver" : "");
    }
    const Rise congestion = RiseOf(mine, CounterMeaning::kCongestion, 10);
    if (congestion.excess) {
      Fact& fact = Add(FactKind::kCongestion, Weight::kSupport, Component::kFabric, from,
                       kNetwork & ~ShapeBit(S::kNode), congestion.since_ns);
      fact.other = &to;
      fact.device = PortName(mine);
      fact.what = "congestion";
      fact.text = "port " + PortName(mine) + " of " + NameOf(from) +
                  " is told to send less: " + congestion.names;
    }
  }

  // Posts without completions, while the port of one end serves other connections.
  void Stall(const HostHardware& here, const Worker& from, const Worker& to,
             const std::vector<const Qp*>& qps) {
    const uint64_t settled = onset() + kSecond / 5;
    const Qp* stalled = nullptr;
    for (const Qp* qp : qps) {
      if (!qp->now.completions_seen || qp->total_posts() == 0) continue;  // or not visible
      if (qp->now.last_completion_ns >= qp->now.last_post_ns) continue;
      if (qp->now.last_completion_ns > settled) return;
      stalled = qp;
    }
    if (stalled == nullptr || !in_.stuck) return;
    auto port_lives = [&](const HostHardware& host, const Qp& qp) {
      for (const auto& [key, process] : host.processes) {
        for (const auto& [place, other] : process.qps) {
          if (&other == &qp || other.now.device != qp.now.device || other.now.port != qp.now.port) {
            continue;
          }
          if (other.now.completions_seen && other.now.last_completion_ns > settled &&
              other.now.completions > other.now.failed_completions) {
            return true;
          }
        }
      }
      return false;
    };
    const HardwareModel::QpEnd end = hw_.Remote(here, *stalled);
    const bool here_lives = port_lives(here, *stalled);
    const bool there_lives = end.qp != nullptr && port_lives(*end.host, *end.qp);
    Fact& fact =
        Add(FactKind::kQpStalled, Weight::kSupport, Component::kNic,
            there_lives && !here_lives ? from : to, kNetwork, stalled->now.last_completion_ns);
    fact.other = there_lives && !here_lives ? &to : &from;
    fact.device = stalled->now.device;
    fact.what = FactText("queue pair %u completes nothing", stalled->now.number);
    fact.text = FactText("queue pair %u of %.40s (%s to %s) has posts without completions",
                         stalled->now.number, stalled->now.device.c_str(), NameOf(from).c_str(),
                         NameOf(to).c_str());
    if (here_lives) fact.text += "; other connections of the sender's port complete";
    if (there_lives) fact.text += "; other connections of the receiver's port complete";
    // One end works for others, the other end for nobody: there it is.
    if (here_lives != there_lives && end.qp != nullptr) fact.weight = Weight::kStrong;
  }

  const EvidenceInput& in_;
  const HardwareModel& hw_;
  std::vector<Fact> facts_;
};

}  // namespace

Fact& AddFact(std::vector<Fact>* facts, FactKind kind, Weight weight, Component component,
              const Worker& worker, uint32_t shapes, uint64_t since_ns) {
  Fact fact;
  fact.kind = kind;
  fact.weight = weight;
  fact.component = component;
  fact.worker = &worker;
  fact.shapes = shapes;
  fact.since_ns = since_ns;
  facts->push_back(std::move(fact));
  return facts->back();
}

std::vector<Fact> FindFacts(const EvidenceInput& input) { return Finder(input).Find(); }

std::vector<BrokenEdge> BrokenEdges(const HardwareModel& hardware,
                                    const std::vector<Worker*>& job) {
  std::vector<BrokenEdge> broken;
  for (const auto& [from, to] : EdgesOfFlows(job)) {
    const HostHardware* here = hardware.FindHost(from->host);
    if (here == nullptr || !from->alive() || !to->alive()) continue;
    BrokenEdge edge;
    edge.from = from;
    edge.to = to;
    for (const Qp* qp : QpsOfEdge(hardware, *from, *to)) {
      for (const Qp* end : {qp, hardware.Remote(*here, *qp).qp}) {
        if (end == nullptr || end->destroyed() || !Failed(*end)) continue;
        const uint64_t at = FailedAt(*end);
        if (edge.qp != nullptr && edge.failed_ns <= at) continue;
        edge.qp = end;
        edge.failed_ns = at;
      }
    }
    if (edge.qp == nullptr) continue;
    // It went on without it, by another connection.
    if (std::min(from->last_end_ns, to->last_end_ns) > edge.failed_ns + kPollNs) continue;
    edge.named = edge.qp->now.first_bad_status != 0 && !AfterEffect(*edge.qp);
    broken.push_back(edge);
  }
  // Those of which the error is known come before those that are only seen in that state:
  // these may have been flushed, or closed, for that.
  if (std::any_of(broken.begin(), broken.end(), [](const auto& e) { return e.named; })) {
    std::erase_if(broken, [](const BrokenEdge& e) { return !e.named; });
  }
  // What fails long after the first is what the first does to the others.
  uint64_t first = UINT64_MAX;
  for (const BrokenEdge& edge : broken) first = std::min(first, edge.failed_ns);
  std::erase_if(broken, [&](const BrokenEdge& e) { return e.failed_ns > first + kPollNs; });
  return broken;
}

bool Explains(const Fact& cause, const Fact& effect) {
  if (&cause == &effect || !cause.refused.empty()) return false;
  using K = FactKind;
  auto is = [](K kind, std::initializer_list<K> kinds) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  const bool same_worker = cause.worker == effect.worker;
  // The two ends of a connection, or the same worker.
  const bool touches = same_worker || cause.worker == effect.other || cause.other == effect.worker;
  switch (cause.kind) {
    case K::kGpuGone:
      // Its neighbours see their links to it go down.
      if (cause.worker->host == effect.worker->host &&
          is(effect.kind, {K::kNvlinkErrors, K::kNvlinkReplays})) {
        return true;
      }
      return same_worker &&
             is(effect.kind,
                {K::kXid, K::kGpuHangs, K::kThermal, K::kPowerLimit, K::kEccErrors,
                 K::kEccCorrected, K::kSpins, K::kAerUncorrectable, K::kAerCorrectable,
                 K::kLinkDegraded, K::kDmaFault, K::kReads, K::kBlocked, K::kStreamBlocked,
                 K::kKernelDoesNotEnd, K::kNotScheduled, K::kNothingLaunched, K::kCopiesSlow});
    case K::kNicGone:
      return (same_worker && is(effect.kind, {K::kAerUncorrectable, K::kAerCorrectable,
                                              K::kLinkDegraded, K::kDmaFault, K::kBlocked})) ||
             (touches && is(effect.kind, {K::kQpBroken, K::kPortDown, K::kPortFlap,
                                          K::kPhysicalErrors, K::kRetryExceeded, K::kPacketLoss,
                                          K::kPeerQpGone, K::kQpStalled, K::kReceiverNotReady}));
    case K::kPortDown:
      // A port without a partner polls for one; one that is switched off does not.
      if (cause.disabled && effect.kind == K::kPortDown && !effect.disabled) return true;
      [[fallthrough]];
    case K::kPortFlap:
      return touches && is(effect.kind, {K::kQpBroken, K::kPhysicalErrors, K::kRetryExceeded,
                                         K::kPacketLoss, K::kCongestion, K::kPauses, K::kQpStalled,
                                         K::kPeerQpGone, K::kReceiverNotReady});
    case K::kPhysicalErrors:
      return touches && cause.weight >= Weight::kStrong &&
             is(effect.kind, {K::kRetryExceeded, K::kPacketLoss, K::kCongestion, K::kQpStalled});
    case K::kWrongGid:
      return touches &&
             is(effect.kind, {K::kRetryExceeded, K::kPacketLoss, K::kQpStalled, K::kQpBroken});
    case K::kMtuMismatch:  // and packets that are longer or shorter than the other end expects
      return touches && is(effect.kind, {K::kRetryExceeded, K::kPacketLoss, K::kQpStalled,
                                         K::kQpBroken, K::kBadRequest});
    case K::kPeerQpGone:
      return touches &&
             is(effect.kind, {K::kRetryExceeded, K::kPacketLoss, K::kQpStalled, K::kQpBroken});
    case K::kStarved:
    case K::kReclaim:
    case K::kBlocked:
      return same_worker && is(effect.kind, {K::kReceiverNotReady, K::kPauses, K::kQpStalled,
                                             K::kNothingLaunched});
    case K::kOomKill:
      return touches && is(effect.kind, {K::kReclaim, K::kStarved, K::kBlocked, K::kRetryExceeded,
                                         K::kPacketLoss, K::kPeerQpGone, K::kMemlock});
    case K::kPcieCeiling:
    case K::kLinkDegraded:
      if (same_worker && effect.kind == K::kCopiesSlow) return true;
      return touches &&
             is(effect.kind, {K::kPauses, K::kCongestion, K::kPacketLoss, K::kAerCorrectable});
    case K::kAerUncorrectable:
      return same_worker && is(effect.kind, {K::kAerCorrectable, K::kLinkDegraded, K::kDmaFault});
    case K::kReceiverNotReady:
      return touches && is(effect.kind, {K::kPacketLoss, K::kQpStalled, K::kRetryExceeded,
                                         K::kPauses, K::kQpBroken});
    case K::kBadRequest:
      return touches &&
             is(effect.kind, {K::kQpStalled, K::kPeerQpGone, K::kPacketLoss, K::kQpBroken});
    case K::kPacketLoss:
      return touches && is(effect.kind, {K::kRetryExceeded, K::kQpStalled, K::kCongestion});
    case K::kPauses:
      return touches && is(effect.kind, {K::kCongestion});
    case K::kXid:
      return same_worker && cause.weight >= Weight::kStrong &&
             is(effect.kind, {K::kGpuHangs, K::kEccErrors, K::kEccCorrected, K::kNvlinkErrors,
                              K::kNvlinkReplays, K::kSpins, K::kStreamBlocked, K::kKernelDoesNotEnd,
                              K::kNotScheduled, K::kNothingLaunched});
    case K::kNvlinkErrors:
      return same_worker && is(effect.kind, {K::kNvlinkReplays, K::kSpins, K::kNothingLaunched});
    case K::kGpuHangs:
      return same_worker &&
             is(effect.kind, {K::kBlocked, K::kSpins, K::kStreamBlocked, K::kKernelDoesNotEnd,
                              K::kNotScheduled, K::kNothingLaunched});
    case K::kThermal:
    case K::kPowerLimit:
      return same_worker && is(effect.kind, {K::kKernelsSlow});
    case K::kReads:
    case K::kMemlock:
    case K::kEccErrors:
      return same_worker && is(effect.kind, {K::kNothingLaunched});
    case K::kKernelDoesNotEnd:
      return same_worker && is(effect.kind, {K::kStreamBlocked, K::kNotScheduled});
    case K::kStreamBlocked:
    case K::kNotScheduled:
    case K::kKernelsSlow:
    case K::kCopiesSlow:
    case K::kNothingInFront:
    case K::kNothingLaunched:
    case K::kEccCorrected:
    case K::kNvlinkReplays:
    case K::kSpins:
    case K::kRetryExceeded:
    case K::kCongestion:
    case K::kAerCorrectable:
    case K::kAcsRedirect:
    case K::kDmaFault:
    case K::kQpStalled:
    case K::kQpBroken:
      return false;
  }
  return false;
}

std::string GpuOf(const HardwareModel& hardware, const Worker& worker) {
  const ProcessState* process = hardware.FindProcess(worker.host, worker.key);
  return process != nullptr && process->now.gpus.size() == 1 ? process->now.gpus[0] : std::string();
}

std::vector<const Port*> PortsOf(const HardwareModel& hardware, const Worker& worker) {
  std::vector<const Port*> ports;
  const ProcessState* process = hardware.FindProcess(worker.host, worker.key);
  if (process == nullptr) return ports;
  for (const auto& [place, qp] : process->qps) {
    const Port* port = hardware.FindPort(worker.host, qp.now.device, qp.now.port);
    if (port == nullptr || std::find(ports.begin(), ports.end(), port) != ports.end()) continue;
    ports.push_back(port);
  }
  if (!process->qps.empty() || process->now.rdma_devices.size() != 1) return ports;
  // Its queue pairs are not seen, but there is no choice: NCCL opens all devices that it may
  // use.
  const HostHardware* host = hardware.FindHost(worker.host);
  if (host == nullptr) return ports;
  for (const auto& [place, port] : host->ports) {
    if (place.first == process->now.rdma_devices[0]) ports.push_back(&port);
  }
  if (ports.size() > 1) ports.clear();
  return ports;
}

std::string PortName(const Port& port) {
  return port.now.device.substr(0, 40) + "/" + std::to_string(port.now.port);
}

CounterHistory TrafficOf(const HardwareModel& hardware, const Worker& worker,
                         const PciDevice& device) {
  auto busier = [](const CounterHistory& a, const CounterHistory& b) {
    return a.Increase(0, UINT64_MAX).value_or(0) >= b.Increase(0, UINT64_MAX).value_or(0) ? a : b;
  };
  if (device.rx_bytes.known() || device.tx_bytes.known()) {
    return busier(device.rx_bytes, device.tx_bytes);
  }
  if (device.now.kind == PciKind::kGpu) {
    const ProcessState* process = hardware.FindProcess(worker.host, worker.key);
    if (process == nullptr) return CounterHistory();
    return busier(process->sent_bytes, process->received_bytes);
  }
  const HostHardware* host = hardware.FindHost(worker.host);
  if (host == nullptr) return CounterHistory();
  // Ports count in units of four bytes (IBTA PortCountersExtended); a device may have
  // two ports.
  auto sum_of = [&](const char* name) {
    std::vector<const CounterHistory*> parts;
    std::set<uint64_t> times;
    for (const auto& [key, port] : host->ports) {
      if (port.now.pci != device.now.address) continue;
      auto it = port.counters.find(name);
      if (it == port.counters.end()) continue;
      parts.push_back(&it->second);
      for (const auto& point : it->second.points()) times.insert(point.t_ns);
    }
    CounterHistory sum(256);
    for (uint64_t t : times) {
      double bytes = 0;
      for (const CounterHistory* part : parts) {
        bytes += 4.0 * static_cast<double>(part->Increase(0, t).value_or(0));
      }
      sum.Add(t, static_cast<uint64_t>(std::min(bytes, 1.8e19)));
    }
    return sum;
  };
  return busier(sum_of("port_rcv_data"), sum_of("port_xmit_data"));
}

EdgeSet EdgesOfFlows(const std::vector<Worker*>& job) {
  EdgeSet edges;
  for (const Worker* worker : job) {
    for (const auto& [line, member] : worker->members) {
      for (const auto& [index, flow] : member->flows) {
        if (flow.owner_pid != 0) continue;
        auto peer = member->comm->members.find(flow.peer);
        if (peer == member->comm->members.end() || peer->second->worker == worker) continue;
        if (flow.direction == MC_SEND) {
          edges.insert({worker, peer->second->worker});
        } else {
          edges.insert({peer->second->worker, worker});
        }
      }
    }
  }
  return edges;
}

}  // namespace mycroft
