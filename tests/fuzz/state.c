/* Any bytes as a saved state: refused in one line with nothing changed, or restored to cells that
 * keep their promises. The first byte says how the rest is taken: as a whole state; as the list of
 * cells of a cache, whose shape it says too; as the list of recurrent states; or as the list of
 * cells in a state of the built-in model whose checksums are right, which is then gone on from. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/session.h"
#include "engine/state_file.h"
#include "gr/status.h"
#include "kv/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken promise: %s (%s)\n", what, gr_error());
    abort();
}

static void must_refuse(int rc)
{
    must(rc == GR_E_CORRUPT || rc == GR_E_UNSUPPORTED || rc == GR_E_INVALID || rc == GR_E_KV_FULL,
         "a bad state is refused as such");
    must(!strchr(gr_error(), '\n'), "in one line");
}

/* ---- a list of cells ---- */

/* The cells of all sequences, as a list. */
static struct gr_vec list_of(const struct gr_kv *kv)
{
    struct gr_vec block = {0}, pairs = {0};
    must(gr_kv_save(kv, -1, &block, &pairs) == 0, "cells can be saved");
    gr_vec_fini(&pairs);
    return block;
}

static void check_cells(const struct gr_kv *kv, const struct gr_kv_load *l, bool pool,
                        const uint8_t *p, size_t n)
{
    must(gr_kv_check(kv) == 0, "restored cells are in order");
    for (uint32_t i = 0; i < l->n_pair; i++)
        must(gr_kv_cell(kv, (uint32_t)l->pair[i].cell).pos == l->saved.item[l->pair[i].item].pos,
             "an item's cell has its position");
    if (l->seq >= 0 || l->seen_only || !pool)
        return;
    struct gr_vec again = list_of(kv);
    must(again.n == n && !memcmp(again.data, p, n), "what is restored saves as it was");
    gr_vec_fini(&again);
}

static void cells(uint8_t shape, const uint8_t *p, size_t n)
{
    struct gr_kv_params params = {.n_cell = 40,
                                  .n_kv_pool = shape & 1 ? 5 : 1,
                                  .n_seq_max = 5,
                                  .n_pad = 32,
                                  .window = shape & 2 ? 6 : 0,
                                  .pos_2d = shape & 4};
    int32_t seq = shape & 8 ? 2 : -1;
    struct gr_kv_load l = {0};
    struct gr_kv *kv;
    must(gr_kv_new(&kv, &params) == 0, "a cache can be made");
    int rc = gr_kv_load_plan(&l, kv, "fuzz", p, n, seq);
    if (rc) {
        must_refuse(rc);
        must(gr_kv_n_used(kv) == 0, "a refused state changes nothing");
    } else {
        gr_kv_load_do(&l, kv);
        check_cells(kv, &l, !(shape & 1), p, n);
        if (gr_kv_cells_pos_max(kv, 2) >= 0 && shape & 16) { /* in the place of what is there */
            gr_kv_load_fini(&l);
            rc = gr_kv_load_plan(&l, kv, "fuzz", p, n, seq);
            if (!rc)
                gr_kv_load_do(&l, kv);
            must(gr_kv_check(kv) == 0, "cells restored twice are in order");
        }
    }
    gr_kv_load_fini(&l);
    gr_kv_free(&kv);
}

static void states(uint8_t shape, const uint8_t *p, size_t n)
{
    struct gr_rs_params params = {.n_seq_max = 4, .n_rollback = shape & 3};
    struct gr_kv_load l = {0};
    struct gr_rs *rs;
    must(gr_rs_new(&rs, &params) == 0, "states can be made");
    for (int twice = 0; twice < 2; twice++) {
        int rc = gr_rs_load_plan(&l, rs, "fuzz", p, n, shape & 4 ? 1 : -1);
        if (rc)
            must_refuse(rc);
        else
            gr_rs_load_do(&l, rs);
        must(gr_rs_check(rs) == 0, "restored states are in order");
        must(!rc || gr_rs_n_used(rs) == 0, "a refused one changes nothing");
        gr_kv_load_fini(&l);
    }
    gr_rs_free(&rs);
}

/* ---- whole states ---- */

static struct gr_session *session;
static void *seed;
static size_t n_seed;

