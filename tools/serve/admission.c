/* Requests that wait, and how they begin. */
#include <string.h>

#include "disk.h"
#include "gpurun.h"
#include "scheduler_impl.h"

enum {
    WORTH_WAITING = 32,   /* tokens of a beginning that another request is about to compute */
    WORTH_RESTORING = 64, /* tokens that a file has and the cache does not */
    GROWTH = 64,          /* cells kept free for the answer of each request when one begins */
    CANDIDATES = 16,      /* texts of a line that are compared with those that run */
    DEFERRED = 16,        /* texts that are passed in a step as they wait for the disk */
};

/* ---- lines ---- */

/* Returns where the line of the text's owner and priority is, or belongs. */
static struct gr_text **line_of(struct gr_scheduler *s, const struct gr_text *t)
{
    struct gr_text **at = &s->waiting;
    while (*at && ((*at)->request.priority > t->request.priority ||
                   ((*at)->request.priority == t->request.priority &&
                    (*at)->request.owner != t->request.owner)))
        at = &(*at)->next_line;
    return at;
}

static bool same_line(const struct gr_text *a, const struct gr_text *b)
{
    return a->request.priority == b->request.priority && a->request.owner == b->request.owner;
}

/* Makes t the first of a line whose others, if any, begin with `rest`. */
static void lead(struct gr_text **at, struct gr_text *t, struct gr_text *rest,
                 struct gr_text *next_line)
{
    t->next = rest;
    t->last = rest ? rest->last : t;
    t->next_line = next_line;
    *at = t;
}

void gr_scheduler_put(struct gr_scheduler *s, struct gr_text *t)
{
    struct gr_text **at = line_of(s, t), *first = *at;
    if (!first || !same_line(first, t)) {
        lead(at, t, NULL, first);
    } else if (t->id < first->id) {
        lead(at, t, first, first->next_line);
    } else {
        struct gr_text *before = first->last->id < t->id ? first->last : first;
        while (before->next && before->next->id < t->id)
            before = before->next;
        t->next = before->next;
        before->next = t;
        first->last = t->next ? first->last : t;
    }
}

void gr_scheduler_take(struct gr_scheduler *s, struct gr_text *t)
{
    struct gr_text **at = line_of(s, t), *first = *at, *before = first;
    if (t != first) {
        while (before->next != t)
            before = before->next;
        before->next = t->next;
        first->last = t->next ? first->last : before;
    } else if (t->next) {
        t->next->last = t->last;
        t->next->next_line = t->next_line;
        *at = t->next;
    } else {
        *at = t->next_line;
    }
}

void gr_scheduler_count(struct gr_scheduler *s, struct gr_text *t, int32_t n, int32_t n_preempted)
{
    pthread_mutex_lock(&s->lock);
    s->n_waiting += n;
    s->stats.n_preempted += n_preempted;
    t->view.state = n > 0 ? GR_REQUEST_WAITING : GR_REQUEST_PROMPT;
    pthread_mutex_unlock(&s->lock);
}

/* ---- cells ---- */

uint32_t gr_scheduler_n_free(const struct gr_scheduler *s)
{
    uint32_t used = gr_kv_used(s->p.session);
    return used < s->n_cell ? s->n_cell - used : 0;
}

bool gr_scheduler_make_room(struct gr_scheduler *s, uint32_t n)
{
    while (gr_scheduler_n_free(s) < n && gr_prefixes_evict(&s->prefixes, -1))
        ;
    return gr_scheduler_n_free(s) >= n;
}

int32_t gr_scheduler_n_done(const struct gr_scheduler *s, const struct gr_text *t)
{
    return s->prefixes.seq[t->seq].n;
}

/* ---- the next one ---- */

/* Returns the length of the longest beginning of a text that is there, at most what need not be
 * computed. *seq: the sequence that has it. */
static int32_t find(const struct gr_scheduler *s, const struct gr_text *t, int32_t *seq)
{
    return gr_prefixes_find(&s->prefixes, t->key.id, t->token, gr_text_may_share(t),
                            t->request.reuse > 0 && !t->conversation, seq);
}

