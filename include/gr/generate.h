/* Text from a prompt: a part of gpurun.h, which includes it, made of the others. */
#ifndef GR_GENERATE_H
#define GR_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gr/api.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gr_model;
struct gr_session;
struct gr_session_params;
struct gr_sampler_params;
struct gr_grammar_state;
struct gr_draft;

/* ---- the text of tokens, up to a stop string ---- */

/* Turns the tokens of a generation into text: a detokenizer (gr_detok), so that only complete
 * characters come out, and the stop strings behind it (gr_stop). A stop string that is the name of
 * a control token ends the text at that token too. */
struct gr_text_stream;
/* n_stop strings as in gr_stop_new, copied; NULL and 0: none. The model must stay open. special:
 * control tokens are written too. */
GR_API int gr_text_stream_new(struct gr_text_stream **out, const struct gr_model *model,
                              bool special, const char *const *stop, const size_t *lengths,
                              int32_t n_stop);
/* Adds a token. *p [*n]: the text that is certain now, valid until the next call. *stop: the string
 * that ends the text, or -1; all that is added behind it is dropped. */
GR_API int gr_text_stream_push(struct gr_text_stream *t, int32_t id, const char **p, size_t *n,
                               int32_t *stop);
/* Returns at the end of a text what is held back, an incomplete character as U+FFFD, and begins
 * anew. *p, *n, *stop as above. */
GR_API int gr_text_stream_flush(struct gr_text_stream *t, const char **p, size_t *n, int32_t *stop);
GR_API void gr_text_stream_free(struct gr_text_stream **t);

/* ---- text from a prompt ---- */

/* Why a text ended. */
enum gr_end {
    GR_END_LENGTH,  /* n_predict tokens */
    GR_END_EOG,     /* a token that ends a generation */
    GR_END_STOP,    /* a stop string */
    GR_END_CONTEXT, /* no cell is left, or no learned position */
    GR_END_CALLER   /* the callback returned non-zero */
};

/* Receives the next n > 0 bytes of the text, whole characters; returns non-zero to end it. */
typedef int gr_text_fn(const char *text, size_t n, void *user);

struct gr_generate_params {
    gr_text_fn *text; /* NULL: the text is dropped */
    void *user;
    int32_t n_predict;       /* most tokens; negative (default): until the text ends */
    const char *const *stop; /* [n_stop] stop strings */
    int32_t n_stop;
    bool special; /* write control tokens too */
    /* n_vocab, n_ctx and model are set by the call. NULL: the default parameters, and those that
     * the model's file has. */
    const struct gr_sampler_params *sampler;
    struct gr_grammar_state *grammar; /* what the text may be; moves on with it. NULL: anything */
    struct gr_draft *draft; /* new, used up by the call; the session must be able to take tokens
                               back (gr_draft_params, swa_full). NULL: none */
};
GR_API struct gr_generate_params gr_generate_params_default(void);

/* Result of a generation, filled in by a call that failed too. */
struct gr_generated {
    enum gr_end end;
    int32_t stop;     /* stop string that ended the text, or -1 */
    int32_t n_prompt; /* tokens of the prompt that were run */
    int32_t n_token;  /* tokens of the text, the one that ended it included */
    int32_t last;     /* the last of these, or -1; what continues the text begins with it */
    double prompt_s;  /* seconds for the prompt, until its logits were there */
    double first_s;   /* from the beginning of the prompt to the first token; 0: there was none */
    double token_s;   /* for the tokens behind the first one */
};

/* Continues a prompt of n bytes in a session of its own, with BOS as the model wants; control
 * tokens in the prompt are recognised (for texts from strangers see gr_prompt_tokenize). `session`:
 * its parameters, with n_ctx 0 as many cells as the prompt and n_predict need, at most the training
 * context; NULL: default ones. params and result may be NULL. GR_E_INVALID: an empty prompt, or a
 * parameter out of range; GR_E_KV_FULL: the prompt does not fit; otherwise as gr_session_open and
 * gr_generate_tokens. */
GR_API int gr_generate(struct gr_model *model, const char *prompt, size_t n,
                       const struct gr_session_params *session,
                       const struct gr_generate_params *params, struct gr_generated *result);

/* The same for n > 0 tokens, in a session of logits, behind what its sequence seq holds; by a model
 * with an encoder they are read by that. Afterwards the sequence holds also these tokens and those
 * of the text but `last`, which has not been decoded. What failed or was cancelled
 * (gr_session_cancel) while it ran leaves the tokens decoded before it. A sampler of the caller's
 * (gr_session_set_sampler) is no longer set for the sequence. */
GR_API int gr_generate_tokens(struct gr_session *s, int32_t seq, const int32_t *ids, size_t n,
                              const struct gr_generate_params *params, struct gr_generated *result);

#ifdef __cplusplus
}
#endif
#endif
