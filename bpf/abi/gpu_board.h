/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The GPU board: what a training process has given its GPUs to do, and what is known
 * of its end. One sealed memfd named MC_GPU_BOARD_MEMFD_NAME per process, found in
 * /proc/PID/fd; written by libmycroft-cupti.so, read by the agent. Same conventions as
 * the progress board (bpf/abi/board.h):
 *
 *   page 0   mc_gpu_header     identity, table directory, state of CUPTI, losses, control
 *   then     mc_gpu_device[]   GPUs by CUDA ordinal
 *            mc_gpu_context[]  CUDA contexts
 *            mc_gpu_stream[]   streams: launched, known finished, oldest, last, sums
 *            mc_gpu_name[]     kernels by name and device: their time so far
 *            mc_gpu_thread[]   host threads: the call of the GPU they are inside
 *            mc_gpu_event[]    ring of kernels, copies and memsets that were finished
 *
 * Every part of a line that starts with a word named ..seq is copied under it: odd while
 * it is written, even at rest. Parts with several writers add 1 before and 1 after.
 * All times are nanoseconds of the host's CLOCK_MONOTONIC. Times of the GPU (start,
 * end) are CUPTI's conversion of GPU time to that clock, see enum mc_gpu_clock.
 *
 * What "finished" means. Work of a stream is numbered 1, 2, ...: its ticket. A stream
 * works in order, so whatever proves that ticket n is finished proves it of all before.
 * finished_ticket is a lower bound: proved by the return of a synchronisation, by a
 * query that said so, or by an activity record. busy_ticket is the opposite, proved by
 * a query that said "not ready" at busy_ns. What lies between is unknown, unless a host
 * thread waits for it right now (mc_gpu_thread). A kernel that never ends has no record.
 *
 * The reader is privileged, the writer is not: a reader must check the seals and the
 * size of the memfd, copy before it validates, and bound every index.
 *
 * A change of any offset bumps MC_GPU_BOARD_VERSION. Fixed width, no hidden byte.
 */
#ifndef MYCROFT_BPF_ABI_GPU_BOARD_H_
#define MYCROFT_BPF_ABI_GPU_BOARD_H_

#include "bpf/abi/board.h"

#define MC_GPU_BOARD_MEMFD_NAME "mycroft-gpu-board"
#define MC_GPU_BOARD_MAGIC 0x444255504759434dULL /* "MCYGPUBD" in memory order */
#define MC_GPU_BOARD_VERSION 1u
#define MC_GPU_BOARD_MAX_BYTES (2u << 20)

#define MC_GPU_MAX_DEVICES 16u
#define MC_GPU_MAX_CONTEXTS 64u
#define MC_GPU_MAX_STREAMS 256u
#define MC_GPU_MAX_NAMES 1024u	/* line 0: names that are not known */
#define MC_GPU_MAX_THREADS 256u
#define MC_GPU_MAX_EVENTS 4096u /* power of two: slot = id & (capacity - 1) */
#define MC_GPU_QUEUE 32u	/* last launches kept per stream: slot = ticket % 32 */
#define MC_GPU_NONE UINT32_MAX

/* How much is collected. Also what the agent may ask for. */
enum mc_gpu_level {
	MC_GPU_LEVEL_UNSET = 0,	    /* no request: what MYCROFT_CUPTI says */
	MC_GPU_LEVEL_OFF = 1,	    /* CUPTI released: nothing is seen, another tool may take it */
	MC_GPU_LEVEL_CALLBACKS = 2, /* launches, copies, waits of the host */
	MC_GPU_LEVEL_ACTIVITY = 3,  /* + records with GPU times */
};

/* Why it is so, or why nothing is seen. */
enum mc_gpu_state {
	MC_GPU_STARTING = 0,
	MC_GPU_WATCHING,      /* callbacks arrive */
	MC_GPU_ARMED,	      /* + activity records */
	MC_GPU_OFF_BY_USER,   /* MYCROFT_CUPTI=off */
	MC_GPU_RELEASED,      /* on request */
	MC_GPU_NO_LIBRARY,    /* no libcupti found */
	MC_GPU_NO_SYMBOL,     /* a libcupti without a function we need */
	MC_GPU_TAKEN,	      /* another tool subscribed to CUPTI: other_subscriber */
	MC_GPU_FAILED,	      /* a call of CUPTI failed: error, error_call */
	MC_GPU_FATAL,	      /* CUPTI reported a fatal error and detached itself */
	MC_GPU_STATE_COUNT,
};

