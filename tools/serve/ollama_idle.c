/* Requests of Ollama's that ask nothing: they load the model, or unload it. */
#include <string.h>
#include <time.h>

#include "ollama.h"

const char *gr_ollama_now(char stamp[GR_OLLAMA_STAMP])
{
    struct tm tm;
    time_t now = time(NULL);
    strftime(stamp, GR_OLLAMA_STAMP, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    return stamp;
}

bool gr_ollama_asks_nothing(const json_t *request, bool chat)
{
    const json_t *v = json_object_get(request, chat ? "messages" : "prompt");
    return !v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v));
}

/* Returns whether a request has the model stay for no time: 0, "0" or "0s". */
static bool is_kept_for_none(const json_t *request)
{
    const json_t *v = json_object_get(request, "keep_alive");
    const char *text = json_string_value(v);
    if (!text)
        return json_is_number(v) && json_number_value(v) == 0;
    return strchr(text, '0') && !text[strspn(text, "+-0.hmsun")];
}

json_t *gr_ollama_nothing(const char *name, const json_t *request, bool chat)
{
    const char *model = json_string_value(json_object_get(request, "model"));
    json_t *rest =
        chat ? json_pack("{s:s, s:s}", "role", "assistant", "content", "") : json_string("");
    char stamp[GR_OLLAMA_STAMP];
    return json_pack("{s:s, s:s, s:o, s:b, s:s}", "model", model && *model ? model : name,
                     "created_at", gr_ollama_now(stamp), chat ? "message" : "response", rest,
                     "done", 1, "done_reason", is_kept_for_none(request) ? "unload" : "load");
}

bool gr_ollama_unloads(const struct gr_route *route, const json_t *request)
{
    bool chat = !strcmp(route->path, "/api/chat");
    return (chat || !strcmp(route->path, "/api/generate")) &&
           gr_ollama_asks_nothing(request, chat) && is_kept_for_none(request);
}

json_t *gr_ollama_unloaded(const struct gr_route *route, const json_t *request)
{
    return gr_ollama_nothing("", request, !strcmp(route->path, "/api/chat"));
}
