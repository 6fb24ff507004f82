/* The vocabulary of a model and its tokenizer: text to token ids and back.
 *
 * `tokenizer.ggml.model` selects the algorithm; kinds.def lists the names. "none" has a number of
 * tokens and no text. An open vocabulary is consistent: every id it returns is in [0, size), every
 * array has one item per token.
 *
 * Immutable once open: any number of threads may use one vocabulary. Time is O(n log n) in the
 * length of the text, for any text and vocabulary; nothing recurses. Text is bytes: invalid UTF-8
 * becomes byte tokens where the vocabulary has them. */
#ifndef GR_TEXT_VOCAB_H
#define GR_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "gguf/gguf.h"
#include "gr/prompt.h"

struct gr_vocab;

enum gr_vocab_kind {
    GR_VOCAB_NONE,
    GR_VOCAB_SPM,
    GR_VOCAB_BPE,
    GR_VOCAB_WORDPIECE,
    GR_VOCAB_UNIGRAM,
    GR_VOCAB_RWKV,
    GR_VOCAB_PLAMO,
    GR_VOCAB_HASH
};

/* Type of a token; the numbers are those of `tokenizer.ggml.token_type`. */
enum gr_token_type {
    GR_TOKEN_UNDEFINED,
    GR_TOKEN_NORMAL,
    GR_TOKEN_UNKNOWN,
    GR_TOKEN_CONTROL,      /* never made from text, except with parse_special */
    GR_TOKEN_USER_DEFINED, /* matched in the text before ordinary tokens */
    GR_TOKEN_UNUSED,
    GR_TOKEN_BYTE, /* its text is <0xHH> */
    GR_TOKEN_N_TYPE
};

enum gr_special {
#define SPECIAL(NAME, field, key) GR_SPECIAL_##NAME,
#include "text/special.def"
    GR_N_SPECIAL
};

/* Limits on vocabularies and texts. */
#define GR_VOCAB_MAX_TOKENS (1u << 22)
#define GR_VOCAB_MAX_MERGES (1u << 23)
#define GR_VOCAB_MAX_TOKEN_BYTES 8192u      /* of one token */
#define GR_VOCAB_MAX_TEXT_BYTES (16u << 20) /* of all tokens together */
#define GR_TOKENIZE_MAX_BYTES (256u << 20)

#define GR_ID_UNSET INT64_MIN /* in gr_vocab_source.special: the file has no such key */

/* Contents of a vocabulary as found in a file; pointers are borrowed by gr_vocab_open_source. */
struct gr_vocab_source {
    struct gr_str model; /* a name of kinds.def, or "none" */
    struct gr_str pre;   /* name of the pre-tokenizer; empty = "default" */
    struct gr_str name;  /* general.name: three model families strip blanks at special tokens */
    struct gr_str arch;  /* general.architecture */
    const struct gr_str *tokens; /* [n_tok]; not used by "none" */
    uint64_t n_tok;
    const float *scores; /* [n_scores] or NULL */
    uint64_t n_scores;
    const int32_t *types; /* [n_types] or NULL: all normal */
    uint64_t n_types;
    const struct gr_str *merges; /* [n_merges] "left right" */
    uint64_t n_merges;
    const uint8_t *charsmap; /* sentencepiece's precompiled_charsmap, or NULL */
    uint64_t charsmap_bytes;
    int64_t special[GR_N_SPECIAL]; /* GR_ID_UNSET where the file has no such key */
    /* 1, 0, or -1 where the file has no such key */
    int8_t add_bos, add_eos, add_sep, add_space_prefix, remove_extra_whitespaces, lowercase,
        strip_accents;
};

/* Name and meaning of the i-th supported tokenizer, NULL past the last one. */
const char *gr_vocab_kind_name(size_t i);
const char *gr_vocab_kind_meaning(size_t i);

/* Returns a source with every optional field unset. */
struct gr_vocab_source gr_vocab_source_new(const char *model);

/* Makes the vocabulary. GR_E_CORRUPT: the message names the key, token or merge, what was expected
 * and what was found. GR_E_UNSUPPORTED: unknown tokenizer or pre-tokenizer, with the nearest known
 * name. *out is NULL on failure. */
int gr_vocab_open_source(struct gr_vocab **out, const struct gr_vocab_source *s);
/* The same from a model file, which may be closed afterwards. */
int gr_vocab_open(struct gr_vocab **out, const struct gr_gguf *g);
/* Closes and sets *v to NULL; NULL is fine. */
void gr_vocab_close(struct gr_vocab **v);

