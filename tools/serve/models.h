/* The models of a server: that of -m, which is there from the start and stays, and those of a
 * folder (--models-dir), each of which is loaded when a request names it. Only so many of the
 * folder's are loaded at once; the one used longest ago makes way, once none of its requests is
 * under way. Requests wait for that in the order they came, for a limited time.
 *
 * Threads: requests come from those of the HTTP layer; a keeper looks at those that wait; a loader
 * loads and unloads, one model at a time. */
#ifndef GR_TOOLS_MODELS_H
#define GR_TOOLS_MODELS_H

#include <jansson.h>

#include "server.h"

struct gr_models;

enum gr_model_state {
    GR_MODEL_UNLOADED,
    GR_MODEL_LOADING,
    GR_MODEL_LOADED,
    GR_MODEL_UNLOADING,
    GR_MODEL_FAILED /* to be loaded, which the next request tries again */
};

/* Reason that a load has not succeeded. */
enum gr_load_end { GR_LOAD_DONE, GR_LOAD_NO_ROOM, GR_LOAD_FAILED, GR_LOAD_CANCELLED };

/* A model that is to be loaded; it stays valid while it is. */
struct gr_model_file {
    const char *path, *name;
    bool beside;                  /* others of the folder are loaded, which may make way */
    const atomic_bool *cancelled; /* set when no request waits for it any more: the load may end */
};

struct gr_models_params {
    const struct gr_options *options;
    struct gr_life *life;
    /* Loads a model and starts it. After GR_LOAD_NO_ROOM beside others it is called again when
     * one has made way. why [n_why]: the reason of a failure. */
    enum gr_load_end (*load)(const struct gr_models_params *params, struct gr_server **out,
                             const struct gr_model_file *file, char *why, size_t n_why);
    /* Accepts no requests any more; `now`: those there are end. */
    void (*stop)(struct gr_server *server, bool now);
    /* Waits until its requests have ended, behind stop. */
    void (*wait)(struct gr_server *server);
    /* Frees one that has no requests. */
    void (*unload)(struct gr_server *server);
};

/* Returns an exit code, after printing the error. */
int gr_models_new(struct gr_models **out, const struct gr_models_params *params);
/* Adds the model of -m, which belongs to the table after success. Returns a status. */
int gr_models_add(struct gr_models *m, struct gr_server *server);
/* Stops all models, and refuses requests that wait for one. */
void gr_models_stop(struct gr_models *m, bool now);
/* Waits until all requests have ended, behind gr_models_stop, and so has a load. */
void gr_models_wait(struct gr_models *m);
/* Unloads all models, behind gr_httpd_close. */
void gr_models_free(struct gr_models **m);

/* A gr_dispatch_fn of the table: finds the model that a request names, by "model" in its body or in
 * the query, and calls the handler with it, once it is loaded. Handlers of other routes get the
 * table. */
gr_dispatch_fn gr_models_dispatch;

/* Takes the body that was read for its "model"; NULL: none was. */
json_t *gr_models_body(struct gr_exchange *x);

struct gr_life *gr_models_life(const struct gr_models *m);

/* A model; valid during the call. */
struct gr_model_view {
    const char *name, *why; /* why: of GR_MODEL_FAILED */
    enum gr_model_state state;
    int64_t modified;               /* Unix time of its file */
    uint64_t n_bytes;               /* of its file */
    const struct gr_server *server; /* NULL unless it is loaded */
    bool listed;                    /* has a state that may change: it is of the folder */
};
/* Reads the folder and calls fn with each model, by name, or with the one of that name (NULL: all).
 * Returns how many. */
int gr_models_each(struct gr_models *m, const char *name,
                   void (*fn)(const struct gr_model_view *view, void *user), void *user);

/* Has a POST wait until the model of its "model" is loaded, or is not: {"success": true}. */
void gr_models_change(struct gr_models *m, struct gr_exchange *x, bool load);

#endif
