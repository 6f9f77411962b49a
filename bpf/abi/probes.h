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
	MC_PROBE_PCIE_FIRST = 16,
	MC_PROBE_HOST_FIRST = 32,
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
	MC_EVENT_VERBS_COMPLETION = 6,
	/* pcie.bpf.c: from 32 on; host.bpf.c: from 64 on */
	MC_EVENT_PCIE_FIRST = 32,
	MC_EVENT_HOST_FIRST = 64,
};

/* Every record starts with it. */
struct mc_event {
	uint64_t ts_ns;
	uint32_t kind;	/* enum mc_event_kind */
	uint32_t bytes; /* of the record with this header */
	uint32_t pid;	/* 0: no process */
	uint32_t tid;
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

#endif /* MYCROFT_BPF_ABI_PROBES_H_ */