/* The clock of start and end of activity records. */
enum mc_gpu_clock {
	MC_GPU_CLOCK_NONE = 0,
	MC_GPU_CLOCK_MONOTONIC, /* CUPTI asks us for the time: CLOCK_MONOTONIC itself */
	MC_GPU_CLOCK_PAIRED,	/* CUPTI's own clock, shifted by the last pair of samples */
};

/* Calls of CUPTI that can fail, for error_call and helper_call. */
enum mc_gpu_cupti_call {
	MC_GPU_CALL_NONE = 0,
	MC_GPU_CALL_VERSION,
	MC_GPU_CALL_SUBSCRIBE,
	MC_GPU_CALL_ENABLE_CALLBACK,
	MC_GPU_CALL_REGISTER_CALLBACKS,
	MC_GPU_CALL_TIMESTAMP_CALLBACK,
	MC_GPU_CALL_ACTIVITY_ENABLE,
	MC_GPU_CALL_ACTIVITY_DISABLE,
	MC_GPU_CALL_FLUSH,
	MC_GPU_CALL_UNSUBSCRIBE,
	MC_GPU_CALL_FINALIZE,
	MC_GPU_CALL_DEVICE,
	MC_GPU_CALL_COUNT,
};

/* Causes of loss, index of mc_gpu_header.lost[]. */
enum mc_gpu_loss {
	MC_GPU_LOSS_CONTEXT_TABLE_FULL = 0,
	MC_GPU_LOSS_STREAM_TABLE_FULL, /* work of streams that have no line */
	MC_GPU_LOSS_NAME_TABLE_FULL,   /* launches of kernels under line 0 */
	MC_GPU_LOSS_THREAD_TABLE_FULL, /* threads whose waits are not seen */
	MC_GPU_LOSS_EVENT_TABLE_FULL,  /* CUDA events not followed */
	MC_GPU_LOSS_POOL_EMPTY,	       /* buffers that CUPTI asked for in vain */
	MC_GPU_LOSS_DROPPED,	       /* records that CUPTI dropped, as it says */
	MC_GPU_LOSS_UNKNOWN_STREAM,    /* records of streams that have no line */
	MC_GPU_LOSS_UNMATCHED,	       /* records whose launch was not found */
	MC_GPU_LOSS_NO_TIME,	       /* records without start or end */
	MC_GPU_LOSS_UNKNOWN_KIND,      /* records of kinds that were not asked for, cut buffers */
	MC_GPU_LOSS_FOREIGN_BUFFER,    /* buffers that are not ours (another user of CUPTI) */
	MC_GPU_LOSS_LATE_BUFFER,       /* of a context already destroyed (not a loss: read) */
	MC_GPU_LOSS_BACKWARDS,	       /* kernels that started before their launch: clock error */
	MC_GPU_LOSS_COUNT,
};

enum mc_gpu_work {
	MC_GPU_WORK_NONE = 0,
	MC_GPU_WORK_KERNEL,
	MC_GPU_WORK_NCCL, /* a kernel whose name is one of NCCL's */
	MC_GPU_WORK_GRAPH,
	MC_GPU_WORK_COPY,
	MC_GPU_WORK_MEMSET,
	MC_GPU_WORK_VOID, /* never reached the GPU: the call failed, or was captured in a graph */
	MC_GPU_WORK_COUNT,
};

enum mc_gpu_copy {
	MC_GPU_COPY_HTOD = 0,
	MC_GPU_COPY_DTOH,
	MC_GPU_COPY_DTOD,
	MC_GPU_COPY_PEER,
	MC_GPU_COPY_OTHER, /* at launch: the driver decides by address */
	MC_GPU_COPY_COUNT,
};

