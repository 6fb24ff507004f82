/* The model in the binary, judged by gpurun itself on the sets of tests/golden/default-model
 * (described there): loss against the entropy of its language, pass keys inside its training
 * context, beyond it, and with Self-Extend. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gpurun.h"

#define DATA GR_SOURCE_DIR "/tests/golden/default-model/"
#define LONGEST 1024

#ifdef __SANITIZE_ADDRESS__
enum { EVERY = 9 }; /* prompts are slow under a sanitizer: a part of them, for its own findings */
#else
enum { EVERY = 1 };
#endif

static struct gr_model *model;
static struct gr_session *session;
static int32_t n_vocab;

static json_t *load(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    cr_assert(j, "%s: %s", path, e.text);
    return j;
}

static void start(void)
{
    struct gr_session_params p = gr_session_params_default();
    struct gr_model_info info;
    p.n_ctx = LONGEST + 256;
    p.type_k = p.type_v = "f32"; /* the reference has no rounding of the cache */
    cr_assert_eq(gr_model_open(&model, NULL, NULL), 0, "%s", gr_error_message());
    cr_assert_eq(gr_session_open(&session, model, &p), 0, "%s", gr_error_message());
    gr_model_info(model, &info);
    n_vocab = info.n_vocab;
}

static void stop(void)
{
    gr_session_close(&session);
    gr_model_close(&model);
}

TestSuite(default_model, .init = start, .fini = stop, .timeout = 300);

/* -log p(id) */
static double surprise(const float *logits, int32_t id)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        max = fmax(max, (double)logits[i]);
    for (int32_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - max);
    return log(sum) - ((double)logits[id] - max);
}

static double document_nats(const int32_t *id, int n)
{
    double nats = 0;
    int8_t all[LONGEST];
    memset(all, 1, sizeof all);
    struct gr_batch b = {.n_tok = n, .token = id, .logits = all};
    gr_kv_clear(session);
    cr_assert_eq(gr_decode(session, &b), 0, "%s", gr_error_message());
    for (int i = 0; i + 1 < n; i++)
        nats += surprise(gr_logits(session, i), id[i + 1]);
    return nats;
}

static int ids_of(const json_t *array, int32_t *id)
{
    int n = (int)json_array_size(array);
    cr_assert(n <= LONGEST);
    for (int i = 0; i < n; i++)
        id[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return n;
}

/* Nobody can beat the grammar's entropy on average, and this model comes within 5% of it. */
Test(default_model, loss_is_within_five_percent_of_the_entropy)
{
    json_t *docs = load(DATA "heldout.json");
    double nats = 0, best = 0;
    int tokens = 0;
    for (size_t i = 0; i < json_array_size(docs); i++) {
        const json_t *d = json_array_get(docs, i);
        int32_t id[LONGEST];
        int n = ids_of(json_object_get(d, "tokens"), id);
        nats += document_nats(id, n);
        best += json_real_value(json_object_get(d, "nats"));
        tokens += n - 1;
    }
    printf("held-out loss %.4f nats a token, entropy %.4f, ratio %.4f\n", nats / tokens,
           best / tokens, nats / best);
    cr_expect(nats >= best && nats <= 1.05 * best, "%g nats where the grammar has %g", nats, best);
    json_decref(docs);
}

static int32_t greedy(void)
{
    const float *l = gr_logits(session, -1);
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        best = l[i] > l[best] ? i : best;
    return best;
}

/* Decodes n tokens from *n_past on, in pieces of at most `chunk`, Self-Extend before each. */
static void feed(const int32_t *id, int n, int chunk, struct gr_self_extend *se, int32_t *n_past)
{
    for (int i = 0; i < n; i += chunk) {
        int32_t pos[LONGEST];
        int k = i + chunk < n ? chunk : n - i;
        cr_assert_eq(gr_self_extend(session, se, n_past), 0, "%s", gr_error_message());
        for (int j = 0; j < k; j++)
            pos[j] = *n_past + j;
        struct gr_batch b = {.n_tok = k, .token = id + i, .pos = pos};
        cr_assert_eq(gr_decode(session, &b), 0, "%s", gr_error_message());
        *n_past += k;
    }
}

/* True when the five tokens picked after the prompt are the key's digits. */
static bool finds_key(const json_t *p, int factor, int window)
{
    const char *text = json_string_value(json_object_get(p, "prompt"));
    const char *answer = json_string_value(json_object_get(p, "answer"));
    int32_t *id, n_past = 0;
    size_t n;
    char found[64] = "";
    cr_assert_eq(gr_text_tokenize(model, text, strlen(text), true, true, &id, &n), 0);
    cr_assert_eq((json_int_t)n, json_integer_value(json_object_get(p, "n_tokens")));
    gr_kv_clear(session);
    struct gr_self_extend se = {factor, factor > 1 ? window : 1, 0};
    feed(id, (int)n, factor > 1 ? window : LONGEST, &se, &n_past);
    gr_free_ids(id);
    for (int i = 0; i < 5; i++) {
        int32_t next = greedy();
        const char *piece;
        size_t k;
        cr_assert_eq(gr_text_piece(model, next, false, &piece, &k), 0);
        strncat(found, piece, k < 8 ? k : 8);
        feed(&next, 1, 1, &se, &n_past);
    }
    return strcmp(found, answer) == 0;
}

static const struct {
    const char *set;
    int lo, hi; /* tokens of the prompt */
    int factor, window;
    double least, most; /* share of the keys that must be found, and may be */
} table[] = {
    {"context", 90, 234, 1, 0, .98, 1},
    {"beyond", 282, 282, 1, 0, .9, 1},
    {"beyond", 714, 930, 1, 0, 0, .15},
    /* a tenth; one key may turn with the order of sums */ {"beyond", 714, 714, 4, 128, .9, 1},
    {"beyond", 930, 930, 8, 128, .9, 1},
    {"remainder", 642, 652, 4, 128, 0, 1},
};

Test(default_model, pass_keys_inside_and_beyond_the_training_context)
{
    json_t *prompts = load(DATA "passkey.json");
    for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
        int of = 0, found = 0;
        for (size_t i = 0; i < json_array_size(prompts); i += EVERY) {
            const json_t *p = json_array_get(prompts, i);
            json_int_t n = json_integer_value(json_object_get(p, "n_tokens"));
            if (strcmp(json_string_value(json_object_get(p, "set")), table[r].set) != 0 ||
                n < table[r].lo || n > table[r].hi)
                continue;
            of++;
            found += finds_key(p, table[r].factor, table[r].window);
        }
        printf("%-9s %3d to %3d tokens, -gan %d -gaw %3d: %3d of %3d\n", table[r].set, table[r].lo,
               table[r].hi, table[r].factor, table[r].window, found, of);
        cr_assert(of > 0);
        cr_expect(EVERY > 1 || (found >= table[r].least * of && found <= table[r].most * of),
                  "%s, %d tokens, -gan %d: %d of %d", table[r].set, table[r].lo, table[r].factor,
                  found, of);
    }
    json_decref(prompts);
}

