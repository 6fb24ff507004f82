/* The message for a model or session that does not fit: the memory needed on each device, and
 * options with which it would fit. */
#include "placement/suggest.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "placement/search.h"

/* A message of several lines. */
struct text {
    char p[2000];
    size_t n;
};

static void append(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void append(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->p + t->n, sizeof t->p - t->n, fmt, ap);
    va_end(ap);
    t->n = GR_MIN(t->n + (size_t)GR_MAX(n, 0), sizeof t->p - 1);
}

const char *gr_mib(char buf[16], uint64_t bytes)
{
    bool large = bytes >= (uint64_t)1 << 30;
    snprintf(buf, 16, "%.1f %s", (double)bytes / (large ? 1 << 30 : 1 << 20),
             large ? "GiB" : "MiB");
    return buf;
}

/* A placement that did not fit, and the message with alternatives. */
struct trouble {
    const struct gr_choice *now;
    int32_t n_gpu; /* layers that were asked for */
    struct text text;
    int n_offer;
};

/* Begins an alternative to the placement that did not fit. */
static int begin_alternative(const struct trouble *t, const struct gr_session_params *params,
                             struct gr_choice *c)
{
    const struct gr_choice *now = t->now;
    *c = (struct gr_choice){.m = now->m,
                            .params = params,
                            .survey = now->survey,
                            .user = now->user,
                            .loaded = now->loaded,
                            .n_cpu_experts = now->n_cpu_experts,
                            .request = now->request};
    return gr_choice_begin(c);
}

/* Returns whether a session with other parameters would fit, by planning one; *cache: bytes of its
 * keys, values and states on GPUs. */
static bool would_fit(const struct trouble *t, const struct gr_session_params *params,
                      uint64_t *cache)
{
    struct gr_choice c;
    bool fits = false;
    int rc = begin_alternative(t, params, &c);
    if (!rc && t->now->loaded) {
        c.place = t->now->place;
        rc = gr_choice_measure(&c, false, &fits);
    } else if (!rc) {
        rc = gr_choice_try(&c, t->n_gpu, false, &fits);
    }
    const struct gr_rank_device *dev = c.taken.data;
    *cache = 0;
    for (size_t i = 0; i < c.taken.n; i++)
        *cache += dev[i].device ? dev[i].cache : 0;
    gr_choice_fini(&c);
    return !rc && fits;
}

/* The caller's parameters, with n_ctx and n_ubatch filled in; defaults that depend on a rank are
 * left open. */
static struct gr_session_params asked(const struct trouble *t)
{
    struct gr_session_params params = *t->now->params;
    params.n_ctx = t->now->full.n_ctx, params.n_ubatch = t->now->full.n_ubatch;
    return params;
}

static void offer(struct trouble *t, const char *flags, const char *what)
{
    if (!t->n_offer++)
        append(&t->text, "\n  any one of these fits:");
    append(&t->text, "\n    %-32s %s", flags, what);
}

static void offer_cache(struct trouble *t, const char *flags, uint64_t cache)
{
    char what[64], bytes[16];
    snprintf(what, sizeof what, "KV cache of %s", gr_mib(bytes, cache));
    offer(t, flags, what);
}

/* Offers a smaller cache: with K and V as q8_0, or with a half, a quarter and so on of the cells,
 * or both. */
static void try_cache(struct trouble *t)
{
    char flags[64];
    uint64_t cache;
    const struct gr_memory *memory = &t->now->memory;
    bool is_small = memory->type_k == GR_Q8_0 && memory->type_v == GR_Q8_0;
    for (int q8 = 0; q8 < (is_small ? 1 : 2); q8++) {
        struct gr_session_params params = asked(t);
        const char *types = q8 ? "-ctk q8_0 -ctv q8_0" : "";
        if (q8)
            params.type_k = params.type_v = "q8_0";
        if (q8 && would_fit(t, &params, &cache)) {
            offer_cache(t, types, cache);
            continue;
        }
        while (params.n_ctx > 256) {
            params.n_ctx = GR_PAD(params.n_ctx / 2, 256);
            if (!would_fit(t, &params, &cache))
                continue;
            snprintf(flags, sizeof flags, "-c %u%s%s", params.n_ctx, q8 ? " " : "", types);
            offer_cache(t, flags, cache);
            break;
        }
    }
}

static void try_batch(struct trouble *t)
{
    struct gr_session_params params = asked(t);
    uint64_t cache;
    char flags[32];
    while (params.n_ubatch > 32) {
        params.n_ubatch /= 2;
        if (!would_fit(t, &params, &cache))
            continue;
        snprintf(flags, sizeof flags, "-ub %u", params.n_ubatch);
        offer(t, flags, "reads prompts in smaller pieces");
        return;
    }
}

