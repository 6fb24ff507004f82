/* The models that there are: those of the folder and that of -m. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models_impl.h"
#include "text.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

/* Time for which a list of the folder will do, unless a request names a model that it lacks. */
#define LIST_NS 1000000000

/* ---- the folder; with the lock ---- */

void gr_served_model_free(struct gr_served_model *e)
{
    free(e->name);
    free(e->path);
    free(e);
}

static bool is_idle(const struct gr_served_model *e)
{
    return !e->n_waiting && !e->stays &&
           (e->state == GR_MODEL_UNLOADED || e->state == GR_MODEL_FAILED);
}

/* Takes a file over into the list, whose place is at `at`; false: no memory. */
static bool merge(struct gr_served_model **at, struct gr_folder_file *f)
{
    struct gr_served_model *e = *at && !strcmp((*at)->name, f->name) ? *at : NULL;
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

void gr_models_update(struct gr_models *m, struct gr_folder_file *file, size_t n)
{
    struct gr_served_model **at = &m->all;
    size_t i = 0;
    while (*at || i < n) {
        int by = !*at ? 1 : i == n ? -1 : strcmp((*at)->name, file[i].name);
        if (by < 0 && is_idle(*at)) {
            struct gr_served_model *e = *at;
            *at = e->next;
            gr_served_model_free(e);
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
        gr_models_update(m, file, n);
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
static struct gr_served_model *find(const struct gr_models *m, const char *name, bool tagged)
{
    const char *colon = tagged ? strrchr(name, ':') : NULL;
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    struct gr_served_model *untagged = NULL;
    for (struct gr_served_model *e = m->all; e; e = e->next) {
        if (!strcmp(e->name, name))
            return e;
        if (!strncmp(e->name, name, n) && !e->name[n])
            untagged = e;
    }
    return untagged;
}

/* Returns the model of requests that name none: that of -m, or the only one that is loaded. */
static struct gr_served_model *find_usual(const struct gr_models *m)
{
    struct gr_served_model *found = NULL;
    int n = 0;
    for (struct gr_served_model *e = m->all; e; e = e->next) {
        if (e->stays)
            return e;
        if (e->state == GR_MODEL_LOADED)
            found = e, n++;
    }
    return n == 1 ? found : NULL;
}
struct gr_served_model *gr_served_model_find_and_lock(struct gr_models *m, const char *name,
                                                      bool may_wait)
{
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&m->lock);
        struct gr_served_model *e = *name ? find(m, name, i) : find_usual(m);
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

int gr_models_each(struct gr_models *m, const char *name,
                   void (*fn)(const struct gr_model_view *view, void *user), void *user)
{
    int n = 0;
    refresh(m, false);
    pthread_mutex_lock(&m->lock);
    for (const struct gr_served_model *e = m->all; e; e = e->next) {
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
int gr_models_add(struct gr_models *m, struct gr_server *server)
{
    struct gr_served_model *e = calloc(1, sizeof *e), **at = &m->all;
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
        struct gr_served_model *twin = e->next;
        e->next = twin->next;
        gr_served_model_free(twin);
    }
    pthread_mutex_unlock(&m->lock);
    return 0;
}
