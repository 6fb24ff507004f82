/* Prefixes on a disk that stands still: steps go on, and texts wait for their files alone. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "tools/serve/disk_file.h"
#include "world.h"

TestSuite(slow_disk, .timeout = 120);

/* The disk's thread waits at the gate while it is shut. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool shut;
static int n_at_gate;

static void set_gate(bool is_shut)
{
    pthread_mutex_lock(&lock);
    shut = is_shut;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
}

static void pass_gate(void)
{
    pthread_mutex_lock(&lock);
    n_at_gate++;
    while (shut)
        pthread_cond_wait(&opened, &lock);
    pthread_mutex_unlock(&lock);
}

static int n_passing(void)
{
    pthread_mutex_lock(&lock);
    int n = n_at_gate;
    pthread_mutex_unlock(&lock);
    return n;
}

int __real_gr_disk_write(int dir, const char *name, const struct gr_disk_head *h,
                         const int32_t *token, const void *state, char *message, size_t n);
int __wrap_gr_disk_write(int dir, const char *name, const struct gr_disk_head *h,
                         const int32_t *token, const void *state, char *message, size_t n);
int __wrap_gr_disk_write(int dir, const char *name, const struct gr_disk_head *h,
                         const int32_t *token, const void *state, char *message, size_t n)
{
    pass_gate();
    return __real_gr_disk_write(dir, name, h, token, state, message, n);
}

int __real_gr_disk_read_state(int dir, const char *name, uint64_t bytes, int32_t n_token,
                              void **state, size_t *n);
int __wrap_gr_disk_read_state(int dir, const char *name, uint64_t bytes, int32_t n_token,
                              void **state, size_t *n);
int __wrap_gr_disk_read_state(int dir, const char *name, uint64_t bytes, int32_t n_token,
                              void **state, size_t *n)
{
    pass_gate();
    return __real_gr_disk_read_state(dir, name, bytes, n_token, state, n);
}

static struct client client[MOST_REQUEST];

static struct world open_stored(const char *dir, int32_t n_active)
{
    struct world w = load_world(tiny_model(false), n_active, 512);
    w.p.n_seq = n_active;
    w.p.cache_dir = dir, w.p.cache_bytes = UINT64_C(1) << 40, w.p.cache_least = 32;
    start_world(&w);
    return w;
}

/* Texts that leave the cache while none can be written: requests end, and what does not fit the
 * queue is dropped and counted. */
Test(slow_disk, writes_hold_up_no_step)
{
    struct world w = open_stored(tiny_path("cache"), 1);
    struct gr_rng rng = gr_rng_new(40);
    enum { N = 24 };
    set_gate(true);
    for (int i = 0; i < N; i++) {
        make_client(&w, &client[i], &rng, 100);
        submit(&w, &client[i]);
        run(&w);
        cr_expect_eq(client[i].n_result, 1);
    }
    struct gr_scheduler_stats stats = gr_scheduler_stats(w.scheduler);
    cr_expect_eq(stats.n_saved, 0);
    cr_expect_gt(stats.n_unsaved, 0);
    cr_expect_lt(stats.n_unsaved, N - 1); /* some wait */
    set_gate(false);
    while (gr_scheduler_stats(w.scheduler).n_saved + stats.n_unsaved < N - 1)
        gr_scheduler_step(w.scheduler);
    close_world(&w);
}

/* Opens a scheduler whose disk answers nothing, with a request for a text that is on it. Returns
 * what n_passing was before. */
static int ask_again(struct world *w, struct client *again, struct gr_rng *rng)
{
    const char *dir = tiny_path("cache");
    *w = open_stored(dir, 2);
    make_client(w, &client[0], rng, 200);
    submit(w, &client[0]);
    run(w);
    close_world(w);
    *w = open_stored(dir, 2);
    *again = (struct client){.n_prompt = 200, .n_predict = 12, .seed = client[0].seed};
    memcpy(again->prompt, client[0].prompt, sizeof again->prompt);
    set_gate(true);
    int n = n_passing();
    submit(w, again);
    return n;
}

/* A text whose beginning is on disk waits for it, and other requests pass; then it begins from the
 * file, also where the run of steps sleeps until it is read. */
static void check_reads(bool cancels)
{
    struct world w;
    struct client again;
    struct gr_rng rng = gr_rng_new(41);
    int n = ask_again(&w, &again, &rng);
    for (int i = 1; i < 4; i++) {
        make_client(&w, &client[i], &rng, 60);
        submit(&w, &client[i]);
    }
    while (!client[1].n_result || !client[2].n_result || !client[3].n_result)
        cr_assert(gr_scheduler_step(w.scheduler));
    while (n_passing() == n)
        usleep(1000);
    cr_expect_eq(again.n_result, 0);
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_active, 0);
    if (cancels) {
        gr_scheduler_cancel(w.scheduler, again.id);
        gr_scheduler_step(w.scheduler);
        cr_expect_eq(again.n_result, 1);
        cr_expect_eq(again.result.end, GR_FINISH_CANCELLED);
    }
    set_gate(false);
    run(&w);
    if (!cancels) {
        check_alone(&w, &again, "from a file");
        cr_expect_eq(again.result.n_cached, 199);
    }
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_restored, !cancels);
    for (int i = 1; i < 4; i++)
        check_alone(&w, &client[i], "beside it");
    close_world(&w);
}

/* Files that were read, of texts that find no cells: another text with a file, of a higher
 * priority, does not wait for those to be used. */
