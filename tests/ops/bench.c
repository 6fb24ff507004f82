/* bench_ops [-t THREADS] [-l LEVEL] [-n TOKENS,..] [-r REPEATS] [-d DEVICE] [-j 1] [-s SHAPE]
 * [-tiny 1] [-matmul-shapes FILE] [OP [TYPE,..]]: times single operations of the CPU backend at the
 * shapes of a llama of 1.2 billion weights, and the memory beside them; with -d 0 those of the
 * first GPU at the shapes of one of 8 billion, with their errors and whether ten runs agree (-j 1:
 * as JSON lines; the fields are said in bench_device.c). -s: of all shapes the one that is called
 * so; -tiny 1: shapes that an emulated device is through with at once, whose times say nothing.
 * -matmul-shapes, behind -d: products of many tokens are timed by cuBLASLt too, where it is, and
 * FILE gets the table of shapes at which it is faster (cuda/matmul_shapes.def).
 *
 * A row: best of REPEATS runs by the clock, and by the processor time of the calling thread (what
 * an undisturbed machine would need); GB/s counts weights or cache read once, GMAC/s the products.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/f16.h"
#include "base/rng.h"
#include "cpu/cpu.h"
#include "gr/quant_blocks.h"
#include "gr/status.h"
#include "ops/bench.h"
#include "quant/planes.h"
#include "quant/quant.h"
#include "support/cases.h"
#include "support/cuda_words.h"

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const char *begun; /* the case; NULL: none */

enum { MATMUL_FEW = 32 }; /* tokens; products of so many are own kernels' */

void bench_die(const char *what)
{
    if (begun)
        cases_end(begun, what);
    fprintf(stderr, "bench_ops: %s\n", what);
    exit(1);
}

/* ---- tensors ---- */

static struct gr_ten new_tensor(struct bench *k, uint32_t dtype, int64_t batch, int64_t rows,
                                int64_t cols, size_t row)
{
    void *p = k->b->api->alloc(k->b, (size_t)(batch * rows) * row);
    if (!p)
        bench_die(gr_error());
    return (struct gr_ten){.data = p,
                           .batch = batch,
                           .rows = rows,
                           .cols = cols,
                           .row_bytes = (int64_t)row,
                           .dtype = dtype};
}

struct gr_ten bench_tensor(struct bench *k, uint32_t dtype, int64_t batch, int64_t rows,
                           int64_t cols)
{
    return new_tensor(k, dtype, batch, rows, cols, gr_row_bytes(dtype, (uint64_t)cols));
}

/* Normal data of a draw of its own; a few rows quantised, the others copies of them. */
static void fill(struct bench *k, const struct gr_ten *t)
{
    enum { N_DRAWN = 16 };
    size_t cols = (size_t)t->cols;
    float *x = gr_calloc(cols, sizeof *x);
    struct gr_rng rng = gr_rng_new(++k->n_filled);
    if (!x)
        bench_die(gr_error());
    for (int64_t r = 0; r < t->batch * t->rows; r++) {
        void *row = gr_ten_row(t, 0, r);
        for (size_t i = 0; i < cols && r < N_DRAWN; i++)
            x[i] = gr_rng_normal(&rng);
        if (r >= N_DRAWN)
            memcpy(row, gr_ten_row(t, 0, r % N_DRAWN), (size_t)t->row_bytes);
        else if (t->planes)
            gr_planes_store(t->dtype, t->cols, x, row);
        else
            gr_quant_find(t->dtype)->quantize(x, row, cols, NULL);
    }
    gr_free(x);
}

struct gr_ten bench_filled(struct bench *k, uint32_t dtype, int64_t batch, int64_t rows,
                           int64_t cols)
{
    struct gr_ten t = bench_tensor(k, dtype, batch, rows, cols);
    fill(k, &t);
    return t;
}

