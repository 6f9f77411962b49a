/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The progress board: how the progress of collective communication leaves a
 * training process. One sealed memfd named MC_BOARD_MEMFD_NAME per process,
 * found by the agent in /proc/PID/fd. Fixed tables, one writer per line.
 *
 *   page 0          mc_board_header   identity, table directory, loss counters, control
 *   then            mc_board_comm[]   communicators
 *                   mc_board_thread[] threads that made callbacks
 *                   mc_board_op[]     ring of operations (collectives and p2p)
 *                   mc_board_flow[]   communicator x channel x peer x direction
 *
 * Writers are wait-free. Every line starts with a sequence word: odd while it
 * is being written, even when it is at rest (the reader copies the line and
 * retries when the word was odd or has changed). All times are nanoseconds of
 * CLOCK_MONOTONIC of the host unless the name says gpu.
 *
 * The reader is privileged, the writer is not: a reader must check the seals
 * and the size of the memfd, copy before it validates, and bound every index.
 *
 * A change of any offset bumps MC_BOARD_VERSION. Fixed width, no hidden byte.
 */
#ifndef MYCROFT_BPF_ABI_BOARD_H_
#define MYCROFT_BPF_ABI_BOARD_H_

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#include <type_traits>
#else
#include <stddef.h>
#include <stdint.h>
#endif

#define MC_BOARD_MEMFD_NAME "mycroft-board" /* /proc/PID/fd/N -> /memfd:mycroft-board (deleted) */
#define MC_BOARD_MAGIC 0x4452414f4259434dULL /* "MCYBOARD" in memory order */
#define MC_BOARD_VERSION 1u
#define MC_BOARD_MAX_BYTES (8u << 20) /* the whole board, all tables */

#define MC_BOARD_MAX_COMMS 512u
#define MC_BOARD_MAX_THREADS 256u
#define MC_BOARD_MAX_OPS 4096u /* power of two: slot = id & (capacity - 1) */
#define MC_BOARD_MAX_FLOWS 12288u

/* What the plugin asks of NCCL, from little to much. */
enum mc_level {
	MC_LEVEL_UNSET = 0,
	MC_LEVEL_OPS = 1,     /* operations: enqueue only */
	MC_LEVEL_STEPS = 2,   /* + proxy operations and steps: flows and wait states */
	MC_LEVEL_KERNELS = 3, /* + kernel start and stop per channel (GPU clock) */
};

/* Causes of loss, index of mc_board_header.lost[]. */
enum mc_loss {
	MC_LOSS_COMM_TABLE_FULL = 0, /* communicators not tracked */
	MC_LOSS_THREAD_TABLE_FULL,   /* threads not tracked */
	MC_LOSS_OP_EVICTED,	     /* ring overwrote an operation that was still in flight */
	MC_LOSS_FLOW_TABLE_FULL,     /* proxy operations of untracked flows */
	MC_LOSS_PROXY_OP_POOL_FULL,  /* proxy operations not tracked step by step */
	MC_LOSS_STALE_HANDLE,	     /* callbacks on a handle that no longer exists */
	MC_LOSS_DUPLICATE_STEP,	     /* a step started again (not a loss: NCCL retries) */
	MC_LOSS_FOREIGN_PARENT,	     /* proxy operations for another process (PXN) */
	MC_LOSS_UNKNOWN_EVENT,	     /* event types or states that this version does not know */
	MC_LOSS_NO_PARENT,	     /* proxy or kernel events whose operation is not known */
	MC_LOSS_COUNT,
};

struct mc_board_table {
	uint64_t offset;   /* bytes from the start of the board, multiple of 64 */
	uint32_t stride;   /* bytes from line to line: >= the struct this header knows */
	uint32_t capacity; /* lines */
};

struct mc_board_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_bytes; /* sizeof(struct mc_board_header) of the writer */
	uint64_t total_bytes;  /* size of the memfd */
	uint32_t pid;	       /* as seen in the process's own namespace */
	uint32_t profiler_api; /* 4, 5 or 6: the ncclProfiler_vN that NCCL chose; 0 unknown */
	uint64_t created_ns;
	struct mc_board_table comms;
	struct mc_board_table threads;
	struct mc_board_table ops;
	struct mc_board_table flows;
	char process_name[32]; /* NUL padded */
	char plugin_version[32];
	uint32_t level; /* enum mc_level in force, written by the plugin */
	uint32_t event_mask; /* what was last given to NCCL */
	uint32_t comms_used;	/* high-water marks: lines below were used at least once */
	uint32_t threads_used;
	uint32_t flows_used;
	uint32_t pad0;
	uint64_t next_op_id; /* ids are 1..next_op_id-1 */
	uint64_t last_callback_ns;   /* coarse: any operation-level callback */
	uint64_t lost[16];   /* enum mc_loss; cumulative */
	uint8_t pad1[176];
	/* Written by the agent, read by the plugin; alone on its cache line. */
	uint32_t requested_level; /* enum mc_level; 0 = no request */
	uint32_t pad2[15];
};

