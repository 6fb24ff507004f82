"""Flash attention, random numbers, atomics, arithmetic and conversions in Triton, and their judges."""
import numpy as np
import triton
import triton.language as tl
from triton.language.extra import libdevice

import formats
from case import Array, Descriptor, Scalar, array, case, equal, output, value, worst, zeros

ULP = 2.0 ** -23


@triton.jit
def attention_part(q, total, top, sum_of_row, k, v, row, from_cell, to_cell, cells, scale,
                   D: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr):
    """Adds cells from_cell .. to_cell to a tile's running softmax. `scale` includes log2(e)."""
    column = tl.arange(0, D)
    for first in range(from_cell, to_cell, N):
        cell = first + tl.arange(0, N)
        inside = cell < cells
        keys = tl.load(k + cell[None, :] * D + column[:, None], mask=inside[None, :], other=0.0)
        score = tl.dot(q, keys) * scale
        if MASKED:
            score = tl.where((row[:, None] >= cell[None, :]) & inside[None, :], score, -float('inf'))
        new = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - new[:, None])
        old = tl.exp2(top - new)
        values = tl.load(v + cell[:, None] * D + column[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(p.to(values.dtype), values, total * old[:, None])
        sum_of_row = sum_of_row * old + tl.sum(p, 1)
        top = new
    return total, top, sum_of_row


@triton.jit
def attention(q, k, v, y, cells, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Causal attention of a head a block: cells before the tile's first without a mask, then the
    diagonal."""
    first = tl.program_id(0) * M
    head = tl.program_id(1) * cells * D
    row, column = first + tl.arange(0, M), tl.arange(0, D)
    at = head + row[:, None] * D + column[None, :]
    inside = row[:, None] < cells
    queries = tl.load(q + at, mask=inside, other=0.0)
    total = tl.zeros((M, D), tl.float32)
    top = tl.full((M,), -float('inf'), tl.float32)
    sum_of_row = tl.zeros((M,), tl.float32)
    total, top, sum_of_row = attention_part(queries, total, top, sum_of_row, k + head, v + head, row, 0,
                                            first, cells, scale, D, N, False)
    total, top, sum_of_row = attention_part(queries, total, top, sum_of_row, k + head, v + head, row,
                                            first, first + M, cells, scale, D, N, True)
    tl.store(y + at, (total / sum_of_row[:, None]).to(y.dtype.element_ty), mask=inside)


@triton.jit
def attention_descriptor(from_q, from_k, from_v, to_y, cells, scale, D: tl.constexpr, M: tl.constexpr,
                         N: tl.constexpr, SPECIALIZE: tl.constexpr):
    """Causal attention of one head with tensor maps and a mask on every tile."""
    first = tl.program_id(0) * M
    row = first + tl.arange(0, M)
    queries = from_q.load([first, 0])
    total = tl.zeros((M, D), tl.float32)
    top = tl.full((M,), -float('inf'), tl.float32)
    sum_of_row = tl.zeros((M,), tl.float32)
    for cell in tl.range(0, first + M, N, warp_specialize=SPECIALIZE):
        score = tl.dot(queries, from_k.load([cell, 0]).T) * scale
        score = tl.where(row[:, None] >= cell + tl.arange(0, N)[None, :], score, -1e30)
        new = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - new[:, None])
        old = tl.exp2(top - new)
        total = tl.dot(p.to(to_y.dtype), from_v.load([cell, 0]), total * old[:, None])
        sum_of_row = sum_of_row * old + tl.sum(p, 1)
        top = new
    to_y.store([first, 0], (total / sum_of_row[:, None]).to(to_y.dtype))


def attend(rng, kind, heads, cells, d):
    """Arrays of causal attention and its judge: scores err by their f32 sums, probabilities by the
    scores and by rounding to `kind`."""
    q, k, v = (array(rng, kind, (heads, cells, d)) for _ in range(3))
    y = output(kind, (heads, cells, d))
    scale = d ** -0.5

    def judge():
        mask = np.tril(np.ones((cells, cells), bool))
        score = np.where(mask, value(q) @ value(k).transpose(0, 2, 1) * scale, -np.inf)
        size = np.abs(value(q)) @ np.abs(value(k)).transpose(0, 2, 1) * scale
        p = np.exp(score - score.max(2, keepdims=True))
        p /= p.sum(2, keepdims=True)
        want, of_all = p @ value(v), p @ np.abs(value(v))
        of_scores = np.max(np.where(mask, size * (d / 8 + 4), 0), axis=2, keepdims=True) * ULP
        of_sums = (cells / 8 + 16) * ULP
        half = 2.0 ** -(formats.FLOAT[kind][0] + 1)
        tolerance = of_all * (half + 4 * of_scores + of_sums)
        return worst(value(y), want, tolerance + formats.rounding(np.abs(want) + tolerance, kind))
    return q, k, v, y, Scalar('fp32', scale * np.log2(np.e)), judge


def attention_case(name, kind, heads, cells, d, m, n, warps, stages):
    @case(name, attention, (triton.cdiv(cells, m), heads), warps, stages, D=d, M=m, N=n)
    def make(rng):
        q, k, v, y, scale, judge = attend(rng, kind, heads, cells, d)
        return dict(q=q, k=k, v=v, y=y, cells=Scalar('i32', cells), scale=scale), judge


def attention_descriptor_case(name, kind, cells, d, m, n, warps, stages, specialize=False):
    @case(name, attention_descriptor, (triton.cdiv(cells, m),), warps, stages, D=d, M=m, N=n,
          SPECIALIZE=specialize)
    def make(rng):
        q, k, v, y, scale, judge = attend(rng, kind, 1, cells, d)
        flat = [Array(x.type, x.bits.reshape(cells, d), x.out) for x in (q, k, v, y)]
        return dict(from_q=Descriptor(flat[0], (m, d)), from_k=Descriptor(flat[1], (n, d)),
                    from_v=Descriptor(flat[2], (n, d)), to_y=Descriptor(flat[3], (m, d)),
                    cells=Scalar('i32', cells), scale=scale), judge


attention_case('attention_f16_64', 'fp16', 2, 300, 64, 128, 64, 4, 3)
attention_case('attention_bf16_128_8_warps', 'bf16', 1, 260, 128, 128, 128, 8, 2)
attention_case('attention_f16_mma', 'fp16', 2, 80, 32, 32, 32, 2, 2)
attention_descriptor_case('attention_descriptor_bf16', 'bf16', 300, 64, 128, 64, 8, 3)
attention_descriptor_case('attention_specialized_f16', 'fp16', 300, 64, 64, 64, 4, 2, True)


def philox(seed, counter):
    """Philox 4x32-10 (Salmon and others 2011) of a seed of 64 bits and counters of 32: 4 words each."""
    c = [counter.astype(np.uint64)] + [np.zeros_like(counter, np.uint64)] * 3
    key = [np.uint64(seed & 0xffffffff), np.uint64(seed >> 32)]
    low = np.uint64(0xffffffff)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ key[0], b & low, (a >> np.uint64(32)) ^ c[3] ^ key[1], a & low]
        key = [(key[0] + np.uint64(0x9E3779B9)) & low, (key[1] + np.uint64(0xBB67AE85)) & low]
    return [x.astype(np.uint32) for x in c]


def uniform(word):
    """Number of [0, 1) that Triton makes of a random word: its magnitude as a signed one."""
    signed = word.view(np.int32)
    return np.where(signed < 0, -(signed.astype(np.int64)) - 1, signed) * 4.6566127342e-10


@triton.jit
def dropout(x, y, words, normal, n, p, seed, N: tl.constexpr):
    """Zeroes a share p of the numbers, and gives the random words and normal numbers besides."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    inside = at < n
    keep = tl.rand(seed, at) > p
    tl.store(y + at, tl.where(keep, tl.load(x + at, mask=inside, other=0.0) / (1 - p), 0.0), mask=inside)
    tl.store(words + at, tl.randint(seed, at), mask=inside)
    tl.store(normal + at, tl.randn(seed, at), mask=inside)


@case('dropout', dropout, (3,), N=512)
def dropout_case(rng):
    n, p, seed = 1300, 0.3, 0x123456789
    x, y, words, normal = (array(rng, 'fp32', (n,)), output('fp32', (n,)), output('i32', (n,)),
                           output('fp32', (n,)))

    def judge():
        first, second, _, _ = philox(seed, np.arange(n))
        u = uniform(first)
        want = np.where(u > p, value(x) / (1 - p), 0)
        # Draws within the rounding of p and of u may fall on either side.
        want = np.where(np.abs(u - p) < ULP, value(y), want)
        radius = np.sqrt(-2 * np.log(np.maximum(u, 1e-7)))
        bell = radius * np.cos(2 * np.pi * uniform(second))
        return max(equal(words.bits.view(np.uint32), first), worst(value(y), want, 4 * ULP * np.abs(want)),
                   worst(value(normal), bell, 2.0 ** -19 * (1 + radius)))
    return dict(x=x, y=y, words=words, normal=normal, n=Scalar('i32', n), p=Scalar('fp32', p),
                seed=Scalar('i64', seed)), judge


@triton.jit
def histograms(x, counts, counts_in_block, n, N: tl.constexpr, BINS: tl.constexpr):
    """Counts of bins by an atomic addition a number, and by Triton's histogram of a tile."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    inside = at < n
    v = tl.load(x + at, mask=inside, other=0)
    tl.atomic_add(counts + v, 1, mask=inside, sem='relaxed')
    own = tl.histogram(v, BINS, mask=inside)
    tl.atomic_add(counts_in_block + tl.arange(0, BINS), own)


@case('histogram', histograms, (4,), N=512, BINS=128)
def histogram_case(rng):
    n, bins = 1900, 128
    x = Array('i32', np.minimum(rng.exponential(20.0, n), bins - 1).astype(np.int32))
    a, b = zeros('i32', (bins,)), zeros('i32', (bins,))

    def judge():
        want = np.bincount(x.bits, minlength=bins)
        return max(equal(a.bits, want), equal(b.bits, want))
    return dict(x=x, counts=a, counts_in_block=b, n=Scalar('i32', n)), judge


@triton.jit
def atomics(x, i, most_f32, least_f32, sum_f16, sum_bf16, sum_f64, sum_i64, most_i32, least_u32, bits, last,
            locked, counter, N: tl.constexpr):
    """Every kind of atomic operation, and an addition under a lock."""
    block = tl.program_id(0)
    at = tl.arange(0, N)
    v = tl.load(x + block * N + at)
    w = tl.load(i + block * N + at)
    tl.atomic_max(most_f32 + at % 8, v)
    tl.atomic_min(least_f32 + at % 8, v)
    tl.atomic_add(sum_f16 + at, v.to(tl.float16))
    tl.atomic_add(sum_bf16 + at, v.to(tl.bfloat16))
    tl.atomic_add(sum_f64 + at, v.to(tl.float64))
    tl.atomic_add(sum_i64 + at % 8, w.to(tl.int64))
    tl.atomic_max(most_i32 + at % 8, w)
    tl.atomic_min(least_u32 + at % 8, w.to(tl.uint32, bitcast=True))
    tl.atomic_and(bits + at, w)
    tl.atomic_or(bits + N + at, w)
    tl.atomic_xor(bits + 2 * N + at, w)
    tl.atomic_xchg(last + at, block)
    while tl.atomic_cas(counter, 0, 1, sem='acquire') == 1:
        pass
    tl.store(locked + at, tl.load(locked + at) + v)
    tl.debug_barrier()
    tl.atomic_xchg(counter, 0, sem='release')


@case('atomics', atomics, (5,), N=256)
def atomics_case(rng):
    blocks, n = 5, 256
    x = Array('fp32', (rng.integers(-64, 64, (blocks, n)) / 8).astype(np.float32))
    i = array(rng, 'i32', (blocks, n))
    start = dict(most_f32=('fp32', np.full(8, -100)), least_f32=('fp32', np.full(8, 100)),
                 sum_f16=('fp16', np.zeros(n)), sum_bf16=('bf16', np.zeros(n)),
                 sum_f64=('fp64', np.zeros(n)), sum_i64=('i64', np.zeros(8)),
                 most_i32=('i32', np.full(8, -2 ** 31)), least_u32=('u32', np.full(8, 2 ** 32 - 1)),
                 bits=('i32', np.repeat([-1, 0, 0], n)), last=('i32', np.full(n, -1)),
                 locked=('fp32', np.zeros(n)), counter=('i32', np.zeros(1)))
    outs = {k: Array(kind, formats.encode(v, kind), True) for k, (kind, v) in start.items()}

    def judge():
        # Sums of multiples of 1 / 8 below 40 are exact in f16, not in bf16 (8 bits: 1 / 4 off a sum).
        v, eight = value(x), value(x).reshape(-1, 8)
        w, w_eight = i.bits, i.bits.reshape(-1, 8)
        sums = v.sum(0)
        wants = dict(most_f32=eight.max(0), least_f32=eight.min(0), sum_f16=sums, sum_f64=sums, locked=sums,
                     sum_i64=w_eight.sum(0, dtype=np.int64), most_i32=w_eight.max(0), counter=np.zeros(1),
                     least_u32=w_eight.view(np.uint32).min(0),
                     bits=np.concatenate([f.reduce(w) for f in (np.bitwise_and, np.bitwise_or,
                                                                np.bitwise_xor)]))
        found = [equal(value(outs[name]), want) for name, want in wants.items()]
        found.append(0.0 if np.all((outs['last'].bits >= 0) & (outs['last'].bits < blocks)) else np.inf)
        found.append(worst(value(outs['sum_bf16']), sums, blocks * formats.rounding(np.abs(v).sum(0), 'bf16')))
        return max(found)
    return dict(x=x, i=i, **outs), judge


@triton.jit
def matmul_split(a, b, c, m, n, k, tickets, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                 PARTS: tl.constexpr):
    """Product whose k is split among blocks, which add to c; blocks draw their work by a counter."""
    tiles = tl.cdiv(m, M) * tl.cdiv(n, N) * PARTS
    work = tl.atomic_add(tickets, 1)
    while work < tiles:
        part, tile = work % PARTS, work // PARTS
        row = tile // tl.cdiv(n, N) * M + tl.arange(0, M)
        column = tile % tl.cdiv(n, N) * N + tl.arange(0, N)
        total = tl.zeros((M, N), tl.float32)
        for first in range(part * K, k, PARTS * K):
            at = first + tl.arange(0, K)
            x = tl.load(a + row[:, None] * k + at[None, :], mask=(row[:, None] < m) & (at[None, :] < k), other=0.0)
            y = tl.load(b + at[:, None] * n + column[None, :], mask=(column[None, :] < n) & (at[:, None] < k),
                        other=0.0)
            total = tl.dot(x, y, total)
        tl.atomic_add(c + row[:, None] * n + column[None, :], total, sem='relaxed',
                      mask=(row[:, None] < m) & (column[None, :] < n))
        work = tl.atomic_add(tickets, 1)


@case('matmul_split_k', matmul_split, (6,), 4, 2, M=64, N=64, K=64, PARTS=3)
def split_case(rng):
    m, n, k = 80, 80, 400
    a, b = array(rng, 'fp16', (m, k)), array(rng, 'fp16', (k, n))
    c, tickets = zeros('fp32', (m, n)), zeros('i32', (1,))

    def judge():
        return worst(value(c), value(a) @ value(b), np.abs(value(a)) @ np.abs(value(b)) * (k / 8) * ULP)
    return dict(a=a, b=b, c=c, m=Scalar('i32', m), n=Scalar('i32', n), k=Scalar('i32', k),
                tickets=tickets), judge


@triton.jit
def functions(x, y, N: tl.constexpr):
    """Elementary functions, a row of y each."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    n = tl.num_programs(0) * N
    v = tl.load(x + at)
    tl.store(y + at, tl.exp(v))
    tl.store(y + n + at, tl.log(tl.abs(v)))
    tl.store(y + 2 * n + at, tl.sin(v * 100))
    tl.store(y + 3 * n + at, tl.cos(v * 100))
    tl.store(y + 4 * n + at, tl.sqrt(tl.abs(v)))
    tl.store(y + 5 * n + at, tl.rsqrt(tl.abs(v)))
    tl.store(y + 6 * n + at, tl.erf(v))
    tl.store(y + 7 * n + at, libdevice.tanh(v))
    tl.store(y + 8 * n + at, tl.sigmoid(v))
    tl.store(y + 9 * n + at, tl.floor(v) + tl.ceil(v * 3))
    tl.store(y + 10 * n + at, tl.div_rn(1.0, v))
    tl.store(y + 11 * n + at, tl.sqrt_rn(tl.abs(v)))
    tl.store(y + 12 * n + at, libdevice.pow(tl.abs(v), 1.5))
    tl.store(y + 13 * n + at, libdevice.expm1(v))
    tl.store(y + 14 * n + at, libdevice.atan2(v, 0.5))
    tl.store(y + 15 * n + at, tl.fma(v, v, -1.0))


@case('functions_f32', functions, (2,), N=256)
def functions_case(rng):
    n = 512
    x = array(rng, 'fp32', (n,), 2.0)
    # Arguments whose sine needs 2 / pi to many digits.
    x.bits[:2] = 123456.79, 3.1e5
    y = output('fp32', (16, n))

    def judge():
        v = value(x)
        size = np.abs(v)
        times = (x.bits * np.float32(100)).astype(np.float64)
        from math import erf
        with np.errstate(over='ignore'):
            want = np.stack([np.exp(v), np.log(size), np.sin(times), np.cos(times), np.sqrt(size),
                             1 / np.sqrt(size), np.vectorize(erf)(v), np.tanh(v), 1 / (1 + np.exp(-v)),
                             np.floor(v) + np.ceil((x.bits * np.float32(3)).astype(np.float64)), 1 / v,
                             np.sqrt(size), size ** 1.5, np.expm1(v), np.arctan2(v, 0.5), v * v - 1])
        # Units in the last place of results; of exp those of the argument times log2(e) besides.
        units = np.array([2, 4, 2, 2, 2, 2, 3, 3, 4, 0, 1, 1, 9, 3, 3, 1])[:, None]
        tolerance = units * 2 * formats.rounding(want, 'fp32')
        tolerance[0] += want[0] * size * 2 * ULP
        tolerance[8] += want[8] * size * 2 * ULP
        tolerance[1] += 2.0 ** -21
        infinite = ~np.isfinite(formats.encode(want, 'fp32').astype(np.float64))
        want, got = np.where(infinite, 0, want), np.where(infinite & np.isinf(value(y)), 0, value(y))
        return worst(got, want, np.where(infinite, 0, tolerance))
    return dict(x=x, y=y), judge


@triton.jit
def functions_of_doubles(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    n = tl.num_programs(0) * N
    v = tl.load(x + at)
    tl.store(y + at, tl.exp(v))
    tl.store(y + n + at, tl.log(tl.abs(v)))
    tl.store(y + 2 * n + at, 1 / v)
    tl.store(y + 3 * n + at, tl.sqrt(tl.abs(v)))
    tl.store(y + 4 * n + at, v.to(tl.int64).to(tl.float64) + v.to(tl.float32))
    tl.store(y + 5 * n + at, libdevice.tanh(v))


@case('functions_f64', functions_of_doubles, (1,), N=256)
def doubles_case(rng):
    x, y = array(rng, 'fp64', (256,), 5.0), output('fp64', (6, 256))

    def judge():
        v = x.bits
        want = np.stack([np.exp(v), np.log(np.abs(v)), 1 / v, np.sqrt(np.abs(v)),
                         np.trunc(v) + v.astype(np.float32), np.tanh(v)])
        units = np.array([2, 2, 1, 1, 1, 2])[:, None]
        return worst(value(y), want, units * 2 * formats.rounding(want, 'fp64') + 2.0 ** -52 * (units == 2))
    return dict(x=x, y=y), judge


@triton.jit(noinline=True)
def collatz(v, steps):
    """Function that is called, not inlined."""
    while (v != 1) & (steps < 100):
        if v % 2 == 0:
            v = v // 2
        else:
            v = 3 * v + 1
        steps += 1
    return steps


@triton.jit
def integers(x, y, wide, narrow, steps, N: tl.constexpr):
    """Integer arithmetic of 8 to 64 bits, rows of 32-bit and of 64-bit results."""
    at = tl.arange(0, N)
    v = tl.load(x + at)
    w = tl.load(x + N + at)
    tl.store(y + at, v // w)
    tl.store(y + N + at, v % w)
    high = tl.umulhi(v.to(tl.uint32, bitcast=True), w.to(tl.uint32, bitcast=True))
    tl.store(y + 2 * N + at, high.to(tl.int32, bitcast=True))
    tl.store(y + 3 * N + at, (v << (w & 31)) ^ (v >> (w & 31)))
    tl.store(y + 4 * N + at, libdevice.popc(v) + libdevice.clz(w))
    tl.store(y + 5 * N + at, libdevice.brev(v) ^ libdevice.ffs(w))
    tl.store(y + 6 * N + at, tl.minimum(tl.abs(v), tl.abs(w)))
    tl.store(y + 7 * N + at, tl.clamp(v.to(tl.float32), -1e6, 1e6).to(tl.int32))
    long, other = v.to(tl.int64) * w, w.to(tl.int64) + 7
    tl.store(wide + at, long)
    tl.store(wide + N + at, long // other)
    tl.store(wide + 2 * N + at, long % other)
    tl.store(wide + 3 * N + at, (long >> 5) ^ (long << 7))
    tl.store(narrow + at, (v.to(tl.int8) * w.to(tl.int8)) >> 1)
    tl.store(narrow + N + at, v.to(tl.int16).to(tl.int8) // 3)
    tl.store(steps, collatz(tl.load(x) & 0xffff, tl.load(x + 2) & 7))
    tl.store(steps + 1, collatz(tl.load(x + 1) & 0xffff, tl.load(x + 3) & 63))


@case('integers', integers, (1,), N=256)
def integers_case(rng):
    n = 256
    x = array(rng, 'i32', (2, n))
    x.bits[1] >>= rng.integers(0, 28, n, np.int32)
    x.bits[1, x.bits[1] == 0] = 1
    y, wide, narrow, steps = output('i32', (8, n)), output('i64', (4, n)), output('i8', (2, n)), output('i32', (2,))

    def judge():
        v, w = x.bits[0].astype(np.int64), x.bits[1].astype(np.int64)

        def divide(a, b):
            q = np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)
            return q, a - q * b
        u = v.astype(np.uint32).astype(np.uint64), w.astype(np.uint32).astype(np.uint64)
        text = [(format(int(a), '032b'), format(int(b), '032b')) for a, b in zip(*u)]
        count = np.array([a.count('1') + len(b) - len(b.lstrip('0')) for a, b in text])
        turned = np.array([int(a[::-1], 2) ^ (32 - b.rindex('1')) for a, b in text])
        shift = w & 31
        with np.errstate(over='ignore'):
            rows = [divide(v, w)[0], divide(v, w)[1], (u[0] * u[1]) >> np.uint64(32), (v << shift) ^ (v >> shift),
                    count, turned, np.minimum(np.abs(v), np.abs(w)),
                    np.clip(x.bits[0].astype(np.float32), -1e6, 1e6)]
            rows = np.stack([r.astype(np.int64).astype(np.int32) for r in rows])
            long, other = v * w, w + 7
            longs = np.stack([long, *divide(long, np.where(other == 0, 1, other)), (long >> 5) ^ (long << 7)])
            longs[1:3, other == 0] = wide.bits[1:3, other == 0]   # undefined
            small = (v.astype(np.int8) * w.astype(np.int8)) >> 1
            narrows = np.stack([small, divide(v.astype(np.int8).astype(np.int64), np.int64(3))[0].astype(np.int8)])
        counts = []
        for number, count in (int(v[0]) & 0xffff, int(v[2]) & 7), (int(v[1]) & 0xffff, int(v[3]) & 63):
            while number != 1 and count < 100:
                number, count = (number // 2 if number % 2 == 0 else 3 * number + 1), count + 1
            counts.append(count)
        return max(equal(y.bits, rows), equal(wide.bits, longs), equal(narrow.bits, narrows), equal(steps.bits, counts))
    return dict(x=x, y=y, wide=wide, narrow=narrow, steps=steps), judge


@triton.jit
def conversions(x, codes, f16, bf16, e4m3, e5m2, cut_f16, cut_bf16, from_e4m3, from_e5m2, whole, N: tl.constexpr):
    """Roundings of f32 to narrower formats, to nearest and (cut_..) towards zero, and back."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(f16 + at, v.to(tl.float16))
    tl.store(bf16 + at, v.to(tl.bfloat16))
    tl.store(e4m3 + at, v.to(tl.float8e4nv))
    tl.store(e5m2 + at, v.to(tl.float8e5))
    tl.store(cut_f16 + at, v.to(tl.float16, fp_downcast_rounding='rtz'))
    tl.store(cut_bf16 + at, v.to(tl.bfloat16, fp_downcast_rounding='rtz'))
    code = tl.load(codes + at)
    tl.store(from_e4m3 + at, code.to(tl.float8e4nv, bitcast=True).to(tl.float32))
    tl.store(from_e5m2 + at, code.to(tl.float8e5, bitcast=True).to(tl.bfloat16))
    tl.store(whole + at, v.to(tl.int32))


@case('conversions', conversions, (2,), N=512)
def conversions_case(rng):
    n = 1024
    # Magnitudes below the largest e4m3, 448; the first ones are ties of f16 and bf16.
    x = Array('fp32', np.clip(rng.standard_normal(n) * np.exp2(rng.uniform(-12, 8, n)), -448, 448).astype(np.float32))
    x.bits[:64] = 1 + (2 * np.arange(64) + 1) / 2048
    x.bits[64:128] = 1 + (2 * np.arange(64) + 1) / 256
    x.bits[128:160] = 1 + (2 * np.arange(32) + 1) / 16
    codes = Array('u8', np.tile(np.arange(256, dtype=np.uint8), n // 256))
    finite = np.isfinite(formats.FP8['fp8e4nv'][codes.bits]) & np.isfinite(formats.FP8['fp8e5'][codes.bits])
    codes.bits[~finite] = 0
    kinds = dict(f16='fp16', bf16='bf16', e4m3='fp8e4nv', e5m2='fp8e5', cut_f16='fp16', cut_bf16='bf16',
                 from_e4m3='fp32', from_e5m2='bf16', whole='i32')
    outs = {name: output(kind, (n,)) for name, kind in kinds.items()}

    def judge():
        v = value(x)
        found = [equal(outs[name].bits, formats.encode(v, kinds[name])) for name in ('f16', 'bf16', 'e4m3', 'e5m2')]
        # Numbers that are cut lie within a unit below in magnitude.
        for name in ('cut_f16', 'cut_bf16'):
            got, unit = value(outs[name]), 2 * formats.rounding(v, kinds[name])
            cut = np.abs(v) - np.abs(got)
            under = (cut >= 0) & (cut < unit) & ((got == 0) | (np.sign(got) == np.sign(v)))
            found.append(0.0 if under.all() else np.inf)
        found += [equal(value(outs['from_e4m3']), formats.FP8['fp8e4nv'][codes.bits]),
                  equal(value(outs['from_e5m2']), formats.FP8['fp8e5'][codes.bits]),
                  equal(outs['whole'].bits, np.trunc(v).astype(np.int32))]
        return max(found)
    return dict(x=x, codes=codes, **outs), judge


@triton.jit
def dependent(x, y, n, N: tl.constexpr):
    """Kernel of a dependent launch: griddepcontrol around its loads, which have cache hints."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.extra.cuda.gdc_wait()
    v = tl.load(x + at, mask=at < n, other=0.0, eviction_policy='evict_first')
    w = tl.load(x + at, mask=at < n, other=0.0, volatile=True)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(y + at, v + w, mask=at < n, eviction_policy='evict_last')
    tl.store(y + n + at, v * 3, mask=at < n, cache_modifier='.cs')


@case('dependent_launch', dependent, (3,), N=256)
def dependent_case(rng):
    x, y = array(rng, 'fp16', (700,)), output('fp16', (2, 700))

    def judge():
        return equal(y.bits, np.stack([x.bits * np.float16(2), x.bits * np.float16(3)]))
    return dict(x=x, y=y, n=Scalar('i32', 700)), judge
