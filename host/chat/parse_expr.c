/* Expressions of templates. Recursion ends at GR_TEMPLATE_MAX_DEPTH (gr_parse_enter). */
#include <stdio.h>
#include <string.h>

#include "chat/parse.h"
#include "gr/status.h"

/* NOLINTBEGIN(misc-no-recursion) */

static bool is_end(const struct gr_parser *p)
{
    return p->t->kind == GR_TOK_BLOCK_END || p->t->kind == GR_TOK_PRINT_END ||
           p->t->kind == GR_TOK_END;
}

static int32_t add_const(struct gr_parser *p, struct gr_val v)
{
    if (!p->rc)
        p->rc = gr_vec_append(&p->consts, &v, 1, sizeof v);
    return (int32_t)p->consts.n - 1;
}

static void emit_const(struct gr_parser *p, struct gr_val v, uint32_t at)
{
    gr_code_emit(p, GR_OP_CONST, add_const(p, v), 0, 0, at);
}

/* ---- arguments ---- */

/* Emits the arguments of a call, whose "(" is the current token, and fills in *call. */
static void parse_args(struct gr_parser *p, struct gr_instr *call)
{
    bool comma = false;
    gr_parse_expect_op(p, "(");
    while (!p->rc && !gr_parse_is_op(p, ")")) {
        if (comma)
            gr_parse_expect_op(p, ",");
        if (gr_parse_is_op(p, ")"))
            break;
        comma = true;
        bool late = call->flags & GR_CALL_DICT;
        if (gr_parse_accept_op(p, "*")) {
            if (call->flags)
                gr_parse_fail(p, "one *list is allowed, before a **dict");
            call->flags |= GR_CALL_LIST;
        } else if (gr_parse_accept_op(p, "**")) {
            if (late)
                gr_parse_fail(p, "one **dict is allowed");
            call->flags |= GR_CALL_DICT;
        } else if (p->t->kind == GR_TOK_NAME && p->t[1].kind == GR_TOK_OP && p->t[1].text.n == 1 &&
                   *p->t[1].text.p == '=') {
            if (call->flags)
                gr_parse_fail(p, "named arguments stand before *list and **dict");
            gr_code_emit(p, GR_OP_CONST, gr_const_string(p, p->t->text.p, p->t->text.n), 0, 0,
                         p->t->at);
            gr_parse_skip(p);
            gr_parse_skip(p);
            call->b++;
        } else {
            if (call->flags || call->b)
                gr_parse_fail(p, "arguments without a name come first");
            call->n++;
        }
        gr_parse_expr(p);
    }
    gr_parse_expect_op(p, ")");
}

static void emit_call(struct gr_parser *p, struct gr_instr call)
{
    if (!p->rc)
        p->rc = gr_vec_append(&p->code, &call, 1, sizeof call);
}

static void parse_call(struct gr_parser *p)
{
    struct gr_instr call = {.op = GR_OP_CALL, .at = p->t->at};
    parse_args(p, &call);
    emit_call(p, call);
}

/* ---- filters and tests ---- */

/* Name of a filter or a test; dots may stand in it. */
static struct gr_name dotted(struct gr_parser *p)
{
    struct gr_name name = gr_parse_name(p);
    while (!p->rc && gr_parse_accept_op(p, ".")) {
        struct gr_name part = gr_parse_name(p);
        name.n = (size_t)(part.p + part.n - name.p);
    }
    return name;
}

/* Makes the call of a name that is unknown an error: when it runs, or now unless an if is around.
 */
static void unknown(struct gr_parser *p, struct gr_instr *call, const char *what,
                    struct gr_name name)
{
    char text[160];
    snprintf(text, sizeof text, "no %s named %.*s", what, (int)(name.n < 64 ? name.n : 64), name.p);
    char *copy = gr_arena_strndup(&p->prog->mem, text, strlen(text));
    if (!copy) {
        p->rc = p->rc ? p->rc : GR_E_NOMEM_HOST;
        return;
    }
    call->op = GR_OP_UNKNOWN;
    call->a = gr_const_string(p, copy, strlen(copy));
    if (!p->soft && !p->unknown)
        p->unknown = copy, p->unknown_at = call->at;
}

