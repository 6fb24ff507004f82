#include "kv/cells.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

#define CELL_MAX (UINT32_C(1) << 30)

static int check_params(const struct gr_kv_params *p)
{
    if (p->n_cell < 1 || p->n_cell > CELL_MAX)
        return gr_fail(GR_E_INVALID, "KV cache: 1 to %u cells expected, %u found", CELL_MAX,
                       p->n_cell);
    if (p->n_seq_max < 1 || p->n_seq_max > GR_SEQ_MAX)
        return gr_fail(GR_E_INVALID, "KV cache: 1 to %d sequences expected, %u found", GR_SEQ_MAX,
                       p->n_seq_max);
    if (p->n_pad < 32 || p->n_pad % 32 || p->n_pad > CELL_MAX)
        return gr_fail(GR_E_INVALID, "KV cache: padding: a multiple of 32 expected, %u found",
                       p->n_pad);
    return 0;
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
    uint32_t n_word = (p->n_cell + 31) / 32;
    kv->p = *p, kv->n_word = n_word;
    kv->pos = gr_calloc(n_word, 32 * sizeof *kv->pos);
    kv->delta = gr_calloc(n_word, 32 * sizeof *kv->delta);
    kv->n_seq = gr_calloc(p->n_cell, sizeof *kv->n_seq);
    kv->used = gr_calloc(n_word, sizeof *kv->used);
    kv->member = gr_calloc((size_t)p->n_seq_max * n_word, sizeof *kv->member);
    kv->seq = gr_calloc(p->n_seq_max, sizeof *kv->seq);
    kv->order = gr_calloc(p->n_seq_max, sizeof *kv->order);
    kv->age = gr_calloc(p->n_cell, sizeof *kv->age);
    if (!kv->pos || !kv->delta || !kv->n_seq || !kv->used || !kv->member || !kv->seq ||
        !kv->order || !kv->age) {
        gr_kv_free(&kv);
        return GR_E_NOMEM_HOST;
    }
    memset(kv->pos, 0xff, (size_t)n_word * 32 * sizeof *kv->pos);
    gr_kv_cells_clear(kv); /* of the rest, zeros are what an empty cell has */
    *out = kv;
    return 0;
}

void gr_kv_free(struct gr_kv **kv)
{
    struct gr_kv *k = *kv;
    if (k) {
        for (uint32_t s = 0; k->order && s < k->p.n_seq_max; s++)
            gr_free(k->order[s].cell);
        gr_free(k->pos), gr_free(k->delta), gr_free(k->n_seq), gr_free(k->used);
        gr_free(k->member), gr_free(k->seq), gr_free(k->order), gr_free(k->age);
        gr_free(k->reserved);
        gr_free(k);
    }
    *kv = NULL;
}

/* ---- moves ---- */

void gr_kv_cell_use(struct gr_kv *kv, uint32_t c, int32_t pos)
{
    kv->pos[c] = pos;
    kv->age[c] = kv->clock++;
    kv->used[c / 32] |= UINT32_C(1) << c % 32;
    kv->n_used++;
    kv->end = GR_MAX(kv->end, c + 1);
}

void gr_kv_cell_put(struct gr_kv *kv, uint32_t c, int32_t seq)
{
    struct gr_kv_seq *s = &kv->seq[seq];
    int32_t pos = kv->pos[c];
    gr_kv_row(kv, seq)[c / 32] |= UINT32_C(1) << c % 32;
    kv->n_seq[c]++;
    gr_kv_order_put(kv, c, seq);
    s->min = s->n ? GR_MIN(s->min, pos) : pos;
    s->max = GR_MAX(s->max, pos);
    s->n++;
}

static void set_delta(struct gr_kv *kv, uint32_t c, int32_t delta)
{
    kv->n_shift += (uint32_t)(delta != 0) - (uint32_t)(kv->delta[c] != 0);
    kv->delta[c] = delta;
}

