/* SPDX-License-Identifier: GPL-2.0 */
/* Responses of servers on this machine: moved to the caller of a request that the kernel sent, from the server's own sendmsg, or left to
 * the proxy. */
#ifndef FAIRMESH_RESPOND_H
#define FAIRMESH_RESPOND_H

#include "../lib/parse.h"
#include "receive_queue.h"

/* Both ends are on this machine: then they have the same address, or both are loopback addresses. */
INLINE int is_local(u32 one, u32 other)
{
	u32 loopback = NETWORK32(0x7f000000), mask = NETWORK32(0xff000000);

	return one == other || ((one & mask) == loopback && (other & mask) == loopback);
}

/* A connection that a server accepts, if it is one from this machine: returns whether it is. */
INLINE int connection_of(struct bpf_sock_ops *ops, struct connection *connection)
{
	struct address remote = { { ops->remote_ip6[0], ops->remote_ip6[1], ops->remote_ip6[2], ops->remote_ip6[3] } };
	struct address local = { { ops->local_ip6[0], ops->local_ip6[1], ops->local_ip6[2], ops->local_ip6[3] } };

	connection->proxy_port = NETWORK32(ops->remote_port);
	connection->server_port = ops->local_port;
	if (ops->family == FAMILY_INET || (ops->family == FAMILY_INET6 && is_mapped(remote.word))) {
		connection->proxy_ip = ops->remote_ip4;
		connection->server_ip = ops->local_ip4;
		return is_local(connection->proxy_ip, connection->server_ip);
	}
	if (ops->family != FAMILY_INET6 || remote.word[0] != local.word[0] || remote.word[1] != local.word[1] ||
	    remote.word[2] != local.word[2] || remote.word[3] != local.word[3])
		return 0;
	connection->proxy_ip = connection->server_ip = take_number(&local);
	connection->proxy_port |= OVER_IPV6;
	return connection->proxy_ip != 0;
}

/* A server's connection has ended: its places are free. */
INLINE void end_exchange(struct server *server)
{
	struct connection connection = server->connection;
	struct ends *ends = map_lookup(&exchange_addresses, &connection);

	/* While the proxy has not seen the end, requests are not to be sent on its side either. */
	if (ends && map_lookup(&local_slots, &connection))
		ends->server_cookie = 0;
	else
		map_delete(&exchange_addresses, &connection);
	map_delete(&exchanges, &connection);
}

/* Connections to a server from this machine, in the proxy's network namespace. Runs before the server can accept them, and when they end. */
SEC("sockops") int accepted(struct bpf_sock_ops *ops)
{
	u32 zero = 0;
	struct proxy_config *own = map_lookup(&config, &zero);
	struct bpf_sock *sk = ops->sk;

	if (ops->op == SOCK_OPS_STATE && ops->args[1] == TCP_CLOSE && sk) {
		struct server *ended = sk_storage_get(&servers, sk, 0, 0);
		if (ended)
			end_exchange(ended);
	}
	if (ops->op == SOCK_OPS_LISTEN && sk && asks_for_length())
		sk_storage_get(&left_listeners, sk, 0, F_STORAGE_CREATE);
	if (ops->op != SOCK_OPS_PASSIVE_ESTABLISHED || !sk || !own || own->netns_cookie != netns_cookie(ops))
		return 1;
	if (sk_storage_get(&left_listeners, sk, 0, 0))
		return 1;
	struct connection connection = {};
	struct server *server = connection_of(ops, &connection) ? sk_storage_get(&servers, sk, 0, F_STORAGE_CREATE) : 0;
	if (server) {
		server->connection = connection;
		sock_hash_update(ops, &server_sockets, &connection, 0);
		struct ends ends = { .server = (u64)sk, .server_cookie = socket_cookie(ops) };
		map_update(&exchange_addresses, &connection, &ends, 0);
		map_update(&exchanges, &connection, &zero, 0);
		set_callbacks(ops, STATE_CALLBACK);
	}
	return 1;
}

/* Leaves the rest of the response to the proxy too. */
INLINE int leave_response(struct server *server, struct slot *slot)
{
	server->left = slot->claimed_ns;
	count(RESPONSE_LEFT);
	return SK_PASS;
}

/* Tells the proxy, which looks from time to time, of the call; returns whether it will know. */
INLINE int record_call(struct http *http, struct slot *slot, u32 size)
{
	struct parser *parser = &http->parser;
	u32 load_bytes = parser->load_length, head_bytes = slot->head_bytes;

	/* In one register from its check to its use, for the verifier. */
	asm volatile("" : "+r"(load_bytes));
	if (load_bytes > LOAD_BYTES || probe_read_kernel(slot->load, load_bytes, http->bytes + parser->load_at % REQUEST_BYTES))
		return 0;
	slot->load_bytes = load_bytes;
	slot->status = parser->status;
	slot->body_bytes = size - parser->end;
	slot->finished_ns = time_ns();
	asm volatile("" : "+r"(head_bytes));
	if (head_bytes > REQUEST_BYTES)
		return 0;
	return !ring_output(&completed, slot, __builtin_offsetof(struct slot, request) + head_bytes, F_NO_WAKEUP);
}

