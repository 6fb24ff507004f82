/* Builds the network of a grammar from a list of tasks: the automaton of a node between two states.
 * A task adds states, edges and the tasks of the node's children; nothing recurses. */
#include "grammar/network.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "grammar/class.h"
#include "grammar/solve.h"

/* filled: the node takes at least one byte or token; what makes it empty is left out. */
struct task {
    uint32_t space, node, from, to;
    bool filled;
};

struct from_edge {
    uint32_t space, from;
    struct gr_edge edge;
};

struct builder {
    const struct gr_rules *r;
    struct gr_network *net;
    const bool *empty, *ending; /* of nodes and rules (solve.h) */
    struct gr_vec tasks;        /* struct task */
    struct gr_vec edges;        /* struct from_edge */
    struct gr_vec spaces;       /* struct gr_space */
    struct gr_vec blocks;       /* struct gr_block, in `outer` the space of each */
    struct gr_vec outer;        /* uint32_t */
    uint32_t n_state;
    int rc; /* the first failure; after it nothing is added */
};

/* ---- parts ---- */

static void keep(struct builder *b, int rc)
{
    b->rc = b->rc ? b->rc : rc;
}

static uint32_t new_state(struct builder *b, uint32_t space)
{
    if (b->n_state >= GR_GRAMMAR_MAX_STATES)
        keep(b, gr_fail(GR_E_TOO_LARGE, "the grammar has more than %u states: make it smaller",
                        GR_GRAMMAR_MAX_STATES));
    if (b->rc)
        return 0;
    b->n_state++;
    return ((struct gr_space *)b->spaces.data)[space].n++;
}

static void add_edge(struct builder *b, uint32_t space, uint32_t from, struct gr_edge edge)
{
    const struct from_edge e = {space, from, edge};
    if (!b->rc)
        keep(b, gr_vec_append(&b->edges, &e, 1, sizeof e));
}

static void skip(struct builder *b, const struct task *t)
{
    add_edge(b, t->space, t->from, (struct gr_edge){.kind = GR_EDGE_SKIP, .to = t->to});
}

static void add_task(struct builder *b, struct task t)
{
    if (!b->rc)
        keep(b, gr_vec_append(&b->tasks, &t, 1, sizeof t));
}

static uint32_t new_space(struct builder *b)
{
    struct gr_space *s = b->rc ? NULL : gr_vec_push(&b->spaces, sizeof *s);
    if (!s) {
        keep(b, GR_E_NOMEM_HOST);
        return 0;
    }
    uint32_t space = (uint32_t)b->spaces.n - 1;
    (void)new_state(b, space);
    (void)new_state(b, space);
    return space;
}

/* ---- nodes ---- */

static void build_literal(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    const uint8_t *p = (const uint8_t *)b->r->bytes.data + n->a;
    uint32_t from = t->from;
    for (uint32_t i = 0; i < n->b && !b->rc; i++) {
        uint32_t to = i + 1 < n->b ? new_state(b, t->space) : t->to;
        add_edge(b, t->space, from, (struct gr_edge){GR_EDGE_BYTE, p[i], p[i], 0, to});
        from = to;
    }
}

/* Returns the state from which `left` more bytes 80 to BF lead to the end of a class. */
static uint32_t rest_of_class(struct builder *b, const struct task *t, uint32_t *rest, int left)
{
    rest[0] = t->to;
    for (int i = 1; i <= left && !b->rc; i++) {
        if (rest[i])
            continue;
        rest[i] = new_state(b, t->space);
        add_edge(b, t->space, rest[i], (struct gr_edge){GR_EDGE_BYTE, 0x80, 0xbf, 0, rest[i - 1]});
    }
    return rest[left];
}

