/* The models of a server. */
#include "models.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fields.h"
#include "folder.h"
#include "ollama.h"
#include "text.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

/* Time between two looks at requests that wait, as their clients may leave. */
#define TICK_NS 100000000
/* Time for which a list of the folder will do, unless a request names a model that it lacks. */
#define LIST_NS 1000000000

struct served_model {
    char *name, *path;
    int64_t modified;
    uint64_t n_bytes;
    bool stays; /* that of -m */
    enum gr_model_state state;
    struct gr_server *server; /* of GR_MODEL_LOADED and GR_MODEL_UNLOADING */
    int32_t n_user;           /* requests under way, and handlers that run */
    int32_t n_waiting;        /* visits in the line */
    uint64_t used;            /* the last request's number */
    bool makes_way;           /* for a request that waits: takes no others */
    bool lacks_room;          /* its load did not fit beside the others */
    uint64_t n_failed;        /* loads */
    char why[512];
    struct served_model *next;
};

enum outcome { STAYS, GOES_ON, IS_DONE, HAS_GONE, IS_LATE, HAS_FAILED, IS_STOPPED };

/* A request about a model, held by its exchange. */
struct visit {
    struct gr_models *models;
    struct served_model *of; /* NULL: it is not under way */
    json_t *body;            /* NULL: not read, or the handler has it */
    /* While it waits: */
    struct gr_exchange *x;
    struct served_model *wanted;
    enum { TO_USE, TO_LOAD, TO_UNLOAD } what;
    const struct gr_route *ollama; /* the answer of an unload is this route's; NULL: success */
    int64_t end;                   /* ns */
    uint64_t n_failed;             /* of the model, when it came */
    atomic_bool gone;              /* the client has */
    enum outcome outcome;
    char why[512];
    struct visit *next;
};

struct gr_models {
    struct gr_models_params p;
    const char *dir; /* NULL: none */
    pthread_t keeper, loader;
    bool keeps, loads;       /* the threads run */
    pthread_mutex_t reading; /* of the folder; taken before the lock */
    int64_t next_reading;    /* ns, under `reading` */
    pthread_mutex_t lock;
    pthread_cond_t keep, load;
    /* Under the lock: */
    struct served_model *all; /* by name */
    struct visit *line, **line_end;
    int32_t n_waiting;
    uint64_t n_request;
    struct served_model *job; /* the loader's: to be loaded or unloaded, as its state says */
    atomic_bool cancelled;    /* a job that loads is */
    bool stopping, ended;
};

struct gr_life *gr_models_life(const struct gr_models *m)
{
    return m->p.life;
}

/* ---- the folder; with the lock ---- */

static void free_model(struct served_model *e)
{
    free(e->name);
    free(e->path);
    free(e);
}

static bool is_idle(const struct served_model *e)
{
    return !e->n_waiting && !e->stays &&
           (e->state == GR_MODEL_UNLOADED || e->state == GR_MODEL_FAILED);
}

/* Takes a file over into the list, whose place is at `at`; false: no memory. */
static bool merge(struct served_model **at, struct gr_folder_file *f)
{
    struct served_model *e = *at && !strcmp((*at)->name, f->name) ? *at : NULL;
    if (e && !is_idle(e))
        return true;
    if (!e) {
        e = calloc(1, sizeof *e);
        if (!e)
            return false;
        e->name = f->name, f->name = NULL;
        e->next = *at, *at = e;
    }
    free(e->path);
    e->path = f->path, f->path = NULL;
    e->modified = f->modified, e->n_bytes = f->n_bytes;
    return true;
}

/* Brings the list up to date: files that are no longer there go with their model, unless it is in
 * use. */
static void update(struct gr_models *m, struct gr_folder_file *file, size_t n)
{
    struct served_model **at = &m->all;
    size_t i = 0;
    while (*at || i < n) {
        int by = !*at ? 1 : i == n ? -1 : strcmp((*at)->name, file[i].name);
        if (by < 0 && is_idle(*at)) {
            struct served_model *e = *at;
            *at = e->next;
            free_model(e);
            continue;
        }
        if (by >= 0 && !merge(at, &file[i++]))
            return;
        at = &(*at)->next;
    }
}

/* Reads the folder, with `reading` alone. */
static void read_folder(struct gr_models *m)
{
    struct gr_folder_file *file = NULL;
    size_t n = 0;
    int error = gr_folder_read(m->dir, &file, &n);
    m->next_reading = gr_serve_now() + LIST_NS;
    if (error) {
        gr_say_warning("--models-dir: %s: %s", m->dir, strerror(error));
        return;
    }
    pthread_mutex_lock(&m->lock);
    if (!m->stopping)
        update(m, file, n);
    pthread_mutex_unlock(&m->lock);
    gr_folder_free(file, n);
}