/* What a host thread is inside of, and what proved that work is finished. */
enum mc_gpu_host_call {
	MC_GPU_HOST_NONE = 0,
	MC_GPU_HOST_STREAM_SYNC,
	MC_GPU_HOST_CONTEXT_SYNC, /* all streams of the context */
	MC_GPU_HOST_EVENT_SYNC,
	MC_GPU_HOST_STREAM_QUERY,
	MC_GPU_HOST_EVENT_QUERY,
	MC_GPU_HOST_COPY,   /* a copy that returns when it is done */
	MC_GPU_HOST_LAUNCH, /* blocks when the stream's queue is full */
	MC_GPU_HOST_RECORD, /* not a call: an activity record */
	MC_GPU_HOST_CALL_COUNT,
};

struct mc_gpu_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_bytes;
	uint64_t total_bytes;
	uint32_t pid; /* as seen in the process's own namespace */
	uint32_t cupti_version; /* cuptiGetVersion; 0 unknown */
	uint64_t created_ns;
	struct mc_board_table devices;
	struct mc_board_table contexts;
	struct mc_board_table streams;
	struct mc_board_table names;
	struct mc_board_table threads;
	struct mc_board_table events;
	char process_name[32]; /* NUL padded, as all text here */
	char library_version[32];
	char other_subscriber[64]; /* of CUPTI, when state is MC_GPU_TAKEN */
	char cupti_path[128];	   /* the libcupti in use */
	uint32_t state;		   /* enum mc_gpu_state */
	uint32_t level;		   /* enum mc_gpu_level in force */
	uint32_t clock;		   /* enum mc_gpu_clock */
	uint32_t layout_known;	   /* 0: records of this libcupti are not read: callbacks only */
	uint32_t error;		   /* last CUptiResult that was not success; 0 none */
	uint32_t error_call;	   /* enum mc_gpu_cupti_call that returned it */
	uint32_t chained;	   /* 1: another injection library was loaded; 2: it failed */
	uint32_t devices_used;	   /* high-water marks */
	uint32_t contexts_used;
	uint32_t streams_used;
	uint32_t names_used;
	uint32_t threads_used;
	uint64_t next_event_id; /* ids are 1..next_event_id-1 */
	uint64_t nccl_launches; /* kernels launched whose name is one of NCCL's */
	uint64_t launches;	/* all kernels */
	uint64_t last_callback_ns;
	uint64_t armed_ns; /* activity is collected since; 0: it is not */
	uint64_t armed_until_ns;
	uint64_t armed_total_ns; /* of earlier times */
	uint64_t flushed_ns; /* start of the last flush of CUPTI's buffers that returned */
	uint64_t records;    /* activity records read */
	uint64_t overhead_ns; /* CUPTI's own, of its records */
	uint64_t matched_exact; /* records by the correlation id of their launch */
	uint64_t matched_near;	/* by the nearest later one: the id was that of an outer call */
	uint64_t pair_cupti_ns; /* last pair of samples: CUPTI's clock ... */
	uint64_t pair_before_ns; /* ... read between these two of CLOCK_MONOTONIC */
	uint64_t pair_after_ns;
	uint64_t helper_call_ns; /* since when our thread is inside helper_call; 0: it is not */
	uint32_t helper_call;	 /* enum mc_gpu_cupti_call */
	uint32_t pad0;
	uint64_t lost[16]; /* enum mc_gpu_loss; cumulative */
	uint8_t pad1[64];
	/* Written by the agent, read by the library; alone on its cache line. First the
	 * time, then the level. MC_GPU_LEVEL_ACTIVITY ends at the time asked for, at most
	 * ten minutes after it was seen; the other levels hold until then, or, with 0, on. */
	uint64_t requested_until_ns;
	uint32_t requested_level; /* enum mc_gpu_level */
	uint32_t pad2[13];
};

struct mc_gpu_device {
	uint32_t seq;
	uint32_t known; /* 1: a context of it was seen */
	uint32_t ordinal; /* CUDA's, after CUDA_VISIBLE_DEVICES */
	uint32_t pci_known; /* 1: pci and uuid below are filled in */
	uint8_t uuid[16];
	char pci[32]; /* dddd:bb:dd.f */
	char name[64];
};

