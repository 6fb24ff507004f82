/* gpurun embed on tiny models: what stands for a text, how long it is, which texts there are. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

enum { N_EMBD = 32, MOST_ROWS = 24 };

/* Sums of f32 in another order, printed with nine digits. */
#define SAME 1e-5

struct rows {
    int n, n_col;
    double x[MOST_ROWS][N_EMBD];
};

/* The lines of numbers that the program printed, all equally long. */
static struct rows rows_of(struct outcome o)
{
    struct rows r = {0};
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    for (char *line = strtok(o.out, "\n"); line; line = strtok(NULL, "\n"), r.n++) {
        int n_col = 0;
        cr_assert_lt(r.n, MOST_ROWS);
        for (char *end; *line; line = end, n_col++) {
            cr_assert_lt(n_col, N_EMBD);
            r.x[r.n][n_col] = strtod(line, &end);
            cr_assert_neq(end, line, "a number expected: %s", line);
        }
        cr_assert(r.n == 0 || n_col == r.n_col);
        r.n_col = n_col;
    }
    return r;
}

static void expect_row(const double *got, const double *want, int n, const char *what)
{
    for (int i = 0; i < n; i++)
        cr_expect_float_eq(got[i], want[i], SAME * (1 + fabs(want[i])), "%s, %d: %g, not %g", what,
                           i, got[i], want[i]);
}

#define EMBED(...) GPURUN(NULL, "embed", model, "-t", "1", __VA_ARGS__)
#define RAW "--embd-normalize", "-1"

/* With pooling `none` there is a row for every token, from which the other results follow. */
static void check_pooling(const char *model)
{
    static const char *const kind[] = {"mean", "cls", "last"};
    struct rows all = rows_of(EMBED("-p", "abcdef", RAW, "--pooling", "none"));
    cr_assert(all.n == 7 && all.n_col == N_EMBD, "%d rows of %d", all.n, all.n_col); /* BOS */
    cr_expect_gt(fabs(all.x[0][0] - all.x[6][0]), 1e-3);
    for (int k = 0; k < 3; k++) {
        double want[N_EMBD] = {0};
        for (int i = 0; i < 7; i++)
            for (int c = 0; c < N_EMBD; c++)
                want[c] += k == 0 ? all.x[i][c] / 7 : i == (k == 1 ? 0 : 6) ? all.x[i][c] : 0;
        struct rows one = rows_of(EMBED("-p", "abcdef", RAW, "--pooling", kind[k]));
        cr_assert(one.n == 1 && one.n_col == N_EMBD);
        expect_row(one.x[0], want, N_EMBD, kind[k]);
    }
}

TestSuite(embed);

Test(embed, pooling)
{
    check_pooling(tiny_model(false));
    check_pooling(tiny_encoder());
}

/* A llama says nothing of pooling and gives every token, the encoder says mean. */
Test(embed, the_file_s_pooling)
{
    const char *model = tiny_model(false);
    cr_expect_eq(rows_of(EMBED("-p", "abc")).n, 4);
    model = tiny_encoder();
    struct rows plain = rows_of(EMBED("-p", "abc"));
    struct rows mean = rows_of(EMBED("-p", "abc", "--pooling", "mean"));
    cr_expect_eq(plain.n, 1);
    expect_row(plain.x[0], mean.x[0], N_EMBD, "mean");
}

Test(embed, lengths)
{
    static const char *const norm[] = {"2", "1", "0", "3", "7"};
    const char *model = tiny_encoder();
    struct rows raw = rows_of(EMBED("-p", "abc", RAW));
    for (int k = 0; k < 5; k++) {
        int p = atoi(norm[k]);
        double sum = 0, most = 0, want[N_EMBD];
        for (int c = 0; c < N_EMBD; c++) {
            sum += pow(fabs(raw.x[0][c]), p);
            most = fmax(most, fabs(raw.x[0][c]));
        }
        for (int c = 0; c < N_EMBD; c++)
            want[c] = raw.x[0][c] / (p ? pow(sum, 1.0 / p) : most / 32760);
        struct rows got = rows_of(EMBED("-p", "abc", "--embd-normalize", norm[k]));
        expect_row(got.x[0], want, N_EMBD, norm[k]);
        if (k == 0)
            expect_row(rows_of(EMBED("-p", "abc")).x[0], want, N_EMBD, "the default");
    }
    expect_exit(EMBED("-p", "abc", "--embd-normalize", "-2"), 2, "--embd-normalize is '-2'");
}

/* ---- several texts ---- */

