/* Failures between ranks: either nothing has changed, or the team is lost, reports the rank and the
 * reason from then on, and can be closed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/rng.h"
#include "gr/status.h"
#include "ranks/command.h"
#include "ranks/pipeline.h"
#include "ranks/team.h"
#include "support/tiny.h"

enum { N_VOCAB = 96, LONG = 40, PATIENCE_MS = 300 };

static int32_t id[LONG];
static int8_t all[LONG];

static struct gr_model *open_as(const char *arch, int32_t n_rank, enum gr_split_mode mode)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    for (int i = 0; i < LONG; i++)
        id[i] = (5 + 37 * i) % N_VOCAB, all[i] = 1;
    t.n_layer = t.heads || t.heads_kv ? t.n_layer : 4;
    p.n_rank = n_rank, p.split_mode = mode;
    cr_assert_eq(gr_model_open(&m, tiny_write(&t, NULL), &p), 0, "%s", gr_error());
    return m;
}

static struct gr_model *open_model(const char *arch, int32_t n_rank)
{
    return open_as(arch, n_rank, GR_SPLIT_MODE_LAYER);
}

/* Its ranks share all layers. */
static struct gr_model *open_shared(const char *arch, int32_t n_rank)
{
    return open_as(arch, n_rank, GR_SPLIT_MODE_TENSOR);
}

static struct gr_session_params params(void)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 256, p.n_threads = 1, p.n_seq_max = 2, p.n_ubatch = 8;
    return p;
}

static int decode(struct gr_session *s, int n)
{
    struct gr_batch b = {.n_tok = n, .token = id, .logits = all};
    return gr_decode(s, &b);
}

/* Every call says it from now on, and closing does not hang. */
static void expect_lost(struct gr_session *s, const char *who, const char *why)
{
    char first[1024];
    void *data;
    size_t n;
    cr_assert_eq(decode(s, 1), GR_E_PEER_LOST);
    snprintf(first, sizeof first, "%s", gr_error());
    cr_assert(strstr(first, who) && strstr(first, why), "%s", first);
    cr_assert_eq(gr_decode_begin(s, &(struct gr_batch){.n_tok = 1, .token = id}), GR_E_PEER_LOST);
    cr_assert_str_eq(gr_error(), first);
    cr_assert_eq(gr_kv_seq_rm(s, 0, -1, -1), GR_E_PEER_LOST);
    cr_assert_eq(gr_state_save(s, -1, NULL, 0, &data, &n), GR_E_PEER_LOST);
    cr_assert_eq(gr_session_resize(s, 512), GR_E_PEER_LOST);
    cr_assert_str_eq(gr_error(), first);
    gr_kv_clear(s);
}

static void close_both(struct gr_session **s, struct gr_model **m)
{
    int64_t start = gr_now_ns();
    gr_session_close(s);
    gr_model_close(m);
    cr_expect_lt(gr_seconds_since(start), 5);
}

/* Ranks whose cells are in the log, a bit each. */
static _Atomic unsigned logged;

static void sink(enum gr_log_level level, const char *line, void *user)
{
    (void)user;
    for (int r = 0; r < 3; r++) {
        char begin[32];
        snprintf(begin, sizeof begin, "the cells of rank %d,", r);
        if (level == GR_LOG_WARN && strncmp(line, begin, strlen(begin)) == 0)
            logged |= 1u << r;
    }
}

Test(team_failure, a_rank_that_decides_otherwise, .timeout = 60)
{
    gr_log_set(sink, NULL);
    for (int32_t rank = 1; rank < 3; rank++) {
        char who[16];
        logged = 0;
        gr_team_test(&(struct gr_team_test){.spoil_rank = rank, .spoil_at = 2});
        struct gr_model *m = open_model("llama", 3);
        struct gr_session_params p = params();
        struct gr_session *s = tiny_session(m, &p);
        cr_assert_eq(decode(s, 20), 0, "%s", gr_error());
        cr_assert_eq(decode(s, 20), GR_E_PEER_LOST);
        snprintf(who, sizeof who, "rank %d", rank);
        expect_lost(s, who, "cells are not those of");
        cr_expect_eq(logged, 1u | 1u << rank);
        close_both(&s, &m);
    }
}

