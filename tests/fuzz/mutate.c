/* Mutations of seeds for a fuzz target, the same ones for the same seed: mutate_<name> COUNT SEED
 * FILE...
 *
 * The COUNT inputs are made from the FILEs in turn. An input over a second of processor time, or
 * one that breaks a promise of the target, ends the program with SIGABRT, one that it faults on
 * with the fault's signal; it is left as the file mutate-failed. Prints the number of inputs and
 * the longest time. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { LONGEST = 1 << 14, MOST_FILES = 2048 };

struct text {
    char *p; /* [n] */
    size_t n;
};
static struct text seeds[MOST_FILES];
static struct text input;

/* ---- failures ---- */

/* Keeps the input; async-signal-safe. */
static void on_failure(int number)
{
    int fd = open("mutate-failed", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, input.p, input.n) != (ssize_t)input.n)
        _exit(2);
    close(fd);
    signal(SIGABRT, SIG_DFL);
    if (number == SIGPROF)
        abort();
    signal(number, SIG_DFL); /* a fault comes again on return, and ends the program */
}

static void limit_time(long seconds)
{
    struct itimerval t = {.it_value = {.tv_sec = seconds}};
    setitimer(ITIMER_PROF, &t, NULL);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- mutations ---- */

static size_t below(struct gr_rng *rng, size_t n)
{
    return n ? gr_rng_below(rng, (uint32_t)n) : 0;
}

/* Inserts a text `times` times, as long as the input stays within LONGEST. */
static void insert(struct gr_rng *rng, const char *p, size_t n, size_t times)
{
    size_t at = below(rng, input.n + 1);
    for (; times && n && input.n + n <= LONGEST; times--) {
        memmove(input.p + at + n, input.p + at, input.n - at);
        memcpy(input.p + at, p, n);
        input.n += n;
    }
}

static void insert_word(struct gr_rng *rng)
{
    static const char *const words[] = {"{%",
                                        "%}",
                                        "{{",
                                        "}}",
                                        "{% if x %}",
                                        "{% endif %}",
                                        "{% endfor %}",
                                        "{% for x in messages %}",
                                        "(",
                                        ")",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "\"",
                                        "'",
                                        "|",
                                        "*",
                                        "+",
                                        "?",
                                        "{9}",
                                        "{0,99999}",
                                        "root ::= ",
                                        "root",
                                        "9999999999",
                                        "-1",
                                        "1e999",
                                        "\\u0000",
                                        "\\x",
                                        "\xff",
                                        "\xf0\x9f",
                                        "range(9**9)",
                                        "|join",
                                        "|tojson",
                                        "\"$ref\": \"#\"",
                                        "\"type\"",
                                        "\"items\"",
                                        "\"anyOf\": [",
                                        "\"maxItems\": 99999",
                                        "\"pattern\": \"(a*)*\"",
                                        "~",
                                        "not ",
                                        "0",
                                        ",",
                                        "\n",
                                        "macro"};
    const char *w = words[below(rng, sizeof words / sizeof *words)];
    insert(rng, w, strlen(w), below(rng, 8) ? 1 : below(rng, 3000));
}

static void insert_part(struct gr_rng *rng, const struct text *from)
{
    static char part[LONGEST];
    size_t at = below(rng, from->n), n = below(rng, from->n - at + 1);
    n = n < LONGEST ? n : LONGEST;
    n = below(rng, 4) && n > 40 ? 40 : n;
    memcpy(part, from->p + at, n);
    insert(rng, part, n, below(rng, 8) ? 1 : below(rng, 500));
}

static void change(struct gr_rng *rng, size_t n_seed)
{
    size_t at = below(rng, input.n), n = below(rng, input.n - at + 1);
    switch (below(rng, 5)) {
    case 0:
        if (input.n)
            input.p[at] = (char)below(rng, 256);
        break;
    case 1:
        n = below(rng, 2) && n > 8 ? 8 : n;
        memmove(input.p + at, input.p + at + n, input.n - at - n);
        input.n -= n;
        break;
    case 2:
        insert_part(rng, &input);
        break;
    case 3:
        insert_part(rng, &seeds[below(rng, n_seed)]);
        break;
    default:
        insert_word(rng);
    }
}

/* ---- the program ---- */

static struct text read_file(const char *path)
{
    struct text t = {.p = malloc(LONGEST)};
    FILE *f = fopen(path, "re");
    if (!f || !t.p) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    t.n = fread(t.p, 1, LONGEST, f);
    fclose(f);
    return t;
}

int main(int argc, char **argv)
{
    long count = argc > 3 ? strtol(argv[1], NULL, 10) : 0;
    size_t n_seed = argc > 3 ? (size_t)argc - 3 : 0;
    double longest = 0;
    if (count < 1 || n_seed > MOST_FILES) {
        fprintf(stderr, "usage: %s COUNT SEED FILE...\n", argv[0]);
        return 2;
    }
    struct gr_rng rng = gr_rng_new(strtoull(argv[2], NULL, 10));
    for (size_t i = 0; i < n_seed; i++)
        seeds[i] = read_file(argv[3 + i]);
    input.p = malloc(LONGEST);
    static const int failures[] = {SIGPROF, SIGABRT, SIGSEGV, SIGBUS, SIGFPE};
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        signal(failures[i], on_failure);
    for (long i = 0; i < count && input.p; i++) {
        const struct text *seed = &seeds[(size_t)i % n_seed];
        input.n = seed->n;
        memcpy(input.p, seed->p, seed->n);
        for (size_t k = 1 + below(&rng, 6); k; k--)
            change(&rng, n_seed);
        double start = processor_seconds();
        limit_time(1);
        (void)LLVMFuzzerTestOneInput((const uint8_t *)input.p, input.n);
        limit_time(0);
        double took = processor_seconds() - start;
        longest = took > longest ? took : longest;
    }
    printf("%ld inputs of %zu seeds, the longest %.3f s\n", count, n_seed, longest);
    for (size_t i = 0; i < n_seed; i++)
        free(seeds[i].p);
    free(input.p);
    return 0;
}
