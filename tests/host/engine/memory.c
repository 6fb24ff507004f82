/* Sizes of caches: from the formulas, in figures that are known, and in what is logged. */
#include "engine/memory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gr/dtype.h"
#include "gr/status.h"

#define MIB(n) ((uint64_t)(n) << 20)

static struct gr_hparams hp;

static void model(int n_layer, int n_head_kv, int d)
{
    memset(&hp, 0, sizeof hp);
    hp.n_layer = n_layer, hp.attn.d_k = hp.attn.d_v = d;
    for (int il = 0; il < n_layer; il++)
        hp.attn.n_head[il] = hp.attn.n_head_kv[il] = n_head_kv, hp.attn.kv_of[il] = il;
}

static struct gr_session_params params(uint32_t n_ctx, const char *k, const char *v)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = n_ctx, p.type_k = k, p.type_v = v;
    return p;
}

static struct gr_memory plan(const struct gr_session_params *p)
{
    struct gr_memory m;
    cr_assert_eq(gr_memory_plan(&m, &hp, p), 0, "%s", gr_error());
    return m;
}

static uint64_t bytes_of(const struct gr_memory *m, int which)
{
    return m->bytes[GR_CACHE_FULL][which];
}

/* Bytes of one cell in all layers. */
static uint64_t per_cell(uint64_t bytes, const struct gr_memory *m)
{
    uint32_t n = m->cache.kv[GR_CACHE_FULL].n_cell;
    cr_assert_eq(bytes % n, 0);
    return bytes / n;
}

/* K = n_ctx * n_layer * n_head_kv * n_embd_head_k * size, V alike; of blocks by the row: q8_0 34/32
 * and q4_0 18/32 bytes a number, and so on. */
Test(memory, S4_38_formula)
{
    static const struct {
        char type[8];
        uint64_t num, den;
    } size[] = {{"f32", 4, 1},    {"f16", 2, 1},    {"bf16", 2, 1},
                {"q8_0", 34, 32}, {"q4_0", 18, 32}, {"q4_1", 20, 32},
                {"q5_0", 22, 32}, {"q5_1", 24, 32}, {"iq4_nl", 18, 32}};
    model(32, 32, 128);
    for (size_t k = 0; k < GR_COUNT(size); k++)
        for (size_t v = 0; v < GR_COUNT(size); v++) {
            struct gr_session_params p = params(512, size[k].type, size[v].type);
            struct gr_memory m = plan(&p);
            uint64_t n = UINT64_C(512) * 32 * 32 * 128;
            cr_expect_eq(bytes_of(&m, GR_T_K), n * size[k].num / size[k].den);
            cr_expect_eq(bytes_of(&m, GR_T_V), n * size[v].num / size[v].den);
            cr_expect_eq(m.total, bytes_of(&m, GR_T_K) + bytes_of(&m, GR_T_V));
        }
}

/* 512 cells: 128 MiB each; 30016 cells: 3934257152 bytes, exactly 3752 MiB, together. The cache has
 * whole blocks of 256 cells, so the figure is that of its first 30016. */
Test(memory, S4_38_figures)
{
    struct gr_session_params p = params(512, "f16", "f16");
    model(32, 32, 128);
    struct gr_memory m = plan(&p);
    cr_expect_eq(bytes_of(&m, GR_T_K), 134217728u);
    cr_expect_eq(m.total, MIB(256));
    p.n_ctx = 1024;
    cr_expect_eq(plan(&p).total, 536870912u);
    model(32, 8, 128);
    p.n_ctx = 30016;
    m = plan(&p);
    cr_expect_eq(per_cell(m.total, &m) * 30016, 3934257152u);
    cr_expect_eq(per_cell(m.total, &m) * 30016, MIB(3752));
}

/* 40 layers of 5120 numbers in 1024 cells: 209715200 numbers each for K and V, 800 MiB. */
Test(memory, S2_12_thirteen_billion)
{
    struct gr_session_params p = params(1024, "f16", "f16");
    model(40, 40, 128);
    struct gr_memory m = plan(&p);
    cr_expect_eq(bytes_of(&m, GR_T_K), UINT64_C(2) * 209715200);
    cr_expect_eq(bytes_of(&m, GR_T_V), MIB(400));
    cr_expect_eq(m.total, MIB(800));
}

static struct gr_ten tensor(const struct gr_memory *m, int il, enum gr_cache_tensor which)
{
    struct gr_ten t;
    cr_assert(gr_memory_tensor(m, &hp, il, which, &t));
    return t;
}

/* 1024 rows of 4096; 8192 rows of 2048; the 2 x 64 numbers of a Qwen2, 32768 times, for two
 * sequences in one pool and in two. */
