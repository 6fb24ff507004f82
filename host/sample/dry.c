/* DRY: repetitions of the text's end are the Z-function of the text read backwards. */
#include "sample/dry.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "gr/status.h"

#define MAX_PENALTY 1e30

/* Breakers that several texts have, in any thread; freed with the last of them. */
struct shared_breakers {
    atomic_int n_ref;
    struct gr_breakers of; /* sorted by head */
};

struct gr_dry {
    struct gr_dry_params p;
    struct shared_breakers *breakers;
    int32_t *ring;               /* [window] accepted tokens */
    uint32_t n_ring, at;         /* tokens in the ring; place of the next one */
    int32_t *back;               /* [window] the text backwards, the newest token first */
    int32_t *z;                  /* [window] tokens that are equal at the begin and from i on */
    int32_t *longest;            /* [n_vocab] 1 + repetition that a token continues, 0: none */
    struct gr_dry_penalty *list; /* [window] */
};

int gr_breakers_add(struct gr_breakers *b, const int32_t *token, int32_t n)
{
    int rc = n > 1 ? gr_vec_append(&b->tail, token + 1, (size_t)n - 1, sizeof *token) : 0;
    struct gr_breaker *item = rc ? NULL : gr_vec_push(&b->item, sizeof *item);
    if (!item)
        return GR_E_NOMEM_HOST;
    *item = (struct gr_breaker){token[0], n - 1, (int32_t)b->tail.n - (n - 1)};
    return 0;
}

void gr_breakers_fini(struct gr_breakers *b)
{
    gr_vec_fini(&b->item);
    gr_vec_fini(&b->tail);
}

static int by_head(const void *a, const void *b)
{
    int32_t x = ((const struct gr_breaker *)a)->head, y = ((const struct gr_breaker *)b)->head;
    return x < y ? -1 : x > y;
}

static void drop_breakers(struct shared_breakers *b)
{
    if (!b || atomic_fetch_sub(&b->n_ref, 1) > 1)
        return;
    gr_breakers_fini(&b->of);
    gr_free(b);
}

/* Makes one with a reference to breakers, which is taken over also on failure. */
static int make(struct gr_dry **out, const struct gr_dry_params *p, struct shared_breakers *b)
{
    struct gr_dry *d = gr_calloc(1, sizeof *d);
    size_t n = (size_t)p->window;
    *out = NULL;
    if (!d) {
        drop_breakers(b);
        return GR_E_NOMEM_HOST;
    }
    d->p = *p;
    d->breakers = b;
    d->ring = gr_calloc(n, sizeof *d->ring);
    d->back = gr_calloc(n, sizeof *d->back);
    d->z = gr_calloc(n, sizeof *d->z);
    d->list = gr_calloc(n, sizeof *d->list);
    d->longest = gr_calloc((size_t)p->n_vocab, sizeof *d->longest);
    if (!d->ring || !d->back || !d->z || !d->list || !d->longest) {
        gr_dry_free(&d);
        return GR_E_NOMEM_HOST;
    }
    *out = d;
    return 0;
}

int gr_dry_new(struct gr_dry **out, const struct gr_dry_params *p, struct gr_breakers *breakers)
{
    struct shared_breakers *b = gr_calloc(1, sizeof *b);
    *out = NULL;
    if (!b) {
        gr_breakers_fini(breakers);
        return GR_E_NOMEM_HOST;
    }
    atomic_init(&b->n_ref, 1);
    b->of = *breakers;
    *breakers = (struct gr_breakers){0};
    if (b->of.item.n)
        qsort(b->of.item.data, b->of.item.n, sizeof(struct gr_breaker), by_head);
    return make(out, p, b);
}

int gr_dry_new_like(struct gr_dry **out, const struct gr_dry *of)
{
    atomic_fetch_add(&of->breakers->n_ref, 1);
    return make(out, &of->p, of->breakers);
}

void gr_dry_free(struct gr_dry **dry)
{
    struct gr_dry *d = *dry;
    if (!d)
        return;
    drop_breakers(d->breakers);
    gr_free(d->ring);
    gr_free(d->back);
    gr_free(d->z);
    gr_free(d->list);
    gr_free(d->longest);
    gr_free(d);
    *dry = NULL;
}

