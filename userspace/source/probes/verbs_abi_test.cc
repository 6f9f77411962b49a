// SPDX-License-Identifier: Apache-2.0
//
// bpf/abi/verbs_abi.h against the installed infiniband/verbs.h.
#include "bpf/abi/verbs_abi.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstddef>

#include "userspace/source/probes/verbs_names.h"

namespace {

static_assert(MC_IBV_CONTEXT_DEVICE == offsetof(ibv_context, device));
static_assert(MC_IBV_CONTEXT_POLL_CQ == offsetof(ibv_context, ops.poll_cq));
static_assert(MC_IBV_CONTEXT_POST_SRQ_RECV == offsetof(ibv_context, ops.post_srq_recv));
static_assert(MC_IBV_CONTEXT_POST_SEND == offsetof(ibv_context, ops.post_send));
static_assert(MC_IBV_CONTEXT_POST_RECV == offsetof(ibv_context, ops.post_recv));
static_assert(MC_IBV_DEVICE_NAME == offsetof(ibv_device, name));
static_assert(sizeof(ibv_device::name) == 64);
static_assert(offsetof(ibv_qp, context) == 0);
static_assert(offsetof(ibv_cq, context) == 0);
static_assert(offsetof(ibv_pd, context) == 0);
static_assert(MC_IBV_QP_HANDLE == offsetof(ibv_qp, handle));
static_assert(MC_IBV_QP_NUM == offsetof(ibv_qp, qp_num));
static_assert(MC_IBV_QP_STATE == offsetof(ibv_qp, state));
static_assert(MC_IBV_QP_BYTES == offsetof(ibv_qp, qp_type) + sizeof(ibv_qp::qp_type));
static_assert(offsetof(ibv_send_wr, wr_id) == 0);
static_assert(MC_IBV_SEND_WR_NEXT == offsetof(ibv_send_wr, next));
static_assert(MC_IBV_SEND_WR_SG_LIST == offsetof(ibv_send_wr, sg_list));
static_assert(MC_IBV_SEND_WR_NUM_SGE == offsetof(ibv_send_wr, num_sge));
static_assert(MC_IBV_SEND_WR_OPCODE == offsetof(ibv_send_wr, opcode));
static_assert(MC_IBV_RECV_WR_NEXT == offsetof(ibv_recv_wr, next));
static_assert(MC_IBV_SGE_LENGTH == offsetof(ibv_sge, length));
static_assert(MC_IBV_SGE_BYTES == sizeof(ibv_sge));
static_assert(MC_IBV_WC_WR_ID == offsetof(ibv_wc, wr_id));
static_assert(MC_IBV_WC_STATUS == offsetof(ibv_wc, status));
static_assert(MC_IBV_WC_OPCODE == offsetof(ibv_wc, opcode));
static_assert(MC_IBV_WC_VENDOR_ERR == offsetof(ibv_wc, vendor_err));
static_assert(MC_IBV_WC_QP_NUM == offsetof(ibv_wc, qp_num));
static_assert(MC_IBV_WC_BYTES == sizeof(ibv_wc));
static_assert(MC_IBV_QP_ATTR_STATE == offsetof(ibv_qp_attr, qp_state));
static_assert(MC_IBV_QP_ATTR_PATH_MTU == offsetof(ibv_qp_attr, path_mtu));
static_assert(MC_IBV_QP_ATTR_DEST_QP_NUM == offsetof(ibv_qp_attr, dest_qp_num));
static_assert(MC_IBV_QP_ATTR_GID == offsetof(ibv_qp_attr, ah_attr.grh.dgid));
static_assert(MC_IBV_QP_ATTR_SGID_INDEX == offsetof(ibv_qp_attr, ah_attr.grh.sgid_index));
static_assert(MC_IBV_QP_ATTR_IS_GLOBAL == offsetof(ibv_qp_attr, ah_attr.is_global));
static_assert(MC_IBV_QP_ATTR_AH_PORT == offsetof(ibv_qp_attr, ah_attr.port_num));
static_assert(MC_IBV_QP_ATTR_MIN_RNR_TIMER == offsetof(ibv_qp_attr, min_rnr_timer));
static_assert(MC_IBV_QP_ATTR_PORT == offsetof(ibv_qp_attr, port_num));
static_assert(MC_IBV_QP_ATTR_TIMEOUT == offsetof(ibv_qp_attr, timeout));
static_assert(MC_IBV_QP_ATTR_RETRY_CNT == offsetof(ibv_qp_attr, retry_cnt));
static_assert(MC_IBV_QP_ATTR_RNR_RETRY == offsetof(ibv_qp_attr, rnr_retry));
static_assert(MC_IBV_QP_ATTR_BYTES == sizeof(ibv_qp_attr));
static_assert(MC_IBV_ASYNC_ELEMENT == offsetof(ibv_async_event, element));
static_assert(MC_IBV_ASYNC_TYPE == offsetof(ibv_async_event, event_type));

static_assert(MC_IBV_WR_RDMA_WRITE == +IBV_WR_RDMA_WRITE);
static_assert(MC_IBV_WR_RDMA_WRITE_WITH_IMM == +IBV_WR_RDMA_WRITE_WITH_IMM);
static_assert(MC_IBV_WR_SEND == +IBV_WR_SEND);
static_assert(MC_IBV_WR_SEND_WITH_IMM == +IBV_WR_SEND_WITH_IMM);
static_assert(MC_IBV_WR_RDMA_READ == +IBV_WR_RDMA_READ);
static_assert(MC_IBV_WR_ATOMIC_CMP_AND_SWP == +IBV_WR_ATOMIC_CMP_AND_SWP);
static_assert(MC_IBV_WR_ATOMIC_FETCH_AND_ADD == +IBV_WR_ATOMIC_FETCH_AND_ADD);
static_assert(MC_IBV_WR_SEND_WITH_INV == +IBV_WR_SEND_WITH_INV);
static_assert(MC_IBV_QP_MASK_STATE == +IBV_QP_STATE);
static_assert(MC_IBV_QP_MASK_PORT == +IBV_QP_PORT);
static_assert(MC_IBV_QP_MASK_AV == +IBV_QP_AV);
static_assert(MC_IBV_QP_MASK_PATH_MTU == +IBV_QP_PATH_MTU);
static_assert(MC_IBV_QP_MASK_TIMEOUT == +IBV_QP_TIMEOUT);
static_assert(MC_IBV_QP_MASK_RETRY_CNT == +IBV_QP_RETRY_CNT);
static_assert(MC_IBV_QP_MASK_RNR_RETRY == +IBV_QP_RNR_RETRY);
static_assert(MC_IBV_QP_MASK_MIN_RNR_TIMER == +IBV_QP_MIN_RNR_TIMER);
static_assert(MC_IBV_QP_MASK_DEST_QPN == +IBV_QP_DEST_QPN);
static_assert(MC_IBV_QPS_RESET == +IBV_QPS_RESET);
static_assert(MC_IBV_QPS_SQE == +IBV_QPS_SQE);
static_assert(MC_IBV_QPS_ERR == +IBV_QPS_ERR);
static_assert(MC_IBV_ACCESS_RELAXED_ORDERING == +IBV_ACCESS_RELAXED_ORDERING);
static_assert(MC_IBV_WC_WR_FLUSH_ERR == +IBV_WC_WR_FLUSH_ERR);
static_assert(MC_IBV_WC_RECV == +IBV_WC_RECV);
static_assert(MC_IBV_EVENT_QP_FATAL == +IBV_EVENT_QP_FATAL);
static_assert(MC_IBV_EVENT_QP_REQ_ERR == +IBV_EVENT_QP_REQ_ERR);
static_assert(MC_IBV_EVENT_QP_ACCESS_ERR == +IBV_EVENT_QP_ACCESS_ERR);
static_assert(MC_IBV_EVENT_PATH_MIG_ERR == +IBV_EVENT_PATH_MIG_ERR);
static_assert(MC_IBV_EVENT_PORT_ACTIVE == +IBV_EVENT_PORT_ACTIVE);
static_assert(MC_IBV_EVENT_SM_CHANGE == +IBV_EVENT_SM_CHANGE);
static_assert(MC_IBV_EVENT_QP_LAST_WQE_REACHED == +IBV_EVENT_QP_LAST_WQE_REACHED);
static_assert(MC_IBV_EVENT_CLIENT_REREGISTER == +IBV_EVENT_CLIENT_REREGISTER);
static_assert(MC_IBV_EVENT_GID_CHANGE == +IBV_EVENT_GID_CHANGE);

TEST(VerbsAbiTest, NamesMatchTheNumbers) {
  using namespace mycroft;
  EXPECT_EQ(VerbsStatusName(IBV_WC_SUCCESS), "success");
  EXPECT_EQ(VerbsStatusName(IBV_WC_WR_FLUSH_ERR), "work request flushed");
  EXPECT_EQ(VerbsStatusName(IBV_WC_REM_ACCESS_ERR), "remote access error");
  EXPECT_EQ(VerbsStatusName(IBV_WC_RETRY_EXC_ERR), "transport retry exceeded");
  EXPECT_EQ(VerbsStatusName(IBV_WC_RNR_RETRY_EXC_ERR), "receiver-not-ready retry exceeded");
  EXPECT_EQ(VerbsStatusName(IBV_WC_GENERAL_ERR), "general error");
  EXPECT_EQ(VerbsStatusName(249), "work request flushed (249)");
  EXPECT_EQ(VerbsStatusName(77), "status 77");
  EXPECT_EQ(VerbsEventName(IBV_EVENT_QP_FATAL), "queue pair fatal error");
  EXPECT_EQ(VerbsEventName(IBV_EVENT_PORT_ERR), "port error");
  EXPECT_EQ(VerbsEventName(IBV_EVENT_GID_CHANGE), "GID change");
  EXPECT_EQ(VerbsEventName(IBV_EVENT_WQ_FATAL), "work queue fatal error");
  EXPECT_EQ(VerbsEventName(UINT32_MAX), "event 4294967295");
  EXPECT_EQ(VerbsStateName(IBV_QPS_RTS), "RTS");
  EXPECT_EQ(VerbsStateName(IBV_QPS_ERR), "ERR");
  EXPECT_EQ(VerbsMtuBytes(IBV_MTU_256), 256u);
  EXPECT_EQ(VerbsMtuBytes(IBV_MTU_4096), 4096u);
  EXPECT_EQ(VerbsMtuBytes(0), 0u);
  EXPECT_EQ(VerbsMtuBytes(6), 0u);
}

}  // namespace
