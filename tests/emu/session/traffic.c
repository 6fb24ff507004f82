/* Memory traffic of operations on the cache, counted by the emulated device in sectors of 32 bytes,
 * each once a block: a shift or a copy touches its own cells and no others, once, and attention
 * those that a token sees, whatever other sequences hold. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "engine/step.h"
#include "gr/planes.h"
#include "support/tiny.h"
#include "tests/emu/emu.h"
#include "tests/emu/session/emulator.h"

#define N_VOCAB 96
#define N_HEAD_KV 2
#define D_HEAD 64
#define SECTOR 32

static int (*watch)(const void *p, size_t bytes);
static int64_t (*watched)(int write);

static struct gr_model *model;
static struct gr_session *session;

static void setup(void)
{
    *(void **)(void *)&watch = emu_symbol("emu_watch");
    *(void **)(void *)&watched = emu_symbol("emu_watched");
    if (watch(NULL, 0)) /* not the checked device: nothing is counted */
        cr_skip_test("the device counts nothing");
}

static void begin(const char *arch, const char *type, bool streams)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    tiny_set_layers(&t, 1);
    t.d_head = D_HEAD, t.n_head_kv = N_HEAD_KV, t.n_ctx = 512;
    const char *path = tiny_write(&t, NULL);
    mp.n_gpu_layers = GR_MAX_LAYER;
    sp.n_ctx = 512, sp.n_seq_max = 2, sp.kv_unified = !streams, sp.n_threads = 1;
    sp.type_k = sp.type_v = type;
    cr_assert_eq(gr_model_open(&model, path, &mp), 0, "%s", gr_error());
    cr_assert_eq(gr_session_open(&session, model, &sp), 0, "%s", gr_error());
    unlink(path);
}

static void end(void)
{
    gr_session_close(&session);
    gr_model_close(&model);
}

TestSuite(traffic, .init = setup, .fini = end);

/* n tokens of a sequence from pos on. */
static void decode(int32_t seq, int32_t pos, int n)
{
    static int32_t id[512], at[512], of[512];
    static int8_t want[512];
    for (int i = 0; i < n; i++) {
        id[i] = (5 + 37 * (pos + i)) % N_VOCAB, at[i] = pos + i, of[i] = seq;
        want[i] = i == n - 1;
    }
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at, .seq = of, .logits = want};
    cr_assert_eq(gr_decode(session, &b), 0, "%s", gr_error());
}

static void settle(void)
{
    struct gr_backend *b = session->device[1].backend;
    cr_assert_eq(b->api->sync(b), 0, "%s", gr_error());
}

/* K, or V, of the last layer. */
static const struct gr_ten *cache(enum gr_cache_tensor which)
{
    size_t n = (size_t)session->rank_model->hp.n_layer;
    return &session->tensors[(size_t)which * n + n - 1];
}

static void look_at(enum gr_cache_tensor which)
{
    const struct gr_ten *t = cache(which);
    settle();
    cr_assert_eq(watch(t->data, (size_t)(t->rows * t->row_bytes)), 0);
}

/* Bytes of a row that say something. */
static int64_t row_of(const struct gr_ten *t)
{
    return (int64_t)gr_row_bytes(t->dtype, (uint64_t)t->cols);
}

/* Compares the reads and writes of that many rows since look_at; `more`: bytes beside them, at
 * most. */
static void expect(const char *what, int64_t reads, int64_t writes, int64_t more)
{
    int64_t row = row_of(cache(GR_T_K));
    settle();
    const struct {
        const char *name;
        int64_t found, least;
    } of[] = {{"read", watched(0), reads * row}, {"written", watched(1), writes * row}};
    for (int i = 0; i < 2; i++)
        cr_expect(of[i].found >= of[i].least &&
                      of[i].found <= of[i].least + (of[i].least ? more : 0),
                  "%s, %s: %lld bytes %s, %lld to %lld expected", what,
                  gr_dtype_name(cache(GR_T_K)->dtype), (long long)of[i].found, of[i].name,
                  (long long)of[i].least, (long long)(of[i].least + more));
}

static const char *const types[] = {"f16", "q8_0", "q4_0"};

/* A range is removed and what is behind it moves up: K of these cells alone, and no V. Rows of
 * planes that do not end with a sector share that one, and the steps of two heads do. */
Test(traffic, a_shift_turns_what_moves)
{
    enum { N = 100, FROM = 60, TO = 20, N_MOVED = N - FROM };
    for (size_t i = 0; i < GR_COUNT(types); i++) {
        begin("llama", types[i], false);
        decode(0, 0, N);
        decode(1, 0, 50);
        cr_assert_eq(gr_kv_seq_rm(session, 0, TO, FROM), 0);
        cr_assert_eq(gr_kv_seq_add(session, 0, FROM, -1, TO - FROM), 0);
        look_at(GR_T_V);
        cr_assert_eq(gr_apply_shift(session), 0, "%s", gr_error());
        expect("V in a shift", 0, 0, 0);
        cr_assert_eq(gr_kv_seq_add(session, 0, TO, -1, 7), 0);
        look_at(GR_T_K);
        cr_assert_eq(gr_apply_shift(session), 0, "%s", gr_error());
        expect("K in a shift", N_MOVED, N_MOVED, i ? N_MOVED * 2 * SECTOR : 0);
        end();
    }
}

