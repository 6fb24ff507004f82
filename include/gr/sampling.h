/* The part of gpurun.h, which includes it, about picking tokens: samplers, and drafts that the
 * sampler judges. */
#ifndef GR_SAMPLING_H
#define GR_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gr/api.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gr_model;
struct gr_session;
struct gr_grammar_state;
struct gr_sampler;

/* ---- sampling ---- */

struct gr_logit_bias {
    int32_t id;
    float bias; /* -INFINITY bans the token */
};

/* A chain of samplers reduces the candidates and changes their logits, one after the other in the
 * order of `samplers`; then a candidate is drawn. */
#define GR_MAX_SAMPLERS 32
#define GR_MAX_DRY_BREAKERS 64
#define GR_MAX_DRY_BREAKER_BYTES 40
struct gr_sampler_params {
    uint64_t seed;
    float temp;            /* <= 0: the largest logit, of equal ones that of the lowest id */
    int32_t top_k;         /* <= 0: off */
    float top_p;           /* >= 1: off */
    float min_p;           /* 0: off */
    float typical_p;       /* >= 1: off */
    float top_n_sigma;     /* logits at most so many standard deviations below the largest; <= 0:
                              off */
    float xtc_probability; /* of leaving out all but the last of the likely tokens; 0: off */
    float xtc_threshold;   /* probability that makes a token likely; > 0.5: off */
    float dynatemp_range;  /* > 0: the entropy chooses a temperature from temp - range to temp +
                              range */
    float dynatemp_exponent;
    int32_t penalty_last_n; /* tokens that penalties look back; 0: off, -1: the context size */
    float penalty_repeat;   /* 1: off */
    float penalty_freq, penalty_present; /* 0: off */
    /* DRY lowers logits by dry_multiplier (0: off) * dry_base ^ (n - dry_allowed_length), for a
     * token that continues a repetition of n tokens, dry_allowed_length or more, within the last
     * dry_penalty_last_n (-1: the context size). */
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_penalty_last_n;
    const char *const *dry_breakers; /* texts that repetitions are not followed across */
    int32_t n_dry_breakers;
    const struct gr_model *model; /* whose tokens have these texts; NULL: there are no breakers */
    float adaptive_target;        /* probability of the tokens drawn, on average; < 0: off */
    float adaptive_decay;         /* of that average, 0 to 0.99 */
    int32_t mirostat; /* 1 or 2: instead of the samplers other than penalties, DRY and temperature;
                         0: off */
    float mirostat_tau, mirostat_eta;
    const struct gr_logit_bias *logit_bias;
    int32_t n_logit_bias;
    char samplers[GR_MAX_SAMPLERS]; /* letters, zero-terminated: e penalties, d DRY, s top-n-sigma,
                                       k top-k, y typical, p top-p, m min-p, x XTC, t temperature, a
                                       adaptive-p, which is always the last; others are off */
    int32_t n_vocab, n_ctx;         /* of the model and the session */
};
/* Temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, others off; "edskypmxta"; breakers newline,
 * colon, quote and asterisk. */
GR_API struct gr_sampler_params gr_sampler_params_default(void);
/* Sets the parameters that the model's file has values for (general.sampling); those that are out
 * of range are logged and ignored. Returns the number of parameters set. */
GR_API int32_t gr_model_sampling(const struct gr_model *model, struct gr_sampler_params *params);
/* Letters of the samplers in a list of names, "top_k;temperature"; GR_E_INVALID: unknown, or too
 * many. */
GR_API int gr_sampler_letters(const char *names, char letters[GR_MAX_SAMPLERS]);
GR_API int gr_sampler_new(struct gr_sampler **out, const struct gr_sampler_params *params);
/* Makes a sampler with the parameters of another one (which may be freed first) and a seed, as new:
 * of no text, without grammar. Compiles no breakers, which takes tens of milliseconds. */
