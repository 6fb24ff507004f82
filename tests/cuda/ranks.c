#include "ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
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

static int64_t until(int64_t patience_ns)
{
    return gr_now_ns() + (patience_ns ? patience_ns : (int64_t)60 * 1000000000);
}

int64_t rank_deadline(const struct rank *r)
{
    return until(r->world->patience_ns);
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
    int rc = r->transport ? r->transport->api->wait(r->transport, rank_deadline(r)) : 0;
    if (!rc)
        rc = r->backend->api->download(r->backend, host + bytes, p, bytes);
    if (!rc && memcmp(host, host + bytes, bytes) != 0)
        rc = gr_fail(GR_E_INTERNAL, "rank %d: %zu other bytes came", r->member, bytes);
    gr_free(host);
    return rc;
}

static struct gr_transport_opt options(const struct rank *r)
{
    const struct world *w = r->world;
    int32_t step = w->n_group > 1 ? w->n_group : 1, m = r->member;
    return (struct gr_transport_opt){.kind = w->kind,
                                     .ticket = w->ticket,
                                     .member = m,
                                     .n_member = w->n,
                                     .from = m >= step ? m - step : -1,
                                     .to = m + step < w->n ? m + step : -1,
                                     .first = m / step * step,
                                     .n_group = w->n_group,
                                     .piece_bytes = w->piece_bytes,
                                     .lost = &w->lost,
                                     .deadline_ns = until(w->join_ns)};
}

/* Nobody does its part before everybody has joined, or failed to: what one does must not be what
 * another's joining meets. */
static void await_all(struct world *w)
{
    const struct timespec t = {0, 100000};
    int n = 0;
    for (int32_t i = 0; i < w->n; i++)
        n += !w->absent[i];
    atomic_fetch_add(&w->n_settled, 1);
    while (atomic_load(&w->n_settled) < n)
        (void)nanosleep(&t, NULL);
}

static int live(struct rank *r)
{
    const struct gr_transport_opt o = options(r);
    int rc = gr_cuda_devices.open(&r->backend, r->member % r->world->n_device, &r->world->device);
    if (!rc)
        rc = r->backend->api->transport_join(r->backend, &o, &r->transport);
    await_all(r->world);
    return rc ? rc : r->world->run(r);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    r->rc = live(r);
    if (r->rc)
        (void)snprintf(r->text, sizeof r->text, "%s", gr_error());
    r->suspect = r->transport ? r->transport->suspect : -1;
    if (r->transport)
        r->transport->api->leave(&r->transport);
    if (r->backend)
        r->backend->api->close(&r->backend);
    return NULL;
}

void world_run(struct world *w)
{
    pthread_t thread[MAX_RANK];
    atomic_store(&w->n_settled, 0);
    if (!w->ticket.bytes[0])
        cr_assert_eq(gr_cuda_devices.transport_ticket(w->kind, &w->ticket), 0, "%s", gr_error());
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

/* ---- what ranks do ---- */

#define MOST ((size_t)4 << 20)

/* Sizes from 1 byte to MOST, small ones as often as large ones; the same on every rank. */
static size_t size_of(uint32_t i)
{
    uint32_t x = (i + 1) * 2654435761u;
    size_t most = (size_t)1 << (x >> 27) % 23;
    return GR_MIN(1 + (x & 0xffffff) % most, MOST);
}

/* Splits p into up to three spans. */
static int spans(char *p, size_t bytes, uint32_t i, struct gr_transport_span out[3])
{
    size_t a = bytes * (i % 5) / 7, b = bytes * (i % 3) / 5;
    out[0] = (struct gr_transport_span){p, a};
    out[1] = (struct gr_transport_span){p + a, b};
    out[2] = (struct gr_transport_span){p + a + b, bytes - a - b};
    return 3;
}

int rank_pass_on(struct rank *r)
{
    const struct script *s = r->world->user;
    const struct gr_transport_api *api = r->transport->api;
    bool first = r->member == 0, last = r->member == r->world->n - 1;
    struct gr_transport_span span[3];
    char *p = r->backend->api->alloc(r->backend, MOST);
    int rc = p ? 0 : GR_E_NOMEM_DEV;
    for (int i = 0; i < s->n_message && !rc; i++) {
        size_t bytes = size_of((uint32_t)i);
        if (r->member == 1 && i == s->stop_at)
            break;
        if (first)
            rc = rank_fill(r, p, bytes, (uint32_t)i);
        else
            rc = api->recv(r->transport, r->backend, span, spans(p, bytes, (uint32_t)i + 1, span),
                           rank_deadline(r));
        if (!rc && !last)
            rc = api->send(r->transport, r->backend, span, spans(p, bytes, (uint32_t)i, span),
                           rank_deadline(r));
        if (!rc && last)
            rc = rank_compare(r, p, bytes, (uint32_t)i);
    }
    if (!rc)
        rc = api->wait(r->transport, rank_deadline(r));
    r->backend->api->free(r->backend, p);
    return rc;
}

int rank_gather(struct rank *r)
{
    const struct script *s = r->world->user;
    int32_t n = r->world->n_group, first = r->member / n * n;
    char *all = r->backend->api->alloc(r->backend, MOST);
    int rc = all ? 0 : GR_E_NOMEM_DEV;
    for (int i = 0; i < s->n_message && !rc; i++) {
        size_t part = GR_MIN(size_of((uint32_t)i), MOST / (size_t)n);
        rc = rank_fill(r, all + (size_t)(r->member - first) * part, part,
                       (uint32_t)(i * MAX_RANK + r->member));
        if (!rc)
            rc = r->transport->api->gather(r->transport, r->backend, all, part, rank_deadline(r));
        for (int32_t k = 0; k < n && !rc; k++)
            rc =
                rank_compare(r, all + (size_t)k * part, part, (uint32_t)(i * MAX_RANK + first + k));
    }
    r->backend->api->free(r->backend, all);
    return rc;
}

int rank_gather_and_pass(struct rank *r)
{
    struct script *s = r->world->user;
    char *p = r->backend->api->alloc(r->backend, 1000);
    struct gr_transport_span span = {p, 1000};
    int rc = p ? 0 : GR_E_NOMEM_DEV;
    for (int i = 0; i < s->n_message && !rc; i++) {
        rc = rank_fill(r, p + r->member % 2 * 500, 500, (uint32_t)(i * 2 + r->member % 2));
        if (!rc)
            rc = r->transport->api->gather(r->transport, r->backend, p, 500, rank_deadline(r));
        if (!rc)
            rc = (r->member < 2 ? r->transport->api->send : r->transport->api->recv)(
                r->transport, r->backend, &span, 1, rank_deadline(r));
        for (int k = 0; k < 2 && !rc; k++)
            rc = rank_compare(r, p + k * 500, 500, (uint32_t)(i * 2 + k));
    }
    r->backend->api->free(r->backend, p);
    return rc;
}

void rank_expect_lost(const struct rank *r, const char *text, int32_t suspect)
{
    cr_expect_eq(r->rc, GR_E_PEER_LOST, "rank %d: %d", r->member, r->rc);
    cr_expect_not_null(strstr(r->text, text), "rank %d: %s", r->member, r->text);
    cr_expect_eq(r->suspect, suspect, "rank %d suspects %d: %s", r->member, r->suspect, r->text);
}
