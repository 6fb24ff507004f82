/* gr_batch_check: defaults that it fills in, batches that it accepts and refuses; every refusal
 * names the fault. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "batch/batch.h"
#include "gr/status.h"

#define N_SEQ 4

/* A cache that holds only what the check asks about. */
struct fake {
    int32_t pos_max[N_SEQ], content[N_SEQ], pos_end[N_SEQ];
};

static int32_t fake_pos_max(const void *cache, int32_t seq)
{
    cr_assert(seq >= 0 && seq < N_SEQ);
    return ((const struct fake *)cache)->pos_max[seq];
}

static int32_t fake_pos_end(const void *cache, int32_t seq)
{
    return ((const struct fake *)cache)->pos_end[seq];
}

static bool fake_same(const void *cache, int32_t a, int32_t b)
{
    return ((const struct fake *)cache)->content[a] == ((const struct fake *)cache)->content[b];
}

/* Sequence 0 ends at 9, 1 and 3 are empty, 2 ends at 9 with other cells than 0: an image with rows
 * to 13. */
static const struct fake holds = {{9, -1, 9, -1}, {1, 0, 2, 0}, {10, 0, 14, 0}};
static const struct gr_batch_limits limits = {
    100, 8, N_SEQ, fake_pos_max, fake_same, &holds, false, fake_pos_end, 0};

static struct gr_full_batch full;

static int check(const struct gr_batch *b)
{
    int rc = gr_batch_check(&full, b, &limits);
    if (rc)
        cr_assert_eq(full.n_tok, 0);
    return rc;
}

#define I(...) ((const int32_t[]){__VA_ARGS__})

static void refuse(struct gr_batch b, const char *message)
{
    cr_assert_eq(check(&b), GR_E_INVALID, "%s", message);
    cr_assert_str_eq(gr_error(), message);
}

/* Batches of vectors in place of tokens. */
Test(batch, vectors)
{
    static const float v[] = {1, 2, 3, NAN};
    struct gr_batch_limits two = limits;
    struct gr_batch b = {.n_tok = 1, .embd = v, .seq = I(1)};
    cr_assert_eq(gr_batch_check(&full, &b, &limits), GR_E_UNSUPPORTED);
    cr_assert_str_eq(gr_error(), "batch: this model takes tokens alone, no vectors");
    two.n_embd = 2;
    cr_assert_eq(gr_batch_check(&full, &b, &two), 0, "%s", gr_error());
    cr_expect(full.embd == v && full.token[0] == 0 && full.pos[0] == 0);
    b.n_tok = 2, b.seq = I(1, 1);
    cr_assert_eq(gr_batch_check(&full, &b, &two), GR_E_INVALID);
    cr_assert_str_eq(gr_error(), "batch token 1: a vector of finite numbers expected, nan found");
    b = (struct gr_batch){.n_tok = 1, .token = I(7), .seq = I(1)};
    cr_assert_eq(gr_batch_check(&full, &b, &two), 0);
    cr_expect_null(full.embd, "those of the batch before");
}

Test(batch, defaults)
{
    struct gr_batch b = {.n_tok = 3, .token = I(5, 6, 7)};
    cr_assert_eq(check(&b), 0, "%s", gr_error());
    cr_assert(full.n_tok == 3 && full.n_out == 1);
    cr_assert_arr_eq(full.token, I(5, 6, 7), 12);
    cr_assert_arr_eq(full.pos, I(10, 11, 12), 12);
    cr_assert_arr_eq(full.n_seq, I(1, 1, 1), 12);
    cr_assert_arr_eq(full.seq, I(0, 0, 0), 12);
    cr_assert_arr_eq(full.seq_at, I(0, 1, 2), 12);
    cr_assert_arr_eq(full.logits, ((int8_t[]){0, 0, 1}), 3);
    void *memory = full.memory;
    b = (struct gr_batch){.n_tok = 2, .token = I(1, 2), .seq = I(1, 1), .logits = (int8_t[]){0, 0}};
    cr_assert_eq(check(&b), 0);
    cr_assert(full.memory == memory && full.n_out == 0, "the memory is used again");
    cr_assert_arr_eq(full.pos, I(0, 1), 8);
    b = (struct gr_batch){.n_tok = 4,
                          .token = I(1, 2, 3, 4),
                          .seq = I(1, 0, 2, 1),
                          .logits = (int8_t[]){1, -1, 0, 7}};
    cr_assert_eq(check(&b), 0);
    cr_assert_arr_eq(full.pos, I(0, 10, 10, 1), 16);
    cr_assert_eq(full.n_out, 3);
    gr_batch_fini(&full);
    gr_batch_fini(&full);
}

