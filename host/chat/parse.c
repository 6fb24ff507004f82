/* Statements of templates. Recursion ends at GR_TEMPLATE_MAX_DEPTH (gr_parse_enter). */
#include "chat/parse.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/utf8.h"

/* ---- tokens ---- */

void gr_parse_fail(struct gr_parser *p, const char *fmt, ...)
{
    char what[400];
    if (p->rc)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    p->rc = gr_source_fail(p->prog->source, p->t->at, "%s", what);
}

static bool is_text(const struct gr_token *t, enum gr_token_kind kind, const char *text)
{
    size_t n = strlen(text);
    return t->kind == kind && t->text.n == n && !memcmp(t->text.p, text, n);
}

bool gr_parse_is_op(const struct gr_parser *p, const char *op)
{
    return is_text(p->t, GR_TOK_OP, op);
}

bool gr_parse_is_name(const struct gr_parser *p, const char *name)
{
    return is_text(p->t, GR_TOK_NAME, name);
}

void gr_parse_skip(struct gr_parser *p)
{
    if (p->t->kind != GR_TOK_END)
        p->t++;
}

bool gr_parse_accept_op(struct gr_parser *p, const char *op)
{
    bool is = gr_parse_is_op(p, op);
    if (is)
        gr_parse_skip(p);
    return is;
}

bool gr_parse_accept_name(struct gr_parser *p, const char *name)
{
    bool is = gr_parse_is_name(p, name);
    if (is)
        gr_parse_skip(p);
    return is;
}

void gr_parse_expect_op(struct gr_parser *p, const char *op)
{
    if (!gr_parse_accept_op(p, op))
        gr_parse_fail(p, "'%s' is expected", op);
}

struct gr_name gr_parse_name(struct gr_parser *p)
{
    struct gr_name name = p->t->text;
    if (p->t->kind != GR_TOK_NAME) {
        gr_parse_fail(p, "a name is expected");
        return (struct gr_name){"", 0};
    }
    gr_parse_skip(p);
    return name;
}

bool gr_parse_enter(struct gr_parser *p)
{
    if (p->depth >= GR_TEMPLATE_MAX_DEPTH)
        gr_parse_fail(p, "nested deeper than %u", GR_TEMPLATE_MAX_DEPTH);
    p->depth += !p->rc;
    return !p->rc;
}

void gr_parse_leave(struct gr_parser *p)
{
    p->depth--;
}

/* ---- instructions ---- */

size_t gr_code_emit(struct gr_parser *p, enum gr_op op, int32_t a, int32_t b, uint32_t n,
                    uint32_t at)
{
    struct gr_instr i = {.op = (uint8_t)op, .n = n, .a = a, .b = b, .at = at};
    if (!p->rc)
        p->rc = gr_vec_append(&p->code, &i, 1, sizeof i);
    return p->rc ? 0 : p->code.n - 1;
}

struct gr_instr *gr_instr_at(struct gr_parser *p, size_t i)
{
    return (struct gr_instr *)p->code.data + i;
}

size_t gr_here(struct gr_parser *p)
{
    return p->label = p->code.n;
}

void gr_patch(struct gr_parser *p, size_t i)
{
    if (p->rc)
        return;
    struct gr_instr *in = gr_instr_at(p, i);
    int32_t jump = (int32_t)(gr_here(p) - i - 1);
    if (in->op == GR_OP_CHAIN || in->op == GR_OP_DEFAULT)
        in->b = jump;
    else
        in->a = jump;
}

void gr_emit_back(struct gr_parser *p, size_t to, uint32_t at)
{
    gr_code_emit(p, GR_OP_JUMP, (int32_t)((int64_t)to - (int64_t)p->code.n - 1), 0, 0, at);
}

int32_t gr_name_index(struct gr_parser *p, const char *s, size_t n)
{
    const struct gr_name *names = p->names.data;
    for (size_t i = 0; i < p->names.n; i++) {
        if (names[i].n == n && !memcmp(names[i].p, s, n))
            return (int32_t)i;
    }
    struct gr_name name = {s, n};
    if (p->names.n == GR_TEMPLATE_MAX_NAMES)
        gr_parse_fail(p, "more than %u names", GR_TEMPLATE_MAX_NAMES);
    if (!p->rc)
        p->rc = gr_vec_append(&p->names, &name, 1, sizeof name);
    return p->rc ? 0 : (int32_t)p->names.n - 1;
}

