/* Start-up test of a tensor-parallel group: verifies that all ranks get the bytes that each sends,
 * and measures the time. A rank's bytes follow from its number, so all know what to expect. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "gr/status.h"
#include "gr/transport.h"
#include "link/tp_group.h"

#define TRANSPORT_NS (2 * (int64_t)1000000000) /* time limit of a gather by a transport */
#define N_ROUND 5 /* the first is verified, the others are timed; the same on all ranks */

const size_t gr_tp_group_sizes[GR_TP_GROUP_SIZES] = {8192, 1 << 18};
#define LONGEST ((size_t)1 << 18)

/* host, device: [n_shard][LONGEST], the parts of all ranks. */
struct trial {
    struct gr_tp_group *g;
    struct gr_backend *b; /* of the transport's device, or NULL */
    unsigned char *host;
    void *device;
};

static void fill(unsigned char *p, size_t n, int32_t shard)
{
    uint64_t x = ((uint64_t)shard + 1) * 0x9e3779b97f4a7c15u + n;
    for (size_t i = 0; i < n; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(p + i, &x, 8);
    }
}

static int gather(struct trial *t, size_t n)
{
    struct gr_transport *transport = t->g->transport;
    int64_t until = gr_now_ns() + TRANSPORT_NS;
    if (!transport)
        return gr_tp_group_gather(t->g, t->host, n);
    int rc = transport->api->gather(transport, t->b, t->device, n, until);
    return rc ? rc : transport->api->wait(transport, until);
}

/* Gathers once and verifies all parts. */
static int look(struct trial *t, size_t n)
{
    int32_t all = t->g->n_shard;
    size_t bytes = (size_t)all * n;
    unsigned char *mine = t->host + (size_t)t->g->shard * n, *want;
    memset(t->host, 0, bytes);
    fill(mine, n, t->g->shard);
    int rc = t->g->transport ? t->b->api->upload(t->b, t->device, t->host, bytes) : 0;
    if (!rc)
        rc = gather(t, n);
    if (!rc && t->g->transport && !(rc = t->b->api->download(t->b, t->host, t->device, bytes)))
        rc = t->b->api->sync(t->b);
    if (rc || !(want = gr_calloc(n, 1)))
        return rc ? rc : GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < all && !rc; i++) {
        fill(want, n, i);
        if (memcmp(want, t->host + (size_t)i * n, n) != 0)
            rc = gr_fail(GR_E_CHECK, "shard %d: other bytes came than were sent", i);
    }
    gr_free(want);
    return rc;
}

/* Tests one size. A failure of the verified round gives every rank a status other than 0, and
 * nothing is timed. */
static int try_size(struct trial *t, size_t n, double *seconds)
{
    int rc = gr_tp_group_agree(t->g, look(t, n));
    *seconds = 1e9;
    for (int round = 1; round < N_ROUND && !rc; round++) {
        int64_t start = gr_now_ns();
        rc = gather(t, n);
        *seconds = GR_MIN(*seconds, gr_seconds_since(start));
    }
    return rc;
}

static int try_sizes(struct trial *t, struct gr_tp_group_result *found)
{
    int rc = 0;
    snprintf(found->name, sizeof found->name, "%s", t->g->transport ? t->g->transport->via : "");
    if (!t->g->transport)
        snprintf(found->name, sizeof found->name, "%s (host memory)", t->g->world->api->name);
    for (int i = 0; i < GR_TP_GROUP_SIZES && !rc; i++)
        rc = try_size(t, gr_tp_group_sizes[i], &found->seconds[i]);
    return rc;
}

/* Tests the transport; the group gives it up when it fails or delivers wrong bytes. */
static int try_transport(struct trial *t, struct gr_tp_group_result *found)
{
    size_t bytes = (size_t)t->g->n_shard * LONGEST;
    char why[300];
    t->device = t->b->api->alloc(t->b, bytes);
    int rc = gr_tp_group_agree(t->g, t->device ? 0 : gr_error_status());
    if (!rc)
        rc = gr_tp_group_agree(t->g, try_sizes(t, found));
    (void)snprintf(why, sizeof why, "%s", gr_error());
    if (t->device)
        t->b->api->free(t->b, t->device);
    if (!rc || gr_world_check(t->g->world))
        return rc;
    if (t->g->shard == 0)
        gr_log(GR_LOG_WARN,
               "ranks %d to %d: %s does not bring what was sent (%s): sums go through host memory",
               found->first, found->first + found->n - 1, found->name, why);
    t->g->transport = NULL;
    return 0;
}

const char *gr_tp_group_result_text(const struct gr_tp_group_result *f, char *buf, size_t n)
{
    snprintf(buf, n, "ranks %d to %d share layers: %s, %.1f us", f->first, f->first + f->n - 1,
             f->name, f->seconds[0] * 1e6);
    return buf;
}

int gr_tp_group_try(struct gr_tp_group *g, struct gr_backend *b, struct gr_tp_group_result *found)
{
    struct trial t = {.g = g, .b = b};
    char line[160];
    *found = (struct gr_tp_group_result){.first = g->world->rank - g->shard, .n = g->n_shard};
    t.host = gr_calloc((size_t)g->n_shard, LONGEST);
    int rc = gr_tp_group_agree(g, t.host ? 0 : GR_E_NOMEM_HOST);
    if (!rc && g->transport)
        rc = try_transport(&t, found);
    if (!rc && !g->transport)
        rc = try_sizes(&t, found);
    gr_free(t.host);
    if (!rc && g->shard == 0)
        gr_log(GR_LOG_INFO, "%s", gr_tp_group_result_text(found, line, sizeof line));
    return rc;
}
