/* Continuous batching. */
#include "scheduler.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "disk.h"
#include "gpurun.h"
#include "scheduler_impl.h"
#include "tools/cli/say.h"

/* ---- requests, from any thread ---- */

static int queue(struct gr_scheduler *s, struct gr_text *t, uint64_t *id)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->stopping)
        rc = s->status ? s->status : GR_E_CANCELLED;
    else if (s->n_waiting >= s->p.n_queue)
        rc = GR_E_TOO_LARGE;
    if (!rc) {
        t->id = *id = ++s->last_id;
        t->view = (struct gr_request_view){
            .id = t->id, .owner = t->request.owner, .n_prompt = t->n_prompt};
        t->at = s->n_live;
        s->live[s->n_live++] = t;
        *s->inbox_end = t;
        s->inbox_end = &t->next;
        s->n_waiting++, s->stats.n_request++;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int gr_scheduler_submit(struct gr_scheduler *s, const struct gr_request *request, uint64_t *id)
{
    struct gr_text *t;
    if (request->n_prompt < 1 || request->n_prompt > s->p.n_ctx || !request->sampler ||
        request->n_probs < 0 || request->n_probs > GR_MAX_PROBS ||
        (request->extend_n > 1 &&
         (request->extend_w < 1 || request->extend_w % request->extend_n)) ||
        (request->conversation &&
         (request->prompt_piece || request->extend_n > 1 || request->shift.on)) ||
        (request->shift.on && (request->extend_n > 1 || request->n_predict < 0 ||
                               request->shift.keep < 0 || request->shift.discard < 0)) ||
        request->reuse < 0 || request->slot < 0)
        return GR_E_INVALID;
    int rc = gr_text_new(&t, s->p.model, request);
    if (rc)
        return rc;
    t->key = gr_scheduler_key(s, request->owner, request->adapters);
    t->request.adapters = NULL;
    rc = queue(s, t, id);
    if (rc) {
        t->request = (struct gr_request){0}; /* its objects stay the caller's */
        gr_text_free(&t);
    }
    return rc;
}

/* Queues a copy of a call. */
static int queue_call(struct gr_scheduler *s, const struct gr_scheduler_call *call)
{
    struct gr_scheduler_call *c = malloc(sizeof *c);
    if (!c)
        return GR_E_NOMEM_HOST;
    *c = *call;
    pthread_mutex_lock(&s->lock);
    int rc = !s->stopping ? 0 : s->status ? s->status : GR_E_CANCELLED;
    if (!rc) {
        *s->calls_end = c;
        s->calls_end = &c->next;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc)
        free(c);
    return rc;
}

int gr_scheduler_call(struct gr_scheduler *s, const struct gr_conversation_call *call)
{
    return queue_call(s, &(struct gr_scheduler_call){.call = *call});
}

int gr_scheduler_slot(struct gr_scheduler *s, const struct gr_slot_call *call)
{
    return queue_call(s, &(struct gr_scheduler_call){.is_slot = true, .slot = *call});
}

void gr_scheduler_cancel(struct gr_scheduler *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < s->n_live; i++) {
        if (s->live[i]->id == id)
            s->live[i]->cancelled = s->cancelled = true;
    }
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void gr_scheduler_stop(struct gr_scheduler *s, bool now)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    s->now |= now;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

struct gr_scheduler_stats gr_scheduler_stats(struct gr_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    struct gr_scheduler_stats stats = s->stats;
    stats.n_waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
    return stats;
}

int gr_scheduler_status(struct gr_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    int status = s->status;
    pthread_mutex_unlock(&s->lock);
    return status;
}

int32_t gr_scheduler_list(struct gr_scheduler *s, struct gr_request_view *view, int32_t n)
{
    pthread_mutex_lock(&s->lock);
    int32_t n_live = s->n_live;
    for (int32_t i = 0; i < n_live && i < n; i++)
        view[i] = s->live[i]->view;
    pthread_mutex_unlock(&s->lock);
    return n_live;
}

int32_t gr_scheduler_look(struct gr_scheduler *s, struct gr_sequence_view *view, int32_t n)
{
    pthread_mutex_lock(&s->lock);
    int32_t n_seq = s->looked ? s->p.n_seq : 0;
    for (int32_t i = 0; i < n_seq && i < n; i++)
        view[i] = s->sequence[i];
    s->look = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return n_seq;
}

/* ---- the scheduler's thread: texts ---- */

/* Frees a text that has ended and is in no list. */
static void forget(struct gr_scheduler *s, struct gr_text *t)
{
    gr_scheduler_detach(s, t);
    pthread_mutex_lock(&s->lock);
    s->live[t->at] = s->live[--s->n_live];
    s->live[t->at]->at = t->at;
    s->stats.n_cancelled += t->end == GR_FINISH_CANCELLED;
    s->stats.n_failed += t->end == GR_FINISH_FAILED;
    s->stats.n_prompt += t->n_prompt + t->n_shifted;
    s->stats.n_cached += t->n_cached > 0 ? t->n_cached : 0;
    s->stats.n_generated += t->n - t->n_prompt;
    pthread_mutex_unlock(&s->lock);
    if (s->disk)
        gr_disk_unread(s->disk, &t->read);
    gr_text_free(&t);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Adds a text that came in to those that wait. */
static void accept_text(struct gr_scheduler *s, struct gr_text *t)
{
    if (t->request.conversation)
        gr_scheduler_join(s, t);
    if (t->ended) {
        gr_scheduler_count(s, t, -1, 0);
        forget(s, t);
        return;
    }
    pthread_mutex_lock(&s->lock);
    t->view.n_prompt = t->n_prompt;
    pthread_mutex_unlock(&s->lock);
    s->deadline = earlier(s->deadline, gr_text_deadline(t));
    gr_scheduler_put(s, t);
}

/* Takes what came in; calls are refused with a status other than 0. *some: requests that wait may
 * have been cancelled. Returns whether all requests are to end now. */
static bool receive(struct gr_scheduler *s, int status, bool *some)
{
    pthread_mutex_lock(&s->lock);
    struct gr_text *in = s->inbox;
    struct gr_scheduler_call *calls = s->calls;
    s->inbox = NULL, s->inbox_end = &s->inbox;
    s->calls = NULL, s->calls_end = &s->calls;
    bool now = s->now;
    *some = s->cancelled;
    s->cancelled = s->disk_done = false;
    pthread_mutex_unlock(&s->lock);
    gr_scheduler_do_calls(s, calls, status);
    while (in) {
        struct gr_text *t = in;
        in = t->next;
        accept_text(s, t);
    }
    return now;
}

/* Frees a request that waited and has ended. */
static void drop_waiting(struct gr_scheduler *s, struct gr_text *t)
{
    gr_scheduler_take(s, t);
    if (t->begun)
        gr_scheduler_set_slot(s, t);
    if (t->conversation)
        gr_scheduler_part(t);
    gr_scheduler_count(s, t, -1, 0);
    forget(s, t);
}

/* Ends requests that have no time left. Looks at all of them only when the time of one is over. */
static void end_late(struct gr_scheduler *s)
{
    struct gr_text *next_line, *next;
    int64_t now = gr_serve_now(), first = INT64_MAX;
    if (now < s->deadline)
        return;
    for (struct gr_text *line = s->waiting; line; line = next_line) {
        next_line = line->next_line;
        for (struct gr_text *t = line; t; t = next) {
            next = t->next;
            if (gr_text_end_late(t, now))
                drop_waiting(s, t);
            else
                first = earlier(first, gr_text_deadline(t));
        }
    }
    for (int32_t i = 0; i < s->n_active; i++) {
        (void)gr_text_end_late(s->active[i], now);
        first = earlier(first, gr_text_deadline(s->active[i]));
    }
    s->deadline = first;
}

/* Ends requests that wait: those that were cancelled, or all. */
static void end_waiting(struct gr_scheduler *s, bool all, enum gr_finish end, int status,
                        const char *message)
{
    struct gr_text *next_line, *next;
    for (struct gr_text *line = s->waiting; line; line = next_line) {
        next_line = line->next_line;
        for (struct gr_text *t = line; t; t = next) {
            next = t->next;
            if (!all && !t->cancelled)
                continue;
            gr_text_end(t, end, status, message);
            drop_waiting(s, t);
        }
    }
}

/* Ends active requests that were cancelled, or all, and removes those that have ended. */
static void sweep(struct gr_scheduler *s, bool all)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_active; i++) {
        struct gr_text *t = s->active[i];
        if (all || t->cancelled)
            gr_text_end(t, GR_FINISH_CANCELLED, 0, NULL);
        if (t->ended) {
            gr_scheduler_set_slot(s, t);
            if (t->conversation)
                gr_scheduler_part(t);
            else if (t->end == GR_FINISH_FAILED && t->status != GR_E_CANCELLED)
                /* its cells may be what failed */
                gr_prefixes_drop(&s->prefixes, t->seq);
            else
                gr_prefixes_leave(&s->prefixes, t->seq);
            forget(s, t);
        } else {
            s->active[n++] = t;
        }
    }
    s->n_active = n;
}

