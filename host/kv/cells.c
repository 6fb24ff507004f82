#include "kv/cells.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "gr/status.h"

#define CELL_MAX (UINT32_C(1) << 30)

static int bad(const char *what, int64_t lo, int64_t hi, int64_t found)
{
    return gr_fail(GR_E_INVALID, "KV cache: %s: %lld to %lld expected, %lld found", what,
                   (long long)lo, (long long)hi, (long long)found);
}

static int check_params(const struct gr_kv_params *p)
{
    if (p->n_seq_max < 1 || p->n_seq_max > GR_SEQ_MAX)
        return bad("sequences", 1, GR_SEQ_MAX, p->n_seq_max);
    if (p->n_kv_pool != 1 && p->n_kv_pool != p->n_seq_max)
        return gr_fail(GR_E_INVALID,
                       "KV cache: one pool or one for each of %u sequences expected, %u found",
                       p->n_seq_max, p->n_kv_pool);
    if (p->n_cell < 1 || p->n_cell > CELL_MAX / p->n_kv_pool)
        return bad("cells of a pool", 1, CELL_MAX / p->n_kv_pool, p->n_cell);
    if (p->n_pad < 32 || p->n_pad % 32 || p->n_pad > CELL_MAX)
        return gr_fail(GR_E_INVALID, "KV cache: padding: a multiple of 32 expected, %u found",
                       p->n_pad);
    if (p->window < 0)
        return bad("window", 0, INT32_MAX, p->window);
    if (p->group < 0)
        return bad("group", 0, INT32_MAX, p->group);
    return 0;
}

/* The arrays of an empty cache. */
static bool allocate(struct gr_kv *kv)
{
    const struct gr_kv_params *p = &kv->p;
    size_t n = kv->n_all;
    kv->pool = gr_calloc(p->n_kv_pool, sizeof *kv->pool);
    kv->seq = gr_calloc(p->n_seq_max, sizeof *kv->seq);
    kv->pos = gr_calloc(n, sizeof *kv->pos);
    kv->delta = gr_calloc(n, sizeof *kv->delta);
    kv->age = gr_calloc(n, sizeof *kv->age);
    kv->n_seq = gr_calloc(n, sizeof *kv->n_seq);
    kv->set = gr_calloc(n * kv->n_set, sizeof *kv->set);
    kv->used = gr_calloc((n + 31) / 32, sizeof *kv->used);
    kv->scratch = gr_calloc(p->n_cell, sizeof *kv->scratch);
    kv->row = p->pos_2d ? gr_calloc(n, sizeof *kv->row) : NULL;
    kv->col = p->pos_2d ? gr_calloc(n, sizeof *kv->col) : NULL;
    return kv->pool && kv->seq && kv->pos && kv->delta && kv->age && kv->n_seq && kv->set &&
           kv->used && kv->scratch && (!p->pos_2d || (kv->row && kv->col));
}

int gr_kv_new(struct gr_kv **out, const struct gr_kv_params *p)
{
    *out = NULL;
    int rc = check_params(p);
    if (rc)
        return rc;
    struct gr_kv *kv = gr_calloc(1, sizeof *kv);
    if (!kv)
        return GR_E_NOMEM_HOST;
    kv->p = *p;
    kv->n_all = p->n_cell * p->n_kv_pool;
    kv->n_set = (p->n_seq_max + 63) / 64;
    if (!allocate(kv)) {
        gr_kv_free(&kv);
        return GR_E_NOMEM_HOST;
    }
    for (uint32_t s = 0; s < p->n_kv_pool; s++)
        kv->pool[s].base = s * p->n_cell;
    gr_kv_cells_clear(kv);
    *out = kv;
    return 0;
}

