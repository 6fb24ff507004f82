/* The world of processes over an MPI that is made up: what goes wrong in it, and when it is left
 * alone. What goes right is tested with a real one (tests/ranks/mpi). */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gpurun.h"
#include "link/process.h"

#define MS ((int64_t)1000000)

/* Behaviour of the made-up MPI, and the calls that it got. They come from two threads, one at a
 * time. */
static struct {
    int rank, n_rank, start_error;
    int error;                /* of every call but start */
    int test_error, n;        /* of what is done */
    bool barrier_done, found; /* found: something to probe */
    _Atomic int done_after;   /* tests of a message; < 0: never */
} does;
static struct {
    _Atomic int calls, cancelled, stopped, barriers;
} asked;

static int fake_start(int *rank, int *n_rank, char *why, size_t n)
{
    *rank = does.rank, *n_rank = does.n_rank;
    if (does.start_error)
        snprintf(why, n, "a made-up reason");
    return does.start_error;
}

static void fake_stop(void)
{
    asked.stopped++;
}

static int fake_send(const void *buf, int n, int to, int tag, struct gr_mpi_request *r)
{
    (void)buf, (void)n, (void)to, (void)tag;
    r->opaque = 0;
    asked.calls++;
    return does.error;
}

static int fake_recv(void *buf, int n, int from, int tag, struct gr_mpi_request *r)
{
    return fake_send(buf, n, from, tag, r);
}

static int fake_probe(int from, int tag, int *found, int *n)
{
    (void)from, (void)tag;
    asked.calls++;
    *found = does.found, *n = does.n;
    return does.error;
}

static int fake_gather(const void *mine, void *all, int n, struct gr_mpi_request *r)
{
    for (int i = 0; i < does.n_rank; i++)
        memcpy((char *)all + (ptrdiff_t)i * n, mine, (size_t)n);
    return fake_send(mine, n, 0, 0, r);
}

static int fake_barrier(struct gr_mpi_request *r)
{
    r->opaque = 1;
    asked.barriers++;
    return 0;
}

static int fake_test(struct gr_mpi_request *r, int *done, int *n)
{
    asked.calls++;
    *n = does.n;
    *done = r->opaque == 1   ? does.barrier_done
            : r->opaque == 2 ? true /* cancelled */
                             : does.done_after >= 0 && does.done_after-- == 0;
    return *done && r->opaque == 0 ? does.test_error : 0;
}

static int fake_cancel(struct gr_mpi_request *r)
{
    r->opaque = 2;
    asked.cancelled++;
    return 0;
}

static void fake_text(int error, char *buf, size_t n)
{
    snprintf(buf, n, "made-up error %d", error);
}

static const struct gr_mpi fake = {
    GR_MPI_ABI,  fake_start,   fake_stop, fake_send,   fake_recv, fake_probe,
    fake_gather, fake_barrier, fake_test, fake_cancel, fake_text,
};
static const struct gr_launch by_mpirun = {"mpirun", 0, 3}, by_pmix = {"a PMIx launcher", 0, 0};

static struct gr_world *world_new(void)
{
    struct gr_world *w;
    does.rank = 0, does.n_rank = 3, does.barrier_done = true, does.done_after = -1;
    cr_assert_eq(gr_world_mpi(&w, &fake, &by_mpirun), 0, "%s", gr_error());
    strcpy(w->ranks[1].host, "there");
    w->ranks[1].pid = 17;
    return w;
}

static struct gr_link *open_link(struct gr_world *w, int32_t from, int32_t to)
{
    struct gr_link *l;
    cr_assert_eq(gr_world_link(w, GR_LANE_DATA, from, to, &l), 0);
    return l;
}

static void refused(const struct gr_launch *launch, int status, const char *text)
{
    struct gr_world *w;
    cr_assert_eq(gr_world_mpi(&w, &fake, launch), status);
    cr_assert_null(w);
    cr_assert(strstr(gr_error(), text), "%s", gr_error());
}

Test(process, start)
{
    does.start_error = 5;
    refused(&by_mpirun, GR_E_IO, "mpirun has started this process, but MPI cannot be used: a made");
    does.start_error = 0, does.n_rank = 1;
    refused(&by_mpirun, GR_E_IO, "started 3 processes, but MPI knows of one");
    cr_assert_eq(asked.stopped, 1);
    does.n_rank = 4;
    refused(&by_mpirun, GR_E_IO, "mpirun says rank 0 of 3, MPI says rank 0 of 4");
    does.n_rank = GR_MAX_RANK + 1;
    refused(&by_pmix, GR_E_INVALID, "at most 64 can share a model");
    /* One process that only MPI knows to be alone. */
    struct gr_world *w;
    does.n_rank = 1, asked.stopped = 0;
    cr_assert_eq(gr_world_mpi(&w, &fake, &by_pmix), 0);
    cr_assert(!w && asked.stopped == 1);
    for (uint64_t k = 1; k <= 2; k++) {
        does.n_rank = 3;
        gr_alloc_fail_at(k, 0);
        cr_assert_eq(gr_world_mpi(&w, &fake, &by_mpirun), GR_E_NOMEM_HOST);
        gr_alloc_fail_at(0, 0);
        cr_assert_null(w);
        cr_assert_eq(gr_alloc_held(NULL), 0);
    }
}