struct gr_ten bench_cache_rows(struct bench *k, uint32_t dtype, int64_t rows, int64_t cols)
{
    bool planes = gr_planes_are(dtype);
    size_t row = planes ? (size_t)gr_planes_row(dtype, cols) : gr_row_bytes(dtype, (uint64_t)cols);
    struct gr_ten t = new_tensor(k, dtype, 1, rows, cols, row);
    t.planes = planes;
    fill(k, &t);
    return t;
}

void bench_free(struct bench *k, struct gr_node *n)
{
    for (const struct gr_operand *o = gr_op_info(n->op)->operands; o->role; o++)
        k->b->api->free(k->b, gr_node_ten(n, o)->data);
}

/* ---- one row of the table ---- */

bool bench_begin(struct bench *k, const struct bench_row *row)
{
    char label[160];
    if (k->shape && strcmp(k->shape, row->shape) != 0)
        return false;
    k->n_filled = 0;
    if (!k->device)
        return true;
    snprintf(label, sizeof label, "bench %s %s %s %d", row->op, row->type, row->shape,
             row->n_tok ? row->n_tok : k->n_tok);
    begun = cases_begin(NULL, label);
    return begun != NULL;
}

void bench_measure(struct bench *k, const struct bench_row *row, const struct gr_node *node)
{
    struct gr_segment s = {node, 1, NULL, 0};
    void *exec;
    double best = 1e9, best_cpu = 1e9;
    if (k->device) {
        double own = bench_measure_device(k, k->device, row, node);
        if (k->library && node->op == GR_OP_MATMUL && k->n_tok > MATMUL_FEW)
            bench_shape_timed(k, row->type, &node->a.matmul.w, own,
                              bench_measure_device(k, k->library, row, node));
        cases_end(begun, NULL);
        begun = NULL;
        return;
    }
    if (k->b->api->segment_new(k->b, &s, &exec))
        bench_die(gr_error());
    for (int i = 0; i < k->repeats + 1; i++) {
        int64_t from = gr_now_ns();
        double cpu = thread_seconds();
        if (k->b->api->segment_run(k->b, exec, NULL, NULL))
            bench_die(gr_error());
        best_cpu = GR_MIN(best_cpu, thread_seconds() - cpu);
        best = GR_MIN(best, gr_seconds_since(from));
    }
    k->b->api->segment_free(k->b, &exec);
    printf("%-10s %-5s %-24s %3d tok %10.1f us %8.2f GB/s %8.1f GMAC/s   by processor time %8.1f "
           "us %8.1f GMAC/s\n",
           row->op, row->type, row->shape, k->n_tok, best * 1e6, row->bytes / best * 1e-9,
           row->macs / best * 1e-9, best_cpu * 1e6, row->macs / best_cpu * 1e-9);
    fflush(stdout);
}

static void bench_matmul(struct bench *k, const char *type, int64_t n_out, int64_t n_in)
{
    struct bench_row row = {.op = "matmul", .type = type};
    uint32_t dtype = gr_dtype_find_name(type)->id;
    struct gr_node n = {.op = GR_OP_MATMUL};
    snprintf(row.shape, sizeof row.shape, "%lldx%lld", (long long)n_out, (long long)n_in);
    if (!bench_begin(k, &row))
        return;
    n.a.matmul = (struct gr_args_matmul){.x = bench_filled(k, GR_F32, 1, k->n_tok, n_in),
                                         .w = bench_filled(k, dtype, 1, n_out, n_in),
                                         .y = bench_tensor(k, GR_F32, 1, k->n_tok, n_out),
                                         .scale = 1};
    row.bytes = (double)n_out * (double)n.a.matmul.w.row_bytes;
    row.macs = (double)k->n_tok * (double)n_out * (double)n_in;
    bench_measure(k, &row, &n);
    bench_free(k, &n);
}

