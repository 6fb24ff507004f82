/* Any bytes as a grammar or a schema, then random tokens: it is refused in one line, or its masks
 * have the tokens that can be accepted, until the text ends or no token follows; little memory is
 * held, and all is given back.
 *
 * Input: kind and seed, a byte each; the rest is the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "gr/sample.h"
#include "gr/status.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"
#include "support/byte_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken promise: %s: %s\n", what, gr_error());
    abort();
}

static const struct gr_token_trie *vocabulary(void)
{
    static const char *const texts[] = {"<|end|>", "<|think|>", "{\"",  "\":", "\",", "\"}",
                                        "}}",      "true",      "null", "ab",  "aa",  "12",
                                        ", ",      "],",        "[[",   "\n  "};
    static struct gr_token_trie *trie;
    struct gr_vocab *v;
    if (!trie)
        must(!byte_vocab_open(&v, texts, sizeof texts / sizeof *texts) &&
                 !gr_token_trie_new(&trie, v),
             "the vocabulary opens");
    return trie;
}

static int32_t draw(const uint32_t *mask, int32_t n_vocab, struct gr_rng *rng)
{
    int32_t id = -1, seen = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (gr_sample_allowed(mask, i) && gr_rng_below(rng, (uint32_t)++seen) == 0)
            id = i;
    return id;
}

/* One token: one that is allowed, sometimes after one that is not. Returns whether to go on. */
static bool step(struct gr_grammar_state *s, struct gr_rng *rng, int32_t n_vocab)
{
    const uint32_t *mask;
    int rc = gr_grammar_allowed(s, &mask);
    must(rc == 0 || rc == GR_E_CHECK || rc == GR_E_TOO_LARGE, "a mask or a reason");
    if (rc)
        return false;
    int32_t other = (int32_t)gr_rng_below(rng, (uint32_t)n_vocab);
    int32_t id = draw(mask, n_vocab, rng);
    if (!gr_sample_allowed(mask, other)) {
        rc = gr_grammar_accept(s, other);
        must(rc == GR_E_INVALID || rc == GR_E_TOO_LARGE, "what the mask leaves out is refused");
    }
    must(id != 256 || gr_grammar_may_end(s), "an end where the grammar may end");
    rc = gr_grammar_accept(s, id);
    must(rc == 0 || rc == GR_E_TOO_LARGE, "what the mask has is accepted");
    return rc == 0 && id != 256;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    const struct gr_token_trie *trie = vocabulary();
    size_t before = gr_alloc_held(NULL), peak;
    struct gr_rng rng = gr_rng_new(n > 1 ? p[1] : 0);
    struct gr_grammar_state *s = NULL;
    struct gr_grammar *g;
    if (n < 2)
        return 0;
    int rc = (p[0] & 1 ? gr_grammar_from_schema : gr_grammar_from_gbnf)(&g, (const char *)p + 2,
                                                                        n - 2, trie);
    must(rc == 0 || rc == GR_E_INVALID || rc == GR_E_TOO_LARGE, "a bad text is a bad grammar");
    must(!g == (rc != 0) && (rc == 0 || !strchr(gr_error(), '\n')), "a grammar, or one line");
    if (g)
        must(gr_grammar_state_new(&s, g) == 0, "a state");
    gr_grammar_free(&g);
    for (int i = 0; s && i < 200 && step(s, &rng, trie->n_vocab); i++)
        ;
    gr_grammar_state_free(&s);
    (void)gr_alloc_held(&peak);
    must(peak < (size_t)256 << 20, "at most 256 MiB");
    must(gr_alloc_held(NULL) == before, "all memory is given back");
    return 0;
}
