/* Rows of recurrent states: the traces by their numbers, then random and exhaustive operations
 * against a model in which every row holds what its state stands for. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"
#include "kv/recurrent.h"

#define N_SEQ 5
#define N_TOK 24
#define N_ROW 64

#ifdef NDEBUG
#define THOROUGH true
#else
#define THOROUGH false /* every operation checks everything by itself, and sanitizers are slow */
#endif

#define I(...) ((const int32_t[]){__VA_ARGS__})

static struct gr_full_batch full;

static int32_t limit_pos_max(const void *rs, int32_t seq)
{
    return gr_rs_pos_max(rs, seq);
}

static int32_t limit_pos_end(const void *rs, int32_t seq)
{
    return gr_rs_pos_max(rs, seq) + 1;
}

static bool limit_same(const void *rs, int32_t a, int32_t b)
{
    return gr_rs_seq_same(rs, a, b);
}

static struct gr_rs *make(uint32_t n_seq_max, uint32_t n_rollback)
{
    struct gr_rs *rs;
    cr_assert_eq(gr_rs_new(&rs, &(struct gr_rs_params){n_seq_max, n_rollback}), 0, "%s",
                 gr_error());
    return rs;
}

static int check(const struct gr_rs *rs, int32_t n_seq_max, const struct gr_batch *b)
{
    struct gr_batch_limits limits = {100,  100,           n_seq_max, limit_pos_max, limit_same, rs,
                                     true, limit_pos_end, 0};
    return gr_batch_check(&full, b, &limits);
}

static int op(struct gr_rs *rs, enum gr_kv_op_kind kind, int32_t seq, int32_t dst, int32_t p0,
              int32_t p1, int32_t by)
{
    struct gr_kv_op o = {kind, seq, dst, p0, p1, by};
    int rc = gr_rs_can(rs, &o);
    if (!rc)
        gr_rs_do(rs, &o);
    cr_assert_eq(gr_rs_check(rs), 0, "%s", gr_error());
    return rc;
}

static int rm(struct gr_rs *rs, int32_t seq, int32_t p0, int32_t p1)
{
    return op(rs, GR_KV_RM, seq, 0, p0, p1, 0);
}

static int cp(struct gr_rs *rs, int32_t src, int32_t dst, int32_t p0, int32_t p1)
{
    return op(rs, GR_KV_CP, src, dst, p0, p1, 0);
}

/* n tokens of one sequence in one micro-batch; src and dst in a pair. */
struct rows {
    int32_t src, dst;
};

static struct rows step(struct gr_rs *rs, int32_t seq, int32_t n)
{
    static int32_t token[100], seqs[100];
    int32_t tok[100];
    struct gr_ubatch ub[100];
    struct rows r;
    for (int32_t i = 0; i < n; i++)
        seqs[i] = seq;
    struct gr_batch b = {.n_tok = n, .token = token, .seq = seqs};
    cr_assert_eq(check(rs, seq + 1, &b), 0, "%s", gr_error());
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, n, 0, tok, ub), 1);
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), 0, "%s", gr_error());
    gr_rs_place(rs, ub, &r.src, &r.dst);
    gr_rs_commit(rs);
    cr_assert_eq(gr_rs_check(rs), 0, "%s", gr_error());
    gr_batch_fini(&full);
    return r;
}

static void expect_refused(int rc, const char *message)
{
    cr_assert_eq(rc, GR_E_UNSUPPORTED, "%d", rc);
    cr_assert_str_eq(gr_error(), message);
}

/* ---- traces ---- */

/* S4-29: a row a sequence, not a token. With several sequences there are half as many more. */
Test(recurrent, rows_and_parameters)
{
    struct gr_rs *rs;
    cr_assert_eq(gr_rs_n_row(&(struct gr_rs_params){1, 0}), 1);
    cr_assert_eq(gr_rs_n_row(&(struct gr_rs_params){4, 0}), 6);
    cr_assert_eq(gr_rs_n_row(&(struct gr_rs_params){4, 3}), 16);
    cr_assert_eq(gr_rs_new(&rs, &(struct gr_rs_params){0, 0}), GR_E_INVALID);
    cr_assert_eq(gr_rs_new(&rs, &(struct gr_rs_params){GR_SEQ_MAX + 1, 0}), GR_E_INVALID);
    cr_assert_eq(gr_rs_new(&rs, &(struct gr_rs_params){1, GR_RS_ROLLBACK_MAX + 1}), GR_E_INVALID);
    cr_assert_null(rs);
    rs = make(GR_SEQ_MAX, 2);
    cr_assert_eq(gr_rs_n_rollback(rs), 2);
    cr_assert_eq(gr_rs_n_used(rs), 0);
    step(rs, 0, 50);
    cr_assert_eq(gr_rs_n_used(rs), 1);
    gr_rs_free(&rs);
    gr_rs_free(&rs);
}

