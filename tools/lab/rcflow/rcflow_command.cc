// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/rcflow/rcflow_command.h"

#include <signal.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>

#include "tools/lab/rcflow/flow.h"

namespace mycroft::lab {
namespace {

enum ExitCode { kOk = 0, kFailure = 1, kUsage = 2, kBadCompletion = 3 };

struct Flags {
  FlowOptions flow;
  bool bad_rkey = false, no_recv = false;
};

volatile sig_atomic_t g_stop = 0;
void OnSignal(int) { g_stop = 1; }

int Run(Flags* flags) {
  FlowOptions& flow = flags->flow;
  if (flags->bad_rkey && flags->no_recv) {
    fprintf(stderr, "mycroft-lab rcflow: one of --bad-rkey and --no-recv\n");
    return kUsage;
  }
  if (flags->bad_rkey && flow.send) {
    fprintf(stderr, "mycroft-lab rcflow: --bad-rkey needs writes; leave out --send\n");
    return kUsage;
  }
  if (flags->bad_rkey) flow.fault = FlowFault::kBadRemoteKey;
  if (flags->no_recv) {
    flow.fault = FlowFault::kNoReceive;
    flow.send = true;
  }
  // Ends as if the time were over, with the last lines.
  signal(SIGINT, OnSignal);
  signal(SIGTERM, OnSignal);
  flow.stop = &g_stop;
  auto result = RunFlow(flow, stdout);
  if (!result.ok()) {
    fprintf(stderr, "mycroft-lab rcflow: %s\n", std::string(result.status().message()).c_str());
    return kFailure;
  }
  if (result->wrong_data > 0) {
    fprintf(stderr, "mycroft-lab rcflow: %" PRIu64 " messages arrived with wrong data\n",
            result->wrong_data);
    return kFailure;
  }
  return result->bad_completions > 0 ? kBadCompletion : kOk;
}

}  // namespace

void AddRcflowCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  FlowOptions& flow = flags->flow;
  ConnectionSettings& connection = flow.connection;
  CLI::App* command = app.add_subcommand(
      "rcflow", "Stream over one RDMA connection (RC) of this host; JSON lines of what it saw");
  command->add_option("--from", flow.from, "RDMA device that sends")->capture_default_str();
  command->add_option("--to", flow.to, "RDMA device that receives")->capture_default_str();
  command
      ->add_option("--gid-index", flow.gid_index,
                   "GID index of the sender (default: RoCE v2 of an IPv4 address)")
      ->check(CLI::Range(0, 255));
  command->add_option("--peer-gid-index", flow.peer_gid_index, "GID index of the receiver")
      ->check(CLI::Range(0, 255));
  command
      ->add_option("--timeout", connection.timeout,
                   "Time until a retry: 4.096 us * 2^TIMEOUT; 0 for ever")
      ->capture_default_str()
      ->check(CLI::Range(0, 31));
  command->add_option("--retry", connection.retry_count, "Retries (rxe: 7 is for ever)")
      ->capture_default_str()
      ->check(CLI::Range(0, 7));
  command
      ->add_option("--rnr-retry", connection.rnr_retry,
                   "Retries for a receiver that is not ready (7 is for ever)")
      ->capture_default_str()
      ->check(CLI::Range(0, 7));
  command
      ->add_option("--min-rnr-timer", connection.min_rnr_timer,
                   "What a receiver that is not ready asks for, as encoded in verbs")
      ->capture_default_str()
      ->check(CLI::Range(0, 31));
  const auto mtus = CLI::IsMember({256, 512, 1024, 2048, 4096});
  command->add_option("--mtu", connection.path_mtu, "Path MTU, bytes")
      ->capture_default_str()
      ->check(mtus);
  command->add_option("--peer-mtu", flow.peer_mtu, "Path MTU that the receiver assumes")
      ->check(mtus);
  command->add_flag("--send", flow.send, "SEND to posted receives instead of RDMA WRITE");
  command->add_option("--bytes", flow.bytes, "Size of a message")
      ->capture_default_str()
      ->check(CLI::Range(16, 16 << 20));
  command->add_option("--depth", flow.depth, "Messages under way")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--duration", flow.seconds, "Seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  command->add_option("--interval-ms", flow.interval_ms, "Between two lines")
      ->capture_default_str()
      ->check(CLI::Range(10, 60000));
  command->add_flag("--bad-rkey", flags->bad_rkey, "Fault: writes name a key that is none");
  command->add_flag("--no-recv", flags->no_recv,
                    "Fault: no more receive requests are posted (implies --send)");
  command->add_option("--fault-after", flow.fault_after_s, "Seconds until the fault")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  command->add_flag("--stay", flow.stay, "Stay until the end even if the connection broke");
  command->add_option("--truth", flow.truth, "File for the time and kind of the own fault");
  command->callback([flags, exit_code] { *exit_code = Run(flags.get()); });
}

}  // namespace mycroft::lab