/* Qwen3-30B-A3B's experts: 8 of 128, 768 x 2048. */
static void bench_matmul_id(struct bench *k, const char *type)
{
    enum { N_EXPERT = 128, N_USED = 8, N_OUT = 768, N_IN = 2048 };
    struct bench_row row = {.op = "matmul_id", .type = type};
    struct gr_node n = {.op = GR_OP_MATMUL_ID};
    snprintf(row.shape, sizeof row.shape, "8 of 128 %dx%d", N_OUT, N_IN);
    if (!bench_begin(k, &row))
        return;
    n.a.matmul_id = (struct gr_args_matmul_id){
        .x = bench_filled(k, GR_F32, 1, k->n_tok, N_IN),
        .w = bench_filled(k, gr_dtype_find_name(type)->id, N_EXPERT, N_OUT, N_IN),
        .ids = bench_tensor(k, GR_I32, 1, k->n_tok, N_USED),
        .y = bench_tensor(k, GR_F32, 1, (int64_t)k->n_tok * N_USED, N_OUT)};
    for (int i = 0; i < k->n_tok * N_USED; i++)
        ((int32_t *)n.a.matmul_id.ids.data)[i] = (i * 37 + i / N_USED) % N_EXPERT;
    double experts = GR_MIN(N_EXPERT, k->n_tok * N_USED);
    row.bytes = experts * N_OUT * (double)n.a.matmul_id.w.row_bytes;
    row.macs = (double)k->n_tok * N_USED * N_OUT * N_IN;
    bench_measure(k, &row, &n);
    bench_free(k, &n);
}

/* One operation on rows of 8192, x and y; w: a row of weights, or [n_tok, 64] cosines and sines. */
static void bench_row_of(struct bench *k, struct bench_row row, enum gr_op op, double n_moved)
{
    row.bytes = n_moved * (double)k->n_tok * 8192 * 4;
    if (!bench_begin(k, &row))
        return;
    bool rope = op == GR_OP_ROPE;
    struct gr_ten x = bench_filled(k, GR_F32, 1, k->n_tok, 8192),
                  y = bench_filled(k, GR_F32, 1, k->n_tok, 8192),
                  w = bench_filled(k, GR_F32, 1, rope ? k->n_tok : 1, rope ? 64 : 8192);
    struct gr_node n = {.op = op};
    if (op == GR_OP_NORM)
        n.a.norm = (struct gr_args_norm){.x = x, .w = w, .y = y, .group = 8192, .eps = 1e-5f};
    else if (op == GR_OP_GLU)
        n.a.glu = (struct gr_args_glu){.a = x, .b = y, .y = y, .kind = GR_SILU};
    else if (op == GR_OP_BINARY)
        n.a.binary = (struct gr_args_binary){.a = x, .b = y, .y = y, .kind = GR_ADD};
    else
        n.a.rope =
            (struct gr_args_rope){.x = x, .cs = w, .y = y, .d_head = 64, .kind = GR_ROPE_NEOX};
    bench_measure(k, &row, &n);
    k->b->api->free(k->b, x.data);
    k->b->api->free(k->b, y.data);
    k->b->api->free(k->b, w.data);
}

static void bench_rows(struct bench *k)
{
    bench_row_of(k, (struct bench_row){"norm", "f32", "rms 8192", 0, 0, 0}, GR_OP_NORM, 2);
    bench_row_of(k, (struct bench_row){"glu", "f32", "silu 8192", 0, 0, 0}, GR_OP_GLU, 3);
    bench_row_of(k, (struct bench_row){"binary", "f32", "add 8192", 0, 0, 0}, GR_OP_BINARY, 3);
    bench_row_of(k, (struct bench_row){"rope", "f32", "neox 128 x 64", 0, 0, 0}, GR_OP_ROPE, 2);
}

/* ---- recurrent operations ---- */

static struct gr_ten state_rows(struct bench *k, int32_t row)
{
    struct gr_ten t = bench_tensor(k, GR_I32, 1, 1, 1);
    *(int32_t *)t.data = row;
    return t;
}

