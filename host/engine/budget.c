#include "engine/budget.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/dtype.h"
#include "gr/status.h"

/* A placement and what it takes. */
struct plan {
    struct gr_weights weights;
    struct gr_need need[GR_MAX_DEVICE];
    uint64_t weight_bytes[GR_MAX_DEVICE],
        free[GR_MAX_DEVICE]; /* [1 ..]: what the device has left */
};

static uint64_t work_bytes(const struct gr_need *n)
{
    return n->arena + n->scratch + n->step + n->constants;
}

static uint64_t total_bytes(const struct plan *p, int32_t d)
{
    return p->weight_bytes[d] + p->need[d].cache + work_bytes(&p->need[d]);
}

/* Memory that is left to others: code, captured graphs, what a desktop takes meanwhile. */
static uint64_t margin(const struct gr_found *f)
{
    return GR_MIN(f->info.total_bytes / 16, (uint64_t)1 << 30);
}

/* Asked anew each time: contexts and other processes take their part. */
static int ask_free(struct gr_slice *l, struct plan *p)
{
    struct gr_devices *d = &l->devices;
    int rc = 0;
    for (int32_t i = 0; i < d->n && !rc; i++) {
        struct gr_device_info *info = &d->found[i].info;
        rc = d->found[i].kind->info(d->found[i].index, info);
        if (!rc && info->unusable) /* it worked when the session began */
            rc = gr_fail(GR_E_DEVICE, "%s: %s", info->name, info->unusable);
        p->free[i + 1] = info->free_bytes;
    }
    return rc;
}

static int measure(struct gr_session *s, struct plan *p)
{
    struct gr_backend *backend[GR_MAX_DEVICE];
    int32_t n_open = s->n_device;
    memcpy(backend, s->slice->backend, sizeof backend);
    backend[0] = s->device[0].backend;
    gr_session_place(s, &p->weights);
    s->n_device = p->weights.place.n_device;
    memset(p->need, 0, sizeof p->need);
    for (int32_t d = 0; d < s->n_device; d++) {
        p->need[d].cache = s->device[d].has.cache;
        p->need[d].constants = s->device[0].has.constants;
    }
    int rc = gr_plan_measure(s, backend, p->need);
    s->n_device = n_open;
    return rc;
}

/* Weights of the last n_gpu layers on the devices, and all that goes with them. */
static int plan_layers(struct gr_session *s, int32_t n_gpu, struct plan *p)
{
    struct gr_placement place;
    float split[GR_MAX_DEVICE];
    int32_t n = n_gpu > 0 ? s->slice->devices.n : 0;
    for (int32_t i = 0; i < n; i++)
        split[i] = (float)GR_MAX(p->free[i + 1], 1);
    gr_place_layers(&place, s->slice->hp.n_layer, n_gpu, split, n);
    gr_weights_fini(&p->weights, s->slice);
    int rc = gr_weights_describe(&p->weights, s->slice, &place);
    if (rc)
        return rc;
    memcpy(p->weight_bytes, p->weights.bytes, sizeof p->weight_bytes);
    return measure(s, p);
}

/* The device that has too little, 0 = all is well. */
static int32_t too_small(const struct gr_session *s, const struct plan *p, bool with_margin)
{
    for (int32_t d = 1; d <= s->slice->devices.n; d++) {
        uint64_t spare = with_margin ? margin(&s->slice->devices.found[d - 1]) : 0;
        if (total_bytes(p, d) > 0 && total_bytes(p, d) + spare > p->free[d])
            return d;
    }
    return 0;
}

/* The most layers that fit, with room to spare; the plan is that of them. */
static int most_layers(struct gr_session *s, int32_t most, struct plan *p, int32_t *n_gpu)
{
    int32_t lo = 0, hi = most;
    int rc = 0;
    while (lo < hi && !rc) {
        int32_t n = hi == most ? most : (lo + hi + 1) / 2; /* all of them first */
        rc = plan_layers(s, n, p);
        if (!rc && too_small(s, p, true))
            hi = n - 1;
        else
            lo = n;
    }
    *n_gpu = lo;
    return rc ? rc : plan_layers(s, lo, p);
}