void gr_kv_cell_drop(struct gr_kv *kv, uint32_t c, int32_t seq)
{
    gr_kv_row(kv, seq)[c / 32] &= ~(UINT32_C(1) << c % 32);
    kv->order[seq].valid = false;
    if (--kv->n_seq[c])
        return;
    kv->used[c / 32] &= ~(UINT32_C(1) << c % 32);
    kv->n_used--;
    kv->pos[c] = -1;
    set_delta(kv, c, 0);
}

void gr_kv_cell_empty(struct gr_kv *kv, uint32_t c)
{
    for (int32_t s = 0; kv->n_seq[c]; s++)
        if (gr_kv_has(kv, c, s))
            gr_kv_cell_drop(kv, c, s);
}

static struct gr_kv_seq summary(const struct gr_kv *kv, int32_t seq)
{
    const uint32_t *row = gr_kv_row(kv, seq);
    struct gr_kv_seq s = {0, INT32_MAX, -1};
    for (uint32_t w = 0, n = gr_kv_words(kv); w < n; w++)
        for (uint32_t m = row[w]; m; m &= m - 1) {
            int32_t pos = kv->pos[w * 32 + (uint32_t)__builtin_ctz(m)];
            s.min = GR_MIN(s.min, pos), s.max = GR_MAX(s.max, pos), s.n++;
        }
    if (!s.n)
        s.min = -1;
    return s;
}

void gr_kv_refresh(struct gr_kv *kv, int32_t seq)
{
    uint32_t w = gr_kv_words(kv);
    while (w && !kv->used[w - 1])
        w--;
    kv->end = w ? w * 32 - (uint32_t)__builtin_clz(kv->used[w - 1]) : 0;
    if (seq >= 0)
        kv->seq[seq] = summary(kv, seq);
    for (int32_t s = 0; seq < 0 && s < (int32_t)kv->p.n_seq_max; s++)
        if (kv->seq[s].n)
            kv->seq[s] = summary(kv, s);
}

/* ---- sequence operations ---- */

static int check_seq(const struct gr_kv *kv, int32_t seq)
{
    if (kv->n_reserved)
        return gr_fail(GR_E_INTERNAL, "KV cache: changed while a batch of %u tokens is under way",
                       kv->n_reserved);
    if (seq < 0 || seq >= (int32_t)kv->p.n_seq_max)
        return gr_fail(GR_E_INVALID, "sequence: 0 to %u expected, %d found", kv->p.n_seq_max - 1,
                       seq);
    return 0;
}

/* Positions [lo, hi) of a caller's p0 and p1. */
struct range {
    int32_t lo, hi;
};

static struct range range_of(int32_t p0, int32_t p1)
{
    return (struct range){p0 < 0 ? 0 : p0, p1 < 0 ? INT32_MAX : p1};
}

static bool inside(struct range r, int32_t pos)
{
    return pos >= r.lo && pos < r.hi;
}

/* The first cell at or after c that is in the sequence with a position in the range; kv->end when
 * there is none. */
static uint32_t next_cell(const struct gr_kv *kv, int32_t seq, struct range r, uint32_t c)
{
    const uint32_t *row = gr_kv_row(kv, seq);
    for (uint32_t w = c / 32, n = gr_kv_words(kv), skip = c % 32; w < n; w++, skip = 0)
        for (uint32_t m = row[w] >> skip << skip; m; m &= m - 1) {
            c = w * 32 + (uint32_t)__builtin_ctz(m);
            if (inside(r, kv->pos[c]))
                return c;
        }
    return kv->end;
}

/* After cells were emptied, the search begins at the first of them when that is earlier. */
static void lower_head(struct gr_kv *kv, uint32_t first_freed)
{
    kv->head = GR_MIN(kv->head, first_freed);
}

static void rm_one(struct gr_kv *kv, int32_t seq, struct range r)
{
    uint32_t freed = UINT32_MAX;
    if (!kv->seq[seq].n)
        return;
    for (uint32_t c = next_cell(kv, seq, r, 0); c < kv->end; c = next_cell(kv, seq, r, c + 1)) {
        gr_kv_cell_drop(kv, c, seq);
        if (!kv->n_seq[c])
            freed = GR_MIN(freed, c);
    }
    lower_head(kv, freed);
    gr_kv_refresh(kv, seq);
}

