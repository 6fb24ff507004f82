#include "chunks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base_file.h"
#include "length.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"

#define USUAL_CTX 512 /* tokens of a chunk, where the model was trained on as many */

struct gr_perplexity gr_chunks_perplexity(const struct gr_chunks *c)
{
    double n = (double)c->whole.n, mean = c->whole.sum / n;
    double var = n > 1 ? (c->whole.sum2 / n - mean * mean) / (n - 1) : 0;
    struct gr_perplexity p = {exp(mean), var > 0 ? sqrt(var) * exp(mean) : 0};
    return p;
}

/* Tokenizes the text without a final newline. */
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
    int status = rc ? 0 : gr_text_tokenize(c->model, text, n, true, false, &c->own_ids, &c->n_ids);
    free(text);
    c->ids = c->own_ids;
    return status ? gr_say_status(status) : rc;
}

/* Takes the tokens and the choice of judged tokens from the base file. */
static int take_ids(struct gr_chunks *c, const struct gr_options *o, const struct gr_base_file *b)
{
    int rc = gr_base_fits(b, c->n_vocab);
    if (rc)
        return rc;
    if (o->ctx_size > 0 && o->ctx_size != b->n_ctx) {
        gr_say_error("-c is %d: %s has chunks of %d tokens; leave -c out", o->ctx_size, b->path,
                     b->n_ctx);
        return GR_EXIT_USAGE;
    }
    if (o->file)
        gr_say_warning("-f %s is not read: the tokens are those of %s", o->file, b->path);
    c->ids = b->token;
    c->n_ids = (size_t)b->n_chunk * (size_t)b->n_ctx;
    c->n_ctx = b->n_ctx;
    return 0;
}

/* Finds the BOS token: models with one add it to an empty text. */
static int find_bos(struct gr_chunks *c)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int status = gr_text_tokenize(c->model, "", 0, true, false, &ids, &n);
    c->bos = !status && n && ids[0] == gr_text_bos(c->model) ? ids[0] : -1;
    gr_free_ids(ids);
    return status ? gr_say_status(status) : 0;
}

/* Chooses the length of chunks from the flags. */
static int choose_length(struct gr_chunks *c, const struct gr_options *o)
{
    struct gr_model_info info;
    gr_model_info(c->model, &info);
    c->n_ctx = o->ctx_size > 0 ? o->ctx_size : info.n_ctx_train;
    if (o->ctx_size < 0 && c->n_ctx > USUAL_CTX)
        c->n_ctx = USUAL_CTX;
    if (o->ppl_stride >= c->n_ctx) {
        gr_say_error("--ppl-stride is %d: less than the context of %d tokens is expected",
                     o->ppl_stride, c->n_ctx);
        return GR_EXIT_USAGE;
    }
    c->n_ctx += o->ppl_stride / 2; /* as llama.cpp does */
    if (c->n_ctx >= 4 && c->n_ids >= 2 * (size_t)c->n_ctx)
        return 0;
    if (c->n_ids < 8)
        gr_say_error("the text has %zu tokens, too few to measure: -f FILE gives a longer one",
                     c->n_ids);
    else
        gr_say_error("the text has %zu tokens: at least %zu are needed with chunks of %d; -c %zu "
                     "makes chunks that fit",
                     c->n_ids, 2 * (size_t)c->n_ctx, c->n_ctx, c->n_ids / 2);
    return GR_EXIT_USAGE;
}

/* Computes the number of chunks and which are run. */
static int choose_chunks(struct gr_chunks *c, const struct gr_options *o)
{
    int32_t stride = o->ppl_stride;
    c->step = stride > 0 ? stride : c->n_ctx;
    c->first = stride > 0 ? c->n_ctx - stride - 1 : c->n_ctx / 2;
    size_t n_ctx = (size_t)c->n_ctx, rest = c->n_ids - n_ctx;
    size_t n = stride > 0 ? (rest + (size_t)stride - 1) / (size_t)stride : c->n_ids / n_ctx;
    c->begin = c->n_done = o->from_chunk;
    if ((size_t)c->begin >= n) {
        gr_say_error("--from-chunk is %d: the text has %zu chunks of %d tokens, less is expected",
                     c->begin, n, c->n_ctx);
        return GR_EXIT_USAGE;
    }
    size_t left = n - (size_t)c->begin;
    c->n_chunk = c->begin + (o->chunks > 0 && (size_t)o->chunks < left ? o->chunks : (int32_t)left);
    return 0;
}

