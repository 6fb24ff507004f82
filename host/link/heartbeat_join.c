/* How ranks connect for heartbeats: connections, addresses, listening, joining. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gr/status.h"
#include "link/heartbeat_impl.h"

#define BACKLOG 128
#define AGAIN_NS 100000000 /* between two tries of an address */
#define UNACKED_MS 5000    /* the kernel closes a connection whose data stay unacknowledged */

/* ---- connections ---- */

void gr_heartbeat_conn_init(struct gr_heartbeat_conn *c, int fd)
{
    *c = (struct gr_heartbeat_conn){.fd = fd, .since_ns = gr_now_ns()};
}

void gr_heartbeat_conn_close(struct gr_heartbeat_conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->n_in = c->n_out = 0;
}

enum gr_heartbeat_event gr_heartbeat_recv(struct gr_heartbeat_conn *c)
{
    if (c->n_in == sizeof c->in)
        c->n_in = 0;
    while (c->n_in < sizeof c->in) {
        ssize_t n = recv(c->fd, (char *)&c->in + c->n_in, sizeof c->in - c->n_in, 0);
        if (n > 0) {
            c->n_in += (uint32_t)n;
        } else if (n == 0) {
            errno = 0;
            return GR_HEARTBEAT_ENDED;
        } else if (errno != EINTR) {
            return errno == EAGAIN ? GR_HEARTBEAT_NOTHING : GR_HEARTBEAT_ENDED;
        }
    }
    return GR_HEARTBEAT_MESSAGE;
}

enum gr_heartbeat_event gr_heartbeat_flush(struct gr_heartbeat_conn *c)
{
    while (c->n_out) {
        const char *rest = (const char *)&c->out + sizeof c->out - c->n_out;
        ssize_t n = send(c->fd, rest, c->n_out, MSG_NOSIGNAL);
        if (n >= 0)
            c->n_out -= (uint32_t)n;
        else if (errno != EINTR)
            return errno == EAGAIN ? GR_HEARTBEAT_NOTHING : GR_HEARTBEAT_ENDED;
    }
    return GR_HEARTBEAT_MESSAGE;
}

enum gr_heartbeat_event gr_heartbeat_send(struct gr_heartbeat_conn *c,
                                          const struct gr_heartbeat_msg *m)
{
    c->out = *m;
    c->out.magic = GR_HEARTBEAT_MAGIC;
    c->n_out = sizeof c->out;
    return gr_heartbeat_flush(c);
}

static void set_options(int fd)
{
    int one = 1;
    unsigned unacked = UNACKED_MS;
    /* Failures are ignored: without these options everything works, only later. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked, sizeof unacked);
}

/* ---- rank 0 ---- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static void add_address(struct gr_heartbeat_hello *hello, const struct sockaddr *a)
{
    if (!a || hello->n_address == GR_HEARTBEAT_MAX_ADDRESS)
        return;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;
    uint8_t family = a->sa_family == AF_INET ? 4 : a->sa_family == AF_INET6 ? 6 : 0;
    if (!family || (family == 6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)))
        return; /* a link-local address has no meaning on other machines */
    int i = hello->n_address++;
    hello->address[i].family = family;
    if (family == 4)
        memcpy(hello->address[i].ip, &v4->sin_addr, 4);
    else
        memcpy(hello->address[i].ip, &v6->sin6_addr, 16);
}

static void list_addresses(struct gr_heartbeat_hello *hello, bool local)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all))
        all = NULL;
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        bool loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
        if ((i->ifa_flags & IFF_UP) && (loopback || !local))
            add_address(hello, i->ifa_addr);
    }
    if (all)
        freeifaddrs(all);
}

/* Opens a listening socket for IPv6 and IPv4; for IPv4 alone without IPv6; on IPv4's loopback
 * address when `local`. */
static int open_listener(bool local)
{
    union address a = {.v6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any}};
    socklen_t n = sizeof a.v6;
    int off = 0, fd = local ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (fd < 0) {
        uint32_t where = local ? INADDR_LOOPBACK : INADDR_ANY;
        a = (union address){.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(where)}};
        n = sizeof a.v4;
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    if (fd >= 0 && bind(fd, &a.any, n) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int err = errno;
    if (fd >= 0)
        close(fd);
    errno = err;
    return -1;
}

int gr_heartbeat_listen(int *listener, struct gr_heartbeat_hello *hello, bool local)
{
    union address a = {.any = {0}};
    socklen_t n = sizeof a;
    *hello = (struct gr_heartbeat_hello){0};
    *listener = open_listener(local);
    if (*listener < 0 || getsockname(*listener, &a.any, &n))
        return gr_fail(GR_E_IO, "heartbeat: rank 0 cannot listen for the other ranks: %s",
                       strerror(errno));
    if (getrandom(hello->ask, sizeof hello->ask, 0) != sizeof hello->ask ||
        getrandom(hello->answer, sizeof hello->answer, 0) != sizeof hello->answer)
        return gr_fail(GR_E_IO, "heartbeat: no random numbers for the run's secret: %s",
                       strerror(errno));
    list_addresses(hello, local);
    hello->port = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    return 0;
}

int gr_heartbeat_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        set_options(fd);
    return fd;
}

/* Compares secrets in constant time. */
static bool same_secret(const uint8_t *a, const char *b)
{
    unsigned differ = 0;
    for (int i = 0; i < 16; i++)
        differ |= (unsigned)a[i] ^ (uint8_t)b[i];
    return !differ;
}

