/* The parts of the table of models: model_table.c has the models and the folder that they come
 * from, model_line.c the requests that wait for one and the threads that load, models.c requests as
 * they come, and what others call. */
#ifndef GR_TOOLS_MODELS_IMPL_H
#define GR_TOOLS_MODELS_IMPL_H

#include <pthread.h>

#include "folder.h"
#include "models.h"

/* A model that is loaded, or may be. */
struct gr_served_model {
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
    struct gr_served_model *next;
};

enum gr_visit_outcome {
    GR_VISIT_STAYS,
    GR_VISIT_GOES_ON,
    GR_VISIT_DONE,
    GR_VISIT_GONE,
    GR_VISIT_LATE,
    GR_VISIT_FAILED,
    GR_VISIT_STOPPED
};

enum gr_visit_aim { GR_VISIT_USES, GR_VISIT_LOADS, GR_VISIT_UNLOADS };

/* A request about a model, held by its exchange. */
struct gr_visit {
    struct gr_models *models;
    struct gr_served_model *of; /* NULL: it is not under way */
    json_t *body;               /* NULL: not read, or the handler has it */
    /* While it waits: */
    struct gr_exchange *x;
    struct gr_served_model *wanted;
    enum gr_visit_aim what;
    const struct gr_route *ollama; /* the answer of an unload is this route's; NULL: success */
    int64_t end;                   /* ns */
    uint64_t n_failed;             /* of the model, when it came */
    atomic_bool gone;              /* the client has */
    enum gr_visit_outcome outcome;
    char why[512];
    struct gr_visit *next;
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
    struct gr_served_model *all; /* by name */
    struct gr_visit *line, **line_end;
    int32_t n_waiting;
    uint64_t n_request;
    struct gr_served_model *job; /* the loader's: to be loaded or unloaded, as its state says */
    atomic_bool cancelled;       /* a job that loads is */
    bool stopping, ended;
};

/* ---- model_table.c ---- */

void gr_served_model_free(struct gr_served_model *e);
/* Brings the list up to date with the files of the folder: those that are no longer there go with
 * their model, unless it is in use. With the lock. */
void gr_models_update(struct gr_models *m, struct gr_folder_file *file, size_t n);
/* Finds a model, of "" the one that requests without a name are about, and leaves the lock held;
 * NULL, and not held: there is none. may_wait: this is no event loop. */
struct gr_served_model *gr_served_model_find_and_lock(struct gr_models *m, const char *name,
                                                      bool may_wait);

/* ---- model_line.c ---- */

/* A request that goes on: the model stays loaded. With the lock. */
void gr_served_model_begin_use(struct gr_models *m, struct gr_visit *v, struct gr_served_model *e);
/* Ends that; without the lock. */
void gr_served_model_end_use(struct gr_models *m, struct gr_served_model *e);
/* Has a visit wait for a model, or refuses it. With the lock, which it leaves. */
void gr_visit_await(struct gr_models *m, struct gr_visit *v, struct gr_served_model *e);
/* The threads. */
void *gr_models_keeper(void *models);
void *gr_models_loader(void *models);

#endif
