/* A grammar as a network of byte automata, one for each rule: states with edges that take a byte
 * or a token, or call a rule.
 *
 * A repetition x{m,n} is a *block*: the automaton of x once, standing for `copies` copies of it in
 * a row, so its size does not grow with m and n. States have virtual numbers, in which the copies
 * are counted; gr_network_place finds what a number stands for. A *space* is the automaton of a
 * rule or of a block's x: numbers count from its start, its own states first, then its blocks.
 *
 * A call and a copy of a block take at least one byte or token: what can be empty is passed over by
 * an edge beside it. So a chain of edges without bytes ends, and rules can be ordered such that
 * each calls only later ones at its start. */
#ifndef GR_GRAMMAR_NETWORK_H
#define GR_GRAMMAR_NETWORK_H

#include "grammar/rules.h"

#define GR_GRAMMAR_MAX_STATES (1u << 16) /* not counting copies */
#define GR_GRAMMAR_MAX_VIRTUAL (1u << 30)
#define GR_NONE UINT32_MAX

enum gr_edge_kind {
    GR_EDGE_BYTE,  /* lo to hi */
    GR_EDGE_TOKEN, /* token arg */
    GR_EDGE_OTHER, /* any token but arg that does not end a text */
    GR_EDGE_CALL,  /* rule arg, then `to` */
    GR_EDGE_SKIP,  /* nothing */
    GR_EDGE_BLOCK, /* nothing, to the start of block arg */
};

struct gr_edge {
    uint8_t kind, lo, hi;
    uint32_t arg, to; /* to: of the same space */
};

struct gr_block {
    uint32_t space;       /* of one copy */
    uint32_t offset;      /* of the first copy in the space around it */
    uint32_t copies, min; /* after the last of `copies`: the exit, or with `loop` itself again; the
                             exit is open after `min` of them */
    uint32_t exit;        /* state of the space around it */
    bool loop;
};

enum { GR_SPACE_START = 0, GR_SPACE_END = 1 }; /* the first two states of each space */

struct gr_space {
    uint32_t first, n;       /* its own states */
    uint32_t block, n_block; /* its blocks */
    uint32_t width;          /* states, those of copies counted */
};

struct gr_network {
    uint32_t n_rule, n_state, n_space, n_block;
    struct gr_space *space; /* [n_space]; [0, n_rule): the rules */
    struct gr_block *block; /* [n_block] */
    struct gr_edge *edge;
    uint32_t *first_edge;  /* [n_state + 1] */
    uint32_t *base;        /* [n_rule] virtual number of a rule's start */
    uint32_t *rank;        /* [n_rule] a rule calls only higher ranks at its start */
    uint32_t *by_rank;     /* [n_rule] */
    bool root_empty;       /* the root may be empty */
    uint8_t class_of[256]; /* bytes that no edge tells apart */
    uint8_t byte_of[256];  /* a byte of each class */
    uint32_t n_class;
};

/* A place in the network: a state within a copy. */
struct gr_place {
    uint32_t state;              /* not counting copies */
    uint32_t origin;             /* virtual number of the start of its space */
    uint32_t block, copy, outer; /* the block it is in, GR_NONE: none; origin of the space around */
    uint32_t depth;              /* blocks around it, which finding it took a step each */
    bool end;                    /* the end of its space */
};

/* GR_E_INVALID: left recursion, or a grammar that no text ends. GR_E_TOO_LARGE. */
int gr_network_build(struct gr_network *net, const struct gr_rules *rules);
void gr_network_fini(struct gr_network *net);

struct gr_place gr_network_place(const struct gr_network *net, uint32_t number);
/* The lowest number whose next `bytes` bytes lead on in the same way. */
uint32_t gr_network_alike(const struct gr_network *net, uint32_t number, uint32_t bytes);

#endif
