/* The sampler: from logits to one token.
 *
 *   logit bias -> mask -> chain -> draw
 *
 * Penalties and DRY at the begin of the chain change logits of the whole vocabulary; from the first
 * other sampler on the chain works on candidates (sample/candidates.h). Each filter sees the
 * probabilities of the candidates that are left, at the temperature so far. The draw is plain, or
 * that of mirostat (Basu et al. 2021) or adaptive-p.
 *
 * Biases of the same token add up; an infinite one replaces the logit. The logit of a token that
 * occurs c > 0 times in the last penalty_last_n tokens is divided by penalty_repeat (multiplied,
 * when it is negative or 0) and lowered by c * penalty_freq + penalty_present (gr_sample_edited).
 *
 * The same seed, parameters, logits and accepted tokens give the same ids on every machine with the
 * same libm. */
#include "sample/sampler.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"
#include "grammar/grammar.h"
#include "model/model.h"
#include "sample/breakers.h"
#include "sample/candidates.h"
#include "sample/dry.h"
#include "sample/params.h"

struct gr_sampler {
    struct gr_sampler_params p; /* logit_bias is an owned copy, each token once */
    struct gr_sampler_chain chain;
    int32_t n_edit; /* samplers at the begin of the chain that edit all logits */
    bool greedy;    /* what is drawn is the largest logit after those */
    struct gr_rng rng;
    uint64_t n_drawn, n_next; /* numbers taken from rng; draws that a session has in progress */
    double mu;                /* mirostat: surprise allowed at present, in bits */
    struct {                  /* adaptive-p: decaying sums over the tokens of the text */
        double p, weight;     /* of their probabilities; of 1 */
        int32_t id;           /* the last one drawn, with its probability; -1: accepted */
        double p_id;
    } adaptive;
    float *logits;   /* [n_vocab] after bias, mask and the editing samplers */
    int32_t *recent; /* ring [n_window] of accepted tokens */
    int32_t *count;  /* [n_vocab] occurrences of each token in the ring */
    uint32_t n_window, n_accepted;
    struct gr_sample_edit *edits;     /* [n_bias + n_window] of the next draw */
    const uint32_t *mask;             /* the caller's, or NULL */
    struct gr_grammar_state *grammar; /* the caller's, or NULL */
    uint32_t *both;                   /* what mask and grammar allow */
    struct gr_dry *dry;               /* NULL: off */
    /* the current draw */
    struct gr_candidates set; /* empty until the first sampler that filters */
    double temp;              /* that the probabilities of the set are to have */
    bool fresh;               /* they have it */
};

/* ---- making one ---- */

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

static int allocate_window(struct gr_sampler *s)
{
    const struct gr_sampler_params *p = &s->p;
    if (!gr_sampler_penalises(p))
        return 0;
    s->n_window = (uint32_t)(p->penalty_last_n < 0 ? p->n_ctx : p->penalty_last_n);
    s->recent = gr_calloc(s->n_window, sizeof *s->recent);
    s->count = gr_calloc((size_t)p->n_vocab, sizeof *s->count);
    return s->recent && s->count ? 0 : GR_E_NOMEM_HOST;
}

/* Opens DRY, with the breakers of `of` unless NULL, which has the same parameters. */
static int open_dry(struct gr_sampler *s, const struct gr_sampler *of)
{
    const struct gr_sampler_params *p = &s->p;
    struct gr_breakers breakers = {0};
    int rc = 0;
    if (p->dry_multiplier <= 0 || !p->dry_penalty_last_n)
        return 0;
    if (of)
        return gr_dry_new_like(&s->dry, of->dry);
    for (int32_t i = 0; p->model && i < p->n_dry_breakers && !rc; i++)
        rc = gr_breakers_add_text(&breakers, p->model->vocab, p->dry_breakers[i]);
    if (rc) {
        gr_breakers_fini(&breakers);
        return rc;
    }
    struct gr_dry_params dry = {
        .multiplier = p->dry_multiplier,
        .base = p->dry_base,
        .allowed = p->dry_allowed_length,
        .window = p->dry_penalty_last_n < 0 ? p->n_ctx : p->dry_penalty_last_n,
        .n_vocab = p->n_vocab,
    };
    return gr_dry_new(&s->dry, &dry, &breakers);
}

