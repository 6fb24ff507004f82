#include "grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gr/sample.h"
#include "gr/status.h"

struct text {
    uint64_t key; /* the first eight bytes, in the order of texts */
    const char *p;
    uint32_t n;
    int32_t id;
};

static int part_of(const struct text *x)
{
    return x->n > GR_TOKEN_SHORT;
}

static int compare(const void *a, const void *b)
{
    const struct text *x = a, *y = b;
    if (part_of(x) != part_of(y))
        return part_of(x) - part_of(y);
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    int order = memcmp(x->p, y->p, GR_MIN(x->n, y->n));
    return order          ? order
           : x->n != y->n ? (x->n < y->n ? -1 : 1)
                          : (x->id > y->id) - (x->id < y->id);
}

static uint64_t key_of(const char *p, size_t n)
{
    uint64_t key = 0;
    for (size_t i = 0; i < 8; i++)
        key = key << 8 | (i < n ? (uint8_t)p[i] : 0);
    return key;
}

/* Lists the tokens that have bytes and do not end a text, and fills the masks. */
static size_t list_texts(struct gr_token_trie *t, struct text *text)
{
    size_t n_text = 0;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const char *p;
        size_t n;
        bool eog = gr_vocab_is_eog(t->vocab, id);
        if (!eog && !gr_vocab_is_generated(t->vocab, id))
            continue;
        (eog ? t->eog : t->any)[id / 32] |= 1u << id % 32;
        if (eog || gr_vocab_piece(t->vocab, id, false, &p, &n) || !n)
            continue;
        text[n_text++] = (struct text){key_of(p, n), p, (uint32_t)n, id};
    }
    return n_text;
}

/* Bytes that two neighbours have in common. */
static uint32_t common(const struct text *a, const struct text *b)
{
    uint32_t n = 0, most = part_of(a) == part_of(b) ? GR_MIN(a->n, b->n) : 0;
    while (n < most && a->p[n] == b->p[n])
        n++;
    return n;
}

static int allocate(struct gr_token_trie *t, const struct text *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct text *x = &text[i];
        struct gr_token_part *part = &t->part[part_of(x)];
        part->begin = part_of(x) ? t->part[0].end : 0;
        t->n_node += x->n - (i ? common(x - 1, x) : 0);
        part->end = t->n_node;
        part->max_depth = GR_MAX(part->max_depth, x->n);
    }
    t->label = gr_calloc(t->n_node, sizeof *t->label);
    t->depth = gr_calloc(t->n_node, sizeof *t->depth);
    t->next = gr_calloc(t->n_node, sizeof *t->next);
    t->token = gr_calloc(t->n_node, sizeof *t->token);
    return t->label && t->depth && t->next && t->token ? 0 : GR_E_NOMEM_HOST;
}

/* Writes the nodes; path: [gr_token_trie_depth] scratch, the nodes of the text before. */
static void fill(struct gr_token_trie *t, const struct text *text, size_t n, uint32_t *path)
{
    uint32_t node = 0, depth = 0;
    for (size_t i = 0; i < n; i++) {
        const struct text *x = &text[i];
        uint32_t keep = i ? common(x - 1, x) : 0;
        for (; depth > keep; depth--)
            t->next[path[depth - 1]] = node;
        for (; depth < x->n; depth++, node++) {
            path[depth] = node;
            t->label[node] = (uint8_t)x->p[depth], t->depth[node] = (uint16_t)(depth + 1);
            t->token[node] = -1;
        }
        uint32_t last = path[x->n - 1];
        t->same[x->id] = t->token[last];
        t->token[last] = x->id;
    }
    for (; depth > 0; depth--)
        t->next[path[depth - 1]] = node;
}

static int build(struct gr_token_trie *t)
{
    size_t n_vocab = (size_t)t->n_vocab;
    struct text *text = gr_calloc(n_vocab, sizeof *text);
    uint32_t *path = NULL;
    t->same = gr_calloc(n_vocab, sizeof *t->same);
    t->eog = gr_calloc((size_t)t->n_word, sizeof *t->eog);
    t->any = gr_calloc((size_t)t->n_word, sizeof *t->any);
    int rc = text && t->same && t->eog && t->any ? 0 : GR_E_NOMEM_HOST;
    size_t n = rc ? 0 : list_texts(t, text);
    if (!rc) {
        qsort(text, n, sizeof *text, compare);
        rc = allocate(t, text, n);
    }
    if (!rc && !(path = gr_calloc(gr_token_trie_depth(t), sizeof *path)))
        rc = GR_E_NOMEM_HOST;
    if (!rc)
        fill(t, text, n, path);
    gr_free(text);
    gr_free(path);
    return rc;
}

int gr_token_trie_new(struct gr_token_trie **out, const struct gr_vocab *vocab)
{
    struct gr_token_trie *t = gr_calloc(1, sizeof *t);
    *out = t;
    if (!t)
        return GR_E_NOMEM_HOST;
    t->vocab = vocab, t->n_vocab = gr_vocab_size(vocab);
    t->n_word = gr_sample_mask_words(t->n_vocab);
    int rc = build(t);
    if (rc)
        gr_token_trie_free(out);
    return rc;
}

void gr_token_trie_free(struct gr_token_trie **trie)
{
    struct gr_token_trie *t = trie ? *trie : NULL;
    if (!t)
        return;
    gr_free(t->label);
    gr_free(t->depth);
    gr_free(t->next);
    gr_free(t->token);
    gr_free(t->same);
    gr_free(t->eog);
    gr_free(t->any);
    gr_free(t);
    *trie = NULL;
}
