/* A plan: the flat list of operations that computes one shape of micro-batch, and where its
 * intermediate results live.
 *
 * Recording appends nodes whose activations are values (index, size). gr_plan_finish finds each
 * value's life from first to last use and packs the values into one arena; gr_plan_bind writes
 * addresses into the nodes. Weights, caches and the step block have their addresses from the start.
 */
#ifndef GR_GRAPH_PLAN_H
#define GR_GRAPH_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/alloc.h"
#include "gr/backend.h"
#include "gr/step.h"

struct gr_value {
    int64_t bytes, offset;
    int32_t first, last; /* nodes that write and use it; -1 = none */
    bool keep;           /* lives to the end of the plan: a result that is read after it */
};

struct gr_plan {
    struct gr_vec node;  /* struct gr_node */
    struct gr_vec value; /* struct gr_value; index 0 stands for "not a value" */
    struct gr_vec tap;   /* struct gr_tap */
    struct gr_step_shape shape;
    struct gr_step_layout layout;
    int64_t arena_bytes;
    struct gr_ten result; /* [1, n_out, n_vocab] f32 */
};

void gr_plan_init(struct gr_plan *p, const struct gr_step_shape *shape);
void gr_plan_fini(struct gr_plan *p);

/* A new value of this shape (f32, f64 or i32); absent when there is no memory. */
struct gr_ten gr_plan_value(struct gr_plan *p, int64_t rows, int64_t cols, uint32_t dtype);
/* Appends a node. */
int gr_plan_add(struct gr_plan *p, const struct gr_node *node);
/* Marks t as named: its tap fires after the node that was added last. `name` must outlive the plan.
 */
int gr_plan_tap(struct gr_plan *p, const char *name, int layer, const struct gr_ten *t);
/* Drops nodes of which nothing is used, then places all values; two that are alive at the same node
 * never overlap. */
int gr_plan_finish(struct gr_plan *p);
/* Fills in the addresses of all values. `arena` has arena_bytes, aligned to 64. */
void gr_plan_bind(struct gr_plan *p, void *arena);

/* Prints nodes, shapes and places, for people. */
void gr_plan_print(const struct gr_plan *p, FILE *out);

#endif
