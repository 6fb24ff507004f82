/* Links between threads. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"
#include "support/traffic.h"

#define MS 1000000

/* Two ranks and one link, both sides. */
struct pair {
    struct gr_world *world[2];
    struct gr_link *out, *in;
};

static struct pair pair_new(enum gr_lane lane, const struct gr_link_opt *wrap)
{
    struct pair p;
    cr_assert_eq(gr_world_threads(p.world, 2), 0);
    p.world[0]->wrap = p.world[1]->wrap = wrap;
    cr_assert_eq(gr_world_link(p.world[0], lane, 0, 1, &p.out), 0);
    cr_assert_eq(gr_world_link(p.world[1], lane, 0, 1, &p.in), 0);
    return p;
}

static void pair_free(struct pair *p)
{
    gr_link_close(&p->out), gr_link_close(&p->in);
    for (int i = 0; i < 2; i++)
        p->world[i]->api->close(&p->world[i]);
    cr_assert(!p->out && !p->in && !p->world[0] && !p->world[1]);
}

static void send_text(struct gr_link *l, const char *text)
{
    struct gr_request r = {0};
    cr_assert_eq(gr_link_send(l, text, strlen(text), &r), 0);
    cr_assert(l->api->done(l, &r));
    cr_assert_eq(gr_link_wait(l, &r, INT64_MAX), 0);
}

static void expect_text(struct gr_link *l, const char *text)
{
    char buf[64] = {0};
    struct gr_request r = {0};
    cr_assert_eq(gr_link_recv(l, buf, sizeof buf - 1, &r), 0);
    cr_assert_eq(gr_link_wait(l, &r, gr_now_ns() + 5000 * (int64_t)MS), 0, "%s", gr_error());
    cr_assert_str_eq(buf, text);
    cr_assert_eq(r.n, strlen(text));
}

/* Messages come in order, whether the receive was begun before or after, and each lane and
 * direction by itself. */
Test(local, order_and_lanes)
{
    struct gr_world *w[3];
    struct gr_link *out[GR_N_LANE], *in[GR_N_LANE], *back, *back_in;
    cr_assert_eq(gr_world_threads(w, 3), 0);
    for (int lane = 0; lane < GR_N_LANE; lane++) {
        cr_assert_eq(gr_world_link(w[2], (enum gr_lane)lane, 2, 0, &out[lane]), 0);
        cr_assert_eq(gr_world_link(w[0], (enum gr_lane)lane, 2, 0, &in[lane]), 0);
    }
    cr_assert_eq(gr_world_link(w[0], GR_LANE_DATA, 0, 2, &back), 0);
    cr_assert_eq(gr_world_link(w[2], GR_LANE_DATA, 0, 2, &back_in), 0);
    static const char *const words[GR_N_LANE] = {"command", "result", "data", "tensor"};
    for (int lane = 0; lane < GR_N_LANE; lane++)
        send_text(out[lane], words[lane]), send_text(out[lane], "second"), send_text(out[lane], "");
    send_text(back, "back");
    for (int lane = GR_N_LANE - 1; lane >= 0; lane--)
        expect_text(in[lane], words[lane]), expect_text(in[lane], "second");
    expect_text(back_in, "back");
    for (int lane = 0; lane < GR_N_LANE; lane++) {
        expect_text(in[lane], "");
        gr_link_close(&out[lane]), gr_link_close(&in[lane]);
    }
    gr_link_close(&back), gr_link_close(&back_in);
    for (int i = 0; i < 3; i++)
        w[i]->api->close(&w[i]);
}

/* Receives that were begun together take what comes in their order, and are waited for in any. */
Test(local, waits_in_any_order)
{
    struct pair p = pair_new(GR_LANE_DATA, NULL);
    struct gr_request r[3] = {{0}};
    char buf[3] = {0};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(gr_link_recv(p.in, &buf[i], 1, &r[i]), 0);
    send_text(p.out, "a"), send_text(p.out, "b");
    cr_assert(p.in->api->done(p.in, &r[1]) && !p.in->api->done(p.in, &r[2]));
    cr_assert_eq(gr_link_wait(p.in, &r[1], INT64_MAX), 0);
    cr_assert_eq(gr_link_wait(p.in, &r[0], INT64_MAX), 0);
    send_text(p.out, "c");
    cr_assert_eq(gr_link_wait(p.in, &r[2], INT64_MAX), 0);
    cr_assert(memcmp(buf, "abc", 3) == 0);
    /* Links are closed with requests under way. */
    cr_assert_eq(gr_link_recv(p.in, &buf[0], 1, &r[0]), 0);
    cr_assert_eq(gr_link_recv(p.in, &buf[1], 1, &r[1]), 0);
    send_text(p.out, "x");
    pair_free(&p);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

Test(local, lengths)
{
    static const size_t lengths[] = {0, 1, 7, 4096, 1 << 20, 16 << 20};
    struct pair p = pair_new(GR_LANE_DATA, NULL);
    unsigned char *a = gr_calloc(16 << 20, 1), *b = gr_calloc(16 << 20, 1);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int before = 0; before < 2; before++) {
            struct gr_request s = {0}, r = {0};
            size_t n = lengths[i];
            traffic_fill(a, n, i, p.out, before);
            if (before)
                cr_assert_eq(gr_link_recv(p.in, b, n, &r), 0);
            cr_assert_eq(gr_link_send(p.out, a, n, &s), 0);
            if (!before)
                cr_assert_eq(gr_link_recv(p.in, b, n, &r), 0);
            cr_assert_eq(gr_link_wait(p.in, &r, INT64_MAX), 0);
            cr_assert_eq(gr_link_wait(p.out, &s, INT64_MAX), 0);
            cr_assert_eq(r.n, n);
            cr_assert(memcmp(a, b, n) == 0);
        }
    gr_free(a), gr_free(b);
    pair_free(&p);
}

