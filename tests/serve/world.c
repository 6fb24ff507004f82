#include "world.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/tools/tiny.h"

struct gr_session *open_session(const struct world *w, uint32_t n_ctx, uint32_t n_seq)
{
    struct gr_session_params p = w->sp;
    struct gr_session *s;
    p.n_ctx = n_ctx, p.n_seq_max = n_seq;
    cr_assert_eq(gr_session_open(&s, w->model, &p), 0, "%s", gr_error_message());
    return s;
}

struct world load_world(const char *path, int32_t n_active, uint32_t n_cell)
{
    return load_ranks(path, n_active, n_cell, 1);
}

struct world load_ranks(const char *path, int32_t n_active, uint32_t n_cell, int32_t n_rank)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_size size;
    struct gr_model_info info;
    struct world w = {.sp = gr_session_params_default()};
    mp.cpu_level = "ref", mp.device = "none", mp.n_gpu_layers = 0, mp.n_rank = n_rank;
    cr_assert_eq(gr_model_open(&w.model, path, &mp), 0, "%s", gr_error_message());
    gr_model_info(w.model, &info);
    w.n_vocab = info.n_vocab;
    w.sp.n_ctx = n_cell;
    w.sp.n_threads = w.sp.n_threads_batch = 1, w.sp.n_batch = w.sp.n_ubatch = 512;
    cr_assert_eq(gr_session_size(w.model, &w.sp, &size), 0);
    w.p = (struct gr_scheduler_params){.model = w.model,
                                       .n_seq = 2 * n_active,
                                       .n_active = n_active,
                                       .n_ctx = MOST_TEXT,
                                       .n_step = 48,
                                       .n_queue = MOST_REQUEST,
                                       .whole = size.state > 0};
    return w;
}

void start_world(struct world *w)
{
    w->p.session = w->session = open_session(w, w->sp.n_ctx, (uint32_t)(w->p.n_seq + w->p.spare));
    cr_assert_eq(gr_scheduler_new(&w->scheduler, &w->p), 0);
}

struct world open_world(const char *path, int32_t n_active, uint32_t n_cell)
{
    struct world w = load_world(path, n_active, n_cell);
    start_world(&w);
    return w;
}

void close_world(struct world *w)
{
    gr_scheduler_free(&w->scheduler);
    gr_session_close(&w->session);
    gr_model_close(&w->model);
}

static const struct gr_logit_bias no_end = {TINY_EOS, -INFINITY};

struct gr_sampler *open_sampler(const struct world *w, uint64_t seed)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    struct gr_sampler *s;
    p.n_vocab = w->n_vocab, p.n_ctx = MOST_TEXT, p.seed = seed;
    p.temp = seed % 2 ? 0.9f : 0;
    p.penalty_repeat = seed % 3 ? 1 : 1.1f;
    if (seed == ENDLESS)
        p.logit_bias = &no_end, p.n_logit_bias = 1;
    cr_assert_eq(gr_sampler_new(&s, &p), 0);
    return s;
}

static int n_ended; /* results so far */

static void on_piece(const struct gr_piece *p, void *user)
{
    struct client *c = user;
    cr_assert_eq(c->n_result, 0);
    cr_assert_lt(strlen(c->text) + p->n, sizeof c->text);
    strncat(c->text, p->text, p->n);
    if (p->id < 0)
        return;
    c->logprob[c->n] = p->logprob;
    for (int i = 0; i < p->n_top && i < 3; i++)
        c->top[c->n][i] = p->top[i];
    c->token[c->n++] = p->id;
}

void on_prompt_piece(const struct gr_piece *p, void *user)
{
    struct client *c = user;
    cr_assert(!c->n && !c->n_result && !p->n);
    cr_assert_eq(p->id, c->prompt[c->n_told + 1]);
    c->prompt_logprob[c->n_told] = p->logprob;
    if (p->n_top)
        c->prompt_top[c->n_told] = p->top[0];
    c->n_told++;
}

static void on_result(const struct gr_result *r, void *user)
{
    struct client *c = user;
    c->result = *r;
    c->n_result++;
    c->order = n_ended++;
}

struct gr_request request_of(const struct world *w, struct client *c)
{
    return (struct gr_request){.prompt = c->prompt,
                               .n_prompt = c->n_prompt,
                               .n_predict = c->n_predict,
                               .sampler = open_sampler(w, c->seed),
                               .piece = on_piece,
                               .result = on_result,
                               .user = c};
}

void submit(const struct world *w, struct client *c)
{
    struct gr_request r = request_of(w, c);
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
}

