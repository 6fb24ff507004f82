/* A stand-in for the library below the scheduler: a session that counts cells and takes virtual
 * time, and samplers that end an answer after a given number of tokens. */
#ifndef GR_TESTS_SIMULATE_SESSION_H
#define GR_TESTS_SIMULATE_SESSION_H

#include <stdint.h>

#include "machine.h"

struct gr_session;
struct gr_sampler;

/* The clock that clock_gettime reads in this program; NULL: zero. */
extern const struct sim_machine *sim_clock;

/* NULL: no memory. Steps are computed by the machine, which others may use too. */
struct gr_session *sim_session_open(struct sim_machine *m, uint32_t n_cell, int32_t n_seq);
void sim_session_close(struct gr_session **s);
/* Picks `token` until it was picked n times in all, the last time as the end of the text. NULL: no
 * memory. */
struct gr_sampler *sim_sampler_new(int32_t token, int32_t n);

/* Nanoseconds of processor time of this thread, in truth. */
int64_t sim_thread_ns(void);

#endif
