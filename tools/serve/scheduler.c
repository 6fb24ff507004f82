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

enum {
    OUTLIER = 4,       /* times of the mean that the time of a step counts at most */
    LEAST_PROMPT = 16, /* tokens of prompts in a step, however slow */
    LONGER = 5,        /* times of a step without prompts that one with them may take in any case */
    LOOK_AGAIN = 64,   /* steps with prompts and answers after which one has answers alone */
    PROMPT_ROWS = 128, /* rows of logits of a step, whose memory is not small, for prompts */
};

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
        (request->conversation && (request->prompt_piece || request->extend_n > 1)) ||
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
    pthread_mutex_lock(&s->lock);
    s->live[t->at] = s->live[--s->n_live];
    s->live[t->at]->at = t->at;
    s->stats.n_cancelled += t->end == GR_FINISH_CANCELLED;
    s->stats.n_failed += t->end == GR_FINISH_FAILED;
    s->stats.n_prompt += t->n_prompt;
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

/* ---- steps ---- */

static int32_t n_pending(const struct gr_scheduler *s, const struct gr_text *t)
{
    return t->n - gr_scheduler_n_done(s, t);
}

/* Adds the next n tokens of a text to the step, or some of them. */
static void add_tokens(struct gr_scheduler *s, struct gr_text *t, int32_t n)
{
    struct gr_scheduler_step *step = &s->step;
    int32_t done = gr_scheduler_n_done(s, t);
    int rc = gr_prefixes_reserve(&s->prefixes, t->seq, n);
    if (rc) {
        gr_text_end(t, GR_FINISH_FAILED, rc, gr_status_text(rc));
        return;
    }
    gr_scheduler_stop_at_reuse(s, t, &n);
    rc = gr_scheduler_extend(s, t, &n);
    if (rc) {
        gr_text_end(t, GR_FINISH_FAILED, rc, gr_failure_text(rc));
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t at = step->n++;
        step->token[at] = t->token[done + i];
        step->pos[at] = t->n_past + i;
        step->seq[at] = t->seq;
        step->index[at] = done + i;
        step->logits[at] = gr_text_wants(t, done + i);
        step->of[at] = t;
        step->n_row += step->logits[at];
    }
}

/* Tokens of prompts in this step: as many as its time allows when other texts are generated, in
 * whole micro-batches, of which a small one takes nearly the time of a whole one. Where a step
 * without prompts is slow itself, the time grows with it: prompts in small pieces would read all
 * weights again and again. */
static int32_t prompt_budget(const struct gr_scheduler *s)
{
    int32_t most = s->p.n_step - s->step.n;
    if (!s->step.n || !s->p.step_ns)
        return most;
    if (s->plain_ns <= 0 || s->n_mixed >= LOOK_AGAIN)
        return 0; /* measures a step without prompts */
    double ns = (double)s->p.step_ns;
    ns = ns > LONGER * s->plain_ns ? ns : LONGER * s->plain_ns;
    double n = s->token_ns > 0 ? (ns - s->plain_ns) / s->token_ns : most;
    if (n >= most)
        return most;
    int32_t all = s->step.n + (int32_t)(n > LEAST_PROMPT ? n : LEAST_PROMPT);
    if (s->p.n_ubatch && all - all % s->p.n_ubatch >= s->step.n + LEAST_PROMPT)
        all -= all % s->p.n_ubatch;
    return all - s->step.n < most ? all - s->step.n : most;
}

/* Fills the step: the next token of each text that is generated, then prompts, the oldest first, in
 * at most n_cell cells. */
static void fill(struct gr_scheduler *s, int32_t n_cell)
{
    struct gr_scheduler_step *step = &s->step;
    step->n = step->n_row = 0;
    for (int32_t i = 0; i < s->n_active && step->n < n_cell; i++) {
        if (gr_scheduler_has_turn(s, s->active[i]) && n_pending(s, s->active[i]) == 1)
            add_tokens(s, s->active[i], 1);
    }
    int32_t n_plain = step->n, budget = prompt_budget(s);
    budget = budget < n_cell - n_plain ? budget : n_cell - n_plain;
    for (int32_t i = 0; i < s->n_active && step->n < n_plain + budget; i++) {
        int32_t n = n_pending(s, s->active[i]), left = n_plain + budget - step->n;
        if (gr_text_tells_prompt(s->active[i]) && left > n_plain + PROMPT_ROWS - step->n_row)
            left = n_plain + PROMPT_ROWS - step->n_row;
        if (n > 1 && left > 0 && gr_scheduler_has_turn(s, s->active[i]))
            add_tokens(s, s->active[i], n < left ? n : left);
    }
    step->n_prompt = step->n - n_plain;
}