/* Brings the list up to date, without the lock. Event loops, which may not wait for the folder
 * often, leave a list that is new enough, or being read. */
static void refresh(struct gr_models *m, bool at_once)
{
    if (!m->dir)
        return;
    if (at_once)
        pthread_mutex_lock(&m->reading);
    else if (pthread_mutex_trylock(&m->reading))
        return;
    if (at_once || gr_serve_now() >= m->next_reading)
        read_folder(m);
    pthread_mutex_unlock(&m->reading);
}

/* Finds the model of a name; tagged: or of the name in front of a tag ("NAME:latest"), as Ollama's
 * clients write it. */
static struct served_model *find(const struct gr_models *m, const char *name, bool tagged)
{
    const char *colon = tagged ? strrchr(name, ':') : NULL;
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    struct served_model *untagged = NULL;
    for (struct served_model *e = m->all; e; e = e->next) {
        if (!strcmp(e->name, name))
            return e;
        if (!strncmp(e->name, name, n) && !e->name[n])
            untagged = e;
    }
    return untagged;
}

/* Returns the model of requests that name none: that of -m, or the only one that is loaded. */
static struct served_model *find_usual(const struct gr_models *m)
{
    struct served_model *found = NULL;
    int n = 0;
    for (struct served_model *e = m->all; e; e = e->next) {
        if (e->stays)
            return e;
        if (e->state == GR_MODEL_LOADED)
            found = e, n++;
    }
    return n == 1 ? found : NULL;
}

/* ---- the line: who goes on, and what is loaded for whom; with the lock ---- */

static void give_job(struct gr_models *m, struct served_model *e, enum gr_model_state state)
{
    e->state = state;
    m->job = e;
    m->cancelled = false;
    pthread_cond_signal(&m->load);
}

/* Returns how many of the folder's models are loaded; *oldest: the one used longest ago, of those
 * without requests if there are any. */
