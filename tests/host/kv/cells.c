/* The cells by example: the published traces, ranges, errors, and what a failure must leave alone.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"
#include "help.h"

/* ---- placement ---- */

/* Cells 0..5 and 1020..1023 of 1024 are free and the head is at 1020. */
static struct gr_kv *nearly_full(bool contiguous)
{
    struct gr_kv *kv = cache(1024, 3, 32, contiguous);
    store(kv, 1, 0, 6, NULL);
    store(kv, 0, 0, 1010, NULL);
    store(kv, 2, 0, 4, NULL);
    rm(kv, 1, -1, -1);
    cr_assert_eq(gr_kv_head(kv, 0), 0, "removing moves the head down");
    add(kv, 2, -1, -1, -4);
    cr_assert_eq(gr_kv_head(kv, 0), 1016,
                 "a position that turns negative frees its cell and moves the head there");
    store(kv, 2, 0, 4, NULL);
    cr_assert(gr_kv_head(kv, 0) == 1020 && gr_kv_n_used(kv) == 1014);
    return kv;
}

Test(kv_place, wraps_at_the_end)
{
    int32_t cells[6];
    struct gr_kv *kv = nearly_full(false);
    cr_assert_eq(store(kv, 1, 0, 6, cells), 0);
    EXPECT_CELLS(cells, 1020, 1021, 1022, 1023, 0, 1);
    cr_assert_eq(gr_kv_head(kv, 0), 2);
    gr_kv_free(&kv);

    kv = nearly_full(true);
    cr_assert_eq(store(kv, 1, 0, 6, cells), 0);
    EXPECT_CELLS(cells, 0, 1, 2, 3, 4, 5);
    cr_assert_eq(store(kv, 1, 6, 4, cells), 0);
    EXPECT_CELLS(cells, 1020, 1021, 1022, 1023);
    cr_assert_eq(gr_kv_head(kv, 0), 0, "behind the last cell is the first one");
    gr_kv_free(&kv);
}

Test(kv_place, holes)
{
    for (int contiguous = 0; contiguous < 2; contiguous++) { /* 2, 3, 6, 7 of 8 are free */
        struct gr_kv *kv = cache(8, 2, 32, contiguous);
        int32_t cells[3];
        for (int i = 0; i < 4; i++)
            store(kv, i % 2, i / 2 * 2, 2, NULL);
        rm(kv, 1, -1, -1);
        char *before = state(kv);
        if (contiguous) {
            cr_assert_eq(store(kv, 1, 0, 3, cells), GR_E_KV_FULL);
            cr_assert_str_eq(
                gr_error(),
                "the KV cache is full: 3 tokens wanted, 4 of 8 cells free, but not enough of "
                "them neighbours; remove sequences or use a larger context");
            expect_state(kv, before);
        } else {
            cr_assert_eq(store(kv, 1, 0, 3, cells), 0);
            EXPECT_CELLS(cells, 2, 3, 6);
            cr_assert_eq(gr_kv_head(kv, 0), 7);
        }
        free(before);
        gr_kv_free(&kv);
    }
}

/* With cells 0 and 6.. free and the head at 6, a search for one token begins at 0 when 6 > used
 * + 2. */
Test(kv_place, head_heuristic)
{
    for (int32_t used = 3; used <= 4; used++) {
        struct gr_kv *kv = cache(64, 2, 32, false);
        int32_t cell;
        store(kv, 0, 0, 6, NULL);
        store(kv, 1, 0, 1, NULL);
        rm(kv, 0, 0, 1);
        rm(kv, 0, used + 1, -1);
        add(kv, 1, -1, -1, -1);
        cr_assert(gr_kv_head(kv, 0) == 6 && gr_kv_n_used(kv) == (uint32_t)used);
        store(kv, 1, 0, 1, &cell);
        cr_assert_eq(cell, used == 3 ? 0 : 6);
        gr_kv_free(&kv);
    }
}