static void build_bytes(struct builder *b, const struct task *t, const struct gr_byte_ranges *s,
                        uint32_t *rest)
{
    uint32_t from = t->from;
    int free_from = s->n; /* bytes from here on are 80 to BF */
    while (free_from > 1 && s->lo[free_from - 1] == 0x80 && s->hi[free_from - 1] == 0xbf)
        free_from--;
    for (int i = 0; i < free_from && !b->rc; i++) {
        uint32_t to = i + 1 < free_from ? new_state(b, t->space)
                                        : rest_of_class(b, t, rest, s->n - free_from);
        add_edge(b, t->space, from, (struct gr_edge){GR_EDGE_BYTE, s->lo[i], s->hi[i], 0, to});
        from = to;
    }
}

static void build_class(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    const struct gr_chars *range = (const struct gr_chars *)b->r->ranges.data + n->a;
    uint32_t rest[4] = {0};
    for (uint32_t i = 0; i < n->b && !b->rc; i++) {
        struct gr_class_walk w = gr_class_begin(range[i]);
        struct gr_byte_ranges s;
        while (gr_class_next(&w, &s) && !b->rc)
            build_bytes(b, t, &s, rest);
    }
}

static void build_ref(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    size_t rule = b->r->nodes.n + n->a;
    if (b->ending[rule])
        add_edge(b, t->space, t->from,
                 (struct gr_edge){.kind = GR_EDGE_CALL, .arg = n->a, .to = t->to});
    if (b->empty[rule] && !t->filled)
        skip(b, t);
}

static void build_alt(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    for (uint32_t c = n->child; c; c = gr_rules_node(b->r, c)->next)
        add_task(b, (struct task){t->space, c, t->from, t->to, t->filled});
}

static void build_seq(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    uint32_t from = t->from;
    if (!n->child && !t->filled)
        skip(b, t);
    for (uint32_t c = n->child; c && !b->rc; c = gr_rules_node(b->r, c)->next) {
        uint32_t to = c != n->last ? new_state(b, t->space) : t->to;
        add_task(b, (struct task){t->space, c, from, to, false});
        from = to;
    }
}

/* A sequence of parts that may all be empty, filled: states of two rows, before and after the first
 * part that is. */
static void build_filled(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    uint32_t before = t->from, after = GR_NONE;
    for (uint32_t c = n->child; c && !b->rc; c = gr_rules_node(b->r, c)->next) {
        bool last = c == n->last;
        uint32_t to = last ? t->to : new_state(b, t->space);
        add_task(b, (struct task){t->space, c, before, to, true});
        if (after != GR_NONE)
            add_task(b, (struct task){t->space, c, after, to, false});
        if (!last) {
            struct task s = {.space = t->space, .from = before, .to = new_state(b, t->space)};
            skip(b, &s);
            before = s.to, after = to;
        }
    }
}

static void build_repeat(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    uint32_t lo = !n->child || b->empty[n->child] ? 0 : n->a;
    if (lo == 0 && !t->filled)
        skip(b, t);
    if (!n->child || !b->ending[n->child])
        return;
    if (n->b == 1) {
        add_task(b, (struct task){t->space, n->child, t->from, t->to, true});
        return;
    }
    struct gr_block block = {.space = new_space(b),
                             .copies = n->b == GR_UNBOUNDED ? GR_MAX(lo, 1) : n->b,
                             .min = lo,
                             .exit = t->to,
                             .loop = n->b == GR_UNBOUNDED};
    add_task(b, (struct task){block.space, n->child, GR_SPACE_START, GR_SPACE_END, true});
    add_edge(b, t->space, t->from,
             (struct gr_edge){.kind = GR_EDGE_BLOCK, .arg = (uint32_t)b->blocks.n, .to = t->to});
    if (!b->rc)
        keep(b, gr_vec_append(&b->blocks, &block, 1, sizeof block));
    if (!b->rc)
        keep(b, gr_vec_append(&b->outer, &t->space, 1, sizeof t->space));
}

