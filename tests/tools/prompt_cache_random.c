/* --prompt-cache only ever saves time: two runs with flags and prompts drawn at random, where the
 * second one finds what the first one left, write what they write without the cache, or the second
 * one refuses the file in a line.
 *
 * Texts are compared byte by byte, so all runs are at --cpu-level ref, whose results do not depend
 * on where batches are cut. With vector units they do, in the last bits, and a prompt that goes on
 * from a file is cut elsewhere: what is nearly as likely could change places there.
 *
 * GR_TEST_SEED and GR_TEST_COUNT draw others, and more; models stay in BUILD/prompt-cache-random so
 * that the command lines of a failure can be pasted. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gpurun.h"
#include "support/adapter.h"
#include "tiny.h"

TestSuite(prompt_cache_random, .timeout = 1200);

#define FOLDER GR_BINARY_DIR "/prompt-cache-random"
#define ADAPTER FOLDER "/adapter.gguf"
enum { SEED = 1, MOST_PROMPT = 640, MOST_WRONG = 5 };
#ifdef __SANITIZE_ADDRESS__
enum { COUNT = 100 }; /* each takes several times as long */
#else
enum { COUNT = 600 };
#endif

/* Plain; windows, also in chunks; a latent; then those whose positions cannot change: learned, or
 * with states, alone and beside attention. Plain ones are most of what there is. */
static const char *const archs[] = {"llama",  "llama",     "llama", "gemma3",   "gemma3", "gemma2",
                                    "llama4", "deepseek2", "phi3",  "bloom",    "gpt2",   "jamba",
                                    "mamba",  "rwkv7",     "lfm2",  "qwen3next"};
enum { FIRST_FIXED = 10 };

static char file[512]; /* of --prompt-cache */

/* ---- what is drawn ---- */

enum whose { ALL, MOVABLE, LLAMA, WITH_CACHE };

/* Flags with their values; `often`: so many of 16 first runs have one, `anew`: for so many of 16
 * second runs it is drawn again; whose: models whose positions can change, the adapter's, or runs
 * with --prompt-cache. */
static const struct dimension {
    int often, anew;
    enum whose whose;
    const char *value[12];
} dimensions[] = {
    {10,
     10,
     MOVABLE,
     {"-gan 2", "-gan 4", "-gan 8", "-gan auto", "-gan 4 --swa-full", "-gan 2 --swa-full",
      "-gan 4 --grp-attn-mode window", "--context-shift", "--context-shift --keep 40",
      "--context-shift --keep 200", "--context-shift --keep -1",
      "--context-shift -gan 2 --grp-attn-mode window"}},
    {12, 4, ALL, {"-gaw 16", "-gaw 32", "-gaw 64", "-gaw 128", "-gaw 400"}},
    {9, 8, ALL, {"-c 256", "-c 512", "-c 768", "-c 1024"}},
    {2, 1, ALL, {"--rope-scaling none", "--rope-scaling linear", "--rope-scaling yarn"}},
    {1, 1, ALL, {"--rope-freq-base 5000"}},
    {1, 1, ALL, {"--rope-freq-scale 0.5", "--rope-scale 4"}},
    {1, 1, ALL, {"--yarn-orig-ctx 128"}},
    {1, 1, ALL, {"--yarn-ext-factor 0.5"}},
    {1, 1, ALL, {"--yarn-attn-factor 1.5"}},
    {1, 1, ALL, {"--yarn-beta-slow 2"}},
    {1, 1, ALL, {"--yarn-beta-fast 16"}},
    {5, 1, ALL, {"-ctk f32", "-ctk bf16", "-ctk q8_0", "-ctk q4_0"}},
    {5, 1, ALL, {"-ctv f32", "-ctv bf16", "-ctv q8_0", "-ctv q4_0"}},
    {6, 6, ALL, {"--swa-full"}},
    {4, 4, ALL, {"-no-kvu"}},
    {4, 4, ALL, {"--kv-contiguous"}},
    {6, 6, ALL, {"-b 1", "-b 7", "-b 100"}},
    {10, 6, ALL, {"-ub 1", "-ub 16", "-ub 16", "-ub 100"}},
    {4, 2, LLAMA, {"--lora " ADAPTER, "--lora-scaled " ADAPTER ":0.5"}},
    {10, 2, ALL, {"--temp 1.5 --seed 5"}}, /* shows smaller differences than the likeliest do */
    {2, 2, ALL, {"--ranks 2"}},
    {8, 8, WITH_CACHE, {"--prompt-cache-all"}},
    {3, 8, WITH_CACHE, {"--prompt-cache-ro"}},
};

/* A run; of each dimension the value that it has, or NULL. */
struct draw {
    const char *value[GR_COUNT(dimensions)];
    int model, n_predict;
    char prompt[2 * MOST_PROMPT + 1];
};

