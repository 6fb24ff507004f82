"""CUTLASS's kernels for sm_90: compiled by nvcc from cutlass/, parameters filled by CUTLASS's own code."""
import ctypes
import importlib.util
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

import formats
from case import CASES, Launch, array, output, seeded, value, worst

HERE = pathlib.Path(__file__).parent / 'cutlass'
OPTIONS = ['-std=c++17', '-O3', '-gencode', 'arch=compute_90a,code=compute_90a', '--expt-relaxed-constexpr',
           '-DNDEBUG', '-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL', '-shared', '-Xcompiler', '-fPIC']


class Problem(ctypes.Structure):
    """struct Problem of gemm.cuh."""
    _fields_ = [(x, ctypes.c_void_p) for x in 'abcd']
    _fields_ += [(x, ctypes.c_int) for x in ('m', 'n', 'k', 'multiprocessors')]
    _fields_ += [('alpha', ctypes.c_float), ('beta', ctypes.c_float)]


class Prepared(ctypes.Structure):
    _fields_ = [('grid', ctypes.c_uint * 3), ('threads', ctypes.c_uint), ('smem', ctypes.c_uint),
                ('cluster', ctypes.c_uint * 3), ('bytes', ctypes.c_uint)]


def build(name, folder):
    """Paths of the PTX and of the host's part, made when they are older than their sources. The PTX is
    that of the one compilation which made both."""
    ptx, library = folder / f'{name}.ptx', folder / f'{name}.so'
    source, header = HERE / f'{name}.cu', HERE / 'gemm.cuh'
    newest = max(source.stat().st_mtime, header.stat().st_mtime)
    if ptx.exists() and library.exists() and min(ptx.stat().st_mtime, library.stat().st_mtime) > newest:
        return ptx, library
    package = importlib.util.find_spec('cutlass_library')
    include = pathlib.Path(package.submodule_search_locations[0]) / 'source'
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        subprocess.run(['nvcc', *OPTIONS, f'-I{include}/include', f'-I{include}/tools/util/include', '-keep',
                        '-keep-dir', kept, '-o', f'{kept}/{name}.so', str(source)], check=True)
        shutil.move(f'{kept}/{name}.ptx', ptx)
        shutil.move(f'{kept}/{name}.so', library)
    return ptx, library


class Gemm:
    """Case of a kernel: sizes m, n, k, and alpha and beta. `columns` says that b has consecutive n."""

    def __init__(self, name, kind, out, size, columns=False, alpha=1.0, beta=0.0, sum_bits=23):
        self.file, self.name = name, 'cutlass_' + name
        self.kind, self.out, self.size, self.columns = kind, out, size, columns
        self.alpha, self.beta, self.sum_bits = alpha, beta, sum_bits

    def inputs(self):
        rng = seeded(self.name)
        m, n, k = self.size
        a, b = array(rng, self.kind, (m, k)), array(rng, self.kind, (k, n) if self.columns else (n, k))
        c, d = array(rng, self.out, (m, n)), output(self.out, (m, n))
        y = value(b) if self.columns else value(b).T

        def judge():
            want = self.alpha * (value(a) @ y) + self.beta * value(c)
            size = abs(self.alpha) * (np.abs(value(a)) @ np.abs(y)) + abs(self.beta * value(c))
            tolerance = size * (k / 8) * 2.0 ** -self.sum_bits
            return worst(value(d), want, tolerance + formats.rounding(np.abs(want) + tolerance, self.out))
        return dict(a=a, b=b, c=c, d=d), judge

    def launch(self, arguments, device):
        ptx, path = build(self.file, pathlib.Path(os.environ['TRITON_CACHE_DIR']) / 'cutlass')
        library = ctypes.CDLL(str(path))
        ctypes.c_void_p.in_dll(library, 'gemm_encode').value = device.encode
        m, n, k = self.size
        problem = Problem(*(device.address(arguments[x]) for x in 'abcd'), m, n, k, 4, self.alpha, self.beta)
        block, prepared = ctypes.create_string_buffer(4096), Prepared()
        if library.gemm_prepare(ctypes.byref(problem), block, ctypes.c_size_t(4096), ctypes.byref(prepared)):
            raise RuntimeError('problem is not of the kind that the kernel takes')
        return Launch(ptx.read_text(), 'gemm', tuple(prepared.grid), prepared.threads, prepared.smem,
                      tuple(prepared.cluster), [block.raw[:prepared.bytes]])


CASES += [Gemm('pingpong', 'fp16', 'fp16', (200, 272, 336), alpha=0.5, beta=2.0),
          Gemm('cooperative', 'bf16', 'fp32', (400, 272, 336), True),
          Gemm('pingpong_e4m3', 'fp8e4nv', 'bf16', (200, 272, 528), sum_bits=13)]
