/* SPDX-License-Identifier: GPL-2.0 */
/* Requests: sent on a pooled connection of the proxy from the caller's own sendmsg, or left to the proxy. */
#ifndef FAIRMESH_SEND_H
#define FAIRMESH_SEND_H

#include "receive_queue.h"
#include "../lib/route.h"

/* Leaves what is sent to the proxy, which receives it over the caller's connection. */
INLINE int leave(struct caller *caller, struct sk_msg_md *message, u32 why)
{
	caller->passed += message->size;
	count(why);
	return SK_PASS;
}

/* Leaves a whole request to the proxy, which is moved into the queue of its socket once the program returns, past TCP: if the proxy has
 * read all that the caller has sent before. Of what follows before it has read this, the order is kept since it reads that queue first. */
INLINE int leave_whole(struct caller *caller, struct sk_msg_md *message, u32 why)
{
	u64 cookie = caller->cookie;
	u32 size = message->size;
	struct caller_ends *ends = map_lookup(&caller_addresses, &cookie);
	struct tcp_sock *own = message->sk ? to_tcp_sock(message->sk) : 0;

	leave(caller, message, why);
	if (!ends || !own || !ends->proxy || !has_read_up_to(ends->proxy, ends->proxy_cookie, own->write_seq))
		return SK_PASS;
	/* In one piece: the kernel may run out of memory between two, and would have moved the first. */
	if ((u64)message->data_end - (u64)message->data < size && msg_pull_data(message, 0, size, 0))
		return SK_PASS;
	if (msg_redirect_hash(message, &proxy_sockets, &cookie, F_INGRESS) == SK_PASS)
		count(MOVED_TO_PROXY);
	return SK_PASS;
}

/* The service of the host that a request names, in the spelling that the proxy published. */
INLINE struct service *find_service(struct caller *caller)
{
	struct parser *parser = &caller->http.parser;
	u32 length = parser->host_length;

	if (!length || length > HOST_BYTES)
		return 0;
#pragma unroll
	for (u32 i = 0; i < HOST_BYTES / 8; i++) {
		u64 word = *(u64 *)(caller->http.bytes + (parser->host_at + i * 8) % REQUEST_BYTES);
		if (length <= i * 8)
			word = 0;
		else if (length < i * 8 + 8)
			word &= (1ULL << (length - i * 8) * 8) - 1;
		caller->host.word[i] = word;
	}
	return map_lookup(&services, &caller->host);
}

struct claim {
	u64 cookie;
	u32 endpoint, found, slot;
	u32 is_large; /* the request can be moved to a socket of a server alone */
	u32 lacks_server; /* whether a connection was passed over that needs a permit, and does not lead to such a socket */
	u32 usable, unusable; /* whether there are connections that the request could take, and others */
};

/* Whether the server closes connections on which it has just responded. What is moved to a socket that is being closed is refused with
 * EPIPE, by which many programs end; over TCP, the proxy learns of it. */
INLINE int closes_soon(struct slot *slot)
{
	u32 key = slot->endpoint;
	struct endpoint *endpoint = map_lookup(&endpoints, &key);

	return endpoint && time_ns() / NANOS < endpoint->closes_until;
}

/* Whether the connection leads to a socket of a server on this machine. Of a slot that is not claimed this is a guess, since the proxy may
 * be giving it another connection. */
INLINE int leads_to_server(struct slot *slot)
{
	struct connection connection = slot->connection;

	return connection.proxy_port && map_lookup(&exchange_addresses, &connection);
}

/* Whether the request can take this connection. A large request is moved to the socket of a server or not sent at all. A request that
 * needs a permit may reach such a socket over TCP too, within the machine. */
INLINE int is_usable(struct claim *claim, struct slot *slot)
{
	if (!claim->is_large && !slot->permit)
		return 1;
	return leads_to_server(slot) && !(claim->is_large && closes_soon(slot));
}

