/* Cases that go wrong in each way, in place of lists.c: `conform_planted` loses those and no
 * others. */
#include "tests/emu/conform/conform.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A kernel: bits that are set. */
static int launch(struct conform *c, const char *wrapper)
{
    uint32_t in[3 * 256], out[256], expected[256];
    (void)wrapper;
    memset(in, 0xff, sizeof in);
    for (int i = 0; i < 256; i++)
        expected[i] = 32;
    return conform_run(c, &(struct conform_launch){.kernel = "conform_popc",
                                                   .blocks = 1,
                                                   .threads = 256,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out,
                                                   .p = {256}}) ||
           conform_same(c, out, expected, 256, 4);
}

static int wrong(struct conform *c, const char *wrapper)
{
    return conform_fail(c, "%s\nin two lines", wrapper);
}

static int crash(struct conform *c, const char *wrapper)
{
    (void)c, (void)wrapper;
    return raise(SIGKILL);
}

static int hang(struct conform *c, const char *wrapper)
{
    (void)c, (void)wrapper;
    return pause();
}

static int leave(struct conform *c, const char *wrapper)
{
    (void)c, (void)wrapper;
    _exit(3);
}

/* With GR_EMU_DEVICE=fail=kernel:2:719 the second kernel of a child loses its context. */
static const struct conform_case cases[] = {
    {"first", 80, launch}, {"wrong", 80, wrong},   {"lost", 80, launch},
    {"crash", 80, crash},  {"hang", 80, hang},     {"leave", 80, leave},
    {"last", 80, launch},  {"newer", 100, launch}, {0},
};

const struct conform_case *const conform_lists[] = {cases, NULL};
