/* Sorting in O(n log n) comparisons for any input, without recursion. */
#ifndef GR_BASE_SORT_H
#define GR_BASE_SORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns whether item a of `items` comes before item b; a strict weak order. */
typedef bool gr_less_fn(const void *items, uint32_t a, uint32_t b);

/* Returns the indices 0 to n - 1 (n at most UINT32_MAX) in the order of their items, equal ones in
 * any order (gr_free); NULL when there is no memory. */
uint32_t *gr_sorted(const void *items, size_t n, gr_less_fn *less)
    __attribute__((warn_unused_result));

#endif