/* Claims the connection of one entry of the endpoint, and ends the loop with 1, if it is idle and the request can take it. */
static long claim_slot(u32 at, struct claim *claim)
{
	struct endpoint *endpoint = map_lookup(&endpoints, &claim->endpoint);
	u32 key = endpoint ? *(volatile u32 *)&endpoint->slot[at % ENDPOINT_SLOTS] : 0;

	if (!key)
		return 0;
	key--;
	struct slot *slot = map_lookup(&slots, &key);
	if (!slot)
		return 0;
	if (!is_usable(claim, slot)) {
		claim->lacks_server |= slot->permit && !leads_to_server(slot);
		claim->unusable = 1;
		return 0;
	}
	claim->usable = 1;
	if (slot->owner != SLOT_IDLE || __sync_val_compare_and_swap(&slot->owner, SLOT_IDLE, claim->cookie) != SLOT_IDLE)
		return 0;
	if (slot->endpoint != claim->endpoint) {
		/* It has come to lead elsewhere since the entry was read. */
		slot->owner = SLOT_IDLE;
		return 0;
	}
	claim->found = 1;
	claim->slot = key;
	return 1;
}

/* The endpoint that was picked, and where the request counts. */
struct target {
	u32 endpoint;
	struct hot *hot;
	u32 *round_robin;
	u32 turns; /* 1 where the policy rotates */
	u32 is_direct; /* the response may go to the caller directly */
	u64 seed;
};

/* Leaves a copy of the request to the proxy, which repeats it where the library would: the head of a larger one, which is not repeated. */
INLINE int keep_request(struct caller *caller, struct slot *slot, u32 length, struct target *target)
{
	u32 kept = length > REQUEST_BYTES ? caller->http.parser.end : length;

	/* In one register from its check to its use, for the verifier. */
	asm volatile("" : "+r"(kept));
	if (!kept || kept > REQUEST_BYTES || probe_read_kernel(slot->request, kept, caller->http.bytes))
		return 0;
	slot->claimed_ns = time_ns();
	slot->seed = target->seed;
	slot->is_direct = target->is_direct;
	slot->head_bytes = caller->http.parser.end;
	return 1;
}

/* Whether the response to a request that the kernel sent has not been received. If so, it goes through the proxy, which keeps it before
 * that to what is sent now. */
INLINE int holds_slot(struct caller *caller, struct link *link)
{
	u32 key = caller->slot;
	struct slot *slot = map_lookup(&slots, &key);

	if (!slot || slot->owner != caller->cookie)
		return 0;
	slot->is_direct = 0;
	link->pipelines = 1;
	return 1;
}

/* Whether the response may go to the caller past the proxy: all that the proxy has to send has been received, and all that was received
 * has been read. With data in the two receive queues at once, a reader that waits for events would miss some. */
INLINE int may_be_direct(struct sk_msg_md *message, struct link *link)
{
	if (link->pipelines)
		return 0;
	/* The proxy writes it after `received`. */
	u64 answered = __sync_fetch_and_add(&link->requests, 0);
	enum receive_state state = receive_state(message->sk, link->received - link->diverted);
	if (state == UNREAD)
		link->pipelines = 1;
	return state == READ_ALL && answered == link->sent;
}

/* Picks the endpoint of a request; returns 0, or why that is left to the proxy. */
OWN_FRAME int pick_target(struct service *service, struct target *target)
{
	u32 position = service->position;
	u64 id = service->id;
	struct policy_buffers *buffers = map_lookup(&policies, &position);

	if (!buffers)
		return POLICY_CHANGED;
	u64 generation = __sync_fetch_and_add(&buffers->generation, 0);
	struct policy *policy = &buffers->buffer[generation & 1];
	u32 block_key = policy->block;
	struct hot_block *block = map_lookup(&blocks, &block_key);
	if (policy->id != id || !block)
		return POLICY_CHANGED;
	struct pick pick = { .policy = policy, .block = block };
	pick.random = target->seed;
	pick.now = time_ns() - policy->origin;
	pick.tick = pick_tick(policy, pick.now);
	u32 picked = pick_position(&pick);
	u32 index = policy->candidates[picked % BLOCK_ENDPOINTS].index % BLOCK_ENDPOINTS;
	u32 turns = policy->policy == POLICY_ROUND_ROBIN;
	if (__sync_fetch_and_add(&buffers->generation, 0) != generation)
		return POLICY_CHANGED;
	if (pick.ejected)
		return ENDPOINT_EJECTED;
	target->endpoint = block_key * BLOCK_ENDPOINTS + index;
	target->hot = &block->hot[index];
	target->round_robin = &block->round_robin;
	target->turns = turns;
	return 0;
}

/* Notes by which policy the endpoint is about to be picked; returns 0, or why the request is left to the proxy. */
INLINE int note_policy(struct caller *caller, u32 position)
{
	struct policy_buffers *buffers = map_lookup(&policies, &position);

	if (!buffers)
		return POLICY_CHANGED;
	caller->position = position;
	caller->generation = __sync_fetch_and_add(&buffers->generation, 0);
	return 0;
}

