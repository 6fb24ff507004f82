/* Each algorithm against a slow one that only follows its definition, on random vocabularies and
 * random texts. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/utf8.h"
#include "util.h"

#define SPACE "\xe2\x96\x81"
#define MOST 64 /* symbols of one text */

/* A text in pieces. */
struct parts {
    struct gr_str part[3 * MOST + 1];
    size_t n;
};

static void join(struct parts *p, size_t i)
{
    p->part[i].n += p->part[i + 1].n;
    memmove(p->part + i + 1, p->part + i + 2, (p->n - i - 2) * sizeof *p->part);
    p->n--;
}

static struct gr_str token_at(const struct small *s, size_t i)
{
    return ((struct gr_str *)s->tokens.data)[i];
}

static int32_t lookup(const struct small *s, const char *p, size_t n)
{
    for (size_t i = 0; i < s->tokens.n; i++)
        if (token_at(s, i).n == n && !memcmp(token_at(s, i).p, p, n) &&
            ((int32_t *)s->types.data)[i] == GR_TOKEN_NORMAL)
            return (int32_t)i;
    return -1;
}

static void compare(const struct gr_vocab *v, const char *text, size_t n, const int32_t *want,
                    size_t n_want)
{
    struct gr_vec got = tokenize(v, text, n, false, false);
    bool same = got.n == n_want && (!n_want || !memcmp(got.data, want, n_want * sizeof *want));
    cr_assert(same, "%s: %zu ids, expected %zu", gr_quote(text, n), got.n, n_want);
    gr_vec_fini(&got);
}

/* A random text of at most `most` of these strings. */
static size_t random_of(struct gr_rng *r, const char *const *from, size_t n_from, size_t most,
                        char *out)
{
    size_t n = 0;
    for (size_t k = gr_rng_below(r, (uint32_t)most + 1); k-- > 0;) {
        const char *s = from[gr_rng_below(r, (uint32_t)n_from)];
        memcpy(out + n, s, strlen(s));
        n += strlen(s);
    }
    return n;
}

/* --- BPE: the pair with the smallest rank, the leftmost of several, until there is none --- */

static size_t naive_bpe(const struct small *s, const char *text, size_t n, int32_t *ids)
{
    struct parts p = {.n = 0};
    for (size_t i = 0; i < n; i++)
        p.part[p.n++] = (struct gr_str){text + i, 1};
    for (;;) {
        size_t best = s->merges.n, where = 0;
        for (size_t i = 0; i + 1 < p.n; i++)
            for (size_t m = 0; m < best; m++) {
                struct gr_str merge = ((struct gr_str *)s->merges.data)[m];
                if (merge.n == p.part[i].n + p.part[i + 1].n + 1 && merge.p[p.part[i].n] == ' ' &&
                    !memcmp(merge.p, p.part[i].p, p.part[i].n) &&
                    !memcmp(merge.p + p.part[i].n + 1, p.part[i + 1].p, p.part[i + 1].n))
                    best = m, where = i;
            }
        if (best == s->merges.n)
            break;
        join(&p, where);
    }
    for (size_t i = 0; i < p.n; i++)
        ids[i] = lookup(s, p.part[i].p, p.part[i].n);
    return p.n;
}

