/* Heartbeats of processes that are killed, stopped and held up: every other one finds out by
 * itself, in time, and names the right one. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gr/status.h"
#include "link/heartbeat.h"

TestSuite(heartbeat_process, .timeout = 60);

#define MOST 4

/* Memory that the processes share. */
struct board {
    struct gr_heartbeat_hello hello;
    struct gr_heartbeat_opt opt;
    _Atomic bool listening, leave;
    struct {
        _Atomic int joined, lost; /* rank + 1 */
        _Atomic int64_t lost_ns;
        char line[256];
    } rank[MOST];
};

static struct board *board;
static pid_t child[MOST];

static void wake(struct gr_world *w)
{
    (void)w;
}

static void on_lost(int32_t rank, const char *line, void *user)
{
    int me = *(int *)user;
    snprintf(board->rank[me].line, sizeof board->rank[me].line, "%s", line);
    atomic_store(&board->rank[me].lost_ns, gr_now_ns());
    atomic_store(&board->rank[me].lost, rank + 1);
}

/* A rank whose main thread does nothing but wait for what becomes of it; returns its exit code. */
static int rank_main(int me, int n)
{
    static const struct gr_world_api api = {.name = "fake", .wake = wake};
    struct gr_rank ranks[MOST];
    struct gr_heartbeat_hello hello;
    struct gr_world w = {.api = &api, .rank = me, .n_rank = n, .ranks = ranks};
    for (int i = 0; i < n; i++)
        ranks[i] = (struct gr_rank){.host = "here", .pid = child[i], .n_local = n};
    while (me && !atomic_load(&board->listening))
        usleep(1000);
    int rc = gr_heartbeat_new(&w.heartbeat, &w, &board->opt, &hello);
    if (!rc && !me) {
        board->hello = hello;
        atomic_store(&board->listening, true);
    }
    if (!rc)
        rc = gr_heartbeat_start(w.heartbeat, &board->hello);
    if (rc)
        return 99;
    gr_world_on_lost(&w, on_lost, &me);
    gr_world_doing(&w, GR_DOING_WAIT);
    atomic_store(&board->rank[me].joined, 1);
    while (!atomic_load(&board->rank[me].lost) && !atomic_load(&board->leave))
        usleep(1000);
    return gr_heartbeat_leave(&w.heartbeat, 0);
}

static void start(int n, const struct gr_heartbeat_opt *opt)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)board, MAP_FAILED);
    board->opt = opt ? *opt : gr_heartbeat_opt_default();
    for (int i = 0; i < n; i++) {
        child[i] = fork();
        cr_assert_geq(child[i], 0);
        if (!child[i])
            _exit(rank_main(i, n));
    }
    for (int i = 0; i < n; i++) {
        while (!atomic_load(&board->rank[i].joined))
            usleep(1000);
    }
    usleep(500000);
}

/* The exit code of a rank, -1 when a signal ended it. */
static int end_of(int rank)
{
    int status;
    cr_assert_eq(waitpid(child[rank], &status, 0), child[rank]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* All but `rank` name it and end by themselves. */
static void expect_named(int n, int rank, int64_t since_ns, double from_s, double to_s,
                         const char *words)
{
    for (int i = 0; i < n; i++) {
        if (i == rank)
            continue;
        cr_expect_eq(end_of(i), gr_status_exit(GR_E_PEER_LOST));
        double s = (double)(atomic_load(&board->rank[i].lost_ns) - since_ns) * 1e-9;
        cr_expect_eq(atomic_load(&board->rank[i].lost), rank + 1, "%s", board->rank[i].line);
        cr_expect(s >= from_s && s <= to_s, "after %.3f s", s);
        cr_expect(strstr(board->rank[i].line, words), "%s", board->rank[i].line);
    }
}

/* A busy machine may take so much longer; tests/ranks/mpi/trials holds a quiet one to the limits
 * themselves. */
#define LATE_S 3

static void kill_one(int n, int rank)
{
    start(n, NULL);
    int64_t at_ns = gr_now_ns();
    kill(child[rank], SIGKILL);
    expect_named(n, rank, at_ns, 0, 1 + LATE_S, "its process has ended");
    cr_expect_eq(end_of(rank), -1);
}

Test(heartbeat_process, a_killed_process_is_known_within_a_second)
{
    kill_one(4, 2);
}

Test(heartbeat_process, so_is_a_killed_rank_0)
{
    kill_one(4, 0);
}

static void stop_one(int n, int rank)
{
    start(n, NULL);
    int64_t at_ns = gr_now_ns();
    kill(child[rank], SIGSTOP);
    expect_named(n, rank, at_ns, 3.5, 5 + LATE_S, "nothing heard of it for ");
    kill(child[rank], SIGCONT); /* it learns what it was taken for */
    cr_expect_eq(end_of(rank), gr_status_exit(GR_E_PEER_LOST));
    cr_expect_gt(atomic_load(&board->rank[rank].lost), 0);
}

Test(heartbeat_process, a_stopped_process_is_known_within_five_seconds)
{
    stop_one(3, 1);
}

Test(heartbeat_process, so_is_a_stopped_rank_0)
{
    stop_one(3, 0);
}

/* A machine that stood still has lost nobody. */
Test(heartbeat_process, all_stopped_for_a_while)
{
    struct gr_heartbeat_opt opt = gr_heartbeat_opt_default();
    opt.silent = 2000;
    start(3, &opt);
    for (int i = 0; i < 3; i++)
        kill(child[i], SIGSTOP);
    usleep(3500000);
    for (int i = 0; i < 3; i++)
        kill(child[i], SIGCONT);
    usleep(1500000);
    atomic_store(&board->leave, true);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(end_of(i), 0);
        cr_expect_eq(atomic_load(&board->rank[i].lost), 0, "%s", board->rank[i].line);
    }
}