/* Makes room for the step by dropping texts that have ended; when that does not suffice for the
 * texts that are generated and a token of a prompt, by stopping others. Returns the number of cells
 * for the step, at most n_step; 0: none is left. */
static int32_t find_cells(struct gr_scheduler *s)
{
    for (;;) {
        int64_t all = 0;
        uint32_t least = 0, n = 0;
        for (int32_t i = 0; i < s->n_active; i++) {
            int32_t left = gr_scheduler_has_turn(s, s->active[i]) ? n_pending(s, s->active[i]) : 0;
            all += left;
            least += left == 1;
            n += left > 0;
        }
        least += least < n;
        uint32_t most = all < s->p.n_step ? (uint32_t)all : (uint32_t)s->p.n_step;
        if (gr_scheduler_make_room(s, most))
            return (int32_t)most;
        if (gr_scheduler_n_free(s) >= least)
            return (int32_t)gr_scheduler_n_free(s);
        if (!gr_scheduler_preempt(s))
            return (int32_t)gr_scheduler_n_free(s);
    }
}

/* Returns whether a text of the turn runs: it may have been stopped for cells, or have ended. */
static bool any_has_turn(const struct gr_scheduler *s)
{
    for (int32_t i = 0; i < s->n_active; i++) {
        if (!s->active[i]->ended && gr_scheduler_has_turn(s, s->active[i]))
            return true;
    }
    return false;
}

/* No cell is left for those that run: an answer ends, a prompt fails. */
static void end_full(struct gr_scheduler *s)
{
    for (int32_t i = 0; i < s->n_active; i++) {
        struct gr_text *t = s->active[i];
        if (t->n > t->n_prompt)
            gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
        else
            gr_text_end(t, GR_FINISH_FAILED, GR_E_KV_FULL,
                        "the prompt does not fit the cells that conversations leave");
    }
}

/* The device, or a rank, is lost: nothing can be computed any more, and no request is accepted. */
static void lose(struct gr_scheduler *s, int rc, const char *message)
{
    bool some;
    pthread_mutex_lock(&s->lock);
    s->status = rc;
    s->stopping = true;
    pthread_mutex_unlock(&s->lock);
    receive(s, rc, &some);
    end_waiting(s, true, GR_FINISH_FAILED, rc, message);
    s->prefixes.disk = NULL; /* nothing can be read of the cache */
}

/* A failed step: the requests of the turn end with it, all of them with the device, and none with a
 * full cache, which fewer may fit in. What their sequences hold is unknown then. */
static void fail(struct gr_scheduler *s, int rc)
{
    bool lost = rc == GR_E_DEVICE || rc == GR_E_PEER_LOST;
    char message[1024];
    snprintf(message, sizeof message, "%s", gr_failure_text(rc));
    s->full = rc == GR_E_KV_FULL;
    if (s->full) {
        if (!gr_prefixes_evict(&s->prefixes, -1) && !gr_scheduler_preempt(s))
            end_full(s);
        return;
    }
    for (int32_t i = 0; i < s->n_active; i++) {
        struct gr_text *t = s->active[i];
        if (!lost && !gr_scheduler_has_turn(s, t))
            continue;
        gr_text_end(t, GR_FINISH_FAILED, rc, message);
        gr_prefixes_drop(&s->prefixes, t->seq);
        s->prefixes.seq[t->seq].busy = true; /* until the sweep */
    }
    if (lost)
        lose(s, rc, message);
}

/* A sample far above the mean, of a step with something rare, counts as a few times of it. */
static double mean(double old, double sample)
{
    if (sample > OUTLIER * old && old > 0)
        sample = OUTLIER * old;
    return old <= 0 ? sample : 0.8 * old + 0.2 * sample;
}

/* Takes note of a step of ns, of which computing has taken `compute`. */
static void measure(struct gr_scheduler *s, int64_t ns, int64_t compute)
{
    if (!s->step.n_prompt)
        s->plain_ns = mean(s->plain_ns, (double)compute), s->n_mixed = 0;
    else if ((double)compute > s->plain_ns)
        s->token_ns = mean(s->token_ns, ((double)compute - s->plain_ns) / s->step.n_prompt);
    enum gr_phase phase = !s->step.n_prompt               ? GR_PHASE_DECODE
                          : s->step.n_prompt == s->step.n ? GR_PHASE_PROMPT
                                                          : GR_PHASE_MIXED;
    s->n_mixed += phase == GR_PHASE_MIXED;
    pthread_mutex_lock(&s->lock);
    s->stats.n_step++, s->stats.step_ns += ns;
    gr_histogram_add(&s->stats.step_seconds[phase], gr_bound_seconds, (double)ns / 1e9);
    gr_histogram_add(&s->stats.step_tokens, gr_bound_tokens, s->step.n);
    s->stats.last.n_prompt = s->step.n_prompt;
    s->stats.last.n_answer = s->step.n - s->step.n_prompt;
    s->stats.last.ns = ns;
    pthread_mutex_unlock(&s->lock);
}

