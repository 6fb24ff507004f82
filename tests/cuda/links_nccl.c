/* Transports over the emulated NCCL: the same messages as within a process, what may fail on the
 * way, and what is said then. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"
#include "ranks.h"

static struct world world_of(int32_t n, int (*run)(struct rank *), struct script *s)
{
    return (struct world){.kind = GR_TRANSPORT_NCCL,
                          .n = n,
                          .n_device = n,
                          .piece_bytes = 1 << 20,
                          .run = run,
                          .user = s};
}

static int nothing(struct rank *r)
{
    (void)r;
    return 0;
}

/* ---- what arrives ---- */

static void chains(const char *options, struct gr_device_opt device)
{
    struct script s = {.n_message = 30, .stop_at = -1};
    device_configure(options);
    for (int32_t n = 2; n <= MAX_RANK; n++) {
        struct world w = world_of(n, rank_pass_on, &s);
        w.device = device;
        world_run(&w);
        world_expect(&w);
    }
}

Test(nccl, chains)
{
    chains("devices=4", (struct gr_device_opt){0});
}

Test(nccl, chains_without_graphs)
{
    chains("devices=4", (struct gr_device_opt){.no_graphs = true});
}

/* Memory of NCCL's own came with 2.19, a name of the communicator with 2.27. */
Test(nccl, chains_of_an_older_one)
{
    chains("devices=4,nccl=2.18.3", (struct gr_device_opt){0});
}

/* Small messages are graphs: one for each piece of a ring and size class, on either side. */
Test(nccl, small_messages_are_captured_once)
{
    struct script s = {.n_message = 60, .stop_at = -1};
    device_configure("devices=2");
    struct world w = world_of(2, rank_pass_on, &s);
    world_run(&w);
    world_expect(&w);
    cr_expect_gt(emu()->count("cuGraphLaunch"), 30);
    cr_expect_leq(emu()->count("cuGraphInstantiateWithFlags"), 2 * 3 * 5);
}

Test(nccl, small_pieces)
{
    struct script s = {.n_message = 12, .stop_at = -1};
    device_configure("devices=3");
    struct world w = world_of(3, rank_pass_on, &s);
    w.piece_bytes = 100000;
    world_run(&w);
    world_expect(&w);
}

Test(nccl, groups)
{
    struct script s = {.n_message = 12, .stop_at = -1};
    device_configure("devices=4");
    for (int32_t n = 2; n <= MAX_RANK; n++) {
        struct world w = world_of(n, rank_gather, &s);
        w.n_group = n;
        world_run(&w);
        world_expect(&w);
    }
}

Test(nccl, stages_of_groups)
{
    struct script s = {.n_message = 20};
    device_configure("devices=4");
    struct world w = world_of(4, rank_gather_and_pass, &s);
    w.n_group = 2;
    world_run(&w);
    world_expect(&w);
}

/* ---- what does not ---- */

static void expect_quick(int64_t start, double seconds)
{
    cr_expect_lt(gr_seconds_since(start), seconds);
}

/* A message that never comes ends by the deadline, and the abort frees the device. */
Test(nccl, a_message_that_never_comes)
{
    struct script s = {.n_message = 30, .stop_at = -1};
    device_configure("devices=2,quiet");
    cr_assert_eq(emu()->fail("nccl-hang", 9, 1), 0);
    struct world w = world_of(2, rank_pass_on, &s);
    w.patience_ns = 400000000;
    int64_t start = gr_now_ns();
    world_run(&w);
    rank_expect_lost(&w.rank[1], "what NCCL is to send or receive has not come for ", 0);
    expect_quick(start, 10);
    expect_count(emu()->live(NULL), 0);
}

Test(nccl, a_rank_that_leaves)
{
    struct script s = {.n_message = 30, .stop_at = 10};
    device_configure("devices=3");
    struct world w = world_of(3, rank_pass_on, &s);
    w.patience_ns = 400000000;
    int64_t start = gr_now_ns();
    world_run(&w);
    rank_expect_lost(&w.rank[2], "has not come for ", 1);
    expect_quick(start, 15);
    expect_count(emu()->live(NULL), 0);
}

/* Result of NCCL's asynchronous errors, once all have joined. */
static int async_result;

static int be_told(struct rank *r)
{
    if (r->member == 0)
        cr_assert_eq(emu()->fail("nccl-async", 20, async_result), 0);
    return rank_pass_on(r);
}

static void async(int result, int status, const char *text)
{
    struct script s = {.n_message = 30, .stop_at = -1};
    device_configure("devices=2,quiet");
    async_result = result;
    struct world w = world_of(2, be_told, &s);
    w.patience_ns = 1000000000;
    world_run(&w);
    bool first = w.rank[0].rc == status && strstr(w.rank[0].text, text);
    bool second = w.rank[1].rc == status && strstr(w.rank[1].text, text);
    cr_expect(first || second, "%s; %s", w.rank[0].text, w.rank[1].text);
    expect_count(emu()->live(NULL), 0);
}

Test(nccl, another_rank_fails)
{
    async(6, GR_E_PEER_LOST, "another rank or the network to it has failed");
}

Test(nccl, an_error_of_the_device)
{
    async(1, GR_E_DEVICE, "unhandled cuda error");
}

