/* State of a render. */
#ifndef GR_CHAT_RUN_H
#define GR_CHAT_RUN_H

#include "chat/program.h"
#include "chat/value.h"

struct gr_variable {
    int32_t name;
    struct gr_val value;
};
/* Variables of a loop's iteration, a macro's call, a captured part, or the template. */
struct gr_scope {
    struct gr_scope *up;
    struct gr_variable *v;
    size_t n, cap;
};

struct gr_macro {
    const struct gr_macro_code *code;
    struct gr_scope *scope; /* that it sees */
    struct gr_name name;
};

/* What a call of a macro or a captured part comes back to. */
struct gr_frame {
    size_t pc;
    struct gr_scope *scope;
    struct gr_text *out;
    size_t n_loops;
    bool call; /* of a macro */
};

struct gr_render {
    const struct gr_template *prog;
    struct gr_arena mem;
    int rc; /* sticky; the message is gr_fail's */
    uint64_t steps;
    int64_t now;
    /* what values need of methods and filters, which are made of values */
    struct gr_val (*find_method)(struct gr_render *r, struct gr_val v, const char *p, size_t n);
    int (*find_filter)(const char *p, size_t n);
    size_t pc;
    struct gr_val context; /* dict */
    struct gr_scope *scope;
    struct gr_text *out;
    struct gr_val *stack;
    size_t n_stack, cap_stack;
    struct gr_frame frames[2 * GR_RENDER_MAX_DEPTH];
    size_t n_frames;
    unsigned n_making;      /* iterators whose items are being made */
    struct gr_loop **loops; /* the running ones, innermost last */
    size_t n_loops, cap_loops;
};

void gr_push(struct gr_render *r, struct gr_val v);
struct gr_val gr_pop(struct gr_render *r);
struct gr_scope *gr_scope_new(struct gr_render *r, struct gr_scope *up);
void gr_scope_set(struct gr_render *r, struct gr_scope *s, int32_t name, struct gr_val v);
/* Variable of this scope alone; NULL: there is none. */
struct gr_val *gr_scope_find(const struct gr_scope *s, int32_t name);
/* Begins a frame that goes on at `pc`; output is captured from now on. */
void gr_frame_push(struct gr_render *r, size_t pc, struct gr_scope *scope, bool call);
/* Runs the instructions until the end of the template or an error. */
void gr_run(struct gr_render *r);
/* Takes the arguments of instruction `in` off the stack. */
struct gr_args gr_take_args(struct gr_render *r, const struct gr_instr *in);
/* Calls f: a macro becomes a frame, anything else leaves its result on the stack. */
void gr_call(struct gr_render *r, struct gr_val f, const struct gr_args *a);

#endif
