/* The machine that runs a template's instructions. */
#include "chat/run.h"

#include <string.h>

#include "base/checked.h"

void gr_push(struct gr_render *r, struct gr_val v)
{
    if (r->rc)
        return;
    if (r->n_stack == r->cap_stack) {
        if (r->cap_stack >= GR_RENDER_MAX_STACK) {
            gr_render_fail(r, "more than %u values at once", GR_RENDER_MAX_STACK);
            return;
        }
        size_t cap = GR_MAX(2 * r->cap_stack, 64);
        struct gr_val *grown = gr_render_alloc(r, cap, sizeof *grown);
        if (!grown)
            return;
        if (r->n_stack)
            memcpy(grown, r->stack, r->n_stack * sizeof *grown);
        r->stack = grown, r->cap_stack = cap;
    }
    r->stack[r->n_stack++] = v;
}

struct gr_val gr_pop(struct gr_render *r)
{
    return r->n_stack ? r->stack[--r->n_stack] : gr_none();
}

/* ---- scopes ---- */

struct gr_scope *gr_scope_new(struct gr_render *r, struct gr_scope *up)
{
    struct gr_scope *s = gr_render_alloc(r, 1, sizeof *s);
    if (s)
        s->up = up;
    return s;
}

struct gr_val *gr_scope_find(const struct gr_scope *s, int32_t name)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].name == name)
            return &s->v[i].value;
    }
    return NULL;
}

void gr_scope_set(struct gr_render *r, struct gr_scope *s, int32_t name, struct gr_val v)
{
    if (r->rc)
        return;
    struct gr_val *had = gr_scope_find(s, name);
    if (had) {
        *had = v;
        return;
    }
    if (s->n == s->cap) {
        size_t cap = GR_MAX(2 * s->cap, 4);
        struct gr_variable *grown = gr_render_alloc(r, cap, sizeof *grown);
        if (!grown)
            return;
        if (s->n)
            memcpy(grown, s->v, s->n * sizeof *grown);
        s->v = grown, s->cap = cap;
    }
    s->v[s->n++] = (struct gr_variable){name, v};
}

/* Value of a variable: of the scopes, the context, or a function of every template. */
static struct gr_val load(struct gr_render *r, int32_t name)
{
    struct gr_name text = r->prog->names[name];
    for (const struct gr_scope *s = r->scope; s && gr_render_step(r, s->n / 16); s = s->up) {
        const struct gr_val *v = gr_scope_find(s, name);
        if (v)
            return *v;
    }
    const struct gr_pair *p = gr_dict_find_text(r, r->context.dict, text.p, text.n);
    if (p)
        return p->value;
    struct gr_val f = gr_global_find(text.p, text.n);
    return gr_is_given(f) ? f : gr_undefined_name(r, text.p, text.n);
}

static void store_attribute(struct gr_render *r, const struct gr_instr *in, struct gr_val v)
{
    struct gr_val ns = load(r, in->a);
    if (ns.type != GR_VAL_NAMESPACE)
        gr_render_fail(r, "an attribute can be set of a namespace only, not of '%s'",
                       gr_type_name(ns));
    else
        gr_dict_set(r, ns.dict, r->prog->consts[in->b], v);
}

/* ---- output and frames ---- */

static void write_out(struct gr_render *r, struct gr_val v)
{
    gr_put_str(r, r->out, v);
    if (r->out->n > GR_RENDER_MAX_OUTPUT)
        gr_render_fail(r, "the output is longer than %u MiB", GR_RENDER_MAX_OUTPUT >> 20);
}

void gr_frame_push(struct gr_render *r, size_t pc, struct gr_scope *scope, bool call)
{
    struct gr_text *out = gr_render_alloc(r, 1, sizeof *out);
    if (r->n_frames == GR_COUNT(r->frames))
        gr_render_fail(r, "macros and captured parts are nested deeper than %zu",
                       GR_COUNT(r->frames));
    if (r->rc)
        return;
    r->frames[r->n_frames++] = (struct gr_frame){r->pc, r->scope, r->out, r->n_loops, call};
    r->pc = pc, r->out = out, r->scope = scope;
}

