/* Continuous batching. */
#include "scheduler.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "prefixes.h"
#include "text.h"

enum {
    WORTH_WAITING = 32, /* tokens of a beginning that another request is about to compute */
    GROWTH = 64,        /* cells kept free for the answer of each request when one begins */
    LEAST_PROMPT = 16,  /* tokens of prompts in a step, however slow */
};

/* Tokens of the next step; token i is the next one of text `of[i]`. */
struct step {
    int32_t *token, *pos, *seq;
    int8_t *logits;
    struct gr_text **of;
    int32_t n, n_prompt; /* n_prompt of them belong to prompts */
};

struct gr_scheduler {
    struct gr_scheduler_params p;
    struct gr_prefixes prefixes;
    int32_t n_vocab;
    uint32_t n_cell;
    struct gr_text *waiting; /* list by id */
    struct gr_text **active; /* [n_active] in the order they began */
    int32_t n_active;
    struct step step;
    double plain_ns, token_ns; /* time of a step without prompts; of a token of a prompt */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Under the lock: */
    struct gr_text **live; /* [n_live] all that have not been freed */
    int32_t n_live;
    struct gr_text *inbox, **inbox_end;
    int32_t n_waiting; /* the inbox counted */
    uint64_t last_id;
    bool stopping, now;
    struct gr_scheduler_stats stats;
};

/* ---- requests, from any thread ---- */

static int queue(struct gr_scheduler *s, struct gr_text *t, uint64_t *id)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->stopping)
        rc = GR_E_CANCELLED;
    else if (s->n_waiting >= s->p.n_queue)
        rc = GR_E_TOO_LARGE;
    if (!rc) {
        t->id = *id = ++s->last_id;
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
        request->n_probs < 0 || request->n_probs > GR_MAX_PROBS)
        return GR_E_INVALID;
    int rc = gr_text_new(&t, s->p.model, request);
    if (rc)
        return rc;
    rc = queue(s, t, id);
    if (rc) {
        t->request = (struct gr_request){0}; /* its objects stay the caller's */
        gr_text_free(&t);
    }
    return rc;
}

void gr_scheduler_cancel(struct gr_scheduler *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < s->n_live; i++) {
        if (s->live[i]->id == id)
            s->live[i]->cancelled = true;
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

/* ---- the scheduler's thread: lists ---- */

/* Adds a text to those that wait, by id. */
static void put_waiting(struct gr_scheduler *s, struct gr_text *t)
{
    struct gr_text **at = &s->waiting;
    while (*at && (*at)->id < t->id)
        at = &(*at)->next;
    t->next = *at;
    *at = t;
}

static void take_waiting(struct gr_scheduler *s, const struct gr_text *t)
{
    struct gr_text **at = &s->waiting;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
}

/* Takes what came in. Returns whether all requests are to end now. */
static bool receive(struct gr_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    struct gr_text *in = s->inbox;
    s->inbox = NULL, s->inbox_end = &s->inbox;
    bool now = s->now;
    pthread_mutex_unlock(&s->lock);
    while (in) {
        struct gr_text *t = in;
        in = t->next;
        put_waiting(s, t);
    }
    return now;
}

static void change_waiting(struct gr_scheduler *s, int32_t n, int32_t n_preempted)
{
    pthread_mutex_lock(&s->lock);
    s->n_waiting += n;
    s->stats.n_preempted += n_preempted;
    pthread_mutex_unlock(&s->lock);
}

/* Frees a text that has ended and is in no list. */
static void forget(struct gr_scheduler *s, struct gr_text *t)
{
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < s->n_live; i++) {
        if (s->live[i] == t)
            s->live[i--] = s->live[--s->n_live];
    }
    s->stats.n_cancelled += t->end == GR_FINISH_CANCELLED;
    s->stats.n_failed += t->end == GR_FINISH_FAILED;
    s->stats.n_prompt += t->n_prompt;
    s->stats.n_cached += t->n_cached > 0 ? t->n_cached : 0;
    s->stats.n_generated += t->n - t->n_prompt;
    pthread_mutex_unlock(&s->lock);
    gr_text_free(&t);
}

static void remove_active(struct gr_scheduler *s, int32_t i)
{
    memmove(s->active + i, s->active + i + 1, (size_t)(--s->n_active - i) * sizeof *s->active);
}

