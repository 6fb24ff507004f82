#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"
#include "text/charsmap.h"
#include "text/pre.h"
#include "text/text_impl.h"
#include "text/utf8.h"

#define K(name) "tokenizer.ggml." name
typedef unsigned long long ull;

static const char *const special_key[GR_N_SPECIAL] = {
#define SPECIAL(NAME, field, key) K(key),
#include "text/special.def"
};

static const struct end {
    const char *text;
    bool sure, turn;
} ends[] = {
#define END(text, sure, turn) {text, sure, turn},
#include "text/special.def"
};

/* Tokenizers by the name in the file. */
static const struct model {
    const char *name;
    enum gr_vocab_kind kind;
    enum gr_blanks blanks;
    bool scores;
    int32_t bos, eos, unk, sep, pad;
    bool add_bos, add_eos, add_space_prefix;
    const char *meaning;
} models[] = {
#define TOKENIZER(name, KIND, ...) {name, GR_VOCAB_##KIND, __VA_ARGS__},
#include "text/kinds.def"
};

const char *gr_vocab_kind_name(size_t i)
{
    return i < GR_COUNT(models) ? models[i].name : NULL;
}

const char *gr_vocab_kind_meaning(size_t i)
{
    return i < GR_COUNT(models) ? models[i].meaning : NULL;
}

struct gr_vocab_source gr_vocab_source_new(const char *model)
{
    struct gr_vocab_source s = {.model = {model, strlen(model)}};
    for (int i = 0; i < GR_N_SPECIAL; i++)
        s.special[i] = GR_ID_UNSET;
    s.add_bos = s.add_eos = s.add_sep = s.add_space_prefix = s.remove_extra_whitespaces = -1;
    s.lowercase = s.strip_accents = -1;
    return s;
}

/* --- tokens: text, score, type --- */

static int check_counts(const struct gr_vocab_source *s, const struct model *m)
{
    if (!s->tokens)
        return gr_fail(GR_E_CORRUPT, K("tokens") " is missing");
    if (!s->n_tok || s->n_tok > GR_VOCAB_MAX_TOKENS)
        return gr_fail(GR_E_CORRUPT, K("tokens") ": %llu items, expected 1 to %u", (ull)s->n_tok,
                       GR_VOCAB_MAX_TOKENS);
    if (m->scores && !s->scores)
        return gr_fail(GR_E_CORRUPT, K("scores") " is missing; tokenizer \"%s\" needs it", m->name);
    if (s->scores && s->n_scores != s->n_tok)
        return gr_fail(GR_E_CORRUPT, K("scores") ": %llu items, but %llu tokens", (ull)s->n_scores,
                       (ull)s->n_tok);
    if (s->types && s->n_types != s->n_tok)
        return gr_fail(GR_E_CORRUPT, K("token_type") ": %llu items, but %llu tokens",
                       (ull)s->n_types, (ull)s->n_tok);
    return 0;
}

/* Copies the texts into one buffer. */
static int load_texts(struct gr_vocab *v, const struct gr_vocab_source *s)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < s->n_tok; i++) {
        total += s->tokens[i].n;
        if (s->tokens[i].n > GR_VOCAB_MAX_TOKEN_BYTES || total > GR_VOCAB_MAX_TEXT_BYTES)
            return gr_fail(
                GR_E_CORRUPT,
                K("tokens") ": token %llu has %zu bytes; one may have %u, all together %u", (ull)i,
                s->tokens[i].n, GR_VOCAB_MAX_TOKEN_BYTES, GR_VOCAB_MAX_TEXT_BYTES);
    }
    v->text.pool = gr_calloc(total, 1);
    v->text.off = gr_calloc(s->n_tok + 1, sizeof *v->text.off);
    if (!v->text.pool || !v->text.off)
        return GR_E_NOMEM_HOST;
    for (uint64_t i = 0; i < s->n_tok; i++) {
        if (s->tokens[i].n)
            memcpy(v->text.pool + v->text.off[i], s->tokens[i].p, s->tokens[i].n);
        v->text.off[i + 1] = v->text.off[i] + (uint32_t)s->tokens[i].n;
    }
    return 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* Returns the byte of a token <0xHH>, or -1. */
