#!/usr/bin/env python3
"""Vectors of tiny test models as llama.cpp computes them: the goldens of tests/models/encoders.c.

usage: make.py BUILD_DIR        (BUILD_DIR/tests/write_tiny writes the models)
needs: pip install numpy gguf llama-cpp-python==0.3.36

One batch of two sequences, 9 tokens (id = 5 + 37 i mod 96) of sequence 0 and the next 6 of sequence 1, is computed without
pooling, with all rows wanted, and then with mean, cls, last and, where there is a classifier, rank, each in a context of
its own (F32 cache, no flash attention). NAME.f32 holds the 15 rows, and two of each pooling, little-endian.
"""
import ctypes, os, subprocess, sys, tempfile
import gguf
import numpy as np
import llama_cpp as L

N_VOCAB, LENGTHS = 96, (9, 6)
NONE, MEAN, CLS, LAST, RANK = range(5)


def batch_of():
    n = sum(LENGTHS)
    batch = L.llama_batch_init(n, 0, 2)
    batch.n_tokens = n
    at = [(p, s) for s, length in enumerate(LENGTHS) for p in range(length)]
    for i, (pos, seq) in enumerate(at):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = (5 + 37 * i) % N_VOCAB, pos, 1, 1
        batch.seq_id[i][0] = seq
    return batch


def run(model, pooling):
    cp = L.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max = 256, 64, 64, 2
    cp.n_threads = cp.n_threads_batch = 1
    cp.flash_attn_type, cp.type_k, cp.type_v = 0, 0, 0
    cp.kv_unified, cp.swa_full = True, True
    cp.embeddings, cp.pooling_type = True, pooling
    ctx = L.llama_init_from_model(model, cp)
    batch = batch_of()
    if L.llama_decode(ctx, batch):
        sys.exit('llama_decode failed')
    n = L.llama_model_n_embd(model) if pooling != RANK else L.llama_model_n_cls_out(model)
    if pooling == NONE:
        rows = [L.llama_get_embeddings_ith(ctx, i) for i in range(sum(LENGTHS))]
    else:
        rows = [L.llama_get_embeddings_seq(ctx, s) for s in range(len(LENGTHS))]
    out = np.concatenate([np.ctypeslib.as_array(r, (n,)).copy() for r in rows])
    L.llama_free(ctx)
    return out


@L.llama_log_callback
def quiet(level, text, user):
    if level >= 4:
        sys.stderr.write(text.decode(errors='replace'))


def main():
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([os.path.join(sys.argv[1], 'tests', 'write_tiny'), tmp, 'encoders'], check=True)
        for f in sorted(os.listdir(tmp)):
            path = os.path.join(tmp, f)
            mp = L.llama_model_default_params()
            mp.n_gpu_layers = 0
            model = L.llama_model_load_from_file(path.encode(), mp)
            ranks = any(t.name.startswith('cls.') for t in gguf.GGUFReader(path).tensors)
            rows = [run(model, p) for p in (NONE, MEAN, CLS, LAST) + ((RANK,) if ranks else ())]
            np.concatenate(rows).astype('<f4').tofile(os.path.join(here, f.replace('.gguf', '.f32')))
            L.llama_model_free(model)


if __name__ == '__main__':
    main()
