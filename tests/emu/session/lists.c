/* Lists of cells on the emulated device: one graph serves a batch shape for its whole life, what is
 * on the device is what was changed on the host, and how much there is room for changes no bit. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "support/tiny.h"
#include "tests/emu/session/emulator.h"

enum { N_VOCAB = 96, N_SEQ = 3, MOST = 4090, N_STEP = 8 };

static int64_t (*count)(const char *symbol);

static void setup(void)
{
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
}

TestSuite(lists, .init = setup);

/* ---- sessions ---- */

struct way {
    char arch[16];
    int32_t self_extend_n;
};

static struct gr_session *begin(const struct way *w, const char *path, const char *device,
                                uint32_t n_ctx, struct gr_model **m)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_session *s;
    mp.device = device, mp.n_gpu_layers = 99;
    sp.n_ctx = n_ctx, sp.n_seq_max = N_SEQ, sp.n_threads = sp.n_threads_batch = 1;
    sp.self_extend_n = w->self_extend_n, sp.self_extend_w = w->self_extend_n ? 64 : 0,
    sp.swa_full = true;
    cr_assert_eq(gr_model_open(m, path, &mp), 0, "%s: %s", w->arch, gr_error_message());
    cr_assert_eq(gr_session_open(&s, *m, &sp), 0, "%s: %s", w->arch, gr_error_message());
    return s;
}

static void end(struct gr_session **s, struct gr_model **m)
{
    gr_session_close(s);
    gr_model_close(m);
}

static const char *write_model(const struct way *w)
{
    static char path[256];
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){w->arch, strlen(w->arch)}));
    t.n_ctx = 8192;
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    return path;
}

/* A text of so many tokens, as the CPU leaves it. */
struct text {
    void *data;
    size_t bytes;
};

static void feed(struct gr_session *s, int32_t n)
{
    int32_t token[512];
    for (int32_t at = 0; at < n; at += 512) {
        struct gr_batch b = {.n_tok = GR_MIN(512, n - at), .token = token};
        for (int32_t i = 0; i < b.n_tok; i++)
            token[i] = (5 + 37 * i + at / 7) % N_VOCAB;
        cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error_message());
    }
}

static void put(struct gr_session *s, int32_t seq, const struct text *t)
{
    cr_assert_eq(gr_state_load(s, seq, t->data, t->bytes, NULL, NULL), 0, "%s", gr_error_message());
}

/* One more token of each of the first n_seq texts; their logits to `out` unless it is NULL. */
static void step(struct gr_session *s, int32_t n_seq, float *out)
{
    int32_t token[N_SEQ], seq[N_SEQ];
    int8_t all[N_SEQ];
    for (int32_t i = 0; i < n_seq; i++)
        token[i] = 11 + i, seq[i] = i, all[i] = 1;
    struct gr_batch b = {.n_tok = n_seq, .token = token, .seq = seq, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error_message());
    for (int32_t i = 0; out && i < n_seq; i++)
        memcpy(out + i * N_VOCAB, gr_logits(s, i), N_VOCAB * sizeof *out);
}

static void save(const struct way *w, const char *path, const int32_t *n_tok, struct text *t, int n)
{
    struct gr_model *m;
    struct gr_session *s = begin(w, path, "none", 8192, &m);
    for (int i = 0; i < n; i++) {
        gr_kv_clear(s);
        feed(s, n_tok[i]);
        cr_assert_eq(gr_state_save(s, 0, NULL, 0, &t[i].data, &t[i].bytes), 0);
    }
    end(&s, &m);
}

/* ---- tests ---- */

static const struct way ways[] = {
    {"llama", 0}, {"llama", 4}, {"gemma3", 0}, {"falcon-h1", 0}, {"bloom", 0}};

/* Texts from 40 tokens to 4,090: the graph of a single token and the one of three texts. */
Test(lists, one_graph_for_a_shape)
{
    static const int32_t length[] = {40, 1100, MOST, 300};
    enum { N = GR_COUNT(length) };
    for (size_t i = 0; i < GR_COUNT(ways); i++) {
        const char *path = write_model(&ways[i]);
        struct text t[N];
        struct gr_model *m;
        save(&ways[i], path, length, t, N);
        struct gr_session *s = begin(&ways[i], path, "EMU0", 8192, &m);
        int64_t before = count("cuGraphInstantiateWithFlags");
        for (int k = 0; k < N; k++) {
            gr_kv_clear(s);
            put(s, 0, &t[k]);
            put(s, 1, &t[0]);
            put(s, 2, &t[1]);
            for (int j = 0; j < 2 - (k > 1); j++) /* the second of a shape makes its graph */
                step(s, 1, NULL), step(s, N_SEQ, NULL);
        }
        cr_expect_eq(count("cuGraphInstantiateWithFlags") - before, 2, "%s: %lld graphs",
                     ways[i].arch, (long long)(count("cuGraphInstantiateWithFlags") - before));
        end(&s, &m);
        for (int k = 0; k < N; k++)
            gr_state_free(t[k].data);
        unlink(path);
    }
}

/* Lists kept from step to step, against lists written anew for each, as texts grow, lose a part,
 * move and share cells. */
static void play(struct gr_session *s, const struct text *t, bool parts, bool anew, float *out)
{
    for (int32_t q = 0; q < N_SEQ; q++)
        put(s, q, t);
    for (int i = 0; i < N_STEP; i++, out += N_SEQ * N_VOCAB) {
        int32_t pos = gr_kv_seq_pos_max(s, 1);
        if (parts && i == 2)
            cr_assert_eq(gr_kv_seq_rm(s, 1, 100, 120) | gr_kv_seq_add(s, 1, 120, -1, -20), 0);
        if (parts && i == 4)
            cr_assert_eq(gr_kv_seq_rm(s, 0, pos - 3, -1), 0);
        if (i == 6)
            cr_assert_eq(gr_kv_seq_rm(s, 2, -1, -1) | gr_kv_seq_cp(s, 1, 2, -1, -1), 0);
        if (anew)
            gr_lists_invalidate(s);
        step(s, i == 5 ? 1 : N_SEQ, out);
    }
}

/* Sessions of 2,560 cells and of 8,192, lists kept and not: the same bits. */
Test(lists, the_same_bits_whatever_the_room)
{
    static const int32_t length = 760;
    static float want[N_STEP * N_SEQ * N_VOCAB], got[N_STEP * N_SEQ * N_VOCAB];
    for (size_t i = 0; i < GR_COUNT(ways); i++) {
        const char *path = write_model(&ways[i]);
        struct text t;
        save(&ways[i], path, &length, &t, 1);
        for (int k = 0; k < 3; k++) {
            struct gr_model *m;
            struct gr_session *s = begin(&ways[i], path, "EMU0", k ? 8192 : 2560, &m);
            play(s, &t, !tiny_keeps_states(m), k == 1, k ? got : want);
            cr_expect(!k || memcmp(want, got, sizeof got) == 0, "%s: %s", ways[i].arch,
                      k == 1 ? "more room" : "lists are kept");
            end(&s, &m);
        }
        gr_state_free(t.data);
        unlink(path);
    }
}
