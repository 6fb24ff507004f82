/* Trie: a set of byte strings, each with an id.
 *
 * Nodes are numbered level by level, so the children of a node are contiguous and those of node i
 * end where those of node i + 1 begin: three flat arrays, nine bytes per node, no pointers. Node 0
 * is the root. */
#ifndef GR_TEXT_TRIE_H
#define GR_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* n strings in one buffer: string i is pool[off[i], off[i + 1]). */
struct gr_texts {
    char *pool;
    uint32_t *off; /* [n + 1] */
};

static inline const char *gr_texts_at(const struct gr_texts *t, int32_t i, size_t *n)
{
    *n = t->off[i + 1] - t->off[i];
    return t->pool + t->off[i];
}

struct gr_trie {
    uint32_t *first; /* [n_node + 1] first child of a node */
    int32_t *id;     /* [n_node] id of the string that ends here, or -1 */
    uint8_t *label;  /* [n_node] the byte that leads here */
};

/* Builds the trie of the texts of ids[0, n), which must not be empty; sorts `ids` by text. When two
 * are equal: GR_E_CORRUPT, and equal[0, 2) receives their ids. Free with gr_trie_fini, also after
 * failure. */
int gr_trie_build(struct gr_trie *t, const struct gr_texts *texts, int32_t *ids, size_t n,
                  int32_t equal[2]);
void gr_trie_fini(struct gr_trie *t);

/* Returns the child of `node` by byte c, or 0. */
static inline uint32_t gr_trie_step(const struct gr_trie *t, uint32_t node, uint8_t c)
{
    uint32_t lo = t->first[node], n = t->first[node + 1] - lo;
    const uint8_t *p = t->label + lo;
    if (n && *p == c)
        return lo;
    p = memchr(p, c, n);
    return p ? (uint32_t)(p - t->label) : 0;
}

/* Returns the node that n > 0 bytes lead to from `node`, or 0. */
static inline uint32_t gr_trie_walk(const struct gr_trie *t, uint32_t node, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        node = gr_trie_step(t, node, (uint8_t)p[i]);
        if (!node)
            return 0;
    }
    return node;
}

/* Returns the id of exactly these bytes, or -1. */
static inline int32_t gr_trie_find(const struct gr_trie *t, const char *p, size_t n)
{
    uint32_t node = gr_trie_walk(t, 0, p, n);
    return node ? t->id[node] : -1;
}

#endif
