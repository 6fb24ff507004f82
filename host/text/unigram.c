/* Unigram: the segmentation with the largest sum of scores (Viterbi) of the normalised text. */
#include <math.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/charsmap.h"
#include "text/text_impl.h"
#include "text/utf8.h"

#define GROWTH 32 /* limit, times; the longest replacement (NFKC of U+FDFA) makes 33 bytes of 3 */
#define UNK_PENALTY 10.0f /* an unknown character scores this much less than the worst token */

/* Best segmentation up to a byte of the text. */
struct best {
    double score;
    uint32_t start; /* start of its last token */
    uint32_t next;  /* on the best path: end of the token after it */
    int32_t id;     /* its last token, or -1 for an unknown character */
};

static bool usable(const struct gr_vocab *v, int32_t id)
{
    return v->type[id] != GR_TOKEN_UNUSED && gr_token_from_text(v, id);
}

void gr_unigram_open(struct gr_vocab *v)
{
    float least = 0;
    bool any = false;
    for (int32_t i = 0; i < v->n_tok; i++)
        if (v->type[i] == GR_TOKEN_NORMAL && (!any || v->score[i] < least))
            least = v->score[i], any = true;
    v->unk_score = least - UNK_PENALTY;
}

/* --- normalisation --- */

/* Normalises the character at p[0, n) to *to, *n_to; returns the number of bytes consumed. */
static size_t normal(const struct gr_vocab *v, const char *p, size_t n, const char **to,
                     size_t *n_to)
{
    uint32_t cp;
    size_t k = v->charsmap ? gr_charsmap_match(v->charsmap, p, n, to, n_to) : 0;
    if (k)
        return k;
    int len = gr_utf8_next(p, n, &cp);
    *to = len > 0 ? p : GR_UTF8_REPLACEMENT;
    *n_to = len > 0 ? (size_t)len : 3;
    return len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n;
}

/* Writer of normalised text to j->text. */
struct normal {
    struct gr_job *j;
    bool squeeze, begun; /* squeeze: drop blanks at both ends, collapse runs to one; begun:
                            something else was written */
    size_t blanks;       /* blanks not written yet */
};

static int put_blanks(struct normal *t)
{
    int rc = 0;
    for (; t->blanks && !rc; t->blanks--)
        rc = gr_vec_append(&t->j->text, GR_SPACE, GR_SPACE_BYTES, 1);
    return rc;
}

/* Appends to[0, n) with U+2581 for blanks. */
static int put_text(struct normal *t, const char *to, size_t n)
{
    int rc = 0;
    for (size_t k = 0, end; k < n && !rc; k = end) {
        for (end = k; end < n && to[end] != ' ';)
            end++;
        if (end == k) {
            t->blanks++, end++;
            continue;
        }
        if (t->squeeze)
            t->blanks = t->begun ? t->blanks > 0 : t->j->v->add_space_prefix;
        t->begun = true;
        rc = put_blanks(t);
        if (!rc)
            rc = gr_vec_append(&t->j->text, to + k, end - k, 1);
    }
    return rc;
}

/* Sets j->text to the normalised text. Where the vocabulary says so, blanks at both ends are
 * dropped and runs collapse to one; all become U+2581. The growth limit counts the output of
 * replacements before that, blanks included. */
static int normalise(struct gr_job *j, const char *p, size_t n)
{
    const struct gr_vocab *v = j->v;
    struct normal t = {j, v->remove_extra_whitespaces, !v->remove_extra_whitespaces, 0};
    size_t limit = GROWTH * n + 4096, made = 0;
    int rc =
        v->add_space_prefix && t.begun ? gr_vec_append(&j->text, GR_SPACE, GR_SPACE_BYTES, 1) : 0;
    for (size_t i = 0, n_to = 0; i < n && !rc; made += n_to) {
        const char *to = NULL;
        i += normal(v, p + i, n - i, &to, &n_to);
        if (n_to > limit - made)
            return gr_fail(GR_E_TOO_LARGE, "normalisation makes more than %zu bytes of %zu", limit,
                           n);
        rc = put_text(&t, to, n_to);
    }
    return rc || t.squeeze ? rc : put_blanks(&t);
}

/* --- the best path --- */

static void offer(struct best *b, double score, uint32_t start, int32_t id)
{
    if (score > b->score)
        *b = (struct best){score, start, 0, id};
}

/* Fills best[0, n] for text p[0, n): every token that begins at position i is offered to the
 * position where it ends. */
static int search(struct gr_job *j, const char *p, size_t n, struct best *best)
{
    const struct gr_vocab *v = j->v;
    int rc = 0;
    for (size_t i = 1; i <= n; i++)
        best[i].score = -INFINITY;
    for (size_t i = 0, k, step; i < n && !rc; i += step) {
        step = gr_utf8_step(p + i, n - i);
        double score = best[i].score;
        bool whole = false; /* a token covers exactly this character */
        uint32_t node = 0;
        for (k = i; k < n && (node = gr_trie_step(&v->trie, node, (uint8_t)p[k])); k++) {
            int32_t id = v->trie.id[node];
            if (id < 0 || !usable(v, id))
                continue;
            whole = whole || k + 1 - i == step;
            offer(&best[k + 1], score + (v->type[id] == GR_TOKEN_USER_DEFINED ? 0 : v->score[id]),
                  (uint32_t)i, id);
        }
        if (!whole)
            offer(&best[i + step], score + v->unk_score, (uint32_t)i, -1);
        rc = gr_job_count(j, k - i);
    }
    return rc;
}

/* Pushes the tokens of the path to best[n]; a run of unknown characters becomes one unknown token,
 * or bytes. */
static int emit(struct gr_job *j, const char *p, size_t n, struct best *best)
{
    for (size_t end = n; end; end = best[end].start)
        best[best[end].start].next = (uint32_t)end;
    int rc = 0;
    bool was_unknown = false;
    for (size_t i = 0, end; i < n && !rc; i = end) {
        end = best[i].next;
        int32_t id = best[end].id;
        if (id >= 0)
            rc = gr_job_push(j, id), was_unknown = false;
        else if (!was_unknown ||
                 ((int32_t *)j->ids->data)[j->ids->n - 1] != j->v->special[GR_SPECIAL_UNK])
            rc = gr_job_push_bytes(j, p + i, end - i), was_unknown = j->ids->n > 0;
    }
    return rc;
}

int gr_unigram_run(struct gr_job *j, const char *p, size_t n)
{
    j->text.n = 0;
    int rc = normalise(j, p, n);
    size_t len = j->text.n;
    if (rc || !len)
        return rc;
    struct best *best = gr_calloc(len + 1, sizeof *best);
    if (!best)
        return GR_E_NOMEM_HOST;
    rc = search(j, j->text.data, len, best);
    if (!rc)
        rc = emit(j, j->text.data, len, best);
    gr_free(best);
    return rc;
}
