/* gr_kv_check: recomputes what the cells keep in several forms, and compares. */
#include <string.h>

#include "gr/status.h"
#include "kv/cells.h"

/* Counts that gr_kv_check recomputes and compares with those the cache keeps. */
struct census {
    uint32_t n_shift;
    uint32_t n_used[GR_SEQ_MAX], end[GR_SEQ_MAX]; /* of the pools */
    uint32_t n[GR_SEQ_MAX];                       /* cells of the sequences */
};

static int broken(uint32_t c, const char *what, int64_t expected, int64_t found)
{
    return gr_fail(GR_E_INTERNAL, "KV cache: cell %u: %s: %lld expected, %lld found", c, what,
                   (long long)expected, (long long)found);
}

/* Counts the sequences of a cell, and the cell in each of them; -1: one of them cannot have it. */
static int32_t count_seqs(const struct gr_kv *kv, uint32_t c, struct census *k)
{
    int32_t n = 0;
    for (uint32_t w = 0; w < kv->n_set; w++)
        for (uint64_t m = kv->set[(size_t)c * kv->n_set + w]; m; m &= m - 1, n++) {
            int32_t s = (int32_t)w * 64 + __builtin_ctzll(m);
            if (s >= (int32_t)kv->p.n_seq_max || gr_kv_pool(kv, s) != &kv->pool[c / kv->p.n_cell])
                return -1;
            k->n[s]++;
        }
    return n;
}

static int check_cell(const struct gr_kv *kv, uint32_t c, struct census *k)
{
    uint32_t s = c / kv->p.n_cell;
    int32_t n_seq = count_seqs(kv, c, k);
    if (kv->n_seq[c] != n_seq)
        return broken(c, "sequences", n_seq, kv->n_seq[c]);
    if ((kv->used[c / 32] >> c % 32 & 1) != (n_seq > 0))
        return broken(c, "used", n_seq > 0, kv->used[c / 32] >> c % 32 & 1);
    if (!n_seq && (kv->pos[c] != -1 || kv->delta[c] != 0))
        return broken(c, "position of a free cell", -1, kv->pos[c]);
    if (!n_seq)
        return 0;
    if (kv->pos[c] < 0 || kv->pos[c] > GR_POS_MAX)
        return broken(c, "position in range", 0, kv->pos[c]);
    if (kv->pos[c] - (int64_t)kv->delta[c] < 0 || kv->pos[c] - (int64_t)kv->delta[c] > GR_POS_MAX)
        return broken(c, "position - delta in range", 0, kv->pos[c] - (int64_t)kv->delta[c]);
    if (kv->age[c] >= kv->clock)
        return broken(c, "age below", (int64_t)kv->clock, (int64_t)kv->age[c]);
    k->n_used[s]++, k->end[s] = c - kv->pool[s].base + 1;
    k->n_shift += kv->delta[c] != 0;
    return 0;
}

static int check_seq(const struct gr_kv *kv, int32_t s, const struct census *k)
{
    const struct gr_kv_seq *q = &kv->seq[s];
    const uint32_t *item = gr_kv_items(q);
    if (q->n != k->n[s] || q->first > q->cap || q->n > q->cap - q->first)
        return gr_fail(GR_E_INTERNAL, "KV cache: sequence %d: %u cells expected, %u found", s,
                       k->n[s], q->n);
    for (uint32_t i = 0; i < q->n; i++) {
        if (item[i] >= kv->n_all || !gr_kv_has(kv, item[i], s))
            return broken(item[i], "listed, in the sequence", 1, 0);
        if (i && !gr_kv_index_less(kv, item[i - 1], item[i]))
            return broken(item[i], "listed behind position", kv->pos[item[i - 1]],
                          kv->pos[item[i]]);
    }
    if (q->evicted.n > (kv->p.window > 0 ? GR_KV_N_EVICTED : 0))
        return gr_fail(GR_E_INTERNAL, "KV cache: sequence %d: %u ranges are evicted", s,
                       q->evicted.n);
    for (uint32_t i = 0; i < q->evicted.n; i++)
        if (q->evicted.r[i].lo < (i ? q->evicted.r[i - 1].hi + 1 : 0) ||
            q->evicted.r[i].lo >= q->evicted.r[i].hi)
            return gr_fail(GR_E_INTERNAL, "KV cache: sequence %d: positions %d to %d are evicted",
                           s, q->evicted.r[i].lo, q->evicted.r[i].hi);
    return 0;
}

static int check_totals(const struct gr_kv *kv, const struct census *k)
{
    uint32_t n_used = 0;
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++) {
        const struct gr_kv_pool *pool = &kv->pool[s];
        n_used += k->n_used[s];
        if (pool->n_used != k->n_used[s] || pool->end != k->end[s] || pool->head >= kv->p.n_cell)
            return gr_fail(GR_E_INTERNAL,
                           "KV cache: pool %u: %u used, end %u, head below %u expected, %u, %u, "
                           "%u found",
                           s, k->n_used[s], k->end[s], kv->p.n_cell, pool->n_used, pool->end,
                           pool->head);
    }
    if (kv->n_used != n_used || kv->n_shift != k->n_shift)
        return gr_fail(GR_E_INTERNAL, "KV cache: %u used and %u shifted expected, %u and %u found",
                       n_used, k->n_shift, kv->n_used, kv->n_shift);
    if (kv->n_placed > (kv->busy ? kv->cap_placed : 0))
        return gr_fail(GR_E_INTERNAL, "KV cache: %u cells placed, room for %u", kv->n_placed,
                       kv->cap_placed);
    return 0;
}

int gr_kv_check(const struct gr_kv *kv)
{
    struct census k = {0};
    int rc = 0;
    for (uint32_t c = 0; !rc && c < kv->n_all; c++)
        rc = check_cell(kv, c, &k);
    for (uint32_t c = kv->n_all; !rc && c % 32; c++)
        if (kv->used[c / 32] >> c % 32 & 1)
            rc = broken(c, "past the end, used", 0, 1);
    for (int32_t s = 0; !rc && s < (int32_t)kv->p.n_seq_max; s++)
        rc = check_seq(kv, s, &k);
    return rc ? rc : check_totals(kv, &k);
}
