/* The published traces of the cache with their numbers: S = the source and item, C = the table of
 * differences between the sources (see README.md). */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "gr/status.h"
#include "help.h"

/* ---- Self-Extend ---- */

/* Progress of a run of Self-Extend, and the numbers of its last round. */
struct extend {
    int32_t n, w, n_past, i;
    int32_t ib, bd, dd;
};

static void round_numbers(struct extend *e)
{
    e->ib = e->n * e->i / e->w;
    e->bd = e->w / e->n * (e->n - 1);
    e->dd = e->w / e->n - e->ib * e->bd - e->w;
}

/* The first addition, the division and the second addition of a round. */
static void add_before(struct gr_kv *kv, const struct extend *e)
{
    cr_assert_eq(add(kv, 0, e->i, e->n_past, e->ib * e->bd), 0);
}
static void divide_window(struct gr_kv *kv, const struct extend *e)
{
    int32_t lo = e->i + e->ib * e->bd;
    cr_assert_eq(divide(kv, 0, lo, lo + e->w, e->n), 0);
}
static void add_after(struct gr_kv *kv, struct extend *e)
{
    cr_assert_eq(add(kv, 0, e->i + e->ib * e->bd + e->w, e->n_past + e->ib * e->bd, e->dd), 0);
    e->n_past -= e->bd;
    e->i += e->w / e->n;
}

static void extend(struct gr_kv *kv, struct extend *e)
{
    while (e->n_past >= e->i + e->w) {
        round_numbers(e);
        add_before(kv, e);
        divide_window(kv, e);
        add_after(kv, e);
    }
}

/* Cells from `first` on have these (position, delta). */
static void expect_cells(const struct gr_kv *kv, uint32_t first, size_t n, const int32_t (*want)[2])
{
    for (uint32_t i = 0; i < n; i++) {
        struct gr_cell c = gr_kv_cell(kv, first + i);
        cr_assert(c.pos == want[i][0] && c.delta == want[i][1],
                  "cell %u: (%d, %d) expected, (%d, %d) found", first + i, want[i][0], want[i][1],
                  c.pos, c.delta);
    }
}
#define EXPECT(kv, first, ...)                                                                     \
    expect_cells(kv, first, sizeof((int32_t[][2]){__VA_ARGS__}) / 8, (int32_t[][2]){__VA_ARGS__})

static struct gr_kv *stored(int32_t n)
{
    struct gr_kv *kv = cache(8192, 1, 32, false);
    cr_assert_eq(store(kv, 0, 0, n, NULL), 0);
    return kv;
}

Test(traces, S0_8_round_numbers)
{
    static const int32_t ib[] = {0, 1, 2, 3};
    for (int32_t k = 0; k < 4; k++) {
        struct extend e = {.n = 2, .w = 4, .i = 2 * k};
        round_numbers(&e);
        cr_assert(e.ib == ib[k] && e.bd == 2 && (k || e.dd == -2));
    }
}

Test(traces, S0_9_delta_0_and_divisor_1_touch_nothing)
{
    struct gr_kv *kv = stored(5);
    rm(kv, 0, 1, 2);
    char *before = state(kv);
    cr_assert_eq(add(kv, 0, -1, -1, 0), 0);
    cr_assert_eq(divide(kv, 0, -1, -1, 1), 0);
    expect_state(kv, before);
    cr_assert(!gr_kv_has_shift(kv) && gr_kv_head(kv, 0) == 1);
    free(before);
    gr_kv_free(&kv);
}

Test(traces, S0_10_ranges)
{
    struct gr_kv *kv = stored(6);
    add(kv, 0, 2, 4, 10); /* [2, 4) */
    EXPECT_POS(kv, 0, 1, 12, 13, 4, 5);
    add(kv, 0, -1, 5, 1); /* [0, 5) */
    EXPECT_POS(kv, 1, 2, 12, 13, 5, 5);
    add(kv, 0, 5, -1, -1); /* [5, end) */
    EXPECT_POS(kv, 1, 2, 11, 12, 4, 4);
    gr_kv_free(&kv);
}

Test(traces, S0_11_sign_of_the_delta_C1)
{
    struct gr_kv *kv = stored(5);
    divide(kv, 0, 0, 4, 2);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {4, 0});
    cr_assert(gr_kv_has_shift(kv));
    gr_kv_free(&kv);
}

