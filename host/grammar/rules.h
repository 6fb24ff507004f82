/* The rules of a grammar as trees of nodes: what GBNF texts and JSON schemas are read into.
 *
 * Nodes are numbers; 0 is the empty sequence. The functions that add to the rules keep the first
 * failure in `rc` and do nothing after it, so callers look at it once. */
#ifndef GR_GRAMMAR_RULES_H
#define GR_GRAMMAR_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"

/* Limits on one grammar. */
#define GR_GRAMMAR_MAX_SOURCE (64u << 10) /* bytes of GBNF or JSON schema */
#define GR_GRAMMAR_MAX_DEPTH 128u         /* groups within groups; levels of a schema */
#define GR_GRAMMAR_MAX_RULES 10000u
#define GR_GRAMMAR_MAX_NODES (1u << 17)
#define GR_GRAMMAR_MAX_REPEAT (1u << 20)
#define GR_UNBOUNDED UINT32_MAX

struct gr_chars { /* code points lo to hi */
    uint32_t lo, hi;
};

enum gr_rule_kind {
    GR_RULE_LITERAL, /* a, b: bytes [a, a + b) of `bytes` */
    GR_RULE_CLASS,   /* a, b: ranges [a, a + b) of `ranges`, sorted, apart from each other */
    GR_RULE_SEQ,
    GR_RULE_ALT,
    GR_RULE_REPEAT, /* the child a to b times */
    GR_RULE_REF,    /* rule a */
    GR_RULE_TOKEN,  /* token a; b != 0: any other token that does not end a text */
};

struct gr_rule_node {
    enum gr_rule_kind kind;
    uint32_t a, b;
    uint32_t child, last, next; /* first and last child; next sibling */
};

struct gr_rule {
    char *name;    /* NULL: none */
    uint32_t body; /* node */
    bool defined;
    size_t at; /* offset in the source of its definition, or of the first use */
};

struct gr_rules {
    int rc;
    struct gr_vec nodes;  /* struct gr_rule_node */
    struct gr_vec ranges; /* struct gr_chars */
    struct gr_vec bytes;  /* char */
    struct gr_vec rules;  /* struct gr_rule; 0: the root */
    uint32_t *by_name;    /* hash table of 1 + rule */
    const char *source;   /* [n_source] GBNF that the offsets belong to; NULL: none */
    size_t n_source;
};

int gr_rules_init(struct gr_rules *r);
void gr_rules_fini(struct gr_rules *r);

/* Each returns the new node, 0 after a failure. */
uint32_t gr_rules_literal(struct gr_rules *r, const char *p, size_t n);
uint32_t gr_rules_text(struct gr_rules *r, const char *text);
/* A character of the ranges [n], or not of them; sorts and merges a copy. */
uint32_t gr_rules_class(struct gr_rules *r, const struct gr_chars *ranges, size_t n, bool negated);
uint32_t gr_rules_seq(struct gr_rules *r);
uint32_t gr_rules_alt(struct gr_rules *r);
uint32_t gr_rules_repeat(struct gr_rules *r, uint32_t child, uint32_t lo, uint32_t hi);
uint32_t gr_rules_ref(struct gr_rules *r, uint32_t rule);
uint32_t gr_rules_token(struct gr_rules *r, uint32_t id, bool negated);
/* Appends a node, which has no parent yet, to the sequence or alternatives `parent`. */
void gr_rules_add(struct gr_rules *r, uint32_t parent, uint32_t child);
/* Makes the node a repetition of what it was. */
void gr_rules_wrap(struct gr_rules *r, uint32_t node, uint32_t lo, uint32_t hi);

/* The rule of a name (n bytes), a new one without a body where there is none. */
uint32_t gr_rules_name(struct gr_rules *r, const char *name, size_t n, size_t at);
/* A new rule without a name and a body. */
uint32_t gr_rules_new(struct gr_rules *r);
void gr_rules_define(struct gr_rules *r, uint32_t rule, uint32_t body);

/* Fails with GR_E_INVALID and the line and column of an offset in the source. */
int gr_rules_fail(const struct gr_rules *r, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static inline struct gr_rule_node *gr_rules_node(const struct gr_rules *r, uint32_t node)
{
    return (struct gr_rule_node *)r->nodes.data + node;
}

static inline struct gr_rule *gr_rules_at(const struct gr_rules *r, uint32_t rule)
{
    return (struct gr_rule *)r->rules.data + rule;
}

#endif
