/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests only: a process that does with RDMA verbs what it is told on standard input, one
 * command per line, and answers each with a line.
 *
 *   container DIR          live in DIR as the root of a mount namespace of its own
 *   load DIR PROVIDER      load DIR/libibverbs.so.1 and DIR/PROVIDER
 *   open NAME [1.0]        open a device of that name (by the old version of the function)
 *   qp DEVICE NUMBER       create a queue pair
 *   modify N STATE MASK REMOTE MTU GID_INDEX PORT TIMEOUT RETRY RNR MIN_RNR
 *   destroy N
 *   post N OPCODE REQUESTS SGES LENGTH TIMES [WR_ID [IMM]]
 *   recv N REQUESTS TIMES
 *   poll N TIMES
 *   mr DEVICE LENGTH ACCESS    dmabuf DEVICE LENGTH ACCESS FD
 *   async TYPE N_OR_PORT   an event is read and acknowledged
 *   wait                   a thread waits for an event from now on;  event TYPE N: it comes
 *   many DEVICE COUNT      create queue pairs 1..COUNT and post once to each
 *   ids                    pid and tid
 * Devices and queue pairs are numbered from 0 in order of their making.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef ibv_reg_mr

#define MAX_DEVICES 8
#define MAX_QPS 20000
static void *library;
static struct ibv_device devices[MAX_DEVICES];
static struct ibv_pd pds[MAX_DEVICES];
static struct ibv_cq cqs[MAX_DEVICES];
static int device_count;
static struct ibv_qp *qps[MAX_QPS];
static int qp_count;
static pthread_t waiter;

#define CALL(name, ...) ((__typeof__(&name))dlsym(library, #name))(__VA_ARGS__)

static int device_of(const struct ibv_qp *qp)
{
	for (int i = 0; i < device_count; i++)
		if (pds[i].context == qp->context)
			return i;
	return 0;
}

static int make_qp(int device, unsigned number)
{
	struct ibv_qp_init_attr attr = {.qp_context = (void *)(uintptr_t)number,
					.send_cq = &cqs[device],
					.recv_cq = &cqs[device],
					.cap = {.max_send_wr = 16},
					.qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = CALL(ibv_create_qp, &pds[device], &attr);

	if (!qp || qp_count == MAX_QPS)
		return -1;
	qps[qp_count] = qp;
	return qp_count++;
}

static int post(struct ibv_qp *qp, int opcode, int requests, int sges, uint32_t length,
		uint64_t wr_id, uint32_t imm)
{
	static struct ibv_sge sge[4096];
	static struct ibv_send_wr wr[4096];
	struct ibv_send_wr *bad;

	for (int i = 0; i < sges; i++)
		sge[i] = (struct ibv_sge){.addr = 4096, .length = length + i};
	for (int i = 0; i < requests; i++) {
		memset(&wr[i], 0, sizeof(wr[i]));
		wr[i].wr_id = wr_id;
		wr[i].next = i + 1 < requests ? &wr[i + 1] : NULL;
		wr[i].sg_list = sge;
		wr[i].num_sge = sges;
		wr[i].opcode = (enum ibv_wr_opcode)opcode;
		wr[i].imm_data = imm;
	}
	return ibv_post_send(qp, wr, &bad);
}

static void *wait_for_event(void *unused)
{
	struct ibv_async_event e;

	(void)unused;
	if (CALL(ibv_get_async_event, pds[0].context, &e) == 0)
		CALL(ibv_ack_async_event, &e);
	return NULL;
}

static int send_event(int type, int n)
{
	struct ibv_async_event e = {.event_type = (enum ibv_event_type)type};
	int fd = ((int (*)(void))dlsym(library, "mock_async_fd"))();

	if (type >= 9 && type <= 13)
		e.element.port_num = n;
	else
		e.element.qp = qps[n];
	return write(fd, &e, sizeof(e)) == sizeof(e) ? 0 : errno;
}

static int live_in(const char *dir)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount(dir, dir, NULL, MS_BIND, NULL) || chdir(dir) ||
	    syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		return errno;
	return 0;
}

