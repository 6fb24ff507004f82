#!/usr/bin/env python3
"""Vectors of tiny test models as llama.cpp computes them: the goldens of tests/models/encoders.c.

usage: make.py BUILD_DIR        (BUILD_DIR/tests/write_tiny writes the models)
needs: pip install numpy gguf llama-cpp-python==0.3.36

One batch of two sequences, 9 tokens (id = 5 + 37 i mod 96) of sequence 0 and the next 6 of sequence 1, is computed without
pooling, with all rows wanted, and then with mean, cls, last and, where there is a classifier, rank, each in a context of
its own (F32 cache, no flash attention). NAME.f32 holds the 15 rows, and two of each pooling, little-endian.
"""
import os, sys
import gguf
import numpy as np
import llama_cpp as L

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
import peer

LENGTHS = (9, 6)
NONE, MEAN, CLS, LAST, RANK = range(5)


def run(model, pooling):
    ctx = peer.context(model, embeddings=True, pooling_type=pooling)
    at = [(p, s) for s, length in enumerate(LENGTHS) for p in range(length)]
    batch = peer.batch_of([((5 + 37 * i) % peer.N_VOCAB, p, s) for i, (p, s) in enumerate(at)])
    peer.run(L.llama_decode, ctx, batch)
    n = L.llama_model_n_embd(model) if pooling != RANK else L.llama_model_n_cls_out(model)
    if pooling == NONE:
        rows = [L.llama_get_embeddings_ith(ctx, i) for i in range(sum(LENGTHS))]
    else:
        rows = [L.llama_get_embeddings_seq(ctx, s) for s in range(len(LENGTHS))]
    out = np.concatenate([np.ctypeslib.as_array(r, (n,)).copy() for r in rows])
    L.llama_batch_free(batch)
    L.llama_free(ctx)
    return out


for path, model in peer.each_model('encoders'):
    ranks = any(t.name.startswith('cls.') for t in gguf.GGUFReader(path).tensors)
    peer.save(np.concatenate([run(model, p) for p in (NONE, MEAN, CLS, LAST) + ((RANK,) if ranks else ())]), path)
