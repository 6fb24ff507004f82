/* Sessions of vectors (embeddings, classifier scores): the output rows they need, and pooling. */
#include "engine/vectors.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/session.h"
#include "gr/status.h"

/* ---- parameters ---- */

const char *gr_pooling_name(enum gr_pooling pooling)
{
    static const char *const names[] = {"model", "none", "mean", "cls", "last", "rank"};
    return (unsigned)pooling < GR_COUNT(names) ? names[pooling] : "?";
}

int gr_vectors_fill(const struct gr_model *m, struct gr_session_params *p)
{
    p->embeddings |= m->arch->no_logits;
    if (p->embeddings && m->hp.enc.n_layer > 0)
        return gr_fail(GR_E_UNSUPPORTED,
                       "vectors: a model with an encoder and a decoder (%s) gives logits only; "
                       "convert its encoder alone",
                       m->arch->name);
    if (!p->embeddings && p->pooling > GR_POOLING_NONE)
        return gr_fail(
            GR_E_INVALID,
            "pooling %s: a session of vectors expected (embeddings), one of logits found",
            gr_pooling_name(p->pooling));
    if (p->pooling == GR_POOLING_MODEL)
        p->pooling = p->embeddings ? m->hp.pool.kind : GR_POOLING_NONE;
    bool head = gr_ten_is(&m->weight[GR_W_CLS]) || gr_ten_is(&m->weight[GR_W_CLS_OUT]);
    if (p->pooling == GR_POOLING_RANK && !head)
        return gr_fail(GR_E_UNSUPPORTED,
                       "pooling rank: the model has no classifier (cls.weight, cls.output.weight); "
                       "another pooling: none, mean, cls, last");
    return 0;
}

/* Pooling of rows to a sequence's vector. A classifier takes the last token of a causal model (with
 * a cache), which has seen the whole text, and the first one otherwise. */
static enum gr_pool_kind how_of(const struct gr_hparams *hp, enum gr_pooling pooling)
{
    switch (pooling) {
    case GR_POOLING_MEAN:
        return GR_POOL_MEAN;
    case GR_POOLING_CLS:
        return GR_POOL_FIRST;
    case GR_POOLING_LAST:
        return GR_POOL_LAST;
    case GR_POOLING_RANK:
        return hp->cls.pooling == GR_POOLING_MEAN ? GR_POOL_MEAN
               : hp->no_cache                     ? GR_POOL_FIRST
                                                  : GR_POOL_LAST;
    default:
        return GR_POOL_ROWS;
    }
}

bool gr_vectors_whole(const struct gr_hparams *hp, const struct gr_session_params *p)
{
    return gr_sees_itself(hp, 0) || how_of(hp, p->pooling) == GR_POOL_MEAN;
}

void gr_vectors_init(struct gr_session *s)
{
    const struct gr_ten *w = s->model->weight;
    s->pool = how_of(&s->model->hp, s->params.pooling);
    s->env.vectors = s->params.embeddings;
    s->env.classify = s->params.pooling == GR_POOLING_RANK;
    if (!s->env.vectors)
        s->n_row = s->model->hp.n_vocab;
    else if (s->env.classify)
        s->n_row = (int32_t)w[gr_ten_is(&w[GR_W_CLS_OUT]) ? GR_W_CLS_OUT : GR_W_CLS].rows;
    else if (gr_ten_is(&w[GR_W_DENSE_3]))
        s->n_row = (int32_t)w[GR_W_DENSE_3].rows;
    else
        s->n_row =
            gr_ten_is(&w[GR_W_DENSE_2]) ? (int32_t)w[GR_W_DENSE_2].rows : s->model->hp.n_embd;
}

/* ---- a batch ---- */

static int refuse_begun(const struct gr_session *s, int32_t seq)
{
    return gr_fail(GR_E_INVALID,
                   "pooling %s: texts that begin with the batch expected, sequence %d has tokens "
                   "already; gr_kv_seq_rm removes them",
                   gr_pooling_name(s->params.pooling), seq);
}

/* Sets pending->seq_row to the token that represents each sequence (for means to any of its
 * tokens); -1 for sequences without tokens. */
static int find_tokens(const struct gr_session *s, struct gr_pending_batch *pending)
{
    const struct gr_full_batch *b = &s->batch;
    bool last = s->pool == GR_POOL_LAST;
    for (int32_t i = 0; i < b->n_tok; i++)
        for (int32_t k = 0; k < b->n_seq[i]; k++) {
            int32_t seq = b->seq[b->seq_at[i] + k];
            if (!last && pending->seq_row[seq] < 0 && gr_cache_pos_max(&s->cache, seq) >= 0)
                return refuse_begun(s, seq);
            if (last || pending->seq_row[seq] < 0)
                pending->seq_row[seq] = i;
        }
    return 0;
}

