/* A small model file through gr_quantize_file. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/rng.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"
#include "support/behind.h"

static char dir[64], in[96], out[96];

static void setup(void)
{
    strcpy(dir, "/tmp/gpurun-convert-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(in, sizeof in, "%s/in.gguf", dir);
    snprintf(out, sizeof out, "%s/out.gguf", dir);
}

static void teardown(void)
{
    unlink(in);
    unlink(out);
    expect_behind(rmdir(dir) == 0, "a file was left behind");
}

TestSuite(convert, .init = setup, .fini = teardown);

struct spec {
    const char *name;
    uint32_t dtype, n_dim;
    uint64_t ne[4];
};

/* Every rule of the tool has a tensor here. */
static const struct spec specs[] = {
    {"token_embd.weight", GR_F32, 2, {256, 40}},
    {"output_norm.weight", GR_F32, 1, {256}},
    {"output.weight", GR_BF16, 2, {256, 40}},
    {"blk.0.attn_q.weight", GR_F16, 2, {512, 300}},
    {"blk.0.attn_q.bias", GR_F32, 1, {300}},
    {"blk.0.attn_q_norm.weight", GR_F32, 2, {64, 4}},
    {"blk.0.ffn_gate_inp.weight", GR_F32, 2, {256, 4}},
    {"blk.0.ffn_down_exps.weight", GR_F32, 3, {256, 8, 3}},
    {"blk.0.ffn_up.weight", GR_F32, 2, {96, 20}},
    {"blk.0.ffn_gate.weight", GR_F32, 2, {20, 16}},
    {"blk.0.row.weight", GR_F32, 2, {256, 1}},
    {"rope\033_freqs", GR_F32, 2, {32, 2}},
};

/* Tensor `broken` gets `value` at element 70; no other value is extraordinary. */
static void write_model(const char *path, const char *broken, float value)
{
    struct gr_gguf_writer *w;
    struct gr_rng r = gr_rng_new(5);
    const float items[] = {1, 2, 3};
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.architecture", "llama"), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "general.file_type", 99), 0);
    cr_assert_eq(gr_gguf_set_array(w, "some.numbers", GR_GGUF_F32, items, 3), 0);
    for (size_t i = 0; i < GR_COUNT(specs); i++) {
        struct gr_str name = {specs[i].name, strlen(specs[i].name)};
        cr_assert_eq(gr_gguf_add_tensor(w, name, specs[i].dtype, specs[i].n_dim, specs[i].ne), 0);
    }
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    for (size_t i = 0; i < GR_COUNT(specs); i++) {
        uint64_t bytes;
        cr_assert(gr_tensor_bytes(specs[i].dtype, specs[i].ne, specs[i].n_dim, &bytes));
        size_t n = (size_t)bytes / gr_dtype_find(specs[i].dtype)->block_bytes;
        float *x = gr_calloc(n, sizeof *x);
        void *raw = gr_calloc(1, bytes);
        for (size_t j = 0; j < n; j++)
            x[j] = 0.02f * gr_rng_normal(&r);
        if (broken && strcmp(broken, specs[i].name) == 0)
            x[70] = value;
        gr_quant_find(specs[i].dtype)->quantize(x, raw, n, NULL);
        cr_assert_eq(gr_gguf_write(w, raw, bytes), 0, "%s", gr_error());
        gr_free(raw);
        gr_free(x);
    }
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
}

static float *values(const struct gr_gguf *g, const struct gr_gguf_tensor *t, size_t *n)
{
    const struct gr_dtype_info *d = gr_dtype_find(t->dtype);
    void *raw = gr_calloc(1, t->bytes);
    *n = (size_t)t->bytes / d->block_bytes * d->block;
    float *x = gr_calloc(*n, sizeof *x);
    cr_assert_eq(gr_gguf_read_tensor(g, t, raw), 0);
    gr_quant_find(t->dtype)->dequantize(raw, x, *n);
    gr_free(raw);
    return x;
}

static double difference(const struct gr_gguf *a, const struct gr_gguf *b, const char *name)
{
    size_t n, m;
    float *x = values(a, gr_gguf_find_tensor(a, name), &n);
    float *y = values(b, gr_gguf_find_tensor(b, name), &m);
    double e = 0, s = 0;
    cr_assert_eq(n, m, "%s", name);
    for (size_t i = 0; i < n; i++) {
        e += pow((double)x[i] - y[i], 2);
        s += pow(x[i], 2);
    }
    gr_free(y);
    gr_free(x);
    return sqrt(e / s);
}