Test(differential, bpe)
{
    static const char *const letters[] = {"a", "b", "c", "d"};
    struct gr_rng r = gr_rng_new(3);
    for (int round = 0; round < 60; round++) {
        struct small s =
            small_new("gpt2", "superbpe"); /* letters are one word whatever their number */
        small_bytes(&s, true);
        size_t base = s.tokens.n;
        for (int i = 0; i < 4; i++)
            cr_assert(lookup(&s, letters[i], 1) >= 0);
        for (int k = 0; k < 40;
             k++) { /* tokens made of two that are there, as a trained vocabulary has them */
            struct gr_str half[2];
            for (int h = 0; h < 2; h++) {
                uint32_t i = gr_rng_below(&r, (uint32_t)(s.tokens.n - base) + 4);
                half[h] = i < 4 ? (struct gr_str){letters[i], 1} : token_at(&s, base + i - 4);
            }
            char text[32];
            if (half[0].n + half[1].n > sizeof text)
                continue;
            memcpy(text, half[0].p, half[0].n);
            memcpy(text + half[0].n, half[1].p, half[1].n);
            if (lookup(&s, text, half[0].n + half[1].n) < 0)
                small_token_n(&s, text, half[0].n + half[1].n, 0, GR_TOKEN_NORMAL);
            small_merge(&s, half[0].p, half[0].n, half[1].p, half[1].n);
        }
        struct gr_vocab *v = small_open(&s);
        for (int k = 0; k < 100; k++) {
            char text[MOST];
            int32_t want[MOST];
            size_t n = random_of(&r, letters, k % 2 ? 2 : 4, MOST, text);
            compare(v, text, n, want, naive_bpe(&s, text, n, want));
        }
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

/* --- SPM: the pair whose text is the token of the largest score, the leftmost of several --- */

static size_t naive_spm(const struct small *s, const char *text, size_t n, int32_t *ids)
{
    struct parts p = {.n = 0};
    size_t n_ids = 0;
    for (size_t i = 0, len; i < n; i += len) {
        len = gr_utf8_step(text + i, n - i);
        p.part[p.n++] = (struct gr_str){text + i, len};
    }
    for (;;) {
        size_t where = p.n;
        float best = 0;
        for (size_t i = 0; i + 1 < p.n; i++) {
            int32_t id = lookup(s, p.part[i].p, p.part[i].n + p.part[i + 1].n);
            float score = id >= 0 ? ((float *)s->scores.data)[id] : 0;
            if (id >= 0 && (where == p.n || score > best))
                where = i, best = score;
        }
        if (where == p.n)
            break;
        join(&p, where);
    }
    for (size_t i = 0; i < p.n; i++) {
        int32_t id = lookup(s, p.part[i].p, p.part[i].n);
        if (id >= 0)
            ids[n_ids++] = id;
        for (size_t k = 0; id < 0 && k < p.part[i].n; k++)
            ids[n_ids++] = 3 + (uint8_t)p.part[i].p[k]; /* the byte tokens stand from 3 on */
    }
    return n_ids;
}

Test(differential, spm)
{
    static const char *const letters[] = {
        "a", "b", SPACE, "\xc3\xa9", "x", "\xf0\x9f\x98\x80"}; /* no tokens for the last two */
    struct gr_rng r = gr_rng_new(5);
    for (int round = 0; round < 60; round++) {
        struct small s = small_new("llama", "default");
        s.source.add_space_prefix = 0;
        small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
        small_token(&s, "<s>", 0, GR_TOKEN_CONTROL);
        small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
        small_bytes(&s, false);
        for (int k = 0; k < 60; k++) {
            char text[64];
            size_t n = random_of(&r, letters, 4, k % 8 ? 5 : 1, text);
            if (n && lookup(&s, text, n) < 0)
                small_token_n(&s, text, n, -(float)gr_rng_below(&r, 12),
                              GR_TOKEN_NORMAL); /* many scores are equal */
        }
        struct gr_vocab *v = small_open(&s);
        for (int k = 0; k < 100; k++) {
            char text[4 * MOST];
            int32_t want[4 * MOST];
            size_t n = random_of(&r, letters, k % 3 ? 4 : 6, MOST / 2, text);
            compare(v, text, n, want, naive_spm(&s, text, n, want));
        }
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

/* --- Unigram: no segmentation has a larger score --- */

/* The largest score of text[i, n), tried from the left with every token. */
static double naive_unigram(const struct small *s, const char *text, size_t n, double unknown,
                            double *best)
{
    best[n] = 0;
    for (size_t i = n; i-- > 0;) {
        best[i] = -INFINITY;
        if (((uint8_t)text[i] & 0xc0) == 0x80) /* inside a character */
            continue;
        size_t step = gr_utf8_step(text + i, n - i);
        bool single = false;
        for (size_t t = 0; t < s->tokens.n; t++) {
            struct gr_str tok = token_at(s, t);
            if (((int32_t *)s->types.data)[t] != GR_TOKEN_NORMAL || tok.n > n - i ||
                memcmp(tok.p, text + i, tok.n) != 0)
                continue;
            single = single || tok.n == step;
            best[i] = fmax(best[i], ((float *)s->scores.data)[t] + best[i + tok.n]);
        }
        if (!single)
            best[i] = fmax(best[i], unknown + best[i + step]);
    }
    return best[0];
}

Test(differential, unigram)
{
    static const char *const letters[] = {"a", "b", "c", "\xc3\xa9", "y", "\xf0\x9f\x98\x80"};
    struct gr_rng r = gr_rng_new(7);
    for (int round = 0; round < 60; round++) {
        struct small s = small_new("t5", "default");
        s.source.add_space_prefix = 0;
        small_token(&s, "<pad>", 0, GR_TOKEN_CONTROL);
        small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
        small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
        double least = 0;
        for (int k = 0; k < 50; k++) {
            char text[64];
            size_t n = random_of(&r, letters, 4, k % 4 ? 6 : 1, text);
            float score = -1 - (float)(gr_rng_double(&r) * 9);
            if (!n || lookup(&s, text, n) >= 0)
                continue;
            small_token_n(&s, text, n, score, GR_TOKEN_NORMAL);
            least = fmin(least, (double)score);
        }
        struct gr_vocab *v = small_open(&s);
        for (int k = 0; k < 100; k++) {
            char text[4 * MOST];
            double best[4 * MOST + 1], sum = 0;
            size_t n = random_of(&r, letters, k % 2 ? 4 : 6, MOST, text), at = 0;
            struct gr_vec ids = tokenize(v, text, n, false, false);
            for (size_t i = 0; i < ids.n;
                 i++) { /* the ids cover the text, and their scores add up to the optimum */
                int32_t id = ((int32_t *)ids.data)[i];
                struct gr_str tok = token_at(&s, (size_t)id);
                if (id == 2) { /* one unknown token for a row of unknown characters: as many as the
                                  next token leaves */
                    int32_t next = i + 1 < ids.n ? ((int32_t *)ids.data)[i + 1] : -1;
                    struct gr_str t =
                        next >= 0 ? token_at(&s, (size_t)next) : (struct gr_str){"", 0};
                    do {
                        at += gr_utf8_step(text + at, n - at);
                        sum += least - 10;
                    } while (at < n && (!t.n || t.n > n - at || memcmp(text + at, t.p, t.n) != 0));
                    continue;
                }
                cr_assert(tok.n <= n - at && !memcmp(text + at, tok.p, tok.n));
                at += tok.n;
                sum += (double)((float *)s.scores.data)[id];
            }
            cr_assert_eq(at, n);
            cr_assert_float_eq(sum, naive_unigram(&s, text, n, least - 10, best), 1e-4, "%s: %g",
                               gr_quote(text, n), sum);
            gr_vec_fini(&ids);
        }
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

/* --- WordPiece: the longest token that fits, or the word is unknown --- */

static size_t naive_wordpiece(const struct small *s, const char *text, size_t n, int32_t *ids)
{
    size_t n_ids = 0;
    for (size_t a = 0, b; a < n; a = b) {
        char word[4 * MOST] = SPACE;
        size_t len = strlen(SPACE), had = n_ids;
        for (b = a; b < n && text[b] != ' '; b++)
            word[len++] = text[b];
        for (size_t i = 0, k; b > a && i < len; i = k) {
            for (k = len; k > i && lookup(s, word + i, k - i) < 0;)
                k--;
            if (k == i) {
                n_ids = had;
                ids[n_ids++] = 0;
                break;
            }
            ids[n_ids++] = lookup(s, word + i, k - i);
        }
        b += b == a;
    }
    return n_ids;
}

Test(differential, wordpiece)
{
    static const char *const letters[] = {"a", "b", "c", "d", " "};
    struct gr_rng r = gr_rng_new(9);
    for (int round = 0; round < 60; round++) {
        struct small s = small_new("bert", "default");
        s.source.special[GR_SPECIAL_UNK] = 0;
        small_token(&s, "[UNK]", 0, GR_TOKEN_CONTROL);
        for (int k = 0; k < 40; k++) {
            char text[16] = SPACE;
            size_t lead = k % 2 ? 3 : 0,
                   n = lead + random_of(&r, letters, 4, k < 8 ? 1 : 5, text + lead);
            if (n && lookup(&s, text, n) < 0)
                small_token_n(&s, text, n, 0, GR_TOKEN_NORMAL);
        }
        struct gr_vocab *v = small_open(&s);
        for (int k = 0; k < 100; k++) {
            char text[MOST];
            int32_t want[MOST];
            size_t n = random_of(&r, letters, 5, MOST, text);
            compare(v, text, n, want, naive_wordpiece(&s, text, n, want));
        }
        gr_vocab_close(&v);
        small_fini(&s);
    }
}
