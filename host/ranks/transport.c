/* The transport of a team: which ranks' devices exchange values without host memory, and how it
 * sends the values of a boundary. */
#include "ranks/transport.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/session_devices.h"
#include "gr/status.h"
#include "model/weight_homes.h"
#include "ranks/team.h"

#define JOIN_NS (10 * (int64_t)1000000000) /* time limit for all members to join */
#define PIECE ((size_t)4 << 20)            /* of a ring: three each way are 24 MiB of a device */

/* ---- members ---- */

/* The kind of this rank's device, or NULL: a transport has one device of each member, so a rank
 * with several cannot join. */
static const struct gr_device_kind *kind_of(const struct gr_rank_model *rm)
{
    const struct gr_device_kind *k = rm->devices.n == 1 ? rm->devices.found[0].kind : NULL;
    return k && k->transport_find ? k : NULL;
}

uint32_t gr_team_transports(const struct gr_team *t)
{
    const struct gr_device_kind *k = kind_of(t->rank_model);
    const char *what;
    uint32_t transports = 0;
    for (int i = 0; i < GR_N_TRANSPORT && k; i++)
        if (i == (int)gr_team_transport_kind(t) &&
            k->transport_find((enum gr_transport_kind)i, &what))
            transports |= 1u << i;
    return transports;
}

enum gr_transport_kind gr_team_transport_kind(const struct gr_team *t)
{
    bool copies = t->threads || strcmp(t->world->api->name, "threads") == 0;
    return copies && !gr_team_testing()->nccl ? GR_TRANSPORT_PEER : GR_TRANSPORT_NCCL;
}

/* Returns whether a stage's values arrive at its first device (stage 0 receives none) and leave
 * from it: whether its first and last layers are there. */
static bool on_device(const struct gr_placement *p, int32_t n_layer, int32_t stage)
{
    int32_t first = -1, last = -1;
    for (int32_t i = 0; i <= n_layer; i++)
        if (p->stage[i] == stage) {
            first = first < 0 ? i : first;
            last = i;
        }
    return last >= 0 && p->layer[last] == 1 && (stage == 0 || p->layer[first] == 1);
}

/* Returns whether any two members exchange values: as neighbouring stages, or within a group. */
static bool is_useful(const struct gr_team *t, const uint8_t *member)
{
    int32_t n = t->rank_model->n_shard;
    for (int32_t r = 0; r < t->world->n_rank; r++)
        if (member[r] && ((r + n < t->world->n_rank && member[r + n]) ||
                          (n > 1 && r % n + 1 < n && member[r + 1])))
            return true;
    return false;
}

bool gr_team_choose_transport(const struct gr_team *t, const struct gr_placement *p,
                              uint8_t *member)
{
    uint32_t bit = 1u << gr_team_transport_kind(t);
    if (t->world->wrap) /* a test's wrapped links are to be used */
        return false;
    if (gr_weight_homes_any(t->model, p->n_cpu_experts)) /* values may be on the CPU */
        return false;
    for (int32_t r = 0; r < t->world->n_rank; r++)
        member[r] = (t->transports[r] & bit) &&
                    on_device(p, t->model->hp.n_layer, r / t->rank_model->n_shard);
    return is_useful(t, member);
}

int gr_team_transport_ticket(const struct gr_team *t, struct gr_transport_ticket *ticket)
{
    const struct gr_device_kind *k = kind_of(t->rank_model);
    return (k ? k : &gr_cuda_devices)->transport_ticket(gr_team_transport_kind(t), ticket);
}

/* ---- joining ---- */

static int32_t number_of(const uint8_t *member, int32_t rank, int32_t n_rank)
{
    int32_t n = 0;
    if (rank < 0 || rank >= n_rank || !member[rank])
        return -1;
    for (int32_t r = 0; r < rank; r++)
        n += member[r] != 0;
    return n;
}

