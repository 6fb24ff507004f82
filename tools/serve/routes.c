/* Every route. */
#include "page.h"
#include "server.h"
#include "tools/cli/flags.h"

size_t gr_routes(const struct gr_options *o, struct gr_route route[GR_MAX_ROUTE])
{
    const struct {
        bool off;
        struct gr_route route;
    } all[] = {
        {false, {"GET", "/health", gr_serve_health, GR_ROUTE_OPEN}},
        {false, {"GET", "/models", gr_serve_models, GR_ROUTE_SERVER}},
        {!o->models_dir, {"POST", "/models/load", gr_serve_model_load, GR_ROUTE_SERVER}},
        {!o->models_dir, {"POST", "/models/unload", gr_serve_model_unload, GR_ROUTE_SERVER}},
        {false, {"GET", "/models/*", gr_serve_model_by_id, GR_ROUTE_SERVER}},
        {false, {"GET", "/version", gr_serve_version, GR_ROUTE_SERVER}},
        {!o->props, {"GET", "/props", gr_serve_props, GR_ROUTE_MODEL}},
        {!o->slots, {"GET", "/slots", gr_serve_slots, GR_ROUTE_MODEL}},
        {false, {"GET", "/lora-adapters", gr_serve_adapters, GR_ROUTE_MODEL}},
        {false, {"POST", "/lora-adapters", gr_serve_set_adapters, GR_ROUTE_MODEL}},
        {false, {"POST", "/slots/*", gr_serve_slot, GR_ROUTE_MODEL}},
        {!o->slots, {"GET", "/cache", gr_serve_cache, GR_ROUTE_MODEL}},
        {!o->webui, {"GET", "/", gr_page, GR_ROUTE_OPEN}},
        {false, {"GET", "/openapi.yaml", gr_openapi, GR_ROUTE_OPEN}},
        {!o->metrics, {"GET", "/metrics", gr_serve_metrics, GR_ROUTE_MODEL}},
        {false, {"POST", "/tokenize", gr_serve_tokenize, GR_ROUTE_MODEL}},
        {false, {"GET", "/tokenizer_info", gr_serve_tokenizer_info, GR_ROUTE_MODEL}},
        {false, {"POST", "/detokenize", gr_serve_detokenize, GR_ROUTE_MODEL}},
        {false, {"POST", "/apply-template", gr_serve_apply_template, GR_ROUTE_MODEL}},
        {false, {"POST", "/completions", gr_serve_completions, GR_ROUTE_MODEL}},
        {false, {"POST", "/chat/completions", gr_serve_chat, GR_ROUTE_MODEL}},
        {false, {"POST", "/responses", gr_serve_responses, GR_ROUTE_MODEL}},
        {false, {"POST", "/completion", gr_serve_completion, GR_ROUTE_MODEL}},
        {false, {"POST", "/infill", gr_serve_infill, GR_ROUTE_MODEL}},
        {false, {"POST", "/embeddings", gr_serve_embeddings, GR_ROUTE_MODEL}},
        {false, {"POST", "/rerank", gr_serve_rerank, GR_ROUTE_MODEL}},
        {false, {"POST", "/sessions", gr_serve_session_open, GR_ROUTE_MODEL}},
        {false, {"POST", "/sessions/*/fork", gr_serve_session_fork, GR_ROUTE_MODEL}},
        {false, {"POST", "/sessions/*/cut", gr_serve_session_cut, GR_ROUTE_MODEL}},
        {false, {"POST", "/sessions/*/back", gr_serve_session_back, GR_ROUTE_MODEL}},
        {false, {"GET", "/sessions/*", gr_serve_session, GR_ROUTE_MODEL}},
        {false, {"DELETE", "/sessions/*", gr_serve_session_close, GR_ROUTE_MODEL}},
        {false, {"POST", "/api/chat", gr_serve_ollama_chat, GR_ROUTE_MODEL}},
        {false, {"POST", "/api/generate", gr_serve_ollama_generate, GR_ROUTE_MODEL}},
        {false, {"POST", "/api/embed", gr_serve_ollama_embed, GR_ROUTE_MODEL}},
        {false, {"POST", "/api/show", gr_serve_ollama_show, GR_ROUTE_MODEL}},
        {false, {"GET", "/api/tags", gr_serve_ollama_tags, GR_ROUTE_SERVER}},
        {false, {"GET", "/api/ps", gr_serve_ollama_ps, GR_ROUTE_SERVER}},
        {false, {"GET", "/api/version", gr_serve_ollama_version, GR_ROUTE_SERVER}},
    };
    _Static_assert(sizeof all / sizeof *all <= GR_MAX_ROUTE, "");
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].off)
            route[n++] = all[i].route;
    }
    return n;
}