/* Ends a frame: its output is the value on the stack. */
static void frame_pop(struct gr_render *r)
{
    struct gr_text *out = r->out;
    const struct gr_frame *f = &r->frames[--r->n_frames];
    if (f->call)
        r->pc = f->pc;
    r->scope = f->scope, r->out = f->out, r->n_loops = f->n_loops;
    gr_push(r, gr_text_value(r, out));
}

/* ---- loops ---- */

static void loop_begin(struct gr_render *r, struct gr_val iterable)
{
    struct gr_list *items = gr_items(r, iterable);
    struct gr_loop *l = gr_render_alloc(r, 1, sizeof *l);
    if (!l)
        return;
    if (iterable.type == GR_VAL_LIST) { /* a copy: the body may append to the list */
        struct gr_list *copy = gr_list_new(r, items->n);
        for (size_t i = 0; i < items->n && gr_render_step(r, i % 16 == 15); i++)
            gr_list_push(r, copy, items->v[i]);
        items = copy;
    }
    if (r->n_loops == r->cap_loops) {
        size_t cap = GR_MAX(2 * r->cap_loops, 8);
        struct gr_loop **grown = gr_render_alloc(r, cap, sizeof(struct gr_loop *));
        if (!grown)
            return;
        if (r->n_loops)
            memcpy(grown, r->loops, r->n_loops * sizeof(struct gr_loop *));
        r->loops = grown, r->cap_loops = cap;
    }
    *l = (struct gr_loop){.items = items, .outer = r->scope};
    r->loops[r->n_loops++] = l;
}

/* Pushes the loop's next item in a new scope, or jumps. */
static void loop_select(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_loop *l = r->loops[r->n_loops - 1];
    if (!l->kept)
        l->kept = gr_list_new(r, 0);
    r->scope = l->outer;
    if (l->at < l->items->n) {
        r->scope = gr_scope_new(r, l->outer);
        gr_push(r, l->items->v[l->at++]);
        return;
    }
    l->items = l->kept, l->at = 0;
    r->pc = (size_t)((int64_t)r->pc + in->a);
}

static void loop_choose(struct gr_render *r, struct gr_val chosen)
{
    struct gr_loop *l = r->loops[r->n_loops - 1];
    if (gr_truth(r, chosen))
        gr_list_push(r, l->kept, l->items->v[l->at - 1]);
}

static void loop_next(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_loop *l = r->loops[r->n_loops - 1];
    r->scope = l->outer;
    if (l->at == l->items->n) {
        r->pc = (size_t)((int64_t)r->pc + in->a);
        return;
    }
    r->scope = gr_scope_new(r, l->outer);
    gr_push(r, l->items->v[l->at++]);
    gr_scope_set(r, r->scope, r->prog->loop, (struct gr_val){.type = GR_VAL_LOOP, .loop = l});
}

static void unpack(struct gr_render *r, uint32_t n)
{
    struct gr_val v = gr_pop(r);
    const struct gr_list *items = gr_items(r, v);
    if (r->rc)
        return;
    if (items->n != n) {
        gr_render_fail(r, "%zu values to unpack, %u are expected", items->n, n);
        return;
    }
    for (size_t i = n; i-- > 0;)
        gr_push(r, items->v[i]);
}

/* ---- instructions ---- */

static void build_list(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_list *l = gr_list_new(r, in->n);
    if (r->n_stack < in->n || r->rc)
        return;
    r->n_stack -= in->n;
    for (uint32_t i = 0; i < in->n; i++)
        gr_list_push(r, l, r->stack[r->n_stack + i]);
    gr_push(r, in->op == GR_OP_LIST ? gr_list_value(l) : gr_tuple_value(l));
}

