/* gpurun embed: computes a vector for each text: lines of numbers, or JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "devices.h"
#include "stages.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/model.h"
#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"
#include "tools/cli/vectors.h"

/* A text, and the place of its vectors in the batch. */
struct input {
    const char *text;
    size_t n_text;
    struct gr_ids ids;
};

struct embed {
    const struct gr_options *o;
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_vectors vectors;
    enum gr_pooling pooling;
    char *all; /* the texts, separated by zeros */
    struct input *input;
    size_t n_input, n_token;
    int32_t n_batch;
    float *row; /* [n_embd] normalised */
    json_t *data;
    double start;
};

/* ---- texts ---- */

static bool by_lines(const struct embed *e)
{
    return !e->o->embd_separator || !strcmp(e->o->embd_separator, "\n");
}

/* "line 3", or "text 3" between other separators. */
static const char *name_of(const struct embed *e, size_t i, char buf[32])
{
    snprintf(buf, 32, "%s %zu", by_lines(e) ? "line" : "text", i + 1);
    return buf;
}

static int add_text(struct embed *e, const char *text, size_t n)
{
    if ((e->n_input & (e->n_input - 1)) == 0) { /* room for as many again */
        size_t n_room = e->n_input ? 2 * e->n_input : 1;
        struct input *grown = realloc(e->input, n_room * sizeof *grown);
        if (!grown)
            return gr_say_no_memory();
        e->input = grown;
    }
    e->input[e->n_input++] = (struct input){.text = text, .n_text = n};
    return 0;
}

/* Splits n bytes at the separator; with "" there is one text. A blank line is a text too; the end
 * of the last line, or of a file, begins none. */
static int cut(struct embed *e, size_t n)
{
    const char *sep = e->o->embd_separator ? e->o->embd_separator : "\n";
    size_t n_sep = strlen(sep);
    bool lines = by_lines(e);
    int rc = 0;
    if (!n) {
        gr_say_error("there is no text: give it by -p, -f or standard input");
        return GR_EXIT_USAGE;
    }
    if (e->all[n - 1] == '\n' && (lines || !e->o->prompt))
        n--;
    for (const char *p = e->all, *end = p + n; p && !rc;) {
        const char *q = n_sep ? memmem(p, (size_t)(end - p), sep, n_sep) : NULL;
        size_t len = (size_t)((q ? q : end) - p);
        while (lines && len && p[len - 1] == '\r')
            len--;
        rc = add_text(e, p, len);
        p = q ? q + n_sep : NULL;
    }
    return rc;
}

/* With --pooling rank a text may be a question and an answer, with a separator between them. */
static int tokenize(struct embed *e, struct input *in)
{
    const char *sep = e->o->cls_separator ? e->o->cls_separator : "\t";
    const char *p = in->text, *end = p + in->n_text;
    bool parts = e->pooling == GR_POOLING_RANK && *sep;
    int rc = 0;
    while (p && !rc) {
        const char *q = parts ? memmem(p, (size_t)(end - p), sep, strlen(sep)) : NULL;
        rc = gr_ids_add(&in->ids, e->model, p, (size_t)((q ? q : end) - p));
        rc = rc ? gr_say_status(rc) : 0;
        p = q ? q + strlen(sep) : NULL;
    }
    if (!rc && !in->ids.n) {
        char name[32];
        gr_say_error("%s has no tokens, and the model has none that texts begin with: leave it out",
                     name_of(e, (size_t)(in - e->input), name));
        rc = GR_EXIT_USAGE;
    }
    e->n_token += in->ids.n;
    return rc;
}

static int read_texts(struct embed *e)
{
    size_t n;
    bool given;
    int rc = gr_read_text(e->o, &e->all, &n, &given);
    return rc ? rc : cut(e, n);
}

/* ---- the session ---- */

/* Refuses texts beyond learned positions, and warns of those beyond the context that the rope
 * parameters are good for. */
