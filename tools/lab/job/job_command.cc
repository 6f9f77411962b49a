// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/job_command.h"

#include <stdio.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/lab/job/config.h"
#include "tools/lab/job/launcher.h"
#include "tools/lab/job/rank.h"

namespace mycroft::lab {
namespace {

constexpr int kUsage = 2;

struct Options {
  JobConfig config;
  LaunchOptions launch;
  std::string layout = "flat";
  std::string ops = "ar";
  std::string transport = "tcp";
  std::string ib_devices;
  std::vector<std::string> faults;
  std::vector<std::string> events;
};

int Usage(const absl::Status& status) {
  fprintf(stderr, "mycroft-lab job: %s\n", std::string(status.message()).c_str());
  return kUsage;
}

int Run(Options* options, bool plugin_given) {
  JobConfig& config = options->config;
  auto layout = ParseLayout(options->layout);
  if (!layout.ok()) return Usage(layout.status());
  config.layout = *layout;
  auto ops = ParseOps(options->ops);
  if (!ops.ok()) return Usage(ops.status());
  config.ops = *ops;
  auto transport = ParseTransport(options->transport);
  if (!transport.ok()) return Usage(transport.status());
  config.transport = *transport;
  auto devices = ParseDevices(options->ib_devices);
  if (!devices.ok()) return Usage(devices.status());
  config.ib_devices = *devices;
  if (absl::Status s = Complete(&config); !s.ok()) return Usage(s);
  for (const std::string& text : options->faults) {
    auto fault = ParseFault(text, config.ranks);
    if (!fault.ok()) {
      return Usage(absl::InvalidArgumentError("--fault " + std::string(fault.status().message())));
    }
    config.faults.push_back(*fault);
  }
  for (const std::string& text : options->events) {
    auto event = ParseEvent(text);
    if (!event.ok()) {
      return Usage(absl::InvalidArgumentError("--event " + std::string(event.status().message())));
    }
    config.events.push_back(*event);
  }
  if (absl::Status s = CheckFaults(config); !s.ok()) return Usage(s);
  if (config.transport == Transport::kVerbs) {
    auto devices = FindVerbsDevices(config.ib_devices);
    if (!devices.ok()) {
      fprintf(stderr, "mycroft-lab job: --transport verbs: %s\n",
              std::string(devices.status().message()).c_str());
      return 1;
    }
    config.ib_devices = *std::move(devices);
  }
  config.plugin_given = plugin_given;
  return RunJob(config, options->launch);
}

}  // namespace

void AddJobCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<Options>();
  JobConfig& c = options->config;
  CLI::App* job = app.add_subcommand(
      "job", "Run real processes that train in miniature, as NCCL would run them");
  job->add_option("--ranks", c.ranks, "Processes")->capture_default_str();
  job->add_option("--layout", options->layout, "flat, dpxpp or dpxtp")->capture_default_str();
  job->add_option("--dp", c.dp, "Data-parallel size");
  job->add_option("--pp", c.pp, "Pipeline stages");
  job->add_option("--tp", c.tp, "Tensor-parallel size");
  job->add_option("--iters", c.iters, "Iterations (100 when no --duration)");
  job->add_option("--duration", c.duration_s, "Seconds after which the job ends");
  job->add_option("--channels", c.channels, "Channels per communicator")->capture_default_str();
  job->add_option("--bytes", c.bytes, "Size of one operation of --ops")->capture_default_str();
  job->add_option("--ops", options->ops, "Operations per iteration: list of ar,rs,ag,bc,sr,aa")
      ->capture_default_str();
  job->add_option("--compute-us", c.compute_us, "Length of a compute phase")->capture_default_str();
  job->add_option("--noise", c.noise_percent, "Random change of each compute phase, +- percent");
  job->add_option("--first-us", c.first_us, "Extra time of the first compute phase");
  job->add_option("--microbatches", c.microbatches, "Per iteration (dpxpp, dpxtp)")
      ->capture_default_str();
  job->add_option("--p2p-bytes", c.p2p_bytes, "Between stages, per microbatch and direction")
      ->capture_default_str();
  job->add_option("--tp-bytes", c.tp_bytes, "Tensor-parallel AllReduce per microbatch")
      ->capture_default_str();
  job->add_option("--world-bytes", c.world_bytes, "AllReduce of all ranks per iteration; 0: none")
      ->capture_default_str();
  job->add_flag("--uneven-p2p", c.uneven_p2p, "Stages exchange messages of different sizes");
  job->add_option("--fault", options->faults,
                  "KIND:rank=R,at=SECONDS[,for=SECONDS][,amount=X]; may be given again. Kinds:\n" +
                      FaultHelp())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  job->add_option("--event", options->events,
                  "checkpoint:at=SECONDS,for=SECONDS: all ranks pause (healthy)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  job->add_option("--truth", options->launch.truth_path, "Write the truth of the faults there");
  CLI::Option* plugin = job->add_option(
      "--plugin", c.plugin,
      "Profiler plugin, or \"none\" (default: NCCL_PROFILER_PLUGIN as NCCL resolves it)");
  job->add_option("--profiler-api", c.profiler_api, "4, 5 or 6 (default: newest of the plugin)");
  job->add_option("--seed", c.seed, "Of noise and communicator ids")->capture_default_str();
  job->add_option("--socket-buffer", c.socket_buffer,
                  "SO_SNDBUF and SO_RCVBUF in bytes; 0: the system's choice")
      ->capture_default_str();
  job->add_option("--transport", options->transport,
                  "tcp, or verbs: RC queue pairs of RDMA devices, as NCCL's InfiniBand transport")
      ->capture_default_str();
  job->add_option("--ib-devices", options->ib_devices,
                  "RDMA devices, a list; rank i uses the (i modulo n)th (default: all active)");
  job->add_option("--ib-gid-index", c.ib.gid_index,
                  "Of the GID table (default: RoCE v2 with an IPv4 address)");
  job->add_option("--ib-timeout", c.ib.timeout, "Acknowledgement timeout, 4.096 us x 2^n")
      ->capture_default_str();
  job->add_option("--ib-retry", c.ib.retry, "Retries after a timeout; 7 on Soft-RoCE: for ever")
      ->capture_default_str();
  job->add_option("--ib-rnr-retry", c.ib.rnr_retry,
                  "Retries when the receiver is not ready; 7: for ever")
      ->capture_default_str();
  job->add_option("--ib-min-rnr-timer", c.ib.min_rnr_timer,
                  "What the receiver asks for then, as encoded: 12 is 0.64 ms, 0 is 655 ms")
      ->capture_default_str();
  job->add_option("--ib-mtu", c.ib.mtu_bytes, "Path MTU in bytes (default: that of the ports)");
  job->add_option("--ib-flush", c.ib_flush,
                  "on: an RDMA_READ after every arrival, as with GPU Direct")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, bool>{{"on", true}, {"off", false}}));
  job->add_flag("--ib-spin", c.ib_spin, "Progress threads never sleep while there is work");
  job->add_option("--connect-after", c.connect_after_s,
                  "Seconds from a rank's first communicator to its connections, as the bootstrap "
                  "of a large job takes")
      ->check(CLI::Range(0.0, 300.0));
  job->add_option("--keep-open", c.keep_open,
                  "File that each rank holds open, as it would a device of its own; {rank} in its "
                  "name is the rank");
  job->add_option("--abort-after", c.abort_after_s,
                  "Seconds from a dead rank or broken connection until all ranks leave")
      ->capture_default_str();
  job->add_option("--report-every", options->launch.report_every, "Iterations per line")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  job->add_flag("-q,--quiet", options->launch.quiet, "Only the summary line");
  job->add_flag("--json", options->launch.json, "Only the summary, as JSON");
  job->callback(
      [options, plugin, exit_code] { *exit_code = Run(options.get(), plugin->count() > 0); });

  CLI::App* rank = app.add_subcommand("rank", "");
  rank->group("");  // hidden
  auto number = std::make_shared<int>(0);
  auto ranks = std::make_shared<int>(0);
  auto control_fd = std::make_shared<int>(-1);
  rank->add_option("--rank", *number)->required();
  rank->add_option("--ranks", *ranks);
  rank->add_option("--control-fd", *control_fd)->required();
  rank->callback(
      [number, ranks, control_fd, exit_code] { *exit_code = RunRank(*number, *control_fd); });
}

}  // namespace mycroft::lab
