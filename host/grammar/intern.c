#include "grammar/intern.h"

#include <stdlib.h>
#include <string.h>

#include "gr/status.h"

static uint32_t hash_pairs(const struct gr_pair *p, uint32_t n, uint32_t flags)
{
    uint64_t h = flags + 0x9e3779b97f4a7c15u * (n + 1);
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ ((uint64_t)p[i].b << 32 | p[i].a)) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (uint32_t)(h ^ h >> 29);
}

static int grow(struct gr_intern *t)
{
    uint32_t n = t->n_slot ? 2 * t->n_slot : 64;
    uint32_t *slot = gr_calloc(n, sizeof *slot);
    if (!slot)
        return GR_E_NOMEM_HOST;
    for (uint32_t id = 0; id < t->sequences.n; id++) {
        uint32_t i = gr_intern_at(t, id)->hash & (n - 1);
        while (slot[i])
            i = (i + 1) & (n - 1);
        slot[i] = id + 1;
    }
    gr_free(t->slot);
    t->slot = slot, t->n_slot = n;
    return 0;
}

int gr_intern(struct gr_intern *t, const struct gr_pair *p, uint32_t n, uint32_t flags,
              uint32_t *id)
{
    uint32_t hash = hash_pairs(p, n, flags);
    if (2 * (t->sequences.n + 1) > t->n_slot && grow(t))
        return GR_E_NOMEM_HOST;
    uint32_t i = hash & (t->n_slot - 1);
    for (; t->slot[i]; i = (i + 1) & (t->n_slot - 1)) {
        const struct gr_sequence *s = gr_intern_at(t, t->slot[i] - 1);
        if (s->hash == hash && s->n == n && s->flags == flags &&
            (!n || !memcmp(gr_intern_pairs(t, t->slot[i] - 1), p, n * sizeof *p)))
            return *id = t->slot[i] - 1, 0;
    }
    const struct gr_sequence s = {(uint32_t)t->pairs.n, n, flags, hash};
    if (gr_vec_append(&t->pairs, p, n, sizeof *p))
        return GR_E_NOMEM_HOST;
    if (gr_vec_append(&t->sequences, &s, 1, sizeof s)) {
        t->pairs.n -= n;
        return GR_E_NOMEM_HOST;
    }
    *id = (uint32_t)t->sequences.n - 1;
    t->slot[i] = *id + 1;
    return 0;
}

void gr_intern_fini(struct gr_intern *t)
{
    gr_vec_fini(&t->pairs);
    gr_vec_fini(&t->sequences);
    gr_free(t->slot);
    *t = (struct gr_intern){0};
}

static int compare(const void *x, const void *y)
{
    const struct gr_pair *p = x, *q = y;
    return p->b != q->b ? (p->b > q->b) - (p->b < q->b) : (p->a > q->a) - (p->a < q->a);
}

uint32_t gr_pairs_sort(struct gr_pair *p, uint32_t n)
{
    uint32_t m = 0;
    if (n > 1)
        qsort(p, n, sizeof *p, compare);
    for (uint32_t i = 0; i < n; i++)
        if (!m || compare(&p[m - 1], &p[i]) != 0)
            p[m++] = p[i];
    return m;
}
