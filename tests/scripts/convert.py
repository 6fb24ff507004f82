#!/usr/bin/env python3
"""scripts/convert on checkpoints that are written here by hand: convert.py GPURUN SOURCE_DIR. 77 without gguf or NumPy."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
except ImportError:
    print("skipped: gguf or NumPy is not installed")
    sys.exit(77)

PROGRAM, SOURCE = sys.argv[1:3]
N, FF, HEADS, KV, VOCAB = 64, 96, 4, 2, 40
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": N, "intermediate_size": FF, "num_hidden_layers": 2,
          "num_attention_heads": HEADS, "num_key_value_heads": KV, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "vocab_size": VOCAB, "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 1}


def tensors():
    rng = np.random.default_rng(1)
    shapes = {"model.embed_tokens.weight": (VOCAB, N), "model.norm.weight": (N,), "lm_head.weight": (VOCAB, N)}
    for i in range(2):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (N,), p + "post_attention_layernorm.weight": (N,),
                   p + "self_attn.q_proj.weight": (N, N), p + "self_attn.k_proj.weight": (KV * 16, N),
                   p + "self_attn.v_proj.weight": (KV * 16, N), p + "self_attn.o_proj.weight": (N, N),
                   p + "mlp.gate_proj.weight": (FF, N), p + "mlp.up_proj.weight": (FF, N), p + "mlp.down_proj.weight": (N, FF)}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write_safetensors(path, data, dtype="F32"):
    header, blob = {}, b""
    for name, x in data.items():
        raw = x.astype("<f2").tobytes() if dtype == "F16" else (
            (x.view(np.uint32) >> 16).astype("<u2").tobytes() if dtype == "BF16" else x.tobytes())
        header[name] = {"dtype": dtype, "shape": x.shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def write_tokenizer(folder):
    """Byte-level BPE of two control tokens and letters, with one merge."""
    vocab = {"<s>": 0, "</s>": 1} | {chr(97 + i): 2 + i for i in range(26)} | {"\u0120": 28, "ab": 29}
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": i, "content": t, "special": True} for t, i in (("<s>", 0), ("</s>", 1))],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]}}))


def make(folder, data, dtype="F32", **config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    write_tokenizer(folder)
    write_safetensors(folder / "model.safetensors", data, dtype)
    return folder


def convert(folder, out, *flags):
    return subprocess.run([sys.executable, f"{SOURCE}/scripts/convert", str(folder), str(out), *flags], capture_output=True,
                          text=True, check=False)


def gpurun(*args):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, check=False)


def expect(ok, what):
    if not ok:
        sys.exit(f"convert.py: {what}")


def read(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def check_good(folder):
    data, out = tensors(), folder / "out.gguf"
    run = convert(make(folder / "a", data), out)
    expect(run.returncode == 0, run.stderr)
    got = read(out)
    q, name = data["model.layers.1.self_attn.q_proj.weight"], "blk.1.attn_q.weight"
    pairs = q.reshape(HEADS, 2, 8, N).swapaxes(1, 2).reshape(N, N)
    expect(np.array_equal(got[name].data, pairs), "pairs of a head are side by side")
    expect(np.array_equal(got["blk.0.ffn_down.weight"].data, data["model.layers.0.mlp.down_proj.weight"]), "elements stay")
    run = gpurun("tokenize", "-m", out, "-p", "cab", "--ids", "-q")
    expect(run.stdout == "[0, 4, 29]\n", f"tokens {run.stdout} {run.stderr}")
    run = gpurun("run", out, "-p", "cab", "-n", "4", "--temp", "0", "-q")
    expect(run.returncode == 0, run.stderr)
    for dtype, stored in (("BF16", "BF16"), ("F16", "F16")):
        run = convert(make(folder / "a", data, dtype), out)
        expect(run.returncode == 0 and read(out)[name].tensor_type.name == stored, f"{dtype}: {run.stderr}")
        expect(read(out)["output_norm.weight"].tensor_type.name == "F32", "norms are F32")


def check_parts(folder):
    """The same file from two safetensors files and an index."""
    data, a, b = tensors(), folder / "one.gguf", folder / "two.gguf"
    convert(make(folder / "b", data), a, "--name", "x")
    names = list(data)
    parts = {"1.safetensors": names[:9], "2.safetensors": names[9:]}
    (folder / "b" / "model.safetensors").unlink()
    for file, some in parts.items():
        write_safetensors(folder / "b" / file, {n: data[n] for n in some})
    index = {"weight_map": {n: file for file, some in parts.items() for n in some}}
    (folder / "b" / "model.safetensors.index.json").write_text(json.dumps(index))
    run = convert(folder / "b", b, "--name", "x")
    expect(run.returncode == 0 and a.read_bytes() == b.read_bytes(), f"two files are as one: {run.stderr}")


def check_refused(folder):
    data, out, at = tensors(), folder / "none.gguf", folder / "c"

    def refused(why, expected):
        run = convert(at, out)
        expect(run.returncode == 1 and expected in run.stderr and "Traceback" not in run.stderr, f"{why}: {run.stderr}")
        expect(not out.exists() and not list(folder.glob(".none*")), f"{why}: a file was left behind")

    refused("no folder", "No such file")
    make(at, data, architectures=["GPT2LMHeadModel"])
    refused("architecture", "GPT2LMHeadModel is not converted")
    make(at, data, rope_scaling={"type": "dynamic", "factor": 2})
    refused("rope", "dynamic is not converted")
    make(at, data | {"model.extra.weight": np.zeros(3, np.float32)})
    refused("extra tensor", "model.extra.weight has no place")
    make(at, data | {"model.norm.weight": np.full(N, np.nan, np.float32)})
    refused("not finite", "not all of its elements are finite")
    make(at, {k: v for k, v in data.items() if "embed" not in k})
    refused("embedding", "the embedding of the tokens is missing")
    make(at, data)
    whole = (at / "model.safetensors").read_bytes()
    for cut in (4, 100, len(whole) - 1):
        (at / "model.safetensors").write_bytes(whole[:cut])
        refused(f"{cut} bytes", "model.safetensors")
    (at / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + whole[8:])
    refused("header", "its header would be")
    make(at, data)
    (at / "tokenizer.json").unlink()
    refused("tokenizer", "no tokenizer that is read")


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        check_good(folder)
        check_parts(folder)
        check_refused(folder)


if __name__ == "__main__":
    main()
