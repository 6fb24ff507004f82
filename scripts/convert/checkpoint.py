"""A folder with config.json and safetensors files, as Hugging Face's libraries write it.

A safetensors file is a length (u64), that many bytes of JSON (name: dtype, shape, data_offsets) and the data; several
files are tied together by model.safetensors.index.json. Format: https://github.com/huggingface/safetensors"""

import dataclasses
import json
import pathlib

import numpy as np

# What numpy calls each type; BF16 is read as its 16 bits, which are the upper half of an F32.
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
         "U8": "u1", "BOOL": "?"}
MAX_HEADER = 100 << 20


class BadCheckpoint(Exception):
    """What is wrong with the folder, for the user."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    file: pathlib.Path
    dtype: str
    shape: tuple
    offset: int

    def read(self):
        """The elements as F32, or unchanged where they are no floats."""
        n = int(np.prod(self.shape, dtype=np.int64))
        data = np.fromfile(self.file, TYPES[self.dtype], n, offset=self.offset)
        if data.size != n:
            raise BadCheckpoint(f"{self.file}: ends inside a tensor")
        if self.dtype == "BF16":
            data = (data.astype(np.uint32) << 16).view(np.float32)
        elif self.dtype in ("F16", "F64"):
            data = data.astype(np.float32)
        return data.reshape(self.shape)


def read_json(file, default=None):
    """The object in `file`; `default`, where given, when there is no such file."""
    if default is not None and not file.exists():
        return default
    try:
        value = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadCheckpoint(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise BadCheckpoint(f"{file}: no JSON: {error}") from None
    if not isinstance(value, dict | list):
        raise BadCheckpoint(f"{file}: expected an object")
    return value


def read_header(file):
    """{name: Tensor} of one safetensors file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as f:
            n = int.from_bytes(f.read(8), "little")
            if n > min(MAX_HEADER, size - 8):
                raise BadCheckpoint(f"{file}: no safetensors file: its header would be {n} bytes long")
            header = json.loads(f.read(n))
    except OSError as error:
        raise BadCheckpoint(f"{file}: {error.strerror}") from None
    except ValueError:
        raise BadCheckpoint(f"{file}: no safetensors file: its header is no JSON") from None
    return {name: read_entry(file, name, entry, 8 + n, size) for name, entry in header.items() if name != "__metadata__"}


def read_entry(file, name, entry, start, size):
    try:
        shape, dtype, (lo, hi) = tuple(entry["shape"]), entry["dtype"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise BadCheckpoint(f"{file}: tensor {name}: its entry lacks dtype, shape or data_offsets") from None
    if dtype not in TYPES:
        raise BadCheckpoint(f"{file}: tensor {name} is stored as {dtype}, which is not read; take F32, F16 or BF16")
    n = np.dtype(TYPES[dtype]).itemsize
    for d in shape:
        n *= d
    if not 0 <= lo <= hi <= size - start or hi - lo != n:
        raise BadCheckpoint(f"{file}: tensor {name}: bytes [{lo}, {hi}) are not its shape {list(shape)} inside the file")
    return Tensor(file, dtype, shape, start + lo)


class Checkpoint:
    """The folder: its configuration and {name: Tensor} in `tensors`."""

    def __init__(self, folder):
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self.tensors = {}
        index = read_json(folder / "model.safetensors.index.json", {})
        files = sorted(set(index.get("weight_map", {}).values())) or ["model.safetensors"]
        for file in files:
            self.tensors.update(read_header(folder / file))

    def json(self, name, default=None):
        return read_json(self.folder / name, default)

    def get(self, *names, default=None):
        """The first of these keys of the configuration that has a value."""
        for name in names:
            if self.config.get(name) is not None:
                return self.config[name]
        return default

    def require(self, *names):
        value = self.get(*names)
        if value is None:
            raise BadCheckpoint(f"{self.folder / 'config.json'}: key {names[0]} is missing")
        return value
