/* Answers in JSON, errors, and bodies that are read as JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"
#include "server.h"
#include "text.h"
#include "writer.h"

#define JSON "application/json"
#define MOST_NODES 100000
#define MOST_DEPTH 64
#define NODE 8 /* a number of a list takes an eighth of the memory of other values */

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

/* ---- bodies ---- */

/* Returns whether a number follows a comma: p [n] begins behind it. */
static bool is_number(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", p[i]) && p[i])
        i++;
    return i < n && (p[i] == '-' || (p[i] >= '0' && p[i] <= '9'));
}

/* Counts without reading: an upper bound, since marks in texts that are not closed count too. */
const char *gr_json_too_much(const char *p, size_t n, size_t *n_value)
{
    size_t nodes = *n_value + NODE;
    int depth = 0;
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (text) {
            i += c == '\\';
            text = c != '"';
        } else if (c == '"') {
            text = true;
        } else if (c == '{' || c == '[') {
            nodes += NODE, depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',') {
            nodes += is_number(p + i + 1, n - i - 1) ? 1 : NODE;
        } else {
            nodes += c == ':' ? NODE : 0;
        }
        if (depth > MOST_DEPTH)
            return "the JSON is nested deeper than 64";
        if (nodes > MOST_NODES * NODE)
            return "the JSON has more than 100000 values";
    }
    *n_value = nodes;
    return NULL;
}

static json_t *read_as(struct gr_exchange *x, bool list)
{
    json_error_t e;
    size_t n, n_value = 0;
    json_t *read = gr_models_body(x);
    if (read)
        return read;
    const char *p = gr_exchange_body(x, &n), *why = gr_json_too_much(p, n, &n_value);
    json_t *body = why ? NULL : json_loadb(p, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    gr_exchange_drop_body(x);
    if (why)
        gr_refuse(x, 400, NULL, "%s", why);
    else if (!body && !n)
        gr_refuse(x, 400, NULL, "the request has no body, and a JSON %s is expected",
                  list ? "list" : "object");
    else if (!body)
        gr_refuse(x, 400, NULL, "the body is no JSON: line %d, column %d: %s", e.line, e.column,
                  e.text);
    if (body && !(list ? json_is_array(body) : json_is_object(body))) {
        gr_refuse(x, 400, NULL, "the body is JSON, but no %s", list ? "list" : "object");
        json_decref(body);
        return NULL;
    }
    return body;
}

json_t *gr_read_object(struct gr_exchange *x)
{
    return read_as(x, false);
}

json_t *gr_read_list(struct gr_exchange *x)
{
    return read_as(x, true);
}
