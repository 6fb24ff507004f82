/* A naive model of the cells: a plain array of (position, delta, row, column, token, sequences),
 * walked cell by cell. What the cache keeps, the model works out anew. */
#ifndef GR_TESTS_KV_MODEL_H
#define GR_TESTS_KV_MODEL_H

#include "kv/kv.h"

#define M_CELL 640
#define M_SEQ 40
#define M_POS 1024 /* with a window, positions are below this */

struct m_cell {
    int64_t pos, delta, row, col;
    uint64_t id;   /* the token it holds; copies have the same */
    uint64_t seqs; /* 0 = empty */
};

struct model {
    struct gr_kv_params p;
    int32_t n_cell; /* of all pools */
    bool ideal;     /* gives up nothing */
    uint64_t clock;
    int32_t head[M_SEQ];
    int32_t n_eviction; /* cells evicted since it was made 0 */
    struct m_cell cell[M_CELL];
    uint64_t evicted[M_SEQ][M_POS / 64]; /* bit set = may have been evicted */
    int32_t eviction[M_CELL * 2];
};

struct m_moves {
    int32_t n, src[M_CELL], dst[M_CELL];
};

void m_new(struct model *m, struct gr_kv_params p);
/* The same without `given`; as much as the cells need. */
void m_copy(struct model *to, const struct model *from);
int32_t m_used(const struct model *m);
int32_t m_pool(const struct model *m, int32_t seq);
int64_t m_max(const struct model *m, int32_t seq);
static inline bool m_is_evicted(const struct model *m, int32_t seq, int64_t pos)
{
    return pos < M_POS && m->evicted[seq][pos / 64] >> pos % 64 & 1;
}
/* The lowest position that the next token of a sequence with this largest position sees. */
int64_t m_visible(const struct model *m, int64_t max);
bool m_incomplete(const struct model *m, int32_t seq);
/* The cells of a sequence in the order of lists; returns their number. */
int32_t m_sorted(const struct model *m, int32_t seq, int32_t *cells);
/* The status of an operation; when it is 0, the operation was done. */
int m_op(struct model *m, const struct gr_kv_op *op, struct m_moves *moves);
/* Places a micro-batch; false (and some of it done) when there is no room. */
bool m_place(struct model *m, const struct gr_ubatch *ub, int32_t *cells);
/* Sets `m` to its state after the batch begun at `before` is aborted. */
void m_abort(struct model *m, const struct model *before);
void m_pack(struct model *m, struct m_moves *moves);
/* True when a token sees a cell. */
bool m_sees(const struct model *m, const struct m_cell *c, int32_t seq, const int32_t place[3],
            bool causal);

#endif
