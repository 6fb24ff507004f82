/* The automaton of a grammar over bytes, made as it is used.
 *
 * A *state* is a set of items: a place in the network, and a *stack*, where to go on when the rule
 * of the place ends. A stack is a set too: places to go on at, each with the stack of its own rule,
 * one for each call that led to the rule at this point of the text. Sharing them keeps a state
 * small, however many ways of reading the text there are. States and stacks are kept once each, so
 * that a state is a number, and a transition is looked up after its first use.
 *
 * Two places stand below all stacks: the end of the text, and "unknown", for what is true of a
 * place whatever its stack is. */
#ifndef GR_GRAMMAR_AUTOMATON_H
#define GR_GRAMMAR_AUTOMATON_H

#include "grammar/intern.h"
#include "grammar/network.h"

enum { GR_STACK_TEXT = 0, GR_STACK_UNKNOWN = 1 }; /* stacks with nothing above these places */
enum { GR_PLACE_TEXT = GR_NONE - 1, GR_PLACE_UNKNOWN = GR_NONE };

enum gr_state_flag {
    GR_STATE_MAY_END = 1, /* the text may end */
    GR_STATE_LEAVES = 2,  /* an unknown stack goes on */
    GR_STATE_TOKENS = 4,  /* a token can be taken by its number */
};

enum { GR_STATE_DEAD = 0 }; /* the state without items and flags */

/* Work of one mask: a third of a second of a processor of 2023. An item counts GR_WORK_ITEM, a
 * repetition around one and a node of the trie 1. */
#define GR_GRAMMAR_MAX_WORK (1u << 25)
enum { GR_WORK_ITEM = 8 };

struct gr_caller {
    uint32_t place, stack, next; /* place GR_NONE: the call ends its rule, `stack` goes on */
};

struct gr_automaton {
    const struct gr_network *net;
    struct gr_intern states, stacks; /* pairs: place, stack */
    struct gr_vec rows;              /* uint32_t [n_class] each: 1 + next state; 0: not known */
    struct gr_vec row;               /* uint32_t for each state: 1 + its row; 0: none */
    struct gr_vec after;             /* uint32_t for each stack: 1 + the state it goes on with */
    size_t limit;                    /* bytes that all this may have */
    uint32_t work;                   /* of the call in progress (GR_GRAMMAR_MAX_WORK) */
    /* The state being made. */
    struct gr_vec todo, core, entries; /* struct gr_pair */
    struct gr_vec callers;             /* struct gr_caller */
    uint32_t *caller;                  /* [n_rule] by rank: 1 + the last caller */
    uint64_t *called;                  /* ranks that have callers, as bits */
    struct gr_pair *seen;              /* hash set of items */
    uint32_t *seen_in, turn;           /* turn in which a slot was used */
    uint32_t n_seen, flags;
    int rc;
};

int gr_automaton_init(struct gr_automaton *a, const struct gr_network *net, size_t limit);
void gr_automaton_fini(struct gr_automaton *a);
size_t gr_automaton_bytes(const struct gr_automaton *a);
/* Keeps the states of `keep` [n], which receive new numbers, and forgets all others. */
int gr_automaton_collect(struct gr_automaton *a, uint32_t **keep, size_t n);

/* All fail with GR_E_TOO_LARGE (more items, memory or work than the limits) or GR_E_NOMEM_HOST. */

/* The state at the beginning of a text. */
int gr_automaton_start(struct gr_automaton *a, uint32_t *state);
/* The state of places [n] whose stack is unknown. */
int gr_automaton_context(struct gr_automaton *a, const struct gr_pair *places, uint32_t n,
                         uint32_t *state);
/* The state in which a stack goes on. */
int gr_automaton_after(struct gr_automaton *a, uint32_t stack, uint32_t *state);
/* The state behind token `id` taken by its number, joined with state `beside`. */
int gr_automaton_token(struct gr_automaton *a, uint32_t state, uint32_t id, uint32_t beside,
                       uint32_t *next);
/* The state behind a byte of a class that is not in the state's row yet. */
int gr_automaton_make(struct gr_automaton *a, uint32_t state, uint32_t class, uint32_t *next);

/* The state behind a byte. */
static inline int gr_automaton_step(struct gr_automaton *a, uint32_t state, uint8_t byte,
                                    uint32_t *next)
{
    uint32_t class = a->net->class_of[byte], row = ((const uint32_t *)a->row.data)[state];
    if (row) {
        *next = ((const uint32_t *)a->rows.data)[(size_t)(row - 1) * a->net->n_class + class];
        if (*next) {
            --*next;
            return 0;
        }
    }
    return gr_automaton_make(a, state, class, next);
}

/* Fails once the work of the call is beyond the limit. */
int gr_automaton_check_work(const struct gr_automaton *a);

static inline uint32_t gr_automaton_flags(const struct gr_automaton *a, uint32_t state)
{
    return gr_intern_at(&a->states, state)->flags;
}

#endif
