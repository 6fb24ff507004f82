/* Memory that runs out in the program: each allocation fails in turn, the exit code is 5 and one
 * line says why. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tiny.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"
#include "tools/commands/commands.h"
#include "tools/commands/run.h"
#include "tools/commands/session.h"
#include "tools/download/store.h"

/* The linker takes these for the functions of their names (--wrap). */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

static long n_left; /* allocations until one fails; 0: none does */

static bool fails(void)
{
    return n_left && --n_left == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

/* Runs `work` with the k-th allocation failing, for all k that it makes. */
static void sweep(int (*work)(const void *), const void *what)
{
    char said[256] = "";
    cr_assert_eq(work(what), 0);
    cr_assert(freopen(tiny_path("err"), "w+", stderr));
    setvbuf(stderr, NULL, _IONBF, 0);
    long k = 1;
    for (bool done = false; !done; k++) {
        cr_assert(ftruncate(STDERR_FILENO, 0) == 0 && lseek(STDERR_FILENO, 0, SEEK_SET) == 0);
        n_left = k;
        int rc = work(what);
        done = n_left > 0;
        n_left = 0;
        ssize_t n = pread(STDERR_FILENO, said, sizeof said - 1, 0);
        said[n < 0 ? 0 : n] = 0;
        cr_assert_eq(rc, done ? 0 : 5, "allocation %ld: %d %s", k, rc, said);
        cr_assert_str_eq(said, done ? "" : "gpurun: error: out of host memory\n", "%ld", k);
    }
    cr_assert_gt(k, 2, "nothing was allocated");
}

static int read_session(const void *path)
{
    struct gr_recording r;
    int rc = gr_recording_read(&r, path);
    gr_recording_fini(&r);
    return rc;
}

Test(memory, replay)
{
    sweep(read_session, GR_SOURCE_DIR "/tests/golden/replay/session.json");
}

static int find_cached(const void *folder)
{
    char *path;
    int rc = gr_store_find(folder, "", NULL, &path);
    cr_expect(rc || path);
    free(path);
    return rc;
}

Test(memory, cached_model)
{
    char command[512];
    snprintf(command, sizeof command,
             "cd %s && for c in old new; do mkdir -p snapshots/$c/x; for i in $(seq 70); do "
             ": > snapshots/$c/x/$i-Q2_K.gguf; done; done; : > snapshots/new/b-Q8_0.gguf; "
             "mkdir refs; printf new > refs/main",
             tiny_dir());
    cr_assert_eq(system(command), 0);
    sweep(find_cached, tiny_dir());
}

static int read_text(const void *options)
{
    char *text;
    size_t n;
    bool given;
    int rc = gr_read_text(options, &text, &n, &given);
    free(text);
    return rc;
}

Test(memory, text)
{
    struct gr_options o = {.prompt = "a text"};
    sweep(read_text, &o);
    o = (struct gr_options){.file = GR_SOURCE_DIR "/tests/golden/replay/session.json"};
    sweep(read_text, &o);
}

static void *json_memory(size_t n)
{
    return malloc(n);
}

static int list(const void *options)
{
    int rc = gr_tool_list(options);
    fflush(stdout);
    return rc;
}

Test(memory, list)
{
    struct gr_options o = {.json = true, .arg = {"types"}, .n_args = 1};
    cr_assert(freopen("/dev/null", "w", stdout));
    printf(" "), fflush(stdout); /* its buffer */
    json_set_alloc_funcs(json_memory, free);
    sweep(list, &o);
}

/* The text is on stdout whatever memory there is for its object. */
static int print_text(const void *run)
{
    char out[1024];
    cr_assert(ftruncate(STDOUT_FILENO, 0) == 0 && lseek(STDOUT_FILENO, 0, SEEK_SET) == 0);
    int rc = gr_run_print_json(run);
    long left = n_left;
    n_left = 0;
    ssize_t n = pread(STDOUT_FILENO, out, sizeof out, 0);
    json_t *o = json_loadb(out, n < 0 ? 0 : (size_t)n, 0, NULL);
    cr_assert(o, "%.*s", (int)n, out);
    cr_expect_str_eq(json_string_value(json_object_get(o, "text")), "say \"a\\b\"\n\xc3\xa4\x01");
    cr_expect_str_eq(json_string_value(json_object_get(o, "stop")), "error");
    cr_expect_str_eq(json_string_value(json_object_get(o, "error")),
                     rc ? "out of host memory" : gr_say_last_error());
    json_decref(o);
    n_left = left;
    return rc;
}

Test(memory, text_as_json)
{
    struct gr_model *m;
    struct gr_session_params p = gr_session_params_default();
    struct run r = {.json = (char[]){"say \"a\\b\"\n\xc3\xa4\x01"}, .stop = STOP_ERROR};
    r.n_json = strlen(r.json);
    p.n_ctx = 256, p.n_threads = 1;
    cr_assert_eq(gr_model_open(&m, tiny_model(false), NULL), 0, "%s", gr_error_message());
    cr_assert_eq(gr_session_open(&r.session, m, &p), 0, "%s", gr_error_message());
    cr_assert(freopen(tiny_path("out"), "w+", stdout));
    printf(" "), fflush(stdout); /* its buffer */
    json_set_alloc_funcs(json_memory, free);
    sweep(print_text, &r);
    gr_session_close(&r.session);
    gr_model_close(&m);
}
