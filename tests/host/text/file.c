/* The vocabulary of a file: every key is read, and a key of another type is refused by name. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "gr/status.h"
#include "util.h"

#define K(name) "tokenizer.ggml." name

static char path[] = GR_BINARY_DIR "/tests/vocab-XXXXXX";

static struct gr_gguf_writer *begin(const char *model)
{
    struct gr_gguf_writer *w;
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.architecture", "llama"), 0);
    cr_assert_eq(gr_gguf_set_str(w, K("model"), model), 0);
    return w;
}

/* A Unigram vocabulary with every key that such a file may have. */
static struct gr_gguf_writer *unigram(void)
{
    static const char *const texts[] = {"<s>", "</s>", "<unk>", "a", "b", "<x>"};
    static const float scores[] = {0, 0, 0, -1, -2, 0};
    static const int32_t types[] = {3, 3, 2, 1, 1, 4};
    static const uint8_t map[] = {4, 0, 0, 0, 0, 0, 0, 0, 0};
    struct gr_str tokens[GR_COUNT(texts)];
    for (size_t i = 0; i < GR_COUNT(texts); i++)
        tokens[i] = (struct gr_str){texts[i], strlen(texts[i])};
    struct gr_gguf_writer *w = begin("t5");
    int rc = gr_gguf_set_strs(w, K("tokens"), tokens, GR_COUNT(tokens));
    rc |= gr_gguf_set_array(w, K("scores"), GR_GGUF_F32, scores, GR_COUNT(scores));
    rc |= gr_gguf_set_array(w, K("token_type"), GR_GGUF_I32, types, GR_COUNT(types));
    rc |= gr_gguf_set_array(w, K("precompiled_charsmap"), GR_GGUF_U8, map, sizeof map);
    rc |= gr_gguf_set_u32(w, K("bos_token_id"), 0) | gr_gguf_set_u32(w, K("eos_token_id"), 1);
    rc |= gr_gguf_set_u32(w, K("unknown_token_id"), 2) | gr_gguf_set_u32(w, K("mask_token_id"), 5);
    rc |= gr_gguf_set_bool(w, K("add_bos_token"), true) |
          gr_gguf_set_bool(w, K("add_eos_token"), true);
    rc |= gr_gguf_set_bool(w, K("add_space_prefix"), false);
    rc |= gr_gguf_set_bool(w, K("remove_extra_whitespaces"), true);
    cr_assert_eq(rc, 0, "%s", gr_error());
    return w;
}

/* Writes the file and opens its vocabulary. */
static int finish(struct gr_gguf_writer *w, struct gr_vocab **v)
{
    struct gr_gguf *g;
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
    cr_assert_eq(gr_gguf_open(&g, path, true), 0, "%s", gr_error());
    unlink(path);
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    int rc = gr_vocab_open(v, g);
    gr_gguf_close(&g);
    return rc;
}

static void refused(struct gr_gguf_writer *w, const char *key)
{
    struct gr_vocab *v;
    int rc = finish(w, &v);
    cr_assert_eq(rc, GR_E_CORRUPT, "%s: %d", key, rc);
    cr_assert_null(v);
    cr_assert(strstr(gr_error(), key), "%s is not in: %s", key, gr_error());
}

Test(file, every_key)
{
    struct gr_vocab *v;
    cr_assert_eq(finish(unigram(), &v), 0, "%s", gr_error());
    cr_assert_eq(gr_vocab_kind(v), GR_VOCAB_UNIGRAM);
    cr_assert_eq(gr_vocab_size(v), 6);
    cr_assert(gr_vocab_bos(v) == 0 && gr_vocab_eos(v) == 1 &&
              gr_vocab_special(v, GR_SPECIAL_MASK) == 5);
    cr_assert_eq(gr_vocab_special(v, GR_SPECIAL_SEP), -1);
    cr_assert_eq(gr_vocab_type(v, 5), GR_TOKEN_USER_DEFINED);
    cr_assert_eq(gr_vocab_score(v, 4), -2);
    struct gr_vec ids = tokenize(v, "ab<x>", 5, true, false);
    static const int32_t want[] = {0, 3, 4, 5, 1};
    cr_assert(ids.n == GR_COUNT(want) && !memcmp(ids.data, want, sizeof want));
    gr_vec_fini(&ids);
    gr_vocab_close(&v);
}

Test(file, scores_may_be_integers)
{
    static const int32_t scores[] = {0, 0, 0, -7, -2, 0};
    struct gr_gguf_writer *w = unigram();
    struct gr_vocab *v;
    cr_assert_eq(gr_gguf_set_array(w, K("scores"), GR_GGUF_I32, scores, GR_COUNT(scores)), 0);
    cr_assert_eq(finish(w, &v), 0, "%s", gr_error());
    cr_assert_eq(gr_vocab_score(v, 3), -7);
    gr_vocab_close(&v);
}

Test(file, keys_of_another_type)
{
    static const char *const scalars[] = {
        K("tokens"), K("scores"), K("token_type"),    K("precompiled_charsmap"), K("model"),
        K("pre"),    K("merges"), K("add_bos_token"), K("add_space_prefix")};
    static const char *const strings[] = {K("bos_token_id"), K("unknown_token_id"),
                                          K("normalizer.lowercase"), K("remove_extra_whitespaces")};
    for (size_t i = 0; i < GR_COUNT(scalars); i++) {
        struct gr_gguf_writer *w = unigram();
        cr_assert_eq(gr_gguf_set_f32(w, scalars[i], 1), 0);
        refused(w, scalars[i]);
    }
    for (size_t i = 0; i < GR_COUNT(strings); i++) {
        struct gr_gguf_writer *w = unigram();
        cr_assert_eq(gr_gguf_set_str(w, strings[i], "1"), 0);
        refused(w, strings[i]);
    }
    static const char *const arrays[] = {K("tokens"), K("merges"), K("token_type"), K("scores"),
                                         K("precompiled_charsmap")};
    static const bool six[6];
    for (size_t i = 0; i < GR_COUNT(arrays); i++) {
        struct gr_gguf_writer *w = unigram();
        cr_assert_eq(gr_gguf_set_array(w, arrays[i], GR_GGUF_BOOL, six, 6), 0);
        refused(w, arrays[i]);
    }
}

Test(file, arrays_of_another_length)
{
    static const int32_t five[5];
    struct gr_gguf_writer *w = unigram();
    cr_assert_eq(gr_gguf_set_array(w, K("scores"), GR_GGUF_I32, five, 5), 0);
    refused(w, K("scores"));
    w = unigram();
    cr_assert_eq(gr_gguf_set_array(w, K("token_type"), GR_GGUF_I32, five, 5), 0);
    refused(w, K("token_type"));
    static const int32_t types[] = {1, 1, 1, 1, 1, 7};
    w = unigram();
    cr_assert_eq(gr_gguf_set_array(w, K("token_type"), GR_GGUF_I32, types, 6), 0);
    refused(w, K("token_type"));
}

Test(file, none_counts_tokens)
{
    struct gr_vocab *v;
    struct gr_gguf_writer *w = begin("none");
    cr_assert_eq(gr_gguf_set_u32(w, "llama.vocab_size", 321), 0);
    cr_assert_eq(finish(w, &v), 0, "%s", gr_error());
    cr_assert_eq(gr_vocab_size(v), 321);
    gr_vocab_close(&v);
    cr_assert_eq(finish(begin("none"), &v), 0, "%s", gr_error());
    cr_assert_eq(gr_vocab_size(v), 0);
    gr_vocab_close(&v);
}