int gr_vectors_choose(struct gr_session *s, struct gr_pending_batch *pending)
{
    struct gr_full_batch *b = &s->batch;
    bool mean = s->pool == GR_POOL_MEAN;
    for (uint32_t q = 0; q < s->params.n_seq_max; q++)
        pending->seq_row[q] = -1;
    if (s->pool == GR_POOL_ROWS)
        return 0;
    int rc = find_tokens(s, pending);
    if (rc)
        return rc;
    memset(b->logits, mean, (size_t)b->n_tok);
    b->n_out = mean ? b->n_tok : 0;
    for (uint32_t q = 0; q < s->params.n_seq_max && !mean; q++)
        if (pending->seq_row[q] >= 0) {
            b->n_out += !b->logits[pending->seq_row[q]];
            b->logits[pending->seq_row[q]] = 1;
        }
    return 0;
}

int32_t gr_vectors_number(struct gr_session *s, struct gr_pending_batch *pending)
{
    int32_t n = 0;
    for (uint32_t q = 0; q < s->params.n_seq_max; q++) {
        if (pending->seq_row[q] < 0)
            continue;
        pending->seq_row[q] = s->pool == GR_POOL_MEAN ? n : pending->out_row[pending->seq_row[q]];
        n++;
    }
    return s->pool == GR_POOL_MEAN ? n : s->batch.n_out;
}

int32_t gr_vectors_rows(const struct gr_session *s, const struct gr_ubatch *ub)
{
    return s->pool == GR_POOL_MEAN ? s->now->n_out : ub->n_out;
}

void gr_vectors_fill_step(const struct gr_session *s, const struct gr_ubatch *ub, int32_t *list,
                          int32_t *at)
{
    const struct gr_full_batch *b = ub->batch;
    int32_t next[GR_SEQ_MAX] = {0}, n = 0, *end = at;
    for (int32_t i = 0; i < ub->n_tok; i++)
        for (int32_t k = 0; k < b->n_seq[ub->tok[i]]; k++)
            next[b->seq[b->seq_at[ub->tok[i]] + k]]++;
    for (uint32_t q = 0; q < s->params.n_seq_max; q++) {
        int32_t count = next[q];
        next[q] = n;
        if (count)
            *end++ = n;
        n += count;
    }
    *end = n;
    for (int32_t i = 0; i < ub->n_tok; i++)
        for (int32_t k = 0; k < b->n_seq[ub->tok[i]]; k++)
            list[next[b->seq[b->seq_at[ub->tok[i]] + k]]++] = i;
}

/* ---- results ---- */

void gr_vectors_finish(const struct gr_session *s, struct gr_pending_batch *pending)
{
    if (!s->env.classify || !s->model->hp.cls.softmax)
        return;
    for (int32_t r = 0; r < pending->n_out; r++) {
        float *x = pending->logits + (size_t)r * (size_t)s->n_row, max = x[0];
        double sum = 0;
        for (int32_t i = 1; i < s->n_row; i++)
            max = GR_MAX(max, x[i]);
        for (int32_t i = 0; i < s->n_row; i++)
            sum += exp((double)x[i] - (double)max);
        for (int32_t i = 0; i < s->n_row; i++)
            x[i] = (float)(exp((double)x[i] - (double)max) / sum);
    }
}

static const float *row(const struct gr_session *s, int32_t i)
{
    const struct gr_pending_batch *pending = &s->results.pending[s->results.last];
    return i < 0 ? NULL : pending->logits + (size_t)i * (size_t)s->n_row;
}

const float *gr_embeddings(const struct gr_session *s, int32_t i)
{
    const struct gr_pending_batch *pending = &s->results.pending[s->results.last];
    i = i < 0 ? pending->n_tok + i : i;
    bool there = s->params.embeddings && s->pool == GR_POOL_ROWS && i >= 0 && i < pending->n_tok;
    return there ? row(s, pending->out_row[i]) : NULL;
}

const float *gr_embeddings_seq(const struct gr_session *s, int32_t seq)
{
    const struct gr_pending_batch *pending = &s->results.pending[s->results.last];
    bool there = s->pool != GR_POOL_ROWS && pending->n_tok > 0 && seq >= 0 &&
                 seq < (int32_t)s->params.n_seq_max;
    return there ? row(s, pending->seq_row[seq]) : NULL;
}

int32_t gr_session_n_embd(const struct gr_session *s)
{
    return s->params.embeddings ? s->n_row : 0;
}

enum gr_pooling gr_session_pooling(const struct gr_session *s)
{
    return s->params.pooling;
}
