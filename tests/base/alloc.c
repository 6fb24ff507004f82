#include "base/alloc.h"

#include <criterion/criterion.h>

/* The hooks count bytes and their peak, and every block given back. */
Test(alloc, held_and_peak)
{
    size_t peak, before = gr_alloc_held(&peak);
    char *a = gr_calloc(10, 100);
    cr_assert_eq(gr_alloc_held(NULL), before + 1000);
    a = gr_realloc(a, 3, 100);
    cr_assert_eq(gr_alloc_held(&peak), before + 300);
    cr_assert_eq(peak, before + 1300);
    gr_free(a);
    cr_assert_eq(gr_alloc_held(&peak), before);
    cr_assert_eq(peak, before + 300);
}

Test(alloc, fails_where_told)
{
    for (int persistent = 0; persistent < 2; persistent++) {
        gr_alloc_fail_at(2, persistent);
        void *a = gr_calloc(1, 1), *b = gr_calloc(1, 1), *c = gr_calloc(1, 1);
        cr_assert(a && !b && (c == NULL) == (persistent == 1));
        cr_assert_eq(gr_alloc_fail_at(0, 0), 3);
        gr_free(a), gr_free(c);
    }
}