/* Size of this rank's group if all its ranks are members, otherwise 0. */
static int32_t group_size(const struct gr_rank_model *rm, const uint8_t *member)
{
    int32_t n = 0;
    for (int32_t i = 0; i < rm->n_shard; i++)
        n += member[rm->stage * rm->n_shard + i] != 0;
    return n == rm->n_shard ? n : 0;
}

static int open_device(struct gr_rank_model *rm)
{
    pthread_mutex_lock(&rm->model->lock);
    int rc = gr_rank_model_open_devices(rm);
    pthread_mutex_unlock(&rm->model->lock);
    return rc;
}

int gr_team_join_transport(struct gr_team *t, const struct gr_command_join *c)
{
    struct gr_rank_model *rm = t->rank_model;
    int32_t n = t->world->n_rank, own = t->world->rank;
    const uint8_t *member = c->member.p;
    struct gr_transport_opt opt = {.kind = gr_team_transport_kind(t),
                                   .piece_bytes = PIECE,
                                   .lost = &t->world->lost,
                                   .deadline_ns = gr_now_ns() + JOIN_NS};
    gr_world_doing(t->world, GR_DOING_LOAD);
    gr_team_leave_transport(t);
    if (c->member.n == 0)
        return 0;
    if (c->member.n != (uint64_t)n || c->ticket.n != sizeof opt.ticket)
        return gr_fail(GR_E_CORRUPT, "command JOIN: no such members");
    memcpy(&opt.ticket, c->ticket.p, sizeof opt.ticket);
    opt.member = number_of(member, own, n);
    if (opt.member < 0)
        return 0;
    for (int32_t r = 0; r < n; r++)
        opt.n_member += member[r] != 0;
    opt.from = number_of(member, own - rm->n_shard, n);
    opt.to = number_of(member, own + rm->n_shard, n);
    opt.first = number_of(member, rm->stage * rm->n_shard, n);
    opt.n_group = group_size(rm, member);
    int rc = open_device(rm);
    if (!rc)
        rc = rm->backend[1]->api->transport_join(rm->backend[1], &opt, &rm->transport);
    if (rc)
        return rc;
    t->path = (struct gr_path){rm->transport, rm->backend[1]};
    t->transport_in = opt.from >= 0, t->transport_out = opt.to >= 0;
    t->transport_gathers = opt.n_group > 1;
    return 0;
}

void gr_team_leave_transport(struct gr_team *t)
{
    struct gr_rank_model *rm = t->rank_model;
    if (!rm->transport)
        return;
    if (gr_world_check(t->world))
        rm->transport->api->abort(rm->transport);
    rm->transport->api->leave(&rm->transport);
    if (rm->tp_group)
        rm->tp_group->transport = NULL;
    t->path = (struct gr_path){NULL, NULL};
    t->transport_in = t->transport_out = t->transport_gathers = false;
}

/* ---- boundaries ---- */

/* Enlarges s->rank->staging, device memory for values that the CPU has. */
static int reserve(struct gr_session *s, size_t bytes)
{
    struct gr_backend *b = s->device[1].backend;
    if (bytes <= s->rank->staging_cap)
        return 0;
    if (s->rank->staging)
        b->api->free(b, s->rank->staging);
    s->rank->staging = b->api->alloc(b, bytes);
    s->rank->staging_cap = s->rank->staging ? bytes : 0;
    return s->rank->staging ? 0 : gr_error_status();
}

/* Lists the device addresses of values in s->rank->span; the CPU's values get theirs in
 * s->rank->staging. */
