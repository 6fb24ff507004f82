/* Number of kernels of a layer in a decode step: each takes about a microsecond of a GPU's time in
 * which no weights move. The bounds are today's numbers: a change that needs more launches changes
 * them here. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "support/tiny.h"
#include "tests/emu/session/emulator.h"

#define N_VOCAB 96

enum { MOST = 80 }; /* tokens of a batch */

static int64_t (*count)(const char *symbol);

static void setup(void)
{
    *(void **)(void *)&count = emu_symbol("emu_driver_count");
}

TestSuite(launches, .init = setup);

/* n tokens behind those of the session, the last n_second of another text. */
static void decode(struct gr_session *s, int32_t n, int32_t n_second)
{
    int32_t id[MOST], seq[MOST];
    for (int32_t i = 0; i < n; i++)
        id[i] = (5 + 37 * i) % N_VOCAB, seq[i] = i >= n - n_second;
    struct gr_batch b = {.n_tok = n, .token = id, .seq = seq};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
}

/* Launches of the third batch of a session, of as many tokens as the others, a graph by then, and
 * how many of them may begin before the preceding one is over. */
struct step {
    int64_t n, early;
};

static struct step step(const struct gr_arch *arch, const char *dtype, int n_layer, int32_t n,
                        int32_t n_second)
{
    struct tiny t = tiny_default(arch);
    t.dtype = dtype;
    t.first_expert = tiny_needs_experts(arch) ? t.first_expert : n_layer;
    if (n > 1) /* heads, columns and feed-forward as kernels for many tokens have them */
        t.n_embd = 256, t.n_head_kv = 1, t.d_head = 64, t.n_ff = 512, t.n_ctx = 4 * MOST;
    tiny_set_layers(&t, n_layer);
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    mp.n_gpu_layers = n_layer + 1;
    sp.n_ctx = n > 1 ? 4 * MOST : 64, sp.n_threads = 1, sp.n_seq_max = 1 + (n_second > 0);
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    cr_assert_eq(gr_session_open(&s, m, &sp), 0, "%s", gr_error());
    decode(s, n, n_second);
    decode(s, n, n_second);
    struct step before = {count("kernel"), count("early")};
    decode(s, n, n_second);
    struct step after = {count("kernel"), count("early")};
    gr_session_close(&s);
    gr_model_close(&m);
    unlink(path);
    return (struct step){after.n - before.n, after.early - before.early};
}

Test(launches, of_a_layer)
{
    static const struct {
        const char *arch;
        int period; /* layers of every kind */
        int most;   /* launches of so many */
    } cases[] = {{"llama", 1, 5},   {"qwen3", 1, 5},     {"qwen3moe", 1, 6},
                 {"gemma3", 6, 30}, {"qwen2moe", 1, 12}, {"gpt-oss", 1, 8}};
    for (size_t i = 0; i < GR_COUNT(cases); i++) {
        const struct gr_arch *arch =
            gr_arch_find((struct gr_str){cases[i].arch, strlen(cases[i].arch)});
        struct step few = step(arch, "f16", cases[i].period, 1, 0),
                    more = step(arch, "f16", 2 * cases[i].period, 1, 0);
        cr_expect_leq(more.n - few.n, cases[i].most, "%s: %lld launches for %d layers",
                      cases[i].arch, (long long)(more.n - few.n), cases[i].period);
        cr_expect_eq(more.early - few.early, more.n - few.n, "%s", cases[i].arch);
    }
}

/* Counts the launches of a prompt's layer: norm; Q, K and V, K and V to the cache; attention, which
 * turns Q; output; norm; gate and up; one factor a row; down. */
Test(launches, of_a_prompt)
{
    const struct gr_arch *llama = gr_arch_find((struct gr_str){"llama", 5});
    struct step one = step(llama, "q8_0", 1, MOST, 0), two = step(llama, "q8_0", 2, MOST, 0);
    cr_expect_leq(two.n - one.n, 8, "%lld launches of a layer", (long long)(two.n - one.n));
    cr_expect_eq(two.early - one.early, two.n - one.n);
}

/* The same of a prompt and a short text: Q is turned for both, and attention of short texts and one
 * factor a row come as well. */
Test(launches, of_a_prompt_and_a_text)
{
    const struct gr_arch *llama = gr_arch_find((struct gr_str){"llama", 5});
    struct step one = step(llama, "q8_0", 1, MOST, 5), two = step(llama, "q8_0", 2, MOST, 5);
    cr_expect_eq(two.n - one.n, 11, "%lld launches of a layer", (long long)(two.n - one.n));
}
