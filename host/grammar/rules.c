/* Trees of nodes, appended to flat arrays. */
#include "grammar/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

enum { NAME_SLOTS = 1 << 14 };
#define LAST_CHAR 0x10ffffu

int gr_rules_init(struct gr_rules *r)
{
    *r = (struct gr_rules){0};
    r->by_name = gr_calloc(NAME_SLOTS, sizeof *r->by_name);
    struct gr_rule_node *empty = gr_vec_push(&r->nodes, sizeof *empty);
    if (!r->by_name || !empty)
        return r->rc = GR_E_NOMEM_HOST;
    empty->kind = GR_RULE_SEQ;
    return 0;
}

void gr_rules_fini(struct gr_rules *r)
{
    for (uint32_t i = 0; i < r->rules.n; i++)
        gr_free(gr_rules_at(r, i)->name);
    gr_vec_fini(&r->nodes);
    gr_vec_fini(&r->ranges);
    gr_vec_fini(&r->bytes);
    gr_vec_fini(&r->rules);
    gr_free(r->by_name);
    *r = (struct gr_rules){0};
}

static uint32_t new_node(struct gr_rules *r, struct gr_rule_node node)
{
    if (!r->rc && r->nodes.n >= GR_GRAMMAR_MAX_NODES)
        r->rc = gr_fail(GR_E_TOO_LARGE, "the grammar has more than %u nodes: make it smaller",
                        GR_GRAMMAR_MAX_NODES);
    struct gr_rule_node *p = r->rc ? NULL : gr_vec_push(&r->nodes, sizeof *p);
    if (!p) {
        r->rc = r->rc ? r->rc : GR_E_NOMEM_HOST;
        return 0;
    }
    *p = node;
    return (uint32_t)r->nodes.n - 1;
}

uint32_t gr_rules_literal(struct gr_rules *r, const char *p, size_t n)
{
    uint32_t at = (uint32_t)r->bytes.n;
    if (!n)
        return 0;
    if (!r->rc && n > 16 * (size_t)GR_GRAMMAR_MAX_SOURCE - at)
        r->rc =
            gr_fail(GR_E_TOO_LARGE, "the grammar has more than %u bytes of text: make it smaller",
                    16 * GR_GRAMMAR_MAX_SOURCE);
    if (!r->rc)
        r->rc = gr_vec_append(&r->bytes, p, n, 1);
    return new_node(r, (struct gr_rule_node){.kind = GR_RULE_LITERAL, .a = at, .b = (uint32_t)n});
}

uint32_t gr_rules_text(struct gr_rules *r, const char *text)
{
    return gr_rules_literal(r, text, strlen(text));
}

static int by_lo(const void *a, const void *b)
{
    const struct gr_chars *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorts ranges and merges those that touch; returns their number. */
static size_t merge(struct gr_chars *c, size_t n)
{
    size_t m = 0;
    qsort(c, n, sizeof *c, by_lo);
    for (size_t i = 0; i < n; i++) {
        if (m && c[i].lo <= c[m - 1].hi + 1)
            c[m - 1].hi = GR_MAX(c[m - 1].hi, c[i].hi);
        else
            c[m++] = c[i];
    }
    return m;
}

/* Writes what n merged ranges leave out to `out` [n + 1]; returns the number of ranges. */
static size_t complement(const struct gr_chars *c, size_t n, struct gr_chars *out)
{
    size_t m = 0;
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (c[i].lo > next)
            out[m++] = (struct gr_chars){next, c[i].lo - 1};
        next = c[i].hi + 1;
    }
    if (next <= LAST_CHAR)
        out[m++] = (struct gr_chars){next, LAST_CHAR};
    return m;
}

uint32_t gr_rules_class(struct gr_rules *r, const struct gr_chars *ranges, size_t n, bool negated)
{
    uint32_t at = (uint32_t)r->ranges.n;
    struct gr_chars *c = r->rc ? NULL : gr_calloc(2 * n + 2, sizeof *c);
    if (!c) {
        r->rc = r->rc ? r->rc : GR_E_NOMEM_HOST;
        return 0;
    }
    if (n)
        memcpy(c, ranges, n * sizeof *c);
    size_t m = merge(c, n);
    struct gr_chars *rest = c + n;
    if (negated)
        m = complement(c, m, rest);
    r->rc = gr_vec_append(&r->ranges, negated ? rest : c, m, sizeof *c);
    gr_free(c);
    return new_node(r, (struct gr_rule_node){.kind = GR_RULE_CLASS, .a = at, .b = (uint32_t)m});
}

