/* Layers over several ranks and devices of different memory: what is chosen beside everything that
 * could have been. Nothing is loaded. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"
#include "models/fake.h"
#include "placement/measure.h"
#include "support/tiny.h"

#define PLENTY (64u << 20)

enum { N_LAYER = 7, N_RANK = 3 };

static struct tiny model_of_layers(void)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    t.n_layer = N_LAYER, t.no_optional = true, t.n_expert = 0;
    t.n_head = t.n_head_kv = 2, t.d_head = 32; /* whole blocks of q8_0 */
    return t;
}

static struct gr_model *open_model(const struct tiny *t, struct gr_model_params p)
{
    struct gr_model *m;
    const char *path = tiny_write(t, NULL);
    int rc = gr_model_open(&m, path, &p);
    unlink(path);
    cr_assert_eq(rc, 0, "%s", gr_error());
    return m;
}

static struct gr_model_params on_ranks(const char *device, int32_t n_rank, const char *split)
{
    struct gr_model_params p = gr_model_params_default();
    p.device = device, p.n_rank = n_rank, p.tensor_split = split, p.n_gpu_layers = 99;
    return p;
}

static struct gr_session_params some_context(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 1024, p.n_threads = 1, p.n_ubatch = 64;
    return p;
}

/* Largest share of a GPU's memory, less a margin, that a split takes; cut: [N_RANK + 1]. */
static double most_in_use(struct gr_model *m, const int32_t *cut)
{
    struct gr_placement p = {.n_stage = N_RANK};
    struct gr_session_params params = some_context();
    double most = 0;
    for (int32_t r = 0; r < N_RANK; r++)
        for (int32_t il = cut[r]; il < cut[r + 1]; il++)
            p.stage[il] = (uint8_t)r, p.layer[il] = 1;
    for (int32_t r = 0; r < N_RANK; r++) {
        struct gr_vec devices = {0};
        cr_assert_eq(gr_rank_devices_survey(m->rank_model[r], &params, &p, &devices), 0, "%s",
                     gr_error());
        const struct gr_rank_device *t = (struct gr_rank_device *)devices.data + 1;
        double has = (double)(t->free_bytes - t->total_bytes / 16);
        if (cut[r] < cut[r + 1])
            most = fmax(most, (double)(t->weights + t->cache + t->work) / has);
        gr_vec_fini(&devices);
    }
    return most;
}

/* The smallest maximum share in use of layers [first, ..), of all splits, each measured. */
static double best_of_all(struct gr_model *m, int32_t first)
{
    double best = INFINITY;
    for (int32_t a = first; a <= N_LAYER + 1; a++)
        for (int32_t b = a; b <= N_LAYER + 1; b++)
            best = fmin(best, most_in_use(m, (int32_t[]){first, a, b, N_LAYER + 1}));
    return best;
}

static double chosen(struct gr_model *m, const struct gr_fit *fit)
{
    int32_t cut[N_RANK + 1] = {fit->device[0].n_layer};
    cr_assert_eq(fit->n_device, 1 + N_RANK);
    for (int32_t r = 0; r < N_RANK; r++) {
        cut[r + 1] = cut[r] + fit->device[r + 1].n_layer;
        cr_expect_eq(fit->device[r + 1].rank, r);
        cr_expect(!fit->device[r + 1].n_layer || fit->device[r + 1].first == cut[r]);
    }
    cr_assert_eq(cut[N_RANK], N_LAYER + 1);
    return most_in_use(m, cut);
}

static void resize_all(struct gr_rng *r, uint64_t least, uint64_t most)
{
    for (int i = 0; i < N_RANK; i++)
        fake_resize(i, least + gr_rng_below(r, (uint32_t)(most - least)));
}

Test(world, auto_is_the_best_of_all_splits, .timeout = 120)
{
    struct tiny t = model_of_layers();
    struct gr_rng r = gr_rng_new(31);
    struct gr_session_params params = some_context();
    int n_fits = 0;
    fake_use(N_RANK, PLENTY);
    for (int trial = 0; trial < 25; trial++) {
        struct gr_fit fit;
        resize_all(&r, 300 << 10, 4 << 20);
        struct gr_model *m = open_model(&t, on_ranks("fake", N_RANK, "auto"));
        int rc = gr_model_fit(m, &params, &fit);
        double want = best_of_all(m, 0);
        n_fits += rc == 0;
        if (want <= 1)
            cr_assert_eq(rc, 0, "trial %d: %s", trial, gr_error());
        if (!rc)
            cr_assert(chosen(m, &fit) == want, "trial %d: %g of memory in use, %g is possible",
                      trial, chosen(m, &fit), want);
        gr_model_close(&m);
    }
    cr_expect(n_fits > 8 && n_fits < 25, "%d", n_fits);
}

