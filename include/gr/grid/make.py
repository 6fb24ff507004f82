#!/usr/bin/env python3
"""Writes the grids of the IQ types beside this file, one GRID(code) for each point, from the tables of PyPI's gguf.

    pip install gguf && include/gr/grid/make.py

A code holds the levels of one point: 2 bits for each of 8 elements, or 4 bits for each of 4, the first element lowest. What a
level is worth is said in gr/quant_grids.h."""
import os

import numpy as np
from gguf import quants

for cls in (quants.IQ1_S, quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S):
    cls.init_grid()
    grid = cls.grid.reshape(cls.grid_shape)
    levels = np.array([list(map(cls.grid_map.index, row)) for row in grid.astype(int).tolist()])
    width = 16 // levels.shape[1]
    codes = (levels << width * np.arange(levels.shape[1])).sum(axis=1)
    name = cls.qtype.name.lower().replace("iq1_s", "iq1")
    text = " ".join(f"GRID(0x{c:04x})" for c in codes).split(" ")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".inc"), "w") as f:
        f.write(f"/* Made by make.py: the {len(codes)} points of {name.upper()}. */\n")
        f.writelines(" ".join(text[i : i + 8]) + "\n" for i in range(0, len(text), 8))
