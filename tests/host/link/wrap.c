/* Wrapped links: slower, unbuffered, at fault. */
#include <pthread.h>
#include <string.h>

#include <criterion/criterion.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"
#include "support/traffic.h"

#define MS ((int64_t)1000000)

static struct gr_world *world[2];
static struct gr_link *out, *in;

static void open_pair(const struct gr_link_opt *opt)
{
    cr_assert_eq(gr_world_threads(world, 2), 0);
    world[0]->wrap = world[1]->wrap = opt;
    cr_assert_eq(gr_world_link(world[0], GR_LANE_DATA, 0, 1, &out), 0);
    cr_assert_eq(gr_world_link(world[1], GR_LANE_DATA, 0, 1, &in), 0);
    cr_assert_str_eq(out->api->name, "wrapped");
}

static void close_pair(void)
{
    gr_link_close(&out), gr_link_close(&in);
    for (int i = 0; i < 2; i++)
        world[i]->api->close(&world[i]);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

static void send_n(size_t n, struct gr_request *r)
{
    static unsigned char bytes[1 << 20];
    cr_assert_eq(gr_link_send(out, bytes, n, r), 0);
}

/* A message comes no sooner than the delay after it was sent, and later ones are not delayed by
 * earlier ones; nor does a probe see it sooner. */
Test(wrap, delay)
{
    struct gr_link_opt opt = {.delay_ns = 100 * MS};
    open_pair(&opt);
    struct gr_request s[4] = {{0}}, r = {0};
    char buf[8];
    size_t n;
    int64_t start = gr_now_ns();
    for (int i = 0; i < 4; i++) {
        send_n((size_t)i, &s[i]);
        cr_assert_eq(gr_link_wait(out, &s[i], INT64_MAX), 0);
    }
    cr_assert(gr_now_ns() - start < 90 * MS, "sending waits for nothing");
    cr_assert_eq(in->api->probe(in, gr_now_ns() + MS, &n), GR_E_PEER_LOST);
    cr_assert_eq(gr_link_recv(in, buf, sizeof buf, &r), 0);
    cr_assert(!in->api->done(in, &r));
    cr_assert_eq(gr_link_wait(in, &r, gr_now_ns() + MS), GR_E_PEER_LOST);
    cr_assert_eq(gr_link_wait(in, &r, INT64_MAX), 0);
    cr_assert(gr_now_ns() - start >= 100 * MS);
    for (int i = 1; i < 4; i++) {
        cr_assert_eq(in->api->probe(in, INT64_MAX, &n), 0);
        cr_assert_eq(n, (size_t)i);
        cr_assert_eq(gr_link_recv(in, buf, sizeof buf, &r), 0);
        cr_assert_eq(gr_link_wait(in, &r, INT64_MAX), 0);
        cr_assert_eq(r.n, (size_t)i);
    }
    cr_assert(gr_now_ns() - start < 390 * MS, "four delays one after the other");
    close_pair();
}

/* Messages share a wire: each begins when the one before is through. */
Test(wrap, bandwidth)
{
    struct gr_link_opt opt = {.bytes_per_s = 2000000}; /* 100 KB: 50 ms */
    open_pair(&opt);
    struct gr_request s[3] = {{0}}, r[3] = {{0}};
    unsigned char *buf = gr_calloc(3, 100000);
    int64_t start = gr_now_ns();
    for (size_t i = 0; i < 3; i++)
        send_n(100000, &s[i]);
    for (size_t i = 0; i < 3; i++)
        cr_assert_eq(gr_link_recv(in, buf + i * 100000, 100000, &r[i]), 0);
    cr_assert_eq(gr_link_wait(in, &r[1], INT64_MAX), 0);
    cr_assert(gr_now_ns() - start >= 100 * MS);
    cr_assert(in->api->done(in, &r[0]) && !in->api->done(in, &r[2]));
    cr_assert_eq(gr_link_wait(in, &r[0], INT64_MAX), 0);
    cr_assert_eq(gr_link_wait(in, &r[2], INT64_MAX), 0);
    int64_t took = gr_now_ns() - start;
    cr_assert(took >= 150 * MS, "%lld ns", (long long)took);
    gr_free(buf);
    close_pair();
}

/* Nothing is buffered: a send is not done before its receive is. */
Test(wrap, sync)
{
    struct gr_link_opt opt = {.sync = true};
    open_pair(&opt);
    struct gr_request s[2] = {{0}}, r[2] = {{0}};
    char buf[2][8];
    send_n(8, &s[0]), send_n(3, &s[1]);
    cr_assert(!out->api->done(out, &s[0]));
    cr_assert_eq(gr_link_wait(out, &s[0], gr_now_ns() + 5 * MS), GR_E_PEER_LOST);
    cr_assert_eq(gr_link_recv(in, buf[0], 8, &r[0]), 0);
    cr_assert_eq(gr_link_wait(in, &r[0], INT64_MAX), 0);
    cr_assert(out->api->done(out, &s[0]) && !out->api->done(out, &s[1]));
    cr_assert_eq(gr_link_wait(out, &s[0], INT64_MAX), 0);
    cr_assert_eq(gr_link_recv(in, buf[1], 8, &r[1]), 0);
    cr_assert(in->api->done(in, &r[1]));
    cr_assert_eq(gr_link_wait(out, &s[1], INT64_MAX), 0);
    cr_assert_eq(gr_link_wait(in, &r[1], INT64_MAX), 0);
    cr_assert_eq(r[1].n, 3);
    close_pair();
}

/* The second of three messages, with a fault: what comes. */
static void three(const struct gr_link_opt *opt, int second, const char *came)
{
    open_pair(opt);
    static const char *const text[3] = {"one", "two", "three"};
    struct gr_request s[3] = {{0}}, r = {0};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(gr_link_send(out, text[i], strlen(text[i]), &s[i]), i == 1 ? second : 0);
    char all[64] = "";
    for (char buf[8] = {0}; !gr_link_recv(in, buf, 7, &r); memset(buf, 0, sizeof buf)) {
        if (gr_link_wait(in, &r, gr_now_ns() + 5 * MS))
            break;
        strcat(strcat(all, buf), " ");
    }
    cr_assert_str_eq(all, came);
    close_pair();
}

Test(wrap, faults)
{
    three(&(struct gr_link_opt){.drop_at = 2}, 0, "one three ");
    three(&(struct gr_link_opt){.flip_at = 2}, 0, "one tgo three ");
    three(&(struct gr_link_opt){.fail_at = 2}, GR_E_PEER_LOST, "one three ");
    three(&(struct gr_link_opt){.fail_at = 2, .delay_ns = MS}, GR_E_PEER_LOST, "one three ");
}

Test(wrap, random_traffic)
{
    static const struct gr_link_opt opts[] = {
        {.sync = true},
        {.delay_ns = MS / 5},
        {.delay_ns = MS / 10, .bytes_per_s = 200000000},
        {.delay_ns = MS / 20, .bytes_per_s = 1000000000, .sync = true},
    };
    for (int i = 0; i < 8; i++) {
        struct traffic t = {(uint64_t)i + 100, 20, 20000, i % 3 == 0, 60000 * MS};
        cr_assert_eq(traffic_threads(2 + i % 3, &opts[i % 4], &t), 0, "%d: %s", i, gr_error());
    }
    cr_assert_eq(gr_alloc_held(NULL), 0);
}