/* Mamba 2 of 1.3 billion weights: 64 heads of 64, a state of 128; Mamba 1 of 1.4: 4096 columns, 16.
 */
static void bench_scan(struct bench *k, int64_t n_head, int64_t d_head, int64_t n_state, bool each)
{
    struct bench_row row = {.op = "ssm_scan", .type = "f32"};
    int64_t n = n_head * d_head;
    struct gr_node node = {.op = GR_OP_SSM_SCAN};
    snprintf(row.shape, sizeof row.shape, "%lld x %lld, state %lld", (long long)n_head,
             (long long)d_head, (long long)n_state);
    if (!bench_begin(k, &row))
        return;
    node.a.ssm_scan =
        (struct gr_args_ssm_scan){.x = bench_filled(k, GR_F32, 1, k->n_tok, n),
                                  .dt = bench_filled(k, GR_F32, 1, k->n_tok, n_head),
                                  .a = bench_filled(k, GR_F32, 1, n_head, each ? n_state : 1),
                                  .b = bench_filled(k, GR_F32, 1, k->n_tok, n_state),
                                  .c = bench_filled(k, GR_F32, 1, k->n_tok, n_state),
                                  .z = bench_filled(k, GR_F32, 1, k->n_tok, n),
                                  .src = state_rows(k, -1),
                                  .dst = state_rows(k, 0),
                                  .state = bench_tensor(k, GR_F32, 1, 1, n * n_state),
                                  .y = bench_tensor(k, GR_F32, 1, k->n_tok, n),
                                  .n_state = n_state};
    row.bytes = 2 * (double)node.a.ssm_scan.state.row_bytes;
    row.macs = 3 * (double)k->n_tok * (double)(n * n_state);
    bench_measure(k, &row, &node);
    bench_free(k, &node);
}

/* Qwen3-Next: 32 heads of 128 x 128 on 16 of keys. */
static void bench_delta(struct bench *k)
{
    enum { N_HEAD = 32, N_HEAD_K = 16, D = 128 };
    struct bench_row row = {"delta_rule",
                            "f32",
                            "32/16 heads of 128 x 128",
                            0,
                            4 * (double)k->n_tok * N_HEAD * D * D,
                            0};
    struct gr_node node = {.op = GR_OP_DELTA_RULE};
    if (!bench_begin(k, &row))
        return;
    node.a.delta_rule =
        (struct gr_args_delta_rule){.q = bench_filled(k, GR_F32, 1, k->n_tok, N_HEAD_K * D),
                                    .k = bench_filled(k, GR_F32, 1, k->n_tok, N_HEAD_K * D),
                                    .v = bench_filled(k, GR_F32, 1, k->n_tok, N_HEAD * D),
                                    .alpha = bench_filled(k, GR_F32, 1, k->n_tok, N_HEAD),
                                    .a = bench_tensor(k, GR_F32, 1, 1, N_HEAD),
                                    .beta = bench_filled(k, GR_F32, 1, k->n_tok, N_HEAD),
                                    .src = state_rows(k, -1),
                                    .dst = state_rows(k, 0),
                                    .state = bench_tensor(k, GR_F32, 1, 1, N_HEAD * D * D),
                                    .y = bench_tensor(k, GR_F32, 1, k->n_tok, N_HEAD * D),
                                    .n_head = N_HEAD,
                                    .n_head_k = N_HEAD_K,
                                    .eps = 1e-6f};
    row.bytes = 2 * (double)node.a.delta_rule.state.row_bytes;
    bench_measure(k, &row, &node);
    bench_free(k, &node);
}

