/* Links between threads under ThreadSanitizer: random traffic, plain and wrapped, and a rank that
 * is lost in the middle of it. */
#include <pthread.h>
#include <stdio.h>

#include "gr/status.h"
#include "support/traffic.h"

struct part {
    struct gr_world *world;
    const struct traffic *t;
    int rc;
};

static void *run_part(void *arg)
{
    struct part *p = arg;
    p->rc = traffic_rank(p->world, p->t);
    return NULL;
}

/* More traffic than there is time for, until a rank is lost. */
static int lose_one(uint64_t seed)
{
    struct traffic t = {seed, 1000000, 5000, true, 60000000000};
    struct gr_link_opt wrap = {.sync = seed % 2};
    struct gr_world *world[3];
    struct part part[3];
    pthread_t thread[3];
    int wrong = gr_world_threads(world, 3);
    for (int i = 0; i < 3 && !wrong; i++) {
        part[i] = (struct part){world[i], &t, 0};
        world[i]->wrap = &wrap;
    }
    for (int i = 0; i < 3 && !wrong; i++)
        pthread_create(&thread[i], NULL, run_part, &part[i]);
    for (int i = 0; i < 3 && !wrong; i++)
        gr_world_lose(world[i], i, "told to");
    for (int i = 0; i < 3 && !wrong; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 3 && !wrong; i++)
        wrong = part[i].rc != GR_E_PEER_LOST;
    for (int i = 0; i < 3; i++)
        world[i]->api->close(&world[i]);
    return wrong;
}

int main(void)
{
    struct gr_link_opt wraps[] = {{.sync = true}, {.delay_ns = 100000, .bytes_per_s = 1000000000}};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct traffic t = {seed, 12, 20000, true, 60000000000};
        const struct gr_link_opt *wrap = seed % 3 ? &wraps[seed % 2] : NULL;
        if (traffic_threads(2 + (int32_t)seed % 3, wrap, &t)) {
            fprintf(stderr, "seed %d: %s\n", (int)seed, gr_error());
            return 1;
        }
        if (lose_one(seed)) {
            fprintf(stderr, "seed %d: a lost rank did not end it\n", (int)seed);
            return 1;
        }
    }
    return 0;
}
