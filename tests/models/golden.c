/* Logits of every architecture against another implementation's (tests/golden/models/make.py). */
#include "support/golden.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "engine/session.h"
#include "gr/status.h"

#define N_VOCAB 96
#define N_ROW 15

static float want[N_ROW][N_VOCAB], got[N_ROW][N_VOCAB];

static int32_t token(int i)
{
    return (5 + 37 * i) % N_VOCAB;
}

static void decode(struct gr_session *s, int first, int n, const int32_t *pos, const int32_t *seq)
{
    int32_t id[12];
    int8_t all[12];
    for (int i = 0; i < n; i++)
        id[i] = token(first + i), all[i] = 1;
    struct gr_batch b = {.n_tok = n, .token = id, .pos = pos, .seq = seq, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    for (int i = 0; i < n; i++)
        memcpy(got[first + i], tiny_row(s, i), sizeof *got);
}

typedef int run_fn(struct gr_model *m, enum gr_cpu_level level);

/* Returns how many rows there are: the last one comes behind a shift. */
static int run(struct gr_model *m, enum gr_cpu_level level)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_seq_max = 2, p.type_k = "f32", p.type_v = "f32";
    struct gr_session *s = tiny_session_at(m, level, &p);
    decode(s, 0, 12, NULL, NULL);
    cr_assert_eq(gr_kv_seq_cp(s, 0, 1, -1, -1), 0);
    decode(s, 12, 2, (int32_t[]){12, 12}, (int32_t[]){0, 1});
    cr_assert_eq(gr_kv_seq_rm(s, 0, 2, 5), 0);
    bool moves = !tiny_learned_positions(m); /* learned ones stay what they were stored with */
    cr_assert_eq(gr_kv_seq_add(s, 0, 5, -1, -3), moves ? 0 : GR_E_UNSUPPORTED, "%s", gr_error());
    if (moves)
        decode(s, 14, 1, (int32_t[]){10}, NULL);
    gr_session_close(&s);
    return moves ? N_ROW : N_ROW - 1;
}

/* F32 on both sides: sums of at most 96 terms in another order. The other side looks GELU up in a
 * table of binary16 (11 bits of argument and result), which two layers of feed-forward carry to the
 * logits. */
static double tolerance(const struct gr_arch *a)
{
    bool gelu = strncmp(a->name, "gemma", 5) == 0 || a->norm == GR_NORM_LAYER;
    return gelu ? 1e-6 : 1e-11;
}

static void compare(const char *name, enum gr_cpu_level level, int n_row, double most)
{
    for (int r = 0; r < n_row; r++) {
        double e = tiny_nmse(want[r], got[r], N_VOCAB);
        cr_expect(e <= most, "%s, %s, row %d: %g", name, gr_cpu_level_name(level), r, e);
    }
}

/* Compares a model with NAME.f32 at every CPU level of this processor. */
static void compare_levels(struct gr_model *m, const char *name, run_fn *run_at, double most)
{
    char path[512];
    snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/models/%s.f32", name);
    FILE *f = fopen(path, "rb");
    cr_assert(f && fread(want, sizeof want, 1, f) == 1, "%s", path);
    fclose(f);
    for (enum gr_cpu_level l = GR_CPU_REF; l < GR_CPU_N_LEVEL; l++)
        if (gr_cpu_has(l))
            compare(name, l, run_at(m, l), most);
}

/* ---- adapters ---- */

static struct gr_model *open_adapted(const struct tiny *t, const char *name)
{
    static struct adapter a[GOLDEN_ADAPTERS];
    struct gr_adapter list[GOLDEN_ADAPTERS];
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m = tiny_open(t);
    char path[64];
    for (int k = 0; k < GOLDEN_ADAPTERS; k++) {
        snprintf(path, sizeof path, "/tmp/golden-%d-%d.gguf", (int)getpid(), k);
        golden_adapter(&a[k], k, m, path);
        list[k] = (struct gr_adapter){a[k].path, a[k].scale};
    }
    gr_model_close(&m);
    p.adapters = list, p.n_adapter = GOLDEN_ADAPTERS;
    const char *file = tiny_write(t, NULL);
    cr_assert_eq(gr_model_open(&m, file, &p), 0, "%s: %s", name, gr_error());
    unlink(file);
    for (int k = 0; k < GOLDEN_ADAPTERS; k++)
        adapter_release(&a[k]);
    return m;
}

/* The same with two adapters (LoRA) that that implementation applied. W x + s B (A x) rounds twice
 * where W x does once: twice the error, four times its square. */
Test(golden, adapters_are_applied_as_by_another_implementation)
{
    int n = 0;
    for (int i = 0; i < GOLDEN_N; i++) {
        char name[32], file[48];
        struct tiny t = golden_model(i, name);
        if (!golden_has_adapters(name))
            continue;
        struct gr_model *m = open_adapted(&t, name);
        snprintf(file, sizeof file, "%s.lora", name);
        compare_levels(m, file, run, 4 * tolerance(t.arch));
        gr_model_close(&m);
        n++;
    }
    cr_assert_eq(n, 6);
}

/* ---- vectors in place of tokens ---- */

/* make.py has the numbers. */
static int run_given(struct gr_model *m, enum gr_cpu_level level)
{
    struct gr_session_params p = gr_session_params_default();
    static float x[N_ROW * 96];
    static int8_t all[N_ROW];
    int n = N_ROW * m->hp.n_embd;
    p.n_ctx = 256, p.type_k = "f32", p.type_v = "f32";
    struct gr_session *s = tiny_session_at(m, level, &p);
    cr_assert_leq(n, (int)(sizeof x / sizeof *x));
    for (int k = 0; k < n; k++)
        x[k] = (float)(29 * k % 61 - 30) / 16;
    memset(all, 1, sizeof all);
    struct gr_batch b = {.n_tok = N_ROW, .embd = x, .logits = all};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error());
    for (int i = 0; i < N_ROW; i++)
        memcpy(got[i], tiny_row(s, i), sizeof *got);
    gr_session_close(&s);
    return N_ROW;
}

Test(golden, vectors_are_taken_as_by_another_implementation)
{
    static const char *const given[] = {"llama", "gemma", "gemma3", "gpt2", "granite"};
    for (int i = 0; i < GOLDEN_N; i++) {
        char name[32], file[48];
        struct tiny t = golden_model(i, name);
        bool compared = false;
        for (size_t k = 0; k < sizeof given / sizeof *given; k++)
            compared |= strcmp(name, given[k]) == 0;
        if (!compared)
            continue;
        struct gr_model *m = tiny_open(&t);
        snprintf(file, sizeof file, "%s.given", name);
        compare_levels(m, file, run_given, tolerance(t.arch));
        gr_model_close(&m);
    }
}

/* ---- tokens ---- */

Test(golden, logits_are_those_of_another_implementation)
{
    for (int i = 0; i < GOLDEN_N; i++) {
        char name[32];
        struct tiny t = golden_model(i, name);
        struct gr_model *m = tiny_open(&t);
        compare_levels(m, name, run, tolerance(t.arch));
        if (strcmp(name, "mpt") == 0) /* the same by its definition in f64 (exact.py) */
            compare_levels(m, "mpt-exact", run, 1e-11);
        gr_model_close(&m);
    }
}
