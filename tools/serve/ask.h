/* Fields that all requests for texts share: how many texts, how long, how tokens are picked, what
 * may be written and where it ends. */
#ifndef GR_TOOLS_ASK_H
#define GR_TOOLS_ASK_H

#include <jansson.h>

#include "fields.h"
#include "server.h"
#include "tools/cli/sampler.h"

#define GR_ASK_TEXTS 128  /* texts of a request, and so prompts */
#define GR_ASK_CHOICES 16 /* texts of a prompt */
#define GR_ASK_STOPS 16   /* stop strings of a request, of so many bytes at most */
#define GR_ASK_STOP_BYTES 256
#define GR_ASK_BIASES 1024
#define GR_ASK_NAME_BYTES 1024  /* of the name of a model */
#define GR_ASK_WINDOW (1 << 24) /* tokens of a window of Self-Extend */

struct gr_ask {
    struct gr_sampler_choice sampler; /* complete but for the seed of each text */
    struct gr_sampler *like;          /* with these parameters, until the texts have theirs */
    uint64_t seed;
    int32_t n;                      /* texts of each prompt */
    int64_t predict_ms;             /* t_max_predict_ms; 0: any */
    int32_t n_predict;              /* tokens of a text, < 0: up to the context's length */
    int32_t extend_n, extend_w;     /* Self-Extend (gr_request); extend_n 1: off */
    bool shifts;                    /* context shift (gr_request) */
    int32_t keep, discard;          /* keep -1: the whole prompt */
    int32_t reuse, slot;            /* gr_request */
    float adapters[GR_MAX_ADAPTER]; /* strengths */
    int32_t n_top;                  /* likely tokens listed for each token; -1: no probabilities */
    bool stream, include_usage;
    const char *stop[GR_ASK_STOPS]; /* [n_stop], the request's */
    size_t stop_bytes[GR_ASK_STOPS];
    int32_t n_stop;
    struct gr_grammar *grammar; /* NULL: none */
};

/* Reads the fields; *a is to be dropped whatever f says then. n_top is set by the caller. */
void gr_ask_read(struct gr_ask *a, struct gr_fields *f, const struct gr_server *s);
void gr_ask_drop(struct gr_ask *a);

/* Reads the name of the model in answers: each event of a stream has it. */
const char *gr_ask_model(struct gr_fields *f, const struct gr_server *s);
/* Reads a list of tokens into ids [n_ids], to be freed; NULL: one is none, or no memory. */
int32_t *gr_ask_tokens(const json_t *list, int32_t n_vocab, size_t *n);

#endif
