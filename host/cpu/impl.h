/* What an implementation of an operation looks like inside the CPU backend, for ref/ and fast/. */
#ifndef GR_CPU_IMPL_H
#define GR_CPU_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/checked.h"
#include "base/seats.h"
#include "base/threads.h"
#include "gr/op.h"

/* Items of a node that were taken, of each node of memory. */
struct gr_cpu_queue {
    _Alignas(64) _Atomic int64_t n;
};

/* One thread's part of a node: it is number ith of nth. */
struct gr_cpu_work {
    int ith, nth;
    void *shared; /* scratch of the node, the same for all threads; undefined contents, aligned to
                     64 */
    void *local;  /* scratch of this thread */
    struct gr_threads *pool;
    struct gr_cpu_queue *next;    /* see gr_cpu_take */
    const struct gr_seats *homes; /* where rows of weights are; NULL: all in one place */
    int home;                     /* this thread's node of those */
};

/* Scratch memory that a node wants, bytes. */
struct gr_cpu_need {
    size_t shared, local;
};

struct gr_cpu_impl {
    /* Does this thread's share of the node. All threads call it; they return when their share is
     * done. */
    void (*run)(const struct gr_node *node, const struct gr_cpu_work *w);
    /* NULL: no scratch. */
    struct gr_cpu_need (*need)(const struct gr_node *node);
    /* Whether it can run this node; NULL: any. References take everything. */
    bool (*takes)(const struct gr_node *node);
};

/* The reference of every operation: gr_ref_norm and so on. */
#define OP(NAME, args, operands, meaning) extern const struct gr_cpu_impl gr_ref_##args;
#define BETWEEN(NAME, args, operands, meaning)
#include "gr/op.def"
#undef OP

/* Whether there are tiles, and this process may use them (fast/amx.c). */
bool gr_amx_usable(void);

/* The part [lo, hi) of n items that belongs to a thread. Parts are multiples of `grain` but for the
 * last. */
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

/* Columns of f32 that fill a cache line: threads that write one row side by side share columns by
 * this. */
#define GR_CPU_LINE 16

/* The same where memory is in several places: first those whose rows are near, then the others'. */
int64_t gr_cpu_take_near(const struct gr_cpu_work *w, int64_t n_matrix, int64_t n_part);

/* The next item of work of this node, for whichever thread asks first: for items of unequal cost.
 * There are n_matrix * n_part of them, each matrix (or one) cut into parts along its rows; nothing
 * below that is left: that many or more. An item's result must not depend on who takes it. */
static inline int64_t gr_cpu_take(const struct gr_cpu_work *w, int64_t n_matrix, int64_t n_part)
{
    return w->homes ? gr_cpu_take_near(w, n_matrix, n_part)
                    : atomic_fetch_add_explicit(&w->next->n, 1, memory_order_relaxed);
}

/* All threads of the node wait for each other. */
static inline void gr_cpu_barrier(const struct gr_cpu_work *w)
{
    gr_threads_barrier(w->pool);
}

/* The sequences of a recurrent operation: where number q finds its state (NULL: zeros) and leaves
 * it, and its tokens [lo, lo + n). */
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