static void parse_filter(struct gr_parser *p)
{
    struct gr_instr call = {.op = GR_OP_FILTER, .at = p->t->at};
    struct gr_name name = dotted(p);
    call.a = gr_filter_find(name.p, name.n);
    if (gr_parse_is_op(p, "("))
        parse_args(p, &call);
    if (call.a < 0)
        unknown(p, &call, "filter", name);
    emit_call(p, call);
}

void gr_parse_filters(struct gr_parser *p)
{
    do
        parse_filter(p);
    while (!p->rc && gr_parse_accept_op(p, "|"));
}

static void parse_primary(struct gr_parser *p);
static void parse_postfix(struct gr_parser *p);

static bool begins_operand(const struct gr_parser *p)
{
    switch (p->t->kind) {
    case GR_TOK_NAME:
        return !gr_parse_is_name(p, "else") && !gr_parse_is_name(p, "or") &&
               !gr_parse_is_name(p, "and");
    case GR_TOK_STRING:
    case GR_TOK_INT:
    case GR_TOK_FLOAT:
        return true;
    default:
        return gr_parse_is_op(p, "[") || gr_parse_is_op(p, "{");
    }
}

static void parse_test(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    gr_parse_skip(p);
    bool negated = gr_parse_accept_name(p, "not");
    struct gr_instr call = {.op = GR_OP_TEST, .at = at};
    struct gr_name name = dotted(p);
    call.a = gr_test_find(name.p, name.n);
    if (gr_parse_is_op(p, "(")) {
        parse_args(p, &call);
    } else if (begins_operand(p)) {
        if (gr_parse_is_name(p, "is"))
            gr_parse_fail(p, "tests cannot be chained by 'is'");
        parse_primary(p);
        parse_postfix(p);
        call.n = 1;
    }
    if (call.a < 0)
        unknown(p, &call, "test", name);
    emit_call(p, call);
    if (negated)
        gr_code_emit(p, GR_OP_NOT, 0, 0, 0, at);
}

/* ---- primaries ---- */

static void parse_string(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    size_t n = 0, k = 0;
    const struct gr_token *first = p->t;
    for (; p->t->kind == GR_TOK_STRING; p->t++)
        n += p->t->text.n;
    if (p->t == first + 1) {
        gr_code_emit(p, GR_OP_CONST, gr_const_string(p, first->text.p, n), 0, 0, at);
        return;
    }
    char *all = gr_arena_alloc(&p->prog->mem, n + 1);
    if (!all) {
        gr_parse_fail(p, "out of memory");
        return;
    }
    for (const struct gr_token *t = first; t < p->t; t++) {
        memcpy(all + k, t->text.p, t->text.n);
        k += t->text.n;
    }
    gr_code_emit(p, GR_OP_CONST, gr_const_string(p, all, n), 0, 0, at);
}

static void note_use(struct gr_parser *p, struct gr_name name)
{
#define NAMED(s) (name.n == sizeof(s) - 1 && !memcmp(name.p, s, sizeof(s) - 1))
    p->uses.caller = p->uses.caller || NAMED("caller");
    p->uses.varargs = p->uses.varargs || NAMED("varargs");
    p->uses.kwargs = p->uses.kwargs || NAMED("kwargs");
#undef NAMED
}

static void parse_name(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    if (gr_parse_accept_name(p, "true") || gr_parse_accept_name(p, "True")) {
        emit_const(p, gr_bool(true), at);
    } else if (gr_parse_accept_name(p, "false") || gr_parse_accept_name(p, "False")) {
        emit_const(p, gr_bool(false), at);
    } else if (gr_parse_accept_name(p, "none") || gr_parse_accept_name(p, "None")) {
        emit_const(p, gr_none(), at);
    } else {
        struct gr_name name = gr_parse_name(p);
        note_use(p, name);
        gr_code_emit(p, GR_OP_LOAD, gr_name_index(p, name.p, name.n), 0, 0, at);
    }
}

static void parse_list(struct gr_parser *p)
{
    uint32_t n = 0, at = p->t->at;
    gr_parse_skip(p);
    for (; !p->rc && !gr_parse_is_op(p, "]"); n++) {
        if (n)
            gr_parse_expect_op(p, ",");
        if (gr_parse_is_op(p, "]"))
            break;
        gr_parse_expr(p);
    }
    gr_parse_expect_op(p, "]");
    gr_code_emit(p, GR_OP_LIST, 0, 0, n, at);
}

