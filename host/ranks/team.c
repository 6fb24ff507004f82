#include "ranks/team.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "gr/status.h"

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

/* ---- messages ---- */

/* The port for messages to a rank: commands from rank 0, answers from the others. */
static struct gr_port *port_to(struct gr_team *t, int32_t rank)
{
    return gr_team_is_root(t) ? &t->command[rank] : &t->result[rank];
}

/* Returns whether a message has been sent to all its ranks, and finishes its requests. */
static bool is_sent(struct gr_team *t, struct gr_message *m)
{
    while (m->lo < m->hi && gr_frame_is_sent(port_to(t, m->lo), &m->out[m->lo])) {
        if (gr_frame_sent(port_to(t, m->lo), &m->out[m->lo], INT64_MAX))
            return false;
        m->lo++;
    }
    return m->lo == m->hi;
}

struct gr_message *gr_message_new(struct gr_team *t, int32_t lo, int32_t hi)
{
    struct gr_message **all = t->messages.data, *m = NULL;
    for (size_t i = 0; i < t->messages.n && !m; i++)
        m = is_sent(t, all[i]) ? all[i] : NULL;
    if (!m) {
        size_t out = (size_t)t->world->n_rank * sizeof *m->out;
        m = gr_calloc(1, sizeof *m + out);
        if (m && gr_vec_append(&t->messages, &m, 1, sizeof(struct gr_message *))) {
            gr_free(m);
            m = NULL;
        }
    }
    if (!m)
        return NULL;
    m->bytes.n = 0;
    m->lo = m->hi = lo;
    m->hi = hi;
    memset(m->out + lo, 0, (size_t)(hi - lo) * sizeof *m->out);
    return m;
}

int gr_message_send(struct gr_team *t, struct gr_message *m, const struct gr_frame *frame)
{
    int rc = 0;
    for (int32_t r = m->lo; r < m->hi && !rc; r++) {
        if (r == t->world->rank)
            continue;
        m->out[r].frame = *frame;
        m->out[r].frame.n = m->bytes.n;
        rc = gr_frame_send(port_to(t, r), &m->out[r], m->bytes.data);
    }
    return rc ? gr_team_lose(t, t->world->rank) : 0;
}

int gr_team_receive(struct gr_team *t, struct gr_port *port, int32_t rank, struct gr_frame *frame)
{
    int rc = gr_frame_recv(port, frame, gr_team_deadline());
    if (!rc)
        rc = gr_vec_reserve(&t->body, (size_t)frame->n, 1);
    if (!rc)
        rc = gr_frame_body(port, frame, t->body.data, t->body.cap, gr_team_deadline());
    t->body.n = rc ? 0 : (size_t)frame->n;
    return rc ? gr_team_lose(t, rank) : 0;
}

void gr_message_finish(struct gr_team *t)
{
    struct gr_message **all = t->messages.data;
    for (size_t i = 0; i < t->messages.n; i++)
        for (int32_t r = all[i]->lo; r < all[i]->hi; r++)
            (void)gr_frame_sent(port_to(t, r), &all[i]->out[r], INT64_MAX);
}
