/* Transports within a process: what arrives, in which order, and what is said when it does not. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"
#include "ranks.h"

static int nothing(struct rank *r)
{
    (void)r;
    return 0;
}

static struct world world_of(int32_t n, int32_t n_device, int (*run)(struct rank *),
                             struct script *s)
{
    return (struct world){.kind = GR_TRANSPORT_PEER,
                          .n = n,
                          .n_device = n_device,
                          .piece_bytes = 1 << 20,
                          .run = run,
                          .user = s};
}

/* ---- what arrives ---- */

static void chains(const char *options, int32_t n_device)
{
    struct script s = {.n_message = 40, .stop_at = -1};
    device_configure(options);
    for (int32_t n = 2; n <= MAX_RANK; n++) {
        struct world w = world_of(n, n_device, rank_pass_on, &s);
        world_run(&w);
        world_expect(&w);
    }
}

Test(peer, devices_of_their_own)
{
    chains("devices=4", 4);
}

Test(peer, devices_that_do_not_reach_each_other)
{
    chains("devices=2,no-peer", 2);
}

Test(peer, one_device)
{
    chains(NULL, 1);
}

/* Rings are used again and again, and messages are longer than their pieces. */
Test(peer, small_pieces)
{
    struct script s = {.n_message = 12, .stop_at = -1};
    device_configure("devices=3");
    struct world w = world_of(3, 3, rank_pass_on, &s);
    w.piece_bytes = 100000;
    world_run(&w);
    world_expect(&w);
}

Test(peer, groups)
{
    struct script s = {.n_message = 16, .stop_at = -1};
    device_configure("devices=4");
    for (int32_t n = 2; n <= MAX_RANK; n++) {
        struct world w = world_of(n, 4, rank_gather, &s);
        w.n_group = n;
        w.piece_bytes = 300000;
        world_run(&w);
        world_expect(&w);
    }
}

Test(peer, stages_of_groups)
{
    struct script s = {.n_message = 20};
    device_configure("devices=4");
    struct world w = world_of(4, 4, rank_gather_and_pass, &s);
    w.n_group = 2;
    world_run(&w);
    world_expect(&w);
}

Test(peer, empty_messages_and_no_group)
{
    struct script s = {.n_message = 0, .stop_at = -1};
    device_configure("devices=2");
    struct world w = world_of(2, 2, rank_pass_on, &s);
    world_run(&w);
    world_expect(&w);
}

/* ---- what does not ---- */

Test(peer, a_rank_that_leaves)
{
    struct script s = {.n_message = 40, .stop_at = 20};
    device_configure("devices=3");
    struct world w = world_of(3, 3, rank_pass_on, &s);
    world_run(&w);
    cr_expect_eq(w.rank[1].rc, 0);
    rank_expect_lost(&w.rank[0], "member 1 has left the transport", 1);
    cr_expect_eq(w.rank[2].rc, GR_E_PEER_LOST, "%s", w.rank[2].text);
    world_expect_nothing_left();
}

static int abort_at_once(struct rank *r)
{
    if (r->member != 1)
        return rank_pass_on(r);
    r->transport->api->abort(r->transport);
    char *p = r->backend->api->alloc(r->backend, 16);
    struct gr_transport_span span = {p, 16};
    int rc = r->transport->api->send(r->transport, r->backend, &span, 1, rank_deadline(r));
    if (rc && r->transport->api->wait(r->transport, rank_deadline(r)) != rc)
        rc = gr_fail(GR_E_INTERNAL, "wait says something else than send");
    r->backend->api->free(r->backend, p);
    return rc;
}

Test(peer, aborted)
{
    struct script s = {.n_message = 40, .stop_at = -1};
    device_configure("devices=3");
    struct world w = world_of(3, 3, abort_at_once, &s);
    world_run(&w);
    rank_expect_lost(&w.rank[0], "aborted", 1);
    rank_expect_lost(&w.rank[1], "aborted", -1);
    rank_expect_lost(&w.rank[2], "aborted", 1);
    world_expect_nothing_left();
}

static int lose_or_wait(struct rank *r)
{
    if (r->member == 1) {
        atomic_store(&r->world->lost, 1);
        return 0;
    }
    return rank_pass_on(r);
}

Test(peer, a_world_that_is_lost)
{
    struct script s = {.n_message = 4000, .stop_at = -1};
    device_configure("devices=2");
    struct world w = world_of(2, 2, lose_or_wait, &s);
    int64_t start = gr_now_ns();
    world_run(&w);
    cr_expect_eq(w.rank[0].rc, GR_E_PEER_LOST);
    cr_expect_lt(gr_seconds_since(start), 5);
    world_expect_nothing_left();
}

static _Atomic int gave_up;

/* Rank 1 does nothing until rank 0 has given up. */
static int stand_still(struct rank *r)
{
    const struct timespec t = {0, 1000000};
    if (r->member == 0) {
        int rc = rank_pass_on(r);
        atomic_store(&gave_up, 1);
        return rc;
    }
    while (!atomic_load(&gave_up))
        (void)nanosleep(&t, NULL);
    return 0;
}

Test(peer, a_rank_that_stands_still)
{
    struct script s = {.n_message = 40, .stop_at = -1};
    device_configure("devices=2");
    struct world w = world_of(2, 2, stand_still, &s);
    w.patience_ns = 100000000;
    world_run(&w);
    rank_expect_lost(&w.rank[0], "room for what is sent has not come for ", 1);
    world_expect_nothing_left();
}