static void build_dict(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_dict *d = gr_dict_new(r);
    if (r->n_stack < 2 * (size_t)in->n || r->rc)
        return;
    r->n_stack -= 2 * (size_t)in->n;
    for (uint32_t i = 0; i < in->n && !r->rc; i++)
        gr_dict_set(r, d, r->stack[r->n_stack + 2 * i], r->stack[r->n_stack + 2 * i + 1]);
    gr_push(r, gr_dict_value(d));
}

static void concat(struct gr_render *r, uint32_t n)
{
    if (r->n_stack < n || r->rc)
        return;
    r->n_stack -= n;
    struct gr_val all = gr_to_str(r, r->stack[r->n_stack]);
    for (uint32_t i = 1; i < n && !r->rc; i++) {
        struct gr_val next = gr_to_str(r, r->stack[r->n_stack + i]);
        if (!r->rc)
            all = gr_str_concat(r, all.str, next.str);
    }
    gr_push(r, all);
}

static void chain(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_val y = gr_pop(r), x = gr_pop(r);
    bool holds = gr_compare(r, (enum gr_compare)in->a, x, y);
    gr_push(r, holds ? y : gr_bool(false));
    if (!holds)
        r->pc = (size_t)((int64_t)r->pc + in->b);
}

static void jump(struct gr_render *r, const struct gr_instr *in, bool when)
{
    if (when)
        r->pc = (size_t)((int64_t)r->pc + in->a);
}

/* `and`, `or`: keeps the value and jumps, or drops it. */
static void shortcut(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_val v = gr_pop(r);
    bool keeps = gr_truth(r, v) == (in->op == GR_OP_OR);
    if (keeps)
        gr_push(r, v);
    jump(r, in, keeps);
}

static void macro_value(struct gr_render *r, int32_t index)
{
    struct gr_macro *m = gr_render_alloc(r, 1, sizeof *m);
    if (!m)
        return;
    m->code = &r->prog->macros[index];
    m->scope = r->scope;
    if (m->code->name >= 0)
        m->name = r->prog->names[m->code->name];
    else
        m->name = (struct gr_name){"caller", 6};
    gr_push(r, (struct gr_val){.type = GR_VAL_MACRO, .macro = m});
}

static void call(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_args a = gr_take_args(r, in);
    struct gr_val v = gr_pop(r);
    if (r->rc)
        return;
    if (in->op == GR_OP_FILTER) {
        gr_push(r, gr_filter_run(r, in->a, v, &a));
    } else if (in->op == GR_OP_TEST) {
        gr_push(r, gr_bool(gr_test_run(r, in->a, v, &a)));
    } else if (in->op == GR_OP_UNKNOWN) {
        const struct gr_string *what = r->prog->consts[in->a].str;
        gr_render_fail(r, "%.*s", (int)what->n, what->p);
    } else {
        gr_call(r, v, &a);
    }
}

/* Instructions that work on the stack alone. */
static void compute(struct gr_render *r, const struct gr_instr *in)
{
    struct gr_val v, w, x;
    switch (in->op) {
    case GR_OP_ATTRIBUTE:
        v = gr_pop(r);
        gr_push(r, gr_attribute(r, v, r->prog->consts[in->a]));
        return;
    case GR_OP_ITEM:
        w = gr_pop(r), v = gr_pop(r);
        gr_push(r, gr_item(r, v, w));
        return;
    case GR_OP_SLICE:
        x = gr_pop(r), w = gr_pop(r), v = gr_pop(r);
        gr_push(r, gr_slice(r, gr_pop(r), v, w, x));
        return;
    case GR_OP_LIST:
    case GR_OP_TUPLE:
        build_list(r, in);
        return;
    case GR_OP_DICT:
        build_dict(r, in);
        return;
    case GR_OP_BINARY:
        w = gr_pop(r), v = gr_pop(r);
        gr_push(r, gr_operate(r, (enum gr_binary)in->a, v, w));
        return;
    case GR_OP_CONCAT:
        concat(r, in->n);
        return;
    case GR_OP_NEGATE:
        gr_push(r, gr_negate(r, gr_pop(r), in->a));
        return;
    case GR_OP_NOT:
        gr_push(r, gr_bool(!gr_truth(r, gr_pop(r))));
        return;
    case GR_OP_COMPARE:
        w = gr_pop(r), v = gr_pop(r);
        gr_push(r, gr_bool(gr_compare(r, (enum gr_compare)in->a, v, w)));
        return;
    case GR_OP_CHAIN:
        chain(r, in);
        return;
    case GR_OP_UNDEFINED:
        gr_push(r, gr_undefined_name(r, "the inline if without else", 26));
        return;
    default:
        call(r, in);
    }
}