/* Routes a request, and picks its endpoint, by one policy of the service; returns 0, or why that is left to the proxy. */
INLINE int decide(struct caller *caller, struct service *named, struct target *target)
{
	struct service service = { .id = named->id, .position = named->position };
	u32 position = service.position;
	u64 id = service.id;
	struct policy_buffers *buffers = map_lookup(&policies, &position);

	if (!buffers)
		return POLICY_CHANGED;
	u64 generation = __sync_fetch_and_add(&buffers->generation, 0);
	struct policy *policy = &buffers->buffer[generation & 1];
	if (policy->id != id)
		return POLICY_CHANGED;
	target->seed = (u64)prandom_u32() << 32 | prandom_u32();
	u32 length = caller->http.parser.end + caller->http.parser.content_length;
	/* Of a large one, there is nothing to send again. */
	int why = length > REQUEST_BYTES && policy->repeats_any ? TOO_LARGE : 0;
	if (!why)
		why = route_request(&caller->http, policy, target->seed, &service);
	if (!why)
		why = note_policy(caller, service.position);
	if (!why)
		why = pick_target(&service, target);
	return __sync_fetch_and_add(&buffers->generation, 0) == generation ? why : POLICY_CHANGED;
}

/* An idle connection to the endpoint that the request can take; returns 0, or why there is none. Another connection is
 * wanted only where the request could take that: where none is open, this shows once one is. */
OWN_FRAME int claim_connection(struct caller *caller, u32 endpoint_key)
{
	u32 length = caller->http.parser.end + caller->http.parser.content_length;
	struct claim claim = { .cookie = caller->cookie, .endpoint = endpoint_key, .is_large = length > REQUEST_BYTES };

	loop(ENDPOINT_SLOTS, claim_slot, &claim, 0);
	if (claim.found) {
		caller->slot = claim.slot;
		return 0;
	}
	if (claim.unusable && !claim.usable)
		return claim.lacks_server ? NOT_PERMITTED : TOO_LARGE;
	struct endpoint *endpoint = map_lookup(&endpoints, &endpoint_key);
	if (endpoint)
		endpoint->wanted = 1;
	return NO_IDLE_CONNECTION;
}

/* Counts a request in the caller's cgroup; returns 0, or why it is left to the proxy. */
INLINE int enter_group(struct caller *caller)
{
	u32 position = caller->group;
	struct group *group = map_lookup(&groups, &position);

	if (!group)
		return GROUP_FULL;
	u32 most = group->most ? group->most : GROUP_REQUESTS;
	if (__sync_fetch_and_add(&group->in_flight, 1) < most)
		return 0;
	__sync_fetch_and_add(&group->in_flight, -1);
	return GROUP_FULL;
}

/* Whether the policy by which the endpoint was picked is in force. If not, the endpoint's position may be that of one of another service by
 * now, and so the connection that was claimed. */
INLINE int is_current(struct caller *caller)
{
	u32 position = caller->position;
	struct policy_buffers *buffers = map_lookup(&policies, &position);

	return buffers && __sync_fetch_and_add(&buffers->generation, 0) == caller->generation;
}

INLINE void unclaim(struct caller *caller)
{
	u32 key = caller->slot;
	struct slot *slot = map_lookup(&slots, &key);

	if (slot)
		slot->owner = SLOT_IDLE;
}

/* Copies the fields of this permit, which are added to the request, if the permit is in force for this endpoint; returns 0, or why the
 * request is left to the proxy. */
OWN_FRAME int copy_permit(struct caller *caller, u32 position, u32 endpoint_key)
{
	struct permit *permit = map_lookup(&permits, &position);

	if (!permit)
		return NOT_PERMITTED;
	u64 generation = __sync_fetch_and_add(&permit->generation, 0);
	u64 until = permit->until;
	u32 length = permit->length, of = permit->endpoint;
	if (probe_read_kernel(caller->http.headers, PERMIT_BYTES, permit->fields))
		return NOT_PERMITTED;
	if (__sync_fetch_and_add(&permit->generation, 0) != generation || generation & 1 || of != endpoint_key || time_ns() >= until)
		return NOT_PERMITTED;
	if (!length || length > PERMIT_BYTES || length % 8)
		return NOT_PERMITTED;
	caller->fields = length;
	return 0;
}

