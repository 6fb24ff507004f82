#include "kv/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gr/status.h"
#include "kv/cells.h"

/* ---- saving ---- */

struct aged {
    uint64_t age;
    uint32_t cell;
};

static int by_age(const void *a, const void *b)
{
    const struct aged *x = a, *y = b;
    if (x->age != y->age)
        return x->age < y->age ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

/* Lists the cells to save, in the order of their ages. */
static int list_cells(const struct gr_kv *kv, int32_t seq, struct gr_vec *list)
{
    int rc = 0;
    for (uint32_t i = 0; seq >= 0 && i < kv->seq[seq].n && !rc; i++) {
        uint32_t c = gr_kv_items(&kv->seq[seq])[i];
        rc = gr_vec_append(list, &(struct aged){kv->age[c], c}, 1, sizeof(struct aged));
    }
    for (uint32_t c = 0; seq < 0 && c < kv->n_all && !rc; c++)
        if (kv->n_seq[c])
            rc = gr_vec_append(list, &(struct aged){kv->age[c], c}, 1, sizeof(struct aged));
    if (!rc && list->n)
        qsort(list->data, list->n, sizeof(struct aged), by_age);
    return rc;
}

/* Lists the sequences to save; index [n_seq_max] receives the place of each in the table, or -1. */
static int save_seqs(const struct gr_kv *kv, int32_t seq, struct gr_vec *out, int32_t *index)
{
    int rc = 0;
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max && !rc; s++) {
        const struct gr_kv_seq *q = &kv->seq[s];
        index[s] = -1;
        if (!q->n || (seq >= 0 && s != seq))
            continue;
        index[s] = (int32_t)out->n;
        struct gr_kv_range evicted = gr_kv_evicted_hull(&q->evicted);
        struct gr_saved_seq row = {s, evicted.lo, evicted.hi};
        rc = gr_vec_append(out, &row, 1, sizeof row);
    }
    return rc;
}

static int save_item(const struct gr_kv *kv, uint32_t c, uint32_t age, const int32_t *index,
                     struct gr_vec *items, struct gr_vec *ids)
{
    struct gr_kv_cell_meta m = gr_kv_cell_meta(kv, c);
    struct gr_saved_item item = {m.pos, m.row, m.col, age, 0};
    int rc = 0;
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max && !rc; s++)
        if (index[s] >= 0 && gr_kv_has(kv, c, s)) {
            item.n_seq++;
            rc = gr_vec_append(ids, &index[s], 1, sizeof *index);
        }
    return rc ? rc : gr_vec_append(items, &item, 1, sizeof item);
}

int gr_saved_join(struct gr_vec *block, const struct gr_vec parts[3])
{
    static const size_t size[] = {sizeof(struct gr_saved_seq), sizeof(struct gr_saved_item),
                                  sizeof(int32_t)};
    struct gr_saved_head head = {(uint32_t)parts[0].n, (uint32_t)parts[1].n, (uint32_t)parts[2].n,
                                 0};
    int rc = gr_vec_append(block, &head, sizeof head, 1);
    for (int i = 0; i < 3 && !rc; i++)
        rc = gr_vec_append(block, parts[i].data, parts[i].n * size[i], 1);
    return rc;
}

int gr_kv_save(const struct gr_kv *kv, int32_t seq, struct gr_vec *block, struct gr_vec *pairs)
{
    struct gr_vec list = {0}, parts[3] = {{0}};
    int32_t index[GR_SEQ_MAX];
    uint32_t age = 0;
    int rc = list_cells(kv, seq, &list);
    if (!rc)
        rc = save_seqs(kv, seq, &parts[0], index);
    const struct aged *at = list.data;
    for (size_t i = 0; i < list.n && !rc; i++) {
        age += i > 0 && at[i].age != at[i - 1].age; /* copies of a token have one age */
        rc = save_item(kv, at[i].cell, age, index, &parts[1], &parts[2]);
        struct gr_kv_pair pair = {(int32_t)i, (int32_t)at[i].cell};
        if (!rc)
            rc = gr_vec_append(pairs, &pair, 1, sizeof pair);
    }
    if (!rc)
        rc = gr_saved_join(block, parts);
    gr_vec_fini(&list);
    for (int i = 0; i < 3; i++)
        gr_vec_fini(&parts[i]);
    return rc;
}

/* ---- checking a block ---- */

static int bad(const char *name, const char *what, int64_t lo, int64_t hi, int64_t found)
{
    return gr_fail(GR_E_CORRUPT, "%s: %s: %lld to %lld expected, %lld found: it is damaged", name,
                   what, (long long)lo, (long long)hi, (long long)found);
}

