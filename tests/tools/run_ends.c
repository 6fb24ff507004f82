/* Early ends of gpurun run: refusals at the start, the output after a failure or an interrupt, and
 * the line between text and messages. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "tiny.h"

TestSuite(run_ends, .timeout = 120);

#define TINY "-m", tiny_model(false), "-t", "1"

/* Known before the first token, as with Self-Extend; where the context is never full as well. */
Test(run_ends, models_that_cannot_shift)
{
    static const char *const archs[] = {"jamba", "granitehybrid", "kimi-linear", "lfm2", "gpt2"};
    char path[256];
    snprintf(path, sizeof path, "%s", tiny_path("fixed.gguf"));
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        tiny_write_arch(archs[i], path);
#define FIXED "-m", path, "-t", "1", "-p", "abc", "-n", "4", "--temp", "0", "--ignore-eos"
        struct outcome a = GPURUN(NULL, FIXED, "--context-shift"),
                       b = GPURUN(NULL, FIXED, "-gan", "2");
        cr_expect_eq(a.exit_code, b.exit_code, "%s: %s%s", archs[i], a.err, b.err);
        expect_exit(a, 3, "leave it off and give a context for all of the text (-c)");
        cr_expect_eq(a.n_out, 0);
        expect_exit(GPURUN(NULL, FIXED, "--context-shift", "-n", "-2", "-c", "256"), 0, "is full");
        expect_exit(GPURUN(NULL, FIXED), 0, "gen 4 tok");
    }
    tiny_write_arch("gemma3", path);
#define WINDOW FIXED, "-c", "512", "-ub", "16", "--context-shift"
    expect_exit(GPURUN(NULL, WINDOW), 0, "gen 4 tok");
}

static void expect_end(struct outcome o, const char *stop, const char *text, const char *error)
{
    json_t *j = json_loads(o.out, JSON_ALLOW_NUL, NULL);
    cr_assert(j, "'%s' %s", o.out, o.err);
    const char *found = json_string_value(json_object_get(j, "error"));
    cr_expect_str_eq(json_string_value(json_object_get(j, "stop")), stop);
    cr_expect(!text || !strcmp(json_string_value(json_object_get(j, "text")), text), "%s", o.out);
    cr_expect(error ? found && strstr(found, error) && strstr(o.err, found) : !found, "%s", o.out);
    json_decref(j);
}

/* A run that ends early prints an object too. */
Test(run_ends, json_of_a_failure_and_of_an_interrupt)
{
    struct outcome o = GPURUN(NULL, tiny_model(true), "-p", "a", "-n", "4", "--json");
    expect_exit(o, 1, "non-finite logits");
    expect_end(o, "error", "", "non-finite logits");
    int pid = -1, end[2];
    const char *const argv[] = {
        "gpurun",          TINY, "-p", "a", "-n", "-1", "-c", "256", "--json", "--ignore-eos",
        "--context-shift", NULL};
    static char out[1 << 24];
    size_t n = 0;
    cr_assert_eq(pipe2(end, O_CLOEXEC), 0);
    pid = tiny_start(argv, end[1], false);
    close(end[1]);
    usleep(300000);
    kill(pid, SIGINT);
    for (ssize_t got; (got = read(end[0], out + n, sizeof out - 1 - n)) > 0; n += (size_t)got)
        ;
    close(end[0]);
    o = tiny_wait(pid);
    cr_expect_eq(o.exit_code, 130, "%s", o.err);
    out[n] = 0, o.out = out;
    expect_end(o, "interrupted", NULL, NULL);
}

/* With stderr in the same file or pipe as the text what is said begins a line; the text alone has
 * nothing that is not its own. */
Test(run_ends, text_and_summary_in_one_place)
{
    static const char *const argv[] = {"gpurun",       NULL, "-p", "a", "-n", "5",
                                       "--temp",       "0",  "-t", "1", "-s", "1",
                                       "--ignore-eos", NULL};
    const char *words[GR_COUNT(argv)];
    memcpy(words, argv, sizeof argv);
    words[1] = tiny_model(false);
    struct outcome text = tiny_run(NULL, words);
    cr_assert(text.n_out > 0 && text.out[text.n_out - 1] != '\n', "'%s'", text.out);
    for (int pipe = 0; pipe < 2; pipe++) {
        int end[2] = {open(tiny_path("both"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), -1};
        char all[8192] = "", expected[512];
        cr_assert(pipe ? !pipe2(end, O_CLOEXEC) : (end[1] = dup(end[0])) >= 0);
        int pid = tiny_start(words, end[1], true);
        close(end[1]);
        cr_expect_eq(tiny_wait(pid).exit_code, 0);
        cr_assert_gt(
            pipe ? read(end[0], all, sizeof all - 1) : pread(end[0], all, sizeof all - 1, 0), 0);
        snprintf(expected, sizeof expected, "\n%s\nprompt 2 tok ", text.out);
        cr_expect(strstr(all, expected), "'%s' expected, found: %s", expected, all);
        close(end[0]);
    }
}