/* State of a communicator line. */
enum mc_comm_state { MC_COMM_FREE = 0, MC_COMM_ACTIVE = 1, MC_COMM_FINALIZED = 2 };

struct mc_board_comm {
	uint32_t seq;
	uint32_t generation; /* of the line; a line may be used again after finalize */
	uint64_t comm_id;    /* NCCL's commId: equal on all ranks of the communicator */
	int32_t rank;
	int32_t nranks;
	int32_t nnodes;
	uint32_t state; /* enum mc_comm_state */
	uint64_t init_ns;
	uint64_t finalize_ns;
	char name[64]; /* NUL padded; empty when NCCL gave none */
	uint64_t coll_count; /* collectives enqueued on this communicator */
	uint64_t p2p_count;
	uint64_t last_op_id;
	uint32_t in_api;     /* 1: a user thread is inside an API call on this communicator */
	uint32_t pad0;
	uint64_t api_enter_ns; /* last start of an API group */
	uint64_t api_leave_ns; /* last stop of an API group */
	uint8_t pad1[96];
};

/* Roles of a thread, bits. */
enum mc_thread_role {
	MC_THREAD_LAUNCH = 1,	/* calls the API and launches: a user thread */
	MC_THREAD_PROGRESS = 2, /* NCCL's proxy progress thread */
};

struct mc_board_thread {
	uint32_t seq;
	uint32_t tid; /* as seen in the process's own namespace */
	uint32_t roles;
	uint32_t pad0;
	uint64_t first_ns;
	uint8_t pad1[40];
};

enum mc_op_kind { MC_OP_NONE = 0, MC_OP_COLL = 1, MC_OP_SEND = 2, MC_OP_RECV = 3 };

enum mc_func {
	MC_FUNC_UNKNOWN = 0,
	MC_FUNC_ALLREDUCE,
	MC_FUNC_ALLGATHER,
	MC_FUNC_REDUCESCATTER,
	MC_FUNC_BROADCAST,
	MC_FUNC_REDUCE,
	MC_FUNC_SEND,
	MC_FUNC_RECV,
	MC_FUNC_ALLTOALL,
	MC_FUNC_GATHER,
	MC_FUNC_SCATTER,
	MC_FUNC_SENDRECV,
};
enum mc_algo {
	MC_ALGO_UNKNOWN = 0,
	MC_ALGO_RING,
	MC_ALGO_TREE,
	MC_ALGO_COLLNET_DIRECT,
	MC_ALGO_COLLNET_CHAIN,
	MC_ALGO_NVLS,
	MC_ALGO_NVLS_TREE,
	MC_ALGO_PAT,
};
enum mc_proto { MC_PROTO_UNKNOWN = 0, MC_PROTO_LL, MC_PROTO_LL128, MC_PROTO_SIMPLE };
enum mc_datatype {
	MC_TYPE_UNKNOWN = 0,
	MC_TYPE_INT8,
	MC_TYPE_UINT8,
	MC_TYPE_INT32,
	MC_TYPE_UINT32,
	MC_TYPE_INT64,
	MC_TYPE_UINT64,
	MC_TYPE_FLOAT16,
	MC_TYPE_BFLOAT16,
	MC_TYPE_FLOAT32,
	MC_TYPE_FLOAT64,
	MC_TYPE_FLOAT8E4M3,
	MC_TYPE_FLOAT8E5M2,
};
enum mc_op_flags { MC_OP_GRAPH = 1 /* launched by the replay of a CUDA graph */ };

