// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/probe_table.h"

namespace mycroft {

const char* ProbeMethodName(ProbeMethod method) {
  switch (method) {
    case ProbeMethod::kFentry:
      return "fentry";
    case ProbeMethod::kKprobe:
      return "kprobe";
    case ProbeMethod::kTracepoint:
      return "tracepoint";
    case ProbeMethod::kUprobe:
      return "uprobe";
    case ProbeMethod::kPoll:
      return "poll";
    case ProbeMethod::kNone:
      return "none";
  }
  return "?";
}

const std::vector<ProbeSpec>& ProbeTable() {
  static const auto* table = new std::vector<ProbeSpec>{
      {.id = MC_PROBE_VERBS_OPEN,
       .name = "verbs.open",
       .object = "verbs",
       .question = "which RDMA devices does each process use, and through which functions?",
       .alternatives = {{.method = ProbeMethod::kUprobe,
                         .programs = {"verbs_open_return"},
                         .target = "libibverbs ibv_open_device"}},
       .lost = "names of devices; a provider library with no readable table of functions",
       .blind = "a libibverbs that is linked into the program"},
      {.id = MC_PROBE_VERBS_POST_SEND,
       .name = "verbs.post_send",
       .object = "verbs",
       .question = "what does each queue pair send, when, and from which thread?",
       .alternatives = {{.method = ProbeMethod::kUprobe,
                         .programs = {"verbs_post_send"},
                         .target = "post_send of the provider library"}},
       .lost = "whether the NIC was given work: NIC, fabric and receiver are hard to tell apart",
       .blind = "ibv_wr_* (extended queue pairs), mlx5dv direct and DevX queues, GPU-initiated "
                "networking"},
      {.id = MC_PROBE_VERBS_POST_RECV,
       .name = "verbs.post_recv",
       .object = "verbs",
       .question = "does the receiver offer buffers?",
       .alternatives = {{.method = ProbeMethod::kUprobe,
                         .programs = {"verbs_post_recv"},
                         .target = "post_recv of the provider library"}},
       .lost = "a receiver that is not ready, seen from itself",
       .blind = "shared receive queues, DevX queues, GPU-initiated networking"},
      {.id = MC_PROBE_VERBS_QP,
       .name = "verbs.qp",
       .object = "verbs",
       .question = "which queue pairs are there, connected how, in which state?",
       .alternatives =
           {{.method = ProbeMethod::kUprobe,
             .programs = {"verbs_create_qp", "verbs_create_qp_return", "verbs_modify_qp",
                          "verbs_modify_qp_return", "verbs_destroy_qp"},
             .target = "libibverbs ibv_cmd_create_qp, ibv_modify_qp, ibv_cmd_destroy_qp"}},
       .lost = "peers, GID index, MTU, timeouts and errors of queue pairs",
       .blind = "what was set before the agent started; DevX queue pairs; a queue pair that the "
                "device put into ERR, until an event or a completion says so"},
      {.id = MC_PROBE_VERBS_MR,
       .name = "verbs.mr",
       .object = "verbs",
       .question = "what memory is registered, how, and does it fail?",
       .alternatives = {{.method = ProbeMethod::kUprobe,
                         .programs = {"verbs_reg_mr", "verbs_reg_dmabuf", "verbs_reg_mr_return"},
                         .target = "libibverbs ibv_cmd_reg_mr, ibv_cmd_reg_dmabuf_mr"}},
       .lost = "failed registrations and their errno; relaxed ordering; dmabuf",
       .blind = "what was registered before the agent started; ibv_reg_mr_ex; DevX memory keys"},
      {.id = MC_PROBE_VERBS_ASYNC,
       .name = "verbs.async",
       .object = "verbs",
       .question = "which asynchronous events does the process get?",
       .alternatives = {{.method = ProbeMethod::kUprobe,
                         .programs = {"verbs_async", "verbs_async_return", "verbs_ack_async"},
                         .target = "libibverbs ibv_get_async_event, ibv_ack_async_event"}},
       .lost = "port and queue pair events",
       .blind = "events that the process does not read"},
      {.id = MC_PROBE_VERBS_COMPLETIONS,
       .name = "verbs.completions",
       .object = "verbs",
       .question = "with which status do requests complete, and after how long? (target: pid)",
       .level = ProbeRunLevel::kDeep,
       .alternatives = {{.method = ProbeMethod::kUprobe,
                         .programs = {"verbs_poll_cq", "verbs_poll_cq_return"},
                         .target = "poll_cq of the provider library"}},
       .lost = "status and latency of completions",
       .blind = "ibv_start_poll (extended completion queues), DevX, GPU-initiated networking; "
                "while not armed, all of them"},
      {.id = MC_PROBE_VERBS_POST_FAILURES,
       .name = "verbs.post_failures",
       .object = "verbs",
       .question = "does the provider refuse posts? (target: pid)",
       .level = ProbeRunLevel::kDeep,
       .alternatives = {{.method = ProbeMethod::kUprobe,
                         .programs = {"verbs_post", "verbs_post_return"},
                         .target = "return of post_send and post_recv"}},
       .lost = "posts that the provider refused count as posted",
       .blind = "while not armed, all of them: a second trap at each return would double the cost "
                "of a post"},
  };
  return *table;
}

}  // namespace mycroft
