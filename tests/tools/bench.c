/* gpurun bench: what rows say, in every format; comparison with an earlier result. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

#define BENCH "bench", tiny_model(false), "-q", "-t", "1"

static double number(json_t *row, const char *name)
{
    const json_t *v = json_object_get(row, name);
    cr_assert(json_is_number(v), "%s is missing", name);
    return json_number_value(v);
}

static const char *word(json_t *row, const char *name)
{
    const char *text = json_string_value(json_object_get(row, name));
    cr_assert(text, "%s is missing", name);
    return text;
}

/* Speeds, durations and counts of a row fit together. */
static void expect_sane(json_t *row, size_t n_rep)
{
    double n = number(row, "n_prompt") + number(row, "n_gen") * number(row, "n_seq"), sum = 0;
    size_t i;
    json_t *v, *ns = json_object_get(row, "samples_ns"), *ts = json_object_get(row, "samples_ts");
    cr_assert_eq(json_array_size(ns), n_rep);
    cr_assert_eq(json_array_size(ts), n_rep);
    json_array_foreach(ns, i, v)
    {
        double speed = n * 1e9 / json_number_value(v);
        cr_expect_float_eq(json_number_value(json_array_get(ts, i)) / speed, 1, 1e-6);
        sum += speed;
    }
    cr_expect_float_eq(number(row, "avg_ts") * (double)n_rep / sum, 1, 1e-6);
    cr_expect(number(row, "cpu_ns") > 0 && number(row, "load_ns") > 0);
    cr_expect_eq(number(row, "n_threads"), 1);
    if (number(row, "n_gen") > 0) {
        cr_expect_gt(number(row, "itl_p50_ns"), 0);
        cr_expect_leq(number(row, "itl_p50_ns"), number(row, "itl_p90_ns"));
        cr_expect_leq(number(row, "itl_p90_ns"), number(row, "itl_p99_ns"));
        cr_expect_float_eq(number(row, "ts_each") * number(row, "n_seq") / number(row, "avg_ts"), 1,
                           1e-6);
    } else {
        cr_expect_eq(number(row, "itl_p99_ns"), 0);
    }
    double first = number(row, "ttft_ns");
    cr_expect(number(row, "n_prompt") > 0 ? first > 0 && first <= number(row, "avg_ns")
                                          : first == 0);
}

/* Every test at every depth, settings one after the other. */
Test(bench, rows)
{
    static const char *const tests[] = {"pp8",         "pp16",         "tg4",        "tg4x3",
                                        "pp8+tg2",     "pp8 @ d24",    "pp16 @ d24", "tg4 @ d24",
                                        "tg4x3 @ d24", "pp8+tg2 @ d24"};
    struct outcome o = GPURUN(NULL, BENCH, "-p", "8-16*2", "-n", "4", "-np", "1,3", "-pg", "8,2",
                              "-d", "0,24", "-ctk", "f16,bf16", "-r", "2", "--json");
    int rows = 0;
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    for (char *line = strtok(o.out, "\n"); line; line = strtok(NULL, "\n"), rows++) {
        json_t *row = json_loads(line, 0, NULL);
        cr_assert(row && rows < 20, "%s", line);
        cr_expect_str_eq(word(row, "test"), tests[rows % 10]);
        cr_expect_str_eq(word(row, "type_k"), rows < 10 ? "f16" : "bf16");
        cr_expect_eq(number(row, "n_depth"), rows % 10 < 5 ? 0 : 24);
        expect_sane(row, 2);
        json_decref(row);
    }
    cr_expect_eq(rows, 20);
}

