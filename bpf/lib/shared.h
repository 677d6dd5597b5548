/* SPDX-License-Identifier: GPL-2.0 */
/* What these programs share with the proxy: values of maps, as crates/edge/kernel/src/map_layout.rs declares them. */
#ifndef FAIRMESH_SHARED_H
#define FAIRMESH_SHARED_H

#include "kernel_abi.h"

enum {
	REQUEST_BYTES = 2048, /* of a request that is kept */
	MOST_REQUEST_BYTES = 65536,
	HOST_BYTES = 64,
	SELECTED = 8,
	SERVICES = 1024,
	BLOCK_ENDPOINTS = 32,
	ROUTE_STEPS = 32,
	ROUTE_ARMS = 8,
	ROUTE_TEXT = 64,
	ROUTE_NAME = 24,
	ENDPOINTS = SERVICES * BLOCK_ENDPOINTS,
	ENDPOINT_SLOTS = 64,
	SLOTS = 8192,
	CALLERS = 65536,
	GROUP_CALLERS = CALLERS / 2, /* of one cgroup */
	WAITING_CALLERS = CALLERS / 2, /* that the proxy has not accepted yet */
	GROUP_REQUESTS = SLOTS / 2,
	ATTACHMENTS = 64,
	NAMESPACES = 1024, /* in which a proxy listens */
	PATH_BYTES = 256,
	LOAD_BYTES = 128,
	PERMITS = 192,
	PERMIT_BYTES = 512,
	ADDRESSES = 1024, /* of IPv6, at which servers accept connections from this machine */
	RESPONSE_BYTES = 65536,
	RING_BYTES = 4 << 20,
	NANOS = 1000000000, /* of a second */
};

/* Counters: outcomes of connects, then of requests. */
enum counter {
	CONNECT_REDIRECTED,
	CONNECT_NO_PROXY,
	SENT_BY_KERNEL,
	NOT_REGISTERED, /* the proxy does not serve the connection yet */
	IN_FLIGHT,      /* an earlier request of the connection is not done */
	NOT_PLAIN,      /* not a plain HTTP/1.1 request in one send */
	TOO_LARGE,
	SERVICE_UNKNOWN,
	NO_IDLE_CONNECTION,
	REDIRECT_FAILED,
	ENDPOINT_EJECTED, /* an endpoint that is ejected was drawn */
	POLICY_CHANGED,   /* while an endpoint was picked */
	ROUTE_LEFT,       /* a route may match that the kernel cannot judge or carry out */
	ANSWERED_DIRECTLY, /* responses that went from the server's sendmsg to the caller */
	RESPONSE_LEFT,     /* responses to the same callers that the proxy read */
	SHORT_CUT,         /* responses that went from the proxy's sendmsg to the caller */
	GROUP_FULL,        /* as many requests of the caller's cgroup are in flight as may be */
	CONNECT_REFUSED,   /* no proxy listened, and services alone may be reached */
	FORWARDED_REQUEST,  /* requests that went from the proxy's sendmsg to a server on this machine */
	FORWARDED_RESPONSE, /* their responses that went from the server's sendmsg to the proxy */
	MOVED_TO_PROXY,     /* requests left to the proxy that went from the caller's sendmsg to it */
	CONNECT_BLOCKING,   /* connections of sockets that block, whose data passes TCP alone */
	CONNECT_BY_LENGTH,  /* the same of programs that ask how much they can read */
	CONNECT_TOO_MANY,   /* connections by TCP alone, since the cgroup has as many others as it may */
	BLOCKS_LATER,       /* sockets that blocked when they sent, and not when they connected */
	PERMITTED,          /* requests sent by the kernel to servers that others reach by mutual TLS */
	NOT_PERMITTED,      /* requests to such servers without a permit in force */
	CONNECT_IPV6_LEFT,  /* connects over IPv6 that cannot lead to the proxy */
	COUNTERS,
};

/* Owners of a slot that are no cookie. */
#define SLOT_ABSENT 0ULL
#define SLOT_IDLE (~0ULL)
/* Bytes that the proxy has served while the kernel is to send nothing. */
#define WITHDRAWN (~0ULL)

