/* Steps of speculative decoding. */
#include "draft/draft.h"

#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"

#define MOST_TEXT ((size_t)1 << 18) /* tokens that are kept of a text */

struct gr_draft {
    struct gr_draft_params p;
    const struct gr_model *target;
    struct gr_vec text; /* int32_t, its end */
    struct gr_draft_model model;
    struct gr_draft_pace pace;
    int32_t token[1 + GR_MAX_DRAFT]; /* the text's last token, then the draft */
    int32_t seq[1 + GR_MAX_DRAFT];
    int8_t wanted[1 + GR_MAX_DRAFT];
    struct gr_draft_stats stats;
    double seconds;       /* of all steps */
    double plain_seconds; /* of steps that tried no draft but the first, which is slower */
    int64_t n_plain;      /* steps that tried no draft */
};

struct gr_draft_params gr_draft_params_default(void)
{
    return (struct gr_draft_params){.n_max = 16, .n_gram = 12, .adaptive = true};
}

static int check(const struct gr_draft_params *p)
{
    const struct {
        const char *name;
        double value, lo, hi;
    } range[] = {
        {"n_max", p->n_max, 1, GR_MAX_DRAFT},
        {"n_min", p->n_min, 0, GR_MAX_DRAFT},
        {"p_min", p->p_min, 0, 1},
        {"n_gram", p->n_gram, 0, 1024},
    };
    for (size_t i = 0; i < GR_COUNT(range); i++) {
        if (!(range[i].value >= range[i].lo && range[i].value <= range[i].hi))
            return gr_fail(GR_E_INVALID, "draft: %s is %g, a number from %g to %g is expected",
                           range[i].name, range[i].value, range[i].lo, range[i].hi);
    }
    if (p->n_min > p->n_max)
        return gr_fail(GR_E_INVALID, "draft: n_min is %d, at most n_max is expected, which is %d",
                       p->n_min, p->n_max);
    if (!p->session != !p->model)
        return gr_fail(GR_E_INVALID, "draft: a draft model and a session of it are expected");
    return 0;
}

int gr_draft_new(struct gr_draft **out, const struct gr_draft_params *params,
                 const struct gr_model *target)
{
    int rc = check(params);
    *out = NULL;
    if (rc)
        return rc;
    struct gr_draft *d = gr_calloc(1, sizeof *d);
    if (!d)
        return GR_E_NOMEM_HOST;
    d->p = *params, d->target = target;
    d->pace = (struct gr_draft_pace){
        .n_min = params->n_min, .n_max = params->n_max, .adaptive = params->adaptive};
    d->model = (struct gr_draft_model){
        .model = params->model, .session = params->session, .p_min = params->p_min};
    memset(d->wanted, 1, sizeof d->wanted);
    if (params->session)
        rc = gr_draft_model_check(&d->model, target);
    if (!rc && params->session)
        gr_draft_model_clear(&d->model);
    if (rc)
        gr_draft_free(&d);
    *out = d;
    return rc;
}

void gr_draft_free(struct gr_draft **d)
{
    if (!d || !*d)
        return;
    gr_vec_fini(&(*d)->text);
    gr_free(*d);
    *d = NULL;
}

/* Drops the older half of a text that has become too long. */
static void limit_text(struct gr_draft *d)
{
    size_t half = MOST_TEXT / 2;
    int32_t *text = d->text.data;
    if (d->text.n < MOST_TEXT)
        return;
    memmove(text, text + d->text.n - half, half * sizeof *text);
    d->text.n = half;
    if (d->model.session)
        gr_draft_model_clear(&d->model);
}

int gr_draft_accept(struct gr_draft *d, const int32_t *ids, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i += MOST_TEXT / 4) {
        rc = gr_vec_append(&d->text, ids + i, GR_MIN(n - i, MOST_TEXT / 4), sizeof *ids);
        limit_text(d);
    }
    return rc;
}

/* Drafts at most `most` tokens behind d->token[0]; *tried: there was a draft, used or not, or time
 * went into one. Returns a status. */
