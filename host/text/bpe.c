/* BPE by a list of merges: the text is split into words, each word into bytes (raw vocabularies:
 * characters), and neighbours are merged in the order of the list. A symbol's value is its token
 * id, NONE when it has none.
 *
 * Merges are sorted by the ids of the left half, then of the right half, and found by a binary
 * search among those of a left half, so that no file can make the lookup slow. */
#include <string.h>

#include "gr/status.h"
#include "text/pre.h"
#include "text/text_impl.h"
#include "text/utf8.h"

#define NONE UINT32_MAX

struct merge {
    int32_t left, right, result;
    uint32_t rank;
};

struct gr_bpe {
    uint32_t *start; /* [n_tok + 1] the merges of left half i are merge[start[i], start[i + 1]) */
    struct merge *merge;
};

static const struct merge *find(const struct gr_bpe *b, uint32_t left, uint32_t right)
{
    uint32_t lo = b->start[left], end = b->start[left + 1], hi = end;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint32_t)b->merge[mid].right < right)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < end && (uint32_t)b->merge[lo].right == right ? &b->merge[lo] : NULL;
}

static bool pair(void *ctx, const struct gr_symbol *l, const struct gr_symbol *r, uint32_t *rank,
                 uint32_t *value)
{
    const struct merge *m =
        l->value != NONE && r->value != NONE ? find(ctx, l->value, r->value) : NULL;
    if (!m)
        return false;
    *rank = m->rank;
    *value = (uint32_t)m->result;
    return true;
}

/* --- opening --- */

/* Resolves merge i of the source to token ids; a merge whose result cannot come from text (a
 * control token) gets rank NONE. */
static int resolve(const struct gr_vocab *v, struct gr_str text, uint64_t i, struct merge *m)
{
    const char *blank = text.n ? memchr(text.p + 1, ' ', text.n - 1) : NULL;
    size_t n_left = blank ? (size_t)(blank - text.p) : 0, n_right = blank ? text.n - n_left - 1 : 0;
    if (!blank || !n_right)
        return gr_fail(
            GR_E_CORRUPT,
            "tokenizer.ggml.merges: item %llu is %s, not two tokens with a blank between them",
            (unsigned long long)i, gr_quote(text.p, text.n));
    uint32_t left = gr_trie_walk(&v->trie, 0, text.p, n_left),
             right = gr_trie_walk(&v->trie, 0, blank + 1, n_right);
    uint32_t both = left ? gr_trie_walk(&v->trie, left, blank + 1, n_right) : 0;
    const int32_t *id = v->trie.id;
    if (!right || !both || id[left] < 0 || id[right] < 0 || id[both] < 0)
        return gr_fail(GR_E_CORRUPT, "tokenizer.ggml.merges: item %llu is %s: %s is no token",
                       (unsigned long long)i, gr_quote(text.p, text.n),
                       !left || id[left] < 0     ? "the left half"
                       : !right || id[right] < 0 ? "the right half"
                                                 : "what it makes");
    *m = (struct merge){id[left], id[right], id[both],
                        gr_token_from_text(v, id[both]) ? (uint32_t)i : NONE};
    return 0;
}

/* Stable counting sort of n merges by left (or right) half; start[k + 1] receives the end of those
 * with half k. */
static void sort_by(bool by_left, const struct merge *in, struct merge *out, size_t n,
                    uint32_t *start, int32_t n_tok)
{
    memset(start, 0, ((size_t)n_tok + 1) * sizeof *start);
    for (size_t i = 0; i < n; i++)
        start[(by_left ? in[i].left : in[i].right) + 1]++;
    for (int32_t k = 0; k < n_tok; k++)
        start[k + 1] += start[k];
    for (size_t i = 0; i < n; i++)
        out[start[by_left ? in[i].left : in[i].right]++] = in[i];
    memmove(start + 1, start, (size_t)n_tok * sizeof *start);
    start[0] = 0;
}

/* Fills b from the merges of the source; of equal ones the first counts. */
static int load(struct gr_bpe *b, const struct gr_vocab *v, const struct gr_vocab_source *s)
{
    struct merge *scratch = gr_calloc(s->n_merges, sizeof *scratch);
    b->merge = gr_calloc(s->n_merges, sizeof *b->merge);
    b->start = gr_calloc((size_t)v->n_tok + 1, sizeof *b->start);
    int rc = scratch && b->merge && b->start ? 0 : GR_E_NOMEM_HOST;
    size_t n = 0;
    for (uint64_t i = 0; i < s->n_merges && !rc; i++) {
        rc = resolve(v, s->merges[i], i, &b->merge[n]);
        n += !rc && b->merge[n].rank != NONE;
    }
    if (!rc) {
        sort_by(false, b->merge, scratch, n, b->start, v->n_tok);
        sort_by(true, scratch, b->merge, n, b->start, v->n_tok);
    }
    gr_free(scratch);
    return rc;
}

int gr_bpe_open(struct gr_vocab *v, const struct gr_vocab_source *s)
{
    if (s->n_merges > GR_VOCAB_MAX_MERGES)
        return gr_fail(GR_E_CORRUPT, "tokenizer.ggml.merges: %llu items, more than %u",
                       (unsigned long long)s->n_merges, GR_VOCAB_MAX_MERGES);
    if (!s->merges)
        return gr_fail(GR_E_CORRUPT,
                       "tokenizer.ggml.merges is missing; tokenizer \"%.*s\" needs it",
                       (int)s->model.n, s->model.p);
    v->bpe = gr_calloc(1, sizeof *v->bpe);
    return v->bpe ? load(v->bpe, v, s) : GR_E_NOMEM_HOST;
}

