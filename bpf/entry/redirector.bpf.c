/* SPDX-License-Identifier: GPL-2.0 */
/* The redirector of a gateway's replica (Canal Mesh, section 4.4): where a router spreads connections to one address over the replicas of
 * a backend, it keeps each connection at the replica that has it, whichever replica the router chooses.
 *
 * A packet that is passed on has the TTL 255, which no packet has that came through a router, and in the field of the identification
 * how many replicas passed it on and by which table. The field serves fragments alone (RFC 6864), and there are none: replicas of a
 * backend share a network. The packet keeps its length, so that it fits wherever it came from. */
#include "tc_abi.h"
#include "redirect.h"

enum {
	MARKED_TTL = 255,
	/* The lowest bits of the identification stay free: a network card counts them up where it splits a packet into segments. */
	VERSION_SHIFT = 7,
	HOPS_SHIFT = 12,
	VERSION_MASK = 31,
	ID_AT = ETHERNET_BYTES + 4,
	TTL_AT = ETHERNET_BYTES + 8,
	CHECKSUM_AT = ETHERNET_BYTES + 10,
	CURRENT_NAMESPACE = -1,
};

/* What becomes of packets. */
enum count { HELD, BEGUN, PASSED_ON, UNCLAIMED, DISCARDED, FRAGMENTS, COUNTS };

/* The shared address and port, in network byte order. */
const volatile u32 entry_address = 0;
const volatile u32 entry_port = 0;

/* The table in force, in one word so that it changes at once: which half of the maps it has, the position of this replica, and the
 * version. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} table SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 2);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} unreachable SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 2 * BUCKETS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} chains SEC(".maps");

/* Addresses of replicas, in network byte order. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 2 * REPLICAS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} replicas SEC(".maps");

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, COUNTS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} counts SEC(".maps");

/* A packet of a client, or an ICMP error about one of ours to it. */
struct parsed {
	struct ipv4_header ip;
	struct tcp_header tcp;
	u32 client;
	u16 client_port;
	u16 is_error;
};

INLINE void count(u32 which)
{
	u64 *counter = map_lookup(&counts, &which);

	if (counter)
		*counter += 1;
}

/* Reads which packet of ours an ICMP error is about. */
INLINE int parse_error(struct packet *packet, u32 at, struct parsed *parsed)
{
	struct icmp_header icmp;
	struct ipv4_header ours;
	u16 ports[2];

	if (load_bytes(packet, at, &icmp, sizeof(icmp)))
		return 0;
	if (icmp.type != ICMP_UNREACHABLE && icmp.type != ICMP_TIME_EXCEEDED && icmp.type != ICMP_PARAMETER_PROBLEM)
		return 0;
	at += sizeof(icmp);
	if (load_bytes(packet, at, &ours, sizeof(ours)) || ours.protocol != IPPROTO_TCP || ours.source != entry_address)
		return 0;
	if (load_bytes(packet, at + (ours.version_length & 15) * 4, ports, sizeof(ports)) || ports[0] != (u16)entry_port)
		return 0;
	parsed->is_error = 1;
	parsed->client = ours.destination;
	parsed->client_port = ports[1];
	return 1;
}

/* Whether a packet belongs to a connection to the shared address. */
INLINE int parse(struct packet *packet, struct parsed *parsed)
{
	struct ipv4_header *ip = &parsed->ip;
	u32 at;

	if (packet->protocol != NETWORK16(PROTOCOL_IPV4) || packet->has_vlan)
		return 0;
	if (load_bytes(packet, ETHERNET_BYTES, ip, sizeof(*ip)) || ip->destination != entry_address)
		return 0;
	at = ETHERNET_BYTES + (ip->version_length & 15) * 4;
	if (ip->protocol == IPPROTO_ICMP && !(ip->fragment & FRAGMENT_BITS))
		return parse_error(packet, at, parsed);
	if (ip->protocol != IPPROTO_TCP)
		return 0;
	/* Later fragments lack ports. */
	if (ip->fragment & FRAGMENT_BITS)
		return 1;
	if (load_bytes(packet, at, &parsed->tcp, sizeof(parsed->tcp)) || parsed->tcp.destination != (u16)entry_port)
		return 0;
	parsed->client = ip->source;
	parsed->client_port = parsed->tcp.source;
	return 1;
}