Test(traces, S0_12_negative_positions)
{
    struct gr_kv *kv = stored(6);
    add(kv, 0, 2, -1, -3);
    EXPECT(kv, 0, {0, 0}, {1, 0}, {-1, 0}, {0, -3}, {1, -3}, {2, -3}, {-1, 0});
    cr_assert(gr_kv_n_used(kv) == 5 && gr_kv_head(kv, 0) == 2 && gr_kv_cell(kv, 2).n_seq == 0);
    add(kv, 0, -1, -1, 1);
    cr_assert_eq(gr_kv_head(kv, 0), 0, "no cell was freed");
    gr_kv_free(&kv);
}

Test(traces, S0_13_where_a_token_was)
{
    struct gr_kv *kv = stored(256);
    divide(kv, 0, -1, -1, 4);
    EXPECT(kv, 255, {63, -192});
    for (uint32_t i = 0; i < 256; i++)
        cr_assert_eq(gr_kv_cell(kv, i).pos - gr_kv_cell(kv, i).delta, (int32_t)i);
    gr_kv_free(&kv);
}

Test(traces, S0_14_five_token_prompt)
{
    struct gr_kv *kv = stored(5);
    EXPECT(kv, 0, {0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {-1, 0});
    struct gr_cell c = gr_kv_cell(kv, 5);
    cr_assert(c.n_seq == 0 && c.seq == -1 && !gr_kv_cell_has(kv, 5, 0));
    cr_assert(gr_kv_n_used(kv) == 5 && gr_kv_cells_pos_max(kv, 0) == 4);
    gr_kv_free(&kv);
}

Test(traces, S0_15_five_cells)
{
    struct gr_kv *kv = stored(5);
    struct extend e = {.n = 2, .w = 4, .n_past = 5};
    round_numbers(&e);
    add_before(kv, &e);
    divide_window(kv, &e);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {4, 0});
    add_after(kv, &e);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {2, -2});
    cr_assert(e.n_past == 3 && e.i == 2);
    gr_kv_free(&kv);
}

Test(traces, S0_16_second_round)
{
    struct gr_kv *kv = stored(5);
    struct extend e = {.n = 2, .w = 4, .n_past = 5};
    extend(kv, &e);
    gr_kv_shifted(kv);
    cr_assert_eq(store(kv, 0, 3, 3, NULL), 0);
    e.n_past = 6;
    round_numbers(&e);
    add_before(kv, &e);
    EXPECT(kv, 4, {4, 2}, {5, 2}, {6, 2}, {7, 2});
    divide_window(kv, &e);
    EXPECT(kv, 4, {2, 0}, {2, -1}, {3, -1}, {3, -2});
    char *before = state(kv);
    cr_assert(e.i + e.ib * e.bd + e.w == 8 && e.n_past + e.ib * e.bd == 8 && e.dd == -4);
    add_after(kv, &e);
    expect_state(kv, before);
    cr_assert(e.n_past == 4 && e.i == 4);
    free(before);
    gr_kv_free(&kv);
}

Test(traces, S0_17_one_window_of_2048)
{
    struct gr_kv *kv = stored(2048);
    struct extend e = {.n = 2, .w = 2048, .n_past = 2048};
    extend(kv, &e);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {1, -1}, {1, -2}, {2, -2}, {2, -3});
    EXPECT(kv, 2044, {1022, -1022}, {1022, -1023}, {1023, -1023}, {1023, -1024});
    cr_assert(e.ib == 0 && e.dd == -1024 && e.n_past == 1024);
    gr_kv_free(&kv);
}

Test(traces, S0_18_factor_4)
{
    struct gr_kv *kv = stored(2048);
    struct extend e = {.n = 4, .w = 2048, .n_past = 2048};
    extend(kv, &e);
    EXPECT(kv, 0, {0, 0}, {0, -1}, {0, -2}, {0, -3}, {1, -3}, {1, -4}, {1, -5}, {1, -6});
    cr_assert(e.dd == -1536 && e.n_past == 512 && gr_kv_cells_pos_max(kv, 0) == 511);
    gr_kv_free(&kv);
}

