// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * RDMA verbs, seen from the process: what each queue pair was asked to do and when, how
 * it is connected, what memory is registered, which errors come back.
 *
 * All are uprobes on the provider library and on libibverbs; the agent attaches them to
 * single processes, so others pay nothing. Cost: one trap per post (some 0.5 us on an emulated
 * instruction) and some 0.1 us in here.
 *
 * Cannot see: posts through ibv_wr_* (extended queue pairs), mlx5dv direct or DevX queues
 * and GPU-initiated networking; completions through ibv_start_poll; what happened before
 * it was attached. Memory of the process is read without faults: what is not resident
 * is counted as a failed read, not taken for zero.
 */
#include "bpf/lib/emit.h"
#include "bpf/abi/verbs_abi.h"
#include <bpf/bpf_tracing.h>

/* Requests and gather entries looked at in one call of post_send; more are counted. */
#define MAX_WALK 4096
#define MAX_COMPLETIONS 1024

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct mc_qp_key);
	__type(value, struct mc_qp_row);
} mc_qps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct mc_verbs_key);
	__type(value, struct mc_verbs_context);
} mc_contexts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct mc_verbs_key);
	__type(value, struct mc_mr_row);
} mc_mrs SEC(".maps");

/* Calls that have not returned: a thread is in one of each kind at most. */
enum call_kind { CALL_CREATE, CALL_MODIFY, CALL_MR, CALL_ASYNC, CALL_POLL, CALL_POST };
struct call_key {
	uint64_t thread;
	uint64_t kind;
};
struct call {
	uint64_t ns;
	uint64_t args[4];
};
struct {
	/* A thread that dies in a call leaves its entry: the least used ones go. */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct call_key);
	__type(value, struct call);
} mc_calls SEC(".maps");

/* Asynchronous events that were seen when they were read, until they are acknowledged. */
struct async_key {
	uint64_t element;
	uint32_t pid;
	uint32_t type;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct async_key);
	__type(value, uint64_t);
} mc_async_seen SEC(".maps");

/* Armed: when the request with that number was posted. */
struct post_key {
	uint64_t context;
	uint64_t wr_id;
	uint32_t pid;
	uint32_t number;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct post_key);
	__type(value, uint64_t);
} mc_posts SEC(".maps");

/* Number of processes for which completions are armed; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, uint32_t);
} mc_completions SEC(".maps");

/*
 * Always 0, but the verifier does not know. Sums of a loop begin with it: with a known
 * begin, each round would be a new state to it, and it would not come to an end.
 */
uint64_t mc_zero;

static const struct mc_qp_row empty_row;
static const struct mc_mr_row empty_mr;

struct qp {
	struct mc_qp_key key;
	uint32_t handle;
	uint32_t state;
};

static __always_inline uint64_t read_pointer(uint64_t address)
{
	uint64_t value;

	if (bpf_probe_read_user(&value, sizeof(value), (void *)address))
		return 0;
	return value;
}

/* Members of a struct ibv_qp of the current process; false: unreadable, counted. */
static __always_inline bool read_qp(enum mc_probe probe, uint64_t address, uint32_t pid,
				    struct qp *qp)
{
	struct {
		uint64_t context;
		uint64_t skipped[5];
		uint32_t handle, number, state, type;
	} raw;

	_Static_assert(sizeof(raw) == MC_IBV_QP_BYTES, "struct ibv_qp up to qp_type");
	if (bpf_probe_read_user(&raw, sizeof(raw), (void *)address)) {
		mc_count_failed_read(probe);
		return false;
	}
	qp->key.pid = pid;
	qp->key.number = raw.number;
	qp->key.context = raw.context;
	qp->handle = raw.handle;
	qp->state = raw.state;
	return true;
}

/* Name of the device of a context, from its entry; `name` has 64 bytes. */
static __always_inline void copy_device(uint32_t pid, uint64_t context, char *name)
{
	struct mc_verbs_key key = {.pid = pid, .context = context};
	struct mc_verbs_context *entry = bpf_map_lookup_elem(&mc_contexts, &key);

	if (entry)
		__builtin_memcpy(name, entry->device, sizeof(entry->device));
	else
		__builtin_memset(name, 0, sizeof(entry->device));
}

