/* Strings of JSON schemas. A character stands for itself, or is escaped where JSON wants it; plain
 * strings may escape any character. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "grammar/schema_impl.h"
#include "text/utf8.h"

/* Characters of a string that stand for themselves. */
static const struct gr_chars plain[] = {{' ', '!'}, {'#', '['}, {']', 0x10ffff}};

/* Writes a character as a string has it; returns its bytes, 8 at most. */
static size_t put_char(uint32_t c, char *out)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *e = c && c < 128 ? strchr(from, (int)c) : NULL;
    if (e)
        return out[0] = '\\', out[1] = to[e - from], 2;
    if (c < 32)
        return (size_t)snprintf(out, 8, "\\u%04x", c);
    return gr_utf8_put(c, out);
}

/* ---- characters ---- */

static bool in_ranges(const struct gr_chars *c, size_t n, uint32_t x)
{
    for (size_t i = 0; i < n; i++)
        if (x >= c[i].lo && x <= c[i].hi)
            return true;
    return false;
}

/* The ranges without the characters that are escaped, as a class. */
static uint32_t plain_class(struct gr_rules *r, const struct gr_chars *c, size_t n)
{
    struct gr_vec out = {0};
    for (size_t i = 0; i < n && !r->rc; i++)
        for (size_t k = 0; k < GR_COUNT(plain) && !r->rc; k++) {
            const struct gr_chars x = {GR_MAX(c[i].lo, plain[k].lo), GR_MIN(c[i].hi, plain[k].hi)};
            if (x.lo <= x.hi)
                r->rc = gr_vec_append(&out, &x, 1, sizeof x);
        }
    uint32_t node = gr_rules_class(r, out.data, out.n, false);
    gr_vec_fini(&out);
    return node;
}

/* Adds the characters of the ranges that are escaped. */
static void add_escaped(struct gr_rules *r, uint32_t alt, const struct gr_chars *c, size_t n)
{
    for (uint32_t x = 0; x < 128; x++) {
        char text[8];
        if (in_ranges(c, n, x) && !in_ranges(plain, GR_COUNT(plain), x))
            gr_rules_add(r, alt, gr_rules_literal(r, text, put_char(x, text)));
    }
}

uint32_t gr_schema_chars(struct gr_schema *s, const struct gr_chars *ranges, size_t n, bool negated)
{
    struct gr_rules *r = s->r;
    uint32_t alt = gr_rules_alt(r), set = gr_rules_class(r, ranges, n, negated);
    if (r->rc)
        return 0;
    struct gr_rule_node own = *gr_rules_node(r, set);
    struct gr_chars *c = gr_calloc(own.b, sizeof *c); /* the set's ranges move */
    if (!c) {
        r->rc = GR_E_NOMEM_HOST;
        return 0;
    }
    if (own.b)
        memcpy(c, (struct gr_chars *)r->ranges.data + own.a, own.b * sizeof *c);
    gr_rules_add(r, alt, plain_class(r, c, own.b));
    add_escaped(r, alt, c, own.b);
    gr_free(c);
    return alt;
}

/* A rule of a class of characters, made once. */
static uint32_t shared(struct gr_schema *s, uint32_t *rule, bool escaped)
{
    static const struct gr_chars all = {0, 0x10ffff}, wide = {0x80, 0x10ffff};
    struct gr_rules *r = s->r;
    if (!*rule) {
        uint32_t alt = gr_rules_alt(r);
        *rule = gr_rules_new(r);
        if (escaped)
            add_escaped(r, alt, &all, 1);
        else
            gr_rules_add(r, alt, gr_rules_class(r, &wide, 1, false));
        gr_rules_define(r, *rule, alt);
    }
    return gr_rules_ref(r, *rule);
}

