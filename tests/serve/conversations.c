/* Conversations against a session of their own in which the same is done. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "tools/serve/text.h"
#include "world.h"

TestSuite(conversations, .timeout = 120);

enum { N_SEQ = 6, OWNER = 5 };

/* A conversation, and its like in the session: sequence `seq`, whose cells hold the first n_cell of
 * its n tokens. */
struct mirror {
    uint64_t id;
    int32_t seq, n, n_cell;
    int32_t token[2 * MOST_TEXT];
};

static struct client client[MOST_REQUEST];

static void on_done(const struct gr_conversation_result *r, void *user)
{
    *(struct gr_conversation_result *)user = *r;
}

static struct gr_conversation_result call(const struct world *w, enum gr_conversation_op op,
                                          uint64_t id, int32_t lo, int32_t hi)
{
    struct gr_conversation_result r = {.status = -1};
    struct gr_conversation_call c = {
        .op = op, .owner = OWNER, .id = id, .lo = lo, .hi = hi, .done = on_done, .user = &r};
    cr_assert_eq(gr_scheduler_call(w->scheduler, &c), 0);
    gr_scheduler_step(w->scheduler);
    cr_assert_neq(r.status, -1);
    cr_expect_eq(!r.status, !r.message);
    return r;
}

static void submit_to(const struct world *w, struct client *c, uint64_t conversation)
{
    struct gr_request r = request_of(w, c);
    r.owner = OWNER, r.conversation = conversation;
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
}

/* The same in the session; expects the tokens that were said. */
static void mirror_request(const struct world *w, struct gr_session *s, struct mirror *m,
                           const struct client *c, const char *what)
{
    struct gr_sampler *sampler = open_sampler(w, c->seed);
    static int32_t seq[2 * MOST_TEXT];
    int32_t id = -1, i = 0;
    memcpy(m->token + m->n, c->prompt, (size_t)c->n_prompt * sizeof *m->token);
    m->n += c->n_prompt;
    for (int32_t k = 0; k < m->n; k++)
        cr_assert_eq(gr_sampler_accept(sampler, m->token[k]), 0);
    for (; i < c->n_predict && !(id >= 0 && gr_text_is_eog(w->model, id)); i++) {
        for (int32_t k = 0; k < m->n - m->n_cell; k++)
            seq[k] = m->seq;
        struct gr_batch batch = {
            .n_tok = m->n - m->n_cell, .token = m->token + m->n_cell, .seq = seq};
        cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error_message());
        m->n_cell = m->n;
        cr_assert_eq(gr_sampler_pick(sampler, gr_logits(s, -1), &id), 0);
        cr_assert_eq(gr_sampler_accept(sampler, id), 0);
        cr_expect(i < c->n && c->token[i] == id, "%s: token %d is %d, expected %d", what, i,
                  i < c->n ? c->token[i] : -1, id);
        m->token[m->n++] = id;
    }
    cr_expect_eq(c->n, i, "%s: %d tokens, expected %d", what, c->n, i);
    cr_expect_eq(c->result.n_prompt, m->n - i, "%s", what);
    gr_sampler_free(&sampler);
}

/* Removes tokens [lo, hi) in the session; returns a status. */
static int mirror_cut(const struct world *w, struct gr_session *s, struct mirror *m, int32_t lo,
                      int32_t hi)
{
    int rc = 0;
    if (lo < m->n_cell && hi >= m->n_cell)
        rc = gr_kv_seq_rm(s, m->seq, lo, -1);
    else if (hi < m->n_cell && w->p.whole)
        rc = GR_E_UNSUPPORTED;
    else if (hi < m->n_cell)
        rc = gr_kv_seq_dup(s, m->seq, m->seq, hi, -1);
    if (!rc && hi < m->n_cell) {
        int32_t end = gr_kv_seq_pos_max(s, m->seq) + 1;
        rc = gr_kv_seq_add(s, m->seq, end, end, 1); /* learned positions cannot */
        if (!rc)
            rc = gr_kv_seq_rm(s, m->seq, lo, hi);
        if (!rc)
            rc = gr_kv_seq_add(s, m->seq, lo, end, lo - hi);
    }
    if (rc)
        return rc;
    memmove(m->token + lo, m->token + hi, (size_t)(m->n - hi) * sizeof *m->token);
    m->n -= hi - lo;
    m->n_cell = hi <= m->n_cell ? m->n_cell - (hi - lo) : lo < m->n_cell ? lo : m->n_cell;
    return 0;
}

/* Forks a conversation into the one of a place, which is closed if there is one. */
static void fork_to(const struct world *w, struct gr_session *s, const struct mirror *from,
                    struct mirror *to, int32_t seq, const char *what)
{
    if (to->id) {
        cr_expect_eq(call(w, GR_CONVERSATION_CLOSE, to->id, 0, 0).status, 0);
        cr_assert_eq(gr_kv_seq_rm(s, seq, -1, -1), 0);
    }
    struct gr_conversation_result r = call(w, GR_CONVERSATION_FORK, from->id, 0, 0);
    cr_assert_eq(r.status, 0, "%s: %s", what, r.message);
    cr_expect_eq(r.n_token, from->n);
    cr_assert_eq(gr_kv_seq_cp(s, from->seq, seq, -1, -1), 0);
    *to = *from;
    to->id = r.id, to->seq = seq;
}

