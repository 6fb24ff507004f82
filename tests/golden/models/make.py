#!/usr/bin/env python3
"""Logits of the tiny test models as llama.cpp computes them: the goldens of tests/models/golden.c.

usage: make.py BUILD_DIR        (BUILD_DIR/tests/write_tiny writes the models)
needs: pip install numpy llama-cpp-python==0.3.36

The session, F32 cache, no flash attention: 12 tokens (id = 5 + 37 i mod 96) of sequence 0 with all logits, a copy to
sequence 1, one token for each; then positions 2 to 4 of sequence 0 are removed, what follows moves down by 3, and one
more token follows. NAME.f32 holds the 12 + 2 + 1 rows of 96 logits, little-endian. NAME.lora.f32: the same with the
adapters NAME.gguf.0 and NAME.gguf.1, which count SCALES times. NAME.given.f32, of the models in GIVEN: 15 rows of logits of
as many vectors in place of tokens, number k of all n_embd of them being ((29 k) mod 61 - 30) / 16.
"""
import ctypes, os, sys
import numpy as np
import llama_cpp as L

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
import peer

SCALES = (0.75, -0.5)
GIVEN = ('llama', 'gemma', 'gemma3', 'gpt2', 'granite')  # embeddings scaled or not, positions learned
N_GIVEN = 15


def token(i):
    return (5 + 37 * i) % peer.N_VOCAB


def decode(ctx, tokens):
    batch = peer.batch_of(tokens)
    peer.run(L.llama_decode, ctx, batch)
    rows = peer.logits(ctx, batch)
    L.llama_batch_free(batch)
    return rows


def run(model, adapters=()):
    ctx = peer.context(model)
    mem = L.llama_get_memory(ctx)
    loaded = [L.llama_adapter_lora_init(model, a.encode()) for a in adapters]
    if loaded:
        n = len(loaded)
        L.llama_set_adapters_lora(ctx, (L.llama_adapter_lora_p_ctypes * n)(*loaded), n, (ctypes.c_float * n)(*SCALES))
    out = decode(ctx, [(token(i), i, 0) for i in range(12)])
    L.llama_memory_seq_cp(mem, 0, 1, -1, -1)
    out += decode(ctx, [(token(12), 12, 0), (token(13), 12, 1)])
    L.llama_memory_seq_rm(mem, 0, 2, 5)
    L.llama_memory_seq_add(mem, 0, 5, -1, -3)
    out += decode(ctx, [(token(14), 10, 0)])
    L.llama_free(ctx)
    return np.concatenate(out)


def run_given(model):
    ctx, n = peer.context(model), L.llama_model_n_embd(model)
    x = ((29 * np.arange(N_GIVEN * n) % 61 - 30) / 16).astype(np.float32)
    batch = L.llama_batch_init(N_GIVEN, n, 1)
    batch.n_tokens = N_GIVEN
    ctypes.memmove(batch.embd, x.ctypes.data, x.nbytes)
    for i in range(N_GIVEN):
        batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = i, 1, 0, 1
    peer.run(L.llama_decode, ctx, batch)
    out = peer.logits(ctx, batch)
    L.llama_batch_free(batch)
    L.llama_free(ctx)
    return np.concatenate(out)


for path, model in peer.each_model():
    peer.save(run(model), path)
    if os.path.basename(path).removesuffix('.gguf') in GIVEN:
        peer.save(run_given(model), path, '.given.f32')
    if os.path.exists(path + '.0'):
        peer.save(run(model, [path + '.0', path + '.1']), path, '.lora.f32')
