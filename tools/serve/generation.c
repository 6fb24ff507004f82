/* A request for texts. */
#include "generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "gpurun.h"
#include "sessions.h"
#include "text.h"
#include "tools/cli/flags.h"

/* ---- begin and end ---- */

static void free_choice(struct gr_choice *c)
{
    gr_writer_free(&c->text);
    gr_writer_free(&c->reasoning);
    gr_writer_free(&c->calls);
    for (int i = 0; i < GR_N_LISTS; i++)
        gr_writer_free(&c->list[i]);
}

static void free_generation(struct gr_generation *g)
{
    if (g->form->free_own)
        g->form->free_own(g);
    for (int32_t i = 0; i < g->n_choice; i++)
        free_choice(&g->choice[i]);
    free(g->choice);
    for (int32_t i = 0; i < g->n_prompt; i++)
        free(g->prompt[i]);
    free((void *)g->prompt);
    free(g->n_ids);
    gr_writer_free(&g->out);
    gr_ask_drop(&g->ask);
    json_decref(g->request);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void make_id(struct gr_generation *g)
{
    unsigned char random[12] = {0};
    char *at = g->id + snprintf(g->id, sizeof g->id, "%s", g->form->prefix);
    (void)!getrandom(random, sizeof random, 0);
    for (size_t i = 0; i < sizeof random; i++)
        at += snprintf(at, 3, "%02x", random[i]);
    g->created = time(NULL);
}

struct gr_generation *gr_generation_new(struct gr_exchange *x, struct gr_server *server,
                                        const struct gr_form *form, json_t *request,
                                        struct gr_fields *f)
{
    struct gr_generation *g = server->scheduler ? calloc(1, sizeof *g) : NULL;
    if (!g) {
        json_decref(request);
        gr_refuse(x, server->scheduler ? 503 : 501, NULL,
                  server->scheduler ? "out of memory"
                                    : "the model generates no texts: it gives vectors "
                                      "(/v1/embeddings) or ranks texts (/v1/rerank)");
        return NULL;
    }
    pthread_mutex_init(&g->lock, NULL);
    g->form = form, g->server = server, g->x = x, g->request = request;
    make_id(g);
    gr_ask_read(&g->ask, f, server);
    g->model = gr_ask_model(f, server);
    return g;
}

/* Makes room for one more prompt. */
static bool grow(struct gr_generation *g)
{
    size_t n = (size_t)g->n_prompt + 1;
    void *prompt = realloc((void *)g->prompt, n * sizeof *g->prompt);
    if (prompt)
        g->prompt = prompt;
    void *n_ids = realloc(g->n_ids, n * sizeof *g->n_ids);
    if (n_ids)
        g->n_ids = n_ids;
    return prompt && n_ids;
}

struct gr_generation *gr_generation_follow(struct gr_generation *g)
{
    if (gr_chat_session_take(g->x, g->server, g->request, &g->session))
        return g;
    free_generation(g);
    return NULL;
}

void gr_generation_add(struct gr_generation *g, struct gr_fields *f, const int32_t *ids, size_t n)
{
    int32_t *copy = malloc((n + 1) * sizeof *copy);
    if (!copy || !grow(g)) {
        gr_field_wrong(f, "", "out of memory");
        free(copy);
        return;
    }
    if (!n)
        gr_field_wrong(f, "prompt", "the prompt is empty");
    size_t all = n + (g->session ? (size_t)gr_chat_session_length(g->session) : 0);
    if (all >= (size_t)g->server->n_ctx && !f->wrong) {
        f->code = "context_length_exceeded";
        gr_field_wrong(f, "prompt", "the prompt has %zu tokens%s; with its answer it may have %d",
                       all, g->session ? ", with those of the session" : "", g->server->n_ctx);
    }
    if (n)
        memcpy(copy, ids, n * sizeof *copy);
    g->prompt[g->n_prompt] = copy, g->n_ids[g->n_prompt++] = n;
}

/* ---- what the scheduler says, in its thread ---- */

/* Gives the session back before the client knows that it may have it. n: as of
 * gr_chat_session_return. */
static void leave_session(struct gr_generation *g, int32_t n)
{
    if (g->session)
        gr_chat_session_return(&g->session, n);
}

static void cancel_all(struct gr_generation *g)
{
    for (int32_t i = 0; i < g->n_choice; i++) {
        uint64_t id = g->choice[i].id;
        if (id)
            gr_scheduler_cancel(g->server->scheduler, id);
    }
}

/* Keeps the first failure, and ends the other texts. */
static void set_failed(struct gr_generation *g, int status, const char *message)
{
    if (g->status)
        return;
    g->status = status;
    snprintf(g->message, sizeof g->message, "%s", message ? message : gr_status_text(status));
    cancel_all(g);
}

/* Sends what was written. */
static void send_out(struct gr_generation *g)
{
    if (g->out.failed)
        set_failed(g, GR_E_NOMEM_HOST, NULL);
    else if (g->out.n && !g->gone)
        gr_exchange_write(g->x, g->out.p, g->out.n);
    g->out.n = 0;
}

static bool goes_on(const struct gr_generation *g)
{
    return !g->gone && !g->status;
}

/* Counts what a text has that was not sent, and ends the request when it is too much. */
static void count_bytes(struct gr_choice *c)
{
    struct gr_generation *g = c->g;
    size_t n = c->text.n + c->reasoning.n + c->calls.n;
    long long most = g->server->options->max_answer;
    char why[256];
    for (int i = 0; i < GR_N_LISTS; i++)
        n += c->list[i].n;
    g->n_byte += n - c->n_byte;
    c->n_byte = n;
    if (g->n_byte <= (size_t)most)
        return;
    snprintf(why, sizeof why,
             "the answer has more than %lld bytes (--max-answer): ask for fewer texts, tokens or "
             "probabilities, or for a stream",
             most);
    set_failed(g, GR_E_INVALID, why);
}

static void emit(struct gr_choice *c)
{
    struct gr_generation *g = c->g;
    if (c->text.failed || c->reasoning.failed || c->calls.failed)
        set_failed(g, GR_E_NOMEM_HOST, NULL);
    if (g->ask.stream && !g->status && g->form->emit)
        g->form->emit(c);
    count_bytes(c);
    if (g->ask.stream && !g->status)
        send_out(g);
}

static void on_piece(const struct gr_piece *piece, void *user)
{
    struct gr_choice *c = user;
    pthread_mutex_lock(&c->g->lock);
    if (goes_on(c->g)) {
        c->g->form->piece(c, piece);
        emit(c);
    }
    pthread_mutex_unlock(&c->g->lock);
}

static void on_prompt_piece(const struct gr_piece *piece, void *user)
{
    struct gr_choice *c = user;
    pthread_mutex_lock(&c->g->lock);
    if (goes_on(c->g)) {
        c->g->form->prompt(c, piece);
        count_bytes(c);
    }
    pthread_mutex_unlock(&c->g->lock);
}

int gr_http_status(int status)
{
    switch (status) {
    case GR_E_DEVICE:
    case GR_E_PEER_LOST:
    case GR_E_CANCELLED:
    case GR_E_NOMEM_HOST:
    case GR_E_NOMEM_DEV:
    case GR_E_KV_FULL:
        return 503;
    case GR_E_TOO_LARGE:
        return 429;
    case GR_E_INVALID:
    case GR_E_UNSUPPORTED:
        return 400;
    default:
        return 500;
    }
}

/* Ends the exchange when all texts have ended. */
static void finish(struct gr_generation *g)
{
    bool begun = g->ask.stream && g->choice[0].id;
    leave_session(g, -1);
    if (!g->gone && !g->status)
        g->form->finish(g);
    if (g->out.failed) {
        gr_writer_free(&g->out);
        set_failed(g, GR_E_NOMEM_HOST, NULL);
    }
    if (!g->gone && g->status && begun)
        g->form->fail(g, g->message);
    if (g->gone || begun) {
        send_out(g);
        gr_exchange_end(g->x);
    } else if (g->status) {
        gr_refuse(g->x, gr_http_status(g->status), NULL, "%s", g->message);
    } else {
        gr_exchange_answer(g->x, 200, "application/json", g->out.p, g->out.n);
        g->out = (struct gr_writer){0};
    }
    free_generation(g);
}

static void on_result(const struct gr_result *result, void *user)
{
    struct gr_choice *c = user;
    struct gr_generation *g = c->g;
    pthread_mutex_lock(&g->lock);
    leave_session(g, result->n_conversation);
    c->result = *result, c->ended = true;
    c->result.message = NULL;
    gr_metrics_count(g->server, result);
    if (result->end == GR_FINISH_FAILED)
        set_failed(g, result->status, result->message);
    else if (result->end == GR_FINISH_CANCELLED && !g->gone)
        set_failed(g, GR_E_CANCELLED, "the server is shutting down");
    if (goes_on(g)) {
        if (g->form->end)
            g->form->end(c);
        emit(c);
    }
    bool last = !--g->n_left;
    pthread_mutex_unlock(&g->lock);
    if (last)
        finish(g);
}

/* The client has gone: in any thread. */
static void on_gone(void *user)
{
    struct gr_generation *g = user;
    g->gone = true;
    cancel_all(g);
}

/* ---- start ---- */

/* Makes the choices, once the prompts are there. */
static void make_choices(struct gr_generation *g, struct gr_fields *f)
{
    int32_t n = g->n_prompt * g->ask.n;
    if (n > GR_ASK_TEXTS)
        gr_field_wrong(f, "n", "%d texts are asked for, and a request may have %d", n,
                       GR_ASK_TEXTS);
    g->choice = f->wrong || !n ? NULL : calloc((size_t)n, sizeof *g->choice);
    if (!g->choice) {
        gr_field_wrong(f, "", "out of memory");
        return;
    }
    g->n_choice = g->n_left = n;
    for (int32_t i = 0; i < n; i++)
        g->choice[i].g = g, g->choice[i].index = i, g->choice[i].prompt = i / g->ask.n;
}

/* Refuses what a request that continues a session's text cannot have. */
static void check_session(const struct gr_generation *g, struct gr_fields *f)
{
    if (!g->session && gr_field(f, "session"))
        gr_field_wrong(f, "session", "session: of /v1/completions and /completion alone");
    else if (!g->session)
        return;
    else if (g->n_choice != 1)
        gr_field_wrong(f, g->n_prompt > 1 ? "prompt" : "n",
                       "a session has one text at a time: fork it for more");
    else if (g->prompt_probs)
        gr_field_wrong(f, "echo", "echo: the probabilities of a session's prompts are not kept");
    else if (g->ask.extend_n > 1)
        gr_field_wrong(f, "self_extend", "self_extend: not in a session, whose cells stay");
    else if (g->ask.shifts)
        gr_field_wrong(f, "context_shift", "context_shift: not in a session, which is cut instead");
}

static void free_request(struct gr_request *r)
{
    gr_sampler_free(&r->sampler);
    gr_grammar_state_free(&r->grammar);
    gr_stop_free(&r->stop);
}

/* Makes what a text needs. Returns a status. */
static int make_request(struct gr_choice *c, struct gr_request *r)
{
    struct gr_generation *g = c->g;
    struct gr_ask *a = &g->ask;
    uint64_t seed = a->seed + (uint64_t)(c->index % a->n);
    int32_t n_prompt = (int32_t)g->n_ids[c->prompt], bos = gr_text_bos(g->server->model);
    int32_t keep = a->keep < 0 ? n_prompt : a->keep + (n_prompt && g->prompt[c->prompt][0] == bos);
    *r = (struct gr_request){.prompt = g->prompt[c->prompt],
                             .n_prompt = n_prompt,
                             .n_predict = a->n_predict,
                             .extend_n = a->extend_n,
                             .extend_w = a->extend_w,
                             .shift = {a->shifts, keep, a->discard},
                             .reuse = a->reuse,
                             .slot = a->slot,
                             .adapters = a->adapters,
                             .special = g->special,
                             .n_probs = a->n_top < 0   ? 0
                                        : a->n_top > 1 ? a->n_top
                                                       : 1,
                             .most_ns = g->server->options->request_timeout * INT64_C(1000000000),
                             .predict_ns = a->predict_ms * 1000000,
                             .owner = gr_exchange_owner(g->x),
                             .conversation =
                                 g->session ? gr_chat_session_conversation(g->session) : 0,
                             .prompt_piece = g->prompt_probs ? on_prompt_piece : NULL,
                             .piece = on_piece,
                             .result = on_result,
                             .user = c};
    int rc = gr_sampler_new_like(&r->sampler, a->like, seed);
    if (!rc && a->grammar)
        rc = gr_grammar_state_new(&r->grammar, a->grammar);
    if (!rc && a->n_stop)
        rc = gr_stop_new(&r->stop, a->stop, a->stop_bytes, a->n_stop);
    if (rc)
        free_request(r);
    return rc;
}

/* Makes the requests of all texts; NULL after a failure. */
static struct gr_request *make_requests(struct gr_generation *g, int *rc)
{
    struct gr_request *r = calloc((size_t)g->n_choice, sizeof *r);
    int32_t n = 0;
    *rc = r ? 0 : GR_E_NOMEM_HOST;
    while (!*rc && n < g->n_choice && !(*rc = make_request(&g->choice[n], &r[n])))
        n++;
    gr_sampler_free(&g->ask.like); /* as large as that of a text */
    if (!*rc)
        return r;
    while (n > 0)
        free_request(&r[--n]);
    free(r);
    return NULL;
}

/* Hands a request over. */
static int submit(struct gr_choice *c, struct gr_request *r)
{
    struct gr_generation *g = c->g;
    uint64_t id;
    int rc = gr_scheduler_submit(g->server->scheduler, r, &id);
    if (rc)
        return rc;
    c->id = id;
    if (g->gone) /* on_gone may not have seen the id */
        gr_scheduler_cancel(g->server->scheduler, id);
    return 0;
}

const char *gr_submit_message(int status)
{
    return status == GR_E_TOO_LARGE   ? "too many requests wait: try again later"
           : status == GR_E_CANCELLED ? "the server is shutting down"
           : status == GR_E_NOMEM_HOST || status == GR_E_DEVICE || status == GR_E_PEER_LOST
               ? NULL
               : gr_failure_text(status);
}

static void begin(struct gr_generation *g)
{
    if (g->ask.stream)
        gr_exchange_stream(g->x, g->form->type, g->form->ping);
    if (g->form->begin)
        g->form->begin(g);
    if (g->ask.stream)
        send_out(g);
}

void gr_generation_start(struct gr_generation *g, struct gr_fields *f)
{
    if (!f->wrong)
        make_choices(g, f);
    if (!f->wrong)
        check_session(g, f);
    if (!f->wrong && g->form->prepare)
        g->form->prepare(g, f);
    if (f->wrong)
        leave_session(g, -1);
    if (gr_fields_refuse(f, g->x)) {
        free_generation(g);
        return;
    }
    int rc;
    gr_sessions_expire(g->server);
    struct gr_request *request = make_requests(g, &rc); /* others go on meanwhile */
    gr_exchange_keep(g->x, on_gone, g);
    pthread_mutex_lock(&g->lock);
    int32_t i = 0;
    while (!rc && i < g->n_choice && !(rc = submit(&g->choice[i], &request[i])))
        i++;
    for (int32_t k = i; request && k < g->n_choice; k++)
        free_request(&request[k]);
    if (rc) { /* those that were submitted end as cancelled */
        g->ask.stream = false;
        g->n_left = i;
        set_failed(g, rc, gr_submit_message(rc));
    } else {
        begin(g);
    }
    bool last = !g->n_left;
    pthread_mutex_unlock(&g->lock);
    free(request);
    if (last)
        finish(g);
}

/* ---- parts of answers ---- */

const char *gr_finish_name(const struct gr_choice *c)
{
    return c->result.end == GR_FINISH_LENGTH ? "length" : "stop";
}

/* Sums over all texts; prompts count once each. */
struct sums {
    int64_t n_prompt, n_cached, n_generated;
    double prompt_ms, generate_ms; /* the longest */
};

static struct sums sum_up(const struct gr_generation *g)
{
    struct sums s = {0};
    for (int32_t i = 0; i < g->n_choice; i++) {
        const struct gr_result *r = &g->choice[i].result;
        double prompt = (double)r->prompt_ns / 1e6, generate = (double)r->generate_ns / 1e6;
        if (i % g->ask.n == 0)
            s.n_prompt += r->n_prompt, s.n_cached += r->n_cached;
        s.n_generated += r->n_generated;
        s.prompt_ms = prompt > s.prompt_ms ? prompt : s.prompt_ms;
        s.generate_ms = generate > s.generate_ms ? generate : s.generate_ms;
    }
    return s;
}

void gr_write_usage(struct gr_writer *w, const struct gr_generation *g)
{
    struct sums s = sum_up(g);
    gr_writef(w,
              "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
              "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
              (long long)s.n_prompt, (long long)s.n_generated,
              (long long)(s.n_prompt + s.n_generated), (long long)s.n_cached);
}

static double per_second(double n, double ms)
{
    return ms > 0 ? n / ms * 1e3 : 0;
}

void gr_write_timings(struct gr_writer *w, const struct gr_generation *g)
{
    struct sums s = sum_up(g);
    double n = (double)(s.n_prompt - s.n_cached), m = (double)s.n_generated;
    double behind = m > g->n_choice ? m - g->n_choice : 0; /* the first tokens end the prompts */
    gr_writef(w,
              "{\"cache_n\":%lld,\"prompt_n\":%.0f,\"prompt_ms\":%.3f,\"prompt_per_second\":%.2f,"
              "\"predicted_n\":%.0f,\"predicted_ms\":%.3f,\"predicted_per_second\":%.2f}",
              (long long)s.n_cached, n, s.prompt_ms, per_second(n, s.prompt_ms), m, s.generate_ms,
              per_second(behind, s.generate_ms));
}

void gr_write_head(struct gr_writer *w, const struct gr_generation *g)
{
    gr_writef(w, "\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id,
              g->form->object, (long long)g->created);
    gr_write_string(w, g->model, strlen(g->model));
    gr_writef(w, ",\"system_fingerprint\":\"gpurun-%s\",", gr_version());
}

void gr_write_failure(struct gr_generation *g, const char *message)
{
    gr_writef(&g->out, "data: {\"error\":{\"message\":");
    gr_write_string(&g->out, message, strlen(message));
    gr_writef(&g->out, ",\"type\":\"server_error\",\"param\":null,\"code\":%d}}\n\n",
              gr_http_status(g->status));
}