int gr_saved_parse(struct gr_saved *out, const char *name, const void *block, size_t n, int32_t seq,
                   uint32_t n_seq_max)
{
    struct gr_saved_head h = {0};
    if (n >= sizeof h)
        memcpy(&h, block, sizeof h);
    uint64_t want = sizeof h + h.n_seq * (uint64_t)sizeof(struct gr_saved_seq) +
                    h.n_item * (uint64_t)sizeof(struct gr_saved_item) + h.n_id * UINT64_C(4);
    if (n != want || h.zero)
        return bad(name, "bytes of a list of cells", (int64_t)want, (int64_t)want, (int64_t)n);
    out->head = h;
    out->seq = (const void *)((const char *)block + sizeof h);
    out->item = (const void *)(out->seq + h.n_seq);
    out->id = (const void *)(out->item + h.n_item);
    if (seq >= 0 && h.n_seq > 1)
        return bad(name, "sequences", 0, 1, h.n_seq);
    for (uint32_t k = 0; k < h.n_seq; k++) {
        int32_t id = out->seq[k].id;
        if (id < (k ? out->seq[k - 1].id + 1 : 0) || id >= GR_SEQ_MAX)
            return bad(name, "a sequence", k ? out->seq[k - 1].id + 1 : 0, GR_SEQ_MAX - 1, id);
        if (seq < 0 && id >= (int32_t)n_seq_max)
            return gr_fail(GR_E_INVALID,
                           "%s: it has sequence %d, the session has sequences 0 to %u: open it "
                           "with more, or save and restore single ones",
                           name, id, n_seq_max - 1);
    }
    return 0;
}

static int check_item(const struct gr_kv *kv, const char *name, const struct gr_saved_item *item)
{
    if (item->pos < 0 || item->pos > GR_POS_MAX)
        return bad(name, "a position", 0, GR_POS_MAX, item->pos);
    int64_t row = (int64_t)item->pos + item->row, col = (int64_t)item->pos + item->col;
    if (!kv->p.pos_2d && (item->row || item->col))
        return bad(name, "a row or column of text", 0, 0, item->row ? item->row : item->col);
    if (row < -GR_POS_MAX || row > GR_POS_MAX) /* negative: shifted with the position */
        return bad(name, "a row", -GR_POS_MAX, GR_POS_MAX, row);
    return col < -GR_POS_MAX || col > GR_POS_MAX
               ? bad(name, "a column", -GR_POS_MAX, GR_POS_MAX, col)
               : 0;
}

/* Checks items and their sequences; max [n_seq] receives the largest positions. */
static int check_items(const struct gr_kv *kv, const char *name, const struct gr_saved *v,
                       int32_t *max)
{
    uint64_t at = 0;
    uint32_t age = 0;
    int rc = 0;
    for (uint32_t k = 0; k < v->head.n_seq; k++)
        max[k] = -1;
    for (uint32_t i = 0; i < v->head.n_item && !rc; i++) {
        const struct gr_saved_item *item = &v->item[i];
        const int32_t *id = v->id + at;
        rc = check_item(kv, name, item);
        if (!rc && (item->age < age || item->age > age + (i > 0)))
            rc = bad(name, "an age", age, age + (i > 0), item->age);
        if (!rc && (item->n_seq < 1 || item->n_seq > v->head.n_id - at))
            rc = bad(name, "sequences of a cell", 1, (int64_t)(v->head.n_id - at), item->n_seq);
        for (uint32_t k = 0; k < item->n_seq && !rc; k++)
            if (id[k] < (k ? id[k - 1] + 1 : 0) || id[k] >= (int64_t)v->head.n_seq)
                rc = bad(name, "a cell's sequence", 0, (int64_t)v->head.n_seq - 1, id[k]);
            else
                max[id[k]] = GR_MAX(max[id[k]], item->pos);
        at += item->n_seq, age = item->age;
    }
    return rc || at == v->head.n_id
               ? rc
               : bad(name, "sequences of cells", (int64_t)at, (int64_t)at, v->head.n_id);
}

/* Checks that every sequence has cells, and misses none that its next token would see. */
static int check_seqs(const struct gr_kv *kv, const char *name, const struct gr_saved *v,
                      const int32_t *max)
{
    for (uint32_t k = 0; k < v->head.n_seq; k++) {
        const struct gr_saved_seq *q = &v->seq[k];
        int64_t see = kv->p.window > 0 ? gr_kv_visible(kv, max[k]) : 0;
        if (max[k] < 0)
            return bad(name, "cells of a sequence", 1, INT32_MAX, 0);
        bool none = !q->lo && !q->hi;
        if (!none && (q->lo < 0 || q->hi <= q->lo || q->hi > GR_MAX(see, 0)))
            return bad(name, "positions evicted", 0, GR_MAX(see, 0), q->lo < 0 ? q->lo : q->hi);
    }
    return 0;
}

