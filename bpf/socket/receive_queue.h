/* SPDX-License-Identifier: GPL-2.0 */
/* What a program has received and not read. Data that was moved to a socket lies in a queue beside that of TCP. */
#ifndef FAIRMESH_RECEIVE_QUEUE_H
#define FAIRMESH_RECEIVE_QUEUE_H

#include "../lib/maps.h"

/* Kinds of information that the loader finds out about a field of the kernel that runs (BPF_FIELD_… of libbpf). */
enum { FIELD_BYTE_OFFSET = 0, FIELD_SHIFT_LEFT = 4, FIELD_SHIFT_RIGHT = 5 };

/* Parts of structures of the kernel's own, at the offsets that they have in the kernel that loads the programs (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct list_head {
	struct list_head *next, *prev;
};

struct sk_psock {
	struct list_head ingress_msg;
};

struct sk_msg_sg {
	u32 size;
};

struct sk_msg {
	struct sk_msg_sg sg;
	void *data, *sk;
};

struct sock_common {
	struct {
		s64 counter;
	} skc_cookie;
	volatile u8 skc_state;
	u8 skc_ipv6only : 1;
};

struct file {
	u32 f_flags;
};

struct socket {
	struct file *file;
};

typedef struct {
	int owned;
} socket_lock_t;

struct sock {
	struct sock_common __sk_common;
	socket_lock_t sk_lock;
	struct socket *sk_socket;
	void *sk_user_data;
};

struct task_struct {
	char comm[16];
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

/* Whether the program that has this socket waits within its calls of it. */
INLINE int is_blocking(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = to_tcp_sock(sk);

	if (!tcp)
		return 0;
	struct socket *own = tcp->inet_conn.icsk_inet.sk.sk_socket;
	if (!own)
		return 0;
	struct file *file = own->file;
	return file && !(file->f_flags & NON_BLOCKING);
}

/* Whether this socket can make no connections over IPv4: with IPV6_V6ONLY, or bound to an IPv6 address. */
INLINE int is_ipv6_only(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = to_tcp_sock(sk);

	if (!tcp)
		return 1;
	struct sock_common *common = &tcp->inet_conn.icsk_inet.sk.__sk_common;
	const u8 *at = (const u8 *)common + __builtin_preserve_field_info(common->skc_ipv6only, FIELD_BYTE_OFFSET);
	u64 field = 0;
	u8 byte = 0;

	if (probe_read_kernel(&byte, sizeof(byte), at))
		return 1;
	field = byte;
	field <<= __builtin_preserve_field_info(common->skc_ipv6only, FIELD_SHIFT_LEFT);
	return field >> __builtin_preserve_field_info(common->skc_ipv6only, FIELD_SHIFT_RIGHT) != 0;
}

/* Notes, before it is said of a response that it was sent, that this message is about to be moved to the caller. The kernel moves it
 * after the program has returned, and may run others before that. */
INLINE void begin_move(struct caller_ends *ends, struct link *link, struct sk_msg_md *message)
{
	ends->data = (u64)message->data;
	ends->size = message->size;
	ends->sender = (u64)message->sk;
	ends->message = (u64)message;
	__sync_fetch_and_add(&link->moved, 1);
}

/* It is not moved after all. It stays counted: a look that has just seen the count notes all of it as read, and would hide the next move
 * from all later looks if that reached the same count. */
INLINE void cancel_move(struct caller_ends *ends)
{
	ends->message = 0;
}

/* Whether the last message to be moved to the caller has not been moved yet: it lies on the stack of the task that sends it, and has the
 * size and the data that it had until it is moved. Afterwards something else lies there: for a moment it may be a message of the same
 * size at the same place, and then this says so wrongly. Some kernels (6.18.44) clear `sk` when the program returns, before the move;
 * others keep it. */
OWN_FRAME int is_moving(struct caller_ends *ends)
{
	struct sk_msg *message = (struct sk_msg *)ends->message;
	u64 data = 0, sender = 0;
	u32 size = 0;

	if (!message || probe_read_kernel(&size, sizeof(size), &message->sg.size) ||
	    probe_read_kernel(&data, sizeof(data), &message->data) || probe_read_kernel(&sender, sizeof(sender), &message->sk))
		return 0;
	return size == ends->size && data == ends->data && (!sender || sender == ends->sender);
}

