#!/usr/bin/env python3
"""Makes a model of an architecture at other dimensions and runs a session on it, both with llama.cpp.

    fixture.py MODEL.gguf SEED SESSION.json OUT.gguf OUT.npz

MODEL.gguf is a model of that architecture. Its keys are changed at random (layers, heads, widths, experts, window,
frequencies, ..), llama.cpp says which tensors such a file has, and they are filled with numbers drawn from the tensor of
the same name in MODEL.gguf. SESSION.json (tools/commands/session.h) is then run on OUT.gguf as llama.cpp loads it, its tokens
modulo the vocabulary; OUT.npz has logits_i (embd_i in a session of vectors) of operation i. Prints what was changed. llama.cpp refuses or aborts at what its code cannot compute: the caller tries another seed.

needs: pip install numpy gguf llama-cpp-python==0.3.36
"""
import ctypes
import json
import os
import random
import sys
import zlib

import gguf
import llama_cpp as L
import numpy as np

FOLDER = os.path.join(os.path.dirname(L.__file__), "lib")
BASE = ctypes.CDLL(os.path.join(FOLDER, "libggml-base.so"))
LLAMA = ctypes.CDLL(os.path.join(FOLDER, "libllama.so"))
BASE.gguf_init_empty.restype = ctypes.c_void_p
BASE.ggml_get_name.restype = ctypes.c_char_p
LLAMA.llama_model_init_from_user.restype = ctypes.c_void_p
FILL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
LLAMA.llama_model_init_from_user.argtypes = [ctypes.c_void_p, FILL, ctypes.c_void_p, L.llama_model_params]
V = gguf.GGUFValueType
C_TYPE = {
    V.UINT32: (ctypes.c_uint32, "u32"), V.INT32: (ctypes.c_int32, "i32"), V.FLOAT32: (ctypes.c_float, "f32"),
    V.BOOL: (ctypes.c_bool, "bool"), V.UINT64: (ctypes.c_uint64, "u64"), V.INT64: (ctypes.c_int64, "i64"),
    V.UINT16: (ctypes.c_uint16, "u16"), V.UINT8: (ctypes.c_uint8, "u8"), V.FLOAT64: (ctypes.c_double, "f64"),
}


class Keys:
    """The keys of a file by their names without the architecture in front."""

    def __init__(self, reader):
        self.arch = reader.fields["general.architecture"].contents()
        self.types, self.values, self.said = {}, {}, []
        for name, f in reader.fields.items():
            if not name.startswith("GGUF."):
                self.types[name], self.values[name] = f.types, f.contents()
        self.n_layer = self.get("block_count")

    def full(self, key):
        return key if key in self.values else f"{self.arch}.{key}"

    def get(self, key, otherwise=0):
        return self.values.get(self.full(key), otherwise)

    def one(self, key):
        """The value, or of an array its largest item."""
        v = self.get(key)
        return max(v) if isinstance(v, list) else v

    def put(self, key, value):
        name = self.full(key)
        if name in self.values and self.values[name] != value:
            self.values[name] = value
            self.said.append(f"{key}={value}")

    def own(self, key, type_, value):
        """A key of the architecture; a list is an array of that type."""
        name, array = f"{self.arch}.{key}", isinstance(value, list)
        self.types[name], self.values[name] = [V.ARRAY, type_] if array else [type_], value

    def add(self, key, type_, value):
        self.own(key, type_, value)
        self.said.append(f"{key}={value}")

    def scale(self, key, f):
        """Multiplies a number or every item; those of 0 stay so."""
        v = self.get(key)
        if not isinstance(v, bool) and v:
            self.put(key, [int(x * f) for x in v] if isinstance(v, list) else int(v * f))


def layers(k, r):
    """More layers, or other ones: what a layer has of its own goes on as it began."""
    n = k.n_layer + r.choice([1, k.n_layer, k.n_layer + 1])
    for name, v in list(k.values.items()):
        if isinstance(v, list) and len(v) == k.n_layer:
            k.values[name] = [v[i % k.n_layer] for i in range(n)]
    k.put("block_count", n)
    lead = k.get("leading_dense_block_count")
    if lead and r.random() < 0.5:
        k.put("leading_dense_block_count", lead + 1)


def heads(k, r):
    """More heads, on as many or more of K and V; the model grows with them."""
    f = r.choice([2, 3])
    k.scale("attention.head_count", f)
    k.scale("attention.head_count_kv", r.choice([1, f]))
    k.scale("embedding_length", f)
    for key in ("ssm.inner_size", "ssm.time_step_rank"):
        k.scale(key, f)


def width(k, r):
    """The model's width apart from its heads'."""
    k.scale("embedding_length", r.choice([1.5, 2]))


