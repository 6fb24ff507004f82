#include "text/trie.h"

#include <stdbool.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

/* Sort key of a string: most comparisons need only its first eight bytes. */
struct entry {
    uint64_t head; /* first eight bytes, big-endian, padded with 0 */
    int32_t id;
};

static bool less(const struct gr_texts *texts, const struct entry *a, const struct entry *b)
{
    if (a->head != b->head)
        return a->head < b->head;
    size_t na, nb;
    const char *ta = gr_texts_at(texts, a->id, &na), *tb = gr_texts_at(texts, b->id, &nb);
    int c = memcmp(ta, tb, GR_MIN(na, nb));
    return c ? c < 0 : na < nb;
}

/* Merges the sorted from[lo, mid) and from[mid, hi) into to[lo, hi). */
static void merge(const struct gr_texts *texts, const struct entry *from, struct entry *to,
                  size_t lo, size_t mid, size_t hi)
{
    for (size_t a = lo, b = mid, k = lo; k < hi; k++)
        to[k] = b == hi || (a < mid && !less(texts, from + b, from + a)) ? from[a++] : from[b++];
}

/* Sorts ids by text: a merge sort of our own, since qsort may allocate without gr_alloc. */
static int sort(const struct gr_texts *texts, int32_t *ids, size_t n)
{
    struct entry *e = gr_calloc(n, sizeof *e), *to = gr_calloc(n, sizeof *to);
    if (!e || !to) {
        gr_free(e);
        gr_free(to);
        return GR_E_NOMEM_HOST;
    }
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *p = gr_texts_at(texts, ids[i], &len);
        e[i].id = ids[i];
        for (size_t k = 0; k < 8; k++)
            e[i].head = e[i].head << 8 | (k < len ? (uint8_t)p[k] : 0);
    }
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t i = 0; i < n; i += 2 * run)
            merge(texts, e, to, i, GR_MIN(i + run, n), GR_MIN(i + 2 * run, n));
        struct entry *t = e;
        e = to, to = t;
    }
    for (size_t i = 0; i < n; i++)
        ids[i] = e[i].id;
    gr_free(e);
    gr_free(to);
    return 0;
}

/* Returns the number of nodes of the trie of the sorted ids, root included; 0 when two strings are
 * equal, whose ids go to equal[]. */
static uint64_t count_nodes(const struct gr_texts *texts, const int32_t *ids, size_t n,
                            int32_t equal[2])
{
    uint64_t nodes = 1;
    size_t n_prev = 0;
    const char *prev = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t len, same = 0;
        const char *p = gr_texts_at(texts, ids[i], &len);
        while (same < len && same < n_prev && p[same] == prev[same])
            same++;
        if (prev && same == len && len == n_prev)
            return equal[0] = ids[i - 1], equal[1] = ids[i], 0;
        nodes += len - same;
        prev = p, n_prev = len;
    }
    return nodes;
}

/* State of a node under construction: the strings below it and its depth. */
struct range {
    uint32_t lo, hi, depth;
};

/* Fills the arrays level by level: the children of node i come from the strings of its range. */
static void fill(struct gr_trie *t, const struct gr_texts *texts, const int32_t *ids, size_t n,
                 struct range *r)
{
    uint32_t n_node = 1;
    r[0] = (struct range){0, (uint32_t)n, 0};
    for (uint32_t i = 0; i < n_node; i++) {
        uint32_t lo = r[i].lo, hi = r[i].hi, depth = r[i].depth;
        size_t len;
        (void)(n ? gr_texts_at(texts, ids[lo], &len) : NULL);
        t->id[i] = n && len == depth ? ids[lo++] : -1;
        t->first[i] = n_node;
        for (uint32_t k = lo; k < hi; k++) {
            uint8_t c = (uint8_t)gr_texts_at(texts, ids[k], &len)[depth];
            if (k == lo || c != t->label[n_node - 1]) {
                t->label[n_node] = c;
                r[n_node++] = (struct range){k, k, depth + 1};
            }
            r[n_node - 1].hi = k + 1;
        }
    }
    t->first[n_node] = n_node;
}

int gr_trie_build(struct gr_trie *t, const struct gr_texts *texts, int32_t *ids, size_t n,
                  int32_t equal[2])
{
    struct range *r = NULL;
    int rc = sort(texts, ids, n);
    if (rc)
        return rc;
    uint64_t nodes = count_nodes(texts, ids, n, equal);
    if (!nodes)
        return gr_fail(GR_E_CORRUPT, "tokens %d and %d have the same text", equal[0], equal[1]);
    t->first = gr_calloc(nodes + 1, sizeof *t->first);
    t->id = gr_calloc(nodes, sizeof *t->id);
    t->label = gr_calloc(nodes, sizeof *t->label);
    r = gr_calloc(nodes, sizeof *r);
    if (t->first && t->id && t->label && r)
        fill(t, texts, ids, n, r);
    else
        rc = GR_E_NOMEM_HOST;
    gr_free(r);
    return rc;
}

void gr_trie_fini(struct gr_trie *t)
{
    gr_free(t->first);
    gr_free(t->id);
    gr_free(t->label);
    *t = (struct gr_trie){0};
}
