/* What tests/golden/sampling/make.py has computed with NumPy. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "gr/status.h"
#include "sample/dry.h"

#define N_PICKS 24
#define N_PROMPT 24
#define MOST 256

/* ---- picks ---- */

struct golden {
    struct gr_sampler_params p;
    int32_t scale, pick[N_PICKS];
};

static bool read_case(FILE *f, struct golden *g)
{
    struct gr_sampler_params *p = &g->p;
    unsigned long seed;
    *p = gr_sampler_params_default();
    memset(p->samplers, 0, sizeof p->samplers);
    int n = fscanf(f, "%lu %d %d %d %31s %f %d %f %f %f %f %f %f %f %f", &seed, &p->n_vocab,
                   &p->n_ctx, &g->scale, p->samplers, &p->temp, &p->top_k, &p->top_p, &p->min_p,
                   &p->typical_p, &p->top_n_sigma, &p->xtc_probability, &p->xtc_threshold,
                   &p->dynatemp_range, &p->dynatemp_exponent);
    if (n < 1)
        return false;
    n += fscanf(f, "%d %f %f %f %f %f %d %d %f %f %d %f %f :", &p->penalty_last_n,
                &p->penalty_repeat, &p->penalty_freq, &p->penalty_present, &p->dry_multiplier,
                &p->dry_base, &p->dry_allowed_length, &p->dry_penalty_last_n, &p->adaptive_target,
                &p->adaptive_decay, &p->mirostat, &p->mirostat_tau, &p->mirostat_eta);
    for (int i = 0; i < N_PICKS; i++)
        n += fscanf(f, "%d", &g->pick[i]);
    cr_assert_eq(n, 15 + 13 + N_PICKS);
    p->seed = seed;
    return true;
}

static void fill_logits(const struct golden *g, int64_t step, float *logits)
{
    int64_t salt = (int64_t)g->p.seed;
    for (int64_t i = 0; i < g->p.n_vocab; i++) {
        int64_t x = (i * i * 31 + i * 73 * (step + 1) + step * step * 151 + salt * 17) % 257 - 128;
        logits[i] = (float)x / (float)g->scale;
    }
}

static void check_case(const struct golden *g, int number)
{
    float logits[MOST];
    struct gr_sampler *s;
    int32_t id, n_prompt = g->p.n_vocab < 5 ? g->p.n_vocab : 5;
    cr_assert_eq(gr_sampler_new(&s, &g->p), 0, "case %d: %s", number, gr_error());
    for (int i = 0; i < N_PROMPT; i++) {
        id = (int32_t)(((uint64_t)(i * i + i / 7) + g->p.seed) % (uint64_t)n_prompt);
        cr_assert_eq(gr_sampler_accept(s, id), 0);
    }
    for (int step = 0; step < N_PICKS; step++) {
        fill_logits(g, step, logits);
        cr_assert_eq(gr_sampler_pick(s, logits, &id), 0, "%s", gr_error());
        cr_assert_eq(id, g->pick[step], "case %d (%s), step %d: %d picked, %d expected", number,
                     g->p.samplers, step, id, g->pick[step]);
        cr_assert_eq(gr_sampler_accept(s, id), 0);
    }
    gr_sampler_free(&s);
}

Test(golden_sampling, picks)
{
    FILE *f = fopen(GR_SOURCE_DIR "/tests/golden/sampling/picks.txt", "r");
    struct golden g;
    int n = 0;
    cr_assert(f);
    for (; read_case(f, &g); n++)
        check_case(&g, n);
    fclose(f);
    cr_assert_eq(n, 400);
}

/* ---- DRY ---- */

static int32_t read_list(FILE *f, int32_t *list)
{
    int32_t n = 0;
    cr_assert(fscanf(f, "%d", &n) == 1 && n >= 0 && n <= MOST);
    for (int32_t i = 0; i < n; i++)
        cr_assert_eq(fscanf(f, "%d", &list[i]), 1);
    return n;
}

static void check_penalties(FILE *f, struct gr_dry *d, int number)
{
    const struct gr_dry_penalty *list;
    int32_t n, n_list = gr_dry_penalties(d, &list);
    cr_assert_eq(fscanf(f, "%d", &n), 1);
    cr_expect_eq(n_list, n, "case %d: %d penalties, %d expected", number, n_list, n);
    for (int32_t i = 0, found; i < n; i++) {
        int32_t id;
        double penalty;
        cr_assert_eq(fscanf(f, "%d %lf", &id, &penalty), 2);
        for (found = 0; found < n_list && list[found].id != id;)
            found++;
        cr_assert(found < n_list, "case %d: none for token %d", number, id);
        cr_expect_float_eq(list[found].penalty, penalty, 1e-6 * penalty, "case %d: token %d",
                           number, id);
    }
}

Test(golden_sampling, dry)
{
    FILE *f = fopen(GR_SOURCE_DIR "/tests/golden/sampling/dry.txt", "r");
    struct gr_dry_params p;
    int n = 0;
    cr_assert(f);
    for (; fscanf(f, "%d %d %d %f %f", &p.n_vocab, &p.window, &p.allowed, &p.base, &p.multiplier) ==
           5;
         n++) {
        int32_t text[MOST], token[MOST], n_breaker = 0;
        int32_t n_text = read_list(f, text);
        struct gr_breakers b = {0};
        struct gr_dry *d;
        cr_assert_eq(fscanf(f, "%d", &n_breaker), 1);
        for (int32_t i = 0; i < n_breaker; i++) {
            int32_t n_token = read_list(f, token);
            cr_assert_eq(gr_breakers_add(&b, token, n_token), 0);
        }
        cr_assert_eq(gr_dry_new(&d, &p, &b), 0);
        for (int32_t i = 0; i < n_text; i++)
            gr_dry_accept(d, text[i]);
        check_penalties(f, d, n);
        gr_dry_free(&d);
    }
    fclose(f);
    cr_assert_eq(n, 160);
}