/* The device, or a rank, is lost: nothing can be computed any more, all requests end, and none is
 * accepted. */
static void lose(struct gr_scheduler *s, int rc)
{
    bool some;
    char message[1024];
    snprintf(message, sizeof message, "%s", gr_failure_text(rc));
    for (int32_t i = 0; i < s->n_active; i++)
        gr_text_end(s->active[i], GR_FINISH_FAILED, rc, message);
    pthread_mutex_lock(&s->lock);
    s->status = rc;
    s->stopping = true;
    pthread_mutex_unlock(&s->lock);
    receive(s, rc, &some);
    end_waiting(s, true, GR_FINISH_FAILED, rc, message);
    s->prefixes.disk = NULL; /* nothing can be read of the cache */
}

/* ---- steps ---- */

/* Publishes what there is now. */
static void publish(struct gr_scheduler *s)
{
    struct gr_disk_stats files = s->disk ? gr_disk_stats(s->disk) : (struct gr_disk_stats){0};
    pthread_mutex_lock(&s->lock);
    s->stats.n_active = s->n_active;
    s->stats.n_used = gr_kv_used(s->p.session);
    s->stats.n_file = files.n_file, s->stats.file_bytes = files.bytes;
    s->stats.n_saved = files.n_saved, s->stats.n_restored = files.n_loaded;
    s->stats.n_damaged = files.n_damaged, s->stats.n_unsaved = files.n_unsaved;
    for (int32_t i = 0; i < s->n_active; i++) {
        struct gr_text *t = s->active[i];
        int32_t done = gr_scheduler_n_done(s, t) + t->n_shifted;
        int32_t n_prompt = t->n_prompt + t->n_shifted;
        t->view.state = t->n > t->n_prompt ? GR_REQUEST_ANSWER : GR_REQUEST_PROMPT;
        t->view.n_done = done < n_prompt ? done : n_prompt;
        t->view.n_cached = t->n_cached;
        t->view.n_generated = t->n - t->n_prompt;
    }
    for (int32_t i = 0; s->look && i < s->p.n_seq; i++)
        s->sequence[i] =
            (struct gr_sequence_view){s->prefixes.seq[i].busy, gr_kv_seq_count(s->p.session, i)};
    s->looked |= s->look;
    s->look = false;
    pthread_mutex_unlock(&s->lock);
}