/* Instructions about scopes, loops, captured parts and macros. */
static void control(struct gr_render *r, const struct gr_instr *in)
{
    switch (in->op) {
    case GR_OP_LOOP:
        loop_begin(r, gr_pop(r));
        return;
    case GR_OP_SELECT:
        loop_select(r, in);
        return;
    case GR_OP_CHOOSE:
        loop_choose(r, gr_pop(r));
        return;
    case GR_OP_NEXT:
        loop_next(r, in);
        return;
    case GR_OP_LOOP_END:
        jump(r, in, r->loops[--r->n_loops]->passed);
        return;
    case GR_OP_PASSED:
        r->loops[r->n_loops - 1]->passed = true;
        return;
    case GR_OP_BREAK:
        r->scope = r->loops[r->n_loops - 1]->outer;
        jump(r, in, true);
        return;
    case GR_OP_SCOPE:
        r->scope = gr_scope_new(r, r->scope);
        return;
    case GR_OP_SCOPE_END:
        r->scope = r->scope->up;
        return;
    case GR_OP_CAPTURE:
        gr_frame_push(r, r->pc, gr_scope_new(r, r->scope), false);
        return;
    case GR_OP_CAPTURE_END:
    case GR_OP_RETURN:
        frame_pop(r);
        return;
    case GR_OP_MACRO:
        macro_value(r, in->a);
        return;
    case GR_OP_DEFAULT:
        if (gr_scope_find(r->scope, in->a))
            r->pc = (size_t)((int64_t)r->pc + in->b);
        return;
    default:
        compute(r, in);
    }
}

static void step(struct gr_render *r, const struct gr_instr *in)
{
    switch (in->op) {
    case GR_OP_TEXT:
        write_out(r, r->prog->consts[in->a]);
        return;
    case GR_OP_WRITE:
        write_out(r, gr_pop(r));
        return;
    case GR_OP_CONST:
        gr_push(r, r->prog->consts[in->a]);
        return;
    case GR_OP_LOAD:
        gr_push(r, load(r, in->a));
        return;
    case GR_OP_STORE:
        gr_scope_set(r, r->scope, in->a, gr_pop(r));
        return;
    case GR_OP_STORE_ATTR:
        store_attribute(r, in, gr_pop(r));
        return;
    case GR_OP_UNPACK:
        unpack(r, in->n);
        return;
    case GR_OP_JUMP:
        jump(r, in, true);
        return;
    case GR_OP_JUMP_FALSE:
        jump(r, in, !gr_truth(r, gr_pop(r)));
        return;
    case GR_OP_AND:
    case GR_OP_OR:
        shortcut(r, in);
        return;
    default:
        control(r, in);
    }
}

/* r->pc is the instruction that runs (for messages); instructions that jump set it to the one
 * before their target. */
void gr_run(struct gr_render *r)
{
    const struct gr_instr *code = r->prog->code;
    for (r->pc = 0; code[r->pc].op != GR_OP_END && gr_render_step(r, 1); r->pc++)
        step(r, &code[r->pc]);
}