Test(local, probe_and_too_long)
{
    struct pair p = pair_new(GR_LANE_DATA, NULL);
    size_t n = 0;
    char buf[4];
    struct gr_request r = {0};
    cr_assert_eq(p.in->api->probe(p.in, gr_now_ns() + MS, &n), GR_E_PEER_LOST);
    send_text(p.out, "12345"), send_text(p.out, "ab");
    cr_assert_eq(p.in->api->probe(p.in, 0, &n), 0);
    cr_assert_eq(p.in->api->probe(p.in, INT64_MAX, &n), 0);
    cr_assert_eq(n, 5);
    cr_assert_eq(gr_link_recv(p.in, buf, sizeof buf, &r), 0);
    cr_assert_eq(gr_link_wait(p.in, &r, INT64_MAX), GR_E_INTERNAL);
    cr_assert_str_eq(gr_error(),
                     "data link 0 -> 1: a message of 5 bytes came, at most 4 were expected");
    cr_assert_eq(gr_link_recv(p.in, buf, sizeof buf, &r), 0);
    cr_assert_eq(gr_link_wait(p.in, &r, INT64_MAX), 0);
    cr_assert_eq(r.n, 2);
    pair_free(&p);
}

/* A deadline names the other rank; the request is still under way. */
Test(local, deadlines)
{
    struct pair p = pair_new(GR_LANE_RESULT, NULL);
    char buf = 0, name[128];
    struct gr_request r = {0};
    cr_assert_eq(gr_link_recv(p.in, &buf, 1, &r), 0);
    int64_t start = gr_now_ns();
    cr_assert_eq(gr_link_wait(p.in, &r, start + 30 * MS), GR_E_PEER_LOST);
    double waited = gr_seconds_since(start);
    cr_assert(waited >= 0.03 && waited < 5, "%g s", waited);
    gr_world_name(p.world[1], 0, name, sizeof name);
    cr_assert(strncmp(gr_error(), name, strlen(name)) == 0, "%s", gr_error());
    double said = 0;
    cr_assert_eq(
        sscanf(gr_error() + strlen(name), ": no answer on the result link 0 -> 1 for %lf s", &said),
        1, "%s", gr_error());
    cr_assert(said >= 0.03 && said < 5, "%g s", said);
    cr_assert_eq(gr_world_check(p.world[1]), 0);
    send_text(p.out, "z");
    cr_assert_eq(gr_link_wait(p.in, &r, gr_now_ns()), 0);
    cr_assert_eq(buf, 'z');
    pair_free(&p);
}

/* ---- a lost rank ---- */

struct waiter {
    struct gr_world *world;
    struct gr_link *link;
    bool probes;
    int rc;
    char text[256];
};

static void *wait_forever(void *arg)
{
    struct waiter *w = arg;
    char buf[8] = {0};
    size_t n;
    struct gr_request r = {0};
    if (w->probes)
        w->rc = w->link->api->probe(w->link, INT64_MAX, &n);
    else if (w->link->from == w->world->rank)
        w->rc = gr_link_send(w->link, buf, sizeof buf, &r);
    else
        w->rc = gr_link_recv(w->link, buf, sizeof buf, &r);
    if (!w->rc && !w->probes)
        w->rc = gr_link_wait(w->link, &r, INT64_MAX);
    strncpy(w->text, gr_error(), sizeof w->text - 1);
    return NULL;
}

/* Whatever waits is woken, in every rank; what is asked for later fails at once; the first reason
 * stays. */
