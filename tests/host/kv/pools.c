/* Separate pools, copies, windows and grouped positions by example. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "help.h"

static struct gr_kv *pools(uint32_t n_cell, uint32_t n_seq)
{
    return cache_of((struct gr_kv_params){
        .n_cell = n_cell, .n_kv_pool = n_seq, .n_seq_max = n_seq, .n_pad = 32});
}

static struct gr_kv *windowed(uint32_t n_cell, uint32_t n_kv_pool, uint32_t n_seq, int32_t window)
{
    return cache_of((struct gr_kv_params){.n_cell = n_cell,
                                          .n_kv_pool = n_kv_pool,
                                          .n_seq_max = n_seq,
                                          .n_pad = 32,
                                          .window = window});
}

/* ---- copies ---- */

Test(kv_copy, between_pools)
{
    struct gr_kv *kv = pools(8, 3);
    store(kv, 0, 0, 5, NULL);
    store(kv, 2, 7, 2, NULL);
    add(kv, 0, 3, -1, 10);
    cr_assert_eq(cp(kv, 0, 2, 1, 14), 0);
    cr_assert_eq(moves.n, 3);
    EXPECT_CELLS(moves.src, 1, 2, 3);
    EXPECT_CELLS(moves.dst, 18, 19, 20);
    struct gr_cell c = gr_kv_cell(kv, 20);
    cr_assert(c.pos == 13 && c.delta == 10 && c.seq == 2 && c.n_seq == 1, "with its delta");
    cr_assert(gr_kv_n_used(kv) == 10 && gr_kv_head(kv, 2) == 5 && gr_kv_n_kv(kv) == 24);
    cr_assert_eq(cp(kv, 0, 2, 1, 14), 0);
    cr_assert_eq(moves.n, 0, "it has them already");
    cr_assert_eq(cp(kv, 0, 0, -1, -1), 0);
    cr_assert_eq(moves.n, 0);
    add(kv, 2, -1, -1, 1);
    cr_assert(gr_kv_cells_pos_max(kv, 0) == 14 && gr_kv_cells_pos_max(kv, 2) == 14,
              "each moves alone");
    gr_kv_free(&kv);
}

Test(kv_copy, no_room)
{
    struct gr_kv *kv = pools(8, 2);
    store(kv, 0, 0, 5, NULL);
    store(kv, 1, 0, 4, NULL);
    char *before = state(kv);
    cr_assert_eq(cp(kv, 0, 1, -1, -1), GR_E_KV_FULL);
    cr_assert_str_eq(gr_error(),
                     "the KV cache is full: 5 cells of sequence 0 to copy, 4 of 8 free; "
                     "remove sequences or use a larger context");
    expect_state(kv, before);
    free(before);
    cr_assert_eq(cp(kv, 0, 1, 1, -1), 0);
    cr_assert_eq(moves.n, 4);
    gr_kv_free(&kv);
}

/* In one pool a copy shares cells; DUP gives a sequence cells of its own instead. */
Test(kv_copy, own_cells_in_one_pool)
{
    struct gr_kv *kv = cache(16, 2, 32, false);
    store(kv, 0, 0, 4, NULL);
    cp(kv, 0, 1, -1, -1);
    cr_assert(moves.n == 0 && gr_kv_seq_shared(kv, 1) == 4 && gr_kv_seq_same(kv, 0, 1));
    cr_assert_eq(dup_seq(kv, 0, 1, 2, -1), 0);
    cr_assert_eq(moves.n, 2);
    EXPECT_CELLS(moves.src, 2, 3);
    EXPECT_CELLS(moves.dst, 4, 5);
    cr_assert(gr_kv_seq_shared(kv, 1) == 2 && gr_kv_seq_cells(kv, 1) == 4 &&
              !gr_kv_seq_same(kv, 0, 1));
    add(kv, 0, 2, -1, 5);
    cr_assert(gr_kv_cells_pos_max(kv, 0) == 8 && gr_kv_cells_pos_max(kv, 1) == 3);
    cr_assert_eq(dup_seq(kv, 1, 1, -1, -1), 0);
    cr_assert_eq(moves.n, 2);
    cr_assert(gr_kv_seq_shared(kv, 0) == 0 && gr_kv_seq_cells(kv, 1) == 4);
    EXPECT_POS(kv, 0, 1, 7, 8, 2, 3, 0, 1, -1);
    gr_kv_free(&kv);
}

