/* Timing on a GPU: copies of a node's tensors that together are several times larger than any cache
 * stand side by side, and a segment runs the node on one after the other; so nothing is read from a
 * cache that a model's step would not find there either. The result of the first one is compared
 * with the CPU's. */
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

enum { MAX_COPIES = 64, MAX_OPERANDS = 24, ROTATED = 320 << 20 };

struct copies {
    struct gr_node node[MAX_COPIES];
    void *memory[MAX_COPIES][MAX_OPERANDS];
    int n;
    double bytes; /* of one */
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
    c->bytes += copy == 0 ? (double)bytes : 0;
}

static void bring_copy(struct bench *k, struct copies *c, const struct gr_node *host, int copy)
{
    const struct gr_operand *ops = gr_op_info(host->op)->operands;
    struct gr_node from = *host;
    c->node[copy] = *host;
    for (int i = 0; ops[i].role; i++) {
        struct gr_ten *t = gr_node_ten(&c->node[copy], &ops[i]);
        int first = 0; /* of the operands in the same memory (y may be x) */
        while (gr_node_ten(&from, &ops[first])->data != t->data)
            first++;
        if (gr_ten_is(t) && first < i)
            t->data = gr_node_ten(&c->node[copy], &ops[first])->data;
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

/* ||device - CPU|| / ||CPU|| over the outputs that are f32; the host's node has been run. */
static double error_of(struct bench *k, const struct copies *c, const struct gr_node *host)
{
    double squares = 0, all = 0;
    struct gr_node a = *host, b = c->node[0];
    for (const struct gr_operand *o = gr_op_info(a.op)->operands; o->role; o++) {
        const struct gr_ten *t = gr_node_ten(&a, o);
        if (o->role != GR_ROLE_OUT || !gr_ten_is(t) || t->dtype != GR_F32)
            continue;
        float *got = gr_calloc(bytes_of(t), 1);
        const float *want = t->data;
        if (!got)
            bench_die(gr_error());
        need(k->device->api->download(k->device, got, gr_node_ten(&b, o)->data, bytes_of(t)));
        for (size_t i = 0; i < bytes_of(t) / 4; i++) {
            squares += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
            all += (double)want[i] * want[i];
        }
        gr_free(got);
    }
    return sqrt(squares / (all > 0 ? all : 1));
}

static void run_once(struct gr_backend *b, const struct gr_node *node)
{
    struct gr_segment s = {node, 1, NULL, 0};
    void *exec;
    need(b->api->segment_new(b, &s, &exec));
    need(b->api->segment_run(b, exec, NULL, NULL));
    need(b->api->sync(b));
    b->api->segment_free(b, &exec);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds a node of each run of all copies, ascending. */
static void time_copies(struct bench *k, const struct copies *c, double *seconds)
{
    const struct gr_backend_api *api = k->device->api;
    struct gr_segment s = {c->node, c->n, NULL, 0};
    void *exec;
    need(api->segment_new(k->device, &s, &exec));
    for (int i = -3; i < k->repeats; i++) {
        int64_t from = gr_now_ns();
        need(api->segment_run(k->device, exec, NULL, NULL));
        need(api->sync(k->device));
        if (i >= 0)
            seconds[i] = gr_seconds_since(from) / c->n;
    }
    api->segment_free(k->device, &exec);
    qsort(seconds, (size_t)k->repeats, sizeof *seconds, by_value);
}

static void print(const struct bench *k, const struct bench_row *row, const struct copies *c,
                  const double *seconds, double error)
{
    double median = seconds[k->repeats / 2], rate = row->bytes / median;
    double share = k->info.bytes_per_s ? rate / (double)k->info.bytes_per_s : 0;
    if (k->json)
        printf("{\"op\": \"%s\", \"type\": \"%s\", \"shape\": \"%s\", \"n_tok\": %d, \"impl\": "
               "\"gpurun\", \"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"bytes\": "
               "%.0f, \"flops\": %.0f, \"rel_err\": %.3g, \"rotated_mb\": %.0f}\n",
               row->op, row->type, row->shape, k->n_tok, median * 1e6,
               seconds[k->repeats / 10] * 1e6, seconds[k->repeats * 9 / 10] * 1e6, row->bytes,
               2 * row->macs, error, c->bytes * c->n / 1e6);
    else
        printf("%-10s %-5s %-28s %4d tok %10.1f us %8.1f GB/s %5.1f %% %8.2f TFLOP/s  error %.1e\n",
               row->op, row->type, row->shape, k->n_tok, median * 1e6, rate * 1e-9, share * 100,
               2 * row->macs / median * 1e-12, error);
    fflush(stdout);
}

void bench_measure_device(struct bench *k, const struct bench_row *row, const struct gr_node *node)
{
    struct copies *c = gr_calloc(1, sizeof *c);
    double *seconds = gr_calloc((size_t)k->repeats, sizeof *seconds);
    if (!c || !seconds)
        bench_die(gr_error());
    do
        bring_copy(k, c, node, c->n++);
    while (c->n < MAX_COPIES && c->bytes * c->n < ROTATED);
    run_once(k->b, node);
    run_once(k->device, &c->node[0]);
    double error = error_of(k, c, node);
    time_copies(k, c, seconds);
    print(k, row, c, seconds, error);
    drop_copies(k, c);
    gr_free(seconds);
    gr_free(c);
}
