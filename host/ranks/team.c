#include "ranks/team.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"

#define TRY_NS (60 * (int64_t)1000000000) /* time limit of the link test of all ranks */

/* A thread that serves as a rank. */
struct gr_helper {
    pthread_t thread;
    bool runs;
    struct gr_world *world;
    struct gr_team *team;
};

static struct gr_team_test testing;

void gr_team_test(const struct gr_team_test *test)
{
    testing = test ? *test : (struct gr_team_test){0};
}

const struct gr_team_test *gr_team_testing(void)
{
    return &testing;
}

int64_t gr_team_deadline(void)
{
    return testing.patience_ns ? gr_now_ns() + testing.patience_ns : INT64_MAX;
}

int gr_team_lose(struct gr_team *t, int32_t rank)
{
    char why[200], name[128];
    if (!gr_world_check(t->world)) {
        const char *text = gr_error();
        size_t n = strlen(gr_world_name(t->world, rank, name, sizeof name));
        if (strncmp(text, name, n) == 0 && text[n] == ':') /* gr_world_lose adds the name */
            text += n + 2;
        snprintf(why, sizeof why, "%s", text);
        gr_world_lose(t->world, rank, why);
    }
    return gr_world_check(t->world);
}

int gr_team_check(const struct gr_team *t)
{
    return t ? gr_world_check(t->world) : 0;
}

void gr_team_lock(struct gr_team *t)
{
    if (t)
        pthread_mutex_lock(&t->lock);
}

void gr_team_unlock(struct gr_team *t)
{
    if (t)
        pthread_mutex_unlock(&t->lock);
}

/* ---- parcels ---- */

/* The port for messages to a rank: orders from rank 0, answers from the others. */
static struct gr_port *port_to(struct gr_team *t, int32_t rank)
{
    return gr_team_leads(t) ? &t->order[rank] : &t->result[rank];
}

/* Returns whether a parcel has been sent to all its ranks, and finishes its requests. */
static bool is_sent(struct gr_team *t, struct gr_parcel *p)
{
    while (p->lo < p->hi && gr_frame_is_sent(port_to(t, p->lo), &p->out[p->lo])) {
        if (gr_frame_sent(port_to(t, p->lo), &p->out[p->lo], INT64_MAX))
            return false;
        p->lo++;
    }
    return p->lo == p->hi;
}

struct gr_parcel *gr_parcel_new(struct gr_team *t, int32_t lo, int32_t hi)
{
    struct gr_parcel **all = t->parcels.data, *p = NULL;
    for (size_t i = 0; i < t->parcels.n && !p; i++)
        p = is_sent(t, all[i]) ? all[i] : NULL;
    if (!p) {
        size_t out = (size_t)t->world->n_rank * sizeof *p->out;
        p = gr_calloc(1, sizeof *p + out);
        if (p && gr_vec_append(&t->parcels, &p, 1, sizeof(struct gr_parcel *))) {
            gr_free(p);
            p = NULL;
        }
    }
    if (!p)
        return NULL;
    p->bytes.n = 0;
    p->lo = p->hi = lo;
    p->hi = hi;
    memset(p->out + lo, 0, (size_t)(hi - lo) * sizeof *p->out);
    return p;
}

int gr_parcel_send(struct gr_team *t, struct gr_parcel *p, const struct gr_frame *frame)
{
    int rc = 0;
    for (int32_t r = p->lo; r < p->hi && !rc; r++) {
        if (r == t->world->rank)
            continue;
        p->out[r].frame = *frame;
        p->out[r].frame.n = p->bytes.n;
        rc = gr_frame_send(port_to(t, r), &p->out[r], p->bytes.data);
    }
    return rc ? gr_team_lose(t, t->world->rank) : 0;
}