/* Opens the session. With classic Self-Extend chunks run one by one as sequence 0. */
static int open_session(struct gr_chunks *c, const struct gr_options *o)
{
    struct gr_session_params p = gr_session_options(o);
    int rc = gr_length_self_extend(&c->length, o, c->model, c->n_ctx, &p);
    if (rc)
        return rc;
    struct gr_self_extend classic = gr_length_classic(&c->length);
    c->n_batch = (int32_t)p.n_batch;
    c->n_side = classic.n > 1 ? 1 : c->n_batch / c->n_ctx;
    int32_t most = c->n_chunk - c->begin;
    c->n_side = c->n_side < 1 ? 1 : c->n_side > most ? most : c->n_side;
    c->n_side = c->n_side > 64 ? 64 : c->n_side;
    p.n_seq_max = (uint32_t)c->n_side;
    p.n_ctx = (uint32_t)c->n_ctx * p.n_seq_max;
    gr_length_warn(&c->length, &p);
    int status = gr_session_open(&c->session, c->model, &p);
    if (!status) /* validates n and w */
        status = gr_self_extend(c->session, &classic, &(int32_t){0});
    return status ? gr_say_status(status) : 0;
}

/* Refuses models with encoder and decoder: the decoder's output depends on the encoder's text. */
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

int gr_chunks_open(struct gr_chunks *c, const struct gr_options *o, bool all_logits,
                   const struct gr_base_file *base)
{
    struct gr_model_info info;
    *c = (struct gr_chunks){.all_logits = all_logits, .command = gr_commands[o->command].name};
    int rc = gr_open_model(o, false, &c->model);
    if (!rc)
        rc = check_encoder(c);
    if (rc)
        return rc;
    gr_model_info(c->model, &info);
    c->n_vocab = info.n_vocab;
    rc = base ? take_ids(c, o, base) : read_ids(c, o);
    if (!rc)
        rc = find_bos(c);
    if (!rc && !base)
        rc = choose_length(c, o);
    if (!rc)
        rc = choose_chunks(c, o);
    return rc ? rc : open_session(c, o);
}

void gr_chunks_close(struct gr_chunks *c)
{
    gr_session_close(&c->session);
    gr_model_close(&c->model);
    gr_free_ids(c->own_ids);
    c->ids = c->own_ids = NULL;
}

int64_t gr_chunks_n_judged(const struct gr_chunks *c)
{
    return (int64_t)(c->n_chunk - c->begin) * (c->n_ctx - 1 - c->first);
}

/* log of the sum of exponentials. */
static double log_sum(const float *row, int32_t n)
{
    float most = row[0];
    for (int32_t i = 1; i < n; i++)
        most = row[i] > most ? row[i] : most;
    double sum = exp((double)(row[0] - most));
    for (int32_t i = 1; i < n; i++)
        sum += exp((double)(row[i] - most));
    return log(sum) + (double)most;
}

static bool is_judged(const struct gr_chunks *c, int32_t pos)
{
    return pos >= c->first && pos < c->n_ctx - 1;
}

/* A batch: tokens [lo, hi) of n chunks from chunk i on, at positions from `at` on. */
struct piece {
    int32_t i, n, lo, hi, at;
    struct gr_self_extend extend;
    int32_t *token, *pos, *seq;
    int8_t *logits;
};

static struct gr_batch fill(const struct gr_chunks *c, const struct piece *p)
{
    int32_t n = 0;
    for (int32_t s = 0; s < p->n; s++)
        for (int32_t k = p->lo; k < p->hi; k++, n++) {
            const int32_t *chunk = c->ids + (size_t)(p->i + s) * (size_t)c->step;
            p->token[n] = k == 0 && c->bos >= 0 ? c->bos : chunk[k];
            p->pos[n] = p->at + k - p->lo, p->seq[n] = s;
            p->logits[n] = c->all_logits || is_judged(c, k);
        }
    return (struct gr_batch){
        .n_tok = n, .token = p->token, .pos = p->pos, .seq = p->seq, .logits = p->logits};
}

