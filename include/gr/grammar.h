/* The grammar part of gpurun.h, which includes it.
 *
 * A grammar says what a generated text may be, to the byte. It comes from a text in GBNF, the
 * notation of llama.cpp, or from a JSON schema, and belongs to the vocabulary of a model, which
 * must stay open. Any number of states of it can be at different points of different texts, in
 * several threads. Tokens stand for their bytes; control tokens are allowed where the grammar names
 * them, tokens that end a text exactly where the grammar may end. */
#ifndef GR_GRAMMAR_H
#define GR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gr/api.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gr_model;
struct gr_grammar;
struct gr_grammar_state;

/* n bytes, at most 64 KiB. GR_E_INVALID: the message has the line and column of what is wrong;
 * GR_E_TOO_LARGE: another limit. */
GR_API int gr_grammar_gbnf(struct gr_grammar **out, const struct gr_model *model, const char *text,
                           size_t n);
/* The same for a JSON schema (draft 2020-12); the text is JSON on few lines, without blanks or
 * indented. GR_E_INVALID names the keyword that is wrong or not supported by a JSON pointer. */
GR_API int gr_grammar_schema(struct gr_grammar **out, const struct gr_model *model,
                             const char *schema, size_t n);
/* States live on; the memory goes with the last of them. */
GR_API void gr_grammar_free(struct gr_grammar **grammar);

/* A state at the beginning of a text. */
GR_API int gr_grammar_state_new(struct gr_grammar_state **out, struct gr_grammar *grammar);
GR_API void gr_grammar_state_free(struct gr_grammar_state **state);
/* Makes `to` what `from` is, of the same grammar: a few bytes, so a copy before tokens that may be
 * taken back undoes them. */
GR_API int gr_grammar_state_copy(struct gr_grammar_state *to, const struct gr_grammar_state *from);
/* Back to the beginning. */
GR_API void gr_grammar_state_reset(struct gr_grammar_state *state);
/* Moves on by a token. GR_E_INVALID: the grammar does not allow it here. */
GR_API int gr_grammar_accept(struct gr_grammar_state *state, int32_t id);
/* *mask [(n_vocab + 31) / 32]: bit id % 32 of word id / 32 is set when token id may follow; valid
 * until the state's next call. GR_E_CHECK: the vocabulary has no token that may follow. */
GR_API int gr_grammar_allowed(struct gr_grammar_state *state, const uint32_t **mask);
/* Returns whether the text so far may end here. */
GR_API bool gr_grammar_may_end(const struct gr_grammar_state *state);

#ifdef __cplusplus
}
#endif
#endif