/* The call is no longer in flight, with -1, or is again, with 1. */
INLINE void count_call(struct slot *slot, struct link *link, s64 in_flight)
{
	u32 endpoint = slot->endpoint, block_key = endpoint / BLOCK_ENDPOINTS;
	struct hot_block *block = map_lookup(&blocks, &block_key);

	if (block)
		__sync_fetch_and_add(&block->hot[endpoint % BLOCK_ENDPOINTS].counts, in_flight);
	__sync_fetch_and_add(&link->sent, in_flight);
}

/* A response to a request that the proxy sent past TCP goes back in the same way if it is plain and whole, and the proxy has read all that
 * the server has sent before. Whatever else a server sends first, as an informational response, and all that follows, passes TCP. */
INLINE int respond_to_proxy(struct sk_msg_md *message, struct server *server, struct connection *connection)
{
	u32 *exchange = map_lookup(&exchanges, connection);

	struct ends *ends = map_lookup(&exchange_addresses, connection);
	u32 was = exchange ? *exchange : EXCHANGE_CLOSED;
	/* The first that the server sends of a response. */
	if (!ends || was == EXCHANGE_NONE || was == EXCHANGE_CLOSED || __sync_val_compare_and_swap(exchange, was, EXCHANGE_NONE) != was ||
	    was != EXCHANGE_AWAITS)
		return SK_PASS;
	struct tcp_sock *own = to_tcp_sock(message->sk);
	if (!own || !has_read_up_to(ends->proxy, ends->proxy_cookie, own->write_seq))
		return SK_PASS;
	struct http *http = &server->http;
	struct parsed parsed = { .http = http };
	begin_response(http);
	http->parser.of_proxy = 1;
	http->parser.available = copy_message(http, message);
	loop(REQUEST_BYTES, parse_step, &parsed, 0);
	if (!is_plain_response(&http->parser, message->size) ||
	    ((u64)message->data_end - (u64)message->data < message->size && msg_pull_data(message, 0, message->size, 0)))
		return SK_PASS;
	if (msg_redirect_hash(message, &forwarding_sockets, connection, F_INGRESS) == SK_PASS)
		count(FORWARDED_RESPONSE);
	return SK_PASS;
}

SEC("sk_msg") int respond(struct sk_msg_md *message)
{
	if (!message->sk)
		return SK_PASS;
	struct server *server = sk_storage_get(&servers, message->sk, 0, 0);
	if (!server)
		return SK_PASS;
	struct connection connection = server->connection;
	u32 *position = map_lookup(&local_slots, &connection);
	if (!position)
		return respond_to_proxy(message, server, &connection);
	u32 key = *position;
	struct slot *slot = map_lookup(&slots, &key);
	if (!slot || !slot->length || server->left == slot->claimed_ns)
		return SK_PASS;
	u64 cookie = slot->owner;
	if (!slot->is_direct || cookie == SLOT_IDLE || cookie == SLOT_ABSENT)
		return leave_response(server, slot);
	struct link *link = find_link(cookie);
	struct caller_ends *ends = map_lookup(&caller_addresses, &cookie);
	if (!link || !ends || !is_open(ends->caller, cookie))
		return leave_response(server, slot);

	struct http *http = &server->http;
	struct parser *parser = &http->parser;
	struct parsed parsed = { .http = http };
	begin_response(http);
	parser->available = copy_message(http, message);
	loop(REQUEST_BYTES, parse_step, &parsed, 0);
	/* In one piece: the kernel may run out of memory between two, and would have moved the first. */
	if (!is_plain_response(parser, message->size) ||
	    ((u64)message->data_end - (u64)message->data < message->size && msg_pull_data(message, 0, message->size, 0)))
		return leave_response(server, slot);
	/* From here on the proxy does not take the request. */
	u32 length = __sync_lock_test_and_set(&slot->length, 0);
	if (!length)
		return leave_response(server, slot);
	/* Before the call is said to be over: a request that comes then may be answered before this response is moved, and waits for it. */
	begin_move(ends, link, message);
	/* Before the record: the proxy wakes what waits for the end of the call when it reads that. */
	count_call(slot, link, -1);
	if (!record_call(http, slot, message->size)) {
		count_call(slot, link, 1);
		cancel_move(ends);
		__sync_lock_test_and_set(&slot->length, length);
		return leave_response(server, slot);
	}
	end_request(slot);
	if (msg_redirect_hash(message, &caller_sockets, &cookie, F_INGRESS) != SK_PASS) {
		/* The caller is gone; the proxy closes a connection with a response that it did not expect. */
		cancel_move(ends);
		slot->owner = SLOT_ABSENT;
		return SK_PASS;
	}
	slot->owner = SLOT_IDLE;
	count(ANSWERED_DIRECTLY);
	return SK_PASS;
}

#endif
