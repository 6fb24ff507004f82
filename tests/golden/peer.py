"""llama.cpp on tiny test models: what the make.py of the folders beside this file share (llama-cpp-python 0.3.36)."""
import ctypes, os, subprocess, sys, tempfile
import numpy as np
import llama_cpp as L

N_VOCAB = 96


@L.llama_log_callback
def quiet(level, text, user):
    if level >= 4:
        sys.stderr.write(text.decode(errors='replace'))


def each_model(kind=''):
    """(path, model) of each model that write_tiny of the build folder sys.argv[1] writes of a kind."""
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([os.path.join(sys.argv[1], 'tests', 'write_tiny'), tmp] + kind.split(), check=True)
        for f in sorted(f for f in os.listdir(tmp) if f.endswith('.gguf')):
            path = os.path.join(tmp, f)
            mp = L.llama_model_default_params()
            mp.n_gpu_layers = 0
            model = L.llama_model_load_from_file(path.encode(), mp)
            yield path, model
            L.llama_model_free(model)


def context(model, **more):
    """Two sequences in one cache of F32, no flash attention, one thread."""
    cp = L.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max = 256, 64, 64, 2
    cp.n_threads = cp.n_threads_batch = 1
    cp.flash_attn_type, cp.type_k, cp.type_v = 0, 0, 0
    cp.kv_unified, cp.swa_full = True, True
    for name, value in more.items():
        setattr(cp, name, value)
    return L.llama_init_from_model(model, cp)


def batch_of(tokens, logits=1):
    """tokens: (id, position, sequence) each; to be given to llama_batch_free."""
    batch = L.llama_batch_init(len(tokens), 0, 2)
    batch.n_tokens = len(tokens)
    for i, (token, pos, seq) in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos, 1, logits
        batch.seq_id[i][0] = seq
    return batch


def run(call, ctx, batch):
    """llama_decode or llama_encode."""
    rc = call(ctx, batch)
    if rc:
        sys.exit(f'{call.__name__}: {rc}')


def logits(ctx, batch):
    """A row of each token of what was decoded last."""
    return [np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (N_VOCAB,)).copy() for i in range(batch.n_tokens)]


def save(rows, path, end='.f32'):
    """Beside the make.py that runs, under the model's name."""
    here = os.path.dirname(os.path.abspath(sys.argv[0]))
    rows.astype('<f4').tofile(os.path.join(here, os.path.basename(path).replace('.gguf', end)))
