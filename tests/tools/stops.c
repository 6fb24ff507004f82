/* Stop strings, the text as a word, and the sampling parameters of a model's file. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf.h"
#include "tiny.h"

TestSuite(stops, .timeout = 120);

#define TEXT "-t", "1", "-n", "60", "--temp", "0", "--ignore-eos", "-q"

static char model[256], whole[4096];

/* Sets `model`, and `whole` to the text that it continues "a" by. */
static void begin(void)
{
    snprintf(model, sizeof model, "%s", tiny_model(false));
    struct outcome o = GPURUN(NULL, "-m", model, "-p", "a", TEXT);
    expect_exit(o, 0, "");
    cr_assert(o.n_out > 40 && o.n_out < sizeof whole);
    memcpy(whole, o.out, o.n_out + 1);
}

static void expect_text(struct outcome o, const char *text, size_t n)
{
    expect_exit(o, 0, "");
    cr_expect(o.n_out == n && !memcmp(o.out, text, n), "'%s', expected: '%.*s'", o.out, (int)n,
              text);
}

/* The first byte of a character from `at` on. */
static size_t boundary(size_t at)
{
    while (((unsigned char)whole[at] & 0xc0) == 0x80)
        at++;
    return at;
}

/* Pieces of the text itself, of each length and from each place, end it where they occur first. */
Test(stops, ends_before_the_string)
{
    begin();
    for (size_t at = 0; at < 30; at += 7) {
        for (size_t n = 1; n < 9; n += 3) {
            char stop[32];
            size_t from = boundary(at), to = boundary(from + n);
            snprintf(stop, sizeof stop, "%.*s", (int)(to - from), whole + from);
            size_t before = (size_t)(strstr(whole, stop) - whole);
            expect_text(GPURUN(NULL, "-m", model, "-p", "a", TEXT, "--no-escape", "-r", stop),
                        whole, before);
            expect_text(GPURUN(NULL, "-m", model, "-p", "a", TEXT, "--no-escape", "--stop",
                               "~none~", "--reverse-prompt", stop),
                        whole, before);
        }
    }
}

/* What the text ends with and would be the beginning of a string comes after all. */
Test(stops, gives_back_a_beginning)
{
    char stop[64];
    begin();
    snprintf(stop, sizeof stop, "%s~", whole + boundary(strlen(whole) - 20));
    expect_text(GPURUN(NULL, "-m", model, "-p", "a", TEXT, "--no-escape", "-r", stop), whole,
                strlen(whole));
}

Test(stops, json_names_the_string)
{
    char stop[32];
    begin();
    size_t from = boundary(10), to = boundary(from + 4);
    snprintf(stop, sizeof stop, "%.*s", (int)(to - from), whole + from);
    struct outcome o =
        GPURUN(NULL, "-m", model, "-p", "a", TEXT, "--no-escape", "-r", stop, "--json");
    expect_exit(o, 0, "");
    json_t *j = json_loads(o.out, JSON_ALLOW_NUL, NULL);
    cr_assert(j, "%s", o.out);
    cr_expect_str_eq(json_string_value(json_object_get(j, "stop")), "string");
    cr_expect_str_eq(json_string_value(json_object_get(j, "stop_string")), stop);
    cr_expect_eq(json_string_length(json_object_get(j, "text")),
                 (size_t)(strstr(whole, stop) - whole));
    cr_expect_lt(json_integer_value(json_object_get(j, "generated_tokens")), 60);
    json_decref(j);
}

/* A control token has no text; its name ends the text all the same. */
Test(stops, names_a_control_token)
{
    begin();
    struct outcome o = GPURUN(NULL, "-m", model, "-p", "a", "-t", "1", "-n", "9", "-l", "1+inf",
                              "--stop", "<s>", "--json", "-q");
    expect_exit(o, 0, "");
    cr_expect(strstr(o.out, "\"stop\": \"string\"") && strstr(o.out, "\"generated_tokens\": 1,"),
              "%s", o.out);
}

Test(stops, text_as_a_word)
{
    begin();
    expect_text(GPURUN(NULL, model, "a", TEXT), whole, strlen(whole));
    expect_text(GPURUN(NULL, "run", "-m", model, TEXT, "a"), whole, strlen(whole));
    expect_text(GPURUN("a", model, TEXT, "-"), whole, strlen(whole));
}

/* ---- sampling ---- */

static void set_sampling(struct gr_gguf_writer *w)
{
    cr_assert_eq(gr_gguf_set_f32(w, "general.sampling.temp", 0), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "general.sampling.top_k", 7), 0);
}

/* A model's file with temperature 0 writes the same text each time; flags override it. */
Test(stops, parameters_of_the_file)
{
    begin();
    char edited[256];
    snprintf(edited, sizeof edited, "%s", tiny_edited_model("sampling.gguf", set_sampling));
    struct outcome o = GPURUN(NULL, edited, "a", "-t", "1", "-n", "60", "--ignore-eos");
    expect_exit(o, 0,
                "sampling: temperature 0, top-k 7, top-p 0.95, min-p 0.05; the model's file "
                "sets 2 of the parameters");
    cr_expect_str_eq(o.out, whole);
    o = GPURUN(NULL, edited, "a", "-t", "1", "-n", "60", "--ignore-eos", "--temp", "5", "-s", "1",
               "--top-k", "0");
    expect_exit(o, 0, "sampling: temperature 5, top-k 0");
    cr_expect(strcmp(o.out, whole) != 0);
}

/* Biases by text reach the tokens of the text. */
Test(stops, bias_by_text)
{
    begin();
    struct outcome o = GPURUN(NULL, model, "a", "-t", "1", "-n", "5", "-q", "-l", "q+inf");
    expect_exit(o, 0, "");
    cr_expect(strchr(o.out, 'q') && strspn(o.out, "q ") == o.n_out, "'%s'", o.out);
    expect_exit(GPURUN(NULL, model, "a", "-t", "1", "-n", "5", "-l", "\\n-inf"), 0, "");
}

/* Every sampler at once, and each twice, runs to the end. */
Test(stops, all_samplers)
{
    begin();
#define ALL                                                                                        \
    "-t", "1", "-n", "40", "-q", "-s", "4", "--ignore-eos", "--dry-multiplier", "0.8",             \
        "--dry-sequence-breaker", "none", "--dry-sequence-breaker", "\\n", "--xtc-probability",    \
        "0.5", "--top-n-sigma", "2", "--dynatemp-range", "0.3", "--adaptive-target", "0.3",        \
        "--typical", "0.9", "--repeat-penalty", "1.1", "-bs"
    static const char *const orders[] = {"edskypmxta", "atxmpyksde", "eeddttxxaa", "t", "a"};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct outcome a = GPURUN(NULL, model, "a", ALL, "--sampler-seq", orders[i]);
        char first[4096];
        expect_exit(a, 0, "");
        snprintf(first, sizeof first, "%s", a.out);
        cr_expect_gt(a.n_out, 0);
        a = GPURUN(NULL, model, "a", ALL, "--sampler-seq", orders[i]);
        cr_expect_str_eq(a.out, first, "the same seed");
    }
    expect_exit(GPURUN(NULL, model, "a", ALL, "--mirostat", "1"), 0, "");
}
