/* mbarriers, the copy engine, setmaxnreg, dependent launches. */
#include "tests/emu/conform/conform.h"
#include "tests/emu/conform/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run_mbar_arrive(struct conform *c, const char *wrapper)
{
    enum { N = 96 };
    (void)wrapper;
    uint32_t out[4 * N + 2], expected[4 * N + 2];
    for (uint32_t phase = 0; phase < 4; phase++)
        for (uint32_t i = 0; i < N; i++)
            expected[phase * N + i] = phase * 1000 + (i + 1) % N;
    expected[4 * N] = 0;
    expected[4 * N + 1] = 1;
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_mbar_arrive",
                                                   .blocks = 2,
                                                   .threads = N,
                                                   .smem = 128 + 2 * N * 4,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 4 * N + 2, 4);
}

static int run_mbar_inval(struct conform *c, const char *wrapper)
{
    (void)wrapper;
    uint32_t out[64], expected[64];
    for (uint32_t i = 0; i < 64; i++)
        expected[i] = i < 32 ? (31 - i) * 3 : 63 - i;
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_mbar_inval",
                                                   .blocks = 1,
                                                   .threads = 64,
                                                   .smem = 128 + 256,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 64, 4);
}

static int run_cp_async_arrive(struct conform *c, const char *wrapper)
{
    (void)wrapper;
    uint32_t in[64], out[64], expected[64], seed = 17;
    for (int i = 0; i < 64; i++)
        in[i] = conform_random(&seed);
    for (int i = 0; i < 64; i++)
        expected[i] = in[(i + 1) % 64];
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_cp_async_mbar_arrive",
                                                   .blocks = 1,
                                                   .threads = 64,
                                                   .smem = 128 + 256,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 64, 4);
}

static int run_bulk(struct conform *c, const char *wrapper)
{
    (void)wrapper;
    static unsigned char in[8192], out[8192], expected[8192];
    static const int sizes[] = {32, 992, 4096, 8192};
    uint32_t seed = 19;
    for (int k = 0; k < 4; k++) {
        const size_t n = (size_t)sizes[k];
        for (size_t i = 0; i < n; i++) {
            in[i] = (unsigned char)conform_random(&seed);
            expected[i] = in[i] ^ 0x5a;
        }
        memset(out, 0xee, sizeof out);
        if (conform_run(c, &(struct conform_launch){.kernel = "conform_bulk",
                                                    .blocks = 1,
                                                    .threads = 64,
                                                    .smem = 128 + (unsigned)n,
                                                    .in = in,
                                                    .in_bytes = n,
                                                    .out = out,
                                                    .out_bytes = n,
                                                    .p = {sizes[k]}}) ||
            conform_same(c, out, expected, n, 1))
            return 1;
    }
    return 0;
}

/* --- boxes --- */

enum { TENSOR_BYTES = 1 << 16 };

/* A tensor of random 16-bit numbers in rows longer than the dimension says, and its map. */
struct tensor {
    struct conform_map map;
    uint16_t data[TENSOR_BYTES / 2];
    size_t bytes;
};

static void make_tensor(struct tensor *t, int rank, int swizzle, uint32_t *seed)
{
    struct conform_map *m = &t->map;
    m->rank = rank;
    m->swizzle = swizzle;
    m->box[0] = swizzle ? (uint32_t)swizzle / 2 : 8 * (uint32_t)conform_random_in(seed, 1, 8);
    for (int i = 1; i < 3; i++)
        m->box[i] = i < rank ? (uint32_t)conform_random_in(seed, 1, i == 1 ? 24 : 4) : 1;
    for (int i = 0; i < 3; i++)
        m->dim[i] =
            i < rank ? (uint64_t)conform_random_in(seed, i == 0 ? 5 : 1, i == 2 ? 5 : 70) : 1;
    m->stride[0] = (2 * m->dim[0] + 15) / 16 * 16 + 16 * (uint64_t)conform_random_in(seed, 0, 2);
    m->stride[1] = m->stride[0] * (m->dim[1] + (uint64_t)conform_random_in(seed, 0, 2));
    t->bytes = (size_t)(rank == 3 ? m->stride[1] * m->dim[2] : m->stride[0] * m->dim[1]);
    for (size_t i = 0; i < sizeof t->data / 2; i++)
        t->data[i] = (uint16_t)(conform_random(seed) | 1);
}