static void build_token(struct builder *b, const struct task *t, const struct gr_rule_node *n)
{
    add_edge(
        b, t->space, t->from,
        (struct gr_edge){.kind = n->b ? GR_EDGE_OTHER : GR_EDGE_TOKEN, .arg = n->a, .to = t->to});
}

static void build_node(struct builder *b, const struct task *t)
{
    const struct gr_rule_node *n = gr_rules_node(b->r, t->node);
    static void (*const build[])(struct builder *, const struct task *,
                                 const struct gr_rule_node *) = {
        [GR_RULE_LITERAL] = build_literal, [GR_RULE_CLASS] = build_class,
        [GR_RULE_SEQ] = build_seq,         [GR_RULE_ALT] = build_alt,
        [GR_RULE_REPEAT] = build_repeat,   [GR_RULE_REF] = build_ref,
        [GR_RULE_TOKEN] = build_token,
    };
    if (!b->ending[t->node]) /* a way in would have no way out */
        return;
    if (n->kind == GR_RULE_SEQ && t->filled && b->empty[t->node])
        build_filled(b, t, n);
    else
        build[n->kind](b, t, n);
}

static void build_rules(struct builder *b)
{
    uint32_t n = (uint32_t)b->r->rules.n;
    for (uint32_t i = 0; i < n && !b->rc; i++)
        (void)new_space(b);
    for (uint32_t i = 0; i < n && !b->rc; i++)
        add_task(b,
                 (struct task){i, gr_rules_at(b->r, i)->body, GR_SPACE_START, GR_SPACE_END, true});
    while (b->tasks.n && !b->rc) {
        struct task t = ((struct task *)b->tasks.data)[--b->tasks.n];
        build_node(b, &t);
    }
}

/* ---- the network in flat arrays ---- */

/* Sorts edges by the states they leave. */
static int place_edges(struct gr_network *net, const struct builder *b)
{
    const struct from_edge *e = b->edges.data;
    net->edge = gr_calloc(b->edges.n, sizeof *net->edge);
    net->first_edge = gr_calloc((size_t)net->n_state + 2, sizeof *net->first_edge);
    if (!net->edge || !net->first_edge)
        return GR_E_NOMEM_HOST;
    uint32_t *at = net->first_edge + 1;
    for (size_t i = 0; i < b->edges.n; i++)
        at[net->space[e[i].space].first + e[i].from + 1]++;
    for (uint32_t i = 1; i <= net->n_state; i++)
        at[i] += at[i - 1];
    for (size_t i = 0; i < b->edges.n; i++)
        net->edge[at[net->space[e[i].space].first + e[i].from]++] = e[i].edge;
    return 0;
}

/* Sorts blocks by the spaces around them, and sets the edges to them. */
static int place_blocks(struct gr_network *net, const struct builder *b)
{
    const uint32_t *outer = b->outer.data;
    const struct gr_block *block = b->blocks.data;
    uint32_t n = net->n_block, *at = gr_calloc((size_t)n + 1, sizeof *at), next = 0;
    net->block = gr_calloc(n, sizeof *net->block);
    if (!net->block || !at) {
        gr_free(at);
        return GR_E_NOMEM_HOST;
    }
    for (uint32_t i = 0; i < n; i++)
        net->space[outer[i]].n_block++;
    for (uint32_t i = 0; i < net->n_space; i++)
        net->space[i].block = next, next += net->space[i].n_block, net->space[i].n_block = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct gr_space *s = &net->space[outer[i]];
        at[i] = s->block + s->n_block++;
        net->block[at[i]] = block[i];
    }
    for (size_t i = 0; i < b->edges.n; i++)
        if (net->edge[i].kind == GR_EDGE_BLOCK)
            net->edge[i].arg = at[net->edge[i].arg];
    gr_free(at);
    return 0;
}

/* Numbers states, those of copies counted: a space inside has a higher number than the one
 * around. */