Test(local, a_lost_rank_ends_every_wait)
{
    struct gr_link_opt sync = {.sync = true};
    struct gr_world *world[3];
    struct waiter w[4] = {{0}};
    pthread_t thread[4];
    cr_assert_eq(gr_world_threads(world, 3), 0);
    for (int i = 0; i < 3; i++)
        world[i]->wrap = &sync;
    w[0].world = w[1].world = w[3].world = world[1], w[2].world = world[2];
    cr_assert_eq(gr_world_link(world[1], GR_LANE_COMMAND, 0, 1, &w[0].link), 0);
    cr_assert_eq(gr_world_link(world[1], GR_LANE_TENSOR, 2, 1, &w[1].link), 0);
    cr_assert_eq(gr_world_link(world[2], GR_LANE_DATA, 1, 2, &w[2].link), 0);
    cr_assert_eq(gr_world_link(world[1], GR_LANE_DATA, 1, 0, &w[3].link), 0);
    w[1].probes = true;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, wait_forever, &w[i]);
    usleep(5000);
    gr_world_lose(world[0], 2, "it was switched off");
    gr_world_lose(world[1], 1, "too late");
    char text[256], name[128];
    snprintf(text, sizeof text, "%s: it was switched off",
             gr_world_name(world[0], 2, name, sizeof name));
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        cr_assert_eq(w[i].rc, GR_E_PEER_LOST);
        cr_assert_str_eq(w[i].text, text);
    }
    struct gr_link *none;
    struct gr_request r = {0};
    cr_assert_eq(gr_world_link(world[0], GR_LANE_COMMAND, 0, 1, &none), GR_E_PEER_LOST);
    cr_assert_eq(gr_link_recv(w[0].link, text, 1, &r), GR_E_PEER_LOST);
    cr_assert_eq(gr_link_send(w[3].link, text, 1, &r), GR_E_PEER_LOST);
    for (int i = 0; i < 3; i++)
        cr_assert(gr_world_check(world[i]) == GR_E_PEER_LOST && strcmp(gr_error(), text) == 0);
    for (int i = 0; i < 4; i++)
        gr_link_close(&w[i].link);
    for (int i = 0; i < 3; i++)
        world[i]->api->close(&world[i]);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

/* ---- properties ---- */

Test(local, random_traffic)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct traffic t = {seed, 25, seed % 3 ? 3000 : 100000, seed % 2, 60000 * (int64_t)MS};
        cr_assert_eq(traffic_threads(2 + (int32_t)seed % 4, NULL, &t), 0, "seed %d: %s", (int)seed,
                     gr_error());
    }
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

Test(local, arguments)
{
    struct gr_world *w[GR_MAX_RANK];
    struct gr_link *l;
    cr_assert_eq(gr_world_threads(w, 0), GR_E_INVALID);
    cr_assert_eq(gr_world_threads(w, GR_MAX_RANK + 1), GR_E_INVALID);
    cr_assert_eq(gr_world_threads(w, GR_MAX_RANK), 0);
    cr_assert_eq(gr_world_link(w[3], GR_LANE_DATA, 1, 2, &l), GR_E_INTERNAL);
    cr_assert_eq(gr_world_link(w[3], GR_LANE_DATA, 3, 3, &l), GR_E_INTERNAL);
    cr_assert_eq(gr_world_link(w[3], GR_LANE_DATA, 3, GR_MAX_RANK, &l), GR_E_INTERNAL);
    cr_assert_null(l);
    for (int i = 0; i < GR_MAX_RANK; i++)
        w[i]->api->close(&w[i]);
}

/* Messages from one rank to another, with every allocation failing in turn. */
static int small_talk(void)
{
    struct gr_world *w[2] = {NULL};
    struct gr_link *out = NULL, *in = NULL;
    struct gr_link_opt opt = {.sync = true, .delay_ns = 1000};
    struct gr_request s = {0}, r = {0};
    char buf[8];
    int rc = gr_world_threads(w, 2);
    if (!rc)
        w[0]->wrap = w[1]->wrap = &opt;
    if (!rc)
        rc = gr_world_link(w[0], GR_LANE_DATA, 0, 1, &out);
    if (!rc)
        rc = gr_world_link(w[1], GR_LANE_DATA, 0, 1, &in);
    if (!rc)
        rc = gr_link_send(out, "hello", 5, &s);
    if (!rc)
        rc = gr_link_recv(in, buf, sizeof buf, &r);
    if (!rc)
        rc = gr_link_wait(in, &r, INT64_MAX);
    if (!rc)
        rc = gr_link_wait(out, &s, INT64_MAX);
    gr_link_close(&out), gr_link_close(&in);
    for (int i = 0; i < 2; i++)
        if (w[i])
            w[i]->api->close(&w[i]);
    return rc;
}

Test(local, every_allocation_fails)
{
    int rc = GR_E_NOMEM_HOST;
    uint64_t k = 0;
    while (rc) {
        gr_alloc_fail_at(++k, 0);
        rc = small_talk();
        gr_alloc_fail_at(0, 0);
        cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST, "allocation %d: %s", (int)k, gr_error());
        cr_assert_eq(gr_alloc_held(NULL), 0, "allocation %d", (int)k);
    }
    cr_assert(k > 10);
}
