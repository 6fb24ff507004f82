/* gpurun bench: tokens a second of prompts ("pp512") and of generation, of one text ("tg128") or of
 * several side by side ("tg128x16": tokens of all of them), as a table or a JSON object a line.
 *
 * Where several ranks share the model, batches follow each other through its stages: pieces of a
 * prompt, and as many groups of texts as there are stages. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools.h"
#include "trace.h"

#define MOST_TEXTS 256 /* -np */

struct bench {
    const struct gr_options *o;
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_session *session;
    struct gr_trace *trace;
    char backend[16]; /* "CPU", or the GPU that layers are on */
    int32_t *ids;     /* as many as the longest prompt; any tokens do */
    int32_t n_ids;
    int32_t n_stage;  /* that have layers */
    int32_t n_flight; /* batches on their way */
    int n_threads;
};

static int32_t longest(const struct gr_int_list *list)
{
    int32_t most = 0;
    for (int i = 0; i < list->n; i++)
        most = list->v[i] > most ? list->v[i] : most;
    return most;
}

/* Stages are as many as there are first layers. */
static int32_t count_stages(struct gr_session *s)
{
    struct gr_stage stage[64];
    int32_t n = gr_session_stages(s, stage, 64), count = 0;
    for (int32_t i = 0; i < n; i++)
        count += stage[i].n_layer && (!i || stage[i].first_layer != stage[i - 1].first_layer);
    return count > 0 ? count : 1;
}

static int open_bench(struct bench *b)
{
    const struct gr_options *o = b->o;
    int rc = gr_open_model(o, false, &b->model);
    if (rc)
        return rc;
    gr_model_info(b->model, &b->info);
    struct gr_session_params p = gr_session_options(o);
    int32_t n_prompt = longest(&o->n_prompt), n_gen = longest(&o->n_gen);
    p.n_seq_max = (uint32_t)longest(&o->n_parallel);
    uint32_t n_all = (uint32_t)n_gen * p.n_seq_max;
    p.n_ctx = ((uint32_t)n_prompt > n_all ? (uint32_t)n_prompt : n_all) + p.n_seq_max;
    b->n_threads = p.n_threads;
    b->n_ids = n_prompt > 2 ? n_prompt : 2;
    b->ids = malloc((size_t)b->n_ids * sizeof *b->ids);
    if (!b->ids) {
        gr_say_error("no memory for a prompt of %d tokens", b->n_ids);
        return 5;
    }
    uint64_t x = 1;
    for (int32_t i = 0; i < b->n_ids; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        b->ids[i] = (int32_t)((x >> 33) % (uint64_t)b->info.n_vocab);
    }
    rc = gr_session_open(&b->session, b->model, &p);
    if (rc)
        return gr_say_status(rc);
    gr_model_info(b->model, &b->info); /* the layers on the GPU are known now */
    struct gr_fit fit;
    rc = gr_session_fit(b->session, &fit);
    int32_t d = 0;
    while (fit.n_gpu_layers && d < fit.n_device - 1 && !fit.device[d].total_bytes)
        d++; /* the first GPU */
    snprintf(b->backend, sizeof b->backend, "%s", fit.device[d].name);
    b->n_stage = count_stages(b->session);
    return rc ? gr_say_status(rc) : gr_trace_begin(&b->trace, o, b->session);
}

/* Begins a batch when no more than `most` will be in flight with it. */
static int begin(struct bench *b, const struct gr_batch *batch, int32_t most)
{
    int rc = gr_end_batches(b->session, &b->n_flight, most - 1);
    if (!rc)
        rc = gr_decode_begin(b->session, batch);
    b->n_flight += !rc;
    return rc;
}

/* A prompt in batches of -b. */
static int pass_prompt(struct bench *b, int32_t n)
{
    int32_t step = b->o->batch_size;
    int rc = 0;
    for (int32_t i = 0; i < n && !rc; i += step) {
        struct gr_batch batch = {.n_tok = n - i < step ? n - i : step, .token = b->ids + i};
        rc = begin(b, &batch, GR_MOST_FLIGHT);
    }
    return rc;
}

