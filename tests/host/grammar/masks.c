/* Masks and states: a mask has exactly the tokens that can be accepted. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "bytes.h"
#include "gr/sample.h"
#include "grammar/gbnf.h"
#include "grammar/mask.h"

TestSuite(grammar_masks, .timeout = 120);

enum { END = 256, THINK = 257 };

/* Bytes, and texts that end and begin rules, and break characters apart. */
static struct gr_token_trie *text_trie(void)
{
    static const char long_text[] = "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3"
                                    "\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9";
    static const char *const texts[] = {"<|end|>",
                                        "<|think|>",
                                        "{\"",
                                        "\":",
                                        "\": \"",
                                        "\",",
                                        "\"}",
                                        "\"}]",
                                        "}}",
                                        "true",
                                        "tru",
                                        "ab",
                                        "abab",
                                        "aaaaaaaa",
                                        "a\"",
                                        "\"a",
                                        "\xc3\xa9\xc3",
                                        "\xa9x",
                                        "\xa9\xc3\xa9",
                                        "\xf0\x9f",
                                        "\x98\x80",
                                        "\x9f\x98\x80\"",
                                        "12",
                                        "123",
                                        "1,",
                                        ", ",
                                        "],[",
                                        "[[",
                                        "abb",
                                        "\n  ",
                                        "\n\n",
                                        "bb",
                                        "bbb",
                                        "aab",
                                        "   ",
                                        "x\": [1, 2",
                                        "-1",
                                        "0.",
                                        ".5e",
                                        "\\n",
                                        "\\u00",
                                        "\\\"",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaabb\"",
                                        "x\": [1, 2, 3, 4, 5, 6, 7, 8, 9]",
                                        long_text};
    static struct gr_token_trie *trie;
    struct gr_vocab *v;
    cr_assert_eq(byte_vocab_open(&v, texts, sizeof texts / sizeof *texts), 0, "%s", gr_error());
    cr_assert_eq(gr_token_trie_new(&trie, v), 0, "%s", gr_error());
    return trie;
}

static const char *const grammars[] = {
    "root ::= \"ab\"* | [^a]{2,5} \"\xc3\xa9\"+",
    "root ::= \"a\" root \"b\" | \"ab\" root \"bb\" | \"\"",
    "root ::= v\nv ::= o | a | s | n | \"true\"\no ::= \"{\" (s \":\" \" \"? v (\",\" \" \"? s "
    "\":\" v)*)? "
    "\"}\"\na ::= \"[\" (v (\",\" \" \"? v)*)? \"]\"\ns ::= \"\\\"\" [^\"\\\\]{0,40} \"\\\"\"\n"
    "n ::= \"-\"? [0-9]+ (\".\" [0-9]+)?",
    "root ::= <|think|> !<|think|>{1,3} <[290]>? . | \"a\" <[280]>",
    "root ::= ([ab] | \"\xc3\xa9\" | \"\xf0\x9f\x98\x80\"){3,100} x\nx ::= [a-z\"]{2} y?\ny ::= x "
    "| \"1\" y",
    "root ::= ((\"a\"? \"b\"?){0,9} \"1\"?)* \"\\n\"",
    "root ::= l l l\nl ::= (\"[\" l \"]\")? | \"[\" \"1\"{0,200} \"]\" | \"1\" m\nm ::= \",\" l m "
    "| \"\"",
};

static const char *const schemas[] = {
    "{}",
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"maxLength\": 70}, "
    "\"ab\": "
    "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"maxItems\": 3}}, \"required\": "
    "[\"ab\"]}",
    "{\"type\": \"array\", \"items\": {\"enum\": [\"ab\", \"abab\", 12, 123, [1]]}}",
};

