"""Writes a GGUF model of a real one's shapes with random weights of sane scale (dequantised standard deviation 0.02, norms
1). Speed depends on shapes and types alone, so this stands for the real model. Weights are pieces of a pool of random
blocks of each type, which begin anywhere in it; threads write them, so that a file is there about as fast as the disk (or
/dev/shm) takes it. Needs Python with numpy.

    make_model.py OUT.gguf [--shape llama-3.2-1b|llama-3-8b|llama-2-7b|qwen3-30b-a3b] --type q8_0|q4_k|q4_k_m|bf16|..
                  [--vocab N] [--layers N] [--words]

--words: with a vocabulary of bytes and made-up words, for programs that write text; without it, tokens are numbers.
"""
import argparse
import concurrent.futures
import os
import shutil
import sys

import numpy as np
from model_file import MIXES, STORAGE, bytes_of, header, tensors, total_bytes
from shapes import SHAPES

STD = 0.02
POOL_BYTES = 48 << 20


def q8_0(rng, rows, cols):
    """[rows, cols / 32 * 34] bytes: a half scale, 32 int8."""
    b = np.empty((rows, cols // 32, 34), np.uint8)
    q = rng.integers(-127, 128, (rows, cols // 32, 32), np.int8)
    scale = STD / np.sqrt(127 * 128 / 3) * rng.uniform(0.8, 1.2, (rows, cols // 32, 1))
    b[:, :, :2] = scale.astype(np.float16).view(np.uint8)
    b[:, :, 2:] = q.view(np.uint8)
    return b.reshape(rows, -1)


def q4_k(rng, rows, cols):
    """[rows, cols / 256 * 144] bytes: half d, half dmin, 8 six-bit scales and mins in 12 bytes, 256 nibbles. With each
    min equal to its scale and dmin = 7.5 d a weight is d * scale * (q - 7.5)."""
    n = cols // 256
    b = np.empty((rows, n, 144), np.uint8)
    scale = rng.integers(32, 64, (rows, n, 8), np.uint8)
    d = np.full((rows, n, 1), STD / (np.sqrt(np.mean(np.arange(32, 64) ** 2.0)) * np.sqrt((16**2 - 1) / 12)))
    b[:, :, 0:2] = d.astype(np.float16).view(np.uint8)
    b[:, :, 2:4] = (7.5 * d).astype(np.float16).view(np.uint8)
    low, high = scale[:, :, :4], scale[:, :, 4:]
    b[:, :, 4:8] = b[:, :, 8:12] = low | (high >> 4) << 6
    b[:, :, 12:16] = (high & 15) * 17
    b[:, :, 16:] = rng.integers(0, 256, (rows, n, 128), np.uint8)
    return b.reshape(rows, -1)


def q5_k(rng, rows, cols):
    """[rows, cols / 256 * 176] bytes: as q4_k, and between scales and nibbles a fifth bit of each number in 32 bytes."""
    n = cols // 256
    b = np.empty((rows, n, 176), np.uint8)
    b[:, :, :16] = q4_k(rng, rows, cols).reshape(rows, n, 144)[:, :, :16]
    d = STD / (np.sqrt(np.mean(np.arange(32, 64) ** 2.0)) * np.sqrt((32**2 - 1) / 12))
    b[:, :, :4] = np.array([d, 15.5 * d], np.float16).view(np.uint8)
    b[:, :, 16:] = rng.integers(0, 256, (rows, n, 160), np.uint8)
    return b.reshape(rows, -1)


def q4_0(rng, rows, cols):
    """[rows, cols / 32 * 18] bytes: a half scale, 32 nibbles; 1 to 15, whose mean is the 8 that means nothing."""
    b = np.empty((rows, cols // 32, 18), np.uint8)
    q = rng.integers(1, 16, (rows, cols // 32, 32), np.uint8)
    b[:, :, :2] = np.array([STD / np.sqrt((15**2 - 1) / 12)], np.float16).view(np.uint8)
    b[:, :, 2:] = q[:, :, :16] | q[:, :, 16:] << 4
    return b.reshape(rows, -1)


def tq2_0(rng, rows, cols):
    """[rows, cols / 256 * 66] bytes: four codes in a byte, 0 to 2 for -1 to 1, and a half scale."""
    b = np.empty((rows, cols // 256, 66), np.uint8)
    b[:, :, :64] = sum(rng.integers(0, 3, (rows, cols // 256, 64), np.uint8) << 2 * i for i in range(4))
    b[:, :, 64:] = np.array([STD / np.sqrt(2 / 3)], np.float16).view(np.uint8)
    return b.reshape(rows, -1)


def any_bytes(name, at, magnitude):
    """Random blocks whose half scale is at byte `at`; with a scale of 1 weights have about this magnitude."""
    _, block, size = STORAGE[name]

    def make(rng, rows, cols):
        b = rng.integers(0, 256, (rows, cols // block, size), np.uint8)
        b[:, :, at : at + 2] = np.array([STD / magnitude], np.float16).view(np.uint8)
        return b.reshape(rows, -1)

    return make


def mxfp4(rng, rows, cols):
    """[rows, cols / 32 * 17] bytes: an exponent, 2^(e - 128) of what is twice a value, and 32 nibbles."""
    b = rng.integers(0, 256, (rows, cols // 32, 17), np.uint8)
    b[:, :, 0] = 128 + round(np.log2(STD / 6))
    return b.reshape(rows, -1)


def float_bits(bits):
    """Normal numbers of 16 bits: the upper half of a float, or IEEE's half."""

    def make(rng, rows, cols):
        x = rng.standard_normal((rows, cols), np.float32) * np.float32(STD)
        return ((x.view(np.uint32) >> 16).astype(np.uint16) if bits == "bf16" else x.astype(np.float16)).view(np.uint8)

    return make


BLOCKS = {"bf16": float_bits("bf16"), "f16": float_bits("f16"), "q8_0": q8_0, "q4_k": q4_k, "q5_k": q5_k, "mxfp4": mxfp4, "q4_0": q4_0,
          "tq2_0": tq2_0}
BLOCKS |= {name: any_bytes(name, at, magnitude) for name, at, magnitude in (
    ("q6_k", 208, 74 * 18.5), ("iq4_nl", 0, 68), ("iq4_xs", 0, 68 * 18), ("iq3_s", 0, 9 * 18), ("iq3_xxs", 0, 35 * 4.6),
    ("iq2_s", 0, 28 * 2.3), ("iq2_xs", 0, 28 * 2.3), ("iq2_xxs", 0, 28 * 2.3), ("iq1_s", 0, 0.8 * 9), ("tq1_0", 52, 0.8))}
TYPES = sorted([*BLOCKS, *MIXES])


class Pool:
    """Random bytes of each type, from which pieces are cut at blocks."""

    def __init__(self):
        self.rng, self.of = np.random.default_rng(1), {}

    def piece(self, type_name, n_bytes):
        """Views that follow each other in a tensor of so many bytes."""
        _, block, size = STORAGE[type_name]
        if type_name not in self.of:
            cols = 2048 if 2048 % block == 0 else block
            self.of[type_name] = memoryview(BLOCKS[type_name](self.rng, POOL_BYTES // (cols // block * size), cols).reshape(-1))
        pool = self.of[type_name]
        at = int(self.rng.integers(0, len(pool) // size)) * size
        while n_bytes:
            view = pool[at:at + n_bytes]
            yield view
            n_bytes, at = n_bytes - len(view), 0


def write_all(fd, data, at):
    while data:
        n = os.pwrite(fd, data, at)
        data, at = data[n:], at + n


def write(path, s, type_name, n_vocab, n_layer, with_words=False):
    pool, rng = Pool(), np.random.default_rng(2)
    head, starts, size = header(s, type_name, n_vocab, n_layer, with_words)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.ftruncate(fd, len(head) + size)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            parts = [threads.submit(write_all, fd, memoryview(head), 0)]
            for (_, t, dims), start in zip(tensors(s, type_name, n_vocab, n_layer), starts):
                if t:
                    views = pool.piece(t, bytes_of(t, dims))
                else:
                    x = np.ones(dims, np.float32) if len(dims) == 1 else rng.standard_normal(dims, np.float32) * np.float32(STD)
                    views = [memoryview(x.reshape(-1).view(np.uint8))]
                at = len(head) + start
                for view in views:
                    parts.append(threads.submit(write_all, fd, view, at))
                    at += len(view)
            for part in parts:
                part.result()
    finally:
        os.close(fd)


def require_room(path, n_bytes):
    """Before anything is written: a full disk would be noticed only at the end."""
    folder = os.path.dirname(os.path.abspath(path))
    free = shutil.disk_usage(folder).free
    if n_bytes + (256 << 20) > free:
        sys.exit(f"make_model: {path}: {n_bytes / 1e9:.1f} GB expected to fit, {free / 1e9:.1f} GB are free in {folder}; fewer "
                 "--layers take less, another --dir may have more")


def make(path, shape, type_name, n_vocab=0, n_layer=0, with_words=False):
    """Writes the file when it is not there; whole or not at all."""
    s = SHAPES[shape]
    n_vocab, n_layer = n_vocab or s.n_vocab, n_layer or s.n_layer
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    require_room(path, total_bytes(s, type_name, n_vocab, n_layer))
    print(f"make_model: writing {path}", file=sys.stderr)
    write(f"{path}.part", s, type_name, n_vocab, n_layer, with_words)
    os.rename(f"{path}.part", path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    p.add_argument("--type", choices=TYPES, required=True)
    p.add_argument("--vocab", type=int, default=0)
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--words", action="store_true")
    a = p.parse_args()
    make(a.out, a.shape, a.type, a.vocab, a.layers, a.words)


if __name__ == "__main__":
    main()