/* ---- finding room ---- */

static int32_t target(const struct gr_kv_load *l, int32_t k)
{
    return l->seq >= 0 ? l->seq : l->saved.seq[k].id;
}

/* Returns whether an item is kept for sequence k of the block: without seen_only always, otherwise
 * when the next token can see it. The last one is always kept, so that its position is known. */
static bool seen(const struct gr_kv_load *l, const struct gr_kv *kv, const struct gr_saved_item *i,
                 int32_t k)
{
    return !l->seen_only || i->pos >= GR_MIN(gr_kv_visible(kv, l->work[k]), l->work[k]);
}

/* Returns how many of the sequences id [n_seq] of an item get it, and lists them first in `to`, as
 * sequences of the cache: in one pool all of them when one of them sees it, with separate pools
 * those that see it. */
static uint32_t takers(const struct gr_kv_load *l, const struct gr_kv *kv,
                       const struct gr_saved_item *item, const int32_t *id, int32_t *to)
{
    uint32_t n = 0;
    bool any = false, pools = kv->p.n_kv_pool > 1;
    for (uint32_t k = 0; k < item->n_seq; k++) {
        bool sees = seen(l, kv, item, id[k]);
        any |= sees;
        if (sees || !pools)
            to[n++] = target(l, id[k]);
    }
    return any ? n : 0;
}

/* Counts the cells needed in each pool, and for each sequence of the cache. */
static void count(const struct gr_kv_load *l, const struct gr_kv *kv, uint32_t *pool, uint32_t *seq)
{
    const int32_t *id = l->saved.id;
    int32_t to[GR_SEQ_MAX];
    memset(pool, 0, GR_SEQ_MAX * sizeof *pool);
    memset(seq, 0, GR_SEQ_MAX * sizeof *seq);
    for (uint32_t i = 0; i < l->saved.head.n_item; id += l->saved.item[i++].n_seq) {
        uint32_t n = takers(l, kv, &l->saved.item[i], id, to);
        for (uint32_t k = 0; k < n; k++)
            seq[to[k]]++;
        if (kv->p.n_kv_pool == 1)
            pool[0] += n > 0;
        for (uint32_t k = 0; kv->p.n_kv_pool > 1 && k < n; k++)
            pool[to[k]]++;
    }
}

/* Number of cells of pool s that are free once the replaced sequences are removed. */
static uint32_t free_for(const struct gr_kv_load *l, const struct gr_kv *kv, uint32_t s)
{
    if (l->seq < 0)
        return kv->p.n_cell;
    const struct gr_kv_pool *pool = &kv->pool[s];
    bool own = kv->p.n_kv_pool == 1 || (int32_t)s == l->seq;
    return gr_kv_free_cells(kv, pool) +
           (own ? gr_kv_seq_cells(kv, l->seq) - gr_kv_seq_shared(kv, l->seq) : 0);
}

/* The first pool with too few free cells; n_kv_pool when all have enough. */
static uint32_t first_full(const struct gr_kv_load *l, const struct gr_kv *kv, const uint32_t *need)
{
    uint32_t s = 0;
    while (s < kv->p.n_kv_pool && need[s] <= free_for(l, kv, s))
        s++;
    return s;
}

/* Finds room for all items; with a window, when that fails, for those the next tokens see. */
static int find_room(struct gr_kv_load *l, const struct gr_kv *kv, const char *name,
                     uint32_t *n_seq)
{
    uint32_t need[GR_SEQ_MAX];
    count(l, kv, need, n_seq);
    uint32_t s = first_full(l, kv, need);
    if (s < kv->p.n_kv_pool && kv->p.window > 0) {
        l->seen_only = true;
        count(l, kv, need, n_seq);
        s = first_full(l, kv, need);
    }
    if (s == kv->p.n_kv_pool)
        return 0;
    return gr_fail(GR_E_KV_FULL,
                   "%s: the KV cache is too small: %u cells needed, %u of %u free%s; use a larger "
                   "context",
                   name, need[s], free_for(l, kv, s), kv->p.n_cell,
                   kv->p.n_kv_pool > 1 ? " in its pool" : "");
}