/* Every element of the box at p: its place in the box and in the tensor, -1 outside. */
struct element {
    size_t in_box;
    int64_t in_tensor;
};
static size_t box_elements(const struct conform_map *m, const int32_t *p, struct element *e)
{
    size_t n = 0;
    for (uint32_t z = 0; z < m->box[2]; z++)
        for (uint32_t y = 0; y < m->box[1]; y++)
            for (uint32_t x = 0; x < m->box[0]; x++) {
                const int64_t at[3] = {p[0] + (int64_t)x, p[1] + (int64_t)y, p[2] + (int64_t)z};
                int64_t offset = 2 * at[0] + at[1] * (int64_t)m->stride[0];
                if (m->rank == 3)
                    offset += at[2] * (int64_t)m->stride[1];
                for (int i = 0; i < m->rank; i++)
                    if (at[i] < 0 || at[i] >= (int64_t)m->dim[i])
                        offset = -2;
                e[n++] = (struct element){
                    layout_box_at(m->swizzle, m->box[0], (int64_t)z * m->box[1] + y, x),
                    offset / 2};
            }
    return n;
}

static void random_corner(const struct conform_map *m, int turn, uint32_t *seed, int32_t *p)
{
    for (int i = 0; i < m->rank; i++)
        p[i] = turn == 0 ? 0 : conform_random_in(seed, -(int)m->box[i] - 1, (int)m->dim[i] + 1);
}

enum { MAX_BOX = 64 * 24 * 4, TURNS = 12 };

static int load_box(struct conform *c, struct tensor *t, int turn, uint32_t *seed)
{
    static uint16_t out[MAX_BOX], expected[MAX_BOX];
    static struct element e[MAX_BOX];
    struct conform_launch l = {.kernel = "conform_tma_load", .blocks = 1, .threads = 64};
    random_corner(&t->map, turn, seed, l.p);
    const size_t n = box_elements(&t->map, l.p, e);
    for (size_t i = 0; i < n; i++)
        expected[e[i].in_box] = e[i].in_tensor < 0 ? 0 : t->data[e[i].in_tensor];
    l.p[3] = t->map.rank;
    l.p[4] = (int32_t)(2 * n);
    memset(out, 0xee, sizeof out);
    l.smem = 1024 + (unsigned)(2 * n);
    l.in = t->data;
    l.in_bytes = t->bytes;
    l.out = out;
    l.out_bytes = 2 * n;
    l.map = &t->map;
    return conform_run(c, &l) || conform_same(c, out, expected, n, 2);
}

static int store_box(struct conform *c, struct tensor *t, int turn, uint32_t *seed)
{
    static uint16_t in[MAX_BOX], expected[TENSOR_BYTES / 2];
    static struct element e[MAX_BOX];
    struct conform_launch l = {.kernel = "conform_tma_store", .blocks = 1, .threads = 64};
    random_corner(&t->map, turn, seed, l.p);
    const size_t n = box_elements(&t->map, l.p, e);
    memcpy(expected, t->data, t->bytes);
    for (size_t i = 0; i < n; i++) {
        in[e[i].in_box] = (uint16_t)conform_random(seed);
        if (e[i].in_tensor >= 0)
            expected[e[i].in_tensor] = in[e[i].in_box];
    }
    l.p[3] = t->map.rank;
    l.p[4] = (int32_t)(2 * n);
    l.smem = (unsigned)(2 * n);
    l.in = in;
    l.in_bytes = 2 * n;
    l.out = t->data;
    l.out_bytes = t->bytes;
    t->map.of_out = true;
    l.map = &t->map;
    return conform_run(c, &l) || conform_same(c, t->data, expected, t->bytes / 2, 2);
}

/* "tma_load_2d, swizzle 128": direction, rank and swizzle are in the name. */
static int run_box(struct conform *c, const char *wrapper)
{
    static struct tensor t;
    const int rank = strstr(wrapper, "3d") ? 3 : 2, swizzle = atoi(strrchr(wrapper, ' '));
    uint32_t seed = 23 + (uint32_t)(rank + swizzle);
    for (int turn = 0; turn < TURNS; turn++) {
        memset(&t.map, 0, sizeof t.map);
        make_tensor(&t, rank, swizzle, &seed);
        if (strstr(wrapper, "load") ? load_box(c, &t, turn, &seed) : store_box(c, &t, turn, &seed))
            return 1;
    }
    return 0;
}

