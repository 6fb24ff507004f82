#include "chunks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define USUAL_CTX 512 /* tokens of a chunk, where the model was trained on as many */

struct gr_perplexity gr_chunks_perplexity(const struct gr_chunks *c)
{
    double n = (double)c->n_judged, mean = c->nll / n;
    double var = n > 1 ? (c->nll2 / n - mean * mean) / (n - 1) : 0;
    struct gr_perplexity p = {exp(mean), var > 0 ? sqrt(var) * exp(mean) : 0};
    return p;
}

/* The tokens of the text; a newline that ends it is none of it. */
static int read_ids(struct gr_chunks *c, const struct gr_options *o)
{
    char *text = NULL;
    size_t n = 0;
    bool given;
    int rc = gr_read_text(o, &text, &n, &given);
    if (!rc && !given) {
        gr_say_error("there is no text: give it by -f or standard input");
        rc = GR_EXIT_USAGE;
    }
    if (!rc && n && text[n - 1] == '\n')
        n--;
    int status = rc ? 0 : gr_text_tokenize(c->model, text, n, true, false, &c->ids, &c->n_ids);
    free(text);
    return status ? gr_say_status(status) : rc;
}

/* Whether the model wants a BOS: then a text without a character has one. */
static int find_bos(struct gr_chunks *c)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int status = gr_text_tokenize(c->model, "", 0, true, false, &ids, &n);
    c->bos = !status && n && ids[0] == gr_text_bos(c->model) ? ids[0] : -1;
    gr_free_ids(ids);
    return status ? gr_say_status(status) : 0;
}

static int set_sizes(struct gr_chunks *c, const struct gr_options *o)
{
    struct gr_model_info info;
    gr_model_info(c->model, &info);
    int32_t stride = o->ppl_stride;
    c->n_vocab = info.n_vocab;
    c->n_ctx = o->ctx_size > 0 ? o->ctx_size : info.n_ctx_train;
    if (o->ctx_size < 0 && c->n_ctx > USUAL_CTX)
        c->n_ctx = USUAL_CTX;
    if (stride >= c->n_ctx) {
        gr_say_error("--ppl-stride is %d: less than the context of %d tokens is expected", stride,
                     c->n_ctx);
        return GR_EXIT_USAGE;
    }
    c->n_ctx += stride / 2; /* as llama.cpp does */
    c->step = stride > 0 ? stride : c->n_ctx;
    c->first = stride > 0 ? c->n_ctx - stride - 1 : c->n_ctx / 2;
    size_t n_ctx = (size_t)c->n_ctx, rest = c->n_ids > n_ctx ? c->n_ids - n_ctx : 0;
    size_t n = stride > 0 ? (rest + (size_t)stride - 1) / (size_t)stride : c->n_ids / n_ctx;
    if (c->n_ctx < 4 || c->n_ids < 2 * n_ctx) {
        gr_say_error("the text has %zu tokens: at least %zu are needed with chunks of %d (-c)",
                     c->n_ids, 2 * n_ctx, c->n_ctx);
        return GR_EXIT_USAGE;
    }
    c->begin = o->from_chunk;
    if ((size_t)c->begin >= n) {
        gr_say_error("--from-chunk is %d: the text has %zu chunks of %d tokens, less is expected",
                     c->begin, n, c->n_ctx);
        return GR_EXIT_USAGE;
    }
    size_t left = n - (size_t)c->begin;
    c->n_chunk = c->begin + (o->chunks > 0 && (size_t)o->chunks < left ? o->chunks : (int32_t)left);
    return 0;
}

static int open_session(struct gr_chunks *c, const struct gr_options *o)
{
    struct gr_session_params p = gr_session_options(o);
    c->n_batch = (int32_t)p.n_batch;
    c->n_side = c->n_batch / c->n_ctx;
    int32_t most = c->n_chunk - c->begin;
    c->n_side = c->n_side < 1 ? 1 : c->n_side > most ? most : c->n_side;
    c->n_side = c->n_side > 64 ? 64 : c->n_side;
    p.n_seq_max = (uint32_t)c->n_side;
    p.n_ctx = (uint32_t)c->n_ctx * p.n_seq_max;
    int status = gr_session_open(&c->session, c->model, &p);
    return status ? gr_say_status(status) : 0;
}

/* What a decoder gives depends on the text that its encoder has. */
static int check_encoder(const struct gr_chunks *c)
{
    struct gr_model_info info;
    gr_model_info(c->model, &info);
    if (!info.has_encoder)
        return 0;
    gr_say_error("a %s model has an encoder and a decoder, which answers a text and does not "
                 "continue it: a model without an encoder is expected",
                 info.arch);
    return gr_status_exit(GR_E_UNSUPPORTED);
}