enum mc_gpu_life { MC_GPU_FREE = 0, MC_GPU_ALIVE = 1, MC_GPU_DESTROYED = 2 };

struct mc_gpu_context {
	uint32_t seq;
	uint32_t uid; /* CUPTI's number */
	uint32_t device; /* index into devices, MC_GPU_NONE unknown */
	uint32_t life; /* enum mc_gpu_life */
	uint64_t created_ns; /* or first seen */
	uint64_t destroyed_ns;
	uint8_t pad0[32];
};

/* One launch. */
struct mc_gpu_launch {
	uint32_t seq;
	uint32_t correlation; /* CUPTI's id of the driver call */
	uint64_t ticket; /* 0: empty */
	uint64_t launch_ns; /* the host entered the call */
	uint16_t name; /* index into names; 0 unknown or not a kernel */
	uint8_t work; /* enum mc_gpu_work */
	uint8_t copy; /* enum mc_gpu_copy, when work is a copy */
	uint32_t kib; /* of a copy or memset, rounded up */
};

enum mc_gpu_stream_kind {
	MC_GPU_STREAM_CREATED = 0,
	MC_GPU_STREAM_LEGACY = 1,     /* the default stream of the context */
	MC_GPU_STREAM_PER_THREAD = 2, /* the default stream of a thread */
};

struct mc_gpu_stream {
	/* Line 0: who it is. */
	uint32_t seq;
	uint32_t generation; /* of the line; a line may be used again */
	uint32_t life;	     /* enum mc_gpu_life */
	uint32_t context;    /* index into contexts */
	uint32_t stream_id;  /* CUPTI's number within the context; MC_GPU_NONE unknown */
	uint32_t kind;	     /* enum mc_gpu_stream_kind */
	uint64_t handle;     /* hashed: tells equal from unequal streams */
	uint64_t created_ns; /* or first used */
	uint64_t destroyed_ns;
	uint8_t pad0[16];
	/* Lines 1-3: launches; written by the launching threads. */
	uint32_t launch_seq;
	uint32_t capturing;	  /* 1: between begin and end of a capture into a graph */
	uint64_t last_ticket;	  /* work launched so far, voids included */
	uint64_t last_launch_ns;
	uint64_t kernels;	  /* NCCL's and voids included */
	uint64_t nccl_kernels;
	uint64_t graphs;
	uint64_t memsets;
	uint64_t voids;
	uint64_t copies[MC_GPU_COPY_COUNT];
	uint64_t copy_bytes[MC_GPU_COPY_COUNT];
	/* The last wait for an event of another stream that was put into this one: what was
	 * launched after wait_at does not start before wait_ticket of that stream ended. */
	uint32_t wait_stream;	  /* index into streams; MC_GPU_NONE or wait_ticket 0: none */
	uint32_t wait_generation; /* of that line */
	uint64_t wait_ticket;
	uint64_t wait_at; /* ticket of this stream */
	uint8_t pad1[24];
	/* Line 4: what is known of its end; written by waiting threads and by our own. */
	uint32_t finish_seq;
	uint32_t finished_by; /* enum mc_gpu_host_call */
	uint64_t finished_ticket;
	uint64_t finished_ns; /* when it was proved, not when it ended */
	uint64_t busy_ticket; /* not finished at busy_ns; 0 never proved */
	uint64_t busy_ns;
	uint32_t busy_by; /* enum mc_gpu_host_call */
	uint32_t last_wait; /* enum mc_gpu_host_call: last synchronisation that returned */
	uint64_t last_wait_ns; /* when it returned */
	uint64_t last_wait_took_ns;
	/* Lines 5-8: sums over activity records; written by our own thread. */
	uint32_t record_seq;
	uint32_t pad2;
	uint64_t records;
	uint64_t last_end_ns; /* GPU end of the last finished work */
	uint64_t kernel_count;
	uint64_t kernel_ns; /* without NCCL's */
	uint64_t nccl_count;
	uint64_t nccl_ns;
	uint64_t delay_count; /* launch -> start of kernels */
	uint64_t delay_ns;
	uint64_t delay_max_ns;
	uint64_t done_copies[MC_GPU_COPY_COUNT];
	uint64_t done_copy_bytes[MC_GPU_COPY_COUNT];
	uint64_t done_copy_ns[MC_GPU_COPY_COUNT];
	uint8_t pad3[56];
	/* Line 9: the oldest work not known to be finished, when it has left the queue. */
	struct mc_gpu_launch oldest;
	uint8_t pad4[32];
	/* Then: the last launches. */
	struct mc_gpu_launch queue[MC_GPU_QUEUE];
};

