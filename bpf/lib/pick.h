/* SPDX-License-Identifier: GPL-2.0 */
/* Picks an endpoint as crates/decide/balancer does, from the numbers of crates/decide/router: the same integers in the same order, so that the
 * same seed gives the same endpoint. Where an ejected endpoint is compared, the pick is the proxy's: it may be panic, and other
 * ranks may be better. */
#ifndef FAIRMESH_PICK_H
#define FAIRMESH_PICK_H

#include "mix.h"
#include "shared.h"

#define GAMMA 0x9e3779b97f4a7c15ULL

enum {
	SCORE_BITS = 18,
	COST_BITS = 10,
	LOAD_BITS = 8,
	UNIT_COST_BITS = 20,
	MAX_NEXT_CALL_COST = (7 << COST_BITS) / 4,
	CALLS_MASK = (1 << 20) - 1,
	FULL_SCAN_MAX = 4,
};

/* What is compared of a candidate. */
struct scored {
	s64 score;
	u32 position, outstanding, weight;
};

struct pick {
	struct policy *policy;
	struct hot_block *block;
	u64 random; /* state of the generator, at first the seed */
	u64 now;
	u32 tick;
	u32 ejected; /* set when a candidate that is ejected was compared */
};

/* The high half of the product. */
INLINE u64 multiply_high(u64 a, u64 b)
{
	u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
	u64 middle = a1 * b0 + (a0 * b0 >> 32);
	u64 other = a0 * b1 + (u32)middle;
	return a1 * b1 + (middle >> 32) + (other >> 32);
}

INLINE u64 next_random(u64 *state)
{
	*state += GAMMA;
	return mix64(*state);
}

INLINE u64 below(u64 *state, u64 bound)
{
	return multiply_high(next_random(state), bound);
}

/* Shifts of negative numbers round down in C as they do in Rust: clang and gcc say so. */
INLINE s64 decay(s64 value, u32 age)
{
	u32 halvings = age >> 8, rest = age & 255;

	if (halvings >= 32)
		return 0;
	return value * (s64)(512 - rest) >> ((9 + halvings) & 63);
}

INLINE u32 fade_cost(u32 cost, u32 age, u32 memory)
{
	s64 unit = 1 << UNIT_COST_BITS;

	return age < memory ? cost : (u32)(unit + decay((s64)cost - unit, (age - memory) / 2));
}

INLINE u32 pick_tick(struct policy *policy, u64 now)
{
	u32 tick = (u32)multiply_high(now, policy->ticks_per_nano);
	return tick ? tick : 1;
}

/* Ticks since the last report. A new endpoint has none, and is dated by the first pick that considers it. */
INLINE u32 report_age(struct hot *hot, u32 tick)
{
	u32 at = hot->updated_tick;

	if (!at) {
		hot->updated_tick = tick;
		return 0;
	}
	u32 age = tick - at;
	return age > 0xffffffffu - 256 ? 0 : age;
}

INLINE s64 load_score(struct pick *pick, struct hot *hot, u32 counts, u64 load)
{
	u32 age = report_age(hot, pick->tick), memory = pick->policy->memory;
	u32 cost = load >> 16 & 0x7fff;
	s64 excess = (s32)(load >> 32);

	if (age > memory)
		cost = fade_cost(cost << (UNIT_COST_BITS - COST_BITS), age, memory) >> (UNIT_COST_BITS - COST_BITS);
	u64 own_load = ((u64)(counts & CALLS_MASK) << LOAD_BITS) + ((u64)(counts >> 20) << (LOAD_BITS - 4));
	u64 calls = own_load * (load & 0xffff) >> 8;
	u32 next = cost < MAX_NEXT_CALL_COST ? cost : MAX_NEXT_CALL_COST;
	u64 own = calls * cost + ((u64)next << LOAD_BITS);
	return (s64)own + (s64)((u64)decay(excess, age) << COST_BITS);
}

/* By how much the score is raised of an endpoint that ramps up after an ejection: at first by one request. */
INLINE s64 ramp(struct penalty *penalty, u64 now)
{
	u64 end = penalty->ramp_end, from = penalty->failing_until;

	if (end <= now || end <= from)
		return 0;
	u64 left = end - now, duration = end - from;
	return (s64)(((left < duration ? left : duration) << 8) / duration << (SCORE_BITS - 8));
}

