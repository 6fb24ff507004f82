/* What the parts of gpurun run share: the run, and what is written of it. */
#ifndef GR_TOOLS_RUN_H
#define GR_TOOLS_RUN_H

#include "length.h"
#include "prompt_cache.h"
#include "tools.h"
#include "trace.h"

/* Why the text ended. */
enum stop { STOP_LENGTH, STOP_EOS, STOP_CONTEXT, STOP_INTERRUPTED, STOP_ERROR };

struct run {
    const struct gr_options *o;
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_session *session;
    struct gr_sampler *sampler;
    bool drawn; /* a GPU has drawn the token behind the last batch */
    struct gr_stream *stream;
    struct gr_length length;      /* its context, and Self-Extend */
    struct gr_self_extend extend; /* Self-Extend's classic mode so far */
    struct gr_prompt_cache cache;
    struct gr_trace *trace;
    int32_t profile_from, profile_to; /* steps of the generation that a profiler records */
    char *text;                       /* the prompt */
    size_t n_text;
    int32_t *prompt;
    size_t n_prompt, n_read, n_kept; /* n_read of them are in the session, n_kept from a file */
    size_t n_encoded;                /* tokens of the prompt that an encoder has read */
    int32_t n_ctx, n_past;           /* cells; next position */
    int32_t n_flight;                /* pieces of the prompt on their way through the stages */
    bool sample;                     /* the prompt is ours */
    char *json;                      /* collected text of --json */
    size_t n_json, cap_json;
    uint64_t seed;
    int32_t n_gen;
    enum stop stop;
    double start, load_s, prompt_s, first_s,
        gen_s; /* first_s: from the start of the prompt to the first token */
};

/* The next n bytes of the text, to stdout or into the JSON. Exit code, said. */
int gr_run_put_text(struct run *r, const char *p, size_t n);
/* The prompt before the text, where it is wanted. */
void gr_run_show_prompt(struct run *r);
/* The prompt's tokens, for --verbose-prompt. */
void gr_run_list_prompt(const struct run *r);
/* Figures of the run on stderr. */
void gr_run_say_summary(const struct run *r);
/* The text with its figures as an object on stdout, with STOP_ERROR also the error that was said
 * last. Exit code, said: without memory for all of that it is the text and the error alone. */
int gr_run_print_json(const struct run *r);

#endif
