/* Template text to tokens, with Jinja's rules for white space (trim_blocks, lstrip_blocks). */
#ifndef GR_CHAT_LEX_H
#define GR_CHAT_LEX_H

#include "base/alloc.h"
#include "chat/program.h"
#include "chat/source.h"

enum gr_token_kind {
    GR_TOK_TEXT,      /* outside of tags */
    GR_TOK_PRINT,     /* {{ */
    GR_TOK_PRINT_END, /* }} */
    GR_TOK_BLOCK,     /* {% */
    GR_TOK_BLOCK_END, /* %} */
    GR_TOK_NAME,
    GR_TOK_STRING, /* quotes are gone, escapes resolved */
    GR_TOK_INT,
    GR_TOK_FLOAT,
    GR_TOK_OP, /* operators and brackets */
    GR_TOK_END
};
struct gr_token {
    enum gr_token_kind kind;
    struct gr_name text;
    uint32_t at;
    union {
        int64_t i;
        double f;
    };
};

/* Appends the tokens of p's source to `tokens`, a vector of struct gr_token that ends with
 * GR_TOK_END. GR_E_TEMPLATE with line and column. */
int gr_lex(struct gr_template *p, struct gr_vec *tokens);
#endif