/*
 * Wait times, non-overlapping (no two steps of one flow count the same instant).
 * t8.. are the times of the profiler states of step k, see cupti/nccl:
 *   SEND_GPU  t20first(k) - max(t8(k), t9(k-1))    the local GPU fills the slot
 *   SEND_PEER t9(k) - t20first(k)                  the receiver grants the slot
 *   SEND_NET  stop(k) - max(t9(k), stop(k-1))      NIC, fabric, remote acknowledgement
 *   RECV_REMOTE t11(k) - max(t10(k), t11(k-1))     the sender, or the fabric
 *   RECV_FLUSH t12(k) - t11(k)                     local NIC - PCIe - GPU path
 *   RECV_GPU  stop(k) - max(t12(k), stop(k-1))     the local GPU consumes
 */
enum mc_wait {
	MC_WAIT_SEND_GPU = 0,
	MC_WAIT_SEND_PEER,
	MC_WAIT_SEND_NET,
	MC_WAIT_RECV_REMOTE,
	MC_WAIT_RECV_FLUSH,
	MC_WAIT_RECV_GPU,
	MC_WAIT_COUNT,
};

/* Waits that are also kept for the slowest flow of an operation. */
enum mc_max_wait { MC_MAX_SEND_NET = 0, MC_MAX_RECV_FLUSH, MC_MAX_RECV_GPU, MC_MAX_WAIT_COUNT };

struct mc_board_op {
	/* Lines 0-1: written by the thread that launches the operation. */
	uint32_t seq;
	uint32_t comm; /* index into comms */
	uint64_t id;   /* ticket; slot = id & (capacity - 1); 0 = empty */
	uint64_t api_ns;   /* API call entered (profiler v5+; else 0) */
	uint64_t start_ns; /* Coll/P2p event started: being enqueued */
	uint64_t stop_ns;  /* enqueued (not: completed); 0 = not yet */
	uint64_t ordinal;  /* collectives: nth of this communicator, from 0, all functions
			      together. p2p: nth of this communicator x peer x direction */
	uint64_t nccl_seq; /* NCCL's number: per communicator and function; 0 for p2p */
	uint64_t count;	   /* elements */
	uint64_t stream;   /* opaque, 0 unknown */
	uint64_t group_id; /* operations of one API group share it; 0 unknown */
	int32_t root_or_peer;
	uint32_t comm_generation;
	uint8_t kind;	  /* enum mc_op_kind */
	uint8_t func;	  /* enum mc_func */
	uint8_t datatype; /* enum mc_datatype */
	uint8_t algo;	  /* enum mc_algo */
	uint8_t proto;	  /* enum mc_proto */
	uint8_t channels; /* as announced; some may get no work */
	uint8_t flags;	  /* enum mc_op_flags */
	uint8_t pad0;
	uint8_t pad1[32];
	/* Lines 2-4: written by the progress thread. */
	uint32_t proxy_seq;
	uint16_t proxy_started; /* NET proxy operations appended */
	uint16_t proxy_progress; /* of these, reached InProgress */
	uint16_t proxy_done;
	uint16_t pad2;
	uint32_t pad3;
	uint64_t proxy_first_ns;    /* first proxy operation appended */
	uint64_t proxy_progress_ns; /* first proxy operation in progress */
	uint64_t proxy_last_ns;	    /* last stop of a proxy operation */
	uint64_t wait_ns[MC_WAIT_COUNT]; /* summed over the flows of this operation */
	uint64_t bytes_sent;
	uint64_t bytes_received;
	uint64_t steps_total; /* of all appended proxy operations */
	uint64_t steps_done;
	uint8_t pad4[8];
	/* Line 4: sums over the steps, modulo 2^64, same writer and sequence word as
	 * lines 2-3. (recv_data_sum - send_posted_sum) / steps is the mean time from
	 * "handed to the NIC" at the sender to "data received" at the receiver; with
	 * recv_posted_sum it bounds the transit time of an edge. */
	uint32_t send_steps;	     /* steps in send_posted_sum_ns and send_done_sum_ns */
	uint32_t recv_steps;	     /* steps in recv_posted_sum_ns and recv_data_sum_ns */
	uint64_t send_posted_sum_ns; /* send: SendWait (9), added when the step stops */
	uint64_t send_done_sum_ns;   /* send: stop */
	uint64_t recv_posted_sum_ns; /* recv: RecvWait (10), added at RecvFlushWait */
	uint64_t recv_data_sum_ns;   /* recv: RecvFlushWait (11) */
	uint64_t max_wait_ns[MC_MAX_WAIT_COUNT]; /* of the slowest flow: one slow channel
						    is lost in a sum over many */
	/* Line 5: written by the thread that delivers KernelCh events. */
	uint32_t kernel_seq;
	uint16_t kernel_started; /* channels */
	uint16_t kernel_stopped;
	uint64_t kernel_gpu_start; /* GPU clock: first start over channels */
	uint64_t kernel_gpu_stop;  /* GPU clock: last stop over channels */
	uint64_t kernel_start_seen_ns; /* host clock: callback of the first start */
	uint64_t kernel_stop_seen_ns;  /* host clock: callback of the last stop so far */
	uint8_t pad5[24];
};