/* Records what was decoded, then picks the tokens that follow. */
static void advance(struct gr_scheduler *s)
{
    struct gr_scheduler_step *step = &s->step;
    for (int32_t i = 0; i < step->n; i++) {
        gr_prefixes_add(&s->prefixes, step->seq[i], &step->token[i], 1);
        step->of[i]->n_past++;
    }
    for (int32_t i = 0; i < step->n; i++) {
        struct gr_text *t = step->of[i];
        if (!step->logits[i] || t->ended)
            continue;
        const float *logits = gr_logits(s->p.session, i);
        if (step->index[i] + 1 < t->n_prompt) {
            gr_text_prompt(t, s->n_vocab, logits);
            continue;
        }
        if (t->n == t->n_prompt)
            gr_prefixes_keep(&s->prefixes, t->seq);
        gr_text_next(t, s->p.model, s->n_vocab, logits, s->p.n_ctx);
        const char *why;
        if (t->conversation && !t->ended && !gr_scheduler_may_keep(s, t->request.owner, 1, &why))
            gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
    }
}

static void run_step(struct gr_scheduler *s)
{
    struct gr_scheduler_step *step = &s->step;
    int64_t start = gr_serve_now();
    int rc = gr_scheduler_take_turn(s);
    for (int32_t i = 0; i < s->n_active && !rc; i++) {
        if (gr_scheduler_has_turn(s, s->active[i]))
            gr_scheduler_reuse(s, s->active[i]);
    }
    step->n = 0;
    if (!rc)
        fill(s, find_cells(s));
    if (!rc && !step->n) {
        if (any_has_turn(s))
            end_full(s);
        return;
    }
    struct gr_batch batch = {.n_tok = step->n,
                             .token = step->token,
                             .pos = step->pos,
                             .seq = step->seq,
                             .logits = step->logits};
    if (!rc && s->p.n_adapter) /* what was dropped for cells may have changed them */
        rc = gr_session_set_adapters(s->p.session, s->turn);
    int64_t decode = gr_serve_now();
    if (!rc)
        rc = gr_decode(s->p.session, &batch);
    if (rc) {
        fail(s, rc);
        return;
    }
    s->full = false;
    advance(s);
    int64_t end = gr_serve_now();
    measure(s, end - start, end - decode);
}

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
        int32_t done = gr_scheduler_n_done(s, t);
        t->view.state = t->n > t->n_prompt ? GR_REQUEST_ANSWER : GR_REQUEST_PROMPT;
        t->view.n_done = done < t->n_prompt ? done : t->n_prompt;
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
    bool active = s->n_active > 0;
    if (active)
        run_step(s);
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
    struct gr_scheduler_step *step = &s->step;
    size_t n = (size_t)s->p.n_step;
    step->token = malloc(n * sizeof *step->token);
    step->pos = malloc(n * sizeof *step->pos);
    step->seq = malloc(n * sizeof *step->seq);
    step->index = malloc(n * sizeof *step->index);
    step->logits = malloc(n);
    step->of = malloc(n * sizeof *step->of);
    s->active = malloc((size_t)s->p.n_active * sizeof *s->active);
    /* one more: a text that waits no longer, until it is freed */
    s->live = malloc((size_t)(s->p.n_queue + s->p.n_active + 1) * sizeof *s->live);
    s->sequence = malloc((size_t)s->p.n_seq * sizeof *s->sequence);
    return step->token && step->pos && step->seq && step->index && step->logits && step->of &&
           s->active && s->live && s->sequence;
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
    gr_scheduler_close_all(*s);
    gr_scheduler_free_slots(*s);
    gr_prefixes_close(&(*s)->prefixes);
    gr_disk_close(&(*s)->disk);
    pthread_cond_destroy(&(*s)->wake);
    pthread_mutex_destroy(&(*s)->lock);
    free((*s)->step.token);
    free((*s)->step.pos);
    free((*s)->step.seq);
    free((*s)->step.index);
    free((*s)->step.logits);
    free((*s)->step.of);
    free((*s)->active);
    free((*s)->live);
    free((*s)->sequence);
    free(*s);
    *s = NULL;
}
