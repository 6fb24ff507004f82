/* Measures the cost of a message between ranks, and checks that it arrives: `bench_transport peer
 * N` (threads; with fewer devices than ranks these share them) or `bench_transport nccl N`
 * (processes; each says that it is a machine of its own, NCCL_HOSTID, so that they may share a
 * device: that is NCCL's way between machines, over sockets of this one). A line of JSON for each
 * size, from the last rank.
 *
 * `bench_transport nccl N die`: the last rank ends without a word; how long the others take to
 * notice, with a deadline of 5 s. Exits 77 where there is no device, or no NCCL.
 *
 * Each size is a case of tests/support/cases.h, "transport KIND N BYTES", which the last rank
 * tells. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cuda/runtime.h"
#include "gr/status.h"
#include "support/cases.h"

#define SECOND ((int64_t)1000000000)
#define SKIPPED 77
#define MAX_MEMBER 8

static const size_t sizes[] = {8, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
enum { N_SIZE = sizeof sizes / sizeof *sizes, N_ROUND = 51 };

/* On the emulated device times mean nothing. */
static int n_round(void)
{
    return strcmp(gr_cuda_devices.name, "CUDA") != 0 ? 5 : N_ROUND;
}

struct member {
    enum gr_transport_kind kind;
    int32_t number, n;
    struct gr_transport_ticket ticket;
    bool die;
    int rc;
    char why[512];
    /* while it runs */
    struct gr_cuda_backend *c;
    struct gr_transport *transport;
    unsigned char *p, *host; /* device memory; what is expected there, and what came */
    cu_event event[2];
};

static int64_t soon(int seconds)
{
    return gr_now_ns() + seconds * SECOND;
}

static void draw(unsigned char *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)((seed * 31 + i * 7 + (i >> 8)) * 2654435761u >> 24);
}

/* Passes a message on, by memory that is used again at once. */
static int pass(struct member *m, size_t bytes)
{
    struct gr_transport_span span = {m->p, bytes};
    struct gr_backend *b = &m->c->base;
    int rc = m->number ? m->transport->api->recv(m->transport, b, &span, 1, soon(5)) : 0;
    if (!rc && m->number < m->n - 1)
        rc = m->transport->api->send(m->transport, b, &span, 1, soon(5));
    return rc;
}

/* The first rank's bytes, or whether they are what came to the others. */
static int look(struct member *m, size_t bytes, uint32_t seed)
{
    struct gr_backend *b = &m->c->base;
    draw(m->host, bytes, seed);
    int rc = m->number ? 0 : b->api->upload(b, m->p, m->host, bytes);
    if (!rc)
        rc = pass(m, bytes);
    if (!rc)
        rc = m->transport->api->wait(m->transport, soon(5));
    if (rc || !m->number)
        return rc ? rc : b->api->sync(b);
    unsigned char *came = m->host + bytes;
    rc = b->api->download(b, came, m->p, bytes);
    return rc || memcmp(came, m->host, bytes) == 0
               ? rc
               : gr_fail(GR_E_CHECK, "member %d: other bytes than were sent", m->number);
}

/* Messages one behind the other: from the first one's arrival to the last one's, by the device. */
static int measure(struct member *m, size_t bytes)
{
    float ms = 0;
    int n = n_round();
    int64_t start = gr_now_ns();
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        rc = pass(m, bytes);
        if (!rc && (i == 0 || i == n - 1))
            rc = CU(m->c, event_record, m->event[i != 0], m->c->stream);
    }
    if (!rc)
        rc = m->transport->api->wait(m->transport, soon(10));
    if (!rc)
        rc = m->c->base.api->sync(&m->c->base);
    double host_us = gr_seconds_since(start) * 1e6 / n;
    if (!rc)
        rc = CU(m->c, event_time, &ms, m->event[0], m->event[1]);
    if (!rc && m->number == m->n - 1)
        printf("{\"op\": \"transport\", \"impl\": \"gpurun\", \"kind\": \"%s\", \"via\": \"%s\", "
               "\"n_member\": %d, \"bytes\": %zu, \"device_us\": %.2f, \"host_us\": %.2f}\n",
               m->transport->api->name, m->transport->via, m->n, bytes, (double)ms * 1e3 / (n - 1),
               host_us);
    return rc;
}

