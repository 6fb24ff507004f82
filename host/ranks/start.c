#include "ranks/start.h"

#include "base/alloc.h"
#include "gr/status.h"
#include "model/model.h"
#include "ranks/broadcast.h"
#include "ranks/connect.h"
#include "ranks/team.h"
#include "ranks/transport.h"
#include "ranks/worker.h"

/* ---- threads ---- */

/* A thread that serves as a rank. */
struct gr_worker_thread {
    pthread_t thread;
    bool runs;
    struct gr_world *world;
    struct gr_team *team;
};

static void *run_worker(void *p)
{
    struct gr_worker_thread *w = p;
    (void)gr_team_serve(w->team); /* the world keeps the message of a failure */
    return NULL;
}

static int start_workers(struct gr_team *t, struct gr_world **world)
{
    int32_t n = t->world->n_rank;
    int rc = 0;
    for (int32_t r = 1; r < n; r++)
        t->workers[r].world = world[r];
    for (int32_t r = 1; r < n && !rc; r++)
        rc = gr_team_new(&t->workers[r].team, t->model, world[r], t->model->rank_model[r]);
    for (int32_t r = 1; r < n && !rc; r++) {
        struct gr_worker_thread *w = &t->workers[r];
        w->runs = pthread_create(&w->thread, NULL, run_worker, w) == 0;
        if (!w->runs)
            rc = gr_fail(GR_E_NOMEM_HOST, "no thread can be started for rank %d", r);
    }
    return rc;
}

static int new_threads(struct gr_team **out, struct gr_model *m, int32_t n)
{
    struct gr_world *world[GR_MAX_RANK];
    int rc = gr_world_threads(world, n);
    if (rc)
        return rc;
    for (int32_t r = 0; r < n; r++)
        world[r]->wrap = gr_team_testing()->wrap;
    rc = gr_team_new(out, m, world[0], m->rank_model[0]);
    struct gr_team *t = *out;
    if (!rc && !(t->workers = gr_calloc((size_t)n, sizeof *t->workers)))
        rc = GR_E_NOMEM_HOST;
    if (!rc) {
        t->threads = true;
        rc = start_workers(t, world);
        if (rc)
            gr_team_free(out);
        return rc;
    }
    gr_team_free(out);
    for (int32_t r = 0; r < n; r++)
        world[r]->api->close(&world[r]);
    return rc;
}

int gr_team_of(struct gr_model *m, struct gr_team **out)
{
    int rc = 0;
    pthread_mutex_lock(&m->lock);
    if (!m->team && m->world && m->n_rank > 1)
        rc = gr_team_new(&m->team, m, m->world, m->rank_model[0]);
    else if (!m->team && m->n_rank_model > 1)
        rc = new_threads(&m->team, m, m->n_rank_model);
    *out = m->team;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* ---- freeing ---- */

static void send_quit(struct gr_team *t)
{
    if (t->open && gr_team_is_root(t) && !gr_world_check(t->world))
        (void)gr_team_broadcast_or_lose(t, 0, GR_COMMAND_QUIT, NULL, 0);
}

static void stop_workers(struct gr_team *t)
{
    for (int32_t r = 1; t->workers && r < t->world->n_rank; r++)
        if (t->workers[r].runs)
            pthread_join(t->workers[r].thread, NULL);
    for (int32_t r = 1; t->workers && r < t->world->n_rank; r++) {
        gr_team_free_own(&t->workers[r].team);
        if (t->workers[r].world)
            t->workers[r].world->api->close(&t->workers[r].world);
    }
    gr_free(t->workers);
}

void gr_team_free(struct gr_team **team)
{
    struct gr_team *t = *team;
    if (!t)
        return;
    struct gr_world *own = t->threads ? t->world : NULL;
    send_quit(t);
    if (!gr_world_check(t->world))
        gr_message_finish(t);
    gr_team_leave_transport(t);
    stop_workers(t);
    gr_team_free_own(team);
    if (own)
        own->api->close(&own);
}

/* ---- processes ---- */

int gr_world_serve(struct gr_world *world, struct gr_model *model)
{
    struct gr_team *t;
    if (world->rank == 0 || model->world != world)
        return gr_fail(GR_E_INVALID,
                       "rank %d serves nobody with this model: only ranks above 0 serve, with a "
                       "model that was opened for their world",
                       world->rank);
    int rc = gr_team_of(model, &t);
    return rc ? rc : gr_team_serve(t);
}