void gr_bpe_free(struct gr_bpe **bpe)
{
    if (!*bpe)
        return;
    gr_free((*bpe)->start);
    gr_free((*bpe)->merge);
    gr_free(*bpe);
    *bpe = NULL;
}

/* --- tokenizing --- */

/* Returns the token whose bytes are exactly this word, or -1. */
static int32_t whole_word(const struct gr_vocab *v, const char *p, size_t n)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n && (node || !i); i++) {
        char letter[4];
        size_t len =
            v->raw ? (letter[0] = p[i], 1) : gr_utf8_put(gr_byte_letter((uint8_t)p[i]), letter);
        node = gr_trie_walk(&v->trie, node, letter, len);
    }
    int32_t id = node ? v->trie.id[node] : -1;
    return id >= 0 && gr_token_from_text(v, id) ? id : -1;
}

/* Adds the character p[0, n) of a raw vocabulary, as one symbol or as bytes. */
static int add_character(struct gr_job *j, uint32_t start, const char *p, size_t n)
{
    int32_t id = gr_trie_find(&j->v->trie, p, n);
    if (id >= 0 && gr_token_from_text(j->v, id))
        return gr_merge_add(&j->merge, start, (uint32_t)n, (uint32_t)id);
    for (size_t i = 0; i < n; i++)
        if (j->v->byte_id[(uint8_t)p[i]] < 0)
            return gr_merge_add(&j->merge, start, (uint32_t)n, NONE);
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = gr_merge_add(&j->merge, start + i, 1, (uint32_t)j->v->byte_id[(uint8_t)p[i]]);
    return rc;
}

static int split_word(struct gr_job *j, const char *p, size_t n)
{
    int rc = 0;
    for (size_t i = 0, len; i < n && !rc; i += len) {
        len = j->v->raw ? gr_utf8_step(p + i, n - i) : 1;
        rc = j->v->raw
                 ? add_character(j, (uint32_t)i, p + i, len)
                 : gr_merge_add(&j->merge, (uint32_t)i, 1, (uint32_t)j->v->byte_id[(uint8_t)p[i]]);
    }
    return rc;
}

static bool only_newlines(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] == '\n')
        i++;
    return i == n;
}

/* Tokenizes one word, n > 0. */
static int run_word(struct gr_job *j, const char *p, size_t n)
{
    const struct gr_vocab *v = j->v;
    unsigned pre = gr_pre_flags(v->pre);
    if (pre & GR_PRE_DROP && gr_char_is_blank(p, n))
        return 0;
    bool whole = pre & GR_PRE_WHOLE_WORDS || (pre & GR_PRE_LINES && only_newlines(p, n));
    int32_t id = whole ? whole_word(v, p, n) : -1;
    if (id >= 0)
        return gr_job_push(j, id);
    struct gr_merge *m = &j->merge;
    gr_merge_clear(m);
    int rc = split_word(j, p, n);
    if (!rc)
        rc = gr_merge_run(m, pair, v->bpe);
    const struct gr_symbol *s = m->symbols.data;
    for (uint32_t i = 0; i != GR_NO_SYMBOL && !rc; i = s[i].next)
        rc = s[i].value != NONE  ? gr_job_push(j, (int32_t)s[i].value)
             : pre & GR_PRE_DROP ? 0
                                 : gr_job_push_bytes(j, p + s[i].start, s[i].len);
    return rc;
}

/* Splits valid UTF-8 into words and tokenizes each. */
static int run_words(struct gr_job *j, const char *p, size_t n)
{
    const uint32_t *end = NULL;
    size_t n_end = 0;
    int rc = j->splitter ? 0 : gr_splitter_new(&j->splitter, j->v->pre);
    if (!rc)
        rc = gr_splitter_run(j->splitter, p, n, &end, &n_end);
    for (size_t i = 0, a = 0; i < n_end && !rc; a = end[i++])
        rc = run_word(j, p + a, end[i] - a);
    return rc;
}

int gr_bpe_run(struct gr_job *j, const char *p, size_t n)
{
    bool drop = gr_pre_flags(j->v->pre) & GR_PRE_DROP;
    int rc = 0;
    if (drop ? j->v->lowercase : j->v->raw) {
        j->text.n = 0;
        rc = drop ? gr_job_lower(j, p, n) : gr_job_escape(j, p, n);
        p = j->text.data, n = j->text.n;
    }
    for (size_t i = 0, valid, len; i < n && !rc;
         i = valid + len) { /* invalid UTF-8 is a word of its own */
        uint32_t cp;
        int k = 0;
        for (valid = i; valid < n && (k = gr_utf8_next(p + valid, n - valid, &cp)) > 0;)
            valid += (size_t)k;
        len = valid == n ? 0 : k < 0 ? (size_t)-k : n - valid;
        if (valid > i)
            rc = run_words(j, p + i, valid - i);
        if (!rc && len)
            rc = run_word(j, p + valid, len);
    }
    return rc;
}
