/* A program that uses the library while its model's file is truncated: its handler of SIGBUS can
 * tell, and a model that was read instead of mapped is not affected. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gr/status.h"
#include "support/adapter.h"
#include "support/golden.h"
#include "support/tiny.h"

enum { DECODED = 40, REFUSED, TOLD, NOT_OURS };

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    _exit(gr_in_model_file(info->si_addr) ? TOLD : NOT_OURS);
}

static int decode(struct gr_session *s)
{
    static const int32_t token[] = {1, 2, 3};
    struct gr_batch b = {.n_tok = 3, .token = token};
    return gr_decode(s, &b);
}

/* Opens the model, with the adapter unless it is NULL, decodes, cuts `cut` off, decodes again. */
static void use(const char *path, const char *adapter, const char *cut, bool use_mmap)
{
    struct sigaction act = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    struct gr_adapter one = {adapter, 1};
    struct gr_model_params p = gr_model_params_default();
    struct gr_session_params sp = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    sigaction(SIGBUS, &act, NULL);
    p.use_mmap = use_mmap, p.device = "none", p.adapters = &one, p.n_adapter = adapter ? 1 : 0;
    sp.n_ctx = 256, sp.n_threads = sp.n_threads_batch = 2;
    if (gr_model_open(&m, path, &p) || gr_session_open(&s, m, &sp) || decode(s) || truncate(cut, 0))
        _exit(REFUSED);
    _exit(decode(s) ? REFUSED : DECODED);
}

/* Returns the exit code of such a program, run as a child of this one. */
static int ends_with(const char *path, const char *adapter, const char *cut, bool use_mmap)
{
    int status = 0;
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (!pid)
        use(path, adapter, cut, use_mmap);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status), "ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* A file of its own, whose name is valid until the next call. */
static const char *model_file(void)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    return tiny_write(&t, NULL);
}

Test(cut_off, a_handler_can_tell)
{
    const char *path = model_file();
    cr_expect_eq(ends_with(path, NULL, path, true), TOLD);
    unlink(path);
}

Test(cut_off, what_was_read_is_there)
{
    const char *path = model_file();
    cr_expect_eq(ends_with(path, NULL, path, false), DECODED);
    unlink(path);
}

Test(cut_off, adapters)
{
    char adapter[] = "/tmp/gpurun-cut-off-XXXXXX";
    for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
        static struct adapter a;
        const char *path = model_file();
        struct gr_model *m;
        int fd = mkstemp(adapter);
        cr_assert(fd >= 0);
        close(fd);
        cr_assert_eq(gr_model_open(&m, path, NULL), 0, "%s", gr_error());
        golden_adapter(&a, 0, m, adapter);
        gr_model_close(&m);
        cr_expect_eq(ends_with(path, adapter, adapter, use_mmap), use_mmap ? TOLD : DECODED);
        unlink(path);
        unlink(adapter);
        memcpy(adapter + sizeof adapter - 7, "XXXXXX", 6);
    }
}

/* Another cause of the signal is not taken for a model's. */
Test(cut_off, other_addresses)
{
    const char *path = model_file();
    struct gr_model *m;
    cr_assert_eq(gr_model_open(&m, path, NULL), 0, "%s", gr_error());
    cr_expect_not(gr_in_model_file(path));
    cr_expect_not(gr_in_model_file(m));
    gr_model_close(&m);
    unlink(path);
}