/* Addresses are IPv6 addresses in network byte order, and those of IPv4 mapped ones: ::ffff:a.b.c.d. */
enum { ADDRESS_WORDS = 4 };

struct address {
	u32 word[ADDRESS_WORDS];
};

/* Which connects of a cgroup are redirected: ports in host byte order. */
struct selection {
	u32 networks, ports;
	u32 address[SELECTED][ADDRESS_WORDS], mask[SELECTED][ADDRESS_WORDS];
	u32 port[SELECTED];
	u32 only_services; /* 1 where nothing but services may be reached */
};

/* Of a cgroup to which the programs are attached; for `attach`, `status` and `detach` alone. */
struct attachment {
	u32 was_created, roles; /* and whether it stays attached when its programs have ended */
	u32 group; /* position of what is counted for its callers */
	u32 short_cut; /* 1 where responses of the proxy take the short cut */
	struct selection selection;
	u8 path[PATH_BYTES];
};

/* Of a cgroup of callers. In a cache line of its own. */
struct group {
	u32 most;        /* requests by the kernel in flight; 0 for GROUP_REQUESTS */
	u32 in_flight;   /* those that are, and for a moment those that are about to be refused */
	u32 connections; /* of its callers in the maps, which are GROUP_CALLERS at most */
	u32 unused[13];
};

/* Of the last proxy that listened. */
struct proxy_config {
	u64 netns_cookie;
	u32 pid;
	u32 only_services; /* also once it listens no longer */
	u32 container_socket; /* number plus 1 of the socket at which it takes listeners of containers; 0 where it takes none */
	u32 unused;
};

/* Of a caller. Containers have networks of their own, with equal addresses: the namespace tells them apart. Whatever address a program
 * connects to, over whichever family, its connection to the proxy is one of IPv4. */
struct caller_address {
	u64 netns_cookie;
	u32 ip;   /* network byte order */
	u32 port; /* host byte order */
};

struct destination {
	u64 cookie;
	u32 ip[ADDRESS_WORDS];
	u16 port; /* host byte order */
	u8 only_services, by_tcp;
	u32 unused;
};

struct host {
	u64 word[HOST_BYTES / 8];
};

/* Where the policy of a service lies. The id is of this policy alone, also when the position is used again. */
struct service {
	u64 id;
	u32 position, unused;
};

enum {
	POLICY_SCORE,
	POLICY_LEAST_REQUEST,
	POLICY_ROUND_ROBIN,
	POLICY_RANDOM,
};

/* crates/decide/router/src/service_table/service_numbers.rs describes these. */
struct candidate {
	u32 index, weight;
	u64 cumulative_weight;
};

/* crates/decide/router/src/routes/route_numbers.rs describes these. The last ones end a route. */
enum {
	STEP_METHOD,
	STEP_PATH_EXACT,
	STEP_PATH_PREFIX,
	STEP_HEADER_ABSENT,
	STEP_HEADER_PRESENT,
	STEP_HEADER_EXACT,
	STEP_HEADER_PREFIX,
	STEP_QUERY,
	STEP_UNKNOWN,
	STEP_TO_SERVICE,
	STEP_TO_ARMS,
	STEP_LEAVE,
};

struct route_step {
	u32 kind, argument;
	u64 name[ROUTE_NAME / 8], text[ROUTE_TEXT / 8];
};

/* A backend of a split. The id is 0 while its service is not published. */
struct arm {
	u64 cumulative_weight, id;
	u32 position, unused;
};

struct policy {
	u64 id;
	u64 origin; /* when the clock of the picks was 0 */
	u32 block;
	u32 repeats_any; /* 1 where a second attempt may be made with any method */
	u64 ticks_per_nano;
	u32 memory, policy, length, equal_weight;
	struct candidate candidates[BLOCK_ENDPOINTS];
	u32 step_count, unused_count;
	struct arm arms[ROUTE_ARMS];
	struct route_step steps[ROUTE_STEPS];
};

/* The policy of generation N lies in buffer N mod 2. What was read is discarded if the generation has changed meanwhile. */
struct policy_buffers {
	u64 generation;
	struct policy buffer[2];
};

