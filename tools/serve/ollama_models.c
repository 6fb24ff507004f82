/* GET /api/tags and /api/version, POST /api/show: the model, as Ollama's clients see it. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "generation.h"
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

static const char *loaded(const struct gr_server *s, char stamp[32])
{
    struct tm tm;
    time_t at = s->created;
    strftime(stamp, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &tm));
    return stamp;
}

void gr_serve_ollama_tags(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    char stamp[32];
    json_t *model = json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "name", s->name, "model", s->name,
                              "modified_at", loaded(s, stamp), "size", (json_int_t)s->info.n_bytes,
                              "digest", "", "details", details(s));
    gr_answer_json(x, 200, json_pack("{s:[o]}", "models", model));
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
                             loaded(s, stamp), "details", details(s), "model_info", info,
                             "capabilities", can));
}

void gr_serve_ollama_version(struct gr_exchange *x, void *user)
{
    (void)user;
    gr_answer_json(x, 200, json_pack("{s:s}", "version", gr_version()));
}
