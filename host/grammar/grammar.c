#include "grammar/grammar.h"

#include <pthread.h>
#include <string.h>

#include "gr/status.h"
#include "grammar/gbnf.h"
#include "grammar/mask.h"

struct gr_grammar {
    struct gr_network net;
    const struct gr_token_trie *trie;
    pthread_mutex_t lock; /* protects what follows */
    struct gr_automaton automaton;
    struct gr_masks masks;
    uint32_t start;
    size_t n_ref; /* states, and the owner */
    struct gr_grammar_state *states;
    size_t n_state;
};

struct gr_grammar_state {
    struct gr_grammar *grammar;
    struct gr_grammar_state *next, *before; /* of the same grammar */
    uint32_t state;
    bool ended;     /* a token that ends the text was accepted */
    uint32_t *mask; /* [n_word] */
};

static void release(struct gr_grammar *g)
{
    pthread_mutex_lock(&g->lock);
    size_t left = --g->n_ref;
    pthread_mutex_unlock(&g->lock);
    if (left)
        return;
    gr_masks_fini(&g->masks);
    gr_automaton_fini(&g->automaton);
    gr_network_fini(&g->net);
    pthread_mutex_destroy(&g->lock);
    gr_free(g);
}

int gr_grammar_new(struct gr_grammar **out, const struct gr_rules *rules,
                   const struct gr_token_trie *trie, size_t state_bytes, size_t mask_bytes)
{
    struct gr_grammar *g = gr_calloc(1, sizeof *g);
    *out = g;
    if (!g)
        return GR_E_NOMEM_HOST;
    g->trie = trie, g->n_ref = 1;
    pthread_mutex_init(&g->lock, NULL);
    int rc = gr_network_build(&g->net, rules);
    if (!rc)
        rc = gr_automaton_init(&g->automaton, &g->net,
                               state_bytes ? state_bytes : GR_GRAMMAR_STATE_BYTES);
    if (!rc)
        rc = gr_masks_init(&g->masks, trie, &g->automaton,
                           mask_bytes ? mask_bytes : GR_GRAMMAR_MASK_BYTES);
    if (!rc)
        rc = gr_automaton_start(&g->automaton, &g->start);
    if (rc)
        gr_grammar_free(out);
    return rc;
}

int gr_grammar_from_gbnf(struct gr_grammar **out, const char *text, size_t n,
                         const struct gr_token_trie *trie)
{
    struct gr_rules rules;
    *out = NULL;
    int rc = gr_rules_init(&rules);
    if (!rc)
        rc = gr_gbnf_read(&rules, text, n, trie->vocab);
    if (!rc)
        rc = gr_grammar_new(out, &rules, trie, 0, 0);
    gr_rules_fini(&rules);
    return rc;
}

void gr_grammar_free(struct gr_grammar **grammar)
{
    if (!grammar || !*grammar)
        return;
    release(*grammar);
    *grammar = NULL;
}

/* ---- states ---- */

int gr_grammar_state_new(struct gr_grammar_state **out, struct gr_grammar *g)
{
    struct gr_grammar_state *s = gr_calloc(1, sizeof *s);
    uint32_t *mask = gr_calloc((size_t)g->trie->n_word, sizeof *mask);
    *out = s && mask ? s : NULL;
    if (!*out) {
        gr_free(s);
        gr_free(mask);
        return GR_E_NOMEM_HOST;
    }
    s->grammar = g, s->mask = mask;
    pthread_mutex_lock(&g->lock);
    s->state = g->start;
    s->next = g->states;
    if (s->next)
        s->next->before = s;
    g->states = s;
    g->n_ref++, g->n_state++;
    pthread_mutex_unlock(&g->lock);
    return 0;
}

void gr_grammar_state_free(struct gr_grammar_state **state)
{
    struct gr_grammar_state *s = state ? *state : NULL;
    if (!s)
        return;
    struct gr_grammar *g = s->grammar;
    pthread_mutex_lock(&g->lock);
    *(s->before ? &s->before->next : &g->states) = s->next;
    if (s->next)
        s->next->before = s->before;
    g->n_state--;
    pthread_mutex_unlock(&g->lock);
    release(g);
    gr_free(s->mask);
    gr_free(s);
    *state = NULL;
}

int gr_grammar_state_copy(struct gr_grammar_state *to, const struct gr_grammar_state *from)
{
    if (to->grammar != from->grammar)
        return gr_fail(GR_E_INVALID, "grammar: the states belong to different grammars");
    pthread_mutex_lock(&to->grammar->lock);
    to->state = from->state, to->ended = from->ended;
    pthread_mutex_unlock(&to->grammar->lock);
    return 0;
}