static int allocate(struct gr_sampler *s, const struct gr_sampler_params *p,
                    const struct gr_sampler *of)
{
    size_t n = (size_t)p->n_vocab, n_bias = (size_t)p->n_logit_bias;
    struct gr_logit_bias *bias = gr_calloc(n_bias, sizeof *bias);
    s->p.logit_bias = bias;
    s->logits = gr_calloc(n, sizeof *s->logits);
    if (!s->greedy) {
        s->set.c = gr_calloc(n, sizeof *s->set.c);
        s->set.rank = gr_calloc(n, sizeof *s->set.rank);
    }
    int rc = allocate_window(s);
    s->edits = gr_calloc(n_bias + GR_MIN(s->n_window, n), sizeof *s->edits);
    int32_t *at = gr_calloc(n_bias ? n : 1, sizeof *at);
    if (!bias || !s->edits || !s->logits || !at || (!s->greedy && (!s->set.c || !s->set.rank)))
        rc = GR_E_NOMEM_HOST;
    if (!rc)
        s->p.n_logit_bias = merge_bias(bias, p, at);
    gr_free(at);
    return rc ? rc : open_dry(s, of);
}

static bool edits_logits(enum gr_sampler_kind kind)
{
    return kind == GR_SAMPLER_PENALTIES || kind == GR_SAMPLER_DRY;
}

/* Returns whether a sampler never leaves out the largest logit. */
static bool keeps_largest(enum gr_sampler_kind kind)
{
    return kind == GR_SAMPLER_TOP_K || kind == GR_SAMPLER_TOP_P || kind == GR_SAMPLER_MIN_P ||
           kind == GR_SAMPLER_TOP_N_SIGMA;
}

static void look_at_chain(struct gr_sampler *s)
{
    const struct gr_sampler_chain *c = &s->chain;
    bool penalises = false, dries = false;
    for (; s->n_edit < c->n && edits_logits(c->kind[s->n_edit]); s->n_edit++) {
        penalises |= c->kind[s->n_edit] == GR_SAMPLER_PENALTIES;
        dries |= c->kind[s->n_edit] == GR_SAMPLER_DRY;
    }
    int32_t i = s->n_edit;
    while (i < c->n && keeps_largest(c->kind[i]))
        i++;
    s->greedy = i < c->n && c->kind[i] == GR_SAMPLER_TEMPERATURE && s->p.temp <= 0 &&
                s->p.dynatemp_range <= 0;
    if (s->greedy && !penalises)
        s->p.penalty_last_n = 0; /* they come after the draw */
    if (s->greedy && !dries)
        s->p.dry_multiplier = 0;
}

/* Makes a sampler; of: one with these parameters already, NULL: there is none. */
static int make(struct gr_sampler **out, const struct gr_sampler_params *params,
                const struct gr_sampler *of)
{
    struct gr_sampler *s = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->p = *params;
    s->chain = gr_sampler_chain(&s->p);
    look_at_chain(s);
    int rc = allocate(s, params, of);
    if (rc) {
        gr_sampler_free(&s);
        return rc;
    }
    s->rng = gr_rng_new(params->seed);
    s->mu = 2.0 * params->mirostat_tau;
    s->adaptive.weight = 1 / (1 - (double)params->adaptive_decay);
    s->adaptive.p = params->adaptive_target * s->adaptive.weight;
    s->adaptive.id = -1;
    *out = s;
    return 0;
}

int gr_sampler_new(struct gr_sampler **out, const struct gr_sampler_params *params)
{
    *out = NULL;
    int rc = gr_sampler_check(params);
    return rc ? rc : make(out, params, NULL);
}

int gr_sampler_new_like(struct gr_sampler **out, const struct gr_sampler *of, uint64_t seed)
{
    struct gr_sampler_params p = of->p;
    p.seed = seed;
    *out = NULL;
    return make(out, &p, of);
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
    gr_dry_free(&s->dry);
    gr_free(s);
    *sampler = NULL;
}