int32_t gr_const_string(struct gr_parser *p, const char *s, size_t n)
{
    struct gr_string *str = gr_arena_alloc(&p->prog->mem, sizeof *str);
    if (!str) {
        p->rc = p->rc ? p->rc : GR_E_NOMEM_HOST;
        return 0;
    }
    *str = (struct gr_string){.p = s, .n = n};
    struct gr_val v = {.type = GR_VAL_STR, .str = str};
    if (!p->rc)
        p->rc = gr_vec_append(&p->consts, &v, 1, sizeof v);
    return p->rc ? 0 : (int32_t)p->consts.n - 1;
}

/* ---- assignments ---- */

/* Instructions that store the value on the stack into names; kept until it has been computed. */
struct targets {
    struct gr_instr code[2 * GR_MAX_TARGETS];
    size_t n;
};

static void target_add(struct gr_parser *p, struct targets *g, struct gr_instr in)
{
    if (g->n == GR_COUNT(g->code))
        gr_parse_fail(p, "more than %d names are set at once", GR_MAX_TARGETS);
    else
        g->code[g->n++] = in;
}

static void emit_targets(struct gr_parser *p, const struct targets *g)
{
    if (!p->rc)
        p->rc = gr_vec_append(&p->code, g->code, g->n, sizeof *g->code);
}

/* NOLINTBEGIN(misc-no-recursion) */

static void parse_targets(struct gr_parser *p, struct targets *g, bool attributes, const char *end);

static void parse_target(struct gr_parser *p, struct targets *g, bool attributes)
{
    uint32_t at = p->t->at;
    if (gr_parse_accept_op(p, "(")) {
        if (gr_parse_enter(p)) {
            parse_targets(p, g, attributes, ")");
            gr_parse_leave(p);
        }
        gr_parse_expect_op(p, ")");
        return;
    }
    struct gr_name name = gr_parse_name(p);
    static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < GR_COUNT(fixed); i++) {
        if (name.n == strlen(fixed[i]) && !memcmp(name.p, fixed[i], name.n))
            gr_parse_fail(p, "'%s' cannot be set", fixed[i]);
    }
    struct gr_instr in = {.op = GR_OP_STORE, .a = gr_name_index(p, name.p, name.n), .at = at};
    if (attributes && gr_parse_accept_op(p, ".")) {
        struct gr_name attr = gr_parse_name(p);
        in.op = GR_OP_STORE_ATTR;
        in.b = gr_const_string(p, attr.p, attr.n);
    }
    target_add(p, g, in);
}

/* One target, or several with commas between them, up to `end`: "=", "in", ")" or the tag's end. */
static void parse_targets(struct gr_parser *p, struct targets *g, bool attributes, const char *end)
{
    size_t first = g->n;
    uint32_t n = 0, at = p->t->at;
    bool tuple = false;
    target_add(p, g, (struct gr_instr){.op = GR_OP_UNPACK, .at = at});
    while (!p->rc) {
        parse_target(p, g, attributes);
        n++;
        if (!gr_parse_accept_op(p, ","))
            break;
        tuple = true;
        if (gr_parse_is_op(p, end) || gr_parse_is_name(p, end) || p->t->kind == GR_TOK_BLOCK_END)
            break;
    }
    if (p->rc)
        return;
    if (tuple) {
        g->code[first].n = n;
    } else { /* a single one is not unpacked */
        memmove(&g->code[first], &g->code[first + 1], (g->n - first - 1) * sizeof *g->code);
        g->n--;
    }
}

/* ---- statements ---- */

static void parse_body(struct gr_parser *p, const char *const *ends);

static void expect_block_end(struct gr_parser *p)
{
    if (p->t->kind != GR_TOK_BLOCK_END)
        gr_parse_fail(p, "the tag's end is expected (%%})");
    else
        p->t++;
}