uint32_t gr_rules_seq(struct gr_rules *r)
{
    return new_node(r, (struct gr_rule_node){.kind = GR_RULE_SEQ});
}

uint32_t gr_rules_alt(struct gr_rules *r)
{
    return new_node(r, (struct gr_rule_node){.kind = GR_RULE_ALT});
}

uint32_t gr_rules_repeat(struct gr_rules *r, uint32_t child, uint32_t lo, uint32_t hi)
{
    if (hi == 0)
        return 0;
    return new_node(r,
                    (struct gr_rule_node){
                        .kind = GR_RULE_REPEAT, .a = lo, .b = hi, .child = child, .last = child});
}

uint32_t gr_rules_ref(struct gr_rules *r, uint32_t rule)
{
    return new_node(r, (struct gr_rule_node){.kind = GR_RULE_REF, .a = rule});
}

uint32_t gr_rules_token(struct gr_rules *r, uint32_t id, bool negated)
{
    return new_node(r, (struct gr_rule_node){.kind = GR_RULE_TOKEN, .a = id, .b = negated});
}

void gr_rules_add(struct gr_rules *r, uint32_t parent, uint32_t child)
{
    /* The empty sequence is shared: a node of its own can have a next sibling. */
    child = child ? child : gr_rules_seq(r);
    if (r->rc)
        return;
    struct gr_rule_node *p = gr_rules_node(r, parent);
    if (p->last)
        gr_rules_node(r, p->last)->next = child;
    else
        p->child = child;
    p->last = child;
}

void gr_rules_wrap(struct gr_rules *r, uint32_t node, uint32_t lo, uint32_t hi)
{
    uint32_t inner = r->rc ? 0 : new_node(r, *gr_rules_node(r, node));
    if (r->rc)
        return;
    gr_rules_node(r, inner)->next = 0;
    struct gr_rule_node *p = gr_rules_node(r, node);
    uint32_t next = p->next;
    *p = (struct gr_rule_node){
        .kind = GR_RULE_REPEAT, .a = lo, .b = hi, .child = inner, .last = inner, .next = next};
    if (hi == 0)
        *p = (struct gr_rule_node){.kind = GR_RULE_SEQ, .next = next};
}

uint32_t gr_rules_new(struct gr_rules *r)
{
    if (!r->rc && r->rules.n >= GR_GRAMMAR_MAX_RULES)
        r->rc = gr_fail(GR_E_TOO_LARGE, "the grammar has more than %u rules: make it smaller",
                        GR_GRAMMAR_MAX_RULES);
    if (!r->rc && !gr_vec_push(&r->rules, sizeof(struct gr_rule)))
        r->rc = GR_E_NOMEM_HOST;
    return r->rc ? 0 : (uint32_t)r->rules.n - 1;
}

static uint32_t hash_name(const char *name, size_t n)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)name[i]) * 16777619u;
    return h % NAME_SLOTS;
}

uint32_t gr_rules_name(struct gr_rules *r, const char *name, size_t n, size_t at)
{
    uint32_t slot = hash_name(name, n);
    for (; !r->rc && r->by_name[slot]; slot = (slot + 1) % NAME_SLOTS) {
        const char *have = gr_rules_at(r, r->by_name[slot] - 1)->name;
        if (strlen(have) == n && !memcmp(have, name, n))
            return r->by_name[slot] - 1;
    }
    uint32_t rule = gr_rules_new(r);
    char *copy = r->rc ? NULL : gr_strndup(name, n);
    if (!copy) {
        r->rc = r->rc ? r->rc : GR_E_NOMEM_HOST;
        return 0;
    }
    gr_rules_at(r, rule)->name = copy, gr_rules_at(r, rule)->at = at;
    r->by_name[slot] = rule + 1;
    return rule;
}

void gr_rules_define(struct gr_rules *r, uint32_t rule, uint32_t body)
{
    if (r->rc)
        return;
    gr_rules_at(r, rule)->body = body, gr_rules_at(r, rule)->defined = true;
}

int gr_rules_fail(const struct gr_rules *r, size_t at, const char *fmt, ...)
{
    char what[320];
    va_list args;
    size_t line = 1, column = 1;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (!r->source)
        return gr_fail(GR_E_INVALID, "grammar: %s", what);
    for (size_t i = 0; i < at; i++) {
        if (r->source[i] == '\n')
            line++, column = 1;
        else
            column += ((uint8_t)r->source[i] & 0xc0) != 0x80;
    }
    return gr_fail(GR_E_INVALID, "grammar, line %zu, column %zu: %s", line, column, what);
}
