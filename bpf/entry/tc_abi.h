/* SPDX-License-Identifier: GPL-2.0 */
/* The part of the kernel's interface that programs on packets use, beside that of bpf/lib/kernel_abi.h. */
#ifndef FAIRMESH_TC_ABI_H
#define FAIRMESH_TC_ABI_H

#include "../lib/kernel_abi.h"

enum {
	TC_NEXT = -1, /* the next program, or the network stack */
	TC_SHOT = 2,
	ETHERNET_BYTES = 14,
	PROTOCOL_IPV4 = 0x0800,
	IPPROTO_ICMP = 1,
	TCP_SYN = 2,
	TCP_ACK = 16,
	TCP_TIME_WAIT = 6,
	ICMP_UNREACHABLE = 3,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER_PROBLEM = 12,
	/* Bits of the field, in network byte order: more fragments, and the offset. */
	FRAGMENT_BITS = 0xff3f,
};

struct packet {
	u32 length, type, mark, queue_mapping;
	u32 protocol; /* network byte order */
	u32 has_vlan, vlan_tci, vlan_protocol;
	u32 priority, ingress_interface, interface;
};

/* Fields are in network byte order. */
struct ipv4_header {
	u8 version_length, service;
	u16 length, id, fragment;
	u8 ttl, protocol;
	u16 checksum;
	u32 source, destination;
};

struct tcp_header {
	u16 source, destination;
	u32 sequence, acknowledgment;
	u8 offset, flags;
	u16 window, checksum, urgent;
};

struct icmp_header {
	u8 type, code;
	u16 checksum;
	u32 rest;
};

struct ipv4_tuple {
	u32 source, destination;
	u16 source_port, destination_port;
};

struct next_hop {
	u32 family;
	u32 address[4];
};

static long (*store_bytes)(struct packet *packet, u32 offset, const void *from, u32 length, u64 flags) = (void *)9;
static long (*l3_checksum_replace)(struct packet *packet, u32 offset, u64 from, u64 to, u64 size) = (void *)10;
static long (*load_bytes)(const struct packet *packet, u32 offset, void *to, u32 length) = (void *)26;
static struct bpf_sock *(*lookup_tcp)(void *context, struct ipv4_tuple *tuple, u32 size, u64 namespace, u64 flags) = (void *)99;
static long (*check_syn_cookie)(void *sock, void *ip, u32 ip_length, struct tcp_header *tcp, u32 tcp_length) = (void *)100;
static long (*redirect_neighbour)(u32 interface, struct next_hop *next, int size, u64 flags) = (void *)152;

#endif
