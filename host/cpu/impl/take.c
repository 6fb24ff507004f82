/* Work items by NUMA node: a thread takes those of its own node first. */
#include "cpu/impl/impl.h"

int64_t gr_cpu_take_near(const struct gr_cpu_work *w, int64_t n_matrix, int64_t n_part)
{
    for (int k = 0; k < w->homes->n_node; k++) {
        int at = (w->home + k) % w->homes->n_node;
        int64_t lo = gr_pinning_first_row(w->homes, n_part, at);
        int64_t n = gr_pinning_first_row(w->homes, n_part, at + 1) - lo;
        int64_t i = atomic_fetch_add_explicit(&w->next[at].n, 1, memory_order_relaxed);
        if (i < n_matrix * n)
            return i / n * n_part + lo + i % n;
    }
    return n_matrix * n_part;
}