Test(batch, several_sequences_of_a_token)
{
    struct gr_batch b = {.n_tok = 3, .token = I(1, 2, 3), .pos = I(6, 7, 8)};
    b.n_seq = I(2, 2, 1), b.seq = I(1, 3, 3, 1, 3);
    cr_assert_eq(check(&b), 0, "%s", gr_error());
    cr_assert_arr_eq(full.seq_at, I(0, 2, 4), 12);
    cr_assert_arr_eq(full.seq, b.seq, 20);
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .n_seq = I(2), .seq = I(0, 2)},
           "batch token 0: sequences with the same tokens before it expected, 0 and 2 differ");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .n_seq = I(2), .seq = I(1, 0)},
           "batch token 0: sequences with the same tokens before it expected, 1 and 0 differ");
    refuse(
        (struct gr_batch){
            .n_tok = 3, .token = I(1, 2, 3), .n_seq = I(1, 1, 2), .seq = I(1, 3, 1, 3)},
        "batch token 2: sequences with the same tokens before it expected, 1 and 3 differ");
    gr_batch_fini(&full);
}

Test(batch, nonsense)
{
    refuse((struct gr_batch){.n_tok = 0, .token = I(1)}, "batch: 1 to 8 tokens expected, 0 found");
    refuse((struct gr_batch){.n_tok = 9, .token = I(1)}, "batch: 1 to 8 tokens expected, 9 found");
    refuse((struct gr_batch){.n_tok = INT32_MIN, .token = I(1)},
           "batch: 1 to 8 tokens expected, -2147483648 found");
    refuse((struct gr_batch){.n_tok = INT32_MAX, .token = I(1)},
           "batch: 1 to 8 tokens expected, 2147483647 found");
    refuse((struct gr_batch){.n_tok = 1}, "batch: token ids or vectors expected, NULL found");
    refuse((struct gr_batch){.n_tok = 2, .token = I(1, 100)},
           "batch token 1: id: 0 to 99 expected, 100 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(-1)},
           "batch token 0: id: 0 to 99 expected, -1 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(INT32_MIN)},
           "batch token 0: id: 0 to 99 expected, -2147483648 found");
    refuse((struct gr_batch){.n_tok = 2, .token = I(1, 1), .seq = I(0, 4)},
           "batch token 1: sequence: 0 to 3 expected, 4 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .seq = I(-1)},
           "batch token 0: sequence: 0 to 3 expected, -1 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .n_seq = I(0), .seq = I(0)},
           "batch token 0: number of sequences: 1 to 4 expected, 0 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .n_seq = I(5), .seq = I(0, 1, 2, 3, 0)},
           "batch token 0: number of sequences: 1 to 4 expected, 5 found");
    refuse((struct gr_batch){.n_tok = 2, .token = I(1, 1), .n_seq = I(1, INT32_MAX), .seq = I(0)},
           "batch token 1: number of sequences: 1 to 4 expected, 2147483647 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .n_seq = I(INT32_MIN), .seq = I(0)},
           "batch token 0: number of sequences: 1 to 4 expected, -2147483648 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .n_seq = I(2)},
           "batch token 0: number of sequences, none named: 1 to 1 expected, 2 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .n_seq = I(3), .seq = I(1, 3, 1)},
           "batch token 0: each sequence once expected, 1 found twice");
    gr_batch_fini(&full);
}

