// bf16 to f32, tiles of 128 x 128 x 64 that two warp groups share, clusters of 2 x 1 blocks: tiles
// of b are multicast. a with consecutive k, b with consecutive n.
#include "gemm.cuh"

using Kernel = Build<cutlass::bfloat16_t, cutlass::layout::RowMajor, cutlass::bfloat16_t,
                     cutlass::layout::RowMajor, float, Shape<_128, _128, _64>, Shape<_2, _1, _1>,
                     cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                     cutlass::epilogue::TmaWarpSpecializedCooperative,
                     cutlass::gemm::PersistentScheduler>::Kernel;
GEMM(Kernel)