static int byte_of(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex(p[3]) < 0 || hex(p[4]) < 0)
        return -1;
    return hex(p[3]) * 16 + hex(p[4]);
}

static int load_byte(struct gr_vocab *v, int32_t i)
{
    size_t n;
    const char *p = gr_texts_at(&v->text, i, &n);
    int b = byte_of(p, n);
    if (b < 0)
        return gr_fail(GR_E_CORRUPT,
                       K("tokens") ": token %d is a byte but its text is %s, not <0x00> to <0xFF>",
                       i, gr_quote(p, n));
    if (v->byte_id[b] >= 0)
        return gr_fail(GR_E_CORRUPT, K("tokens") ": tokens %d and %d are both byte %d",
                       v->byte_id[b], i, b);
    v->byte_id[b] = i;
    return 0;
}

static int load_tokens(struct gr_vocab *v, const struct gr_vocab_source *s)
{
    v->type = gr_calloc(s->n_tok, 1);
    v->flags = gr_calloc(s->n_tok, 1);
    v->score = gr_calloc(s->n_tok, sizeof *v->score);
    int rc = v->type && v->flags && v->score ? load_texts(v, s) : GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < v->n_tok && !rc; i++) {
        int32_t type = s->types ? s->types[i] : GR_TOKEN_NORMAL;
        v->score[i] = s->scores ? s->scores[i] : 0;
        v->type[i] = (uint8_t)type;
        if (type < 0 || type >= GR_TOKEN_N_TYPE)
            rc = gr_fail(GR_E_CORRUPT, K("token_type") ": token %d has type %d, expected 0 to %d",
                         i, type, GR_TOKEN_N_TYPE - 1);
        else if (!isfinite(v->score[i]))
            rc = gr_fail(GR_E_CORRUPT, K("scores") ": token %d has the score %g", i,
                         (double)v->score[i]);
        else if (type == GR_TOKEN_BYTE)
            rc = load_byte(v, i);
    }
    return rc;
}

/* --- tries --- */

/* Builds the trie of all tokens with a text, or of the added ones among them. */
static int build_trie(struct gr_vocab *v, bool added, struct gr_trie *t)
{
    int32_t *ids = gr_calloc((size_t)v->n_tok, sizeof *ids), equal[2];
    size_t n = 0;
    if (!ids)
        return GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < v->n_tok; i++) {
        bool is_added = v->type[i] == GR_TOKEN_CONTROL || v->type[i] == GR_TOKEN_UNKNOWN ||
                        v->type[i] == GR_TOKEN_USER_DEFINED;
        if (v->text.off[i + 1] > v->text.off[i] && (is_added || !added))
            ids[n++] = i;
    }
    int rc = gr_trie_build(t, &v->text, ids, n, equal);
    if (rc == GR_E_CORRUPT) {
        size_t len;
        const char *p = gr_texts_at(&v->text, equal[0], &len);
        (void)gr_fail(rc, K("tokens") ": tokens %d and %d are both %s", equal[0], equal[1],
                      gr_quote(p, len));
    }
    gr_free(ids);
    return rc;
}

/* Finds the single-byte tokens of a byte-level vocabulary. */
static void find_letters(struct gr_vocab *v)
{
    for (int b = 0; b < 256; b++) {
        char utf8[4];
        size_t n = gr_utf8_put(gr_byte_letter((uint8_t)b), utf8);
        int32_t id = gr_trie_find(&v->trie, utf8, n);
        v->byte_id[b] = id >= 0 && gr_token_from_text(v, id) ? id : -1;
    }
}

/* --- special tokens --- */

static int load_special(struct gr_vocab *v, const struct gr_vocab_source *s, const struct model *m)
{
    int32_t usual[GR_N_SPECIAL];
    for (int i = 0; i < GR_N_SPECIAL; i++)
        usual[i] = -1;
    usual[GR_SPECIAL_BOS] = m->bos, usual[GR_SPECIAL_EOS] = m->eos, usual[GR_SPECIAL_UNK] = m->unk;
    usual[GR_SPECIAL_SEP] = m->sep, usual[GR_SPECIAL_PAD] = m->pad;
    if (m->kind == GR_VOCAB_WORDPIECE)
        usual[GR_SPECIAL_CLS] = usual[GR_SPECIAL_BOS],
        usual[GR_SPECIAL_EOS] = usual[GR_SPECIAL_BOS] = -1;
    for (int i = 0; i < GR_N_SPECIAL; i++) {
        int64_t id = s->special[i] != GR_ID_UNSET ? s->special[i]
                     : usual[i] < v->n_tok        ? usual[i]
                                                  : -1;
        if (s->special[i] != GR_ID_UNSET && (id < 0 || id >= v->n_tok))
            return gr_fail(GR_E_CORRUPT, "%s is %lld, but there are %d tokens", special_key[i],
                           (long long)id, v->n_tok);
        v->special[i] = (int32_t)id;
    }
    return 0;
}