/* S4-36, S4-37: one sequence of 5 tokens is one row at position 4 that came from nothing; the
 * others are free. */
Test(recurrent, one_sequence)
{
    struct gr_rs *rs = make(2, 0);
    struct rows r = step(rs, 0, 5);
    cr_assert(r.src == -1 && r.dst == 0 && gr_rs_tail(rs, 0) == 0 && gr_rs_tail(rs, 1) == -1);
    struct gr_rs_row row = gr_rs_row(rs, 0), none = gr_rs_row(rs, 1);
    cr_assert(row.pos == 4 && row.n_seq == 1 && row.seq == 0 && !row.snapshot);
    cr_assert(none.pos == -1 && none.n_seq == 0 && none.seq == -1 && !none.snapshot);
    cr_assert(gr_rs_pos_min(rs, 0) == 4 && gr_rs_pos_max(rs, 0) == 4);
    cr_assert(gr_rs_pos_min(rs, 1) == -1 && gr_rs_pos_max(rs, 7) == -1);
    gr_rs_free(&rs);
}

/* S4-34 and C11: 5 tokens of sequence 0 and 4 of sequence 1 that begins at 5. Which of the two is
 * first makes no difference to what each reads and writes: the trace's two cells, whatever their
 * numbers. */
static void run_tails(const int32_t *seq, const int32_t *pos)
{
    struct gr_rs *rs = make(2, 0);
    int32_t token[9] = {0}, tok[9], src[2], dst[2];
    struct gr_ubatch ub[9];
    struct gr_batch b = {.n_tok = 9, .token = token, .seq = seq, .pos = pos};
    cr_assert_eq(check(rs, 2, &b), 0, "%s", gr_error());
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 512, 0, tok, ub), 2);
    cr_assert_eq(gr_rs_reserve(rs, ub, 2), 0);
    gr_rs_place(rs, &ub[0], src, dst);
    int32_t t0 = gr_rs_tail(rs, 0), t1 = gr_rs_tail(rs, 1);
    cr_assert(src[0] == -1 && src[1] == -1 && t0 != t1);
    cr_assert(gr_rs_row(rs, (uint32_t)t0).pos == 3 && gr_rs_row(rs, (uint32_t)t0).seq == 0);
    cr_assert(gr_rs_row(rs, (uint32_t)t1).pos == 8 && gr_rs_row(rs, (uint32_t)t1).seq == 1);
    cr_assert(t0 == 0 && t1 == 1, "increasing ids");
    gr_rs_place(rs, &ub[1], src, dst);
    cr_assert(src[0] == t0 && dst[0] == t0, "it owns its row");
    cr_assert(gr_rs_row(rs, (uint32_t)t0).pos == 4 && gr_rs_tail(rs, 1) == t1);
    cr_assert_eq(gr_rs_row(rs, (uint32_t)t1).pos, 8);
    gr_rs_commit(rs);
    cr_assert_eq(gr_rs_n_used(rs), 2);
    gr_rs_free(&rs);
    gr_batch_fini(&full);
}

Test(recurrent, tails_of_two_sequences)
{
    run_tails(I(0, 0, 0, 0, 0, 1, 1, 1, 1), I(0, 1, 2, 3, 4, 5, 6, 7, 8));
    run_tails(I(1, 1, 1, 1, 0, 0, 0, 0, 0), I(5, 6, 7, 8, 0, 1, 2, 3, 4));
    run_tails(I(1, 0, 1, 0, 1, 0, 0, 1, 0), I(5, 0, 6, 1, 7, 2, 3, 8, 4));
}

