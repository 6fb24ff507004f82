#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "kv/cells.h"

/* Tokens [first, first + n) of a batch with one first sequence and positions p0, p0 + 1, ...: their
 * rows differ in few cells. The rule of the mask, as an interval of positions: token p sees (p -
 * window, p]. */
struct run {
    int32_t seq, p0, n;
    bool causal;
    int32_t window;
};

static int32_t lowest(const struct run *r, int32_t p)
{
    return r->window > 0 ? GR_MAX(p - r->window + 1, 0) : 0;
}

static int32_t highest(const struct run *r, int32_t p)
{
    return r->causal ? p : INT32_MAX;
}

/* Bit j is set when lo <= pos[j] <= hi. */
static uint32_t between(const int32_t pos[32], int32_t lo, int32_t hi)
{
    uint32_t m = 0, span = (uint32_t)hi - (uint32_t)lo;
    for (int j = 0; j < 32; j++)
        m |= (uint32_t)((uint32_t)pos[j] - (uint32_t)lo <= span) << j;
    return m;
}

/* The cells that every token of the run sees: most of them, found once a run. */
static void fill_common(const struct gr_kv *kv, const struct run *r, uint32_t n_word, uint32_t *row)
{
    const uint32_t *member = gr_kv_row(kv, r->seq);
    const struct gr_kv_seq *s = &kv->seq[r->seq];
    int32_t lo = lowest(r, r->p0 + r->n - 1), hi = highest(r, r->p0);
    if (s->min >= lo && s->max <= hi) {
        memcpy(row, member, n_word * sizeof *row);
        return;
    }
    for (uint32_t w = 0; w < n_word; w++)
        row[w] = member[w] && lo <= hi ? member[w] & between(kv->pos + w * 32, lo, hi) : 0;
}

/* Cell c, which not every token of the run sees, in the rows of those that do. */
static void fill_cell(const struct gr_kv *kv, const struct run *r, uint32_t c, uint32_t n_word,
                      uint32_t *rows)
{
    int32_t pos = kv->pos[c];
    if (pos < lowest(r, r->p0) || pos > highest(r, r->p0 + r->n - 1))
        return;
    for (int32_t i = 0; i < r->n; i++)
        if (pos >= lowest(r, r->p0 + i) && pos <= highest(r, r->p0 + i))
            rows[(size_t)i * n_word + c / 32] |= UINT32_C(1) << c % 32;
}

static void fill_run(const struct gr_kv *kv, const struct run *r, uint32_t n_word, uint32_t *rows)
{
    const uint32_t *member = gr_kv_row(kv, r->seq);
    fill_common(kv, r, n_word, rows);
    if (r->n == 1)
        return;
    for (int32_t i = 1; i < r->n; i++)
        memcpy(rows + (size_t)i * n_word, rows, n_word * sizeof *rows);
    for (uint32_t w = 0; w < n_word; w++)
        for (uint32_t m = member[w] & ~rows[w]; m; m &= m - 1)
            fill_cell(kv, r, w * 32 + (uint32_t)__builtin_ctz(m), n_word, rows);
}

/* Index in kv->reserved of the first cell whose K and V are computed after those of the
 * micro-batch. */
static uint32_t first_later(const struct gr_kv *kv, const struct gr_ubatch *ub)
{
    int64_t k = (int64_t)ub->first + ub->n_tok - kv->reserved_first;
    return (uint32_t)GR_MAX(0, GR_MIN(k, (int64_t)kv->n_reserved));
}

static void hide_later(const struct gr_kv *kv, const struct gr_ubatch *ub, uint32_t n_word,
                       uint32_t *bits)
{
    for (uint32_t k = first_later(kv, ub); k < kv->n_reserved; k++) {
        uint32_t c = kv->reserved[k];
        for (int32_t i = 0; i < ub->n_tok && c / 32 < n_word; i++)
            bits[(size_t)i * n_word + c / 32] &= ~(UINT32_C(1) << c % 32);
    }
}

static int32_t first_seq(const struct gr_full_batch *b, int32_t tok)
{
    return b->seq[b->seq_at[tok]];
}

void gr_kv_mask(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_kv, bool causal,
                int32_t window, uint32_t *bits)
{
    const struct gr_full_batch *b = ub->batch;
    uint32_t n_word = ((uint32_t)n_kv + 31) / 32;
    for (int32_t i = 0, n; i < ub->n_tok; i += n) {
        int32_t tok = ub->first + i;
        struct run r = {first_seq(b, tok), b->pos[tok], 1, causal, window};
        while (i + r.n < ub->n_tok && first_seq(b, tok + r.n) == r.seq &&
               b->pos[tok + r.n] == r.p0 + r.n)
            r.n++;
        n = r.n;
        fill_run(kv, &r, n_word, bits + (size_t)i * n_word);
    }
    if (!causal)
        hide_later(kv, ub, n_word, bits);
    for (int32_t i = 0; i < ub->n_tok && n_kv % 32; i++)
        bits[(size_t)(i + 1) * n_word - 1] &= (UINT32_C(1) << n_kv % 32) - 1;
}

/* ---- the same by the definition, cell by cell ---- */

static bool visible(const struct gr_kv *kv, int32_t seq, int32_t pos, uint32_t c, bool causal,
                    int32_t window)
{
    if (!gr_kv_has(kv, c, seq) || (causal && kv->pos[c] > pos))
        return false;
    return window <= 0 || pos - kv->pos[c] < window;
}

void gr_kv_mask_dense(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t n_kv, bool causal,
                      int32_t window, bool alibi, int32_t n_pad_row, float *mask)
{
    const struct gr_full_batch *b = ub->batch;
    size_t n_row = GR_PAD((size_t)ub->n_tok, (size_t)n_pad_row);
    for (size_t i = 0; i < n_row * (size_t)n_kv; i++)
        mask[i] = -INFINITY;
    for (int32_t i = 0; i < ub->n_tok; i++) {
        float *row = mask + (size_t)i * (size_t)n_kv;
        int32_t pos = b->pos[ub->first + i], seq = first_seq(b, ub->first + i);
        for (int32_t c = 0; c < n_kv; c++)
            if (visible(kv, seq, pos, (uint32_t)c, causal, window))
                row[c] = alibi ? -fabsf((float)(kv->pos[c] - pos)) : 0.0f;
        for (uint32_t k = causal ? kv->n_reserved : first_later(kv, ub); k < kv->n_reserved; k++)
            if (kv->reserved[k] < (uint32_t)n_kv)
                row[kv->reserved[k]] = -INFINITY;
    }
}
