/* Vectors of texts of many requests. */
#include "embedder.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "tools/cli/flags.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"

enum {
    AUTO_LONGEST = 8192,    /* tokens of a text, where neither -c nor the model says less */
    MOST_WAITING = 1 << 24, /* tokens of all requests */
};

/* A text of the next step. */
struct pick {
    struct gr_embedding *request;
    int32_t i;
};

struct gr_embedder {
    struct gr_embedder_params p;
    struct gr_vectors vectors;
    struct pick *pick;          /* [n_pick] of n_seq */
    const struct gr_ids **text; /* [n_pick] */
    int32_t n_pick;
    pthread_t thread;
    bool runs; /* the thread does */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Under the lock: */
    struct gr_embedding **live; /* [n_live] of n_queue, in the order they came */
    int32_t n_live, turn;       /* turn: whose text is next */
    int64_t n_waiting_token;    /* of all that are live, as the next one */
    int64_t n_byte;
    bool stopping, now;
    int status; /* of the device, once it is lost */
    struct gr_scheduler_stats stats;
};

int32_t gr_embedder_longest(const struct gr_embedder *e)
{
    return e->p.n_longest;
}

const struct gr_vectors *gr_embedder_vectors(const struct gr_embedder *e)
{
    return &e->vectors;
}

static int64_t count_tokens(const struct gr_embedding *r)
{
    size_t n = 0;
    for (int32_t i = 0; i < r->n_text; i++)
        n += r->text[i].n;
    return (int64_t)n;
}

/* ---- from any thread ---- */

