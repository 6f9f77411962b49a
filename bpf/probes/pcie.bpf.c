// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * PCI Express, as drivers and the kernel see it: errors, devices that go, DMA mappings,
 * interrupts.
 *
 * Costs: DMA probes run at every mapping of every device (storage and Ethernet map per
 * request; RDMA maps when memory is registered, and is not slowed down after that);
 * interrupt probes at every interrupt, where one that is not watched costs one look-up.
 * The others run when something rare happens.
 *
 * Cannot see: data that a device moves by itself through mappings that exist; memory of
 * drivers that bypass the DMA API.
 */
#include "bpf/abi/pcie.h"
#include "bpf/lib/emit.h"
#include <bpf/bpf_tracing.h>

#define SECOND_NS 1000000000ULL
#define DMA_MAPPING_ERROR (~0ULL)
#define SG_CHAIN 1UL
#define SG_END 2UL
/* Entries of a scatter list that are looked at; bytes beyond do not count. */
#define MAX_SG 1024

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct mc_pcie_fault_key);
	__type(value, struct mc_pcie_fault);
} mc_pcie_faults SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 512);
	__type(key, struct mc_device);
	__type(value, struct mc_pcie_dma);
} mc_pcie_dma SEC(".maps");

/* Calls that are under way. */
struct dma_call {
	uint64_t begin_ns;
	uint64_t device; /* kprobe: struct device * */
	uint64_t bytes;	 /* kprobe */
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, uint64_t);
	__type(value, struct dma_call);
} mc_pcie_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, uint32_t);
	__type(value, struct mc_pcie_irq);
} mc_pcie_irqs SEC(".maps");

/* The watched handler that runs on this CPU: handlers do not nest. */
struct irq_call {
	uint64_t begin_ns; /* 0: none */
	uint32_t irq;
	uint32_t pad0;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct irq_call);
} mc_pcie_irq_call SEC(".maps");

static __always_inline void name_of(const struct device *dev, struct mc_device *out)
{
	const char *name = BPF_CORE_READ(dev, kobj.name);

	__builtin_memset(out, 0, sizeof(*out));
	bpf_probe_read_kernel_str(out->name, sizeof(out->name), name);
}

/* ---- rare things ------------------------------------------------------------------- */

/* Counts, and tells the first and then one a second: a bad link has thousands. */
static __always_inline void fault(enum mc_probe probe, enum mc_event_kind kind,
				  const struct mc_device *device, uint32_t severity,
				  uint32_t status, uint64_t detail)
{
	struct mc_pcie_fault_key key = {.kind = kind, .severity = severity};
	struct mc_pcie_fault none = {}, *f;
	uint64_t now = bpf_ktime_get_ns();
	struct mc_event_pcie *e;
	uint64_t count;

	mc_hit(probe);
	key.device = *device;
	f = bpf_map_lookup_elem(&mc_pcie_faults, &key);
	if (!f) {
		bpf_map_update_elem(&mc_pcie_faults, &key, &none, BPF_NOEXIST);
		f = bpf_map_lookup_elem(&mc_pcie_faults, &key);
		if (!f) {
			mc_count_dropped_row(probe);
			return;
		}
	}
	count = __sync_fetch_and_add(&f->count, 1) + 1;
	if (f->emitted_ns && now - f->emitted_ns < SECOND_NS)
		return;
	f->emitted_ns = now;
	e = mc_emit(probe, kind, sizeof(*e));
	if (!e)
		return;
	e->device = *device;
	e->severity = severity;
	e->status = status;
	e->count = count;
	e->detail = detail;
	bpf_ringbuf_submit(e, 0);
}

SEC("tp_btf/aer_event")
int BPF_PROG(pcie_aer, const char *name, uint32_t status, uint8_t severity)
{
	struct mc_device device = {};

	bpf_probe_read_kernel_str(device.name, sizeof(device.name), name);
	fault(MC_PROBE_PCIE_AER, MC_EVENT_PCIE_AER, &device, severity, status, 0);
	return 0;
}

