/* Threads that run the handlers of requests with a body, which may be long to read: the event loops
 * go on meanwhile. */
#include "exchange.h"
#include "tools/cli/say.h"

void gr_httpd_work(struct gr_httpd *h, struct gr_exchange *x)
{
    x->next_work = NULL;
    pthread_mutex_lock(&h->work_lock);
    bool stops = atomic_load(&h->stopping); /* the workers may have ended */
    if (!stops) {
        *h->work_end = x;
        h->work_end = &x->next_work;
        pthread_cond_signal(&h->work_there);
    }
    pthread_mutex_unlock(&h->work_lock);
    if (stops) {
        gr_exchange_drop(x);
        gr_exchange_leave_worker(x);
    }
}

/* Takes the next exchange, waiting for one; NULL: the server closes. */
static struct gr_exchange *next(struct gr_httpd *h)
{
    pthread_mutex_lock(&h->work_lock);
    while (!h->work && !atomic_load(&h->stopping))
        pthread_cond_wait(&h->work_there, &h->work_lock);
    struct gr_exchange *x = h->work;
    if (x)
        h->work = x->next_work;
    if (!h->work)
        h->work_end = &h->work;
    pthread_mutex_unlock(&h->work_lock);
    return x;
}

static void *work(void *http)
{
    struct gr_httpd *h = http;
    for (struct gr_exchange *x; (x = next(h));) {
        if (atomic_load(&h->stopping))
            gr_exchange_drop(x);
        else
            gr_exchange_handle(x);
        gr_exchange_leave_worker(x);
    }
    return NULL;
}

int gr_httpd_start_workers(struct gr_httpd *h)
{
    for (; h->n_worker < GR_N_WORKER; h->n_worker++) {
        if (pthread_create(&h->worker[h->n_worker], NULL, work, h))
            return gr_say_no_memory();
    }
    return 0;
}

void gr_httpd_join_workers(struct gr_httpd *h)
{
    pthread_mutex_lock(&h->work_lock);
    pthread_cond_broadcast(&h->work_there);
    pthread_mutex_unlock(&h->work_lock);
    while (h->n_worker > 0)
        pthread_join(h->worker[--h->n_worker], NULL);
}