/* What a pick reads of an endpoint, as crates/decide/balancer/src/endpoint_stats/hot_stats.rs packs it. */
struct hot {
	u32 counts; /* calls in the low 20 bits, streams above */
	u32 updated_tick;
	u64 load; /* excess: 32 bits; suspect: 1; cost: 15; weight ratio: 16 */
};

/* Of endpoints that failed, in nanoseconds of the clock of the picks. */
struct penalty {
	u64 ejected_until, failing_until, ramp_end;
};

struct hot_block {
	struct hot hot[BLOCK_ENDPOINTS];
	u32 round_robin, unused[3];
	struct penalty penalties[BLOCK_ENDPOINTS];
};

/* Pooled connections to endpoint I of block B, at B * BLOCK_ENDPOINTS + I. */
struct endpoint {
	u32 slot[ENDPOINT_SLOTS]; /* plus 1; 0 where there is none */
	u32 wanted;               /* set when none was idle */
	u32 closes_until; /* in seconds: so long, nothing is moved to sockets of the server, which has closed one on which it had just responded */
};

/* A connection of the proxy to a server on this machine: addresses in network byte order, ports in host byte order. Over IPv6, both ends
 * have the same address, whose number stands for it, and OVER_IPV6 is added to the port of the proxy. */
enum { OVER_IPV6 = 1 << 16 };

struct connection {
	u32 proxy_ip, server_ip, proxy_port, server_port;
};

/* How much of a caller's connection the proxy has served: all requests in the first `bytes` of it have responses, or are about to.
 * With these, the proxy has sent `received` bytes in all, all ones while it does not know how many, and has responded to so many
 * requests that the kernel sent. It writes `bytes` last, and `requests` before that. */
struct link {
	u64 cookie; /* of the caller; 0 while there is none */
	u64 bytes;  /* all ones while the kernel is to send nothing */
	u64 received, requests;
	u64 sent; /* requests that the kernel has sent, without those whose responses it has sent too */
	u64 diverted; /* bytes of responses that took the short cut; the others pass TCP */
	u32 length; /* of the response that the proxy is about to send, if it is whole, as part of `received`; 0 before it knows */
	u32 pipelines; /* a request was sent before the response to an earlier one had been read: nothing is moved to the caller any more */
	u64 moved; /* responses that were moved to the caller, are about to be, or could not be: counted before */
	u64 read;  /* how many of them it had read when that was last looked at. While it is fewer, the proxy sends nothing */
};

/* What the server of an endpoint permits, by mutual TLS, to the proxy's callers: requests in plaintext, for a moment. The proxy makes the
 * generation odd before it writes, and even again afterwards. What was read of another generation is discarded. */
struct permit {
	u64 generation;
	u64 until;    /* by the clock of the programs; 0 while nothing is permitted */
	u32 endpoint; /* that owns it */
	u32 length;   /* of the fields in bytes, a multiple of 8 */
	u64 fields[PERMIT_BYTES / 8]; /* lines of the head that say who calls, as the server writes them by mutual TLS */
};

/* The state of a pooled connection. The kernel claims an idle one for a caller; the proxy makes it idle again, or the kernel does that
 * has sent the response to the caller. Up to the end of the request's head, this is also the record of such a call. */
struct slot {
	u64 owner; /* the caller's cookie, SLOT_ABSENT or SLOT_IDLE */
	u64 claimed_ns;
	u64 seed; /* of the decision */
	u32 length; /* of the request, written after it; 0 once the proxy or the kernel has taken it, to handle its response */
	u32 endpoint; /* to which it leads */
	struct connection connection; /* zeros where its server is elsewhere */
	u32 is_direct; /* the response may go to the caller directly */
	u32 status, body_bytes;
	u32 head_bytes; /* of the request */
	u64 finished_ns;
	u32 load_bytes;
	u32 group; /* position plus 1 of the cgroup in which the request counts; 0 where it counts no longer */
	u32 permit; /* position plus 1 of the permit that requests need which are sent on it; 0 where they need none */
	u32 unused;
	u8 load[LOAD_BYTES]; /* the server's load report */
	u8 request[REQUEST_BYTES]; /* of a larger one, the head */
};

#endif
