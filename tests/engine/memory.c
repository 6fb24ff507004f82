/* Sizes of caches, exact or refused. */
#include "engine/memory.h"

#include <criterion/criterion.h>

#include "gr/status.h"

static struct gr_hparams model(int n_layer, int n_head_kv, int d)
{
    static struct gr_hparams hp;
    hp = (struct gr_hparams){.n_layer = n_layer, .d_k = d, .d_v = d};
    for (int il = 0; il < n_layer; il++) {
        hp.n_head[il] = hp.n_head_kv[il] = n_head_kv;
        hp.kv_of[il] = il;
    }
    return hp;
}

static struct gr_session_params params(uint32_t n_ctx, const char *type_k, const char *type_v)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = n_ctx, p.type_k = type_k, p.type_v = type_v;
    return p;
}

/* 40 layers of 5120 numbers, 1024 cells: 400 MiB each for K and V in F16; 30208 cells of 8 x 128 in
 * 32 layers. */
Test(memory, examples)
{
    struct gr_hparams hp = model(40, 40, 128);
    struct gr_session_params p = params(1024, "f16", "f16");
    struct gr_memory m;
    cr_assert_eq(gr_memory_plan(&m, &hp, &p), 0);
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_K], 400u << 20);
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_V], 400u << 20);
    cr_expect_eq(m.total, 800u << 20);
    hp = model(32, 8, 128), p = params(30208, "f16", "q8_0");
    cr_assert_eq(gr_memory_plan(&m, &hp, &p), 0);
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_K], UINT64_C(30208) * 32 * 8 * 128 * 2);
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_V], UINT64_C(30208) * 32 * 8 * 128 / 32 * 34);
}

/* K alone overflows; K and V only together; neither. */
Test(memory, overflow)
{
    struct gr_hparams hp = model(256, 65536, 4096);
    struct gr_session_params p = params(1 << 26, "f32", "f32");
    struct gr_memory m;
    cr_expect_eq(gr_memory_plan(&m, &hp, &p), GR_E_TOO_LARGE);
    hp = model(128, 65536, 4096);
    cr_expect_eq(gr_memory_plan(&m, &hp, &p), GR_E_TOO_LARGE);
    hp = model(127, 65536, 4096);
    cr_assert_eq(gr_memory_plan(&m, &hp, &p), 0);
    cr_expect_eq(m.total, UINT64_C(127) << 57);
}

/* Streams share the cells out; windowed layers keep the window and a micro-batch; layers that
 * attend to another's keep nothing; grouped positions take K's size again. */
Test(memory, kinds)
{
    struct gr_hparams hp = model(4, 2, 64);
    struct gr_session_params p = params(4096, "f16", "f16");
    struct gr_memory m;
    p.n_seq_max = 4, p.kv_unified = false, p.n_ubatch = 128;
    hp.swa[1] = hp.swa[2] = true, hp.n_swa = 200;
    hp.kv_of[3] = 0;
    cr_assert_eq(gr_memory_plan(&m, &hp, &p), 0);
    cr_expect(m.n_ctx_seq == 1024 && m.cache.kv[GR_CACHE_FULL].n_stream == 4);
    cr_expect(m.n_layer[GR_CACHE_FULL] == 1 && m.n_layer[GR_CACHE_SWA] == 2);
    cr_expect_eq(m.cache.kv[GR_CACHE_SWA].n_cell, 512, "200 + 128, in whole blocks of 256");
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_K], 4096 * 128 * 2);
    cr_expect_eq(m.bytes[GR_CACHE_SWA][GR_T_V], 2 * 4 * 512 * 128 * 2);
    p.kv_unified = true;
    cr_assert_eq(gr_memory_plan(&m, &hp, &p), 0);
    cr_expect_eq(m.cache.kv[GR_CACHE_SWA].n_cell, 1024, "4 * 200 + 128");
    p.swa_full = true, p.group_n = 4, p.group_w = 64, hp.rope = GR_ROPE_NORM;
    cr_assert_eq(gr_memory_plan(&m, &hp, &p), 0);
    cr_expect_eq(m.cache.kv[GR_CACHE_SWA].n_cell, 4096);
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_K_FAR], 4096 * 128 * 2);
    cr_expect_eq(m.bytes[GR_CACHE_SWA][GR_T_K_FAR], 0);
    p.group_n = 3;
    cr_expect_eq(gr_memory_plan(&m, &hp, &p), GR_E_INVALID);
}
