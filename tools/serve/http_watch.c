/* Connections over time: deadlines, clients that have gone while they wait, and pings.
 * libmicrohttpd does not look at suspended connections, and knows no deadline that single bytes do
 * not put off. */
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "exchange.h"
#include "tools/cli/say.h"

#define TICK 50000000 /* ns */

void gr_client_cut(struct gr_httpd *h, struct gr_client *c)
{
    if (c->cut)
        return;
    c->cut = true;
    h->n_cut++;
    shutdown(c->fd, SHUT_RDWR); /* the loop closes it */
}

/* Exchanges that are kept, with their sockets. */
struct kept {
    struct pollfd *fd;
    struct gr_exchange **x; /* [n], each with a reference */
    size_t n, room;
};

/* Makes room for n; what there is no memory for is looked at another time. */
static void reserve(struct kept *k, size_t n)
{
    if (n <= k->room)
        return;
    struct pollfd *fd = realloc(k->fd, n * 2 * sizeof *fd);
    if (fd)
        k->fd = fd;
    struct gr_exchange **x = realloc(k->x, n * 2 * sizeof *x);
    if (x)
        k->x = x;
    if (fd && x)
        k->room = n * 2;
}

/* Cuts connections that are past their deadline; returns how many stalled in the middle of a
 * request. */
static int cut_late(struct gr_httpd *h, int64_t now)
{
    bool draining = atomic_load(&h->draining);
    int n = 0;
    for (struct gr_client *c = h->clients.next; c != &h->clients; c = c->next) {
        bool late = now > atomic_load_explicit(&c->deadline, memory_order_relaxed);
        if (c->cut || (!late && (!draining || c->x)))
            continue;
        n += c->x != NULL;
        gr_client_cut(h, c);
    }
    return n;
}

/* Cuts the client that has read nothing of its answer for longest. Returns false where there are
 * not two that have something to read: a single one may have a large answer. */
static bool cut_oldest(struct gr_httpd *h)
{
    struct gr_client *oldest = NULL;
    int64_t since = 0;
    int n = 0;
    for (struct gr_client *c = h->clients.next; c != &h->clients; c = c->next) {
        if (!c->x || c->cut)
            continue;
        pthread_mutex_lock(&c->x->lock);
        if (c->x->n_out && (!n++ || c->x->read < since))
            oldest = c, since = c->x->read;
        pthread_mutex_unlock(&c->x->lock);
    }
    if (n < 2)
        return false;
    pthread_mutex_lock(&oldest->x->lock);
    oldest->x->hung = true; /* its owner hears of it when what is kept is looked at */
    gr_exchange_drop_answer(oldest->x);
    pthread_mutex_unlock(&oldest->x->lock);
    gr_client_cut(h, oldest);
    return true;
}

/* Keeps the bytes of all answers that are not read within their bound; returns how many were cut.
 */
static int cut_unread(struct gr_httpd *h)
{
    int n = 0;
    while (atomic_load(&h->n_out) > h->p.max_unread && cut_oldest(h))
        n++;
    return n;
}

/* Looks at all connections; what is kept stays in *k, its hang-ups marked. */
static void look(struct gr_httpd *h, struct kept *k, int64_t now)
{
    k->n = 0;
    pthread_mutex_lock(&h->lock);
    int n_late = cut_late(h, now), n_unread = cut_unread(h);
    reserve(k, h->n_client);
    for (struct gr_client *c = h->clients.next; c != &h->clients && k->n < k->room; c = c->next) {
        if (!c->x || !atomic_load(&c->x->kept))
            continue;
        atomic_fetch_add(&c->x->n_ref, 1);
        k->x[k->n] = c->x;
        k->fd[k->n++] = (struct pollfd){.fd = c->fd, .events = POLLRDHUP};
    }
    if (k->n && poll(k->fd, k->n, 0) < 0) {
        for (size_t i = 0; i < k->n; i++)
            k->fd[i].revents = 0;
    }
    pthread_mutex_unlock(&h->lock); /* until here no socket is closed, and none used again */
    if (n_late)
        gr_say_debug("http: %d connection%s cut that stalled in the middle of a request", n_late,
                     n_late == 1 ? "" : "s");
    if (n_unread)
        gr_say_debug("http: %d connection%s cut: answers together have too much unread", n_unread,
                     n_unread == 1 ? "" : "s");
}

void *gr_httpd_watch(void *http)
{
    struct gr_httpd *h = http;
    struct kept k = {0};
    while (!atomic_load(&h->stopping)) {
        int64_t now = gr_httpd_now();
        look(h, &k, now);
        for (size_t i = 0; i < k.n; i++) {
            struct gr_exchange *x = k.x[i];
            pthread_mutex_lock(&x->lock);
            if (k.fd[i].revents || x->hung)
                gr_exchange_hang_up(x);
            else
                gr_exchange_ping(x, now);
            pthread_mutex_unlock(&x->lock);
            gr_exchange_unref(x);
        }
        nanosleep(&(struct timespec){0, TICK}, NULL);
    }
    free(k.fd);
    free(k.x);
    return NULL;
}
