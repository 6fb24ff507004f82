/* Timing on a GPU: copies of what a node streams, weights or cells, that together are several times
 * larger than any cache stand side by side, and a segment (a graph) runs the node on one after the
 * other, at least 20 launches; so nothing is read from a cache that a model's step would not find
 * there either. Segments follow each other without a pause for 2 ms before the clock is read.
 *
 * A row of -j 1: op, type, shape, n_tok, impl "gpurun", or "cublaslt" of products by it; median_us,
 * p10_us, p90_us of a launch; bytes (that it has to move) and flops; rel_err (bench_exact.c; null:
 * not finite); hash of what it writes and whether ten runs (two at least, where that is more than 1
 * GiB), each into NaNs, wrote the same (same); rotated_mb of copies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"
#include "ops/bench.h"
#include "ops/matrix.h"

enum {
    MAX_COPIES = 128,
    MAX_OPERANDS = 24,
    ROTATED = 320 << 20,
    LEAST_LAUNCHES = 20,
    N_AGAIN = 10,
    AGAIN_BYTES = 1 << 30,
    WARM_NS = 50000000,
    RUN_NS = 2000000
};

struct copies {
    struct gr_node node[MAX_COPIES];
    void *memory[MAX_COPIES][MAX_OPERANDS];
    int n;
    double bytes; /* of what a copy has for itself */
};

static size_t bytes_of(const struct gr_ten *t)
{
    return (size_t)(t->batch * t->rows * t->row_bytes);
}

static void need(int status)
{
    if (status)
        bench_die(gr_error());
}

/* True for an operand that the operation streams from memory. */
static bool is_streamed(enum gr_op op, const struct gr_operand *o)
{
    return ops_is_matrix(op, o) || o->role == GR_ROLE_INOUT ||
           (op == GR_OP_ATTN && (!strcmp(o->name, "k") || !strcmp(o->name, "v")));
}

static bool streams(enum gr_op op)
{
    for (const struct gr_operand *o = gr_op_info(op)->operands; o->role; o++)
        if (is_streamed(op, o))
            return true;
    return false;
}

/* Operand number i of a copy, on the device. */
static void bring(struct bench *k, struct copies *c, int copy, int i, const struct gr_operand *o)
{
    const struct gr_backend_api *api = k->device->api;
    struct gr_node *node = &c->node[copy];
    struct gr_ten *t = gr_node_ten(node, o), host = *t;
    bool weight = ops_is_matrix(node->op, o);
    size_t bytes = weight ? api->weight_bytes(k->device, &host, true) : bytes_of(&host);
    void *p = c->memory[copy][i] = api->alloc(k->device, bytes);
    if (!p)
        bench_die(gr_error());
    if (weight)
        need(api->weight_upload(k->device, &host, true, p, t));
    else
        need(api->upload(k->device, t->data = p, host.data, bytes));
    c->bytes += copy == 0 && (is_streamed(node->op, o) || !streams(node->op)) ? (double)bytes : 0;
}

/* Operands that are not streamed are the first copy's; so are, within a copy, operands in the same
 * memory (y may be x). */
static void bring_copy(struct bench *k, struct copies *c, const struct gr_node *host, int copy)
{
    const struct gr_operand *ops = gr_op_info(host->op)->operands;
    struct gr_node from = *host;
    c->node[copy] = *host;
    for (int i = 0; ops[i].role; i++) {
        struct gr_ten *t = gr_node_ten(&c->node[copy], &ops[i]);
        int first = 0;
        while (gr_node_ten(&from, &ops[first])->data != t->data)
            first++;
        if (gr_ten_is(t) && first < i)
            t->data = gr_node_ten(&c->node[copy], &ops[first])->data;
        else if (gr_ten_is(t) && copy > 0 && streams(host->op) && !is_streamed(host->op, &ops[i]))
            *t = *gr_node_ten(&c->node[0], &ops[i]);
        else if (gr_ten_is(t))
            bring(k, c, copy, i, &ops[i]);
    }
}