/* Whether the socket with this cookie, if it still lies at this address, has something that was moved to it and not read. */
OWN_FRAME int has_unread(u64 address, u64 cookie)
{
	struct sock *sk = (struct sock *)address;
	u64 found = 0, data = 0;

	if (probe_read_kernel(&data, sizeof(data), &sk->sk_user_data) || !(data & USER_DATA_PSOCK))
		return 0;
	int is_unread = has_moved(data);
	return !probe_read_kernel(&found, sizeof(found), &sk->__sk_common.skc_cookie) && found == cookie && is_unread;
}

/* Whether something may be in the midst of this socket's queues: what is moved has left its message before it is in the queue. */
INLINE int is_locked(u64 address)
{
	struct sock *sk = (struct sock *)address;
	int owned = 0;

	return !probe_read_kernel(&owned, sizeof(owned), &sk->sk_lock.owned) && owned;
}

enum moved_state { MOVED_READ, MOVED_UNREAD, MOVING };

/* Notes it if the caller has read all that was moved to it, or is about to be. `is_own` is 1 in a send of the caller, which has its socket
 * locked: others find out whether it is. */
INLINE enum moved_state note_read(struct link *link, u64 cookie, int is_own)
{
	u64 moved = __sync_fetch_and_add(&link->moved, 0);

	if (moved == link->read)
		return MOVED_READ;
	struct caller_ends *ends = map_lookup(&caller_addresses, &cookie);
	/* In this order: what is moved meanwhile is unread. */
	if (ends && (is_moving(ends) || (!is_own && is_locked(ends->caller))))
		return MOVING;
	if (ends && has_unread(ends->caller, cookie))
		return MOVED_UNREAD;
	link->read = moved;
	return MOVED_READ;
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

/* Whether the connection of the socket with this cookie is open on both sides, and the socket still lies at this address. */
OWN_FRAME int is_open(u64 address, u64 cookie)
{
	struct sock *sk = (struct sock *)address;
	u64 found = 0;
	u8 state = 0;

	if (probe_read_kernel(&state, sizeof(state), (void *)&sk->__sk_common.skc_state) || state != TCP_ESTABLISHED)
		return 0;
	return !probe_read_kernel(&found, sizeof(found), &sk->__sk_common.skc_cookie) && found == cookie;
}

/* The same of the socket with this cookie, if it still lies at this address, and its connection is open. */
OWN_FRAME int has_read_all(u64 address, u64 cookie, u64 bytes)
{
	struct tcp_sock *tcp = (struct tcp_sock *)address;
	struct sock *sk = &tcp->inet_conn.icsk_inet.sk;
	u64 received = 0, data = 0;
	u32 copied = 0, next = 0;

	if (probe_read_kernel(&received, sizeof(received), &tcp->bytes_received) ||
	    probe_read_kernel(&copied, sizeof(copied), &tcp->copied_seq) ||
	    probe_read_kernel(&next, sizeof(next), &tcp->rcv_nxt) ||
	    probe_read_kernel(&data, sizeof(data), &sk->sk_user_data))
		return 0;
	if (received != bytes || copied != next || !(data & USER_DATA_PSOCK) || has_moved(data))
		return 0;
	return is_open(address, cookie);
}

/* A sequence number that is none: how much was written is not known, and so whether some is on its way. */
#define WRITTEN_UNKNOWN (~0ULL)

/* Whether the socket with this cookie, if it still lies at this address and its connection is open, has received all that was written to
 * the other end of it up to this sequence number, and its program has read all that came in whatever way. To one that is closing, what is
 * moved would be lost, and to one that is closed, the sender would get EPIPE. */
OWN_FRAME int has_read_up_to(u64 address, u64 cookie, u64 written)
{
	struct tcp_sock *tcp = (struct tcp_sock *)address;
	struct sock *sk = &tcp->inet_conn.icsk_inet.sk;
	u64 data = 0;
	u32 copied = 0, next = 0;

	if (!cookie || probe_read_kernel(&copied, sizeof(copied), &tcp->copied_seq) ||
	    probe_read_kernel(&next, sizeof(next), &tcp->rcv_nxt) ||
	    probe_read_kernel(&data, sizeof(data), &sk->sk_user_data))
		return 0;
	if ((written != WRITTEN_UNKNOWN && next != written) || copied != next || !(data & USER_DATA_PSOCK) || has_moved(data))
		return 0;
	return is_open(address, cookie);
}

#endif
