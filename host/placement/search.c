#include "placement/search.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/memory.h"
#include "engine/open.h"
#include "engine/session.h"
#include "gr/status.h"

/* ---- places ---- */

static int32_t stage_of(const struct gr_choice *c, int32_t k)
{
    return gr_choice_first(c, k)->rank / c->n_member;
}

/* Returns whether a device can have layers: a rank's GPUs, or its CPU when it has none; of a rank
 * that shares layers only the first GPU. */
static bool is_place(const struct gr_choice *c, size_t i)
{
    const struct gr_rank_device *dev = (const struct gr_rank_device *)c->layers.data + i;
    /* a rank's GPUs follow its CPU */
    bool gpus = dev->device || (i + 1 < c->layers.n && dev[1].rank == dev->rank);
    return gpus ? dev->device == 1 || (dev->device && c->n_member == 1) : true;
}

static int find_places(struct gr_choice *c)
{
    int32_t n = 0;
    for (size_t i = 0; i < c->layers.n; i++) {
        if (!is_place(c, i))
            continue;
        if (n == GR_MAX_RANK_DEVICE)
            return gr_fail(GR_E_INVALID, "more than %d devices", GR_MAX_RANK_DEVICE);
        c->device_index[n++] = (int16_t)i;
        c->any_gpu |= ((const struct gr_rank_device *)c->layers.data)[i].device > 0;
    }
    c->n_place = n / c->n_member;
    for (int32_t i = 0; i < n; i++)
        if (gr_choice_device(c, &c->layers, 0, i)->device !=
            gr_choice_first(c, i / c->n_member)->device)
            return gr_fail(GR_E_INVALID,
                           "ranks %d and %d share layers: both with a GPU, or both without "
                           "expected; --device none, or other --shards",
                           gr_choice_first(c, i / c->n_member)->rank,
                           gr_choice_device(c, &c->layers, 0, i)->rank);
    if (c->request->n_share > c->n_place)
        return gr_fail(GR_E_INVALID, "tensor split: at most %d share%s expected, %d found",
                       c->n_place, c->n_place == 1 ? "" : "s", c->request->n_share);
    return 0;
}

int gr_choice_begin(struct gr_choice *c)
{
    c->n_member = c->m->rank_model[0]->n_shard;
    c->full = *c->params;
    int rc = gr_session_fill(c->m, &c->full);
    if (!rc)
        rc = gr_memory_plan(&c->memory, &c->m->hp, &c->full);
    if (rc || c->loaded)
        return rc;
    rc = c->survey(c->user, NULL, NULL, &c->layers);
    return rc ? rc : find_places(c);
}

void gr_choice_fini(struct gr_choice *c)
{
    gr_vec_fini(&c->layers);
    gr_vec_fini(&c->taken);
}

/* ---- memory ---- */

uint64_t gr_rank_device_needs(const struct gr_choice *c, const struct gr_rank_device *dev)
{
    return (c->loaded ? 0 : dev->weights) + dev->cache + dev->work;
}

/* Number of entries for the same device, or for the memory of the same host. */
static uint64_t n_sharers(const struct gr_choice *c, const struct gr_rank_device *dev)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < c->n_place * c->n_member; i++) {
        const struct gr_rank_device *o = gr_choice_device(c, &c->layers, 0, i);
        n += !o->device == !dev->device && !strcmp(o->unit, dev->unit);
    }
    return GR_MAX(n, 1);
}

uint64_t gr_rank_device_available(const struct gr_choice *c, const struct gr_rank_device *dev)
{
    return dev->free_bytes / n_sharers(c, dev);
}

/* Memory left free: for code, captured graphs and other programs such as a desktop. */
static uint64_t margin(const struct gr_choice *c, const struct gr_rank_device *dev)
{
    return GR_MIN(dev->total_bytes / 16, (uint64_t)1 << 30) / n_sharers(c, dev);
}

/* Returns whether a device has too little memory for all of its entries together: one may use what
 * another does not need. */
static bool is_too_small(const struct gr_choice *c, const struct gr_rank_device *dev,
                         bool with_margin)
{
    uint64_t takes = 0;
    for (size_t i = 0; i < c->taken.n; i++) {
        const struct gr_rank_device *o = (const struct gr_rank_device *)c->taken.data + i;
        if (o->device && !strcmp(o->unit, dev->unit))
            takes += gr_rank_device_needs(c, o) +
                     (with_margin && gr_rank_device_needs(c, o) ? margin(c, o) : (uint64_t)0);
    }
    return dev->device && gr_rank_device_needs(c, dev) && takes > dev->free_bytes;
}

int32_t gr_choice_too_small(const struct gr_choice *c, bool with_margin)
{
    const struct gr_rank_device *dev = c->taken.data;
    for (size_t i = 0; i < c->taken.n; i++)
        if (is_too_small(c, &dev[i], with_margin))
            return (int32_t)i;
    return -1;
}

