/* Cases of a program that tests or measures a device, noted one by one in a journal: a kernel that
 * hangs or crashes then costs its case, and the others run when the program is started again.
 *
 * Environment, all of it optional:
 *   GR_CASES_JOURNAL=FILE  lines are appended, each by one write, so that processes may share FILE:
 *                          "case NAME" when one begins, "ok NAME" or "FAIL NAME: WHY" when it ends
 *   GR_CASES_SKIP=FILE     names, a line each, of cases that are not run
 *   GR_CASES_ONLY=NAME     no other case is run
 *   GR_CASES_EACH=N        of each group the first N cases, whether skipped or not
 * Names are the same in each run. A value that cannot be used ends the process with status 2. */
#ifndef TESTS_SUPPORT_CASES_H
#define TESTS_SUPPORT_CASES_H

#include <stdbool.h>

enum { CASES_NAME_BYTES = 512, CASES_WHY_BYTES = 1000 };

/* True when SKIP and ONLY let the case of this name run. Of any thread. */
bool cases_wanted(const char *name);

/* Begins case "GROUP/LABEL" ("LABEL" when group is NULL, which EACH does not count), with " #2" and
 * so on behind it where this process has had that name before. The cases of a group follow each
 * other. Returns the name, valid until the next call; NULL: the case is not to be run. */
const char *cases_begin(const char *group, const char *label);

/* Ends it; why: what is wrong, of which the journal gets at most CASES_WHY_BYTES on one line, or
 * NULL when it passed. */
void cases_end(const char *name, const char *why);

#endif