static int number(struct gr_network *net)
{
    uint64_t all = 0;
    for (uint32_t i = net->n_space; i-- > 0 && all <= GR_GRAMMAR_MAX_VIRTUAL;) {
        struct gr_space *s = &net->space[i];
        uint64_t width = s->n;
        for (uint32_t k = s->block; k < s->block + s->n_block; k++) {
            struct gr_block *block = &net->block[k];
            block->offset = (uint32_t)GR_MIN(width, GR_GRAMMAR_MAX_VIRTUAL);
            width += (uint64_t)block->copies * net->space[block->space].width;
            width = GR_MIN(width, GR_GRAMMAR_MAX_VIRTUAL + 1);
        }
        s->width = (uint32_t)width;
        all = i < net->n_rule ? all + width : GR_MAX(all, width);
    }
    if (all > GR_GRAMMAR_MAX_VIRTUAL)
        return gr_fail(GR_E_TOO_LARGE,
                       "the repetitions of the grammar multiply to more than %u "
                       "states: make them smaller",
                       GR_GRAMMAR_MAX_VIRTUAL);
    for (uint32_t i = 0, base = 0; i < net->n_rule; i++)
        net->base[i] = base, base += net->space[i].width;
    return 0;
}

static void classify_bytes(struct gr_network *net, size_t n_edge)
{
    bool begins[257] = {[0] = true};
    for (size_t i = 0; i < n_edge; i++)
        if (net->edge[i].kind == GR_EDGE_BYTE)
            begins[net->edge[i].lo] = begins[net->edge[i].hi + 1] = true;
    for (int c = 0; c < 256; c++) {
        if (begins[c])
            net->byte_of[net->n_class++] = (uint8_t)c;
        net->class_of[c] = (uint8_t)(net->n_class - 1);
    }
}

static int flatten(struct gr_network *net, struct builder *b)
{
    uint32_t first = 0;
    net->n_rule = (uint32_t)b->r->rules.n, net->n_state = b->n_state;
    net->n_space = (uint32_t)b->spaces.n, net->n_block = (uint32_t)b->blocks.n;
    net->space = b->spaces.data, b->spaces.data = NULL;
    net->base = gr_calloc(net->n_rule, sizeof *net->base);
    if (!net->base)
        return GR_E_NOMEM_HOST;
    for (uint32_t i = 0; i < net->n_space; i++)
        net->space[i].first = first, first += net->space[i].n;
    int rc = place_edges(net, b);
    if (!rc)
        rc = place_blocks(net, b);
    if (!rc)
        rc = number(net);
    if (!rc)
        classify_bytes(net, b->edges.n);
    return rc;
}

/* ---- left recursion ---- */

struct ranking {
    const struct gr_network *net;
    const struct gr_rules *r;
    uint32_t *seen;        /* [n_state] 1 + the rule from whose start it was reached */
    struct gr_vec calls;   /* uint32_t: rules called at the start of a rule, rule by rule */
    uint32_t *first_call;  /* [n_rule + 1] */
    uint32_t *path, *next; /* [n_rule] rules that are open; [n_rule] the next call of each */
    uint8_t *done;         /* [n_rule] 1: open, 2: closed */
    struct gr_vec todo;    /* uint32_t: states */
};

static int reach(struct ranking *k, uint32_t rule, uint32_t state)
{
    if (k->seen[state] == rule + 1)
        return 0;
    k->seen[state] = rule + 1;
    return gr_vec_append(&k->todo, &state, 1, sizeof state);
}