static int propose(struct gr_draft *d, int32_t most, int32_t *n, bool *tried)
{
    int rc = 0;
    *n = 0, *tried = false;
    if (most < GR_MAX(d->p.n_min, 1))
        return 0;
    if (d->p.n_gram > 0)
        *n = gr_draft_look_up(d->text.data, d->text.n, d->p.n_gram, d->token + 1, most);
    *tried = *n > 0;
    if (!*n && d->model.session)
        rc = gr_draft_model_propose(&d->model, d->text.data, d->text.n, d->token + 1, most, n,
                                    tried);
    if (*n < d->p.n_min)
        *n = 0;
    return rc;
}

/* Picks tokens from the logits of the batch, as long as they are those of the draft. Fails when
 * there is none; a later failure ends them, and comes again at the next step. */
static int pick(struct gr_draft *d, const struct gr_session *s, struct gr_sampler *sampler,
                int32_t n_draft, int32_t n_most, int32_t *ids, int32_t *n)
{
    for (*n = 0; *n < n_most;) {
        int32_t i = *n, id;
        int rc = gr_sampler_pick(sampler, gr_logits(s, i), &id);
        if (!rc)
            rc = gr_sampler_accept(sampler, id);
        if (rc)
            return *n ? 0 : rc;
        ids[(*n)++] = id;
        if (i == n_draft || id != d->token[1 + i] || gr_text_is_eog(d->target, id))
            return 0;
    }
    return 0;
}

static int run(struct gr_draft *d, struct gr_session *s, int32_t seq, struct gr_sampler *sampler,
               int32_t n_draft, int32_t n_most, int32_t *ids, int32_t *n)
{
    int32_t first = gr_kv_seq_pos_max(s, seq) + 1;
    struct gr_batch batch = {
        .n_tok = 1 + n_draft, .token = d->token, .seq = d->seq, .logits = d->wanted};
    for (int32_t i = 0; i <= n_draft; i++)
        d->seq[i] = seq;
    int rc = gr_session_set_sampler(s, seq, NULL);
    if (!rc)
        rc = gr_decode(s, &batch);
    if (rc)
        return rc;
    rc = pick(d, s, sampler, n_draft, n_most, ids, n);
    int32_t kept = rc ? 0 : *n;
    int removed = kept < batch.n_tok ? gr_kv_seq_rm(s, seq, first + kept, -1) : 0;
    return rc ? rc : removed;
}

static void count(struct gr_draft *d, bool tried, int32_t n_draft, int32_t n, double seconds)
{
    d->stats.n_step++, d->stats.n_token += n;
    d->stats.n_drafted += n_draft, d->stats.n_accepted += n - 1;
    d->seconds += seconds;
    if (!tried && d->n_plain++)
        d->plain_seconds += seconds;
    gr_draft_pace_step(&d->pace, tried, n_draft, n - 1, seconds);
}

int gr_draft_step(struct gr_draft *d, struct gr_session *s, int32_t seq, struct gr_sampler *sampler,
                  int32_t n_most, int32_t *ids, int32_t *n)
{
    int64_t begin = gr_now_ns();
    int32_t n_draft = 0, most = GR_MIN(n_most, (int32_t)GR_MIN(gr_session_n_batch(s), INT32_MAX));
    bool tried = false;
    *n = 0;
    if (!d->text.n || n_most < 1)
        return gr_fail(GR_E_INVALID, "draft: a text, and room for a token are expected");
    int rc = gr_vec_reserve(&d->text, d->text.n + 1 + GR_MAX_DRAFT, sizeof *ids);
    d->token[0] = ((int32_t *)d->text.data)[d->text.n - 1];
    if (!rc)
        rc = propose(d, GR_MIN(gr_draft_pace_next(&d->pace), most - 1), &n_draft, &tried);
    if (!rc)
        rc = run(d, s, seq, sampler, n_draft, n_most, ids, n);
    if (!rc)
        rc = gr_draft_accept(d, ids, (size_t)*n);
    if (!rc)
        count(d, tried, n_draft, *n, (double)(gr_now_ns() - begin) * 1e-9);
    return rc;
}

struct gr_draft_stats gr_draft_stats(const struct gr_draft *d)
{
    struct gr_draft_stats stats = d->stats;
    if (d->n_plain > 1 && d->seconds > 0)
        stats.speedup =
            d->plain_seconds / (double)(d->n_plain - 1) * (double)stats.n_token / d->seconds;
    return stats;
}
