/* Inside of a vocabulary and of one tokenization, shared by the files of this room only. */
#ifndef GR_TEXT_PARTS_H
#define GR_TEXT_PARTS_H

#include "text/trie.h"
#include "text/vocab.h"

#define GR_SPACE "\xe2\x96\x81" /* U+2581, the blank inside SentencePiece tokens */
#define GR_SPACE_BYTES 3u

struct gr_bpe;      /* bpe.c */
struct gr_pre;      /* pre.c */
struct gr_splitter; /* pre.c */
struct gr_charsmap; /* charsmap.c */

/* How tokens hold the text that they stand for; kinds.def says more. */
enum gr_blanks { GR_LETTERS, GR_MARKS, GR_PLAIN, GR_ESCAPES };

struct gr_vocab {
    enum gr_vocab_kind kind;
    int32_t n_tok;
    struct gr_texts text;  /* as in the file */
    struct gr_texts piece; /* what it stands for */
    uint8_t *type;         /* [n_tok] enum gr_token_type */
    uint8_t *flags;        /* [n_tok] GR_FLAG_ */
    float *score;          /* [n_tok] */
    struct gr_trie trie;   /* every token with a text */
    struct gr_trie
        added; /* control, unknown and user-defined ones: looked for before everything else */
    int32_t byte_id[256]; /* the token of one byte, or -1 */
    int32_t special[GR_N_SPECIAL];
    enum gr_blanks blanks;
    bool raw;            /* BPE: tokens hold UTF-8, not byte-level letters */
    int32_t first, last; /* what add_special puts before and after a text (BOS and EOS, or CLS and
                            SEP), or -1 */
    bool add_space_prefix, remove_extra_whitespaces, lowercase, strip_accents;
    float unk_score;              /* Unigram: of a character without a token */
    struct gr_bpe *bpe;           /* BPE: merges */
    struct gr_pre *pre;           /* BPE: pre-tokenizer */
    struct gr_charsmap *charsmap; /* Unigram: normalisation, or NULL */
    struct gr_trie bytes;         /* RWKV: what the tokens stand for */
    struct gr_dna {
        int32_t open, close,
            unknown; /* hybriddna: its tags and the group that is no token, or -1 */
    } dna;
};

enum { GR_FLAG_EOG = 1, GR_FLAG_LSTRIP = 2, GR_FLAG_RSTRIP = 4 };

/* Whether text that is no added token may become this token. */
static inline bool gr_token_from_text(const struct gr_vocab *v, int32_t id)
{
    return v->type[id] != GR_TOKEN_CONTROL && v->type[id] != GR_TOKEN_UNKNOWN &&
           v->type[id] != GR_TOKEN_BYTE;
}

/* --- one run of merges: a chain of symbols in which the best pair of neighbours is joined again
 * and again --- */

#define GR_NO_SYMBOL UINT32_MAX

struct gr_symbol {
    uint32_t start, len; /* its bytes; len 0 when it was joined to its left neighbour */
    uint32_t prev, next; /* GR_NO_SYMBOL at the ends */
    uint32_t value;      /* what the pair function knows it by */
};

struct gr_candidate {
    uint64_t key;   /* rank << 32 | left symbol: smaller comes first */
    uint32_t len;   /* of both together: tells whether the pair is still as it was */
    uint32_t value; /* of the joined symbol */
};

/* Whether two neighbours may be joined, with which rank (smaller first), and the value they have
 * together. */
typedef bool gr_pair_fn(void *ctx, const struct gr_symbol *left, const struct gr_symbol *right,
                        uint32_t *rank, uint32_t *value);

struct gr_merge {
    struct gr_vec symbols;    /* of struct gr_symbol */
    struct gr_vec candidates; /* of struct gr_candidate, a binary heap */
    gr_pair_fn *pair;         /* during a run */
    void *ctx;
};

/* Forgets all symbols. */
void gr_merge_clear(struct gr_merge *m);
/* Puts a symbol at the end of the chain. */
int gr_merge_add(struct gr_merge *m, uint32_t start, uint32_t len, uint32_t value);
/* Joins until no pair may be joined: smallest rank first, then the leftmost. The result is the
 * chain from symbol 0. */
int gr_merge_run(struct gr_merge *m, gr_pair_fn *pair, void *ctx);
void gr_merge_fini(struct gr_merge *m);

/* --- one call of gr_tokenize --- */

struct gr_job {
    const struct gr_vocab *v;
    struct gr_vec *ids; /* the result */
    struct gr_merge merge;
    struct gr_vec text;           /* of char: the text as the algorithm wants it */
    struct gr_splitter *splitter; /* BPE, once there is text */
    uint64_t n_step, max_step;    /* through tries: done, and how many at most */
};

/* Steps through tries for a text of n bytes: a second a mebibyte. Tokens as models have them take
 * less than their length a byte; a file may have thousands that are beginnings of each other. */
#define GR_MAX_STEPS(n) (256 * (uint64_t)(n) + (1u << 20))

/* Counts n more steps; GR_E_TOO_LARGE when there were too many. */
int gr_job_count(struct gr_job *j, uint64_t n);

int gr_job_push(struct gr_job *j, int32_t id);
/* One token a byte; without them, the unknown token or nothing. */
int gr_job_push_bytes(struct gr_job *j, const char *p, size_t n);
/* Appends p[0, n) to j->text with visible blanks. */
int gr_job_escape(struct gr_job *j, const char *p, size_t n);
/* Appends p[0, n) to j->text in lower case; what is not UTF-8 stays. */
int gr_job_lower(struct gr_job *j, const char *p, size_t n);

/* Text without added tokens in it, n > 0, to ids. */
int gr_spm_run(struct gr_job *j, const char *p, size_t n);
int gr_bpe_run(struct gr_job *j, const char *p, size_t n);
int gr_wordpiece_run(struct gr_job *j, const char *p, size_t n);
int gr_unigram_run(struct gr_job *j, const char *p, size_t n);
int gr_rwkv_run(struct gr_job *j, const char *p, size_t n);
int gr_plamo_run(struct gr_job *j, const char *p, size_t n);
int gr_dna_run(struct gr_job *j, const char *p, size_t n);

/* Parts that belong to one algorithm; each frees what it made. */
int gr_bpe_open(struct gr_vocab *v, const struct gr_vocab_source *s);
void gr_bpe_free(struct gr_bpe **bpe);
void gr_unigram_open(struct gr_vocab *v);
int gr_rwkv_open(struct gr_vocab *v);
int gr_plamo_open(const struct gr_vocab *v);
void gr_dna_open(struct gr_vocab *v);

/* The bytes that an escaped token stands for, never more than its own; returns their number. */
size_t gr_rwkv_unescape(const char *p, size_t n, char *out);
/* The length of a DNA token's text without the mark that tells it from an equal word. */
size_t gr_dna_strip(const char *p, size_t n);

/* --- characters --- */

/* The lower case of a character, one or two; returns their number. */
size_t gr_char_lower(uint32_t cp, uint32_t out[2]);
/* Whether p[0, n) begins with white space. */
bool gr_char_is_blank(const char *p, size_t n);

/* --- byte-level letters: GPT-2 writes each byte as one visible character --- */

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
