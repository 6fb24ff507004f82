/* Drafts of a draft model: its most probable tokens, one after the other. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "draft/draft.h"
#include "gr/status.h"

enum {
    MOST_PADDING = 128, /* tokens by which vocabularies may differ in length */
};

/* ---- the vocabulary ---- */

static int compare_token(const struct gr_model *a, const struct gr_model *b, int32_t id)
{
    const char *p = "", *q = "";
    size_t n = 0, m = 0;
    int rc = gr_text_piece(a, id, true, &p, &n);
    if (!rc)
        rc = gr_text_piece(b, id, true, &q, &m);
    if (rc || (n == m && !memcmp(p, q, n)))
        return rc;
    return gr_fail(GR_E_INVALID,
                   "draft model: token %d is '%.*s', and '%.*s' in the model; both need the same "
                   "vocabulary",
                   id, (int)GR_MIN(m, 40), q, (int)GR_MIN(n, 40), p);
}

int gr_draft_model_check(struct gr_draft_model *m, const struct gr_model *target)
{
    struct gr_model_info a, b;
    int rc = 0;
    gr_model_info(target, &a), gr_model_info(m->model, &b);
    if (b.no_logits || b.has_encoder)
        return gr_fail(GR_E_INVALID, "draft model: a %s model continues no text", b.arch);
    if (a.n_vocab > b.n_vocab + MOST_PADDING || b.n_vocab > a.n_vocab + MOST_PADDING)
        return gr_fail(GR_E_INVALID,
                       "draft model: it has %d tokens, and the model %d; both need the same "
                       "vocabulary",
                       b.n_vocab, a.n_vocab);
    m->n_vocab = GR_MIN(a.n_vocab, b.n_vocab);
    if (gr_text_bos(target) != gr_text_bos(m->model) ||
        gr_text_eos(target) != gr_text_eos(m->model))
        return gr_fail(GR_E_INVALID,
                       "draft model: texts begin and end with tokens %d and %d, those of the model "
                       "with %d and %d; both need the same vocabulary",
                       gr_text_bos(m->model), gr_text_eos(m->model), gr_text_bos(target),
                       gr_text_eos(target));
    for (int32_t id = 0; id < m->n_vocab && !rc; id++)
        rc = compare_token(target, m->model, id);
    return rc;
}

/* ---- what the session holds ---- */

void gr_draft_model_clear(struct gr_draft_model *m)
{
    gr_kv_clear(m->session);
    m->first = m->n_cached = 0, m->n_ahead = 0;
}

/* Keeps what the session holds of the text, except for its last token, and removes the rest. */
static void keep_common(struct gr_draft_model *m, const int32_t *text, size_t n)
{
    int32_t kept = 0;
    size_t end = m->first + m->n_cached;
    while (kept < m->n_ahead && end < n && text[end] == m->ahead[kept])
        kept++, end++;
    size_t before = m->n_cached + (size_t)m->n_ahead;
    m->n_cached = GR_MIN(end, n - 1) - m->first;
    m->n_ahead = 0;
    if (m->n_cached < before && gr_kv_seq_rm(m->session, 0, (int32_t)m->n_cached, -1))
        gr_draft_model_clear(m);
}

/* Decodes the text as far as it is missing; begins anew with its second half when the draft would
 * not fit behind it. */
static int catch_up(struct gr_draft_model *m, const int32_t *text, size_t n, int32_t most)
{
    size_t room = gr_session_n_ctx_seq(m->session), n_batch = gr_session_n_batch(m->session);
    int rc = 0;
    if (m->n_cached + (size_t)m->n_ahead > 0)
        keep_common(m, text, n);
    if (n - m->first + (size_t)most > room) {
        gr_draft_model_clear(m);
        m->first = n - GR_MIN(n, room / 2);
    }
    while (m->first + m->n_cached < n && !rc) {
        size_t left = n - m->first - m->n_cached;
        struct gr_batch batch = {.n_tok = (int32_t)GR_MIN(left, n_batch),
                                 .token = text + m->first + m->n_cached};
        rc = gr_decode(m->session, &batch);
        if (!rc)
            m->n_cached += (size_t)batch.n_tok;
    }
    if (rc)
        gr_draft_model_clear(m);
    return rc;
}

/* Begins anew behind the last token that the draft model does not have. */
static void skip_unknown(struct gr_draft_model *m, const int32_t *text, size_t n)
{
    size_t end = n;
    while (end > m->first + m->n_cached && text[end - 1] < m->n_vocab)
        end--;
    if (end > m->first + m->n_cached) {
        gr_draft_model_clear(m);
        m->first = end;
    }
}

/* Returns the most probable token, or -1 for logits that are no numbers; *p: its probability. */
static int32_t most_probable(const float *logits, int32_t n, double *p)
{
    int32_t best = 0;
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - logits[best]);
    *p = 1 / sum;
    return sum >= 1 ? best : -1;
}

int gr_draft_model_propose(struct gr_draft_model *m, const int32_t *text, size_t n, int32_t *draft,
                           int32_t most, int32_t *n_draft, bool *tried)
{
    *n_draft = 0, *tried = false;
    if ((size_t)most >= gr_session_n_ctx_seq(m->session) / 2)
        return 0;
    skip_unknown(m, text, n);
    if (m->first == n)
        return 0;
    *tried = true;
    int rc = catch_up(m, text, n, most);
    while (!rc && *n_draft < most) {
        double p;
        int32_t id = most_probable(gr_logits(m->session, -1), m->n_vocab, &p);
        if (id < 0 || p < m->p_min)
            break;
        draft[(*n_draft)++] = id;
        if (*n_draft == most || gr_text_is_eog(m->model, id))
            break;
        rc = gr_decode(m->session, &(struct gr_batch){.n_tok = 1, .token = &id});
        if (!rc)
            m->ahead[m->n_ahead++] = id;
    }
    if (rc)
        gr_draft_model_clear(m);
    return rc;
}
