/* Saved states of recurrent layers and of cells, without a model: chains with snapshots come back
 * as they were, shared rows are shared again, and lists that make no sense are refused. (Whole
 * sessions: tests/models/state.c.) */
#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "gr/status.h"
#include "kv/cache.h"
#include "kv/state.h"

#define N_SEQ 4

static struct gr_rs *states(uint32_t n_rollback)
{
    struct gr_rs_params p = {N_SEQ, n_rollback};
    struct gr_rs *rs;
    cr_assert_eq(gr_rs_new(&rs, &p), 0, "%s", gr_error());
    return rs;
}

/* n tokens of a sequence behind what it has, each a micro-batch. */
static void step(struct gr_rs *rs, int32_t seq, int n)
{
    for (int i = 0; i < n; i++) {
        int32_t pos = gr_rs_pos_max(rs, seq) + 1, tok = 0, zero = 0, one = 1, src, dst;
        struct gr_full_batch b = {
            .n_tok = 1, .pos = &pos, .n_seq = &one, .seq = &seq, .seq_at = &zero};
        struct gr_ubatch ub = {.batch = &b, .tok = &tok, .n_tok = 1, .n_seq = 1};
        cr_assert_eq(gr_rs_reserve(rs, &ub, 1), 0, "%s", gr_error());
        gr_rs_place(rs, &ub, &src, &dst);
        gr_rs_commit(rs);
    }
}

static void copy(struct gr_rs *rs, int32_t src, int32_t dst)
{
    const struct gr_kv_op op = {GR_KV_CP, src, dst, -1, -1, 0};
    cr_assert_eq(gr_rs_can(rs, &op), 0, "%s", gr_error());
    gr_rs_do(rs, &op);
}

static struct gr_vec list_of(const struct gr_rs *rs, int32_t seq)
{
    struct gr_vec block = {0}, pairs = {0};
    cr_assert_eq(gr_rs_save(rs, seq, &block, &pairs), 0);
    const struct gr_kv_pair *pair = pairs.data;
    for (size_t i = 0; i < pairs.n; i++) {
        cr_expect_eq(pair[i].item, (int32_t)i);
        cr_expect(gr_rs_row(rs, (uint32_t)pair[i].cell).pos >= 0);
    }
    gr_vec_fini(&pairs);
    return block;
}

static void load(struct gr_rs *rs, int32_t seq, const struct gr_vec *block)
{
    struct gr_kv_load l = {0};
    cr_assert_eq(gr_rs_load_plan(&l, rs, "state", block->data, block->n, seq), 0, "%s", gr_error());
    gr_rs_load_do(&l, rs);
    for (uint32_t i = 0; i < l.n_pair; i++)
        cr_expect_eq(gr_rs_row(rs, (uint32_t)l.pair[i].cell).pos, l.saved.item[l.pair[i].item].pos);
    gr_kv_load_fini(&l);
    cr_assert_eq(gr_rs_check(rs), 0, "%s", gr_error());
}

static bool same(struct gr_vec a, struct gr_vec b)
{
    return a.n == b.n && !memcmp(a.data, b.data, a.n);
}

/* Two sequences share a state and snapshots, one of them went on. */
static struct gr_rs *filled(uint32_t n_rollback)
{
    struct gr_rs *rs = states(n_rollback);
    step(rs, 0, 6);
    copy(rs, 0, 1);
    copy(rs, 0, 3);
    step(rs, 1, 2);
    step(rs, 2, 1);
    return rs;
}

Test(kv_state, states_come_back)
{
    for (uint32_t rollback = 0; rollback < 4; rollback++) {
        struct gr_rs *a = filled(rollback), *b = states(rollback);
        step(b, 2, 5);
        struct gr_vec all = list_of(a, -1), one = list_of(a, 1);
        load(b, -1, &all);
        struct gr_vec again = list_of(b, -1);
        cr_expect(same(all, again), "rollback %u", rollback);
        cr_expect_eq(gr_rs_n_used(a), gr_rs_n_used(b));
        cr_expect(gr_rs_seq_same(b, 0, 3) && !gr_rs_seq_same(b, 0, 1));
        for (int32_t s = 0; s < N_SEQ; s++) {
            cr_expect_eq(gr_rs_pos_min(a, s), gr_rs_pos_min(b, s));
            cr_expect_eq(gr_rs_pos_max(a, s), gr_rs_pos_max(b, s));
        }
        load(b, 2, &one);
        cr_expect_eq(gr_rs_pos_max(b, 2), 7);
        cr_expect_eq(gr_rs_pos_max(b, 1), 7);
        cr_expect(!gr_rs_seq_same(b, 1, 2), "a copy of its own");
        gr_vec_fini(&all), gr_vec_fini(&one), gr_vec_fini(&again);
        gr_rs_free(&a), gr_rs_free(&b);
    }
}

