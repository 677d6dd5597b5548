/* SPDX-License-Identifier: GPL-2.0 */
/* The head of a request. Only what is read in one way by everybody is accepted: lines that end with CRLF, names of letters,
 * digits, '-' and '_', one host, one length. Everything else is the proxy's to judge. RFC 9112, sections 3, 5 and 6. */
#ifndef FAIRMESH_PARSE_H
#define FAIRMESH_PARSE_H

#include "maps.h"

#define EIGHT(a, b, c, d, e, f, g, h)                                                                     \
	((u64)(a) | (u64)(b) << 8 | (u64)(c) << 16 | (u64)(d) << 24 | (u64)(e) << 32 | (u64)(f) << 40 |   \
	 (u64)(g) << 48 | (u64)(h) << 56)
#define FOUR(a, b, c, d) EIGHT(a, b, c, d, 0, 0, 0, 0)

INLINE void token_push(struct token *token, u8 byte)
{
	u64 shifted = (u64)byte << (token->length % 8 * 8);

	if (token->length < 8)
		token->word0 |= shifted;
	else if (token->length < 16)
		token->word1 |= shifted;
	else if (token->length < 24)
		token->word2 |= shifted;
	token->length++;
}

INLINE void token_clear(struct token *token)
{
	token->word0 = token->word1 = token->word2 = 0;
	token->length = 0;
}

/* Whether a token that is no longer than its words is this text. */
INLINE int token_is(struct token *token, u64 word0, u64 word1, u64 word2)
{
	return token->word0 == word0 && token->word1 == word1 && token->word2 == word2 && token->length <= 24;
}

INLINE u8 lower(u8 byte)
{
	return byte >= 'A' && byte <= 'Z' ? byte | 0x20 : byte;
}

INLINE int is_name_byte(u8 byte)
{
	return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '-' || byte == '_';
}

/* The bit of a method whose responses have bodies like any other; 0 of others. */
INLINE u32 method_bit(struct token *token)
{
	return token_is(token, FOUR('G', 'E', 'T', 0), 0, 0) | token_is(token, FOUR('P', 'O', 'S', 'T'), 0, 0) << 1 |
	       token_is(token, FOUR('P', 'U', 'T', 0), 0, 0) << 2 |
	       token_is(token, EIGHT('P', 'A', 'T', 'C', 'H', 0, 0, 0), 0, 0) << 3 |
	       token_is(token, EIGHT('D', 'E', 'L', 'E', 'T', 'E', 0, 0), 0, 0) << 4 |
	       token_is(token, EIGHT('O', 'P', 'T', 'I', 'O', 'N', 'S', 0), 0, 0) << 5;
}

/* Fields that belong to the connection, frame the message in another way, or are for Fairmesh. */
INLINE int is_refused_field(struct token *token)
{
	if ((token->word0 == EIGHT('x', '-', 'f', 'a', 'i', 'r', 'm', 'e')) && (token->word1 & 0xffffff) == FOUR('s', 'h', '-', 0))
		return 1;
	return token_is(token, FOUR('t', 'e', 0, 0), 0, 0) || token_is(token, EIGHT('e', 'x', 'p', 'e', 'c', 't', 0, 0), 0, 0) ||
	       token_is(token, EIGHT('u', 'p', 'g', 'r', 'a', 'd', 'e', 0), 0, 0) ||
	       token_is(token, EIGHT('t', 'r', 'a', 'i', 'l', 'e', 'r', 0), 0, 0) ||
	       token_is(token, EIGHT('k', 'e', 'e', 'p', '-', 'a', 'l', 'i'), FOUR('v', 'e', 0, 0), 0) ||
	       token_is(token, EIGHT('g', 'r', 'p', 'c', '-', 't', 'i', 'm'), FOUR('e', 'o', 'u', 't'), 0) ||
	       token_is(token, EIGHT('p', 'r', 'o', 'x', 'y', '-', 'c', 'o'), EIGHT('n', 'n', 'e', 'c', 't', 'i', 'o', 'n'), 0) ||
	       token_is(token, EIGHT('t', 'r', 'a', 'n', 's', 'f', 'e', 'r'), EIGHT('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n'), 'g') ||
	       token_is(token, EIGHT('p', 'r', 'o', 'x', 'y', '-', 'a', 'u'), EIGHT('t', 'h', 'o', 'r', 'i', 'z', 'a', 't'), FOUR('i', 'o', 'n', 0));
}