static void accept_in_window(struct gr_sampler *s, int32_t id)
{
    int32_t *slot = &s->recent[s->n_accepted % s->n_window];
    if (s->n_accepted >= s->n_window)
        s->count[*slot]--;
    *slot = id;
    s->count[id]++;
    /* Wrapping from 2 n_window to n_window keeps "the ring is full" true and the slot correct. */
    s->n_accepted = s->n_accepted + 1 < 2 * s->n_window ? s->n_accepted + 1 : s->n_window;
}

int gr_sampler_accept(struct gr_sampler *s, int32_t id)
{
    if (id < 0 || id >= s->p.n_vocab)
        return gr_fail(GR_E_INVALID, "sampling: token %d, but the vocabulary ends at %d", id,
                       s->p.n_vocab - 1);
    int rc = s->grammar ? gr_grammar_accept(s->grammar, id) : 0;
    if (rc)
        return rc;
    if (s->n_window)
        accept_in_window(s, id);
    if (s->dry)
        gr_dry_accept(s->dry, id);
    if (s->adaptive.id == id) {
        s->adaptive.p = s->adaptive.p_id + s->p.adaptive_decay * s->adaptive.p;
        s->adaptive.weight = 1 + s->p.adaptive_decay * s->adaptive.weight;
    }
    s->adaptive.id = -1;
    return 0;
}

/* ---- edits of logits ---- */

/* Lists the distinct tokens of the window, with their counts, behind the first n edits; returns the
 * number of all. */
static int32_t list_recent(struct gr_sampler *s, int32_t n)
{
    for (int32_t i = 0; i < n && s->count;
         i++) { /* a negative count marks a token that is listed */
        s->edits[i].count = s->count[s->edits[i].id];
        s->count[s->edits[i].id] = -s->edits[i].count;
    }
    for (uint32_t i = 0; i < GR_MIN(s->n_accepted, s->n_window); i++) {
        int32_t id = s->recent[i], c = s->count[id];
        if (c > 0)
            s->edits[n++] = (struct gr_sample_edit){.id = id, .count = c}, s->count[id] = -c;
    }
    for (int32_t i = 0; i < n && s->count; i++)
        s->count[s->edits[i].id] = s->edits[i].count;
    return n;
}