static int one_size(struct member *m, int i)
{
    int rc = 0;
    for (uint32_t k = 0; k < 5 && !rc; k++) /* every piece of the ring, some twice */
        rc = look(m, sizes[i] - k % 2, (uint32_t)i * 8 + k);
    return rc ? rc : measure(m, sizes[i]);
}

static int all_sizes(struct member *m)
{
    const bool tells = m->number == m->n - 1;
    int rc = 0;
    for (int i = 0; i < N_SIZE && !rc; i++) {
        char name[64];
        snprintf(name, sizeof name, "transport %s %d %zu",
                 m->kind == GR_TRANSPORT_NCCL ? "nccl" : "peer", m->n, sizes[i]);
        if (!cases_wanted(name)) /* by all ranks alike */
            continue;
        if (tells)
            (void)cases_begin(NULL, name);
        rc = one_size(m, i);
        if (tells)
            cases_end(name, rc ? gr_error() : NULL);
    }
    return rc;
}

/* The last one is gone; the others notice by what does not come any more. */
static int notice(struct member *m)
{
    int rc = look(m, sizes[1], 1);
    if (!rc && m->number == m->n - 1)
        (void)raise(SIGKILL);
    int64_t start = gr_now_ns();
    for (int i = 0; i < 1000 && !rc; i++)
        if (!(rc = pass(m, sizes[1])))
            rc = m->transport->api->wait(m->transport, soon(5));
    if (rc == GR_E_PEER_LOST || rc == GR_E_DEVICE)
        printf("{\"op\": \"transport_death\", \"member\": %d, \"seconds\": %.3f, \"status\": %d}\n",
               m->number, gr_seconds_since(start), rc);
    return rc == GR_E_PEER_LOST ? 0 : rc ? rc : gr_fail(GR_E_CHECK, "nobody noticed");
}

static int join(struct member *m)
{
    struct gr_backend *b = NULL;
    const char *why;
    bool broken;
    int n_device = gr_cuda_devices.count(&why, &broken);
    struct gr_transport_opt o = {.kind = m->kind,
                                 .ticket = m->ticket,
                                 .member = m->number,
                                 .n_member = m->n,
                                 .from = m->number - 1,
                                 .to = m->number < m->n - 1 ? m->number + 1 : -1,
                                 .piece_bytes = 4 << 20,
                                 .deadline_ns = soon(60)};
    if (n_device == 0)
        return gr_fail(GR_E_UNSUPPORTED, "%s", why);
    int rc = gr_cuda_devices.open(&b, m->number % n_device, &(struct gr_device_opt){0});
    m->c = b ? gr_cuda_of(b) : NULL;
    int64_t start = gr_now_ns();
    if (!rc)
        rc = b->api->transport_join(b, &o, &m->transport);
    if (!rc && m->number == m->n - 1)
        printf(
            "{\"op\": \"transport_join\", \"kind\": \"%s\", \"n_member\": %d, \"seconds\": %.3f}\n",
            m->transport->api->name, m->n, gr_seconds_since(start));
    return rc;
}

static int live(struct member *m)
{
    size_t most = sizes[N_SIZE - 1];
    int rc = join(m);
    if (!rc) /* for what is asked of the driver here */
        rc = CU(m->c, context_set, m->c->device->context);
    for (int i = 0; i < 2 && !rc; i++)
        rc = CU(m->c, event_create, &m->event[i], 0);
    if (!rc && !(m->p = m->c->base.api->alloc(&m->c->base, most)))
        rc = GR_E_NOMEM_DEV;
    if (!rc && !(m->host = gr_calloc(2, most)))
        rc = GR_E_NOMEM_HOST;
    return rc ? rc : m->die ? notice(m) : all_sizes(m);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    m->rc = live(m);
    if (m->rc)
        snprintf(m->why, sizeof m->why, "%s", gr_error());
    if (m->transport)
        m->transport->api->leave(&m->transport);
    if (m->c) {
        (void)m->c->cu->context_set(m->c->device->context);
        for (int i = 0; i < 2; i++)
            if (m->event[i])
                (void)m->c->cu->event_destroy(m->event[i]);
        struct gr_backend *b = &m->c->base;
        b->api->free(b, m->p);
        b->api->close(&b);
    }
    gr_free(m->host);
    if (m->rc)
        fprintf(stderr, "member %d: %s\n", m->number, m->why);
    return NULL;
}

