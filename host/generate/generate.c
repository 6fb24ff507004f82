/* Text from a prompt, through the public API alone. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gpurun.h"

struct generation {
    struct gr_session *s;
    int32_t seq;
    const struct gr_model *model;
    struct gr_model_info info;
    const struct gr_generate_params *p;
    struct gr_generated *r;
    struct gr_sampler *sampler;
    struct gr_text_stream *stream;
    int32_t n_batch;
    int32_t *seqs;  /* [n_batch or more] `seq` */
    int8_t *wanted; /* [n_batch] zeros, but for the end of a prompt */
    bool drawn;     /* a GPU has drawn the token after the last batch */
    bool ended;
    bool silent; /* the callback wants no more */
    int64_t begin;
};

struct gr_generate_params gr_generate_params_default(void)
{
    return (struct gr_generate_params){.n_predict = -1};
}

/* ---- preparation ---- */

static int check(const struct generation *g, size_t n)
{
    if (!n || n > INT32_MAX)
        return gr_fail(GR_E_INVALID, "a prompt of %zu tokens, 1 to %d are expected", n, INT32_MAX);
    if (gr_session_n_embd(g->s))
        return gr_fail(GR_E_INVALID, "the session gives embeddings: one of logits is expected");
    if (g->info.no_cache)
        return gr_fail(GR_E_UNSUPPORTED,
                       "a %s model looks at a whole text at once and keeps nothing of it: it "
                       "cannot continue one",
                       g->info.arch);
    return 0;
}

static int open_sampler(struct generation *g)
{
    struct gr_sampler_params p = g->p->sampler ? *g->p->sampler : gr_sampler_params_default();
    if (!g->p->sampler)
        (void)gr_model_sampling(g->model, &p);
    p.n_vocab = g->info.n_vocab, p.n_ctx = (int32_t)gr_session_n_ctx_seq(g->s);
    p.model = g->model;
    return gr_sampler_new(&g->sampler, &p);
}

static int open_batch(struct generation *g, size_t n)
{
    uint32_t n_batch = gr_session_n_batch(g->s);
    size_t n_seqs = GR_MAX(n, (size_t)n_batch); /* an encoder reads all at once */
    g->n_batch = (int32_t)n_batch;
    g->seqs = gr_calloc(n_seqs, sizeof *g->seqs);
    g->wanted = gr_calloc(n_batch, sizeof *g->wanted);
    if (!g->seqs || !g->wanted)
        return GR_E_NOMEM_HOST;
    for (size_t i = 0; i < n_seqs; i++)
        g->seqs[i] = g->seq;
    return 0;
}

static int prepare(struct generation *g, size_t n)
{
    int rc = check(g, n);
    if (!rc)
        rc = open_sampler(g);
    if (!rc)
        rc =
            gr_text_stream_new(&g->stream, g->model, g->p->special, g->p->stop, NULL, g->p->n_stop);
    return rc ? rc : open_batch(g, n);
}

/* ---- running ---- */

/* Decodes n tokens. next: a token follows, which a GPU draws where it can. */
static int decode(struct generation *g, const int32_t *ids, int32_t n, bool next)
{
    struct gr_batch batch = {.n_tok = n, .token = ids, .seq = g->seqs, .logits = g->wanted};
    g->wanted[n - 1] = next;
    g->drawn =
        next && g->info.n_gpu_layers > 0 && gr_session_set_sampler(g->s, g->seq, g->sampler) == 0;
    int rc = g->drawn ? 0 : gr_session_set_sampler(g->s, g->seq, NULL);
    if (!rc)
        rc = gr_decode(g->s, &batch);
    g->wanted[n - 1] = 0;
    return rc;
}

/* Runs the tokens that the text is continued from; the grammar begins behind them. */
static int run_prompt(struct generation *g, const int32_t *ids, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = gr_sampler_accept(g->sampler, ids[i]);
    if (!rc && g->p->draft)
        rc = gr_draft_accept(g->p->draft, ids, n);
    if (!rc)
        rc = gr_sampler_set_grammar(g->sampler, g->p->grammar);
    for (size_t i = 0, k; i < n && !rc; i += k) {
        k = GR_MIN(n - i, (size_t)g->n_batch);
        rc = decode(g, ids + i, (int32_t)k, i + k == n);
        if (!rc && !g->info.has_encoder)
            g->r->n_prompt += (int32_t)k;
    }
    return rc;
}

