/* The emulated cuBLASLt: products in every type and orientation against sums in f64, in order with
 * other work and in graphs, and what is refused or reported. */
#include <math.h>
#include <stdlib.h>

#include "base/f16.h"
#include "cuda/cublaslt.h"
#include "tests/emu/driver/driver.h"

extern struct gr_cublaslt lt;
struct gr_cublaslt lt; /* main.c fills it in */

enum { M = 20, N = 7, K = 33, PITCH = 40, BYTES = 1 << 14, WORKSPACE = 1 << 12 };

/* A product D = op(A) op(B), M by N, of K columns, and its memory. */
struct product {
    struct bench t;
    cublaslt_handle handle;
    cublaslt_desc desc;
    cublaslt_layout a, b, d;
    cublaslt_preference preference;
    struct cublaslt_choice choice;
    int n_choice;
    int32_t trans[2];
    int type;
    char *memory, *host; /* of the device; A, B and D are BYTES apart, the workspace behind them */
};

static double number(int i)
{
    return (double)(i * 7919 % 1000 - 500) / 256;
}

/* Stores numbers in the type of the product's A or B. */
static void put(char *to, int type, int i, double v)
{
    if (type == CUBLASLT_F32)
        ((float *)(void *)to)[i] = (float)v;
    else
        ((uint16_t *)(void *)to)[i] =
            type == CUBLASLT_BF16 ? gr_f32_to_bf16((float)v) : gr_f32_to_f16((float)v);
}

static double get(const char *from, int type, int i)
{
    return type == CUBLASLT_F32 ? (double)((const float *)(const void *)from)[i]
           : type == CUBLASLT_BF16
               ? (double)gr_bf16_to_f32(((const uint16_t *)(const void *)from)[i])
               : (double)gr_f16_to_f32(((const uint16_t *)(const void *)from)[i]);
}

static int ask(struct product *p)
{
    return lt.heuristic(p->handle, p->desc, p->a, p->b, p->d, p->d, p->preference, 1, &p->choice,
                        &p->n_choice);
}

static struct product open_product(int type, int32_t trans_a, int32_t trans_b)
{
    struct product p = {.t = bench_open("quiet"), .type = type, .trans = {trans_a, trans_b}};
    const uint64_t workspace = WORKSPACE;
    const uint32_t reductions = CUBLASLT_REDUCE_COMPUTE_TYPE;
    cu_pointer memory;
    OK(cu.alloc(&memory, 4 * BYTES));
    p.memory = (char *)(uintptr_t)memory;
    OK(cu.host_alloc((void **)&p.host, 4 * BYTES, 0));
    OK(lt.create(&p.handle));
    OK(lt.desc_create(&p.desc, CUBLASLT_COMPUTE_F32, CUBLASLT_F32));
    OK(lt.desc_set(p.desc, CUBLASLT_DESC_TRANS_A, &p.trans[0], 4));
    OK(lt.desc_set(p.desc, CUBLASLT_DESC_TRANS_B, &p.trans[1], 4));
    OK(lt.layout_create(&p.a, type, trans_a ? K : M, trans_a ? M : K, PITCH));
    OK(lt.layout_create(&p.b, type, trans_b ? N : K, trans_b ? K : N, PITCH));
    OK(lt.layout_create(&p.d, CUBLASLT_F32, M, N, PITCH));
    OK(lt.preference_create(&p.preference));
    OK(lt.preference_set(p.preference, CUBLASLT_PREFER_WORKSPACE, &workspace, sizeof workspace));
    OK(lt.preference_set(p.preference, CUBLASLT_PREFER_REDUCTIONS, &reductions, 4));
    OK(ask(&p));
    EXPECT_EQ(p.n_choice, 1);
    for (int i = 0; i < 2 * PITCH * PITCH; i++)
        put(p.host + i / (PITCH * PITCH) * BYTES, type, i % (PITCH * PITCH), number(i));
    OK(cu.copy_in(memory, p.host, 2 * BYTES, p.t.a));
    return p;
}

static void close_product(struct product *p)
{
    OK(cu.stream_sync(p->t.a));
    OK(lt.preference_destroy(p->preference));
    OK(lt.layout_destroy(p->d));
    OK(lt.layout_destroy(p->b));
    OK(lt.layout_destroy(p->a));
    OK(lt.desc_destroy(p->desc));
    OK(lt.destroy(p->handle));
    OK(cu.host_free(p->host));
    OK(cu.free((cu_pointer)(uintptr_t)p->memory));
    bench_close(&p->t);
}

static int run_at(const struct product *p, size_t a, size_t d, size_t workspace, cu_stream s)
{
    const float alpha = 0.5f, beta = 0;
    void *out = p->memory + d;
    return lt.matmul(p->handle, p->desc, &alpha, p->memory + a, p->a, p->memory + BYTES, p->b,
                     &beta, out, p->d, out, p->d, &p->choice.algo, p->memory + workspace, WORKSPACE,
                     s);
}

static int run(const struct product *p, cu_stream s)
{
    return run_at(p, 0, (size_t)2 * BYTES, (size_t)3 * BYTES, s);
}