/* A token is one cell; with separate pools it cannot be in two of them. */
Test(kv_pools, tokens_of_several_sequences_are_refused)
{
    struct gr_kv *kv = pools(8, 2);
    struct gr_full_batch b = {.n_tok = 1, .pos = (int32_t[]){0}, .n_seq = (int32_t[]){2}};
    b.seq = (int32_t[]){0, 1}, b.seq_at = (int32_t[]){0};
    struct gr_ubatch ub = {&b, (int32_t[]){0}, 1, 0, 0};
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), GR_E_INVALID);
    cr_assert_str_eq(gr_error(),
                     "batch token 0: one sequence expected, since each has cells of its own, 2 "
                     "found; let all sequences share one pool (--kv-unified)");
    gr_kv_free(&kv);
}

/* Heads, the used range and packing are those of each pool. */
Test(kv_pools, each_has_its_own_head)
{
    struct gr_kv *kv = pools(8, 2);
    int32_t cells[3];
    store(kv, 0, 0, 6, NULL);
    store(kv, 1, 0, 2, NULL);
    rm(kv, 0, 1, 3);
    cr_assert(gr_kv_head(kv, 0) == 1 && gr_kv_head(kv, 1) == 2);
    store(kv, 1, 2, 1, cells);
    cr_assert(cells[0] == 10 && gr_kv_head(kv, 0) == 1);
    add(kv, 1, -1, -1, -1);
    cr_assert(gr_kv_head(kv, 0) == 1 && gr_kv_head(kv, 1) == 0);
    cr_assert_eq(gr_kv_pack(kv, &moves), 0);
    cr_assert_eq(moves.n, 3);
    EXPECT_CELLS(moves.src, 4, 5, 10);
    EXPECT_CELLS(moves.dst, 1, 2, 8);
    EXPECT_POS(kv, 0, 4, 5, 3, -1, -1, -1, -1, 1, 0, -1);
    keep(kv, 1);
    cr_assert(gr_kv_cells_pos_max(kv, 0) == -1 && gr_kv_cells_pos_max(kv, 1) == 1);
    gr_kv_free(&kv);
}

/* ---- windows ---- */

/* Window + micro-batch cells last forever, and cells go only when they must. */
Test(kv_window, goes_on_forever)
{
    struct gr_kv *kv = windowed(8 + 4, 1, 1, 8);
    int32_t cells[4], list[12], span[12], key[12];
    for (int32_t pos = 0; pos < 400; pos += 4) {
        struct gr_ubatch ub = tokens(0, pos, 4);
        cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
        gr_kv_place(kv, &ub, cells);
        gr_kv_fill(kv, &ub, true, 0, false, list, span, key);
        for (int32_t i = 0; i < 4; i++) {
            int32_t n = GR_MIN(8, pos + i + 1);
            cr_assert_eq(span[i * 3 + 2] - span[i * 3], n);
            for (int32_t k = 0; k < n; k++)
                cr_assert_eq(key[span[i * 3] + k], pos + i + 1 - n + k);
        }
        gr_kv_commit(kv);
        cr_assert_eq(gr_kv_n_used(kv), (uint32_t)GR_MIN(12, pos + 4));
    }
    gr_kv_free(&kv);
}

/* A prompt of many micro-batches gives up its own first cells. */
Test(kv_window, long_prompt)
{
    for (int contiguous = 0; contiguous < 2; contiguous++) {
        struct gr_kv *kv = cache_of((struct gr_kv_params){.n_cell = 24,
                                                          .n_kv_pool = 1,
                                                          .n_seq_max = 2,
                                                          .n_pad = 32,
                                                          .window = 8,
                                                          .contiguous = contiguous});
        struct gr_ubatch all = tokens(0, 0, 100), ub[25];
        int32_t cells[8], n = cut(&all, 8, ub);
        char *before = state(kv);
        cr_assert_eq(gr_kv_reserve(kv, ub, n), 0);
        expect_state(kv, before);
        for (int32_t u = 0; u < n; u++)
            gr_kv_place(kv, &ub[u], cells);
        gr_kv_commit(kv);
        cr_assert(gr_kv_cells_pos_max(kv, 0) == 99 && gr_kv_cells_pos_min(kv, 0) <= 92);
        all = tokens(1, 0, 100), n = cut(&all, 20, ub);
        free(before);
        before = state(kv);
        cr_assert_eq(gr_kv_reserve(kv, ub, n), GR_E_KV_FULL, "20 and the windows of both");
        expect_state(kv, before);
        free(before);
        gr_kv_free(&kv);
    }
}

