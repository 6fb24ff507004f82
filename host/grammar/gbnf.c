/* Reads GBNF. Groups are kept on a stack, nothing recurses. */
#include "grammar/gbnf.h"

#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/utf8.h"

/* An open group, or the rule itself. */
struct group {
    uint32_t alt, seq;
    uint32_t item; /* the last item of seq, which * applies to; 0: none */
    size_t at;
};

struct gbnf {
    struct gr_rules *r;
    const struct gr_vocab *vocab;
    const char *text;
    size_t n, at;
    struct group group[GR_GRAMMAR_MAX_DEPTH + 1];
    uint32_t depth;
    struct gr_vec class; /* struct gr_chars of the class being read */
};

static char peek(const struct gbnf *p)
{
    return p->at < p->n ? p->text[p->at] : 0;
}

static int unexpected(const struct gbnf *p, const char *expected)
{
    if (p->at >= p->n)
        return gr_rules_fail(p->r, p->at, "%s expected, but the text ends", expected);
    size_t n = gr_utf8_step(p->text + p->at, p->n - p->at);
    return gr_rules_fail(p->r, p->at, "%s expected, %s found", expected,
                         gr_quote(p->text + p->at, n));
}

static void skip_space(struct gbnf *p, bool newlines)
{
    for (;; p->at++) {
        if (peek(p) == '#')
            while (p->at < p->n && peek(p) != '\r' && peek(p) != '\n')
                p->at++;
        char c = peek(p);
        if (p->at >= p->n || !(c == ' ' || c == '\t' || (newlines && (c == '\r' || c == '\n'))))
            return;
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t read_name(struct gbnf *p)
{
    size_t begin = p->at;
    while (is_name(peek(p)))
        p->at++;
    return begin;
}

/* ---- characters ---- */

static int read_hex(struct gbnf *p, int digits, uint32_t *c)
{
    size_t begin = p->at - 2;
    *c = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char x = peek(p);
        bool digit = x >= '0' && x <= '9';
        if (!digit && !((x | 32) >= 'a' && (x | 32) <= 'f'))
            return gr_rules_fail(p->r, begin, "%d hexadecimal digits expected in this escape",
                                 digits);
        *c = *c << 4 | (uint32_t)(digit ? x - '0' : (x | 32) - 'a' + 10);
    }
    if (*c > 0x10ffff || (*c >= 0xd800 && *c <= 0xdfff))
        return gr_rules_fail(p->r, begin, "U+%X is no character", *c);
    return 0;
}

static int read_escape(struct gbnf *p, uint32_t *c)
{
    static const char same[] = "\\\"[]-";
    p->at += 2;
    char x = p->at <= p->n ? p->text[p->at - 1] : 0;
    switch (x) {
    case 'x':
        return read_hex(p, 2, c);
    case 'u':
        return read_hex(p, 4, c);
    case 'U':
        return read_hex(p, 8, c);
    case 't':
        return *c = '\t', 0;
    case 'r':
        return *c = '\r', 0;
    case 'n':
        return *c = '\n', 0;
    default:
        if (x && strchr(same, x))
            return *c = (uint8_t)x, 0;
        p->at -= 2;
        return gr_rules_fail(
            p->r, p->at,
            "unknown escape; there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\xHH \\uHHHH "
            "\\UHHHHHHHH");
    }
}

static int read_char(struct gbnf *p, uint32_t *c)
{
    if (peek(p) == '\\')
        return read_escape(p, c);
    int n = gr_utf8_next(p->text + p->at, p->n - p->at, c);
    if (n <= 0)
        return gr_rules_fail(p->r, p->at, "the text is not UTF-8");
    p->at += (size_t)n;
    return 0;
}

static int read_literal(struct gbnf *p, uint32_t *node)
{
    size_t begin = p->at++;
    struct gr_vec text = {0};
    int rc = 0;
    while (!rc && p->at < p->n && peek(p) != '"') {
        char bytes[4];
        uint32_t c = 0;
        rc = read_char(p, &c);
        if (!rc)
            rc = gr_vec_append(&text, bytes, gr_utf8_put(c, bytes), 1);
    }
    if (!rc && p->at >= p->n)
        rc = gr_rules_fail(p->r, begin, "this text has no closing quote");
    p->at++;
    *node = rc ? 0 : gr_rules_literal(p->r, text.data, text.n);
    gr_vec_fini(&text);
    return rc;
}

static int read_range(struct gbnf *p, struct gr_chars *c)
{
    size_t begin = p->at;
    int rc = read_char(p, &c->lo);
    c->hi = c->lo;
    if (!rc && peek(p) == '-' && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
        p->at++;
        rc = read_char(p, &c->hi);
        if (!rc && c->hi < c->lo)
            rc = gr_rules_fail(p->r, begin, "this range ends before it begins");
    }
    return rc;
}

static int read_class(struct gbnf *p, uint32_t *node)
{
    size_t begin = p->at++;
    bool negated = peek(p) == '^';
    int rc = 0;
    p->at += negated;
    p->class.n = 0;
    while (!rc && p->at < p->n && peek(p) != ']') {
        struct gr_chars c;
        rc = read_range(p, &c);
        if (!rc)
            rc = gr_vec_append(&p->class, &c, 1, sizeof c);
    }
    if (!rc && p->at >= p->n)
        rc = gr_rules_fail(p->r, begin, "this class has no closing ]");
    else if (!rc && !p->class.n)
        rc = gr_rules_fail(p->r, begin, "this class has no characters; . is any character");
    p->at++;
    *node = rc ? 0 : gr_rules_class(p->r, p->class.data, p->class.n, negated);
    return rc;
}

/* ---- tokens ---- */

static int check_token(const struct gbnf *p, size_t begin, int64_t id)
{
    if (id >= gr_vocab_size(p->vocab))
        return gr_rules_fail(p->r, begin, "token %lld, but the vocabulary ends at %d",
                             (long long)id, gr_vocab_size(p->vocab) - 1);
    if (gr_vocab_is_eog(p->vocab, (int32_t)id))
        return gr_rules_fail(
            p->r, begin,
            "this token ends a text: it is allowed where the grammar ends, leave it out");
    if (!gr_vocab_is_generated(p->vocab, (int32_t)id))
        return gr_rules_fail(p->r, begin,
                             "this token is never generated: its type is unknown or unused");
    return 0;
}

static int read_token_id(struct gbnf *p, size_t begin, int64_t *id)
{
    *id = 0;
    if (peek(p) < '0' || peek(p) > '9')
        return unexpected(p, "the number of a token");
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        *id = GR_MIN(*id * 10 + (peek(p) - '0'), INT32_MAX);
    if (peek(p) != ']' || p->at + 1 >= p->n || p->text[p->at + 1] != '>')
        return unexpected(p, "]>");
    p->at += 2;
    return check_token(p, begin, *id);
}

static int read_token_text(struct gbnf *p, size_t begin, int64_t *id)
{
    const char *end = memchr(p->text + p->at, '>', p->n - p->at);
    const char *text = p->text + p->at - 1;
    struct gr_vec ids = {0};
    if (!end)
        return gr_rules_fail(p->r, begin, "this token has no closing >");
    size_t n = (size_t)(end + 1 - text);
    p->at = (size_t)(end + 1 - p->text);
    int rc = n > 1024 ? 0 : gr_tokenize(p->vocab, text, n, false, true, &ids);
    if (!rc && ids.n == 1)
        *id = *(int32_t *)ids.data;
    else if (!rc)
        rc = gr_rules_fail(p->r, begin, "%s is not one token of the vocabulary; %s",
                           gr_quote(text, n),
                           "a text in quotes may be several, <[ID]> names one by its number");
    gr_vec_fini(&ids);
    return rc ? rc : check_token(p, begin, *id);
}

static int read_token(struct gbnf *p, uint32_t *node)
{
    size_t begin = p->at;
    int64_t id = 0;
    bool negated = peek(p) == '!';
    p->at += negated;
    if (peek(p) != '<')
        return unexpected(p, "a token, <...>,");
    if (!p->vocab)
        return gr_rules_fail(p->r, begin, "a token without a vocabulary");
    p->at++;
    bool number = peek(p) == '[';
    p->at += number;
    int rc = number ? read_token_id(p, begin, &id) : read_token_text(p, begin, &id);
    *node = rc ? 0 : gr_rules_token(p->r, (uint32_t)id, negated);
    return rc;
}

/* ---- repetitions ---- */

static int read_count(struct gbnf *p, uint32_t *count)
{
    size_t begin = p->at;
    uint32_t v = 0;
    if (peek(p) < '0' || peek(p) > '9')
        return unexpected(p, "a number");
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        v = GR_MIN(v * 10 + (uint32_t)(peek(p) - '0'), GR_GRAMMAR_MAX_REPEAT + 1);
    if (v > GR_GRAMMAR_MAX_REPEAT)
        return gr_rules_fail(p->r, begin, "at most %u repetitions", GR_GRAMMAR_MAX_REPEAT);
    *count = v;
    return 0;
}

/* {m}, {m,}, {m,n} behind the brace. */
static int read_bounds(struct gbnf *p, bool newlines, uint32_t *lo, uint32_t *hi)
{
    size_t begin = p->at;
    skip_space(p, newlines);
    int rc = read_count(p, lo);
    *hi = *lo;
    if (rc)
        return rc;
    skip_space(p, newlines);
    if (peek(p) == ',') {
        p->at++;
        skip_space(p, newlines);
        *hi = GR_UNBOUNDED;
        if (peek(p) != '}')
            rc = read_count(p, hi);
        skip_space(p, newlines);
    }
    if (!rc && peek(p) != '}')
        rc = unexpected(p, "}");
    if (!rc && *hi < *lo)
        rc = gr_rules_fail(p->r, begin - 1, "at least %u and at most %u repetitions", *lo, *hi);
    p->at++;
    return rc;
}

static int read_repeat(struct gbnf *p, bool newlines)
{
    struct group *g = &p->group[p->depth];
    uint32_t lo = 0, hi = GR_UNBOUNDED;
    char c = peek(p);
    if (!g->item)
        return gr_rules_fail(p->r, p->at, "there is nothing in front of '%c' to repeat", c);
    p->at++;
    if (c == '+')
        lo = 1;
    else if (c == '?')
        hi = 1;
    else if (c == '{') {
        int rc = read_bounds(p, newlines, &lo, &hi);
        if (rc)
            return rc;
    }
    gr_rules_wrap(p->r, g->item, lo, hi);
    return p->r->rc;
}

/* ---- sequences, groups, rules ---- */

static void begin_group(struct gbnf *p, size_t at)
{
    struct gr_rules *r = p->r;
    struct group *g = &p->group[p->depth];
    *g = (struct group){.alt = gr_rules_alt(r), .seq = gr_rules_seq(r), .at = at};
    gr_rules_add(r, g->alt, g->seq);
}

static void add_item(struct gbnf *p, uint32_t node)
{
    struct group *g = &p->group[p->depth];
    node = node ? node : gr_rules_seq(p->r);
    gr_rules_add(p->r, g->seq, node);
    g->item = node;
}

static int open_group(struct gbnf *p)
{
    if (p->depth == GR_GRAMMAR_MAX_DEPTH)
        return gr_rules_fail(p->r, p->at, "more than %u groups within each other",
                             GR_GRAMMAR_MAX_DEPTH);
    p->depth++;
    begin_group(p, p->at++);
    return p->r->rc;
}

static int close_group(struct gbnf *p)
{
    if (!p->depth)
        return gr_rules_fail(p->r, p->at, "this ) closes no group");
    uint32_t node = p->group[p->depth--].alt;
    add_item(p, node);
    p->at++;
    return p->r->rc;
}

static void next_alternative(struct gbnf *p)
{
    struct group *g = &p->group[p->depth];
    p->at++;
    g->seq = gr_rules_seq(p->r), g->item = 0;
    gr_rules_add(p->r, g->alt, g->seq);
}

/* Reads a literal, class, token, name or dot. *found: there was one. */
static int read_item(struct gbnf *p, bool *found)
{
    static const struct gr_chars any = {0, 0x10ffff};
    uint32_t node = 0;
    int rc = 0;
    char c = peek(p);
    *found = true;
    if (c == '"') {
        rc = read_literal(p, &node);
    } else if (c == '[') {
        rc = read_class(p, &node);
    } else if (c == '<' || c == '!') {
        rc = read_token(p, &node);
    } else if (is_name(c)) {
        size_t begin = read_name(p);
        node = gr_rules_ref(p->r, gr_rules_name(p->r, p->text + begin, p->at - begin, begin));
    } else if (c == '.') {
        p->at++;
        node = gr_rules_class(p->r, &any, 1, false);
    } else {
        *found = false;
        return 0;
    }
    if (!rc)
        add_item(p, node);
    return rc ? rc : p->r->rc;
}

/* Reads the alternatives of a rule up to its end. */
static int read_body(struct gbnf *p, uint32_t *body)
{
    int rc = 0;
    p->depth = 0;
    begin_group(p, p->at);
    for (bool found = true; !rc; skip_space(p, p->depth > 0)) {
        char c = peek(p);
        if (c == '(')
            rc = open_group(p);
        else if (c == ')')
            rc = close_group(p);
        else if (c == '|')
            next_alternative(p), skip_space(p, true);
        else if (c && strchr("*+?{", c))
            rc = read_repeat(p, p->depth > 0);
        else if (!(rc = read_item(p, &found)) && !found)
            break;
    }
    if (!rc && p->depth && p->at >= p->n)
        rc = gr_rules_fail(p->r, p->group[p->depth].at, "this group has no closing )");
    else if (!rc && p->at < p->n && (p->depth || !strchr("\r\n", peek(p)) || !peek(p)))
        rc = unexpected(p, p->depth ? "an item, | or )" : "an item, | or a new line");
    *body = p->group[0].alt;
    return rc;
}

static int read_rule(struct gbnf *p)
{
    uint32_t body = 0;
    size_t begin = read_name(p), n = p->at - begin;
    if (!n)
        return unexpected(p, "the name of a rule");
    uint32_t rule = gr_rules_name(p->r, p->text + begin, n, begin);
    if (p->r->rc)
        return p->r->rc;
    if (gr_rules_at(p->r, rule)->defined)
        return gr_rules_fail(p->r, begin, "rule %s is already defined",
                             gr_quote(p->text + begin, n));
    gr_rules_at(p->r, rule)->at = begin;
    skip_space(p, false);
    if (p->n - p->at < 3 || memcmp(p->text + p->at, "::=", 3) != 0)
        return unexpected(p, "::=");
    p->at += 3;
    skip_space(p, true);
    int rc = read_body(p, &body);
    gr_rules_define(p->r, rule, body);
    skip_space(p, true);
    return rc ? rc : p->r->rc;
}

int gr_gbnf_read(struct gr_rules *rules, const char *text, size_t n, const struct gr_vocab *vocab)
{
    struct gbnf p = {.r = rules, .text = text, .n = n, .vocab = vocab};
    if (n > GR_GRAMMAR_MAX_SOURCE)
        return gr_fail(GR_E_TOO_LARGE, "grammar: %zu bytes, at most %u are read", n,
                       GR_GRAMMAR_MAX_SOURCE);
    rules->source = text, rules->n_source = n;
    (void)gr_rules_name(rules, "root", 4, 0);
    skip_space(&p, true);
    int rc = rules->rc;
    while (!rc && p.at < n)
        rc = read_rule(&p);
    for (uint32_t i = 0; !rc && i < rules->rules.n; i++) {
        const struct gr_rule *rule = gr_rules_at(rules, i);
        if (!rule->defined && i == 0)
            rc = gr_fail(GR_E_INVALID, "grammar: there is no rule root, with which a text begins");
        else if (!rule->defined)
            rc = gr_rules_fail(rules, rule->at, "rule %s is not defined",
                               gr_quote(rule->name, strlen(rule->name)));
    }
    gr_vec_fini(&p.class);
    return rc;
}
