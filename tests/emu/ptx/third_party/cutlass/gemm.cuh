// A CUTLASS kernel for sm_90 as an entry with a plain name, and the host's part of its launch:
// d = alpha a b + beta c, with a of m x k, b of k x n, c and d of m x n.
#pragma once
#include <cstring>
#include <new>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

using namespace cute;

// Kernel of element types A and B (accumulated in float), layouts, a tile, a cluster and schedules.
template <class A, class LayoutA, class B, class LayoutB, class D, class Tile, class Cluster,
          class Mainloop, class Epilogue, class Scheduler>
struct Build {
    using Row = cutlass::layout::RowMajor;
    static constexpr int elements(int bits) // of 16 bytes
    {
        return 128 / bits;
    }
    using Output = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, D, Row,
        elements(cutlass::sizeof_bits<D>::value), D, Row, elements(cutlass::sizeof_bits<D>::value),
        Epilogue>::CollectiveOp;
    using Input = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, LayoutA,
        elements(cutlass::sizeof_bits<A>::value), B, LayoutB,
        elements(cutlass::sizeof_bits<B>::value), float, Tile, Cluster,
        cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
            sizeof(typename Output::SharedStorage))>,
        Mainloop>::CollectiveOp;
    using Kernel =
        cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Input, Output, Scheduler>;
};

// Launch configuration, for the host.
struct Launch {
    unsigned grid[3], threads, smem, cluster[3], bytes;
};

struct Problem {
    const void *a, *b, *c;
    void *d;
    int m, n, k, multiprocessors;
    float alpha, beta;
};

// Strides of a matrix without gaps, and of a batch of such ones.
template <class S> S packed(int rows, int columns)
{
    S stride = cutlass::make_cute_packed_stride(S{}, make_shape(rows, columns, 1));
    get<2>(stride) = int64_t(rows) * columns;
    return stride;
}

// Fills `launch`, and `params` (`size` bytes) with the kernel's parameter. Tensor maps in it come
// from gemm_encode. Returns 0, or -1 for a problem that the kernel does not take.
template <class Kernel> int prepare(const Problem *p, void *params, size_t size, Launch *launch)
{
    using namespace cutlass;
    typename Kernel::Arguments args{};
    args.mode = gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {p->m, p->n, p->k, 1};
    args.mainloop.ptr_A = static_cast<const typename Kernel::ElementA *>(p->a);
    args.mainloop.ptr_B = static_cast<const typename Kernel::ElementB *>(p->b);
    args.mainloop.dA = packed<typename Kernel::StrideA>(p->m, p->k);
    args.mainloop.dB = packed<typename Kernel::StrideB>(p->n, p->k);
    args.epilogue.ptr_C = static_cast<const typename Kernel::ElementC *>(p->c);
    args.epilogue.ptr_D = static_cast<typename Kernel::ElementD *>(p->d);
    args.epilogue.dC = packed<typename Kernel::StrideC>(p->m, p->n);
    args.epilogue.dD = packed<typename Kernel::StrideD>(p->m, p->n);
    args.epilogue.thread.alpha = p->alpha;
    args.epilogue.thread.beta = p->beta;
    args.hw_info.sm_count = p->multiprocessors;
    using Params = typename Kernel::Params;
    using Cluster = typename Kernel::ClusterShape;
    if (!Kernel::can_implement(args) || Kernel::get_workspace_size(args) != 0 ||
        size < sizeof(Params))
        return -1;
    alignas(Params) static char bytes[sizeof(Params)];
    std::memset(bytes, 0, sizeof bytes);
    Params *made = new (bytes) Params(Kernel::to_underlying_arguments(args, nullptr));
    dim3 grid = Kernel::get_grid_shape(*made), block = Kernel::get_block_shape();
    *launch = {
        {grid.x, grid.y, grid.z},
        block.x,
        static_cast<unsigned>(Kernel::SharedStorageSize),
        {static_cast<unsigned>(get<0>(Cluster{})), static_cast<unsigned>(get<1>(Cluster{})), 1},
        static_cast<unsigned>(sizeof(Params))};
    std::memcpy(params, bytes, sizeof(Params));
    return 0;
}

// cuTensorMapEncodeTiled, which the host sets before it calls gemm_prepare.
extern "C" {
decltype(&cuTensorMapEncodeTiled) gemm_encode;
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *data, const cuuint64_t *dim, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *step,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    return gemm_encode(map, type, rank, data, dim, stride, box, step, interleave, swizzle,
                       promotion, fill);
}
}

// Entry `gemm`, and gemm_prepare for it.
#define GEMM(KERNEL)                                                                               \
    extern "C" __global__ void __launch_bounds__(KERNEL::MaxThreadsPerBlock,                       \
                                                 KERNEL::MinBlocksPerMultiprocessor)               \
        gemm(const __grid_constant__ KERNEL::Params params)                                        \
    {                                                                                              \
        extern __shared__ char smem[];                                                             \
        KERNEL{}(params, smem);                                                                    \
    }                                                                                              \
    extern "C" int gemm_prepare(const Problem *p, void *params, size_t size, Launch *launch)       \
    {                                                                                              \
        return prepare<KERNEL>(p, params, size, launch);                                           \
    }
