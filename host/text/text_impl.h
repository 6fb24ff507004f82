/* Internals of a vocabulary and of a tokenization, private to the files of this folder. */
#ifndef GR_TEXT_TEXT_IMPL_H
#define GR_TEXT_TEXT_IMPL_H

#include "text/trie.h"
#include "text/vocab.h"

#define GR_SPACE "\xe2\x96\x81" /* U+2581, the blank of SentencePiece tokens */
#define GR_SPACE_BYTES 3u

struct gr_bpe;      /* bpe.c */
struct gr_pre;      /* pre.c */
struct gr_splitter; /* pre.c */
struct gr_charsmap; /* charsmap.c */

/* Encoding of token texts; see kinds.def. */
enum gr_blanks { GR_LETTERS, GR_MARKS, GR_PLAIN, GR_ESCAPES };

struct gr_vocab {
    enum gr_vocab_kind kind;
    int32_t n_tok;
    struct gr_texts text;  /* as in the file */
    struct gr_texts piece; /* bytes it stands for */
    uint8_t *type;         /* [n_tok] enum gr_token_type */
    uint8_t *flags;        /* [n_tok] GR_FLAG_ */
    float *score;          /* [n_tok] */
    struct gr_trie trie;   /* all tokens with a text */
    struct gr_trie added;  /* control, unknown and user-defined tokens: matched first */
    int32_t byte_id[256];  /* the token of one byte, or -1 */
    int32_t special[GR_N_SPECIAL];
    enum gr_blanks blanks;
    bool raw;            /* BPE: tokens hold UTF-8, not byte-level letters */
    int32_t first, last; /* tokens that add_special puts before and after a text (BOS and EOS, or
                            CLS and SEP), or -1 */
    bool add_space_prefix, remove_extra_whitespaces, lowercase, strip_accents;
    float unk_score;              /* Unigram: score of a character without a token */
    struct gr_bpe *bpe;           /* BPE: merges */
    struct gr_pre *pre;           /* BPE: pre-tokenizer */
    struct gr_charsmap *charsmap; /* Unigram: normalisation, or NULL */
    struct gr_trie bytes;         /* RWKV: bytes of the tokens, unescaped */
    struct gr_dna {
        int32_t open, close, unknown; /* hybriddna: ids of tags and of an unknown group, or -1 */
    } dna;
};

enum { GR_FLAG_EOG = 1, GR_FLAG_LSTRIP = 2, GR_FLAG_RSTRIP = 4 };

/* Returns whether ordinary text (outside added tokens) may become this token. */
static inline bool gr_token_from_text(const struct gr_vocab *v, int32_t id)
{
    return v->type[id] != GR_TOKEN_CONTROL && v->type[id] != GR_TOKEN_UNKNOWN &&
           v->type[id] != GR_TOKEN_BYTE;
}

/* --- merging: a linked list of symbols in which the best pair of neighbours is joined until none
 * is left --- */

#define GR_NO_SYMBOL UINT32_MAX

struct gr_symbol {
    uint32_t start, len; /* its bytes in the text; len 0 once it is joined to its left neighbour */
    uint32_t prev, next; /* GR_NO_SYMBOL at the ends */
    uint32_t value;      /* opaque; the pair function interprets it */
};

struct gr_candidate {
    uint64_t key;   /* rank << 32 | left symbol: smaller comes first */
    uint32_t len;   /* bytes of both together: another length means that the pair has changed */
    uint32_t value; /* value of the joined symbol */
};

/* Returns whether two neighbours may be joined; *rank receives the priority (smaller first), *value
 * the value of the joined symbol. */
typedef bool gr_pair_fn(void *ctx, const struct gr_symbol *left, const struct gr_symbol *right,
                        uint32_t *rank, uint32_t *value);

struct gr_merge {
    struct gr_vec symbols;    /* of struct gr_symbol */
    struct gr_vec candidates; /* of struct gr_candidate, a binary heap */
    gr_pair_fn *pair;         /* set during a run */
    void *ctx;
};

/* Removes all symbols. */
void gr_merge_clear(struct gr_merge *m);
/* Appends a symbol to the list. */
int gr_merge_add(struct gr_merge *m, uint32_t start, uint32_t len, uint32_t value);
/* Joins pairs, smallest rank first, then leftmost, until none may be joined. The result is the list
 * from symbol 0. */