int gr_kv_cells_rm(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1)
{
    int rc = check_seq(kv, seq < 0 ? 0 : seq);
    if (rc)
        return rc;
    struct range r = range_of(p0, p1);
    for (int32_t s = seq < 0 ? 0 : seq, last = seq < 0 ? (int32_t)kv->p.n_seq_max - 1 : seq;
         s <= last; s++)
        rm_one(kv, s, r);
    assert(gr_kv_check(kv) == 0);
    return 0;
}

int gr_kv_cells_cp(struct gr_kv *kv, int32_t src, int32_t dst, int32_t p0, int32_t p1)
{
    int rc = check_seq(kv, src);
    if (!rc)
        rc = check_seq(kv, dst);
    if (rc)
        return rc;
    struct range r = range_of(p0, p1);
    for (uint32_t c = next_cell(kv, src, r, 0); c < kv->end; c = next_cell(kv, src, r, c + 1))
        if (!gr_kv_has(kv, c, dst))
            gr_kv_cell_put(kv, c, dst);
    assert(gr_kv_check(kv) == 0);
    return 0;
}

int gr_kv_cells_keep(struct gr_kv *kv, int32_t seq)
{
    int rc = check_seq(kv, seq);
    if (rc)
        return rc;
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++)
        if (s != seq && kv->seq[s].n)
            rm_one(kv, s, range_of(-1, -1));
    assert(gr_kv_check(kv) == 0);
    return 0;
}

static void move(struct gr_kv *kv, uint32_t c, int32_t pos)
{
    set_delta(kv, c, kv->delta[c] + (pos - kv->pos[c]));
    kv->pos[c] = pos;
    for (int32_t s = 0, n = kv->n_seq[c]; n; s++)
        if (gr_kv_has(kv, c, s))
            kv->order[s].valid = false, n--;
}

/* Whether all positions in the range can grow by delta. */
static int check_growth(const struct gr_kv *kv, int32_t seq, struct range r, int32_t delta)
{
    int32_t limit = delta > 0 ? GR_POS_MAX - delta : GR_POS_MAX;
    if (kv->seq[seq].max <= limit)
        return 0;
    for (uint32_t c = next_cell(kv, seq, r, 0); c < kv->end; c = next_cell(kv, seq, r, c + 1))
        if (kv->pos[c] > limit)
            return gr_fail(GR_E_INVALID,
                           "sequence %d: position %d + %d exceeds the largest one, %d", seq,
                           kv->pos[c], delta, GR_POS_MAX);
    return 0;
}

int gr_kv_cells_add(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1, int32_t delta)
{
    int rc = check_seq(kv, seq);
    struct range r = range_of(p0, p1);
    if (rc || delta == 0 || r.lo >= r.hi)
        return rc;
    rc = check_growth(kv, seq, r, delta);
    if (rc)
        return rc;
    uint32_t freed = UINT32_MAX;
    for (uint32_t c = next_cell(kv, seq, r, 0); c < kv->end; c = next_cell(kv, seq, r, c + 1)) {
        /* A cell comes up once: the walk goes by cell, not by position. */
        if (kv->pos[c] + delta >= 0) {
            move(kv, c, kv->pos[c] + delta);
        } else {
            freed = GR_MIN(freed, c);
            gr_kv_cell_empty(kv, c);
        }
    }
    kv->head = freed < kv->p.n_cell ? freed : 0;
    gr_kv_refresh(kv, -1);
    assert(gr_kv_check(kv) == 0);
    return 0;
}