void gr_kv_free(struct gr_kv **kv)
{
    struct gr_kv *k = *kv;
    if (k) {
        for (uint32_t s = 0; k->seq && s < k->p.n_seq_max; s++)
            gr_free(k->seq[s].cell);
        gr_free(k->pool), gr_free(k->seq), gr_free(k->pos), gr_free(k->delta), gr_free(k->row);
        gr_free(k->col), gr_free(k->age), gr_free(k->n_seq), gr_free(k->set), gr_free(k->used);
        gr_free(k->scratch), gr_free(k->placed), gr_free(k->eviction);
        gr_free(k->move_src), gr_free(k->move_dst);
        gr_free(k);
    }
    *kv = NULL;
}

void gr_kv_cells_clear(struct gr_kv *kv)
{
    size_t n = kv->n_all;
    memset(kv->pos, 0xff, n * sizeof *kv->pos);
    memset(kv->delta, 0, n * sizeof *kv->delta);
    memset(kv->n_seq, 0, n * sizeof *kv->n_seq);
    memset(kv->set, 0, n * kv->n_set * sizeof *kv->set);
    memset(kv->used, 0, (n + 31) / 32 * sizeof *kv->used);
    for (uint32_t s = 0; s < kv->p.n_seq_max; s++) {
        struct gr_kv_seq *q = &kv->seq[s];
        *q = (struct gr_kv_seq){.cell = q->cell, .cap = q->cap};
    }
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        kv->pool[s] = (struct gr_kv_pool){.base = kv->pool[s].base};
    kv->n_used = kv->n_shift = kv->n_placed = 0;
    kv->busy = false;
    assert(gr_kv_check(kv) == 0);
}

/* ---- finding cells ---- */

uint32_t gr_kv_find(const struct gr_kv *kv, const struct gr_kv_pool *pool, uint32_t c, bool used)
{
    uint32_t flip = used ? 0 : ~UINT32_C(0), first = pool->base + c,
             stop = pool->base + kv->p.n_cell;
    for (uint32_t w = first / 32, skip = first % 32; w * 32 < stop; w++, skip = 0) {
        uint32_t m = (kv->used[w] ^ flip) >> skip << skip;
        if (m)
            return GR_MIN(w * 32 + (uint32_t)__builtin_ctz(m), stop) - pool->base;
    }
    return kv->p.n_cell;
}

uint32_t gr_kv_find_free(const struct gr_kv *kv, const struct gr_kv_pool *pool, uint32_t c)
{
    c = gr_kv_find(kv, pool, c, false);
    return c < kv->p.n_cell ? c : gr_kv_find(kv, pool, 0, false);
}

/* One past the last used cell below `end`, from the pool's base. */
static uint32_t last_used(const struct gr_kv *kv, const struct gr_kv_pool *pool, uint32_t end)
{
    uint32_t stop = pool->base + end;
    while (stop > pool->base) {
        uint32_t w = (stop - 1) / 32, above = 31 - (stop - 1) % 32;
        uint32_t m = kv->used[w] << above >> above;
        if (m)
            return GR_MAX(w * 32 + 32 - (uint32_t)__builtin_clz(m), pool->base) - pool->base;
        stop = w * 32;
    }
    return 0;
}

/* ---- single cells ---- */

struct gr_kv_cell_meta gr_kv_cell_meta(const struct gr_kv *kv, uint32_t c)
{
    return (struct gr_kv_cell_meta){kv->pos[c], kv->delta[c], kv->row ? kv->row[c] : 0,
                                    kv->col ? kv->col[c] : 0, kv->age[c]};
}

struct gr_kv_cell_meta gr_kv_tok_meta(const struct gr_kv *kv, const struct gr_ubatch *ub, int32_t i)
{
    const struct gr_full_batch *b = ub->batch;
    int32_t t = ub->tok[i], pos = b->pos[t];
    if (!kv->p.pos_2d)
        return (struct gr_kv_cell_meta){.pos = pos};
    return (struct gr_kv_cell_meta){.pos = pos, .row = b->row[t] - pos, .col = b->col[t] - pos};
}