Test(kv_window, refuses_what_would_miss_cells)
{
    struct gr_kv *kv = windowed(12, 1, 2, 8);
    for (int32_t pos = 0; pos < 100; pos += 4)
        store(kv, 0, pos, 4, NULL);
    cr_assert_eq(gr_kv_cells_pos_min(kv, 0), 88);
    cr_assert_eq(rm(kv, 0, 96, -1), 0, "95 sees 88 to 95");
    cr_assert_eq(gr_kv_cells_pos_max(kv, 0), 95);
    char *before = state(kv);
    cr_assert_eq(rm(kv, 0, 94, -1), GR_E_UNSUPPORTED);
    cr_assert_str_eq(
        gr_error(),
        "sequence 0: the next token would see positions from 87 on, but with a window of 8 those "
        "from 0 to 87 may have been evicted; use a full-size window cache (--swa-full)");
    cr_assert_eq(add(kv, 0, 90, -1, -20), GR_E_UNSUPPORTED);
    cr_assert_eq(add(kv, 0, -1, 90, 3), GR_E_UNSUPPORTED, "the gap would come into sight");
    cr_assert_eq(divide(kv, 0, -1, -1, 2), GR_E_UNSUPPORTED);
    cr_assert_eq(cp(kv, 0, 1, 0, 50), GR_E_UNSUPPORTED);
    expect_state(kv, before);
    free(before);
    cr_assert_eq(cp(kv, 0, 1, 88, -1), 0);
    cr_assert_eq(rm(kv, 1, 90, -1), 0, "all that is asked for is there");
    cr_assert_eq(cp(kv, 0, 1, -1, -1), 0);
    cr_assert_eq(rm(kv, 1, 90, -1), GR_E_UNSUPPORTED, "what is missing is inherited");
    cr_assert_eq(add(kv, 0, -1, -1, -80), GR_E_UNSUPPORTED, "of both, which nobody asked for");
    cr_assert_eq(rm(kv, 1, -1, -1), 0);
    cr_assert_eq(add(kv, 0, -1, -1, -80), 0, "a shift as a whole");
    cr_assert_eq(rm(kv, 0, 10, -1), GR_E_UNSUPPORTED);
    cr_assert_eq(rm(kv, 0, -1, -1), 0);
    cr_assert_eq(store(kv, 0, 0, 3, NULL), 0);
    cr_assert_eq(rm(kv, 0, 1, -1), 0, "an empty sequence misses nothing");
    gr_kv_free(&kv);
}

/* Keep a head, remove what follows it, move the rest down, again and again: what is gone of the
 * head and of the rest is known apart. */
Test(kv_window, context_shift)
{
    struct gr_kv *kv = windowed(12, 1, 1, 8);
    for (int32_t pos = 0; pos < 100; pos += 4)
        store(kv, 0, pos, 4, NULL);
    for (int32_t i = 0; i < 20; i++) {
        cr_assert_eq(rm(kv, 0, 4, 52), 0, "%s", gr_error());
        cr_assert_eq(add(kv, 0, 52, -1, -48), 0, "%s", gr_error());
        cr_assert_eq(gr_kv_cells_pos_max(kv, 0), 51);
        for (int32_t pos = 52; pos < 100; pos += 4)
            cr_assert_eq(store(kv, 0, pos, 4, NULL), 0);
    }
    cr_assert_eq(rm(kv, 0, 4, 98), 0);
    cr_assert_eq(add(kv, 0, 98, -1, -94), GR_E_UNSUPPORTED, "the head would come into sight");
    gr_kv_free(&kv);
}