/* ---- what helps ---- */

/* A message of several lines. */
struct text {
    char p[900];
    size_t n;
};

static void say(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->p + t->n, sizeof t->p - t->n, fmt, ap);
    va_end(ap);
    t->n = GR_MIN(t->n + (size_t)GR_MAX(n, 0), sizeof t->p - 1);
}

static const char *amount(char buf[16], uint64_t bytes)
{
    bool large = bytes >= (uint64_t)1 << 30;
    snprintf(buf, 16, "%.1f %s", (double)bytes / (large ? 1 << 30 : 1 << 20),
             large ? "GiB" : "MiB");
    return buf;
}

/* A session that did not fit, and what is tried instead. */
struct trouble {
    struct gr_session *s;
    const struct plan *now;
    int32_t n_gpu; /* layers that were asked for */
    bool loaded;   /* the weights are there already: only the session is in question */
    struct text text;
    int n_offer;
};

/* Whether a session with other parameters fits, by one that is only planned. */
static bool would_fit(const struct trouble *t, const struct gr_session_params *params,
                      struct plan *p)
{
    struct gr_session *other = NULL;
    struct gr_slice *l = t->s->slice;
    *p = (struct plan){0};
    memcpy(p->free, t->now->free, sizeof p->free);
    int rc = gr_session_begin(&other, l, params);
    if (!rc && t->loaded) {
        p->weights = l->placed;
        rc = measure(other, p);
        p->weights = (struct gr_weights){0};
    } else if (!rc) {
        rc = plan_layers(other, t->n_gpu, p);
    }
    bool fits = !rc && !too_small(t->s, p, false);
    gr_weights_fini(&p->weights, l);
    gr_session_close(&other);
    return fits;
}

static void offer(struct trouble *t, const char *flags, const char *what)
{
    if (!t->n_offer++)
        say(&t->text, "\n  any one of these fits:");
    say(&t->text, "\n    %-32s %s", flags, what);
}

static void offer_cache(struct trouble *t, const char *flags, const struct plan *p)
{
    char what[64], bytes[16];
    uint64_t sum = 0;
    for (int32_t d = 1; d < GR_MAX_DEVICE; d++)
        sum += p->need[d].cache;
    snprintf(what, sizeof what, "KV cache of %s", amount(bytes, sum));
    offer(t, flags, what);
}

/* A smaller cache: of other types, or with half the cells or a quarter or so, or both. */
static void try_cache(struct trouble *t)
{
    char flags[64];
    struct plan p;
    bool is_small = t->s->memory.type_k == GR_Q8_0 && t->s->memory.type_v == GR_Q8_0;
    for (int q8 = 0; q8 < (is_small ? 1 : 2); q8++) {
        struct gr_session_params params = t->s->params;
        const char *types = q8 ? "-ctk q8_0 -ctv q8_0" : "";
        if (q8)
            params.type_k = params.type_v = "q8_0";
        if (q8 && would_fit(t, &params, &p)) {
            offer_cache(t, types, &p);
            continue;
        }
        while (params.n_ctx > 256) {
            params.n_ctx = GR_PAD(params.n_ctx / 2, 256);
            if (!would_fit(t, &params, &p))
                continue;
            snprintf(flags, sizeof flags, "-c %u%s%s", params.n_ctx, q8 ? " " : "", types);
            offer_cache(t, flags, &p);
            break;
        }
    }
}

static void try_batch(struct trouble *t)
{
    struct gr_session_params params = t->s->params;
    struct plan p;
    char flags[32];
    while (params.n_ubatch > 32) {
        params.n_ubatch /= 2;
        if (!would_fit(t, &params, &p))
            continue;
        snprintf(flags, sizeof flags, "-ub %u", params.n_ubatch);
        offer(t, flags, "reads prompts in smaller pieces");
        return;
    }
}

