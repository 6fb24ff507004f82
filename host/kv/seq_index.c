/* The index of a sequence: its cells in the order in which tokens list them. */
#include <string.h>

#include "base/alloc.h"
#include "kv/cells.h"

#define LEAST_CAP 256 /* items; the capacity then doubles, so that a step seldom allocates */

/* Compares position, row and column: negative, 0 or positive. */
static int compare_place(const struct gr_kv *kv, uint32_t c, const struct gr_kv_cell_meta *m)
{
    if (kv->pos[c] != m->pos)
        return kv->pos[c] < m->pos ? -1 : 1;
    if (!kv->row)
        return 0;
    if (kv->row[c] != m->row)
        return kv->row[c] < m->row ? -1 : 1;
    return kv->col[c] < m->col ? -1 : kv->col[c] > m->col;
}

static int compare(const struct gr_kv *kv, uint32_t c, const struct gr_kv_cell_meta *m)
{
    int d = compare_place(kv, c, m);
    return d ? d : kv->age[c] < m->age ? -1 : kv->age[c] > m->age;
}

/* Copies of one token at the same place are ordered by cell number. */
bool gr_kv_index_less(const struct gr_kv *kv, uint32_t a, uint32_t b)
{
    if (kv->pos[a] != kv->pos[b])
        return kv->pos[a] < kv->pos[b];
    struct gr_kv_cell_meta m = gr_kv_cell_meta(kv, b);
    int d = compare(kv, a, &m);
    return d < 0 || (d == 0 && a < b);
}

uint32_t gr_kv_index_below(const struct gr_kv *kv, const struct gr_kv_seq *q, int64_t pos)
{
    const uint32_t *item = gr_kv_items(q);
    uint32_t lo = 0, hi = q->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (kv->pos[item[mid]] < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

uint32_t gr_kv_index_until(const struct gr_kv *kv, const struct gr_kv_seq *q,
                           const struct gr_kv_cell_meta *m)
{
    const uint32_t *item = gr_kv_items(q);
    uint32_t lo = 0, hi = q->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (compare_place(kv, item[mid], m) <= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The number of items before cell c, which need not be an item itself. */
static uint32_t before(const struct gr_kv *kv, const struct gr_kv_seq *q, uint32_t c)
{
    const uint32_t *item = gr_kv_items(q);
    uint32_t lo = 0, hi = q->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (gr_kv_index_less(kv, item[mid], c))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool gr_kv_index_has_copy(const struct gr_kv *kv, const struct gr_kv_seq *q, uint32_t c)
{
    struct gr_kv_cell_meta m = gr_kv_cell_meta(kv, c);
    uint32_t k = before(kv, q, c);
    return (k < q->n && compare(kv, gr_kv_items(q)[k], &m) == 0) ||
           (k > 0 && compare(kv, gr_kv_items(q)[k - 1], &m) == 0);
}

int gr_kv_index_reserve(struct gr_kv_seq *q, uint32_t n)
{
    if (n <= q->cap)
        return 0;
    uint32_t cap = GR_MAX(GR_MAX(n, LEAST_CAP), GR_MIN(q->cap, UINT32_MAX / 2) * 2);
    uint32_t *p = gr_realloc(q->cell, cap, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    q->cell = p, q->cap = cap;
    return 0;
}

/* Notes that items from i on have changed. */
static void changed(struct gr_kv_seq *q, uint32_t i)
{
    q->same = GR_MIN(q->same, i);
}

/* Moves the items to the front of the array if nothing can be appended to them. */
static void move_to_front(struct gr_kv_seq *q)
{
    if (q->first + q->n < q->cap)
        return;
    memmove(q->cell, gr_kv_items(q), q->n * sizeof *q->cell);
    q->first = 0;
}

void gr_kv_index_push(struct gr_kv_seq *q, uint32_t c)
{
    move_to_front(q);
    gr_kv_items(q)[q->n++] = c;
}

void gr_kv_index_put(struct gr_kv *kv, struct gr_kv_seq *q, uint32_t c)
{
    if (!q->n || gr_kv_index_less(kv, gr_kv_items(q)[q->n - 1], c)) {
        gr_kv_index_push(q, c);
        return;
    }
    uint32_t k = before(kv, q, c);
    changed(q, k);
    if (k < q->n / 2 && q->first) {
        q->first--;
        memmove(gr_kv_items(q), gr_kv_items(q) + 1, k * sizeof *q->cell);
    } else {
        move_to_front(q);
        memmove(gr_kv_items(q) + k + 1, gr_kv_items(q) + k, (q->n - k) * sizeof *q->cell);
    }
    gr_kv_items(q)[k] = c;
    q->n++;
}

void gr_kv_index_cut(struct gr_kv_seq *q, uint32_t i, uint32_t j)
{
    uint32_t *item = gr_kv_items(q);
    changed(q, i);
    if (i < q->n - j) {
        memmove(item + (j - i), item, i * sizeof *item);
        q->first += j - i;
    } else {
        memmove(item + i, item + j, (q->n - j) * sizeof *item);
    }
    q->n -= j - i;
    if (!q->n)
        q->first = 0;
}

void gr_kv_index_remove(struct gr_kv *kv, struct gr_kv_seq *q, uint32_t c)
{
    uint32_t k = gr_kv_items(q)[q->n - 1] == c ? q->n - 1 : before(kv, q, c);
    gr_kv_index_cut(q, k, k + 1);
}

/* ---- sorting mostly sorted items: ascending runs are merged, in O(n log runs) ---- */

/* The end of the ascending run that begins at item i. */
static uint32_t run_end(const struct gr_kv *kv, const uint32_t *item, uint32_t i, uint32_t n)
{
    if (i == n)
        return n;
    do
        i++;
    while (i < n && !gr_kv_index_less(kv, item[i], item[i - 1]));
    return i;
}

/* Merges neighbouring runs of `from` in pairs into `to`. */
static void merge_pass(const struct gr_kv *kv, const uint32_t *from, uint32_t *to, uint32_t n)
{
    for (uint32_t i = 0, k = 0; k < n;) {
        uint32_t mid = run_end(kv, from, i, n), end = run_end(kv, from, mid, n), j = mid;
        while (i < mid && j < end)
            to[k++] = gr_kv_index_less(kv, from[j], from[i]) ? from[j++] : from[i++];
        while (i < mid)
            to[k++] = from[i++];
        while (j < end)
            to[k++] = from[j++];
        i = end;
    }
}

static void sort(struct gr_kv *kv, struct gr_kv_seq *q)
{
    uint32_t *from = gr_kv_items(q), *to = kv->scratch;
    while (run_end(kv, from, 0, q->n) < q->n) {
        merge_pass(kv, from, to, q->n);
        uint32_t *t = from;
        from = to, to = t;
    }
    if (q->n && from == kv->scratch)
        memcpy(to, from, q->n * sizeof *to);
}

void gr_kv_index_sort(struct gr_kv *kv, int32_t seq)
{
    struct gr_kv_seq *q = &kv->seq[seq];
    uint32_t *item = gr_kv_items(q), n = 0;
    changed(q, 0);
    for (uint32_t i = 0; i < q->n; i++)
        if (gr_kv_has(kv, item[i], seq))
            item[n++] = item[i];
    q->n = n;
    sort(kv, q);
}