/* Removes a random part of a conversation's text, or its end. */
static void cut_random(const struct world *w, struct gr_session *s, struct mirror *m, bool end,
                       struct gr_rng *rng, const char *what)
{
    int32_t lo = (int32_t)gr_rng_below(rng, (uint32_t)m->n), hi = m->n;
    if (!end)
        hi = lo + 1 + (int32_t)gr_rng_below(rng, (uint32_t)(m->n - lo));
    struct gr_conversation_result r =
        call(w, end ? GR_CONVERSATION_BACK : GR_CONVERSATION_CUT, m->id, lo, hi);
    int rc = mirror_cut(w, s, m, lo, hi);
    cr_assert_eq(r.status, rc, "%s: %d: %s, expected %d", what, r.status, r.message, rc);
    cr_expect_eq(r.n_token, m->n, "%s", what);
}

/* Conversations that are forked, cut, taken back and go on, beside requests that begin as they
 * do. */
static void random_turns(const struct world *w, const char *what, uint64_t seed)
{
    enum { N = N_SEQ - 2 };
    struct gr_session *s = open_session(w, 4096, N);
    static struct mirror m[N];
    struct gr_rng rng = gr_rng_new(seed);
    memset(m, 0, sizeof m);
    m[0].id = call(w, GR_CONVERSATION_OPEN, 0, 0, 0).id;
    for (int k = 0; k < 80; k++) {
        struct client *c = &client[0], *beside = &client[1];
        int from = (int)gr_rng_below(&rng, N), to = (int)gr_rng_below(&rng, N);
        from = m[from].id ? from : 0;
        if (from != to && gr_rng_below(&rng, 2))
            fork_to(w, s, &m[from], &m[to], to, what);
        struct mirror *a = &m[from];
        if (a->n > 1 && gr_rng_below(&rng, 2))
            cut_random(w, s, a, a->n > MOST_TEXT - 60 || !gr_rng_below(&rng, 4), &rng, what);
        if (a->n > MOST_TEXT - 60)
            continue;
        beside->n_result = 0;
        if (gr_rng_below(&rng, 2)) { /* one that begins as the conversation does */
            make_client(w, beside, &rng, (a->n < 300 ? a->n : 300) + 8);
            memcpy(beside->prompt, a->token, (size_t)(beside->n_prompt - 8) * sizeof *a->token);
            submit_to(w, beside, 0);
        }
        make_client(w, c, &rng, 1 + (int32_t)gr_rng_below(&rng, 40));
        submit_to(w, c, a->id);
        run(w);
        mirror_request(w, s, a, c, what);
        if (beside->n_result)
            check_alone(w, beside, what);
    }
    gr_session_close(&s);
}

Test(conversations, against_a_session)
{
    static const char *const archs[] = {"llama", "gemma3", "mamba", "jamba", "gpt2"};
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf");
        tiny_write_arch(archs[a], path);
        struct world w = load_world(path, 2, 4096);
        w.p.n_seq = N_SEQ + 2;
        start_world(&w);
        random_turns(&w, archs[a], 40 + a);
        gr_scheduler_step(w.scheduler);
        cr_expect_eq(gr_scheduler_stats(w.scheduler).n_failed, 0);
        close_world(&w);
    }
}

/* Few cells: requests beside them are stopped and evicted, conversations are not. */
Test(conversations, cells_stay)
{
    struct world w = open_world(tiny_model(false), 4, 512);
    struct gr_rng rng = gr_rng_new(50);
    uint64_t id = call(&w, GR_CONVERSATION_OPEN, 0, 0, 0).id;
    struct client *c = &client[0];
    make_client(&w, c, &rng, 100);
    c->n_predict = 0; /* a conversation of given tokens */
    submit_to(&w, c, id);
    run(&w);
    cr_expect(c->result.end == GR_FINISH_LENGTH && !c->n);
    for (int i = 1; i < 9; i++) {
        make_client(&w, &client[i], &rng, 100 + 20 * i);
        submit(&w, &client[i]);
    }
    run(&w);
    for (int i = 1; i < 9; i++)
        check_alone(&w, &client[i], "beside a conversation");
    struct client next;
    make_client(&w, &next, &rng, 3);
    submit_to(&w, &next, id);
    run(&w);
    cr_expect_eq(next.result.n_cached, 100);
    cr_expect_eq(next.result.n_prompt, 103);
    make_client(&w, &next, &rng, 100);
    submit_to(&w, &next, id);
    run(&w); /* it has more than 200 of the 512 cells */
    make_client(&w, &client[1], &rng, 350);
    make_client(&w, &client[2], &rng, 280);
    client[2].n_predict = 100, client[2].seed = ENDLESS;
    for (int i = 1; i < 3; i++) {
        submit(&w, &client[i]);
        run(&w);
    }
    cr_expect_eq(client[1].result.end, GR_FINISH_FAILED);
    cr_expect_eq(client[1].result.status, GR_E_KV_FULL);
    cr_expect_eq(client[2].result.end, GR_FINISH_LENGTH);
    cr_expect(client[2].n > 0 && client[2].n < 40, "%d tokens", client[2].n);
    cr_expect_eq(call(&w, GR_CONVERSATION_BACK, id, 5, 0).n_token, 5);
    client[1].n_result = 0;
    submit(&w, &client[1]);
    run(&w);
    check_alone(&w, &client[1], "as cells are left");
    close_world(&w);
}