/* Parses a body, its end tag and the end of that. */
static void parse_to(struct gr_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    parse_body(p, ends);
    gr_parse_skip(p);
    expect_block_end(p);
}

/* What is around a part whose text is captured, or a macro's body: loops end at it. */
struct around {
    size_t n_loops;
    struct gr_vec *breaks;
    size_t next;
    bool soft;
};

static struct around inside(struct gr_parser *p)
{
    struct around a = {p->n_loops, p->breaks, p->next, p->soft};
    p->n_loops = 0, p->breaks = NULL, p->soft = false;
    return a;
}

static void outside(struct gr_parser *p, const struct around *a)
{
    p->n_loops = a->n_loops, p->breaks = a->breaks, p->next = a->next, p->soft = a->soft;
}

static void parse_if(struct gr_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct gr_vec jumps = {0};
    bool soft = p->soft, more = true;
    p->soft = true;
    while (more && !p->rc) {
        uint32_t at = p->t->at;
        gr_parse_tuple(p, false, NULL);
        size_t no = gr_code_emit(p, GR_OP_JUMP_FALSE, 0, 0, 0, at);
        expect_block_end(p);
        parse_body(p, ends);
        bool last = gr_parse_is_name(p, "endif");
        if (!last) {
            size_t jump = gr_code_emit(p, GR_OP_JUMP, 0, 0, 0, at);
            if (!p->rc)
                p->rc = gr_vec_append(&jumps, &jump, 1, sizeof jump);
        }
        gr_patch(p, no);
        more = gr_parse_accept_name(p, "elif");
        if (!more && gr_parse_accept_name(p, "else")) {
            expect_block_end(p);
            parse_to(p, "endif");
        } else if (last) {
            gr_parse_skip(p);
            expect_block_end(p);
        }
    }
    for (size_t i = 0; i < jumps.n; i++)
        gr_patch(p, ((size_t *)jumps.data)[i]);
    gr_vec_fini(&jumps);
    p->soft = soft;
}

/* Chooses items of the loop that has begun by its condition. */
static void parse_loop_condition(struct gr_parser *p, const struct targets *g)
{
    size_t select = gr_code_emit(p, GR_OP_SELECT, 0, 0, 0, p->t->at);
    emit_targets(p, g);
    gr_parse_expr(p);
    gr_code_emit(p, GR_OP_CHOOSE, 0, 0, 0, p->t->at);
    gr_emit_back(p, select, p->t->at);
    gr_patch(p, select);
}

static void parse_loop_body(struct gr_parser *p, const struct targets *g, struct gr_vec *breaks)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    uint32_t at = p->t->at;
    struct around a = {p->n_loops, p->breaks, p->next, p->soft};
    size_t next = gr_code_emit(p, GR_OP_NEXT, 0, 0, 0, at);
    p->n_loops++, p->breaks = breaks, p->next = next, p->soft = false;
    emit_targets(p, g);
    expect_block_end(p);
    parse_body(p, ends);
    gr_code_emit(p, GR_OP_PASSED, 0, 0, 0, at);
    gr_emit_back(p, next, at);
    gr_patch(p, next);
    outside(p, &a);
}

static void parse_for(struct gr_parser *p)
{
    struct targets g = {.n = 0};
    struct gr_vec breaks = {0};
    bool soft = p->soft;
    uint32_t at = p->t->at;
    parse_targets(p, &g, false, "in");
    if (!gr_parse_accept_name(p, "in"))
        gr_parse_fail(p, "'in' is expected");
    gr_parse_tuple(p, false, "recursive");
    gr_code_emit(p, GR_OP_LOOP, 0, 0, 0, at);
    p->soft = false;
    if (gr_parse_accept_name(p, "if"))
        parse_loop_condition(p, &g);
    if (gr_parse_is_name(p, "recursive"))
        gr_parse_fail(p, "recursive loops are not supported: use a macro that calls itself");
    parse_loop_body(p, &g, &breaks);
    p->soft = soft;
    for (size_t i = 0; i < breaks.n; i++)
        gr_patch(p, ((size_t *)breaks.data)[i]);
    gr_vec_fini(&breaks);
    size_t end = gr_code_emit(p, GR_OP_LOOP_END, 0, 0, 0, at);
    if (gr_parse_accept_name(p, "else")) {
        bool was = p->soft;
        p->soft = false;
        expect_block_end(p);
        gr_code_emit(p, GR_OP_SCOPE, 0, 0, 0, at);
        parse_to(p, "endfor");
        gr_code_emit(p, GR_OP_SCOPE_END, 0, 0, 0, at);
        p->soft = was;
    } else {
        gr_parse_skip(p);
        expect_block_end(p);
    }
    gr_patch(p, end);
}