def head(k, r):
    """The width of a head."""
    f = r.choice([1.5, 2])
    for key in ("attention.key_length", "attention.value_length", "attention.key_length_swa",
                "attention.value_length_swa", "rope.dimension_count", "rope.dimension_count_swa"):
        k.scale(key, f)
    if any(k.get("rope.dimension_sections", [0])):
        n = k.one("rope.dimension_count") // 2
        k.put("rope.dimension_sections", [n - 2 * (n // 3), n // 3, n // 3, 0])


def head_and_model(k, r):
    """Both, for those whose heads divide the model."""
    f = r.choice([1.5, 2])
    head(k, random.Random(0) if f == 2 else r)
    k.put("embedding_length", k.one("attention.head_count") * k.one("attention.key_length"))


def fewer_rotated(k, r):
    k.scale("rope.dimension_count", 0.5)
    k.scale("rope.dimension_count_swa", 0.5)


def scaling(k, r):
    """Frequencies for a longer context."""
    kind = r.choice(["linear", "yarn"])
    k.put("rope.scaling.type", kind)
    k.add("rope.scaling.factor", V.FLOAT32, r.choice([2.0, 4.0]))
    k.put("rope.scaling.original_context_length", 64)


def temper(k, r):
    """Queries that grow with positions, for those that know it."""
    k.put("attention.temperature_scale", r.choice([0.1, 0.5]))
    k.put("attention.temperature_length", 16)
    k.put("rope.scaling.original_context_length", 16)


def feed_forward(k, r):
    for key, f in (("feed_forward_length", [1.5, 2]), ("expert_feed_forward_length", [0.5, 1.5]),
                   ("expert_shared_feed_forward_length", [0.5, 2]), ("expert_chunk_feed_forward_length", [0.5, 2]),
                   ("expert_latent_length", [0.5])):
        k.scale(key, r.choice(f))


def experts(k, r):
    if k.get("expert_count"):
        groups = max(1, k.get("expert_group_count"))
        k.put("expert_count", groups * r.choice([4, 6]))
        k.put("expert_used_count", r.choice([1, 2, 3]))


def options(k, r):
    """Numbers that shape nothing."""
    k.put("attention.sliding_window", r.choice([3, 7, 16]) if k.get("attention.sliding_window") else 0)
    k.put("rope.freq_base", r.choice([5000.0, 500000.0]))
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.group_norm_epsilon"):
        if k.get(key):
            k.put(key, r.choice([1e-6, 1e-3]))
    for key in ("logit_scale", "residual_scale", "embedding_scale", "attention.scale", "expert_weights_scale",
                "attention.clamp_kqv", "final_logit_softcapping", "attn_logit_softcapping", "attention.max_alibi_bias"):
        if k.get(key):
            k.put(key, k.get(key) * r.choice([0.5, 1.25]))


def vocabulary(k, r):
    k.put("vocab_size", r.choice([97, 200]))


CHANGES = [layers, heads, width, head, head_and_model, fewer_rotated, scaling, feed_forward, experts, options, vocabulary,
           temper]


def change(k, seed):
    r = random.Random(f"{k.arch} {seed}")
    for c in r.sample(CHANGES, r.choice([2, 3, 4, 5])):
        c(k, r)


def metadata(k):
    g = ctypes.c_void_p(BASE.gguf_init_empty())
    for name, v in k.values.items():
        t, key = k.types[name], name.encode()
        if t[0] == V.STRING:
            BASE.gguf_set_val_str(g, key, v.encode())
        elif t[0] == V.ARRAY and t[-1] == V.STRING:
            strings = (ctypes.c_char_p * len(v))(*[s.encode() for s in v])
            BASE.gguf_set_arr_str(g, key, strings, ctypes.c_size_t(len(v)))
        elif t[0] == V.ARRAY:
            items = (C_TYPE[t[-1]][0] * len(v))(*v)
            BASE.gguf_set_arr_data(g, key, int(t[-1]), items, ctypes.c_size_t(len(v)))
        else:
            c, suffix = C_TYPE[t[0]]
            getattr(BASE, "gguf_set_val_" + suffix)(g, key, c(v))
    return g


def filler(reader, n_layer, seed, filled):
    """Draws a tensor's numbers from those of the one with its name (of a layer that is alike); a matrix of longer rows
    has smaller ones. filled[name] is what was drawn."""
    there = {t.name: t for t in reader.tensors}

    def like(name):
        part = name.split(".")
        if part[0] == "blk":
            own = ".".join(part[2:])
            for il in [int(part[1]) % n_layer, *range(n_layer)]:
                if f"blk.{il}.{own}" in there:
                    return there[f"blk.{il}.{own}"]
        return there.get(name)

    def fill(tensor, _):
        name = BASE.ggml_get_name(ctypes.c_void_p(tensor)).decode()
        ne = (ctypes.c_int64 * 4).from_address(tensor + 16)
        shape = [n for n in ne]
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        n, from_ = int(np.prod(shape)), like(name)
        if from_ is None:
            x = rng.normal(0, 0.1, n)
        else:
            x = rng.choice(np.array(from_.data).reshape(-1), n)
            if min(shape[1], from_.data.ndim) > 1 and abs(x.mean()) < 0.5 * x.std():
                x = x * (from_.shape[0] / shape[0]) ** 0.5
        x = np.ascontiguousarray(x, np.float32)
        n_dim = max([1, *(i + 1 for i in range(4) if shape[i] > 1)])
        filled[name] = x.reshape(shape[:n_dim][::-1])
        BASE.ggml_backend_tensor_set(ctypes.c_void_p(tensor), x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(0),
                                     ctypes.c_size_t(x.nbytes))

    return FILL(fill)


def make(reader, k, seed, path):
    tensors = {}
    fill = filler(reader, k.n_layer, seed, tensors)
    params = L.llama_model_default_params()
    params.n_gpu_layers = 0
    if not LLAMA.llama_model_init_from_user(metadata(k), fill, None, params):
        sys.exit("llama.cpp refuses: " + " ".join(k.said))
    write(k, {n: x for n, x in tensors.items() if not n.endswith("scale")}, path)  # only NVFP4 files have scales


def write(k, tensors, path):
    w = gguf.GGUFWriter(path, k.arch)
    for name, v in k.values.items():
        t = k.types[name]
        if name != "general.architecture" and (t[0] != V.ARRAY or v):
            w.add_key_value(name, v, t[0], t[-1] if t[0] == V.ARRAY else None)
    for name, x in tensors.items():
        w.add_tensor(name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def decode(ctx, op, row, n):
    """row(ctx, i): where the i-th token's n numbers are."""
    n_tok = len(op["tokens"])
    batch = L.llama_batch_init(n_tok, 0, 8)
    batch.n_tokens = n_tok
    for i in range(n_tok):
        batch.token[i], batch.pos[i] = op["tokens"][i], op["pos"][i]
        batch.n_seq_id[i], batch.logits[i] = len(op["seq"][i]), op["logits"][i]
        for j, s in enumerate(op["seq"][i]):
            batch.seq_id[i][j] = s
    rc = L.llama_decode(ctx, batch)
    if rc:
        sys.exit(f"llama_decode: {rc}")
    rows = [np.ctypeslib.as_array(row(ctx, i), (n,)).copy() for i in range(n_tok) if op["logits"][i]]
    L.llama_batch_free(batch)
    return np.array(rows, np.float32)


def run(path, session):
    params = L.llama_model_default_params()
    params.n_gpu_layers = 0
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit("llama.cpp does not load what it asked for")
    n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    c, p = session["context"], L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = c["n_ctx"], c["n_batch"], c["n_batch"], c["n_seq_max"]
    p.n_threads = p.n_threads_batch = 1
    p.flash_attn_type, p.type_k, p.type_v, p.kv_unified = 0, 0, 0, True
    vectors = bool(c.get("embeddings"))  # without pooling
    p.embeddings, p.pooling_type = vectors, 0
    ctx = L.llama_init_from_model(model, p)
    name, row, n = "logits", L.llama_get_logits_ith, n_vocab
    if vectors:
        name, row, n = "embd", L.llama_get_embeddings_ith, L.llama_model_n_embd_out(model)
    out = {}
    for i, op in enumerate(session["ops"]):
        if op["op"] == "decode":
            op["tokens"] = [t % n_vocab for t in op["tokens"]]
            out[f"{name}_{i}"] = decode(ctx, op, row, n)
        elif op["op"] == "seq_cp":
            L.llama_memory_seq_cp(L.llama_get_memory(ctx), op["src"], op["dst"], op["p0"], op["p1"])
        else:
            sys.exit(f"an operation that is not meant here: {op['op']}")
    return out


@L.llama_log_callback
def quiet(level, text, user):
    if level == 4:
        sys.stderr.write(text.decode(errors="replace"))


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    source, seed, session, out, logits = sys.argv[1:]
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    reader = gguf.GGUFReader(source)
    k = Keys(reader)
    change(k, int(seed))
    make(reader, k, int(seed), out)
    with open(session) as f:
        session = json.load(f)
    rows = run(out, session)
    with open(logits + ".json", "w") as f:  # as it was run
        json.dump(session, f)
    np.savez(logits, **rows)
    print(" ".join(k.said))
    sys.stdout.flush()
    os._exit(0)  # the library's own end takes longer than all of this


if __name__ == "__main__":
    main()
