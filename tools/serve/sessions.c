/* Sessions: /sessions and what is below. */
#include "sessions.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "fields.h"
#include "server.h"
#include "text.h"
#include "tools/cli/flags.h"

struct gr_chat_session {
    struct gr_server *server;
    char id[40];
    uint64_t owner, number; /* number: at the scheduler */
    int32_t n;              /* tokens of its text */
    int64_t used;           /* under the lock: when, monotonic, in ns */
    bool busy;              /* under the lock: has a request or a change */
    struct gr_chat_session *next;
};

struct gr_sessions {
    pthread_mutex_t lock;
    struct gr_chat_session *all;
};

int gr_sessions_new(struct gr_sessions **out)
{
    *out = calloc(1, sizeof **out);
    if (*out)
        pthread_mutex_init(&(*out)->lock, NULL);
    return *out ? 0 : GR_E_NOMEM_HOST;
}

void gr_sessions_free(struct gr_sessions **s)
{
    struct gr_chat_session *next;
    if (!*s)
        return;
    for (struct gr_chat_session *c = (*s)->all; c; c = next) {
        next = c->next;
        free(c);
    }
    pthread_mutex_destroy(&(*s)->lock);
    free(*s);
    *s = NULL;
}

/* ---- the list ---- */

/* Makes a session that is in no list yet; NULL: no memory. */
static struct gr_chat_session *make(struct gr_server *server, uint64_t owner)
{
    struct gr_chat_session *c = calloc(1, sizeof *c);
    unsigned char random[16];
    if (!c || getrandom(random, sizeof random, 0) != sizeof random) {
        free(c);
        return NULL;
    }
    char *at = c->id + snprintf(c->id, sizeof c->id, "sess-");
    for (size_t i = 0; i < sizeof random; i++)
        at += snprintf(at, 3, "%02x", random[i]);
    c->server = server, c->owner = owner;
    return c;
}

static void insert(struct gr_chat_session *c)
{
    struct gr_sessions *s = c->server->sessions;
    pthread_mutex_lock(&s->lock);
    c->used = gr_serve_now();
    c->next = s->all;
    s->all = c;
    pthread_mutex_unlock(&s->lock);
}

