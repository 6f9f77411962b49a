// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * What drivers tell the kernel's RDMA core: events of ports, and of queue pairs of
 * programs (the same that the program would get by ibv_get_async_event, if it asks).
 *
 * Costs nothing until such an event. Cannot see: drivers that do not load the module
 * ib_core before the agent starts.
 */
#include "bpf/abi/pcie.h"
#include "bpf/lib/emit.h"
#include <bpf/bpf_tracing.h>

static __always_inline int emit(enum mc_probe probe, enum mc_event_kind kind, struct ib_event *event)
{
	struct mc_event_rdma *e;

	/* Without ib_core there is no such type, and nothing to attach to. */
	if (!bpf_core_type_exists(struct ib_event))
		return 0;
	mc_hit(probe);
	e = mc_emit(probe, kind, sizeof(*e));
	if (!e)
		return 0;
	__builtin_memset(e->device, 0, sizeof(e->device));
	bpf_probe_read_kernel_str(e->device, sizeof(e->device),
				  BPF_CORE_READ(event, device, name));
	e->event = BPF_CORE_READ(event, event);
	e->number = kind == MC_EVENT_RDMA_QP ? BPF_CORE_READ(event, element.qp, qp_num)
					     : BPF_CORE_READ(event, element.port_num);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("fentry/ib_dispatch_event")
int BPF_PROG(rdma_port, struct ib_event *event)
{
	return emit(MC_PROBE_RDMA_PORT, MC_EVENT_RDMA_PORT, event);
}

SEC("kprobe/ib_dispatch_event")
int BPF_KPROBE(rdma_port_k, struct ib_event *event)
{
	return emit(MC_PROBE_RDMA_PORT, MC_EVENT_RDMA_PORT, event);
}

SEC("fentry/ib_uverbs_qp_event_handler")
int BPF_PROG(rdma_qp, struct ib_event *event)
{
	return emit(MC_PROBE_RDMA_QP, MC_EVENT_RDMA_QP, event);
}

SEC("kprobe/ib_uverbs_qp_event_handler")
int BPF_KPROBE(rdma_qp_k, struct ib_event *event)
{
	return emit(MC_PROBE_RDMA_QP, MC_EVENT_RDMA_QP, event);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
