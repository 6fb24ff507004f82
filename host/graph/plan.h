/* A plan: the flat list of operations that computes one shape of micro-batch, and where its
 * intermediate results are stored.
 *
 * Recording appends nodes, each for a device, whose activations are values (index, size).
 * gr_plan_finish keeps the nodes of one stage when a plan has several, cuts the list into segments
 * that each run on one device, copies values to other devices that need them by moves at the
 * beginning of a segment, finds the lifetime of each value from first to last use, and packs the
 * values of each device into one arena. gr_plan_bind writes addresses into the nodes. Weights and
 * caches have their addresses from the start; the step block and the session's constants, which
 * every device has, are values of special kinds.
 *
 * All ranks record the whole plan, so that they agree on the values passed between stages: `out` of
 * one stage are the values in `in` of the next, with the same numbers and sizes. */
#ifndef GR_GRAPH_PLAN_H
#define GR_GRAPH_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/alloc.h"
#include "gr/backend.h"
#include "gr/step.h"

#define GR_MAX_DEVICE 17 /* the CPU, number 0, and 16 more */

/* Steps of at most this many tokens have small values. Backends may run independent neighbouring
 * nodes of them concurrently, so the memory of a value is reused a few nodes later than it could
 * be, and such a step may need more memory than one of a few more tokens. */
#define GR_PLAN_FEW 8

/* Values of gr_ten.value for the step block and the session's constants; `offset` is in these. */
#define GR_VALUE_STEP UINT32_MAX
#define GR_VALUE_CONST (UINT32_MAX - 1)

struct gr_value {
    int64_t bytes, offset;
    int32_t first, last; /* first and last node that uses it; -1 = none */
    int32_t device;      /* the device whose arena it is in */
    int32_t writer; /* while a plan is recorded: device of the node that wrote it first, or -1 */
    bool keep;      /* lives to the end of the plan, because it is read afterwards */
    bool offloaded; /* a weight */
};

/* Copies value src of one device to value dst of another; one of the two is the CPU. */
struct gr_move {
    uint32_t src, dst;
};

/* Weights in host memory that a device uses in some plans only, and that are offloaded anew in each
 * step. Until gr_plan_bind the nodes of such a plan have placeholder addresses for them, from
 * GR_OFFLOAD_ADDRESS on. */
#define GR_OFFLOAD_ADDRESS ((uintptr_t)1 << 62)
struct gr_offload_item {
    const struct gr_ten *host;
    uintptr_t at;  /* ascending */
    int64_t bytes; /* on the device */
    bool matrix;
};
struct gr_offload_items {
    const struct gr_offload_item *item;
    size_t n;
};

/* Copies a weight from the host to value `value` of a device. */
struct gr_offload {
    const struct gr_offload_item *weight;
    uint32_t value;
};

/* A segment of a plan: consecutive nodes that one device runs after the segment's moves and
 * offloads; or a single EXCHANGE, which the engine performs with that device's memory. Its offloads
 * are requested when segment `ask` begins, an earlier one of the device (-1: when the plan begins),
 * and have memory from then on. `ask` is the previous segment of the device
 * (gr_plan_segment_before) or, where that costs little memory, the one before that, which keeps the
 * link busy from segment to segment. */
struct gr_plan_segment {
    struct gr_segment
        run; /* its nodes and taps, which a backend takes; valid as long as the plan */
    int32_t device, ask;
    bool exchange;
    /* first index and count in the plan's arrays */
    int32_t node, move, n_move, offload, n_offload;
};

