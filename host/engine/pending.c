/* Batches: checked, split, given cells, computed by the stages of the model; and their results.
 * Several may be pending, one after the other. */
#include "engine/pending.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/device_sampling.h"
#include "engine/session.h"
#include "engine/step.h"
#include "engine/vectors.h"
#include "gr/status.h"

/* Returns the batch that ended last (i = 0), or the i-th pending one. */
static struct gr_pending_batch *pending_at(struct gr_session *s, int32_t i)
{
    return &s->results.pending[(s->results.last + i) % GR_N_PENDING];
}

/* ---- capacity ---- */

int gr_pending_reserve(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_out)
{
    struct gr_backend *b = s->pin;
    size_t need = (size_t)n_out * (size_t)s->n_row, n_batch = s->params.n_batch;
    if (!pending->out_row &&
        !(pending->out_row = gr_calloc(n_batch + s->params.n_seq_max, sizeof *pending->out_row)))
        return GR_E_NOMEM_HOST;
    pending->seq_row = pending->out_row + n_batch;
    if (need <= pending->logits_cap)
        return 0;
    if (pending->logits)
        b->api->host_free(b, pending->logits);
    pending->logits_cap = 0;
    pending->logits = b->api->host_alloc(b, need * sizeof(float));
    pending->logits_cap = pending->logits ? need : 0;
    return pending->logits ? 0 : gr_error_status();
}

void gr_pending_fini(struct gr_session *s, struct gr_pending_batch *pending)
{
    if (pending->logits)
        s->pin->api->host_free(s->pin, pending->logits);
    gr_free(pending->out_row);
    *pending = (struct gr_pending_batch){0};
}

/* Numbers the rows of logits: those of the tokens whose output is wanted, in the order of the
 * micro-batches; -1 for the others. */
static void number_rows(const struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub)
{
    int32_t row = 0;
    for (int32_t u = 0; u < n_ub; u++)
        for (int32_t i = 0; i < s->ub[u].n_tok; i++) {
            int32_t t = s->ub[u].tok[i];
            pending->out_row[t] = s->batch.logits[t] ? row++ : -1;
        }
}

/* ---- beginning ---- */

static int check_outside(const struct gr_session *s)
{
    if (s->running)
        return gr_fail(GR_E_INVALID, "a batch was given inside another one, by a tap");
    return 0;
}

static bool same_sequences(const struct gr_full_batch *b, int32_t i, int32_t j)
{
    const int32_t *x = b->seq + b->seq_at[i], *y = b->seq + b->seq_at[j];
    int32_t n_same = 0; /* a token lists no sequence twice */
    for (int32_t k = 0; k < b->n_seq[i]; k++)
        for (int32_t l = 0; l < b->n_seq[j]; l++)
            n_same += x[k] == y[l];
    return n_same == b->n_seq[i] && n_same == b->n_seq[j];
}

/* Checks that all tokens of a text share one sequence set, as non-causal attention needs: a text
 * may belong to several sequences, but only as a whole. */
static int check_texts(const struct gr_full_batch *b)
{
    int32_t first[GR_SEQ_MAX]; /* token of each sequence, -1: none yet */
    memset(first, -1, sizeof first);
    for (int32_t i = 0; i < b->n_tok; i++)
        for (int32_t k = 0; k < b->n_seq[i]; k++) {
            int32_t seq = b->seq[b->seq_at[i] + k];
            if (first[seq] < 0)
                first[seq] = i;
            else if (!same_sequences(b, first[seq], i))
                return gr_fail(GR_E_INVALID,
                               "token %d: a text whose tokens are all of the same sequences "
                               "expected, those of sequence %d differ; give each its own text",
                               i, seq);
        }
    return 0;
}

static int check(struct gr_session *s, const struct gr_batch *batch)
{
    const struct gr_hparams *hp = &s->model->hp;
    struct gr_batch_limits limits = {.n_vocab = hp->n_vocab,
                                     .n_batch = (int32_t)s->params.n_batch,
                                     .n_embd = hp->embd.only_tokens ? 0 : hp->n_embd};
    int rc = check_outside(s);
    if (rc)
        return rc;
    gr_cache_limits(&s->cache, &limits);
    rc = gr_batch_check(&s->batch, batch, &limits);
    if (!rc && (s->cache.encoding || s->model->hp.no_cache))
        rc = check_texts(&s->batch);
    if (!rc && s->cache.encoding)
        memset(s->batch.logits, 0, (size_t)s->batch.n_tok), s->batch.n_out = 0;
    if (!rc && s->batch.pos_2d && s->params.self_extend_n > 1)
        rc = gr_fail(GR_E_UNSUPPORTED,
                     "Self-Extend: tokens with rows and columns cannot be grouped");
    return rc;
}

