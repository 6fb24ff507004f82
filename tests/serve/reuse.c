/* Parts of prompts that stand elsewhere in the cache, against a session in which the same cells are
 * moved by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "tests/tools/tiny.h"
#include "tools/serve/chunks.h"
#include "world.h"

TestSuite(reuse, .timeout = 120);

static struct client client[8];

/* n tokens of a prompt: from `from` on of an earlier client's, -1: new ones. */
struct part {
    int32_t of, from, n;
};

static struct world open_spare(const char *path, int32_t n_active, uint32_t n_cell)
{
    struct world w = load_world(path, n_active, n_cell);
    w.p.spare = true;
    start_world(&w);
    return w;
}

static void submit_reuse(const struct world *w, struct client *c, int32_t reuse, uint64_t owner)
{
    struct gr_request r = request_of(w, c);
    r.reuse = reuse, r.owner = owner, r.n_probs = 3;
    cr_assert_eq(gr_scheduler_submit(w->scheduler, &r, &c->id), 0);
}

/* A prompt of parts. The token behind a part is not the one that follows it where it comes from. */
static void make_of(const struct world *w, struct client *c, struct gr_rng *rng,
                    const struct part *part, int n_part)
{
    int32_t n = 0;
    for (int i = 0; i < n_part; i++)
        n += part[i].n;
    make_client(w, c, rng, n);
    c->seed = ENDLESS;
    int32_t *at = c->prompt;
    for (int i = 0; i < n_part; at += part[i++].n) {
        if (part[i].of >= 0)
            memcpy(at, client[part[i].of].prompt + part[i].from, (size_t)part[i].n * sizeof *at);
        const struct part *before = i ? &part[i - 1] : NULL;
        if (before && before->of >= 0 && *at == client[before->of].prompt[before->from + before->n])
            *at = *at == 3 ? 4 : 3;
    }
}

static void decode(struct gr_session *s, const int32_t *token, int32_t n, int32_t seq)
{
    static int32_t seqs[MOST_TEXT];
    for (int32_t i = 0; i < n; i++)
        seqs[i] = seq;
    struct gr_batch batch = {.n_tok = n, .token = token, .seq = seqs};
    cr_assert_eq(gr_decode(s, &batch), 0, "%s", gr_error_message());
}

static double logprob(const float *logits, int32_t n, int32_t id)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)logits[id]);
    return -log(sum);
}

/* The same by hand: sequence `seq` of the session, where those of earlier clients are sequences by
 * their numbers; parts are moved but for the first one, which is shared. */
static void mirror(const struct world *w, struct gr_session *s, const struct client *c, int32_t seq,
                   const struct part *part, int n_part)
{
    enum { SPARE = 7 };
    struct gr_sampler *sampler = open_sampler(w, c->seed);
    int32_t at = 0, id = -1;
    for (int32_t k = 0; k < c->n_prompt; k++)
        cr_assert_eq(gr_sampler_accept(sampler, c->prompt[k]), 0);
    for (int i = 0; i < n_part; at += part[i++].n) {
        int32_t from = part[i].from, end = from + part[i].n;
        if (part[i].of < 0) {
            decode(s, c->prompt + at, part[i].n, seq);
        } else if (!i) {
            cr_assert_eq(gr_kv_seq_cp(s, part[i].of, seq, from, end), 0);
        } else {
            cr_assert_eq(gr_kv_seq_dup(s, part[i].of, SPARE, from, end), 0);
            cr_assert_eq(gr_kv_seq_add(s, SPARE, from, end, at - from), 0);
            cr_assert_eq(gr_kv_seq_cp(s, SPARE, seq, -1, -1), 0);
            cr_assert_eq(gr_kv_seq_rm(s, SPARE, -1, -1), 0);
        }
    }
    for (int32_t i = 0; i < c->n_predict; i++) {
        const float *logits = gr_logits(s, -1);
        cr_assert_eq(gr_sampler_pick(sampler, logits, &id), 0);
        cr_assert_eq(gr_sampler_accept(sampler, id), 0);
        cr_expect(i < c->n && c->token[i] == id, "token %d is %d, expected %d", i,
                  i < c->n ? c->token[i] : -1, id);
        cr_expect_float_eq(c->logprob[i], logprob(logits, w->n_vocab, id), 1e-5, "token %d", i);
        if (i + 1 < c->n_predict)
            decode(s, &id, 1, seq);
    }
    cr_expect_eq(c->n, c->n_predict);
    gr_sampler_free(&sampler);
}

