/* Sequence operations as data, so that one operation runs on every cache of a session: first all of
 * them check it, then all of them perform it. */
#ifndef GR_KV_OP_H
#define GR_KV_OP_H

#include <stdint.h>

enum gr_kv_op_kind {
    GR_KV_RM,   /* seq loses its cells in [p0, p1); seq < 0: all sequences do */
    GR_KV_CP,   /* dst also sees seq's cells in [p0, p1): shared in a pool, copied between pools */
    GR_KV_DUP,  /* dst gets copies of seq's cells in cells of its own, instead of those it shares
                   with seq; seq and dst may be the same */
    GR_KV_KEEP, /* removes all other sequences */
    GR_KV_ADD,  /* positions in [p0, p1) += by; cells whose position turns negative are freed */
    GR_KV_DIV   /* positions in [p0, p1) = floor(pos / by) */
};

/* p0 < 0: from 0; p1 < 0: to the end. */
struct gr_kv_op {
    enum gr_kv_op_kind kind;
    int32_t seq, dst, p0, p1, by;
};

/* Rows of a cache's tensors to be copied, src[i] to dst[i]; no row is in both lists. Owned by the
 * cache, valid until its next call. */
struct gr_kv_moves {
    uint32_t n;
    const int32_t *src, *dst;
};

#endif
