/* The sampler: from logits to one token. The order of the chain is fixed:
 *
 *   logit bias -> penalties -> mask -> [temp <= 0: the largest logit, done]
 *   -> top-k -> typical -> top-p -> min-p -> temperature -> draw
 *
 * or, with mirostat 2 (Basu et al. 2021), after the penalties: temperature -> surprise below mu ->
 * draw. Each truncating filter sees probabilities at temperature 1 of the candidates that the
 * previous filter left.
 *
 * Biases of the same token add up; an infinite one replaces the logit. The logit of a token that
 * occurs c > 0 times in the last penalty_last_n tokens is divided by penalty_repeat (multiplied,
 * when it is negative or 0) and lowered by c * penalty_freq + penalty_present (gr_sample_edited).
 *
 * The same seed, parameters, logits and accepted tokens give the same ids on every machine with the
 * same libm. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gpurun.h"
#include "gr/status.h"
#include "grammar/grammar.h"
#include "sample/candidates.h"
#include "sample/sampler.h"

struct gr_sampler {
    struct gr_sampler_params p; /* logit_bias is an owned copy, each token once */
    struct gr_rng rng;
    uint64_t n_drawn, n_next; /* numbers taken from rng; draws that a session has in progress */
    double mu;                /* mirostat: surprise allowed at present, in bits */
    float *logits;            /* [n_vocab] after bias and penalties */
    int32_t *recent;          /* ring [n_window] of accepted tokens */
    int32_t *count;           /* [n_vocab] occurrences of each token in the ring */
    uint32_t n_window, n_accepted;
    struct gr_sample_edit *edits;     /* [n_bias + n_window] of the next draw */
    const uint32_t *mask;             /* the caller's, or NULL */
    struct gr_grammar_state *grammar; /* the caller's, or NULL */
    uint32_t *both;                   /* what mask and grammar allow */
    struct gr_candidates set;
};

struct gr_sampler_params gr_sampler_params_default(void)
{
    return (struct gr_sampler_params){
        .temp = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1,
        .penalty_last_n = 64,
        .penalty_repeat = 1,
        .mirostat_tau = 5,
        .mirostat_eta = 0.1f,
    };
}

static int check_ranges(const struct gr_sampler_params *p)
{
    const struct {
        const char *name;
        double value, lo, hi;
    } range[] = {
        {"temp", p->temp, -INFINITY, 1e6},
        {"top_p", p->top_p, 0, INFINITY},
        {"min_p", p->min_p, 0, 1},
        {"typical_p", p->typical_p, 0, INFINITY},
        {"penalty_last_n", p->penalty_last_n, -1, 1 << 24},
        {"penalty_repeat", p->penalty_repeat, 1e-3, 1e3},
        {"penalty_freq", p->penalty_freq, -1e6, 1e6},
        {"penalty_present", p->penalty_present, -1e6, 1e6},
        {"mirostat_tau", p->mirostat_tau, 0, 1e3},
        {"mirostat_eta", p->mirostat_eta, 0, 1e3},
        {"n_vocab", p->n_vocab, 1, INT32_MAX},
        {"n_ctx", p->n_ctx, 0, 1 << 24},
        {"n_logit_bias", p->n_logit_bias, 0, INT32_MAX},
    };
    for (size_t i = 0; i < GR_COUNT(range); i++) {
        if (!(range[i].value >= range[i].lo && range[i].value <= range[i].hi))
            return gr_fail(GR_E_INVALID, "sampling: %s is %g, a number from %g to %g is expected",
                           range[i].name, range[i].value, range[i].lo, range[i].hi);
    }
    if (p->mirostat != 0 && p->mirostat != 2)
        return gr_fail(GR_E_INVALID, "sampling: mirostat is %d, 0 (off) or 2 is expected",
                       p->mirostat);
    return 0;
}

