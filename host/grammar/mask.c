#include "grammar/mask.h"

#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

struct gr_context {
    uint32_t *mask;   /* NULL: not made yet */
    uint32_t *leaves; /* [n_leave] nodes of the trie with more below them, at which the rule ends */
    uint32_t n_leave;
};

int gr_masks_init(struct gr_masks *m, const struct gr_token_trie *trie, struct gr_automaton *a,
                  size_t limit)
{
    *m = (struct gr_masks){.trie = trie, .automaton = a, .limit = limit};
    m->path = gr_calloc((size_t)gr_token_trie_depth(trie) + 1, sizeof *m->path);
    return m->path ? 0 : GR_E_NOMEM_HOST;
}

static size_t mask_bytes(const struct gr_masks *m)
{
    return (size_t)m->trie->n_word * sizeof(uint32_t);
}

void gr_masks_forget_states(struct gr_masks *m)
{
    uint32_t **mask = m->of_state.data;
    for (size_t i = 0; i < m->of_state.n; i++)
        if (mask[i]) {
            gr_free(mask[i]);
            m->held -= mask_bytes(m);
        }
    m->of_state.n = 0;
}

static void forget_contexts(struct gr_masks *m)
{
    struct gr_context *c = m->contexts.data;
    for (size_t i = 0; i < m->contexts.n; i++) {
        gr_free(c[i].mask);
        gr_free(c[i].leaves);
    }
    m->contexts.n = 0;
    gr_intern_fini(&m->places);
    m->held = 0;
}

void gr_masks_fini(struct gr_masks *m)
{
    if (m->trie)
        gr_masks_forget_states(m);
    forget_contexts(m);
    gr_vec_fini(&m->contexts);
    gr_vec_fini(&m->of_state);
    gr_vec_fini(&m->leaves);
    gr_vec_fini(&m->group);
    gr_free(m->path);
    *m = (struct gr_masks){0};
}

/* Walks through the nodes [i, end) of the trie, which lie below a text of `depth` bytes that leads
 * to `state`; adds the tokens that the automaton takes to `mask`, and with leaves the nodes at
 * which an unknown stack would go on. */
static int walk(struct gr_masks *m, uint32_t i, uint32_t end, uint32_t depth, uint32_t state,
                uint32_t *mask, struct gr_vec *leaves)
{
    const struct gr_token_trie *t = m->trie;
    struct gr_automaton *a = m->automaton;
    uint32_t *path = m->path, next;
    path[depth] = state;
    for (; i < end; a->work++) {
        int rc = gr_automaton_step(a, path[t->depth[i] - 1], t->label[i], &next);
        if (rc)
            return rc;
        if (next == GR_STATE_DEAD) {
            i = t->next[i];
            continue;
        }
        path[t->depth[i]] = next;
        for (int32_t id = t->token[i]; id >= 0; id = t->same[id])
            mask[id / 32] |= 1u << id % 32;
        if (leaves && t->next[i] > i + 1 && gr_automaton_flags(a, next) & GR_STATE_LEAVES) {
            rc = gr_vec_append(leaves, &i, 1, sizeof i);
            if (rc)
                return rc;
        }
        i++;
    }
    return gr_automaton_check_work(a);
}

static int make_context(struct gr_masks *m, uint32_t places, const struct gr_token_part *part,
                        struct gr_context *c)
{
    uint32_t state, n = gr_intern_at(&m->places, places)->n;
    m->leaves.n = 0;
    if (m->held > 2 * m->limit)
        return gr_fail(GR_E_TOO_LARGE,
                       "the masks of the grammar at one point of the text take more "
                       "than %zu MiB: make its rules less ambiguous",
                       m->limit >> 19);
    int rc = gr_automaton_context(m->automaton, gr_intern_pairs(&m->places, places), n, &state);
    uint32_t *mask = rc ? NULL : gr_calloc((size_t)m->trie->n_word, sizeof *mask);
    if (!mask)
        return rc ? rc : GR_E_NOMEM_HOST;
    rc = walk(m, part->begin, part->end, 0, state, mask, &m->leaves);
    c->n_leave = (uint32_t)m->leaves.n;
    c->leaves = rc ? NULL : gr_calloc(c->n_leave, sizeof *c->leaves);
    if (!c->leaves) {
        gr_free(mask);
        return rc ? rc : GR_E_NOMEM_HOST;
    }
    if (c->n_leave)
        memcpy(c->leaves, m->leaves.data, c->n_leave * sizeof *c->leaves);
    c->mask = mask;
    m->held += mask_bytes(m) + c->n_leave * sizeof *c->leaves;
    return 0;
}

