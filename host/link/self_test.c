#include "link/self_test.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "gr/backend.h"
#include "link/link_impl.h"

/* Time for a link: enough rounds for a good figure. Threads only copy memory and need less. */
#define BUDGET_NS (15 * (int64_t)1000000)
#define BUDGET_THREADS_NS (2 * (int64_t)1000000)
#define PATH_NS (2 * (int64_t)1000000000) /* time limit of a body by a transport */
#define MAX_ROUND 16

const size_t gr_link_sizes[GR_LINK_SIZES] = {8, 8192, 1 << 20};
#define LONGEST ((size_t)1 << 20)

/* Messages of the test. From the sender, frame.session is the path and frame.hash the checksum of
 * the body. */
enum kind {
    KIND_PING = 0x7279, /* no body: measures the time of an answer */
    KIND_LOOK,          /* a body to be verified */
    KIND_TIME,          /* a body to be timed */
    KIND_END,
    KIND_ANSWER, /* from the receiver, to each of these; status: 0 or a failure */
    KIND_LIST    /* from the receiver: the results of its own and of later links */
};

/* A side of a link under test. */
struct side {
    struct gr_world *world;
    struct gr_chain_end *end;
    struct gr_port back; /* the link in the other direction */
    unsigned char *host; /* [LONGEST] bytes sent or received */
    void *device;        /* [LONGEST] memory of the device of the current path */
    struct gr_backend *backend;
    int64_t deadline_ns;
};

static bool is_transport(const struct side *s, int path)
{
    return path < s->end->n_path;
}

static bool is_threads(const struct gr_world *w)
{
    return strcmp(w->api->name, "threads") == 0;
}

/* Name of a path. */
static void path_name(const struct side *s, int path, char *buf, size_t n)
{
    if (is_transport(s, path))
        snprintf(buf, n, "%s", s->end->paths[path].transport->via);
    else
        snprintf(buf, n, "%s (host memory)", s->world->api->name);
}

static void free_device(struct side *s)
{
    if (s->device)
        s->backend->api->free(s->backend, s->device);
    s->device = NULL, s->backend = NULL;
}

/* Allocates memory on the device of a path, freeing that of the previous one. */
static int use_path(struct side *s, int path)
{
    free_device(s);
    if (!is_transport(s, path))
        return 0;
    s->backend = s->end->paths[path].backend;
    s->device = s->backend->api->alloc(s->backend, LONGEST);
    return s->device ? 0 : gr_error_status();
}

static void fill(unsigned char *p, size_t n, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < n; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(p + i, &x, 8);
    }
}

/* ---- the sender ---- */

/* Sends a header, and the body by its path, and waits for the answer: *status. */
static int ask(struct side *s, enum kind kind, int path, size_t n, int *status)
{
    struct gr_port *port = s->end->port;
    struct gr_frame answer = {0};
    bool transport = is_transport(s, path);
    struct gr_frame_out o = {.frame = {.kind = kind, .session = (uint32_t)path, .n = n}};
    o.frame.hash = kind == KIND_LOOK ? XXH3_64bits(s->host, n) : 0;
    int rc = gr_frame_send(port, &o, transport || !n ? NULL : s->host);
    if (!rc && transport && n) {
        /* A failure here is one of the path: the other side answers that nothing has come. */
        struct gr_transport_span span = {s->device, n};
        const struct gr_path *p = &s->end->paths[path];
        if (p->transport->api->send(p->transport, p->backend, &span, 1, gr_now_ns() + PATH_NS))
            gr_log(GR_LOG_DEBUG, "link test: %s", gr_error());
    }
    if (!rc)
        rc = gr_frame_recv(&s->back, &answer, s->deadline_ns);
    if (!rc)
        rc = gr_frame_sent(port, &o, s->deadline_ns);
    if (!rc && answer.kind != KIND_ANSWER)
        rc = gr_fail(GR_E_PEER_LOST, "link test: rank %d gave an answer of kind %u",
                     gr_link_other(port->link), answer.kind);
    *status = rc ? rc : answer.status;
    return rc;
}

/* Measures the shortest time of some rounds. *status: of the first round that failed. */
static int shortest(struct side *s, enum kind kind, int path, size_t n, int64_t until_ns,
                    double *seconds, int *status)
{
    int rc = 0;
    *seconds = 1e9, *status = 0;
    for (int round = 0; round < MAX_ROUND && !rc && !*status; round++) {
        int64_t start = gr_now_ns();
        if (round && start > until_ns)
            break;
        rc = ask(s, kind, path, n, status);
        *seconds = GR_MIN(*seconds, gr_seconds_since(start));
    }
    return rc;
}