/* Cells that were moved, and those computed behind them, are for texts alone that allow it; a text
 * that does not is what it is alone. */
static void moved_by_hand(const char *arch)
{
    const char *path = tiny_path("model.gguf");
    tiny_write_arch(arch, path);
    struct world w = open_spare(path, 2, 2048);
    struct gr_session *s = open_session(&w, 2048, 8);
    struct gr_rng rng = gr_rng_new(70);
    const struct part first[] = {{-1, 0, 150}};
    /* a beginning, something new, two parts in another order, the last token */
    const struct part second[] = {{0, 0, 20}, {-1, 0, 11}, {0, 90, 40},
                                  {-1, 0, 3}, {0, 35, 33}, {-1, 0, 5}};
    /* all of that, its moved part again, and a part too short */
    const struct part third[] = {{1, 0, 112}, {-1, 0, 2}, {1, 31, 40}, {-1, 0, 4 + 31 + 1}};
    make_of(&w, &client[0], &rng, first, GR_COUNT(first));
    submit_reuse(&w, &client[0], 32, 9);
    run(&w);
    mirror(&w, s, &client[0], 0, first, GR_COUNT(first));
    make_of(&w, &client[1], &rng, second, GR_COUNT(second));
    submit_reuse(&w, &client[1], 32, 9);
    run(&w);
    cr_expect_eq(client[1].result.n_cached, 20 + 40 + 33, "%s: %d", arch,
                 client[1].result.n_cached);
    mirror(&w, s, &client[1], 1, second, GR_COUNT(second));
    make_of(&w, &client[2], &rng, third, GR_COUNT(third));
    memcpy(client[2].prompt + 112 + 2 + 40 + 4, client[0].prompt + 60,
           31 * sizeof *client[2].prompt);
    client[2].prompt[112 + 2 + 40 + 3] = client[0].prompt[59] == 3 ? 4 : 3;
    client[2].prompt[112 + 2 + 40 + 4 + 31] = client[0].prompt[91] == 3 ? 4 : 3;
    submit_reuse(&w, &client[2], 32, 9);
    run(&w);
    cr_expect_eq(client[2].result.n_cached, 112 + 40, "%s: %d", arch, client[2].result.n_cached);
    mirror(&w, s, &client[2], 2, third, GR_COUNT(third));
    cr_expect_eq(gr_scheduler_stats(w.scheduler).n_moved, 40 + 33 + 40);
    client[3] = (struct client){.n_predict = 12, .seed = ENDLESS};
    client[3].n_prompt = client[2].n_prompt;
    memcpy(client[3].prompt, client[2].prompt, sizeof client[3].prompt);
    submit_reuse(&w, &client[3], 0, 9);
    run(&w);
    check_alone(&w, &client[3], arch);
    cr_expect_eq(client[3].result.n_cached, 31, "%d",
                 client[3].result.n_cached); /* up to the moved ones */
    gr_session_close(&s);
    close_world(&w);
}

Test(reuse, cells_moved_by_hand)
{
    moved_by_hand("llama");
    moved_by_hand("gemma3"); /* with windows, which have dropped nothing yet */
}

/* Owners, texts that do not ask for it, and models that cannot: all is computed. */
Test(reuse, only_where_it_is_allowed)
{
    static const char *const archs[] = {"llama", "gpt2", "mamba", "jamba"};
    static const struct part first[] = {{-1, 0, 100}},
                             second[] = {{-1, 0, 10}, {0, 20, 70}, {-1, 0, 9}};
    for (size_t a = 0; a < GR_COUNT(archs); a++) {
        const char *path = tiny_path("model.gguf");
        tiny_write_arch(archs[a], path);
        struct world w = a ? open_world(path, 2, 1024) : open_spare(path, 2, 1024);
        struct gr_rng rng = gr_rng_new(71);
        make_of(&w, &client[0], &rng, first, GR_COUNT(first));
        submit_reuse(&w, &client[0], 16, 9);
        run(&w);
        for (int i = 1; i <= 2; i++) {
            make_of(&w, &client[i], &rng, second, GR_COUNT(second));
            submit_reuse(&w, &client[i], a || i == 1 ? 16 : 0, a || i == 2 ? 9 : 8);
            run(&w);
            cr_expect_eq(client[i].result.n_cached, 0, "%s: %d", archs[a],
                         client[i].result.n_cached);
            check_alone(&w, &client[i], archs[a]);
        }
        close_world(&w);
    }
}