/* Looks for the connection among the sockets of this machine. */
INLINE void look_up(struct packet *packet, struct parsed *parsed, struct seen *seen)
{
	struct ipv4_tuple tuple = {
		.source = parsed->client,
		.source_port = parsed->client_port,
		.destination = entry_address,
		.destination_port = entry_port,
	};
	struct bpf_sock *sock = lookup_tcp(packet, &tuple, sizeof(tuple), CURRENT_NAMESPACE, 0);

	if (!sock)
		return;
	if (sock->state == TCP_LISTEN) {
		seen->listens = 1;
		/* Under a flood of SYN packets, the kernel keeps the state of a handshake in the packets alone. */
		if (!parsed->is_error && !seen->begins && (parsed->tcp.flags & TCP_ACK) &&
		    !check_syn_cookie(sock, &parsed->ip, sizeof(parsed->ip), &parsed->tcp, sizeof(parsed->tcp)))
			seen->holds = HOLDS;
	} else {
		seen->holds = sock->state == TCP_TIME_WAIT ? HOLDS_ENDED : HOLDS;
	}
	sock_release(sock);
}

/* Sends the packet to another replica of this network. */
INLINE int pass_on(struct packet *packet, struct parsed *parsed, u32 address, u32 mark)
{
	struct next_hop next = { .family = FAMILY_INET, .address = { address } };
	u16 id = NETWORK16(mark);
	u8 ttl = MARKED_TTL;
	/* The TTL and the protocol are a word of the checksum, in the order of their bytes. */
	u16 from = (u16)(parsed->ip.protocol << 8 | parsed->ip.ttl), to = (u16)(parsed->ip.protocol << 8 | MARKED_TTL);

	if (l3_checksum_replace(packet, CHECKSUM_AT, parsed->ip.id, id, sizeof(id)) ||
	    l3_checksum_replace(packet, CHECKSUM_AT, from, to, sizeof(to)) ||
	    store_bytes(packet, ID_AT, &id, sizeof(id), 0) || store_bytes(packet, TTL_AT, &ttl, sizeof(ttl), 0))
		return TC_SHOT;
	count(PASSED_ON);
	return redirect_neighbour(packet->interface, &next, sizeof(next), 0);
}

SEC("classifier") int redirector(struct packet *packet)
{
	struct parsed parsed = {};
	struct seen seen = {};
	struct outcome outcome = {};
	u32 zero = 0, half, bucket, id;
	u64 *word, *chain, *bits;
	u32 *address;

	if (!parse(packet, &parsed))
		return TC_NEXT;
	if (parsed.ip.fragment & FRAGMENT_BITS) {
		count(FRAGMENTS);
		return TC_SHOT;
	}
	seen.begins = !parsed.is_error && (parsed.tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	look_up(packet, &parsed, &seen);
	word = map_lookup(&table, &zero);
	if (!word)
		return TC_SHOT;
	half = *word & 1;
	seen.own = *word >> 8 & 0xff;
	seen.version = *word >> 16 & VERSION_MASK;
	bucket = half * BUCKETS + bucket_of(NETWORK32(parsed.client), NETWORK16(parsed.client_port));
	chain = map_lookup(&chains, &bucket);
	bits = map_lookup(&unreachable, &half);
	if (!chain || !bits)
		return TC_SHOT;
	seen.chain = *chain;
	seen.unreachable = *bits;
	id = NETWORK16(parsed.ip.id);
	seen.is_marked = parsed.ip.ttl == MARKED_TTL;
	seen.marked_version = id >> VERSION_SHIFT & VERSION_MASK;
	seen.hops = id >> HOPS_SHIFT;
	decide_redirect(&seen, &outcome);
	if (outcome.verdict == TAKE) {
		count(seen.holds ? HELD : seen.begins && seen.listens ? BEGUN : UNCLAIMED);
		return TC_NEXT;
	}
	half = half * REPLICAS + (outcome.next & (REPLICAS - 1));
	address = map_lookup(&replicas, &half);
	if (outcome.verdict == DISCARD || !address) {
		count(DISCARDED);
		return TC_SHOT;
	}
	return pass_on(packet, &parsed, *address, outcome.hops << HOPS_SHIFT | seen.version << VERSION_SHIFT);
}

char LICENSE[] SEC("license") = "GPL";
