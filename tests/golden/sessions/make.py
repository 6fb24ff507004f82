#!/usr/bin/env python3
"""Writes MODEL.SESSION.npz beside this file: answers to recorded sessions that take the place of those in the folder
that scripts/compare/golden reads, where those are not what the session says.

    pip install numpy gguf llama-cpp-python && tests/golden/sessions/make.py ORACLE ZOO

ORACLE is a program `ORACLE SESSION.json OUT.npz --model FILE.gguf` that runs a session (tools/commands/session.h) on llama.cpp;
ZOO holds MODEL.gguf and golden/SESSION.json.

FLASH: asked for flash attention, llama.cpp rounds the F32 cache and its sums to half floats, which alone differs by more
than 1e-6. Here without it.
KEEP: where each sequence has a pool of its own, llama.cpp's seq_keep empties the other sequences' recurrent states but
not their cells. Here the others are removed one by one (and without flash attention).
EXACT: llama.cpp looks GELU up in a table of half floats. Here the definition in f64 (../models/exact.py)."""
import copy
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "models"))
import exact

FLASH = {
    "llama-dense": ["attn3"],
    "llama-moe": ["attn3"],
    "qwen2-dense": ["attn3"],
    "gpt-oss-moe": ["attn3"],
    "phi3-dense": ["attn6"],
    "deepseek2-moe": ["attn3", "attn4", "attn6"],
    "jamba-dense": ["recurrent3", "recurrent4"],
}
KEEP = {m: ["recurrent2", "recurrent5", "recurrent6"] for m in ("jamba-dense", "qwen35-dense")}
EXACT = {"mpt-dense": ["attn2", "attn3", "attn4"]}


def without_flash(session):
    return dict(session, context=dict(session["context"], flash_attn=0))


def without_keep(session):
    """Also the place of each operation (of the last of those that it became) in the new list."""
    ops, place = [], []
    for op in session["ops"]:
        if op["op"] == "seq_keep":
            others = [q for q in range(session["context"]["n_seq_max"]) if q != op["seq"]]
            ops += [{"op": "seq_rm", "seq": q, "p0": -1, "p1": -1} for q in others]
        else:
            ops.append(op)
        place.append(len(ops) - 1)
    return dict(session, ops=ops), place


def run_oracle(oracle, path, session, place, without=()):
    with tempfile.TemporaryDirectory() as tmp:
        file, out = os.path.join(tmp, "session.json"), os.path.join(tmp, "out.npz")
        with open(file, "w") as f:
            json.dump(session, f)
        subprocess.run([oracle, file, out, "--model", path], check=True, stderr=subprocess.DEVNULL)
        answer = dict(np.load(out))
    result = {}
    for i, j in enumerate(place):
        for kind in ("logits", "pos", "rc"):
            if f"{kind}_{j}" in answer and not (kind == "rc" and i in without):
                result[f"{kind}_{i}"] = answer[f"{kind}_{j}"]
    return result


def in_range(op, pos):
    return pos >= op["p0"] and (op["p1"] < 0 or pos < op["p1"])


def run_exact(path, session):
    """Logits alone, the rest is as recorded. A copy shares its cells, which is the same where no copy is moved."""
    model, slots, result = exact.Model(path), {}, {}
    for i, op in enumerate(session["ops"]):
        kind = op["op"]
        if kind == "decode":
            logits = model.decode(op["tokens"], op["pos"], [s[0] for s in op["seq"]])
            rows = [row for row, wanted in zip(logits, op["logits"]) if wanted]
            result[f"logits_{i}"] = np.array(rows, np.float32)
        elif kind == "state_save":
            slots[op["slot"]] = copy.deepcopy(model.cells)
        elif kind == "state_load":
            model.cells = copy.deepcopy(slots[op["slot"]])
        for c in model.cells:
            if kind == "seq_rm" and in_range(op, c["pos"]):
                c["seq"].discard(op["seq"])
            elif kind == "seq_cp" and op["src"] in c["seq"] and in_range(op, c["pos"]):
                c["seq"].add(op["dst"])
            elif kind == "seq_keep":
                c["seq"] &= {op["seq"]}
            elif kind == "seq_add" and op["seq"] in c["seq"] and in_range(op, c["pos"]):
                c["pos"] += op["delta"]
    return result


def main():
    oracle, zoo = sys.argv[1:]

    def each(table):
        for model in table:
            for name in table[model]:
                with open(os.path.join(zoo, "golden", name + ".json")) as f:
                    yield os.path.join(zoo, model + ".gguf"), json.load(f), os.path.join(HERE, f"{model}.{name}.npz")

    for path, session, out in each(FLASH):
        np.savez_compressed(out, **run_oracle(oracle, path, without_flash(session), range(len(session["ops"]))))
    for path, session, out in each(KEEP):
        kept = [i for i, op in enumerate(session["ops"]) if op["op"] == "seq_keep"]  # it has no return code
        np.savez_compressed(out, **run_oracle(oracle, path, *without_keep(without_flash(session)), kept))
    for path, session, out in each(EXACT):
        np.savez_compressed(out, **run_exact(path, session))


if __name__ == "__main__":
    main()
