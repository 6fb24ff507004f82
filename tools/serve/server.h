/* The model that is served, and what the handlers of all routes share. */
#ifndef GR_TOOLS_SERVER_H
#define GR_TOOLS_SERVER_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpurun.h"
#include "http.h"
#include "scheduler.h"

struct gr_options;
struct gr_metrics;
struct gr_embedder;
struct gr_sessions;
struct gr_slots;
struct gr_strengths;

struct gr_models;

enum gr_server_state { GR_SERVER_LOADING, GR_SERVER_READY, GR_SERVER_STOPPING, GR_SERVER_FAILED };

/* The state of the whole server. */
struct gr_life {
    atomic_int state;  /* enum gr_server_state */
    atomic_int failed; /* status that ends the server; 0: none */
    int wake;          /* eventfd that the main thread waits for */
    bool keyed;        /* requests name keys */
};

/* A model that is served; it does not change. */
struct gr_server {
    const struct gr_options *options; /* defaults of requests: samplers, lengths */
    struct gr_model *model;
    struct gr_scheduler *scheduler; /* NULL: texts are not generated */
    struct gr_embedder *embedder;   /* NULL: vectors are not computed */
    struct gr_template *chat;       /* NULL: the model has none */
    const char *format;             /* of answers to it (gr_answer_known) */
    const char *name;               /* of the model in answers */
    int64_t created;                /* Unix time at which the model was loaded */
    int32_t n_ctx;                  /* most tokens of a request */
    const char *no_shift;           /* reason for which there is no context shift, likewise */
    const char *no_extend;          /* reason for which there is no Self-Extend; NULL: there is */
    int32_t n_parallel;             /* most choices times prompts of a request */
    struct gr_model_info info;
    struct gr_fit fit; /* memory, as the session was opened */
    struct gr_metrics *metrics;
    struct gr_sessions *sessions;
    struct gr_strengths *strengths;
    struct gr_slots *slots; /* NULL: they are not saved */
    struct gr_life *life;
};

/* ---- answers ---- */

/* Answers with JSON, whose reference is taken. */
void gr_answer_json(struct gr_exchange *x, int status, json_t *body);
/* Refuses a request with a message for people; param: the field it is about, NULL: none. */
void gr_refuse(struct gr_exchange *x, int status, const char *param, const char *message, ...)
    __attribute__((format(printf, 4, 5)));
/* The same with a word for programs, "context_length_exceeded"; NULL: none. */
void gr_refuse_as(struct gr_exchange *x, int status, const char *param, const char *code,
                  const char *message);
/* Refuses what the library refused, with its message: the HTTP status that belongs to a
 * gr_status. */
void gr_refuse_status(struct gr_exchange *x, int status, const char *param);
/* The form of errors of the HTTP layer. */
gr_refuse_fn gr_refuse_plain;
/* Makes a string of any bytes: what is no UTF-8 becomes U+FFFD. NULL: no memory. */
json_t *gr_json_text(const char *p, size_t n);

/* Adds the number of values of a JSON text, in eighths, to *n_value; returns why it is refused,
 * with more than 100,000 in all or a depth over 64, NULL: it is not. A number of a list is an
 * eighth. */
const char *gr_json_too_much(const char *p, size_t n, size_t *n_value);
/* Reads the body as an object, within the limits of nodes and depth; NULL: refused. The body is
 * dropped. */
json_t *gr_read_object(struct gr_exchange *x);
/* The same of a list. */
json_t *gr_read_list(struct gr_exchange *x);

/* ---- handlers, by file; `user` is the model, or of routes about none the table (models.h) ---- */

gr_handler_fn gr_serve_health, gr_serve_props, gr_serve_tokenizer_info,
    gr_serve_version; /* status.c */
gr_handler_fn gr_serve_models, gr_serve_model_by_id, gr_serve_model_load,
    gr_serve_model_unload;                              /* model_list.c */
gr_handler_fn gr_serve_slots, gr_serve_cache;           /* work.c */
gr_handler_fn gr_serve_adapters, gr_serve_set_adapters; /* strengths.c */
gr_handler_fn gr_serve_slot;                            /* slots.c */
gr_handler_fn gr_serve_metrics;                         /* metrics.c */
gr_handler_fn gr_serve_session_open, gr_serve_session, gr_serve_session_close,
    gr_serve_session_fork, gr_serve_session_cut, gr_serve_session_back;        /* sessions.c */
gr_handler_fn gr_serve_tokenize, gr_serve_detokenize, gr_serve_apply_template; /* tokens.c */
gr_handler_fn gr_serve_completions;                                            /* completions.c */
gr_handler_fn gr_serve_completion, gr_serve_infill;                            /* native.c */
gr_handler_fn gr_serve_chat;                                                   /* chat.c */
gr_handler_fn gr_serve_responses;                                              /* responses.c */
gr_handler_fn gr_serve_ollama_chat, gr_serve_ollama_generate;                  /* ollama.c */
gr_handler_fn gr_serve_embeddings, gr_serve_rerank, gr_serve_ollama_embed;     /* embeddings.c */
gr_handler_fn gr_serve_ollama_tags, gr_serve_ollama_ps, gr_serve_ollama_show,
    gr_serve_ollama_version; /* ollama_models.c */

/* Routes, by the options: routes.c. Returns how many, at most GR_MAX_ROUTE. */
#define GR_MAX_ROUTE 48
size_t gr_routes(const struct gr_options *o, struct gr_route route[GR_MAX_ROUTE]);

/* ---- figures: metrics.c ---- */

int gr_metrics_new(struct gr_metrics **out); /* a status */
void gr_metrics_free(struct gr_metrics **m);
/* Counts a text, or a request for vectors, that has ended. A device that has failed ends the
 * server. From any thread. */
void gr_metrics_count(struct gr_server *s, const struct gr_result *result);

#endif
