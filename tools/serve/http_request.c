/* Requests as they come in: what is wrong with them, their route, their body. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "exchange.h"
#include "keys.h"

#define SECOND INT64_C(1000000000)
#define MOST_URI 2048
#define MOST_PARAMETERS 100
#define MOST_HEADERS 16384 /* bytes, the request line counted */
#define MOST_FIELDS 100
#define MOST_ALLOWED 64

/* ---- the head ---- */

/* Fields of a request that are looked at one by one. */
struct fields {
    int n, n_host, n_length, n_coding;
    bool odd; /* a name or value has characters that none has */
    const char *length, *coding;
    const char *next; /* place of the next field if the lines before it are whole */
    bool broken;      /* one of them is not */
};

/* Returns the place of the next line: libmicrohttpd before 1.0 makes zeros of CR and LF where they
 * stand, one of a line feed alone. */
static const char *next_line(const char *text)
{
    return text + strlen(text) + 2;
}

/* Returns whether a name or value (blanks) has what neither may have: other programs may have cut
 * it there. */
static bool is_odd(const char *p, bool blanks)
{
    for (; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < ' ' ? !blanks || c != '\t' : c == 127 || (!blanks && (c == ' ' || c > 127)))
            return true;
    }
    return false;
}

static enum MHD_Result count_field(void *fields, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct fields *f = fields;
    (void)kind;
    f->n++;
    f->odd |= !*name || is_odd(name, false) || (value && is_odd(value, true));
    f->broken |= name != f->next;
    f->next = next_line(value ? value : name);
    f->n_host += !strcasecmp(name, "Host");
    if (!strcasecmp(name, "Content-Length"))
        f->n_length++, f->length = value ? value : "";
    if (!strcasecmp(name, "Transfer-Encoding"))
        f->n_coding++, f->coding = value ? value : "";
    return MHD_YES;
}

/* Refuses a request before its handler; the first reason counts. */
static void refuse(struct gr_exchange *x, int status, const char *message, const char *code)
{
    if (!x->refused)
        x->refused = status, x->message = message, x->code = code;
}

/* Refuses what two programs in a row may read differently, and closes the connection then. */
static void check_framing(struct gr_exchange *x, const struct fields *f)
{
    const char *why = NULL;
    if (f->n_length && f->n_coding)
        why = "Content-Length and Transfer-Encoding exclude each other";
    else if (f->n_length > 1)
        why = "more than one Content-Length";
    else if (f->n_length && (!*f->length || f->length[strspn(f->length, "0123456789")]))
        why = "Content-Length is no number";
    else if (f->n_coding > 1 || (f->n_coding && strcasecmp(f->coding, "chunked") != 0))
        why = "a Transfer-Encoding other than chunked";
    else if (f->n_host > 1)
        why = "more than one Host";
    else if (f->odd)
        why = "a header field with characters that none may have";
    else if (f->broken)
        why = "a line of the header that goes on, has a zero, or does not end with CR LF";
    if (why) {
        refuse(x, 400, why, "bad_request");
        x->close = true;
    }
}

static void check_sizes(struct gr_exchange *x, const struct fields *f, size_t n_header)
{
    if (x->client->long_address)
        refuse(x, 414, "the address of the request has more than 2048 bytes or 100 parameters",
               NULL);
    else if (n_header > MOST_HEADERS || f->n > MOST_FIELDS)
        refuse(x, 431, "the header has more than 16384 bytes or 100 fields", NULL);
    else
        return;
    x->close = true;
}

/* Returns whether two texts are equal, n bytes of the first one, without regard to case. */
static bool same(const char *p, size_t n, const char *text)
{
    return strlen(text) == n && !strncasecmp(p, text, n);
}

/* Returns whether a Host names this machine from itself: pages of other servers whose names were
 * made to lead here have their own. */
static bool is_local_host(const struct gr_httpd *h, const char *host)
{
    const char *colon = strrchr(host, ':'), *end = strrchr(host, ']');
    size_t n = colon && (!end || colon > end) ? (size_t)(colon - host) : strlen(host);
    return same(host, n, "localhost") || same(host, n, "127.0.0.1") || same(host, n, "[::1]") ||
           same(host, n, h->p.host);
}