static int check_length(const struct embed *e, size_t longest)
{
    int32_t reach;
    int status = gr_vectors_reach(e->o, e->model, &reach);
    if (status)
        return gr_say_status(status);
    size_t most = (size_t)reach, n_more = 0, first = 0;
    char name[32], all[48] = "";
    for (size_t i = e->n_input; i-- > 0;)
        if (e->input[i].ids.n > most)
            n_more++, first = i;
    if (n_more && e->info.n_learned_pos) {
        gr_say_error("%s has %zu tokens, and the model has learned %zu positions: cut it",
                     name_of(e, first, name), e->input[first].ids.n, most);
        return GR_EXIT_USAGE;
    }
    if (n_more > 1)
        snprintf(all, sizeof all, "; %zu texts have more", n_more);
    if (n_more)
        gr_say_warning("%s has %zu tokens, and the model was trained on %zu at most%s",
                       name_of(e, longest, name), e->input[longest].ids.n, most, all);
    return 0;
}

/* Computes the tokens per batch: whole texts, up to -b tokens, or one longer text. */
static int measure(struct embed *e)
{
    int rc = 0;
    size_t at = 0;
    for (size_t i = 0; i < e->n_input && !rc; i++) {
        rc = tokenize(e, &e->input[i]);
        at = e->input[i].ids.n > e->input[at].ids.n ? i : at;
    }
    if (!rc)
        rc = check_length(e, at);
    if (rc)
        return rc;
    size_t longest = e->input[at].ids.n, most = (size_t)e->o->batch_size;
    if (longest > 1 << 20) {
        gr_say_error("a text of %zu tokens: at most %d are possible", longest, 1 << 20);
        return GR_EXIT_USAGE;
    }
    most = e->n_token < most ? e->n_token : most;
    e->n_batch = (int32_t)(longest > most ? longest : most);
    return 0;
}

static int open_session(struct embed *e)
{
    struct gr_session_params p;
    int32_t n = e->n_input < INT32_MAX ? (int32_t)e->n_input : INT32_MAX;
    int rc = gr_vectors_params(&p, e->o, e->model, e->pooling, e->n_batch, n);
    if (!rc)
        rc = gr_vectors_open(&e->vectors, e->model, &p);
    if (rc)
        return gr_say_status(rc);
    e->pooling = e->vectors.pooling;
    e->row = calloc((size_t)e->vectors.n_embd, sizeof *e->row);
    return e->row ? 0 : gr_say_no_memory();
}

static int prepare(struct embed *e)
{
    (void)gr_pooling_named(e->o->pooling, &e->pooling);
    int rc = read_texts(e);
    if (!rc)
        rc = gr_open_model(e->o, false, &e->model);
    if (rc)
        return rc;
    gr_model_info(e->model, &e->info);
    if (e->pooling == GR_POOLING_MODEL)
        e->pooling = e->info.pooling;
    rc = measure(e);
    return rc ? rc : open_session(e);
}

/* ---- vectors ---- */

/* Prints row x as a line, or adds it to a list. */
static int put_row(struct embed *e, const float *x, json_t *list)
{
    bool score = e->pooling == GR_POOLING_RANK;
    int32_t n = e->vectors.n_embd;
    gr_vector_normalise(x, n, score ? -1 : e->o->embd_normalize, e->row);
    for (int32_t i = 0; i < n; i++) {
        if (list && json_array_append_new(list, json_real((double)e->row[i])))
            return gr_say_no_memory();
        if (!list)
            printf("%s%.9g", i ? " " : "", (double)e->row[i]);
    }
    if (!list)
        putchar('\n');
    return 0;
}

/* Prints the rows of a text, sequence q, whose first token is number `first` of the batch. */
static int put_rows(struct embed *e, const struct input *in, int32_t first, int32_t q)
{
    bool each = e->pooling == GR_POOLING_NONE;
    int32_t n = each ? (int32_t)in->ids.n : 1;
    json_t *rows = e->data ? json_array() : NULL;
    int rc = 0;
    for (int32_t i = 0; i < n && !rc; i++) {
        json_t *list = rows && each ? json_array() : rows;
        const struct gr_session *session = e->vectors.session;
        rc = put_row(e, each ? gr_embeddings(session, first + i) : gr_embeddings_seq(session, q),
                     list);
        if (rows && each && json_array_append_new(rows, list))
            rc = gr_say_no_memory();
    }
    if (!rows)
        return rc;
    const char *what = e->pooling == GR_POOLING_RANK ? "scores" : "embedding";
    json_t *item =
        json_pack("{s:s, s:i, s:o}", "object", what, "index", (int)(in - e->input), what, rows);
    return json_array_append_new(e->data, item) ? gr_say_no_memory() : rc;
}