/* Refuses positions beyond the table of a model with learned positions. */
static int check_positions(const struct gr_session *s)
{
    int32_t n = s->model->hp.embd.n_learned_pos;
    for (int32_t i = 0; n && i < s->batch.n_tok; i++)
        if (s->batch.pos[i] >= n)
            return gr_fail(GR_E_INVALID,
                           "batch token %d: position %d, but the model has learned %d positions (0 "
                           "to %d) and has no others: the text is too long",
                           i, s->batch.pos[i], n, n - 1);
    return 0;
}

static int refuse_long(const struct gr_session *s)
{
    return gr_fail(GR_E_INVALID,
                   "a batch of %d tokens: this model looks at all tokens at once, at most %u fit; "
                   "use a larger -ub",
                   s->batch.n_tok, s->params.n_ubatch);
}

int gr_batch_reserve(struct gr_session *s, const struct gr_batch *batch,
                     struct gr_pending_batch *pending, int32_t *n_ub)
{
    int rc = check(s, batch);
    if (!rc)
        rc = check_positions(s);
    if (!rc)
        rc = gr_pending_reserve(s, pending, 0);
    if (!rc)
        rc = gr_vectors_choose(s, pending);
    if (rc)
        return rc;
    pending->n_tok = pending->n_received = pending->status = 0;
    *n_ub = gr_cache_split(&s->cache, &s->batch, (int32_t)s->params.n_ubatch, s->tok, s->ub);
    if ((s->rank_model->hp.no_cache || s->cache.encoding) && *n_ub > 1)
        return refuse_long(s);
    if (s->pool == GR_POOL_MEAN && *n_ub > 1)
        return gr_fail(GR_E_INVALID,
                       "a batch of %d tokens: the mean of all is taken at once, at most %u fit, "
                       "and of a model with states one text at a time; use a larger -ub",
                       s->batch.n_tok, s->params.n_ubatch);
    number_rows(s, pending, *n_ub);
    pending->n_out = gr_vectors_number(s, pending);
    bool here =
        !s->ranks || s->rank_model->rank == 0 || s->rank_model->stage == s->rank_model->n_stage - 1;
    rc = gr_pending_reserve(s, pending, here ? pending->n_out : 0);
    if (!rc)
        rc = gr_device_sampling_reserve(s, pending->n_out);
    return rc ? rc : gr_cache_reserve(&s->cache, s->ub, *n_ub);
}

void gr_batch_rollback(struct gr_session *s, int status)
{
    bool emptied[GR_SEQ_MAX];
    char list[256], old[512];
    size_t n = 0;
    if (gr_cache_abort(&s->cache, emptied) == 0)
        return;
    for (uint32_t q = 0; q < s->params.n_seq_max && n < sizeof list - 16; q++)
        if (emptied[q])
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%u", n ? ", " : "", q);
    snprintf(old, sizeof old, "%s", gr_error_message());
    gr_fail(status, "%s; what these sequences had was overwritten, they are empty now: %s", old,
            list);
}

void gr_batch_range(struct gr_session *s)
{
    bool prompt = s->batch.n_tok > (int32_t)s->params.n_seq_max;
    gr_session_range(s, prompt ? GR_RANGE_PREFILL : GR_RANGE_DECODE, s->batch.n_tok);
}

/* Runs a reserved batch on this rank, and on all others. */
static int run_batch(struct gr_session *s, struct gr_pending_batch *pending, int32_t n_ub)
{
    gr_batch_range(s);
    int rc = s->ranks ? s->ranks->run(s, pending, n_ub) : gr_apply_shift(s);
    if (!rc && !s->ranks)
        rc = gr_batch_run(s, pending, n_ub);
    gr_session_range_end(s);
    return rc;
}

/* Checks and runs a batch, whose results go to *pending. */
static int begin(struct gr_session *s, const struct gr_batch *batch,
                 struct gr_pending_batch *pending)
{
    int32_t n_ub;
    int rc = s->ranks ? s->ranks->check(s) : 0;
    if (!rc)
        rc = gr_batch_reserve(s, batch, pending, &n_ub);
    if (rc)
        return rc;
    pending->session = s;
    pending->sampled = gr_device_sampling_all(s);
    if (pending->sampled)
        rc = gr_device_sampling_fill(s, n_ub);
    atomic_store(&s->cancel, 0);
    s->running = true;
    if (!rc)
        rc = run_batch(s, pending, n_ub);
    s->running = false;
    if (pending->sampled)
        gr_device_sampling_finish(s, !rc);
    if (rc) {
        gr_batch_rollback(s, rc);
        return rc;
    }
    gr_cache_commit(&s->cache);
    pending->n_tok = s->batch.n_tok;
    return 0;
}

