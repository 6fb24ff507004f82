/* Shared by the files of the HTTP layer: connections, and requests with their answers. */
#ifndef GR_TOOLS_EXCHANGE_H
#define GR_TOOLS_EXCHANGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "http.h"
#include "microhttpd.h"

#define GR_NEVER INT64_MAX
#define GR_N_WORKER 4

/* A connection. It is freed by the loop that closes it. */
struct gr_client {
    struct gr_client *prev, *next; /* in the order of their last use; under the lock of gr_httpd */
    struct gr_exchange *x;         /* the request in progress, likewise */
    bool cut;                      /* its socket was shut down, likewise */
    bool refused;                  /* one too many, for all but open routes */
    bool long_address;             /* the request has one that is too long; the loop's */
    const char *address;           /* where it stands, as it was sent [n_address]; likewise */
    size_t n_address;
    int fd;
    _Atomic int64_t deadline; /* ns; for the header, the body or the next piece of the answer */
};

struct gr_httpd {
    struct gr_httpd_params p;
    const struct gr_microhttpd *mhd;
    struct MHD_Daemon *daemon;
    char url[320];
    bool loopback;
    char *tls_key, *tls_cert; /* contents of the files */
    _Atomic(const char *) unready;
    atomic_bool draining;
    atomic_int n_busy;
    int listener;      /* -1: closed */
    int wake_acceptor; /* an eventfd, that ends the thread; -1: closed */
    pthread_t acceptor;
    bool accepts;          /* the thread does */
    _Atomic size_t n_body; /* bytes of all bodies, until there is an answer */
    _Atomic size_t n_out;  /* bytes of all answers that are not sent yet */
    pthread_t watch;
    bool watches; /* the thread does */
    atomic_bool stopping;
    pthread_mutex_t lock;                 /* before that of an exchange */
    struct gr_exchange *work, **work_end; /* exchanges whose handler is to be run */
    pthread_mutex_t work_lock;
    pthread_cond_t work_there;
    pthread_t worker[GR_N_WORKER];
    int n_worker;
    struct gr_client clients; /* head of a ring; the next one has been idle longest */
    uint32_t n_client, n_cut; /* n_cut of them are about to close */
    uint32_t most_clients;    /* from which on none is accepted until one has closed */
};

struct gr_header {
    const char *name;
    char *value;
};

/* Freed with its last reference: libmicrohttpd has one until the request has ended, whoever keeps
 * the exchange until the end, and the watch while it looks. */
struct gr_exchange {
    struct gr_httpd *http;
    struct MHD_Connection *connection;
    struct gr_client *client;
    atomic_int n_ref;
    atomic_bool kept;
    /* The loop's: */
    const struct gr_route *route;
    char *path;
    const char *rest; /* in path */
    uint64_t owner;
    int refused; /* status; 0: no */
    const char *message, *code;
    bool preflight, close, handled;
    struct gr_exchange *next_work;
    void *held; /* release: NULL: nothing is */
    void (*release)(void *held);
    char *body; /* [n_body], zero-terminated */
    size_t n_body, n_received;
    size_t n_room; /* of the body, or of what was made of it: counted in gr_httpd */
    int64_t began; /* of the body */
    struct gr_header header[GR_MAX_HEADER];
    int n_header;

    pthread_mutex_t lock;
    /* Under the lock: */
    void (*gone)(void *user);
    void *user;
    bool told;      /* gone was called, or must not be any more */
    bool hung;      /* the client has gone or stalls */
    bool suspended; /* in libmicrohttpd */
    bool working;   /* its handler is to run or runs in a worker: it stays suspended */
    bool retries;   /* the handler is to run again once the worker has left it */
    bool streams, answered, ended, completed;
    int status;
    const char *type;
    char *out; /* [n_out] of the answer, not sent yet, behind n_sent bytes that were; of n_space */
    size_t n_sent, n_out, n_space;
    int64_t read;   /* time of the last read, or from which on there was something to read */
    int64_t latest; /* by which all of the answer has to be read */
    const char *ping;
    int64_t written; /* time of the last write */
};

int64_t gr_httpd_now(void); /* monotonic, ns */

/* ---- http_listen.c ---- */

/* Opens the listening socket, or takes over p.listener, and writes the URL. Returns 0 or an exit
 * code, having said the error. */
int gr_httpd_open_listener(struct gr_httpd *h);
/* Starts the thread that hands connections to the daemon, likewise. */
int gr_httpd_start_accepting(struct gr_httpd *h);
/* Ends the thread and closes the socket; what waits in it is refused. Harmless when repeated. */
void gr_httpd_close_listener(struct gr_httpd *h);

/* ---- http_request.c: callbacks of libmicrohttpd ---- */

/* Looks at the address of a request before libmicrohttpd reads its parameters. Returns NULL. */
void *gr_on_address(void *http, const char *address, struct MHD_Connection *connection);
enum MHD_Result gr_on_request(void *http, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data, size_t *n,
                              void **exchange);
void gr_on_completed(void *http, struct MHD_Connection *connection, void **exchange,
                     enum MHD_RequestTerminationCode end);

/* ---- http_exchange.c ---- */

void gr_exchange_unref(struct gr_exchange *x);
/* The body, which was dropped, no longer counts. */
void gr_exchange_uncount_body(struct gr_exchange *x);
/* Refuses with the route's form of errors. */
void gr_exchange_refuse(struct gr_exchange *x, int status, const char *message, const char *code);
/* Runs what there is to do in the loop's thread when the handler has returned or the exchange was
 * resumed: passes the answer on, or suspends the connection. */
enum MHD_Result gr_exchange_proceed(struct gr_exchange *x);
/* Tells the owner that the client has gone, once, and ends libmicrohttpd's part. With the lock. */
void gr_exchange_hang_up(struct gr_exchange *x);
/* Gives up what is not sent yet. With the lock. */
void gr_exchange_drop_answer(struct gr_exchange *x);
/* Sends the ping when it is time. With the lock. */
void gr_exchange_ping(struct gr_exchange *x, int64_t now);

/* Calls the handler. */
void gr_exchange_handle(struct gr_exchange *x);
/* Suspends the connection until a worker has run the handler. */
void gr_exchange_await_worker(struct gr_exchange *x);
/* Ends that, in the worker. */
void gr_exchange_leave_worker(struct gr_exchange *x);
/* Has the client count as gone. */
void gr_exchange_drop(struct gr_exchange *x);

/* ---- http_workers.c ---- */

/* Start and join the workers. Returns an exit code, after printing the error. */
int gr_httpd_start_workers(struct gr_httpd *h);
void gr_httpd_join_workers(struct gr_httpd *h);
/* Has a worker run the handler of the exchange. */
void gr_httpd_work(struct gr_httpd *h, struct gr_exchange *x);

/* ---- http_watch.c ---- */

/* The thread that looks after deadlines, hang-ups and pings. */
void *gr_httpd_watch(void *http);
/* Shuts the socket of a connection down; with the lock of gr_httpd. */
void gr_client_cut(struct gr_httpd *h, struct gr_client *c);

#endif