/* With less rollback the older snapshots are left out. */
Test(kv_state, fewer_snapshots)
{
    struct gr_rs *a = filled(3), *b = states(1), *c = states(0);
    struct gr_vec all = list_of(a, -1);
    cr_expect_eq(gr_rs_pos_min(a, 1), 4);
    load(b, -1, &all);
    cr_expect_eq(gr_rs_pos_min(b, 1), 6);
    cr_expect_eq(gr_rs_pos_max(b, 1), 7);
    load(c, -1, &all);
    cr_expect_eq(gr_rs_pos_min(c, 1), 7);
    cr_expect_eq(gr_rs_n_used(c), 3, "sequences 0 and 3 share one");
    gr_vec_fini(&all);
    gr_rs_free(&a), gr_rs_free(&b), gr_rs_free(&c);
}

/* Every 32-bit number of a list becomes another: refused with nothing changed, or a list that saves
 * as it is. */
Test(kv_state, numbers_that_make_no_sense)
{
    static const int32_t values[] = {-1, 0, 1, 2, 3, 7, 255, 256, INT32_MAX, INT32_MIN};
    struct gr_rs *a = filled(2), *b = states(2);
    struct gr_vec all = list_of(a, -1);
    int n_refused = 0;
    for (size_t i = 0; i < all.n / 4; i++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            int32_t *at = (int32_t *)all.data + i, was = *at;
            struct gr_kv_load l = {0};
            *at = values[v];
            gr_rs_clear(b);
            int rc = gr_rs_load_plan(&l, b, "state", all.data, all.n, -1);
            if (rc) {
                n_refused++;
                cr_expect(rc == GR_E_CORRUPT || rc == GR_E_INVALID, "%d", rc);
                cr_expect_eq(gr_rs_n_used(b), 0);
            } else {
                gr_rs_load_do(&l, b);
            }
            cr_assert_eq(gr_rs_check(b), 0, "%s", gr_error());
            gr_kv_load_fini(&l);
            *at = was;
        }
    cr_expect(n_refused > 100, "%d", n_refused);
    gr_vec_fini(&all);
    gr_rs_free(&a), gr_rs_free(&b);
}

static struct gr_kv *cells(uint32_t n_cell, uint32_t n_kv_pool, int32_t window)
{
    struct gr_kv_params p = {.n_cell = n_cell,
                             .n_kv_pool = n_kv_pool,
                             .n_seq_max = N_SEQ,
                             .n_pad = 32,
                             .window = window};
    struct gr_kv *kv;
    cr_assert_eq(gr_kv_new(&kv, &p), 0, "%s", gr_error());
    return kv;
}

/* A list of n cells of sequences 0 and 2, the first n_shared of them of both. */
static struct gr_vec list_cells(int32_t n, int32_t n_shared)
{
    struct gr_vec parts[3] = {{0}}, block = {0};
    struct gr_saved_seq seq[2] = {{0, 0, 0}, {2, 0, 0}};
    static const int32_t id[2] = {0, 1};
    cr_assert_eq(gr_vec_append(&parts[0], seq, 2, sizeof *seq), 0);
    for (int32_t i = 0; i < n; i++) {
        struct gr_saved_item item = {i, 0, 0, (uint32_t)i, i < n_shared ? 2 : 1};
        cr_assert_eq(gr_vec_append(&parts[1], &item, 1, sizeof item), 0);
        cr_assert_eq(gr_vec_append(&parts[2], id, item.n_seq, sizeof *id), 0);
    }
    cr_assert_eq(gr_saved_join(&block, parts), 0);
    for (int i = 0; i < 3; i++)
        gr_vec_fini(&parts[i]);
    return block;
}