/* Lists the rules that a rule calls before it takes anything. */
static int list_calls(struct ranking *k, uint32_t rule)
{
    const struct gr_network *net = k->net;
    int rc = reach(k, rule, net->space[rule].first);
    while (!rc && k->todo.n) {
        uint32_t state = ((uint32_t *)k->todo.data)[--k->todo.n], space = 0;
        uint32_t lo = 0, hi = net->n_space; /* the last space that begins at or before it */
        while (hi - lo > 1) {
            space = (lo + hi) / 2;
            *(net->space[space].first <= state ? &lo : &hi) = space;
        }
        for (uint32_t i = net->first_edge[state]; i < net->first_edge[state + 1] && !rc; i++) {
            const struct gr_edge *e = &net->edge[i];
            if (e->kind == GR_EDGE_CALL)
                rc = gr_vec_append(&k->calls, &e->arg, 1, sizeof e->arg);
            else if (e->kind == GR_EDGE_SKIP)
                rc = reach(k, rule, net->space[lo].first + e->to);
            else if (e->kind == GR_EDGE_BLOCK)
                rc = reach(k, rule, net->space[net->block[e->arg].space].first);
        }
    }
    return rc;
}

static int fail_recursion(const struct ranking *k, uint32_t rule, uint32_t depth)
{
    const struct gr_rule *r = gr_rules_at(k->r, rule);
    char way[160] = "";
    size_t n = 0;
    uint32_t i = depth;
    while (i > 0 && k->path[i] != rule)
        i--;
    for (i++; i <= depth && n < sizeof way - 40; i++) {
        const char *name = gr_rules_at(k->r, k->path[i])->name;
        n += (size_t)snprintf(way + n, sizeof way - n, " -> %.30s", name ? name : "(..)");
    }
    return gr_rules_fail(
        k->r, r->at,
        "rule %.40s begins with itself (left recursion%s%s); write x ::= y (op y)* "
        "in place of x ::= x op y | y",
        r->name ? r->name : "(..)", n ? ", by way of" : "", way);
}

/* Closes rules after all that they call, and ranks them the other way round. */
static int rank_from(struct ranking *k, struct gr_network *net, uint32_t root, uint32_t *left)
{
    uint32_t depth = 0;
    k->path[0] = root, k->done[root] = 1, k->next[root] = k->first_call[root];
    for (;;) {
        uint32_t rule = k->path[depth];
        if (k->next[rule] == k->first_call[rule + 1]) {
            k->done[rule] = 2;
            net->rank[rule] = --*left;
            net->by_rank[*left] = rule;
            if (depth-- == 0)
                return 0;
            continue;
        }
        uint32_t called = ((uint32_t *)k->calls.data)[k->next[rule]++];
        if (k->done[called] == 1)
            return fail_recursion(k, called, depth);
        if (!k->done[called])
            k->path[++depth] = called, k->done[called] = 1, k->next[called] = k->first_call[called];
    }
}

static int rank(struct gr_network *net, const struct gr_rules *r)
{
    struct ranking k = {.net = net, .r = r};
    size_t n = net->n_rule;
    uint32_t left = net->n_rule;
    k.seen = gr_calloc(net->n_state, sizeof *k.seen);
    k.first_call = gr_calloc(3 * n + 1, sizeof *k.first_call);
    k.done = gr_calloc(n, sizeof *k.done);
    net->rank = gr_calloc(n, sizeof *net->rank);
    net->by_rank = gr_calloc(n, sizeof *net->by_rank);
    int rc = k.seen && k.first_call && k.done && net->rank && net->by_rank ? 0 : GR_E_NOMEM_HOST;
    for (uint32_t i = 0; i < n && !rc; i++) {
        rc = list_calls(&k, i);
        k.first_call[i + 1] = (uint32_t)k.calls.n;
    }
    k.path = rc ? NULL : k.first_call + n + 1, k.next = rc ? NULL : k.path + n;
    for (uint32_t i = 0; i < n && !rc; i++)
        if (!k.done[i])
            rc = rank_from(&k, net, i, &left);
    gr_free(k.seen);
    gr_free(k.first_call);
    gr_free(k.done);
    gr_vec_fini(&k.calls);
    gr_vec_fini(&k.todo);
    return rc;
}

/* ---- all of it ---- */

