// Products of warpgroups: wgmma, of the target sm_90a ("Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions"). All four warps of a warpgroup (threads 128 i .. 128 i + 127)
// issue the same product; it runs on while they do other things:
//
//     wgmma_fence();                       // registers that d and a were written to are settled
//     for (k ..) wgmma_f16<N>(d, desc_a, desc_b, accumulate);
//     wgmma_commit();                      // they are one group
//     wgmma_wait<0>(d);                    // d is there, shared memory and a are free
//
// Between the first wgmma and the wait nothing touches d: no copy, no read. Ordinary stores to
// shared memory need fence_proxy_async by the writer, before the barrier.
#pragma once

#include "kernels/wgmma_desc.cuh"

GR_DEV void wgmma_fence()
{
    GR_SM90A(asm volatile("wgmma.fence.sync.aligned;" ::: "memory"));
}
GR_DEV void wgmma_commit()
{
    GR_SM90A(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"));
}
// Keeps uses of d on their side of the call.
template <int R> GR_DEV void wgmma_pin(float (&d)[R])
{
#pragma unroll
    for (int i = 0; i < R; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
// Waits until at most N of the warpgroup's newest groups are pending; d are the accumulators that
// are read next.
template <int N> GR_DEV void wgmma_wait()
{
    GR_SM90A(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"));
}
template <int N, int R> GR_DEV void wgmma_wait(float (&d)[R])
{
    wgmma_wait<N>();
    wgmma_pin(d);
}

// --- products: d [64, N] (+)= a [64, 16] b [16, N], N one of 8, 16, 32, 64, 96, 128, 192, 256 ---
//
// Warp w of the group holds rows 16 w .. of d: d[4 j], d[4 j + 1] (row g, columns 8 j + 2 t, .. +
// 1), d[4 j + 2], d[4 j + 3] row g + 8. B_MN, A_MN: that operand is MN-major. Not accumulate: d is
// written over. The _ra forms have a in registers, as mma_f16 has it, of the warp's 16 rows; they
// must not be written before the wait.

// The text and the operands of R accumulators, and X for each N: N, R, and the next operands'
// numbers.
#define GR_TEXT4 "%0,%1,%2,%3"
#define GR_TEXT8 GR_TEXT4 ",%4,%5,%6,%7"
#define GR_TEXT16 GR_TEXT8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GR_TEXT32 GR_TEXT16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GR_TEXT36 GR_TEXT32 ",%32,%33,%34,%35"
#define GR_TEXT40 GR_TEXT36 ",%36,%37,%38,%39"
#define GR_TEXT44 GR_TEXT40 ",%40,%41,%42,%43"
#define GR_TEXT48 GR_TEXT44 ",%44,%45,%46,%47"
#define GR_TEXT52 GR_TEXT48 ",%48,%49,%50,%51"
#define GR_TEXT56 GR_TEXT52 ",%52,%53,%54,%55"
#define GR_TEXT60 GR_TEXT56 ",%56,%57,%58,%59"
#define GR_TEXT64 GR_TEXT60 ",%60,%61,%62,%63"
#define GR_TEXT96                                                                                  \
    GR_TEXT64                                                                                      \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84"         \
    ",%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define GR_TEXT128                                                                                 \
    GR_TEXT96                                                                                      \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112"            \
    ",%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define GR_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GR_ACC8(i) GR_ACC4(i), GR_ACC4(i + 4)
#define GR_ACC16(i) GR_ACC8(i), GR_ACC8(i + 8)
#define GR_ACC32(i) GR_ACC16(i), GR_ACC16(i + 16)
#define GR_ACC36(i) GR_ACC32(i), GR_ACC4(i + 32)
#define GR_ACC40(i) GR_ACC36(i), GR_ACC4(i + 36)
#define GR_ACC44(i) GR_ACC40(i), GR_ACC4(i + 40)
#define GR_ACC48(i) GR_ACC44(i), GR_ACC4(i + 44)
#define GR_ACC52(i) GR_ACC48(i), GR_ACC4(i + 48)
#define GR_ACC56(i) GR_ACC52(i), GR_ACC4(i + 52)
#define GR_ACC60(i) GR_ACC56(i), GR_ACC4(i + 56)
#define GR_ACC64(i) GR_ACC60(i), GR_ACC4(i + 60)
#define GR_ACC96(i) GR_ACC64(i), GR_ACC32(i + 64)
#define GR_ACC128(i) GR_ACC64(i), GR_ACC64(i + 64)
#define GR_WGMMA_EACH(X, type)                                                                     \
    X(8, 4, type, 4, 5, 6, 7, 8, 9, 10)                                                            \
    X(16, 8, type, 8, 9, 10, 11, 12, 13, 14)                                                       \
    X(32, 16, type, 16, 17, 18, 19, 20, 21, 22)                                                    \
    X(64, 32, type, 32, 33, 34, 35, 36, 37, 38)                                                    \
    X(72, 36, type, 36, 37, 38, 39, 40, 41, 42)                                                    \
    X(80, 40, type, 40, 41, 42, 43, 44, 45, 46)                                                    \
    X(88, 44, type, 44, 45, 46, 47, 48, 49, 50)                                                    \
    X(96, 48, type, 48, 49, 50, 51, 52, 53, 54)                                                    \
    X(104, 52, type, 52, 53, 54, 55, 56, 57, 58)                                                   \
    X(112, 56, type, 56, 57, 58, 59, 60, 61, 62)                                                   \
    X(120, 60, type, 60, 61, 62, 63, 64, 65, 66)                                                   \
    X(128, 64, type, 64, 65, 66, 67, 68, 69, 70)                                                   \
    X(192, 96, type, 96, 97, 98, 99, 100, 101, 102)                                                \
    X(256, 128, type, 128, 129, 130, 131, 132, 133, 134)

#define GR_WGMMA_SS(N_, R, type, o0, o1, o2, o3, o4, o5, o6)                                       \
    if constexpr (N == N_)                                                                         \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2 ", 0;\n"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #N_ "k16.f32." type "." type              \
                     " {" GR_TEXT##R "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4 ";\n}"      \
                     : GR_ACC##R(0)                                                                \
                     : "l"(a), "l"(b), "r"((int)accumulate), "n"(A_MN), "n"(B_MN));
#define GR_WGMMA_RS(N_, R, type, o0, o1, o2, o3, o4, o5, o6)                                       \
    if constexpr (N == N_)                                                                         \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5 ", 0;\n"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #N_ "k16.f32." type "." type              \
                     " {" GR_TEXT##R "}, {%" #o0 ",%" #o1 ",%" #o2 ",%" #o3 "}, %" #o4             \
                                     ", p, 1, 1, %" #o6 ";\n}"                                     \
                     : GR_ACC##R(0)                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate),   \
                       "n"(B_MN));
#define GR_WGMMA(name, type)                                                                       \
    template <int N, int B_MN = 0, int A_MN = 0>                                                   \
    GR_DEV void name(float(&d)[N / 2], uint64_t a, uint64_t b, bool accumulate)                    \
    {                                                                                              \
        static_assert(wgmma_has<N>, "an N that wgmma.cuh lacks");                                  \
        GR_SM90A(GR_WGMMA_EACH(GR_WGMMA_SS, type));                                                \
    }                                                                                              \
    template <int N, int B_MN = 0>                                                                 \
    GR_DEV void name##_ra(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b, bool accumulate)    \
    {                                                                                              \
        static_assert(wgmma_has<N>, "an N that wgmma.cuh lacks");                                  \
        GR_SM90A(GR_WGMMA_EACH(GR_WGMMA_RS, type));                                                \
    }

// The products: wgmma_f16<N, B_MN, A_MN>(d, a, b, accumulate), wgmma_f16_ra<N, B_MN>, wgmma_bf16,
// wgmma_bf16_ra.
GR_WGMMA(wgmma_f16, "f16")
GR_WGMMA(wgmma_bf16, "bf16")