/* One message of those between stages does not come, or not as it was sent. */
Test(team_failure, links, .timeout = 120)
{
    struct gr_link_opt fault[3] = {{0}};
    int n_lost = 0;
    for (int64_t at = 1; at < 12; at += 2)
        for (int kind = 0; kind < 3; kind++) {
            fault[0].drop_at = fault[1].fail_at = fault[2].flip_at = at;
            fault[kind].sync = at % 4 == 1;
            gr_team_test(&(struct gr_team_test){.wrap = &fault[kind],
                                                .patience_ns = PATIENCE_MS * INT64_C(1000000)});
            struct gr_model *m = open_model("llama", 3);
            struct gr_session_params p = params();
            struct gr_session *s;
            int rc = gr_session_open(&s, m, &p);
            for (int k = 0; k < 3 && !rc; k++)
                rc = decode(s, 20);
            cr_assert_eq(rc, GR_E_PEER_LOST, "kind %d, message %d", kind, (int)at);
            n_lost++;
            if (s)
                expect_lost(s, "rank ", "");
            close_both(&s, &m);
        }
    cr_assert_eq(n_lost, 18);
}

/* A rank that goes on much later than anybody would wait. */
Test(team_failure, a_rank_that_stops, .timeout = 60)
{
    struct gr_link_opt slow = {.delay_ns = INT64_C(3000000000)};
    gr_team_test(
        &(struct gr_team_test){.wrap = &slow, .patience_ns = PATIENCE_MS * INT64_C(1000000)});
    struct gr_model *m = open_model("gemma2", 4);
    struct gr_session_params p = params();
    struct gr_session *s = tiny_session(m, &p);
    int64_t start = gr_now_ns();
    cr_assert_eq(decode(s, 20), GR_E_PEER_LOST);
    cr_expect_lt(gr_seconds_since(start), 2);
    expect_lost(s, "rank ", "): no answer on the ");
    close_both(&s, &m);
}

static void expect_same_logits(struct gr_session *a, struct gr_session *b, int n)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(memcmp(tiny_row(a, i), tiny_row(b, i), N_VOCAB * sizeof(float)), 0, "row %d",
                     i);
}

/* Decodes again what has failed: it must be as if nothing had happened. */
static void expect_unchanged(struct gr_session *a, struct gr_session *b, int n)
{
    cr_assert_eq(decode(a, n), 0, "%s", gr_error());
    cr_assert_eq(decode(b, n), 0, "%s", gr_error());
    expect_same_logits(a, b, n);
}

/* Any allocation of any rank fails while a batch is decoded whose plans and buffers are new. */
Test(team_failure, no_memory, .timeout = 120)
{
    int n_refused = 0, n_lost = 0;
    bool done = false;
    for (uint64_t k = 1; !done; k += 1 + k / 24) {
        struct gr_model *m = open_model("llama", 3), *one = open_model("llama", 1);
        struct gr_session_params p = params();
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(one, &p);
        cr_assert_eq(decode(a, 3), 0, "%s", gr_error());
        cr_assert_eq(decode(b, 3), 0, "%s", gr_error());
        cr_assert_eq(gr_kv_seq_add(a, 0, 1, -1, 5), 0);
        cr_assert_eq(gr_kv_seq_add(b, 0, 1, -1, 5), 0);
        gr_alloc_fail_at(k, 0);
        int rc = decode(a, 20);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST || rc == GR_E_PEER_LOST, "%d: %s", rc,
                  gr_error());
        n_refused += rc == GR_E_NOMEM_HOST, n_lost += rc == GR_E_PEER_LOST;
        if (rc == GR_E_PEER_LOST)
            expect_lost(a, "rank ", "memory");
        else if (rc)
            expect_unchanged(a, b, 20);
        gr_session_close(&b), gr_model_close(&one);
        close_both(&a, &m);
    }
    cr_expect(n_refused > 3 && n_lost > 3, "%d refused, %d lost", n_refused, n_lost);
}

/* Any allocation of any rank fails while sessions are opened: no session, but the team goes on. */
Test(team_failure, no_memory_for_a_session, .timeout = 120)
{
    struct gr_model *m = open_model("llama", 3);
    struct gr_session_params p = params();
    int n_refused = 0, n_lost = 0;
    bool done = false;
    for (uint64_t k = 1; !done; k += 1 + k / 8) {
        struct gr_session *s;
        gr_alloc_fail_at(k, 0);
        int rc = gr_session_open(&s, m, &p);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST || rc == GR_E_PEER_LOST, "%d: %s", rc,
                  gr_error());
        n_refused += rc == GR_E_NOMEM_HOST, n_lost += rc == GR_E_PEER_LOST;
        if (!rc)
            cr_assert_eq(decode(s, 20), 0, "%s", gr_error());
        gr_session_close(&s);
        if (rc != GR_E_PEER_LOST)
            continue;
        gr_model_close(&m);
        m = open_model("llama", 3);
    }
    cr_expect(n_refused > 10 && n_lost < n_refused, "%d refused, %d lost", n_refused, n_lost);
    gr_model_close(&m);
}