/* Returns whether another request is about to compute a good part of this one's prefix. */
static bool follows(const struct gr_scheduler *s, const struct gr_text *t)
{
    if (t->conversation && t->conversation->seq >= 0)
        return false;
    int32_t seq, n = find(s, t, &seq) + WORTH_WAITING;
    if (s->p.whole || n >= gr_text_may_share(t))
        return false;
    for (int32_t i = 0; i < s->n_active; i++) {
        const struct gr_text *a = s->active[i];
        if (a->key.id == t->key.id && a->request.extend_n <= 1 && n < a->n_prompt &&
            gr_scheduler_n_done(s, a) <= n && a->token[n] == t->token[n] &&
            !memcmp(a->token, t->token, (size_t)n * sizeof *t->token))
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

/* Returns the oldest text of a line that waits neither for another one nor for the disk, of the
 * first few. */
static struct gr_text *first_of(const struct gr_scheduler *s, struct gr_text *line)
{
    int i = 0;
    for (struct gr_text *t = line; t && i < CANDIDATES; t = t->next) {
        if (t->deferred == s->round)
            continue;
        if (!follows(s, t))
            return t;
        i++;
    }
    return NULL;
}

/* Returns the request that begins next: by priority, then of the owner with the fewest, then the
 * oldest; NULL: none. */
static struct gr_text *choose(const struct gr_scheduler *s)
{
    struct gr_text *best = NULL;
    int32_t fewest = 0;
    for (struct gr_text *line = s->waiting; line; line = line->next_line) {
        if (best && line->request.priority < best->request.priority)
            break;
        int32_t n = n_of_owner(s, line->request.owner);
        struct gr_text *t = !best || n <= fewest ? first_of(s, line) : NULL;
        if (t && (!best || n < fewest || t->id < best->id))
            best = t, fewest = n;
    }
    return best;
}

/* Returns the number of cells that a request with n of them takes in time, and that those before it
 * may still take: a part of their answers. */
static uint32_t cells_wanted(const struct gr_scheduler *s, int32_t n)
{
    n += GROWTH;
    for (int32_t i = 0; i < s->n_active; i++)
        n += s->active[i]->n - gr_scheduler_n_done(s, s->active[i]) + GROWTH;
    return (uint32_t)n;
}

/* Returns whether so many cells can be made free beside the first n tokens of `from`. A request
 * that is alone begins in any case. */
static bool fits(const struct gr_scheduler *s, uint32_t wanted, int32_t from, int32_t n)
{
    return !s->n_active || gr_scheduler_n_free(s) >= wanted ||
           (uint32_t)gr_prefixes_held(&s->prefixes, from, n) + wanted <= s->n_cell;
}

/* Has the file read that has more of a text than the `length` tokens in the cache; a text waits for
 * it, and others pass, but not for what other texts are to begin from. Returns whether to begin
 * from what was read. */
static bool read_file(struct gr_scheduler *s, struct gr_text *t, int32_t length)
{
    int32_t file, may = gr_text_may_share(t), least = length + WORTH_RESTORING;
    bool soon;
    if (t->read && t->n_restored < least) /* it has been computed meanwhile */
        gr_disk_unread(s->disk, &t->read);
    if (t->read || !s->disk || t->tried || may < least || !fits(s, cells_wanted(s, t->n), -1, 0))
        return t->read;
    int32_t n = gr_disk_find(s->disk, t->key.id, t->token, may, &file);
    int32_t all = n < least ? 0 : gr_disk_length(s->disk, file);
    if (!all || (uint32_t)all > s->n_cell ||
        !fits(s, cells_wanted(s, all > t->n ? all : t->n), -1, 0))
        return false;
    t->read = gr_disk_read(s->disk, file, &soon);
    t->tried = t->read || !soon, t->n_restored = n, t->n_file = all;
    if (t->read || soon)
        t->deferred = s->round;
    return false;
}

/* Makes a text with a sequence one of those that run. */
static void start(struct gr_scheduler *s, struct gr_text *t)
{
    t->again = t->n_cached >= 0;
    if (!t->again)
        t->n_cached = gr_scheduler_n_done(s, t);
    gr_scheduler_plan_reuse(s, t);
    gr_scheduler_take(s, t);
    gr_scheduler_count(s, t, -1, 0);
    s->active[s->n_active++] = t;
    gr_scheduler_join_turn(s, t);
    t->n_past = gr_scheduler_n_done(s, t), t->merged = 0;
    int rc = gr_scheduler_can_extend(s, t);
    if (!rc)
        rc = gr_text_begin(t);
    if (rc)
        gr_text_end(t, GR_FINISH_FAILED, rc, gr_failure_text(rc));
    else if (!gr_text_is_computed(t))
        gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
}

/* Begins a request in the sequence of its conversation; false: not yet. */
static bool go_on(struct gr_scheduler *s, struct gr_text *t)
{
    int32_t seq = t->conversation->seq;
    uint32_t wanted = cells_wanted(s, t->n - s->prefixes.seq[seq].n);
    if (!fits(s, wanted, -1, 0))
        return false;
    gr_scheduler_make_room(s, wanted);
    t->seq = seq;
    gr_prefixes_set_key(&s->prefixes, seq, &t->key);
    start(s, t);
    return true;
}

/* Begins a request, or one that was preempted again; false, with nothing changed: not yet. */
static bool begin(struct gr_scheduler *s, struct gr_text *t)
{
    int32_t from, length;
    if (t->conversation && t->conversation->seq >= 0)
        return go_on(s, t);
    if (t->read && !gr_disk_is_read(t->read)) {
        t->deferred = s->round;
        return false;
    }
    length = find(s, t, &from);
    bool restores = read_file(s, t, length);
    if (t->deferred == s->round)
        return false;
    if (restores)
        from = -1, length = 0;
    int32_t n = restores && t->n_file > t->n ? t->n_file : t->n;
    uint32_t wanted = cells_wanted(s, n - length);
    if (!fits(s, wanted, from, length))
        return false;
    t->seq = gr_prefixes_take(&s->prefixes, &t->key, from, length);
    if (t->seq < 0)
        return false;
    if (t->request.extend_n > 1)
        gr_prefixes_hide(&s->prefixes, t->seq);
    gr_scheduler_make_room(s, wanted);
    if (restores)
        gr_prefixes_restore(&s->prefixes, t->seq, &t->read, t->token, t->n_restored, t->n_file);
    start(s, t);
    return true;
}

void gr_scheduler_admit(struct gr_scheduler *s)
{
    struct gr_text *t;
    int n_deferred = 0;
    if (s->full && s->n_active)
        return;
    s->round++;
    while (s->n_active < s->p.n_active && n_deferred < DEFERRED && (t = choose(s)) &&
           (begin(s, t) || t->deferred == s->round))
        n_deferred += t->deferred == s->round;
}

/* Returns whether `a` is stopped rather than `b`. */
static bool stops_first(const struct gr_text *a, const struct gr_text *b)
{
    return a->request.priority < b->request.priority ||
           (a->request.priority == b->request.priority && a->id > b->id);
}

void gr_scheduler_detach(struct gr_scheduler *s, const struct gr_text *t)
{
    for (int32_t k = 0; k < s->n_begun; k++) {
        struct gr_scheduler_step *step = &s->step[(s->oldest + k) % s->p.n_flight];
        for (int32_t i = 0; i < step->n; i++)
            step->of[i] = step->of[i] == t ? NULL : step->of[i];
    }
}

bool gr_scheduler_preempt(struct gr_scheduler *s)
{
    int32_t last = -1;
    for (int32_t i = 0; i < s->n_active; i++) {
        if (!s->active[i]->conversation && (last < 0 || stops_first(s->active[i], s->active[last])))
            last = i;
    }
    if (s->n_active < 2 || last < 0)
        return false;
    struct gr_text *t = s->active[last];
    gr_scheduler_detach(s, t);
    gr_prefixes_drop(&s->prefixes, t->seq);
    t->seq = -1, t->tried = false;
    memmove(s->active + last, s->active + last + 1,
            (size_t)(--s->n_active - last) * sizeof *s->active);
    gr_scheduler_put(s, t);
    gr_scheduler_count(s, t, 1, 1);
    return true;
}