Test(kv_window, abort_tells_what_is_missing)
{
    struct gr_kv *kv = windowed(12, 2, 2, 8);
    struct gr_ubatch ub[10];
    int32_t cells[4];
    store(kv, 0, 0, 12, NULL);
    struct gr_ubatch all = tokens(0, 12, 40);
    cr_assert_eq(cut(&all, 4, ub), 10);
    cr_assert_eq(gr_kv_reserve(kv, ub, 10), 0);
    gr_kv_place(kv, &ub[0], cells);
    gr_kv_abort(kv);
    cr_assert(!gr_kv_incomplete(kv, 0) && gr_kv_cells_pos_max(kv, 0) == 11 &&
                  gr_kv_cells_pos_min(kv, 0) == 4,
              "the first micro-batch takes what nobody sees");
    cr_assert_eq(gr_kv_reserve(kv, ub, 10), 0);
    gr_kv_place(kv, &ub[0], cells);
    gr_kv_place(kv, &ub[1], cells);
    gr_kv_abort(kv);
    cr_assert(gr_kv_incomplete(kv, 0) && gr_kv_cells_pos_min(kv, 0) == 8);
    cr_assert_eq(rm(kv, 0, 9, -1), GR_E_UNSUPPORTED);
    cr_assert_eq(rm(kv, 0, -1, -1), 0);
    cr_assert(!gr_kv_incomplete(kv, 0));
    all = tokens(1, 0, 40);
    cr_assert_eq(gr_kv_reserve(kv, ub, 10), 0);
    for (int32_t u = 0; u < 10; u++)
        gr_kv_place(kv, &ub[u], cells);
    gr_kv_abort(kv);
    cr_assert(!gr_kv_incomplete(kv, 1) && gr_kv_n_used(kv) == 0, "it had nothing to lose");
    gr_kv_free(&kv);
}

/* A sequence that is far behind its window makes room for a copy of what can be seen of it. */
Test(kv_window, copies_in_a_full_pool)
{
    struct gr_kv *kv = windowed(20, 1, 2, 8);
    for (int32_t pos = 0; pos < 100; pos += 4)
        store(kv, 0, pos, 4, NULL);
    cr_assert_eq(gr_kv_n_used(kv), 20);
    cr_assert_eq(dup_seq(kv, 0, 1, -1, -1), 0);
    cr_assert_eq(moves.n, 7);
    cr_assert(gr_kv_cells_pos_min(kv, 1) == 93 && gr_kv_cells_pos_max(kv, 1) == 99);
    cr_assert_eq(gr_kv_n_used(kv), 20);
    cr_assert_eq(rm(kv, 1, 99, -1), GR_E_UNSUPPORTED);
    gr_kv_free(&kv);
}

/* A cell that one of its sequences sees is not evicted. */
Test(kv_window, shared_cells_wait_for_all)
{
    struct gr_kv *kv = windowed(16, 1, 2, 4);
    store(kv, 0, 0, 6, NULL);
    cp(kv, 0, 1, -1, -1);
    for (int32_t pos = 6; pos < 60; pos += 2)
        store(kv, 0, pos, 2, NULL);
    cr_assert_eq(gr_kv_cells_pos_min(kv, 1), 3, "6 of it sees 3, 4 and 5");
    cr_assert_eq(gr_kv_cells_pos_min(kv, 0), 3);
    store(kv, 1, 6, 2, NULL);
    cr_assert(!gr_kv_incomplete(kv, 1) && !gr_kv_incomplete(kv, 0));
    gr_kv_free(&kv);
}

/* ---- grouped positions ---- */

/* The second K is rotated to floor(pos / group) and follows in whole groups. */
Test(kv_group, deltas)
{
    struct gr_kv *kv = cache_of((struct gr_kv_params){
        .n_cell = 32, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .group = 4});
    int32_t near[32], far[32];
    store(kv, 0, 0, 10, NULL);
    add(kv, 0, -1, -1, 3);
    gr_kv_deltas(kv, 32, false, near);
    gr_kv_deltas(kv, 32, true, far);
    for (int32_t i = 0; i < 32; i++)
        cr_assert(near[i] == (i < 10 ? 3 : 0) && far[i] == (i < 10 ? (i + 3) / 4 - i / 4 : 0));
    gr_kv_shifted(kv);
    add(kv, 0, 5, -1, -2);
    gr_kv_deltas(kv, 32, true, far);
    for (int32_t i = 2; i < 10; i++)
        cr_assert_eq(far[i], (i + 1) / 4 - (i + 3) / 4);
    gr_kv_free(&kv);
}

/* ---- memory ---- */

