/* The listening socket, and the thread that accepts connections for the event loops.
 * libmicrohttpd could listen itself, but up to 1.0 MHD_quiesce_daemon() aborts when a loop of its
 * pool leaves the socket at the same moment. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "exchange.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

/* Time until a connection is accepted for which there was no room or descriptor, ns. */
#define PAUSE 20000000

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
static void write_url(struct gr_httpd *h)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[256] = "", port[16] = "";
    const struct sockaddr *addr = (const void *)&a;
    if (getsockname(h->listener, (struct sockaddr *)&a, &n))
        return;
    h->loopback = is_loopback(addr);
    (void)getnameinfo(addr, n, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    bool v6 = addr->sa_family == AF_INET6;
    snprintf(h->url, sizeof h->url, "%s://%s%s%s:%s", h->tls_key ? "https" : "http", v6 ? "[" : "",
             host, v6 ? "]" : "", port);
}

int gr_httpd_open_listener(struct gr_httpd *h)
{
    h->listener = h->p.listener;
    int rc = h->listener < 0 ? open_socket(&h->p, &h->listener) : 0;
    if (rc)
        return rc;
    (void)fcntl(h->listener, F_SETFL, fcntl(h->listener, F_GETFL) | O_NONBLOCK);
    write_url(h);
    return 0;
}

/* ---- the thread ---- */

static bool is_full(struct gr_httpd *h)
{
    pthread_mutex_lock(&h->lock);
    bool full = h->n_client >= h->most_clients;
    pthread_mutex_unlock(&h->lock);
    return full;
}

static void accept_one(struct gr_httpd *h)
{
    if (is_full(h)) {
        nanosleep(&(struct timespec){0, PAUSE}, NULL);
        return;
    }
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    int fd = accept4(h->listener, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) /* a loop takes it, or it is closed */
        (void)h->mhd->add_connection(h->daemon, fd, (const struct sockaddr *)&a, n);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        nanosleep(&(struct timespec){0, PAUSE}, NULL);
}

static void *run_acceptor(void *http)
{
    struct gr_httpd *h = http;
    struct pollfd fd[] = {{.fd = h->listener, .events = POLLIN},
                          {.fd = h->wake_acceptor, .events = POLLIN}};
    while (!fd[1].revents) {
        if (poll(fd, 2, -1) > 0 && fd[0].revents && !fd[1].revents)
            accept_one(h);
    }
    return NULL;
}

int gr_httpd_start_accepting(struct gr_httpd *h)
{
    h->wake_acceptor = eventfd(0, EFD_CLOEXEC);
    if (h->wake_acceptor < 0)
        return say_socket_error(&h->p, "accept connections on");
    h->accepts = !pthread_create(&h->acceptor, NULL, run_acceptor, h);
    return h->accepts ? 0 : gr_say_no_memory();
}

void gr_httpd_close_listener(struct gr_httpd *h)
{
    if (h->accepts) {
        (void)eventfd_write(h->wake_acceptor, 1);
        pthread_join(h->acceptor, NULL);
    }
    if (h->wake_acceptor >= 0)
        close(h->wake_acceptor);
    if (h->listener >= 0)
        close(h->listener);
    h->accepts = false;
    h->listener = h->wake_acceptor = -1;
}