static struct gr_grammar *open_one(size_t i, const struct gr_token_trie *trie, size_t state_bytes,
                                   size_t mask_bytes)
{
    size_t n = sizeof grammars / sizeof *grammars;
    const char *text = i < n ? grammars[i] : schemas[i - n];
    struct gr_grammar *g;
    struct gr_rules rules;
    int rc = gr_rules_init(&rules);
    if (!rc)
        rc = i < n ? gr_gbnf_read(&rules, text, strlen(text), trie->vocab)
                   : gr_schema_read(&rules, text, strlen(text));
    if (!rc)
        rc = gr_grammar_new(&g, &rules, trie, state_bytes, mask_bytes);
    cr_assert_eq(rc, 0, "%s\n%s", gr_error(), text);
    gr_rules_fini(&rules);
    return g;
}

enum { N_SOURCES = sizeof grammars / sizeof *grammars + sizeof schemas / sizeof *schemas };

/* Every bit of a mask against accepting the token in a copy of the state. */
static void check_mask(struct gr_grammar_state *s, struct gr_grammar_state *copy, int32_t n_vocab,
                       const uint32_t *mask)
{
    for (int32_t id = 0; id < n_vocab; id++) {
        cr_assert_eq(gr_grammar_state_copy(copy, s), 0);
        int rc = gr_grammar_accept(copy, id);
        cr_assert(rc == 0 || rc == GR_E_INVALID, "%s", gr_error());
        cr_assert_eq(gr_sample_allowed(mask, id), rc == 0, "token %d: %s", id, gr_error());
    }
}

static int32_t draw(const uint32_t *mask, int32_t n, struct gr_rng *rng)
{
    int32_t id = -1, seen = 0;
    for (int32_t i = 0; i < n; i++)
        if (gr_sample_allowed(mask, i) && gr_rng_below(rng, (uint32_t)++seen) == 0)
            id = i;
    return id;
}

/* Walks through a grammar, checking every mask; returns the number of masks. */
static int walk(struct gr_grammar *g, int32_t n_vocab, uint64_t seed, int n)
{
    struct gr_rng rng = gr_rng_new(seed);
    struct gr_grammar_state *s, *copy;
    const uint32_t *mask;
    int masks = 0;
    cr_assert_eq(gr_grammar_state_new(&s, g), 0);
    cr_assert_eq(gr_grammar_state_new(&copy, g), 0);
    for (int32_t id = -1; n > 0 && id != END; n--, masks++) {
        cr_assert_eq(gr_grammar_allowed(s, &mask), 0, "%s", gr_error());
        check_mask(s, copy, n_vocab, mask);
        cr_assert_eq(gr_sample_allowed(mask, END), gr_grammar_may_end(s));
        id = draw(mask, n_vocab, &rng);
        cr_assert_eq(gr_grammar_accept(s, id), 0, "%s", gr_error());
    }
    gr_grammar_state_free(&s);
    gr_grammar_state_free(&copy);
    return masks;
}

Test(grammar_masks, are_the_tokens_that_can_be_accepted)
{
    struct gr_token_trie *trie = text_trie();
    int masks = 0;
    for (size_t i = 0; i < N_SOURCES; i++) {
        struct gr_grammar *g = open_one(i, trie, 0, 0);
        for (uint64_t seed = 0; seed < 12; seed++)
            masks += walk(g, trie->n_vocab, seed, 40);
        gr_grammar_free(&g);
    }
    cr_expect_gt(masks, 1500);
}

/* Tables that are thrown away in the middle of a text: all else is the same. */
Test(grammar_masks, small_tables)
{
    struct gr_token_trie *trie = text_trie();
    for (size_t i = 0; i < N_SOURCES; i++) {
        struct gr_grammar *g = open_one(i, trie, 200000, 3000);
        for (uint64_t seed = 0; seed < 3; seed++)
            (void)walk(g, trie->n_vocab, seed, 40);
        gr_grammar_free(&g);
    }
}

