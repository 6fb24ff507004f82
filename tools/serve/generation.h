/* A request for texts: prompts, each with a number of texts, at the scheduler. Their pieces become
 * events of a stream, or an answer when all have ended, in the form of an API. A client that has
 * gone ends them. */
#ifndef GR_TOOLS_GENERATION_H
#define GR_TOOLS_GENERATION_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "ask.h"
#include "writer.h"

struct gr_chat_session;
struct gr_generation;

/* Lists of a text's tokens, as JSON without brackets. */
enum { GR_LIST_IDS, GR_LIST_TOKENS, GR_LIST_LOGPROBS, GR_LIST_TOP, GR_LIST_OFFSETS, GR_N_LISTS };

/* A text. Its writers have what was not sent yet. */
struct gr_choice {
    struct gr_generation *g;
    int32_t index, prompt;
    _Atomic uint64_t id; /* at the scheduler, 0: not there */
    struct gr_writer text, reasoning;
    struct gr_writer calls; /* complete tool calls, as JSON without brackets */
    struct gr_writer list[GR_N_LISTS];
    int64_t n_chars; /* of the text, up to the next token listed */
    size_t n_sent;   /* bytes of the text, in forms that keep what was sent */
    void *own;       /* the form's */
    size_t n_byte;   /* of these writers, when they were counted */
    bool ended;
    struct gr_result result; /* without its message */
};

/* A form of answers. Its functions write to g->out, which is sent after each call in a stream and
 * otherwise is the answer; they are called one at a time, and those that are NULL do nothing. */
struct gr_form {
    const char *object, *prefix; /* of answers and of their ids: "text_completion", "cmpl-" */
    const char *type, *ping;     /* of a stream */
    /* The texts are there, and are about to start. */
    void (*prepare)(struct gr_generation *g, struct gr_fields *f);
    void (*begin)(struct gr_generation *g); /* they have started */
    /* A token of a prompt whose probabilities are asked for. */
    void (*prompt)(struct gr_choice *c, const struct gr_piece *piece);
    void (*piece)(struct gr_choice *c, const struct gr_piece *piece);
    void (*end)(struct gr_choice *c);        /* a text has ended: its result is there */
    void (*emit)(struct gr_choice *c);       /* of a stream, behind each of these */
    void (*finish)(struct gr_generation *g); /* all texts have ended */
    void (*fail)(struct gr_generation *g, const char *message); /* in a stream */
    void (*free_own)(struct gr_generation *g);
};

struct gr_generation {
    const struct gr_form *form;
    struct gr_server *server;
    struct gr_exchange *x;
    json_t *request; /* whose texts `ask` points to */
    struct gr_ask ask;
    const char *model; /* its name in answers */
    char id[48];
    int64_t created; /* Unix time */
    struct gr_writer out;
    int32_t **prompt; /* [n_prompt], each of n_ids[i] tokens */
    size_t *n_ids;
    int32_t n_prompt;
    struct gr_choice *choice; /* [n_choice]: those of the first prompt, of the second, .. */
    int32_t n_choice;
    void *own;       /* the form's */
    int32_t n_event; /* events numbered so far, in forms that number them */
    bool special;    /* names of control tokens are part of the texts */
    bool prompt_probs;
    struct gr_chat_session *session; /* whose text the prompt follows; NULL: none */
    atomic_bool gone;
    pthread_mutex_t lock;
    /* Under the lock: */
    int32_t n_left; /* texts that have not ended */
    size_t n_byte;  /* of what their writers have */
    int status;     /* of the first failure; 0: none */
    char message[512];
};

/* Begins a request, whose reference is taken: reads the fields that all share. NULL: refused. */
struct gr_generation *gr_generation_new(struct gr_exchange *x, struct gr_server *server,
                                        const struct gr_form *form, json_t *request,
                                        struct gr_fields *f);
/* Has the prompt, of which there is one then, follow the text of the session that the request
 * names, if it names one. NULL, and refused, when it cannot be had. */
struct gr_generation *gr_generation_follow(struct gr_generation *g);
/* Adds a prompt of n tokens. */
void gr_generation_add(struct gr_generation *g, struct gr_fields *f, const int32_t *ids, size_t n);
/* Starts the texts, to which g belongs then, or refuses the request if a field is wrong. */
void gr_generation_start(struct gr_generation *g, struct gr_fields *f);

/* ---- failures ---- */

/* HTTP status of a failure. */
int gr_http_status(int status);
/* Message for a request that was not accepted; NULL: that of the status. */
const char *gr_submit_message(int status);

/* ---- parts of answers ---- */

/* Name of the end of a text: "stop" or "length". */
const char *gr_finish_name(const struct gr_choice *c);
/* Writes {"prompt_tokens":.. of all texts. */
void gr_write_usage(struct gr_writer *w, const struct gr_generation *g);
/* Writes {"prompt_n":.. of all texts. */
void gr_write_timings(struct gr_writer *w, const struct gr_generation *g);
/* Writes "id":..,"object":..,"created":..,"model":..,"system_fingerprint":.., */
void gr_write_head(struct gr_writer *w, const struct gr_generation *g);
/* Writes an event of an error, as OpenAI's clients read it. */
void gr_write_failure(struct gr_generation *g, const char *message);

#endif