static void parse_jump(struct gr_parser *p, bool is_break, uint32_t at)
{
    if (!p->n_loops)
        gr_parse_fail(p, "'%s' outside of a loop", is_break ? "break" : "continue");
    if (p->rc)
        return;
    if (is_break) {
        size_t jump = gr_code_emit(p, GR_OP_BREAK, 0, 0, 0, at);
        if (!p->rc)
            p->rc = gr_vec_append(p->breaks, &jump, 1, sizeof jump);
    } else {
        gr_emit_back(p, p->next, at);
    }
    expect_block_end(p);
}

/* A body whose output becomes the value on the stack. */
static void parse_captured(struct gr_parser *p, const char *end, uint32_t at)
{
    struct around a = inside(p);
    gr_code_emit(p, GR_OP_CAPTURE, 0, 0, 0, at);
    expect_block_end(p);
    parse_to(p, end);
    gr_code_emit(p, GR_OP_CAPTURE_END, 0, 0, 0, at);
    outside(p, &a);
}

/* Takes the code from `start` on off the end; it is appended by put_back. */
static struct gr_vec take_off(struct gr_parser *p, size_t start)
{
    struct gr_vec part = {0};
    if (!p->rc && p->code.n > start)
        p->rc =
            gr_vec_append(&part, gr_instr_at(p, start), p->code.n - start, sizeof(struct gr_instr));
    if (!p->rc)
        p->code.n = start;
    return part;
}

static void put_back(struct gr_parser *p, struct gr_vec *part)
{
    if (!p->rc && part->n)
        p->rc = gr_vec_append(&p->code, part->data, part->n, sizeof(struct gr_instr));
    gr_vec_fini(part);
}

static void parse_set(struct gr_parser *p)
{
    struct targets g = {.n = 0};
    uint32_t at = p->t->at;
    parse_targets(p, &g, true, "=");
    if (gr_parse_accept_op(p, "=")) {
        gr_parse_tuple(p, true, NULL);
        expect_block_end(p);
    } else {
        size_t start = gr_here(p);
        if (gr_parse_accept_op(p, "|"))
            gr_parse_filters(p);
        struct gr_vec filters = take_off(p, start);
        parse_captured(p, "endset", at);
        put_back(p, &filters);
    }
    emit_targets(p, &g);
}

static void parse_filter_block(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    size_t start = gr_here(p);
    gr_parse_filters(p);
    struct gr_vec filters = take_off(p, start);
    parse_captured(p, "endfilter", at);
    put_back(p, &filters);
    gr_code_emit(p, GR_OP_WRITE, 0, 0, 0, at);
}

/* `with a = x, b = y`: all values are computed before the names are set. */
static void parse_with(struct gr_parser *p)
{
    struct targets g[8];
    size_t n = 0;
    uint32_t at = p->t->at;
    while (!p->rc && p->t->kind != GR_TOK_BLOCK_END) {
        if (n)
            gr_parse_expect_op(p, ",");
        if (n == GR_COUNT(g)) {
            gr_parse_fail(p, "'with' sets more than %zu names", GR_COUNT(g));
            break;
        }
        g[n].n = 0;
        parse_target(p, &g[n++], false);
        gr_parse_expect_op(p, "=");
        gr_parse_expr(p);
    }
    bool soft = p->soft;
    p->soft = false;
    gr_code_emit(p, GR_OP_SCOPE, 0, 0, 0, at);
    while (n--)
        emit_targets(p, &g[n]);
    expect_block_end(p);
    parse_to(p, "endwith");
    gr_code_emit(p, GR_OP_SCOPE_END, 0, 0, 0, at);
    p->soft = soft;
}