/* S4-33: equal splits only; a sequence too large is refused with the batch; the other sequences of
 * a token leave the states they had. */
Test(recurrent, finding_rows)
{
    struct gr_rs *rs = make(3, 0);
    int32_t token[2] = {0}, tok[2], src, dst;
    struct gr_ubatch ub[2];
    struct gr_batch b = {.n_tok = 2, .token = token, .seq = I(0, 3)};
    cr_assert_eq(check(rs, 3, &b), GR_E_INVALID);
    cr_assert_str_eq(gr_error(), "batch token 1: sequence: 0 to 2 expected, 3 found");
    b.seq = I(0, 0);
    cr_assert_eq(check(rs, 3, &b), 0);
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_SIMPLE, 2, 0, tok, ub), 1);
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), GR_E_INTERNAL);
    step(rs, 0, 4);
    cr_assert_eq(cp(rs, 0, 2, -1, -1), 0);
    b = (struct gr_batch){.n_tok = 1, .token = token, .n_seq = I(2), .seq = I(2, 0)};
    cr_assert_eq(check(rs, 3, &b), 0, "%s", gr_error());
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 2, 0, tok, ub), 1);
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), 0);
    gr_rs_place(rs, ub, &src, &dst);
    gr_rs_commit(rs);
    cr_assert(gr_rs_tail(rs, 0) == dst && gr_rs_tail(rs, 2) == dst && gr_rs_n_used(rs) == 1);
    cr_assert_eq(gr_rs_row(rs, (uint32_t)dst).n_seq, 2);
    gr_rs_free(&rs);
    gr_batch_fini(&full);
}

/* S4-35: what ends before the end of the sequence cannot be removed; all of it can. */
Test(recurrent, removal)
{
    struct gr_rs *rs = make(2, 0);
    step(rs, 0, 5);
    expect_refused(rm(rs, 0, 0, 2),
                   "sequence 0: positions 0 to 1 cannot be removed alone, as the recurrent state "
                   "after position 4 stands for all up to it; remove the whole sequence and run "
                   "what is to stay again");
    expect_refused(rm(rs, 0, 2, -1),
                   "sequence 0: positions 2 to 4 cannot be removed alone, as the recurrent state "
                   "after position 4 stands for all up to it; remove the whole sequence and run "
                   "what is to stay again");
    cr_assert_eq(rm(rs, 0, 1, 3), GR_E_UNSUPPORTED);
    cr_assert_eq(rm(rs, 0, 4, 5), GR_E_UNSUPPORTED);
    cr_assert_eq(rm(rs, -1, 4, 5), GR_E_UNSUPPORTED, "one of all cannot");
    cr_assert(gr_rs_tail(rs, 0) == 0 && gr_rs_pos_max(rs, 0) == 4, "nothing changed");
    cr_assert_eq(rm(rs, 0, 5, -1), 0, "nothing there");
    cr_assert_eq(rm(rs, 0, 5, 9), 0);
    cr_assert_eq(rm(rs, 0, 3, 3), 0);
    cr_assert_eq(rm(rs, 1, 0, 2), 0);
    cr_assert_eq(gr_rs_tail(rs, 0), 0);
    cr_assert_eq(rm(rs, 0, 0, 5), 0, "%s", gr_error());
    cr_assert(gr_rs_tail(rs, 0) == -1 && gr_rs_n_used(rs) == 0);
    step(rs, 0, 5), step(rs, 1, 3);
    cr_assert_eq(rm(rs, -1, -1, -1), 0);
    cr_assert_eq(gr_rs_n_used(rs), 0);
    cr_assert_eq(rm(rs, 2, -1, -1), GR_E_INVALID);
    cr_assert_str_eq(gr_error(), "sequence: 0 to 1 expected, 2 found");
    gr_rs_free(&rs);
}