static int check_params(const struct gr_sampler_params *p)
{
    int rc = check_ranges(p);
    if (rc)
        return rc;
    for (int32_t i = 0; i < p->n_logit_bias; i++) {
        struct gr_logit_bias b = p->logit_bias[i];
        if (b.id < 0 || b.id >= p->n_vocab)
            return gr_fail(GR_E_INVALID,
                           "sampling: logit bias for token %d, but the vocabulary ends at %d", b.id,
                           p->n_vocab - 1);
        if (isnan(b.bias))
            return gr_fail(GR_E_INVALID, "sampling: the logit bias of token %d is not a number",
                           b.id);
    }
    return 0;
}

static bool has_penalties(const struct gr_sampler_params *p)
{
    return p->penalty_last_n != 0 &&
           (p->penalty_repeat != 1 || p->penalty_freq != 0 || p->penalty_present != 0);
}

/* Copies the biases, those of the same token added up. at: zeros [n_vocab], scratch. */
static int32_t merge_bias(struct gr_logit_bias *to, const struct gr_sampler_params *p, int32_t *at)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_logit_bias; i++) {
        struct gr_logit_bias b = p->logit_bias[i];
        if (!at[b.id]) {
            to[n++] = b, at[b.id] = n;
            continue;
        }
        float *sum = &to[at[b.id] - 1].bias;
        *sum = isinf(b.bias) ? b.bias : *sum + b.bias;
    }
    return n;
}

static int allocate(struct gr_sampler *s, const struct gr_sampler_params *p)
{
    size_t n = (size_t)p->n_vocab, n_bias = (size_t)p->n_logit_bias;
    struct gr_logit_bias *bias = gr_calloc(n_bias, sizeof *bias);
    s->p.logit_bias = bias;
    s->logits = gr_calloc(n, sizeof *s->logits);
    if (p->temp > 0) {
        s->set.c = gr_calloc(n, sizeof *s->set.c);
        s->set.rank = gr_calloc(n, sizeof *s->set.rank);
    }
    if (has_penalties(p)) {
        s->n_window = (uint32_t)(p->penalty_last_n < 0 ? p->n_ctx : p->penalty_last_n);
        s->recent = gr_calloc(s->n_window, sizeof *s->recent);
        s->count = gr_calloc(n, sizeof *s->count);
    }
    s->edits = gr_calloc(n_bias + GR_MIN(s->n_window, n), sizeof *s->edits);
    if (!bias || !s->edits || !s->logits || (p->temp > 0 && (!s->set.c || !s->set.rank)) ||
        (has_penalties(p) && (!s->recent || !s->count)))
        return GR_E_NOMEM_HOST;
    int32_t *at = gr_calloc(n_bias ? n : 1, sizeof *at);
    if (!at)
        return GR_E_NOMEM_HOST;
    s->p.n_logit_bias = merge_bias(bias, p, at);
    gr_free(at);
    return 0;
}

int gr_sampler_new(struct gr_sampler **out, const struct gr_sampler_params *params)
{
    int rc = check_params(params);
    struct gr_sampler *s = NULL;
    *out = NULL;
    if (rc)
        return rc;
    s = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->p = *params;
    rc = allocate(s, params);
    if (rc) {
        gr_sampler_free(&s);
        return rc;
    }
    s->rng = gr_rng_new(params->seed);
    s->mu = 2.0 * params->mirostat_tau;
    *out = s;
    return 0;
}

void gr_sampler_free(struct gr_sampler **sampler)
{
    struct gr_sampler *s = sampler ? *sampler : NULL;
    if (!s)
        return;
    gr_free((void *)s->p.logit_bias);
    gr_free(s->logits);
    gr_free(s->set.c);
    gr_free(s->set.rank);
    gr_free(s->recent);
    gr_free(s->count);
    gr_free(s->edits);
    gr_free(s->both);
    gr_free(s);
    *sampler = NULL;
}

int gr_sampler_accept(struct gr_sampler *s, int32_t id)
{
    if (id < 0 || id >= s->p.n_vocab)
        return gr_fail(GR_E_INVALID, "sampling: token %d, but the vocabulary ends at %d", id,
                       s->p.n_vocab - 1);
    int rc = s->grammar ? gr_grammar_accept(s->grammar, id) : 0;
    if (rc || !s->n_window)
        return rc;
    int32_t *slot = &s->recent[s->n_accepted % s->n_window];
    if (s->n_accepted >= s->n_window)
        s->count[*slot]--;
    *slot = id;
    s->count[id]++;
    /* Wrapping from 2 n_window to n_window keeps "the ring is full" true and the slot correct. */
    s->n_accepted = s->n_accepted + 1 < 2 * s->n_window ? s->n_accepted + 1 : s->n_window;
    return 0;
}

