/* Each test is a case (tests/support/cases.h), as the runner sees it begin and end. */
#include "tests/support/cases.h"

#include <criterion/criterion.h>
#include <criterion/hooks.h>
#include <criterion/internal/ordered-set.h>
#include <stdio.h>
#include <string.h>

static const char *name_of(const struct criterion_test *t)
{
    static char name[CASES_NAME_BYTES];
    snprintf(name, sizeof name, "cuda/%s/%s", t->category, t->name);
    return name;
}

ReportHook(PRE_ALL)(struct criterion_test_set *all)
{
    FOREACH_SET(struct criterion_suite_set * suite, all->suites)
    {
        FOREACH_SET(struct criterion_test * t, suite->tests)
        if (!cases_wanted(name_of(t)))
            t->data->disabled = true;
    }
}

/* test->data->data, which Criterion leaves alone: not NULL while its case has no end. */
ReportHook(PRE_INIT)(struct criterion_test *t)
{
    (void)cases_begin(NULL, name_of(t));
    t->data->data = t;
}

static void end(struct criterion_test *t, const char *why)
{
    cases_end(name_of(t), why);
    t->data->data = NULL;
}

/* Message and place of the first assertion that failed; the list begins with the last one. */
static const char *first_failure(const struct criterion_test_stats *s, char *why, size_t size)
{
    const struct criterion_assert_stats *first = NULL;
    for (const struct criterion_assert_stats *a = s->asserts; a; a = a->next)
        first = a->passed ? first : a;
    if (first)
        snprintf(why, size, "%s:%u: %s", first->file, first->line, first->message);
    else if (s->test_status == CR_STATUS_FAILED)
        snprintf(why, size, "ended with status %d", s->exit_code);
    return first || s->test_status == CR_STATUS_FAILED ? why : NULL;
}

ReportHook(POST_FINI)(struct criterion_test_stats *s)
{
    char why[CASES_WHY_BYTES];
    end(s->test, first_failure(s, why, sizeof why));
}

ReportHook(TEST_CRASH)(struct criterion_test_stats *s)
{
    char why[64];
    snprintf(why, sizeof why, "ended by signal %d (%s)", s->signal, strsignal(s->signal));
    end(s->test, why);
}

/* Tests that ended while they were set up have had no other report. */
ReportHook(POST_ALL)(struct criterion_global_stats *all)
{
    for (struct criterion_suite_stats *suite = all->suites; suite; suite = suite->next)
        for (struct criterion_test_stats *s = suite->tests; s; s = s->next) {
            char why[CASES_WHY_BYTES];
            const char *first = first_failure(s, why, sizeof why);
            if (s->test->data->data)
                end(s->test, first ? first : "it ended while it was set up");
        }
}