static int below(struct gr_rng *r, int n)
{
    return (int)gr_rng_below(r, (uint32_t)n);
}

/* A value of a dimension for a run on a model (of archs); now and then of a flag that the model
 * refuses. */
static const char *draw_value(struct gr_rng *r, const struct dimension *d, int model)
{
    int n = 0, often = d->often;
    while (n < 12 && d->value[n])
        n++;
    if ((d->whose == MOVABLE && model >= FIRST_FIXED) ||
        (d->whose == LLAMA && strcmp(archs[model], "llama") != 0))
        often = d->whose == MOVABLE;
    return below(r, 16) < often ? d->value[below(r, n)] : NULL;
}

static void draw_letters(struct gr_rng *r, char *text, int n)
{
    for (int i = 0; i < n; i++)
        text[i] = (char)('a' + below(r, 26));
    text[n] = 0;
}

static void draw_first(struct gr_rng *r, struct draw *a)
{
    bool plain = below(r, 3) == 0;
    a->model = below(r, GR_COUNT(archs));
    a->n_predict = below(r, 4) ? below(r, 8) : 40 + below(r, 100);
    draw_letters(r, a->prompt, 1 + below(r, below(r, 5) < 3 ? 160 : MOST_PROMPT));
    for (size_t i = 0; i < GR_COUNT(dimensions); i++)
        a->value[i] = plain ? NULL : draw_value(r, &dimensions[i], a->model);
}

/* Like the first one but for some flags, with a prompt that begins like the other's, or like that
 * and the text behind it. */
static void draw_second(struct gr_rng *r, struct draw *b, const struct draw *a, const char *text)
{
    *b = *a;
    b->n_predict = below(r, 8) ? 16 : 100;
    for (size_t i = 0; i < GR_COUNT(dimensions); i++)
        if (below(r, 16) < dimensions[i].anew)
            b->value[i] = draw_value(r, &dimensions[i], a->model);
    int n = (int)strlen(a->prompt), kind = below(r, 4);
    if (kind == 0) /* mostly more than a window, if there is as much */
        n -= below(r, below(r, 2) ? n : n / 4 + 1);
    if (kind == 1)
        snprintf(b->prompt + n, MOST_PROMPT, "%.*s", below(r, 60), text);
    else if (kind > 1 || below(r, 2))
        draw_letters(r, b->prompt + n, below(r, 100));
    else
        b->prompt[n] = 0;
}

/* ---- models ---- */

/* The file of an architecture, made when it is not there yet in this run of the test. */
static const char *model_of(const char *arch)
{
    static const char *made[GR_COUNT(archs)];
    static char path[512];
    size_t i = 0;
    snprintf(path, sizeof path, FOLDER "/%s.gguf", arch);
    for (; i < GR_COUNT(archs) && made[i]; i++)
        if (!strcmp(made[i], arch))
            return path;
    tiny_write_arch(arch, path);
    made[i] = arch;
    return path;
}

/* For llama; to others it does not fit. */
static void make_adapter(void)
{
    static struct adapter a = {.alpha = 8, .scale = 1};
    struct gr_model *m;
    cr_assert_eq(gr_model_open(&m, model_of("llama"), NULL), 0, "%s", gr_error_message());
    adapter_make(&a, m, 3, 2, ADAPTER ".new");
    adapter_write(&a);
    cr_assert_eq(rename(ADAPTER ".new", ADAPTER), 0);
    adapter_release(&a);
    gr_model_close(&m);
}

/* ---- command lines ---- */

/* Words of a command line, in `text`; NULL-terminated. */
struct words {
    const char *word[96];
    int n;
    char text[4096];
};

static void add(struct words *w, const char *words)
{
    size_t used = w->n ? (size_t)(w->word[w->n - 1] - w->text) + strlen(w->word[w->n - 1]) + 1 : 0;
    char *copy = w->text + used;
    snprintf(copy, sizeof w->text - used, "%s", words);
    for (char *save, *at = strtok_r(copy, " ", &save); at; at = strtok_r(NULL, " ", &save))
        w->word[w->n++] = at;
}

/* The prompt is the last word, behind -p; it may hold anything. */
static void words_of(struct words *w, const struct draw *d, const char *cache)
{
    static const char fixed[] = "gpurun run -t 1 --cpu-level ref --ignore-eos --no-warmup "
                                "--no-escape --temp 0";
    char line[1024];
    *w = (struct words){.n = 0};
    snprintf(line, sizeof line, "%s -m %s -n %d", fixed, model_of(archs[d->model]), d->n_predict);
    add(w, line);
    for (size_t i = 0; i < GR_COUNT(dimensions); i++)
        if (d->value[i] && (cache || dimensions[i].whose != WITH_CACHE))
            add(w, d->value[i]);
    if (cache) {
        snprintf(line, sizeof line, "--prompt-cache %s", cache);
        add(w, line);
    }
    add(w, "-p");
    w->word[w->n] = d->prompt;
}

