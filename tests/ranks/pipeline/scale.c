/* pipeline_scale [--stages N] [--groups M] [--sequences K] [--steps T] [--us U] [--boundary BYTES]
 *                [--delay US] [--rate BYTES/S] [--compute]
 *                [--spans] [--chunks C]
 *
 * Runs M groups of K sequences, in flight at the same time, through a pipeline of N stages whose
 * devices take U microseconds for a micro-batch (timed.h), and prints a JSON object of what came
 * out. Stages are threads of this process, or with mpirun processes (then N is their number). What
 * is run is a tiny model with a layer for each stage and as many columns as give boundaries of
 * BYTES for a sequence; links, frames, orders and the step loop are the real ones. With --compute
 * the layers are computed too. --delay and --rate: of a wire that data crosses from stage to stage.
 * --spans: what each stage was at when. --chunks: instead of tokens of groups prompts, each of C
 * micro-batches of K tokens. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gr/status.h"
#include "ranks/team.h"
#include "support/timed.h"
#include "support/tiny.h"

#define MOST_SEQUENCES 256
#define MOST_TOKENS 1024
#define MOST_SPAN 4096

struct task {
    int n_stage, n_group, n_seq, n_step, us, boundary, n_chunk;
    bool compute, spans;
    struct gr_link_opt wire;
    char path[256];
};

static int fail(int rc)
{
    if (rc)
        fprintf(stderr, "pipeline_scale: %s\n", gr_error_message());
    return rc;
}

/* ---- what rank 0 does ---- */

/* Group g makes one more token of each of its sequences, or goes on with a prompt. */
static int begin(struct gr_session *s, const struct task *t, int g)
{
    int32_t token[MOST_TOKENS], seq[MOST_TOKENS];
    int8_t logits[MOST_TOKENS];
    int n = t->n_seq * (t->n_chunk ? t->n_chunk : 1);
    for (int i = 0; i < n; i++) {
        token[i] = 1 + i % 64, logits[i] = !t->n_chunk || i == n - 1;
        seq[i] = t->n_chunk ? g : g * t->n_seq + i;
    }
    return gr_decode_begin(
        s, &(struct gr_batch){.n_tok = n, .token = token, .seq = seq, .logits = logits});
}

/* n rounds, in which every group makes a token. ends: when each group's came back, [n * n_group].
 */
static int rounds(struct gr_session *s, const struct task *t, int n, int64_t *ends)
{
    int rc = 0;
    for (int i = 0; i < (n + 1) * t->n_group && !rc; i++) {
        if (i >= t->n_group) {
            rc = gr_decode_end(s);
            ends[i - t->n_group] = gr_now_ns();
        }
        if (i < n * t->n_group && !rc)
            rc = begin(s, t, i % t->n_group);
    }
    return rc;
}

static int by_size(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* The q-th part of n numbers, which are sorted; ns to us. */
static double part(int64_t *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return n ? (double)v[(int)(q * (n - 1))] * 1e-3 : 0;
}

/* ---- what the stages say ---- */

/* Times of each rank, micro-batch by micro-batch: ns without waiting. */
struct work {
    int n[TIMED_MAX];
    int64_t ns[TIMED_MAX][MOST_SPAN];
    int64_t from_ns; /* spans from here on are printed; INT64_MAX = none */
    bool printed;
};

static void on_span(const struct gr_stage_span *span, void *user)
{
    struct work *w = user;
    int *n = &w->n[span->rank];
    if (span->what != GR_SPAN_WAIT && *n < MOST_SPAN)
        w->ns[span->rank][*n] += span->ns;
    *n += span->what == GR_SPAN_TRANSFER;
    if (span->start_ns < w->from_ns)
        return;
    printf("%s[%d, %llu, \"%s\", %.1f, %.1f]", w->printed ? ", " : "", span->rank,
           (unsigned long long)span->ubatch,
           span->what == GR_SPAN_BUSY   ? "busy"
           : span->what == GR_SPAN_WAIT ? "wait"
                                        : "transfer",
           (double)(span->start_ns - w->from_ns) * 1e-3, (double)span->ns * 1e-3);
    w->printed = true;
}

/* Spans since from_ns, and of each stage what a micro-batch took beside waiting. */
static int print_stages(struct gr_session *s, int64_t from_ns)
{
    static struct work work;
    struct gr_stage stage[TIMED_MAX];
    int32_t n = gr_session_stages(s, stage, TIMED_MAX);
    work.from_ns = from_ns;
    printf(" \"spans\": [");
    int rc = gr_session_spans(s, on_span, &work);
    printf("], \"each\": [");
    for (int i = 0; i < n; i++)
        printf("%s{\"busy\": %.6f, \"wait\": %.6f, \"transfer\": %.6f, \"n\": %llu, "
               "\"host_p50\": %.2f, \"host_p95\": %.2f}",
               i ? ", " : "", (double)stage[i].busy_ns * 1e-9, (double)stage[i].wait_ns * 1e-9,
               (double)stage[i].transfer_ns * 1e-9, (unsigned long long)stage[i].n_ubatch,
               part(work.ns[i], work.n[i], 0.5), part(work.ns[i], work.n[i], 0.95));
    printf("]}\n");
    return n ? rc : gr_fail(GR_E_INTERNAL, "no stage says what it did");
}

static void forget(const struct gr_stage_span *span, void *user)
{
    (void)span, (void)user;
}

/* A quarter of the steps goes before, until the pipeline is full and plans are made. */
static int measure(struct gr_session *s, const struct task *t)
{
    int n = t->n_step * t->n_group;
    int64_t *ends = gr_calloc((size_t)n + 1, sizeof *ends);
    int rc = ends ? rounds(s, t, t->n_step / 4 + 1, ends) : GR_E_NOMEM_HOST;
    rc = rc ? rc : gr_session_spans(s, forget, NULL);
    ends[0] = gr_now_ns();
    if (!rc)
        rc = rounds(s, t, t->n_step, ends + 1);
    if (!rc) {
        double seconds = (double)(ends[n] - ends[0]) * 1e-9;
        int64_t from = t->spans ? ends[0] : INT64_MAX;
        for (int i = n; i > 0; i--)
            ends[i] -= ends[i - 1];
        printf("{\"stages\": %d, \"groups\": %d, \"sequences\": %d, \"steps\": %d, \"us\": %d, "
               "\"tokens_per_s\": %.1f, \"p50\": %.2f, \"p95\": %.2f,",
               t->n_stage, t->n_group, t->n_seq, t->n_step, t->us, n * t->n_seq / seconds,
               part(ends + 1, n, 0.5), part(ends + 1, n, 0.95));
        rc = print_stages(s, from);
    }
    gr_free(ends);
    return rc;
}

static int lead(struct gr_model *m, const struct task *t)
{
    struct gr_session_params p = gr_session_params_default();
    struct gr_session *s;
    p.n_seq_max = (uint32_t)(t->n_group * t->n_seq);
    uint32_t n_batch = (uint32_t)(t->n_seq * (t->n_chunk ? t->n_chunk : 1));
    p.n_ctx = (uint32_t)t->n_group * n_batch * (uint32_t)(t->n_step + t->n_step / 4 + 2);
    p.n_batch = n_batch, p.n_ubatch = (uint32_t)t->n_seq, p.n_threads = 1;
    int rc = gr_session_open(&s, m, &p);
    if (rc)
        return fail(rc);
    rc = fail(measure(s, t));
    gr_session_close(&s);
    return rc;
}

/* w: the processes, or NULL */
static int work(struct gr_world *w, const struct task *t)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    char split[4 * TIMED_MAX] = "1";
    for (int i = 1; i < t->n_stage; i++)
        strcat(split, ",1");
    p.device = "auto", p.n_gpu_layers = 99, p.tensor_split = split;
    p.world = w, p.n_rank = w ? 0 : t->n_stage;
    int rc = gr_model_open(&m, t->path, &p);
    if (rc)
        return fail(rc);
    rc = w && gr_world_rank(w) > 0 ? fail(gr_world_serve(w, m)) : lead(m, t);
    gr_model_close(&m);
    return rc;
}

