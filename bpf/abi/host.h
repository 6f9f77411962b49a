/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Values and records of bpf/probes/host.bpf.c. See probes.h for what holds for all.
 *
 * A thread that is watched, as the scheduler moves it:
 *
 *	           got a CPU                    sleeps
 *	RUNNABLE ------------> RUNNING ------------------> ASLEEP or BLOCKED
 *	   ^  ^                   |                              |
 *	   |  '-- preempted ------'                              |
 *	   '------------------------------- woken up ------------'
 *
 * since_ns is when the present state began. What is still going on is not in the sums:
 * a reader adds "now - since_ns".
 */
#ifndef MYCROFT_BPF_ABI_HOST_H_
#define MYCROFT_BPF_ABI_HOST_H_

#include "bpf/abi/probes.h"

enum mc_run_state {
	MC_RUN_UNKNOWN = 0, /* no switch seen yet */
	MC_RUN_RUNNING,
	MC_RUN_RUNNABLE, /* waits for a CPU, or its cgroup is throttled */
	MC_RUN_ASLEEP,	 /* interruptible sleep, stopped or traced */
	MC_RUN_BLOCKED,	 /* uninterruptible sleep */
};

/* Map mc_host_threads[tid]: the agent makes and deletes the entries. */
struct mc_host_thread {
	uint64_t since_ns;
	uint32_t state; /* enum mc_run_state */
	uint32_t pad0;
	uint64_t runq_ns, runq_max_ns, runq_count; /* waits for a CPU that are over */
	uint64_t off_ns, off_max_ns, off_count;	   /* sleeps that are over */
	uint64_t blocked_ns, blocked_max_ns;	   /* of these, uninterruptible */
	uint64_t last_off_ns;			   /* length of the last one */
};

#define MC_HOST_STACK_DEPTH 24

/* Map mc_host_stacks[tid], made by the agent when it arms host.sleep_stack; and what the
 * iterator host_stack_now writes. */
struct mc_host_stack {
	uint64_t sleep_ns; /* how long it slept there; 0: none yet */
	uint32_t tid;
	uint32_t frames;		  /* used entries of ip */
	uint64_t ip[MC_HOST_STACK_DEPTH]; /* kernel addresses, innermost first */
};

/* Map mc_host_processes[pid]: the agent makes and deletes the entries. */
struct mc_host_process {
	uint64_t reclaims, reclaim_ns, reclaim_max_ns; /* direct or for its cgroup, by any of its threads */
};

/* Map mc_host_connections: TCP connections of the whole host that retransmitted. */
struct mc_host_connection {
	uint64_t inode;	 /* of the socket, as in /proc/PID/fd; 0: closed by its process */
	uint16_t family; /* AF_INET, AF_INET6 */
	uint16_t local_port, remote_port; /* host byte order */
	uint16_t pad0;
	uint8_t local[16], remote[16]; /* IPv4: the first four */
};
struct mc_host_retransmits {
	uint64_t count;
	uint64_t last_ns;
};

/* MC_EVENT_HOST_EXIT: the last thread of a watched process has exited; pid: it. */
struct mc_event_host_exit {
	struct mc_event header;
	uint32_t code; /* as wait() has it: signal in the low 7 bits, status << 8 */
	uint32_t oom;  /* 1: it was chosen by the OOM killer */
};

/* MC_EVENT_HOST_OOM: a victim was chosen, watched or not; pid: it, 0 when it is not in
 * the agent's pid namespace (or the kernel does not say). */
struct mc_event_host_oom {
	struct mc_event header;
	uint32_t kernel_pid; /* in the first pid namespace */
	uint32_t pad0;
	char comm[16]; /* empty: the kernel does not say */
};

MC_ASSERT_RECORD(mc_host_thread, 88);
MC_ASSERT_RECORD(mc_host_stack, 208);
MC_ASSERT_RECORD(mc_host_process, 24);
MC_ASSERT_RECORD(mc_host_connection, 48);
MC_ASSERT_RECORD(mc_host_retransmits, 16);
MC_ASSERT_RECORD(mc_event_host_exit, 32);
MC_ASSERT_RECORD(mc_event_host_oom, 48);

#endif /* MYCROFT_BPF_ABI_HOST_H_ */