/* Finds or makes the context of m->group for the tokens of a part. */
static int find_context(struct gr_masks *m, uint32_t part, const struct gr_context **out)
{
    uint32_t id, n = gr_pairs_sort(m->group.data, (uint32_t)m->group.n);
    int rc = gr_intern(&m->places, m->group.data, n, part, &id);
    while (!rc && m->contexts.n <= id)
        if (!gr_vec_push(&m->contexts, sizeof **out))
            rc = GR_E_NOMEM_HOST;
    if (rc)
        return rc;
    struct gr_context *c = (struct gr_context *)m->contexts.data + id;
    *out = c;
    return c->mask ? 0 : make_context(m, id, &m->trie->part[part], c);
}

/* Adds what the places of m->group, whose stack is `stack`, allow of a part. */
static int add_group(struct gr_masks *m, uint32_t part, uint32_t stack, uint32_t *mask)
{
    const struct gr_token_trie *t = m->trie;
    const struct gr_context *c;
    uint32_t after;
    int rc = find_context(m, part, &c);
    if (rc)
        return rc;
    for (int32_t w = 0; w < t->n_word; w++)
        mask[w] |= c->mask[w];
    if (!c->n_leave)
        return 0;
    rc = gr_automaton_after(m->automaton, stack, &after);
    for (uint32_t i = 0; i < c->n_leave && !rc; i++) {
        uint32_t node = c->leaves[i];
        rc = walk(m, node + 1, t->next[node], t->depth[node], after, mask, NULL);
    }
    return rc;
}

/* Adds the tokens that the state takes by their numbers. */
static void add_tokens(struct gr_masks *m, uint32_t state, uint32_t *mask)
{
    const struct gr_network *net = m->automaton->net;
    const struct gr_intern *states = &m->automaton->states;
    for (uint32_t i = 0; i < gr_intern_at(states, state)->n; i++) {
        struct gr_place p = gr_network_place(net, gr_intern_pairs(states, state)[i].a);
        for (uint32_t k = net->first_edge[p.state]; k < net->first_edge[p.state + 1]; k++) {
            const struct gr_edge *e = &net->edge[k];
            uint32_t bit = 1u << e->arg % 32, word = e->arg / 32;
            if (e->kind == GR_EDGE_TOKEN)
                mask[word] |= bit;
            for (uint32_t w = 0; e->kind == GR_EDGE_OTHER && w < (uint32_t)m->trie->n_word; w++)
                mask[w] |= m->trie->any[w] & (w == word ? ~bit : UINT32_MAX);
        }
    }
}

/* Adds the tokens of a part that the state takes by their bytes. */
static int add_part(struct gr_masks *m, uint32_t part, uint32_t state, uint32_t *mask)
{
    struct gr_automaton *a = m->automaton;
    uint32_t n = gr_intern_at(&a->states, state)->n;
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc;) {
        uint32_t stack = gr_intern_pairs(&a->states, state)[i].b;
        m->group.n = 0;
        for (; i < n && gr_intern_pairs(&a->states, state)[i].b == stack && !rc; i++) {
            struct gr_pair p = {gr_intern_pairs(&a->states, state)[i].a, 0};
            p.a = gr_network_alike(a->net, p.a, m->trie->part[part].max_depth);
            rc = gr_vec_append(&m->group, &p, 1, sizeof p);
        }
        if (!rc)
            rc = add_group(m, part, stack, mask);
    }
    return rc;
}

static int make_mask(struct gr_masks *m, uint32_t state, uint32_t *mask)
{
    uint32_t flags = gr_automaton_flags(m->automaton, state);
    int rc = 0;
    for (uint32_t part = 0; part < GR_TOKEN_PARTS && !rc; part++)
        if (m->trie->part[part].max_depth)
            rc = add_part(m, part, state, mask);
    if (flags & GR_STATE_TOKENS)
        add_tokens(m, state, mask);
    for (int32_t w = 0; w < m->trie->n_word && flags & GR_STATE_MAY_END; w++)
        mask[w] |= m->trie->eog[w];
    return rc;
}

int gr_masks_of(struct gr_masks *m, uint32_t state, const uint32_t **mask)
{
    m->automaton->work = 0;
    if (m->held > m->limit) {
        gr_masks_forget_states(m);
        forget_contexts(m);
    }
    while (m->of_state.n <= state)
        if (!gr_vec_push(&m->of_state, sizeof(uint32_t *)))
            return GR_E_NOMEM_HOST;
    uint32_t *have = ((uint32_t **)m->of_state.data)[state];
    if (!have) {
        have = gr_calloc((size_t)m->trie->n_word, sizeof *have);
        int rc = have ? make_mask(m, state, have) : GR_E_NOMEM_HOST;
        if (rc) {
            gr_free(have);
            return rc;
        }
        ((uint32_t **)m->of_state.data)[state] = have;
        m->held += mask_bytes(m);
    }
    *mask = have;
    return 0;
}