/* Ends what was cancelled, and removes what has ended. */
static void sweep(struct gr_scheduler *s, bool all)
{
    for (struct gr_text **at = &s->waiting; *at;) {
        struct gr_text *t = *at;
        if (!all && !t->cancelled && !t->ended) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        gr_text_end(t, GR_FINISH_CANCELLED, 0, NULL);
        change_waiting(s, -1, 0);
        forget(s, t);
    }
    for (int32_t i = 0; i < s->n_active; i++) {
        struct gr_text *t = s->active[i];
        if (all || t->cancelled)
            gr_text_end(t, GR_FINISH_CANCELLED, 0, NULL);
        if (!t->ended)
            continue;
        gr_prefixes_leave(&s->prefixes, t->seq);
        remove_active(s, i--);
        forget(s, t);
    }
}

/* ---- admission ---- */

static uint32_t n_free(const struct gr_scheduler *s)
{
    uint32_t used = gr_kv_used(s->p.session);
    return used < s->n_cell ? s->n_cell - used : 0;
}

/* Drops texts that have ended until n cells are free, but not that of sequence `except`. */
static bool make_room(struct gr_scheduler *s, uint32_t n, int32_t except)
{
    while (n_free(s) < n && gr_prefixes_evict(&s->prefixes, except))
        ;
    return n_free(s) >= n;
}

static int32_t n_done(const struct gr_scheduler *s, const struct gr_text *t)
{
    return s->prefixes.seq[t->seq].n;
}

/* Returns whether another request is about to compute a good part of this one's prefix. */
static bool follows(const struct gr_scheduler *s, const struct gr_text *t)
{
    int32_t seq, there = gr_prefixes_find(&s->prefixes, t->request.owner, t->token, t->n, &seq);
    for (int32_t i = 0; i < s->n_active && !s->p.whole; i++) {
        const struct gr_text *a = s->active[i];
        int32_t n = 0, most = a->n_prompt < t->n ? a->n_prompt : t->n;
        if (a->request.owner != t->request.owner)
            continue;
        while (n < most && a->token[n] == t->token[n])
            n++;
        if (n > there + WORTH_WAITING && n_done(s, a) < n)
            return true;
    }
    return false;
}

static int32_t n_of_owner(const struct gr_scheduler *s, uint64_t owner)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_active; i++)
        n += s->active[i]->request.owner == owner;
    return n;
}

/* The request that begins next: by priority, then of the owner with the fewest, then the oldest. */
static struct gr_text *choose(const struct gr_scheduler *s)
{
    struct gr_text *best = NULL;
    int32_t fewest = 0;
    for (struct gr_text *t = s->waiting; t; t = t->next) {
        int32_t n = n_of_owner(s, t->request.owner);
        bool better = !best || t->request.priority > best->request.priority ||
                      (t->request.priority == best->request.priority && n < fewest);
        if (better && !follows(s, t))
            best = t, fewest = n;
    }
    return best;
}

/* Cells that a request takes in time, and that those before it may still take: a part of their
 * answers. */
static uint32_t cells_wanted(const struct gr_scheduler *s, const struct gr_text *t)
{
    int32_t n = t->n - n_done(s, t) + GROWTH;
    for (int32_t i = 0; i < s->n_active; i++)
        n += s->active[i]->n - n_done(s, s->active[i]) + GROWTH;
    return (uint32_t)n;
}

/* Begins a request, or goes on with one that was preempted; false: not yet. */
static bool begin(struct gr_scheduler *s, struct gr_text *t)
{
    t->seq = gr_prefixes_take(&s->prefixes, t->request.owner, t->token, t->n);
    if (t->seq < 0)
        return false;
    if (!make_room(s, cells_wanted(s, t), t->seq) && s->n_active) {
        gr_prefixes_leave(&s->prefixes, t->seq);
        t->seq = -1;
        return false;
    }
    if (t->n_cached < 0)
        t->n_cached = n_done(s, t);
    take_waiting(s, t);
    change_waiting(s, -1, 0);
    s->active[s->n_active++] = t;
    int rc = gr_text_begin(t);
    if (rc)
        gr_text_end(t, GR_FINISH_FAILED, rc, gr_error_message());
    else if (t->request.n_predict == 0)
        gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
    return true;
}

static void admit(struct gr_scheduler *s)
{
    struct gr_text *t;
    while (s->n_active < s->p.n_active && (t = choose(s)) && begin(s, t))
        ;
}

/* Stops the text that was submitted last of those with the lowest priority; it waits and is
 * computed again. false: it is the only one. */
static bool preempt(struct gr_scheduler *s)
{
    int32_t last = 0;
    for (int32_t i = 1; i < s->n_active; i++) {
        const struct gr_text *a = s->active[i], *b = s->active[last];
        if (a->request.priority < b->request.priority ||
            (a->request.priority == b->request.priority && a->id > b->id))
            last = i;
    }
    if (s->n_active < 2)
        return false;
    struct gr_text *t = s->active[last];
    gr_prefixes_drop(&s->prefixes, t->seq);
    t->seq = -1;
    remove_active(s, last);
    put_waiting(s, t);
    change_waiting(s, 1, 1);
    return true;
}

