#include "help.h"

#include <criterion/criterion.h>

#include "gr/status.h"

struct gr_kv_moves moves;

struct gr_kv *cache_of(struct gr_kv_params p)
{
    struct gr_kv *kv;
    cr_assert_eq(gr_kv_new(&kv, &p), 0, "%s", gr_error());
    return kv;
}

struct gr_kv *cache(uint32_t n_cell, uint32_t n_seq, uint32_t n_pad, bool contiguous)
{
    return cache_of((struct gr_kv_params){.n_cell = n_cell,
                                          .n_kv_pool = 1,
                                          .n_seq_max = n_seq,
                                          .n_pad = n_pad,
                                          .contiguous = contiguous});
}

struct gr_ubatch tokens(int32_t seq, int32_t pos, int32_t n)
{
    static int32_t p[MOST], row[MOST], col[MOST], one[MOST], s[MOST], at[MOST];
    static int8_t logits[MOST];
    static struct gr_full_batch b;
    cr_assert_leq(n, MOST);
    for (int32_t i = 0; i < n; i++)
        p[i] = row[i] = col[i] = pos + i, one[i] = 1, s[i] = seq, at[i] = i;
    b = (struct gr_full_batch){.n_tok = n,
                               .pos = p,
                               .row = row,
                               .col = col,
                               .n_seq = one,
                               .seq = s,
                               .seq_at = at,
                               .logits = logits};
    return (struct gr_ubatch){&b, at, n, 0, 0};
}

int32_t cut(const struct gr_ubatch *all, int32_t n_ubatch, struct gr_ubatch *ub)
{
    int32_t n = 0;
    for (int32_t first = 0; first < all->n_tok; first += n_ubatch) {
        ub[n] = *all;
        ub[n].tok = all->tok + first;
        ub[n++].n_tok = GR_MIN(n_ubatch, all->n_tok - first);
    }
    return n;
}

int store(struct gr_kv *kv, int32_t seq, int32_t pos, int32_t n, int32_t *cells)
{
    static int32_t own[MOST];
    struct gr_ubatch ub = tokens(seq, pos, n);
    int rc = gr_kv_reserve(kv, &ub, 1);
    if (rc)
        return rc;
    gr_kv_place(kv, &ub, cells ? cells : own);
    gr_kv_commit(kv);
    cr_assert_eq(gr_kv_check(kv), 0, "%s", gr_error());
    return 0;
}

int op(struct gr_kv *kv, enum gr_kv_op_kind kind, int32_t seq, int32_t dst, int32_t p0, int32_t p1,
       int32_t by)
{
    struct gr_kv_op o = {kind, seq, dst, p0, p1, by};
    int rc = gr_kv_can(kv, &o);
    moves.n = 0;
    if (!rc)
        gr_kv_do(kv, &o, &moves);
    cr_assert_eq(gr_kv_check(kv), 0, "%s", gr_error());
    return rc;
}

void expect_pos(const struct gr_kv *kv, size_t n, const int32_t *want)
{
    for (uint32_t i = 0; i < n; i++)
        cr_assert_eq(gr_kv_cell(kv, i).pos, want[i], "cell %u: %d expected, %d found", i, want[i],
                     gr_kv_cell(kv, i).pos);
}

char *state(struct gr_kv *kv)
{
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    fprintf(f, "%u %d %d\n", gr_kv_n_used(kv), gr_kv_n_kv(kv), gr_kv_has_shift(kv));
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        fprintf(f, "head %u\n", gr_kv_head(kv, s));
    for (uint32_t i = 0; i < gr_kv_n_cell(kv); i++) {
        struct gr_cell c = gr_kv_cell(kv, i);
        fprintf(f, "%d %d %d %d %d %d:", c.pos, c.delta, c.row, c.col, c.n_seq, c.seq);
        for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++)
            if (gr_kv_cell_has(kv, i, s))
                fprintf(f, " %d", s);
        fputc('\n', f);
    }
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++) {
        fprintf(f, "%d %d %d:", gr_kv_cells_pos_min(kv, s), gr_kv_cells_pos_max(kv, s),
                gr_kv_incomplete(kv, s));
        for (uint32_t i = 0; i < kv->seq[s].n; i++)
            fprintf(f, " %u", gr_kv_items(&kv->seq[s])[i]);
        fputc('\n', f);
    }
    fclose(f);
    return text;
}

void expect_state(struct gr_kv *kv, const char *want)
{
    char *got = state(kv);
    cr_assert_str_eq(got, want);
    free(got);
}
