/* The world of processes under ThreadSanitizer: its ranks are threads here, over an MPI that is
 * made of queues. Each rank has the thread that begins and waits, and the one that looks after
 * sends. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gr/status.h"
#include "link/process.h"
#include "support/traffic.h"

#define N_RANK 3
#define EAGER 4000 /* longer messages are not sent before somebody receives them */

/* A message or a receive: done when both have met. */
struct post {
    struct post *next;
    int from, to, tag, n;
    char *buf;
    int is_send, done;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct post *posts; /* in order */
static _Thread_local int own;

static int start(int *rank, int *n_rank, char *why, size_t n)
{
    (void)why, (void)n;
    *rank = own, *n_rank = N_RANK;
    return 0;
}

static void stop(void)
{
}

/* Under the lock: the oldest post of the other kind on the same way. */
static struct post **partner(int is_send, int from, int to, int tag)
{
    struct post **at = &posts;
    while (*at && ((*at)->is_send == is_send || (*at)->from != from || (*at)->to != to ||
                   (*at)->tag != tag))
        at = &(*at)->next;
    return at;
}

static void meet(struct post *send, struct post *recv)
{
    int n = send->n < recv->n ? send->n : recv->n;
    if (n)
        memcpy(recv->buf, send->buf, (size_t)n);
    recv->n = n;
    if (send->done)
        free(send->buf), free(send); /* it was a copy, and nobody asks for it any more */
    else
        send->done = 1;
    recv->done = 1;
}

static int post(int is_send, const void *buf, int n, int from, int to, int tag,
                struct gr_mpi_request *r)
{
    struct post *p = calloc(1, sizeof *p), **at = &posts;
    *p = (struct post){NULL, from, to, tag, n, (char *)(uintptr_t)buf, is_send, 0};
    r->opaque = (uint64_t)(uintptr_t)p;
    pthread_mutex_lock(&lock);
    struct post **other = partner(is_send, from, to, tag);
    if (*other) {
        struct post *o = *other;
        *other = o->next;
        meet(is_send ? p : o, is_send ? o : p);
    } else {
        while (*at)
            at = &(*at)->next;
        *at = p;
        if (is_send && n <= EAGER) { /* a copy waits, and the request is done */
            p->buf = memcpy(malloc((size_t)n + 1), buf, (size_t)n);
            p->done = 1;
            r->opaque = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int send(const void *buf, int n, int to, int tag, struct gr_mpi_request *r)
{
    return post(1, buf, n, own, to, tag, r);
}

static int recv(void *buf, int n, int from, int tag, struct gr_mpi_request *r)
{
    return post(0, buf, n, from, own, tag, r);
}

static int probe(int from, int tag, int *found, int *n)
{
    pthread_mutex_lock(&lock);
    struct post *p = *partner(0, from, own, tag);
    *found = p != NULL;
    *n = p ? p->n : 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int test(struct gr_mpi_request *r, int *done, int *n)
{
    struct post *p = (struct post *)(uintptr_t)r->opaque;
    pthread_mutex_lock(&lock);
    *done = !p || p->done;
    *n = p ? p->n : 0;
    pthread_mutex_unlock(&lock);
    if (p && *done)
        free(p), r->opaque = 0;
    return 0;
}

static int cancel(struct gr_mpi_request *r)
{
    struct post *p = (struct post *)(uintptr_t)r->opaque, **at = &posts;
    pthread_mutex_lock(&lock);
    while (*at && *at != p)
        at = &(*at)->next;
    if (*at)
        *at = p->next;
    p->done = 1;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int barrier(struct gr_mpi_request *r)
{
    r->opaque = 0;
    return 0;
}

static int gather(const void *mine, void *all, int n, struct gr_mpi_request *r)
{
    (void)mine, (void)all, (void)n;
    return barrier(r);
}

static void text(int error, char *buf, size_t n)
{
    snprintf(buf, n, "error %d", error);
}

static const struct gr_mpi mpi = {GR_MPI_ABI, start,   stop, send,   recv, probe,
                                  gather,     barrier, test, cancel, text};

struct part {
    int rank, rc;
    uint64_t seed;
    char text[256];
};

static void *run_part(void *arg)
{
    struct part *p = arg;
    struct gr_launch launch = {"mpirun", p->rank, N_RANK};
    struct traffic t = {p->seed, 15, 20000, p->seed % 2, 60000000000};
    struct gr_world *w;
    own = p->rank;
    p->rc = gr_world_mpi(&w, &mpi, &launch);
    if (p->rc)
        return NULL;
    for (int i = 0; i < N_RANK; i++)
        strcpy(w->ranks[i].host, "here");
    p->rc = traffic_rank(w, &t);
    snprintf(p->text, sizeof p->text, "%s", gr_error());
    w->api->close(&w);
    return NULL;
}

int main(void)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct part part[N_RANK] = {{0}};
        pthread_t thread[N_RANK];
        for (int i = 0; i < N_RANK; i++) {
            part[i] = (struct part){.rank = i, .seed = seed};
            pthread_create(&thread[i], NULL, run_part, &part[i]);
        }
        for (int i = 0; i < N_RANK; i++)
            pthread_join(thread[i], NULL);
        for (int i = 0; i < N_RANK; i++)
            if (part[i].rc) {
                fprintf(stderr, "seed %d, rank %d: %s\n", (int)seed, i, part[i].text);
                return 1;
            }
        if (posts) {
            fprintf(stderr, "seed %d: messages are left\n", (int)seed);
            return 1;
        }
    }
    return 0;
}
