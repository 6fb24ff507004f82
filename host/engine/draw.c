/* Sampling on the device that has the logits: gr_decode returns token ids instead of rows. */
#include "engine/draw.h"

#include "base/alloc.h"
#include "engine/session.h"
#include "gr/status.h"

int gr_session_draw(struct gr_session *s, int32_t seq, struct gr_sampler *sampler)
{
    if (seq < 0 || seq >= (int32_t)s->params.n_seq_max)
        return gr_fail(GR_E_INVALID, "drawing: sequence %d, but they are 0 to %u", seq,
                       s->params.n_seq_max - 1);
    if (s->params.embeddings)
        return gr_fail(GR_E_UNSUPPORTED, "drawing: a session of vectors leaves no logits");
    int rc = sampler ? gr_sampler_can_draw(sampler, s->model->hp.n_vocab) : 0;
    if (!rc)
        s->draws.sampler[seq] = sampler;
    return rc;
}

static struct gr_sampler *sampler_of(const struct gr_session *s, int32_t token)
{
    return s->draws.sampler[s->batch.seq[s->batch.seq_at[token]]];
}

bool gr_draw_all(const struct gr_session *s)
{
    for (int32_t i = 0; i < s->batch.n_tok; i++)
        if (s->batch.logits[i] && !sampler_of(s, i))
            return false;
    return s->batch.n_out > 0;
}

int gr_draw_room(struct gr_session *s, int32_t n_out)
{
    if ((size_t)n_out <= s->draws.how_cap)
        return 0;
    void *how = gr_realloc(s->draws.how, (size_t)n_out, sizeof *s->draws.how);
    if (!how)
        return GR_E_NOMEM_HOST;
    s->draws.how = how, s->draws.how_cap = (size_t)n_out;
    return 0;
}

void gr_draw_fill(struct gr_session *s, int32_t n_ub)
{
    struct gr_sample_how *how = s->draws.how;
    for (const struct gr_ubatch *ub = s->ub; ub < s->ub + n_ub; ub++)
        for (int32_t i = 0; i < ub->n_tok; i++)
            if (s->batch.logits[ub->tok[i]])
                *how++ = gr_sampler_next(sampler_of(s, ub->tok[i]));
}

void gr_draw_settle(struct gr_session *s, bool done)
{
    for (uint32_t q = 0; q < s->params.n_seq_max; q++)
        if (s->draws.sampler[q])
            gr_sampler_settle(s->draws.sampler[q], done);
}

int gr_drawn(const struct gr_session *s, int32_t i, int32_t *id)
{
    const struct gr_flight *f = &s->results.flight[s->results.last];
    i = i < 0 ? f->n_tok + i : i;
    if (i < 0 || i >= f->n_tok || f->out_row[i] < 0 || !f->draws)
        return gr_fail(GR_E_INVALID, "drawing: no token was drawn for token %d of the last batch",
                       i);
    *id = ((const int32_t *)(const void *)f->logits)[f->out_row[i]];
    return gr_sampler_result(*id);
}