static void drop_copies(struct bench *k, struct copies *c)
{
    for (int copy = 0; copy < c->n; copy++)
        for (int i = 0; i < MAX_OPERANDS; i++)
            if (c->memory[copy][i])
                k->device->api->free(k->device, c->memory[copy][i]);
}

/* ---- whether it is right each time ---- */

/* Before a run: what the first copy writes is NaN, what it changes as the host has it. */
static void prepare(struct bench *k, const struct copies *c, const struct gr_node *host)
{
    struct gr_node from = *host, to = c->node[0];
    for (const struct gr_operand *o = gr_op_info(host->op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(&from, o);
        if (o->role == GR_ROLE_IN || !gr_ten_is(t))
            continue;
        void *poison = o->role == GR_ROLE_OUT ? gr_calloc(bytes_of(t), 1) : NULL;
        if (o->role == GR_ROLE_OUT && !poison)
            bench_die(gr_error());
        if (poison)
            memset(poison, 0xff, bytes_of(t));
        need(k->device->api->upload(k->device, gr_node_ten(&to, o)->data, poison ? poison : t->data,
                                    bytes_of(t)));
        gr_free(poison);
    }
}

/* FNV-1a, by words, of all that the first copy has written. */
static uint64_t hash_of(struct bench *k, const struct copies *c, const struct gr_node *host)
{
    struct gr_node from = *host, to = c->node[0];
    uint64_t hash = 14695981039346656037u;
    for (const struct gr_operand *o = gr_op_info(host->op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(&from, o);
        if (o->role == GR_ROLE_IN || !gr_ten_is(t))
            continue;
        uint32_t *words = gr_calloc(bytes_of(t) / 4 + 1, 4);
        if (!words)
            bench_die(gr_error());
        need(k->device->api->download(k->device, words, gr_node_ten(&to, o)->data, bytes_of(t)));
        for (size_t i = 0; i < bytes_of(t) / 4 + 1; i++)
            hash = (hash ^ words[i]) * 1099511628211u;
        gr_free(words);
    }
    return hash;
}

/* Bytes that the node writes. */
static double written(const struct gr_node *host)
{
    struct gr_node node = *host;
    double bytes = 0;
    for (const struct gr_operand *o = gr_op_info(host->op)->operands; o->role; o++)
        bytes += o->role == GR_ROLE_IN ? 0 : (double)bytes_of(gr_node_ten(&node, o));
    return bytes;
}

/* Runs the first copy; *same: each time with the same result. Ten times, large results less often.
 */
static uint64_t run_again(struct bench *k, const struct copies *c, const struct gr_node *host,
                          bool *same)
{
    const struct gr_backend_api *api = k->device->api;
    struct gr_segment s = {c->node, 1, NULL, 0};
    void *exec;
    uint64_t first = 0;
    *same = true;
    need(api->segment_new(k->device, &s, &exec));
    int64_t n = (int64_t)(AGAIN_BYTES / written(host));
    for (int i = 0; i < GR_MAX(2, GR_MIN(n, k->tiny ? 2 : N_AGAIN)); i++) {
        prepare(k, c, host);
        need(api->segment_run(k->device, exec, NULL, NULL));
        need(api->sync(k->device));
        uint64_t hash = hash_of(k, c, host);
        first = i ? first : hash;
        *same = *same && hash == first;
    }
    api->segment_free(k->device, &exec);
    return first;
}

/* ---- how long it takes ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ns of n runs of a segment, one behind the other. */
static int64_t time_runs(struct bench *k, void *exec, int n)
{
    int64_t from = gr_now_ns();
    for (int i = 0; i < n; i++)
        need(k->device->api->segment_run(k->device, exec, NULL, NULL));
    need(k->device->api->sync(k->device));
    return gr_now_ns() - from;
}

/* Seconds a launch, of each measurement, ascending. */
static void time_copies(struct bench *k, const struct copies *c, double *seconds)
{
    static struct gr_node node[LEAST_LAUNCHES + MAX_COPIES];
    int n = 0, n_run = 1, least = k->tiny ? 1 : LEAST_LAUNCHES;
    int64_t ns = 0;
    while (n < least)
        for (int i = 0; i < c->n; i++)
            node[n++] = c->node[i];
    struct gr_segment s = {node, n, NULL, 0};
    void *exec;
    need(k->device->api->segment_new(k->device, &s, &exec));
    for (int64_t warm = 0; warm < WARM_NS; warm += ns)
        ns = GR_MAX(1, time_runs(k, exec, 1));
    n_run = (int)GR_MAX(1, RUN_NS / ns);
    for (int i = 0; i < k->repeats; i++)
        seconds[i] = (double)time_runs(k, exec, n_run) * 1e-9 / n / n_run;
    k->device->api->segment_free(k->device, &exec);
    qsort(seconds, (size_t)k->repeats, sizeof *seconds, by_value);
}

/* ---- a row ---- */

struct found {
    const char *impl;
    double error, rotated;
    uint64_t hash;
    bool same;
};

static void print_json(const struct bench *k, const struct bench_row *row, const double *seconds,
                       const struct found *f)
{
    char error[32] = "null";
    if (isfinite(f->error))
        snprintf(error, sizeof error, "%.3g", f->error);
    printf("{\"op\": \"%s\", \"type\": \"%s\", \"shape\": \"%s\", \"n_tok\": %d, \"impl\": "
           "\"%s\", \"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"bytes\": %.0f, "
           "\"flops\": %.0f, \"rel_err\": %s, \"hash\": \"%016llx\", \"same\": %s, "
           "\"rotated_mb\": %.3g}\n",
           row->op, row->type, row->shape, row->n_tok ? row->n_tok : k->n_tok, f->impl,
           seconds[k->repeats / 2] * 1e6, seconds[k->repeats / 10] * 1e6,
           seconds[k->repeats * 9 / 10] * 1e6, row->bytes, 2 * row->macs, error,
           (unsigned long long)f->hash, f->same ? "true" : "false", f->rotated);
}

static void print(const struct bench *k, const struct bench_row *row, const double *seconds,
                  const struct found *f)
{
    double median = seconds[k->repeats / 2], rate = row->bytes / median;
    double share = k->info.bytes_per_s ? rate / (double)k->info.bytes_per_s : 0;
    if (k->json)
        print_json(k, row, seconds, f);
    else
        printf("%-12s %-5s %-32s %5d tok %10.1f us %8.1f GB/s %5.1f %% %8.2f TFLOP/s  error "
               "%.1e  %s%s\n",
               row->op, row->type, row->shape, row->n_tok ? row->n_tok : k->n_tok, median * 1e6,
               rate * 1e-9, share * 100, 2 * row->macs / median * 1e-12, f->error, f->impl,
               f->same ? "" : "  RUNS DIFFER");
    fflush(stdout);
}

double bench_measure_device(struct bench *k, struct gr_backend *device, const struct bench_row *row,
                            const struct gr_node *node)
{
    const double rotated = k->tiny ? 1 << 14 : ROTATED;
    struct copies *c = gr_calloc(1, sizeof *c);
    double *seconds = gr_calloc((size_t)k->repeats, sizeof *seconds);
    struct gr_backend *own = k->device;
    struct found f = {.impl = device == k->library ? "cublaslt" : "gpurun"};
    if (!c || !seconds)
        bench_die(gr_error());
    k->device = device;
    do
        bring_copy(k, c, node, c->n++);
    while (c->n < MAX_COPIES && c->bytes * c->n < rotated);
    f.rotated = c->bytes * c->n / 1e6;
    f.hash = run_again(k, c, node, &f.same);
    f.error = bench_error(k, node, &c->node[0]);
    time_copies(k, c, seconds);
    print(k, row, seconds, &f);
    drop_copies(k, c);
    k->device = own;
    double median = seconds[k->repeats / 2];
    gr_free(seconds);
    gr_free(c);
    return median;
}