static void bench_conv(struct bench *k)
{
    const double n = 4 * (double)k->n_tok * 8192;
    const struct bench_row row = {"ssm_conv", "f32", "8192, kernel 4", 2 * n, n, 0};
    struct gr_node node = {.op = GR_OP_SSM_CONV};
    if (!bench_begin(k, &row))
        return;
    node.a.ssm_conv = (struct gr_args_ssm_conv){.x = bench_filled(k, GR_F32, 1, k->n_tok, 8192),
                                                .w = bench_filled(k, GR_F32, 1, 8192, 4),
                                                .src = state_rows(k, -1),
                                                .dst = state_rows(k, 0),
                                                .state = bench_tensor(k, GR_F32, 1, 1, 3 * 8192),
                                                .y = bench_tensor(k, GR_F32, 1, k->n_tok, 8192),
                                                .kind = GR_SILU};
    bench_measure(k, &row, &node);
    bench_free(k, &node);
}

static void bench_state(struct bench *k)
{
    bench_conv(k);
    bench_scan(k, 64, 64, 128, false);
    bench_scan(k, 4096, 1, 16, true);
    bench_delta(k);
}

/* ---- the memory ---- */

struct reader {
    pthread_t thread;
    const uint64_t *p;
    size_t n;
    uint64_t sum;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= r->n; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += r->p[i + (size_t)k];
    for (int k = 0; k < 8; k++)
        r->sum += s[k];
    return NULL;
}

static void bench_memory(struct bench *k)
{
    enum { MAX = 64 };
    static struct reader r[MAX];
    size_t bytes = (size_t)256 << 20;
    char *p = gr_calloc(bytes, 1);
    double best = 1e9;
    int n = GR_MIN(k->n_threads, MAX);
    if (!p)
        bench_die(gr_error());
    for (int i = 0; i < k->repeats; i++) {
        int64_t from = gr_now_ns();
        for (int t = 0; t < n; t++) {
            r[t] =
                (struct reader){.p = (const uint64_t *)(void *)(p + bytes / (size_t)n * (size_t)t),
                                .n = bytes / (size_t)n / 8};
            if (pthread_create(&r[t].thread, NULL, read_all, &r[t]))
                bench_die("no thread");
        }
        for (int t = 0; t < n; t++)
            pthread_join(r[t].thread, NULL);
        best = GR_MIN(best, gr_seconds_since(from));
    }
    printf("%-44s %10.1f us %8.2f GB/s\n", "memory, 256 MiB read", best * 1e6,
           (double)bytes / best * 1e-9);
    gr_free(p);
}

/* ---- which ---- */

/* True when a word is in a list with commas. */
static bool in_list(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, word, n) && (!p[n] || p[n] == ','))
            return true;
    return false;
}

bool bench_wanted(const struct bench *k, const char *op, const char *type)
{
    return (!k->op || !strcmp(k->op, op)) && (!k->type || !type || in_list(k->type, type));
}

static void run_all(struct bench *k)
{
    static const char *const types[] = {"q8_0", "q4_K", "q6_K", "q4_0", "q5_K", "q5_0", "q4_1",
                                        "q5_1", "q3_K", "q2_K", "f16",  "bf16", "f32"};
    static const int64_t shapes[][4][2] = {
        {{2048, 2048}, {8192, 2048}, {2048, 8192}, {128256, 2048}},
        {{4096, 4096}, {14336, 4096}, {4096, 14336}, {128256, 4096}},
        {{64, 256}, {32, 512}, {16, 256}, {256, 256}}};
    const int64_t(*shape)[2] = shapes[k->tiny ? 2 : k->device ? 1 : 0];
    if (bench_wanted(k, "memory", NULL) && !k->device)
        bench_memory(k);
    for (size_t t = 0; t < GR_COUNT(types); t++)
        for (size_t s = 0; s < 4; s++)
            if (bench_wanted(k, "matmul", types[t]) && (s < 3 || k->n_tok < 64) &&
                (s > 0 || k->n_tok < 64 || !k->device))
                bench_matmul(k, types[t], shape[s][0], shape[s][1]);
    for (size_t t = 0; t < 2 && !k->tiny; t++)
        if (bench_wanted(k, "matmul_id", types[t]))
            bench_matmul_id(k, types[t]);
    bench_cache(k);
    if (bench_wanted(k, "rows", NULL) && !k->tiny)
        bench_rows(k);
    if (bench_wanted(k, "state", NULL) && !k->tiny)
        bench_state(k);
}