int gr_chunks_open(struct gr_chunks *c, const struct gr_options *o, bool all_logits)
{
    *c = (struct gr_chunks){.all_logits = all_logits};
    int rc = gr_open_model(o, false, &c->model);
    if (!rc)
        rc = check_encoder(c);
    if (!rc)
        rc = read_ids(c, o);
    if (!rc)
        rc = find_bos(c);
    if (!rc)
        rc = set_sizes(c, o);
    return rc ? rc : open_session(c, o);
}

void gr_chunks_close(struct gr_chunks *c)
{
    gr_session_close(&c->session);
    gr_model_close(&c->model);
    gr_free_ids(c->ids);
    c->ids = NULL;
}

/* -log of the softmax of `row` at `id`. */
static double surprise(const float *row, int32_t n, int32_t id)
{
    float most = row[0];
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        most = row[i] > most ? row[i] : most;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)(row[i] - most));
    return log(fmax(sum, 1)) - (double)(row[id] - most);
}

static bool is_judged(const struct gr_chunks *c, int32_t pos)
{
    return pos >= c->first && pos < c->n_ctx - 1;
}

/* A batch: tokens [lo, hi) of n chunks from chunk i on. */
struct piece {
    int32_t i, n, lo, hi;
    int32_t *token, *pos, *seq;
    int8_t *logits;
};

static struct gr_batch fill(const struct gr_chunks *c, const struct piece *p)
{
    int32_t n = 0;
    for (int32_t s = 0; s < p->n; s++)
        for (int32_t pos = p->lo; pos < p->hi; pos++, n++) {
            const int32_t *chunk = c->ids + (size_t)(p->i + s) * (size_t)c->step;
            p->token[n] = pos == 0 && c->bos >= 0 ? c->bos : chunk[pos];
            p->pos[n] = pos, p->seq[n] = s;
            p->logits[n] = c->all_logits || is_judged(c, pos);
        }
    return (struct gr_batch){
        .n_tok = n, .token = p->token, .pos = p->pos, .seq = p->seq, .logits = p->logits};
}

/* Adds what chunk i + s gave in this piece. */
static void judge(struct gr_chunks *c, const struct piece *p, int32_t s)
{
    const int32_t *chunk = c->ids + (size_t)(p->i + s) * (size_t)c->step;
    for (int32_t pos = p->lo; pos < p->hi; pos++) {
        if (!is_judged(c, pos))
            continue;
        const float *row = gr_logits(c->session, s * (p->hi - p->lo) + pos - p->lo);
        double x = surprise(row, c->n_vocab, chunk[pos + 1]);
        c->nll += x, c->nll2 += x * x;
        c->n_judged++;
    }
}

typedef bool done_fn(const struct gr_chunks *c, int32_t i, void *user);

/* n chunks side by side, from chunk i on. Of several in a batch each is complete in it. *go:
 * whether done wants more of them. */
static int run_group(struct gr_chunks *c, struct piece *p, done_fn *done, void *user, bool *go)
{
    int status = 0;
    gr_kv_clear(c->session);
    for (p->lo = 0; p->lo < c->n_ctx && !status; p->lo = p->hi) {
        p->hi = c->n_ctx - p->lo > c->n_batch ? p->lo + c->n_batch : c->n_ctx;
        struct gr_batch batch = fill(c, p);
        status = gr_decode(c->session, &batch);
        for (int32_t s = 0; s < p->n && !status; s++) {
            judge(c, p, s);
            if (p->hi == c->n_ctx)
                *go &= done(c, p->i + s, user);
        }
    }
    return status ? gr_say_status(status) : 0;
}

int gr_chunks_run(struct gr_chunks *c, done_fn *done, void *user)
{
    size_t n = (size_t)(c->n_batch > c->n_ctx ? c->n_batch : c->n_ctx);
    struct piece p = {
        .token = malloc(n * 4), .pos = malloc(n * 4), .seq = malloc(n * 4), .logits = malloc(n)};
    int rc = p.token && p.pos && p.seq && p.logits ? 0 : 5;
    if (rc)
        gr_say_error("no memory for a batch of %zu tokens", n);
    bool go = true;
    for (p.i = c->begin; p.i < c->n_chunk && !rc && go; p.i += p.n) {
        p.n = c->n_chunk - p.i < c->n_side ? c->n_chunk - p.i : c->n_side;
        rc = run_group(c, &p, done, user, &go);
    }
    free(p.token);
    free(p.pos);
    free(p.seq);
    free(p.logits);
    return rc;
}