/* From some allocation on there is no more memory: everything ends all the same. */
Test(team_failure, no_memory_at_all, .timeout = 120)
{
    int n_refused = 0;
    bool done = false;
    for (uint64_t k = 1; !done; k += 1 + k / 12) {
        struct gr_model *m = open_model("llama", 4);
        struct gr_session_params p = params();
        struct gr_session *s;
        gr_alloc_fail_at(k, 1);
        int rc = gr_session_open(&s, m, &p);
        if (!rc)
            (void)decode(s, 20);
        n_refused += rc != 0;
        close_both(&s, &m);
        done = gr_alloc_fail_at(0, 0) < k;
    }
    cr_expect_gt(n_refused, 10);
}

/* A rank that shares layers has no memory: rank 0 never gives logits that are not all there. */
Test(team_failure, no_memory_of_a_shard, .timeout = 120)
{
    int n_refused = 0, n_lost = 0;
    bool done = false;
    for (uint64_t k = 1; !done; k += 1 + k / 24) {
        struct gr_model *m = open_shared("llama", 2), *other = open_shared("llama", 2);
        struct gr_session_params p = params();
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(other, &p);
        cr_assert_eq(decode(a, 3), 0, "%s", gr_error());
        cr_assert_eq(decode(b, 3), 0, "%s", gr_error());
        gr_alloc_fail_at(k, 0);
        int rc = decode(a, 20);
        done = gr_alloc_fail_at(0, 0) < k;
        cr_assert(rc == 0 || rc == GR_E_NOMEM_HOST || rc == GR_E_PEER_LOST, "%d: %s", rc,
                  gr_error());
        n_refused += rc == GR_E_NOMEM_HOST, n_lost += rc == GR_E_PEER_LOST;
        if (!rc) {
            cr_assert_eq(decode(b, 20), 0, "%s", gr_error());
            expect_same_logits(a, b, 20);
        }
        gr_session_close(&b), gr_model_close(&other);
        close_both(&a, &m);
    }
    cr_expect(n_refused > 3 && n_lost > 1, "%d refused, %d lost", n_refused, n_lost);
}

/* ---- cancelling ---- */

/* Cancels in the micro-batch that makes it 0; what comes from the stage before comes as ever. */
static int count_down(struct gr_session *s, const struct gr_plan *p, void *n)
{
    if (--*(int *)n == 0)
        gr_session_cancel(s);
    return s->ranks ? gr_stage_flow.in(s, p, NULL) : 0;
}

static int pass_on(struct gr_session *s, const struct gr_plan *p, const void *rows, size_t n,
                   void *user)
{
    (void)user;
    return s->ranks ? gr_stage_flow.out(s, p, rows, n, NULL) : 0;
}

/* Whichever micro-batch it comes in, all ranks roll the batch back, like one alone; or, when it
 * comes too late, none. */
Test(team_failure, cancelled, .timeout = 60)
{
    static const char *const arch[] = {"llama", "gemma2", "mamba2", "jamba"};
    for (int i = 0; i < 4; i++) {
        struct gr_model *m = open_model(arch[i], 3), *one = open_model(arch[i], 1);
        struct gr_session_params p = params();
        p.n_ubatch = 2;
        struct gr_session *a = tiny_session(m, &p), *b = tiny_session(one, &p);
        int left[2];
        const struct gr_flow flow[] = {{count_down, pass_on, &left[0]},
                                       {count_down, pass_on, &left[1]}};
        a->flow = &flow[0], b->flow = &flow[1];
        for (int k = 1; k <= 12; k++) {
            char why[1024];
            left[0] = left[1] = k;
            int rc = decode(a, 20);
            snprintf(why, sizeof why, "%s", rc ? gr_error() : "");
            cr_assert_eq(rc, k <= 10 ? GR_E_CANCELLED : 0, "%s, %d: %s", arch[i], k, why);
            cr_assert_eq(decode(b, 20), rc);
            cr_assert_str_eq(rc ? gr_error() : "", why);
            cr_assert_eq(gr_kv_used(a), gr_kv_used(b));
            left[0] = left[1] = 0;
            expect_unchanged(a, b, 3);
        }
        gr_session_close(&b), gr_model_close(&one);
        close_both(&a, &m);
    }
}

/* ---- times ---- */

struct seen {
    int n[8];
    int64_t last[8];
};

static void see(const struct gr_stage_span *span, void *user)
{
    struct seen *f = user;
    cr_assert(span->rank >= 0 && span->rank < 8 && span->ns >= 0);
    cr_assert_geq(span->start_ns, f->last[span->rank]);
    f->last[span->rank] = span->start_ns + span->ns;
    f->n[span->rank]++;
}

