/* One mebibyte of one letter, of digits, of blanks, of ideographs: each kind of tokenizer takes a
 * second or less on an idle machine. The bound is loose (sanitizers, busy machines); anything
 * quadratic would take hours. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"
#include "text/pre.h"
#include "util.h"

#define MIB (1u << 20)
#define SECONDS 60.0
#define SPACE "\xe2\x96\x81"

static const char *const units[] = {"a", "1234567890", " ",   "\xe4\xb8\xad", "\n",   "ab ",
                                    "!", "aA",         " \n", "e\xcc\x81",    "a\xff"};

/* A mebibyte of units[k]; returns its length. */
static size_t fill(char *text, size_t k)
{
    size_t n = 0, len = strlen(units[k]);
    for (; n + len <= MIB; n += len)
        memcpy(text + n, units[k], len);
    return n;
}

static void within_bound(const struct gr_vocab *v, const char *what)
{
    char *text = malloc(MIB + 8);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        size_t n = fill(text, k);
        int64_t begin = gr_now_ns();
        struct gr_vec ids = tokenize(v, text, n, false, false);
        cr_assert_lt(gr_seconds_since(begin), SECONDS, "%s, unit %zu: %zu ids", what, k, ids.n);
        gr_vec_fini(&ids);
    }
    free(text);
}

/* Tokens of 1, 2, 4 ... 32 times a unit, so that merges cascade. */
static void doubling(struct small *s, const char *unit, bool known, bool merges)
{
    char text[512];
    size_t n = strlen(unit);
    memcpy(text, unit, n);
    for (int i = 0; i < 6; i++, n *= 2, known = false) {
        if (!known)
            small_token_n(s, text, n, -(float)i, GR_TOKEN_NORMAL);
        if (merges && i)
            small_merge(s, text, n / 2, text, n / 2);
        memcpy(text + n, text, n);
    }
}

static void doubling_words(struct small *s)
{
    doubling(s, "a", false, false);
    doubling(s, "1", false, false);
    doubling(s, SPACE, false, false);
    doubling(s, "\xe4\xb8\xad", false, false);
}

Test(speed, spm)
{
    struct small s = small_new("llama", "");
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    small_token(&s, "<s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
    small_bytes(&s, false);
    doubling_words(&s);
    struct gr_vocab *v = small_open(&s);
    within_bound(v, "llama");
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(speed, unigram)
{
    struct small s = small_new("t5", "");
    small_token(&s, "<pad>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    doubling_words(&s);
    struct gr_vocab *v = small_open(&s);
    within_bound(v, "t5");
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(speed, rwkv)
{
    struct small s = small_new("rwkv", "");
    doubling_words(&s);
    struct gr_vocab *v = small_open(&s);
    within_bound(v, "rwkv");
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(speed, plamo)
{
    struct small s = small_new("plamo2", "");
    small_bytes(&s, false);
    doubling_words(&s);
    struct gr_vocab *v = small_open(&s);
    within_bound(v, "plamo2");
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(speed, wordpiece)
{
    struct small s = small_new("bert", "");
    small_token(&s, "[UNK]", 0, GR_TOKEN_CONTROL);
    doubling_words(&s);
    struct gr_vocab *v = small_open(&s);
    within_bound(v, "bert");
    gr_vocab_close(&v);
    small_fini(&s);
}

/* "superbpe" leaves the whole text one word. */
Test(speed, bpe)
{
    struct small s = small_new("gpt2", "superbpe");
    small_bytes(&s, true);
    doubling(&s, "a", true, true);
    doubling(&s, "1", true, true);
    doubling(&s, "\xc4\xa0", true, true);
    small_token(&s, "\xc3\xa4\xc2\xb8", 0, GR_TOKEN_NORMAL); /* the three bytes of an ideograph */
    small_merge(&s, "\xc3\xa4", 2, "\xc2\xb8", 2);
    small_merge(&s, "\xc3\xa4\xc2\xb8", 4, "\xc5\x83", 2);
    doubling(&s, "\xc3\xa4\xc2\xb8\xc5\x83", false, true);
    struct gr_vocab *v = small_open(&s);
    within_bound(v, "gpt2");
    gr_vocab_close(&v);
    small_fini(&s);
}

/* The pre-tokenizers that differ, with a quarter of a mebibyte, also where a long run ends in
 * something else. */
Test(speed, pre_tokenizers)
{
    static const char *const names[] = {
        "default",      "gpt-2",          "starcoder",   "llama-bpe", "minicpm5", "jais-2",
        "qwen2",        "qwen35",         "exaone-moe",  "laguna",    "youtu",    "kimi-k2",
        "deepseek-llm", "deepseek-coder", "deepseek-v3", "spark2_5",  "viking",   "tekken",
        "gpt-4o",       "tiny_aya",       "superbpe",    "bailingmoe"};
    char *text = malloc(MIB + 8);
    const uint32_t *end;
    size_t n_end;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct gr_pre *p;
        struct gr_splitter *cut;
        cr_assert_eq(gr_pre_open(&p, (struct gr_str){names[i], strlen(names[i])}), 0, "%s",
                     gr_error());
        cr_assert_eq(gr_splitter_new(&cut, p), 0);
        for (size_t k = 0; k < GR_COUNT(units) - 1; k++) { /* all that are UTF-8 */
            const char *tail = "\xe4\xb8\xad_";
            size_t n = MIB / 4 / strlen(units[k]) * strlen(units[k]);
            fill(text, k);
            memcpy(text + n, tail, strlen(tail));
            int64_t begin = gr_now_ns();
            cr_assert_eq(gr_splitter_run(cut, text, n + strlen(tail), &end, &n_end), 0,
                         "%s, unit %zu: %s", names[i], k, gr_error());
            cr_assert_lt(gr_seconds_since(begin), SECONDS, "%s, unit %zu", names[i], k);
        }
        gr_splitter_free(&cut);
        gr_pre_free(&p);
    }
    free(text);
}
