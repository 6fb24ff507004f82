"""Kernels on rows in Triton: softmax, norms, scans, sorting, reductions, and their judges."""
import numpy as np
import triton
import triton.language as tl

import formats
from case import Array, Scalar, array, case, equal, output, value, worst

ULP = 2.0 ** -23   # of f32, between 1 and 2


@triton.jit
def softmax(x, y, n, N: tl.constexpr):
    """Softmax of a row of n numbers a block."""
    row, column = tl.program_id(0), tl.arange(0, N)
    v = tl.load(x + row * n + column, mask=column < n, other=-float('inf')).to(tl.float32)
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * n + column, v / tl.sum(v, axis=0), mask=column < n)


@triton.jit
def softmax_in_parts(x, y, n, N: tl.constexpr):
    """Softmax in two passes over parts of N, with a running maximum and sum."""
    row = tl.program_id(0)
    top, total = -float('inf'), 0.0
    for first in tl.range(0, n, N, num_stages=3):
        column = first + tl.arange(0, N)
        v = tl.load(x + row * n + column, mask=column < n, other=-float('inf')).to(tl.float32)
        new = tl.maximum(top, tl.max(v, axis=0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(v - new), axis=0)
        top = new
    for first in tl.range(0, n, N):
        column = first + tl.arange(0, N)
        v = tl.load(x + row * n + column, mask=column < n, other=0.0).to(tl.float32)
        tl.store(y + row * n + column, tl.exp(v - top) / total, mask=column < n)


def softmax_case(name, fn, kind, out, rows, n, **options):
    @case(name, fn, (rows,), **options)
    def make(rng):
        x, y = array(rng, kind, (rows, n), 3.0), output(out, (rows, n))

        def judge():
            below = value(x) - value(x).max(1, keepdims=True)
            want = np.exp(below)
            want /= want.sum(1, keepdims=True)
            tolerance = want * (32 + 4 * np.abs(below)) * ULP + 2.0 ** -126
            return worst(value(y), want, tolerance + formats.rounding(want, out))
        return dict(x=x, y=y, n=Scalar('i32', n)), judge


softmax_case('softmax_f32', softmax, 'fp32', 'fp32', 7, 781, N=1024)
softmax_case('softmax_f16_1_warp', softmax, 'fp16', 'fp16', 5, 100, N=128, warps=1)
softmax_case('softmax_bf16_8_warps', softmax, 'bf16', 'bf16', 3, 4000, N=4096, warps=8)
# Row shared by the two blocks of a cluster, which exchange maxima and sums.
softmax_case('softmax_cluster', softmax, 'fp32', 'fp32', 3, 1501, N=2048, ctas=2)
softmax_case('softmax_in_parts', softmax_in_parts, 'fp32', 'fp32', 4, 1900, N=512)


@triton.jit
def layer_norm(x, weight, bias, y, mean_out, scale_out, n, epsilon, N: tl.constexpr):
    """Layer norm of a row of n numbers a block, with mean and 1 / standard deviation."""
    row, column = tl.program_id(0), tl.arange(0, N)
    inside = column < n
    v = tl.load(x + row * n + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / n
    centred = tl.where(inside, v - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / n + epsilon)
    w = tl.load(weight + column, mask=inside, other=0.0)
    b = tl.load(bias + column, mask=inside, other=0.0)
    tl.store(y + row * n + column, centred * scale * w + b, mask=inside)
    tl.store(mean_out + row, mean)
    tl.store(scale_out + row, scale)


@case('layer_norm', layer_norm, (6,), N=1024)
def layer_norm_case(rng):
    rows, n, epsilon = 6, 1000, 1e-5
    x, w, b = array(rng, 'fp16', (rows, n)), array(rng, 'fp32', (n,)), array(rng, 'fp32', (n,))
    y, mean, scale = output('fp16', (rows, n)), output('fp32', (rows,)), output('fp32', (rows,))

    def judge():
        v = value(x)
        m = v.mean(1)
        s = 1 / np.sqrt(v.var(1) + epsilon)
        of_mean = 16 * ULP * np.abs(v).mean(1)
        normal = (v - m[:, None]) * s[:, None]
        want = normal * value(w) + value(b)
        tolerance = np.abs(value(w)) * (of_mean[:, None] * s[:, None] + 32 * ULP * np.abs(normal))
        tolerance += 2 * ULP * np.abs(want)
        return max(worst(value(mean), m, of_mean), worst(value(scale), s, 32 * ULP * s),
                   worst(value(y), want, tolerance + formats.rounding(want, 'fp16')))
    return dict(x=x, weight=w, bias=b, y=y, mean_out=mean, scale_out=scale, n=Scalar('i32', n),
                epsilon=Scalar('fp32', epsilon)), judge


@triton.jit
def sums(x, y, n, N: tl.constexpr, M: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    """Prefix sums of a tile along an axis."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + tl.program_id(0) * M * N + at)
    tl.store(y + tl.program_id(0) * M * N + at, tl.cumsum(v, axis=AXIS, reverse=REVERSE))


def sums_case(name, kind, axis, reverse, m, n, warps=4, ctas=1):
    @case(name, sums, (2,), warps, ctas=ctas, M=m, N=n, AXIS=axis, REVERSE=reverse)
    def make(rng):
        x, y = array(rng, kind, (2, m, n)), output(kind, (2, m, n))

        def scan(v):
            v = np.flip(v, axis + 1) if reverse else v
            v = np.cumsum(v, axis + 1, dtype=v.dtype)
            return np.flip(v, axis + 1) if reverse else v

        def judge():
            if kind == 'i32':
                return equal(y.bits, scan(x.bits))
            return worst(value(y), scan(value(x)), 16 * ULP * scan(np.abs(value(x))))
        return dict(x=x, y=y, n=Scalar('i32', n)), judge


sums_case('scan_f32', 'fp32', 1, False, 4, 512)
sums_case('scan_f32_reverse', 'fp32', 1, True, 2, 1024, 2)
sums_case('scan_i32_cluster', 'i32', 1, False, 2, 512, ctas=2)
sums_case('scan_i32_columns', 'i32', 0, False, 128, 16)


@triton.jit
def after(decay, add, next_decay, next_add):
    return decay * next_decay, add * next_decay + next_add


@triton.jit
def recurrence(decay, x, y, N: tl.constexpr):
    """h[i] = decay[i] h[i-1] + x[i] as an associative scan of pairs."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    _, h = tl.associative_scan((tl.load(decay + at), tl.load(x + at)), 0, after)
    tl.store(y + at, h)


@case('scan_recurrence', recurrence, (3,), N=1024)
def recurrence_case(rng):
    rows, n = 3, 1024
    decay = Array('fp32', (0.5 + 0.5 * rng.random((rows, n))).astype(np.float32))
    x, y = array(rng, 'fp32', (rows, n)), output('fp32', (rows, n))

    def judge():
        h, size, want, tolerance = np.zeros(rows), np.zeros(rows), [], []
        for i in range(n):
            h = value(decay)[:, i] * h + value(x)[:, i]
            size = value(decay)[:, i] * size + np.abs(value(x)[:, i])
            want.append(h)
            tolerance.append(size * 64 * ULP)
        return worst(value(y), np.stack(want, 1), np.stack(tolerance, 1))
    return dict(decay=decay, x=x, y=y), judge


@triton.jit
def sort_rows(x, y, N: tl.constexpr, M: tl.constexpr, DESCENDING: tl.constexpr):
    at = tl.program_id(0) * M * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + at, tl.sort(tl.load(x + at), dim=1, descending=DESCENDING))


def sort_case(name, kind, m, n, descending, warps=4, ctas=1):
    @case(name, sort_rows, (2,), warps, ctas=ctas, M=m, N=n, DESCENDING=descending)
    def make(rng):
        x, y = array(rng, kind, (2 * m, n)), output(kind, (2 * m, n))

        def judge():
            want = np.sort(x.bits, 1)
            return equal(y.bits, want[:, ::-1] if descending else want)
        return dict(x=x, y=y), judge


sort_case('sort_i32', 'i32', 1, 512, False)
sort_case('sort_f32_descending', 'fp32', 4, 64, True)
sort_case('sort_i32_cluster', 'i32', 1, 256, True, ctas=2)
sort_case('sort_f16_1_warp', 'fp16', 2, 32, False, 1)


@triton.jit
def top_rows(x, y, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * N + tl.arange(0, N))
    tl.store(y + row * K + tl.arange(0, K), tl.topk(v, K))


@case('top_k', top_rows, (4,), N=256, K=8)
def top_case(rng):
    x, y = array(rng, 'fp32', (4, 256)), output('fp32', (4, 8))
    return dict(x=x, y=y), lambda: equal(y.bits, np.sort(x.bits, 1)[:, :-9:-1])


@triton.jit
def larger(a, i, b, j):
    """Pair with the larger magnitude, of equal ones that with the smaller index."""
    first = (tl.abs(a) > tl.abs(b)) | ((tl.abs(a) == tl.abs(b)) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def reductions(x, most, where_most, where_least, sums_of_rows, parity, pick, where_pick, M: tl.constexpr,
               N: tl.constexpr):
    """Maxima of columns with their rows, minima of rows with their columns, sums, exclusive or, and
    a reduction by a function of this file."""
    row, column = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + row[:, None] * N + column[None, :])
    top, at = tl.max(v, axis=0, return_indices=True)
    tl.store(most + column, top)
    tl.store(where_most + column, at)
    tl.store(where_least + row, tl.argmin(v, axis=1))
    tl.store(sums_of_rows + row, tl.sum(v, axis=1))
    tl.store(parity, tl.xor_sum(tl.xor_sum(v.to(tl.int32, bitcast=True), axis=1), axis=0))
    index = tl.broadcast_to(column[None, :], (M, N))
    far, far_at = tl.reduce((v, index), 1, larger)
    tl.store(pick + row, far)
    tl.store(where_pick + row, far_at)


@case('reductions', reductions, (1,), M=64, N=128)
def reductions_case(rng):
    # Multiples of 1 / 8 in a small range, so that there are equal ones: the first counts.
    x = Array('fp32', (rng.integers(-100, 100, (64, 128)) / 8).astype(np.float32))
    outs = dict(most=output('fp32', (128,)), where_most=output('i32', (128,)),
                where_least=output('i32', (64,)), sums_of_rows=output('fp32', (64,)),
                parity=output('i32', (1,)), pick=output('fp32', (64,)), where_pick=output('i32', (64,)))

    def judge():
        far = np.abs(x.bits).argmax(1)
        wants = dict(most=x.bits.max(0), where_most=x.bits.argmax(0), where_least=x.bits.argmin(1),
                     sums_of_rows=value(x).sum(1), where_pick=far, pick=x.bits[np.arange(64), far],
                     parity=np.bitwise_xor.reduce(x.bits.view(np.int32).ravel())[None])
        return max(equal(value(outs[name]), want) for name, want in wants.items())
    return dict(x=x, **outs), judge


@triton.jit
def rearrange(x, index, y, z, pairs, M: tl.constexpr, N: tl.constexpr):
    """Transposed copy, rows gathered by index, and pairs of the halves in each other's order."""
    row, column = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + row[:, None] * N + column[None, :])
    tl.store(y + column[:, None] * M + row[None, :], tl.trans(v))
    at = tl.load(index + row[:, None] * N + column[None, :])
    tl.store(z + row[:, None] * N + column[None, :], tl.gather(v, at, axis=1))
    left, right = tl.split(tl.reshape(v, (M, N // 2, 2)))
    tl.store(pairs + row[:, None] * N + column[None, :], tl.flip(tl.interleave(right, left), 1))


@case('rearrange', rearrange, (1,), M=32, N=64)
def rearrange_case(rng):
    x = array(rng, 'fp16', (32, 64))
    index = Array('i32', rng.integers(0, 64, (32, 64), np.int32))
    y, z, pairs = output('fp16', (64, 32)), output('fp16', (32, 64)), output('fp16', (32, 64))

    def judge():
        swapped = x.bits.reshape(32, 32, 2)[:, :, ::-1].reshape(32, 64)[:, ::-1]
        return max(equal(y.bits, x.bits.T), equal(z.bits, np.take_along_axis(x.bits, index.bits, 1)),
                   equal(pairs.bits, swapped))
    return dict(x=x, index=index, y=y, z=z, pairs=pairs), judge
