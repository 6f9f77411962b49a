/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The contract between the BPF programs (bpf/probes) and the agent (userspace/
 * source/probes): values of maps, and records of the ring buffer. Program and
 * agent are built together; there is no version to negotiate.
 *
 * Fixed width, no hidden byte. Times are nanoseconds of CLOCK_MONOTONIC
 * (bpf_ktime_get_ns). pid and tid are those of the agent's pid namespace.
 * Counters only grow while the object is loaded.
 */
#ifndef MYCROFT_BPF_ABI_PROBES_H_
#define MYCROFT_BPF_ABI_PROBES_H_

#if defined(__bpf__)
#include "vmlinux/vmlinux.h"
#elif defined(__cplusplus)
#include <cstddef>
#include <cstdint>
#include <type_traits>
#else
#include <stddef.h>
#include <stdint.h>
#endif

/*
 * The questions. Index of the map mc_counters and part of the key of mc_targets;
 * one row of the table in userspace/source/probes/probe_table.cc each.
 */
enum mc_probe {
	MC_PROBE_VERBS_OPEN = 0,
	MC_PROBE_VERBS_POST_SEND,
	MC_PROBE_VERBS_POST_RECV,
	MC_PROBE_VERBS_QP,
	MC_PROBE_VERBS_MR,
	MC_PROBE_VERBS_ASYNC,
	MC_PROBE_VERBS_COMPLETIONS,
	MC_PROBE_VERBS_POST_FAILURES,
	MC_PROBE_PCIE_AER = 16,
	MC_PROBE_PCIE_REMOVAL,
	MC_PROBE_PCIE_RECOVERY,
	MC_PROBE_PCIE_DMA,
	MC_PROBE_PCIE_IRQ,
	MC_PROBE_PCIE_IOMMU,
	MC_PROBE_RDMA_PORT = 28,
	MC_PROBE_RDMA_QP,
	MC_PROBE_HOST_DELAY = 32,
	MC_PROBE_HOST_SLEEP_STACK,
	MC_PROBE_HOST_RECLAIM,
	MC_PROBE_HOST_MAJOR_FAULTS,
	MC_PROBE_HOST_OOM,
	MC_PROBE_HOST_EXIT,
	MC_PROBE_HOST_RETRANSMIT,
	MC_PROBE_MAX = 64,
};

/* mc_counters[enum mc_probe], one per CPU. */
struct mc_probe_counters {
	uint64_t hits;
	uint64_t dropped_events; /* no room in the ring buffer */
	uint64_t dropped_rows;	 /* no room in a map */
	uint64_t failed_reads;	 /* memory of the process could not be read */
};

/* mc_targets: what a deep probe is armed for. Value: uint64_t, until when. */
struct mc_target {
	uint32_t probe; /* enum mc_probe */
	uint32_t pad0;
	uint64_t id; /* pid, tid, ...: see the probe */
};

/* Kinds of records of the ring buffer mc_events. */
enum mc_event_kind {
	MC_EVENT_NONE = 0,
	/* verbs.bpf.c */
	MC_EVENT_VERBS_CONTEXT = 1,
	MC_EVENT_VERBS_QP_GONE = 2,
	MC_EVENT_VERBS_QP_ERROR = 3,
	MC_EVENT_VERBS_MR_FAILURE = 4,
	MC_EVENT_VERBS_ASYNC = 5,
	/* pcie.bpf.c, see pcie.h */
	MC_EVENT_PCIE_AER = 32,
	MC_EVENT_PCIE_REMOVAL,
	MC_EVENT_PCIE_RECOVERY,
	MC_EVENT_PCIE_IOMMU,
	MC_EVENT_PCIE_DMA_FAILURE,
	/* rdma.bpf.c, see pcie.h */
	MC_EVENT_RDMA_PORT = 48,
	MC_EVENT_RDMA_QP,
	/* host.bpf.c, see host.h */
	MC_EVENT_HOST_EXIT = 64,
	MC_EVENT_HOST_OOM,
};

/* Every record starts with it. */
struct mc_event {
	uint64_t ts_ns;
	uint32_t kind;	/* enum mc_event_kind */
	uint32_t bytes; /* of the record with this header */
	uint32_t pid;	/* 0: no process */
	uint32_t tid;
};

/* ---- verbs.bpf.c ------------------------------------------------------------------ */

/* Work requests by kind; enum ibv_wr_opcode of infiniband/verbs.h. */
enum mc_qp_operation {
	MC_QP_SEND = 0,	  /* IBV_WR_SEND*, with immediate or invalidation */
	MC_QP_WRITE = 1,  /* IBV_WR_RDMA_WRITE* */
	MC_QP_READ = 2,	  /* IBV_WR_RDMA_READ */
	MC_QP_ATOMIC = 3, /* IBV_WR_ATOMIC_* */
	MC_QP_OTHER = 4,
	MC_QP_OPERATIONS = 5,
};

/* A context is a device that a process has open (its struct ibv_context *). */
struct mc_verbs_key {
	uint32_t pid;
	uint32_t pad0;
	uint64_t context;
};
struct mc_verbs_context {
	char device[64]; /* ibv_device.name, NUL padded; empty: could not be read */
	uint64_t first_ns;
};

/* Map mc_qps: one row per queue pair. Rows of destroyed ones are freed by the agent. */
struct mc_qp_key {
	uint32_t pid;
	uint32_t number; /* unique on a device only */
	uint64_t context;
};

