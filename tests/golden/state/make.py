#!/usr/bin/env python3
"""Writes the inputs that tests/fuzz/state.c begins with: a byte that says how the rest is taken, then a list of cells or
of recurrent states (host/kv/state.h). make.py [FOLDER]"""
import pathlib
import struct
import sys

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)


def block(seqs, items, ids):
    return b"".join([struct.pack("<4I", len(seqs), len(items), len(ids), 0)]
                    + [struct.pack("<3i", *s) for s in seqs]
                    + [struct.pack("<3i2I", *i) for i in items] + [struct.pack("<i", i) for i in ids])


def write(name, how, shape, data):
    (folder / name).write_bytes(bytes([how | shape << 3]) + data)


STREAMS, WINDOW, TWO_D, ONE, TWICE = 1, 2, 4, 8, 16
alone = block([(2, 0, 0)], [(p, 0, 0, p, 1) for p in range(8)], [0] * 8)
shared = block([(0, 0, 0), (3, 0, 0)], [(p, 0, 0, p, 2) for p in range(5)] + [(5, 0, 0, 5, 1), (5, 0, 0, 6, 1)],
               [0, 1] * 5 + [0, 1])
window = block([(1, 0, 14)], [(14 + p, 0, 0, p, 1) for p in range(6)], [0] * 6)
full, over, long = (block([(1, 0, 0)], [(p, 0, 0, p, 1) for p in range(n)], [0] * n) for n in (40, 41, 50))
image = block([(0, 0, 0)], [(3, p // 3 - 1, p % 3, 0, 1) for p in range(9)], [0] * 9)
of_model = block([(0, 0, 0), (2, 0, 0)], [(p, 0, 0, p, 2 if p < 7 else 1) for p in range(12)], [0, 1] * 7 + [0] * 5)
chains = block([(0, 2, 0), (1, 1, 0)], [(9, 0, 0, 0, 0), (8, 0, 0, 0, 0)], [0, 1, 0])
write("cells", 5, TWICE, alone)
write("cells-one", 5, ONE | TWICE, alone)
write("cells-shared", 5, 0, shared)
write("cells-streams", 5, STREAMS, shared)
write("cells-window", 5, WINDOW | TWICE, window)
write("cells-too-many", 5, WINDOW, long)
write("cells-full", 5, 0, full)
write("cells-over", 5, 0, over)
write("cells-image", 5, TWO_D, image)
write("states", 3, 1, chains)
write("states-one", 3, 4, block([(0, 1, 0)], [(9, 0, 0, 0, 0)], [0]))
write("model", 2, 0, of_model)
write("damaged", 1, 0, bytes([0, 8, 2, 0, 60, 255]))