/* Takes the permit that the claimed connection needs; returns 0, or why the request is left to the proxy. The slot says whether the
 * connection needs one: the policy of the endpoint may have changed since the connection was opened. */
INLINE int take_permit(struct caller *caller, u32 endpoint_key)
{
	u32 key = caller->slot;
	struct slot *slot = map_lookup(&slots, &key);

	caller->fields = 0;
	if (!slot)
		return NOT_PERMITTED;
	u32 position = slot->permit;
	if (!position)
		return 0;
	/* The listener adds the address of the caller to `x-forwarded-for`, and the kernel does not. */
	if (caller->http.parser.names_client)
		return NOT_PLAIN;
	return copy_permit(caller, position - 1, endpoint_key);
}

/* Counts the request, and claims a connection for it; returns 0, or why it is left to the proxy. */
INLINE int begin_request(struct caller *caller, u32 endpoint_key)
{
	int why = enter_group(caller);

	if (why)
		return why;
	why = claim_connection(caller, endpoint_key);
	int is_claimed = !why;
	if (!why)
		why = take_permit(caller, endpoint_key);
	if (!why && !is_current(caller))
		why = POLICY_CHANGED;
	if (why && is_claimed)
		unclaim(caller);
	if (why)
		leave_group(caller->group);
	return why;
}

enum moved { LEFT_HERE, MOVED, BROKEN };

/* Takes the fields out of the head again: LEFT_HERE, or BROKEN where the kernel does not. */
INLINE enum moved remove_fields(struct sk_msg_md *message, u32 at, u32 length)
{
	return msg_pop_data(message, at, length, 0) ? BROKEN : LEFT_HERE;
}

/* Adds the fields of the permit to the end of the request's head: MOVED where that is done. The message is one piece then: all of it is
 * sent, or nothing where the kernel is out of memory. */
OWN_FRAME int add_fields(struct sk_msg_md *message, struct caller *caller, u32 size)
{
	u32 length = caller->fields, at = caller->http.parser.end - 2;
	u64 *fields = (u64 *)caller->http.headers;

	/* In one register from its check to its use, for the verifier. */
	asm volatile("" : "+r"(at));
	if (length > PERMIT_BYTES || at > REQUEST_BYTES || msg_push_data(message, at, length, 0))
		return LEFT_HERE;
	if (msg_pull_data(message, 0, size + length, 0))
		return remove_fields(message, at, length);
	u8 *to = (u8 *)message->data + at, *end = message->data_end;
#pragma unroll
	for (u32 i = 0; i < PERMIT_BYTES / 8; i++) {
		if (i * 8 >= length)
			break;
		if (to + i * 8 + 8 > end)
			return remove_fields(message, at, length);
		*(u64 *)(to + i * 8) = fields[i];
	}
	return MOVED;
}

/* Has the request moved into the receive queue of a server on this machine, if that has read all that came before, or else into the
 * connection that leads to the server, once the program returns; a large one into the queue alone, and in one piece: all of it, or nothing
 * where the kernel is out of memory. The queue has no window: so it holds one request at most, also of a server that responds to what it
 * has not read. */
OWN_FRAME enum moved move_request(struct sk_msg_md *message, struct slot *slot, u32 key, struct caller *caller)
{
	u32 size = message->size, length = caller->fields;
	int is_large = size > REQUEST_BYTES;
	struct connection connection = slot->connection;
	struct ends *ends = connection.proxy_port ? map_lookup(&exchange_addresses, &connection) : 0;

	/* The proxy sends it, on another connection. */
	if (ends ? !is_open(ends->server, ends->server_cookie) : !!length)
		return LEFT_HERE;
	int is_moved = ends && !closes_soon(slot) && has_read_up_to(ends->server, ends->server_cookie, WRITTEN_UNKNOWN);
	if (is_large && (!is_moved ||
			 ((u64)message->data_end - (u64)message->data < size && msg_pull_data(message, 0, size, 0))))
		return LEFT_HERE;
	if (length) {
		enum moved added = add_fields(message, caller, size);
		if (added != MOVED)
			return added;
	}
	if (is_moved && msg_redirect_hash(message, &server_sockets, &connection, F_INGRESS) == SK_PASS)
		return MOVED;
	if (!is_large && msg_redirect_hash(message, &pooled_sockets, &key, 0) == SK_PASS)
		return MOVED;
	return length ? remove_fields(message, caller->http.parser.end - 2, length) : LEFT_HERE;
}

