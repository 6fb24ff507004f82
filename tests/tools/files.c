/* gpurun quantize, split, merge, imatrix and perplexity on a tiny model. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tiny.h"

/* A name that stays: those of tiny.h are valid for a few calls. */
static const char *keep(const char *path)
{
    static char kept[16][256];
    static int n;
    cr_assert_lt(n, 16);
    strcpy(kept[n], path);
    return kept[n++];
}

/* A text of n letters with a line's end. */
static const char *write_text(int n)
{
    const char *path = keep(tiny_path("text"));
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < n; i++)
        fputc('a' + i * i % 26, f);
    fputc('\n', f);
    fclose(f);
    return path;
}

static double number(json_t *o, const char *key)
{
    cr_assert(json_is_number(json_object_get(o, key)), "%s", key);
    return json_number_value(json_object_get(o, key));
}

TestSuite(files);

Test(files, perplexity)
{
    const char *model = keep(tiny_model(false)), *text = write_text(400);
    struct outcome o = GPURUN(NULL, "perplexity", model, "-f", text, "-c", "64", "--json", "-q");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    json_t *all = json_loads(o.out, 0, NULL);
    cr_assert(all, "%s", o.out);
    double value = number(all, "perplexity");
    cr_expect_eq(number(all, "n_chunk"), 6);
    cr_expect_eq(number(all, "n_tokens"), 6 * 31);
    cr_expect_eq(json_array_size(json_object_get(all, "chunks")), 6);
    cr_expect_float_eq(json_number_value(json_array_get(json_object_get(all, "chunks"), 5)), value,
                       1e-5);
    cr_expect_gt(value, 1);
    cr_expect_gt(number(all, "error"), 0);
    json_decref(all);
    /* a chunk in pieces, chunks one after the other, and on two ranks: the same */
    static const char *const how[][3] = {
        {"-b", "16", "-q"}, {"-b", "64", "-q"}, {"--ranks", "2", "-q"}};
    for (int i = 0; i < 3; i++) {
        o = GPURUN(NULL, "perplexity", model, "-f", text, "-c", "64", how[i][0], how[i][1],
                   how[i][2]);
        const char *end = strstr(o.out, "Final estimate: PPL = ");
        cr_assert(o.exit_code == 0 && end && strstr(o.out, ",[6]"), "%s%s", o.out, o.err);
        double got = strtod(end + 22, NULL);
        cr_expect_float_eq(got, value, 1e-3 * value, "%s %s: %g, %g", how[i][0], how[i][1], got,
                           value);
    }
    o = GPURUN(NULL, "perplexity", model, "-f", text, "-c", "64", "--chunks", "2", "-q");
    cr_expect(strstr(o.out, "[2]") && !strstr(o.out, "[3]"), "%s", o.out);
    o = GPURUN(NULL, "perplexity", model, "-f", text, "-c", "64", "--ppl-stride", "32", "-q");
    cr_expect(strstr(o.out, "[11]") && !strstr(o.out, "[12]"), "%s", o.out); /* (401 - 80) / 32 */
}

/* What llama.cpp measures of the built-in model (tests/golden/default-model/reference.json). */
Test(files, perplexity_of_the_built_in_model)
{
    static const char *const text = GR_SOURCE_DIR "/tests/golden/default-model/perplexity.txt";
    struct outcome o = GPURUN(NULL, "perplexity", "-f", text, "-c", "256", "-q");
    const char *end = strstr(o.out, "Final estimate: PPL = ");
    cr_assert(o.exit_code == 0 && end, "%s", o.err);
    cr_expect_float_eq(strtod(end + 22, NULL), 1.601221, 2e-4, "%s", end);
}

Test(files, perplexity_refuses)
{
    const char *model = keep(tiny_model(false)), *text = write_text(100);
    expect_exit(GPURUN(NULL, "perplexity", model, "-f", text, "-c", "64"), 2, "at least 128");
    expect_exit(GPURUN(NULL, "perplexity", model, "-f", text, "-c", "32", "--ppl-stride", "32"), 2,
                "less than the context");
    expect_exit(GPURUN(NULL, "perplexity", model, "-f", "/nowhere/text"), 6, "/nowhere/text");
}

