#!/usr/bin/env python3
"""Writes the *.gguf files beside this one with PyPI's gguf, and golden.txt: what PyPI's gguf reads back from them.

    pip install gguf && tests/golden/gguf/make.py

golden.txt: `file NAME` begins a model; `kv KEY TYPE N ITEMS` its keys, the items' bytes in hex (strings: each its own,
separated by commas); `tensor NAME TYPE SHAPE BYTES` its tensors, innermost dimension first."""
import os
import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as T

TYPES = {T.UINT8: "u8", T.INT8: "i8", T.UINT16: "u16", T.INT16: "i16", T.UINT32: "u32", T.INT32: "i32",
         T.FLOAT32: "f32", T.BOOL: "bool", T.STRING: "string", T.UINT64: "u64", T.INT64: "i64", T.FLOAT64: "f64"}
SCALARS = [(T.UINT8, 200), (T.INT8, -100), (T.UINT16, 60000), (T.INT16, -30000), (T.UINT32, 4000000000),
           (T.INT32, -2000000000), (T.FLOAT32, 1e-5), (T.BOOL, True), (T.STRING, "caf\u00e9\n\u20ac"),
           (T.UINT64, 2**64 - 1), (T.INT64, -2**63), (T.FLOAT64, 3.141592653589793)]


def add_types(w):
    for t, v in SCALARS:
        w.add_key_value(f"scalar.{TYPES[t]}", v, t)
        w.add_key_value(f"array.{TYPES[t]}", [v, v, v] if t != T.STRING else ["one", "", v], T.ARRAY, t)


def add_tensors(w):
    """One tensor of each storage type, 1 to 4 dimensions, bytes that count. Not of Q8_1, which never is in files: the
    table of the package has 40 bytes a block where ggml has 36."""
    for q, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if q == Q.Q8_1:
            continue
        dims = 1 + q.value % 4
        shape = [1, 2, 1][: dims - 1] + [size]
        raw = (np.arange(np.prod(shape)) * 7 + q.value).astype(np.uint8).reshape(shape)
        w.add_tensor(f"t.{q.name}", raw, raw_dtype=q)


def write(path, fill, **options):
    w = gguf.GGUFWriter(path, "llama", **options)
    fill(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def value_line(name, field):
    items = [field.parts[i].tobytes().hex() for i in field.data]
    last = TYPES[field.types[-1]]
    kind = f"array of {last}" if field.types[0] == T.ARRAY else last
    return f"kv {name} {kind} {len(items)} {(',' if last == 'string' else '').join(items)}\n"


def dump(paths):
    readers = [gguf.GGUFReader(p) for p in paths]
    text = "".join(value_line(n, f) for n, f in readers[0].fields.items() if not n.startswith("GGUF."))
    for t in (t for r in readers for t in r.tensors):
        shape = ",".join(str(int(n)) for n in t.shape)
        text += f"tensor {t.name} {t.tensor_type.name} {shape} {t.data.tobytes().hex()}\n"
    return text


def add_two(w):
    w.add_tensor("a", np.arange(3, dtype=np.float32))
    w.add_tensor("b", np.arange(4, dtype=np.float16).reshape(2, 2))


def add_aligned(w):
    w.add_custom_alignment(128)
    add_two(w)


def main():
    os.chdir(pathlib.Path(__file__).parent)
    for old in pathlib.Path(".").glob("*.gguf"):
        old.unlink()
    write("types.gguf", add_types)
    write("tensors.gguf", add_tensors)
    write("align.gguf", add_aligned)
    write("split.gguf", add_two, split_max_tensors=1)
    write("big-endian.gguf", add_aligned, endianess=gguf.GGUFEndian.BIG)
    gguf.gguf_writer.GGUF_VERSION = 2
    write("v2.gguf", add_aligned)
    assert struct.unpack("<I", pathlib.Path("v2.gguf").read_bytes()[4:8]) == (2,)
    with open("golden.txt", "w", encoding="ascii") as out:
        for name in ("types", "tensors", "align", "v2"):
            out.write(f"file {name}.gguf\n" + dump([f"{name}.gguf"]))
        parts = sorted(str(p) for p in pathlib.Path(".").glob("split-*.gguf"))
        out.write(f"file {parts[0]}\n" + dump(parts))


main()