int gr_kv_load_plan(struct gr_kv_load *l, struct gr_kv *kv, const char *name, const void *block,
                    size_t n, int32_t seq)
{
    uint32_t n_seq[GR_SEQ_MAX];
    l->seq = seq;
    int rc = gr_saved_parse(&l->saved, name, block, n, seq, kv->p.n_seq_max);
    if (rc)
        return rc;
    l->work = gr_calloc(l->saved.head.n_seq, sizeof *l->work);
    if (!l->work)
        return GR_E_NOMEM_HOST;
    rc = check_items(kv, name, &l->saved, l->work);
    if (!rc)
        rc = check_seqs(kv, name, &l->saved, l->work);
    if (!rc)
        rc = find_room(l, kv, name, n_seq);
    if (rc)
        return rc;
    l->pair = gr_calloc(l->saved.head.n_id, sizeof *l->pair);
    rc = l->pair ? 0 : GR_E_NOMEM_HOST;
    for (uint32_t s = 0; s < kv->p.n_seq_max && !rc; s++)
        if (n_seq[s])
            rc = gr_kv_index_reserve(&kv->seq[s], n_seq[s]);
    return rc;
}

/* ---- restoring ---- */

static void make_empty(struct gr_kv *kv, int32_t seq)
{
    const struct gr_kv_op op = {.kind = GR_KV_RM, .seq = seq, .p0 = -1, .p1 = -1};
    struct gr_kv_moves none;
    if (seq < 0)
        gr_kv_cells_clear(kv);
    else
        gr_kv_do(kv, &op, &none);
}

/* Gives item i a cell in the pool of sequence to[0], shared by the n sequences `to`. */
static void give(struct gr_kv_load *l, struct gr_kv *kv, uint32_t i, const int32_t *to, uint32_t n)
{
    const struct gr_saved_item *item = &l->saved.item[i];
    struct gr_kv_pool *pool = gr_kv_pool(kv, to[0]);
    uint32_t at = gr_kv_find_free(kv, pool, pool->head), c = pool->base + at;
    gr_kv_cell_use(
        kv, c,
        (struct gr_kv_cell_meta){
            .pos = item->pos, .row = item->row, .col = item->col, .age = kv->clock + item->age});
    for (uint32_t k = 0; k < n; k++)
        gr_kv_cell_put(kv, c, to[k]);
    pool->head = at + 1 < kv->p.n_cell ? at + 1 : 0;
    l->pair[l->n_pair++] = (struct gr_kv_pair){(int32_t)i, (int32_t)c};
}

/* Sets the evicted positions of each sequence: those evicted when it was saved, and those that no
 * cells were free for. */
static void set_evicted(const struct gr_kv_load *l, struct gr_kv *kv)
{
    const struct gr_kv_evicted none = {0};
    const int32_t *id = l->saved.id;
    for (uint32_t k = 0; k < l->saved.head.n_seq; k++)
        kv->seq[target(l, (int32_t)k)].evicted =
            gr_kv_evicted_with(&none, (struct gr_kv_range){l->saved.seq[k].lo, l->saved.seq[k].hi});
    for (uint32_t i = 0; i < l->saved.head.n_item; id += l->saved.item[i++].n_seq) {
        const struct gr_saved_item *item = &l->saved.item[i];
        for (uint32_t k = 0; l->seen_only && k < item->n_seq; k++) {
            struct gr_kv_seq *q = &kv->seq[target(l, id[k])];
            if (!seen(l, kv, item, id[k]))
                q->evicted =
                    gr_kv_evicted_with(&q->evicted, (struct gr_kv_range){item->pos, item->pos + 1});
        }
    }
}

void gr_kv_load_do(struct gr_kv_load *l, struct gr_kv *kv)
{
    const int32_t *id = l->saved.id;
    uint32_t n = l->saved.head.n_item;
    int32_t to[GR_SEQ_MAX];
    make_empty(kv, l->seq);
    for (uint32_t i = 0; i < n; id += l->saved.item[i++].n_seq) {
        uint32_t n_to = takers(l, kv, &l->saved.item[i], id, to);
        bool pools = kv->p.n_kv_pool > 1;
        for (uint32_t k = 0; k < n_to; k += pools ? 1 : n_to)
            give(l, kv, i, to + k, pools ? 1 : n_to);
    }
    kv->clock += n ? l->saved.item[n - 1].age + 1 : 0;
    set_evicted(l, kv);
    assert(gr_kv_check(kv) == 0);
}

void gr_kv_load_fini(struct gr_kv_load *l)
{
    gr_free(l->work);
    gr_free(l->pair);
    *l = (struct gr_kv_load){0};
}