/* A character that is none of `taken`; what these do not touch is shared. */
static uint32_t other_char(struct gr_schema *s, const struct gr_chars *taken, size_t n)
{
    struct gr_rules *r = s->r;
    bool ascii = true, free_of_escapes = true;
    struct gr_chars *c = gr_calloc(n + 4, sizeof *c);
    uint32_t alt = gr_rules_alt(r);
    size_t k = n;
    if (!c) {
        r->rc = r->rc ? r->rc : GR_E_NOMEM_HOST;
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        c[i] = taken[i];
        ascii &= c[i].lo < 0x80;
        free_of_escapes &= in_ranges(plain, GR_COUNT(plain), c[i].lo);
    }
    if (ascii)
        c[k++] = (struct gr_chars){0x80, 0x10ffff},
        gr_rules_add(r, alt, shared(s, &s->wide, false));
    if (free_of_escapes) {
        gr_rules_add(r, alt, shared(s, &s->escapes, true));
        c[k++] = (struct gr_chars){0, 31}, c[k++] = (struct gr_chars){'"', '"'};
        c[k++] = (struct gr_chars){'\\', '\\'};
        gr_rules_add(r, alt, gr_rules_class(r, c, k, true));
    } else {
        gr_rules_add(r, alt, gr_schema_chars(s, c, k, true));
    }
    gr_free(c);
    return alt;
}

static void add_class(struct gr_rules *r, uint32_t seq, const char *pairs, uint32_t count)
{
    struct gr_chars c[8];
    size_t n = 0;
    for (; pairs[2 * n]; n++)
        c[n] = (struct gr_chars){(uint8_t)pairs[2 * n], (uint8_t)pairs[2 * n + 1]};
    gr_rules_add(r, seq, gr_rules_repeat(r, gr_rules_class(r, c, n, false), count, count));
}

/* \uHHHH of one character: not a surrogate, or two that belong together. */
static void add_hex(struct gr_rules *r, uint32_t alt)
{
    static const char any[] = "09afAF";
    uint32_t low = gr_rules_seq(r), d = gr_rules_seq(r), pair = gr_rules_seq(r);
    gr_rules_add(r, low, gr_rules_text(r, "\\u"));
    add_class(r, low, "09acefACEF", 1);
    add_class(r, low, any, 3);
    gr_rules_add(r, d, gr_rules_text(r, "\\u"));
    add_class(r, d, "ddDD", 1);
    add_class(r, d, "07", 1);
    add_class(r, d, any, 2);
    gr_rules_add(r, pair, gr_rules_text(r, "\\u"));
    add_class(r, pair, "ddDD", 1);
    add_class(r, pair, "89abAB", 1);
    add_class(r, pair, any, 2);
    gr_rules_add(r, pair, gr_rules_text(r, "\\u"));
    add_class(r, pair, "ddDD", 1);
    add_class(r, pair, "cfCF", 1);
    add_class(r, pair, any, 2);
    gr_rules_add(r, alt, low);
    gr_rules_add(r, alt, d);
    gr_rules_add(r, alt, pair);
}

/* Any character, in any way that JSON can write it. */
static uint32_t any_char(struct gr_rules *r)
{
    uint32_t alt = gr_rules_alt(r), escape = gr_rules_seq(r);
    gr_rules_add(r, alt, gr_rules_class(r, plain, GR_COUNT(plain), false));
    gr_rules_add(r, escape, gr_rules_text(r, "\\"));
    add_class(r, escape, "\"\"\\\\//bbffnnrrtt", 1);
    gr_rules_add(r, alt, escape);
    add_hex(r, alt);
    return alt;
}

/* ---- strings ---- */

static uint32_t quote(struct gr_rules *r, uint32_t inner)
{
    uint32_t seq = gr_rules_seq(r);
    gr_rules_add(r, seq, gr_rules_text(r, "\""));
    gr_rules_add(r, seq, inner);
    gr_rules_add(r, seq, gr_rules_text(r, "\""));
    return seq;
}

uint32_t gr_schema_quoted(struct gr_schema *s, const char *text)
{
    struct gr_vec out = {0};
    size_t n = strlen(text);
    struct gr_rules *r = s->r;
    for (size_t i = 0; i < n && !r->rc;) {
        char one[8];
        uint32_t c = 0;
        int k = gr_utf8_next(text + i, n - i, &c);
        i += k > 0 ? (size_t)k : 1;
        r->rc = gr_vec_append(&out, one, put_char(c, one), 1);
    }
    uint32_t node = gr_rules_literal(r, out.data, out.n);
    gr_vec_fini(&out);
    return quote(r, node);
}

