/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Values and records of bpf/probes/pcie.bpf.c and rdma.bpf.c. See probes.h for what
 * holds for all. A device is its kernel name, zero-padded: for a PCI function its
 * address, "0000:3b:00.0"; other devices have names, too, and readers skip those.
 */
#ifndef MYCROFT_BPF_ABI_PCIE_H_
#define MYCROFT_BPF_ABI_PCIE_H_

#include "bpf/abi/probes.h"

#define MC_DEVICE_NAME 16

struct mc_device {
	char name[MC_DEVICE_NAME]; /* ends with a zero; longer names are cut */
};

/* Map mc_pcie_dma[mc_device], one per CPU. */
struct mc_pcie_dma {
	uint64_t maps;	   /* calls: of a page, or of a whole scatter list */
	uint64_t bytes;	   /* of those that went well */
	uint64_t failures; /* not counted in maps */
	uint64_t ns;	   /* time in the calls; by fentry and kprobe only */
};

/* Map mc_pcie_irqs[number of the interrupt]: the agent makes the entries. */
struct mc_pcie_irq {
	uint64_t count; /* calls of handlers */
	uint64_t ns;	/* time in them, without threaded handlers */
};

/* Map mc_pcie_faults: rare things, counted; a record goes to the ring buffer for the
 * first of a key, and then at most one a second. */
struct mc_pcie_fault_key {
	struct mc_device device;
	uint32_t kind;	   /* enum mc_event_kind */
	uint32_t severity; /* see mc_event_pcie */
};
struct mc_pcie_fault {
	uint64_t count;
	uint64_t emitted_ns;
};

/* MC_EVENT_PCIE_*. pid and tid are of whoever ran at the time: mostly unrelated. */
struct mc_event_pcie {
	struct mc_event header;
	struct mc_device device;
	uint32_t severity; /* AER: 0 non-fatal, 1 fatal, 2 corrected; RECOVERY: pci_channel_state:
			      1 normal (non-fatal), 2 frozen (fatal), 3 given up */
	uint32_t status;   /* AER: bits of the status register; IOMMU: flags, 1: a write */
	uint64_t count;	   /* of this device, kind and severity since loading */
	uint64_t detail;   /* REMOVAL: vendor << 16 | device; IOMMU: I/O address;
			      DMA_FAILURE: bytes */
};

/* MC_EVENT_RDMA_*. */
struct mc_event_rdma {
	struct mc_event header;
	char device[64];   /* "mlx5_0" */
	uint32_t event;	   /* enum ib_event_type, the numbers of enum ibv_event_type */
	uint32_t number;   /* of the port, or of the queue pair */
};

MC_ASSERT_RECORD(mc_device, 16);
MC_ASSERT_RECORD(mc_pcie_dma, 32);
MC_ASSERT_RECORD(mc_pcie_irq, 16);
MC_ASSERT_RECORD(mc_pcie_fault_key, 24);
MC_ASSERT_RECORD(mc_pcie_fault, 16);
MC_ASSERT_RECORD(mc_event_pcie, 64);
MC_ASSERT_RECORD(mc_event_rdma, 96);

#endif /* MYCROFT_BPF_ABI_PCIE_H_ */
