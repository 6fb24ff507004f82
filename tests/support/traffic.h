/* Random traffic between all ranks of a world, over every link of every lane, checked byte by byte:
 * for threads, processes, wrapped links and ThreadSanitizer alike. */
#ifndef TESTS_SUPPORT_TRAFFIC_H
#define TESTS_SUPPORT_TRAFFIC_H

#include "link/link.h"

struct traffic {
    uint64_t seed;    /* the same on every rank */
    int n_message;    /* of each link */
    size_t max;       /* their greatest length, bytes */
    bool probe;       /* some receives ask for the length first */
    int64_t limit_ns; /* for all of it */
};

/* One rank's part: 0, or a status and gr_error(). */
int traffic_rank(struct gr_world *w, const struct traffic *t);

/* n threads of a world of their own, each with its part; links of the data lane wrapped in `wrap`
 * (or NULL). */
int traffic_threads(int32_t n, const struct gr_link_opt *wrap, const struct traffic *t);

/* n bytes that only this message has; `index` from 0. */
void traffic_fill(unsigned char *p, size_t n, uint64_t seed, const struct gr_link *l, int index);

#endif