static int try_sizes(struct side *s, int path, struct gr_link_result *found, int *status)
{
    double answer, seconds = 0;
    int64_t start = gr_now_ns(), budget = is_threads(s->world) ? BUDGET_THREADS_NS : BUDGET_NS;
    int rc = shortest(s, KIND_PING, path, 0, start + budget / 8, &answer, status);
    for (int i = 0; i < GR_LINK_SIZES && !rc && !*status; i++) {
        size_t n = gr_link_sizes[i];
        fill(s->host, n, (uint64_t)(path * GR_LINK_SIZES + i));
        if (s->device && ((rc = s->backend->api->upload(s->backend, s->device, s->host, n)) != 0 ||
                          (rc = s->backend->api->sync(s->backend)) != 0))
            return rc;
        rc = ask(s, KIND_LOOK, path, n, status);
        if (!rc && !*status)
            rc = shortest(s, KIND_TIME, path, n, start + budget * (i + 2) / 4, &seconds, status);
        if (!rc && !*status)
            found->seconds[i] = seconds - GR_MIN(answer, seconds) / 2;
    }
    if (!rc && !*status)
        found->bytes_per_s = (double)LONGEST / found->seconds[GR_LINK_SIZES - 1];
    return rc;
}

/* Tries all paths to the next rank until one works. */
static int try_out(struct side *s, struct gr_link_result *found)
{
    int path = 0, status = 0, rc;
    char name[64];
    for (;; path++) {
        rc = use_path(s, path);
        if (!rc)
            rc = try_sizes(s, path, found, &status);
        path_name(s, path, name, sizeof name);
        if (rc || !status || !is_transport(s, path))
            break;
        gr_log(GR_LOG_WARN, "link %d -> %d: %s does not bring what was sent: the next way is taken",
               found->from, found->to, name);
    }
    snprintf(found->name, sizeof found->name, "%s", name);
    s->end->chosen = path;
    int over, ended = rc == GR_E_PEER_LOST ? 0 : ask(s, KIND_END, path, 0, &over);
    if (rc || !status)
        return rc ? rc : ended;
    return gr_fail(GR_E_PEER_LOST,
                   "link %d -> %d: %s brings other bytes than were sent: look at the network and "
                   "the memory of both machines",
                   found->from, found->to, name);
}

/* ---- the receiver ---- */

static int take_transport(struct side *s, const struct gr_frame *f)
{
    const struct gr_path *p = &s->end->paths[f->session];
    struct gr_transport_span span = {s->device, f->n};
    int64_t until = GR_MIN(s->deadline_ns, gr_now_ns() + PATH_NS);
    int rc = p->transport->api->recv(p->transport, p->backend, &span, 1, until);
    if (!rc)
        rc = p->transport->api->wait(p->transport, until);
    if (!rc && f->kind == KIND_LOOK)
        rc = p->backend->api->download(p->backend, s->host, s->device, f->n);
    return rc ? rc : f->kind == KIND_LOOK ? p->backend->api->sync(p->backend) : 0;
}

/* Receives the body that a frame announces. *status: 0, or a failure of the path or wrong bytes;
 * a failure of the link itself is returned. */
static int take_body(struct side *s, const struct gr_frame *f, int *status)
{
    int rc = 0;
    *status = 0;
    if (f->n > LONGEST)
        return gr_link_too_long(s->end->port->link, f->n, LONGEST);
    if (f->n && is_transport(s, (int)f->session))
        *status = take_transport(s, f);
    else if (f->n)
        rc = gr_frame_body(s->end->port, f, s->host, LONGEST, s->deadline_ns);
    if (!rc && !*status && f->kind == KIND_LOOK && XXH3_64bits(s->host, f->n) != f->hash)
        *status = GR_E_CHECK;
    return rc;
}

static int answer(struct side *s, int status)
{
    struct gr_frame_out o = {.frame = {.kind = KIND_ANSWER, .status = status}};
    int rc = gr_frame_send(&s->back, &o, NULL);
    return rc ? rc : gr_frame_sent(&s->back, &o, s->deadline_ns);
}

static int try_in(struct side *s)
{
    int path = -1, status = 0, rc = 0;
    struct gr_frame f = {0};
    while (!rc && f.kind != KIND_END) {
        rc = gr_frame_recv(s->end->port, &f, s->deadline_ns);
        if (!rc &&
            (f.kind < KIND_PING || f.kind > KIND_END || f.session > (uint32_t)s->end->n_path))
            rc = gr_fail(GR_E_PEER_LOST, "link test: rank %d says %u of way %u",
                         gr_link_other(s->end->port->link), f.kind, f.session);
        if (!rc && path != (int)f.session)
            rc = use_path(s, path = (int)f.session);
        if (!rc)
            rc = take_body(s, &f, &status);
        if (!rc)
            rc = answer(s, status);
    }
    s->end->chosen = path;
    return rc;
}

/* ---- results, passed back to the first rank ---- */

