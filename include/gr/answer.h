/* Reading what a model answers: text, reasoning and tool calls. A part of gpurun.h, which includes
 * it.
 *
 * A *format* is the way in which a family of models writes calls and reasoning. An answer is read
 * as it is generated, in pieces cut anywhere, and comes back as deltas; how it was cut changes
 * nothing but the lengths of the deltas. Marks of formats are often control tokens, so they must be
 * in the text that is fed: the caller's detokenizer is one with `special` (gr_detok_new,
 * gr_text_piece); tokens that end the generation (gr_text_is_eog) are not fed.
 *
 * Held back is only what may still become a mark, with the blanks before it, and a call until its
 * name is known and its arguments begin; arguments in other notations than JSON come one by one, as
 * JSON. Marks around texts and calls are dropped. Time and memory are linear in the length of the
 * answer. */
#ifndef GR_ANSWER_H
#define GR_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gr/api.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gr_answer;
struct gr_grammar;
struct gr_model;

#define GR_ANSWER_MAX_DEPTH 128 /* nesting of the JSON of a call */
#define GR_ANSWER_MAX_NAME 256  /* bytes of a function's name, of a call's id */

/* Name of the i-th format ("hermes"), NULL past the last one; static. *about (unless NULL): the
 * models that write it. */
GR_API const char *gr_answer_known(int32_t i, const char **about);
/* The format that the text of a chat template [n] asks its model for, by the marks that stand in
 * it: a name of gr_answer_known. "plain", which has reasoning and no calls: it mentions none. */
GR_API const char *gr_answer_format(const char *template_text, size_t n);

enum gr_answer_part {
    GR_ANSWER_TEXT,      /* text [n], for the reader */
    GR_ANSWER_REASONING, /* text [n] of a block of reasoning, without its marks */
    GR_ANSWER_CALL,      /* a call begins: `call`, `name`, `id` */
    GR_ANSWER_ARGUMENTS, /* text [n] of its arguments; all together they are one JSON object */
    GR_ANSWER_ID,        /* `id` of a call that the model writes behind its arguments */
    GR_ANSWER_DONE,      /* the call is complete and well-formed: it may be executed */
    GR_ANSWER_WITHDRAWN  /* the calls from number `call` on, none of them done, were none: all that
                            was read of them follows as text, and the number is used again */
};
struct gr_answer_delta {
    enum gr_answer_part part;
    int32_t call;     /* number of the call in this answer, from 0; -1 for text and reasoning */
    const char *name; /* of the function, as a zero-terminated string; NULL but for CALL */
    const char *id;   /* of CALL and ID; "" when the model has written none (yet) */
    const char *text; /* [n], not zero-terminated */
    size_t n;
};
/* Receives a delta, valid during the call. A status other than 0 ends the reading with it. */
typedef int gr_answer_fn(const struct gr_answer_delta *delta, void *user);

/* Parameters of reading an answer. */
struct gr_answer_params {
    const char *format; /* of gr_answer_known */
    const char *prompt; /* [n_prompt] end of the rendered prompt, which may have opened a block of
                           reasoning ("<think>\n") or a call; NULL: it has not */
    size_t n_prompt;
    const char *tools; /* [n_tools] JSON array of tools as in requests to servers; types of
                          parameters for formats that do not write them (values are strings where
                          the type is "string"); NULL: there are none, so that an object without a
                          mark is an answer and no call, and what reads as JSON is JSON */
    size_t n_tools;
    bool no_calls; /* a call is text, as the model wrote it */
    gr_answer_fn *fn;
    void *user;
};
/* Begins an answer; nothing of params is kept but fn and user. GR_E_INVALID: no such format, or
 * tools are no JSON array. */
GR_API int gr_answer_new(struct gr_answer **out, const struct gr_answer_params *params);
/* Reads n more bytes. What begins like a call and goes on otherwise (a bad JSON, an unknown key, a
 * limit exceeded) comes out as text, byte by byte as it was fed, up to where it went wrong, from
 * where marks count again. Blanks between the parts of an answer belong to none of them. After a
 * failure every call returns its status. */
GR_API int gr_answer_push(struct gr_answer *a, const char *p, size_t n);
/* Ends the answer: gives what was held back. A call is complete when only its closing marks are
 * missing; any other open call is withdrawn and comes out as text. Then `a` may only be freed. */
GR_API int gr_answer_end(struct gr_answer *a);
GR_API void gr_answer_free(struct gr_answer **a);

/* Calls that a model shall make. */
struct gr_answer_calls {
    const char *format; /* of gr_answer_known */
    const char *tools;  /* [n_tools] JSON array of tools as in requests to servers */
    size_t n_tools;
    const char *name; /* of the function to call; NULL: any of them */
    bool several;     /* allow more than one call, where the format has several */
    /* Free text, which ends with the answer or with calls: the grammar limits tokens from the mark
     * on that begins a call, wherever the model writes it. Reasoning may stand in front, marks
     * within it are none. Where the vocabulary has the mark as a control token it is that token
     * alone. */
    bool optional;
    const char *prompt; /* [n_prompt] of optional: the end of the rendered prompt, which may have
                           opened a block of reasoning; NULL: it has not */
    size_t n_prompt;
};
/* Makes a grammar by which a whole answer is a call, or several, as the format writes them: the
 * names are those of the tools, the arguments valid by their schemas (host/grammar/SCHEMA.md). It
 * holds from the first token of the answer on; without `optional` the prompt must not have opened a
 * block of reasoning. GR_E_INVALID: no such format, a tool without a usable name, no such function,
 * or a schema that cannot be kept; GR_E_UNSUPPORTED: optional calls that begin with no mark
 * (llama3, json, functionary-v3.2); GR_E_TOO_LARGE: a limit of grammars. */
GR_API int gr_answer_grammar(struct gr_grammar **out, const struct gr_model *model,
                             const struct gr_answer_calls *calls);

#ifdef __cplusplus
}
#endif
#endif
