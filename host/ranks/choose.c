#include "ranks/choose.h"

#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"
#include "link/link.h"
#include "model/weight_homes.h"

static int check(const struct gr_model_params *p)
{
    bool tensor = p->split_mode == GR_SPLIT_MODE_TENSOR;
    if (p->n_rank < 0 || p->n_rank > GR_MAX_RANK || p->n_shard < 0 || p->n_shard > GR_MAX_RANK)
        return gr_fail(GR_E_INVALID, "%d ranks of %d shards: 1 to %d expected, 0 = chosen",
                       p->n_rank, p->n_shard, GR_MAX_RANK);
    if (p->n_rank > 1 && p->world)
        return gr_fail(GR_E_INVALID,
                       "%d ranks: under mpirun or srun each process is one; leave --ranks out, or "
                       "start one process",
                       p->n_rank);
    if (p->n_rank > 1 && p->split_mode == GR_SPLIT_MODE_NONE)
        return gr_fail(GR_E_INVALID,
                       "%d ranks: with --split-mode none one rank has all layers; leave --ranks "
                       "out, or take --split-mode layer",
                       p->n_rank);
    if (p->n_shard > 1 && !tensor)
        return gr_fail(GR_E_INVALID, "%d shards: ranks share a layer with --split-mode tensor only",
                       p->n_shard);
    return 0;
}

/* The number of ranks per machine; 0 if machines have different numbers. */
static int32_t n_local(const struct gr_world *w)
{
    for (int32_t i = 1; i < w->n_rank; i++)
        if (w->ranks[i].n_local != w->ranks[0].n_local)
            return 0;
    return w->ranks[0].n_local;
}

static int choose_shards(struct gr_ranks *r, const struct gr_model_params *p)
{
    r->n_shard = p->n_shard ? p->n_shard : p->world == NULL ? r->n_rank : n_local(p->world);
    if (r->n_shard == 0)
        return gr_fail(GR_E_INVALID, "machines with different numbers of ranks: --shards N says "
                                     "how many share a layer");
    if (r->n_rank % r->n_shard)
        return gr_fail(GR_E_INVALID, "%d ranks, %d of which share a layer: a multiple expected",
                       r->n_rank, r->n_shard);
    return 0;
}

int gr_ranks_choose(struct gr_ranks *r, const struct gr_model_params *p)
{
    *r = (struct gr_ranks){.world = p->world, .n_rank = 1, .n_shard = 1};
    if (p->vocab_only)
        return 0;
    int rc = check(p);
    if (!rc)
        rc = gr_devices_choose(&r->devices, p);
    r->n_rank = p->world                              ? p->world->n_rank
                : p->n_rank                           ? p->n_rank
                : p->split_mode == GR_SPLIT_MODE_NONE ? 1
                : p->split_mode == GR_SPLIT_MODE_LAYER && gr_weight_homes_name_gpu(p)
                    ? 1 /* which has all devices, so that a weight can be on any */
                    : GR_MAX(1, r->devices.n);
    if (!rc && p->split_mode == GR_SPLIT_MODE_TENSOR)
        rc = choose_shards(r, p);
    return rc;
}

void gr_devices_assign(struct gr_devices *own, const struct gr_devices *all, int32_t i, int32_t n)
{
    int32_t lo = i * all->n / n, hi = (i + 1) * all->n / n;
    if (all->n && all->n < n)
        lo = i % all->n, hi = lo + 1;
    *own = (struct gr_devices){0};
    for (int32_t d = lo; d < hi; d++)
        own->found[own->n++] = all->found[d];
}

static int add_rank_model(struct gr_model *m, const struct gr_ranks *r, int32_t rank,
                          const struct gr_devices *own)
{
    struct gr_rank_model *rm = gr_rank_model_add(m, own);
    if (!rm)
        return GR_E_NOMEM_HOST;
    rm->rank = rank;
    rm->n_stage = r->n_rank / r->n_shard, rm->stage = rank / r->n_shard;
    return gr_rank_model_shard(rm, rank % r->n_shard, r->n_shard);
}

int gr_ranks_open(struct gr_model *m, const struct gr_ranks *r)
{
    struct gr_devices own;
    int rc = 0;
    m->n_rank = r->n_rank, m->world = r->world;
    if (r->world) {
        const struct gr_rank *self = &r->world->ranks[r->world->rank];
        gr_devices_assign(&own, &r->devices, self->local, self->n_local);
        return add_rank_model(m, r, r->world->rank, &own);
    }
    for (int32_t i = 0; i < r->n_rank && !rc; i++) {
        gr_devices_assign(&own, &r->devices, i, r->n_rank);
        rc = add_rank_model(m, r, i, &own);
    }
    return rc;
}
