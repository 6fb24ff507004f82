#include "util.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/utf8.h"

/* The byte letters of GPT-2, said in another way than the library does: the bytes that are no
 * visible Latin-1 character get the code points from 256 on, in order. */
static uint32_t letter(int b)
{
    uint32_t next = 256;
    for (int k = 0; k < 256; k++) {
        bool visible = (k >= '!' && k <= '~') || (k >= 0xa1 && k <= 0xac) || k >= 0xae;
        if (k == b)
            return visible ? (uint32_t)b : next;
        next += !visible;
    }
    return 0;
}

struct small small_new(const char *model, const char *pre)
{
    struct small s = {.source = gr_vocab_source_new(model)};
    s.source.pre = (struct gr_str){pre, strlen(pre)};
    return s;
}

static void add_str(struct gr_vec *v, const char *p, size_t n)
{
    struct gr_str s = {gr_strndup(p, n), n};
    cr_assert(s.p && !gr_vec_append(v, &s, 1, sizeof s));
}

int32_t small_token_n(struct small *s, const char *text, size_t n, float score,
                      enum gr_token_type type)
{
    int32_t t = (int32_t)type;
    add_str(&s->tokens, text, n);
    cr_assert(!gr_vec_append(&s->scores, &score, 1, sizeof score));
    cr_assert(!gr_vec_append(&s->types, &t, 1, sizeof t));
    return (int32_t)s->tokens.n - 1;
}

int32_t small_token(struct small *s, const char *text, float score, enum gr_token_type type)
{
    return small_token_n(s, text, strlen(text), score, type);
}

void small_merge(struct small *s, const char *left, size_t n_left, const char *right,
                 size_t n_right)
{
    char text[512];
    memcpy(text, left, n_left);
    text[n_left] = ' ';
    memcpy(text + n_left + 1, right, n_right);
    add_str(&s->merges, text, n_left + 1 + n_right);
}

void small_bytes(struct small *s, bool letters)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        size_t n = letters ? gr_utf8_put(letter(b), text)
                           : (size_t)snprintf(text, sizeof text, "<0x%02X>", b);
        small_token_n(s, text, n, 0, letters ? GR_TOKEN_NORMAL : GR_TOKEN_BYTE);
    }
}

const struct gr_vocab_source *small_source(struct small *s)
{
    static const struct gr_str none;
    s->source.tokens = s->tokens.data, s->source.n_tok = s->tokens.n;
    s->source.scores = s->scores.data, s->source.n_scores = s->scores.n;
    s->source.types = s->types.data, s->source.n_types = s->types.n;
    s->source.merges = s->merges.n ? s->merges.data : &none, s->source.n_merges = s->merges.n;
    return &s->source;
}

struct gr_vocab *small_open(struct small *s)
{
    struct gr_vocab *v;
    int rc = gr_vocab_open_source(&v, small_source(s));
    cr_assert_eq(rc, 0, "%s", gr_error());
    return v;
}

void small_fini(struct small *s)
{
    for (size_t i = 0; i < s->tokens.n; i++)
        gr_free((void *)(uintptr_t)((struct gr_str *)s->tokens.data)[i].p);
    for (size_t i = 0; i < s->merges.n; i++)
        gr_free((void *)(uintptr_t)((struct gr_str *)s->merges.data)[i].p);
    gr_vec_fini(&s->tokens);
    gr_vec_fini(&s->merges);
    gr_vec_fini(&s->scores);
    gr_vec_fini(&s->types);
}

struct gr_vec tokenize(const struct gr_vocab *v, const char *text, size_t n, bool add_special,
                       bool parse_special)
{
    struct gr_vec ids = {0};
    int rc = gr_tokenize(v, text, n, add_special, parse_special, &ids);
    cr_assert_eq(rc, 0, "%s", gr_error());
    return ids;
}

void expect_ids(const struct gr_vocab *v, const char *text, const int32_t *ids, size_t n)
{
    struct gr_vec got = tokenize(v, text, strlen(text), false, false);
    char list[512] = "";
    for (size_t i = 0, k = 0; i < got.n && k < sizeof list - 16; i++)
        k += (size_t)snprintf(list + k, sizeof list - k, " %d", ((int32_t *)got.data)[i]);
    cr_assert(got.n == n && (!n || !memcmp(got.data, ids, n * sizeof *ids)), "%s:%s",
              gr_quote(text, strlen(text)), list);
    gr_vec_fini(&got);
}

char *pieces(const struct gr_vocab *v, const struct gr_vec *ids, bool special, size_t *n)
{
    struct gr_vec out = {0};
    for (size_t i = 0; i < ids->n; i++) {
        const char *p;
        size_t len;
        cr_assert_eq(gr_vocab_piece(v, ((int32_t *)ids->data)[i], special, &p, &len), 0);
        cr_assert_eq(gr_vec_append(&out, p, len, 1), 0);
    }
    *n = out.n;
    cr_assert_eq(gr_vec_append(&out, "", 1, 1), 0);
    return out.data;
}

const char *shared_path(const char *name)
{
    static char path[1024];
    const char *root = getenv("GPURUN_SHARED");
    if (root && *root)
        snprintf(path, sizeof path, "%s/%s", root, name);
    else
        snprintf(path, sizeof path, "%s/../shared/%s", GR_SOURCE_DIR, name);
    return access(path, R_OK) ? NULL : path;
}

struct gr_vocab *shared_vocab(const char *name)
{
    char file[128];
    struct gr_gguf *g;
    struct gr_vocab *v;
    snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf", name);
    const char *path = shared_path(file);
    if (!path)
        cr_skip_test("%s is not there", file);
    cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
    cr_assert_eq(gr_vocab_open(&v, g), 0, "%s", gr_error());
    gr_gguf_close(&g);
    return v;
}

size_t random_text(struct gr_rng *r, char *out, size_t most, bool broken)
{
    static const uint32_t range[][2] = {{' ', ' '},       {'a', 'e'},         {'a', 'z'},
                                        {'A', 'Z'},       {'0', '9'},         {1, 0x7f},
                                        {0x80, 0x7ff},    {0x300, 0x345},     {0x4e00, 0x4e40},
                                        {0xac00, 0xd7a3}, {0x1f600, 0x1f64f}, {'\n', '\n'}};
    size_t n = 0, want = gr_rng_below(r, (uint32_t)most + 1);
    while (n + 4 <= want) {
        size_t run = 1 + gr_rng_below(r, 4), k = gr_rng_below(r, GR_COUNT(range));
        for (size_t i = 0; i < run && n + 4 <= want; i++) {
            if (broken && !gr_rng_below(r, 12))
                out[n++] = (char)(0x80 + gr_rng_below(r, 0x80));
            else
                n += gr_utf8_put(range[k][0] + gr_rng_below(r, range[k][1] - range[k][0] + 1),
                                 out + n);
        }
    }
    return n;
}