Test(team_failure, times_of_stages, .timeout = 60)
{
    struct gr_model *m = open_model("llama", 3);
    struct gr_session_params p = params();
    struct gr_session *s = tiny_session(m, &p);
    struct gr_stage stage[8];
    struct seen seen = {{0}, {0}};
    int64_t start = gr_now_ns();
    for (int k = 0; k < 4; k++)
        cr_assert_eq(decode(s, 20), 0, "%s", gr_error());
    int32_t n_layer = 0;
    cr_assert_eq(gr_session_stages(s, stage, 8), 3);
    for (int r = 0; r < 3; r++) {
        cr_expect(stage[r].rank == r && stage[r].first_layer == n_layer);
        n_layer += stage[r].n_layer;
        cr_expect_eq(stage[r].n_ubatch, 4 * 3);
        cr_expect(stage[r].busy_ns > 0 && stage[r].busy_ns < gr_now_ns() - start);
        cr_expect_str_eq(stage[r].device, "CPU");
    }
    cr_expect_eq(n_layer, 5);
    cr_assert_eq(gr_session_spans(s, see, &seen), 0);
    for (int r = 0; r < 3; r++)
        cr_expect(seen.n[r] == 4 * 3 * 4 && seen.last[r] <= gr_now_ns(), "%d", seen.n[r]);
    cr_assert_eq(gr_session_spans(s, see, &seen), 0);
    cr_expect_eq(seen.n[2], 4 * 3 * 4);
    close_both(&s, &m);
}

/* ---- commands that rank 0 would not give ---- */

/* The bytes of a command: some of them changed, or the last ones missing. */
static void spoil(struct gr_rng *rng, uint32_t kind, struct gr_vec *bytes)
{
    static _Alignas(16) char command[1024];
    static int32_t items[64];
    int n;
    const struct gr_command_field *f = gr_command_fields(kind, &n);
    memset(command, 0, sizeof command);
    for (int i = 0; i < n; i++) {
        struct {
            const void *p;
            uint64_t n;
        } array = {items, gr_rng_below(rng, 4)};
        int32_t number = (int32_t)gr_rng_below(rng, 6) - 1;
        memcpy(command + f[i].offset, f[i].array ? (void *)&array : &number, f[i].array ? 16 : 4);
    }
    for (int i = 0; i < 64; i++)
        items[i] = (int32_t)gr_rng_below(rng, 3) * (gr_rng_below(rng, 8) ? 1 : 1 << 20);
    cr_assert_eq(gr_command_write(bytes, kind, command), 0);
    if (bytes->n && gr_rng_below(rng, 3) == 0)
        ((char *)bytes->data)[gr_rng_below(rng, (uint32_t)bytes->n)] ^= 1;
    if (gr_rng_below(rng, 8) == 0)
        bytes->n -= GR_MIN(bytes->n, 8);
}

/* The rank that gets one says that it makes no sense, or does it: nothing worse. */
Test(team_failure, orders_that_make_no_sense, .timeout = 120)
{
    struct gr_rng rng = gr_rng_new(1);
    int n_lost = 0;
    for (uint32_t round = 0; round < 4 * GR_N_COMMAND; round++) {
        uint32_t kind = round % (GR_N_COMMAND + 1);
        struct gr_model *m = open_model("llama", 2);
        struct gr_session_params p = params();
        struct gr_session *s = tiny_session(m, &p);
        cr_assert_eq(decode(s, 3), 0, "%s", gr_error());
        gr_team_test(&(struct gr_team_test){.patience_ns = INT64_C(60000000)});
        struct gr_message *order = gr_message_new(s->rank->team, 1, 2);
        spoil(&rng, kind, &order->bytes);
        cr_assert_eq(gr_message_send(s->rank->team, order,
                                     &(struct gr_frame){.kind = kind,
                                                        .session = gr_rng_below(&rng, 8) == 0,
                                                        .hash = s->cache.hash}),
                     0);
        int rc = kind == GR_COMMAND_QUIT ? 0 : decode(s, 3);
        cr_assert(rc == 0 || rc == GR_E_PEER_LOST, "%s: %d", gr_command_name(kind), rc);
        cr_assert(!rc || strstr(gr_error(), "rank "), "%s: %s", gr_command_name(kind), gr_error());
        n_lost += rc != 0;
        close_both(&s, &m);
        gr_team_test(NULL);
    }
    cr_expect_gt(n_lost, 2 * GR_N_COMMAND);
}
