/* A pushdown automaton of RFC 8259, with strings of valid UTF-8. */
#include "answer/json.h"

#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int begin_string(struct gr_json *j, bool is_key)
{
    j->state = GR_AT_STRING;
    j->is_key = is_key;
    j->left = 0;
    return 0;
}

static int open_bracket(struct gr_json *j, char c)
{
    if (j->depth >= GR_ANSWER_MAX_DEPTH)
        return -1;
    j->open[j->depth++] = c;
    j->state = c == '{' ? GR_AT_MEMBER : GR_AT_FIRST;
    return 0;
}

static int close_bracket(struct gr_json *j, char c)
{
    if (j->open[j->depth - 1] != (c == '}' ? '{' : '['))
        return -1;
    j->state = GR_AT_BEHIND;
    return --j->depth == 0;
}

static int begin_word(struct gr_json *j, char c)
{
    j->word = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : NULL;
    j->state = GR_AT_WORD;
    return j->word ? 0 : -1;
}

static int begin_value(struct gr_json *j, char c)
{
    if (c == '{' || c == '[')
        return open_bracket(j, c);
    if (!j->depth)
        return -1;
    if (c == '"')
        return begin_string(j, false);
    if (c != '-' && !is_digit(c))
        return begin_word(j, c);
    j->state = GR_AT_NUMBER;
    j->number = c;
    if (is_digit(c) && c != '0')
        j->number = '1';
    return 0;
}

/* number: what was read last: '-', '0' (no digit may follow), '1' (digits), '.', 'f' (digits behind
 * the point), 'e', '+' (sign of the exponent), 'x' (its digits). */
static char next_in_number(char number, char c)
{
    bool done = strchr("01fx", number) != NULL; /* a number may end here */
    if (is_digit(c)) {
        if (number == '0')
            return 0;
        if (number == '-')
            return c == '0' ? '0' : '1';
        return number == '.' ? 'f' : number == 'e' || number == '+' ? 'x' : number;
    }
    if (c == '.')
        return number == '0' || number == '1' ? '.' : 0;
    if (c == 'e' || c == 'E')
        return done && number != 'x' ? 'e' : 0;
    return (c == '+' || c == '-') && number == 'e' ? '+' : 0;
}

/* Reads a byte of a character beyond ASCII. */
static int put_wide(struct gr_json *j, uint8_t c)
{
    if (j->left) {
        if (c < j->lo || c > j->hi)
            return -1;
        j->left--;
        j->lo = 0x80, j->hi = 0xbf;
        return 0;
    }
    if (c < 0xc2 || c > 0xf4)
        return -1;
    j->left = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    j->lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    j->hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    return 0;
}

static int put_string(struct gr_json *j, char c)
{
    if (j->left || (uint8_t)c >= 0x80)
        return put_wide(j, (uint8_t)c);
    if ((uint8_t)c < 0x20)
        return -1;
    if (c == '\\')
        j->state = GR_AT_ESCAPE;
    else if (c == '"')
        j->state = j->is_key ? GR_AT_COLON : GR_AT_BEHIND;
    return 0;
}

static int put_escape(struct gr_json *j, char c)
{
    j->left = c == 'u' ? 4 : 0;
    j->state = c == 'u' ? GR_AT_HEX : GR_AT_STRING;
    return c && strchr("\"\\/bfnrtu", c) ? 0 : -1;
}

static int put_hex(struct gr_json *j, char c)
{
    if (!is_digit(c) && !((c | 32) >= 'a' && (c | 32) <= 'f'))
        return -1;
    j->state = --j->left ? GR_AT_HEX : GR_AT_STRING;
    return 0;
}

static int put_word(struct gr_json *j, char c)
{
    if (c != *j->word)
        return -1;
    j->state = *++j->word ? GR_AT_WORD : GR_AT_BEHIND;
    return 0;
}

/* Reads what is between values. */
static int put_between(struct gr_json *j, char c)
{
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
        return 0;
    bool first = j->state == GR_AT_FIRST || j->state == GR_AT_MEMBER;
    if (j->depth && (c == '}' || c == ']'))
        return first || j->state == GR_AT_BEHIND ? close_bracket(j, c) : -1;
    switch (j->state) {
    case GR_AT_VALUE:
    case GR_AT_FIRST:
        return begin_value(j, c);
    case GR_AT_MEMBER:
    case GR_AT_KEY:
        return c == '"' ? begin_string(j, true) : -1;
    case GR_AT_COLON:
        j->state = GR_AT_VALUE;
        return c == ':' ? 0 : -1;
    default:
        if (c != ',' || !j->depth)
            return -1;
        j->state = j->open[j->depth - 1] == '{' ? GR_AT_KEY : GR_AT_VALUE;
        return 0;
    }
}

int gr_json_put(struct gr_json *j, char c)
{
    switch (j->state) {
    case GR_AT_STRING:
        return put_string(j, c);
    case GR_AT_ESCAPE:
        return put_escape(j, c);
    case GR_AT_HEX:
        return put_hex(j, c);
    case GR_AT_WORD:
        return put_word(j, c);
    case GR_AT_NUMBER: {
        char next = next_in_number(j->number, c);
        if (next) {
            j->number = next;
            return 0;
        }
        if (!strchr("01fx", j->number))
            return -1;
        j->state = GR_AT_BEHIND;
        return put_between(j, c);
    }
    default:
        return put_between(j, c);
    }
}
