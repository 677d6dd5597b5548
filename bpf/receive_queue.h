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

struct sock_common {
	struct {
		s64 counter;
	} skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
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
	u32 copied_seq, rcv_nxt, write_seq;
	u64 bytes_received;
};
#pragma clang attribute pop

enum receive_state { READ_ALL, NOT_ALL_CAME, UNREAD };

/* Whether something lies in the queue of what was moved to the socket, by its user data. The low bits say what that points to. */
INLINE int has_moved(u64 data)
{
	struct list_head *queue = &((struct sk_psock *)(data & ~7ULL))->ingress_msg, *first = 0;

	return probe_read_kernel(&first, sizeof(first), &queue->next) || first != queue;
}

/* Whether so many bytes have come to a socket, which lies in a map, over its connection, and its program has read all that came. */
OWN_FRAME enum receive_state receive_state(struct bpf_sock *sk, u64 bytes)
{
	struct tcp_sock *tcp = to_tcp_sock(sk);

	if (!tcp)
		return NOT_ALL_CAME;
	if (tcp->rcv_nxt != tcp->copied_seq)
		return UNREAD;
	u64 data = (u64)tcp->inet_conn.icsk_inet.sk.sk_user_data;
	if (!(data & USER_DATA_PSOCK))
		return NOT_ALL_CAME;
	if (has_moved(data))
		return UNREAD;
	return tcp->bytes_received == bytes ? READ_ALL : NOT_ALL_CAME;
}

/* The same of the socket with this cookie, if it still lies at this address. */
OWN_FRAME int has_read_all(u64 address, u64 cookie, u64 bytes)
{
	struct tcp_sock *tcp = (struct tcp_sock *)address;
	struct sock *sk = &tcp->inet_conn.icsk_inet.sk;
	u64 found = 0, received = 0, data = 0;
	u32 copied = 0, next = 0;

	if (probe_read_kernel(&received, sizeof(received), &tcp->bytes_received) ||
	    probe_read_kernel(&copied, sizeof(copied), &tcp->copied_seq) ||
	    probe_read_kernel(&next, sizeof(next), &tcp->rcv_nxt) ||
	    probe_read_kernel(&data, sizeof(data), &sk->sk_user_data))
		return 0;
	if (received != bytes || copied != next || !(data & USER_DATA_PSOCK) || has_moved(data))
		return 0;
	return !probe_read_kernel(&found, sizeof(found), &sk->__sk_common.skc_cookie) && found == cookie;
}

/* A sequence number that is none: how much was written is not known, and so whether some is on its way. */
#define WRITTEN_UNKNOWN (~0ULL)

/* Whether the socket with this cookie, if it still lies at this address, has received all that was written to the other end of its
 * connection up to this sequence number, and its program has read all that came in whatever way. */
OWN_FRAME int has_read_up_to(u64 address, u64 cookie, u64 written)
{
	struct tcp_sock *tcp = (struct tcp_sock *)address;
	struct sock *sk = &tcp->inet_conn.icsk_inet.sk;
	u64 found = 0, data = 0;
	u32 copied = 0, next = 0;

	if (!cookie || probe_read_kernel(&copied, sizeof(copied), &tcp->copied_seq) ||
	    probe_read_kernel(&next, sizeof(next), &tcp->rcv_nxt) ||
	    probe_read_kernel(&data, sizeof(data), &sk->sk_user_data))
		return 0;
	if ((written != WRITTEN_UNKNOWN && next != written) || copied != next || !(data & USER_DATA_PSOCK) || has_moved(data))
		return 0;
	return !probe_read_kernel(&found, sizeof(found), &sk->__sk_common.skc_cookie) && found == cookie;
}

#endif