/* A session of the built-in model, and a state of it with three sequences that share cells. */
static void start(void)
{
    static struct gr_model *model;
    struct gr_session_params p = gr_session_params_default();
    int32_t ids[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    struct gr_batch b = {.n_tok = 12, .token = ids};
    p.n_ctx = 256, p.n_seq_max = 3, p.n_threads = 1;
    must(gr_model_open(&model, NULL, NULL) == 0, "there is a built-in model");
    must(gr_session_open(&session, model, &p) == 0, "it can be used");
    must(gr_decode(session, &b) == 0 && gr_kv_seq_cp(session, 0, 2, -1, 7) == 0, "and run");
    must(gr_state_save(session, -1, "note", 4, &seed, &n_seed) == 0, "and saved");
}

static void load(const void *p, size_t n)
{
    static const int32_t ids[3] = {7, 8, 9};
    uint32_t used = gr_kv_used(session);
    int rc = gr_state_load(session, -1, p, n, NULL, NULL);
    must(gr_cache_check(&session->cache) == 0, "the cells are in order");
    if (rc) {
        must_refuse(rc);
        must(gr_kv_used(session) == used, "a refused state changes nothing");
        return;
    }
    for (int i = 0; i < 3 && n % 4 == 0; i++) { /* one in four goes on: that takes most time */
        struct gr_batch b = {.n_tok = 1, .token = ids + i};
        rc = gr_decode(session, &b);
        must(!rc || rc == GR_E_KV_FULL || rc == GR_E_INVALID, "a restored session goes on");
    }
}

/* The state with another list of cells, and as much data as that says it has. */
static void with_cells(const uint8_t *p, size_t n)
{
    struct gr_state_reader r;
    struct gr_state_writer w;
    struct gr_saved_head head = {0};
    char *copy = gr_calloc(n_seed, 4);
    void *data = NULL;
    size_t n_data;
    must(copy && !gr_state_reader_open(&r, NULL, seed, n_seed), "the seed can be read");
    if (n >= sizeof head)
        memcpy(&head, p, sizeof head);
    uint64_t items = head.n_item < 40 ? head.n_item : 40; /* of 12 in the seed: room for 48 */
    struct gr_state_section *table = gr_calloc(r.n_section, sizeof *table);
    memcpy(table, r.table, r.n_section * sizeof *table);
    for (uint32_t i = 0; i < r.n_section; i++)
        table[i].bytes = table[i].kind == GR_STATE_CELLS  ? n
                         : table[i].kind == GR_STATE_DATA ? table[i].bytes / 12 * items
                                                          : table[i].bytes;
    must(!gr_state_writer_open(&w, NULL, table, r.n_section, 1), "a state can be written");
    for (uint32_t i = 0; i < r.n_section; i++) {
        gr_state_reader_seek(&r, i);
        must(!gr_state_reader_get(&r, copy, (size_t)r.left), "the seed is whole");
        bool is_cells = table[i].kind == GR_STATE_CELLS;
        must(!gr_state_writer_put(&w, is_cells ? (const void *)p : copy, (size_t)table[i].bytes),
             "a section can be written");
    }
    must(!gr_state_writer_commit(&w, &data, &n_data), "a state can be finished");
    load(data, n_data);
    gr_state_writer_close(&w), gr_state_reader_close(&r);
    gr_free(data), gr_free(table), gr_free(copy);
}

/* The seed, with bytes of it changed: place (two bytes), value. */
static void damaged(const uint8_t *p, size_t n)
{
    uint8_t *copy = gr_calloc(n_seed, 1);
    must(copy != NULL, "memory");
    memcpy(copy, seed, n_seed);
    for (size_t i = 0; i + 2 < n; i += 3)
        copy[(p[i] * 256u + p[i + 1]) % n_seed] = p[i + 2];
    load(copy, n_seed);
    gr_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    if (!session)
        start();
    if (!n)
        return 0;
    uint8_t how = *p++, shape = how >> 3;
    uint32_t *block = gr_calloc(n, 1); /* aligned as a section is */
    must(block != NULL, "memory");
    memcpy(block, p, --n);
    size_t before = gr_alloc_held(NULL);
    switch (how & 7) {
    case 0:
        load(block, n);
        break;
    case 1:
        damaged(p, n);
        break;
    case 2:
        with_cells((const uint8_t *)block, n);
        break;
    case 3:
    case 4:
        states(shape, (const uint8_t *)block, n);
        break;
    default:
        cells(shape, (const uint8_t *)block, n);
    }
    must((how & 7) < 3 || gr_alloc_held(NULL) == before, "all memory is given back");
    gr_free(block);
    return 0;
}
