/* Merging neighbouring symbols, best pair first, by a binary heap with lazy deletion: candidates
 * whose pair has changed since are dropped when they reach the top. Each join adds at most two
 * candidates, so n symbols cost O(n log n). */
#include "base/checked.h"
#include "text/text_impl.h"

static struct gr_symbol *symbol(struct gr_merge *m, uint32_t i)
{
    return (struct gr_symbol *)m->symbols.data + i;
}

static void sift_down(struct gr_candidate *heap, size_t n, size_t i)
{
    struct gr_candidate x = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].key < heap[child].key)
            child++;
        if (x.key <= heap[child].key)
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void sift_up(struct gr_candidate *heap, size_t i)
{
    struct gr_candidate x = heap[i];
    for (; i && x.key < heap[(i - 1) / 2].key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

/* Makes the candidate of symbol `left` and its right neighbour; false when they may not join. */
static bool candidate(struct gr_merge *m, uint32_t left, struct gr_candidate *c)
{
    const struct gr_symbol *l = symbol(m, left);
    if (l->next == GR_NO_SYMBOL)
        return false;
    const struct gr_symbol *r = symbol(m, l->next);
    uint32_t rank;
    if (!m->pair(m->ctx, l, r, &rank, &c->value))
        return false;
    c->key = (uint64_t)rank << 32 | left;
    c->len = l->len + r->len;
    return true;
}

static int append(struct gr_merge *m, uint32_t left)
{
    struct gr_candidate c;
    return candidate(m, left, &c) ? gr_vec_append(&m->candidates, &c, 1, sizeof c) : 0;
}

static int push(struct gr_merge *m, uint32_t left)
{
    size_t had = m->candidates.n;
    int rc = append(m, left);
    if (m->candidates.n > had)
        sift_up(m->candidates.data, had);
    return rc;
}

static struct gr_candidate pop(struct gr_merge *m)
{
    struct gr_candidate *heap = m->candidates.data, top = heap[0];
    size_t n = --m->candidates.n;
    heap[0] = heap[n];
    if (n)
        sift_down(heap, n, 0);
    return top;
}

void gr_merge_clear(struct gr_merge *m)
{
    m->symbols.n = m->candidates.n = 0;
}

int gr_merge_add(struct gr_merge *m, uint32_t start, uint32_t len, uint32_t value)
{
    uint32_t i = (uint32_t)m->symbols.n;
    struct gr_symbol s = {start, len, i ? i - 1 : GR_NO_SYMBOL, GR_NO_SYMBOL, value};
    if (i)
        symbol(m, i - 1)->next = i;
    return gr_vec_append(&m->symbols, &s, 1, sizeof s);
}

/* Joins the right neighbour to symbol `left` and adds the two new pairs as candidates. */
static int join(struct gr_merge *m, uint32_t left, uint32_t value)
{
    struct gr_symbol *l = symbol(m, left), *r = symbol(m, l->next);
    l->len += r->len;
    l->value = value;
    r->len = 0;
    l->next = r->next;
    if (l->next != GR_NO_SYMBOL)
        symbol(m, l->next)->prev = left;
    int rc = l->prev != GR_NO_SYMBOL ? push(m, l->prev) : 0;
    return rc ? rc : push(m, left);
}

int gr_merge_run(struct gr_merge *m, gr_pair_fn *pair, void *ctx)
{
    int rc = 0;
    m->pair = pair, m->ctx = ctx;
    for (uint32_t i = 0; i < m->symbols.n && !rc; i++)
        rc = append(m, i);
    for (size_t i = m->candidates.n / 2; i-- > 0;)
        sift_down(m->candidates.data, m->candidates.n, i);
    while (m->candidates.n && !rc) {
        struct gr_candidate c = pop(m);
        struct gr_symbol *l = symbol(m, (uint32_t)c.key);
        if (l->len && l->next != GR_NO_SYMBOL && l->len + symbol(m, l->next)->len == c.len)
            rc = join(m, (uint32_t)c.key, c.value);
    }
    return rc;
}

void gr_merge_fini(struct gr_merge *m)
{
    gr_vec_fini(&m->symbols);
    gr_vec_fini(&m->candidates);
}
