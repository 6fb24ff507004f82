/* Shared by the files of gpurun diff: the two sides, and the result of each node. */
#ifndef GR_TOOLS_DIFF_H
#define GR_TOOLS_DIFF_H

#include "tools/cli/flags.h"

/* Ways to run the prompt. */
enum gr_diff_way { GR_WAY_WHOLE, GR_WAY_EACH, GR_N_WAY };

/* Standard deviations of rounding errors relative to the RMS of the rounded values: a product's
 * operand, keys and values, the arithmetic of attention. */
struct gr_diff_steps {
    double x, cache, attention;
};

struct gr_diff_side {
    const char *name, *flags; /* "-a" or "-b", and its value */
    char *split, **words;     /* that value split into words, and the command line with them */
    struct gr_options o;
    struct gr_model *model;
    struct gr_session *session;
    struct gr_diff_steps steps;
    char where[512]; /* devices that it ran on */
};

/* The largest difference, as a multiple of its tolerance. */
struct gr_diff_worst {
    double ratio, tolerance; /* ratio INFINITY: not finite, or nothing is tolerated */
    int64_t row, col;        /* row -1: nothing was compared */
    float a, b;
};

struct gr_diff_node {
    char name[32];
    int layer, depth; /* depth: layers up to it, */
    bool early;       /* of the last of which just the first product stands in front of it, */
    bool mixed;       /* or all up to what mixes tokens */
    enum gr_diff_way way;
    int64_t rows, cols, rows_b; /* rows of all steps on side A, and on B */
    float *x;                   /* [rows, cols] of A */
    double rms;                 /* of A; -1: not known yet */
    struct gr_diff_worst worst;
};

/* Logits as a user gets them, untapped. */
struct gr_diff_logits {
    float *a;            /* [n, n_vocab] */
    double d2, a2, most; /* sums of squares, of the difference and of A; largest difference */
    int64_t n_same;      /* tokens whose largest logit is the same one */
    struct gr_diff_node node;
};

struct gr_diff {
    const struct gr_options *o;
    struct gr_diff_side side[2];
    int32_t *ids;
    size_t n;
    int32_t n_vocab, n_embd, n_layer;
    struct gr_diff_node *node; /* in the order of side A */
    size_t n_node, n_room;
    struct gr_diff_logits logits[GR_N_WAY];
    /* of the current run */
    struct gr_diff_side *at;
    enum gr_diff_way way;
    int last_layer, rc;
};

/* Returns the rounding errors of a side, from its flags and the model's types. */
struct gr_diff_steps gr_diff_steps(const struct gr_options *o, const struct gr_model_info *info);
/* Tap (gr_tensor_fn) of the current side; user: struct gr_diff, whose rc becomes an exit code,
 * after printing the error, on failure. */
void gr_diff_tap(const char *name, int layer, const float *x, int64_t rows, int64_t cols,
                 void *user);
/* Record the untapped logits of token i; gr_diff_begin comes before the first of a way. 0 or an
 * exit code, after printing the error. */
int gr_diff_begin(struct gr_diff *d, enum gr_diff_way way);
void gr_diff_logits(struct gr_diff *d, size_t i, const float *x);
/* Prints the report. Returns 0, the exit code of GR_E_CHECK when anything is beyond its tolerance,
 * or that of a failure, after printing the error. */
int gr_diff_report(const struct gr_diff *d);

#endif