/* Rows are read and written once, where a copy of a sequence takes cells of its own and where cells
 * move together. A block moves 1 KiB, which may begin and end within a sector, of planes with what
 * aligns them. */
Test(traffic, a_copy_moves_its_rows)
{
    enum { N = 100, HOLE = 30 };
    for (size_t i = 0; i < GR_COUNT(types); i++)
        for (int streams = 0; streams < 2; streams++) {
            begin("llama", types[i], streams);
            decode(0, 0, N);
            if (!streams)
                cr_assert_eq(gr_kv_seq_rm(session, 0, 0, HOLE), 0);
            int64_t n = streams ? N : HOLE; /* cells behind the end go to the hole */
            int64_t bytes = n * cache(GR_T_K)->row_bytes, more = bytes - n * row_of(cache(GR_T_K));
            look_at(streams ? GR_T_V : GR_T_K);
            cr_assert_eq(streams ? gr_kv_seq_cp(session, 0, 1, 0, -1) : gr_kv_defrag(session), 0);
            expect(streams ? "a copy" : "cells that move together", n, n,
                   more + (bytes / 1024 + 1) * SECTOR);
            end();
        }
}

static void mark(char *sector, int64_t lo, int64_t hi)
{
    memset(sector + lo / SECTOR, 1, (size_t)((hi + SECTOR - 1) / SECTOR - lo / SECTOR));
}

/* Bytes of the sectors that hold the first n rows, head by head: a block reads one. */
static int64_t least_of(const struct gr_ten *t, int64_t n)
{
    static char sector[512 * N_HEAD_KV * D_HEAD * 2 / SECTOR];
    int64_t sum = 0;
    for (int64_t col = 0; col < t->cols; col += D_HEAD) {
        memset(sector, 0, sizeof sector);
        for (int64_t i = 0, row = 0; i < n; i++, row += t->row_bytes)
            if (t->planes) {
                mark(sector, row + gr_planes_codes(t->dtype, col),
                     row + gr_planes_codes(t->dtype, col + D_HEAD));
                mark(sector, row + gr_planes_step(t->dtype, t->cols, col),
                     row + gr_planes_step(t->dtype, t->cols, col + D_HEAD));
            } else {
                mark(sector, row + 2 * col, row + 2 * (col + D_HEAD));
            }
        for (size_t k = 0; k < sizeof sector; k++)
            sum += sector[k];
    }
    return sum * SECTOR;
}

/* Bytes of K and V that a token at a position reads. */
static int64_t read_by_a_token(int32_t pos)
{
    int64_t sum = 0;
    for (enum gr_cache_tensor which = GR_T_K; which <= GR_T_V; which++) {
        look_at(which);
        decode(0, pos, 1);
        settle();
        sum += watched(0);
        cr_assert_eq(gr_kv_seq_rm(session, 0, pos, -1), 0);
    }
    return sum;
}

Test(traffic, attention_reads_what_a_token_sees)
{
    static const int32_t at[] = {40, 130, 270};
    for (size_t i = 0; i < GR_COUNT(types); i++) {
        begin("llama", types[i], false);
        for (size_t k = 0, pos = 0; k < GR_COUNT(at); k++) {
            int64_t least = 2 * least_of(cache(GR_T_K), at[k] + 1), alone, beside;
            decode(0, (int32_t)pos, at[k] - (int32_t)pos);
            pos = (size_t)at[k];
            alone = read_by_a_token(at[k]);
            cr_log_info("%s: %lld bytes of %d cells, %.2f times what they are", types[i],
                        (long long)alone, at[k] + 1,
                        (double)alone / (double)(2 * row_of(cache(GR_T_K)) * (at[k] + 1)));
            /* two heads, K and V, and a sector that two chunks of 256 share */
            cr_expect(alone >= least && alone <= least + 4 * SECTOR,
                      "%s: %lld bytes of %d cells, %lld expected", types[i], (long long)alone,
                      at[k] + 1, (long long)least);
            decode(1, 60 * (int32_t)k, 60);
            beside = read_by_a_token(at[k]);
            cr_expect_leq(beside, alone + alone / 64,
                          "%s: %lld bytes beside another sequence, %lld without", types[i],
                          (long long)beside, (long long)alone);
        }
        end();
    }
}

/* Cells that a window has left behind are free as well. */
Test(traffic, attention_reads_a_window)
{
    begin("gemma3", "f16", false);
    const struct gr_hparams *hp = &session->rank_model->hp;
    cr_assert(hp->swa.layer[hp->n_layer - 1] ? hp->swa.n_swa > 0 : hp->n_layer > 1);
    int32_t il = 0, n = 5 * hp->swa.n_swa;
    while (!hp->swa.layer[il])
        il++;
    const struct gr_ten *k = &session->tensors[(size_t)GR_T_K * (size_t)hp->n_layer + (size_t)il];
    decode(0, 0, n);
    settle();
    cr_assert_eq(watch(k->data, (size_t)(k->rows * k->row_bytes)), 0);
    decode(0, n, 1);
    settle();
    cr_expect_eq(watched(0), hp->swa.n_swa * k->row_bytes, "%lld bytes of a window of %d cells",
                 (long long)watched(0), hp->swa.n_swa);
}
