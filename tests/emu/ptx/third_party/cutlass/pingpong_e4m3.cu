// e4m3 to bf16, tiles of 64 x 64 x 128, clusters of 1 x 2 blocks: tiles of a are multicast.
#include "gemm.cuh"

using Kernel =
    Build<cutlass::float_e4m3_t, cutlass::layout::RowMajor, cutlass::float_e4m3_t,
          cutlass::layout::ColumnMajor, cutlass::bfloat16_t, Shape<_64, _64, _128>,
          Shape<_1, _2, _1>, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum,
          cutlass::epilogue::TmaWarpSpecialized, cutlass::gemm::PersistentScheduler>::Kernel;
GEMM(Kernel)
