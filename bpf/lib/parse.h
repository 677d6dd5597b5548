/* SPDX-License-Identifier: GPL-2.0 */
/* The head of a request or a response. Only what every reader understands in the same way is accepted: lines that end with CRLF, names
 * of letters, digits, '-' and '_', one host, one length, one load report. Everything else is the proxy's to judge, and so is what its
 * zero-copy parser does not take. RFC 9112, sections 3 to 6. */
#ifndef FAIRMESH_PARSE_H
#define FAIRMESH_PARSE_H

#include "maps.h"

#define EIGHT(a, b, c, d, e, f, g, h)                                                                     \
	((u64)(a) | (u64)(b) << 8 | (u64)(c) << 16 | (u64)(d) << 24 | (u64)(e) << 32 | (u64)(f) << 40 |   \
	 (u64)(g) << 48 | (u64)(h) << 56)
#define FOUR(a, b, c, d) EIGHT(a, b, c, d, 0, 0, 0, 0)
#define EACH(byte) ((byte) * 0x0101010101010101ULL)

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

enum { METHOD_POST = 1 << 1, METHOD_PATCH = 1 << 3 };

/* The bit of a method whose responses have bodies like any other; 0 of others. */
INLINE u32 method_bit(struct token *token)
{
	return token_is(token, FOUR('G', 'E', 'T', 0), 0, 0) | token_is(token, FOUR('P', 'O', 'S', 'T'), 0, 0) << 1 |
	       token_is(token, FOUR('P', 'U', 'T', 0), 0, 0) << 2 |
	       token_is(token, EIGHT('P', 'A', 'T', 'C', 'H', 0, 0, 0), 0, 0) << 3 |
	       token_is(token, EIGHT('D', 'E', 'L', 'E', 'T', 'E', 0, 0), 0, 0) << 4 |
	       token_is(token, EIGHT('O', 'P', 'T', 'I', 'O', 'N', 'S', 0), 0, 0) << 5;
}

INLINE u64 zero_bytes(u64 word);

/* The word with '-' in place of each '_': many programs take both for the same. */
INLINE u64 in_one_spelling(u64 word)
{
	return word ^ (zero_bytes(word ^ EACH((u64)'_')) >> 7) * ('_' ^ '-');
}

/* Fields for Fairmesh, and those by which a caller could claim to be another one. */
INLINE int is_own_field(struct token *token)
{
	u64 word0 = in_one_spelling(token->word0), word1 = in_one_spelling(token->word1), word2 = in_one_spelling(token->word2);

	return (word0 == EIGHT('x', '-', 'f', 'a', 'i', 'r', 'm', 'e') && (word1 & 0xffffff) == FOUR('s', 'h', '-', 0)) ||
	       (word0 == EIGHT('x', '-', 'f', 'o', 'r', 'w', 'a', 'r') && word1 == EIGHT('d', 'e', 'd', '-', 'c', 'l', 'i', 'e') &&
		word2 == EIGHT('n', 't', '-', 'c', 'e', 'r', 't', 0));
}

/* The field to which a listener with mutual TLS adds the address that it sees. */
INLINE int is_client_field(struct token *token)
{
	return in_one_spelling(token->word0) == EIGHT('x', '-', 'f', 'o', 'r', 'w', 'a', 'r') &&
	       in_one_spelling(token->word1) == EIGHT('d', 'e', 'd', '-', 'f', 'o', 'r', 0);
}