struct mc_qp_row {
	uint64_t created_ns; /* or first seen: see `flags` */
	uint64_t state_ns;
	uint64_t posts[MC_QP_OPERATIONS];
	uint64_t bytes;	   /* of the gather lists of posts */
	uint64_t receives; /* receive requests posted */
	uint64_t post_failures;
	uint64_t last_post_ns;
	uint64_t last_receive_ns;
	uint64_t completions; /* while armed: of the send queue, and all that failed */
	/*
	 * While armed: receives - this are in the receive queue at least (those that were in
	 * it before are not known). Else the same as `receives`.
	 */
	uint64_t receive_completions;
	uint64_t failed_completions;
	uint64_t last_completion_ns;
	uint64_t latency_count; /* completions whose post was seen */
	uint64_t latency_sum_ns;
	uint64_t latency_max_ns;
	uint64_t first_bad_ns;
	uint64_t truncated_posts; /* calls with more requests than are looked at */
	uint32_t first_bad_status;
	uint32_t first_bad_vendor;
	uint32_t handle; /* the kernel's number of it */
	uint32_t state;	 /* enum ibv_qp_state; MC_QP_STATE_UNKNOWN */
	uint32_t flags;	 /* enum mc_qp_flag */
	uint32_t known;	 /* attributes that were seen: enum ibv_qp_attr_mask */
	uint32_t remote_number;
	uint32_t path_mtu; /* enum ibv_mtu */
	uint32_t post_tid;
	int32_t last_errno; /* of the last refused post */
	uint8_t port;
	uint8_t gid_index;
	uint8_t has_gid;
	uint8_t timeout;
	uint8_t retry_count;
	uint8_t rnr_retry;
	uint8_t min_rnr_timer;
	uint8_t pad0;
	uint8_t remote_gid[16]; /* network order */
	char device[64];
};
#define MC_QP_STATE_UNKNOWN 7u
enum mc_qp_flag {
	MC_QP_SEEN_CREATED = 1, /* created_ns is its creation, not the first sight of it */
	MC_QP_DESTROYED = 2,
	MC_QP_COMPLETIONS_SEEN = 4,
};

/* Map mc_mrs: registrations of a process on a context. */
struct mc_mr_row {
	uint64_t registrations; /* that succeeded */
	uint64_t dmabuf;
	uint64_t relaxed_ordering;
	uint64_t bytes;
	uint64_t ns;
	uint64_t failures;
	uint64_t last_failure_bytes;
	uint64_t last_failure_ns;
	int32_t last_errno;
	uint32_t last_failure_access; /* enum ibv_access_flags */
	char device[64];
};

/* A context seen for the first time, or opened: where its fast functions are. */
struct mc_event_verbs_context {
	struct mc_event h;
	uint64_t context;
	uint64_t post_send; /* pointers in the process; 0: could not be read */
	uint64_t post_recv;
	uint64_t post_srq_recv;
	uint64_t poll_cq;
	char device[64];
};

/* The last row of a queue pair whose place is needed for another of its number. */
struct mc_event_verbs_qp_gone {
	struct mc_event h;
	struct mc_qp_key key;
	struct mc_qp_row row;
};

enum mc_qp_error_reason {
	MC_QP_ERROR_MODIFIED = 1,	/* the process set it to ERR or SQE */
	MC_QP_ERROR_MODIFY_FAILED = 2,	/* value: errno */
	MC_QP_ERROR_ASYNC = 3,		/* value: enum ibv_event_type */
	MC_QP_ERROR_COMPLETION = 4,	/* value: enum ibv_wc_status; armed only */
};
struct mc_event_verbs_qp_error {
	struct mc_event h;
	struct mc_qp_key key;
	uint32_t reason; /* enum mc_qp_error_reason */
	uint32_t value;
	uint32_t vendor; /* vendor_err of a completion */
	uint32_t state;	 /* asked for, with the first two reasons */
	char device[64];
};

struct mc_event_verbs_mr_failure {
	struct mc_event h;
	uint64_t context;
	uint64_t bytes;
	uint32_t access;
	int32_t error; /* errno */
	uint32_t dmabuf; /* 1: it was device memory through dmabuf */
	uint32_t pad0;
	char device[64];
};

struct mc_event_verbs_async {
	struct mc_event h;
	uint64_t context;   /* 0: not known (the process was in the call already) */
	uint32_t type;	    /* enum ibv_event_type */
	uint32_t qp_number; /* events of queue pairs, else 0 */
	uint32_t port;	    /* events of ports, else 0 */
	uint32_t pad0;
	char device[64]; /* empty: not known */
};

#ifdef __cplusplus
#define MC_ASSERT_RECORD(type, size)                                  \
	static_assert(sizeof(struct type) == (size), #type " size"); \
	static_assert(std::has_unique_object_representations_v<type>, #type " has hidden bytes")
#else
#define MC_ASSERT_RECORD(type, size) _Static_assert(sizeof(struct type) == (size), #type " size")
#endif
MC_ASSERT_RECORD(mc_probe_counters, 32);
MC_ASSERT_RECORD(mc_target, 16);
MC_ASSERT_RECORD(mc_event, 24);
MC_ASSERT_RECORD(mc_verbs_key, 16);
MC_ASSERT_RECORD(mc_verbs_context, 72);
MC_ASSERT_RECORD(mc_qp_key, 16);
MC_ASSERT_RECORD(mc_qp_row, 296);
MC_ASSERT_RECORD(mc_mr_row, 136);
MC_ASSERT_RECORD(mc_event_verbs_context, 128);
MC_ASSERT_RECORD(mc_event_verbs_qp_gone, 336);
MC_ASSERT_RECORD(mc_event_verbs_qp_error, 120);
MC_ASSERT_RECORD(mc_event_verbs_mr_failure, 120);
MC_ASSERT_RECORD(mc_event_verbs_async, 112);

#endif /* MYCROFT_BPF_ABI_PROBES_H_ */
