#!/usr/bin/env python3
"""Compares the reader with PyPI's gguf on given files and on mutants of the small files beside this script:

    pip install gguf && tests/golden/gguf/compare.py build/libgpurun.so [--mutants 20000] [--seed 1] [FILE...]

What gpurun accepts, gguf must read with the same keys, types, counts, first items, tensors, shapes and places. What gpurun
refuses, gguf must fail on, or it must break one of the rules that gguf does not check (broken_rule below)."""
import argparse
import collections
import ctypes
import json
import pathlib
import random
import signal
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGUFValueType as T

TYPES = {T.UINT8: "u8", T.INT8: "i8", T.UINT16: "u16", T.INT16: "i16", T.UINT32: "u32", T.INT32: "i32",
         T.FLOAT32: "f32", T.BOOL: "bool", T.STRING: "string", T.UINT64: "u64", T.INT64: "i64", T.FLOAT64: "f64",
         T.ARRAY: "array"}
HERE = pathlib.Path(__file__).parent
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fclose.argtypes = [ctypes.c_void_p]


class Gpurun:
    """gr_inspect of the shared library: (status, message or parsed JSON)."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.gr_inspect.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_bool]
        self.lib.gr_error_message.restype = ctypes.c_char_p
        self.out = tempfile.NamedTemporaryFile(suffix=".json")

    def inspect(self, path):
        file = libc.fopen(self.out.name.encode(), b"w")
        status = self.lib.gr_inspect(str(path).encode(), file, True)
        libc.fclose(file)
        if status:
            return status, self.lib.gr_error_message().decode("ascii", "replace")
        return 0, json.loads(pathlib.Path(self.out.name).read_text(encoding="utf-8"))


def text(data):
    """Bytes as gpurun shows them in JSON: each byte that is not UTF-8 becomes U+FFFD."""
    out, at = "", 0
    while at < len(data):
        for n in range(1, 5):
            try:
                out += bytes(data[at:at + n]).decode("utf-8")
                break
            except UnicodeDecodeError:
                pass
        else:
            out, n = out + "\ufffd", 1
        at += n
    return out


def first_items(field, kind):
    values = []
    for i in field.data[:16]:
        part = field.parts[i]
        if kind == T.STRING:
            values.append(text(part.tobytes()))
        elif kind in (T.FLOAT32, T.FLOAT64):
            values.append(float(part[0]) if np.isfinite(part[0]) else None)
        else:
            value = bool(part[0]) if kind == T.BOOL else int(part[0])
            values.append(str(value) if value > 2**63 - 1 else value)
    return values


def same(a, b):
    return a == b or b is None and isinstance(a, str)  # inf and nan are strings in our JSON


def difference(mine, reader):
    """The first difference between our JSON and gguf's reader, or None."""
    theirs = {n: f for n, f in reader.fields.items() if not n.startswith("GGUF.")}
    if len(mine["metadata"]) != len(theirs) or len(mine["tensors"]) != len(reader.tensors):
        return "number of keys or tensors"
    for name, field in theirs.items():
        kv, array = mine["metadata"].get(name), field.types[0] == T.ARRAY
        if kv is None or kv["type"] != TYPES[field.types[0]]:
            return f"key {name!r}"
        if array and kv["n"] != len(field.data):
            return f"length of {name!r}"
        values = first_items(field, field.types[-1])
        if array and not values:
            continue
        if not all(map(same, kv["value"] if array else [kv["value"]], values)):
            return f"value of {name!r}: {kv['value']} and {values}"
    for a, b in zip(mine["tensors"], reader.tensors):
        if [a["name"], a["type"].upper(), a["shape"], a["bytes"], a["offset"]] != \
                [b.name, b.tensor_type.name.upper(), b.shape.tolist(), b.n_bytes, b.data_offset]:
            return f"tensor {b.name!r}"
    return None