int32_t gr_sampler_edits(struct gr_sampler *s, const struct gr_sample_edit **edits)
{
    int32_t n = s->p.n_logit_bias;
    for (int32_t i = 0; i < n; i++)
        s->edits[i] =
            (struct gr_sample_edit){.id = s->p.logit_bias[i].id, .bias = s->p.logit_bias[i].bias};
    *edits = s->edits;
    return list_recent(s, n);
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

/* Sets s->logits to the logits after bias and mask. */
static void copy_logits(struct gr_sampler *s, const float *logits, const uint32_t *mask)
{
    const struct gr_sample_row h = {0};
    memcpy(s->logits, logits, (size_t)s->p.n_vocab * sizeof *logits);
    for (int32_t i = 0; i < s->p.n_logit_bias; i++) {
        struct gr_logit_bias b = s->p.logit_bias[i];
        struct gr_sample_edit e = {.id = b.id, .bias = b.bias};
        s->logits[b.id] = gr_sample_edited(s->logits[b.id], &h, e);
    }
    for (int32_t i = 0; mask && i < s->p.n_vocab; i++)
        if (!gr_sample_allowed(mask, i))
            s->logits[i] = -INFINITY;
}

/* Returns the logit of a token: of all, or of the candidates once there are some; NULL: it is none
 * of them. */
static float *logit_of(struct gr_sampler *s, int32_t id)
{
    int32_t lo = 0, hi = s->set.n;
    if (!hi)
        return &s->logits[id];
    while (lo < hi) {
        int32_t middle = lo + (hi - lo) / 2;
        if (s->set.c[middle].id < id)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < s->set.n && s->set.c[lo].id == id ? &s->set.c[lo].logit : NULL;
}

static void penalise(struct gr_sampler *s)
{
    const struct gr_sample_row h = {
        .repeat = s->p.penalty_repeat, .freq = s->p.penalty_freq, .present = s->p.penalty_present};
    int32_t n = list_recent(s, 0);
    for (const struct gr_sample_edit *e = s->edits; e < s->edits + n; e++) {
        float *x = logit_of(s, e->id);
        if (x)
            *x = gr_sample_edited(*x, &h, *e);
    }
}

static void penalise_repetitions(struct gr_sampler *s)
{
    const struct gr_dry_penalty *d;
    for (int32_t n = gr_dry_penalties(s->dry, &d); n > 0; n--, d++) {
        float *x = logit_of(s, d->id);
        if (x)
            *x -= d->penalty;
    }
}

static void edit(struct gr_sampler *s, enum gr_sampler_kind kind)
{
    if (kind == GR_SAMPLER_PENALTIES)
        penalise(s);
    else
        penalise_repetitions(s);
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

/* ---- the chain ---- */

static double next_random(struct gr_sampler *s)
{
    s->n_drawn++;
    return gr_rng_double(&s->rng);
}

static void refresh(struct gr_sampler *s)
{
    if (!s->fresh)
        gr_candidates_softmax(&s->set, s->temp);
    s->fresh = true;
}

/* Edits logits of candidates, at their temperature. */
static void edit_candidates(struct gr_sampler *s, enum gr_sampler_kind kind)
{
    gr_candidates_scale(&s->set, s->temp);
    s->temp = 1;
    edit(s, kind);
    gr_candidates_scale(&s->set, 1); /* limits what penalties have made of them */
}

static void set_temperature(struct gr_sampler *s)
{
    double temp = s->p.temp, range = s->p.dynatemp_range;
    if (range > 0) {
        refresh(s);
        temp = gr_candidates_temperature(&s->set, fmax(0, temp - range), fmax(0, temp + range),
                                         s->p.dynatemp_exponent);
    }
    if (temp > 0)
        s->temp = fmax(s->temp * temp, 1e-300);
    else
        gr_candidates_top_k(&s->set, 1);
}

/* Runs a sampler that leaves the probabilities of its candidates in order. */
static void filter(struct gr_sampler *s, enum gr_sampler_kind kind)
{
    refresh(s);
    if (kind == GR_SAMPLER_TYPICAL)
        gr_candidates_typical(&s->set, s->p.typical_p);
    else if (kind == GR_SAMPLER_TOP_P)
        gr_candidates_top_p(&s->set, s->p.top_p);
    else if (kind == GR_SAMPLER_MIN_P)
        gr_candidates_min_p(&s->set, s->p.min_p);
    else
        gr_candidates_xtc(&s->set, s->p.xtc_threshold);
}

static void run(struct gr_sampler *s, enum gr_sampler_kind kind)
{
    switch (kind) {
    case GR_SAMPLER_TYPICAL:
    case GR_SAMPLER_TOP_P:
    case GR_SAMPLER_MIN_P:
        filter(s, kind);
        return;
    case GR_SAMPLER_XTC:
        if (s->set.n > 1 && next_random(s) < s->p.xtc_probability)
            filter(s, kind);
        return;
    case GR_SAMPLER_TOP_K:
        gr_candidates_top_k(&s->set, s->p.top_k);
        break;
    case GR_SAMPLER_TOP_N_SIGMA:
        gr_candidates_top_n_sigma(&s->set, s->p.top_n_sigma);
        break;
    case GR_SAMPLER_TEMPERATURE:
        set_temperature(s);
        break;
    default:
        edit_candidates(s, kind);
        break;
    }
    s->fresh = false;
}

/* Makes candidates of the logits and runs the rest of the chain on them. */
static void run_chain(struct gr_sampler *s)
{
    int32_t i = s->n_edit, n = s->p.n_vocab;
    bool top_k = i < s->chain.n && s->chain.kind[i] == GR_SAMPLER_TOP_K;
    gr_candidates_fill(&s->set, s->logits, n, top_k ? s->p.top_k : n);
    s->temp = 1, s->fresh = false;
    for (i += top_k; i < s->chain.n; i++)
        run(s, s->chain.kind[i]);
    gr_candidates_softmax(&s->set, s->temp);
}

/* ---- the draw ---- */

static int32_t draw(struct gr_sampler *s)
{
    s->n_drawn++;
    return gr_candidates_draw(&s->set, &s->rng);
}

static int32_t draw_mirostat(struct gr_sampler *s)
{
    if (s->p.mirostat == 1)
        gr_candidates_mirostat(&s->set, s->mu, s->p.n_vocab);
    else
        gr_candidates_surprise(&s->set, s->mu);
    struct gr_candidate c = s->set.c[draw(s)];
    s->mu -= s->p.mirostat_eta * (-log2(c.p) - s->p.mirostat_tau);
    return c.id;
}

static int32_t draw_adaptive(struct gr_sampler *s)
{
    double target = s->p.adaptive_target, mean = s->adaptive.p / s->adaptive.weight;
    gr_candidates_adapt(&s->set, fmin(fmax(2 * target - mean, 0), 1));
    int32_t i = draw(s);
    s->adaptive.id = s->set.c[i].id, s->adaptive.p_id = s->set.rank[i].weight;
    return s->adaptive.id;
}

static int32_t draw_token(struct gr_sampler *s)
{
    return s->p.mirostat       ? draw_mirostat(s)
           : s->chain.adaptive ? draw_adaptive(s)
                               : s->set.c[draw(s)].id;
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
    copy_logits(s, logits, mask);
    s->set.n = 0;
    for (int32_t i = 0; i < s->n_edit; i++)
        edit(s, s->chain.kind[i]);
    best = find_largest(s->logits, n);
    if (best < 0)
        return gr_sampler_result(raw == GR_SAMPLE_NONE ? raw : GR_SAMPLE_EXCLUDED);
    if (s->greedy) {
        *id = best;
        return 0;
    }
    run_chain(s);
    *id = draw_token(s);
    return 0;
}

/* ---- draws by a device ---- */

/* Returns the name of what a device does not do, or NULL: it does penalties, then the largest logit
 * or top-k, top-p, min-p and temperature. */
static const char *not_on_device(const struct gr_sampler *s)
{
    static const enum gr_sampler_kind order[] = {GR_SAMPLER_PENALTIES, GR_SAMPLER_TOP_K,
                                                 GR_SAMPLER_TOP_P, GR_SAMPLER_MIN_P,
                                                 GR_SAMPLER_TEMPERATURE};
    size_t at = 0;
    for (int32_t i = 0; i < (s->greedy ? s->n_edit : s->chain.n); i++) {
        while (at < GR_COUNT(order) && order[at] != s->chain.kind[i])
            at++;
        if (at++ >= GR_COUNT(order))
            return gr_sampler_kind_name(s->chain.kind[i]);
    }
    return s->greedy                 ? NULL
           : s->p.mirostat           ? "mirostat"
           : s->chain.adaptive       ? gr_sampler_kind_name(GR_SAMPLER_ADAPTIVE_P)
           : s->p.dynatemp_range > 0 ? "a dynamic temperature"
                                     : NULL;
}

int gr_sampler_fits_device(const struct gr_sampler *s, int32_t n_vocab)
{
    const char *what =
        n_vocab > (int32_t)GR_SAMPLE_VOCAB ? "a vocabulary above 2^18" : not_on_device(s);
    if (s->p.n_vocab != n_vocab)
        return gr_fail(GR_E_INVALID, "sampling: expected a sampler of %d tokens, found one of %d",
                       n_vocab, s->p.n_vocab);
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
    return s->n_window || s->mask || s->grammar || s->dry;
}

void gr_sampler_finish(struct gr_sampler *s, bool done)
{
    for (; s->n_next; s->n_next--) {
        s->n_drawn += done;
        if (done)
            (void)gr_rng_double(&s->rng);
    }
}
