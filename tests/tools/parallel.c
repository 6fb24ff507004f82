/* Several texts side by side are the texts of one run each. At the CPU level of references results
 * do not depend on how many tokens a batch has, so the bytes are the same. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tiny.h"

TestSuite(parallel, .timeout = 120);

#define N_PROMPT 6
#define LONG "the quick brown fox jumps over the lazy dog and "
#define ALIKE "-t", "1", "--cpu-level", "ref", "--no-warmup", "-q"

/* Prompts 1, 3 and 5 begin alike, 5 as 3 for longer; 0 and 4 are equal; 2 has control characters
 * and letters of several bytes. */
static const char *const prompts[N_PROMPT] = {"a",
                                              LONG "then it sleeps",
                                              "\xc3\xa4\t\xe2\x82\xac uro",
                                              LONG "eats all of the apples now",
                                              "a",
                                              LONG "eats all of the apples now and then more"};

static char model[256], file[256];

static void begin(void)
{
    snprintf(model, sizeof model, "%s", tiny_model(false));
    snprintf(file, sizeof file, "%s", tiny_path("prompts.txt"));
    FILE *f = fopen(file, "w");
    for (int i = 0; i < N_PROMPT; i++)
        fprintf(f, "%s\n%s", prompts[i], i == 2 ? "\n" : ""); /* a blank line is none */
    cr_assert_eq(fclose(f), 0);
}

/* The objects of a run's lines. */
static int read_lines(const char *out, json_t *line[], int most)
{
    int n = 0;
    for (const char *at = out; *at; n++) {
        size_t length = strcspn(at, "\n");
        cr_assert_lt(n, most);
        line[n] = json_loadb(at, length, JSON_ALLOW_NUL, NULL);
        cr_assert(line[n], "%s", at);
        at += length + (at[length] == '\n');
    }
    return n;
}

static const char *text_of(const json_t *j, size_t *n)
{
    const json_t *text = json_object_get(j, "text");
    cr_assert(json_is_string(text));
    *n = json_string_length(text);
    return json_string_value(text);
}

/* Result of a run of the prompt alone: text, stop and number of tokens. */
static void expect_alone(const json_t *j, const char *prompt, const char *const *more)
{
    const char *argv[48] = {"gpurun", "-m", model, "-p", prompt, "--no-escape", ALIKE, "--json"};
    size_t n = 0, n_alone, n_text;
    json_t *alone;
    while (argv[n])
        n++;
    while (*more)
        argv[n++] = *more++;
    struct outcome o = tiny_run(NULL, argv);
    expect_exit(o, 0, "");
    cr_assert_eq(read_lines(o.out, &alone, 1), 1);
    const char *expected = text_of(alone, &n_alone), *text = text_of(j, &n_text);
    cr_expect(n_text == n_alone && !memcmp(text, expected, n_text), "'%s': '%s', alone '%s'",
              prompt, text, expected);
    const char *key[] = {"stop", "prompt_tokens", "generated_tokens", "seed", "stop_string"};
    for (int i = 0; i < 5; i++)
        cr_expect(json_equal(json_object_get(j, key[i]), json_object_get(alone, key[i])) ||
                      (!json_object_get(j, key[i]) && !json_object_get(alone, key[i])),
                  "'%s': %s differs", prompt, key[i]);
    cr_expect_str_eq(json_string_value(json_object_get(j, "prompt")), prompt);
    json_decref(alone);
}

/* Runs the file with these words, NULL-terminated, and compares each text with one alone; `seed`
 * counts up from the words' own, which come last: 0: there is none. `only`: words for the texts
 * side by side alone. */
