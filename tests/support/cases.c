#include "tests/support/cases.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    int journal; /* -1: none */
    char **skip; /* [n_skip] sorted */
    size_t n_skip;
    const char *only;
    long each; /* -1: all */
} how = {.journal = -1, .each = -1};

static struct {
    char name[CASES_NAME_BYTES]; /* of the case */
    char group[CASES_NAME_BYTES];
    long n_group;  /* cases of that group so far */
    uint64_t *had; /* [n_had] hashes of the names so far, without their numbers */
    size_t n_had;
} now;

static void die(const char *variable, const char *value, const char *what)
{
    fprintf(stderr, "%s=%s: %s\n", variable, value, what);
    _exit(2);
}

/* ---- the environment ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_skip(const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (!f)
        die("GR_CASES_SKIP", path, strerror(errno));
    while ((n = getline(&line, &room, f)) > 0) {
        line[strcspn(line, "\n")] = '\0';
        how.skip = realloc(how.skip, (how.n_skip + 1) * sizeof *how.skip);
        if (!how.skip || !(how.skip[how.n_skip++] = strdup(line)))
            die("GR_CASES_SKIP", path, "no memory");
    }
    free(line);
    fclose(f);
    if (how.n_skip)
        qsort(how.skip, how.n_skip, sizeof *how.skip, by_name);
}

static void read_environment(void)
{
    const char *journal = getenv("GR_CASES_JOURNAL"), *skip = getenv("GR_CASES_SKIP");
    const char *each = getenv("GR_CASES_EACH");
    char *end = NULL;
    if (journal)
        how.journal = open(journal, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (journal && how.journal < 0)
        die("GR_CASES_JOURNAL", journal, strerror(errno));
    if (skip)
        read_skip(skip);
    how.only = getenv("GR_CASES_ONLY");
    if (each && ((how.each = strtol(each, &end, 10)) < 1 || *end))
        die("GR_CASES_EACH", each, "a number of cases, at least 1, is expected");
}

static void read_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
}

bool cases_wanted(const char *name)
{
    read_once();
    if (how.only && strcmp(how.only, name) != 0)
        return false;
    return !how.n_skip || !bsearch(&name, how.skip, how.n_skip, sizeof *how.skip, by_name);
}

/* ---- names ---- */

static uint64_t hash_of(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 0x100000001b3u;
    return h;
}

/* Times that this process has had the name, this one included. */
static size_t count_name(const char *name)
{
    const uint64_t h = hash_of(name);
    size_t n = 1;
    for (size_t i = 0; i < now.n_had; i++)
        n += now.had[i] == h;
    if ((now.n_had & (now.n_had - 1)) == 0) /* full at each power of two */
        now.had = realloc(now.had, (now.n_had ? 2 * now.n_had : 1) * sizeof *now.had);
    if (!now.had)
        die("GR_CASES_JOURNAL", name, "no memory");
    now.had[now.n_had++] = h;
    return n;
}

static void put_name(const char *group, const char *label)
{
    enum { NUMBER_BYTES = 24 };
    const int most = CASES_NAME_BYTES - NUMBER_BYTES;
    int n = snprintf(now.name, (size_t)most, "%s%s%s", group ? group : "", group ? "/" : "", label);
    const size_t nth = count_name(now.name);
    if (nth > 1)
        snprintf(now.name + (n < most ? n : most - 1), NUMBER_BYTES, " #%zu", nth);
    if (group && strcmp(group, now.group) != 0) {
        snprintf(now.group, sizeof now.group, "%s", group);
        now.n_group = 0;
    }
}

/* ---- the journal ---- */

/* "WORD NAME" or "WORD NAME: WHY". */
static void note(const char *word, const char *name, const char *why)
{
    char line[CASES_NAME_BYTES + CASES_WHY_BYTES + 16];
    if (how.journal < 0)
        return;
    size_t cut = why ? strnlen(why, CASES_WHY_BYTES + 1) : 0;
    if (cut > CASES_WHY_BYTES)
        for (cut = CASES_WHY_BYTES; cut && (why[cut] & 0xc0) == 0x80; cut--) /* of UTF-8, all */
            continue;
    int n = snprintf(line, sizeof line, "%s %s%s%.*s", word, name, why ? ": " : "", (int)cut,
                     why ? why : "");
    for (int i = 0; i < n; i++)
        if (line[i] == '\n' || line[i] == '\r')
            line[i] = ' ';
    line[n] = '\n';
    if (write(how.journal, line, (size_t)n + 1) != n + 1)
        die("GR_CASES_JOURNAL", getenv("GR_CASES_JOURNAL"), strerror(errno));
}

const char *cases_begin(const char *group, const char *label)
{
    read_once();
    put_name(group, label);
    const bool late = group && how.each >= 0 && ++now.n_group > how.each;
    if (late || !cases_wanted(now.name))
        return NULL;
    note("case", now.name, NULL);
    return now.name;
}

void cases_end(const char *name, const char *why)
{
    note(why ? "FAIL" : "ok", name, why);
}
