/* Monotonic time. */
#ifndef GR_BASE_CLOCK_H
#define GR_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t gr_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double gr_seconds_since(int64_t ns)
{
    return (double)(gr_now_ns() - ns) * 1e-9;
}

#endif
