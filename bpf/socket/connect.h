/* SPDX-License-Identifier: GPL-2.0 */
/* Connections: redirected to the proxy while it listens, and known to both sides by the address of the caller's socket. */
#ifndef FAIRMESH_CONNECT_H
#define FAIRMESH_CONNECT_H

#include "receive_queue.h"

/* Replaced when the programs are loaded, which is once for each cgroup. */
const volatile struct selection selection = {};
/* The position of what is counted for the cgroup. */
const volatile u32 own_group = 0;

/* Addresses of one link (fe80::/10) are none without the number of the link, which the proxy does not get. */
INLINE int is_of_link(const u32 *ip)
{
	return (ip[0] & NETWORK32(0xffc00000)) == NETWORK32(0xfe800000);
}

/* Whether an address lies in the selected network with this number. */
INLINE int is_within(const u32 *ip, u32 network)
{
	for (u32 word = 0; word < ADDRESS_WORDS; word++)
		if ((ip[word] & selection.mask[network][word]) != selection.address[network][word])
			return 0;
	return 1;
}

OWN_FRAME int is_selected(const u32 *ip, u32 port)
{
	int address_matches = !selection.networks, port_matches = !selection.ports;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < SELECTED; i++) {
		address_matches |= i < selection.networks && is_within(ip, i);
		port_matches |= i < selection.ports && port == selection.port[i];
	}
	return address_matches && port_matches;
}

/* An address at which the proxy listens. */
struct proxy_address {
	u32 ip, port; /* network byte order, host byte order */
};

/* The address of the proxy's listener, if it listens in this network namespace. */
INLINE int find_proxy(struct bpf_sock_addr *context, struct proxy_address *proxy)
{
	u64 cookie = netns_cookie(context);
	struct bpf_sock *listens = map_lookup(&listeners, &cookie);

	if (!listens)
		return 0;
	int found = listens->state == TCP_LISTEN;
	proxy->ip = listens->src_ip4 ? listens->src_ip4 : NETWORK32(0x7f000001);
	proxy->port = listens->src_port;
	sock_release(listens);
	return found;
}

/* Names of programs, with the zero that ends them, as numbers: so they are compared at once. */
#define NGINX 0x00786e69676eULL
#define ANGIE 0x006569676e61ULL
#define NAME_MASK 0xffffffffffffULL

/* Whether the program that runs asks by FIONREAD how much it can read, and takes 0 to say that nothing has come. That is what it is told of
 * data that TCP has brought to a socket of the maps. nginx does, and what was made of it; a program that calls itself so loses the short
 * ways, no more. */
INLINE int asks_for_length(void)
{
	struct task_struct *task = (struct task_struct *)current_task();
	u64 name = 0;

	if (probe_read_kernel(&name, sizeof(name), task->comm))
		return 0;
	name &= NAME_MASK;
	return name == NGINX || name == ANGIE;
}

/* Whether the data of a socket that connects passes TCP alone, as without these programs: a `recv` that blocks would return EAGAIN after
 * any signal where the socket is in a map. Known when it connects, since it can be put into a map at that time alone. */
INLINE u32 keeps_to_tcp(struct bpf_sock_addr *context)
{
	int is_left = asks_for_length();

	if (!is_left && !is_blocking(context->sk))
		return 0;
	count(is_left ? CONNECT_BY_LENGTH : CONNECT_BLOCKING);
	return 1;
}

enum decision { DIRECT, REDIRECTED, REFUSED };

/* Whether a connect that cannot be redirected fails, as where nothing listens: the cgroup may reach services alone, or the proxy that
 * listened here last said so. */
INLINE int is_refused(struct bpf_sock_addr *context)
{
	u32 zero = 0;
	struct proxy_config *own = map_lookup(&config, &zero);

	if (!selection.only_services && (!own || !own->only_services || own->netns_cookie != netns_cookie(context)))
		return 0;
	set_result(-CONNECTION_REFUSED);
	count(CONNECT_REFUSED);
	return 1;
}

/* Whether the programs of a cgroup within this one, which run first, have redirected this connect. */
INLINE int was_redirected(struct bpf_sock_addr *context, const u32 *ip)
{
	struct proxy_address proxy = {};
	struct caller *caller = sk_storage_get(&callers, context->sk, 0, 0);

	return caller && caller->cookie && caller->cookie == socket_cookie(context) && find_proxy(context, &proxy) &&
	       is_mapped(ip) && ip[3] == proxy.ip && NETWORK16((u16)context->user_port) == proxy.port;
}

/* The proxy listens on an IPv4 address, so an IPv6 socket reaches it as an IPv4 one does, whichever address it connects to. */
INLINE int can_reach_proxy(struct bpf_sock_addr *context, const u32 *ip)
{
	return is_mapped(ip) || (!is_of_link(ip) && !is_ipv6_only(context->sk));
}

INLINE enum decision leave_connect(struct bpf_sock_addr *context, u32 why)
{
	if (is_refused(context))
		return REFUSED;
	count(why);
	return DIRECT;
}

