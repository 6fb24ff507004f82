/* gpurun perplexity that ends early, and its files of log-probabilities, good and bad. What the
 * numbers must be is in perplexity.py. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiny.h"

TestSuite(perplexity, .timeout = 120);

static char model[128], text[128], base[128];

/* A text of n letters, BOS before them. */
static void prepare(int n)
{
    snprintf(model, sizeof model, "%s", tiny_model(false));
    snprintf(text, sizeof text, "%s", tiny_path("text"));
    snprintf(base, sizeof base, "%s", tiny_path("base"));
    FILE *f = fopen(text, "wb");
    for (int i = 0; i < n; i++)
        fputc('a' + i % 26 * (i % 26) % 26, f);
    fclose(f);
}

#define PERPLEXITY(...) GPURUN(NULL, "perplexity", model, "-t", "1", "-c", "8", __VA_ARGS__)

static json_t *json_of(const char *out)
{
    json_t *all = json_loads(out, 0, NULL);
    cr_assert(all, "%s", out);
    return all;
}

static double number(const json_t *o, const char *key)
{
    cr_assert(json_is_number(json_object_get(o, key)), "%s", key);
    return json_number_value(json_object_get(o, key));
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* ---- what ends early ---- */

enum { MANY = 10012 }; /* chunks, whose figures no pipe holds */

/* Runs MANY chunks with these flags, interrupts them when `mark` was printed and returns all that
 * was; *n: the chunks that were complete, by what is said to go on. */
static char *interrupt(const char *flag, const char *value, const char *mark, int *n)
{
    static char out[1 << 18];
    const char *const argv[] = {"gpurun", "perplexity", model, "-f", text, "-c",  "8",
                                "-b",     "8",          "-t",  "1",  flag, value, NULL};
    int fd;
    size_t have = 0;
    ssize_t got;
    int pid = tiny_start_pipe(argv, &fd);
    while (!memmem(out, have, mark, strlen(mark)) && (got = read(fd, out + have, 512)) > 0)
        have += (size_t)got;
    kill(pid, SIGINT);
    while ((got = read(fd, out + have, sizeof out - 1 - have)) > 0)
        have += (size_t)got;
    close(fd);
    out[have] = 0;
    struct outcome o = tiny_wait(pid);
    const char *said = strstr(o.err, "--from-chunk ");
    expect_exit(o, 130, "interrupted after chunk ");
    cr_assert(said && strstr(said, "measures the others"), "%s", o.err);
    *n = atoi(said + 13);
    cr_assert(*n >= 1 && *n < MANY, "%d", *n);
    return out;
}

static double estimate(const char *out)
{
    const char *at = strstr(out, "PPL = ");
    cr_assert(at, "%s", out);
    return strtod(at + 6, NULL);
}

/* An interrupted run prints a result: that of a run of so many chunks, which together with the rest
 * gives the result of all. */
Test(perplexity, interrupted)
{
    char count[16], words[64];
    int n;
    prepare(8 * MANY);
    const char *out = interrupt("-v", NULL, "[25]", &n);
    cr_expect_geq(n, 25);
    snprintf(words, sizeof words, "Final estimate of %d of %d chunks: PPL = ", n, MANY);
    cr_assert(strstr(out, words), "%s", strrchr(out, '\n'));
    double got = estimate(out);
    snprintf(count, sizeof count, "%d", n);
    struct outcome first = PERPLEXITY("-f", text, "-b", "8", "--chunks", count),
                   rest = PERPLEXITY("-f", text, "-b", "8", "--from-chunk", count),
                   all = PERPLEXITY("-f", text, "-b", "8");
    cr_expect_eq(got, estimate(first.out));
    cr_expect_not(strstr(all.out, "chunks:"), "all of them are no part");
    double both = (n * log(got) + (MANY - n) * log(estimate(rest.out))) / MANY;
    cr_expect_float_eq(exp(both), estimate(all.out), 1e-4 * estimate(all.out));
    json_t *j = json_of(interrupt("--json", NULL, "[", &n));
    cr_expect_eq(number(j, "n_chunk"), n);
    cr_expect_eq(json_array_size(json_object_get(j, "chunks")), (size_t)n);
    cr_expect_eq(number(j, "n_tokens"), 3 * n);
    cr_expect_str_eq(word(j, "stop"), "interrupted");
    json_decref(j);
}

/* A file of log-probabilities has all chunks or is not there. */
Test(perplexity, interrupted_beside_a_file)
{
    int n;
    prepare(8 * MANY);
    interrupt("--kl-divergence-base", base, "[25]", &n);
    cr_expect_neq(access(base, F_OK), 0);
}

Test(perplexity, failed)
{
    prepare(400);
    snprintf(model, sizeof model, "%s", tiny_model(true));
    struct outcome o = PERPLEXITY("-f", text, "--json");
    expect_exit(o, 1, "chunk 1, token 5: -log p is nan");
    json_t *j = json_of(o.out);
    cr_expect(json_is_null(json_object_get(j, "perplexity")));
    cr_expect_eq(number(j, "n_chunk"), 0);
    cr_expect_str_eq(word(j, "stop"), "error");
    json_decref(j);
    o = PERPLEXITY("-f", text);
    expect_exit(o, 1, "failed before a chunk was complete");
    cr_expect_not(strstr(o.out, "PPL"), "%s", o.out);
}

/* ---- files of log-probabilities ---- */

enum { N_VOCAB = 285, N_CHUNK = 6, ROW = 4 + N_VOCAB + 1 }; /* a row is padded to an even number */

static void write_base(void)
{
    prepare(47);
    expect_exit(PERPLEXITY("-f", text, "--kl-divergence-base", base, "--overwrite"), 0, "6 chunks");
}

#define COMPARE(...) PERPLEXITY("--kl-divergence", "--kl-divergence-base", base, __VA_ARGS__)

/* An odd vocabulary; a model is no way from itself but for rounding. */
Test(perplexity, same_model)
{
    struct stat st;
    write_base();
    cr_assert_eq(stat(base, &st), 0);
    cr_expect_eq(st.st_size, 20 + 4 * 8 * N_CHUNK + 2 * ROW * 3 * N_CHUNK);
    struct outcome o = COMPARE("--json");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    json_t *j = json_of(o.out);
    cr_expect_float_eq(number(json_object_get(j, "kld"), "max"), 0, 5e-5);
    cr_expect_float_eq(number(j, "ratio"), 1, 1e-4);
    cr_expect_eq(number(j, "same_top"), 1);
    cr_expect_eq(number(j, "n_tokens"), 3 * N_CHUNK);
    cr_expect_eq(json_array_size(json_object_get(j, "chunks")), N_CHUNK);
    json_decref(j);
    o = COMPARE("-q");
    cr_expect(strstr(o.out, "Mean    KLD: ") && strstr(o.out, "Same top p: 100.000"), "%s", o.out);
    expect_exit(COMPARE("-f", text), 0, "is not read");
    expect_exit(PERPLEXITY("-f", text, "--save-all-logits", base), 2, "exists");
    expect_exit(PERPLEXITY("-f", text, "--save-all-logits", base, "--overwrite"), 0, "");
    expect_exit(COMPARE("--chunks", "1"), 0, "");
}

Test(perplexity, flags_of_files)
{
    write_base();
    expect_exit(PERPLEXITY("-f", text, "--kl-divergence"), 2, "needs the file");
    expect_exit(
        PERPLEXITY("-f", text, "--kl-divergence-base", base, "--overwrite", "--ppl-stride", "4"), 2,
        "leave one out");
    expect_exit(COMPARE("-c", "16"), 2, "-c is 16");
    expect_exit(COMPARE("--from-chunk", "6"), 2, "has 6 chunks");
    expect_exit(COMPARE("--log-file", base), 2, "a file of this command");
    expect_exit(GPURUN(NULL, "imatrix", model, "--kl-divergence"), 2, "no flag --kl-divergence");
    snprintf(base, sizeof base, "%s", tiny_dir());
    expect_exit(COMPARE("-q"), 6, "Is a directory");
    snprintf(base, sizeof base, "/nowhere/base");
    expect_exit(COMPARE("-q"), 6, "cannot read '/nowhere/base'");
}

/* A good file with one thing changed. */
struct damage {
    long at; /* of the four bytes that are replaced; -1: none */
    int32_t to;
    long size; /* 0: as it was */
    const char *words;
};

static void damage_base(const struct damage *d)
{
    write_base();
    FILE *f = fopen(base, "r+b");
    cr_assert(f);
    if (d->at >= 0) {
        fseek(f, d->at, SEEK_SET);
        fwrite(&d->to, 4, 1, f);
    }
    fclose(f);
    if (d->size)
        cr_assert_eq(truncate(base, d->size), 0);
}

Test(perplexity, damaged_files)
{
    enum { TOKENS = 20, ROWS = TOKENS + 4 * 8 * N_CHUNK, END = ROWS + 2 * ROW * 3 * N_CHUNK };
    static const struct damage all[] = {
        {0, 0x474f4c5f, 0, "begins otherwise"},
        {-1, 0, 5, "ends in its first bytes"},
        {-1, 0, 17, "ends in its first bytes"},
        {8, 3, 0, "chunks of 4 to"},
        {8, -8, 0, "chunks of 4 to"},
        {8, INT32_MAX, 0, "chunks of 4 to"},
        {12, 0, 0, "a vocabulary expected"},
        {12, 1 << 20, 0, "bytes expected"},
        {12, N_VOCAB + 1, 0, "of a vocabulary of 286 tokens, the model has 285"},
        {12, INT32_MAX, 0, "bytes expected"},
        {16, 0, 0, "chunks and a vocabulary"},
        {16, -1, 0, "chunks and a vocabulary"},
        {16, INT32_MAX, 0, "bytes expected"},
        {16, N_CHUNK - 1, 0, "bytes expected"},
        {TOKENS + 12, N_VOCAB, 0, "token 3 is 285"},
        {TOKENS + 12, -1, 0, "token 3 is -1"},
        {-1, 0, TOKENS + 40, "bytes expected"},
        {-1, 0, END - 1, "bytes expected"},
        {-1, 0, END + 1, "bytes expected"},
        {ROWS, 0x7fc00000, 0, "log-probabilities from"},
        {ROWS, 0x7f800000, 0, "log-probabilities from"},
        {ROWS, -1, 0, "log-probabilities from"},
        {ROWS + 4, 0x43000000, 0, "log-probabilities from 128"},
        {ROWS + 4, 0x7f800000, 0, "log-probabilities from inf"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        damage_base(&all[i]);
        struct outcome o = COMPARE("-q");
        const char *error = strstr(o.err, "error: ");
        cr_expect(o.exit_code == 3 && error && strstr(error, all[i].words) &&
                      !strstr(error + 1, "error: "),
                  "row %zu, '%s': %d, %s", i, all[i].words, o.exit_code, o.err);
    }
}

/* Sizes whose product is more than any file has. */
Test(perplexity, sizes_that_overflow)
{
    static const struct damage size[] = {
        {8, 1 << 24, 0, ""}, {12, INT32_MAX, 0, ""}, {16, INT32_MAX, 0, ""}};
    write_base();
    FILE *f = fopen(base, "r+b");
    for (int i = 0; i < 3; i++) {
        fseek(f, size[i].at, SEEK_SET);
        fwrite(&size[i].to, 4, 1, f);
    }
    fclose(f);
    expect_exit(COMPARE("-q"), 3, "no file can hold");
}
