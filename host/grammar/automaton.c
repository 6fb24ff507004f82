/* States of the automaton: the items behind a byte, with all that follows from them without one. */
#include "grammar/automaton.h"

#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

enum { MAX_ITEMS = 1 << 13, SEEN_SLOTS = 4 * MAX_ITEMS };

int gr_automaton_init(struct gr_automaton *a, const struct gr_network *net, size_t limit)
{
    const struct gr_pair text = {GR_PLACE_TEXT, 0}, unknown = {GR_PLACE_UNKNOWN, 0};
    uint32_t id;
    *a = (struct gr_automaton){.net = net, .limit = limit};
    a->caller = gr_calloc(net->n_rule, sizeof *a->caller);
    a->called = gr_calloc(net->n_rule / 64 + 1, sizeof *a->called);
    a->seen = gr_calloc(SEEN_SLOTS, sizeof *a->seen);
    a->seen_in = gr_calloc(SEEN_SLOTS, sizeof *a->seen_in);
    if (!a->caller || !a->called || !a->seen || !a->seen_in)
        return GR_E_NOMEM_HOST;
    int rc = gr_intern(&a->stacks, &text, 1, 0, &id);
    if (!rc)
        rc = gr_intern(&a->stacks, &unknown, 1, 0, &id);
    if (!rc)
        rc = gr_intern(&a->states, NULL, 0, 0, &id);
    return !rc && gr_vec_push(&a->row, sizeof(uint32_t)) ? 0 : GR_E_NOMEM_HOST;
}

void gr_automaton_fini(struct gr_automaton *a)
{
    struct gr_vec *const vecs[] = {&a->rows, &a->row,     &a->after,  &a->todo,
                                   &a->core, &a->entries, &a->callers};
    for (size_t i = 0; i < GR_COUNT(vecs); i++)
        gr_vec_fini(vecs[i]);
    gr_intern_fini(&a->states);
    gr_intern_fini(&a->stacks);
    gr_free(a->caller);
    gr_free(a->called);
    gr_free(a->seen);
    gr_free(a->seen_in);
    *a = (struct gr_automaton){0};
}

size_t gr_automaton_bytes(const struct gr_automaton *a)
{
    return (a->states.pairs.n + a->stacks.pairs.n) * sizeof(struct gr_pair) +
           (a->states.sequences.n + a->stacks.sequences.n) * (sizeof(struct gr_sequence) + 12) +
           a->rows.n * sizeof(uint32_t);
}

/* ---- making a state ---- */

static void keep(struct gr_automaton *a, int rc)
{
    a->rc = a->rc ? a->rc : rc;
}

static int too_ambiguous(void)
{
    return gr_fail(GR_E_TOO_LARGE,
                   "the grammar has more than %d ways of going on at one point of the text: make "
                   "its rules less ambiguous",
                   MAX_ITEMS);
}

static void begin(struct gr_automaton *a)
{
    if (a->rc) { /* calls that were left behind */
        memset(a->caller, 0, a->net->n_rule * sizeof *a->caller);
        memset(a->called, 0, (a->net->n_rule / 64 + 1) * sizeof *a->called);
    }
    a->todo.n = a->core.n = a->callers.n = 0;
    a->flags = 0, a->rc = 0, a->n_seen = 0;
    if (++a->turn == 0) {
        memset(a->seen_in, 0, SEEN_SLOTS * sizeof *a->seen_in);
        a->turn = 1;
    }
}

static struct gr_place find_place(struct gr_automaton *a, uint32_t number)
{
    struct gr_place p = gr_network_place(a->net, number);
    a->work += p.depth;
    return p;
}

/* Adds an item, once. */
static void visit(struct gr_automaton *a, uint32_t place, uint32_t stack)
{
    uint64_t h = ((uint64_t)place << 32 | stack) * 0x9e3779b97f4a7c15u;
    uint32_t i = (uint32_t)(h >> 40) % SEEN_SLOTS;
    for (; a->seen_in[i] == a->turn; i = (i + 1) % SEEN_SLOTS)
        if (a->seen[i].a == place && a->seen[i].b == stack)
            return;
    if (a->n_seen == MAX_ITEMS)
        keep(a, too_ambiguous());
    if (a->rc)
        return;
    a->n_seen++;
    a->work += GR_WORK_ITEM;
    a->seen_in[i] = a->turn, a->seen[i] = (struct gr_pair){place, stack};
    keep(a, gr_vec_append(&a->todo, &a->seen[i], 1, sizeof *a->seen));
}