static int sizes_differ(struct rank *r)
{
    char *p = r->backend->api->alloc(r->backend, 16);
    struct gr_transport_span span = {p, r->member ? 15 : 16};
    int rc = (r->member ? r->transport->api->recv : r->transport->api->send)(
        r->transport, r->backend, &span, 1, rank_deadline(r));
    r->backend->api->free(r->backend, p);
    return rc;
}

Test(peer, sizes_that_differ)
{
    struct world w = world_of(2, 1, sizes_differ, NULL);
    device_configure(NULL);
    world_run(&w);
    cr_expect_eq(w.rank[0].rc, 0);
    cr_expect_eq(w.rank[1].rc, GR_E_INTERNAL);
    cr_expect_not_null(strstr(w.rank[1].text, "16 bytes came from member 0, 15 were expected"),
                       "%s", w.rank[1].text);
    world_expect_nothing_left();
}

/* ---- joining ---- */

Test(joining, a_member_that_does_not_come)
{
    struct world w = world_of(3, 1, nothing, NULL);
    device_configure(NULL);
    w.absent[1] = true;
    w.join_ns = 100000000;
    world_run(&w);
    cr_expect_eq(w.rank[0].rc, GR_E_PEER_LOST);
    cr_expect_eq(w.rank[2].rc, GR_E_PEER_LOST);
    cr_expect(strstr(w.rank[0].text, "a member of the transport has not come for ") ||
                  strstr(w.rank[2].text, "a member of the transport has not come for "),
              "%s; %s", w.rank[0].text, w.rank[2].text);
    world_expect_nothing_left();
}

static void refused(struct gr_transport_opt o, int status, const char *text)
{
    struct gr_backend *b = device_open(NULL, (struct gr_device_opt){0});
    struct gr_transport *transport;
    o.deadline_ns = gr_now_ns() + 1000000000;
    cr_expect_eq(b->api->transport_join(b, &o, &transport), status, "%s", gr_error());
    cr_expect_not_null(strstr(gr_error(), text), "%s", gr_error());
    cr_expect_null(transport);
    device_close(&b);
}

static const struct gr_transport_opt alone = {
    .kind = GR_TRANSPORT_PEER, .n_member = 1, .from = -1, .to = -1, .piece_bytes = 64};

Test(joining, bad_options)
{
    struct gr_transport_opt o = alone;
    o.member = 1;
    refused(o, GR_E_INVALID, "member 1 of 1");
}

Test(joining, a_chain_to_oneself)
{
    struct gr_transport_opt o = alone;
    o.to = 0;
    refused(o, GR_E_INVALID, "others than oneself");
}

Test(joining, a_group_without_oneself)
{
    struct gr_transport_opt o = alone;
    o.n_member = 4, o.first = 1, o.n_group = 2;
    refused(o, GR_E_INVALID, "a group holds its members");
}

Test(joining, no_kind)
{
    struct gr_transport_opt o = alone;
    o.kind = GR_N_TRANSPORT;
    refused(o, GR_E_INVALID, "no transport of kind");
}

Test(joining, the_ticket_of_another_process)
{
    struct gr_transport_opt o = alone;
    (void)snprintf(o.ticket.bytes, sizeof o.ticket.bytes, "gpurun peers 1 2 3");
    refused(o, GR_E_UNSUPPORTED, "another process");
}

static int wrong_device(struct rank *r)
{
    struct gr_backend *other;
    struct gr_transport_span span = {NULL, 0};
    int rc = gr_cuda_devices.open(&other, 1 - r->member, &r->world->device);
    if (rc)
        return rc;
    rc = (r->member ? r->transport->api->recv : r->transport->api->send)(r->transport, other, &span,
                                                                         1, rank_deadline(r));
    other->api->close(&other);
    return rc;
}

/* Another backend of the same device may be used (chains of one device do that), one of another
 * device not; the transport is none the worse for it. */
Test(joining, another_device_later)
{
    struct world w = world_of(2, 2, wrong_device, NULL);
    device_configure("devices=2");
    world_run(&w);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(w.rank[i].rc, GR_E_INVALID);
        cr_expect_not_null(strstr(w.rank[i].text, "not the device"), "%s", w.rank[i].text);
    }
    world_expect_nothing_left();
}

Test(joining, finds_out_what_there_is)
{
    const char *what = NULL;
    cr_expect(gr_cuda_devices.transport_find(GR_TRANSPORT_PEER, &what));
    cr_expect_str_not_empty(what);
    cr_expect_not(gr_cuda_devices.transport_find(GR_N_TRANSPORT, &what));
}

/* ---- every call in turn ---- */

static const char *const symbols[] = {
    "cuMemAlloc_v2",     "cuEventCreate",         "cuEventRecord",         "cuStreamWaitEvent",
    "cuMemcpyPeerAsync", "cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuMemcpyDtoDAsync_v2"};

/* Whatever fails, both ranks end soon, and nothing is left. */
Test(peer, each_call_in_turn)
{
    struct script s = {.n_message = 4, .stop_at = -1};
    device_configure("devices=2,quiet");
    int failures = 0;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        for (int64_t nth = 1; nth <= 10; nth += 3) {
            struct world w = world_of(2, 2, rank_pass_on, &s);
            w.patience_ns = w.join_ns =
                80000000; /* for a rank that does not get as far as joining */
            cr_assert_eq(emu()->fail(symbols[i], nth, 999), 0);
            world_run(&w);
            cr_assert_eq(emu()->fail(NULL, 0, 0), 0);
            failures += w.rank[0].rc || w.rank[1].rc;
            cr_expect_eq(emu()->live(NULL), 0, "%s %lld leaves objects", symbols[i],
                         (long long)nth);
            emu()->report_clear();
        }
    cr_expect_gt(failures, 15);
}
