/* Tokenizers of single families: RWKV World, PLaMo 2, DNA, white space dropped, and what some names
 * of pre-tokenizers imply. scripts/compare/tokenizers compares them at length. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "util.h"

#define IDS(...)                                                                                   \
    ((const int32_t[]){__VA_ARGS__}), sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static void expect_piece(const struct gr_vocab *v, int32_t id, const char *want, size_t n_want)
{
    const char *p;
    size_t n;
    cr_assert_eq(gr_vocab_piece(v, id, false, &p, &n), 0);
    cr_assert(n == n_want && !memcmp(p, want, n), "token %d is %s", id, gr_quote(p, n));
}

Test(kinds, names_and_meanings)
{
    size_t n = 0;
    for (; gr_vocab_kind_name(n); n++)
        cr_assert_gt(strlen(gr_vocab_kind_meaning(n)), 5);
    cr_assert_eq(n, 10);
    cr_assert_null(gr_vocab_kind_meaning(n));
}

/* --- RWKV --- */

/* Tokens are written as Python writes byte strings. */
Test(kinds, rwkv_takes_the_longest)
{
    struct small s = small_new("rwkv", "");
    small_token(&s, "<s>", 0, GR_TOKEN_CONTROL);
    int32_t a = small_token(&s, "a", 0, GR_TOKEN_NORMAL);
    int32_t lines = small_token(&s, "\\n\\n", 0, GR_TOKEN_NORMAL);
    int32_t line = small_token(&s, "\\n", 0, GR_TOKEN_NORMAL);
    int32_t lead = small_token(&s, "\\xe4\\xb8", 0, GR_TOKEN_NORMAL);
    int32_t rest = small_token(&s, "\\xaD", 0, GR_TOKEN_NORMAL);
    int32_t quote = small_token(&s, "\\'\\\\\\t", 0, GR_TOKEN_NORMAL);
    int32_t abc = small_token(&s, "abc", 0, GR_TOKEN_NORMAL);
    int32_t odd = small_token(&s, "\\xg\\", 0, GR_TOKEN_NORMAL); /* no escape: its letters */
    small_token(&s, "aa", 0, GR_TOKEN_UNUSED);
    struct gr_vocab *v = small_open(&s);
    cr_assert_eq(gr_vocab_kind(v), GR_VOCAB_RWKV);
    expect_ids(v, "\n\n\naabca", IDS(lines, line, a, abc, a));
    expect_ids(v, "\xe4\xb8\xad'\\\ta", IDS(lead, rest, quote, a));
    expect_ids(v, "xg\\a", IDS(odd, a));
    expect_ids(v, "b<s>", NULL, 0); /* bytes without a token, no unknown token */
    expect_piece(v, lead, "\xe4\xb8", 2);
    expect_piece(v, quote, "'\\\t", 3);
    gr_vocab_close(&v);
    s.source.special[GR_SPECIAL_UNK] = 0;
    v = small_open(&s);
    expect_ids(v, "abab", IDS(a, 0, a, 0));
    gr_vocab_close(&v);
    small_token(&s, "\\x61", 0, GR_TOKEN_NORMAL);
    cr_assert_eq(gr_vocab_open_source(&v, small_source(&s)), GR_E_CORRUPT);
    cr_assert(strstr(gr_error(), "same bytes"), "%s", gr_error());
    small_fini(&s);
}