static void leave_rule(struct gr_automaton *a, uint32_t stack)
{
    const struct gr_pair *p = gr_intern_pairs(&a->stacks, stack);
    for (uint32_t n = gr_intern_at(&a->stacks, stack)->n; n > 0; n--, p++) {
        if (p->a == GR_PLACE_TEXT)
            a->flags |= GR_STATE_MAY_END;
        else if (p->a == GR_PLACE_UNKNOWN)
            a->flags |= GR_STATE_LEAVES;
        else
            visit(a, p->a, p->b);
    }
}

static void leave_copy(struct gr_automaton *a, const struct gr_place *p, uint32_t stack)
{
    const struct gr_block *b = &a->net->block[p->block];
    uint32_t width = a->net->space[b->space].width;
    bool last = p->copy + 1 == b->copies;
    if (!last || b->loop)
        visit(a, p->outer + b->offset + (last ? p->copy : p->copy + 1) * width, stack);
    if (p->copy + 1 >= b->min)
        visit(a, p->outer + b->exit, stack);
}

static void call(struct gr_automaton *a, const struct gr_edge *e, const struct gr_place *p,
                 uint32_t stack)
{
    uint32_t rank = a->net->rank[e->arg];
    bool last = e->to == GR_SPACE_END && p->block == GR_NONE;
    const struct gr_caller c = {last ? GR_NONE : p->origin + e->to, stack, a->caller[rank]};
    if (!a->rc && a->callers.n >= MAX_ITEMS)
        keep(a, too_ambiguous());
    if (a->rc)
        return;
    keep(a, gr_vec_append(&a->callers, &c, 1, sizeof c));
    a->caller[rank] = (uint32_t)a->callers.n;
    a->called[rank / 64] |= (uint64_t)1 << rank % 64;
}

static void expand(struct gr_automaton *a, struct gr_pair item)
{
    const struct gr_network *net = a->net;
    struct gr_place p = find_place(a, item.a);
    bool takes = false;
    if (p.end && p.block != GR_NONE)
        leave_copy(a, &p, item.b);
    else if (p.end)
        leave_rule(a, item.b);
    for (uint32_t i = net->first_edge[p.state]; i < net->first_edge[p.state + 1]; i++) {
        const struct gr_edge *e = &net->edge[i];
        if (e->kind == GR_EDGE_SKIP)
            visit(a, p.origin + e->to, item.b);
        else if (e->kind == GR_EDGE_BLOCK)
            visit(a, p.origin + net->block[e->arg].offset, item.b);
        else if (e->kind == GR_EDGE_CALL)
            call(a, e, &p, item.b);
        else
            takes = true, a->flags |= e->kind == GR_EDGE_BYTE ? 0 : GR_STATE_TOKENS;
    }
    if (takes && !a->rc)
        keep(a, gr_vec_append(&a->core, &item, 1, sizeof item));
}

/* Enters the rule of a rank, whose callers are all known. */
static void enter(struct gr_automaton *a, uint32_t rank)
{
    uint32_t stack = 0, rule = a->net->by_rank[rank];
    a->entries.n = 0;
    for (uint32_t i = a->caller[rank]; i && !a->rc;) {
        struct gr_caller c = ((const struct gr_caller *)a->callers.data)[i - 1];
        const struct gr_pair one = {c.place, c.stack}, *p = &one;
        uint32_t n = 1;
        if (c.place == GR_NONE)
            p = gr_intern_pairs(&a->stacks, c.stack), n = gr_intern_at(&a->stacks, c.stack)->n;
        keep(a, gr_vec_append(&a->entries, p, n, sizeof *p));
        if (a->entries.n > MAX_ITEMS)
            keep(a, too_ambiguous());
        i = c.next;
    }
    a->caller[rank] = 0;
    a->called[rank / 64] &= ~((uint64_t)1 << rank % 64);
    uint32_t n = a->rc ? 0 : gr_pairs_sort(a->entries.data, (uint32_t)a->entries.n);
    if (!a->rc)
        keep(a, gr_intern(&a->stacks, a->entries.data, n, 0, &stack));
    if (!a->rc)
        visit(a, a->net->base[rule], stack);
}

static void expand_all(struct gr_automaton *a)
{
    while (a->todo.n && !a->rc)
        expand(a, ((struct gr_pair *)a->todo.data)[--a->todo.n]);
}

/* Closes the items: ends of rules and copies first, then calls by rank, a rule behind all that call
 * it. */
static void close_items(struct gr_automaton *a)
{
    expand_all(a);
    for (uint32_t w = 0; w <= a->net->n_rule / 64; w++)
        while (a->called[w]) {
            enter(a, w * 64 + (uint32_t)__builtin_ctzll(a->called[w]));
            expand_all(a);
        }
}