/* Sets a special token that the file does not name. */
static void adopt(struct gr_vocab *v, enum gr_special which, int32_t id)
{
    if (v->special[which] < 0)
        v->special[which] = id;
}

/* Marks end-of-generation tokens: by role, and by text. */
static void mark_ends(struct gr_vocab *v)
{
    for (size_t k = 0; k < GR_COUNT(ends); k++) {
        int32_t id = gr_trie_find(&v->trie, ends[k].text, strlen(ends[k].text));
        bool added =
            id >= 0 && (v->type[id] == GR_TOKEN_CONTROL || v->type[id] == GR_TOKEN_USER_DEFINED);
        if (id < 0 || (!ends[k].sure && !added))
            continue;
        v->type[id] = GR_TOKEN_CONTROL;
        v->flags[id] |= GR_FLAG_EOG;
        if (ends[k].turn)
            adopt(v, GR_SPECIAL_EOT, id);
    }
    static const enum gr_special roles[] = {GR_SPECIAL_EOS,     GR_SPECIAL_EOT,
                                            GR_SPECIAL_EOM,     GR_SPECIAL_FIM_PAD,
                                            GR_SPECIAL_FIM_REP, GR_SPECIAL_FIM_SEP};
    for (size_t k = 0; k < GR_COUNT(roles); k++)
        if (v->special[roles[k]] >= 0)
            v->flags[v->special[roles[k]]] |= GR_FLAG_EOG;
}

static int32_t end_id(const struct gr_vocab *v, const char *text)
{
    int32_t id = gr_trie_find(&v->trie, text, strlen(text));
    return id >= 0 && v->flags[id] & GR_FLAG_EOG ? id : -1;
}

/* Unmarks ends that are an ordinary part of messages in some formats, and makes tokens visible that
 * must be shown. */
static void unmark_ends(struct gr_vocab *v)
{
    static const char *const shown[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};
    int32_t end = end_id(v, "<|end|>"), s = end_id(v, "</s>");
    bool harmony = end_id(v, "<|return|>") >= 0 && end_id(v, "<|call|>") >= 0;
    bool solar = end_id(v, "<|calls|>") >= 0 && end_id(v, "<|flush|>") >= 0;
    if (end >= 0 && (harmony || solar))
        v->flags[end] &= (uint8_t)~GR_FLAG_EOG, v->type[end] = GR_TOKEN_USER_DEFINED;
    if (s >= 0 && (end_id(v, "<|tool_response>") >= 0 || end_id(v, "<|plamo:eos|>") >= 0))
        v->flags[s] &= (uint8_t)~GR_FLAG_EOG, v->type[s] = GR_TOKEN_NORMAL;
    for (size_t k = 0; k < GR_COUNT(shown); k++) {
        int32_t id = gr_trie_find(&v->trie, shown[k], strlen(shown[k]));
        if (id >= 0)
            v->type[id] = GR_TOKEN_USER_DEFINED;
    }
}

static int flag(int8_t said, bool usual)
{
    return said < 0 ? usual : said;
}

