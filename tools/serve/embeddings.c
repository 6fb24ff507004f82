/* POST /embeddings, in OpenAI's form, /rerank, in Jina's, and /api/embed, in Ollama's: vectors of
 * texts, and how well texts answer a query. */
#include <math.h>
#include <nettle/base64.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "embedder.h"
#include "generation.h"
#include "text.h"
#include "tools/cli/flags.h"

enum { MOST_TEXTS = 2048 }; /* of a request */

struct request;

/* A form of answers. */
struct form {
    bool scores; /* of a classifier, not vectors */
    void (*write)(struct gr_writer *w, struct request *r, const struct gr_result *result);
};

struct request {
    struct gr_embedding embedding; /* the first member: of this, others know */
    const struct form *form;
    struct gr_server *server;
    struct gr_exchange *x;
    json_t *body;
    const char *model; /* its name in the answer */
    float *row;        /* [n_text][n_col] */
    int32_t n_col, label;
    int32_t n_top; /* texts in the answer of a query */
    bool base64, truncates, with_texts;
};

static struct request *of(struct gr_embedding *e)
{
    return (struct request *)e;
}

static void free_request(struct request *r)
{
    for (int32_t i = 0; i < r->embedding.n_text; i++)
        gr_ids_free(&r->embedding.text[i]);
    free(r->embedding.text);
    free(r->row);
    json_decref(r->body);
    free(r);
}

/* ---- vectors, in the embedder's thread ---- */

static bool take_vector(struct gr_embedding *e, int32_t i, const float *x)
{
    struct request *r = of(e);
    float *row = r->row + (size_t)i * (size_t)r->n_col;
    if (!x)
        return false;
    if (r->form->scores)
        *row = x[r->label];
    else
        gr_vector_normalise(x, r->n_col, r->server->options->embd_normalize, row);
    for (int32_t c = 0; c < r->n_col; c++) {
        if (!isfinite(row[c]))
            return false;
    }
    return true;
}

/* Refuses what the embedder did not accept, or did not go on with. */
static void refuse_unaccepted(struct gr_exchange *x, int status)
{
    const char *message = gr_submit_message(status);
    gr_refuse(x, gr_http_status(status), NULL, "%s", message ? message : gr_status_text(status));
}

static void answer(struct request *r, const struct gr_result *result)
{
    struct gr_writer w = {0};
    r->form->write(&w, r, result);
    if (!w.failed) {
        gr_exchange_answer(r->x, 200, "application/json", w.p, w.n);
        return;
    }
    gr_writer_free(&w);
    gr_refuse(r->x, 503, NULL, "out of memory");
}

static void on_end(struct gr_embedding *e, const struct gr_result *result)
{
    struct request *r = of(e);
    gr_metrics_count(r->server, result);
    if (result->end == GR_FINISH_TOKEN)
        answer(r, result);
    else if (result->status == GR_E_CHECK)
        gr_refuse(r->x, 500, NULL, "the model gives a vector that is no number");
    else if (result->end == GR_FINISH_FAILED)
        gr_refuse_status(r->x, result->status, NULL);
    else if (e->cancelled)
        gr_exchange_end(r->x);
    else
        refuse_unaccepted(r->x, GR_E_CANCELLED);
    free_request(r);
}

/* The client has gone: in any thread. */
static void on_gone(void *user)
{
    struct request *r = user;
    r->embedding.cancelled = true;
}

/* ---- answers ---- */

static void write_list(struct gr_writer *w, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        char text[32];
        int k = snprintf(text, sizeof text, "%s%.9g", i ? "," : "[", (double)x[i]);
        gr_write(w, text, (size_t)k);
    }
    gr_write(w, "]", 1);
}

/* The numbers as f32, the lowest byte first. */
static void write_base64(struct gr_writer *w, const float *x, int32_t n)
{
    size_t bytes = (size_t)n * sizeof *x;
    uint8_t *raw = malloc(bytes + BASE64_ENCODE_RAW_LENGTH(bytes));
    if (!raw) {
        w->failed = true;
        return;
    }
    for (size_t i = 0; i < (size_t)n; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        for (size_t b = 0; b < sizeof u; b++)
            raw[i * sizeof u + b] = (uint8_t)(u >> 8 * b);
    }
    base64_encode_raw((char *)raw + bytes, bytes, raw);
    gr_write(w, "\"", 1);
    gr_write(w, (char *)raw + bytes, BASE64_ENCODE_RAW_LENGTH(bytes));
    gr_write(w, "\"", 1);
    free(raw);
}