struct mc_gpu_name {
	/* Lines 0-2: written once, by the thread that launched it first. */
	uint32_t seq;
	uint32_t device; /* index into devices */
	uint32_t nccl;	 /* 1: one of NCCL's */
	uint32_t length; /* of the whole name; longer than `name`: cut */
	char name[176];	 /* as CUPTI gives it: mangled; NUL padded */
	/* Lines 3-6: its time on the GPU; written by our own thread. */
	uint32_t time_seq;
	uint32_t pad0;
	uint64_t count;
	uint64_t sum_ns;
	uint64_t min_ns;
	uint64_t max_ns;
	uint64_t ewma_ns; /* weight 1/16 of the newest */
	uint64_t last_ns;
	uint64_t last_end_ns;
	uint32_t log2[32]; /* [i]: times of [2^i, 2^(i+1)) ns; the last: and longer */
	uint8_t pad1[64];
};

struct mc_gpu_thread {
	uint32_t seq;
	uint32_t tid; /* as seen in the process's own namespace */
	uint32_t call; /* enum mc_gpu_host_call it is inside of now */
	uint32_t stream; /* index into streams, or MC_GPU_NONE */
	uint32_t context; /* index into contexts, or MC_GPU_NONE */
	uint32_t stream_generation;
	uint64_t enter_ns; /* of `call` */
	uint64_t ticket; /* of the stream, that it waits for: 0 unknown */
	uint64_t last_leave_ns;
	uint32_t last_call;
	uint32_t pad0;
	uint64_t calls; /* that were left */
};

struct mc_gpu_event {
	uint32_t seq;
	uint32_t correlation;
	uint64_t id; /* slot = id & (capacity - 1); 0: empty */
	uint64_t launch_ns; /* 0: launch not found */
	uint64_t start_ns; /* GPU */
	uint64_t end_ns; /* GPU */
	uint64_t bytes;
	uint16_t stream; /* index into streams */
	uint16_t name;	 /* index into names */
	uint8_t work;	 /* enum mc_gpu_work */
	uint8_t copy;	 /* enum mc_gpu_copy */
	uint8_t graph;	 /* 1: part of a graph launch */
	uint8_t pad0;
	uint8_t pad1[8];
};

#ifdef __cplusplus
MC_ASSERT_LAYOUT(mc_gpu_header, 832);
MC_ASSERT_LAYOUT(mc_gpu_device, 128);
MC_ASSERT_LAYOUT(mc_gpu_context, 64);
MC_ASSERT_LAYOUT(mc_gpu_launch, 32);
MC_ASSERT_LAYOUT(mc_gpu_stream, 1664);
MC_ASSERT_LAYOUT(mc_gpu_name, 448);
MC_ASSERT_LAYOUT(mc_gpu_thread, 64);
MC_ASSERT_LAYOUT(mc_gpu_event, 64);
static_assert(offsetof(mc_gpu_header, requested_until_ns) % 64 == 0);
static_assert(offsetof(mc_gpu_stream, launch_seq) == 64);
static_assert(offsetof(mc_gpu_stream, finish_seq) == 256);
static_assert(offsetof(mc_gpu_stream, record_seq) == 320);
static_assert(offsetof(mc_gpu_stream, oldest) == 576);
static_assert(offsetof(mc_gpu_stream, queue) == 640);
static_assert(offsetof(mc_gpu_name, time_seq) == 192);
static_assert(MC_GPU_LOSS_COUNT <= 16);
#endif

#endif /* MYCROFT_BPF_ABI_GPU_BOARD_H_ */