Test(slow_disk, files_that_cannot_be_used_hold_up_no_text)
{
    const char *dir = tiny_path("cache");
    struct world w = open_stored(dir, 1);
    struct gr_rng rng = gr_rng_new(44);
    for (int i = 0; i < 5; i++) {
        make_client(&w, &client[i], &rng, i < 4 ? 130 : 70);
        submit(&w, &client[i]);
        run(&w);
    }
    close_world(&w);
    w = open_stored(dir, 8);
    for (int i = 0; i < 5; i++)
        client[i].n = client[i].n_result = 0, client[i].text[0] = 0;
    set_gate(true);
    for (int i = 0; i < 4; i++)
        submit(&w, &client[i]);
    gr_scheduler_step(w.scheduler);
    make_client(&w, &client[5], &rng, 270);
    client[5].n_predict = 100, client[5].seed = ENDLESS;
    submit(&w, &client[5]);
    while (client[5].n < 1)
        gr_scheduler_step(w.scheduler);
    int n = n_passing();
    set_gate(false);
    while (n_passing() < n + 3)
        usleep(1000);
    usleep(20000);
    gr_scheduler_step(w.scheduler);
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_active, 1);
    struct gr_request r = request_of(&w, &client[4]);
    r.priority = 1;
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[4].id), 0);
    for (int i = 0; i < 5; i++)
        gr_scheduler_step(w.scheduler);
    cr_expect_gt(client[4].n, 0);
    run(&w);
    for (int i = 0; i < 6; i++)
        check_alone(&w, &client[i], "files in the way");
    close_world(&w);
}

/* A text that cannot be saved beside those that wait for the disk removes no file. */
Test(slow_disk, files_stay_where_nothing_is_saved)
{
    const char *dir = tiny_path("cache");
    struct world w = open_stored(dir, 1);
    struct gr_rng rng = gr_rng_new(45);
    for (int i = 0; i < 4; i++)
        make_client(&w, &client[i], &rng, i == 2 ? 200 : 100);
    submit(&w, &client[0]);
    run(&w);
    close_world(&w);
    w = open_stored(dir, 1);
    gr_scheduler_step(w.scheduler);
    uint64_t bytes = gr_scheduler_stats(w.scheduler).file_bytes;
    cr_assert_gt(bytes, 0);
    close_world(&w);
    w = load_world(tiny_model(false), 1, 512);
    w.p.n_seq = 1;
    w.p.cache_dir = dir, w.p.cache_bytes = bytes * 5 / 2, w.p.cache_least = 32;
    start_world(&w);
    set_gate(true);
    for (int i = 1; i < 4; i++) {
        submit(&w, &client[i]);
        run(&w);
    }
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_unsaved, 1);
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_file, 2);
    set_gate(false);
    close_world(&w);
}

/* A text that leaves a file's: the file is read where it can be used, and else not read at all. */
Test(slow_disk, a_file_is_used_or_not_read)
{
    static const char *const archs[] = {"llama", "gemma3", "mamba"};
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf"), *dir = tiny_path(archs[a]);
        struct gr_rng rng = gr_rng_new(43);
        tiny_write_arch(archs[a], path);
        for (int k = 0; k < 6; k++) {
            struct world w = load_world(path, 2, 512);
            w.p.cache_dir = dir, w.p.cache_bytes = UINT64_C(1) << 40, w.p.cache_least = 32;
            start_world(&w);
            int n = n_passing();
            if (!k)
                make_client(&w, &client[0], &rng, 300);
            make_client(&w, &client[1], &rng, 310);
            memcpy(client[1].prompt, client[0].prompt, (size_t)(50 * k + 50) * sizeof(int32_t));
            submit(&w, k ? &client[1] : &client[0]);
            run(&w);
            check_alone(&w, k ? &client[1] : &client[0], archs[a]);
            int64_t n_restored = gr_scheduler_stats(w.scheduler).n_restored;
            cr_expect_eq(n_passing() - n, n_restored, "%s, %d: %d read", archs[a], k,
                         n_passing() - n);
            cr_expect(!k || strcmp(archs[a], "llama") != 0 || n_restored);
            cr_expect(k < 5 || n_restored, "%s", archs[a]); /* all of it */
            cr_expect_eq(client[1].result.n_cached >= 50 * k + 50, k && n_restored, "%s, %d",
                         archs[a], k);
            close_world(&w);
        }
    }
}

Test(slow_disk, reads_hold_up_no_step)
{
    check_reads(false);
}

Test(slow_disk, a_request_ends_while_its_file_is_read)
{
    check_reads(true);
}

static void *run_for_ever(void *user)
{
    gr_scheduler_run(user);
    return NULL;
}

/* gr_scheduler_run sleeps while a request waits for the disk, and wakes up when it is read. */
Test(slow_disk, the_scheduler_sleeps_meanwhile)
{
    struct world w;
    struct client again;
    struct gr_rng rng = gr_rng_new(42);
    int n = ask_again(&w, &again, &rng);
    pthread_t thread;
    clockid_t clock;
    struct timespec before, after;
    cr_assert_eq(pthread_create(&thread, NULL, run_for_ever, w.scheduler), 0);
    while (n_passing() == n)
        usleep(1000);
    usleep(100000);
    cr_assert_eq(pthread_getcpuclockid(thread, &clock), 0);
    clock_gettime(clock, &before);
    usleep(300000);
    clock_gettime(clock, &after);
    cr_expect_lt((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec,
                 50000000);
    set_gate(false);
    gr_scheduler_stop(w.scheduler, false);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_expect_eq(again.result.n_cached, 199);
    check_alone(&w, &again, "from a file");
    close_world(&w);
}