/* S4-36: a shared row is left alone by whoever goes on; the last one has it to itself. */
Test(recurrent, copy_on_write)
{
    struct gr_rs *rs = make(3, 0);
    cr_assert_eq(cp(rs, 0, 1, -1, -1), 0, "of nothing");
    step(rs, 0, 5);
    cr_assert_eq(cp(rs, 0, 1, -1, -1), 0);
    cr_assert_eq(op(rs, GR_KV_DUP, 1, 2, 0, 5, 0), 0);
    cr_assert_eq(cp(rs, 1, 1, 2, 3), 0, "to itself");
    cr_assert_eq(cp(rs, 1, 0, -1, -1), 0, "the same already");
    cr_assert(gr_rs_n_used(rs) == 1 && gr_rs_row(rs, 0).n_seq == 3 && gr_rs_seq_same(rs, 0, 2));
    struct rows r = step(rs, 1, 2);
    cr_assert(r.src == 0 && r.dst == 1 && gr_rs_tail(rs, 0) == 0 && gr_rs_tail(rs, 1) == 1);
    cr_assert(!gr_rs_seq_same(rs, 0, 1) && gr_rs_pos_max(rs, 1) == 6);
    expect_refused(cp(rs, 0, 1, -1, -1),
                   "sequence 1 has a recurrent state of its own, which cannot be merged with that "
                   "of sequence 0: remove it first");
    expect_refused(cp(rs, 0, 1, 0, 3),
                   "sequence 0: positions 0 to 2 cannot be copied alone, as the recurrent state "
                   "after position 4 stands for all up to it; run their tokens in the other "
                   "sequence");
    cr_assert_eq(cp(rs, 0, 1, 1, -1), GR_E_UNSUPPORTED);
    cr_assert_eq(cp(rs, 0, 1, 5, -1), 0, "nothing there");
    cr_assert_eq(cp(rs, 0, 3, -1, -1), GR_E_INVALID);
    cr_assert_eq(cp(rs, 3, 0, -1, -1), GR_E_INVALID);
    r = step(rs, 0, 1);
    cr_assert(r.src == 0 && r.dst == 2);
    cr_assert_eq(op(rs, GR_KV_KEEP, 2, 0, 0, 0, 0), 0);
    cr_assert(gr_rs_n_used(rs) == 1 && gr_rs_pos_max(rs, 2) == 4 && gr_rs_tail(rs, 0) == -1);
    gr_rs_free(&rs);
}

/* Two pairs that share a state each and go on together: four rows to write besides two to read. */
Test(recurrent, all_share_and_go_on)
{
    struct gr_rs *rs = make(4, 0);
    int32_t token[4] = {0}, tok[4], src[4], dst[4];
    struct gr_ubatch ub[4];
    step(rs, 0, 3), step(rs, 2, 5);
    cr_assert_eq(cp(rs, 0, 1, -1, -1), 0);
    cr_assert_eq(cp(rs, 2, 3, -1, -1), 0);
    struct gr_batch b = {.n_tok = 4, .token = token, .seq = I(0, 1, 2, 3)};
    cr_assert_eq(check(rs, 4, &b), 0);
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 4, 0, tok, ub), 1);
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), 0);
    gr_rs_place(rs, ub, src, dst);
    cr_assert_arr_eq(src, I(0, 0, 1, 1), 16);
    cr_assert_arr_eq(dst, I(2, 3, 4, 5), 16);
    gr_rs_commit(rs);
    cr_assert_eq(gr_rs_n_used(rs), 4);
    gr_rs_free(&rs);
    gr_batch_fini(&full);
}

