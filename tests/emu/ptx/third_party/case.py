"""Cases: a Triton kernel with its inputs, its grid and its judge, and what run.py needs to launch it."""
import dataclasses
import re
import zlib

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import GluonASTSource

import formats

TARGET = GPUTarget('cuda', 90, 32)
CASES = []


# Arguments of a kernel, in the order of its parameters.
@dataclasses.dataclass
class Array:
    """Pointer to an array: an input (bits of `type`), or an output when `out` is set."""
    type: str
    bits: np.ndarray
    out: bool = False


@dataclasses.dataclass
class Scalar:
    type: str
    value: float


@dataclasses.dataclass
class Descriptor:
    """Host-side tensor descriptor of an array: Triton passes a tensor map, the shape (i32 each) and the
    strides (i64 each)."""
    of: Array
    block: tuple
    layout: object = None   # of Gluon kernels: layout of the shared memory


@dataclasses.dataclass
class Map:
    """Parameter of 128 bytes that cuTensorMapEncodeTiled fills; sizes innermost first, strides in
    bytes from the second dimension on."""
    array: Array
    type: int
    dim: list
    stride: list
    box: list
    swizzle: int
    fill: int = 0


@dataclasses.dataclass
class Scratch:
    """Pointer to memory that the kernel uses as it likes, and that nobody reads afterwards."""
    bytes: int


@dataclasses.dataclass
class Launch:
    """A launch: blocks, threads a block, bytes of dynamic shared memory, blocks a cluster;
    `params` has an Array, Scalar, Map, Scratch or bytes for each of the entry's parameters."""
    ptx: str
    entry: str
    grid: tuple
    threads: int
    smem: int
    cluster: tuple
    params: list


def seeded(name):
    """Random generator of a case, the same in every run."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def array(rng, kind, shape, scale=1.0):
    """Input of normally distributed numbers, or of integers over the whole range."""
    if kind in formats.FLOAT:
        return Array(kind, formats.encode(rng.standard_normal(shape) * scale, kind))
    limits = np.iinfo(formats.STORAGE[kind])
    return Array(kind, rng.integers(limits.min, limits.max, shape, formats.STORAGE[kind], True))


def output(kind, shape):
    """Output, which begins as a pattern that no kernel here gives."""
    bits = np.empty(shape, formats.STORAGE[kind])
    bits.view(np.uint8).fill(0xa5)
    return Array(kind, bits, True)


def zeros(kind, shape):
    """Output that the kernel adds to."""
    return Array(kind, np.zeros(shape, formats.STORAGE[kind]), True)


def value(a):
    return formats.decode(a.bits, a.type)


def worst(got, want, tolerance):
    """Largest error relative to its tolerance; a tolerance of 0 asks for equality."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    error = np.abs(got - want)
    with np.errstate(divide='ignore', invalid='ignore'):
        ratio = np.where(error == 0, 0.0, error / tolerance)
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def equal(got, want):
    return 0.0 if np.array_equal(got, want) else np.inf


class Case:
    """Kernel with a function make(rng) that gives its arguments as {parameter: Array, Scalar or
    Descriptor} and a judge, which returns the worst error relative to its tolerance."""

    def __init__(self, name, fn, make, grid, constants, options):
        self.name, self.fn, self.make, self.grid = name, fn, make, grid
        self.constants, self.options = constants, options

    def inputs(self):
        return self.make(seeded(self.name))

    def compile(self, arguments):
        """Compiled kernel of Triton."""
        signature, attrs = {}, {}
        for i, name in enumerate(self.fn.arg_names):
            if name in self.constants:
                signature[name] = 'constexpr'
                continue
            argument = arguments[name]
            signature[name] = type_of(argument)
            whole = isinstance(argument, Scalar) and argument.type[0] == 'i'
            if isinstance(argument, Array) or whole and argument.value % 16 == 0:
                attrs[(i,)] = [['tt.divisibility', 16]]
        source = GluonASTSource if self.fn.is_gluon() else ASTSource
        return triton.compile(source(self.fn, signature, self.constants, attrs), target=TARGET,
                              options=self.options)

    def launch(self, arguments, device):
        """Launch of the compiled kernel. `device` is for kernels whose parameters depend on addresses."""
        compiled = self.compile(arguments)
        meta = compiled.metadata
        grid = self.grid + (1,) * (3 - len(self.grid))
        blocks = grid[0] * grid[1] * grid[2] * meta.num_ctas
        params, descriptors = [], iter(meta.tensordesc_meta or [])
        for name in self.fn.arg_names:
            if name in self.constants:
                continue
            argument = arguments[name]
            if isinstance(argument, Descriptor):
                params += expand(argument, next(descriptors))
            else:
                params.append(argument)
        params.append(Scratch(meta.global_scratch_size * blocks))
        params.append(Scratch(meta.profile_scratch_size * blocks))
        return Launch(compiled.asm['ptx'], meta.name, (grid[0] * meta.num_ctas,) + grid[1:],
                      32 * meta.num_warps, meta.shared, (meta.num_ctas, 1, 1), params)


def type_of(argument):
    if isinstance(argument, Array):
        return '*' + argument.type
    if isinstance(argument, Scalar):
        return argument.type
    block = ', '.join(str(x) for x in argument.block)
    layout = f',{argument.layout!r}' if argument.layout else ''
    return f'tensordesc<{argument.of.type}[{block}]{layout}>'


def expand(descriptor, meta):
    """Parameters of a host-side descriptor: metadata says what box and swizzle the kernel expects."""
    bits = descriptor.of.bits
    strides = [s // bits.itemsize for s in bits.strides]
    tensor_map = Map(descriptor.of, formats.MAP_TYPE[descriptor.of.type], list(bits.shape[::-1]),
                     [s * bits.itemsize for s in strides[-2::-1]], meta['block_size'][::-1],
                     meta['swizzle'])
    return [tensor_map, *(Scalar('i32', x) for x in bits.shape), *(Scalar('i64', x) for x in strides)]


def case(name, fn, grid, warps=4, stages=3, ctas=1, **constants):
    """Decorator that adds a case; its function takes a random generator and returns arguments and
    judge."""
    def add(make):
        # PTX 9.0 is what CUDA 13.0 takes; later versions of Triton's default are refused by it.
        options = {'num_warps': warps, 'num_stages': stages, 'num_ctas': ctas, 'ptx_version': 90,
                   'enable_fp_fusion': True}
        CASES.append(Case(name, fn, make, grid, constants, options))
        return make
    return add


def opcodes(ptx):
    """Spellings of instructions in PTX text, with counts."""
    counts = {}
    text = re.sub(r'//[^\n]*|/\*.*?\*/', '', ptx, flags=re.S)
    text = re.sub(r'(?m)^\s*\.[^;\n]*(;|$)', '', text)   # directives
    for statement in text.split(';'):
        words = re.match(r'(?:[\s(){}]|[\w$]+:(?!:))*(?:@!?[%\w]+\s+)?([a-z]\w*(?:(?:\.|::)\w+)*)(?![\w:.])', statement)
        if words:
            counts[words[1]] = counts.get(words[1], 0) + 1
    return counts