/* As a shell takes it. */
static void print_words(const struct words *w)
{
    fprintf(stderr, "    ");
    for (int i = 0; i < w->n; i++)
        fprintf(stderr, "%s ", w->word[i]);
    fprintf(stderr, "$'");
    for (const char *p = w->word[w->n]; *p; p++)
        fprintf(stderr, *p >= 'a' && *p <= 'z' ? "%c" : "\\x%02x", (unsigned char)*p);
    fprintf(stderr, "'\n");
}

static struct outcome run(const struct draw *d, const char *cache)
{
    struct words w;
    words_of(&w, d, cache);
    return tiny_run(NULL, w.word);
}

/* ---- what is expected ---- */

/* Pairs of runs by what became of the file. */
struct tally {
    int used, anew, refused, failing, wrong;
};

/* "prompt cache: N of M tokens"; -1 when that is not said. */
static int kept(struct outcome o)
{
    const char *at = strstr(o.err, "prompt cache: ");
    int n = -1;
    return at && sscanf(at, "prompt cache: %d of", &n) == 1 ? n : -1;
}

static bool same_text(struct outcome a, struct outcome b)
{
    return a.n_out == b.n_out && !memcmp(a.out, b.out, a.n_out);
}

/* True when a run with the cache did the same as the one without: the same text, or the same
 * failure; a file that is refused costs a line and no text. */
static bool is_as_without(struct outcome with, struct outcome without, struct tally *t)
{
    bool refused = without.exit_code == 0 && with.exit_code != 0;
    if (refused) {
        t->refused++;
        return with.exit_code == 2 && !with.n_out && strstr(with.err, "error: --prompt-cache: ");
    }
    t->failing += without.exit_code != 0;
    t->used += !without.exit_code && kept(with) > 0;
    t->anew += !without.exit_code && kept(with) == 0;
    return with.exit_code == without.exit_code && same_text(with, without);
}

static void report(const char *what, const struct draw *a, const struct draw *b,
                   struct outcome with, struct outcome without)
{
    struct words w;
    fprintf(stderr,
            "%s: exit code %d with the cache, %d without; %zu and %zu bytes, %d tokens from "
            "the file\n",
            what, with.exit_code, without.exit_code, with.n_out, without.n_out, kept(with));
    fprintf(stderr, "    rm -f %s\n", file);
    words_of(&w, a, file), print_words(&w);
    if (b)
        words_of(&w, b, file), print_words(&w);
    words_of(&w, b ? b : a, NULL), print_words(&w);
    fprintf(stderr, "%s\n", with.err);
}

/* One pair: the run that saves, and two of the one that loads, which goes on from its own file the
 * second time. */
static void check_pair(struct gr_rng *r, struct tally *t)
{
    struct draw a, b;
    draw_first(r, &a);
    unlink(file);
    struct tally of_first = {0};
    struct outcome without = run(&a, NULL), with = run(&a, file);
    bool good = is_as_without(with, without, &of_first) && !of_first.refused;
    if (!good)
        report("the first run", &a, NULL, with, without);
    draw_second(r, &b, &a, without.out);
    without = run(&b, NULL);
    for (int i = 0; i < 2 && good; i++) {
        with = run(&b, file);
        good = is_as_without(with, without, t);
        if (!good)
            report(i ? "the third run" : "the second run", &a, &b, with, without);
    }
    t->wrong += !good;
}

static int number_of(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

Test(prompt_cache_random, text_is_the_one_without)
{
    int seed = number_of("GR_TEST_SEED", SEED), n = number_of("GR_TEST_COUNT", COUNT);
    struct gr_rng r = gr_rng_new((uint64_t)seed);
    struct tally t = {0};
    (void)mkdir(FOLDER, 0755);
    snprintf(file, sizeof file, FOLDER "/text-%d.cache", (int)getpid());
    make_adapter();
    for (int i = 0; i < n && t.wrong < MOST_WRONG; i++)
        check_pair(&r, &t);
    fprintf(
        stderr,
        "GR_TEST_SEED=%d GR_TEST_COUNT=%d: %d loads went on from the file, %d began anew, %d were "
        "refused; %d runs fail without a file too; wrong: %d pairs\n",
        seed, n, t.used, t.anew, t.refused, t.failing, t.wrong);
    cr_expect_eq(t.wrong, 0);
    cr_expect(t.used > n / 3 && t.anew > 0 && t.refused > 0, "the draws are too much alike");
}
