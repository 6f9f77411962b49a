// SPDX-License-Identifier: Apache-2.0
#include "userspace/detect/suspicion.h"

#include <algorithm>
#include <cstdio>
#include <set>

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kStillNs = 300'000'000;          // well before a stall is called one
constexpr uint64_t kUnknownRhythmNs = 5 * kSecond;  // first iterations are slow
constexpr uint64_t kQuietAfterNs = 5 * kSecond;
constexpr uint64_t kLongestNs = 60 * kSecond;
constexpr uint64_t kRestNs = 60 * kSecond;
constexpr uint64_t kLeaseNs = 10 * kSecond;  // an agent that hears nothing disarms after that

// Twice the usual is suspicious.
uint64_t SuspiciousWait(const Worker& worker) {
  const std::optional<uint64_t> usual = UsualHead(worker, 64);
  return std::max(kStillNs, usual ? 2 * *usual : kUnknownRhythmNs);
}

bool WaitsForNetwork(const FlowSample& flow) {
  return flow.open_ops > 0 && flow.owner_pid == 0 &&
         (flow.state == MC_FLOW_SEND_NET || flow.state == MC_FLOW_SEND_PEER ||
          flow.state == MC_FLOW_RECV_REMOTE);
}

}  // namespace

std::map<std::string, DeepProbes> SuspicionPolicy::Update(
    const JobModel& job, const HardwareModel& hardware,
    const std::map<size_t, CycleDetector>& detectors) {
  const uint64_t now = job.now_ns();
  WorkerMap<std::string> suspected;
  for (const auto& worker : job.workers()) {
    if (!worker->alive()) continue;
    char text[96];
    const Op* head = worker->HeadOp();
    const uint64_t moved = head != nullptr ? LastMovement(*worker, *head) : 0;
    const auto detector = detectors.find(worker->index);
    if (head != nullptr && now >= moved + SuspiciousWait(*worker)) {
      std::snprintf(text, sizeof(text), "rank %d has not moved for %.1f s", worker->job_rank,
                    static_cast<double>(now - moved) / 1e9);
    } else if (detector != detectors.end() && detector->second.slow()) {
      std::snprintf(text, sizeof(text), "the cycles of rank %d have become long", worker->job_rank);
    } else {
      continue;
    }
    suspected[worker.get()] = text;
    // Those it waits for, even if they do nothing: they are the ones of interest.
    if (head == nullptr) continue;
    for (const auto& [line, flow] : head->member->flows) {
      if (flow.op_id != head->s.id || !WaitsForNetwork(flow)) continue;
      auto peer = head->member->comm->members.find(flow.peer);
      if (peer == head->member->comm->members.end() || !peer->second->worker->alive()) continue;
      suspected.emplace(peer->second->worker, "a peer waits for it");
    }
  }
  std::map<std::string, std::vector<const Worker*>> by_host;
  for (const auto& [worker, reason] : suspected) by_host[worker->host].push_back(worker);
  for (const auto& [name, workers] : by_host) hosts_.try_emplace(name);

  std::map<std::string, DeepProbes> plan;
  for (auto it = hosts_.begin(); it != hosts_.end();) {
    auto& [name, host] = *it;
    const auto found = by_host.find(name);
    if (found != by_host.end()) host.last_suspicious_ns = now;
    const bool calm = now >= host.last_suspicious_ns + kQuietAfterNs;
    if (calm && now >= host.rests_until_ns) {
      it = hosts_.erase(it);
      continue;
    }
    ++it;
    if (calm || now < host.rests_until_ns) {
      host.armed_since_ns = 0;
      continue;
    }
    if (host.armed_since_ns == 0) host.armed_since_ns = now;
    if (now >= host.armed_since_ns + kLongestNs) {
      host.armed_since_ns = 0;
      host.rests_until_ns = now + kRestNs;
      continue;
    }
    if (found == by_host.end()) {  // it calms down: what is armed stays a little longer
      plan[name] = host.probes;
      continue;
    }
    DeepProbes probes;
    probes.until_ns = std::min(now + kLeaseNs, host.armed_since_ns + kLongestNs);
    std::set<std::string> devices;
    const HostHardware* hw = hardware.FindHost(name);
    for (const Worker* worker : found->second) {
      if (probes.reason.empty()) probes.reason = suspected[worker];
      if (const HostSample* host = worker->host_now()) {
        for (const ThreadSample& thread : host->threads) {
          if (thread.tid == 0 || thread.roles == 0) continue;
          if (probes.threads.size() < kMostThreads) {
            probes.threads.push_back({worker->key, thread.tid});
          }
        }
      }
      const ProcessState* process = hardware.FindProcess(name, worker->key);
      if (process == nullptr || hw == nullptr) continue;
      // Connections to other suspects first: one of them carries what does not arrive.
      std::vector<DeepProbes::Qp> others;
      for (const auto& [place, qp] : process->qps) {
        if (qp.destroyed()) continue;
        const HardwareModel::QpEnd end = hardware.Remote(*hw, qp);
        const bool to_suspect =
            end.qp != nullptr && end.qp != &qp &&
            std::any_of(suspected.begin(), suspected.end(), [&](const auto& item) {
              return item.first->key == end.qp->process && item.first->host == end.host->name;
            });
        const DeepProbes::Qp named{worker->key, place.first, place.second};
        if (!to_suspect) {
          if (others.size() < kMostQps) others.push_back(named);
        } else if (probes.qps.size() < kMostQps) {
          probes.qps.push_back(named);
        }
        const Port* port = hardware.FindPort(name, qp.now.device, qp.now.port);
        if (port == nullptr) continue;
        for (const PciDevice* hop : HardwareModel::PathToRoot(*hw, port->now.pci)) {
          devices.insert(hop->now.address);
        }
      }
      for (const DeepProbes::Qp& qp : others) {
        if (probes.qps.size() < kMostQps) probes.qps.push_back(qp);
      }
      for (const std::string& gpu : process->now.gpus) {
        for (const PciDevice* hop : HardwareModel::PathToRoot(*hw, gpu)) {
          devices.insert(hop->now.address);
        }
      }
    }
    for (const std::string& device : devices) {
      if (probes.devices.size() < kMostDevices) probes.devices.push_back(device);
    }
    std::sort(probes.threads.begin(), probes.threads.end());
    probes.threads.erase(std::unique(probes.threads.begin(), probes.threads.end()),
                         probes.threads.end());
    std::sort(probes.qps.begin(), probes.qps.end());
    probes.qps.erase(std::unique(probes.qps.begin(), probes.qps.end()), probes.qps.end());
    host.probes = probes;
    plan[name] = std::move(probes);
  }
  return plan;
}

}  // namespace mycroft
