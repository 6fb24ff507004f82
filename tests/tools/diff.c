/* gpurun diff: what is found of two sides, where, and what is said of flags that cannot be. First
 * the program on tiny models, then nodes and logits that are given by hand. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"
#include "tools/cli/flags.h"
#include "tools/commands/diff.h"

#define DIFF(model, ...)                                                                           \
    GPURUN(NULL, "diff", model, "-dev", "none", "-t", "1", "-q", "-p", "abcdefgh", __VA_ARGS__)

static void expect(struct outcome o, int code, const char *out, const char *err)
{
    cr_expect_eq(o.exit_code, code, "%d: %s%s", o.exit_code, o.out, o.err);
    cr_expect(strstr(o.out, out), "'%s' expected: %s", out, o.out);
    cr_expect(strstr(o.err, err), "'%s' expected: %s", err, o.err);
}

/* ---- the program ---- */

Test(diff, equal_sides)
{
    const char *model = tiny_model(false);
    expect(DIFF(model, "-t", "1"), 0, "no node differs\n", "");
    expect(DIFF(model, "-b", "--no-mmap -tb 2"), 0,
           "the two sides agree to the last bit of their logits\n", "");
    expect(DIFF(model, "-a", "-ub 3"), 0, "as far as rounding lets them\n", "");
    struct outcome o = DIFF(model, "--json");
    json_t *j = json_loads(o.out, 0, NULL);
    cr_assert_not_null(j, "%s", o.out);
    cr_expect(json_is_null(json_object_get(j, "first")));
    cr_expect(json_is_true(json_object_get(j, "agree")));
    for (size_t i = 0; i < 2; i++) {
        const json_t *l = json_array_get(json_object_get(j, "logits"), i);
        cr_expect_eq(json_real_value(json_object_get(l, "l2")), 0);
        cr_expect_eq(json_integer_value(json_object_get(l, "same_tokens")),
                     json_integer_value(json_object_get(j, "tokens")));
    }
    json_decref(j);
}

/* Plain C and vector units differ, by no more than rounding. */
Test(diff, other_instructions)
{
    struct outcome o = DIFF(tiny_model(false), "-a", "--cpu-level ref");
    expect(o, 0, "", "");
    cr_expect(!strstr(o.out, "beyond"), "%s", o.out);
    expect(DIFF(tiny_model(false), "-a", "--cpu-level ref", "--tolerance", "0"), 7,
           "first node beyond its tolerance: ", "");
}

/* Q is the first to be turned by other angles: not of the first token, whose position is 0. */
Test(diff, other_angles)
{
    struct outcome o = DIFF(tiny_model(false), "-b", "--rope-freq-base 20000");
    expect(o, 7, "first node beyond its tolerance: q of layer 0, as a whole, row ", "");
    cr_expect(!strstr(o.out, "as a whole, row 0,"), "%s", o.out);
    expect(DIFF(tiny_model(false), "-b", "--rope-freq-base 20000", "-v"), 7,
           "\nnode: embd of no layer, as a whole", "");
    expect(DIFF(tiny_model(false), "--rope-freq-base", "20000"), 0, "no node differs", "");
}

/* Types of the cache round by their steps and no more: of the built-in model, which was trained. */
/* Nodes that rounding alone may change without bound are reported as such, not as equal. */
Test(diff, other_caches)
{
    static const char agree[] = "the two sides agree, as far as rounding lets them\n",
                      blind[] = "first node with a tolerance as large as its values: attn of layer";
    static const char *const b[][2] = {
        {"-ctk bf16", agree}, {"-ctk q8_0 -ctv f16", blind}, {"-ctk f16 -ctv q4_0", blind}};
    for (size_t i = 0; i < sizeof b / sizeof *b; i++)
        expect(GPURUN(NULL, "diff", "-dev", "none", "-q", "-p", "Once upon a time", "-a",
                      "-ctk f32 -ctv f32", "-b", b[i][0]),
               0, b[i][1], "");
    expect(DIFF(tiny_model(false), "-a", "-ctk f32", "-b", "-ctk bf16", "--tolerance", "1e-4"), 7,
           "tolerance: attn of layer 0", "");
}

/* An adapter of the output's matrix: every node before it agrees. */
Test(diff, an_adapter)
{
    char b[256];
    snprintf(b, sizeof b, "--lora-scaled %s:0.001", tiny_adapter());
    expect(DIFF(tiny_model(false), "-b", b), 7, "tolerance: logits of no layer, as a whole", "");
}

