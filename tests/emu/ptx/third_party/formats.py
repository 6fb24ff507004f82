"""Number formats of kernels' arrays: names as Triton has them, NumPy types that hold their bits,
conversions to and from float64, and the error of one rounding to each."""
import numpy as np

# Storage: the NumPy type with the format's bits. Formats that NumPy lacks are held as integers.
STORAGE = {
    'fp16': np.float16, 'bf16': np.uint16, 'fp32': np.float32, 'fp64': np.float64,
    'fp8e4nv': np.uint8, 'fp8e5': np.uint8,
    'i8': np.int8, 'i16': np.int16, 'i32': np.int32, 'i64': np.int64,
    'u8': np.uint8, 'u32': np.uint32,
}
# Fraction bits, least exponent of a normal number.
FLOAT = {'fp16': (10, -14), 'bf16': (7, -126), 'fp32': (23, -126), 'fp64': (52, -1022),
         'fp8e4nv': (3, -6), 'fp8e5': (2, -14)}
# CUtensorMapDataType
MAP_TYPE = {'u8': 0, 'i8': 0, 'fp8e4nv': 0, 'fp8e5': 0, 'u32': 3, 'i32': 4, 'fp16': 6, 'fp32': 7,
            'bf16': 9}


def fp8_values(bits, bias, ieee):
    """Values of all 256 codes of a format of 8 bits; `ieee` says whether the last exponent is that
    of infinities and NaN, otherwise only the code of all ones is NaN."""
    code = np.arange(256)
    exponent, fraction = (code & 0x7f) >> bits, code & ((1 << bits) - 1)
    normal = np.ldexp(1 + fraction / (1 << bits), exponent - bias)
    value = np.where(exponent > 0, normal, np.ldexp(fraction / (1 << bits), 1 - bias))
    if ieee:
        last = exponent == (0x7f >> bits)
        value = np.where(last, np.where(fraction == 0, np.inf, np.nan), value)
    else:
        value = np.where((code & 0x7f) == 0x7f, np.nan, value)
    return np.where(code & 0x80, -value, value)


FP8 = {'fp8e4nv': fp8_values(3, 7, False), 'fp8e5': fp8_values(2, 15, True)}


def decode(bits, name):
    """Array of a format's bits as float64 (integers and float64 as they are)."""
    if name == 'bf16':
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if name in FP8:
        return FP8[name][bits]
    return bits.astype(np.float64) if name in FLOAT else bits


def encode(values, name):
    """Values rounded to the nearest of a format, ties to even; of fp8 those out of range become the
    largest finite one."""
    if name == 'bf16':
        word = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
        return ((word + 0x7fff + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    if name in FP8:
        table = FP8[name][:128]
        table = table[np.isfinite(table)]
        middle = (table[1:] + table[:-1]) / 2
        below = np.searchsorted(middle, np.abs(values), 'left')
        above = np.searchsorted(middle, np.abs(values), 'right')
        code = np.where(below % 2 == 0, below, above)
        return (code + np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
    return np.asarray(values).astype(STORAGE[name])


def rounding(values, name):
    """Largest error of rounding values to a format: half a unit in the last place."""
    if name not in FLOAT:
        return np.zeros(np.shape(values))
    bits, least = FLOAT[name]
    return np.maximum(np.abs(values), 2.0 ** least) * 2.0 ** -(bits + 1)