int gr_automaton_check_work(const struct gr_automaton *a)
{
    if (a->work <= GR_GRAMMAR_MAX_WORK)
        return 0;
    return gr_fail(GR_E_TOO_LARGE, "the grammar takes too long to go on with at this point of the "
                                   "text: make its rules less ambiguous");
}

static int finish(struct gr_automaton *a, uint32_t *state)
{
    if (!a->rc)
        keep(a, gr_automaton_check_work(a));
    if (!a->rc && gr_automaton_bytes(a) > a->limit)
        keep(a, gr_fail(GR_E_TOO_LARGE, "the states of the grammar take more than %zu MiB",
                        a->limit >> 20));
    uint32_t n = a->rc ? 0 : gr_pairs_sort(a->core.data, (uint32_t)a->core.n);
    if (!a->rc)
        keep(a, gr_intern(&a->states, a->core.data, n, a->flags, state));
    while (!a->rc && a->row.n < a->states.sequences.n)
        if (!gr_vec_push(&a->row, sizeof(uint32_t)))
            keep(a, GR_E_NOMEM_HOST);
    return a->rc;
}

/* ---- states ---- */

int gr_automaton_start(struct gr_automaton *a, uint32_t *state)
{
    begin(a);
    a->flags = a->net->root_empty ? GR_STATE_MAY_END : 0;
    visit(a, a->net->base[0], GR_STACK_TEXT);
    close_items(a);
    return finish(a, state);
}

int gr_automaton_context(struct gr_automaton *a, const struct gr_pair *places, uint32_t n,
                         uint32_t *state)
{
    begin(a);
    for (uint32_t i = 0; i < n && !a->rc; i++) {
        const struct gr_pair item = {places[i].a, GR_STACK_UNKNOWN};
        keep(a, gr_vec_append(&a->core, &item, 1, sizeof item));
    }
    return finish(a, state);
}

int gr_automaton_after(struct gr_automaton *a, uint32_t stack, uint32_t *state)
{
    uint32_t n = (uint32_t)a->stacks.sequences.n;
    while (a->after.n < n)
        if (!gr_vec_push(&a->after, sizeof(uint32_t)))
            return GR_E_NOMEM_HOST;
    uint32_t known = ((uint32_t *)a->after.data)[stack];
    if (known)
        return *state = known - 1, 0;
    begin(a);
    leave_rule(a, stack);
    close_items(a);
    int rc = finish(a, state);
    if (!rc)
        ((uint32_t *)a->after.data)[stack] = *state + 1;
    return rc;
}

int gr_automaton_token(struct gr_automaton *a, uint32_t state, uint32_t id, uint32_t beside,
                       uint32_t *next)
{
    const struct gr_network *net = a->net;
    const struct gr_sequence s = *gr_intern_at(&a->states, state);
    begin(a);
    for (uint32_t i = 0; i < s.n; i++) {
        struct gr_pair item = gr_intern_pairs(&a->states, state)[i];
        struct gr_place p = find_place(a, item.a);
        for (uint32_t k = net->first_edge[p.state]; k < net->first_edge[p.state + 1]; k++) {
            const struct gr_edge *e = &net->edge[k];
            if ((e->kind == GR_EDGE_TOKEN && e->arg == id) ||
                (e->kind == GR_EDGE_OTHER && e->arg != id))
                visit(a, p.origin + e->to, item.b);
        }
    }
    close_items(a);
    a->flags |= gr_automaton_flags(a, beside);
    if (!a->rc)
        keep(a, gr_vec_append(&a->core, gr_intern_pairs(&a->states, beside),
                              gr_intern_at(&a->states, beside)->n, sizeof(struct gr_pair)));
    return finish(a, next);
}

static int new_row(struct gr_automaton *a, uint32_t state)
{
    uint32_t n = a->net->n_class;
    if (a->rows.n + n > a->rows.cap &&
        gr_vec_reserve(&a->rows, 2 * (a->rows.n + n), sizeof(uint32_t)))
        return GR_E_NOMEM_HOST;
    memset((uint32_t *)a->rows.data + a->rows.n, 0, n * sizeof(uint32_t));
    ((uint32_t *)a->row.data)[state] = 1 + (uint32_t)(a->rows.n / n);
    a->rows.n += n;
    return 0;
}