/* Returns whether the origin is the server's own page. */
static bool is_own_origin(const struct gr_httpd *h, const char *origin, const char *host)
{
    const char *scheme = h->tls_key ? "https://" : "http://";
    size_t n = strlen(scheme);
    return host && !strncmp(origin, scheme, n) && !strcasecmp(origin + n, host);
}

/* Without keys, whoever can reach the server may ask: pages of other servers may not, by way of a
 * browser that can. */
static void check_origin(struct gr_exchange *x)
{
    const struct gr_httpd *h = x->http;
    const char *host = gr_exchange_header(x, "Host"), *origin = gr_exchange_header(x, "Origin");
    const char *allowed = h->p.origin;
    bool known = origin && allowed && (!strcmp(allowed, "*") || !strcmp(allowed, origin));
    if (h->p.keys)
        return;
    if (h->loopback && host && !is_local_host(h, host))
        refuse(x, 403,
               "the Host header names another machine: ask localhost, or start the server with "
               "--api-key-file",
               "forbidden_host");
    else if (origin && !known && !is_own_origin(h, origin, host))
        refuse(x, 403, "pages of this origin may not call: --cors-origin allows one",
               "forbidden_origin");
}

static void check_key(struct gr_exchange *x)
{
    const char *bearer = gr_exchange_header(x, "Authorization");
    const char *key = gr_exchange_header(x, "X-Api-Key");
    if (!x->http->p.keys)
        return;
    if (bearer && !strncasecmp(bearer, "Bearer ", 7))
        key = bearer + 7 + strspn(bearer + 7, " ");
    x->owner = key ? gr_keys_find(x->http->p.keys, key) : 0;
    if (x->owner || x->route->kind == GR_ROUTE_OPEN)
        return;
    refuse(x, 401,
           key ? "this API key is not one of the server's"
               : "an API key is needed: Authorization: Bearer KEY",
           "invalid_api_key");
    gr_exchange_add_header(x, "WWW-Authenticate", "Bearer");
}

/* ---- the route ---- */

/* Returns whether a path is the route's; *rest: what "*" stands for, which is cut off there. */
static bool fits(const char *pattern, char *path, const char **rest)
{
    const char *star = strchr(pattern, '*');
    size_t n = star ? (size_t)(star - pattern) : strlen(pattern);
    *rest = "";
    if (!star)
        return !strcmp(pattern, path);
    if (strncmp(pattern, path, n) != 0 || !path[n] || path[n] == '/')
        return false;
    char *end = star[1] ? strchr(path + n, '/') : path + strlen(path);
    if (!end || strcmp(star + 1, end) != 0)
        return false;
    *end = 0;
    *rest = path + n;
    return true;
}

static void find_route(struct gr_exchange *x, const char *method)
{
    const struct gr_httpd *h = x->http;
    char allowed[MOST_ALLOWED] = "", *path = x->path;
    const char *pattern = NULL; /* the first that fits */
    const char *asked = !strcmp(method, "HEAD") ? "GET" : method;
    if (!strncmp(path, "/v1/", 4))
        path += 3;
    for (size_t i = 0; i < h->p.n_route && !x->route; i++) {
        const struct gr_route *r = &h->p.route[i];
        if (pattern ? strcmp(r->path, pattern) != 0 : !fits(r->path, path, &x->rest))
            continue;
        pattern = r->path;
        if (!strcmp(r->method, asked))
            x->route = r;
        else if (strlen(allowed) + strlen(r->method) + 16 < sizeof allowed)
            strcat(strcat(allowed, *allowed ? ", " : ""),
                   strcmp(r->method, "GET") ? r->method : "GET, HEAD");
    }
    if (x->route)
        return;
    if (*allowed && !strcmp(method, "OPTIONS") && h->p.origin) {
        x->preflight = true;
        return;
    }
    if (*allowed)
        gr_exchange_add_header(x, "Allow", allowed);
    if (*allowed)
        refuse(x, 405, "this path has other methods, as its Allow header says",
               "method_not_allowed");
    else
        refuse(x, 404, "there is no such path", "not_found");
}

static void check_ready(struct gr_exchange *x)
{
    const char *why = atomic_load(&x->http->unready);
    x->close |= x->client->refused;
    if (x->route->kind == GR_ROUTE_OPEN)
        return;
    if (why)
        refuse(x, 503, why, NULL);
    else if (x->client->refused)
        refuse(x, 503, "too many connections", NULL);
}

