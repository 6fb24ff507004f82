/* Texts with and without an adapter, whose steps take turns. */
#include <criterion/criterion.h>

#include "tests/tools/tiny.h"
#include "world.h"

TestSuite(turns, .timeout = 120);

static struct client client[4];

/* A world with one adapter, of strength 0 unless a request has another. */
static struct world open_turns(int32_t n_active, uint32_t n_cell)
{
    struct world w = load_world(tiny_model(false), n_active, n_cell);
    struct gr_adapter adapter = {.path = tiny_adapter(), .scale = 0};
    struct gr_model_params mp = gr_model_params_default();
    mp.cpu_level = "ref", mp.device = "none", mp.n_gpu_layers = 0;
    mp.adapters = &adapter, mp.n_adapter = 1;
    gr_model_close(&w.model);
    cr_assert_eq(gr_model_open(&w.model, tiny_model(false), &mp), 0, "%s", gr_error_message());
    w.p.model = w.model, w.p.n_adapter = 1;
    start_world(&w);
    return w;
}

static void submit_with(const struct world *w, struct client *c, float strength)
{
    const float strengths[GR_MAX_ADAPTER] = {strength};
    struct gr_request r = request_of(w, c);
    r.adapters = strengths;
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
}

/* Cells run out in the turn of either: the one that is stopped leaves its turn without a text, and
 * the other one goes on to its end. */
Test(turns, the_text_of_the_turn_is_preempted)
{
    for (int k = 0; k < 4; k++) {
        struct world w = open_turns(2, 256);
        struct gr_rng rng = gr_rng_new(90);
        for (int i = 0; i < 2; i++) {
            make_client(&w, &client[i], &rng, 40 + i * k);
            client[i].n_predict = 150, client[i].seed = ENDLESS;
            submit_with(&w, &client[i], i == k % 2 ? 1 : 0);
        }
        run(&w);
        cr_expect_gt(gr_scheduler_stats(w.scheduler).n_preempted, 0);
        for (int i = 0; i < 2; i++)
            cr_expect_eq(client[i].n, 150, "%d: %d has %d", k, i, client[i].n);
        check_alone(&w, &client[!(k % 2)], "without adapter");
        close_world(&w);
    }
}

/* A step that fails ends the texts of its turn. */
Test(turns, a_step_fails)
{
    struct world w = open_turns(2, 512);
    struct gr_rng rng = gr_rng_new(91);
    for (int i = 0; i < 2; i++) {
        make_client(&w, &client[i], &rng, 20);
        client[i].n_predict = 30, client[i].seed = ENDLESS;
        submit_with(&w, &client[i], i ? 1 : 0);
    }
    for (int i = 0; i < 4; i++)
        gr_scheduler_step(w.scheduler);
    planted.status = GR_E_NOMEM_HOST, planted.left = 1;
    run(&w);
    planted.status = 0;
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_failed, 1);
    cr_expect_eq(client[0].result.end == GR_FINISH_FAILED, client[1].n == 30);
    cr_expect_eq(client[1].result.end == GR_FINISH_FAILED, client[0].n == 30);
    close_world(&w);
}
