/* Chat templates and the prompts that they make: a part of gpurun.h, which includes it. */
#ifndef GR_PROMPT_H
#define GR_PROMPT_H

#include <stddef.h>
#include <stdint.h>

#include "gr/api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes [lo, hi) of a text. */
struct gr_text_span {
    size_t lo, hi;
};

/* A chat template makes a prompt of a conversation. It is a text in the language Jinja, of which
 * all is understood that templates of models use, as transformers renders them. A parsed template
 * is immutable; several threads may use it. Templates come from strangers: a render does no input
 * or output and ends with an error after 1,000,000 steps, 4 MiB of text, 160 MiB of memory or 64
 * nested calls. Reading JSON takes up to 160 MiB more for the time of it, and some times the length
 * of its text.
 *
 * Each turn of a chat renders the whole conversation again, with add_generation_prompt; what a
 * model has seen of it is the common beginning of the tokens. */
struct gr_template;
struct gr_model;
/* Parses n bytes, at most 1 MiB. GR_E_TEMPLATE, with line and column. */
GR_API int gr_template_new(struct gr_template **out, const char *text, size_t n);
GR_API void gr_template_free(struct gr_template **t);

/* Name of the i-th known template ("chatml"), NULL past the last one. *text (unless NULL): its
 * text. Both are static. */
GR_API const char *gr_template_known(int32_t i, const char **text);
/* The template of a model: of its file or, when that has none, the known one that its vocabulary
 * has the tokens of. *text [*n], owned by the model; *known: the name of a known one, otherwise
 * NULL. GR_E_TEMPLATE: there is none. */
GR_API int gr_model_template(const struct gr_model *model, const char **text, size_t *n,
                             const char **known);

/* A rendered prompt. `input`: the parts of its text that came from the conversation and not from
 * the template, in order, with something between them. */
struct gr_prompt {
    char *text; /* [n], UTF-8, zero-terminated */
    size_t n;
    struct gr_text_span *input; /* [n_input] */
    size_t n_input;
};
/* Renders. json [n]: an object whose members are the template's variables: messages, tools,
 * add_generation_prompt, bos_token and so on. Strings in it count as input but for variables whose
 * name ends with "_token" or "_tokens", and for roles of messages that are words. `now`: the time
 * that strftime_now writes, in seconds since 1970. GR_E_INVALID: it is no JSON object, has more
 * than 1,048,576 values or is nested deeper than 128; GR_E_TEMPLATE: the template failed (line,
 * column), or it raised an exception (its text alone). *prompt is empty after a failure. */
GR_API int gr_template_render(const struct gr_template *t, const char *json, size_t n, int64_t now,
                              struct gr_prompt *prompt);
GR_API void gr_prompt_free(struct gr_prompt *prompt);
/* Tokenizes a prompt into *ids [*n_ids], to be freed by gr_free_ids. Control tokens are recognised
 * only where no byte of them is input. BOS is added when the model wants it and the prompt does not
 * begin with it. */
GR_API int gr_prompt_tokenize(const struct gr_model *model, const struct gr_prompt *prompt,
                              int32_t **ids, size_t *n_ids);

#ifdef __cplusplus
}
#endif
#endif
