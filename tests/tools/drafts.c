/* Drafts of gpurun run: the text is the one without them. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tiny.h"

TestSuite(drafts_run, .timeout = 120);

#define TEXT "-p", "abcabcabc", "-t", "1", "-n", "50", "-s", "5", "--ignore-eos", "-q"
#define PLAIN "--cpu-level", "ref" /* logits do not depend on the batch */

static char model[256], whole[8192];

static void begin(const char *temp)
{
    snprintf(model, sizeof model, "%s", tiny_model(false));
    struct outcome o = GPURUN(NULL, model, TEXT, PLAIN, "--temp", temp);
    expect_exit(o, 0, "");
    cr_assert(o.n_out > 30 && o.n_out < sizeof whole);
    memcpy(whole, o.out, o.n_out + 1);
}

static void expect_whole(struct outcome o)
{
    expect_exit(o, 0, "");
    cr_expect_str_eq(o.out, whole);
}

Test(drafts_run, text_is_the_same)
{
    static const char *const temps[] = {"0", "1"};
    for (int i = 0; i < 2; i++) {
        begin(temps[i]);
#define SAME(...) expect_whole(GPURUN(NULL, model, TEXT, PLAIN, "--temp", temps[i], __VA_ARGS__))
        SAME("--spec-type", "ngram", "--spec-ngram-size-n", "2");
        SAME("-md", model);
        SAME("-md", model, "--no-spec-adaptive", "--draft", "5", "--draft-p-min", "0.2");
        SAME("-md", model, "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1",
             "--draft-min", "2", "-ctkd", "f32", "-ngld", "0");
        SAME("-md", model, "--spec-type", "none");
    }
}

/* Ends at a stop string and at -n as without drafts. */
Test(drafts_run, ends_where_it_should)
{
    char stop[8] = "";
    begin("0");
    for (size_t i = 20; i < 40 && !*stop; i++)
        if (whole[i] > ' ' && whole[i] < 127 && whole[i + 1] > ' ' && whole[i + 1] < 127)
            snprintf(stop, sizeof stop, "%.2s", whole + i);
    cr_assert(*stop);
    struct outcome o =
        GPURUN(NULL, model, TEXT, PLAIN, "--temp", "0", "-md", model, "--no-escape", "-r", stop);
    expect_exit(o, 0, "");
    cr_expect(o.n_out == (size_t)(strstr(whole, stop) - whole) && !memcmp(o.out, whole, o.n_out),
              "'%s'", o.out);
    o = GPURUN(NULL, model, TEXT, PLAIN, "--temp", "0", "-md", model, "-n", "7", "--json",
               "--no-spec-adaptive");
    expect_exit(o, 0, "");
    json_t *j = json_loads(o.out, JSON_ALLOW_NUL, NULL), *drafts = json_object_get(j, "drafts");
    cr_assert(drafts, "%s", o.out);
    cr_expect_eq(json_integer_value(json_object_get(j, "generated_tokens")), 7);
    cr_expect_str_eq(json_string_value(json_object_get(j, "stop")), "length");
    cr_expect_eq(json_integer_value(json_object_get(drafts, "steps")), 1);
    cr_expect_eq(json_integer_value(json_object_get(drafts, "accepted")), 5);
    cr_expect_eq(json_real_value(json_object_get(drafts, "acceptance")), 1);
    json_decref(j);
}

/* A context that is full ends the text, or is shifted, with drafts too. */
Test(drafts_run, full_context)
{
    begin("0");
#define FULL "-p", "abcabcabc", "-t", "1", "--ignore-eos", "-c", "256", "--temp", "0", "-md", model
    struct outcome o = GPURUN(NULL, model, FULL, "-n", "-2");
    expect_exit(o, 0, "is full");
    cr_expect(strstr(o.err, "gen 247 tok") && strstr(o.err, "drafts "), "%s", o.err);
    o = GPURUN(NULL, model, FULL, "-n", "400", "--context-shift");
    expect_exit(o, 0, "gen 400 tok");
}

Test(drafts_run, refusals)
{
    begin("0");
    expect_exit(GPURUN(NULL, model, TEXT, "--spec-type", "draft"), 2, "needs a draft model");
    expect_exit(GPURUN(NULL, model, TEXT, "-md", model, "-gan", "2"), 2, "--grp-attn-mode window");
    expect_exit(GPURUN(NULL, model, TEXT, "-md", model, "--draft", "64", "-b", "64"), 2,
                "less than -b 64 is expected");
    expect_exit(GPURUN(NULL, model, TEXT, "-md", "none.gguf"), 3, "none.gguf");
    expect_exit(GPURUN(NULL, model, TEXT, "-md", GR_SOURCE_DIR "/tools/default-model.gguf"), 2,
                "both need the same vocabulary");
    expect_exit(GPURUN(NULL, model, TEXT, "--spec-type", "draft-mtp"), 2, "--spec-type is");
    expect_exit(GPURUN(NULL, model, TEXT, "--spec-ngram-mod-n-max", "4"), 2, "-md FILE");
}
