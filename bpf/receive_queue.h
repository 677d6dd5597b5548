/* SPDX-License-Identifier: GPL-2.0 */
/* What a program has received and not read. Data that was moved to a socket lies in a queue beside that of TCP. */
#ifndef FAIRMESH_RECEIVE_QUEUE_H
#define FAIRMESH_RECEIVE_QUEUE_H

#include "maps.h"

/* Parts of structures of the kernel's own, at the offsets that they have in the kernel that loads the programs (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct list_head {
	struct list_head *next, *prev;
};

struct sk_psock {
	struct list_head ingress_msg;
};

struct sock {
	void *sk_user_data;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 copied_seq, rcv_nxt;
	u64 bytes_received;
};
#pragma clang attribute pop

enum receive_state { READ_ALL, NOT_ALL_CAME, UNREAD };

/* Whether so many bytes have come to a socket, which lies in a map, over its connection, and its program has read all that came. */
OWN_FRAME enum receive_state receive_state(struct bpf_sock *sk, u64 bytes)
{
	struct tcp_sock *tcp = to_tcp_sock(sk);

	if (!tcp)
		return NOT_ALL_CAME;
	if (tcp->rcv_nxt != tcp->copied_seq)
		return UNREAD;
	/* The low bits say what it points to. */
	u64 data = (u64)tcp->inet_conn.icsk_inet.sk.sk_user_data;
	if (!(data & USER_DATA_PSOCK))
		return NOT_ALL_CAME;
	struct list_head *queue = &((struct sk_psock *)(data & ~7ULL))->ingress_msg, *first = 0;
	if (probe_read_kernel(&first, sizeof(first), &queue->next) || first != queue)
		return UNREAD;
	return tcp->bytes_received == bytes ? READ_ALL : NOT_ALL_CAME;
}

#endif