/* Windows that have dropped cells of a part, as others needed them: it is computed. */
Test(reuse, dropped_cells_are_computed)
{
    static const struct part first[] = {{-1, 0, 350}},
                             second[] = {{-1, 0, 10}, {0, 20, 60}, {-1, 0, 9}};
    for (int n_other = 0; n_other <= 4; n_other += 4) {
        const char *path = tiny_path("model.gguf");
        tiny_write_arch("gemma3", path);
        struct world w = load_world(path, 3, 4096);
        struct gr_rng rng = gr_rng_new(72);
        w.p.spare = true;
        w.sp.n_batch = w.sp.n_ubatch = 48;
        start_world(&w);
        for (int i = 0; i <= n_other; i++) {
            make_of(&w, &client[i], &rng, first, GR_COUNT(first));
            submit_reuse(&w, &client[i], 16, 9);
            run(&w);
        }
        make_of(&w, &client[6], &rng, second, GR_COUNT(second));
        submit_reuse(&w, &client[6], 16, 9);
        run(&w);
        cr_expect_eq(client[6].result.n_cached, n_other ? 0 : 60, "%d others: %d", n_other,
                     client[6].result.n_cached);
        w.sp.n_batch = 512;
        if (n_other)
            check_alone(&w, &client[6], "dropped");
        close_world(&w);
    }
}

/* Few cells and several texts at once, some of which are stopped and begin again: all end. */
Test(reuse, few_cells)
{
    struct world w = open_spare(tiny_model(false), 3, 512);
    struct gr_rng rng = gr_rng_new(73);
    static const struct part first[] = {{-1, 0, 120}};
    make_of(&w, &client[0], &rng, first, GR_COUNT(first));
    submit_reuse(&w, &client[0], 20, 9);
    run(&w);
    for (int i = 1; i < 7; i++) {
        int32_t from = (int32_t)gr_rng_below(&rng, 60);
        struct part parts[] = {{-1, 0, 10 + i}, {0, from, 50}, {-1, 0, 7}, {0, 10, 30}, {-1, 0, 5}};
        make_of(&w, &client[i], &rng, parts, GR_COUNT(parts));
        client[i].n_predict = 100;
        submit_reuse(&w, &client[i], 20, 9);
    }
    run(&w);
    for (int i = 1; i < 7; i++) {
        cr_expect_eq(client[i].n_result, 1);
        cr_expect_eq(client[i].result.end, GR_FINISH_LENGTH, "%s", client[i].result.message);
        cr_expect_eq(client[i].n, 100);
    }
    cr_expect_gt(gr_scheduler_stats(w.scheduler).n_preempted, 0);
    cr_expect_gt(gr_scheduler_stats(w.scheduler).n_moved, 0);
    close_world(&w);
}

static void on_opened(const struct gr_conversation_result *r, void *user)
{
    *(uint64_t *)user = r->id;
}

/* The text of a conversation is what it is alone: it does not begin with moved cells. */
Test(reuse, conversations_begin_from_no_moved_cells)
{
    struct world w = open_spare(tiny_model(false), 2, 1024);
    struct gr_rng rng = gr_rng_new(75);
    const struct part first[] = {{-1, 0, 150}};
    const struct part second[] = {{0, 0, 20}, {-1, 0, 11}, {0, 60, 80}, {-1, 0, 5}};
    uint64_t id = 0;
    make_of(&w, &client[0], &rng, first, GR_COUNT(first));
    submit_reuse(&w, &client[0], 32, 9);
    run(&w);
    make_of(&w, &client[1], &rng, second, GR_COUNT(second));
    client[2] = client[1];
    submit_reuse(&w, &client[1], 32, 9);
    run(&w);
    cr_expect_eq(client[1].result.n_cached, 20 + 80);
    struct gr_conversation_call open = {
        .op = GR_CONVERSATION_OPEN, .owner = 9, .done = on_opened, .user = &id};
    cr_assert_eq(gr_scheduler_call(w.scheduler, &open), 0);
    gr_scheduler_step(w.scheduler);
    struct gr_request r = request_of(&w, &client[2]);
    r.reuse = 32, r.owner = 9, r.conversation = id;
    cr_assert_eq(gr_scheduler_submit(w.scheduler, &r, &client[2].id), 0);
    run(&w);
    cr_expect_leq(client[2].result.n_cached, 31);
    check_alone(&w, &client[2], "in a conversation");
    close_world(&w);
}