/* ---- steps ---- */

static int32_t n_pending(const struct gr_scheduler *s, const struct gr_text *t)
{
    return t->n - n_done(s, t);
}

static void add_tokens(struct gr_scheduler *s, struct gr_text *t, int32_t n)
{
    struct step *step = &s->step;
    int32_t done = n_done(s, t);
    if (gr_prefixes_reserve(&s->prefixes, t->seq, n)) {
        gr_text_end(t, GR_FINISH_FAILED, GR_E_NOMEM_HOST, gr_status_text(GR_E_NOMEM_HOST));
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t at = step->n++;
        step->token[at] = t->token[done + i];
        step->pos[at] = done + i;
        step->seq[at] = t->seq;
        step->logits[at] = done + i + 1 == t->n;
        step->of[at] = t;
    }
}

/* Tokens of prompts in this step: as many as its time allows when other texts are generated. */
static int32_t prompt_budget(const struct gr_scheduler *s)
{
    int32_t most = s->p.n_step - s->step.n;
    if (!s->step.n || !s->p.step_ns || s->token_ns <= 0)
        return most;
    double n = ((double)s->p.step_ns - s->plain_ns) / s->token_ns;
    n = n > LEAST_PROMPT ? n : LEAST_PROMPT;
    return n < most ? (int32_t)n : most;
}

/* Fills the step: the next token of each text that is generated, then prompts, the oldest first, in
 * at most n_cell cells. */
static void fill(struct gr_scheduler *s, int32_t n_cell)
{
    struct step *step = &s->step;
    step->n = 0;
    for (int32_t i = 0; i < s->n_active && step->n < n_cell; i++) {
        if (n_pending(s, s->active[i]) == 1)
            add_tokens(s, s->active[i], 1);
    }
    int32_t n_plain = step->n, budget = prompt_budget(s);
    budget = budget < n_cell - n_plain ? budget : n_cell - n_plain;
    for (int32_t i = 0; i < s->n_active && step->n < n_plain + budget; i++) {
        int32_t n = n_pending(s, s->active[i]), left = n_plain + budget - step->n;
        if (n > 1)
            add_tokens(s, s->active[i], n < left ? n : left);
    }
    step->n_prompt = step->n - n_plain;
}

/* Makes room for the step by dropping texts that have ended; when that does not suffice for the
 * texts that are generated and a token of a prompt, by stopping others. Returns the number of cells
 * for the step, at most n_step. */
static int32_t find_cells(struct gr_scheduler *s)
{
    for (;;) {
        int64_t all = 0;
        uint32_t least = 0;
        for (int32_t i = 0; i < s->n_active; i++) {
            all += n_pending(s, s->active[i]);
            least += n_pending(s, s->active[i]) == 1;
        }
        least += least < (uint32_t)s->n_active;
        uint32_t most = all < s->p.n_step ? (uint32_t)all : (uint32_t)s->p.n_step;
        if (make_room(s, most, -1))
            return (int32_t)most;
        if (n_free(s) >= least)
            return (int32_t)n_free(s);
        if (!preempt(s))
            return 0;
    }
}

static void end_all(struct gr_scheduler *s, enum gr_finish end, int status, const char *message)
{
    for (int32_t i = 0; i < s->n_active; i++) {
        struct gr_text *t = s->active[i];
        gr_text_end(t, end, status, message);
    }
}

/* A failed step: requests end with it, but for a full cache, which fewer of them may fit in. What
 * their sequences hold is unknown then. */
static void fail(struct gr_scheduler *s, int rc)
{
    char message[1024];
    const char *text = gr_error_message();
    size_t n = strlen(text) < sizeof message ? strlen(text) : sizeof message - 1;
    memcpy(message, text, n);
    message[n] = 0;
    if (rc == GR_E_KV_FULL && (gr_prefixes_evict(&s->prefixes, -1) || preempt(s)))
        return;
    end_all(s, rc == GR_E_KV_FULL ? GR_FINISH_LENGTH : GR_FINISH_FAILED, rc, message);
    for (int32_t i = 0; i < s->n_active; i++) {
        int32_t seq = s->active[i]->seq;
        gr_prefixes_drop(&s->prefixes, seq);
        s->prefixes.seq[seq].busy = true; /* until the sweep */
    }
}

static double mean(double old, double sample)
{
    return old <= 0 ? sample : 0.8 * old + 0.2 * sample;
}

