/* SPDX-License-Identifier: GPL-2.0 */
#ifndef FAIRMESH_MAPS_H
#define FAIRMESH_MAPS_H

#include "shared.h"

enum state { METHOD, TARGET, VERSION, STATUS_VERSION, STATUS, REASON, LINE_END, LINE, NAME, VALUE_SPACE, VALUE, HEAD_END };
enum field { FIELD_OTHER, FIELD_HOST, FIELD_LENGTH, FIELD_CONNECTION, FIELD_LOAD, FIELD_TYPE };

/* Fields that are kept; a power of two, so that the verifier sees bounds. And the most that a message may have, as for the proxy's
 * zero-copy parser. */
enum { HEADERS = 32, MOST_HEADERS = 48 };

/* The largest part of a line that is compared: "transfer-encoding". */
struct token {
	u64 word0, word1, word2;
	u32 length;
};

struct parser {
	struct token token;
	u32 available, position, state, field, at;
	u32 host_at, host_length;
	u32 has_length, content_length, digits;
	u32 method; /* one bit */
	u32 path_at, path_length, has_query;
	u32 headers; /* fields, also those beyond the HEADERS that are kept */
	u32 end; /* of the head; 0 until it is complete */
	u32 refused;
	u32 is_response, status, has_load, load_at, load_length;
	u32 has_cookie;
	u32 names_client; /* by `x-forwarded-for` */
	u32 of_proxy; /* with the proxy's own fields */
};

/* A field of the head. */
struct header {
	u64 name[3];  /* in lower case */
	u16 at, length; /* of its value */
	u16 is_long;    /* the name does not fit */
	u16 is_spaced;  /* the value begins or ends with white space */
};

/* The first bytes of a message, and what was understood of them. They lie in memory of a socket, not of the CPU: sk_msg programs are
 * preempted. And not on the stack, where the verifier would follow each value that they may have. */
struct http {
	struct parser parser;
	struct header headers[HEADERS];
	u8 bytes[REQUEST_BYTES + HOST_BYTES];
};

/* Of a socket whose connect was redirected. */
struct caller {
	u64 cookie;
	u64 passed; /* bytes left to the proxy */
	u32 ip[ADDRESS_WORDS], port;
	u32 slot; /* of the last request that the kernel sent */
	u32 by_tcp;     /* its data passes TCP alone */
	u32 is_counted; /* among the connections of its cgroup */
	u32 fields; /* length of the lines that are added to the head of the request, and that lie in `http.headers` by then */
	u32 group;  /* position of its cgroup */
	u32 only_services; /* of its cgroup: 1 where nothing but services may be reached */
	u32 position; /* of the policy by which its last request was sent, which had this generation */
	u64 generation;
	struct host host;
	struct http http; /* its last request */
};

/* Of a server's socket, or one of the proxy. */
struct server {
	struct connection connection; /* of a server's socket */
	u64 left; /* when the request was sent whose response is left to the proxy */
	struct http http; /* its last response */
};

struct {
	MAP_UINT(type, MAP_SK_STORAGE);
	MAP_UINT(map_flags, F_NO_PREALLOC);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct caller);
} callers SEC(".maps");

/* Sockets whose sends the program `send` decides on. */
struct {
	MAP_UINT(type, MAP_SOCKHASH);
	MAP_UINT(max_entries, CALLERS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u32);
} caller_sockets SEC(".maps");

struct {
	MAP_UINT(type, MAP_SK_STORAGE);
	MAP_UINT(map_flags, F_NO_PREALLOC);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct server);
} servers SEC(".maps");

/* Sockets of servers on this machine, whose sends the program `respond` decides on. */
struct {
	MAP_UINT(type, MAP_SOCKHASH);
	MAP_UINT(max_entries, CALLERS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct connection);
	MAP_TYPE(value, u32);
} server_sockets SEC(".maps");

