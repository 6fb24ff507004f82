#!/usr/bin/env python3
"""Writes sessions.txt beside this file: sessions with several sequences and what llama.cpp answers to them.

    pip install numpy && tests/golden/kv/make.py DIR

DIR holds attnN.json (sessions) and MODEL.attnN.npz (llama.cpp's answers; any one MODEL, return codes and positions are
the same for all). A session begins with "session NAME n_cell n_batch n_seq_max unified". Then each operation is a
line of numbers: "decode RC n_tok" and a position and a sequence for each token, or the operation with its arguments,
"=", and the smallest and largest position of every sequence after it."""
import glob
import json
import os
import sys

import numpy as np

ARGS = {
    "seq_rm": ("seq", "p0", "p1"),
    "seq_add": ("seq", "p0", "p1", "delta"),
    "seq_cp": ("src", "dst", "p0", "p1"),
    "seq_keep": ("seq",),
    "state_save": ("slot",),
    "state_load": ("slot",),
}


def main():
    folder, out = sys.argv[1], []
    for path in sorted(glob.glob(os.path.join(folder, "attn*.json"))):
        name = os.path.basename(path)[:-5]
        session, want = json.load(open(path)), np.load(sorted(glob.glob(os.path.join(folder, f"*.{name}.npz")))[0])
        c = session["context"]
        out.append(f"session {name} {c['n_ctx']} {c['n_batch']} {c['n_seq_max']} {c['kv_unified']}")
        for i, op in enumerate(session["ops"]):
            kind = op["op"]
            if kind == "decode":
                assert all(len(s) == 1 for s in op["seq"])
                tokens = " ".join(f"{p} {s[0]}" for p, s in zip(op["pos"], op["seq"]))
                out.append(f"decode {int(want[f'rc_{i}'])} {len(op['pos'])} {tokens}")
                continue
            pos = " ".join(str(x) for x in want[f"pos_{i}"].ravel())
            out.append(" ".join([kind] + [str(op[a]) for a in ARGS[kind]] + ["=", pos]))
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sessions.txt"), "w") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