int gr_team_receive(struct gr_team *t, struct gr_port *port, int32_t rank, struct gr_frame *frame)
{
    int rc = gr_frame_recv(port, frame, gr_team_deadline());
    if (!rc)
        rc = gr_vec_room(&t->body, (size_t)frame->n, 1);
    if (!rc)
        rc = gr_frame_body(port, frame, t->body.data, t->body.cap, gr_team_deadline());
    t->body.n = rc ? 0 : (size_t)frame->n;
    return rc ? gr_team_lose(t, rank) : 0;
}

/* ---- making ---- */

static int open_port(struct gr_team *t, struct gr_port *p, enum gr_lane lane, int32_t from,
                     int32_t to)
{
    p->sum = lane == GR_LANE_DATA;
    return gr_world_link(t->world, lane, from, to, &p->link);
}

static int open_ports(struct gr_team *t)
{
    int32_t own = t->world->rank, n = t->world->n_rank;
    int rc = 0;
    for (int32_t r = own ? 0 : 1; r < (own ? 1 : n) && !rc; r++) {
        int32_t served = own ? own : r;
        rc = open_port(t, &t->order[r], GR_LANE_ORDER, 0, served);
        if (!rc)
            rc = open_port(t, &t->result[r], GR_LANE_RESULT, served, 0);
    }
    return rc;
}

/* Tests the data links, except wrapped ones: a test's faults are meant for later messages. */
static int try_links(struct gr_team *t)
{
    struct gr_chain_end in = {t->in.link ? &t->in : NULL, &t->path, t->transport_in, 0};
    struct gr_chain_end out = {t->out.link ? &t->out : NULL, &t->path, t->transport_out, 0};
    int64_t until = GR_MIN(gr_team_deadline(), gr_now_ns() + TRY_NS);
    if (t->world->wrap)
        return 0;
    t->found = gr_calloc((size_t)t->world->n_rank, sizeof *t->found);
    int rc = t->found ? gr_chain_try(t->world, &in, &out, until, t->found, &t->n_found)
                      : GR_E_NOMEM_HOST;
    t->transport_in = in.chosen < in.n_path;
    t->transport_out = out.chosen < out.n_path;
    return rc ? gr_team_lose(t, t->world->rank) : 0;
}

static int open_group(struct gr_team *t)
{
    if (t->group)
        return 0;
    int rc = gr_group_open(&t->group, t->world, t->slice->n_shard);
    if (rc)
        return rc;
    t->group->patience_ns = testing.patience_ns;
    t->group->transport = t->transport_group ? t->slice->transport : NULL;
    t->slice->group = t->group;
    rc = t->world->wrap ? 0 : gr_group_try(t->group, t->path.backend, &t->shared);
    t->transport_group = t->group->transport != NULL;
    return rc ? gr_team_lose(t, t->world->rank) : 0;
}

int gr_team_link(struct gr_team *t)
{
    const struct gr_slice *l = t->slice;
    int32_t own = t->world->rank;
    int rc = 0;
    if (t->in.link || t->out.link || t->found)
        return 0;
    if (l->n_shard > 1)
        rc = open_group(t);
    if (!rc && l->stage > 0)
        rc = open_port(t, &t->in, GR_LANE_DATA, own - l->n_shard, own);
    if (!rc && l->stage < l->n_stage - 1)
        rc = open_port(t, &t->out, GR_LANE_DATA, own, own + l->n_shard);
    return rc ? rc : try_links(t);
}

int gr_team_new(struct gr_team **out, struct gr_model *m, struct gr_world *w,
                struct gr_slice *slice)
{
    struct gr_team *t = *out = gr_calloc(1, sizeof *t);
    pthread_mutexattr_t recursive;
    if (!t)
        return GR_E_NOMEM_HOST;
    t->model = m, t->world = w, t->slice = slice;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&t->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    t->clock_ns = gr_calloc((size_t)w->n_rank, sizeof *t->clock_ns);
    int rc = t->clock_ns ? open_ports(t) : GR_E_NOMEM_HOST;
    t->open = !rc;
    if (rc)
        gr_team_free(out);
    return rc;
}

/* ---- threads ---- */

