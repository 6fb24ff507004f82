/* Checks behind a test, in .fini of Criterion, which passes a test whose assertions fail there. */
#ifndef TESTS_SUPPORT_BEHIND_H
#define TESTS_SUPPORT_BEHIND_H

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdlib.h>

/* Ends the test's process, and makes the exit status of the program 1. */
static inline void expect_behind(bool right, const char *wrong)
{
    if (right)
        return;
    cr_log_error("%s", wrong);
    abort();
}

#endif