/* Into whatever is there, also from types that lose twice. */
static int quantize(const char *from, const char *to, const char *type, int32_t n_threads)
{
    struct gr_quantize_params p = {
        .type = type, .allow_requantize = true, .overwrite = true, .n_threads = n_threads};
    return gr_quantize_file(from, to, &p);
}

/* The types that the matrices get, in the order of `want_of`. */
static const char *const matrices[] = {"token_embd.weight",   "output.weight",
                                       "blk.0.attn_q.weight", "blk.0.ffn_down_exps.weight",
                                       "blk.0.ffn_up.weight", "blk.0.ffn_gate.weight"};
static const struct {
    const char *type;
    uint32_t file_type, want[GR_COUNT(matrices)];
    double error; /* relative, of the coarsest matrix */
} cases[] = {
    {"f32", 0, {GR_F32, GR_F32, GR_F32, GR_F32, GR_F32, GR_F32}, 0},
    {"F16", 1, {GR_F16, GR_F16, GR_F16, GR_F16, GR_F16, GR_F16}, 0.001},
    {"bf16", 32, {GR_BF16, GR_BF16, GR_BF16, GR_BF16, GR_BF16, GR_BF16}, 0.003},
    {"q8_0", 7, {GR_Q8_0, GR_Q8_0, GR_Q8_0, GR_Q8_0, GR_Q8_0, GR_F16}, 0.0055},
    {"q4_0", 2, {GR_Q4_0, GR_Q6_K, GR_Q4_0, GR_Q4_0, GR_Q4_0, GR_F16}, 0.083},
    {"q4_1", 3, {GR_Q4_1, GR_Q6_K, GR_Q4_1, GR_Q4_1, GR_Q4_1, GR_F16}, 0.073},
    {"q5_0", 8, {GR_Q5_0, GR_Q6_K, GR_Q5_0, GR_Q5_0, GR_Q5_0, GR_F16}, 0.042},
    {"q5_1", 9, {GR_Q5_1, GR_Q6_K, GR_Q5_1, GR_Q5_1, GR_Q5_1, GR_F16}, 0.036},
    {"q2_K", 10, {GR_Q2_K, GR_Q6_K, GR_Q2_K, GR_Q3_K, GR_Q4_0, GR_F16}, 0.27},
    {"q3_K", 12, {GR_Q3_K, GR_Q6_K, GR_Q3_K, GR_Q4_K, GR_Q4_0, GR_F16}, 0.15},
    {"q4_K", 15, {GR_Q4_K, GR_Q6_K, GR_Q4_K, GR_Q6_K, GR_Q5_0, GR_F16}, 0.073},
    {"Q4_K_S", 14, {GR_Q4_K, GR_Q6_K, GR_Q4_K, GR_Q4_K, GR_Q5_0, GR_F16}, 0.073},
    {"Q5_K", 17, {GR_Q5_K, GR_Q6_K, GR_Q5_K, GR_Q6_K, GR_Q5_1, GR_F16}, 0.036},
    {"q6_k", 18, {GR_Q6_K, GR_Q6_K, GR_Q6_K, GR_Q6_K, GR_Q8_0, GR_F16}, 0.018},
};

static void check_kept(const struct gr_gguf *a, const struct gr_gguf *b)
{
    for (size_t i = 0; i < GR_COUNT(specs); i++) {
        const struct gr_gguf_tensor *s = gr_gguf_find_tensor(a, specs[i].name);
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(b, i);
        bool matrix = false;
        for (size_t k = 0; k < GR_COUNT(matrices); k++)
            matrix |= strcmp(matrices[k], specs[i].name) == 0;
        cr_assert(gr_str_is(t->name, specs[i].name));
        cr_assert_arr_eq(t->ne, s->ne, sizeof t->ne);
        if (!matrix) {
            cr_assert_eq(t->dtype, s->dtype, "%s", specs[i].name);
            cr_assert_eq(difference(a, b, specs[i].name), 0);
        }
    }
}