void gr_grammar_state_reset(struct gr_grammar_state *s)
{
    pthread_mutex_lock(&s->grammar->lock);
    s->state = s->grammar->start, s->ended = false;
    pthread_mutex_unlock(&s->grammar->lock);
}

int32_t gr_grammar_n_vocab(const struct gr_grammar_state *s)
{
    return s->grammar->trie->n_vocab;
}

/* Keeps the states in use alone, once the tables are half full. */
static int collect(struct gr_grammar *g)
{
    size_t n = 1;
    if (gr_automaton_bytes(&g->automaton) <= g->automaton.limit / 2)
        return 0;
    uint32_t **keep = gr_calloc(g->n_state + 1, sizeof *keep);
    if (!keep)
        return GR_E_NOMEM_HOST;
    keep[0] = &g->start;
    for (struct gr_grammar_state *s = g->states; s; s = s->next)
        keep[n++] = &s->state;
    int rc = gr_automaton_collect(&g->automaton, keep, n);
    if (!rc)
        gr_masks_forget_states(&g->masks);
    gr_free(keep);
    return rc;
}

static int refuse(const struct gr_grammar_state *s, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    (void)gr_vocab_piece(s->grammar->trie->vocab, id, true, &p, &n);
    return gr_fail(GR_E_INVALID, "grammar: token %d, %s, cannot follow here", id, gr_quote(p, n));
}

/* The state behind a token that does not end a text. */
static int step_token(struct gr_grammar *g, uint32_t state, int32_t id, uint32_t *next)
{
    const char *p;
    size_t n;
    int rc = gr_vocab_piece(g->trie->vocab, id, false, &p, &n);
    *next = n ? state : GR_STATE_DEAD;
    g->automaton.work = 0;
    for (size_t i = 0; i < n && !rc && *next != GR_STATE_DEAD; i++)
        rc = gr_automaton_step(&g->automaton, *next, (uint8_t)p[i], next);
    if (!rc && gr_automaton_flags(&g->automaton, state) & GR_STATE_TOKENS)
        rc = gr_automaton_token(&g->automaton, state, (uint32_t)id, *next, next);
    return rc;
}

static int accept_locked(struct gr_grammar_state *s, int32_t id)
{
    struct gr_grammar *g = s->grammar;
    uint32_t next = GR_STATE_DEAD;
    int rc = collect(g);
    bool may_end = !rc && gr_automaton_flags(&g->automaton, s->state) & GR_STATE_MAY_END;
    if (!rc && gr_vocab_is_eog(g->trie->vocab, id)) {
        rc = s->ended || may_end ? 0 : refuse(s, id);
        s->ended |= !rc;
        return rc;
    }
    if (!rc && !s->ended && g->trie->any[id / 32] >> id % 32 & 1)
        rc = step_token(g, s->state, id, &next);
    if (!rc && next == GR_STATE_DEAD)
        rc = refuse(s, id);
    if (!rc)
        s->state = next;
    return rc;
}

int gr_grammar_accept(struct gr_grammar_state *s, int32_t id)
{
    int32_t n = s->grammar->trie->n_vocab;
    if (id < 0 || id >= n)
        return gr_fail(GR_E_INVALID, "grammar: token %d, but the vocabulary ends at %d", id, n - 1);
    pthread_mutex_lock(&s->grammar->lock);
    int rc = accept_locked(s, id);
    pthread_mutex_unlock(&s->grammar->lock);
    return rc;
}

bool gr_grammar_may_end(const struct gr_grammar_state *s)
{
    struct gr_grammar *g = s->grammar;
    pthread_mutex_lock(&g->lock);
    bool may_end = s->ended || gr_automaton_flags(&g->automaton, s->state) & GR_STATE_MAY_END;
    pthread_mutex_unlock(&g->lock);
    return may_end;
}

static int check_some(const struct gr_grammar_state *s)
{
    uint32_t any = 0;
    for (int32_t w = 0; w < s->grammar->trie->n_word; w++)
        any |= s->mask[w];
    if (any)
        return 0;
    return gr_fail(GR_E_CHECK,
                   gr_grammar_may_end(s)
                       ? "grammar: the text has ended, but the vocabulary has no token that says so"
                       : "grammar: no token of the vocabulary continues the text here");
}

int gr_grammar_allowed(struct gr_grammar_state *s, const uint32_t **mask)
{
    struct gr_grammar *g = s->grammar;
    const uint32_t *m = g->trie->eog;
    pthread_mutex_lock(&g->lock);
    int rc = collect(g);
    if (!rc && !s->ended)
        rc = gr_masks_of(&g->masks, s->state, &m);
    if (!rc)
        memcpy(s->mask, m, (size_t)g->trie->n_word * sizeof *m);
    pthread_mutex_unlock(&g->lock);
    *mask = s->mask;
    return rc ? rc : check_some(s);
}
