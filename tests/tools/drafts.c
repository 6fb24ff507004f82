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

/* A stop string in the middle of accepted tokens: --prompt-cache-all keeps what it keeps without
 * drafts. */
Test(drafts_run, tokens_behind_a_stop_are_removed)
{
    char stop[8] = "", plain[256], drafted[256];
    begin("0");
    for (size_t i = 20; i < 40 && !*stop; i++)
        if (whole[i] > ' ' && whole[i] < 127)
            snprintf(stop, sizeof stop, "%c", whole[i]);
    cr_assert(*stop);
    snprintf(plain, sizeof plain, "%s", tiny_path("plain.cache"));
    snprintf(drafted, sizeof drafted, "%s", tiny_path("drafted.cache"));
#define STOPPED TEXT, PLAIN, "--temp", "0", "--no-escape", "-r", stop, "--prompt-cache-all"
    expect_exit(GPURUN(NULL, model, STOPPED, "--prompt-cache", plain), 0, "");
    expect_exit(GPURUN(NULL, model, STOPPED, "--prompt-cache", drafted, "-md", model,
                       "--no-spec-adaptive", "--draft", "50"),
                0, "");
    FILE *a = fopen(plain, "rb"), *b = fopen(drafted, "rb");
    size_t n = 0;
    cr_assert(a && b);
    for (int x = 0, y = 0; x != EOF; n++) {
        x = getc(a), y = getc(b);
        cr_assert_eq(x, y, "byte %zu", n);
    }
    cr_expect_gt(n, 1000);
    fclose(a);
    fclose(b);
}

/* Steps end where the profiler starts and stops. */
Test(drafts_run, profiler)
{
    begin("0");
    struct outcome o = GPURUN(NULL, model, TEXT, PLAIN, "--temp", "0", "-md", model, "-n", "9",
                              "--json", "--no-spec-adaptive", "--profile-steps", "3:5");
    expect_exit(o, 0, "");
    json_t *j = json_loads(o.out, JSON_ALLOW_NUL, NULL), *drafts = json_object_get(j, "drafts");
    cr_assert(drafts, "%s", o.out);
    cr_expect_eq(json_integer_value(json_object_get(drafts, "steps")), 3);
    cr_expect_eq(json_integer_value(json_object_get(drafts, "accepted")), 5);
    json_decref(j);
}

/* A draft model has all types of cache. */
Test(drafts_run, cache_types)
{
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_path("wide.gguf"));
    tiny_write_arch("llama", path);
    expect_exit(GPURUN(NULL, path, TEXT, "-md", path, "-ctkd", "q5_1", "-ctvd", "iq4_nl"), 0, "");
    expect_exit(GPURUN(NULL, path, TEXT, "-md", path, "-ctkd", "q6_k"), 2, "iq4_nl");
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
    expect_exit(GPURUN(NULL, model, TEXT, "-md", model, "--draft-min", "9", "--draft", "8"), 2,
                "--draft-min is 9: at most --draft-max is expected, which is 8");
    expect_exit(GPURUN(NULL, model, TEXT, "-md", "none.gguf"), 3, "none.gguf");
    expect_exit(GPURUN(NULL, model, TEXT, "-md", GR_SOURCE_DIR "/tools/default-model.gguf"), 2,
                "both need the same vocabulary");
    expect_exit(GPURUN(NULL, model, TEXT, "--spec-type", "draft-mtp"), 2, "--spec-type is");
    expect_exit(GPURUN(NULL, model, TEXT, "--spec-ngram-mod-n-max", "4"), 2, "-md FILE");
}
