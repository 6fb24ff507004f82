#include "link/tp_group.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"

static int64_t deadline(const struct gr_tp_group *g)
{
    return g->patience_ns > 0 ? gr_now_ns() + g->patience_ns : INT64_MAX;
}

int gr_tp_group_open(struct gr_tp_group **out, struct gr_world *w, int32_t n_shard)
{
    struct gr_tp_group *g = *out = gr_calloc(1, sizeof *g);
    if (!g)
        return GR_E_NOMEM_HOST;
    int32_t first = w->rank / n_shard * n_shard;
    int rc = 0;
    g->world = w;
    g->shard = w->rank - first, g->n_shard = n_shard;
    for (int32_t i = 0; i < n_shard && !rc; i++) {
        if (i == g->shard)
            continue;
        rc = w->api->link(w, GR_LANE_TENSOR, w->rank, first + i, &g->to[i]);
        if (!rc)
            rc = w->api->link(w, GR_LANE_TENSOR, first + i, w->rank, &g->from[i]);
    }
    if (rc)
        gr_tp_group_close(out);
    return rc;
}

/* Waits for a send or receive; a failure loses the other rank, as the group cannot go on. */
static int finish(struct gr_tp_group *g, int32_t shard, struct gr_link *l, struct gr_request *r,
                  size_t bytes, int64_t until)
{
    int rc = gr_link_wait(l, r, until);
    if (!rc && l == g->from[shard] && r->n != bytes)
        rc = gr_fail(GR_E_INTERNAL, "shard %d: %zu bytes of a sum expected, %zu came", shard, bytes,
                     r->n);
    if (rc)
        gr_world_lose(g->world, g->world->rank - g->shard + shard, gr_error_message());
    return rc;
}

/* Begins the receives first, so that messages go straight to their place. All requests are begun
 * before any is waited for, so links without buffers work, too. */
int gr_tp_group_gather(struct gr_tp_group *g, void *all, size_t bytes)
{
    struct gr_request in[GR_MAX_RANK] = {{0}}, out[GR_MAX_RANK] = {{0}};
    char *at = all;
    int rc = 0;
    for (int32_t i = 0; i < g->n_shard && !rc; i++)
        if (g->from[i])
            rc = gr_link_recv(g->from[i], at + (size_t)i * bytes, bytes, &in[i]);
    for (int32_t i = 0; i < g->n_shard && !rc; i++)
        if (g->to[i])
            rc = gr_link_send(g->to[i], at + (size_t)g->shard * bytes, bytes, &out[i]);
    int64_t until = deadline(g);
    for (int32_t i = 0; i < g->n_shard && !rc; i++)
        if (g->from[i])
            rc = finish(g, i, g->from[i], &in[i], bytes, until);
    for (int32_t i = 0; i < g->n_shard && !rc; i++)
        if (g->to[i])
            rc = finish(g, i, g->to[i], &out[i], bytes, until);
    return rc ? gr_tp_group_lose(g) : 0;
}

int gr_tp_group_exchange(struct gr_tp_group *g, struct gr_backend *b,
                         const struct gr_args_exchange *a, int32_t device)
{
    size_t bytes = (size_t)(a->x.rows * a->x.row_bytes);
    char *mine = (char *)a->parts.data + (size_t)g->shard * bytes;
    if (device > 0) {
        int doing = gr_world_pause(g->world);
        int rc = g->transport->api->gather(g->transport, b, a->parts.data, bytes, deadline(g));
        gr_world_resume(g->world, doing);
        return rc;
    }
    if (mine != a->x.data)
        memcpy(mine, a->x.data, bytes);
    return gr_tp_group_gather(g, a->parts.data, bytes);
}

int gr_tp_group_agree(struct gr_tp_group *g, int status)
{
    int32_t all[GR_MAX_RANK];
    char name[128];
    all[g->shard] = status;
    int rc = gr_tp_group_gather(g, all, sizeof *all);
    for (int32_t i = 0; i < g->n_shard && !rc; i++) {
        int32_t rank = g->world->rank - g->shard + i;
        if (all[i] && i != g->shard)
            rc = gr_fail(all[i], "%s has given up what it was doing",
                         gr_world_name(g->world, rank, name, sizeof name));
        else
            rc = all[i];
    }
    return rc;
}

int gr_tp_group_lose(struct gr_tp_group *g)
{
    gr_world_lose(g->world, g->world->rank, gr_error_message());
    return gr_world_check(g->world);
}

void gr_tp_group_close(struct gr_tp_group **group)
{
    struct gr_tp_group *g = *group;
    if (!g)
        return;
    for (int32_t i = 0; i < g->n_shard; i++) {
        gr_link_close(&g->to[i]);
        gr_link_close(&g->from[i]);
    }
    gr_free(g);
    *group = NULL;
}