Test(memory, S2_6_S2_13_S3_6_shapes)
{
    struct gr_session_params p = params(1024, "f16", "f16");
    model(1, 32, 128);
    struct gr_memory m = plan(&p);
    struct gr_ten k = tensor(&m, 0, GR_T_K);
    cr_expect(k.rows == 1024 && k.cols == 4096 && k.row_bytes * k.rows == 8388608);
    model(1, 16, 128);
    p.n_ctx = 8192, m = plan(&p), k = tensor(&m, 0, GR_T_K);
    cr_expect(k.rows == 8192 && k.cols == 2048);
    model(24, 2, 64);
    p.n_ctx = 32768, p.n_seq_max = 2, m = plan(&p), k = tensor(&m, 23, GR_T_V);
    cr_expect(k.rows == 32768 && k.cols == 128 && m.cache.kv[GR_CACHE_FULL].n_kv_pool == 1);
    p.n_ctx = 65536, p.kv_unified = false, m = plan(&p), k = tensor(&m, 23, GR_T_V);
    cr_expect(k.rows == 2 * 32768 && m.cache.kv[GR_CACHE_FULL].n_kv_pool == 2 &&
              m.cache.kv[GR_CACHE_FULL].n_cell == 32768);
}

/* n_ctx counts the cells of all sequences; n_ctx_seq is one's share, whole blocks of 256. */
Test(memory, S3_2_S3_22_share_of_a_sequence)
{
    static const uint32_t want[][4] = {{1024, 4, 0, 256},  {1024, 4, 1, 1024},  {1000, 4, 0, 256},
                                       {8192, 3, 0, 2816}, {256, 2, 0, 256},    {8000, 1, 0, 8192},
                                       {8000, 1, 1, 8192}, {30016, 1, 1, 30208}};
    model(2, 4, 64);
    for (size_t i = 0; i < GR_COUNT(want); i++) {
        struct gr_session_params p = params(want[i][0], "f16", "f16");
        p.n_seq_max = want[i][1], p.kv_unified = want[i][2];
        struct gr_memory m = plan(&p);
        cr_expect_eq(m.n_ctx_seq, want[i][3], "%u cells of %u: %u", want[i][0], want[i][1],
                     m.n_ctx_seq);
        cr_expect_eq(m.cache.kv[GR_CACHE_FULL].n_kv_pool, want[i][2] ? 1 : want[i][1]);
    }
}

/* 4 heads of 64 in 8000 cells: rows of 512 bytes, heads of 128, 2048000 numbers in 4096000 bytes.
 */
Test(memory, S1_17_rows)
{
    struct gr_session_params p = params(8000, "f16", "f16");
    model(22, 4, 64);
    struct gr_memory m = plan(&p);
    struct gr_ten k = tensor(&m, 0, GR_T_K);
    cr_expect_eq(k.row_bytes, 512);
    cr_expect_eq(k.row_bytes / 4, 128);
    cr_expect_eq(8000 * k.cols, 2048000);
    cr_expect_eq(8000 * k.row_bytes, 4096000);
}

/* Token i of a cache of rows of 4096 numbers is i * 8192 bytes from its beginning. */
Test(memory, S4_16_S4_24_offsets)
{
    static const int64_t offset[] = {0, 8192, 16384, 24576, 32768, 40960, 49152};
    struct gr_session_params p = params(256, "f16", "f16");
    model(1, 32, 128);
    struct gr_memory m = plan(&p);
    struct gr_ten k = tensor(&m, 0, GR_T_K);
    for (int64_t i = 0; i < (int64_t)GR_COUNT(offset); i++)
        cr_expect_eq((char *)gr_ten_row(&k, 0, i) - (char *)k.data, offset[i]);
    cr_expect_eq((char *)gr_ten_row(&k, 0, 13) - (char *)k.data, 106496);
    cr_expect_eq(6 * k.cols, 24576, "numbers of six tokens");
}

/* Layers may differ in their heads, have none, or look at an earlier layer's. */
Test(memory, S2_5_S3_3_layers)
{
    struct gr_session_params p = params(256, "f16", "f32");
    struct gr_ten t;
    model(4, 8, 32);
    hp.attn.n_head_kv[1] = 2, hp.attn.n_head_kv[2] = 0, hp.attn.kv_of[2] = -1, hp.attn.kv_of[3] = 1,
    hp.attn.d_v = 64;
    struct gr_memory m = plan(&p);
    cr_expect_eq(tensor(&m, 0, GR_T_K).cols, 8 * 32);
    cr_expect_eq(tensor(&m, 0, GR_T_V).cols, 8 * 64);
    cr_expect_eq(tensor(&m, 1, GR_T_K).cols, 2 * 32);
    cr_expect_not(gr_memory_tensor(&m, &hp, 2, GR_T_K, &t));
    cr_expect_not(gr_memory_tensor(&m, &hp, 3, GR_T_V, &t));
    cr_expect_eq(m.n_layer[GR_CACHE_FULL], 2);
    cr_expect_eq(m.total, 256u * 10 * (32 * 2 + 64 * 4));
    hp.mla.v_in_k = true;
    m = plan(&p);
    cr_expect_eq(bytes_of(&m, GR_T_V), 0);
    cr_expect_eq(m.total, 256u * 10 * 32 * 2);
    hp.no_cache = true;
    cr_expect_eq(plan(&p).total, 0);
}

