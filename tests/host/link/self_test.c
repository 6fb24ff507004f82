/* The test of links at the start, between threads; transports are made up of other links. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "gr/backend.h"
#include "gr/status.h"
#include "link/self_test.h"
#include "support/host_device.h"

#define S ((int64_t)1000000000)
#define MAX 6

/* ---- a device and a transport that are neither ---- */

static struct gr_backend fake_backend = {&host_device_api};

enum fault { GOOD, SPOILS, FAILS_TO_SEND, SPOILS_HOST };

struct fake_transport {
    struct gr_transport base;
    struct gr_link *in, *out; /* of the group lane */
    enum fault fault;
};

static int fake_send(struct gr_transport *transport, struct gr_backend *b,
                     const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    struct fake_transport *f = (struct fake_transport *)transport;
    struct gr_request r = {0};
    (void)b, (void)n_span, (void)deadline_ns;
    if (f->fault == FAILS_TO_SEND)
        return gr_fail(GR_E_DEVICE, "a made-up failure");
    if (f->fault == SPOILS && span->bytes > 4000)
        ((unsigned char *)span->p)[4000] ^= 1;
    return gr_link_send(f->out, span->p, span->bytes, &r);
}

static int fake_recv(struct gr_transport *transport, struct gr_backend *b,
                     const struct gr_transport_span *span, int n_span, int64_t deadline_ns)
{
    struct fake_transport *f = (struct fake_transport *)transport;
    struct gr_request r = {0};
    (void)b, (void)n_span, (void)deadline_ns;
    int rc = gr_link_recv(f->in, span->p, span->bytes, &r);
    if (!rc)
        rc = gr_link_wait(f->in, &r, gr_now_ns() + S / 10);
    return rc;
}

static int fake_wait(struct gr_transport *transport, int64_t deadline_ns)
{
    (void)transport, (void)deadline_ns;
    return 0;
}

static const struct gr_transport_api fake_transport_api = {
    .name = "fake", .send = fake_send, .recv = fake_recv, .wait = fake_wait};

/* A link that spoils messages of one length. */
static struct gr_link_api spoiling;
static int (*plain_send)(struct gr_link *l, const void *buf, size_t n, struct gr_request *r);

static int spoiling_send(struct gr_link *l, const void *buf, size_t n, struct gr_request *r)
{
    static unsigned char bytes[8192];
    if (n != sizeof bytes)
        return plain_send(l, buf, n, r);
    memcpy(bytes, buf, n);
    bytes[5000] ^= 1;
    return plain_send(l, bytes, n, r);
}

/* ---- chains ---- */

struct how {
    int n;
    struct gr_link_opt wrap;
    bool transports;
    enum fault fault; /* of the link from rank 1 */
    int missing;      /* this rank does not take part; 0 = all do */
    int64_t limit_ns;
};

struct member {
    struct gr_world *world;
    const struct how *how;
    struct gr_link_result found[MAX];
    int n_found, rc, chosen_in, chosen_out;
    char text[256];
};

static void open_neighbour(struct member *m, int32_t from, int32_t to, struct gr_port *port,
                           struct gr_link **group)
{
    cr_assert_eq(gr_world_link(m->world, GR_LANE_DATA, from, to, &port->link), 0);
    cr_assert_eq(gr_world_link(m->world, GR_LANE_TENSOR, from, to, group), 0);
}

static void *run_member(void *arg)
{
    struct member *m = arg;
    int32_t rank = m->world->rank;
    struct fake_transport transport = {.base = {.api = &fake_transport_api, .via = "a transport"}};
    struct gr_path path = {&transport.base, &fake_backend};
    struct gr_port in = {0}, out = {0};
    struct gr_chain_end from = {.paths = &path, .n_path = m->how->transports}, to = from;
    transport.fault = rank == 1 ? m->how->fault : GOOD;
    if (rank > 0)
        open_neighbour(m, rank - 1, rank, from.port = &in, &transport.in);
    if (rank < m->how->n - 1)
        open_neighbour(m, rank, rank + 1, to.port = &out, &transport.out);
    if (transport.fault == SPOILS_HOST) {
        plain_send = out.link->api->send;
        spoiling = *out.link->api;
        spoiling.send = spoiling_send;
        out.link->api = &spoiling;
    }
    if (!m->how->missing || m->how->missing != rank)
        m->rc = gr_chain_try(m->world, &from, &to, gr_now_ns() + m->how->limit_ns, m->found,
                             &m->n_found);
    if (m->rc)
        snprintf(m->text, sizeof m->text, "%s", gr_error());
    m->chosen_in = from.chosen, m->chosen_out = to.chosen;
    gr_link_close(&in.link), gr_link_close(&out.link);
    gr_link_close(&transport.in), gr_link_close(&transport.out);
    return NULL;
}

static char logged[2000];

static void keep(enum gr_log_level level, const char *line, void *user)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)user;
    pthread_mutex_lock(&lock);
    if (level >= GR_LOG_INFO)
        strncat(strncat(logged, line, 300), "\n", 2);
    pthread_mutex_unlock(&lock);
}

