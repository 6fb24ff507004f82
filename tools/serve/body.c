/* Bodies that are read as JSON. */
#include <string.h>

#include "models.h"
#include "server.h"

#define MOST_NODES 100000
#define MOST_DEPTH 64
#define NODE 8 /* a number of a list takes an eighth of the memory of other values */

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

static json_t *parse(struct gr_exchange *x, bool list)
{
    json_error_t e;
    size_t n, n_value = 0;
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
    return body;
}

static json_t *read_as(struct gr_exchange *x, bool list)
{
    json_t *body = gr_models_body(x);
    if (!body)
        body = parse(x, list);
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
