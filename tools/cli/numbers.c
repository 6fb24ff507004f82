#include "numbers.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

double gr_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *gr_amount(char buf[16], double n, int step)
{
    static const char *const binary[] = {"B", "KiB", "MiB", "GiB", "TiB"}, *const decimal[] = {
                                                                               "", "k", "M", "B",
                                                                               "T"};
    int i = 0;
    for (; n >= step && i < 4; i++)
        n /= step;
    snprintf(buf, 16, n < 100 && i ? "%.2f %s" : "%.0f %s", n,
             (step == 1024 ? binary : decimal)[i]);
    return buf;
}

const char *gr_json_number(char buf[32], double x)
{
    snprintf(buf, 32, isfinite(x) ? "%.9g" : "null", x);
    return buf;
}
