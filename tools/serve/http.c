/* The server: its socket, its event loops, and the connections that they take. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
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
#define MOST_TLS_FILE ((size_t)1 << 20)

/* ---- the socket ---- */

static int say_socket_error(const struct gr_httpd_params *p, const char *what)
{
    int error = errno;
    const char *helps = error == EADDRINUSE ? "; --port N takes another, 0 any that is free"
                        : error == EACCES   ? "; ports below 1024 take a right to them"
                                            : "";
    gr_say_error("cannot %s %s, port %u: %s%s", what, p->host, p->port, strerror(error), helps);
    return gr_status_exit(GR_E_IO);
}

static int resolve(const char *host, const char *port, struct addrinfo **found)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char bare[256];
    size_t n = strlen(host);
    if (n > 2 && n < sizeof bare && host[0] == '[' && host[n - 1] == ']') {
        snprintf(bare, sizeof bare, "%.*s", (int)n - 2, host + 1);
        host = bare;
    }
    return getaddrinfo(host, port, &hints, found);
}

static int open_socket(const struct gr_httpd_params *p, int *fd)
{
    struct addrinfo *a = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", p->port);
    int rc = resolve(p->host, port, &a);
    if (rc) {
        gr_say_error("--host %s: %s", p->host, gai_strerror(rc));
        return GR_EXIT_USAGE;
    }
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;
    if (*fd < 0)
        rc = say_socket_error(p, "open a socket for");
    if (!rc)
        (void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!rc && bind(*fd, a->ai_addr, a->ai_addrlen))
        rc = say_socket_error(p, "listen on");
    if (!rc && listen(*fd, SOMAXCONN))
        rc = say_socket_error(p, "listen on");
    freeaddrinfo(a);
    if (rc && *fd >= 0)
        close(*fd);
    return rc;
}

static bool is_loopback(const struct sockaddr *a)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_UNIX ||
           (a->sa_family == AF_INET6 &&
            (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127)));
}

bool gr_httpd_is_loopback(const char *host)
{
    struct addrinfo *a = NULL;
    bool all = !resolve(host, "0", &a);
    for (const struct addrinfo *i = a; i; i = i->ai_next)
        all = all && is_loopback(i->ai_addr);
    if (a)
        freeaddrinfo(a);
    return all;
}

/* Writes the address that the socket has. */
static void write_url(struct gr_httpd *h, int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[256] = "", port[16] = "";
    const struct sockaddr *addr = (const void *)&a;
    if (getsockname(fd, (struct sockaddr *)&a, &n))
        return;
    h->loopback = is_loopback(addr);
    (void)getnameinfo(addr, n, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    bool v6 = addr->sa_family == AF_INET6;
    snprintf(h->url, sizeof h->url, "%s://%s%s%s:%s", h->tls_key ? "https" : "http", v6 ? "[" : "",
             host, v6 ? "]" : "", port);
}

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

static int start(struct gr_httpd *h, int fd)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (h->tls_key ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_KEY, 0, h->tls_key},
                                   {MHD_OPTION_HTTPS_MEM_CERT, 0, h->tls_cert},
                                   {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    h->daemon = h->mhd->start_daemon(
        flags, h->p.port, NULL, NULL, gr_on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, h,
        MHD_OPTION_URI_LOG_CALLBACK, gr_on_address, h, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned)h->p.n_thread, MHD_OPTION_CONNECTION_LIMIT,
        h->p.max_connections + SLACK * (unsigned)h->p.n_thread, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MEMORY, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, gr_on_completed, h, MHD_OPTION_ARRAY,
        h->tls_key ? tls : none, MHD_OPTION_END);
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
    int fd = h->p.listener;
    h->mhd = gr_microhttpd();
    if (!h->mhd)
        return gr_status_exit(GR_E_IO);
    int rc = read_tls(h);
    if (!rc && fd < 0)
        rc = open_socket(&h->p, &fd);
    if (rc)
        return rc;
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    write_url(h, fd);
    fit_connections(h);
    rc = gr_httpd_start_workers(h);
    if (!rc && pthread_create(&h->watch, NULL, gr_httpd_watch, h))
        rc = gr_say_no_memory();
    else if (!rc)
        h->watches = true;
    if (!rc)
        rc = start(h, fd);
    if (rc)
        close(fd);
    return rc;
}

static void free_all(struct gr_httpd *h)
{
    atomic_store(&h->stopping, true);
    gr_httpd_join_workers(h);
    if (h->watches)
        pthread_join(h->watch, NULL);
    if (h->daemon) {
        gr_httpd_drain(h); /* or libmicrohttpd shuts the socket down, also that of systemd */
        h->mhd->stop_daemon(h->daemon);
    }
    if (h->listener != MHD_INVALID_SOCKET)
        close(h->listener);
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
    h->listener = MHD_INVALID_SOCKET;
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
    if (atomic_exchange(&h->draining, true))
        return;
    h->listener = h->mhd->quiesce_daemon(h->daemon); /* its loops may know it until they end */
    if (h->listener != MHD_INVALID_SOCKET && h->p.listener < 0)
        shutdown(h->listener, SHUT_RDWR); /* not that of systemd, which goes on */
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