Test(kv_place, micro_batches_see_each_other)
{
    struct gr_kv *kv = cache(16, 2, 32, false);
    int32_t cells[4];
    struct gr_ubatch ub[3];
    store(kv, 1, 0, 3, NULL);
    store(kv, 0, 0, 2, NULL);
    rm(kv, 1, 1, -1); /* 1 and 2 are free, the head is 1 */
    struct gr_ubatch all = tokens(0, 2, 10);
    cr_assert_eq(cut(&all, 4, ub), 3);
    cr_assert_eq(gr_kv_reserve(kv, ub, 3), 0);
    cr_assert(gr_kv_head(kv, 0) == 1 && gr_kv_n_used(kv) == 3, "nothing is placed yet");
    gr_kv_place(kv, &ub[0], cells);
    EXPECT_CELLS(cells, 1, 2, 5, 6);
    gr_kv_place(kv, &ub[1], cells);
    EXPECT_CELLS(cells, 7, 8, 9, 10);
    gr_kv_place(kv, &ub[2], cells);
    cr_assert(cells[0] == 11 && cells[1] == 12);
    cr_assert(gr_kv_head(kv, 0) == 13 && gr_kv_n_used(kv) == 13);
    cr_assert_eq(gr_kv_reserve(kv, ub, 3), GR_E_INTERNAL, "one batch at a time");
    cr_assert_eq(rm(kv, 0, 0, -1), GR_E_INTERNAL, "no operation meanwhile");
    cr_assert_eq(gr_kv_pack(kv, &moves), GR_E_INTERNAL);
    gr_kv_commit(kv);
    cr_assert(gr_kv_head(kv, 0) == 13 && gr_kv_cells_pos_max(kv, 0) == 11);
    cr_assert_eq(rm(kv, 0, 0, -1), 0);
    gr_kv_free(&kv);
}

/* Failure in the second micro-batch, and giving back a batch of several sequences: all as before.
 */
Test(kv_place, failure_and_abort_restore_everything)
{
    struct gr_kv *kv = cache(32, 4, 32, true);
    int32_t cells[32];
    struct gr_ubatch ub[8];
    store(kv, 0, 5, 9, NULL);
    store(kv, 1, 0, 9, NULL);
    cp(kv, 0, 2, 7, 9);
    add(kv, 0, 8, -1, 3);
    rm(kv, 1, 2, 7);
    char *before = state(kv);

    struct gr_ubatch all = tokens(3, 0, 15);
    for (uint64_t k = 1; k < 3; k++) {
        gr_alloc_fail_at(k, 0);
        cr_assert_eq(gr_kv_reserve(kv, &all, 1), GR_E_NOMEM_HOST);
        gr_alloc_fail_at(0, 0);
        expect_state(kv, before);
    }
    cr_assert_eq(cut(&all, 5, ub), 3);
    cr_assert_eq(gr_kv_reserve(kv, ub, 3), 0);
    gr_kv_place(kv, &ub[0], cells);
    gr_kv_place(kv, &ub[1], cells);
    gr_kv_abort(kv);
    expect_state(kv, before);
    gr_kv_abort(kv);
    gr_kv_commit(kv);
    expect_state(kv, before);

    all = tokens(3, 0, 18); /* 19 cells are free, but only 14 + 5 in one piece */
    cr_assert_eq(cut(&all, 6, ub), 3);
    cr_assert_eq(gr_kv_reserve(kv, ub, 3), GR_E_KV_FULL);
    expect_state(kv, before);
    all = tokens(3, 0, 20);
    cr_assert_eq(cut(&all, 6, ub), 4);
    cr_assert_eq(gr_kv_reserve(kv, ub, 4), GR_E_KV_FULL);
    cr_assert_str_eq(
        gr_error(),
        "the KV cache is full: 20 tokens wanted, 19 of 32 cells free; remove sequences or use a "
        "larger context");
    expect_state(kv, before);
    free(before);
    gr_kv_free(&kv);
}

Test(kv_place, every_allocation_of_new_may_fail)
{
    struct gr_kv_params p = {
        .n_cell = 64, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 32, .pos_2d = true};
    struct gr_kv *kv;
    int rc = GR_E_NOMEM_HOST;
    for (uint64_t k = 1; rc; k++) {
        gr_alloc_fail_at(k, 0);
        rc = gr_kv_new(&kv, &p);
        cr_assert(rc ? rc == GR_E_NOMEM_HOST && !kv && k < 20 : kv && k > 11);
    }
    gr_alloc_fail_at(0, 0);
    gr_kv_free(&kv);
    gr_kv_free(&kv);
}

