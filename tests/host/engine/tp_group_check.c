/* The test of a group at the start, between threads; the transport is made up of the group's own
 * links.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "base/alloc.h"
#include "base/log.h"
#include "gr/status.h"
#include "link/tp_group.h"
#include "support/host_device.h"

#define N 3

enum fault { NONE, SPOILS, FAILS };

struct fake_transport {
    struct gr_transport base;
    struct gr_tp_group *group;
    enum fault fault;
};

static int fake_gather(struct gr_transport *transport, struct gr_backend *b, void *all,
                       size_t bytes, int64_t deadline_ns)
{
    struct fake_transport *f = (struct fake_transport *)transport;
    (void)b, (void)deadline_ns;
    int rc = gr_tp_group_gather(f->group, all, bytes);
    if (f->fault == SPOILS)
        ((unsigned char *)all)[bytes + 100] ^= 4; /* of shard 1 */
    return rc || f->fault != FAILS ? rc : gr_fail(GR_E_DEVICE, "a made-up failure");
}

static int fake_wait(struct gr_transport *transport, int64_t deadline_ns)
{
    (void)transport, (void)deadline_ns;
    return 0;
}

static const struct gr_transport_api transport_api = {
    .name = "fake", .gather = fake_gather, .wait = fake_wait};

struct member {
    struct gr_world *world;
    bool has_transport;
    enum fault fault;
    struct gr_tp_group_result found;
    bool kept; /* the transport */
    int rc;
};

static void *run(void *arg)
{
    struct member *m = arg;
    struct gr_backend backend = {&host_device_api};
    struct fake_transport transport = {.base = {.api = &transport_api, .via = "a transport"},
                                       .fault = m->fault};
    struct gr_tp_group *g;
    cr_assert_eq(gr_tp_group_open(&g, m->world, N), 0);
    transport.group = g;
    g->transport = m->has_transport ? &transport.base : NULL;
    m->rc = gr_tp_group_try(g, &backend, &m->found);
    m->kept = g->transport != NULL;
    gr_tp_group_close(&g);
    m->world->api->close(&m->world);
    return NULL;
}

static char logged[1000];

static void keep(enum gr_log_level level, const char *line, void *user)
{
    (void)user, (void)level;
    strncat(strncat(logged, line, 300), "\n", 2);
}

/* A group whose member 2 has a fault. */
static void run_group(struct member *m, bool has_transport, enum fault fault)
{
    struct gr_world *world[N];
    pthread_t thread[N];
    logged[0] = 0;
    gr_log_set(keep, NULL);
    cr_assert_eq(gr_world_threads(world, N), 0);
    for (int i = 0; i < N; i++) {
        m[i] = (struct member){.world = world[i], .has_transport = has_transport};
        m[i].fault = i == 2 ? fault : NONE;
    }
    for (int i = 0; i < N; i++)
        pthread_create(&thread[i], NULL, run, &m[i]);
    for (int i = 0; i < N; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(m[i].rc, 0);
        cr_assert(m[i].found.first == 0 && m[i].found.n == N);
        for (int k = 0; k < GR_TP_GROUP_SIZES; k++)
            cr_assert(m[i].found.seconds[k] > 0 && m[i].found.seconds[k] < 60);
    }
    char line[160];
    cr_assert(strstr(logged, gr_tp_group_result_text(&m[0].found, line, sizeof line)), "%s",
              logged);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

Test(tp_group_check, host_memory)
{
    struct member m[N];
    run_group(m, false, NONE);
    cr_assert_str_eq(m[1].found.name, "threads (host memory)");
    cr_assert_str_eq(gr_tp_group_result_text(&(struct gr_tp_group_result){4, 2, "NCCL", {12e-6}},
                                             logged, sizeof logged),
                     "ranks 4 to 5 share layers: NCCL, 12.0 us");
}

Test(tp_group_check, transports)
{
    struct member m[N];
    run_group(m, true, NONE);
    for (int i = 0; i < N; i++)
        cr_assert(m[i].kept && strcmp(m[i].found.name, "a transport") == 0);
    for (enum fault fault = SPOILS; fault <= FAILS; fault++) {
        run_group(m, true, fault);
        for (int i = 0; i < N; i++)
            cr_assert(!m[i].kept && strcmp(m[i].found.name, "threads (host memory)") == 0);
        cr_assert(strstr(logged, "ranks 0 to 2: a transport does not bring what was sent (rank 2"),
                  "%s", logged);
    }
}
