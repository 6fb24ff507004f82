/* Interface of an operation's implementations in the CPU backend, for ref/ and fast/. */
#ifndef GR_CPU_IMPL_IMPL_H
#define GR_CPU_IMPL_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/checked.h"
#include "base/pinning.h"
#include "base/threads.h"
#include "gr/op.h"

/* Number of work items of a plan's node already taken, for each NUMA node. */
struct gr_cpu_queue {
    _Alignas(64) _Atomic int64_t n;
};

/* Context of a thread that runs a node: it is number ith of nth. */
struct gr_cpu_work {
    int ith, nth;
    void *shared; /* scratch memory shared by all threads of the node; undefined contents, aligned
                     to 64 */
    void *local;  /* scratch memory of this thread */
    struct gr_threads *pool;
    struct gr_cpu_queue *next;      /* see gr_cpu_take */
    const struct gr_pinning *homes; /* NUMA nodes of the rows of weights; NULL: one node */
    int home;                       /* this thread's node in `homes` */
};

/* Scratch memory that a node needs, in bytes. */
struct gr_cpu_need {
    size_t shared, local;
};

struct gr_cpu_impl {
    /* Computes this thread's share of the node; all threads call it. Returns when it is done. */
    void (*run)(const struct gr_node *node, const struct gr_cpu_work *w);
    /* NULL: no scratch. */
    struct gr_cpu_need (*need)(const struct gr_node *node);
    /* Returns whether it can run this node; NULL: any node. References run any node. */
    bool (*takes)(const struct gr_node *node);
};

/* The reference of every operation: gr_ref_norm and so on. */
#define OP(NAME, args, operands, meaning) extern const struct gr_cpu_impl gr_ref_##args;
#define BETWEEN(NAME, args, operands, meaning)
#include "gr/op.def"
#undef OP

/* Returns whether there are AMX tiles and this process may use them (fast/amx.c). */
bool gr_amx_usable(void);

/* A thread's part [lo, hi) of n items. Parts are multiples of `grain` except the last. */
struct gr_cpu_share {
    int64_t lo, hi;
};

static inline struct gr_cpu_share gr_cpu_share(int64_t n, int64_t grain,
                                               const struct gr_cpu_work *w)
{
    int64_t units = (n + grain - 1) / grain;
    int64_t lo = units * w->ith / w->nth * grain, hi = units * (w->ith + 1) / w->nth * grain;
    return (struct gr_cpu_share){GR_MIN(lo, n), GR_MIN(hi, n)};
}

/* Columns of f32 per cache line: the grain when threads write columns of the same row. */
#define GR_CPU_LINE 16

/* gr_cpu_take with several NUMA nodes: items of this thread's node first, then of the others. */
int64_t gr_cpu_take_near(const struct gr_cpu_work *w, int64_t n_matrix, int64_t n_part);

/* Takes the next work item of this node (dynamic scheduling, for items of unequal cost): an index
 * below n_matrix * n_part, where n_part parts divide the rows of each matrix; that number or more
 * when none is left. An item's result must not depend on the thread that takes it. */
static inline int64_t gr_cpu_take(const struct gr_cpu_work *w, int64_t n_matrix, int64_t n_part)
{
    return w->homes ? gr_cpu_take_near(w, n_matrix, n_part)
                    : atomic_fetch_add_explicit(&w->next->n, 1, memory_order_relaxed);
}

/* Waits until all threads of the node have arrived. */
static inline void gr_cpu_barrier(const struct gr_cpu_work *w)
{
    gr_threads_barrier(w->pool);
}

/* Sequence q of a recurrent operation: the state it reads (NULL: zeros) and the one it writes, and
 * its tokens [lo, lo + n). */
struct gr_cpu_seq {
    const float *from;
    float *to;
    int64_t lo, n;
};

static inline float *gr_cpu_f32(const struct gr_ten *t, int64_t row)
{
    return gr_ten_row(t, 0, row);
}

static inline const int32_t *gr_cpu_i32(const struct gr_ten *t, int64_t row)
{
    return gr_ten_row(t, 0, row);
}

static inline struct gr_cpu_seq gr_cpu_seq(const struct gr_ten *state, const struct gr_ten *src,
                                           const struct gr_ten *dst, int64_t n_tok, int64_t q)
{
    int32_t from = gr_cpu_i32(src, 0)[q];
    int64_t n = n_tok / src->cols;
    return (struct gr_cpu_seq){.from = from < 0 ? NULL : gr_cpu_f32(state, from),
                               .to = gr_cpu_f32(state, gr_cpu_i32(dst, 0)[q]),
                               .lo = q * n,
                               .n = n};
}

#endif
