/* HTTP by libmicrohttpd: event loops that take requests in, find the handler of their route, and
 * send what it answers, at once or later, whole or as a stream. Nothing here knows of models.
 *
 * A handler is called when a request has come in whole: of a GET or DELETE in a thread of an event
 * loop, where it must return at once; of a POST in one of a few workers, where it must not wait for
 * a model. It answers before it returns, or keeps the exchange and answers later from any thread.
 * Limits: times for headers and bodies, sizes, connections, writes that stall, what is not read. */
#ifndef GR_TOOLS_HTTP_H
#define GR_TOOLS_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gr_httpd;    /* a server that listens */
struct gr_exchange; /* a request and its answer */
struct gr_keys;

/* ---- what a handler sees of a request ---- */

/* The path, decoded. */
const char *gr_exchange_path(const struct gr_exchange *x);
/* The part of the path that a route's "*" stands for, decoded; "" without one. */
const char *gr_exchange_rest(const struct gr_exchange *x);
/* Values of a header and of the query, in the handler only; NULL: not given. */
const char *gr_exchange_header(const struct gr_exchange *x, const char *name);
const char *gr_exchange_query(const struct gr_exchange *x, const char *name);
/* The body [*n]; zero-terminated. */
const char *gr_exchange_body(const struct gr_exchange *x, size_t *n);
/* Frees the body, which a handler no longer needs once it has read it. It counts until there is an
 * answer, for what the handler has made of it. */
void gr_exchange_drop_body(struct gr_exchange *x);
/* Who asks: a number for each key, 0 without keys. */
uint64_t gr_exchange_owner(const struct gr_exchange *x);
/* Keeps something with the exchange, once, before its answer. release is called in any thread when
 * the answer is there, a stream has ended, or there will be none. */
void gr_exchange_hold(struct gr_exchange *x, void *held, void (*release)(void *held));
/* NULL: nothing. */
void *gr_exchange_held(const struct gr_exchange *x);

/* ---- answers: one of these ---- */

/* Answers with a body [n] of malloc, which belongs to the exchange from here on. type: static. x is
 * not valid any more when it was kept. */
void gr_exchange_answer(struct gr_exchange *x, int status, const char *type, char *body, size_t n);
/* Adds a header to the answer, before it; at most GR_MAX_HEADER. The name is static, the value is
 * copied and must not come from a request. */
void gr_exchange_add_header(struct gr_exchange *x, const char *name, const char *value);
#define GR_MAX_HEADER 4

/* Keeps the exchange beyond its handler, which has not answered. gone (unless NULL) is called at
 * most once, in any thread, when the client hangs up or stalls before the answer of
 * gr_exchange_answer or the end by gr_exchange_end, and never after these return. It must return at
 * once and call nothing of the exchange. After it all that is written is dropped; the exchange
 * still has to be answered or ended. */
void gr_exchange_keep(struct gr_exchange *x, void (*gone)(void *user), void *user);
/* Begins the answer of an exchange that was kept, with status 200 and an end that is not known yet.
 * type: static. ping: sent when nothing was for 15 s, NULL: nothing; static. */
void gr_exchange_stream(struct gr_exchange *x, const char *type, const char *ping);
/* Sends n bytes of a stream, without waiting; false: the client has gone, or has left 8 MiB
 * unread. */
bool gr_exchange_write(struct gr_exchange *x, const char *p, size_t n);
/* Ends a stream, or an exchange that was kept and has no answer, whose connection is closed then. x
 * is not valid any more. */
void gr_exchange_end(struct gr_exchange *x);
/* Has a worker call the handler of a POST again, whose exchange was kept and no longer is then;
 * gone is not called any more. false: the client has gone, and the exchange has to be ended. */
bool gr_exchange_retry(struct gr_exchange *x);

/* ---- the server ---- */

typedef void gr_handler_fn(struct gr_exchange *x, void *user);

/* Routes about a model; about none, which ask for no key and are answered before the server is
 * ready; about none, of those who have a key. */
enum gr_route_kind { GR_ROUTE_MODEL, GR_ROUTE_OPEN, GR_ROUTE_SERVER };

/* A route. Paths are without "/v1", which requests may have in front of each. "*" stands for a
 * segment of the path that is not empty, and at the end for all that follows. The first path that
 * fits counts, with the routes that have the same. */
struct gr_route {
    const char *method, *path; /* HEAD goes to GET */
    gr_handler_fn *handler;
    enum gr_route_kind kind;
};

/* Calls the handler of a route, with what it is about. */
typedef void gr_dispatch_fn(struct gr_exchange *x, const struct gr_route *route, void *user);

/* Makes the answer to a request that is refused here (404, 405, 401, 413, ..). code: a word for
 * programs, NULL: none. */
typedef void gr_refuse_fn(struct gr_exchange *x, int status, const char *message, const char *code);

struct gr_httpd_params {
    const char *host; /* address, or a name that has one */
    uint16_t port;    /* 0: any that is free */
    int listener;     /* a socket that listens already, in place of host and port; -1: none */
    const struct gr_route *route; /* [n_route] */
    size_t n_route;
    gr_dispatch_fn *dispatch; /* NULL: handlers are called with user */
    void *user;
    gr_refuse_fn *refuse;
    const struct gr_keys *keys;               /* one of which requests have to name; NULL: none */
    const char *tls_key_file, *tls_cert_file; /* NULL: plain */
    const char *origin; /* pages of this origin may call, "*": of any; NULL: of the server's own */
    size_t max_body;    /* bytes */
    size_t max_bodies;  /* bytes of all bodies, until their requests have an answer */
    size_t max_unread;  /* bytes of all answers that clients have not read; one may have more */
    uint32_t max_connections;
    int32_t n_thread; /* event loops; 0: 2 */
    int32_t header_s; /* seconds in which a client has to send a request's header */
    int32_t stall_s;  /* seconds that it may pause while it sends a body or reads an answer */
};

/* Listens. Returns an exit code of the program, after a message. */
int gr_httpd_open(struct gr_httpd **out, const struct gr_httpd_params *params);
/* Address that it listens on ("http://127.0.0.1:8080"). */
const char *gr_httpd_url(const struct gr_httpd *h);
/* Returns whether only the machine itself can reach it. */
bool gr_httpd_is_local(const struct gr_httpd *h);
/* Returns whether an address is the machine's own; names are looked up. */
bool gr_httpd_is_loopback(const char *host);
/* Refuses all routes but GR_ROUTE_OPEN with status 503 and a static message; NULL: no longer. So it
 * begins, with "Loading model". */
void gr_httpd_set_unready(struct gr_httpd *h, const char *message);
/* No more connections are accepted; those that are open end with their answer. */
void gr_httpd_drain(struct gr_httpd *h);
/* Number of exchanges that have not ended. */
int32_t gr_httpd_busy(struct gr_httpd *h);
/* Closes all connections and waits until no handler runs. Exchanges that were kept must have ended.
 */
void gr_httpd_close(struct gr_httpd **h);

#endif
