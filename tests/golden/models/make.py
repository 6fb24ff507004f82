#!/usr/bin/env python3
"""Logits of the tiny test models as llama.cpp computes them: the goldens of tests/models/golden.c.

usage: make.py BUILD_DIR        (BUILD_DIR/tests/write_tiny writes the models)
needs: pip install numpy llama-cpp-python==0.3.36

The session, F32 cache, no flash attention: 12 tokens (id = 5 + 37 i mod 96) of sequence 0 with all logits, a copy to
sequence 1, one token for each; then positions 2 to 4 of sequence 0 are removed, what follows moves down by 3, and one
more token follows. NAME.f32 holds the 12 + 2 + 1 rows of 96 logits, little-endian. NAME.lora.f32: the same with the
adapters NAME.gguf.0 and NAME.gguf.1, which count SCALES times.
"""
import ctypes, os, subprocess, sys, tempfile
import numpy as np
import llama_cpp as L

N_VOCAB = 96
SCALES = (0.75, -0.5)


def token(i):
    return (5 + 37 * i) % N_VOCAB


def decode(ctx, toks, pos, seqs):
    n = len(toks)
    batch = L.llama_batch_init(n, 0, 2)
    batch.n_tokens = n
    for i in range(n):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = toks[i], pos[i], 1, 1
        batch.seq_id[i][0] = seqs[i]
    rc = L.llama_decode(ctx, batch)
    if rc:
        sys.exit(f'llama_decode: {rc}')
    rows = [np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (N_VOCAB,)).copy() for i in range(n)]
    L.llama_batch_free(batch)
    return rows


def run(path, adapters=()):
    mp = L.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = L.llama_model_load_from_file(path.encode(), mp)
    cp = L.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max = 256, 64, 64, 2
    cp.n_threads = cp.n_threads_batch = 1
    cp.flash_attn_type, cp.type_k, cp.type_v = 0, 0, 0
    cp.kv_unified, cp.swa_full = True, True
    ctx = L.llama_init_from_model(model, cp)
    mem = L.llama_get_memory(ctx)
    loaded = [L.llama_adapter_lora_init(model, a.encode()) for a in adapters]
    if loaded:
        n = len(loaded)
        L.llama_set_adapters_lora(ctx, (L.llama_adapter_lora_p_ctypes * n)(*loaded), n, (ctypes.c_float * n)(*SCALES))
    out = decode(ctx, [token(i) for i in range(12)], range(12), [0] * 12)
    L.llama_memory_seq_cp(mem, 0, 1, -1, -1)
    out += decode(ctx, [token(12), token(13)], [12, 12], [0, 1])
    L.llama_memory_seq_rm(mem, 0, 2, 5)
    L.llama_memory_seq_add(mem, 0, 5, -1, -3)
    out += decode(ctx, [token(14)], [10], [0])
    return np.array(out, '<f4')


@L.llama_log_callback
def quiet(level, text, user):
    if level >= 4:
        sys.stderr.write(text.decode(errors='replace'))


def main():
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([os.path.join(sys.argv[1], 'tests', 'write_tiny'), tmp], check=True)
        for f in sorted(f for f in os.listdir(tmp) if f.endswith('.gguf')):
            path = os.path.join(tmp, f)
            run(path).tofile(os.path.join(here, f.replace('.gguf', '.f32')))
            if os.path.exists(path + '.0'):
                run(path, [path + '.0', path + '.1']).tofile(os.path.join(here, f.replace('.gguf', '.lora.f32')))


if __name__ == '__main__':
    main()