static void add_edit(struct gr_sampler *s, int32_t *n, int32_t id, float bias)
{
    int32_t c = s->count ? s->count[id] : 0;
    s->edits[(*n)++] = (struct gr_sample_edit){.id = id, .count = c, .bias = bias};
    if (c > 0)
        s->count[id] = -c; /* a negative count marks a token that is listed */
}

int32_t gr_sampler_edits(struct gr_sampler *s, const struct gr_sample_edit **edits)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->p.n_logit_bias; i++)
        add_edit(s, &n, s->p.logit_bias[i].id, s->p.logit_bias[i].bias);
    for (uint32_t i = 0; i < GR_MIN(s->n_accepted, s->n_window); i++)
        if (s->count[s->recent[i]] > 0)
            add_edit(s, &n, s->recent[i], 0);
    for (int32_t i = 0; i < n && s->count; i++)
        s->count[s->edits[i].id] = s->edits[i].count;
    *edits = s->edits;
    return n;
}

void gr_sampler_set_mask(struct gr_sampler *s, const uint32_t *allowed)
{
    s->mask = allowed;
}

int gr_sampler_set_grammar(struct gr_sampler *s, struct gr_grammar_state *state)
{
    int32_t n = s->p.n_vocab;
    if (state && gr_grammar_n_vocab(state) != n)
        return gr_fail(GR_E_INVALID, "sampling: a grammar of %d tokens, but the sampler has %d",
                       gr_grammar_n_vocab(state), n);
    if (state && !s->both &&
        !(s->both = gr_calloc((size_t)gr_sample_mask_words(n), sizeof *s->both)))
        return GR_E_NOMEM_HOST;
    s->grammar = state;
    return 0;
}

int gr_sampler_mask(struct gr_sampler *s, const uint32_t **mask)
{
    *mask = s->mask;
    int rc = s->grammar ? gr_grammar_allowed(s->grammar, mask) : 0;
    if (rc || !s->grammar || !s->mask)
        return rc;
    for (int32_t w = 0; w < gr_sample_mask_words(s->p.n_vocab); w++)
        s->both[w] = (*mask)[w] & s->mask[w];
    *mask = s->both;
    return 0;
}

/* Sets s->logits to the logits after bias, penalties and mask. */
static void edit(struct gr_sampler *s, const float *logits, const uint32_t *mask)
{
    const struct gr_sample_edit *e;
    const struct gr_sample_row h = {
        .repeat = s->p.penalty_repeat, .freq = s->p.penalty_freq, .present = s->p.penalty_present};
    memcpy(s->logits, logits, (size_t)s->p.n_vocab * sizeof *logits);
    for (int32_t n = gr_sampler_edits(s, &e); n > 0; n--, e++)
        s->logits[e->id] = gr_sample_edited(s->logits[e->id], &h, *e);
    for (int32_t i = 0; mask && i < s->p.n_vocab; i++)
        if (!gr_sample_allowed(mask, i))
            s->logits[i] = -INFINITY;
}

/* The id of the largest logit, the lowest of equals; GR_SAMPLE_NONE if all are -inf, GR_SAMPLE_NAN
 * if any is NaN. */
static int32_t find_largest(const float *logits, int32_t n)
{
    int32_t best = GR_SAMPLE_NONE;
    bool nan = false;
    float x = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        nan |= isnan(logits[i]);
        if (logits[i] > x)
            x = logits[i], best = i;
    }
    return nan ? GR_SAMPLE_NAN : best;
}

static int32_t draw_mirostat(struct gr_sampler *s)
{
    gr_candidates_softmax(&s->set, s->p.temp);
    gr_candidates_surprise(&s->set, s->mu);
    struct gr_candidate c = s->set.c[gr_candidates_draw(&s->set, &s->rng)];
    s->n_drawn++;
    s->mu -= s->p.mirostat_eta * (-log2(c.p) - s->p.mirostat_tau);
    return c.id;
}

