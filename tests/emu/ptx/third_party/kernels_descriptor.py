"""Matrix products with tensor descriptors: TMA loads and stores with mbarriers."""
import numpy as np
import triton
import triton.language as tl

from case import Descriptor, Scalar, array, case, value, worst, zeros
from kernels_matmul import product


@triton.jit
def matmul_device_descriptor(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                             SPECIALIZE: tl.constexpr):
    """Product with descriptors that the kernel makes: a tile a block."""
    from_a = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[M, K])
    from_b = tl.make_tensor_descriptor(b, shape=[k, n], strides=[n, 1], block_shape=[K, N])
    to_c = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for first in tl.range(0, k, K, warp_specialize=SPECIALIZE):
        total = tl.dot(from_a.load([row, first]), from_b.load([first, column]), total)
    to_c.store([row, column], total.to(c.dtype.element_ty))


@triton.jit
def matmul_host_descriptor(from_a, from_b, to_c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                           TRANSPOSED: tl.constexpr, SPECIALIZE: tl.constexpr):
    """Product with descriptors that the host makes."""
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for first in tl.range(0, k, K, warp_specialize=SPECIALIZE):
        x = from_a.load([row, first])
        y = from_b.load([column, first]).T if TRANSPOSED else from_b.load([first, column])
        total = tl.dot(x, y, total)
    to_c.store([row, column], total.to(to_c.dtype))


@triton.jit
def matmul_persistent(from_a, from_b, to_c, m, n, k, M: tl.constexpr, N: tl.constexpr,
                      K: tl.constexpr, FLATTEN: tl.constexpr, SPECIALIZE: tl.constexpr):
    """Product by fewer blocks than tiles: a block takes every num_programs-th tile."""
    across = tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, M) * across, tl.num_programs(0), flatten=FLATTEN,
                         warp_specialize=SPECIALIZE):
        row, column = tile // across * M, tile % across * N
        total = tl.zeros((M, N), tl.float32)
        for first in range(0, k, K):
            total = tl.dot(from_a.load([row, first]), from_b.load([first, column]), total)
        to_c.store([row, column], total.to(to_c.dtype))