/* Sends the request on the connection that was claimed. The link counts it before it leaves: the proxy compares that with the
 * requests that it has taken. */
INLINE int redirect_request(struct caller *caller, struct sk_msg_md *message, struct target *target, struct link *link)
{
	u32 key = caller->slot, length = message->size;
	struct slot *slot = map_lookup(&slots, &key);

	if (!slot) {
		leave_group(caller->group);
		return leave(caller, message, REDIRECT_FAILED);
	}
	int is_kept = keep_request(caller, slot, length, target);
	enum moved moved = is_kept ? move_request(message, slot, key, caller) : LEFT_HERE;
	if (moved != MOVED) {
		int is_usable = !is_kept || length > REQUEST_BYTES;
		leave_group(caller->group);
		slot->owner = is_usable ? SLOT_IDLE : SLOT_ABSENT;
		/* The request has been altered and cannot be restored, so that neither server nor proxy may have it. */
		if (moved == BROKEN)
			return SK_DROP;
		return leave(caller, message, length > REQUEST_BYTES ? TOO_LARGE : REDIRECT_FAILED);
	}
	/* Before the proxy can take the request, which it can once it has a length. */
	__sync_lock_test_and_set(&slot->group, caller->group + 1);
	__sync_fetch_and_add(&target->hot->counts, 1);
	__sync_fetch_and_add(&link->sent, 1);
	__sync_lock_test_and_set(&slot->length, length);
	__sync_fetch_and_add(target->round_robin, target->turns);
	count(SENT_BY_KERNEL);
	if (caller->fields)
		count(PERMITTED);
	return SK_PASS;
}

/* Whether the kernel sends a request of this length: a large one, of which it keeps the head alone, if no second attempt could be made
 * with its method anyway. */
INLINE int may_be_sent(struct parser *parser, u32 length)
{
	return length <= REQUEST_BYTES ||
	       (length <= MOST_REQUEST_BYTES && parser->method & (METHOD_POST | METHOD_PATCH));
}

SEC("sk_msg") int send(struct sk_msg_md *message)
{
	if (!message->sk)
		return SK_PASS;
	struct caller *caller = sk_storage_get(&callers, message->sk, 0, 0);
	if (!caller || !caller->cookie)
		return SK_PASS;
	u64 cookie = caller->cookie;
	struct link *link = find_link(cookie);
	u64 bytes = link ? __sync_fetch_and_add(&link->bytes, 0) : WITHDRAWN;
	if (!link && !caller->passed && is_blocking(message->sk))
		count(BLOCKS_LATER);
	int is_in_flight = bytes != WITHDRAWN && (bytes != caller->passed || holds_slot(caller, link));
	/* After that: a response is noted as one that is about to be moved before its slot is free. */
	enum moved_state moved = link ? note_read(link, cookie, 1) : MOVED_READ;
	/* A program that sends before it has read once will do so again. */
	if (moved == MOVED_UNREAD)
		link->pipelines = 1;
	if (is_in_flight)
		return leave(caller, message, IN_FLIGHT);

	struct parser *parser = &caller->http.parser;
	struct parsed parsed = { .http = &caller->http };
	__builtin_memset(parser, 0, sizeof(*parser));
	parser->available = copy_message(&caller->http, message);
	loop(REQUEST_BYTES, parse_step, &parsed, 0);
	if (!parser->end || parser->refused || !parser->host_length)
		return leave(caller, message, NOT_PLAIN);
	u32 whole = parser->end + parser->content_length;
	if (!may_be_sent(parser, whole))
		return leave(caller, message, TOO_LARGE);
	if (whole != message->size)
		return leave(caller, message, NOT_PLAIN);
	struct service *service = find_service(caller);
	int is_linked = link && bytes != WITHDRAWN;
	if (!service && is_linked)
		return leave_whole(caller, message, SERVICE_UNKNOWN);
	if (!service)
		return leave(caller, message, SERVICE_UNKNOWN);
	if (!is_linked)
		return leave(caller, message, NOT_REGISTERED);
	/* Once more, and last: what is moved meanwhile is noted before it counts as received. */
	struct target target = { .is_direct = moved == MOVED_READ && may_be_direct(message, link) &&
					      note_read(link, cookie, 1) == MOVED_READ };
	int why = decide(caller, service, &target);
	if (!why)
		why = begin_request(caller, target.endpoint);
	if (why)
		return leave_whole(caller, message, why);
	return redirect_request(caller, message, &target, link);
}

#endif
