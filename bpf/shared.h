/* SPDX-License-Identifier: GPL-2.0 */
/* What these programs share with the proxy: values of maps, as crates/kernel/src/layout.rs declares them. */
#ifndef FAIRMESH_SHARED_H
#define FAIRMESH_SHARED_H

#include "kernel_abi.h"

enum {
	REQUEST_BYTES = 2048,
	HOST_BYTES = 64,
	SELECTED = 8,
	SERVICES = 1024,
	ENDPOINT_SLOTS = 16,
	SLOTS = 4096,
	CALLERS = 65536,
	ATTACHMENTS = 64,
	PATH_BYTES = 256,
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
	COUNTERS,
};

/* Owners of a slot that are no cookie. */
#define SLOT_ABSENT 0ULL
#define SLOT_IDLE (~0ULL)

/* Which connects of a cgroup are redirected: addresses and masks in network byte order, ports in host byte order. */
struct selection {
	u32 networks, ports;
	u32 address[SELECTED], mask[SELECTED];
	u32 port[SELECTED];
};

struct attachment {
	u32 was_created;
	u8 path[PATH_BYTES];
};

struct proxy_config {
	u64 netns_cookie;
	u32 pid, unused;
};

struct caller_address {
	u32 ip;   /* network byte order */
	u32 port; /* host byte order */
};

struct destination {
	u64 cookie;
	u32 ip;   /* network byte order */
	u32 port; /* host byte order */
};

struct host {
	u64 word[HOST_BYTES / 8];
};

/* The only endpoint of a service: pooled connections to it have the slots from endpoint * ENDPOINT_SLOTS on. */
struct service {
	u32 endpoint;
};

/* The state of a pooled connection. The kernel claims an idle one for a caller; the proxy makes it idle again. */
struct slot {
	u64 owner; /* the caller's cookie, SLOT_ABSENT or SLOT_IDLE */
	u64 claimed_ns;
	u32 length; /* of the request, written after it; 0 where there is none for the proxy to take */
	u32 unused;
	u8 request[REQUEST_BYTES];
};

#endif
