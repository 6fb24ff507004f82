#include "base/sort.h"

#include "base/alloc.h"

static void sift_down(uint32_t *order, size_t i, size_t n, const void *items, gr_less_fn *less)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && less(items, order[child], order[child + 1]))
            child++;
        if (!less(items, order[i], order[child]))
            return;
        uint32_t t = order[i];
        order[i] = order[child], order[child] = t;
    }
}

/* Heap sort. */
uint32_t *gr_sorted(const void *items, size_t n, gr_less_fn *less)
{
    uint32_t *order = gr_calloc(n, sizeof *order);
    if (!order)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n / 2; i > 0; i--)
        sift_down(order, i - 1, n, items, less);
    for (size_t left = n; left > 1; left--) {
        uint32_t t = order[0];
        order[0] = order[left - 1], order[left - 1] = t;
        sift_down(order, 0, left - 1, items, less);
    }
    return order;
}
