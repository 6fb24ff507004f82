/* The boundary of two stages: the values that go from one to the next. */
#ifndef GR_RANKS_BOUNDARY_H
#define GR_RANKS_BOUNDARY_H

#include "engine/session.h"

/* Bytes of a plan's `in` or `out`, with the values packed one after the other. */
size_t gr_boundary_bytes(const struct gr_plan *p, const struct gr_vec *values);
/* Uploads a plan's `in` from that many bytes of host memory. A buffer from a device's host_alloc
 * must not change before the plan has run. */
int gr_boundary_in(struct gr_session *s, const struct gr_plan *p, const void *buf);
/* Downloads a plan's `out` into such a buffer. */
int gr_boundary_out(struct gr_session *s, const struct gr_plan *p, void *buf);

#endif
