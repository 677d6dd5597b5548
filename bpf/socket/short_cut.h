/* SPDX-License-Identifier: GPL-2.0 */
/* The short cut: responses of the proxy, moved to the caller from the proxy's own sendmsg, and its requests, moved to a server on this
 * machine. Neither passes TCP. */
#ifndef FAIRMESH_SHORT_CUT_H
#define FAIRMESH_SHORT_CUT_H

#include "../lib/parse.h"
#include "receive_queue.h"

/* For the next request of the caller. */
INLINE void note_proxy(struct bpf_sock *sk, struct caller_ends *ends)
{
	struct tcp_sock *own = sk ? to_tcp_sock(sk) : 0;

	if (!own)
		return;
	ends->proxy = (u64)own;
	ends->proxy_cookie = own->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter;
}

/* Only a response that is sent whole takes it, and only to a caller that has read all before: data then never lies in both of its
 * receive queues, and the one that has no window holds one response at most. What follows waits in the proxy until this has been read. */
SEC("sk_msg") int short_cut(struct sk_msg_md *message)
{
	struct caller_address address = {
		.netns_cookie = netns_cookie(message),
		.ip = message->remote_ip4,
		.port = NETWORK32(message->remote_port),
	};
	u32 *position = map_lookup(&proxy_links, &address);

	if (!position)
		return SK_PASS;
	u32 key = *position, size = message->size;
	struct link *link = map_lookup(&links, &key);
	if (!link || !link->cookie)
		return SK_PASS;
	u64 cookie = link->cookie;
	struct caller_ends *ends = map_lookup(&caller_addresses, &cookie);
	if (!ends || size > RESPONSE_BYTES)
		return SK_PASS;
	note_proxy(message->sk, ends);
	/* Good for one send: the next one may be of another response. */
	if (__sync_lock_test_and_set(&link->length, 0) != size)
		return SK_PASS;
	/* In one piece: the kernel may run out of memory between two, and would have moved the first. */
	if ((u64)message->data_end - (u64)message->data < size && msg_pull_data(message, 0, size, 0))
		return SK_PASS;
	if (link->pipelines || !has_read_all(ends->caller, cookie, link->received - link->diverted - size))
		return SK_PASS;
	if (msg_redirect_hash(message, &caller_sockets, &cookie, F_INGRESS) != SK_PASS)
		return SK_PASS;
	begin_move(ends, link, message);
	link->diverted += size;
	count(SHORT_CUT);
	return SK_PASS;
}

/* Whether the server has read all that the proxy has sent on this connection: the order of bytes is then the same whichever way they go. */
OWN_FRAME int server_has_read_all(struct bpf_sock *sk, struct connection *connection)
{
	struct ends *ends = map_lookup(&exchange_addresses, connection);
	struct tcp_sock *own = to_tcp_sock(sk);

	if (!ends || !own)
		return 0;
	/* For the response. */
	ends->proxy = (u64)own;
	ends->proxy_cookie = own->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter;
	return has_read_up_to(ends->server, ends->server_cookie, own->write_seq);
}

/* The server's address has a number where the server has accepted the connection. */
OWN_FRAME u32 number_of_server(struct sk_msg_md *message)
{
	struct address server = {
		{ message->remote_ip6[0], message->remote_ip6[1], message->remote_ip6[2], message->remote_ip6[3] }
	};

	return is_mapped(server.word) ? 0 : find_number(&server);
}

/* The connection on which the proxy sends this. */
INLINE struct connection forwarding_connection(struct sk_msg_md *message)
{
	struct connection connection = {
		.proxy_ip = message->local_ip4,
		.server_ip = message->remote_ip4,
		.proxy_port = message->local_port,
		.server_port = NETWORK32(message->remote_port),
	};
	u32 number = message->family == FAMILY_INET6 ? number_of_server(message) : 0;

	if (number) {
		connection.proxy_ip = connection.server_ip = number;
		connection.proxy_port |= OVER_IPV6;
	}
	return connection;
}

/* A request that the proxy sends itself, if it is plain and whole. With a head of another kind, the connection may carry something else
 * than requests from then on, as after an upgrade. */
SEC("sk_msg") int forward(struct sk_msg_md *message)
{
	struct connection connection = forwarding_connection(message);
	u32 *exchange = map_lookup(&exchanges, &connection);
	struct bpf_sock *sk = message->sk;

	if (!exchange || *exchange >= EXCHANGE_PARTS || !sk || !server_has_read_all(sk, &connection))
		return SK_PASS;
	struct server *own = sk_storage_get(&servers, sk, 0, F_STORAGE_CREATE);
	if (!own)
		return SK_PASS;
	struct http *http = &own->http;
	struct parser *parser = &http->parser;
	struct parsed parsed = { .http = http };
	__builtin_memset(parser, 0, sizeof(*parser));
	parser->of_proxy = 1;
	parser->available = copy_message(http, message);
	loop(REQUEST_BYTES, parse_step, &parsed, 0);
	if (parser->state >= LINE_END && (!parser->end || parser->refused))
		*exchange = EXCHANGE_CLOSED;
	u32 whole = parser->end + parser->content_length;
	if (parser->end && !parser->refused && whole > message->size)
		*exchange = EXCHANGE_PARTS;
	if (!parser->end || parser->refused || whole != message->size || whole > MOST_REQUEST_BYTES)
		return SK_PASS;
	/* In one piece: the kernel may run out of memory between two, and would have moved the first. */
	if ((u64)message->data_end - (u64)message->data < whole && msg_pull_data(message, 0, whole, 0))
		return SK_PASS;
	/* Before the server can respond. */
	__sync_lock_test_and_set(exchange, EXCHANGE_AWAITS);
	if (msg_redirect_hash(message, &server_sockets, &connection, F_INGRESS) != SK_PASS) {
		__sync_lock_test_and_set(exchange, EXCHANGE_NONE);
		return SK_PASS;
	}
	count(FORWARDED_REQUEST);
	return SK_PASS;
}

/* The proxy asks by the cookie of a caller whether that has read what was moved to it, before it sends what comes next. */
SEC("sk_msg") int look(struct sk_msg_md *message)
{
	u64 *asked = message->data;

	if ((void *)(asked + 1) > message->data_end)
		return SK_PASS;
	u64 cookie = *asked;
	struct link *link = find_link(cookie);
	if (link)
		note_read(link, cookie, 0);
	return SK_PASS;
}

#endif