Test(traces, S0_19_two_windows_of_1024)
{
    struct gr_kv *kv = stored(2048), *one = stored(2048);
    struct extend e = {.n = 2, .w = 1024, .n_past = 2048};
    round_numbers(&e);
    add_before(kv, &e);
    divide_window(kv, &e);
    EXPECT(kv, 1022, {511, -511}, {511, -512}, {1024, 0});
    add_after(kv, &e);
    cr_assert(e.n_past == 1536 && e.i == 512 && gr_kv_cells_pos_max(kv, 0) == 1535);
    extend(kv, &e);
    cr_assert(e.ib == 1 && e.dd == -1024 && e.n_past == 1024);
    EXPECT(kv, 1024, {512, -512}, {512, -513}, {513, -513}, {513, -514}, {514, -514}, {514, -515});
    struct extend f = {.n = 2, .w = 2048, .n_past = 2048};
    extend(one, &f);
    for (uint32_t i = 0; i < 2048; i++)
        EXPECT(kv, i, {gr_kv_cell(one, i).pos, gr_kv_cell(one, i).delta});
    gr_kv_free(&kv);
    gr_kv_free(&one);
}

Test(traces, S0_20_windows_of_256)
{
    struct gr_kv *kv = stored(2048);
    struct extend e = {.n = 4, .w = 256, .n_past = 2048};
    round_numbers(&e);
    add_before(kv, &e);
    divide_window(kv, &e);
    EXPECT(kv, 255, {63, -192}, {256, 0});
    add_after(kv, &e);
    EXPECT(kv, 256, {64, -192});
    EXPECT(kv, 2047, {1855, -192});
    cr_assert(e.n_past == 1856 && e.i == 64 && e.n_past >= e.i + e.w);
    round_numbers(&e);
    cr_assert_eq(e.ib * e.bd, 192);
    add_before(kv, &e);
    EXPECT(kv, 256, {256, 0});
    gr_kv_free(&kv);
}

Test(traces, S0_21_prompt_of_7037)
{
    struct gr_kv *kv = cache(8192, 1, 32, false);
    struct extend e = {.n = 4, .w = 256};
    for (int32_t done = 0; done < 7037;) {
        int32_t n = GR_MIN(2048, 7037 - done);
        extend(kv, &e);
        gr_kv_shifted(kv);
        cr_assert_eq(store(kv, 0, e.n_past, n, NULL), 0);
        e.n_past += n, done += n;
    }
    extend(kv, &e);
    cr_assert(e.n_past == 1853 && e.i == 1728, "%d %d", e.n_past, e.i);
    for (uint32_t i = 1; i < 7037; i++)
        cr_assert_geq(gr_kv_cell(kv, i).pos, gr_kv_cell(kv, i - 1).pos);
    cr_assert_eq(gr_kv_n_used(kv), 7037, "positions are saved, not memory (S0-28)");
    gr_kv_free(&kv);
}

Test(traces, S0_24_shifted)
{
    struct gr_kv *kv = stored(5);
    int32_t delta[32];
    add(kv, 0, 1, 3, 4);
    cr_assert(gr_kv_has_shift(kv));
    gr_kv_shifted(kv);
    cr_assert(!gr_kv_has_shift(kv));
    gr_kv_deltas(kv, 32, false, delta);
    for (int32_t i = 0; i < 32; i++)
        cr_assert_eq(delta[i], 0);
    EXPECT_POS(kv, 0, 5, 6, 3, 4, -1);
    gr_kv_free(&kv);
}

Test(traces, S0_25_deltas_of_every_cell)
{
    int32_t delta[16];
    struct gr_kv *kv =
        cache_of((struct gr_kv_params){.n_cell = 8, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 32});
    store(kv, 0, 0, 3, NULL);
    store(kv, 1, 0, 3, NULL);
    add(kv, 1, 1, -1, 5);
    rm(kv, 1, 6, 7);
    cr_assert_eq(gr_kv_n_kv(kv), 16);
    gr_kv_deltas(kv, 16, false, delta);
    EXPECT_CELLS(delta, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0);
    gr_kv_free(&kv);
}

/* ---- placing ---- */

/* Cells 0..5 and 1020..1023 of 1024 are free and the head is at 1020. */
static struct gr_kv *head_at_1020(bool contiguous)
{
    struct gr_kv *kv = cache(1024, 3, 32, contiguous);
    store(kv, 1, 0, 6, NULL);
    store(kv, 0, 0, 1014, NULL);
    rm(kv, 1, -1, -1);
    add(kv, 0, 1010, -1, -1); /* the head goes to 0, and by placing 4 tokens behind them */
    store(kv, 2, 0, 4, NULL);
    add(kv, 2, -1, -1, -4);
    cr_assert(gr_kv_n_used(kv) == 1014 && gr_kv_head(kv, 0) == 0);
    kv->pool->head = 1020;
    return kv;
}

