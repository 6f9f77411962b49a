// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/testing/synthetic_job.h"

#include <algorithm>
#include <cmath>

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kWallOffset = 1'700'000'000'000'000'000;
constexpr uint64_t kGpuOffset = 1'234'567'890'123;

std::string HostName(int host) { return "node-" + std::to_string(host); }

}  // namespace

SyntheticJob::SyntheticJob(const SyntheticOptions& options)
    : options_(options), random_(options.seed) {
  Comm world;
  world.id = 0x9a40ddbf57b04e;
  world.name = "world";
  for (int rank = 0; rank < options_.ranks; ++rank) world.ranks.push_back(rank);
  comms_.push_back(world);
  if (options_.pairs) {
    for (int rank = 0; rank + 1 < options_.ranks; rank += 2) {
      comms_.push_back({0x77aa00 + static_cast<uint64_t>(rank),
                        "tp" + std::to_string(rank / 2),
                        {rank, rank + 1}});
    }
  }
  ranks_.resize(options_.ranks);
  for (size_t c = 0; c < comms_.size(); ++c) {
    comms_[c].per_func.resize(16);
    for (int rank : comms_[c].ranks) {
      ranks_[rank].comms.push_back(static_cast<int>(c));
      ranks_[rank].flows.emplace_back(2 * options_.channels);
      ranks_[rank].sampled.emplace_back();
    }
  }
  for (Rank& rank : ranks_) rank.free_at.assign(rank.comms.size(), options_.start_ns + 20 * kMs);
  now_ = options_.start_ns;
  if (options_.stuck_rank >= 0 && options_.stuck_at_s < options_.duration_s) {
    stuck_after_ns_ = options_.start_ns + static_cast<uint64_t>(options_.stuck_at_s * 1e9);
    while (stuck_ns_ == UINT64_MAX) Plan(planned_ + 1'000 * kMs);
  }
}

double SyntheticJob::Uniform(double low, double high) {
  // Not std::uniform_real_distribution: its result differs between libraries.
  return low + (high - low) * (static_cast<double>(random_() >> 11) * 0x1p-53);
}

uint64_t SyntheticJob::Jitter(double mean, double spread) {
  // A bell with a tail to the right, as latencies have.
  double x = 0;
  for (int i = 0; i < 3; ++i) x += Uniform(-1, 1);
  if (Uniform(0, 1) < 0.03) x += Uniform(0, 6);
  return static_cast<uint64_t>(std::max(mean * 0.1, mean * (1 + spread * x)));
}

uint64_t SyntheticJob::Real(uint64_t job_ns) const {
  if (job_ns <= stuck_ns_) return job_ns;
  if (stuck_end_ns_ == UINT64_MAX) return UINT64_MAX;
  return job_ns + (stuck_end_ns_ - stuck_ns_);
}

uint64_t SyntheticJob::Job(uint64_t real_ns) const {
  if (real_ns <= stuck_ns_) return real_ns;
  if (real_ns <= stuck_end_ns_) return stuck_ns_;
  return real_ns - (stuck_end_ns_ - stuck_ns_);
}

bool SyntheticJob::Stuck(uint64_t real_ns) const {
  return real_ns > stuck_ns_ && real_ns <= stuck_end_ns_;
}

uint64_t SyntheticJob::PlanOp(int c, mc_func func, uint64_t count, uint64_t gap) {
  Comm& comm = comms_[c];
  Op op;
  op.comm = c;
  op.func = func;
  op.ordinal = comm.ops++;
  op.nccl_seq = comm.per_func[func]++;
  op.count = count;
  op.steps = static_cast<uint32_t>(std::clamp<uint64_t>(count / 65536, 4, 64));
  op.step_bytes = count * 4 / op.steps;
  const auto free_at = [&](int rank) -> uint64_t& {
    Rank& state = ranks_[rank];
    const auto at = std::find(state.comms.begin(), state.comms.end(), c) - state.comms.begin();
    return state.free_at[options_.overlap ? at : 0];
  };
  uint64_t begin = 0, planned = 0;
  for (int rank : comm.ranks) {
    RankPlan plan;
    Rank& state = ranks_[rank];
    plan.id = state.next_id++;
    plan.api = free_at(rank) + Jitter(static_cast<double>(gap), 0.08);
    plan.start = plan.api + Jitter(28'000, 0.2);
    plan.first = plan.start + Jitter(9'000, 0.2);
    plan.stop = plan.first + Jitter(6'000, 0.2);
    plan.progress = plan.first + Jitter(15'000, 0.3);
    plan.kernel_start = plan.stop + Jitter(40'000, 0.3);
    begin = std::max(begin, plan.progress);
    op.ranks.push_back(plan);
  }
  // Two thirds of the time between operations is spent in them.
  const double length =
      0.6e9 / options_.ops_per_s * (static_cast<double>(op.steps) / 64 * 0.8 + 0.2);
  const uint64_t step = Jitter(length / op.steps, 0.06);
  for (size_t r = 0; r < op.ranks.size(); ++r) {
    RankPlan& plan = op.ranks[r];
    for (int f = 0; f < 2 * options_.channels; ++f) {
      FlowPlan flow;
      flow.begin = begin + Jitter(30'000, 0.4);
      flow.step_ns = Jitter(static_cast<double>(step), 0.01);
      flow.late = flow.begin - plan.progress;
      flow.posted_lag = static_cast<uint32_t>(Jitter(static_cast<double>(flow.step_ns) * 2, 0.2));
      flow.ready_lag = static_cast<uint32_t>(Jitter(1'500, 0.3));
      flow.done_lag = static_cast<uint32_t>(Jitter(static_cast<double>(flow.step_ns) / 2, 0.2));
      // The first wait is what is left of the time; flush and peer are short.
      flow.share[1] = Uniform(0.01, 0.02);
      flow.share[2] = Uniform(0.22, 0.28);
      flow.share[0] = f % 2 == 0 ? 0.97 - flow.share[1] : 0.97;
      const uint64_t end = flow.begin + flow.step_ns * op.steps + flow.done_lag;
      plan.last = std::max(plan.last, end);
      plan.flows.push_back(flow);
    }
    plan.kernel_stop = plan.last + Jitter(50'000, 0.3);
    const auto drift = [&](uint64_t t) { return t - t / 100'000; };
    plan.gpu_start = kGpuOffset + drift(plan.kernel_start - Jitter(8'000, 0.4));
    plan.gpu_stop = kGpuOffset + drift(plan.kernel_stop - Jitter(8'000, 0.4));
    free_at(comm.ranks[r]) = plan.kernel_stop;
    planned = std::max(planned, plan.kernel_stop);
  }
  if (stuck_ns_ == UINT64_MAX && c == 0 && begin > stuck_after_ns_) {
    // When two fifths of it are done.
    stuck_ns_ = begin + static_cast<uint64_t>(length * 0.4);
    if (options_.stuck_for_s < 1e8) {
      stuck_end_ns_ = stuck_ns_ + static_cast<uint64_t>(options_.stuck_for_s * 1e9);
    }
  }
  ops_.push_back(std::move(op));
  return planned;
}

void SyntheticJob::Plan(uint64_t until) {
  while (planned_ < until) {
    const auto compute = static_cast<uint64_t>(0.4e9 / options_.ops_per_s);
    // An iteration: forward and backward with tensor-parallel sums, then gradients.
    uint64_t pairs_done = UINT64_MAX;
    if (options_.pairs) {
      for (size_t c = 1; c < comms_.size(); ++c) {
        PlanOp(static_cast<int>(c), MC_FUNC_ALLGATHER, 1 << 20, compute * 2);
        pairs_done = PlanOp(static_cast<int>(c), MC_FUNC_REDUCESCATTER, 1 << 20, compute / 2);
      }
    }
    PlanOp(0, MC_FUNC_ALLREDUCE, 6 << 20, compute);
    planned_ = PlanOp(0, MC_FUNC_ALLREDUCE, iteration_ % 8 == 7 ? 1 << 16 : 3 << 20, compute / 2);
    if (options_.overlap) planned_ = std::min(planned_, pairs_done);
    ++iteration_;
  }
}

OpSample SyntheticJob::SampleOp(const Op& op, int r, uint64_t now) const {
  const RankPlan& plan = op.ranks[r];
  const uint64_t job_now = Job(now);
  const auto seen = [&](uint64_t job_ns) -> uint64_t {
    return job_ns <= job_now ? Real(job_ns) : 0;
  };
  const int rank = comms_[op.comm].ranks[r];
  const Rank& state = ranks_[rank];
  OpSample sample;
  sample.id = plan.id;
  for (size_t i = 0; i < state.comms.size(); ++i) {
    if (state.comms[i] == op.comm) sample.comm = static_cast<uint32_t>(i);
  }
  sample.comm_generation = 1;
  sample.kind = MC_OP_COLL;
  sample.func = op.func;
  sample.datatype = MC_TYPE_FLOAT32;
  sample.algo = MC_ALGO_RING;
  sample.proto = MC_PROTO_SIMPLE;
  sample.channels = static_cast<uint8_t>(options_.channels);
  sample.ordinal = op.ordinal;
  sample.nccl_seq = op.nccl_seq;
  sample.count = op.count;
  sample.stream = 0x7f0012340000 + static_cast<uint64_t>(rank) * 0x10000;
  sample.group_id = plan.id;
  sample.api_ns = Real(plan.api);
  sample.start_ns = Real(plan.start);
  sample.stop_ns = seen(plan.stop);
  if (plan.first > job_now) return sample;
  const auto flows = static_cast<uint16_t>(plan.flows.size());
  sample.proxy_started = flows;
  sample.proxy_first_ns = Real(plan.first);
  sample.proxy_progress_ns = seen(plan.progress);
  sample.proxy_progress = sample.proxy_progress_ns != 0 ? flows : 0;
  sample.steps_total = uint64_t{op.steps} * flows;
  for (int f = 0; f < flows; ++f) {
    const FlowPlan& flow = plan.flows[f];
    const uint64_t end = flow.begin + flow.step_ns * op.steps + flow.done_lag;
    const uint64_t until = std::min(job_now, end);
    if (until <= flow.begin) continue;
    const uint64_t steps = std::min<uint64_t>((until - flow.begin) / flow.step_ns, op.steps);
    sample.steps_done += steps;
    const bool send = f % 2 == 0;
    (send ? sample.bytes_sent : sample.bytes_received) += steps * op.step_bytes;
    const int base = send ? MC_WAIT_SEND_GPU : MC_WAIT_RECV_REMOTE;
    std::array<uint64_t, 3> wait{};
    for (int w = 0; w < 3; ++w) {
      wait[w] = static_cast<uint64_t>(static_cast<double>(until - flow.begin) * flow.share[w]);
      if (w == 0) wait[w] += flow.late;
    }
    // While stuck: the culprit's GPU does not fill, everyone else waits for data.
    if (now > stuck_ns_ && flow.begin <= stuck_ns_ && end > stuck_ns_) {
      const bool culprit = rank == options_.stuck_rank;
      wait[send || !culprit ? 0 : 2] += std::min(now, stuck_end_ns_) - stuck_ns_;
    }
    const auto slowest = [&](mc_max_wait which, uint64_t ns) {
      sample.max_wait_ns[which] = std::max(sample.max_wait_ns[which], ns);
    };
    for (int w = 0; w < 3; ++w) sample.wait_ns[base + w] += wait[w];
    if (!send) slowest(MC_MAX_RECV_FLUSH, wait[1]);
    slowest(send ? MC_MAX_SEND_NET : MC_MAX_RECV_GPU, wait[2]);
    const uint64_t mean = Real(flow.begin + flow.step_ns * steps / 2);
    uint32_t& count = send ? sample.send_steps : sample.recv_steps;
    count += static_cast<uint32_t>(steps);
    (send ? sample.send_posted_sum_ns : sample.recv_posted_sum_ns) +=
        steps * (mean - flow.posted_lag) + flow.done_lag % 1000;
    (send ? sample.send_done_sum_ns : sample.recv_data_sum_ns) +=
        steps * mean + flow.posted_lag % 1000;
    if (end <= job_now) {
      ++sample.proxy_done;
      sample.proxy_last_ns = std::max(sample.proxy_last_ns, Real(end));
    }
  }
  if (options_.kernels && plan.kernel_start <= job_now) {
    sample.kernel_started = static_cast<uint16_t>(options_.channels);
    sample.kernel_start_seen_ns = Real(plan.kernel_start);
    sample.kernel_gpu_start = plan.gpu_start;
    if (plan.kernel_stop <= job_now) {
      sample.kernel_stopped = sample.kernel_started;
      sample.kernel_stop_seen_ns = Real(plan.kernel_stop);
      sample.kernel_gpu_stop = plan.gpu_stop + (Real(plan.kernel_stop) - plan.kernel_stop);
    }
  }
  return sample;
}

ProcessSample SyntheticJob::SampleProcess(int rank, uint64_t now) {
  Rank& state = ranks_[rank];
  const uint64_t job_now = Job(now);
  ProcessSample process;
  process.key = {static_cast<uint32_t>(4000 + rank), 777'000 + static_cast<uint64_t>(rank)};
  if (!state.announced) process.name = "train.py";
  state.announced = true;
  process.profiler_api = 5;
  process.level = options_.kernels ? MC_LEVEL_KERNELS : MC_LEVEL_STEPS;
  std::vector<CommSample> comms;
  for (size_t i = 0; i < state.comms.size(); ++i) {
    const Comm& comm = comms_[state.comms[i]];
    CommSample sample;
    sample.index = static_cast<uint32_t>(i);
    sample.generation = 1;
    sample.comm_id = comm.id;
    sample.name = comm.name;
    sample.nranks = static_cast<int32_t>(comm.ranks.size());
    sample.rank = static_cast<int32_t>(std::find(comm.ranks.begin(), comm.ranks.end(), rank) -
                                       comm.ranks.begin());
    sample.nnodes = std::max(1, sample.nranks / options_.ranks_per_host);
    sample.state = MC_COMM_ACTIVE;
    sample.init_ns = options_.start_ns - 2'000 * kMs + i * 1'000'003;
    comms.push_back(sample);
  }
  std::vector<std::vector<FlowSample>> flows(state.comms.size());
  std::vector<std::vector<bool>> open(state.comms.size(), std::vector<bool>(2 * options_.channels));
  for (Op& op : ops_) {
    const Comm& comm = comms_[op.comm];
    const auto at = std::find(comm.ranks.begin(), comm.ranks.end(), rank);
    if (at == comm.ranks.end()) continue;
    const int r = static_cast<int>(at - comm.ranks.begin());
    RankPlan& plan = op.ranks[r];
    if (plan.start > job_now) continue;
    const OpSample sample = SampleOp(op, r, now);
    CommSample& comm_sample = comms[sample.comm];
    comm_sample.coll_count = op.ordinal + 1;
    comm_sample.api_enter_ns = sample.api_ns - 1'700 - sample.api_ns % 300;
    comm_sample.in_api = sample.stop_ns == 0;
    if (sample.stop_ns != 0)
      comm_sample.api_leave_ns = sample.stop_ns + 2'000 + sample.api_ns % 500;
    process.last_callback_ns = std::max(process.last_callback_ns, comm_sample.api_leave_ns);
    if (plan.sampled != sample) {
      process.ops.push_back(sample);
      plan.sampled = sample;
    }
    for (int f = 0; f < 2 * options_.channels; ++f) {
      FlowPlan& flow = plan.flows[f];
      FlowTotal& total = state.flows[sample.comm][f];
      const uint64_t last = flow.begin + flow.step_ns * op.steps;
      const uint64_t end = last + flow.done_lag;
      if (end <= job_now) {
        if (flow.counted) continue;
        flow.counted = true;
        ++total.ops;
        total.steps += op.steps;
        total.bytes += op.step_bytes * op.steps;
        for (int w = 0; w < 3; ++w) {
          total.wait[w] +=
              static_cast<uint64_t>(static_cast<double>(end - flow.begin) * flow.share[w]);
        }
        total.wait[0] += flow.late;
        if (flow.begin <= stuck_ns_ && end > stuck_ns_) {
          total.wait[f % 2 == 0 || rank != options_.stuck_rank ? 0 : 2] +=
              stuck_end_ns_ - stuck_ns_;
        }
        total.last_id = plan.id;
        total.last_first = Real(flow.begin + flow.step_ns);
        total.posted = Real(last - flow.posted_lag);
        total.ready = Real(last);
        total.transmitted = Real(last + flow.ready_lag);
        total.done = Real(end);
        total.last_final = f % 2 == 0 ? total.transmitted : total.ready;
        continue;
      }
      if (plan.first > job_now) continue;
      open[sample.comm][f] = true;
      FlowSample now_open;
      now_open.open_ops = 1;
      now_open.op_id = plan.id;
      now_open.total = op.steps;
      now_open.state = MC_FLOW_QUEUED;
      now_open.state_ns = Real(plan.first);
      now_open.chunk_bytes = static_cast<uint32_t>(op.step_bytes);
      if (flow.begin <= job_now) {
        const bool send = f % 2 == 0;
        const uint64_t steps =
            std::min<uint64_t>((job_now - flow.begin) / flow.step_ns, op.steps - 1);
        const bool culprit = rank == options_.stuck_rank;
        now_open.done = static_cast<uint32_t>(steps);
        now_open.transmitted = now_open.ready =
            static_cast<uint32_t>(steps) + (Stuck(now) && culprit && !send ? 1 : 0);
        now_open.posted = static_cast<uint32_t>(std::min<uint64_t>(steps + 4, op.steps));
        now_open.state = send                    ? MC_FLOW_SEND_GPU
                         : Stuck(now) && culprit ? MC_FLOW_RECV_GPU
                                                 : MC_FLOW_RECV_REMOTE;
        now_open.state_ns = Real(flow.begin + flow.step_ns * steps);
        now_open.moved_ns = now_open.state_ns;
        now_open.done_ns = now_open.state_ns - flow.ready_lag;
        now_open.transmitted_ns = now_open.done_ns - flow.done_lag;
        now_open.ready_ns = now_open.transmitted_ns - flow.ready_lag % 701;
        now_open.posted_ns = now_open.state_ns - flow.posted_lag % flow.step_ns;
      }
      now_open.index = static_cast<uint32_t>(f);
      flows[sample.comm].push_back(now_open);
    }
    plan.counted = plan.last <= job_now;
  }
  uint32_t line = 0;
  for (size_t c = 0; c < state.comms.size(); ++c) {
    const int size = comms[c].nranks;
    for (int f = 0; f < 2 * options_.channels; ++f, ++line) {
      FlowTotal& total = state.flows[c][f];
      FlowSample sample;
      for (const FlowSample& candidate : flows[c]) {
        if (candidate.index == static_cast<uint32_t>(f)) sample = candidate;
      }
      const bool is_open = open[c][f];
      if (!is_open && total.ops == 0) continue;
      sample.index = line;
      sample.comm = static_cast<uint32_t>(c);
      sample.comm_generation = 1;
      sample.channel = static_cast<uint8_t>(f / 2);
      sample.direction = f % 2 == 0 ? MC_SEND : MC_RECV;
      sample.peer = (comms[c].rank + (f % 2 == 0 ? 1 : size - 1)) % size;
      sample.ops_done = total.ops;
      sample.steps_done = total.steps + sample.done;
      sample.bytes = total.bytes + uint64_t{sample.done} * sample.chunk_bytes;
      for (int w = 0; w < 3; ++w) sample.wait_ns[w] = total.wait[w];
      sample.last_op_id = total.last_id;
      sample.last_first_ns = total.last_first;
      sample.last_final_ns = total.last_final;
      if (!is_open) {
        sample.posted_ns = total.posted;
        sample.ready_ns = total.ready;
        sample.transmitted_ns = total.transmitted;
        sample.done_ns = sample.moved_ns = sample.state_ns = total.done;
        sample.chunk_bytes = total.sampled ? total.sampled->chunk_bytes : 65536;
      }
      const bool changed = total.sampled != sample;
      const bool stands = is_open && !changed && !total.stood;
      if ((changed && now - total.sampled_at >= 1'000 * kMs) || (stands && Stuck(now))) {
        process.flows.push_back(sample);
        total.sampled_at = now;
        total.sampled = sample;
      }
      total.stood = is_open && !changed;
    }
  }
  for (size_t c = 0; c < comms.size(); ++c) {
    if (state.sampled[c] != comms[c]) process.comms.push_back(comms[c]);
    state.sampled[c] = comms[c];
  }
  if (options_.host_samples) {
    HostSample host;
    host.state = 'S';
    host.major_faults = 12;
    state.run_ns += Jitter(9e6, 0.3);
    state.runq_ns += Jitter(60'000, 0.5);
    host.threads.push_back({static_cast<uint32_t>(4000 + rank), MC_THREAD_LAUNCH, 'S', state.run_ns,
                            state.runq_ns, state.run_ns / 90'000, "futex_wait_queue"});
    host.threads.push_back({static_cast<uint32_t>(5000 + rank), MC_THREAD_PROGRESS,
                            random_() % 4 == 0 ? 'S' : 'R', state.run_ns * 9 + state.runq_ns % 977,
                            state.runq_ns * 2 + state.run_ns % 1009, state.run_ns / 10'000, ""});
    process.host = host;
  }
  return process;
}

absl::StatusOr<std::optional<Snapshot>> SyntheticJob::Next() {
  const int hosts = (options_.ranks + options_.ranks_per_host - 1) / options_.ranks_per_host;
  if (host_ == hosts) {
    host_ = 0;
    now_ += options_.interval_ns;
    uint64_t done = Job(now_);
    // Operations that every rank has seen to its end are history.
    while (!ops_.empty()) {
      const Op& op = ops_.front();
      const bool over = std::all_of(op.ranks.begin(), op.ranks.end(), [&](const RankPlan& plan) {
        return plan.counted && plan.sampled && plan.sampled->kernel_stop_seen_ns != 0;
      });
      if (!over || !options_.kernels) break;
      ops_.pop_front();
    }
    while (!options_.kernels && ops_.size() > 64 &&
           ops_.front().ranks[0].kernel_stop + 1'000 * kMs < done) {
      ops_.pop_front();
    }
  }
  if (static_cast<double>(now_ - options_.start_ns) > options_.duration_s * 1e9) {
    return std::optional<Snapshot>();
  }
  Snapshot snapshot;
  snapshot.host = HostName(host_);
  snapshot.host_id = "0123456789abcdef0123456789abcdef:boot-" + std::to_string(host_);
  snapshot.t_ns = now_ + Jitter(60'000, 0.3);
  snapshot.wall_ns = kWallOffset + snapshot.t_ns + random_() % 64;
  snapshot.interval_ns = options_.interval_ns;
  Plan(Job(snapshot.t_ns) + 1'000 * kMs);
  const int first = host_ * options_.ranks_per_host;
  for (int rank = first; rank < std::min(first + options_.ranks_per_host, options_.ranks); ++rank) {
    snapshot.processes.push_back(SampleProcess(rank, snapshot.t_ns));
  }
  ++host_;
  return std::optional<Snapshot>(std::move(snapshot));
}

std::vector<Incident> SyntheticJob::Incidents() const {
  if (stuck_ns_ == UINT64_MAX) return {};
  const std::string rank = std::to_string(options_.stuck_rank);
  Incident incident;
  incident.id = 1;
  incident.kind = IncidentKind::kStuck;
  incident.onset_ns = stuck_ns_;
  incident.detected_ns = stuck_ns_ + 1'100 * kMs;
  incident.verdict_ns = stuck_ns_ + 1'200 * kMs;
  if (stuck_end_ns_ != UINT64_MAX) incident.cleared_ns = stuck_end_ns_ + 90 * kMs;
  incident.comm_id = comms_[0].id;
  incident.comm_name = comms_[0].name;
  incident.summary = "all ranks wait for the GPU of rank " + rank;
  Culprit culprit;
  culprit.rank = options_.stuck_rank;
  culprit.host = HostName(options_.stuck_rank / options_.ranks_per_host);
  culprit.pid = static_cast<uint32_t>(4000 + options_.stuck_rank);
  culprit.component = Component::kGpu;
  culprit.confidence = 0.93;
  culprit.gpu_seconds_lost = 8.25;
  culprit.where =
      "channel 0, send to rank " + std::to_string((options_.stuck_rank + 1) % options_.ranks);
  culprit.comms = {{comms_[0].id, "world", options_.stuck_rank, options_.ranks}};
  incident.culprits = {culprit};
  for (int r = 0; r < options_.ranks; ++r) {
    if (r == options_.stuck_rank) continue;
    incident.victims.push_back(r);
    const int from = (r + options_.ranks - 1) % options_.ranks;
    incident.chain.push_back({r, from,
                              "rank " + std::to_string(r) + " waits for rank " +
                                  std::to_string(from) + ": receive on channel 0"});
  }
  incident.evidence = {"rank " + rank + ": send on channel 0 waits for the GPU, data has arrived"};
  incident.rejected = {{"NIC of rank " + rank, "nothing posted is outstanding"}};
  return {incident};
}

}  // namespace mycroft
