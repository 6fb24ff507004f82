/* The parser: tokens to instructions, in one pass. parse.c has statements, parse_expr.c
 * expressions. */
#ifndef GR_CHAT_PARSE_H
#define GR_CHAT_PARSE_H

#include "chat/lex.h"
#include "chat/program.h"

#define GR_MAX_TARGETS 32 /* names that one assignment sets */

struct gr_parser {
    struct gr_template *prog;
    const struct gr_token *t; /* the current token */
    struct gr_vec code;       /* struct gr_instr */
    struct gr_vec consts;     /* struct gr_val */
    struct gr_vec names;      /* struct gr_name */
    struct gr_vec macros;     /* struct gr_macro_code */
    int rc;                   /* sticky */
    unsigned depth;
    size_t label;          /* last place that a jump leads to */
    bool soft;             /* within an if: an unknown filter is an error when it runs */
    size_t n_loops;        /* loops around, within the same captured text */
    struct gr_vec *breaks; /* of the innermost loop: places of BREAK */
    size_t next;           /* its NEXT */
    const char *unknown;   /* message about an unknown filter or test outside of an if */
    uint32_t unknown_at;
    struct { /* use of names with a meaning in the macro around */
        bool caller, varargs, kwargs;
    } uses;
};

/* Records an error at the current token (or at an offset), unless there is one. */
void gr_parse_fail(struct gr_parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns whether the current token is this operator or name; `accept` also skips it. */
bool gr_parse_is_op(const struct gr_parser *p, const char *op);
bool gr_parse_is_name(const struct gr_parser *p, const char *name);
bool gr_parse_accept_op(struct gr_parser *p, const char *op);
bool gr_parse_accept_name(struct gr_parser *p, const char *name);
void gr_parse_expect_op(struct gr_parser *p, const char *op);
void gr_parse_skip(struct gr_parser *p);
/* Enters a level of nesting; false after an error or too deep. Each needs gr_parse_leave. */
bool gr_parse_enter(struct gr_parser *p);
void gr_parse_leave(struct gr_parser *p);

/* Appends an instruction; returns its index. */
size_t gr_code_emit(struct gr_parser *p, enum gr_op op, int32_t a, int32_t b, uint32_t n,
                    uint32_t at);
struct gr_instr *gr_instr_at(struct gr_parser *p, size_t i);
size_t gr_here(struct gr_parser *p);
/* Makes the jump of instruction i lead here. */
void gr_patch(struct gr_parser *p, size_t i);
/* Relative jump from the next instruction back to `to`. */
void gr_emit_back(struct gr_parser *p, size_t to, uint32_t at);
/* Index of a name or a constant, made when it is new. */
int32_t gr_name_index(struct gr_parser *p, const char *s, size_t n);
int32_t gr_const_string(struct gr_parser *p, const char *s, size_t n);
/* Skips a name and returns it; an error when there is none. */
struct gr_name gr_parse_name(struct gr_parser *p);

/* Emit code that leaves the value on the stack. */
void gr_parse_expr(struct gr_parser *p);
void gr_parse_or(struct gr_parser *p); /* without an inline if */
/* An expression, or several with commas between them: a tuple. Ends before `end` (a name). */
void gr_parse_tuple(struct gr_parser *p, bool with_if, const char *end);
/* Filters of a filter block, applied to the value on the stack. */
void gr_parse_filters(struct gr_parser *p);

#endif