/* C12: as many tokens as there are snapshots can be taken back, if they came one at a time. */
Test(recurrent, rollback)
{
    struct gr_rs *rs = make(2, 3);
    step(rs, 0, 10); /* 0 to 9 */
    cr_assert_eq(gr_rs_pos_min(rs, 0), 9);
    for (int i = 0; i < 5; i++)
        step(rs, 0, 1); /* 10 to 14 */
    cr_assert(gr_rs_pos_min(rs, 0) == 11 && gr_rs_pos_max(rs, 0) == 14);
    cr_assert_eq(gr_rs_n_used(rs), 4);
    int32_t at12 = -1;
    for (uint32_t r = 0; r < 8; r++)
        at12 = gr_rs_row(rs, r).pos == 12 ? (int32_t)r : at12;
    cr_assert(gr_rs_row(rs, (uint32_t)at12).snapshot && gr_rs_row(rs, (uint32_t)at12).seq == 0);
    expect_refused(rm(rs, 0, 11, -1),
                   "sequence 0: positions 11 to 14 cannot be removed alone, as the recurrent state "
                   "after position 14 stands for all up to it; states to turn back to: after "
                   "positions 11 to 13; remove the whole sequence and run what is to stay again");
    cr_assert_eq(rm(rs, 0, 0, 2), GR_E_UNSUPPORTED, "an honest no for a prefix");
    cr_assert_eq(rm(rs, 0, 13, 14), GR_E_UNSUPPORTED, "and for the middle");
    cr_assert_eq(cp(rs, 0, 1, 0, 13), 0, "a copy of what a snapshot stands for");
    cr_assert(gr_rs_tail(rs, 1) == at12 && gr_rs_pos_min(rs, 1) == 11);
    cr_assert_eq(rm(rs, 0, 13, -1), 0, "%s", gr_error());
    cr_assert(gr_rs_tail(rs, 0) == at12 && gr_rs_pos_max(rs, 0) == 12 && gr_rs_seq_same(rs, 0, 1));
    struct rows r = step(rs, 0, 1);
    cr_assert(r.src == at12 && r.dst != at12);
    step(rs, 0, 4);
    cr_assert(gr_rs_pos_min(rs, 0) == 17 && gr_rs_pos_max(rs, 0) == 17, "nothing in between");
    cr_assert(gr_rs_pos_min(rs, 1) == 11 && gr_rs_pos_max(rs, 1) == 12);
    gr_rs_free(&rs);
}

/* Tokens of an image share a position: what is removed are all of them. */
Test(recurrent, rollback_of_equal_positions)
{
    struct gr_rs *rs = make(1, 4);
    int32_t token[1] = {0}, tok[1], src, dst;
    struct gr_ubatch ub[1];
    static const int32_t pos[] = {6, 7, 7, 7, 9};
    for (int i = 0; i < 5; i++) {
        int32_t yx[2] = {pos[i], pos[i] + i % 2};
        struct gr_batch b = {.n_tok = 1, .token = token, .pos = pos + i, .pos_yx = yx};
        cr_assert_eq(check(rs, 1, &b), 0, "%s", gr_error());
        cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 1, 0, tok, ub), 1);
        cr_assert_eq(gr_rs_reserve(rs, ub, 1), 0);
        gr_rs_place(rs, ub, &src, &dst);
        gr_rs_commit(rs);
        cr_assert_eq(dst, i);
    }
    cr_assert_eq(rm(rs, 0, 8, -1), 0);
    cr_assert(gr_rs_pos_max(rs, 0) == 7 && gr_rs_tail(rs, 0) == 3);
    cr_assert_eq(rm(rs, 0, 7, -1), 0);
    cr_assert(gr_rs_pos_max(rs, 0) == 6 && gr_rs_tail(rs, 0) == 0);
    cr_assert_eq(rm(rs, 0, 6, -1), GR_E_UNSUPPORTED);
    gr_rs_free(&rs);
    gr_batch_fini(&full);
}

Test(recurrent, no_moves)
{
    struct gr_rs *rs = make(2, 2);
    step(rs, 0, 4), step(rs, 0, 1);
    expect_refused(op(rs, GR_KV_ADD, 0, 0, 2, -1, 3),
                   "sequence 0: positions cannot be moved, because they are part of a recurrent "
                   "state; remove the sequence and run its tokens at the new positions");
    expect_refused(op(rs, GR_KV_DIV, 0, 0, -1, -1, 2),
                   "sequence 0: positions cannot be divided, because they are part of a recurrent "
                   "state; remove the sequence and run its tokens at the new positions");
    cr_assert_eq(op(rs, GR_KV_DIV, 0, 0, -1, -1, 0), GR_E_INVALID);
    cr_assert_eq(op(rs, GR_KV_ADD, 2, 0, -1, -1, 0), GR_E_INVALID);
    cr_assert_eq(op(rs, GR_KV_ADD, 0, 0, -1, -1, 0), 0);
    cr_assert_eq(op(rs, GR_KV_DIV, 0, 0, -1, -1, 1), 0);
    cr_assert_eq(op(rs, GR_KV_ADD, 0, 0, 3, 3, 1), 0, "an empty range");
    cr_assert_eq(op(rs, GR_KV_ADD, 0, 0, 5, -1, 1), 0, "beyond the end");
    cr_assert_eq(op(rs, GR_KV_DIV, 1, 0, -1, -1, 3), 0, "an empty sequence");
    cr_assert(gr_rs_pos_max(rs, 0) == 4 && gr_rs_pos_min(rs, 0) == 3);
    gr_rs_free(&rs);
}

