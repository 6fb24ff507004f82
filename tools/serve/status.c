/* The server's state, and its model. */
#include <string.h>

#include "server.h"

void gr_serve_health(struct gr_exchange *x, void *user)
{
    struct gr_server *s = user;
    int state = atomic_load(&s->state);
    if (state == GR_SERVER_READY)
        gr_answer_json(x, 200, json_pack("{s:s}", "status", "ok"));
    else
        gr_refuse(x, 503, NULL, "%s",
                  state == GR_SERVER_LOADING    ? "Loading model"
                  : state == GR_SERVER_STOPPING ? "the server is stopping"
                                                : "a device has failed");
}

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

void gr_serve_models(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    gr_answer_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(s)));
}

void gr_serve_model_by_id(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    if (!strcmp(gr_exchange_rest(x), s->name))
        gr_answer_json(x, 200, model_json(s));
    else
        gr_refuse_as(x, 404, "model", "model_not_found",
                     "there is no such model; /v1/models lists it");
}

static json_t *token_text(const struct gr_model *model, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    if (id < 0 || gr_text_piece(model, id, true, &p, &n))
        n = 0;
    return gr_json_text(p, n);
}

void gr_serve_props(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    const char *text = "", *known;
    size_t n = 0;
    if (!s->chat || gr_model_template(s->model, &text, &n, &known))
        n = 0;
    json_t *defaults = json_pack("{s:i}", "n_ctx", s->n_ctx);
    json_t *modes = json_pack("{s:b, s:b}", "vision", 0, "audio", 0);
    json_t *props =
        json_pack("{s:o, s:i, s:s, s:o, s:o, s:o, s:o, s:s}", "default_generation_settings",
                  defaults, "total_slots", s->n_parallel, "model_alias", s->name, "chat_template",
                  gr_json_text(text, n), "bos_token", token_text(s->model, gr_text_bos(s->model)),
                  "eos_token", token_text(s->model, gr_text_eos(s->model)), "modalities", modes,
                  "build_info", gr_version());
    gr_answer_json(x, 200, props);
}

void gr_serve_version(struct gr_exchange *x, void *user)
{
    (void)user;
    gr_answer_json(x, 200, json_pack("{s:s}", "version", gr_version()));
}