/* Learns a context: its device, and where its fast functions are. */
static __noinline int note_context(uint64_t context, uint32_t pid, bool opened)
{
	struct mc_verbs_key key = {.pid = pid, .context = context};
	struct mc_verbs_context entry = {};
	struct mc_event_verbs_context *e;
	uint64_t device;

	if (!context || (!opened && bpf_map_lookup_elem(&mc_contexts, &key)))
		return 0;
	device = read_pointer(context + MC_IBV_CONTEXT_DEVICE);
	if (!device || bpf_probe_read_user_str(entry.device, sizeof(entry.device),
					       (void *)(device + MC_IBV_DEVICE_NAME)) < 0)
		mc_count_failed_read(MC_PROBE_VERBS_OPEN);
	entry.first_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&mc_contexts, &key, &entry, BPF_ANY))
		mc_count_dropped_row(MC_PROBE_VERBS_OPEN);
	e = mc_emit(MC_PROBE_VERBS_OPEN, MC_EVENT_VERBS_CONTEXT, sizeof(*e));
	if (!e)
		return 0;
	e->context = context;
	e->post_send = read_pointer(context + MC_IBV_CONTEXT_POST_SEND);
	e->post_recv = read_pointer(context + MC_IBV_CONTEXT_POST_RECV);
	e->post_srq_recv = read_pointer(context + MC_IBV_CONTEXT_POST_SRQ_RECV);
	e->poll_cq = read_pointer(context + MC_IBV_CONTEXT_POLL_CQ);
	__builtin_memcpy(e->device, entry.device, sizeof(e->device));
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/*
 * A new row. What another queue pair of that number left there is told to the agent
 * first, unless it never did anything.
 */
static __noinline struct mc_qp_row *new_row(enum mc_probe probe, const struct qp *qp, bool created)
{
	struct mc_qp_row *row = bpf_map_lookup_elem(&mc_qps, &qp->key);

	if (row) {
		struct mc_event_verbs_qp_gone *e;

		e = mc_emit(MC_PROBE_VERBS_QP, MC_EVENT_VERBS_QP_GONE, sizeof(*e));
		if (e) {
			e->key = qp->key;
			__builtin_memcpy(&e->row, row, sizeof(e->row));
			e->row.flags |= MC_QP_DESTROYED;
			bpf_ringbuf_submit(e, 0);
		}
	}
	if (bpf_map_update_elem(&mc_qps, &qp->key, &empty_row, BPF_ANY)) {
		mc_count_dropped_row(probe);
		return NULL;
	}
	row = bpf_map_lookup_elem(&mc_qps, &qp->key);
	if (!row)
		return NULL;
	row->created_ns = bpf_ktime_get_ns();
	row->state_ns = row->created_ns;
	row->handle = qp->handle;
	row->flags = created ? MC_QP_SEEN_CREATED : 0;
	row->state = created ? MC_IBV_QPS_RESET : MC_QP_STATE_UNKNOWN;
	/* libibverbs keeps the state that was last set by ibv_modify_qp in the struct. */
	if (!created && qp->state < MC_QP_STATE_UNKNOWN)
		row->state = qp->state;
	note_context(qp->key.context, qp->key.pid, false);
	copy_device(qp->key.pid, qp->key.context, row->device);
	return row;
}

/* The row of a queue pair that is used: made if it is the first sight of it. */
static __always_inline struct mc_qp_row *row_of(enum mc_probe probe, const struct qp *qp)
{
	struct mc_qp_row *row = bpf_map_lookup_elem(&mc_qps, &qp->key);

	/* Destroyed, or another handle: the number is used again and we did not see it made. */
	if (row && row->handle == qp->handle && !(row->flags & MC_QP_DESTROYED))
		return row;
	return new_row(probe, qp, false);
}

static __always_inline void save_call(enum call_kind kind, uint64_t a, uint64_t b, uint64_t c,
				      uint64_t d)
{
	struct call_key key = {.thread = bpf_get_current_pid_tgid(), .kind = kind};
	struct call call = {.ns = bpf_ktime_get_ns(), .args = {a, b, c, d}};

	bpf_map_update_elem(&mc_calls, &key, &call, BPF_ANY);
}

/* The saved call, taken out; false: its begin was not seen. */
static __always_inline bool take_call(enum call_kind kind, struct call *call)
{
	struct call_key key = {.thread = bpf_get_current_pid_tgid(), .kind = kind};
	struct call *saved = bpf_map_lookup_elem(&mc_calls, &key);

	if (!saved)
		return false;
	*call = *saved;
	bpf_map_delete_elem(&mc_calls, &key);
	return true;
}

