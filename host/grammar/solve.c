/* Facts about rules that follow from their parts: which may be empty, which have a text at all. */
#include "grammar/solve.h"

#include "base/checked.h"
#include "gr/status.h"

struct solver {
    const struct gr_rules *r;
    bool *holds;                    /* [n_node + n_rule]: nodes, then rules */
    uint32_t *parent, *missing;     /* [n_node]; a sequence holds when no child is missing */
    uint32_t *rule_of;              /* [n_node] 1 + the rule whose body it is */
    uint32_t *first_ref, *next_ref; /* [n_rule] 1 + a node that refers to it; [n_node] */
    uint32_t *queue, n_queue;
};

static void found(struct solver *s, uint32_t node)
{
    if (s->holds[node])
        return;
    s->holds[node] = true;
    s->queue[s->n_queue++] = node;
}

/* Returns whether a node holds whatever its children do. */
static bool holds_alone(const struct gr_rule_node *n, bool empty)
{
    switch (n->kind) {
    case GR_RULE_LITERAL:
    case GR_RULE_TOKEN:
        return !empty;
    case GR_RULE_CLASS:
        return !empty && n->b > 0;
    case GR_RULE_SEQ:
        return !n->child;
    case GR_RULE_REPEAT:
        return n->a == 0 || !n->child;
    default:
        return false;
    }
}

static void prepare(struct solver *s)
{
    const struct gr_rules *r = s->r;
    for (uint32_t i = 0; i < r->nodes.n; i++) {
        const struct gr_rule_node *n = gr_rules_node(r, i);
        for (uint32_t c = n->child; c; c = gr_rules_node(r, c)->next)
            s->parent[c] = i, s->missing[i]++;
        if (n->kind == GR_RULE_REF) {
            s->next_ref[i] = s->first_ref[n->a];
            s->first_ref[n->a] = i + 1;
        }
    }
    for (uint32_t i = 0; i < r->rules.n; i++)
        if (gr_rules_at(r, i)->body)
            s->rule_of[gr_rules_at(r, i)->body] = i + 1;
}

static void rule_found(struct solver *s, uint32_t rule)
{
    s->holds[s->r->nodes.n + rule] = true;
    for (uint32_t i = s->first_ref[rule]; i; i = s->next_ref[i - 1])
        found(s, i - 1);
}

static void solve(struct solver *s, bool empty)
{
    const struct gr_rules *r = s->r;
    for (uint32_t i = 0; i < r->nodes.n; i++)
        if (holds_alone(gr_rules_node(r, i), empty))
            found(s, i);
    for (uint32_t i = 0; i < r->rules.n; i++)
        if (!gr_rules_at(r, i)->body)
            rule_found(s, i);
    for (uint32_t i = 0; i < s->n_queue; i++) {
        uint32_t node = s->queue[i], up = s->parent[node];
        if (s->rule_of[node])
            rule_found(s, s->rule_of[node] - 1);
        if (up && (gr_rules_node(r, up)->kind != GR_RULE_SEQ || --s->missing[up] == 0))
            found(s, up);
    }
}

static bool *solve_for(const struct gr_rules *r, bool empty)
{
    size_t n = r->nodes.n, n_rule = r->rules.n;
    struct solver s = {.r = r};
    uint32_t *memory = gr_calloc(5 * n + n_rule, sizeof *memory);
    s.holds = gr_calloc(n + n_rule, sizeof *s.holds);
    if (memory && s.holds) {
        s.parent = memory, s.missing = memory + n, s.rule_of = memory + 2 * n;
        s.next_ref = memory + 3 * n, s.queue = memory + 4 * n, s.first_ref = memory + 5 * n;
        prepare(&s);
        solve(&s, empty);
    } else {
        gr_free(s.holds);
        s.holds = NULL;
    }
    gr_free(memory);
    return s.holds;
}

bool *gr_rules_empty(const struct gr_rules *r)
{
    return solve_for(r, true);
}

bool *gr_rules_ending(const struct gr_rules *r)
{
    return solve_for(r, false);
}