/* D, once the stream is done, and that nothing stands between its columns. */
static void expect_sums(const struct product *p)
{
    const char *a = p->host, *b = p->host + BYTES;
    const float *d = (const void *)(p->host + (size_t)2 * BYTES);
    OK(cu.copy_out(p->host + (size_t)2 * BYTES, (cu_pointer)(uintptr_t)p->memory + 2 * BYTES, BYTES,
                   p->t.a));
    OK(cu.stream_sync(p->t.a));
    for (int i = 0; i < N; i++)
        for (int row = 0; row < M; row++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += get(a, p->type, p->trans[0] ? row * PITCH + k : k * PITCH + row) *
                       get(b, p->type, p->trans[1] ? k * PITCH + i : i * PITCH + k);
            EXPECT(fabs((double)d[i * PITCH + row] - sum / 2) < 1e-4);
        }
    EXPECT_EQ(((const uint8_t *)d)[4 * M], 0xa5);
}

static void test_products(void)
{
    static const int types[] = {CUBLASLT_F32, CUBLASLT_F16, CUBLASLT_BF16};
    for (int i = 0; i < 12; i++) {
        struct product p = open_product(types[i / 4], i % 2, i / 2 % 2);
        OK(cu.fill((cu_pointer)(uintptr_t)p.memory + 2 * BYTES, 0xa5, BYTES, p.t.a));
        OK(run(&p, p.t.a)); /* behind the fill */
        expect_sums(&p);
        close_product(&p);
    }
}

/* Captured, it runs when the graph does. */
static void test_graph(void)
{
    struct product p = open_product(CUBLASLT_F16, 1, 0);
    cu_graph graph;
    cu_graph_exec exec;
    OK(cu.stream_sync(p.t.a));
    OK(cu.capture_begin(p.t.a, CU_CAPTURE_THREAD_LOCAL));
    OK(cu.fill((cu_pointer)(uintptr_t)p.memory + 2 * BYTES, 0xa5, BYTES, p.t.a));
    OK(run(&p, p.t.a));
    OK(cu.capture_end(p.t.a, &graph));
    OK(cu.graph_instantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        OK(cu.fill((cu_pointer)(uintptr_t)p.memory + 2 * BYTES, 0, BYTES, p.t.a));
        OK(cu.graph_launch(exec, p.t.a));
        expect_sums(&p);
    }
    OK(cu.graph_exec_destroy(exec));
    OK(cu.graph_destroy(graph));
    close_product(&p);
}

/* ---- what is wrong ---- */

static void test_operands(void)
{
    struct product p = open_product(CUBLASLT_F16, 1, 0);
    const size_t d = (size_t)2 * BYTES, workspace = (size_t)3 * BYTES;
    EXPECT_EQ(run_at(&p, 16, d, workspace, p.t.a), CUBLASLT_INVALID_VALUE);
    REPORTED("is not aligned to 256");
    EXPECT_EQ(run_at(&p, (size_t)4 * BYTES, d, workspace, p.t.a), CUBLASLT_INVALID_VALUE);
    REPORTED("is no memory of the device");
    EXPECT_EQ(run_at(&p, 0, 0, workspace, p.t.a), CUBLASLT_INVALID_VALUE);
    REPORTED("D overlaps what is read");
    EXPECT_EQ(run_at(&p, 0, d, workspace + 16, p.t.a), CUBLASLT_INVALID_VALUE);
    REPORTED("the workspace");
    p.choice.algo.data[1]++;
    EXPECT_EQ(run(&p, p.t.a), CUBLASLT_INVALID_VALUE);
    REPORTED("the algorithm was chosen for another product");
    close_product(&p);
}

static void test_descriptors(void)
{
    struct product p = open_product(CUBLASLT_F16, 1, 0);
    cublaslt_layout b = p.b;
    const uint32_t any = 7;
    OK(lt.preference_set(p.preference, CUBLASLT_PREFER_REDUCTIONS, &any, 4));
    OK(ask(&p));
    REPORTED("may be added in place");
    p.b = p.a; /* N is M: another shape than D's */
    EXPECT_EQ(ask(&p), CUBLASLT_NOT_SUPPORTED);
    EXPECT_EQ(p.n_choice, 0);
    p.b = b;
    EXPECT_EQ(lt.layout_create(&b, CUBLASLT_F16, K, N, K - 1), CUBLASLT_INVALID_VALUE);
    EXPECT_EQ(lt.desc_set(p.desc, CUBLASLT_DESC_TRANS_A, &any, 1), CUBLASLT_INVALID_VALUE);
    EXPECT_EQ(lt.layout_destroy((cublaslt_layout)(void *)p.memory), CUBLASLT_INVALID_VALUE);
    REPORTED("is destroyed, or none");
    close_product(&p);
}

/* Products that no event orders behind a copy are reported, as kernels are. */
static void test_races(void)
{
    struct product p = open_product(CUBLASLT_F16, 1, 0);
    OK(cu.stream_sync(p.t.a));
    OK(run(&p, p.t.a));
    OK(cu.fill((cu_pointer)(uintptr_t)p.memory, 0, 16, p.t.b));
    OK(cu.stream_sync(p.t.a));
    OK(cu.stream_sync(p.t.b));
    REPORTED("cublasLtMatmul on stream 1");
    close_product(&p);
}

void test_cublaslt(void)
{
    test_products();
    test_graph();
    test_operands();
    test_descriptors();
    test_races();
}
