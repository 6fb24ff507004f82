/* Ids back to text: pieces, and the streaming detokenizer. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "gr/status.h"
#include "text/utf8.h"
#include "util.h"

#define SPACE "\xe2\x96\x81"

/* A byte-level vocabulary with some merges. */
static struct gr_vocab *byte_level(struct small *s, const char *pre)
{
    static const char *const merge[][2] = {
        {"a", "b"}, {"ab", "c"}, {"\xc4\xa0", "a"}, {"\xc4\xa0", "\xc4\xa0"}, {"0", "1"}};
    *s = small_new("gpt2", pre);
    small_bytes(s, true);
    for (size_t i = 0; i < sizeof merge / sizeof *merge; i++) {
        char text[16];
        snprintf(text, sizeof text, "%s%s", merge[i][0], merge[i][1]);
        small_token(s, text, 0, GR_TOKEN_NORMAL);
        small_merge(s, merge[i][0], strlen(merge[i][0]), merge[i][1], strlen(merge[i][1]));
    }
    small_token(s, "<|im_start|>", 0, GR_TOKEN_CONTROL);
    return small_open(s);
}

static struct gr_vocab *sentencepiece(struct small *s)
{
    *s = small_new("llama", "default");
    small_token(s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    small_token(s, "<s>", 0, GR_TOKEN_CONTROL);
    small_token(s, "</s>", 0, GR_TOKEN_CONTROL);
    small_bytes(s, false);
    small_token(s, SPACE, -1, GR_TOKEN_NORMAL);
    small_token(s, SPACE "a", -2, GR_TOKEN_NORMAL);
    small_token(s, "a", -3, GR_TOKEN_NORMAL);
    small_token(s, "b", -4, GR_TOKEN_NORMAL);
    small_token(s, "ab", -5, GR_TOKEN_NORMAL);
    return small_open(s);
}

/* Whatever the bytes, tokenizing loses none of them. */
static void keeps_bytes(const struct gr_vocab *v, const char *before)
{
    struct gr_rng r = gr_rng_new(11);
    for (int i = 0; i < 2000; i++) {
        char text[256];
        size_t n = random_text(&r, text, sizeof text, i % 2), n_back, skip = strlen(before);
        struct gr_vec ids = tokenize(v, text, n, false, true);
        char *back = pieces(v, &ids, true, &n_back);
        skip = n ? skip : 0;
        cr_assert(n_back == n + skip && !memcmp(back, before, skip) &&
                      !memcmp(back + skip, text, n),
                  "%s became %s", gr_quote(text, n), gr_quote(back, n_back));
        gr_free(back);
        gr_vec_fini(&ids);
    }
}

Test(roundtrip, byte_level)
{
    static const char *const pre[] = {"gpt-2",       "llama-bpe", "qwen2",   "deepseek-llm",
                                      "deepseek-v3", "gpt-4o",    "tiny_aya"};
    for (size_t i = 0; i < sizeof pre / sizeof *pre; i++) {
        struct small s;
        struct gr_vocab *v = byte_level(&s, pre[i]);
        keeps_bytes(v, "");
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

Test(roundtrip, sentencepiece)
{
    struct small s;
    struct gr_vocab *v = sentencepiece(&s);
    keeps_bytes(v, " ");
    gr_vocab_close(&v);
    small_fini(&s);
}

/* Every pre-tokenizer keeps every byte, and every prefix of a text can be cut. */
Test(roundtrip, stream_is_the_text)
{
    struct small s;
    struct gr_vocab *v = byte_level(&s, "gpt-2");
    struct gr_rng r = gr_rng_new(13);
    for (int i = 0; i < 1000; i++) {
        char text[128];
        size_t n = random_text(&r, text, sizeof text, false), at = 0;
        struct gr_vec ids = tokenize(v, text, n, false, false), out = {0};
        struct gr_vocab_detok d;
        gr_vocab_detok_init(&d, v, false, true);
        for (size_t k = 0; k < ids.n; k++) {
            cr_assert_eq(gr_vocab_detok_push(&d, ((int32_t *)ids.data)[k], &out), 0);
            cr_assert(out.n <= n && (!out.n || !memcmp(out.data, text, out.n)));
            for (size_t len; at < out.n; at += len) { /* whole characters only */
                uint32_t cp;
                int c = gr_utf8_next((char *)out.data + at, out.n - at, &cp);
                cr_assert_gt(c, 0);
                len = (size_t)c;
            }
        }
        cr_assert_eq(gr_vocab_detok_flush(&d, &out), 0);
        cr_assert_eq(out.n, n);
        gr_vec_fini(&ids);
        gr_vec_fini(&out);
    }
    gr_vocab_close(&v);
    small_fini(&s);
}

/* Bytes one by one; the expected text is that of Unicode's "maximal subpart" rule (as Python's
 * decode with "replace"). */
Test(roundtrip, broken_utf8_is_replaced)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"a\xff"
         "b",
         "a\xef\xbf\xbd"
         "b"},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82"
         "A",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef"
         "\xbf\xbd"
         "A"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x91\x92\x93", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
         "A",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
         "A"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\xc3", "\xef\xbf\xbd"},
        {"\x80", "\xef\xbf\xbd"},
    };
    struct small s;
    struct gr_vocab *v = byte_level(&s, "gpt-2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gr_vocab_detok d;
        struct gr_vec out = {0};
        gr_vocab_detok_init(&d, v, false, false);
        for (const char *p = cases[i].bytes; *p; p++) {
            struct gr_vec ids = tokenize(v, p, 1, false, false);
            cr_assert_eq(ids.n, 1);
            cr_assert_eq(gr_vocab_detok_push(&d, *(int32_t *)ids.data, &out), 0);
            gr_vec_fini(&ids);
        }
        cr_assert_eq(gr_vocab_detok_flush(&d, &out), 0);
        cr_assert(out.n == strlen(cases[i].text) && !memcmp(out.data, cases[i].text, out.n),
                  "case %zu: %s", i, gr_quote(out.data, out.n));
        gr_vec_fini(&out);
    }
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(roundtrip, control_tokens_and_the_first_blank)
{
    struct small s;
    struct gr_vocab *v = sentencepiece(&s);
    struct gr_vec ids = tokenize(v, "a b", 3, true, false), out = {0};
    struct gr_vocab_detok d;
    for (int special = 0; special < 2; special++) {
        out.n = 0;
        gr_vocab_detok_init(&d, v, special, true);
        for (size_t i = 0; i < ids.n; i++)
            cr_assert_eq(gr_vocab_detok_push(&d, ((int32_t *)ids.data)[i], &out), 0);
        const char *want = special ? "<s> a b" : "a b";
        cr_assert(out.n == strlen(want) && !memcmp(out.data, want, out.n), "%s",
                  gr_quote(out.data, out.n));
    }
    cr_assert_eq(gr_vocab_detok_push(&d, gr_vocab_size(v), &out), GR_E_INVALID);
    cr_assert_eq(gr_vocab_detok_push(&d, -1, &out), GR_E_INVALID);
    gr_vec_fini(&ids);
    gr_vec_fini(&out);
    gr_vocab_close(&v);
    small_fini(&s);
}
