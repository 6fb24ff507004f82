/* The models of a server: requests as they come, and what others call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "models_impl.h"
#include "ollama.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

struct gr_life *gr_models_life(const struct gr_models *m)
{
    return m->p.life;
}

/* ---- requests ---- */

/* The exchange has its answer. */
static void end_visit(void *visit)
{
    struct gr_visit *v = visit;
    if (v->of)
        gr_served_model_end_use(v->models, v->of);
    json_decref(v->body);
    free(v);
}

/* Begins a visit; NULL: refused. */
static struct gr_visit *new_visit(struct gr_models *m, struct gr_exchange *x)
{
    struct gr_visit *v = calloc(1, sizeof *v);
    if (!v) {
        gr_refuse(x, 503, NULL, "out of memory");
        return NULL;
    }
    v->models = m, v->x = x;
    gr_exchange_hold(x, v, end_visit);
    return v;
}

/* Returns whether a body is a list, which names no model. */
static bool is_list(const char *body, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", body[i]) && body[i])
        i++;
    return i < n && body[i] == '[';
}

/* Finds the name of the model in the query or the body, "": none. false: refused. */
static bool read_name(struct gr_visit *v, const char **name)
{
    const char *asked = gr_exchange_query(v->x, "model");
    size_t n = 0;
    *name = asked ? asked : "";
    const char *body = gr_exchange_body(v->x, &n);
    if (!n || is_list(body, n))
        return true;
    v->body = gr_read_object(v->x);
    if (!v->body)
        return false;
    struct gr_fields f = {.object = v->body};
    const char *model = gr_field_text(&f, "model");
    *name = asked ? asked : model ? model : "";
    return !gr_fields_refuse(&f, v->x);
}

json_t *gr_models_body(struct gr_exchange *x)
{
    struct gr_visit *v = gr_exchange_held(x);
    json_t *body = v ? v->body : NULL;
    if (v)
        v->body = NULL;
    return body;
}

static void refuse_unknown(struct gr_exchange *x, const char *name)
{
    char text[512];
    if (*name)
        snprintf(text, sizeof text, "there is no model '%.256s'; /v1/models lists those there are",
                 name);
    else
        snprintf(text, sizeof text, "model: a name is expected; /v1/models lists those there are");
    gr_refuse_as(x, *name ? 404 : 400, "model", *name ? "model_not_found" : NULL, text);
}

/* Runs the handler of a request whose model is there; the visit may be over before it returns. */
static void run(struct gr_models *m, struct gr_exchange *x, const struct gr_route *route,
                struct gr_served_model *e)
{
    struct gr_server *server = e->server;
    pthread_mutex_lock(&m->lock);
    e->n_user++;
    pthread_mutex_unlock(&m->lock);
    route->handler(x, server);
    gr_served_model_end_use(m, e);
}

/* Finds the model of a request that has just come. */
static void begin(struct gr_models *m, struct gr_exchange *x, const struct gr_route *route)
{
    const char *name;
    struct gr_visit *v = new_visit(m, x);
    if (!v || !read_name(v, &name))
        return;
    bool may_wait = !strcmp(route->method, "POST"); /* others are short */
    struct gr_served_model *e = gr_served_model_find_and_lock(m, name, may_wait);
    if (!e) {
        refuse_unknown(x, name);
        return;
    }
    bool unloads = !e->stays && gr_ollama_unloads(route, v->body);
    bool there = !unloads && e->state == GR_MODEL_LOADED && (!e->makes_way || !may_wait);
    bool waits = !there && may_wait;
    if (unloads) {
        v->what = GR_VISIT_UNLOADS, v->ollama = route;
        (void)json_object_set_new(v->body, "model", json_string(*name ? name : e->name));
    }
    if (there)
        gr_served_model_begin_use(m, v, e);
    if (waits) {
        gr_visit_await(m, v, e);
        return;
    }
    pthread_mutex_unlock(&m->lock);
    if (there)
        run(m, x, route, e);
    else
        gr_refuse_as(x, 400, "model", "model_not_loaded",
                     "the model is not loaded: POST /models/load does it");
}