Test(traces, S1_4_contiguous_search)
{
    struct gr_kv *kv = cache(8, 2, 32, true); /* 0 and 1 used, 2 free, 3 used, 4 to 7 free */
    int32_t cells[3];
    store(kv, 0, 0, 2, NULL);
    store(kv, 1, 0, 1, NULL);
    store(kv, 0, 2, 1, NULL);
    rm(kv, 1, -1, -1);
    cr_assert_eq(gr_kv_head(kv, 0), 2);
    cr_assert_eq(store(kv, 1, 0, 3, cells), 0);
    EXPECT_CELLS(cells, 4, 5, 6);
    cr_assert_eq(store(kv, 1, 3, 2, NULL), GR_E_KV_FULL, "2 and 7 are no neighbours");
    gr_kv_free(&kv);
}

Test(traces, S1_5_head_heuristic)
{
    for (int32_t used = 3; used <= 4; used++) { /* head 6, one token: 6 > used + 2? */
        struct gr_kv *kv = cache(64, 1, 32, false);
        int32_t cell;
        store(kv, 0, 0, 6, NULL);
        rm(kv, 0, 0, 1);
        rm(kv, 0, used + 1, -1);
        kv->pool->head = 6;
        cr_assert_eq(gr_kv_n_used(kv), (uint32_t)used);
        store(kv, 0, used + 1, 1, &cell);
        cr_assert_eq(cell, used == 3 ? 0 : 6);
        gr_kv_free(&kv);
    }
}

Test(traces, S1_7_two_tokens_need_32)
{
    struct gr_kv *kv = stored(2);
    cr_assert_eq(gr_kv_n_kv(kv), 32);
    gr_kv_free(&kv);
}

Test(traces, S1_8_head_behind_the_last_cell)
{
    struct gr_kv *kv = cache(8, 1, 32, false);
    store(kv, 0, 0, 7, NULL);
    cr_assert_eq(gr_kv_head(kv, 0), 7);
    store(kv, 0, 7, 1, NULL);
    cr_assert_eq(gr_kv_head(kv, 0), 0);
    gr_kv_free(&kv);
}

Test(traces, S2_15_more_tokens_than_cells)
{
    struct gr_kv *kv = cache(8, 1, 32, false);
    cr_assert_eq(store(kv, 0, 0, 9, NULL), GR_E_KV_FULL);
    cr_assert_str_eq(gr_error(), "the KV cache is full: 9 tokens wanted, 8 of 8 cells free; remove "
                                 "sequences or use a larger context");
    gr_kv_free(&kv);
}

Test(traces, S2_16_wrap_at_1020)
{
    struct gr_kv *kv = head_at_1020(true);
    int32_t cells[6];
    cr_assert_eq(store(kv, 1, 0, 6, cells), 0);
    EXPECT_CELLS(cells, 0, 1, 2, 3, 4, 5);
    gr_kv_free(&kv);
}

Test(traces, S2_17_six_tokens)
{
    struct gr_kv *kv = cache(1024, 1, 32, false);
    store(kv, 0, 0, 6, NULL);
    EXPECT_POS(kv, 0, 1, 2, 3, 4, 5, -1, -1);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert(gr_kv_cell(kv, i).n_seq == 1 && gr_kv_cell(kv, i).seq == 0);
    cr_assert(gr_kv_n_used(kv) == 6 && gr_kv_n_kv(kv) == 32 && gr_kv_head(kv, 0) == 6);
    gr_kv_free(&kv);
}