void run(const struct world *w)
{
    while (gr_scheduler_step(w->scheduler))
        ;
}

void make_client(const struct world *w, struct client *c, struct gr_rng *rng, int32_t n)
{
    *c = (struct client){.n_prompt = n, .n_predict = 12, .seed = gr_rng_u32(rng)};
    for (int32_t i = 0; i < n; i++)
        c->prompt[i] = 3 + (int32_t)(gr_rng_below(rng, (uint32_t)(w->n_vocab - 3)));
}

void make_client_like(const struct world *w, struct client *client, int i, struct gr_rng *rng,
                      int32_t most)
{
    int32_t length = 1 + (int32_t)gr_rng_below(rng, (uint32_t)most);
    make_client(w, &client[i], rng, length);
    if (!i || !gr_rng_below(rng, 2))
        return;
    const struct client *other = &client[gr_rng_below(rng, (uint32_t)i)];
    int32_t same = (int32_t)gr_rng_below(rng, (uint32_t)(other->n_prompt + 1));
    same = same < length ? same : length;
    memcpy(client[i].prompt, other->prompt, (size_t)same * sizeof *other->prompt);
}

void check_alone(const struct world *w, const struct client *c, const char *what)
{
    struct gr_session *s = open_session(w, 512, 1);
    struct gr_sampler *sampler = open_sampler(w, c->seed);
    struct gr_detok *detok;
    char text[8 * MOST_TEXT] = "";
    const char *p;
    size_t n;
    int32_t id = -1, i = 0;
    struct gr_batch batch = {.n_tok = c->n_prompt, .token = c->prompt};
    cr_assert_eq(gr_detok_new(&detok, w->model, false), 0);
    for (int32_t k = 0; k < c->n_prompt; k++)
        cr_assert_eq(gr_sampler_accept(sampler, c->prompt[k]), 0);
    for (; i < c->n_predict && !(id >= 0 && gr_text_is_eog(w->model, id)); i++) {
        cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error_message());
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &id), 0);
        cr_assert_eq(gr_sampler_accept(sampler, id), 0);
        cr_expect(i < c->n && c->token[i] == id, "%s: token %d is %d, expected %d", what, i,
                  i < c->n ? c->token[i] : -1, id);
        if (!gr_text_is_eog(w->model, id) && !gr_detok_push(detok, id, &p, &n))
            strncat(text, p, n);
        batch = (struct gr_batch){.n_tok = 1, .token = &id};
    }
    if (!gr_detok_flush(detok, &p, &n))
        strncat(text, p, n);
    cr_expect_eq(c->n, i, "%s: %d tokens, expected %d", what, c->n, i);
    cr_expect_str_eq(c->text, text, "%s", what);
    cr_expect_eq(c->n_result, 1, "%s: %d results", what, c->n_result);
    cr_expect_eq(c->result.n_prompt, c->n_prompt);
    cr_expect_eq(c->result.n_generated, i);
    cr_expect_eq(c->result.end, gr_text_is_eog(w->model, id) ? GR_FINISH_TOKEN : GR_FINISH_LENGTH);
    gr_detok_free(&detok);
    gr_sampler_free(&sampler);
    gr_session_close(&s);
}

/* ---- steps that fail ---- */

struct planted planted;

int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int __real_gr_decode(struct gr_session *s, const struct gr_batch *batch);
int __wrap_gr_decode(struct gr_session *s, const struct gr_batch *batch);
int __real_gr_decode_begin(struct gr_session *s, const struct gr_batch *batch);
int __wrap_gr_decode_begin(struct gr_session *s, const struct gr_batch *batch);
int __real_gr_decode_end(struct gr_session *s);
int __wrap_gr_decode_end(struct gr_session *s);

static int decode(int (*fn)(struct gr_session *s, const struct gr_batch *batch),
                  struct gr_session *s, const struct gr_batch *batch)
{
    int64_t start = thread_ns();
    planted.n_call++;
    if (planted.status && !planted.at_end && planted.left-- > 0)
        return planted.status;
    int rc = fn(s, batch);
    planted.ns += thread_ns() - start;
    return rc;
}

int __wrap_gr_decode(struct gr_session *s, const struct gr_batch *batch)
{
    return decode(__real_gr_decode, s, batch);
}

int __wrap_gr_decode_begin(struct gr_session *s, const struct gr_batch *batch)
{
    return decode(__real_gr_decode_begin, s, batch);
}

int __wrap_gr_decode_end(struct gr_session *s)
{
    int rc = __real_gr_decode_end(s);
    return planted.status && planted.at_end && planted.left-- > 0 ? planted.status : rc;
}