static void compare(const char *const *words, const char *const *only, int seed)
{
    const char *argv[48] = {"gpurun", "-m", model, "-f", file, "--no-escape", ALIKE, "--json"};
    char number[16];
    json_t *line[N_PROMPT];
    size_t n = 0;
    while (argv[n])
        n++;
    for (const char *const *w = words; *w;)
        argv[n++] = *w++;
    while (*only)
        argv[n++] = *only++;
    snprintf(number, sizeof number, "%d", seed);
    argv[n++] = "-s", argv[n++] = number;
    struct outcome o = tiny_run(NULL, argv);
    expect_exit(o, 0, "");
    cr_assert_eq(read_lines(o.out, line, N_PROMPT), N_PROMPT);
    for (int i = 0; i < N_PROMPT; i++) {
        const char *more[32] = {NULL};
        size_t k = 0;
        while (words[k])
            more[k] = words[k], k++;
        snprintf(number, sizeof number, "%d", seed + i);
        more[k++] = "-s", more[k++] = number;
        cr_expect_eq(json_integer_value(json_object_get(line[i], "index")), i + 1);
        expect_alone(line[i], prompts[i], more);
        json_decref(line[i]);
    }
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

Test(parallel, greedy)
{
    begin();
    const char *const *words = WORDS("--temp", "0", "-n", "30", "--ignore-eos");
    compare(words, WORDS("-np", "1"), 0);
    compare(words, WORDS("-np", "2"), 0);
    compare(words, WORDS("-np", "6"), 0);
    compare(words, WORDS("-np", "4", "-b", "16"), 0);
    compare(words, WORDS("-np", "3", "-ub", "8"), 0);
    compare(words, WORDS("-np", "3", "-no-kvu"), 0);
}

/* Each has a sampler of its own, with a seed of its own and its own past. */
Test(parallel, drawn)
{
    begin();
    compare(WORDS("--temp", "0.9", "-n", "30"), WORDS("-np", "4"), 7);
    compare(WORDS("--temp", "0.9", "--repeat-penalty", "1.3", "--dry-multiplier", "0.8",
                  "--mirostat", "2", "-n", "30"),
            WORDS("-np", "3"), 8);
    compare(WORDS("--temp", "0.9", "-n", "40", "--grammar", "root ::= [a-f]{2,9} \".\" [g-z]*"),
            WORDS("-np", "4"), 9);
    compare(WORDS("--temp", "0.9", "-n", "60", "--ignore-eos", "-r", "e", "-r", "n"),
            WORDS("-np", "4"), 10);
}

/* Caches that cannot share the beginning of a text, or not all of it: recurrent states, windows of
 * 200 tokens. */
Test(parallel, other_caches)
{
    static const char *const arch[] = {"mamba", "rwkv7", "gemma3", "gpt2"};
    begin();
    for (int i = 0; i < 4; i++) {
        snprintf(model, sizeof model, "%s", tiny_path("other.gguf"));
        tiny_write_arch(arch[i], model);
        compare(WORDS("--temp", "0", "-n", "12", "--ignore-eos"), WORDS("-np", "3"), 0);
    }
    /* Windows that have given up the beginning of a text before another one could share it. */
    tiny_write_arch("gemma3", model);
    compare(WORDS("--temp", "0", "-n", "200", "--ignore-eos"), WORDS("-np", "1"), 0);
    compare(WORDS("--temp", "0", "-n", "200", "--ignore-eos"), WORDS("-np", "2"), 0);
}

static const char *header(int i, int n, const char *prompt, char *buf, size_t size)
{
    snprintf(buf, size, "=== %d of %d: %s\n", i, n, prompt);
    return buf;
}

/* Expects the headers of n texts in order; "" stands for any prompt. */
static void expect_headers(struct outcome o, int n, const char *const *prompt)
{
    char line[128];
    expect_exit(o, 0, "");
    const char *at = o.out;
    for (int i = 0; i < n; i++) {
        at = strstr(at, header(i + 1, n, prompt[i], line, sizeof line));
        cr_assert(at, "no '%s' in '%s'", line, o.out);
        at++;
    }
    cr_expect_null(strstr(at, "\n==="), "%s", o.out);
}

#define RUN "-m", model, ALIKE, "-n", "3", "--temp", "0"

Test(parallel, prompts_and_headers)
{
    begin();
    const char *const three[] = {"a", "b b", "c"}, *const four[] = {"a", "a", "a", "a"};
    expect_headers(GPURUN(NULL, RUN, "-p", "a", "-p", "b\\tb", "--prompt", "c"), 3, three);
    expect_headers(GPURUN("a\r\n\n\r\nb b\nc\n\n", RUN, "-np", "2"), 3, three);
    expect_headers(GPURUN("a\nb b\nc", RUN, "-np", "9", "-f", "-"), 3, three);
    expect_headers(GPURUN("a<>b\tb<>c\n", RUN, "--prompt-separator", "<>"), 3, three);
    expect_headers(GPURUN("a\001b\nb\001c\n", RUN, "--prompt-separator", "\\x01"), 3, three);
    expect_headers(GPURUN(NULL, RUN, "-p", "a", "-np", "4"), 4, four);
    expect_headers(GPURUN(NULL, RUN, "-p", "a", "-ns", "4"), 4, four);
    expect_headers(GPURUN("a\nb b\nc\n", RUN, "-ns", "3", "-np", "1"), 3, three);
    const char *const turns[] = {"a", "b", "a", "b", "a"};
    expect_headers(GPURUN("a\nb\n", RUN, "-ns", "5", "-np", "2"), 5, turns);
    /* A long prompt is cut between characters. */
    char prompt[128] = "", shown[128] = "";
    for (int i = 0; i < 30; i++)
        strcat(prompt, "\xe2\x82\xac"), strcat(shown, i < 20 ? "\xe2\x82\xac" : "");
    strcat(shown, " ..");
    expect_headers(GPURUN(NULL, RUN, "-p", prompt, "-ns", "1"), 1, (const char *const[]){shown});
    struct outcome o = GPURUN(NULL, RUN, "-p", "ab", "-ns", "1", "--display-prompt");
    expect_headers(o, 1, (const char *const[]){"ab"});
    cr_expect(strstr(o.out, "\nab"), "%s", o.out);
}

/* A text alone or the first of a file, without the flags, is as it was. */
Test(parallel, not_unless_asked)
{
    begin();
    struct outcome o = GPURUN("a\nb\n", RUN);
    expect_exit(o, 0, "");
    cr_expect_null(strstr(o.out, "==="));
}

Test(parallel, shares_beginnings)
{
    begin();
    /* LONG has BOS, 48 characters and two more tokens for each of its 10 blanks; what prompts 3 and
     * 5 share goes on with 26 characters and 5 blanks. */
    struct outcome o = GPURUN(NULL, "-m", model, "-f", file, "-np", "6", "-n", "2", "-t", "1");
    expect_exit(o, 0, "prompts 334 tok, 174 of them shared"); /* 69, and 69 + 36 */
    o = GPURUN(NULL, "-m", model, "-p", LONG, "-np", "5", "-n", "2", "-t", "1");
    expect_exit(o, 0, "prompts 345 tok, 272 of them shared"); /* 4 times all but the last one */
    cr_expect(strstr(o.err, "5 texts, 5 side by side") && strstr(o.err, "gen 10 tok"), "%s", o.err);
}

Test(parallel, contexts)
{
    begin();
#define LONGER "-m", model, "-p", LONG, "-p", "a", "-t", "1", "-np", "2"
    struct outcome o = GPURUN(NULL, LONGER, "-c", "120", "-n", "8");
    expect_exit(o, 1,
                "-c 120 gives each of 2 texts side by side 60 tokens, and prompt 1 has 69: what "
                "helps: -c 154, -np 1");
    expect_exit(GPURUN(NULL, LONGER, "-c", "154", "-n", "8"), 0, "context 77 each");
    o = GPURUN(NULL, LONGER, "-c", "40", "-n", "8");
    expect_exit(o, 1, "what helps: -c 154, or a shorter prompt");
    o = GPURUN(NULL, LONGER, "-c", "160", "-n", "-1", "--ignore-eos", "--json");
    expect_exit(o, 0, "2 of the texts ended with their context, 80 tokens");
    json_t *line[2];
    cr_assert_eq(read_lines(o.out, line, 2), 2);
    for (int i = 0; i < 2; i++) {
        json_int_t n = json_integer_value(json_object_get(line[i], "prompt_tokens")) +
                       json_integer_value(json_object_get(line[i], "generated_tokens"));
        cr_expect_eq(n, 81);
        cr_expect_str_eq(json_string_value(json_object_get(line[i], "stop")), "context");
        json_decref(line[i]);
    }
    expect_exit(GPURUN(NULL, LONGER, "-n", "0"), 0, "gen 0 tok");
}

Test(parallel, refusals)
{
    begin();
    expect_exit(GPURUN("\n\n", RUN, "-np", "2"), 2, "there is no prompt");
    expect_exit(GPURUN(NULL, RUN, "-np", "2"), 2, "there is no prompt");
    expect_exit(GPURUN(NULL, RUN, "-np", "2", "-f", "/none"), 6, "/none");
    static char many[2 * 65537 + 1];
    for (size_t i = 0; i < 65537; i++)
        memcpy(many + 2 * i, "a\n", 3);
    expect_exit(GPURUN(many, RUN, "-np", "2"), 2, "more than 65536 prompts");
    expect_exit(GPURUN(NULL, RUN, "-np", "0", "-p", "a"), 2, "-np is '0'");
    expect_exit(GPURUN(NULL, RUN, "-np", "257", "-p", "a"), 2, "-np is '257'");
#define TWO RUN, "-p", "a", "-np", "2"
    expect_exit(GPURUN(NULL, TWO, "--prompt-cache", "x"), 2, "--prompt-cache keeps one text");
    expect_exit(GPURUN(NULL, TWO, "-md", model), 2, "draft for one text");
    expect_exit(GPURUN(NULL, TWO, "--context-shift"), 2, "tokens that texts share");
    expect_exit(GPURUN(NULL, TWO, "-gan", "2"), 2, "--grp-attn-mode window moves positions");
    expect_exit(GPURUN(NULL, TWO, "--profile-steps", "1:2"), 2, "--profile-steps");
    expect_exit(GPURUN(NULL, TWO, "--grammar", "root ::= ["), 2, "--grammar");
    expect_exit(GPURUN(NULL, TWO, "-r", ""), 2, "--stop");
    expect_exit(GPURUN(NULL, TWO, "-gan", "2", "--grp-attn-mode", "window"), 0, "");
    expect_exit(GPURUN(NULL, TWO, "--dry-run"), 0, "");
    char broken[256];
    snprintf(broken, sizeof broken, "%s", tiny_encoder_decoder());
    expect_exit(GPURUN(NULL, "-m", broken, "-p", "a", "-np", "2"), 2, "one prompt at a time");
    snprintf(broken, sizeof broken, "%s", tiny_diffusion_model());
    expect_exit(GPURUN(NULL, "-m", broken, "-p", "a", "-np", "2"), 3, "keeps nothing");
    snprintf(broken, sizeof broken, "%s", tiny_model(true));
    struct outcome o = GPURUN(NULL, "-m", broken, "-p", "a", "-np", "2", "--json");
    expect_exit(o, 1, "non-finite");
    cr_expect(strstr(o.out, "\"stop\": \"error\""), "%s", o.out);
}

/* An interrupt ends all texts; what they have is printed. */
Test(parallel, interrupt)
{
    int out;
    begin();
    /* Lengths differ, so that one goes on when another one has ended. */
    const char *const argv[] = {
        "gpurun", "-m", model, "-p", "a", "-p", LONG, "-np", "2",      "-ns",          "3000", "-n",
        "-1",     "-c", "0",   "-s", "1", "-q", "-t", "1",   "--json", "--ignore-eos", NULL};
    int pid = tiny_start_pipe(argv, &out);
    char first[4096];
    cr_assert_gt(read(out, first, sizeof first), 0); /* a text has ended */
    cr_assert_eq(kill(pid, SIGINT), 0);
    static char rest[1 << 22];
    size_t n = 0;
    for (ssize_t k; (k = read(out, rest + n, sizeof rest - 1 - n)) > 0;)
        n += (size_t)k;
    struct outcome o = tiny_wait(pid);
    cr_expect_eq(o.exit_code, 130, "%d: %s", o.exit_code, o.err);
    cr_expect(strstr(rest, "\"stop\": \"interrupted\""), "%s", rest);
    close(out);
}