static void measure(struct gr_scheduler *s, int64_t ns)
{
    if (!s->step.n_prompt)
        s->plain_ns = mean(s->plain_ns, (double)ns);
    else if ((double)ns > s->plain_ns)
        s->token_ns = mean(s->token_ns, ((double)ns - s->plain_ns) / s->step.n_prompt);
    pthread_mutex_lock(&s->lock);
    s->stats.n_step++, s->stats.step_ns += ns;
    pthread_mutex_unlock(&s->lock);
}

/* Records what was decoded, then picks the tokens that follow. */
static void advance(struct gr_scheduler *s)
{
    struct step *step = &s->step;
    for (int32_t i = 0; i < step->n; i++)
        gr_prefixes_add(&s->prefixes, step->seq[i], &step->token[i], 1);
    for (int32_t i = 0; i < step->n; i++) {
        struct gr_text *t = step->of[i];
        if (!step->logits[i] || t->ended)
            continue;
        if (t->n == t->n_prompt)
            gr_prefixes_keep(&s->prefixes, t->seq);
        gr_text_next(t, s->p.model, s->n_vocab, gr_logits(s->p.session, i), s->p.n_ctx);
    }
}

static void run_step(struct gr_scheduler *s)
{
    struct step *step = &s->step;
    int64_t start = gr_serve_now();
    fill(s, find_cells(s));
    if (!step->n) {
        end_all(s, GR_FINISH_LENGTH, 0, NULL); /* one request, and no cell is left */
        return;
    }
    struct gr_batch batch = {.n_tok = step->n,
                             .token = step->token,
                             .pos = step->pos,
                             .seq = step->seq,
                             .logits = step->logits};
    int rc = gr_decode(s->p.session, &batch);
    if (rc) {
        fail(s, rc);
        return;
    }
    advance(s);
    measure(s, gr_serve_now() - start);
}

/* Publishes what there is now. */
static void publish(struct gr_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->stats.n_active = s->n_active;
    s->stats.n_used = gr_kv_used(s->p.session);
    pthread_mutex_unlock(&s->lock);
}

bool gr_scheduler_step(struct gr_scheduler *s)
{
    sweep(s, receive(s));
    admit(s);
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
    while (!s->inbox && !s->stopping)
        pthread_cond_wait(&s->wake, &s->lock);
    bool more = s->inbox != NULL;
    pthread_mutex_unlock(&s->lock);
    return more;
}

void gr_scheduler_run(struct gr_scheduler *s)
{
    while (gr_scheduler_step(s) || wait_for_work(s))
        ;
}

/* ---- begin and end ---- */

static bool allocate(struct gr_scheduler *s)
{
    struct step *step = &s->step;
    size_t n = (size_t)s->p.n_step;
    step->token = malloc(n * sizeof *step->token);
    step->pos = malloc(n * sizeof *step->pos);
    step->seq = malloc(n * sizeof *step->seq);
    step->logits = malloc(n);
    step->of = malloc(n * sizeof *step->of);
    s->active = malloc((size_t)s->p.n_active * sizeof *s->active);
    s->live = malloc((size_t)(s->p.n_queue + s->p.n_active) * sizeof *s->live);
    return step->token && step->pos && step->seq && step->logits && step->of && s->active &&
           s->live;
}

int gr_scheduler_new(struct gr_scheduler **out, const struct gr_scheduler_params *params)
{
    struct gr_model_info info;
    struct gr_scheduler *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return GR_E_NOMEM_HOST;
    s->p = *params;
    s->inbox_end = &s->inbox;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    gr_model_info(params->model, &info);
    s->n_vocab = info.n_vocab;
    s->stats.n_cell = s->n_cell = gr_session_n_ctx(params->session);
    int rc = gr_prefixes_open(&s->prefixes, params->session, params->n_seq, params->whole);
    if (!rc && !allocate(s))
        rc = GR_E_NOMEM_HOST;
    if (rc)
        gr_scheduler_free(&s);
    *out = s;
    return rc;
}

void gr_scheduler_free(struct gr_scheduler **s)
{
    if (!*s)
        return;
    receive(*s);
    sweep(*s, true);
    gr_prefixes_close(&(*s)->prefixes);
    pthread_cond_destroy(&(*s)->wake);
    pthread_mutex_destroy(&(*s)->lock);
    free((*s)->step.token);
    free((*s)->step.pos);
    free((*s)->step.seq);
    free((*s)->step.logits);
    free((*s)->step.of);
    free((*s)->active);
    free((*s)->live);
    free(*s);
    *s = NULL;
}
