/* Sizes of caches, exact or refused. */
#include <criterion/criterion.h>

#include "engine/session.h"
#include "gr/status.h"

static struct gr_hparams model(int n_layer, int n_head_kv, int d)
{
    static struct gr_hparams hp;
    hp = (struct gr_hparams){.n_layer = n_layer, .d_k = d, .d_v = d};
    for (int il = 0; il < n_layer; il++)
        hp.n_head[il] = hp.n_head_kv[il] = n_head_kv;
    return hp;
}

/* 40 layers of 5120 numbers, 1024 cells: 400 MiB each for K and V in F16; 30016 cells of 8 x 128 in
 * 32 layers: 3752 MiB together. */
Test(cache_bytes, examples)
{
    struct gr_hparams hp = model(40, 40, 128);
    uint64_t k, v;
    cr_assert_eq(gr_cache_bytes(&hp, 1024, GR_F16, GR_F16, &k, &v), 0);
    cr_expect_eq(k, 400u << 20);
    cr_expect_eq(v, 400u << 20);
    hp = model(32, 8, 128);
    cr_assert_eq(gr_cache_bytes(&hp, 30016, GR_F16, GR_Q8_0, &k, &v), 0);
    cr_expect_eq(k, 3934257152u / 2);
    cr_expect_eq(v, 3934257152u / 4 / 32 * 34);
}

/* K alone overflows; K and V only together; neither. */
Test(cache_bytes, overflow)
{
    uint64_t k, v;
    struct gr_hparams hp = model(256, 65536, 4096);
    cr_expect_eq(gr_cache_bytes(&hp, 1 << 26, GR_F32, GR_F32, &k, &v), GR_E_TOO_LARGE);
    hp = model(128, 65536, 4096);
    cr_expect_eq(gr_cache_bytes(&hp, 1 << 26, GR_F32, GR_F32, &k, &v), GR_E_TOO_LARGE);
    hp = model(127, 65536, 4096);
    cr_assert_eq(gr_cache_bytes(&hp, 1 << 26, GR_F32, GR_F32, &k, &v), 0);
    cr_expect_eq(k + v, UINT64_C(127) << 57);
}