INLINE void name_ends(struct caller *caller)
{
	struct parser *parser = &caller->parser;
	struct token *name = &parser->token;
	struct header *header = &caller->headers[parser->headers % HEADERS];

	if (parser->headers < HEADERS) {
		header->name[0] = name->word0;
		header->name[1] = name->word1;
		header->name[2] = name->word2;
		header->is_long = name->length > 24;
	}
	parser->headers++;

	parser->field = FIELD_OTHER;
	if (!name->length || is_refused_field(name))
		parser->refused = 1;
	else if (token_is(name, FOUR('h', 'o', 's', 't'), 0, 0))
		parser->field = FIELD_HOST;
	else if (token_is(name, EIGHT('c', 'o', 'n', 't', 'e', 'n', 't', '-'), EIGHT('l', 'e', 'n', 'g', 't', 'h', 0, 0), 0))
		parser->field = FIELD_LENGTH;
	else if (token_is(name, EIGHT('c', 'o', 'n', 'n', 'e', 'c', 't', 'i'), FOUR('o', 'n', 0, 0), 0))
		parser->field = FIELD_CONNECTION;
	token_clear(name);
}

INLINE int is_white(u8 byte)
{
	return byte == ' ' || byte == '\t';
}

INLINE void value_ends(struct caller *caller)
{
	struct parser *parser = &caller->parser;
	struct token *value = &parser->token;
	struct header *header = &caller->headers[(parser->headers - 1) % HEADERS];

	if (parser->headers <= HEADERS) {
		u32 last = parser->at + value->length - 1;
		header->at = parser->at;
		header->length = value->length;
		header->is_spaced = value->length && (is_white(caller->request[parser->at % REQUEST_BYTES]) ||
						      is_white(caller->request[last % REQUEST_BYTES]));
	}

	if (parser->field == FIELD_HOST) {
		parser->refused |= parser->host_length || !value->length;
		parser->host_at = parser->at;
		parser->host_length = value->length;
	} else if (parser->field == FIELD_LENGTH) {
		parser->refused |= parser->has_length || !parser->digits || parser->digits > 6;
		parser->has_length = 1;
	} else if (parser->field == FIELD_CONNECTION) {
		parser->refused |= !token_is(value, EIGHT('k', 'e', 'e', 'p', '-', 'a', 'l', 'i'), FOUR('v', 'e', 0, 0), 0);
	}
	token_clear(value);
}

INLINE void value_byte(struct parser *parser, u8 byte)
{
	if ((byte < ' ' && byte != '\t') || byte == 0x7f)
		parser->refused = 1;
	if (parser->field == FIELD_LENGTH) {
		parser->refused |= byte < '0' || byte > '9';
		parser->content_length = parser->content_length * 10 + (byte - '0');
		parser->digits++;
	}
	token_push(&parser->token, lower(byte));
}

INLINE void request_line_byte(struct parser *parser, u32 at, u8 byte)
{
	struct token *token = &parser->token;

	if (parser->state == METHOD && byte == ' ') {
		parser->method = method_bit(token);
		parser->refused |= !parser->method;
		parser->state = TARGET;
		token_clear(token);
	} else if (parser->state == TARGET && byte == ' ') {
		parser->refused |= !token->length;
		if (!parser->has_query)
			parser->path_length = token->length;
		parser->state = VERSION;
		token_clear(token);
	} else if (parser->state == TARGET) {
		parser->refused |= byte <= ' ' || byte >= 0x7f || byte == '#' || (!token->length && byte != '/');
		if (!token->length)
			parser->path_at = at;
		if (byte == '?' && !parser->has_query) {
			parser->path_length = token->length;
			parser->has_query = 1;
		}
		token->length++;
	} else if (parser->state == VERSION && byte == '\r') {
		parser->refused |= !token_is(token, EIGHT('H', 'T', 'T', 'P', '/', '1', '.', '1'), 0, 0);
		parser->state = LINE_END;
		token_clear(token);
	} else {
		/* A token does not show it. */
		parser->refused |= !byte;
		token_push(token, byte);
	}
}

/* What the loop over bytes is given: it takes no pointer into a map itself. */
struct parsed {
	struct caller *caller;
};

/* Reads one byte; bounded by what was sent, and ends the loop with 1. */
static long parse_byte(u32 at, struct parsed *parsed)
{
	struct caller *caller = parsed->caller;
	struct parser *parser = &caller->parser;

	if (at >= parser->available || parser->refused)
		return 1;
	u8 byte = caller->request[at % REQUEST_BYTES];
	u32 state = parser->state;

	if (state <= VERSION) {
		request_line_byte(parser, at, byte);
	} else if (state == LINE_END) {
		parser->refused |= byte != '\n';
		parser->state = LINE;
	} else if (state == HEAD_END) {
		parser->refused |= byte != '\n';
		parser->end = at + 1;
		return 1;
	} else if (state == LINE && byte == '\r') {
		parser->state = HEAD_END;
	} else if (state == LINE || state == NAME) {
		parser->state = NAME;
		if (byte == ':') {
			name_ends(caller);
			parser->state = VALUE_SPACE;
		} else {
			parser->refused |= !is_name_byte(lower(byte));
			token_push(&parser->token, lower(byte));
		}
	} else if (byte == '\r') {
		value_ends(caller);
		parser->state = LINE_END;
	} else if (state == VALUE || byte != ' ') {
		if (state == VALUE_SPACE)
			parser->at = at;
		parser->state = VALUE;
		value_byte(parser, byte);
	}
	return 0;
}

#endif