static int plan(struct gr_kv_load *l, struct gr_kv *kv, const struct gr_vec *block)
{
    *l = (struct gr_kv_load){0};
    return gr_kv_load_plan(l, kv, "state", block->data, block->n, -1);
}

/* Shared cells are shared in one pool and copied to separate pools; what there is no room for is
 * refused, but for what a window no longer sees. */
Test(kv_state, room)
{
    struct gr_vec block = list_cells(50, 20);
    struct gr_kv_load l;
    struct gr_kv *pool = cells(50, 1, 0), *pools = cells(50, N_SEQ, 0), *small = cells(49, 1, 0),
                 *window = cells(36, 1, 8);
    cr_assert_eq(plan(&l, pool, &block), 0, "%s", gr_error());
    gr_kv_load_do(&l, pool);
    cr_expect_eq(gr_kv_n_used(pool), 50);
    cr_expect_eq(gr_kv_seq_shared(pool, 2), 20);
    gr_kv_load_fini(&l);
    cr_assert_eq(plan(&l, pools, &block), 0, "%s", gr_error());
    gr_kv_load_do(&l, pools);
    cr_expect_eq(gr_kv_n_used(pools), 70);
    cr_expect_eq(gr_kv_cells_pos_max(pools, 2), 19);
    gr_kv_load_fini(&l);
    cr_expect_eq(plan(&l, small, &block), GR_E_KV_FULL);
    cr_expect(strstr(gr_error(), "50 cells needed, 49 of 49 free"), "%s", gr_error());
    gr_kv_load_fini(&l);
    cr_assert_eq(plan(&l, window, &block), 0, "%s", gr_error());
    gr_kv_load_do(&l, window);
    cr_expect_eq(gr_kv_cells_pos_min(window, 0), 13, "sequence 2's next token, at 20, sees it");
    cr_expect_eq(gr_kv_cells_pos_min(window, 2), 13);
    cr_expect_eq(gr_kv_n_used(window), 14);
    const struct gr_kv_op back = {.kind = GR_KV_RM, .seq = 0, .p0 = 40, .p1 = -1};
    cr_expect_eq(gr_kv_can(window, &back), GR_E_UNSUPPORTED, "what was left out is known");
    gr_kv_load_fini(&l);
    gr_vec_fini(&block);
    gr_kv_free(&pool), gr_kv_free(&pools), gr_kv_free(&small), gr_kv_free(&window);
}

/* A cell's position, and its row and column, which count from its position, each at its limits and
 * one beyond. */
Test(kv_state, limits_of_positions)
{
    enum { MAX = GR_POS_MAX };
    static const struct {
        int32_t pos, row, col;
        bool in_2d, in_text;
    } cases[] = {
        {0, 0, 0, true, true},          {MAX, 0, 0, true, true},
        {-1, 0, 0, false, false},       {5, 1, 0, true, false},
        {5, 0, 1, true, false},         {5, MAX - 5, MAX - 5, true, false},
        {5, MAX - 4, 0, false, false},  {5, 0, MAX - 4, false, false},
        {0, -MAX, -MAX, true, false},   {0, -MAX - 1, 0, false, false},
        {0, 0, -MAX - 1, false, false},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const struct gr_kv_params p = {
            .n_cell = 32, .n_kv_pool = 1, .n_seq_max = N_SEQ, .n_pad = 32, .pos_2d = i % 2};
        struct gr_vec block = list_cells(1, 1);
        struct gr_kv_load l;
        struct gr_kv *kv;
        struct gr_saved_item *item = (void *)((char *)block.data + sizeof(struct gr_saved_head) +
                                              2 * sizeof(struct gr_saved_seq));
        cr_assert_eq(gr_kv_new(&kv, &p), 0, "%s", gr_error());
        cr_assert_eq(item->n_seq, 2);
        item->pos = cases[i / 2].pos, item->row = cases[i / 2].row, item->col = cases[i / 2].col;
        const bool good = p.pos_2d ? cases[i / 2].in_2d : cases[i / 2].in_text;
        cr_expect_eq(plan(&l, kv, &block), good ? 0 : GR_E_CORRUPT, "case %zu, pos_2d %d: %s",
                     i / 2, p.pos_2d, good ? gr_error() : "taken");
        gr_kv_load_fini(&l);
        gr_vec_fini(&block);
        gr_kv_free(&kv);
    }
}
