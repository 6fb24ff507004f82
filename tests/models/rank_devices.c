/* Memory of layers on a device: sums of single layers beside ranges that are measured whole. */
#include "placement/measure.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "gr/status.h"
#include "models/fake.h"
#include "support/tiny.h"

static struct gr_model *open_model(const struct tiny *t, const char *device)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model *m;
    p.device = device, p.n_gpu_layers = 99;
    const char *path = tiny_write(t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &p), 0, "%s: %s", t->arch->name, gr_error());
    unlink(path);
    return m;
}

static struct gr_session_params params(const struct gr_model *m)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 512, p.n_threads = 1, p.n_ubatch = m->hp.no_cache ? 32 : 48, p.n_seq_max = 3;
    return p;
}

static struct gr_rank_device survey(struct gr_model *m, const struct gr_placement *place,
                                    int32_t device)
{
    struct gr_session_params p = params(m);
    struct gr_vec devices = {0};
    cr_assert_eq(gr_rank_devices_survey(m->rank_model[0], &p, place, &devices), 0, "%s",
                 gr_error());
    struct gr_rank_device t = ((struct gr_rank_device *)devices.data)[device];
    cr_assert(t.device == device && devices.n == (size_t)m->rank_model[0]->devices.n + 1);
    gr_vec_fini(&devices);
    return t;
}

/* Layers [lo, hi) on a device, as a stage between two others. */
static struct gr_rank_device measured(struct gr_model *m, int32_t lo, int32_t hi, int32_t device)
{
    struct gr_placement p = {.n_stage = hi > m->hp.n_layer ? 2 : 3};
    memset(p.layer, device, sizeof p.layer);
    for (int32_t il = 0; il <= m->hp.n_layer; il++)
        p.stage[il] = (uint8_t)(il < lo ? 0 : il < hi ? 1 : 2);
    return survey(m, &p, device);
}

static struct gr_rank_device summed(const struct gr_model *m, const struct gr_rank_device *t,
                                    int32_t lo, int32_t hi)
{
    struct gr_rank_device sum = {.work = t->fixed};
    uint64_t arena = 0, scratch = 0;
    for (int32_t il = lo; il < hi; il++) {
        sum.weights += t->layer[il].weights, sum.cache += t->layer[il].cache;
        arena = GR_MAX(arena, t->layer[il].arena);
        scratch = GR_MAX(scratch, t->layer[il].scratch);
    }
    sum.weights -= lo == 0 && hi > m->hp.n_layer ? t->tied : 0;
    sum.work += arena + scratch;
    return sum;
}

static int n_off, n_all;

static void compare(struct gr_model *m, int32_t device)
{
    struct gr_rank_device t = survey(m, NULL, device);
    int32_t n = m->hp.n_layer;
    for (int32_t lo = 0; lo <= n; lo++)
        for (int32_t hi = lo + 1; hi <= n + 1; hi++) {
            if (!gr_place_may_cut(&m->hp, lo) || (hi <= n && !gr_place_may_cut(&m->hp, hi)))
                continue;
            struct gr_rank_device want = measured(m, lo, hi, device), sum = summed(m, &t, lo, hi);
            cr_expect_eq(sum.cache, want.cache, "%s, layers %d to %d: cache", m->arch->name, lo,
                         hi);
            /* the CPU reads the model's divisors of frequencies too, wherever layers are */
            cr_expect(device ? sum.weights == want.weights : sum.weights <= want.weights,
                      "%s, layers %d to %d: weights %llu, %llu measured", m->arch->name, lo, hi,
                      (unsigned long long)sum.weights, (unsigned long long)want.weights);
            uint64_t off = sum.work > want.work ? sum.work - want.work : want.work - sum.work;
            cr_expect_lt(off, want.work / 6, "%s, layers %d to %d: work %llu, %llu measured",
                         m->arch->name, lo, hi, (unsigned long long)sum.work,
                         (unsigned long long)want.work);
            n_all++;
            n_off += off > 0;
        }
}

/* Weights and caches to the byte. Work mostly too: intermediate results of several layers are
 * packed one after the other, and may leave gaps that those of one do not. */
Test(rank_devices, sums_of_layers_are_what_ranges_take, .timeout = 300)
{
    fake_use(1, 64u << 20);
    for (int i = 0; gr_arch_at(i); i++)
        for (int32_t device = 0; device < 2; device++) {
            struct tiny t = tiny_default(gr_arch_at(i));
            struct gr_model *m = open_model(&t, device ? "FAKE0" : "none");
            m->rank_model[0]->stage = 1, m->rank_model[0]->n_stage = 3;
            compare(m, device);
            gr_model_close(&m);
        }
    cr_expect_lt(n_off, n_all / 3, "%d of %d", n_off, n_all);
}