/* -ngl auto: not one layer more would fit, in whatever split. */
Test(world, as_many_layers_as_fit, .timeout = 120)
{
    struct tiny t = model_of_layers();
    struct gr_rng r = gr_rng_new(32);
    struct gr_session_params params = some_context();
    int seen = 0;
    fake_use(N_RANK, PLENTY);
    for (int trial = 0; trial < 25; trial++) {
        struct gr_model_params p = on_ranks("auto", N_RANK, trial % 2 ? "auto" : NULL);
        struct gr_fit fit;
        p.n_gpu_layers = -1;
        resize_all(&r, 64 << 10, 2500 << 10);
        struct gr_model *m = open_model(&t, p);
        cr_assert_eq(gr_model_fit(m, &params, &fit), 0, "%s", gr_error());
        int32_t first = N_LAYER + 1 - fit.n_gpu_layers;
        cr_expect(chosen(m, &fit) <= 1, "trial %d", trial);
        if (first > 0)
            cr_expect(best_of_all(m, first - 1) > 1, "trial %d: %d layers would fit too", trial,
                      fit.n_gpu_layers + 1);
        seen |= 1 << fit.n_gpu_layers;
        gr_model_close(&m);
    }
    cr_expect(__builtin_popcount((unsigned)seen) > 4, "%x", (unsigned)seen);
}

/* ---- shares ---- */

/* Layers of each rank, as digits. */
static void layers_of(const char *device, int32_t n_rank, int32_t n_gpu, const char *split,
                      char *out)
{
    struct tiny t = model_of_layers();
    struct gr_model_params p = on_ranks(device, n_rank, split);
    struct gr_session_params params = some_context();
    struct gr_fit fit;
    p.n_gpu_layers = n_gpu;
    struct gr_model *m = open_model(&t, p);
    cr_assert_eq(gr_model_fit(m, &params, &fit), 0, "%s", gr_error());
    for (int32_t d = 0; d < fit.n_device; d++)
        *out++ = (char)('0' + fit.device[d].n_layer);
    *out = 0;
    gr_model_close(&m);
}

Test(world, shares)
{
    static const struct {
        const char *device;
        int32_t n_rank, n_gpu;
        const char *split, *want; /* the CPU of rank 0 first; of others where they have no GPU */
    } cases[] = {
        {"fake", 3, 99, "1,1,1", "0332"},     {"fake", 3, 99, "1,0,1", "0404"},
        {"fake", 3, 99, "0,0,1", "0008"},     {"fake", 3, 99, "3/1", "0620"},
        {"fake", 3, 5, "1,1,1", "3221"},      {"fake", 3, 0, "1,1,1", "332"},
        {"none", 3, 99, NULL, "332"},         {"none", 4, 99, "0,1,0,3", "0206"},
        {"none", 1, 99, NULL, "8"},           {"fake", 1, 99, "1,1,2", "0224"},
        {"fake", 2, 99, "1,1,2", "0224"},     {"FAKE1", 2, 99, "1,3", "026"},
        {"FAKE0,FAKE0", 2, 99, "1,1", "044"}, {"FAKE2,FAKE0,FAKE2", 3, 99, "2,1,1", "0422"},
        {"fake", 3, 99, NULL, "0422"}};
    fake_use(3, PLENTY);
    fake_resize(0, 2 * PLENTY);
    for (size_t i = 0; i < GR_COUNT(cases); i++) {
        char got[32];
        layers_of(cases[i].device, cases[i].n_rank, cases[i].n_gpu, cases[i].split, got);
        cr_expect(!strcmp(got, cases[i].want), "case %zu: %s, %s expected", i, got, cases[i].want);
    }
}