int gr_kv_cells_div(struct gr_kv *kv, int32_t seq, int32_t p0, int32_t p1, int32_t d)
{
    int rc = check_seq(kv, seq);
    if (rc)
        return rc;
    if (d < 1)
        return gr_fail(GR_E_INVALID,
                       "sequence %d: divisor of positions: 1 or more expected, %d found", seq, d);
    struct range r = range_of(p0, p1);
    if (d == 1 || r.lo >= r.hi)
        return 0;
    for (uint32_t c = next_cell(kv, seq, r, 0); c < kv->end; c = next_cell(kv, seq, r, c + 1))
        move(kv, c, kv->pos[c] / d);
    gr_kv_refresh(kv, -1);
    assert(gr_kv_check(kv) == 0);
    return 0;
}

void gr_kv_cells_clear(struct gr_kv *kv)
{
    size_t n = gr_kv_words(kv);
    memset(kv->pos, 0xff, n * 32 * sizeof *kv->pos);
    memset(kv->delta, 0, n * 32 * sizeof *kv->delta);
    memset(kv->n_seq, 0, kv->end * sizeof *kv->n_seq);
    memset(kv->used, 0, n * sizeof *kv->used);
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++) {
        memset(gr_kv_row(kv, s), 0, n * sizeof *kv->member);
        kv->seq[s] = (struct gr_kv_seq){0, -1, -1};
        kv->order[s].valid = false;
    }
    kv->n_used = kv->n_shift = kv->end = kv->head = kv->n_reserved = 0;
    assert(gr_kv_check(kv) == 0);
}

/* ---- questions ---- */

int32_t gr_kv_cells_pos_min(const struct gr_kv *kv, int32_t seq)
{
    return seq >= 0 && seq < (int32_t)kv->p.n_seq_max ? kv->seq[seq].min : -1;
}

int32_t gr_kv_cells_pos_max(const struct gr_kv *kv, int32_t seq)
{
    return seq >= 0 && seq < (int32_t)kv->p.n_seq_max ? kv->seq[seq].max : -1;
}

static int32_t limit_pos_max(const void *cache, int32_t seq)
{
    return gr_kv_cells_pos_max(cache, seq);
}

static bool limit_same(const void *cache, int32_t a, int32_t b)
{
    const struct gr_kv *kv = cache;
    return !memcmp(gr_kv_row(kv, a), gr_kv_row(kv, b), gr_kv_words(kv) * sizeof *kv->member);
}

void gr_kv_limits(const struct gr_kv *kv, struct gr_batch_limits *limits)
{
    limits->n_seq_max = (int32_t)kv->p.n_seq_max;
    limits->pos_max = limit_pos_max;
    limits->same = limit_same;
    limits->cache = kv;
}

int32_t gr_kv_n_kv(const struct gr_kv *kv)
{
    uint32_t n = GR_MAX(GR_PAD(kv->end, kv->p.n_pad), kv->p.n_pad);
    return (int32_t)GR_MIN(n, kv->p.n_cell);
}

bool gr_kv_has_shift(const struct gr_kv *kv)
{
    return kv->n_shift > 0;
}

void gr_kv_deltas(const struct gr_kv *kv, int32_t n_kv, int32_t *delta)
{
    memcpy(delta, kv->delta, (size_t)n_kv * sizeof *delta);
}

void gr_kv_shifted(struct gr_kv *kv)
{
    memset(kv->delta, 0, kv->end * sizeof *kv->delta);
    kv->n_shift = 0;
    assert(gr_kv_check(kv) == 0);
}

struct gr_cell gr_kv_cell(const struct gr_kv *kv, uint32_t i)
{
    struct gr_cell c = {kv->pos[i], kv->delta[i], kv->n_seq[i], -1};
    while (c.n_seq && !gr_kv_has(kv, i, ++c.seq))
        ;
    return c;
}

bool gr_kv_cell_has(const struct gr_kv *kv, uint32_t i, int32_t seq)
{
    return seq >= 0 && seq < (int32_t)kv->p.n_seq_max && gr_kv_has(kv, i, seq);
}

uint32_t gr_kv_n_cell(const struct gr_kv *kv)
{
    return kv->p.n_cell;
}

uint32_t gr_kv_n_used(const struct gr_kv *kv)
{
    return kv->n_used;
}

uint32_t gr_kv_head(const struct gr_kv *kv)
{
    return kv->head;
}
