/* A parsed template (gpurun.h): instructions for a stack machine. Immutable; any number of renders
 * may use it at once. */
#ifndef GR_CHAT_PROGRAM_H
#define GR_CHAT_PROGRAM_H

#include "base/alloc.h"
#include "chat/value.h"
#include "gpurun.h"

#define GR_TEMPLATE_MAX_BYTES (1u << 20)
#define GR_TEMPLATE_MAX_MEMORY (256u << 20)
#define GR_TEMPLATE_MAX_NAMES 512u
#define GR_TEMPLATE_MAX_DEPTH 64u /* nested statements and expressions */

enum gr_op {
#define OP(NAME) GR_OP_##NAME,
#include "chat/op.def"
#undef OP
    GR_N_OP
};

enum { GR_CALL_LIST = 1, GR_CALL_DICT = 2, GR_CALL_CALLER = 4 };

struct gr_instr {
    uint8_t op;
    uint8_t flags; /* of CALL, FILTER, TEST: GR_CALL_ */
    uint32_t n;
    int32_t a, b;
    uint32_t at; /* offset in the source, for messages */
};

/* A slice of the source. */
struct gr_name {
    const char *p;
    size_t n;
};

struct gr_macro_code {
    int32_t name; /* -1: the body of a call block */
    int32_t *params;
    uint32_t n_params;
    uint32_t start;         /* first instruction */
    uint8_t has_default[8]; /* bit of each of the first 64 parameters */
    bool takes_caller, takes_varargs, takes_kwargs;
};

struct gr_template {
    struct gr_arena mem;
    char *source; /* newlines are \n, without the last one */
    size_t n_source;
    struct gr_instr *code;
    size_t n_code;
    struct gr_val *consts;
    size_t n_consts;
    struct gr_name *names;
    size_t n_names;
    struct gr_macro_code *macros;
    size_t n_macros;
    int32_t loop, caller, varargs, kwargs; /* names with a meaning */
};

#endif