Test(batch, positions)
{
    struct gr_batch b = {.n_tok = 1, .token = I(1), .pos = I(123), .seq = I(3)};
    cr_assert_eq(check(&b), 0, "any start for an empty sequence");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .pos = I(0)},
           "batch token 0: position 10 expected, as sequence 0 ends at 9, 0 found");
    refuse((struct gr_batch){.n_tok = 2, .token = I(1, 1), .pos = I(10, 12)},
           "batch token 1: position 11 expected, as sequence 0 ends at 10, 12 found");
    refuse((struct gr_batch){.n_tok = 2, .token = I(1, 1), .pos = I(10, 10)},
           "batch token 1: position 11 expected, as sequence 0 ends at 10, 10 found");
    refuse(
        (struct gr_batch){.n_tok = 3, .token = I(1, 1, 1), .pos = I(5, 10, 7), .seq = I(1, 0, 1)},
        "batch token 2: position 6 expected, as sequence 1 ends at 5, 7 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .pos = I(-1), .seq = I(1)},
           "batch token 0: position: 0 to 2147483646 expected, -1 found");
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .pos = I(INT32_MIN), .seq = I(1)},
           "batch token 0: position: 0 to 2147483646 expected, -2147483648 found");
    refuse(
        (struct gr_batch){
            .n_tok = 2, .token = I(1, 1), .pos = I(GR_POS_MAX, INT32_MAX), .seq = I(1, 1)},
        "batch token 1: position: 0 to 2147483646 expected, 2147483647 found");
    b = (struct gr_batch){.n_tok = 1, .token = I(1), .pos = I(GR_POS_MAX), .seq = I(1)};
    cr_assert_eq(check(&b), 0);
    gr_batch_fini(&full);
}

/* Random arrays, most of them nonsense: what is accepted obeys the rules, stated here once more
 * token by token. */
Test(batch, random)
{
    struct gr_rng r = gr_rng_new(3);
    int accepted = 0;
    for (int round = 0; round < 100000; round++) {
        int32_t token[8], pos[8], n_seq[8], seq[8 * N_SEQ], n = (int32_t)gr_rng_below(&r, 5),
                                                            at = 0, next[N_SEQ];
        bool want = n > 0;
        for (int32_t s = 0; s < N_SEQ; s++)
            next[s] = holds.pos_max[s] < 0 ? -1 : holds.pos_max[s] + 1;
        for (int32_t i = 0; i < n; i++) {
            token[i] = (int32_t)gr_rng_below(&r, 102) - 1;
            seq[at] = (int32_t)gr_rng_below(&r, N_SEQ + 1) - !gr_rng_below(&r, 20);
            n_seq[i] = 1;
            bool known = seq[at] >= 0 && seq[at] < N_SEQ;
            pos[i] = known && next[seq[at]] >= 0 && gr_rng_below(&r, 5)
                         ? next[seq[at]]
                         : (int32_t)gr_rng_below(&r, 12) - 1;
            want = want && token[i] >= 0 && token[i] < 100 && known && pos[i] >= 0;
            want = want && (next[seq[at]] < 0 || next[seq[at]] == pos[i]);
            if (known)
                next[seq[at]] = pos[i] + 1;
            at++;
        }
        struct gr_batch b = {n,   token, pos,  gr_rng_below(&r, 2) ? n_seq : NULL,
                             seq, NULL,  NULL, NULL};
        cr_assert_eq(check(&b), want ? 0 : GR_E_INVALID, "round %d: %s", round, gr_error());
        accepted += want;
    }
    cr_assert_gt(accepted, 10000);
    gr_batch_fini(&full);
}