void gr_sessions_expire(struct gr_server *server)
{
    struct gr_sessions *s = server->sessions;
    int64_t ttl = server->options->session_ttl * INT64_C(1000000000), now = gr_serve_now();
    pthread_mutex_lock(&s->lock);
    for (struct gr_chat_session **at = &s->all; ttl && *at;) {
        struct gr_chat_session *c = *at;
        struct gr_conversation_call close = {
            .op = GR_CONVERSATION_CLOSE, .owner = c->owner, .id = c->number};
        if (c->busy || now - c->used < ttl || gr_scheduler_call(server->scheduler, &close)) {
            at = &c->next;
        } else {
            *at = c->next;
            free(c);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

static void drop(struct gr_chat_session *c)
{
    struct gr_sessions *s = c->server->sessions;
    pthread_mutex_lock(&s->lock);
    struct gr_chat_session **at = &s->all;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&s->lock);
    free(c);
}

/* Returns the session that the client names, with the lock; NULL: it has none of this id. */
static struct gr_chat_session *find(const struct gr_exchange *x, const struct gr_sessions *s,
                                    const char *id)
{
    uint64_t owner = gr_exchange_owner(x);
    struct gr_chat_session *c = s->all;
    while (c && (c->owner != owner || strcmp(c->id, id) != 0))
        c = c->next;
    return c;
}

static void refuse_id(struct gr_exchange *x, const char *param)
{
    gr_refuse_as(x, 404, param, "session_not_found",
                 "there is no such session; POST /v1/sessions opens one");
}

/* Takes a session for a request or a change; NULL: refused. */
static struct gr_chat_session *take(struct gr_exchange *x, struct gr_server *server, const char *id,
                                    const char *param)
{
    struct gr_sessions *s = server->sessions;
    gr_sessions_expire(server);
    pthread_mutex_lock(&s->lock);
    struct gr_chat_session *c = find(x, s, id);
    bool busy = c && c->busy;
    if (c)
        c->busy = true;
    pthread_mutex_unlock(&s->lock);
    if (busy)
        gr_refuse_as(x, 409, param, "session_busy",
                     "the session has another request, or is being changed");
    else if (!c)
        refuse_id(x, param);
    return busy ? NULL : c;
}

static void give_back(struct gr_chat_session *c, int32_t n)
{
    pthread_mutex_lock(&c->server->sessions->lock);
    c->n = n >= 0 ? n : c->n;
    c->used = gr_serve_now();
    c->busy = false;
    pthread_mutex_unlock(&c->server->sessions->lock);
}

/* ---- requests that continue a session's text ---- */

bool gr_chat_session_take(struct gr_exchange *x, struct gr_server *server, const json_t *request,
                          struct gr_chat_session **out)
{
    struct gr_fields f = {.object = request};
    const char *id = gr_field_text(&f, "session");
    *out = NULL;
    if (gr_fields_refuse(&f, x))
        return false;
    *out = id ? take(x, server, id, "session") : NULL;
    return !id || *out;
}

uint64_t gr_chat_session_conversation(const struct gr_chat_session *c)
{
    return c->number;
}

int32_t gr_chat_session_length(const struct gr_chat_session *c)
{
    return c->n;
}

void gr_chat_session_return(struct gr_chat_session **c, int32_t n)
{
    give_back(*c, n);
    *c = NULL;
}

/* ---- changes ---- */

/* A change while the scheduler has it. */
struct change {
    struct gr_exchange *x;
    enum gr_conversation_op op;
    struct gr_chat_session *of;   /* NULL: OPEN */
    struct gr_chat_session *made; /* of OPEN and FORK */
    atomic_bool gone;             /* the client has */
};

static void refuse(struct gr_exchange *x, int status, const char *message)
{
    int http = status == GR_E_KV_FULL                                 ? 429
               : status == GR_E_INVALID || status == GR_E_UNSUPPORTED ? 400
               : status == GR_E_CANCELLED || status == GR_E_NOMEM_HOST || status == GR_E_DEVICE ||
                       status == GR_E_PEER_LOST
                   ? 503
                   : 500;
    gr_refuse(x, http, NULL, "%s", message && *message ? message : gr_status_text(status));
}

static json_t *describe(const char *id, int32_t n)
{
    return json_pack("{s:s, s:s, s:i}", "id", id, "object", "session", "n_tokens", n);
}

static json_t *answer_to(const struct change *c, int32_t n)
{
    const struct gr_chat_session *s = c->made ? c->made : c->of;
    return c->op == GR_CONVERSATION_CLOSE ? json_pack("{s:s, s:b}", "id", s->id, "deleted", 1)
                                          : describe(s->id, n);
}

/* Lists the session that was made, or closes it when nobody will learn of it. */
static void keep_made(struct change *c, const struct gr_conversation_result *r)
{
    struct gr_conversation_call close = {
        .op = GR_CONVERSATION_CLOSE, .owner = c->made->owner, .id = r->id};
    c->made->number = r->id, c->made->n = r->n_token;
    if (!r->status && !c->gone) {
        insert(c->made);
        return;
    }
    if (!r->status)
        (void)gr_scheduler_call(c->made->server->scheduler, &close);
    free(c->made);
}

static void on_changed(const struct gr_conversation_result *r, void *user)
{
    struct change *c = user;
    bool changed = !r->status && !c->made;
    json_t *answer = r->status ? NULL : answer_to(c, r->n_token);
    if (changed && c->op == GR_CONVERSATION_CLOSE)
        drop(c->of);
    else if (c->of)
        give_back(c->of, changed ? r->n_token : -1);
    if (c->made)
        keep_made(c, r);
    if (r->status)
        refuse(c->x, r->status, r->message);
    else
        gr_answer_json(c->x, 200, answer);
    free(c);
}

static void on_gone(void *user)
{
    struct change *c = user;
    c->gone = true;
}

/* Has the scheduler change a session that was taken, or open one. */
static void change(struct gr_exchange *x, struct gr_server *server, enum gr_conversation_op op,
                   struct gr_chat_session *of, int32_t lo, int32_t hi)
{
    uint64_t owner = gr_exchange_owner(x);
    bool makes = op == GR_CONVERSATION_OPEN || op == GR_CONVERSATION_FORK;
    struct change *c = malloc(sizeof *c);
    struct gr_chat_session *made = c && makes ? make(server, owner) : NULL;
    struct gr_conversation_call call = {.op = op,
                                        .owner = owner,
                                        .id = of ? of->number : 0,
                                        .lo = lo,
                                        .hi = hi,
                                        .done = on_changed,
                                        .user = c};
    int rc = !c || (makes && !made) ? GR_E_NOMEM_HOST : 0;
    if (!rc) {
        *c = (struct change){.x = x, .op = op, .of = of, .made = made};
        gr_exchange_keep(x, on_gone, c);
        rc = gr_scheduler_call(server->scheduler, &call);
    }
    if (!rc)
        return;
    if (of)
        give_back(of, -1);
    refuse(x, rc, rc == GR_E_CANCELLED ? "the server is shutting down" : NULL);
    free(made);
    free(c);
}

/* ---- handlers ---- */

void gr_serve_session_open(struct gr_exchange *x, void *user)
{
    struct gr_server *s = user;
    if (s->scheduler) {
        gr_sessions_expire(s);
        change(x, s, GR_CONVERSATION_OPEN, NULL, 0, 0);
    } else {
        gr_refuse(x, 501, NULL, "the model generates no texts");
    }
}

void gr_serve_session(struct gr_exchange *x, void *user)
{
    struct gr_sessions *s = ((struct gr_server *)user)->sessions;
    const char *id = gr_exchange_rest(x);
    gr_sessions_expire(user);
    pthread_mutex_lock(&s->lock);
    struct gr_chat_session *c = find(x, s, id);
    int32_t n = c ? c->n : -1;
    if (c)
        c->used = gr_serve_now();
    pthread_mutex_unlock(&s->lock);
    if (n < 0)
        refuse_id(x, NULL);
    else
        gr_answer_json(x, 200, describe(id, n));
}

static void change_named(struct gr_exchange *x, struct gr_server *server,
                         enum gr_conversation_op op)
{
    struct gr_chat_session *c = take(x, server, gr_exchange_rest(x), NULL);
    if (c)
        change(x, server, op, c, 0, 0);
}

void gr_serve_session_close(struct gr_exchange *x, void *user)
{
    change_named(x, user, GR_CONVERSATION_CLOSE);
}

void gr_serve_session_fork(struct gr_exchange *x, void *user)
{
    change_named(x, user, GR_CONVERSATION_FORK);
}

/* Reads a position of a session's text. */
static int32_t position(struct gr_fields *f, const char *name, int32_t lo, int32_t hi)
{
    if (!gr_field(f, name))
        gr_field_wrong(f, name, "%s: a number of tokens from %d to %d is expected", name, lo, hi);
    return (int32_t)gr_field_int(f, name, lo, lo, hi);
}

/* Removes tokens: those of a cut, or all but the first n. */
static void shorten(struct gr_exchange *x, struct gr_server *server, bool back)
{
    json_t *body = gr_read_object(x);
    struct gr_fields f = {.object = body};
    struct gr_chat_session *c = body ? take(x, server, gr_exchange_rest(x), NULL) : NULL;
    if (c) {
        int32_t lo = position(&f, back ? "n" : "lo", 0, c->n);
        int32_t hi = back ? 0 : position(&f, "hi", lo, c->n);
        if (f.wrong)
            give_back(c, -1);
        if (!gr_fields_refuse(&f, x))
            change(x, server, back ? GR_CONVERSATION_BACK : GR_CONVERSATION_CUT, c, lo, hi);
    }
    json_decref(body);
}

void gr_serve_session_cut(struct gr_exchange *x, void *user)
{
    shorten(x, user, false);
}

void gr_serve_session_back(struct gr_exchange *x, void *user)
{
    shorten(x, user, true);
}