/* Reads the fields of a request, whose first line is cut into method, address and version, and
 * finds lines that libmicrohttpd before 1.0 accepts: those that other programs read differently are
 * where the fields do not follow each other. A zero right before a line feed alone stays unseen. */
static void read_fields(struct gr_exchange *x, const char *method, const char *version,
                        size_t n_header, struct fields *f)
{
    const struct gr_microhttpd *mhd = x->http->mhd;
    f->next = next_line(version);
    f->broken = method + strlen(method) + 1 != x->client->address ||
                x->client->address + x->client->n_address + 1 != version;
    (void)mhd->get_connection_values(x->connection, MHD_HEADER_KIND, count_field, f);
    f->broken |= f->next + 2 != method + n_header;
    f->broken &= !mhd->strict;
}

static void check(struct gr_exchange *x, const char *method, const char *version)
{
    const struct gr_microhttpd *mhd = x->http->mhd;
    struct fields f = {0};
    const union MHD_ConnectionInfo *info =
        mhd->get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    size_t n_header = info ? info->header_size : 0;
    read_fields(x, method, version, n_header, &f);
    const char *coding = gr_exchange_header(x, "Content-Encoding");
    check_framing(x, &f);
    check_sizes(x, &f, n_header);
    find_route(x, method);
    check_origin(x);
    if (!x->route)
        return;
    check_key(x);
    if (coding && strcasecmp(coding, "identity") != 0)
        refuse(x, 415, "bodies may not be compressed", NULL);
    if (f.n_length == 1 &&
        (strlen(f.length) > 18 || strtoull(f.length, NULL, 10) > x->http->p.max_body))
        refuse(x, 413, "the body of the request is too large", NULL);
    check_ready(x);
}

/* ---- the body ---- */

/* Bytes of a refused body that are read, so that the client reads the answer. */
static size_t most_discarded(const struct gr_exchange *x)
{
    return 4 * x->http->p.max_body + 65536;
}

/* Makes room for n more bytes and a zero. */
static bool reserve(struct gr_exchange *x, size_t n)
{
    struct gr_httpd *h = x->http;
    size_t room = x->n_room ? x->n_room : 4096;
    if (x->n_body + n < x->n_room)
        return true;
    while (room <= x->n_body + n)
        room *= 2;
    size_t all = atomic_fetch_add(&h->n_body, room - x->n_room) + room - x->n_room;
    /* small bodies always do: the number of connections is their limit */
    bool fits_in = room <= 65536 || all <= h->p.max_bodies || all <= 2 * h->p.max_body;
    char *grown = fits_in ? realloc(x->body, room) : NULL;
    if (!grown) {
        atomic_fetch_sub(&h->n_body, room - x->n_room);
        return false;
    }
    x->body = grown, x->n_room = room;
    return true;
}

/* Sets the time by which more has to be there: at least 1 KiB/s on the whole, and no pause longer
 * than a stall. */
static void set_body_deadline(struct gr_exchange *x)
{
    const struct gr_httpd_params *p = &x->http->p;
    int64_t pause = gr_httpd_now() + p->stall_s * SECOND;
    int64_t rate = x->began + p->header_s * SECOND + (int64_t)(x->n_received / 1024) * SECOND;
    atomic_store_explicit(&x->client->deadline, rate < pause ? rate : pause, memory_order_relaxed);
}

static enum MHD_Result take(struct gr_exchange *x, const char *data, size_t *n)
{
    x->n_received += *n;
    set_body_deadline(x);
    if (x->n_received > x->http->p.max_body)
        refuse(x, 413, "the body of the request is too large", NULL);
    else if (!x->refused && !reserve(x, *n))
        refuse(x, 503, "too many large requests at once", NULL);
    if (x->n_received > most_discarded(x))
        return MHD_NO;
    if (x->refused) {
        gr_exchange_drop_body(x);
        gr_exchange_uncount_body(x);
    } else {
        memcpy(x->body + x->n_body, data, *n);
        x->n_body += *n;
        x->body[x->n_body] = 0;
    }
    *n = 0;
    return MHD_YES;
}

/* ---- callbacks ---- */