Test(batch, no_memory)
{
    struct gr_batch b = {.n_tok = 2, .token = I(1, 2)};
    gr_alloc_fail_at(1, 0);
    cr_assert_eq(check(&b), GR_E_NOMEM_HOST);
    gr_alloc_fail_at(0, 0);
    cr_assert_eq(check(&b), 0);
    gr_batch_fini(&full);
}

/* Tokens of an image share a position; a text goes on behind all of its positions. */
Test(batch, rows_and_columns)
{
    struct gr_batch_limits two = limits;
    two.pos_2d = true;
    struct gr_batch b = {.n_tok = 4, .token = I(1, 2, 3, 4), .pos = I(10, 10, 10, 12)};
    b.pos_yx = I(10, 10, 11, 12, 10, 11, 10, 12);
    cr_assert_eq(gr_batch_check(&full, &b, &two), 0, "%s", gr_error());
    cr_assert(full.pos_2d);
    cr_assert_arr_eq(full.pos, b.pos, 16);
    cr_assert_arr_eq(full.row, I(10, 10, 11, 12), 16);
    cr_assert_arr_eq(full.col, I(10, 11, 10, 12), 16);
    b.pos = I(9, 9, 9, 9);
    cr_assert_eq(gr_batch_check(&full, &b, &two), 0, "the image may go on where the last one is");
    b = (struct gr_batch){.n_tok = 3, .token = I(1, 2, 3), .pos = I(14, 15, 10)};
    b.seq = I(2, 2, 0);
    cr_assert_eq(gr_batch_check(&full, &b, &two), 0, "%s", gr_error());
    cr_assert(!full.pos_2d);
    cr_assert_arr_eq(full.row, I(14, 15, 10), 12);
    cr_assert_arr_eq(full.col, I(14, 15, 10), 12);
    b.pos = NULL;
    cr_assert_eq(gr_batch_check(&full, &b, &two), 0, "%s", gr_error());
    cr_assert_arr_eq(full.pos, I(14, 15, 10), 12);
    gr_batch_fini(&full);
}

static void refuse_2d(struct gr_batch b, const char *message)
{
    struct gr_batch_limits two = limits;
    two.pos_2d = true;
    cr_assert_eq(gr_batch_check(&full, &b, &two), GR_E_INVALID, "%s", message);
    cr_assert_str_eq(gr_error(), message);
    cr_assert_eq(full.n_tok, 0);
}

Test(batch, wrong_rows_and_columns)
{
    refuse((struct gr_batch){.n_tok = 1, .token = I(1), .pos = I(10), .pos_yx = I(10, 10)},
           "batch: no rows and columns of tokens expected, as the model has no such positions, "
           "some found");
    refuse_2d((struct gr_batch){.n_tok = 1, .token = I(1), .pos_yx = I(10, 10)},
              "batch: positions beside rows and columns expected, NULL found");
    struct gr_batch b = {.n_tok = 2, .token = I(1, 2), .pos = I(12, 11)};
    b.pos_yx = I(12, 12, 12, 12);
    refuse_2d(b, "batch token 1: position 12 or more expected, as sequence 0 ends at 12, 11 found");
    b.pos = I(8, 9);
    refuse_2d(b, "batch token 0: position 9 or more expected, as sequence 0 ends at 9, 8 found");
    b.pos = I(10, 10);
    b.pos_yx = I(0, -1, 0, 0);
    refuse_2d(b, "batch token 1: row: 0 to 2147483646 expected, -1 found");
    b.pos_yx = I(0, 0, 0, INT32_MAX);
    refuse_2d(b, "batch token 1: column: 0 to 2147483646 expected, 2147483647 found");
    b.pos_yx = NULL;
    refuse_2d(b, "batch token 1: position 11 expected, as sequence 0 ends at 10, 10 found");
    b.seq = I(2, 2), b.pos = I(13, 14);
    refuse_2d(b, "batch token 0: position 14 expected, as sequence 2 ends at 13, 13 found");
    gr_batch_fini(&full);
}