/* Head-of-line state of a flow: what it waits for now. */
enum mc_flow_state {
	MC_FLOW_IDLE = 0,      /* no open proxy operation */
	MC_FLOW_QUEUED,	       /* appended, not yet in progress */
	MC_FLOW_PROGRESS,      /* in progress, no step posted yet */
	MC_FLOW_SEND_GPU,      /* SendGPUWait */
	MC_FLOW_SEND_PEER,     /* SendPeerWait */
	MC_FLOW_SEND_NET,      /* SendWait */
	MC_FLOW_RECV_REMOTE,   /* RecvWait */
	MC_FLOW_RECV_FLUSH,    /* RecvFlushWait */
	MC_FLOW_RECV_GPU,      /* RecvGPUWait */
};

enum mc_direction { MC_SEND = 0, MC_RECV = 1 };

/*
 * One flow; written by one progress thread. The step counters are those of the
 * head operation, the oldest open one on this flow. done <= transmitted <= ready <= posted <= total.
 *   send: posted = steps started, ready = filled by the GPU, transmitted = handed to the NIC, done = acknowledged
 *   recv: posted = buffers offered, ready = data received, transmitted = flushed to the GPU, done = consumed
 */
struct mc_board_flow {
	uint32_t seq;
	uint16_t comm; /* index into comms */
	uint8_t channel;
	uint8_t direction; /* enum mc_direction */
	int32_t peer;	   /* rank in the communicator */
	uint32_t comm_generation;
	uint32_t owner_pid; /* 0: own; else the originating process (PXN) */
	uint8_t state;	    /* enum mc_flow_state of the head-of-line step */
	uint8_t pad0;
	uint16_t open_ops; /* proxy operations open on this flow */
	uint64_t op_id;	   /* operation of the head proxy operation; 0 unknown */
	uint32_t total;
	uint32_t posted;
	uint32_t ready;
	uint32_t transmitted;
	uint32_t done;
	uint32_t chunk_bytes;
	uint64_t state_ns; /* since when the head-of-line state holds */
	uint64_t moved_ns; /* last progress of any counter */
	/* line 1: time of the last step that reached ... */
	uint64_t posted_ns;
	uint64_t ready_ns;
	uint64_t transmitted_ns;
	uint64_t done_ns;
	/* lifetime */
	uint64_t ops_done;
	uint64_t steps_done;
	uint64_t bytes;
	uint64_t wait_ns[3]; /* send: GPU, PEER, NET; recv: REMOTE, FLUSH, GPU */
	/* line 2: the last completed operation on this flow, for clock alignment */
	uint64_t last_op_id;
	uint64_t last_first_ns; /* send: first transmitted; recv: first received */
	uint64_t last_final_ns; /* send: last transmitted; recv: last received */
	uint64_t peer_wait_polls; /* repeats of SendPeerWait, lifetime */
	uint8_t pad1[8];
};

#ifdef __cplusplus
#define MC_ASSERT_LAYOUT(type, bytes)                                   \
	static_assert(sizeof(struct type) == (bytes), #type " size");   \
	static_assert(std::has_unique_object_representations_v<type>, #type " has hidden bytes")
MC_ASSERT_LAYOUT(mc_board_table, 16);
MC_ASSERT_LAYOUT(mc_board_header, 576);
MC_ASSERT_LAYOUT(mc_board_comm, 256);
MC_ASSERT_LAYOUT(mc_board_thread, 64);
MC_ASSERT_LAYOUT(mc_board_op, 384);
MC_ASSERT_LAYOUT(mc_board_flow, 192);
static_assert(offsetof(mc_board_header, requested_level) % 64 == 0);
static_assert(offsetof(mc_board_op, proxy_seq) == 128);
static_assert(offsetof(mc_board_op, kernel_seq) == 320);
#endif

#endif /* MYCROFT_BPF_ABI_BOARD_H_ */