struct gr_plan {
    struct gr_vec node;    /* struct gr_node */
    struct gr_vec value;   /* struct gr_value; index 0 stands for "not a value" */
    struct gr_vec tap;     /* struct gr_tap; `node` is relative to the segment in a finished plan */
    struct gr_vec segment; /* struct gr_plan_segment */
    struct gr_vec move;    /* struct gr_move */
    struct gr_vec offload; /* struct gr_offload */
    struct gr_offload_items offload_items; /* weights at placeholder addresses */
    int32_t stage, n_stage;                /* 0 or 1 stages: the whole plan */
    /* uint32_t, ascending: values received from the previous stage before the first node runs, and
     * values sent to the next stage after the last node. A value that only passes through is in
     * both. */
    struct gr_vec in, out;
    struct gr_step_shape shape;
    struct gr_step_layout layout;
    int64_t arena_bytes[GR_MAX_DEVICE];
    /* Result of the last stage: [1, n_out, n_vocab] f32 logits, or vectors of rows or of n_pool
     * sequences; [1, 1, n_out] i32 when tokens are drawn */
    struct gr_ten result;
};

/* Memory of a device that plans refer to. */
struct gr_plan_memory {
    void *arena, *step, *constants;
};

void gr_plan_init(struct gr_plan *p, const struct gr_step_shape *shape);
void gr_plan_fini(struct gr_plan *p);

/* A new value of this shape (f32, f64 or i32); absent when there is no memory. */
struct gr_ten gr_plan_value(struct gr_plan *p, int64_t rows, int64_t cols, uint32_t dtype);
/* Appends a node. */
int gr_plan_add(struct gr_plan *p, const struct gr_node *node);
/* Names t for taps, which fire after the node that last wrote it; `name` must outlive the plan. */
int gr_plan_tap(struct gr_plan *p, const char *name, int layer, const struct gr_ten *t);
/* Adds taps on the operands of the product that was added last, with matrices of slot `weight`: of
 * the ids (if it has any) and of the input. They fire after it. */
int gr_plan_tap_operands(struct gr_plan *p, int32_t weight, int layer);
/* Drops nodes whose results are unused and those of other stages, cuts the rest into segments, and
 * places all values; values of a device that are alive at the same node never overlap. Nodes that
 * read only the step block and constants are repeated in every stage and on every device that needs
 * their results. GR_E_INTERNAL when a stage needs a value of a later one. */
int gr_plan_finish(struct gr_plan *p);
/* Fills in the addresses of all values, given each device's memory; arenas are aligned to 256. */
void gr_plan_bind(struct gr_plan *p, const struct gr_plan_memory memory[GR_MAX_DEVICE]);
/* The segment of the same device before segment i, or -1. */
int32_t gr_plan_segment_before(const struct gr_plan *p, int32_t i);

/* Prints a finished plan for reading: its shape, memory, and by segments its nodes with their
 * operands. device: the names of its devices, by number. */
void gr_plan_print(const struct gr_plan *p, const char *const *device, FILE *out);

/* ---- for cut.c, partition.c and finish.c ---- */

/* The value of a tensor; NULL when it is not in one of the plan's values. */
static inline struct gr_value *gr_plan_find(const struct gr_plan *p, const struct gr_ten *t)
{
    return t->value && t->value < p->value.n ? (struct gr_value *)p->value.data + t->value : NULL;
}
/* The offloaded weight that an operand is, or is part of; NULL when there is none. */
const struct gr_offload_item *gr_plan_offload_item(const struct gr_plan *p, const struct gr_ten *t);
/* Updates the tensor of a tap on a product's operand from its node. */
void gr_plan_refresh_tap(struct gr_tap *tap, struct gr_node *node);
/* Returns whether a node reads only the step block and constants, which every device has. */
bool gr_plan_repeats(struct gr_node *n);
/* Drops the nodes whose entry in `kept` [nodes] is 0, and their taps. Overwrites `kept`. */
void gr_plan_keep(struct gr_plan *p, int32_t *kept);
/* Reduces the plan to stage p->stage of p->n_stage, and finds `in` and `out`. */
int gr_plan_cut(struct gr_plan *p);
/* Cuts the nodes into segments and adds moves and offloads. */
int gr_plan_partition(struct gr_plan *p);

#endif
