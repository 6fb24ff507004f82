/* A plan: the flat list of operations that computes one shape of micro-batch, and where its
 * intermediate results live.
 *
 * Recording appends nodes, each for a device, whose activations are values (index, size).
 * gr_plan_finish keeps the nodes of one stage where several ranks share a plan, cuts the list into
 * parts of one device each, makes a value that another device needs one of that device's by a move
 * at the part's beginning, finds each value's life from first to last use and packs the values of
 * each device into one arena. gr_plan_bind writes addresses into the nodes. Weights and caches have
 * their addresses from the start; the step block and the session's constants, which every device
 * has, are values of their own kind.
 *
 * All ranks record the whole plan, so that they agree on what goes from a stage to the next: `out`
 * of one stage are the values in `in` of the next, with the same numbers and sizes. */
#ifndef GR_GRAPH_PLAN_H
#define GR_GRAPH_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/alloc.h"
#include "gr/backend.h"
#include "gr/step.h"

#define GR_MAX_DEVICE 17 /* the CPU, number 0, and 16 more */

/* Tokens of a step whose values are small: neighbours that need nothing of each other run at the
 * same time where a backend can do that, so memory is given on later than it could be, and such a
 * step may need more of it than one of some tokens more. */
#define GR_PLAN_FEW 8

/* What stands in gr_ten.value for the step block and the session's constants: offset is the place
 * in them. */
#define GR_VALUE_STEP UINT32_MAX
#define GR_VALUE_CONST (UINT32_MAX - 1)

struct gr_value {
    int64_t bytes, offset;
    int32_t first, last; /* nodes that write and use it; -1 = none */
    int32_t device;      /* whose arena it is in */
    bool keep;           /* lives to the end of the plan: a result that is read after it */
    bool offloaded;      /* a weight */
};

/* Value src, of one device, becomes value dst of another; one of the two is the CPU. */
struct gr_move {
    uint32_t src, dst;
};

/* Weights of the host that a device computes with in some plans only, and then gets anew in each
 * step. In the nodes of such a plan they are at addresses that are no memory, from GR_DISTANT on,
 * until gr_plan_bind. */
#define GR_DISTANT ((uintptr_t)1 << 62)
struct gr_distant {
    const struct gr_ten *host;
    uintptr_t at;  /* ascending */
    int64_t bytes; /* on the device */
    bool matrix;
};
struct gr_distants {
    const struct gr_distant *item;
    size_t n;
};

/* A weight of the host becomes value `value` of a device. */
struct gr_offload {
    const struct gr_distant *weight;
    uint32_t value;
};

/* Nodes one after the other that one device runs, once the moves and offloads are done; or a single
 * EXCHANGE, which the engine does with that device's memory. What is offloaded for a part is asked
 * for when the turn of part `ask` comes, an earlier one of the device (-1: as the plan begins), and
 * has memory from then on. That is the one before it (gr_plan_part_before), or where it costs
 * little memory the one before that: then the link has something to do from part to part. */
struct gr_part {
    int32_t device, ask;
    bool exchange;
    /* of the plan's, from where and how many */
    int32_t node, n_node, tap, n_tap, move, n_move, offload, n_offload;
};

struct gr_plan {
    struct gr_vec node;    /* struct gr_node */
    struct gr_vec value;   /* struct gr_value; index 0 stands for "not a value" */
    struct gr_vec tap;     /* struct gr_tap; node counts in the part once the plan is finished */
    struct gr_vec part;    /* struct gr_part */
    struct gr_vec move;    /* struct gr_move */
    struct gr_vec offload; /* struct gr_offload */
    struct gr_distants distant; /* what nodes may have for weights beside memory */
    int32_t stage, n_stage;     /* 0 or 1 stages: the whole plan */
    /* uint32_t, ascending: values that come from the stage before, before the first node runs, and
     * that the next one gets after the last. One that only passes through is in both. */
    struct gr_vec in, out;
    struct gr_step_shape shape;
    struct gr_step_layout layout;
    int64_t arena_bytes[GR_MAX_DEVICE];
    /* [1, n_out, n_vocab] f32, or vectors of rows or of n_pool sequences; [1, 1, n_out] i32 when
     * tokens are drawn; the last stage's */
    struct gr_ten result;
};

/* Where a device has what plans refer to. */
struct gr_plan_memory {
    void *arena, *step, *constants;
};

void gr_plan_init(struct gr_plan *p, const struct gr_step_shape *shape);
void gr_plan_fini(struct gr_plan *p);

/* A new value of this shape (f32, f64 or i32); absent when there is no memory. */
struct gr_ten gr_plan_value(struct gr_plan *p, int64_t rows, int64_t cols, uint32_t dtype);
/* Appends a node. */
int gr_plan_add(struct gr_plan *p, const struct gr_node *node);
/* Marks t as named: its tap fires after the node that was the last to write it. `name` must outlive
 * the plan. */
int gr_plan_tap(struct gr_plan *p, const char *name, int layer, const struct gr_ten *t);
/* Marks what the node that was added last multiplies with matrices of a slot: two taps, of the ids
 * (where it has some) and of the input, fire after it. */
int gr_plan_watch(struct gr_plan *p, int32_t weight, int layer);
/* Drops nodes of which nothing is used and those of other stages, cuts the rest into parts, and
 * places all values; two of a device that are alive at the same node never overlap. Nodes that read
 * the step block and constants alone are repeated in every stage and on every device that needs
 * what they give. GR_E_INTERNAL when a stage needs what a later one computes. */
int gr_plan_finish(struct gr_plan *p);
/* Fills in the addresses of all values, with the memory of each device; arenas are aligned to 256.
 */
void gr_plan_bind(struct gr_plan *p, const struct gr_plan_memory memory[GR_MAX_DEVICE]);
/* The part of the same device before part i, or -1. */
int32_t gr_plan_part_before(const struct gr_plan *p, int32_t i);
/* A part as its backend takes it; valid as long as the plan. */
struct gr_segment gr_plan_segment(const struct gr_plan *p, const struct gr_part *part);

/* Prints nodes, shapes and places, for people. */
void gr_plan_print(const struct gr_plan *p, FILE *out);

/* ---- between plan.c, cut.c and spread.c ---- */

/* The value of a tensor, NULL when it is in none of the plan's. */
static inline struct gr_value *gr_plan_find(const struct gr_plan *p, const struct gr_ten *t)
{
    return t->value && t->value < p->value.n ? (struct gr_value *)p->value.data + t->value : NULL;
}
/* The weight that an operand is, or is a part of; NULL when it is none that is offloaded. */
const struct gr_distant *gr_plan_distant(const struct gr_plan *p, const struct gr_ten *t);
/* What a tap of a product's operand looks at, as its node has it now. */
void gr_plan_refresh_tap(struct gr_tap *tap, struct gr_node *node);
/* Whether a node depends on what every device has, and on nothing else. */
bool gr_plan_repeats(struct gr_node *n);
/* Drops the nodes whose `kept`, [nodes], is 0, and their taps. */
void gr_plan_keep(struct gr_plan *p, int32_t *kept);
/* Keeps the plan's stage of p->n_stage, and finds `in` and `out`. */
int gr_plan_cut(struct gr_plan *p);
/* Cuts the nodes into parts. */
int gr_plan_spread(struct gr_plan *p);

#endif