/* n tokens of each of n_seq texts, in groups of which each is one stage further than the next. */
static int pass_texts(struct bench *b, int32_t n, int32_t n_seq)
{
    int32_t n_group = n_seq < b->n_stage ? n_seq : b->n_stage;
    int32_t token[MOST_TEXTS], seq[MOST_TEXTS];
    int8_t logits[MOST_TEXTS];
    int rc = 0;
    for (int32_t i = 0; i < n * n_group && !rc; i++) {
        int32_t g = i % n_group, lo = g * n_seq / n_group, hi = (g + 1) * n_seq / n_group;
        for (int32_t k = lo; k < hi; k++)
            token[k - lo] = b->ids[(i + k) % b->n_ids], seq[k - lo] = k, logits[k - lo] = 1;
        struct gr_batch batch = {.n_tok = hi - lo, .token = token, .seq = seq, .logits = logits};
        rc = begin(b, &batch, n_group);
    }
    return rc;
}

/* One pass over an empty cache: a prompt, or with n_seq > 0 so many texts. */
static int pass(struct bench *b, int32_t n, int32_t n_seq)
{
    gr_kv_clear(b->session);
    int rc = n_seq ? pass_texts(b, n, n_seq) : pass_prompt(b, n);
    if (!rc)
        rc = gr_end_batches(b->session, &b->n_flight, 0);
    return rc ? gr_say_status(rc) : 0;
}

static void print_row(const struct bench *b, const char *test, double mean, double deviation)
{
    char name[64], size[16], params[16], speed[48];
    if (b->o->json) {
        printf("{\"test\":\"%s\",\"tok_s\":%.3f,\"stddev\":%.3f,\"n_threads\":%d,\"reps\":%d,"
               "\"arch\":\"%s\","
               "\"file_type\":\"%s\",\"n_params\":%llu,\"n_bytes\":%llu,\"backend\":\"%s\","
               "\"gpu_layers\":%d}\n",
               test, mean, deviation, b->n_threads, b->o->repetitions, b->info.arch,
               b->info.file_type, (unsigned long long)b->info.n_params,
               (unsigned long long)b->info.n_bytes, b->backend, b->info.n_gpu_layers);
    } else {
        snprintf(name, sizeof name, "%s %s", b->info.arch, b->info.file_type);
        snprintf(speed, sizeof speed, "%.2f \u00b1 %.2f", mean, deviation);
        printf("| %-24s | %10s | %8s | %-7s | %3d | %7d | %8s | %21s |\n", name,
               gr_amount(size, (double)b->info.n_bytes, 1024),
               gr_amount(params, (double)b->info.n_params, 1000), b->backend, b->info.n_gpu_layers,
               b->n_threads, test, speed);
    }
    fflush(stdout);
}

/* n_seq: texts, 0 = a prompt. */
static int measure(struct bench *b, int32_t n, int32_t n_seq)
{
    char test[40];
    double sum = 0, squares = 0;
    int reps = b->o->repetitions, rc = 0;
    if (!n)
        return 0;
    if (b->o->warmup)
        rc = pass(b, n_seq ? 1 : n, n_seq);
    for (int i = 0; i < reps && !rc; i++) {
        double start = gr_seconds();
        rc = pass(b, n, n_seq);
        double speed = (double)n * (n_seq ? n_seq : 1) / (gr_seconds() - start);
        sum += speed, squares += speed * speed;
    }
    if (rc)
        return rc;
    double mean = sum / reps, variance = reps > 1 ? (squares - sum * mean) / (reps - 1) : 0;
    int length = snprintf(test, sizeof test, "%s%d", n_seq ? "tg" : "pp", n);
    if (n_seq > 1)
        snprintf(test + length, sizeof test - (size_t)length, "x%d", n_seq);
    print_row(b, test, mean, sqrt(variance > 0 ? variance : 0));
    return 0;
}

static void print_head(const struct gr_options *o)
{
    if (!o->json)
        printf("| model                    |       size |   params | backend | ngl | threads |     "
               "test "
               "|                  t/s |\n"
               "| ------------------------ | ---------: | -------: | ------- | --: | ------: | "
               "-------: "
               "| -------------------: |\n");
}

int gr_tool_bench(const struct gr_options *o)
{
    struct bench b = {.o = o};
    int rc = open_bench(&b);
    if (!rc)
        print_head(o);
    for (int i = 0; i < o->n_prompt.n && !rc; i++)
        rc = measure(&b, o->n_prompt.v[i], 0);
    for (int i = 0; i < o->n_gen.n * o->n_parallel.n && !rc; i++)
        rc = measure(&b, o->n_gen.v[i / o->n_parallel.n], o->n_parallel.v[i % o->n_parallel.n]);
    int traced = gr_trace_end(&b.trace);
    rc = rc ? rc : traced;
    gr_session_close(&b.session);
    gr_model_close(&b.model);
    free(b.ids);
    return rc;
}