int gr_merge_run(struct gr_merge *m, gr_pair_fn *pair, void *ctx);
void gr_merge_fini(struct gr_merge *m);

/* --- one call of gr_tokenize --- */

struct gr_job {
    const struct gr_vocab *v;
    struct gr_vec *ids; /* the result */
    struct gr_merge merge;
    struct gr_vec text;           /* of char: the text as normalised for the algorithm */
    struct gr_splitter *splitter; /* BPE; made on first use */
    uint64_t n_step, max_step;    /* trie steps done, and their limit */
};

/* Limit on trie steps for a text of n bytes: about a second per mebibyte. Vocabularies of real
 * models take fewer steps per byte than their longest token has bytes; a hostile file may have
 * thousands of tokens that are prefixes of each other. */
#define GR_MAX_STEPS(n) (256 * (uint64_t)(n) + (1u << 20))

/* Counts n more trie steps; GR_E_TOO_LARGE beyond the limit. */
int gr_job_count(struct gr_job *j, uint64_t n);

int gr_job_push(struct gr_job *j, int32_t id);
/* Pushes the byte token of each byte; where there is none, the unknown token or nothing. */
int gr_job_push_bytes(struct gr_job *j, const char *p, size_t n);
/* Appends p[0, n) to j->text with U+2581 for blanks. */
int gr_job_escape(struct gr_job *j, const char *p, size_t n);
/* Appends p[0, n) to j->text in lower case; invalid UTF-8 is copied as it is. */
int gr_job_lower(struct gr_job *j, const char *p, size_t n);

/* Tokenize text without added tokens, n > 0, into j->ids. */
int gr_spm_run(struct gr_job *j, const char *p, size_t n);
int gr_bpe_run(struct gr_job *j, const char *p, size_t n);
int gr_wordpiece_run(struct gr_job *j, const char *p, size_t n);
int gr_unigram_run(struct gr_job *j, const char *p, size_t n);
int gr_rwkv_run(struct gr_job *j, const char *p, size_t n);
int gr_plamo_run(struct gr_job *j, const char *p, size_t n);
int gr_dna_run(struct gr_job *j, const char *p, size_t n);

/* Data of single algorithms, made when a vocabulary opens. */
int gr_bpe_open(struct gr_vocab *v, const struct gr_vocab_source *s);
void gr_bpe_free(struct gr_bpe **bpe);
void gr_unigram_open(struct gr_vocab *v);
int gr_rwkv_open(struct gr_vocab *v);
int gr_plamo_open(const struct gr_vocab *v);
void gr_dna_open(struct gr_vocab *v);

/* Writes the bytes that an escaped token stands for to out [n], at most n; returns their number. */
size_t gr_rwkv_unescape(const char *p, size_t n, char *out);
/* Returns the length of a DNA token's text without the mark that tells it from an equal word. */
size_t gr_dna_strip(const char *p, size_t n);

/* --- characters --- */

/* Writes the lower case of a character, one or two code points; returns their number. */
size_t gr_char_lower(uint32_t cp, uint32_t out[2]);
/* Returns whether p[0, n) begins with white space. */
bool gr_char_is_blank(const char *p, size_t n);

/* --- byte-level letters: GPT-2 represents each byte by one visible character --- */

/* Code point of a byte. */
static inline uint32_t gr_byte_letter(uint8_t b)
{
    return b <= 0x20                ? 0x100u + b
           : b >= 0x7f && b <= 0xa0 ? 0x121u + (b - 0x7fu)
           : b == 0xad              ? 0x143u
                                    : b;
}

/* The byte of a code point, or -1. */
static inline int gr_letter_byte(uint32_t cp)
{
    if (cp >= 0x100)
        return cp <= 0x120   ? (int)(cp - 0x100)
               : cp <= 0x142 ? (int)(cp - 0x121 + 0x7f)
               : cp == 0x143 ? 0xad
                             : -1;
    return cp <= 0x20 || (cp >= 0x7f && cp <= 0xa0) || cp == 0xad ? -1 : (int)cp;
}

#endif
