/* The cases of a program, by their journal. Each test is a process of its own, which reads the
 * environment at its first case. */
#include "tests/support/cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[2][32]; /* the journal, the names to skip */

static void begin(void)
{
    static const char *const variables[] = {"GR_CASES_SKIP", "GR_CASES_ONLY", "GR_CASES_EACH"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    for (int i = 0; i < 2; i++) {
        strcpy(path[i], "/tmp/cases-XXXXXX");
        int fd = mkstemp(path[i]);
        cr_assert(fd >= 0);
        close(fd);
    }
    setenv("GR_CASES_JOURNAL", path[0], 1);
}

static void end(void)
{
    unlink(path[0]), unlink(path[1]);
}

TestSuite(cases, .init = begin, .fini = end);

static void skip(const char *names)
{
    FILE *f = fopen(path[1], "w");
    cr_assert(f && fputs(names, f) >= 0 && fclose(f) == 0);
    setenv("GR_CASES_SKIP", path[1], 1);
}

/* All that the journal holds; free it. */
static char *journal(void)
{
    FILE *f = fopen(path[0], "r");
    char *text = NULL;
    size_t room = 0;
    cr_assert_not_null(f);
    ssize_t n = getdelim(&text, &room, '\0', f);
    fclose(f);
    return n < 0 ? (free(text), strdup("")) : text;
}

static void expect_journal(const char *want)
{
    char *got = journal();
    cr_expect_str_eq(got, want);
    free(got);
}

/* A case that passes, unless it is not to be run. */
static void pass(const char *group, const char *label)
{
    const char *name = cases_begin(group, label);
    if (name)
        cases_end(name, NULL);
}

Test(cases, names)
{
    cr_expect_str_eq(cases_begin("suite/test", "label"), "suite/test/label");
    cr_expect_str_eq(cases_begin("suite/test", "label"), "suite/test/label #2");
    cr_expect_str_eq(cases_begin("suite/other", "label"), "suite/other/label");
    cr_expect_str_eq(cases_begin(NULL, "suite/test/label"), "suite/test/label #3");
    char longer[2 * CASES_NAME_BYTES];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    cr_expect(strlen(cases_begin("g", longer)) < CASES_NAME_BYTES);
    const char *second = cases_begin("g", longer);
    cr_expect(strlen(second) < CASES_NAME_BYTES && strcmp(second + strlen(second) - 3, " #2") == 0);
}

Test(cases, without_an_environment)
{
    unsetenv("GR_CASES_JOURNAL");
    cr_expect(cases_wanted("any"));
    pass("group", "any");
    expect_journal("");
}

Test(cases, a_journal)
{
    cases_end(cases_begin("group", "good"), NULL);
    cases_end(cases_begin("group", "bad"), "two\nlines\r\n");
    expect_journal("case group/good\nok group/good\ncase group/bad\nFAIL group/bad: two lines  \n");
}

Test(cases, a_long_reason)
{
    char why[2 * CASES_WHY_BYTES];
    memset(why, 'x', sizeof why);
    memcpy(why + CASES_WHY_BYTES - 1, "\xc3\xa4", 2); /* a letter of two bytes, over the end */
    why[sizeof why - 1] = '\0';
    cases_end(cases_begin(NULL, "bad"), why);
    char *got = journal();
    cr_expect_eq(strlen(got), strlen("case bad\nFAIL bad: \n") + CASES_WHY_BYTES - 1);
    free(got);
}

Test(cases, skipped)
{
    skip("group/b\ngroup/a #2\nc\n");
    cr_expect(!cases_wanted("c") && cases_wanted("a"));
    pass("group", "a");
    pass("group", "a");
    pass("group", "b");
    pass(NULL, "c");
    pass("group", "a");
    expect_journal("case group/a\nok group/a\ncase group/a #3\nok group/a #3\n");
}

Test(cases, only_one)
{
    setenv("GR_CASES_ONLY", "group/a #2", 1);
    for (int i = 0; i < 3; i++)
        pass("group", "a");
    expect_journal("case group/a #2\nok group/a #2\n");
}

Test(cases, of_each_group)
{
    setenv("GR_CASES_EACH", "2", 1);
    skip("a/1\n");
    for (int i = 0; i < 8; i++) {
        char label[8];
        snprintf(label, sizeof label, "%d", i % 4 + 1);
        pass(i < 4 ? "a" : "b", label);
    }
    pass(NULL, "by itself");
    expect_journal("case a/2\nok a/2\ncase b/1\nok b/1\ncase b/2\nok b/2\n"
                   "case by itself\nok by itself\n");
}

/* Lines of processes that write at once are whole. */
Test(cases, by_several_processes)
{
    enum { N_PROCESS = 8, N_CASE = 100 };
    char why[CASES_WHY_BYTES], *text, *rest;
    int n[2] = {0}, status;
    memset(why, 'w', sizeof why);
    why[sizeof why - 1] = '\0';
    for (int p = 0; p < N_PROCESS; p++)
        if (fork() == 0) {
            for (int i = 0; i < N_CASE; i++)
                cases_end(cases_begin("group", "same"), why);
            _exit(0);
        }
    for (int p = 0; p < N_PROCESS; p++)
        cr_assert(wait(&status) > 0 && status == 0);
    text = rest = journal();
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        bool failed = strncmp(line, "FAIL ", 5) == 0;
        char *reason = strchr(line, ':');
        n[failed]++;
        cr_assert(failed ? reason && strcmp(reason + 2, why) == 0
                         : strncmp(line, "case group/same", 15) == 0 && !reason,
                  "%s", line);
    }
    cr_expect(n[0] == N_PROCESS * N_CASE && n[1] == n[0]);
    free(text);
}

static void expect_refused(const char *variable, const char *value)
{
    int status = 0;
    if (fork() == 0) {
        setenv(variable, value, 1);
        pass(NULL, "any");
        _exit(0);
    }
    cr_assert(wait(&status) > 0);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%s=%s", variable, value);
}

Test(cases, bad_values)
{
    expect_refused("GR_CASES_EACH", "0");
    expect_refused("GR_CASES_EACH", "2x");
    expect_refused("GR_CASES_EACH", "");
    expect_refused("GR_CASES_SKIP", "/tmp/no such folder/file");
    expect_refused("GR_CASES_JOURNAL", "/tmp/no such folder/file");
    expect_refused("GR_CASES_JOURNAL", "/dev/full");
}