/* A batch that fails: what was overwritten is lost and said to be, the rest is as before. */
Test(recurrent, abort)
{
    struct gr_rs *rs = make(1, 0);
    int32_t token[8] = {0}, tok[8], src, dst;
    struct gr_ubatch ub[8];
    struct gr_kv_op clear = {.kind = GR_KV_RM, .seq = 0, .p0 = 0, .p1 = -1};
    struct gr_batch b = {.n_tok = 2, .token = token};
    step(rs, 0, 3);
    cr_assert_eq(check(rs, 1, &b), 0);
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 8, 0, tok, ub), 1);
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), 0);
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), GR_E_INTERNAL);
    cr_assert_eq(gr_rs_can(rs, &clear), GR_E_INTERNAL);
    gr_rs_abort(rs);
    cr_assert(gr_rs_pos_max(rs, 0) == 2 && !gr_rs_incomplete(rs, 0), "nothing was placed");
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), 0);
    gr_rs_place(rs, ub, &src, &dst);
    cr_assert(src == 0 && dst == 0, "there is one row");
    gr_rs_abort(rs);
    cr_assert(gr_rs_pos_max(rs, 0) == -1 && gr_rs_incomplete(rs, 0) && gr_rs_n_used(rs) == 0);
    cr_assert_eq(rm(rs, 0, 3, -1), 0);
    cr_assert(gr_rs_incomplete(rs, 0));
    cr_assert_eq(rm(rs, 0, -1, -1), 0);
    cr_assert(!gr_rs_incomplete(rs, 0));
    gr_rs_free(&rs);

    rs = make(1, 1); /* a snapshot's row serves as the other one */
    step(rs, 0, 3), step(rs, 0, 1);
    cr_assert_eq(check(rs, 1, &b), 0);
    cr_assert_eq(gr_batch_split(&full, GR_SPLIT_EQUAL, 8, 0, tok, ub), 1);
    cr_assert_eq(gr_rs_reserve(rs, ub, 1), 0);
    gr_rs_place(rs, ub, &src, &dst);
    cr_assert(src == 1 && dst == 0);
    gr_rs_abort(rs);
    cr_assert(gr_rs_tail(rs, 0) == 1 && gr_rs_pos_max(rs, 0) == 3 && gr_rs_pos_min(rs, 0) == 3);
    cr_assert(!gr_rs_incomplete(rs, 0));
    gr_rs_free(&rs);
    gr_batch_fini(&full);
}

Test(recurrent, print)
{
    char *text = NULL;
    size_t n = 0;
    struct gr_rs *rs = make(4, 1);
    step(rs, 0, 3), step(rs, 1, 7), step(rs, 1, 1);
    cr_assert_eq(cp(rs, 0, 3, -1, -1), 0);
    FILE *f = open_memstream(&text, &n);
    gr_rs_print(rs, f);
    fclose(f);
    cr_assert_str_eq(text, "recurrent states: 3 of 8 rows used\n"
                           "         0  after position 2 in row 0, shared by 2 sequences\n"
                           "         1  after position 7 in row 2, 1 earlier from position 6 on\n"
                           "         3  after position 2 in row 0, shared by 2 sequences\n");
    free(text);
    gr_rs_free(&rs);
}

Test(recurrent, no_memory)
{
    struct gr_rs *rs;
    struct gr_rs_params p = {3, 2};
    int rc = GR_E_NOMEM_HOST, n = 0;
    for (uint64_t k = 1; rc; k++, n++) {
        gr_alloc_fail_at(k, 0);
        rc = gr_rs_new(&rs, &p);
        cr_assert(rc == 0 || (rc == GR_E_NOMEM_HOST && !rs));
        gr_alloc_fail_at(0, 0);
    }
    cr_assert_geq(n, 8);
    gr_rs_free(&rs);
}
