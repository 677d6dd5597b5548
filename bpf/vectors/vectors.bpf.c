/* SPDX-License-Identifier: GPL-2.0 */
/* Decides in the kernel, as programs that are only ever run by BPF_PROG_TEST_RUN, which sk_msg programs cannot be. Compiled by the
 * tests. */
#include "vectors.h"

#define MEMORY(name, content)              \
	struct {                           \
		MAP_UINT(type, MAP_ARRAY); \
		MAP_UINT(max_entries, 1);  \
		MAP_TYPE(key, u32);        \
		MAP_TYPE(value, struct content); \
	} name SEC(".maps")

MEMORY(pick_inputs, pick_input);
MEMORY(pick_outputs, pick_output);
MEMORY(route_inputs, route_input);
MEMORY(route_outputs, route_output);
MEMORY(route_messages, http);
MEMORY(arith_inputs, arith_input);
MEMORY(arith_outputs, arith_output);
MEMORY(redirect_inputs, redirect_input);
MEMORY(redirect_outputs, redirect_output);

SEC("classifier") int pick_vectors(void *packet)
{
	u32 zero = 0;
	struct pick_input *input = map_lookup(&pick_inputs, &zero);
	struct pick_output *output = map_lookup(&pick_outputs, &zero);

	if (input && output)
		decide_pick(input, output);
	return 0;
}

SEC("classifier") int route_vectors(void *packet)
{
	u32 zero = 0;
	struct route_input *input = map_lookup(&route_inputs, &zero);
	struct route_output *output = map_lookup(&route_outputs, &zero);
	struct http *http = map_lookup(&route_messages, &zero);

	if (input && output && http)
		decide_route(http, input, output);
	return 0;
}

SEC("classifier") int arith_vectors(void *packet)
{
	u32 zero = 0;
	struct arith_input *input = map_lookup(&arith_inputs, &zero);
	struct arith_output *output = map_lookup(&arith_outputs, &zero);

	if (input && output)
		decide_arith(input, output);
	return 0;
}

SEC("classifier") int redirect_vectors(void *packet)
{
	u32 zero = 0;
	struct redirect_input *input = map_lookup(&redirect_inputs, &zero);
	struct redirect_output *output = map_lookup(&redirect_outputs, &zero);

	if (input && output)
		decide_redirect_of(input, output);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
