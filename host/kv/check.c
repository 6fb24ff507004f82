#include <string.h>

#include "gr/status.h"
#include "kv/cells.h"

/* What gr_kv_check counts anew and compares with what the cache keeps. */
struct census {
    uint32_t n_used, n_shift, end;
    struct gr_kv_seq seq[GR_SEQ_MAX];
};

static int broken(uint32_t c, const char *what, int64_t expected, int64_t found)
{
    return gr_fail(GR_E_INTERNAL, "KV cache: cell %u: %s: %lld expected, %lld found", c, what,
                   (long long)expected, (long long)found);
}

static int check_cell(const struct gr_kv *kv, uint32_t c, uint32_t n_seq, struct census *k)
{
    bool real = c < kv->p.n_cell;
    if (real && kv->n_seq[c] != n_seq)
        return broken(c, "sequences", n_seq, kv->n_seq[c]);
    if ((kv->used[c / 32] >> c % 32 & 1) != (n_seq > 0))
        return broken(c, "used", n_seq > 0, kv->used[c / 32] >> c % 32 & 1);
    if (!n_seq && (kv->pos[c] != -1 || kv->delta[c] != 0))
        return broken(c, "position of a free cell", -1, kv->pos[c]);
    if (!n_seq)
        return 0;
    if (!real)
        return broken(c, "past the end, used", 0, 1);
    if (kv->pos[c] < 0 || kv->pos[c] > GR_POS_MAX)
        return broken(c, "position in range", 0, kv->pos[c]);
    if (kv->pos[c] - (int64_t)kv->delta[c] < 0 || kv->pos[c] - (int64_t)kv->delta[c] > GR_POS_MAX)
        return broken(c, "position - delta in range", 0, kv->pos[c] - (int64_t)kv->delta[c]);
    k->n_used++, k->end = c + 1;
    k->n_shift += kv->delta[c] != 0;
    return 0;
}

/* Counts the sequences of the 32 cells of word w, and the cells of each sequence. */
static void count_word(const struct gr_kv *kv, uint32_t w, struct census *k, uint32_t n_seq[32])
{
    memset(n_seq, 0, 32 * sizeof *n_seq);
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++)
        for (uint32_t m = gr_kv_row(kv, s)[w]; m; m &= m - 1) {
            int j = __builtin_ctz(m);
            int32_t pos = kv->pos[w * 32 + (uint32_t)j];
            struct gr_kv_seq *q = &k->seq[s];
            q->min = q->n && q->min < pos ? q->min : pos;
            q->max = q->n && q->max > pos ? q->max : pos;
            q->n++, n_seq[j]++;
        }
}

static int check_seqs(const struct gr_kv *kv, const struct census *k)
{
    for (uint32_t s = 0; s < kv->p.n_seq_max; s++) {
        struct gr_kv_seq want = k->seq[s].n ? k->seq[s] : (struct gr_kv_seq){0, -1, -1},
                         got = kv->seq[s];
        if (want.n != got.n || want.min != got.min || want.max != got.max)
            return gr_fail(
                GR_E_INTERNAL,
                "KV cache: sequence %u: %u cells at %d to %d expected, %u at %d to %d found", s,
                want.n, want.min, want.max, got.n, got.min, got.max);
    }
    return 0;
}

static int check_totals(const struct gr_kv *kv, const struct census *k)
{
    if (k->n_used != kv->n_used || k->n_shift != kv->n_shift || k->end != kv->end)
        return gr_fail(GR_E_INTERNAL,
                       "KV cache: %u used, %u shifted, end %u expected, %u, %u, %u found",
                       k->n_used, k->n_shift, k->end, kv->n_used, kv->n_shift, kv->end);
    if (kv->head >= kv->p.n_cell)
        return gr_fail(GR_E_INTERNAL, "KV cache: head below %u expected, %u found", kv->p.n_cell,
                       kv->head);
    for (uint32_t i = 0; i < kv->n_reserved; i++)
        if (kv->reserved[i] >= kv->p.n_cell || !kv->n_seq[kv->reserved[i]])
            return broken(kv->reserved[i], "reserved, sequences", 1, 0);
    return 0;
}

int gr_kv_check(const struct gr_kv *kv)
{
    struct census k = {0};
    for (uint32_t w = 0; w < kv->n_word; w++) {
        uint32_t n_seq[32];
        count_word(kv, w, &k, n_seq);
        for (uint32_t j = 0; j < 32; j++) {
            int rc = check_cell(kv, w * 32 + j, n_seq[j], &k);
            if (rc)
                return rc;
        }
    }
    int rc = check_seqs(kv, &k);
    return rc ? rc : check_totals(kv, &k);
}
