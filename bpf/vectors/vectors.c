/* SPDX-License-Identifier: GPL-2.0 */
/* Decides natively: reads inputs of the kind that the argument names, and writes an output for each. Compiled by the tests. As a
 * library (FAIRMESH_LIBRARY), it is what fuzz/src/kernel_head.rs calls. */
#include <stdio.h>
#include <string.h>

#define FAIRMESH_NATIVE
#include "vectors.h"

static _Thread_local struct http http;

static void decide_route_natively(struct route_input *input, struct route_output *output)
{
	decide_route(&http, input, output);
}

static void decide_parse_natively(struct parse_input *input, struct parse_output *output)
{
	decide_parse(&http, input, output);
}

static void decide_answer_natively(struct parse_input *input, struct answer_output *output)
{
	decide_answer(&http, input, output);
}

#ifdef FAIRMESH_LIBRARY
void fairmesh_parse_request(struct parse_input *input, struct parse_output *output)
{
	decide_parse(&http, input, output);
}

void fairmesh_parse_response(struct parse_input *input, struct answer_output *output)
{
	decide_answer(&http, input, output);
}

/* The fields of the last message that are kept; how many it has in all. */
u32 fairmesh_fields(struct header *fields)
{
	memcpy(fields, http.headers, sizeof(http.headers));
	return http.parser.headers;
}
#else
/* For each input on stdin, writes what `decide` makes of it. */
#define DECIDE_ALL(from, kind, decide)                                       \
	do {                                                                 \
		static struct from##_input input;                            \
		while (fread(&input, sizeof(input), 1, stdin) == 1) {        \
			struct kind##_output output = {};                    \
			decide(&input, &output);                             \
			if (fwrite(&output, sizeof(output), 1, stdout) != 1) \
				return 1;                                    \
		}                                                            \
	} while (0)

int main(int arguments, char **argument)
{
	if (arguments != 2)
		return 2;
	if (!strcmp(argument[1], "pick"))
		DECIDE_ALL(pick, pick, decide_pick);
	else if (!strcmp(argument[1], "route"))
		DECIDE_ALL(route, route, decide_route_natively);
	else if (!strcmp(argument[1], "parse"))
		DECIDE_ALL(parse, parse, decide_parse_natively);
	else if (!strcmp(argument[1], "answer"))
		DECIDE_ALL(parse, answer, decide_answer_natively);
	else if (!strcmp(argument[1], "arith"))
		DECIDE_ALL(arith, arith, decide_arith);
	else if (!strcmp(argument[1], "redirect"))
		DECIDE_ALL(redirect, redirect, decide_redirect_of);
	else
		return 2;
	return 0;
}
#endif