/* Reasons are those of the request, not of what has failed before in the same thread. */
Test(conversations, reasons_are_their_own)
{
    struct world w = load_world(tiny_model(false), 1, 256);
    struct gr_rng rng = gr_rng_new(52);
    w.p.n_ctx = 256;
    start_world(&w);
    uint64_t id = call(&w, GR_CONVERSATION_OPEN, 0, 0, 0).id;
    struct client *c = &client[0];
    make_client(&w, c, &rng, 255);
    c->n_predict = 0;
    submit_to(&w, c, id);
    run(&w);
    cr_expect_eq(c->result.end, GR_FINISH_LENGTH);
    (void)gr_fail(GR_E_UNSUPPORTED, "secret");
    struct gr_conversation_result r = call(&w, GR_CONVERSATION_CUT, id, 253, 254);
    cr_expect_eq(r.status, GR_E_UNSUPPORTED);
    cr_expect(r.message && strstr(r.message, "end of the context"), "%s", r.message);
    cr_expect_str_eq(gr_failure_text(GR_E_UNSUPPORTED), "secret");
    cr_expect_str_eq(gr_failure_text(GR_E_NOMEM_HOST), gr_status_text(GR_E_NOMEM_HOST));
    close_world(&w);
}

Test(conversations, refused)
{
    struct world w = open_world(tiny_model(false), 2, 1024); /* 4 sequences: two conversations */
    struct gr_rng rng = gr_rng_new(51);
    struct gr_conversation_result r = call(&w, GR_CONVERSATION_OPEN, 0, 0, 0);
    uint64_t id = r.id;
    cr_expect_eq(r.status, 0);
    cr_expect_eq(call(&w, GR_CONVERSATION_CUT, id + 1, 0, 0).status, GR_E_INVALID);
    make_client(&w, &client[0], &rng, 20);
    client[1] = client[2] = client[3] = client[0];
    submit_to(&w, &client[0], id);
    submit_to(&w, &client[1], id);     /* the first one has not ended */
    submit_to(&w, &client[2], id + 7); /* there is none */
    gr_scheduler_step(w.scheduler);
    cr_expect_eq(call(&w, GR_CONVERSATION_FORK, id, 0, 0).status, GR_E_INVALID);
    struct gr_request other = request_of(&w, &client[3]); /* another's */
    other.conversation = id, other.owner = OWNER + 1;
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &other, &client[3].id), 0);
    run(&w);
    for (int i = 0; i < 4; i++) {
        cr_expect_eq(client[i].n_result, 1);
        cr_expect_eq(client[i].result.status, i ? GR_E_INVALID : 0);
    }
    int32_t n = 20 + client[0].n;
    cr_expect_eq(call(&w, GR_CONVERSATION_CUT, id, 5, n + 1).status, GR_E_INVALID);
    cr_expect_eq(call(&w, GR_CONVERSATION_CUT, id, 5, 4).status, GR_E_INVALID);
    cr_expect_eq(call(&w, GR_CONVERSATION_BACK, id, -1, 0).status, GR_E_INVALID);
    cr_expect_eq(call(&w, GR_CONVERSATION_BACK, id, n, 0).n_token, n);
    cr_expect_eq(call(&w, GR_CONVERSATION_FORK, id, 0, 0).status, 0);
    cr_expect_eq(call(&w, GR_CONVERSATION_FORK, id, 0, 0).status, GR_E_KV_FULL);
    cr_expect_eq(call(&w, GR_CONVERSATION_OPEN, 0, 0, 0).status, GR_E_KV_FULL);
    cr_expect_eq(call(&w, GR_CONVERSATION_CLOSE, id, 0, 0).status, 0);
    cr_expect_eq(call(&w, GR_CONVERSATION_CLOSE, id, 0, 0).status, GR_E_INVALID);
    cr_expect_eq(call(&w, GR_CONVERSATION_OPEN, 0, 0, 0).status, 0);
    make_client(&w, &client[4], &rng, MOST_TEXT);
    submit_to(&w, &client[4], id + 1); /* the fork: no room behind it */
    run(&w);
    cr_expect_eq(client[4].result.status, GR_E_TOO_LARGE);
    gr_scheduler_stop(w.scheduler, false);
    struct gr_conversation_call late = {.op = GR_CONVERSATION_OPEN};
    cr_expect_eq(gr_scheduler_call(w.scheduler, &late), GR_E_CANCELLED);
    close_world(&w);
}
