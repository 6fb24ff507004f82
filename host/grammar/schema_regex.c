/* Regular expressions of JSON schemas: the part of ECMA-262 that is regular. Groups are kept on a
 * stack, nothing recurses. Where readers differ, what all of them accept is made: \d, \w, \s and
 * their opposites are of ASCII, and a dot is no line's end. */
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "grammar/schema_impl.h"
#include "text/utf8.h"

enum { MAX_GROUPS = 64, MAX_RANGES = 128 };

/* Fewest and most characters. */
struct length {
    uint32_t least, most;
};

struct regex_group {
    uint32_t alt, seq, item;
    struct length all, sequence, last; /* of the alternatives so far, this one, its last item */
};

struct regex {
    struct gr_schema *s;
    const char *p, *begin, *at;
    struct regex_group group[MAX_GROUPS + 1];
    uint32_t depth;
    bool ended; /* $ was read in this alternative */
};

struct set {
    struct gr_chars c[MAX_RANGES];
    size_t n;
    bool ascii; /* has \d and the like: its opposite is of ASCII too */
};

static void fail(struct regex *x, const char *what)
{
    gr_schema_fail(x->s, x->at, "pattern, character %zu: %s", (size_t)(x->p - x->begin) + 1, what);
}

static bool failed(const struct regex *x)
{
    return x->s->r->rc != 0;
}

static uint32_t plus(uint32_t a, uint32_t b)
{
    return a > GR_UNBOUNDED - b ? GR_UNBOUNDED : a + b;
}

static uint32_t times(uint32_t a, uint32_t b)
{
    return a == 0 || b == 0                                                 ? 0
           : a == GR_UNBOUNDED || b == GR_UNBOUNDED || a > GR_UNBOUNDED / b ? GR_UNBOUNDED
                                                                            : a * b;
}

/* ---- sets of characters ---- */

static void add_range(struct regex *x, struct set *set, uint32_t lo, uint32_t hi)
{
    if (set->n == MAX_RANGES)
        fail(x, "a class with too many parts");
    else
        set->c[set->n++] = (struct gr_chars){lo, hi};
}

/* Adds the class of \d, \w, \s, or with a capital letter what of ASCII is not in it. */
static bool add_named(struct regex *x, struct set *set, char name)
{
    static const struct {
        char name;
        const char *pairs;
    } classes[] = {
        {'d', "09"},
        {'w', "09AZ__az"},
        {'s', "\t\r  "},
        {'D', "\x01/:\x7f"},
        {'W', "\x01/:@[^``{\x7f"},
        {'S', "\x01\x08\x0e\x1b!\x7f"}, /* Python's \s has 1C to 1F too */
    };
    for (size_t i = 0; i < GR_COUNT(classes); i++) {
        if (classes[i].name != name)
            continue;
        for (const char *p = classes[i].pairs; *p; p += 2)
            add_range(x, set, (uint8_t)p[0], (uint8_t)p[1]);
        set->ascii = true;
        return true;
    }
    return false;
}

static uint32_t read_hex(struct regex *x, int digits)
{
    uint32_t v = 0;
    for (int i = 0; i < digits; i++) {
        char c = *x->p;
        bool digit = c >= '0' && c <= '9';
        if (!digit && !((c | 32) >= 'a' && (c | 32) <= 'f')) {
            fail(x, "a hexadecimal digit is expected");
            return 0;
        }
        v = v << 4 | (uint32_t)(digit ? c - '0' : (c | 32) - 'a' + 10);
        x->p++;
    }
    if (v >= 0xd800 && v <= 0xdfff)
        fail(x, "a surrogate is no character");
    return v;
}

/* Reads what follows a backslash: true and a character, or false and a class in `set`. */
static bool read_escape(struct regex *x, struct set *set, uint32_t *c)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    char e = *x->p;
    const char *k = e ? strchr(from, e) : NULL;
    x->p += e != 0;
    if (add_named(x, set, e))
        return false;
    *c = (uint8_t)e;
    if (k && (e != '0' || *x->p < '0' || *x->p > '9')) /* no octal numbers */
        *c = (uint8_t)to[k - from];
    else if (e == 'x' || e == 'u')
        *c = read_hex(x, e == 'x' ? 2 : 4);
    else if (!e || (uint8_t)e >= 0x80 || (e >= '0' && e <= '9') ||
             ((e | 32) >= 'a' && (e | 32) <= 'z'))
        fail(x, "this escape is not supported");
    return true;
}