GR_API int gr_sampler_new_like(struct gr_sampler **out, const struct gr_sampler *of, uint64_t seed);
/* Samples an id from logits [n_vocab], left unchanged. GR_E_CHECK: one is NaN, all are -inf, or
 * biases, penalties and grammar leave none that is not. */
GR_API int gr_sampler_pick(struct gr_sampler *s, const float *logits, int32_t *id);
/* Records a token of the text, prompt tokens included, for penalties, DRY and adaptive-p; a grammar
 * that is set moves on by it. GR_E_INVALID: no such token, or one that the grammar does not allow.
 */
GR_API int gr_sampler_accept(struct gr_sampler *s, int32_t id);
GR_API void gr_sampler_free(struct gr_sampler **s);

/* Limits the tokens that are drawn to those that `state` allows (gr/grammar.h; NULL: no longer),
 * and lets gr_sampler_accept move it on; from the next call on, so tokens of a prompt that the
 * grammar does not describe are accepted before. The caller keeps the state and may copy another
 * one to it between draws. GR_E_INVALID: of another vocabulary. */
GR_API int gr_sampler_set_grammar(struct gr_sampler *s, struct gr_grammar_state *state);

/* ---- drafts: speculative decoding ---- */

/* Tokens that probably come next are drafted, decoded in one batch, and kept as far as the sampler
 * picks the same ones; the others are removed from the cache. Each token is what the sampler picks
 * from the model's own logits, so a text has the distribution that it has without drafts, and it is
 * the same text where logits do not depend on the number of tokens in a batch.
 *
 * Drafts come from the text itself (what followed when its last tokens occurred before), otherwise
 * from a draft model with the same vocabulary. */
struct gr_draft;
#define GR_MAX_DRAFT 256 /* tokens */
struct gr_draft_params {
    int32_t n_max;  /* most tokens of a draft, which n_batch of the model's session must exceed, or
                       drafts are shorter; with recurrent layers n_rollback of either session must
                       be at least n_max + 1, because a step that fails removes all its tokens */
    int32_t n_min;  /* shorter drafts are not used; at most n_max */
    float p_min;    /* a draft model's draft ends before a token that it gives less probability */
    int32_t n_gram; /* tokens that must have occurred before, for a draft from the text; 0: none */
    bool adaptive; /* adapt the length of drafts, and pause while they take longer than they save */
    const struct gr_model *model; /* the draft model; NULL: none */
    struct gr_session *session;   /* of the draft model, for the draft alone until it is freed */
};
/* 16 tokens, from the text after 12 that occurred before; adaptive. */
GR_API struct gr_draft_params gr_draft_params_default(void);
/* Drafts for a model. GR_E_INVALID: the vocabularies differ. */
GR_API int gr_draft_new(struct gr_draft **out, const struct gr_draft_params *params,
                        const struct gr_model *target);
/* Records tokens of the text, from its first one on. */
GR_API int gr_draft_accept(struct gr_draft *d, const int32_t *ids, size_t n);
/* Decodes the text's last token, recorded but not decoded yet, and a draft, as the next positions
 * of sequence `seq`. ids [n_most] receives the *n >= 1 tokens that the sampler picks; they are
 * recorded by the draft and the sampler, and all but the last one are in the cache. A token that
 * ends a generation is the last, and so is one behind which no token can be picked: the next step
 * says why. On failure the text is as it was, but for what gr_decode says. */
GR_API int gr_draft_step(struct gr_draft *d, struct gr_session *s, int32_t seq,
                         struct gr_sampler *sampler, int32_t n_most, int32_t *ids, int32_t *n);
struct gr_draft_stats {
    int64_t n_step, n_token;       /* steps, and tokens that they gave */
    int64_t n_drafted, n_accepted; /* tokens */
    double speedup;                /* over steps without drafts, as measured; 0: unknown */
};
GR_API struct gr_draft_stats gr_draft_stats(const struct gr_draft *d);
GR_API void gr_draft_free(struct gr_draft **d);

#ifdef __cplusplus
}
#endif
#endif
