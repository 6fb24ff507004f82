#include "model.h"

#include <stddef.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

#define BIT(s) (UINT64_C(1) << (s))
#define EMPTY ((struct m_cell){.pos = -1})

void m_new(struct model *m, struct gr_kv_params p)
{
    memset(m, 0, sizeof *m);
    m->p = p;
    m->n_cell = (int32_t)(p.n_cell * p.n_kv_pool);
    for (int32_t c = 0; c < m->n_cell; c++)
        m->cell[c] = EMPTY;
}

void m_copy(struct model *to, const struct model *from)
{
    memcpy(to, from, offsetof(struct model, cell) + (size_t)from->n_cell * sizeof *from->cell);
    if (from->p.window)
        memcpy(to->evicted, from->evicted, from->p.n_seq_max * sizeof *from->evicted);
}

int32_t m_used(const struct model *m)
{
    int32_t n = 0;
    for (int32_t c = 0; c < m->n_cell; c++)
        n += m->cell[c].seqs != 0;
    return n;
}

int32_t m_pool(const struct model *m, int32_t seq)
{
    return m->p.n_kv_pool > 1 ? seq : 0;
}

static int32_t base_of(const struct model *m, int32_t pool)
{
    return pool * (int32_t)m->p.n_cell;
}

static int32_t used_in(const struct model *m, int32_t pool)
{
    int32_t n = 0;
    for (int32_t i = 0; i < (int32_t)m->p.n_cell; i++)
        n += m->cell[base_of(m, pool) + i].seqs != 0;
    return n;
}

int64_t m_max(const struct model *m, int32_t seq)
{
    int64_t max = -1;
    for (int32_t c = 0; c < m->n_cell; c++)
        if (m->cell[c].seqs & BIT(seq))
            max = GR_MAX(max, m->cell[c].pos);
    return max;
}

/* The lowest position that a token at `pos` sees: its window goes with it, or is one of many side
 * by side. */
static int64_t first_seen(const struct model *m, int64_t pos)
{
    return m->p.chunked ? pos / m->p.window * m->p.window : pos - m->p.window + 1;
}

int64_t m_visible(const struct model *m, int64_t max)
{
    return first_seen(m, m->p.pos_2d ? GR_MAX(max, 0) : max + 1);
}

bool m_incomplete(const struct model *m, int32_t seq)
{
    bool some = false;
    for (int64_t p = GR_MAX(m_visible(m, m_max(m, seq)), 0); p < M_POS; p++)
        some |= m_is_evicted(m, seq, p);
    return some;
}

/* By position, row, column, token, cell. */
static bool before(const struct model *m, int32_t a, int32_t b)
{
    const struct m_cell *x = &m->cell[a], *y = &m->cell[b];
    if (x->pos != y->pos)
        return x->pos < y->pos;
    if (x->row != y->row)
        return x->row < y->row;
    if (x->col != y->col)
        return x->col < y->col;
    return x->id != y->id ? x->id < y->id : a < b;
}

int32_t m_sorted(const struct model *m, int32_t seq, int32_t *cells)
{
    int32_t n = 0;
    for (int32_t c = 0; c < m->n_cell; c++) {
        if (!(m->cell[c].seqs & BIT(seq)))
            continue;
        int32_t k = n++;
        for (; k && before(m, c, cells[k - 1]); k--)
            cells[k] = cells[k - 1];
        cells[k] = c;
    }
    return n;
}

bool m_sees(const struct model *m, const struct m_cell *c, int32_t seq, const int32_t place[3],
            bool causal)
{
    if (!(c->seqs & BIT(seq)) || (m->p.window && c->pos < first_seen(m, place[0])))
        return false;
    if (!causal || c->pos < place[0])
        return true;
    if (c->pos > place[0])
        return false;
    return !m->p.pos_2d || c->row < place[1] || (c->row == place[1] && c->col <= place[2]);
}

/* ---- giving up ---- */

struct spare {
    int32_t seq;
    int64_t lo, hi;
};

/* max: of each sequence. */
static bool useless(const struct model *m, int32_t c, const int64_t *max, struct spare spare)
{
    const struct m_cell *x = &m->cell[c];
    if (!x->seqs || !m->p.window || m->ideal)
        return false;
    if (spare.seq >= 0 && x->seqs & BIT(spare.seq) && x->pos >= spare.lo && x->pos < spare.hi)
        return false;
    for (int32_t s = 0; s < (int32_t)m->p.n_seq_max; s++)
        if (x->seqs & BIT(s) && (x->pos >= max[s] || x->pos >= m_visible(m, max[s])))
            return false;
    return true;
}

