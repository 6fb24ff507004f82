/* gpurun with a clock of its progress that runs GR_TEST_CLOCK times as fast, for terminal.py, and,
 * for download.py, with waits between attempts that are GR_TEST_WAITS times as short, limits of
 * time that are GR_TEST_LIMITS times as short, and an end by SIGKILL in front of the
 * GR_TEST_KILL-th call that changes a file; GR_TEST_NO_LINKS: as on a file system without symbolic
 * links. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/download/http.h"

static double factor;
static long calls_left; /* 0: there is no end */

static double clock_s(void)
{
    return gr_seconds() * factor;
}

/* Returns the positive number in an environment variable, or `otherwise`. */
static double number_of(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text && atof(text) > 0 ? atof(text) : otherwise;
}

__attribute__((constructor)) static void set_clock(void)
{
    const char *kill_at = getenv("GR_TEST_KILL");
    factor = number_of("GR_TEST_CLOCK", 0);
    if (factor > 0)
        gr_bar_set_clock(clock_s);
    gr_http_hurry(number_of("GR_TEST_WAITS", 1), number_of("GR_TEST_LIMITS", 1));
    calls_left = kill_at ? atol(kill_at) : 0;
}

static void count(void)
{
    if (calls_left && --calls_left == 0)
        kill(getpid(), SIGKILL);
}

/* The linker takes these for the functions of their names (--wrap). */
#define COUNTED(name, parameters, arguments)                                                       \
    int __real_##name parameters;                                                                  \
    int __wrap_##name parameters;                                                                  \
    int __wrap_##name parameters                                                                   \
    {                                                                                              \
        count();                                                                                   \
        return __real_##name arguments;                                                            \
    }
COUNTED(rename, (const char *from, const char *to), (from, to))
COUNTED(unlink, (const char *path), (path))
COUNTED(ftruncate, (int fd, off_t n), (fd, n))
COUNTED(fsync, (int fd), (fd))

int __real_symlink(const char *to, const char *path);
int __wrap_symlink(const char *to, const char *path);
int __wrap_symlink(const char *to, const char *path)
{
    count();
    errno = EPERM;
    return getenv("GR_TEST_NO_LINKS") ? -1 : __real_symlink(to, path);
}

ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
    count();
    return __real_pwrite(fd, p, n, at);
}