/* ---- memory of ranges of layers ---- */

#define OVER 1e6 /* factor of `used` when more is needed than there is */

/* Bytes of layers [lo, hi) as the sum of single layers, without measured corrections. */
static uint64_t sum_layers(const struct gr_choice *c, const struct gr_rank_device *dev, int32_t lo,
                           int32_t hi)
{
    uint64_t sum = dev->fixed, arena = 0, scratch = 0;
    for (int32_t il = lo; il < hi; il++) {
        sum += dev->layer[il].weights + dev->layer[il].cache;
        arena = GR_MAX(arena, dev->layer[il].arena);
        scratch = GR_MAX(scratch, dev->layer[il].scratch);
    }
    return sum + arena + scratch - (lo == 0 && hi > c->m->hp.n_layer ? dev->tied : 0);
}

static double used_of(const struct gr_choice *c, int32_t i, int32_t lo, int32_t hi)
{
    const struct gr_rank_device *dev = gr_choice_device(c, &c->layers, 0, i);
    double needs = (double)sum_layers(c, dev, lo, hi) + (double)c->off[i];
    double has =
        (double)gr_rank_device_available(c, dev) - (dev->device ? (double)margin(c, dev) : 0);
    if (!c->any_gpu)
        return needs * 0x1p-50; /* hosts: balances the bytes, whatever memory they have */
    if (has <= 0)
        return INFINITY;
    return dev->device && needs > has ? OVER * needs / has : needs / has;
}

static double used(void *user, int32_t k, int32_t lo, int32_t hi)
{
    const struct gr_choice *c = user;
    double most = 0;
    for (int32_t i = 0; i < c->n_member; i++)
        most = fmax(most, used_of(c, k * c->n_member + i, lo, hi));
    return most;
}

static bool may_cut(void *user, int32_t k, int32_t at)
{
    const struct gr_choice *c = user;
    bool inside = at > 0 && at <= c->m->hp.n_layer && stage_of(c, k) != stage_of(c, k - 1);
    return !inside || gr_place_may_cut(&c->m->hp, at);
}

static uint64_t moved(void *user, int32_t k, int32_t at)
{
    const struct gr_choice *c = user;
    const struct gr_hparams *hp = &c->m->hp;
    (void)k;
    if (at == 0)
        return 0;
    return at <= hp->n_layer ? (uint64_t)hp->n_embd * 4 * c->full.n_ubatch
                             : (uint64_t)hp->n_vocab * 4 * c->full.n_seq_max;
}

/* ---- dividing ---- */

static int split_best(struct gr_choice *c)
{
    const struct gr_split_problem p = {.n_device = c->n_place,
                                       .lo = c->m->hp.n_layer + 1 - c->n_gpu,
                                       .hi = c->m->hp.n_layer + 1,
                                       .used = used,
                                       .may_cut = may_cut,
                                       .moved = moved,
                                       .user = c};
    double most;
    return gr_split_best(&p, c->cut, &most);
}

/* Moves cuts that are not allowed to the nearest layer before. */
static void move_cuts(struct gr_choice *c)
{
    for (int32_t k = c->n_place - 1; k > 0; k--) {
        while (!may_cut(c, k, c->cut[k]))
            c->cut[k]--;
        c->cut[k - 1] = GR_MIN(c->cut[k - 1], c->cut[k]);
    }
    c->n_gpu = c->m->hp.n_layer + 1 - c->cut[0];
}

static void split_shares(struct gr_choice *c)
{
    const struct gr_split_request *w = c->request;
    float share[GR_MAX_RANK_DEVICE] = {0};
    for (int32_t k = 0; k < c->n_place; k++) {
        float left = (float)GR_MAX(gr_rank_device_available(c, gr_choice_first(c, k)), 1);
        if (w->mode == GR_SPLIT_MODE_NONE)
            share[k] = k == 0;
        else
            share[k] = w->n_share ? w->share[k] : c->any_gpu ? left : 1;
    }
    gr_split_shares(c->m->hp.n_layer, c->n_gpu, share, c->n_place, c->cut);
    move_cuts(c);
}

/* Makes the placement of all ranks from the cuts. Layers before the first place stay on the CPU. */
static void place_cuts(struct gr_choice *c)
{
    const struct gr_rank_device *last =
        (const struct gr_rank_device *)c->layers.data + c->layers.n - 1;
    c->place = (struct gr_placement){.n_stage = last->rank / c->n_member + 1,
                                     .n_cpu_experts = c->n_cpu_experts};
    for (int32_t k = 0; k < c->n_place; k++)
        for (int32_t il = c->cut[k]; il < c->cut[k + 1]; il++) {
            c->place.layer[il] = (uint8_t)gr_choice_first(c, k)->device;
            c->place.stage[il] = (uint8_t)stage_of(c, k);
        }
}

