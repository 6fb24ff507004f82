/* Whole models on the emulated GPU beside the CPU: every architecture, with all layers there and
 * with half of them, through everything that moves cells. With graphs and without, the bits are the
 * same.
 */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"
#include "models/tiny.h"

#define N_VOCAB 96
#define MOST_ROWS 48

struct way {
    const char *device;
    int32_t n_gpu; /* -2: half */
    bool no_kv_offload, no_graphs;
    const char *dtype; /* of the matrices */
};

struct play {
    struct gr_model *m;
    struct gr_session *s;
    float out[MOST_ROWS * N_VOCAB];
    int n;
};

static void open_play(struct play *p, const struct gr_arch *arch, const struct way *w)
{
    struct tiny t = tiny_default(arch);
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    t.dtype = w->dtype;
    mp.device = w->device, mp.n_gpu_layers = w->n_gpu == -2 ? (t.n_layer + 1) / 2 : w->n_gpu;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&p->m, path, &mp), 0, "%s: %s", arch->name, gr_error());
    unlink(path);
    sp.n_ctx = 256, sp.n_threads = 1, sp.n_ubatch = arch->no_cache ? 32 : 9, sp.n_seq_max = 2;
    sp.type_k = sp.type_v = "f32";
    sp.no_kv_offload = w->no_kv_offload, sp.no_graphs = w->no_graphs;
    p->s = tiny_session(p->m, &sp);
    p->n = 0;
}

static void close_play(struct play *p)
{
    gr_session_close(&p->s);
    gr_model_close(&p->m);
}

static void decode(struct play *p, int32_t seq, int32_t pos, int n)
{
    int32_t id[32], at[32], of[32];
    int8_t all[32];
    for (int i = 0; i < n; i++)
        id[i] = (5 + 37 * (pos + i) + seq) % N_VOCAB, at[i] = pos + i, of[i] = seq, all[i] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = at, .seq = of, .logits = all};
    cr_assert_eq(gr_decode(p->s, &b), 0, "%s: %s", p->m->arch->name, gr_error());
    for (int i = 0; i < n; i++)
        memcpy(p->out + (size_t)p->n++ * N_VOCAB, gr_logits(p->s, i), N_VOCAB * sizeof(float));
}

static void play(struct play *p)
{
    decode(p, 0, 0, 14);
    if (p->m->hp.no_cache)
        return;
    decode(p, 0, 14, 1);
    decode(p, 1, 0, 5);
    if (!tiny_keeps_states(p->m)) {
        cr_assert_eq(gr_kv_seq_rm(p->s, 1, 2, -1), 0, "%s", gr_error());
        cr_assert_eq(gr_kv_defrag(p->s), 0, "%s", gr_error());
        if (!tiny_learned_positions(p->m))
            cr_assert_eq(gr_kv_seq_add(p->s, 0, 0, -1, 2), 0, "%s", gr_error());
    }
    decode(p, 0, gr_kv_seq_pos_max(p->s, 0) + 1, 3);
}

/* An architecture's logits on the CPU, which those of every way agree with to a NMSE of 1e-5 (sums
 * of at most some hundred products, in another order, with activations as f16 or int8 pieces). */
static void compare(const struct gr_arch *arch, const struct way *way, size_t n)
{
    static struct play want, got;
    const struct way cpu = {"none", 0, false, false, way[0].dtype};
    open_play(&want, arch, &cpu);
    play(&want);
    for (size_t k = 0; k < n; k++) {
        struct gr_model_info info;
        open_play(&got, arch, &way[k]);
        gr_model_info(got.m, &info);
        cr_expect(info.n_gpu_layers > 0);
        play(&got);
        cr_assert_eq(got.n, want.n);
        double e = tiny_nmse(want.out, got.out, (size_t)got.n * N_VOCAB);
        cr_expect(e <= 1e-5, "%s, way %zu: %g", arch->name, k, e);
        close_play(&got);
    }
    close_play(&want);
}

Test(placed, every_architecture, .timeout = 800)
{
    static const struct way way[] = {{"emu", 99, false, false, NULL},
                                     {"emu", -2, false, false, NULL}};
    for (int i = 0; gr_arch_at(i); i++)
        compare(gr_arch_at(i), way, GR_COUNT(way));
}

/* Whether a step is one graph or launched kernel by kernel changes no bit; nor do K and V on the
 * host change more than the order of sums. */
Test(placed, graphs_and_caches, .timeout = 400)
{
    static const char *const arch[] = {"llama", "gemma2", "qwen35", "deepseek2", "gpt-oss"};
    static const struct way way[] = {{"emu", 99, true, false, NULL}, {"emu", -2, true, true, NULL}};
    static struct play a, b;
    for (size_t i = 0; i < GR_COUNT(arch); i++) {
        const struct gr_arch *of = gr_arch_find((struct gr_str){arch[i], strlen(arch[i])});
        cr_assert_not_null(of, "%s", arch[i]);
        compare(of, way, GR_COUNT(way));
        for (int n = 0; n < 2; n++) {
            struct way with = {"emu", n ? -2 : 99, false, false, "q4_0"}, without = with;
            without.no_graphs = true;
            open_play(&a, of, &with);
            open_play(&b, of, &without);
            play(&a), play(&b);
            cr_expect_eq(memcmp(a.out, b.out, (size_t)a.n * N_VOCAB * sizeof(float)), 0, "%s, %d",
                         arch[i], n);
            close_play(&a), close_play(&b);
        }
    }
}
