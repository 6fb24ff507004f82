/* The server's state, and what a model is set to. */
#include "models.h"

void gr_serve_health(struct gr_exchange *x, void *user)
{
    int state = atomic_load(&gr_models_life(user)->state);
    if (state == GR_SERVER_READY)
        gr_answer_json(x, 200, json_pack("{s:s}", "status", "ok"));
    else
        gr_refuse(x, 503, NULL, "%s",
                  state == GR_SERVER_LOADING    ? "Loading model"
                  : state == GR_SERVER_STOPPING ? "the server is stopping"
                                                : "a device has failed");
}

static json_t *token_text(const struct gr_model *model, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    if (id < 0 || gr_text_piece(model, id, true, &p, &n))
        n = 0;
    return gr_json_text(p, n);
}

static json_t *template_text(const struct gr_server *s)
{
    const char *text = "", *known;
    size_t n = 0;
    if (!s->chat || gr_model_template(s->model, &text, &n, &known))
        n = 0;
    return gr_json_text(text, n);
}

void gr_serve_tokenizer_info(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    int32_t bos = gr_text_bos(s->model), eos = gr_text_eos(s->model);
    gr_answer_json(x, 200,
                   json_pack("{s:s, s:o, s:o, s:o}", "tokenizer_class", "gpurun", "bos_token",
                             bos < 0 ? json_null() : token_text(s->model, bos), "eos_token",
                             eos < 0 ? json_null() : token_text(s->model, eos), "chat_template",
                             template_text(s)));
}

void gr_serve_props(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    json_t *defaults = json_pack("{s:i}", "n_ctx", s->n_ctx);
    json_t *modes = json_pack("{s:b, s:b}", "vision", 0, "audio", 0);
    json_t *props =
        json_pack("{s:o, s:i, s:s, s:o, s:o, s:o, s:o, s:s}", "default_generation_settings",
                  defaults, "total_slots", s->n_parallel, "model_alias", s->name, "chat_template",
                  template_text(s), "bos_token", token_text(s->model, gr_text_bos(s->model)),
                  "eos_token", token_text(s->model, gr_text_eos(s->model)), "modalities", modes,
                  "build_info", gr_version());
    gr_answer_json(x, 200, props);
}

void gr_serve_version(struct gr_exchange *x, void *user)
{
    (void)user;
    gr_answer_json(x, 200, json_pack("{s:s}", "version", gr_version()));
}
