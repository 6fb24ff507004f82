/* GET and POST /lora-adapters, and field "lora". */
#include "strengths.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "server.h"
#include "tools/cli/adapters.h"
#include "tools/cli/say.h"

#define MOST_SCALE 1e6

struct gr_strengths {
    struct gr_adapters list;
    bool fixed;
    pthread_mutex_t lock;
    float scale[GR_MAX_ADAPTER]; /* under the lock: of requests that name none */
};

int gr_strengths_open(struct gr_strengths **out, const struct gr_options *o)
{
    struct gr_strengths *l = *out = calloc(1, sizeof *l);
    if (!l)
        return gr_say_no_memory();
    pthread_mutex_init(&l->lock, NULL);
    int rc = gr_adapters_read(&l->list, o);
    for (int32_t i = 0; i < l->list.n; i++)
        l->scale[i] = l->list.v[i].scale;
    return rc;
}

void gr_strengths_free(struct gr_strengths **l)
{
    if (!*l)
        return;
    gr_adapters_free(&(*l)->list);
    pthread_mutex_destroy(&(*l)->lock);
    free(*l);
    *l = NULL;
}

int gr_strengths_fix(struct gr_strengths *l, struct gr_session *session)
{
    float all[GR_MAX_ADAPTER]; /* at once, so that there is memory for any of them */
    for (int32_t i = 0; i < GR_MAX_ADAPTER; i++)
        all[i] = 1;
    int rc = l->list.n ? gr_session_set_adapters(session, all) : 0;
    l->fixed = rc == GR_E_UNSUPPORTED;
    return l->fixed ? 0 : rc;
}

int32_t gr_strengths_n(const struct gr_strengths *l)
{
    return l->fixed ? 0 : l->list.n;
}

/* Reads a list of ids with strengths; those that are missing have 0. */
static void read_list(const struct gr_strengths *l, struct gr_fields *f, const json_t *list,
                      float scale[GR_MAX_ADAPTER])
{
    size_t i;
    json_t *one;
    memset(scale, 0, GR_MAX_ADAPTER * sizeof *scale);
    if (l->fixed)
        gr_field_wrong(f, "lora", "lora: adapters cannot be changed with several ranks");
    json_array_foreach(list, i, one)
    {
        struct gr_fields inner = {.object = one, .within = "lora."};
        if (!json_is_object(one) || !gr_field(&inner, "id") || !gr_field(&inner, "scale")) {
            gr_field_wrong(f, "lora", "lora: objects with id and scale are expected");
            return;
        }
        int64_t id = gr_field_int(&inner, "id", 0, 0, INT32_MAX);
        double value = gr_field_number(&inner, "scale", 0, -MOST_SCALE, MOST_SCALE);
        if (id >= l->list.n)
            gr_field_wrong(&inner, "id", "lora.id: there is no adapter %lld: there are %d",
                           (long long)id, l->list.n);
        else
            scale[id] = (float)value;
        gr_fields_take(f, &inner);
    }
}

void gr_strengths_read(struct gr_strengths *l, struct gr_fields *f, float scale[GR_MAX_ADAPTER])
{
    const json_t *list = gr_field_list(f, "lora");
    if (list) {
        read_list(l, f, list, scale);
        return;
    }
    pthread_mutex_lock(&l->lock);
    memcpy(scale, l->scale, sizeof l->scale);
    pthread_mutex_unlock(&l->lock);
}

void gr_serve_adapters(struct gr_exchange *x, void *user)
{
    struct gr_strengths *l = ((struct gr_server *)user)->strengths;
    json_t *all = json_array();
    pthread_mutex_lock(&l->lock);
    for (int32_t i = 0; i < l->list.n; i++)
        json_array_append_new(all,
                              json_pack("{s:i, s:o, s:f}", "id", i, "path",
                                        gr_json_text(l->list.v[i].path, strlen(l->list.v[i].path)),
                                        "scale", (double)l->scale[i]));
    pthread_mutex_unlock(&l->lock);
    gr_answer_json(x, 200, all);
}

void gr_serve_set_adapters(struct gr_exchange *x, void *user)
{
    const struct gr_server *server = user;
    struct gr_strengths *l = server->strengths;
    struct gr_fields f = {0};
    float scale[GR_MAX_ADAPTER];
    if (!server->scheduler) {
        gr_refuse(x, 501, NULL, "this model computes vectors only: adapters cannot be changed");
        return;
    }
    json_t *list = gr_read_list(x);
    if (!list)
        return;
    read_list(l, &f, list, scale);
    json_decref(list);
    if (gr_fields_refuse(&f, x))
        return;
    pthread_mutex_lock(&l->lock);
    memcpy(l->scale, scale, sizeof scale);
    pthread_mutex_unlock(&l->lock);
    gr_answer_json(x, 200, json_pack("{s:b}", "success", 1));
}
