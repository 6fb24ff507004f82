/* GET /models and /models/NAME, POST /models/load and /models/unload. */
#include <string.h>

#include "models.h"

static json_t *model_json(const struct gr_server *s)
{
    const struct gr_model_info *i = &s->info;
    json_t *meta =
        json_pack("{s:i, s:i, s:i, s:i, s:I, s:I, s:s}", "n_ctx", s->n_ctx, "n_ctx_train",
                  i->n_ctx_train, "n_vocab", i->n_vocab, "n_embd", i->n_embd, "n_params",
                  (json_int_t)i->n_params, "size", (json_int_t)i->n_bytes, "ftype", i->file_type);
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", s->name, "object", "model", "created",
                     (json_int_t)s->created, "owned_by", "gpurun", "meta", meta);
}

/* Makes the object of a model, loaded or not. */
static json_t *view_json(const struct gr_model_view *v)
{
    static const char *const state[] = {[GR_MODEL_UNLOADED] = "unloaded",
                                        [GR_MODEL_LOADING] = "loading",
                                        [GR_MODEL_LOADED] = "loaded",
                                        [GR_MODEL_UNLOADING] = "unloaded",
                                        [GR_MODEL_FAILED] = "failed"};
    json_t *model = v->server ? model_json(v->server)
                              : json_pack("{s:s, s:s, s:I, s:s}", "id", v->name, "object", "model",
                                          "created", (json_int_t)v->modified, "owned_by", "gpurun");
    json_t *status = json_pack("{s:s}", "value", state[v->state]);
    if (v->state == GR_MODEL_FAILED) {
        (void)json_object_set_new(status, "failed", json_true());
        (void)json_object_set_new(status, "message", gr_json_text(v->why, strlen(v->why)));
    }
    if (v->listed)
        (void)json_object_set(model, "status", status);
    json_decref(status);
    return model;
}

static void add(const struct gr_model_view *v, void *list)
{
    (void)json_array_append_new(list, view_json(v));
}

void gr_serve_models(struct gr_exchange *x, void *user)
{
    json_t *list = json_array();
    (void)gr_models_each(user, NULL, add, list);
    gr_answer_json(x, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

void gr_serve_model_by_id(struct gr_exchange *x, void *user)
{
    json_t *list = json_array();
    if (gr_models_each(user, gr_exchange_rest(x), add, list))
        gr_answer_json(x, 200, json_incref(json_array_get(list, 0)));
    else
        gr_refuse_as(x, 404, "model", "model_not_found",
                     "there is no such model; /v1/models lists those there are");
    json_decref(list);
}

void gr_serve_model_load(struct gr_exchange *x, void *user)
{
    gr_models_change(user, x, true);
}

void gr_serve_model_unload(struct gr_exchange *x, void *user)
{
    gr_models_change(user, x, false);
}
