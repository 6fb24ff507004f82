/* The cells that the tokens of a micro-batch see, as ranges of a list.
 *
 * The list is kept from step to step. The capacity of each sequence in it is a multiple of a step
 * that grows with the sequence's length, so one more cell seldom moves the sequences behind it, and
 * unchanged items are not written again. */
#include <string.h>

#include "kv/cells.h"

/* Items of the list that a sequence of n cells gets: n rounded up by at most 256 or, when that is
 * more, n / 8. */
static int64_t capacity_of(int64_t n)
{
    int64_t step = 256;
    while (step * 16 < n)
        step *= 2;
    return GR_MAX(step, GR_PAD(n, step));
}

int64_t gr_kv_list_capacity(const struct gr_kv_params *p)
{
    int64_t n = p->n_cell, n_seq = p->n_seq_max;
    if (p->n_kv_pool > 1 || n_seq == 1)
        return capacity_of(n) * n_seq;
    return n + n / 8 + 256 * n_seq;
}

int64_t gr_kv_list(const struct gr_kv *kv, const struct gr_ubatch *ub)
{
    bool seen[GR_SEQ_MAX] = {false};
    int64_t n = 0;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t s = gr_kv_tok_seq(ub, i);
        n += seen[s] ? 0 : capacity_of(kv->seq[s].n);
        seen[s] = true;
    }
    return n;
}

/* Gives the sequences of a micro-batch their places in the list; other sequences lose theirs. */
static void take_places(struct gr_kv *kv, const struct gr_ubatch *ub, bool kept)
{
    bool seen[GR_SEQ_MAX] = {false};
    int32_t n = 0;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t s = gr_kv_tok_seq(ub, i);
        struct gr_kv_seq *q = &kv->seq[s];
        if (seen[s])
            continue;
        if (!kept || !q->listed || q->at != n)
            q->same = 0;
        q->at = n;
        n += (int32_t)capacity_of(q->n);
        seen[s] = true;
    }
    for (uint32_t s = 0; s < kv->p.n_seq_max; s++)
        kv->seq[s].listed = seen[s];
}

/* Writes the items of a sequence that its place in the list does not have yet. */
static void write_items(const struct gr_kv *kv, struct gr_kv_seq *q, int32_t *list,
                        int32_t *key_pos, struct gr_kv_range *changed)
{
    const uint32_t *item = gr_kv_items(q);
    int32_t lo = (int32_t)q->same, n = (int32_t)q->n;
    if (lo == n)
        return;
    memcpy(list + q->at + lo, item + lo, (size_t)(n - lo) * sizeof *list); /* cells are < 2^31 */
    for (int32_t k = lo; key_pos && k < n; k++)
        key_pos[q->at + k] = kv->pos[item[k]];
    changed->lo = GR_MIN(changed->lo, q->at + lo);
    changed->hi = GR_MAX(changed->hi, q->at + n);
    q->same = q->n;
}

/* lo, near and hi of a token in its sequence's items. */
static void find_span(const struct gr_kv *kv, const struct gr_kv_seq *q,
                      const struct gr_kv_cell_meta *m, bool causal, int32_t neighbours,
                      int32_t span[3])
{
    uint32_t hi = causal ? gr_kv_index_until(kv, q, m) : q->n, lo = 0, near;
    if (kv->p.window > 0)
        lo = GR_MIN(gr_kv_index_below(kv, q, gr_kv_first_seen(kv, m->pos)), hi);
    near = lo;
    if (neighbours > 0)
        near = GR_MIN(GR_MAX(gr_kv_index_below(kv, q, (int64_t)m->pos + 1 - neighbours), lo), hi);
    span[0] = (int32_t)lo, span[1] = (int32_t)near, span[2] = (int32_t)hi;
}

struct gr_kv_range gr_kv_fill(struct gr_kv *kv, const struct gr_ubatch *ub, bool causal,
                              int32_t neighbours, bool kept, int32_t *list, int32_t *span,
                              int32_t *key_pos)
{
    struct gr_kv_range changed = {INT32_MAX, 0};
    take_places(kv, ub, kept);
    for (int32_t i = 0; i < ub->n_tok; i++, span += 3) {
        struct gr_kv_seq *q = &kv->seq[gr_kv_tok_seq(ub, i)];
        struct gr_kv_cell_meta m = gr_kv_tok_meta(kv, ub, i);
        write_items(kv, q, list, key_pos, &changed);
        find_span(kv, q, &m, causal, neighbours, span);
        for (int j = 0; j < 3; j++)
            span[j] += q->at;
    }
    return changed.lo < changed.hi ? changed : (struct gr_kv_range){0, 0};
}
