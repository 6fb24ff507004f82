/* Requests and their answers. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exchange.h"
#include "tools/cli/say.h"

#define SECOND INT64_C(1000000000)
#define PING (15 * SECOND)
#define SLOWEST 65536 /* bytes/s at which a whole answer has to be read, on average */
#define BLOCK 16384   /* bytes that libmicrohttpd asks a stream for */
#define MOST_UNREAD ((size_t)8 << 20) /* bytes of a stream that a client may leave unread */

int64_t gr_httpd_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

/* ---- the request ---- */

const char *gr_exchange_path(const struct gr_exchange *x)
{
    return x->path;
}

const char *gr_exchange_rest(const struct gr_exchange *x)
{
    return x->rest;
}

const char *gr_exchange_header(const struct gr_exchange *x, const char *name)
{
    return x->http->mhd->lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *gr_exchange_query(const struct gr_exchange *x, const char *name)
{
    return x->http->mhd->lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *gr_exchange_body(const struct gr_exchange *x, size_t *n)
{
    *n = x->n_body;
    return x->body ? x->body : "";
}

void gr_exchange_drop_body(struct gr_exchange *x)
{
    free(x->body);
    x->body = NULL;
    x->n_body = 0;
}

uint64_t gr_exchange_owner(const struct gr_exchange *x)
{
    return x->owner;
}

void gr_exchange_hold(struct gr_exchange *x, void *held, void (*release)(void *held))
{
    x->held = held, x->release = release;
}

void *gr_exchange_held(const struct gr_exchange *x)
{
    return x->held;
}

/* ---- life ---- */

void gr_exchange_uncount_body(struct gr_exchange *x)
{
    atomic_fetch_sub(&x->http->n_body, x->n_room);
    x->n_room = 0;
}

/* Gives back what is held, once. */
static void let_go(struct gr_exchange *x)
{
    gr_exchange_uncount_body(x);
    void (*release)(void *held) = x->release;
    x->release = NULL;
    if (release)
        release(x->held);
}

void gr_exchange_unref(struct gr_exchange *x)
{
    if (atomic_fetch_sub(&x->n_ref, 1) > 1)
        return;
    struct gr_httpd *h = x->http;
    let_go(x);
    gr_exchange_drop_body(x);
    for (int i = 0; i < x->n_header; i++)
        free(x->header[i].value);
    gr_exchange_drop_answer(x);
    free(x->path);
    pthread_mutex_destroy(&x->lock);
    free(x);
    atomic_fetch_sub(&h->n_busy, 1);
}

/* Has the loop look at the exchange again, but not before its worker has left it. With the lock. */
static void wake(struct gr_exchange *x)
{
    if (x->working)
        return;
    if (x->suspended && !x->completed)
        x->http->mhd->resume_connection(x->connection);
    x->suspended = false;
}

static void set_deadline(struct gr_exchange *x, int64_t deadline)
{
    if (!x->completed)
        atomic_store_explicit(&x->client->deadline, deadline, memory_order_relaxed);
}

static int64_t stall(const struct gr_exchange *x)
{
    return gr_httpd_now() + x->http->p.stall_s * SECOND;
}

void gr_exchange_hang_up(struct gr_exchange *x)
{
    if (x->ended) /* what is left is sent, as far as it goes */
        return;
    x->hung = true;
    set_deadline(x, 0); /* a connection that waits for its client to read is cut */
    if (x->kept && !x->told) {
        x->told = true;
        if (x->gone)
            x->gone(x->user);
    }
    wake(x);
}

/* ---- answers ---- */

void gr_exchange_add_header(struct gr_exchange *x, const char *name, const char *value)
{
    char *copy = x->n_header < GR_MAX_HEADER ? strdup(value) : NULL;
    if (copy)
        x->header[x->n_header++] = (struct gr_header){name, copy};
}

void gr_exchange_answer(struct gr_exchange *x, int status, const char *type, char *body, size_t n)
{
    char *fitted = n ? realloc(body, n) : NULL;
    pthread_mutex_lock(&x->lock);
    bool kept = x->kept;
    x->answered = x->ended = x->told = true;
    x->status = status, x->type = type;
    x->out = fitted ? fitted : body, x->n_out = x->n_space = n;
    x->read = gr_httpd_now();
    atomic_fetch_add(&x->http->n_out, n);
    wake(x);
    pthread_mutex_unlock(&x->lock);
    let_go(x);
    if (kept)
        gr_exchange_unref(x);
}

void gr_exchange_keep(struct gr_exchange *x, void (*gone)(void *user), void *user)
{
    pthread_mutex_lock(&x->lock);
    x->gone = gone, x->user = user;
    atomic_fetch_add(&x->n_ref, 1);
    x->kept = true;
    pthread_mutex_unlock(&x->lock);
}

void gr_exchange_stream(struct gr_exchange *x, const char *type, const char *ping)
{
    gr_exchange_add_header(x, "Cache-Control", "no-cache");
    gr_exchange_add_header(x, "X-Accel-Buffering", "no");
    pthread_mutex_lock(&x->lock);
    x->answered = x->streams = true;
    x->status = 200, x->type = type, x->ping = ping;
    x->written = gr_httpd_now();
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

void gr_exchange_drop_answer(struct gr_exchange *x)
{
    atomic_fetch_sub(&x->http->n_out, x->n_space);
    free(x->out);
    x->out = NULL;
    x->n_sent = x->n_out = x->n_space = 0;
}

/* Makes room for n more bytes of a stream; false: there is no memory. */
static bool reserve(struct gr_exchange *x, size_t n)
{
    if (x->n_sent && x->n_sent >= x->n_out) {
        memmove(x->out, x->out + x->n_sent, x->n_out);
        x->n_sent = 0;
    }
    size_t used = x->n_sent + x->n_out, space = x->n_space ? x->n_space : 4096;
    if (used + n <= x->n_space)
        return true;
    while (space < used + n)
        space *= 2;
    char *grown = realloc(x->out, space);
    if (!grown)
        return false;
    atomic_fetch_add(&x->http->n_out, space - x->n_space);
    x->out = grown, x->n_space = space;
    return true;
}

/* Adds to a stream. With the lock. */
static void add(struct gr_exchange *x, const char *p, size_t n)
{
    if ((x->n_out && x->n_out + n > MOST_UNREAD) || !reserve(x, n)) {
        x->hung = true; /* the watch says so, and cuts the connection */
        set_deadline(x, 0);
        return;
    }
    memcpy(x->out + x->n_sent + x->n_out, p, n);
    x->written = gr_httpd_now();
    x->read = x->n_out ? x->read : x->written;
    x->n_out += n;
    if (x->suspended)
        set_deadline(x, stall(x));
    wake(x);
}

bool gr_exchange_write(struct gr_exchange *x, const char *p, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (!x->hung && !x->completed && n)
        add(x, p, n);
    bool there = !x->hung && !x->completed;
    pthread_mutex_unlock(&x->lock);
    return there;
}

void gr_exchange_ping(struct gr_exchange *x, int64_t now)
{
    if (x->streams && x->ping && !x->ended && !x->hung && !x->completed && !x->n_out &&
        now - x->written > PING)
        add(x, x->ping, strlen(x->ping));
}

void gr_exchange_end(struct gr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = x->told = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
    let_go(x);
    gr_exchange_unref(x);
}

/* ---- in the loop's thread ---- */

void gr_exchange_refuse(struct gr_exchange *x, int status, const char *message, const char *code)
{
    x->http->p.refuse(x, status, message, code);
}

static void suspend(struct gr_exchange *x)
{
    x->suspended = true;
    set_deadline(x, GR_NEVER);
    x->http->mhd->suspend_connection(x->connection);
}

/* Sets the time by which more has to be read. */
static void set_read_deadline(struct gr_exchange *x)
{
    int64_t pause = stall(x);
    set_deadline(x, pause < x->latest ? pause : x->latest);
}

/* Hands the next bytes over, or suspends the connection of a stream until there are some. */
static ssize_t read_answer(void *exchange, uint64_t at, char *to, size_t most)
{
    struct gr_exchange *x = exchange;
    ssize_t n = 0;
    (void)at;
    pthread_mutex_lock(&x->lock);
    size_t ready = x->n_out < most ? x->n_out : most;
    if (x->hung) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (ready) {
        memcpy(to, x->out + x->n_sent, ready);
        x->n_sent += ready, x->n_out -= ready;
        if (!x->n_out)
            gr_exchange_drop_answer(x);
        n = (ssize_t)ready;
        x->read = gr_httpd_now();
        set_read_deadline(x);
    } else if (x->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
        set_read_deadline(x);
    } else {
        suspend(x);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void add_origin(const struct gr_exchange *x, struct MHD_Response *r)
{
    const struct gr_microhttpd *mhd = x->http->mhd;
    const char *allowed = x->http->p.origin, *origin = gr_exchange_header(x, "Origin");
    if (!allowed)
        return;
    if (strcmp(allowed, "*") != 0)
        (void)mhd->add_response_header(r, "Vary", "Origin");
    if (!origin || (strcmp(allowed, "*") != 0 && strcmp(allowed, origin) != 0))
        return;
    (void)mhd->add_response_header(r, "Access-Control-Allow-Origin", allowed);
    if (!x->preflight)
        return;
    (void)mhd->add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    (void)mhd->add_response_header(r, "Access-Control-Allow-Headers",
                                   "Authorization, Content-Type, X-Api-Key");
    (void)mhd->add_response_header(r, "Access-Control-Max-Age", "600");
}

/* Makes libmicrohttpd's form of the answer; NULL: there is none, or no memory. */
static struct MHD_Response *make_response(struct gr_exchange *x)
{
    const struct gr_microhttpd *mhd = x->http->mhd;
    struct MHD_Response *r = NULL;
    pthread_mutex_lock(&x->lock);
    if (x->hung || !x->answered) {
        r = NULL;
    } else if (x->streams || x->n_out) {
        uint64_t n = x->streams ? MHD_SIZE_UNKNOWN : x->n_out;
        r = mhd->create_response_from_callback(n, BLOCK, read_answer, x, NULL);
    } else {
        static char nothing[] = "";
        r = mhd->create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT);
    }
    x->latest = x->streams ? GR_NEVER : stall(x) + (int64_t)x->n_out * SECOND / SLOWEST;
    set_read_deadline(x);
    pthread_mutex_unlock(&x->lock);
    return r;
}

static enum MHD_Result pass_on(struct gr_exchange *x)
{
    const struct gr_microhttpd *mhd = x->http->mhd;
    struct MHD_Response *r = make_response(x);
    if (!r)
        return MHD_NO; /* closes the connection */
    if (x->type)
        (void)mhd->add_response_header(r, "Content-Type", x->type);
    (void)mhd->add_response_header(r, "X-Content-Type-Options", "nosniff");
    for (int i = 0; i < x->n_header; i++)
        (void)mhd->add_response_header(r, x->header[i].name, x->header[i].value);
    if (x->close || atomic_load(&x->http->draining))
        (void)mhd->add_response_header(r, "Connection", "close");
    add_origin(x, r);
    enum MHD_Result rc = mhd->queue_response(x->connection, (unsigned)x->status, r);
    mhd->destroy_response(r);
    return rc;
}

void gr_exchange_handle(struct gr_exchange *x)
{
    const struct gr_httpd_params *p = &x->http->p;
    if (p->dispatch)
        p->dispatch(x, x->route, p->user);
    else
        x->route->handler(x, p->user);
}

void gr_exchange_await_worker(struct gr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->working = true;
    suspend(x);
    pthread_mutex_unlock(&x->lock);
}

void gr_exchange_leave_worker(struct gr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool again = x->retries;
    x->retries = false;
    x->working = again;
    if (!again && (!x->kept || x->answered || x->ended || x->hung))
        wake(x);
    pthread_mutex_unlock(&x->lock); /* x may be gone from here on */
    if (again)
        gr_httpd_work(x->http, x);
}

bool gr_exchange_retry(struct gr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool there = !x->hung && !x->completed, left = !x->working;
    if (there) {
        x->kept = false;
        x->gone = NULL;
        x->working = true;
        x->retries = !left;
    }
    pthread_mutex_unlock(&x->lock);
    if (there) {
        gr_exchange_unref(x); /* that of gr_exchange_keep: libmicrohttpd has another one */
        if (left)
            gr_httpd_work(x->http, x);
    }
    return there;
}

void gr_exchange_drop(struct gr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->hung = true;
    pthread_mutex_unlock(&x->lock);
}

enum MHD_Result gr_exchange_proceed(struct gr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool waits = x->kept && !x->answered && !x->ended && !x->hung;
    if (waits)
        suspend(x);
    pthread_mutex_unlock(&x->lock);
    return waits ? MHD_YES : pass_on(x);
}
