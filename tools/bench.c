/* gpurun bench: tokens a second of prompts ("pp512") and of generation ("tg128"), as a table or a
 * JSON object a line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools.h"
#include "trace.h"

struct bench {
    const struct gr_options *o;
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_session *session;
    struct gr_trace *trace;
    char backend[16]; /* "CPU", or the GPU that layers are on */
    int32_t *ids;     /* as many as the longest prompt; any tokens do */
    int32_t n_ids;
    int n_threads;
};

static int32_t longest(const struct gr_int_list *list)
{
    int32_t most = 0;
    for (int i = 0; i < list->n; i++)
        most = list->v[i] > most ? list->v[i] : most;
    return most;
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
    p.n_ctx = (uint32_t)(n_prompt > n_gen ? n_prompt : n_gen) + 1;
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
    return rc ? gr_say_status(rc) : gr_trace_begin(&b->trace, o, b->session);
}

/* One pass over an empty cache: a prompt in batches of -b, or as many single tokens. */
static int pass(struct bench *b, int32_t n, bool prompt)
{
    int32_t step = prompt ? b->o->batch_size : 1;
    gr_kv_clear(b->session);
    for (int32_t i = 0; i < n; i += step) {
        struct gr_batch batch = {.n_tok = n - i < step ? n - i : step,
                                 .token = b->ids + (prompt ? i : i % b->n_ids)};
        int rc = gr_decode(b->session, &batch);
        if (rc)
            return gr_say_status(rc);
    }
    return 0;
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

static int measure(struct bench *b, int32_t n, bool prompt)
{
    char test[24];
    double sum = 0, squares = 0;
    int reps = b->o->repetitions, rc = 0;
    if (!n)
        return 0;
    if (b->o->warmup)
        rc = pass(b, prompt ? n : 1, prompt);
    for (int i = 0; i < reps && !rc; i++) {
        double begin = gr_seconds();
        rc = pass(b, n, prompt);
        double speed = n / (gr_seconds() - begin);
        sum += speed, squares += speed * speed;
    }
    if (rc)
        return rc;
    double mean = sum / reps, variance = reps > 1 ? (squares - sum * mean) / (reps - 1) : 0;
    snprintf(test, sizeof test, "%s%d", prompt ? "pp" : "tg", n);
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
        rc = measure(&b, o->n_prompt.v[i], true);
    for (int i = 0; i < o->n_gen.n && !rc; i++)
        rc = measure(&b, o->n_gen.v[i], false);
    int traced = gr_trace_end(&b.trace);
    rc = rc ? rc : traced;
    gr_session_close(&b.session);
    gr_model_close(&b.model);
    free(b.ids);
    return rc;
}