INLINE void score_position(struct pick *pick, u32 position, struct scored *scored)
{
	struct candidate *candidate = &pick->policy->candidates[position % BLOCK_ENDPOINTS];
	u32 index = candidate->index % BLOCK_ENDPOINTS;
	struct hot *hot = &pick->block->hot[index];
	struct penalty *penalty = &pick->block->penalties[index];
	u32 counts = *(volatile u32 *)&hot->counts;
	u64 load = *(volatile u64 *)&hot->load;

	scored->position = position;
	scored->outstanding = counts & CALLS_MASK;
	scored->weight = candidate->weight;
	scored->score = pick->policy->policy == POLICY_SCORE ? load_score(pick, hot, counts, load) : 0;
	if (load >> 31 & 1) {
		pick->ejected |= penalty->ejected_until > pick->now;
		if (pick->policy->policy == POLICY_SCORE)
			scored->score += ramp(penalty, pick->now);
	}
}

/* The position whose interval of the cumulative weights holds the point. Sums without branches, which the verifier would follow
 * one by one. */
INLINE u32 position_at(struct policy *policy, u64 point)
{
	u32 position = 0;

#pragma unroll
	for (u32 i = 0; i < BLOCK_ENDPOINTS; i++)
		position += (policy->candidates[i].cumulative_weight - point - 1) >> 63;
	return position;
}

INLINE u64 total_weight(struct policy *policy)
{
	return policy->candidates[(policy->length - 1) % BLOCK_ENDPOINTS].cumulative_weight;
}

INLINE u32 sample(struct pick *pick)
{
	struct policy *policy = pick->policy;

	if (policy->equal_weight)
		return (u32)below(&pick->random, policy->length);
	return position_at(policy, below(&pick->random, total_weight(policy)));
}

INLINE u32 sample_excluding(struct pick *pick, u32 excluded)
{
	struct policy *policy = pick->policy;

	if (policy->equal_weight) {
		u32 position = (u32)below(&pick->random, policy->length - 1);
		return position + (position >= excluded);
	}
	struct candidate *candidate = &policy->candidates[excluded % BLOCK_ENDPOINTS];
	u64 weight = candidate->weight, start = candidate->cumulative_weight - weight;
	u64 point = below(&pick->random, total_weight(policy) - weight);
	return position_at(policy, point >= start ? point + weight : point);
}

INLINE int is_better(struct pick *pick, struct scored *a, struct scored *b)
{
	u32 policy = pick->policy->policy;

	if (policy == POLICY_LEAST_REQUEST)
		return (u64)a->outstanding * b->weight < (u64)b->outstanding * a->weight;
	return policy == POLICY_SCORE && a->score < b->score;
}

/* The best of up to FULL_SCAN_MAX candidates; of equals, each by its weight. */
INLINE u32 best_candidate(struct pick *pick)
{
	struct scored best = {}, scored;
	u64 equal_weight = 0;

#pragma unroll
	for (u32 i = 0; i < FULL_SCAN_MAX; i++) {
		if (i >= pick->policy->length)
			break;
		score_position(pick, i, &scored);
		if (!i || is_better(pick, &scored, &best)) {
			best = scored;
			equal_weight = scored.weight;
		} else if (!is_better(pick, &best, &scored)) {
			equal_weight += scored.weight;
			if (below(&pick->random, equal_weight) < scored.weight)
				best = scored;
		}
	}
	return best.position;
}

/* Power of two choices. By score the second wins with a probability that grows with its lead. */
INLINE u32 better_of_two(struct pick *pick)
{
	struct scored a, b;
	u32 first = sample(pick);
	u32 second = sample_excluding(pick, first);

	score_position(pick, first, &a);
	score_position(pick, second, &b);
	if (pick->policy->policy != POLICY_SCORE)
		return is_better(pick, &b, &a) ? b.position : a.position;
	s64 fraction = (s64)(next_random(&pick->random) >> (64 - SCORE_BITS));
	return b.score + fraction < a.score ? b.position : a.position;
}

INLINE u32 round_robin_position(struct pick *pick)
{
	struct policy *policy = pick->policy;
	u32 turn = *(volatile u32 *)&pick->block->round_robin;
	struct scored scored;

	if (!policy->length)
		return 0;
	u32 position = policy->equal_weight ? turn % policy->length :
					      position_at(policy, multiply_high((u64)turn * GAMMA, total_weight(policy)));
	score_position(pick, position, &scored);
	return position;
}

/* The position of the candidate that gets the call. */
INLINE u32 pick_position(struct pick *pick)
{
	struct policy *policy = pick->policy;
	struct scored only;

	if (policy->policy == POLICY_ROUND_ROBIN)
		return round_robin_position(pick);
	if (policy->policy != POLICY_SCORE && policy->length <= FULL_SCAN_MAX)
		return best_candidate(pick);
	if (policy->length > 1)
		return better_of_two(pick);
	score_position(pick, 0, &only);
	return 0;
}

#endif
