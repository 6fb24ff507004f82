/* A decode step allocates nothing: not by base/alloc.h, and not by malloc in any other way or
 * thread. What it needs is there once a plan for its shape was made, and lists of cells have room
 * for more than the next one. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/timed.h"
#include "support/tiny.h"

/* ---- malloc and its kin, counted ---- */

static _Atomic uint64_t n_malloc;

#ifndef GR_OWN_MALLOC
#define GR_OWN_MALLOC 1
#endif
#if GR_OWN_MALLOC
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n)
{
    n_malloc++;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    n_malloc++;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    n_malloc++;
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    n_malloc++;
    return __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    n_malloc++;
    *p = __libc_memalign(align, n);
    return *p ? 0 : 12; /* ENOMEM */
}
#endif

/* ---- steps ---- */

enum { N_SEQ = 4, N_WARM = 4, N_STEP = 32 };

/* One more token of each of n_seq texts; where there is a sampler, drawn from the logits of the
 * step before. */
static void step(struct gr_session *s, struct gr_sampler *sampler, int32_t n_seq, bool first)
{
    int32_t token[N_SEQ], seq[N_SEQ];
    int8_t logits[N_SEQ];
    for (int32_t i = 0; i < n_seq; i++) {
        token[i] = 1 + i, seq[i] = i, logits[i] = 1;
        if (sampler && !first)
            cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, i), &token[i]), 0, "%s",
                         gr_error_message());
    }
    struct gr_batch b = {.n_tok = n_seq, .token = token, .seq = seq, .logits = logits};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error_message());
}

/* Allocations in N_STEP steps of n_seq texts, after the first ones. */
static uint64_t count(struct gr_session *s, struct gr_sampler *sampler, int32_t n_seq)
{
    gr_kv_clear(s);
    for (int i = 0; i < N_WARM; i++)
        step(s, sampler, n_seq, i == 0);
    (void)gr_alloc_fail_at(0, 0);
    uint64_t before = n_malloc;
    for (int i = 0; i < N_STEP / n_seq; i++)
        step(s, sampler, n_seq, false);
    return gr_alloc_fail_at(0, 0) + (n_malloc - before);
}

struct subject {
    struct gr_model *model;
    struct gr_session *session;
    struct gr_sampler *sampler;
};

/* Its layers are on the CPU (n_layer_gpu 0), on the device, or on both. */
static struct subject make(const char *arch, int32_t n_layer_gpu, uint32_t n_ctx)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_sampler_params dp = gr_sampler_params_default();
    struct gr_model_info info;
    struct subject u = {0};
    char path[256];
    timed_use(1, 0, true);
    t.n_ctx = (int)n_ctx;
    tiny_set_layers(&t, 4);
    snprintf(path, sizeof path, "%s", tiny_write(&t, NULL));
    mp.n_gpu_layers = n_layer_gpu;
    cr_assert_eq(gr_model_open(&u.model, path, &mp), 0, "%s: %s", arch, gr_error_message());
    unlink(path);
    sp.n_ctx = n_ctx, sp.n_seq_max = N_SEQ, sp.n_threads = sp.n_threads_batch = n_layer_gpu ? 1 : 2;
    cr_assert_eq(gr_session_open(&u.session, u.model, &sp), 0, "%s: %s", arch, gr_error_message());
    gr_model_info(u.model, &info);
    cr_assert_eq(info.n_gpu_layers > 0, n_layer_gpu > 0);
    dp.n_vocab = info.n_vocab, dp.n_ctx = (int32_t)n_ctx;
    cr_assert_eq(gr_sampler_new(&u.sampler, &dp), 0, "%s", gr_error_message());
    return u;
}

static void drop(struct subject *u)
{
    gr_sampler_free(&u->sampler);
    gr_session_close(&u->session);
    gr_model_close(&u->model);
}

static void expect_none(const char *arch, int32_t n_layer_gpu)
{
    struct subject u = make(arch, n_layer_gpu, 1024);
    for (int32_t n_seq = 1; n_seq <= N_SEQ; n_seq += N_SEQ - 1) {
        uint64_t n = count(u.session, u.sampler, n_seq);
        cr_expect_eq(n, 0, "%s, %d layers on the device, %d texts: %llu allocations", arch,
                     n_layer_gpu, n_seq, (unsigned long long)n);
    }
    drop(&u);
}

Test(step, no_allocations)
{
    static const char *const arch[] = {"llama",     "qwen3moe", "gemma3",
                                       "deepseek2", "mamba2",   "falcon-h1"};
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++) {
        expect_none(arch[i], 0);
        expect_none(arch[i], 2);
        expect_none(arch[i], 99);
    }
}

/* Beside the first step, only those allocate in which the notes about a text's cells, or lists,
 * come to need twice the room. */
Test(step, allocations_are_few)
{
    enum { N_CELL = 1024, DOUBLINGS = 2 };
    struct subject u = make("llama", 99, N_CELL);
    int n = 0;
    for (int i = 0; i < N_CELL; i++) {
        uint64_t before = n_malloc;
        (void)gr_alloc_fail_at(0, 0);
        step(u.session, u.sampler, 1, i == 0);
        n += gr_alloc_fail_at(0, 0) + (n_malloc - before) > 0;
    }
    cr_expect(n > 0 && n <= 2 + DOUBLINGS, "%d steps of %d have allocated", n, N_CELL);
    drop(&u);
}

/* The counter counts. */
Test(step, allocations_are_counted)
{
    uint64_t before = n_malloc;
    (void)gr_alloc_fail_at(0, 0);
    void *volatile p = gr_calloc(1, 1);
    gr_free(p);
    cr_expect_eq(gr_alloc_fail_at(0, 0), 1);
    p = malloc(1);
    free(p);
    cr_expect_eq(n_malloc > before, GR_OWN_MALLOC);
}