Test(convert, every_type)
{
    write_model(in, NULL, 0);
    for (size_t k = 0; k < GR_COUNT(cases); k++) {
        struct gr_gguf *a, *b;
        uint32_t file_type, version;
        const struct gr_gguf_kv *numbers;
        struct gr_str arch;
        cr_assert_eq(quantize(in, out, cases[k].type, 2), 0, "%s", gr_error());
        cr_assert_eq(gr_gguf_open(&a, in, true), 0);
        cr_assert_eq(gr_gguf_open(&b, out, true), 0, "%s", gr_error());
        cr_assert_eq(gr_gguf_u32(b, "general.file_type", &file_type), 0);
        cr_assert_eq(file_type, cases[k].file_type);
        cr_assert_eq(gr_gguf_u32(b, "general.quantization_version", &version), 0);
        cr_assert_eq(version, 2);
        cr_assert_eq(gr_gguf_str(b, "general.architecture", &arch), 0);
        cr_assert(gr_str_is(arch, "llama"));
        cr_assert_eq(gr_gguf_array(b, "some.numbers", GR_GGUF_F32, &numbers), 0);
        cr_assert_eq(numbers->n, 3);
        for (size_t m = 0; m < GR_COUNT(matrices); m++) {
            uint32_t got = gr_gguf_find_tensor(b, matrices[m])->dtype;
            double e = difference(a, b, matrices[m]);
            cr_assert_eq(got, cases[k].want[m], "%s as %s is %s", matrices[m], cases[k].type,
                         gr_dtype_name(got));
            cr_assert_leq(e, cases[k].error, "%s as %s: %g", matrices[m], cases[k].type, e);
        }
        check_kept(a, b);
        gr_gguf_close(&b);
        gr_gguf_close(&a);
    }
}

/* Without output.weight the token embedding makes the logits. */
struct told {
    uint64_t last, total, stop_at;
    int n;
};

static bool tell(uint64_t done, uint64_t total, void *user)
{
    struct told *t = user;
    cr_expect(done >= t->last && done <= total && (t->n == 0 || total == t->total));
    t->last = done, t->total = total, t->n++;
    return !t->stop_at || done < t->stop_at;
}

Test(convert, progress)
{
    struct told t = {0};
    struct gr_gguf *g;
    struct gr_quantize_params p = {.type = "q8_0", .progress = tell, .progress_user = &t};
    uint64_t bytes = 0;
    write_model(in, NULL, 0);
    cr_assert_eq(gr_gguf_open(&g, in, false), 0);
    for (size_t i = 0; i < GR_COUNT(specs); i++)
        bytes += gr_gguf_tensor_at(g, i)->bytes;
    gr_gguf_close(&g);
    cr_assert_eq(gr_quantize_file(in, out, &p), 0, "%s", gr_error());
    cr_expect(t.last == bytes && t.total == bytes && t.n > (int)GR_COUNT(specs));
    unlink(out);
    t = (struct told){.stop_at = 1};
    cr_expect_eq(gr_quantize_file(in, out, &p), GR_E_CANCELLED);
    cr_expect_lt(t.last, bytes);
    t = (struct told){0};
    p.dry_run = true;
    cr_assert_eq(gr_quantize_file(in, out, &p), 0, "%s", gr_error());
    cr_expect_eq(t.n, 0);
}

Test(convert, tied_embedding)
{
    struct gr_gguf_writer *w;
    struct gr_gguf *g;
    const uint64_t ne[][2] = {{256, 8}, {96, 8}};
    const uint32_t want[] = {GR_Q6_K, GR_Q8_0};
    float *zeros = gr_calloc(256 * 8, sizeof *zeros);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gr_gguf_writer_new(&w), 0);
        cr_assert_eq(
            gr_gguf_add_tensor(w, (struct gr_str){"token_embd.weight", 17}, GR_F32, 2, ne[i]), 0);
        cr_assert_eq(gr_gguf_begin(w, in), 0);
        cr_assert_eq(gr_gguf_write(w, zeros, ne[i][0] * 8 * 4), 0);
        cr_assert_eq(gr_gguf_commit(w), 0);
        gr_gguf_writer_free(&w);
        cr_assert_eq(quantize(in, out, "q4_K", 1), 0, "%s", gr_error());
        cr_assert_eq(gr_gguf_open(&g, out, false), 0);
        cr_assert_eq(gr_gguf_tensor_at(g, 0)->dtype, want[i]);
        gr_gguf_close(&g);
    }
    gr_free(zeros);
}

static void same_files(const char *a, const char *b)
{
    char *p, *q;
    size_t n, m;
    cr_assert_eq(gr_file_slurp(a, 1 << 26, &p, &n), 0);
    cr_assert_eq(gr_file_slurp(b, 1 << 26, &q, &m), 0);
    cr_assert_eq(n, m);
    cr_assert_arr_eq(p, q, n);
    gr_free(q);
    gr_free(p);
}

/* The result depends neither on the number of threads nor on where it is written; a file may be
 * replaced by its own conversion, and converting to a type that it has copies it. */
