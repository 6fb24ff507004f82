/* The server: its event loops, and the connections that they have. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "exchange.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"

#define SECOND INT64_C(1000000000)
/* Bytes of a connection: header, and pieces of body and answer. Above 32 KiB libmicrohttpd maps
 * them apart, and the system has them back when the connection closes. */
#define MEMORY 36864
#define KEPT_FILES 96 /* descriptors for all but connections */
#define SLACK 64      /* connections of a loop that are about to close */
/* Connections that libmicrohttpd may have. It must never get to its limit: before 1.0 a loop that
 * refuses one keeps a lock and hangs. */
#define NO_LIMIT ((unsigned)INT_MAX)
#define MOST_TLS_FILE ((size_t)1 << 20)

/* ---- connections ---- */

/* Cuts the connection that has been idle longest; false: all have a request. */
static bool evict(struct gr_httpd *h, const struct gr_client *but)
{
    for (struct gr_client *c = h->clients.next; c != &h->clients; c = c->next) {
        if (c != but && !c->x && !c->cut) {
            gr_client_cut(h, c);
            return true;
        }
    }
    return false;
}

static void add_client(struct gr_httpd *h, struct MHD_Connection *connection, void **context)
{
    const union MHD_ConnectionInfo *info =
        h->mhd->get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct gr_client *c = calloc(1, sizeof *c);
    *context = c;
    if (!c) {
        shutdown(info->connect_fd, SHUT_RDWR);
        return;
    }
    c->fd = info->connect_fd;
    atomic_init(&c->deadline, gr_httpd_now() + h->p.header_s * SECOND);
    pthread_mutex_lock(&h->lock);
    c->prev = h->clients.prev, c->next = &h->clients;
    c->prev->next = c->next->prev = c;
    h->n_client++;
    if (h->n_client - h->n_cut > h->p.max_connections)
        c->refused = !evict(h, c);
    pthread_mutex_unlock(&h->lock);
}

static void remove_client(struct gr_httpd *h, struct gr_client *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&h->lock);
    c->prev->next = c->next, c->next->prev = c->prev;
    h->n_client--;
    h->n_cut -= c->cut;
    pthread_mutex_unlock(&h->lock);
    free(c);
}

static void on_connection(void *http, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        add_client(http, connection, context);
    else {
        struct gr_client *c = *context;
        void *x = c ? c->x : NULL; /* left there where libmicrohttpd gives a connection up */
        gr_on_completed(http, connection, &x, MHD_REQUEST_TERMINATED_WITH_ERROR);
        remove_client(http, c);
    }
}

/* Raises the limit of descriptors and fits the number of connections to it. */
static void fit_connections(struct gr_httpd *h)
{
    struct rlimit limit;
    uint32_t slack = SLACK * (uint32_t)h->p.n_thread;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    uint64_t most =
        limit.rlim_cur > KEPT_FILES + slack + 16 ? limit.rlim_cur - KEPT_FILES - slack : 16;
    if (limit.rlim_cur == RLIM_INFINITY || h->p.max_connections <= most)
        return;
    gr_say_warning("--max-connections %u: the system allows %llu open files (ulimit -n), so %llu "
                   "connections",
                   h->p.max_connections, (unsigned long long)limit.rlim_cur,
                   (unsigned long long)most);
    h->p.max_connections = (uint32_t)most;
}

/* ---- begin and end ---- */

static void on_log(void *user, const char *format, va_list ap)
{
    char line[512];
    (void)user;
    vsnprintf(line, sizeof line, format, ap);
    line[strcspn(line, "\n")] = 0;
    gr_say_debug("http: %s", line);
}