/* Loads the tokens that add_special puts around a text. */
static int load_ends_of_text(struct gr_vocab *v, const struct gr_vocab_source *s,
                             const struct model *m)
{
    bool wordpiece = v->kind == GR_VOCAB_WORDPIECE;
    unsigned pre = v->pre ? gr_pre_flags(v->pre) : 0;
    bool bos = m->add_bos || pre & (GR_PRE_BOS | GR_PRE_ALWAYS_BOS);
    bool always = pre & GR_PRE_ALWAYS_BOS;
    if (wordpiece)
        adopt(v, GR_SPECIAL_CLS, v->special[GR_SPECIAL_BOS]);
    int32_t first = v->special[wordpiece ? GR_SPECIAL_CLS : GR_SPECIAL_BOS];
    int32_t last = v->special[wordpiece ? GR_SPECIAL_SEP : GR_SPECIAL_EOS];
    if (s->add_bos == 1 && first < 0)
        return gr_fail(GR_E_CORRUPT,
                       K("add_bos_token") " is true, but " K("bos_token_id") " is missing");
    if (s->add_eos == 1 && last < 0)
        return gr_fail(GR_E_CORRUPT,
                       K("add_eos_token") " is true, but " K("eos_token_id") " is missing");
    v->first = always || flag(s->add_bos, bos) ? first : -1;
    v->last = flag(wordpiece ? s->add_sep : s->add_eos, m->add_eos) ? last : -1;
    return 0;
}

/* Returns whether the name contains the word, ignoring case. */
static bool contains(struct gr_str s, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.n; i++)
        if (!strncasecmp(s.p + i, word, n))
            return true;
    return false;
}

/* Marks added tokens that strip adjacent blanks, a property that GGUF files do not store. */
static void mark_strips(struct gr_vocab *v, const struct gr_vocab_source *s)
{
    bool phi3 = contains(s->name, "phi-3") || contains(s->name, "phi3");
    for (int32_t i = 0; i < v->n_tok && phi3; i++) {
        size_t n;
        const char *p = gr_texts_at(&v->text, i, &n);
        struct gr_str t = {p, n};
        bool plain = gr_str_is(t, "<unk>") || gr_str_is(t, "<s>") || gr_str_is(t, "<|endoftext|>");
        if ((v->type[i] == GR_TOKEN_CONTROL || v->type[i] == GR_TOKEN_USER_DEFINED) && !plain)
            v->flags[i] |= GR_FLAG_RSTRIP;
    }
    const char *mask = contains(s->pre, "jina-v2-") || contains(s->arch, "nomic-bert-moe") ||
                               contains(s->arch, "jina-bert-v3")
                           ? "<mask>"
                       : contains(s->name, "modern-bert") ? "[MASK]"
                                                          : NULL;
    int32_t id = mask ? gr_trie_find(&v->trie, mask, strlen(mask)) : -1;
    if (id >= 0)
        v->flags[id] |= GR_FLAG_LSTRIP;
}

/* --- pieces --- */

/* Decodes the letters of a byte-level token to bytes; false when a character stands for no byte. */
static bool decode_letters(const char *p, size_t n, char *out, size_t *n_out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = gr_utf8_next(p + i, n - i, &cp), b = len > 0 ? gr_letter_byte(cp) : -1;
        if (b < 0)
            return false;
        out[k++] = (char)b;
        i += (size_t)len;
    }
    *n_out = k;
    return true;
}

/* Copies p[0, n) with a blank for each U+2581; returns the length. */
static size_t decode_blanks(const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        bool blank = n - i >= GR_SPACE_BYTES && !memcmp(p + i, GR_SPACE, GR_SPACE_BYTES);
        out[k++] = blank ? ' ' : p[i];
        i += blank ? GR_SPACE_BYTES : 1;
    }
    return k;
}

/* Writes the bytes that an ordinary token p[0, n) stands for to out, never more than n; returns
 * their number. */
static size_t decode(const struct gr_vocab *v, const char *p, size_t n, char *out)
{
    size_t k;
    if (v->dna.open >= 0)
        n = gr_dna_strip(p, n);
    if (v->blanks == GR_MARKS)
        return decode_blanks(p, n, out);
    if (v->blanks == GR_ESCAPES)
        return gr_rwkv_unescape(p, n, out);
    if (v->blanks == GR_LETTERS && decode_letters(p, n, out, &k))
        return k;
    memcpy(out, p, n);
    return n;
}