void gr_models_dispatch(struct gr_exchange *x, const struct gr_route *route, void *user)
{
    struct gr_models *m = user;
    struct gr_visit *v = gr_exchange_held(x);
    if (route->kind != GR_ROUTE_MODEL)
        route->handler(x, m);
    else if (!m->dir)
        route->handler(x, m->all->server);
    else if (v) /* it has waited */
        run(m, x, route, v->of);
    else
        begin(m, x, route);
}

void gr_models_change(struct gr_models *m, struct gr_exchange *x, bool load)
{
    const char *name;
    struct gr_visit *v = new_visit(m, x);
    if (!v || !read_name(v, &name))
        return;
    struct gr_served_model *e = *name ? gr_served_model_find_and_lock(m, name, true) : NULL;
    bool stays = e && e->stays && !load;
    if (!e) {
        refuse_unknown(x, name);
        return;
    }
    v->what = load ? GR_VISIT_LOADS : GR_VISIT_UNLOADS;
    if (!stays) {
        gr_visit_await(m, v, e);
        return;
    }
    pthread_mutex_unlock(&m->lock);
    gr_refuse_as(x, 400, "model", NULL, "the model of -m stays loaded");
}

/* ---- begin and end ---- */

static int start(struct gr_models *m)
{
    struct gr_folder_file *file = NULL;
    size_t n = 0;
    int error = gr_folder_read(m->dir, &file, &n);
    if (error) {
        gr_say_error("--models-dir: %s: %s", m->dir, strerror(error));
        return gr_status_exit(GR_E_NO_MODEL);
    }
    gr_models_update(m, file, n);
    gr_folder_free(file, n);
    m->keeps = !pthread_create(&m->keeper, NULL, gr_models_keeper, m);
    m->loads = m->keeps && !pthread_create(&m->loader, NULL, gr_models_loader, m);
    return m->loads ? 0 : gr_say_no_memory();
}

int gr_models_new(struct gr_models **out, const struct gr_models_params *params)
{
    pthread_condattr_t monotonic;
    struct gr_models *m = *out = calloc(1, sizeof *m);
    if (!m)
        return gr_say_no_memory();
    m->p = *params;
    m->dir = params->options->models_dir;
    m->line_end = &m->line;
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->reading, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->keep, &monotonic);
    pthread_cond_init(&m->load, NULL);
    pthread_condattr_destroy(&monotonic);
    return m->dir ? start(m) : 0;
}

/* With the lock. */
static void stop_all(const struct gr_models *m, bool now)
{
    for (const struct gr_served_model *e = m->all; e; e = e->next) {
        if (e->state == GR_MODEL_LOADED)
            m->p.stop(e->server, now);
    }
}

void gr_models_stop(struct gr_models *m, bool now)
{
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    stop_all(m, now);
    pthread_cond_signal(&m->keep);
    pthread_mutex_unlock(&m->lock);
}

void gr_models_wait(struct gr_models *m)
{
    pthread_mutex_lock(&m->lock);
    m->ended = m->stopping = true;
    pthread_cond_signal(&m->keep);
    pthread_cond_signal(&m->load);
    pthread_mutex_unlock(&m->lock);
    if (m->keeps)
        pthread_join(m->keeper, NULL);
    if (m->loads)
        pthread_join(m->loader, NULL);
    m->keeps = m->loads = false;
    pthread_mutex_lock(&m->lock);
    stop_all(m, true); /* the one that has been loaded meanwhile, too */
    pthread_mutex_unlock(&m->lock);
    for (const struct gr_served_model *e = m->all; e; e = e->next) {
        if (e->server)
            m->p.wait(e->server);
    }
}

void gr_models_free(struct gr_models **models)
{
    struct gr_models *m = *models;
    if (!m)
        return;
    gr_models_wait(m);
    for (struct gr_served_model *e = m->all, *next; e; e = next) {
        next = e->next;
        if (e->server)
            m->p.unload(e->server);
        gr_served_model_free(e);
    }
    pthread_cond_destroy(&m->keep);
    pthread_cond_destroy(&m->load);
    pthread_mutex_destroy(&m->reading);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *models = NULL;
}