static int32_t count_loaded(const struct gr_models *m, struct served_model **oldest)
{
    int32_t n = 0;
    *oldest = NULL;
    for (struct served_model *e = m->all; e; e = e->next) {
        const struct served_model *old = *oldest;
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
static void make_way(struct gr_models *m, struct served_model *e)
{
    struct served_model *oldest;
    int32_t n = count_loaded(m, &oldest);
    if (!oldest || (n < m->p.options->models_max && !e->lacks_room))
        give_job(m, e, GR_MODEL_LOADING);
    else if (oldest->n_user)
        oldest->makes_way = true;
    else
        give_job(m, oldest, GR_MODEL_UNLOADING);
}

/* Decides about a request to unload. */
static enum outcome judge_unload(struct gr_models *m, struct served_model *e)
{
    if (e->state == GR_MODEL_UNLOADED || e->state == GR_MODEL_FAILED)
        return IS_DONE;
    if (e->state != GR_MODEL_LOADED)
        return STAYS;
    e->makes_way = true;
    if (!e->n_user && !m->job)
        give_job(m, e, GR_MODEL_UNLOADING);
    return STAYS;
}

/* Decides about a request that waits. *blocked: one before it waits for the loader, or for room. */
static enum outcome judge(struct gr_models *m, struct visit *v, int64_t now, bool *blocked)
{
    struct served_model *e = v->wanted;
    if (v->gone)
        return HAS_GONE;
    if (m->stopping)
        return IS_STOPPED;
    if (e->n_failed > v->n_failed && v->what != TO_UNLOAD)
        return HAS_FAILED;
    if (e->state == GR_MODEL_LOADED && !e->makes_way && v->what != TO_UNLOAD)
        return v->what == TO_USE ? GOES_ON : IS_DONE;
    if (now > v->end)
        return IS_LATE;
    if (v->what == TO_UNLOAD)
        return judge_unload(m, e);
    if (e->state == GR_MODEL_UNLOADED || e->state == GR_MODEL_FAILED) {
        if (!m->job && !*blocked)
            make_way(m, e);
        *blocked = true;
    }
    return STAYS;
}

static void begin_use(struct gr_models *m, struct visit *v, struct served_model *e)
{
    v->of = e;
    e->n_user++;
    e->used = ++m->n_request;
}

/* Takes those out of the line that no longer wait, as a list. */
static struct visit *settle(struct gr_models *m)
{
    struct visit *ready = NULL, **last = &ready, **at = &m->line;
    int64_t now = gr_serve_now();
    bool blocked = m->job != NULL;
    for (struct served_model *e = m->all; e; e = e->next)
        e->makes_way = false;
    while (*at) {
        struct visit *v = *at;
        v->outcome = judge(m, v, now, &blocked);
        if (v->outcome == STAYS) {
            at = &v->next;
            continue;
        }
        *at = v->next;
        *last = v, last = &v->next, v->next = NULL;
        snprintf(v->why, sizeof v->why, "%s", v->wanted->why);
        v->wanted->n_waiting--, m->n_waiting--;
        if (v->outcome == GOES_ON)
            begin_use(m, v, v->wanted);
    }
    m->line_end = at;
    m->cancelled |= m->job && !m->job->n_waiting;
    return ready;
}

/* ---- the threads ---- */

/* Answers a request that no longer waits, or has it go on. */
static void dismiss(struct visit *v)
{
    struct gr_exchange *x = v->x;
    char why[640];
    switch (v->outcome) {
    case STAYS:
        return;
    case GOES_ON:
        if (!gr_exchange_retry(x))
            gr_exchange_end(x);
        return;
    case IS_DONE:
        gr_answer_json(x, 200,
                       v->ollama ? gr_ollama_unloaded(v->ollama, v->body)
                                 : json_pack("{s:b}", "success", 1));
        return;
    case HAS_GONE:
        gr_exchange_end(x);
        return;
    case IS_LATE:
        gr_refuse_as(x, 503, "model", "model_busy",
                     v->what == TO_UNLOAD
                         ? "the model has requests that go on"
                         : "the model could not be loaded in time: it takes long, or others have "
                           "requests that go on");
        return;
    case HAS_FAILED:
        snprintf(why, sizeof why, "the model could not be loaded: %s", v->why);
        gr_refuse_as(x, 500, "model", "model_load_failed", why);
        return;
    case IS_STOPPED:
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

static void *keep(void *models)
{
    struct gr_models *m = models;
    pthread_mutex_lock(&m->lock);
    while (!m->ended || m->line) {
        struct visit *ready = settle(m), *next;
        if (!ready) {
            wait_tick(m);
            continue;
        }
        pthread_mutex_unlock(&m->lock);
        for (struct visit *v = ready; v; v = next) {
            next = v->next;
            dismiss(v);
        }
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* Loads a model; with the lock, which is left meanwhile. */
static void load(struct gr_models *m, struct served_model *e)
{
    struct served_model *oldest;
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
static void unload(struct gr_models *m, struct served_model *e)
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

static void *run_loader(void *models)
{
    struct gr_models *m = models;
    pthread_mutex_lock(&m->lock);
    while (!m->ended || m->job) {
        struct served_model *e = m->job;
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

/* ---- requests ---- */

static void end_use(struct gr_models *m, struct served_model *e)
{
    pthread_mutex_lock(&m->lock);
    if (!--e->n_user && m->line)
        pthread_cond_signal(&m->keep);
    pthread_mutex_unlock(&m->lock);
}

/* The exchange has its answer. */
static void end_visit(void *visit)
{
    struct visit *v = visit;
    if (v->of)
        end_use(v->models, v->of);
    json_decref(v->body);
    free(v);
}

/* The client has gone: in any thread. */
static void on_gone(void *visit)
{
    struct visit *v = visit;
    v->gone = true;
}

/* Begins a visit; NULL: refused. */
static struct visit *new_visit(struct gr_models *m, struct gr_exchange *x)
{
    struct visit *v = calloc(1, sizeof *v);
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
static bool read_name(struct visit *v, const char **name)
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
    struct visit *v = gr_exchange_held(x);
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

/* Finds a model and leaves the lock held; NULL, and not held: there is none. may_wait: this is no
 * event loop. */
static struct served_model *find_and_lock(struct gr_models *m, const char *name, bool may_wait)
{
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&m->lock);
        struct served_model *e = *name ? find(m, name, i) : find_usual(m);
        if (e)
            return e;
        pthread_mutex_unlock(&m->lock);
        if (!*name)
            return NULL;
        if (!i)
            refresh(m, may_wait && !strchr(name, ':')); /* a new file may be there */
    }
    return NULL;
}

/* Puts a visit into the line; false: it is full, or the server stops. With the lock, and the
 * exchange kept. */
static bool line_up(struct gr_models *m, struct visit *v, struct served_model *e)
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

/* Has a visit wait. Leaves the lock. */
static void await(struct gr_models *m, struct visit *v, struct served_model *e)
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

/* Runs the handler of a request whose model is there; the visit may be over before it returns. */
static void run(struct gr_models *m, struct gr_exchange *x, const struct gr_route *route,
                struct served_model *e)
{
    struct gr_server *server = e->server;
    pthread_mutex_lock(&m->lock);
    e->n_user++;
    pthread_mutex_unlock(&m->lock);
    route->handler(x, server);
    end_use(m, e);
}

/* Finds the model of a request that has just come. */
static void begin(struct gr_models *m, struct gr_exchange *x, const struct gr_route *route)
{
    const char *name;
    struct visit *v = new_visit(m, x);
    if (!v || !read_name(v, &name))
        return;
    bool may_wait = !strcmp(route->method, "POST"); /* others are short */
    struct served_model *e = find_and_lock(m, name, may_wait);
    if (!e) {
        refuse_unknown(x, name);
        return;
    }
    bool unloads = !e->stays && gr_ollama_unloads(route, v->body);
    bool there = !unloads && e->state == GR_MODEL_LOADED && (!e->makes_way || !may_wait);
    bool waits = !there && may_wait;
    if (unloads) {
        v->what = TO_UNLOAD, v->ollama = route;
        (void)json_object_set_new(v->body, "model", json_string(*name ? name : e->name));
    }
    if (there)
        begin_use(m, v, e);
    if (waits) {
        await(m, v, e);
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
    struct visit *v = gr_exchange_held(x);
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
    struct visit *v = new_visit(m, x);
    if (!v || !read_name(v, &name))
        return;
    struct served_model *e = *name ? find_and_lock(m, name, true) : NULL;
    bool stays = e && e->stays && !load;
    if (!e) {
        refuse_unknown(x, name);
        return;
    }
    v->what = load ? TO_LOAD : TO_UNLOAD;
    if (!stays) {
        await(m, v, e);
        return;
    }
    pthread_mutex_unlock(&m->lock);
    gr_refuse_as(x, 400, "model", NULL, "the model of -m stays loaded");
}

int gr_models_each(struct gr_models *m, const char *name,
                   void (*fn)(const struct gr_model_view *view, void *user), void *user)
{
    int n = 0;
    refresh(m, false);
    pthread_mutex_lock(&m->lock);
    for (const struct served_model *e = m->all; e; e = e->next) {
        struct gr_model_view view = {.name = e->name,
                                     .why = e->why,
                                     .state = e->state,
                                     .modified = e->modified,
                                     .n_bytes = e->n_bytes,
                                     .listed = m->dir != NULL};
        if (name && strcmp(name, e->name) != 0)
            continue;
        view.server = e->state == GR_MODEL_LOADED ? e->server : NULL;
        fn(&view, user);
        n++;
    }
    pthread_mutex_unlock(&m->lock);
    return n;
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
    update(m, file, n);
    gr_folder_free(file, n);
    m->keeps = !pthread_create(&m->keeper, NULL, keep, m);
    m->loads = m->keeps && !pthread_create(&m->loader, NULL, run_loader, m);
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

int gr_models_add(struct gr_models *m, struct gr_server *server)
{
    struct served_model *e = calloc(1, sizeof *e), **at = &m->all;
    if (e)
        e->name = strdup(server->name);
    if (!e || !e->name) {
        free(e);
        return GR_E_NOMEM_HOST;
    }
    e->stays = true;
    e->state = GR_MODEL_LOADED;
    e->server = server;
    e->modified = server->created, e->n_bytes = server->info.n_bytes;
    pthread_mutex_lock(&m->lock);
    while (*at && strcmp((*at)->name, e->name) < 0)
        at = &(*at)->next;
    e->next = *at, *at = e;
    if (e->next && !strcmp(e->next->name, e->name)) { /* the same file, in the folder */
        struct served_model *twin = e->next;
        e->next = twin->next;
        free_model(twin);
    }
    pthread_mutex_unlock(&m->lock);
    return 0;
}

/* With the lock. */
static void stop_all(const struct gr_models *m, bool now)
{
    for (const struct served_model *e = m->all; e; e = e->next) {
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
    for (const struct served_model *e = m->all; e; e = e->next) {
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
    for (struct served_model *e = m->all, *next; e; e = next) {
        next = e->next;
        if (e->server)
            m->p.unload(e->server);
        free_model(e);
    }
    pthread_cond_destroy(&m->keep);
    pthread_cond_destroy(&m->load);
    pthread_mutex_destroy(&m->reading);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *models = NULL;
}
