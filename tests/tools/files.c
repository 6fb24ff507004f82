/* gpurun quantize, split, merge, imatrix and perplexity on a tiny model. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
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

/* llama.cpp's figures of the built-in model (tests/golden/default-model/reference.json). */
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

/* Starts an imatrix of many short chunks, as many lines as its pipe cannot hold, and reads until it
 * has said `words`. */
static int start_imatrix(const char *const *argv, FILE **said, const char *words)
{
    static char line[400];
    int fd[2];
    cr_assert_eq(pipe2(fd, O_CLOEXEC), 0);
    int pid = tiny_start(argv, fd[1], true);
    close(fd[1]);
    *said = fdopen(fd[0], "r");
    while (fgets(line, sizeof line, *said) && !strstr(line, words))
        ;
    cr_assert(strstr(line, words), "'%s' was not said", words);
    return pid;
}

/* A run that is killed has left what it had ten chunks before at most; one that is interrupted says
 * what goes on, and that comes to what one run gives, to the bit. */
Test(files, imatrix_ends_early)
{
    const char *model = keep(tiny_model(false)), *text = write_text(16100),
               *im = keep(tiny_path("im.gguf")), *whole = keep(tiny_path("whole.gguf"));
    const char *const argv[] = {"gpurun", "imatrix", model, "-f", text, "-c", "8",
                                "-b",     "8",       "-t",  "1",  "-o", im,   NULL};
    FILE *said;
    int pid = start_imatrix(argv, &said, "im.gguf: 20 of 2012 chunks");
    kill(pid, SIGKILL);
    fclose(said);
    cr_expect_eq(tiny_wait(pid).signal, SIGKILL);
    struct outcome o = GPURUN(NULL, "inspect", im);
    cr_expect(strstr(o.out, "imatrix.chunk_count"), "%s%s", o.out, o.err);
    unlink(im);
    pid = start_imatrix(argv, &said, "chunk 25 of 2012");
    kill(pid, SIGINT);
    char line[400], from[16] = "";
    while (fgets(line, sizeof line, said))
        if (strstr(line, "--overwrite goes on"))
            cr_assert_eq(sscanf(strstr(line, "--from-chunk"), "--from-chunk %15s", from), 1);
    fclose(said);
    cr_expect_eq(tiny_wait(pid).exit_code, 130);
    cr_assert(atoi(from) >= 25 && atoi(from) < 2012, "'%s'", from);
    expect_exit(GPURUN(NULL, "imatrix", model, "-f", text, "-c", "8", "-b", "8", "-t", "1", "-o",
                       im, "--in-file", im, "--from-chunk", from, "--overwrite"),
                0, "perplexity of the text");
    expect_exit(GPURUN(NULL, "imatrix", model, "-f", text, "-c", "8", "-b", "8", "-t", "1", "-o",
                       whole, "-ofreq", "0", "--save-frequency", "2000"),
                0, "2012 chunks of 8 tokens");
    cr_expect_eq(GPURUN(NULL, "inspect", tiny_path("whole.gguf.at_2000")).exit_code, 0);
    char *a, *b;
    size_t n, m;
    cr_assert_eq(gr_file_slurp(im, 1 << 24, &a, &n), 0);
    cr_assert_eq(gr_file_slurp(whole, 1 << 24, &b, &m), 0);
    cr_expect(n == m && !memcmp(a, b, n), "%zu and %zu bytes", n, m);
    gr_free(a), gr_free(b);
    expect_exit(GPURUN(NULL, "imatrix", model, "-f", text, "-c", "8", "-o", whole, "--overwrite",
                       "--from-chunk", "2012"),
                2, "the text has 2012 chunks of 8 tokens, less is expected");
}

/* A device in place of a file is written once. */
Test(files, imatrix_to_a_device)
{
    const char *model = keep(tiny_model(false)), *text = write_text(400);
    struct outcome o = GPURUN(NULL, "imatrix", model, "-f", text, "-c", "8", "-b", "8", "-o",
                              "/dev/stdout", "-ofreq", "1", "--save-frequency", "1");
    expect_exit(o, 0, "/dev/stdout: 50 chunks");
    cr_expect_not(strstr(o.err, "/dev/stdout: 1 of"), "%s", o.err);
    cr_expect(!memcmp(o.out, "GGUF", 4) && !memmem(o.out + 4, o.n_out - 4, "GGUF", 4));
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
                2, "importance matrix");
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