/* ---- the used range ---- */

Test(kv_range, padding)
{
    static const uint32_t cases[][4] = {
        {8192, 2, 32, 32},      {8192, 2, 256, 256},     {8192, 36, 32, 64},
        {8192, 36, 256, 256},   {8192, 257, 32, 288},    {8192, 257, 256, 512},
        {1000, 1000, 32, 1000}, {1000, 1000, 256, 1000}, {8192, 0, 256, 256},
        {8192, 256, 256, 256},  {100, 3, 256, 100}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gr_kv *kv = cache(cases[i][0], 1, cases[i][2], false);
        if (cases[i][1])
            cr_assert_eq(store(kv, 0, 0, (int32_t)cases[i][1], NULL), 0);
        cr_assert_eq(gr_kv_n_kv(kv), (int32_t)cases[i][3], "case %zu: %d", i, gr_kv_n_kv(kv));
        gr_kv_free(&kv);
    }
}

/* ---- what tokens see ---- */

/* The cells that token i of a micro-batch sees, in order. */
static int32_t seen(struct gr_kv *kv, const struct gr_ubatch *ub, int32_t i, bool causal,
                    int32_t *cells)
{
    static int32_t list[MOST], span[MOST * 3];
    cr_assert_leq(gr_kv_list(kv, ub), MOST);
    gr_kv_fill(kv, ub, causal, 0, false, list, span, NULL);
    cr_assert_eq(span[i * 3], span[i * 3 + 1], "all are far");
    for (int32_t k = span[i * 3]; k < span[i * 3 + 2]; k++)
        *cells++ = list[k];
    return span[i * 3 + 2] - span[i * 3];
}

/* Row r of a prompt's mask has zeros in columns 0 .. r; the padding rows see nothing. */
Test(kv_mask, prompt)
{
    for (int32_t window = 0; window <= 2; window += 2)
        for (int32_t n = 2; n <= 6; n += 4) {
            struct gr_kv *kv = cache_of((struct gr_kv_params){
                .n_cell = 8192, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .window = window});
            int32_t cells[6];
            static float mask[32 * 32];
            struct gr_ubatch ub = tokens(0, 0, n);
            cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
            gr_kv_place(kv, &ub, cells);
            cr_assert_eq(gr_kv_n_kv(kv), 32);
            gr_kv_mask_dense(kv, &ub, 32, true, false, 32, mask);
            for (int32_t r = 0; r < 32; r++)
                for (int32_t c = 0; c < 32; c++) {
                    bool sees = r < n && c <= r && (!window || c > r - window);
                    cr_assert_eq(mask[r * 32 + c], sees ? 0 : -INFINITY);
                }
            gr_kv_mask_dense(kv, &ub, 32, true, true, 1, mask);
            for (int32_t c = n - 2; c < n; c++)
                cr_assert_eq(mask[(n - 1) * 32 + c], (float)(c - n + 1), "ALiBi");
            gr_kv_free(&kv);
        }
}

/* A cell of several sequences is seen by each; the first sequence of a token decides what it sees.
 */
Test(kv_mask, shared_cells)
{
    struct gr_kv *kv = cache(64, 3, 32, false);
    int32_t cell, got[32];
    store(kv, 0, 0, 4, NULL);
    cp(kv, 0, 1, -1, -1);
    store(kv, 0, 4, 1, NULL);
    store(kv, 1, 4, 2, NULL);
    cr_assert(gr_kv_seq_cells(kv, 0) == 5 && gr_kv_seq_shared(kv, 0) == 4);
    cr_assert(gr_kv_seq_cells(kv, 1) == 6 && gr_kv_seq_shared(kv, 1) == 4);
    struct gr_full_batch b = {.n_tok = 1, .pos = (int32_t[]){9}, .n_seq = (int32_t[]){2}};
    b.seq = (int32_t[]){1, 0}, b.seq_at = (int32_t[]){0};
    struct gr_ubatch ub = {&b, (int32_t[]){0}, 1, 0, 0};
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
    gr_kv_place(kv, &ub, &cell);
    cr_assert_eq(seen(kv, &ub, 0, true, got), 7);
    EXPECT_CELLS(got, 0, 1, 2, 3, 5, 6, 7);
    gr_kv_abort(kv);
    rm(kv, 0, 0, 2);
    cr_assert_eq(gr_kv_n_used(kv), 7, "still in sequence 1");
    gr_kv_free(&kv);
}

