#!/usr/bin/env python3
"""Logits of tiny test models with an encoder as llama.cpp computes them: the goldens of tests/models/encoder_decoder.c.

usage: make.py BUILD_DIR        (BUILD_DIR/tests/write_tiny writes the models)
needs: pip install numpy llama-cpp-python==0.3.36

Two texts, 9 tokens (id = 5 + 37 i mod 96) of sequence 0 and the next 6 of sequence 1, are encoded; then 5 tokens (id = 3 +
29 i mod 96) of sequence 0 and the next 3 of sequence 1 are decoded, then one more of each (F32 cache, no flash attention).
NAME.f32 holds the 10 rows of logits, little-endian.
"""
import ctypes, os, subprocess, sys, tempfile
import numpy as np
import llama_cpp as L

N_VOCAB = 96


def batch_of(parts, first, factor, logits):
    """parts: (sequence, first position, tokens) each"""
    at = [(seq, pos) for seq, lo, n in parts for pos in range(lo, lo + n)]
    batch = L.llama_batch_init(len(at), 0, 2)
    batch.n_tokens = len(at)
    for i, (seq, pos) in enumerate(at):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = (first + factor * i) % N_VOCAB, pos, 1, logits
        batch.seq_id[i][0] = seq
    return batch


def run(model):
    cp = L.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max = 256, 64, 64, 2
    cp.n_threads = cp.n_threads_batch = 1
    cp.flash_attn_type, cp.type_k, cp.type_v, cp.kv_unified = 0, 0, 0, True
    ctx = L.llama_init_from_model(model, cp)
    if L.llama_encode(ctx, batch_of([(0, 0, 9), (1, 0, 6)], 5, 37, 0)):
        sys.exit('llama_encode failed')
    rows = []
    for parts in ([(0, 0, 5), (1, 0, 3)], [(0, 5, 1), (1, 3, 1)]):
        batch = batch_of(parts, 3 + 29 * len(rows), 29, 1)
        if L.llama_decode(ctx, batch):
            sys.exit('llama_decode failed')
        rows += [np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (N_VOCAB,)).copy() for i in range(batch.n_tokens)]
    L.llama_free(ctx)
    return np.concatenate(rows)


@L.llama_log_callback
def quiet(level, text, user):
    if level >= 4:
        sys.stderr.write(text.decode(errors='replace'))


def main():
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([os.path.join(sys.argv[1], 'tests', 'write_tiny'), tmp, 'encoder-decoder'], check=True)
        for f in sorted(os.listdir(tmp)):
            mp = L.llama_model_default_params()
            mp.n_gpu_layers = 0
            model = L.llama_model_load_from_file(os.path.join(tmp, f).encode(), mp)
            run(model).astype('<f4').tofile(os.path.join(here, f.replace('.gguf', '.f32')))
            L.llama_model_free(model)


if __name__ == '__main__':
    main()