bool gr_heartbeat_knows(const struct gr_heartbeat_hello *hello, const struct gr_heartbeat_msg *m)
{
    return m->magic == GR_HEARTBEAT_MAGIC && m->kind == GR_HEARTBEAT_JOIN &&
           same_secret(hello->ask, m->text);
}

/* ---- the others ---- */

/* An attempt to connect to an address of rank 0. */
struct attempt {
    struct gr_heartbeat_conn conn;
    bool asked; /* connected, and the first message sent */
    int64_t again_ns;
};

static socklen_t address_of(const struct gr_heartbeat_hello *hello, int i, union address *a)
{
    if (hello->address[i].family == 4) {
        *a = (union address){.v4 = {.sin_family = AF_INET, .sin_port = htons(hello->port)}};
        memcpy(&a->v4.sin_addr, hello->address[i].ip, 4);
        return sizeof a->v4;
    }
    *a = (union address){.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(hello->port)}};
    memcpy(&a->v6.sin6_addr, hello->address[i].ip, 16);
    return sizeof a->v6;
}

static void begin(struct attempt *t, const struct gr_heartbeat_hello *hello, int i)
{
    union address a;
    socklen_t n = address_of(hello, i, &a);
    t->asked = false;
    t->again_ns = gr_now_ns() + AGAIN_NS;
    gr_heartbeat_conn_init(&t->conn,
                           socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (t->conn.fd < 0)
        return;
    set_options(t->conn.fd);
    if (connect(t->conn.fd, &a.any, n) && errno != EINPROGRESS)
        gr_heartbeat_conn_close(&t->conn);
}

/* Continues an attempt after an event on its connection; returns true when rank 0 has answered. */
static bool advance(struct attempt *t, const struct gr_world *w,
                    const struct gr_heartbeat_hello *hello)
{
    struct gr_heartbeat_msg m = {.kind = GR_HEARTBEAT_JOIN, .rank = (uint16_t)w->rank};
    int err = 0;
    socklen_t n = sizeof err;
    enum gr_heartbeat_event e = GR_HEARTBEAT_NOTHING;
    if (t->asked) {
        e = gr_heartbeat_recv(&t->conn);
    } else if (getsockopt(t->conn.fd, SOL_SOCKET, SO_ERROR, &err, &n) || err) {
        e = GR_HEARTBEAT_ENDED;
    } else {
        memcpy(m.text, hello->ask, sizeof hello->ask);
        t->asked = true;
        e = gr_heartbeat_send(&t->conn, &m) == GR_HEARTBEAT_MESSAGE ? GR_HEARTBEAT_NOTHING
                                                                    : GR_HEARTBEAT_ENDED;
    }
    const struct gr_heartbeat_msg *in = &t->conn.in;
    if (e == GR_HEARTBEAT_MESSAGE && in->magic == GR_HEARTBEAT_MAGIC &&
        in->kind == GR_HEARTBEAT_WELCOME && same_secret(hello->answer, in->text))
        return true;
    if (e != GR_HEARTBEAT_NOTHING)
        gr_heartbeat_conn_close(&t->conn); /* another program, or refused: tried again */
    return false;
}

static int try_all(struct attempt *t, const struct gr_world *w,
                   const struct gr_heartbeat_hello *hello)
{
    struct pollfd fds[GR_HEARTBEAT_MAX_ADDRESS];
    int n = hello->n_address;
    for (int i = 0; i < n; i++) {
        if (t[i].conn.fd < 0 && gr_now_ns() >= t[i].again_ns)
            begin(&t[i], hello, i);
        fds[i] = (struct pollfd){t[i].conn.fd, t[i].asked ? POLLIN : POLLOUT, 0};
    }
    if (poll(fds, (nfds_t)n, AGAIN_NS / 1000000) <= 0)
        return -1;
    for (int i = 0; i < n; i++) {
        if (fds[i].revents && advance(&t[i], w, hello))
            return i;
    }
    return -1;
}

/* Formats "10.0.0.1, fd00::1". */
static void print_addresses(const struct gr_heartbeat_hello *hello, char *buf, size_t n)
{
    char one[INET6_ADDRSTRLEN];
    buf[0] = 0;
    for (int i = 0; i < hello->n_address; i++) {
        size_t at = strlen(buf);
        inet_ntop(hello->address[i].family == 4 ? AF_INET : AF_INET6, hello->address[i].ip, one,
                  sizeof one);
        snprintf(buf + at, n - at, "%s%s", at ? ", " : "", one);
    }
}

int gr_heartbeat_join(struct gr_heartbeat_conn *c, const struct gr_world *w,
                      const struct gr_heartbeat_hello *hello, int64_t deadline_ns)
{
    struct attempt t[GR_HEARTBEAT_MAX_ADDRESS];
    char name[128], at[256];
    int64_t begin_ns = gr_now_ns();
    int n = hello->n_address, got = -1;
    for (int i = 0; i < n; i++)
        t[i] = (struct attempt){.conn = {.fd = -1}};
    while (n && got < 0 && gr_now_ns() < deadline_ns)
        got = try_all(t, w, hello);
    for (int i = 0; i < n; i++) {
        if (i != got)
            gr_heartbeat_conn_close(&t[i].conn);
    }
    if (got >= 0) {
        *c = t[got].conn;
        c->since_ns = gr_now_ns();
        return 0;
    }
    print_addresses(hello, at, sizeof at);
    return gr_fail(
        GR_E_PEER_LOST,
        "heartbeat: %s did not answer at port %u of %s within %.1f s: is there a firewall "
        "between the machines?",
        gr_world_name(w, 0, name, sizeof name), hello->port, n ? at : "no address",
        gr_seconds_since(begin_ns));
}
