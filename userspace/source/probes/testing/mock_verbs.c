/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests only: a libibverbs.so.1 without a kernel below it. Exported functions, their
 * versions, and the way from one to the other are those of the real one; what a device
 * would do is decided by the arguments:
 *   - registrations of more than 1 TiB fail with ENOMEM, of 0 bytes with EINVAL;
 *   - a modify to the state SQD (4) fails with EINVAL;
 *   - asynchronous events are what is written into mock_async_fd().
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr

/* Places in struct verbs_context_ops of rdma-core 36 to 58. */
enum {
	OP_CREATE_QP = 19,
	OP_DESTROY_QP = 34,
	OP_MODIFY_QP = 47,
	OP_POLL_CQ = 53,
	OP_POST_RECV = 54,
	OP_POST_SEND = 55,
	OP_REG_DMABUF_MR = 67,
	OP_REG_MR = 68,
};

static void *const *table;
static int async_pipe[2] = {-1, -1};
static uint32_t next_handle = 1;

void verbs_register_driver_34(void *const *ops)
{
	table = ops;
}

int mock_async_fd(void)
{
	return async_pipe[1];
}

struct ibv_context *open_device_1_1(struct ibv_device *device)
{
	struct verbs_context *v = calloc(1, sizeof(*v));
	struct ibv_context *c = &v->context;

	if (!table || (async_pipe[0] < 0 && pipe(async_pipe)))
		return NULL;
	c->device = device;
	c->abi_compat = (void *)UINTPTR_MAX; /* __VERBS_ABI_IS_EXTENDED */
	c->async_fd = async_pipe[0];
	c->ops.poll_cq = (int (*)(struct ibv_cq *, int, struct ibv_wc *))table[OP_POLL_CQ];
	c->ops.post_send = (int (*)(struct ibv_qp *, struct ibv_send_wr *,
				    struct ibv_send_wr **))table[OP_POST_SEND];
	c->ops.post_recv = (int (*)(struct ibv_qp *, struct ibv_recv_wr *,
				    struct ibv_recv_wr **))table[OP_POST_RECV];
	return c;
}
__asm__(".symver open_device_1_1,ibv_open_device@@IBVERBS_1.1");

/* Of the old version it matters only that its symbol is there and that it calls the new one. */
struct ibv_context *open_device_1_0(struct ibv_device *device)
{
	struct ibv_context **wrapped = calloc(1, 256);

	if (wrapped)
		wrapped[16] = open_device_1_1(device);
	return (struct ibv_context *)wrapped;
}
__asm__(".symver open_device_1_0,ibv_open_device@IBVERBS_1.0");

int ibv_cmd_create_qp(struct ibv_pd *pd, struct ibv_qp *qp, struct ibv_qp_init_attr *attr,
		      void *cmd, size_t cmd_size, void *resp, size_t resp_size)
{
	(void)cmd, (void)cmd_size, (void)resp, (void)resp_size;
	if (!attr->cap.max_send_wr)
		return EINVAL;
	qp->context = pd->context;
	qp->qp_context = attr->qp_context;
	qp->pd = pd;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->handle = __sync_fetch_and_add(&next_handle, 1);
	qp->qp_num = (uint32_t)(uintptr_t)attr->qp_context; /* the test chooses */
	qp->qp_type = attr->qp_type;
	qp->state = IBV_QPS_RESET;
	return 0;
}

int ibv_cmd_destroy_qp(struct ibv_qp *qp)
{
	/* Something to do, so that the compiler makes a frame as in the real one. */
	return getpid() > 0 && qp ? 0 : EINVAL;
}

int ibv_cmd_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va, int access,
		   struct ibv_mr *mr, void *cmd, size_t cmd_size, void *resp, size_t resp_size)
{
	(void)hca_va, (void)access, (void)cmd, (void)cmd_size, (void)resp, (void)resp_size;
	if (getpid() <= 0 || length > (1ull << 40))
		return ENOMEM;
	if (!length)
		return EINVAL;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	return 0;
}

int ibv_cmd_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
			  int access, struct ibv_mr *mr)
{
	(void)offset, (void)iova, (void)access;
	if (getpid() <= 0 || fd < 0)
		return EBADF;
	mr->context = pd->context;
	mr->pd = pd;
	mr->length = length;
	return 0;
}

struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return ((struct ibv_qp * (*)(struct ibv_pd *, struct ibv_qp_init_attr *))
			table[OP_CREATE_QP])(pd, attr);
}
__asm__(".symver create_qp,ibv_create_qp@@IBVERBS_1.1");

int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = ((int (*)(struct ibv_qp *, struct ibv_qp_attr *, int))table[OP_MODIFY_QP])(
		qp, attr, mask);

	if (!error && (mask & IBV_QP_STATE))
		qp->state = attr->qp_state;
	return error;
}
__asm__(".symver modify_qp,ibv_modify_qp@@IBVERBS_1.1");

int destroy_qp(struct ibv_qp *qp)
{
	return ((int (*)(struct ibv_qp *))table[OP_DESTROY_QP])(qp);
}
__asm__(".symver destroy_qp,ibv_destroy_qp@@IBVERBS_1.1");

struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ((struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, uint64_t, int))
			table[OP_REG_MR])(pd, addr, length, (uintptr_t)addr, access);
}
__asm__(".symver reg_mr,ibv_reg_mr@@IBVERBS_1.1");

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
				 int fd, int access)
{
	return ((struct ibv_mr * (*)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int))
			table[OP_REG_DMABUF_MR])(pd, offset, length, iova, fd, access);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct ibv_async_event e;

	if (read(context->async_fd, &e, sizeof(e)) != sizeof(e))
		return -1;
	*event = e;
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	if (getpid() > 0)
		event->event_type = (enum ibv_event_type)-1;
}
