/* Which cells the tokens of a micro-batch see, as ranges of lists. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"
#include "kv/cells.h"

/* ---- the order of a sequence ---- */

struct key {
    int32_t pos;
    uint32_t cell;
    uint64_t age;
};

static int compare(const void *x, const void *y)
{
    const struct key *a = x, *b = y;
    if (a->pos != b->pos)
        return a->pos < b->pos ? -1 : 1;
    return a->age < b->age ? -1 : a->age > b->age;
}

static int make_room(struct gr_kv_order *o, uint32_t n)
{
    if (n <= o->cap)
        return 0;
    uint32_t cap = GR_MAX(n, GR_MIN(o->cap, UINT32_MAX / 2) * 2);
    uint32_t *p = gr_realloc(o->cell, cap, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    o->cell = p, o->cap = cap;
    return 0;
}

/* Works out the order of a sequence unless it is known. */
static int make_order(struct gr_kv *kv, int32_t seq)
{
    struct gr_kv_order *o = &kv->order[seq];
    uint32_t n = kv->seq[seq].n, k = 0;
    if (o->valid)
        return 0;
    struct key *key = gr_calloc(n ? n : 1, sizeof *key);
    int rc = key ? make_room(o, n) : GR_E_NOMEM_HOST;
    const uint32_t *row = gr_kv_row(kv, seq);
    for (uint32_t w = 0; !rc && w < gr_kv_words(kv); w++)
        for (uint32_t m = row[w]; m; m &= m - 1) {
            uint32_t c = w * 32 + (uint32_t)__builtin_ctz(m);
            key[k++] = (struct key){kv->pos[c], c, kv->age[c]};
        }
    if (!rc) {
        qsort(key, n, sizeof *key, compare);
        for (k = 0; k < n; k++)
            o->cell[k] = key[k].cell;
        o->n = n, o->valid = true;
    }
    gr_free(key);
    return rc;
}

void gr_kv_order_put(struct gr_kv *kv, uint32_t c, int32_t seq)
{
    struct gr_kv_order *o = &kv->order[seq];
    uint32_t last = o->n ? o->cell[o->n - 1] : 0;
    bool behind = !o->n || kv->pos[last] < kv->pos[c] ||
                  (kv->pos[last] == kv->pos[c] && kv->age[last] < kv->age[c]);
    if (!o->valid)
        return;
    o->valid = behind && make_room(o, o->n + 1) == 0;
    if (o->valid)
        o->cell[o->n++] = c;
}

/* ---- lists ---- */

static int32_t first_seq(const struct gr_ubatch *ub, int32_t i)
{
    const struct gr_full_batch *b = ub->batch;
    return b->seq[b->seq_at[ub->first + i]];
}

int gr_kv_list(struct gr_kv *kv, const struct gr_ubatch *ub, int64_t *n_list)
{
    bool seen[GR_SEQ_MAX] = {false};
    *n_list = 0;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t s = first_seq(ub, i);
        int rc = seen[s] ? 0 : make_order(kv, s);
        if (rc)
            return rc;
        *n_list += seen[s] ? 0 : kv->order[s].n;
        seen[s] = true;
    }
    return 0;
}

int64_t gr_kv_list_round(int64_t n_list)
{
    int64_t step = 256;
    while (step * 16 < n_list)
        step *= 2;
    return GR_MAX(step, GR_PAD(n_list, step));
}

/* The number of items of an order whose position is below pos. */
static uint32_t below(const struct gr_kv *kv, const struct gr_kv_order *o, int64_t pos)
{
    uint32_t lo = 0, hi = o->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (kv->pos[o->cell[mid]] < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void append(const struct gr_kv *kv, const struct gr_kv_order *o, int32_t *list,
                   int32_t *key_pos)
{
    for (uint32_t k = 0; k < o->n; k++)
        list[k] = (int32_t)o->cell[k];
    for (uint32_t k = 0; key_pos && k < o->n; k++)
        key_pos[k] = kv->pos[o->cell[k]];
}

void gr_kv_fill(const struct gr_kv *kv, const struct gr_ubatch *ub, bool causal, int32_t window,
                int32_t *list, int32_t *span, int32_t *key_pos)
{
    int32_t at[GR_SEQ_MAX], n = 0; /* where each sequence's items begin, -1 = not yet there */
    memset(at, 0xff, sizeof at);
    for (int32_t i = 0; i < ub->n_tok; i++, span += 3) {
        int32_t s = first_seq(ub, i), pos = ub->batch->pos[ub->first + i];
        const struct gr_kv_order *o = &kv->order[s];
        if (at[s] < 0) {
            at[s] = n;
            append(kv, o, list + n, key_pos ? key_pos + n : NULL);
            n += (int32_t)o->n;
        }
        uint32_t hi = causal ? below(kv, o, (int64_t)pos + 1) : o->n;
        uint32_t lo = window > 0 ? below(kv, o, (int64_t)pos - window + 1) : 0;
        span[0] = span[1] = at[s] + (int32_t)GR_MIN(lo, hi);
        span[2] = at[s] + (int32_t)hi;
    }
}
