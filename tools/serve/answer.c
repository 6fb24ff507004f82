/* Answers in JSON, and errors. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"
#include "text.h"
#include "writer.h"

#define JSON "application/json"

/* ---- texts ---- */

json_t *gr_json_text(const char *p, size_t n)
{
    json_t *s = json_stringn(p, n);
    if (s)
        return s;
    char *text = malloc(3 * n + 1);
    size_t k = 0;
    for (size_t i = 0; text && i < n;) {
        size_t m = gr_utf8_length(p + i, n - i);
        memcpy(text + k, m ? p + i : "\xEF\xBF\xBD", m ? m : 3);
        k += m ? m : 3, i += m ? m : 1;
    }
    s = text ? json_stringn(text, k) : NULL;
    free(text);
    return s;
}

/* ---- answers ---- */

void gr_answer_json(struct gr_exchange *x, int status, json_t *body)
{
    static const char starved[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\"}}";
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text)
        status = 503, text = strdup(starved);
    gr_exchange_answer(x, status, JSON, text, text ? strlen(text) : 0);
}

static const char *type_of(int status)
{
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 404 ? "not_found_error"
           : status == 429 ? "rate_limit_error"
           : status == 503 ? "unavailable_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

/* Returns whether a path is one of Ollama's routes, whose errors are texts. */
static bool is_ollama(const char *path)
{
    path += strncmp(path, "/v1/", 4) ? 0 : 3;
    return !strncmp(path, "/api/", 5);
}

/* Makes the object of an error, in the form of the route; NULL: no memory. */
static json_t *error_json(const struct gr_exchange *x, int status, const char *param,
                          const char *code, const char *message)
{
    json_t *text = gr_json_text(message, strlen(message));
    if (is_ollama(gr_exchange_path(x)))
        return json_pack("{s:o}", "error", text);
    json_t *word = code ? json_string(code) : json_integer(status);
    return json_pack("{s:{s:o, s:s, s:s?, s:o}}", "error", "message", text, "type", type_of(status),
                     "param", param, "code", word);
}

void gr_refuse_as(struct gr_exchange *x, int status, const char *param, const char *code,
                  const char *message)
{
    if (status == 429 || status == 503)
        gr_exchange_add_header(x, "Retry-After", "1");
    gr_answer_json(x, status, error_json(x, status, param, code, message));
}

void gr_refuse_plain(struct gr_exchange *x, int status, const char *message, const char *code)
{
    gr_refuse_as(x, status, NULL, code, message);
}

void gr_refuse(struct gr_exchange *x, int status, const char *param, const char *message, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, message);
    vsnprintf(text, sizeof text, message, ap);
    va_end(ap);
    gr_refuse_as(x, status, param, NULL, text);
}

void gr_refuse_status(struct gr_exchange *x, int status, const char *param)
{
    int http = status == GR_E_INVALID || status == GR_E_TEMPLATE || status == GR_E_TOO_LARGE ||
                       status == GR_E_UNSUPPORTED
                   ? 400
               : status == GR_E_NOMEM_HOST || status == GR_E_NOMEM_DEV || status == GR_E_KV_FULL ||
                       status == GR_E_DEVICE || status == GR_E_PEER_LOST || status == GR_E_CANCELLED
                   ? 503
                   : 500;
    gr_refuse_as(x, http, param, NULL, gr_failure_text(status));
}
