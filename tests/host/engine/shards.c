/* Groups: what ranks that share layers gather and agree on, and how it ends when one of them is
 * missing. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "link/tp_group.h"

enum { MOST = 8, BYTES = 40000 };

struct rank {
    struct gr_world *world;
    struct gr_tp_group *group;
    int32_t n_shard;
    int (*run)(struct rank *r);
    int rc;
    char error[300];
};

static void *main_of(void *user)
{
    struct rank *r = user;
    r->rc = gr_tp_group_open(&r->group, r->world, r->n_shard);
    if (!r->rc)
        r->rc = r->run(r);
    snprintf(r->error, sizeof r->error, "%s", r->rc ? gr_error() : "");
    gr_tp_group_close(&r->group);
    return NULL;
}

static struct rank ranks[MOST];

static void run_all(int32_t n, int32_t n_shard, int (*run)(struct rank *r))
{
    struct gr_world *world[MOST];
    pthread_t thread[MOST];
    cr_assert_eq(gr_world_threads(world, n), 0);
    for (int32_t i = 0; i < n; i++) {
        ranks[i] = (struct rank){.world = world[i], .n_shard = n_shard, .run = run};
        cr_assert_eq(pthread_create(&thread[i], NULL, main_of, &ranks[i]), 0);
    }
    for (int32_t i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    for (int32_t i = 0; i < n; i++)
        world[i]->api->close(&world[i]);
}

/* Byte j that a rank has in round k. */
static char byte_of(int32_t rank, int k, size_t j)
{
    return (char)(rank * 31 + k * 7 + (int)(j % 251));
}

/* Lengths that differ, in the same memory again and again. */
static int gather(struct rank *r)
{
    static const size_t lengths[] = {4, 1, 1000, BYTES, 256};
    static char memory[MOST][MOST * BYTES];
    struct gr_tp_group *g = r->group;
    char *all = memory[r->world->rank];
    int32_t first = r->world->rank - g->shard;
    int rc = 0;
    for (int k = 0; k < 50 && !rc; k++) {
        size_t n = lengths[(unsigned)k % GR_COUNT(lengths)];
        for (size_t j = 0; j < n; j++)
            all[(size_t)g->shard * n + j] = byte_of(r->world->rank, k, j);
        rc = gr_tp_group_gather(g, all, n);
        for (int32_t i = 0; i < g->n_shard && !rc; i++)
            for (size_t j = 0; j < n; j++)
                if (all[(size_t)i * n + j] != byte_of(first + i, k, j))
                    return gr_fail(GR_E_INTERNAL, "round %d, shard %d, byte %zu", k, i, j);
    }
    return rc;
}

Test(shards, gather)
{
    static const int32_t ways[][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 2}, {6, 3}, {8, 8}};
    for (unsigned k = 0; k < GR_COUNT(ways); k++) {
        run_all(ways[k][0], ways[k][1], gather);
        for (int32_t i = 0; i < ways[k][0]; i++)
            cr_expect_eq(ranks[i].rc, 0, "%d of %d: %s", i, ways[k][0], ranks[i].error);
    }
}

/* One says that it cannot, then all can. */
static int agree(struct rank *r)
{
    bool bad = r->group->shard == 1;
    int own = bad ? gr_fail(GR_E_NOMEM_HOST, "too little") : 0;
    int rc = gr_tp_group_agree(r->group, own);
    if (rc != GR_E_NOMEM_HOST || (!bad && !strstr(gr_error(), "has given up")))
        return gr_fail(GR_E_INTERNAL, "%d was agreed on: %s", rc, gr_error());
    return gr_tp_group_agree(r->group, 0);
}

Test(shards, agree)
{
    run_all(6, 3, agree);
    for (int32_t i = 0; i < 6; i++)
        cr_expect_eq(ranks[i].rc, 0, "%d: %s", i, ranks[i].error);
}

/* The second rank does not come; the others wait for it as long as they have patience. */
static int absent(struct rank *r)
{
    char all[3 * 8] = {0};
    r->group->patience_ns = 30 * 1000000;
    return r->world->rank == 1 ? 0 : gr_tp_group_gather(r->group, all, 8);
}

Test(shards, one_does_not_come)
{
    run_all(3, 3, absent);
    for (int32_t i = 0; i < 3; i += 2) {
        cr_expect_eq(ranks[i].rc, GR_E_PEER_LOST);
        cr_expect(strstr(ranks[i].error, "rank 1 ("), "%s", ranks[i].error);
    }
}

/* It has failed: the others, who have no deadline, hear why. */
static int fails(struct rank *r)
{
    char all[3 * 8] = {0};
    if (r->world->rank != 2)
        return gr_tp_group_gather(r->group, all, 8);
    gr_fail(GR_E_DEVICE, "its device is gone");
    return gr_tp_group_lose(r->group);
}

Test(shards, one_fails)
{
    run_all(3, 3, fails);
    for (int32_t i = 0; i < 3; i++) {
        cr_expect_eq(ranks[i].rc, GR_E_PEER_LOST);
        cr_expect(strstr(ranks[i].error, "its device is gone") &&
                      strstr(ranks[i].error, "rank 2 ("),
                  "%s", ranks[i].error);
    }
}

/* Ranks that do not run the same plan. */
static int differ(struct rank *r)
{
    char all[2 * 16] = {0};
    return gr_tp_group_gather(r->group, all, r->world->rank ? 8 : 16);
}

Test(shards, other_lengths)
{
    run_all(2, 2, differ);
    cr_expect(ranks[0].rc && ranks[1].rc, "%d %d", ranks[0].rc, ranks[1].rc);
}