static int by_threads(struct member *m, int32_t n)
{
    pthread_t thread[MAX_MEMBER];
    int rc = gr_cuda_devices.transport_ticket(GR_TRANSPORT_PEER, &m[0].ticket);
    for (int32_t i = 0; i < n && !rc; i++) {
        m[i].ticket = m[0].ticket;
        if (pthread_create(&thread[i], NULL, member_main, &m[i]))
            return 1;
    }
    for (int32_t i = 0; i < n && !rc; i++)
        (void)pthread_join(thread[i], NULL);
    for (int32_t i = 0; i < n && !rc; i++)
        rc = m[i].rc;
    return rc;
}

static void name_machine(int32_t i)
{
    char name[32];
    snprintf(name, sizeof name, "gpurun-%d", i);
    (void)setenv("NCCL_HOSTID", name, 0);
}

/* A member that is a process: its ticket comes through a pipe, or the end of it where there is
 * none. Writing ends of pipes up to its own are open here as well. */
static int live_alone(struct member *m, int to[][2])
{
    for (int32_t i = 1; i <= m->number; i++)
        close(to[i][1]);
    name_machine(m->number);
    if (read(to[m->number][0], &m->ticket, sizeof m->ticket) != (ssize_t)sizeof m->ticket)
        return 1;
    (void)member_main(m);
    fflush(stdout);
    return m->rc == GR_E_UNSUPPORTED ? SKIPPED : m->rc != 0;
}

static int hand_out(const struct gr_transport_ticket *ticket, int to[][2], int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (write(to[i][1], ticket, sizeof *ticket) < 0)
            return GR_E_IO;
    return 0;
}

/* A process each, made before CUDA is touched. */
static int by_processes(struct member *m, int32_t n)
{
    int to[MAX_MEMBER][2], status, rc;
    pid_t child[MAX_MEMBER];
    for (int32_t i = 1; i < n; i++) {
        if (pipe(to[i]) || (child[i] = fork()) < 0)
            return 1;
        if (!child[i])
            _exit(live_alone(&m[i], to));
    }
    name_machine(0);
    rc = gr_cuda_devices.transport_ticket(GR_TRANSPORT_NCCL, &m[0].ticket);
    if (rc)
        fprintf(stderr, "%s\n", gr_error());
    else
        rc = hand_out(&m[0].ticket, to, n);
    for (int32_t i = 1; i < n; i++)
        close(to[i][1]);
    if (!rc) {
        (void)member_main(&m[0]);
        rc = m[0].rc;
    }
    for (int32_t i = 1; i < n; i++) {
        bool is_to_die = m[i].die && i == n - 1;
        if (waitpid(child[i], &status, 0) == child[i] && !rc && status && !is_to_die)
            rc = GR_E_PEER_LOST;
    }
    return rc;
}

int main(int argc, char **argv)
{
    static struct member m[MAX_MEMBER];
    bool nccl = argc > 2 && strcmp(argv[1], "nccl") == 0;
    int32_t n = argc > 2 ? atoi(argv[2]) : 0;
    if (n < 2 || n > MAX_MEMBER || (!nccl && strcmp(argv[1], "peer") != 0)) {
        fprintf(stderr, "usage: bench_transport peer|nccl RANKS [die]\n");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (int32_t i = 0; i < n; i++)
        m[i] = (struct member){.kind = nccl ? GR_TRANSPORT_NCCL : GR_TRANSPORT_PEER,
                               .number = i,
                               .n = n,
                               .die = nccl && argc > 3 && strcmp(argv[3], "die") == 0};
    int rc = nccl ? by_processes(m, n) : by_threads(m, n);
    return rc == GR_E_UNSUPPORTED ? SKIPPED : rc != 0;
}