static void find_max(const struct model *m, int64_t *max)
{
    for (int32_t s = 0; s < (int32_t)m->p.n_seq_max; s++)
        max[s] = m_max(m, s);
}

static int32_t count_useless(const struct model *m, int32_t pool, struct spare spare)
{
    int64_t max[M_SEQ];
    int32_t n = 0;
    find_max(m, max);
    for (int32_t i = 0; i < (int32_t)m->p.n_cell; i++)
        n += useless(m, base_of(m, pool) + i, max, spare);
    return n;
}

static void set_evicted(struct model *m, int32_t seq, int64_t lo, int64_t hi)
{
    for (int64_t p = lo; p < hi; p++)
        m->evicted[seq][p / 64] |= BIT(p % 64);
}

/* The cache knows four ranges; of more, the gaps that are smallest close. */
static void close_gaps(struct model *m, int32_t seq)
{
    while (m->p.window && !m->ideal) {
        int64_t n = 0, end = -1, gap = M_POS;
        for (int64_t p = 0; p < M_POS; p++) {
            if (!m_is_evicted(m, seq, p))
                continue;
            if (end < p)
                gap = n++ ? GR_MIN(gap, p - end) : gap;
            end = p + 1;
        }
        if (n <= 4)
            return;
        end = -1;
        for (int64_t p = 0; p < M_POS; p++)
            if (m_is_evicted(m, seq, p)) {
                if (end >= 0 && p - end == gap)
                    set_evicted(m, seq, end, p);
                end = p + 1;
            }
    }
}

/* Gives up a cell: of the first useless cell of each sequence, the one with the oldest token. */
static bool evict(struct model *m, int32_t pool, struct spare spare)
{
    int64_t max[M_SEQ];
    int32_t oldest = -1;
    find_max(m, max);
    for (int32_t s = 0; s < (int32_t)m->p.n_seq_max; s++) {
        int32_t first = -1;
        for (int32_t i = 0, c = base_of(m, pool); i < (int32_t)m->p.n_cell; i++, c++)
            if (m->cell[c].seqs & BIT(s) && useless(m, c, max, spare) &&
                (first < 0 || before(m, c, first)))
                first = c;
        if (first >= 0 && (oldest < 0 || m->cell[first].id < m->cell[oldest].id))
            oldest = first;
    }
    if (oldest < 0)
        return false;
    for (int32_t s = 0; s < (int32_t)m->p.n_seq_max; s++)
        if (m->cell[oldest].seqs & BIT(s))
            set_evicted(m, s, m->cell[oldest].pos, m->cell[oldest].pos + 1), close_gaps(m, s);
    m->cell[oldest] = EMPTY;
    m->eviction[m->n_eviction++] = oldest;
    return true;
}

/* ---- placing ---- */

/* The slot search as a walk that counts the cells it has tested. */
static bool walk(const struct model *m, int32_t pool, int32_t head, int32_t n, int32_t *cells)
{
    int32_t size = (int32_t)m->p.n_cell, tested = 0, k = 0, step = m->p.contiguous ? n : 1;
    if (n > size)
        return false;
    while (k < n) {
        if (tested >= size)
            return false;
        if (head + step > size) {
            tested += size - head, head = 0;
            continue;
        }
        for (int32_t i = 0; i < step; i++) {
            bool free = !m->cell[base_of(m, pool) + head].seqs;
            if (free)
                cells[k++] = base_of(m, pool) + head;
            head++, tested++;
            if (!free && m->p.contiguous)
                break;
        }
        if (k < n && m->p.contiguous)
            k = 0;
    }
    return true;
}

static bool find(struct model *m, int32_t pool, int32_t n, int32_t *cells)
{
    int32_t head = m->head[pool] > used_in(m, pool) + 2 * n ? 0 : m->head[pool];
    while (!walk(m, pool, head, n, cells))
        if (!evict(m, pool, (struct spare){-1, 0, 0}))
            return false;
    return true;
}