Test(files, imatrix_for_quantize)
{
    const char *model = keep(tiny_model(false)), *text = write_text(400),
               *im = keep(tiny_path("im.gguf")), *more = keep(tiny_path("more.gguf")),
               *q = keep(tiny_path("q.gguf"));
    struct outcome o = GPURUN(NULL, "imatrix", model, "-f", text, "-c", "64", "-o", im);
    expect_exit(o, 0, "6 chunks of 64 tokens");
    expect_exit(GPURUN(NULL, "imatrix", model, "-f", text, "-c", "64", "-o", im), 2, "exists");
    expect_exit(GPURUN(NULL, "imatrix", model, "-f", text, "-c", "64", "-o", more, "--in-file", im),
                0, "6 chunks");
    expect_exit(GPURUN(NULL, "quantize", model, q, "q4_0", "--imatrix", more), 0, "q4_0");
    o = GPURUN(NULL, "inspect", q);
    cr_expect(strstr(o.out, "quantize.imatrix.chunks_count") && strstr(o.out, "12"), "%s", o.out);
    o = GPURUN(NULL, "perplexity", q, "-f", text, "-c", "64", "-q");
    cr_expect(o.exit_code == 0 && strstr(o.out, "Final estimate"), "%s%s", o.out, o.err);
    expect_exit(GPURUN(NULL, "quantize", model, q, "q4_0", "--imatrix", text, "--overwrite"), 3,
                "importance matrix file");
}

Test(files, quantize)
{
    const char *model = keep(tiny_model(false)), *q = keep(tiny_path("q.gguf"));
    expect_exit(GPURUN(NULL, "quantize", model, q, "Q8_0", "--dry-run"), 0, "bits each");
    cr_expect_neq(access(q, F_OK), 0);
    expect_exit(GPURUN(NULL, "quantize", model, q, "q8_0", "--tensor-type", "ffn_up=q4_0",
                       "--tensor-type", "attn_v=f16"),
                0, "ffn_up.weight': f32 -> q4_0");
    expect_exit(GPURUN(NULL, "quantize", model, q, "q8_0"), 2, "exists");
    expect_exit(GPURUN(NULL, "quantize", model, model, "q8_0"), 2, "exists");
    expect_exit(GPURUN(NULL, "quantize", q, tiny_path("r.gguf"), "q4_0"), 3, "--allow-requantize");
    expect_exit(GPURUN(NULL, "quantize", q, tiny_path("r.gguf"), "q4_0", "--allow-requantize"), 0,
                "errors of both types");
    expect_exit(GPURUN(NULL, "quantize", model, "/nowhere/q.gguf", "q8_0"), 6, "/nowhere/q.gguf");
    expect_exit(GPURUN(NULL, "quantize", GR_SOURCE_DIR "/tools/default-model.gguf", q, "IQ2_XS",
                       "--overwrite"),
                3, "importance matrix");
}

Test(files, split_and_merge)
{
    const char *model = keep(tiny_model(false)), *prefix = keep(tiny_path("part")), *first,
               *whole = keep(tiny_path("whole.gguf"));
    expect_exit(GPURUN(NULL, "split", model, prefix, "--split-max-tensors", "8", "--dry-run"), 0,
                "part 1 of");
    cr_expect_neq(access(tiny_path("part-00001-of-00003.gguf"), F_OK), 0);
    expect_exit(GPURUN(NULL, "split", model, prefix, "--split-max-size", "12K"), 2, "M or G");
    struct outcome o = GPURUN(NULL, "split", model, prefix, "--split-max-tensors", "8");
    expect_exit(o, 0, "part 1 of 3: to tensor 8");
    first = keep(tiny_path("part-00001-of-00003.gguf"));
    struct outcome a = GPURUN(NULL, "run", model, "-p", "abc", "-n", "8", "--temp", "0", "-q"),
                   b = GPURUN(NULL, "run", first, "-p", "abc", "-n", "8", "--temp", "0", "-q");
    cr_expect(a.exit_code == 0 && b.exit_code == 0 && !strcmp(a.out, b.out), "%s / %s", a.out,
              b.out);
    expect_exit(GPURUN(NULL, "merge", first, whole), 0, "bits each");
    expect_exit(GPURUN(NULL, "merge", first, whole), 2, "exists");
    expect_exit(GPURUN(NULL, "merge", first, whole, "--overwrite"), 0, "");
    b = GPURUN(NULL, "run", whole, "-p", "abc", "-n", "8", "--temp", "0", "-q");
    cr_expect_str_eq(a.out, b.out);
}