/* ---- macros ---- */

/* Parameters in parentheses; the code of their defaults goes to `defaults`. */
static void parse_params(struct gr_parser *p, struct gr_macro_code *m, struct gr_vec *defaults)
{
    struct gr_vec params = {0};
    bool had_default = false;
    gr_parse_expect_op(p, "(");
    while (!p->rc && !gr_parse_is_op(p, ")")) {
        if (params.n)
            gr_parse_expect_op(p, ",");
        uint32_t at = p->t->at;
        struct gr_name name = gr_parse_name(p);
        int32_t index = gr_name_index(p, name.p, name.n);
        if (params.n == 64)
            gr_parse_fail(p, "more than 64 parameters");
        size_t start = gr_here(p);
        if (!p->rc && gr_parse_accept_op(p, "=")) {
            m->has_default[params.n / 8] |= (uint8_t)(1u << params.n % 8);
            had_default = true;
            size_t jump = gr_code_emit(p, GR_OP_DEFAULT, index, 0, 0, at);
            gr_parse_expr(p);
            gr_code_emit(p, GR_OP_STORE, index, 0, 0, at);
            gr_patch(p, jump);
        } else if (had_default) {
            gr_parse_fail(p, "a parameter without a default follows one with a default");
        }
        struct gr_vec part = take_off(p, start);
        if (!p->rc && part.n)
            p->rc = gr_vec_append(defaults, part.data, part.n, sizeof(struct gr_instr));
        gr_vec_fini(&part);
        if (!p->rc)
            p->rc = gr_vec_append(&params, &index, 1, sizeof index);
    }
    gr_parse_expect_op(p, ")");
    m->n_params = (uint32_t)params.n;
    m->params = gr_arena_alloc(&p->prog->mem, params.n * sizeof *m->params + 1);
    if (!m->params && !p->rc)
        p->rc = GR_E_NOMEM_HOST;
    if (!p->rc && params.n)
        memcpy(m->params, params.data, params.n * sizeof *m->params);
    gr_vec_fini(&params);
}

/* A macro's code behind a jump over it: defaults, body. Its index is `index`. */
static void parse_macro_body(struct gr_parser *p, size_t index, struct gr_vec *defaults,
                             const char *end, uint32_t at)
{
    struct around a = inside(p);
    bool caller = p->uses.caller, varargs = p->uses.varargs, kwargs = p->uses.kwargs;
    p->uses.caller = p->uses.varargs = p->uses.kwargs = false;
    size_t over = gr_code_emit(p, GR_OP_JUMP, 0, 0, 0, at);
    size_t start = gr_here(p);
    put_back(p, defaults);
    expect_block_end(p);
    parse_to(p, end);
    gr_code_emit(p, GR_OP_RETURN, 0, 0, 0, at);
    gr_patch(p, over);
    if (!p->rc) {
        struct gr_macro_code *m = (struct gr_macro_code *)p->macros.data + index;
        m->start = (uint32_t)start;
        m->takes_caller = p->uses.caller, m->takes_varargs = p->uses.varargs;
        m->takes_kwargs = p->uses.kwargs;
    }
    p->uses.caller = p->uses.caller || caller;
    p->uses.varargs = p->uses.varargs || varargs;
    p->uses.kwargs = p->uses.kwargs || kwargs;
    outside(p, &a);
}

static size_t add_macro(struct gr_parser *p, struct gr_macro_code m)
{
    if (!p->rc)
        p->rc = gr_vec_append(&p->macros, &m, 1, sizeof m);
    return p->rc ? 0 : p->macros.n - 1;
}

