"""Matrix products in Triton, and their judges."""
import numpy as np
import triton
import triton.language as tl

import formats
from case import Array, Scalar, array, case, equal, output, value, worst


@triton.jit
def matmul_pointers(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr):
    """Product of a (m x k) and b (k x n, or n x k when TRANSPOSED), a tile of M x N a block."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    inside_row = row[:, None] < m
    inside_column = column[None, :] < n
    sum_type: tl.constexpr = tl.int32 if a.dtype.element_ty == tl.int8 else tl.float32
    total = tl.zeros((M, N), sum_type)
    for first in range(0, k, K):
        at = first + depth
        x = tl.load(a + row[:, None] * k + at[None, :], mask=inside_row & (at[None, :] < k), other=0.0)
        if TRANSPOSED:
            y = tl.load(b + column[None, :] * k + at[:, None], mask=inside_column & (at[:, None] < k), other=0.0)
        else:
            y = tl.load(b + at[:, None] * n + column[None, :], mask=inside_column & (at[:, None] < k), other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=sum_type)
    tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=inside_row & inside_column)


def product(rng, kind, out, m, n, k, transposed=False, input_bits=None, sum_bits=23):
    """Arrays of a product and its judge. Products of inputs are exact in f32; each of about k / 8
    additions of the tensor core, which truncates, errs by 2^-sum_bits of the sum of magnitudes at
    most. Inputs that are cut to `input_bits` fraction bits add two such errors of each product."""
    a = array(rng, kind, (m, k))
    b = array(rng, kind, (n, k) if transposed else (k, n))
    c = output(out, (m, n))
    x, y = value(a), value(b).T if transposed else value(b)

    def judge():
        if kind == 'i8':
            return equal(c.bits, x.astype(np.int64) @ y.astype(np.int64))
        want, magnitude = x @ y, np.abs(x) @ np.abs(y)
        tolerance = magnitude * (k / 8) * 2.0 ** -sum_bits
        if input_bits:
            tolerance += magnitude * 2 * 2.0 ** -input_bits
        return worst(value(c), want, tolerance + formats.rounding(np.abs(want) + tolerance, out))
    return a, b, c, judge


def pointers(name, kind, out, tile, size, warps=4, stages=3, transposed=False, precision='ieee',
             input_bits=None, sum_bits=23, ctas=1):
    """Case of matmul_pointers: tile M, N, K and size m, n, k."""
    m, n, k = size
    grid = (triton.cdiv(m, tile[0]), triton.cdiv(n, tile[1]))

    @case(name, matmul_pointers, grid, warps, stages, ctas, M=tile[0], N=tile[1], K=tile[2],
          TRANSPOSED=transposed, PRECISION=precision)
    def make(rng):
        a, b, c, judge = product(rng, kind, out, m, n, k, transposed, input_bits, sum_bits)
        return dict(a=a, b=b, c=c, m=Scalar('i32', m), n=Scalar('i32', n), k=Scalar('i32', k)), judge


pointers('matmul_f16_128x128', 'fp16', 'fp16', (128, 128, 64), (200, 176, 336))
pointers('matmul_f16_128x128_1_stage', 'fp16', 'fp32', (128, 128, 32), (200, 176, 144), stages=1)
pointers('matmul_f16_128x256_8_warps', 'fp16', 'fp16', (128, 256, 64), (144, 272, 272), 8, 4)
pointers('matmul_bf16_64x64', 'bf16', 'bf16', (64, 64, 32), (144, 80, 208), stages=2)
pointers('matmul_bf16_128x64_8_warps', 'bf16', 'fp32', (128, 64, 64), (144, 80, 400), 8, 4)
pointers('matmul_f16_cluster', 'fp16', 'fp16', (128, 128, 64), (200, 176, 208), ctas=2)
pointers('matmul_f16_16x32', 'fp16', 'fp32', (16, 32, 32), (48, 80, 112), 1, 2)
pointers('matmul_bf16_32x64', 'bf16', 'bf16', (32, 64, 64), (48, 80, 144), 4, 2, True)
pointers('matmul_tf32', 'fp32', 'fp32', (64, 64, 32), (80, 80, 112), precision='tf32', input_bits=10)
pointers('matmul_tf32_mma', 'fp32', 'fp32', (32, 32, 32), (48, 48, 112), precision='tf32', input_bits=10)
pointers('matmul_tf32x3', 'fp32', 'fp32', (64, 64, 32), (80, 80, 112), precision='tf32x3', input_bits=19)
pointers('matmul_f32', 'fp32', 'fp32', (32, 32, 16), (48, 48, 80))
pointers('matmul_i8', 'i8', 'i32', (128, 64, 64), (144, 80, 208), transposed=True)
pointers('matmul_i8_mma', 'i8', 'i32', (32, 32, 64), (48, 48, 144), transposed=True)
# Sums of 8-bit products have 13 fraction bits in the tensor core.
pointers('matmul_e4m3', 'fp8e4nv', 'fp32', (128, 128, 64), (144, 144, 208), transposed=True, sum_bits=13)
pointers('matmul_e5m2', 'fp8e5', 'fp16', (64, 128, 128), (80, 144, 272), transposed=True, sum_bits=13)
pointers('matmul_e4m3_mma', 'fp8e4nv', 'fp32', (32, 32, 64), (48, 48, 144), transposed=True, sum_bits=13)


@triton.jit
def matmul_mixed(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Product of 8-bit a, scaled by row, and 16-bit b: a is converted in registers."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, k, K):
        at = first + tl.arange(0, K)
        x = tl.load(a + row[:, None] * k + at[None, :], mask=(row[:, None] < m) & (at[None, :] < k), other=0.0)
        y = tl.load(b + at[:, None] * n + column[None, :], mask=(column[None, :] < n) & (at[:, None] < k), other=0.0)
        total = tl.dot(x.to(y.dtype), y, total)
    tl.store(c + row[:, None] * n + column[None, :], total, mask=(row[:, None] < m) & (column[None, :] < n))


def mixed(name, kind, other, size):
    m, n, k = size

    @case(name, matmul_mixed, (triton.cdiv(m, 64), triton.cdiv(n, 64)), M=64, N=64, K=64)
    def make(rng):
        a, b, c = array(rng, kind, (m, k)), array(rng, other, (k, n)), output('fp32', (m, n))

        def judge():
            size = np.abs(value(a).astype(np.float64)) @ np.abs(value(b))
            return worst(value(c), value(a) @ value(b), size * (k / 8) * 2.0 ** -23)
        return dict(a=a, b=b, c=c, m=Scalar('i32', m), n=Scalar('i32', n), k=Scalar('i32', k)), judge


mixed('matmul_mixed_e5m2_f16', 'fp8e5', 'fp16', (80, 80, 208))
mixed('matmul_mixed_i8_bf16', 'i8', 'bf16', (80, 80, 208))


@triton.jit
def matmul_scaled(a, a_scale, b, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Product of a tile of MXFP4 (pairs in a byte, a scale of 8 bits for 32) and MXFP8 (e4m3)."""
    row, column = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(a + row[:, None] * (K // 2) + tl.arange(0, K // 2)[None, :])
    y = tl.load(b + tl.arange(0, K)[:, None] * N + column[None, :])
    x_scale = tl.load(a_scale + row[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    y_scale = tl.load(b_scale + column[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    total = tl.dot_scaled(x, x_scale, 'e2m1', y, y_scale, 'e4m3')
    tl.store(c + row[:, None] * N + column[None, :], total)


@case('matmul_mxfp4', matmul_scaled, (1,), M=128, N=64, K=128)
def scaled(rng):
    m, n, k = 128, 64, 128
    a = Array('u8', rng.integers(0, 256, (m, k // 2), np.uint8))
    a_scale, b_scale = (Array('u8', rng.integers(120, 134, (x, k // 32), np.uint8)) for x in (m, n))
    b, c = array(rng, 'fp8e4nv', (k, n)), output('fp32', (m, n))

    def judge():
        e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
        x = e2m1[np.stack([a.bits & 15, a.bits >> 4], 2).reshape(m, k)]
        x = x * np.repeat(2.0 ** (a_scale.bits.astype(np.float64) - 127), 32, 1)
        y = value(b) * np.repeat(2.0 ** (b_scale.bits.astype(np.float64) - 127), 32, 1).T
        return worst(value(c), x @ y, np.abs(x) @ np.abs(y) * (k / 8) * 2.0 ** -23)
    return dict(a=a, a_scale=a_scale, b=b, b_scale=b_scale, c=c), judge
