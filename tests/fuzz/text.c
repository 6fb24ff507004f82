/* Any bytes as a vocabulary and a text: the vocabulary is refused in one line, or the text becomes
 * ids that exist, none but the unknown one a control token unless asked for, and the ids become
 * UTF-8 again; all memory is given back.
 *
 * Input: model, pre-tokenizer, flags, number of tokens, merges and bytes of charsmap; then the
 * tokens (length and type in one byte, score, text), merges (two token numbers each), the map, and
 * what is left is the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gr/status.h"
#include "text/pre.h"
#include "text/utf8.h"
#include "text/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define MAX_TOKENS 512
#define MAX_MERGES 64

struct input {
    const uint8_t *p, *end;
};

static uint8_t take(struct input *in)
{
    return in->p < in->end ? *in->p++ : 0;
}

static struct gr_str take_bytes(struct input *in, size_t n)
{
    size_t left = (size_t)(in->end - in->p);
    struct gr_str s = {(const char *)in->p, n < left ? n : left};
    in->p += s.n;
    return s;
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken promise: %s: %s\n", what, gr_error());
    abort();
}

/* The 256 letters of a byte-level vocabulary, so that half of the inputs have one that works. */
static size_t letters(struct gr_str *tokens, char text[256][4])
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        tokens[b] = (struct gr_str){text[b], gr_utf8_put(visible ? b : next, text[b])};
        next += !visible;
    }
    return 256;
}

static bool is_raw(const char *pre)
{
    return pre && (!strcmp(pre, "gemma4") || !strcmp(pre, "sarvam-moe") ||
                   !strcmp(pre, "granite-embed-multi-311m") || !strcmp(pre, "whitespace"));
}

static void check_text(const struct gr_vocab *v, struct gr_str text, bool keeps, bool parse)
{
    struct gr_vec ids = {0}, out = {0};
    struct gr_vocab_detok d;
    size_t bytes = 0;
    int rc = gr_tokenize(v, text.p, text.n, false, parse, &ids);
    must(rc == 0 || rc == GR_E_TOO_LARGE, "a text becomes ids");
    must(!rc || ids.n == 0, "or none");
    if (rc) {
        gr_vec_fini(&ids);
        return;
    }
    gr_vocab_detok_init(&d, v, true, false);
    for (size_t i = 0; i < ids.n; i++) {
        const char *p;
        size_t n;
        int32_t id = ((int32_t *)ids.data)[i];
        must(gr_vocab_piece(v, id, true, &p, &n) == 0, "ids exist");
        must(parse || id == gr_vocab_special(v, GR_SPECIAL_UNK) ||
                 gr_vocab_type(v, id) != GR_TOKEN_CONTROL,
             "text makes no control token");
        must(!keeps || (n <= text.n - bytes && !memcmp(p, text.p + bytes, n)),
             "no byte is changed");
        bytes += n;
        must(gr_vocab_detok_push(&d, id, &out) == 0, "ids become text");
    }
    must(!keeps || bytes == text.n, "no byte is lost");
    must(gr_vocab_detok_flush(&d, &out) == 0, "and its end");
    uint32_t cp;
    for (size_t i = 0; i < out.n;) {
        int k = gr_utf8_next((char *)out.data + i, out.n - i, &cp);
        must(k > 0, "the text is UTF-8");
        i += (size_t)k;
    }
    gr_vec_fini(&ids);
    gr_vec_fini(&out);
}

/* The vocabulary of an input, in static memory. */
static struct gr_str tokens[MAX_TOKENS], merges[MAX_MERGES];
static float scores[MAX_TOKENS];
static int32_t types[MAX_TOKENS];

static void take_tokens(struct input *in, struct gr_vocab_source *s, size_t n)
{
    for (size_t i = 0; i < s->n_tok; i++)
        types[i] = GR_TOKEN_NORMAL, scores[i] = -1;
    for (; n-- > 0; s->n_tok++) {
        uint8_t how = take(in);
        types[s->n_tok] = how & 7;
        scores[s->n_tok] = (int8_t)take(in);
        tokens[s->n_tok] = take_bytes(in, how >> 3);
    }
    s->tokens = tokens;
    s->scores = scores, s->n_scores = s->n_tok;
    s->types = types, s->n_types = s->n_tok;
}

static void take_merges(struct input *in, struct gr_vocab_source *s, size_t n)
{
    static char text[MAX_MERGES][72];
    s->merges = merges;
    for (size_t i = 0; i < n && s->n_tok; i++) {
        struct gr_str left = tokens[take(in) % s->n_tok], right = tokens[take(in) % s->n_tok];
        if (left.n)
            memcpy(text[i], left.p, left.n);
        text[i][left.n] = ' ';
        if (right.n)
            memcpy(text[i] + left.n + 1, right.p, right.n);
        merges[s->n_merges++] = (struct gr_str){text[i], left.n + 1 + right.n};
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char *const models[] = {"llama", "gpt2",       "gemma4",    "bert", "t5",
                                         "none",  "whitespace", "hybriddna", "rwkv", "plamo2"};
    static char letter[256][4];
    struct input in = {p, p + n};
    struct gr_vocab_source s = gr_vocab_source_new(models[take(&in) % 10]);
    const char *pre = gr_pre_name(take(&in));
    uint8_t flags = take(&in), n_tok = take(&in), n_merges = take(&in), n_map = take(&in);
    size_t before = gr_alloc_held(NULL);

    s.pre = pre ? (struct gr_str){pre, strlen(pre)} : (struct gr_str){"?", 1};
    s.n_tok = flags & 1 ? letters(tokens, letter) : 0;
    take_tokens(&in, &s, n_tok);
    take_merges(&in, &s, n_merges % MAX_MERGES);
    struct gr_str map = take_bytes(&in, n_map);
    s.charsmap = (const uint8_t *)map.p, s.charsmap_bytes = map.n;
    s.add_space_prefix = flags >> 1 & 1, s.remove_extra_whitespaces = flags >> 2 & 1;
    s.lowercase = flags >> 3 & 1, s.strip_accents = flags >> 4 & 1;

    struct gr_vocab *v;
    int rc = gr_vocab_open_source(&v, &s);
    must(rc == 0 || rc == GR_E_CORRUPT || rc == GR_E_UNSUPPORTED, "bad bytes are a bad vocabulary");
    must(!v == (rc != 0) && (rc == 0 || !strchr(gr_error(), '\n')), "a vocabulary, or one line");
    bool letters_only = v && flags & 1 && gr_str_is(s.model, "gpt2") && !is_raw(pre);
    if (v && gr_vocab_kind(v) != GR_VOCAB_NONE)
        check_text(v, take_bytes(&in, SIZE_MAX), letters_only, flags >> 5 & 1);
    gr_vocab_close(&v);
    must(gr_alloc_held(NULL) == before, "all memory is given back");
    return 0;
}