Test(process, errors_of_messages)
{
    struct gr_world *w = world_new();
    struct gr_link *out = open_link(w, 0, 1), *in = open_link(w, 1, 0);
    struct gr_request r = {0};
    char buf[8] = {0};
    size_t n;
    /* Too long for MPI: it is not asked. */
    int before = asked.calls;
    cr_assert_eq(gr_link_send(out, buf, (size_t)3 << 30, &r), GR_E_TOO_LARGE);
    cr_assert(strstr(gr_error(), "data link 0 -> 1: a message of 3221225472 bytes; MPI takes"));
    cr_assert_eq(asked.calls, before);
    /* It says no at once, or later. */
    does.error = 9;
    cr_assert_eq(gr_link_send(out, buf, 8, &r), GR_E_PEER_LOST);
    cr_assert_str_eq(gr_error(), "rank 1 (there, pid 17): MPI: made-up error 9");
    cr_assert_eq(in->api->probe(in, INT64_MAX, &n), GR_E_PEER_LOST);
    does.error = 0, does.test_error = 11, does.done_after = 2;
    cr_assert_eq(gr_link_recv(in, buf, 8, &r), 0);
    cr_assert_eq(gr_link_wait(in, &r, INT64_MAX), GR_E_PEER_LOST);
    cr_assert_str_eq(gr_error(), "rank 1 (there, pid 17): MPI: made-up error 11");
    does.test_error = GR_MPI_TRUNCATED, does.n = 99;
    does.done_after = 0;
    cr_assert_eq(gr_link_recv(in, buf, 8, &r), 0);
    cr_assert_eq(gr_link_wait(in, &r, INT64_MAX), GR_E_INTERNAL);
    /* No memory: nothing is begun. */
    before = asked.calls;
    gr_alloc_fail_at(1, 0);
    cr_assert_eq(gr_link_recv(in, buf, 8, &r), GR_E_NOMEM_HOST);
    gr_alloc_fail_at(0, 0);
    cr_assert_eq(asked.calls, before);
    gr_link_close(&out), gr_link_close(&in);
    w->api->close(&w);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

Test(process, deadlines_and_forgotten_requests)
{
    struct gr_world *w = world_new();
    struct gr_link *out = open_link(w, 0, 1), *in = open_link(w, 1, 0);
    struct gr_request r = {0}, s = {0};
    char buf[8] = {0};
    size_t n;
    cr_assert_eq(gr_link_recv(in, buf, 8, &r), 0);
    int64_t start = gr_now_ns();
    cr_assert_eq(gr_link_wait(in, &r, start + 20 * MS), GR_E_PEER_LOST);
    cr_assert(gr_now_ns() - start >= 20 * MS);
    cr_assert(strstr(gr_error(), "rank 1 (there, pid 17): no answer on the data link 1 -> 0"));
    cr_assert_eq(in->api->probe(in, gr_now_ns() + MS, &n), GR_E_PEER_LOST);
    does.n = 4;
    does.done_after = 3;
    cr_assert_eq(gr_link_wait(in, &r, INT64_MAX), 0);
    cr_assert_eq(r.n, 4);
    /* Receives are taken back when their link is closed; a send gets some time. */
    does.done_after = -1;
    cr_assert_eq(gr_link_recv(in, buf, 8, &r), 0);
    cr_assert_eq(gr_link_send(out, buf, 8, &s), 0);
    gr_link_close(&in);
    cr_assert_eq(asked.cancelled, 1);
    does.done_after = 5;
    gr_link_close(&out);
    cr_assert_eq(asked.cancelled, 1);
    w->api->close(&w);
    cr_assert(asked.barriers == 1 && asked.stopped == 1);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

/* Once a rank is lost, MPI is called no more: it might never come back, or write to memory that has
 * been given up. */
Test(process, a_lost_world_leaves_mpi_alone)
{
    struct gr_world *w = world_new();
    struct gr_link *out = open_link(w, 0, 1), *in = open_link(w, 1, 0);
    struct gr_request r = {0}, s = {0};
    char buf[8] = {0};
    size_t n;
    cr_assert_eq(gr_link_recv(in, buf, 8, &r), 0);
    cr_assert_eq(gr_link_send(out, buf, 8, &s), 0); /* which a thread looks after */
    gr_world_lose(w, 2, "it is gone");
    cr_assert_eq(gr_link_wait(out, &s, INT64_MAX), GR_E_PEER_LOST);
    int before = asked.calls;
    cr_assert(in->api->done(in, &r));
    cr_assert_eq(gr_link_wait(in, &r, INT64_MAX), GR_E_PEER_LOST);
    cr_assert(strncmp(gr_error(), "rank 2 (", 8) == 0 && strstr(gr_error(), "): it is gone"));
    cr_assert_eq(gr_link_recv(in, buf, 8, &r), GR_E_PEER_LOST);
    cr_assert_eq(in->api->probe(in, INT64_MAX, &n), GR_E_PEER_LOST);
    gr_link_close(&out), gr_link_close(&in);
    w->api->close(&w);
    cr_assert(asked.calls == before && !asked.barriers && !asked.stopped && !asked.cancelled);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

Test(process, others_that_do_not_come)
{
    struct gr_world *w = world_new();
    int32_t mine = 7, all[3] = {0};
    does.done_after = 2;
    cr_assert_eq(gr_world_gather(w, &mine, all, sizeof mine, INT64_MAX), 0);
    cr_assert(all[0] == 7 && all[2] == 7);
    does.done_after = -1;
    cr_assert_eq(gr_world_gather(w, &mine, all, sizeof mine, gr_now_ns() + 5 * MS), GR_E_PEER_LOST);
    cr_assert(strstr(gr_error(), "not all of 3 ranks have answered"), "%s", gr_error());
    /* MPI is not ended without them. */
    does.barrier_done = false;
    int64_t start = gr_now_ns();
    w->api->close(&w);
    cr_assert(gr_now_ns() - start < 10000 * MS && !asked.stopped);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}