static int read_prompt(struct generation *g, const int32_t *ids, size_t n)
{
    struct gr_batch text = {.n_tok = (int32_t)n, .token = ids, .seq = g->seqs};
    if (!g->info.has_encoder)
        return run_prompt(g, ids, n);
    int rc = gr_encode(g->s, &text);
    if (!rc)
        g->r->n_prompt = (int32_t)n;
    return rc ? rc : run_prompt(g, &g->info.decoder_start, 1);
}

static void end(struct generation *g, enum gr_end why)
{
    if (!g->ended)
        g->r->end = why;
    g->ended = true;
}

/* Passes text on; `stop`: the string that ends it, or -1. */
static void put(struct generation *g, const char *p, size_t n, int32_t stop)
{
    if (stop >= 0) {
        g->r->stop = stop, g->r->end = GR_END_STOP;
        g->ended = true;
    }
    if (n && !g->silent && g->p->text && g->p->text(p, n, g->p->user)) {
        g->silent = true;
        end(g, GR_END_CALLER);
    }
}

static int take_token(struct generation *g, int32_t id)
{
    const char *p;
    size_t n;
    int32_t stop;
    g->r->n_token++;
    g->r->last = id;
    if (g->r->n_token == 1)
        g->r->first_s = gr_seconds_since(g->begin);
    if (gr_text_is_eog(g->model, id))
        end(g, GR_END_EOG);
    int rc = gr_text_stream_push(g->stream, id, &p, &n, &stop);
    if (rc)
        return rc;
    put(g, p, n, stop);
    if (g->r->n_token == g->p->n_predict)
        end(g, GR_END_LENGTH);
    return 0;
}

/* Picks the token behind the last batch. */
static int pick_token(struct generation *g, int32_t *id)
{
    int rc = g->drawn ? gr_sampled_token(g->s, -1, id)
                      : gr_sampler_pick(g->sampler, gr_logits(g->s, -1), id);
    if (!rc)
        rc = gr_sampler_accept(g->sampler, *id);
    if (!rc && g->p->draft)
        rc = gr_draft_accept(g->p->draft, id, 1);
    return rc ? rc : take_token(g, *id);
}

/* Number of tokens that can be decoded next, at most most. */
static int64_t room_for(const struct generation *g, int64_t most)
{
    int64_t next = (int64_t)gr_kv_seq_pos_max(g->s, g->seq) + 1;
    int64_t cells = (int64_t)gr_session_n_ctx(g->s) - gr_kv_used(g->s);
    most = GR_MIN(most, GR_MIN(cells, (int64_t)gr_session_n_ctx_seq(g->s) - next));
    return g->info.n_learned_pos ? GR_MIN(most, g->info.n_learned_pos - next) : most;
}

/* Decodes the last token and a draft, and takes the tokens that follow. Those behind the end of the
 * text are removed. */
static int draft_tokens(struct generation *g, int64_t room)
{
    int32_t ids[GR_MAX_DRAFT + 1], n = 0, i = 0;
    int32_t left = g->p->n_predict < 0 ? INT32_MAX : g->p->n_predict - g->r->n_token;
    int32_t most = (int32_t)GR_MIN(room, GR_MIN(left, g->n_batch));
    int rc = gr_draft_step(g->p->draft, g->s, g->seq, g->sampler, GR_MIN(most, GR_MAX_DRAFT + 1),
                           ids, &n);
    while (i < n && !g->ended && !rc)
        rc = take_token(g, ids[i++]);
    int32_t next = gr_kv_seq_pos_max(g->s, g->seq) + 1;
    return rc || i == n ? rc : gr_kv_seq_rm(g->s, g->seq, next - (n - i), -1);
}

static int next_tokens(struct generation *g)
{
    int64_t room = room_for(g, GR_MAX_DRAFT + 1);
    int32_t id = g->r->last;
    if (room <= 0) {
        end(g, GR_END_CONTEXT);
        return 0;
    }
    if (g->p->draft)
        return draft_tokens(g, room);
    int rc = decode(g, &id, 1, true);
    return rc ? rc : pick_token(g, &id);
}

