/* Conversations of gpurun chat in files: the messages as JSON, and beside them, in FILE.kv, the
 * session's state with the tokens of its text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat.h"
#include "tools/cli/input.h"
#include "tools/cli/json.h"
#include "tools/cli/say.h"
#include "tools/cli/templates.h"

/* Returns the name of the state beside a file (free), or NULL after printing the error. */
static char *state_path(const char *path)
{
    char *name;
    if (asprintf(&name, "%s.kv", path) >= 0)
        return name;
    (void)gr_say_no_memory();
    return NULL;
}

static void remember(struct chat *c, const char *path)
{
    char *file = strdup(path);
    free(c->file);
    c->file = file;
}

static int write_messages(struct chat *c, const char *path)
{
    gr_json_begin();
    json_t *all = json_pack("{s:s, s:O}", "model", c->run.info.name ? c->run.info.name : "",
                            "messages", c->messages);
    char *text = all ? json_dumps(all, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    struct gr_output *f = NULL;
    json_decref(all);
    if (!text)
        return gr_say_no_memory();
    int status = gr_output_open(&f, path, GR_OUTPUT_PRIVATE);
    if (!status)
        status = gr_output_put(f, text, strlen(text));
    if (!status)
        status = gr_output_put(f, "\n", 1);
    if (!status)
        status = gr_output_commit(&f);
    gr_output_abort(&f);
    free(text);
    return status ? gr_say_status(status) : 0;
}

/* Writes the session's state; without one that can be restored an older file goes. */
static int write_state(struct chat *c, const char *path)
{
    struct run *r = &c->run;
    struct gr_prompt_cache cache = r->cache;
    if (!cache.n || cache.n_dropped || cache.lost) {
        (void)unlink(path);
        return 0;
    }
    cache.path = path;
    return gr_prompt_cache_save(&cache, r->session, &r->extend);
}

int gr_chat_save(struct chat *c, const char *path)
{
    char *state = state_path(path);
    if (!state)
        return gr_status_exit(GR_E_NOMEM_HOST);
    bool own = c->file && !strcmp(c->file, path);
    int rc = 0;
    if (!own && (!access(path, F_OK) || !access(state, F_OK))) {
        gr_say_error("%s is there already: give another name, or remove it",
                     access(path, F_OK) ? state : path);
        rc = GR_EXIT_USAGE;
    }
    if (!rc)
        rc = write_messages(c, path);
    if (!rc)
        rc = write_state(c, state);
    if (!rc) {
        gr_say("%zu messages are in %s", json_array_size(c->messages), path);
        remember(c, path);
    }
    free(state);
    return rc;
}

/* Returns whether it is a message: a role and a text. */
static bool is_message(const json_t *m)
{
    return json_is_string(json_object_get(m, "role")) &&
           json_is_string(json_object_get(m, "content"));
}

/* Returns the messages of a file, a list or an object with one; NULL after printing the error. */
static json_t *read_messages(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    int rc = gr_read_all(path, &text, &n);
    gr_json_begin();
    json_t *all = rc ? NULL : gr_read_json(text, n, path, &rc);
    json_t *list = json_is_array(all) ? all : json_object_get(all, "messages");
    free(text);
    if (!all)
        return NULL;
    size_t i = 0, size = json_is_array(list) ? json_array_size(list) : 0;
    while (i < size && is_message(json_array_get(list, i)))
        i++;
    if (!json_is_array(list))
        gr_say_error("%s: a list of messages is expected, or an object with one", path);
    else if (i < size)
        gr_say_error("%s: message %zu: an object with \"role\" and \"content\", texts, is expected",
                     path, i + 1);
    else
        json_incref(list);
    bool good = json_is_array(list) && i == size;
    json_decref(all);
    return good ? list : NULL;
}

int gr_chat_load(struct chat *c, const char *path)
{
    struct run *r = &c->run;
    char *state = strcmp(path, "-") != 0 ? state_path(path) : NULL;
    json_t *list = state ? read_messages(path) : NULL;
    if (!list) {
        if (!state)
            gr_say_error("/load needs the name of a file");
        free(state);
        return GR_EXIT_USAGE;
    }
    json_decref(c->messages);
    c->messages = list;
    bool kept = false;
    if (access(state, F_OK))
        gr_prompt_cache_clear(&r->cache, r->session, &r->extend, &r->n_past);
    else
        kept = gr_prompt_cache_restore(&r->cache, r->session, state, &r->extend, &r->n_past);
    gr_say("%zu messages of %s%s", json_array_size(list), path,
           kept ? ", with their state" : "; they are computed with the next one");
    remember(c, path);
    free(state);
    return 0;
}