Test(traces, C2_slot_search)
{
    for (int contiguous = 0; contiguous < 2; contiguous++) { /* 2, 3, 6, 7 of 8 are free */
        struct gr_kv *kv = cache(8, 2, 32, contiguous);
        int32_t cells[6];
        for (int i = 0; i < 4; i++)
            store(kv, i % 2, i / 2 * 2, 2, NULL);
        rm(kv, 1, -1, -1);
        cr_assert_eq(store(kv, 1, 0, 3, cells), contiguous ? GR_E_KV_FULL : 0);
        if (!contiguous)
            EXPECT_CELLS(cells, 2, 3, 6);
        gr_kv_free(&kv);

        kv = head_at_1020(contiguous);
        cr_assert_eq(store(kv, 1, 0, 6, cells), 0);
        if (contiguous)
            EXPECT_CELLS(cells, 0, 1, 2, 3, 4, 5);
        else
            EXPECT_CELLS(cells, 1020, 1021, 1022, 1023, 0, 1);
        gr_kv_free(&kv);
    }
}

/* used, cells, n_kv with padding 32 and with padding 256 */
Test(traces, C4_padding)
{
    static const int32_t cases[][4] = {
        {36, 8192, 64, 256}, {257, 8192, 288, 512}, {1000, 1000, 1000, 1000}};
    for (size_t i = 0; i < GR_COUNT(cases); i++)
        for (int k = 0; k < 2; k++) {
            struct gr_kv *kv = cache((uint32_t)cases[i][1], 1, k ? 256 : 32, false);
            cr_assert_eq(store(kv, 0, 0, cases[i][0], NULL), 0);
            cr_assert_eq(gr_kv_n_kv(kv), cases[i][2 + k]);
            gr_kv_free(&kv);
        }
}

/* ---- pools ---- */

Test(traces, S3_9_eviction_of_the_oldest)
{
    struct gr_kv *kv = cache(4, 1, 32, false);
    int32_t cell, delta[4];
    store(kv, 0, 0, 4, NULL);
    cr_assert_eq(store(kv, 0, 4, 1, NULL), GR_E_KV_FULL);
    rm(kv, 0, 0, 1);
    add(kv, 0, 1, -1, -1);
    gr_kv_deltas(kv, 4, false, delta);
    EXPECT_CELLS(delta, 0, -1, -1, -1);
    store(kv, 0, 3, 1, &cell);
    cr_assert(cell == 0 && moves.n == 0, "nothing is copied");
    EXPECT_POS(kv, 3, 0, 1, 2);
    gr_kv_free(&kv);
}

Test(traces, S3_11_rows_of_pools)
{
    struct gr_kv *kv =
        cache_of((struct gr_kv_params){.n_cell = 512, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 32});
    static int32_t cells[1024];
    cr_assert_eq(gr_kv_n_cell(kv), 1024);
    store(kv, 1, 0, 512, cells);
    for (int32_t i = 0; i < 512; i++)
        cr_assert_eq(cells[i], 512 + i);
    store(kv, 0, 0, 512, cells);
    for (int32_t i = 0; i < 512; i++)
        cr_assert_eq(cells[i], i);
    cr_assert(gr_kv_head(kv, 0) == 0 && gr_kv_head(kv, 1) == 0);
    cr_assert_eq(store(kv, 1, 512, 1, NULL), GR_E_KV_FULL);
    cr_assert_str_eq(gr_error(), "the KV cache of sequence 1 is full: 1 tokens wanted, 0 of 512 "
                                 "cells free; remove sequences or use a larger context");
    gr_kv_free(&kv);
}

Test(traces, S3_12_36_tokens)
{
    struct gr_kv *kv = cache(32768, 1, 256, false);
    int32_t cells[36];
    store(kv, 0, 0, 36, cells);
    for (int32_t i = 0; i < 36; i++)
        cr_assert_eq(cells[i], i);
    cr_assert_eq(gr_kv_n_kv(kv), 256, "S3-13");
    gr_kv_free(&kv);
}