/* The same from the tracepoint's record; where its fields are, the kernel's BTF says. */
SEC("tp/ras/aer_event")
int pcie_aer_record(struct trace_event_raw_aer_event *ctx)
{
	struct mc_device device = {};

	if (!bpf_core_type_exists(struct trace_event_raw_aer_event))
		return 0;
	bpf_probe_read_kernel_str(device.name, sizeof(device.name),
				  (char *)ctx + (ctx->__data_loc_dev_name & 0xffff));
	fault(MC_PROBE_PCIE_AER, MC_EVENT_PCIE_AER, &device, ctx->severity, ctx->status, 0);
	return 0;
}

SEC("tp_btf/io_page_fault")
int BPF_PROG(pcie_iommu, const struct device *dev, unsigned long iova, int flags)
{
	struct mc_device device;

	name_of(dev, &device);
	fault(MC_PROBE_PCIE_IOMMU, MC_EVENT_PCIE_IOMMU, &device, 0, flags, iova);
	return 0;
}

static __always_inline int removal(const struct pci_dev *pci)
{
	uint32_t id = (uint32_t)BPF_CORE_READ(pci, vendor) << 16 | BPF_CORE_READ(pci, device);
	struct mc_device device;

	name_of(&pci->dev, &device);
	fault(MC_PROBE_PCIE_REMOVAL, MC_EVENT_PCIE_REMOVAL, &device, 0, 0, id);
	return 0;
}

/* The second contains a copy of the first, or calls it: then it counts twice. */
SEC("fentry/pci_stop_and_remove_bus_device")
int BPF_PROG(pcie_removal, const struct pci_dev *pci)
{
	return removal(pci);
}

SEC("fentry/pci_stop_and_remove_bus_device_locked")
int BPF_PROG(pcie_removal_lock, const struct pci_dev *pci)
{
	return removal(pci);
}

SEC("kprobe/pci_stop_and_remove_bus_device")
int BPF_KPROBE(pcie_removal_k, const struct pci_dev *pci)
{
	return removal(pci);
}

SEC("kprobe/pci_stop_and_remove_bus_device_locked")
int BPF_KPROBE(pcie_removal_lock_k, const struct pci_dev *pci)
{
	return removal(pci);
}

static __always_inline int recovery(const struct pci_dev *pci, uint32_t state)
{
	struct mc_device device;

	name_of(&pci->dev, &device);
	fault(MC_PROBE_PCIE_RECOVERY, MC_EVENT_PCIE_RECOVERY, &device, state, 0, 0);
	return 0;
}

SEC("fentry/pcie_do_recovery")
int BPF_PROG(pcie_recovery, const struct pci_dev *pci, uint32_t state)
{
	return recovery(pci, state);
}

SEC("kprobe/pcie_do_recovery")
int BPF_KPROBE(pcie_recovery_k, const struct pci_dev *pci, uint32_t state)
{
	return recovery(pci, state);
}

/* ---- DMA mappings ------------------------------------------------------------------ */

static __always_inline void mapped(const struct device *dev, uint64_t bytes, bool failed,
				   uint64_t ns)
{
	struct mc_pcie_dma first = {}, *d;
	struct mc_device device;

	mc_hit(MC_PROBE_PCIE_DMA);
	name_of(dev, &device);
	d = bpf_map_lookup_elem(&mc_pcie_dma, &device);
	if (!d) {
		bpf_map_update_elem(&mc_pcie_dma, &device, &first, BPF_NOEXIST);
		d = bpf_map_lookup_elem(&mc_pcie_dma, &device);
		if (!d) {
			mc_count_dropped_row(MC_PROBE_PCIE_DMA);
			return;
		}
	}
	/* An interrupt on this CPU may map while a program counts. */
	if (failed) {
		__sync_fetch_and_add(&d->failures, 1);
		fault(MC_PROBE_PCIE_DMA, MC_EVENT_PCIE_DMA_FAILURE, &device, 0, 0, bytes);
	} else {
		__sync_fetch_and_add(&d->maps, 1);
		__sync_fetch_and_add(&d->bytes, bytes);
	}
	if (ns)
		__sync_fetch_and_add(&d->ns, ns);
}

struct sg_walk {
	const struct scatterlist *sg;
	uint64_t bytes;
};

