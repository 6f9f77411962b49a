// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Nothing, on a function of the agent itself: what a uprobe costs.
 */
#include "vmlinux/vmlinux.h"
#include <bpf/bpf_helpers.h>

SEC("uprobe")
int calibrate(struct pt_regs *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
