/* HTTP by libmicrohttpd: event loops that take requests in, find the handler of their route, and
 * send what it answers, at once or later, whole or as a stream. Nothing here knows of models.
 *
 * A handler is called in a thread of an event loop when a request has come in whole; it must not
 * wait for a model. It answers before it returns, or keeps the exchange and answers later from any
 * thread. Limits: times for headers and bodies, sizes, connections, writes that stall. */
#ifndef GR_TOOLS_HTTP_H
#define GR_TOOLS_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gr_http;     /* a server that listens */
struct gr_exchange; /* a request and its answer */

/* ---- what a handler sees of a request ---- */

/* The part of the path that a route's "*" stands for, decoded; "" without one. */
const char *gr_exchange_rest(const struct gr_exchange *x);
/* Values of a header and of the query; NULL: not given. */
const char *gr_exchange_header(const struct gr_exchange *x, const char *name);
const char *gr_exchange_query(const struct gr_exchange *x, const char *name);
/* The body [*n]; zero-terminated. */
const char *gr_exchange_body(const struct gr_exchange *x, size_t *n);
/* Frees the body, which a handler no longer needs once it has read it. */
void gr_exchange_drop_body(struct gr_exchange *x);
/* Who asks: a number for each key, 0 without keys. */
uint64_t gr_exchange_owner(const struct gr_exchange *x);

/* ---- answers: one of these ---- */

/* Answers with a body [n] of malloc, which belongs to the exchange from here on. */
void gr_exchange_answer(struct gr_exchange *x, int status, const char *type, char *body, size_t n);
/* Adds a header to the answer; before it. value must not come from a request. */
void gr_exchange_add_header(struct gr_exchange *x, const char *name, const char *value);

/* Keeps the exchange beyond its handler, which has not answered: gone (unless NULL) is called once,
 * in any thread, if the client hangs up or stalls before the end of the answer; it must return at
 * once. After it all that is written is dropped; the exchange still has to be ended. */
void gr_exchange_keep(struct gr_exchange *x, void (*gone)(void *user), void *user);
/* Begins an answer of status 200 whose end is not known yet. ping: what is sent when nothing was
 * for 15 s, NULL: nothing; static. */
void gr_exchange_stream(struct gr_exchange *x, const char *type, const char *ping);
/* Sends n bytes; false: the client has gone. */
bool gr_exchange_write(struct gr_exchange *x, const char *p, size_t n);
/* Ends a stream, or an exchange that was kept and whose client has gone; x is not valid then. A kept
 * exchange that is answered by gr_exchange_answer is not ended by this. */
void gr_exchange_end(struct gr_exchange *x);

/* ---- the server ---- */

typedef void gr_handler_fn(struct gr_exchange *x, void *user);

/* A route. Paths are compared whole; a "*" at their end or in the middle of them stands for one
 * segment that is not empty. */
struct gr_route {
    const char *method, *path;
    gr_handler_fn *handler;
    bool open; /* asks for no key */
};

/* How errors look: called for those found here (404, 405, 401, 413, ..), with an exchange to
 * answer. code: a word for programs, NULL: none. */
typedef void gr_refuse_fn(struct gr_exchange *x, int status, const char *message, const char *code);

struct gr_http_params {
    const char *host; /* numeric address, or a name that has one */
    uint16_t port;    /* 0: any that is free */
    const struct gr_route *route; /* [n_route] */
    size_t n_route;
    void *user; /* of the handlers */
    gr_refuse_fn *refuse;
    const char *const *key; /* [n_key] keys, one of which each request has to name; none: n_key 0 */
    size_t n_key;
    const char *tls_key_file, *tls_cert_file; /* NULL: plain */
    const char *origin;    /* which pages may call it: an origin, "*", NULL: its own page alone */
    size_t max_body;       /* bytes */
    uint32_t max_connections;
    int32_t n_thread;      /* event loops; 0: 2 */
};

/* Listens. Returns an exit code of the program, after a message. */
int gr_http_open(struct gr_http **out, const struct gr_http_params *params);
/* Address that it listens on ("http://127.0.0.1:8080"). */
const char *gr_http_url(const struct gr_http *h);
/* No more connections are accepted; those that are open end with their answer. */
void gr_http_drain(struct gr_http *h);
/* Number of exchanges that have not ended. */
int32_t gr_http_busy(const struct gr_http *h);
/* Closes all connections and waits until no handler runs. Exchanges that were kept must have ended. */
void gr_http_close(struct gr_http **h);

#endif