/* A device that is named several times is as many, each with a part of its memory. */
Test(world, virtual_devices_share_memory)
{
    struct tiny t = model_of_layers();
    struct gr_session_params params = some_context();
    struct gr_fit fit;
    fake_use(2, PLENTY);
    struct gr_model *m = open_model(&t, on_ranks("FAKE0,FAKE1,FAKE0", 0, "auto"));
    cr_assert_eq(gr_model_fit(m, &params, &fit), 0, "%s", gr_error());
    cr_assert_eq(fit.n_device, 4);
    for (int32_t d = 1; d < 4; d++) {
        cr_expect_eq(fit.device[d].rank, d - 1);
        cr_expect_eq(fit.device[d].free_bytes, d == 2 ? PLENTY : PLENTY / 2);
    }
    cr_expect_lt(fit.device[1].n_layer, fit.device[2].n_layer);
    gr_model_close(&m);
}

/* A rank without a GPU, beside others with one, has its part on its CPU. */
Test(world, ranks_with_and_without_gpus)
{
    static const struct {
        const char *split;
        int32_t n_gpu, want[4]; /* of rank 0's CPU and GPU, rank 1's CPU, rank 2's GPU */
    } cases[] = {
        {"1,1,1", 99, {0, 3, 3, 2}}, {"1,1,1", 5, {3, 2, 2, 1}}, {"1,0,1", 99, {0, 4, 0, 4}}};
    struct tiny t = model_of_layers();
    struct gr_session_params params = some_context();
    struct gr_fit fit;
    fake_use(3, PLENTY);
    for (size_t i = 0; i < GR_COUNT(cases); i++) {
        struct gr_model_params p = on_ranks("fake", 3, cases[i].split);
        p.n_gpu_layers = cases[i].n_gpu;
        struct gr_model *m = open_model(&t, p);
        m->rank_model[1]->devices.n = 0;
        cr_assert_eq(gr_model_fit(m, &params, &fit), 0, "%s", gr_error());
        cr_assert_eq(fit.n_device, 4);
        cr_expect(!strcmp(fit.device[2].name, "CPU") && fit.device[2].rank == 1);
        for (int32_t d = 0; d < 4; d++)
            cr_expect_eq(fit.device[d].n_layer, cases[i].want[d], "case %zu, %d: %d", i, d,
                         fit.device[d].n_layer);
        gr_model_close(&m);
    }
}

Test(world, ranks_that_share_layers_are_alike)
{
    struct tiny t = model_of_layers();
    struct gr_session_params params = some_context();
    struct gr_model_params p = on_ranks("fake", 2, NULL);
    struct gr_fit fit;
    p.split_mode = GR_SPLIT_MODE_TENSOR;
    fake_use(2, PLENTY);
    struct gr_model *m = open_model(&t, p);
    cr_assert_eq(gr_model_fit(m, &params, &fit), 0, "%s", gr_error());
    cr_assert_eq(fit.n_device, 3);
    for (int32_t d = 1; d < 3; d++)
        cr_expect_eq(fit.device[d].n_layer, N_LAYER + 1, "each has a part of every layer");
    m->rank_model[1]->devices.n = 0;
    cr_expect_eq(gr_model_fit(m, &params, &fit), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "ranks 0 and 1 share layers"), "%s", gr_error());
    gr_model_close(&m);
}

Test(world, too_many_shares)
{
    struct tiny t = model_of_layers();
    struct gr_session_params params = some_context();
    struct gr_fit fit;
    fake_use(2, PLENTY);
    struct gr_model *m = open_model(&t, on_ranks("fake", 2, "1,1,1"));
    cr_expect_eq(gr_model_fit(m, &params, &fit), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "at most 2 shares"), "%s", gr_error());
    gr_model_close(&m);
}

/* Layers 3 to 5 attend to the keys of layer 2: they are with it, whatever the shares are. */
Test(world, layers_that_share_keys_stay_together)
{
    static const struct {
        const char *split;
        int32_t n_gpu, want[4]; /* of the CPU and the GPUs */
    } cases[] = {{"1,1,1", 99, {0, 2, 4, 2}}, {"5,2,1", 99, {0, 2, 5, 1}},
                 {"3,5,0", 99, {0, 2, 6, 0}}, {"1,1,1", 4, {4, 2, 1, 1}},
                 {"0,1,1", 4, {2, 0, 4, 2}},  {"1,0,0", 99, {0, 8, 0, 0}}};
    struct gr_session_params params = some_context();
    struct tiny t = model_of_layers();
    struct gr_fit fit;
    fake_use(3, PLENTY);
    for (size_t i = 0; i < GR_COUNT(cases); i++) {
        struct gr_model_params p = on_ranks("fake", 3, cases[i].split);
        p.n_gpu_layers = cases[i].n_gpu;
        struct gr_model *m = open_model(&t, p);
        for (int32_t il = 3; il <= 5; il++) {
            m->hp.attn.kv_of[il] = 2;
            for (int32_t r = 0; r < m->n_rank_model; r++)
                m->rank_model[r]->hp.attn.kv_of[il] = 2;
        }
        cr_assert_eq(gr_model_fit(m, &params, &fit), 0, "%s", gr_error());
        for (int32_t d = 0; d < 4; d++)
            cr_expect_eq(fit.device[d].n_layer, cases[i].want[d], "case %zu, device %d: %d", i, d,
                         fit.device[d].n_layer);
        gr_model_close(&m);
    }
}

