/* PLaMo 2 and 3: the segmentation with the largest sum of scores, as for Unigram, but computed in
 * integers from the end of the text to its beginning; of equal sums the one that begins with the
 * longer token wins. Any character may be encoded as bytes, at a cost above that of any token. */
#include <math.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/text_impl.h"
#include "text/utf8.h"

#define SCALE 1e4
#define UNKNOWN_COST 10000000 /* cost of a character as bytes, in units of 1 / SCALE */
#define COST_LIMIT 1e9        /* scores are clamped to it, so that sums over a text fit 64 bits */

/* Best segmentation from a byte to the end of the text. */
struct best {
    int64_t cost;
    uint32_t next; /* end of its first token */
    int32_t id;    /* -1: a character as bytes */
};

int gr_plamo_open(const struct gr_vocab *v)
{
    for (int b = 0; b < 256; b++)
        if (v->byte_id[b] < 0)
            return gr_fail(GR_E_CORRUPT,
                           "tokenizer.ggml.tokens: <0x%02X> is missing; tokenizer \"plamo2\" needs "
                           "a token for each byte",
                           b);
    return 0;
}

static int64_t cost(const struct gr_vocab *v, int32_t id)
{
    double c = -(double)v->score[id] * SCALE;
    return llrint(GR_MIN(GR_MAX(c, -COST_LIMIT), COST_LIMIT));
}

/* Computes best[i] from the entries after it. */
static int step(struct gr_job *j, const char *p, size_t i, size_t n, struct best *best)
{
    const struct gr_vocab *v = j->v;
    size_t len = gr_utf8_step(p + i, n - i);
    uint32_t node = 0;
    bool any = false;
    size_t k = i;
    for (; k < n && (node = gr_trie_step(&v->trie, node, (uint8_t)p[k])); k++) {
        int32_t id = v->trie.id[node];
        if (id < 0 || v->type[id] == GR_TOKEN_UNUSED || !gr_token_from_text(v, id))
            continue;
        int64_t c = best[k + 1].cost + cost(v, id);
        if (!any || c <= best[i].cost)
            best[i] = (struct best){c, (uint32_t)k + 1, id};
        any = true;
    }
    int64_t c = best[i + len].cost + UNKNOWN_COST;
    if (!any || c < best[i].cost)
        best[i] = (struct best){c, (uint32_t)(i + len), -1};
    return gr_job_count(j, k - i);
}

int gr_plamo_run(struct gr_job *j, const char *p, size_t n)
{
    struct best *best = gr_calloc(n + 1, sizeof *best);
    int rc = 0;
    if (!best)
        return GR_E_NOMEM_HOST;
    for (size_t i = n; i-- > 0 && !rc;)
        rc = step(j, p, i, n, best);
    for (size_t i = 0; i < n && !rc; i = best[i].next)
        rc = best[i].id >= 0 ? gr_job_push(j, best[i].id)
                             : gr_job_push_bytes(j, p + i, best[i].next - i);
    gr_free(best);
    return rc;
}