bool m_place(struct model *m, const struct gr_ubatch *ub, int32_t *cells)
{
    const struct gr_full_batch *b = ub->batch;
    for (int32_t st = 0; st < (int32_t)m->p.n_kv_pool; st++) {
        int32_t mine[M_CELL], n = 0;
        for (int32_t i = 0; i < ub->n_tok; i++)
            n += m_pool(m, b->seq[b->seq_at[ub->tok[i]]]) == st;
        if (n && !find(m, st, n, mine))
            return false;
        for (int32_t i = 0, k = 0; n && i < ub->n_tok; i++)
            if (m_pool(m, b->seq[b->seq_at[ub->tok[i]]]) == st)
                cells[i] = mine[k++];
        if (n)
            m->head[st] = (mine[n - 1] - base_of(m, st) + 1) % (int32_t)m->p.n_cell;
    }
    for (int32_t i = 0; i < ub->n_tok; i++) {
        int32_t t = ub->tok[i];
        struct m_cell c = {.pos = b->pos[t], .id = m->clock++};
        c.row = m->p.pos_2d ? b->row[t] : c.pos, c.col = m->p.pos_2d ? b->col[t] : c.pos;
        for (int32_t k = 0; k < b->n_seq[t]; k++)
            c.seqs |= BIT(b->seq[b->seq_at[t] + k]);
        m->cell[cells[i]] = c;
    }
    return true;
}

void m_abort(struct model *m, const struct model *before_batch)
{
    static struct model now;
    now = *m;
    m_copy(m, before_batch);
    for (int32_t k = 0; k < now.n_eviction; k++)
        m->cell[now.eviction[k]] = EMPTY; /* the batch's own cells have no old cell either */
    for (int32_t s = 0; s < (int32_t)m->p.n_seq_max; s++)
        if (m_max(before_batch, s) >= 0)
            memcpy(m->evicted[s], now.evicted[s], sizeof m->evicted[s]);
}

/* ---- operations ---- */

static bool in_range(const struct gr_kv_op *op, int64_t pos)
{
    return pos >= GR_MAX(op->p0, 0) && (op->p1 < 0 || pos < op->p1);
}

static bool hit(const struct model *m, int32_t c, int32_t seq, const struct gr_kv_op *op)
{
    return m->cell[c].seqs & BIT(seq) && in_range(op, m->cell[c].pos);
}

static void leave(struct model *m, int32_t c, int32_t seq)
{
    m->cell[c].seqs &= ~BIT(seq);
    if (!m->cell[c].seqs)
        m->cell[c] = EMPTY;
}

static void rm(struct model *m, int32_t seq, const struct gr_kv_op *op)
{
    int32_t st = m_pool(m, seq);
    for (int32_t c = m->n_cell - 1; c >= 0; c--)
        if (hit(m, c, seq, op)) {
            leave(m, c, seq);
            if (!m->cell[c].seqs)
                m->head[st] = GR_MIN(m->head[st], c - base_of(m, st));
        }
}

static int64_t moved(const struct gr_kv_op *op, int64_t pos)
{
    return op->kind == GR_KV_ADD ? pos + op->by : pos / op->by;
}

static void move(struct model *m, const struct gr_kv_op *op)
{
    int32_t freed = -1, st = m_pool(m, op->seq);
    for (int32_t c = m->n_cell - 1; c >= 0; c--)
        if (hit(m, c, op->seq, op)) {
            struct m_cell *x = &m->cell[c];
            int64_t by = moved(op, x->pos) - x->pos;
            x->pos += by, x->row += by, x->col += by, x->delta += by;
            if (x->pos < 0)
                *x = EMPTY, freed = c - base_of(m, st);
        }
    if (op->kind == GR_KV_ADD)
        m->head[st] = GR_MAX(freed, 0);
}

/* Marks the positions that may be evicted after the operation, position by position. */
static void evicted_after(struct model *m, const struct gr_kv_op *op)
{
    static struct model old;
    int32_t n_seq = (int32_t)m->p.n_seq_max;
    bool moves = op->kind == GR_KV_ADD || op->kind == GR_KV_DIV;
    m_copy(&old, m);
    for (int32_t s = 0; s < n_seq; s++) {
        bool rms = op->kind == GR_KV_RM && (op->seq < 0 || op->seq == s);
        bool copies = (op->kind == GR_KV_CP || op->kind == GR_KV_DUP) && s == op->dst;
        memset(m->evicted[s], 0, sizeof m->evicted[s]);
        for (int64_t p = 0; p < M_POS; p++) {
            bool was = m_is_evicted(&old, s, p), in = in_range(op, p),
                 in_src = op->seq >= 0 && m_is_evicted(&old, op->seq, p);
            bool stays = was && !(rms && in) && !(op->kind == GR_KV_KEEP && s != op->seq) &&
                         !(moves && s == op->seq && in);
            if (stays || (copies && in_src && in))
                set_evicted(m, s, p, p + 1);
            if (moves && was && in_src && in && m_pool(m, s) == m_pool(m, op->seq) &&
                moved(op, p) >= 0)
                set_evicted(m, s, moved(op, p), moved(op, p) + 1);
        }
    }
}