int main(void)
{
	static char line[4096];
	char a[1024], b[256];
	int n, i, op, requests, sges, times, error = 0;
	unsigned u, v;
	unsigned long long big, wr_id;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		error = 0;
		wr_id = 1;
		v = 0;
		if (sscanf(line, "container %1023s", a) == 1) {
			error = live_in(a);
		} else if (sscanf(line, "load %1023s %255s", a, b) == 2) {
			char path[2048];

			snprintf(path, sizeof(path), "%s/libibverbs.so.1", a);
			library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
			snprintf(path, sizeof(path), "%s/%s", a, b);
			if (!library || !dlopen(path, RTLD_NOW)) {
				printf("error %s\n", dlerror());
				continue;
			}
		} else if (sscanf(line, "open %63s %255s", a, b) >= 1) {
			const char *version = strstr(line, " 1.0") ? "IBVERBS_1.0" : "IBVERBS_1.1";
			struct ibv_context *(*open_device)(struct ibv_device *);

			if (device_count == MAX_DEVICES) {
				printf("error too many\n");
				continue;
			}
			open_device = dlvsym(library, "ibv_open_device", version);
			strcpy(devices[device_count].name, a);
			struct ibv_context *c = open_device(&devices[device_count]);

			if (c && !strcmp(version, "IBVERBS_1.0"))
				c = ((struct ibv_context **)c)[16];
			pds[device_count].context = c;
			cqs[device_count].context = c;
			error = c ? 0 : EIO;
			device_count++;
		} else if (sscanf(line, "qp %d %u", &n, &u) == 2) {
			error = make_qp(n, u) < 0 ? EIO : 0;
		} else if (sscanf(line, "many %d %d", &n, &times) == 2) {
			for (i = 0; i < times && !error; i++) {
				int q = make_qp(n, (unsigned)i + 1);

				error = q < 0 ? EIO : post(qps[q], IBV_WR_SEND, 1, 1, 10, 1, 0);
			}
		} else if (!strncmp(line, "modify ", 7)) {
			struct ibv_qp_attr attr = {};
			unsigned state, mask, remote, mtu, gid, port, timeout, retry, rnr, min_rnr;

			if (sscanf(line + 7, "%d %u %x %u %u %u %u %u %u %u %u", &n, &state, &mask,
				   &remote, &mtu, &gid, &port, &timeout, &retry, &rnr,
				   &min_rnr) != 11) {
				printf("error arguments\n");
				continue;
			}
			attr.qp_state = (enum ibv_qp_state)state;
			attr.dest_qp_num = remote;
			attr.path_mtu = (enum ibv_mtu)mtu;
			attr.ah_attr.is_global = 1;
			attr.ah_attr.port_num = port;
			attr.ah_attr.grh.sgid_index = gid;
			memset(&attr.ah_attr.grh.dgid, 0, 16);
			attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
			attr.ah_attr.grh.dgid.raw[12] = 10;
			attr.ah_attr.grh.dgid.raw[15] = 1;
			attr.port_num = port;
			attr.timeout = timeout;
			attr.retry_cnt = retry;
			attr.rnr_retry = rnr;
			attr.min_rnr_timer = min_rnr;
			error = CALL(ibv_modify_qp, qps[n], &attr, mask);
		} else if (sscanf(line, "destroy %d", &n) == 1) {
			error = CALL(ibv_destroy_qp, qps[n]);
		} else if (sscanf(line, "post %d %d %d %d %u %d %llu %u", &n, &op, &requests, &sges,
				  &u, &times, &wr_id, &v) >= 6) {
			for (i = 0; i < times; i++)
				error = post(qps[n], op, requests, sges, u, wr_id, v);
		} else if (sscanf(line, "recv %d %d %d", &n, &requests, &times) == 3) {
			struct ibv_recv_wr wr[64] = {}, *bad;

			for (i = 0; i < requests; i++)
				wr[i].next = i + 1 < requests ? &wr[i + 1] : NULL;
			for (i = 0; i < times; i++)
				error = ibv_post_recv(qps[n], wr, &bad);
		} else if (sscanf(line, "poll %d %d", &n, &times) == 2) {
			struct ibv_wc wc[16];
			int got = 0;

			for (i = 0; i < times; i++)
				got += ibv_poll_cq(&cqs[device_of(qps[n])], 16, wc);
			printf("ok %d\n", got);
			continue;
		} else if (sscanf(line, "mr %d %llu %x", &n, &big, &u) == 3) {
			errno = 0;
			error = CALL(ibv_reg_mr, &pds[n], NULL, big, u) ? 0 : errno;
		} else if (sscanf(line, "dmabuf %d %llu %x %d", &n, &big, &u, &i) == 4) {
			errno = 0;
			error = CALL(ibv_reg_dmabuf_mr, &pds[n], 0, big, 0, i, u) ? 0 : errno;
		} else if (sscanf(line, "async %d %d", &op, &n) == 2) {
			error = send_event(op, n);
			wait_for_event(NULL);
		} else if (!strncmp(line, "wait", 4)) {
			error = pthread_create(&waiter, NULL, wait_for_event, NULL);
			usleep(50000);
		} else if (sscanf(line, "event %d %d", &op, &n) == 2) {
			error = send_event(op, n);
			pthread_join(waiter, NULL);
		} else if (!strncmp(line, "ids", 3)) {
			printf("ok %d %ld\n", getpid(), syscall(SYS_gettid));
			continue;
		} else {
			printf("error unknown command: %s", line);
			continue;
		}
		printf("ok %d\n", error);
	}
	return 0;
}
