/* The shapes and numbers of the published masks, from the dense form: 0 where a token sees a cell,
 * -infinity elsewhere (item numbers: README.md). */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "help.h"

static float mask[64 * 1024];

/* Gives the tokens cells and draws their mask; returns the columns. Fewer than 64 rows and 1024
 * columns. */
static int32_t draw(struct gr_kv *kv, struct gr_ubatch ub, bool alibi, int32_t n_pad_row)
{
    static int32_t cells[MOST];
    cr_assert_eq(gr_kv_reserve(kv, &ub, 1), 0);
    gr_kv_place(kv, &ub, cells);
    int32_t n_kv = gr_kv_n_kv(kv);
    gr_kv_mask_dense(kv, &ub, n_kv, true, alibi, n_pad_row, mask);
    gr_kv_commit(kv);
    return n_kv;
}

/* Columns [lo, hi) of a row are 0, the others -infinity. */
static void expect_row(int32_t n_kv, int32_t row, int32_t lo, int32_t hi)
{
    for (int32_t c = 0; c < n_kv; c++)
        cr_assert_eq(mask[row * n_kv + c], c >= lo && c < hi ? 0 : -INFINITY,
                     "row %d, column %d: %g", row, c, (double)mask[row * n_kv + c]);
}

Test(masks, S1_13_S1_15_two_tokens)
{
    struct gr_kv *kv = cache(8192, 1, 32, false);
    cr_assert_eq(draw(kv, tokens(0, 0, 2), false, 32), 32);
    expect_row(32, 0, 0, 1);
    expect_row(32, 1, 0, 2);
    for (int32_t r = 2; r < 32; r++)
        expect_row(32, r, 0, 0);
    gr_kv_free(&kv);
}

/* 32 columns, PAD(6, 32) = 32 rows, of which the last 26 see nothing; row r sees 0 to r. */
Test(masks, S4_13_S4_14_S4_22_six_tokens)
{
    struct gr_kv *kv = cache(8192, 1, 32, false);
    cr_assert_eq(draw(kv, tokens(0, 0, 6), false, 32), 32);
    for (int32_t r = 0; r < 32; r++)
        expect_row(32, r, 0, r < 6 ? r + 1 : 0);
    gr_kv_free(&kv);
}

/* A prompt of 36 tokens in 32768 cells: 256 columns, not 32768, and as many rows as tokens. */
Test(masks, S3_13_columns_are_the_used_range)
{
    struct gr_kv *kv = cache(32768, 1, 256, false);
    mask[36 * 256] = 7;
    cr_assert_eq(draw(kv, tokens(0, 0, 36), false, 1), 256);
    for (int32_t r = 0; r < 36; r++)
        expect_row(256, r, 0, r + 1);
    cr_expect_eq(mask[36 * 256], 7, "no row more");
    gr_kv_free(&kv);
}

/* Not where the token is n_swa or more positions further. */
Test(masks, S1_14_window)
{
    struct gr_kv *kv = cache_of((struct gr_kv_params){
        .n_cell = 256, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .window = 4});
    cr_assert_eq(draw(kv, tokens(0, 0, 10), false, 1), 32);
    for (int32_t r = 0; r < 10; r++)
        expect_row(32, r, r < 4 ? 0 : r - 3, r + 1);
    gr_kv_free(&kv);
}

/* Windows side by side: where the token's own begins. */
Test(masks, windows_side_by_side)
{
    struct gr_kv *kv = cache_of((struct gr_kv_params){
        .n_cell = 256, .n_kv_pool = 1, .n_seq_max = 1, .n_pad = 32, .window = 4, .chunked = true});
    cr_assert_eq(draw(kv, tokens(0, 0, 10), false, 1), 32);
    for (int32_t r = 0; r < 10; r++)
        expect_row(32, r, r / 4 * 4, r + 1);
    gr_kv_free(&kv);
}

/* With ALiBi the distance instead of 0. */
Test(masks, S3_14_distances)
{
    struct gr_kv *kv = cache(256, 1, 32, false);
    cr_assert_eq(draw(kv, tokens(0, 5, 8), true, 1), 32);
    for (int32_t r = 0; r < 8; r++)
        for (int32_t c = 0; c < 32; c++)
            cr_assert_eq(mask[r * 32 + c], c <= r ? (float)(c - r) : -INFINITY);
    gr_kv_free(&kv);
}

/* Two sequences, each with a pool of its own: a token sees cells of its pool alone. */
Test(masks, C8_pools_of_their_own)
{
    struct gr_kv *kv = cache_of(
        (struct gr_kv_params){.n_cell = 256, .n_kv_pool = 2, .n_seq_max = 2, .n_pad = 256});
    store(kv, 0, 0, 5, NULL);
    cr_assert_eq(draw(kv, tokens(1, 0, 3), false, 1), 512);
    for (int32_t r = 0; r < 3; r++)
        expect_row(512, r, 256, 256 + r + 1);
    gr_kv_free(&kv);
}