static int pass_back(struct side *in, struct side *out, struct gr_link_result *found, int *n)
{
    int rc = 0;
    struct gr_frame f = {0};
    if (out->end->port) {
        rc = gr_frame_recv(&out->back, &f, out->deadline_ns);
        if (!rc && (f.kind != KIND_LIST || f.n % sizeof *found))
            rc = gr_fail(GR_E_PEER_LOST, "link test: rank %d sent no list",
                         gr_link_other(out->end->port->link));
        if (!rc)
            rc = gr_frame_body(&out->back, &f, found + 1,
                               (size_t)(out->world->n_rank - 1) * sizeof *found, out->deadline_ns);
        *n = 1 + (int)(f.n / sizeof *found);
    }
    if (rc || !in->end->port)
        return rc;
    struct gr_frame_out o = {.frame = {.kind = KIND_LIST, .n = (size_t)*n * sizeof *found}};
    rc = gr_frame_send(&in->back, &o, found);
    return rc ? rc : gr_frame_sent(&in->back, &o, in->deadline_ns);
}

const char *gr_link_result_text(const struct gr_link_result *f, char *buf, size_t n)
{
    snprintf(buf, n, "link %d -> %d: %s, %.1f us, %.2f GB/s", f->from, f->to, f->name,
             f->seconds[0] * 1e6, f->bytes_per_s * 1e-9);
    return buf;
}

/* Logs a line about all links of a chain, and for debugging one about each link. */
static void say_found(const struct gr_link_result *found, int n, enum gr_log_level level)
{
    char line[160], names[80] = "";
    double s[2] = {found->seconds[0], found->seconds[0]};
    double rate[2] = {found->bytes_per_s, found->bytes_per_s};
    for (int i = 0; i < n; i++) {
        const struct gr_link_result *f = &found[i];
        gr_log(n > 1 ? GR_LOG_DEBUG : level, "%s", gr_link_result_text(f, line, sizeof line));
        s[0] = GR_MIN(s[0], f->seconds[0]), s[1] = GR_MAX(s[1], f->seconds[0]);
        rate[0] = GR_MIN(rate[0], f->bytes_per_s), rate[1] = GR_MAX(rate[1], f->bytes_per_s);
        size_t at = strlen(names);
        if (!strstr(names, f->name))
            snprintf(names + at, sizeof names - at, "%s%s", at ? " or " : "", f->name);
    }
    if (n > 1)
        gr_log(level, "links %d -> %d: %s, %.1f to %.1f us, %.2f to %.2f GB/s", found[0].from,
               found[n - 1].to, names, s[0] * 1e6, s[1] * 1e6, rate[0] * 1e-9, rate[1] * 1e-9);
}

/* ---- both ---- */

static int open_side(struct side *s, struct gr_world *w, struct gr_chain_end *end,
                     int64_t deadline_ns)
{
    *s = (struct side){.world = w, .end = end, .deadline_ns = deadline_ns};
    if (!end->port)
        return 0;
    const struct gr_link *l = end->port->link;
    s->host = gr_calloc(LONGEST, 1);
    return s->host ? gr_world_link(w, l->lane, l->to, l->from, &s->back.link) : GR_E_NOMEM_HOST;
}

static void close_side(struct side *s)
{
    free_device(s);
    gr_link_close(&s->back.link);
    gr_free(s->host);
}

/* This rank's position in its chain; ranks at even positions send first. */
static int32_t place_of(const struct gr_world *w, const struct gr_chain_end *in,
                        const struct gr_chain_end *out)
{
    if (!in->port && !out->port)
        return 0;
    return w->rank / (in->port ? w->rank - in->port->link->from : out->port->link->to - w->rank);
}

int gr_chain_try(struct gr_world *w, struct gr_chain_end *in, struct gr_chain_end *out,
                 int64_t deadline_ns, struct gr_link_result *found, int *n_found)
{
    struct side from, to = {0};
    bool sends_first = place_of(w, in, out) % 2 == 0;
    *n_found = 0;
    int rc = open_side(&from, w, in, deadline_ns);
    if (!rc)
        rc = open_side(&to, w, out, deadline_ns);
    if (out->port)
        found[0] = (struct gr_link_result){.from = w->rank, .to = out->port->link->to};
    if (!rc && !sends_first && in->port)
        rc = try_in(&from);
    if (!rc && out->port)
        rc = try_out(&to, &found[0]);
    if (!rc && sends_first && in->port)
        rc = try_in(&from);
    if (!rc)
        rc = pass_back(&from, &to, found, n_found);
    if (!rc && *n_found > 0 && !in->port)
        say_found(found, *n_found, w->rank == 0 ? GR_LOG_INFO : GR_LOG_DEBUG);
    close_side(&from), close_side(&to);
    return rc;
}
