/* A model with a scheduler, requests to it, and the same requests alone, at --cpu-level ref, where
 * results do not depend on what else is in a batch. */
#ifndef GR_TESTS_SERVE_WORLD_H
#define GR_TESTS_SERVE_WORLD_H

#include "base/rng.h"
#include "gpurun.h"
#include "tools/serve/scheduler.h"

enum {
    MOST_TEXT = 400,
    MOST_REQUEST = 64,
    ENDLESS = 4 /* seed of an answer that ends by its length alone */
};

struct world {
    struct gr_model *model;
    struct gr_session *session;
    struct gr_scheduler *scheduler;
    struct gr_session_params sp;
    struct gr_scheduler_params p;
    int32_t n_vocab;
};

/* A request and what is said of it. */
struct client {
    int32_t prompt[MOST_TEXT], n_prompt, n_predict;
    uint64_t seed, id;
    /* said */
    int32_t token[MOST_TEXT], n;
    char text[8 * MOST_TEXT];
    float logprob[MOST_TEXT];
    struct gr_prob top[MOST_TEXT][3];
    int32_t n_told; /* tokens of the prompt, from the second one on */
    float prompt_logprob[MOST_TEXT];
    struct gr_prob prompt_top[MOST_TEXT];
    struct gr_result result;
    int n_result, order;
};

/* Opens a session with the world's parameters, but for these. */
struct gr_session *open_session(const struct world *w, uint32_t n_ctx, uint32_t n_seq);
/* Sets the parameters: n_active requests at once, n_cell cells, n_rank ranks with a part of the
 * layers each; start_world opens what is left. */
struct world load_ranks(const char *path, int32_t n_active, uint32_t n_cell, int32_t n_rank);
struct world load_world(const char *path, int32_t n_active, uint32_t n_cell);
void start_world(struct world *w);
/* Both. */
struct world open_world(const char *path, int32_t n_active, uint32_t n_cell);
void close_world(struct world *w);

struct gr_sampler *open_sampler(const struct world *w, uint64_t seed);
/* A random prompt of n tokens. */
void make_client(const struct world *w, struct client *c, struct gr_rng *rng, int32_t n);
/* Makes client[i] with a prompt of at most `most` tokens, one in two of which begins as another. */
void make_client_like(const struct world *w, struct client *client, int i, struct gr_rng *rng,
                      int32_t most);
struct gr_request request_of(const struct world *w, struct client *c);
void submit(const struct world *w, struct client *c);
void run(const struct world *w);
/* The same request by itself, in a session of its own: token by token of the answer. */
void check_alone(const struct world *w, const struct client *c, const char *what);
void on_prompt_piece(const struct gr_piece *p, void *user);

/* Calls of gr_decode and gr_decode_begin, or with `at_end` of gr_decode_end, fail with `status` (0:
 * they do not) while `left` are left to fail. */
struct planted {
    int status, left, n_call; /* n_call: of the former, so far */
    bool at_end;
    int64_t ns; /* processor time in them */
};
extern struct planted planted;
/* Processor time of this thread in ns. */
int64_t thread_ns(void);

#endif
