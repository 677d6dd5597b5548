/* SPDX-License-Identifier: GPL-2.0 */
/* Routes, as crates/decide/router decides them: in order, the first match wins. A route whose conditions cannot all be judged here, and of
 * which none fails, may match: then the request is the proxy's. */
#ifndef FAIRMESH_ROUTE_H
#define FAIRMESH_ROUTE_H

#include "parse.h"
#include "pick.h"

struct routing {
	struct http *http;
	struct policy *policy;
	u32 fails;   /* a condition of the current route does */
	u32 unknown; /* one cannot be judged */
	u32 ends;    /* the position of the step that ends the route that may match, plus 1; 0 where none may */
};

struct header_search {
	struct http *http;
	struct route_step *step;
	u32 found; /* position plus 1 */
};

/* Whether the request has this text at a position. */
INLINE int has_text(struct http *http, u32 at, struct route_step *step)
{
	u32 length = step->argument;

#pragma unroll
	for (u32 i = 0; i < ROUTE_TEXT / 8; i++) {
		if (length <= i * 8)
			break;
		u64 word = *(u64 *)(http->bytes + (at + i * 8) % REQUEST_BYTES);
		if (length < i * 8 + 8)
			word &= (1ULL << (length - i * 8) * 8) - 1;
		if (word != step->text[i])
			return 0;
	}
	return 1;
}

INLINE int path_matches(struct http *http, struct route_step *step)
{
	struct parser *parser = &http->parser;
	u32 length = step->argument, end = parser->path_at + length;

	if (parser->path_length < length || !has_text(http, parser->path_at, step))
		return 0;
	if (parser->path_length == length)
		return 1;
	return step->kind == STEP_PATH_PREFIX && http->bytes[end % REQUEST_BYTES] == '/';
}

/* Ends the loop with 1 at the first field of the name. */
static long find_header(u32 at, struct header_search *search)
{
	struct header *header = &search->http->headers[at % HEADERS];
	struct route_step *step = search->step;

	if (at >= search->http->parser.headers)
		return 1;
	if (header->name[0] != step->name[0] || header->name[1] != step->name[1] || header->name[2] != step->name[2] ||
	    header->is_long)
		return 0;
	search->found = at + 1;
	return 1;
}

INLINE void judge_header(struct routing *routing, struct route_step *step)
{
	struct http *http = routing->http;
	struct header_search search = { .http = http, .step = step };

	loop(HEADERS, find_header, &search, 0);
	if (!search.found) {
		/* Or it is among those that were not kept. */
		if (http->parser.headers > HEADERS)
			routing->unknown = 1;
		else
			routing->fails |= step->kind != STEP_HEADER_ABSENT;
		return;
	}
	struct header *header = &http->headers[(search.found - 1) % HEADERS];
	u32 length = step->argument;
	if (step->kind == STEP_HEADER_ABSENT)
		routing->fails = 1;
	if (step->kind != STEP_HEADER_EXACT && step->kind != STEP_HEADER_PREFIX)
		return;
	if (header->is_spaced)
		routing->unknown = 1;
	else if (header->length < length || (step->kind == STEP_HEADER_EXACT && header->length != length) ||
		 !has_text(http, header->at, step))
		routing->fails = 1;
}

/* Judges one condition, or ends a route; ends the loop with 1 when the route may match. */
static long judge_step(u32 at, struct routing *routing)
{
	struct policy *policy = routing->policy;
	struct route_step *step = &policy->steps[at % ROUTE_STEPS];
	u32 kind = step->kind;

	if (at >= policy->step_count)
		return 1;
	if (kind >= STEP_TO_SERVICE) {
		if (!routing->fails) {
			routing->ends = at + 1;
			return 1;
		}
		routing->fails = routing->unknown = 0;
	} else if (kind == STEP_METHOD) {
		routing->fails |= !(routing->http->parser.method & step->argument);
	} else if (kind == STEP_PATH_EXACT || kind == STEP_PATH_PREFIX) {
		routing->fails |= !path_matches(routing->http, step);
	} else if (kind == STEP_QUERY) {
		/* Without a query, all parameters are absent. */
		if (routing->http->parser.has_query)
			routing->unknown = 1;
		else
			routing->fails |= !step->argument;
	} else if (kind == STEP_UNKNOWN) {
		routing->unknown = 1;
	} else {
		judge_header(routing, step);
	}
	return 0;
}

/* The backend of a split for this seed. */
INLINE struct arm *pick_arm(struct policy *policy, struct route_step *step, u64 seed)
{
	u32 first = step->argument & 0xffff, count = step->argument >> 16, arm = first;
	u64 state = mix64(seed);
	u64 point = below(&state, policy->arms[(first + count - 1) % ROUTE_ARMS].cumulative_weight);

	for (u32 i = 0; i < ROUTE_ARMS; i++)
		arm += i < count && policy->arms[(first + i) % ROUTE_ARMS].cumulative_weight <= point;
	return &policy->arms[arm % ROUTE_ARMS];
}

/* Where the service lies that gets the request; returns 0, or why the request is left to the proxy. `service` is the one that the
 * host names, and becomes the other. */
OWN_FRAME int route_request(struct http *http, struct policy *policy, u64 seed, struct service *service)
{
	struct routing routing = { .http = http, .policy = policy };

	if (!policy->step_count)
		return 0;
	loop(ROUTE_STEPS, judge_step, &routing, 0);
	if (!routing.ends)
		return 0;
	struct route_step *step = &policy->steps[(routing.ends - 1) % ROUTE_STEPS];
	u32 kind = step->kind;
	if (routing.unknown || kind == STEP_LEAVE)
		return ROUTE_LEFT;
	if (kind == STEP_TO_ARMS) {
		struct arm *arm = pick_arm(policy, step, seed);
		service->position = arm->position;
		service->id = arm->id;
		if (!arm->id)
			return SERVICE_UNKNOWN;
	}
	return 0;
}

#endif
