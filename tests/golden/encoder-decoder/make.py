#!/usr/bin/env python3
"""Logits of tiny test models with an encoder as llama.cpp computes them: the goldens of tests/models/encoder_decoder.c.

usage: make.py BUILD_DIR        (BUILD_DIR/tests/write_tiny writes the models)
needs: pip install numpy llama-cpp-python==0.3.36

Two texts, 9 tokens (id = 5 + 37 i mod 96) of sequence 0 and the next 6 of sequence 1, are encoded; then 5 tokens (id = 3 +
29 i mod 96) of sequence 0 and the next 3 of sequence 1 are decoded, then one more of each (F32 cache, no flash attention).
NAME.f32 holds the 10 rows of logits, little-endian.
"""
import os, sys
import numpy as np
import llama_cpp as L

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
import peer


def batch_of(parts, first, factor, logits):
    """parts: (sequence, first position, tokens) each"""
    at = [(pos, seq) for seq, lo, n in parts for pos in range(lo, lo + n)]
    return peer.batch_of([((first + factor * i) % peer.N_VOCAB, p, s) for i, (p, s) in enumerate(at)], logits)


def run(model):
    ctx = peer.context(model)
    batch = batch_of([(0, 0, 9), (1, 0, 6)], 5, 37, 0)
    peer.run(L.llama_encode, ctx, batch)
    L.llama_batch_free(batch)
    rows = []
    for parts in ([(0, 0, 5), (1, 0, 3)], [(0, 5, 1), (1, 3, 1)]):
        batch = batch_of(parts, 3 + 29 * len(rows), 29, 1)
        peer.run(L.llama_decode, ctx, batch)
        rows += peer.logits(ctx, batch)
        L.llama_batch_free(batch)
    L.llama_free(ctx)
    return np.concatenate(rows)


for path, model in peer.each_model('encoder-decoder'):
    peer.save(run(model), path)