uint32_t gr_schema_string(struct gr_schema *s, const struct gr_shape *shape)
{
    struct gr_rules *r = s->r;
    uint32_t least, most;
    if (!shape->pattern)
        return quote(r, gr_rules_repeat(r, any_char(r), shape->min_length, shape->max_length));
    uint32_t node = gr_schema_regex(s, shape->pattern, shape->pattern_at, &least, &most);
    if (least < shape->min_length || most > shape->max_length)
        gr_schema_fail(s, shape->length_at,
                       "lengths are not supported beside a pattern or format that allows others: "
                       "write them into the pattern");
    return quote(r, node);
}

/* ---- keys that are none of some names ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A branch of the tree of names: names [first, last) agree in `depth` bytes. */
struct branch {
    size_t first, last, depth;
    uint32_t rule;
};

/* Adds what leaves the tree at a branch: characters that no name goes on with, and then any. */
static void add_leaving(struct gr_schema *s, uint32_t alt, const struct gr_chars *taken, size_t n)
{
    struct gr_rules *r = s->r;
    uint32_t seq = gr_rules_seq(r);
    gr_rules_add(r, seq, other_char(s, taken, n));
    gr_rules_add(r, seq, gr_rules_ref(r, s->key_characters));
    gr_rules_add(r, alt, seq);
}

/* Makes the rule of a branch from the characters that its names go on with. */
static void make_branch(struct gr_schema *s, const char *const *names, struct branch b,
                        struct gr_vec *todo)
{
    struct gr_rules *r = s->r;
    struct gr_vec taken = {0};
    uint32_t alt = gr_rules_alt(r);
    bool ends = false;
    for (size_t i = b.first, k; i < b.last && !r->rc; i = k) {
        const char *p = names[i] + b.depth;
        uint32_t c = 0;
        for (k = i + 1; !*p && k < b.last && !names[k][b.depth]; k++)
            ;
        ends |= !*p;
        if (!*p)
            continue;
        size_t n = (size_t)gr_utf8_next(p, strlen(p), &c);
        for (k = i + 1; k < b.last && !strncmp(names[k] + b.depth, p, n); k++)
            ;
        const struct gr_chars one = {c, c};
        const struct branch next = {i, k, b.depth + n, gr_rules_new(r)};
        uint32_t seq = gr_rules_seq(r), chars = gr_schema_chars(s, &one, 1, false);
        gr_rules_add(r, seq, chars);
        gr_rules_add(r, seq, gr_rules_ref(r, next.rule));
        gr_rules_add(r, alt, seq);
        if (!r->rc && (gr_vec_append(&taken, &one, 1, sizeof one) ||
                       gr_vec_append(todo, &next, 1, sizeof next)))
            r->rc = GR_E_NOMEM_HOST;
    }
    if (!ends)
        gr_rules_add(r, alt, 0);
    add_leaving(s, alt, taken.data, taken.n);
    gr_rules_define(r, b.rule, alt);
    gr_vec_fini(&taken);
}

/* Any characters, each written in one way, so that keys can be told apart by their bytes. */
static void make_key_characters(struct gr_schema *s)
{
    if (s->key_characters)
        return;
    s->key_characters = gr_rules_new(s->r);
    gr_rules_define(s->r, s->key_characters,
                    gr_rules_repeat(s->r, gr_schema_chars(s, NULL, 0, true), 0, GR_UNBOUNDED));
}

uint32_t gr_schema_other_key(struct gr_schema *s, const char *const *names, size_t n)
{
    struct gr_rules *r = s->r;
    struct gr_vec todo = {0};
    const char **sorted = gr_calloc(n, sizeof *sorted);
    make_key_characters(s);
    struct branch b = {0, n, 0, gr_rules_new(r)};
    if (!sorted)
        r->rc = r->rc ? r->rc : GR_E_NOMEM_HOST;
    if (!r->rc && n) {
        memcpy(sorted, names, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_text);
    }
    uint32_t root = b.rule;
    for (bool more = !r->rc; more && !r->rc; more = todo.n > 0) {
        if (todo.n)
            b = ((struct branch *)todo.data)[--todo.n];
        make_branch(s, sorted, b, &todo);
    }
    gr_free(sorted);
    gr_vec_fini(&todo);
    return quote(r, gr_rules_ref(r, root));
}