static void parse_dict(struct gr_parser *p)
{
    uint32_t n = 0, at = p->t->at;
    gr_parse_skip(p);
    for (; !p->rc && !gr_parse_is_op(p, "}"); n++) {
        if (n)
            gr_parse_expect_op(p, ",");
        if (gr_parse_is_op(p, "}"))
            break;
        gr_parse_expr(p);
        gr_parse_expect_op(p, ":");
        gr_parse_expr(p);
    }
    gr_parse_expect_op(p, "}");
    gr_code_emit(p, GR_OP_DICT, 0, 0, n, at);
}

/* What stands in parentheses: an expression or a tuple, which may be empty. */
static void parse_parentheses(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    gr_parse_skip(p);
    if (gr_parse_is_op(p, ")"))
        gr_code_emit(p, GR_OP_TUPLE, 0, 0, 0, at);
    else
        gr_parse_tuple(p, true, NULL);
    gr_parse_expect_op(p, ")");
}

static void parse_primary(struct gr_parser *p)
{
    if (!gr_parse_enter(p))
        return;
    if (p->t->kind == GR_TOK_NAME) {
        parse_name(p);
    } else if (p->t->kind == GR_TOK_STRING) {
        parse_string(p);
    } else if (p->t->kind == GR_TOK_INT || p->t->kind == GR_TOK_FLOAT) {
        emit_const(p, p->t->kind == GR_TOK_INT ? gr_int(p->t->i) : gr_float(p->t->f), p->t->at);
        gr_parse_skip(p);
    } else if (gr_parse_is_op(p, "(")) {
        parse_parentheses(p);
    } else if (gr_parse_is_op(p, "[")) {
        parse_list(p);
    } else if (gr_parse_is_op(p, "{")) {
        parse_dict(p);
    } else {
        gr_parse_fail(p, "an expression is expected");
    }
    gr_parse_leave(p);
}

/* ---- postfix: members, calls, filters, tests ---- */

/* One part of a slice: an expression, or None where there is none. */
static void slice_part(struct gr_parser *p)
{
    if (gr_parse_is_op(p, ":") || gr_parse_is_op(p, "]") || gr_parse_is_op(p, ","))
        emit_const(p, gr_none(), p->t->at);
    else
        gr_parse_expr(p);
}

/* Emits the key within brackets, or the three parts of a slice. Returns whether it is a slice. */
static bool parse_key(struct gr_parser *p)
{
    if (!gr_parse_is_op(p, ":")) {
        gr_parse_expr(p);
        if (!gr_parse_is_op(p, ":"))
            return false;
    } else {
        emit_const(p, gr_none(), p->t->at);
    }
    gr_parse_expect_op(p, ":");
    slice_part(p);
    if (gr_parse_accept_op(p, ":"))
        slice_part(p);
    else
        emit_const(p, gr_none(), p->t->at);
    return true;
}

static void parse_brackets(struct gr_parser *p)
{
    uint32_t at = p->t->at, n = 0;
    bool slice = false;
    gr_parse_skip(p);
    for (; !p->rc && !gr_parse_is_op(p, "]"); n++) {
        if (n)
            gr_parse_expect_op(p, ",");
        slice = parse_key(p);
        if (slice && (n || !gr_parse_is_op(p, "]")))
            gr_parse_fail(p, "a slice stands alone within brackets");
    }
    gr_parse_expect_op(p, "]");
    if (n != 1)
        gr_code_emit(p, GR_OP_TUPLE, 0, 0, n, at);
    gr_code_emit(p, slice ? GR_OP_SLICE : GR_OP_ITEM, 0, 0, 0, at);
}

static void parse_dot(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    gr_parse_skip(p);
    if (p->t->kind == GR_TOK_INT) {
        emit_const(p, gr_int(p->t->i), at);
        gr_parse_skip(p);
        gr_code_emit(p, GR_OP_ITEM, 0, 0, 0, at);
        return;
    }
    struct gr_name name = gr_parse_name(p);
    gr_code_emit(p, GR_OP_ATTRIBUTE, gr_const_string(p, name.p, name.n), 0, 0, at);
}

