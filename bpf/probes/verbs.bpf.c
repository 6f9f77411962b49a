// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
#include "bpf/lib/emit.h"
#include <bpf/bpf_tracing.h>

SEC("uprobe")
int BPF_KPROBE(verbs_post_send, void *qp, void *wr)
{
	mc_hit(MC_PROBE_VERBS_POST_SEND);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