static int lose_or_wait(struct rank *r)
{
    if (r->member == 0) {
        atomic_store(&r->world->lost, 1);
        return 0;
    }
    return rank_pass_on(r);
}

Test(nccl, a_world_that_is_lost)
{
    struct script s = {.n_message = 4, .stop_at = -1};
    device_configure("devices=2");
    struct world w = world_of(2, lose_or_wait, &s);
    int64_t start = gr_now_ns();
    world_run(&w);
    rank_expect_lost(&w.rank[1], "a rank is lost", 0);
    expect_quick(start, 10);
    expect_count(emu()->live(NULL), 0);
}

static int abort_twice(struct rank *r)
{
    r->transport->api->abort(r->transport);
    r->transport->api->abort(r->transport);
    return r->transport->api->wait(r->transport, rank_deadline(r));
}

Test(nccl, aborted)
{
    device_configure("devices=2");
    struct world w = world_of(2, abort_twice, NULL);
    world_run(&w);
    rank_expect_lost(&w.rank[0], "aborted", -1);
    rank_expect_lost(&w.rank[1], "aborted", -1);
    world_expect_nothing_left();
}

/* An abort that does not come back is given up after a second: what it may use stays. */
Test(nccl, an_abort_that_hangs)
{
    device_configure("devices=2,quiet");
    cr_assert_eq(emu()->fail("nccl-abort-hang", 1, 12), 0);
    struct world w = world_of(2, abort_twice, NULL);
    int64_t start = gr_now_ns();
    world_run(&w);
    rank_expect_lost(&w.rank[0], "aborted", -1);
    expect_quick(start, 8);
    cr_expect_gt(emu()->live("memory"), 0);
}

/* ---- joining ---- */

Test(nccl, a_member_that_does_not_come)
{
    struct world w = world_of(2, nothing, NULL);
    device_configure("devices=2");
    w.absent[1] = true;
    w.join_ns = 100000000;
    world_run(&w);
    cr_expect_eq(w.rank[0].rc, GR_E_PEER_LOST);
    cr_expect_not_null(strstr(w.rank[0].text, "a member of the transport has not come for "), "%s",
                       w.rank[0].text);
    world_expect_nothing_left();
}

Test(nccl, one_gpu_for_two)
{
    struct world w = world_of(2, nothing, NULL);
    device_configure("quiet");
    w.n_device = 1;
    world_run(&w);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(w.rank[i].rc, GR_E_DEVICE, "%d", w.rank[i].rc);
        cr_expect_not_null(strstr(w.rank[i].text, "Duplicate GPU detected"), "%s", w.rank[i].text);
        cr_expect_not_null(strstr(w.rank[i].text, "NCCL_HOSTID"), "%s", w.rank[i].text);
    }
    expect_count(emu()->live(NULL), 0);
}

Test(nccl, too_old)
{
    const char *what;
    struct gr_transport_ticket t;
    device_configure("nccl=2.17.1");
    cr_expect_not(gr_cuda_devices.transport_find(GR_TRANSPORT_NCCL, &what));
    cr_expect_not_null(strstr(what, "too old: it is 2.17.1, and 2.18.0 or newer is needed"), "%s",
                       what);
    cr_expect_eq(gr_cuda_devices.transport_ticket(GR_TRANSPORT_NCCL, &t), GR_E_UNSUPPORTED);
    struct gr_backend *b = device_open(NULL, (struct gr_device_opt){0});
    struct gr_transport *transport;
    struct gr_transport_opt o = {
        .kind = GR_TRANSPORT_NCCL, .n_member = 1, .from = -1, .to = -1, .piece_bytes = 1};
    cr_expect_eq(b->api->transport_join(b, &o, &transport), GR_E_UNSUPPORTED);
    cr_expect_null(transport);
    device_close(&b);
}

Test(nccl, there)
{
    const char *what;
    device_configure("nccl=2.28.9");
    cr_expect(gr_cuda_devices.transport_find(GR_TRANSPORT_NCCL, &what));
    cr_expect_str_eq(what, "NCCL 2.28.9");
}

/* Every call of NCCL fails in turn: both ranks end, and nothing is left. */
static const char *const symbols[] = {
#define FN(type, name, symbol, since, params) #symbol,
#include "cuda/nccl.def"
#undef FN
};

Test(nccl, each_call_in_turn)
{
    struct script s = {.n_message = 3, .stop_at = -1};
    const char *what;
    int failures = 0;
    device_configure("devices=2,quiet");
    cr_assert(gr_cuda_devices.transport_find(GR_TRANSPORT_NCCL, &what), "%s",
              what); /* opens it, once */
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        for (int64_t nth = 1; nth <= 3; nth++) {
            struct world w = world_of(2, rank_pass_on, &s);
            w.patience_ns = w.join_ns = 80000000;
            cr_assert_eq(gr_cuda_devices.transport_ticket(w.kind, &w.ticket), 0, "%s", gr_error());
            cr_assert_eq(emu()->fail(symbols[i], nth, nth == 2 ? 6 : 3), 0);
            world_run(&w);
            cr_assert_eq(emu()->fail(NULL, 0, 0), 0);
            failures += w.rank[0].rc || w.rank[1].rc;
            cr_expect_eq(emu()->live(NULL), 0, "%s %lld leaves objects", symbols[i],
                         (long long)nth);
            emu()->report_clear();
        }
    cr_expect_gt(failures, 15);
}
