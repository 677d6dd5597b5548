/* SPDX-License-Identifier: GPL-2.0 */
/* Decisions for crates/edge/kernel/tests/vectors: what they are made from, and what they are. Natively and in the kernel the same. */
#ifndef FAIRMESH_VECTORS_H
#define FAIRMESH_VECTORS_H

#include "../entry/redirect.h"
#include "../lib/route.h"

/* A policy, the statistics of its endpoints, a time and a seed. */
struct pick_input {
	struct policy policy;
	struct hot_block block;
	u64 now, seed;
};

/* The position that is picked, whether it is left to the proxy instead, and the scores. */
struct pick_output {
	u32 position, ejected;
	s64 scores[BLOCK_ENDPOINTS];
};

/* A policy and a request. */
struct route_input {
	struct policy policy;
	u64 length; /* of the request */
	u8 request[REQUEST_BYTES];
};

/* By seed: the position of the service that gets the request; or why it is left to the proxy. */
struct route_output {
	u32 why[8], position[8];
};

struct parse_input {
	u64 length;
	u8 request[REQUEST_BYTES];
};

/* What is understood of a request that is accepted. */
struct parse_output {
	u32 is_plain, end, content_length, method, path_at, path_length, host_at, host_length;
};

/* What is understood of a response that goes to the caller as it is. */
struct answer_output {
	u32 is_plain, end, content_length, status, load_at, load_length;
};

struct arith_input {
	u64 x, seed, bound;
};

/* mix64(x), and what the generator of this seed gives: numbers below the bound, or any. */
struct arith_output {
	u64 mixed, below[3], next[3];
};

/* A client, and a packet at a replica. */
struct redirect_input {
	struct seen seen;
	u32 address, port;
};

struct redirect_output {
	u32 bucket;
	struct outcome outcome;
};

INLINE void decide_redirect_of(struct redirect_input *input, struct redirect_output *output)
{
	output->bucket = bucket_of(input->address, input->port);
	decide_redirect(&input->seen, &output->outcome);
}

INLINE void decide_pick(struct pick_input *input, struct pick_output *output)
{
	struct pick pick = { .policy = &input->policy, .block = &input->block, .random = input->seed };
	struct scored scored;

	pick.now = input->now - input->policy.origin;
	pick.tick = pick_tick(&input->policy, pick.now);
	output->position = pick_position(&pick);
	output->ejected = pick.ejected;
	for (u32 i = 0; i < BLOCK_ENDPOINTS; i++) {
		if (i >= input->policy.length)
			break;
		score_position(&pick, i, &scored);
		output->scores[i] = scored.score;
	}
}

INLINE void decide_answer(struct http *http, struct parse_input *input, struct answer_output *output)
{
	struct parser *parser = &http->parser;
	struct parsed parsed = { .http = http };

	begin_response(http);
	probe_read_kernel(http->bytes, REQUEST_BYTES, input->request);
	parser->available = input->length;
	loop(REQUEST_BYTES, parse_step, &parsed, 0);
	output->is_plain = is_plain_response(parser, input->length);
	output->end = parser->end;
	output->content_length = parser->content_length;
	output->status = parser->status;
	output->load_at = parser->load_at;
	output->load_length = parser->load_length;
}

INLINE int parse_request(struct http *http, u8 *request, u32 length)
{
	struct parser *parser = &http->parser;
	struct parsed parsed = { .http = http };

	__builtin_memset(parser, 0, sizeof(*parser));
	probe_read_kernel(http->bytes, REQUEST_BYTES, request);
	parser->available = length;
	loop(REQUEST_BYTES, parse_step, &parsed, 0);
	return parser->end && !parser->refused && parser->host_length;
}

/* `http` is memory that the decision needs. */
INLINE void decide_parse(struct http *http, struct parse_input *input, struct parse_output *output)
{
	struct parser *parser = &http->parser;

	output->is_plain = parse_request(http, input->request, input->length);
	output->end = parser->end;
	output->content_length = parser->content_length;
	output->method = parser->method;
	output->path_at = parser->path_at;
	output->path_length = parser->path_length;
	output->host_at = parser->host_at;
	output->host_length = parser->host_length;
}

INLINE void decide_route(struct http *http, struct route_input *input, struct route_output *output)
{
	int is_plain = parse_request(http, input->request, input->length);
	for (u32 seed = 0; seed < 8; seed++) {
		struct service service = { .id = 1 };
		output->why[seed] = is_plain ? route_request(http, &input->policy, seed, &service) : NOT_PLAIN;
		output->position[seed] = service.position;
	}
}

INLINE void decide_arith(struct arith_input *input, struct arith_output *output)
{
	u64 bounded = input->seed, any = input->seed;

	output->mixed = mix64(input->x);
	for (u32 i = 0; i < 3; i++) {
		output->below[i] = below(&bounded, input->bound);
		output->next[i] = next_random(&any);
	}
}

#endif
