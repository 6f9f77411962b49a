/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Tasks: their numbers in the agent's pid namespace.
 */
#ifndef MYCROFT_BPF_LIB_TASK_H_
#define MYCROFT_BPF_LIB_TASK_H_

#include "vmlinux/vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/*
 * Inode of the agent's pid namespace, 0 when that is the first one: then the numbers
 * that the kernel uses itself are right. Set by the agent before it loads.
 */
const volatile uint32_t mc_pid_namespace = 0;

/* Depth of nested pid namespaces that the kernel allows (MAX_PID_NS_LEVEL). */
#define MC_PID_LEVELS 33

struct mc_ids {
	uint32_t pid; /* of the process (tgid) */
	uint32_t tid;
};

/* Number of `pid` in the agent's namespace; 0: not in it. */
static __always_inline uint32_t mc_pid_number(struct pid *pid)
{
	uint32_t level = BPF_CORE_READ(pid, level);

	for (uint32_t i = 0; i < MC_PID_LEVELS && i <= level; i++) {
		struct upid u;

		if (bpf_core_read(&u, sizeof(u), &pid->numbers[i]))
			return 0;
		if (BPF_CORE_READ(u.ns, ns.inum) == mc_pid_namespace)
			return u.nr;
	}
	return 0;
}

static __always_inline struct mc_ids mc_task_ids(struct task_struct *task)
{
	struct mc_ids ids = {};

	if (!mc_pid_namespace) {
		ids.pid = BPF_CORE_READ(task, tgid);
		ids.tid = BPF_CORE_READ(task, pid);
	} else {
		ids.pid = mc_pid_number(BPF_CORE_READ(task, group_leader, thread_pid));
		ids.tid = mc_pid_number(BPF_CORE_READ(task, thread_pid));
	}
	return ids;
}

static __always_inline struct mc_ids mc_current_ids(void)
{
	if (!mc_pid_namespace) {
		uint64_t both = bpf_get_current_pid_tgid();
		struct mc_ids ids = {.pid = both >> 32, .tid = (uint32_t)both};

		return ids;
	}
	return mc_task_ids((struct task_struct *)bpf_get_current_task());
}

#endif /* MYCROFT_BPF_LIB_TASK_H_ */
