/* gpurun with a clock of its progress that runs GR_TEST_CLOCK times as fast, for terminal.py. */
#include <stdlib.h>

#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"

static double factor;

static double clock_s(void)
{
    return gr_seconds() * factor;
}

__attribute__((constructor)) static void set_clock(void)
{
    const char *text = getenv("GR_TEST_CLOCK");
    factor = text ? atof(text) : 0;
    if (factor > 0)
        gr_bar_set_clock(clock_s);
}