static struct gr_client *client_of(const struct gr_httpd *h, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        h->mhd->get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* The parameters of an address that is refused are cut off: libmicrohttpd keeps a structure for
 * each, and has no memory left for an answer when there are many. */
void *gr_on_address(void *http, const char *address, struct MHD_Connection *connection)
{
    struct gr_client *client = client_of(http, connection);
    char *query = strchr((char *)(uintptr_t)address, '?'); /* in the connection's buffer */
    size_t n = 1;
    for (const char *p = query; p && *p; p++)
        n += *p == '&';
    size_t n_address = strlen(address);
    bool refused = n_address > MOST_URI || n > MOST_PARAMETERS;
    if (client) {
        client->long_address = refused;
        client->address = address, client->n_address = n_address;
    }
    if (refused && query)
        query[1] = 0;
    return NULL;
}

static struct gr_exchange *new_exchange(struct gr_httpd *h, struct MHD_Connection *connection,
                                        const char *url)
{
    struct gr_client *client = client_of(h, connection);
    struct gr_exchange *x = client ? calloc(1, sizeof *x) : NULL;
    char *path = x ? strdup(url) : NULL;
    if (!path) {
        free(x);
        return NULL;
    }
    x->http = h, x->connection = connection, x->client = client;
    x->path = path, x->rest = "";
    x->began = gr_httpd_now();
    atomic_init(&x->n_ref, 1);
    pthread_mutex_init(&x->lock, NULL);
    atomic_fetch_add(&h->n_busy, 1);
    pthread_mutex_lock(&h->lock);
    client->x = x;
    pthread_mutex_unlock(&h->lock);
    return x;
}

/* Returns whether a request is answered before its body comes: it is one too many, or refused, and
 * the client waits for that or its body is too long to be read for nothing. */
static bool refused_at_once(const struct gr_exchange *x)
{
    const char *length = gr_exchange_header(x, "Content-Length");
    bool asks = gr_exchange_header(x, "Expect") != NULL;
    bool huge = length && (strlen(length) > 18 || strtoull(length, NULL, 10) > most_discarded(x));
    return x->client->refused || (x->refused && (asks || huge || x->close));
}

static enum MHD_Result handle(struct gr_exchange *x)
{
    atomic_store_explicit(&x->client->deadline, GR_NEVER, memory_order_relaxed);
    x->handled = true;
    if (x->refused)
        gr_exchange_refuse(x, x->refused, x->message, x->code);
    else if (x->preflight)
        gr_exchange_answer(x, 204, NULL, NULL, 0);
    else if (strcmp(x->route->method, "POST") != 0)
        gr_exchange_handle(x);
    else {
        gr_exchange_await_worker(x);
        gr_httpd_work(x->http, x);
        return MHD_YES;
    }
    return gr_exchange_proceed(x);
}

enum MHD_Result gr_on_request(void *http, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data, size_t *n,
                              void **exchange)
{
    struct gr_httpd *h = http;
    struct gr_exchange *x = *exchange;
    if (!x) {
        x = new_exchange(h, connection, url);
        if (!x)
            return MHD_NO;
        *exchange = x;
        check(x, method, version);
        set_body_deadline(x);
        return refused_at_once(x) ? (x->close = true, handle(x)) : MHD_YES;
    }
    if (*n)
        return take(x, data, n);
    return x->handled ? gr_exchange_proceed(x) : handle(x);
}

/* Moves a connection behind those that have been idle longer. */
static void move_back(struct gr_httpd *h, struct gr_client *c)
{
    c->prev->next = c->next, c->next->prev = c->prev;
    c->prev = h->clients.prev, c->next = &h->clients;
    c->prev->next = c->next->prev = c;
}

void gr_on_completed(void *http, struct MHD_Connection *connection, void **exchange,
                     enum MHD_RequestTerminationCode end)
{
    struct gr_httpd *h = http;
    struct gr_exchange *x = *exchange;
    (void)connection, (void)end;
    if (!x)
        return;
    *exchange = NULL;
    atomic_store_explicit(&x->client->deadline, gr_httpd_now() + 30 * SECOND, memory_order_relaxed);
    pthread_mutex_lock(&h->lock);
    x->client->x = NULL;
    move_back(h, x->client);
    pthread_mutex_unlock(&h->lock);
    pthread_mutex_lock(&x->lock);
    x->completed = true;
    if (!x->ended)
        gr_exchange_hang_up(x);
    pthread_mutex_unlock(&x->lock);
    gr_exchange_unref(x);
}
