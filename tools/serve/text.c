/* The text of a request. */
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpurun.h"

int64_t gr_serve_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int gr_text_new(struct gr_text **out, const struct gr_model *model, const struct gr_request *r)
{
    struct gr_text *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return GR_E_NOMEM_HOST;
    t->capacity = r->n_prompt + 16;
    t->token = malloc((size_t)t->capacity * sizeof *t->token);
    int rc = t->token ? gr_detok_new(&t->detok, model, r->special) : GR_E_NOMEM_HOST;
    if (rc) {
        gr_text_free(&t);
        return rc;
    }
    t->request = *r;
    memcpy(t->token, r->prompt, (size_t)r->n_prompt * sizeof *t->token);
    t->request.prompt = NULL;
    t->n = t->n_prompt = r->n_prompt;
    t->seq = -1, t->n_cached = -1;
    t->told = r->prompt_piece ? 1 : r->n_prompt;
    t->submitted = gr_serve_now();
    *out = t;
    return 0;
}

void gr_text_free(struct gr_text **t)
{
    if (!*t)
        return;
    gr_sampler_free(&(*t)->request.sampler);
    gr_grammar_state_free(&(*t)->request.grammar);
    gr_stop_free(&(*t)->request.stop);
    gr_detok_free(&(*t)->detok);
    free((*t)->token);
    free((*t)->chunk);
    free(*t);
    *t = NULL;
}

int gr_text_follow(struct gr_text *t, const int32_t *token, int32_t n)
{
    int32_t capacity = t->capacity + n;
    int32_t *all = realloc(t->token, (size_t)capacity * sizeof *all);
    if (!all)
        return GR_E_NOMEM_HOST;
    memmove(all + n, all, (size_t)t->n * sizeof *all);
    memcpy(all, token, (size_t)n * sizeof *all);
    t->token = all, t->capacity = capacity;
    t->n += n, t->n_prompt += n, t->told += n;
    return 0;
}

const char *gr_failure_text(int status)
{
    return gr_error_status() == status ? gr_error_message() : gr_status_text(status);
}

int gr_text_begin(struct gr_text *t)
{
    struct gr_sampler *s = t->request.sampler;
    int rc = 0;
    if (t->begun)
        return 0;
    t->begun = true;
    t->started = gr_serve_now();
    for (int32_t i = 0; i < t->n && !rc; i++)
        rc = gr_sampler_accept(s, t->token[i]);
    return rc ? rc : gr_sampler_set_grammar(s, t->request.grammar);
}

bool gr_text_tells_prompt(const struct gr_text *t)
{
    return t->told < t->n_prompt;
}

int32_t gr_text_may_share(const struct gr_text *t)
{
    if (t->request.extend_n > 1)
        return 0;
    return gr_text_tells_prompt(t) ? t->told - 1 : t->n - 1;
}

void gr_text_cut(struct gr_text *t, int32_t lo, int32_t n)
{
    memmove(t->token + lo, t->token + lo + n, (size_t)(t->n - lo - n) * sizeof *t->token);
    t->n -= n, t->n_prompt -= n, t->n_shifted += n;
    t->told = t->n_prompt;
    t->request.reuse = 0; /* parts of the prompt stand elsewhere now */
}

bool gr_text_wants(const struct gr_text *t, int32_t i)
{
    return i + 1 == t->n || (i + 1 >= t->told && i + 1 < t->n_prompt);
}

bool gr_text_is_computed(const struct gr_text *t)
{
    return t->request.n_predict != 0 || gr_text_tells_prompt(t) || t->conversation;
}

/* ---- probabilities ---- */

/* Logarithm of the sum of exp(logit). */
static double log_sum(const float *logits, int32_t n)
{
    int32_t best = 0;
    double others = 0; /* over the largest */
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    for (int32_t i = 0; i < n; i++)
        others += i == best ? 0 : exp((double)logits[i] - (double)logits[best]);
    return (double)logits[best] + log1p(others);
}

/* The n most likely tokens, the best first, of equal ones the lowest id. */
static void likely(const float *logits, int32_t n_vocab, struct gr_prob *top, int32_t n)
{
    int32_t have = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        int32_t at = have;
        while (at > 0 && logits[id] > top[at - 1].logprob)
            at--;
        if (at == n)
            continue;
        have += have < n;
        memmove(top + at + 1, top + at, (size_t)(have - at - 1) * sizeof *top);
        top[at] = (struct gr_prob){id, logits[id]};
    }
}

/* Fills in the probabilities of a piece; top [GR_MAX_PROBS]. */
static void add_probs(struct gr_piece *p, struct gr_prob *top, int32_t n, const float *logits,
                      int32_t n_vocab)
{
    double sum = log_sum(logits, n_vocab);
    n = n < n_vocab ? n : n_vocab;
    likely(logits, n_vocab, top, n);
    for (int32_t i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - sum);
    p->logprob = (float)((double)logits[p->id] - sum);
    p->top = top, p->n_top = n;
}

/* ---- tokens ---- */

static int append(struct gr_text *t, int32_t id)
{
    if (t->n == t->capacity) {
        size_t capacity = 2 * (size_t)t->capacity;
        int32_t *token = capacity <= INT32_MAX ? realloc(t->token, capacity * sizeof *token) : NULL;
        if (!token)
            return GR_E_NOMEM_HOST;
        t->token = token, t->capacity = (int32_t)capacity;
    }
    t->token[t->n++] = id;
    return 0;
}

/* Passes text on, through the stop strings. Returns the one that was found, -1: none. */
static int32_t put(struct gr_text *t, struct gr_piece *piece, const char *p, size_t n, int *rc)
{
    int32_t found = -1;
    piece->text = p, piece->n = n;
    if (t->request.stop)
        *rc = gr_stop_push(t->request.stop, p, n, &piece->text, &piece->n, &found);
    if (!*rc && t->request.piece && (piece->n || piece->id >= 0))
        t->request.piece(piece, t->request.user);
    return found;
}

