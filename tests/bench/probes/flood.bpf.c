// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * As many records as asked for, through the code that all probes use.
 */
#include "bpf/abi/host.h"
#include "bpf/lib/emit.h"

#define RECORDS 256 /* per run */

SEC("raw_tp")
int flood(void *ctx)
{
	for (int i = 0; i < RECORDS; i++) {
		struct mc_event_host_exit *e;

		mc_hit(MC_PROBE_HOST_EXIT);
		e = mc_emit(MC_PROBE_HOST_EXIT, MC_EVENT_HOST_EXIT, sizeof(*e));
		if (!e)
			continue;
		e->code = i;
		e->oom = 0;
		bpf_ringbuf_submit(e, 0);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