def broken_rule(reader, size):
    """A rule of gpurun that the file breaks though gguf reads it, or None."""
    if reader.byte_order != "I":
        return "big-endian"
    if not 8 <= reader.alignment <= 1 << 24:
        return "alignment"
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        parts = field.parts
        if parts[0][0] == 0 or parts[0][0] != parts[1].nbytes:
            return "key name"
        if field.types.count(T.ARRAY) > 1:
            return "nested array"
        if field.types[-1] == T.BOOL and any(parts[i].view(np.uint8)[0] > 1 for i in field.data):
            return "bool"
        if field.types[-1] == T.STRING and any(parts[i - 1][0] != parts[i].nbytes for i in field.data):
            return "truncated string"
        if field.types[0] == T.ARRAY and len(field.types) == 1 and parts[3][0] not in list(T):
            return "item type of an empty array"
        if field.types[0] == T.ARRAY and parts[3][0] == T.ARRAY:
            return "nested array"
    for name in ("split.count", "split.no", "split.tensors.count"):
        if name in reader.fields:
            return "split"
    taken = []
    for t in reader.tensors:
        dims, block = [int(n) for n in t.shape], gguf.GGML_QUANT_SIZES[t.tensor_type][0]
        if t.tensor_type == gguf.GGMLQuantizationType.Q8_1:
            return "q8_1, whose size gguf has wrong"
        if not 1 <= len(dims) <= 4 or 0 in dims or dims[0] % block or len(t.name) == 0:
            return "shape or name"
        if np.prod([float(d) for d in dims]) >= 2.0**62:
            return "too large"
        if (t.data_offset - reader.data_offset) % reader.alignment or t.data_offset + t.n_bytes > size:
            return "place"
        if any(lo < t.data_offset + t.n_bytes and t.data_offset < hi for lo, hi in taken):
            return "overlap"
        taken.append((t.data_offset, t.data_offset + t.n_bytes))
    return None


def too_slow(*_):
    raise TimeoutError


def read_theirs(path, seconds):
    """gguf's reader, or None and the name of what it stumbled over; huge counts keep it busy, hence the limit."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return gguf.GGUFReader(path), None
    except Exception as e:
        return None, type(e).__name__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def judge(gpurun, path, counts, seconds=1):
    """Prints and returns False when the two disagree."""
    status, mine = gpurun.inspect(path)
    reader, why = read_theirs(path, seconds)
    if status and not reader:
        counts["both refuse"] += 1
        return True
    if status:
        rule = broken_rule(reader, pathlib.Path(path).stat().st_size)
        counts[f"only gpurun refuses: {rule}"] += 1
        if not rule:
            print(f"{path}: refused without a rule: {mine}")
        return rule is not None
    if why and "UnicodeDecode" in why:
        counts["names that are not UTF-8"] += 1
        return True
    what = why or difference(mine, reader)
    counts["both accept" if not what else "DIFFERENT"] += 1
    if what:
        print(f"{path}: accepted, but: {what}")
    return not what


def mutant(data, rng):
    """Some bytes or little-endian numbers changed, or the end cut off."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        n = rng.choice((1, 1, 4, 8))
        at = rng.randrange(4, max(5, min(len(data), 700) - n))
        value = rng.choice((0, 1, 2, 3, 7, 8, 9, 16, 31, 32, 2**31, 2**63, -1, -8, 1 << rng.randrange(64),
                            rng.getrandbits(64)))
        data[at:at + n] = (value & 2**(8 * n) - 1).to_bytes(n, "little")
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)):]
    return data


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("library")
    arguments.add_argument("--mutants", type=int, default=20000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("file", nargs="*")
    a = arguments.parse_intermixed_args()
    signal.signal(signal.SIGALRM, too_slow)
    gpurun, counts, bad = Gpurun(a.library), collections.Counter(), 0
    for f in a.file:
        bad += not judge(gpurun, f, counts, 120)
    seeds = [p.read_bytes() for p in sorted(HERE.glob("*.gguf")) if "split" not in p.name]
    rng = random.Random(a.seed)
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        for i in range(a.mutants):
            path = pathlib.Path(folder) / f"{i}.gguf"
            path.write_bytes(mutant(rng.choice(seeds), rng))
            if judge(gpurun, path, counts):
                path.unlink()
            else:
                bad += 1
                kept = pathlib.Path(tempfile.gettempdir()) / f"disagree-{a.seed}-{i}.gguf"
                kept.write_bytes(path.read_bytes())
                print(f"  kept as {kept}")
    for what, n in counts.most_common():
        print(f"{n:8d} {what}")
    sys.exit(1 if bad else 0)


main()