/* Decides on a connect to this address, which becomes that of the proxy where it is redirected. */
INLINE enum decision redirect(struct bpf_sock_addr *context, u32 *ip)
{
	u32 port = NETWORK16((u16)context->user_port);
	struct proxy_address proxy = {};

	if (context->type != SOCK_STREAM || context->protocol != IPPROTO_TCP)
		return DIRECT;
	if (was_redirected(context, ip))
		return REDIRECTED;
	if (!is_selected(ip, port))
		return DIRECT;
	if (!find_proxy(context, &proxy))
		return leave_connect(context, CONNECT_NO_PROXY);
	if (!can_reach_proxy(context, ip))
		return leave_connect(context, CONNECT_IPV6_LEFT);
	struct caller *caller = sk_storage_get(&callers, context->sk, 0, F_STORAGE_CREATE);
	if (!caller)
		return is_refused(context) ? REFUSED : DIRECT;
	caller->cookie = socket_cookie(context);
	caller->passed = 0;
	caller->by_tcp = keeps_to_tcp(context);
	caller->group = own_group;
	caller->only_services = selection.only_services;
	for (u32 word = 0; word < ADDRESS_WORDS; word++)
		caller->ip[word] = ip[word];
	caller->port = port;
	ip[0] = ip[1] = 0;
	ip[2] = MAPPED;
	ip[3] = proxy.ip;
	context->user_port = NETWORK16((u16)proxy.port);
	count(CONNECT_REDIRECTED);
	return REDIRECTED;
}

/* A socket may connect again, elsewhere. */
INLINE void forget(struct bpf_sock_addr *context)
{
	struct caller *caller = sk_storage_get(&callers, context->sk, 0, 0);
	if (caller)
		caller->cookie = 0;
}

SEC("cgroup/connect4") int connect4(struct bpf_sock_addr *context)
{
	u32 ip[ADDRESS_WORDS] = { 0, 0, MAPPED, context->user_ip4 };
	enum decision decision = redirect(context, ip);

	if (decision == REDIRECTED)
		context->user_ip4 = ip[3];
	else
		forget(context);
	return decision == REFUSED ? CONNECT_REFUSE : CONNECT_ALLOW;
}

SEC("cgroup/connect6") int connect6(struct bpf_sock_addr *context)
{
	u32 ip[ADDRESS_WORDS] = {
		context->user_ip6[0],
		context->user_ip6[1],
		context->user_ip6[2],
		context->user_ip6[3],
	};
	enum decision decision = redirect(context, ip);

	if (decision == REDIRECTED) {
		context->user_ip6[0] = ip[0];
		context->user_ip6[1] = ip[1];
		context->user_ip6[2] = ip[2];
		context->user_ip6[3] = ip[3];
	} else {
		forget(context);
	}
	return decision == REFUSED ? CONNECT_REFUSE : CONNECT_ALLOW;
}

SEC("cgroup/getpeername4") int getpeername4(struct bpf_sock_addr *context)
{
	struct caller *caller = sk_storage_get(&callers, context->sk, 0, 0);

	if (caller && caller->cookie) {
		context->user_ip4 = caller->ip[3];
		context->user_port = NETWORK16((u16)caller->port);
	}
	return CONNECT_ALLOW;
}

SEC("cgroup/getpeername6") int getpeername6(struct bpf_sock_addr *context)
{
	struct caller *caller = sk_storage_get(&callers, context->sk, 0, 0);

	if (caller && caller->cookie) {
		context->user_ip6[0] = caller->ip[0];
		context->user_ip6[1] = caller->ip[1];
		context->user_ip6[2] = caller->ip[2];
		context->user_ip6[3] = caller->ip[3];
		context->user_port = NETWORK16((u16)caller->port);
	}
	return CONNECT_ALLOW;
}

/* A caller's connection has ended: its places are free. */
INLINE void end_connection(struct caller *caller)
{
	u64 cookie = caller->cookie;

	if (!__sync_lock_test_and_set(&caller->is_counted, 0))
		return;
	map_delete(&caller_addresses, &cookie);
	remove_connection(caller->group);
}

/* Puts the connection into the maps, unless its cgroup has as many there as it may. The programs of a cgroup around this one find it there. */
INLINE int may_be_added(struct bpf_sock_ops *ops, struct caller *caller)
{
	if (caller->is_counted)
		return 1;
	if (!add_connection(caller->group)) {
		count(CONNECT_TOO_MANY);
		caller->by_tcp = 1;
		return 0;
	}
	caller->is_counted = 1;
	set_callbacks(ops, STATE_CALLBACK);
	return 1;
}

/* Runs before the proxy can accept the connection: its last packet of the handshake has not been sent. And when the connection ends. */
SEC("sockops") int track(struct bpf_sock_ops *ops)
{
	if ((ops->op != SOCK_OPS_ACTIVE_ESTABLISHED && ops->op != SOCK_OPS_STATE) || !ops->sk)
		return 1;
	struct caller *caller = sk_storage_get(&callers, ops->sk, 0, 0);
	if (!caller)
		return 1;
	if (ops->op == SOCK_OPS_STATE) {
		if (ops->args[1] == TCP_CLOSE)
			end_connection(caller);
		return 1;
	}
	if (!caller->cookie)
		return 1;
	int is_added = !caller->by_tcp && may_be_added(ops, caller);
	struct caller_address address = {
		.netns_cookie = netns_cookie(ops),
		.ip = ops->local_ip4,
		.port = ops->local_port,
	};
	struct destination destination = {
		.cookie = caller->cookie,
		.ip = { caller->ip[0], caller->ip[1], caller->ip[2], caller->ip[3] },
		.port = caller->port,
		/* Not of this program's cgroup, which may be one around that of the program that redirected. */
		.only_services = caller->only_services,
		.by_tcp = !is_added,
	};
	struct caller_ends ends = { .caller = (u64)ops->sk };
	u64 cookie = caller->cookie;

	map_update(&destinations, &address, &destination, 0);
	if (!is_added)
		return 1;
	map_update(&caller_addresses, &cookie, &ends, 0);
	sock_hash_update(ops, &caller_sockets, &cookie, 0);
	return 1;
}

#endif
