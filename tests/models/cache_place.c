/* Places of keys, values and attention when a model's layers are on several devices. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "engine/session_devices.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

#define PLENTY (64u << 20)
#define N_TOK 5 /* of the step that is looked at */

/* The first layer on the CPU, the others on two devices. */
static struct gr_session *open_session(const char *arch, bool no_kv_offload)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){arch, strlen(arch)}));
    struct gr_model_params p = gr_model_params_default();
    struct gr_session_params q = gr_session_params_default();
    struct gr_model *m;
    tiny_set_layers(&t, 4);
    p.device = "FAKE0,FAKE1", p.n_rank = 1, p.n_gpu_layers = t.n_layer;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s: %s", arch, gr_error());
    unlink(path);
    q.n_ctx = 256, q.n_threads = 1, q.no_kv_offload = no_kv_offload;
    return tiny_session(m, &q);
}

static void close_session(struct gr_session *s)
{
    struct gr_model *m = s->model;
    gr_session_close(&s);
    gr_model_close(&m);
}

/* Recurrent states are with their layers, whatever is said of keys and values. */
static void check_tensors(const struct gr_session *s, bool no_kv_offload)
{
    size_t n = (size_t)s->rank_model->hp.n_layer;
    uint64_t bytes[3] = {0};
    for (size_t i = 0; i < n * GR_N_CACHE_TENSOR; i++) {
        const struct gr_ten *t = &s->tensors[i];
        bool state = i / n >= GR_T_CONV;
        int32_t layer = s->env.device[i % n], want = no_kv_offload && !state ? 0 : layer;
        if (!gr_ten_is(t))
            continue;
        cr_expect_eq(gr_tensor_device(s, t), want, "%s, tensor %zu", s->model->arch->name, i);
        bytes[want] += 1;
    }
    for (int32_t d = 0; d < 3; d++)
        cr_expect_eq(s->device[d].has.cache > 0, bytes[d] > 0, "%s, device %d",
                     s->model->arch->name, d);
}

Test(cache_place, S2_3_S3_5_with_the_layer_or_on_the_host)
{
    static const char *const arch[] = {"llama", "gemma3", "jamba", "falcon-h1", "deepseek2"};
    fake_use(2, PLENTY);
    for (size_t i = 0; i < GR_COUNT(arch); i++)
        for (int off = 0; off < 2; off++) {
            struct gr_session *s = open_session(arch[i], off);
            cr_assert(s->env.device[0] == 0 && s->env.device[1] == 1 && s->env.device[3] == 2);
            check_tensors(s, off);
            close_session(s);
        }
}

/* Number of nodes of an operation that a device has in the plan of that step. */
static int count(const struct gr_session *s, enum gr_op op, int32_t device)
{
    int n = 0;
    for (int i = 0; i < GR_N_PLAN; i++) {
        const struct gr_plan *p = &s->plans.plan[i].plan;
        const struct gr_plan_segment *seg = p->segment.data;
        for (size_t k = 0; s->plans.plan[i].exec && p->shape.n_tok == N_TOK && k < p->segment.n;
             k++)
            for (int32_t j = 0; j < seg[k].run.n_node; j++)
                n += seg[k].device == device &&
                     ((const struct gr_node *)p->node.data)[seg[k].node + j].op == op;
    }
    return n;
}

Test(cache_place, S4_12_attention_is_where_keys_are)
{
    static const int32_t token[] = {1, 2, 3, 4, 5};
    fake_use(2, PLENTY);
    for (int off = 0; off < 2; off++) {
        struct gr_session *s = open_session("llama", off);
        cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = N_TOK, .token = token}), 0, "%s",
                     gr_error());
        for (int32_t d = 0; d < 3; d++) {
            int want = off ? (d == 0 ? 4 : 0) : (d == 0 ? 1 : d == 1 ? 2 : 1);
            cr_expect_eq(count(s, GR_OP_ATTN, d), want, "device %d: %d", d,
                         count(s, GR_OP_ATTN, d));
            cr_expect_eq(count(s, GR_OP_KV_STORE, d), want, "device %d", d);
            cr_expect_gt(count(s, GR_OP_MATMUL, d), 0, "device %d", d);
        }
        close_session(s);
    }
}