static uint32_t read_char(struct regex *x)
{
    uint32_t c = 0;
    int n = gr_utf8_next(x->p, strlen(x->p), &c);
    x->p += n > 0 ? n : 1;
    return c;
}

/* One end of a range in a class; false: it was a class of its own. */
static bool read_end(struct regex *x, struct set *set, uint32_t *c)
{
    if (*x->p != '\\') {
        *c = read_char(x);
        return true;
    }
    x->p++;
    if (*x->p == 'b')
        return x->p++, *c = '\b', true;
    if (*x->p == '-')
        return x->p++, *c = '-', true;
    return read_escape(x, set, c);
}

static uint32_t read_class(struct regex *x)
{
    struct set set = {.n = 0};
    uint32_t lo, hi;
    bool negated = *++x->p == '^';
    x->p += negated;
    while (*x->p && *x->p != ']' && !failed(x)) {
        bool one = read_end(x, &set, &lo);
        hi = lo;
        if (x->p[0] == '-' && x->p[1] && x->p[1] != ']' && !failed(x)) {
            x->p++;
            if (!one || !read_end(x, &set, &hi) || hi < lo)
                fail(x, "this is no range of characters");
        }
        if (one)
            add_range(x, &set, lo, hi);
    }
    if (*x->p != ']')
        fail(x, "a class without its ]");
    else if (!set.n && !negated)
        fail(x, "a class without characters");
    x->p += !failed(x);
    if (negated && set.ascii)
        add_range(x, &set, 0x80, 0x10ffff);
    return failed(x) ? 0 : gr_schema_chars(x->s, set.c, set.n, negated);
}

/* ---- sequences ---- */

static void begin_sequence(struct regex *x)
{
    struct gr_rules *r = x->s->r;
    struct regex_group *g = &x->group[x->depth];
    g->seq = gr_rules_seq(r), g->item = 0, g->sequence = (struct length){0, 0};
    gr_rules_add(r, g->alt, g->seq);
}

static void add_item(struct regex *x, uint32_t node, struct length n)
{
    struct regex_group *g = &x->group[x->depth];
    node = node ? node : gr_rules_seq(x->s->r);
    gr_rules_add(x->s->r, g->seq, node);
    g->item = node, g->last = n;
    g->sequence.least = plus(g->sequence.least, n.least);
    g->sequence.most = plus(g->sequence.most, n.most);
}

/* Any characters, in front of a pattern without ^ or behind one without $. */
static void add_anything(struct regex *x)
{
    uint32_t node = gr_schema_chars(x->s, NULL, 0, true);
    add_item(x, gr_rules_repeat(x->s->r, node, 0, GR_UNBOUNDED), (struct length){0, GR_UNBOUNDED});
    x->group[x->depth].item = 0;
}

static void begin_alternative(struct regex *x)
{
    begin_sequence(x);
    x->ended = false;
    if (x->depth)
        return;
    if (*x->p == '^')
        x->p++;
    else
        add_anything(x);
}

static void end_alternative(struct regex *x)
{
    struct regex_group *g = &x->group[x->depth];
    if (!x->depth && !x->ended)
        add_anything(x);
    g->all.least = GR_MIN(g->all.least, g->sequence.least);
    g->all.most = GR_MAX(g->all.most, g->sequence.most);
}

static void begin_group(struct regex *x)
{
    struct regex_group *g = &x->group[x->depth];
    *g = (struct regex_group){.alt = gr_rules_alt(x->s->r), .all = {GR_UNBOUNDED, 0}};
    begin_alternative(x);
}

static void open_group(struct regex *x)
{
    if (x->depth == MAX_GROUPS)
        fail(x, "too many groups within each other");
    x->p++;
    if (*x->p == '?' && x->p[1] == ':')
        x->p += 2;
    else if (*x->p == '?')
        fail(x, "groups (?= (?! (?< are not supported");
    if (failed(x))
        return;
    x->depth++;
    begin_group(x);
}

static void close_group(struct regex *x)
{
    if (!x->depth) {
        fail(x, "this ) closes no group");
        return;
    }
    end_alternative(x);
    struct regex_group g = x->group[x->depth--];
    x->p++;
    add_item(x, g.alt, g.all);
}