/* True for a sequence that might miss cells after the operation. */
static bool concerns(const struct model *m, const struct model *after, const struct gr_kv_op *op,
                     int32_t s)
{
    switch (op->kind) {
    case GR_KV_RM:
        return op->seq < 0 || s == op->seq;
    case GR_KV_CP:
    case GR_KV_DUP:
        return s == op->dst;
    case GR_KV_KEEP:
        return false;
    default:
        if (s == op->seq || memcmp(m->evicted[s], after->evicted[s], sizeof m->evicted[s]) != 0)
            return true;
        for (int32_t c = 0; c < m->n_cell; c++)
            if (hit(m, c, op->seq, op) && m->cell[c].seqs & BIT(s))
                return true;
        return false;
    }
}

static bool twin(const struct model *m, int32_t c, int32_t seq)
{
    const struct m_cell *x = &m->cell[c];
    for (int32_t d = 0; d < m->n_cell; d++) {
        const struct m_cell *y = &m->cell[d];
        if (y->seqs & BIT(seq) && y->pos == x->pos && y->row == x->row && y->col == x->col &&
            y->id == x->id)
            return true;
    }
    return false;
}

/* The cells to copy, in order. */
static int32_t wanted(const struct model *m, const struct gr_kv_op *op, int64_t lo, int32_t *src)
{
    int32_t all[M_CELL], n_all = m_sorted(m, op->seq, all), n = 0;
    for (int32_t k = 0; k < n_all; k++) {
        const struct m_cell *x = &m->cell[all[k]];
        if (!in_range(op, x->pos) || x->pos < lo)
            continue;
        bool shared = x->seqs & BIT(op->dst);
        if (shared ? x->seqs != BIT(op->dst) : !twin(m, all[k], op->dst))
            src[n++] = all[k];
    }
    return n;
}

static int copy(struct model *m, const struct gr_kv_op *op, struct m_moves *mv)
{
    int32_t st = m_pool(m, op->dst), at;
    int64_t lo = GR_MAX(op->p0, 0), hi = op->p1 < 0 ? INT32_MAX : op->p1, max = m_max(m, op->dst);
    mv->n = wanted(m, op, lo, mv->src);
    for (int32_t c = 0; c < m->n_cell; c++)
        if (hit(m, c, op->seq, op))
            max = GR_MAX(max, m->cell[c].pos);
    if (m->p.window && !m->ideal && mv->n > (int32_t)m->p.n_cell - used_in(m, st)) {
        int64_t lowest = INT64_MAX, highest = -1;
        lo = GR_MAX(lo, GR_MIN(m_visible(m, max), max)); /* the last one stays */
        mv->n = wanted(m, op, lo, mv->src);
        for (int32_t c = 0; c < m->n_cell; c++)
            if (hit(m, c, op->seq, op) && m->cell[c].pos < lo)
                lowest = GR_MIN(lowest, m->cell[c].pos), highest = GR_MAX(highest, m->cell[c].pos);
        set_evicted(m, op->dst, lowest, highest + 1);
    }
    close_gaps(m, op->dst);
    for (int64_t p = GR_MAX(m_visible(m, max), 0); m->p.window && !m->ideal && p < M_POS; p++)
        if (m_is_evicted(m, op->dst, p))
            return GR_E_UNSUPPORTED;
    if (mv->n > (int32_t)m->p.n_cell - used_in(m, st) +
                    count_useless(m, st, (struct spare){op->seq, lo, hi}))
        return GR_E_KV_FULL;
    while (mv->n > (int32_t)m->p.n_cell - used_in(m, st))
        evict(m, st, (struct spare){op->seq, lo, hi});
    static struct model old;
    m_copy(&old, m);
    for (int32_t c = 0; c < m->n_cell; c++)
        if (hit(m, c, op->seq, op) && old.cell[c].seqs & BIT(op->dst) &&
            old.cell[c].seqs != BIT(op->dst))
            leave(m, c, op->dst);
    at = m->head[st];
    for (int32_t k = 0; k < mv->n; k++, at++) {
        while (at == (int32_t)m->p.n_cell || m->cell[base_of(m, st) + at].seqs)
            at = at < (int32_t)m->p.n_cell ? at + 1 : 0;
        mv->dst[k] = base_of(m, st) + at;
        m->cell[mv->dst[k]] = old.cell[mv->src[k]];
        m->cell[mv->dst[k]].seqs = BIT(op->dst);
    }
    if (mv->n)
        m->head[st] = at % (int32_t)m->p.n_cell;
    return 0;
}

