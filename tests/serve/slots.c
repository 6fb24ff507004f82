/* Slots: what is restored goes on as the text alone does, or is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "world.h"

TestSuite(slots, .timeout = 120);

enum { OWNER = 5, OTHER = 6 };
static struct client client[8];

struct answer {
    struct gr_slot_result r;
    char message[256];
};

static void on_done(const struct gr_slot_result *r, void *user)
{
    struct answer *a = user;
    a->r = *r;
    cr_expect_eq(!r->status, !r->message);
    snprintf(a->message, sizeof a->message, "%s", r->message ? r->message : "");
}

static struct answer call(const struct world *w, enum gr_slot_op op, uint64_t owner, int32_t slot,
                          const void *data, size_t n)
{
    struct answer a = {.r.status = -1};
    struct gr_slot_call c = {op, owner, slot, data, n, NULL, on_done, &a};
    cr_assert_eq(gr_scheduler_slot(w->scheduler, &c), 0);
    gr_scheduler_step(w->scheduler);
    cr_assert_neq(a.r.status, -1);
    return a;
}

static void ask(const struct world *w, struct client *c, uint64_t owner, int32_t slot)
{
    struct gr_request r = request_of(w, c);
    r.owner = owner, r.slot = slot;
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
    run(w);
}

/* The text of a client, and more. */
static void make_next(const struct world *w, struct client *c, const struct client *of,
                      struct gr_rng *rng, int32_t more)
{
    make_client(w, c, rng, of->n_prompt + of->n + more);
    memcpy(c->prompt, of->prompt, (size_t)of->n_prompt * sizeof *c->prompt);
    memcpy(c->prompt + of->n_prompt, of->token, (size_t)of->n * sizeof *c->prompt);
}

static const char *const archs[] = {"llama", "gemma3", "mamba", "jamba"};

/* In another server, and behind a text that has gone on from it. */
Test(slots, saved_and_restored)
{
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf");
        tiny_write_arch(archs[a], path);
        struct world w = open_world(path, 2, 1024), v = open_world(path, 1, 512);
        struct gr_rng rng = gr_rng_new(80);
        make_client(&w, &client[0], &rng, 150);
        client[0].seed = ENDLESS;
        ask(&w, &client[0], OWNER, 1);
        struct answer saved = call(&w, GR_SLOT_SAVE, OWNER, 1, NULL, 0);
        cr_assert_eq(saved.r.status, 0, "%s", saved.message);
        cr_expect_eq(saved.r.n_token, 150 + client[0].n - 1);
        struct answer back = call(&v, GR_SLOT_RESTORE, OWNER, 1, saved.r.data, saved.r.n);
        cr_assert_eq(back.r.status, 0, "%s", back.message);
        cr_expect_eq(back.r.n_token, saved.r.n_token);
        struct answer again = call(&v, GR_SLOT_SAVE, OWNER, 1, NULL, 0);
        cr_assert_eq(again.r.n, saved.r.n);
        cr_expect(!memcmp(again.r.data, saved.r.data, saved.r.n), "%s", archs[a]);
        make_next(&v, &client[1], &client[0], &rng, 9);
        ask(&v, &client[1], OWNER, 0);
        cr_expect_eq(client[1].result.n_cached, saved.r.n_token, "%s", archs[a]);
        check_alone(&v, &client[1], archs[a]);
        make_next(&v, &client[2], &client[0], &rng, 7);
        ask(&v, &client[2], OTHER, 0);
        cr_expect_eq(client[2].result.n_cached, 0);
        gr_state_free(again.r.data);
        again = call(&v, GR_SLOT_SAVE, OWNER, 1, NULL, 0); /* client 1 has gone on from it */
        if (!v.p.whole) {
            cr_assert_eq(again.r.status, 0, "%s", again.message);
            cr_expect_eq(again.r.n_token, saved.r.n_token);
        }
        gr_state_free(saved.r.data);
        gr_state_free(again.r.data);
        close_world(&w);
        close_world(&v);
    }
}

/* A slot belongs to its owner, and has the last text that named it. */
Test(slots, whose_text)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(81);
    for (int i = 0; i < 3; i++) {
        make_client(&w, &client[i], &rng, 40 + 10 * i);
        ask(&w, &client[i], OWNER, i ? 2 : 1);
    }
    struct answer a = call(&w, GR_SLOT_SAVE, OTHER, 1, NULL, 0);
    cr_expect_eq(a.r.status, GR_E_INVALID);
    cr_expect_str_eq(a.message, "the slot has no text");
    a = call(&w, GR_SLOT_SAVE, OWNER, 2, NULL, 0);
    cr_expect_eq(a.r.n_token, client[2].n_prompt + client[2].n - 1);
    struct answer b = call(&w, GR_SLOT_RESTORE, OTHER, 1, a.r.data, a.r.n);
    cr_expect_eq(b.r.status, GR_E_INVALID);
    cr_expect_str_eq(b.message, "it belongs to another key");
    gr_state_free(a.r.data);
    a = call(&w, GR_SLOT_ERASE, OTHER, 1, NULL, 0);
    cr_expect(!a.r.status && !a.r.n_token);
    uint32_t used = gr_kv_used(w.session);
    a = call(&w, GR_SLOT_ERASE, OWNER, 1, NULL, 0);
    cr_expect(!a.r.status && a.r.n_token == client[0].n_prompt + client[0].n - 1);
    cr_expect_eq(gr_kv_used(w.session), used - (uint32_t)a.r.n_token);
    a = call(&w, GR_SLOT_ERASE, OWNER, 1, NULL, 0);
    cr_expect(!a.r.status && !a.r.n_token);
    cr_expect_eq(call(&w, GR_SLOT_SAVE, OWNER, 1, NULL, 0).r.status, GR_E_INVALID);
    close_world(&w);
}

