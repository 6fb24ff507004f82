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

/* Whether the system has noted the advice for the pages at p; -1: it says nothing of such pages. */
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