static bool does_nothing(const struct gr_kv_op *op)
{
    bool empty = GR_MAX(op->p0, 0) >= (op->p1 < 0 ? INT32_MAX : op->p1);
    return op->kind != GR_KV_KEEP &&
           (empty || (op->kind == GR_KV_CP && op->seq == op->dst) ||
            (op->kind == GR_KV_ADD && op->by == 0) || (op->kind == GR_KV_DIV && op->by == 1));
}

static int do_op(struct model *m, const struct gr_kv_op *op, struct m_moves *mv)
{
    for (int32_t c = 0; c < m->n_cell && op->kind == GR_KV_ADD; c++) {
        const struct m_cell *x = &m->cell[c];
        if (hit(m, c, op->seq, op) && op->by > 0 &&
            GR_MAX(x->pos, GR_MAX(x->row, x->col)) + op->by > GR_POS_MAX)
            return GR_E_INVALID;
    }
    struct gr_kv_op all = {.p0 = -1, .p1 = -1};
    switch (op->kind) {
    case GR_KV_RM:
        for (int32_t s = 0; s < (int32_t)m->p.n_seq_max; s++)
            if (op->seq < 0 || s == op->seq)
                rm(m, s, op);
        return 0;
    case GR_KV_KEEP:
        for (int32_t s = 0; s < (int32_t)m->p.n_seq_max; s++)
            if (s != op->seq)
                rm(m, s, &all);
        return 0;
    case GR_KV_CP:
        if (m->p.n_kv_pool > 1)
            return copy(m, op, mv);
        for (int32_t c = 0; c < m->n_cell; c++)
            if (hit(m, c, op->seq, op))
                m->cell[c].seqs |= BIT(op->dst);
        return 0;
    case GR_KV_DUP:
        return copy(m, op, mv);
    default:
        move(m, op);
        return 0;
    }
}

int m_op(struct model *m, const struct gr_kv_op *op, struct m_moves *mv)
{
    static struct model after;
    m_copy(&after, m);
    mv->n = 0;
    if (does_nothing(op))
        return 0;
    if (m->p.window && !m->ideal)
        evicted_after(&after, op);
    bool copies = op->kind == GR_KV_DUP || (op->kind == GR_KV_CP && m->p.n_kv_pool > 1);
    for (int32_t s = 0; !copies && s < (int32_t)m->p.n_seq_max; s++)
        close_gaps(&after, s);
    int rc = do_op(&after, op, mv);
    for (int32_t s = 0; !rc && m->p.window && !m->ideal && s < (int32_t)m->p.n_seq_max; s++)
        if (concerns(m, &after, op, s) && m_incomplete(&after, s))
            rc = GR_E_UNSUPPORTED;
    if (rc)
        mv->n = 0;
    else
        m_copy(m, &after);
    return rc;
}

void m_pack(struct model *m, struct m_moves *mv)
{
    mv->n = 0;
    for (int32_t st = 0; st < (int32_t)m->p.n_kv_pool; st++) {
        int32_t used = used_in(m, st), base = base_of(m, st), hole = base;
        for (int32_t c = base + used; c < base + (int32_t)m->p.n_cell; c++) {
            if (!m->cell[c].seqs)
                continue;
            while (m->cell[hole].seqs)
                hole++;
            m->cell[hole] = m->cell[c];
            m->cell[c] = EMPTY;
            mv->src[mv->n] = c, mv->dst[mv->n++] = hole;
        }
        m->head[st] = used % (int32_t)m->p.n_cell;
    }
}