@triton.jit
def matmul_persistent_device(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                             FLATTEN: tl.constexpr, SPECIALIZE: tl.constexpr, HALVES: tl.constexpr):
    """Product by fewer blocks than tiles with descriptors that the kernel makes; HALVES: stores a
    tile in two parts."""
    from_a = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[M, K])
    from_b = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[N, K])
    to_c = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1],
                                     block_shape=[M, N // 2 if HALVES else N])
    across = tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, M) * across, tl.num_programs(0), flatten=FLATTEN,
                         warp_specialize=SPECIALIZE):
        row, column = tile // across * M, tile % across * N
        total = tl.zeros((M, N), tl.float32)
        for first in range(0, k, K):
            total = tl.dot(from_a.load([row, first]), from_b.load([column, first]).T, total)
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(total, (M, 2, N // 2)), (0, 2, 1)))
            to_c.store([row, column], left.to(c.dtype.element_ty))
            to_c.store([row, column + N // 2], right.to(c.dtype.element_ty))
        else:
            to_c.store([row, column], total.to(c.dtype.element_ty))


@triton.jit
def matmul_batched(from_a, from_b, to_c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr):
    """Products of a batch with descriptors of three dimensions; each block adds a part of k to c."""
    batch, row, part = tl.program_id(0), tl.program_id(1) * M, tl.program_id(2)
    total = tl.zeros((M, N), tl.float32)
    for first in range(part * K, k, PARTS * K):
        x = tl.reshape(from_a.load([batch, row, first]), (M, K))
        y = tl.reshape(from_b.load([batch, first, 0]), (K, N))
        total = tl.dot(x, y, total)
    to_c.atomic_add([batch, row, 0], tl.reshape(total, (1, M, N)))


def sizes(m, n, k):
    return dict(m=Scalar('i32', m), n=Scalar('i32', n), k=Scalar('i32', k))


def on_device(name, kind, out, tile, size, warps=4, stages=3, specialize=False):
    m, n, k = size

    @case(name, matmul_device_descriptor, (triton.cdiv(m, tile[0]), triton.cdiv(n, tile[1])), warps,
          stages, M=tile[0], N=tile[1], K=tile[2], SPECIALIZE=specialize)
    def make(rng):
        a, b, c, judge = product(rng, kind, out, m, n, k)
        return dict(a=a, b=b, c=c, **sizes(m, n, k)), judge


def on_host(name, kind, out, tile, size, warps=4, stages=3, ctas=1, transposed=False, specialize=False,
            **judged):
    m, n, k = size

    @case(name, matmul_host_descriptor, (triton.cdiv(m, tile[0]), triton.cdiv(n, tile[1])), warps, stages,
          ctas, M=tile[0], N=tile[1], K=tile[2], TRANSPOSED=transposed, SPECIALIZE=specialize)
    def make(rng):
        a, b, c, judge = product(rng, kind, out, m, n, k, transposed, **judged)
        return dict(from_a=Descriptor(a, (tile[0], tile[2])),
                    from_b=Descriptor(b, (tile[1], tile[2]) if transposed else (tile[2], tile[1])),
                    to_c=Descriptor(c, (tile[0], tile[1])), k=Scalar('i32', k)), judge


def persistent(name, kind, out, tile, size, blocks, warps=4, stages=3, flatten=False, specialize=False):
    m, n, k = size

    @case(name, matmul_persistent, (blocks,), warps, stages, M=tile[0], N=tile[1], K=tile[2],
          FLATTEN=flatten, SPECIALIZE=specialize)
    def make(rng):
        a, b, c, judge = product(rng, kind, out, m, n, k)
        return dict(from_a=Descriptor(a, (tile[0], tile[2])), from_b=Descriptor(b, (tile[2], tile[1])),
                    to_c=Descriptor(c, (tile[0], tile[1])), **sizes(m, n, k)), judge


on_device('descriptor_device_f16', 'fp16', 'fp16', (128, 128, 64), (200, 176, 336))
on_device('descriptor_device_bf16_32', 'bf16', 'fp32', (64, 32, 32), (144, 48, 208), stages=4)
on_host('descriptor_host_f16', 'fp16', 'fp16', (128, 128, 64), (200, 176, 336), stages=4)
on_host('descriptor_host_bf16_8_warps', 'bf16', 'bf16', (128, 256, 64), (144, 272, 272), 8)
on_host('descriptor_host_e4m3', 'fp8e4nv', 'fp16', (128, 64, 128), (144, 80, 272), transposed=True, sum_bits=13)
on_host('descriptor_host_tf32', 'fp32', 'fp32', (64, 64, 32), (80, 80, 144), transposed=True, input_bits=10)
on_host('descriptor_host_cluster', 'fp16', 'fp16', (128, 128, 64), (256, 256, 192), ctas=2)
# Specialisation of warps: Triton 3.9 does it on sm_90 when it is asked for 4 warps: a warp group that
# loads and two that multiply. With descriptors of the host it fails to compile tiles of 128 rows (halves of a box); of
# tiles with 64 rows both groups compute and store all (Triton's pull request 10436).
on_device('specialized_f16', 'fp16', 'fp16', (128, 128, 64), (200, 176, 336), specialize=True)
on_device('specialized_bf16_128x256', 'bf16', 'bf16', (128, 256, 64), (144, 272, 272), specialize=True)
on_host('specialized_twice_f16', 'fp16', 'fp16', (64, 128, 64), (144, 176, 336), specialize=True)
on_host('specialized_twice_e5m2', 'fp8e5', 'fp16', (64, 64, 128), (144, 80, 528), stages=2,
        transposed=True, specialize=True, sum_bits=13)
persistent('persistent_f16', 'fp16', 'fp16', (128, 128, 64), (320, 272, 144), 4)
persistent('persistent_flat_bf16', 'bf16', 'bf16', (64, 64, 64), (208, 144, 144), 4, flatten=True)


def persistent_device(name, kind, out, warps, **constants):
    @case(name, matmul_persistent_device, (4,), warps, M=128, N=128, K=64, **constants)
    def make(rng):
        m, n, k = 320, 272, 144
        a, b, c, judge = product(rng, kind, out, m, n, k, True)
        return dict(a=a, b=b, c=c, **sizes(m, n, k)), judge


persistent_device('persistent_device_f16', 'fp16', 'fp16', 8, FLATTEN=True, SPECIALIZE=False, HALVES=True)
persistent_device('persistent_specialized_f16', 'fp16', 'fp16', 4, FLATTEN=False, SPECIALIZE=True,
                  HALVES=False)
persistent_device('persistent_specialized_bf16', 'bf16', 'bf16', 4, FLATTEN=False, SPECIALIZE=True,
                  HALVES=True)


@case('descriptor_batched', matmul_batched, (3, 2, 2), M=64, N=64, K=32, PARTS=2)
def batched(rng):
    m, n, k = 80, 64, 208
    a, b, c = array(rng, 'fp16', (3, m, k)), array(rng, 'fp16', (3, k, n)), zeros('fp32', (3, m, n))

    def judge():
        tolerance = np.abs(value(a)) @ np.abs(value(b)) * (k / 8) * 2.0 ** -23
        return worst(value(c), value(a) @ value(b), tolerance)
    return dict(from_a=Descriptor(a, (1, 64, 32)), from_b=Descriptor(b, (1, 32, 64)),
                to_c=Descriptor(c, (1, 64, 64)), k=Scalar('i32', k)), judge
