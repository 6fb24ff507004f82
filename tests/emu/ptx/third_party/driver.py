"""The CUDA driver's entry points through ctypes: of the real library or of one that emulates it."""
import ctypes as c
import struct

import numpy as np

from case import Array, Map, Scalar, Scratch

MAX_DYNAMIC_SMEM, CLUSTER_DIMENSION = 8, 4   # CUfunction_attribute, CUlaunchAttributeID
PROMOTION_128 = 2                            # CUtensorMapL2promotion
SCALARS = {'i8': 'b', 'i16': 'h', 'i32': 'i', 'i64': 'q', 'fp32': 'f', 'fp64': 'd'}


class Attribute(c.Structure):
    """CUlaunchAttribute."""
    _fields_ = [('id', c.c_int), ('pad', c.c_char * 4), ('value', c.c_uint * 16)]


class Config(c.Structure):
    """CUlaunchConfig."""
    _fields_ = [('grid', c.c_uint * 3), ('block', c.c_uint * 3), ('smem', c.c_uint), ('stream', c.c_void_p),
                ('attributes', c.POINTER(Attribute)), ('n_attributes', c.c_uint)]


class Aligned:
    """Host memory at a multiple of 128 bytes."""

    def __init__(self, content):
        self.memory = c.create_string_buffer(len(content) + 128)
        self.address = (c.addressof(self.memory) + 127) & ~127
        c.memmove(self.address, content, len(content))


class Device:
    """Device 0 of a library with its primary context."""

    def __init__(self, path):
        self.library = c.CDLL(path)
        self.addresses = {}
        self.kept = []
        self.call('cuInit', 0)
        device, context = c.c_int(), c.c_void_p()
        self.call('cuDeviceGet', c.byref(device), 0)
        self.call('cuDevicePrimaryCtxRetain', c.byref(context), device)
        self.call('cuCtxSetCurrent', context)
        self.encode = c.cast(self.library.cuTensorMapEncodeTiled, c.c_void_p).value

    def call(self, symbol, *args):
        result = getattr(self.library, symbol)(*args)
        if result:
            name = c.c_char_p()
            self.library.cuGetErrorName(result, c.byref(name))
            raise RuntimeError(f'{symbol}: {name.value.decode() if name.value else result}')

    def allocate(self, size):
        pointer = c.c_ulonglong()
        self.call('cuMemAlloc_v2', c.byref(pointer), c.c_size_t(size))
        return pointer.value

    def address(self, array):
        """Address of an array on the device; its bits are copied there when it is first asked for."""
        if id(array) not in self.addresses:
            bits = array.bits = np.ascontiguousarray(array.bits)
            at = self.addresses[id(array)] = self.allocate(bits.nbytes)
            self.kept.append(array)
            self.call('cuMemcpyHtoDAsync_v2', c.c_ulonglong(at), c.c_void_p(bits.ctypes.data),
                      c.c_size_t(bits.nbytes), None)
        return self.addresses[id(array)]

    def read(self, array):
        """Bits of an array on the device."""
        bits = np.empty_like(array.bits)
        self.call('cuMemcpyDtoHAsync_v2', c.c_void_p(bits.ctypes.data), c.c_ulonglong(self.addresses[id(array)]),
                  c.c_size_t(bits.nbytes), None)
        self.call('cuStreamSynchronize', None)
        return bits

    def tensor_map(self, m):
        """Bytes of a tensor map."""
        result, rank = Aligned(bytes(128)), len(m.dim)
        self.call('cuTensorMapEncodeTiled', c.c_void_p(result.address), m.type, rank,
                  c.c_void_p(self.address(m.array)), (c.c_uint64 * rank)(*m.dim),
                  (c.c_uint64 * max(rank - 1, 1))(*m.stride), (c.c_uint32 * rank)(*m.box),
                  (c.c_uint32 * rank)(*[1] * rank), 0, m.swizzle, PROMOTION_128, m.fill)
        return c.string_at(result.address, 128)

    def parameter(self, p):
        """Bytes of a kernel's parameter."""
        if isinstance(p, Array):
            return struct.pack('Q', self.address(p))
        if isinstance(p, Scratch):
            return struct.pack('Q', self.allocate(p.bytes) if p.bytes else 0)
        if isinstance(p, Map):
            return self.tensor_map(p)
        if isinstance(p, Scalar):
            return struct.pack(SCALARS[p.type], p.value)
        return p

    def launch(self, launch, sizes):
        """Runs a kernel to its end. `sizes` are those that the entry declares for its parameters."""
        params = [self.parameter(p) for p in launch.params]
        if [len(p) for p in params] != sizes:
            raise RuntimeError(f'parameters have {[len(p) for p in params]} bytes, the entry {sizes}')
        module, function = c.c_void_p(), c.c_void_p()
        self.call('cuModuleLoadData', c.byref(module), c.c_char_p(launch.ptx.encode()))
        self.call('cuModuleGetFunction', c.byref(function), module, launch.entry.encode())
        self.call('cuFuncSetAttribute', function, MAX_DYNAMIC_SMEM, launch.smem)
        values = [Aligned(p) for p in params]
        pointers = (c.c_void_p * len(values))(*[v.address for v in values])
        attribute = Attribute(CLUSTER_DIMENSION)
        attribute.value[:3] = launch.cluster
        config = Config((c.c_uint * 3)(*launch.grid), (c.c_uint * 3)(launch.threads, 1, 1), launch.smem, None,
                        c.pointer(attribute), int(max(launch.cluster) > 1))
        self.call('cuLaunchKernelEx', c.byref(config), function, pointers, None)
        self.call('cuStreamSynchronize', None)
