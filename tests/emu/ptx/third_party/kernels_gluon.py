"""Kernels in Gluon, Triton's lower language: warps, barriers and clusters are said, not derived."""
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (fence_async_shared, mbarrier, tma,
                                                              warpgroup_mma, warpgroup_mma_wait)

from case import Descriptor, Scalar, case
from kernels_matmul import product

SWIZZLE_128 = gl.NVMMASharedLayout(128, 16, 2)
OF_ROWS = gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]])   # a block of the cluster has half the rows
OF_BOTH = gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]])   # both have all


@gluon.jit
def loader(from_a, from_b, tiles_a, tiles_b, full, empty, k, row, column):
    """Warp that loads tiles into a ring as places become empty."""
    stages: gl.constexpr = tiles_a.shape[0]
    depth: gl.constexpr = from_a.block_shape[1]
    for i in range(gl.cdiv(k, depth)):
        place = i % stages
        mbarrier.wait(empty.index(place), (i // stages & 1) ^ 1)
        mbarrier.expect(full.index(place), from_a.nbytes_per_cta + from_b.nbytes_per_cta)
        tma.async_load(from_a, [row, i * depth], full.index(place), tiles_a.index(place))
        tma.async_load(from_b, [i * depth, column], full.index(place), tiles_b.index(place))


@gluon.jit
def multiplier(to_c, tiles_a, tiles_b, full, empty, k, row, column):
    """Warp group that multiplies tiles, one product behind the next."""
    stages: gl.constexpr = tiles_a.shape[0]
    depth: gl.constexpr = tiles_a.shape[2]
    M: gl.constexpr = to_c.block_shape[0]
    N: gl.constexpr = to_c.block_shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    total = gl.zeros((M, N), gl.float32, layout)
    for i in range(gl.cdiv(k, depth)):
        place = i % stages
        mbarrier.wait(full.index(place), i // stages & 1)
        token = warpgroup_mma(tiles_a.index(place), tiles_b.index(place), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=(token,))
        mbarrier.arrive(empty.index(place))
    out = gl.allocate_shared_memory(to_c.dtype, [M, N], to_c.layout)
    out.store(total.to(to_c.dtype))
    fence_async_shared()
    tma.async_store(to_c, [row, column], out)
    tma.store_wait(0)


@gluon.jit
def matmul_specialized(from_a, from_b, to_c, k, STAGES: gl.constexpr):
    """Product of a tile by a warp that loads and four that multiply."""
    row = gl.program_id(0) * to_c.block_shape[0]
    column = gl.program_id(1) * to_c.block_shape[1]
    tiles_a = gl.allocate_shared_memory(from_a.dtype, [STAGES] + from_a.block_shape, from_a.layout)
    tiles_b = gl.allocate_shared_memory(from_b.dtype, [STAGES] + from_b.block_shape, from_b.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize([(multiplier, (to_c, tiles_a, tiles_b, full, empty, k, row, column)),
                        (loader, (from_a, from_b, tiles_a, tiles_b, full, empty, k, row, column))], [1])


@gluon.jit
def matmul_cluster(from_a, from_b, to_c, k):
    """Product of a tile by a cluster of two blocks: each loads its rows of a, b is multicast."""
    M: gl.constexpr = to_c.block_shape[0]
    N: gl.constexpr = to_c.block_shape[1]
    depth: gl.constexpr = from_a.block_shape[1]
    row, column = gl.program_id(0) * M, gl.program_id(1) * N
    tile_a = gl.allocate_shared_memory(from_a.dtype, from_a.block_shape, from_a.layout)
    tile_b = gl.allocate_shared_memory(from_b.dtype, from_b.block_shape, from_b.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16], cga_layout=[[1, 0]])
    total = gl.zeros((M, N), gl.float32, layout)
    for i in range(gl.cdiv(k, depth)):
        gl.barrier(cluster=True)   # of the tiles' last readers, in both blocks
        mbarrier.expect(full, from_a.nbytes_per_cta + from_b.nbytes_per_cta)
        tma.async_load(from_a, [row, i * depth], full, tile_a)
        tma.async_load(from_b, [i * depth, column], full, tile_b, multicast=True)
        mbarrier.wait(full, i & 1)
        total = warpgroup_mma(tile_a, tile_b, total)
    mbarrier.invalidate(full)
    out = gl.allocate_shared_memory(to_c.dtype, [M, N], to_c.layout)
    out.store(total.to(to_c.dtype))
    fence_async_shared()
    tma.async_store(to_c, [row, column], out)
    tma.store_wait(0)


@case('gluon_specialized', matmul_specialized, (3, 2), STAGES=3)
def specialized_case(rng):
    m, n, k = 144, 176, 528
    a, b, c, judge = product(rng, 'fp16', 'fp16', m, n, k)
    return dict(from_a=Descriptor(a, (64, 64), SWIZZLE_128), from_b=Descriptor(b, (64, 128), SWIZZLE_128),
                to_c=Descriptor(c, (64, 128), SWIZZLE_128), k=Scalar('i32', k)), judge


@case('gluon_cluster_multicast', matmul_cluster, (2, 2), ctas=2)
def cluster_case(rng):
    m, n, k = 200, 176, 272
    a, b, c, judge = product(rng, 'bf16', 'bf16', m, n, k)
    return dict(from_a=Descriptor(a, (128, 64), OF_ROWS), from_b=Descriptor(b, (64, 128), OF_BOTH),
                to_c=Descriptor(c, (128, 128), OF_ROWS), k=Scalar('i32', k)), judge