/* ---- what is said when nothing fits ---- */

static void take_flag(const char *flag, const char *value, struct gr_model_params *m,
                      struct gr_session_params *s)
{
    if (!strcmp(flag, "-ngl"))
        m->n_gpu_layers = atoi(value);
    else if (!strcmp(flag, "-ts"))
        m->tensor_split = "auto";
    else if (!strcmp(flag, "-c"))
        s->n_ctx = (uint32_t)atoi(value);
    else if (!strcmp(flag, "-ub"))
        s->n_ubatch = (uint32_t)atoi(value);
    else if (!strcmp(flag, "-ctk"))
        s->type_k = "q8_0";
    else if (!strcmp(flag, "-ctv"))
        s->type_v = "q8_0";
    else
        cr_assert_fail("unknown flag %s", flag);
}

static void paste(const char *line, struct gr_model_params *m, struct gr_session_params *s)
{
    char flag[32], value[32];
    int n;
    for (; sscanf(line, " %31s%n", flag, &n) == 1 && flag[0] == '-'; line += n) {
        line += n;
        n = 0;
        if (!strcmp(flag, "--no-kv-offload"))
            s->no_kv_offload = true;
        else if (sscanf(line, " %31s%n", value, &n) == 1)
            take_flag(flag, value, m, s);
    }
}

Test(world, what_the_message_offers_fits, .timeout = 120)
{
    struct tiny t = model_of_layers();
    struct gr_rng r = gr_rng_new(33);
    int n_tried = 0, n_even = 0;
    fake_use(N_RANK, PLENTY);
    for (int trial = 0; trial < 20; trial++) {
        struct gr_model_params p = on_ranks("fake", N_RANK, trial % 3 ? "1,1,1" : NULL);
        struct gr_session_params s = some_context();
        char message[2048];
        struct gr_fit fit;
        resize_all(&r, 300 << 10, 2 << 20);
        struct gr_model *m = open_model(&t, p);
        int rc = gr_model_fit(m, &s, &fit);
        snprintf(message, sizeof message, "%s", rc ? gr_error() : "");
        gr_model_close(&m);
        if (!rc)
            continue;
        cr_assert_eq(rc, GR_E_NOMEM_DEV, "%s", message);
        cr_expect_eq(fit.n_device, 1 + N_RANK, "what does not fit is reported too");
        cr_expect(strstr(message, "\n  rank 0  FAKE0"), "%s", message);
        int lacks = 1; /* the first device that needs more than it has */
        for (; lacks < fit.n_device; lacks++) {
            const struct gr_fit_device *d = &fit.device[lacks];
            if (d->weights + d->cache + d->work > d->free_bytes)
                break;
        }
        char named[64];
        snprintf(named, sizeof named, "not enough memory on %s (", fit.device[lacks].name);
        cr_expect(lacks < fit.n_device && strstr(message, named), "%s: %s", named, message);
        n_even += strstr(message, "-ts auto") != NULL;
        for (char *line = strstr(message, "\n    "); line; line = strstr(line + 1, "\n    ")) {
            struct gr_model_params pasted = p;
            struct gr_session_params with = s;
            paste(line, &pasted, &with);
            m = open_model(&t, pasted);
            cr_expect_eq(gr_model_fit(m, &with, &fit), 0, "trial %d:%.60s\n%s", trial, line,
                         gr_error());
            gr_model_close(&m);
            n_tried++;
        }
    }
    cr_expect(n_tried > 20 && n_even > 0, "%d %d", n_tried, n_even);
}
