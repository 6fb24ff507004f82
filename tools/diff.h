/* What the parts of gpurun diff share: two sides, and what was found of each node. */
#ifndef GR_TOOLS_DIFF_H
#define GR_TOOLS_DIFF_H

#include "tools.h"

/* Ways to run the prompt. */
enum gr_diff_way { GR_WAY_WHOLE, GR_WAY_EACH, GR_N_WAY };

/* Standard deviations of what is rounded, relative to its RMS: a product's operand, keys and
 * values, attention's own arithmetic. */
struct gr_diff_steps {
    double x, cache, attention;
};

struct gr_diff_side {
    const char *name, *flags; /* "-a", and its value */
    char *split, **words;     /* that value cut up, and the command line with it */
    struct gr_options o;
    struct gr_model *model;
    struct gr_session *session;
    struct gr_diff_steps steps;
    char where[512]; /* what it ran on */
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
    /* of the run under way */
    struct gr_diff_side *at;
    enum gr_diff_way way;
    int last_layer, rc;
};

/* What a side rounds, by its flags and the model as it lies. */
struct gr_diff_steps gr_diff_steps(const struct gr_options *o, const struct gr_model_info *info);
/* A tap (gr_tensor_fn) of the side under way; the user is the struct gr_diff, whose rc is an exit
 * code, said, when it fails. */
void gr_diff_tap(const char *name, int layer, const float *x, int64_t rows, int64_t cols,
                 void *user);
/* Logits of token i, untapped. gr_diff_begin before the first of a way: 0 or an exit code, said. */
int gr_diff_begin(struct gr_diff *d, enum gr_diff_way way);
void gr_diff_logits(struct gr_diff *d, size_t i, const float *x);
/* Prints what was found; the exit code: 0, that of GR_E_CHECK when anything lies beyond its
 * tolerance, or of what went wrong, said. */
int gr_diff_report(const struct gr_diff *d);

#endif