/* ---- repetitions ---- */

static uint32_t read_number(struct regex *x)
{
    uint32_t v = 0;
    if (*x->p < '0' || *x->p > '9')
        fail(x, "a number is expected");
    for (; *x->p >= '0' && *x->p <= '9'; x->p++)
        v = GR_MIN(v * 10 + (uint32_t)(*x->p - '0'), GR_GRAMMAR_MAX_REPEAT + 1);
    if (v > GR_GRAMMAR_MAX_REPEAT)
        fail(x, "too many repetitions");
    return v;
}

static void read_bounds(struct regex *x, uint32_t *lo, uint32_t *hi)
{
    *lo = *hi = read_number(x);
    if (*x->p == ',') {
        x->p++;
        *hi = *x->p == '}' ? GR_UNBOUNDED : read_number(x);
    }
    if (*x->p != '}' || *hi < *lo)
        fail(x, "bounds are {m}, {m,} or {m,n}");
    x->p += !failed(x);
}

static void read_repeat(struct regex *x)
{
    struct regex_group *g = &x->group[x->depth];
    uint32_t lo = *x->p == '+', hi = *x->p == '?' ? 1 : GR_UNBOUNDED;
    if (!g->item) {
        fail(x, "there is nothing to repeat");
        return;
    }
    if (*x->p++ == '{')
        read_bounds(x, &lo, &hi);
    if (failed(x))
        return;
    if (*x->p == '?') /* the shortest first: the same texts */
        x->p++;
    struct length n = {times(g->last.least, lo), times(g->last.most, hi)};
    gr_rules_wrap(x->s->r, g->item, lo, hi);
    g->sequence.least = plus(g->sequence.least - g->last.least, n.least);
    g->sequence.most = g->sequence.most == GR_UNBOUNDED
                           ? GR_UNBOUNDED
                           : plus(g->sequence.most - g->last.most, n.most);
    g->item = 0;
}

static void read_anchor(struct regex *x)
{
    bool last = *x->p == '$' && (!x->p[1] || x->p[1] == '|');
    if (x->depth || !last) {
        fail(x, "^ and $ are supported at the ends of the pattern alone");
        return;
    }
    x->p++;
    x->ended = true;
}

static void read_item(struct regex *x)
{
    static const struct gr_chars ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    const struct length one = {1, 1};
    struct set set = {.n = 0};
    uint32_t c, node = 0;
    if (*x->p == '[') {
        node = read_class(x);
    } else if (*x->p == '.') {
        x->p++;
        node = gr_schema_chars(x->s, ends, GR_COUNT(ends), true);
    } else {
        bool escape = *x->p == '\\';
        x->p += escape;
        if (!escape)
            c = read_char(x), add_range(x, &set, c, c);
        else if (read_escape(x, &set, &c))
            add_range(x, &set, c, c);
        node = failed(x) ? 0 : gr_schema_chars(x->s, set.c, set.n, false);
    }
    add_item(x, node, one);
}

uint32_t gr_schema_regex(struct gr_schema *s, const char *pattern, const char *at, uint32_t *least,
                         uint32_t *most)
{
    struct regex x = {.s = s, .p = pattern, .begin = pattern, .at = at};
    begin_group(&x);
    while (*x.p && !failed(&x)) {
        if (*x.p == '(')
            open_group(&x);
        else if (*x.p == ')')
            close_group(&x);
        else if (*x.p == '|')
            end_alternative(&x), x.p++, begin_alternative(&x);
        else if (strchr("*+?{", *x.p))
            read_repeat(&x);
        else if (*x.p == '^' || *x.p == '$')
            read_anchor(&x);
        else
            read_item(&x);
    }
    if (x.depth)
        fail(&x, "a group without its )");
    end_alternative(&x);
    *least = x.group[0].all.least, *most = x.group[0].all.most;
    return x.group[0].alt;
}

const char *gr_schema_format(const char *name)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
#define FORMAT(name, pattern) {name, pattern},
#include "grammar/schema_format.def"
#undef FORMAT
    };
    for (size_t i = 0; i < GR_COUNT(formats); i++)
        if (!strcmp(formats[i].name, name))
            return formats[i].pattern;
    return NULL;
}