/* Computes the bytes that each token stands for; never more than its text has. */
static int load_pieces(struct gr_vocab *v)
{
    v->piece.pool = gr_calloc(v->text.off[v->n_tok], 1);
    v->piece.off = gr_calloc((size_t)v->n_tok + 1, sizeof *v->piece.off);
    if (!v->piece.pool || !v->piece.off)
        return GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < v->n_tok; i++) {
        size_t n, k;
        const char *p = gr_texts_at(&v->text, i, &n);
        char *out = v->piece.pool + v->piece.off[i];
        bool words = v->type[i] == GR_TOKEN_NORMAL || v->type[i] == GR_TOKEN_UNUSED ||
                     v->type[i] == GR_TOKEN_UNDEFINED;
        if (v->type[i] == GR_TOKEN_BYTE)
            out[0] = (char)byte_of(p, n), k = 1;
        else if (words)
            k = decode(v, p, n, out);
        else
            memcpy(out, p, n), k = n;
        v->piece.off[i + 1] = v->piece.off[i] + (uint32_t)k;
    }
    return 0;
}

/* --- open and close --- */

static int open_none(struct gr_vocab *v, const struct gr_vocab_source *s)
{
    if (s->n_tok > GR_VOCAB_MAX_TOKENS)
        return gr_fail(GR_E_CORRUPT, "vocabulary of %llu tokens, more than %u", (ull)s->n_tok,
                       GR_VOCAB_MAX_TOKENS);
    v->kind = GR_VOCAB_NONE;
    v->n_tok = (int32_t)s->n_tok;
    v->first = v->last = -1;
    for (int i = 0; i < GR_N_SPECIAL; i++)
        v->special[i] = -1;
    return 0;
}

static int open_pre(struct gr_vocab *v, const struct gr_vocab_source *s, const struct model *m)
{
    bool named = m->blanks != GR_LETTERS; /* the pre-tokenizer has the tokenizer's own name */
    if (!s->pre.n && !named)
        gr_log(GR_LOG_WARN, K("pre") " is missing: words are cut as \"default\" cuts them, which "
                                     "few models expect");
    return gr_pre_open(&v->pre,
                       !s->pre.n && named ? (struct gr_str){m->name, strlen(m->name)} : s->pre);
}

static int open_text(struct gr_vocab *v, const struct gr_vocab_source *s, const struct model *m)
{
    int rc = check_counts(s, m);
    if (rc)
        return rc;
    v->kind = m->kind;
    v->n_tok = (int32_t)s->n_tok;
    memset(v->byte_id, -1, sizeof v->byte_id);
    v->dna.open = -1;
    rc = load_tokens(v, s);
    if (!rc && m->kind == GR_VOCAB_BPE)
        rc = open_pre(v, s, m);
    bool raw = v->pre && gr_pre_flags(v->pre) & GR_PRE_RAW;
    v->blanks = raw ? GR_MARKS : m->blanks;
    v->raw = v->blanks != GR_LETTERS;
    v->add_space_prefix = flag(s->add_space_prefix, m->add_space_prefix);
    v->remove_extra_whitespaces = flag(s->remove_extra_whitespaces, false);
    v->lowercase = flag(s->lowercase, m->kind == GR_VOCAB_WORDPIECE);
    v->strip_accents = flag(s->strip_accents, v->lowercase);
    if (!rc)
        rc = build_trie(v, false, &v->trie);
    if (!rc && !v->raw)
        find_letters(v);
    if (!rc)
        rc = load_special(v, s, m);
    if (rc)
        return rc;
    mark_ends(v);
    unmark_ends(v);
    mark_strips(v, s);
    if (gr_str_is(s->model, "hybriddna"))
        gr_dna_open(v);
    rc = load_ends_of_text(v, s, m);
    if (!rc)
        rc = load_pieces(v);
    return rc ? rc : build_trie(v, true, &v->added);
}

static int open_algorithm(struct gr_vocab *v, const struct gr_vocab_source *s)
{
    switch (v->kind) {
    case GR_VOCAB_BPE:
        return gr_bpe_open(v, s);
    case GR_VOCAB_RWKV:
        return gr_rwkv_open(v);
    case GR_VOCAB_PLAMO:
        return gr_plamo_open(v);
    case GR_VOCAB_UNIGRAM:
        gr_unigram_open(v);
        return s->charsmap_bytes ? gr_charsmap_open(&v->charsmap, s->charsmap, s->charsmap_bytes)
                                 : 0;
    case GR_VOCAB_SPM:
    case GR_VOCAB_WORDPIECE:
    case GR_VOCAB_HASH:
    case GR_VOCAB_NONE:
        break;
    }
    return 0;
}

