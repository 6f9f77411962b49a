// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * The host: what threads and processes of the job wait for when they do not run, and
 * what ends them.
 *
 * Costs: host_switch and host_wakeup run at every switch and wakeup of the host; a
 * thread that is not watched costs one look-up in a map, which is why nothing else is
 * done before it. The others run when something rare happens.
 *
 * Cannot see: why a thread is runnable but does not run (another thread, or its cgroup
 * is throttled: cpu.stat tells), and time that the hypervisor takes from the CPU.
 */
#include "bpf/abi/host.h"
#include "bpf/lib/emit.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_DEAD 0x80
#define TASK_NOLOAD 0x400
#define SIGNAL_GROUP_EXIT 0x4
#define AF_INET 2
#define AF_INET6 10

/* Not preallocated: an entry that is deleted while a program holds it stays valid until
 * the program ends. Only the agent, by system calls, makes entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, uint32_t);
	__type(value, struct mc_host_thread);
} mc_host_threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, uint32_t);
	__type(value, struct mc_host_stack);
} mc_host_stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, uint32_t);
	__type(value, struct mc_host_process);
} mc_host_processes SEC(".maps");

/* When the direct reclaim began that a thread is in; by kernel pid and tid. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, uint64_t);
	__type(value, uint64_t);
} mc_host_reclaims SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct mc_host_connection);
	__type(value, struct mc_host_retransmits);
} mc_host_connections SEC(".maps");

/* ---- delays ------------------------------------------------------------------------ */

/* Number of a thread in the agent's namespace; 0: none, or the idle thread. */
static __always_inline uint32_t number_of(struct task_struct *task)
{
	return mc_pid_namespace ? mc_pid_number(task->thread_pid) : (uint32_t)task->pid;
}

static __always_inline struct mc_host_thread *watched(struct task_struct *task)
{
	uint32_t tid = number_of(task);

	return tid ? bpf_map_lookup_elem(&mc_host_threads, &tid) : NULL;
}

static __always_inline uint32_t state_of(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return ((struct task_struct___v5_13 *)task)->state;
}

static __always_inline uint64_t since(uint64_t begin, uint64_t now)
{
	return now > begin ? now - begin : 0;
}

static __always_inline void end_of_sleep(struct mc_host_thread *t, uint64_t now)
{
	uint64_t ns = since(t->since_ns, now);

	t->off_ns += ns;
	t->off_count++;
	if (ns > t->off_max_ns)
		t->off_max_ns = ns;
	if (t->state == MC_RUN_BLOCKED) {
		t->blocked_ns += ns;
		if (ns > t->blocked_max_ns)
			t->blocked_max_ns = ns;
	}
	t->last_off_ns = ns;
}

/*
 * The scheduler orders the events of one thread by the lock of its run queue, so its
 * entry has one writer at a time.
 */
