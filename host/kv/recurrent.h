/* Table of recurrent states: which row holds the state of which sequence at which position. No
 * state data lives here.
 *
 * The state of a sequence is one row that stands for all its tokens. It cannot be cut or shifted,
 * only dropped, shared (copying is free; the first sequence to continue gets a row of its own) or
 * rolled back to a snapshot of an earlier position, where one was kept. A micro-batch reads one row
 * and writes one row for each of its sequences; it comes from GR_SPLIT_EQUAL or GR_SPLIT_SEQ. */
#ifndef GR_KV_RECURRENT_H
#define GR_KV_RECURRENT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "batch/batch.h"
#include "kv/op.h"

#define GR_RS_ROLLBACK_MAX 4095

struct gr_rs;

struct gr_rs_params {
    uint32_t n_seq_max;  /* 1 to GR_SEQ_MAX */
    uint32_t n_rollback; /* snapshots kept of each sequence: the states before each of its last
                            tokens, as far as these were micro-batches of one token; at most
                            GR_RS_ROLLBACK_MAX */
};

/* GR_E_INVALID for a parameter out of range, GR_E_NOMEM_HOST. */
int gr_rs_new(struct gr_rs **out, const struct gr_rs_params *p);
void gr_rs_free(struct gr_rs **rs);
/* Number of rows: n_seq_max * (1 + n_rollback); without rollback n_seq_max * 3 / 2, because when
 * two sequences that share a state continue in one micro-batch, both read its row and neither may
 * write it. */
uint32_t gr_rs_n_row(const struct gr_rs_params *p);
int32_t gr_rs_n_rollback(const struct gr_rs *rs);

/* As gr_kv_can and gr_kv_do. GR_E_UNSUPPORTED: removing part of a sequence, unless it is all behind
 * a snapshot; copying part of a sequence, unless the part starts at 0 and ends at its end or at a
 * snapshot; copying to a sequence that has another state; adding to or dividing positions. */
int gr_rs_can(const struct gr_rs *rs, const struct gr_kv_op *op);
void gr_rs_do(struct gr_rs *rs, const struct gr_kv_op *op);
void gr_rs_clear(struct gr_rs *rs);
/* -1 for an empty sequence. A sequence can be rolled back to any position from pos_min on. */
int32_t gr_rs_pos_min(const struct gr_rs *rs, int32_t seq);
int32_t gr_rs_pos_max(const struct gr_rs *rs, int32_t seq);
bool gr_rs_seq_same(const struct gr_rs *rs, int32_t a, int32_t b);
uint32_t gr_rs_n_used(const struct gr_rs *rs); /* rows */

/* As gr_kv_reserve, gr_kv_place, gr_kv_commit and gr_kv_abort. There is always room, so
 * gr_rs_reserve fails only with GR_E_INTERNAL: for a simple split, or while a batch is under way.
 * gr_rs_place: src[k] and dst[k] are the rows to read and write for sequence k of the micro-batch;
 * src -1 for a sequence without a past; no dst is the src of another sequence. gr_rs_abort empties
 * those sequences of the batch whose old state was overwritten (gr_rs_incomplete tells, until they
 * are removed or continued); others are as before, except for snapshots that were overwritten. */
int gr_rs_reserve(struct gr_rs *rs, const struct gr_ubatch *ub, int32_t n_ub);
void gr_rs_place(struct gr_rs *rs, const struct gr_ubatch *ub, int32_t *src, int32_t *dst);
void gr_rs_commit(struct gr_rs *rs);
void gr_rs_abort(struct gr_rs *rs);
bool gr_rs_incomplete(const struct gr_rs *rs, int32_t seq);

/* A row, for tests, dumps and saved states. */
struct gr_rs_row {
    int32_t pos;   /* position of the last token it stands for, -1 = free */
    int32_t n_seq; /* sequences whose present state it is; 0 for a snapshot only */
    int32_t seq;   /* the lowest of them, or of those whose snapshot it is; -1 = free */
    bool snapshot; /* an earlier state of a sequence */
};
struct gr_rs_row gr_rs_row(const struct gr_rs *rs, uint32_t i);
/* The row of a sequence's present state; -1: none. */
int32_t gr_rs_tail(const struct gr_rs *rs, int32_t seq);
void gr_rs_print(const struct gr_rs *rs, FILE *out);
/* Checks every invariant: 0 or GR_E_INTERNAL. Called after each mutation in debug builds. */
int gr_rs_check(const struct gr_rs *rs);

#endif