static int32_t draw_chain(struct gr_sampler *s)
{
    const struct gr_sampler_params *p = &s->p;
    if (p->typical_p < 1 || p->top_p < 1 || p->min_p > 0)
        gr_candidates_softmax(&s->set, 1);
    if (p->typical_p < 1)
        gr_candidates_typical(&s->set, p->typical_p);
    if (p->top_p < 1)
        gr_candidates_top_p(&s->set, p->top_p);
    if (p->min_p > 0)
        gr_candidates_min_p(&s->set, p->min_p);
    gr_candidates_softmax(&s->set, p->temp);
    s->n_drawn++;
    return s->set.c[gr_candidates_draw(&s->set, &s->rng)].id;
}

int gr_sampler_result(int32_t id)
{
    if (id == GR_SAMPLE_EXCLUDED)
        return gr_fail(GR_E_CHECK,
                       "the logit bias, penalties, mask and grammar leave no token to choose from");
    return id >= 0 ? 0
                   : gr_fail(GR_E_CHECK, "non-finite logits: %s",
                             id == GR_SAMPLE_NONE ? "all are -inf" : "one is NaN");
}

int gr_sampler_pick(struct gr_sampler *s, const float *logits, int32_t *id)
{
    int32_t n = s->p.n_vocab, raw = find_largest(logits, n), best;
    const uint32_t *mask;
    if (raw == GR_SAMPLE_NAN)
        return gr_sampler_result(raw);
    int rc = gr_sampler_mask(s, &mask);
    if (rc)
        return rc;
    edit(s, logits, mask);
    best = find_largest(s->logits, n);
    if (best < 0)
        return gr_sampler_result(raw == GR_SAMPLE_NONE ? raw : GR_SAMPLE_EXCLUDED);
    if (s->p.temp <= 0) {
        *id = best;
        return 0;
    }
    bool chain = !s->p.mirostat;
    gr_candidates_fill(&s->set, s->logits, n, chain && s->p.top_k > 0 ? s->p.top_k : n);
    *id = chain ? draw_chain(s) : draw_mirostat(s);
    return 0;
}

/* ---- draws by a device ---- */

int gr_sampler_fits_device(const struct gr_sampler *s, int32_t n_vocab)
{
    const struct gr_sampler_params *p = &s->p;
    const char *what = p->temp > 0 && p->mirostat           ? "mirostat"
                       : p->temp > 0 && p->typical_p < 1    ? "typical sampling"
                       : n_vocab > (int32_t)GR_SAMPLE_VOCAB ? "a vocabulary above 2^18"
                                                            : NULL;
    if (p->n_vocab != n_vocab)
        return gr_fail(GR_E_INVALID, "sampling: expected a sampler of %d tokens, found one of %d",
                       n_vocab, p->n_vocab);
    return what ? gr_fail(GR_E_UNSUPPORTED, "sampling: a device cannot sample with %s", what) : 0;
}

struct gr_sample_row gr_sampler_next(struct gr_sampler *s)
{
    uint64_t at = s->n_drawn + s->n_next;
    s->n_next += s->p.temp > 0;
    return (struct gr_sample_row){.temp = s->p.temp,
                                  .top_p = s->p.top_p,
                                  .min_p = s->p.min_p,
                                  .top_k = s->p.top_k,
                                  .seed = {(uint32_t)s->p.seed, (uint32_t)(s->p.seed >> 32)},
                                  .counter = {(uint32_t)at, (uint32_t)(at >> 32)},
                                  .repeat = s->p.penalty_repeat,
                                  .freq = s->p.penalty_freq,
                                  .present = s->p.penalty_present};
}

bool gr_sampler_looks_back(const struct gr_sampler *s)
{
    return s->n_window || s->mask || s->grammar;
}

void gr_sampler_finish(struct gr_sampler *s, bool done)
{
    for (; s->n_next; s->n_next--) {
        s->n_drawn += done;
        if (done)
            (void)gr_rng_double(&s->rng);
    }
}