/* struct ibv_context *ibv_open_device(device), return */
SEC("uretprobe")
int BPF_KRETPROBE(verbs_open_return, uint64_t context)
{
	mc_hit(MC_PROBE_VERBS_OPEN);
	note_context(context, mc_current_ids().pid, true);
	return 0;
}

/* ---- posts ------------------------------------------------------------------------ */

static __always_inline bool completions_armed(uint32_t pid)
{
	uint32_t first = 0, *armed = bpf_map_lookup_elem(&mc_completions, &first);

	return armed && *armed && mc_armed(MC_PROBE_VERBS_COMPLETIONS, pid);
}

struct walk {
	uint64_t wr;	/* next request */
	uint64_t sg;	/* next gather entry of the current one */
	uint64_t sges;	/* gather entries left */
	uint64_t fault;
	uint64_t bytes;
	uint64_t counts[MC_QP_OPERATIONS];
	uint64_t armed;
	struct post_key post;
};

/* One step: up to four gather entries of the current request, or the next request. */
static long walk_step(uint32_t i, void *data)
{
	struct walk *w = data;
	struct {
		uint64_t wr_id, next, sg_list;
		uint32_t num_sge, opcode;
	} wr;
	struct {
		uint64_t address;
		uint32_t length, key;
	} sge[4];

	if (!w->sges) {
		if (!w->wr)
			return 1;
		if (bpf_probe_read_user(&wr, sizeof(wr), (void *)w->wr)) {
			w->fault = 1;
			return 1;
		}
		switch (wr.opcode) {
		case MC_IBV_WR_RDMA_WRITE:
		case MC_IBV_WR_RDMA_WRITE_WITH_IMM:
			w->counts[MC_QP_WRITE]++;
			break;
		case MC_IBV_WR_SEND:
		case MC_IBV_WR_SEND_WITH_IMM:
		case MC_IBV_WR_SEND_WITH_INV:
			w->counts[MC_QP_SEND]++;
			break;
		case MC_IBV_WR_RDMA_READ:
			w->counts[MC_QP_READ]++;
			break;
		case MC_IBV_WR_ATOMIC_CMP_AND_SWP:
		case MC_IBV_WR_ATOMIC_FETCH_AND_ADD:
		case MC_IBV_WR_ATOMIC_WRITE:
			w->counts[MC_QP_ATOMIC]++;
			break;
		default:
			w->counts[MC_QP_OTHER]++;
		}
		if (w->armed) {
			uint64_t now = bpf_ktime_get_ns();

			w->post.wr_id = wr.wr_id;
			bpf_map_update_elem(&mc_posts, &w->post, &now, BPF_ANY);
		}
		w->wr = wr.next;
		w->sg = wr.sg_list;
		/* A negative number of entries is the caller's error; the provider refuses it. */
		w->sges = wr.num_sge > 0x7fffffff ? 0 : wr.num_sge;
		if (!w->sges)
			return 0;
	}
	if (w->sges == 1) {
		uint32_t length;

		if (bpf_probe_read_user(&length, sizeof(length),
					(void *)(w->sg + MC_IBV_SGE_LENGTH))) {
			w->fault = 1;
			return 1;
		}
		w->bytes += length;
		w->sges = 0;
		return w->wr ? 0 : 1;
	}
	if (w->sges < 4) {
		if (bpf_probe_read_user(&sge, 2 * MC_IBV_SGE_BYTES, (void *)w->sg)) {
			w->fault = 1;
			return 1;
		}
		w->bytes += (uint64_t)sge[0].length + sge[1].length;
		w->sg += 2 * MC_IBV_SGE_BYTES;
		w->sges -= 2;
	} else {
		if (bpf_probe_read_user(&sge, sizeof(sge), (void *)w->sg)) {
			w->fault = 1;
			return 1;
		}
		w->bytes += (uint64_t)sge[0].length + sge[1].length + sge[2].length +
			    sge[3].length;
		w->sg += sizeof(sge);
		w->sges -= 4;
	}
	return w->sges || w->wr ? 0 : 1;
}

