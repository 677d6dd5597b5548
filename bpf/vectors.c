/* SPDX-License-Identifier: GPL-2.0 */
/* Decides natively, for crates/kernel/tests/vectors.rs: reads a policy, the statistics of its endpoints, a time and a seed, and
 * writes the position that is picked, whether it is left to the proxy instead, and the scores. Compiled by the test. */
#include <stdio.h>

#include "pick.h"

struct input {
	struct policy policy;
	struct hot_block block;
	u64 now, seed;
};

struct output {
	u32 position, ejected;
	s64 scores[BLOCK_ENDPOINTS];
};

int main(void)
{
	struct input input;

	while (fread(&input, sizeof(input), 1, stdin) == 1) {
		struct pick pick = { .policy = &input.policy, .block = &input.block, .random = input.seed };
		struct output output = {};
		struct scored scored;

		pick.now = input.now - input.policy.origin;
		pick.tick = pick_tick(&input.policy, pick.now);
		output.position = pick_position(&pick);
		output.ejected = pick.ejected;
		for (u32 i = 0; i < input.policy.length; i++) {
			score_position(&pick, i, &scored);
			output.scores[i] = scored.score;
		}
		if (fwrite(&output, sizeof(output), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