static long sg_step(uint32_t index, void *context)
{
	struct sg_walk *walk = context;
	const struct scatterlist *sg = walk->sg;
	uint64_t link;

	walk->bytes += BPF_CORE_READ(sg, length);
	if (BPF_CORE_READ(sg, page_link) & SG_END)
		return 1;
	/* The size of an entry is the kernel's, which the CO-RE relocation knows. */
	sg = (const struct scatterlist *)((uint64_t)sg + bpf_core_type_size(struct scatterlist));
	link = BPF_CORE_READ(sg, page_link);
	if (link & SG_CHAIN)
		sg = (const struct scatterlist *)(link & ~(SG_CHAIN | SG_END));
	walk->sg = sg;
	return 0;
}

static __always_inline uint64_t sg_bytes(const struct scatterlist *sg, uint32_t entries)
{
	struct sg_walk walk = {};

	/* Copied so that the verifier takes it for a number: a pointer that moves on is
	 * another state at each step, and it would not end. */
	bpf_probe_read_kernel(&walk.sg, sizeof(walk.sg), &sg);
	bpf_loop(entries < MAX_SG ? entries : MAX_SG, sg_step, &walk, 0);
	return walk.bytes;
}

SEC("tp_btf/dma_map_page")
int BPF_PROG(pcie_dma_page_t, const struct device *dev, uint64_t phys, uint64_t address, size_t size)
{
	mapped(dev, size, address == DMA_MAPPING_ERROR, 0);
	return 0;
}

SEC("tp_btf/dma_map_phys")
int BPF_PROG(pcie_dma_phys_t, const struct device *dev, uint64_t phys, uint64_t address, size_t size)
{
	mapped(dev, size, address == DMA_MAPPING_ERROR, 0);
	return 0;
}

SEC("tp_btf/dma_map_sg")
int BPF_PROG(pcie_dma_sg_t, const struct device *dev, struct scatterlist *sg, int entries)
{
	mapped(dev, sg_bytes(sg, entries), false, 0);
	return 0;
}

SEC("tp_btf/dma_map_sg_err")
int BPF_PROG(pcie_dma_sg_err_t, const struct device *dev, struct scatterlist *sg, int entries)
{
	mapped(dev, sg_bytes(sg, entries), true, 0);
	return 0;
}

static __always_inline void begin_call(uint64_t key, const struct device *dev, uint64_t bytes)
{
	struct dma_call call = {
		.device = (uint64_t)dev, .bytes = bytes, .begin_ns = bpf_ktime_get_ns()};

	bpf_map_update_elem(&mc_pcie_calls, &key, &call, BPF_ANY);
}

/* Time since begin_call, and no more of the call; 0: it was not seen. */
static __always_inline uint64_t end_call(uint64_t key, struct dma_call *out)
{
	struct dma_call *call = bpf_map_lookup_elem(&mc_pcie_calls, &key);
	uint64_t now = bpf_ktime_get_ns();

	if (!call)
		return 0;
	*out = *call;
	bpf_map_delete_elem(&mc_pcie_calls, &key);
	return now > out->begin_ns ? now - out->begin_ns : 1;
}

/*
 * Entry and exit of one call share the frame of the trampoline, of which the context is
 * a part: its address is unique among the calls under way, on any CPU, at any depth.
 */
