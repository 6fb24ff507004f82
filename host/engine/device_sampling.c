/* Sampling on the device that has the logits: gr_decode returns token ids instead of rows. */
#include "engine/device_sampling.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/session.h"
#include "gr/status.h"

enum { LEAST_EDITS = 64 };

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

static bool drawn_before(const struct gr_session *s, int32_t token)
{
    for (int32_t i = 0; i < token; i++)
        if (s->batch.logits[i] && sampler_of(s, i) == sampler_of(s, token))
            return true;
    return false;
}

bool gr_device_sampling_all(const struct gr_session *s)
{
    for (int32_t i = 0; i < s->batch.n_tok; i++) {
        const struct gr_sampler *sampler = s->batch.logits[i] ? sampler_of(s, i) : NULL;
        if (s->batch.logits[i] && !sampler)
            return false;
        if (sampler && gr_sampler_looks_back(sampler) && drawn_before(s, i))
            return false;
    }
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

/* The least power of two from `least` on that is at least n; 0 for none. */
static int32_t room_for(size_t n, size_t least)
{
    size_t room = n ? least : 0;
    while (room < n)
        room *= 2;
    return (int32_t)room;
}

/* The parameters of a sampler's next draw; appends its edits and its mask. */
static int fill_row(struct gr_device_sampling *d, struct gr_sampler *sampler, int32_t n_vocab,
                    struct gr_sample_row *row)
{
    const struct gr_sample_edit *edits;
    const uint32_t *mask;
    size_t n_word = (size_t)gr_sample_mask_words(n_vocab);
    int rc = gr_sampler_mask(sampler, &mask);
    if (rc)
        return rc;
    *row = gr_sampler_next(sampler);
    row->n_edit = gr_sampler_edits(sampler, &edits), row->edit = (int32_t)d->edits.n;
    row->mask = mask ? 1 + (int32_t)(d->masks.n / n_word) : 0;
    size_t n_edit = d->edits.n + (size_t)row->n_edit;
    rc = gr_vec_reserve(&d->edits, (size_t)room_for(n_edit, LEAST_EDITS), sizeof *edits);
    if (!rc)
        rc = gr_vec_append(&d->edits, edits, (size_t)row->n_edit, sizeof *edits);
    return rc || !mask ? rc : gr_vec_append(&d->masks, mask, n_word, sizeof *mask);
}

int gr_device_sampling_fill(struct gr_session *s, int32_t n_ub)
{
    struct gr_sample_row *row = s->sampled.rows;
    int rc = 0;
    s->sampled.edits.n = s->sampled.masks.n = 0;
    for (const struct gr_ubatch *ub = s->ub; ub < s->ub + n_ub; ub++)
        for (int32_t i = 0; i < ub->n_tok && !rc; i++)
            if (s->batch.logits[ub->tok[i]])
                rc = fill_row(&s->sampled, sampler_of(s, ub->tok[i]), s->model->hp.n_vocab, row++);
    return rc;
}

int gr_device_sampling_copy(struct gr_session *s, const struct gr_sample_row *rows, size_t n_row,
                            const struct gr_sample_edit *edits, size_t n_edit,
                            const uint32_t *masks, size_t n_mask)
{
    struct gr_device_sampling *d = &s->sampled;
    size_t n_word = (size_t)gr_sample_mask_words(s->model->hp.n_vocab);
    bool good = n_mask % n_word == 0;
    for (size_t i = 0; i < n_row && good; i++)
        good = rows[i].edit >= 0 && rows[i].n_edit >= 0 && rows[i].mask >= 0 &&
               (size_t)rows[i].edit + (size_t)rows[i].n_edit <= n_edit &&
               (size_t)rows[i].mask <= n_mask / n_word;
    for (size_t i = 0; i < n_edit && good; i++)
        good = edits[i].id >= 0 && edits[i].id < s->model->hp.n_vocab;
    if (!good)
        return gr_fail(GR_E_CORRUPT, "command DECODE: edits or masks that no row has");
    d->edits.n = d->masks.n = 0;
    memcpy(d->rows, rows, n_row * sizeof *rows);
    int rc = gr_vec_append(&d->edits, edits, n_edit, sizeof *edits);
    return rc ? rc : gr_vec_append(&d->masks, masks, n_mask, sizeof *masks);
}

void gr_device_sampling_shape(const struct gr_session *s, struct gr_step_shape *shape)
{
    int32_t n_word = gr_sample_mask_words(s->model->hp.n_vocab);
    shape->n_edit = room_for(s->sampled.edits.n, LEAST_EDITS);
    shape->n_mask = room_for(s->sampled.masks.n / (size_t)n_word, 1);
    shape->n_mask_word = shape->n_mask ? n_word : 0;
}

void gr_device_sampling_fini(struct gr_device_sampling *d)
{
    gr_free(d->rows);
    gr_vec_fini(&d->edits);
    gr_vec_fini(&d->masks);
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