static const char *write_file(const char *text)
{
    static char path[128];
    snprintf(path, sizeof path, "%s", tiny_path("texts"));
    FILE *f = fopen(path, "wb");
    cr_assert(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static void expect_texts(struct outcome o, const struct rows *alone, int n)
{
    struct rows r = rows_of(o);
    cr_assert_eq(r.n, n, "%d rows", r.n);
    for (int i = 0; i < n; i++)
        expect_row(r.x[i], alone[i].x[0], N_EMBD, "a text");
}

/* A text has the same vector alone, beside others, and in batches that hold a few of them. */
Test(embed, several_texts)
{
    static const char *const text[] = {"abc", "the second one", "z"};
    for (int k = 0; k < 2; k++) {
        struct rows alone[3];
        const char *model = k ? tiny_encoder() : tiny_model(false);
        for (int i = 0; i < 3; i++)
            alone[i] = rows_of(EMBED("-p", text[i], "--pooling", "mean"));
        const char *file = write_file("abc\nthe second one\r\nz\n");
        expect_texts(EMBED("-f", file, "--pooling", "mean"), alone, 3);
        expect_texts(EMBED("-f", file, "--pooling", "mean", "-b", "1"), alone, 3);
        expect_texts(
            EMBED("-p", "abc##the second one##z", "--pooling", "mean", "--embd-separator", "##"),
            alone, 3);
        expect_texts(
            GPURUN("abc\nthe second one\nz", "embed", model, "-t", "1", "--pooling", "mean"), alone,
            3);
        expect_texts(EMBED("-f", file, "--pooling", "mean", "--ranks", "2"), alone, 3);
    }
    cr_expect_eq(rows_of(GPURUN("ab\ncd", "embed", tiny_encoder(), "--embd-separator", "")).n, 1);
}

/* ---- JSON ---- */

static json_t *json_of(struct outcome o)
{
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    json_t *j = json_loads(o.out, 0, NULL);
    cr_assert(j, "%s", o.out);
    return j;
}

static void expect_list(const json_t *list, const double *want, int n)
{
    cr_assert_eq(json_array_size(list), (size_t)n);
    for (int i = 0; i < n; i++)
        cr_expect_float_eq(json_number_value(json_array_get(list, (size_t)i)), want[i], SAME);
}

static int integer(const json_t *o, const char *object, const char *key)
{
    const json_t *v = json_object_get(object ? json_object_get(o, object) : o, key);
    cr_assert(json_is_integer(v), "%s", key);
    return (int)json_integer_value(v);
}

Test(embed, json)
{
    const char *model = tiny_encoder();
    struct rows text = rows_of(EMBED("-p", "abc\nde"));
    json_t *j = json_of(EMBED("-p", "abc\nde", "--json"));
    json_t *data = json_object_get(j, "data");
    cr_assert_eq(json_array_size(data), 2);
    for (int i = 0; i < 2; i++) {
        json_t *item = json_array_get(data, (size_t)i);
        cr_expect_eq(integer(item, NULL, "index"), i);
        expect_list(json_object_get(item, "embedding"), text.x[i], N_EMBD);
    }
    cr_expect_str_eq(json_string_value(json_object_get(j, "object")), "list");
    cr_expect_str_eq(json_string_value(json_object_get(j, "model")), "tiny");
    cr_expect_str_eq(json_string_value(json_object_get(j, "pooling")), "mean");
    cr_expect_eq(integer(j, "usage", "prompt_tokens"), 4 + 3); /* each with BOS */
    json_decref(j);
    text = rows_of(EMBED("-p", "abc", "--pooling", "none"));
    j = json_of(EMBED("-p", "abc", "--pooling", "none", "--json"));
    json_t *rows = json_object_get(json_array_get(json_object_get(j, "data"), 0), "embedding");
    cr_assert_eq(json_array_size(rows), 4);
    for (int i = 0; i < 4; i++)
        expect_list(json_array_get(rows, (size_t)i), text.x[i], N_EMBD);
    json_decref(j);
}

/* ---- blank lines ---- */

/* A blank line is a text without words, where the model begins every text with a token: a row, or
 * an index, is that of its line. The end of the last line begins no other. */
Test(embed, blank_lines)
{
    static const char *const file[] = {"abc\n\n\r\nz\n", "abc\n\n\nz", "abc\n\n\nz\n\n", "\nz\n"};
    static const int words[][5] = {{0, -1, -1, 1}, {0, -1, -1, 1}, {0, -1, -1, 1, -1}, {-1, 1}};
    static const int n[] = {4, 4, 5, 2};
    const char *model = tiny_encoder();
    struct rows text[2] = {rows_of(EMBED("-p", "abc")), rows_of(EMBED("-p", "z"))};
    struct rows blank = rows_of(EMBED("-p", "\n"));
    cr_assert_eq(blank.n, 1);
    for (int k = 0; k < 4; k++) {
        struct rows want[5], got = rows_of(EMBED("-p", file[k]));
        for (int i = 0; i < n[k]; i++)
            want[i] = words[k][i] < 0 ? blank : text[words[k][i]];
        cr_assert_eq(got.n, n[k], "%d: %d rows", k, got.n);
        for (int i = 0; i < n[k]; i++)
            expect_row(got.x[i], want[i].x[0], N_EMBD, "-p");
        expect_texts(EMBED("-f", write_file(file[k])), want, n[k]);
        expect_texts(GPURUN(file[k], "embed", model, "-t", "1"), want, n[k]);
    }
    json_t *j = json_of(EMBED("-p", "abc\n\nz", "--json")), *data = json_object_get(j, "data");
    cr_assert_eq(json_array_size(data), 3);
    expect_list(json_object_get(json_array_get(data, 2), "embedding"), text[1].x[0], N_EMBD);
    cr_expect_eq(integer(json_array_get(data, 2), NULL, "index"), 2);
    json_decref(j);
    cr_expect_eq(rows_of(EMBED("-p", "abc##", "--embd-separator", "##")).n, 2);
    cr_expect_eq(rows_of(EMBED("-f", write_file("abc##z\n"), "--embd-separator", "##")).n, 2);
    struct rows last = rows_of(EMBED("-f", write_file("abc##z\n"), "--embd-separator", "##"));
    expect_row(last.x[1], text[1].x[0], N_EMBD, "the end of a file");
}

/* Without a token to begin with there is nothing to make a row of. */
Test(embed, blank_lines_refused)
{
    const char *model = tiny_model_without_bos();
    cr_expect_eq(rows_of(EMBED("-p", "abc\nz", "--pooling", "last")).n, 2);
    struct outcome o = EMBED("-p", "abc\n\nz", "--pooling", "last");
    expect_exit(o, 2, "line 2 has no tokens");
    cr_expect_eq(o.n_out, 0);
    expect_exit(EMBED("-p", "abc####z", "--embd-separator", "##"), 2, "text 2 has no tokens");
}

/* ---- a classifier ---- */

/* Scores are as they are. A question and its answer are one text, with a separator between them
 * that is no part of it. */
Test(embed, rank)
{
    const char *model = tiny_encoder();
    struct rows got = rows_of(EMBED("-p", "abc\tde", "--pooling", "rank"));
    cr_assert(got.n == 1 && got.n_col == 2);
    struct rows same =
        rows_of(EMBED("-p", "abc##de", "--pooling", "rank", "--cls-separator", "##"));
    expect_row(same.x[0], got.x[0], 2, "a separator");
    same = rows_of(EMBED("-p", "abcde", "--pooling", "rank", "--embd-normalize", "1"));
    expect_row(same.x[0], got.x[0], 2, "without");
    json_t *j = json_of(EMBED("-p", "abc\tde", "--pooling", "rank", "--json"));
    expect_list(json_object_get(json_array_get(json_object_get(j, "data"), 0), "scores"), got.x[0],
                2);
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(j, "labels"), 1)), "yes");
    json_decref(j);
}

