/* Numbers of JSON schemas: integers of at most 18 digits within bounds; numbers of at most 16
 * digits on each side of the point, and exponents that no reader takes for infinity. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "grammar/schema_impl.h"

#define MOST_INTEGER 999999999999999999

static uint32_t digits(struct gr_rules *r, char lo, char hi, uint32_t least, uint32_t most)
{
    const struct gr_chars c = {(uint8_t)lo, (uint8_t)hi};
    return gr_rules_repeat(r, gr_rules_class(r, &c, 1, false), least, most);
}

/* Adds the numbers lo to hi, 0 <= lo <= hi, to `alt`: in runs of numbers that agree but for one
 * digit, and for all digits behind it. */
static void add_range(struct gr_rules *r, uint32_t alt, int64_t lo, int64_t hi, const char *sign)
{
    while (lo <= hi && !r->rc) {
        char front[32];
        int64_t unit = 1;
        uint32_t n = 0;
        while (unit <= MOST_INTEGER / 10 && lo >= 10 * unit && lo % (10 * unit) == 0 &&
               hi - lo >= 10 * unit - 1)
            unit *= 10, n++;
        int64_t digit = lo / unit % 10, above = lo / unit / 10;
        int64_t last = GR_MIN(9, digit + (hi - lo + 1) / unit - 1);
        uint32_t seq = gr_rules_seq(r);
        snprintf(front, sizeof front, "%s%" PRId64, sign, above);
        gr_rules_add(r, seq, gr_rules_text(r, above ? front : sign));
        gr_rules_add(r, seq, digits(r, (char)('0' + digit), (char)('0' + last), 1, 1));
        gr_rules_add(r, seq, digits(r, '0', '9', n, n));
        gr_rules_add(r, alt, seq);
        lo += (last - digit + 1) * unit;
    }
}

static uint32_t integer(struct gr_rules *r, int64_t lo, int64_t hi)
{
    uint32_t alt = gr_rules_alt(r);
    lo = GR_MAX(lo, -MOST_INTEGER), hi = GR_MIN(hi, MOST_INTEGER);
    if (hi >= 0)
        add_range(r, alt, GR_MAX(lo, 0), hi, "");
    if (lo < 0)
        add_range(r, alt, -GR_MAX(GR_MIN(hi, -1), -MOST_INTEGER - 1), -lo, "-");
    return alt;
}

static void add_text(struct gr_rules *r, uint32_t seq, const char *text, bool optional)
{
    uint32_t node = gr_rules_text(r, text);
    gr_rules_add(r, seq, optional ? gr_rules_repeat(r, node, 0, 1) : node);
}

/* "." and digits, which may be missing. */
static uint32_t fraction(struct gr_rules *r)
{
    uint32_t seq = gr_rules_seq(r);
    add_text(r, seq, ".", false);
    gr_rules_add(r, seq, digits(r, '0', '9', 1, 17));
    return gr_rules_repeat(r, seq, 0, 1);
}

/* An exponent of one or two digits, or up to 307. */
static uint32_t exponent(struct gr_rules *r, bool far)
{
    static const struct gr_chars e[] = {{'e', 'e'}, {'E', 'E'}}, sign[] = {{'+', '+'}, {'-', '-'}};
    uint32_t seq = gr_rules_seq(r), alt = gr_rules_alt(r), front = gr_rules_seq(r);
    gr_rules_add(r, seq, gr_rules_class(r, e, 2, false));
    gr_rules_add(r, seq, gr_rules_repeat(r, gr_rules_class(r, sign, 2, false), 0, 1));
    gr_rules_add(r, front, digits(r, '0', '9', 1, 2));
    gr_rules_add(r, alt, front);
    if (far)
        add_range(r, alt, 100, 307, "");
    gr_rules_add(r, seq, alt);
    return seq;
}

static uint32_t number(struct gr_rules *r)
{
    uint32_t seq = gr_rules_seq(r), alt = gr_rules_alt(r), plain = gr_rules_seq(r);
    uint32_t large = gr_rules_seq(r), far = gr_rules_seq(r), front = gr_rules_alt(r);
    add_text(r, seq, "-", true);
    gr_rules_add(r, large, digits(r, '1', '9', 1, 1));
    gr_rules_add(r, large, digits(r, '0', '9', 0, 15));
    gr_rules_add(r, front, digits(r, '0', '0', 1, 1));
    gr_rules_add(r, front, large);
    gr_rules_add(r, plain, front);
    gr_rules_add(r, plain, fraction(r));
    gr_rules_add(r, plain, gr_rules_repeat(r, exponent(r, false), 0, 1));
    gr_rules_add(r, far, digits(r, '0', '9', 1, 1));
    gr_rules_add(r, far, fraction(r));
    gr_rules_add(r, far, exponent(r, true));
    gr_rules_add(r, alt, plain);
    gr_rules_add(r, alt, far);
    gr_rules_add(r, seq, alt);
    return seq;
}

uint32_t gr_schema_number(struct gr_schema *s, const struct gr_shape *shape)
{
    if (shape->types & GR_JSON_FRACTION)
        return number(s->r);
    return integer(s->r, shape->lo, shape->hi);
}

/* Writes the shortest text that reads as x. */
static void write_real(double x, char *text, size_t n)
{
    for (int digits_ = 15; digits_ <= 17; digits_++) {
        snprintf(text, n, "%.*g", digits_, x);
        if (strtod(text, NULL) == x)
            return;
    }
}

uint32_t gr_schema_this_number(struct gr_schema *s, json_t *number)
{
    static const struct gr_chars e[] = {{'e', 'e'}, {'E', 'E'}};
    struct gr_rules *r = s->r;
    char text[64];
    if (json_is_integer(number)) {
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(number));
        return gr_rules_text(r, text);
    }
    write_real(json_real_value(number), text, sizeof text);
    size_t n = strcspn(text, "e");
    uint32_t seq = gr_rules_seq(r), alt = gr_rules_alt(r), sign = gr_rules_text(r, "+");
    gr_rules_add(r, seq, gr_rules_literal(r, text, n));
    if (!text[n]) {
        if (!memchr(text, '.', n)) /* a whole number: the readers that tell it from an integer */
            gr_rules_add(r, seq, gr_rules_text(r, ".0"));
        return seq;
    }
    const char *digit = text + n + 2 + strspn(text + n + 2, "0");
    gr_rules_add(r, alt,
                 text[n + 1] == '-' ? gr_rules_text(r, "-") : gr_rules_repeat(r, sign, 0, 1));
    gr_rules_add(r, seq, gr_rules_class(r, e, 2, false));
    gr_rules_add(r, seq, alt);
    gr_rules_add(r, seq, digits(r, '0', '0', 0, 1));
    gr_rules_add(r, seq, gr_rules_text(r, digit));
    return seq;
}