void gr_kv_set_delta(struct gr_kv *kv, uint32_t c, int32_t delta)
{
    kv->n_shift += (uint32_t)(delta != 0) - (uint32_t)(kv->delta[c] != 0);
    kv->delta[c] = delta;
}

void gr_kv_cell_use(struct gr_kv *kv, uint32_t c, struct gr_kv_cell_meta m)
{
    struct gr_kv_pool *pool = &kv->pool[c / kv->p.n_cell];
    kv->pos[c] = m.pos, kv->age[c] = m.age;
    gr_kv_set_delta(kv, c, m.delta);
    if (kv->row)
        kv->row[c] = m.row, kv->col[c] = m.col;
    kv->used[c / 32] |= UINT32_C(1) << c % 32;
    kv->n_used++, pool->n_used++;
    pool->end = GR_MAX(pool->end, c - pool->base + 1);
}

void gr_kv_cell_join(struct gr_kv *kv, uint32_t c, int32_t seq)
{
    kv->set[(size_t)c * kv->n_set + (uint32_t)seq / 64] |= UINT64_C(1) << seq % 64;
    kv->n_seq[c]++;
}

void gr_kv_cell_leave(struct gr_kv *kv, uint32_t c, int32_t seq)
{
    kv->set[(size_t)c * kv->n_set + (uint32_t)seq / 64] &= ~(UINT64_C(1) << seq % 64);
    if (--kv->n_seq[c])
        return;
    struct gr_kv_pool *pool = &kv->pool[c / kv->p.n_cell];
    kv->used[c / 32] &= ~(UINT32_C(1) << c % 32);
    kv->n_used--, pool->n_used--;
    kv->pos[c] = -1;
    gr_kv_set_delta(kv, c, 0);
    if (c - pool->base + 1 == pool->end)
        pool->end = last_used(kv, pool, pool->end);
}

void gr_kv_cell_put(struct gr_kv *kv, uint32_t c, int32_t seq)
{
    gr_kv_cell_join(kv, c, seq);
    gr_kv_index_put(kv, &kv->seq[seq], c);
}

void gr_kv_cell_empty(struct gr_kv *kv, uint32_t c)
{
    for (uint32_t w = 0; w < kv->n_set; w++)
        for (uint64_t m = kv->set[(size_t)c * kv->n_set + w]; m; m &= m - 1) {
            int32_t s = (int32_t)w * 64 + __builtin_ctzll(m);
            gr_kv_index_remove(kv, &kv->seq[s], c);
            gr_kv_cell_leave(kv, c, s);
        }
}

/* ---- questions ---- */

static bool is_seq(const struct gr_kv *kv, int32_t seq)
{
    return seq >= 0 && seq < (int32_t)kv->p.n_seq_max;
}

int32_t gr_kv_cells_pos_min(const struct gr_kv *kv, int32_t seq)
{
    return is_seq(kv, seq) && kv->seq[seq].n ? kv->pos[gr_kv_items(&kv->seq[seq])[0]] : -1;
}

int32_t gr_kv_cells_pos_max(const struct gr_kv *kv, int32_t seq)
{
    return is_seq(kv, seq) ? gr_kv_max_pos(kv, seq) : -1;
}

int32_t gr_kv_cells_pos_end(const struct gr_kv *kv, int32_t seq)
{
    int32_t max = gr_kv_cells_pos_max(kv, seq), end = max + 1;
    if (max < 0 || !kv->row)
        return end;
    const struct gr_kv_seq *q = &kv->seq[seq];
    const uint32_t *item = gr_kv_items(q);
    for (uint32_t i = q->n; i-- > 0 && kv->pos[item[i]] == max;)
        end = GR_MAX(end, max + 1 + GR_MAX(kv->row[item[i]], kv->col[item[i]]));
    return end;
}

uint32_t gr_kv_seq_cells(const struct gr_kv *kv, int32_t seq)
{
    return is_seq(kv, seq) ? kv->seq[seq].n : 0;
}