static void write_usage(struct gr_writer *w, const struct request *r,
                        const struct gr_result *result)
{
    gr_writef(w, ",\"model\":");
    gr_write_string(w, r->model, strlen(r->model));
    gr_writef(w, ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d}}", result->n_prompt,
              result->n_prompt);
}

static void write_openai(struct gr_writer *w, struct request *r, const struct gr_result *result)
{
    gr_writef(w, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < r->embedding.n_text; i++) {
        gr_writef(w, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        (r->base64 ? write_base64 : write_list)(w, r->row + (size_t)i * (size_t)r->n_col, r->n_col);
        gr_write(w, "}", 1);
    }
    gr_write(w, "]", 1);
    write_usage(w, r, result);
}

static void write_ollama(struct gr_writer *w, struct request *r, const struct gr_result *result)
{
    gr_writef(w, "{\"model\":");
    gr_write_string(w, r->model, strlen(r->model));
    gr_writef(w, ",\"embeddings\":[");
    for (int32_t i = 0; i < r->embedding.n_text; i++) {
        gr_writef(w, i ? "," : "");
        write_list(w, r->row + (size_t)i * (size_t)r->n_col, r->n_col);
    }
    gr_writef(w, "],\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%d}",
              (long long)(result->queue_ns + result->prompt_ns), result->n_prompt);
}

/* A text and how well it answers. */
struct rank {
    int32_t i;
    float score;
};

static int by_score(const void *a, const void *b)
{
    const struct rank *p = a, *q = b;
    return p->score != q->score ? (p->score < q->score ? 1 : -1) : (p->i > q->i) - (p->i < q->i);
}

/* Returns a document's text: a string, or an object with one; NULL: it is neither. */
static const json_t *document_text(const json_t *document)
{
    const json_t *text = json_is_object(document) ? json_object_get(document, "text") : document;
    return json_is_string(text) ? text : NULL;
}

static void write_document(struct gr_writer *w, const struct request *r, int32_t i)
{
    const json_t *list = json_object_get(r->body, "documents");
    const json_t *text = document_text(json_array_get(list, (size_t)i));
    gr_writef(w, ",\"document\":{\"text\":");
    gr_write_string(w, json_string_value(text), json_string_length(text));
    gr_write(w, "}", 1);
}

static void write_rerank(struct gr_writer *w, struct request *r, const struct gr_result *result)
{
    size_t n = (size_t)r->embedding.n_text;
    struct rank *rank = malloc(n * sizeof *rank);
    if (!rank) {
        w->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++)
        rank[i] = (struct rank){(int32_t)i, r->row[i]};
    qsort(rank, n, sizeof *rank, by_score);
    gr_writef(w, "{\"object\":\"list\",\"results\":[");
    for (size_t i = 0; i < n && i < (size_t)r->n_top; i++) {
        gr_writef(w, "%s{\"index\":%d,\"relevance_score\":%.9g", i ? "," : "", rank[i].i,
                  (double)rank[i].score);
        if (r->with_texts)
            write_document(w, r, rank[i].i);
        gr_write(w, "}", 1);
    }
    gr_write(w, "]", 1);
    write_usage(w, r, result);
    free(rank);
}

static const struct form openai = {false, write_openai};
static const struct form ollama = {false, write_ollama};
static const struct form rerank = {true, write_rerank};

/* ---- requests ---- */

/* Refuses what the server does not compute. */
static bool refuse_absent(struct gr_exchange *x, const struct gr_server *s, bool scores)
{
    if (!s->embedder)
        gr_refuse(x, 501, NULL,
                  "the server generates texts; gpurun serve --embeddings gives vectors as well");
    else if (scores != (gr_embedder_vectors(s->embedder)->pooling == GR_POOLING_RANK))
        gr_refuse(x, 501, NULL, "%s",
                  scores ? "the server gives vectors of texts; gpurun serve --pooling rank ranks "
                           "them, with a model that has a classifier"
                         : "the server ranks texts (/v1/rerank); without --pooling rank it gives "
                           "vectors");
    else
        return false;
    return true;
}

static struct request *begin(struct gr_exchange *x, struct gr_server *server,
                             const struct form *form, struct gr_fields *f)
{
    json_t *body = refuse_absent(x, server, form->scores) ? NULL : gr_read_object(x);
    struct request *r = body ? calloc(1, sizeof *r) : NULL;
    if (body && !r) {
        json_decref(body);
        gr_refuse(x, 503, NULL, "out of memory");
    }
    if (!r)
        return NULL;
    r->embedding.vector = take_vector, r->embedding.end = on_end;
    r->form = form, r->server = server, r->x = x, r->body = body;
    f->object = body;
    r->model = gr_ask_model(f, server);
    r->n_col = form->scores ? 1 : gr_embedder_vectors(server->embedder)->n_embd;
    return r;
}

/* Makes room for n texts; false: the request is wrong. */
static bool reserve(struct request *r, struct gr_fields *f, const char *name, size_t n)
{
    if (!n || n > MOST_TEXTS)
        gr_field_wrong(f, name, "%s: 1 to %d texts are expected, not %zu", name, MOST_TEXTS, n);
    else if (!(r->embedding.text = calloc(n, sizeof *r->embedding.text)))
        gr_field_wrong(f, "", "out of memory");
    return !f->wrong;
}

/* Cuts a text, but for a token that texts end with. */
static void cut(const struct request *r, struct gr_ids *text, size_t n)
{
    const struct gr_model *model = r->server->model;
    struct gr_ids none = {0};
    int32_t last = text->id[text->n - 1];
    if (!gr_ids_add(&none, model, "", 0) && none.n && none.id[none.n - 1] == last &&
        last != gr_text_bos(model))
        text->id[n - 1] = last;
    gr_ids_free(&none);
    text->n = n;
}

/* Completes the next text, the i-th of a list, -1: the only one, and checks its length. */
static void end_text(struct request *r, struct gr_fields *f, const char *name, int i)
{
    struct gr_ids *text = &r->embedding.text[r->embedding.n_text++];
    size_t most = (size_t)gr_embedder_longest(r->server->embedder);
    char which[64];
    if (f->wrong)
        return;
    if (i < 0)
        snprintf(which, sizeof which, "%s", name);
    else
        snprintf(which, sizeof which, "%s[%d]", name, i);
    if (r->truncates && text->n > most)
        cut(r, text, most);
    if (!text->n) {
        gr_field_wrong(f, name,
                       "%s has no tokens, and the model has none that texts begin with: leave it "
                       "out",
                       which);
    } else if (text->n > most) {
        gr_field_wrong(f, name, "%s has %zu tokens, and a text may have %zu", which, text->n, most);
        f->code = "context_length_exceeded";
    }
}

static void add_part(struct request *r, struct gr_fields *f, const char *name, const json_t *v)
{
    struct gr_ids *text = &r->embedding.text[r->embedding.n_text];
    int rc = gr_ids_add(text, r->server->model, json_string_value(v), json_string_length(v));
    if (rc)
        gr_field_wrong(f, name, "%s: %s", name, gr_failure_text(rc));
}

/* Begins the next text with tokens that are known. */
static void begin_with(struct request *r, struct gr_fields *f, const struct gr_ids *ids)
{
    struct gr_ids *text = &r->embedding.text[r->embedding.n_text];
    text->id = malloc((ids->n + 1) * sizeof *text->id);
    if (!text->id) {
        gr_field_wrong(f, "", "out of memory");
        return;
    }
    memcpy(text->id, ids->id, ids->n * sizeof *text->id);
    text->n = ids->n;
}

static void add_tokens(struct request *r, struct gr_fields *f, const json_t *v)
{
    struct gr_ids *text = &r->embedding.text[r->embedding.n_text];
    int32_t n_vocab = r->server->info.n_vocab;
    text->id = gr_ask_tokens(v, n_vocab, &text->n);
    if (!text->id)
        gr_field_wrong(f, "input", "input: tokens are numbers from 0 to %d", n_vocab - 1);
}

/* Adds a text, or a list of tokens. */
static void add_input(struct request *r, struct gr_fields *f, const json_t *v, int i)
{
    if (json_is_string(v))
        add_part(r, f, "input", v);
    else if (json_is_array(v))
        add_tokens(r, f, v);
    else
        gr_field_wrong(f, "input", "input: a text, a list of tokens, or a list of these");
    end_text(r, f, "input", i);
}

/* Reads "input": a text, a list of tokens, or a list of these. */
static void read_input(struct request *r, struct gr_fields *f)
{
    const json_t *v = gr_field(f, "input"), *one;
    size_t i;
    if (json_is_string(v) && !json_string_length(v))
        gr_field_wrong(f, "input", "input: the text is empty");
    if (!json_is_array(v) || json_is_integer(json_array_get(v, 0))) {
        if (reserve(r, f, "input", 1))
            add_input(r, f, v, -1);
        return;
    }
    if (!reserve(r, f, "input", json_array_size(v)))
        return;
    json_array_foreach(v, i, one)
    {
        if (!f->wrong)
            add_input(r, f, one, (int)i);
    }
}

/* Reads "dimensions", of models whose vectors may be cut. */
static void read_dimensions(struct request *r, struct gr_fields *f)
{
    int32_t n = (int32_t)gr_field_int(f, "dimensions", r->n_col, 1, r->n_col);
    if (n != r->n_col && !r->server->options->matryoshka)
        gr_field_wrong(f, "dimensions",
                       "dimensions: vectors have %d numbers; fewer stand for a text only if the "
                       "model was trained for it, as gpurun serve --matryoshka says",
                       r->n_col);
    r->n_col = n;
}

/* Hands the request to the embedder, or refuses it if a field is wrong. */
static void submit(struct request *r, const struct gr_fields *f)
{
    struct gr_exchange *x = r->x;
    if (gr_fields_refuse(f, x)) {
        free_request(r);
        return;
    }
    size_t n_byte = (size_t)r->embedding.n_text * (size_t)r->n_col * sizeof *r->row;
    r->embedding.n_byte = (int64_t)n_byte;
    r->row = malloc(n_byte);
    int rc = r->row ? 0 : GR_E_NOMEM_HOST;
    gr_exchange_keep(x, on_gone, r);
    if (!rc)
        rc = gr_embedder_submit(r->server->embedder, &r->embedding);
    if (rc) {
        refuse_unaccepted(x, rc);
        free_request(r);
    }
}

void gr_serve_embeddings(struct gr_exchange *x, void *user)
{
    struct gr_fields f = {0};
    struct request *r = begin(x, user, &openai, &f);
    if (!r)
        return;
    const char *encoding = gr_field_text(&f, "encoding_format");
    r->base64 = encoding && !strcmp(encoding, "base64");
    if (encoding && !r->base64 && strcmp(encoding, "float") != 0)
        gr_field_wrong(&f, "encoding_format", "encoding_format: float or base64 is expected");
    read_dimensions(r, &f);
    if (!f.wrong)
        read_input(r, &f);
    submit(r, &f);
}

void gr_serve_ollama_embed(struct gr_exchange *x, void *user)
{
    struct gr_fields f = {0};
    struct request *r = begin(x, user, &ollama, &f);
    if (!r)
        return;
    r->truncates = gr_field_bool(&f, "truncate", true);
    read_dimensions(r, &f);
    if (!f.wrong)
        read_input(r, &f);
    submit(r, &f);
}

/* Number of the score that says how well a text answers. */
static int32_t find_label(const struct gr_server *s)
{
    for (int32_t i = 0; i < s->info.n_label && i < gr_embedder_vectors(s->embedder)->n_embd; i++) {
        if (!strcasecmp(gr_model_label(s->model, i), "yes"))
            return i;
    }
    return 0;
}

static void read_documents(struct request *r, struct gr_fields *f)
{
    const json_t *query = gr_field(f, "query"), *list = gr_field_list(f, "documents"), *one;
    struct gr_ids ids = {0}; /* of the query */
    size_t i;
    if (!gr_field_text(f, "query") || !json_string_length(query))
        gr_field_wrong(f, "query", "query: a text is expected");
    if (f->wrong || !reserve(r, f, "documents", json_array_size(list)))
        return;
    if (gr_ids_add(&ids, r->server->model, json_string_value(query), json_string_length(query)))
        gr_field_wrong(f, "query", "query: %s", gr_error_message());
    json_array_foreach(list, i, one)
    {
        const json_t *text = document_text(one);
        if (!text)
            gr_field_wrong(f, "documents", "documents[%zu]: a text is expected, or {\"text\": ..}",
                           i);
        if (!f->wrong)
            begin_with(r, f, &ids);
        if (f->wrong)
            break;
        add_part(r, f, "documents", text);
        end_text(r, f, "documents", (int)i);
    }
    gr_ids_free(&ids);
}

void gr_serve_rerank(struct gr_exchange *x, void *user)
{
    struct gr_fields f = {0};
    struct request *r = begin(x, user, &rerank, &f);
    if (!r)
        return;
    r->label = find_label(r->server);
    r->n_top = (int32_t)gr_field_int(&f, "top_n", MOST_TEXTS, 1, INT32_MAX);
    r->with_texts = gr_field_bool(&f, "return_documents", false);
    read_documents(r, &f);
    submit(r, &f);
}