/* Passes on what is held back: bytes of an incomplete character, the beginning of a stop string. */
static void flush(struct gr_text *t)
{
    struct gr_piece piece = {.id = -1};
    const char *p;
    size_t n;
    int rc = gr_detok_flush(t->detok, &p, &n);
    if (!rc && n)
        put(t, &piece, p, n, &rc);
    if (!t->request.stop)
        return;
    gr_stop_flush(t->request.stop, &piece.text, &piece.n);
    if (piece.n && t->request.piece)
        t->request.piece(&piece, t->request.user);
}

static void finish(struct gr_text *t, struct gr_result *r)
{
    int64_t now = gr_serve_now();
    int64_t started = t->begun ? t->started : now, first = t->first ? t->first : now;
    if (t->ended)
        return;
    t->ended = true, t->end = r->end, t->status = r->status;
    if (r->end != GR_FINISH_STRING)
        flush(t);
    r->n_prompt = t->n_prompt + t->n_shifted;
    r->n_shifted = t->n_shifted;
    r->n_cached = t->n_cached < 0 ? 0 : t->n_cached;
    r->n_generated = t->n - t->n_prompt;
    r->n_conversation = t->conversation && t->seq >= 0 ? t->n : -1;
    r->queue_ns = started - t->submitted;
    r->prompt_ns = first - started;
    r->generate_ns = now - first;
    if (t->request.result)
        t->request.result(r, t->request.user);
}

void gr_text_end(struct gr_text *t, enum gr_finish end, int status, const char *message)
{
    finish(t, &(struct gr_result){.end = end, .stop = -1, .status = status, .message = message});
}

int64_t gr_text_deadline(const struct gr_text *t)
{
    bool none = t->ended || !t->request.most_ns || t->request.most_ns > INT64_MAX - t->submitted;
    return none ? INT64_MAX : t->submitted + t->request.most_ns;
}

bool gr_text_end_late(struct gr_text *t, int64_t now)
{
    if (now < gr_text_deadline(t))
        return false;
    if (t->n > t->n_prompt)
        gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
    else
        gr_text_end(t, GR_FINISH_FAILED, GR_E_CANCELLED,
                    "the time for a request was over before its answer began");
    return true;
}

/* Returns whether an answer has taken as long as it may. */
static bool takes_long(struct gr_text *t, const char *p, size_t n)
{
    t->lines |= n && memchr(p, '\n', n);
    return t->request.predict_ns && t->lines && gr_serve_now() - t->first > t->request.predict_ns;
}

/* Returns the status of a failure to pick a token: where the logits are numbers, it is the request
 * that leaves no token, or whose grammar takes too much. */
static int pick_status(int rc, const float *logits, int32_t n_vocab)
{
    bool some = false;
    for (int32_t i = 0; rc && i < n_vocab; i++) {
        if (!(logits[i] < INFINITY))
            return rc;
        some |= isfinite(logits[i]);
    }
    return rc == GR_E_TOO_LARGE || (rc == GR_E_CHECK && some) ? GR_E_INVALID : rc;
}

void gr_text_next(struct gr_text *t, const struct gr_model *model, int32_t n_vocab,
                  const float *logits, int32_t n_ctx)
{
    struct gr_prob top[GR_MAX_PROBS];
    struct gr_piece piece = {0};
    const char *p = "";
    size_t n = 0;
    if (t->request.n_predict == 0) {
        gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
        return;
    }
    int picked = gr_sampler_pick(t->request.sampler, logits, &piece.id);
    int rc = pick_status(picked, logits, n_vocab);
    if (!rc)
        rc = gr_sampler_accept(t->request.sampler, piece.id);
    if (!rc)
        rc = append(t, piece.id);
    bool last = !rc && gr_text_is_eog(model, piece.id);
    if (!rc && !last)
        rc = gr_detok_push(t->detok, piece.id, &p, &n);
    if (rc) {
        gr_text_end(t, GR_FINISH_FAILED, rc, gr_failure_text(picked ? picked : rc));
        return;
    }
    if (!t->first)
        t->first = gr_serve_now();
    if (t->request.n_probs)
        add_probs(&piece, top, t->request.n_probs, logits, n_vocab);
    int32_t stop = put(t, &piece, p, n, &rc);
    bool full = (t->n >= n_ctx && !t->request.shift.on) || takes_long(t, p, n) ||
                (t->request.n_predict >= 0 && t->n - t->n_prompt >= t->request.n_predict);
    if (rc)
        gr_text_end(t, GR_FINISH_FAILED, rc, gr_failure_text(rc));
    else if (stop >= 0)
        finish(t, &(struct gr_result){.end = GR_FINISH_STRING, .stop = stop});
    else if (last || full)
        gr_text_end(t, last ? GR_FINISH_TOKEN : GR_FINISH_LENGTH, 0, NULL);
}

void gr_text_prompt(struct gr_text *t, int32_t n_vocab, const float *logits)
{
    struct gr_prob top[GR_MAX_PROBS];
    struct gr_piece piece = {.id = t->token[t->told++], .text = ""};
    add_probs(&piece, top, t->request.n_probs, logits, n_vocab);
    if (isnan(piece.logprob)) {
        gr_text_end(t, GR_FINISH_FAILED, GR_E_CHECK, "the logits of the prompt are not numbers");
        return;
    }
    t->request.prompt_piece(&piece, t->request.user);
    if (!gr_text_is_computed(t))
        gr_text_end(t, GR_FINISH_LENGTH, 0, NULL);
}
