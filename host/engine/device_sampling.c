/* Sampling on the device that has the logits: gr_decode returns token ids instead of rows. */
#include "engine/device_sampling.h"

#include "base/alloc.h"
#include "engine/session.h"
#include "gr/status.h"

int gr_session_set_sampler(struct gr_session *s, int32_t seq, struct gr_sampler *sampler)
{
    if (seq < 0 || seq >= (int32_t)s->params.n_seq_max)
        return gr_fail(GR_E_INVALID, "sampling: sequence %d, but they are 0 to %u", seq,
                       s->params.n_seq_max - 1);
    if (s->params.embeddings)
        return gr_fail(GR_E_UNSUPPORTED, "sampling: a session of vectors leaves no logits");
    int rc = sampler ? gr_sampler_fits_device(sampler, s->model->hp.n_vocab) : 0;
    if (!rc)
        s->sampled.sampler[seq] = sampler;
    return rc;
}

static struct gr_sampler *sampler_of(const struct gr_session *s, int32_t token)
{
    return s->sampled.sampler[s->batch.seq[s->batch.seq_at[token]]];
}

bool gr_device_sampling_all(const struct gr_session *s)
{
    for (int32_t i = 0; i < s->batch.n_tok; i++)
        if (s->batch.logits[i] && !sampler_of(s, i))
            return false;
    return s->batch.n_out > 0;
}

int gr_device_sampling_reserve(struct gr_session *s, int32_t n_out)
{
    if ((size_t)n_out <= s->sampled.rows_cap)
        return 0;
    void *rows = gr_realloc(s->sampled.rows, (size_t)n_out, sizeof *s->sampled.rows);
    if (!rows)
        return GR_E_NOMEM_HOST;
    s->sampled.rows = rows, s->sampled.rows_cap = (size_t)n_out;
    return 0;
}

void gr_device_sampling_fill(struct gr_session *s, int32_t n_ub)
{
    struct gr_sample_row *row = s->sampled.rows;
    for (const struct gr_ubatch *ub = s->ub; ub < s->ub + n_ub; ub++)
        for (int32_t i = 0; i < ub->n_tok; i++)
            if (s->batch.logits[ub->tok[i]])
                *row++ = gr_sampler_next(sampler_of(s, ub->tok[i]));
}

void gr_device_sampling_finish(struct gr_session *s, bool done)
{
    for (uint32_t q = 0; q < s->params.n_seq_max; q++)
        if (s->sampled.sampler[q])
            gr_sampler_finish(s->sampled.sampler[q], done);
}

int gr_sampled_token(const struct gr_session *s, int32_t i, int32_t *id)
{
    const struct gr_pending_batch *pending = &s->results.pending[s->results.last];
    i = i < 0 ? pending->n_tok + i : i;
    if (i < 0 || i >= pending->n_tok || pending->out_row[i] < 0 || !pending->sampled)
        return gr_fail(GR_E_INVALID,
                       "sampling: no token was sampled for token %d of the last batch", i);
    *id = ((const int32_t *)(const void *)pending->logits)[pending->out_row[i]];
    return gr_sampler_result(*id);
}