Test(grammar_masks, a_text_that_nests_too_deeply_for_the_tables)
{
    struct gr_token_trie *trie = text_trie();
    struct gr_grammar *g = open_one(2, trie, 100000, 0);
    struct gr_grammar_state *s;
    cr_assert_eq(gr_grammar_state_new(&s, g), 0);
    int rc = 0, n = 0;
    for (; n < 100000 && !rc; n++)
        rc = gr_grammar_accept(s, '[');
    cr_expect_eq(rc, GR_E_TOO_LARGE, "%d: %s", n, gr_error());
    cr_expect_gt(n, 100);
    gr_grammar_state_reset(s);
    cr_expect_eq(gr_grammar_accept(s, '['), 0, "%s", gr_error());
    gr_grammar_state_free(&s);
    gr_grammar_free(&g);
}

/* States of one grammar do not touch each other; a copy takes tokens back. */
Test(grammar_masks, states_are_apart)
{
    struct gr_token_trie *trie = text_trie();
    struct gr_grammar *g = open_one(1, trie, 0, 0), *other = open_one(0, trie, 0, 0);
    struct gr_grammar_state *a, *b, *c;
    const uint32_t *mask;
    cr_assert(!gr_grammar_state_new(&a, g) && !gr_grammar_state_new(&b, g));
    cr_assert_eq(gr_grammar_state_new(&c, other), 0);
    gr_grammar_free(&g);
    cr_expect_null(g);
    cr_expect_eq(gr_grammar_accept(a, 'a'), 0);
    cr_expect_eq(gr_grammar_state_copy(b, a), 0);
    cr_expect_eq(gr_grammar_accept(a, 'b'), 0);
    cr_expect_eq(gr_grammar_accept(a, 'c'), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "token 99, 'c', cannot follow here"), "%s", gr_error());
    cr_expect(gr_grammar_may_end(a) && !gr_grammar_may_end(b));
    cr_expect_eq(gr_grammar_state_copy(a, b), 0);
    cr_expect_eq(gr_grammar_accept(a, 'a'), 0);
    cr_expect_eq(gr_grammar_state_copy(a, c), GR_E_INVALID);
    cr_expect_eq(gr_grammar_accept(a, -1), GR_E_INVALID);
    cr_expect_eq(gr_grammar_accept(a, trie->n_vocab), GR_E_INVALID);
    /* Behind the end nothing but the end follows. */
    gr_grammar_state_reset(b);
    cr_expect_eq(gr_grammar_accept(b, END), 0);
    cr_expect_eq(gr_grammar_accept(b, 'a'), GR_E_INVALID);
    cr_expect_eq(gr_grammar_allowed(b, &mask), 0);
    for (int32_t id = 0; id < trie->n_vocab; id++)
        cr_expect_eq(gr_sample_allowed(mask, id), id == END);
    gr_grammar_state_free(&a);
    gr_grammar_state_free(&b);
    gr_grammar_state_free(&c);
    gr_grammar_free(&other);
}

/* Tokens with the same bytes: a letter, and the byte of it. */
Test(grammar_masks, equal_tokens)
{
    struct gr_vocab_source source = gr_vocab_source_new("llama");
    const struct gr_str tokens[] = {{"<unk>", 5}, {"</s>", 4}, {"<0x61>", 6},
                                    {"a", 1},     {"aa", 2},   {"b", 1}};
    const int32_t types[] = {GR_TOKEN_UNKNOWN, GR_TOKEN_CONTROL, GR_TOKEN_BYTE,
                             GR_TOKEN_NORMAL,  GR_TOKEN_NORMAL,  GR_TOKEN_NORMAL};
    const float scores[6] = {0};
    struct gr_token_trie *trie;
    struct gr_grammar *g;
    struct gr_grammar_state *s;
    struct gr_vocab *v;
    const uint32_t *mask;
    source.tokens = tokens, source.types = types, source.scores = scores;
    source.n_tok = source.n_types = source.n_scores = 6;
    source.special[GR_SPECIAL_UNK] = 0, source.special[GR_SPECIAL_EOS] = 1;
    cr_assert_eq(gr_vocab_open_source(&v, &source), 0, "%s", gr_error());
    cr_assert_eq(gr_token_trie_new(&trie, v), 0);
    cr_assert_eq(gr_grammar_from_gbnf(&g, "root ::= \"a\" .?", 15, trie), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_state_new(&s, g), 0);
    cr_expect(gr_grammar_allowed(s, &mask) == 0 && mask[0] == 0x1c, "%x", mask[0]);
    cr_expect_eq(gr_grammar_accept(s, 2), 0);
    cr_expect(gr_grammar_allowed(s, &mask) == 0 && mask[0] == 0x2e, "%x", mask[0]);
    gr_grammar_state_free(&s);
    gr_grammar_free(&g);
    gr_token_trie_free(&trie);
    gr_vocab_close(&v);
}