/* int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **bad) */
SEC("uprobe")
int BPF_KPROBE(verbs_post_send, uint64_t qp_address, uint64_t wr)
{
	struct mc_ids ids = mc_current_ids();
	struct mc_qp_row *row;
	struct walk w = {.wr = wr};
	struct qp qp;

	mc_hit(MC_PROBE_VERBS_POST_SEND);
	if (!read_qp(MC_PROBE_VERBS_POST_SEND, qp_address, ids.pid, &qp))
		return 0;
	row = row_of(MC_PROBE_VERBS_POST_SEND, &qp);
	if (!row)
		return 0;
	if (completions_armed(ids.pid)) {
		w.armed = 1;
		w.post.context = qp.key.context;
		w.post.pid = ids.pid;
		w.post.number = qp.key.number;
	}
	w.bytes = mc_zero;
#pragma unroll
	for (int kind = 0; kind < MC_QP_OPERATIONS; kind++)
		w.counts[kind] = w.bytes;
	/* Nearly all calls post one request with one entry: no loop for them. */
	if (!walk_step(0, &w))
		bpf_loop(MAX_WALK, walk_step, &w, 0);
	if (w.fault)
		mc_count_failed_read(MC_PROBE_VERBS_POST_SEND);
	else if (w.sges || w.wr)
		__sync_fetch_and_add(&row->truncated_posts, 1);
#pragma unroll
	for (int kind = 0; kind < MC_QP_OPERATIONS; kind++)
		if (w.counts[kind])
			__sync_fetch_and_add(&row->posts[kind], w.counts[kind]);
	__sync_fetch_and_add(&row->bytes, w.bytes);
	row->last_post_ns = bpf_ktime_get_ns();
	row->post_tid = ids.tid;
	return 0;
}

struct recv_walk {
	uint64_t wr;
	uint64_t count;
	uint64_t fault;
};

static long recv_step(uint32_t i, void *data)
{
	struct recv_walk *w = data;

	w->count++;
	if (bpf_probe_read_user(&w->wr, sizeof(w->wr), (void *)(w->wr + MC_IBV_RECV_WR_NEXT))) {
		w->fault = 1;
		return 1;
	}
	return w->wr ? 0 : 1;
}

/* int post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **bad) */
SEC("uprobe")
int BPF_KPROBE(verbs_post_recv, uint64_t qp_address, uint64_t wr)
{
	struct mc_ids ids = mc_current_ids();
	struct recv_walk w = {.wr = wr};
	struct mc_qp_row *row;
	struct qp qp;

	mc_hit(MC_PROBE_VERBS_POST_RECV);
	if (!read_qp(MC_PROBE_VERBS_POST_RECV, qp_address, ids.pid, &qp))
		return 0;
	row = row_of(MC_PROBE_VERBS_POST_RECV, &qp);
	if (!row)
		return 0;
	w.count = mc_zero;
	if (wr)
		bpf_loop(MAX_WALK, recv_step, &w, 0);
	if (w.fault)
		mc_count_failed_read(MC_PROBE_VERBS_POST_RECV);
	else if (w.wr)
		__sync_fetch_and_add(&row->truncated_posts, 1);
	__sync_fetch_and_add(&row->receives, w.count);
	row->last_receive_ns = bpf_ktime_get_ns();
	if (!completions_armed(ids.pid))
		row->receive_completions = row->receives;
	return 0;
}