#define DMA_ENTRY(program, function)                        \
	SEC("fentry/" #function)                            \
	int program(unsigned long long *ctx)                \
	{                                                   \
		begin_call((uint64_t)ctx, NULL, 0);         \
		return 0;                                   \
	}

DMA_ENTRY(pcie_dma_page_f, dma_map_page_attrs)
DMA_ENTRY(pcie_dma_phys_f, dma_map_phys)
DMA_ENTRY(pcie_dma_sg_f, dma_map_sg_attrs)
DMA_ENTRY(pcie_dma_sgt_f, dma_map_sgtable)

SEC("fexit/dma_map_page_attrs")
int BPF_PROG(pcie_dma_page_fx, const struct device *dev, struct page *page, size_t offset,
	     size_t size, int dir, unsigned long attrs, uint64_t address)
{
	struct dma_call call;

	mapped(dev, size, address == DMA_MAPPING_ERROR, end_call((uint64_t)ctx, &call));
	return 0;
}

SEC("fexit/dma_map_phys")
int BPF_PROG(pcie_dma_phys_fx, const struct device *dev, uint64_t phys, size_t size, int dir,
	     unsigned long attrs, uint64_t address)
{
	struct dma_call call;

	mapped(dev, size, address == DMA_MAPPING_ERROR, end_call((uint64_t)ctx, &call));
	return 0;
}

SEC("fexit/dma_map_sg_attrs")
int BPF_PROG(pcie_dma_sg_fx, const struct device *dev, struct scatterlist *sg, int entries, int dir,
	     unsigned long attrs, unsigned int mapped_entries)
{
	struct dma_call call;
	uint64_t ns = end_call((uint64_t)ctx, &call);

	mapped(dev, sg_bytes(sg, entries), mapped_entries == 0, ns);
	return 0;
}

SEC("fexit/dma_map_sgtable")
int BPF_PROG(pcie_dma_sgt_fx, const struct device *dev, struct sg_table *table, int dir,
	     unsigned long attrs, int error)
{
	struct dma_call call;
	uint64_t ns = end_call((uint64_t)ctx, &call);
	const struct scatterlist *sg = BPF_CORE_READ(table, sgl);

	mapped(dev, sg_bytes(sg, BPF_CORE_READ(table, orig_nents)), error != 0, ns);
	return 0;
}

/*
 * kprobes: the stack pointer tells the calls apart. At the entry it points to the return
 * address, at the return to what was above it.
 */
SEC("kprobe/dma_map_page_attrs")
int BPF_KPROBE(pcie_dma_page_k, const struct device *dev, struct page *page, size_t offset, size_t size)
{
	begin_call(PT_REGS_SP(ctx) + sizeof(long), dev, size);
	return 0;
}

SEC("kretprobe/dma_map_page_attrs")
int BPF_KRETPROBE(pcie_dma_page_kr, uint64_t address)
{
	struct dma_call call;
	uint64_t ns = end_call(PT_REGS_SP(ctx), &call);

	if (ns)
		mapped((const struct device *)call.device, call.bytes, address == DMA_MAPPING_ERROR,
		       ns);
	return 0;
}

SEC("kprobe/dma_map_sg_attrs")
int BPF_KPROBE(pcie_dma_sg_k, const struct device *dev, struct scatterlist *sg, int entries)
{
	begin_call(PT_REGS_SP(ctx) + sizeof(long), dev, sg_bytes(sg, entries));
	return 0;
}

SEC("kretprobe/dma_map_sg_attrs")
int BPF_KRETPROBE(pcie_dma_sg_kr, unsigned int mapped_entries)
{
	struct dma_call call;
	uint64_t ns = end_call(PT_REGS_SP(ctx), &call);

	if (ns)
		mapped((const struct device *)call.device, call.bytes, mapped_entries == 0, ns);
	return 0;
}

SEC("kprobe/dma_map_sgtable")
int BPF_KPROBE(pcie_dma_sgt_k, const struct device *dev, struct sg_table *table)
{
	begin_call(PT_REGS_SP(ctx) + sizeof(long), dev,
		   sg_bytes(BPF_CORE_READ(table, sgl), BPF_CORE_READ(table, orig_nents)));
	return 0;
}

SEC("kretprobe/dma_map_sgtable")
int BPF_KRETPROBE(pcie_dma_sgt_kr, int error)
{
	struct dma_call call;
	uint64_t ns = end_call(PT_REGS_SP(ctx), &call);

	if (ns)
		mapped((const struct device *)call.device, call.bytes, error != 0, ns);
	return 0;
}

/* ---- interrupts -------------------------------------------------------------------- */

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(pcie_irq_entry, int irq)
{
	uint32_t number = irq, zero = 0;
	struct irq_call *call;

	if (!bpf_map_lookup_elem(&mc_pcie_irqs, &number))
		return 0;
	call = bpf_map_lookup_elem(&mc_pcie_irq_call, &zero);
	if (!call)
		return 0;
	mc_hit(MC_PROBE_PCIE_IRQ);
	call->irq = number;
	call->begin_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(pcie_irq_exit, int irq)
{
	uint32_t number = irq, zero = 0;
	struct irq_call *call = bpf_map_lookup_elem(&mc_pcie_irq_call, &zero);
	struct mc_pcie_irq *count;

	if (!call || !call->begin_ns || call->irq != number)
		return 0;
	count = bpf_map_lookup_elem(&mc_pcie_irqs, &number);
	if (count) {
		__sync_fetch_and_add(&count->ns, bpf_ktime_get_ns() - call->begin_ns);
		__sync_fetch_and_add(&count->count, 1);
	}
	call->begin_ns = 0;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
