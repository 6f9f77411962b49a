/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * What all programs share. Every object declares these maps; the agent creates each
 * once and gives it to all objects, so there is one ring buffer to read.
 */
#ifndef MYCROFT_BPF_LIB_MAPS_H_
#define MYCROFT_BPF_LIB_MAPS_H_

#include "bpf/abi/probes.h"
#include <bpf/bpf_helpers.h>

/* Rare events. The agent sets the size before it loads. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} mc_events SEC(".maps");

/* Hits and losses of each probe. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MC_PROBE_MAX);
	__type(key, uint32_t);
	__type(value, struct mc_probe_counters);
} mc_counters SEC(".maps");

/* What deep probes are armed for, and until when. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct mc_target);
	__type(value, uint64_t);
} mc_targets SEC(".maps");

/* True while `probe` is armed for `id`: the time limit holds even if the agent hangs. */
static __always_inline bool mc_armed(enum mc_probe probe, uint64_t id)
{
	struct mc_target key = {.probe = probe, .id = id};
	uint64_t *until = bpf_map_lookup_elem(&mc_targets, &key);

	return until && bpf_ktime_get_ns() < *until;
}

#endif /* MYCROFT_BPF_LIB_MAPS_H_ */
