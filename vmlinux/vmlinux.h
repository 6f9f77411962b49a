/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Kernel types for the BPF programs: only those that are used, and of these only
 * the members that are read. Kept by hand; see README.md for how to add one.
 *
 * Everything between the pragmas is relocated when a program is loaded (CO-RE):
 * order, size and offsets written here do not matter, names and types do.
 */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __le16;
typedef __u32 __le32;
typedef __u64 __le64;
typedef __u32 __wsum;
typedef __u16 __sum16;

typedef __u8 uint8_t;
typedef __u16 uint16_t;
typedef __u32 uint32_t;
typedef __u64 uint64_t;
typedef __s8 int8_t;
typedef __s16 int16_t;
typedef __s32 int32_t;
typedef __s64 int64_t;
typedef unsigned long size_t;
typedef _Bool bool;

#define NULL ((void *)0)
#define true 1
#define false 0

/* Of include/uapi/linux/bpf.h, which never changes its numbers. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };
enum { BPF_F_NO_PREALLOC = 1 };
enum { BPF_F_CURRENT_CPU = 0xffffffffULL };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum { BPF_F_USER_STACK = 1 << 8, BPF_F_FAST_STACK_CMP = 1 << 9, BPF_F_REUSE_STACKID = 1 << 10 };

/* Registers at a probe, x86-64: a fixed layout, seen from programs as their context. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di;
	unsigned long orig_ax;
	unsigned long ip, cs, flags, sp, ss;
};

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#endif

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[0];
};

typedef struct {
	int counter;
} atomic_t;

struct mm_struct;

struct signal_struct {
	atomic_t live; /* threads that have not exited */
	int group_exit_code;
	unsigned int flags;
	struct mm_struct *oom_mm; /* set when the OOM killer chose it */
};

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
	struct task_struct *group_leader;
	struct pid *thread_pid;
	unsigned int __state; /* since 5.14 */
	int exit_code;
	struct signal_struct *signal;
};

/* Before 5.14. */
struct task_struct___v5_13 {
	volatile long state;
};

/* ---- host.bpf.c */

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

/* Record of oom:mark_victim: since 6.9, and where backported, with the name. */
struct trace_event_raw_mark_victim {
	__u32 __data_loc_comm;
};

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct inode {
	unsigned long i_ino;
};

struct socket {
	short type;
};

struct socket_alloc {
	struct socket socket; /* first */
	struct inode vfs_inode;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
};

struct sk_buff;

/* ---- pcie.bpf.c */

struct kobject {
	const char *name;
};

struct device {
	struct kobject kobj;
};

struct pci_dev {
	unsigned short vendor;
	unsigned short device;
	struct device dev;
};

struct page;

struct scatterlist {
	unsigned long page_link;
	unsigned int length;
};

struct sg_table {
	struct scatterlist *sgl;
	unsigned int orig_nents;
};

struct irqaction;

/* Record of ras:aer_event. */
struct trace_event_raw_aer_event {
	__u32 __data_loc_dev_name;
	__u32 status;
	__u8 severity;
};

/* ---- rdma.bpf.c: types of the module ib_core */

struct ib_device {
	char name[64];
};

struct ib_qp {
	struct ib_device *device;
	__u32 qp_num;
};

enum ib_event_type { IB_EVENT_CQ_ERR };

struct ib_event {
	struct ib_device *device;
	union {
		struct ib_qp *qp;
		__u32 port_num;
	} element;
	enum ib_event_type event;
};

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

#endif /* __VMLINUX_H__ */