/* Waits for the results of the later stages. */
static int finish(struct gr_session *s, struct gr_pending_batch *pending)
{
    int rc = s->ranks ? s->ranks->collect(s, pending) : 0;
    if (rc)
        pending->n_tok = 0;
    else
        gr_vectors_finish(s, pending);
    return rc;
}

int gr_decode_begin(struct gr_session *s, const struct gr_batch *batch)
{
    if (s->results.n_pending == GR_MAX_PENDING)
        return gr_fail(GR_E_INVALID, "%d batches are pending, no more can be: end one of them",
                       s->results.n_pending);
    int rc = begin(s, batch, pending_at(s, s->results.n_pending + 1));
    s->results.n_pending += !rc;
    return rc;
}

/* Makes the oldest pending batch the one that ended last, and gives the memory of the one before,
 * whose results are no longer valid, to the next place of the ring that has none: otherwise each
 * would take its own. */
static void advance(struct gr_session *s)
{
    struct gr_pending_batch *old = pending_at(s, 0), *place, memory = *old;
    s->results.last = (s->results.last + 1) % GR_N_PENDING;
    int32_t i = s->results.n_pending--;
    do
        place = pending_at(s, i++);
    while (place->logits && place != old);
    *old = *place;
    *place = memory;
}

int gr_decode_end(struct gr_session *s)
{
    if (!s->results.n_pending)
        return gr_fail(GR_E_INVALID, "no batch is pending that could end");
    int rc = finish(s, pending_at(s, 1));
    advance(s);
    return rc;
}

static int refuse_pending(const struct gr_session *s)
{
    return gr_fail(GR_E_INVALID,
                   "%d batches are pending: end them before another way of decoding is used",
                   s->results.n_pending);
}

int gr_decode(struct gr_session *s, const struct gr_batch *batch)
{
    if (s->results.n_pending)
        return refuse_pending(s);
    int rc = begin(s, batch, pending_at(s, 0));
    return rc ? rc : finish(s, pending_at(s, 0));
}

/* ---- texts ---- */

static int check_encodes(const struct gr_session *s)
{
    if (!s->cache.encodes)
        return gr_fail(GR_E_UNSUPPORTED,
                       "gr_encode: a model with an encoder and a decoder expected, architecture %s "
                       "found; gr_decode runs it",
                       s->model->arch->name);
    return s->results.n_pending ? refuse_pending(s) : check_outside(s);
}

/* Empties the sequences of a batch, which its text replaces. */
static int empty_sequences(struct gr_session *s)
{
    const struct gr_full_batch *b = &s->batch;
    int32_t last = b->n_tok - 1, n = b->seq_at[last] + b->n_seq[last];
    int rc = 0;
    for (int32_t i = 0; i < n && !rc; i++)
        if (gr_cache_has(&s->cache, b->seq[i]))
            rc = gr_kv_seq_rm(s, b->seq[i], -1, -1);
    return rc;
}

/* Checks the batch before its sequences are emptied: a refused one leaves them as they are. */
int gr_encode(struct gr_session *s, const struct gr_batch *batch)
{
    int rc = check_encodes(s);
    if (rc)
        return rc;
    s->cache.encoding = true;
    rc = check(s, batch);
    if (!rc && s->batch.n_tok > (int32_t)s->params.n_ubatch)
        rc = refuse_long(s);
    if (!rc)
        rc = empty_sequences(s);
    if (!rc)
        rc = gr_decode(s, batch);
    s->cache.encoding = false;
    return rc;
}

/* ---- results ---- */

const float *gr_logits(const struct gr_session *s, int32_t i)
{
    const struct gr_pending_batch *pending = &s->results.pending[s->results.last];
    i = i < 0 ? pending->n_tok + i : i;
    if (i < 0 || i >= pending->n_tok || pending->out_row[i] < 0 || pending->sampled ||
        s->params.embeddings)
        return NULL;
    return pending->logits + (size_t)pending->out_row[i] * (size_t)s->n_row;
}

void gr_session_cancel(struct gr_session *s)
{
    atomic_store(&s->cancel, 1);
}
