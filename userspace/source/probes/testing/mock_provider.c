/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests only: a provider library as those of rdma-core: no exported function, a constant
 * table of static ones in the order of rdma-core 36 to 58, stripped by the build.
 *   - a post whose first request has wr_id 666 is refused with ENOMEM;
 *   - poll_cq gives one completion for each request posted since, in order, per process;
 *     its status is the request's imm_data >> 16, its vendor error the rest.
 * MOCK_STUB_SEND: post_send is `mov eax, 95; ret`, which no probe can follow cheaply.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void verbs_register_driver_34(void *const *ops);
int ibv_cmd_create_qp(struct ibv_pd *pd, struct ibv_qp *qp, struct ibv_qp_init_attr *attr,
		      void *cmd, size_t cmd_size, void *resp, size_t resp_size);
int ibv_cmd_destroy_qp(struct ibv_qp *qp);
int ibv_cmd_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va, int access,
		   struct ibv_mr *mr, void *cmd, size_t cmd_size, void *resp, size_t resp_size);
int ibv_cmd_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
			  int access, struct ibv_mr *mr);

#define RING 64
static struct ibv_wc ring[RING];
static uint64_t head, tail;
static volatile uint64_t work;

__attribute__((unused)) static __attribute__((noinline)) void complete(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	struct ibv_wc *wc = &ring[head++ % RING];

	memset(wc, 0, sizeof(*wc));
	wc->wr_id = wr->wr_id;
	wc->status = (enum ibv_wc_status)(wr->imm_data >> 16);
	wc->vendor_err = wr->imm_data & 0xffff;
	wc->qp_num = qp->qp_num;
	if (wr->wr_id == 777)
		wc->opcode = IBV_WC_RECV;
}

#ifdef MOCK_STUB_SEND
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return EOPNOTSUPP;
}
#else
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	if (wr->wr_id == 666) {
		*bad = wr;
		return ENOMEM;
	}
	for (; wr; wr = wr->next)
		complete(qp, wr);
	return 0;
}
#endif

static __attribute__((noinline)) void receive(struct ibv_qp *qp)
{
	work += qp->qp_num;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)bad;
	for (; wr; wr = wr->next)
		receive(qp);
	return 0;
}

static __attribute__((noinline)) void take(struct ibv_wc *wc)
{
	*wc = ring[tail++ % RING];
}

static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	int n = 0;

	(void)cq;
	if (head - tail > RING)
		tail = head - RING;
	for (; n < entries && tail != head; n++)
		take(&wc[n]);
	return n;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	/* One place per context and number: the number that is used again has the old address. */
	static struct ibv_qp *places[2];
	struct ibv_qp *qp = NULL;

	if ((uintptr_t)attr->qp_context == 4242) {
		if (!places[0])
			places[0] = calloc(1, sizeof(*qp));
		qp = places[0];
	}
	if (!qp)
		qp = calloc(1, sizeof(*qp));
	if (ibv_cmd_create_qp(pd, qp, attr, NULL, 0, NULL, 0))
		return NULL;
	return qp;
}

static int destroy_qp(struct ibv_qp *qp)
{
	int error = ibv_cmd_destroy_qp(qp);

	work++;
	return error;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	work += qp->qp_num;
	return (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_SQD ? EINVAL : 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t va, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));
	int error = ibv_cmd_reg_mr(pd, addr, length, va, access, mr, NULL, 0, NULL, 0);

	if (error) {
		free(mr);
		errno = error;
		return NULL;
	}
	return mr;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));
	int error = ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr);

	if (error) {
		free(mr);
		errno = error;
		return NULL;
	}
	return mr;
}

static int other(void)
{
	return (int)work++;
}

static void *const mock_ops[76] __attribute__((aligned(32), used)) = {
	[5] = other,	   /* alloc_pd */
	[15] = other,	   /* create_cq */
	[19] = create_qp,
	[26] = other,	   /* dealloc_pd */
	[28] = other,	   /* dereg_mr */
	[31] = other,	   /* destroy_cq */
	[34] = destroy_qp,
	[39] = other,	   /* free_context */
	[47] = modify_qp,
	[53] = poll_cq,
	[54] = post_recv,
	[55] = post_send,
	[60] = other,	   /* query_port */
	[67] = reg_dmabuf_mr,
	[68] = reg_mr,
	[69] = other,	   /* req_notify_cq */
};

static __attribute__((constructor)) void register_driver(void)
{
	verbs_register_driver_34(mock_ops);
}