/* IPv6 addresses at which servers have accepted connections from this machine, and their numbers from 1, of which none is given twice. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, ADDRESSES);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct address);
	MAP_TYPE(value, u32);
} ipv6_numbers SEC(".maps");

/* How many numbers have been given. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} ipv6_count SEC(".maps");

/* Slots of pooled connections to servers on this machine. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, SLOTS);
	MAP_UINT(map_flags, F_NO_PREALLOC);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct connection);
	MAP_TYPE(value, u32);
} local_slots SEC(".maps");

/* Calls whose responses the kernel has sent to the caller, for the proxy to learn from: slots up to the end of the head of the request. */
struct {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, RING_BYTES);
	MAP_UINT(pinning, PIN_BY_NAME);
} completed SEC(".maps");

/* By the cookie of a network namespace: where the proxy listens in it. The kernel removes a socket that is closed, so a proxy that died is
 * not connected to. */
struct {
	MAP_UINT(type, MAP_SOCKHASH);
	MAP_UINT(max_entries, NAMESPACES);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u32);
} listeners SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct proxy_config);
} config SEC(".maps");

/* Original destinations of connections that the proxy has not accepted yet. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, WAITING_CALLERS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct caller_address);
	MAP_TYPE(value, struct destination);
} destinations SEC(".maps");

/* By cookie: where the link of a caller's connection lies. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, CALLERS);
	MAP_UINT(map_flags, F_NO_PREALLOC);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u32);
} link_positions SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, CALLERS);
	MAP_UINT(map_flags, F_MMAPABLE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct link);
} links SEC(".maps");

/* By host: services that the proxy has published. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, SERVICES);
	MAP_UINT(map_flags, F_NO_PREALLOC);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct host);
	MAP_TYPE(value, struct service);
} services SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, SERVICES);
	MAP_UINT(map_flags, F_MMAPABLE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct policy_buffers);
} policies SEC(".maps");

/* Statistics of endpoints: the proxy's balancer uses them in place. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, SERVICES);
	MAP_UINT(map_flags, F_MMAPABLE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct hot_block);
} blocks SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, ENDPOINTS);
	MAP_UINT(map_flags, F_MMAPABLE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct endpoint);
} endpoints SEC(".maps");

/* The state of pooled connections. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, SLOTS);
	MAP_UINT(map_flags, F_MMAPABLE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct slot);
} slots SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, PERMITS);
	MAP_UINT(map_flags, F_MMAPABLE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct permit);
} permits SEC(".maps");

/* The sockets of pooled connections. */
struct {
	MAP_UINT(type, MAP_SOCKHASH);
	MAP_UINT(max_entries, SLOTS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} pooled_sockets SEC(".maps");

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, COUNTERS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} counters SEC(".maps");

/* Requests in flight by cgroups of callers. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, ATTACHMENTS);
	MAP_UINT(map_flags, F_MMAPABLE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct group);
} groups SEC(".maps");

/* The cgroups to which the programs are attached, by id; for `status` and `detach` alone. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, ATTACHMENTS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct attachment);
} attachments SEC(".maps");

/* The same by the address of the caller. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, CALLERS);
	MAP_UINT(map_flags, F_NO_PREALLOC);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct caller_address);
	MAP_TYPE(value, u32);
} proxy_links SEC(".maps");

/* By cookie: the proxy's sockets of the connections of callers, whose sends the program `short_cut` decides on. */
struct {
	MAP_UINT(type, MAP_SOCKHASH);
	MAP_UINT(max_entries, CALLERS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u32);
} proxy_sockets SEC(".maps");

/* Where both sockets of a caller's connection lie in the kernel's memory, and the cookie of the proxy's; zeros before it has sent. And the
 * message that was last to be moved to the caller: where it lies, what it had, and whose socket sends it. */
struct caller_ends {
	u64 caller, proxy, proxy_cookie;
	u64 message, data, size, sender;
};

/* By cookie. For the programs alone: a sk_msg program may look another socket up, and has no way to release it. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, CALLERS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct caller_ends);
} caller_addresses SEC(".maps");

/* How a connection from this machine to a server is used. */
enum exchange { EXCHANGE_NONE, EXCHANGE_AWAITS, EXCHANGE_PARTS, EXCHANGE_CLOSED };