static int run_ring(struct conform *c, const char *wrapper)
{
    enum { ROWS = 16, BOXES = 7 };
    const int cluster = strstr(wrapper, "cluster") != NULL;
    static uint16_t in[BOXES * ROWS * 64];
    uint32_t out[64], expected[64] = {0}, seed = 29;
    for (int i = 0; i < BOXES * ROWS * 64; i++) {
        in[i] = (uint16_t)conform_random(&seed);
        expected[i % 64] += in[i];
    }
    const struct conform_map map = {
        .rank = 2, .dim = {64, BOXES * ROWS}, .stride = {128}, .box = {64, ROWS}};
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_tma_ring",
                                                   .blocks = 1,
                                                   .threads = 96,
                                                   .smem = 1024 + 2 * ROWS * 128,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out,
                                                   .map = &map,
                                                   .p = {BOXES, ROWS, cluster, 2, ROWS * 128}}) ||
           conform_same(c, out, expected, 64, 4);
}

/* --- registers and launches --- */

static int run_setmaxnreg(struct conform *c, const char *wrapper)
{
    (void)wrapper;
    uint32_t in[384], out[384], expected[384], seed = 31;
    for (int i = 0; i < 384; i++) {
        in[i] = conform_random(&seed);
        expected[i] = i < 128 ? in[i] * 3 + 1 : in[i] * 5 + 2;
    }
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_setmaxnreg",
                                                   .blocks = 1,
                                                   .threads = 384,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 384, 4);
}

static int run_griddep(struct conform *c, const char *wrapper)
{
    enum { N = 32 * 128 };
    (void)wrapper;
    static uint32_t in[N], out[2 * N], expected[2 * N];
    uint32_t seed = 37;
    for (int i = 0; i < N; i++) {
        in[i] = conform_random(&seed);
        expected[i] = in[i] + 1;
    }
    for (int i = 0; i < N; i++)
        expected[N + i] = 2 * expected[N - 1 - i];
    memset(out, 0xee, sizeof out);
    return conform_run(c, &(struct conform_launch){.kernel = "conform_griddep_launch",
                                                   .then = "conform_griddep_wait",
                                                   .blocks = 32,
                                                   .threads = 128,
                                                   .in = in,
                                                   .in_bytes = sizeof in,
                                                   .out = out,
                                                   .out_bytes = sizeof out}) ||
           conform_same(c, out, expected, 2 * N, 4);
}

const struct conform_case conform_copies[] = {
    {"mbar_arrive, mbar_wait, mbar_try_wait", 80, run_mbar_arrive},
    {"mbar_inval", 80, run_mbar_inval},
    {"cp_async_mbar_arrive", 80, run_cp_async_arrive},
    {"bulk_load, bulk_store, bulk_wait", 90, run_bulk},
    {"tma_load_2d, swizzle 0", 90, run_box},
    {"tma_load_2d, swizzle 32", 90, run_box},
    {"tma_load_2d, swizzle 64", 90, run_box},
    {"tma_load_2d, swizzle 128", 90, run_box},
    {"tma_load_3d, swizzle 0", 90, run_box},
    {"tma_load_3d, swizzle 32", 90, run_box},
    {"tma_load_3d, swizzle 64", 90, run_box},
    {"tma_load_3d, swizzle 128", 90, run_box},
    {"tma_store_2d, swizzle 0", 90, run_box},
    {"tma_store_2d, swizzle 64", 90, run_box},
    {"tma_store_2d, swizzle 128", 90, run_box},
    {"tma_store_3d, swizzle 0", 90, run_box},
    {"tma_store_3d, swizzle 128", 90, run_box},
    {"tma_load_2d, a ring of two stages", 90, run_ring},
    {"tma_load_2d_cluster, mbar_arrive_cluster", 90, run_ring},
    {"setmaxnreg_inc, setmaxnreg_dec", 90, run_setmaxnreg},
    {"griddep_wait, griddep_launch", 80, run_griddep},
    {0},
};
