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

struct gr_server {
    const struct gr_options *options; /* defaults of requests: samplers, lengths */
    struct gr_model *model;
    struct gr_scheduler *scheduler;
    struct gr_template *chat; /* NULL: the model has none */
    const char *name;         /* of the model in answers */
    int64_t created;          /* Unix time at which the model was loaded */
    int32_t n_ctx;            /* most tokens of a request */
    int32_t n_parallel;       /* most choices times prompts of a request */
};

/* ---- answers ---- */

/* Answers with JSON, whose reference is taken. */
void gr_answer_json(struct gr_exchange *x, int status, json_t *body);
/* Refuses a request with a message for people; param: the field it is about, NULL: none. */
void gr_refuse(struct gr_exchange *x, int status, const char *param, const char *message, ...)
    __attribute__((format(printf, 4, 5)));
/* Refuses what the library refused: the HTTP status that belongs to a gr_status. */
void gr_refuse_status(struct gr_exchange *x, int status, const char *param);
/* Reads the body as an object, within the limits of nodes and depth; NULL: refused. The body is
 * dropped. */
json_t *gr_read_object(struct gr_exchange *x);

/* ---- handlers, by file ---- */

gr_handler_fn gr_health, gr_models, gr_model_by_id, gr_props, gr_slots, gr_version, gr_metrics; /* status.c, metrics.c */
gr_handler_fn gr_tokenize, gr_detokenize, gr_apply_template;                  /* tokens.c */
gr_handler_fn gr_completions, gr_completion_native, gr_infill;                /* completions.c */
gr_handler_fn gr_chat;                                                        /* chat.c */
gr_handler_fn gr_responses;                                                   /* responses.c */
gr_handler_fn gr_embeddings, gr_rerank;                                       /* embeddings.c */

#endif