static int unknown_model(struct gr_str name)
{
    char known[256] = "";
    for (size_t i = 0, n = 0; i < GR_COUNT(models) && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s, ", models[i].name);
    return gr_fail(GR_E_UNSUPPORTED, K("model") ": unknown tokenizer %s; known are %snone",
                   gr_quote(name.p, name.n), known);
}

int gr_vocab_open_source(struct gr_vocab **out, const struct gr_vocab_source *s)
{
    const struct model *m = NULL;
    bool none = gr_str_is(s->model, "none") || gr_str_is(s->model, "no_vocab");
    *out = NULL;
    for (size_t i = 0; i < GR_COUNT(models); i++)
        if (gr_str_is(s->model, models[i].name))
            m = &models[i];
    if (!m && !none)
        return unknown_model(s->model);
    struct gr_vocab *v = gr_calloc(1, sizeof *v);
    if (!v)
        return GR_E_NOMEM_HOST;
    int rc = none ? open_none(v, s) : open_text(v, s, m);
    if (!rc && !none)
        rc = open_algorithm(v, s);
    if (rc)
        gr_vocab_close(&v);
    *out = v;
    return rc;
}

void gr_vocab_close(struct gr_vocab **v)
{
    if (!*v)
        return;
    gr_free((*v)->text.pool);
    gr_free((*v)->text.off);
    gr_free((*v)->piece.pool);
    gr_free((*v)->piece.off);
    gr_free((*v)->type);
    gr_free((*v)->flags);
    gr_free((*v)->score);
    gr_trie_fini(&(*v)->trie);
    gr_trie_fini(&(*v)->added);
    gr_trie_fini(&(*v)->bytes);
    gr_bpe_free(&(*v)->bpe);
    gr_pre_free(&(*v)->pre);
    gr_charsmap_free(&(*v)->charsmap);
    gr_free(*v);
    *v = NULL;
}

/* --- properties --- */

static bool has_text(const struct gr_vocab *v, int32_t id)
{
    return v->kind != GR_VOCAB_NONE && id >= 0 && id < v->n_tok;
}

enum gr_vocab_kind gr_vocab_kind(const struct gr_vocab *v)
{
    return v->kind;
}

int32_t gr_vocab_size(const struct gr_vocab *v)
{
    return v->n_tok;
}

int32_t gr_vocab_special(const struct gr_vocab *v, enum gr_special which)
{
    return v->special[which];
}

bool gr_vocab_adds_bos(const struct gr_vocab *v)
{
    return v->first >= 0;
}

bool gr_vocab_adds_eos(const struct gr_vocab *v)
{
    return v->last >= 0;
}

bool gr_vocab_is_eog(const struct gr_vocab *v, int32_t id)
{
    return has_text(v, id) && v->flags[id] & GR_FLAG_EOG;
}

struct gr_str gr_vocab_text(const struct gr_vocab *v, int32_t id)
{
    struct gr_str s = {"", 0};
    if (has_text(v, id))
        s.p = gr_texts_at(&v->text, id, &s.n);
    return s;
}

float gr_vocab_score(const struct gr_vocab *v, int32_t id)
{
    return has_text(v, id) ? v->score[id] : 0;
}

enum gr_token_type gr_vocab_type(const struct gr_vocab *v, int32_t id)
{
    return has_text(v, id) ? (enum gr_token_type)v->type[id] : GR_TOKEN_UNDEFINED;
}

int32_t gr_vocab_find(const struct gr_vocab *v, const char *text, size_t n)
{
    return v->kind != GR_VOCAB_NONE && n ? gr_trie_find(&v->trie, text, n) : -1;
}

int gr_vocab_piece(const struct gr_vocab *v, int32_t id, bool special, const char **p, size_t *n)
{
    *p = "", *n = 0;
    if (id < 0 || id >= v->n_tok)
        return gr_fail(GR_E_INVALID, "token %d is not in the vocabulary of %d tokens", id,
                       v->n_tok);
    if (v->kind == GR_VOCAB_NONE)
        return 0;
    if (special || (v->type[id] != GR_TOKEN_CONTROL && v->type[id] != GR_TOKEN_UNKNOWN))
        *p = gr_texts_at(&v->piece, id, n);
    return 0;
}
