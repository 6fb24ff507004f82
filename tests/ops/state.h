/* Shared parts of the tests of the recurrent operations: sequences of equal length, and rows of
 * state. */
#ifndef TESTS_OPS_STATE_H
#define TESTS_OPS_STATE_H

#include "ops/ops.h"

enum { STATE_ROWS = 5 };

/* Rows that three sequences read and write: one from zeros, one in place, one from row to row. */
extern const int32_t state_src[3], state_dst[3];

/* Sequences [first, first + n) of those as step arrays. */
struct gr_ten state_array(struct ops_case *c, const int32_t *rows, int first, int n);

/* Rows [lo, hi) of t: of those tokens alone. */
struct gr_ten state_rows(struct gr_ten t, int64_t lo, int64_t hi);

/* The state that row `src` holds, [n]; zeros for -1. */
double *state_from(struct ops_case *c, const struct gr_ten *state, int32_t src);

/* Declares the state as an output of which nothing changes yet; sets row `dst` of it. */
struct ops_out *state_expect(struct ops_case *c, const struct gr_ten *state);
void state_set(struct ops_out *o, int32_t dst, const double *want, const double *tol_ref,
               const double *tol_fast);

/* A node over sequences of n_tok tokens gives the bits that it gives in two steps, the first of n
 * tokens, at every level. `make` builds it for tokens [lo, hi) of a fixed sequence. Its state and y
 * are the last two tensors that it makes. */
void state_check_cut(void (*make)(struct ops_case *c, int64_t lo, int64_t hi), int64_t n,
                     int64_t n_tok);

#endif
