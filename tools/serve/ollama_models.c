/* GET /api/tags, /api/ps and /api/version, POST /api/show: models, as Ollama's clients see them. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "generation.h"
#include "models.h"
#include "prompts.h"

static json_t *details(const struct gr_server *s)
{
    char size[32];
    double n = (double)s->info.n_params;
    snprintf(size, sizeof size, n >= 1e9 ? "%.1fB" : "%.1fM", n >= 1e9 ? n / 1e9 : n / 1e6);
    return json_pack("{s:s, s:s, s:s, s:[s], s:s, s:s}", "parent_model", "", "format", "gguf",
                     "family", s->info.arch, "families", s->info.arch, "parameter_size", size,
                     "quantization_level", s->info.file_type);
}

static const char *write_time(int64_t at, char stamp[32])
{
    struct tm tm;
    time_t seconds = at;
    strftime(stamp, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &tm));
    return stamp;
}

static json_t *model_json(const struct gr_model_view *v)
{
    char stamp[32];
    const struct gr_server *s = v->server;
    json_t *unknown =
        json_pack("{s:s, s:s, s:s, s:[], s:s, s:s}", "parent_model", "", "format", "gguf", "family",
                  "", "families", "parameter_size", "", "quantization_level", "");
    json_t *model = json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "name", v->name, "model", v->name,
                              "modified_at", write_time(s ? s->created : v->modified, stamp),
                              "size", (json_int_t)(s ? s->info.n_bytes : v->n_bytes), "digest", "",
                              "details", s ? details(s) : json_incref(unknown));
    json_decref(unknown);
    return model;
}

static void add(const struct gr_model_view *v, void *list)
{
    (void)json_array_append_new(list, model_json(v));
}

/* Adds a model that is loaded; it has no time at which it is unloaded. */
static void add_loaded(const struct gr_model_view *v, void *list)
{
    uint64_t n_bytes = 0;
    if (!v->server)
        return;
    for (int32_t i = 0; i < v->server->fit.n_device; i++) {
        const struct gr_fit_device *d = &v->server->fit.device[i];
        n_bytes += d->total_bytes ? d->weights + d->cache + d->work : 0;
    }
    json_t *model = model_json(v);
    (void)json_object_del(model, "modified_at");
    (void)json_object_set_new(model, "expires_at", json_string("9999-12-31T23:59:59Z"));
    (void)json_object_set_new(model, "size_vram", json_integer((json_int_t)n_bytes));
    (void)json_object_set_new(model, "context_length", json_integer(v->server->n_ctx));
    (void)json_array_append_new(list, model);
}

void gr_serve_ollama_tags(struct gr_exchange *x, void *user)
{
    json_t *list = json_array();
    (void)gr_models_each(user, NULL, add, list);
    gr_answer_json(x, 200, json_pack("{s:o}", "models", list));
}

void gr_serve_ollama_ps(struct gr_exchange *x, void *user)
{
    json_t *list = json_array();
    (void)gr_models_each(user, NULL, add_loaded, list);
    gr_answer_json(x, 200, json_pack("{s:o}", "models", list));
}

void gr_serve_ollama_show(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    const char *text = "", *known;
    size_t n = 0;
    char stamp[32];
    if (!s->chat || gr_model_template(s->model, &text, &n, &known))
        n = 0;
    json_t *can = json_array();
    if (s->scheduler)
        (void)json_array_append_new(can, json_string("completion"));
    if (s->embedder)
        (void)json_array_append_new(can, json_string("embedding"));
    if (s->format && strcmp(s->format, "plain") != 0)
        (void)json_array_append_new(can, json_string("tools"));
    if (s->scheduler && gr_prompts_can_infill(s->model))
        (void)json_array_append_new(can, json_string("insert"));
    json_t *info = json_pack("{s:s, s:I, s:i}", "general.architecture", s->info.arch,
                             "general.parameter_count", (json_int_t)s->info.n_params,
                             "context_length", s->n_ctx);
    gr_answer_json(x, 200,
                   json_pack("{s:s, s:s, s:s, s:o, s:s, s:o, s:o, s:o}", "license", "", "modelfile",
                             "", "parameters", "", "template", gr_json_text(text, n), "modified_at",
                             write_time(s->created, stamp), "details", details(s), "model_info",
                             info, "capabilities", can));
}

void gr_serve_ollama_version(struct gr_exchange *x, void *user)
{
    (void)user;
    gr_answer_json(x, 200, json_pack("{s:s}", "version", gr_version()));
}