enum gr_vocab_kind gr_vocab_kind(const struct gr_vocab *v);
int32_t gr_vocab_size(const struct gr_vocab *v);
/* Returns the id of a special token, or -1. */
int32_t gr_vocab_special(const struct gr_vocab *v, enum gr_special which);
static inline int32_t gr_vocab_bos(const struct gr_vocab *v)
{
    return gr_vocab_special(v, GR_SPECIAL_BOS);
}
static inline int32_t gr_vocab_eos(const struct gr_vocab *v)
{
    return gr_vocab_special(v, GR_SPECIAL_EOS);
}
static inline int32_t gr_vocab_eot(const struct gr_vocab *v)
{
    return gr_vocab_special(v, GR_SPECIAL_EOT);
}
/* Return whether tokenizing with add_special begins with BOS, ends with EOS. */
bool gr_vocab_adds_bos(const struct gr_vocab *v);
bool gr_vocab_adds_eos(const struct gr_vocab *v);

/* Properties of a token. An id outside [0, size) has the text "", score 0, type undefined and is
 * not EOG. */
bool gr_vocab_is_eog(const struct gr_vocab *v, int32_t id);        /* ends a generation */
struct gr_str gr_vocab_text(const struct gr_vocab *v, int32_t id); /* as in the file */
float gr_vocab_score(const struct gr_vocab *v, int32_t id);
enum gr_token_type gr_vocab_type(const struct gr_vocab *v, int32_t id);
/* Returns whether a model may generate the token: its type is known and in use. */
static inline bool gr_vocab_is_generated(const struct gr_vocab *v, int32_t id)
{
    enum gr_token_type type = gr_vocab_type(v, id);
    return type != GR_TOKEN_UNKNOWN && type != GR_TOKEN_UNUSED && type != GR_TOKEN_UNDEFINED;
}

/* Returns the token whose text in the file is exactly this, or -1. */
int32_t gr_vocab_find(const struct gr_vocab *v, const char *text, size_t n);

/* Appends the ids of n bytes of text to `ids`, a vector of int32_t, unchanged on failure.
 * add_special: BOS and EOS as the model wants them. parse_special: the texts of control tokens
 * become those tokens; without it no text can make a control token, except the unknown token where
 * a file types that as one. GR_E_UNSUPPORTED with "none", GR_E_TOO_LARGE over
 * GR_TOKENIZE_MAX_BYTES, and where the work exceeds a limit that only a hostile vocabulary
 * reaches. */
int gr_tokenize(const struct gr_vocab *v, const char *text, size_t n, bool add_special,
                bool parse_special, struct gr_vec *ids);

/* The same where the texts of control tokens become those tokens only outside of the parts `input`
 * [n_input] of the text, which are in order and do not overlap. */
int gr_tokenize_parts(const struct gr_vocab *v, const char *text, size_t n, bool add_special,
                      const struct gr_text_span *input, size_t n_input, struct gr_vec *ids);

/* *p, *n receive the bytes that a token stands for, owned by the vocabulary; they need not be whole
 * characters. Control and unknown tokens have none unless `special`. GR_E_INVALID outside [0,
 * size). */
int gr_vocab_piece(const struct gr_vocab *v, int32_t id, bool special, const char **p, size_t *n);

/* Streaming detokenizer: ids to text. Its output is always whole UTF-8: the bytes of an incomplete
 * character are held until the next token, and invalid bytes become U+FFFD. */
struct gr_vocab_detok {
    const struct gr_vocab *v;
    bool special;     /* control tokens are written as their text */
    bool strip_space; /* drop one space before the next byte */
    uint8_t n_held;
    char held[4];
};
/* text_start: the ids begin a text, so the space that SPM and Unigram vocabularies put before the
 * first word is dropped. A detokenizer needs no fini. */
void gr_vocab_detok_init(struct gr_vocab_detok *d, const struct gr_vocab *v, bool special,
                         bool text_start);
/* Appends the text that is now complete to `out`, a vector of char. GR_E_INVALID for an id outside
 * the vocabulary; nothing changes then. */
int gr_vocab_detok_push(struct gr_vocab_detok *d, int32_t id, struct gr_vec *out);
/* Appends U+FFFD for bytes still held, if any. */
int gr_vocab_detok_flush(struct gr_vocab_detok *d, struct gr_vec *out);

#endif