static void *help(void *p)
{
    struct gr_helper *h = p;
    (void)gr_team_serve(h->team); /* the world keeps the message of a failure */
    return NULL;
}

static int start_helpers(struct gr_team *t, struct gr_world **world)
{
    int32_t n = t->world->n_rank;
    int rc = 0;
    for (int32_t r = 1; r < n; r++)
        t->helpers[r].world = world[r];
    for (int32_t r = 1; r < n && !rc; r++)
        rc = gr_team_new(&t->helpers[r].team, t->model, world[r], t->model->slice[r]);
    for (int32_t r = 1; r < n && !rc; r++) {
        struct gr_helper *h = &t->helpers[r];
        h->runs = pthread_create(&h->thread, NULL, help, h) == 0;
        if (!h->runs)
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
        world[r]->wrap = testing.wrap;
    rc = gr_team_new(out, m, world[0], m->slice[0]);
    struct gr_team *t = *out;
    if (!rc && !(t->helpers = gr_calloc((size_t)n, sizeof *t->helpers)))
        rc = GR_E_NOMEM_HOST;
    if (!rc) {
        t->threads = true;
        rc = start_helpers(t, world);
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
        rc = gr_team_new(&m->team, m, m->world, m->slice[0]);
    else if (!m->team && m->n_slice > 1)
        rc = new_threads(&m->team, m, m->n_slice);
    *out = m->team;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* ---- freeing ---- */

static void free_ports(struct gr_team *t)
{
    for (int32_t r = 0; r < t->world->n_rank; r++) {
        gr_link_close(&t->order[r].link);
        gr_link_close(&t->result[r].link);
    }
    gr_link_close(&t->in.link);
    gr_link_close(&t->out.link);
    gr_group_close(&t->group);
    t->slice->group = NULL;
}

/* Waits until the last messages have been sent. */
static void finish_parcels(struct gr_team *t)
{
    struct gr_parcel **all = t->parcels.data;
    for (size_t i = 0; i < t->parcels.n; i++)
        for (int32_t r = all[i]->lo; r < all[i]->hi; r++)
            (void)gr_frame_sent(port_to(t, r), &all[i]->out[r], INT64_MAX);
}

static void say_quit(struct gr_team *t)
{
    if (t->open && gr_team_leads(t) && !gr_world_check(t->world))
        (void)gr_team_tell_done(t, 0, GR_ORDER_IS_QUIT, NULL, 0);
}

/* Frees one rank's team object. */
static void dismantle(struct gr_team **team)
{
    struct gr_team *t = *team;
    if (!t)
        return;
    free_ports(t);
    for (size_t i = 0; i < t->parcels.n; i++) {
        struct gr_parcel *p = ((struct gr_parcel **)t->parcels.data)[i];
        gr_vec_fini(&p->bytes);
        gr_free(p);
    }
    gr_vec_fini(&t->parcels);
    gr_vec_fini(&t->sessions);
    gr_vec_fini(&t->body);
    gr_free(t->clock_ns);
    gr_free(t->found);
    pthread_mutex_destroy(&t->lock);
    gr_free(t);
    *team = NULL;
}

static void stop_helpers(struct gr_team *t)
{
    for (int32_t r = 1; t->helpers && r < t->world->n_rank; r++)
        if (t->helpers[r].runs)
            pthread_join(t->helpers[r].thread, NULL);
    for (int32_t r = 1; t->helpers && r < t->world->n_rank; r++) {
        dismantle(&t->helpers[r].team);
        if (t->helpers[r].world)
            t->helpers[r].world->api->close(&t->helpers[r].world);
    }
    gr_free(t->helpers);
}

void gr_team_free(struct gr_team **team)
{
    struct gr_team *t = *team;
    if (!t)
        return;
    struct gr_world *own = t->threads ? t->world : NULL;
    say_quit(t);
    if (!gr_world_check(t->world))
        finish_parcels(t);
    gr_team_part(t);
    stop_helpers(t);
    dismantle(team);
    if (own)
        own->api->close(&own);
}
