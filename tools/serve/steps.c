/* Steps: what each computes, and what comes of it. With layers divided among ranks several are in
 * flight, one behind the other in the stages. A text whose next token is not known yet has nothing
 * to compute, so that texts form groups by themselves; pieces of a prompt follow each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "scheduler_impl.h"

enum {
    OUTLIER = 4,       /* times of the mean that the time of a step counts at most */
    LEAST_PROMPT = 16, /* tokens of prompts in a step, however slow */
    LONGER = 5,        /* times of a step without prompts that one with them may take in any case */
    LOOK_AGAIN = 64,   /* steps with prompts and answers after which one has answers alone */
    PROMPT_ROWS = 128, /* rows of logits of a step, whose memory is not small, for prompts */
};

/* Returns the i-th of the steps that have begun, or the next one to begin. */
static struct gr_scheduler_step *step_at(const struct gr_scheduler *s, int32_t i)
{
    return &s->step[(s->oldest + i) % s->p.n_flight];
}

/* ---- beginning ---- */

static int32_t n_pending(const struct gr_scheduler *s, const struct gr_text *t)
{
    return t->n - gr_scheduler_n_done(s, t);
}

/* Adds the next n tokens of a text to the step, or some of them. */
static void add_tokens(struct gr_scheduler *s, struct gr_scheduler_step *step, struct gr_text *t,
                       int32_t n)
{
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

/* Returns whether the first token of a text is late. */
static bool any_is_late(const struct gr_scheduler *s)
{
    int64_t since = gr_serve_now() - s->p.first_ns;
    for (int32_t i = 0; i < s->n_active && s->p.first_ns; i++) {
        const struct gr_text *t = s->active[i];
        if (t->n == t->n_prompt && t->submitted < since && n_pending(s, t) > 1 &&
            gr_scheduler_has_turn(s, t))
            return true;
    }
    return false;
}

/* Returns the number of tokens of prompts in a step of n_plain others: as many as its time, a part
 * of step_ns, allows when texts are generated, in whole micro-batches, of which a small one takes
 * nearly the time of a whole one. Where a step without prompts is slow itself, the time grows with
 * it: prompts in small pieces would read all weights again and again. */
static int32_t prompt_budget(const struct gr_scheduler *s, int32_t n_plain, bool generates)
{
    int32_t most = s->p.n_step - n_plain;
    if (!generates || !s->p.step_ns || any_is_late(s))
        return most;
    if (s->plain_ns <= 0 || s->n_mixed >= LOOK_AGAIN)
        return 0; /* measures a step without prompts */
    double ns = (double)s->p.step_ns / s->p.n_flight;
    ns = ns > LONGER * s->plain_ns ? ns : LONGER * s->plain_ns;
    double n = s->token_ns > 0 ? (ns - s->plain_ns) / s->token_ns : most;
    if (n >= most)
        return most;
    int32_t all = n_plain + (int32_t)(n > LEAST_PROMPT ? n : LEAST_PROMPT);
    if (s->p.n_ubatch && all - all % s->p.n_ubatch >= n_plain + LEAST_PROMPT)
        all -= all % s->p.n_ubatch;
    return all - n_plain < most ? all - n_plain : most;
}

/* Returns the number of texts that are generated, their next token under way or not. */
static int32_t n_generating(const struct gr_scheduler *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_active; i++)
        n += gr_scheduler_has_turn(s, s->active[i]) &&
             (s->active[i]->n > s->active[i]->n_prompt || n_pending(s, s->active[i]) <= 1);
    return n;
}

/* Fills a step: the next token of each text that is generated, or of as many as give each step in
 * flight its part, then prompts, the oldest first, in at most n_cell cells. */
