#include "kv/cells.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

/* The first cell at or after c that is free (or used); n_cell when there is none. */
static uint32_t find_cell(const struct gr_kv *kv, uint32_t c, bool used)
{
    uint32_t flip = used ? 0 : ~UINT32_C(0);
    for (uint32_t w = c / 32, skip = c % 32; w < kv->n_word; w++, skip = 0) {
        uint32_t m = (kv->used[w] ^ flip) >> skip << skip;
        if (m)
            return GR_MIN(w * 32 + (uint32_t)__builtin_ctz(m), kv->p.n_cell);
    }
    return kv->p.n_cell;
}

/* The first of n free neighbours, at or after the head or else from cell 0 on; n_cell when there
 * are none. A run does not go past the last cell. */
static uint32_t find_run(const struct gr_kv *kv, uint32_t head, uint32_t n)
{
    for (uint32_t c = head, again = 0;;) {
        c = find_cell(kv, c, false);
        uint32_t stop = c < kv->p.n_cell ? find_cell(kv, c, true) : c;
        if (stop - c >= n)
            return c;
        c = stop;
        if (c == kv->p.n_cell && again++)
            return c;
        if (c == kv->p.n_cell)
            c = 0;
    }
}

static void take(struct gr_kv *kv, uint32_t c, const struct gr_full_batch *b, int32_t tok)
{
    gr_kv_cell_use(kv, c, b->pos[tok]);
    for (int32_t i = 0; i < b->n_seq[tok]; i++)
        gr_kv_cell_put(kv, c, b->seq[b->seq_at[tok] + i]);
    kv->reserved[kv->n_reserved++] = c;
}

static uint32_t wrap(const struct gr_kv *kv, uint32_t c)
{
    return c < kv->p.n_cell ? c : 0;
}

/* Places one micro-batch and moves reserved_head behind it; false when there is no room. There is
 * always room without `contiguous`, because gr_kv_reserve has counted the free cells. */
static bool place(struct gr_kv *kv, const struct gr_ubatch *ub)
{
    uint32_t n = (uint32_t)ub->n_tok, c = kv->reserved_head;
    if (c > (uint64_t)kv->n_used + 2 * (uint64_t)n)
        c = 0;
    if (kv->p.contiguous)
        c = find_run(kv, c, n);
    if (c == kv->p.n_cell)
        return false;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        c = find_cell(kv, c, false);
        if (c == kv->p.n_cell)
            c = find_cell(kv, 0, false);
        take(kv, c, ub->batch, ub->first + i);
    }
    kv->reserved_head = wrap(kv, c + 1);
    return true;
}

static int no_room(const struct gr_kv *kv, uint64_t wanted, const char *which)
{
    return gr_fail(GR_E_KV_FULL,
                   "the KV cache is full: %llu tokens wanted, %u of %u cells %s; remove sequences "
                   "or use a larger context",
                   (unsigned long long)wanted, kv->p.n_cell - kv->n_used, kv->p.n_cell, which);
}

/* Room for the numbers of n reserved cells. */
static int make_room(struct gr_kv *kv, uint32_t n)
{
    if (n <= kv->cap_reserved)
        return 0;
    uint32_t *p = gr_realloc(kv->reserved, n, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    kv->reserved = p, kv->cap_reserved = n;
    return 0;
}

int gr_kv_reserve(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_ub, int32_t *cells)
{
    uint64_t total = 0;
    for (int32_t u = 0; u < n_ub; u++)
        total += (uint64_t)ub[u].n_tok;
    if (kv->n_reserved)
        return gr_fail(GR_E_INTERNAL, "KV cache: a batch of %u tokens is under way already",
                       kv->n_reserved);
    if (total > kv->p.n_cell - kv->n_used)
        return no_room(kv, total, "free");
    int rc = make_room(kv, (uint32_t)total);
    if (rc || !total)
        return rc;
    kv->reserved_head = kv->head, kv->reserved_first = ub[0].first;
    for (int32_t u = 0; u < n_ub; u++)
        if (!place(kv, &ub[u])) {
            gr_kv_abort(kv);
            return no_room(kv, total, "free, but not enough of them neighbours");
        }
    for (uint32_t i = 0; i < kv->n_reserved; i++)
        cells[i] = (int32_t)kv->reserved[i];
    assert(gr_kv_check(kv) == 0);
    return 0;
}

void gr_kv_commit(struct gr_kv *kv)
{
    if (kv->n_reserved)
        kv->head = kv->reserved_head;
    kv->n_reserved = 0;
    assert(gr_kv_check(kv) == 0);
}

void gr_kv_abort(struct gr_kv *kv)
{
    for (uint32_t i = 0; i < kv->n_reserved; i++)
        gr_kv_cell_empty(kv, kv->reserved[i]);
    kv->n_reserved = 0;
    gr_kv_refresh(kv, -1);
    assert(gr_kv_check(kv) == 0);
}
