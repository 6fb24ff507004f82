#!/usr/bin/env python3
"""Makes a GGUF file of a checkpoint folder (config.json, *.safetensors, tokenizer files).

    python3 scripts/convert FOLDER OUT.gguf [--type f32|f16|bf16] [--name NAME] [--pre NAME]

Needs PyPI's gguf and numpy. Matrices are stored as the checkpoint has them, or as --type says; the rest, and what
looks up positions and experts, in F32. Architectures: see families.py. The file appears complete or not at all."""

import argparse
import os
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
try:
    import gguf
except ImportError:
    sys.exit("scripts/convert: PyPI's gguf is not installed; python3 -m pip install gguf")
import families
import vocabulary
from checkpoint import BadCheckpoint, Checkpoint

STORED = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
          "bf16": gguf.GGMLQuantizationType.BF16}
FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
              "bf16": gguf.LlamaFileType.MOSTLY_BF16}
WIDEST = 65504  # of f16


def plan(checkpoint, family):
    """{new name: [tensor, or the experts' tensors in order]}, and tensors that no file has."""
    groups = {}
    for name, tensor in checkpoint.tensors.items():
        new, expert = family.rename(name)
        if new:
            groups.setdefault(new, {})[expert or 0] = tensor
    for new, group in groups.items():
        shapes = {t.shape for t in group.values()}
        if sorted(group) != list(range(len(group))) or len(shapes) > 1:
            raise BadCheckpoint(f"tensor {new}: its parts are not one for each expert, all of a shape")
    if checkpoint.get("tie_word_embeddings"):
        groups.pop("output.weight", None)
    return {new: [group[i] for i in sorted(group)] for new, group in groups.items()}


def is_stacked(name):
    return "_exps." in name


def shape_of(family, checkpoint, name, tensors):
    """The shape after the family's change, without reading more than has to be read."""
    shape = tensors[0].shape
    if name.startswith("position_embd"):
        shape = family.change(checkpoint, name, np.broadcast_to(np.float32(0), shape)).shape
    return (len(tensors), *shape) if is_stacked(name) else shape


def kind_of(name, shape, kind):
    if len(shape) < 2 or "norm" in name or any(k in name for k in families.KEPT_F32):
        return "f32"
    return kind


def elements(checkpoint, family, name, tensors):
    data = [family.change(checkpoint, name, t.read()) for t in tensors]
    data = np.stack(data) if is_stacked(name) else data[0]
    if not np.isfinite(data).all():
        raise BadCheckpoint(f"tensor {name}: not all of its elements are finite")
    return data


def stored(name, data, kind):
    if kind == "f16" and np.abs(data).max(initial=0) > WIDEST:
        raise BadCheckpoint(f"tensor {name}: an element is over {WIDEST}, the most that f16 holds; use --type bf16")
    return gguf.quants.quantize(np.ascontiguousarray(data, np.float32), STORED[kind])


def usual_type(tensors):
    """The type that most of the matrices have."""
    kinds = [t.dtype.lower() for group in tensors.values() for t in group if len(t.shape) > 1]
    kind = max(set(kinds), key=kinds.count) if kinds else "f32"
    return kind if kind in STORED else "f32"


def add_tensors(writer, checkpoint, family, kind):
    """Declares every tensor; returns functions that give their data, in the same order."""
    tensors = plan(checkpoint, family)
    kind = kind or usual_type(tensors)
    writer.add_file_type(FILE_TYPES[kind])
    data = []

    def add(name, shape, read):
        k = kind_of(name, shape, kind)
        n_bytes = int(np.prod(shape, dtype=np.int64)) * (4 if k == "f32" else 2)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), n_bytes, raw_dtype=STORED[k])
        data.append(lambda: stored(name, read(), k))

    for name, value in family.extra(checkpoint).items():
        add(name, value.shape, lambda value=value: value)
    for name, group in tensors.items():
        add(name, shape_of(family, checkpoint, name, group),
            lambda name=name, group=group: elements(checkpoint, family, name, group))
    return data


def vocabulary_of(checkpoint, family, pre):
    v = vocabulary.read(checkpoint, pre)
    rows = next((t.shape[0] for n, t in checkpoint.tensors.items() if family.rename(n)[0] == "token_embd.weight"), None)
    if rows is None:
        raise BadCheckpoint(f"{checkpoint.folder}: the embedding of the tokens is missing")
    v.pad(rows)
    return v


def convert(args):
    checkpoint = Checkpoint(args.folder)
    family = families.find(checkpoint)
    part = args.out.with_name(f".{args.out.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(part, family.arch)
    try:
        writer.add_name(args.name or args.folder.resolve().name)
        family.set_keys(checkpoint, writer)
        vocabulary_of(checkpoint, family, args.pre).write(writer)
        data = add_tensors(writer, checkpoint, family, args.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for get in data:
            writer.write_tensor_data(get())
        writer.close()
        os.replace(part, args.out)
    finally:
        part.unlink(missing_ok=True)
    print(f"{args.out}: {family.arch}, {len(data)} tensors, {args.out.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(prog="scripts/convert", description="make a GGUF file of a checkpoint folder")
    parser.add_argument("folder", type=pathlib.Path, help="folder with config.json")
    parser.add_argument("out", type=pathlib.Path, help="file to write")
    parser.add_argument("--type", choices=STORED, help="of the matrices; as the checkpoint has them")
    parser.add_argument("--name", help="general.name; the folder's")
    parser.add_argument("--pre", help="tokenizer.ggml.pre, where the pre-tokenizer is not recognised")
    try:
        convert(parser.parse_args())
    except (BadCheckpoint, OSError) as error:
        sys.exit(f"scripts/convert: {error}")


if __name__ == "__main__":
    main()