/* A vocabulary without a token for what the grammar wants, or for the end. */
Test(grammar_masks, no_token_follows)
{
    struct gr_vocab_source source = gr_vocab_source_new("gpt2");
    const struct gr_str tokens[] = {{"a", 1}, {"b", 1}};
    struct gr_token_trie *trie;
    struct gr_grammar *g;
    struct gr_grammar_state *s;
    struct gr_vocab *v;
    const uint32_t *mask;
    source.pre = (struct gr_str){"gpt-2", 5};
    source.tokens = source.merges = tokens, source.n_tok = 2;
    cr_assert_eq(gr_vocab_open_source(&v, &source), 0, "%s", gr_error());
    cr_assert_eq(gr_token_trie_new(&trie, v), 0);
    cr_assert_eq(gr_grammar_from_gbnf(&g, "root ::= \"a\" \"c\"?", 17, trie), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_state_new(&s, g), 0);
    cr_expect_eq(gr_grammar_allowed(s, &mask), 0);
    cr_expect_eq(gr_grammar_accept(s, 0), 0);
    cr_expect_eq(gr_grammar_allowed(s, &mask), GR_E_CHECK);
    cr_expect(strstr(gr_error(), "no token that says so"), "%s", gr_error());
    gr_grammar_state_free(&s);
    gr_grammar_free(&g);
    cr_assert_eq(gr_grammar_from_gbnf(&g, "root ::= \"ca\"", 13, trie), 0, "%s", gr_error());
    cr_assert_eq(gr_grammar_state_new(&s, g), 0);
    cr_expect_eq(gr_grammar_allowed(s, &mask), GR_E_CHECK);
    cr_expect(strstr(gr_error(), "no token of the vocabulary continues"), "%s", gr_error());
    gr_grammar_state_free(&s);
    gr_grammar_free(&g);
    gr_token_trie_free(&trie);
    gr_vocab_close(&v);
}

/* Each allocation fails in turn: an error, nothing is lost, and the next attempt succeeds. */
static bool attempt(const struct gr_token_trie *trie, size_t i)
{
    size_t n = sizeof grammars / sizeof *grammars;
    const char *text = i < n ? grammars[i] : schemas[i - n];
    struct gr_grammar_state *s = NULL;
    struct gr_grammar *g;
    const uint32_t *mask;
    int rc = (i < n ? gr_grammar_from_gbnf : gr_grammar_from_schema)(&g, text, strlen(text), trie);
    if (!rc)
        rc = gr_grammar_state_new(&s, g);
    for (int k = 0; k < 4 && !rc; k++) {
        rc = gr_grammar_allowed(s, &mask);
        for (int32_t id = 'Z'; id < 300 && !rc; id++)
            if (gr_sample_allowed(mask, id) && id != END) {
                rc = gr_grammar_accept(s, id);
                break;
            }
    }
    gr_grammar_state_free(&s);
    gr_grammar_free(&g);
    return rc == 0;
}

