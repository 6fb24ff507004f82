// f16, tiles of 64 x 128 x 64, no cluster: a warp group that loads and two that take turns at whole
// tiles. a and b with consecutive k.
#include "gemm.cuh"

using Kernel =
    Build<cutlass::half_t, cutlass::layout::RowMajor, cutlass::half_t, cutlass::layout::ColumnMajor,
          cutlass::half_t, Shape<_64, _128, _64>, Shape<_1, _1, _1>,
          cutlass::gemm::KernelTmaWarpSpecializedPingpong, cutlass::epilogue::TmaWarpSpecialized,
          cutlass::gemm::PersistentScheduler>::Kernel;
GEMM(Kernel)
