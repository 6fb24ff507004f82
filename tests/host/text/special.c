/* Added tokens, what stands around a text, what ends a generation, and vocabularies without text.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "gr/status.h"
#include "util.h"

#define SPACE "\xe2\x96\x81"
#define IDS(...)                                                                                   \
    ((const int32_t[]){__VA_ARGS__}), sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static void expect(const struct gr_vocab *v, const char *text, bool add, bool parse,
                   const int32_t *ids, size_t n)
{
    struct gr_vec got = tokenize(v, text, strlen(text), add, parse);
    char list[256] = "";
    for (size_t i = 0, k = 0; i < got.n && k < sizeof list - 16; i++)
        k += (size_t)snprintf(list + k, sizeof list - k, " %d", ((int32_t *)got.data)[i]);
    cr_assert(got.n == n && (!n || !memcmp(got.data, ids, n * sizeof *ids)), "%s:%s", text, list);
    gr_vec_fini(&got);
}

/* 0..255 letters, then control and user-defined tokens of which some begin like others. */
enum { BOS = 256, EOS, START, START_X, USER, USER_LONG };
static struct small added(void)
{
    struct small s = small_new("gpt2", "gpt-2");
    small_bytes(&s, true);
    small_token(&s, "<s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<eos>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<|start|", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<|start|x", 0, GR_TOKEN_CONTROL);
    small_token(&s, "  ", 0, GR_TOKEN_USER_DEFINED);
    small_token(&s, "    ", 0, GR_TOKEN_USER_DEFINED);
    s.source.special[GR_SPECIAL_BOS] = BOS;
    s.source.special[GR_SPECIAL_EOS] = EOS;
    return s;
}

Test(special, longest_added_token_wins)
{
    struct small s = added();
    struct gr_vocab *v = small_open(&s);
    expect(v, "a<|start|xb", false, true, IDS('a', START_X, 'b'));
    expect(v, "a<|start|yb", false, true, IDS('a', START, 'y', 'b'));
    expect(v, "<|start", false, true, IDS('<', '|', 's', 't', 'a', 'r', 't'));
    expect(v, "a      b", false, false,
           IDS('a', USER_LONG, USER, 'b')); /* user-defined ones always */
    expect(v, "<s><s>", false, true, IDS(BOS, BOS));
    expect(v, "<s>", false, false, IDS('<', 's', '>'));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* A text ends after n bytes, whatever follows in memory. */
Test(special, texts_end_inside_a_token)
{
    static const char text[] = "ab<|start|x<s>  c    <eos>";
    struct small s = added();
    struct gr_vocab *v = small_open(&s);
    for (size_t n = 0; n < sizeof text; n++) {
        char alone[sizeof text] = "";
        memcpy(alone, text, n);
        struct gr_vec want = tokenize(v, alone, n, false, true);
        struct gr_vec got = tokenize(v, text, n, false, true);
        cr_expect(got.n == want.n && (!n || !memcmp(got.data, want.data, 4 * want.n)), "%zu bytes",
                  n);
        gr_vec_fini(&want), gr_vec_fini(&got);
    }
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(special, what_stands_around_a_text)
{
    struct small s = added();
    struct gr_vocab *v = small_open(&s);
    cr_assert(!gr_vocab_adds_bos(v) && !gr_vocab_adds_eos(v));
    expect(v, "a", true, false, IDS('a'));
    gr_vocab_close(&v);
    s.source.add_bos = s.source.add_eos = 1;
    v = small_open(&s);
    cr_assert(gr_vocab_adds_bos(v) && gr_vocab_adds_eos(v));
    expect(v, "a", true, false, IDS(BOS, 'a', EOS));
    expect(v, "", true, false, IDS(BOS, EOS));
    expect(v, "a", false, false, IDS('a'));
    gr_vocab_close(&v);
    s.source.pre =
        (struct gr_str){"llama-bpe", 9}; /* this name implies BOS, unless the file says no */
    s.source.add_bos = s.source.add_eos = -1;
    v = small_open(&s);
    expect(v, "a", true, false, IDS(BOS, 'a'));
    gr_vocab_close(&v);
    s.source.add_bos = 0;
    v = small_open(&s);
    expect(v, "a", true, false, IDS('a'));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* SPM puts a blank at the beginning and after each added token. */
Test(special, blanks_of_sentencepiece)
{
    struct small s = small_new("llama", "");
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    small_token(&s, "<s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
    int32_t space = small_token(&s, SPACE, -1, GR_TOKEN_NORMAL),
            a = small_token(&s, "a", -1, GR_TOKEN_NORMAL);
    int32_t user = small_token(&s, "<user>", 0, GR_TOKEN_USER_DEFINED);
    struct gr_vocab *v = small_open(&s);
    expect(v, "a<user>a a", true, false, IDS(1, space, a, user, space, a, space, a));
    expect(v, "</s>a", true, true, IDS(1, 2, space, a));
    expect(v, "b", false, false, IDS(space, 0)); /* no byte tokens: unknown */
    expect(v, "", false, false, NULL, 0);
    gr_vocab_close(&v);
    s.source.add_space_prefix = 0;
    v = small_open(&s);
    expect(v, "a<user>a", false, false, IDS(a, user, a));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* Phi-3's added tokens take the blanks after them, the mask of some encoders those before it. */
Test(special, strips_of_some_families)
{
    struct small s = added();
    s.source.name = (struct gr_str){"My Phi-3 model", 14};
    struct gr_vocab *v = small_open(&s);
    expect(v, "<|start|\n a", false, true, IDS(START, 'a'));
    expect(v, "<s> a", false, true, IDS(BOS, 32, 'a'));
    gr_vocab_close(&v);
    int32_t mask = small_token(&s, "<mask>", 0, GR_TOKEN_CONTROL);
    s.source.name = (struct gr_str){"", 0};
    s.source.pre = (struct gr_str){"jina-v2-de", 10};
    v = small_open(&s);
    expect(v, "a <mask> a", false, true, IDS('a', mask, 32, 'a'));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* Without parse_special no text becomes a control token, not even by merges or as a whole word. */
Test(special, text_never_makes_a_control_token)
{
    struct small s = small_new("gpt2", "llama-bpe");
    small_bytes(&s, true);
    small_token(&s, "ab", 0, GR_TOKEN_NORMAL);
    small_token(&s, "abc", 0, GR_TOKEN_CONTROL); /* a merge makes it, and it is a whole word too */
    small_token(&s, "abcd", 0, GR_TOKEN_NORMAL);
    small_merge(&s, "a", 1, "b", 1);
    small_merge(&s, "ab", 2, "c", 1);
    small_merge(&s, "abc", 3, "d", 1);
    struct gr_vocab *v = small_open(&s);
    expect(v, "abc", false, false, IDS(256, 'c'));
    expect(v, "abcx", false, false, IDS(256, 'c', 'x'));
    expect(v, "abcd", false, false, IDS(258));
    expect(v, "abcde", false, false, IDS(256, 'c', 'd', 'e'));
    expect(v, "abc", false, true, IDS(257));
    gr_vocab_close(&v);
    small_fini(&s);

    s = small_new("llama", "");
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    small_token(&s, "<s>", 9, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 9, GR_TOKEN_CONTROL);
    int32_t lt = small_token(&s, "<", 0, GR_TOKEN_NORMAL),
            st = small_token(&s, "s>", 0, GR_TOKEN_NORMAL);
    small_token(&s, "s", 0, GR_TOKEN_NORMAL), small_token(&s, ">", 0, GR_TOKEN_NORMAL);
    s.source.add_space_prefix = 0;
    v = small_open(&s);
    expect(v, "<s>", false, false, IDS(lt, st));
    expect(v, "<s>", false, true, IDS(1));
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(special, ends_of_a_generation)
{
    struct small s = added();
    int32_t im_end =
        small_token(&s, "<|im_end|>", 0, GR_TOKEN_NORMAL); /* mistyped, as some files have it */
    int32_t eot_text = small_token(&s, "[EOT]", 0, GR_TOKEN_NORMAL); /* could be a word */
    int32_t slash_s = small_token(&s, "</s>", 0, GR_TOKEN_USER_DEFINED);
    struct gr_vocab *v = small_open(&s);
    cr_assert(gr_vocab_is_eog(v, im_end) && gr_vocab_type(v, im_end) == GR_TOKEN_CONTROL);
    cr_assert(gr_vocab_is_eog(v, EOS) && gr_vocab_is_eog(v, slash_s));
    cr_assert(!gr_vocab_is_eog(v, eot_text) && !gr_vocab_is_eog(v, BOS) &&
              !gr_vocab_is_eog(v, 'a'));
    cr_assert(!gr_vocab_is_eog(v, -1) && !gr_vocab_is_eog(v, gr_vocab_size(v)));
    cr_assert_eq(gr_vocab_eot(v), im_end);
    cr_assert_eq(gr_vocab_bos(v), BOS);
    cr_assert_eq(gr_vocab_eos(v), EOS);
    cr_assert_eq(gr_vocab_special(v, GR_SPECIAL_MASK), -1);
    gr_vocab_close(&v);

    int32_t end = small_token(
        &s, "<|end|>", 0, GR_TOKEN_CONTROL); /* inside a message where these two are there too */
    v = small_open(&s);
    cr_assert(gr_vocab_is_eog(v, end));
    gr_vocab_close(&v);
    small_token(&s, "<|return|>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<|call|>", 0, GR_TOKEN_CONTROL);
    v = small_open(&s);
    cr_assert(!gr_vocab_is_eog(v, end) && gr_vocab_type(v, end) == GR_TOKEN_USER_DEFINED);
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(special, facts_of_tokens)
{
    struct small s = added();
    struct gr_vocab *v = small_open(&s);
    const char *p;
    size_t n;
    cr_assert_eq(gr_vocab_kind(v), GR_VOCAB_BPE);
    cr_assert_eq(gr_vocab_size(v), USER_LONG + 1);
    cr_assert(gr_str_is(gr_vocab_text(v, BOS), "<s>"));
    cr_assert(gr_str_is(gr_vocab_text(v, ' '), "\xc4\xa0"));
    cr_assert_eq(gr_vocab_find(v, "<s>", 3), BOS);
    cr_assert_eq(gr_vocab_find(v, "<s", 2), -1);
    cr_assert_eq(gr_vocab_find(v, "", 0), -1);
    cr_assert_eq(gr_vocab_piece(v, ' ', false, &p, &n), 0);
    cr_assert(n == 1 && *p == ' ');
    cr_assert_eq(gr_vocab_piece(v, BOS, false, &p, &n), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(gr_vocab_piece(v, BOS, true, &p, &n), 0);
    cr_assert(n == 3 && !memcmp(p, "<s>", 3));
    cr_assert_eq(gr_vocab_piece(v, gr_vocab_size(v), true, &p, &n), GR_E_INVALID);
    cr_assert_eq(gr_vocab_text(v, -1).n, 0);
    gr_vocab_close(&v);
    small_fini(&s);
}

Test(special, no_text)
{
    struct gr_vocab_source src = gr_vocab_source_new("none");
    struct gr_vocab *v;
    struct gr_vec ids = {0};
    const char *p;
    size_t n;
    src.n_tok = 1000;
    cr_assert_eq(gr_vocab_open_source(&v, &src), 0, "%s", gr_error());
    cr_assert_eq(gr_vocab_size(v), 1000);
    cr_assert_eq(gr_vocab_bos(v), -1);
    cr_assert_eq(gr_vocab_find(v, "a", 1), -1);
    cr_assert_eq(gr_vocab_piece(v, 5, true, &p, &n), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(gr_tokenize(v, "a", 1, true, true, &ids), GR_E_UNSUPPORTED);
    cr_assert_eq(gr_tokenize(v, "", 0, true, true, &ids), GR_E_UNSUPPORTED);
    gr_vocab_close(&v);
    gr_vocab_close(&v);
}

/* Characters that no merge and no token covers, in vocabularies of plain UTF-8. */
Test(special, raw_vocabulary_falls_back_to_bytes)
{
    struct small s = small_new("gemma4", "");
    small_bytes(&s, false);
    int32_t space = small_token(&s, SPACE, 0, GR_TOKEN_NORMAL),
            a = small_token(&s, "a", 0, GR_TOKEN_NORMAL);
    int32_t both = small_token(&s, SPACE "a", 0, GR_TOKEN_NORMAL),
            lines = small_token(&s, "\n\n\n", 0, GR_TOKEN_NORMAL);
    small_merge(&s, SPACE, 3, "a", 1);
    struct gr_vocab *v = small_open(&s);
    expect(v, "a a", false, false, IDS(a, both));
    expect(v, " \xc3\xa9", false, false, IDS(space, 0xc3, 0xa9));
    expect(v, "a\n\n\na", false, false,
           IDS(a, lines, a)); /* a run of newlines is looked up whole */
    expect(v, "\n\n", false, false, IDS('\n', '\n'));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* An unknown character scores ten less than the worst token: a little more or less would choose the
 * other way here. */
Test(special, penalty_of_the_unknown)
{
    static const float both[] = {-10.5f, -11.4f}, single[] = {-10.5f, -11.5f};
    for (int i = 0; i < 2; i++) {
        struct small s = small_new("t5", "");
        s.source.add_space_prefix = 0;
        small_token(&s, "<pad>", 0, GR_TOKEN_CONTROL);
        small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
        small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
        int32_t ea = small_token(&s,
                                 "\xc3\xa9"
                                 "a",
                                 both[i], GR_TOKEN_NORMAL);
        int32_t b = small_token(&s, "b", single[i], GR_TOKEN_NORMAL),
                ab = small_token(&s, "ab", -1, GR_TOKEN_NORMAL);
        struct gr_vocab *v = small_open(&s);
        if (i)
            expect(v,
                   "\xc3\xa9"
                   "ab",
                   false, false, IDS(2, ab)); /* -22.5 against -22.9 */
        else
            expect(v,
                   "\xc3\xa9"
                   "ab",
                   false, false, IDS(ea, b)); /* -21 against -21.5 */
        gr_vocab_close(&v);
        small_fini(&s);
    }
}

/* Unigram never chooses an unused token, however good its score. */
Test(special, unused_tokens)
{
    struct small s = small_new("t5", "");
    s.source.add_space_prefix = 0;
    small_token(&s, "<pad>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "</s>", 0, GR_TOKEN_CONTROL);
    small_token(&s, "<unk>", 0, GR_TOKEN_UNKNOWN);
    int32_t a = small_token(&s, "a", -3, GR_TOKEN_NORMAL);
    small_token(&s, "aa", 5, GR_TOKEN_UNUSED);
    struct gr_vocab *v = small_open(&s);
    expect(v, "aa", false, false, IDS(a, a));
    gr_vocab_close(&v);
    small_fini(&s);
}

/* Control tokens are recognised in a text's own parts only, wherever the parts of the input begin
 * and end; a longer token that reaches into one gives way to a shorter one. */
Test(special, not_in_parts_that_are_input)
{
    static const struct {
        const char *text;
        struct gr_text_span input[2];
        size_t n_input;
        int32_t ids[12];
        size_t n;
    } cases[] = {
        {"<s>a<s>", {{3, 7}}, 1, {BOS, 'a', '<', 's', '>'}, 5},
        {"<s>a<s>", {{0, 3}}, 1, {'<', 's', '>', 'a', BOS}, 5},
        {"<s>a<s>", {{3, 4}}, 1, {BOS, 'a', BOS}, 3},
        {"<s><s>", {{1, 2}, {5, 6}}, 2, {'<', 's', '>', '<', 's', '>'}, 6},
        {"<s>b", {{2, 3}}, 1, {'<', 's', '>', 'b'}, 4},
        {"<|start|x", {{8, 9}}, 1, {START, 'x'}, 2},
        {"<|start|x", {{9, 9}}, 1, {START_X}, 1},
        {"<s>    <s>", {{3, 7}}, 1, {BOS, USER_LONG, BOS}, 3},
        {"<s>", {{0, 0}}, 0, {BOS}, 1},
    };
    struct small s = added();
    struct gr_vocab *v = small_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gr_vec got = {0};
        cr_assert_eq(gr_tokenize_parts(v, cases[i].text, strlen(cases[i].text), false,
                                       cases[i].input, cases[i].n_input, &got),
                     0);
        cr_expect(got.n == cases[i].n && !memcmp(got.data, cases[i].ids, got.n * sizeof(int32_t)),
                  "case %zu: %zu ids", i, got.n);
        gr_vec_fini(&got);
    }
    gr_vocab_close(&v);
    small_fini(&s);
}