static void run_chain(const struct how *how, struct member *m)
{
    struct gr_world *world[MAX];
    pthread_t thread[MAX];
    logged[0] = 0;
    gr_log_set(keep, NULL);
    cr_assert_eq(gr_world_threads(world, how->n), 0);
    for (int i = 0; i < how->n; i++) {
        m[i] = (struct member){.world = world[i], .how = how};
        world[i]->wrap = how->wrap.delay_ns ? &how->wrap : NULL;
        pthread_create(&thread[i], NULL, run_member, &m[i]);
    }
    for (int i = 0; i < how->n; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < how->n; i++)
        world[i]->api->close(&world[i]);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

/* Chains of every length, every link found, in order, by everyone before it. */
Test(check, chains)
{
    static struct member m[MAX];
    for (int n = 1; n <= MAX; n++) {
        run_chain(&(struct how){.n = n, .limit_ns = 20 * S}, m);
        for (int i = 0; i < n; i++) {
            cr_assert_eq(m[i].rc, 0, "%s", m[i].text);
            cr_assert_eq(m[i].n_found, n - 1 - i);
            for (int k = 0; k < m[i].n_found; k++) {
                const struct gr_link_result *f = &m[i].found[k];
                cr_assert(f->from == i + k && f->to == i + k + 1);
                cr_assert_str_eq(f->name, "threads (host memory)");
                cr_assert(f->seconds[0] > 0 && f->seconds[2] > 0 && f->bytes_per_s > 0);
            }
        }
        char line[160], last[16];
        snprintf(last, sizeof last, "-> %d: threads", n - 1);
        if (n == 2)
            gr_link_result_text(&m[0].found[0], line, sizeof line);
        cr_assert(n != 2 || strstr(logged, line), "%s", logged);
        cr_assert(n == 1 ? !*logged : strstr(logged, last) != NULL, "%s", logged);
        cr_assert(n == 1 || strchr(logged, '\n')[1] == 0, "more than a line: %s", logged);
    }
    cr_assert_str_eq(gr_link_result_text(&(struct gr_link_result){.to = 1,
                                                                  .name = "NCCL 2.28.9",
                                                                  .seconds = {5.1e-6},
                                                                  .bytes_per_s = 1.1e9},
                                         logged, sizeof logged),
                     "link 0 -> 1: NCCL 2.28.9, 5.1 us, 1.10 GB/s");
}

/* The measured figures are those of the simulated wire. */
Test(check, figures)
{
    static struct member m[MAX];
    struct how how = {.n = 3, .limit_ns = 20 * S};
    how.wrap = (struct gr_link_opt){.delay_ns = S / 200, .bytes_per_s = 100000000};
    run_chain(&how, m);
    for (int k = 0; k < 2; k++) {
        const struct gr_link_result *f = &m[0].found[k];
        cr_assert_eq(m[0].rc, 0, "%s", m[0].text);
        cr_assert(f->seconds[0] >= 0.0049, "%g s", f->seconds[0]);
        cr_assert(f->seconds[2] >= 0.0102, "%g s", f->seconds[2]);
    }
}

Test(check, transports)
{
    static struct member m[MAX];
    struct how how = {.n = 3, .transports = true, .limit_ns = 20 * S};
    run_chain(&how, m);
    for (int i = 0; i < 3; i++)
        cr_assert(!m[i].rc && m[i].chosen_in == 0 && m[i].chosen_out == 0, "%s", m[i].text);
    cr_assert_str_eq(m[0].found[1].name, "a transport");
    /* Other bytes, or none: that link goes through host memory, the other one does not. */
    for (how.fault = SPOILS; how.fault <= FAILS_TO_SEND; how.fault++) {
        run_chain(&how, m);
        for (int i = 0; i < 3; i++)
            cr_assert_eq(m[i].rc, 0, "%s", m[i].text);
        cr_assert(m[0].chosen_out == 0 && m[1].chosen_in == 0);
        cr_assert(m[1].chosen_out == 1 && m[2].chosen_in == 1);
        cr_assert_str_eq(m[0].found[0].name, "a transport");
        cr_assert_str_eq(m[0].found[1].name, "threads (host memory)");
        cr_assert(strstr(logged, "link 1 -> 2: a transport does not bring what was sent"), "%s",
                  logged);
    }
}

Test(check, failures)
{
    static struct member m[MAX];
    run_chain(&(struct how){.n = 3, .fault = SPOILS_HOST, .limit_ns = S}, m);
    cr_assert_eq(m[1].rc, GR_E_PEER_LOST);
    cr_assert(strstr(m[1].text, "link 1 -> 2: threads (host memory) brings other bytes"), "%s",
              m[1].text);
    /* A rank that is not there. */
    run_chain(&(struct how){.n = 3, .missing = 2, .limit_ns = S / 5}, m);
    cr_assert(m[1].rc == GR_E_PEER_LOST && strstr(m[1].text, "rank 2 ("), "%s", m[1].text);
}