/* Each allocation of an operation, of packing and of reserving may fail: nothing has changed. */
Test(kv_memory, every_allocation_may_fail)
{
    static const enum gr_kv_op_kind kinds[] = {GR_KV_RM,  GR_KV_CP,  GR_KV_DUP,
                                               GR_KV_ADD, GR_KV_DIV, GR_KV_KEEP};
    uint64_t failed = 0;
    for (uint32_t i = 0; i < 4 * GR_COUNT(kinds) + 8; i++) {
        struct gr_kv *kv = windowed(24, i & 1 ? 3 : 1, 3, i & 2 ? 8 : 0);
        struct gr_kv_op o = {kinds[i / 4 % GR_COUNT(kinds)], 0, 2, -1, -1, 2};
        int rc = GR_E_NOMEM_HOST;
        store(kv, 0, 0, 6, NULL);
        store(kv, 1, 0, 5, NULL);
        rm(kv, 0, 0, 2);
        struct gr_ubatch ub = tokens(1, 5, 8);
        char *before = state(kv);
        for (uint64_t k = 1; rc; k++) {
            gr_alloc_fail_at(k, 0);
            if (i < 4 * GR_COUNT(kinds))
                rc = gr_kv_can(kv, &o);
            else
                rc = i < 4 * GR_COUNT(kinds) + 4 ? gr_kv_pack(kv, &moves)
                                                 : gr_kv_reserve(kv, &ub, 1);
            gr_alloc_fail_at(0, 0);
            cr_assert(!rc || (rc == GR_E_NOMEM_HOST && k < 5), "%s", gr_error());
            failed += rc != 0;
            if (rc)
                expect_state(kv, before);
        }
        free(before);
        gr_kv_free(&kv);
    }
    cr_assert_geq(failed, 20);
}

/* A step in a full window has to note what it gives up. */
Test(kv_memory, notes_of_a_dry_run_may_fail)
{
    struct gr_kv *kv = windowed(12, 1, 1, 8);
    store(kv, 0, 0, 12, NULL);
    char *before = state(kv);
    struct gr_ubatch ub = tokens(0, 12, 1);
    gr_alloc_fail_at(1, 0);
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), GR_E_NOMEM_HOST);
    gr_alloc_fail_at(0, 0);
    expect_state(kv, before);
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
    expect_state(kv, before);
    gr_kv_abort(kv);
    free(before);
    gr_kv_free(&kv);
}

/* ---- the dump ---- */

Test(kv_dump, pools_and_windows)
{
    struct gr_kv *kv = windowed(80, 3, 3, 32);
    char *text;
    size_t n;
    store(kv, 0, 0, 70, NULL);
    store(kv, 0, 70, 20, NULL);
    store(kv, 2, 0, 5, NULL);
    FILE *f = open_memstream(&text, &n);
    gr_kv_print(kv, f);
    fclose(f);
    cr_assert_str_eq(
        text,
        "KV cache: 85 of 240 cells used (the first 192), 80 a sequence, window 32\n"
        "      cell  0-9 a-z: in that sequence, #: in a later one, +: in several, .: free\n"
        "         0  0000000000000000 0000000000000000 0000000000000000 0000000000000000\n"
        "        64  0000000000000000\n"
        "       160  22222........... ................ ................ ................\n"
        "       224  ................\n"
        "  sequence\n"
        "         0        80 cells (0 shared), positions 10 to 89\n"
        "                     positions 0 to 9 evicted\n"
        "         2         5 cells (0 shared), positions 0 to 4\n",
        "%s", text);
    free(text);
    gr_kv_free(&kv);
}

/* 8,192 cells of 16 sequences stay readable: no line is wider than 80 columns. */
Test(kv_dump, large)
{
    struct gr_kv *kv = cache(8192, 16, 256, false);
    char *text;
    size_t n, n_line = 0;
    for (int32_t i = 0; i < 160; i++)
        store(kv, i % 16, i / 16 * 40, 40, NULL);
    FILE *f = open_memstream(&text, &n);
    gr_kv_print(kv, f);
    fclose(f);
    for (char *p = text, *end; *p; p = end + 1, n_line++) {
        end = strchr(p, '\n');
        cr_assert_leq(end - p, 80);
    }
    cr_assert(n_line > 16 && n_line < 140, "%zu", n_line);
    free(text);
    gr_kv_free(&kv);
}