/* Without causality, the tokens of later micro-batches are not there until they are placed. */
Test(kv_mask, later_micro_batches)
{
    struct gr_kv *kv = cache(64, 1, 32, false);
    struct gr_ubatch ub[2];
    int32_t cells[6], got[6];
    struct gr_ubatch all = tokens(0, 0, 6);
    cr_assert_eq(cut(&all, 3, ub), 2);
    cr_assert_eq(gr_kv_reserve(kv, ub, 2), 0);
    for (int32_t u = 0; u < 2; u++) {
        gr_kv_place(kv, &ub[u], cells);
        for (int32_t i = 0; i < 3; i++) {
            cr_assert_eq(seen(kv, &ub[u], i, true, got), u * 3 + i + 1);
            cr_assert_eq(seen(kv, &ub[u], i, false, got), u * 3 + 3);
        }
    }
    gr_kv_commit(kv);
    gr_kv_free(&kv);
}

/* Near items are those less than so many positions behind the token. */
Test(kv_mask, neighbours)
{
    struct gr_kv *kv = cache(64, 1, 32, false);
    int32_t cells[10], list[10], span[30], key[10];
    struct gr_ubatch ub = tokens(0, 3, 10);
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
    gr_kv_place(kv, &ub, cells);
    cr_assert_eq(gr_kv_list(kv, &ub), 256);
    gr_kv_fill(kv, &ub, true, 4, false, list, span, key);
    for (int32_t i = 0; i < 10; i++) {
        cr_assert(list[i] == i && key[i] == i + 3);
        cr_assert(span[i * 3] == 0 && span[i * 3 + 1] == GR_MAX(0, i - 3) &&
                  span[i * 3 + 2] == i + 1);
    }
    gr_kv_free(&kv);
}

/* Room for all that sequences can hold between them, whatever they hold; the steps of a list grow
 * with it. */
Test(kv_mask, room)
{
    static const uint32_t n_cell[] = {256, 1024, 4096, 5120, 65536};
    static int32_t list[80 << 10];
    for (size_t i = 0; i < GR_COUNT(n_cell); i++)
        for (uint32_t n_seq = 1; n_seq <= 16; n_seq *= 4) {
            struct gr_kv *kv = cache(n_cell[i], n_seq, 256, false);
            int32_t each = (int32_t)(n_cell[i] / n_seq), span[16 * 3], end = 0;
            for (int32_t s = 0; s < (int32_t)n_seq; s++)
                for (int32_t p = 0, n; p < each; p += n) {
                    n = GR_MIN(MOST / 2, each - p);
                    cr_assert_eq(store(kv, s, p, n, NULL), 0);
                }
            struct gr_ubatch ub = tokens(0, each, (int32_t)n_seq);
            for (int32_t s = 0; s < (int32_t)n_seq; s++)
                ub.batch->seq[s] = s, ub.batch->pos[s] = each;
            int64_t n = gr_kv_list(kv, &ub), room = gr_kv_list_capacity(&kv->p);
            cr_assert(n <= room && n <= (int64_t)GR_COUNT(list));
            cr_assert_leq(room, n_cell[i] + GR_MAX(n_cell[i] / 8, 256) + 256 * n_seq);
            gr_kv_fill(kv, &ub, true, 0, false, list, span, NULL);
            for (uint32_t s = 0; s < n_seq; s++) {
                cr_assert(span[3 * s] % 256 == 0 && span[3 * s] >= end);
                end = span[3 * s + 2];
            }
            cr_assert_leq(end, n);
            gr_kv_free(&kv);
        }
}

/* A sequence that goes on has its new cell written; the others, and what is behind them, stay until
 * one of them needs more than its place. */