static void parse_postfix(struct gr_parser *p)
{
    while (!p->rc) {
        if (gr_parse_is_op(p, "."))
            parse_dot(p);
        else if (gr_parse_is_op(p, "["))
            parse_brackets(p);
        else if (gr_parse_is_op(p, "("))
            parse_call(p);
        else
            return;
    }
}

static void parse_filter_expr(struct gr_parser *p)
{
    while (!p->rc) {
        if (gr_parse_accept_op(p, "|"))
            parse_filter(p);
        else if (gr_parse_is_name(p, "is"))
            parse_test(p);
        else if (gr_parse_is_op(p, "("))
            parse_call(p);
        else
            return;
    }
}

/* ---- operators, from the tightest ---- */

static void parse_unary(struct gr_parser *p, bool with_filter)
{
    uint32_t at = p->t->at;
    if (!gr_parse_enter(p))
        return;
    bool minus = gr_parse_is_op(p, "-");
    if (minus || gr_parse_is_op(p, "+")) {
        gr_parse_skip(p);
        parse_unary(p, false);
        gr_code_emit(p, GR_OP_NEGATE, minus, 0, 0, at);
    } else {
        parse_primary(p);
    }
    parse_postfix(p);
    if (with_filter)
        parse_filter_expr(p);
    gr_parse_leave(p);
}

static void parse_power(struct gr_parser *p)
{
    parse_unary(p, true);
    while (!p->rc && gr_parse_is_op(p, "**")) {
        uint32_t at = p->t->at;
        gr_parse_skip(p);
        parse_unary(p, true);
        gr_code_emit(p, GR_OP_BINARY, GR_POW, 0, 0, at);
    }
}

static void parse_product(struct gr_parser *p)
{
    parse_power(p);
    while (!p->rc) {
        uint32_t at = p->t->at;
        enum gr_binary op = gr_parse_is_op(p, "*")    ? GR_MUL
                            : gr_parse_is_op(p, "/")  ? GR_DIV
                            : gr_parse_is_op(p, "//") ? GR_FLOORDIV
                            : gr_parse_is_op(p, "%")  ? GR_MOD
                                                      : GR_POW;
        if (op == GR_POW)
            return;
        gr_parse_skip(p);
        parse_power(p);
        gr_code_emit(p, GR_OP_BINARY, (int32_t)op, 0, 0, at);
    }
}

static void parse_concat(struct gr_parser *p)
{
    uint32_t n = 1, at = p->t->at;
    parse_product(p);
    for (; !p->rc && gr_parse_accept_op(p, "~"); n++)
        parse_product(p);
    if (n > 1)
        gr_code_emit(p, GR_OP_CONCAT, 0, 0, n, at);
}

static void parse_sum(struct gr_parser *p)
{
    parse_concat(p);
    while (!p->rc && (gr_parse_is_op(p, "+") || gr_parse_is_op(p, "-"))) {
        uint32_t at = p->t->at;
        enum gr_binary op = gr_parse_is_op(p, "+") ? GR_ADD : GR_SUB;
        gr_parse_skip(p);
        parse_concat(p);
        gr_code_emit(p, GR_OP_BINARY, (int32_t)op, 0, 0, at);
    }
}

/* The comparison at the current token, which is skipped; -1: there is none. */
static int comparison(struct gr_parser *p)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};
    for (int i = 0; i < 6; i++) {
        if (gr_parse_accept_op(p, ops[i]))
            return i;
    }
    if (gr_parse_accept_name(p, "in"))
        return GR_IN;
    if (!gr_parse_is_name(p, "not") || p->t[1].kind != GR_TOK_NAME || p->t[1].text.n != 2 ||
        memcmp(p->t[1].text.p, "in", 2) != 0)
        return -1;
    gr_parse_skip(p);
    gr_parse_skip(p);
    return GR_NOT_IN;
}

#define MOST_CHAINED 32