int gr_choice_measure(struct gr_choice *c, bool with_margin, bool *fits)
{
    c->taken.n = 0;
    int rc = c->survey(c->user, c->params, &c->place, &c->taken);
    *fits = !rc && gr_choice_too_small(c, with_margin) < 0;
    return rc;
}

/* Stores the differences between measured bytes and sums of layers; returns whether any changed. */
static bool correct(struct gr_choice *c)
{
    bool any = false;
    for (int32_t k = 0; k < c->n_place; k++)
        for (int32_t m = 0; m < c->n_member && c->cut[k] < c->cut[k + 1]; m++) {
            uint64_t sum =
                sum_layers(c, gr_choice_device(c, &c->layers, k, m), c->cut[k], c->cut[k + 1]);
            int64_t *off = &c->off[k * c->n_member + m];
            int64_t now = (int64_t)gr_rank_device_needs(c, gr_choice_device(c, &c->taken, k, m)) -
                          (int64_t)sum;
            any |= now != *off;
            *off = now;
        }
    return any;
}

/* Surveys the costs of single layers at the first call. */
static int survey_costs(struct gr_choice *c)
{
    if (c->has_costs)
        return 0;
    const struct gr_placement none = {.n_cpu_experts = c->n_cpu_experts};
    c->layers.n = 0;
    int rc = c->survey(c->user, c->params, &none, &c->layers);
    c->has_costs = !rc;
    return rc;
}

/* Finds the best split. A range takes the sum of its layers only while plans are alike; when
 * measuring differs from that, the split is searched again with the difference, 8 times at most. */
static int try_best(struct gr_choice *c, bool with_margin, bool *fits)
{
    bool again = true;
    int rc = survey_costs(c);
    memset(c->off, 0, sizeof c->off);
    for (int i = 0; i < 8 && !rc && again; i++) {
        rc = split_best(c);
        if (rc)
            return rc;
        place_cuts(c);
        rc = gr_choice_measure(c, with_margin, fits);
        again = !rc && correct(c);
    }
    return rc;
}

int gr_choice_try(struct gr_choice *c, int32_t n_gpu, bool with_margin, bool *fits)
{
    const struct gr_split_request *w = c->request;
    int32_t all = c->m->hp.n_layer + 1;
    bool by_memory = w->mode != GR_SPLIT_MODE_NONE && c->any_gpu && !w->n_share && c->n_place > 1;
    c->n_gpu = c->any_gpu ? GR_MIN(n_gpu, all) : all;
    if (w->even_memory && w->mode != GR_SPLIT_MODE_NONE)
        return try_best(c, with_margin, fits);
    split_shares(c);
    place_cuts(c);
    int rc = gr_choice_measure(c, with_margin, fits);
    if (rc || *fits || !by_memory)
        return rc;
    c->n_gpu = GR_MIN(n_gpu, all);
    return try_best(c, with_margin, fits);
}

int gr_choice_most(struct gr_choice *c, int32_t most, int32_t *n_gpu)
{
    int32_t lo = 0, hi = most;
    bool fits = false;
    int rc = 0;
    while (lo < hi && !rc) {
        int32_t n = hi == most ? most : (lo + hi + 1) / 2; /* all of them first */
        rc = gr_choice_try(c, n, true, &fits);
        if (!rc && fits)
            lo = n;
        else
            hi = n - 1;
    }
    *n_gpu = lo;
    return rc || (fits && c->n_gpu == lo) ? rc : gr_choice_try(c, lo, true, &fits);
}

void gr_choice_set_experts(struct gr_choice *c, int32_t n_cpu_experts)
{
    c->n_cpu_experts = GR_MIN(n_cpu_experts, c->m->hp.n_layer);
    c->has_costs = false;
}

static int try_experts(struct gr_choice *c, int32_t n_cpu_experts, int32_t n_gpu, bool with_margin,
                       bool *fits)
{
    gr_choice_set_experts(c, n_cpu_experts);
    int rc = gr_choice_try(c, n_gpu, with_margin, fits);
    *fits = !rc && *fits && c->n_gpu >= GR_MIN(n_gpu, c->m->hp.n_layer + 1);
    return rc;
}

int gr_choice_least_experts(struct gr_choice *c, int32_t n_gpu, bool with_margin, int32_t *n_cpu)
{
    int32_t lo = 0, hi = c->m->hp.n_layer; /* lo: too few, or not known to be enough; hi: enough */
    bool fits;
    *n_cpu = 0;
    int rc = try_experts(c, hi, n_gpu, with_margin, &fits);
    if (rc || !fits)
        return rc;
    while (hi - lo > 1 && !rc) {
        int32_t n = (lo + hi) / 2;
        rc = try_experts(c, n, n_gpu, with_margin, &fits);
        if (!rc && fits)
            hi = n;
        else
            lo = n;
    }
    *n_cpu = hi;
    return rc ? rc : try_experts(c, hi, n_gpu, with_margin, &fits);
}