static int spans_of(struct gr_session *s, const struct gr_plan *p, const struct gr_vec *values)
{
    const uint32_t *v = values->data;
    const struct gr_value *all = p->value.data;
    size_t on_host = 0, at = 0;
    s->rank->span.n = 0;
    for (size_t i = 0; i < values->n; i++)
        on_host += all[v[i]].device ? 0 : (size_t)all[v[i]].bytes;
    int rc = on_host ? reserve(s, on_host) : 0;
    for (size_t i = 0; i < values->n && !rc; i++) {
        struct gr_transport_span span = {NULL, (size_t)all[v[i]].bytes};
        span.p = all[v[i]].device ? gr_session_at(s, p, v[i]) : (char *)s->rank->staging + at;
        at += all[v[i]].device ? 0 : span.bytes;
        rc = gr_vec_append(&s->rank->span, &span, 1, sizeof span);
    }
    return rc;
}

/* Copies the CPU's values to (sends) or from their places in s->rank->staging. */
static int copy_staging(struct gr_session *s, const struct gr_plan *p, const struct gr_vec *values,
                        bool sends)
{
    const uint32_t *v = values->data;
    const struct gr_value *all = p->value.data;
    const struct gr_transport_span *span = s->rank->span.data;
    struct gr_backend *b = s->device[1].backend;
    int rc = 0;
    for (size_t i = 0; i < values->n && !rc; i++) {
        void *host = gr_session_at(s, p, v[i]);
        if (all[v[i]].device)
            continue;
        if (sends)
            rc = b->api->upload(b, span[i].p, host, span[i].bytes);
        else if (!(rc = gr_session_wait_received(s)))
            rc = b->api->download(b, host, span[i].p, span[i].bytes);
    }
    return rc;
}

typedef int pass_fn(struct gr_transport *n, struct gr_backend *b,
                    const struct gr_transport_span *span, int n_span, int64_t deadline_ns);

/* Ends a wait for another rank. A failure of the transport loses a rank: the neighbour if the
 * transport suspects one, otherwise this rank. */
static int resume(struct gr_session *s, int doing, int rc, int32_t neighbour)
{
    gr_world_resume(s->rank->team->world, doing);
    bool known = s->rank_model->transport->suspect >= 0;
    return rc ? gr_team_lose(s->rank->team, known ? neighbour : s->rank_model->rank) : 0;
}

static int pass(struct gr_session *s, pass_fn *fn, int32_t neighbour)
{
    int doing = gr_world_pause(s->rank->team->world);
    int rc = fn(s->rank_model->transport, s->device[1].backend, s->rank->span.data,
                (int)s->rank->span.n, gr_team_deadline());
    return resume(s, doing, rc, neighbour);
}

int gr_transport_receive(struct gr_session *s, const struct gr_plan *p)
{
    int rc = spans_of(s, p, &p->in);
    if (rc)
        return rc;
    gr_session_mark_queued(&s->device[1]);
    s->receiving = true;
    rc = pass(s, s->rank_model->transport->api->recv, s->rank_model->rank - s->rank_model->n_shard);
    return rc ? rc : copy_staging(s, p, &p->in, false);
}

int gr_transport_send(struct gr_session *s, const struct gr_plan *p)
{
    int rc = spans_of(s, p, &p->out);
    if (!rc)
        rc = copy_staging(s, p, &p->out, true);
    if (rc)
        return rc;
    gr_session_mark_queued(&s->device[1]);
    return pass(s, s->rank_model->transport->api->send,
                s->rank_model->rank + s->rank_model->n_shard);
}

int gr_transport_wait_received(struct gr_session *s)
{
    const struct gr_rank_model *rm = s->rank_model;
    struct gr_transport *n = rm->transport;
    int32_t other = rm->stage ? rm->rank - rm->n_shard : (rm->shard + 1) % rm->n_shard;
    if (!n)
        return 0;
    int doing = gr_world_pause(s->rank->team->world);
    int rc = n->api->wait(n, gr_team_deadline());
    return resume(s, doing, rc, other);
}

void gr_transport_fini(struct gr_session *s)
{
    if (s->rank->staging)
        s->device[1].backend->api->free(s->device[1].backend, s->rank->staging);
    gr_vec_fini(&s->rank->span);
}