/* Stages, pools, groups of texts, cells of others, and a model that cannot be cut back. */
Test(bench, sessions)
{
    struct outcome o = GPURUN(NULL, BENCH, "-p", "40", "-b", "8,16", "-n", "3", "-np", "5",
                              "--ranks", "2", "-d", "8", "-r", "2");
    cr_expect(strstr(o.out, "pp40 @ d8") && strstr(o.out, "tg3x5 @ d8"), "%s%s", o.out, o.err);
    cr_expect(strstr(o.out, "n_batch") && !strstr(o.out, "type_k"), "%s", o.out);
    o = GPURUN(NULL, BENCH, "-p", "0", "-n", "3", "-np", "1,2", "-d", "8", "-do", "0,100",
               "-no-kvu", "-r", "1");
    cr_expect(strstr(o.out, " tg3x2 @ d8 o100 |"), "%s%s", o.out, o.err);
    cr_expect_eq(GPURUN(NULL, BENCH, "-p", "0", "-n", "0").n_out, 0);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* Fields of a line of CSV, in which quotes may hold commas; *line becomes the next one. */
static int fields(const char **line)
{
    int n = 1;
    bool quoted = false;
    for (; **line && **line != '\n'; ++*line) {
        quoted ^= **line == '"';
        n += **line == ',' && !quoted;
    }
    *line += **line == '\n';
    return n;
}

#define TWO "-p", "8", "-n", "2", "-r", "1"

Test(bench, formats)
{
    struct outcome o = GPURUN(NULL, BENCH, TWO, "-o", "json");
    json_t *list = json_loads(o.out, 0, NULL);
    cr_assert_eq(json_array_size(list), (size_t)2, "%s", o.out);
    expect_sane(json_array_get(list, 1), 1);
    json_decref(list);
    o = GPURUN(NULL, BENCH, TWO, "-o", "csv");
    cr_expect_eq(count(o.out, "\n"), 3, "%s", o.out);
    cr_expect(!strncmp(o.out, "test,", 5), "%s", o.out);
    const char *line = o.out;
    int n_field = fields(&line);
    cr_expect_gt(n_field, 20);
    cr_expect(fields(&line) == n_field && fields(&line) == n_field && !*line,
              "lines of different lengths: %s", o.out);
    o = GPURUN(NULL, BENCH, TWO, "-o", "sql");
    cr_expect_eq(count(o.out, "CREATE TABLE"), 1);
    cr_expect_eq(count(o.out, "INSERT INTO llama_bench"), 2);
    cr_expect_eq(count(o.out, "');\n") + count(o.out, "1);\n"), 2, "%s", o.out);
    o = GPURUN(NULL, BENCH, TWO);
    int bars = count(o.out, "|"), lines = count(o.out, "\n");
    cr_expect_eq(lines, 4);
    cr_expect_eq(bars % lines, 0, "%s", o.out);
}

static const char *write_text(const char *name, const char *text)
{
    const char *path = tiny_path(name);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fputs(text, f);
    fclose(f);
    return path;
}

/* The rows of `o` with their speeds multiplied, as a file: by more than a stalled machine can. */
static const char *faster(const char *name, struct outcome o, double factor)
{
    json_t *list = json_loads(o.out, 0, NULL), *row;
    size_t i;
    json_array_foreach(list, i, row)
        json_object_set_new(row, "avg_ts", json_real(number(row, "avg_ts") * factor));
    char *text = json_dumps(list, 0);
    const char *path = write_text(name, text);
    free(text);
    json_decref(list);
    return path;
}

Test(bench, compare)
{
    struct outcome was = GPURUN(NULL, BENCH, TWO, "-o", "json"), o;
    o = GPURUN(NULL, BENCH, TWO, "--compare", faster("slow.json", was, 1e-9), "-o", "json");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    json_t *list = json_loads(o.out, 0, NULL);
    cr_expect_gt(number(json_array_get(list, 0), "ratio"), 10);
    json_decref(list);
    char fast[256];
    snprintf(fast, sizeof fast, "%s", faster("fast.json", was, 1e9));
    o = GPURUN(NULL, BENCH, TWO, "--compare", fast);
    cr_expect(o.exit_code == 7 && strstr(o.err, "pp8: ") && strstr(o.err, "less than"), "%s",
              o.err);
    cr_expect(strstr(o.out, "ratio |") && strstr(o.out, " 0.0"), "%s", o.out);
    cr_expect_eq(GPURUN(NULL, BENCH, TWO, "--compare", fast, "--threshold", "100").exit_code, 0);
    o = GPURUN(NULL, "bench", tiny_model(false), "-t", "1", "-p", "8,9", "-n", "0", "-r", "1",
               "--compare", fast, "--threshold", "100");
    cr_expect(!o.exit_code && strstr(o.err, "1 of 2 tests are not in"), "%s", o.err);
    o = GPURUN(NULL, BENCH, "-p", "9", "-n", "0", "-r", "1", "--compare", fast);
    cr_expect(o.exit_code == 2 && strstr(o.err, "none of these tests"), "%s", o.err);
}

Test(bench, refusals)
{
    static const char *const flags[][3] = {
        {"-p", "9-1", "-p is '9-1'"},
        {"-p", "0-9*2", "A-B+STEP"},
        {"-t", "auto-2", "or auto"},
        {"-t", "-1-2", "or auto"},
        {"-p", "00000000000000000000000000000000000000000000000512", "up to 16"},
        {"-p", "1-100", "up to 16"},
        {"-d", "-1", "whole number"},
        {"-np", "257", "from 1 to 256"},
        {"-pg", "5", "-pg 512,128"},
        {"-pg", "5,0", "at least 1"},
        {"-pg", "5,5,5", "-pg 512,128"},
        {"-ctk", "f16,q5_9", "separated by commas"},
        {"-ctv", "", "f32|f16"},
        {"-o", "xml", "md|csv|json|jsonl|sql"},
        {"-t", "1,x", "or auto"},
        {"-embd", "0", "leave it out"},
        {"--threshold", "much", "from 0 to 100"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        struct outcome o = GPURUN(NULL, BENCH, flags[i][0], flags[i][1]);
        cr_expect(o.exit_code == 2 && strstr(o.err, flags[i][2]) && !o.n_out, "%s '%s': %s",
                  flags[i][0], flags[i][1], o.err);
    }
    expect_exit(GPURUN(NULL, BENCH, "--compare", "nothing.json"), 6, "No such file");
    static const char *const files[][2] = {
        {"[{", "near end of file"}, {"{\"avg_ts\":0}", "no row"}, {"", "no row"}, {"x", "x"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct outcome o = GPURUN(NULL, BENCH, "--compare", write_text("bad.json", files[i][0]));
        cr_expect(o.exit_code == 2 && strstr(o.err, files[i][1]), "%s: %s", files[i][0], o.err);
    }
    struct outcome o = GPURUN(NULL, BENCH, "-t", "1,1", "--trace", tiny_path("t.json"));
    cr_expect(o.exit_code == 2 && strstr(o.err, "several"), "%s", o.err);
    o = GPURUN(NULL, BENCH, "-d", "1000000", "-np", "256", "-n", "1000000");
    cr_expect(o.exit_code != 0 && *o.err, "%s", o.err);
}