/* Fields that belong to the connection, or frame the message in another way. */
INLINE int is_refused_field(struct token *token)
{
	if (token_is(token, EIGHT('f', 'a', 'i', 'r', 'm', 'e', 's', 'h'), EIGHT('-', 'w', 'r', 'o', 'n', 'g', '-', 's'), FOUR('h', 'a', 'r', 'd')) ||
	    token_is(token, EIGHT('g', 'r', 'p', 'c', '-', 's', 't', 'a'), FOUR('t', 'u', 's', 0), 0))
		return 1;
	return token_is(token, FOUR('t', 'e', 0, 0), 0, 0) || token_is(token, EIGHT('e', 'x', 'p', 'e', 'c', 't', 0, 0), 0, 0) ||
	       token_is(token, EIGHT('u', 'p', 'g', 'r', 'a', 'd', 'e', 0), 0, 0) ||
	       token_is(token, EIGHT('t', 'r', 'a', 'i', 'l', 'e', 'r', 0), 0, 0) ||
	       token_is(token, EIGHT('g', 'r', 'p', 'c', '-', 't', 'i', 'm'), FOUR('e', 'o', 'u', 't'), 0) ||
	       token_is(token, EIGHT('p', 'r', 'o', 'x', 'y', '-', 'c', 'o'), EIGHT('n', 'n', 'e', 'c', 't', 'i', 'o', 'n'), 0) ||
	       token_is(token, EIGHT('t', 'r', 'a', 'n', 's', 'f', 'e', 'r'), EIGHT('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n'), 'g') ||
	       token_is(token, EIGHT('p', 'r', 'o', 'x', 'y', '-', 'a', 'u'), EIGHT('t', 'h', 'o', 'r', 'i', 'z', 'a', 't'), FOUR('i', 'o', 'n', 0));
}

INLINE int is_keep_alive(struct token *token)
{
	return token_is(token, EIGHT('k', 'e', 'e', 'p', '-', 'a', 'l', 'i'), FOUR('v', 'e', 0, 0), 0);
}

INLINE void name_ends(struct http *http)
{
	struct parser *parser = &http->parser;
	struct token *name = &parser->token;
	struct header *header = &http->headers[parser->headers % HEADERS];

	if (parser->headers < HEADERS) {
		header->name[0] = name->word0;
		header->name[1] = name->word1;
		header->name[2] = name->word2;
		header->is_long = name->length > 24;
	}
	parser->headers++;
	parser->refused |= parser->headers > MOST_HEADERS;

	parser->field = FIELD_OTHER;
	parser->names_client |= is_client_field(name);
	/* Of a response it says how long an idle connection is kept, which the caller may know. */
	if (!name->length || (is_own_field(name) && !parser->of_proxy) || is_refused_field(name) || (is_keep_alive(name) && !parser->is_response))
		parser->refused = 1;
	else if (token_is(name, FOUR('h', 'o', 's', 't'), 0, 0))
		parser->field = FIELD_HOST;
	else if (token_is(name, EIGHT('c', 'o', 'n', 't', 'e', 'n', 't', '-'), EIGHT('l', 'e', 'n', 'g', 't', 'h', 0, 0), 0))
		parser->field = FIELD_LENGTH;
	else if (token_is(name, EIGHT('c', 'o', 'n', 'n', 'e', 'c', 't', 'i'), FOUR('o', 'n', 0, 0), 0))
		parser->field = FIELD_CONNECTION;
	else if (token_is(name, EIGHT('e', 'n', 'd', 'p', 'o', 'i', 'n', 't'), EIGHT('-', 'l', 'o', 'a', 'd', '-', 'm', 'e'), EIGHT('t', 'r', 'i', 'c', 's', 0, 0, 0)))
		parser->field = FIELD_LOAD;
	else if (token_is(name, EIGHT('c', 'o', 'n', 't', 'e', 'n', 't', '-'), FOUR('t', 'y', 'p', 'e'), 0))
		parser->field = FIELD_TYPE;
	else if (token_is(name, EIGHT('c', 'o', 'o', 'k', 'i', 'e', 0, 0), 0, 0)) {
		parser->refused |= parser->has_cookie;
		parser->has_cookie = 1;
	}
	token_clear(name);
}

INLINE int is_white(u8 byte)
{
	return byte == ' ' || byte == '\t';
}

/* Whether this value of `content-type` may begin with "application/grpc", in any case: white space before it is not looked behind. */
INLINE int may_be_grpc(struct http *http, u32 length)
{
	u32 at = http->parser.at;
	u64 small = EACH(0x20ULL), *first = (u64 *)(http->bytes + at % REQUEST_BYTES);
	u64 *second = (u64 *)(http->bytes + (at + 8) % REQUEST_BYTES);

	if (length < 16)
		return 0;
	return is_white(http->bytes[at % REQUEST_BYTES]) || ((*first | small) == EIGHT('a', 'p', 'p', 'l', 'i', 'c', 'a', 't') &&
							      (*second | small) == EIGHT('i', 'o', 'n', '/', 'g', 'r', 'p', 'c'));
}

