/* Requests that wait for a model: who goes on, and what is loaded for whom. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "models_impl.h"
#include "ollama.h"
#include "text.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

/* Time between two looks at requests that wait, as their clients may leave. */
#define TICK_NS 100000000

/* ---- use ---- */

void gr_served_model_begin_use(struct gr_models *m, struct gr_visit *v, struct gr_served_model *e)
{
    v->of = e;
    e->n_user++;
    e->used = ++m->n_request;
}

void gr_served_model_end_use(struct gr_models *m, struct gr_served_model *e)
{
    pthread_mutex_lock(&m->lock);
    if (!--e->n_user && m->line)
        pthread_cond_signal(&m->keep);
    pthread_mutex_unlock(&m->lock);
}

/* ---- the line: who goes on, and what is loaded for whom; with the lock ---- */

static void give_job(struct gr_models *m, struct gr_served_model *e, enum gr_model_state state)
{
    e->state = state;
    m->job = e;
    m->cancelled = false;
    pthread_cond_signal(&m->load);
}

/* Returns how many of the folder's models are loaded; *oldest: the one used longest ago, of those
 * without requests if there are any. */
static int32_t count_loaded(const struct gr_models *m, struct gr_served_model **oldest)
{
    int32_t n = 0;
    *oldest = NULL;
    for (struct gr_served_model *e = m->all; e; e = e->next) {
        const struct gr_served_model *old = *oldest;
        if (e->stays || e->state != GR_MODEL_LOADED)
            continue;
        n++;
        if (!old || (e->n_user > 0) < (old->n_user > 0) ||
            ((e->n_user > 0) == (old->n_user > 0) && e->used < old->used))
            *oldest = e;
    }
    return n;
}

/* Loads a model, or has another one make way. */
static void make_way(struct gr_models *m, struct gr_served_model *e)
{
    struct gr_served_model *oldest;
    int32_t n = count_loaded(m, &oldest);
    if (!oldest || (n < m->p.options->models_max && !e->lacks_room))
        give_job(m, e, GR_MODEL_LOADING);
    else if (oldest->n_user)
        oldest->makes_way = true;
    else
        give_job(m, oldest, GR_MODEL_UNLOADING);
}

/* Decides about a request to unload. */
static enum gr_visit_outcome judge_unload(struct gr_models *m, struct gr_served_model *e)
{
    if (e->state == GR_MODEL_UNLOADED || e->state == GR_MODEL_FAILED)
        return GR_VISIT_DONE;
    if (e->state != GR_MODEL_LOADED)
        return GR_VISIT_STAYS;
    e->makes_way = true;
    if (!e->n_user && !m->job)
        give_job(m, e, GR_MODEL_UNLOADING);
    return GR_VISIT_STAYS;
}

/* Decides about a request that waits. *blocked: one before it waits for the loader, or for room. */
static enum gr_visit_outcome judge(struct gr_models *m, struct gr_visit *v, int64_t now,
                                   bool *blocked)
{
    struct gr_served_model *e = v->wanted;
    if (v->gone)
        return GR_VISIT_GONE;
    if (m->stopping)
        return GR_VISIT_STOPPED;
    if (e->n_failed > v->n_failed && v->what != GR_VISIT_UNLOADS)
        return GR_VISIT_FAILED;
    if (e->state == GR_MODEL_LOADED && !e->makes_way && v->what != GR_VISIT_UNLOADS)
        return v->what == GR_VISIT_USES ? GR_VISIT_GOES_ON : GR_VISIT_DONE;
    if (now > v->end)
        return GR_VISIT_LATE;
    if (v->what == GR_VISIT_UNLOADS)
        return judge_unload(m, e);
    if (e->state == GR_MODEL_UNLOADED || e->state == GR_MODEL_FAILED) {
        if (!m->job && !*blocked)
            make_way(m, e);
        *blocked = true;
    }
    return GR_VISIT_STAYS;
}

/* Takes those out of the line that no longer wait, as a list. */
static struct gr_visit *settle(struct gr_models *m)
{
    struct gr_visit *ready = NULL, **last = &ready, **at = &m->line;
    int64_t now = gr_serve_now();
    bool blocked = m->job != NULL;
    for (struct gr_served_model *e = m->all; e; e = e->next)
        e->makes_way = false;
    while (*at) {
        struct gr_visit *v = *at;
        v->outcome = judge(m, v, now, &blocked);
        if (v->outcome == GR_VISIT_STAYS) {
            at = &v->next;
            continue;
        }
        *at = v->next;
        *last = v, last = &v->next, v->next = NULL;
        snprintf(v->why, sizeof v->why, "%s", v->wanted->why);
        v->wanted->n_waiting--, m->n_waiting--;
        if (v->outcome == GR_VISIT_GOES_ON)
            gr_served_model_begin_use(m, v, v->wanted);
    }
    m->line_end = at;
    m->cancelled |= m->job && !m->job->n_waiting;
    return ready;
}
/* ---- the threads ---- */