/* ---- begin ---- */

static void write_model(struct task *t)
{
    struct tiny tiny = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    tiny.n_layer = t->n_stage, tiny.n_expert = 0, tiny.n_ff = 32;
    tiny.n_embd = t->boundary / (int)sizeof(float);
    snprintf(t->path, sizeof t->path, "%s", tiny_write(&tiny, NULL));
}

static void read_arguments(struct task *t, int argc, char **argv)
{
    static const struct option names[] = {
        {"stages", 1, NULL, 'n'}, {"groups", 1, NULL, 'm'}, {"sequences", 1, NULL, 'k'},
        {"steps", 1, NULL, 't'},  {"us", 1, NULL, 'u'},     {"boundary", 1, NULL, 'b'},
        {"delay", 1, NULL, 'd'},  {"rate", 1, NULL, 'r'},   {"compute", 0, NULL, 'c'},
        {"spans", 0, NULL, 's'},  {"chunks", 1, NULL, 'p'}, {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        int *number = c == 'n'   ? &t->n_stage
                      : c == 'm' ? &t->n_group
                      : c == 'k' ? &t->n_seq
                      : c == 't' ? &t->n_step
                      : c == 'u' ? &t->us
                      : c == 'b' ? &t->boundary
                      : c == 'p' ? &t->n_chunk
                                 : NULL;
        if (number)
            *number = atoi(optarg);
        else if (c == 'd')
            t->wire.delay_ns = 1000 * atoll(optarg);
        else if (c == 'r')
            t->wire.bytes_per_s = atoll(optarg);
        else if (c == 'c')
            t->compute = true;
        else if (c == 's')
            t->spans = true;
        else
            exit(2);
    }
}

int main(int argc, char **argv)
{
    struct task t = {.n_stage = 1, .n_seq = 8, .n_step = 100, .us = 1000, .boundary = 1024};
    struct gr_world *w = NULL;
    read_arguments(&t, argc, argv);
    int rc = fail(gr_world_open(&w));
    if (rc)
        return 1;
    t.n_stage = w ? gr_world_size(w) : t.n_stage;
    t.n_group = t.n_group ? t.n_group : t.n_stage;
    if (t.n_stage < 1 || t.n_stage > TIMED_MAX || t.n_seq < 1 ||
        t.n_group * t.n_seq > MOST_SEQUENCES || t.n_chunk * t.n_seq > MOST_TOKENS) {
        fprintf(stderr, "pipeline_scale: at most %d stages, %d sequences, prompts of %d tokens\n",
                TIMED_MAX, MOST_SEQUENCES, MOST_TOKENS);
        return 2;
    }
    write_model(&t);
    timed_use(t.n_stage, 1000 * (int64_t)t.us, t.compute);
    const struct gr_link_opt *wrap = t.wire.delay_ns || t.wire.bytes_per_s ? &t.wire : NULL;
    if (w)
        w->wrap = wrap;
    gr_team_test(&(struct gr_team_test){.wrap = wrap});
    rc = work(w, &t);
    unlink(t.path);
    rc = gr_world_close(&w, rc != 0);
    return rc != 0;
}