int gr_automaton_make(struct gr_automaton *a, uint32_t state, uint32_t class, uint32_t *next)
{
    const struct gr_network *net = a->net;
    uint8_t byte = net->byte_of[class];
    uint32_t n = gr_intern_at(&a->states, state)->n;
    begin(a);
    for (uint32_t i = 0; i < n && !a->rc; i++) {
        struct gr_pair item = gr_intern_pairs(&a->states, state)[i];
        struct gr_place p = find_place(a, item.a);
        for (uint32_t k = net->first_edge[p.state]; k < net->first_edge[p.state + 1]; k++) {
            const struct gr_edge *e = &net->edge[k];
            if (e->kind == GR_EDGE_BYTE && byte >= e->lo && byte <= e->hi)
                visit(a, p.origin + e->to, item.b);
        }
    }
    close_items(a);
    int rc = finish(a, next);
    if (!rc && !((uint32_t *)a->row.data)[state])
        rc = new_row(a, state);
    if (!rc) {
        uint32_t row = ((uint32_t *)a->row.data)[state] - 1;
        ((uint32_t *)a->rows.data)[(size_t)row * net->n_class + class] = *next + 1;
    }
    return rc;
}

/* ---- forgetting ---- */

/* Marks the stacks that states need: a stack names older ones only. */
static void mark(const struct gr_automaton *a, uint32_t **keep_, size_t n, uint8_t *live)
{
    live[GR_STACK_TEXT] = live[GR_STACK_UNKNOWN] = 1;
    for (size_t i = 0; i < n; i++) {
        const struct gr_pair *p = gr_intern_pairs(&a->states, *keep_[i]);
        for (uint32_t k = 0; k < gr_intern_at(&a->states, *keep_[i])->n; k++)
            live[p[k].b] = 1;
    }
    for (uint32_t id = (uint32_t)a->stacks.sequences.n; id-- > 2;) {
        const struct gr_pair *p = gr_intern_pairs(&a->stacks, id);
        for (uint32_t k = 0; live[id] && k < gr_intern_at(&a->stacks, id)->n; k++)
            if (p[k].a < GR_PLACE_TEXT)
                live[p[k].b] = 1;
    }
}

/* Copies sequence `id` of one table to another, its stacks renumbered. */
static int copy_sequence(struct gr_automaton *a, const struct gr_intern *from, uint32_t id,
                         struct gr_intern *to, const uint32_t *number, uint32_t *copy)
{
    const struct gr_sequence *s = gr_intern_at(from, id);
    a->entries.n = 0;
    int rc = gr_vec_append(&a->entries, gr_intern_pairs(from, id), s->n, sizeof(struct gr_pair));
    struct gr_pair *p = a->entries.data;
    for (uint32_t k = 0; k < s->n && !rc; k++)
        p[k].b = p[k].a < GR_PLACE_TEXT ? number[p[k].b] : p[k].b;
    return rc ? rc : gr_intern(to, p, s->n, s->flags, copy);
}

/* Fills the tables of `to`, which are empty; number: [stacks + n], scratch. */
static int copy_live(struct gr_automaton *a, uint32_t **keep_, size_t n, const uint8_t *live,
                     uint32_t *number, struct gr_automaton *to)
{
    uint32_t dead, *state = number + a->stacks.sequences.n;
    int rc = gr_intern(&to->states, NULL, 0, 0, &dead);
    for (uint32_t id = 0; id < a->stacks.sequences.n && !rc; id++)
        if (live[id])
            rc = copy_sequence(a, &a->stacks, id, &to->stacks, number, &number[id]);
    for (size_t i = 0; i < n && !rc; i++)
        rc = copy_sequence(a, &a->states, *keep_[i], &to->states, number, &state[i]);
    for (size_t i = 0; i < to->states.sequences.n && !rc; i++)
        rc = gr_vec_push(&to->row, sizeof(uint32_t)) ? 0 : GR_E_NOMEM_HOST;
    return rc;
}

int gr_automaton_collect(struct gr_automaton *a, uint32_t **keep_, size_t n)
{
    size_t n_stack = a->stacks.sequences.n;
    struct gr_automaton to = {.net = a->net};
    uint8_t *live = gr_calloc(n_stack, 1);
    uint32_t *number = gr_calloc(n_stack + n, sizeof *number);
    int rc = live && number ? 0 : GR_E_NOMEM_HOST;
    if (!rc) {
        mark(a, keep_, n, live);
        rc = copy_live(a, keep_, n, live, number, &to);
    }
    if (!rc) {
        for (size_t i = 0; i < n; i++)
            *keep_[i] = number[n_stack + i];
        gr_intern_fini(&a->states);
        gr_intern_fini(&a->stacks);
        gr_vec_fini(&a->row);
        a->states = to.states, a->stacks = to.stacks, a->row = to.row;
        a->rows.n = a->after.n = 0;
        to = (struct gr_automaton){0};
    }
    gr_automaton_fini(&to);
    gr_free(live);
    gr_free(number);
    return rc;
}
