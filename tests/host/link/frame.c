/* Frames: headers, bodies, sequence numbers and sums. */
#include <string.h>

#include <criterion/criterion.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"
#include "link/link.h"

static struct gr_world *world[2];
static struct gr_port out, in;

static void open_ports(const struct gr_link_opt *wrap)
{
    cr_assert_eq(gr_world_threads(world, 2), 0);
    world[0]->wrap = world[1]->wrap = wrap;
    out = (struct gr_port){.sum = true}, in = (struct gr_port){.sum = true};
    cr_assert_eq(gr_world_link(world[0], GR_LANE_DATA, 0, 1, &out.link), 0);
    cr_assert_eq(gr_world_link(world[1], GR_LANE_DATA, 0, 1, &in.link), 0);
}

static void close_ports(void)
{
    gr_link_close(&out.link), gr_link_close(&in.link);
    for (int i = 0; i < 2; i++)
        world[i]->api->close(&world[i]);
    cr_assert_eq(gr_alloc_held(NULL), 0);
}

static void say(uint32_t kind, const char *body)
{
    struct gr_frame_out o = {.frame = {.kind = kind, .session = 3, .hash = 77}};
    o.frame.n = strlen(body);
    cr_assert_eq(gr_frame_send(&out, &o, body), 0);
    cr_assert(gr_frame_is_sent(&out, &o));
    cr_assert_eq(gr_frame_sent(&out, &o, INT64_MAX), 0);
}

static int hear(struct gr_frame *f, char *body, size_t cap)
{
    int64_t deadline = gr_now_ns() + 50000000;
    int rc = gr_frame_recv(&in, f, deadline);
    return rc ? rc : gr_frame_body(&in, f, body, cap, deadline);
}

Test(frame, says_and_hears)
{
    open_ports(NULL);
    for (uint32_t i = 1; i <= 5; i++) {
        char body[32] = {0};
        struct gr_frame f;
        say(i, i % 2 ? "what is to be done" : "");
        cr_assert_eq(hear(&f, body, sizeof body), 0, "%s", gr_error());
        cr_assert_str_eq(body, i % 2 ? "what is to be done" : "");
        cr_assert(f.kind == i && f.session == 3 && f.hash == 77 && f.seq == i && !f.status);
        cr_assert_eq(f.sum != 0, i % 2);
    }
    /* The length is known before the body; one that does not fit is not taken. */
    struct gr_frame f;
    char body[4];
    say(6, "too long");
    cr_assert_eq(hear(&f, body, sizeof body), GR_E_INTERNAL);
    cr_assert_eq(f.n, 8);
    /* Without a body: it takes another way. */
    close_ports();
    open_ports(NULL);
    struct gr_frame_out o = {.frame = {.n = 1000}};
    cr_assert_eq(gr_frame_send(&out, &o, NULL), 0);
    cr_assert_eq(gr_frame_sent(&out, &o, INT64_MAX), 0);
    cr_assert_eq(gr_frame_recv(&in, &f, INT64_MAX), 0);
    cr_assert(f.n == 1000 && !f.sum);
    close_ports();
}

/* Frames with a fault in message `at` (header and body count): how the hearing of them ends. */
static void fault(struct gr_link_opt opt, int heard, const char *text)
{
    open_ports(&opt);
    struct gr_frame f;
    char body[32];
    say(1, "first body"), say(2, "second body"), say(3, "third body");
    for (int i = 0; i < heard; i++)
        cr_assert_eq(hear(&f, body, sizeof body), 0);
    cr_assert_eq(hear(&f, body, sizeof body), GR_E_PEER_LOST);
    cr_assert(strstr(gr_error(), text), "%s", gr_error());
    close_ports();
}

Test(frame, faults)
{
    fault((struct gr_link_opt){.drop_at = 3}, 1, "the frame after 1 has 11 bytes");
    fault((struct gr_link_opt){.drop_at = 4}, 1, "the body of frame 2 has 40 bytes");
    fault((struct gr_link_opt){.drop_at = 6}, 2, "no answer");
    fault((struct gr_link_opt){.flip_at = 4}, 1, "the body of frame 2 (11 bytes) has changed");
}

/* A whole frame without a body is lost: the next one has another number. */
Test(frame, numbers)
{
    struct gr_link_opt opt = {.drop_at = 2};
    open_ports(&opt);
    struct gr_frame f;
    for (uint32_t i = 0; i < 3; i++)
        say(i, "");
    cr_assert_eq(gr_frame_recv(&in, &f, INT64_MAX), 0);
    cr_assert_eq(gr_frame_recv(&in, &f, INT64_MAX), GR_E_PEER_LOST);
    cr_assert(strstr(gr_error(), "data link 0 -> 1: frame 3 came, 2 was expected"), "%s",
              gr_error());
    close_ports();
}