SEC("tp_btf/sched_switch")
int BPF_PROG(host_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct mc_host_thread *t;
	uint64_t now = 0;

	t = watched(prev);
	if (t) {
		/* A wakeup on another CPU may have overwritten the state by now: then it
		 * counts as a (very short) interruptible sleep. */
		uint32_t state = preempt ? 0 : state_of(prev);

		now = bpf_ktime_get_ns();
		mc_hit(MC_PROBE_HOST_DELAY);
		if (!state)
			t->state = MC_RUN_RUNNABLE;
		else if (state & TASK_DEAD)
			t->state = MC_RUN_UNKNOWN;
		else if ((state & TASK_UNINTERRUPTIBLE) && !(state & TASK_NOLOAD))
			t->state = MC_RUN_BLOCKED;
		else
			t->state = MC_RUN_ASLEEP;
		t->since_ns = now;
	}
	t = watched(next);
	if (t) {
		if (!now)
			now = bpf_ktime_get_ns();
		mc_hit(MC_PROBE_HOST_DELAY);
		if (t->state == MC_RUN_RUNNABLE) {
			uint64_t ns = since(t->since_ns, now);

			t->runq_ns += ns;
			t->runq_count++;
			if (ns > t->runq_max_ns)
				t->runq_max_ns = ns;
		} else if (t->state == MC_RUN_ASLEEP || t->state == MC_RUN_BLOCKED) {
			end_of_sleep(t, now); /* its wakeup was not seen */
		}
		t->state = MC_RUN_RUNNING;
		t->since_ns = now;
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(host_wakeup, struct task_struct *task)
{
	struct mc_host_thread *t = watched(task);

	/* A thread that is woken before it has left its CPU does not sleep. */
	if (t && (t->state == MC_RUN_ASLEEP || t->state == MC_RUN_BLOCKED)) {
		uint64_t now = bpf_ktime_get_ns();

		mc_hit(MC_PROBE_HOST_DELAY);
		end_of_sleep(t, now);
		t->state = MC_RUN_RUNNABLE;
		t->since_ns = now;
	}
	return 0;
}

/*
 * Deep. Where the longest sleep since arming was: the stack of the woken thread, which
 * has not run yet. Attached after host_wakeup, so it runs after it.
 */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(host_sleep_stack, struct task_struct *task)
{
	uint32_t tid = number_of(task);
	struct mc_host_thread *t;
	struct mc_host_stack *s;
	long bytes;

	s = tid ? bpf_map_lookup_elem(&mc_host_stacks, &tid) : NULL;
	if (!s)
		return 0;
	t = bpf_map_lookup_elem(&mc_host_threads, &tid);
	if (!t || t->last_off_ns <= s->sleep_ns || !mc_armed(MC_PROBE_HOST_SLEEP_STACK, tid))
		return 0;
	mc_hit(MC_PROBE_HOST_SLEEP_STACK);
	s->frames = 0;
	bytes = bpf_get_task_stack(task, s->ip, sizeof(s->ip), 0);
	if (bytes < 0) {
		mc_count_failed_read(MC_PROBE_HOST_SLEEP_STACK);
		return 0;
	}
	s->sleep_ns = t->last_off_ns;
	s->frames = bytes / sizeof(s->ip[0]);
	return 0;
}

/*
 * Where a thread sleeps now: it may never wake up. The agent reads it for one thread
 * at a time, by the parameters of the iterator.
 */
SEC("iter/task")
int host_stack_now(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct mc_host_stack s = {};
	long bytes;

	if (!task)
		return 0;
	s.tid = number_of(task);
	if (!s.tid || !bpf_map_lookup_elem(&mc_host_stacks, &s.tid))
		return 0;
	bytes = bpf_get_task_stack(task, s.ip, sizeof(s.ip), 0);
	if (bytes < 0) {
		mc_count_failed_read(MC_PROBE_HOST_SLEEP_STACK);
		return 0;
	}
	s.frames = bytes / sizeof(s.ip[0]);
	bpf_seq_write(ctx->meta->seq, &s, sizeof(s));
	return 0;
}

/* ---- memory ------------------------------------------------------------------------- */

static __always_inline int reclaim_begins(void)
{
	struct mc_ids ids = mc_current_ids();
	uint64_t key, now;

	if (!bpf_map_lookup_elem(&mc_host_processes, &ids.pid))
		return 0;
	key = bpf_get_current_pid_tgid();
	now = bpf_ktime_get_ns();
	mc_hit(MC_PROBE_HOST_RECLAIM);
	bpf_map_update_elem(&mc_host_reclaims, &key, &now, BPF_ANY);
	return 0;
}

static __always_inline int reclaim_ends(void)
{
	uint64_t key = bpf_get_current_pid_tgid();
	uint64_t *begin = bpf_map_lookup_elem(&mc_host_reclaims, &key);
	struct mc_host_process *p;
	struct mc_ids ids;
	uint64_t ns;

	if (!begin)
		return 0;
	ns = since(*begin, bpf_ktime_get_ns());
	bpf_map_delete_elem(&mc_host_reclaims, &key);
	ids = mc_current_ids();
	p = bpf_map_lookup_elem(&mc_host_processes, &ids.pid);
	if (!p)
		return 0;
	__sync_fetch_and_add(&p->reclaims, 1);
	__sync_fetch_and_add(&p->reclaim_ns, ns);
	if (ns > p->reclaim_max_ns)
		p->reclaim_max_ns = ns;
	return 0;
}

/* For lack of memory in the machine ... */
SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(host_reclaim_begin)
{
	return reclaim_begins();
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(host_reclaim_end)
{
	return reclaim_ends();
}

/* ... and for the limit of a memory cgroup, as that of a container. */
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(host_memcg_reclaim_begin)
{
	return reclaim_begins();
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(host_memcg_reclaim_end)
{
	return reclaim_ends();
}

/*
 * Its argument was the pid, and became the task in 6.9 (and in stable kernels), when
 * the record of the tracepoint got the name, too.
 */
SEC("tp_btf/mark_victim")
int host_oom(unsigned long long *ctx)
{
	struct mc_event_host_oom *e;
	struct mc_ids ids = {};
	uint64_t victim = ctx[0];

	mc_hit(MC_PROBE_HOST_OOM);
	e = mc_emit(MC_PROBE_HOST_OOM, MC_EVENT_HOST_OOM, sizeof(*e));
	if (!e)
		return 0;
	e->pad0 = 0;
	__builtin_memset(e->comm, 0, sizeof(e->comm));
	if (bpf_core_field_exists(struct trace_event_raw_mark_victim, __data_loc_comm)) {
		struct task_struct *task = (struct task_struct *)victim;

		ids = mc_task_ids(task);
		e->kernel_pid = BPF_CORE_READ(task, tgid);
		bpf_core_read_str(e->comm, sizeof(e->comm), &task->comm);
	} else {
		e->kernel_pid = (uint32_t)victim;
		if (!mc_pid_namespace)
			ids.pid = e->kernel_pid;
	}
	e->header.pid = ids.pid;
	e->header.tid = ids.tid;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* ---- end of processes ---------------------------------------------------------------- */

SEC("tp_btf/sched_process_exit")
int BPF_PROG(host_exit, struct task_struct *task)
{
	struct signal_struct *signal = task->signal;
	struct mc_event_host_exit *e;
	struct mc_ids ids;

	if (signal->live.counter > 0)
		return 0; /* other threads go on */
	ids = mc_current_ids();
	if (!bpf_map_lookup_elem(&mc_host_processes, &ids.pid))
		return 0;
	mc_hit(MC_PROBE_HOST_EXIT);
	e = mc_emit(MC_PROBE_HOST_EXIT, MC_EVENT_HOST_EXIT, sizeof(*e));
	if (!e)
		return 0;
	e->code = signal->flags & SIGNAL_GROUP_EXIT ? signal->group_exit_code : task->exit_code;
	e->oom = signal->oom_mm != NULL;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* ---- TCP ------------------------------------------------------------------------------- */

/*
 * Of all sockets of the host: it runs in a timer or an interrupt, where the process is not
 * known. The inode of the socket leads to it (/proc/PID/fd), in every namespace.
 */
SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(host_retransmit, const struct sock *sk)
{
	struct mc_host_retransmits first = {.count = 1}, *r;
	struct mc_host_connection key = {};
	struct socket_alloc *socket = (struct socket_alloc *)sk->sk_socket;

	mc_hit(MC_PROBE_HOST_RETRANSMIT);
	key.inode = socket ? BPF_CORE_READ(socket, vfs_inode.i_ino) : 0;
	key.family = sk->__sk_common.skc_family;
	key.local_port = sk->__sk_common.skc_num;
	key.remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	if (key.family == AF_INET) {
		bpf_core_read(key.local, 4, &sk->__sk_common.skc_rcv_saddr);
		bpf_core_read(key.remote, 4, &sk->__sk_common.skc_daddr);
	} else if (key.family == AF_INET6 &&
		   bpf_core_field_exists(sk->__sk_common.skc_v6_daddr)) {
		bpf_core_read(key.local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(key.remote, 16, &sk->__sk_common.skc_v6_daddr);
	}
	first.last_ns = bpf_ktime_get_ns();
	r = bpf_map_lookup_elem(&mc_host_connections, &key);
	if (r) {
		__sync_fetch_and_add(&r->count, 1);
		r->last_ns = first.last_ns;
	} else if (bpf_map_update_elem(&mc_host_connections, &key, &first, BPF_NOEXIST)) {
		mc_count_dropped_row(MC_PROBE_HOST_RETRANSMIT);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