/* Where both ends of it lie in the kernel's memory, and their cookies; zeros before the proxy sends on it. */
struct ends {
	u64 server, server_cookie, proxy, proxy_cookie;
};

/* Of each since the server accepted it: whether the response is awaited to a request that the proxy sent and that did not pass TCP, or the
 * body of one passes TCP, or everything does, since the connection may have come to carry something else than requests. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, SLOTS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct connection);
	MAP_TYPE(value, u32);
} exchanges SEC(".maps");

/* For the programs alone, as caller_addresses. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, SLOTS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct connection);
	MAP_TYPE(value, struct ends);
} exchange_addresses SEC(".maps");

/* What tells the maps of one release from those of another. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} layout SEC(".maps");

/* The proxy's sockets of those on which it sends requests itself, whose sends the program `forward` decides on. */
struct {
	MAP_UINT(type, MAP_SOCKHASH);
	MAP_UINT(max_entries, SLOTS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, struct connection);
	MAP_TYPE(value, u32);
} forwarding_sockets SEC(".maps");

/* By cookie: sockets on which proxies ask whether a caller has read what was moved to it, which the program `look` notes. */
struct {
	MAP_UINT(type, MAP_SOCKHASH);
	MAP_UINT(max_entries, ATTACHMENTS);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u32);
} asking_sockets SEC(".maps");

/* Sockets on which programs listen that ask how much they can read. The connections that they accept have it too. */
struct {
	MAP_UINT(type, MAP_SK_STORAGE);
	MAP_UINT(map_flags, F_NO_PREALLOC | F_CLONE);
	MAP_UINT(pinning, PIN_BY_NAME);
	MAP_TYPE(key, int);
	MAP_TYPE(value, u32);
} left_listeners SEC(".maps");

#define MAPPED NETWORK32(0xffff)

INLINE int is_mapped(const u32 *ip)
{
	return !ip[0] && !ip[1] && ip[2] == MAPPED;
}

/* The number of an IPv6 address; 0 where it has none. */
INLINE u32 find_number(const struct address *address)
{
	u32 *number = map_lookup(&ipv6_numbers, address);

	return number ? *number : 0;
}

/* The same, which it gets if it has none. */
INLINE u32 take_number(const struct address *address)
{
	u32 number = find_number(address), zero = 0;
	u32 *given = number ? 0 : map_lookup(&ipv6_count, &zero);

	if (!given || *given >= ADDRESSES)
		return number;
	number = __sync_fetch_and_add(given, 1) + 1;
	/* Another program may have been faster. */
	map_update(&ipv6_numbers, address, &number, F_NO_EXIST);
	return find_number(address);
}

/* What the proxy says of a caller's connection; 0 while it serves none. */
INLINE struct link *find_link(u64 cookie)
{
	u32 *position = map_lookup(&link_positions, &cookie);

	if (!position)
		return 0;
	u32 key = *position;
	struct link *link = map_lookup(&links, &key);
	return link && link->cookie == cookie ? link : 0;
}

INLINE void count(u32 which)
{
	u64 *counter = map_lookup(&counters, &which);
	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* Counts a connection of a cgroup; whether it may have another one. */
INLINE int add_connection(u32 position)
{
	struct group *group = map_lookup(&groups, &position);

	if (!group)
		return 0;
	if (__sync_fetch_and_add(&group->connections, 1) < GROUP_CALLERS)
		return 1;
	__sync_fetch_and_add(&group->connections, -1);
	return 0;
}

INLINE void remove_connection(u32 position)
{
	struct group *group = map_lookup(&groups, &position);
	if (group)
		__sync_fetch_and_add(&group->connections, -1);
}

INLINE void leave_group(u32 position)
{
	struct group *group = map_lookup(&groups, &position);
	if (group)
		__sync_fetch_and_add(&group->in_flight, -1);
}

/* The request of a slot is no longer in flight. The proxy or the program that takes the position counts it down: once. */
INLINE void end_request(struct slot *slot)
{
	u32 group = __sync_lock_test_and_set(&slot->group, 0);
	if (group)
		leave_group(group - 1);
}

#endif
