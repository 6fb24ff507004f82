#include "base/alloc.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

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

/* A budget counts what is made while it is begun, less what is freed of that then, and refuses what
 * goes beyond it; another one inside of it counts nothing. */
Test(alloc, budget)
{
    struct gr_budget b = {.limit = 10000}, inner = {.limit = 1};
    char *before = gr_calloc(1, 5000), *a, *c;
    gr_budget_begin(&b);
    gr_free(before);
    cr_assert_eq(b.held, 0, "it was not counted when it was made");
    a = gr_calloc(4, 1000);
    cr_assert(a && b.held > 4000 && b.held < 4500, "%zu", b.held);
    gr_budget_begin(&inner);
    c = gr_realloc(NULL, 4, 1000);
    cr_assert(c && !gr_budget_end(&inner) && inner.held == 0 && b.held > 8000);
    cr_assert(!gr_realloc(a, 5, 1000) && b.exceeded, "a realloc holds both for a moment");
    gr_free(c);
    cr_assert_lt(b.held, 4500);
    cr_assert(gr_budget_end(&b));
    c = gr_calloc(1, 20000);
    cr_assert(c, "nothing counts any more");
    gr_free(c);
    b.exceeded = false;
    gr_budget_begin(&b);
    cr_assert_null(gr_calloc(1, 7000), "it goes on where it ended");
    gr_free(a);
    cr_assert_eq(b.held, 0);
    a = gr_calloc(1, 7000);
    cr_assert(a && gr_budget_end(&b));
    gr_free(a);
}

/* Blocks of no bytes are not for nothing. */
Test(alloc, budget_counts_small_blocks)
{
    struct gr_budget b = {.limit = 10000};
    void *p[1000] = {NULL};
    size_t n = 0;
    gr_budget_begin(&b);
    while (n < 1000 && (p[n] = gr_calloc(0, 1)))
        n++;
    cr_assert(gr_budget_end(&b) && n > 10 && n < 200, "%zu", n);
    while (n)
        gr_free(p[--n]);
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

/* True (1) when the system has noted the advice for the pages at p, 0 when not; -1: it does not
 * report such pages. */
static int advised(const char *p)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    unsigned long from, to;
    char line[512];
    int inside = 0, found = -1;
    while (f && found < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (uintptr_t)p && (uintptr_t)p < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " hg") != NULL;
    if (f)
        fclose(f);
    return found;
}

/* The whole large pages of a range are meant, and nothing beside them; what lies there stays. */
Test(alloc, huge)
{
    char *p = mmap(NULL, 5 * (size_t)HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    cr_assert_neq(p, MAP_FAILED);
    char *a = p + (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    for (size_t i = 0; i < 4 * (size_t)HUGE_PAGE; i += 4096)
        a[i] = (char)(i >> 12);
    gr_alloc_huge(NULL, SIZE_MAX / 2);
    gr_alloc_huge(a + HUGE_PAGE / 2, HUGE_PAGE);
    cr_assert_leq(advised(a), 0, "no whole page lies in that range");
    gr_alloc_huge(a + HUGE_PAGE / 2, 3 * (size_t)HUGE_PAGE);
    cr_assert_leq(advised(a), 0);
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0)
        cr_assert_neq(advised(a + HUGE_PAGE), 0);
    cr_assert_leq(advised(a + 3 * (size_t)HUGE_PAGE), 0);
    for (size_t i = 0; i < 4 * (size_t)HUGE_PAGE; i += 4096)
        cr_assert_eq(a[i], (char)(i >> 12));
    munmap(p, 5 * (size_t)HUGE_PAGE);
}
