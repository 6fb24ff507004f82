/* Sequences of pairs of numbers, each kept once and known by an id. */
#ifndef GR_GRAMMAR_INTERN_H
#define GR_GRAMMAR_INTERN_H

#include "base/alloc.h"

struct gr_pair {
    uint32_t a, b;
};

struct gr_sequence {
    uint32_t first, n, flags, hash;
};

struct gr_intern {
    struct gr_vec pairs;     /* struct gr_pair */
    struct gr_vec sequences; /* struct gr_sequence */
    uint32_t *slot;          /* [n_slot] 1 + id */
    uint32_t n_slot;
};

/* *id: that of p [n] with `flags`. GR_E_NOMEM_HOST. */
int gr_intern(struct gr_intern *t, const struct gr_pair *p, uint32_t n, uint32_t flags,
              uint32_t *id);
void gr_intern_fini(struct gr_intern *t);
/* Sorts by b, then a, and leaves each pair once; returns their number. */
uint32_t gr_pairs_sort(struct gr_pair *p, uint32_t n);

static inline const struct gr_sequence *gr_intern_at(const struct gr_intern *t, uint32_t id)
{
    return (const struct gr_sequence *)t->sequences.data + id;
}

static inline const struct gr_pair *gr_intern_pairs(const struct gr_intern *t, uint32_t id)
{
    return (const struct gr_pair *)t->pairs.data + gr_intern_at(t, id)->first;
}

#endif
