/* The states of recurrent layers: which row holds the state of which sequence at which position. No
 * state data lives here.
 *
 * A sequence's state is one row that stands for all its tokens: it cannot be cut or shifted, only
 * dropped, shared (a copy costs nothing; whoever goes on first gets a row of its own) or, where a
 * snapshot of an earlier position was kept, turned back. Rows: n_seq_max * (1 + n_rollback). A
 * micro-batch reads a row and writes a row for each of its sequences; equal splits only. */
#ifndef GR_KV_RECURRENT_H
#define GR_KV_RECURRENT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "batch/batch.h"
#include "kv/op.h"

struct gr_rs;

struct gr_rs_params {
    uint32_t n_seq_max;  /* 1 to GR_SEQ_MAX */
    uint32_t n_rollback; /* earlier states kept of each sequence: after each of the last tokens that
                            were a micro-batch of their own */
};

int gr_rs_new(struct gr_rs **out, const struct gr_rs_params *p);
void gr_rs_free(struct gr_rs **rs);
uint32_t gr_rs_n_row(const struct gr_rs_params *p);
int32_t gr_rs_n_rollback(const struct gr_rs *rs);

/* As gr_kv_can and gr_kv_do. Removing part of a sequence is GR_E_UNSUPPORTED unless the rest ends
 * where a snapshot was kept; adding to positions and dividing them too. */
int gr_rs_can(const struct gr_rs *rs, const struct gr_kv_op *op);
void gr_rs_do(struct gr_rs *rs, const struct gr_kv_op *op);
void gr_rs_clear(struct gr_rs *rs);
int32_t gr_rs_pos_min(const struct gr_rs *rs, int32_t seq); /* of the snapshots too */
int32_t gr_rs_pos_max(const struct gr_rs *rs, int32_t seq);
bool gr_rs_seq_same(const struct gr_rs *rs, int32_t a, int32_t b);
uint32_t gr_rs_n_used(const struct gr_rs *rs); /* rows */

/* As gr_kv_reserve and so on. gr_rs_place: src[k] and dst[k] for sequence k of the micro-batch, src
 * -1 for a sequence without a past. gr_rs_abort: the sequences of the batch whose old state was
 * overwritten are empty (gr_rs_incomplete tells before they are cleared by the caller); others are
 * as before. */
int gr_rs_reserve(struct gr_rs *rs, const struct gr_ubatch *ub, int32_t n_ub);
void gr_rs_place(struct gr_rs *rs, const struct gr_ubatch *ub, int32_t *src, int32_t *dst);
void gr_rs_commit(struct gr_rs *rs);
void gr_rs_abort(struct gr_rs *rs);
bool gr_rs_incomplete(const struct gr_rs *rs, int32_t seq);

/* One row, for tests, dumps and state. */
struct gr_rs_row {
    int32_t pos;   /* of the last token it stands for, -1 = free */
    int32_t n_seq; /* sequences whose present state it is; 0 for a snapshot */
    int32_t seq;   /* the lowest of them, or the snapshot's; -1 = free */
    bool snapshot;
};
struct gr_rs_row gr_rs_row(const struct gr_rs *rs, uint32_t i);
/* The row of a sequence's present state, -1 = none. */
int32_t gr_rs_tail(const struct gr_rs *rs, int32_t seq);
void gr_rs_print(const struct gr_rs *rs, FILE *out);
int gr_rs_check(const struct gr_rs *rs);

#endif