uint32_t gr_kv_seq_shared(const struct gr_kv *kv, int32_t seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < gr_kv_seq_cells(kv, seq); i++)
        n += kv->n_seq[gr_kv_items(&kv->seq[seq])[i]] > 1;
    return n;
}

uint32_t gr_kv_seq_shifts(const struct gr_kv *kv, int32_t seq, int32_t *lo, int32_t *hi)
{
    const struct gr_kv_seq *q = &kv->seq[seq];
    uint32_t n = 0;
    *lo = *hi = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        int32_t d = kv->delta[gr_kv_items(q)[i]];
        if (!d)
            continue;
        *lo = n ? GR_MIN(*lo, d) : d;
        *hi = n ? GR_MAX(*hi, d) : d;
        n++;
    }
    return n;
}

bool gr_kv_seq_same(const struct gr_kv *kv, int32_t a, int32_t b)
{
    uint32_t n = gr_kv_seq_cells(kv, a);
    if (n != gr_kv_seq_cells(kv, b))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!gr_kv_has(kv, gr_kv_items(&kv->seq[a])[i], b))
            return false;
    return true;
}

bool gr_kv_seq_alike(const struct gr_kv *kv, int32_t a, int32_t b)
{
    uint32_t n = gr_kv_seq_cells(kv, a);
    if (n != gr_kv_seq_cells(kv, b))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!gr_kv_index_has_copy(kv, &kv->seq[b], gr_kv_items(&kv->seq[a])[i]))
            return false;
    return true;
}

int32_t gr_kv_n_kv(const struct gr_kv *kv)
{
    uint32_t end = 0;
    for (uint32_t s = kv->p.n_kv_pool; s-- && !end;)
        if (kv->pool[s].n_used)
            end = kv->pool[s].base + kv->pool[s].end;
    return (int32_t)GR_MIN(GR_MAX(GR_PAD(end, kv->p.n_pad), kv->p.n_pad), kv->n_all);
}

bool gr_kv_has_shift(const struct gr_kv *kv)
{
    return kv->n_shift > 0;
}

/* K is rotated to pos - delta, so its copy by grouped positions is rotated to that one's group. */
void gr_kv_deltas(const struct gr_kv *kv, int32_t n_kv, bool far, int32_t *delta)
{
    int32_t group = GR_MAX(kv->p.group, 1);
    memcpy(delta, kv->delta, (size_t)n_kv * sizeof *delta);
    for (int32_t i = 0; far && i < n_kv; i++)
        if (delta[i])
            delta[i] = kv->pos[i] / group - (kv->pos[i] - delta[i]) / group;
}

void gr_kv_shifted(struct gr_kv *kv)
{
    if (kv->n_shift)
        memset(kv->delta, 0, kv->n_all * sizeof *kv->delta);
    kv->n_shift = 0;
    assert(gr_kv_check(kv) == 0);
}

struct gr_cell gr_kv_cell(const struct gr_kv *kv, uint32_t i)
{
    struct gr_kv_cell_meta m = gr_kv_cell_meta(kv, i);
    struct gr_cell c = {m.pos, m.delta, m.pos, m.pos, kv->n_seq[i], -1};
    while (c.n_seq && !gr_kv_has(kv, i, ++c.seq))
        ;
    if (c.n_seq)
        c.row += m.row, c.col += m.col;
    return c;
}

bool gr_kv_cell_has(const struct gr_kv *kv, uint32_t i, int32_t seq)
{
    return is_seq(kv, seq) && gr_kv_has(kv, i, seq);
}

uint32_t gr_kv_n_cell(const struct gr_kv *kv)
{
    return kv->n_all;
}

uint32_t gr_kv_n_used(const struct gr_kv *kv)
{
    return kv->n_used;
}

uint32_t gr_kv_head(const struct gr_kv *kv, uint32_t pool)
{
    return kv->pool[pool].head;
}