/* Armed: either of the two, and its return: 0 or an errno. */
SEC("uprobe")
int BPF_KPROBE(verbs_post, uint64_t qp_address)
{
	if (mc_armed(MC_PROBE_VERBS_POST_FAILURES, mc_current_ids().pid))
		save_call(CALL_POST, qp_address, 0, 0, 0);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(verbs_post_return, int error)
{
	struct mc_qp_row *row;
	struct call call;
	struct qp qp;

	if (!take_call(CALL_POST, &call))
		return 0;
	mc_hit(MC_PROBE_VERBS_POST_FAILURES);
	if (!error || !read_qp(MC_PROBE_VERBS_POST_FAILURES, call.args[0], mc_current_ids().pid, &qp))
		return 0;
	row = row_of(MC_PROBE_VERBS_POST_FAILURES, &qp);
	if (!row)
		return 0;
	__sync_fetch_and_add(&row->post_failures, 1);
	/* Providers give an errno, some with the wrong sign. */
	row->last_errno = error < 0 ? -error : error;
	return 0;
}

/* ---- life of a queue pair --------------------------------------------------------- */

/* int ibv_cmd_create_qp*(pd or context, struct ibv_qp *, ...) */
SEC("uprobe")
int BPF_KPROBE(verbs_create_qp, uint64_t parent, uint64_t qp_address)
{
	save_call(CALL_CREATE, qp_address, 0, 0, 0);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(verbs_create_qp_return, int error)
{
	struct call call;
	struct qp qp;

	if (!take_call(CALL_CREATE, &call))
		return 0;
	mc_hit(MC_PROBE_VERBS_QP);
	if (error || !read_qp(MC_PROBE_VERBS_QP, call.args[0], mc_current_ids().pid, &qp))
		return 0;
	new_row(MC_PROBE_VERBS_QP, &qp, true);
	return 0;
}

static __noinline int emit_qp_error(const struct qp *qp, enum mc_qp_error_reason reason,
				    uint32_t value, uint32_t more)
{
	struct mc_event_verbs_qp_error *e;

	e = mc_emit(MC_PROBE_VERBS_QP, MC_EVENT_VERBS_QP_ERROR, sizeof(*e));
	if (!e)
		return 0;
	e->key = qp->key;
	e->reason = reason;
	e->value = value;
	e->vendor = reason == MC_QP_ERROR_COMPLETION ? more : 0;
	e->state = reason == MC_QP_ERROR_COMPLETION ? 0 : more;
	copy_device(qp->key.pid, qp->key.context, e->device);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* int ibv_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int mask) */
SEC("uprobe")
int BPF_KPROBE(verbs_modify_qp, uint64_t qp_address, uint64_t attr, uint32_t mask)
{
	save_call(CALL_MODIFY, qp_address, attr, mask, 0);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(verbs_modify_qp_return, int error)
{
	uint8_t attr[MC_IBV_QP_ATTR_BYTES];
	struct mc_qp_row *row;
	struct call call;
	uint32_t mask, state;
	struct qp qp;

	if (!take_call(CALL_MODIFY, &call))
		return 0;
	mc_hit(MC_PROBE_VERBS_QP);
	if (!read_qp(MC_PROBE_VERBS_QP, call.args[0], mc_current_ids().pid, &qp))
		return 0;
	if (bpf_probe_read_user(attr, sizeof(attr), (void *)call.args[1])) {
		mc_count_failed_read(MC_PROBE_VERBS_QP);
		return 0;
	}
	mask = call.args[2];
	state = *(uint32_t *)(attr + MC_IBV_QP_ATTR_STATE);
	if (error) {
		emit_qp_error(&qp, MC_QP_ERROR_MODIFY_FAILED, error < 0 ? -error : error,
			      mask & MC_IBV_QP_MASK_STATE ? state : MC_QP_STATE_UNKNOWN);
		return 0;
	}
	row = row_of(MC_PROBE_VERBS_QP, &qp);
	if (!row)
		return 0;
	if (mask & MC_IBV_QP_MASK_STATE && state < MC_QP_STATE_UNKNOWN) {
		if (row->state != state || row->state_ns < call.ns)
			row->state_ns = bpf_ktime_get_ns();
		row->state = state;
		if (state == MC_IBV_QPS_ERR || state == MC_IBV_QPS_SQE)
			emit_qp_error(&qp, MC_QP_ERROR_MODIFIED, state, state);
	}
	if (mask & MC_IBV_QP_MASK_DEST_QPN)
		row->remote_number = *(uint32_t *)(attr + MC_IBV_QP_ATTR_DEST_QP_NUM);
	if (mask & MC_IBV_QP_MASK_PATH_MTU)
		row->path_mtu = *(uint32_t *)(attr + MC_IBV_QP_ATTR_PATH_MTU);
	if (mask & MC_IBV_QP_MASK_AV) {
		row->has_gid = attr[MC_IBV_QP_ATTR_IS_GLOBAL] != 0;
		row->gid_index = attr[MC_IBV_QP_ATTR_SGID_INDEX];
		__builtin_memcpy(row->remote_gid, attr + MC_IBV_QP_ATTR_GID,
				 sizeof(row->remote_gid));
		if (attr[MC_IBV_QP_ATTR_AH_PORT])
			row->port = attr[MC_IBV_QP_ATTR_AH_PORT];
	}
	if (mask & MC_IBV_QP_MASK_PORT)
		row->port = attr[MC_IBV_QP_ATTR_PORT];
	if (mask & MC_IBV_QP_MASK_TIMEOUT)
		row->timeout = attr[MC_IBV_QP_ATTR_TIMEOUT];
	if (mask & MC_IBV_QP_MASK_RETRY_CNT)
		row->retry_count = attr[MC_IBV_QP_ATTR_RETRY_CNT];
	if (mask & MC_IBV_QP_MASK_RNR_RETRY)
		row->rnr_retry = attr[MC_IBV_QP_ATTR_RNR_RETRY];
	if (mask & MC_IBV_QP_MASK_MIN_RNR_TIMER)
		row->min_rnr_timer = attr[MC_IBV_QP_ATTR_MIN_RNR_TIMER];
	row->known |= mask;
	return 0;
}

/* int ibv_cmd_destroy_qp(struct ibv_qp *): if it should fail, the next use makes a new row. */
SEC("uprobe")
int BPF_KPROBE(verbs_destroy_qp, uint64_t qp_address)
{
	struct mc_qp_row *row;
	struct qp qp;

	mc_hit(MC_PROBE_VERBS_QP);
	if (!read_qp(MC_PROBE_VERBS_QP, qp_address, mc_current_ids().pid, &qp))
		return 0;
	row = bpf_map_lookup_elem(&mc_qps, &qp.key);
	if (row && !(row->flags & MC_QP_DESTROYED)) {
		row->state_ns = bpf_ktime_get_ns();
		row->flags |= MC_QP_DESTROYED;
	}
	return 0;
}

/* ---- registrations ---------------------------------------------------------------- */

/* int ibv_cmd_reg_mr(pd, address, length, hca_va, access, ...) */
SEC("uprobe")
int BPF_KPROBE(verbs_reg_mr, uint64_t pd, uint64_t address, uint64_t length, uint64_t va,
	       uint32_t access)
{
	save_call(CALL_MR, pd, length, access, 0);
	return 0;
}

/* int ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, ...) */
SEC("uprobe")
int verbs_reg_dmabuf(struct pt_regs *ctx)
{
	/* The sixth argument is in r9, which BPF_KPROBE does not reach in older libbpf. */
	save_call(CALL_MR, ctx->di, ctx->dx, (uint32_t)ctx->r9, 1);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(verbs_reg_mr_return, int error)
{
	struct mc_verbs_key key = {};
	struct mc_mr_row *row;
	struct call call;
	uint64_t now;

	if (!take_call(CALL_MR, &call))
		return 0;
	mc_hit(MC_PROBE_VERBS_MR);
	key.pid = mc_current_ids().pid;
	key.context = read_pointer(call.args[0]);
	if (!key.context) {
		mc_count_failed_read(MC_PROBE_VERBS_MR);
		return 0;
	}
	note_context(key.context, key.pid, false);
	row = bpf_map_lookup_elem(&mc_mrs, &key);
	if (!row) {
		/* Two threads may be here: the first one's row stays. */
		bpf_map_update_elem(&mc_mrs, &key, &empty_mr, BPF_NOEXIST);
		row = bpf_map_lookup_elem(&mc_mrs, &key);
		if (!row) {
			mc_count_dropped_row(MC_PROBE_VERBS_MR);
			return 0;
		}
		copy_device(key.pid, key.context, row->device);
	}
	now = bpf_ktime_get_ns();
	__sync_fetch_and_add(&row->ns, now - call.ns);
	if (!error) {
		__sync_fetch_and_add(&row->registrations, 1);
		__sync_fetch_and_add(&row->bytes, call.args[1]);
		if (call.args[3])
			__sync_fetch_and_add(&row->dmabuf, 1);
		if (call.args[2] & MC_IBV_ACCESS_RELAXED_ORDERING)
			__sync_fetch_and_add(&row->relaxed_ordering, 1);
		return 0;
	}
	if (error < 0)
		error = -error;
	__sync_fetch_and_add(&row->failures, 1);
	row->last_errno = error;
	row->last_failure_bytes = call.args[1];
	row->last_failure_access = call.args[2];
	row->last_failure_ns = now;
	struct mc_event_verbs_mr_failure *e;

	e = mc_emit(MC_PROBE_VERBS_MR, MC_EVENT_VERBS_MR_FAILURE, sizeof(*e));
	if (!e)
		return 0;
	e->context = key.context;
	e->bytes = call.args[1];
	e->access = call.args[2];
	e->error = error;
	e->dmabuf = call.args[3];
	e->pad0 = 0;
	copy_device(key.pid, key.context, e->device);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* ---- asynchronous events ---------------------------------------------------------- */

static __always_inline bool is_qp_event(uint32_t type)
{
	return (type >= MC_IBV_EVENT_QP_FATAL && type <= MC_IBV_EVENT_PATH_MIG_ERR) ||
	       type == MC_IBV_EVENT_QP_LAST_WQE_REACHED;
}

static __always_inline bool is_port_event(uint32_t type)
{
	return (type >= MC_IBV_EVENT_PORT_ACTIVE && type <= MC_IBV_EVENT_SM_CHANGE) ||
	       type == MC_IBV_EVENT_CLIENT_REREGISTER || type == MC_IBV_EVENT_GID_CHANGE;
}

static __noinline int async_event(uint64_t element, uint32_t type, uint64_t context, uint32_t pid)
{
	struct mc_event_verbs_async *e;
	struct qp qp = {};

	if (is_qp_event(type) && read_qp(MC_PROBE_VERBS_ASYNC, element, pid, &qp)) {
		context = qp.key.context;
		if (type <= MC_IBV_EVENT_QP_ACCESS_ERR) {
			struct mc_qp_row *row = row_of(MC_PROBE_VERBS_ASYNC, &qp);

			if (row) {
				row->state = MC_IBV_QPS_ERR;
				row->state_ns = bpf_ktime_get_ns();
			}
			emit_qp_error(&qp, MC_QP_ERROR_ASYNC, type, MC_IBV_QPS_ERR);
		}
	}
	e = mc_emit(MC_PROBE_VERBS_ASYNC, MC_EVENT_VERBS_ASYNC, sizeof(*e));
	if (!e)
		return 0;
	e->context = context;
	e->type = type;
	e->qp_number = qp.key.number;
	e->port = is_port_event(type) ? (uint32_t)element : 0;
	e->pad0 = 0;
	copy_device(pid, context, e->device);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* int ibv_get_async_event(context, struct ibv_async_event *) */
SEC("uprobe")
int BPF_KPROBE(verbs_async, uint64_t context, uint64_t event)
{
	save_call(CALL_ASYNC, context, event, 0, 0);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(verbs_async_return, int error)
{
	struct async_key key = {};
	uint64_t one = 1, *seen;
	struct call call;

	if (!take_call(CALL_ASYNC, &call) || error)
		return 0;
	mc_hit(MC_PROBE_VERBS_ASYNC);
	if (bpf_probe_read_user(&key.element, sizeof(key.element), (void *)call.args[1]) ||
	    bpf_probe_read_user(&key.type, sizeof(key.type),
				(void *)(call.args[1] + MC_IBV_ASYNC_TYPE))) {
		mc_count_failed_read(MC_PROBE_VERBS_ASYNC);
		return 0;
	}
	key.pid = mc_current_ids().pid;
	seen = bpf_map_lookup_elem(&mc_async_seen, &key);
	if (seen)
		__sync_fetch_and_add(seen, 1);
	else
		bpf_map_update_elem(&mc_async_seen, &key, &one, BPF_ANY);
	note_context(call.args[0], key.pid, false);
	async_event(key.element, key.type, call.args[0], key.pid);
	return 0;
}

/*
 * void ibv_ack_async_event(struct ibv_async_event *): a thread that was in
 * ibv_get_async_event before we came is seen here first.
 */
SEC("uprobe")
int BPF_KPROBE(verbs_ack_async, uint64_t event)
{
	struct async_key key = {};
	uint64_t *seen;

	if (bpf_probe_read_user(&key.element, sizeof(key.element), (void *)event) ||
	    bpf_probe_read_user(&key.type, sizeof(key.type), (void *)(event + MC_IBV_ASYNC_TYPE))) {
		mc_count_failed_read(MC_PROBE_VERBS_ASYNC);
		return 0;
	}
	key.pid = mc_current_ids().pid;
	seen = bpf_map_lookup_elem(&mc_async_seen, &key);
	if (seen) {
		if (*seen > 1)
			__sync_fetch_and_add(seen, -1);
		else
			bpf_map_delete_elem(&mc_async_seen, &key);
		return 0;
	}
	mc_hit(MC_PROBE_VERBS_ASYNC);
	async_event(key.element, key.type, 0, key.pid);
	return 0;
}

/* ---- completions, armed only ------------------------------------------------------ */

struct wc_walk {
	uint64_t wc;
	uint64_t now;
	uint64_t context;
	uint64_t pid;
	uint64_t fault;
};

static long wc_step(uint32_t i, void *data)
{
	struct wc_walk *w = data;
	struct {
		uint64_t wr_id;
		uint32_t status, opcode, vendor, bytes, imm, number;
	} wc;
	struct mc_qp_key key = {.pid = w->pid, .context = w->context};
	struct mc_qp_row *row;

	if (bpf_probe_read_user(&wc, sizeof(wc), (void *)w->wc)) {
		w->fault = 1;
		return 1;
	}
	w->wc += MC_IBV_WC_BYTES;
	key.number = wc.number;
	row = bpf_map_lookup_elem(&mc_qps, &key);
	if (!row || row->flags & MC_QP_DESTROYED) {
		/* Its struct is not known here: no handle, so a later use makes the row new. */
		mc_count_dropped_row(MC_PROBE_VERBS_COMPLETIONS);
		return 0;
	}
	row->flags |= MC_QP_COMPLETIONS_SEEN;
	/* The operation is given with success only. */
	if (wc.status == MC_IBV_WC_SUCCESS && wc.opcode & MC_IBV_WC_RECV) {
		/* One that was posted before is not among them. */
		if (row->receive_completions < row->receives)
			__sync_fetch_and_add(&row->receive_completions, 1);
		return 0;
	}
	row->last_completion_ns = w->now;
	__sync_fetch_and_add(&row->completions, 1);
	if (wc.status != MC_IBV_WC_SUCCESS) {
		__sync_fetch_and_add(&row->failed_completions, 1);
		if (!row->first_bad_ns && wc.status != MC_IBV_WC_WR_FLUSH_ERR &&
		    wc.status != MC_IBV_WC_FLUSH_249) {
			struct qp qp = {.key = key};

			row->first_bad_ns = w->now;
			row->first_bad_status = wc.status;
			row->first_bad_vendor = wc.vendor;
			/* The queue pair is in error now (IB specification 10.3.1). */
			row->state = MC_IBV_QPS_ERR;
			row->state_ns = w->now;
			emit_qp_error(&qp, MC_QP_ERROR_COMPLETION, wc.status, wc.vendor);
		}
		return 0;
	}
	struct post_key post = {.context = w->context, .wr_id = wc.wr_id, .pid = w->pid,
				.number = wc.number};
	uint64_t *posted = bpf_map_lookup_elem(&mc_posts, &post);

	if (posted && *posted <= w->now) {
		uint64_t latency = w->now - *posted;

		__sync_fetch_and_add(&row->latency_count, 1);
		__sync_fetch_and_add(&row->latency_sum_ns, latency);
		if (latency > row->latency_max_ns)
			row->latency_max_ns = latency;
		bpf_map_delete_elem(&mc_posts, &post);
	}
	return 0;
}

/* int poll_cq(struct ibv_cq *, int entries, struct ibv_wc *) */
SEC("uprobe")
int BPF_KPROBE(verbs_poll_cq, uint64_t cq, uint64_t entries, uint64_t wc)
{
	if (mc_armed(MC_PROBE_VERBS_COMPLETIONS, mc_current_ids().pid))
		save_call(CALL_POLL, cq, wc, 0, 0);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(verbs_poll_cq_return, int count)
{
	struct wc_walk w = {};
	struct call call;

	if (!take_call(CALL_POLL, &call) || count <= 0)
		return 0;
	mc_hit(MC_PROBE_VERBS_COMPLETIONS);
	w.pid = mc_current_ids().pid;
	w.wc = call.args[1];
	w.now = bpf_ktime_get_ns();
	w.context = read_pointer(call.args[0]);
	if (!w.context) {
		mc_count_failed_read(MC_PROBE_VERBS_COMPLETIONS);
		return 0;
	}
	bpf_loop(count < MAX_COMPLETIONS ? count : MAX_COMPLETIONS, wc_step, &w, 0);
	if (w.fault || count > MAX_COMPLETIONS)
		mc_count_failed_read(MC_PROBE_VERBS_COMPLETIONS);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