static int start(struct gr_httpd *h)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG | (h->tls_key ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_KEY, 0, h->tls_key},
                                   {MHD_OPTION_HTTPS_MEM_CERT, 0, h->tls_cert},
                                   {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    h->daemon = h->mhd->start_daemon(
        flags, 0, NULL, NULL, gr_on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, h,
        MHD_OPTION_URI_LOG_CALLBACK, gr_on_address, h, MHD_OPTION_THREAD_POOL_SIZE,
        (unsigned)h->p.n_thread, MHD_OPTION_CONNECTION_LIMIT, NO_LIMIT,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED,
        gr_on_completed, h, MHD_OPTION_ARRAY, h->tls_key ? tls : none, MHD_OPTION_END);
    if (h->daemon)
        return 0;
    gr_say_error("libmicrohttpd does not start on %s%s", h->url,
                 h->tls_key ? ": are the key and the certificate of --ssl-key-file and "
                              "--ssl-cert-file a pair, in PEM?"
                            : "");
    return gr_status_exit(GR_E_IO);
}

static int read_tls(struct gr_httpd *h)
{
    const struct gr_httpd_params *p = &h->p;
    size_t n;
    if (!p->tls_key_file && !p->tls_cert_file)
        return 0;
    if (!h->mhd->is_feature_supported(MHD_FEATURE_TLS)) {
        gr_say_error("--ssl-key-file: this libmicrohttpd has no TLS; a proxy in front of the "
                     "server can have it");
        return GR_EXIT_USAGE;
    }
    int rc = gr_read_all(p->tls_key_file, &h->tls_key, &n);
    return rc ? rc : gr_read_all(p->tls_cert_file, &h->tls_cert, &n);
}

static int open_all(struct gr_httpd *h)
{
    h->mhd = gr_microhttpd();
    if (!h->mhd)
        return gr_status_exit(GR_E_IO);
    int rc = read_tls(h);
    if (!rc)
        rc = gr_httpd_open_listener(h);
    if (rc)
        return rc;
    fit_connections(h);
    h->most_clients = h->p.max_connections + SLACK * (uint32_t)h->p.n_thread;
    rc = gr_httpd_start_workers(h);
    if (!rc && pthread_create(&h->watch, NULL, gr_httpd_watch, h))
        rc = gr_say_no_memory();
    else if (!rc)
        h->watches = true;
    if (!rc)
        rc = start(h);
    return rc ? rc : gr_httpd_start_accepting(h);
}

static void free_all(struct gr_httpd *h)
{
    gr_httpd_close_listener(h);
    atomic_store(&h->stopping, true);
    gr_httpd_join_workers(h);
    if (h->watches)
        pthread_join(h->watch, NULL);
    if (h->daemon)
        h->mhd->stop_daemon(h->daemon);
    if (h->tls_key)
        memset(h->tls_key, 0, strlen(h->tls_key));
    free(h->tls_key);
    free(h->tls_cert);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->work_lock);
    pthread_cond_destroy(&h->work_there);
    free(h);
}

int gr_httpd_open(struct gr_httpd **out, const struct gr_httpd_params *params)
{
    struct gr_httpd *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return gr_say_no_memory();
    h->p = *params;
    h->listener = h->wake_acceptor = -1;
    h->p.n_thread = h->p.n_thread > 0 ? h->p.n_thread : 2;
    h->clients.prev = h->clients.next = &h->clients;
    atomic_init(&h->unready, "Loading model");
    h->work_end = &h->work;
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->work_lock, NULL);
    pthread_cond_init(&h->work_there, NULL);
    int rc = open_all(h);
    if (rc)
        free_all(h);
    else
        *out = h;
    return rc;
}

const char *gr_httpd_url(const struct gr_httpd *h)
{
    return h->url;
}

bool gr_httpd_is_local(const struct gr_httpd *h)
{
    return h->loopback;
}

void gr_httpd_set_unready(struct gr_httpd *h, const char *message)
{
    atomic_store(&h->unready, message);
}

void gr_httpd_drain(struct gr_httpd *h)
{
    if (!atomic_exchange(&h->draining, true))
        gr_httpd_close_listener(h);
}

int32_t gr_httpd_busy(struct gr_httpd *h)
{
    return atomic_load(&h->n_busy);
}

void gr_httpd_close(struct gr_httpd **http)
{
    if (*http)
        free_all(*http);
    *http = NULL;
}