static void try_host_cache(struct trouble *t)
{
    struct gr_session_params params = t->s->params;
    struct plan p;
    if (params.no_kv_offload)
        return;
    params.no_kv_offload = true;
    if (would_fit(t, &params, &p))
        offer(t, "--no-kv-offload", "keys and values in host memory, attention on the CPU");
}

static void try_layers(struct trouble *t)
{
    struct plan p = {0};
    char flags[32], what[64];
    int32_t n;
    if (t->loaded)
        return;
    memcpy(p.free, t->now->free, sizeof p.free);
    if (!most_layers(t->s, t->n_gpu - 1, &p, &n)) {
        snprintf(flags, sizeof flags, "-ngl %d", n);
        snprintf(what, sizeof what, "%d more layer%s on the CPU", t->n_gpu - n,
                 t->n_gpu - n == 1 ? "" : "s");
        offer(t, flags, what);
    }
    gr_weights_fini(&p.weights, t->s->slice);
}

/* Device d has too little: how much, for what, and what would fit. */
static int explain(struct trouble *t, int32_t d)
{
    const struct gr_device_info *info = &t->s->slice->devices.found[d - 1].info;
    const struct gr_need *need = &t->now->need[d];
    char a[16], b[16], c[16];
    say(&t->text, "not enough memory on %s (%s): %s needed, %s free of %s\n", info->name,
        info->description, amount(a, total_bytes(t->now, d)), amount(b, t->now->free[d]),
        amount(c, info->total_bytes));
    if (!t->loaded)
        say(&t->text, "  weights %s |", amount(a, t->now->weight_bytes[d]));
    say(&t->text, "%sKV cache %s (context %u, %s and %s) | work %s", t->loaded ? "  " : " ",
        amount(a, need->cache), t->s->params.n_ctx, gr_dtype_name(t->s->memory.type_k),
        gr_dtype_name(t->s->memory.type_v), amount(b, work_bytes(need)));
    try_layers(t);
    try_cache(t);
    try_batch(t);
    try_host_cache(t);
    if (!t->loaded)
        say(&t->text, "\n  gpurun fit prints what is taken where");
    return gr_fail(GR_E_NOMEM_DEV, "%s", t->text.p);
}

/* ---- choosing ---- */

static void say_choice(const struct gr_session *s, const struct plan *p, int32_t n_gpu)
{
    char a[16], b[16];
    const struct gr_device_info *info = &s->slice->devices.found[0].info;
    gr_log(GR_LOG_INFO, "-ngl auto: %d of %d layers on %s%s, %s of %s free", n_gpu,
           s->slice->hp.n_layer + 1, info->name, s->slice->devices.n > 1 ? " and others" : "",
           amount(a, total_bytes(p, 1)), amount(b, p->free[1]));
}

/* The placement that is asked for, or the largest that fits; *small: the device where it does not
 * fit. */
static int choose(struct gr_session *s, struct plan *p, int32_t *n_gpu, int32_t *small)
{
    const struct gr_model *m = s->model;
    int32_t all = m->hp.n_layer + 1, n = s->slice->devices.n;
    int rc = ask_free(s->slice, p);
    *small = *n_gpu = 0;
    if (rc)
        return rc;
    if (n && m->n_gpu_wanted < 0)
        return most_layers(s, all, p, n_gpu);
    *n_gpu = n ? GR_MIN(m->n_gpu_wanted, all) : 0;
    rc = plan_layers(s, *n_gpu, p);
    *small = rc ? 0 : too_small(s, p, false);
    return rc;
}

static int load(struct gr_session *s, struct plan *p)
{
    const struct gr_model *m = s->model;
    struct gr_slice *l = s->slice;
    int32_t n_gpu, small;
    int rc = gr_slice_open_devices(l);
    if (!rc)
        rc = choose(s, p, &n_gpu, &small);
    if (rc)
        return rc;
    if (small)
        return explain(&(struct trouble){.s = s, .now = p, .n_gpu = n_gpu}, small);
    if (m->require_gpu && n_gpu == 0)
        return gr_fail(GR_E_DEVICE, "--require-gpu: not one layer fits on %s",
                       l->devices.found[0].info.name);
    if (l->devices.n && m->n_gpu_wanted < 0)
        say_choice(s, p, n_gpu);
    return gr_slice_take(l, &p->weights);
}

