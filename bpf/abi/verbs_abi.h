/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Where the members of libibverbs' public structs are (infiniband/verbs.h, x86-64): part
 * of its binary interface, unchanged since IBVERBS_1.1 of 2007. Compared with the
 * installed header by verbs_abi_test.
 */
#ifndef MYCROFT_BPF_ABI_VERBS_ABI_H_
#define MYCROFT_BPF_ABI_VERBS_ABI_H_

/* struct ibv_context: device, then ops (32 pointers). */
#define MC_IBV_CONTEXT_DEVICE 0
#define MC_IBV_CONTEXT_POLL_CQ 96
#define MC_IBV_CONTEXT_POST_SRQ_RECV 168
#define MC_IBV_CONTEXT_POST_SEND 208
#define MC_IBV_CONTEXT_POST_RECV 216
/* struct ibv_device */
#define MC_IBV_DEVICE_NAME 24
/* struct ibv_qp, ibv_cq, ibv_srq, ibv_pd: context comes first in all of them. */
#define MC_IBV_QP_HANDLE 48
#define MC_IBV_QP_NUM 52
#define MC_IBV_QP_STATE 56
#define MC_IBV_QP_BYTES 64
/* struct ibv_send_wr */
#define MC_IBV_SEND_WR_NEXT 8
#define MC_IBV_SEND_WR_SG_LIST 16
#define MC_IBV_SEND_WR_NUM_SGE 24
#define MC_IBV_SEND_WR_OPCODE 28
/* struct ibv_recv_wr */
#define MC_IBV_RECV_WR_NEXT 8
/* struct ibv_sge */
#define MC_IBV_SGE_LENGTH 8
#define MC_IBV_SGE_BYTES 16
/* struct ibv_wc */
#define MC_IBV_WC_WR_ID 0
#define MC_IBV_WC_STATUS 8
#define MC_IBV_WC_OPCODE 12
#define MC_IBV_WC_VENDOR_ERR 16
#define MC_IBV_WC_QP_NUM 28
#define MC_IBV_WC_BYTES 48
/* struct ibv_qp_attr */
#define MC_IBV_QP_ATTR_STATE 0
#define MC_IBV_QP_ATTR_PATH_MTU 8
#define MC_IBV_QP_ATTR_DEST_QP_NUM 28
#define MC_IBV_QP_ATTR_GID 56
#define MC_IBV_QP_ATTR_SGID_INDEX 76
#define MC_IBV_QP_ATTR_IS_GLOBAL 85
#define MC_IBV_QP_ATTR_AH_PORT 86
#define MC_IBV_QP_ATTR_MIN_RNR_TIMER 128
#define MC_IBV_QP_ATTR_PORT 129
#define MC_IBV_QP_ATTR_TIMEOUT 130
#define MC_IBV_QP_ATTR_RETRY_CNT 131
#define MC_IBV_QP_ATTR_RNR_RETRY 132
#define MC_IBV_QP_ATTR_BYTES 144
/* struct ibv_async_event */
#define MC_IBV_ASYNC_ELEMENT 0
#define MC_IBV_ASYNC_TYPE 8

/* enum ibv_wr_opcode */
enum {
	MC_IBV_WR_RDMA_WRITE = 0,
	MC_IBV_WR_RDMA_WRITE_WITH_IMM = 1,
	MC_IBV_WR_SEND = 2,
	MC_IBV_WR_SEND_WITH_IMM = 3,
	MC_IBV_WR_RDMA_READ = 4,
	MC_IBV_WR_ATOMIC_CMP_AND_SWP = 5,
	MC_IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
	MC_IBV_WR_SEND_WITH_INV = 9,
	MC_IBV_WR_ATOMIC_WRITE = 15, /* since rdma-core 44 */
};
/* enum ibv_qp_attr_mask */
enum {
	MC_IBV_QP_MASK_STATE = 1 << 0,
	MC_IBV_QP_MASK_PORT = 1 << 5,
	MC_IBV_QP_MASK_AV = 1 << 7,
	MC_IBV_QP_MASK_PATH_MTU = 1 << 8,
	MC_IBV_QP_MASK_TIMEOUT = 1 << 9,
	MC_IBV_QP_MASK_RETRY_CNT = 1 << 10,
	MC_IBV_QP_MASK_RNR_RETRY = 1 << 11,
	MC_IBV_QP_MASK_MIN_RNR_TIMER = 1 << 15,
	MC_IBV_QP_MASK_DEST_QPN = 1 << 20,
};
/* enum ibv_qp_state */
enum { MC_IBV_QPS_RESET = 0, MC_IBV_QPS_SQE = 5, MC_IBV_QPS_ERR = 6 };
/* enum ibv_access_flags */
enum { MC_IBV_ACCESS_RELAXED_ORDERING = 1 << 20 };
/* enum ibv_wc_status */
enum { MC_IBV_WC_SUCCESS = 0, MC_IBV_WC_WR_FLUSH_ERR = 5 };
/* Flushed, as some providers give it beyond the enum. */
#define MC_IBV_WC_FLUSH_249 249
/* enum ibv_wc_opcode: set in those of receives */
enum { MC_IBV_WC_RECV = 1 << 7 };
/* enum ibv_event_type */
enum {
	MC_IBV_EVENT_CQ_ERR = 0,
	MC_IBV_EVENT_QP_FATAL = 1,
	MC_IBV_EVENT_QP_REQ_ERR = 2,
	MC_IBV_EVENT_QP_ACCESS_ERR = 3,
	MC_IBV_EVENT_COMM_EST = 4,
	MC_IBV_EVENT_PATH_MIG_ERR = 7,
	MC_IBV_EVENT_DEVICE_FATAL = 8,
	MC_IBV_EVENT_PORT_ACTIVE = 9,
	MC_IBV_EVENT_SM_CHANGE = 13,
	MC_IBV_EVENT_SRQ_ERR = 14,
	MC_IBV_EVENT_SRQ_LIMIT_REACHED = 15,
	MC_IBV_EVENT_QP_LAST_WQE_REACHED = 16,
	MC_IBV_EVENT_CLIENT_REREGISTER = 17,
	MC_IBV_EVENT_GID_CHANGE = 18,
	MC_IBV_EVENT_WQ_FATAL = 19,
};

#endif /* MYCROFT_BPF_ABI_VERBS_ABI_H_ */