bool gr_scheduler_step(struct gr_scheduler *s)
{
    bool some, now = receive(s, 0, &some);
    if (now || some)
        end_waiting(s, now, GR_FINISH_CANCELLED, 0, NULL);
    end_late(s);
    sweep(s, now);
    if (s->disk)
        gr_disk_poll(s->disk);
    gr_scheduler_admit(s);
    sweep(s, false); /* what ended as it began */
    bool active = s->n_active > 0 || s->n_begun;
    int rc = active ? gr_scheduler_run_step(s) : 0;
    if (rc)
        lose(s, rc);
    sweep(s, false);
    publish(s);
    return active || s->waiting;
}

/* Waits until there is something to do; false: nothing will come. */
static bool wait_for_work(struct gr_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->inbox && !s->calls && !s->look && !s->disk_done && !s->stopping)
        pthread_cond_wait(&s->wake, &s->lock);
    bool more = s->inbox || s->calls || s->look || s->disk_done;
    pthread_mutex_unlock(&s->lock);
    return more;
}

/* Called in the disk's thread. */
static void on_disk(void *user)
{
    struct gr_scheduler *s = user;
    pthread_mutex_lock(&s->lock);
    s->disk_done = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* Where all requests wait for the disk, waits for it too, or for what comes in. */
static void wait_for_disk(struct gr_scheduler *s)
{
    if (s->n_active || !s->waiting || !s->disk || !gr_disk_is_busy(s->disk))
        return;
    pthread_mutex_lock(&s->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++; /* requests may have no time left then */
    int rc = 0;
    while (!s->disk_done && !s->inbox && !s->calls && !s->look && !s->cancelled && !s->now && !rc)
        rc = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

void gr_scheduler_run(struct gr_scheduler *s)
{
    while (gr_scheduler_step(s) || wait_for_work(s))
        wait_for_disk(s);
}

/* ---- begin and end ---- */

static bool allocate(struct gr_scheduler *s)
{
    s->active = malloc((size_t)s->p.n_active * sizeof *s->active);
    /* one more: a text that waits no longer, until it is freed */
    s->live = malloc((size_t)(s->p.n_queue + s->p.n_active + 1) * sizeof *s->live);
    s->sequence = malloc((size_t)s->p.n_seq * sizeof *s->sequence);
    return gr_scheduler_open_steps(s) && s->active && s->live && s->sequence;
}

int gr_scheduler_new(struct gr_scheduler **out, const struct gr_scheduler_params *params)
{
    struct gr_model_info info;
    struct gr_scheduler *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return GR_E_NOMEM_HOST;
    s->p = *params;
    s->inbox_end = &s->inbox, s->calls_end = &s->calls, s->deadline = INT64_MAX;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    gr_model_info(params->model, &info);
    s->n_vocab = info.n_vocab;
    s->stats.n_cell = s->n_cell = gr_session_n_ctx(params->session);
    int rc = gr_prefixes_open(&s->prefixes, params->session, params->n_seq, params->whole);
    if (!rc && !allocate(s))
        rc = GR_E_NOMEM_HOST;
    if (!rc && params->n_adapter)
        rc = gr_scheduler_open_adapters(s);
    if (rc)
        (void)gr_say_status(rc);
    else if (params->cache_dir)
        rc = gr_disk_open(&s->disk, params->cache_dir, params->cache_bytes, params->session,
                          params->whole, on_disk, s);
    s->prefixes.disk = s->disk, s->prefixes.least = params->cache_least;
    s->prefixes.adapters = params->n_adapter > 0;
    s->prefixes.spare = params->spare ? params->n_seq : -1;
    if (rc)
        gr_scheduler_free(&s);
    *out = s;
    return rc;
}

void gr_scheduler_free(struct gr_scheduler **s)
{
    if (!*s)
        return;
    bool some;
    receive(*s, GR_E_CANCELLED, &some);
    end_waiting(*s, true, GR_FINISH_CANCELLED, 0, NULL);
    sweep(*s, true);
    gr_scheduler_close_steps(*s);
    gr_scheduler_close_all(*s);
    gr_scheduler_free_slots(*s);
    gr_prefixes_close(&(*s)->prefixes);
    gr_disk_close(&(*s)->disk);
    pthread_cond_destroy(&(*s)->wake);
    pthread_mutex_destroy(&(*s)->lock);
    free((*s)->active);
    free((*s)->live);
    free((*s)->sequence);
    free(*s);
    *s = NULL;
}