Test(grammar_masks, allocations_that_fail)
{
    struct gr_token_trie *trie = text_trie();
    for (size_t i = 0; i < N_SOURCES; i++) {
        size_t before = gr_alloc_held(NULL);
        bool done = false;
        for (uint64_t k = 1; !done && k < 3000; k++) {
            (void)gr_alloc_fail_at(k, 0);
            done = attempt(trie, i);
            done &= gr_alloc_fail_at(0, 0) < k;
            cr_assert_eq(gr_alloc_held(NULL), before, "source %zu, allocation %d", i, (int)k);
        }
        cr_expect(done, "source %zu", i);
    }
}

/* Takes the bytes of a text, with a mask in front of each. */
static int take(struct gr_grammar_state *s, const char *text)
{
    const uint32_t *mask;
    int rc = 0;
    gr_grammar_state_reset(s);
    for (; *text && !rc; text++) {
        rc = gr_grammar_allowed(s, &mask);
        if (!rc)
            rc = gr_grammar_accept(s, (uint8_t)*text);
    }
    return rc;
}

/* Each allocation of a text fails in turn: the state is reset and goes on with another text. */
Test(grammar_masks, another_text_after_an_allocation_that_failed)
{
    static char one[81], other[601], grammar[800];
    const size_t n_one = sizeof one - 1, n_other = sizeof other - 1;
    for (size_t i = 0; i < n_other; i++)
        other[i] = (char)('a' + i % 25 * i % 23);
    for (size_t i = 0; i < n_one; i++)
        one[i] = (char)('A' + i % 26);
    snprintf(grammar, sizeof grammar, "root ::= \"%s\" | \"%s\"", one, other);
    bool done = false;
    for (uint64_t k = 1; !done && k < 3000; k++) {
        struct gr_grammar_state *s = open_gbnf(grammar);
        (void)gr_alloc_fail_at(k, 0);
        int rc = take(s, one);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_assert_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "allocation %d: %s", (int)k, gr_error());
        cr_assert_eq(take(s, other), 0, "allocation %d: %s", (int)k, gr_error());
        cr_assert(gr_grammar_may_end(s));
        gr_grammar_state_free(&s);
    }
    cr_expect(done);
}

/* Tokens that are never generated cannot be named. */
Test(grammar_masks, tokens_of_types_that_are_not_generated)
{
    struct gr_vocab_source source = gr_vocab_source_new("llama");
    const struct gr_str tokens[] = {{"<unk>", 5}, {"</s>", 4}, {"<u>", 3}, {"<v>", 3}, {"a", 1}};
    const int32_t types[] = {GR_TOKEN_UNKNOWN, GR_TOKEN_CONTROL, GR_TOKEN_UNUSED,
                             GR_TOKEN_UNDEFINED, GR_TOKEN_NORMAL};
    static const char *const refused[] = {"root ::= <[0]>", "root ::= \"a\" <[2]>",
                                          "root ::= !<[3]>"};
    const float scores[5] = {0};
    struct gr_token_trie *trie;
    struct gr_grammar *g;
    struct gr_vocab *v;
    source.tokens = tokens, source.types = types, source.scores = scores;
    source.n_tok = source.n_types = source.n_scores = 5;
    source.special[GR_SPECIAL_UNK] = 0, source.special[GR_SPECIAL_EOS] = 1;
    cr_assert_eq(gr_vocab_open_source(&v, &source), 0, "%s", gr_error());
    cr_assert_eq(gr_token_trie_new(&trie, v), 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int rc = gr_grammar_from_gbnf(&g, refused[i], strlen(refused[i]), trie);
        cr_expect_eq(rc, GR_E_INVALID, "%s", refused[i]);
        cr_expect(rc && strstr(gr_error(), "this token is never generated"), "%s", gr_error());
        gr_grammar_free(&g);
    }
    cr_assert_eq(gr_grammar_from_gbnf(&g, "root ::= <[4]>", 14, trie), 0, "%s", gr_error());
    gr_grammar_free(&g);
    gr_token_trie_free(&trie);
    gr_vocab_close(&v);
}