/* Every byte as an escape, in small and in capital letters. */
Test(kinds, rwkv_escapes)
{
    for (int capital = 0; capital < 2; capital++) {
        struct small s = small_new("rwkv", "");
        for (int byte = 0; byte < 256; byte++) {
            char text[8];
            snprintf(text, sizeof text, capital ? "\\x%02X" : "\\x%02x", (unsigned)byte);
            cr_assert_eq(small_token(&s, text, 0, GR_TOKEN_NORMAL), byte);
        }
        struct gr_vocab *v = small_open(&s);
        for (int byte = 0; byte < 256; byte++)
            expect_piece(v, byte, (char[]){(char)byte}, 1);
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

/* --- PLaMo --- */

static struct small plamo(void)
{
    struct small s = small_new("plamo2", "default");
    small_token(&s, "<|plamo:unk|>", 0, GR_TOKEN_UNKNOWN);
    small_token(&s, "<|plamo:bos|>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<|plamo:eos|>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<|plamo:pad|>", 0, GR_TOKEN_CONTROL);
    small_bytes(&s, false);
    return s;
}

Test(kinds, plamo_of_equal_sums_the_longer_first)
{
    struct small s = plamo();
    int32_t a = small_token(&s, "a", -1, GR_TOKEN_NORMAL);
    int32_t aa = small_token(&s, "aa", -2, GR_TOKEN_NORMAL);
    int32_t ab = small_token(&s, "a b", -1.5f, GR_TOKEN_NORMAL);
    int32_t b = small_token(&s, "b", -0.25f, GR_TOKEN_NORMAL);
    small_token(&s, "aaaa", -1000, GR_TOKEN_UNUSED);
    small_token(&s, "c", -1001, GR_TOKEN_NORMAL); /* worse than its byte */
    int32_t end = small_token(&s, "</s>", -5, GR_TOKEN_NORMAL);
    struct gr_vocab *v = small_open(&s);
    expect_ids(v, "aaa", IDS(aa, a));
    expect_ids(v, "a b", IDS(ab)); /* a blank is a blank */
    expect_ids(v,
               "c\xe4\xb8\xad\xff"
               "b",
               IDS(4 + 'c', 4 + 0xe4, 4 + 0xb8, 4 + 0xad, 4 + 0xff, b));
    expect_ids(v,
               "\xef\xbb\xbf"
               "a",
               IDS(4 + 0xef, 4 + 0xbb, 4 + 0xbf, a)); /* a byte order mark is text */
    expect_piece(v, ab, "a b", 3);
    cr_assert(gr_vocab_is_eog(v, 2) && !gr_vocab_is_eog(v, end)); /* a tag of HTML */
    gr_vocab_close(&v);
    small_fini(&s);
    s = small_new("plamo2", "");
    small_token(&s, "a", 0, GR_TOKEN_NORMAL);
    cr_assert_eq(gr_vocab_open_source(&v, small_source(&s)), GR_E_CORRUPT);
    cr_assert(strstr(gr_error(), "<0x00> is missing"), "%s", gr_error());
    small_fini(&s);
}

/* The sum of the ids that come out is the least that any segmentation has. */
Test(kinds, plamo_finds_the_best_sum)
{
    static const char *const letters[] = {"a", "b", "\xc3\xa9"};
    struct gr_rng r = gr_rng_new(17);
    struct small s = plamo();
    for (int k = 0; k < 30; k++) {
        char text[16] = "";
        for (uint32_t i = 0, n = 1 + gr_rng_below(&r, 4); i < n; i++)
            strcat(text, letters[gr_rng_below(&r, 3)]);
        bool there = false;
        for (size_t i = 0; i < s.tokens.n; i++)
            there = there || gr_str_is(((struct gr_str *)s.tokens.data)[i], text);
        if (!there)
            small_token(&s, text, -0.5f * (float)gr_rng_below(&r, 12), GR_TOKEN_NORMAL);
    }
    struct gr_vocab *v = small_open(&s);
    for (int k = 0; k < 200; k++) {
        char text[64] = "";
        for (uint32_t i = 0, n = gr_rng_below(&r, 24); i < n; i++)
            strcat(text, letters[gr_rng_below(&r, 3)]);
        size_t n = strlen(text);
        double best[64] = {0}, sum = 0;
        for (size_t i = n; i-- > 0;) {
            size_t len = (uint8_t)text[i] >= 0x80 ? 2 : 1;
            best[i] = i + len <= n ? best[i + len] + 1000 : INFINITY;
            for (size_t t = 260; t < s.tokens.n; t++) {
                struct gr_str tok = ((struct gr_str *)s.tokens.data)[t];
                if (tok.n <= n - i && !memcmp(tok.p, text + i, tok.n))
                    best[i] = fmin(best[i], best[i + tok.n] - ((float *)s.scores.data)[t]);
            }
        }
        struct gr_vec ids = tokenize(v, text, n, false, false);
        for (size_t i = 0; i < ids.n; i++) {
            int32_t id = ((int32_t *)ids.data)[i];
            bool byte = id < 260, first = byte && (id < 4 + 0x80 || id >= 4 + 0xc0);
            sum += byte ? first * 1000.0 : -(double)((float *)s.scores.data)[id];
        }
        cr_assert_float_eq(sum, best[0], 1e-9, "%s: %g, not %g", text, sum, best[0]);
        gr_vec_fini(&ids);
    }
    gr_vocab_close(&v);
    small_fini(&s);
}

/* --- DNA --- */

Test(kinds, dna_in_groups_of_six)
{
    struct small s = small_new("hybriddna", "gpt-2");
    small_bytes(&s, true);
    small_token(&s, "AC", 0, GR_TOKEN_NORMAL);
    small_merge(&s, "A", 1, "C", 1);
    int32_t open = small_token(&s, "<dna>", 0, GR_TOKEN_NORMAL);
    int32_t close = small_token(&s, "</dna>", 0, GR_TOKEN_NORMAL);
    int32_t oov = small_token(&s, "<oov>", 0, GR_TOKEN_NORMAL);
    int32_t acgtac = small_token(&s, "ACGTAC\xee\x80\x80", 0, GR_TOKEN_NORMAL);
    int32_t gaaaaa = small_token(&s, "GAAAAA\xee\x80\x80", 0, GR_TOKEN_NORMAL);
    struct gr_vocab *v = small_open(&s);
    expect_ids(v, "AC<dna>ACGTACacgtacg</dna>AC",
               IDS(256, open, acgtac, acgtac, gaaaaa, close, 256));
    expect_ids(v, "<dna>ACGNACG", IDS(open, oov, gaaaaa)); /* no end: all the rest is DNA */
    expect_ids(v, "<dna></dna>", IDS(open, close));
    expect_ids(v, "</dna>", IDS('<', '/', 'd', 'n', 'a', '>'));
    expect_piece(v, acgtac, "ACGTAC", 6);
    gr_vocab_close(&v);
    small_fini(&s);
    s = small_new("hybriddna", "gpt-2"); /* without the tags' tokens it is plain text */
    small_bytes(&s, true);
    v = small_open(&s);
    expect_ids(v, "<dna>", IDS('<', 'd', 'n', 'a', '>'));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* --- what names imply --- */

Test(kinds, white_space_dropped)
{
    struct small s = small_new("whitespace", "");
    int32_t unk = small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    int32_t a = small_token(&s, "a", 0, GR_TOKEN_NORMAL);
    int32_t zh = small_token(&s, "\xe4\xb8\xad", 0, GR_TOKEN_NORMAL);
    int32_t both = small_token(&s, "a\xe4\xb8\xad", 0, GR_TOKEN_NORMAL);
    small_merge(&s, "a", 1, "\xe4\xb8\xad", 3);
    s.source.special[GR_SPECIAL_UNK] = unk;
    struct gr_vocab *v = small_open(&s);
    expect_ids(v, " a\xe4\xb8\xad\n\xe3\x80\x80 a \xe4\xb8\xad", IDS(both, a, zh));
    expect_ids(v, "A?a", IDS(a)); /* characters without a token are left out */
    gr_vocab_close(&v);
    s.source.lowercase = 1;
    v = small_open(&s);
    expect_ids(v, "A\xe4\xb8\xad \xff\xc4\xb0", IDS(both));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* U+180E has been no white space since Unicode 6.3. */
Test(kinds, mongolian_vowel_separator)
{
    struct small s = small_new("gpt2", "jais-2");
    small_bytes(&s, true);
    int32_t blanks = small_token(&s, "\xc4\xa0\xc4\xa0", 0, GR_TOKEN_NORMAL);
    small_merge(&s, "\xc4\xa0", 2, "\xc4\xa0", 2);
    struct gr_vocab *v = small_open(&s);
    expect_ids(v, "\xe1\xa0\x8e  ", IDS(0xe1, 0xa0, 0x8e, blanks));
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(kinds, beginnings_that_files_deny)
{
    struct small s = small_new("gemma4", "");
    small_bytes(&s, false);
    s.source.special[GR_SPECIAL_BOS] = small_token(&s, "<bos>", 0, GR_TOKEN_CONTROL);
    s.source.add_bos = 0;
    struct gr_vocab *v = small_open(&s);
    cr_assert(gr_vocab_adds_bos(v));
    gr_vocab_close(&v);
    s.source.pre = (struct gr_str){"sarvam-moe", 10};
    v = small_open(&s);
    cr_assert(!gr_vocab_adds_bos(v));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* Five bytes are a number to the base 31. */
Test(kinds, numbers_of_models_made_to_be_tested)
{
    struct small s = small_new("test", "");
    for (int i = 0; i < 7; i++)
        small_token_n(&s, &"abcdefg"[i], 1, 0, GR_TOKEN_NORMAL);
    struct gr_vocab *v = small_open(&s);
    expect_ids(v, "abcdef",
               IDS((97 * 923521 + 98 * 29791 + 99 * 961 + 100 * 31 + 101) % 7, 102 % 7));
    gr_vocab_close(&v);
    small_fini(&s);
}