Test(kv_mask, lists_are_kept)
{
    struct gr_kv *kv = cache(2048, 3, 256, false);
    static int32_t list[2048 + 3 * 512];
    int32_t cells[3], span[9];
    struct gr_kv_range r;
    for (int32_t s = 0; s < 3; s++)
        cr_assert_eq(store(kv, s, 0, 200, NULL), 0);
    struct gr_ubatch ub = tokens(0, 0, 3);
    for (int32_t i = 0; i < 60; i++) {
        for (int32_t s = 0; s < 3; s++)
            ub.batch->seq[s] = s, ub.batch->pos[s] = 200 + i;
        cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
        gr_kv_place(kv, &ub, cells);
        r = gr_kv_fill(kv, &ub, true, 0, true, list, span, NULL);
        gr_kv_commit(kv);
        if (i == 0 || i == 56) /* 201 cells, 257 */
            cr_assert(r.lo == (i ? 256 : 0) && r.hi == (i ? 1024 + 257 : 512 + 201), "%d, %d", r.lo,
                      r.hi);
        else
            cr_assert(r.lo == 200 + i && r.hi == span[8], "step %d: %d to %d", i, r.lo, r.hi);
    }
    ub.batch->seq[0] = 1, ub.n_tok = 1; /* others take its place */
    r = gr_kv_fill(kv, &ub, true, 0, true, list, span, NULL);
    cr_assert(r.lo == 0 && r.hi == 260);
    r = gr_kv_fill(kv, &ub, true, 0, true, list, span, NULL);
    cr_assert(r.lo == r.hi);
    rm(kv, 1, 100, 101);
    r = gr_kv_fill(kv, &ub, true, 0, true, list, span, NULL);
    cr_assert(r.lo == 100 && r.hi == 259);
    add(kv, 1, 50, -1, 3);
    r = gr_kv_fill(kv, &ub, true, 0, true, list, span, NULL);
    cr_assert(r.lo == 0 && r.hi == 259, "positions are different: %d to %d", r.lo, r.hi);
    gr_kv_free(&kv);
}

/* ---- sequence operations ---- */

Test(kv_ops, ranges)
{
    struct gr_kv *kv = cache(64, 2, 32, false);
    store(kv, 0, 0, 10, NULL);
    char *before = state(kv);
    add(kv, 0, -1, -1, 0);
    add(kv, 0, 5, 5, 7);
    add(kv, 0, 5, 3, 7);
    divide(kv, 0, -1, -1, 1);
    divide(kv, 0, 5, 5, 3);
    rm(kv, 0, 10, -1);
    rm(kv, 0, 4, 4);
    rm(kv, 1, -1, -1);
    cp(kv, 0, 0, -1, -1);
    cp(kv, 1, 0, -1, -1);
    expect_state(kv, before);
    free(before);
    add(kv, 0, 8, -1, 100);
    add(kv, 0, -1, 2, -1);
    EXPECT_POS(kv, -1, 0, 2, 3, 4, 5, 6, 7, 108, 109, -1);
    cr_assert(gr_kv_head(kv, 0) == 0 && gr_kv_n_used(kv) == 9);
    cr_assert(gr_kv_cells_pos_min(kv, 0) == 0 && gr_kv_cells_pos_max(kv, 0) == 109);
    rm(kv, -1, 3, 109);
    EXPECT_POS(kv, -1, 0, 2, -1, -1, -1, -1, -1, -1, 109, -1);
    rm(kv, -1, -1, -1);
    cr_assert(gr_kv_n_used(kv) == 0 && gr_kv_cells_pos_max(kv, 0) == -1 &&
              gr_kv_cells_pos_min(kv, 0) == -1);
    gr_kv_free(&kv);
}

Test(kv_ops, shared_cells_move_for_both)
{
    struct gr_kv *kv = cache(64, 3, 32, false);
    store(kv, 0, 0, 6, NULL);
    cp(kv, 0, 2, 3, -1);
    add(kv, 0, 4, -1, -4);
    cr_assert(gr_kv_cells_pos_min(kv, 2) == 0 && gr_kv_cells_pos_max(kv, 2) == 3);
    keep(kv, 2);
    EXPECT_POS(kv, -1, -1, -1, 3, 0, 1, -1);
    cr_assert(gr_kv_cells_pos_max(kv, 0) == -1 && gr_kv_head(kv, 0) == 0);
    divide(kv, 2, -1, -1, 2);
    EXPECT_POS(kv, -1, -1, -1, 1, 0, 0, -1);
    gr_kv_free(&kv);
}