static void parse_compare(struct gr_parser *p)
{
    size_t chain[MOST_CHAINED], n = 0, last = 0;
    parse_sum(p);
    while (!p->rc) {
        uint32_t at = p->t->at;
        int op = comparison(p);
        if (op < 0)
            break;
        if (n == MOST_CHAINED)
            gr_parse_fail(p, "more than %d comparisons in a row", MOST_CHAINED);
        else if (last)
            gr_instr_at(p, last)->op = GR_OP_CHAIN, chain[n++] = last;
        parse_sum(p);
        last = gr_code_emit(p, GR_OP_COMPARE, op, 0, 0, at);
    }
    for (size_t i = 0; i < n; i++)
        gr_patch(p, chain[i]);
}

static void parse_not(struct gr_parser *p)
{
    uint32_t at = p->t->at;
    size_t n = 0;
    while (gr_parse_accept_name(p, "not"))
        n++;
    parse_compare(p);
    for (; n && !p->rc; n--)
        gr_code_emit(p, GR_OP_NOT, 0, 0, 0, at);
}

static void parse_and(struct gr_parser *p)
{
    parse_not(p);
    while (!p->rc && gr_parse_is_name(p, "and")) {
        size_t jump = gr_code_emit(p, GR_OP_AND, 0, 0, 0, p->t->at);
        gr_parse_skip(p);
        parse_not(p);
        gr_patch(p, jump);
    }
}

void gr_parse_or(struct gr_parser *p)
{
    parse_and(p);
    while (!p->rc && gr_parse_is_name(p, "or")) {
        size_t jump = gr_code_emit(p, GR_OP_OR, 0, 0, 0, p->t->at);
        gr_parse_skip(p);
        parse_and(p);
        gr_patch(p, jump);
    }
}

/* Takes the code from `start` on off the end. */
static struct gr_vec cut(struct gr_parser *p, size_t start)
{
    struct gr_vec part = {0};
    if (!p->rc)
        p->rc =
            gr_vec_append(&part, gr_instr_at(p, start), p->code.n - start, sizeof(struct gr_instr));
    if (!p->rc)
        p->code.n = start;
    return part;
}

/* `x if c else y`, of which x is emitted from `start` on and `if` is the current token. */
static void parse_inline_if(struct gr_parser *p, size_t start)
{
    uint32_t at = p->t->at;
    gr_parse_skip(p);
    struct gr_vec then = cut(p, start);
    gr_parse_or(p);
    size_t no = gr_code_emit(p, GR_OP_JUMP_FALSE, 0, 0, 0, at);
    if (!p->rc)
        p->rc = gr_vec_append(&p->code, then.data, then.n, sizeof(struct gr_instr));
    gr_vec_fini(&then);
    size_t yes = gr_code_emit(p, GR_OP_JUMP, 0, 0, 0, at);
    gr_patch(p, no);
    if (gr_parse_accept_name(p, "else"))
        gr_parse_expr(p);
    else
        gr_code_emit(p, GR_OP_UNDEFINED, 0, 0, 0, at);
    gr_patch(p, yes);
}

void gr_parse_expr(struct gr_parser *p)
{
    const char *had = p->unknown;
    bool soft = p->soft;
    size_t start = gr_here(p);
    if (!gr_parse_enter(p))
        return;
    gr_parse_or(p);
    for (int n = 0; !p->rc && gr_parse_is_name(p, "if"); n++) {
        if (n == MOST_CHAINED)
            gr_parse_fail(p, "more than %d conditions in a row", MOST_CHAINED);
        p->unknown = had; /* what is unknown in an inline if is an error when it runs */
        p->soft = true;
        parse_inline_if(p, start);
    }
    p->soft = soft;
    gr_parse_leave(p);
}

void gr_parse_tuple(struct gr_parser *p, bool with_if, const char *end)
{
    uint32_t n = 0, at = p->t->at;
    bool tuple = false;
    while (!p->rc) {
        if (n && (is_end(p) || gr_parse_is_op(p, ")") || (end && gr_parse_is_name(p, end))))
            break;
        if (with_if)
            gr_parse_expr(p);
        else
            gr_parse_or(p);
        n++;
        if (!gr_parse_accept_op(p, ","))
            break;
        tuple = true;
    }
    if (tuple)
        gr_code_emit(p, GR_OP_TUPLE, 0, 0, n, at);
}

/* NOLINTEND(misc-no-recursion) */