/* With the exact neighbour window nothing depends on where the last window ended. */
Test(default_model, the_neighbour_window_has_no_weak_lengths)
{
    static const int sets[][2] = {{642, 652}, {930, 930}};
    struct gr_session_params p = gr_session_params_default();
    json_t *prompts = load(DATA "passkey.json");
    p.n_ctx = LONGEST, p.self_extend_n = 8, p.self_extend_w = 128;
    gr_session_close(&session);
    cr_assert_eq(gr_session_open(&session, model, &p), 0, "%s", gr_error_message());
    for (size_t r = 0; r < sizeof sets / sizeof *sets; r++) {
        int of = 0, found = 0;
        for (size_t i = 0; i < json_array_size(prompts); i += EVERY) {
            const json_t *k = json_array_get(prompts, i);
            json_int_t n = json_integer_value(json_object_get(k, "n_tokens"));
            if (n < sets[r][0] || n > sets[r][1])
                continue;
            of++;
            found += finds_key(k, 1, 0);
        }
        printf("%d to %d tokens, window 8 / 128: %d of %d\n", sets[r][0], sets[r][1], found, of);
        cr_assert(of > 0);
        cr_expect(EVERY > 1 || found >= 0.92 * of, "%d to %d tokens: %d of %d", sets[r][0],
                  sets[r][1], found, of);
    }
    json_decref(prompts);
}

/* Greedy text equals that of numpy in f32, as long as its two best logits were far apart. */
Test(default_model, greedy_story_is_that_of_another_implementation)
{
    json_t *reference = load(DATA "reference.json");
    const json_t *story = json_object_get(reference, "story");
    const char *prompt = json_string_value(json_object_get(story, "prompt"));
    int32_t want[LONGEST], *id, n_past = 0;
    size_t n;
    int n_want = ids_of(json_object_get(story, "tokens"), want);
    struct gr_self_extend off = {1, 1, 0};
    cr_assert(prompt && n_want > 0);
    cr_assert_eq(gr_text_tokenize(model, prompt, strlen(prompt), true, true, &id, &n), 0);
    feed(id, (int)n, LONGEST, &off, &n_past);
    gr_free_ids(id);
    for (int i = 0; i < n_want; i++) {
        int32_t next = greedy();
        cr_assert_eq(next, want[i], "token %d: %d expected, %d found", i, want[i], next);
        feed(&next, 1, 1, &off, &n_past);
    }
    json_decref(reference);
}
