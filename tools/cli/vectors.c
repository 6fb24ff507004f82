/* Vectors of texts. */
#include "vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "flags.h"
#include "model.h"

#define MOST_SEQ 256 /* sequences of a session */

/* ---- tokens ---- */

int gr_ids_add(struct gr_ids *ids, const struct gr_model *model, const char *text, size_t n)
{
    int32_t *id = NULL;
    size_t n_id = 0;
    int rc = gr_text_tokenize(model, text, n, true, true, &id, &n_id);
    if (rc)
        return rc;
    size_t skip = ids->n && n_id && id[0] == gr_text_bos(model);
    int32_t *grown = realloc(ids->id, (ids->n + n_id + 1) * sizeof *grown);
    if (grown) {
        ids->id = grown;
        if (n_id > skip)
            memcpy(ids->id + ids->n, id + skip, (n_id - skip) * sizeof *id);
        ids->n += n_id - skip;
    }
    gr_free_ids(id);
    return grown ? 0 : GR_E_NOMEM_HOST;
}

void gr_ids_free(struct gr_ids *ids)
{
    free(ids->id);
    *ids = (struct gr_ids){0};
}

int gr_vectors_reach(const struct gr_options *o, struct gr_model *model, int32_t *n)
{
    struct gr_session_params p = gr_session_options(o);
    struct gr_context_limits reach = {0};
    struct gr_model_info info;
    int rc = gr_context_limits(model, &p, &reach);
    gr_model_info(model, &info);
    *n = info.n_learned_pos ? info.n_learned_pos : reach.n_good;
    return rc;
}

/* ---- batches ---- */

int gr_vectors_params(struct gr_session_params *p, const struct gr_options *o,
                      const struct gr_model *model, enum gr_pooling pooling, int32_t n_batch,
                      int32_t n_text)
{
    struct gr_session_size size = {0};
    *p = gr_session_options(o);
    p->embeddings = true;
    p->pooling = pooling;
    p->n_ctx = p->n_batch = p->n_ubatch = (uint32_t)n_batch;
    int rc = gr_session_size(model, p, &size);
    /* Sequences of a model with states are computed in step with each other: one at a time. */
    p->n_seq_max = size.state ? 1 : n_text < MOST_SEQ ? (uint32_t)n_text : MOST_SEQ;
    return rc;
}

int gr_vectors_open(struct gr_vectors *v, struct gr_model *model,
                    const struct gr_session_params *params)
{
    size_t n = params->n_batch;
    *v = (struct gr_vectors){.n_batch = (int32_t)n, .n_seq = (int32_t)params->n_seq_max};
    v->id = malloc(n * sizeof *v->id);
    v->seq = malloc(n * sizeof *v->seq);
    v->wanted = malloc(n);
    int rc = v->id && v->seq && v->wanted ? 0 : GR_E_NOMEM_HOST;
    if (!rc) {
        memset(v->wanted, 1, n);
        rc = gr_session_open(&v->session, model, params);
    }
    if (rc) {
        gr_vectors_close(v);
        return rc;
    }
    v->pooling = gr_session_pooling(v->session);
    v->n_embd = gr_session_n_embd(v->session);
    return 0;
}

void gr_vectors_close(struct gr_vectors *v)
{
    gr_session_close(&v->session);
    free(v->id);
    free(v->seq);
    free(v->wanted);
    *v = (struct gr_vectors){0};
}

int gr_vectors_run(struct gr_vectors *v, const struct gr_ids *const *text, int32_t n)
{
    size_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        memcpy(v->id + at, text[i]->id, text[i]->n * sizeof *v->id);
        for (size_t t = 0; t < text[i]->n; t++)
            v->seq[at++] = i;
    }
    struct gr_batch batch = {
        .n_tok = (int32_t)at, .token = v->id, .seq = v->seq, .logits = v->wanted};
    gr_kv_clear(v->session);
    return gr_decode(v->session, &batch);
}

/* ---- lengths ---- */

void gr_vector_normalise(const float *x, int32_t n, int32_t norm, float *y)
{
    double sum = 0;
    for (int32_t i = 0; i < n && norm >= 0; i++) {
        double a = fabs((double)x[i]);
        sum = norm == 0 ? (a > sum ? a : sum) : sum + (norm == 2 ? a * a : pow(a, norm));
    }
    if (norm == 0)
        sum /= 32760;
    else if (norm == 2)
        sum = sqrt(sum);
    else if (norm > 2)
        sum = pow(sum, 1.0 / norm);
    for (int32_t i = 0; i < n; i++)
        y[i] = norm < 0 ? x[i] : sum > 0 ? (float)((double)x[i] / sum) : 0;
}