void gr_dry_accept(struct gr_dry *d, int32_t id)
{
    uint32_t window = (uint32_t)d->p.window;
    if (!window)
        return;
    d->ring[d->at] = id;
    d->at = (d->at + 1) % window;
    d->n_ring = GR_MIN(d->n_ring + 1, window);
}

/* ---- breakers ---- */

/* Returns the first breaker with this head; the others follow it. End: `end`. */
static const struct gr_breaker *find_head(const struct gr_dry *d, int32_t head,
                                          const struct gr_breaker **end)
{
    const struct gr_breaker *item = d->breakers->of.item.data;
    size_t lo = 0, hi = d->breakers->of.item.n;
    *end = item ? item + hi : NULL;
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        if (item[middle].head < head)
            lo = middle + 1;
        else
            hi = middle;
    }
    return item ? item + lo : NULL;
}

/* Returns the tokens of the longest breaker that begins with the i-th newest token, 0: none. */
static int32_t breaker_at(const struct gr_dry *d, int32_t i)
{
    const struct gr_breaker *end, *b = find_head(d, d->back[i], &end);
    int32_t longest = 0;
    for (; b < end && b->head == d->back[i]; b++) {
        const int32_t *tail = (const int32_t *)d->breakers->of.tail.data + b->tail;
        int32_t n = 0;
        while (n < b->n_tail && n < i && tail[n] == d->back[i - 1 - n])
            n++;
        if (n == b->n_tail)
            longest = GR_MAX(longest, n + 1);
    }
    return longest;
}

/* Returns the number of tokens behind the last breaker, all of them without one. */
static int32_t behind_breaker(const struct gr_dry *d)
{
    int32_t n = (int32_t)d->n_ring;
    for (int32_t i = 0; i < n && d->breakers->of.item.n; i++) {
        int32_t length = breaker_at(d, i);
        if (length)
            return i + 1 - length;
    }
    return n;
}

/* Returns whether a token alone is a breaker. */
static bool is_breaker(const struct gr_dry *d, int32_t id)
{
    const struct gr_breaker *end, *b = find_head(d, id, &end);
    for (; b < end && b->head == id; b++) {
        if (!b->n_tail)
            return true;
    }
    return false;
}

/* ---- repetitions ---- */

static void read_back(struct gr_dry *d)
{
    uint32_t window = (uint32_t)d->p.window;
    for (uint32_t i = 0; i < d->n_ring; i++)
        d->back[i] = d->ring[(d->at + window - 1 - i) % window];
}

/* z[i]: how many tokens from i on equal those from 0 on; [lo, hi) is the match found that ends
 * last. */
static void fill_z(struct gr_dry *d)
{
    int32_t n = (int32_t)d->n_ring, lo = 0, hi = 0;
    for (int32_t i = 1; i < n; i++) {
        int32_t m = i < hi ? GR_MIN(d->z[i - lo], hi - i) : 0;
        while (i + m < n && d->back[m] == d->back[i + m])
            m++;
        d->z[i] = m;
        if (i + m > hi)
            lo = i, hi = i + m;
    }
}

static float penalty_of(const struct gr_dry *d, int32_t length)
{
    double x = d->p.multiplier * pow(d->p.base, length - d->p.allowed);
    return (float)fmin(x, MAX_PENALTY);
}

int32_t gr_dry_penalties(struct gr_dry *d, const struct gr_dry_penalty **list)
{
    int32_t n = (int32_t)d->n_ring, n_list = 0, kept = 0;
    *list = d->list;
    if (n <= d->p.allowed)
        return 0;
    read_back(d);
    int32_t most = behind_breaker(d);
    if (most < d->p.allowed)
        return 0;
    fill_z(d);
    for (int32_t i = 1; i < n; i++) { /* the token before i continued what begins at i */
        int32_t length = GR_MIN(d->z[i], most), id = d->back[i - 1];
        if (length < d->p.allowed)
            continue;
        if (!d->longest[id])
            d->list[n_list++].id = id;
        d->longest[id] = GR_MAX(d->longest[id], length + 1);
    }
    for (int32_t i = 0; i < n_list; i++) {
        int32_t id = d->list[i].id;
        if (!is_breaker(d, id))
            d->list[kept++] = (struct gr_dry_penalty){id, penalty_of(d, d->longest[id] - 1)};
        d->longest[id] = 0;
    }
    return kept;
}
