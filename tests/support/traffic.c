#include "support/traffic.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "gr/status.h"

#define FLIGHT 5 /* requests of a link under way at once */

struct flight {
    bool busy;
    int index;
    struct gr_request r;
    unsigned char *buf;
};

struct end {
    struct gr_link *link;
    bool sends;
    int begun, done;
    struct flight flight[FLIGHT];
};

static uint64_t key_of(uint64_t seed, const struct gr_link *l, int index)
{
    return (((seed * 31 + l->lane) * 67 + (uint64_t)l->from) * 67 + (uint64_t)l->to) * 100003 +
           (uint64_t)index;
}

void traffic_fill(unsigned char *p, size_t n, uint64_t seed, const struct gr_link *l, int index)
{
    uint64_t x = key_of(seed, l, index) * 0x9e3779b97f4a7c15u | 1;
    for (size_t i = 0; i < n; i += 8) {
        memcpy(p + i, &x, n - i < 8 ? n - i : 8);
        x += 0x9e3779b97f4a7c15u;
    }
}

/* Many are short, some empty, a few as long as can be. */
static size_t length_of(const struct traffic *t, const struct gr_link *l, int index)
{
    struct gr_rng rng = gr_rng_new(key_of(t->seed, l, index));
    switch (gr_rng_below(&rng, 8)) {
    case 0:
        return 0;
    case 1:
        return t->max;
    case 2:
        return gr_rng_below(&rng, (uint32_t)t->max + 1);
    default:
        return gr_rng_below(&rng, t->max < 200 ? (uint32_t)t->max + 1 : 200);
    }
}

static int begin(const struct traffic *t, struct end *e, struct flight *f, bool probe)
{
    size_t n = length_of(t, e->link, e->begun), found;
    f->index = e->begun;
    if (e->sends) {
        traffic_fill(f->buf, n, t->seed, e->link, f->index);
        f->busy = true, e->begun++;
        return gr_link_send(e->link, f->buf, n, &f->r);
    }
    if (probe && e->begun == e->done) { /* nothing under way: the next message is this one */
        int rc = e->link->api->probe(e->link, gr_now_ns() + 100000, &found);
        if (rc)
            return gr_world_check(e->link->world);
        if (found != n)
            return gr_fail(GR_E_CHECK, "probe: %zu bytes, %zu were sent", found, n);
    }
    memset(f->buf, 0xa5, t->max);
    f->busy = true, e->begun++;
    return gr_link_recv(e->link, f->buf, t->max, &f->r);
}

static int check(const struct traffic *t, struct end *e, struct flight *f, unsigned char *want)
{
    size_t n = length_of(t, e->link, f->index);
    if (f->r.n != n)
        return gr_fail(GR_E_CHECK, "message %d, lane %d, %d -> %d: %zu bytes came, %zu were sent",
                       f->index, e->link->lane, e->link->from, e->link->to, f->r.n, n);
    traffic_fill(want, n, t->seed, e->link, f->index);
    if (n && memcmp(want, f->buf, n) != 0)
        return gr_fail(GR_E_CHECK, "message %d, lane %d, %d -> %d: other bytes came", f->index,
                       e->link->lane, e->link->from, e->link->to);
    return 0;
}

/* One thing with one request, whatever is possible with it. */
static int step(const struct traffic *t, struct end *e, struct gr_rng *rng, unsigned char *want)
{
    struct flight *f = &e->flight[gr_rng_below(rng, FLIGHT)];
    uint32_t dice = gr_rng_below(rng, 8);
    if (!f->busy)
        return e->begun < t->n_message ? begin(t, e, f, t->probe && dice < 2) : 0;
    if (dice < 5 && !e->link->api->done(e->link, &f->r))
        return 0;
    int rc = gr_link_wait(e->link, &f->r, gr_now_ns() + 50000);
    if (rc == GR_E_PEER_LOST && !gr_world_check(e->link->world))
        return 0; /* late: it is still under way */
    if (!rc && !e->sends)
        rc = check(t, e, f, want);
    f->busy = false, e->done++;
    return rc;
}

static int open_ends(struct gr_world *w, const struct traffic *t, struct end *ends, int *n)
{
    for (int32_t lane = 0; lane < GR_N_LANE; lane++)
        for (int32_t other = 0; other < w->n_rank; other++)
            for (int sends = 0; sends < 2 && other != w->rank; sends++) {
                struct end *e = &ends[(*n)++];
                int32_t from = sends ? w->rank : other, to = sends ? other : w->rank;
                int rc = gr_world_link(w, (enum gr_lane)lane, from, to, &e->link);
                e->sends = sends;
                for (int i = 0; i < FLIGHT && !rc; i++)
                    if (!(e->flight[i].buf = gr_calloc(t->max + 8, 1)))
                        rc = GR_E_NOMEM_HOST;
                if (rc)
                    return rc;
            }
    return 0;
}

int traffic_rank(struct gr_world *w, const struct traffic *t)
{
    int n = 0, left = 0;
    struct end *ends = gr_calloc((size_t)(GR_N_LANE * w->n_rank * 2), sizeof *ends);
    unsigned char *want = gr_calloc(t->max + 8, 1);
    int64_t start = gr_now_ns();
    struct gr_rng rng = gr_rng_new(t->seed * 64 + (uint64_t)w->rank);
    int rc = ends && want ? open_ends(w, t, ends, &n) : GR_E_NOMEM_HOST;
    do {
        left = 0;
        for (int i = 0; i < n && !rc; i++) {
            struct end *e = &ends[gr_rng_below(&rng, (uint32_t)n)];
            if (e->done < t->n_message)
                rc = step(t, e, &rng, want);
            left += ends[i].done < t->n_message;
        }
        if (!rc && gr_now_ns() - start > t->limit_ns)
            rc = gr_fail(GR_E_CHECK, "rank %d: %d links are not done in time", w->rank, left);
    } while (left && !rc);
    for (int i = 0; i < n; i++) {
        gr_link_close(&ends[i].link);
        for (int k = 0; k < FLIGHT; k++)
            gr_free(ends[i].flight[k].buf);
    }
    gr_free(ends);
    gr_free(want);
    return rc;
}

struct part {
    struct gr_world *world;
    const struct traffic *t;
    int rc;
    char text[256];
};

static void *run_part(void *arg)
{
    struct part *p = arg;
    p->rc = traffic_rank(p->world, p->t);
    if (p->rc) {
        strncpy(p->text, gr_error(), sizeof p->text - 1);
        gr_world_lose(p->world, p->world->rank, "its traffic failed");
    }
    p->world->api->close(&p->world);
    return NULL;
}

int traffic_threads(int32_t n, const struct gr_link_opt *wrap, const struct traffic *t)
{
    struct gr_world *worlds[GR_MAX_RANK];
    struct part part[GR_MAX_RANK] = {{0}};
    pthread_t thread[GR_MAX_RANK];
    int rc = gr_world_threads(worlds, n);
    if (rc)
        return rc;
    for (int32_t i = 0; i < n; i++) {
        worlds[i]->wrap = wrap;
        part[i] = (struct part){.world = worlds[i], .t = t};
        pthread_create(&thread[i], NULL, run_part, &part[i]);
    }
    for (int32_t i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    for (int32_t i = 0; i < n; i++)
        if (part[i].rc && (!rc || part[i].rc != GR_E_PEER_LOST))
            rc = gr_fail(part[i].rc, "%s", part[i].text);
    return rc;
}