INLINE void value_ends(struct http *http)
{
	struct parser *parser = &http->parser;
	struct token *value = &parser->token;
	struct header *header = &http->headers[(parser->headers - 1) % HEADERS];

	if (parser->headers <= HEADERS) {
		u32 last = parser->at + value->length - 1;
		header->at = parser->at;
		header->length = value->length;
		header->is_spaced = value->length && (is_white(http->bytes[parser->at % REQUEST_BYTES]) ||
						      is_white(http->bytes[last % REQUEST_BYTES]));
	}

	if (parser->field == FIELD_HOST) {
		parser->refused |= parser->host_length || !value->length;
		parser->host_at = parser->at;
		parser->host_length = value->length;
	} else if (parser->field == FIELD_LENGTH) {
		parser->refused |= parser->has_length || !parser->digits || parser->digits > 6;
		parser->has_length = 1;
	} else if (parser->field == FIELD_CONNECTION) {
		parser->refused |= !is_keep_alive(value);
	} else if (parser->field == FIELD_TYPE) {
		parser->refused |= may_be_grpc(http, value->length);
	} else if (parser->field == FIELD_LOAD) {
		/* Of two, readers take different ones. */
		parser->refused |= parser->has_load;
		parser->has_load = 1;
		parser->load_at = parser->at;
		parser->load_length = value->length;
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

INLINE void status_line_byte(struct parser *parser, u8 byte)
{
	struct token *token = &parser->token;

	if (parser->state == STATUS_VERSION && byte == ' ') {
		parser->refused |= !token_is(token, EIGHT('H', 'T', 'T', 'P', '/', '1', '.', '1'), 0, 0);
		parser->state = STATUS;
		token_clear(token);
	} else if (parser->state == STATUS_VERSION) {
		/* A token does not show it. */
		parser->refused |= !byte;
		token_push(token, byte);
	} else if (parser->state == STATUS && byte == ' ') {
		parser->refused |= parser->digits != 3;
		parser->digits = 0;
		parser->state = REASON;
	} else if (parser->state == STATUS) {
		parser->refused |= byte < '0' || byte > '9' || parser->digits > 2;
		parser->status = parser->status * 10 + (byte - '0');
		parser->digits++;
	} else if (byte == '\r') {
		parser->state = LINE_END;
	} else {
		parser->refused |= (byte < ' ' && byte != '\t') || byte == 0x7f;
	}
}

/* The highest bit of each byte that is zero; of the others, all bits are zero. */
INLINE u64 zero_bytes(u64 word)
{
	return ~(((word & EACH(0x7fULL)) + EACH(0x7fULL)) | word) & EACH(0x80ULL);
}

/* The highest bit of each byte, all below 0x80, that lies in a range. */
INLINE u64 bytes_within(u64 word, u64 first, u64 last)
{
	return (word + EACH(0x80 - first)) & (EACH(0x80 + last) - word) & EACH(0x80ULL);
}

/* Whether all bytes of the word are neither control characters nor, for a target, what ends or divides it. */
INLINE int is_text(u64 word, int in_target)
{
	u64 stops = (word - EACH(0x20ULL)) & ~word & EACH(0x80ULL);

	stops |= zero_bytes(word ^ EACH(0x7fULL));
	if (in_target)
		stops |= (word & EACH(0x80ULL)) | zero_bytes(word ^ EACH((u64)' ')) | zero_bytes(word ^ EACH((u64)'#')) |
			 zero_bytes(word ^ EACH((u64)'?'));
	return !stops;
}

/* Reads up to eight bytes of a name at once; how many, or 0 where they have to be read one by one. */
INLINE u32 read_name(struct token *name, u64 word)
{
	u64 colons = zero_bytes(word ^ EACH((u64)':')), kept = ~0ULL;

	if (name->length % 8 || name->length > 16)
		return 0;
	if (colons)
		kept = ((colons & -colons) - 1) >> 7; /* those before the first one */
	u64 small = word | EACH(0x20ULL);
	u64 named = bytes_within(small, 'a', 'z') | bytes_within(word, '0', '9') | zero_bytes(word ^ EACH((u64)'-'));
	if (!kept || word & EACH(0x80ULL) || ~named & kept & EACH(0x80ULL))
		return 0;
	small &= kept;
	if (!name->length)
		name->word0 = small;
	else if (name->length == 8)
		name->word1 = small;
	else
		name->word2 = small;
	u32 length = (kept & EACH(1ULL)) * EACH(1ULL) >> 56;
	name->length += length;
	return length;
}

/* Reads several bytes at once; how many, or 0 where the next one has to be looked at. */
INLINE u32 read_word(struct parser *parser, u64 word)
{
	struct token *token = &parser->token;
	u32 state = parser->state;

	if (state == VALUE && parser->field != FIELD_LENGTH && parser->field != FIELD_CONNECTION && is_text(word, 0)) {
		token->length += 8;
		return 8;
	}
	if (state == TARGET && token->length && is_text(word, 1)) {
		token->length += 8;
		return 8;
	}
	if (state == LINE || state == NAME) {
		u32 length = read_name(token, word);
		if (length)
			parser->state = NAME;
		return length;
	}
	return 0;
}

/* What the loop over bytes is given: it takes no pointer into a map itself. */
struct parsed {
	struct http *http;
};

/* Reads one byte, or several; ends the loop with 1 at the end of what was sent, or of the head. */
static long parse_step(u32 step, struct parsed *parsed)
{
	struct http *http = parsed->http;
	struct parser *parser = &http->parser;
	u32 at = parser->position;

	if (at >= parser->available || parser->refused)
		return 1;
	if (at + 8 <= parser->available) {
		u32 read = read_word(parser, *(u64 *)(http->bytes + at % REQUEST_BYTES));
		if (read) {
			parser->position = at + read;
			return 0;
		}
	}
	parser->position = at + 1;
	u8 byte = http->bytes[at % REQUEST_BYTES];
	u32 state = parser->state;

	if (state <= VERSION) {
		request_line_byte(parser, at, byte);
	} else if (state <= REASON) {
		status_line_byte(parser, byte);
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
			name_ends(http);
			parser->state = VALUE_SPACE;
		} else {
			parser->refused |= !is_name_byte(lower(byte));
			token_push(&parser->token, lower(byte));
		}
	} else if (byte == '\r') {
		value_ends(http);
		parser->state = LINE_END;
	} else if (state == VALUE || byte != ' ') {
		if (state == VALUE_SPACE)
			parser->at = at;
		parser->state = VALUE;
		value_byte(parser, byte);
	}
	return 0;
}

INLINE void begin_response(struct http *http)
{
	struct parser *parser = &http->parser;

	__builtin_memset(parser, 0, sizeof(*parser));
	parser->state = STATUS_VERSION;
	parser->is_response = 1;
}

/* Whether a response can go to the caller as it is: all of it in one send, of the length that it says, and with a status that is final
 * for the proxy too. */
INLINE int is_plain_response(struct parser *parser, u32 size)
{
	if (!parser->end || parser->refused || size > RESPONSE_BYTES || parser->load_length > LOAD_BYTES)
		return 0;
	if (parser->status < 200 || parser->status >= 500 || parser->status == 304 || parser->status == 421)
		return 0;
	/* No body follows, and so no length is expected. */
	if (parser->status == 204)
		return !parser->has_length && parser->end == size;
	return parser->has_length && parser->end + parser->content_length == size;
}

/* Copies what is sent, as far as a request or the head of a response may be long; how much that is, or 0 if it cannot be read. */
INLINE u32 copy_message(struct http *http, struct sk_msg_md *message)
{
	u32 length = message->size;

	if (length > REQUEST_BYTES)
		length = REQUEST_BYTES;
	/* The first part alone is mapped where what is sent lies on two pages. */
	if ((u64)message->data_end - (u64)message->data < length && msg_pull_data(message, 0, length, 0))
		return 0;
	if ((u64)message->data_end - (u64)message->data < length)
		return 0;
	if (!length || length > REQUEST_BYTES || probe_read_kernel(http->bytes, length, message->data))
		return 0;
	return length;
}

#endif