/* Answers a request that no longer waits, or has it go on. */
static void dismiss(struct gr_visit *v)
{
    struct gr_exchange *x = v->x;
    char why[640];
    switch (v->outcome) {
    case GR_VISIT_STAYS:
        return;
    case GR_VISIT_GOES_ON:
        if (!gr_exchange_retry(x))
            gr_exchange_end(x);
        return;
    case GR_VISIT_DONE:
        gr_answer_json(x, 200,
                       v->ollama ? gr_ollama_unloaded(v->ollama, v->body)
                                 : json_pack("{s:b}", "success", 1));
        return;
    case GR_VISIT_GONE:
        gr_exchange_end(x);
        return;
    case GR_VISIT_LATE:
        gr_refuse_as(x, 503, "model", "model_busy",
                     v->what == GR_VISIT_UNLOADS
                         ? "the model has requests that go on"
                         : "the model could not be loaded in time: it takes long, or others have "
                           "requests that go on");
        return;
    case GR_VISIT_FAILED:
        snprintf(why, sizeof why, "the model could not be loaded: %s", v->why);
        gr_refuse_as(x, 500, "model", "model_load_failed", why);
        return;
    case GR_VISIT_STOPPED:
        gr_refuse_as(x, 503, NULL, NULL, "the server is stopping");
    }
}

static void wait_tick(struct gr_models *m)
{
    struct timespec t;
    if (!m->line) {
        pthread_cond_wait(&m->keep, &m->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += TICK_NS;
    t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&m->keep, &m->lock, &t);
}

void *gr_models_keeper(void *models)
{
    struct gr_models *m = models;
    pthread_mutex_lock(&m->lock);
    while (!m->ended || m->line) {
        struct gr_visit *ready = settle(m), *next;
        if (!ready) {
            wait_tick(m);
            continue;
        }
        pthread_mutex_unlock(&m->lock);
        for (struct gr_visit *v = ready; v; v = next) {
            next = v->next;
            dismiss(v);
        }
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* Loads a model; with the lock, which is left meanwhile. */
static void load(struct gr_models *m, struct gr_served_model *e)
{
    struct gr_served_model *oldest;
    struct gr_server *server = NULL;
    struct gr_model_file file = {e->path, e->name, count_loaded(m, &oldest) > 0, &m->cancelled};
    char why[sizeof e->why] = "";
    pthread_mutex_unlock(&m->lock);
    enum gr_load_end end = m->p.load(&m->p, &server, &file, why, sizeof why);
    pthread_mutex_lock(&m->lock);
    memcpy(e->why, why, sizeof why);
    e->server = server;
    e->lacks_room = end == GR_LOAD_NO_ROOM && file.beside;
    e->state = end == GR_LOAD_DONE                         ? GR_MODEL_LOADED
               : e->lacks_room || end == GR_LOAD_CANCELLED ? GR_MODEL_UNLOADED
                                                           : GR_MODEL_FAILED;
    e->used = ++m->n_request;
    e->n_failed += e->state == GR_MODEL_FAILED;
}

/* Unloads one likewise. */
static void unload(struct gr_models *m, struct gr_served_model *e)
{
    struct gr_server *server = e->server;
    pthread_mutex_unlock(&m->lock);
    m->p.unload(server);
    gr_say("unloaded %s", e->name);
    pthread_mutex_lock(&m->lock);
    e->server = NULL;
    e->state = GR_MODEL_UNLOADED;
    for (e = m->all; e; e = e->next)
        e->lacks_room = false;
}

void *gr_models_loader(void *models)
{
    struct gr_models *m = models;
    pthread_mutex_lock(&m->lock);
    while (!m->ended || m->job) {
        struct gr_served_model *e = m->job;
        if (!e) {
            pthread_cond_wait(&m->load, &m->lock);
            continue;
        }
        (e->state == GR_MODEL_LOADING ? load : unload)(m, e);
        m->job = NULL;
        pthread_cond_signal(&m->keep);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}
/* ---- into the line ---- */

/* The client has gone: in any thread. */
static void on_gone(void *visit)
{
    struct gr_visit *v = visit;
    v->gone = true;
}

/* Puts a visit into the line; false: it is full, or the server stops. With the lock, and the
 * exchange kept. */
static bool line_up(struct gr_models *m, struct gr_visit *v, struct gr_served_model *e)
{
    if (m->stopping || m->n_waiting >= m->p.options->queue)
        return false;
    v->wanted = e;
    v->n_failed = e->n_failed;
    v->end = gr_serve_now() + (int64_t)m->p.options->models_wait * 1000000000;
    *m->line_end = v;
    m->line_end = &v->next;
    m->n_waiting++, e->n_waiting++;
    pthread_cond_signal(&m->keep);
    return true;
}

void gr_visit_await(struct gr_models *m, struct gr_visit *v, struct gr_served_model *e)
{
    struct gr_exchange *x = v->x;
    bool stopping = m->stopping;
    gr_exchange_keep(x, on_gone, v);
    bool waits = line_up(m, v, e);
    pthread_mutex_unlock(&m->lock);
    if (!waits)
        gr_refuse_as(x, stopping ? 503 : 429, NULL, NULL,
                     stopping ? "the server is stopping"
                              : "too many requests wait for models to be loaded");
}