/* ---- the search ---- */

/* Returns the length of the longest part that begins at token[i] in any sequence of the owner. */
static int32_t longest(const struct gr_prefixes *p, const int32_t *token, int32_t i, int32_t n)
{
    int32_t best = 0;
    for (int32_t k = 0; k < p->n_seq; k++) {
        for (int32_t j = 0; p->seq[k].owner == 1 && j < p->seq[k].usable; j++) {
            int32_t m = 0;
            while (i + m < n && j + m < p->seq[k].usable && token[i + m] == p->seq[k].token[j + m])
                m++;
            best = m > best ? m : best;
        }
    }
    return best;
}

/* All that is found in random texts of few tokens is there; with many tokens, where no two blocks
 * are the same, all is found that is long enough. */
Test(reuse, search)
{
    enum { N_SEQ = 4, N = 120 };
    static int32_t token[N_SEQ + 1][N];
    static uint64_t cell[N_SEQ][N];
    struct gr_prefix seq[N_SEQ];
    struct gr_rng rng = gr_rng_new(74);
    int64_t n_found = 0;
    for (int round = 0; round < 400; round++) {
        uint32_t n_kind = round % 2 ? 5000 : 2 + gr_rng_below(&rng, 30);
        int32_t least = 1 + (int32_t)gr_rng_below(&rng, 24), lo = (int32_t)gr_rng_below(&rng, 5);
        for (int k = 0; k <= N_SEQ; k++) {
            for (int32_t i = 0; i < N; i++)
                token[k][i] = (int32_t)gr_rng_below(&rng, n_kind);
            if (k < N_SEQ) {
                for (int32_t i = 0; i < N; i++)
                    cell[k][i] = (uint64_t)k * N + (uint64_t)i;
                seq[k] = (struct gr_prefix){.token = token[k],
                                            .cell = cell[k],
                                            .n = N,
                                            .usable = N - 2 * k,
                                            .owner = k < 3};
            }
        }
        for (int k = 0; k < 3; k++)
            memcpy(token[N_SEQ] + 10 + 35 * k, token[gr_rng_below(&rng, N_SEQ)] + 7 * k,
                   30 * sizeof(int32_t));
        struct gr_prefixes p = {.seq = seq, .n_seq = N_SEQ};
        struct gr_chunk *c;
        int32_t n = gr_chunks_find(&p, 1, token[N_SEQ], lo, N, least, &c), end = lo;
        for (int32_t i = 0; i <= n; i++) {
            int32_t at = i < n ? c[i].at : N;
            for (int32_t k = end; round % 2 && k + least <= at; k++)
                cr_expect_lt(longest(&p, token[N_SEQ], k, at), least, "%d: missed", round);
            if (i == n)
                break;
            cr_assert(c[i].at >= end && c[i].n >= least && seq[c[i].seq].owner == 1);
            cr_assert_leq(c[i].from + c[i].n, seq[c[i].seq].usable);
            cr_expect(!memcmp(token[N_SEQ] + c[i].at, token[c[i].seq] + c[i].from,
                              (size_t)c[i].n * sizeof(int32_t)));
            end = c[i].at + c[i].n;
            n_found++;
        }
        cr_expect_leq(end, N);
        free(c);
    }
    cr_expect_gt(n_found, 400);
}

/* Texts of one token, and of its like: the time stays in bounds. */
Test(reuse, search_is_bounded)
{
    enum { N = 200000 };
    int32_t *token = calloc(N, sizeof *token), *text = calloc(N, sizeof *text);
    uint64_t *cell = calloc(N, sizeof *cell);
    cr_assert(token && text && cell);
    for (int32_t i = 0; i < N; i++)
        token[i] = i % 1000 == 0, text[i] = i % 999 == 0;
    struct gr_prefix seq = {.token = token, .cell = cell, .n = N, .usable = N};
    struct gr_prefixes p = {.seq = &seq, .n_seq = 1};
    struct gr_chunk *c;
    int64_t start = thread_ns();
    for (int32_t least = 1; least < N; least *= 7) {
        (void)gr_chunks_find(&p, 0, text, 0, N, least, &c);
        free(c);
    }
    cr_expect_lt(thread_ns() - start, INT64_C(2000000000));
    free(token), free(text), free(cell);
}
