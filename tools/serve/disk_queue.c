/* The thread of a folder of prefixes. */
#include "disk_queue.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpurun.h"

struct jobs {
    struct gr_disk_job *first, **end;
};

struct gr_disk_queue {
    int dir;
    void (*notice)(void *user);
    void *user;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock: */
    struct jobs reads, others, done;
    bool working, ends;
};

static void append(struct jobs *jobs, struct gr_disk_job *job)
{
    job->next = NULL;
    *jobs->end = job;
    jobs->end = &job->next;
}

static struct gr_disk_job *first_of(struct jobs *jobs)
{
    struct gr_disk_job *job = jobs->first;
    if (job && !(jobs->first = job->next))
        jobs->end = &jobs->first;
    return job;
}

static void empty(struct jobs *jobs)
{
    for (struct gr_disk_job *job; (job = first_of(jobs));)
        gr_disk_job_free(job);
}

int gr_disk_queue_new(struct gr_disk_queue **out, int dir, void (*notice)(void *user), void *user)
{
    struct gr_disk_queue *q = calloc(1, sizeof *q);
    *out = q;
    if (!q)
        return GR_E_NOMEM_HOST;
    *q = (struct gr_disk_queue){.dir = dir, .notice = notice, .user = user};
    q->reads.end = &q->reads.first;
    q->others.end = &q->others.first;
    q->done.end = &q->done.first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    return 0;
}

void gr_disk_job_free(struct gr_disk_job *job)
{
    if (!job)
        return;
    if (job->op == GR_DISK_WRITE)
        gr_state_free(job->state);
    else
        free(job->state);
    free(job->known);
    gr_disk_found_free(job->found, job->n_found);
    free(job);
}

static void work(int dir, struct gr_disk_job *j)
{
    struct timespec times[] = {j->used, j->used};
    switch (j->op) {
    case GR_DISK_WRITE:
        j->rc = gr_disk_write(dir, j->name, &j->head, j->token, j->state, j->message,
                              sizeof j->message);
        break;
    case GR_DISK_READ:
        j->rc = gr_disk_read_state(dir, j->name, j->bytes, j->n_token, &j->state, &j->n_state);
        break;
    case GR_DISK_REMOVE:
        (void)unlinkat(dir, j->name, 0);
        break;
    case GR_DISK_TOUCH:
        (void)utimensat(dir, j->name, times, AT_SYMLINK_NOFOLLOW);
        break;
    case GR_DISK_SCAN:
        j->rc = gr_disk_scan(dir, j->head.model, j->known, j->n_known, &j->found, &j->n_found,
                             &j->foreign);
        break;
    }
}

static void *work_on(void *user)
{
    struct gr_disk_queue *q = user;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        struct gr_disk_job *job = first_of(q->reads.first ? &q->reads : &q->others);
        q->working = job != NULL;
        if (!job && q->ends)
            break;
        if (!job) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        pthread_mutex_unlock(&q->lock);
        work(q->dir, job);
        pthread_mutex_lock(&q->lock);
        append(&q->done, job);
        q->working = false;
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
        if (q->notice)
            q->notice(q->user);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

int gr_disk_queue_put(struct gr_disk_queue *q, struct gr_disk_job *job)
{
    if (!q->started && pthread_create(&q->thread, NULL, work_on, q))
        return GR_E_NOMEM_HOST;
    q->started = true;
    pthread_mutex_lock(&q->lock);
    append(job->op == GR_DISK_READ ? &q->reads : &q->others, job);
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return 0;
}

struct gr_disk_job *gr_disk_queue_take(struct gr_disk_queue *q, bool waits)
{
    pthread_mutex_lock(&q->lock);
    while (waits && !q->done.first && (q->reads.first || q->others.first || q->working))
        pthread_cond_wait(&q->changed, &q->lock);
    struct gr_disk_job *job = first_of(&q->done);
    pthread_mutex_unlock(&q->lock);
    return job;
}

void gr_disk_queue_free(struct gr_disk_queue **out)
{
    struct gr_disk_queue *q = *out;
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->ends = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (q->started)
        pthread_join(q->thread, NULL);
    empty(&q->done);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q);
    *out = NULL;
}