Test(diff, no_numbers)
{
    expect(DIFF(tiny_model(true), "-t", "1"), 7, "first node beyond its tolerance: ", "");
}

Test(diff, wrong_usage)
{
    const char *model = tiny_model(false);
    expect(DIFF(model, "-a", "-ctk f33"), 2, "", "error: -a: -ctk is 'f33'");
    expect(DIFF(model, "-b", "-t 1 --nonsense"), 2, "", "error: -b: unknown flag '--nonsense'");
    expect(DIFF(model, "-b", "-m other.gguf"), 2, "", "error: -b: -m belongs to the whole command");
    expect(DIFF(model, "-b", "--model=other.gguf"), 2, "", "-b: --model=other.gguf belongs to the");
    expect(DIFF(model, "-a", "-p x"), 2, "", "error: -a: -p belongs to the whole command");
    expect(DIFF(model, "-a", "-b --json"), 2, "", "error: -a: -b belongs to the whole command");
    expect(DIFF(model, "-a", "other.gguf"), 2, "", "error: -a: unexpected argument 'other.gguf'");
    expect(GPURUN(NULL, "diff", "-q", "-a", "other.gguf", "-p", "a"), 2, "",
           "error: -a: unexpected argument 'other.gguf'");
    expect(DIFF(model, "-a", "--temp 0"), 2, "", "error: -a: gpurun diff has no flag --temp");
    expect(DIFF(model, "-a", "-t"), 2, "", "error: -a: -t needs a value");
    expect(GPURUN(NULL, "diff", model, "-q", "-dev", "none"), 2, "", "there is no text");
    expect(DIFF(model, "-b", "-dev cuda"), 4, "", "error: -b: ");
    expect(DIFF(model, "-b", "--ranks 2"), 2, "", "error: -b: a tap sees only");
    expect(DIFF(model, "-a", "-c 256", "-p", "a"), 0, "2 tokens", "");
}

Test(diff, models_without_logits)
{
    expect(DIFF(tiny_encoder(), "-t", "1"), 3, "", "error: -a: a bert model leaves vectors");
    expect(DIFF(tiny_encoder_decoder(), "-t", "1"), 3, "", "error: -a: a t5 model has an encoder");
    expect(DIFF(tiny_diffusion_model(), "-t", "1"), 0, "no node differs", "");
}

/* ---- nodes by hand ---- */

enum { N_TOK = 2, N_VOCAB = 4 };

static struct gr_options options;
static struct gr_diff d;

static void begin(double tolerance)
{
    options = (struct gr_options){.tolerance = (float)tolerance};
    d = (struct gr_diff){.o = &options, .n = N_TOK, .n_vocab = N_VOCAB, .n_embd = 64, .n_layer = 1};
    d.side[0].name = "-a", d.side[1].name = "-b", d.side[0].flags = d.side[1].flags = "";
    cr_redirect_stdout();
}

/* One side's logits and nodes, of rows of 2 columns: the second way's x, when it has it, is off by
 * so much in its second row. */
static void side(int i, float logit, float off, bool has_x, bool has_more)
{
    float rows[2][2] = {{1, -1}, {1, 1}}, logits[N_VOCAB] = {3, 1, -3, logit};
    d.at = &d.side[i];
    for (int w = 0; w < GR_N_WAY; w++) {
        cr_assert_eq(gr_diff_begin(&d, (enum gr_diff_way)w), 0);
        for (size_t t = 0; t < N_TOK; t++)
            gr_diff_logits(&d, t, logits);
        gr_diff_tap("embd", -1, rows[0], 2, 2, &d);
        rows[1][0] += w == GR_WAY_EACH ? off : 0;
        for (int t = 0; t < N_TOK && has_x; t++)
            gr_diff_tap("x", 0, rows[t], 1, 2, &d);
        if (has_more)
            gr_diff_tap("more", 0, rows[0], 1, 2, &d);
    }
}

static void expect_report(bool differs, const char *part)
{
    char text[8192];
    bool said = gr_diff_report(&d);
    FILE *out = cr_get_redirected_stdout();
    fflush(stdout);
    size_t n = fread(text, 1, sizeof text - 1, out);
    text[n] = 0;
    cr_expect_eq(said, differs, "%s", text);
    cr_expect(strstr(text, part), "'%s' expected: %s", part, text);
}

/* RMS 1: what is as far off as the tolerance is not beyond it, what is further is named. */
Test(diff_nodes, a_number_too_far_off)
{
    begin(0.25);
    side(0, 0, 0, true, false);
    side(1, 0, 0.25f, true, false);
    expect_report(false, "worst node: x of layer 0, token by token, row 1, column 0: 1 and 1.25, "
                         "tolerance 0.25, 1 of it\n");
}

