/* Which cells the tokens of a micro-batch see, as ranges of lists. */
#include <string.h>

#include "kv/cells.h"

int gr_kv_list(struct gr_kv *kv, const struct gr_ubatch *ub, int64_t *n_list)
{
    bool seen[GR_SEQ_MAX] = {false};
    *n_list = 0;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t s = gr_kv_tok_seq(ub, i);
        *n_list += seen[s] ? 0 : kv->seq[s].n;
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

static void append(const struct gr_kv *kv, const struct gr_kv_seq *q, int32_t *list,
                   int32_t *key_pos)
{
    const uint32_t *item = gr_kv_items(q);
    if (q->n)
        memcpy(list, item, q->n * sizeof *list); /* cells are below 2^31 */
    for (uint32_t k = 0; key_pos && k < q->n; k++)
        key_pos[k] = kv->pos[item[k]];
}

/* lo, near and hi of a token in its sequence's items. */
static void find_span(const struct gr_kv *kv, const struct gr_kv_seq *q, const struct gr_kv_mark *m,
                      bool causal, int32_t neighbours, int32_t span[3])
{
    uint32_t hi = causal ? gr_kv_order_until(kv, q, m) : q->n, lo = 0, near;
    if (kv->p.window > 0)
        lo = GR_MIN(gr_kv_order_below(kv, q, gr_kv_first_seen(kv, m->pos)), hi);
    near = lo;
    if (neighbours > 0)
        near = GR_MIN(GR_MAX(gr_kv_order_below(kv, q, (int64_t)m->pos + 1 - neighbours), lo), hi);
    span[0] = (int32_t)lo, span[1] = (int32_t)near, span[2] = (int32_t)hi;
}

void gr_kv_fill(const struct gr_kv *kv, const struct gr_ubatch *ub, bool causal, int32_t neighbours,
                int32_t *list, int32_t *span, int32_t *key_pos)
{
    int32_t at[GR_SEQ_MAX], n = 0; /* where each sequence's items begin, -1 = not yet there */
    memset(at, 0xff, sizeof at);
    for (int32_t i = 0; i < ub->n_tok; i++, span += 3) {
        int32_t s = gr_kv_tok_seq(ub, i);
        const struct gr_kv_seq *q = &kv->seq[s];
        struct gr_kv_mark m = gr_kv_tok_mark(kv, ub, i);
        if (at[s] < 0) {
            at[s] = n;
            append(kv, q, list + n, key_pos ? key_pos + n : NULL);
            n += (int32_t)q->n;
        }
        find_span(kv, q, &m, causal, neighbours, span);
        for (int j = 0; j < 3; j++)
            span[j] += at[s];
    }
}
