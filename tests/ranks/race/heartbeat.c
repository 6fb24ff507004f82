/* Watches under ThreadSanitizer: ranks that join, work, lose each other or leave, all at once. */
#include "link/heartbeat.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define N 3

struct rank {
    struct gr_world world;
    struct gr_rank ranks[N];
    bool lose;
    int code;
    char line[256]; /* command lines of the program */
};

static struct gr_heartbeat_hello hello;

static void wake(struct gr_world *w)
{
    (void)w;
}

static void on_lost(int32_t rank, const char *line, void *user)
{
    struct rank *r = user;
    snprintf(r->line, sizeof r->line, "%d %s", (int)rank, line);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    if (gr_heartbeat_start(r->world.heartbeat, &hello)) {
        r->code = 99;
        return NULL;
    }
    gr_world_on_lost(&r->world, on_lost, r);
    for (int i = 0; i < 20000; i++)
        gr_world_doing(&r->world, i % 2 ? GR_DOING_WAIT : GR_DOING_LOAD);
    if (r->lose)
        gr_world_lose(&r->world, r->world.rank, "told to");
    gr_world_doing(&r->world, GR_DOING_CLOSE);
    r->code = gr_heartbeat_leave(&r->world.heartbeat, 0);
    return NULL;
}

/* All ranks lose the world, or none. Returns whether something is wrong. */
static bool run(bool lose)
{
    static const struct gr_world_api api = {.name = "fake", .wake = wake};
    static const struct gr_heartbeat_opt opt = {2, 10000, 10000, 5000, 60000};
    struct gr_heartbeat_hello unused;
    struct rank rank[N];
    pthread_t thread[N];
    bool wrong = false;
    memset(rank, 0, sizeof rank);
    for (int i = 0; i < N; i++) {
        struct rank *r = &rank[i];
        r->world = (struct gr_world){.api = &api, .rank = i, .n_rank = N, .ranks = r->ranks};
        r->lose = lose;
        for (int k = 0; k < N; k++)
            r->ranks[k].n_local = N;
        if (gr_heartbeat_new(&r->world.heartbeat, &r->world, &opt, i ? &unused : &hello))
            return true;
    }
    for (int i = 0; i < N; i++)
        pthread_create(&thread[i], NULL, rank_main, &rank[i]);
    for (int i = 0; i < N; i++) {
        pthread_join(thread[i], NULL);
        wrong |= rank[i].code != (lose ? 4 : 0) || lose != (rank[i].line[0] != 0);
    }
    return wrong;
}

int main(void)
{
    for (int i = 0; i < 20; i++) {
        if (run(i % 2)) {
            fprintf(stderr, "run %d: not as it should be\n", i);
            return 1;
        }
    }
    return 0;
}