/* Layers with a window keep the window of each sequence and a micro-batch, in blocks of 256. */
Test(memory, windows)
{
    struct gr_session_params p = params(8192, "f16", "f16");
    model(6, 4, 64);
    for (int il = 0; il < 6; il++)
        hp.swa.layer[il] = il % 6 != 5;
    hp.swa.n_swa = 1024;
    struct gr_memory m = plan(&p);
    cr_expect_eq(m.cache.kv[GR_CACHE_SWA].n_cell, 1536);
    cr_expect_eq(m.bytes[GR_CACHE_SWA][GR_T_K], UINT64_C(5) * 1536 * 512);
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_K], 8192u * 512);
    p.n_seq_max = 4, m = plan(&p);
    cr_expect_eq(m.cache.kv[GR_CACHE_SWA].n_cell, 4 * 1024 + 512);
    p.kv_unified = false, m = plan(&p);
    cr_expect_eq(m.cache.kv[GR_CACHE_SWA].n_cell, 1536);
    cr_expect_eq(m.bytes[GR_CACHE_SWA][GR_T_K], UINT64_C(4) * 5 * 1536 * 512);
    p.swa_full = true, m = plan(&p);
    cr_expect_eq(m.cache.kv[GR_CACHE_SWA].n_cell, 2048);
}

/* Keys by grouped position take K's size again in layers that see everything. */
Test(memory, grouped_positions)
{
    struct gr_session_params p = params(4096, "f16", "f16");
    struct gr_memory m;
    model(2, 2, 64);
    hp.swa.layer[1] = true, hp.swa.n_swa = 200, hp.rope.kind = GR_ROPE_NORM;
    p.self_extend_n = 4, p.self_extend_w = 64, m = plan(&p);
    cr_expect_eq(m.bytes[GR_CACHE_FULL][GR_T_K_FAR], 4096 * 128 * 2);
    cr_expect_eq(m.bytes[GR_CACHE_SWA][GR_T_K_FAR], 0);
    p.self_extend_n = 3;
    cr_expect_eq(gr_memory_plan(&m, &hp, &p), GR_E_INVALID);
}

/* A row of F32 for each sequence and half as many for those that share one and go on; or one for
 * each state that can be gone back to. */
Test(memory, S4_29_states)
{
    struct gr_session_params p = params(4096, "f16", "q8_0");
    model(3, 0, 64);
    for (int il = 0; il < 3; il++)
        hp.ssm.layer[il] = true, hp.attn.kv_of[il] = -1;
    hp.ssm.n_conv_state = 3 * 128, hp.ssm.n_ssm_state = 16 * 128;
    p.n_seq_max = 5;
    struct gr_memory m = plan(&p);
    cr_expect_eq(m.n_row, 5 + 2);
    cr_expect_eq(m.total, UINT64_C(3) * 7 * (3 * 128 + 16 * 128) * 4);
    cr_expect_eq(tensor(&m, 1, GR_T_SSM).dtype, GR_F32);
    p.n_rollback = 2;
    cr_expect_eq(plan(&p).n_row, 15);
}

Test(memory, refuses_what_overflows)
{
    struct gr_memory m;
    struct gr_session_params p = params(1 << 26, "f32", "f32");
    model(256, 65536, 4096); /* K alone */
    cr_expect_eq(gr_memory_plan(&m, &hp, &p), GR_E_TOO_LARGE);
    model(128, 65536, 4096); /* K and V together */
    cr_expect_eq(gr_memory_plan(&m, &hp, &p), GR_E_TOO_LARGE);
    model(127, 65536, 4096);
    cr_assert_eq(gr_memory_plan(&m, &hp, &p), 0);
    cr_expect_eq(m.total, UINT64_C(127) << 57);
}

/* ---- what is said ---- */

static char log_text[4096];

static void keep_line(enum gr_log_level level, const char *line, void *user)
{
    (void)level, (void)user;
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", line);
}

static void expect_line(const char *line)
{
    cr_expect(strstr(log_text, line), "'%s' expected, found:\n%s", line, log_text);
}

Test(memory, S2_11_lines)
{
    struct gr_session_params p = params(1024, "f16", "f16");
    model(40, 40, 128);
    struct gr_memory m = plan(&p);
    gr_log_set(keep_line, NULL);
    gr_memory_log(&m);
    gr_memory_log_part(&m, "CPU");
    expect_line("KV self size  =  800.00 MiB, K (f16):  400.00 MiB, V (f16):  400.00 MiB\n");
    expect_line("size =  800.00 MiB (  1024 cells,  40 layers,  1/1 seqs), K (f16):  400.00 MiB, V "
                "(f16):  400.00 MiB\n");
    expect_line(
        "       CPU KV buffer size =   800.00 MiB (  1024 cells,  40 layers), K (f16):  400.00 "
        "MiB, V (f16):  400.00 MiB\n");
    *log_text = 0;
    p.n_seq_max = 2, p.kv_unified = false;
    m = plan(&p);
    gr_memory_log(&m);
    expect_line("(   512 cells,  40 layers,  2/2 seqs)");
    gr_log_set(NULL, NULL);
}
