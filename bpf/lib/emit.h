/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Counting, and emitting records: room is reserved first, and what gets none is counted.
 *
 *	struct mc_event_x *e = mc_emit(MC_PROBE_X, MC_EVENT_X, sizeof(*e));
 *	if (!e)
 *		return 0;
 *	e->field = ...;       // every byte after the header must be written
 *	bpf_ringbuf_submit(e, 0);
 */
#ifndef MYCROFT_BPF_LIB_EMIT_H_
#define MYCROFT_BPF_LIB_EMIT_H_

#include "bpf/lib/maps.h"
#include "bpf/lib/task.h"

static __always_inline struct mc_probe_counters *mc_counters_of(enum mc_probe probe)
{
	uint32_t key = probe;

	return bpf_map_lookup_elem(&mc_counters, &key);
}

/* A program may be interrupted by another on its CPU: the additions are atomic. */
static __always_inline void mc_hit(enum mc_probe probe)
{
	struct mc_probe_counters *c = mc_counters_of(probe);

	if (c)
		__sync_fetch_and_add(&c->hits, 1);
}

static __always_inline void mc_count_dropped_row(enum mc_probe probe)
{
	struct mc_probe_counters *c = mc_counters_of(probe);

	if (c)
		__sync_fetch_and_add(&c->dropped_rows, 1);
}

static __always_inline void mc_count_failed_read(enum mc_probe probe)
{
	struct mc_probe_counters *c = mc_counters_of(probe);

	if (c)
		__sync_fetch_and_add(&c->failed_reads, 1);
}

/* `size` is a constant. The header is filled in, with the current process. */
static __always_inline void *mc_emit(enum mc_probe probe, enum mc_event_kind kind,
				     const uint32_t size)
{
	struct mc_event *e = bpf_ringbuf_reserve(&mc_events, size, 0);

	if (!e) {
		struct mc_probe_counters *c = mc_counters_of(probe);

		if (c)
			__sync_fetch_and_add(&c->dropped_events, 1);
		return NULL;
	}
	struct mc_ids ids = mc_current_ids();

	e->ts_ns = bpf_ktime_get_ns();
	e->kind = kind;
	e->bytes = size;
	e->pid = ids.pid;
	e->tid = ids.tid;
	return e;
}

#endif /* MYCROFT_BPF_LIB_EMIT_H_ */
