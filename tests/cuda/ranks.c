#include "ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"

static void draw(unsigned char *p, size_t bytes, uint32_t seed)
{
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < bytes; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        p[i] = (unsigned char)(x >> 11);
    }
}

int64_t rank_deadline(const struct rank *r)
{
    int64_t patience = r->world->patience_ns;
    return gr_now_ns() + (patience ? patience : (int64_t)60 * 1000000000);
}

int rank_fill(struct rank *r, void *p, size_t bytes, uint32_t seed)
{
    unsigned char *host = gr_calloc(bytes, 1);
    if (!host)
        return GR_E_NOMEM_HOST;
    draw(host, bytes, seed);
    int rc = r->backend->api->upload(r->backend, p, host, bytes);
    gr_free(host);
    return rc;
}

int rank_compare(struct rank *r, const void *p, size_t bytes, uint32_t seed)
{
    unsigned char *host = gr_calloc(2, bytes);
    if (!host)
        return GR_E_NOMEM_HOST;
    draw(host, bytes, seed);
    int rc = r->net ? r->net->api->wait(r->net, rank_deadline(r)) : 0;
    if (!rc)
        rc = r->backend->api->download(r->backend, host + bytes, p, bytes);
    if (!rc && memcmp(host, host + bytes, bytes) != 0)
        rc = gr_fail(GR_E_INTERNAL, "rank %d: %zu other bytes came", r->member, bytes);
    gr_free(host);
    return rc;
}

static struct gr_net_opt options(const struct rank *r)
{
    const struct world *w = r->world;
    int32_t step = w->n_group > 1 ? w->n_group : 1, m = r->member;
    return (struct gr_net_opt){.kind = w->kind,
                               .ticket = w->ticket,
                               .member = m,
                               .n_member = w->n,
                               .from = m >= step ? m - step : -1,
                               .to = m + step < w->n ? m + step : -1,
                               .first = m / step * step,
                               .n_group = w->n_group,
                               .piece_bytes = w->piece_bytes,
                               .lost = &w->lost,
                               .deadline_ns = rank_deadline(r)};
}

static int live(struct rank *r)
{
    const struct gr_net_opt o = options(r);
    int rc = gr_cuda_devices.open(&r->backend, r->member % r->world->n_device, &r->world->device);
    if (!rc)
        rc = r->joined = r->backend->api->net_join(r->backend, &o, &r->net);
    if (!rc)
        rc = r->world->run(r);
    return rc;
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    r->joined = -1;
    r->rc = live(r);
    if (r->rc)
        (void)snprintf(r->text, sizeof r->text, "%s", gr_error());
    r->suspect = r->net ? r->net->suspect : -1;
    if (r->net)
        r->net->api->leave(&r->net);
    if (r->backend)
        r->backend->api->close(&r->backend);
    return NULL;
}

void world_run(struct world *w)
{
    pthread_t thread[MAX_RANK];
    if (!w->ticket.bytes[0])
        cr_assert_eq(gr_cuda_devices.net_ticket(w->kind, &w->ticket), 0, "%s", gr_error());
    for (int32_t i = 0; i < w->n; i++) {
        w->rank[i] = (struct rank){.world = w, .member = i};
        if (!w->absent[i])
            cr_assert_eq(pthread_create(&thread[i], NULL, rank_main, &w->rank[i]), 0);
    }
    for (int32_t i = 0; i < w->n; i++)
        if (!w->absent[i])
            (void)pthread_join(thread[i], NULL);
}

void world_expect_nothing_left(void)
{
    expect_count(emu()->live(NULL), 0);
    cr_expect_str_empty(emu()->report());
}

void world_expect(struct world *w)
{
    for (int32_t i = 0; i < w->n; i++)
        cr_expect_eq(w->rank[i].rc, 0, "rank %d: %s", i, w->rank[i].text);
    world_expect_nothing_left();
}