static void try_host_cache(struct trouble *t)
{
    struct gr_session_params params = asked(t);
    uint64_t cache;
    if (params.no_kv_offload)
        return;
    params.no_kv_offload = true;
    if (would_fit(t, &params, &cache))
        offer(t, "--no-kv-offload", "keys and values in host memory, attention on the CPU");
}

/* Offers the same layers, divided by the memory that they take. */
static void try_even(struct trouble *t)
{
    struct gr_choice c;
    struct gr_split_request even = {.mode = t->now->request->mode, .even_memory = true};
    bool fits = false;
    if (!t->now->request->n_share || t->now->request->mode == GR_SPLIT_MODE_NONE)
        return;
    int rc = begin_alternative(t, t->now->params, &c);
    c.request = &even;
    if (!rc && !gr_choice_try(&c, t->n_gpu, false, &fits) && fits)
        offer(t, "-ts auto", "layers divided by what they take");
    gr_choice_fini(&c);
}

static void try_layers(struct trouble *t)
{
    struct gr_choice c;
    char flags[32], what[64];
    int32_t n;
    int rc = begin_alternative(t, t->now->params, &c);
    if (!rc && !gr_choice_most(&c, t->n_gpu - 1, &n)) {
        snprintf(flags, sizeof flags, "-ngl %d", n);
        snprintf(what, sizeof what, "%d more layer%s on the CPU", t->n_gpu - n,
                 t->n_gpu - n == 1 ? "" : "s");
        offer(t, flags, what);
    }
    gr_choice_fini(&c);
}

/* Offers the same layers with experts on the CPU. */
static void try_experts(struct trouble *t)
{
    struct gr_choice c;
    char flags[32], what[64];
    int32_t n = 0;
    if (!t->now->m->has_experts || t->now->n_cpu_experts >= t->now->m->hp.n_layer)
        return;
    int rc = begin_alternative(t, t->now->params, &c);
    if (!rc && !gr_choice_least_experts(&c, t->n_gpu, false, &n) && n) {
        snprintf(flags, sizeof flags, "-ncmoe %d", n);
        snprintf(what, sizeof what, "experts of the first %d layer%s on the CPU", n,
                 n == 1 ? "" : "s");
        offer(t, flags, what);
    }
    gr_choice_fini(&c);
}

static void append_parts(struct text *t, const struct gr_choice *c,
                         const struct gr_rank_device *dev)
{
    char a[16], b[16];
    if (!c->loaded)
        append(t, "weights %s | ", gr_mib(a, dev->weights));
    append(t, "KV cache %s | work %s", gr_mib(a, dev->cache), gr_mib(b, dev->work));
}

/* A line for each GPU with the memory it needs and has, where there are several. */
static void append_table(struct text *t, const struct gr_choice *c)
{
    const struct gr_rank_device *dev = c->taken.data;
    int n_line = 0, n_more = 0;
    for (size_t i = 0; i < c->taken.n; i++) {
        char a[16], b[16];
        if (!dev[i].device || !gr_rank_device_needs(c, &dev[i]))
            continue;
        if (++n_line > 8) {
            n_more++;
            continue;
        }
        append(t, "\n  rank %-2d %-7s %s of %s free: ", dev[i].rank, dev[i].name,
               gr_mib(a, gr_rank_device_needs(c, &dev[i])),
               gr_mib(b, gr_rank_device_available(c, &dev[i])));
        append_parts(t, c, &dev[i]);
    }
    if (n_more)
        append(t, "\n  and %d more", n_more);
}

static void append_need(struct text *t, const struct gr_choice *c)
{
    const struct gr_rank_device *dev =
        (const struct gr_rank_device *)c->taken.data + gr_choice_too_small(c, false);
    char a[16], b[16], d[16];
    append(t, "not enough memory on %s (%s): %s needed, %s free of %s", dev->name, dev->description,
           gr_mib(a, gr_rank_device_needs(c, dev)), gr_mib(b, gr_rank_device_available(c, dev)),
           gr_mib(d, dev->total_bytes));
    if (c->n_place * c->n_member > 1) {
        append_table(t, c);
    } else {
        append(t, "\n  ");
        append_parts(t, c, dev);
    }
    append(t, "\n  context %u, %s and %s", c->full.n_ctx, gr_dtype_name(c->memory.type_k),
           gr_dtype_name(c->memory.type_v));
}

int gr_choice_explain(const struct gr_choice *c)
{
    struct trouble t = {.now = c, .n_gpu = GR_MIN(c->m->n_gpu_wanted, c->m->hp.n_layer + 1)};
    append_need(&t.text, c);
    if (!c->loaded) {
        try_even(&t);
        try_experts(&t);
        try_layers(&t);
    }
    try_cache(&t);
    try_batch(&t);
    try_host_cache(&t);
    if (!c->loaded)
        append(&t.text, "\n  gpurun fit prints what is taken where");
    return gr_fail(GR_E_NOMEM_DEV, "%s", t.text.p);
}