int gr_embedder_submit(struct gr_embedder *e, struct gr_embedding *request)
{
    int rc = 0;
    int64_t n = count_tokens(request);
    request->submitted = gr_serve_now();
    pthread_mutex_lock(&e->lock);
    if (e->stopping)
        rc = e->status ? e->status : GR_E_CANCELLED;
    else if (e->n_live >= e->p.n_queue ||
             (e->n_live &&
              (e->n_waiting_token + n > MOST_WAITING || e->n_byte + request->n_byte > e->p.n_byte)))
        rc = GR_E_TOO_LARGE;
    if (!rc) {
        e->live[e->n_live++] = request;
        e->n_waiting_token += n;
        e->n_byte += request->n_byte;
        e->stats.n_waiting++, e->stats.n_request++;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

void gr_embedder_stop(struct gr_embedder *e, bool now)
{
    pthread_mutex_lock(&e->lock);
    e->stopping = true;
    e->now |= now;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void gr_embedder_add_stats(struct gr_embedder *e, struct gr_scheduler_stats *to)
{
    pthread_mutex_lock(&e->lock);
    const struct gr_scheduler_stats *s = &e->stats;
    to->n_active += s->n_active, to->n_waiting += s->n_waiting;
    to->n_step += s->n_step, to->step_ns += s->step_ns;
    to->n_prompt += s->n_prompt;
    to->n_request += s->n_request, to->n_cancelled += s->n_cancelled, to->n_failed += s->n_failed;
    pthread_mutex_unlock(&e->lock);
}

/* ---- the end of requests, in the embedder's thread ---- */

static bool has_ended(const struct gr_embedder *e, const struct gr_embedding *r)
{
    return r->status || r->cancelled || e->now || e->status || r->n_done == r->n_text;
}

/* Takes a request out of the figures. With the lock. */
static void forget(struct gr_embedder *e, struct gr_embedding *r)
{
    bool done = r->n_done == r->n_text, failed = r->status || e->status;
    r->status = r->status ? r->status : e->status;
    e->n_waiting_token -= count_tokens(r);
    e->n_byte -= r->n_byte;
    if (r->n_begun)
        e->stats.n_active--;
    else
        e->stats.n_waiting--;
    e->stats.n_cancelled += !done && !failed;
    e->stats.n_failed += !done && failed;
}

/* Removes requests that have ended, and returns them as a list. With the lock. */
static struct gr_embedding *sweep(struct gr_embedder *e)
{
    struct gr_embedding *ended = NULL, **last = &ended;
    int32_t n = 0, turn = e->turn;
    for (int32_t i = 0; i < e->n_live; i++) {
        struct gr_embedding *r = e->live[i];
        if (!has_ended(e, r)) {
            e->live[n++] = r;
            continue;
        }
        forget(e, r);
        turn -= i < e->turn;
        *last = r, last = &r->next;
        r->next = NULL;
    }
    e->n_live = n;
    e->turn = turn < n ? turn : 0;
    return ended;
}

static void end_all(struct gr_embedding *ended)
{
    int64_t now = gr_serve_now();
    for (struct gr_embedding *r = ended, *next; r; r = next) {
        next = r->next;
        bool done = r->n_done == r->n_text;
        int64_t started = r->n_begun ? r->started : now;
        struct gr_result result = {.end = done        ? GR_FINISH_TOKEN
                                          : r->status ? GR_FINISH_FAILED
                                                      : GR_FINISH_CANCELLED,
                                   .stop = -1,
                                   .status = r->status,
                                   .n_prompt = (int32_t)count_tokens(r),
                                   .queue_ns = started - r->submitted,
                                   .prompt_ns = now - started};
        r->end(r, &result);
    }
}

/* ---- steps, in the embedder's thread ---- */

static void begin(struct gr_embedder *e, struct gr_embedding *r)
{
    r->started = gr_serve_now();
    e->stats.n_waiting--, e->stats.n_active++;
}

/* Picks texts for the next step, one of each request in turn. With the lock. */
static void fill(struct gr_embedder *e)
{
    size_t n = 0;
    e->n_pick = 0;
    for (int32_t idle = 0; idle < e->n_live && e->n_pick < e->vectors.n_seq;) {
        struct gr_embedding *r = e->live[e->turn];
        if (r->n_begun < r->n_text) {
            const struct gr_ids *text = &r->text[r->n_begun];
            if (e->n_pick && n + text->n > (size_t)e->p.n_step)
                return;
            if (!r->n_begun)
                begin(e, r);
            n += text->n;
            e->text[e->n_pick] = text;
            e->pick[e->n_pick++] = (struct pick){r, r->n_begun++};
            idle = 0;
        } else {
            idle++;
        }
        e->turn = (e->turn + 1) % e->n_live;
    }
}

/* Hands the vectors out. */
static void deliver(struct gr_embedder *e, int rc)
{
    for (int32_t k = 0; k < e->n_pick; k++) {
        struct gr_embedding *r = e->pick[k].request;
        if (rc)
            r->status = rc;
        else if (!r->vector(r, e->pick[k].i, gr_embeddings_seq(e->vectors.session, k)))
            r->status = GR_E_CHECK;
        else
            r->n_done++;
    }
}

static void step(struct gr_embedder *e)
{
    int64_t start = gr_serve_now(), n = 0;
    for (int32_t k = 0; k < e->n_pick; k++)
        n += (int64_t)e->text[k]->n;
    int rc = gr_vectors_run(&e->vectors, e->text, e->n_pick);
    deliver(e, rc);
    pthread_mutex_lock(&e->lock);
    e->stats.n_step++, e->stats.step_ns += gr_serve_now() - start;
    e->stats.n_prompt += rc ? 0 : n;
    if (rc == GR_E_DEVICE || rc == GR_E_PEER_LOST)
        e->status = rc, e->stopping = true;
    pthread_mutex_unlock(&e->lock);
}

/* Ends what has ended, waits for something to do and picks it; false: nothing will come. */
static bool prepare(struct gr_embedder *e)
{
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->n_live && !e->stopping)
            pthread_cond_wait(&e->wake, &e->lock);
        struct gr_embedding *ended = sweep(e);
        if (!ended)
            fill(e);
        bool more = e->n_live > 0 || ended;
        pthread_mutex_unlock(&e->lock);
        end_all(ended);
        if (!ended)
            return more;
    }
}

static void *run(void *embedder)
{
    struct gr_embedder *e = embedder;
    while (prepare(e))
        step(e);
    return NULL;
}

/* ---- begin and end ---- */

int gr_embedder_choose(struct gr_embedder_params *p, const struct gr_options *o,
                       struct gr_model *model)
{
    struct gr_model_info info;
    enum gr_pooling pooling = GR_POOLING_MODEL;
    int32_t reach;
    gr_model_info(model, &info);
    (void)gr_pooling_named(o->pooling, &pooling);
    if (pooling == GR_POOLING_MODEL)
        pooling = info.pooling;
    if (pooling == GR_POOLING_NONE) {
        gr_say_error("a text has one vector, and %s: --pooling mean, cls or last chooses it, and "
                     "rank a classifier's scores",
                     strcmp(o->pooling, "model") != 0 ? "pooling none gives one for each token"
                                                      : "the model's file does not say which");
        return GR_EXIT_USAGE;
    }
    int status = gr_vectors_reach(o, model, &reach);
    *p = (struct gr_embedder_params){
        .model = model, .n_queue = o->queue, .n_step = o->batch_size, .n_byte = o->max_answer};
    p->n_longest = o->ctx_size > 0 ? o->ctx_size : reach < AUTO_LONGEST ? reach : AUTO_LONGEST;
    if (info.n_learned_pos && p->n_longest > reach)
        p->n_longest = reach;
    int32_t n_batch = p->n_longest > p->n_step ? p->n_longest : p->n_step;
    if (!status)
        status = gr_vectors_params(&p->session, o, model, pooling, n_batch, n_batch);
    return status ? gr_say_status(status) : 0;
}

static int open_all(struct gr_embedder *e)
{
    int rc = gr_vectors_open(&e->vectors, e->p.model, &e->p.session);
    if (rc)
        return rc;
    e->pick = malloc((size_t)e->vectors.n_seq * sizeof *e->pick);
    e->text = malloc((size_t)e->vectors.n_seq * sizeof *e->text);
    e->live = malloc((size_t)e->p.n_queue * sizeof *e->live);
    if (!e->pick || !e->text || !e->live)
        return GR_E_NOMEM_HOST;
    e->runs = !pthread_create(&e->thread, NULL, run, e);
    return e->runs ? 0 : GR_E_NOMEM_HOST;
}

int gr_embedder_new(struct gr_embedder **out, const struct gr_embedder_params *params)
{
    struct gr_embedder *e = *out = calloc(1, sizeof *e);
    if (!e)
        return GR_E_NOMEM_HOST;
    e->p = *params;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    int rc = open_all(e);
    if (rc)
        gr_embedder_free(out);
    return rc;
}

void gr_embedder_wait(struct gr_embedder *e)
{
    if (e->runs)
        pthread_join(e->thread, NULL);
    e->runs = false;
}

void gr_embedder_free(struct gr_embedder **e)
{
    if (!*e)
        return;
    gr_embedder_stop(*e, true);
    gr_embedder_wait(*e);
    gr_vectors_close(&(*e)->vectors);
    pthread_cond_destroy(&(*e)->wake);
    pthread_mutex_destroy(&(*e)->lock);
    free((*e)->pick);
    free((void *)(*e)->text);
    free((*e)->live);
    free(*e);
    *e = NULL;
}