/* Evaluates the judged tokens of chunk i + s in this piece. */
static int judge(struct gr_chunks *c, const struct piece *p, int32_t s,
                 const struct gr_chunk_calls *calls)
{
    const int32_t *chunk = c->ids + (size_t)(p->i + s) * (size_t)c->step;
    int rc = 0;
    for (int32_t k = p->lo; k < p->hi && !rc; k++) {
        if (!is_judged(c, k))
            continue;
        const float *row = gr_logits(c->session, s * (p->hi - p->lo) + k - p->lo);
        struct gr_judged j = {row, log_sum(row, c->n_vocab), chunk[k + 1]};
        double x = j.log_sum - (double)row[j.came];
        if (!isfinite(x)) {
            gr_say_error("chunk %d, token %d: -log p is %g; the weights or the cache hold values "
                         "that are no numbers",
                         p->i + s + 1, k + 1, x);
            return 1;
        }
        c->now.sum += x, c->now.sum2 += x * x;
        c->now.n++;
        rc = calls->judged ? calls->judged(c, &j, calls->user) : 0;
    }
    return rc;
}

/* Runs the next piece of the current chunks, as much as a batch or Self-Extend's window holds. */
static int run_piece(struct gr_chunks *c, struct piece *p)
{
    int status = gr_self_extend(c->session, &p->extend, &p->at);
    int32_t room = gr_self_extend_remaining(&p->extend, p->at), rest = c->n_ctx - p->lo;
    room = room < c->n_batch ? room : c->n_batch;
    p->hi = p->lo + (rest < room ? rest : room);
    struct gr_batch batch = fill(c, p);
    if (!status)
        status = gr_decode(c->session, &batch);
    gr_bar_add(status ? 0 : batch.n_tok);
    if (status && gr_interrupted())
        return GR_EXIT_INTERRUPTED;
    return status ? gr_say_status(status) : 0;
}

/* Runs n chunks at once, from chunk i on. When there are several, one batch holds each completely.
 * *go: whether `done` asks to continue. */
static int run_group(struct gr_chunks *c, struct piece *p, const struct gr_chunk_calls *calls,
                     bool *go)
{
    int rc = 0;
    gr_kv_clear(c->session);
    p->extend = gr_length_classic(&c->length), p->at = 0;
    for (p->lo = 0; p->lo < c->n_ctx && !rc; p->at += p->hi - p->lo, p->lo = p->hi) {
        rc = run_piece(c, p);
        for (int32_t s = 0; s < p->n && !rc; s++) {
            rc = judge(c, p, s, calls);
            if (rc || p->hi < c->n_ctx)
                continue;
            c->whole = c->now, c->n_done = p->i + s + 1;
            *go &= calls->done(c, p->i + s, calls->user);
        }
        if (!rc && gr_interrupted() && c->n_done < c->n_chunk)
            rc = GR_EXIT_INTERRUPTED;
    }
    return rc;
}

int gr_chunks_run(struct gr_chunks *c, const struct gr_chunk_calls *calls)
{
    size_t n = (size_t)(c->n_batch > c->n_ctx ? c->n_batch : c->n_ctx);
    struct piece p = {
        .token = malloc(n * 4), .pos = malloc(n * 4), .seq = malloc(n * 4), .logits = malloc(n)};
    int rc = p.token && p.pos && p.seq && p.logits ? 0 : 5;
    if (rc)
        gr_say_error("no memory for a batch of %zu tokens", n);
    bool go = true;
    gr_bar_begin(c->command, (double)(c->n_chunk - c->begin) * c->n_ctx, GR_BAR_TOKENS);
    gr_bar_watch(c->session);
    for (p.i = c->begin; p.i < c->n_chunk && !rc && go; p.i += p.n) {
        p.n = c->n_chunk - p.i < c->n_side ? c->n_chunk - p.i : c->n_side;
        rc = run_group(c, &p, calls, &go);
    }
    gr_bar_end();
    free(p.token);
    free(p.pos);
    free(p.seq);
    free(p.logits);
    return rc;
}