/* Whether a further session fits beside what is there. */
static int fit_beside(struct gr_session *s, struct plan *p)
{
    p->weights = s->slice->placed;
    int rc = ask_free(s->slice, p);
    if (!rc)
        rc = measure(s, p);
    p->weights = (struct gr_weights){0};
    int32_t small = rc ? 0 : too_small(s, p, false);
    if (small)
        rc = explain(&(struct trouble){.s = s, .now = p, .loaded = true}, small);
    return rc;
}

int gr_budget_load(struct gr_session *s)
{
    struct plan p = {0};
    pthread_mutex_lock(&s->model->lock);
    int rc = s->slice->loaded ? fit_beside(s, &p) : load(s, &p);
    gr_weights_fini(&p.weights, s->slice);
    pthread_mutex_unlock(&s->model->lock);
    return rc;
}

/* ---- what callers ask ---- */

int gr_model_load(struct gr_model *model, const struct gr_session_params *params)
{
    struct gr_session *s = NULL;
    pthread_mutex_lock(&model->lock);
    bool loaded = model->slice[0]->loaded;
    pthread_mutex_unlock(&model->lock);
    if (loaded)
        return 0;
    int rc = gr_session_begin(&s, model->slice[0], params);
    if (!rc)
        rc = gr_budget_load(s);
    gr_session_close(&s);
    return rc;
}

static void report(const struct gr_slice *l, const struct gr_weights *weights,
                   const struct gr_need *need, struct gr_fit *fit)
{
    *fit = (struct gr_fit){.n_layer = l->hp.n_layer + 1,
                           .n_gpu_layers = gr_place_n_gpu(&weights->place, l->hp.n_layer),
                           .n_device = l->devices.n + 1};
    for (int32_t d = 0; d < fit->n_device; d++) {
        struct gr_fit_device *f = &fit->device[d];
        const struct gr_device_info *info = d ? &l->devices.found[d - 1].info : NULL;
        snprintf(f->name, sizeof f->name, "%s", d ? info->name : "CPU");
        snprintf(f->description, sizeof f->description, "%s", d ? info->description : "");
        for (int32_t il = 0; il <= l->hp.n_layer; il++)
            f->n_layer += weights->place.layer[il] == d && weights->place.stage[il] == l->stage;
        f->weights = weights->bytes[d], f->cache = need[d].cache, f->work = work_bytes(&need[d]);
        f->free_bytes = d ? info->free_bytes : 0, f->total_bytes = d ? info->total_bytes : 0;
    }
}

int gr_session_fit(const struct gr_session *s, struct gr_fit *fit)
{
    struct gr_slice *l = s->slice;
    struct gr_need need[GR_MAX_DEVICE];
    struct plan p;
    for (int32_t d = 0; d < GR_MAX_DEVICE; d++)
        need[d] = s->device[d].has;
    pthread_mutex_lock(&l->model->lock);
    int rc = ask_free(l, &p);
    report(l, &l->placed, need, fit);
    pthread_mutex_unlock(&l->model->lock);
    return rc;
}

int gr_model_fit(struct gr_model *model, const struct gr_session_params *params, struct gr_fit *fit)
{
    struct gr_slice *l = model->slice[0];
    struct gr_session *s = NULL;
    struct plan p = {0};
    int32_t n_gpu, small = 0;
    *fit = (struct gr_fit){0};
    int rc = gr_session_begin(&s, l, params);
    if (!rc) {
        pthread_mutex_lock(&model->lock);
        rc = gr_slice_open_devices(l);
        if (!rc)
            rc = choose(s, &p, &n_gpu, &small);
        if (!rc)
            report(l, &p.weights, p.need, fit);
        if (small)
            rc = explain(&(struct trouble){.s = s, .now = &p, .n_gpu = n_gpu}, small);
        gr_weights_fini(&p.weights, l);
        pthread_mutex_unlock(&model->lock);
    }
    gr_session_close(&s);
    return rc;
}