Test(kv_ops, refuses)
{
    struct gr_kv *kv = cache(64, 2, 32, false);
    static const int32_t bad[] = {2, 3, -2, 256, 1 << 20, INT32_MAX, INT32_MIN};
    store(kv, 0, GR_POS_MAX - 5, 6, NULL);
    char *before = state(kv);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (bad[i] >= 0)
            cr_assert_eq(rm(kv, bad[i], -1, -1), GR_E_INVALID);
        cr_assert_eq(cp(kv, bad[i], 0, -1, -1), GR_E_INVALID);
        cr_assert_eq(cp(kv, 0, bad[i], -1, -1), GR_E_INVALID);
        cr_assert_eq(keep(kv, bad[i]), GR_E_INVALID);
        cr_assert_eq(add(kv, bad[i], -1, -1, 1), GR_E_INVALID);
        cr_assert_eq(divide(kv, bad[i], -1, -1, 2), GR_E_INVALID);
        cr_assert(gr_kv_cells_pos_min(kv, bad[i]) == -1 && gr_kv_cells_pos_max(kv, bad[i]) == -1);
        cr_assert(!gr_kv_cell_has(kv, 0, bad[i]));
    }
    cr_assert_eq(divide(kv, 0, -1, -1, 0), GR_E_INVALID);
    cr_assert_eq(divide(kv, 0, -1, -1, INT32_MIN), GR_E_INVALID);
    cr_assert_eq(add(kv, 0, -1, -1, 1), GR_E_INVALID);
    cr_assert_eq(add(kv, 0, -1, -1, INT32_MAX), GR_E_INVALID);
    expect_state(kv, before);
    free(before);
    cr_assert_eq(add(kv, 0, -1, GR_POS_MAX, 1), 0);
    cr_assert_eq(add(kv, 0, -1, -1, INT32_MIN), 0);
    cr_assert_eq(gr_kv_n_used(kv), 0);
    gr_kv_free(&kv);

    static const struct gr_kv_params wrong[] = {
        {.n_cell = 0, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32},
        {.n_cell = 64, .n_kv_pool = 1, .n_seq_max = 0, .n_pad = 32},
        {.n_cell = 64, .n_kv_pool = 1, .n_seq_max = 257, .n_pad = 32},
        {.n_cell = 64, .n_kv_pool = 0, .n_seq_max = 1, .n_pad = 32},
        {.n_cell = 64, .n_kv_pool = 2, .n_seq_max = 3, .n_pad = 32},
        {.n_cell = 64, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 0},
        {.n_cell = 64, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 33},
        {.n_cell = UINT32_MAX, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32},
        {.n_cell = (1 << 29) + 1, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 32},
        {.n_cell = 64, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = UINT32_MAX - 31},
        {.n_cell = 64, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .window = -1},
        {.n_cell = 64, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .group = -1}};
    for (size_t i = 0; i < GR_COUNT(wrong); i++)
        cr_assert(gr_kv_new(&kv, &wrong[i]) == GR_E_INVALID && !kv);
}

/* ---- the invariants ---- */

/* Each way in which the parts of a cache can contradict each other is noticed, and the cell is
 * named. */
