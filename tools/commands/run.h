/* Shared by the files of gpurun run: the run and its output. */
#ifndef GR_TOOLS_RUN_H
#define GR_TOOLS_RUN_H

#include "length.h"
#include "prompt_cache.h"

/* Reason for the end of the text. */
enum stop { STOP_LENGTH, STOP_EOS, STOP_CONTEXT, STOP_INTERRUPTED, STOP_ERROR, STOP_STRING };

/* The strings of --stop. */
struct run_stops {
    char **text; /* [n], their escapes replaced */
    size_t *n_text;
    int32_t n, found;
};

struct run {
    const struct gr_options *o;
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_session *session;
    struct gr_sampler *sampler;
    struct gr_grammar_state *grammar; /* NULL: none */
    struct gr_draft *draft;           /* NULL: tokens are decoded one by one */
    struct gr_model *draft_model;
    struct gr_session *draft_session;
    bool chat;    /* the prompts of a chat come turn by turn (gr_run_answer) */
    int32_t turn; /* of a chat, from 1; 0: none yet */
    int (*put)(void *user, const char *p, size_t n); /* takes the text and returns 0 or an exit
                                                        code; NULL: it is written */
    void *put_user;
    bool marks; /* control tokens are written: what reads the text looks for them */
    bool drawn; /* a GPU has drawn the token after the last batch */
    struct run_stops stops;
    struct gr_text_stream *stream;   /* the text of its tokens, up to a stop string */
    struct gr_length length;         /* context and Self-Extend */
    struct gr_self_extend extend;    /* state of Self-Extend's classic mode */
    struct gr_session_params params; /* of the session */
    struct gr_prompt_cache cache;
    struct gr_trace *trace;
    int32_t profile_from, profile_to; /* generated tokens that a profiler records */
    bool profiling;
    char *text; /* the prompt */
    size_t n_text;
    int32_t *prompt;
    size_t n_prompt, n_read, n_kept; /* n_read of them are in the session, n_kept of these from a
                                        file */
    size_t n_encoded;                /* tokens of the prompt that an encoder has read */
    int32_t n_ctx, n_past;           /* cells; next position */
    int32_t n_pending;               /* pending batches of the prompt */
    bool sample;                     /* the prompt is the built-in sample */
    int32_t index;                   /* number of the text, from 1, with -np; otherwise 0 */
    bool collect;                    /* keep the text in `json` instead of writing it */
    char *json;                      /* collected text */
    size_t n_json, cap_json;
    uint64_t seed;
    float temp; /* of the sampler */
    int32_t n_gen;
    enum stop stop;
    double start, load_s, prompt_s, first_s,
        gen_s; /* first_s: from the start of the prompt to the first token */
};

/* Reads the grammar or schema of the flags, for the model; *grammar is NULL without one. Returns 0
 * or an exit code, after printing the error. */
int gr_read_grammar(const struct gr_options *o, const struct gr_model *model,
                    struct gr_grammar **grammar);
/* The same, as a state at its beginning. */
int gr_open_grammar(const struct gr_options *o, const struct gr_model *model,
                    struct gr_grammar_state **state);
/* Counts the next token and writes its text to stdout, or collects it, up to a stop string; *ended:
 * it ends the text, and `stop` says why. Returns 0 or an exit code, after printing the error. */
int gr_run_put_token(struct run *r, int32_t id, bool *ended);
/* Writes what is held back. */
int gr_run_end_text(struct run *r);
/* Prepares the text of the tokens and the strings of --stop. Returns 0 or an exit code, after
 * printing the error. */
int gr_run_open_stream(struct run *r);
void gr_run_close_stream(struct run *r);
/* Makes the sampler, with seed `seed`. Returns 0 or an exit code, after printing the error. */
int gr_run_open_sampler(struct run *r);
/* Records the prompt for the penalties; the grammar begins behind it. Returns a status. */
int gr_run_accept_prompt(struct run *r);
/* Prints why no token could be picked; returns the exit code. */
int gr_run_say_no_pick(void);
/* Refuses models that keep nothing from token to token: they cannot continue a text. */
int gr_run_check_keeps(const struct run *r, const struct gr_session_params *p);
/* Runs the model once, then clears the cache. Returns a status. */
int gr_run_warm_up(struct run *r);
/* Returns whether the options ask for several texts, or for prompts of a list. */
bool gr_run_is_parallel(const struct gr_options *o);
/* gpurun run for several texts, side by side. Returns the exit code. */
int gr_run_parallel(const struct gr_options *o);
/* Returns whether tokens are drafted. */
bool gr_run_drafts(const struct gr_options *o);
/* Sets what a session needs so that tokens can be removed again. */
void gr_run_draft_params(const struct run *r, struct gr_session_params *p);
/* Opens what drafts; nothing when tokens are not drafted. Returns 0 or an exit code, after printing
 * the error. */
int gr_run_open_drafts(struct run *r);
/* Begins the drafts of another text. Returns as gr_run_open_drafts. */
int gr_run_begin_drafts(struct run *r);
void gr_run_close_drafts(struct run *r);
/* Decodes `last` and a draft in `room` cells; ids [GR_MAX_DRAFT + 1] receives the *n tokens that
 * follow. Returns a status. */
int gr_run_draft_step(struct run *r, int32_t last, int32_t room, int32_t *ids, int32_t *n);
/* Writes the prompt before the text, if enabled. */
void gr_run_show_prompt(struct run *r);
/* Lists the prompt's tokens on stderr (--verbose-prompt). */
void gr_run_list_prompt(const struct run *r);
/* Prints the summary of the run on stderr. */
void gr_run_say_summary(const struct run *r);
/* Returns whether what goes to stdout may have colours. */
bool gr_run_use_color(const struct gr_options *o);
/* Opens all that a run needs (`o` is set); with `chat` no prompt is read. Returns 0 or an exit
 * code, after printing the error. */
int gr_run_open(struct run *r);
/* Runs the next prompt of a chat, of which n_read tokens are in the session already, and generates,
 * with a new sampler. Interrupts end the answer: catch them before. `stop` says why it ended.
 * Returns 0 or an exit code, after printing the error. */
int gr_run_answer(struct run *r);
void gr_run_close(struct run *r);
/* An answer of a chat. */
struct run_turn {
    const char *text; /* [n] */
    size_t n;
    const char *reasoning; /* [n_reasoning] */
    size_t n_reasoning;
    struct json_t *calls; /* tool calls, a list; NULL: none */
};
/* Prints it as a JSON object on stdout: a message, the stop and the run's figures, with STOP_ERROR
 * also the last error. Returns as gr_run_print_json. */
int gr_run_print_turn(const struct run *r, const struct run_turn *turn);
/* Prints the text and the run's figures as a JSON object on stdout, with STOP_ERROR also the last
 * error. Returns 0 or an exit code, after printing the error; without enough memory only text and
 * error are printed. */
int gr_run_print_json(const struct run *r);

#endif