/* ---- what is refused ---- */

Test(embed, refusals)
{
    const char *model = tiny_model(false);
    expect_exit(EMBED("-p", "abc", "--pooling", "rank"), 3, "the model has no classifier");
    expect_exit(EMBED("-p", "abc", "--pooling", "sum"), 2, "--pooling is 'sum'");
    expect_exit(EMBED("-p", ""), 2, "there is no text");
    expect_exit(GPURUN("", "embed", model), 2, "there is no text");
    expect_exit(EMBED("-f", "/nowhere/texts"), 6, "/nowhere/texts");
    expect_exit(GPURUN(NULL, "embed", "/nowhere/model.gguf", "-p", "abc"), 3,
                "/nowhere/model.gguf");
    model = tiny_textless_model();
    expect_exit(EMBED("-p", "abc"), 3, "the model has no tokenizer");
}

/* Learned positions end: a llama warns, an encoder has no more positions. */
Test(embed, long_texts)
{
    char text[700];
    memset(text, 'a', sizeof text - 1), text[sizeof text - 1] = 0;
    const char *model = tiny_model(false);
    struct outcome o = EMBED("-p", text, "--pooling", "last");
    expect_exit(o, 0, "line 1 has 700 tokens, and the model was trained on 512 at most");
    cr_expect_eq(rows_of(o).n, 1);
    o = EMBED("-p", text, "--pooling", "last", "--rope-scaling", "linear", "--rope-scale", "2");
    cr_expect_not(strstr(o.err, "trained on"), "%s", o.err);
    const char *file = write_file("a\n\n");
    FILE *f = fopen(file, "ab");
    fprintf(f, "%s\n%s%s\n", text, text, text);
    fclose(f);
    o = EMBED("-f", file, "--pooling", "last");
    expect_exit(
        o, 0,
        "line 4 has 1399 tokens, and the model was trained on 512 at most; 2 texts have more");
    model = tiny_encoder();
    o = EMBED("-f", file);
    expect_exit(o, 2, "line 3 has 700 tokens, and the model has learned 512 positions");
    cr_expect_eq(o.n_out, 0);
    text[511] = 0; /* and BOS */
    cr_expect_eq(rows_of(EMBED("-p", text)).n, 1);
}