Test(convert, same_bytes)
{
    write_model(in, NULL, 0);
    cr_assert_eq(quantize(in, out, "q4_K", 7), 0, "%s", gr_error());
    cr_assert_eq(quantize(in, in, "q4_K", 0), 0, "%s", gr_error());
    same_files(in, out);
    cr_assert_eq(quantize(in, out, "q4_K", 1), 0, "%s", gr_error());
    same_files(in, out);
}

static int lines, warnings;
static void count_lines(enum gr_log_level level, const char *line, void *user)
{
    (void)user;
    lines++;
    warnings += level == GR_LOG_WARN;
    cr_expect_null(strchr(line, '\033'), "a name of the file steers the terminal");
    cr_expect(level != GR_LOG_WARN || strstr(line, "quantised already"), "%s", line);
}

Test(convert, log_lines)
{
    write_model(in, NULL, 0);
    gr_log_set(count_lines, NULL);
    cr_assert_eq(quantize(in, in, "q8_0", 1), 0, "%s", gr_error());
    cr_expect_eq(lines, (int)GR_COUNT(specs) + 1);
    cr_expect_eq(warnings, 0);
    cr_assert_eq(quantize(in, in, "q5_1", 1), 0, "%s", gr_error());
    cr_expect_eq(warnings, 1);
    gr_log_set(NULL, NULL);
}

static void refused(const char *type, int status, const char *part1, const char *part2)
{
    int e = quantize(in, out, type, 2);
    cr_expect_eq(e, status, "%s: %d %s", type, e, gr_error());
    cr_expect_not_null(strstr(gr_error(), part1), "%s", gr_error());
    cr_expect_not_null(strstr(gr_error(), part2), "%s", gr_error());
    cr_expect_neq(access(out, F_OK), 0, "%s: a file was written", type);
}

Test(convert, refusals)
{
    refused("q4_K", GR_E_NO_MODEL, in, "");
    write_model(in, NULL, 0);
    refused("q4_K_X", GR_E_INVALID, "'q4_K_X'", "Q4_K_M Q5_K_S");
    write_model(in, "blk.0.attn_q.weight", NAN);
    refused("q4_K", GR_E_CORRUPT, "'blk.0.attn_q.weight': element 70 is nan", "finite");
    write_model(in, "token_embd.weight", -INFINITY);
    refused("f16", GR_E_CORRUPT, "'token_embd.weight': element 70 is -inf", "finite");
    write_model(in, "token_embd.weight", 70000);
    refused("f16", GR_E_UNSUPPORTED, "element 70 is 70000", "use bf16 or f32");
    refused("q6_K", GR_E_UNSUPPORTED, "element 70 is 70000", "use bf16 or f32");
    cr_expect_eq(quantize(in, out, "bf16", 2), 0, "%s", gr_error());
    unlink(out);
    write_model(in, "blk.0.attn_q_norm.weight", NAN); /* copied, so not judged */
    cr_expect_eq(quantize(in, out, "q4_K", 2), 0, "%s", gr_error());
    cr_expect_eq(quantize(in, "/nowhere/out.gguf", "q4_K", 2), GR_E_IO);
}

/* A storage type without codec is refused. */
Test(convert, source_without_codec)
{
    struct gr_gguf_writer *w;
    const uint64_t ne[] = {256, 2};
    uint8_t zeros[1024] = {0};
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_add_tensor(w, (struct gr_str){"a.weight", 8}, GR_I16, 2, ne), 0);
    cr_assert_eq(gr_gguf_begin(w, in), 0);
    cr_assert_eq(gr_gguf_write(w, zeros, sizeof zeros), 0);
    cr_assert_eq(gr_gguf_commit(w), 0);
    gr_gguf_writer_free(&w);
    refused("q8_0", GR_E_UNSUPPORTED, "'a.weight' is stored as i16", "f32, f16 or bf16");
}

/* Whichever allocation fails, the old file stays and nothing is left behind. */
Test(convert, out_of_memory)
{
    write_model(in, NULL, 0);
    int e = GR_E_NOMEM_HOST;
    uint64_t k;
    for (k = 1; e; k++) {
        cr_assert_lt(k, 2000);
        gr_alloc_fail_at(k, 0);
        e = quantize(in, out, "q8_0", 2);
        gr_alloc_fail_at(0, 0);
        cr_assert(e == 0 || e == GR_E_NOMEM_HOST, "%d %s", e, gr_error());
        cr_assert_eq(access(out, F_OK) == 0, e == 0);
    }
    cr_assert_gt(k, 10);
}
