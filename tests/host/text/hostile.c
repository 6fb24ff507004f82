/* Vocabularies that no honest file has, and memory that runs out. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "gr/status.h"
#include "support/cpu_time.h"
#include "text/charsmap.h"
#include "text/utf8.h"
#include "util.h"

#define SPACE "\xe2\x96\x81"

/* Opening fails with this status and a message with these words in it. */
static void refused(const struct gr_vocab_source *src, int status, const char *words)
{
    struct gr_vocab *v;
    int rc = gr_vocab_open_source(&v, src);
    cr_assert_eq(rc, status, "%d, expected %d with \"%s\": %s", rc, status, words, gr_error());
    cr_assert_null(v);
    cr_assert(strstr(gr_error(), words), "\"%s\" is not in: %s", words, gr_error());
}

static struct small spm(void)
{
    struct small s = small_new("llama", "");
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    small_token(&s, "<s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
    small_bytes(&s, false);
    small_token(&s, "a", -1, GR_TOKEN_NORMAL);
    small_token(&s, "aa", -2, GR_TOKEN_NORMAL);
    return s;
}

static struct small bpe(void)
{
    struct small s = small_new("gpt2", "gpt-2");
    small_bytes(&s, true);
    small_token(&s, "aa", 0, GR_TOKEN_NORMAL);
    small_merge(&s, "a", 1, "a", 1);
    return s;
}

Test(hostile, arrays_of_different_lengths)
{
    struct small s = spm();
    struct gr_vocab_source src = *small_source(&s);
    src.n_scores--;
    refused(&src, GR_E_CORRUPT, "tokenizer.ggml.scores: 260 items, but 261 tokens");
    src = *small_source(&s), src.n_types++;
    refused(&src, GR_E_CORRUPT, "tokenizer.ggml.token_type: 262 items, but 261 tokens");
    src = *small_source(&s), src.scores = NULL;
    refused(&src, GR_E_CORRUPT, "tokenizer.ggml.scores is missing");
    src = *small_source(&s), src.tokens = NULL;
    refused(&src, GR_E_CORRUPT, "tokenizer.ggml.tokens is missing");
    src = *small_source(&s), src.n_tok = 0;
    refused(&src, GR_E_CORRUPT, "0 items");
    src = *small_source(&s), src.n_tok = src.n_scores = src.n_types = UINT64_MAX / 2;
    refused(&src, GR_E_CORRUPT, "tokenizer.ggml.tokens");
    src = *small_source(&s), src.model = (struct gr_str){"none", 4}, src.n_tok = 1ull << 40;
    refused(&src, GR_E_CORRUPT, "more than");
    small_fini(&s);
}

Test(hostile, special_ids_out_of_range)
{
    static const int64_t bad[] = {261, -1, INT32_MAX, 1ll << 32, INT64_MAX};
    struct small s = spm();
    for (int k = 0; k < GR_N_SPECIAL; k++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct gr_vocab_source src = *small_source(&s);
            src.special[k] = bad[i];
            refused(&src, GR_E_CORRUPT, "_token_id is ");
        }
    small_fini(&s);
    s = small_new(
        "gpt2",
        "gpt-2"); /* the ids that a tokenizer has by default only count when they are there */
    small_bytes(&s, true);
    s.source.add_bos = 1;
    refused(small_source(&s), GR_E_CORRUPT, "bos_token_id is missing");
    s.source.add_bos = -1, s.source.add_eos = 1;
    refused(small_source(&s), GR_E_CORRUPT, "eos_token_id is missing");
    small_fini(&s);
}

Test(hostile, byte_tokens)
{
    static const char *const bad[] = {"<0x-1>", "<0x1>",  "<0x123>", "<0xG0>",
                                      "<0x0G>", "<0x+1>", "<0x 1>",  "<0X41>x",
                                      "",       "<0x41",  "\x41",    "<0x00>\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct small s = spm();
        small_token(&s, bad[i], 0, GR_TOKEN_BYTE);
        refused(small_source(&s), GR_E_CORRUPT, "is a byte but its text is");
        small_fini(&s);
    }
    struct small s = spm();
    small_token(&s, "<0xff>", 0, GR_TOKEN_BYTE); /* <0xFF> is there already */
    refused(small_source(&s), GR_E_CORRUPT, "are both byte 255");
    small_fini(&s);
}

Test(hostile, tokens)
{
    struct small s = spm();
    small_token(&s, "aa", 0, GR_TOKEN_NORMAL);
    refused(small_source(&s), GR_E_CORRUPT, "tokens 260 and 261 are both");
    small_fini(&s);
    s = spm();
    small_token(&s, "b", NAN, GR_TOKEN_NORMAL);
    refused(small_source(&s), GR_E_CORRUPT, "tokenizer.ggml.scores: token 261");
    small_fini(&s);
    s = spm();
    small_token(&s, "b", 0, (enum gr_token_type)7);
    refused(small_source(&s), GR_E_CORRUPT, "type 7");
    small_fini(&s);
    s = spm();
    static char longest[GR_VOCAB_MAX_TOKEN_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    small_token_n(&s, longest, sizeof longest, 0, GR_TOKEN_NORMAL);
    refused(small_source(&s), GR_E_CORRUPT, "token 261 has 8193 bytes");
    small_fini(&s);
    s = spm(); /* empty texts are no tokens that a text can have, but harmless; a zero byte is a
                  byte */
    small_token(&s, "", 0, GR_TOKEN_NORMAL);
    small_token(&s, "", 0, GR_TOKEN_CONTROL);
    int32_t zero = small_token_n(&s, "a\0a", 3, 5, GR_TOKEN_USER_DEFINED);
    struct gr_vocab *v = small_open(&s);
    struct gr_vec ids = tokenize(v, "a\0a", 3, false, false);
    cr_assert(ids.n == 1 && *(int32_t *)ids.data == zero);
    gr_vec_fini(&ids);
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(hostile, total_size)
{
    enum { N = GR_VOCAB_MAX_TEXT_BYTES / GR_VOCAB_MAX_TOKEN_BYTES + 1 };
    static char text[GR_VOCAB_MAX_TOKEN_BYTES];
    static struct gr_str tokens[N];
    struct gr_vocab_source src = gr_vocab_source_new("bert");
    for (size_t i = 0; i < N; i++)
        tokens[i] = (struct gr_str){text, sizeof text};
    src.tokens = tokens, src.n_tok = N;
    refused(&src, GR_E_CORRUPT, "all together");
}

Test(hostile, merges)
{
    static const char *const bad[][3] = {
        {"a", "q\xc3\xbf", "right half"}, {"qq", "a", "left half"}, {"b", "a", "what it makes"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct small s = bpe();
        small_merge(&s, bad[i][0], strlen(bad[i][0]), bad[i][1], strlen(bad[i][1]));
        refused(small_source(&s), GR_E_CORRUPT, bad[i][2]);
        small_fini(&s);
    }
    static const struct gr_str shapes[] = {{"", 0},   {"a", 1}, {"aa", 2}, {"a ", 2},
                                           {" a", 2}, {" ", 1}, {NULL, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct small s = bpe();
        struct gr_vocab_source src = *small_source(&s);
        src.merges = &shapes[i], src.n_merges = 1;
        refused(&src, GR_E_CORRUPT, "tokenizer.ggml.merges: item 0");
        small_fini(&s);
    }
    struct small s = bpe();
    struct gr_vocab_source src = *small_source(&s);
    src.merges = NULL;
    refused(&src, GR_E_CORRUPT, "tokenizer.ggml.merges is missing");
    src = *small_source(&s), src.n_merges = UINT64_MAX;
    refused(&src, GR_E_CORRUPT, "tokenizer.ggml.merges");
    small_merge(&s, "a", 1, "a", 1); /* twice the same is harmless */
    struct gr_vocab *v = small_open(&s);
    expect_ids(v, "aaa", (int32_t[]){256, 'a'}, 2);
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(hostile, names)
{
    struct small s = bpe();
    struct gr_vocab_source src = *small_source(&s);
    src.model = (struct gr_str){"gpt3\n", 5};
    refused(&src, GR_E_UNSUPPORTED, "known are llama, gpt2");
    src = *small_source(&s), src.pre = (struct gr_str){"lama-bpe", 8};
    refused(&src, GR_E_UNSUPPORTED, "nearest known one is \"llama-bpe\"");
    src.pre = (struct gr_str){"deepseek-v31", 12};
    refused(&src, GR_E_UNSUPPORTED, "\"deepseek-v3\"");
    static char huge[100000];
    memset(huge, 'z', sizeof huge);
    src.pre = (struct gr_str){huge, sizeof huge};
    refused(&src, GR_E_UNSUPPORTED, "unknown pre-tokenizer");
    small_fini(&s);
}

/* Maps of random units and random replacements: what they match is inside the text and the map. */
Test(hostile, charsmap)
{
    struct gr_charsmap *m;
    uint8_t map[1024] = {0};
    struct gr_rng r = gr_rng_new(17);
    cr_assert_eq(gr_charsmap_open(&m, map, 3), GR_E_CORRUPT);
    memcpy(map, "\xff\xff\xff\xff", 4);
    cr_assert_eq(gr_charsmap_open(&m, map, sizeof map), GR_E_CORRUPT);
    memcpy(map, "\x08\0\0\0\0\0\0\0\0\0\0\0xyz", 15);
    cr_assert_eq(gr_charsmap_open(&m, map, 15), GR_E_CORRUPT); /* not terminated */
    memcpy(map, "\x06\0\0\0\0\0\0\0\0\0\0", 11);
    cr_assert_eq(gr_charsmap_open(&m, map, 11), GR_E_CORRUPT); /* half a unit */
    size_t matched = 0;
    for (int i = 0; i < 5000; i++) {
        uint32_t n = gr_rng_below(&r, 200), size = 4 * n, base = gr_rng_below(&r, 256);
        memset(map, 'x', sizeof map);
        memcpy(map, &size, 4);
        /* unit k is the child of the root by byte k ^ base, with random bits */
        for (uint32_t k = 0; k < n; k++) {
            uint32_t noise = gr_rng_u32(&r) >> gr_rng_below(&r, 24),
                     unit = k ? (k ^ base) & 0xff : base << 10;
            unit ^= i % 3 == 0 ? noise : i % 3 == 1 ? noise & 0x3ff00u : noise & 0x700u;
            memcpy(map + 4 + 4 * k, &unit, 4);
        }
        for (size_t k = 4 + size; k < sizeof map; k += 1 + gr_rng_below(&r, 8))
            map[k] = 0;
        map[sizeof map - 1] = 0;
        cr_assert_eq(gr_charsmap_open(&m, map, sizeof map), 0, "%s", gr_error());
        for (int c = 1; c < 256; c++) {
            char text[3] = {(char)c, (char)(c + 1), 'a'};
            const char *to;
            for (size_t bytes = 0; bytes <= sizeof text; bytes++) { /* those behind are not read */
                size_t n_to, len = gr_charsmap_match(m, text, bytes, &to, &n_to);
                cr_assert_leq(len, bytes);
                matched += len > 0;
                cr_assert(!len || (n_to < sizeof map && !to[n_to]));
            }
        }
        gr_charsmap_free(&m);
    }
    cr_assert_gt(matched, 3000);
}

/* A Unigram vocabulary whose map makes n times `to` of each 'a'; map has room for it. */
static struct small mapped(uint8_t *map, char to, uint32_t n, bool squeeze)
{
    enum { UNITS = 4 * 128 };
    struct small s = small_new("t5", "");
    small_token(&s, "<pad>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    small_token(&s, "x", -1, GR_TOKEN_NORMAL);
    small_token(&s, SPACE, -1, GR_TOKEN_NORMAL);
    /* root's children at 0 ^ c; 'a' (0x61) has a value at unit 0x61 ^ 1 = 0x60: offset 0 of the
     * replacements */
    uint32_t a = 0x61u | 1u << 8 | 1u << 10, size = UNITS;
    memset(map, 0, 4 + UNITS);
    memcpy(map, &size, 4);
    memcpy(map + 4 + 4 * 0x61, &a, 4);
    memset(map + 4 + UNITS, to, n);
    map[4 + UNITS + n] = 0;
    s.source.charsmap = map, s.source.charsmap_bytes = 4 + UNITS + n + 1;
    s.source.remove_extra_whitespaces = squeeze;
    return s;
}

/* A map that blows a text up is stopped, be it by letters or by blanks, seen or not. */
Test(hostile, charsmap_bomb)
{
    static const struct {
        char to;
        bool squeeze;
        size_t least; /* ids of one letter */
    } bombs[] = {{'x', false, 1900}, {'x', true, 1900}, {' ', false, 1900}, {' ', true, 0}};
    enum { BYTES = 1999, MANY = 195000 };
    static uint8_t map[4 + 4 * 128 + MANY + 1];
    static char text[20000];
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        struct small s = mapped(map, bombs[i].to, BYTES, bombs[i].squeeze);
        struct gr_vocab *v = small_open(&s);
        struct gr_vec ids = tokenize(v, "a", 1, false, false);
        cr_assert_geq(ids.n, bombs[i].least, "bomb %zu: %zu ids", i, ids.n);
        ids.n = 0;
        cr_assert_eq(gr_tokenize(v, text, sizeof text, false, false, &ids), GR_E_TOO_LARGE);
        cr_assert(strstr(gr_error(), "normalisation makes more than"), "%s", gr_error());
        cr_assert_eq(ids.n, 0);
        gr_vec_fini(&ids);
        gr_vocab_close(&v);
        small_fini(&s);

        size_t before, peak;
        s = mapped(map, bombs[i].to, MANY, bombs[i].squeeze);
        v = small_open(&s);
        before = gr_alloc_held(&peak);
        cr_assert_eq(gr_tokenize(v, text, 1000, false, false, &ids), GR_E_TOO_LARGE);
        (void)gr_alloc_held(&peak);
        cr_assert_lt(peak - before, 4u << 20, "bomb %zu: %zu bytes", i, peak - before);
        gr_vec_fini(&ids);
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

/* Units that lead in a circle match no more than the longest text that is looked up. */
Test(hostile, charsmap_circle)
{
    enum { BYTES = 100000 };
    static uint32_t map[1 + 128];
    static char text[BYTES];
    struct gr_charsmap *m;
    const char *to;
    size_t n_to;
    map[0] = 4 * 128;
    map[1 + 'a'] = 'a' | 'a' << 10; /* its child by 'a' is itself */
    memset(text, 'a', sizeof text);
    cr_assert_eq(gr_charsmap_open(&m, (const uint8_t *)map, sizeof map), 0, "%s", gr_error());
    double begin = cpu_seconds();
    for (size_t i = 0; i < BYTES; i++)
        cr_assert_eq(gr_charsmap_match(m, text + i, BYTES - i, &to, &n_to), 0);
    cr_assert_lt(cpu_seconds() - begin, 2);
    gr_charsmap_free(&m);
}

/* Tokens of 'a' once, twice ... LONGEST times, or only the longest, which no text has, and one 'a':
 * each byte of a text of 'a' begins thousands of them. The work ends with a message, long before
 * it would be done. */
static void long_tokens(struct small s, enum gr_token_type type, bool all)
{
    enum { LONGEST = 4000, BYTES = 1000000 };
    static char token[LONGEST + 1], text[BYTES];
    struct gr_vec ids = {0};
    memset(token, 'a', sizeof token);
    memset(text, 'a', sizeof text);
    token[LONGEST] = 'b';
    for (size_t n = 2; n <= LONGEST && all; n++)
        small_token_n(&s, token, n, -(float)n, type);
    small_token_n(&s, token, sizeof token, -1, type);
    struct gr_vocab *v = small_open(&s);
    const char *model = s.source.model.p;
    cr_assert_eq(gr_tokenize(v, text, 200, false, true, &ids), 0, "%s: %s", model, gr_error());
    ids.n = 0;
    double begin = cpu_seconds();
    cr_assert_eq(gr_tokenize(v, text, sizeof text, false, true, &ids), GR_E_TOO_LARGE, "%s", model);
    cr_assert_lt(cpu_seconds() - begin, 30, "%s", model);
    cr_assert(strstr(gr_error(), "steps: the vocabulary has long tokens"), "%s", gr_error());
    cr_assert_eq(ids.n, 0);
    gr_vec_fini(&ids);
    gr_vocab_close(&v);
    small_fini(&s);
}

/* Tokens of any number of 'a' and a 'b' at their end, which grow to the left: a pair is known when
 * all of its right half was read. */
Test(hostile, long_right_halves)
{
    enum { LONGEST = 4000, TIMES = 250 };
    static char token[LONGEST + 1], text[TIMES * sizeof token];
    struct gr_vec ids = {0};
    struct small s = spm();
    memset(token, 'a', sizeof token);
    token[LONGEST] = 'b';
    for (size_t i = 0; i < TIMES; i++)
        memcpy(text + i * sizeof token, token, sizeof token);
    for (size_t n = 1; n <= LONGEST; n++)
        small_token_n(&s, token + LONGEST - n, n + 1, (float)n, GR_TOKEN_NORMAL);
    struct gr_vocab *v = small_open(&s);
    cr_assert_eq(gr_tokenize(v, text, sizeof text, false, false, &ids), GR_E_TOO_LARGE);
    cr_assert(strstr(gr_error(), "steps: the vocabulary has long tokens"), "%s", gr_error());
    gr_vec_fini(&ids);
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(hostile, long_tokens)
{
    static const char *const models[] = {"t5", "plamo2", "rwkv", "llama"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int all = 0; all < 2; all++) {
            struct small s = small_new(models[i], "");
            small_token(&s, "<pad>", 0, GR_TOKEN_CONTROL);
            small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
            small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
            if (i % 2)
                small_bytes(&s, false);
            small_token(&s, "a", -1, GR_TOKEN_NORMAL);
            if (i < 2 || i + (size_t)all == 2) /* the others take the longest there is */
                long_tokens(s, GR_TOKEN_NORMAL, all);
            else
                small_fini(&s);
        }
    long_tokens(spm(), GR_TOKEN_USER_DEFINED, false);
    long_tokens(bpe(), GR_TOKEN_CONTROL, false);
}

/* Any bytes in any vocabulary: ids in range, nothing else. */
Test(hostile, random_bytes)
{
    static const char *const models[] = {"llama", "gpt2", "gemma4", "bert", "t5"};
    struct gr_rng r = gr_rng_new(19);
    for (int round = 0; round < 200; round++) {
        struct small s = small_new(models[round % 5], round % 10 < 5 ? "" : "llama-bpe");
        for (int i = 0; i < 40; i++) {
            char text[16];
            size_t n = 1 + gr_rng_below(&r, 6);
            for (size_t k = 0; k < n; k++)
                text[k] =
                    gr_rng_below(&r, 3) ? (char)('a' + gr_rng_below(&r, 3)) : (char)gr_rng_u32(&r);
            text[n] = (char)('0' + i), text[n + 1] = 'z'; /* all different */
            small_token_n(&s, text, n + (i % 2 ? 2 : 1), (float)gr_rng_below(&r, 9),
                          (enum gr_token_type)(i % 6));
        }
        const struct gr_vocab_source *src = small_source(&s);
        struct gr_vocab *v;
        if (gr_vocab_open_source(&v, src) == 0)
            for (int k = 0; k < 50; k++) {
                char text[200];
                size_t n = random_text(&r, text, sizeof text, true);
                struct gr_vec ids = tokenize(v, text, n, true, k % 2), out = {0};
                struct gr_vocab_detok d;
                gr_vocab_detok_init(&d, v, k % 3, true);
                for (size_t i = 0; i < ids.n; i++)
                    cr_assert_eq(gr_vocab_detok_push(&d, ((int32_t *)ids.data)[i], &out), 0);
                cr_assert_eq(gr_vocab_detok_flush(&d, &out), 0);
                gr_vec_fini(&ids);
                gr_vec_fini(&out);
            }
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

/* Everything once, with the k-th allocation failing: the status says so, nothing leaks, and the ids
 * stay as they were. */
static int life(const struct gr_vocab_source *src)
{
    static const char text[] = "aab a\xff\xc3\xa9 12 <s>";
    struct gr_vocab *v;
    struct gr_vec ids = {0}, out = {0};
    struct gr_vocab_detok d;
    int rc = gr_vocab_open_source(&v, src);
    if (!rc)
        rc = gr_tokenize(v, text, strlen(text), true, true, &ids);
    if (!rc) {
        gr_vocab_detok_init(&d, v, true, true);
        for (size_t i = 0; i < ids.n && !rc; i++)
            rc = gr_vocab_detok_push(&d, ((int32_t *)ids.data)[i], &out);
    } else {
        cr_assert_eq(ids.n, 0);
    }
    gr_vec_fini(&ids);
    gr_vec_fini(&out);
    gr_vocab_close(&v);
    return rc;
}

static void sweep(struct small s)
{
    const struct gr_vocab_source *src = small_source(&s);
    (void)gr_alloc_fail_at(0, 0);
    cr_assert_eq(life(src), 0, "%s", gr_error());
    uint64_t all = gr_alloc_fail_at(0, 0), failed = 0;
    for (int persistent = 0; persistent < 2; persistent++)
        for (uint64_t k = 1; k <= all; k++) {
            (void)gr_alloc_fail_at(k, persistent);
            int rc = life(src);
            (void)gr_alloc_fail_at(0, 0);
            cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST, "allocation %d of %d: %s", (int)k, (int)all,
                      gr_error());
            failed += rc != 0;
        }
    cr_assert_gt(failed, all); /* PCRE2 does without some of its own, so not every one is felt */
    cr_assert_eq(life(src), 0);
    small_fini(&s);
}

Test(hostile, memory_spm)
{
    sweep(spm());
}

Test(hostile, memory_bpe)
{
    sweep(bpe());
}

Test(hostile, memory_wordpiece)
{
    struct small s = small_new("bert", "");
    small_token(&s, "[UNK]", 0, GR_TOKEN_CONTROL);
    small_token(&s, SPACE "a", 0, GR_TOKEN_NORMAL);
    s.source.special[GR_SPECIAL_UNK] = 0;
    sweep(s);
}

Test(hostile, memory_rwkv)
{
    struct small s = small_new("rwkv", "");
    small_token(&s, "a", 0, GR_TOKEN_NORMAL);
    small_token(&s, "\\xff", 0, GR_TOKEN_NORMAL);
    sweep(s);
}

Test(hostile, memory_plamo)
{
    struct small s = small_new("plamo2", "");
    small_bytes(&s, false);
    small_token(&s, "aa", -1, GR_TOKEN_NORMAL);
    sweep(s);
}

Test(hostile, memory_whitespace)
{
    struct small s = small_new("whitespace", "");
    small_token(&s, "a", 0, GR_TOKEN_NORMAL);
    s.source.lowercase = 1;
    sweep(s);
}

Test(hostile, memory_unigram)
{
    static const uint8_t map[] = {4, 0, 0, 0, 0, 0, 0, 0, 'x', 0};
    struct small s = small_new("t5", "");
    small_token(&s, "<pad>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    small_token(&s, "a", -1, GR_TOKEN_NORMAL);
    s.source.charsmap = map, s.source.charsmap_bytes = sizeof map;
    sweep(s);
}