int gr_network_build(struct gr_network *net, const struct gr_rules *rules)
{
    struct builder b = {.r = rules, .net = net};
    size_t root = rules->nodes.n;
    *net = (struct gr_network){0};
    bool *empty = gr_rules_empty(rules), *ending = gr_rules_ending(rules);
    b.empty = empty, b.ending = ending;
    if (!empty || !ending)
        b.rc = GR_E_NOMEM_HOST;
    else if (!ending[root])
        b.rc = gr_rules_fail(
            rules, gr_rules_at(rules, 0)->at,
            "no text fits it: each way through it never ends, or has a value that is never valid");
    if (!b.rc)
        net->root_empty = empty[root], build_rules(&b);
    if (!b.rc)
        b.rc = flatten(net, &b);
    if (!b.rc)
        b.rc = rank(net, rules);
    gr_free(empty);
    gr_free(ending);
    gr_vec_fini(&b.tasks);
    gr_vec_fini(&b.edges);
    gr_vec_fini(&b.spaces);
    gr_vec_fini(&b.blocks);
    gr_vec_fini(&b.outer);
    if (b.rc)
        gr_network_fini(net);
    return b.rc;
}

void gr_network_fini(struct gr_network *net)
{
    gr_free(net->space);
    gr_free(net->block);
    gr_free(net->edge);
    gr_free(net->first_edge);
    gr_free(net->base);
    gr_free(net->rank);
    gr_free(net->by_rank);
    *net = (struct gr_network){0};
}

/* ---- places ---- */

static uint32_t rule_of(const struct gr_network *net, uint32_t number)
{
    uint32_t lo = 0, hi = net->n_rule;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        *(net->base[mid] <= number ? &lo : &hi) = mid;
    }
    return lo;
}

/* The block of a space whose copies have a number (from the space's start). */
static uint32_t block_of(const struct gr_network *net, const struct gr_space *s, uint32_t number)
{
    uint32_t lo = s->block, hi = s->block + s->n_block;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        *(net->block[mid].offset <= number ? &lo : &hi) = mid;
    }
    return lo;
}

struct gr_place gr_network_place(const struct gr_network *net, uint32_t number)
{
    uint32_t rule = rule_of(net, number);
    const struct gr_space *s = &net->space[rule];
    struct gr_place p = {.origin = net->base[rule], .block = GR_NONE};
    while (number - p.origin >= s->n) {
        p.block = block_of(net, s, number - p.origin);
        const struct gr_block *b = &net->block[p.block];
        s = &net->space[b->space];
        p.depth++;
        p.outer = p.origin;
        p.copy = (number - p.origin - b->offset) / s->width;
        p.origin += b->offset + p.copy * s->width;
    }
    p.state = s->first + (number - p.origin);
    p.end = number - p.origin == GR_SPACE_END;
    return p;
}

/* The lowest copy that has as many copies behind it as `copy`, up to the exit that opens and to the
 * last one, as far as `bytes` bytes reach. */
static uint32_t alike_copy(const struct gr_block *b, uint32_t copy, uint32_t bytes)
{
    uint32_t far = bytes + 2;
    if (copy + 1 < b->min)
        return b->min > far && copy < b->min - far ? 0 : copy;
    if (!b->loop && b->copies > far && copy < b->copies - far)
        return b->min ? b->min - 1 : 0;
    return copy;
}

uint32_t gr_network_alike(const struct gr_network *net, uint32_t number, uint32_t bytes)
{
    uint32_t rule = rule_of(net, number), origin = net->base[rule], moved = 0;
    const struct gr_space *s = &net->space[rule];
    while (number - origin >= s->n) {
        const struct gr_block *b = &net->block[block_of(net, s, number - origin)];
        s = &net->space[b->space];
        uint32_t copy = (number - origin - b->offset) / s->width;
        origin += b->offset + copy * s->width;
        moved += (copy - alike_copy(b, copy, bytes)) * s->width;
    }
    return number - moved;
}