static int generate(struct generation *g)
{
    int32_t id;
    int rc = 0;
    if (!g->p->n_predict)
        end(g, GR_END_LENGTH);
    else
        rc = pick_token(g, &id);
    while (!g->ended && !rc)
        rc = next_tokens(g);
    return rc;
}

/* Passes on what is held back, also after a failure. */
static int flush(struct generation *g)
{
    const char *p;
    size_t n;
    int32_t stop;
    int rc = gr_text_stream_flush(g->stream, &p, &n, &stop);
    if (!rc)
        put(g, p, n, stop);
    return rc;
}

static int run(struct generation *g, const int32_t *ids, size_t n)
{
    g->begin = gr_now_ns();
    int rc = read_prompt(g, ids, n);
    g->r->prompt_s = gr_seconds_since(g->begin);
    if (rc)
        return rc;
    rc = generate(g);
    if (g->r->n_token)
        g->r->token_s = gr_seconds_since(g->begin) - g->r->first_s;
    int flushed = flush(g);
    return rc ? rc : flushed;
}

int gr_generate_tokens(struct gr_session *s, int32_t seq, const int32_t *ids, size_t n,
                       const struct gr_generate_params *params, struct gr_generated *result)
{
    struct gr_generate_params p = params ? *params : gr_generate_params_default();
    struct gr_generated unused = {.stop = -1, .last = -1};
    struct generation g = {.s = s, .seq = seq, .p = &p, .r = result ? result : &unused};
    *g.r = (struct gr_generated){.stop = -1, .last = -1};
    g.model = gr_session_model(s);
    gr_model_info(g.model, &g.info);
    int rc = prepare(&g, n);
    if (!rc) {
        rc = run(&g, ids, n);
        int unset = gr_session_set_sampler(s, seq, NULL);
        rc = rc ? rc : unset;
    }
    gr_sampler_free(&g.sampler);
    gr_text_stream_free(&g.stream);
    gr_free(g.seqs);
    gr_free(g.wanted);
    return rc;
}

/* ---- a session of its own ---- */

/* Chooses the size of a session for n tokens of a prompt. */
static int choose_size(struct gr_session_params *p, const struct gr_model_info *info, size_t n,
                       int32_t n_predict)
{
    int64_t read = info->has_encoder ? 1 : (int64_t)n, need = read + GR_MAX(n_predict, 0);
    p->n_seq_max = 1;
    if (info->has_encoder && p->n_ubatch < n)
        p->n_batch = p->n_ubatch = (uint32_t)n;
    if (!p->n_ctx && n_predict >= 0)
        p->n_ctx = (uint32_t)GR_MIN(need, info->n_ctx_train);
    int64_t room = p->n_ctx ? (int64_t)p->n_ctx : info->n_ctx_train;
    if (read > room)
        return gr_fail(GR_E_KV_FULL,
                       "the prompt has %lld tokens, the context is %lld: a shorter prompt, or a "
                       "larger n_ctx of the session is needed",
                       (long long)read, (long long)room);
    return 0;
}

int gr_generate(struct gr_model *model, const char *prompt, size_t n,
                const struct gr_session_params *session, const struct gr_generate_params *params,
                struct gr_generated *result)
{
    struct gr_session_params p = session ? *session : gr_session_params_default();
    struct gr_session *s = NULL;
    struct gr_model_info info;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (result)
        *result = (struct gr_generated){.stop = -1, .last = -1};
    gr_model_info(model, &info);
    int rc = gr_text_tokenize(model, prompt, n, true, true, &ids, &n_ids);
    if (!rc && (!n_ids || n_ids > INT32_MAX))
        rc =
            gr_fail(GR_E_INVALID, "a prompt of %zu tokens, 1 to %d are expected", n_ids, INT32_MAX);
    if (!rc)
        rc = choose_size(&p, &info, n_ids, params ? params->n_predict : -1);
    if (!rc)
        rc = gr_session_open(&s, model, &p);
    if (!rc)
        rc = gr_generate_tokens(s, 0, ids, n_ids, params, result);
    gr_session_close(&s);
    gr_free_ids(ids);
    return rc;
}