/* Runs texts [lo, hi) in one batch. */
static int run_batch(struct embed *e, size_t lo, size_t hi)
{
    const struct gr_ids **text = malloc((hi - lo) * sizeof *text);
    int32_t at = 0;
    if (!text)
        return gr_say_no_memory();
    for (size_t i = lo; i < hi; i++)
        text[i - lo] = &e->input[i].ids;
    int rc = gr_vectors_run(&e->vectors, text, (int32_t)(hi - lo));
    free(text);
    rc = rc ? gr_say_status(rc) : 0;
    gr_say_erase(); /* rows may go to the same terminal */
    for (size_t i = lo; i < hi && !rc; at += (int32_t)e->input[i++].ids.n)
        rc = put_rows(e, &e->input[i], at, (int32_t)(i - lo));
    return rc;
}

static int run_all(struct embed *e)
{
    int rc = 0;
    gr_bar_begin("embed", (double)e->n_token, GR_BAR_TOKENS);
    gr_bar_watch(e->vectors.session);
    for (size_t lo = 0, hi; lo < e->n_input && !rc; lo = hi) {
        size_t n = 0;
        for (hi = lo; hi < e->n_input && hi - lo < (size_t)e->vectors.n_seq; hi++) {
            if (n + e->input[hi].ids.n > (size_t)e->n_batch)
                break;
            n += e->input[hi].ids.n;
        }
        rc = run_batch(e, lo, hi);
        gr_bar_add(rc ? 0 : (double)n);
    }
    gr_bar_end();
    return rc;
}

/* ---- the end ---- */

static int print_json(struct embed *e)
{
    json_t *labels = json_array();
    for (int32_t i = 0; labels && i < e->info.n_label; i++)
        json_array_append_new(labels, json_string(gr_model_label(e->model, i)));
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:O, s:{s:I, s:I}}", "object", "list", "model", e->info.name,
                  "pooling", gr_pooling_name(e->pooling), "data", e->data, "usage", "prompt_tokens",
                  (json_int_t)e->n_token, "total_tokens", (json_int_t)e->n_token);
    if (o && e->pooling == GR_POOLING_RANK && e->info.n_label)
        json_object_set(o, "labels", labels);
    char *line = o ? json_dumps(o, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(labels);
    json_decref(o);
    if (!line)
        return gr_say_no_memory();
    gr_out(line, strlen(line));
    gr_out("\n", 1);
    free(line);
    return 0;
}

static void say_summary(const struct embed *e)
{
    double seconds = gr_seconds() - e->start;
    char gpu[160];
    gr_say("%zu texts, %zu tokens, %d numbers, pooling %s | %.2f s, %.1f texts/s, %.1f t/s%s",
           e->n_input, e->n_token, e->vectors.n_embd, gr_pooling_name(e->pooling), seconds,
           (double)e->n_input / seconds, (double)e->n_token / seconds,
           gr_gpu_summary(e->vectors.session, gpu, sizeof gpu));
    gr_say_stages(e->vectors.session);
}

int gr_tool_embed(const struct gr_options *o)
{
    struct embed e = {.o = o};
    int rc = prepare(&e);
    e.start = gr_seconds();
    if (!rc && o->json && !(e.data = json_array()))
        rc = gr_say_no_memory();
    if (!rc)
        rc = run_all(&e);
    if (!rc && o->json)
        rc = print_json(&e);
    if (!rc) {
        gr_out_finish();
        say_summary(&e);
    }
    json_decref(e.data);
    gr_vectors_close(&e.vectors);
    for (size_t i = 0; i < e.n_input; i++)
        gr_ids_free(&e.input[i].ids);
    gr_model_close(&e.model);
    free(e.input);
    free(e.all);
    free(e.row);
    return rc;
}