Test(diff_nodes, a_number_further_off)
{
    begin(0.25);
    side(0, 0, 0, true, false);
    side(1, 0, -0.5f, true, false);
    expect_report(true, "first node beyond its tolerance: x of layer 0, token by token, row 1, "
                        "column 0: 1 and 0.5, tolerance 0.25, 2 of it\n");
}

/* No flag made the sides differ in what they round: the tolerance is that of f32 sums. */
Test(diff_nodes, by_rounding)
{
    begin(-1);
    side(0, 0, 0, true, false);
    side(1, 0, 0x1p-22f, true, false);
    expect_report(false, "worst node: x of layer 0, token by token, row 1, column 0: ");
}

Test(diff_nodes, by_more_than_rounding)
{
    begin(-1);
    side(0, 0, 0, true, false);
    side(1, 0, 0x1p-16f, true, false);
    expect_report(true, "first node beyond its tolerance: x of layer 0");
}

Test(diff_nodes, not_finite)
{
    begin(1e6);
    side(0, 0, 0, true, false);
    side(1, 0, NAN, true, false);
    expect_report(true, "x of layer 0, token by token, row 1, column 0: 1 and nan");
}

Test(diff_nodes, one_side_has_it_alone)
{
    begin(1);
    side(0, 0, 0, true, false);
    side(1, 0, 0, false, false);
    expect_report(true, "x of layer 0, as a whole, 2 rows of 2 columns with -a, 0 with -b\n");
}

Test(diff_nodes, the_other_side_has_it_alone)
{
    begin(1);
    side(0, 0, 0, true, false);
    side(1, 0, 0, true, true);
    expect_report(true, "more of layer 0, as a whole, 0 rows of 2 columns with -a, 1 with -b\n");
}

/* Every node alone agrees: then it is what untapped runs have besides. */
Test(diff_nodes, fusions)
{
    begin(0.01);
    side(0, 0.5f, 0, true, false);
    side(1, 0.625f, 0, true, false);
    expect_report(true, "try --no-cuda-fuse, --no-cuda-graph, --no-cuda-pdl in -a and -b\n");
}

/* Also when it is no more than rounding. */
Test(diff_nodes, fusions_that_round)
{
    begin(1);
    side(0, 0.5f, 0, true, false);
    side(1, 0.625f, 0, true, false);
    expect_report(false, "rounding lets them: the difference comes with fusions");
}

/* 2.5 is not the largest of 3, 1, -3, and 3.5 is. */
Test(diff_nodes, greedy_tokens)
{
    begin(1);
    side(0, 2.5f, 0, true, false);
    side(1, 3.5f, 0, true, false);
    expect_report(false, "largest difference 1, 0.398 of the tolerance; 0 of 2 greedy tokens");
}

/* Rounding to f16 behind 32 layers takes less than a hundredth, s8 on the CPU less than a half, and
 * f32 alone a thousandth: a wrong column in a thousand shows. */
Test(diff_nodes, steps)
{
    struct gr_model_info info = {.file_type = "q4_K", .n_layer = 32, .n_gpu_layers = 33};
    struct gr_options o = {.cache_type_k = "f16", .cache_type_v = "f32", .cpu_level = "auto"};
    struct gr_diff_steps s = gr_diff_steps(&o, &info);
    cr_expect_float_eq(s.x, 0x1p-11 * sqrt(3), 1e-9);
    cr_expect_float_eq(s.cache, 0x1p-11 / sqrt(3), 1e-9);
    cr_expect_float_eq(s.attention, 0x1p-11, 1e-9);
    info.n_gpu_layers = 0;
    s = gr_diff_steps(&o, &info);
    cr_expect_float_eq(s.x, 4.0 / 127 / sqrt(12), 1e-9);
    cr_expect_eq(s.attention, 0);
    o.cpu_level = "ref";
    cr_expect_eq(gr_diff_steps(&o, &info).x, 0);
    info.file_type = "bf16", o.cpu_level = "auto";
    cr_expect_float_eq(gr_diff_steps(&o, &info).x, 0x1p-9 / sqrt(3), 1e-9);
    info.file_type = "f32", info.n_gpu_layers = 33, o.cache_type_k = "f32";
    s = gr_diff_steps(&o, &info);
    cr_expect(s.x == 0 && s.cache == 0 && s.attention == 0);
}