Test(kv_check, notices)
{
    struct gr_kv *kv = cache(40, 3, 32, false);
    store(kv, 0, 0, 6, NULL);
    store(kv, 1, 0, 4, NULL);
    add(kv, 1, -1, -1, 2);
    cr_assert_eq(gr_kv_check(kv), 0);
    struct gr_kv_seq *q = kv->seq;
#define BROKEN(change, undo)                                                                       \
    do {                                                                                           \
        change;                                                                                    \
        cr_assert_eq(gr_kv_check(kv), GR_E_INTERNAL);                                              \
        undo;                                                                                      \
        cr_assert_eq(gr_kv_check(kv), 0);                                                          \
    } while (0)
    BROKEN(kv->n_used++, kv->n_used--);
    BROKEN(kv->n_shift--, kv->n_shift++);
    BROKEN(kv->pool->n_used--, kv->pool->n_used++);
    BROKEN(kv->pool->end++, kv->pool->end--);
    BROKEN(kv->pool->head = 40, kv->pool->head = 0);
    BROKEN(kv->pos[3] = -1, kv->pos[3] = 3);
    BROKEN(kv->pos[3] = INT32_MAX, kv->pos[3] = 3);
    BROKEN(kv->pos[2] = 4, kv->pos[2] = 2);
    BROKEN(kv->pos[20] = 0, kv->pos[20] = -1);
    BROKEN(kv->delta[20] = 1, kv->delta[20] = 0);
    BROKEN(kv->delta[6] = 3, kv->delta[6] = 2);
    BROKEN(kv->delta[7] = -INT32_MAX, kv->delta[7] = 2);
    BROKEN(kv->age[5] = 10, kv->age[5] = 5);
    BROKEN(kv->n_seq[2] = 2, kv->n_seq[2] = 1);
    BROKEN(kv->used[0] |= 1 << 20, kv->used[0] ^= 1 << 20);
    BROKEN(kv->used[1] |= 1 << 8, kv->used[1] = 0);
    BROKEN(kv->set[2] ^= 4, kv->set[2] ^= 4);
    BROKEN(kv->set[4] ^= 8, kv->set[4] ^= 8);
    BROKEN(kv->set[3] = 4, kv->set[3] = 1);
    BROKEN(q[0].n--, q[0].n++);
    BROKEN((q[0].cell[0] = 1, q[0].cell[1] = 0), (q[0].cell[0] = 0, q[0].cell[1] = 1));
    BROKEN(q[0].cell[1] = 0, q[0].cell[1] = 1);
    BROKEN(q[1].cell[1] = 2, q[1].cell[1] = 7);
    BROKEN(q[1].evicted = ((struct gr_kv_evicted){1, {{0, 2}}}), q[1].evicted.n = 0);
    BROKEN(kv->n_placed = 1, kv->n_placed = 0);
    kv->n_seq[2] = 2;
    gr_kv_check(kv);
    cr_assert_str_eq(gr_error(), "KV cache: cell 2: sequences: 1 expected, 2 found");
    gr_kv_free(&kv);
}

/* ---- a large cache ---- */

/* One decode step at 128k cells: finding a cell takes microseconds, and the list is a
 * copy. The bounds are loose, for slow machines and sanitizers. */
Test(kv_speed, one_token)
{
    struct gr_kv *kv = cache(128 << 10, 16, 256, false);
    static int32_t list[128 << 10];
    int32_t cell, span[3], n = 128 << 10;
    for (int32_t p = 0; p < n - 256; p += MOST / 2)
        cr_assert_eq(store(kv, 0, p, GR_MIN(MOST / 2, n - 256 - p), NULL), 0);
    double place = 1, fill = 1;
    for (int32_t i = 0; i < 40; i++) {
        struct gr_ubatch ub = tokens(0, n - 256 + i, 1);
        int64_t t = gr_now_ns();
        cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
        gr_kv_place(kv, &ub, &cell);
        place = GR_MIN(place, gr_seconds_since(t));
        t = gr_now_ns();
        gr_kv_fill(kv, &ub, true, 0, false, list, span, NULL);
        fill = GR_MIN(fill, gr_seconds_since(t));
        gr_kv_commit(kv);
    }
    cr_log_info("128k cells: placing %.1f us, listing %.1f us\n", place * 1e6, fill * 1e6);
#ifdef NDEBUG /* otherwise every operation checks the whole cache */
    cr_assert_lt(place, 100e-6);
    cr_assert_lt(fill, 2e-3);
#endif
    gr_kv_free(&kv);
}

/* The same for a step of 64 sequences with a full window each, where every token makes another cell
 * go. */