static void parse_macro(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    struct gr_name name = gr_parse_name(p);
    struct gr_macro_code m = {.name = gr_name_index(p, name.p, name.n)};
    struct gr_vec defaults = {0};
    parse_params(p, &m, &defaults);
    size_t index = add_macro(p, m);
    parse_macro_body(p, index, &defaults, "endmacro", at);
    gr_code_emit(p, GR_OP_MACRO, (int32_t)index, 0, 0, at);
    gr_code_emit(p, GR_OP_STORE, m.name, 0, 0, at);
    gr_vec_fini(&defaults);
}

/* `call(params) f(x)`: the body becomes the macro `caller`, which f is given. */
static void parse_call_block(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    struct gr_macro_code m = {.name = -1};
    struct gr_vec defaults = {0};
    if (gr_parse_is_op(p, "("))
        parse_params(p, &m, &defaults);
    size_t index = add_macro(p, m);
    gr_parse_expr(p);
    struct gr_instr *last = p->rc ? NULL : gr_instr_at(p, p->code.n - 1);
    if (last && (last->op != GR_OP_CALL || p->label == p->code.n))
        gr_parse_fail(p, "a call is expected");
    if (p->rc) {
        gr_vec_fini(&defaults);
        return;
    }
    struct gr_instr call = *last;
    p->code.n--;
    gr_code_emit(p, GR_OP_MACRO, (int32_t)index, 0, 0, at);
    call.flags |= GR_CALL_CALLER;
    p->rc = gr_vec_append(&p->code, &call, 1, sizeof call);
    gr_code_emit(p, GR_OP_WRITE, 0, 0, 0, at);
    parse_macro_body(p, index, &defaults, "endcall", at);
    gr_vec_fini(&defaults);
}

/* ---- bodies ---- */

static void parse_statement(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    if (gr_parse_accept_name(p, "if"))
        parse_if(p);
    else if (gr_parse_accept_name(p, "for"))
        parse_for(p);
    else if (gr_parse_accept_name(p, "set"))
        parse_set(p);
    else if (gr_parse_accept_name(p, "macro"))
        parse_macro(p);
    else if (gr_parse_accept_name(p, "call"))
        parse_call_block(p);
    else if (gr_parse_accept_name(p, "filter"))
        parse_filter_block(p);
    else if (gr_parse_accept_name(p, "with"))
        parse_with(p);
    else if (gr_parse_accept_name(p, "break"))
        parse_jump(p, true, at);
    else if (gr_parse_accept_name(p, "continue"))
        parse_jump(p, false, at);
    else if (gr_parse_accept_name(p, "generation")) {
        parse_captured(p, "endgeneration", at);
        gr_code_emit(p, GR_OP_WRITE, 0, 0, 0, at);
    } else if (p->t->kind == GR_TOK_NAME) {
        gr_parse_fail(p, "unknown tag '%.*s'", (int)GR_MIN(p->t->text.n, 40), p->t->text.p);
    } else {
        gr_parse_fail(p, "the name of a tag is expected");
    }
}

static bool is_any(const struct gr_parser *p, const char *const *names)
{
    for (; names && *names; names++) {
        if (gr_parse_is_name(p, *names))
            return true;
    }
    return false;
}

/* Text, prints and statements up to a tag whose name is one of `ends`, which becomes the current
 * token; without `ends` up to the end of the template. */
static void parse_body(struct gr_parser *p, const char *const *ends)
{
    if (!gr_parse_enter(p))
        return;
    while (!p->rc) {
        uint32_t at = p->t->at;
        if (p->t->kind == GR_TOK_TEXT) {
            gr_code_emit(p, GR_OP_TEXT, gr_const_string(p, p->t->text.p, p->t->text.n), 0, 0, at);
            p->t++;
        } else if (p->t->kind == GR_TOK_PRINT) {
            p->t++;
            gr_parse_tuple(p, true, NULL);
            gr_code_emit(p, GR_OP_WRITE, 0, 0, 0, at);
            if (p->t->kind != GR_TOK_PRINT_END)
                gr_parse_fail(p, "the end of the expression is expected (}})");
            gr_parse_skip(p);
        } else if (p->t->kind == GR_TOK_BLOCK) {
            p->t++;
            if (is_any(p, ends))
                break;
            parse_statement(p);
        } else {
            if (ends)
                gr_parse_fail(p, "'%s' is missing", *ends);
            break;
        }
    }
    gr_parse_leave(p);
}