static void open_device(struct bench *k, int i)
{
    const char *why = "no such device";
    const struct gr_device_opt opt =
        cuda_words((struct gr_device_opt){.matmul = GR_DEVICE_MATMUL_OWN});
    bool broken;
    if (i >= gr_cuda_devices.count(&why, &broken))
        bench_die(why);
    if (gr_cuda_devices.info(i, &k->info) || gr_cuda_devices.open(&k->device, i, &opt))
        bench_die(gr_error());
}

/* Opens the device for products by cuBLASLt, where there is one. */
static void open_library(struct bench *k, int i)
{
    const struct gr_device_opt opt =
        cuda_words((struct gr_device_opt){.matmul = GR_DEVICE_MATMUL_LIBRARY});
    if (!k->device)
        bench_die("-matmul-shapes: -d DEVICE is expected in front of it");
    if (gr_cuda_devices.open(&k->library, i, &opt))
        fprintf(stderr, "bench_ops: own kernels alone: %s\n", gr_error());
}

static enum gr_cpu_level level_of(const char *name)
{
    enum gr_cpu_level level = 0;
    while (level < GR_CPU_N_LEVEL && strcmp(name, gr_cpu_level_name(level)) != 0)
        level++;
    return level;
}

/* Each number of tokens of the list. */
static void run_list(struct bench *k, const char *list)
{
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        k->n_tok = atoi(p);
        if (k->n_tok < 1)
            bench_die("-n: numbers of tokens, at least 1 each, with commas are expected");
        run_all(k);
    }
}

int main(int argc, char **argv)
{
    struct bench k = {.n_threads = 2, .repeats = 10};
    enum gr_cpu_level level = GR_CPU_AUTO;
    const char *tokens = "1", *shapes = NULL;
    int i = 1, device = 0;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "-t"))
            k.n_threads = atoi(v);
        else if (!strcmp(argv[i], "-n"))
            tokens = v;
        else if (!strcmp(argv[i], "-s"))
            k.shape = v;
        else if (!strcmp(argv[i], "-tiny"))
            k.tiny = atoi(v);
        else if (!strcmp(argv[i], "-r"))
            k.repeats = GR_MAX(atoi(v), 1);
        else if (!strcmp(argv[i], "-j"))
            k.json = atoi(v);
        else if (!strcmp(argv[i], "-l"))
            level = level_of(v);
        else if (!strcmp(argv[i], "-d"))
            open_device(&k, device = atoi(v));
        else if (!strcmp(argv[i], "-matmul-shapes"))
            open_library(&k, device), shapes = v;
        else
            break;
    }
    if (i < argc && argv[i][0] == '-')
        bench_die("usage: bench_ops [-t THREADS] [-l ref|avx2|avx512|amx] [-n TOKENS,..] [-r "
                  "REPEATS] [-d DEVICE] [-j 1] [-s SHAPE] [-tiny 1] [-matmul-shapes FILE] [OP "
                  "[TYPE,..]]");
    k.op = i < argc ? argv[i] : NULL;
    k.type = i + 1 < argc ? argv[i + 1] : NULL;
    if (level == GR_CPU_N_LEVEL || gr_cpu_open(&k.b, k.n_threads, k.n_threads, level))
        bench_die(level == GR_CPU_N_LEVEL ? "no such level" : gr_error());
    run_list(&k, tokens);
    if (k.library)
        bench_shapes_write(&k, shapes, k.info.cc);
    gr_vec_fini(&k.timed);
    if (k.library)
        k.library->api->close(&k.library);
    if (k.device)
        k.device->api->close(&k.device);
    k.b->api->close(&k.b);
    return 0;
}
