/* Prompts with a gap, and JSON strings of any bytes. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "tests/tools/tiny.h"
#include "tools/serve/prompts.h"

TestSuite(prompts, .timeout = 60);

enum { N_VOCAB = 3 + 256 + 26, FIRST = 3 + 256 }; /* of tiny_model: bytes, then letters */

/* Names the first letters after the marks of a gap. */
static void set_marks(struct gr_gguf_writer *w)
{
    static const char *const mark[] = {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"};
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    static char text[N_VOCAB][16];
    struct gr_str token[N_VOCAB];
    int32_t type[N_VOCAB];
    for (int i = 0; i < N_VOCAB; i++) {
        bool marks = i >= FIRST && i < FIRST + 3;
        if (i < 3 || marks)
            snprintf(text[i], sizeof text[i], "%s", i < 3 ? special[i] : mark[i - FIRST]);
        else
            snprintf(text[i], sizeof text[i], i < FIRST ? "<0x%02X>" : "%c",
                     i < FIRST ? i - 3 : 'a' + i - FIRST);
        token[i] = (struct gr_str){text[i], strlen(text[i])};
        type[i] = i == 0 ? 2 : i < 3 || marks ? 3 : i < FIRST ? 6 : 1;
    }
    cr_assert_eq(gr_gguf_set_strs(w, "tokenizer.ggml.tokens", token, N_VOCAB), 0);
    cr_assert_eq(gr_gguf_set_array(w, "tokenizer.ggml.token_type", GR_GGUF_I32, type, N_VOCAB), 0);
}

/* Makes the prompt of two texts on a model; returns its number of tokens, -1: refused. */
static int fill_in_bytes(const char *path, const char *prefix, size_t n_prefix, const char *suffix,
                         int32_t *ids)
{
    struct gr_model_params mp = gr_model_params_default();
    struct gr_server server = {.n_ctx = 100};
    struct gr_generation g = {.server = &server};
    json_t *request = json_pack("{s:s%, s:s}", "a", prefix, n_prefix, "b", suffix);
    struct gr_fields f = {.object = request};
    int n = -1;
    mp.vocab_only = true;
    cr_assert_eq(gr_model_open(&server.model, path, &mp), 0, "%s", gr_error_message());
    cr_expect_eq(gr_prompts_can_infill(server.model), strstr(path, "gap") != NULL);
    gr_prompts_infill(&g, &f, "a", "b");
    if (f.wrong) {
        cr_expect_str_eq(f.param, "b");
    } else {
        n = (int)g.n_ids[0];
        memcpy(ids, g.prompt[0], (size_t)n * sizeof *ids);
        free(g.prompt[0]);
    }
    free((void *)g.prompt);
    free(g.n_ids);
    json_decref(request);
    gr_model_close(&server.model);
    return n;
}

static int fill_in(const char *path, const char *prefix, const char *suffix, int32_t *ids)
{
    return fill_in_bytes(path, prefix, strlen(prefix), suffix, ids);
}

Test(prompts, marks_of_a_gap)
{
    int32_t ids[100];
    const int32_t expected[] = {
        1, FIRST, FIRST + 'x' - 'a', FIRST + 1, FIRST + 'y' - 'a', FIRST + 'z' - 'a', FIRST + 2};
    int n = fill_in(tiny_edited_model("gap.gguf", set_marks), "x", "yz", ids);
    cr_assert_eq(n, 7);
    for (int i = 0; i < n; i++)
        cr_expect_eq(ids[i], expected[i], "%d: %d", i, ids[i]);
}

Test(prompts, zeros_in_a_text)
{
    int32_t ids[100];
    const char *path = tiny_edited_model("gap.gguf", set_marks);
    int n = fill_in(path, "x", "y", ids), with = fill_in_bytes(path, "x\0x", 3, "y", ids);
    cr_assert_gt(with, n + 1);
    cr_expect_eq(ids[with - 4], FIRST + 'x' - 'a');
}

Test(prompts, marks_in_a_text_are_text)
{
    int32_t ids[100];
    int n = fill_in(tiny_edited_model("gap.gguf", set_marks), "<fim_middle>", "", ids),
        n_middle = 0;
    for (int i = 0; i < n; i++)
        n_middle += ids[i] == FIRST + 2;
    cr_expect_eq(n_middle, 1);
    cr_expect_gt(n, 10);
}

Test(prompts, a_model_without_marks)
{
    int32_t ids[100];
    cr_expect_eq(fill_in(tiny_model(false), "x", "y", ids), -1);
}

Test(prompts, json_strings_of_any_bytes)
{
    struct gr_rng rng = gr_rng_new(7);
    int n_bad = 0;
    for (int round = 0; round < 3000; round++) {
        char text[24];
        size_t n = gr_rng_below(&rng, sizeof text);
        struct gr_writer w = {0};
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(gr_rng_below(&rng, 128) + (gr_rng_below(&rng, 3) ? 0 : 128));
        gr_write_string(&w, text, n);
        json_t *read = json_loadb(w.p, w.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        json_t *expected = json_stringn(text, n); /* NULL: no UTF-8 */
        cr_assert(read, "%.*s", (int)w.n, w.p);
        if (expected)
            cr_assert(json_equal(read, expected));
        else
            cr_assert(strstr(json_string_value(read), "\xef\xbf\xbd") || memchr(text, 0, n));
        n_bad += !expected;
        json_decref(read);
        json_decref(expected);
        gr_writer_free(&w);
    }
    cr_expect(n_bad > 1000 && n_bad < 2950, "%d", n_bad);
}