/* Any damage, a state of no slot, another model, too few cells: refused, and the next one works. */
Test(slots, what_is_refused)
{
    struct world w = open_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(82);
    make_client(&w, &client[0], &rng, 300);
    ask(&w, &client[0], OWNER, 1);
    struct answer a = call(&w, GR_SLOT_SAVE, OWNER, 1, NULL, 0), b;
    cr_assert_eq(a.r.status, 0);
    char *copy = malloc(a.r.n);
    for (int i = 0; i < 60; i++) {
        size_t n = i % 4 ? a.r.n : (size_t)gr_rng_below(&rng, (uint32_t)a.r.n);
        memcpy(copy, a.r.data, a.r.n);
        if (i % 4)
            copy[gr_rng_below(&rng, (uint32_t)a.r.n)] ^= (char)(1 << i % 8);
        b = call(&w, GR_SLOT_RESTORE, OWNER, 2, copy, n);
        if (b.r.status) /* padding is not part of it */
            cr_expect(*b.message, "%d", i);
        else
            cr_expect_eq(b.r.n_token, a.r.n_token);
    }
    memset(copy, 0, a.r.n);
    cr_expect_neq(call(&w, GR_SLOT_RESTORE, OWNER, 2, copy, a.r.n).r.status, 0);
    free(copy);
    void *data;
    size_t n;
    cr_assert_eq(gr_state_save(w.session, 0, "note", 4, &data, &n), 0);
    b = call(&w, GR_SLOT_RESTORE, OWNER, 2, data, n);
    cr_expect_eq(b.r.status, GR_E_INVALID);
    cr_expect_str_eq(b.message, "it is a saved state, but of no slot");
    gr_state_free(data);
    b = call(&w, GR_SLOT_RESTORE, OWNER, 2, a.r.data, a.r.n);
    cr_expect_eq(b.r.status, 0, "%s", b.message);
    close_world(&w);
    w = open_world(tiny_model(false), 1, 256);
    cr_expect_eq(call(&w, GR_SLOT_RESTORE, OWNER, 1, a.r.data, a.r.n).r.status, GR_E_KV_FULL);
    cr_expect_eq(gr_kv_used(w.session), 0);
    close_world(&w);
    const char *path = tiny_path("model.gguf");
    tiny_write_arch("gemma3", path);
    w = open_world(path, 1, 512);
    b = call(&w, GR_SLOT_RESTORE, OWNER, 1, a.r.data, a.r.n);
    cr_expect_neq(b.r.status, 0);
    cr_expect_eq(gr_kv_used(w.session), 0);
    gr_state_free(a.r.data);
    close_world(&w);
}

/* A text with moved cells is not what it is alone: it is not saved, and erased as others are. */
Test(slots, moved_cells)
{
    struct world w = load_world(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(83);
    w.p.spare = true;
    start_world(&w);
    make_client(&w, &client[0], &rng, 150);
    ask(&w, &client[0], OWNER, 1);
    make_client(&w, &client[1], &rng, 120);
    memcpy(client[1].prompt + 20, client[0].prompt + 50, 80 * sizeof *client[1].prompt);
    struct gr_request r = request_of(&w, &client[1]);
    r.owner = OWNER, r.slot = 2, r.reuse = 32;
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[1].id), 0);
    run(&w);
    cr_expect_eq(client[1].result.n_cached, 80);
    struct answer a = call(&w, GR_SLOT_SAVE, OWNER, 2, NULL, 0);
    cr_expect_eq(a.r.status, GR_E_INVALID);
    cr_expect(*a.message);
    gr_state_free(a.r.data);
    a = call(&w, GR_SLOT_ERASE, OWNER, 2, NULL, 0);
    cr_expect_eq(a.r.n_token, client[1].n_prompt + client[1].n - 1);
    close_world(&w);
}

/* A text that is cancelled as it waits again is the one of its slot, though not in the cache. */
Test(slots, preempted)
{
    struct world w = open_world(tiny_model(false), 2, 256);
    struct gr_rng rng = gr_rng_new(84);
    for (int i = 0; i < 2; i++) {
        make_client(&w, &client[i], &rng, 40);
        client[i].n_predict = 200, client[i].seed = ENDLESS;
        struct gr_request r = request_of(&w, &client[i]);
        r.owner = OWNER, r.slot = i + 1;
        cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[i].id), 0);
    }
    while (!gr_scheduler_stats(w.scheduler).n_preempted)
        cr_assert(gr_scheduler_step(w.scheduler));
    gr_scheduler_cancel(w.scheduler, client[1].id);
    gr_scheduler_step(w.scheduler);
    cr_expect_eq(client[1].result.end, GR_FINISH_CANCELLED);
    struct answer a = call(&w, GR_SLOT_SAVE, OWNER, 2, NULL, 0);
    cr_expect_eq(a.r.status, GR_E_INVALID);
    cr_expect(strstr(a.message, "left the cache"), "%s", a.message);
    run(&w);
    close_world(&w);
}
