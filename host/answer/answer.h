/* Shared by the files of this folder: an answer being read, and the call within it. */
#ifndef GR_ANSWER_ANSWER_H
#define GR_ANSWER_ANSWER_H

#include <jansson.h>

#include "answer/format.h"
#include "answer/json.h"
#include "base/alloc.h"
#include "gpurun.h"

/* Finds a text in bytes that come one by one (Knuth, Morris, Pratt). */
#define GR_FINDER_MAX 64
struct gr_finder {
    const char *text;
    size_t n, at; /* at: length of its longest beginning that the bytes end with */
    uint8_t border[GR_FINDER_MAX];
};
void gr_finder_set(struct gr_finder *f, const char *text, size_t n);
/* Returns whether the text is complete with this byte. */
bool gr_finder_put(struct gr_finder *f, char c);

enum gr_call_key {
    GR_KEY_NONE,
    GR_KEY_NAME,
    GR_KEY_ARGUMENTS,
    GR_KEY_ID,
    GR_KEY_TYPE,
    GR_KEY_FUNCTION, /* the call within a call of the OpenAI API; or a name */
    GR_KEY_CALLS     /* a list of calls */
};

#define GR_CALL_MAX_LEVEL 6 /* objects and lists around the arguments */

/* A call being read: where its pattern is, and what was found. */
struct gr_call {
    const char *at;           /* in the pattern */
    const char *alternatives; /* %{ that is being decided, NULL: none */
    unsigned alive;           /* those of them that fit so far */
    size_t n_literal;         /* bytes of theirs read */
    const char *loop;         /* the first %{ */
    bool entered;             /* the element at `at` has begun */
    char name[GR_ANSWER_MAX_NAME + 1], id[GR_ANSWER_MAX_NAME + 1];
    size_t n_name, n_id;
    struct gr_finder end;     /* of %k, %v, %w, %t; of strings in %g */
    struct gr_vec key, value; /* char; of parameters, of strings in %j, of words in %g */
    struct gr_json json;      /* of %a, %j and %g */
    int32_t brackets;         /* of %b, %c */
    char quote;               /* of %b, %c, %g: open, or 0 */
    bool escaped;
    bool begun;         /* the delta of the call's beginning was given */
    bool unwanted;      /* the answer is read without calls, and this is one */
    bool has_arguments; /* they have begun, or are complete */
    int32_t n_parameters;
    /* %j */
    int32_t arguments_depth; /* of the arguments being read, 0: none */
    char
        level[GR_CALL_MAX_LEVEL + 1]; /* by depth: [ a list, { a call, w what has a list of calls */
    enum gr_call_key member;
    bool string; /* a key or value that is needed is being read */
    int32_t n_calls;
    struct gr_vec waiting; /* char: arguments in front of the name */
};

enum gr_answer_mode { GR_MODE_TEXT, GR_MODE_REASONING, GR_MODE_CALL };

struct gr_answer {
    gr_answer_fn *fn;
    void *user;
    int rc;
    bool ended, no_calls;
    json_t *types; /* of parameters, by the names of their tools; NULL: no tools */
    struct gr_mark mark[GR_MAX_MARK];
    struct gr_finder finder[GR_MAX_MARK];
    int32_t n_mark;
    enum gr_answer_mode mode;
    struct gr_finder close; /* of reasoning */
    struct gr_vec held;     /* char: blanks [n_blank], then what may become a mark */
    size_t n_blank;
    bool first;        /* nothing but blanks since the beginning or the last block */
    bool drop_blanks;  /* first, and behind a block */
    struct gr_vec raw; /* char: all that was read of the call */
    size_t n_opening;  /* bytes of raw up to the end of its mark */
    int32_t call_mark; /* that mark, -1: none */
    size_t n_given;    /* bytes of the prompt that were read as if they were the answer's */
    struct gr_call call;
    int32_t n_done, n_open; /* calls: done; begun since */
    struct gr_vec run;      /* char: text of the next delta */
    enum gr_answer_part run_part;
};

/* Each keeps its failure in a->rc. gr_answer_flush gives the text that has gathered. */
void gr_answer_call_back(struct gr_answer *a, const struct gr_answer_delta *delta);
void gr_answer_flush(struct gr_answer *a);
void gr_answer_give(struct gr_answer *a, enum gr_answer_part part, const char *p, size_t n);
void gr_answer_begin_call(struct gr_answer *a);
void gr_answer_give_id(struct gr_answer *a);

/* Begins a call whose pattern goes on at `rest`. */
void gr_call_begin(struct gr_answer *a, const char *rest);
void gr_call_fini(struct gr_call *k);
/* Adds a byte. 1: the call is complete, 0: more must come, -1: it is none. */
int gr_call_put(struct gr_answer *a, char c);
/* Returns whether only marks are missing, and completes the call. */
bool gr_call_end(struct gr_answer *a);

/* Adds a byte to the object or list of %j; as gr_call_put. */
int gr_object_put(struct gr_answer *a, char c);
/* Adds a byte to the arguments of %g; as gr_call_put. */
int gr_gemma_put(struct gr_answer *a, char c);
/* Copies a name or id into to [GR_ANSWER_MAX_NAME + 1]; false: it is empty, too long, or has
 * control characters. */
bool gr_call_copy(char *to, size_t *n_to, const char *p, size_t n);

/* Gives the parameter `key` with a value as the model wrote it, between the brackets of the
 * arguments; false: it cannot be JSON. string: the value is one, whatever it looks like. */
bool gr_parameter_give(struct gr_answer *a, const char *key, size_t n_key, const char *value,
                       size_t n, bool string);
void gr_parameters_end(struct gr_answer *a);
/* The JSON of a value in JSON or a word of Python [*n], with its length in *n; NULL: it is neither.
 */
const char *gr_value_json(const char *p, size_t *n);
/* Gives arguments as in Python: name=value, ... [n]. */
bool gr_python_give(struct gr_answer *a, const char *p, size_t n);

static inline bool gr_is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

#endif
