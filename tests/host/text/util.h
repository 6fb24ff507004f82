/* Vocabularies for tests: small ones made by hand, and those of the shared folder where it is
 * there. */
#ifndef TESTS_TEXT_UTIL_H
#define TESTS_TEXT_UTIL_H

#include "base/rng.h"
#include "text/vocab.h"

/* A vocabulary under construction. Zero-initialise by small_new. */
struct small {
    struct gr_vec tokens, merges; /* of struct gr_str, texts owned */
    struct gr_vec scores, types;  /* of float, of int32_t */
    struct gr_vocab_source source;
};

struct small small_new(const char *model, const char *pre);
/* Adds a token (and returns its id) or a merge. Texts are copied. */
int32_t small_token(struct small *s, const char *text, float score, enum gr_token_type type);
int32_t small_token_n(struct small *s, const char *text, size_t n, float score,
                      enum gr_token_type type);
void small_merge(struct small *s, const char *left, size_t n_left, const char *right,
                 size_t n_right);
/* Adds 256 byte tokens: <0xHH>, or the byte letters of a byte-level vocabulary. */
void small_bytes(struct small *s, bool letters);
/* The source with its pointers set; owned by s. */
const struct gr_vocab_source *small_source(struct small *s);
struct gr_vocab *small_open(struct small *s);
void small_fini(struct small *s);

/* Ids of a text; free with gr_vec_fini. */
struct gr_vec tokenize(const struct gr_vocab *v, const char *text, size_t n, bool add_special,
                       bool parse_special);
/* Fails the test unless the ids of the text, without BOS and special tokens, are these. */
void expect_ids(const struct gr_vocab *v, const char *text, const int32_t *ids, size_t n);
/* Pieces of the ids one after another, zero-terminated; free with gr_free. */
char *pieces(const struct gr_vocab *v, const struct gr_vec *ids, bool special, size_t *n);

/* A path below the shared folder (GPURUN_SHARED, or ../shared beside the repository), NULL where it
 * does not exist. The buffer is static. */
const char *shared_path(const char *name);
/* The shared vocabulary vocab/ggml-vocab-<name>.gguf; skips the test where there is none. */
struct gr_vocab *shared_vocab(const char *name);

/* A random text of at most `most` bytes: characters of one to four bytes, blanks, digits, and bytes
 * that are not UTF-8 when `broken`. Returns its length. */
size_t random_text(struct gr_rng *r, char *out, size_t most, bool broken);

#endif