Test(kv_speed, full_windows)
{
    enum { N = 64, WINDOW = 1024, CELLS = N * (WINDOW + 8) };
    struct gr_kv *kv = cache_of((struct gr_kv_params){
        .n_cell = CELLS, .n_kv_pool = 1, .n_seq_max = N, .n_pad = 256, .window = WINDOW});
    static int32_t list[N * 1280];
    int32_t cells[N], span[N * 3];
    for (int32_t s = 0; s < N; s++)
        for (int32_t k = 0; k < 2; k++)
            cr_assert_eq(store(kv, s, k * (WINDOW / 2 + 4), WINDOW / 2 + 4, NULL), 0);
    cr_assert_eq(gr_kv_n_used(kv), CELLS);
    double best = 1;
    for (int32_t i = 0; i < 20; i++) {
        struct gr_ubatch ub = tokens(0, 0, N);
        for (int32_t s = 0; s < N; s++)
            ub.batch->seq[s] = s, ub.batch->pos[s] = WINDOW + 8 + i;
        int64_t t = gr_now_ns();
        cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
        gr_kv_place(kv, &ub, cells);
        gr_kv_fill(kv, &ub, true, 0, false, list, span, NULL);
        gr_kv_commit(kv);
        best = GR_MIN(best, gr_seconds_since(t));
    }
    cr_log_info("64 full windows of 1,024: a step %.1f us\n", best * 1e6);
#ifdef NDEBUG
    cr_assert_lt(best, 5e-3);
#endif
    gr_kv_free(&kv);
}

static void timed(struct gr_kv *kv, struct gr_kv_op o, double *best)
{
    int64_t t = gr_now_ns();
    cr_assert_eq(gr_kv_can(kv, &o), 0);
    gr_kv_do(kv, &o, &moves);
    *best = GR_MIN(*best, gr_seconds_since(t));
}

/* Operations on one sequence of 128k cells: to remove the last token must not look at the others.
 */
Test(kv_speed, operations)
{
    struct gr_kv *kv = cache(128 << 10, 2, 256, false);
    double last = 1, share = 1, part = 1, shift = 1;
    for (int32_t i = 0; i < (128 << 10) / (MOST / 2); i++)
        cr_assert_eq(store(kv, 0, i * (MOST / 2), MOST / 2, NULL), 0);
    for (int32_t i = 0; i < 10; i++) {
        int32_t end = gr_kv_cells_pos_max(kv, 0);
        timed(kv, (struct gr_kv_op){GR_KV_RM, 0, 0, end, -1, 0}, &last);
        cr_assert_eq(store(kv, 0, end, 1, NULL), 0);
        timed(kv, (struct gr_kv_op){GR_KV_CP, 0, 1, -1, -1, 0}, &share);
        cr_assert_eq(rm(kv, 1, -1, -1), 0);
    }
    timed(kv, (struct gr_kv_op){GR_KV_RM, 0, 0, 4, 65536, 0}, &part);
    timed(kv, (struct gr_kv_op){GR_KV_ADD, 0, 0, 65536, -1, -65532}, &shift);
    cr_log_info(
        "128k cells: remove the last %.1f us, share %.0f us, discard a half %.0f + %.0f us\n",
        last * 1e6, share * 1e6, part * 1e6, shift * 1e6);
#ifdef NDEBUG
    cr_assert_lt(last, 100e-6);
    cr_assert_lt(share + part + shift, 50e-3);
#endif
    gr_kv_free(&kv);
}

/* ---- the dump ---- */

Test(kv_dump, small)
{
    struct gr_kv *kv = cache(192, 40, 32, false);
    char *text;
    size_t n;
    store(kv, 0, 0, 6, NULL);
    store(kv, 1, 6, 7, NULL);
    store(kv, 39, 0, 4, NULL);
    cp(kv, 1, 10, 8, 10);
    store(kv, 10, 10, 2, NULL);
    rm(kv, 39, 1, 2);
    divide(kv, 1, 10, -1, 2);
    FILE *f = open_memstream(&text, &n);
    gr_kv_print(kv, f);
    fclose(f);
    cr_assert_str_eq(
        text,
        "KV cache: 18 of 192 cells used (the first 32), head at 14\n"
        "      cell  0-9 a-z: in that sequence, #: in a later one, +: in several, .: free\n"
        "         0  00000011++111#.# #aa............. ................ ................\n"
        "        64  ................ ................ ................ ................\n"
        "            the same once more\n"
        "  sequence\n"
        "         0         6 cells (0 shared), positions 0 to 5\n"
        "         1         7 cells (2 shared), positions 5 to 9\n"
        "                   3 wait for a shift by -6 to -5\n"
        "        10         4 cells (2 shared), positions 8 to 11\n"
        "        39         3 cells (0 shared), positions 0 to 3\n",
        "%s", text);
    free(text);
    gr_kv_free(&kv);
}
