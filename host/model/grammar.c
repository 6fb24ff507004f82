/* The grammar part of gpurun.h, over host/grammar. */
#include "grammar/grammar.h"

#include "answer/rules.h"
#include "gr/status.h"
#include "grammar/schema.h"
#include "model/model.h"

/* The tokens of the model's vocabulary, which all its grammars share; made at the first one. */
static int find_trie(const struct gr_model *model, const struct gr_token_trie **trie)
{
    struct gr_model *m = (struct gr_model *)model; /* what the lock protects changes */
    int rc = 0;
    if (gr_vocab_kind(m->vocab) == GR_VOCAB_NONE)
        return gr_fail(GR_E_UNSUPPORTED, "grammar: the model has no vocabulary with texts");
    pthread_mutex_lock(&m->lock);
    if (!m->trie)
        rc = gr_token_trie_new(&m->trie, m->vocab);
    *trie = m->trie;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int gr_grammar_gbnf(struct gr_grammar **out, const struct gr_model *model, const char *text,
                    size_t n)
{
    const struct gr_token_trie *trie = NULL;
    *out = NULL;
    int rc = find_trie(model, &trie);
    return rc ? rc : gr_grammar_from_gbnf(out, text, n, trie);
}

int gr_grammar_schema(struct gr_grammar **out, const struct gr_model *model, const char *schema,
                      size_t n)
{
    const struct gr_token_trie *trie = NULL;
    *out = NULL;
    int rc = find_trie(model, &trie);
    return rc ? rc : gr_grammar_from_schema(out, schema, n, trie);
}

int gr_answer_grammar(struct gr_grammar **out, const struct gr_model *model,
                      const struct gr_answer_calls *calls)
{
    const struct gr_token_trie *trie = NULL;
    struct gr_rules rules;
    *out = NULL;
    int rc = find_trie(model, &trie);
    if (rc)
        return rc;
    rc = gr_rules_init(&rules);
    if (!rc)
        rc = gr_answer_rules(&rules, calls, model->vocab);
    if (!rc)
        rc = gr_grammar_new(out, &rules, trie, 0, 0);
    gr_rules_fini(&rules);
    return rc;
}
