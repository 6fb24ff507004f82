/* Processor time, which other programs on the machine change little. */
#ifndef TESTS_SUPPORT_CPU_TIME_H
#define TESTS_SUPPORT_CPU_TIME_H

#include <time.h>

/* Seconds that all threads of this process have computed. */
static inline double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* True when four times the work took about four times as long, and not sixteen times: `once` and
 * `four` are the seconds of both; the first may be too short to be measured. */
static inline int is_linear(double once, double four)
{
    return four < 8 * (once > 0.05 ? once : 0.05);
}

#endif