/* At one position, what lies in a later row, or in the same row further right, is the future. */
Test(traces, S3_15_rows_and_columns)
{
    static const int32_t place[7][3] = {/* position, row, column; by row and column 3 4 1 5 2 0 6 */
                                        {4, 6, 5}, {4, 5, 4}, {4, 6, 4}, {4, 4, 4},
                                        {4, 5, 4}, {4, 5, 9}, {4, 7, 0}};
    static const int32_t n_seen[7] = {6, 3, 5, 1, 3, 4, 7};
    struct gr_kv *kv = cache_of((struct gr_kv_params){
        .n_cell = 32, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .pos_2d = true});
    int32_t cells[7], list[7], span[21];
    static float mask[7 * 32];
    struct gr_ubatch ub = tokens(0, 0, 7);
    for (int32_t i = 0; i < 7; i++)
        ub.batch->pos[i] = place[i][0], ub.batch->row[i] = place[i][1],
        ub.batch->col[i] = place[i][2];
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
    gr_kv_place(kv, &ub, cells);
    gr_kv_fill(kv, &ub, true, 0, false, list, span, NULL);
    gr_kv_mask_dense(kv, &ub, 32, true, false, 1, mask);
    EXPECT_CELLS(list, 3, 1, 4, 5, 2, 0, 6);
    for (int32_t i = 0; i < 7; i++) {
        int32_t n = 0;
        for (int32_t c = 0; c < 32; c++)
            n += mask[i * 32 + c] == 0;
        cr_assert(n == n_seen[i] && span[i * 3] == 0 && span[i * 3 + 2] == n, "token %d: %d, %d", i,
                  n, span[i * 3 + 2]);
    }
    gr_kv_commit(kv);
    add(kv, 0, -1, -1, 6);
    struct gr_cell c = gr_kv_cell(kv, 5);
    cr_assert(c.pos == 10 && c.row == 11 && c.col == 15 && c.delta == 6);
    divide(kv, 0, -1, -1, 5);
    c = gr_kv_cell(kv, 5);
    cr_assert(c.pos == 2 && c.row == 3 && c.col == 7 && c.delta == -2);
    gr_kv_free(&kv);
}

/* ---- two sequences in one pool ---- */

/* Prompt A: 6 tokens of sequence 0; prompt B: 7 of sequence 1, whose positions go on at 6. */
static struct gr_kv *thirteen_cells(void)
{
    struct gr_kv *kv = cache(1024, 2, 32, false);
    store(kv, 0, 0, 6, NULL);
    store(kv, 1, 6, 7, NULL);
    return kv;
}

Test(traces, S4_24_thirteen_cells_C10)
{
    struct gr_kv *kv = thirteen_cells();
    EXPECT_POS(kv, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, -1, -1);
    for (uint32_t i = 0; i < 13; i++)
        cr_assert(gr_kv_cell(kv, i).seq == (i >= 6) && gr_kv_cell(kv, i).n_seq == 1);
    cr_assert(gr_kv_head(kv, 0) == 13 && gr_kv_n_used(kv) == 13);
    cr_assert_eq(gr_kv_head(kv, 0) * 4096 * 2, 106496, "where the next K row begins, in bytes");
    gr_kv_free(&kv);
}

Test(traces, S4_25_one_token_of_the_second)
{
    struct gr_kv *kv = thirteen_cells();
    int32_t cell, list[8], span[3];
    static float mask[32 * 32];
    struct gr_ubatch ub = tokens(1, 13, 1);
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
    gr_kv_place(kv, &ub, &cell);
    cr_assert(cell == 13 && gr_kv_n_kv(kv) == 32);
    gr_kv_mask_dense(kv, &ub, 32, true, false, 32, mask);
    for (int32_t i = 0; i < 32 * 32; i++)
        cr_assert_eq(mask[i], i >= 6 && i <= 13 ? 0 : -INFINITY, "%d", i);
    gr_kv_fill(kv, &ub, true, 0, false, list, span, NULL);
    EXPECT_CELLS(list, 6, 7, 8, 9, 10, 11, 12, 13);
    EXPECT_CELLS(span, 0, 0, 8);
    gr_kv_commit(kv);
    cr_assert_eq(gr_kv_n_used(kv), 14);
    gr_kv_free(&kv);
}

Test(traces, S4_28_packing)
{
    struct gr_kv *kv = thirteen_cells();
    rm(kv, 0, 1, 4);
    rm(kv, 1, 9, 10);
    cr_assert_eq(gr_kv_pack(kv, &moves), 0);
    cr_assert_eq(moves.n, 3);
    EXPECT_CELLS(moves.src, 10, 11, 12);
    EXPECT_CELLS(moves.dst, 1, 2, 3);
    EXPECT_POS(kv, 0, 10, 11, 12, 4, 5, 6, 7, 8, -1);
    cr_assert(gr_kv_head(kv, 0) == 9 && gr_kv_n_used(kv) == 9);
    cr_assert_eq(gr_kv_pack(kv, &moves), 0);
    cr_assert_eq(moves.n, 0);
    gr_kv_free(&kv);
}