/* NOLINTEND(misc-no-recursion) */

/* ---- templates ---- */

/* Copies the source with newlines as \n and without the last one. */
static int copy_source(struct gr_template *prog, const char *text, size_t n)
{
    size_t k = 0;
    prog->source = gr_arena_alloc(&prog->mem, n + 1);
    if (!prog->source)
        return GR_E_NOMEM_HOST;
    for (size_t i = 0; i < n; i++) {
        bool cr = text[i] == '\r';
        prog->source[k++] = cr ? '\n' : text[i];
        i += cr && i + 1 < n && text[i + 1] == '\n';
    }
    if (k && prog->source[k - 1] == '\n')
        k--;
    prog->source[k] = 0;
    prog->n_source = k;
    for (size_t i = 0; i < k;) {
        uint32_t cp;
        int len = gr_utf8_next(prog->source + i, k - i, &cp);
        if (len <= 0)
            return gr_source_fail(prog->source, i, "the template is not UTF-8");
        i += (size_t)len;
    }
    return 0;
}

/* Moves a vector's items to the program's memory. */
static void *keep(struct gr_parser *p, const struct gr_vec *v, size_t item)
{
    void *copy = gr_arena_alloc(&p->prog->mem, v->n * item + 1);
    if (!copy)
        p->rc = p->rc ? p->rc : GR_E_NOMEM_HOST;
    else if (v->n)
        memcpy(copy, v->data, v->n * item);
    return copy;
}

static int parse(struct gr_template *prog, const struct gr_token *tokens)
{
    struct gr_parser p = {.prog = prog, .t = tokens};
    prog->loop = gr_name_index(&p, "loop", 4);
    prog->caller = gr_name_index(&p, "caller", 6);
    prog->varargs = gr_name_index(&p, "varargs", 7);
    prog->kwargs = gr_name_index(&p, "kwargs", 6);
    parse_body(&p, NULL);
    gr_code_emit(&p, GR_OP_END, 0, 0, 0, (uint32_t)prog->n_source);
    if (!p.rc && p.unknown)
        p.rc = gr_source_fail(prog->source, p.unknown_at, "%s", p.unknown);
    prog->code = keep(&p, &p.code, sizeof *prog->code), prog->n_code = p.code.n;
    prog->consts = keep(&p, &p.consts, sizeof *prog->consts), prog->n_consts = p.consts.n;
    prog->names = keep(&p, &p.names, sizeof *prog->names), prog->n_names = p.names.n;
    prog->macros = keep(&p, &p.macros, sizeof *prog->macros), prog->n_macros = p.macros.n;
    gr_vec_fini(&p.code);
    gr_vec_fini(&p.consts);
    gr_vec_fini(&p.names);
    gr_vec_fini(&p.macros);
    return p.rc;
}

int gr_template_new(struct gr_template **out, const char *text, size_t n)
{
    struct gr_vec tokens = {0};
    *out = NULL;
    if (n > GR_TEMPLATE_MAX_BYTES)
        return gr_fail(GR_E_TEMPLATE, "chat template of %zu bytes; at most %u are read", n,
                       GR_TEMPLATE_MAX_BYTES);
    struct gr_template *prog = gr_calloc(1, sizeof *prog);
    if (!prog)
        return GR_E_NOMEM_HOST;
    prog->mem.cap = GR_TEMPLATE_MAX_MEMORY;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), was = uselocale(c);
    int rc = copy_source(prog, text, n);
    if (!rc)
        rc = gr_lex(prog, &tokens);
    if (!rc)
        rc = parse(prog, tokens.data);
    uselocale(was);
    if (c)
        freelocale(c);
    gr_vec_fini(&tokens);
    if (rc)
        gr_template_free(&prog);
    *out = prog;
    return rc;
}

void gr_template_free(struct gr_template **p)
{
    if (!p || !*p)
        return;
    gr_arena_fini(&(*p)->mem);
    gr_free(*p);
    *p = NULL;
}
