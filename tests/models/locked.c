/* Weights locked in memory: as many bytes as the CPU reads, or a warning with the limit; and given
 * back when the model is closed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/session.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

/* Bytes that the process has locked. */
static uint64_t locked(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    uint64_t kib = 0;
    cr_assert(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "VmLck:", 6))
            kib = strtoull(line + 6, NULL, 10);
    fclose(f);
    return kib << 10;
}

/* Skip where locking does nothing, as under sanitizers, whose mlock is empty. */
static void need_locking(void)
{
    long page = sysconf(_SC_PAGESIZE);
    void *p = aligned_alloc((size_t)page, (size_t)page);
    uint64_t before = locked();
    cr_assert(p);
    bool empty = !mlock(p, (size_t)page) && locked() == before;
    munlock(p, (size_t)page);
    free(p);
    if (empty)
        cr_skip("mlock of this program does nothing");
}

static int n_warned;
static void count_warnings(enum gr_log_level level, const char *line, void *user)
{
    (void)user;
    n_warned += level == GR_LOG_WARN && strstr(line, "--mlock: ") && strstr(line, "ulimit -l");
}

static uint64_t weights_on_cpu(const struct gr_model *m)
{
    return m->rank_model[0]->placed.bytes[0];
}

/* On the CPU alone, and with some layers on a device, whose weights are not locked. */
Test(locked, what_the_cpu_reads, .timeout = 60)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_session_params sp = gr_session_params_default();
    uint64_t before = locked(), most = 0;
    need_locking();
    t.n_layer = 6, t.n_embd = 128, t.n_ff = 512;
    sp.n_ctx = 256, sp.n_threads = 1;
    fake_use(1, 64 << 20);
    for (int way = 0; way < 4; way++) {
        struct gr_model_params p = gr_model_params_default();
        struct gr_model *m;
        const char *path = tiny_write(&t, NULL);
        p.device = way / 2 ? "FAKE0" : "none", p.n_gpu_layers = way / 2 ? 4 : 0;
        p.use_mmap = way % 2, p.use_mlock = true;
        cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
        n_warned = 0;
        gr_log_set(count_warnings, NULL);
        struct gr_session *s = tiny_session(m, &sp);
        gr_log_set(NULL, NULL);
        uint64_t now = locked() - before, want = weights_on_cpu(m);
        cr_expect(n_warned == 1 || (now >= want && now < want + (1 << 20)),
                  "way %d: %llu locked, %llu of weights", way, (unsigned long long)now,
                  (unsigned long long)want);
        cr_expect(way < 2 || n_warned || now < most, "%llu, %llu before", (unsigned long long)now,
                  (unsigned long long)most);
        most = now > most ? now : most;
        gr_session_close(&s);
        gr_model_close(&m);
        cr_expect_eq(locked(), before, "way %d: %llu bytes stay locked", way,
                     (unsigned long long)(locked() - before));
        unlink(path);
    }
}

/* With a limit that is too low the model works, and a warning says so; a process that may lock
 * anything has no limit. */
Test(locked, a_limit_is_named, .timeout = 60)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){"llama", 5}));
    struct gr_session_params sp = gr_session_params_default();
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    const struct rlimit none = {4096, 4096};
    need_locking();
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    if (!geteuid() && setuid(65534)) /* nobody: no right to lock more */
        cr_skip("the right to lock memory cannot be given up");
    t.n_embd = 128, t.n_ff = 512, t.dir = "/tmp";
    sp.n_ctx = 256, sp.n_threads = 1;
    p.device = "none", p.use_mlock = true;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s", gr_error());
    gr_log_set(count_warnings, NULL);
    struct gr_session *s = tiny_session(m, &sp);
    gr_log_set(NULL, NULL);
    cr_expect_eq(n_warned, 1);
    gr_session_close(&s);
    gr_model_close(&m);
    unlink(path);
}
