/* SPDX-License-Identifier: GPL-2.0 */
/* Who gets a packet to the address that the replicas of a backend share: this replica, another one in the chain of its bucket, or
 * nobody. The tables are made by crates/decide/placement/src/bucket_table.rs; tests decide vectors/redirects.json, natively and in the
 * kernel. */
#ifndef FAIRMESH_REDIRECT_H
#define FAIRMESH_REDIRECT_H

#include "../lib/mix.h"

enum {
	BUCKETS = 4096,
	CHAIN = 8,    /* replicas of a bucket, as bytes of a word; the head is the lowest one */
	REPLICAS = 64,
	NO_REPLICA = 0xff,
	MOST_HOPS = 15,
};

enum holds {
	HOLDS_NOTHING,
	HOLDS_ENDED, /* a connection in TIME_WAIT, whose addresses another one may have */
	HOLDS,
};

enum verdict {
	TAKE,    /* the packet is for this replica, whose kernel resets it if it belongs to nothing */
	PASS_ON, /* to the next replica */
	DISCARD, /* the sender sends it again, when the tables of all replicas agree */
};

/* A packet and what this replica knows of it. */
struct seen {
	u64 chain;
	u64 unreachable; /* one bit for each replica */
	u32 own;         /* this replica, or NO_REPLICA if the table lacks it */
	u32 version;     /* of the table */
	u32 is_marked;   /* another replica passed it on */
	u32 marked_version, hops;
	u32 begins; /* a connection */
	u32 listens, holds;
};

struct outcome {
	u32 verdict, next, hops;
};

/* By the address and port of the client, as numbers. */
INLINE u32 bucket_of(u32 address, u16 port)
{
	return mix64((u64)address << 16 | port) & (BUCKETS - 1);
}

/* The first replica of the chain from a place on that can be reached. */
INLINE u32 reachable_from(const struct seen *seen, u32 place)
{
	for (u32 at = 0; at < CHAIN; at++) {
		u32 replica = seen->chain >> 8 * at & 0xff;
		if (at < place || replica >= REPLICAS)
			continue;
		if (replica == seen->own || !(seen->unreachable >> replica & 1))
			return replica;
	}
	return NO_REPLICA;
}

/* The place of this replica in the chain, or CHAIN. */
INLINE u32 own_place(const struct seen *seen)
{
	for (u32 at = 0; at < CHAIN; at++)
		if (seen->own < REPLICAS && (seen->chain >> 8 * at & 0xff) == seen->own)
			return at;
	return CHAIN;
}

/* A packet walks the chain from its head until a replica holds its connection or, for the first packet, accepts connections. A replica
 * is in turn if it is the head, or if a replica with the same table passed the packet on. Where tables differ, the walk begins again. */
INLINE void decide_redirect(const struct seen *seen, struct outcome *outcome)
{
	u32 place = own_place(seen), head = reachable_from(seen, 0);
	u32 continues = seen->is_marked && seen->marked_version == seen->version && place < CHAIN;
	u32 in_turn = continues || (place < CHAIN && head == seen->own);

	outcome->verdict = TAKE;
	outcome->hops = seen->is_marked ? seen->hops + 1 : 1;
	outcome->next = NO_REPLICA;
	if (seen->holds == HOLDS)
		return;
	if (in_turn && (seen->holds == HOLDS_ENDED || (seen->begins && seen->listens)))
		return;
	outcome->next = in_turn ? reachable_from(seen, place + 1) : head;
	if (outcome->next == NO_REPLICA)
		/* Nobody holds it: the kernel of the last replica resets it. */
		outcome->verdict = in_turn ? TAKE : DISCARD;
	else
		outcome->verdict = outcome->hops > MOST_HOPS ? DISCARD : PASS_ON;
}

#endif