static void fill(struct gr_scheduler *s, struct gr_scheduler_step *step, int32_t n_cell)
{
    int32_t n_text = n_generating(s), most = (n_text + s->p.n_flight - 1) / s->p.n_flight;
    most = most < n_cell ? most : n_cell;
    for (int32_t i = 0; i < s->n_active && step->n < most; i++) {
        if (gr_scheduler_has_turn(s, s->active[i]) && n_pending(s, s->active[i]) == 1)
            add_tokens(s, step, s->active[i], 1);
    }
    int32_t n_plain = step->n, budget = prompt_budget(s, n_plain, n_text > 0);
    budget = budget < n_cell - n_plain ? budget : n_cell - n_plain;
    for (int32_t i = 0; i < s->n_active && step->n < n_plain + budget; i++) {
        int32_t n = n_pending(s, s->active[i]), left = n_plain + budget - step->n;
        if (gr_text_tells_prompt(s->active[i]) && left > n_plain + PROMPT_ROWS - step->n_row)
            left = n_plain + PROMPT_ROWS - step->n_row;
        if (n > 1 && left > 0 && gr_scheduler_has_turn(s, s->active[i]))
            add_tokens(s, step, s->active[i], n < left ? n : left);
    }
    step->n_prompt = step->n - n_plain;
    if (step->n) /* counted here: those in flight have what was decided before */
        s->n_mixed = step->n_prompt ? s->n_mixed + (n_plain > 0) : 0;
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

/* Returns whether a step has tokens of a sequence. */
static bool has_sequence(const struct gr_scheduler_step *step, int32_t seq)
{
    for (int32_t i = 0; i < step->n; i++) {
        if (step->seq[i] == seq)
            return true;
    }
    return false;
}

/* Ends the requests of a failed step, or those of the turn where it has no tokens yet. What the
 * sequences of the step hold is unknown then. Returns the status when the device, or a rank, is
 * lost, and 0 otherwise. */
static int end_failed(struct gr_scheduler *s, const struct gr_scheduler_step *step, int rc)
{
    char message[1024];
    if (rc == GR_E_DEVICE || rc == GR_E_PEER_LOST) {
        s->n_begun = 0; /* they do not end any more */
        return rc;
    }
    snprintf(message, sizeof message, "%s", gr_failure_text(rc));
    for (int32_t i = 0; i < s->n_active; i++) {
        struct gr_text *t = s->active[i];
        if (step->n ? has_sequence(step, t->seq) : gr_scheduler_has_turn(s, t))
            gr_text_end(t, GR_FINISH_FAILED, rc, message);
    }
    for (int32_t i = 0; i < s->p.n_seq; i++) {
        bool busy = s->prefixes.seq[i].busy;
        if (!has_sequence(step, i))
            continue;
        gr_prefixes_drop(&s->prefixes, i);
        s->prefixes.seq[i].busy = busy; /* until the sweep, or as long as the conversation */
    }
    return 0;
}

/* A step that has not begun: with a full cache fewer texts may fit. Returns as end_failed. */
static int fail(struct gr_scheduler *s, const struct gr_scheduler_step *step, int rc)
{
    s->full = rc == GR_E_KV_FULL;
    if (!s->full)
        return end_failed(s, step, rc);
    if (!gr_prefixes_evict(&s->prefixes, -1) && !gr_scheduler_preempt(s) && !s->n_begun)
        end_full(s);
    return 0;
}

/* A sample far above the mean, of a step with something rare, counts as a few times of it. */
static double mean(double old, double sample)
{
    if (sample > OUTLIER * old && old > 0)
        sample = OUTLIER * old;
    return old <= 0 ? sample : 0.8 * old + 0.2 * sample;
}

/* Takes note of a step that has ended. */
static void measure(struct gr_scheduler *s, const struct gr_scheduler_step *step)
{
    int64_t ns = gr_serve_now() - step->start;
    double compute = (double)step->compute;
    if (!step->n_prompt)
        s->plain_ns = mean(s->plain_ns, compute);
    else if (compute > s->plain_ns)
        s->token_ns = mean(s->token_ns, (compute - s->plain_ns) / step->n_prompt);
    enum gr_phase phase = !step->n_prompt             ? GR_PHASE_DECODE
                          : step->n_prompt == step->n ? GR_PHASE_PROMPT
                                                      : GR_PHASE_MIXED;
    pthread_mutex_lock(&s->lock);
    s->stats.n_step++, s->stats.step_ns += ns;
    gr_histogram_add(&s->stats.step_seconds[phase], gr_bound_seconds, (double)ns / 1e9);
    gr_histogram_add(&s->stats.step_tokens, gr_bound_tokens, step->n);
    s->stats.last.n_prompt = step->n_prompt;
    s->stats.last.n_answer = step->n - step->n_prompt;
    s->stats.last.ns = ns;
    pthread_mutex_unlock(&s->lock);
}

/* Has the first stage compute a step. Returns a status. */
static int decode(struct gr_scheduler *s, struct gr_scheduler_step *step)
{
    struct gr_batch batch = {.n_tok = step->n,
                             .token = step->token,
                             .pos = step->pos,
                             .seq = step->seq,
                             .logits = step->logits};
    int rc = 0;
    if (s->p.n_adapter) /* what was dropped for cells may have changed them */
        rc = gr_session_set_adapters(s->p.session, s->turn);
    int64_t start = gr_serve_now();
    if (!rc)
        rc = s->p.n_flight > 1 ? gr_decode_begin(s->p.session, &batch)
                               : gr_decode(s->p.session, &batch);
    step->compute = gr_serve_now() - start;
    return rc;
}

/* Returns whether a text has tokens that can be computed. */
static bool any_pending(const struct gr_scheduler *s)
{
    for (int32_t i = 0; i < s->n_active; i++) {
        if (n_pending(s, s->active[i]) > 0)
            return true;
    }
    return false;
}

/* Begins a step, and records its tokens, as all that follows finds them in the cache. *begun: it
 * has. Returns as end_failed. */
static int begin(struct gr_scheduler *s, bool *begun)
{
    struct gr_scheduler_step *step = step_at(s, s->n_begun);
    *begun = false;
    if (!any_pending(s))
        return 0;
    step->n = step->n_row = 0;
    step->start = gr_serve_now();
    int rc = gr_scheduler_take_turn(s);
    for (int32_t i = 0; i < s->n_active && !rc; i++) {
        if (gr_scheduler_has_turn(s, s->active[i]))
            gr_scheduler_reuse(s, s->active[i]);
    }
    if (!rc)
        fill(s, step, find_cells(s));
    if (!rc && !step->n) {
        if (any_has_turn(s) && !s->n_begun)
            end_full(s);
        return 0;
    }
    if (!rc)
        rc = decode(s, step);
    if (rc)
        return fail(s, step, rc);
    s->full = false;
    *begun = true;
    s->n_begun++;
    for (int32_t i = 0; i < step->n; i++) {
        gr_prefixes_add(&s->prefixes, step->seq[i], &step->token[i], 1);
        step->of[i]->n_past++;
    }
    return 0;
}

/* ---- ending ---- */

/* Picks the token that follows the i-th one of a step. */
static void pick(struct gr_scheduler *s, const struct gr_scheduler_step *step, int32_t i)
{
    struct gr_text *t = step->of[i];
    const float *logits = gr_logits(s->p.session, i);
    if (step->index[i] + 1 < t->n_prompt) {
        gr_text_prompt(t, s->n_vocab, logits);
        return;
    }
    if (t->n == t->n_prompt)
        gr_prefixes_keep(&s->prefixes, t->seq);
    gr_text_next(t, s->p.model, s->n_vocab, logits, s->p.n_ctx);
    gr_scheduler_shift(s, t);
    const char *why;
    if (t->conversation && !t->ended && !gr_scheduler_may_keep(s, t->request.owner, 1, &why))
        gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
}

/* Waits for the oldest step, and picks the tokens that follow. Returns as end_failed. */
static int end(struct gr_scheduler *s)
{
    const struct gr_scheduler_step *step = step_at(s, 0);
    int rc = s->p.n_flight > 1 ? gr_decode_end(s->p.session) : 0;
    for (int32_t i = 0; i < step->n && !rc; i++) {
        if (step->of[i] && step->logits[i] && !step->of[i]->ended)
            pick(s, step, i);
    }
    if (rc)
        rc = end_failed(s, step, rc);
    else
        measure(s, step);
    s->oldest = (s->oldest + 1) % s->p.n_flight;
    s->n_begun -= s->n_begun > 0;
    return rc;
}

int gr_scheduler_run_step(struct gr_scheduler *s)
{
    bool begun;
    int rc = begin(s, &begun);
    return s->n_begun && (!begun || s->n_begun == s->p.n_flight) ? end(s) : rc;
}

/* ---- memory ---- */

bool gr_scheduler_open_steps(struct gr_scheduler *s)
{
    size_t n = (size_t)s->p.n_step;
    bool all = true;
    s->p.n_flight = s->p.n_flight > 1 ? s->p.n_flight : 1;
    s->step = calloc((size_t)s->p.n_flight, sizeof *s->step);
    for (int32_t i = 0; s->step && i < s->p.n_flight; i++) {
        struct gr_scheduler_step *step = &s->step[i];
        step->token = malloc(n * sizeof *step->token);
        step->pos = malloc(n * sizeof *step->pos);
        step->seq = malloc(n * sizeof *step->seq);
        step->index = malloc(n * sizeof *step->index);
        step->logits = malloc(n);
        step->of = malloc(n * sizeof *step->of);
        all =
            all && step->token && step->pos && step->seq && step->index && step->logits && step->of;
    }
    return s->step && all;
}

void gr_scheduler_close_steps(struct gr_scheduler *s)
{
    for (; s->n_begun > 0; s->n_begun--)
        (void)gr_decode_end(s->p.session);
    for (int32_t i = 0; s->step && i < s->p.n_flight; i++) {
        free(s->step[i].token);
        free(s->step[i].pos);
        free(s->step[i].seq);
        free(s->step[i].index);
        free(s->step[i].logits);
        free(s->step[i].of);
    }
    free(s->step);
    s->step = NULL;
}
